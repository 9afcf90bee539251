"""Scan a tree: every name in it is looked at, nothing is skipped, nothing outside is followed.

No entry is opened but regular files and directories, each by name in the directory before it and
never through a link; a name is bytes, so it needs no encoding and a path has no greatest length.
What cannot be read is part of the hash by its type. Large files are streamed.

With a `StatCache`, content is read again only where the signature (mode, inode, device, size,
mtime, ctime) differs. A change that leaves all of these as they were is missed: that is a live
writable mmap across two scans, or a turned-back clock. Scan without a cache where that may be.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from endstate_action.errors import InputError
from endstate_action.system.names import display
from endstate_action.system.tree_cache import (
    FIELDS,
    NEVER,
    NO_HORIZON,
    Horizon,
    Signature,
    StatCache,
    known,
    pack,
    rows,
    signature,
)
from endstate_action.system.tree_format import Change, Directory, Entry, Kind, Scan, diff
from endstate_action.system.tree_read import Look, Reader

__all__ = ["Change", "Entry", "Kind", "Scan", "StatCache", "diff", "display", "scan"]

DEFAULT_EXCLUDED = (b".git", b".endstate")

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_REPLACED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)

_OPEN_AT_ONCE = 64
"""Directories held open on the way down; those higher up are opened again on the way back."""


def scan(root: Path | bytes, exclude: Iterable[bytes] = DEFAULT_EXCLUDED, cache: StatCache | None = None) -> Scan:
    """Look at everything below `root`, but for the paths in `exclude`, relative to it.

    Not a snapshot of one moment: when somebody writes meanwhile, each entry is as it was when its
    turn came, and what changed while it was read is in `unstable`.

    Raises:
        InputError: the root is no directory, an exclusion is no relative path, or reading failed
            for another reason than missing permission.
    """
    excluded = tuple(sorted(set(map(_relative, exclude))))
    before = cache.last() if cache else None
    walk = _Walk(cache.horizon() if cache else NO_HORIZON, excluded)
    try:
        found = walk.run(os.open(root, _DIRECTORY & ~os.O_NOFOLLOW), before.root if before else None)
    except OSError as error:
        where = error.filename if isinstance(error.filename, str | bytes) else root
        raise InputError(
            f"The tree was not hashed: {display(os.fsencode(where))}: {error.strerror}. Nothing was changed.",
            hint="Name a directory that you may read, and have the disk checked if reading fails again.",
        ) from error
    result = Scan(found, excluded, tuple(sorted(walk.unstable)))
    if cache:
        cache.keep(result)
    return result


def _relative(path: bytes) -> bytes:
    if b"\0" in path or any(part in (b"", b".", b"..") for part in path.split(b"/")):
        raise InputError(
            f"{display(path)!r} cannot be excluded: it is not a plain path below the root. Nothing was hashed.",
            hint="Write it relative to the root, without '.', '..' or a slash at either end.",
        )
    return path


@dataclass(slots=True)
class _Frame:
    """A directory on the way down: what is known of it, and which of its directories are still to be entered."""

    name: bytes
    fd: int
    before: Directory | None
    hidden: tuple[tuple[str, ...], ...]
    """Excluded paths from here on, as components."""
    to_enter: list[str] = field(default_factory=list)
    names: bytes = b""
    stats: bytes = b""
    same: bool = False
    """Whether `names` and `stats` are those of `before`; `entries` is then left empty."""
    entries: dict[bytes, Entry] = field(default_factory=dict)
    instead: dict[bytes, Entry] = field(default_factory=dict)
    """What was listed as a directory, but could not be entered."""
    children: dict[bytes, Directory] = field(default_factory=dict)

    def finish(self) -> Directory:
        """The directory of before itself where nothing differs, so that its parent sees that at once."""
        entries, now = self.entries, self.children
        if self.same and self.before:
            then = self.before.children
            if not self.instead and then.keys() == now.keys() and all(then[name] is now[name] for name in now):
                return self.before
            entries = {name: entry for name, entry in self.before.entries() if name not in then}
        if self.instead:
            # Its names then do not account for all that is in it, and no name has a slash.
            return Directory.of(entries | self.instead, now, names=b"/")
        return Directory.of(entries, now, self.names, self.stats)


class _Walk:
    """One scan; depth first and without recursion, since a tree may be deeper than either stack."""

    def __init__(self, horizon: Horizon, excluded: tuple[bytes, ...]) -> None:
        self.unstable: set[bytes] = set()
        self._horizon = horizon
        self._hidden = tuple(tuple(os.fsdecode(path).split("/")) for path in excluded)
        self._frames: list[_Frame] = []
        self._reader = Reader()

    def run(self, root: int, before: Directory | None) -> Directory:
        """Takes over the open directory `root`."""
        try:
            self._begin(_Frame(b"", root, before, self._hidden))
            while True:
                frame = self._frames[-1]
                if frame.to_enter:
                    self._enter(frame, frame.to_enter.pop())
                    continue
                done = frame.finish()
                self._leave()
                if not self._frames:
                    return done
                self._frames[-1].children[frame.name] = done
        finally:
            while self._frames:
                self._leave()

    def _begin(self, frame: _Frame) -> None:
        self._frames.append(frame)
        self._let_go_above(len(self._frames) - 1)
        try:
            names, found, frame.to_enter = self._list(frame)
        except PermissionError:
            # The names in it may be listed but not asked about.
            self._leave()
            if not self._frames:
                raise
            self._frames[-1].instead[frame.name] = Entry(Kind.UNREADABLE_DIRECTORY)
            return
        frame.names, frame.stats = os.fsencode("\0".join(names)), pack(found)
        before = frame.before
        frame.same = before is not None and before.names == frame.names and before.stats == frame.stats
        if not frame.same and names:
            self._look_at_all(frame, names, found)

    def _leave(self) -> None:
        frame = self._frames.pop()
        if frame.fd >= 0:
            os.close(frame.fd)

    def _list(self, frame: _Frame) -> tuple[list[str], list[int], list[str]]:
        """Names of what is no directory, their signatures in one row, and the names of the directories."""
        names: list[str] = []
        found: list[int] = []
        directories: list[str] = []
        hidden = {path[0] for path in frame.hidden if len(path) == 1}
        with os.scandir(frame.fd) as entries:
            # Runs once for every file of a warm scan, hence neither calls nor objects that can be avoided.
            for entry in entries:
                if entry.name in hidden:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    directories.append(entry.name)
                    continue
                try:
                    s = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    self._changed(os.fsencode(entry.name))
                    continue
                names.append(entry.name)
                found += (s.st_mode, s.st_ino, s.st_dev, s.st_size, s.st_mtime_ns, s.st_ctime_ns)
        if directories and not names:
            # Otherwise nobody has asked yet whether names in here may be looked up at all.
            with suppress(FileNotFoundError):
                os.stat(directories[0], dir_fd=frame.fd, follow_symlinks=False)
        return names, found, directories

    def _look_at_all(self, frame: _Frame, names: list[str], found: list[int]) -> None:
        """Fill in the entries, each from `before` where its signature is the same."""
        before = known(frame.before) if frame.before else {}
        for number, (raw, row) in enumerate(zip(frame.names.split(b"\0"), rows(frame.stats), strict=True)):
            then, entry = before.get(raw, (b"", None))
            if entry is None or then != row:
                at = slice(number * FIELDS, (number + 1) * FIELDS)
                mode, inode, device, size, mtime, ctime = found[at]
                look = self._look(frame.fd, names[number], (mode, inode, device, size, mtime, ctime))
                found[at] = look.seen if self._horizon.trusts(look.seen) else NEVER
                entry = look.entry
            if entry:
                frame.entries[raw] = entry
        frame.stats = pack(found)

    def _look(self, fd: int, name: str, seen: Signature) -> Look:
        try:
            look = self._reader.look(fd, name, seen)
        except OSError as error:
            raise OSError(error.errno, error.strerror, self._path(os.fsencode(name))) from error
        if look.changed:
            self._changed(os.fsencode(name))
        return look

    def _enter(self, parent: _Frame, name: str) -> None:
        raw = os.fsencode(name)
        try:
            fd = os.open(name, _DIRECTORY, dir_fd=self._fd())
        except PermissionError:
            parent.instead[raw] = Entry(Kind.UNREADABLE_DIRECTORY)
        except OSError as error:
            if error.errno not in _REPLACED:
                raise
            self._changed(raw)
            self._look_instead(parent, name)
        else:
            before = parent.before.children.get(raw) if parent.before else None
            self._begin(_Frame(raw, fd, before, tuple(p[1:] for p in parent.hidden if len(p) > 1 and p[0] == name)))

    def _look_instead(self, parent: _Frame, name: str) -> None:
        """It was a directory when its parent was listed; see what is there now."""
        with suppress(FileNotFoundError):
            fd = self._fd()
            look = self._look(fd, name, signature(os.stat(name, dir_fd=fd, follow_symlinks=False)))
            if look.entry:
                parent.instead[os.fsencode(name)] = look.entry

    def _fd(self) -> int:
        """The directory we are in; opened again from the root on if it was let go on the way down."""
        if self._frames[-1].fd < 0:
            for depth, (above, frame) in enumerate(pairwise(self._frames), 1):
                if frame.fd < 0:
                    frame.fd = _open_again(frame.name, above.fd)
                self._let_go_above(depth)
        return self._frames[-1].fd

    def _let_go_above(self, depth: int) -> None:
        """Hold the root and the last few only: a tree may be deeper than the limit of open files."""
        far = depth - _OPEN_AT_ONCE
        if far > 0 and self._frames[far].fd >= 0:
            os.close(self._frames[far].fd)
            self._frames[far].fd = -1

    def _changed(self, name: bytes) -> None:
        self.unstable.add(self._path(name))

    def _path(self, name: bytes) -> bytes:
        return b"/".join([*(frame.name for frame in self._frames[1:]), name])


def _open_again(name: bytes, above: int) -> int:
    try:
        return os.open(name, _DIRECTORY, dir_fd=above)
    except OSError as error:
        if error.errno not in _REPLACED:
            raise
        # Moved away while we were below it, so what is left to enter is gone as well.
        raise FileNotFoundError(errno.ENOENT, error.strerror) from error
