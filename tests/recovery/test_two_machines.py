"""Two machines, one task: whoever was taken over finds out before he acts, and what he ships afterwards is not used.

A runner that was believed dead is only paused (SIGSTOP): the retry takes over, and then the first one wakes up.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.crash import Bench, Driver
from tests.support.machines import LostBench, LostTrial

pytestmark = pytest.mark.slow

SUPERSEDED = 11
FEW = ("record", "reply")
LINEAGE = "0123456789ab"

# Between the fence and the effect nobody can be told any more; only what probes and heals helps there.
SENDING = ("before publish", "before bash", "before send", "ledger", "sent")


@pytest.fixture(scope="module")
def lost(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> LostBench:
    return LostBench(bench.driver, tmp_path_factory.mktemp("lost"))


@pytest.fixture(scope="module")
def sleeper(bench: Bench) -> Iterator[Driver]:
    """Another driver, for the machine that is paused."""
    driver = Driver()
    try:
        yield driver
    finally:
        driver.close()


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[0]
    except FileNotFoundError:
        return "gone"


def paused_at(sleeper: Driver, trial: LostTrial, n: int, kinds: tuple[str, ...]) -> int | None:
    """The process, once it has stopped at its nth point; None where it ended before."""
    sleeper.start(trial.job(prompt="Go.", kill_at=n, kinds=kinds, signal=signal.SIGSTOP))
    pid = sleeper.fork()
    deadline = time.monotonic() + 60
    while (state := state_of(pid)) not in ("T", "gone", "Z"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return pid if state == "T" else None


def taken_over(lost: LostBench, sleeper: Driver, first: int, step: int, kinds: tuple[str, ...]) -> Iterator[None]:
    for n in range(first, 10_000, step):
        trial = lost.trial_outside()
        pid = paused_at(sleeper, trial, n, kinds)
        if pid is None:
            assert sleeper.ended() == 0
            return
        where = trial.where()
        if not trial.checkpoints() or where.endswith(SENDING):
            # Nobody can take over what nobody knows of.
            os.kill(pid, signal.SIGKILL)
            sleeper.ended()
            trial.discard()
            continue
        first_machine = trial.machine
        trial.leave()
        assert trial.go_on() == 0, (where, trial.said())
        seen, ledger, newest = trial.outside(), trial.ledger(), trial.checkpoints()[-1]
        os.kill(pid, signal.SIGCONT)
        code = sleeper.ended()
        assert code in (SUPERSEDED, 0), (where, code, trial.said())
        assert (trial.outside(), trial.ledger()) == (seen, ledger), f"{where}: it acted after it was taken over"
        assert newest.epoch == 2
        assert trial.checkpoints()[-1] == newest, f"{where}: its later uploads come before its successor's"
        trial.check_outside(where)
        # What he shipped late is nobody's beginning.
        done = trial.state()
        trial.lose()
        assert trial.resume(session=done.begun.session) == 0
        assert trial.state().replies == done.replies
        assert first_machine == 1
        trial.discard()
        yield


@pytest.mark.recovery
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("shard", range(4))
def test_a_runner_that_wakes_up_after_its_successor_does_nothing_more_outside(
    lost: LostBench, sleeper: Driver, shard: int
):
    assert sum(1 for _ in taken_over(lost, sleeper, 1 + shard, 4, (*FEW, "sql"))) > 0


def test_at_a_sample_of_points_a_runner_that_wakes_up_late_does_nothing_more_outside(lost: LostBench, sleeper: Driver):
    assert sum(1 for _ in taken_over(lost, sleeper, 14, 12, FEW)) > 1


def test_a_runner_that_wakes_up_before_an_effect_ends_and_says_who_took_over(lost: LostBench, sleeper: Driver):
    """Its start was recorded and not yet shipped; the barrier then meets the fence."""
    points = [p["n"] for p in lost.points("exact", kinds=("record",)) if p["what"] == "after started"]
    trial = lost.trial("exact")
    pid = paused_at(sleeper, trial, points[-2], ("record",))
    assert pid is not None
    trial.leave()
    assert trial.go_on() == 0
    os.kill(pid, signal.SIGCONT)
    assert sleeper.ended() == SUPERSEDED
    assert trial.said()["error"] == "Superseded"
    assert "Attempt 2 of this session has taken over" in trial.said()["text"]
    trial.check(lost.undisturbed("exact"))


CLAIMANT = """
import json, pathlib, sys
from endstate_action.state.epoch import claim
from endstate_action.state.stores.directory import DirectoryStore
store = DirectoryStore(pathlib.Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
claimed = [claim(store, sys.argv[2], b"{}").epoch for _ in range(int(sys.argv[3]))]
print(json.dumps(claimed))
"""


def test_of_eight_claimants_exactly_one_wins_each_number(tmp_path: Path):
    rounds = 5
    argv = [sys.executable, "-c", CLAIMANT, str(tmp_path / "store"), LINEAGE, str(rounds)]
    claimants = [subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(8)]
    for one in claimants:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    for one in claimants:
        assert one.stdin is not None
        one.stdin.write("go\n")
        one.stdin.flush()
    won = [json.loads(one.communicate(timeout=60)[0]) for one in claimants]
    numbers = Counter(number for mine in won for number in mine)
    assert set(numbers.values()) == {1}
    assert len(numbers) == 8 * rounds
    assert all(mine == sorted(mine) for mine in won)
