"""The action in a workflow, under act: what reaches the command, by which way, and what does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import events
from tests.support.act import ACTION, MISSING, Act, repository
from tests.support.checkouts import Index, put_stand_in

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(MISSING), reason=MISSING)]

CREDENTIALS = {
    "ACTIONS_RUNTIME_TOKEN": "header.payload.signature",
    "ACTIONS_RESULTS_URL": "http://127.0.0.1:9/",
    "ACTIONS_CACHE_SERVICE_V2": "true",
    "ACTIONS_RUNTIME_URL": "http://127.0.0.1:9/pipelines/",
    "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "identity",
    "ACTIONS_ID_TOKEN_REQUEST_URL": "http://127.0.0.1:9/identity",
}
SAYS = {
    "if": "always()",
    "run": 'echo "conclusion=$CONCLUSION"; echo "session=$SESSION"',
    "env": {"CONCLUSION": "${{ steps.ours.outputs.conclusion }}", "SESSION": "${{ steps.ours.outputs.session-id }}"},
}


def uses(**given: str) -> dict[str, Any]:
    return {"id": "ours", "uses": ACTION, "with": {"anthropic-api-key": "${{ secrets.KEY }}", **given}}


@pytest.fixture
def stage(tmp_path: Path, index: Index, package: Path):
    """Runs a workflow of these steps on an event; returns the log and what reached the command."""

    def play(event: str, payload: dict[str, Any], *steps: dict[str, Any], job: Any = None, **env: str):
        put_stand_in(tmp_path / "action", package)
        repo = repository(tmp_path / "repo", event, [*steps, SAYS], **(job or {}))
        given = {
            "RECORD": str(tmp_path / "record.json"),
            "PIP_INDEX_URL": index.url,
            "UV_DEFAULT_INDEX": index.url,
        }
        act = Act(tmp_path, repo, tmp_path / "action", given)
        ran = act.run(
            event, payload, secrets={"KEY": "sk-secret-key-of-a-test", "GITHUB_TOKEN": "t0ken-of-a-test"}, **env
        )
        record = tmp_path / "record.json"
        return ran, json.loads(record.read_text()) if record.exists() else {}

    return play


def test_inputs_contexts_and_the_caches_credentials_reach_the_command(stage):
    prompt = 'Fix "it" $(now); `x` ${{ github.actor }}\nand & more'
    ran, seen = stage("pull_request", events.pull_request(), uses(prompt=prompt, store="cache"), **CREDENTIALS)
    assert ran.code == 0, ran.log
    env = seen["env"]
    assert seen["argv"] == ["action"]
    assert env["INPUT_PROMPT"] == 'Fix "it" $(now); `x` ada\nand & more'
    assert (env["INPUT_STORE"], env["INPUT_TRIGGER_PHRASE"], env["INPUT_MAX_COST_USD"]) == (
        "cache",
        "/endstate",
        "5.00",
    )
    assert (env["INPUT_ANTHROPIC_API_KEY"], env["INPUT_GITHUB_TOKEN"]) == ("sk-secret-key-of-a-test", "t0ken-of-a-test")
    assert env["INPUT_STEP"] == "ours"
    handed = {name: env.get(name) for name in CREDENTIALS}
    assert handed == {
        "ACTIONS_RUNTIME_TOKEN": "header.payload.signature",
        "ACTIONS_RESULTS_URL": "http://127.0.0.1:9/",
        "ACTIONS_CACHE_SERVICE_V2": "true",
        "ACTIONS_RUNTIME_URL": "",
        "ACTIONS_ID_TOKEN_REQUEST_TOKEN": None,
        "ACTIONS_ID_TOKEN_REQUEST_URL": None,
    }
    assert (ran.said("conclusion"), ran.said("session")) == ("success", "0123456789ab")
    for secret in ("header.payload.signature", "sk-secret-key-of-a-test", "t0ken-of-a-test"):
        assert secret not in ran.log


def test_matrix_jobs_can_be_told_apart(stage):
    """The step's own environment would not do: under act these contexts are empty inside an action."""
    job = {"strategy": {"matrix": {"python": ["3.11"]}}}
    _, seen = stage("push", events.push(), uses(prompt="p"), job=job)
    told = {name: json.loads(seen["env"][f"INPUT_{name}"]) for name in ("MATRIX", "STRATEGY", "JOB")}
    assert told["MATRIX"] == {"python": "3.11"}
    assert isinstance(told["STRATEGY"], dict)
    assert told["JOB"]["status"] == "success"


def test_two_uses_in_one_job_can_be_told_apart(stage, tmp_path):
    """The name of our own step, which the environment has, is the same for both."""
    records = [str(tmp_path / f"use-{n}.json") for n in range(2)]
    steps = [{"uses": ACTION, "with": {"prompt": "p"}, "env": {"RECORD": record}} for record in records]
    ran, _ = stage("push", events.push(), *steps)
    assert ran.code == 0, ran.log
    first, second = (json.loads(Path(record).read_text())["env"] for record in records)
    assert first["GITHUB_ACTION"] == second["GITHUB_ACTION"] == "run"
    assert first["INPUT_STEP"] != second["INPUT_STEP"]


def test_what_is_skipped_installs_nothing_and_says_so(stage, index, tmp_path):
    comment = events.issue_comment("Looks good", on_pull=False)
    ran, seen = stage("issue_comment", comment, uses(), **CREDENTIALS)
    assert (ran.code, seen, index.requests) == (0, {}, [])
    assert list(tmp_path.glob("home/**/endstate-action-*")) == []
    assert (ran.said("conclusion"), ran.said("session")) == ("skipped", "")
    assert "No line of the comment begins with the trigger phrase. Nothing was run." in ran.log


def test_a_failure_of_set_up_ends_the_step_and_is_a_conclusion(stage):
    """The outputs of a failed step can still be read."""
    nowhere = "http://127.0.0.1:9/simple"
    ran, seen = stage("push", events.push(), uses(prompt="p"), PIP_INDEX_URL=nowhere, UV_DEFAULT_INDEX=nowhere)
    assert (ran.code, seen) == (1, {})
    assert ran.said("conclusion") == "failed"
