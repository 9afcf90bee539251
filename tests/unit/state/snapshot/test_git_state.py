from __future__ import annotations

import hashlib
import json
import operator
import os
import shutil
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from endstate_action.config import SnapshotLimits
from endstate_action.errors import NotRestored, SnapshotDamaged, StateError
from endstate_action.state.snapshot import SnapshotStore
from endstate_action.state.snapshot.git_files import Small, converge, is_state, scan
from endstate_action.state.snapshot.git_listing import load
from endstate_action.state.snapshot.git_state import GitState
from endstate_action.state.snapshot.objects import ObjectStore
from endstate_action.state.snapshot.pack import pack
from tests.support.git_states import Kept, keep, shown, wipe
from tests.support.repos import GitRepo, Repo
from tests.support.trees import as_ordinary_user
from tests.support.workspaces import a_place_for_anybody

FILES = {f"{folder}/{name}.txt": f"{folder} {name}\n" * 20 for folder in ("a", "b", "c") for name in "xyz"}


@pytest.fixture
def repo(git_repo: GitRepo) -> Repo:
    return git_repo(FILES)


@pytest.fixture
def kept(repo: Repo, tmp_path: Path) -> Kept:
    kept = keep(repo, tmp_path / "store")
    kept.state.capture()
    return kept


def works(repo: Repo) -> None:
    """What an agent leaves: a commit, a branch, tags, a stash, something staged and something not."""
    repo.commit({"a/x.txt": "one\n", "new/file.txt": "new\n"}, "one")
    repo.git("branch", "feature/a")
    repo.git("tag", "-a", "-m", "a tag", "v1")
    repo.git("tag", "light")
    repo.write({"b/x.txt": "to be stashed\n"})
    repo.git("stash", "push", "-q")
    repo.write({"a/y.txt": "staged\n", "staged.txt": "staged too\n"})
    repo.git("add", "-A")
    repo.write({"a/y.txt": "and changed again\n", "untracked.txt": "?\n"})


def returns(kept: Kept, before: dict[str, str], tree: str) -> None:
    assert kept.state.restore(tree) == ()
    assert shown(kept.repo) == before
    assert kept.state.capture()[0] == tree
    kept.again()
    assert kept.state.capture()[0] == tree
    kept.repo.git("fsck", "--full", "--strict")


def objects(repo: Repo) -> list[Path]:
    return [path for path in (repo.path / ".git/objects").glob("??/*") if path.is_file()]


def corrupt(repo: Repo) -> None:
    for path in objects(repo):
        path.chmod(0o644)
        path.write_bytes(b"junk" + path.read_bytes()[4:])


def fails(repo: Repo, *arguments: str) -> None:
    with pytest.raises(AssertionError):
        repo.git(*arguments)


def stale_locks(repo: Repo) -> None:
    for name in ("index.lock", "HEAD.lock", "refs/heads/main.lock", "packed-refs.lock", "config.lock"):
        (repo.path / ".git" / name).touch()
    (repo.path / ".git/objects/maintenance.lock").touch()


def commits_and_resets(repo: Repo) -> None:
    repo.commit({"a/z.txt": "more\n"}, "two")
    repo.git("branch", "other")
    repo.git("tag", "-f", "light")
    repo.git("reset", "-q", "--hard", "HEAD~2")


def starts_an_orphan(repo: Repo) -> None:
    repo.git("checkout", "-q", "-f", "--orphan", "fresh")
    repo.commit({"only": "this\n"}, "orphan")
    repo.git("branch", "-D", "main")
    repo.git("branch", "-D", "feature/a")


def collects_garbage(repo: Repo) -> None:
    repo.git("stash", "drop", "-q")
    repo.git("reset", "-q", "--hard", "HEAD~1")
    for ref in ("refs/heads/feature/a", "refs/tags/v1", "refs/tags/light"):
        repo.git("update-ref", "-d", ref)
    repo.git("reflog", "expire", "--expire=now", "--all")
    repo.git("gc", "-q", "--prune=now")
    repo.git("pack-refs", "--all")


def conflicts(repo: Repo) -> None:
    repo.git("stash", "push", "-q", "-u")
    repo.git("checkout", "-q", "-b", "theirs", "HEAD~1")
    repo.commit({"a/x.txt": "theirs\n"}, "theirs")
    repo.git("checkout", "-q", "main")
    fails(repo, "merge", "theirs")


def rebases(repo: Repo) -> None:
    repo.git("stash", "push", "-q", "-u")
    repo.git("checkout", "-q", "-b", "topic", "HEAD~1")
    repo.commit({"a/x.txt": "topic\n"}, "topic")
    fails(repo, "rebase", "main")
    assert (repo.path / ".git/rebase-merge").is_dir()


def loses_objects_and_refs(repo: Repo) -> None:
    shutil.rmtree(repo.path / ".git/objects")
    shutil.rmtree(repo.path / ".git/refs")
    (repo.path / ".git/HEAD").write_bytes(b"\0junk\xff")


def begins_anew(repo: Repo) -> None:
    config = (repo.path / ".git/config").read_bytes()
    shutil.rmtree(repo.path / ".git")
    repo.git("init", "-q", "--initial-branch=elsewhere")
    (repo.path / ".git/config").write_bytes(config)
    repo.commit({}, "all anew")


def leaves_a_file(repo: Repo) -> None:
    shutil.rmtree(repo.path / ".git")
    (repo.path / ".git").write_text("gitdir: /nowhere\n")


