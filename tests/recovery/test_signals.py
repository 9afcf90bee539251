"""Asked to stop, a run stops in order: nothing torn, nothing left running, nothing held against the call."""

from __future__ import annotations

import json
import os
import signal
import time
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from endstate_action.state.fold import State
from endstate_action.state.session import SessionStore
from tests.support.command import is_running
from tests.support.crash import INTERRUPTED, Bench
from tests.support.live import ended, run, running, wait_until
from tests.support.messages_api import MessagesApi, answer, call
from tests.support.repos import GitRepo
from tests.support.scenarios import reply, script

pytestmark = pytest.mark.slow

SLEEPER = script(
    reply(
        ("write", {"path": "a", "content": "A"}),
        ("bash", {"command": "sleep 300 & echo $! $$ > pids.part; mv pids.part pids; sleep 300"}),
        ("write", {"path": "b", "content": "B"}),
    ),
    reply(text="Done."),
)
SLOW_MODEL = script(reply(("write", {"path": "a", "content": "A"})), reply(text="Done.", delay_s=300))
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


def journal(workspace: Path) -> State:
    store = SessionStore(workspace / ".endstate" / "sessions")
    return store.read(store.all()[0].id)


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("times", [1, 4])
def test_a_signal_during_a_shell_call_ends_the_call_and_leaves_nothing_running(
    git_repo: GitRepo, number: int, times: int
):
    """However often it comes: a second one must not tear what handles the first."""
    workspace = git_repo().path
    with running(workspace, SLEEPER, "Go.") as process:
        wait_until((workspace / "pids").exists, process)
        for _ in range(times):
            process.send_signal(number)
        code, said = ended(process)
    assert (code, "Traceback" in said) == (INTERRUPTED, False), said
    assert [pid for pid in (workspace / "pids").read_text().split() if is_running(int(pid))] == []
    state = journal(workspace)
    assert [(e.step, e.index) for e in state.start_ended] == [(1, 1)]
    assert state.counted_starts((1, 1)) == 0
    assert state.ended[-1].conclusion == "interrupted"
    assert not (workspace / "b").exists()
    assert run(workspace, SLEEPER, "--resume")[0] == 0
    assert [f.status for f in journal(workspace).finished.values()] == ["ok", "refused", "not_run"]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_while_the_model_answers_ends_the_run_in_a_state_to_resume(git_repo: GitRepo, number: int):
    workspace = git_repo().path
    with running(workspace, SLOW_MODEL, "Go.") as process:
        wait_until((workspace / "a").exists, process)
        wait_until(lambda: bool(journal(workspace).finished), process)
        process.send_signal(number)
        assert ended(process)[0] == INTERRUPTED
    assert [e.conclusion for e in journal(workspace).ended] == ["interrupted"]
    quick = script(*[{k: v for k, v in r.items() if k != "delay_s"} for r in SLOW_MODEL["replies"]])
    assert run(workspace, quick, "--resume")[0] == 0
    assert journal(workspace).is_finished


def signalled_everywhere(bench: Bench, first: int, step: int, **job):
    """SIGTERM at every point from the first record that a signal cannot simply end the process at."""
    caught = next(p["n"] for p in bench.points("exact", kinds=job["kinds"]) if p["what"] == "after frozen")
    last = next(p["n"] for p in bench.points("exact", kinds=job["kinds"]) if p["what"].endswith("ended"))
    for n in count(caught + first, step):
        if n >= last:
            return
        trial = bench.trial("exact")
        code = trial.begin(kill_at=n, signal=signal.SIGTERM, **job)
        # Where nothing was left to do, it is done.
        assert code == INTERRUPTED or trial.state().is_finished, trial.lines("points")[n - 1]
        if code == INTERRUPTED:
            yield trial
        trial.discard()


def check_interrupted(bench: Bench, first: int, step: int, **job) -> None:
    for trial in signalled_everywhere(bench, first, step, **job):
        where = trial.where()
        assert trial.said()["error"] == "Interrupted"
        for store in trial.store.all():
            assert store.state is not None
            assert [e.conclusion for e in store.state.ended] == ["interrupted"], where
            assert all(store.state.counted_starts(place) == 0 for place in store.state.pending), where
        assert trial.go_on() == 0, where
        trial.check(bench.undisturbed("exact"), where)


KINDS = ("record", "tool", "reply")


def test_a_signal_at_any_of_a_few_points_between_records_is_resumed_to_the_same_end(bench: Bench):
    check_interrupted(bench, 2, 7, kinds=KINDS)


