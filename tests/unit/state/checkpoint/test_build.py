"""What a checkpoint carries, what it costs, and what it never carries."""

from __future__ import annotations

import json
import math
import zlib
from itertools import pairwise

import pytest

from endstate_action.effects import EffectClass
from endstate_action.errors import StateError
from endstate_action.state.checkpoint.build import SMALL_BYTES, Builder, Fold, Row, SecretInside
from endstate_action.state.checkpoint.manifest import Manifest, parse
from endstate_action.state.keys import CheckpointKey
from endstate_action.state.seal import open_sealed
from endstate_action.system.redaction import Secrets
from tests.support.checkpoints import ABOUT, KEY, Journal, builder, pack_of


def manifest_of(built) -> Manifest:
    return parse(open_sealed(KEY, built.key, built.data).partition(b"\n")[0])


def rows_in(built) -> bytes:
    content = open_sealed(KEY, built.key, built.data).partition(b"\n")[2]
    return zlib.decompress(content[: manifest_of(built).packed_bytes])


class Shop:
    """A builder whose checkpoints are confirmed as they are made."""

    def __init__(self, journal: Journal, **more) -> None:
        self.builder = builder(journal, **more)
        self.sequence = 0
        self.dropped: set[str] = set()

    def build(self):
        self.sequence += 1
        return self.builder.build(self.sequence)

    def ship(self):
        built = self.build()
        self.dropped |= set(self.builder.confirmed(built))
        return built


def test_its_name_says_how_many_outside_effects_were_started():
    journal = Journal()
    for effect in EffectClass:
        journal.start(effect)
    assert CheckpointKey.parse(builder(journal).build(3).key) == CheckpointKey(ABOUT.lineage, 1, 3, 3)


def test_every_start_counts_and_so_do_those_that_were_lost_before():
    journal = Journal()
    journal.start(EffectClass.OPAQUE)
    journal.start(EffectClass.OPAQUE)
    shop = Shop(journal, effects_before=5)
    assert manifest_of(shop.ship()).effects == 7
    journal.start(EffectClass.NETWORKED)
    assert manifest_of(shop.ship()).effects == 8


def test_the_workspace_is_the_one_that_the_rows_name_last():
    journal = Journal()
    journal.observe()
    root = journal.observe()
    journal.note()
    built = builder(journal).build(1)
    manifest = manifest_of(built)
    assert (manifest.root, manifest.tree_hash) == (root, f"tree of {root}")
    assert open_sealed(KEY, built.key, built.data).endswith(pack_of(root))


def test_an_outcome_whose_traces_nobody_has_looked_at_stays_here_until_somebody_has():
    journal = Journal()
    root = journal.observe()
    journal.start()
    before = len(journal.rows)
    journal.unseen()
    journal.note(SMALL_BYTES * 2)
    shop = Shop(journal)
    cut = manifest_of(shop.ship())
    assert (cut.records, cut.root, cut.effects) == (before, root, 1)
    newer = journal.observe()
    whole = manifest_of(shop.ship())
    assert (whole.records, whole.root) == (len(journal.rows), newer)
    journal.note()
    assert manifest_of(shop.ship()).records == len(journal.rows)


def test_before_the_first_snapshot_there_is_no_workspace():
    manifest = manifest_of(builder(Journal()).build(1))
    assert (manifest.root, manifest.pack_bytes) == (None, 0)


def test_a_workspace_that_cannot_be_packed_makes_no_checkpoint():
    """A journal whose workspace is not with it would be restored onto another one."""

    def refuse(root: str) -> bytes:
        raise StateError("a file holds a secret")

    journal = Journal()
    journal.observe()
    with pytest.raises(StateError, match="holds a secret"):
        Builder(ABOUT, KEY, journal.after, refuse).build(1)


def test_a_small_session_is_whole_in_each_of_its_checkpoints():
    journal = Journal()
    shop = Shop(journal)
    for _ in range(40):
        journal.note(1_000)
        manifest = manifest_of(shop.ship())
        assert (manifest.first, manifest.parts) == (1, ())
        assert manifest.packed_bytes < SMALL_BYTES


@pytest.mark.slow
def test_a_checkpoint_of_a_long_session_costs_what_is_new():
    journal = Journal()
    journal.note(2_000_000)
    shop = Shop(journal)
    shop.ship()
    cost = 0
    for _ in range(200):
        journal.note(1_000)
        cost += len(shop.ship().data)
    assert cost / 200 < SMALL_BYTES


@pytest.mark.slow
def test_what_all_checkpoints_cost_grows_with_the_session_and_not_with_its_square():
    journal = Journal()
    shop = Shop(journal)
    cost = 0
    for _ in range(40):
        journal.note(100_000)
        cost += len(shop.ship().data)
    size = len(zlib.compress("".join(body for _, _, body in journal.rows).encode()))
    assert cost < size * (math.log2(size / SMALL_BYTES) + 2)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "times"), [(3_000, 60), (20_000, 40), (65_000, 40), (90_000, 30), (300_000, 12)])