def leaves_a_link(repo: Repo) -> None:
    elsewhere = repo.path.parent / "elsewhere"
    (repo.path / ".git").rename(elsewhere)
    (elsewhere / "HEAD").write_text("ref: refs/heads/hostile\n")
    (repo.path / ".git").symlink_to(elsewhere)


def swaps_refs(repo: Repo) -> None:
    repo.git("branch", "-D", "feature/a")
    repo.git("branch", "feature")
    repo.git("tag", "-d", "light")
    repo.git("tag", "light/one")
    repo.git("tag", "light/two")


def detaches(repo: Repo) -> None:
    repo.git("stash", "push", "-q", "-u")
    repo.git("checkout", "-q", "--detach", "HEAD~1")
    repo.write({"a/x.txt": "more\n"})
    repo.git("stash", "push", "-q")


def loses_the_index(repo: Repo) -> None:
    (repo.path / ".git/index").unlink()


def breaks_the_index(repo: Repo) -> None:
    (repo.path / ".git/index").write_bytes(b"DIRC junk")


def empties_packed_refs(repo: Repo) -> None:
    repo.git("pack-refs", "--all")
    (repo.path / ".git/packed-refs").write_bytes(b"")


NAME = operator.attrgetter("__name__")

DAMAGES: list[Callable[[Repo], None]] = [
    *(stale_locks, commits_and_resets, starts_an_orphan, collects_garbage, conflicts, rebases),
    *(loses_objects_and_refs, begins_anew, leaves_a_file, leaves_a_link, swaps_refs, detaches),
    *(loses_the_index, breaks_the_index, empties_packed_refs, corrupt),
]


@pytest.mark.parametrize("damage", DAMAGES, ids=NAME)
def test_whatever_a_call_did_to_the_repository_is_undone(repo, kept, damage):
    works(repo)
    before = shown(repo)
    tree, _ = kept.state.capture()
    files = {path: path.read_bytes() for path in repo.path.rglob("*") if path.is_file() and ".git" not in path.parts}
    damage(repo)
    kept.again()
    kept.state.capture()
    if not (repo.path / ".git").is_dir() or (repo.path / ".git").is_symlink():
        assert load(kept.store, kept.state.capture()[0]).place
    # The workspace is somebody else's to restore.
    for path in set(repo.path.rglob("*")) - files.keys():
        if path.is_file() and ".git" not in path.relative_to(repo.path).parts[:1]:
            path.unlink()
    for path, data in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    returns(kept, before, tree)


@pytest.mark.parametrize("situation", [conflicts, rebases, detaches, swaps_refs, empties_packed_refs], ids=NAME)
def test_a_repository_in_the_middle_of_something_comes_back_so(repo, kept, situation):
    works(repo)
    situation(repo)
    before = shown(repo)
    tree, _ = kept.state.capture()
    shutil.rmtree(repo.path / ".git")
    returns(kept, before | {}, tree)


def test_an_unfinished_rebase_can_be_finished_after_a_restore(repo, kept):
    works(repo)
    rebases(repo)
    tree, _ = kept.state.capture()
    loses_objects_and_refs(repo)
    kept.state.restore(tree)
    repo.write({"a/x.txt": "resolved\n"})
    repo.git("add", "-A")
    repo.git("-c", "core.editor=true", "rebase", "--continue")
    assert repo.git("log", "--format=%s", "-2") == "topic\none"


def test_a_branch_without_commits_is_kept(tmp_path):
    repo = Repo(tmp_path / "repo")
    repo.path.mkdir()
    repo.git("init", "-q", "--initial-branch=main")
    kept = keep(repo, tmp_path / "store", None)
    repo.write({"a": "staged\n"})
    repo.git("add", "a")
    before = shown(repo)
    tree, _ = kept.state.capture()
    repo.commit({}, "first")
    shutil.rmtree(repo.path / ".git/objects")
    returns(kept, before, tree)
    assert repo.git("show", ":a") == "staged"


def test_marks_in_the_index_come_back(repo, kept):
    repo.write({"intended.txt": "later\n"})
    repo.git("add", "-N", "intended.txt")
    repo.git("update-index", "--assume-unchanged", "a/x.txt")
    repo.git("update-index", "--skip-worktree", "a/y.txt")
    before = shown(repo)
    tree, _ = kept.state.capture()
    repo.git("reset", "-q")
    repo.git("update-index", "--no-assume-unchanged", "a/x.txt")
    repo.git("update-index", "--no-skip-worktree", "a/y.txt")
    returns(kept, before, tree)


def test_a_split_index_comes_back_as_a_whole_one(repo, kept):
    repo.git("update-index", "--split-index")
    repo.write({"a/x.txt": "changed\n"})
    repo.git("add", "-A")
    before = shown(repo)
    tree, _ = kept.state.capture()
    repo.git("rm", "-q", "-r", "--cached", ".")
    returns(kept, before, tree)
    assert not list((repo.path / ".git").glob("sharedindex.*"))


def test_an_index_that_says_the_same_is_left_as_it_is(repo, kept):
    """Git then still knows which files it has compared."""
    tree, _ = kept.state.capture()
    index = repo.path / ".git/index"
    seen = written(repo)[index]
    repo.git("branch", "other")
    kept.state.restore(tree)
    assert written(repo)[index] == seen


def test_a_stale_lock_of_the_project_changes_nothing_in_a_capture(repo, kept):
    tree, _ = kept.state.capture()
    stale_locks(repo)
    assert kept.state.capture()[0] == tree


