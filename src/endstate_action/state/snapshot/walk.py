"""Scan the workspace into the object store: what is there, byte for byte, with no filter, index or hook in between.

A directory becomes a plain git tree, whatever it holds, a repository's `.git` included. What a tree cannot hold
(modes, empty directories, fifos) and what is not kept at all (sockets, devices, too large, unreadable) is noted
beside it, for `meta`. Nothing is read again that the stat cache vouches for.

An ordinary user's own files and directories are read even where their mode forbids it: it is changed for that
moment. A kill in that moment leaves it changed.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from endstate_action.state.snapshot.objects import EXECUTABLE, FILE, LINK, TREE, FileChanged, ObjectStore
from endstate_action.system.tree_cache import Horizon, Signature, signature
from endstate_action.system.tree_format import NO_DIGEST, Directory
from endstate_action.system.tree_read import Look, look
from endstate_action.system.tree_walk import DIRECTORY, Frame, Paths, Walk

DEEPEST_PATH_BYTES = 4000
DEEPEST_LEVELS = 1000
"""Beyond, neither git nor an ordinary program could handle the path."""
_SURELY_SHORT = DEEPEST_PATH_BYTES // 256

# Without O_NONBLOCK, opening a fifo that took a file's place would wait for a writer for ever.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MB = 1 << 20


class Kind(StrEnum):
    """What an entry is. Of the last ones, only that they are there is known."""

    FILE = "f"
    LINK = "l"
    FIFO = "p"
    SOCKET = "s"
    DEVICE = "d"
    TOO_LARGE = "L"
    UNREADABLE = "U"
    TOO_DEEP = "D"
    RESTLESS = "R"


IN_TREE = (Kind.FILE, Kind.LINK)
OPAQUE = {
    Kind.TOO_LARGE: "too large",
    Kind.UNREADABLE: "unreadable",
    Kind.TOO_DEEP: "too deep",
    Kind.RESTLESS: "changing",
}
SKIPPED = {Kind.SOCKET: "socket", Kind.DEVICE: "device"}
_ODD = {
    stat.S_IFIFO: Kind.FIFO,
    stat.S_IFSOCK: Kind.SOCKET,
    stat.S_IFCHR: Kind.DEVICE,
    stat.S_IFBLK: Kind.DEVICE,
    # Only where a directory has just taken the place of something else.
    stat.S_IFDIR: Kind.UNREADABLE,
}


@dataclass(frozen=True, slots=True)
class Item:
    """An entry that is no directory; `id` is binary and empty where nothing was kept, `mode` the permission bits."""

    kind: Kind
    mode: int = 0
    id: bytes = b""

    @property
    def git_mode(self) -> int:
        if self.kind is Kind.LINK:
            return LINK
        return EXECUTABLE if self.mode & stat.S_IXUSR else FILE


Counted = tuple[int, int]
"""A class of entries, `FILES` and so on, and their permission bits."""
FILES, EXECUTABLES, DIRECTORIES, SPECIAL = range(4)

_HEAD = struct.Struct(">HI")
_COUNT = struct.Struct(">BHI")
_RECORD = struct.Struct(">cHBB")


def mode_of(directory: Directory) -> int:
    return int(_HEAD.unpack_from(directory.listing)[0])


def counts_of(directory: Directory) -> dict[Counted, int]:
    """How many of each class, with each permission bits, are in the directory and all below it."""
    number = _HEAD.unpack_from(directory.listing)[1]
    body = directory.listing[_HEAD.size : _HEAD.size + number * _COUNT.size]
    return {(kind, mode): count for kind, mode, count in _COUNT.iter_unpack(body)}


def items_of(directory: Directory) -> Iterator[tuple[bytes, Item]]:
    """What is in the directory, but for directories, in the order of the names."""
    listing = directory.listing
    at = _HEAD.size + _HEAD.unpack_from(listing)[1] * _COUNT.size
    while at < len(listing):
        kind, mode, width, length = _RECORD.unpack_from(listing, at)
        at += _RECORD.size
        yield listing[at + width : at + width + length], Item(Kind(kind.decode()), mode, listing[at : at + width])
        at += width + length


def tree_of(directory: Directory, width: int) -> bytes:
    """The binary id of the git tree; empty where git would have no tree, since nothing is in it."""
    return directory.digest[:width] if any(directory.digest) else b""


class Keeper(Walk[Item]):
    """Writes into `objects` what it meets and `objects` does not have yet."""

    def __init__(self, objects: ObjectStore, horizon: Horizon, hidden: Paths, file_max_mb: int) -> None:
        super().__init__(horizon, hidden)
        self._objects = objects
        self._width = 32 if objects.object_format == "sha256" else 20
        self._largest = file_max_mb * _MB
        self._user = os.geteuid()

    def entries(self, directory: Directory) -> Iterator[tuple[bytes, Item]]:
        return items_of(directory)

    def look(self, directory: int, name: str, seen: Signature) -> Look[Item]:
        found = look(self._read, directory, name, seen)
        return Look(Item(Kind.RESTLESS), changed=True) if found.changed and found.entry else found

    def closed(self) -> Item:
        return Item(Kind.UNREADABLE)

    def refused(self, name: bytes) -> Item | None:
        depth = len(self.frames)
        if depth < _SURELY_SHORT or (depth <= DEEPEST_LEVELS and len(self.path(name)) <= DEEPEST_PATH_BYTES):
            return None
        return Item(Kind.TOO_DEEP)

    def open(self, name: str, parent: int) -> int:
        try:
            return super().open(name, parent)
        except PermissionError:
            with _unlocked(name, parent, self._user):
                return super().open(name, parent)

    def begun(self, frame: Frame[Item]) -> None:
        found = os.fstat(frame.fd)
        frame.mode = stat.S_IMODE(found.st_mode)
        if self._is_locked(frame) and found.st_uid == self._user:
            os.fchmod(frame.fd, frame.mode | stat.S_IRWXU)

    def leaving(self, frame: Frame[Item]) -> None:
        if frame.mode >= 0 and self._is_locked(frame):
            with suppress(OSError):
                os.fchmod(self.fd(), frame.mode)

    def is_same(self, frame: Frame[Item], before: Directory) -> bool:
        return self._mode(frame) == mode_of(before)

    def make(
        self,
        frame: Frame[Item],
        entries: Mapping[bytes, Item],
        children: Mapping[bytes, Directory],
        names: bytes,
        stats: bytes,
    ) -> Directory:
        kept = [(name, item.git_mode, item.id) for name, item in entries.items() if item.kind in IN_TREE]
        trees = {name: tree_of(child, self._width) for name, child in children.items()}
        kept += [(name, TREE, tree) for name, tree in trees.items() if tree]
        listing = _listing(self._mode(frame), _counted(entries, children, trees), entries)
        tree = bytes.fromhex(self._objects.write("tree", git_tree(kept))) if kept else b""
        return Directory(listing, tree.ljust(len(NO_DIGEST), b"\0"), children, names, stats)

    def _mode(self, frame: Frame[Item]) -> int:
        # The root's own mode belongs to whoever made the checkout, not to what is in it.
        return frame.mode if len(self.frames) > 1 else 0

    def _is_locked(self, frame: Frame[Item]) -> bool:
        return self._user != 0 and frame.mode & 0o500 != 0o500

    def _read(self, directory: int, name: str, seen: Signature) -> tuple[Item, Signature, bool]:
        mode = stat.S_IMODE(seen[0])
        try:
            match stat.S_IFMT(seen[0]):
                case stat.S_IFREG if seen[3] > self._largest:
                    return Item(Kind.TOO_LARGE), seen, True
                case stat.S_IFREG:
                    return self._file(directory, name, seen, mode)
                case stat.S_IFLNK:
                    target = os.fsencode(os.readlink(name, dir_fd=directory))
                    return Item(Kind.LINK, 0, bytes.fromhex(self._objects.write("blob", target))), seen, True
                case kind:
                    return Item(_ODD[kind], mode if kind == stat.S_IFIFO else 0), seen, True
        except FileNotFoundError:
            raise
        except OSError as error:
            now = signature(os.stat(name, dir_fd=directory, follow_symlinks=False))
            if now == seen and not isinstance(error, PermissionError):
                raise
            return Item(Kind.UNREADABLE), now, False

    def _file(self, directory: int, name: str, seen: Signature, mode: int) -> tuple[Item, Signature, bool]:
        file, opened_as, stands = self._opened(directory, name, seen)
        try:
            blob = self._objects.write_file(file, seen[3])
            after = signature(os.fstat(file))
        except FileChanged:
            return Item(Kind.RESTLESS), signature(os.fstat(file)), False
        finally:
            os.close(file)
        return Item(Kind.FILE, mode, bytes.fromhex(blob)), seen if after == opened_as else after, stands

    def _opened(self, directory: int, name: str, seen: Signature) -> tuple[int, Signature, bool]:
        """The file, the signature it should still have when it has been read, and whether that is the old one."""
        try:
            return os.open(name, _FILE, dir_fd=directory), seen, True
        except PermissionError:
            with _unlocked(name, directory, self._user):
                file = os.open(name, _FILE, dir_fd=directory)
            # Its ctime has just moved, by our hand.
            return file, signature(os.fstat(file)), False


def git_tree(entries: Iterable[tuple[bytes, int, bytes]]) -> bytes:
    """The tree object that holds (name, mode, binary id), in git's order: a directory as if its name ended in `/`."""
    ordered = sorted(entries, key=lambda entry: entry[0] + b"/" if entry[1] == TREE else entry[0])
    return b"".join(b"%o %s\0%s" % (mode, name, found) for name, mode, found in ordered)


