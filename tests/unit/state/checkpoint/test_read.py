"""A checkpoint opens whole, or says why not; and what is wrong with one is not held against another."""

from __future__ import annotations

import hashlib
import tracemalloc
import zlib
from dataclasses import replace

import pytest

from endstate_action.errors import Interrupted
from endstate_action.state.checkpoint.build import Builder
from endstate_action.state.checkpoint.choose import UseStored, choose, look
from endstate_action.state.checkpoint.manifest import Manifest, parse
from endstate_action.state.checkpoint.read import Expected, Opened, Rejected, open_checkpoint
from endstate_action.state.keys import CheckpointKey
from endstate_action.state.records import Begun, Note, encode
from endstate_action.state.seal import open_sealed, seal
from endstate_action.state.stores.base import StoreUnreadable
from tests.support.checkpoints import ABOUT, EXPECTED, KEY, OTHER_KEY, SESSION, Journal, builder, pack_of
from tests.support.memory_store import Fault, MemoryStore


class Stored:
    """A store with checkpoints in it, each confirmed."""

    def __init__(self, *notes: int, **more) -> None:
        self.store = MemoryStore()
        self.journal = Journal()
        self.root = self.journal.observe()
        self.builder = builder(self.journal, **more)
        self.keys: list[CheckpointKey] = []
        for size in notes:
            self.journal.note(size)
            self.ship()

    def ship(self) -> CheckpointKey:
        built = self.builder.build(len(self.keys) + 1)
        self.store.put(built.key, built.data, timeout_s=1)
        self.builder.confirmed(built)
        return self.add(built.key)

    def add(self, name: str) -> CheckpointKey:
        key = CheckpointKey.parse(name)
        assert key
        self.keys.append(key)
        return key

    def open(self, key: CheckpointKey | None = None, **more) -> Opened | Rejected:
        return open_checkpoint(self.store, key or self.keys[-1], more.pop("sealing", KEY), more.pop("of", EXPECTED))

    def content(self, key: CheckpointKey) -> tuple[Manifest, bytes, bytes]:
        line, _, rest = open_sealed(KEY, str(key), self.store.objects[str(key)]).partition(b"\n")
        manifest = parse(line)
        return manifest, rest[: manifest.packed_bytes], rest[manifest.packed_bytes :]

    def forge(self, key: CheckpointKey, line: bytes, packed: bytes, pack: bytes) -> None:
        """As somebody would who has the key."""
        self.store.objects[str(key)] = seal(KEY, str(key), line + b"\n" + packed + pack)

    def change(self, key: CheckpointKey, text: bytes | None = None, **changes) -> None:
        manifest, packed, pack = self.content(key)
        if text is not None:
            packed = zlib.compress(text)
            changes = {"rows_bytes": len(text), "packed_bytes": len(packed)} | changes
        self.forge(key, replace(manifest, **changes).encode(), packed, pack)

    def text(self, key: CheckpointKey) -> bytes:
        return zlib.decompress(self.content(key)[1])


def rejected(result: Opened | Rejected, kind: str) -> str:
    assert isinstance(result, Rejected), result
    assert result.kind == kind, result
    return result.reason


LONG = (900_000, 200_000, 1_000)
"""Makes three checkpoints, of which the last needs the other two."""


@pytest.mark.parametrize("notes", [(20,), (20, 20, 20), LONG])
def test_a_checkpoint_has_every_row_and_the_workspace_that_belongs_to_the_last(notes):
    stored = Stored(*notes)
    for number, key in enumerate(stored.keys, start=1):
        opened = stored.open(key)
        assert isinstance(opened, Opened), opened
        assert list(opened.rows) == stored.journal.rows[: 2 + number]
        assert opened.pack == pack_of(stored.root)
        assert opened.manifest.root == stored.root
        assert opened.sha256 == hashlib.sha256(stored.store.objects[str(key)]).hexdigest()
    assert len(stored.content(stored.keys[-1])[0].parts) == (2 if notes == LONG else 0)


def test_a_finished_session_has_its_outputs_and_no_workspace():
    stored = Stored(20)
    done = stored.builder.done(2, {"conclusion": "success"})
    stored.store.put(done.key, done.data, timeout_s=1)
    opened = stored.open(stored.add(done.key))
    assert isinstance(opened, Opened)
    assert (opened.rows, opened.pack, opened.manifest.outputs) == ((), None, {"conclusion": "success"})


