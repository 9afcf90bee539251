"""Workflows under act whose machine is lost: the next attempts end where a run ends that nobody disturbs.

The real action, package, git and act, and strict fakes of all that they speak to. A fresh machine keeps nothing but
the tool cache, as a warm image does. Only the step before ours is given the cache's credentials: that attempts find
each other's checkpoints shows that they were handed over. Each kill is drawn from a seed, which a failure prints.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.act import ACTION, CHECKOUT, MISSING, Act, Ran, Victim, repository
from tests.support.cache_rules import make_token
from tests.support.checkouts import index_of, put_checkout, wheels_of_here
from tests.support.github_server import FOREVER, HungUp
from tests.support.messages_api import Answer, answer, call
from tests.support.step import Job, stage

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(MISSING), reason=MISSING),
]

KEY = "sk-ant-test-0123456789abcdef0123456789"
LAST_WORDS = "Version 2 is out."
REPLIES = (
    answer(call("write", path="a.txt", content="A\n"), call("bash", command="echo one >>log.txt")),
    answer(call("bash", command="sleep 0.3; echo two >>log.txt; ln -s a.txt link")),
    answer(call("edit", path="app.py", old="VERSION = 1", new="VERSION = 2")),
    answer(LAST_WORDS),
)
MADE = {"a.txt": "A", "log.txt": "one\ntwo", "app.py": "VERSION = 2", "link": "a.txt"}
SAME = (
    *("conclusion", "session-id", "base-tree", "tree-hash", "published-tree-hash", "git-tree", "branch"),
    *("changed-files", "final-message", "steps", "durability", "refused-calls"),
)
"""The outputs that do not tell whether anybody was killed."""

MARK = "PLANTED"
_CODE = f"import os; open(os.environ['{MARK}'], 'a').write('ran')\n"
PLANTED = {
    "anthropic/__init__.py": _CODE,
    "endstate_action/__init__.py": _CODE,
    "endstate_action/__main__.py": _CODE,
    "sitecustomize.py": _CODE,
    "planted.pth": _CODE,
    "uv.toml": 'index-url = "http://127.0.0.1:9/simple"\n',
    "pip.conf": "[global]\nindex-url = http://127.0.0.1:9/simple\n",
}


def model(body: dict[str, Any], _: int) -> Answer:
    """Says what comes next in the conversation, whoever leads it."""
    return REPLIES[sum(message["role"] == "assistant" for message in body["messages"])]


def steps(**given: str) -> list[dict[str, Any]]:
    ours = {"anthropic-api-key": "${{ secrets.KEY }}", "base-url": "${{ env.MODEL }}", "prompt": "Release version 2."}
    return [
        {"uses": CHECKOUT, "with": {"ref": "${{ github.event.pull_request.head.sha }}"}},
        {"id": "ours", "uses": ACTION, "with": {**ours, "commit": "branch", **given}},
        {
            "if": "always()",
            "run": 'printf %s "$TOLD" >"$OUTPUTS$N"',
            "env": {"TOLD": "${{ toJSON(steps.ours.outputs) }}", "N": "${{ matrix.n }}"},
        },
    ]


@dataclass
class World:
    """A pull request, whoever serves it, and the runner that its workflow is run on."""

    act: Act
    job: Job
    outputs_file: Path

    @property
    def served(self) -> int:
        """Requests so far, to whomever."""
        return len(self.job.api.requests) + len(self.job.github.received) + len(self.job.cache.requests)

    def begin(self, run_attempt: int) -> subprocess.Popen[str]:
        self.outputs_file.unlink(missing_ok=True)
        secrets = {"KEY": KEY, "GITHUB_TOKEN": self.job.github.token}
        told = {"GITHUB_RUN_ATTEMPT": str(run_attempt), "GITHUB_ACTOR": "alice"}
        return self.act.start("pull_request", self.job.event, secrets=secrets, **told)

    def attempt(self, run_attempt: int) -> Ran:
        return self.act.end(self.begin(run_attempt))

    def lost_attempt(self, run_attempt: int, victim: Victim, at: int, delay_s: float = 0) -> Ran:
        """An attempt that is killed some time after it made so many requests, unless it is done by then."""
        before, process = self.served, self.begin(run_attempt)
        while self.served < before + at and process.poll() is None:
            time.sleep(0.002)
        time.sleep(delay_s)
        return self.act.lose(process, victim)

    def outputs(self, of: str = "") -> dict[str, str]:
        told: dict[str, str] = json.loads(Path(f"{self.outputs_file}{of}").read_text())
        return told

    def end_state(self) -> dict[str, Any]:
        """What is there for everybody to see: one commit with these files, one comment."""
        outputs, github = self.outputs(), self.job.github
        branch = outputs["branch"]
        return {
            **{name: outputs[name] for name in SAME},
            "commits": github.git("rev-list", f"change..{branch}").split() == [outputs["commit-sha"]],
            "files": {name: github.git("cat-file", "-p", f"{branch}:{name}") for name in MADE},
            "comments": [LAST_WORDS in comment["body"] for comment in github.comments],
            "strays": github.git("for-each-ref", "--format=%(refname:short)").split(),
        }


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Act]:
    """The action's environment is made once; packages come from an index on loopback."""
    where = tmp_path_factory.mktemp("runner")
    packages = wheels_of_here(where)
    put_checkout(where / "action", packages)
    with index_of(*packages) as index:
        yield Act(where, where, where / "action", {"PIP_INDEX_URL": index.url, "UV_DEFAULT_INDEX": index.url})