def too_much(root: Path, listed: Iterable[bytes], excluded: Paths, max_files: int, max_mb: int) -> list[bytes]:
    """Those of the ignored paths that do not fit into what may be kept, in order; a directory counts as a whole.

    Depends on nothing but what is there: the paths are taken in the order of their bytes, each that fits.
    """
    files, room, over = max_files, max_mb * _MB, []
    seen: set[bytes] = set()
    top = os.open(root, DIRECTORY & ~os.O_NOFOLLOW)
    try:
        for path in sorted({path.rstrip(b"/") for path in listed}):
            # Git may list what is in an ignored directory besides it.
            if is_within(path, excluded) or not seen.isdisjoint(above(path)):
                continue
            seen.add(path)
            size = _Size(files, room)
            if size.add(top, path.split(b"/")):
                files, room = size.files, size.room
            else:
                over.append(path)
    finally:
        os.close(top)
    return over


def above(path: bytes) -> Iterator[bytes]:
    """The directories that lead to it, the nearest first."""
    while path := path.rpartition(b"/")[0]:
        yield path


def is_within(path: bytes, paths: Paths) -> bool:
    """Whether `path` is one of `paths` or lies below one."""
    here = paths
    for name in os.fsdecode(path).split("/"):
        if name not in here:
            return False
        here = here[name]
        if not here:
            return True
    return False


