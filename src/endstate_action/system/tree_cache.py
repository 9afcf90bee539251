"""What of the last scan may be believed without reading it again.

Content is taken as unchanged only under the same signature, and a signature is kept only if the
clock of the file system had moved on when it was taken: a later write then cannot leave the same
times behind. The signature of anything younger is forgotten, so it is read once more.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from endstate_action.system import own_files
from endstate_action.system.tree_format import Directory, Scan

E = TypeVar("E")

Signature = tuple[int, int, int, int, int, int]
"""Mode, inode, device, size, mtime and ctime, both in nanoseconds."""

FIELDS = 6
NEVER: Signature = (0, 0, 0, 0, 0, 0)
"""Equals no signature, since a mode is never 0."""

_ROW_BYTES = 8 * FIELDS
_WRAP = 0xFFFF_FFFF_FFFF_FFFF

_TICK_NS = 20_000_000
"""The clock that stamps files moves in ticks of up to 10 ms; writes within one get the same time."""
_WHOLE_SECONDS_NS = 2_000_000_000


def signature(s: os.stat_result) -> Signature:
    return s.st_mode, s.st_ino, s.st_dev, s.st_size, s.st_mtime_ns, s.st_ctime_ns


def pack(signatures: list[int]) -> bytes:
    """Signatures, one after another, as bytes that are equal if and only if they are."""
    try:
        return array("q", signatures).tobytes()
    except OverflowError:
        # Years after 2262, or an inode number with its highest bit set: wrapped round, they still tell.
        return array("Q", [value & _WRAP for value in signatures]).tobytes()


def rows(packed: bytes) -> Iterator[bytes]:
    """What `pack` packed, one signature at a time."""
    return (packed[at : at + _ROW_BYTES] for at in range(0, len(packed), _ROW_BYTES))


def known(before: Directory, entries: Mapping[bytes, E]) -> dict[bytes, tuple[bytes, E]]:
    """By name, the packed signature and the one of `before`'s `entries` that was read under it."""
    seen = zip(before.names.split(b"\0"), rows(before.stats), strict=False)
    return {name: (row, entries[name]) for name, row in seen if name in entries}


@dataclass(frozen=True, slots=True)
class Horizon:
    """What was last changed before `time_ns`, on `device`, shows by its times if it changes again."""

    device: int = -1
    time_ns: int = 0

    def trusts(self, seen: Signature) -> bool:
        return seen[2] == self.device and max(seen[4], seen[5]) < self.time_ns


NO_HORIZON = Horizon()


class StatCache:
    """The last scan, kept in `directory`, which is made if missing. Failing to keep it is no error.

    For one tree and one process at a time. `directory` must be outside the tree or excluded from
    it, and on the same file system, for otherwise nothing is ever trusted.
    """

    def __init__(self, directory: Path) -> None:
        # Who asks decides what can be read, so each user has a cache of his own.
        self._path = directory / f"tree-{os.geteuid()}"
        self._last: Scan | None = None
        self._is_loaded = False

    def last(self) -> Scan | None:
        # One that could not be replaced is not believed either: it may be what a forger left for ever.
        if not self._is_loaded and self.horizon() != NO_HORIZON:
            self._last = Scan.load(self._path)
        self._is_loaded = True
        return self._last

    def forget(self) -> None:
        """Believe nothing of it any more, whatever the file says, until the next scan is kept."""
        self._last, self._is_loaded = None, True

    def keep(self, scan: Scan) -> None:
        if self._last is None or self._last.root is not scan.root:
            with suppress(OSError):
                scan.save(self._path)
        self._last, self._is_loaded = scan, True

    def horizon(self) -> Horizon:
        """Now, by the clock of the file system, less what that clock may hide."""
        with suppress(OSError):
            seen = own_files.stamp(self._path.with_name(self._path.name + own_files.PROBE))
            slack = _TICK_NS if seen.st_mtime_ns % 1_000_000_000 else _WHOLE_SECONDS_NS
            return Horizon(seen.st_dev, seen.st_mtime_ns - slack)
        return NO_HORIZON
