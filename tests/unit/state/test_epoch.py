"""Two attempts never share a number, and whoever has the lower one finds out before he acts."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endstate_action.state.epoch import Claimed, Held, NotClaimed, TakenOver, fence, highest_above
from endstate_action.state.epoch import claim as real_claim
from endstate_action.state.keys import CheckpointKey, claim_key
from endstate_action.state.search import covering
from endstate_action.state.stores.base import StoreUnreadable, StoreUnusable
from tests.support.memory_store import Fault, MemoryStore

LINEAGE = "0123456789abcdef0123456789abcdef"
OTHER = "ffffffffffffffffffffffffffffffff"


class Clock:
    """Time that passes while one sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def claim(store, *, clock=None, **more):
    clock = clock or Clock()
    return real_claim(store, LINEAGE, b"run 7", clock=clock, sleep=clock.sleep, **more)


def claimed(*epochs: int, **more) -> MemoryStore:
    store = MemoryStore(**more)
    for epoch in epochs:
        store.objects[claim_key(LINEAGE, epoch)] = b""
    return store


def test_the_first_attempt_is_number_one_and_says_what_it_was_given():
    store = MemoryStore()
    assert claim(store) == Claimed(1)
    assert store.objects == {claim_key(LINEAGE, 1): b"run 7"}


@pytest.mark.parametrize("order", ["highest", "newest", "oldest"])
@pytest.mark.parametrize("taken", [(1,), (1, 2, 3), (9, 10, 2), (1_234, 99, 7), (1, 3), (12, 15), (15, 12)])
def test_a_claim_is_above_all_that_were_made_whatever_the_store_calls_newest(taken, order):
    assert claim(claimed(*taken, order=order, lists=False)) == Claimed(max(taken) + 1)


def test_what_this_machine_knows_to_be_taken_is_not_claimed():
    assert claim(claimed(2), above=5) == Claimed(6)
    assert claim(claimed(8), above=5) == Claimed(9)


@pytest.mark.parametrize("lists", [True, False], ids=["lists", "does not list"])
@pytest.mark.parametrize("left", [(), (1,), (2,)], ids=["all gone", "the first is left", "the second is left"])
def test_a_number_whose_claim_is_gone_is_not_claimed_where_its_checkpoints_are_there(left, lists):
    store = claimed(*left, lists=lists)
    for key in (CheckpointKey(LINEAGE, 1, 12, 0), CheckpointKey(LINEAGE, 3, 1, 0), CheckpointKey(OTHER, 7, 1, 0)):
        store.objects[str(key)] = b""
    assert claim(store) == Claimed(4)


def test_what_has_the_last_number_is_named_whatever_it_is():
    store = claimed(2)
    store.objects[str(CheckpointKey(LINEAGE, 9_999, 1, 0))] = b""
    outcome = claim(store)
    assert isinstance(outcome, NotClaimed)
    assert str(CheckpointKey(LINEAGE, 9_999, 1, 0)) in outcome.reason


def test_another_tasks_claims_do_not_count():
    store = MemoryStore()
    store.objects[claim_key(OTHER, 7)] = b""
    assert claim(store) == Claimed(1)


def test_of_eight_at_once_no_two_have_the_same_number():
    # None has seen a claim of another when it makes its first.
    together = threading.Barrier(8)
    store = MemoryStore(on_put=lambda key: together.wait(20) if key == claim_key(LINEAGE, 1) else None)
    with ThreadPoolExecutor(8) as pool:
        claims = list(pool.map(lambda _: claim(store), range(8)))
    assert len({one.epoch for one in claims}) == 8


@pytest.mark.parametrize("fault", [Fault.APPLIED, Fault.LOST, Fault.RESERVED, Fault.TAKEN])
def test_a_number_that_may_be_taken_is_not_claimed_again(fault):
    store = MemoryStore(faults={("put", 0): fault})
    assert claim(store) == Claimed(2)
    assert store.requests["put"] == 2


def test_a_number_that_surely_is_free_is_asked_for_again():
    store = MemoryStore(faults={("put", 0): Fault.REFUSED})
    assert claim(store) == Claimed(1)


def test_a_store_that_leaves_every_claim_in_doubt_is_given_up():
    store = MemoryStore(faults={("put", n): Fault.LOST for n in range(100)})
    outcome = claim(store)
    assert isinstance(outcome, NotClaimed)
    assert outcome.why == "unavailable"
    assert store.requests["put"] == 4


