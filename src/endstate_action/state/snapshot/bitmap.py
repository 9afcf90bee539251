"""Git's compressed bitmaps (EWAH), as a split index has them."""

from __future__ import annotations

import struct


def bits(data: bytes) -> tuple[set[int], bytes]:
    """The positions that are set in the bitmap at the start of `data`, and what follows it.

    Raises:
        struct.error: it ends too early.
        ValueError: its lengths contradict each other.
    """
    size, count = struct.unpack_from(">II", data)
    words = struct.unpack_from(f">{count}Q", data, 8)
    found: set[int] = set()
    position, at = 0, 0
    while at < count:
        marker = words[at]
        run, literal = marker >> 1 & 0xFFFFFFFF, marker >> 33
        if position + 64 * (run + literal) > size + 63 or at + literal >= count:
            raise ValueError("a bitmap is longer than it says")
        if marker & 1:
            found.update(range(position, position + 64 * run))
        position += 64 * run
        for word in words[at + 1 : at + 1 + literal]:
            found.update(position + n for n in range(64) if word >> n & 1)
            position += 64
        at += 1 + literal
    # Behind the words stands the place of the last marker, of use to a writer only.
    return found, data[8 + 8 * count + 4 :]
