"""`git_commit`: exactly what the agent changed, exactly once, and nothing that a repository could make us run."""

from __future__ import annotations

import base64
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from endstate_action.agent.tools.base import CallContext, ToolError, check_arguments
from endstate_action.agent.tools.commit import GitCommit
from endstate_action.effects import EffectClass, Probe, content_digest
from endstate_action.system.files import Workspace
from endstate_action.system.git import discover
from endstate_action.system.redaction import Secrets
from tests.support.repos import GitRepo, Repo

KEY = "0123456789ab/3.0"


@dataclass(frozen=True)
class Agent:
    """A session in a repository: what was there when it began, and one call of the tool at a time."""

    repo: Repo
    tool: GitCommit
    context: CallContext

    def commit(self, message: str = "A change", **more: Any) -> str:
        arguments = {"message": message, **more}
        check_arguments(self.tool.parameters, arguments)
        context = self._context(arguments)
        return self.tool.run(arguments, context, self.tool.plan(arguments, context))

    def settle(self, message: str = "A change", **more: Any) -> str:
        """What a resume does with a keyed call."""
        arguments = {"message": message, **more}
        found = self.tool.probe(arguments, self._context(arguments))
        assert found.probe is not Probe.UNKNOWN
        return found.outcome if found.probe is Probe.APPLIED else self.commit(**arguments)

    def probe(self, message: str = "A change", **more: Any) -> Probe:
        arguments = {"message": message, **more}
        return self.tool.probe(arguments, self._context(arguments)).probe

    def next_call(self) -> Agent:
        return replace(self, context=replace(self.context, key="0123456789ab/4.0"))

    def _context(self, arguments: dict[str, Any]) -> CallContext:
        return replace(self.context, content_digest=content_digest("git_commit", arguments))

    @property
    def files(self) -> list[str]:
        return self.repo.git("show", "--name-only", "--format=", "HEAD").splitlines()

    @property
    def status(self) -> list[str]:
        return self.repo.git("status", "--porcelain", "--untracked-files=all").splitlines()


def begin(repo: Repo) -> Agent:
    """A session that begins now."""
    repository = discover(repo.path, os.environ, repo.path.parent / "tmp")
    assert repository is not None
    base = repository.head().commit
    tool = GitCommit(repository, repository.trust(), base, repository.changes(base))
    return Agent(repo, tool, CallContext(Workspace(repo.path), KEY, "", time.time(), "tag"))


# --- what is taken ----------------------------------------------------------------------------


def test_by_default_everything_the_agent_changed_is_committed(git_repo: GitRepo) -> None:
    agent = begin(git_repo({"edited": "1", "deleted": "1", "kept": "1"}))
    agent.repo.write({"edited": "2", "new/file": "n"})
    (agent.repo.path / "deleted").unlink()
    outcome = agent.commit("Do three things\n\nFor a reason.")
    short = agent.repo.git("rev-parse", "--short=12", "HEAD")
    assert outcome == f"Committed {short} Do three things (3 files)."
    assert (agent.files, agent.status) == (["deleted", "edited", "new/file"], [])


def test_a_name_that_git_takes_into_no_commit_is_refused_by_name(git_repo: GitRepo) -> None:
    agent = begin(git_repo({"edited": "1"}))
    agent.repo.write({"edited": "2", "git~1": "x"})
    with pytest.raises(ToolError, match=r"Nothing was committed. git~1 has a name"):
        agent.commit()
    agent.next_call().commit(paths=["edited"])
    assert agent.files == ["edited"]


def test_changes_from_before_the_session_stay_the_user_s(git_repo: GitRepo) -> None:
    repo = git_repo({"dirty": "1", "staged": "1", "touched": "1", "a": "1"})
    repo.write({"dirty": "2", "staged": "2", "touched": "2", "untracked": "u"})
    repo.git("add", "staged")
    agent = begin(repo)
    repo.write({"a": "2", "touched": "3"})
    agent.commit()
    assert agent.files == ["a", "touched"]
    assert agent.status == [" M dirty", "M  staged", "?? untracked"]
    with pytest.raises(ToolError, match=r"nothing to commit.*before the session began: dirty, staged, untracked"):
        agent.next_call().commit()
    agent.next_call().commit(paths=["dirty", "untracked"])
    assert (agent.files, agent.status) == (["dirty", "untracked"], ["M  staged"])


