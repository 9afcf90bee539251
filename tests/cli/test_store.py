"""Checkpoints from outside: what the command says of them, what it restores elsewhere, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from endstate_action.config import DEFAULT_CONFIG
from endstate_action.restoring import restore
from endstate_action.state.checkpoint.choose import look
from endstate_action.state.checkpoint.read import Expected
from endstate_action.state.directory import locate
from endstate_action.state.fold import State
from endstate_action.state.keys import CheckpointKey
from endstate_action.state.seal import derive_key, open_sealed, seal
from endstate_action.state.session import SessionStore
from endstate_action.state.snapshot.pack import apply
from endstate_action.state.stores.directory import DirectoryStore
from endstate_action.system.git import discover
from endstate_action.system.tree import scan
from endstate_action.workplace import Workplace
from tests.support.command import Ran, bash, begin, calls, endstate, script, wait_for
from tests.support.own_disk import on_a_disk_of_its_own
from tests.support.repos import Repo
from tests.support.stores import decline

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
    key: str = KEY

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
        given = {"ENDSTATE_STATE_KEY": self.key} | (env or {})
        return endstate(self.workspace, "run", *arguments, *self.options(store), env=given)

    def options(self, store: str = "") -> tuple[str, ...]:
        playing = script(self.workspace, *self.replies)
        return (*playing, "--instructions", "none", "--store", store or f"dir:{self.store}")

    def ask(self, *arguments: str, key: str = "") -> Ran:
        env = {"ENDSTATE_STATE_KEY": key or self.key}
        return endstate(self.workspace, *arguments, "--store", f"dir:{self.store}", env=env)

    def checkpoints(self) -> list[Path]:
        return sorted(self.store.glob("es1/*/c*"))

    def claims(self) -> list[str]:
        return sorted(path.name for path in self.store.glob("es1/*/e*"))

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
    assert "with --require-durable it would end here" in ran.err
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
        assert "With require-durable, nothing was run or spent" in ran.err
    assert not (place.workspace / "a.txt").exists()


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("{p}/file", "file: Not a directory"),
        ("{p}/file/below", "file/below: Not a directory"),
        ("/dev/null", "/dev/null: Not a directory"),
        ("/proc/no-such", "/proc/no-such: no directory can be made there"),
        ("{p}/dangling", "as where a disk is not mounted"),
    ],
)
def test_a_directory_that_can_never_be_a_store_ends_the_run_at_once_unspent(
    place: Place, where: str, words: str
) -> None:
    (place.path / "file").write_text("in the way")
    (place.path / "dangling").symlink_to(place.path / "not" / "mounted")
    began = time.monotonic()

    for arguments in (("do it",), ("--resume", "--session", "0123456789ab")):
        ran = place.run(*arguments, store=f"dir:{where.format(p=place.path)}")

        # That one which is not there cannot be made is found out by who begins a session.
        is_missing = where.startswith("/proc") and arguments != ("do it",)
        said = "There is no directory /proc/no-such" if is_missing else words
        assert (ran.code, said in ran.err) == (12 if is_missing else 2, True), ran.err
        assert "othing was" in ran.err
        assert "Traceback" not in ran.err
    assert time.monotonic() - began < 40, "nothing of this is tried again for a minute"
    assert not (place.workspace / "a.txt").exists()
    assert not (place.path / "not").exists()


def test_what_is_above_a_store_is_made_before_anything_is_run(place: Place) -> None:
    """What that is worth is said: it may be a disk that is not mounted."""
    ran = place.run("do it", store=f"dir:{place.path}/mnt/deep/endstate")

    assert ran.code == 0, ran.err
    assert (place.path / "mnt" / "deep" / "endstate" / "es1").is_dir()
    assert "survives the loss of its workspace, not of the disk that both are on" in ran.err


ANOTHER_DISK = """
import sys
from pathlib import Path
from tests.cli.test_store import WRITE, Place
from tests.support.command import calls

place = Place(Path(sys.argv[1]), machine=1, replies=[calls(WRITE), {"text": "done"}])
for store in (place.path / "disk" / "store", place.store):
    ran = place.run("do it", store=f"dir:{store}")
    assert ran.code == 0, ran.err
    print(ran.err.partition("): ")[2].partition("\\n")[0])
"""


def test_what_a_run_survives_is_said_as_far_as_it_is_known(place: Place) -> None:
    done = on_a_disk_of_its_own(place.path / "disk", "size=8m", ANOTHER_DISK, place.path)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "this run survives the loss of this machine if that disk does",
        "this run survives the loss of its workspace, not of the disk that both are on",
    ]


FULL = """
import os, sys, time
from pathlib import Path
from tests.cli.test_store import WRITE, Place
from tests.support.command import bash, calls

place, when = Place(Path(sys.argv[1]), machine=1), sys.argv[2]
disk, filler = place.path / "disk", place.path / "disk" / "filler"
store = f"dir:{disk / 'store'}"
stat = os.statvfs(disk)
page = stat.f_bsize
fill = f"head -c {{}} /dev/zero > {filler}"
place.replies = [calls(WRITE), calls(bash(fill.format(stat.f_blocks * page))), calls(WRITE), {"text": "done"}]
if when != "later":
    # A claim takes one block, a checkpoint more.
    filler.write_bytes(bytes((stat.f_blocks - (when == "checkpoint")) * page))
    place.replies = [calls(WRITE), {"text": "done"}]
began = time.monotonic()
ran = place.run("do it", *sys.argv[3:], store=store)
print(ran.err, file=sys.stderr)
assert time.monotonic() - began < 30, "somebody has waited for room"
print("exit", ran.code, *sorted(path.name[0] for path in disk.glob("store/es1/*/*")))
if when == "claim":
    filler.unlink()
    assert place.run("do it", *sys.argv[3:], store=store).code == 0
