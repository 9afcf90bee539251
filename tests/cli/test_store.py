"""Checkpoints from outside: what the command says of them, what it restores elsewhere, and what it refuses."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from endstate_action.state.keys import CheckpointKey
from endstate_action.state.seal import derive_key, open_sealed, seal
from endstate_action.state.session import SessionStore, State
from endstate_action.system.tree import scan
from tests.support.command import Ran, bash, begin, calls, endstate, script, wait_for
from tests.support.repos import Repo

pytestmark = pytest.mark.slow

KEY = "a-secret-that-outlives-the-job"
SECRET = "sk-ant-this-is-a-secret-of-32-chars"
WRITE = ("write", {"path": "a.txt", "content": "x\n"})
NO_KEY = {"ENDSTATE_STATE_KEY": "", "ANTHROPIC_API_KEY": ""}


@dataclass
class Place:
    """An origin, a store, and as many machines as one likes, each with a depth-1 clone."""

    path: Path
    replies: list[dict[str, Any]] = field(default_factory=list)
    machine: int = 0

    @property
    def origin(self) -> Repo:
        return Repo(self.path / "origin")

    @property
    def store(self) -> Path:
        return self.path / "store"

    @property
    def workspace(self) -> Path:
        return self.path / f"machine-{self.machine}" / "work"

    def clone(self) -> Path:
        """A machine of its own; whatever was on the last one is gone."""
        shutil.rmtree(self.path / f"machine-{self.machine}", ignore_errors=True)
        self.machine += 1
        self.workspace.parent.mkdir()
        Repo(self.path).git("clone", "--quiet", "--depth=1", f"file://{self.origin.path}", str(self.workspace))
        return self.workspace

    def run(self, *arguments: str, env: dict[str, str] | None = None, store: str = "") -> Ran:
        given = {"ENDSTATE_STATE_KEY": KEY} | (env or {})
        return endstate(self.workspace, "run", *arguments, *self.options(store), env=given)

    def options(self, store: str = "") -> tuple[str, ...]:
        playing = script(self.workspace, *self.replies)
        return (*playing, "--instructions", "none", "--store", store or f"dir:{self.store}")

    def ask(self, *arguments: str, key: str = KEY) -> Ran:
        return endstate(self.workspace, *arguments, "--store", f"dir:{self.store}", env={"ENDSTATE_STATE_KEY": key})

    def checkpoints(self) -> list[Path]:
        return sorted(self.store.glob("es1/*/c*"))

    def session(self) -> str:
        (folder,) = (self.store / "es1").iterdir()
        return folder.name

    def state(self) -> State:
        return SessionStore(self.workspace / ".endstate" / "sessions").read(self.session())

    def killed(self) -> None:
        """A run that was killed in its second step, and its machine with it; on another one now."""
        marker = self.path / "reached"
        marker.unlink(missing_ok=True)
        stuck = calls(("write", {"path": "b.txt", "content": "b\n"}), bash(f"echo x > {marker}; sleep 60"))
        self.replies = [calls(WRITE), stuck, {"text": "done"}]
        self.clone()
        process = begin(self.workspace, "run", "do it", *self.options(), env={"ENDSTATE_STATE_KEY": KEY})
        wait_for(marker)
        process.kill()
        process.communicate()
        self.clone()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    found = Place(tmp_path, [calls(WRITE), {"text": "done"}])
    found.origin.path.mkdir()
    found.origin.git("init", "--quiet", "--initial-branch=main")
    found.origin.commit({"app.py": "x = 1\n"}, "begin")
    found.clone()
    return found


def everything(*roots: Path) -> list[str]:
    """Names, content and kinds of all that is there."""
    return [scan(root, ()).tree_hash if root.exists() else "nothing" for root in roots]


# What is said


def test_the_first_lines_say_where_checkpoints_go(place: Place) -> None:
    ran = place.run("do it")

    assert ran.code == 0
    first, second, *_ = ran.err.splitlines()
    assert "checkpoints: dir" in first
    assert second.startswith("checkpoints: dir, the first one is stored (")
    assert place.checkpoints()


def test_without_a_secret_that_outlives_the_job_nothing_is_shipped_and_that_is_said(place: Place) -> None:
    ran = place.run("do it", "--json", env=NO_KEY)

    assert ran.code == 0
    assert "checkpoints: none leaves this machine, since there is no secret that outlives this job" in ran.err
    assert "ENDSTATE_STATE_KEY" in ran.err
    assert ran.json["durability"] == "none"
    assert not place.store.exists()


def test_a_secret_that_is_too_short_is_refused_unspent(place: Place) -> None:
    ran = place.run("do it", env={"ENDSTATE_STATE_KEY": "short"})

    assert ran.code == 2
    assert "fewer than 16 characters" in ran.err
    assert not place.store.exists()


def test_with_require_durable_a_run_that_cannot_ship_ends_unspent(place: Place) -> None:
    (place.path / "file").write_text("in the way")
    for ran in (
        place.run("do it", "--require-durable", env=NO_KEY),
        place.run("do it", "--require-durable", store="none"),
    ):
        assert ran.code == 2, ran.err
        assert "Checkpoints cannot leave this machine" in ran.err
        assert "nothing was run or spent" in ran.err
    # Even without that option, a store that was named and cannot be asked is no beginning.
    assert place.run("do it", store=f"dir:{place.path}/file/below").code == 75
    assert not (place.workspace / "a.txt").exists()


def test_a_store_inside_the_workspace_is_refused(place: Place) -> None:
    for inside in ("store", ".endstate/store", "../work/x"):
        ran = place.run("do it", store=f"dir:{inside}")
        assert ran.code == 2, inside
        assert "workspace" in ran.err
        assert not (place.workspace / "a.txt").exists()


# A fresh machine


@pytest.mark.parametrize("named", [True, False])
def test_a_killed_run_is_resumed_on_a_fresh_clone(place: Place, named: bool) -> None:
    place.killed()

    ran = place.run("--resume", "--json", *(["--session", place.session()[:6]] if named else []))

    assert ran.code == 0, ran.err
    assert ran.json["attempt"] == 2
    assert ran.json["restored-from"].startswith(f"es1/{place.session()}/c0001-")
    assert ran.json["durability"] == "dir"
    assert "Restored from es1/" in ran.err
    assert [(place.workspace / name).read_text() for name in ("a.txt", "b.txt")] == ["x\n", "b\n"]
    assert [s["action"] for s in ran.json["settlements"]] == ["refuse"]


def test_a_finished_session_is_reported_on_a_fresh_machine_without_a_request(place: Place) -> None:
    ended = place.run("do it", "--json").json
    place.clone()
    place.replies = []  # whoever asks the model now fails

    ran = place.run("--resume", "--json")

    assert ran.code == 0, ran.err
    assert (ran.json["final-message"], ran.json["tree-hash"]) == ("done", ended["tree-hash"])
    assert (place.workspace / "a.txt").read_text() == "x\n"


def test_with_nothing_in_the_store_there_is_nothing_to_resume(place: Place) -> None:
    place.store.mkdir()
    for arguments in ((), ("--session", "0123456789ab")):
        ran = place.run("--resume", *arguments)
        assert ran.code == 12
        assert "There is no" in ran.err


def test_looking_changes_nothing(place: Place) -> None:
    place.killed()
    before = everything(place.store, place.workspace)

    inspected = place.ask("sessions", "inspect")
    dry = place.ask("restore", "--dry-run")
    shown = json.loads(place.ask("restore", "--dry-run", "--json").out)

    assert everything(place.store, place.workspace) == before
    newest = place.checkpoints()[-1]
    assert (inspected.code, dry.code) == (0, 0)
    for said in (inspected.out, dry.out):
        assert f"would restore es1/{place.session()}/{newest.name}" in said
        assert "opens: " in said
    assert shown[0]["checkpoints"][0]["key"].endswith(newest.name)


def test_a_restore_that_is_no_dry_run_points_to_resume(place: Place) -> None:
    place.killed()
    ran = place.ask("restore")
    assert ran.code == 2
    assert "--resume" in ran.err


# What cannot be used


def test_another_key_is_not_no_checkpoint(place: Place) -> None:
    place.killed()
    before = everything(place.workspace)

    ran = place.run("--resume", env={"ENDSTATE_STATE_KEY": "another-secret-that-is-long"})
    dry = place.ask("restore", "--dry-run", key="another-secret-that-is-long")

    assert (ran.code, dry.code) == (12, 12)
    assert "it was sealed with another key" in ran.err
    assert "Put back the secret" in ran.err
    assert "sealed with another key" in dry.out
    assert everything(place.workspace)[0] == before[0] or not (place.workspace / "a.txt").exists()
    assert place.run("--resume").code == 0


def swap(newest: Path, older: Path) -> None:
    newest.write_bytes(older.read_bytes())


def cut(newest: Path, older: Path) -> None:
    newest.write_bytes(newest.read_bytes()[:-40])


def flip(newest: Path, older: Path) -> None:
    data = bytearray(newest.read_bytes())
    data[-1] ^= 1
    newest.write_bytes(bytes(data))


def replace_with_nonsense(newest: Path, older: Path) -> None:
    newest.write_bytes(b"nothing that was ever sealed")


@pytest.mark.parametrize("damage", [swap, cut, flip, replace_with_nonsense])
def test_a_damaged_newest_entry_is_set_aside_and_said(place: Place, damage: Callable[[Path, Path], None]) -> None:
    """What it knew of is nothing outside: else there would be a gap."""
    place.replies = [calls(WRITE), calls(("write", {"path": "b.txt", "content": "b\n"})), {"text": "done"}]
    assert place.run("do it").code == 0
    older, newest = place.checkpoints()[-2:]
    damage(newest, older)
    place.clone()

    ran = place.run("--resume")

    assert ran.code == 0, ran.err
    assert "Not used: checkpoint 1/" in ran.err
    assert f"Restored from es1/{place.session()}/{older.name}" in ran.err
    assert (place.workspace / "b.txt").read_text() == "b\n"


def test_an_entry_under_another_name_is_not_used(place: Place) -> None:
    """Renamed to be the newest of all."""
    place.replies = [calls(WRITE), {"text": "done"}]
    assert place.run("do it").code == 0
    newest = place.checkpoints()[-1]
    key = CheckpointKey.parse(f"es1/{place.session()}/{newest.name}")
    assert key is not None
    forged = newest.with_name(f"c{key.epoch:04}-{key.sequence + 7:06}-{key.effects:05}")
    forged.write_bytes(place.checkpoints()[0].read_bytes())
    place.clone()

    ran = place.run("--resume")

    assert ran.code == 0, ran.err
    assert f"Not used: checkpoint 1/{key.sequence + 7}" in ran.err
    assert newest.name in ran.err


def test_a_newer_format_is_refused_and_no_older_one_is_used_in_its_place(place: Place) -> None:
    assert place.run("do it").code == 0
    newest = place.checkpoints()[-1]
    name, sealing = f"es1/{place.session()}/{newest.name}", derive_key(KEY, explicit=True)
    line, _, rest = open_sealed(sealing, name, newest.read_bytes()).partition(b"\n")
    manifest = json.dumps(json.loads(line) | {"format": 99}).encode()
    newest.write_bytes(seal(sealing, name, manifest + b"\n" + rest))
    place.clone()

    ran = place.run("--resume")

    assert ran.code == 13
    assert "format 99" in ran.err
    assert "newer" in ran.err or "release that wrote it" in ran.err
    assert not (place.workspace / "a.txt").exists()


def test_a_base_commit_that_the_clone_lacks_is_fetched(place: Place) -> None:
    place.killed()
    place.origin.commit({"later.txt": "later\n"}, "later")
    place.clone()
    assert (place.workspace / "later.txt").exists()

    ran = place.run("--resume")

    assert ran.code == 0, ran.err
    assert not (place.workspace / "later.txt").exists()
    assert (place.workspace / "b.txt").exists()
    assert Repo(place.workspace).git("log", "--format=%s") == "begin"


def test_a_base_commit_that_cannot_be_fetched_ends_the_run_and_changes_nothing(place: Place) -> None:
    place.killed()
    place.origin.commit({"later.txt": "later\n"}, "later")
    place.clone()
    Repo(place.workspace).git("remote", "remove", "origin")
    before = scan(place.workspace, (b".git", b".endstate")).tree_hash

    ran = place.run("--resume")

    assert ran.code == 13, ran.err
    assert "which is not in this repository and was not fetched" in ran.err
    assert "Nothing was restored" in ran.err
    assert scan(place.workspace, (b".git", b".endstate")).tree_hash == before
    # It is no half-restored workspace either: something else may begin here.
    place.replies = [calls(WRITE), {"text": "done"}]
    assert place.run("do something else").code == 0


# Secrets


def test_a_secret_in_a_file_does_not_leave_and_the_file_is_named(place: Place) -> None:
    env = {"SOME_API_KEY": SECRET}
    place.replies = [calls(("write", {"path": "b.txt", "content": "b\n"})), {"text": "done"}]
    (place.workspace / "notes.txt").write_text(f"key: {SECRET}\n")
    began = time.monotonic()

    ran = place.run("do it", env=env)

    assert ran.code == 0, ran.err
    assert "checkpoints: none leaves this machine, since notes.txt holds the value of SOME_API_KEY" in ran.err
    assert time.monotonic() - began < 50, "waiting does not take a secret out of a file"
    assert place.checkpoints() == []
    assert SECRET not in ran.err + ran.out
    assert place.run("do it", "--require-durable", env=env).code != 0


# A restore that was killed


def test_a_half_done_restore_is_finished_by_the_next_resume_and_refused_by_anything_new(place: Place) -> None:
    place.killed()
    state = place.workspace / ".endstate"
    assert place.run("--resume", "--session", "0" * 12).code == 12  # makes the state directory
    newest = f"es1/{place.session()}/{place.checkpoints()[-1].name}"
    (state / "restore.json").write_text(json.dumps({"key": newest}))
    before = everything(place.store), scan(place.workspace, ()).tree_hash

    for refused in (place.run("do something else"), place.run("do something else", store="none")):
        assert refused.code == 4, refused.err
        assert f"--resume --session {place.session()}" in refused.err
    assert everything(place.store) == before[0]
    assert (state / "restore.json").exists()
    assert not (place.workspace / "a.txt").exists()

    ran = place.run("--resume")
    assert ran.code == 0, ran.err
    assert not (state / "restore.json").exists()
    assert (place.workspace / "b.txt").read_text() == "b\n"


def test_a_session_that_is_here_does_not_go_on_in_the_half_restored_workspace_of_another(place: Place) -> None:
    place.killed()
    other = place.session()
    place.replies = [calls(WRITE), calls(WRITE)]
    here = place.run("something else", "--max-steps", "1", "--json", store="none").json["session-id"]
    state = place.workspace / ".endstate"
    (state / "restore.json").write_text(json.dumps({"key": f"es1/{other}/{place.checkpoints()[-1].name}"}))

    refused = place.run("--resume", "--session", here)

    assert refused.code == 4, refused.err
    assert other in refused.err
    assert (state / "restore.json").exists()


def test_a_restore_record_that_tells_nothing_is_refused(place: Place) -> None:
    place.killed()
    assert place.run("--resume", "--session", "0" * 12).code == 12
    log = place.workspace / ".endstate" / "restore.json"
    for nonsense in ("", "{}", '{"key": 7}', '{"key": "es1/x"}', "[" * 10_000):
        log.write_text(nonsense)
        ran = place.run("--resume")
        assert ran.code == 4, (nonsense[:20], ran.err)
        assert "Traceback" not in ran.err


# Signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_in_a_shipped_checkpoint(place: Place, number: int) -> None:
    place.replies = [calls(WRITE), {"text": "done", "delay_s": 300}]
    process = begin(place.workspace, "run", "do it", *place.options(), env={"ENDSTATE_STATE_KEY": KEY})
    deadline = time.monotonic() + 30
    while not (place.workspace / "a.txt").exists() or not place.checkpoints():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.5)
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 75, said.decode()
    place.clone()
    place.replies = [calls(WRITE), {"text": "done"}]

    ran = place.run("--resume", "--json")

    assert ran.code == 0, ran.err
    (first, _) = place.state().ended
    assert (first.epoch, first.conclusion) == (1, "interrupted")


def test_the_end_of_the_output_pipe_ends_in_a_shipped_checkpoint(place: Place) -> None:
    place.replies = [calls(WRITE), {"text": "done"}]
    with begin(place.workspace, "run", "do it", *place.options(), env={"ENDSTATE_STATE_KEY": KEY}) as process:
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            stream.close()
        assert process.wait(timeout=60) in (0, 75)
    assert place.checkpoints()


def test_a_session_that_died_before_its_first_checkpoint_is_told_from_one_that_never_was(place: Place) -> None:
    place.replies = [{"text": "done"}]
    assert place.run("do it").code == 0
    for key in place.checkpoints():
        key.unlink()
    place.clone()

    ran = place.run("--resume")

    assert ran.code == 12
    assert "has no checkpoint of session" in ran.err


def test_a_restore_does_not_replace_what_somebody_has_done_in_the_checkout(place: Place) -> None:
    place.replies = [calls(WRITE), {"text": "done"}]
    assert place.run("do it").code == 0
    place.clone()
    (place.workspace / "mine.txt").write_text("mine\n")

    refused = place.run("--resume")

    assert refused.code == 13
    assert "mine.txt" in refused.err
    assert (place.workspace / "mine.txt").read_text() == "mine\n"

    told = place.run("--resume", "--on-mismatch", "continue")

    assert told.code == 0, told.err
    assert not (place.workspace / "mine.txt").exists()
    assert "What was here before is kept as snapshot" in told.err


def test_a_resume_says_why_its_store_was_not_looked_at(place: Place) -> None:
    place.replies = [{"text": "done"}]
    assert place.run("do it").code == 0
    place.clone()

    ran = place.run("--resume", env=NO_KEY)

    assert ran.code == 2
    assert "no secret" in ran.err


def test_a_commit_can_be_made_in_a_checkout_with_another_configuration(place: Place) -> None:
    """A checkout leaves a token of its own in each job's configuration."""
    commit = calls(("git_commit", {"message": "Add it"}))
    place.replies = [calls(WRITE), {"text": "first"}]
    assert place.run("do it").code == 0
    place.clone()
    Repo(place.workspace).git("config", "http.extraheader", "other")
    place.replies = [calls(WRITE), {"text": "first"}, commit, {"text": "second"}]

    ran = place.run("--resume", "and commit")

    assert ran.code == 0, ran.err
    assert Repo(place.workspace).git("log", "-1", "--format=%s").strip() == "Add it"
