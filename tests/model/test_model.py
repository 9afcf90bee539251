"""No order of events breaks a promise, and each rule of the protocol is there because some order would.

A scene is explored to its end: all that its bounds allow, however long. `scenes.py` says what is tried.
"""

from __future__ import annotations

import pytest

from tests.model.explore import explore
from tests.model.scenes import DEEP, EITHER, MISSED, OPAQUE, SMALL, call, one
from tests.model.values import RULES, Bounds, Scene

SLOWLY_MISSED = {"half a restore"}
"""It takes four crashes at the right moments."""


@pytest.mark.parametrize("name", SMALL)
def test_no_order_of_events_breaks_a_promise(name):
    """Attempts that come one after another, at once, late, on the same machine or another, over a store that fails."""
    explored = explore(SMALL[name])
    print(explored)
    assert not explored.broken, str(explored)
    assert explored.is_whole


@pytest.mark.recovery
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", DEEP)
def test_no_order_of_more_events_breaks_a_promise(name):
    """The same with more attempts and more that goes wrong; up to 310,000 states of each."""
    explored = explore(DEEP[name], most=310_000)
    print(explored)
    assert not explored.broken, str(explored)


@pytest.mark.parametrize(
    "rule", [pytest.param(r, marks=[pytest.mark.recovery] if r in SLOWLY_MISSED else []) for r in RULES]
)
def test_every_rule_is_missed_when_it_is_left_out(rule):
    """What keeps a promise is this rule and no accident; the trace shows the shortest way to break it."""
    scene = MISSED[rule]
    explored = explore(scene._replace(without=rule), most=310_000)
    print(f"without the rule that {RULES[rule]}:\n{explored}")
    assert explored.broken, f"nothing breaks without it: {explored}"


@pytest.mark.parametrize("rule", [r for r in RULES if r not in SLOWLY_MISSED])
def test_the_scene_in_which_a_rule_is_missed_is_sound_with_it(rule):
    """Else the promise that breaks might be one that never held."""
    explored = explore(MISSED[rule])
    assert not explored.broken, str(explored)


TAKEN_OVER = Scene(one(call(OPAQUE)), Bounds(3), false_gaps=True)
"""One is overtaken at its barrier, its successor dies, a third begins."""


def test_what_was_shipped_by_who_was_overtaken_is_no_gap():
    """It shipped its start, saw the fence, and did nothing: its successor misses nothing."""
    explored = explore(TAKEN_OVER)
    assert not explored.broken, str(explored)
    assert explored.is_whole


@pytest.mark.recovery
@pytest.mark.timeout(600)
@pytest.mark.parametrize("bounds", [Bounds(3, damages=1), Bounds(3, evictions=1), Bounds(2, 1, damages=1, offers=1)])
def test_not_counting_them_hides_nothing_that_a_store_loses(bounds):
    fresh_only = not bounds.again  # what is here is not told from what was never claimed, so all names count against it
    scene = Scene(one(call(OPAQUE)), bounds, false_gaps=fresh_only)
    explored = explore(scene, most=310_000)
    print(explored)
    assert not explored.broken, str(explored)


@pytest.mark.recovery
@pytest.mark.timeout(600)
def test_two_attempts_that_did_different_things_are_told_apart_by_their_names():
    """One was overtaken at its barrier, all checkpoints of the other are damaged: both names count one effect."""
    explored = explore(Scene(EITHER, Bounds(3, damages=2)), most=310_000)
    assert not explored.broken, str(explored)