def test_the_number_of_parts_stays_logarithmic(size, times):
    journal = Journal()
    shop = Shop(journal)
    for _ in range(times):
        journal.note(size)
        manifest = manifest_of(shop.ship())
        packed = sum(part.packed_bytes for part in manifest.parts) + manifest.packed_bytes
        assert len(manifest.parts) <= max(0, math.log2(packed / SMALL_BYTES)) + 1
        sizes = [part.packed_bytes for part in manifest.parts]
        assert all(a > b for a, b in pairwise(sizes))


@pytest.mark.slow
def test_even_sizes_that_shrink_do_not_make_many_parts():
    journal = Journal()
    shop = Shop(journal)
    for size in range(300_000, 70_000, -15_000):
        journal.note(size)
        shop.ship()
    manifest = manifest_of(shop.build())
    packed = sum(part.packed_bytes for part in manifest.parts) + manifest.packed_bytes
    assert len(manifest.parts) <= math.log2(packed / SMALL_BYTES) + 1


def _long(**more) -> tuple[Journal, Shop]:
    journal = Journal()
    shop = Shop(journal, **more)
    journal.note(600_000)
    shop.ship()
    journal.note(1_000)
    return journal, shop


def test_rows_of_an_upload_that_failed_come_again_and_its_key_is_never_referred_to():
    journal, shop = _long()
    lost = shop.build()
    journal.note(200_000)
    also_lost = shop.build()
    journal.note(1_000)
    manifest = manifest_of(shop.ship())
    assert manifest.first == 3
    assert manifest.parent == manifest.parts[0].key
    journal.note(200_000)
    for built in (shop.ship(), shop.ship(), shop.ship()):
        names = {part.key for part in manifest_of(built).parts} | {manifest_of(built).parent}
        assert not {lost.key, also_lost.key} & names


def test_of_two_on_their_way_at_once_the_later_is_what_counts_whichever_arrives_first():
    for turn in (1, -1):
        journal, shop = _long()
        journal.note(200_000)
        earlier = shop.build()
        journal.note(1_000)
        later = shop.build()
        for built in (earlier, later)[::turn]:
            shop.builder.confirmed(built)
        journal.note(1_000)
        manifest = manifest_of(shop.ship())
        assert manifest.parent == later.key == manifest.parts[-1].key
        assert earlier.key not in {part.key for part in manifest.parts}


def test_the_first_of_an_epoch_carries_everything_and_names_what_it_came_from():
    journal, shop = _long()
    restored = manifest_of(shop.ship())
    first = manifest_of(builder(journal, epoch=2, restored=restored).build(1))
    assert (first.first, first.parts, first.parent) == (1, (), restored.key)


def test_what_the_last_two_need_is_kept_and_the_rest_is_superfluous_once():
    journal, shop = _long()
    built, needed = [shop.ship()], set()
    for _ in range(6):
        journal.note(30_000)
        before = set(shop.dropped)
        built.append(shop.ship())
        needed = {built[-1].key, built[-2].key, *(p.key for b in built[-2:] for p in manifest_of(b).parts)}
        assert not shop.dropped & needed
        assert before <= shop.dropped
    assert {b.key for b in built} - shop.dropped <= needed


def test_what_one_on_its_way_needs_is_kept_though_the_last_two_do_not_need_it():
    """Uploads that nobody waits for any more may still arrive, and the newest of them is what is restored."""
    journal = Journal()
    shop = Shop(journal)
    journal.note(400_000)
    shop.ship()
    journal.note(100_000)
    slow, second, third = shop.build(), shop.build(), shop.build()
    shop.builder.confirmed(slow)
    journal.note(1_000)
    newest = shop.build()
    assert slow.key in {part.key for part in manifest_of(newest).parts}
    assert slow.key not in {*shop.builder.confirmed(second), *shop.builder.confirmed(third)}
    shop.builder.confirmed(newest)
    assert slow.key in shop.builder._stored


def test_one_that_arrives_late_is_superfluous_itself():
    _, shop = _long()
    slow = shop.build()
    shop.ship()
    shop.ship()
    newest = shop.ship()
    assert slow.key in shop.builder.confirmed(slow)
    assert shop.builder.confirmed(newest) == ()


def test_what_it_was_restored_from_stays_until_two_newer_ones_are_there():
    journal, shop = _long()
    restored = manifest_of(shop.ship())
    next_epoch = Shop(journal, epoch=2, restored=restored)
    next_epoch.ship()
    assert next_epoch.dropped == set()
    next_epoch.ship()
    assert next_epoch.dropped == {restored.key, *(part.key for part in restored.parts)}


