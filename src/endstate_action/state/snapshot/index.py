"""The project's index, kept as its difference to the base's tree: what is staged, and nothing that can be told anyway.

Read and written here, not by git: an index holds marks (intent-to-add, skip-worktree, assume-unchanged, the sides of
a conflict) that no plumbing command both lists and sets. Versions 2 to 4, either object format, split or whole.

What a file looked like when git last compared it (its *stat data*) is not part of the state: git takes it anew. It is
kept where an entry did not change, so that after a restore git need not read the whole work tree.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from endstate_action.state.snapshot.bitmap import bits

Key = tuple[bytes, int]
"""A path and its stage: 0, or in a conflict 1 (common), 2 (ours), 3 (theirs)."""
Value = tuple[int, bytes, int, int]
"""Mode, object id (raw), assume-unchanged (0x8000 or 0), and the extended flags: skip-worktree, intent-to-add."""
Entries = Mapping[Key, Value]

UNSEEN = bytes(40)
"""Stat data that equals no file's, so that git compares the content."""

_STAT_BYTES = 40
_MODE = slice(24, 28)
_EXTENDED, _ASSUME_UNCHANGED, _NAME_LENGTH = 0x4000, 0x8000, 0xFFF
_DIRECTORY = 0o040000
_KNOWN = {b"link", b"sdir"}
_FORMAT = 1


class IndexDamaged(ValueError):
    """Not an index that git would read, or one of a kind that is not known here."""


@dataclass(frozen=True, slots=True)
class Index:
    """`entries` in git's order: by path, then by stage."""

    version: int
    """4 (paths compressed), or 2, which stands for 3 as well: whether that is needed shows by the entries."""
    entries: Entries
    undo: bytes = b""
    """How resolved conflicts can be brought back: git's extension REUC, as it is."""
    stats: Mapping[Key, bytes] = field(default_factory=dict, compare=False)
    """Stat data, with the mode in the middle, as the file has them."""
    split: bool = field(default=False, compare=False)
    """Whether part of it was in another file."""
    trees: frozenset[str] = field(default=frozenset(), compare=False)
    """Trees of which the file says that they have been written; git makes these notes again (extension TREE)."""


def parse(data: bytes, object_format: str, shared: Callable[[str], bytes] | None = None) -> Index:
    """An index file.

    Args:
        shared: reads the file `sharedindex.ID` for an id, for a split index.

    Raises:
        IndexDamaged: see there.
        OSError: from `shared`.
    """
    try:
        return _Parser(data, object_format).index(shared)
    except (struct.error, IndexError) as error:
        raise IndexDamaged("it ends too early") from error


def serialize(index: Index, object_format: str) -> bytes:
    """The same as a file for git, whole, without what git can work out again."""
    extended = any(value[3] for value in index.entries.values())
    version = 4 if index.version == 4 else 3 if extended else 2
    parts = [b"DIRC", struct.pack(">II", version, len(index.entries))]
    previous = b""
    for key, value in index.entries.items():
        parts.append(_entry(key, value, index.stats.get(key, UNSEEN), version, previous))
        previous = key[0]
    parts += _extension(b"REUC", index.undo) if index.undo else []
    parts += _extension(b"sdir", b"") if _is_sparse(index.entries) else []
    content = b"".join(parts)
    return content + hashlib.new(object_format, content).digest()


def difference(index: Index, base: Entries, base_tree: str | None) -> bytes:
    """What makes `index` out of `base`, or the whole of it where that is less. Equal for equal indexes.

    Args:
        base: the entries of an index into which `base_tree` has just been read.
    """
    entries = index.entries
    put = [(key, value) for key, value in entries.items() if base.get(key) != value]
    gone = [key for key in base if key not in entries]
    if len(put) + len(gone) >= len(entries):
        put, gone, base_tree = list(entries.items()), [], None
    head = {
        "format": _FORMAT,
        "version": index.version,
        "base": base_tree,
        "undo": base64.b64encode(index.undo).decode(),
        "id-bytes": len(next(iter(entries.values()))[1]) if entries else 20,
    }
    lines = [json.dumps(head, sort_keys=True).encode()]
    lines += [b"%o %s %d %x %x\t%s" % (v[0], v[1].hex().encode(), stage, v[2], v[3], path) for (path, stage), v in put]
    lines += [b"-\t" + path for path, _ in gone]
    return b"\0".join(lines)


