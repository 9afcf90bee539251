"""Repositories that an agent can write to, read and committed to with real git."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from endstate_action.system.git import Head, Repository, discover, presume
from endstate_action.system.git_call import GitError, HeadMoved, LeftLocked, UntrustedConfig
from endstate_action.system.git_message import FALLBACK_IDENTITY, with_trailer
from tests.support.repos import GitRepo, Repo

WHEN = 1_767_225_600.0
KEY = ("Endstate-Key", "0123456789ab/3.0 cafe")
IDENTITY = ("-c", "user.name=A Tester", "-c", "user.email=tester@example.invalid")
ODD_NAMES = [
    "new\nline",
    "-rf",
    "--",
    "*",
    "[a]?",
    ":(top)x",
    ":!x",
    "quo\"te'",
    "tab\there",
    " blank ",
    "back\\slash",
    "ünï",
    os.fsdecode(b"latin-\xe9"),
]

Opened = Callable[..., Repository]


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    def open_it(where: Repo | Path, **environment: str) -> Repository:
        root = where.path if isinstance(where, Repo) else where
        found = discover(root, {**os.environ, **environment}, tmp_path / "tmp")
        assert found is not None
        return found

    return open_it


@pytest.fixture
def planted(tmp_path: Path) -> Callable[[], str]:
    """A program that leaves a canary file if anybody runs it, and the path of that file's absence."""
    canary, program = tmp_path / "canary", tmp_path / "planted.sh"
    program.write_text(f"#!/bin/sh\ntouch {canary}\ncat\n")
    program.chmod(0o755)

    def path() -> str:
        assert not canary.exists()
        return str(program)

    return path


def commit(repository: Repository, *paths: str, message: str = "A change") -> str:
    names = [os.fsencode(path) for path in paths]
    return repository.commit(names, message, KEY, WHEN, repository.head(), repository.trust())


def is_intact(repo: Repo) -> bool:
    return repo.git("fsck", "--strict", "--no-dangling") == ""


# --- finding a repository ---------------------------------------------------------------------


def test_a_directory_that_is_not_the_top_of_a_work_tree_is_no_repository(git_repo: GitRepo, tmp_path: Path) -> None:
    repo = git_repo({"inner/a": "a"})
    (tmp_path / "plain").mkdir()
    (tmp_path / "broken" / ".git").mkdir(parents=True)
    for root in (repo.path / "inner", tmp_path / "plain", tmp_path / "broken"):
        assert discover(root, os.environ, tmp_path / "tmp") is None


@pytest.mark.parametrize("gone", ["HEAD", "index", "objects", "refs"])
def test_a_repository_that_git_cannot_read_is_opened_as_it_was(
    git_repo: GitRepo, opened: Opened, tmp_path: Path, gone: str
) -> None:
    """For who puts it back: with the names and line ends of its own configuration."""
    repo = git_repo({"a": "a"})
    repo.git("config", "user.name", "Of This Repository")
    repo.git("config", "user.email", "it@example.invalid")
    repo.git("remote", "add", "origin", "https://example.invalid/it")
    before = opened(repo)
    place = repo.path / ".git" / gone
    shutil.rmtree(place) if place.is_dir() else place.unlink()

    found = presume(repo.path, os.environ, tmp_path / "tmp", "sha1")

    assert found == before
    assert (found.identity[0], found.remote_url()) == ("Of This Repository", "https://example.invalid/it")


def test_a_linked_work_tree_that_lost_its_way_is_opened_as_it_was(
    git_repo: GitRepo, opened: Opened, tmp_path: Path
) -> None:
    repo = git_repo({"a": "a"})
    repo.git("worktree", "add", "-q", "-b", "side", "../side")
    before = opened(tmp_path / "side")
    for name in ("HEAD", "commondir"):
        (before.git_dir / name).unlink()

    found = presume(tmp_path / "side", os.environ, tmp_path / "tmp", "sha1")

    assert found is not None
    assert (found.git_dir, found.common_dir) == (before.git_dir, before.common_dir)


def test_without_a_git_program_there_is_no_repository(git_repo: GitRepo, tmp_path: Path) -> None:
    repo = git_repo()
    assert discover(repo.path, {"PATH": str(tmp_path)}, tmp_path / "tmp") is None
    assert presume(repo.path, {"PATH": str(tmp_path)}, tmp_path / "tmp", "sha1") is None


def test_a_git_in_the_work_tree_is_not_the_one_that_is_called(
    git_repo: GitRepo, opened: Opened, planted: Callable[[], str]
) -> None:
    repo = git_repo()
    shutil.copy(planted(), repo.path / "git")
    path = os.pathsep.join((str(repo.path), ".", "", os.environ["PATH"]))
    assert opened(repo, PATH=path).head().ref == "refs/heads/main"
    planted()


