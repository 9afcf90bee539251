"""Reading git's packs without git, in bounded time and memory: what a pack says of itself is checked, not believed.

Whether the bytes are the right ones is for the caller to say, by their id.
"""

from __future__ import annotations

import mmap
import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path

PIECE_BYTES = 1 << 20

# Without O_NONBLOCK, opening a fifo in a pack's place would wait for a writer for ever.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MAGIC = b"\377tOc\0\0\0\2"
_FANOUT = 8
_NAMES = _FANOUT + 256 * 4
KINDS = {1: "commit", 2: "tree", 3: "blob", 4: "tag"}
_OFFSET_DELTA, _NAMED_DELTA = 6, 7
_LONGEST_CHAIN = 10_000


class PackDamaged(Exception):
    """The pack contradicts itself."""


class Pack:
    """One pack with its index (version 2), whose ids have `width` bytes.

    Raises:
        OSError, PackDamaged: on opening and by every method.
    """

    def __init__(self, index: Path, width: int) -> None:
        self.path = index.with_suffix(".pack")
        self._width = width
        self._index = _mapped(index)
        self._data = _mapped(self.path)
        if self._index[:8] != _MAGIC:
            raise PackDamaged(f"{index.name} is not a pack index of version 2")
        self._count = self._number(_NAMES - 4)
        if len(self._index) < _NAMES + self._count * (width + 8) + 2 * width:
            raise PackDamaged(f"{index.name} is cut off")

    def find(self, name: bytes) -> int | None:
        """Where the object with the binary id `name` begins, or None."""
        first = name[0]
        low = self._number(_FANOUT + 4 * (first - 1)) if first else 0
        high = min(self._number(_FANOUT + 4 * first), self._count)
        while low < high:
            middle = (low + high) // 2
            at = _NAMES + middle * self._width
            found = self._index[at : at + self._width]
            if found == name:
                return self._offset(middle)
            if found < name:
                low = middle + 1
            else:
                high = middle
        return None

    def lacks(self, names: set[str]) -> set[str]:
        """Those of the names that are not in it."""
        # Reading all of its names costs about as much as looking for a twentieth of them.
        if len(names) * 20 > self._count:
            return names.difference(self.names())
        return {name for name in names if self.find(bytes.fromhex(name)) is None}

    def read(self, offset: int) -> tuple[str, bytes]:
        """Kind and content of the object at `offset`."""
        deltas: list[bytes] = []
        for _ in range(_LONGEST_CHAIN):
            number, size, at = self._header(offset)
            if number in KINDS:
                content = self._inflate(at, size)
                for delta in reversed(deltas):
                    content = _apply(content, delta)
                return KINDS[number], content
            offset, at = self._base(number, offset, at)
            deltas.append(self._inflate(at, size))
        raise PackDamaged(f"{self.path.name} has an endless chain of differences")

    def open(self, offset: int) -> tuple[str, int, Iterator[bytes]]:
        """Kind, size and content in pieces: one, where it is small or stored as a difference."""
        number, size, at = self._header(offset)
        if number in KINDS and size > PIECE_BYTES:
            return KINDS[number], size, self._pieces(at)
        kind, content = self.read(offset)
        return kind, len(content), iter((content,))

    def names(self) -> Iterator[str]:
        """The ids of all objects in it."""
        return (name.hex() for name in self._ids())

    def entries(self) -> dict[bytes, bytes] | None:
        """Every object as it stands there, by binary id; None if one is stored as a difference."""
        names = self._ids()
        places = sorted((self._offset(number), name) for number, name in enumerate(names))
        found = {}
        ends = [*(offset for offset, _ in places[1:]), len(self._data) - self._width]
        for (offset, name), end in zip(places, ends, strict=True):
            if self._header(offset)[0] not in KINDS:
                return None
            found[name] = self._data[offset:end]
        return found

    @property
    def size(self) -> int:
        return len(self._data)

    def _ids(self) -> Iterator[bytes]:
        ends = _NAMES + self._count * self._width
        return (self._index[at : at + self._width] for at in range(_NAMES, ends, self._width))

    def _number(self, at: int) -> int:
        return int.from_bytes(self._index[at : at + 4])

    def _offset(self, place: int) -> int:
        offsets = _NAMES + self._count * (self._width + 4)
        offset = self._number(offsets + 4 * place)
        if offset & 0x8000_0000:
            at = offsets + 4 * self._count + 8 * (offset & 0x7FFF_FFFF)
            offset = int.from_bytes(self._index[at : at + 8])
        return offset

    def _header(self, at: int) -> tuple[int, int, int]:
        """Type, size and where the rest begins."""
        byte = self._byte(at)
        number, size, shift = byte >> 4 & 7, byte & 15, 4
        while byte & 0x80:
            at += 1
            byte = self._byte(at)
            size |= (byte & 0x7F) << shift
            shift += 7
        return number, size, at + 1

    def _base(self, number: int, offset: int, at: int) -> tuple[int, int]:
        """Where the object is that a difference refers to, and where the difference begins."""
        if number == _NAMED_DELTA:
            base = self.find(self._data[at : at + self._width])
            if base is None:
                raise PackDamaged(f"{self.path.name} lacks what one of its differences refers to")
            return base, at + self._width
        if number != _OFFSET_DELTA:
            raise PackDamaged(f"{self.path.name} holds an object of unknown type")
        byte = self._byte(at)
        back = byte & 0x7F
        while byte & 0x80:
            at += 1
            byte = self._byte(at)
            back = (back + 1) << 7 | byte & 0x7F
        if not 0 < back <= offset:
            raise PackDamaged(f"{self.path.name} refers to what lies before it")
        return offset - back, at + 1

    def _byte(self, at: int) -> int:
        try:
            return self._data[at]
        except IndexError:
            raise PackDamaged(f"{self.path.name} is cut off") from None

    def _inflate(self, at: int, size: int) -> bytes:
        # The stream's own length is stored nowhere; what does not shrink needs little more than its size.
        unpack = zlib.decompressobj()
        content = b""
        try:
            while not unpack.eof and len(content) <= size and at < len(self._data):
                piece = self._data[at : at + size + 1024]
                at += len(piece)
                # One byte more than allowed, so that what is too long shows without being unpacked as a whole.
                content += unpack.decompress(piece, size + 1 - len(content))
        except zlib.error as error:
            raise PackDamaged(f"{self.path.name}: {error}") from None
        if len(content) != size:
            raise PackDamaged(f"{self.path.name} holds an object that is not as long as it says")
        return content

    def _pieces(self, at: int) -> Iterator[bytes]:
        unpack = zlib.decompressobj()
        try:
            while not unpack.eof and at < len(self._data):
                piece = unpack.unconsumed_tail or self._data[at : at + PIECE_BYTES]
                if not unpack.unconsumed_tail:
                    at += len(piece)
                yield unpack.decompress(piece, PIECE_BYTES)
            while not unpack.eof and unpack.unconsumed_tail:
                yield unpack.decompress(unpack.unconsumed_tail, PIECE_BYTES)
        except zlib.error as error:
            raise PackDamaged(f"{self.path.name}: {error}") from None