"""
MADE_ROOM = "Make room in"


@pytest.mark.parametrize("options", [(), ("--require-durable",)], ids=["", "required"])
def test_a_full_disk_under_the_store_ends_the_run_at_once_unspent(place: Place, options: tuple[str, ...]) -> None:
    done = on_a_disk_of_its_own(place.path / "disk", "size=256k", FULL, place.path, "claim", *options)

    assert done.returncode == 0, done.stderr
    assert done.stdout == "exit 2\n", done.stderr
    assert "disk/store: No space left on device. Nothing was run and nothing was spent." in done.stderr
    assert f"{MADE_ROOM} {place.path}/disk/store" in done.stderr


def test_a_disk_that_is_full_before_the_first_checkpoint_ends_a_run_that_requires_it(place: Place) -> None:
    disk = place.path / "disk"

    done = on_a_disk_of_its_own(disk, "size=256k", FULL, place.path, "checkpoint", "--require-durable")

    assert (done.returncode, done.stdout) == (0, "exit 2 e\n"), done.stderr
    assert "No space left on device. With require-durable, nothing was run or spent." in done.stderr
    assert f"{MADE_ROOM} {disk}/store" in done.stderr
    assert not (place.workspace / "a.txt").exists()


@pytest.mark.parametrize("when", ["checkpoint", "later"])
def test_a_run_goes_on_over_a_full_disk_and_says_so_without_a_wait(place: Place, when: str) -> None:
    disk = place.path / "disk"

    done = on_a_disk_of_its_own(disk, "size=256k", FULL, place.path, when)

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("exit 0"), done.stderr
    assert ("c" in done.stdout.split()) == (when == "later")
    rest = "what was recorded since is on this machine only" if when == "later" else "all is on this machine only"
    assert f"The last one was not stored, so {rest}: {disk}/store: No space left on device" in done.stderr
    assert f"{MADE_ROOM} {disk}/store" in done.stderr
    assert (place.workspace / "a.txt").exists()


def test_a_store_that_is_removed_during_a_run_is_told_at_once_with_what_it_held(place: Place) -> None:
    place.replies = [calls(WRITE), calls(bash(f"rm -r {place.store}")), calls(bash("echo 1 >> ran")), {"text": "done"}]
    began = time.monotonic()

    ran = place.run("do it", "--sandbox", "off", "--json")

    assert time.monotonic() - began < 30, "somebody has waited for it"
    gone = f"the directory {place.store} is gone, and what was stored in it"
    assert ran.code == 0, ran.err
    assert f"checkpoints: none is stored any more, since {gone}. Put it back as it was" in ran.err
    assert f"The last one was not stored, so all is on this machine only: {gone}" in ran.err
    assert "the newest that was stored" not in ran.err
    assert "--require-durable" not in ran.err
    assert (ran.json["durability"], place.store.exists()) == ("none", False)
    assert not (place.workspace / "ran").exists(), "what has to wait for a store is not run"


def test_a_store_named_from_one_directory_is_found_from_another(place: Place) -> None:
    """What is said of how to go on names it so that it is the same store wherever that is typed."""
    place.replies = [calls(WRITE), calls(WRITE), {"text": "done"}]
    first = place.run("do it", "--max-steps", "1", store="dir:../kept")
    assert first.code == 1, first.err
    (folder,) = (place.workspace.parent / "kept" / "es1").iterdir()
    (said,) = [line for line in first.err.splitlines() if "if it dies" in line]
    named = shlex.split(said.partition("if it dies: ")[2])
    where = Path(named[named.index("--store") + 1].removeprefix("dir:"))

    assert where.is_absolute()
    assert where.resolve() == place.workspace.parent / "kept"
    below = place.workspace / "below"
    below.mkdir()
    options = [*script(place.workspace, *place.replies), "--instructions", "none", "--store", f"dir:{where}"]
    given = ("--resume", "--session", folder.name, "--working-directory", "..", "--max-steps", "9")
    ran = endstate(below, "run", *given, *options, env={"ENDSTATE_STATE_KEY": KEY})
    assert ran.code == 0, ran.err
    assert max((place.workspace.parent / "kept" / "es1" / folder.name).glob("e*")).name == "e0002"


def test_a_resume_goes_on_on_the_terms_of_the_attempt_before(place: Place) -> None:
    """Without its store, another machine could do once more what this one does; elsewhere, it could be read."""
    place.replies = [calls(WRITE), calls(WRITE), {"text": "done"}]
    address = ("--base-url", "http://127.0.0.1:9/v1")
    first = place.run("do it", "--max-steps", "1", "--sandbox", "off", "--require-durable", *address)
    assert first.code == 1, first.err
    playing = [*script(place.workspace, *place.replies)[:-2], "--instructions", "none"]

    def resume(*options: str) -> Ran:
        return endstate(place.workspace, "run", "--resume", *playing, *options, env={"ENDSTATE_STATE_KEY": KEY})

    kept = {"base-url": address[1], "sandbox": "off", "store": f"dir:{place.store}", "require-durable": "true"}
    again = resume("--max-steps", "2", "--sandbox", "auto")
    assert f"As the attempt before: --base-url {address[1]} --store dir:{place.store} --require-durable\n" in again.err
    assert f" --store dir:{place.store} --require-durable" in again.err.partition("if it dies:")[2]
    assert (place.state().attempts[-1].given, place.claims()) == (kept | {"sandbox": "auto"}, ["e0001", "e0002"])

    alone = resume("--store", "none", "--max-steps", "3")
    assert (alone.code, place.claims()) == (0, ["e0001", "e0002"]), alone.err
    assert place.state().attempts[-1].given == {"base-url": address[1], "sandbox": "auto", "store": "none"}

    session = place.session()
    place.clone()
    elsewhere = place.run("--resume", "--session", session, "--max-steps", "3")
    assert elsewhere.code == 0, elsewhere.err
    assert place.state().attempts[-1].given == kept


def test_a_store_that_was_of_no_use_is_not_asked_for_by_a_resume(place: Place) -> None:
    place.replies = [calls(WRITE), calls(WRITE), {"text": "done"}]
    assert place.run("do it", "--max-steps", "1", env=NO_KEY).code == 1
    playing = [*script(place.workspace, *place.replies), "--instructions", "none"]
    ran = endstate(place.workspace, "run", "--resume", *playing, env=NO_KEY)
    assert ran.code == 0, ran.err


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


@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.2])
def test_what_a_call_left_goes_with_its_outcome_though_a_signal_comes_while_it_is_looked_at(
    place: Place, after_s: float
) -> None:
    """Else the model elsewhere is told that it built what is not there."""
    marker = place.path / "built"
    build = "for d in $(seq 40); do mkdir -p out/$d; for n in $(seq 50); do echo $d > out/$d/$n; done; done"
    place.replies = [calls(bash(f"{build}; echo x > {marker}")), {"text": "done"}]
    process = begin(place.workspace, "run", "do it", *place.options(), env={"ENDSTATE_STATE_KEY": KEY})
    wait_for(marker)
    time.sleep(after_s)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode in (75, 0)
    place.clone()
    ran = place.run("--resume", "--json")
    assert ran.code == 0, ran.err
    (outcome,) = place.state().finished.values()
    assert (outcome.status == "ok") == (place.workspace / "out" / "40" / "50").exists()


def test_a_finished_session_is_reported_on_a_fresh_machine_without_a_request(place: Place) -> None:
    ended = place.run("do it", "--json").json
    place.clone()
    place.replies = []  # whoever asks the model now fails

    ran = place.run("--resume", "--json")

    assert ran.code == 0, ran.err
    assert (ran.json["final-message"], ran.json["tree-hash"]) == ("done", ended["tree-hash"])
    assert (place.workspace / "a.txt").read_text() == "x\n"


def test_nothing_is_claimed_for_a_run_in_a_repository_that_git_cannot_read(place: Place) -> None:
    place.clone()
    (place.workspace / ".git" / "index").write_text("junk")

    ran = place.run("do it")

    assert (ran.code, "git fsck" in ran.err) == (4, True)
    assert not list(place.store.glob("es1/*"))


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
    plain = place.ask("restore")
    shown = json.loads(place.ask("restore", "--dry-run", "--json").out)

    assert (plain.code, plain.out, plain.err) == (dry.code, dry.out, dry.err)
    assert everything(place.store, place.workspace) == before
    newest = place.checkpoints()[-1]
    assert (inspected.code, dry.code) == (0, 0)
    for said in (inspected.out, dry.out):
        assert f"would restore es1/{place.session()}/{newest.name}" in said
        assert "opens: " in said
    assert shown[0]["checkpoints"][0]["key"].endswith(newest.name)


def test_a_dry_run_ends_as_a_resume_would(place: Place) -> None:
    begun = place.run("do it")
    assert begun.code == 0, begun.err
    for checkpoint in place.checkpoints():
        checkpoint.unlink()
    folder = place.store / "es1" / place.session()
    place.clone()
    asked = ("--session", folder.name)
    assert (place.ask("restore", "--dry-run", *asked).code, place.run("--resume", *asked).code) == (12, 12)

    place.killed()
    session = place.checkpoints()[-1].parent
    (session / "e9999").write_bytes(b"{}")
    asked = ("--session", session.name)
    assert (place.ask("restore", "--dry-run", *asked).code, place.run("--resume", *asked).code) == (2, 2)


def in_a_plain_directory(place: Place) -> None:
    shutil.rmtree(place.workspace / ".git")


def with_a_file_of_somebody(place: Place) -> None:
    (place.workspace / "mine.txt").write_text("mine")


def in_another_repository(place: Place) -> None:
    shutil.rmtree(place.workspace)
    place.workspace.mkdir()
    other = Repo(place.workspace)
    other.git("init", "--quiet")
    other.commit({"b": "b"}, "another")


def with_another_key(place: Place) -> None:
    place.key = "another-secret-that-is-long"


@pytest.mark.parametrize(
    ("happens", "code"),
    [(in_a_plain_directory, 13), (with_a_file_of_somebody, 13), (in_another_repository, 13), (with_another_key, 12)],
)
def test_what_a_resume_refuses_ends_nobody_elsewhere_and_a_dry_run_says_so_too(
    place: Place, happens: Callable[[Place], None], code: int
) -> None:
    """A claimed number ends whoever is at the session, and counts as an attempt."""
    place.killed()
    happens(place)
    before = everything(place.store, place.workspace)

    dry = place.ask("restore", "--dry-run")
    assert everything(place.store, place.workspace) == before
    ran = place.run("--resume")

    assert (dry.code, ran.code) == (code, code), ran.err
    assert "would refuse" in dry.out
    assert place.claims() == ["e0001"]


def test_with_an_empty_store_a_dry_run_tells_of_the_session_that_is_here(place: Place) -> None:
    place.replies = [calls(WRITE), calls(WRITE), {"text": "done"}]
    assert place.run("do it", "--max-steps", "1").code == 1
    shutil.rmtree(place.store / "es1")

    dry = place.ask("restore", "--dry-run")

    assert (dry.code, place.run("--resume").code) == (0, 0)
    assert "not in this store  would go on with what is on this machine" in dry.out


def test_what_an_attempt_spent_that_is_not_on_record_is_not_called_all(place: Place) -> None:
    """Its checkpoints are sealed with another key, so that nothing tells of it but the number that is missing."""
    place.replies = [calls(WRITE), calls(WRITE), calls(WRITE), {"text": "done"}]
    first = place.run("do it", "--max-steps", "1")
    assert "· $0.00 ·" in first.err
    session = place.session()
    second = place.run("--resume", "--max-steps", "2", "--json", env={"ENDSTATE_STATE_KEY": "another-secret-as-long"})
    assert (second.code, second.json["attempt"], second.json["spent-at-least"]) == (1, 2, False), second.err
    place.clone()

    third = place.run("--resume", "--session", session, "--json")

    assert (third.code, third.json["attempt"], third.json["spent-at-least"]) == (0, 3, True), third.err
    assert "· at least $0.00 ·" in third.err
    assert [a.epoch for a in place.state().attempts] == [1, 3]


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
    assert re.search(r"Not used: checkpoint \d+ of attempt 1: ", ran.err)
    assert f"Restored from es1/{place.session()}/{older.name}" in ran.err
    assert (place.workspace / "b.txt").read_text() == "b\n"


def test_where_the_store_has_lost_its_claims_a_resume_goes_on_from_the_newest_checkpoint_and_above_it(
    place: Place,
) -> None:
    place.killed()
    session = place.session()
    assert place.run("--resume", "--max-steps", "2").code == 1
    for path in place.store.glob("es1/*/*"):
        if path != place.checkpoints()[-1]:
            path.unlink()
    place.clone()
    assert f"would restore es1/{session}/c0002-" in place.ask("restore", "--dry-run").out
    ran = place.run("--resume", "--session", session)
    assert ran.code == 0, ran.err
    assert f"Restored from es1/{session}/c0002-" in ran.err
    assert place.claims() == ["e0003"]
    assert {path.name[:5] for path in place.checkpoints()} == {"c0003"}


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
    assert f"Not used: checkpoint {key.sequence + 7} of attempt 1: " in ran.err
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


def test_a_restore_does_not_replace_branches_and_stashes_that_are_nowhere_else(place: Place) -> None:
    place.killed()
    work = Repo(place.workspace)
    work.git("checkout", "--quiet", "-b", "feature")
    work.commit({"days-of": "work\n"})
    work.git("checkout", "--quiet", "main")
    work.write({"base.txt": "draft\n"})
    work.git("add", "--all")
    work.git("stash", "--quiet")
    before = work.git("for-each-ref")

    refused = place.run("--resume")

    assert refused.code == 13, refused.err
    assert "a stash and branches of its own (feature)" in refused.err
    assert work.git("for-each-ref") == before
    work.git("stash", "drop", "--quiet")
    work.git("branch", "--quiet", "-D", "feature")
    assert place.run("--resume").code == 0


def test_a_store_that_is_not_there_is_named_and_nothing_is_begun(place: Place) -> None:
    place.killed()
    typo = f"dir:{place.store}s"

    asked = [
        place.run("--resume", store=typo),
        endstate(place.workspace, "sessions", "inspect", "--store", typo, env={"ENDSTATE_STATE_KEY": KEY}),
        endstate(place.workspace, "restore", "--dry-run", "--store", typo, env={"ENDSTATE_STATE_KEY": KEY}),
    ]

    for ran in asked:
        assert (ran.code, f"There is no directory {place.store}s" in ran.err) == (12, True), ran.err
    assert not Path(f"{place.store}s").exists()
    assert place.run("--resume").code == 0


def test_a_session_that_was_started_over_is_not_gone_on_with_elsewhere(place: Place) -> None:
    place.replies = [calls(WRITE), {"text": "done"}]
    assert place.run("do it", "--max-steps", "1").code == 1
    anew = place.run("--resume", "--model", "m-2", "--on-mismatch", "restart", "--json")
    assert anew.code == 0, anew.err
    place.clone()

    ran = place.run("--resume", "--json")

    assert (ran.code, ran.json["session-id"]) == (0, anew.json["session-id"]), ran.err


def test_a_git_ref_is_kept_in_an_origin_that_is_a_directory(place: Place) -> None:
    for address in (str(place.origin.path), os.path.relpath(place.origin.path, place.workspace)):
        Repo(place.workspace).git("remote", "set-url", "origin", address)
        ran = place.run("do it", "--require-durable", store="git-ref")
        assert ran.code == 0, ran.err
    assert len(place.origin.git("for-each-ref", "refs/endstate").splitlines()) == 2


def test_a_resume_to_which_the_store_gives_no_number_does_not_say_that_it_goes_on(place: Place) -> None:
    assert place.run("do it", "--max-steps", "1", store="git-ref").code == 1
    place.clone()
    decline(place.origin.path / ".git")

    ran = place.run("--resume", store="git-ref")

    assert ran.code == 2
    assert "gave this attempt no number" in ran.err
    assert "contents: write" in ran.err
    assert "goes on" not in ran.err
    assert not (place.workspace / "a.txt").exists()


def test_refs_that_a_restore_takes_away_are_named_with_what_they_named(place: Place) -> None:
    place.killed()
    work = Repo(place.workspace)
    work.git("branch", "feature")
    work.git("-c", "user.name=n", "-c", "user.email=e", "tag", "-a", "v1", "-m", "notes that are only here")
    tag, tip = work.git("rev-parse", "refs/tags/v1", "refs/heads/feature").split()

    ran = place.run("--resume")

    assert ran.code == 0, ran.err
    assert f"refs/heads/feature was {tip[:12]}" in ran.err
    assert f"refs/tags/v1 was {tag[:12]}" in ran.err
    work.git("update-ref", "refs/tags/v1", tag[:12])
    assert work.git("tag", "-n", "-l").endswith("notes that are only here")


def test_a_session_of_another_repository_replaces_nothing(place: Place) -> None:
    Repo(place.workspace).commit({"draft.txt": "not pushed\n"}, "draft")
    assert place.run("do it", "--max-steps", "1").code == 1
    other = Repo(place.path / "other")
    other.path.mkdir()
    other.git("init", "--quiet", "--initial-branch=main")
    other.commit({"main.c": "int main;\n"}, "begin")
    place.clone()
    shutil.rmtree(place.workspace)
    Repo(place.path).git("clone", "--quiet", str(other.path), str(place.workspace))
    before = Repo(place.workspace).git("for-each-ref")

    refused = [place.run("--resume"), place.ask("restore", "--dry-run")]

    assert [ran.code for ran in refused] == [13, 13], refused[0].err
    assert all("was begun in another repository" in ran.err + ran.out for ran in refused)
    assert place.claims() == ["e0001"]
    assert Repo(place.workspace).git("for-each-ref") == before
    assert (place.workspace / "main.c").read_text() == "int main;\n"
    told = place.run("--resume", "--on-mismatch", "continue")
    assert told.code == 0, told.err
    assert "refs/heads/main was" in told.err
    place.clone()
    assert place.run("--resume").code == 0


def test_a_change_that_no_checkpoint_could_hold_is_told_to_who_reads_the_result(place: Place) -> None:
    place.origin.commit({".github/endstate.yml": "snapshot: {file-max-mb: 1}\n", "big": "x" * (2 << 20)})
    marker = place.path / "reached"
    changing = calls(bash("echo more >> big"), bash(f"echo x > {marker}; sleep 60"))
    place.replies = [changing, {"text": "done"}]
    place.clone()
    process = begin(place.workspace, "run", "do it", *place.options(), env={"ENDSTATE_STATE_KEY": KEY})
    wait_for(marker)
    process.kill()
    process.communicate()
    place.clone()
    file = place.path / "evidence.json"

    ran = place.run("--resume", "--sandbox", "off", "--evidence", str(file))

    assert ran.code == 0, ran.err
    assert (place.workspace / "big").stat().st_size == 2 << 20
    lost = "big was not kept and may differ here"
    assert f"Not restored: {lost}" in ran.err
    assert json.loads(file.read_text())["notes"] == [f"Not all was restored for attempt 2: {lost}."]


@pytest.mark.parametrize(("change", "code"), [("", 0), ("echo more >> big.bin", 13), ("chmod +x big.bin", 13)])
def test_what_git_lfs_put_into_a_fresh_clone_is_nobodys_work(place: Place, change: str, code: int) -> None:
    content = place.path / "content"
    content.write_bytes(b"large\n" * 1000)
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256(content.read_bytes()).hexdigest()}\n"
    place.origin.commit({"big.bin": f"{pointer}size 6000\n", ".gitattributes": "*.bin filter=lfs -text\n"})
    place.killed()
    clone = Repo(place.workspace)
    clone.git("config", "filter.lfs.smudge", f"cat > {os.devnull}; cat {content}")
    clone.git("config", "filter.lfs.clean", f"cat > {os.devnull}; git show HEAD:big.bin")
    (place.workspace / "big.bin").unlink()
    clone.git("checkout", "big.bin")
    assert (place.workspace / "big.bin").read_bytes() == content.read_bytes()
    assert clone.git("status", "--short") == ""
    subprocess.run(change, shell=True, cwd=place.workspace, check=True)

    ran = place.run("--resume")

    assert ran.code == code, ran.err
    assert ("files of its own (big.bin)" in ran.err) == (code == 13)


def test_ignored_files_that_a_restore_takes_away_are_named(place: Place) -> None:
    place.origin.commit({".gitignore": ".env\n"})
    place.killed()
    (place.workspace / ".env").write_text("TOKEN=mine\n")

    ran = place.run("--resume")

    assert ran.code == 0, ran.err
    assert "1 file that was here was replaced or removed by the restore: .env." in ran.err
    assert "git --git-dir" in ran.err


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
    assert "1 file that was here was replaced or removed by the restore: mine.txt." in told.err
    assert "What was here before is kept as snapshot" in told.err


def test_what_is_excluded_from_snapshots_is_left_as_it_is_on_another_machine_and_that_is_said(place: Place) -> None:
    place.origin.commit({".github/endstate.yml": "snapshot: {exclude: [deps]}\n"})
    place.replies = [calls(WRITE, ("write", {"path": "deps/made", "content": "x"})), {"text": "done"}]
    place.clone()
    assert place.run("do it", "--max-steps", "1").code == 1
    place.clone()
    (place.workspace / "deps").mkdir()
    (place.workspace / "deps" / "installed").write_text("by an earlier step\n")

    ran = place.run("--resume")

    assert ran.code == 0, ran.err
    assert (place.workspace / "a.txt").read_text() == "x\n"
    assert [path.name for path in (place.workspace / "deps").iterdir()] == ["installed"]
    assert "Not restored: deps is excluded from snapshots and may differ here" in ran.err


def test_what_a_restore_did_not_bring_is_told_to_the_model_and_is_nobodys_change(place: Place) -> None:
    place.origin.commit({".gitignore": "ign/\n", ".github/endstate.yml": "snapshot: {ignored-max-files: 1}\n"})
    place.replies = [calls(bash("mkdir ign; echo 1 > ign/1; echo 2 > ign/2; echo 3 > kept")), {"text": "done"}]
    place.clone()
    assert place.run("do it", "--max-steps", "1").code == 1
    place.clone()

    ran = place.run("--resume")

    assert ran.code == 0, ran.err
    note = place.state().told[-1].text
    assert "No snapshot has what was in ign: it may be missing or different." in note
    assert "somebody else" not in note
    assert "kept" not in note
    assert note.strip("[]") in ran.err


def test_a_finished_session_says_the_same_tree_again_where_only_what_no_snapshot_keeps_has_changed(
    place: Place,
) -> None:
    place.origin.commit({".github/endstate.yml": "snapshot: {exclude: [build]}\n"})
    place.replies = [calls(("write", {"path": "build/x", "content": text})) for text in "12"] + [{"text": "done"}]
    place.clone()

    ran = place.run("do it", "--json")
    again = place.run("--resume", "--json")

    assert ran.json["tree-hash"] == again.json["tree-hash"]
    assert endstate(place.workspace, "tree-hash").out.strip() == ran.json["tree-hash"]


@pytest.mark.parametrize("begun_in", ["a clone", "a linked work tree"])
def test_a_restore_does_not_break_a_git_directory_of_another_layout(place: Place, begun_in: str) -> None:
    clone = place.workspace
    linked = place.path / "linked"
    first, second = (linked, clone) if begun_in != "a clone" else (clone, linked)
    repo = Repo(clone)
    repo.git("worktree", "add", "--quiet", "-b", "side", str(linked))
    given = (*place.options(), "--state-dir", ".state")
    key = {"ENDSTATE_STATE_KEY": KEY}
    assert endstate(first, "run", "do it", *given, "--max-steps", "1", env=key).code == 1
    before = everything(second, clone / ".git")

    ran = endstate(second, "run", "--resume", "--session", place.session(), *given, env=key)

    assert ran.code == 13, ran.err
    assert "was begun in, .git is a " in ran.err
    assert "Nothing was restored and nothing was run." in ran.err
    assert [entry for entry in second.iterdir() if entry.name == "a.txt"] == []
    assert everything(clone / ".git")[0] == before[1]
    repo.git("fsck")


def test_a_session_that_is_started_over_begins_on_what_was_there_before_the_restore(place: Place) -> None:
    place.replies = [calls(WRITE), {"text": "done"}]
    assert place.run("do it", "--max-steps", "1").code == 1
    place.clone()
    (place.workspace / ".git" / "info" / "exclude").write_text("kept.env\n")
    (place.workspace / "kept.env").write_text("mine\n")
    place.replies = [{"text": "done"}]

    ran = place.run("--resume", "--model", "m-2", "--on-mismatch", "restart", "--json")

    assert ran.code == 0, ran.err
    assert "Restored from" in ran.err
    assert "on what was here before the restore" in ran.err
    told = ("resumed", "restored-from", "restored-tree-hash", "changed-files")
    assert [ran.json[name] for name in told] == [False, None, None, []]
    assert not (place.workspace / "a.txt").exists()
    assert (place.workspace / "kept.env").read_text() == "mine\n"


def test_what_a_restore_replaced_in_a_plain_directory_is_named_and_can_be_had_again(tmp_path: Path) -> None:
    """Nobody can tell whose files they are, so they are kept, and who reads knows how to have them back."""
    env = {"ENDSTATE_STATE_KEY": KEY}
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    playing = (*script(first, calls(WRITE), {"text": "done"}), "--store", f"dir:{tmp_path}/store")
    assert endstate(first, "run", "do it", *playing, "--max-steps", "1", env=env).code == 1
    mine = {"a.txt": "mine", "b.txt": "b", "c/d.txt": "d", "e.txt": "$Format:%H$", ".gitattributes": ""}
    mine[".gitattributes"] = "*.txt export-ignore text eol=crlf\ne.txt -export-ignore export-subst\n"
    for name, content in mine.items():
        (second / name).parent.mkdir(exist_ok=True)
        (second / name).write_text(content)

    ran = endstate(second, "run", "--resume", *playing, env=env)

    assert ran.code == 0, ran.err
    assert sorted(path.name for path in second.iterdir()) == [".endstate", "a.txt"]
    said, after = ran.err.partition("session ")[::2]
    assert "5 files that were here were replaced or removed by the restore: .gitattributes, a.txt, b.txt" in said
    assert "and 2 more. " in said
    assert "resumed, attempt" in after
    (command,) = re.findall(r"can be had again: (.*)", said)
    subprocess.run(["bash", "-ec", command], cwd=second, check=True, capture_output=True)
    (kept,) = tmp_path.glob("kept-*")
    assert {str(p.relative_to(kept)): p.read_text() for p in kept.rglob("*") if p.is_file()} == mine


def test_a_session_of_a_plain_directory_replaces_no_repository_but_its_own(tmp_path: Path) -> None:
    env = {"ENDSTATE_STATE_KEY": KEY}
    first, copied, other, empty, half = (tmp_path / name for name in ("first", "copied", "other", "empty", "half"))
    for made in (first, other, empty):
        made.mkdir()
    makes = bash("git init -q && git add -A && git -c user.name=n -c user.email=e commit -qm first")
    playing = (*script(first, calls(WRITE, makes), calls(WRITE), {"text": "done"}), "--store", f"dir:{tmp_path}/store")
    assert endstate(first, "run", "do it", *playing, "--max-steps", "1", env=env).code == 1
    shutil.copytree(first, copied)
    shutil.rmtree(copied / ".endstate")
    theirs = Repo(other)
    theirs.git("init", "-q")
    theirs.commit({"mine": "mine\n"})

    refused = endstate(other, "run", "--resume", *playing, env=env)

    assert refused.code == 13
    assert "a git repository here that is not of its making" in refused.err
    assert "empty directory" in refused.err
    assert theirs.git("status", "--porcelain") == ""
    half.mkdir()
    (half / ".git").mkdir()
    key = max((tmp_path / "store").glob("es1/*/c*"), key=lambda path: path.name).relative_to(tmp_path / "store")
    state = locate(half, ".endstate")
    state.claim()
    state.restore_log.write_text(json.dumps({"key": str(key), "kept": None}))
    for elsewhere in (half, copied, empty, first):
        ran = endstate(elsewhere, "run", "--resume", *playing, env=env)
        assert (ran.code, ran.out) == (0, "done\n"), ran.err
        assert Repo(elsewhere).git("log", "--format=%s") == "first"


# A session that has broken its own repository


BREAKS = ["rm .git/HEAD", "rm -rf .git", f"echo {'1' * 40} > .git/refs/heads/ghost; rm .git/HEAD"]


def broken(place: Place, does: str = "rm .git/HEAD", *more: dict[str, Any]) -> None:
    """A finished call has broken `.git`, and the machine is lost; on another one now."""
    place.replies = [calls(bash(does)), *(more or (calls(WRITE),)), {"text": "done"}]
    assert place.run("do it", "--max-steps", "1").code == 1
    place.clone()


def restored(place: Place, sessions: type[SessionStore] = SessionStore) -> None:
    """The newest checkpoint is brought here, and then this process is killed."""
    looked = look(DirectoryStore(place.store), derive_key(KEY, explicit=True), Expected("", place.session()))
    opened = looked.opened[max(looked.opened)]
    state = locate(place.workspace, ".endstate")
    state.claim()
    repository = discover(place.workspace, dict(os.environ), state.tmp)
    bound = opened.state.begun.bound if opened.state else {}
    there = Workplace(place.workspace, state, repository, dict(os.environ), bound, DEFAULT_CONFIG)
    restore(opened, there, sessions(state.sessions), lambda commit: None)


@pytest.mark.parametrize("does", BREAKS)
def test_a_session_that_has_broken_its_repository_goes_on_in_a_fresh_clone(place: Place, does: str) -> None:
    broken(place, does)

    ran, again = place.run("--resume"), place.run("--resume")

    assert (ran.code, ran.out) == (0, "done\n"), ran.err
    assert (again.code, again.out) == (0, "done\n"), again.err
    assert (place.workspace / "a.txt").read_text() == "x\n"
    assert place.state().is_finished
    # Once more elsewhere, where nothing is left to do but to tell.
    place.clone()
    told = place.run("--resume")
    assert (told.code, told.out) == (0, "done\n"), told.err


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_broken_repository_that_was_restored_is_gone_on_with_where_that_was_killed(
    place: Place, is_whole: bool
) -> None:
    """And nowhere else: where the state directory was copied, nobody has seen whose repository that was."""
    broken(place)
    if is_whole:
        restored(place)
    else:
        with pytest.raises(InterruptedError):
            restored(place, Dies)
    assert not (place.workspace / ".git" / "HEAD").exists()
    copied = place.path / "copied"
    shutil.copytree(place.workspace, copied, symlinks=True)
    before = everything(copied / ".git")

    refused = endstate(copied, "run", "--resume", *place.options(), env={"ENDSTATE_STATE_KEY": KEY})
    ran = place.run("--resume")

    assert (refused.code, "git cannot read the .git here" in refused.err) == (13, True), refused.err
    assert everything(copied / ".git") == before
    assert (ran.code, ran.out) == (0, "done\n"), ran.err
    assert (place.workspace / "a.txt").read_text() == "x\n"


def test_a_session_that_has_broken_its_repository_replaces_no_other(place: Place) -> None:
    Repo(place.workspace).commit({"draft.txt": "not pushed\n"}, "draft")
    broken(place)
    shutil.rmtree(place.workspace)
    other = Repo(place.workspace)
    other.path.mkdir()
    other.git("init", "--quiet", "--initial-branch=main")
    other.commit({"main.c": "int main;\n"}, "begin")
    before = everything(other.path / ".git")

    refused = place.run("--resume")

    assert (refused.code, "was begun in another repository" in refused.err) == (13, True), refused.err
    assert everything(other.path / ".git") == before
    assert place.claims() == ["e0001"]


def test_what_git_could_not_read_before_a_restore_is_not_explained_by_it(place: Place) -> None:
    """Whether the state directory is tracked there, say."""
    place.killed()
    (place.workspace / ".git" / "index").write_bytes(b"junk")

    refused = place.run("--resume", "--on-mismatch", "continue")

    assert (refused.code, "index file" in refused.err) == (4, True), refused.err


def test_in_a_repository_that_is_mended_after_a_restore_a_commit_can_be_made(place: Place) -> None:
    """Its configuration is another than that of the machine before, and no agent has seen it."""
    mends = calls(bash("echo ref: refs/heads/main > .git/HEAD"), WRITE)
    broken(place, "rm .git/HEAD", mends, calls(("git_commit", {"message": "mended", "paths": ["a.txt"]})))
    Repo(place.workspace).git("config", "remote.origin.url", "https://token@example.invalid/x.git")

    ran = place.run("--resume")

    assert ran.code == 0, ran.err
    assert Repo(place.workspace).git("log", "--format=%s", "-1") == "mended"


class Dies(SessionStore):
    """Ends a restore where the workspace is restored and the session is not."""

    def adopt(self, session: str, rows: Any) -> None:
        raise InterruptedError(session)


@pytest.mark.parametrize("moment", ["before the session", "in the workspace"])
def test_of_a_restore_that_was_killed_what_the_first_try_replaced_is_named(tmp_path: Path, moment: str) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    playing = (*script(first, calls(WRITE), {"text": "done"}), "--store", f"dir:{tmp_path}/store")
    assert endstate(first, "run", "do it", *playing, env={"ENDSTATE_STATE_KEY": KEY}).code == 0
    session = next((tmp_path / "store" / "es1").iterdir()).name
    looked = look(DirectoryStore(tmp_path / "store"), derive_key(KEY, explicit=True), Expected("", session))
    ((key, opened),) = looked.opened.items()
    (second / "a.txt").write_text("mine\n")
    old = endstate(second, "run", "before", *script(second, {"text": "done"}), "--json").json["session-id"]
    state = locate(second, ".endstate")
    place = Workplace(second, state, None, dict(os.environ), {}, DEFAULT_CONFIG)
    if moment == "in the workspace":
        apply(place.objects(), opened.pack or b"", None)
        mine = place.snapshots().take().root
        journal = state.path / "objects" / "restore" / "journal"
        journal.parent.mkdir()
        journal.write_text(json.dumps({"root": opened.manifest.root, "kept": mine}))
        state.restore_log.write_text(json.dumps({"key": str(key)}))
    else:
        with pytest.raises(InterruptedError):
            restore(opened, place, Dies(state.sessions), lambda commit: None)
        assert (second / "a.txt").read_text() == "x\n"
        assert state.restore_log.exists()
    # What only the record of the restore names is not swept away by whoever tidies up meanwhile.
    assert endstate(second, "sessions", "prune", old).code == 0

    arrived = restore(opened, place, SessionStore(state.sessions), lambda commit: None)

    assert arrived.replaced == ("a.txt",)
    assert Repo(state.path / "objects").git("--git-dir", ".", "show", f"{arrived.kept}:tree/a.txt").strip() == "mine"
    assert not state.restore_log.exists()


def test_a_restore_that_was_killed_still_names_the_refs_that_it_took_away(place: Place) -> None:
    place.killed()
    Repo(place.workspace).git("branch", "feature")
    looked = look(DirectoryStore(place.store), derive_key(KEY, explicit=True), Expected("", place.session()))
    opened = looked.opened[max(looked.opened)]
    state = locate(place.workspace, ".endstate")
    state.claim()
    repository = discover(place.workspace, dict(os.environ), state.tmp)
    assert opened.state
    bound = opened.state.begun.bound
    there = Workplace(place.workspace, state, repository, dict(os.environ), bound, DEFAULT_CONFIG)
    with pytest.raises(InterruptedError):
        restore(opened, there, Dies(state.sessions), lambda commit: None)
    assert Repo(place.workspace).git("branch", "--list", "feature") == ""

    ran = place.run("--resume")

    assert ran.code == 0, ran.err
    assert "refs/heads/feature was" in ran.err


def test_a_session_that_is_elsewhere_newer_is_told_to_replace_what_was_done_here_since(place: Place) -> None:
    place.replies = [calls(WRITE), calls(("write", {"path": "b.txt", "content": "b\n"})), {"text": "done"}]
    assert place.run("do it", "--max-steps", "1").code == 1
    here, session = place.workspace, place.session()
    shutil.copytree(here.parent, place.path / "kept-aside", symlinks=True)
    place.clone()
    assert place.run("--resume").code == 0
    shutil.rmtree(here.parent, ignore_errors=True)
    shutil.rmtree(place.workspace.parent)
    (place.path / "kept-aside").rename(place.workspace.parent)
    (place.workspace / "a.txt").write_text("mine\n")

    ran = place.run("--resume", "--session", session)

    assert ran.code == 0, ran.err
    assert "replaced or removed by the restore: a.txt" in ran.err


def test_bad_input_ends_a_resume_before_anything_is_claimed_or_restored(place: Place) -> None:
    place.killed()
    mine, before = place.workspace / "app.py", everything(place.store)
    missing = ("--resume", "--store", f"dir:{place.store}", "--script", str(place.path / "nope.json"))
    unscripted = ("--resume", "--store", f"dir:{place.store}", "--sandbox", "off")

    refused = endstate(place.workspace, "run", *missing, env={"ENDSTATE_STATE_KEY": KEY})
    assert (refused.code, "nope.json" in refused.err) == (2, True), refused.err
    assert everything(place.store) == before

    # Whose provider it is, only the checkpoint tells; what it holds is not brought here before that is looked at.
    for arguments, code in ((unscripted, 2), ((*unscripted, "--provider", "anthropic"), 13)):
        refused = endstate(place.workspace, "run", *arguments, env={"ENDSTATE_STATE_KEY": KEY})
        assert refused.code == code, refused.err
        assert "Restored" not in refused.err
        assert mine.read_text() == "x = 1\n"
        assert not (place.workspace / "a.txt").exists()
        assert not list((place.workspace / ".endstate/sessions").glob("*.db"))
    assert place.run("--resume").code == 0


def test_a_session_that_is_here_is_looked_at_before_a_number_is_claimed(place: Place) -> None:
    place.replies = [calls(WRITE), calls(WRITE), {"text": "done"}]
    assert place.run("do it", "--max-steps", "1").code == 1
    before = everything(place.store)

    given = ("--resume", "--store", f"dir:{place.store}", "--sandbox", "off")
    refused = endstate(place.workspace, "run", *given, env={"ENDSTATE_STATE_KEY": KEY})

    assert (refused.code, "--script" in refused.err) == (2, True), refused.err
    assert everything(place.store) == before


def test_the_unfinished_sessions_that_only_the_store_has_are_named(place: Place) -> None:
    place.replies = [calls(WRITE), calls(WRITE), {"text": "done"}]
    assert place.run("elsewhere", "--max-steps", "1").code == 1
    elsewhere = place.session()
    place.clone()
    here = place.run("here", "--max-steps", "1", "--json").json["session-id"]

    ran = place.run("--resume", "--json")

    assert ran.json["session-id"] == here
    assert f"Also unfinished, in the store alone: {elsewhere}. `--session ID` resumes one of them." in ran.err


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


def test_a_damaged_session_that_may_be_newer_than_its_checkpoints_is_kept_when_they_are_restored(
    tmp_path: Path,
) -> None:
    """Nothing of what only it tells is lost: not its records, not its snapshots."""
    place = Place(tmp_path, [calls((WRITE[0], {"path": f"f{n}", "content": "x"}), text="q" * 2500) for n in range(5)])
    place.replies.append({"text": "done"})
    place.workspace.mkdir(parents=True)
    place.run("do it", "--max-steps", "2")
    place.run("--resume", "--max-steps", "4", store="none")
    session, sessions = place.session(), place.workspace / ".endstate" / "sessions"
    path = sessions / f"{session}.db"
    # Its last page, which is of the attempt that no store knows of.
    damaged = path.read_bytes()[:-2048] + bytes(2048)
    path.write_bytes(damaged)
    exported = endstate(place.workspace, "sessions", "export").out

    refused = place.run("--resume")
    assert refused.code == 4
    assert f"`endstate run --resume --session {session} --store" in refused.err
    assert path.read_bytes() == damaged

    resumed = place.run("--resume", "--session", session)
    assert resumed.code == 0
    (aside,) = sessions.glob("*.set-aside-*.db")
    assert f"It was moved to {aside}; `endstate sessions export {aside.stem}` prints" in resumed.err
    assert aside.read_bytes() == damaged
    assert endstate(place.workspace, "sessions", "export", aside.stem).out == exported
    assert [s["session-id"] for s in json.loads(endstate(place.workspace, "sessions", "list", "--json").out)] == [
        session
    ]

    other = place.run("another", "--json", store="none").json["session-id"]
    objects = place.workspace / ".endstate" / "objects"
    before = [p for p in objects.rglob("*") if p.is_file()]
    assert endstate(place.workspace, "sessions", "prune", other).code == 0
    assert [p for p in before if not p.exists()] == []
    assert endstate(place.workspace, "sessions", "prune", session).code == 0
    assert list(sessions.iterdir()) == []
