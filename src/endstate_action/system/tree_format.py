"""The tree hash as a format: the same names, contents, executable bits and link targets give the same text.

A directory's digest is the sha256 over one record per entry, in the order of the names' bytes; a
record of a directory holds that directory's digest. Times, owners, inodes, locale and the order of
creation are not in it. `docs/reference/tree-hash.md` is the specification, with a second
implementation and vectors.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Literal

from endstate_action.system import own_files

PREFIX = "et1:"
NO_DIGEST = bytes(32)

_HEADER = b"endstate-tree-1\n"
_RECORD = struct.Struct(">cBIQ32s")

_FILE_MAGIC = b"endstate-scan-1\n"
_COUNTS = struct.Struct("<II")
_NODE = struct.Struct("<IIIII32s")


class Kind(StrEnum):
    """What an entry is. An unreadable one is there and has a name, but its content is not in the hash."""

    FILE = "file"
    LINK = "link"
    DIRECTORY = "directory"
    FIFO = "fifo"
    SOCKET = "socket"
    CHARACTER_DEVICE = "character device"
    BLOCK_DEVICE = "block device"
    UNREADABLE_FILE = "unreadable file"
    UNREADABLE_DIRECTORY = "unreadable directory"


_LETTERS = dict(zip(Kind, (b"f", b"l", b"d", b"p", b"s", b"c", b"b", b"F", b"D"), strict=True))
_KINDS = {letter: kind for kind, letter in _LETTERS.items()}


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in a directory. `size` counts the bytes of the content or of the link target, else 0.

    `digest` is the sha256 of content or target, the directory's digest, or 32 zero bytes where
    there is no content that counts.
    """

    kind: Kind
    executable: bool = False
    size: int = 0
    digest: bytes = NO_DIGEST


@dataclass(frozen=True, slots=True, eq=False)
class Directory:
    """What a scan saw of one directory. Only `listing` is hashed.

    `names` and `stats` let the next scan recognize what did not change: the names of everything that
    is no directory, joined by NUL, and for each a signature (zeros where it must be read again).
    """

    listing: bytes
    digest: bytes
    children: Mapping[bytes, Directory]
    names: bytes = b""
    stats: bytes = b""

    @classmethod
    def of(
        cls, entries: Mapping[bytes, Entry], children: Mapping[bytes, Directory], names: bytes = b"", stats: bytes = b""
    ) -> Directory:
        """The directory that holds `entries`, and `children` besides."""
        below = {name: Entry(Kind.DIRECTORY, digest=child.digest) for name, child in children.items()}
        everything = {**entries, **below}
        listing = b"".join(_record(name, everything[name]) for name in sorted(everything))
        return cls(listing, hashlib.sha256(_HEADER + listing).digest(), children, names, stats)

    def entries(self) -> Iterator[tuple[bytes, Entry]]:
        """The names here and what they are, in order."""
        at = 0
        while at < len(self.listing):
            letter, executable, length, size, digest = _RECORD.unpack_from(self.listing, at)
            at += _RECORD.size + length
            yield self.listing[at - length : at], Entry(_KINDS[letter], bool(executable), size, digest)


def _record(name: bytes, entry: Entry) -> bytes:
    return _RECORD.pack(_LETTERS[entry.kind], entry.executable, len(name), entry.size, entry.digest) + name