def test_a_lock_that_a_living_process_holds_stops_a_restore_before_it_begins(repo, kept):
    tree, _ = kept.state.capture()
    repo.git("branch", "other")
    lock = repo.path / ".git/index.lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", f"f = open({str(lock)!r}, 'w'); print(1, flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout
        assert holder.stdout.readline()
        with pytest.raises(NotRestored, match="living process"):
            kept.state.restore(tree)
        assert lock.exists()
        assert "other" in repo.git("branch")
    finally:
        holder.communicate(b"\n")
    assert kept.state.restore(tree) == ()
    assert not lock.exists()
    assert "other" not in repo.git("branch")


SECRET = "ghs_0123456789abcdefghijklmnopqrstuvwxyz"


def everything_in(kept: Kept) -> bytes:
    kept.store.sync()
    store = kept.place
    loose = b"".join(zlib.decompress(path.read_bytes()) for path in store.glob("objects/??/*"))
    packed = [line.split()[0] for idx in store.glob("objects/pack/*.idx") for line in _listed(kept, idx)]
    return loose + b"".join(kept.store.read(name)[1] for name in packed)


def _listed(kept: Kept, idx: Path) -> list[str]:
    done = kept.store.git("verify-pack", "-v", str(idx))
    return [line for line in done.stdout.decode().splitlines() if len(line.split(" ")[0]) == 40]


def test_neither_configuration_nor_hooks_are_captured_or_touched(git_repo, repo, kept):
    other = git_repo(name="other")
    repo.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other.path), "libs/module")
    repo.commit({}, "with a module")
    hidden = [
        *("config", "config.worktree", "config.bak", "hooks/pre-commit", "hooks/deep/file", "description"),
        *("modules/libs/module/config", "modules/libs/module/hooks/post-checkout", "FETCH_HEAD", "lfs/x"),
    ]
    for name in hidden:
        place = repo.path / ".git" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("a") as file:
            file.write(f"# {SECRET} {name}\n")
    works(repo)
    tree, _ = kept.state.capture()
    assert SECRET.encode() not in everything_in(kept)
    assert b"staged too\n" in everything_in(kept)
    contents = {name: (repo.path / ".git" / name).read_bytes() for name in hidden}
    repo.commit({"more": "more\n"})
    assert kept.state.restore(tree) == ()
    assert contents == {name: (repo.path / ".git" / name).read_bytes() for name in hidden}


@pytest.mark.parametrize(
    ("path", "captured"),
    [
        *[("HEAD", True), ("refs/heads/config", True), ("refs/heads/hooks/objects", True), ("logs/HEAD", True)],
        *[("config", False), ("config.lock", False), ("hooks/x", False), ("objects/ab/cd", False), ("", False)],
        *[("worktrees/config/HEAD", True), ("worktrees/w/config.worktree", False), ("a/../config", False)],
        *[("modules/a/b/HEAD", True), ("modules/a/b/config", False), ("modules/a/hooks/x", False), ("/HEAD", False)],
        *[("shallow", False), ("modules/a/shallow", True)],
        *[("modules/a/refs/heads/config", True), ("modules/a/b/objects/x", False), ("refs/./x", False)],
    ],
)
def test_what_belongs_to_the_state_is_told_by_the_path(path, captured):
    assert is_state(path) is captured


def test_a_submodule_with_a_name_like_a_branch_does_not_smuggle_its_configuration(repo, kept):
    place = repo.path / ".git/modules/refs/heads"
    place.mkdir(parents=True)
    (place / "config").write_text(f"[core]\n\ttoken = {SECRET}\n")
    kept.state.capture()
    assert SECRET.encode() not in everything_in(kept)


def test_a_forged_state_cannot_write_configuration_or_hooks(repo, kept):
    for path in ("config", "hooks/post-checkout", "../outside", "modules/m/config", "objects/info/alternates"):
        with pytest.raises(ValueError, match="does not belong"):
            converge(repo.path / ".git", {path: Small("program", b"#!/bin/sh\n")})
    assert shown(repo)["head"] == "ref: refs/heads/main\n"


def test_a_forged_state_is_refused_before_anything_is_changed(repo, kept):
    tree, _ = kept.state.capture()
    stale_locks(repo)
    listing = kept.store.read(next(e.id for e in kept.store.tree_entries(tree) if e.name == b"listing"))[1]
    for path in ("hooks/post-checkout", "config", "../../outside"):
        forged = json.loads(listing)
        forged["files"][path] = {"kind": "program", "text": "#!/bin/sh\n"}
        blob = kept.store.write("blob", json.dumps(forged).encode())
        with pytest.raises(SnapshotDamaged, match="never captured"):
            kept.state.restore(kept.store.write("tree", b"100644 listing\0" + bytes.fromhex(blob)))
    assert (repo.path / ".git/index.lock").exists()


def test_nothing_is_written_or_removed_through_a_link(repo, kept, tmp_path):
    works(repo)
    before = shown(repo)
    tree, _ = kept.state.capture()
    outside = tmp_path / "outside"
    shutil.copytree(repo.path / ".git/refs", outside / "refs")
    (outside / "refs/heads/main").write_text("untouched\n")
    (outside / "index").write_text("untouched\n")
    shutil.rmtree(repo.path / ".git/refs")
    (repo.path / ".git/refs").symlink_to(outside / "refs")
    (repo.path / ".git/index").unlink()
    (repo.path / ".git/index").symlink_to(outside / "index")
    shutil.copytree(repo.path / ".git/objects", outside / "objects")
    count = len(list((outside / "objects").rglob("*")))
    shutil.rmtree(repo.path / ".git/objects")
    (repo.path / ".git/objects").symlink_to(outside / "objects")
    kept.state.capture()
    said = kept.state.restore(tree)
    assert len(said) == 1
    assert "set aside" in said[0]
    assert shown(repo) == before
    assert (outside / "refs/heads/main").read_text() == "untouched\n"
    assert (outside / "index").read_text() == "untouched\n"
    assert len(list((outside / "objects").rglob("*"))) == count


