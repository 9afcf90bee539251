"""The published tree: what a commit of the result has, or would have; and the tree hash of a commit's blobs."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path

import pytest

from endstate_action.errors import InputError
from endstate_action.system import tree_commit
from endstate_action.system.git import discover
from endstate_action.system.git_aside import aside
from endstate_action.system.published import publish
from endstate_action.system.tree import scan
from endstate_action.system.tree_commit import scan_commit
from tests.support.repos import GitRepo, Repo
from tests.support.results import changed, furnished, published


def hash_of(repo: Repo, revision: str = "HEAD", **more: object) -> str:
    return scan_commit(repo.path, revision, os.environ, repo.path.parent / "tmp").tree_hash


def files_below(place: Path) -> Mapping[Path, int]:
    return {path: path.lstat().st_mtime_ns for path in place.rglob("*")}


# --- A commit's hash ---


def test_a_commit_s_hash_is_that_of_a_clean_checkout(git_repo: GitRepo):
    repo = git_repo()
    furnished(repo)
    found = scan_commit(repo.path, "HEAD", os.environ, repo.path.parent / "tmp")
    there = scan(repo.path)
    assert found.tree_hash == there.tree_hash
    assert found.entries == there.entries


def test_a_commit_s_hash_does_not_depend_on_what_is_checked_out(git_repo: GitRepo):
    repo = git_repo()
    old = furnished(repo)
    then = hash_of(repo)
    repo.commit({"a.txt": "another"})
    (repo.path / "junk").write_text("untracked")
    assert hash_of(repo, old) == then != hash_of(repo)


def test_nothing_is_written_into_the_repository(git_repo: GitRepo):
    repo = git_repo()
    base = furnished(repo)
    before = files_below(repo.path)
    hash_of(repo)
    repo.write({"a.txt": "changed", "new": "new"})
    during = files_below(repo.path)
    published(repo, base, repo.path.parent / "tmp")
    assert files_below(repo.path) == during
    assert files_below(repo.path / ".git").items() <= before.items()


def test_large_blobs_and_many_are_hashed_in_parts(git_repo: GitRepo, monkeypatch: pytest.MonkeyPatch):
    repo = git_repo()
    furnished(repo)
    monkeypatch.setattr(tree_commit, "_AT_ONCE_BYTES", 20)
    assert hash_of(repo) == scan(repo.path).tree_hash


def test_what_is_left_out_of_a_scan_is_left_out_of_a_commit(git_repo: GitRepo, tmp_path: Path):
    repo = git_repo({"kept": "1", ".endstate/x": "2", "a/state/x": "3", "src/.endstate/x": "4"})
    for exclude in ([b".git", b".endstate"], [b".git", b"a/state"], [b".git", b"a/state", b"src"]):
        found = scan_commit(repo.path, "HEAD", os.environ, tmp_path / "tmp", exclude)
        assert found.tree_hash == scan(repo.path, exclude).tree_hash


def test_a_submodule_is_an_empty_directory_as_in_a_fresh_clone(git_repo: GitRepo, tmp_path: Path):
    inner, repo = git_repo(name="inner"), git_repo()
    repo.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(inner.path), "libs/inner")
    repo.commit()
    repo.git("clone", "--quiet", str(repo.path), str(tmp_path / "clone"))
    assert hash_of(repo) == scan(tmp_path / "clone").tree_hash


@pytest.mark.parametrize("form", ["HEAD", "HEAD^{tree}", "main~0", "{tree}", "{short}"])
def test_a_tree_may_be_named_by_a_commit_or_by_itself(git_repo: GitRepo, form: str):
    repo = git_repo({"a": "1", "d/e": "2"})
    tree = repo.git("rev-parse", "HEAD^{tree}")
    assert hash_of(repo, form.replace("{tree}", tree, form == "{tree}").replace("{short}", tree[:10])) == hash_of(repo)


def test_what_is_staged_has_the_hash_of_its_commit_to_be(git_repo: GitRepo):
    """However the work tree writes it: here it has other line ends."""
    repo = git_repo({".gitattributes": "*.bat text eol=crlf\n", "x.bat": "old\n"})
    repo.write({"x.bat": "new\r\n"})
    repo.git("add", "--all")
    staged = hash_of(repo, repo.git("write-tree"))
    assert staged != scan(repo.path).tree_hash
    repo.commit()
    assert staged == hash_of(repo)


@pytest.mark.parametrize("revision", ["nothing", "--all", "-h", "HEAD:README.md", "", "a" * 40])
def test_what_is_no_commit_is_refused(git_repo: GitRepo, revision: str):
    with pytest.raises(InputError, match="is no commit"):
        hash_of(git_repo(), revision)


def test_a_plain_directory_has_no_commits(tmp_path: Path):
    with pytest.raises(InputError, match="no git repository"):
        scan_commit(tmp_path, "HEAD", os.environ, tmp_path / "tmp")


def test_a_missing_blob_is_said_to_be_missing(git_repo: GitRepo):
    repo = git_repo({"a": "1", "b": "2"})
    blob = repo.git("rev-parse", "HEAD:a")
    lost = repo.path / ".git" / "objects" / blob[:2] / blob[2:]
    lost.chmod(0o600)
    lost.unlink()
    with pytest.raises(InputError, match="not hashed"):
        hash_of(repo)


# --- The tree of a result ---


def test_the_published_tree_is_what_git_would_commit(git_repo: GitRepo, tmp_path: Path):
    repo = git_repo()
    base = changed(repo)
    result, _ = published(repo, base, tmp_path / "tmp")
    commit = repo.commit()
    assert result.git_tree == repo.git("rev-parse", f"{commit}^{{tree}}")
    assert result.tree_hash == hash_of(repo) == scan(repo.path).tree_hash
    assert result.base_tree == repo.git("rev-parse", f"{base}^{{tree}}")
    listed = repo.git("-c", "core.quotePath=true", "diff-tree", "-r", "--no-renames", "--name-status", base, commit)
    kinds = ["added" if c.before is None else "deleted" if c.after is None else "modified" for c in result.changed]
    told = {"A": "added", "D": "deleted", "M": "modified", "T": "modified"}
    assert kinds == [told[line[0]] for line in listed.split("\n")]


def test_what_was_changed_before_the_start_is_no_part_of_the_result(git_repo: GitRepo, tmp_path: Path):
    repo = git_repo({"a": "1", "b": "1", "c": "1"})
    base = repo.git("rev-parse", "HEAD")
    repo.write({"a": "dirty", "b": "dirty", "build/x": "made by a step before"})
    repository = discover(repo.path, os.environ, tmp_path / "tmp")
    assert repository is not None
    at_start = repository.changes(base)
    repo.write({"b": "changed again", "c": "changed"})
    result, _ = published(repo, base, tmp_path / "tmp", at_start)
    assert [change.path for change in result.changed] == [b"b", b"c"]


def test_commits_made_on_the_way_are_part_of_the_result(git_repo: GitRepo, tmp_path: Path):
    repo = git_repo({"a": "1"})
    base = repo.git("rev-parse", "HEAD")
    repo.commit({"a": "2", "b": "new"})
    repo.write({"c": "not committed"})
    result, _ = published(repo, base, tmp_path / "tmp")
    assert [change.path for change in result.changed] == [b"a", b"b", b"c"]


def test_a_branch_without_commits_begins_with_nothing(git_repo: GitRepo, tmp_path: Path):
    repo = Repo(tmp_path / "fresh")
    repo.path.mkdir()
    repo.git("init", "--quiet")
    repo.write({"a": "1"})
    result, patch = published(repo, None, tmp_path / "tmp")
    assert [change.before for change in result.changed] == [None]
    assert patch.data


def test_line_ends_are_cleaned_as_git_would(git_repo: GitRepo, tmp_path: Path):
    repo = git_repo({".gitattributes": "*.bat text eol=crlf\n*.id ident\n", "x.bat": "old\n"})
    base = repo.git("rev-parse", "HEAD")
    repo.write({"x.bat": "new\r\n", "y.bat": "mixed\r\nends\n", "z.id": "$Id: whatever $\n"})
    result, _ = published(repo, base, tmp_path / "tmp")
    repo.commit()
    assert result.git_tree == repo.git("rev-parse", "HEAD^{tree}")
    assert result.tree_hash == hash_of(repo) != scan(repo.path).tree_hash


def test_the_user_s_safe_line_ends_do_not_keep_a_result_back(git_repo: GitRepo, tmp_path: Path):
    repo = git_repo({".gitattributes": "* text=auto\n"})
    repo.git("config", "core.safecrlf", "true")
    repo.write({"x.txt": "mixed\r\nends\n"})
    result, _ = published(repo, repo.git("rev-parse", "HEAD"), tmp_path / "tmp")
    assert [change.path for change in result.changed] == [b"x.txt"]


def test_what_no_commit_can_hold_is_left_out_by_name(git_repo: GitRepo, tmp_path: Path):
    repo = git_repo({".gitattributes": "*.big filter=lfs\n"})
    base = repo.git("rev-parse", "HEAD")
    repo.write({"x.big": "content", "fine": "fine", "nested/inner": "x"})
    Repo(repo.path / "nested").git("init", "--quiet")
    result, _ = published(repo, base, tmp_path / "tmp")
    assert set(result.left_out) == {"x.big", "nested"}
    assert "lfs" in result.left_out["x.big"]
    assert [change.path for change in result.changed] == [b"fine"]


def test_a_file_that_git_refuses_does_not_keep_the_others_back(git_repo: GitRepo, tmp_path: Path):
    """It is not in the encoding that its attributes promise, so git cannot clean it, and stops."""
    repo = git_repo({".gitattributes": "*.u working-tree-encoding=UTF-16\n"})
    repo.write({"broken.u": b"no byte order mark", "fine.u": "fine".encode("utf-16"), "fine": "y"})
    result, _ = published(repo, repo.git("rev-parse", "HEAD"), tmp_path / "tmp")
    assert set(result.left_out) == {"broken.u"}
    assert [change.path for change in result.changed] == [b"fine", b"fine.u"]


@pytest.mark.parametrize("name", ["git~1", ".GIT/config", "sub/.git /x"])
def test_a_name_that_git_refuses_is_left_out_by_name(git_repo: GitRepo, tmp_path: Path, name: str):
    """Git says nothing of it, and ends as if all were well."""
    repo = git_repo({"a": "1"})
    repo.write({name: "x", "a": "2"})
    result, _ = published(repo, repo.git("rev-parse", "HEAD"), tmp_path / "tmp")
    assert set(result.left_out) == {name}
    assert "git takes into no commit" in result.left_out[name]
    assert [change.path for change in result.changed] == [b"a"]


def test_what_changed_in_a_repository_inside_is_left_out_by_its_name(git_repo: GitRepo, tmp_path: Path):
    """Of those that were there before, git says the same whatever happens in them; a submodule is among them."""
    repo = git_repo({"a": "1"})
    for name in ("same", "edited", "gone", "module"):
        repo.write({f"{name}/inner": "x"})
        inner = Repo(repo.path / name)
        inner.git("init", "--quiet")
        inner.commit({"inner": "x"})
    repo.git("add", "module")
    repo.git("commit", "--quiet", "--message", "a submodule")
    base = repo.git("rev-parse", "HEAD")
    repository = discover(repo.path, os.environ, tmp_path / "tmp")
    assert repository is not None
    at_start, nested = repository.changes(base), repository.nested()
    repo.write({"edited/inner": "y", "edited/new": "y", "module/inner": "y"})
    shutil.rmtree(repo.path / "gone")
    with aside(repository, os.environ, base) as seen:
        result = publish(seen, base, at_start, nested)
    assert set(result.left_out) == {"edited", "gone", "module"}
    assert "is gone" in result.left_out["gone"]
    assert "was changed" in result.left_out["edited"]
    assert result.changed == ()


def test_what_only_this_checkout_has_configured_does_not_change_the_tree(git_repo: GitRepo, tmp_path: Path):
    repo = git_repo({"a.txt": "1\n"})
    base = repo.git("rev-parse", "HEAD")
    repo.write({"a.txt": "2\r\n", "b.big": "3"})
    plain, _ = published(repo, base, tmp_path / "tmp")
    repo.write({".git/info/attributes": "*.txt text\n*.big filter=lfs\n", "../mine": "*.txt text\n"})
    repo.git("config", "core.attributesFile", str(tmp_path / "mine"))
    assert published(repo, base, tmp_path / "tmp")[0] == plain


def test_nothing_found_in_the_repository_is_run(git_repo: GitRepo, tmp_path: Path):
    repo = git_repo({"a.txt": "1\n"})
    base = repo.git("rev-parse", "HEAD")
    program = tmp_path / "planted"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path / 'ran'}\ncat\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    for key in ("filter.x.clean", "filter.x.process", "diff.x.textconv", "diff.x.command", "diff.external"):
        repo.git("config", key, str(program))
    repo.git("config", "core.fsmonitor", str(program))
    repo.write({".gitattributes": "*.txt diff=x\n*.y filter=x diff=x\n", "a.txt": "2\n", "b.y": "3\n"})
    result, patch = published(repo, base, tmp_path / "tmp")
    scan_commit(repo.path, "HEAD", os.environ, tmp_path / "tmp")
    assert not (tmp_path / "ran").exists()
    assert b"+2" in patch.data
    assert set(result.left_out) == {"b.y"}