class _Size:
    """What is left of the room when the files have been counted in."""

    def __init__(self, files: int, room: int) -> None:
        self.files = files
        self.room = room

    def add(self, top: int, parts: list[bytes]) -> bool:
        """False as soon as it is too much. What is gone or cannot be listed takes no room."""
        pending = [parts]
        while pending:
            parts = pending.pop()
            with suppress(OSError), opened(top, parts[:-1]) as parent:
                found = os.stat(parts[-1], dir_fd=parent, follow_symlinks=False)
                if not stat.S_ISDIR(found.st_mode):
                    if not self._take(found):
                        return False
                elif not self._list(parent, parts, pending):
                    return False
        return True

    def _list(self, parent: int, parts: list[bytes], pending: list[list[bytes]]) -> bool:
        with _directory(parts[-1], parent) as here, os.scandir(here) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append([*parts, os.fsencode(entry.name)])
                elif not self._take(entry.stat(follow_symlinks=False)):
                    return False
        return True

    def _take(self, found: os.stat_result) -> bool:
        self.files -= 1
        self.room -= found.st_size if stat.S_ISREG(found.st_mode) else 0
        return self.files >= 0 and self.room >= 0


def is_newer(root: Path, path: bytes, time_ns: int) -> bool:
    """Whether `path`, or anything below it, changed after `time_ns` (a time of that file system) or is gone."""
    # Where times are whole seconds, the second itself is in doubt.
    limit = time_ns if time_ns % 1_000_000_000 else time_ns - 1
    top = os.open(root, DIRECTORY & ~os.O_NOFOLLOW)
    pending = [path.split(b"/")]
    try:
        while pending:
            parts = pending.pop()
            with opened(top, parts[:-1]) as parent:
                found = os.stat(parts[-1], dir_fd=parent, follow_symlinks=False)
                if found.st_ctime_ns > limit:
                    return True
                if stat.S_ISDIR(found.st_mode) and _any_newer(parent, parts, limit, pending):
                    return True
    except OSError:
        return True
    finally:
        os.close(top)
    return False