def test_a_hostile_configuration_executes_nothing(repo, kept, tmp_path):
    mark = tmp_path / "executed"
    evil = tmp_path / "evil"
    evil.write_text(f"#!/bin/sh\necho x >> {mark}\ncat\n")
    evil.chmod(0o755)
    works(repo)
    for key in (
        *("core.fsmonitor", "filter.evil.clean", "filter.evil.smudge", "core.sshCommand", "gpg.program"),
        *("diff.external", "core.pager", "uploadpack.packObjectsHook", "core.alternateRefsCommand"),
    ):
        repo.git("config", key, str(evil))
    repo.git("config", "core.hooksPath", str(tmp_path))
    repo.git("config", "remote.origin.url", f"ext::{evil}")
    repo.git("config", "remote.origin.promisor", "true")
    repo.git("config", "extensions.partialClone", "origin")
    repo.git("config", "include.path", str(tmp_path / "more"))
    for hook in ("post-checkout", "post-index-change", "reference-transaction", "pre-commit"):
        shutil.copy(evil, repo.path / ".git/hooks" / hook) if (repo.path / ".git/hooks").exists() else None
        shutil.copy(evil, tmp_path / hook)
    repo.write({".gitattributes": "* filter=evil\n"})
    (repo.path / ".git/info").mkdir(exist_ok=True)
    (repo.path / ".git/info/attributes").write_text("* filter=evil\n")
    mark.unlink(missing_ok=True)
    tree, _ = kept.state.capture()
    for path in objects(repo)[::2]:
        path.unlink()
    kept.again()
    kept.state.capture()
    kept.state.restore(tree)
    assert not mark.exists()


def test_a_commit_graph_and_alternates_from_a_stranger_are_not_believed(repo, kept):
    works(repo)
    repo.git("commit-graph", "write", "--reachable")
    graph = repo.path / ".git/objects/info/commit-graph"
    graph.chmod(0o644)
    graph.write_bytes(graph.read_bytes()[:-40] + b"x" * 40)
    (repo.path / ".git/objects/info/alternates").write_text("/nowhere\n")
    kept.again()
    _, tips = kept.state.capture()
    assert repo.git("-c", "core.commitGraph=false", "rev-parse", "HEAD") in tips


def test_an_object_that_is_not_what_its_name_says_is_not_taken(repo, kept):
    repo.commit({"secret.txt": "honest\n"}, "honest")
    blob = repo.git("rev-parse", "HEAD:secret.txt")
    path = repo.path / ".git/objects" / blob[:2] / blob[2:]
    path.chmod(0o644)
    path.write_bytes(zlib.compress(b"blob 5\0fake\n"))
    kept.state.capture()
    if not kept.store.missing([blob]):
        assert kept.store.read(blob) == ("blob", b"honest\n")


def test_an_unchanged_repository_costs_no_git_process_and_no_object(repo, kept):
    works(repo)
    kept.state.capture()
    for path in (repo.path / ".git").rglob("*"):
        if path.is_file():
            os.utime(path, (1, 1))
    time.sleep(0.1)
    first = kept.state.capture()
    count = len(list(kept.place.rglob("*")))
    calls: list[object] = []
    original = kept.store.git

    def counted(*argv: str, **more: object) -> object:
        calls.append(argv)
        return original(*argv, **more)

    kept.store.git = counted
    assert kept.state.capture() == first
    assert calls == []
    assert len(list(kept.place.rglob("*"))) == count


def test_a_ref_rewritten_in_place_in_the_same_moment_is_seen(repo, kept):
    """The same size, and perhaps the same times: what is as young as the look is read again."""
    one, two = repo.git("rev-parse", "HEAD"), repo.commit({"a/x.txt": "two\n"})
    path = repo.path / ".git/refs/heads/other"
    for _ in range(20):
        path.write_text(f"{one}\n")
        first, _ = kept.state.capture()
        seen = path.stat()
        path.write_text(f"{two}\n")
        os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))
        assert kept.state.capture()[0] != first


def test_what_is_staged_is_carried_even_where_the_store_has_it_for_another_reason(repo, kept):
    repo.write({"staged.txt": "staged\n"})
    repo.git("add", "-A")
    kept.store.write("blob", b"staged\n")
    _, tips = kept.state.capture()
    assert repo.git("rev-parse", ":staged.txt") in tips


