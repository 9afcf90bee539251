"""From what a store returned to a journal and a workspace, or to the reason why not.

Nothing is believed before its seal is open, and nothing is used before all of it has been checked: the name against
what is inside, each part against its digest, and the rows one by one, from the first to the last. What is wrong with
one checkpoint says nothing of another.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from endstate_action.state import seal
from endstate_action.state.checkpoint.build import Fold, Row
from endstate_action.state.checkpoint.manifest import Manifest, NewerManifest, Part, parse
from endstate_action.state.fold import State, fold
from endstate_action.state.keys import CheckpointKey
from endstate_action.state.records import Begun, all_kept, decode
from endstate_action.state.seal import Key, open_sealed
from endstate_action.state.stores.base import Store

Kind = Literal["damaged", "other_key", "not_ours", "newer_format", "part_missing", "misplaced"]

DOWNLOAD_S = 300.0
_PIECE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Expected:
    """Whose checkpoints are looked for. Where `repository` is empty, nobody has said: the lineage alone counts."""

    repository: str
    lineage: str


@dataclass(frozen=True, slots=True)
class Opened:
    """A whole checkpoint: all rows from the first on, and the workspace that belongs to the last.

    Args:
        sha256: of the object as it was stored.
        state: what the rows stand for; None of a finished session, whose last word has none.
        pack: for `snapshot.pack.apply`; None where no snapshot had been taken.
    """

    key: CheckpointKey
    manifest: Manifest
    rows: tuple[Row, ...]
    state: State | None
    pack: bytes | None
    sha256: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """A checkpoint that cannot be used, and why, in the words of a sentence's second half."""

    key: CheckpointKey
    kind: Kind
    reason: str


class _Refused(Exception):
    def __init__(self, kind: Kind, reason: str) -> None:
        super().__init__(reason)
        self.kind: Kind = kind


@dataclass(frozen=True, slots=True)
class _Object:
    manifest: Manifest
    packed: bytes
    pack: bytes
    sha256: str


def open_checkpoint(
    store: Store, key: CheckpointKey, sealing: Key, expected: Expected, *, timeout_s: float = DOWNLOAD_S
) -> Opened | Rejected:
    """Fetch a checkpoint with all its parts.

    Args:
        timeout_s: for each object.

    Raises:
        StoreUnreadable: the store could not be asked. That is no reason to use another one.
    """
    try:
        found = _fetch(store, key, sealing, expected, timeout_s)
        if found.manifest.is_done:
            return Opened(key, found.manifest, (), None, None, found.sha256)
        earlier = [
            _fetch_part(store, part, found.manifest, sealing, expected, timeout_s) for part in found.manifest.parts
        ]
        rows, state = _rows((*earlier, found), found.manifest)
    except _Refused as refused:
        return Rejected(key, refused.kind, str(refused))
    return Opened(key, found.manifest, rows, state, found.pack or None, found.sha256)


def _fetch_part(
    store: Store, part: Part, whole: Manifest, sealing: Key, expected: Expected, timeout_s: float
) -> _Object:
    key = CheckpointKey.parse(part.key)
    if key is None:
        raise _Refused("damaged", "it names a part that is no checkpoint")
    try:
        found = _fetch(store, key, sealing, expected, timeout_s, part.sha256)
    except _Refused as refused:
        raise _Refused(refused.kind, f"of its part, {key.in_words}: {refused}") from None
    manifest = found.manifest
    says = (whole.about.session, part.first, part.last, part.rows_bytes)
    if (manifest.about.session, manifest.first, manifest.records, manifest.rows_bytes) != says:
        raise _Refused("damaged", f"its part, {key.in_words}, has other rows than it says")
    return found