@dataclass(frozen=True, eq=False)
class Scan:
    """A tree as it was seen, name by name. Compare two by `tree_hash`, or by `diff`.

    `excluded` holds the root paths that were left out, whether or not anything was there. `unstable`
    holds what changed while it was looked at: then the hash is that of no single moment.
    """

    root: Directory
    excluded: tuple[bytes, ...] = ()
    unstable: tuple[bytes, ...] = ()

    @property
    def tree_hash(self) -> str:
        """`et1:` and 64 hexadecimal digits."""
        return PREFIX + self.root.digest.hex()

    @cached_property
    def entries(self) -> dict[bytes, Entry]:
        """Every entry by its path from the root, in the order of the paths' bytes. Made when first asked for."""
        return dict(sorted(_flat(self.root)))

    @property
    def unreadable(self) -> tuple[bytes, ...]:
        """Paths whose content the hash does not cover, since it could not be read."""
        hidden = (Kind.UNREADABLE_FILE, Kind.UNREADABLE_DIRECTORY)
        return tuple(path for path, entry in self.entries.items() if entry.kind in hidden)

    def is_sound(self) -> bool:
        """Whether the entries are those that the tree hash stands for, also in a scan that was loaded."""
        todo = [self.root]
        while todo:
            node = todo.pop()
            if hashlib.sha256(_HEADER + node.listing).digest() != node.digest:
                return False
            below = {name: entry.digest for name, entry in node.entries() if entry.kind is Kind.DIRECTORY}
            if below != {name: child.digest for name, child in node.children.items()}:
                return False
            todo += node.children.values()
        return True

    def save(self, path: Path) -> None:
        """Keep the scan in a file for `load`; the old one stays whole until the new one is.

        Raises:
            OSError: it could not be written.
        """
        body = b"".join(_pack(self))
        # No fsync: a file that a power cut tore fails its checksum and only costs a full scan.
        own_files.put(path, _FILE_MAGIC + hashlib.sha256(body).digest() + body)

    @classmethod
    def load(cls, path: Path) -> Scan | None:
        """What `save` kept; None where there is no file, or a damaged or older one.

        It may say anything: whoever can write the file can forge it, see `is_sound`.
        """
        # A forged checksum can stand before anything at all.
        with suppress(OSError, struct.error, ValueError, KeyError):
            data = own_files.get(path)
            start = len(_FILE_MAGIC) + 32
            body = data[start:]
            if data[:start] == _FILE_MAGIC + hashlib.sha256(body).digest():
                return _unpack(body)
        return None


@dataclass(frozen=True, slots=True)
class Change:
    path: bytes
    kind: Literal["added", "removed", "changed"]


def diff(before: Scan, after: Scan) -> list[Change]:
    """What differs, in the order of the paths' bytes; empty exactly if the hashes are equal.

    A directory is named only where it is empty: otherwise what is in it is named.
    """
    was: dict[bytes, Entry] = {}
    now: dict[bytes, Entry] = {}
    todo = [(b"", before.root, after.root)]
    while todo:
        prefix, old, new = todo.pop()
        was.update(_leaves(prefix, old, new))
        now.update(_leaves(prefix, new, old))
        for name in old.children.keys() | new.children.keys():
            left, right = old.children.get(name, _EMPTY), new.children.get(name, _EMPTY)
            if left.digest != right.digest:
                todo.append((prefix + name + b"/", left, right))
    changes = [Change(path, "removed") for path in was.keys() - now.keys()]
    changes += [Change(path, "added") for path in now.keys() - was.keys()]
    changes += [Change(path, "changed") for path in was.keys() & now.keys() if was[path] != now[path]]
    return sorted(changes, key=lambda change: change.path)


_EMPTY = Directory.of({}, {})


def _leaves(prefix: bytes, directory: Directory, other: Directory) -> Iterator[tuple[bytes, Entry]]:
    """What is no directory, and the empty directories of which `other` has not the like."""
    for name, entry in directory.entries():
        child = directory.children.get(name)
        if child is None or (not child.listing and name not in other.children):
            yield prefix + name, entry


def _flat(root: Directory) -> Iterator[tuple[bytes, Entry]]:
    todo = [(b"", root)]
    while todo:
        prefix, directory = todo.pop()
        for name, entry in directory.entries():
            yield prefix + name, entry
            if name in directory.children:
                todo.append((prefix + name + b"/", directory.children[name]))


def _pack(scan: Scan) -> Iterator[bytes]:
    yield _COUNTS.pack(len(scan.excluded), len(scan.unstable))
    for path in (*scan.excluded, *scan.unstable):
        yield len(path).to_bytes(4, "little") + path
    todo = [(b"", scan.root)]
    while todo:
        name, node = todo.pop()
        parts = (name, node.names, node.stats, node.listing)
        yield _NODE.pack(*map(len, parts), len(node.children), node.digest)
        yield from parts
        todo += node.children.items()


def _unpack(body: bytes) -> Scan:
    read = BytesIO(body).read
    excluded, unstable = _COUNTS.unpack(read(_COUNTS.size))
    if excluded + unstable > len(body):
        raise ValueError("more paths than bytes")
    paths = [read(int.from_bytes(read(4), "little")) for _ in range(excluded + unstable)]
    top: dict[bytes, Directory] = {}
    todo = [(top, 1)]
    while todo:
        siblings, missing = todo.pop()
        if missing:
            *lengths, count, digest = _NODE.unpack(read(_NODE.size))
            name, names, stats, listing = map(read, lengths)
            children: dict[bytes, Directory] = {}
            siblings[name] = Directory(listing, digest, children, names, stats)
            todo += [(siblings, missing - 1), (children, count)]
    return Scan(top[b""], tuple(paths[:excluded]), tuple(paths[excluded:]))
