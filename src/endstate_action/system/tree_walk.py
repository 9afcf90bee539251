"""Walk a tree: every name in it is met, nothing outside is followed, no depth is too great.

Each entry is opened by its name in the directory before it. Content is read again only where the
signature differs from that of the walk before, see `tree_cache`. What is read of an entry, and what
becomes of a directory's entries, is for a subclass to say.
"""

from __future__ import annotations

import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Generic, Self, TypeVar

from endstate_action.system.tree_cache import FIELDS, NEVER, Horizon, Signature, known, pack, rows, signature
from endstate_action.system.tree_format import Directory
from endstate_action.system.tree_read import Look

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
REPLACED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)

_OPEN_AT_ONCE = 64
"""Directories held open on the way down; those higher up are opened again on the way back."""

E = TypeVar("E")


class Paths(dict[str, "Paths"]):
    """Paths by their components; one that has nothing below it here is meant with all that it holds."""

    @classmethod
    def of(cls, paths: Iterable[bytes]) -> Self:
        top = cls()
        for path in sorted(paths, reverse=True):
            # The shorter one comes later, and then takes the place of all below it.
            here: Paths = top
            *above, last = os.fsdecode(path).split("/")
            for name in above:
                here = here.setdefault(name, Paths())
            here[last] = Paths()
        return top


_NONE = Paths()


@dataclass(slots=True)
class Frame(Generic[E]):
    """A directory on the way down: what is known of it, and which of its directories are still to be entered."""

    name: bytes
    fd: int
    before: Directory | None
    hidden: Paths
    """What is left out below here."""
    mode: int = -1
    """For a subclass to note in `begun`."""
    to_enter: list[str] = field(default_factory=list)
    names: bytes = b""
    stats: bytes = b""
    same: bool = False
    """Whether `names` and `stats` are those of `before`; `entries` is then left empty."""
    entries: dict[bytes, E] = field(default_factory=dict)
    instead: dict[bytes, E] = field(default_factory=dict)
    """What was listed as a directory, but could not be entered."""
    children: dict[bytes, Directory] = field(default_factory=dict)