def test_history_that_came_with_the_checkout_is_not_carried(git_repo, tmp_path):
    """Neither what the base is built on, nor remote branches and tags; they come with the next checkout."""
    upstream = git_repo(FILES, name="upstream")
    for n in range(5):
        upstream.commit({"a/x.txt": f"{n}\n"}, f"{n}")
    upstream.git("checkout", "-q", "-b", "release", "HEAD~4")
    release = upstream.commit({"big.txt": "release\n" * 1000}, "release")
    upstream.git("tag", "-a", "-m", "1.0", "v1.0")
    upstream.git("checkout", "-q", "main")
    repo = Repo(tmp_path / "clone")
    subprocess.run(["git", "clone", "-q", str(upstream.path), str(repo.path)], check=True)
    kept = keep(repo, tmp_path / "store")
    kept.state.capture()
    old = repo.git("rev-parse", "HEAD~2")
    repo.git("checkout", "-q", "--detach", "origin/release")
    mine = repo.commit({"mine.txt": "mine\n"}, "mine")
    repo.git("tag", "-a", "-m", "mine", "on-old", old)
    repo.git("reset", "-q", "--hard", old)
    before = shown(repo)
    tree, tips = kept.state.capture()
    assert mine in tips
    assert not {release, old} & tips
    assert kept.store.missing([release, old]) == {release, old}
    # Whole against the base, although what it follows is not there.
    assert not kept.store.missing([repo.git("rev-parse", f"{mine}^{{tree}}"), repo.git("rev-parse", f"{mine}:big.txt")])
    repo.git("checkout", "-q", "-f", "main")
    repo.git("tag", "-d", "on-old")
    kept.state.restore(tree)
    now = shown(repo)
    assert {key: now[key] for key in now if key != "status"} == {key: before[key] for key in before if key != "status"}
    assert kept.state.capture()[0] == tree


def test_history_that_the_call_destroyed_is_named_and_the_rest_comes_back(git_repo, tmp_path):
    upstream = git_repo(FILES, name="upstream")
    upstream.commit({"a/x.txt": "two\n"})
    repo = Repo(tmp_path / "clone")
    subprocess.run(["git", "clone", "-q", f"file://{upstream.path}", str(repo.path)], check=True)
    kept = keep(repo, tmp_path / "store")
    kept.state.capture()
    mine = repo.commit({"mine.txt": "mine\n"})
    tree, _ = kept.state.capture()
    shutil.rmtree(repo.path / ".git/objects")
    said = kept.state.restore(tree)
    assert [str(kept.base) in sentence for sentence in said] == [True]
    assert repo.git("rev-parse", "HEAD") == mine
    assert repo.git("status", "--porcelain") == ""
    shutil.copytree(upstream.path / ".git/objects", repo.path / ".git/objects", dirs_exist_ok=True)
    assert kept.state.restore(tree) == ()
    repo.git("fsck", "--full")


def test_a_remote_branch_that_is_gone_upstream_does_not_break_the_repository(git_repo, tmp_path):
    upstream = git_repo(FILES, name="upstream")
    upstream.git("checkout", "-q", "-b", "release")
    upstream.commit({"r": "r\n"})
    upstream.git("checkout", "-q", "main")
    first = Repo(tmp_path / "first")
    subprocess.run(["git", "clone", "-q", str(upstream.path), str(first.path)], check=True)
    kept = keep(first, tmp_path / "store")
    first.commit({"mine": "mine\n"})
    tree, _ = kept.state.capture()
    upstream.git("branch", "-D", "release")
    upstream.git("reflog", "expire", "--expire=now", "--all")
    upstream.git("gc", "-q", "--prune=now")
    shutil.rmtree(first.path / ".git")
    subprocess.run(["git", "clone", "-q", f"file://{upstream.path}", str(tmp_path / "next")], check=True)
    (tmp_path / "next/.git").rename(first.path / ".git")
    kept.again()
    said = kept.state.restore(tree)
    assert any("release" in sentence for sentence in said)
    first.git("fsck")
    first.git("fetch", "-q")
    assert first.git("log", "-1", "--format=%s") == "change"


def test_a_submodules_own_state_and_commits_are_kept(git_repo, repo, tmp_path):
    other = git_repo({"m.txt": "m\n"}, name="other")
    repo.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other.path), "libs/module")
    repo.commit({}, "with a module")
    kept = keep(repo, tmp_path / "store")
    kept.state.capture()
    module = Repo(repo.path / "libs/module")
    mine = module.commit({"m.txt": "mine\n"}, "mine")
    module.write({"n.txt": "staged\n"})
    module.git("add", "-A")
    before = module.git("status", "--porcelain=v2", "--branch")
    tree, tips = kept.state.capture()
    assert mine in tips
    module.git("reset", "-q", "--soft", "HEAD~1")
    module.git("reflog", "expire", "--expire=now", "--all")
    module.git("reset", "-q")
    module.git("gc", "-q", "--prune=now")
    fails(module, "cat-file", "-e", mine)
    assert kept.state.restore(tree) == ()
    assert module.git("status", "--porcelain=v2", "--branch") == before
    module.git("fsck", "--full")
    assert kept.state.capture()[0] == tree


def test_a_submodule_that_the_call_added_leaves_nothing_that_stops_its_repetition(git_repo, repo, kept):
    other = git_repo({"m.txt": "m\n"}, name="other")
    tree, _ = kept.state.capture()
    add = ("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other.path), "module")
    repo.git(*add)
    kept.state.restore(tree)
    wipe(repo.path / "module")
    wipe(repo.path / ".gitmodules")
    repo.git("config", "--remove-section", "submodule.module")
    assert not (repo.path / ".git/modules/module").exists()
    repo.git(*add)


def test_a_workspace_that_is_a_submodule_gets_its_link_back(git_repo, repo, tmp_path):
    other = git_repo({"m.txt": "m\n"}, name="other")
    repo.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other.path), "module")
    module = Repo(repo.path / "module")
    dot = module.path / ".git"
    kept = keep(module, tmp_path / "store", git_dir=repo.path / ".git/modules/module", dot_git=dot)
    kept.state.capture()
    module.commit({"m.txt": "mine\n"})
    text, tree = dot.read_text(), kept.state.capture()[0]
    before = shown(module)
    dot.unlink()
    module.git("init", "-q")
    module.commit({}, "another")
    assert kept.state.restore(tree) == ()
    assert dot.read_text() == text
    assert shown(module) == before
    assert kept.state.capture()[0] == tree


