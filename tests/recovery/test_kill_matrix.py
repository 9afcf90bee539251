"""Killed anywhere, a run ends as if nothing had happened; what cannot be known is said and not repeated.

Every trial is a real process that gets a real SIGKILL at its n-th kill point, n = 1, 2, 3 … until a run
survives, and another process that resumes it in the same directories.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import count

import pytest

from tests.support.crash import KILLED, Bench, Trial
from tests.support.live import run, running
from tests.support.scenarios import EXACT, PROMPT, reply, script

pytestmark = pytest.mark.slow

SHARDS = 8


def killed_everywhere(bench: Bench, kind: str, first: int = 1, step: int = 1, **job) -> Iterator[Trial]:
    """A trial for every kill point of a first attempt, not yet resumed."""
    for n in count(first, step):
        trial = bench.trial(kind)
        code = trial.begin(kill_at=n, **job)
        if code == 0:
            return
        assert code == KILLED
        yield trial
        trial.discard()


@pytest.mark.recovery
@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_kill_point_ends_in_the_tree_and_the_history_of_an_undisturbed_run(bench: Bench, shard: int):
    for trial in killed_everywhere(bench, "exact", 1 + shard, SHARDS):
        where = trial.where()
        assert trial.go_on() == 0, where
        trial.check(bench.undisturbed("exact"), where)


def test_a_sample_of_kill_points_ends_in_the_tree_and_the_history_of_an_undisturbed_run(bench: Bench):
    for trial in killed_everywhere(bench, "exact", 3, 9, kinds=("record", "tool", "reply")):
        where = trial.where()
        assert trial.go_on() == 0, where
        trial.check(bench.undisturbed("exact"), where)


@pytest.mark.parametrize("tool", ["write", "edit", "publish"])
def test_an_effect_that_is_there_after_a_kill_is_adopted_and_not_repeated(bench: Bench, tool: str):
    """The window that cannot be closed: the effect is there, its outcome is not recorded."""
    (point,) = [p["n"] for p in bench.points("exact", kinds=("tool",)) if p["what"] == f"after {tool}"]
    trial = bench.trial("exact")
    assert trial.begin(kinds=("tool",), kill_at=point) == KILLED
    (place,) = trial.state().started.keys() - trial.state().finished.keys()
    assert trial.resume() == 0
    trial.check(bench.undisturbed("exact"))
    assert [s.action for s in trial.state().settled if (s.step, s.index) == place] == ["adopt"]
    assert trial.executions()[place] == 1


def test_a_commit_that_is_there_after_a_kill_is_rolled_back_and_made_again_with_the_same_id(bench: Bench):
    (point,) = [p["n"] for p in bench.points("exact", kinds=("tool",)) if p["what"] == "after git_commit"]
    trial = bench.trial("exact")
    assert trial.begin(kinds=("tool",), kill_at=point) == KILLED
    made = trial.repo.git("rev-parse", "HEAD")
    assert trial.resume() == 0
    trial.check(bench.undisturbed("exact"))
    assert [r.exact for r in trial.state().rolled_back] == [True]
    assert trial.repo.git("rev-parse", "HEAD") == made


@pytest.mark.recovery
@pytest.mark.parametrize("shard", range(2))
def test_a_shell_call_runs_at_most_once_wherever_the_run_is_killed(bench: Bench, shard: int):
    for trial in killed_everywhere(bench, "opaque", 1 + shard, 2, kinds=("record", "tool", "reply")):
        where = trial.where()
        assert trial.go_on() == 0, where
        trial.check_opaque(where)


def test_a_shell_call_that_was_killed_is_answered_and_the_rest_of_its_batch_is_not_run(bench: Bench):
    trial = bench.trial("opaque")
    assert trial.begin(kinds=("tool",), kill_at=4) == KILLED
    assert "after bash" in trial.where()
    assert trial.go_on() == 0
    trial.check_opaque()
    assert [f.status for f in trial.state().finished.values()] == ["ok", "refused", "not_run", "ok", "ok", "ok"]
    assert trial.ledger() == []


FIRST_KILLS = (
    "mkdir",
    "rename",
    "after edit",
    "ledger",
    "after publish",
    "update-index",
    "update-ref",
    "after git_commit",
)


@pytest.mark.recovery
@pytest.mark.parametrize("where", FIRST_KILLS)
def test_a_resume_that_is_killed_is_resumed_as_well(bench: Bench, where: str):
    """The first attempt is killed at the last point of this name, the second at some of its own, in turn."""
    first = [p["n"] for p in bench.points("exact") if where in p["what"]][-1]
    for n in count(1 + FIRST_KILLS.index(where), 11):
        trial = bench.trial("exact")
        assert trial.begin(kill_at=first) == KILLED
        code = trial.go_on(kill_at=n)
        second = f"{where}, then {trial.where()}"
        if code == 0:
            return
        assert trial.go_on() == 0, second
        trial.check(bench.undisturbed("exact"), second)
        trial.discard()


def killed_in_publish(bench: Bench, times: int) -> Trial:
    """Three calls in one batch; the keyed second one is killed before its effect."""
    batch = (
        ("write", {"path": "a", "content": "A"}),
        ("publish", {"text": "x"}),
        ("write", {"path": "b", "content": "B"}),
    )
    trial = bench.trial_of(script(reply(*batch), reply(text="Done.")))
    attempts: Iterator[Callable[..., int]] = iter([trial.begin, *[trial.resume] * (times - 1)])
    for kill_at, attempt in zip([3, *[1] * (times - 1)], attempts, strict=True):
        assert attempt(kinds=("tool",), kill_at=kill_at) == KILLED
        assert trial.where().endswith("before publish")
    return trial


def test_a_call_that_killed_its_run_twice_gets_a_third_start(bench: Bench):
    trial = killed_in_publish(bench, 2)
    assert trial.resume() == 0
    state = trial.check_invariants()
    assert [f.status for f in state.finished.values()] == ["ok", "ok", "ok"]
    assert len(state.started[1, 1]) == 3
    assert len(trial.ledger()) == 1


def test_a_call_that_killed_its_run_three_times_is_not_started_again(bench: Bench):
    """The model is told, the rest of the batch is not run, and the run ends."""
    trial = killed_in_publish(bench, 3)
    assert trial.resume() == 0
    state = trial.check_invariants()
    assert [f.status for f in state.finished.values()] == ["ok", "refused", "not_run"]
    assert state.finished[1, 1].content.startswith("Not retried: it was started 3 times")
    assert state.settled[-2].action == "give_up"
    results = [b for b in trial.lines("requests")[-1]["messages"][-1]["blocks"] if b["type"] == "tool_result"]
    assert [r.get("is_error", False) for r in results] == [False, True, True]
    assert len(state.started[1, 1]) == 3
    assert trial.executions()[1, 1] == 0
    assert trial.ledger() == []
    assert not trial.repo.path.joinpath("b").exists()


def test_a_run_that_dies_before_it_asks_anything_can_be_begun_again(bench: Bench):
    """Killed while the state directory, the session's file and the first records are made."""
    points = [p["n"] for p in bench.points("exact") if p["what"] == "after prompt"]
    for n in range(2, points[0], 8):
        trial = bench.trial("exact")
        assert trial.begin(kill_at=n) == KILLED
        where = trial.where()
        assert trial.begin() == 0, where
        trial.check(bench.undisturbed("exact"), where)