def test_named_paths_are_taken_and_no_others(git_repo: GitRepo) -> None:
    agent = begin(git_repo({"a": "1", "b": "1", "d/x": "1", "d/y": "1", "same": "1"}))
    agent.repo.write({"a": "2", "b": "2", "d/x": "2", "d/new": "n"})
    agent.commit(paths=["./a", "d/", "same", "d"])
    assert (agent.files, agent.status) == (["a", "d/new", "d/x"], [" M b"])


def test_the_root_and_an_empty_list_name_everything(git_repo: GitRepo) -> None:
    agent = begin(git_repo())
    agent.repo.write({"a": "1"})
    agent.commit(paths=["."])
    agent.repo.write({"b": "1"})
    agent.next_call().commit(paths=[])
    assert agent.files == ["b"]


def test_a_name_that_is_no_text_can_be_committed(git_repo: GitRepo) -> None:
    agent = begin(git_repo())
    agent.repo.write({os.fsdecode(b"latin-\xe9"): "1", "new\nline": "1"})
    agent.commit(paths=[r"latin-\xe9", r"new\x0aline"])
    assert agent.status == []


def test_what_the_agent_forced_into_the_index_is_committed(git_repo: GitRepo) -> None:
    agent = begin(git_repo({".gitignore": "build/\n"}))
    agent.repo.write({"build/x": "1", "build/y": "1"})
    agent.repo.git("add", "--force", "build/x")
    agent.commit()
    assert agent.files == ["build/x"]


def test_a_state_directory_is_never_committed(git_repo: GitRepo) -> None:
    agent = begin(git_repo())
    agent.repo.write({".endstate/session.sqlite3": "s", "a": "1"})
    agent.repo.git("add", "--force", ".endstate")
    agent.commit()
    assert agent.files == ["a"]
    with pytest.raises(ToolError, match="closed to file tools"):
        agent.next_call().commit(paths=[".endstate/session.sqlite3"])


# --- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"message": " \n\u200b"}, "The message is empty"),
        ({"message": "a\0b"}, "NUL"),
        ({"message": f"x\n\nendstate-key: {KEY} cafe"}, "Endstate-Key"),
        ({"message": "m", "paths": ["../outside"]}, "leads out"),
        ({"message": "m", "paths": [".git/config"]}, "closed to file tools"),
        ({"message": "m", "paths": ["a", "nowhere"]}, "nowhere: no such file"),
        ({"message": "m", "paths": ["*"]}, r"\*: no such file"),
        ({"message": "m", "paths": ["x.log"]}, "x.log: ignored"),
        ({"message": "m", "paths": ["build"]}, "build: ignored"),
        ({"message": "m", "paths": ["same"]}, "nothing to commit"),
        ({"message": "m", "paths": ["big.bin"]}, "big.bin is content for the filter 'lfs'"),
        ({"message": "m", "paths": ["vendor/x/file"]}, "vendor/x is a repository of its own"),
        ({"message": "m", "paths": ["link/file"]}, "link/file: no such file, or one behind a link"),
        ({"message": "m"}, "vendor/x is a repository of its own"),
    ],
)
def test_a_refusal_names_its_reason_before_anything_is_touched(
    git_repo: GitRepo, arguments: dict[str, Any], said: str
) -> None:
    repo = git_repo({"a": "1", "same": "1", ".gitignore": "*.log\nbuild/\n", ".gitattributes": "*.bin filter=lfs\n"})
    agent = begin(repo)
    repo.write({"a": "2", "x.log": "1", "build/x": "1", "big.bin": "1", "vendor/x/file": "1", "real/file": "1"})
    repo.git("init", "-q", "vendor/x")
    (repo.path / "link").symlink_to("real")
    before = agent.status, repo.git("rev-parse", "HEAD")
    with pytest.raises(ToolError, match=f"^Nothing was committed. .*{said}"):
        agent.tool.plan(arguments, agent.context)
    assert (agent.status, repo.git("rev-parse", "HEAD")) == before


