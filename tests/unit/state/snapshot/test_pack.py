from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from endstate_action.errors import StateError
from endstate_action.state.snapshot.git_state import GitState
from endstate_action.state.snapshot.objects import ObjectStore
from endstate_action.state.snapshot.pack import PackRefused, apply, pack, read_head
from tests.support.git_states import Kept, keep, shown, wipe
from tests.support.repos import GitRepo, Repo

FILES = {
    f"src/part{n // 10:02}/file{n:03}.py": "".join(
        f"value_{n}_{m} = {(n * 7919 + m * 104729) % 99991}\n" for m in range(60)
    )
    for n in range(200)
}


def snapshot(kept: Kept) -> tuple[str, str, frozenset[str]]:
    """A root as a snapshot has it: the work tree, as git would add it, and the state of the repository."""
    git, tips = kept.state.capture()
    work = kept.repo.path
    place = kept.place / "index"
    env = os.environ | {"GIT_DIR": str(kept.place), "GIT_WORK_TREE": str(work), "GIT_INDEX_FILE": str(place)}
    subprocess.run(["git", "-C", str(work), "add", "-A"], env=env, check=True)
    done = subprocess.run(["git", "-C", str(work), "write-tree"], env=env, check=True, capture_output=True, text=True)
    tree = done.stdout.strip()
    meta = kept.store.write("blob", b"{}")
    rows = [(b"40000 git", git), (b"100644 meta.json", meta), (b"40000 tree", tree)]
    root = kept.store.write("tree", b"".join(head + b"\0" + bytes.fromhex(name) for head, name in rows))
    kept.store.sync()
    return root, git, tips


def clone(upstream: Repo, place: Path, *options: str) -> Repo:
    subprocess.run(["git", "clone", "-q", *options, f"file://{upstream.path}", str(place)], check=True)
    return Repo(place)


@pytest.fixture
def upstream(git_repo: GitRepo) -> Repo:
    upstream = git_repo(FILES, name="upstream")
    upstream.commit({"README": "changed\n"}, "the base")
    upstream.git("config", "uploadpack.allowFilter", "true")
    return upstream


@pytest.fixture
def first(upstream: Repo, tmp_path: Path) -> Kept:
    return keep(clone(upstream, tmp_path / "first", "--depth=1"), tmp_path / "first-store")


@pytest.fixture
def second(upstream: Repo, tmp_path: Path) -> Kept:
    return keep(clone(upstream, tmp_path / "second", "--depth=1"), tmp_path / "second-store")


def edit(repo: Repo) -> None:
    for n in range(0, 200, 10):
        name = f"src/part{n // 10:02}/file{n:03}.py"
        lines = FILES[name].splitlines(keepends=True)
        repo.write({name: "".join([*lines[:20], f"changed = {n}\n", *lines[21:]])})


def works(kept: Kept) -> None:
    kept.state.capture()
    repo = kept.repo
    edit(repo)
    repo.commit({"src/new.py": "new = 1\n"}, "by the agent")
    repo.git("tag", "-a", "-m", "x", "annotated")
    repo.git("branch", "side")
    repo.write({"src/part00/file001.py": "stashed\n"})
    repo.git("stash", "-q")
    repo.write({"staged.txt": "staged\n", "src/part00/file002.py": "staged\n"})
    repo.git("add", "-A")
    repo.write({"src/part00/file002.py": "and changed\n", "untracked.txt": "?\n"})


def moves(kept: Kept, there: Kept, data: bytes, git: str) -> None:
    apply(there.store, data, there.base)
    assert there.state.restore(git) == ()
    for path in there.repo.path.iterdir():
        if path.name != ".git":
            wipe(path)
    shutil.copytree(kept.repo.path, there.repo.path, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".git"))
    now, before = shown(there.repo), shown(kept.repo)
    for shows in (now, before):
        # What a branch follows is configuration.
        shows["status"] = re.sub(r"# branch\.(upstream|ab) .*\n", "", shows["status"])
    assert {key: now[key] for key in now if now[key] != before[key]} == {}
    assert there.state.capture()[0] == git
    there.repo.git("fsck", "--full")


def test_a_fresh_depth_one_checkout_becomes_what_the_first_was(first, second):
    works(first)
    second.repo.git("config", "own.token", "mine")
    root, git, tips = snapshot(first)
    data = pack(first.store, root, tips, first.base)
    moves(first, second, data, git)
    assert second.repo.git("config", "own.token") == "mine"
    assert second.store.missing([root]) == set()
    assert second.state.tips(git) == tips


def test_what_moved_once_moves_on(first, second, upstream, tmp_path):
    works(first)
    root, git, tips = snapshot(first)
    moves(first, second, pack(first.store, root, tips, first.base), git)
    second.repo.commit({"more.txt": "more\n"}, "on the second machine")
    root, git, tips = snapshot(second)
    third = keep(clone(upstream, tmp_path / "third", "--depth=1"), tmp_path / "third-store")
    moves(second, third, pack(second.store, root, tips, second.base), git)