def test_a_finished_session_leaves_its_outputs_and_nothing_else():
    journal = Journal()
    journal.observe()
    journal.start()
    shop = Shop(journal)
    shop.ship()
    journal.note()
    done = shop.builder.done(2, {"conclusion": "success"})
    manifest = manifest_of(done)
    assert (manifest.is_done, manifest.outputs, manifest.records) == (True, {"conclusion": "success"}, 4)
    assert (manifest.root, manifest.packed_bytes, manifest.pack_bytes, manifest.effects) == (None, 0, 0, 1)
    assert shop.builder.confirmed(done) == set()


def test_what_goes_on_after_a_finished_session_goes_on_from_its_journal():
    journal, shop = _long()
    before = shop.build()
    shop.builder.confirmed(before)
    shop.builder.confirmed(shop.builder.done(8, {}))
    journal.note(1_000)
    manifest = manifest_of(shop.builder.build(9))
    assert [part.last for part in manifest.parts] == [2]
    assert manifest.records == len(journal.rows)


@pytest.mark.parametrize("disguise", [str, lambda s: s[::-1], lambda s: s.encode().hex()])
def test_a_secret_that_was_recorded_does_not_leave_and_is_not_shown(disguise):
    secret = "hunter2-hunter2-hunter2"
    secrets = Secrets({"DEPLOY_TOKEN": secret})
    journal = Journal()
    shop = Shop(journal, scan=lambda text: next(iter(secrets.contains(text)), None))
    shop.ship()
    journal.observe(root=None)
    seq, kind, body = journal.rows[-1]
    journal.rows[-1] = (seq, kind, body.replace('"head":null', f'"head":"{disguise(secret)}"'))
    with pytest.raises(SecretInside, match="DEPLOY_TOKEN") as caught:
        shop.ship()
    assert secret not in f"{caught.value} {caught.value.hint}"


def test_a_secret_in_the_outputs_does_not_leave_either():
    with pytest.raises(SecretInside, match="TOKEN"):
        builder(Journal(), scan=lambda text: "TOKEN" if b"hunter2" in text else None).done(1, {"message": "hunter2"})


@pytest.mark.parametrize(
    "spoil",
    [
        lambda rows: rows.pop(1),
        lambda rows: rows.append((len(rows) + 2, "note", "{}")),
        lambda rows: rows.append((len(rows) + 1, "note", "{\n}")),
        lambda rows: rows.append((len(rows) + 1, "started", "{}")),
        lambda rows: rows.append((len(rows) + 1, "observed", "[")),
    ],
)
def test_a_journal_that_could_not_be_read_back_is_not_shipped(spoil):
    journal = Journal()
    journal.note()
    journal.note()
    spoil(journal.rows)
    with pytest.raises(StateError, match="no checkpoint was made"):
        builder(journal).build(1)


@pytest.mark.parametrize("message", ["x" * 300_000, "é" * 80_000, "\0" * 60_000, "x" * 9 + "😀" * 60_000, ""])
@pytest.mark.parametrize("files", [["a"], [f"{number:0100}" for number in range(5_000)]])
def test_of_outputs_that_are_too_large_what_fits_is_left_behind(message, files):
    """Without it each re-run would deliver once more."""
    outputs = {"conclusion": "success", "final-message": message, "changed-files": files, "prompt-ids": ["p"]}
    found = manifest_of(builder(Journal()).done(1, outputs)).outputs
    assert (found["conclusion"], found["prompt-ids"]) == ("success", ["p"])
    assert message.startswith(found["final-message"])
    if len(files) == 1:
        assert found["changed-files"] == files
        assert len(json.dumps(found)) > 250_000 or not message
    else:
        assert found["changed-files"] is None


def test_outputs_that_are_too_large_in_any_other_way_are_not_shipped():
    with pytest.raises(StateError, match="read back"):
        builder(Journal()).done(1, {"prompt-ids": ["x" * 300_000]})


def test_rows_recorded_while_it_is_made_are_in_it_or_are_not():
    """The journal grows beside the builder: between two looks at it there may be more."""
    journal, _ = _long()

    def after(number: int) -> list[Row]:
        journal.note()
        return journal.after(number)

    busy = Builder(ABOUT, KEY, after, pack_of)
    for sequence in range(1, 5):
        built = busy.build(sequence)
        manifest = manifest_of(built)
        assert built.records == manifest.records <= len(journal.rows)
        assert rows_in(built).count(b"\n") == manifest.records - manifest.first + 1
        busy.confirmed(built)


def test_a_fold_goes_on_where_it_was():
    journal = Journal()
    journal.start()
    journal.observe()
    half = Fold().then(journal.rows)
    journal.start()
    journal.observe()
    assert half.then(journal.rows) == half.then(journal.rows[3:]) == Fold().then(journal.rows)
