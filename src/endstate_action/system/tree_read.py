"""Read one entry, whatever happens to it meanwhile: by its name in an open directory, never through a link.

Only a regular file is opened. A fifo, socket or device is what its type says.
"""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass

from endstate_action.system.tree_cache import NEVER, Signature, signature
from endstate_action.system.tree_format import Entry, Kind

# Without O_NONBLOCK, opening a fifo that took a file's place would wait for a writer for ever.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

_ATTEMPTS = 3
_CHUNK_BYTES = 256 * 1024

_ODD = {
    stat.S_IFIFO: Kind.FIFO,
    stat.S_IFSOCK: Kind.SOCKET,
    stat.S_IFCHR: Kind.CHARACTER_DEVICE,
    stat.S_IFBLK: Kind.BLOCK_DEVICE,
    # Only where a directory has just taken the place of something else.
    stat.S_IFDIR: Kind.UNREADABLE_DIRECTORY,
}


@dataclass(frozen=True, slots=True)
class Look:
    """What an entry turned out to be (None: it is gone) and the signature that stands for it, or `NEVER`."""

    entry: Entry | None
    seen: Signature = NEVER
    changed: bool = False
    """Whether it went away or never held still while it was read."""


class Reader:
    """Reads entries one after another, through one buffer."""

    def __init__(self) -> None:
        self._buffer = memoryview(bytearray(_CHUNK_BYTES))

    def look(self, directory: int, name: str, seen: Signature) -> Look:
        """Read the entry that had the signature `seen` a moment ago; again if it changes meanwhile.

        Raises:
            OSError: the file system failed. Missing permission is an answer, not an error.
        """
        entry = None
        for _ in range(_ATTEMPTS):
            try:
                entry, after = self._try(directory, name, seen)
            except FileNotFoundError:
                return Look(None, changed=True)
            if after == seen:
                return Look(entry, NEVER if entry.kind is Kind.UNREADABLE_FILE else seen)
            seen = after
        return Look(entry, changed=True)

    def _try(self, directory: int, name: str, seen: Signature) -> tuple[Entry, Signature]:
        """Take it for what `seen` says that it is; the signature afterwards differs if it was not."""
        try:
            match stat.S_IFMT(seen[0]):
                case stat.S_IFREG:
                    return self._file(directory, name, seen[3])
                case stat.S_IFLNK:
                    target = os.fsencode(os.readlink(name, dir_fd=directory))
                    return Entry(Kind.LINK, size=len(target), digest=hashlib.sha256(target).digest()), seen
                case kind:
                    return Entry(_ODD[kind]), seen
        except FileNotFoundError:
            raise
        except PermissionError:
            return Entry(Kind.UNREADABLE_FILE, bool(seen[0] & stat.S_IXUSR)), seen
        except OSError:
            now = signature(os.stat(name, dir_fd=directory, follow_symlinks=False))
            if now == seen:
                raise
            return Entry(Kind.UNREADABLE_FILE), now

    def _file(self, directory: int, name: str, size: int) -> tuple[Entry, Signature]:
        file = os.open(name, _FILE, dir_fd=directory)
        try:
            total, digest = self._digest(file, size)
            after = signature(os.fstat(file))
        finally:
            os.close(file)
        return Entry(Kind.FILE, bool(after[0] & stat.S_IXUSR), total, digest), after

    def _digest(self, file: int, size: int) -> tuple[int, bytes]:
        """Bytes read and their sha256; ends once it is longer than `size`, since a busy writer might never let us."""
        total, content = 0, hashlib.sha256()
        while total <= size:
            got = os.readv(file, [self._buffer])
            content.update(self._buffer[:got])
            total += got
            if got == 0 or (got < _CHUNK_BYTES and total == size):
                break
        return total, content.digest()
