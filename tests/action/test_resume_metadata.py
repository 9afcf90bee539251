"""What people paste so that a lost run goes on: it grants what the watcher asks for, and retries what was lost only."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from endstate_action.ci.conclusions import CONCLUSIONS, Conclusion
from endstate_action.ci.preemption import MOST_RERUNS
from endstate_action.config import Limits
from endstate_action.watch import LOOK_BACK, MOST_LOOKED_AT, PERMISSIONS
from tests.support import events
from tests.support.act import MISSING, Act, head, repository
from tests.support.checkouts import ROOT

EXAMPLES = ROOT / "docs" / "examples" / "workflows"
WATCHERS = [EXAMPLES / "resume-watch.yml", EXAMPLES / "resume-schedule.yml"]
CALLER = EXAMPLES / "resume-retry.yml"
AGENT = ROOT / ".github" / "workflows" / "agent.yml"
PAGE = ROOT / "docs" / "automatic-resume.md"
NEEDED = yaml.safe_load(PERMISSIONS)["permissions"]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
RESUME = yaml.safe_load((ROOT / "resume" / "action.yml").read_text(encoding="utf-8"))

each_watcher = pytest.mark.parametrize("path", WATCHERS, ids=lambda path: path.stem)
each_file = pytest.mark.parametrize("path", [*WATCHERS, CALLER, AGENT], ids=lambda path: path.stem)


def workflow(path: Path) -> dict[Any, Any]:
    found: dict[Any, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


def job(path: Path) -> dict[str, Any]:
    (only,) = workflow(path)["jobs"].values()
    return dict(only)


def tries() -> list[dict[str, Any]]:
    jobs = workflow(AGENT)["jobs"]
    return [jobs[name] for name in ("try1", "try2", "try3")]


# The watcher


def test_the_watchers_interface_is_what_it_reads_and_writes():
    assert list(RESUME["inputs"]) == ["github-token", "max-attempts"]
    assert RESUME["inputs"]["github-token"]["default"] == "${{ github.token }}"
    assert 1 <= int(RESUME["inputs"]["max-attempts"]["default"]) <= MOST_RERUNS
    typed = yaml.safe_load((ROOT / "resume" / "action-types.yml").read_text(encoding="utf-8"))
    assert typed["outputs"]["decision"]["allowed-values"] == ["re-run", "left-alone"]
    for name, level in NEEDED.items():
        assert f"`{name}: {level}`" in RESUME["inputs"]["github-token"]["description"]


def test_the_watcher_is_the_command_and_is_given_no_key():
    (step,) = RESUME["runs"]["steps"]
    assert step["run"].endswith(" rerun-preempted")
    assert {name for name in step["env"] if name.startswith("INPUT_")} == {"INPUT_GITHUB_TOKEN", "INPUT_MAX_ATTEMPTS"}


@each_watcher
def test_a_watchers_job_may_do_what_it_must_and_no_more(path):
    assert job(path)["permissions"] == NEEDED
    assert [s["uses"] for s in job(path)["steps"]] == ["org/endstate-action/resume@v1"]
    assert "secrets." not in path.read_text(encoding="utf-8")
    for step in job(path)["steps"]:
        assert step["with"].keys() <= RESUME["inputs"].keys()


@each_watcher
def test_a_watcher_ends_by_itself_and_never_runs_twice_at_once(path):
    assert job(path)["timeout-minutes"] <= 10
    assert workflow(path)["concurrency"]["cancel-in-progress"] is False


def test_the_watcher_does_not_watch_itself():
    found = workflow(WATCHERS[0])
    watched = found[True]["workflow_run"]
    assert watched["types"] == ["completed"]
    assert found["name"] not in watched["workflows"]
    assert workflow(EXAMPLES / "pull-request.yml")["name"] in watched["workflows"]


@each_file
def test_nothing_is_granted_by_default_and_each_permission_has_its_reason(path):
    assert workflow(path)["permissions"] == {}
    first: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if found := re.match(r" +([a-z-]+): (?:read|write)\b(.*)", line):
            first.setdefault(found[1], found[2])
    assert first
    assert [name for name, reason in first.items() if not re.match(r" # to \w+", reason)] == []


# Retry jobs


def test_each_try_is_the_same_but_for_its_machine():
    first, *later = tries()
    for one in tries():
        assert (one["steps"], one["permissions"], one["outputs"]) == (
            first["steps"],
            first["permissions"],
            first["outputs"],
        )
        assert one["timeout-minutes"] > Limits().max_minutes
        assert one["continue-on-error"] is True
    assert first["runs-on"] == "${{ inputs.runs-on }}"
    assert {one["runs-on"] for one in later} == {"${{ inputs.retry-runs-on }}"}


def test_a_session_key_has_to_be_given_since_tries_are_jobs_of_their_own():
    given = workflow(AGENT)[True]["workflow_call"]["inputs"]["session-key"]
    assert given["required"] is True
    assert "default" not in given
    assert all(one["steps"][-1]["with"]["session-key"] == "${{ inputs.session-key }}" for one in tries())


def test_every_input_is_described_and_used_and_the_action_understands_it():
    called = workflow(AGENT)[True]["workflow_call"]
    text = AGENT.read_text(encoding="utf-8")
    for name, of in (called["inputs"] | called["secrets"]).items():
        assert of["description"].rstrip().endswith("."), name
        assert f"inputs.{name} }}" in text or f"secrets.{name} }}" in text, name
    given = tries()[0]["steps"][-1]["with"]
    assert given.keys() <= ACTION["inputs"].keys()
    for name in ("max-cost-usd", "max-minutes", "store", "prompt"):
        assert called["inputs"][name]["default"] == ACTION["inputs"][name]["default"], name


def test_the_next_try_is_for_what_the_watcher_would_run_again_or_what_said_nothing():
    again = {row.conclusion for row in CONCLUSIONS if row.watcher == "runs it again"} | {""}
    for number, one in enumerate(tries()[1:], 1):
        listed = re.search(r"fromJSON\('(\[.*?\])'\), needs\.try(\d)\.outputs\.conclusion", one["if"])
        assert listed is not None
        assert (set(yaml.safe_load(listed[1])), int(listed[2])) == (again, number)
        assert one["if"].startswith("!cancelled()")


def test_foreign_actions_are_pinned_and_nothing_is_interpolated():
    steps = [step for of in workflow(AGENT)["jobs"].values() for step in of["steps"]]
    used = {step["uses"] for step in steps if "uses" in step} - {"org/endstate-action@v1"}
    assert [uses for uses in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", uses)] == []
    assert [step for step in steps if "${{" in step.get("run", "")] == []
    assert all(step["with"]["persist-credentials"] is False for step in steps if "checkout" in step.get("uses", ""))


def test_the_ready_caller_gives_what_is_asked_for():
    called, only = workflow(AGENT)[True]["workflow_call"], job(CALLER)
    required = {name for name, of in called["inputs"].items() if of.get("required")}
    assert required <= only["with"].keys() <= called["inputs"].keys()
    assert only["secrets"].keys() == called["secrets"].keys()
    assert only["permissions"] == tries()[0]["permissions"]
    assert "github.run_id" in only["with"]["session-key"]
    assert "repo.full_name == github.repository" in only["if"]


@pytest.mark.slow
def test_an_audit_finds_nothing_of_weight():
    zizmor = [str(Path(sys.executable).parent / "zizmor"), "--offline", "--min-severity", "medium"]
    ready = [*zizmor, "--no-config", *map(str, [*WATCHERS, CALLER])]
    for command in (ready, [*zizmor, str(AGENT), str(ROOT / "resume" / "action.yml")]):
        audited = subprocess.run(command, capture_output=True, text=True, check=False)
        assert audited.returncode == 0, audited.stdout


# The tries, under act

_STAND_IN = {
    "name": "stand-in",
    "description": "Ends as the plan says: `lost` says nothing and fails.",
    "inputs": {name: {"default": ""} for name in ACTION["inputs"]},
    "outputs": {
        "conclusion": {"value": "${{ steps.run.outputs.conclusion }}"},
        "session-id": {"value": "${{ steps.run.outputs.session-id }}"},
    },
    "runs": {
        "using": "composite",
        "steps": [
            {
                "id": "run",
                "shell": "sh",
                "run": (
                    'end=$(head -n 1 "$PLAN"); sed -i 1d "$PLAN"; echo "$KEY $end" >>"$RECORD"\n'
                    '[ "$end" = lost ] && exit 137\n'
                    'echo "conclusion=$end" >>"$GITHUB_OUTPUT"\n'
                    'case "$end" in success | skipped) ;; interrupted | undelivered) exit 75 ;; *) exit 1 ;; esac\n'
                ),
                "env": {"KEY": "${{ inputs.session-key }}"},
            }
        ],
    },
}


@pytest.mark.slow
@pytest.mark.skipif(bool(MISSING), reason=MISSING)
@pytest.mark.parametrize(
    ("plan", "ran", "is_well"),
    [
        (["success"], 1, True),
        (["skipped"], 1, True),
        (["lost", "success"], 2, True),
        (["interrupted", "undelivered", "success"], 3, True),
        (["lost", "lost", "lost"], 3, False),
        (["failed", "success"], 1, False),
        (["lost", "stopped", "success"], 2, False),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_a_try_follows_what_was_lost_and_nothing_else(tmp_path, plan, ran, is_well):
    action = tmp_path / "action"
    action.mkdir()
    (action / "action.yml").write_text(yaml.safe_dump(_STAND_IN))
    repo = repository(tmp_path / "repo", "workflow_dispatch", [])
    folder = repo / ".github" / "workflows"
    shutil.copy(AGENT, folder / "agent.yml")
    caller = {
        "name": "calls",
        "on": "workflow_dispatch",
        "jobs": {
            "work": {
                "uses": "./.github/workflows/agent.yml",
                "with": {"session-key": "key-1", "prompt": "p", "ref": head(repo)},
                "secrets": {"anthropic-api-key": "${{ secrets.ANTHROPIC_API_KEY }}"},
            }
        },
    }
    (folder / "endstate.yml").write_text(yaml.safe_dump(caller))
    (tmp_path / "plan").write_text("".join(f"{end}\n" for end in plan))
    env = {"PLAN": str(tmp_path / "plan"), "RECORD": str(tmp_path / "record")}
    done = Act(tmp_path, repo, action, env).run(
        "workflow_dispatch", events.workflow_dispatch(), secrets={"ANTHROPIC_API_KEY": "sk-of-a-test"}
    )
    assert (tmp_path / "record").exists(), done.log
    assert (tmp_path / "record").read_text().split("\n")[:-1] == [f"key-1 {end}" for end in plan[:ran]], done.log
    # By its last job: to act a job that failed fails the run, whatever `continue-on-error` says of it.
    assert ("agent/result] \N{CHEQUERED FLAG}  Job succeeded" in done.log) is is_well, done.log


# The page


def test_the_page_has_the_lines_to_paste_and_the_numbers():
    page = PAGE.read_text(encoding="utf-8")
    assert PERMISSIONS in page.replace("\n    ", "\n")
    for path in [*WATCHERS, CALLER]:
        assert f"examples/workflows/{path.name}" in page
    hours = int(LOOK_BACK.total_seconds() // 3600)
    for number in (f"{MOST_RERUNS} re-runs", f"last {hours} hours", f"{MOST_LOOKED_AT} of them"):
        assert number in page
    for conclusion in get_args(Conclusion):
        assert f"*{conclusion}*" in page
