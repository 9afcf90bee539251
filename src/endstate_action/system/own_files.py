"""Files of our own, in directories that others may have written to: nothing is reached through a link.

Every component of a path is opened in the one before it, and none may be a link; a file is made anew
under another name and takes its place whole. So a link planted anywhere on the way leads to a
refusal, never to a write, a read or a deletion elsewhere. Nothing here is synced.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# Without reading rights, where the system can: a directory above ours may be closed to listing.
_WAY = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a fifo in a file's place would wait for a writer for ever.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

PART = ".part"
"""Ends the name of a file that is being written."""
PROBE = ".probe"
"""Ends the name of a file by which the clock of the file system is read."""


@contextmanager
def directory(path: Path, *, make: bool = False) -> Iterator[int]:
    """A descriptor of the directory `path`, to name things in; with `make`, missing directories are made.

    Raises:
        OSError: there is none, or a component of `path` is a link.
    """
    at = os.open(path.anchor or ".", _WAY)
    try:
        for name in path.parts[1:] if path.anchor else path.parts:
            above, at = at, _enter(at, name, make=make)
            os.close(above)
        yield at
    finally:
        os.close(at)


def put(path: Path, data: bytes) -> None:
    """Make `data` the content of the file `path`; the old one stays whole until the new one is.

    What is in the way, a link or a directory, is removed, not followed; its directory is made if missing.

    Raises:
        OSError: it was not written.
    """
    part = path.name + PART
    with directory(path.parent, make=True) as parent:
        remove(part, parent)
        with os.fdopen(os.open(part, _NEW, 0o600, dir_fd=parent), "wb") as file:
            file.write(data)
        try:
            os.rename(part, path.name, src_dir_fd=parent, dst_dir_fd=parent)
        except IsADirectoryError:
            remove(path.name, parent)
            os.rename(part, path.name, src_dir_fd=parent, dst_dir_fd=parent)


def get(path: Path) -> bytes:
    """The content of the ordinary file `path`.

    Raises:
        OSError: there is none, or a component is a link.
    """
    with directory(path.parent) as parent, os.fdopen(os.open(path.name, _READ, dir_fd=parent), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise FileNotFoundError(f"{path} is no ordinary file")
        return file.read()


def stamp(path: Path) -> os.stat_result:
    """What a file that is made at `path` now looks like; it is gone when this returns.

    Raises:
        OSError: it could not be made.
    """
    with directory(path.parent, make=True) as parent:
        remove(path.name, parent)
        made = os.open(path.name, _NEW, 0o600, dir_fd=parent)
        try:
            os.write(made, b"now")
            return os.fstat(made)
        finally:
            os.close(made)
            os.unlink(path.name, dir_fd=parent)


def names(path: Path) -> list[str]:
    """What is in the directory `path`; nothing where there is none, or a link on the way to it."""
    try:
        with directory(path) as way:
            listed = os.open(".", _LIST, dir_fd=way)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        return []
    try:
        return sorted(os.listdir(listed))
    finally:
        os.close(listed)


def remove(name: str, parent: int) -> None:
    """Take `name` out of the directory `parent`: a directory with all that it holds, a link as itself."""
    with suppress(FileNotFoundError):
        if stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode):
            shutil.rmtree(name, ignore_errors=True, dir_fd=parent)
        else:
            os.unlink(name, dir_fd=parent)


def _enter(parent: int, name: str, *, make: bool) -> int:
    try:
        return os.open(name, _WAY, dir_fd=parent)
    except FileNotFoundError:
        if not make:
            raise
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=parent)
    return os.open(name, _WAY, dir_fd=parent)
