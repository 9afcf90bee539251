"""What is known of one directory of a scan, in the bytes that the stat cache keeps: mode, counts, entries."""

from __future__ import annotations

import stat
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from endstate_action.state.snapshot.objects import EXECUTABLE, FILE, LINK, TREE
from endstate_action.system.tree_format import Directory


class Kind(StrEnum):
    """What an entry is. Of the last ones, only that they are there is known."""

    FILE = "f"
    LINK = "l"
    FIFO = "p"
    SOCKET = "s"
    DEVICE = "d"
    TOO_LARGE = "L"
    UNREADABLE = "U"
    TOO_DEEP = "D"
    RESTLESS = "R"


IN_TREE = (Kind.FILE, Kind.LINK)
OPAQUE = {
    Kind.TOO_LARGE: "too large",
    Kind.UNREADABLE: "unreadable",
    Kind.TOO_DEEP: "too deep",
    Kind.RESTLESS: "changing",
}
SKIPPED = {Kind.SOCKET: "socket", Kind.DEVICE: "device"}


@dataclass(frozen=True, slots=True)
class Item:
    """An entry that is no directory; `id` is binary and empty where nothing was kept, `mode` the permission bits."""

    kind: Kind
    mode: int = 0
    id: bytes = b""

    @property
    def git_mode(self) -> int:
        if self.kind is Kind.LINK:
            return LINK
        return EXECUTABLE if self.mode & stat.S_IXUSR else FILE


Counted = tuple[int, int]
"""A class of entries, `FILES` and so on, and their permission bits."""
FILES, EXECUTABLES, DIRECTORIES, SPECIAL = range(4)

_HEAD = struct.Struct(">HI")
_COUNT = struct.Struct(">BHI")
_RECORD = struct.Struct(">cHBB")


def mode_of(directory: Directory) -> int:
    return int(_HEAD.unpack_from(directory.listing)[0])


def counts_of(directory: Directory) -> dict[Counted, int]:
    """How many of each class, with each permission bits, are in the directory and all below it."""
    number = _HEAD.unpack_from(directory.listing)[1]
    body = directory.listing[_HEAD.size : _HEAD.size + number * _COUNT.size]
    return {(kind, mode): count for kind, mode, count in _COUNT.iter_unpack(body)}


def items_of(directory: Directory) -> Iterator[tuple[bytes, Item]]:
    """What is in the directory, but for directories, in the order of the names."""
    listing = directory.listing
    at = _HEAD.size + _HEAD.unpack_from(listing)[1] * _COUNT.size
    while at < len(listing):
        kind, mode, width, length = _RECORD.unpack_from(listing, at)
        at += _RECORD.size
        yield listing[at + width : at + width + length], Item(Kind(kind.decode()), mode, listing[at : at + width])
        at += width + length


def tree_of(directory: Directory, width: int) -> bytes:
    """The binary id of the git tree; empty where git would have no tree, since nothing is in it."""
    return directory.digest[:width] if any(directory.digest) else b""


def counted(
    entries: Mapping[bytes, Item], children: Mapping[bytes, Directory], trees: Mapping[bytes, bytes]
) -> dict[Counted, int]:
    counts: dict[Counted, int] = {}
    for item in entries.values():
        if item.kind is not Kind.LINK:
            key = (EXECUTABLES if item.mode & stat.S_IXUSR else FILES, item.mode)
            key = key if item.kind is Kind.FILE else (SPECIAL, 0)
            counts[key] = counts.get(key, 0) + 1
    for name, child in children.items():
        own = [(DIRECTORIES, mode_of(child)), *([] if trees[name] else [(SPECIAL, 0)])]
        for key, count in (*((key, 1) for key in own), *counts_of(child).items()):
            counts[key] = counts.get(key, 0) + count
    return counts


def encode(mode: int, counts: Mapping[Counted, int], entries: Mapping[bytes, Item]) -> bytes:
    parts = [_HEAD.pack(mode, len(counts))]
    parts += [_COUNT.pack(kind, bits, count) for (kind, bits), count in sorted(counts.items())]
    for name in sorted(entries):
        item = entries[name]
        parts.append(_RECORD.pack(item.kind.encode(), item.mode, len(item.id), len(name)) + item.id + name)
    return b"".join(parts)


def git_tree(entries: Iterable[tuple[bytes, int, bytes]]) -> bytes:
    """The tree object that holds (name, mode, binary id), in git's order: a directory as if its name ended in `/`."""
    ordered = sorted(entries, key=lambda entry: entry[0] + b"/" if entry[1] == TREE else entry[0])
    return b"".join(b"%o %s\0%s" % (mode, name, found) for name, mode, found in ordered)
