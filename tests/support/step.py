"""A step of a workflow, as the runner starts it, against the strict fakes of everything that it speaks to.

    with stage(tmp_path) as job:
        job.model = [answer(call("write", path="a", content="A")), answer("Done.")]
        ran = job.attempt(1)
    assert ran.code == 0

Every attempt gets a fresh machine: a new checkout, HOME and runner directories. What survives is what the fakes hold:
the repository and its pull request, and the cache.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.cache_rules import make_token
from tests.support.cache_server import CacheServer
from tests.support.github_server import GitHubServer, HungUp, bare_repository
from tests.support.messages_api import MessagesApi, Script
from tests.support.payloads import payload

ROOT = Path(__file__).parents[2]
API_KEY = "sk-ant-test-0123456789abcdef0123456789"
FILES = {"README.md": "# A project\n", "app.py": "VERSION = 1\n", "AGENTS.md": "Keep it short.\n"}


@dataclass(frozen=True)
class Ran:
    code: int
    log: str
    outputs: Mapping[str, str]
    summary: str
    workspace: Path

    @property
    def conclusion(self) -> str | None:
        return self.outputs.get("conclusion")

    @property
    def annotations(self) -> list[str]:
        return [line for line in self.log.splitlines() if line.startswith(("::error", "::warning", "::notice"))]


@dataclass
class Job:
    """One job of one run. `inputs` are the action's; `environ` is laid over what the runner sets."""

    folder: Path
    github: GitHubServer
    cache: CacheServer
    api: MessagesApi
    inputs: dict[str, str] = field(default_factory=dict)
    environ: dict[str, str] = field(default_factory=dict)
    event_name: str = "pull_request"
    event: dict[str, Any] = field(default_factory=dict)
    commit: str = ""
    """GITHUB_SHA; a re-run keeps it, whatever is pushed."""
    checkout: str | None = None
    """What the checkout step takes, that commit by default; `""`: there is no such step."""
    module: str = "endstate_action"
    """The command; `tests.support.no_sandbox` is the same on a machine without bubblewrap."""
    machines: int = 0
    process: subprocess.Popen[str] | None = None
    """The newest attempt's."""
    on_request: Callable[[int], None] = lambda number: None
    """Called with the number of each request to the model, from 1, before it is answered."""
    prepare: Callable[[Path], object] = lambda workspace: None
    """What steps before ours do to the checkout."""

    def happen(self, situation: str, **told: Any) -> dict[str, Any]:
        """Another event starts the run: its payload, of the shape that GitHub sends, made to tell of this repository.

        `told` replaces parts of it. The new payload is returned, to be changed further.
        """
        event = payload(situation)
        self.event_name, self.event = situation.partition(".")[0], event
        event["repository"] |= self._repository
        for subject in (event, event.get("issue"), event.get("pull_request")):
            if subject and "number" in subject:
                subject["number"] = self.github.number
        if "pull_request" in event:
            self._adapt(event["pull_request"])
        else:
            self.commit = self.github.tip("main") or ""
            self.environ["GITHUB_REF"] = "refs/heads/main"
        event |= told
        self.environ["GITHUB_ACTOR"] = event["sender"]["login"] if "sender" in event else "alice"
        return event

    @property
    def _repository(self) -> dict[str, Any]:
        return {"id": 1, "full_name": self.github.name, "default_branch": "main", "fork": False}

    def _adapt(self, pull: dict[str, Any]) -> None:
        is_fork = pull["head"]["repo"] is None or pull["head"]["repo"]["full_name"] != pull["base"]["repo"]["full_name"]
        pull["head"] |= {"sha": self.commit, "ref": "change"}
        pull["base"] |= {"sha": self.github.tip("main"), "ref": "main", "repo": self._repository}
        if not is_fork:
            pull["head"]["repo"] = self._repository

    def begin(self, run_attempt: int, **inputs: str) -> tuple[subprocess.Popen[str], Path]:
        """Start the step on a fresh machine; its machine's directory comes with it."""
        self.machines += 1
        machine = self.folder / f"machine-{self.machines}"
        workspace, temp, home = machine / "workspace", machine / "temp", machine / "home"
        for place in (temp, home):
            place.mkdir(parents=True)
        source = f"file://{self.github.git_dir}"
        workspace.mkdir()
        commit = self.commit if self.checkout is None else self.checkout
        if commit:
            for words in (
                ("init", "-q"),
                ("remote", "add", "origin", source),
                ("fetch", "-q", "--depth=1", "origin", commit),
                ("checkout", "-q", "--detach", commit),
            ):
                subprocess.run(["git", *words], cwd=workspace, check=True)
        self.prepare(workspace)
        event = machine / "event.json"
        event.write_text(json.dumps(self.event))
        for name in ("output", "summary", "env", "path", "state"):
            (temp / name).touch()
        given = {f"INPUT_{n.upper().replace('-', '_')}": v for n, v in {**self.inputs, **inputs}.items()}
        environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "GITHUB_ACTIONS": "true",
            "GITHUB_ACTOR": "alice",
            "GITHUB_EVENT_NAME": self.event_name,
            "GITHUB_EVENT_PATH": str(event),
            "GITHUB_REPOSITORY": self.github.name,
            "GITHUB_REPOSITORY_ID": "1",
            # Its own: sessions of one name would end each other's commands.
            "GITHUB_RUN_ID": str(zlib.crc32(os.fsencode(self.folder)) + 1),
            "GITHUB_RUN_ATTEMPT": str(run_attempt),
            "GITHUB_WORKFLOW_REF": f"{self.github.name}/.github/workflows/agent.yml@refs/pull/7/merge",
            "GITHUB_JOB": "agent",
            "GITHUB_ACTION": "__org_endstate-action",
            "GITHUB_SHA": self.commit,
            "GITHUB_REF": "refs/pull/7/merge",
            "GITHUB_SERVER_URL": "https://github.com",
            "GITHUB_API_URL": self.github.url,
            "GITHUB_WORKSPACE": str(workspace),
            "GITHUB_OUTPUT": str(temp / "output"),
            "GITHUB_STEP_SUMMARY": str(temp / "summary"),
            "GITHUB_ENV": str(temp / "env"),
            "GITHUB_PATH": str(temp / "path"),
            "GITHUB_STATE": str(temp / "state"),
            "RUNNER_TEMP": str(temp),
            "INPUT_ANTHROPIC_API_KEY": API_KEY,
            "INPUT_BASE_URL": self.api.url,
            "INPUT_GITHUB_TOKEN": self.github.token,
            "ACTIONS_CACHE_SERVICE_V2": "true",
            "ACTIONS_RESULTS_URL": self.cache.url + "/",
            "ACTIONS_RUNTIME_TOKEN": make_token(),
            **given,
            **self.environ,
        }
        process = subprocess.Popen(
            [sys.executable, "-m", self.module, "action"],
            cwd=machine,
            env={**environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.process = process
        return process, machine

    def kill(self) -> None:
        """End the newest attempt as a lost machine does; waits until it is gone."""
        assert self.process is not None
        # Held first: it would start a child that was killed once more.
        os.kill(self.process.pid, signal.SIGSTOP)
        for child in children_of(self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self.process.kill()
        self.process.wait()

    def kill_at_request(self, number: int) -> None:
        """Lose the machine while it waits for the model's answer to the request with this number."""
        self.on_request = lambda sent: self.kill() if sent == number else None

    def kill_at(self, operation: str, at: int = 1, *, is_applied: bool) -> None:
        """Lose the machine at the `at`th request for `operation` from now on, applied or not; `*` is of any kind."""

        def lose() -> None:
            self.kill()
            if not is_applied:
                raise HungUp

        self.github.fault(operation, "meanwhile", at=at, act=lose)

    def attempt(self, run_attempt: int = 1, **inputs: str) -> Ran:
        process, machine = self.begin(run_attempt, **inputs)
        return self.end(process, machine)

    def end(self, process: subprocess.Popen[str], machine: Path, timeout_s: float = 100) -> Ran:
        log, _ = process.communicate(timeout=timeout_s)
        temp = machine / "temp"
        return Ran(
            process.returncode,
            log,
            outputs_of((temp / "output").read_text()),
            (temp / "summary").read_text(),
            machine / "workspace",
        )


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def outputs_of(text: str) -> dict[str, str]:
    """As the runner reads the file; the last word on a name counts."""
    entries = re.findall(r"^([a-z-]+)<<(\S+)\n(.*?)\n?\2$", text, re.MULTILINE | re.DOTALL)
    return {name: value for name, _, value in entries}


def turns(*replies: Script) -> Callable[[dict[str, Any], int], Script]:
    """A model that answers each turn of the conversation in one way, however often it is asked."""
    return lambda body, _: replies[(len(body["messages"]) - 1) // 2]


@contextmanager
def stage(folder: Path, replies: Any, files: Mapping[str, str] | None = None) -> Iterator[Job]:
    """Everything that a step speaks to, up until the block ends. The pull request changes one file."""
    jobs: list[Job] = []
    bare = bare_repository(folder, {**FILES, **(files or {})})
    with (
        GitHubServer(bare) as github,
        CacheServer() as cache,
        MessagesApi(replies, on_request=lambda body: jobs[0].on_request(len(jobs[0].api.requests))) as api,
    ):
        github.push("change", {"feature.txt": "new\n"})
        github.head_sha = github.tip("change") or ""
        job = Job(folder, github, cache, api, inputs={"prompt": "Raise the version."}, commit=github.head_sha)
        jobs.append(job)
        event = job.happen("pull_request.opened")
        event["pull_request"]["user"]["login"] = event["sender"]["login"] = job.environ["GITHUB_ACTOR"] = "alice"
        yield job
