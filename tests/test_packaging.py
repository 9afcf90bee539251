"""What is published agrees with itself: version, lock files, workflow, wheel."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml

import endstate_action

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOCKS = ("requirements.lock", "requirements-objectstore.lock", "requirements-dev.lock")
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"

installed = pytest.mark.skipif(
    not list(metadata.distributions(name="endstate-action")), reason="the package is on the path, but not installed"
)

# A lock line is one of these three and so names no host, no index and no path.
LOCK_LINE = re.compile(
    r"""
      \#[^:/]*(?:command:)?
    | [a-z0-9-]+==[a-z0-9.]+ (?:\ ;\ [a-zA-Z0-9_.\ '"=!<>()]+)? \ \\
    | \ {4}--hash=sha256:[0-9a-f]{64} (?:\ \\)?
    """,
    re.VERBOSE,
)


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _pins(lock: str) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", _text(lock), re.MULTILINE))


def _named(requirements: list[str]) -> dict[str, str]:
    """Normalised name to lower bound."""
    split = (re.fullmatch(r"([A-Za-z0-9_.-]+)>=([0-9.]+)", line) for line in requirements)
    return {match[1].lower(): match[2] for match in split if match}


@installed
def test_the_version_is_said_in_one_place():
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert metadata.version("endstate-action") == endstate_action.__version__


def test_the_changelog_begins_with_this_version():
    newest = re.search(r"^## (\S+)", _text("CHANGELOG.md"), re.MULTILINE)
    assert newest is not None
    assert newest[1] == endstate_action.__version__


def test_the_licence_is_the_one_that_is_declared():
    assert PROJECT["project"]["license"] == "MIT"
    assert _text("LICENSE").startswith("MIT License")


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_file_holds_pins_and_hashes_and_nothing_else(lock):
    lines = _text(lock).splitlines()
    assert [line for line in lines if not LOCK_LINE.fullmatch(line)] == []


@pytest.mark.parametrize(
    "line",
    [
        "--index-url https://example.invalid/simple",
        "click @ file:///somewhere/click.whl \\",
        "./local",
        "click>=8",
        "    --hash=md5:00",
    ],
)
def test_a_lock_line_with_a_host_a_path_or_no_pin_is_found(line):
    assert LOCK_LINE.fullmatch(line) is None


@pytest.mark.parametrize("lock", LOCKS)
def test_every_pin_has_a_hash(lock):
    # A name can stand twice, once for each kind of machine.
    bodies = re.split(r"^[a-z0-9-]+==.*\\\n", _text(lock), flags=re.MULTILINE)[1:]
    assert len(bodies) >= len(_pins(lock))
    assert all("--hash=sha256:" in body for body in bodies)


def test_every_runtime_dependency_is_locked_within_its_bound():
    bounds, pins = _named(PROJECT["project"]["dependencies"]), _pins("requirements.lock")
    assert len(bounds) == len(PROJECT["project"]["dependencies"])
    assert {name: _parts(pins[name]) >= _parts(bound) for name, bound in bounds.items()} == dict.fromkeys(bounds, True)


def _parts(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdigit()]


def test_what_is_tested_is_what_users_install():
    assert _pins("requirements.lock").items() <= _pins("requirements-dev.lock").items()
    assert _named(PROJECT["dependency-groups"]["dev"]).keys() <= _pins("requirements-dev.lock").keys()


@installed
def test_the_command_starts_from_an_isolated_interpreter(tmp_path):
    command = [sys.executable, "-I", "-m", "endstate_action", "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: ")


def test_importing_the_package_loads_no_dependency():
    code = "import sys, endstate_action; print([m for m in ('anthropic', 'pydantic', 'click') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_its_licence_only(tmp_path):
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {
        "endstate_action",
        f"endstate_action-{endstate_action.__version__}.dist-info",
    }
    assert "endstate_action/py.typed" in names
    assert any(name.endswith("/LICENSE") for name in names)


def _jobs() -> dict[str, dict[str, Any]]:
    jobs: dict[str, dict[str, Any]] = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"]
    return jobs


def test_the_gate_waits_for_every_other_job():
    jobs = _jobs()
    assert set(jobs["gate"]["needs"]) == set(jobs) - {"gate"}
    assert jobs["gate"]["if"] == "always()"


def test_every_job_ends_by_itself_and_has_no_more_rights_than_reading():
    assert yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["permissions"] == {}
    for name, job in _jobs().items():
        assert job["timeout-minutes"] <= 60, name
        assert job["permissions"] in ({}, {"contents": "read"}), name


def test_every_action_is_pinned_by_commit_and_leaves_no_credential():
    steps = [step for job in _jobs().values() for step in job["steps"] if "uses" in step]
    assert [step["uses"] for step in steps if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", step["uses"])] == []
    checkouts = [step for step in steps if step["uses"].startswith("actions/checkout@")]
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)
