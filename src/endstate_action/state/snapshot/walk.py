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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from endstate_action.state.snapshot.listing import (
    IN_TREE,
    Item,
    Kind,
    counted,
    encode,
    git_tree,
    items_of,
    mode_of,
    tree_of,
)
from endstate_action.state.snapshot.objects import TREE, FileChanged, ObjectStore
from endstate_action.system.tree_cache import Horizon, Signature, signature
from endstate_action.system.tree_format import NO_DIGEST, Directory
from endstate_action.system.tree_read import Look, look
from endstate_action.system.tree_walk import Frame, Paths, Walk

DEEPEST_PATH_BYTES = 4000
DEEPEST_LEVELS = 1000
"""Beyond, neither git nor an ordinary program could handle the path."""
_SURELY_SHORT = DEEPEST_PATH_BYTES // 256

# Without O_NONBLOCK, opening a fifo that took a file's place would wait for a writer for ever.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MB = 1 << 20


_ODD = {
    stat.S_IFIFO: Kind.FIFO,
    stat.S_IFSOCK: Kind.SOCKET,
    stat.S_IFCHR: Kind.DEVICE,
    stat.S_IFBLK: Kind.DEVICE,
    # Only where a directory has just taken the place of something else.
    stat.S_IFDIR: Kind.UNREADABLE,
}


class Keeper(Walk[Item]):
    """Writes into `objects` what it meets and `objects` does not have yet."""

    def __init__(
        self, objects: ObjectStore, horizon: Horizon, hidden: Paths, file_max_mb: int, check: Callable[[], None]
    ) -> None:
        super().__init__(horizon, hidden)
        self._objects = objects
        self._width = 32 if objects.object_format == "sha256" else 20
        self._largest = file_max_mb * _MB
        self._user = os.geteuid()
        self._check = check

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
        listing = encode(self._mode(frame), counted(entries, children, trees), entries)
        tree = bytes.fromhex(self._objects.write("tree", git_tree(kept))) if kept else b""
        return Directory(listing, tree.ljust(len(NO_DIGEST), b"\0"), children, names, stats)

    def _mode(self, frame: Frame[Item]) -> int:
        # The root's own mode belongs to whoever made the checkout, not to what is in it.
        return frame.mode if len(self.frames) > 1 else 0

    def _is_locked(self, frame: Frame[Item]) -> bool:
        return self._user != 0 and frame.mode & 0o500 != 0o500

    def _read(self, directory: int, name: str, seen: Signature) -> tuple[Item, Signature, bool]:
        self._check()
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
