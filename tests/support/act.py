"""Whole workflows under act, in host mode: a job gets a fresh copy of a git repository, and no network is needed.

What act cannot show: it answers signals with SIGKILL, runs `always()` steps where the real runner does
not, and gives every step what the real one keeps for Node steps. So the credentials of `Workflow` come from
the environment of act, and the action's own `env:` has to blank and hand over.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from tests.support.github_script import NODE, prepare_step, write_action

ACT = shutil.which("act", path=os.path.dirname(sys.executable)) or shutil.which("act")
MISSING = "there is no act here" if ACT is None else "there is no node here" if NODE is None else ""
ACTION = "org/endstate-action@v1"
CHECKOUT = f"actions/checkout@{'0' * 40}"
Victim = Literal["agent", "act", "both"]
GONE_S = 30.0
"""Whoever is to be gone is gone long before; it only keeps a test from hanging for ever."""

# What `actions/checkout` does where it leaves no credentials. (act has its own, for the commit that it stands on.)
_CHECKOUT = {
    "name": "checkout",
    "description": "c",
    "inputs": {"ref": {"default": "${{ github.sha }}"}, "persist-credentials": {"default": "true"}},
    "runs": {
        "using": "composite",
        "steps": [
            {
                "shell": "sh",
                "run": 'git init -q . && git fetch -q "$FROM" "$REF" && git checkout -q --detach FETCH_HEAD',
                "env": {"FROM": "${{ env.CHECKOUT_FROM }}", "REF": "${{ inputs.ref }}"},
            }
        ],
    },
}


@dataclass(frozen=True)
class Ran:
    code: int
    log: str

    def said(self, name: str) -> str:
        """What a step of the workflow printed as `NAME=...`."""
        (line,) = (line for line in self.log.splitlines() if f"| {name}=" in line)
        return line.partition(f"| {name}=")[2]


@dataclass(frozen=True)
class Act:
    """Where runs of one repository happen. `action` is the checkout of ours that workflows use."""

    where: Path
    repository: Path
    action: Path
    env: Mapping[str, str] = field(default_factory=dict)

    def start(
        self, event: str, payload: Mapping[str, Any], *, secrets: Mapping[str, str] | None = None, **env: str
    ) -> subprocess.Popen[str]:
        """One run of the repository's workflows. Runs share a home, the repository and what `env` names."""
        home = self.where / "home"
        home.mkdir(exist_ok=True)
        file = self.where / "event.json"
        file.write_text(json.dumps(payload))
        given = {"GITHUB_REPOSITORY": "org/repo", "GITHUB_RUN_ID": "4242", "GITHUB_RUN_ATTEMPT": "1"}
        variables = {**given, "CHECKOUT_FROM": str(self.repository), **self.env, **env}
        command = [
            *(str(ACT), event, "-e", str(file), "-P", "ubuntu-latest=-self-hosted", "--no-cache-server"),
            *("--actor", variables.pop("GITHUB_ACTOR", "ada"), "--artifact-server-addr", "127.0.0.1", "--rm"),
            *(option for name, path in self._actions().items() for option in ("--local-repository", f"{name}={path}")),
            *(option for name, value in variables.items() for option in ("--env", f"{name}={value}")),
            *(option for name, value in (secrets or {}).items() for option in ("-s", f"{name}={value}")),
        ]
        return subprocess.Popen(
            command,
            cwd=self.repository,
            env={"PATH": os.environ["PATH"], "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def _actions(self) -> dict[str, Path]:
        """Every action that a workflow uses, and where its stand-in is."""
        script, checkout = self.where / "github-script", self.where / "checkout"
        if not script.exists():
            write_action(script)
            checkout.mkdir()
            (checkout / "action.yml").write_text(yaml.safe_dump(_CHECKOUT))
        workflows = "".join(path.read_text() for path in self.repository.glob(".github/workflows/*.yml"))
        used = re.findall(r"actions/checkout@[0-9a-f]{40}", workflows)
        return {ACTION: self.action, prepare_step()["uses"]: script, **dict.fromkeys(used, checkout)}

    def run(
        self, event: str, payload: Mapping[str, Any], *, secrets: Mapping[str, str] | None = None, **env: str
    ) -> Ran:
        process = self.start(event, payload, secrets=secrets, **env)
        return self.end(process)

    def end(self, process: subprocess.Popen[str], timeout_s: float = 110) -> Ran:
        """What became of a run. However it ended, nobody of it is left behind."""
        try:
            log, _ = process.communicate(timeout=timeout_s)
        finally:
            self.kill(process, "both")
        return Ran(process.returncode, log)

    def agents(self) -> dict[int, int]:
        """Our command's processes on this machine, each with its parent."""
        return _agents_below(self.where / "home")

    def kill(self, process: subprocess.Popen[str], victim: Victim) -> None:
        """End one or both with no notice. With act its terminal is gone, of which whoever it started hears at once."""
        if victim != "agent":
            process.kill()
        agents = self.agents() if victim != "act" else {}
        for pid in sorted(
            agents, key=lambda pid: agents[pid] in agents
        ):  # a parent before the child that it would miss
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def lose(self, process: subprocess.Popen[str], victim: Victim) -> Ran:
        """Kill, and take the machine away."""
        self.kill(process, victim)
        return self.lost(process)

    def lost(self, process: subprocess.Popen[str]) -> Ran:
        """Wait until all of a run is over, and take its machine away: nothing but the tool cache outlives it."""
        log, _ = process.communicate(timeout=GONE_S)
        until = time.monotonic() + GONE_S
        while self.agents():
            assert time.monotonic() < until, f"they outlive act: {self.agents()}"
            time.sleep(0.01)
        for path in (self.where / "home" / "cache" / "act").glob("*"):
            if path.name != "tool_cache":
                shutil.rmtree(path, ignore_errors=True)
        return Ran(process.returncode, log)


def _agents_below(place: Path) -> dict[int, int]:
    """Whoever runs our package with a Python from below that place: others on the machine are none of our business."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            words = (path / "cmdline").read_bytes().split(b"\0")  # nothing, once it is dead and nobody has asked
            if place in Path(os.fsdecode(words[0])).parents and b"endstate_action" in words:
                found[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
    return found


def repository(where: Path, event: str, steps: list[dict[str, Any]], **job: Any) -> Path:
    """A git repository whose only workflow has one job with `steps`; its commit is the head of pull request 7 too."""
    workflow = {
        "name": "endstate",
        "on": event,
        "jobs": {"agent": {"runs-on": "ubuntu-latest", "steps": steps, **job}},
    }
    path = where / ".github" / "workflows" / "endstate.yml"
    path.parent.mkdir(parents=True)
    path.write_text(yaml.safe_dump(workflow, sort_keys=False))
    (where / "README.md").write_text("A repository.\n")
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.invalid")
    for arguments in (
        ("init", "-q", "-b", "main"),
        ("add", "-A"),
        (*identity, "commit", "-q", "-m", "begin"),
        ("update-ref", "refs/pull/7/head", "HEAD"),
        ("remote", "add", "origin", "https://github.invalid/org/repo"),
    ):
        subprocess.run(["git", *arguments], cwd=where, check=True, capture_output=True)
    return where


def head(repo: Path) -> str:
    found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=repo, check=True, capture_output=True, text=True)
    return found.stdout.strip()
