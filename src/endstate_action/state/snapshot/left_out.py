"""What a snapshot leaves out and a restore leaves alone: how much of it there is, and whether it changed since."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from endstate_action.system.tree_walk import DIRECTORY, Paths

_MB = 1 << 20


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


def newer(root: Path, path: bytes, time_ns: int) -> Literal["yes", "no", "unseen", "closed"]:
    """Whether `path`, or anything below it, changed after `time_ns` (a time of that file system) or is gone.

    `unseen`: this user may not look, but could perhaps have changed it.
    `closed`: not as far as can be seen, but something below may have. It lies in a directory that this user could not
    enter at any time since: that would have changed the directory itself. So no process of his can have changed it.
    """
    # Where times are whole seconds, the second itself is in doubt.
    limit = time_ns if time_ns % 1_000_000_000 else time_ns - 1
    top = os.open(root, DIRECTORY & ~os.O_NOFOLLOW)
    pending = [path.split(b"/")]
    answer: Literal["no", "closed"] = "no"
    try:
        while pending:
            parts = pending.pop()
            with opened(top, parts[:-1]) as parent:
                found = os.stat(parts[-1], dir_fd=parent, follow_symlinks=False)
                if found.st_ctime_ns > limit:
                    return "yes"
                if not stat.S_ISDIR(found.st_mode):
                    continue
                if not os.access(parts[-1], os.X_OK, dir_fd=parent, effective_ids=True):
                    answer = "closed"
                elif _any_newer(parent, parts, limit, pending):
                    return "yes"
    except PermissionError:
        return "unseen"
    except OSError:
        return "yes"
    finally:
        os.close(top)
    return answer


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
