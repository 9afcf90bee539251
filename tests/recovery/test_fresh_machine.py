"""The machine is gone, with all that was on it; what survives is the store, and what was done to the world outside.

Every trial is a real process that gets a real SIGKILL at its n-th kill point. Then its workspace, its state, its home
and its temporary files are deleted, and a process on another host, in a depth-1 clone at another path, goes on with
what the store has.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count

import pytest

from tests.support.cache_server import CacheServer
from tests.support.crash import KILLED, Bench
from tests.support.machines import LostBench, LostTrial
from tests.support.object_server import BUCKET, ObjectServer
from tests.support.scenarios import reply, script

pytestmark = pytest.mark.slow

SHARDS = 16
FEW = ("record", "tool", "reply")


@pytest.fixture(scope="module")
def lost(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> LostBench:
    return LostBench(bench.driver, tmp_path_factory.mktemp("lost"))


def lost_everywhere(lost: LostBench, kind: str, first: int, step: int, **job) -> Iterator[LostTrial]:
    """A trial for every kill point of a first attempt, on its second machine and not yet gone on with."""
    for n in count(first, step):
        trial = lost.trial_outside() if kind == "outside" else lost.trial(kind)
        code = trial.begin(kill_at=n, **job)
        if code == 0:
            return
        assert code == KILLED
        yield trial
        trial.discard()


def check_exact(lost: LostBench, first: int, step: int, **job) -> None:
    for trial in lost_everywhere(lost, "exact", first, step, **job):
        where, missing = trial.where(), trial.not_shipped()
        trial.lose()
        assert trial.go_on() == 0, (where, trial.said())
        trial.check(lost.undisturbed("exact"), where)
        assert trial.repeated() == missing, where


@pytest.mark.recovery
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_wherever_a_machine_is_lost_its_task_ends_in_the_tree_and_the_history_of_an_undisturbed_run(
    lost: LostBench, shard: int
):
    check_exact(lost, 1 + shard, SHARDS)


def test_at_a_sample_of_points_a_lost_machine_changes_nothing_of_the_end(lost: LostBench):
    check_exact(lost, 4, 7, kinds=FEW)


def check_outside(lost: LostBench, first: int, step: int, **job) -> None:
    for trial in lost_everywhere(lost, "outside", first, step, **job):
        where = trial.where()
        trial.lose()
        assert trial.go_on() == 0, (where, trial.said())
        trial.check_outside(where)


@pytest.mark.recovery
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("shard", range(4))
def test_wherever_a_machine_is_lost_nothing_takes_place_twice_that_nobody_can_ask_for(lost: LostBench, shard: int):
    check_outside(lost, 1 + shard, 4, kinds=(*FEW, "sql"))


@pytest.mark.parametrize("tool", ["bash", "send"])
@pytest.mark.parametrize("side", ["before", "after"])
def test_a_machine_that_is_lost_in_an_outside_effect_has_left_its_start_behind(lost: LostBench, tool: str, side: str):
    """Neither done again nor called undone: the model is told that nobody knows."""
    trial = lost.trial_outside()
    points = lost.points(json.dumps(lost_script(lost)), kinds=("tool",))
    at = next(p["n"] for p in points if p["what"] == f"{side} {tool}")
    assert trial.begin(kinds=("tool",), kill_at=at) == KILLED
    assert trial.where().endswith(f"{side} {tool}")
    before = trial.outside()
    newest = trial.newest()
    assert newest is not None
    assert sum(kind == "started" for _, kind, _ in newest.rows) > sum(kind == "finished" for _, kind, _ in newest.rows)
    trial.lose()
    assert trial.go_on() == 0
    trial.check_outside()
    place, word = ((1, 1), "first") if tool == "bash" else ((2, 0), "second")
    assert trial.state().finished[place].status == "refused"
    assert trial.outside()[word] == before[word] == (side == "after")


def lost_script(lost: LostBench) -> dict[str, object]:
    """The script `outside`, for a look at its points."""
    trial = lost.trial_outside()
    return json.loads(trial.script)  # type: ignore[no-any-return]


FIRST_KILLS = ("after edit", "after publish", "after git_commit", "before ended")


def check_twice(lost: LostBench, name: str, first: int, step: int, **job) -> None:
    """Both machines are lost: the first at the last point of this name, the second at some of its own, in turn."""
    at = [p["n"] for p in lost.points("exact", kinds=FEW) if name in p["what"]][-1]
    for n in count(first, step):
        trial = lost.trial("exact")
        assert trial.begin(kinds=FEW, kill_at=at) == KILLED
        trial.lose()
        code = trial.go_on(kill_at=n, **job)
        where = f"{name}, then {trial.where()}"
        if code == 0:
            return
        assert code == KILLED, where
        trial.lose()
        assert trial.go_on() == 0, (where, trial.said())
        trial.check(lost.undisturbed("exact"), where)
        trial.discard()


@pytest.mark.recovery
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", FIRST_KILLS)
def test_a_second_machine_that_is_lost_as_well_changes_nothing_of_the_end(lost: LostBench, name: str):
    check_twice(lost, name, 1 + FIRST_KILLS.index(name), 13)


def test_at_a_sample_of_points_a_second_lost_machine_changes_nothing_of_the_end(lost: LostBench):
    check_twice(lost, "after publish", 3, 9, kinds=FEW)


STORES = ("git-ref", "cache-2", "cache-1", "s3")


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("name", ["after edit", "after publish"])
def test_every_kind_of_store_brings_a_lost_machine_back(lost: LostBench, kind: str, name: str):
    at = next(p["n"] for p in lost.points("exact", kinds=("tool",)) if p["what"] == name)
    with CacheServer() as caches, ObjectServer() as objects:
        option, more = {
            "git-ref": ("git-ref", {}),
            "cache-2": ("cache", caches.env(version=2)),
            "cache-1": ("cache", caches.env(version=1)),
            "s3": (f"s3://{BUCKET}/some", objects.env("s3")),
        }[kind]
        trial = lost.trial("exact", store_option=option, more=more)
        assert trial.begin(kinds=("tool",), kill_at=at) == KILLED, trial.said()
        trial.lose()
        assert trial.go_on() == 0, trial.said()
        trial.check(lost.undisturbed("exact"))
        assert trial.state().epoch == 2
        # The start of a keyed effect was shipped, so its outcome is asked for; an edit may have been lost whole.
        if name == "after publish":
            assert [s.action for s in trial.state().settled] == ["adopt"]
        assert caches.mistakes == []


def test_a_base_commit_that_was_never_pushed_travels_with_the_checkpoint(lost: LostBench):
    trial = lost.trial("exact")
    trial.repo.commit({"local.txt": "only here\n"}, "not pushed")
    assert trial.begin(kinds=("tool",), kill_at=8) == KILLED
    trial.lose()
    assert trial.go_on() == 0, trial.said()
    trial.check_invariants()
    assert (trial.repo.path / "local.txt").read_text() == "only here\n"
    assert trial.repo.git("log", "--format=%s").splitlines() == ["Raise the version", "not pushed", "begin"]


def test_leftovers_of_an_older_database_never_mix_with_a_restored_one(lost: LostBench):
    """The machine is another one, but its disk has an older state of the same session, with all its side files."""
    trial = lost.trial("exact")
    assert trial.begin(kinds=("tool",), kill_at=3) == KILLED
    sessions = trial.repo.path / ".endstate" / "sessions"
    older = {path.name: path.read_bytes() for path in sessions.iterdir()}
    assert any(name.endswith("-wal") for name in older)
    trial.lose()
    assert trial.go_on(kinds=("tool",), kill_at=6) == KILLED
    trial.lose()
    where = trial.repo.path / ".endstate"
    assert trial.resume(session="0" * 12) == 12  # makes the state directory
    for name, data in older.items():
        (where / "sessions" / name).write_bytes(data)
    assert trial.go_on() == 0, trial.said()
    trial.check(lost.undisturbed("exact"))


def test_a_start_is_counted_over_lost_machines_from_the_second_attempt_on(lost: LostBench):
    """A call that takes its machine with it is not started for ever."""
    batch = reply(("write", {"path": "a", "content": "A"}), ("publish", {"text": "x"}))
    trial = lost.trial(json.dumps(script(batch, reply(text="Done."))))
    assert trial.begin(kinds=("tool",), kill_at=3) == KILLED
    for _ in range(2):
        trial.lose()
        assert trial.go_on(kinds=("tool",), kill_at=1) == KILLED
        assert trial.where().endswith("before publish")
    trial.lose()
    assert trial.go_on() == 0
    state = trial.check_invariants()
    assert state.finished[1, 1].content.startswith("Not retried: it was started 3 times")
    assert trial.ledger() == []