@pytest.mark.recovery
@pytest.mark.parametrize("shard", range(2))
def test_a_signal_at_any_point_is_resumed_to_the_same_end(bench: Bench, shard: int):
    check_interrupted(bench, shard, 2, kinds=KINDS, again=signal.SIGINT)


@pytest.mark.parametrize("calls", [(("bash", {"command": "sleep 300"}),), ()], ids=["in a call", "in a reply"])
def test_when_the_time_is_over_the_run_stops_and_can_be_resumed(bench: Bench, calls):
    slow = reply(*calls, text="Wait.") if calls else reply(text="Done.", delay_s=300)
    trial = bench.trial_of(script(slow, reply(text="Done.")))
    assert trial.begin(max_minutes=0.03) == 1
    assert trial.said()["reason"].startswith("max-minutes: ")
    assert trial.state().ended[-1].conclusion == "stopped"
    quick = [{k: v for k, v in r.items() if k != "delay_s"} for r in json.loads(trial.script)["replies"]]
    assert trial.resume(script=json.dumps(script(*quick))) == 0
    assert trial.state().is_finished


ENDLESS = "a" * 60 + "!"
PATTERN = "^(a+)+$"
LONG_EDIT = {"path": "long", "old": ENDLESS, "new": "x"}
RULE = f"policy: {{default: allow, rules: [{{tool: edit, match: '{PATTERN}', decision: deny}}]}}\n"


@pytest.fixture(params=["grep", "a rule of the policy"])
def computing(request: pytest.FixtureRequest, git_repo: GitRepo) -> tuple[Path, dict[str, Any]]:
    """A workspace, and a script whose second reply makes the run compute for ever."""
    begun = reply(("write", {"path": "begun", "content": "A"}))
    if request.param == "grep":
        asked = reply(("grep", {"pattern": PATTERN, "glob": "long"}))
        return git_repo({"long": f"{ENDLESS}\n"}).path, script(begun, asked, reply(text="Done."))
    asked = reply(("edit", LONG_EDIT))
    return git_repo({".github/endstate.yml": RULE}).path, script(begun, asked, reply(text="Done."))


def test_a_regular_expression_makes_no_run_deaf_to_signals(computing: tuple[Path, dict[str, Any]]):
    workspace, asking = computing
    with running(workspace, asking, "Go.") as process:
        wait_until((workspace / "begun").exists, process)
        wait_until(lambda: len(journal(workspace).finished) == 1, process)
        wait_until(lambda: cpu_s(process.pid) > 0.5, process)
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        code, said = ended(process)
    assert (code, "Traceback" in said) == (INTERRUPTED, False), said
    assert time.monotonic() - began < 20  # a search of its own accord ends after 30 s
    assert journal(workspace).ended[-1].conclusion == "interrupted"
    assert all(journal(workspace).counted_starts(place) == 0 for place in journal(workspace).pending)


@pytest.mark.parametrize("computing", ["grep", "a rule of the policy"])
def test_a_regular_expression_ends_with_the_time_of_the_run(bench: Bench, computing: str):
    asked = ("grep", {"pattern": PATTERN, "glob": "long"}) if computing == "grep" else ("edit", LONG_EDIT)
    trial = bench.trial_of(script(reply(("write", {"path": "long", "content": ENDLESS})), reply(asked)))
    if computing != "grep":
        (trial.repo.path / ".github/endstate.yml").write_text(RULE)
    assert trial.begin(max_minutes=0.05) == 1
    assert trial.said()["reason"].startswith("max-minutes: ")
    assert trial.state().ended[-1].conclusion == "stopped"


def cpu_s(pid: int) -> float:
    """How long a process has computed."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_run_killed_in_the_middle_of_a_stream_asks_once_more(git_repo: GitRepo):
    """Through a real connection: half a call of the broken reply is nowhere, and the request is the same."""
    workspace = git_repo().path
    write = answer(call("write", path="a", content="A"))
    with MessagesApi([write, write.stalled(4), answer(call("write", path="b", content="B")), answer("Done.")]) as api:
        arguments = ["--provider", "anthropic", "--base-url", api.url]
        with running(workspace, script(), "Go.", key="k", provider=arguments) as process:
            wait_until(lambda: len(api.requests) == 2, process)
            process.kill()
            assert ended(process)[0] == -signal.SIGKILL
        assert journal(workspace).steps == 1
        with running(workspace, script(), "--resume", key="k", provider=arguments) as process:
            code, said = ended(process)
        assert code == 0, said
        assert api.refused == []
        assert api.bodies[1]["messages"] == api.bodies[2]["messages"]
    assert [r.step for r in journal(workspace).replies] == [1, 2, 3]
    assert [(workspace / name).read_text() for name in "ab"] == ["A", "B"]
