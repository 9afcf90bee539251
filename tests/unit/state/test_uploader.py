"""Checkpoints leave one at a time, the newest wins, and nobody waits for them but at a barrier."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import pytest

from endstate_action.errors import Interrupted, StateError
from endstate_action.state import uploader as uploader_module
from endstate_action.state.checkpoint.build import Built
from endstate_action.state.stores.base import Denied, Put, StoreUnreadable, Unavailable
from endstate_action.state.uploader import CACHE_PACE, EAGER, NotShipped, Pace, Shipped, Uploader
from tests.support.checkpoints import LINEAGE, Journal, builder
from tests.support.memory_store import Fault, MemoryStore

SOON_S = 10.0
"""Nothing here takes that long."""


class SlowStore(MemoryStore):
    """Each upload waits until it is let go."""

    def __init__(self, **more) -> None:
        super().__init__(**more)
        self.in_flight: list[str] = []
        self.most_in_flight = 0
        self.may_pass = threading.Event()

    def put(self, key: str, data: bytes, *, timeout_s: float, drop: Collection[str] = ()) -> Put:
        self.in_flight.append(key)
        self.most_in_flight = max(self.most_in_flight, len(self.in_flight))
        self.may_pass.wait(SOON_S)
        try:
            return super().put(key, data, timeout_s=timeout_s, drop=drop)
        finally:
            self.in_flight.remove(key)


class FullStore(MemoryStore):
    """Takes nothing until somebody has made room."""

    def __init__(self) -> None:
        super().__init__()
        self.is_full = True
        self.asked = 0

    def put(self, key: str, data: bytes, *, timeout_s: float, drop: Collection[str] = ()) -> Put:
        self.asked += 1
        if self.is_full:
            return Denied("it is full", "Make room.", may_pass=True)
        return super().put(key, data, timeout_s=timeout_s, drop=drop)


class SilentStore(MemoryStore):
    """Its first upload is never answered, which is noticed when its time is over."""

    def __init__(self) -> None:
        super().__init__()
        self.waited: list[float] = []

    def put(self, key: str, data: bytes, *, timeout_s: float, drop: Collection[str] = ()) -> Put:
        self.waited.append(timeout_s)
        if len(self.waited) == 1:
            time.sleep(timeout_s)
            return Unavailable("no answer came", is_doubtful=True)
        return super().put(key, data, timeout_s=timeout_s, drop=drop)


class Clock:
    """Seconds, as many as one says."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def uploading(journal: Journal, store: MemoryStore, **more) -> Uploader:
    return Uploader(builder(journal), store, lambda: len(journal.rows), **more)


def wait_until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + SOON_S
    while not true():
        assert time.monotonic() < deadline, "this never came true"
        time.sleep(0.005)


def has_shipped(uploader: Uploader, records: int) -> bool:
    return uploader.newest is not None and uploader.newest.records == records


def puts(store: MemoryStore) -> int:
    return store.requests["put"]


def test_what_was_offered_is_stored_without_anybody_waiting():
    journal, store = Journal(), SlowStore()
    uploader = uploading(journal, store)
    began = time.monotonic()
    uploader.offer()
    assert time.monotonic() - began < 1
    assert store.objects == {}
    store.may_pass.set()
    wait_until(lambda: uploader.newest)
    assert uploader.newest is not None
    assert (uploader.newest.records, list(store.objects)) == (1, [uploader.newest.key])


def test_what_was_offered_while_one_was_in_flight_goes_with_the_next_all_together():
    journal, store = Journal(), SlowStore()
    uploader = uploading(journal, store)
    uploader.offer()
    wait_until(lambda: store.in_flight)
    for _ in range(20):
        journal.note()
        uploader.offer()
    store.may_pass.set()
    wait_until(lambda: uploader.newest and uploader.newest.records == 21)
    assert (puts(store), store.most_in_flight) == (2, 1)