def _fetch(
    store: Store, key: CheckpointKey, sealing: Key, expected: Expected, timeout_s: float, sha256: str | None = None
) -> _Object:
    name = str(key)
    data = store.get(name, timeout_s=timeout_s)
    if data is None:
        raise _Refused("part_missing", "it is no longer there")
    digest = hashlib.sha256(data).hexdigest()
    if sha256 not in (None, digest):
        raise _Refused("damaged", "its digest differs from the one on record")
    opened = _open(sealing, name, data)
    line, _, content = opened.partition(b"\n")
    manifest = _manifest(line)
    is_other = bool(expected.repository) and manifest.about.repository != expected.repository
    if is_other or manifest.about.lineage != expected.lineage:
        raise _Refused("not_ours", "it belongs to another repository or task")
    if manifest.key != name:
        itself = CheckpointKey(key.lineage, manifest.about.epoch, manifest.sequence, 0)
        raise _Refused("misplaced", f"it says of itself to be {itself.in_words}")
    if len(content) != manifest.packed_bytes + manifest.pack_bytes:
        raise _Refused("damaged", "it is shorter or longer than it says")
    return _Object(manifest, content[: manifest.packed_bytes], content[manifest.packed_bytes :], digest)


def _open(sealing: Key, name: str, data: bytes) -> bytes:
    try:
        return open_sealed(sealing, name, data)
    except seal.OtherKey:
        raise _Refused("other_key", "it was sealed with another key") from None
    except seal.NewerSeal:
        raise _Refused("newer_format", "it is sealed in a format that this release does not know") from None
    except seal.SealError:
        raise _Refused("damaged", "its seal is broken: it was changed, cut short or moved") from None


def _manifest(line: bytes) -> Manifest:
    try:
        return parse(line)
    except NewerManifest as error:
        raise _Refused("newer_format", str(error)) from None
    except ValueError as error:
        raise _Refused("damaged", f"its manifest does not make sense ({error})"[:200]) from None


def _lines(found: _Object) -> Iterator[str]:
    """Its rows. Unpacked a little at a time: a long session is 50 MB, and each copy of it would take its own memory.

    Never more than the manifest says is unpacked, whatever is in there.
    """
    if not found.packed:
        return
    unpacker, left, begun = zlib.decompressobj(), found.manifest.rows_bytes, [b""]
    for at in range(0, len(found.packed), _PIECE_BYTES):
        try:
            text = unpacker.decompress(found.packed[at : at + _PIECE_BYTES], left + 1)
        except zlib.error:
            raise _Refused("damaged", "its rows cannot be unpacked") from None
        left -= len(text)
        if left < 0:
            break
        begun.append(text)
        if b"\n" in text:
            whole, _, rest = b"".join(begun).rpartition(b"\n")
            begun = [rest]
            yield from whole.decode().split("\n")
    if left or not unpacker.eof or unpacker.unused_data:
        raise _Refused("damaged", "its rows are not as long as it says")


@all_kept()
def _rows(parts: Iterable[_Object], manifest: Manifest) -> tuple[tuple[Row, ...], State]:
    """All rows, each readable and in its place, and what they stand for, which is what the manifest says."""
    try:
        rows = tuple(_row(line) for part in parts for line in _lines(part))
        records = tuple(decode(kind, body) for _, kind, body in rows)
        whole = Fold().over((seq, record) for (seq, _, _), record in zip(rows, records, strict=True))
    except ValueError as error:
        raise _Refused("damaged", f"a row of it cannot be read: {error}") from None
    if [seq for seq, _, _ in rows] != list(range(1, manifest.records + 1)):
        raise _Refused("damaged", "rows of it are missing")
    begun = records[0]
    if not isinstance(begun, Begun) or any(isinstance(record, Begun) for record in records[1:]):
        raise _Refused("damaged", "its rows do not begin as a session does")
    if begun.session != manifest.about.session:
        raise _Refused("not_ours", "its rows are those of another session")
    try:
        state = fold(records)
    except ValueError as error:
        raise _Refused("damaged", f"a row of it is out of place: {error}") from None
    if (whole.root, whole.tree_hash) != (manifest.root, manifest.tree_hash) or whole.effects > manifest.effects:
        raise _Refused("damaged", "its workspace is not the one that its rows name")
    return rows, state


def _row(line: str) -> Row:
    seq, kind, body = line.split(" ", 2)
    return int(seq), kind, body