def test_a_denial_is_told_at_once_with_its_remedy():
    store = MemoryStore(faults={("put", 0): Fault.DENIED})
    outcome = claim(store)
    assert isinstance(outcome, NotClaimed)
    assert (outcome.why, outcome.remedy) == ("denied", "cache-mode: write")
    assert store.requests["put"] == 1


def test_a_store_that_wants_us_to_wait_is_waited_for():
    clock = Clock()
    assert claim(MemoryStore(faults={("put", 0): Fault.RATE_LIMITED}), clock=clock) == Claimed(1)
    assert clock.slept == [7.0]


def test_but_not_beyond_the_deadline():
    clock = Clock()
    store = MemoryStore(faults={("put", n): Fault.RATE_LIMITED for n in range(100)}, retry_after_s=90)
    outcome = claim(store, clock=clock, deadline_s=60)
    assert isinstance(outcome, NotClaimed)
    assert outcome.why == "rate_limited"
    assert clock.now <= 60


def test_a_store_that_never_answers_is_given_up_at_the_deadline():
    clock = Clock()
    store = MemoryStore(faults={("put", n): Fault.REFUSED for n in range(10_000)})
    outcome = claim(store, clock=clock, deadline_s=20)
    assert isinstance(outcome, NotClaimed)
    assert 19 <= clock.now <= 21


def test_above_a_number_that_was_made_up_the_next_is_taken():
    assert claim(claimed(1, 2, 9_998)) == Claimed(9_999)


def test_the_last_number_is_the_last_and_what_has_it_is_named():
    outcome = claim(claimed(9_999))
    assert isinstance(outcome, NotClaimed)
    assert outcome.why == "used_up"
    assert claim_key(LINEAGE, 9_999) in outcome.reason


def test_nothing_is_claimed_beside_claims_that_cannot_be_read():
    store = MemoryStore(faults={("first", 0): Fault.UNREADABLE})
    with pytest.raises(StoreUnreadable):
        claim(store)
    assert store.objects == {}


@pytest.mark.parametrize("order", ["highest", "newest", "oldest"])
@pytest.mark.parametrize("other", [4, 5, 9, 10, 11, 99, 100, 123, 1_000, 9_999])
def test_any_higher_number_takes_over(other, order):
    store = claimed(other, 1, 2, 3, order=order, lists=False)
    assert fence(store, LINEAGE, 3) == TakenOver(other)
    assert store.requests["first"] == 1
    assert highest_above(store, LINEAGE, 3) == other


@pytest.mark.parametrize("mine", [1, 9, 10, 99, 4_567, 9_999])
@pytest.mark.parametrize("order", ["highest", "newest", "oldest"])
def test_lower_numbers_do_not(mine, order):
    store = claimed(*{mine, 1, mine // 2 or 1, max(1, mine - 1)}, order=order)
    assert fence(store, LINEAGE, mine) == Held()
    assert highest_above(store, LINEAGE, mine) is None


def test_of_several_higher_ones_the_highest_is_named():
    assert highest_above(claimed(2, 11, 3, 12, 4, order="oldest"), LINEAGE, 2) == 12


def test_a_fence_that_cannot_be_read_lets_nothing_through():
    store = claimed(1)
    store.faults["first", 0] = Fault.UNREADABLE
    with pytest.raises(StoreUnreadable):
        fence(store, LINEAGE, 1)


def test_a_store_that_does_not_even_show_our_own_claim_lets_nothing_through():
    with pytest.raises(StoreUnreadable, match="not known"):
        fence(MemoryStore(), LINEAGE, 1)


@pytest.mark.parametrize("ask", [partial(fence, mine=1), partial(highest_above, mine=1)])
def test_a_name_that_is_none_of_ours_is_no_answer(ask):
    store = claimed(1)
    store.objects[f"es1/{LINEAGE}/e9zz"] = b""
    with pytest.raises(StoreUnusable, match="e9zz") as refused:
        ask(store, LINEAGE)
    assert refused.value.exit_code == 2, "nobody runs that again by himself"
    assert "Delete that object" in refused.value.hint


@given(st.integers(-1, 1_000), st.integers(-1, 1_000))
def test_prefixes_cover_exactly_what_lies_between_the_highest_first(above, below):
    prefixes = list(covering(3, above, below))
    covered = [f"{n:03}" for n in range(999, -1, -1) if f"{n:03}".startswith(tuple(prefixes)) and prefixes]
    assert covered == [f"{n:03}" for n in range(999, -1, -1) if above < n < below]
    assert [p.ljust(3, "9") for p in prefixes] == sorted((p.ljust(3, "9") for p in prefixes), reverse=True)
    assert len(prefixes) <= 2 * 3 * 9