def test_who_waits_does_not_wait_for_the_one_that_is_stuck():
    """A barrier has an upload of its own, and what it ships is newer."""
    journal, store = Journal(), SlowStore()
    uploader = uploading(journal, store)
    uploader.offer()
    wait_until(lambda: store.in_flight)
    journal.note()
    waiting = threading.Timer(0.1, store.may_pass.set)
    waiting.start()
    shipped = uploader.ship(SOON_S)
    assert isinstance(shipped, Shipped)
    assert shipped.records == 2
    assert store.most_in_flight == 2
    wait_until(lambda: len(store.objects) == 2)
    assert uploader.newest == shipped, "an upload that was overtaken came in last, and is not the newest"


def test_what_is_shipped_already_is_not_shipped_again():
    journal, store = Journal(), MemoryStore()
    uploader = uploading(journal, store)
    first = uploader.ship(SOON_S)
    assert uploader.ship(SOON_S) == first
    assert puts(store) == 1


def test_all_that_is_recorded_when_one_begins_to_wait_is_shipped_when_it_ends():
    journal, store = Journal(), MemoryStore(faults={("put", 0): Fault.REFUSED})
    uploader = uploading(journal, store)
    for _ in range(5):
        journal.note()
    shipped = uploader.ship(SOON_S)
    assert isinstance(shipped, Shipped)
    assert shipped.records == 6
    assert puts(store) == 2


@pytest.mark.parametrize("fault", [Fault.APPLIED, Fault.LOST, Fault.RESERVED, Fault.TAKEN])
def test_a_number_that_may_be_taken_is_never_given_again(fault: Fault):
    keys: list[str] = []
    journal, store = Journal(), MemoryStore(faults={("put", 0): fault}, on_put=keys.append)
    shipped = uploading(journal, store).ship(SOON_S)
    assert isinstance(shipped, Shipped)
    assert [key.split("-")[1] for key in keys] == ["000001", "000002"]
    assert shipped.key == keys[1]


def test_an_answer_that_never_comes_ends_the_wait_in_time_and_not_the_upload():
    journal, store, clock = Journal(), SlowStore(), Clock()
    uploader = uploading(journal, store, clock=clock)
    threading.Timer(0.2, lambda: setattr(clock, "now", 60.0)).start()
    outcome = uploader.ship(60)
    assert outcome == NotShipped("the store did not answer within 60 s")
    store.may_pass.set()
    wait_until(lambda: uploader.newest)