def test_without_a_change_there_is_nothing_to_commit(git_repo: GitRepo) -> None:
    with pytest.raises(ToolError, match=r"^Nothing was committed\. There is nothing to commit\.$"):
        begin(git_repo()).commit()


def test_a_changed_git_configuration_stops_the_call(git_repo: GitRepo) -> None:
    agent = begin(git_repo())
    canary = agent.repo.path.parent / "canary"
    agent.repo.git("config", "core.fsmonitor", f"touch {canary}")
    agent.repo.write({"a": "1"})
    with pytest.raises(ToolError, match=r"Nothing was committed\. The git configuration"):
        agent.commit()
    assert not canary.exists()


def test_a_lock_of_somebody_else_is_named(git_repo: GitRepo) -> None:
    agent = begin(git_repo())
    lock = agent.repo.path / ".git/index.lock"
    lock.touch()
    os.utime(lock, (1, 1))
    agent.repo.write({"a": "1"})
    with pytest.raises(ToolError, match=r"Nothing was committed. .*index\.lock is there"):
        agent.commit()
    assert lock.exists()


CANARY = "canary-0123456789-abcdefghijklmn"


def knowing(agent: Agent) -> Agent:
    return replace(agent, context=replace(agent.context, secrets=Secrets({"DEPLOY_TOKEN": CANARY})))


@pytest.mark.parametrize(
    "content",
    [
        f"token: {CANARY}".encode(),
        b"\0\1\2" * 700_000 + CANARY.encode() + b"\xff" * 10,
        CANARY.encode("utf-16"),
        base64.encodebytes(b"user:" + CANARY.encode()),
    ],
    ids=["text", "binary", "utf-16", "base64"],
)
@pytest.mark.parametrize("named", [False, True])
def test_a_file_with_a_known_secret_is_not_committed(git_repo: GitRepo, content: bytes, named: bool) -> None:
    agent = knowing(begin(git_repo()))
    agent.repo.write({"good": "g"})
    (agent.repo.path / "config.bin").write_bytes(content)
    more: dict[str, Any] = {"paths": ["config.bin", "good"]} if named else {}
    with pytest.raises(ToolError, match=r"Nothing was committed.*config\.bin holds the value of DEPLOY_TOKEN"):
        agent.commit(**more)
    assert agent.repo.git("rev-list", "--count", "HEAD") == "1"
    assert agent.repo.git("diff", "--cached", "--name-only") == ""
    agent.commit(paths=["good"])
    assert agent.files == ["good"]


def test_neither_a_message_nor_a_name_nor_a_link_takes_a_secret_along(git_repo: GitRepo) -> None:
    agent = knowing(begin(git_repo()))
    agent.repo.write({"a": "1"})
    with pytest.raises(ToolError, match="The message holds the value of DEPLOY_TOKEN"):
        agent.commit(f"Use {CANARY}")
    (agent.repo.path / "link").symlink_to(f"/{CANARY}")
    with pytest.raises(ToolError, match="link holds the value of DEPLOY_TOKEN"):
        agent.commit()
    (agent.repo.path / "link").unlink()
    agent.repo.write({CANARY: "1"})
    with pytest.raises(ToolError, match="holds the value of DEPLOY_TOKEN"):
        agent.commit()
    assert agent.repo.git("rev-list", "--count", "HEAD") == "1"


# --- finding it again -------------------------------------------------------------------------


def test_a_commit_is_found_again_with_the_same_outcome(git_repo: GitRepo) -> None:
    agent = begin(git_repo())
    assert agent.tool.effect is EffectClass.KEYED
    agent.repo.write({"a": "1"})
    assert agent.probe() is Probe.ABSENT
    outcome = agent.commit()
    assert agent.settle() == outcome
    assert agent.repo.git("rev-list", "--count", "HEAD") == "2"
    assert agent.next_call().probe() is Probe.ABSENT


def test_a_key_with_other_content_means_that_nobody_can_tell(git_repo: GitRepo) -> None:
    agent = begin(git_repo())
    agent.repo.write({"a": "1"})
    agent.commit("one")
    assert agent.probe("another") is Probe.UNKNOWN


