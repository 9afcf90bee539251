"""The inline script of `action.yml`, run by Node as `actions/github-script` runs it.

`core`, `context` and `github` are stand-ins with the parts that the script uses: `core` speaks to the
runner as the real one does, `github` asks `GITHUB_API_URL`. With `write_action` they become an action in a
folder, which act can take in the place of the real one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.support.checkouts import ROOT

NODE = shutil.which("node")

_MAIN = r"""
const fs = require('fs');
const env = process.env;
const escape = (text) => String(text).replace(/%/g, '%25').replace(/\r/g, '%0D').replace(/\n/g, '%0A');
const payload = JSON.parse(fs.readFileSync(env.GITHUB_EVENT_PATH, 'utf8'));
const [owner, repo] = (env.GITHUB_REPOSITORY ?? '/').split('/');
const context = { eventName: env.GITHUB_EVENT_NAME, actor: env.GITHUB_ACTOR, payload, repo: { owner, repo } };
const core = {
  info: (text) => console.log(text),
  notice: (text, { title }) => console.log(`::notice title=${title}::${escape(text)}`),
  setSecret: (text) => console.log(`::add-mask::${escape(text)}`),
  setOutput: (name, text) => fs.appendFileSync(env.GITHUB_OUTPUT, `${name}<<END-OF-VALUE\n${text}\nEND-OF-VALUE\n`),
};
const get = async ({ owner, repo, pull_number }) => {
  const answer = await fetch(`${env.GITHUB_API_URL}/repos/${owner}/${repo}/pulls/${pull_number}`, {
    headers: { authorization: `token ${env['INPUT_GITHUB-TOKEN'] ?? ''}` },
  });
  if (!answer.ok) throw Object.assign(new Error('refused'), { status: answer.status });
  return { data: await answer.json() };
};
const github = { rest: { pulls: { get } } };
const AsyncFunction = Object.getPrototypeOf(async () => {}).constructor;
new AsyncFunction('core', 'context', 'github', env.INPUT_SCRIPT)(core, context, github).catch((error) => {
  console.log(`::error::${escape(error.stack)}`);
  process.exitCode = 1;
});
"""


def prepare_step() -> dict[str, Any]:
    steps = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))["runs"]["steps"]
    (found,) = (step for step in steps if step["id"] == "prepare")
    step: dict[str, Any] = found
    return step


def write_action(where: Path) -> Path:
    """A stand-in for `actions/github-script`, as an action of its own."""
    where.mkdir(parents=True)
    (where / "main.js").write_text(_MAIN)
    inputs = {"script": {"required": True}, "github-token": {"default": ""}}
    manifest = {"name": "script", "description": "s", "inputs": inputs, "runs": {"using": "node20", "main": "main.js"}}
    (where / "action.yml").write_text(yaml.safe_dump(manifest))
    return where


@dataclass(frozen=True)
class Prepared:
    code: int
    out: str
    outputs: dict[str, str]

    @property
    def skipped(self) -> str:
        """Why, or nothing."""
        if self.outputs.get("skip") != "true":
            return ""
        (line,) = (line for line in self.out.splitlines() if line.startswith("::notice title=endstate::"))
        return line.removeprefix("::notice title=endstate::")


def prepare(where: Path, event: str, payload: Mapping[str, Any], **env: str) -> Prepared:
    """Run the script on an event. Inputs have the defaults of the action, and there is a key."""
    (where / "main.js").write_text(_MAIN)
    (where / "event.json").write_text(json.dumps(payload))
    (where / "outputs").write_text("")
    given = {
        "PATH": os.environ["PATH"],
        "INPUT_SCRIPT": prepare_step()["with"]["script"],
        "GITHUB_EVENT_NAME": event,
        "GITHUB_EVENT_PATH": str(where / "event.json"),
        "GITHUB_OUTPUT": str(where / "outputs"),
        "GITHUB_REPOSITORY": "org/repo",
        "GITHUB_ACTOR": "ada",
        "GITHUB_RUN_ATTEMPT": "1",
        "GITHUB_API_URL": "http://127.0.0.1:9",
        "ALLOW_FORKS": "false",
        "ALLOWED_BOTS": "",
        "HAS_KEY": "true",
        "TRIGGER_PHRASE": "/endstate",
    }
    done = subprocess.run(
        [str(NODE), str(where / "main.js")],
        env={**given, **env},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return Prepared(done.returncode, done.stdout + done.stderr, read_outputs((where / "outputs").read_text()))


def read_outputs(text: str) -> dict[str, str]:
    outputs = {}
    lines = iter(text.splitlines())
    for line in lines:
        name, _, end = line.partition("<<")
        value = []
        while (line := next(lines)) != end:
            value.append(line)
        outputs[name] = "\n".join(value)
    return outputs
