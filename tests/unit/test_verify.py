"""Verify: a clean clone holds; one byte, one mode bit, one link target or one name does not, and it is said which."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from endstate_action.ci.evidence import Evidence
from endstate_action.ci.marker import Marker
from endstate_action.ci.render import comment
from endstate_action.errors import InputError
from endstate_action.system.git import discover
from endstate_action.system.tree import scan
from endstate_action.system.tree_commit import scan_commit
from endstate_action.verify import Reference, Verdict, parse_target, verify
from tests.support.repos import GitRepo, Repo
from tests.support.results import OWNER, SESSION, applied, evidence_of, plain_result, published


@dataclass(frozen=True)
class Told:
    """A result, what the evidence says of it, and a clone of it on another path."""

    repo: Repo
    evidence: Evidence
    file: Path
    clone: Repo
    base: str
    patch: bytes

    def verdict(self, place: Path | None = None) -> Verdict:
        return verify(str(self.file), place or self.clone.path, os.environ, self.file.parent / "tmp")


@pytest.fixture
def told(git_repo: GitRepo, tmp_path: Path) -> Told:
    """Pushed, and cloned whole."""
    repo = git_repo({"a.txt": "a\n", "run": "#!/bin/sh\n", "d/e": "e\n", "old": "old", ".gitignore": "*.log\n"})
    (repo.path / "link").symlink_to("a.txt")
    base = repo.commit()
    repo.write({"a.txt": "changed\n", "new/odd\nname": "new\n"})
    (repo.path / "run").chmod(0o755)
    (repo.path / "link").unlink()
    (repo.path / "link").symlink_to("d/e")
    (repo.path / "old").unlink()
    result, patch = published(repo, base, tmp_path / "tmp")
    commit = repo.commit()
    evidence = evidence_of(result, base, commit)
    file = tmp_path / "evidence.json"
    file.write_text(evidence.to_json())
    repo.git("clone", "--quiet", str(repo.path), str(tmp_path / "clone"))
    return Told(repo, evidence, file, Repo(tmp_path / "clone"), base, patch.data)


def names(verdict: Verdict) -> list[str]:
    return [name for statement in verdict.statements if statement.holds is False for name in statement.names]


def test_a_clean_clone_of_the_pushed_commit_holds(told: Told):
    before = {path: path.is_file() and path.read_bytes() for path in told.clone.path.rglob("*")}
    verdict = told.verdict()
    assert verdict.exit_code == 0
    assert all(statement.holds for statement in verdict.statements)
    assert len(verdict.statements) == 5
    assert {path: path.is_file() and path.read_bytes() for path in told.clone.path.rglob("*")} == before


def test_the_base_with_the_patch_applied_holds(told: Told, tmp_path: Path):
    place = applied(told.repo, told.base, told.patch, tmp_path / "patched")
    assert told.verdict(place.path).exit_code == 0
    place.git("reset", "--quiet")
    assert told.verdict(place.path).exit_code == 0


def test_an_export_without_git_holds_by_its_tree_hash(told: Told, tmp_path: Path):
    shutil.rmtree(told.clone.path / ".git")
    verdict = told.verdict()
    assert verdict.exit_code == 0
    assert any(s.holds is None and "no clone" in s.text for s in verdict.statements)
    (told.clone.path / "a.txt").write_text("other\n")
    assert told.verdict().exit_code == 1


def test_a_bare_clone_is_not_said_to_differ(told: Told, tmp_path: Path):
    told.repo.git("clone", "--quiet", "--bare", str(told.repo.path), str(tmp_path / "bare"))
    with pytest.raises(InputError, match="bare repository") as caught:
        told.verdict(tmp_path / "bare")
    assert "git clone" in caught.value.hint
    with pytest.raises(InputError, match="bare repository"):
        scan_commit(tmp_path / "bare", "HEAD", os.environ, tmp_path / "tmp")


def relink(path: Path) -> None:
    path.unlink()
    path.symlink_to("d/f")


ONE_CHANGE = [
    pytest.param("a.txt", lambda p: p.write_text("Changed\n"), "a.txt has other content", id="one byte"),
    pytest.param("d/e", lambda p: p.write_text("E\n"), "d/e has other content", id="one byte of a file left alone"),
    pytest.param("run", lambda p: p.chmod(0o644), "run is not executable here", id="one mode bit"),
    pytest.param("d/e", lambda p: p.chmod(0o755), "d/e is executable here", id="another mode bit"),
    pytest.param("link", relink, "link leads to another target", id="one link target"),
    pytest.param("a.txt", lambda p: p.rename(p.with_name("b.txt")), "a.txt is missing here", id="one name"),
    pytest.param("x", lambda p: p.write_text(""), "x is here, and is no part of the result", id="one name more"),
    pytest.param(
        "x.log", lambda p: p.write_text(""), "x.log is here, and is no part of the result", id="an ignored one"
    ),
    pytest.param("x", lambda p: p.mkdir(), "x is an empty directory, which no commit has", id="an empty directory"),
    pytest.param("x", os.mkfifo, "x is here, and is no part of the result", id="a fifo"),
    pytest.param("d/e", lambda p: p.unlink(), "d/e is missing here", id="one name less"),
    pytest.param("new/odd\nname", lambda p: p.unlink(), "new/odd\\x0aname is missing here", id="an odd name"),
]


@pytest.mark.parametrize(("path", "change", "named"), ONE_CHANGE)
def test_one_change_is_enough_and_is_named(told: Told, path: str, change: Callable[[Path], object], named: str):
    change(told.clone.path / path)
    verdict = told.verdict()
    assert verdict.exit_code == 1
    assert named in names(verdict)


@pytest.mark.parametrize(("path", "change", "named"), ONE_CHANGE)
def test_one_change_is_named_where_only_base_and_patch_are_there(
    told: Told, tmp_path: Path, path: str, change: Callable[[Path], object], named: str
):
    """Such a clone has not the objects of the result."""
    told.repo.git("checkout", "--quiet", told.base)
    told.repo.git("branch", "--quiet", "-D", "main")
    told.repo.git("reflog", "expire", "--expire=now", "--all")
    told.repo.git("gc", "--quiet", "--prune=now")
    place = applied(told.repo, told.base, told.patch, tmp_path / "patched")
    place.git("reset", "--quiet")
    place.git("gc", "--quiet", "--prune=now")
    assert told.verdict(place.path).exit_code == 0
    change(place.path / path)
    verdict = told.verdict(place.path)
    assert verdict.exit_code == 1
    assert named in names(verdict)


def test_a_mode_that_git_was_told_to_overlook_is_seen(told: Told):
    told.clone.git("config", "core.fileMode", "false")
    (told.clone.path / "run").chmod(0o644)
    assert "run is not executable here" in names(told.verdict())


def test_a_link_that_git_was_told_to_take_for_a_file_is_seen(told: Told):
    told.clone.git("config", "core.symlinks", "false")
    (told.clone.path / "link").unlink()
    (told.clone.path / "link").write_text("d/e")
    assert "link should be a link, and is here a file" in names(told.verdict())


def test_a_change_that_the_index_hides_is_seen(told: Told):
    told.clone.git("update-index", "--assume-unchanged", "a.txt")
    told.clone.git("update-index", "--skip-worktree", "d/e")
    for path in ("a.txt", "d/e"):
        (told.clone.path / path).write_text("hidden")
    assert {"a.txt has other content", "d/e has other content"} <= set(names(told.verdict()))


def test_evidence_that_lists_too_little_does_not_hold(told: Told):
    shown = json.loads(told.evidence.to_json())
    shown["changed-files"].pop()
    told.file.write_text(json.dumps(shown))
    verdict = told.verdict()
    assert verdict.exit_code == 1
    assert any("is another tree" in s.text for s in verdict.statements if s.holds is False)


@pytest.mark.parametrize("path", [".git/config", "a.txt/b", "../x"])
def test_evidence_that_lists_an_impossible_path_does_not_hold(told: Told, path: str):
    shown = json.loads(told.evidence.to_json())
    shown["changed-files"][0]["path"] = path
    told.file.write_text(json.dumps(shown))
    assert told.verdict().exit_code == 1


@pytest.mark.parametrize("field", ["published-hash", "git-tree", "base-tree"])
def test_evidence_with_another_tree_does_not_hold(told: Told, field: str):
    shown = json.loads(told.evidence.to_json())
    shown["trees"][field] = shown["trees"][field][:-1] + ("0" if shown["trees"][field][-1] != "0" else "1")
    told.file.write_text(json.dumps(shown))
    assert told.verdict().exit_code == 1


def test_a_shallow_clone_holds_and_says_what_it_cannot_compare(told: Told, tmp_path: Path):
    place = tmp_path / "shallow"
    told.repo.git("clone", "--quiet", "--depth=1", f"file://{told.repo.path}", str(place))
    verdict = told.verdict(place)
    assert verdict.exit_code == 0
    assert sum(statement.holds is None for statement in verdict.statements) == 2


def test_a_clone_of_something_else_does_not_hold(told: Told, git_repo: GitRepo):
    other = git_repo(name="other")
    verdict = told.verdict(other.path)
    assert verdict.exit_code == 1
    assert "a.txt is missing here" in names(verdict)


def test_line_ends_of_a_checkout_are_no_difference(git_repo: GitRepo, tmp_path: Path):
    repo = git_repo({".gitattributes": "*.bat text eol=crlf\n", "x.bat": "old\n"})
    base = repo.git("rev-parse", "HEAD")
    repo.write({"x.bat": "new\r\n"})
    result, _ = published(repo, base, tmp_path / "tmp")
    commit = repo.commit()
    (tmp_path / "evidence.json").write_text(evidence_of(result, base, commit).to_json())
    repo.git("clone", "--quiet", str(repo.path), str(tmp_path / "clone"))
    verdict = verify(str(tmp_path / "evidence.json"), tmp_path / "clone", os.environ, tmp_path / "tmp")
    assert verdict.exit_code == 0
    assert "Line ends or filters" in verdict.statements[0].text
    (tmp_path / "clone" / "x.bat").write_bytes(b"other\r\n")
    verdict = verify(str(tmp_path / "evidence.json"), tmp_path / "clone", os.environ, tmp_path / "tmp")
    assert "x.bat has other content" in names(verdict)


@pytest.mark.parametrize("edited", ["x.bat", "a.txt"])
@pytest.mark.parametrize("is_staged", [True, False])
def test_line_ends_of_a_patched_checkout_are_no_difference(
    git_repo: GitRepo, tmp_path: Path, edited: str, is_staged: bool
):
    """What was not committed: the clone has nothing but the base, and the work tree of it has other line ends."""
    repo = git_repo({".gitattributes": "*.bat text eol=crlf\n", "x.bat": "one\ntwo\n", "a.txt": "a\n"})
    base = repo.git("rev-parse", "HEAD")
    repo.git("clone", "--quiet", str(repo.path), str(tmp_path / "origin"))
    repo.write({edited: "one\r\nchanged\r\n" if edited == "x.bat" else "changed\n"})
    result, patch = published(repo, base, tmp_path / "tmp")
    (tmp_path / "evidence.json").write_text(evidence_of(result, base).to_json())
    place = applied(Repo(tmp_path / "origin"), base, patch.data, tmp_path / "patched")
    assert b"\r\n" in (place.path / "x.bat").read_bytes()
    if not is_staged:
        place.git("reset", "--quiet")
    for told in (str(tmp_path / "evidence.json"), "7"):
        verdict = verify(
            told, place.path, os.environ, tmp_path / "tmp", lambda reference: comment(evidence_of(result, base), OWNER)
        )
        assert verdict.exit_code == 0, verdict
        assert "Line ends or filters" in verdict.statements[0].text
    (place.path / "x.bat").write_bytes(b"other\r\n")
    verdict = verify(str(tmp_path / "evidence.json"), place.path, os.environ, tmp_path / "tmp")
    assert (verdict.exit_code, "x.bat has other content" in names(verdict)) == (1, True)


def test_what_a_filter_makes_is_compared_as_committed_and_said_to_be(git_repo: GitRepo, tmp_path: Path):
    repo = git_repo({"a": "1"})
    base = repo.commit({".gitattributes": "*.big filter=lfs\n", "x.big": "pointer\n"})
    repo.write({"a": "2"})
    result, _ = published(repo, base, tmp_path / "tmp")
    commit = repo.commit()
    (tmp_path / "evidence.json").write_text(evidence_of(result, base, commit).to_json())
    (repo.path / "x.big").write_text("the content itself")
    verdict = verify(str(tmp_path / "evidence.json"), repo.path, os.environ, tmp_path / "tmp")
    assert verdict.exit_code == 0
    assert any("x.big is content for the filter" in s.text for s in verdict.statements if s.holds is None)
    (repo.path / "x.big").chmod(0o755)
    verdict = verify(str(tmp_path / "evidence.json"), repo.path, os.environ, tmp_path / "tmp")
    assert "x.big is executable here" in names(verdict)


def test_a_plain_directory_is_compared_by_its_workspace_hash(tmp_path: Path):
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "a").write_text("1")
    trees = {"workspace-hash": scan(tmp_path / "w").tree_hash}
    (tmp_path / "e.json").write_text(plain_result(trees=trees, **{"changed-files": None}).to_json())
    assert verify(str(tmp_path / "e.json"), tmp_path / "w", os.environ, tmp_path / "tmp").exit_code == 0
    (tmp_path / "w" / "a").write_text("2")
    assert verify(str(tmp_path / "e.json"), tmp_path / "w", os.environ, tmp_path / "tmp").exit_code == 1


def test_a_directory_inside_the_right_clone_is_not_said_to_differ(told: Told, tmp_path: Path):
    (told.clone.path / "d" / "deeper").mkdir()
    for place in (told.clone.path / "d", told.clone.path / "d" / "deeper"):
        with pytest.raises(InputError, match="is a directory inside the clone") as caught:
            told.verdict(place)
        assert str(told.clone.path) in str(caught.value)
        assert "top directory" in caught.value.hint
    (told.clone.path / "d" / "deeper").rmdir()
    # An export is whole, wherever it was unpacked.
    export = told.repo.path / "export"
    shutil.copytree(told.clone.path, export, symlinks=True, ignore=shutil.ignore_patterns(".git"))
    assert told.verdict(export).exit_code == 0


# --- In the workspace of the run itself ---


@dataclass(frozen=True)
class Left:
    """The workspace of a run, with what was there before it and what git ignores, and the evidence of its result."""

    repo: Repo
    file: Path
    shown: dict[str, Any]

    def verdict(self) -> Verdict:
        self.file.write_text(json.dumps(self.shown))
        return verify(str(self.file), self.repo.path, os.environ, self.file.parent / "tmp")

    @property
    def hash(self) -> str:
        return scan(self.repo.path).tree_hash


@pytest.fixture
def left(git_repo: GitRepo, tmp_path: Path) -> Left:
    repo = git_repo({"a.txt": "a\n", "mine": "1\n", ".gitignore": "*.log\n"})
    base = repo.git("rev-parse", "HEAD")
    repo.write({"script.json": "{}", "mine": "2\n"})
    repository = discover(repo.path, os.environ, tmp_path / "tmp")
    assert repository is not None
    at_start = repository.changes(base)
    repo.write({"a.txt": "changed\n", "notes.txt": "one\n", "x.log": ""})
    result, _ = published(repo, base, tmp_path / "tmp", at_start)
    shown = json.loads(evidence_of(result, base).to_json())
    shown["trees"]["workspace-hash"] = scan(repo.path).tree_hash
    return Left(repo, tmp_path / "evidence.json", shown)


def test_the_workspace_as_the_run_left_it_holds_with_what_was_there_before(left: Left):
    verdict = left.verdict()
    assert (verdict.exit_code, [s.holds for s in verdict.statements]) == (0, [True] * 4)
    assert f"the workspace as the run left it: its tree hash is {left.hash}" in verdict.statements[0].text
    assert set(verdict.statements[0].names) == {
        "mine has other content",
        "script.json is here, and is no part of the result",
        "x.log is here, and is no part of the result",
    }
    assert left.shown["trees"]["published-hash"] in verdict.statements[1].text
    shutil.rmtree(left.repo.path / ".git")
    verdict = left.verdict()
    assert verdict.exit_code == 0
    assert "as the run left it" in verdict.statements[0].text


@pytest.mark.parametrize("path", ["a.txt", "notes.txt", "mine", "script.json", "x.log", "new"])
def test_a_workspace_that_was_changed_since_does_not_hold(left: Left, path: str):
    left.repo.write({path: "forged\n"})
    verdict = left.verdict()
    assert verdict.exit_code == 1
    assert any(name.startswith(path) for name in names(verdict))


@pytest.mark.parametrize("path", ["a.txt", "notes.txt"])
def test_a_file_of_the_result_that_was_forged_does_not_hold_there_either(left: Left, path: str):
    left.repo.write({path: "forged\n"})
    left.shown["trees"]["workspace-hash"] = left.hash
    verdict = left.verdict()
    assert verdict.exit_code == 1
    assert f"{path} has other content" in names(verdict)


@pytest.mark.parametrize("field", ["published-hash", "git-tree", "base-tree"])
def test_a_workspace_as_it_was_left_does_not_make_up_for_another_result(left: Left, field: str):
    announced = left.shown["trees"][field]
    left.shown["trees"][field] = announced[:-1] + ("0" if announced[-1] != "0" else "1")
    assert left.verdict().exit_code == 1


def test_what_the_evidence_leaves_out_is_said(told: Told):
    shown = json.loads(told.evidence.to_json())
    shown["trees"]["excluded"] = [".git", "build"]
    told.file.write_text(json.dumps(shown))
    assert any(s.text == "Left out, as the evidence says: build." for s in told.verdict().statements)


# --- From a pull request ---


def test_a_comment_is_enough_to_verify(told: Told, tmp_path: Path):
    asked = []

    def fetch(reference: Reference) -> str:
        asked.append(reference)
        return comment(told.evidence, OWNER)

    verdict = verify("o/r#7", told.clone.path, os.environ, tmp_path / "tmp", fetch)
    assert verdict.exit_code == 0
    assert asked == [Reference(7, "o/r")]
    (told.clone.path / "a.txt").write_text("other\n")
    verdict = verify("o/r#7", told.clone.path, os.environ, tmp_path / "tmp", fetch)
    assert verdict.exit_code == 1
    assert "a.txt has other content" in names(verdict)


def test_evidence_may_be_fetched_too(told: Told, tmp_path: Path):
    verdict = verify("7", told.clone.path, os.environ, tmp_path / "tmp", lambda reference: told.file.read_text())
    assert verdict.exit_code == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://github.com/o/r.x/pull/7", Reference(7, "o/r.x", "github.com")),
        ("https://ghe.invalid:8443/o/r/pull/7/files", Reference(7, "o/r", "ghe.invalid:8443")),
        ("https://github.com/o/r/pull/7#issuecomment-99", Reference(7, "o/r", "github.com", 99)),
        ("o/r#7", Reference(7, "o/r")),
        ("#7", Reference(7)),
        ("7", Reference(7)),
        ("evidence.json", Path("evidence.json")),
        ("a/b7", Path("a/b7")),
        ("../r#7", Path("../r#7")),
        ("/tmp/evidence.json", Path("/tmp/evidence.json")),
    ],
)
def test_a_target_is_a_file_or_a_pull_request(text: str, expected: Path | Reference):
    assert parse_target(text) == expected


@pytest.mark.parametrize("text", ["https://github.com/o/r", "https://e.invalid/", "file:///etc/passwd", "a\0b"])
def test_another_address_is_refused(text: str):
    with pytest.raises(InputError, match="no pull request"):
        parse_target(text)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("hello", "no evidence"),
        (Marker(OWNER, SESSION, 1, 0, "working").line(), "names no tree: its run is \\*working\\*"),
        ("> " + Marker(OWNER, SESSION, 1, 0, "working").line(), "no evidence"),
    ],
)
def test_a_comment_without_a_result_cannot_tell(tmp_path: Path, body: str, why: str):
    with pytest.raises(InputError, match=why):
        verify("#7", tmp_path, os.environ, tmp_path / "tmp", lambda reference: body)


def test_bad_input_is_exit_code_2_and_changes_nothing(told: Told, tmp_path: Path):
    def fails(target: str, place: Path) -> InputError:
        with pytest.raises(InputError) as caught:
            verify(target, place, os.environ, tmp_path / "tmp")
        assert caught.value.exit_code == 2
        assert caught.value.hint
        return caught.value

    newer = json.loads(told.evidence.to_json()) | {"format": 9}
    (tmp_path / "newer").write_text(json.dumps(newer))
    (tmp_path / "no-hash").write_text(plain_result(trees={}, conclusion="failed").to_json())
    bad = json.loads(told.evidence.to_json())
    bad["changed-files"][0]["path"] = "x\\xc3\\xa9"
    (tmp_path / "bad-path").write_text(json.dumps(bad))
    bad["changed-files"][0]["path"] = "a.txt\\x00100644 "
    (tmp_path / "nul").write_text(json.dumps(bad))
    assert "format 9" in str(fails(str(tmp_path / "newer"), told.clone.path))
    assert "no tree hash" in str(fails(str(tmp_path / "no-hash"), told.clone.path))
    assert "no file can have" in str(fails(str(tmp_path / "bad-path"), told.clone.path))
    assert "no file can have" in str(fails(str(tmp_path / "nul"), told.clone.path))
    fails(str(tmp_path / "missing.json"), told.clone.path)
    fails(str(tmp_path), told.clone.path)
    fails("#7", told.clone.path)
    fails(str(told.file), tmp_path / "missing")
    fails(str(told.file), told.file)


def test_nothing_found_in_a_clone_is_run(told: Told, tmp_path: Path):
    program = tmp_path / "planted"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path / 'ran'}\ncat\n")
    program.chmod(0o755)
    for key in ("core.fsmonitor", "filter.x.clean", "filter.x.process", "diff.external", "core.sshCommand"):
        told.clone.git("config", key, str(program))
    told.clone.write({".git/info/attributes": "* filter=x\n"})
    (told.clone.path / "a.txt").write_text("other\n")
    # Attributes that only this clone has do not take a file out of the comparison either.
    assert "a.txt has other content" in names(told.verdict())
    assert not (tmp_path / "ran").exists()