def test_a_commit_that_its_branch_lost_is_still_known(git_repo: GitRepo) -> None:
    agent = begin(git_repo())
    agent.repo.write({"a": "1"})
    agent.commit()
    agent.repo.git("branch", "kept")
    agent.repo.git("reset", "-q", "--hard", "HEAD^")
    assert agent.probe() is Probe.APPLIED


@pytest.mark.parametrize(
    "leave",
    [
        ("checkout", "-q", "main"),
        ("reset", "-q", "--hard", "HEAD^"),
        ("checkout", "-q", "-B", "other", "HEAD^"),
    ],
    ids=" ".join,
)
def test_a_commit_that_only_the_reflog_reaches_is_still_known(git_repo: GitRepo, leave: tuple[str, ...]) -> None:
    """Killed right after HEAD moved; whoever looked after it went elsewhere before the resume."""
    repo = git_repo()
    repo.git("checkout", "-q", "--detach")
    agent = begin(repo)
    repo.write({"a": "1"})
    outcome = agent.commit()
    repo.git(*leave)
    repo.write({"b": "1"})
    repo.commit({"b": "1"}, "Another")
    assert agent.probe() is Probe.APPLIED
    assert agent.settle() == outcome
    assert agent.next_call().probe() is Probe.ABSENT


@pytest.mark.parametrize("log", [None, "", "not a log\n", "directory"])
def test_where_the_reflog_cannot_tell_nobody_can(git_repo: GitRepo, log: str | None) -> None:
    agent = begin(git_repo())
    agent.repo.write({"a": "1"})
    place = agent.repo.path / ".git/logs/HEAD"
    place.unlink()
    if log == "directory":
        place.mkdir()
    elif log is not None:
        place.write_text(log)
    assert agent.probe() is Probe.UNKNOWN


def test_a_reflog_that_lost_track_of_head_tells_nothing(git_repo: GitRepo) -> None:
    repo = git_repo()
    repo.git("checkout", "-q", "--detach")
    agent = begin(repo)
    repo.write({"a": "1"})
    agent.commit()
    before = (repo.path / ".git/logs/HEAD").read_bytes()
    repo.commit({"b": "1"}, "One")
    repo.commit({"b": "2"}, "Two")
    (repo.path / ".git/logs/HEAD").write_bytes(before)
    assert agent.next_call().probe() is Probe.UNKNOWN


def test_an_entry_of_a_move_that_never_was_is_no_commit(git_repo: GitRepo) -> None:
    """Git writes the reflog before it moves HEAD; killed in between, nothing was applied."""
    agent = begin(git_repo())
    ref = agent.repo.path / ".git/refs/heads/main"
    before = ref.read_text()
    agent.repo.write({"a": "1"})
    outcome = agent.commit()
    ref.write_text(before)
    assert agent.probe() is Probe.ABSENT
    assert agent.settle() == outcome
    assert agent.repo.git("rev-list", "--count", "HEAD") == "2"


def test_a_repository_that_cannot_be_read_gives_no_answer(git_repo: GitRepo) -> None:
    agent = begin(git_repo())
    shutil.rmtree(agent.repo.path / ".git/objects")
    assert agent.probe() is Probe.UNKNOWN


# --- killed -----------------------------------------------------------------------------------

DRIVER = """
import json, sys
from pathlib import Path
from endstate_action.agent.tools.base import CallContext
from endstate_action.agent.tools.commit import GitCommit
from endstate_action.system.files import Workspace
from endstate_action.system.git import discover

told = json.loads(sys.argv[1])
root = Path(told["root"])
repository = discover(root, told["environ"], root.parent / "tmp")
tool = GitCommit(repository, told["trust"], told["base"], {})
context = CallContext(Workspace(root), told["key"], told["digest"], told["started_at"], "tag")
print("ready", flush=True)
tool.run(told["arguments"], context, tool.plan(told["arguments"], context))
"""

WRAPPER = """#!/bin/sh
[ "$1" = "{command}" ] || [ "{command}" = any ] || exec {git} "$@"
echo >> {count}
[ $(wc -l < {count}) = {nth} ] || exec {git} "$@"
case {moment} in
    before) ;;
    during) for lock in {locks}; do touch "{root}/.git/$lock"; done ;;
    after) {git} "$@" ;;
esac
kill -9 $PPID
"""


