"""What is followed without git is what git would have followed, and whatever is unusual is left to git."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from endstate_action.errors import StateError
from endstate_action.state.snapshot.git_graph import Graph, Listed
from endstate_action.state.snapshot.nearby import MOST, Nearby
from endstate_action.state.snapshot.objects import ObjectStore
from endstate_action.state.snapshot.pack import PackRefused, apply, pack, read_head
from tests.support.git_states import Kept, keep
from tests.support.repos import GitRepo
from tests.unit.state.snapshot.test_pack import FILES, clone, edit, snapshot


@pytest.fixture
def sides(git_repo: GitRepo, tmp_path: Path) -> tuple[Kept, Kept]:
    """Two checkouts of depth 1."""
    upstream = git_repo(FILES, name="upstream")
    upstream.commit({"README": "changed\n"}, "the base")
    one, two = (clone(upstream, tmp_path / name, "--depth=1") for name in ("one", "two"))
    return keep(one, tmp_path / "one-store"), keep(two, tmp_path / "two-store")


def works(kept: Kept) -> None:
    kept.state.capture()
    edit(kept.repo)
    kept.repo.commit({"src/new.py": "new = 1\n", "link/deep/er.py": "er = 1\n"}, "by the agent")
    kept.repo.commit({"src/part01/file011.py": "again\n"}, "and once more")
    kept.repo.git("branch", "side")
    kept.repo.write({"src/part00/file001.py": "stashed\n"})
    kept.repo.git("stash", "-q")
    kept.repo.write({"staged.txt": "staged\n"})
    kept.repo.git("add", "-A")
    kept.repo.write({"staged.txt": "and changed\n", "untracked.txt": "?\n"})


def followed(kept: Kept, root: str, tips: frozenset[str]) -> tuple[Listed | None, Listed | None]:
    """Here and by git."""
    assert kept.base
    here = Nearby(kept.store).reach(root, set(tips), kept.base)
    return here, Graph(kept.store).whole({wrapper(kept, root), *tips}, kept.base)


def test_what_is_followed_here_is_what_git_follows(sides):
    kept = sides[0]
    works(kept)
    root, _, tips = snapshot(kept)
    here, by_git = followed(kept, root, tips)
    assert here
    assert by_git
    assert len(by_git.named) > 40
    # Git lists the commit that it was asked for as well.
    assert len(by_git.named.keys() - here.named.keys()) == 1
    assert here.named.keys() < by_git.named.keys()
    assert here.edges == by_git.edges
    # One content may lie under two paths, of which either will do; a path at all is what makes a pack small.
    assert {name for name, path in here.named.items() if path} == {n for n, path in by_git.named.items() if path}


def test_a_pack_of_few_changes_takes_one_process_of_git(sides, tmp_path):
    """And a second one for tips that were not seen before. It arrives whole."""
    kept, there = sides
    works(kept)
    root, _, tips = snapshot(kept)
    store, told = counting(kept, tmp_path)
    nearby = Nearby(store)
    first = pack(store, root, tips, kept.base, nearby=nearby)
    assert [line.split()[0] for line in told.read_text().splitlines()] == ["-c", "pack-objects"]
    told.write_text("")
    assert pack(store, root, tips, kept.base, nearby=nearby) == first
    assert [line.split()[0] for line in told.read_text().splitlines()] == ["pack-objects"]
    apply(there.store, first, there.base)
    assert there.store.missing({root, *tips}) == set()


def counting(kept: Kept, tmp_path: Path) -> tuple[ObjectStore, Path]:
    """The store, seen through a git that writes down how it was called."""
    told, programs, git = tmp_path / "told", tmp_path / "programs", shutil.which("git")
    programs.mkdir()
    (programs / "git").write_text(f'#!/bin/sh\necho "$@" >> {told}\nexec {git} "$@"\n')
    (programs / "git").chmod(0o755)
    return ObjectStore(kept.place, env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}), told


def test_more_than_a_little_is_left_to_git_and_arrives_whole(sides):
    kept, there = sides
    kept.state.capture()
    kept.repo.write({f"many/file{n}.txt": f"{n}\n" for n in range(MOST)})
    root, _, tips = snapshot(kept)
    here, by_git = followed(kept, root, tips)
    assert here is None
    assert by_git
    apply(there.store, pack(kept.store, root, tips, kept.base), there.base)
    assert there.store.missing(by_git.named.keys() - {next(iter(by_git.named))}) == set()


def test_a_tag_with_a_message_is_left_to_git_and_travels(sides):
    kept, there = sides
    works(kept)
    kept.repo.git("tag", "-a", "-m", "x", "annotated")
    root, _, tips = snapshot(kept)
    tag = kept.repo.git("rev-parse", "annotated")
    assert tag in tips
    assert followed(kept, root, tips)[0] is None
    data = pack(kept.store, root, tips, kept.base)
    assert tag in read_head(data).tips
    apply(there.store, data, there.base)
    assert there.store.missing(tips) == set()


def test_a_snapshot_without_the_content_of_one_file_is_not_packed(sides):
    """Its trees are all there: only who packs it can tell."""
    kept = sides[0]
    root, lost = holed(kept)
    with pytest.raises(StateError, match=r"something of the snapshot .* is missing"):
        pack(kept.store, root, (), kept.base)
    assert kept.store.missing([lost]) == {lost}


def test_a_pack_without_the_content_of_one_file_is_refused(sides):
    """It has every tree, so that following them alone would not tell."""
    kept, there = sides
    root, lost = holed(kept)
    with pytest.raises(PackRefused, match="not in it"):
        apply(there.store, without(kept, root, lost), there.base)


def test_a_pack_without_its_wrapper_is_refused(sides):
    """Whatever the format promises has to be there, needed today or not."""
    kept, there = sides
    kept.state.capture()
    kept.repo.write({"new.txt": "new\n"})
    root, _, _ = snapshot(kept)
    apply(there.store, without(kept, root, ""), there.base)
    other = Kept(there.repo, there.place.parent / "other", there.base)
    with pytest.raises(PackRefused, match="not in it"):
        apply(other.store, without(kept, root, wrapper(kept, root)), other.base)


def without(kept: Kept, root: str, lost: str) -> bytes:
    """The pack of a snapshot, but for one object."""
    listed = Nearby(kept.store).reach(root, set(), kept.base)
    assert listed
    given = "".join(f"{name}\n" for name in (wrapper(kept, root), *listed.named) if name != lost).encode()
    content = kept.store.git("pack-objects", "-q", "--stdout", input=given).stdout
    return f'endstate pack 1 {{"root": "{root}", "base": "{kept.base}", "tips": [], "ends": []}}\n'.encode() + content


def wrapper(kept: Kept, root: str) -> str:
    nobody = "endstate <endstate@localhost> 0 +0000"
    lines = (f"tree {root}", f"parent {kept.base}", f"author {nobody}", f"committer {nobody}", "", "snapshot", "")
    return kept.store.write("commit", "\n".join(lines).encode())


def holed(kept: Kept) -> tuple[str, str]:
    """A snapshot of one file, and the id of that file's content, which is nowhere."""
    lost = "1" * 40
    tree = kept.store.write("tree", b"100644 lost.txt\0" + bytes.fromhex(lost))
    root = kept.store.write("tree", b"40000 tree\0" + bytes.fromhex(tree))
    kept.store.sync()
    return root, lost


def test_a_commit_whose_parent_is_lost_is_left_to_git(sides):
    """Git then says which of the tips is not whole; the others travel."""
    kept = sides[0]
    works(kept)
    root, _, tips = snapshot(kept)
    tree = kept.repo.git("rev-parse", "HEAD^{tree}")
    orphan = kept.store.write("commit", f"tree {tree}\nparent {'2' * 40}\nauthor a <a@b> 0 +0000\n\nx\n".encode())
    kept.store.sync()
    assert followed(kept, root, tips | {orphan})[0] is None
    assert set(read_head(pack(kept.store, root, tips | {orphan}, kept.base)).tips) == tips