def test_ten_restarts_without_progress_add_nothing_to_the_history(bench: Bench):
    """A38: killed in the middle of a reply again and again; the request stays the same."""
    trial = bench.trial("exact", inputs={"max-resumes": "20"})
    assert trial.begin(kinds=("reply",), kill_at=4) == KILLED
    for _ in range(9):
        assert trial.resume(kinds=("reply",), kill_at=2) == KILLED
    sent = [r["messages"] for r in trial.lines("requests") if r["step"] == 1]
    assert len(sent) == 10
    assert all(messages == sent[0] for messages in sent)
    assert trial.resume() == 0
    trial.check(bench.undisturbed("exact"))


def test_a_run_that_is_killed_too_often_without_progress_stops_with_its_reason(bench: Bench):
    trial = bench.trial("exact", inputs={"max-resumes": "2"})
    assert trial.begin(kinds=("reply",), kill_at=1) == KILLED
    for _ in range(2):
        assert trial.resume(kinds=("reply",), kill_at=1) == KILLED
    assert trial.resume() == 1
    assert trial.said()["reason"].startswith("max-resumes: 3 attempts")
    assert trial.lines("requests") == []


@pytest.mark.recovery
def test_the_command_itself_killed_at_any_moment_ends_in_the_same_tree(bench: Bench):
    """Fresh interpreters throughout, killed 0.1 s later each time, until one is done before its kill."""
    plain = [{**r, "calls": [c for c in r["calls"] if c["tool"] != "publish"]} for r in EXACT["replies"]]
    calm = bench.trial("exact")
    assert run(calm.repo.path, script(*plain), PROMPT)[0] == 0
    expected = calm.end_state()
    for n in range(1, 100):
        trial = bench.trial("exact")
        with running(trial.repo.path, script(*plain), PROMPT) as process:
            time.sleep(0.1 * n)
            if process.poll() is not None:
                return
            process.kill()
            process.wait()
        code, said = run(trial.repo.path, script(*plain), *(["--resume"] if trial.has_prompt() else [PROMPT]))
        assert code == 0, said
        assert trial.end_state() == expected, f"killed after {n} tenths of a second"
        trial.discard()
    raise AssertionError("no run was ever done")