def test_a_pack_brings_what_changed_and_not_the_rest(first):
    works(first)
    root, _, tips = snapshot(first)
    thin = pack(first.store, root, tips, first.base)
    whole = pack(first.store, root, tips, None)
    # Differences to the base's files, not their new contents: there are 20 of 600 bytes each, packed.
    assert len(thin) < 12_000, len(thin)
    assert len(whole) > 4 * len(thin)


def test_without_a_base_a_pack_is_for_everybody(first, second, upstream, git_repo, tmp_path):
    works(first)
    root, git, tips = snapshot(first)
    data = pack(first.store, root, tips, None)
    assert read_head(data).base is None
    upstream.git("checkout", "-q", "--orphan", "elsewhere")
    upstream.git("rm", "-rfq", ".")
    moved = upstream.commit({"other": "other\n"}, "moved on")
    other = clone(upstream, tmp_path / "other", "--depth=1", "--branch=elsewhere")
    there = Kept(other, tmp_path / "other-store", None)
    assert other.git("rev-parse", "HEAD") == moved
    there.base = first.base
    there.again()
    for path in other.git("ls-files").splitlines():
        (other.path / path).unlink()
    moves(first, there, data, git)


def test_a_repository_without_commits_moves(tmp_path):
    kept = []
    for name in ("one", "two"):
        repo = Repo(tmp_path / name)
        repo.path.mkdir()
        repo.git("init", "-q", "--initial-branch=main")
        kept.append(keep(repo, tmp_path / f"{name}-store", None))
    kept[0].state.capture()
    kept[0].repo.write({"a": "a\n"})
    kept[0].repo.git("add", "a")
    root, git, tips = snapshot(kept[0])
    moves(kept[0], kept[1], pack(kept[0].store, root, tips, None), git)


def test_a_full_checkout_on_both_sides_brings_its_own_history(upstream, tmp_path):
    upstream.git("branch", "release", "HEAD~1")
    sides = [keep(clone(upstream, tmp_path / name), tmp_path / f"{name}-store") for name in ("one", "two")]
    works(sides[0])
    sides[0].repo.git("checkout", "-q", "-f", "origin/release")
    sides[0].repo.commit({"on-release": "x\n"}, "on another branch")
    root, git, tips = snapshot(sides[0])
    moves(sides[0], sides[1], pack(sides[0].store, root, tips, sides[0].base), git)


def test_a_partial_clone_sends_what_it_has(upstream, tmp_path):
    repo = clone(upstream, tmp_path / "partial", "--depth=1", "--filter=blob:none", "--no-checkout")
    repo.git("sparse-checkout", "set", "src/part00")
    repo.git("checkout", "-q")
    kept = keep(repo, tmp_path / "store")
    kept.state.capture()
    assert not kept.store.is_whole(kept.base or "")
    repo.write({"src/part00/new.py": "new\n"})
    repo.git("add", "--sparse", "src/part00/new.py")
    repo.git("-c", "protocol.file.allow=always", "commit", "-qm", "mine")
    root, git, tips = snapshot(kept)
    data = pack(kept.store, root, tips, kept.base)
    assert read_head(data).base is None
    there = clone(upstream, tmp_path / "there", "--depth=1")
    other = keep(there, tmp_path / "there-store")
    apply(other.store, data, other.base)
    assert other.store.missing([root, git]) == set()


