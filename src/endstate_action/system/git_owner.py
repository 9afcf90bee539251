"""Who works as root in somebody else's repository leaves nothing in it that its owner cannot change.

That is every job in a container: we are root, the checkout is the runner's, and so are the shell commands of the
agent and the workflow's next steps. One directory of objects that is root's, and git says *insufficient permission*
to them.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

_WRITTEN = ("objects", "refs", "logs")
_NOT_WRITTEN = {"pack", "info"}


def give_back(top: Path) -> None:
    """Of what git has written at `top`, a git directory, what is root's is its owner's from here on.

    Raises:
        OSError: it cannot be read, or its owner may not be set.
    """
    owner = top.stat()
    if os.geteuid() != 0 or owner.st_uid == 0:
        return
    folder = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in ("index", *_WRITTEN):
            _give(name, folder, owner)
        for name in _WRITTEN:
            with suppress(FileNotFoundError):  # a linked work tree has no objects of its own
                _give_all(name, folder, owner)
    finally:
        os.close(folder)


def _give_all(top: str, folder: int, owner: os.stat_result) -> None:
    for at, folders, files, within in os.fwalk(top, dir_fd=folder):
        if at == "objects":
            folders[:] = [f for f in folders if f not in _NOT_WRITTEN]
        for entry in (*folders, *files):
            _give(entry, within, owner)


def _give(name: str, folder: int, owner: os.stat_result) -> None:
    """Through a descriptor: whose directory it is could put something else in the place of what was looked at."""
    try:
        if not _is_roots(os.stat(name, dir_fd=folder, follow_symlinks=False)):
            return
        entry = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return
    try:
        if _is_roots(os.fstat(entry)):
            os.fchown(entry, owner.st_uid, owner.st_gid)
    finally:
        os.close(entry)


def _is_roots(found: os.stat_result) -> bool:
    # A file that has another name as well may be one of root's own files somewhere else.
    is_ours = stat.S_ISDIR(found.st_mode) or (stat.S_ISREG(found.st_mode) and found.st_nlink == 1)
    return found.st_uid == 0 and is_ours