def test_one_upload_that_is_never_answered_leaves_time_for_the_next(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(uploader_module, "TRY_S", 0.1)
    journal, store = Journal(), SilentStore()
    outcome = uploading(journal, store).ship(5)
    assert isinstance(outcome, Shipped)
    assert list(store.objects) == [outcome.key]


def test_an_upload_may_take_the_longer_the_more_there_is_to_send(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(uploader_module, "TRY_S", 0.0)
    monkeypatch.setattr(uploader_module, "SLOWEST_BYTES_S", 10_000)
    journal, store = Journal(), SilentStore()
    outcome = uploading(journal, store).ship(5)
    assert isinstance(outcome, Shipped)
    assert [round(seconds, 2) for seconds in store.waited[1:]] == [round(outcome.size / 10_000, 2)]


def test_who_is_asked_to_stop_while_waiting_stops():
    journal, store = Journal(), SlowStore()
    asked = Interrupted("Interrupted by SIGTERM.")

    def check() -> None:
        raise asked

    with pytest.raises(Interrupted):
        uploading(journal, store).ship(60, check)
    store.may_pass.set()


def test_a_store_that_denies_is_not_asked_again():
    journal = Journal()
    store = MemoryStore(faults={("put", n): Fault.DENIED for n in range(9)})
    uploader = uploading(journal, store)
    outcome = uploader.ship(60)
    assert outcome == NotShipped("the token has no writable scopes", "cache-mode: write", is_final=True)
    assert puts(store) == 1
    uploader.offer()
    wait_until(lambda: puts(store) == 2)
    uploader.offer(urgent=True)
    time.sleep(0.05)
    assert puts(store) == 2


def test_a_store_with_no_room_is_waited_for_by_nobody_and_tried_again_later(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(uploader_module, "_BACK_OFF_S", (0.1,))
    journal, store = Journal(), FullStore()
    uploader = uploading(journal, store)
    outcome = uploader.ship(60)
    assert outcome == NotShipped("it is full", "Make room.", is_final=True, may_pass=True)
    assert store.asked == 1
    uploader.offer()
    wait_until(lambda: store.asked >= 3)
    store.is_full = False
    wait_until(lambda: uploader.newest)
    assert uploader.problem is None


def test_what_cannot_be_built_is_answered_at_once_since_waiting_changes_nothing():
    """A secret in a file, say: a minute for each call would not take it out."""

    class Refusing:
        def build(self, sequence: int) -> Built:
            raise StateError("a.txt holds the value of TOKEN", hint="Remove it.")

        def done(self, sequence: int, outputs: Mapping[str, Any]) -> Built:
            raise AssertionError

        def confirmed(self, built: Built) -> Collection[str]:
            raise AssertionError

    store, began = MemoryStore(), time.monotonic()
    outcome = Uploader(Refusing(), store, lambda: 1).ship(60)
    assert outcome == NotShipped("a.txt holds the value of TOKEN", "Remove it.", is_ours=True)
    assert time.monotonic() - began < 5
    assert puts(store) == 0


def test_once_it_can_be_built_again_it_is_shipped():
    journal, store = Journal(), MemoryStore()
    found = ["TOKEN"]
    building = builder(journal, scan=lambda text: found[0] if found else None)
    uploader = Uploader(building, store, lambda: len(journal.rows))
    assert isinstance(uploader.ship(60), NotShipped)
    found.clear()
    assert isinstance(uploader.ship(60), Shipped)
    assert uploader.problem is None


def test_a_store_that_asks_to_wait_is_left_alone_for_so_long_by_everybody():
    clock = Clock()
    journal, store = Journal(), MemoryStore(faults={("put", 0): Fault.RATE_LIMITED}, retry_after_s=100)
    uploader = uploading(journal, store, clock=clock)
    outcome = uploader.ship(60)
    assert outcome == NotShipped("the store asks to wait 100 s", wait_s=100)
    uploader.offer(urgent=True)
    assert uploader.ship(60) == NotShipped("the store asks to wait 100 s", wait_s=100)
    time.sleep(0.05)
    assert puts(store) == 1
    clock.now = 101
    assert isinstance(uploader.ship(60), Shipped)


@pytest.mark.parametrize("pace", [EAGER, CACHE_PACE])
def test_the_interval_grows_and_there_are_so_many_and_no_more(pace: Pace):
    waits = [pace.wait_s(n) for n in range(400)]
    some = [wait for wait in waits if wait is not None]
    assert some == sorted(some)
    # One more than there are waits: the last is followed by none.
    assert len(some) + 1 == (pace.at_most or 401)


def test_periodic_uploads_keep_their_distance_and_urgent_ones_do_not():
    journal, store, clock = Journal(), MemoryStore(), Clock()
    uploader = uploading(journal, store, pace=Pace(first_s=30), clock=clock)
    uploader.offer()
    wait_until(lambda: uploader.newest)
    journal.note()
    uploader.offer()
    time.sleep(0.05)
    assert puts(store) == 1
    journal.note()
    uploader.offer(urgent=True)
    wait_until(lambda: uploader.newest and uploader.newest.records == 3)
    journal.note()
    uploader.offer()
    time.sleep(0.05)
    assert puts(store) == 2


def test_after_the_last_periodic_one_what_is_urgent_still_goes():
    journal, store = Journal(), MemoryStore()
    uploader = uploading(journal, store, pace=Pace(at_most=1))
    uploader.offer()
    wait_until(lambda: uploader.newest)
    for records in range(2, 6):
        journal.note()
        uploader.offer()
        time.sleep(0.02)
        assert puts(store) == records - 1
        uploader.offer(urgent=True)
        wait_until(partial(has_shipped, uploader, records))


def test_those_of_earlier_attempts_count_as_well_and_the_interval_grows_on():
    journal, store, clock, asked = Journal(), MemoryStore(), Clock(), []

    def earlier() -> int:
        asked.append(1)
        if len(asked) == 1:
            raise StoreUnreadable("The store could not be asked.")
        return 5

    uploader = uploading(journal, store, pace=Pace(first_s=1, growth=2, at_most=9), earlier=earlier, clock=clock)
    for records, wait_s in ((1, 1), (2, 2**6), (3, 2**7)):
        uploader.offer()
        wait_until(partial(has_shipped, uploader, records))
        journal.note()
        uploader.offer()
        time.sleep(0.05)
        assert puts(store) == records, "the next one is not due yet"
        clock.now += wait_s
        with uploader._changed:
            uploader._changed.notify_all()
    assert len(asked) == 2
    wait_until(partial(has_shipped, uploader, 4))
    clock.now += 1e9
    journal.note()
    uploader.offer()
    time.sleep(0.05)
    assert puts(store) == 4, "three of before, one that was not known to be the sixth, and those were all"


def test_where_earlier_attempts_have_used_them_all_only_what_is_urgent_goes():
    journal, store = Journal(), MemoryStore()
    uploader = uploading(journal, store, pace=Pace(at_most=3), earlier=lambda: 3)
    for records in range(1, 4):
        uploader.offer()
        time.sleep(0.05)
        assert puts(store) == records - 1
        uploader.offer(urgent=True)
        wait_until(partial(has_shipped, uploader, records))
        journal.note()


def test_what_one_attempt_leaves_behind_has_a_limit(monkeypatch: pytest.MonkeyPatch):
    journal, store = Journal(), MemoryStore()
    monkeypatch.setattr(uploader_module, "MOST_BYTES", 2_000)
    uploader = uploading(journal, store)
    outcomes = []
    for _ in range(9):
        journal.note(400)
        outcomes.append(uploader.ship(SOON_S))
    assert isinstance(outcomes[0], Shipped)
    last = outcomes[-1]
    assert isinstance(last, NotShipped)
    assert last.is_final
    assert sum(map(len, store.objects.values())) <= 2_000


def test_periodic_ones_leave_room_for_those_that_somebody_waits_for(monkeypatch: pytest.MonkeyPatch):
    """Else the result of a large change could never be delivered: its start would not be stored."""
    journal, store = Journal(), MemoryStore()
    monkeypatch.setattr(uploader_module, "FOOTPRINT_BYTES", 2_000)
    uploader = uploading(journal, store)
    for _ in range(9):
        journal.note(400)
        uploader.offer()
        time.sleep(0.05)
    periodic = sum(map(len, store.objects.values()))
    assert 0 < periodic <= 2_000
    for waited in (True, False):
        journal.note(2_000)
        if waited:
            assert isinstance(uploader.ship(SOON_S), Shipped)
        else:
            uploader.offer(urgent=True)
            wait_until(partial(has_shipped, uploader, len(journal.rows)))


def test_what_nothing_needs_any_more_is_dropped_and_the_last_two_stay():
    journal, store = Journal(), MemoryStore()
    uploader = uploading(journal, store)
    for _ in range(12):
        journal.note()
        uploader.ship(SOON_S)
    kept = sorted(store.objects)
    assert uploader.newest is not None
    assert kept[-1] == uploader.newest.key
    # What became superfluous with one upload goes with the next.
    assert 2 <= len(kept) <= 3


def test_after_the_end_nothing_more_is_sent():
    journal, store = Journal(), MemoryStore()
    uploader = uploading(journal, store)
    uploader.close()
    uploader.offer(urgent=True)
    time.sleep(0.05)
    assert puts(store) == 0
    assert isinstance(uploader.ship(SOON_S), Shipped)


def test_a_failed_upload_is_tried_again_by_itself(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(uploader_module, "_BACK_OFF_S", (0.5,))
    journal, store = Journal(), MemoryStore(faults={("put", 0): Fault.REFUSED})
    uploader = uploading(journal, store)
    uploader.offer()
    wait_until(lambda: uploader.problem)
    wait_until(lambda: uploader.newest)
    assert uploader.problem is None
    assert LINEAGE in next(iter(store.objects))