def test_a_linked_work_tree_gets_back_its_own_branch_and_nobody_elses(repo, tmp_path):
    linked = Repo(tmp_path / "linked")
    repo.git("worktree", "add", "-q", "-b", "mine", str(linked.path))
    git_dir = repo.path / ".git/worktrees/linked"
    dot = linked.path / ".git"
    kept = keep(linked, tmp_path / "store", git_dir=git_dir, common_dir=git_dir / "../..", dot_git=dot)
    linked.commit({"a/x.txt": "one\n"}, "one")
    linked.write({"s.txt": "staged\n"})
    linked.git("add", "-A")
    at, theirs = linked.git("rev-parse", "HEAD"), repo.git("rev-parse", "HEAD")
    status = linked.git("status", "--porcelain=v2", "--branch")
    tree, tips = kept.state.capture()
    assert at in tips
    assert repo.commit({"other": "theirs\n"}, "meanwhile") != theirs
    meanwhile = repo.git("rev-parse", "main")
    linked.git("commit", "-q", "-m", "two")
    linked.git("checkout", "-q", "-b", "another")
    dot.unlink()
    assert kept.state.restore(tree) == ()
    assert linked.git("status", "--porcelain=v2", "--branch") == status
    assert linked.git("rev-parse", "mine") == at
    assert repo.git("rev-parse", "main") == meanwhile
    assert kept.state.capture()[0] == tree


def test_a_linked_work_tree_whose_head_names_a_path_outside_reaches_nothing(repo, tmp_path):
    linked = Repo(tmp_path / "linked")
    repo.git("worktree", "add", "-q", "-b", "mine", str(linked.path))
    git_dir = repo.path / ".git/worktrees/linked"
    kept = keep(linked, tmp_path / "store", git_dir=git_dir, common_dir=repo.path / ".git")
    (git_dir / "HEAD").write_text("ref: refs/heads/../../config\n")
    tree, _ = kept.state.capture()
    assert load(kept.store, tree).common == {}


def test_a_linked_work_tree_made_inside_the_repository_comes_back(repo, kept):
    repo.git("worktree", "add", "-q", "-b", "side", str(repo.path / "side"))
    side = Repo(repo.path / "side")
    mine = side.commit({"side.txt": "side\n"}, "side")
    side.git("checkout", "-q", "--detach")
    tree, tips = kept.state.capture()
    assert mine in tips
    side.git("checkout", "-q", "side")
    repo.git("branch", "-f", "other", "main")
    shutil.rmtree(repo.path / ".git/worktrees")
    assert kept.state.restore(tree) == ()
    assert side.git("rev-parse", "HEAD") == mine
    assert side.git("status", "--porcelain") == ""


def test_a_depth_one_checkout_is_enough(git_repo, tmp_path):
    upstream = git_repo(FILES, name="upstream")
    upstream.commit({"a/x.txt": "two\n"})
    repo = Repo(tmp_path / "clone")
    subprocess.run(["git", "clone", "-q", "--depth=1", f"file://{upstream.path}", str(repo.path)], check=True)
    kept = keep(repo, tmp_path / "store")
    kept.state.capture()
    works(repo)
    before = shown(repo)
    tree, _ = kept.state.capture()
    loses_objects_and_refs(repo)
    shutil.rmtree(repo.path / ".git/logs")
    returns(kept, before, tree)


def _shallow(upstream: Repo, place: Path) -> Repo:
    subprocess.run(["git", "clone", "-q", "--depth=1", f"file://{upstream.path}", str(place)], check=True)
    return Repo(place)


def _is_sound(repo: Repo) -> None:
    repo.git("fsck", "--full")
    repo.git("rev-list", "--all", "--objects")
    repo.git("gc", "-q")


@pytest.mark.parametrize("depths", [("0", "1"), ("1", "0")])
def test_a_state_moves_between_a_whole_checkout_and_one_without_its_history(git_repo, tmp_path, depths):
    """Where history ends is so on one machine alone: the other keeps what it has."""
    upstream = git_repo(FILES, name="upstream")
    upstream.commit({"a/x.txt": "two\n"})

    def cloned(name: str, depth: str) -> Repo:
        if depth == "1":
            return _shallow(upstream, tmp_path / name)
        subprocess.run(["git", "clone", "-q", f"file://{upstream.path}", str(tmp_path / name)], check=True)
        return Repo(tmp_path / name)

    first, then = (cloned(name, depth) for name, depth in zip(("first", "then"), depths, strict=True))
    kept = keep(first, tmp_path / "store")
    kept.state.capture()
    mine = first.commit({"mine.txt": "mine\n"})
    tree, _ = kept.state.capture()
    length = then.git("rev-list", "--count", "HEAD")
    shutil.rmtree(first.path)
    then.path.rename(first.path)
    kept.again()
    assert kept.state.restore(tree) == ()
    assert first.git("rev-parse", "HEAD") == mine
    assert int(first.git("rev-list", "--count", "HEAD")) == int(length) + 1
    assert kept.state.capture()[0] == tree
    _is_sound(first)


