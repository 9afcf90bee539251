"""Nothing happens outside before its start is stored and the fence was read after that, in this order."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

import pytest

from endstate_action.effects import EffectClass
from endstate_action.errors import DiskFull, InputError, Interrupted, ProviderUnavailable, Superseded
from endstate_action.messages import Message, ToolCall, Usage
from endstate_action.shipper import Departed, Shipper, periodic_before
from endstate_action.state.checkpoint.build import Built
from endstate_action.state.epoch import TakenOver, fence
from endstate_action.state.fold import fold
from endstate_action.state.keys import CheckpointKey, claim_key
from endstate_action.state.records import Attempt, Begun, Replied, Started
from endstate_action.state.stores.base import Put, StoreUnreadable
from endstate_action.state.uploader import Uploader
from endstate_action.system.signals import TimeIsUp
from tests.support.checkpoints import LINEAGE, Journal, builder
from tests.support.memory_store import Fault, MemoryStore, Operation

Faults = dict[tuple[Operation, int], Fault]

DENIED: Faults = {("put", n): Fault.DENIED for n in range(99)}
GONE: Faults = {("put", n): Fault.LOST for n in range(999)}


class Clock:
    """Time goes by each time somebody looks; and as one says."""

    def __init__(self, step_s: float = 0.0) -> None:
        self.now, self.step_s = 0.0, step_s

    def __call__(self) -> float:
        self.now += self.step_s
        return self.now


class Silent(MemoryStore):
    """Takes what is put, and does not answer."""

    def put(self, key: str, data: bytes, *, timeout_s: float, drop: Collection[str] = ()) -> Put:
        time.sleep(3600)
        raise AssertionError


class Ship:
    """A shipper with what it stands on; epoch 1 is claimed."""

    def __init__(self, store: MemoryStore | None = None, *, clock: Clock | None = None, **more) -> None:
        self.store = store or MemoryStore()
        self.store.objects[claim_key(LINEAGE, 1)] = b""
        self.journal = Journal()
        self.order: list[str] = []
        self.told: list[Departed] = []
        now = clock or time.monotonic
        self.holds_secret = False
        building = builder(self.journal, scan=lambda text: "A_KEY" if self.holds_secret else None)
        self.uploader = Uploader(building, self.store, lambda: len(self.journal.rows), clock=now)
        self.shipper = Shipper(self.uploader, "memory", self.fence, tell=self.told.append, clock=now, **more)

    def fence(self) -> int | None:
        newest = self.uploader.newest
        self.order.append(f"fence, {newest.records if newest else 0} records shipped")
        found = fence(self.store, LINEAGE, 1)
        return found.epoch if isinstance(found, TakenOver) else None


def test_the_newest_names_of_earlier_attempts_tell_how_many_periodic_ones_there_were():
    """Those that had another reason for certain are exempt: first ones, barriers, and starts from attempt 2 on."""
    store = MemoryStore(lists=False)
    attempts = [Attempt(epoch, 1.0, "0.9", {}, {}, "wal", "scripted", "scripted") for epoch in (1, 2, 4, 5)]
    calls = Message.assistant("", ToolCall("a", "act", {}), ToolCall("a", "act", {})).blocks
    reply = Replied(1, "m1", "scripted", calls, "tool_use", Usage(), None, 1.0, 1)
    starts = [
        Started(1, index, "a", EffectClass(effect), epoch, 1.0, "tag")
        for epoch, index, effect in ((1, 0, "contained"), (2, 0, "contained"), (2, 1, "opaque"), (4, 1, "reads"))
    ]
    for epoch, sequence in ((1, 30), (2, 9), (3, 70), (5, 90)):
        store.objects[str(CheckpointKey(LINEAGE, epoch, sequence, 0))] = b""
    state = fold([Begun("abcdef012345", 1.0, {}), *attempts, reply, *starts])

    # 30 without the first; 9 without the first, a start and a barrier. 3 was no attempt of this session; 4 stored none.
    assert periodic_before(store, LINEAGE, state, 5)() == 29 + 6


def test_a_barrier_ships_all_that_is_recorded_and_then_reads_the_fence():
    ship = Ship()
    ship.journal.start()
    assert ship.shipper.barrier() is None
    assert ship.order == ["fence, 2 records shipped"]


def test_a_store_that_takes_no_more_is_told_once_and_again_when_it_happens_anew():
    ship = Ship()
    ship.shipper.begin()
    troubles = []
    for faults in (DENIED, {}, DENIED):
        ship.store.faults = dict(faults)
        ship.journal.start()
        ship.uploader.ship(5)
        ship.shipper.offer()
        ship.shipper.offer()
        troubles.append(sum(told.problem is not None for told in ship.told))
    assert troubles == [1, 1, 2]
    assert all(told.shipped for told in ship.told)


def test_where_nothing_may_leave_from_the_start_it_is_as_without_a_store():
    ship = Ship(may_be_known=False)
    ship.holds_secret = True
    ship.shipper.begin()
    assert ship.told[-1].store == "none"
    assert (ship.shipper.barrier(), ship.shipper.start()) == (None, None)
    assert ship.order == ["fence, 0 records shipped"]
    ship.store.objects[claim_key(LINEAGE, 4)] = b""
    with pytest.raises(Superseded):
        ship.shipper.barrier()


def test_what_may_not_leave_holds_up_what_an_earlier_checkpoint_would_repeat():
    known, stored = Ship(may_be_known=True), Ship(may_be_known=False)
    stored.shipper.begin()
    for ship in (known, stored):
        ship.holds_secret = True
        ship.journal.start()
        assert "could not be made safe" in (ship.shipper.barrier() or "")
        assert "could not be stored" in (ship.shipper.start() or "")
        assert ship.shipper.is_unfit
    assert stored.told[-1].problem is not None


def test_durability_that_is_required_ends_where_nothing_may_leave():
    ship = Ship(is_required=True)
    ship.holds_secret = True
    with pytest.raises(InputError, match="A_KEY"):
        ship.shipper.begin()


class FullDisk:
    """Makes no checkpoint, today."""

    def build(self, sequence: int) -> Built:
        raise DiskFull("The disk is full.")

    def done(self, sequence: int, outputs: Mapping[str, Any]) -> Built:
        raise DiskFull("The disk is full.")

    def confirmed(self, built: Built) -> Collection[str]:
        return ()


def test_what_another_machine_may_do_better_is_not_final():
    shipper = Shipper(Uploader(FullDisk(), MemoryStore(), lambda: 1), "memory", lambda: None, may_be_known=False)
    shipper.begin()
    assert not shipper.is_unfit
    assert "could not be made safe" in (shipper.barrier() or "")
    required = Shipper(Uploader(FullDisk(), MemoryStore(), lambda: 1), "memory", lambda: None, is_required=True)
    with pytest.raises(ProviderUnavailable, match="disk is full"):
        required.begin()


def test_a_barrier_ships_again_what_was_recorded_since():
    ship = Ship()
    for records in (2, 3, 4):
        ship.journal.start()
        assert ship.shipper.barrier() is None
        assert ship.order[-1] == f"fence, {records} records shipped"


def test_a_barrier_that_meets_a_newer_attempt_ends_this_one():
    ship = Ship()
    ship.store.objects[claim_key(LINEAGE, 4)] = b""
    with pytest.raises(Superseded, match="Attempt 4") as ended:
        ship.shipper.barrier()
    assert ended.value.exit_code == 11


@pytest.mark.parametrize("store", [Silent(), MemoryStore(faults=GONE)], ids=["silent", "lossy"])
def test_where_the_store_fails_the_barrier_says_why_after_a_minute_and_the_fence_is_not_asked(store: MemoryStore):
    clock = Clock(step_s=3.0)
    ship = Ship(store, clock=clock)
    began = time.monotonic()
    refused = ship.shipper.barrier()
    assert refused is not None
    assert refused.startswith("it could not be made safe that it happens only once, since ")
    assert ship.order == []
    assert clock.now >= 55
    assert time.monotonic() - began < 30


def test_where_the_store_denies_the_barrier_does_not_wait():
    ship = Ship(MemoryStore(faults=DENIED))
    began = time.monotonic()
    assert "no writable scopes" in str(ship.shipper.barrier())
    assert time.monotonic() - began < 5


def test_a_fence_that_cannot_be_read_is_no_permission():
    clock = Clock(step_s=1.0)
    ship = Ship(MemoryStore(faults={("first", n): Fault.UNREADABLE for n in range(999)}), clock=clock)
    assert "whether a newer attempt has taken over" in str(ship.shipper.barrier())
    assert clock.now < 90


def test_a_fence_that_can_be_read_at_the_second_look_is_one():
    clock = Clock(step_s=0.5)
    ship = Ship(MemoryStore(faults={("first", 0): Fault.UNREADABLE}), clock=clock)
    assert ship.shipper.barrier() is None
    assert len(ship.order) == 2


def test_a_fence_that_does_not_show_our_own_claim_is_no_permission():
    ship = Ship(clock=Clock(step_s=1.0))
    ship.store.objects.clear()
    assert "does not show the claim of this attempt" in str(ship.shipper.barrier())


@pytest.mark.parametrize("error", [Interrupted("Interrupted by SIGTERM."), TimeIsUp()])
def test_who_is_asked_to_stop_at_a_barrier_stops(error: Exception):
    def check() -> None:
        raise error

    ship = Ship(Silent(), check=check)
    with pytest.raises(type(error)):
        ship.shipper.barrier()


def test_a_start_is_shipped_before_it_runs_and_no_fence_is_asked_since_it_stays_here():
    ship = Ship()
    ship.journal.start()
    assert ship.shipper.start() is None
    assert ship.uploader.newest is not None
    assert (ship.uploader.newest.records, ship.order) == (2, [])


def test_a_start_that_could_not_be_shipped_is_refused():
    assert "its start could not be stored" in str(Ship(MemoryStore(faults=DENIED)).shipper.start())


def test_the_first_checkpoint_is_stored_before_anything_is_spent_and_told():
    ship = Ship()
    ship.shipper.begin()
    (told,) = ship.told
    assert told.store == "memory"
    assert told.shipped == ship.uploader.newest
    assert told.problem is None


@pytest.mark.parametrize(
    ("faults", "error", "said"),
    [(DENIED, InputError, "no writable scopes"), (GONE, ProviderUnavailable, "closed")],
)
def test_where_it_was_required_a_store_that_does_not_take_it_ends_the_run_unspent(faults, error, said):
    ship = Ship(MemoryStore(faults=faults), is_required=True, clock=Clock(step_s=3.0))
    with pytest.raises(error, match=f"{said}.*nothing was run or spent"):
        ship.shipper.begin()
    assert ship.told == []


def test_where_nobody_chose_the_store_one_that_denies_is_as_good_as_none():
    ship = Ship(MemoryStore(faults=DENIED), is_chosen=False)
    ship.shipper.begin()
    (told,) = ship.told
    assert (told.store, told.problem and told.problem.reason) == ("none", "the token has no writable scopes")
    asked = ship.store.requests["put"]
    assert (ship.shipper.barrier(), ship.shipper.start()) == (None, None)
    ship.shipper.offer()
    ship.shipper.soon()
    assert ship.shipper.end().store == "none"
    assert ship.store.requests["put"] == asked


def test_where_somebody_chose_the_store_one_that_denies_lets_nothing_outside_happen():
    ship = Ship(MemoryStore(faults=DENIED), is_chosen=True)
    ship.shipper.begin()
    assert ship.shipper.barrier() is not None


def test_a_store_that_is_out_of_reach_for_a_moment_is_not_given_up():
    """Nobody chose it, and it did not deny: the barrier holds."""
    ship = Ship(MemoryStore(faults={("put", n): Fault.LOST for n in range(4)}), is_chosen=False, clock=Clock(step_s=9))
    ship.shipper.begin()
    assert ship.told[0].store == "none"
    ship.journal.start()
    ship.shipper.barrier()
    assert ship.store.requests["put"] > 1


def test_the_last_checkpoint_has_all_that_is_recorded():
    ship = Ship()
    ship.shipper.begin()
    for _ in range(3):
        ship.journal.note()
    departed = ship.shipper.end()
    assert departed.shipped is not None
    assert departed.shipped.records == 4
    assert max(key for key in ship.store.objects if "/c" in key) == departed.shipped.key


def test_who_was_taken_over_stops_also_where_nothing_is_to_be_done_outside():
    ship = Ship()
    ship.shipper.refuse_superseded()
    ship.store.objects[claim_key(LINEAGE, 2)] = b""
    with pytest.raises(Superseded):
        ship.shipper.refuse_superseded()


def test_who_cannot_ask_whether_he_was_taken_over_goes_on_with_what_stays_here():
    def unreadable() -> int | None:
        raise StoreUnreadable("The store could not be asked.")

    journal = Journal()
    uploader = Uploader(builder(journal), MemoryStore(), lambda: len(journal.rows))
    Shipper(uploader, "memory", unreadable).refuse_superseded()
