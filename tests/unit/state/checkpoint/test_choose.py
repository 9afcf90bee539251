"""The newest state that can be used, and never silently less than the world has seen."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endstate_action.errors import EndstateError
from endstate_action.state.checkpoint.choose import (
    FALLBACKS,
    LOOK_S,
    AlreadyDone,
    Choice,
    Damaged,
    Gap,
    Local,
    Newer,
    NoneFound,
    NoneOpens,
    NotAllTried,
    NotOurs,
    Seen,
    Unusable,
    Usable,
    UseLocal,
    UseStored,
    choose,
    downward,
    look,
    refusal,
)
from endstate_action.state.keys import CheckpointKey
from endstate_action.state.stores.base import StoreUnreadable, StoreUnusable
from tests.support.checkpoints import EXPECTED, KEY, LINEAGE, OTHER_KEY, Journal, builder
from tests.support.memory_store import Fault, MemoryStore


def key(epoch: int, sequence: int, effects: int = 0) -> CheckpointKey:
    return CheckpointKey(LINEAGE, epoch, sequence, effects)


def good(epoch: int, sequence: int, effects: int = 0, *, records: int = 10, done: bool = False) -> Seen:
    return Seen(key(epoch, sequence, effects), Usable(records, done))


def bad(epoch: int, sequence: int, effects: int = 0, *, kind="damaged") -> Seen:
    return Seen(key(epoch, sequence, effects), Unusable(kind, f"it is {kind}"))


def unread(epoch: int, sequence: int, effects: int = 0) -> Seen:
    return Seen(key(epoch, sequence, effects))


# What to go on from


def test_nothing_at_all_is_a_state_of_its_own():
    assert choose(None, [], 0) == NoneFound()


def test_nothing_where_effects_were_seen_is_a_gap():
    assert choose(None, [], 2) == Gap(0, 2, NoneFound())


@pytest.mark.parametrize("turn", [1, -1])
def test_the_newest_is_the_one_of_the_highest_epoch_then_of_the_highest_number(turn):
    """A late upload of an attempt that was taken over is not news."""
    assert choose(None, [good(1, 900), good(2, 3), good(2, 12)][::turn], 0) == UseStored(key(2, 12))


def test_a_damaged_one_is_set_aside_with_its_reason_and_an_older_one_used():
    aside = bad(2, 7)
    assert choose(None, [aside, good(2, 6)], 0) == UseStored(key(2, 6), (aside,))


@pytest.mark.parametrize("kind", ["damaged", "other_key", "not_ours", "part_missing", "misplaced"])
def test_whatever_is_wrong_with_the_newest_an_older_one_is_used(kind):
    assert choose(None, [bad(2, 7, kind=kind), good(1, 6)], 0) == UseStored(key(1, 6), (bad(2, 7, kind=kind),))


def test_an_older_one_that_is_damaged_is_not_spoken_of():
    assert choose(None, [good(2, 7), bad(2, 6)], 0) == UseStored(key(2, 7))


@pytest.mark.parametrize(
    ("local", "expected"),
    [
        pytest.param(Local(2, 11, 0), UseLocal(), id="more records of the same epoch"),
        pytest.param(Local(2, 10, 0), UseLocal(), id="the same state, and nothing to restore"),
        pytest.param(Local(2, 9, 0), UseStored(key(2, 5)), id="fewer records of the same epoch"),
        pytest.param(Local(1, 99, 0), UseStored(key(2, 5)), id="more records of an epoch that was taken over"),
        pytest.param(Local(3, 1, 0), UseLocal(), id="a later epoch"),
    ],
)
def test_what_is_here_competes_by_epoch_and_records(local, expected):
    assert choose(local, [good(2, 5, records=10)], 0) == expected


def test_what_is_here_is_used_where_nothing_is_stored():
    assert choose(Local(1, 1, 0), [], 0) == UseLocal()


def test_what_is_here_is_used_where_nothing_newer_than_it_opens():
    """Its own attempt shipped them: it has recorded everything that is in them."""
    assert choose(Local(2, 9, 0), [bad(2, 7, kind="other_key"), bad(1, 3)], 0) == UseLocal()


def test_what_is_here_stands_in_for_a_newer_one_that_is_damaged():
    assert choose(Local(2, 9, 0), [bad(3, 1)], 0) == UseLocal((bad(3, 1),))


# What the world has seen


@pytest.mark.parametrize("seen", [bad(2, 7, 3), bad(2, 7, 3, kind="other_key"), bad(3, 1, 3)])
def test_a_name_with_more_effects_than_the_usable_state_knows_is_a_gap(seen):
    gap = choose(None, [good(2, 6, 2), seen], 0)
    assert isinstance(gap, Gap)
    assert (gap.known, gap.started) == (2, 3)


@pytest.mark.parametrize("seen", [unread(1, 1, 3), good(1, 1, 3)])
def test_a_name_from_before_the_epoch_of_the_usable_state_tells_nothing_new(seen):
    """Who shipped it was overtaken at its barrier, or its effect was seen when the later epoch began."""
    assert choose(None, [good(2, 6, 2), seen], 0) == UseStored(key(2, 6, 2))


def test_what_a_later_attempt_certainly_started_is_missed_whatever_it_began_with():
    gap = choose(None, [good(1, 2, 1), bad(2, 1, 0), bad(2, 2, 1)], 0)
    assert gap == Gap(1, 2, UseStored(key(1, 2, 1), (bad(2, 2, 1), bad(2, 1, 0))))


def test_a_gap_says_what_would_be_used():
    assert choose(None, [bad(2, 7, 3), good(2, 6, 2)], 0) == Gap(2, 3, UseStored(key(2, 6, 2), (bad(2, 7, 3),)))


def test_a_witness_outside_the_store_counts_as_a_name_does():
    assert choose(None, [good(2, 6, 2)], 3) == Gap(2, 3, UseStored(key(2, 6, 2)))
    assert choose(None, [good(2, 6, 3)], 3) == UseStored(key(2, 6, 3))


def test_what_is_here_is_held_against_the_witness_too():
    assert choose(Local(2, 9, 1), [], 2) == Gap(1, 2, UseLocal())
    assert choose(Local(2, 9, 2), [unread(1, 1, 2)], 2) == UseLocal()


# What is no checkpoint


def test_checkpoints_of_which_none_opens_are_not_nothing():
    aside = (bad(2, 7, kind="other_key"), bad(2, 6))
    assert choose(None, aside, 0) == NoneOpens(aside)
    assert choose(None, aside[::-1], 5) == NoneOpens(aside)


def test_checkpoints_of_others_alone_are_not_nothing():
    aside = (bad(2, 7, kind="not_ours"), bad(2, 6))
    assert choose(None, aside, 0) == NotOurs(aside)


@pytest.mark.parametrize("kind", ["damaged", "part_missing", "misplaced"])
def test_damaged_checkpoints_alone_are_not_nothing(kind):
    assert choose(None, [bad(2, 7, kind=kind)], 0) == Damaged((bad(2, 7, kind=kind),))


def test_what_a_newer_release_wrote_last_is_not_passed_over():
    newer = bad(3, 1, kind="newer_format")
    assert choose(None, [good(2, 7), newer], 0) == Newer(newer)
    assert choose(Local(2, 99, 0), [newer], 0) == Newer(newer)
    assert choose(None, [newer, bad(3, 2)], 0) == Newer(newer)


def test_but_what_it_wrote_before_is():
    """Somebody went back to this release, on purpose, and it has gone on since."""
    newer = bad(2, 9, kind="newer_format")
    assert choose(None, [good(3, 1), newer], 0) == UseStored(key(3, 1))
    assert choose(Local(3, 1, 0), [newer], 0) == UseLocal()


# What is finished


def test_a_finished_session_is_not_run_again():
    assert choose(None, [good(2, 8, done=True), good(2, 7)], 0) == AlreadyDone(key(2, 8), key(2, 7))


def test_also_where_its_checkpoints_are_gone():
    assert choose(None, [good(2, 8, 4, done=True)], 4) == AlreadyDone(key(2, 8, 4))


def test_what_went_on_after_it_is_used():
    assert choose(None, [good(3, 1, records=20), good(2, 8, done=True)], 0) == UseStored(key(3, 1))
    assert choose(Local(3, 20, 0), [good(2, 8, done=True)], 0) == UseLocal()


SEEN = st.builds(
    Seen,
    st.builds(key, st.integers(1, 3), st.integers(1, 3), st.integers(0, 2)),
    st.none()
    | st.builds(Usable, st.integers(1, 4), st.booleans())
    | st.builds(Unusable, st.sampled_from(["damaged", "other_key", "not_ours", "newer_format"]), st.just("")),
)
LOCAL = st.none() | st.builds(Local, st.integers(1, 3), st.integers(1, 4), st.integers(0, 2))


@given(LOCAL, st.lists(SEEN, max_size=5, unique_by=lambda seen: seen.key), st.integers(0, 3))
def test_whatever_there_is_no_choice_is_below_what_the_world_has_seen(local, found, witness):
    chosen = choose(local, found, witness)
    known = {seen.key: seen for seen in found}
    since = 0
    match chosen:
        case UseStored(chosen_key) | AlreadyDone(chosen_key):
            assert isinstance(known[chosen_key].found, Usable)
            effects, since = chosen_key.effects, chosen_key.epoch
        case UseLocal():
            assert local is not None
            effects = local.effects
        case NoneFound():
            assert not found
            effects = 0
        case _:
            assert refusal(chosen) is not None
            return
    assert effects >= max([witness, *(seen.key.effects for seen in found if seen.key.epoch >= since)])
    assert refusal(chosen) is None
    assert choose(local, found[::-1], witness) == chosen


# Saying no


@pytest.mark.parametrize(
    ("choice", "code"),
    [
        (NoneOpens((bad(2, 7, kind="other_key"),)), 12),
        (Damaged(tuple(bad(2, n) for n in range(9, 0, -1))), 12),
        (NotOurs((bad(2, 7, kind="not_ours"),)), 13),
        (Newer(bad(2, 7, kind="newer_format")), 13),
        (Gap(1, 3, NoneFound()), 20),
    ],
)
def test_a_refusal_says_what_did_not_happen_what_is_still_true_and_what_to_do(choice: Choice, code: int):
    error = refusal(choice)
    assert isinstance(error, EndstateError)
    assert error.exit_code == code
    assert "restored" in str(error)
    assert "othing was run" in str(error)
    assert error.hint
    assert len(str(error)) < 400
    assert "heckpoint 7 of attempt 2" in str(error) or isinstance(choice, Gap | Damaged)


# Looking


def stored(*sequences: int, epoch: int = 1, store: MemoryStore | None = None, **more) -> MemoryStore:
    """A checkpoint under each of these numbers, each with one row more."""
    store = store or MemoryStore(**more)
    journal = Journal()
    making = builder(journal, epoch=epoch)
    for sequence in sequences:
        journal.note()
        built = making.build(sequence)
        store.put(built.key, built.data, timeout_s=1)
        making.confirmed(built)
    return store


STORES = pytest.mark.parametrize(
    "kind", [{"lists": True}, *({"lists": False, "order": order} for order in ("highest", "newest", "oldest"))], ids=str
)


@STORES
@pytest.mark.parametrize("sequences", [(1,), (1, 2, 3), (1, 2, 30), (9, 10, 11), (1, 99, 100), (1, 123_456)])
def test_the_newest_is_found_whatever_the_store_calls_newest_and_whatever_numbers_were_burned(kind, sequences):
    looked = look(stored(*sequences, **kind), KEY, EXPECTED)
    assert choose(None, looked.seen, 0) == UseStored(key(1, sequences[-1]))
    assert list(looked.opened) == [key(1, sequences[-1])]


@STORES
def test_a_later_epoch_is_newer_though_it_was_written_before(kind):
    store = stored(1, epoch=12, **kind)
    stored(1, 2, 3, epoch=3, store=store)
    assert choose(None, look(store, KEY, EXPECTED).seen, 0) == UseStored(key(12, 1))


@STORES
def test_older_ones_are_tried_one_by_one_also_those_of_earlier_epochs(kind):
    store = stored(1, 7, epoch=1, **kind)
    stored(3, 40, epoch=2, store=store)
    for broken in (key(2, 40), key(2, 3)):
        store.objects[str(broken)] = b"no seal"
    chosen = choose(None, look(store, KEY, EXPECTED).seen, 0)
    assert isinstance(chosen, UseStored)
    assert chosen.key == key(1, 7)
    assert [one.key for one in chosen.set_aside] == [key(2, 40), key(2, 3)]


@STORES
def test_what_comes_after_this_attempt_is_not_its_business(kind):
    store = stored(1, epoch=2, **kind)
    stored(1, epoch=5, store=store)
    assert choose(None, look(store, KEY, EXPECTED, up_to=4).seen, 0) == UseStored(key(2, 1))


@STORES
def test_an_empty_store_and_another_tasks_checkpoints_are_nothing(kind):
    store = stored(1, 2, **kind)
    store.objects = {name.replace(LINEAGE, "f" * 32): data for name, data in store.objects.items()}
    assert look(store, KEY, EXPECTED).seen == ()


@STORES
def test_with_another_key_all_are_tried_and_none_opens(kind):
    assert isinstance(choose(None, look(stored(1, 2, 3, **kind), OTHER_KEY, EXPECTED).seen, 0), NoneOpens)


def junk(store: MemoryStore, number: int, *, first: int = 100) -> None:
    """As anybody can make it who can write there: the newest names, and nothing that opens."""
    for sequence in range(first, first + number):
        store.objects[str(key(1, sequence))] = b"junk"


@STORES
def test_any_number_of_names_that_do_not_open_hide_none_that_does(kind):
    store = stored(1, 2, **kind)
    junk(store, 5 * FALLBACKS)
    looked = look(store, KEY, EXPECTED)
    chosen = choose(None, looked.seen, 0)
    assert isinstance(chosen, UseStored)
    assert chosen.key == key(1, 2)
    assert len(chosen.set_aside) == 5 * FALLBACKS


@STORES
def test_names_of_junk_bear_witness_and_so_do_those_beneath(kind):
    store = stored(1, **kind)
    store.objects[str(key(1, 2, 3))] = b"what became of a good one"
    junk(store, 2 * FALLBACKS)
    chosen = choose(None, look(store, KEY, EXPECTED).seen, 0)
    assert isinstance(chosen, Gap)
    assert (chosen.known, chosen.started) == (0, 3)


@STORES
def test_no_more_are_tried_than_anybody_would_wait_for_and_that_is_not_taken_for_all(kind):
    store = stored(1, **kind)
    junk(store, 2 * FALLBACKS)
    looked = look(store, KEY, EXPECTED, clock=itertools.count(0, LOOK_S).__next__)
    chosen = choose(None, looked.seen, 0)
    assert store.requests["get"] == FALLBACKS
    assert isinstance(chosen, NotAllTried)
    error = refusal(chosen)
    assert isinstance(error, EndstateError)
    assert error.exit_code == 12
    assert f"{FALLBACKS} do not open" in str(error)
    assert "older ones were not tried" in str(error)


def test_what_is_here_is_not_gone_on_from_where_something_newer_may_be_stored_that_was_not_tried():
    seen = [*(bad(3, n) for n in range(30, 9, -1)), unread(3, 9), unread(2, 1)]
    assert isinstance(choose(Local(2, 10, 0), seen, 0), NotAllTried)
    # Nothing of its own epoch is newer than a journal.
    assert isinstance(choose(Local(3, 10, 0), seen, 0), UseLocal)


def test_where_time_is_short_another_key_is_still_named_first():
    looked = look(stored(*range(1, FALLBACKS + 5)), OTHER_KEY, EXPECTED, clock=itertools.count(0, LOOK_S).__next__)
    assert isinstance(choose(None, looked.seen, 0), NoneOpens)
    assert len(looked.seen) == FALLBACKS + 4, "all names bear witness"


def test_where_names_can_be_listed_all_of_them_bear_witness():
    store = stored(1, 2)
    store.objects[str(key(1, 1, 5))] = b"never finished"
    assert isinstance(choose(None, look(store, KEY, EXPECTED).seen, 0), Gap)


@pytest.mark.parametrize(
    ("lists", "operation"), [(True, "keys"), (True, "get"), (False, "keys"), (False, "first"), (False, "get")]
)
def test_a_store_that_cannot_be_asked_is_not_taken_for_an_empty_one(lists, operation):
    store = stored(1, 2, lists=lists)
    store.faults[operation, 0] = Fault.UNREADABLE
    with pytest.raises(StoreUnreadable):
        look(store, KEY, EXPECTED)


@STORES
@pytest.mark.parametrize("past_done", [False, True])
def test_beneath_a_finished_session_is_what_a_new_task_goes_on_from(kind, past_done):
    journal, store = Journal(), MemoryStore(**kind)
    making = builder(journal)
    for built in (making.build(1), making.build(2), making.done(3, {})):
        store.put(built.key, built.data, timeout_s=1)
    looked = look(store, KEY, EXPECTED, past_done=past_done)
    assert choose(None, looked.seen, 0) == AlreadyDone(key(1, 3), key(1, 2) if past_done else None)
    assert set(looked.opened) == {key(1, 3), *([key(1, 2)] if past_done else [])}


def test_junk_under_our_names_is_passed_over_where_names_can_be_listed():
    store = stored(1)
    store.objects[f"es1/{LINEAGE}/c9zzz"] = b"x"
    assert choose(None, look(store, KEY, EXPECTED).seen, 0) == UseStored(key(1, 1))


def test_and_stops_everything_where_it_may_hide_what_is_newest():
    store = stored(1, lists=False)
    store.objects[f"es1/{LINEAGE}/c9zzz"] = b"x"
    with pytest.raises(StoreUnusable, match="c9zzz") as refused:
        look(store, KEY, EXPECTED)
    assert refused.value.exit_code == 2
    assert "Delete that object" in refused.value.hint


@given(
    st.sets(st.tuples(st.integers(0, 9_999), st.integers(0, 999_999)), max_size=8),
    st.sampled_from(["highest", "newest", "oldest"]),
)
def test_a_store_that_cannot_list_is_gone_through_in_order_without_missing_any(places, order):
    store = MemoryStore(lists=False, order=order)
    for epoch, sequence in places:
        store.objects[str(key(epoch, sequence))] = b""
    assert list(downward(store, LINEAGE)) == [key(*place) for place in sorted(places, reverse=True)]