@pytest.mark.parametrize("fault", [Fault.CUT, Fault.FLIPPED, Fault.SWAPPED])
def test_what_was_damaged_on_the_way_is_refused_and_the_others_are_not(fault):
    stored = Stored(20, 20)
    stored.store.faults["get", 0] = fault
    rejected(stored.open(), "damaged")
    assert isinstance(stored.open(stored.keys[0]), Opened)


def test_what_is_gone_is_told_from_what_is_damaged():
    stored = Stored(20)
    stored.store.objects.clear()
    rejected(stored.open(), "part_missing")


def test_a_store_that_cannot_be_asked_is_no_damage():
    """Else a moment without network would have an older state used, or none."""
    stored = Stored(20)
    stored.store.faults["get", 0] = Fault.UNREADABLE
    with pytest.raises(StoreUnreadable) as caught:
        stored.open()
    assert isinstance(caught.value, Interrupted)


@pytest.mark.parametrize("number", [0, 1])
def test_a_lost_part_refuses_those_that_need_it_and_no_other(number):
    stored = Stored(*LONG)
    del stored.store.objects[str(stored.keys[number])]
    assert f"part, checkpoint {number + 1} of attempt 1: " in rejected(stored.open(), "part_missing")
    assert isinstance(stored.open(stored.keys[1 - number]), Opened) == (number == 1)


@pytest.mark.parametrize("fault", [Fault.CUT, Fault.FLIPPED, Fault.SWAPPED])
def test_a_damaged_part_refuses_the_checkpoint(fault):
    stored = Stored(*LONG)
    stored.store.faults["get", 2] = fault
    rejected(stored.open(), "damaged")


def test_a_part_that_was_replaced_by_another_of_ours_is_refused():
    """It opens, under its own name; but it is not what the checkpoint was made with."""
    stored = Stored(*LONG)
    stored.change(stored.keys[1], at=99.0)
    assert isinstance(stored.open(stored.keys[1]), Opened)
    assert "digest" in rejected(stored.open(), "damaged")


def test_another_key_is_told_from_damage():
    rejected(Stored(20).open(sealing=OTHER_KEY), "other_key")


@pytest.mark.parametrize(
    "expected", [replace(EXPECTED, repository="github.com/else/where"), replace(EXPECTED, lineage="f" * 32)]
)
def test_what_belongs_to_another_repository_or_task_is_not_ours(expected):
    rejected(Stored(20).open(of=expected), "not_ours")


def test_rows_of_another_session_are_not_ours():
    stored = Stored(20)
    stored.change(stored.keys[0], about=replace(ABOUT, session="0123456789ab"))
    rejected(stored.open(), "not_ours")


def test_what_a_newer_release_sealed_or_wrote_is_told_from_damage():
    stored = Stored(20, 20)
    stored.change(stored.keys[0], format=2)
    assert "format 2" in rejected(stored.open(stored.keys[0]), "newer_format")
    name = str(stored.keys[1])
    stored.store.objects[name] = stored.store.objects[name].replace(b"seal 1", b"seal 2", 1)
    rejected(stored.open(), "newer_format")


@pytest.mark.parametrize(
    "changes",
    [{"sequence": 7}, {"effects": 3}, {"about": replace(ABOUT, epoch=2)}],
    ids=["sequence", "effects", "epoch"],
)
def test_what_says_of_itself_to_stand_elsewhere_is_misplaced(changes):
    stored = Stored(20)
    stored.change(stored.keys[0], **changes)
    rejected(stored.open(), "misplaced")