def test_a_checkout_of_a_later_commit_gets_the_base_without_its_history(git_repo, tmp_path):
    upstream = git_repo(FILES, name="upstream")
    upstream.commit({"a/x.txt": "two\n"})
    first = _shallow(upstream, tmp_path / "first")
    kept = keep(first, tmp_path / "store")
    kept.state.capture()
    mine = first.commit({"mine.txt": "mine\n"})
    tree, _ = kept.state.capture()
    upstream.commit({"a/x.txt": "three\n"})
    shutil.rmtree(first.path)
    _shallow(upstream, first.path)
    kept.again()
    assert kept.state.restore(tree) == ()
    assert first.git("rev-parse", "HEAD") == mine
    assert first.git("log", "--format=%H").split() == [mine, kept.base]
    _is_sound(first)


@pytest.mark.parametrize("lost", ["shallow", ""])
def test_a_call_that_removes_the_note_of_where_history_ends_breaks_nothing(git_repo, tmp_path, lost):
    upstream = git_repo(FILES, name="upstream")
    upstream.commit({"a/x.txt": "two\n"})
    repo = _shallow(upstream, tmp_path / "clone")
    kept = keep(repo, tmp_path / "store")
    repo.commit({"mine.txt": "mine\n"})
    tree, _ = kept.state.capture()
    wipe(repo.path / ".git" / lost)
    assert kept.state.restore(tree) == ()
    assert repo.git("rev-list", "--count", "HEAD") == "2"
    _is_sound(repo)


def test_a_sha256_repository_is_kept_as_well(tmp_path):
    repo = Repo(tmp_path / "repo")
    repo.path.mkdir()
    repo.git("init", "-q", "--object-format=sha256", "--initial-branch=main")
    repo.commit(FILES)
    kept = keep(repo, tmp_path / "store", object_format="sha256")
    kept.state.capture()
    works(repo)
    before = shown(repo)
    tree, _ = kept.state.capture()
    collects_garbage(repo)
    repo.write({"a/y.txt": "and changed again\n", "a/x.txt": "one\n", "new/file.txt": "new\n"})
    repo.write({"staged.txt": "staged too\n", "untracked.txt": "?\n", "b/x.txt": FILES["b/x.txt"]})
    assert kept.state.restore(tree) == ()
    assert shown(repo) == before


def written(repo: Repo) -> dict[Path, tuple[int, int]]:
    files = [path for path in (repo.path / ".git").rglob("*") if path.is_file()]
    return {path: (path.stat().st_ino, path.stat().st_ctime_ns) for path in files}


def test_a_repeated_restore_changes_nothing(repo, kept):
    works(repo)
    tree, _ = kept.state.capture()
    commits_and_resets(repo)
    kept.state.restore(tree)
    before = written(repo)
    assert kept.state.restore(tree) == ()
    assert written(repo) == before


@pytest.mark.parametrize("kills", range(0, 12, 2))
def test_a_killed_restore_is_concluded_by_the_next(repo, kept, kills):
    works(repo)
    before = shown(repo)
    tree, _ = kept.state.capture()
    kept.store.sync()
    begins_anew(repo)
    code = (
        "import os, sys, threading, time, random\n"
        "from pathlib import Path\n"
        "from endstate_action.state.snapshot.git_state import GitState\n"
        "from endstate_action.state.snapshot.objects import ObjectStore\n"
        "store, git, base, tree, delay = sys.argv[1:]\n"
        "objects = ObjectStore(Path(store), 'sha1', os.environ)\n"
        "state = GitState(objects, Path(git), Path(git), base, Path(store) / 'cache')\n"
        "def die():\n"
        "    time.sleep(float(delay))\n"
        "    os.kill(os.getpid(), 9)\n"
        "threading.Thread(target=die, daemon=True).start()\n"
        "state.restore(tree)\n"
        "time.sleep(60)\n"
    )
    argv = [str(kept.place), str(repo.path / ".git"), str(kept.base), tree, str(kills * 0.006)]
    done = subprocess.run([sys.executable, "-c", code, *argv], check=False, timeout=60, env=os.environ | _path())
    assert done.returncode == -9
    kept.again()
    assert kept.state.restore(tree) == ()
    now = shown(repo)
    assert {k: now[k] for k in ("head", "refs", "index", "logs", "fsck", "locks")} == {
        k: before[k] for k in ("head", "refs", "index", "logs", "fsck", "locks")
    }
    assert kept.state.capture()[0] == tree


def _path() -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}


def test_a_state_that_is_not_whole_changes_nothing(repo, kept):
    works(repo)
    (repo.path / ".git/info").mkdir(exist_ok=True)
    (repo.path / ".git/info/exclude").write_text("*.tmp\n" * 200)
    tree, _ = kept.state.capture()
    gone = load(kept.store, tree).files["info/exclude"].blob
    assert gone
    listing = kept.store.read(next(e.id for e in kept.store.tree_entries(tree) if e.name == b"listing"))[1]
    forged = kept.store.write("blob", listing.replace(gone.encode(), b"1" * 40))
    repo.git("branch", "other")
    before = shown(repo)
    with pytest.raises(SnapshotDamaged, match="1" * 40):
        kept.state.restore(kept.store.write("tree", b"100644 listing\0" + bytes.fromhex(forged)))
    assert shown(repo) == before
    with pytest.raises(SnapshotDamaged):
        kept.state.restore(kept.store.write("tree", b""))


def test_a_file_of_no_use_to_git_is_passed_over(repo, kept):
    os.mkfifo(repo.path / ".git/fifo")
    (repo.path / ".git/huge").touch()
    os.truncate(repo.path / ".git/huge", 1 << 30)
    tree, _ = kept.state.capture()
    assert load(kept.store, tree).left == ("huge",)
    assert kept.state.restore(tree) == ()
    assert (repo.path / ".git/huge").stat().st_size == 1 << 30
    assert not (repo.path / ".git/fifo").exists()