@contextmanager
def a_world(folder: Path, runner: Act, given: dict[str, str] | None = None, **job: Any) -> Iterator[World]:
    folder.mkdir(exist_ok=True)
    with stage(folder, model, PLANTED) as served:
        workflow = repository(folder / "workflow", "pull_request", steps(**(given or {})), **job)
        env = {
            **runner.env,
            **served.cache.env(make_token()),
            "GITHUB_API_URL": served.github.url,
            "GITHUB_REPOSITORY_ID": "1",
            "CHECKOUT_FROM": str(served.github.git_dir),
            "MODEL": served.api.url,
            "OUTPUTS": str(folder / "outputs.json"),
            MARK: str(folder / "planted"),
        }
        yield World(replace(runner, repository=workflow, env=env), served, folder / "outputs.json")
        assert (served.cache.mistakes, served.api.refused) == ([], [])
        assert not (folder / "planted").exists()


@pytest.fixture
def world(tmp_path: Path, runner: Act) -> Iterator[World]:
    with a_world(tmp_path / "world", runner) as made:
        yield made


@dataclass(frozen=True)
class Undisturbed:
    """A run that nobody disturbed, in its world."""

    world: World
    end: dict[str, Any]
    requests: int


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, runner: Act) -> Iterator[Undisturbed]:
    with a_world(tmp_path_factory.mktemp("undisturbed"), runner) as world:
        ran = world.attempt(1)
        assert ran.code == 0, ran.log
        if world.outputs()["sandbox"] == "none":
            pytest.skip("there is no sandbox here, so a command that was cut off would not be run again")
        end = world.end_state()
        assert (end["conclusion"], end["durability"], end["files"]) == ("success", "cache", MADE)
        assert (end["commits"], end["comments"]) == (True, [True])
        yield Undisturbed(world, end, world.served)


def killed_at_random(world: World, undisturbed: Undisturbed, victims: tuple[Victim, ...], seed: int) -> None:
    """One attempt is lost for each victim; the next one has to finish."""
    draw = random.Random(seed)
    told = [f"seed {seed}"]
    for number, victim in enumerate(victims, 1):
        at, delay_s = draw.randint(1, undisturbed.requests), draw.uniform(0, 0.2)
        lost = world.lost_attempt(number, victim, at, delay_s)
        told.append(f"attempt {number}, {victim} killed {delay_s:.3f} s after request {at}\n{lost.log}")
    ran = world.attempt(len(victims) + 1)
    print(*told, ran.log, sep="\n")  # shown where what follows fails
    assert ran.code == 0
    assert world.end_state() == undisturbed.end


@pytest.mark.parametrize("victims", [("agent",), ("act",), ("both", "both")], ids="-".join)
def test_killed_anywhere_the_next_attempts_end_in_the_tree_of_an_undisturbed_run(world, undisturbed, victims):
    killed_at_random(world, undisturbed, victims, random.randrange(10**6))