class Walk(ABC, Generic[E]):
    """One walk; depth first and without recursion, since a tree may be deeper than either stack."""

    def __init__(self, horizon: Horizon, hidden: Paths) -> None:
        self.unstable: set[bytes] = set()
        self._horizon = horizon
        self._hidden = hidden
        self.frames: list[Frame[E]] = []

    @abstractmethod
    def look(self, directory: int, name: str, seen: Signature) -> Look[E]:
        """Read one entry that is no directory."""

    @abstractmethod
    def entries(self, directory: Directory) -> Iterator[tuple[bytes, E]]:
        """What `make` was given for it, by name; children may be among it."""

    @abstractmethod
    def make(
        self,
        frame: Frame[E],
        entries: Mapping[bytes, E],
        children: Mapping[bytes, Directory],
        names: bytes,
        stats: bytes,
    ) -> Directory:
        """The directory that holds these."""

    @abstractmethod
    def closed(self) -> E:
        """What stands for a directory that cannot be listed."""

    def refused(self, name: bytes) -> E | None:
        """What stands for a directory in the present one that is not to be entered; None to enter it."""
        return None

    def open(self, name: str, parent: int) -> int:
        return os.open(name, DIRECTORY, dir_fd=parent)

    def begun(self, frame: Frame[E]) -> None:
        """The directory has been opened and will now be listed."""

    def leaving(self, frame: Frame[E]) -> None:
        """The directory, on top of `frames`, is about to be closed."""

    def is_same(self, frame: Frame[E], before: Directory) -> bool:
        """Whether the directory itself, apart from what it holds, is as before."""
        return True

    def run(self, root: int, before: Directory | None) -> Directory:
        """Takes over the open directory `root`."""
        try:
            self._begin(Frame(b"", root, before, self._hidden))
            while True:
                frame = self.frames[-1]
                if frame.to_enter:
                    self._enter(frame, frame.to_enter.pop())
                    continue
                done = self._finished(frame)
                self._leave()
                if not self.frames:
                    return done
                self.frames[-1].children[frame.name] = done
        finally:
            while self.frames:
                self._leave()

    def path(self, name: bytes) -> bytes:
        """Of `name` in the present directory, from the root."""
        return b"/".join([*(frame.name for frame in self.frames[1:]), name])

    def fd(self) -> int:
        """The directory we are in; opened again from the root on if it was let go on the way down."""
        if self.frames[-1].fd < 0:
            for depth, (above, frame) in enumerate(pairwise(self.frames), 1):
                if frame.fd < 0:
                    frame.fd = _open_again(frame.name, above.fd)
                self._let_go_above(depth)
        return self.frames[-1].fd

    def _finished(self, frame: Frame[E]) -> Directory:
        """The directory of before itself where nothing differs, so that its parent sees that at once."""
        entries, now, before = frame.entries, frame.children, frame.before
        if frame.same and before:
            then = before.children
            if (
                not frame.instead
                and self.is_same(frame, before)
                and then.keys() == now.keys()
                and all(then[name] is now[name] for name in now)
            ):
                return before
            entries = {name: entry for name, entry in self.entries(before) if name not in then}
        if frame.instead:
            # Its names then do not account for all that is in it, and no name has a slash.
            return self.make(frame, entries | frame.instead, now, b"/", b"")
        return self.make(frame, entries, now, frame.names, frame.stats)

    def _begin(self, frame: Frame[E]) -> None:
        self.frames.append(frame)
        self._let_go_above(len(self.frames) - 1)
        try:
            self.begun(frame)
            names, found, frame.to_enter = self._list(frame)
        except PermissionError:
            # The names in it may be listed but not asked about.
            self._leave()
            if not self.frames:
                raise
            self.frames[-1].instead[frame.name] = self.closed()
            return
        frame.names, frame.stats = os.fsencode("\0".join(names)), pack(found)
        before = frame.before
        frame.same = before is not None and before.names == frame.names and before.stats == frame.stats
        if not frame.same and names:
            self._look_at_all(frame, names, found)

    def _leave(self) -> None:
        try:
            self.leaving(self.frames[-1])
        finally:
            frame = self.frames.pop()
            if frame.fd >= 0:
                os.close(frame.fd)

    def _list(self, frame: Frame[E]) -> tuple[list[str], list[int], list[str]]:
        """Names of what is no directory, their signatures in one row, and the names of the directories."""
        names: list[str] = []
        found: list[int] = []
        directories: list[str] = []
        hidden = {name for name, below in frame.hidden.items() if not below}
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

    def _look_at_all(self, frame: Frame[E], names: list[str], found: list[int]) -> None:
        """Fill in the entries, each from `before` where its signature is the same."""
        before = known(frame.before, dict(self.entries(frame.before))) if frame.before else {}
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

    def _look(self, fd: int, name: str, seen: Signature) -> Look[E]:
        try:
            look = self.look(fd, name, seen)
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.path(os.fsencode(name))) from error
        if look.changed:
            self._changed(os.fsencode(name))
        return look

    def _enter(self, parent: Frame[E], name: str) -> None:
        raw = os.fsencode(name)
        instead = self.refused(raw)
        if instead is not None:
            parent.instead[raw] = instead
            return
        try:
            fd = self.open(name, self.fd())
        except PermissionError:
            parent.instead[raw] = self.closed()
        except OSError as error:
            if error.errno not in REPLACED:
                raise
            self._changed(raw)
            self._look_instead(parent, name)
        else:
            before = parent.before.children.get(raw) if parent.before else None
            self._begin(Frame(raw, fd, before, parent.hidden.get(name, _NONE)))

    def _look_instead(self, parent: Frame[E], name: str) -> None:
        """It was a directory when its parent was listed; see what is there now."""
        with suppress(FileNotFoundError):
            fd = self.fd()
            look = self._look(fd, name, signature(os.stat(name, dir_fd=fd, follow_symlinks=False)))
            if look.entry:
                parent.instead[os.fsencode(name)] = look.entry

    def _let_go_above(self, depth: int) -> None:
        """Hold the root and the last few only: a tree may be deeper than the limit of open files."""
        far = depth - _OPEN_AT_ONCE
        if far > 0 and self.frames[far].fd >= 0:
            os.close(self.frames[far].fd)
            self.frames[far].fd = -1

    def _changed(self, name: bytes) -> None:
        self.unstable.add(self.path(name))


def _open_again(name: bytes, above: int) -> int:
    try:
        return os.open(name, DIRECTORY, dir_fd=above)
    except OSError as error:
        if error.errno not in REPLACED:
            raise
        # Moved away while we were below it, so what is left to enter is gone as well.
        raise FileNotFoundError(errno.ENOENT, error.strerror) from error