def test_rows_that_unpack_to_more_than_they_say_are_not_unpacked():
    stored = Stored(20)
    bomb = zlib.compress(b"\0" * 50_000_000)
    manifest, _, pack = stored.content(stored.keys[0])
    stored.forge(stored.keys[0], replace(manifest, packed_bytes=len(bomb)).encode(), bomb, pack)
    tracemalloc.start()
    try:
        assert "not as long" in rejected(stored.open(), "damaged")
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "packed", [b"no zlib", zlib.compress(b"x"), zlib.compress(b"x" * 99)[:-3], zlib.compress(b"") + b"more"]
)
def test_rows_that_do_not_unpack_are_refused(packed):
    stored = Stored(20)
    manifest, _, pack = stored.content(stored.keys[0])
    stored.forge(stored.keys[0], replace(manifest, packed_bytes=len(packed)).encode(), packed, pack)
    rejected(stored.open(), "damaged")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(b"3 note ", b"4 note ", id="a row is missing"),
        pytest.param(b"3 note ", b"2 note ", id="a row is there twice"),
        pytest.param(b"3 note ", b"x note ", id="no number"),
        pytest.param(b"3 note ", b"3 nothing ", id="no kind"),
        pytest.param(b'{"id"', b'{"other"', id="other fields"),
        pytest.param(b'{"id"', b'["id"', id="no JSON"),
        pytest.param(b"\n3 note ", b"\n3 note", id="two words"),
        pytest.param(b"note", b"\xff\xff", id="no text"),
    ],
)
def test_a_row_that_cannot_be_one_refuses_the_checkpoint(old, new):
    stored = Stored(20)
    text = stored.text(stored.keys[0])
    assert text.count(old) == 1
    stored.change(stored.keys[0], text.replace(old, new))
    rejected(stored.open(), "damaged")


def test_a_row_out_of_place_refuses_the_checkpoint_and_the_one_before_is_used():
    stored = Stored(20, 70_000)
    rows = stored.text(stored.keys[1])
    last = rows.splitlines(keepends=True)[-1]
    stored.change(stored.keys[1], rows.replace(last, last.replace(b'"after_step":0', b'"after_step":7')))
    assert "out of place: it is told after step 7, of 0" in rejected(stored.open(), "damaged")
    match choose(None, look(stored.store, KEY, EXPECTED).seen, 0):
        case UseStored(key, set_aside):
            assert (key, [seen.key for seen in set_aside]) == (stored.keys[0], [stored.keys[1]])
        case other:
            raise AssertionError(other)


def test_rows_that_do_not_begin_as_a_session_does_are_refused():
    stored = Stored(20)
    rows = stored.text(stored.keys[0]).splitlines(keepends=True)
    note, begun = encode(Note("0", "x", 0)), encode(Begun(SESSION, 1.0, {}))
    for text in (f"1 note {note}\n".encode() + b"".join(rows[1:]), b"".join(rows[:2]) + f"3 begun {begun}\n".encode()):
        stored.change(stored.keys[0], text)
        rejected(stored.open(), "damaged")


def test_a_workspace_that_is_not_the_one_of_the_rows_is_refused():
    """A journal on another workspace would have calls settled by what they never did."""
    stored = Stored(20)
    stored.change(stored.keys[0], root="b" * 40)
    assert "workspace" in rejected(stored.open(), "damaged")


def test_fewer_effects_than_the_rows_started_are_refused():
    stored = Stored()
    stored.journal.start()
    key = stored.ship()
    hidden = replace(key, effects=0)
    manifest, packed, pack = stored.content(key)
    stored.forge(hidden, replace(manifest, effects=0).encode(), packed, pack)
    rejected(stored.open(hidden), "damaged")


def test_a_manifest_without_sense_is_refused():
    stored = Stored(20)
    stored.forge(stored.keys[0], b"{}", b"", b"")
    rejected(stored.open(), "damaged")


@pytest.mark.parametrize("more", [b"", b"and more"])
def test_an_object_that_is_not_as_long_as_it_says_is_refused(more):
    stored = Stored(20)
    manifest, packed, pack = stored.content(stored.keys[0])
    stored.forge(stored.keys[0], manifest.encode(), packed, pack[:3] + more)
    rejected(stored.open(), "damaged")


def test_one_without_a_snapshot_has_no_workspace():
    journal, store = Journal(), MemoryStore()
    built = Builder(ABOUT, KEY, journal.after, pack_of).build(1)
    store.put(built.key, built.data, timeout_s=1)
    key = CheckpointKey.parse(built.key)
    assert key
    opened = open_checkpoint(store, key, KEY, Expected(EXPECTED.repository, EXPECTED.lineage))
    assert isinstance(opened, Opened)
    assert (opened.pack, opened.manifest.root) == (None, None)
