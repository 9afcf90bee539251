"""Results of runs, as evidence: one that nobody interrupted, one with a bit of everything, and those of real trees."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from endstate_action.ci.evidence import ChangedFile, Commit, Evidence, parse_evidence
from endstate_action.ci.patch import Patch, make_patch
from endstate_action.system.git import discover
from endstate_action.system.git_aside import Changed, aside
from endstate_action.system.names import display
from endstate_action.system.published import Published, publish
from tests.support.repos import Repo

OWNER = "0123456789abcdef"
SESSION = "7f3a00112233"
BASE, BASE_TREE, TREE, COMMIT = "a" * 40, "b" * 40, "c" * 40, "d" * 40
HASH = "et1:" + "e" * 64
ODD = ["new\nline", "-rf", "*", ":(top)x", "quo\"te'", "tab\there", " blank ", "ünï", os.fsdecode(b"latin-\xe9")]


def plain_result(**changes: Any) -> Evidence:
    """Done in one attempt; nothing was changed."""
    fields: dict[str, Any] = {
        "conclusion": "success",
        "session": SESSION,
        "task": 1,
        "attempts": [{"epoch": 1, "run-attempt": 1, "began": "2026-11-29T12:00:25Z", "steps": 23, "ended": "finished"}],
        "trees": {"base-commit": BASE, "base-tree": TREE, "git-tree": TREE, "published-hash": HASH},
        "changed-files": [],
        "steps": 23,
        "spent": {"input-tokens": 120000, "output-tokens": 4000, "usd": "0.3812"},
        "fingerprint": {
            "provider": "anthropic",
            "model-asked": "model-1",
            "models-answered": ["model-1"],
            "tools": [{"name": "bash", "effect": "contained", "contract": "abc"}],
            "state-format": 1,
        },
        "durability": {"store": "Actions cache", "checkpoint": "1/9", "age-s": 4},
        "sandbox": {"kind": "isolated", "note": "no network"},
        "versions": {"endstate": "1.2.0", "python": "3.12.1"},
    }
    return _evidence(fields | changes)


def interrupted_result(**changes: Any) -> Evidence:
    """Preempted once, with one of everything."""
    first = {
        "epoch": 1,
        "run-attempt": 1,
        "began": "2026-11-29T12:00:25Z",
        "steps": 11,
        "ended": "preempted",
        "where": "after call 7",
    }
    second = {
        "epoch": 3,
        "run-attempt": 2,
        "began": "2026-11-29T12:15:01Z",
        "steps": 12,
        "ended": "finished",
        "restored-from": "checkpoint 1/9",
    }
    settled = {
        "step": 8,
        "call": 1,
        "tool": "bash",
        "action": "roll_back_and_run",
        "reason": "nothing of it can have left the workspace",
        "attempt": 3,
    }
    files = [
        {"path": "src/app.py", "change": "modified", "mode": "100644", "blob": "1" * 40},
        {"path": "run.sh", "change": "added", "mode": "100755", "blob": "2" * 40},
        {"path": "old `name`|.txt", "change": "deleted", "mode": None, "blob": None},
    ]
    fields: dict[str, Any] = {
        "attempts": [first, second],
        "settlements": [settled],
        "changed-files": files,
        "trees": {
            "base-commit": BASE,
            "base-tree": BASE_TREE,
            "git-tree": TREE,
            "published-hash": HASH,
            "workspace-hash": "et1:" + "f" * 64,
            "restored-hash": "et1:" + "0" * 64,
        },
        "uncommitted": {"patch-file": "endstate.patch"},
        "spent": {"input-tokens": 120000, "output-tokens": 4000, "usd": "0.4123", "at-least": True},
    }
    return plain_result(**fields | changes)


def _evidence(fields: dict[str, Any]) -> Evidence:
    return parse_evidence(json.dumps({"format": 1} | fields), "a test")


def published(
    repo: Repo, base: str | None, tmp: Path, at_start: dict[str, str] | None = None
) -> tuple[Published, Patch]:
    """What a run that began on `base` would publish of the work tree as it is now."""
    repository = discover(repo.path, os.environ, tmp)
    assert repository is not None
    with aside(repository, os.environ, base) as seen:
        result = publish(seen, base, at_start or {})
        return result, make_patch(seen, result.base_tree, result.git_tree)


def evidence_of(result: Published, base: str | None, commit: str | None = None, **changes: Any) -> Evidence:
    """Evidence that tells the truth about a published tree."""
    trees = {
        "base-commit": base,
        "base-tree": result.base_tree,
        "git-tree": result.git_tree,
        "published-hash": result.tree_hash,
    }
    made = plain_result(**{"trees": trees} | changes)
    commits = (Commit(id=commit, subject="A change", branch="endstate/x"),) if commit else ()
    return made.model_copy(update={"changed_files": tuple(map(changed_file, result.changed)), "commits": commits})


def changed_file(changed: Changed) -> ChangedFile:
    change = "deleted" if changed.after is None else "modified" if changed.before else "added"
    mode, blob = (changed.after.mode, changed.after.id) if changed.after else (None, None)
    return ChangedFile.model_validate({"path": display(changed.path), "change": change, "mode": mode, "blob": blob})


def furnished(repo: Repo) -> str:
    """A commit with one of everything that git keeps."""
    repo.write(
        {"a.txt": "a\n", "d/e/f.txt": "f", "d.x": "between", "d0": "behind", "bin": b"\0\xff" * 5000, "empty": ""}
    )
    repo.write({f"odd/{name}": name.encode("utf-8", "surrogateescape") for name in ODD})
    (repo.path / "run").write_text("#!/bin/sh\n")
    (repo.path / "run").chmod(0o755)
    (repo.path / "link").symlink_to("d/e")
    (repo.path / "dangling").symlink_to("/nowhere")
    return repo.commit()


def changed(repo: Repo) -> str:
    """Every kind of change on top of `furnished`; the base."""
    base = furnished(repo)
    repo.write({"a.txt": "changed\n", "bin": b"\0\1" * 4000, "new/deep/file": "new", "no-end": "no newline at end"})
    repo.write({f"odd2/{name}": "new" for name in ODD})
    (repo.path / "run").chmod(0o644)
    (repo.path / "empty").chmod(0o755)
    (repo.path / "link").unlink()
    (repo.path / "link").symlink_to("elsewhere")
    (repo.path / "dangling").unlink()
    (repo.path / "dangling").write_text("a file now")
    (repo.path / "d" / "e" / "f.txt").unlink()
    (repo.path / "d" / "e" / "f.txt").mkdir()
    repo.write({"d/e/f.txt/inside": "a directory now"})
    (repo.path / "d.x").rename(repo.path / "renamed.x")
    (repo.path / "d0").unlink()
    (repo.path / "odd" / ODD[0]).unlink()
    return base


def applied(repo: Repo, base: str, patch: bytes, place: Path) -> Repo:
    """A clean checkout of the base, elsewhere, with the patch applied."""
    repo.git("clone", "--quiet", "--no-checkout", str(repo.path), str(place))
    clone = Repo(place)
    clone.git("checkout", "--quiet", base)
    subprocess.run(["git", "-C", str(place), "apply", "--index", "--whitespace=nowarn", "-"], input=patch, check=True)
    return clone
