"""Two processes, one workspace: one works, the other is told who."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from endstate_action.state.session import SessionStore
from tests.support.live import ended, run, running, wait_until
from tests.support.repos import GitRepo, Repo
from tests.support.scenarios import reply, script

pytestmark = pytest.mark.slow

WAIT = "touch here; for i in $(seq 600); do [ -e go ] && exit; sleep 0.1; done"
WAITING = script(
    reply(("bash", {"command": WAIT}), ("write", {"path": "after", "content": "A"})),
    reply(text="Done."),
)
QUICK = script(reply(("write", {"path": "quick", "content": "Q"})), reply(text="Done."))


@pytest.fixture
def workspace(git_repo: GitRepo) -> Path:
    repo: Repo = git_repo()
    return repo.path


def test_of_two_runs_at_once_the_second_is_told_who_holds_the_workspace(workspace: Path):
    """C06: after a finite time, with an exit code of its own; the first one does not notice."""
    with running(workspace, WAITING, "Go.") as first:
        wait_until((workspace / "here").exists, first)
        for arguments in (["And me."], ["--resume"]):
            code, said = run(workspace, QUICK, *arguments, "--lock-timeout", "0.2")
            assert code == 10
            assert f"process {first.pid} " in said
        assert not (workspace / "quick").exists()
        (workspace / "go").touch()
        assert ended(first)[0] == 0
    assert (workspace / "after").exists()
    assert run(workspace, QUICK, "And me.")[0] == 0


def test_a_waiting_run_begins_the_moment_the_other_is_killed(workspace: Path):
    with running(workspace, WAITING, "Go.") as first:
        wait_until((workspace / "here").exists, first)
        with running(workspace, QUICK, "And me.", "--lock-timeout", "50") as second:
            first.kill()
            assert ended(second)[0] == 0
    assert (workspace / "quick").exists()
    assert not (workspace / "after").exists()


def test_a_run_whose_lock_was_deleted_does_nothing_beside_the_one_that_came_after(workspace: Path):
    """C02: the second gets a lock of the same name; the first stops before its next call."""
    with running(workspace, WAITING, "Go.") as first:
        wait_until((workspace / "here").exists, first)
        (workspace / ".endstate" / "lock").unlink()
        assert run(workspace, QUICK, "And me.")[0] == 0
        (workspace / "go").touch()
        code, said = ended(first)
    assert code == 4
    assert "lock file" in said
    assert not (workspace / "after").exists()
    assert (workspace / "quick").exists()
    unfinished = [s for s in SessionStore(workspace / ".endstate" / "sessions").all() if not s.is_finished]
    assert run(workspace, WAITING, "--resume", "--session", unfinished[0].id)[0] == 0
    assert (workspace / "after").exists()


def test_a_run_beside_one_that_lost_its_lock_cannot_write_into_the_same_session(workspace: Path):
    """Both hold the one session: the journal takes records of one of them only."""
    with running(workspace, WAITING, "Go.") as first:
        wait_until((workspace / "here").exists, first)
        (workspace / ".endstate" / "lock").unlink()
        # Ends what the first left running, as far as it can know; then the first record of either decides.
        beside = run(workspace, WAITING, "--resume")[0]
        assert ended(first)[0] == 4
    assert beside in (0, 4)
    assert beside == 0 or run(workspace, WAITING, "--resume")[0] == 0
    (session,) = SessionStore(workspace / ".endstate" / "sessions").all()
    assert session.state is not None
    assert session.is_finished
    if beside == 0:
        assert [(f.status, f.epoch) for f in session.state.finished.values()] == [("refused", 2), ("not_run", 2)]


def test_a_run_that_waits_for_another_can_be_interrupted(workspace: Path):
    """Nothing is begun, nothing is recorded, and the message is no traceback."""
    with running(workspace, WAITING, "Go.") as first:
        wait_until((workspace / "here").exists, first)
        with running(workspace, QUICK, "And me.", "--lock-timeout", "50") as second:
            assert second.stderr is not None
            assert b"Waiting for process" in second.stderr.readline()
            second.send_signal(signal.SIGINT)
            code, said = ended(second)
        assert (code, "Traceback" in said) == (75, False), said
        assert len(SessionStore(workspace / ".endstate" / "sessions").all()) == 1
        (workspace / "go").touch()
        assert ended(first)[0] == 0