def from_difference(data: bytes, base: Callable[[str], Entries]) -> Index:
    """The index that `difference` was made of, without stat data.

    Args:
        base: the entries of a tree, as for `difference`.

    Raises:
        IndexDamaged: it was not made by `difference`.
    """
    try:
        head, *lines = data.split(b"\0")
        known = json.loads(head)
        entries = dict(base(known["base"])) if known["base"] else {}
        for line in lines:
            _apply(line, entries)
        return Index(known["version"], dict(sorted(entries.items())), base64.b64decode(known["undo"]))
    except (ValueError, KeyError, TypeError, binascii.Error) as error:
        raise IndexDamaged(f"a stored index cannot be read: {error}") from error


def named_in(data: bytes) -> set[str]:
    """The objects that a difference adds to its base, but for commits of submodules."""
    head, *lines = data.split(b"\0")
    put = [line.split(b" ", 2)[:2] for line in lines if not line.startswith(b"-\t")]
    known = json.loads(head)
    undone = _undo_ids(base64.b64decode(known["undo"]), known["id-bytes"])
    return {oid.decode() for mode, oid in put if mode != b"160000"} | {oid.hex() for oid in undone}


def tree_entries(listed: bytes) -> dict[Key, Value]:
    """The index entries of a tree, from what `git ls-tree -r -z` says of it."""
    entries: dict[Key, Value] = {}
    for item in listed.split(b"\0")[:-1]:
        described, _, path = item.partition(b"\t")
        mode, _, oid = described.split(b" ")
        entries[(path, 0)] = (int(mode, 8), bytes.fromhex(oid.decode()), 0, 0)
    return entries


def with_stats(target: Index, current: Index, written_s: int) -> Index:
    """`target` with the stat data that `current`, a file last written at `written_s`, has for equal entries.

    Not where the work-tree file is as young as the index itself: git then looks at the content, since a later change
    could have left the same times behind. An index written anew would seem older than no such file.
    """
    kept = {
        key: seen
        for key, seen in current.stats.items()
        if current.entries[key] == target.entries.get(key) and struct.unpack_from(">I", seen, 8)[0] < written_s
    }
    return Index(target.version, target.entries, target.undo, kept)


class _Parser:
    def __init__(self, data: bytes, object_format: str) -> None:
        self._data = data
        self._width = hashlib.new(object_format).digest_size
        end = len(data) - self._width
        checksum = data[end:]
        # All zeros: git was told to save the time (index.skipHash).
        if end < 12 or (any(checksum) and hashlib.new(object_format, data[:end]).digest() != checksum):
            raise IndexDamaged("its checksum is wrong")
        magic, self._version, self._count = struct.unpack_from(">4sII", data)
        if magic != b"DIRC" or self._version not in (2, 3, 4):
            raise IndexDamaged("it has an unknown version")
        self._object_format = object_format
        self._end = end
        self._at = 12

    def index(self, shared: Callable[[str], bytes] | None) -> Index:
        rows = list(self._rows())
        extensions = dict(self._extensions())
        link = extensions.get(b"link", b"")
        split = any(link[: self._width])
        if split:
            if shared is None:
                raise IndexDamaged("a part of a split index is itself split")
            whole = _Parser(shared(link[: self._width].hex()), self._object_format)
            rows = sorted(_merged(list(whole._rows()), rows, link[self._width :]), key=lambda row: row[0])
        keys = [row[0] for row in rows]
        if any(a >= b for a, b in pairwise(keys)):
            raise IndexDamaged("its entries are not in order")
        stats = {key: seen for key, _, seen in rows}
        version = 4 if self._version == 4 else 2
        entries, undo = {row[0]: row[1] for row in rows}, extensions.get(b"REUC", b"")
        trees = frozenset(oid.hex() for oid in _noted(extensions.get(b"TREE", b""), self._width))
        return Index(version, entries, undo, stats, split, trees)

    def _rows(self) -> Iterator[tuple[Key, Value, bytes]]:
        data, width, at, name = self._data, self._width, self._at, b""
        # The stat data begin with eight numbers, of which the seventh is the mode.
        unpack = struct.Struct(f">24xI12x{width}sH").unpack_from
        for _ in range(self._count):
            start = at
            mode, oid, flags = unpack(data, start)
            at = start + _STAT_BYTES + width + 2
            more = 0
            if flags & _EXTENDED:
                (more,) = struct.unpack_from(">H", data, at)
                at += 2
            if self._version == 4:
                strip, at = _varint(data, at)
                if strip > len(name):
                    raise IndexDamaged("a path is cut short by more than it has")
                name = name[: len(name) - strip]
            else:
                name = b""
            end = data.find(b"\0", at, self._end)
            if end < 0:
                raise IndexDamaged("a path does not end")
            name += data[at:end]
            # Outside version 4, one to eight zeros bring the entry to a multiple of eight bytes.
            at = end + 1 if self._version == 4 else start + ((end - start + 8) & ~7)
            seen = data[start : start + _STAT_BYTES]
            yield (name, flags >> 12 & 3), (mode, oid, flags & _ASSUME_UNCHANGED, more), seen
        if at > self._end:
            raise IndexDamaged("it ends too early")
        self._at = at

    def _extensions(self) -> Iterator[tuple[bytes, bytes]]:
        """Of those that are only there for speed, git makes its own again."""
        at = self._at
        while at < self._end:
            name, size = struct.unpack_from(">4sI", self._data, at)
            at += 8 + size
            if at > self._end or not (name[:1].isupper() or name in _KNOWN):
                raise IndexDamaged(f"its part {name!r} is too long or unknown")
            yield name, self._data[at - size : at]


