"""The commands that call no model."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from endstate_action.system.tree import Scan, StatCache, scan
from endstate_action.system.tree_format import Directory
from tests.support.command import bash, begin, calls, endstate, script, wait_for
from tests.support.repos import GitRepo

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


def test_prune_deletes_what_is_named_twice_once(git_repo: GitRepo) -> None:
    repo = git_repo({"a": "a"})
    first, second = run(repo.path), run(repo.path)
    for name in (first, second):
        kept = repo.path / ".endstate" / "sessions" / f"{name}.set-aside-0.db"
        shutil.copy(kept.with_name(f"{name}.db"), kept)

    pruned = endstate(repo.path, "sessions", "prune", first[:8], first, f"{first}.set-aside-0", f"{second}.set-aside-0")

    assert (pruned.code, pruned.out.split()) == (0, [first, f"{second}.set-aside-0"]), pruned.err
    assert [s["session-id"] for s in json.loads(endstate(repo.path, "sessions", "list", "--json").out)] == [second]
    assert not list((repo.path / ".endstate" / "sessions").glob("*.set-aside-*"))


def test_who_asks_no_store_for_what_it_holds_is_told_to_name_one(workspace: Path) -> None:
    asked = endstate(workspace, "restore", "--dry-run", "--store", "none")
    assert (asked.code, "--store dir:PATH" in asked.err) == (2, True), asked.err


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
    argv = [sys.executable, "-X", "importtime", "-m", "endstate_action", *arguments]
    done = subprocess.run(argv, cwd=workspace, capture_output=True, text=True, check=False)
    lines = done.stderr.splitlines()
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in lines if line.startswith("import time:")}

    assert "endstate_action" in loaded
    assert loaded.isdisjoint({"anthropic", "github", "pydantic", "yaml", "httpx", "httpx2"})


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


def test_tree_hash_reads_everything_and_writes_nothing(workspace: Path, tmp_path: Path) -> None:
    """A state directory in the tree came with it: what it says is not believed, where its links lead is not written."""
    (workspace / "a").write_text("x")
    cache = workspace / ".endstate" / "cache"
    before = scan(workspace, cache=StatCache(cache))
    (workspace / "a").write_text("y")
    names = [f"tree-{os.geteuid()}{ending}" for ending in ("", ".part", ".probe")]
    new = scan(workspace, cache=StatCache(tmp_path / "aside"))
    lie = Directory(before.root.listing, before.root.digest, {}, new.root.names, new.root.stats)
    Scan(lie, before.excluded).save(cache / names[0])
    (tmp_path / "precious").write_text("mine")
    for name in names[1:]:
        (cache / name).symlink_to(tmp_path / "precious")
    (workspace / ".endstate" / "endstate-state").write_text("This directory holds the sessions of endstate runs.\n")
    there = {p: p.lstat().st_mtime_ns for p in workspace.rglob("*")}

    assert endstate(workspace, "tree-hash").out == scan(workspace).tree_hash + "\n"

    assert (tmp_path / "precious").read_text() == "mine"
    assert {p: p.lstat().st_mtime_ns for p in workspace.rglob("*")} == there


def test_a_stray_file_among_the_sessions_stops_no_command(workspace: Path) -> None:
    session = run(workspace)
    sessions = workspace / ".endstate" / "sessions"
    (sessions / f"{session}-backup.db").write_bytes((sessions / f"{session}.db").read_bytes())

    assert [s["session-id"] for s in json.loads(endstate(workspace, "sessions", "list", "--json").out)] == [session]
    assert endstate(workspace, "sessions", "show").code == 0
    assert run(workspace, "again") != session
    assert (sessions / f"{session}-backup.db").exists()


def test_a_touched_session_is_not_the_newest(workspace: Path) -> None:
    first, second = run(workspace, "first"), run(workspace, "second")
    os.utime(workspace / ".endstate" / "sessions" / f"{first}.db")

    assert endstate(workspace, "sessions", "show", "--json").json["session-id"] == second
    assert endstate(workspace, "sessions", "prune", "--older-than", "0").out.split() == [second, first]


def test_export_says_what_is_lost_and_prints_the_rest(workspace: Path) -> None:
    session = run(workspace)
    path = workspace / ".endstate" / "sessions" / f"{session}.db"
    rows = endstate(workspace, "sessions", "export").out.splitlines()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DELETE FROM journal WHERE seq = 3")

    saved = endstate(workspace, "sessions", "export", session)
    assert (saved.code, saved.out.splitlines()) == (4, [*rows[:2], *rows[3:]])
    assert "of its records, 3 could not be read" in saved.err

    path.write_bytes(b"x" * 5000)
    nothing = endstate(workspace, "sessions", "export", session)
    assert (nothing.code, nothing.out) == (4, "")
    assert f"{path} was left as it is" in nothing.err
    assert "Keep a copy of it before anything else" in nothing.err
    assert endstate(workspace, "sessions", "prune", session).out.split() == [session]


def test_a_session_of_a_newer_release_is_not_called_damaged(workspace: Path) -> None:
    """Who reads that deletes it."""
    newer, damaged, whole = run(workspace), run(workspace), run(workspace)
    sessions = workspace / ".endstate" / "sessions"
    with closing(sqlite3.connect(sessions / f"{newer}.db")) as db:
        db.execute("PRAGMA user_version=99")
    (sessions / f"{damaged}.db").write_bytes(b"x" * 5000)

    told = {s["session-id"]: s for s in json.loads(endstate(workspace, "sessions", "list", "--json").out)}
    lines = {line.split()[0]: line for line in endstate(workspace, "sessions", "list").out.splitlines()}

    assert {name: one["state"] for name, one in told.items()} == {
        newer: "newer format",
        damaged: "damaged",
        whole: "finished",
    }
    assert (told[newer]["attempt"], told[newer]["steps"], told[whole]["steps"]) == (None, None, 2)
    assert "  newer format  " in lines[newer]
    assert "state format 99" in lines[newer]
    assert "attempt" not in lines[newer] + lines[damaged]
    assert "attempt 1  2 steps" in lines[whole]


def test_a_state_directory_in_the_repository_is_not_read_either(git_repo: GitRepo, tmp_path: Path) -> None:
    repo = git_repo({"a": "b"})
    endstate(repo.path, "run", "do it", *script(tmp_path / "x", {"text": "done"}))
    assert endstate(repo.path, "sessions", "list").code == 0
    repo.git("add", "-f", ".")

    for command in ("list", "show", "export", "prune"):
        ran = endstate(repo.path, "sessions", command)
        assert (ran.code, ran.out) == (4, "")
        assert "tracks files in .endstate" in ran.err


@pytest.mark.parametrize(
    "command",
    ["sessions list", "tree-hash", "tree-hash --commit HEAD", "verify #3", "run x --evidence e", "run --resume"],
)
def test_a_deleted_current_directory_is_bad_input(tmp_path: Path, command: str) -> None:
    (tmp_path / "gone").mkdir()
    code = (
        "import os, sys\n"
        "os.rmdir(os.getcwd())\n"
        f"sys.argv = ['endstate', *{command!r}.split()]\n"
        "from endstate_action.cli import main\nmain()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path / "gone", capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "deleted" in done.stderr
