"""Writing a pack, complete and durable or not at all: many objects for the price of three syncs.

Every object is stored whole, so that packs can be put together by copying.
"""

from __future__ import annotations

import os
import struct
import threading
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from endstate_action.state.snapshot import store_files
from endstate_action.state.snapshot.packed import KINDS
from endstate_action.system import own_files

_LEVEL = 1
_HEADER = struct.Struct(">4sII")
_NUMBERS = {kind: number for number, kind in KINDS.items()}
_PART = "tmp_endstate"


def entry(kind: str, data: bytes) -> bytes:
    """An object as it stands in a pack."""
    size = len(data)
    first, size = _NUMBERS[kind] << 4 | size & 15, size >> 4
    head = bytearray()
    while size:
        head.append(first | 0x80)
        first, size = size & 0x7F, size >> 7
    head.append(first)
    return bytes(head) + zlib.compress(data, _LEVEL)


def write_pack(directory: Path, entries: Mapping[bytes, bytes], new_hash: Callable[[bytes], Any]) -> None:
    """A pack of `entries`, by binary id, with its index; its name is durable once `directory` is synced.

    Less than 2 GiB altogether. A power cut leaves no part of it under its name.

    Raises:
        OSError: nothing was written, since the disk refused or a link leads to `directory`.
    """
    offsets, parts, at = {}, [_HEADER.pack(b"PACK", 2, len(entries))], _HEADER.size
    for name, data in entries.items():
        offsets[name] = at
        parts.append(data)
        at += len(data)
    content = b"".join(parts)
    trailer = new_hash(content).digest()
    index = _index(offsets, entries, trailer)
    named = f"pack-{trailer.hex()}"
    # Of its own for each thread: one may pack a checkpoint while another takes a snapshot.
    part = f"{_PART}-{os.getpid()}-{threading.get_native_id()}"
    with own_files.directory(directory) as place:
        # Git looks for the index, so the pack goes first.
        for suffix, data in ((".pack", content + trailer), (".idx", index + new_hash(index).digest())):
            store_files.put_in(place, named + suffix, part + suffix, [data])


def _index(offsets: Mapping[bytes, int], entries: Mapping[bytes, bytes], trailer: bytes) -> bytes:
    names = sorted(offsets)
    counts = [0] * 256
    for name in names:
        counts[name[0]] += 1
    fanout = [sum(counts[: first + 1]) for first in range(256)]
    checks = (zlib.crc32(entries[name]) for name in names)
    places = (offsets[name] for name in names)
    numbers = struct.Struct(f">{len(names)}I")
    head = b"\377tOc" + struct.pack(">I256I", 2, *fanout)
    return head + b"".join(names) + numbers.pack(*checks) + numbers.pack(*places) + trailer
