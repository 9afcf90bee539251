"""Make files that were written earlier durable, all at once: cheaper than one by one, and as safe."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Collection
from typing import Any

ONE_BY_ONE = 64
"""Up to so many files are synced each for itself; beyond, the file system as a whole is quicker."""


def sync(files: Collection[str], directories: Collection[str]) -> None:
    """What `files` hold, and the names in `directories`, survive a power cut when this returns.

    Raises:
        OSError: one of them is gone, or the disk failed; then nothing is promised.
    """
    if len(files) > ONE_BY_ONE and directories and _sync_file_system(next(iter(directories))):
        return
    for path in (*files, *directories):
        _sync(path)


def start_writing(fd: int) -> None:
    """Have the disk begin with what was written to `fd`, so that a later sync of many files waits for one flush."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def _sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _sync_file_system(directory: str) -> bool:
    """Everything on the file system that holds `directory`; False where the kernel cannot do that."""
    if sys.platform != "linux":
        return False
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return bool(_libc().syncfs(fd) == 0)
    finally:
        os.close(fd)


@functools.cache
def _libc() -> Any:
    return ctypes.CDLL(None)
