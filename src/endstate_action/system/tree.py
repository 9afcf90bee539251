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
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from endstate_action.errors import InputError
from endstate_action.system.names import display
from endstate_action.system.tree_cache import NO_HORIZON, Horizon, Signature, StatCache
from endstate_action.system.tree_format import Change, Directory, Entry, Kind, Scan, diff
from endstate_action.system.tree_read import Look, Reader
from endstate_action.system.tree_walk import DIRECTORY, Frame, Paths, Walk

__all__ = ["Change", "Entry", "Kind", "Scan", "StatCache", "diff", "display", "scan"]

DEFAULT_EXCLUDED = (b".git", b".endstate")


def scan(
    root: Path | bytes,
    exclude: Iterable[bytes] = DEFAULT_EXCLUDED,
    cache: StatCache | None = None,
    check: Callable[[], None] = lambda: None,
) -> Scan:
    """Look at everything below `root`, but for the paths in `exclude`, relative to it.

    Not a snapshot of one moment: when somebody writes meanwhile, each entry is as it was when its
    turn came, and what changed while it was read is in `unstable`.

    Args:
        check: as `Reader` asks it; what it raises ends the scan.

    Raises:
        InputError: the root is no directory, an exclusion is no relative path, or reading failed
            for another reason than missing permission.
    """
    excluded = tuple(sorted(set(map(_relative, exclude))))
    before = cache.last() if cache else None
    walk = _Hashing(cache.horizon() if cache else NO_HORIZON, excluded, check)
    try:
        top = os.open(root, DIRECTORY & ~os.O_NOFOLLOW)
        if os.fstat(top).st_nlink == 0:
            os.close(top)
            raise FileNotFoundError(errno.ENOENT, "It was deleted", os.fspath(root))
        found = walk.run(top, before.root if before else None)
    except OSError as error:
        where = error.filename if isinstance(error.filename, str | bytes) else root
        raise InputError(
            f"The tree was not hashed: {display(os.fsencode(where))}: {error.strerror}. Nothing was changed.",
            hint="Name a directory that is there and that you may read."
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EACCES)
            else "Have the disk checked if reading fails again.",
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


class _Hashing(Walk[Entry]):
    """Makes of each directory what the tree hash says of it."""

    def __init__(self, horizon: Horizon, excluded: tuple[bytes, ...], check: Callable[[], None]) -> None:
        super().__init__(horizon, Paths.of(excluded))
        self._reader = Reader(check)

    def look(self, directory: int, name: str, seen: Signature) -> Look[Entry]:
        return self._reader.look(directory, name, seen)

    def entries(self, directory: Directory) -> Iterator[tuple[bytes, Entry]]:
        return directory.entries()

    def make(
        self,
        frame: Frame[Entry],
        entries: Mapping[bytes, Entry],
        children: Mapping[bytes, Directory],
        names: bytes,
        stats: bytes,
    ) -> Directory:
        return Directory.of(entries, children, names, stats)

    def closed(self) -> Entry:
        return Entry(Kind.UNREADABLE_DIRECTORY)