def _mapped(path: Path) -> mmap.mmap:
    with open(os.open(path, _READ), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise PackDamaged(f"{path.name} is no ordinary file")
        try:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise PackDamaged(f"{path.name} is empty") from None


def _apply(base: bytes, delta: bytes) -> bytes:
    """The content that `delta` makes of `base`."""
    try:
        source, at = _size(delta, 0)
        target, at = _size(delta, at)
        content = bytearray()
        while at < len(delta):
            order = delta[at]
            at += 1
            if order & 0x80:
                start, length, at = _copy(delta, order, at)
                content += base[start : start + length]
            else:
                content += delta[at : at + order]
                at += order
            if order == 0 or len(content) > target:
                break
    except IndexError:
        raise PackDamaged("a difference is cut off") from None
    if source != len(base) or len(content) != target or at != len(delta):
        raise PackDamaged("a difference does not fit what it refers to")
    return bytes(content)


def _size(delta: bytes, at: int) -> tuple[int, int]:
    size, shift = 0, 0
    while True:
        byte = delta[at]
        at += 1
        size |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return size, at


def _copy(delta: bytes, order: int, at: int) -> tuple[int, int, int]:
    """Start and length of what is copied from the base, and where the next order begins."""
    fields = [0, 0]
    for bit in range(7):
        if order & 1 << bit:
            fields[bit // 4] |= delta[at] << 8 * (bit % 4)
            at += 1
    return fields[0], fields[1] or 0x10000, at
