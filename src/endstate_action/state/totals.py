"""What the task at hand has cost so far, over all its attempts: folds of what is recorded, nothing else."""

from __future__ import annotations

from decimal import Decimal
from itertools import pairwise

from endstate_action.messages import Usage
from endstate_action.state.fold import State
from endstate_action.state.records import Attempt


def attempts_of_task(state: State) -> list[Attempt]:
    """Those that worked on the task at hand: an attempt that ended an earlier one did not."""
    earlier = max((e.epoch for e in state.ended if e.task < state.task), default=0)
    return [a for a in state.attempts if a.epoch > earlier] or state.attempts[-1:]


def may_have_lost(state: State) -> bool:
    """Whether an attempt died without its end on record, or left nothing at all: what it spent may be on no record."""
    attempts, ends = attempts_of_task(state), {e.epoch for e in state.ended}
    if state.begun.bound.get("begun-anew") is True or any(a.epoch not in ends for a in attempts[:-1]):
        return True
    # Whose checkpoints did not open, or were never stored, has left its number alone. Before a task's first attempt a
    # number may be that of one that only said an earlier result again.
    return any(later.epoch - earlier.epoch > 1 for earlier, later in pairwise(attempts))


def total_cost(state: State) -> Decimal | None:
    """US dollars; None as soon as one price is unknown."""
    first = state.first_step_of_task()
    paid = [r.cost_usd for r in state.replies[first:]] + [s.cost_usd for s in state.spent if s.step > first]
    if any(p is None for p in paid):
        return None
    return sum((Decimal(p) for p in paid if p is not None), Decimal(0))


def as_text(usd: Decimal | None) -> str | None:
    """US dollars as outputs and evidence have them: exact, without an exponent."""
    return None if usd is None else format(usd.normalize(), "f")


def unpriced_model(state: State) -> str | None:
    """The model of the task's first reply whose price is unknown."""
    return next((r.model for r in state.replies[state.first_step_of_task() :] if r.cost_usd is None), None)


def total_usage(state: State) -> Usage:
    """Tokens, those of discarded replies included."""
    first = state.first_step_of_task()
    used = [r.usage for r in state.replies[first:]] + [s.usage for s in state.spent if s.step > first]
    return sum(used, Usage())


def effects_started(state: State) -> int:
    """Starts of calls that reach outside the workspace, and of deliveries, as the world has seen them."""
    recorded = sum(started.effect.is_outside for starts in state.started.values() for started in starts)
    return recorded + len(state.delivering) + unrecorded_effects(state)


def unrecorded_effects(state: State) -> int:
    """Those of them that the journal does not have, since a person chose to go on without."""
    return max((attempt.effects_before for attempt in state.attempts), default=0)