@pytest.mark.recovery
@pytest.mark.parametrize("seed", range(20))
def test_killed_twice_anywhere_the_third_attempt_ends_in_the_same_tree(world, undisturbed, seed):
    draw = random.Random(seed)
    victims: tuple[Victim, ...] = tuple(draw.choices(("agent", "act", "both"), k=2))
    killed_at_random(world, undisturbed, victims, seed)


def test_killed_during_both_deliveries_nothing_is_delivered_twice_and_no_model_is_asked_again(world, undisturbed):
    """The commit is there and nobody heard of it; then the comment is asked for, and is not written."""
    github, api = world.job.github, world.job.api
    process = world.begin(1)
    github.fault("ref.create", "meanwhile", act=lambda: world.act.kill(process, "both"))
    world.act.lost(process)
    asked = len(api.requests)
    assert asked == len(REPLIES)

    second = world.begin(2)

    def lose() -> None:
        if LAST_WORDS in str(github.received[-1].body):
            world.act.kill(second, "both")
            raise HungUp

    github.fault("comment.edit", "meanwhile", times=FOREVER, act=lose)
    world.act.lost(second)
    assert not any(LAST_WORDS in comment["body"] for comment in github.comments)

    github.heal()
    ran = world.attempt(3)
    assert ran.code == 0, ran.log
    assert world.end_state() == undisturbed.end
    outputs = world.outputs()
    assert (len(api.requests), outputs["attempt"], outputs["resumed"]) == (asked, "3", "true")


def test_a_green_run_that_is_run_again_asks_no_model_and_tells_its_outputs_again(undisturbed):
    world = undisturbed.world
    first, asked = world.outputs(), len(world.job.api.requests)
    again = world.attempt(2)
    assert again.code == 0, again.log
    assert "This session was finished and delivered before, so nothing was run and nothing was spent." in again.log
    # Files stay behind with their machine.
    assert world.outputs() == {**first, "evidence-file": "", "patch-file": ""}
    assert (world.end_state(), len(world.job.api.requests)) == (undisturbed.end, asked)


def test_a_newer_release_goes_on_with_the_session_of_the_one_before(world, undisturbed, runner, tmp_path):
    newer = tmp_path / "newer"
    put_checkout(newer, wheels_of_here(tmp_path))
    version = newer / "src" / "endstate_action" / "__init__.py"
    text, count = re.subn(r'^__version__ = ".*"$', '__version__ = "99.0.0"', version.read_text(), flags=re.MULTILINE)
    assert count == 1
    version.write_text(text)
    # So late that there is something to go on with, and before it is delivered.
    process = world.begin(1)
    world.job.github.fault("ref.create", "meanwhile", act=lambda: world.act.kill(process, "both"))
    world.act.lost(process)
    ran = World(replace(world.act, action=newer), world.job, world.outputs_file).attempt(2)
    assert ran.code == 0, ran.log
    assert world.end_state() == undisturbed.end
    assert "endstate 99\\.0\\.0" in world.job.github.comments[0]["body"]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {**dict.fromkeys(("matrix", "strategy", "job"), "null"), "session-key": "n-${{ matrix.n }}"},
    ],
    ids=["contexts-given", "contexts-null"],
)
def test_two_jobs_of_a_matrix_have_two_sessions_and_two_comments(tmp_path, runner, given):
    with a_world(tmp_path / "world", runner, given, strategy={"matrix": {"n": ["1", "2"]}}) as world:
        ran = world.attempt(1)
        assert ran.code == 0, ran.log
        told = [world.outputs(n) for n in "12"]
        assert [(outputs["conclusion"], outputs["attempt"]) for outputs in told] == [("success", "1")] * 2
        assert len({outputs["session-id"] for outputs in told}) == 2
        assert len({outputs["branch"] for outputs in told}) == 2
        assert len({outputs["tree-hash"] for outputs in told}) == 1
        assert len(world.job.api.requests) == 2 * len(REPLIES)
        comments = [comment["body"] for comment in world.job.github.comments]
        assert len(comments) == 2
        for outputs in told:
            assert sum(outputs["session-id"] in comment for comment in comments) == 1
