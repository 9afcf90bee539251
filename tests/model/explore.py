"""Every state that can be reached, the nearest first: so the first broken promise comes with its shortest story."""

from __future__ import annotations

from typing import NamedTuple

from tests.model.protocol import start, steps
from tests.model.values import Scene, State


class Explored(NamedTuple):
    states: int
    depth: int
    """So many events were the longest way to a new state."""
    is_whole: bool
    """Whether nothing was left out: no bound was met but those of the scene."""
    broken: str = ""
    trace: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.broken:
            return f"{self.states} states, {self.depth} deep{'' if self.is_whole else ', not all of them'}"
        story = "".join(f"\n  {number}. {event}" for number, event in enumerate(self.trace, 1))
        return f"broken: {self.broken}\nafter {self.states} states, in {len(self.trace)} events:{story}"


def explore(scene: Scene, *, most: int = 10_000_000) -> Explored:
    """Breadth first, until a promise is broken, nothing is left, or `most` states were seen."""
    first = _canonical(start(scene))
    came_from: dict[State, tuple[State, str] | None] = {first: None}
    now, depth = [first], 0
    while now:
        following: list[State] = []
        for state in now:
            for label, bare, broken in steps(state, scene):
                after = _canonical(bare)
                if broken:
                    return Explored(len(came_from), depth + 1, False, broken, (*_story(came_from, state), label))
                if after not in came_from:
                    came_from[after] = (state, label)
                    following.append(after)
            if len(came_from) > most:
                return Explored(len(came_from), depth + 1, False)
        depth, now = depth + bool(following), following
    return Explored(len(came_from), depth, True)


def _canonical(state: State) -> State:
    """Machines of one kind are alike, so which is which makes no difference."""
    return state._replace(machines=tuple(sorted(state.machines)))


def _story(came_from: dict[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    events: list[str] = []
    while (before := came_from[state]) is not None:
        state, label = before
        events.append(label)
    return tuple(reversed(events))