def test_damage_of_any_kind_is_refused(first, second):
    works(first)
    root, _, tips = snapshot(first)
    data = pack(first.store, root, tips, first.base)
    body = data.index(b"\n") + 1
    for at in (0, 5, 20, body, body + 5, len(data) // 2, len(data) - 1):
        flipped = bytearray(data)
        flipped[at] ^= 0x10
        with pytest.raises(PackRefused) as caught:
            apply(second.store, bytes(flipped), second.base)
        assert "Nothing of it was used" in str(caught.value)
    for cut in (data[:-1], data[: len(data) // 2], data[: body + 3], data[:10], b"", data + b"x"):
        with pytest.raises(PackRefused):
            apply(second.store, cut, second.base)
    assert second.store.missing([root]) == {root}
    apply(second.store, data, second.base)
    apply(second.store, data, second.base)
    assert second.store.missing([root]) == set()


def sealed(data: bytes, head: dict[str, Any]) -> bytes:
    """`data` under another first line."""
    return b"endstate pack 1 " + json.dumps(head).encode() + data[data.index(b"\n") :]


def test_a_pack_for_another_base_is_refused_and_says_so(first, second, upstream, tmp_path):
    works(first)
    root, _, tips = snapshot(first)
    data = pack(first.store, root, tips, first.base)
    upstream.commit({"README": "moved on\n"})
    there = keep(clone(upstream, tmp_path / "moved", "--depth=1"), tmp_path / "moved-store")
    with pytest.raises(PackRefused, match=f"{first.base}.*not here.*{there.base}"):
        apply(there.store, data, there.base)
    # The base is named, but a liar's word for it is not enough.
    lie = vars_of(data) | {"base": there.base}
    with pytest.raises(PackRefused):
        apply(there.store, sealed(data, lie), there.base)


def vars_of(data: bytes) -> dict[str, Any]:
    return dict(json.loads(data[len(b"endstate pack 1 ") : data.index(b"\n")]))


def test_a_pack_that_does_not_bring_all_is_refused(first, second):
    """Sound in itself, and yet something that the snapshot names is not in it."""
    works(first)
    root, _, tips = snapshot(first)
    data = pack(first.store, root, tips, first.base)
    listing = first.store.git("rev-list", "--objects", *tips, "--not", first.base or "").stdout.split()[0]
    alone = first.store.git("pack-objects", "-q", "--stdout", input=listing + b"\n").stdout
    poor = data[: data.index(b"\n") + 1] + alone
    with pytest.raises(PackRefused, match="not in it"):
        apply(second.store, poor, second.base)


def test_a_head_with_anything_but_ids_is_refused(first, second):
    works(first)
    root, _, tips = snapshot(first)
    data = pack(first.store, root, tips, first.base)
    for key, value in (("root", "--all"), ("tips", ["HEAD"]), ("base", "main"), ("ends", ["x\ny"]), ("root", 3)):
        with pytest.raises(PackRefused, match="does not begin"):
            apply(second.store, sealed(data, vars_of(data) | {key: value}), second.base)


def test_a_snapshot_that_is_not_whole_is_not_packed(first):
    works(first)
    root, git, tips = snapshot(first)
    holed = first.store.write("tree", b"40000 git\0" + bytes.fromhex(git) + b"40000 tree\0" + bytes.fromhex("1" * 40))
    with pytest.raises(StateError, match="could not be packed"):
        pack(first.store, holed, tips, first.base)
    assert pack(first.store, root, tips, first.base)


def test_a_tip_that_the_project_has_damaged_is_left_out(first, second):
    works(first)
    broken = first.repo.commit({"lost.txt": "lost\n"}, "broken")
    blob = first.repo.git("rev-parse", f"{broken}:lost.txt")
    first.repo.git("update-ref", "refs/heads/broken", broken)
    first.repo.git("reset", "-q", "--soft", "HEAD~1")
    first.repo.git("rm", "-q", "--cached", "lost.txt")
    (first.repo.path / "lost.txt").unlink()
    (first.repo.path / ".git/objects" / blob[:2] / blob[2:]).unlink()
    root, _, tips = snapshot(first)
    assert first.repo.git("rev-parse", "HEAD") in tips
    data = pack(first.store, root, tips, first.base)
    apply(second.store, data, second.base)
    assert first.repo.git("rev-parse", "HEAD") in read_head(data).tips


def test_nothing_in_a_pack_holds_the_configuration(first):
    secret = "ghs_0123456789abcdefghijklmnopqrstuvwxyz"
    first.repo.git("config", "http.extraheader", f"AUTHORIZATION: basic {secret}")
    works(first)
    root, _, tips = snapshot(first)
    data = pack(first.store, root, tips, None)
    place = first.place.parent / "reader"
    store = ObjectStore(place, env=os.environ)
    apply(store, data, None)
    idx = next((place / "objects/pack").glob("*.idx"))
    listed = store.git("verify-pack", "-v", str(idx)).stdout.decode().splitlines()
    for line in listed:
        name = line.split(" ")[0]
        if len(name) == 40:
            assert secret.encode() not in store.read(name)[1]


def test_a_sha256_snapshot_moves(tmp_path):
    upstream = Repo(tmp_path / "upstream")
    upstream.path.mkdir()
    upstream.git("init", "-q", "--object-format=sha256", "--initial-branch=main")
    upstream.commit(FILES)
    sides = [
        keep(clone(upstream, tmp_path / name, "--depth=1"), tmp_path / f"{name}-store", object_format="sha256")
        for name in ("one", "two")
    ]
    works(sides[0])
    root, git, tips = snapshot(sides[0])
    data = pack(sides[0].store, root, tips, sides[0].base)
    assert hashlib.sha256(data[data.index(b"\n") + 1 : -32]).digest() == data[-32:]
    moves(sides[0], sides[1], data, git)


def test_a_nested_repository_is_files_like_any_other(first, second):
    works(first)
    inner = Repo(first.repo.path / "inner")
    git = first.store.write("blob", b"[core]\n")
    folder = first.store.write("tree", b"100644 config\0" + bytes.fromhex(git))
    tree = first.store.write("tree", b"40000 .git\0" + bytes.fromhex(folder))
    root = first.store.write("tree", b"40000 tree\0" + bytes.fromhex(tree))
    apply(second.store, pack(first.store, root, (), first.base), second.base)
    assert second.store.missing([root, tree, folder, git]) == set()
    assert isinstance(first.state, GitState)
    assert not inner.path.exists()