def _any_newer(parent: int, parts: list[bytes], limit: int, pending: list[list[bytes]]) -> bool:
    with _directory(parts[-1], parent) as here, os.scandir(here) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                pending.append([*parts, os.fsencode(entry.name)])
            elif entry.stat(follow_symlinks=False).st_ctime_ns > limit:
                return True
    return False


@contextmanager
def opened(top: int, parts: Iterable[bytes]) -> Iterator[int]:
    """The directory `parts` below the open directory `top`, reached without passing a link.

    Raises:
        OSError: it is not there, or something on the way is no directory.
    """
    here = os.dup(top)
    try:
        for part in parts:
            above, here = here, os.open(part, DIRECTORY, dir_fd=here)
            os.close(above)
        yield here
    finally:
        os.close(here)


@contextmanager
def _directory(name: bytes, parent: int) -> Iterator[int]:
    here = os.open(name, DIRECTORY, dir_fd=parent)
    try:
        yield here
    finally:
        os.close(here)


@contextmanager
def _unlocked(name: str, parent: int, user: int) -> Iterator[None]:
    """Our own file or directory with all rights for us, for a moment; a link is refused.

    Raises:
        PermissionError: it is not ours, or the system has no way to do this without following links.
    """
    if not hasattr(os, "O_PATH"):
        raise PermissionError
    handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        found = os.fstat(handle)
        if found.st_uid != user or stat.S_ISLNK(found.st_mode):
            raise PermissionError
        mode, place = stat.S_IMODE(found.st_mode), f"/proc/self/fd/{handle}"
        os.chmod(place, mode | stat.S_IRWXU)
        try:
            yield
        finally:
            os.chmod(place, mode)
    finally:
        os.close(handle)


def _counted(
    entries: Mapping[bytes, Item], children: Mapping[bytes, Directory], trees: Mapping[bytes, bytes]
) -> dict[Counted, int]:
    counts: dict[Counted, int] = {}
    for item in entries.values():
        if item.kind is not Kind.LINK:
            key = (EXECUTABLES if item.mode & stat.S_IXUSR else FILES, item.mode)
            key = key if item.kind is Kind.FILE else (SPECIAL, 0)
            counts[key] = counts.get(key, 0) + 1
    for name, child in children.items():
        own = [(DIRECTORIES, mode_of(child)), *([] if trees[name] else [(SPECIAL, 0)])]
        for key, count in (*((key, 1) for key in own), *counts_of(child).items()):
            counts[key] = counts.get(key, 0) + count
    return counts


def _listing(mode: int, counts: Mapping[Counted, int], entries: Mapping[bytes, Item]) -> bytes:
    parts = [_HEAD.pack(mode, len(counts))]
    parts += [_COUNT.pack(kind, bits, count) for (kind, bits), count in sorted(counts.items())]
    for name in sorted(entries):
        item = entries[name]
        parts.append(_RECORD.pack(item.kind.encode(), item.mode, len(item.id), len(name)) + item.id + name)
    return b"".join(parts)
