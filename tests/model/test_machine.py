"""The product itself, driven through the orders of events that the model has: the same promises hold.

Attempts are threads that stop before each step (`puppet.py`); which one moves, dies or begins next is for hypothesis.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from endstate_action.state.fold import State
from endstate_action.state.keys import CheckpointKey
from tests.model.puppet import SESSION, Puppet, World

MOST_ATTEMPTS = 5
PICK = st.integers(0, 99)


class Attempts(RuleBasedStateMachine):
    """Up to five attempts, two of which are often alive at once, on as many machines as they like."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="attempts-"))
        self.world = World()
        self.puppets: list[Puppet] = []
        self.machines = 0

    @property
    def alive(self) -> list[Puppet]:
        return [puppet for puppet in self.puppets if puppet.at is not None]

    @precondition(lambda self: len(self.puppets) < MOST_ATTEMPTS)
    @rule()
    def begin_on_a_fresh_machine(self):
        self.machines += 1
        self._begin(self.folder / str(self.machines))

    @precondition(lambda self: self.machines and len(self.puppets) < MOST_ATTEMPTS)
    @rule(pick=PICK)
    def begin_on_a_used_machine(self, pick):
        folder = self.folder / str(pick % self.machines + 1)
        for puppet in self.alive:
            if puppet.folder == folder:
                puppet.kill()
        self._begin(folder)

    @precondition(lambda self: self.alive)
    @rule(pick=PICK)
    def go_on(self, pick):
        self.alive[pick % len(self.alive)].advance()

    @precondition(lambda self: self.alive)
    @rule(pick=PICK, point=st.sampled_from(["look", "put", "fence", "send", "sent", "reply", "the end"]))
    def go_on_until(self, pick, point):
        puppet = self.alive[pick % len(self.alive)]
        puppet.advance()
        while puppet.at not in (None, point):
            puppet.advance()

    @precondition(lambda self: self.alive)
    @rule(pick=PICK)
    def kill(self, pick):
        self.alive[pick % len(self.alive)].kill()

    @precondition(lambda self: self.machines)
    @rule(pick=PICK)
    def lose_a_machine(self, pick):
        folder = self.folder / str(pick % self.machines + 1)
        for puppet in self.alive:
            if puppet.folder == folder:
                puppet.kill()
        shutil.rmtree(folder, ignore_errors=True)

    @precondition(lambda self: self.world.late_puts)
    @rule(pick=PICK)
    def a_checkpoint_arrives_late(self, pick):
        late = self.world.late_puts
        key, data = late.pop(pick % len(late))
        self.world.store.put(key, data, timeout_s=1.0)

    @precondition(lambda self: self.world.late_sends)
    @rule(pick=PICK)
    def an_effect_arrives_late(self, pick):
        late = self.world.late_sends
        self.world.outside.append(late.pop(pick % len(late))[1])

    @precondition(lambda self: self._newest())
    @rule(bit=st.integers(0, 7))
    def the_newest_checkpoint_is_damaged(self, bit):
        self.world.is_spoiled = True
        objects, key = self.world.store.objects, self._newest() or ""
        objects[key] = objects[key][:-1] + bytes([objects[key][-1] ^ (1 << bit)])

    @invariant()
    def everything_outside_is_there_at_most_once(self):
        assert not _repeated(self.world)

    @invariant()
    def nobody_acts_below_the_highest_claim_and_nothing_is_a_defect(self):
        assert not self.world.problems

    @invariant()
    def who_ends_has_answered_every_call_and_says_what_is_true(self):
        for puppet in self.puppets:
            assert puppet.last is None or not _untrue(self.world, puppet.last)

    @invariant()
    def a_gap_is_reported_only_where_something_was_lost_or_overtaken(self):
        gaps = [puppet for puppet in self.puppets if puppet.ended == "OutcomeUnknown"]
        assert not gaps or self.world.is_spoiled or len(self.puppets) > 2

    def teardown(self) -> None:
        for puppet in self.alive:
            puppet.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _begin(self, folder: Path) -> None:
        puppet = Puppet(self.world, folder)
        self.puppets.append(puppet)
        puppet.begin()

    def _newest(self) -> str | None:
        keys = [key for key in map(CheckpointKey.parse, self.world.store.objects) if key]
        return str(max(keys)) if keys else None