@pytest.mark.parametrize("name", [b"two\nlines", b"line\n", b"wei\xffrd"])
def test_a_checkout_is_one_whatever_its_name_is(git_repo: GitRepo, opened: Opened, name: bytes) -> None:
    repo = git_repo({"a": "a"}, name=os.fsdecode(name))
    other = repo.path.with_name(os.fsdecode(b"linked " + name))
    repo.git("worktree", "add", "--quiet", "-b", "side", str(other))
    repo.write({"a": "b"})
    found, linked = opened(repo), opened(other)
    assert found.common_dir == linked.common_dir == repo.path / ".git"
    assert found.git_dir != linked.git_dir
    commit(found, "a")
    assert repo.git("status", "--porcelain") == ""


def test_a_linked_work_tree_is_committed_to_on_its_own_branch(git_repo: GitRepo, opened: Opened) -> None:
    repo = git_repo({"a": "1"})
    repo.git("worktree", "add", "-q", "-b", "side", "../side")
    (side := Repo(repo.path.parent / "side")).write({"a": "2"})
    made = commit(opened(side), "a")
    assert (side.git("rev-parse", "side"), side.git("status", "--porcelain")) == (made, "")
    assert repo.git("show", "main:a") == "1"


def test_a_submodule_can_be_the_workspace(git_repo: GitRepo, opened: Opened) -> None:
    library, repo = git_repo({"a": "1"}, name="library"), git_repo()
    repo.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(library.path), "lib")
    (inner := Repo(repo.path / "lib")).write({"a": "2"})
    assert (inner.path / ".git").is_file()
    made = commit(opened(inner), "a")
    assert (inner.git("rev-parse", "HEAD"), inner.git("status", "--porcelain")) == (made, "")


def test_head_tells_a_branch_from_none_and_a_commit_from_none(git_repo: GitRepo, opened: Opened) -> None:
    repo = git_repo()
    first = repo.git("rev-parse", "HEAD")
    assert opened(repo).head() == Head(first, "refs/heads/main")
    repo.git("checkout", "-q", "--detach")
    assert opened(repo).head() == Head(first, None)
    repo.git("checkout", "-q", "--orphan", "new")
    assert opened(repo).head() == Head(None, "refs/heads/new")


def test_variables_for_git_change_nothing(git_repo: GitRepo, opened: Opened, tmp_path: Path) -> None:
    repo = git_repo({"a": "1"})
    other = git_repo(name="other")
    repo.write({"a": "2"})
    hostile = {"GIT_DIR": f"{other.path}/.git", "GIT_INDEX_FILE": str(tmp_path / "i"), "GIT_TRACE": str(tmp_path / "t")}
    made = commit(opened(repo, **hostile), "a")
    assert repo.git("rev-parse", "main") == made
    assert not (tmp_path / "i").exists()
    assert not (tmp_path / "t").exists()


# --- what changed -----------------------------------------------------------------------------


def test_changes_are_edits_deletions_and_new_files_but_not_what_is_ignored(git_repo: GitRepo, opened: Opened) -> None:
    repo = git_repo({"kept": "k", "edited": "1", "deleted": "d", "renamed": "r", ".gitignore": "*.log\n"})
    repo.write({"edited": "2", "new/file": "n", "x.log": "ignored"})
    (repo.path / "deleted").unlink()
    (repo.path / "renamed").rename(repo.path / "moved")
    repository = opened(repo)
    expected = [b"deleted", b"edited", b"moved", b"new/file", b"renamed"]
    assert repository.changed_paths(repository.head().commit) == expected


def test_a_mode_a_link_and_a_kind_are_changes(git_repo: GitRepo, opened: Opened) -> None:
    repo = git_repo({"mode": "m", "link": "target", "dir/file": "f", "file": "f"})
    (repo.path / "mode").chmod(0o755)
    (repo.path / "link").unlink()
    (repo.path / "link").symlink_to("mode")
    shutil.rmtree(repo.path / "dir")
    repo.write({"dir": "now a file"})
    (repo.path / "file").unlink()
    repo.write({"file/below": "f"})
    repository = opened(repo)
    changed = repository.changed_paths(repository.head().commit)
    assert changed == [b"dir", b"dir/file", b"file", b"file/below", b"link", b"mode"]
    commit(repository, *map(os.fsdecode, changed))
    assert (repo.git("status", "--porcelain"), is_intact(repo)) == ("", True)


