"""The machine is gone, with all that was on it; what survives is the store, and what was done to the world outside.

Every trial is a real process that gets a real SIGKILL at its n-th kill point. Then its workspace, its state, its home
and its temporary files are deleted, and a process on another host, in a depth-1 clone at another path, goes on with
what the store has.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from itertools import count

import pytest

from endstate_action.state.records import Started, decode
from endstate_action.system.tree import scan
from tests.support.cache_server import CacheServer
from tests.support.crash import INTERRUPTED, KILLED, Bench
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


FIRST_KILLS = ("after edit", "after publish", "after git_commit", "after ended")


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


def half_restored(lost: LostBench, first: int, step: int) -> int:
    """The resume is killed at its nth change to the disk, while it restores; how often that left half a restore."""
    at = next(p["n"] for p in lost.points("exact", kinds=("tool",)) if p["what"] == "after git_commit")
    halves = 0
    for n in count(first, step):
        trial = lost.trial("exact")
        assert trial.begin(kinds=("tool",), kill_at=at) == KILLED
        trial.lose()
        assert trial.resume(session=trial.session, kinds=("os",), kill_at=n) == KILLED
        where, log = trial.where(), trial.repo.path / ".endstate" / "restore.json"
        restored = any(s.state and s.state.epoch > 1 for s in trial.store.all())
        if log.exists():
            halves += 1
            looked_at = [(trial.repo.path, (b".endstate",)), (trial.folder / "store", ())]
            before = [scan(place, excluded).tree_hash for place, excluded in looked_at]
            assert trial.begin() == 4, (where, trial.said())
            assert f"--session {trial.session}" in trial.said()["hint"]
            assert [scan(place, excluded).tree_hash for place, excluded in looked_at] == before, where
            assert log.exists()
        assert trial.resume(session=trial.session) == 0, (where, trial.said())
        trial.check(lost.undisturbed("exact"), where)
        assert not log.exists()
        trial.discard()
        if restored:
            return halves
    raise AssertionError("no restore was ever done")


@pytest.mark.recovery
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("shard", range(8))
def test_a_restore_that_is_killed_anywhere_is_done_again_and_nothing_begins_in_its_place(lost: LostBench, shard: int):
    assert half_restored(lost, 1 + shard, 8) > 0


def test_a_restore_that_is_killed_at_a_few_points_is_done_again_and_nothing_begins_in_its_place(lost: LostBench):
    assert half_restored(lost, 9, 31) > 0


def test_from_the_second_attempt_on_a_start_is_shipped_before_it_runs_whatever_it_is(lost: LostBench):
    """It stays in the workspace, but it may take the machine with it."""
    points = {p["what"]: p["n"] for p in lost.points("exact", kinds=("tool",))}
    trial = lost.trial("exact")
    assert trial.begin(kinds=("tool",), kill_at=points["after publish"]) == KILLED
    trial.lose()
    assert trial.go_on(kinds=("tool",), kill_at=1) == KILLED
    assert trial.where().endswith("before git_commit")
    newest = trial.newest()
    assert newest is not None
    assert newest.manifest.about.epoch == 2
    started = [record for _, kind, body in newest.rows if isinstance(record := decode(kind, body), Started)]
    assert started[-1].effect == "contained"


SLOW_S = 1.0
"""So long a store takes for each upload."""


def interrupted(lost: LostBench, first: int, step: int, **job) -> Iterator[tuple[LostTrial, float]]:
    """A signal at every point, with a slow store; and how long it then took to end."""
    for n in count(first, step):
        trial = lost.trial("exact")
        code = trial.begin(kill_at=n, put_s=SLOW_S, kinds=FEW, **job)
        ended = time.monotonic()
        points = trial.lines("points")
        if len(points) < n:
            return
        if code == INTERRUPTED:
            yield trial, ended - points[n - 1]["at"]
        else:
            assert trial.state().is_finished or code == -job["signal"], (trial.where(), code)
        trial.discard()


def check_interrupted(lost: LostBench, first: int, step: int, at_most_s: float, **job) -> int:
    times = 0
    for trial, took_s in interrupted(lost, first, step, **job):
        where, recorded = trial.where(), trial.state()
        assert recorded.ended[-1].conclusion == "interrupted", where
        newest = trial.newest()
        assert newest is not None
        assert len(newest.rows) == recorded.records, f"{where}: the last record was not shipped"
        assert took_s < at_most_s, where
        assert all(recorded.counted_starts(place) == 0 for place in recorded.pending), where
        trial.lose()
        assert trial.go_on() == 0, (where, trial.said())
        state = trial.check_invariants(where)
        assert {f.status for f in state.finished.values()} <= {"ok", "not_run"}, where
        times += 1
    return times


@pytest.mark.recovery
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_at_any_time_ends_in_a_shipped_checkpoint_within_two_seconds(lost: LostBench, number: int):
    assert check_interrupted(lost, 5, 2, 2 * SLOW_S, signal=number) > 5


def test_a_signal_at_a_few_points_ends_in_a_shipped_checkpoint(lost: LostBench):
    assert check_interrupted(lost, 9, 9, 5 * SLOW_S, signal=signal.SIGTERM) > 0


def test_a_start_that_a_signal_ended_at_the_barrier_is_answered_and_not_counted(lost: LostBench):
    at = [p["n"] for p in lost.points("exact", kinds=("record",)) if p["what"] == "after started"][-2]
    trial = lost.trial("exact")
    assert trial.begin(kinds=("record",), kill_at=at, signal=signal.SIGTERM, put_s=SLOW_S) == INTERRUPTED
    state = trial.state()
    assert state.finished[2, 1].status == "not_run"
    assert "interrupted before it began" in state.finished[2, 1].content
    assert state.pending == {}
    assert trial.ledger() == []


def test_when_the_time_is_over_a_checkpoint_is_shipped_as_stopped(lost: LostBench):
    slow = script(reply(("write", {"path": "a", "content": "A"})), reply(text="Done.", delay_s=300))
    trial = lost.trial(json.dumps(slow))
    assert trial.begin(max_minutes=0.05) == 1
    assert trial.said()["reason"].startswith("max-minutes: ")
    recorded, newest = trial.state(), trial.newest()
    assert newest is not None
    assert len(newest.rows) == recorded.records
    assert recorded.ended[-1].conclusion == "stopped"
