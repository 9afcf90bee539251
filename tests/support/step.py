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
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.cache_rules import make_token
from tests.support.cache_server import CacheServer
from tests.support.github_server import GitHubServer, bare_repository
from tests.support.messages_api import MessagesApi
from tests.support.payloads import payload

ROOT = Path(__file__).parents[2]
FILES = {"README.md": "# A project\n", "app.py": "VERSION = 1\n", "AGENTS.md": "Keep it short.\n"}


@dataclass(frozen=True)
class Ran:
    code: int
    log: str
    outputs: Mapping[str, str]
    summary: str
    workspace: Path

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
    checkout: str = "change"
    """The branch or commit that the checkout step takes."""
    machines: int = 0

    def begin(self, run_attempt: int, **inputs: str) -> tuple[subprocess.Popen[str], Path]:
        """Start the step on a fresh machine; its machine's directory comes with it."""
        self.machines += 1
        machine = self.folder / f"machine-{self.machines}"
        workspace, temp, home = machine / "workspace", machine / "temp", machine / "home"
        for place in (temp, home):
            place.mkdir(parents=True)
        source = f"file://{self.github.git_dir}"
        subprocess.run(["git", "clone", "-q", "--depth=1", f"--branch={self.checkout}", source, workspace], check=True)
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
            "GITHUB_RUN_ID": "4242",
            "GITHUB_RUN_ATTEMPT": str(run_attempt),
            "GITHUB_WORKFLOW_REF": f"{self.github.name}/.github/workflows/agent.yml@refs/pull/7/merge",
            "GITHUB_JOB": "agent",
            "GITHUB_ACTION": "__org_endstate-action",
            "GITHUB_SHA": self.github.head_sha,
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
            "INPUT_ANTHROPIC_API_KEY": "sk-ant-test-0123456789abcdef0123456789",
            "INPUT_BASE_URL": self.api.url,
            "INPUT_GITHUB_TOKEN": self.github.token,
            "ACTIONS_CACHE_SERVICE_V2": "true",
            "ACTIONS_RESULTS_URL": self.cache.url + "/",
            "ACTIONS_RUNTIME_TOKEN": make_token(),
            **given,
            **self.environ,
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "endstate_action", "action"],
            cwd=machine,
            env={**environ, "PYTHONPATH": str(ROOT / "src")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return process, machine

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


def outputs_of(text: str) -> dict[str, str]:
    """As the runner reads the file; the last word on a name counts."""
    entries = re.findall(r"^([a-z-]+)<<(\S+)\n(.*?)\n?\2$", text, re.MULTILINE | re.DOTALL)
    return {name: value for name, _, value in entries}


@contextmanager
def stage(folder: Path, replies: Any, files: Mapping[str, str] | None = None) -> Iterator[Job]:
    """Everything that a step speaks to, up until the block ends. The pull request changes one file."""
    bare = bare_repository(folder, {**FILES, **(files or {})})
    with (
        GitHubServer(bare) as github,
        CacheServer() as cache,
        MessagesApi(replies) as api,
    ):
        github.push("change", {"feature.txt": "new\n"})
        github.head_sha = github.tip("change") or ""
        event = payload("pull_request.opened")
        pull = event["pull_request"]
        repo = {"id": 1, "full_name": github.name, "default_branch": "main", "fork": False}
        pull["number"] = event["number"] = github.number
        pull["head"] |= {"sha": github.head_sha, "ref": "change", "repo": repo}
        pull["base"] |= {"sha": github.tip("main"), "ref": "main", "repo": repo}
        pull["user"]["login"], event["sender"]["login"] = "alice", "alice"
        event["repository"] |= repo
        yield Job(folder, github, cache, api, inputs={"prompt": "Raise the version."}, event=event)