def test_staging_and_the_index_s_flags_do_not_hide_a_change(git_repo: GitRepo, opened: Opened) -> None:
    repo = git_repo({"a": "1", "b": "1", "c": "1"})
    repo.git("update-index", "--assume-unchanged", "a")
    repo.write({"a": "2", "b": "2", "c": "2"})
    repo.git("add", "b")
    repository = opened(repo)
    assert repository.changed_paths(repository.head().commit) == [b"a", b"b", b"c"]


def test_line_ends_that_git_itself_converts_are_no_change(git_repo: GitRepo, opened: Opened) -> None:
    repo = git_repo({".gitattributes": "*.bat text eol=crlf\n", "x.bat": "one\ntwo\n", "lf.txt": "one\n"})
    repository = opened(repo)
    assert repository.changed_paths(repository.head().commit) == []
    repo.write({"x.bat": "one\r\ntwo\r\nthree\r\n"})
    commit(repository, "x.bat")
    assert repo.git("cat-file", "blob", "HEAD:x.bat") == "one\ntwo\nthree"
    assert repo.git("status", "--porcelain") == ""


def test_the_project_s_own_setting_for_line_ends_holds(git_repo: GitRepo, opened: Opened) -> None:
    repo = git_repo({"a": "one\n"})
    repo.git("config", "core.autocrlf", "true")
    repo.write({"a": "one\r\n", "b": "two\r\n"})
    repository = opened(repo)
    assert repository.changed_paths(repository.head().commit) == [b"b"]
    commit(repository, "b")
    assert repo.git("cat-file", "blob", "HEAD:b") == "two"


def test_what_a_sparse_checkout_left_out_is_not_deleted(git_repo: GitRepo, opened: Opened) -> None:
    repo = git_repo({"in/a": "1", "out/b": "1"})
    repo.git("sparse-checkout", "set", "in")
    repo.write({"in/a": "2"})
    repository = opened(repo)
    assert not (repo.path / "out").exists()
    assert repository.changed_paths(repository.head().commit) == [b"in/a"]
    commit(repository, "in/a")
    assert repo.git("ls-tree", "-r", "--name-only", "HEAD") == "in/a\nout/b"
    assert repo.git("status", "--porcelain") == ""


def test_an_ignored_file_counts_once_the_index_has_it(git_repo: GitRepo, opened: Opened) -> None:
    repo = git_repo({".gitignore": "*.log\n"})
    repo.write({"a.log": "a", "b.log": "b", ":(top)*.log": "c"})
    repo.git("add", "--force", "a.log")
    repository = opened(repo)
    assert repository.changed_paths(repository.head().commit) == [b"a.log"]
    assert repository.ignored([b"b.log", b".gitignore", b"missing.log"]) == [b"b.log"]
    assert repository.ignored([b":(top)*.log", b"*"]) == [b":(top)*.log"]


def test_private_ignore_rules_hold(git_repo: GitRepo, opened: Opened, tmp_path: Path) -> None:
    repo = git_repo()
    (repo.path / ".git/info").mkdir(exist_ok=True)
    (repo.path / ".git/info/exclude").write_text("mine\n")
    rules = tmp_path / "home/.config/git/ignore"
    rules.parent.mkdir(parents=True)
    rules.write_text("editor\n")
    repo.write({"mine": "m", "editor": "e", "new": "n"})
    home = str(tmp_path / "home")
    repository = opened(repo, HOME=home, XDG_CONFIG_HOME=f"{home}/.config")
    assert repository.changed_paths(repository.head().commit) == [b"new"]