@dataclass(frozen=True)
class Killing:
    """A call that a subprocess makes on a copy of one and the same repository, and may not survive."""

    template: Path
    agent: Agent
    outcome: str
    commit: str

    def fresh(self) -> Agent:
        root = self.agent.repo.path
        shutil.rmtree(root)
        shutil.copytree(self.template, root, symlinks=True)
        return self.agent

    def start(self, path: str) -> subprocess.Popen[bytes]:
        arguments = {"message": "A change"}
        told = {
            "root": str(self.agent.repo.path),
            "environ": {**os.environ, "PATH": path},
            "trust": self.agent.tool._trust,
            "base": self.agent.tool._base,
            "key": KEY,
            "digest": content_digest("git_commit", arguments),
            "started_at": self.agent.context.started_at,
            "arguments": arguments,
        }
        return subprocess.Popen([sys.executable, "-c", DRIVER, json.dumps(told)], stdout=subprocess.PIPE)

    def killed_at(self, command: str, nth: int, moment: str) -> bool:
        """Run with a git in front of git that kills its caller; False when the call survived."""
        place = self.template.parent / "bin"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        root, count = self.agent.repo.path, place / "count"
        locks = "HEAD.lock refs/heads/main.lock" if command == "update-ref" else "index.lock"
        parts = {"command": command, "nth": nth, "moment": moment, "locks": locks, "root": root, "count": count}
        (place / "git").write_text(WRAPPER.format(git=shutil.which("git"), **parts))
        (place / "git").chmod(0o755)
        with self.start(f"{place}{os.pathsep}{os.environ['PATH']}") as process:
            return process.wait(60) == -signal.SIGKILL

    def settles(self) -> None:
        repo = self.agent.repo
        assert self.agent.settle() == self.outcome
        assert repo.git("rev-parse", "HEAD") == self.commit
        assert repo.git("rev-list", "--count", "--all") == "2"
        assert self.agent.status == []
        assert repo.git("fsck", "--strict", "--no-dangling") == ""
        assert [*(repo.path / ".git").rglob("*.lock")] == []


@pytest.fixture
def killing(git_repo: GitRepo, tmp_path: Path) -> Killing:
    repo = git_repo({"a": "1", "gone": "1", "d/x": "1"})
    agent = begin(repo)
    repo.write({"a": "2", "d/new": "n"})
    (repo.path / "gone").unlink()
    shutil.copytree(repo.path, tmp_path / "template", symlinks=True)
    outcome = agent.commit()
    return Killing(tmp_path / "template", agent, outcome, repo.git("rev-parse", "HEAD"))


WRITES = [("update-index", 2), ("write-tree", 1), ("commit-tree", 1), ("update-index", 3), ("update-ref", 1)]


@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_killed_at_a_write_the_call_settles_as_if_undisturbed(killing: Killing, moment: str) -> None:
    """`during` leaves the lock files of a git that was killed with its caller."""
    for command, nth in WRITES if moment == "during" else WRITES[-2:]:
        killing.fresh()
        assert killing.killed_at(command, nth, moment)
        killing.settles()


@pytest.mark.recovery
@pytest.mark.timeout(900)
def test_killed_before_every_git_command_the_call_settles_as_if_undisturbed(killing: Killing) -> None:
    for nth in itertools.count(1):
        killing.fresh()
        if not killing.killed_at("any", nth, "before"):
            assert nth > 20
            return
        killing.settles()


@pytest.mark.recovery
@pytest.mark.timeout(900)
def test_killed_at_any_time_the_call_settles_as_if_undisturbed(killing: Killing) -> None:
    killing.fresh()
    with killing.start(os.environ["PATH"]) as undisturbed:
        assert undisturbed.stdout is not None
        undisturbed.stdout.readline()
        began = time.monotonic()
        assert undisturbed.wait(60) == 0
    whole_s, chance = time.monotonic() - began, random.Random(7)
    for _ in range(40):
        killing.fresh()
        with killing.start(os.environ["PATH"]) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(chance.uniform(0, whole_s))
            process.kill()
        killing.settles()
