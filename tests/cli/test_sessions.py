"""The commands that call no model."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.command import bash, begin, calls, endstate, script, wait_for

WRITE = ("write", {"path": "a.txt", "content": "x\n"})


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "ws").mkdir()
    return tmp_path / "ws"


def run(workspace: Path, prompt: str = "do it", *more: str) -> str:
    playing = script(workspace, calls(WRITE), {"text": "done"})
    found = endstate(workspace, "run", prompt, "--json", *more, *playing).json["session-id"]
    assert isinstance(found, str)
    return found


def test_an_empty_workspace_has_no_sessions_and_gets_no_state_directory(workspace: Path) -> None:
    assert endstate(workspace, "sessions", "list", "--json").out == "[]\n"
    assert endstate(workspace, "sessions", "show").code == 12
    assert list(workspace.iterdir()) == []


def test_the_newest_session_is_listed_first(workspace: Path) -> None:
    first, second = run(workspace, "first"), run(workspace, "second", "--max-steps", "1")

    listed = json.loads(endstate(workspace, "sessions", "list", "--json").out)

    assert [(s["session-id"], s["state"], s["prompt"]) for s in listed] == [
        (second, "unfinished", "second"),
        (first, "finished", "first"),
    ]
    assert first in endstate(workspace, "sessions", "list").out


def test_show_tells_each_call_and_its_outcome(workspace: Path, tmp_path: Path) -> None:
    marker = tmp_path / "reached"
    playing = script(workspace, calls(WRITE, bash(f"echo x > {marker}; sleep 60"), WRITE), {"text": "done"})
    process = begin(workspace, "run", "do it", *playing)
    wait_for(marker)

    running = endstate(workspace, "sessions", "show", "--json").json
    process.kill()
    process.communicate()

    assert [c["status"] for c in running["calls"]] == ["ok", "started, no outcome recorded", "requested, not started"]
    assert running["attempts"][0]["conclusion"] is None
    endstate(workspace, "run", "--resume", *playing)
    settled = endstate(workspace, "sessions", "show").out
    assert "refuse, it was interrupted" in settled
    assert "attempt 2" in settled


def test_export_prints_the_whole_journal_as_json_lines(workspace: Path) -> None:
    session = run(workspace)

    rows = [json.loads(line) for line in endstate(workspace, "sessions", "export", session).out.splitlines()]

    assert [r["seq"] for r in rows] == list(range(1, len(rows) + 1))
    assert [r["kind"] for r in rows[:4]] == ["begun", "frozen", "attempt", "observed"]


def test_prune_deletes_old_finished_sessions_and_nothing_else(workspace: Path) -> None:
    finished, unfinished = run(workspace), run(workspace, "x", "--max-steps", "1")

    assert endstate(workspace, "sessions", "prune").out == ""
    assert endstate(workspace, "sessions", "prune", "--older-than", "0").out.split() == [finished]
    assert [s["session-id"] for s in json.loads(endstate(workspace, "sessions", "list", "--json").out)] == [unfinished]
    assert endstate(workspace, "sessions", "prune", unfinished[:6]).out.split() == [unfinished]
    assert json.loads(endstate(workspace, "sessions", "list", "--json").out) == []


def test_tree_hash_ignores_the_state_directory_and_git_at_the_root_alone(workspace: Path) -> None:
    (workspace / "a").write_text("x")
    before = endstate(workspace, "tree-hash").out
    for name in (".git", ".endstate"):
        (workspace / name).mkdir()
        (workspace / name / "x").write_text("1")
    assert endstate(workspace, "tree-hash").out == before

    (workspace / "sub" / ".git").mkdir(parents=True)
    (workspace / "sub" / ".git" / "hook").write_text("x")
    told = endstate(workspace, "tree-hash", ".", "--json").json
    assert told["tree-hash"] + "\n" != before
    assert told["excluded"] == [".git", ".endstate"]


@pytest.mark.parametrize(
    "arguments", [["--help"], ["sessions", "list"], ["tree-hash"], ["sessions", "show"], ["run", "--help"]]
)
def test_commands_that_call_no_model_load_no_sdk(workspace: Path, arguments: list[str]) -> None:
    code = (
        "import sys, atexit\n"
        "atexit.register(lambda: print(sorted({'anthropic', 'github', 'pydantic', 'yaml', 'httpx', 'httpx2'}"
        " & set(sys.modules)), file=sys.stderr))\n"
        f"sys.argv = ['endstate', *{arguments!r}]\n"
        "from endstate_action.cli import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=workspace, capture_output=True, text=True, check=False)

    assert done.stderr.splitlines()[-1] == "[]"


def test_many_starts_at_once_each_get_their_session(workspace: Path) -> None:
    """B12, in small: no start waits for a scan of the others."""
    places = [workspace / str(n) for n in range(6)]
    for place in places:
        place.mkdir()
    playing = script(workspace, calls(WRITE), {"text": "done"})
    began = time.monotonic()
    running = [begin(place, "run", "do it", *playing) for place in places]

    assert [process.wait(60) for process in running] == [0] * 6
    for process in running:
        process.communicate()
    assert time.monotonic() - began < 60
