"""Killed at random, up to four times a run, resumes included, at points and at moments.

A failing trial names its seed; `ENDSTATE_SEED=… pytest tests/recovery/test_random_kills.py -k "[17]"`
repeats it (a kill at a moment, rather than at a point, only nearly).
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.support.crash import KILLED, NAMED, SEED, Bench, Trial
from tests.support.crash_driver import KINDS

pytestmark = pytest.mark.slow

TRIALS = 50
SAMPLE = 12
POINTS = 150
"""About as many kill points as a whole run has."""
SECONDS = 1.0


def killed_at_random(bench: Bench, chance: Random) -> tuple[Trial, str]:
    trial = bench.trial(chance.choice(["exact", "exact", "opaque"]))
    story = trial.script
    for _ in range(chance.randint(1, 4)):
        job: dict[str, Any]
        if chance.random() < 0.3:
            job = {"kill_after_s": chance.uniform(0.02, SECONDS)}
        elif chance.random() < 0.5:
            job = {"kinds": KINDS, "kill_at": chance.randint(1, POINTS)}
        else:
            job = {"kinds": NAMED, "kill_at": chance.randint(1, POINTS // 3)}
        code = trial.go_on(**job)
        story += f"; killed at {trial.where()}" if code == KILLED else f"; ended with {code}"
        assert code in (KILLED, 0), story
    return trial, story


@pytest.mark.parametrize(
    "number", [n if n < SAMPLE else pytest.param(n, marks=pytest.mark.recovery) for n in range(TRIALS)]
)
def test_a_run_that_is_killed_at_random_ends_as_it_should(bench: Bench, number: int):
    print(f"ENDSTATE_SEED={SEED}")
    trial, story = killed_at_random(bench, Random(f"{SEED}/{number}"))
    story = f"ENDSTATE_SEED={SEED}: {story}"
    assert trial.go_on() == 0, story
    if trial.script == "opaque":
        trial.check_opaque(story)
    elif any(s.action in ("give_up", "roll_back") for s in trial.state().settled):
        # Three of the four kills fell into one call: that ends as "not retried", not as an undisturbed run.
        trial.check_invariants(story)
    else:
        trial.check(bench.undisturbed("exact"), story)
    trial.discard()
