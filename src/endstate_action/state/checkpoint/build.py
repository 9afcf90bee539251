"""From a journal to what leaves the machine: one sealed object, which stands for all rows so far.

What a checkpoint costs is what is new in it, not how long the session is. An object carries the rows that no confirmed
one has, and takes over those of the confirmed ones before it as long as they are small: up to 64 kB, or twice what it
carries itself. So each part that is left is more than twice as large as the next, a session of n bytes needs no more
than log2(n / 64 kB) + 1 of them, and a row is carried again only that often. A session below 64 kB needs none.

An upload that failed, or of which nothing is known, changes nothing here: its rows come again in the next object,
under another number, and no object ever refers to it.
"""

from __future__ import annotations

import hashlib
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from endstate_action.errors import StateError
from endstate_action.state.checkpoint.manifest import MAX_PACK_BYTES, About, Manifest, Part, fitting, needed, parse
from endstate_action.state.keys import MAX_EFFECTS
from endstate_action.state.records import Delivering, Observed, Record, Started, Unseen, decode
from endstate_action.state.seal import Key, seal

SMALL_BYTES = 64 * 1024
"""Packed rows of no more than that are always carried again, rather than referred to."""

Row: TypeAlias = tuple[int, str, str]
"""Number, kind and body of a record, as the journal has them."""

_LEVEL = 6
_TELLING = {Started.kind, Observed.kind, Delivering.kind}


class SecretInside(StateError):
    """The checkpoint would hold a known secret, so it was not made."""


@dataclass(frozen=True, slots=True)
class Built:
    """A checkpoint, sealed, that stands for the first `records` rows of the journal."""

    key: str
    data: bytes
    records: int


@dataclass(frozen=True, slots=True)
class Fold:
    """What the rows up to number `records` say that a manifest needs."""

    records: int = 0
    effects: int = 0
    """Starts of calls that reach outside the workspace, and of deliveries."""
    root: str | None = None
    tree_hash: str | None = None

    def then(self, rows: Iterable[Row]) -> Fold:
        """With those of the rows that come after."""
        # Decoding is what costs, and only these kinds matter here.
        later = (row for row in rows if row[0] > self.records)
        return self.over((seq, decode(kind, body) if kind in _TELLING else None) for seq, kind, body in later)

    def over(self, records: Iterable[tuple[int, Record | None]]) -> Fold:
        """With all of the numbered records. A workspace is what it was when it was observed last."""
        last, effects, root, tree_hash = self.records, self.effects, self.root, self.tree_hash
        for last, record in records:  # noqa: B007  (it stays the last one)
            match record:
                case Started():
                    effects += record.effect.is_outside
                case Delivering():
                    effects += 1
                case Observed():
                    root, tree_hash = record.root, record.tree_hash
                case _:
                    pass
        return Fold(last, effects, root, tree_hash)


@dataclass(frozen=True, slots=True)
class _Made:
    """A checkpoint that was made, and may be stored, be on its way, or be lost."""

    manifest: Manifest
    fold: Fold
    part: Part