def _merged(
    whole: list[tuple[Key, Value, bytes]], own: list[tuple[Key, Value, bytes]], link: bytes
) -> Iterator[tuple[Key, Value, bytes]]:
    """A split index: what the shared file has, less what is deleted, with what is replaced, and what is added."""
    deleted, rest = bits(link) if link else (set(), b"")
    replaced, _ = bits(rest) if link else (set(), b"")
    if max(deleted | replaced, default=-1) >= len(whole):
        raise IndexDamaged("its two parts do not belong together")
    instead = {position: own[number] for number, position in enumerate(sorted(replaced))}
    for position, row in enumerate(whole):
        if position in instead:
            (_, stage), value, seen = instead[position]
            # Entries that replace another have no path of their own.
            yield (row[0][0], stage), value, seen
        elif position not in deleted:
            yield row
    yield from own[len(instead) :]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Git's offset encoding, in which no number has two spellings."""
    byte = data[at]
    at += 1
    value = byte & 0x7F
    while byte & 0x80:
        byte = data[at]
        at += 1
        value = ((value + 1) << 7) | (byte & 0x7F)
    return value, at


def _as_varint(value: int) -> bytes:
    out = [value & 0x7F]
    while value := value >> 7:
        value -= 1
        out.append(0x80 | (value & 0x7F))
    return bytes(reversed(out))


def _entry(key: Key, value: Value, seen: bytes, version: int, previous: bytes) -> bytes:
    (path, stage), (mode, oid, assume, more) = key, value
    flags = assume | (_EXTENDED if more else 0) | stage << 12 | min(len(path), _NAME_LENGTH)
    fixed = seen[: _MODE.start] + struct.pack(">I", mode) + seen[_MODE.stop :] + oid + struct.pack(">H", flags)
    fixed += struct.pack(">H", more) if more else b""
    if version == 4:
        common = _common(previous, path)
        return fixed + _as_varint(len(previous) - common) + path[common:] + b"\0"
    return fixed + path + bytes(8 - (len(fixed) + len(path)) % 8)


def _common(a: bytes, b: bytes) -> int:
    shorter = min(len(a), len(b))
    return next((n for n in range(shorter) if a[n] != b[n]), shorter)


def _extension(name: bytes, data: bytes) -> list[bytes]:
    return [name, struct.pack(">I", len(data)), data]


def _is_sparse(entries: Entries) -> bool:
    """Whether whole directories stand for what is in them."""
    return any(value[0] == _DIRECTORY for value in entries.values())


def _apply(line: bytes, entries: dict[Key, Value]) -> None:
    described, separator, path = line.partition(b"\t")
    if not separator:
        raise IndexDamaged("a line without a path")
    if described == b"-":
        del entries[(path, 0)]
        return
    mode, oid, stage, assume, more = described.split(b" ")
    entries[(path, int(stage))] = (int(mode, 8), bytes.fromhex(oid.decode()), int(assume, 16), int(more, 16))


def _noted(trees: bytes, width: int) -> Iterator[bytes]:
    """Per directory: its name, how many entries and directories it has, and its id unless it has no valid one."""
    at = 0
    while at < len(trees):
        name = trees.find(b"\0", at)
        end = trees.find(b"\n", name)
        if name < 0 or end < 0:
            raise IndexDamaged("its notes on trees are cut off")
        at = end + 1
        if not trees.startswith(b"-", name + 1):
            yield trees[at : at + width]
            at += width


def _undo_ids(undo: bytes, width: int) -> Iterator[bytes]:
    """Per path: its name, three modes as text, and an id for each mode that is not 0."""
    at = 0
    while at < len(undo):
        words = undo[at:].split(b"\0", 4)
        if len(words) < 5:
            return
        at += sum(len(word) + 1 for word in words[:4])
        for mode in words[1:4]:
            if mode.strip(b"0"):
                yield undo[at : at + width]
                at += width
