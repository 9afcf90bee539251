"""The workflows to copy: they say what the action understands, guard what they start, and run as they stand."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from endstate_action.config import Limits
from tests.support import events
from tests.support.act import MISSING, Act, head, repository
from tests.support.checkouts import ROOT, Index, put_stand_in

FOLDER = ROOT / "docs" / "examples" / "workflows"
READY = sorted(path for path in FOLDER.glob("*.yml") if not path.stem.startswith("resume-"))
OURS = sorted(p for p in (ROOT / ".github" / "workflows").glob("*.yml") if p.stem != "agent")
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))

each_ready = pytest.mark.parametrize("path", READY, ids=lambda path: path.stem)


def workflow(path: Path) -> dict[Any, Any]:
    found: dict[Any, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


def job(path: Path) -> dict[str, Any]:
    (only,) = workflow(path)["jobs"].values()
    return dict(only)


def step(path: Path, of: str) -> dict[str, Any]:
    (found,) = (step for step in job(path)["steps"] if step.get("uses", "").startswith(of))
    return dict(found)


def audit(*options: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "zizmor"), "--offline", "--min-severity", "medium", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_every_event_that_people_ask_for_has_a_workflow():
    triggers = {trigger for path in READY for trigger in workflow(path)[True]}  # `on` is a boolean in YAML 1.1
    assert triggers == {"pull_request", "issue_comment", "workflow_dispatch", "schedule"}
    assert {path.stem for path in READY} == {"pull-request", "comment", "label", "dispatch", "schedule"}


@each_ready
def test_a_workflow_says_only_what_the_action_understands(path):
    given = step(path, "org/endstate-action@v1")["with"]
    assert given.keys() <= ACTION["inputs"].keys()
    assert "anthropic-api-key" in given
    assert re.fullmatch(r"\$\{\{ vars\.ENDSTATE_MAX_COST_USD \|\| '5\.00' \}\}", given["max-cost-usd"])


@each_ready
def test_a_workflow_checks_out_a_commit_and_leaves_no_credential(path):
    checkout = step(path, "actions/checkout@")
    assert re.fullmatch(r"actions/checkout@[0-9a-f]{40}", checkout["uses"])
    assert checkout["with"]["persist-credentials"] is False
    assert re.search(r"head\.sha|/head$|github\.sha", checkout["with"]["ref"])


@each_ready
def test_a_workflow_is_guarded_and_ends_by_itself(path):
    only = job(path)
    assert only["timeout-minutes"] > Limits().max_minutes
    assert "concurrency" in workflow(path) or "concurrency" in only
    guard = only["if"]
    assert "repo.full_name == github.repository" in guard or "fork" in guard or "author_association" in guard
    if path.stem != "schedule":
        assert "github.actor != 'dependabot[bot]'" in guard


@each_ready
def test_every_permission_is_given_to_the_job_and_explained(path):
    assert workflow(path)["permissions"] == {}
    lines = path.read_text(encoding="utf-8").splitlines()
    given = [line for line in lines if re.match(r" +[a-z-]+: (read|write)\b", line)]
    assert len(given) == len(job(path)["permissions"])
    assert [line for line in given if not re.search(r" # to \w+", line)] == []


def test_what_writes_comments_or_commits_has_the_permission_to():
    for path in READY:
        given, permissions = step(path, "org/endstate-action@v1")["with"], job(path)["permissions"]
        needs = given.get("commit", "none") != "none" or given.get("store") == "git-ref"
        assert permissions["contents"] == ("write" if needs else "read"), path
        assert ("pull-requests" in permissions) is (path.stem in {"pull-request", "comment", "label"}), path


def test_a_comment_workflow_keeps_checkpoints_where_its_token_may_write():
    assert step(FOLDER / "comment.yml", "org/endstate-action@v1")["with"]["store"] == "git-ref"
    assert "`cache-mode: write`" in (FOLDER / "comment.yml").read_text(encoding="utf-8")


@pytest.mark.slow
def test_an_audit_finds_nothing_of_weight():
    ready = audit("--no-config", *map(str, READY))
    ours = audit(*map(str, OURS), str(ROOT / "action.yml"), str(ROOT / "resume" / "action.yml"))
    assert (ready.returncode, ours.returncode) == (0, 0), ready.stdout + ours.stdout


# Our own


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.stem)
def test_our_workflows_grant_nothing_by_default_and_end_by_themselves(path):
    found = workflow(path)
    assert found["permissions"] == {}
    for name, of in found["jobs"].items():
        assert "permissions" in of, name
        if "steps" in of:
            assert of["timeout-minutes"] <= 60, name
        used = [step["uses"] for step in of.get("steps", []) if step.get("uses", "./") != "./"]
        assert [uses for uses in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", uses)] == []
        assert [step for step in of.get("steps", []) if "${{" in step.get("run", "")] == []


def test_the_major_tag_moves_only_after_everything_else():
    jobs = workflow(ROOT / ".github" / "workflows" / "release.yml")["jobs"]
    assert set(jobs["move"]["needs"]) == jobs.keys() - {"move"}
    assert {of["uses"] for of in jobs.values() if "uses" in of} == {
        "./.github/workflows/ci.yml",
        "./.github/workflows/self-use.yml",
    }
    assert [name for name, of in jobs.items() if "git/refs" in json.dumps(of)] == ["move"]


_GH = """#!/bin/sh
echo "$*" >>"$CALLS"
case $* in *matching-refs*) printf 'refs/tags/%s\\n' v1.2.0 v1.1.9 v1.10.0 v1.10.0-rc.1 ;; esac
"""


@pytest.mark.parametrize(("tag", "moves"), [("v1.10.0", True), ("v1.2.0", False), ("v1.1.9", False)])
def test_a_correction_of_an_older_release_does_not_take_the_major_tag_back(tmp_path: Path, tag: str, moves: bool):
    (step,) = workflow(ROOT / ".github" / "workflows" / "release.yml")["jobs"]["move"]["steps"]
    (tmp_path / "gh").write_text(_GH)
    (tmp_path / "gh").chmod(0o755)
    given = {"GITHUB_REF_NAME": tag, "GITHUB_REPOSITORY": "org/repo", "GITHUB_SHA": "f" * 40}
    environ = {"PATH": f"{tmp_path}:{os.defpath}", "CALLS": str(tmp_path / "calls"), **given}

    subprocess.run(["bash", "-e", "-o", "pipefail", "-c", step["run"]], env=environ, check=True, timeout=30)

    moved = [call for call in (tmp_path / "calls").read_text().splitlines() if "force=true" in call]
    assert bool(moved) is moves
    assert all("git/refs/tags/v1 " in call for call in moved)


def test_the_action_is_used_on_itself_twice_on_one_session():
    steps = job(ROOT / ".github" / "workflows" / "self-use.yml")["steps"]
    first, second = (step["with"] for step in steps if step.get("uses") == "./")
    assert second == {**first, "resume": "required"}
    assert first.keys() <= ACTION["inputs"].keys()


# As they stand, under act


@pytest.mark.slow
@pytest.mark.skipif(bool(MISSING), reason=MISSING)
@pytest.mark.parametrize(
    ("name", "event", "payload", "reached"),
    [
        ("pull-request", "pull_request", events.pull_request(), True),
        ("pull-request", "pull_request", events.pull_request(head=events.FORK), False),
        ("label", "pull_request", events.labelled(), True),
        ("comment", "issue_comment", events.issue_comment("/endstate fix it"), True),
        ("comment", "issue_comment", events.issue_comment("Looks good"), False),
        ("comment", "issue_comment", events.issue_comment("Thanks!\n\n/endstate fix it"), True),
        ("comment", "issue_comment", events.issue_comment("/endstate fix it", on_pull=False), False),
        ("dispatch", "workflow_dispatch", events.workflow_dispatch(), True),
        ("schedule", "schedule", events.schedule(), True),
    ],
)
def test_a_workflow_runs_as_it_stands(tmp_path, index: Index, package, name, event, payload, reached):
    given = step(FOLDER / f"{name}.yml", "org/endstate-action@v1")["with"]
    put_stand_in(tmp_path / "action", package)
    repo = repository(tmp_path / "repo", event, [])
    shutil.copy(FOLDER / f"{name}.yml", repo / ".github" / "workflows" / "endstate.yml")
    env = {"RECORD": str(tmp_path / "record.json"), "PIP_INDEX_URL": index.url, "UV_DEFAULT_INDEX": index.url}
    act = Act(tmp_path, repo, tmp_path / "action", {**env, "GITHUB_API_URL": "http://127.0.0.1:9"})
    payload = json.loads(json.dumps(payload).replace("1" * 40, head(repo)))
    secrets = {"ANTHROPIC_API_KEY": "sk-secret-key-of-a-test", "GITHUB_TOKEN": "t0ken-of-a-test"}
    ran = act.run(event, payload, secrets=secrets)
    assert ran.code == 0, ran.log
    record = tmp_path / "record.json"
    assert record.exists() is reached, ran.log
    if reached:
        seen = json.loads(record.read_text())["env"]
        assert (seen["INPUT_MAX_COST_USD"], seen["INPUT_ANTHROPIC_API_KEY"]) == ("5.00", secrets["ANTHROPIC_API_KEY"])
        assert seen["INPUT_PROMPT"] == {"dispatch": "Update the changelog", "comment": ""}.get(
            name, given.get("prompt")
        )
