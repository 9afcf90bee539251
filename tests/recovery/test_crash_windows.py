"""What SIGKILL cannot show well: the order of syncs, full and lost disks, state that is taken away during a run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import pytest

from tests.support.crash import KILLED, Bench
from tests.support.scenarios import reply, script

pytestmark = pytest.mark.slow

Event = dict[str, Any]

SQLITE_FULL = 2
BIG = "x" * 30_000 + "\n"


def position(trace: list[Event], after: int, **wanted: Any) -> int:
    """Index of the first event from `after` on that has these words."""
    for at in range(after, len(trace)):
        if wanted.items() <= trace[at].items():
            return at
    raise AssertionError(f"{wanted} does not come after event {after}")


def records(trace: Iterable[Event], kind: str) -> list[int]:
    return [at for at, e in enumerate(trace) if e["event"] == "record" and kind in e["kinds"]]


def test_a_file_is_synced_then_renamed_then_its_directory_is_synced_then_its_call_is_finished(bench: Bench):
    trial = bench.trial("exact")
    assert trial.begin(kinds=(), trace=True) == 0
    trace = trial.lines("trace")
    for name, place, call in (("first.md", "docs/notes", 1), ("app.py", ".", 3)):
        (renamed,) = [at for at, e in enumerate(trace) if e.get("name") == name]
        directory = (trial.repo.path / place).stat().st_ino
        assert trace[renamed]["directory"] == directory
        started, finished = records(trace, "started")[call], records(trace, "finished")[call]
        synced = position(trace, started, event="fsync", inode=trace[renamed]["inode"])
        assert started < synced < renamed < position(trace, renamed, event="fsync", inode=directory) < finished


def test_a_new_directory_is_synced_into_the_one_above_before_its_file_is_there(bench: Bench):
    trial = bench.trial("exact")
    assert trial.begin(kinds=(), trace=True) == 0
    trace = trial.lines("trace")
    (renamed,) = [at for at, e in enumerate(trace) if e.get("name") == "first.md"]
    started = records(trace, "started")[1]
    for above in (".", "docs"):
        assert position(trace, started, event="fsync", inode=(trial.repo.path / above).stat().st_ino) < renamed


def test_a_session_s_file_and_the_way_to_it_are_on_disk_before_its_second_record(bench: Bench):
    trial = bench.trial("exact")
    assert trial.begin(kinds=(), trace=True) == 0
    trace = trial.lines("trace")
    state = trial.repo.path / ".endstate"
    (renamed,) = [at for at, e in enumerate(trace) if e.get("name", "").endswith(".db")]
    first = records(trace, "frozen")[0]
    assert position(trace, renamed, event="fsync", inode=(state / "sessions").stat().st_ino) < first
    for place in (trial.repo.path, state, state / "endstate-state", state / ".gitignore"):
        assert position(trace, 0, event="fsync", inode=place.stat().st_ino) < first


def test_every_record_is_synced_as_it_is_committed(bench: Bench):
    trial = bench.trial("exact")
    assert trial.begin(kinds=(), trace=True) == 0
    levels = [e["level"] for e in trial.lines("trace") if e["event"] == "synchronous"]
    assert levels == [SQLITE_FULL]


def read_a_lot_then_write() -> dict[str, Any]:
    """Three calls; the result of the second does not fit into what is left of the database."""
    calls = (("read", {"path": "app.py"}), ("read", {"path": "big.txt"}), ("write", {"path": "new", "content": "N"}))
    return script(reply(*calls), reply(("publish", {"text": "x"})), reply(text="Done."))


@pytest.mark.parametrize(("fault", "error"), [("max-pages", "DiskFull"), ("read-only", "StateReadOnly")])
def test_a_record_that_cannot_be_written_ends_the_run_before_the_next_call(bench: Bench, fault: str, error: str):
    """B02, B06: exit code 4, nothing runs on a lost record, and the session is as good as before."""
    trial = bench.trial_of(read_a_lot_then_write())
    trial.repo.commit({"big.txt": BIG})
    assert trial.begin(kinds=(), fault=fault) == 4
    assert trial.said()["error"] == error
    if error == "DiskFull":
        assert "disk full" in trial.said()["text"]
    state = trial.state()
    assert set(trial.executions()) <= {(1, 0), (1, 1)}
    assert set(trial.executions()) <= set(state.started)
    assert not (trial.repo.path / "new").exists()
    assert trial.resume() == 0
    trial.kills += 1
    assert [f.status for f in trial.check_invariants().finished.values()] == ["ok"] * 4
    assert (trial.repo.path / "new").read_text() == "N"


TAKEN_AWAY = {
    "the lock is deleted": "rm .endstate/lock",
    "the lock is replaced": "cp .endstate/lock x && rm .endstate/lock && mv x .endstate/lock",
    "the session is deleted": "rm .endstate/sessions/*.db",
    "the session is replaced": "for f in .endstate/sessions/*.db; do cp $f x && mv x $f; done",
    "the state directory is deleted": "rm -rf .endstate",
}


@pytest.mark.parametrize("what", TAKEN_AWAY)
def test_a_run_whose_state_is_taken_away_stops_before_its_next_call(bench: Bench, what: str):
    """C02 too: whoever comes next may get a lock of the same name, so this run must not go on."""
    calls = (("bash", {"command": TAKEN_AWAY[what]}), ("write", {"path": "new", "content": "N"}))
    trial = bench.trial_of(script(reply(*calls), reply(text="Done.")))
    assert trial.begin() == 4
    assert trial.said()["error"] == "StateReplaced"
    assert set(trial.executions()) == {(1, 0)}
    assert not (trial.repo.path / "new").exists()


def test_a_run_whose_lock_was_deleted_can_be_resumed(bench: Bench):
    calls = (("bash", {"command": TAKEN_AWAY["the lock is deleted"]}), ("write", {"path": "new", "content": "N"}))
    trial = bench.trial_of(script(reply(*calls), reply(text="Done.")))
    assert trial.begin() == 4
    assert trial.resume() == 0
    assert [f.status for f in trial.check_invariants().finished.values()] == ["ok", "ok"]


def test_a_session_that_was_deleted_is_not_taken_for_a_finished_one(bench: Bench):
    trial = bench.trial_of(script(reply(("bash", {"command": "rm -rf .endstate"})), reply(text="Done.")))
    assert trial.begin() == 4
    assert trial.resume() == 12


# What the model is told of a workspace that a killed call has changed


@pytest.mark.parametrize("where", ["os.mkdir notes", "after write", "before finished + observed"])
def test_what_an_interrupted_call_left_is_not_blamed_on_somebody_else(bench: Bench, where: str):
    """An empty directory on the way to the file, the file itself, a scan that was kept but not recorded."""
    trial = bench.trial("exact")
    points = bench.points("exact")
    assert trial.begin(kill_at=next(p["n"] for p in points if p["what"] == where)) == KILLED
    assert trial.resume() == 0
    trial.check(bench.undisturbed("exact"))


def test_what_somebody_else_did_between_two_attempts_is_told(bench: Bench):
    trial = bench.trial("exact")
    points = bench.points("exact")
    assert trial.begin(kill_at=next(p["n"] for p in points if p["what"] == "os.mkdir notes")) == KILLED
    trial.repo.write({"docs/other.md": "hand-made\n"})
    assert trial.resume() == 0
    notes = [t.text for t in trial.state().told[1:]]
    assert len(notes) == 1
    assert "changed by somebody else. Changed: docs/other.md (added)." in notes[0]


# Public failures that take a kill


def test_results_that_were_recorded_are_sent_again_byte_for_byte(bench: Bench):
    """A04: killed when the next request has arrived; no synthetic result for a completed call."""
    trial = bench.trial("exact")
    assert trial.begin(kinds=("reply",), kill_at=4) == KILLED
    assert trial.resume() == 0
    killed, resumed = [r["messages"] for r in trial.lines("requests") if r["step"] == 1]
    assert killed == resumed
    assert len([b for b in resumed[-1]["blocks"] if b["type"] == "tool_result"]) == 3
    assert trial.state().settled == []


def test_a_result_and_what_was_seen_after_it_are_recorded_together_or_not_at_all(bench: Bench):
    """A05: killed between the rows of one transaction; there is no second place that could point elsewhere."""
    kinds = ("record", "sql", "tool", "reply")  # whose numbers are the same in every run
    inside = [p["n"] for p in bench.points("exact", kinds=kinds) if p["kind"] == "sql"]
    assert len(inside) == 9  # of three effects, before the first row, between the two, and before the commit
    for n in inside:
        trial = bench.trial("exact")
        assert trial.begin(kinds=kinds, kill_at=n) == KILLED
        state, where = trial.state(), trial.where()
        rows = [kind for _, kind, _ in trial.store.rows(state.begun.session)]
        assert rows[-1] == "started", where
        assert state.pending, where
        trial.discard()


def test_an_empty_text_block_is_never_sent_back(bench: Bench):
    """A09: recorded as it came, with a call after it; killed, resumed, and asked again."""
    odd = reply(("write", {"path": "a", "content": "A"}), text="\u200b")
    trial = bench.trial_of(script(odd, reply(stop_reason="end_turn"), reply(text="Done.")))
    assert trial.begin(kinds=("tool",), kill_at=2) == KILLED
    assert trial.resume() == 0
    state = trial.check_invariants()
    assert state.replies[0].blocks[0]["text"] == "\u200b"
    sent = [b for r in trial.lines("requests") for m in r["messages"] for b in m["blocks"]]
    assert all(b["text"].strip("\u200b ") for b in sent if b["type"] == "text")


def test_an_id_that_the_provider_uses_again_is_another_call(bench: Bench):
    """A18: `t1` writes a, then `t1` writes b; killed in the second."""
    first, second = (reply(("write", {"path": name, "content": name})) for name in "ab")
    first["calls"][0]["id"] = second["calls"][0]["id"] = "t1"
    trial = bench.trial_of(script(first, second, reply(text="Done.")))
    assert trial.begin(kinds=("tool",), kill_at=3) == KILLED
    assert trial.resume() == 0
    trial.check_invariants()
    assert [(trial.repo.path / name).read_text() for name in "ab"] == ["a", "b"]


def test_a_new_prompt_comes_after_the_result_of_what_was_pending(bench: Bench):
    """A06: killed inside a call, resumed with another instruction."""
    trial = bench.trial("exact")
    assert trial.begin(kinds=("tool",), kill_at=4) == KILLED
    assert trial.resume(prompt="And mind the changelog.") == 0
    (request,) = [r for r in trial.lines("requests") if r["step"] == 1]
    assert [b["type"] for b in request["messages"][-1]["blocks"]] == ["tool_result"] * 3 + ["text"]
    trial.check(bench.undisturbed("exact"))


def test_an_outcome_of_a_call_that_nobody_asked_for_is_not_sent(bench: Bench):
    """A03: half of a denied call in the journal; the rest of the session goes on."""
    trial = bench.trial("exact")
    assert trial.begin(kinds=("reply",), kill_at=2) == KILLED
    stray = '{"step":1,"index":7,"call_id":"t9","status":"denied","content":"no","epoch":1,"at":0,"elapsed_s":0}'
    trial.forge("finished", stray)
    assert trial.resume() == 0
    assert "t9" not in (trial.side / "requests").read_text()
    assert trial.end_state() == bench.undisturbed("exact")


def test_what_killed_runs_left_half_made_does_not_pile_up(bench: Bench):
    """C08: killed while its session was made, then inside each of its kinds of files; then resumed."""
    trial = bench.trial("exact")
    made = next(p["n"] for p in bench.points("exact") if ".new-" in p["what"])
    assert trial.begin(kill_at=made) == KILLED
    assert trial.begin(kinds=("tool",), kill_at=4) == KILLED
    for n in (12, 40):
        assert trial.resume(kill_at=n) == KILLED
    assert trial.resume() == 0
    trial.check(bench.undisturbed("exact"))
    state = trial.repo.path / ".endstate"
    left = [path.relative_to(state).as_posix() for path in state.rglob("*")]
    assert [name for name in left if ".new-" in name or name.endswith((".part", ".probe"))] == []
    assert list((state / "tmp").iterdir()) == []
    ours = {".gitignore", "endstate-state", "lock", "call-lock", "sessions", "tmp", "cache", "baseline", "objects"}
    assert {path.name for path in state.iterdir()} == ours


REMOVE = """
import itertools, os, sys
from pathlib import Path
from endstate_action.state.session import SessionStore
store, number = SessionStore(Path(sys.argv[1])), itertools.count(1)
name = store.all()[0].id
sys.addaudithook(lambda event, _: event == "os.remove" and next(number) == int(sys.argv[2]) and os.kill(os.getpid(), 9))
store.remove(name)
"""


def test_a_session_whose_removal_is_killed_is_whole_or_gone(bench: Bench):
    """Never one without what a killed run left in its WAL: that would be a shorter history."""
    for n in range(1, 5):
        trial = bench.trial("exact")
        assert trial.begin(kinds=("tool",), kill_at=4) == KILLED
        records = trial.state().records
        sessions = trial.repo.path / ".endstate" / "sessions"
        done = subprocess.run([sys.executable, "-c", REMOVE, str(sessions), str(n)], check=False)
        assert done.returncode == KILLED
        assert [s.state and s.state.records for s in trial.store.all()] in ([records], [])
        assert trial.go_on() == 0
        assert len({path.name.partition(".")[0] for path in sessions.iterdir()}) == 1
        trial.discard()
