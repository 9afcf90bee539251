"""However uploads end and whenever the machine goes away: no confirmed row is lost, and none is restored wrongly."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endstate_action.effects import EffectClass
from endstate_action.state.checkpoint.build import Fold
from endstate_action.state.checkpoint.choose import (
    Damaged,
    Gap,
    Looked,
    NoneFound,
    UseStored,
    choose,
    look,
)
from endstate_action.state.checkpoint.read import Opened
from endstate_action.state.stores.base import Stored
from tests.support.checkpoints import EXPECTED, KEY, Journal, builder, pack_of
from tests.support.memory_store import Fault, MemoryStore

pytestmark = pytest.mark.slow

ON_PUT = (Fault.APPLIED, Fault.LOST, Fault.REFUSED, Fault.RESERVED, Fault.TAKEN, Fault.RATE_LIMITED, Fault.DENIED)


@dataclass
class Task:
    """Attempts one after another, each on a fresh machine: only the store is left of the one before."""

    store: MemoryStore
    journal: Journal = field(default_factory=Journal)
    epoch: int = 1
    sequence: int = 0
    confirmed: list[int] = field(default_factory=lambda: [0, 0])
    """So many rows are known to be stored, by each confirmed checkpoint."""
    superfluous: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.builder = builder(self.journal)

    def work(self, note: int, act: bool, observe: bool) -> None:
        if act:
            self.journal.reply()
            self.journal.start(EffectClass.OPAQUE)
        self.journal.note(note)
        if observe:
            self.journal.observe()

    def ship(self, fault: Fault | None) -> None:
        self.sequence += 1
        built = self.builder.build(self.sequence)
        if fault is not None:
            self.store.faults["put", self.store.requests["put"]] = fault
        answer = self.store.put(built.key, built.data, timeout_s=1, drop=self.superfluous)
        if isinstance(answer, Stored):
            self.superfluous = set(self.builder.confirmed(built))
            self.confirmed.append(built.records)

    def look(self) -> Looked:
        return look(self.store, KEY, EXPECTED)

    def die(self) -> None:
        """And be followed by another attempt."""
        looked = self.look()
        chosen = choose(None, looked.seen, 0)
        if isinstance(chosen, NoneFound | Damaged):
            return
        if isinstance(chosen, Gap):
            # What somebody else put under a name of ours bears witness as well.
            return
        assert isinstance(chosen, UseStored), chosen
        opened = looked.opened[chosen.key]
        self.check(opened, self.confirmed[-1])
        self.journal.rows = list(opened.rows)
        self.epoch, self.sequence = self.epoch + 1, 0
        self.builder = builder(self.journal, epoch=self.epoch, restored=opened.manifest)
        self.superfluous = set()
        self.confirmed.append(len(opened.rows))

    def check(self, opened: Opened, at_least: int) -> None:
        """That it is what this journal was at one moment, and not an earlier one than is known to be stored."""
        number = len(opened.rows)
        assert list(opened.rows) == self.journal.rows[:number]
        assert number >= at_least
        fold = Fold().then(opened.rows)
        assert opened.manifest.root == fold.root
        assert opened.pack == (pack_of(fold.root) if fold.root else None)
        assert opened.key.effects == fold.effects

    def check_choice(self, at_least: int) -> None:
        looked = self.look()
        match choose(None, looked.seen, 0):
            case UseStored(key):
                self.check(looked.opened[key], at_least)
            case Gap(known, started, UseStored(key)):
                assert known < started
                self.check(looked.opened[key], 0)
            case chosen:
                assert at_least == 0, chosen


Step = tuple[int, bool, bool, Fault | None, bool]
STEP = st.tuples(
    st.sampled_from([20, 2_000, 70_000, 150_000]),
    st.booleans(),
    st.booleans(),
    st.none() | st.none() | st.sampled_from(ON_PUT),
    st.sampled_from([False, False, False, True]),
)
STORES = st.sampled_from(["lists", "highest", "newest", "oldest"])


def _store(kind: str) -> MemoryStore:
    return MemoryStore() if kind == "lists" else MemoryStore(lists=False, order=kind)  # type: ignore[arg-type]


@settings(max_examples=40)
@given(STORES, st.lists(STEP, min_size=1, max_size=10))
def test_no_confirmed_row_is_lost_however_uploads_end_and_machines_go(kind, steps: list[Step]):
    task = Task(_store(kind))
    for note, act, observe, fault, dies in steps:
        task.work(note, act, observe)
        task.ship(fault)
        if fault is Fault.TAKEN:
            # Whoever took the name wrote something that is no checkpoint, which a person has to remove or accept.
            task.store.objects = {n: d for n, d in task.store.objects.items() if d != b"of somebody else"}
        task.check_choice(task.confirmed[-1])
        if dies:
            task.die()


@settings(max_examples=25)
@given(STORES, st.lists(STEP, min_size=3, max_size=8))
def test_with_the_newest_damaged_the_one_before_is_still_whole(kind, steps: list[Step]):
    task = Task(_store(kind))
    for note, _, observe, fault, _ in steps:
        task.work(note, act=False, observe=observe)
        task.ship(fault if fault is not Fault.TAKEN else None)
    if task.store.objects:
        task.store.objects[max(task.store.objects)] = b"no seal"
    task.check_choice(sorted(task.confirmed)[-2])


@settings(max_examples=25)
@given(st.lists(STEP, min_size=2, max_size=6), st.randoms(use_true_random=False))
def test_whatever_happens_to_stored_bytes_nothing_wrong_is_restored(steps: list[Step], random):
    task = Task(MemoryStore())
    for note, act, observe, _, _ in steps:
        task.work(note, act, observe)
        task.ship(None)
    names = sorted(task.store.objects)
    victim, other = random.choice(names), random.choice(names)
    data = bytearray(task.store.objects[victim])
    match random.choice(["flip", "cut", "swap", "remove"]):
        case "flip":
            data[random.randrange(len(data))] ^= 1 << random.randrange(8)
            task.store.objects[victim] = bytes(data)
        case "cut":
            task.store.objects[victim] = bytes(data[: random.randrange(len(data))])
        case "swap":
            objects = task.store.objects
            objects[victim], objects[other] = objects[other], objects[victim]
        case _:
            del task.store.objects[victim]
    task.check_choice(0)


@pytest.mark.parametrize("position", range(6))
@pytest.mark.parametrize("fault", ON_PUT[:4])
def test_one_upload_that_fails_at_any_place_costs_nothing_that_was_confirmed(fault, position):
    task = Task(MemoryStore())
    for number in range(6):
        task.work(90_000, act=False, observe=True)
        task.ship(fault if number == position else None)
    task.die()
    assert task.epoch == 2
    assert len(task.journal.rows) == 13 - 2 * (position == 5 and fault is not Fault.APPLIED)