def test_names_and_contents_of_any_bytes_come_back(repo, kept):
    place = os.fsencode(repo.path / ".git") + b"/refs/\xff\xfe\nline"
    with open(place, "wb") as file:
        file.write(bytes(range(256)))
    tree, _ = kept.state.capture()
    os.unlink(place)
    kept.state.restore(tree)
    with open(place, "rb") as file:
        assert file.read() == bytes(range(256))


def test_a_large_number_of_branches_is_one_object(repo, kept):
    head = repo.git("rev-parse", "HEAD")
    for n in range(500):
        (repo.path / f".git/refs/heads/b{n}").write_text(f"{head}\n")
    tree, _ = kept.state.capture()
    assert [entry.name for entry in kept.store.tree_entries(tree)] == [b"listing"]


def test_a_ref_file_is_written_as_whoever_owns_the_repository(repo, kept):
    tree, _ = kept.state.capture()
    (repo.path / ".git").chmod(0o750)
    repo.git("update-ref", "-d", "refs/heads/main")
    kept.state.restore(tree)
    assert (repo.path / ".git/refs/heads/main").stat().st_mode & 0o777 == 0o640
    if os.geteuid() == 0:
        for path in (repo.path / ".git", *(repo.path / ".git").rglob("*")):
            os.chown(path, 12345, 12345)
        loses_objects_and_refs(repo)
        kept.state.restore(tree)
        assert all(path.stat().st_uid == 12345 for path in (repo.path / ".git").rglob("*"))


@pytest.mark.parametrize(
    ("mode", "closed"),
    [(0o555, ("refs/heads", "logs", ".", "objects")), (0o000, ("refs/heads", "logs", ".")), (0, (".",))],
)
def test_as_an_ordinary_user_what_a_call_closed_is_put_back_too(mode: int, closed: tuple[str, ...]):
    with a_place_for_anybody() as place, as_ordinary_user():
        repo = Repo(place.root)
        repo.git("init", "-q", "-b", "main")
        repo.commit(FILES)
        kept = keep(repo, place.root / ".endstate")
        tree, _ = kept.state.capture()
        before = shown(repo)
        repo.commit()
        (repo.path / ".git/index.lock").touch()
        for name in closed:
            (repo.path / ".git" / name).chmod(mode)
        kept.again()
        kept.state.capture()
        assert kept.state.restore(tree) == ()
        assert shown(repo) == before


def test_without_git_nothing_is_said_to_be_captured(repo, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    store = ObjectStore(tmp_path / "store", env={"PATH": str(empty)})
    state = GitState(store, repo.path / ".git", repo.path / ".git", None, tmp_path / "store/cache")
    with pytest.raises(StateError, match="no git program"):
        state.capture()


def test_a_scan_lists_each_directory_before_what_is_in_it(repo):
    found = scan(repo.path / ".git")
    for number, folder in enumerate(found.directories):
        parent = folder.rpartition("/")[0]
        assert not parent or parent in found.directories[:number]
    assert "HEAD" in found.files
    assert not any(path.startswith(("objects", "hooks", "config")) for path in found.files)


def test_ids_are_those_of_git(kept):
    assert kept.store.write("blob", b"x") == hashlib.sha1(b"blob 1\0x").hexdigest()


def snapshots(repo: Repo, kept: Kept) -> SnapshotStore:
    """Of the work tree, with the repository."""
    state = repo.path / ".endstate"
    kept.place.rename(state)
    kept.place = state
    kept.again()
    kept.store = ObjectStore(state, env=os.environ)
    kept.again()
    (state / ".gitignore").write_text("*\n")
    return SnapshotStore(
        kept.store,
        repo.path,
        excluded=(".git", ".endstate"),
        limits=SnapshotLimits(),
        cache=state / "cache",
        git_state=kept.state,
    )


def a_lock(repo: Repo) -> None:
    (repo.path / ".git/index.lock").touch()


def without_objects(repo: Repo) -> None:
    shutil.rmtree(repo.path / ".git/objects")


@pytest.mark.parametrize("damage", [a_lock, corrupt, without_objects], ids=NAME)
def test_damage_that_no_state_names_is_put_right_too(repo, kept, damage):
    """A command that was killed early has changed no file that is captured, and yet it cannot run again."""
    store = snapshots(repo, kept)
    works(repo)
    before, taken = shown(repo), store.take()
    damage(repo)
    restored = store.restore(taken.root)
    assert (restored.exact, restored.kept) == (True, None)
    assert shown(repo) == before
    repo.commit({"again.txt": "again\n"})


def test_a_snapshot_of_the_workspace_takes_the_repository_along(repo, kept):
    """Both together: the work tree and the repository come back to one moment, and the pack brings both."""
    store = snapshots(repo, kept)
    works(repo)
    before, taken = shown(repo), store.take()
    starts_an_orphan(repo)
    restored = store.restore(taken.root)
    assert restored.exact
    assert shown(repo) == before
    assert restored.kept
    assert store.restore(restored.kept).exact
    assert repo.git("log", "-1", "--format=%s") == "orphan"
    store.verify(taken.root)
    data = pack(kept.store, taken.root, kept.state.tips(git_tree(kept.store, taken.root)), kept.base)
    assert len(data) < 10_000


def git_tree(store: ObjectStore, root: str) -> str:
    return next(entry.id for entry in store.tree_entries(root) if entry.name == b"git")
