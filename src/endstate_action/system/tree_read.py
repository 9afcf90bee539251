"""Read one entry, whatever happens to it meanwhile: by its name in an open directory, never through a link.

Only a regular file is opened. A fifo, socket or device is what its type says.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from endstate_action.system.tree_cache import NEVER, Signature, signature
from endstate_action.system.tree_format import Entry, Kind

# Without O_NONBLOCK, opening a fifo that took a file's place would wait for a writer for ever.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

_ATTEMPTS = 3
_CHUNK_BYTES = 256 * 1024
_ASKED_EACH_BYTES = 64 * 1024 * 1024

_ODD = {
    stat.S_IFIFO: Kind.FIFO,
    stat.S_IFSOCK: Kind.SOCKET,
    stat.S_IFCHR: Kind.CHARACTER_DEVICE,
    stat.S_IFBLK: Kind.BLOCK_DEVICE,
    # Only where a directory has just taken the place of something else.
    stat.S_IFDIR: Kind.UNREADABLE_DIRECTORY,
}


E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class Look(Generic[E]):
    """What an entry turned out to be (None: it is gone) and the signature that stands for it, or `NEVER`."""

    entry: E | None
    seen: Signature = NEVER
    changed: bool = False
    """Whether it went away or never held still while it was read."""


Attempt = Callable[[int, str, Signature], tuple[E, Signature, bool]]
"""Reads the entry that is taken for what the signature says. Returns also the signature that it had afterwards and
whether that stands for what was read: not so where it could not be read."""


def look(attempt: Attempt[E], directory: int, name: str, seen: Signature) -> Look[E]:
    """Read the entry that had the signature `seen` a moment ago; again if it changes meanwhile.

    Raises:
        OSError: from `attempt`, but for `FileNotFoundError`.
    """
    entry = None
    for _ in range(_ATTEMPTS):
        try:
            entry, after, stands = attempt(directory, name, seen)
        except FileNotFoundError:
            return Look(None, changed=True)
        if after == seen:
            return Look(entry, seen if stands else NEVER)
        seen = after
    return Look(entry, changed=True)


class Reader:
    """Reads entries one after another, through one buffer.

    Args:
        check: asked now and then while a large file is read, and raises where that is to end: what a command makes in
            a moment, as a file that is all hole, may take for ever to be read.
    """

    def __init__(self, check: Callable[[], None] = lambda: None) -> None:
        self._check = check
        self._buffer = memoryview(bytearray(_CHUNK_BYTES))

    def look(self, directory: int, name: str, seen: Signature) -> Look[Entry]:
        """Read the entry that had the signature `seen` a moment ago; again if it changes meanwhile.

        Raises:
            OSError: the file system failed. Missing permission is an answer, not an error.
        """
        return look(self._try, directory, name, seen)

    def _try(self, directory: int, name: str, seen: Signature) -> tuple[Entry, Signature, bool]:
        """Take it for what `seen` says that it is; the signature afterwards differs if it was not."""
        try:
            match stat.S_IFMT(seen[0]):
                case stat.S_IFREG:
                    return self._file(directory, name, seen[3])
                case stat.S_IFLNK:
                    target = os.fsencode(os.readlink(name, dir_fd=directory))
                    return Entry(Kind.LINK, size=len(target), digest=hashlib.sha256(target).digest()), seen, True
                case kind:
                    return Entry(_ODD[kind]), seen, True
        except FileNotFoundError:
            raise
        except PermissionError:
            return Entry(Kind.UNREADABLE_FILE, bool(seen[0] & stat.S_IXUSR)), seen, False
        except OSError:
            now = signature(os.stat(name, dir_fd=directory, follow_symlinks=False))
            if now == seen:
                raise
            return Entry(Kind.UNREADABLE_FILE), now, False

    def _file(self, directory: int, name: str, size: int) -> tuple[Entry, Signature, bool]:
        file = os.open(name, _FILE, dir_fd=directory)
        try:
            total, digest = self._digest(file, size)
            after = signature(os.fstat(file))
        finally:
            os.close(file)
        return Entry(Kind.FILE, bool(after[0] & stat.S_IXUSR), total, digest), after, True

    def _digest(self, file: int, size: int) -> tuple[int, bytes]:
        """Bytes read and their sha256; ends once it is longer than `size`, since a busy writer might never let us."""
        total, content = 0, hashlib.sha256()
        while total <= size:
            got = os.readv(file, [self._buffer])
            content.update(self._buffer[:got])
            total += got
            if total % _ASKED_EACH_BYTES == 0:
                self._check()
            if got == 0 or (got < _CHUNK_BYTES and total == size):
                break
        return total, content.digest()
