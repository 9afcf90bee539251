"""The action's interface agrees with itself: inputs arrive, outputs have a source, nothing is interpolated."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from endstate_action.agent.providers.prices import DEFAULT_MODEL
from endstate_action.config import Limits, parse_settings
from endstate_action.config.settings import INPUTS
from tests.support.checkouts import ROOT

MANIFESTS = ("action.yml", "resume/action.yml")
# Promised by the design, in its order.
PROMISED_INPUTS = [
    "prompt",
    "prompt-file",
    "trigger-phrase",
    "provider",
    "model",
    "anthropic-api-key",
    "base-url",
    "github-token",
    "working-directory",
    "state-dir",
    "instructions",
    "config-file",
    "session-key",
    "resume",
    "on-mismatch",
    "max-steps",
    "max-cost-usd",
    "max-resumes",
    "max-minutes",
    "sandbox",
    "network",
    "store",
    "require-durable",
    "state-key",
    "commit",
    "comment",
    "job-summary",
    "required-permission",
    "allowed-bots",
    "allow-forks",
]
CONTEXTS = {"matrix": "toJSON(matrix)", "strategy": "toJSON(strategy)", "job": "toJSON(job)", "step": "github.action"}
PROMISED_OUTPUTS = [
    "conclusion",
    "session-id",
    "attempt",
    "resumed",
    "restored-from",
    "durability",
    "sandbox",
    "base-tree",
    "restored-tree-hash",
    "tree-hash",
    "published-tree-hash",
    "git-tree",
    "final-message",
    "evidence-file",
    "patch-file",
    "changed-files",
    "commit-sha",
    "branch",
    "comment-url",
    "steps",
    "input-tokens",
    "output-tokens",
    "cost-usd",
    "settlements",
    "refused-calls",
]

each_manifest = pytest.mark.parametrize("name", MANIFESTS)


def manifest(name: str = "action.yml") -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))
    return found


def types(name: str) -> dict[str, Any]:
    return manifest(name.replace("action.yml", "action-types.yml"))


def step(name: str, id: str) -> dict[str, Any]:
    (found,) = (step for step in manifest(name)["runs"]["steps"] if step["id"] == id)
    return dict(found)


def variable(name: str) -> str:
    return "INPUT_" + name.upper().replace("-", "_")


def test_inputs_and_outputs_are_those_that_are_promised():
    action = manifest()
    assert list(action["inputs"]) == [*PROMISED_INPUTS, *CONTEXTS]
    assert list(action["outputs"]) == PROMISED_OUTPUTS


@each_manifest
def test_every_input_is_described_and_reaches_the_command_by_its_environment(name):
    inputs, env = manifest(name)["inputs"], step(name, "run")["env"]
    for name_, input_ in inputs.items():
        assert input_["description"].endswith("."), name_
        assert isinstance(input_["default"], str), name_
    given = {key: value for key, value in env.items() if key.startswith("INPUT_")}
    assert given == {variable(name_): f"${{{{ inputs.{name_} }}}}" for name_ in inputs}


@each_manifest
def test_every_input_and_output_has_a_type(name):
    action, typed = manifest(name), types(name)
    assert list(typed["inputs"]) == list(action["inputs"])
    assert list(typed["outputs"]) == list(action["outputs"])
    for name_, kind in (typed["inputs"] | typed["outputs"]).items():
        assert kind["type"] in {"string", "boolean", "integer", "float", "enum"}, name_
        default = action["inputs"].get(name_, {}).get("default", "") if name_ in typed["inputs"] else ""
        match kind["type"]:
            case "boolean":
                assert default in ("true", "false", ""), name_
            case "integer":
                assert default == "" or default.isdigit(), name_
            case "enum" if default:
                assert default in kind["allowed-values"], name_


@each_manifest
def test_every_output_is_described_and_comes_from_the_run_step(name):
    for output, entry in manifest(name)["outputs"].items():
        assert entry["description"].endswith("."), output
        skipped = f" || steps.prepare.outputs.{output}" if output == "conclusion" else ""
        assert entry["value"] == f"${{{{ steps.run.outputs.{output}{skipped} }}}}"


@each_manifest
def test_nothing_is_interpolated_into_a_script(name):
    for step_ in manifest(name)["runs"]["steps"]:
        assert "${{" not in step_.get("run", "") + step_.get("with", {}).get("script", "")
    run = step(name, "run")
    assert re.fullmatch(r'exec "\$GITHUB_ACTION_PATH(/\.\.)?/entrypoint\.sh" [a-z-]+', run["run"])
    assert run["shell"] == "sh"


@each_manifest
def test_foreign_actions_are_pinned_by_commit(name):
    used = [step["uses"] for step in manifest(name)["runs"]["steps"] if "uses" in step]
    assert [uses for uses in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", uses)] == []


def test_the_caches_credentials_come_from_the_step_before_and_all_else_of_the_platform_is_blank():
    env = {key: value for key, value in step("action.yml", "run")["env"].items() if key.startswith("ACTIONS_")}
    handed = {
        f"ACTIONS_{name.upper().replace('-', '_')}": f"${{{{ steps.prepare.outputs.{name} }}}}"
        for name in ("runtime-token", "results-url", "cache-url", "cache-service-v2", "cache-mode")
    }
    blank = dict.fromkeys(["ACTIONS_RUNTIME_URL", "ACTIONS_ID_TOKEN_REQUEST_TOKEN", "ACTIONS_ID_TOKEN_REQUEST_URL"], "")
    assert env == handed | blank
    assert step("action.yml", "run")["if"] == "steps.prepare.outputs.skip != 'true'"


def test_the_script_is_given_no_secret_but_the_token():
    prepare = step("action.yml", "prepare")
    assert "inputs.anthropic-api-key }}" not in str(prepare)
    assert "state-key" not in str(prepare)


def test_contexts_arrive_by_the_defaults_of_inputs():
    inputs = manifest()["inputs"]
    assert {name: inputs[name]["default"] for name in CONTEXTS} == {n: f"${{{{ {c} }}}}" for n, c in CONTEXTS.items()}
    assert all(inputs[name]["description"].startswith("Internal: ") for name in CONTEXTS)


def test_defaults_are_those_of_the_command():
    inputs = manifest()["inputs"]
    ours = {name: entry["default"] for name, entry in inputs.items() if name in INPUTS and name != "resume"}
    assert parse_settings({**ours, "prompt": "p"}, lambda _: b"").limits.to_json() == Limits().to_json()
    assert inputs["model"]["default"] == ""
    assert f"(`{DEFAULT_MODEL}`)" in inputs["model"]["description"]