def _drive(examples: int, steps: int, *phases: Phase) -> None:
    """Finding the shortest story takes minutes, which only the deep search takes."""
    run_state_machine_as_test(
        Attempts,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            phases=(Phase.generate, *phases),
            suppress_health_check=list(HealthCheck),
        ),
    )


POINTS = 22
"""An attempt that nobody disturbs stops less often than that."""


@pytest.fixture
def world():
    return World()


@pytest.fixture
def attempt(world, tmp_path):
    """Begins attempts, each on a machine of its own."""
    begun: list[Puppet] = []

    def begin(steps: int | None = None) -> Puppet:
        puppet = Puppet(world, tmp_path / str(len(begun)))
        begun.append(puppet)
        puppet.begin()
        _advance(puppet, steps)
        return puppet

    yield begin
    for puppet in begun:
        if puppet.at is not None:
            puppet.kill()


def test_an_attempt_that_nobody_disturbs_does_everything_once(world, attempt):
    alone = attempt(POINTS)
    assert alone.ended == "success"
    assert [key.rpartition("/")[2] for key, _, _ in world.outside] == ["1.0", "2.0", "2.1"]


@pytest.mark.parametrize("paused", range(POINTS))
def test_who_wakes_up_after_its_successor_does_nothing_again(world, attempt, paused):
    """Paused anywhere, and going on when another has done the rest."""
    first = attempt(paused)
    second = attempt()
    assert second.ended == "success"
    _advance(first)
    assert first.ended in ("Superseded", "success")
    _check(world, first, second)


@pytest.mark.parametrize("paused", range(POINTS))
def test_what_arrives_late_from_the_dead_is_not_done_again(world, attempt, paused):
    """Killed anywhere; what it had under way arrives when its successor has looked already."""
    first = attempt(paused)
    first.kill()
    second = attempt(2)
    _all_late(world)
    _advance(second)
    assert second.ended == "success"
    _check(world, second)


@pytest.mark.recovery
@pytest.mark.timeout(600)
def test_nobody_of_three_does_again_what_another_did(tmp_path):
    """The first is paused anywhere, the second killed anywhere, the third goes to its end; then the first goes on."""
    for paused in range(POINTS):
        for killed in range(paused % 2, POINTS, 2):
            world = World()
            puppets = [Puppet(world, tmp_path / f"{paused}-{killed}-{n}") for n in range(3)]
            for puppet, steps in zip(puppets, (paused, killed, None), strict=True):
                puppet.begin()
                _advance(puppet, steps)
                if puppet is puppets[1] and puppet.at is not None:
                    puppet.kill()
            _all_late(world)
            _advance(puppets[0])
            _check(world, *puppets)


def _advance(puppet: Puppet, steps: int | None = None) -> None:
    """So many steps, or to its end."""
    while puppet.at is not None and steps != 0:
        puppet.advance()
        steps = None if steps is None else steps - 1


def _all_late(world: World) -> None:
    for key, data in world.late_puts:
        world.store.put(key, data, timeout_s=1.0)
    world.outside += [effect for _, effect in world.late_sends]
    world.late_puts, world.late_sends = [], []


def _check(world: World, *puppets: Puppet) -> None:
    assert not world.problems
    assert not _repeated(world)
    for puppet in puppets:
        if puppet.last is not None:
            assert not _untrue(world, puppet.last)


def _repeated(world: World) -> list[str]:
    """The keys of what is there more than once."""
    return [key for key, count in Counter(key for key, _, _ in world.outside).items() if count > 1]


def _untrue(world: World, state: State) -> str:
    """What is wrong with how an attempt says that it has ended."""
    if set(state.finished) != set(state.requested):
        return "every call is answered, once"
    if len(state.prompts) != 1:
        return "an instruction is one row"
    there = {key for key, _, _ in world.outside}
    said = {f"{SESSION}/{step}.{index}" for (step, index), end in state.finished.items() if end.status == "ok"}
    return "" if said <= there else "what is called done is there"


def test_no_order_of_events_breaks_a_promise_of_the_product():
    _drive(12, 25)


@pytest.mark.recovery
@pytest.mark.timeout(600)
def test_no_order_of_more_events_breaks_a_promise_of_the_product():
    _drive(150, 50, Phase.shrink)