def test_a_digest_tells_whether_a_dirty_file_changed_once_more(git_repo: GitRepo, opened: Opened) -> None:
    repo = git_repo({"a": "1", "b": "1", "c": "1"})
    repo.write({"a": "2", "b": "2", "c": "2"})
    repository = opened(repo)
    before = repository.changes(repository.head().commit)
    repo.write({"b": "3"})
    (repo.path / "c").chmod(0o755)
    after = repository.changes(repository.head().commit)
    assert {path for path in after if before[path] != after[path]} == {"b", "c"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_workspace_of_another_user_is_no_obstacle(git_repo: GitRepo, opened: Opened, tmp_path: Path) -> None:
    """Git would call the ownership dubious; without a HOME nothing could be configured against it."""
    repo = git_repo({"a": "1"})
    for place in (repo.path, *repo.path.rglob("*")):
        os.lchown(place, 1001, 1001)
    repo.write({"a": "2"})
    environment = {key: value for key, value in os.environ.items() if key != "HOME"}
    repository = discover(repo.path, environment, tmp_path / "tmp")
    assert repository is not None
    assert repository.changed_paths(repository.head().commit) == [b"a"]
    made = commit(repository, "a")
    assert (repo.path / ".git/refs/heads/main").read_text().strip() == made


# --- committing -------------------------------------------------------------------------------


def test_a_commit_takes_exactly_the_paths_and_leaves_what_else_was_staged(git_repo: GitRepo, opened: Opened) -> None:
    repo = git_repo({"a": "1", "staged": "1", "dirty": "1", "gone": "1"})
    repo.write({"a": "2", "staged": "2", "dirty": "2", "new": "n"})
    repo.git("add", "staged")
    (repo.path / "gone").unlink()
    made = commit(opened(repo), "a", "new", "gone", message="Subject\n\nBody")
    assert repo.git("show", "--name-status", "--format=", made).split() == ["M", "a", "D", "gone", "A", "new"]
    assert repo.git("status", "--porcelain").splitlines() == [" M dirty", "M  staged"]
    assert repo.git("log", "-1", "--format=%B").rstrip() == "Subject\n\nBody\n\nEndstate-Key: 0123456789ab/3.0 cafe"
    assert is_intact(repo)


def test_a_name_is_a_name_and_never_a_pattern_or_an_option(git_repo: GitRepo, opened: Opened) -> None:
    repo = git_repo({"a": "1", "x": "1", "bystander": "1"})
    repo.write({"a": "2", "x": "2", "bystander": "2"} | dict.fromkeys(ODD_NAMES, "odd"))
    repository = opened(repo)
    odd = sorted(map(os.fsencode, ODD_NAMES))
    assert repository.changed_paths(repository.head().commit) == sorted([*odd, b"a", b"bystander", b"x"])
    assert sorted(repository.attributes(odd)) == odd
    assert [name for name in ODD_NAMES if repository.is_tracked(name)] == []
    assert repository.files_of(commit(repository, *ODD_NAMES)) == odd
    for name in ODD_NAMES:
        (repo.path / name).unlink()
    assert repository.files_of(commit(repository, *ODD_NAMES)) == odd
    assert repo.git("status", "--porcelain").split() == ["M", "a", "M", "bystander", "M", "x"]


def test_modes_links_and_contents_arrive_as_they_are(git_repo: GitRepo, opened: Opened) -> None:
    repo = git_repo()
    repo.write({"run": "#!/bin/sh\n", "data": b"\x00\xff\r\n", "empty": ""})
    (repo.path / "run").chmod(0o755)
    (repo.path / "dangling").symlink_to("no/such/place")
    commit(opened(repo), "run", "data", "empty", "dangling")
    shutil.rmtree(repo.path.parent / "clone", ignore_errors=True)
    repo.git("clone", "-q", ".", "../clone")
    clone = repo.path.parent / "clone"
    assert [bool((clone / name).stat().st_mode & 0o100) for name in ("run", "data")] == [True, False]
    assert (clone / "data").read_bytes() == b"\x00\xff\r\n"
    assert os.readlink(clone / "dangling") == "no/such/place"


def test_a_repeat_from_the_same_state_makes_the_same_commit(git_repo: GitRepo, opened: Opened) -> None:
    repo = git_repo({"a": "1"})
    repo.write({"a": "2"})
    repository = opened(repo)
    first = commit(repository, "a")
    repo.git("reset", "-q", "--soft", "HEAD^")
    assert commit(repository, "a") == first
    assert repo.git("show", "-s", "--format=%at %ct", first) == f"{int(WHEN)} {int(WHEN)}"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root works in somebody else's repository")
@pytest.mark.parametrize("is_linked", [False, True])
def test_what_root_commits_belongs_to_the_repositorys_owner(
    git_repo: GitRepo, opened: Opened, tmp_path: Path, is_linked: bool
) -> None:
    repo = git_repo({"a": "1"})
    main, owners = repo.path / ".git", tmp_path / "owners"
    owners.write_text("root's own, and by another name in the repository")
    if is_linked:
        repo.git("worktree", "add", "--quiet", "-b", "side/way", str(tmp_path / "linked"))
        repo = Repo(tmp_path / "linked")
    for place in (main, *main.rglob("*"), repo.path, *repo.path.iterdir()):
        os.chown(place, 65534, 65534, follow_symlinks=False)
    os.link(owners, main / "logs" / "planted")
    repo.write({f"f{n}": str(n) for n in range(20)})

    commit(opened(repo), *(f"f{n}" for n in range(20)))

    assert {p for p in main.rglob("*") if p.lstat().st_uid != 65534} == {main / "logs" / "planted"}
    assert owners.stat().st_uid == 0


def test_the_author_is_the_configured_one_or_a_constant(git_repo: GitRepo, opened: Opened, tmp_path: Path) -> None:
    repo = git_repo({"a": "1"})
    repo.write({"a": "2"})
    commit(opened(repo), "a")
    assert repo.git("show", "-s", "--format=%an|%ae|%cn|%ce") == "|".join(FALLBACK_IDENTITY * 2)
    (tmp_path / "home").mkdir()
    (tmp_path / "home/.gitconfig").write_text("[user]\n\tname = Zoë Ω\n\temail = zoe@example.invalid\n")
    repo.write({"a": "3"})
    commit(opened(repo, HOME=str(tmp_path / "home")), "a")
    assert repo.git("show", "-s", "--format=%an|%ce") == "Zoë Ω|zoe@example.invalid"


def test_the_first_commit_of_a_branch_has_no_parent(git_repo: GitRepo, opened: Opened) -> None:
    repo = git_repo()
    repo.git("checkout", "-q", "--orphan", "new")
    repo.git("rm", "-rqf", ".")
    repo.write({"a": "1", "b": "1"})
    repository = opened(repo)
    assert repository.changed_paths(None) == [b"a", b"b"]
    made = commit(repository, "a")
    assert repo.git("rev-list", "--parents", "new") == made
    assert repo.git("status", "--porcelain") == "?? b"


def test_a_detached_head_moves_and_no_branch_does(git_repo: GitRepo, opened: Opened) -> None:
    repo = git_repo({"a": "1"})
    before = repo.git("rev-parse", "main")
    repo.git("checkout", "-q", "--detach")
    repo.write({"a": "2"})
    made = commit(opened(repo), "a")
    assert (repo.git("rev-parse", "HEAD"), repo.git("rev-parse", "main")) == (made, before)


def test_a_repository_of_sha256_objects_works(tmp_path: Path, opened: Opened) -> None:
    repo = Repo(tmp_path / "repo")
    repo.path.mkdir()
    repo.git("init", "-q", "--object-format=sha256", "--initial-branch=main")
    repo.write({"a": "1", "b": "1"})
    repository = opened(repo)
    commit(repository, "a", "b")
    (repo.path / "b").unlink()
    made = commit(repository, "b")
    assert len(made) == 64
    assert (repo.git("ls-tree", "--name-only", "HEAD"), repo.git("status", "--porcelain")) == ("a", "")
    assert repository.find_by_trailer("Endstate-Key", None)[0] == (made, KEY[1])


@pytest.mark.parametrize("layout", ["split-index", "untracked-cache", "shallow"])
def test_other_layouts_of_a_git_directory_work(git_repo: GitRepo, opened: Opened, layout: str) -> None:
    repo = git_repo({"a": "1"})
    repo.commit({"a": "2"})
    if layout == "shallow":
        repo.git("clone", "-q", "--depth=1", f"file://{repo.path}", "../clone")
        repo = Repo(repo.path.parent / "clone")
    else:
        repo.git("update-index", f"--{layout}")
    repo.write({"a": "3"})
    made = commit(opened(repo), "a")
    assert (repo.git("rev-parse", "HEAD"), repo.git("status", "--porcelain")) == (made, "")
    assert opened(repo).find_by_trailer("Endstate-Key", None) == [(made, KEY[1])]


def test_a_commit_that_would_change_nothing_is_refused(git_repo: GitRepo, opened: Opened) -> None:
    repo = git_repo({"a": "1"})
    with pytest.raises(GitError, match="as they are"):
        commit(opened(repo), "a")


def test_a_head_that_moved_is_not_overwritten(git_repo: GitRepo, opened: Opened) -> None:
    repo = git_repo({"a": "1", "b": "1"})
    repository = opened(repo)
    before = repository.head()
    theirs = repo.commit({"b": "2"})
    repo.write({"a": "2"})
    with pytest.raises(HeadMoved, match=theirs):
        repository.commit([b"a"], "late", KEY, WHEN, before, repository.trust())
    assert repo.git("rev-parse", "HEAD") == theirs


@pytest.mark.parametrize("unfinished", ["merge", "cherry-pick"])
def test_a_merge_is_left_to_those_who_began_it(git_repo: GitRepo, opened: Opened, unfinished: str) -> None:
    repo = git_repo({"a": "1"})
    repo.git("checkout", "-q", "-b", "side")
    repo.commit({"a": "side"})
    repo.git("checkout", "-q", "main")
    head = repo.commit({"a": "main"})
    with pytest.raises(AssertionError):
        repo.git(unfinished, "side")
    with pytest.raises(GitError, match=f"A {unfinished} is in progress"):
        commit(opened(repo), "a")
    assert repo.git("rev-parse", "HEAD") == head


def test_trailers_of_the_message_stay_trailers() -> None:
    signed = with_trailer("Subject\n\nBody: yes\nmore\n\nCo-authored-by: A <a@example.invalid>  \n\n", "K", "v")
    assert signed == "Subject\n\nBody: yes\nmore\n\nCo-authored-by: A <a@example.invalid>\nK: v\n"
    assert with_trailer("Fix: it", "K", "v") == "Fix: it\n\nK: v\n"


# --- what a commit must not take --------------------------------------------------------------


@pytest.mark.parametrize("with_commit", [True, False])
def test_a_repository_inside_the_work_tree_is_refused_by_name(
    git_repo: GitRepo, opened: Opened, with_commit: bool
) -> None:
    repo = git_repo()
    (inner := Repo(repo.path / "vendor/x")).path.mkdir(parents=True)
    inner.git("init", "-q")
    inner.write({"file": "1"})
    if with_commit:
        inner.commit()
    repository = opened(repo)
    assert repository.changed_paths(repository.head().commit) == [b"vendor/x"]
    for path in ("vendor/x", "vendor/x/file"):
        with pytest.raises(GitError, match="vendor/x is a repository of its own"):
            commit(repository, path)


def test_a_submodule_is_refused_by_name_moved_or_absent(git_repo: GitRepo, opened: Opened) -> None:
    library, repo = git_repo({"a": "1"}, name="library"), git_repo()
    repo.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(library.path), "lib")
    repo.commit()
    repository = opened(repo)
    assert repository.changed_paths(repository.head().commit) == []
    (inner := Repo(repo.path / "lib")).commit({"a": "2"})
    assert repository.changed_paths(repository.head().commit) == [b"lib"]
    with pytest.raises(GitError, match="lib is a repository of its own"):
        commit(repository, "lib")
    shutil.rmtree(inner.path)
    with pytest.raises(GitError, match="lib is a repository of its own"):
        commit(repository, "lib")
    inner.path.mkdir()
    assert repository.changed_paths(repository.head().commit) == []