class Builder:
    """Makes the checkpoints of one attempt, the first of which carries everything. Used by one thread at a time.

    Args:
        about: may be replaced when a new task begins on another base; lineage, session and epoch stay.
        rows_after: the rows of the journal behind a number, in order, as they are at one moment.
        pack_of: the workspace of a snapshot as bytes, packed; it raises where it holds a secret.
        scan: names a secret that occurs in the text, if one does.
        restored: what this attempt was restored from. Its successor names it; it goes when two newer ones are there.
        effects_before: outside effects that the world has seen and the journal does not have, where a person chose to
            go on over a gap: so that the new key names do not count below the old ones.
        clock: seconds since 1970.
    """

    def __init__(
        self,
        about: About,
        key: Key,
        rows_after: Callable[[int], Sequence[Row]],
        pack_of: Callable[[str], bytes],
        *,
        scan: Callable[[bytes], str | None] = lambda text: None,
        restored: Manifest | None = None,
        effects_before: int = 0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.about = about
        self._key = key
        self._rows_after = rows_after
        self._pack_of = pack_of
        self._scan = scan
        self._effects_before = effects_before
        self._clock = clock
        self._fold = Fold()
        """Of the rows that are confirmed."""
        self._parts: tuple[Part, ...] = ()
        """Confirmed objects that have them."""
        self._made: dict[str, _Made] = {}
        """What was made and not yet been told to be stored."""
        self._last_two: tuple[Manifest, ...] = (restored,) if restored else ()
        self._stored: set[str] = needed(self._last_two)

    def build(self, sequence: int) -> Built:
        """A checkpoint of all that is recorded now.

        Args:
            sequence: a number that was not used before in this epoch, higher than all that were.

        Raises:
            SecretInside: a row holds a secret. Nothing was made.
            StateError: the journal or the workspace could not be read, or is too large to leave the machine.
        """
        kept, rows, packed = self._carried()
        _refuse_gaps(rows, kept[-1].last + 1 if kept else 1)
        fold = self._folded(rows)
        raw = _as_text(rows)
        # Nothing was confirmed that was not looked at, and nothing reaches from one row into the next.
        self._refuse_secret(_as_text(row for row in rows if row[0] > self._fold.records))
        pack = self._pack_of(fold.root) if fold.root else b""
        if len(pack) > MAX_PACK_BYTES:
            raise StateError(
                f"The workspace takes {len(pack) >> 20} MB even when packed, so no checkpoint of it was made. "
                "It is still whole on this machine.",
                hint="Exclude what need not travel: `snapshots: exclude` in the configuration file.",
            )
        first = kept[-1].last + 1 if kept else 1
        manifest = self._manifest(sequence, fold, first, kept, len(raw), len(packed), len(pack))
        return self._sealed(manifest, fold, packed, pack)

    def done(self, sequence: int, outputs: Mapping[str, Any]) -> Built:
        """The object that a finished and delivered session leaves behind: its outputs, without journal or workspace.

        Raises:
            SecretInside: the outputs hold a secret.
        """
        fold = self._folded(self._rows_after(self._fold.records))
        manifest = self._manifest(sequence, fold, fold.records + 1, (), 0, 0, 0, fitting(outputs))
        self._refuse_secret(manifest.encode())
        return self._sealed(manifest, fold, b"", b"")

    def confirmed(self, built: Built) -> Collection[str]:
        """Told that it is stored. Returns the keys that no checkpoint needs any more, each once.

        What one of the last two needs stays, and what one needs that was made since, which may be on its way.
        """
        made = self._made.pop(built.key, None)
        if made is None:
            # It was given up for lost, since newer ones had arrived; nothing refers to it.
            return () if built.key in self._stored else (built.key,)
        self._stored.add(built.key)
        if not made.manifest.is_done and made.fold.records >= self._fold.records:
            self._fold, self._parts = made.fold, (*made.manifest.parts, made.part)
        both = sorted((*self._last_two, made.manifest), key=lambda manifest: manifest.key)
        self._last_two = tuple(both[-2:])
        older = self._last_two[0].key
        self._made = {key: other for key, other in self._made.items() if key > older}
        superfluous = self._stored - needed((*self._last_two, *(other.manifest for other in self._made.values())))
        self._stored -= superfluous
        return superfluous

    def _carried(self) -> tuple[tuple[Part, ...], Sequence[Row], bytes]:
        """The parts that stay, and the rows of all others, with those that are new; as they are and packed."""
        kept = self._parts
        rows = _whole(self._rows_after(self._fold.records))
        packed = zlib.compress(_as_text(rows), _LEVEL)
        size = len(packed)
        while kept and kept[-1].packed_bytes <= max(SMALL_BYTES, 2 * size):
            size += kept[-1].packed_bytes
            kept = kept[:-1]
        if kept != self._parts:
            rows = _whole(self._rows_after(kept[-1].last if kept else 0))
            packed = zlib.compress(_as_text(rows), _LEVEL)
        return kept, rows, packed

    def _folded(self, rows: Sequence[Row]) -> Fold:
        try:
            return self._fold.then(rows)
        except (ValueError, TypeError, KeyError):
            raise _foreign() from None

    def _manifest(
        self,
        sequence: int,
        fold: Fold,
        first: int,
        parts: tuple[Part, ...],
        rows_bytes: int,
        packed_bytes: int,
        pack_bytes: int,
        outputs: Mapping[str, Any] | None = None,
    ) -> Manifest:
        return Manifest(
            self.about,
            sequence,
            min(self._effects_before + fold.effects, MAX_EFFECTS),
            self._last_two[-1].key if self._last_two else None,
            fold.records,
            first,
            parts,
            fold.root if outputs is None else None,
            fold.tree_hash,
            rows_bytes,
            packed_bytes,
            pack_bytes,
            self._clock(),
            outputs is not None,
            outputs or {},
        )

    def _sealed(self, manifest: Manifest, fold: Fold, packed: bytes, pack: bytes) -> Built:
        key, line = manifest.key, manifest.encode()
        _refuse_unreadable(line)
        data = seal(self._key, key, b"".join((line, b"\n", packed, pack)))
        part = Part(
            key, hashlib.sha256(data).hexdigest(), manifest.first, manifest.records, manifest.rows_bytes, len(packed)
        )
        self._made[key] = _Made(manifest, fold, part)
        return Built(key, data, manifest.records)

    def _refuse_secret(self, text: bytes) -> None:
        name = self._scan(text)
        if name is not None:
            raise SecretInside(
                f"The value of {name} stands in what was recorded, so no checkpoint of it was made. The session is "
                "still whole on this machine.",
                hint=f"Change {name} where it was issued; a session that is begun anew leaves the machine again.",
            )


def _as_text(rows: Iterable[Row]) -> bytes:
    """A line for each row. Bodies are JSON, in which there is no end of a line, so that none is needed around them."""
    return "".join(f"{seq} {kind} {body}\n" for seq, kind, body in rows).encode()


def _whole(rows: Sequence[Row]) -> Sequence[Row]:
    """Those that a workspace belongs to: without a call, and all after it, whose traces nobody has looked at yet."""
    end = len(rows)
    for at in reversed(range(len(rows))):
        if rows[at][1] == Observed.kind:
            break
        end = at if rows[at][1] == Unseen.kind else end
    return rows[:end]


def _refuse_gaps(rows: Sequence[Row], first: int) -> None:
    """What is stored has to open again: a reader refuses a row that is missing, or that is more than one line."""
    if any(seq != expected or "\n" in body for expected, (seq, _, body) in enumerate(rows, start=first)):
        raise _foreign()


def _foreign() -> StateError:
    return StateError(
        "Rows of the journal are missing or are none of ours, so no checkpoint was made of it.",
        hint="Something else wrote to the session. `endstate sessions show` tells whether it can still be read.",
    )


def _refuse_unreadable(line: bytes) -> None:
    try:
        parse(line)
    except ValueError as error:
        raise StateError(
            f"No checkpoint was made, since none could be read back: {error}. The session is still whole here.",
            hint="It may have grown too large to travel; `endstate sessions show` tells its size.",
        ) from None