def test_content_for_a_filter_is_refused_by_name_and_its_deletion_is_not(git_repo: GitRepo, opened: Opened) -> None:
    repo = git_repo({"old.bin": "pointer", ".gitattributes": "*.bin filter=lfs -text\n*.txt ident\n"})
    repo.write({"new.bin": "content", "a.txt": "$Id$\n"})
    (repo.path / "old.bin").unlink()
    repository = opened(repo)
    with pytest.raises(GitError, match=r"new\.bin is content for the filter 'lfs'"):
        commit(repository, "a.txt", "new.bin")
    commit(repository, "a.txt", "old.bin")
    assert repo.git("ls-tree", "--name-only", "HEAD").split() == [".gitattributes", "a.txt"]
    assert repository.attributes([b"new.bin"])[b"new.bin"]["text"] == "unset"


def test_special_files_are_refused_and_never_waited_for(
    git_repo: GitRepo, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = git_repo({"tracked": "1"})
    (repo.path / "tracked").unlink()
    os.mkfifo(repo.path / "tracked")
    with socket.socket(socket.AF_UNIX) as listening:
        monkeypatch.chdir(repo.path)  # the path of a socket is short
        listening.bind("s")
        repository = opened(repo)
        assert repository.changed_paths(repository.head().commit) == [b"tracked"]
        for path in ("tracked", "s"):
            with pytest.raises(GitError, match=f"{path} is neither a file nor a link"):
                commit(repository, path)


def test_what_lies_behind_a_link_is_not_committed(git_repo: GitRepo, opened: Opened, tmp_path: Path) -> None:
    repo = git_repo({"d/a": "1"})
    shutil.rmtree(repo.path / "d")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/a").write_text("secret")
    (repo.path / "d").symlink_to(tmp_path / "outside")
    repository = opened(repo)
    commit(repository, *map(os.fsdecode, repository.changed_paths(repository.head().commit)))
    assert repo.git("ls-tree", "-r", "HEAD").split("\t")[1:] == ["d"]
    assert repo.git("ls-tree", "HEAD").startswith("120000")


# --- trust ------------------------------------------------------------------------------------


def plant(repo: Repo, where: str, program: str) -> None:
    git_dir = repo.path / ".git"
    match where:
        case "config":
            repo.git("config", "core.fsmonitor", program)
        case "filter":
            repo.git("config", "filter.x.clean", program)
            repo.write({".gitattributes": "* filter=x\n"})
        case "signing":
            repo.git("config", "commit.gpgSign", "true")
            repo.git("config", "gpg.program", program)
        case "hooks path":
            repo.write({"tools/README": "Hooks."})
            shutil.copy(program, repo.path / "tools/reference-transaction")
            repo.git("config", "core.hooksPath", "tools")
        case "include":
            repo.write({"innocent": f'[core]\n\tfsmonitor = {program}\n[filter "x"]\n\tclean = {program}\n'})
            repo.git("config", "include.path", "../innocent")
            repo.write({".gitattributes": "* filter=x\n"})
        case "attributes":
            (git_dir / "info").mkdir(exist_ok=True)
            (git_dir / "info/attributes").write_text("* filter=x\n")
        case "index link":
            (git_dir / "index").rename(repo.path / "elsewhere")
            (git_dir / "index").symlink_to(repo.path / "elsewhere")
        case "log link":
            (git_dir / "logs/HEAD").unlink()
            (git_dir / "logs/HEAD").symlink_to(repo.path / "elsewhere")
        case "git file":
            git_dir.rename(repo.path.parent / "moved")
            git_dir.write_text(f"gitdir: {repo.path.parent / 'moved'}\n")
        case hook:
            (git_dir / "hooks").mkdir(exist_ok=True)
            shutil.copy(program, git_dir / "hooks" / hook)


PROGRAMS = [
    *("config", "filter", "signing", "hooks path", "include"),
    *("pre-commit", "commit-msg", "post-index-change", "reference-transaction", "post-commit"),
]
PLACES = ["attributes", "index link", "log link", "git file"]


@pytest.mark.parametrize("where", PROGRAMS + PLACES)
def test_what_is_planted_in_a_git_directory_is_refused_and_never_runs(
    git_repo: GitRepo, opened: Opened, planted: Callable[[], str], where: str
) -> None:
    repo = git_repo({"a": "1"})
    repository = opened(repo)
    trust, before = repository.trust(), repository.head()
    program = planted()
    plant(repo, where, program)
    repo.write({"a": "2", "new": "n"})
    with pytest.raises(UntrustedConfig):
        opened(repo).commit([b"a"], "m", KEY, WHEN, before, trust)
    again = opened(repo)
    assert b"a" in again.changed_paths(before.commit)
    again.attributes([b"a"])
    again.ignored([b"a"])
    again.is_tracked("a")
    assert again.find_by_trailer("Endstate-Key", None) == []
    assert again.head() == before
    planted()


@pytest.mark.parametrize("where", PROGRAMS)
def test_nothing_runs_even_where_the_change_was_not_noticed(
    git_repo: GitRepo, opened: Opened, planted: Callable[[], str], where: str
) -> None:
    """The second line of defence: a commit that trusts the planted state still executes none of it."""
    repo = git_repo({"a": "1"})
    program = planted()
    plant(repo, where, program)
    repo.write({"a": "2"})
    repository = opened(repo)
    if "filter=x" in "".join(p.read_text() for p in repo.path.glob("**/*attributes")):
        with pytest.raises(GitError, match="filter 'x'"):
            commit(repository, "a")
    else:
        commit(repository, "a")
    planted()


@pytest.mark.parametrize("where", PROGRAMS)
def test_plain_git_runs_what_is_planted(git_repo: GitRepo, planted: Callable[[], str], where: str) -> None:
    """The control: without it, the tests above could pass because nothing was planted."""
    repo = git_repo({"a": "1"})
    program = planted()
    plant(repo, where, program)
    repo.write({"a": "2"})
    for command in (["add", "a"], ["commit", "-m", "m"]):
        subprocess.run(["git", *IDENTITY, *command], cwd=repo.path, capture_output=True, timeout=60, check=False)
    assert (repo.path.parent / "canary").exists()


def test_a_filter_planted_between_check_and_commit_has_no_program(
    git_repo: GitRepo, opened: Opened, planted: Callable[[], str]
) -> None:
    """A view reads the work tree under a configuration of ours, so the attribute names nothing."""
    repo = git_repo({"a": "1"})
    repository = opened(repo)
    plant(repo, "filter", planted())
    repo.write({"a": "2"})
    with repository._view(repository.head().commit) as seen:
        repository._stage(seen, [b"a"])
        assert seen.out("cat-file", "blob", ":a") == b"2"
    planted()


def test_ordinary_work_does_not_cost_the_trust(git_repo: GitRepo, opened: Opened) -> None:
    repo = git_repo({"a": "1"})
    repository = opened(repo)
    trust = repository.trust()
    repo.commit({"a": "2"})
    repo.git("checkout", "-q", "-b", "other")
    repo.git("stash", "list")
    repo.git("gc", "-q")
    repository.check_trust(trust)
    opened(repo).check_trust(trust)


def test_trust_names_no_place_of_this_machine(git_repo: GitRepo, opened: Opened) -> None:
    repo = git_repo()
    shutil.copytree(repo.path, repo.path.parent / "copy", symlinks=True)
    assert opened(repo).trust() == opened(repo.path.parent / "copy").trust()


# --- finding a commit again -------------------------------------------------------------------


def test_a_trailer_is_found_on_any_ref_and_only_as_a_trailer(git_repo: GitRepo, opened: Opened) -> None:
    repo = git_repo({"a": "1"})
    base = repo.git("rev-parse", "HEAD")
    repo.write({"a": "2"})
    made = commit(opened(repo), "a")
    repo.git("checkout", "-q", "-b", "side", base)
    repo.git("branch", "-f", "main", base)
    repo.git("update-ref", "refs/kept/x", made)
    repo.commit({"b": "1"}, "Quote\n\nEndstate-Key: 0123456789ab/9.0 beef\n\nis what it said.")
    repository = opened(repo)
    assert repository.find_by_trailer("Endstate-Key", base) == [(made, KEY[1])]
    assert repository.find_by_trailer("Endstate-Key", made) == []
    assert repository.find_by_trailer("Endstate-Key", "0" * 39 + "1") == [(made, KEY[1])]


def test_a_commit_that_only_head_reaches_is_found(git_repo: GitRepo, opened: Opened) -> None:
    repo = git_repo({"a": "1"})
    repo.git("checkout", "-q", "--detach")
    repo.write({"a": "2"})
    made = commit(opened(repo), "a")
    assert opened(repo).find_by_trailer("Endstate-Key", None) == [(made, KEY[1])]


def test_nothing_is_found_where_there_are_no_commits(tmp_path: Path, opened: Opened) -> None:
    repo = Repo(tmp_path / "repo")
    repo.path.mkdir()
    repo.git("init", "-q")
    assert opened(repo).find_by_trailer("Endstate-Key", None) == []
    assert opened(repo).changed_paths(None) == []


def test_a_tracked_directory_is_known_by_head_or_by_the_index(git_repo: GitRepo, opened: Opened) -> None:
    repo = git_repo({".endstate/forged": "x", "a": "1"})
    repo.write({"staged/file": "s", "loose": "l"})
    repo.git("add", "staged")
    repo.git("rm", "-rq", "--cached", ".endstate")
    repository = opened(repo)
    assert [p for p in (".endstate", "staged", "a", "loose", ":(glob)**") if repository.is_tracked(p)] == [
        *(".endstate", "staged", "a")
    ]


# --- locks ------------------------------------------------------------------------------------

LOCKS = ["index.lock", "HEAD.lock", "refs/heads/main.lock"]


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_of_a_killed_git_of_ours_is_removed(git_repo: GitRepo, opened: Opened, lock: str) -> None:
    repo = git_repo({"a": "1"})
    began = time.time() - 1
    (repo.path / ".git" / lock).touch()
    repository = opened(repo)
    assert [p.name for p in repository.remove_stale_locks(began)] == [Path(lock).name]
    repo.write({"a": "2"})
    commit(repository, "a")


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_from_before_the_call_is_left_alone_and_named(git_repo: GitRepo, opened: Opened, lock: str) -> None:
    repo = git_repo({"a": "1"})
    place = repo.path / ".git" / lock
    place.touch()
    os.utime(place, (WHEN, WHEN))
    repo.write({"a": "2"})
    repository = opened(repo)
    assert repository.remove_stale_locks(WHEN + 1) == []
    with pytest.raises(LeftLocked, match=lock):
        commit(repository, "a")
    assert place.exists()


def test_a_lock_that_a_live_process_holds_open_is_left_alone(git_repo: GitRepo, opened: Opened) -> None:
    repo = git_repo()
    place = repo.path / ".git/index.lock"
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; f = open(sys.argv[1], 'x'); print('up', flush=True); sys.stdin.read()",
            place,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"up\n"
        assert opened(repo).remove_stale_locks(WHEN) == []
    assert opened(repo).remove_stale_locks(WHEN) == [place]


def test_a_lock_is_left_alone_while_a_git_is_at_work(git_repo: GitRepo, opened: Opened) -> None:
    """Git closes the lock file while it waits for a hook or an editor, and still counts on it."""
    repo = git_repo()
    place = repo.path / ".git/index.lock"
    place.touch()
    with subprocess.Popen(
        ["git", "cat-file", "--batch"], cwd=repo.path, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as busy:
        assert busy.stdin is not None
        assert busy.stdout is not None
        busy.stdin.write(b"HEAD\n")
        busy.stdin.flush()
        busy.stdout.readline()
        assert opened(repo).remove_stale_locks(WHEN) == []
    assert opened(repo).remove_stale_locks(WHEN) == [place]
