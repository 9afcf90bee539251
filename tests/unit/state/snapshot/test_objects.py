"""The object store: what git would have written and read, without git; and it stays, whatever the project does."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from endstate_action.errors import SnapshotDamaged, StateError
from endstate_action.state.snapshot.base import content_of
from endstate_action.state.snapshot.layout import format_of
from endstate_action.state.snapshot.objects import FileChanged, ObjectStore
from endstate_action.state.snapshot.packed import PackDamaged, _apply
from endstate_action.system.git_call import GitError
from tests.support.own_disk import on_a_disk_of_its_own
from tests.support.repos import Repo
from tests.support.workspaces import as_loose_objects, loose_file

FORMATS = ("sha1", "sha256")


@pytest.fixture(params=FORMATS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return ObjectStore(tmp_path / "store", request.param, os.environ)


def again(store: ObjectStore) -> ObjectStore:
    """As a new process sees it, after a sync."""
    store.sync()
    return ObjectStore(store.path, store.object_format, os.environ)


def git(store: ObjectStore, *argv: str, given: bytes = b"") -> bytes:
    done = store.git(*argv, input=given)
    assert done.returncode == 0, done.stderr
    return done.stdout


def a_project(tmp_path: Path, object_format: str = "sha1") -> Repo:
    repo = Repo(tmp_path / "project")
    repo.path.mkdir()
    repo.git("init", "--quiet", f"--object-format={object_format}", "--initial-branch=main")
    repo.commit({"a.txt": "one\n", "d/e/b.txt": "two\n"})
    repo.commit({"a.txt": "three\n"})
    return repo


def test_what_is_written_is_what_git_would_write(store: ObjectStore):
    blob = store.write("blob", b"some\0bytes\r\n")
    tree = store.write("tree", b"100644 a\0" + bytes.fromhex(blob))
    assert git(store, "hash-object", "--no-filters", "--stdin", given=b"some\0bytes\r\n").decode().strip() == blob
    assert git(store, "cat-file", "blob", blob) == b"some\0bytes\r\n"
    assert git(store, "ls-tree", tree).decode() == f"100644 blob {blob}\ta\n"
    assert again(store).read(blob) == ("blob", b"some\0bytes\r\n")
    assert [(e.mode, e.name, e.id) for e in again(store).tree_entries(tree)] == [(0o100644, b"a", blob)]


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 5 << 20])
def test_a_file_of_any_size_is_streamed_both_ways(store: ObjectStore, tmp_path: Path, size: int):
    content = random.Random(size).randbytes(size)
    (tmp_path / "file").write_bytes(content)
    with open(tmp_path / "file", "rb") as file:
        name = store.write_file(file.fileno(), size)
    assert b"".join(again(store).open_blob(name)) == content
    assert git(store, "hash-object", "--no-filters", str(tmp_path / "file")).decode().strip() == name


@pytest.mark.parametrize("size", [10, 3 << 20])
@pytest.mark.parametrize("said", [-1, 1])
def test_a_file_that_is_not_as_long_as_it_was_is_not_written(store: ObjectStore, tmp_path: Path, size: int, said: int):
    (tmp_path / "file").write_bytes(b"x" * size)
    with open(tmp_path / "file", "rb") as file, pytest.raises(FileChanged):
        store.write_file(file.fileno(), size + said)
    store.sync()
    assert not [path for path in (store.path / "objects").rglob("*") if path.is_file()]


def test_the_same_object_is_written_once(store: ObjectStore):
    name = store.write("blob", b"x")
    before = sorted(again(store).path.rglob("*"))
    store = again(store)
    assert store.write("blob", b"x") == name
    assert sorted(again(store).path.rglob("*")) == before


def test_what_is_not_synced_is_read_by_us_and_by_git(store: ObjectStore):
    name = store.write("blob", b"new")
    assert store.read(name) == ("blob", b"new")
    assert store.missing([name]) == set()
    assert git(store, "cat-file", "blob", name) == b"new"


def test_many_snapshots_do_not_make_many_packs(store: ObjectStore):
    names = []
    for number in range(120):
        names.append(store.write("blob", b"%d" % number))
        store.sync()
    packs = list((store.path / "objects" / "pack").glob("*.pack"))
    assert len(packs) < 60
    assert len(list((store.path / "objects" / "pack").iterdir())) == 2 * len(packs)
    assert [content for _, _, content in again(store).read_many(names)] == [b"%d" % number for number in range(120)]
    git(store, "fsck", "--full", "--strict")


def test_packs_that_hold_differences_are_not_merged(tmp_path: Path):
    repo = a_project(tmp_path)
    text = "".join(f"line {n}\n" for n in range(300))
    repo.commit({"long": text})
    last = repo.commit({"long": text + "more\n"})
    repo.git("repack", "-adfq")
    store = ObjectStore(tmp_path / "store", env=os.environ)
    for path in (repo.path / ".git" / "objects" / "pack").iterdir():
        shutil.copy(path, store.path / "objects" / "pack")
    for number in range(60):
        store.write("blob", b"%d" % number)
        store.sync()
    assert git(again(store), "cat-file", "blob", f"{last}:long").decode() == text + "more\n"
    git(store, "fsck", "--full")


def test_a_pack_that_somebody_else_put_there_is_found(tmp_path: Path):
    repo = a_project(tmp_path)
    head = repo.git("rev-parse", "HEAD")
    repo.git("repack", "-adfq")
    store = ObjectStore(tmp_path / "store", env=os.environ)
    assert store.missing([head]) == {head}
    for path in (repo.path / ".git" / "objects" / "pack").iterdir():
        shutil.copy(path, store.path / "objects" / "pack")
    assert store.read(head)[0] == "commit"
    assert store.missing([head]) == set()


def test_large_amounts_are_not_held_in_memory(store: ObjectStore):
    chance = random.Random(0)
    names = [store.write("blob", chance.randbytes(1 << 20)) for _ in range(40)]
    assert len(store._fresh) < 40
    assert again(store).missing(names) == set()


@pytest.mark.parametrize("left", [b"", b"x\x9c", b"not zlib at all"])
def test_an_object_that_a_power_cut_tore_is_written_anew(store: ObjectStore, left: bytes):
    name = store.write("blob", b"content")
    store = as_loose_objects(store)
    loose_file(store, name).chmod(0o600)
    loose_file(store, name).write_bytes(left)
    with pytest.raises(SnapshotDamaged, match=name):
        again(store).read(name)
    store = again(store)
    store.write("blob", b"content")
    store.sync()
    assert again(store).read(name) == ("blob", b"content")


def test_an_object_under_the_wrong_name_is_refused(store: ObjectStore):
    one, other = store.write("blob", b"one"), store.write("blob", b"other")
    store = as_loose_objects(store)
    loose_file(store, one).unlink()
    shutil.copy(loose_file(store, other), loose_file(store, one))
    with pytest.raises(SnapshotDamaged, match="not what its id says"):
        again(store).read(one)
    with pytest.raises(SnapshotDamaged, match="not what its id says"):
        list(again(store).open_blob(one))


@pytest.mark.parametrize("asked", [2, 90])
def test_few_and_many_names_are_looked_for_alike(store: ObjectStore, asked: int):
    names = [store.write("blob", b"%d" % number) for number in range(100)]
    store.sync()
    gone = {hashlib.sha1(b"gone %d" % number).hexdigest() for number in range(asked)}
    assert again(store).missing([*names[:asked], *gone]) == gone


def test_a_missing_object_is_named(store: ObjectStore):
    there, gone = store.write("blob", b"there"), store.write("blob", b"gone")
    store = as_loose_objects(store)
    loose_file(store, gone).unlink()
    assert again(store).missing([there, gone]) == {gone}
    with pytest.raises(SnapshotDamaged, match=f"{gone}.*missing"):
        again(store).read(gone)


def test_a_blob_is_no_tree(store: ObjectStore):
    name = store.write("blob", b"x")
    with pytest.raises(SnapshotDamaged, match="directory was expected"):
        store.tree_entries(name)
    with pytest.raises(SnapshotDamaged, match="file's content was expected"):
        list(store.open_blob(store.write("tree", b"")))


def test_many_objects_are_synced_and_there(store: ObjectStore):
    names = [store.write("blob", b"%d" % number) for number in range(200)]
    store.sync()
    store.sync()
    assert [content for _, _, content in again(store).read_many(names)] == [b"%d" % number for number in range(200)]


@pytest.mark.parametrize("object_format", FORMATS)
def test_packs_with_differences_are_read_as_git_reads_them(tmp_path: Path, object_format: str):
    repo = a_project(tmp_path, object_format)
    lines = [f"line {n}\n" for n in range(3000)]
    for number in range(12):
        lines[number * 200] = f"changed {number}\n"
        repo.commit({"long.txt": "".join(lines), f"more/{number}.txt": "".join(lines[number:])})
    repo.commit({"large.bin": random.Random(1).randbytes(3 << 20)})
    repo.git("repack", "-adfq", "--depth=40", "--window=40")
    store = ObjectStore(tmp_path / "store", object_format, os.environ)
    for pack in (repo.path / ".git" / "objects" / "pack").iterdir():
        shutil.copy(pack, store.path / "objects" / "pack")
    listed = git(store, "cat-file", "--batch-check", "--batch-all-objects").decode().split("\n")[:-1]
    assert len(listed) > 50
    for name, kind, _size in (line.split(" ") for line in listed):
        assert store.read(name) == (kind, git(store, "cat-file", kind, name))
    assert store.missing([line.split(" ")[0] for line in listed]) == set()


def test_a_pack_that_was_damaged_says_so(tmp_path: Path):
    repo = a_project(tmp_path)
    repo.git("repack", "-adfq")
    store = ObjectStore(tmp_path / "store", env=os.environ)
    for path in (repo.path / ".git" / "objects" / "pack").iterdir():
        shutil.copy(path, store.path / "objects" / "pack")
    pack = next((store.path / "objects" / "pack").glob("*.pack"))
    names = git(store, "rev-list", "--objects", "--no-object-names", repo.git("rev-parse", "HEAD")).decode().split()
    whole = pack.read_bytes()
    pack.chmod(0o600)
    refused = 0
    for at in range(12, len(whole) - 20, 7):
        pack.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        damaged = again(store)
        for name in names:
            try:
                assert damaged.read(name)
            except SnapshotDamaged:
                refused += 1
    assert refused


@pytest.mark.parametrize("delta", [b"", b"\x03", b"\x03\x05\x91", b"\x04\x01\x01a", b"\x03\x02\x01a", b"\x03\x01\x00"])
def test_a_difference_that_does_not_fit_is_refused(delta: bytes):
    with pytest.raises(PackDamaged):
        _apply(b"abc", delta)


@pytest.mark.parametrize("object_format", FORMATS)
def test_the_base_stays_whatever_becomes_of_the_repository(tmp_path: Path, object_format: str):
    repo = a_project(tmp_path, object_format)
    base = repo.git("rev-parse", "HEAD")
    store = ObjectStore(tmp_path / "store", object_format, os.environ)
    store.import_base(repo.path / ".git", base)
    shutil.rmtree(repo.path)
    store = again(store)
    assert store.is_whole(base)
    assert git(store, "rev-list", base).decode() == f"{base}\n"
    assert git(store, "ls-tree", "-r", "--name-only", base) == b"a.txt\nd/e/b.txt\n"
    assert git(store, "cat-file", "blob", f"{base}:a.txt") == b"three\n"
    git(store, "fsck", "--full")
    store.import_base(repo.path / ".git", base)


def test_a_second_base_is_kept_beside_the_first(tmp_path: Path):
    repo = a_project(tmp_path)
    store = ObjectStore(tmp_path / "store", env=os.environ)
    bases = [repo.git("rev-parse", "HEAD"), repo.commit({"new": "x"})]
    for base in bases:
        store.import_base(repo.path / ".git", base)
    assert all(again(store).is_whole(base) for base in bases)
    assert git(store, "rev-list", bases[1]).decode().split() == [bases[1]]


def test_a_depth_one_checkout_is_enough_for_a_base(tmp_path: Path):
    repo = a_project(tmp_path)
    subprocess.run(["git", "clone", "-q", "--depth=1", f"file://{repo.path}", str(tmp_path / "shallow")], check=True)
    store = ObjectStore(tmp_path / "store", env=os.environ)
    base = repo.git("rev-parse", "HEAD")
    store.import_base(tmp_path / "shallow" / ".git", base)
    assert store.is_whole(base)
    assert git(store, "cat-file", "blob", f"{base}:d/e/b.txt") == b"two\n"


def test_of_a_partial_clone_the_base_keeps_what_is_there(tmp_path: Path):
    repo = a_project(tmp_path)
    repo.git("config", "uploadpack.allowFilter", "true")
    clone = tmp_path / "partial"
    options = ("-q", "--depth=1", "--filter=blob:none", "--sparse")
    subprocess.run(["git", "clone", *options, f"file://{repo.path}", str(clone)], check=True)
    store = ObjectStore(tmp_path / "store", env=os.environ)
    base = repo.git("rev-parse", "HEAD")
    store.import_base(clone / ".git", base)
    assert not store.is_whole(base)
    assert git(store, "cat-file", "blob", f"{base}:a.txt") == b"three\n"
    assert len(store.missing(content_of(store, base))) == 1


def test_a_linked_work_tree_has_its_base_too(tmp_path: Path):
    repo = a_project(tmp_path)
    repo.git("worktree", "add", "-q", str(tmp_path / "linked"))
    store = ObjectStore(tmp_path / "store", env=os.environ)
    store.import_base(repo.path / ".git" / "worktrees" / "linked", repo.git("rev-parse", "HEAD"))
    assert store.is_whole(repo.git("rev-parse", "HEAD"))


@pytest.mark.parametrize("commit", ["1" * 40, "HEAD", "--upload-pack=x", ""])
def test_a_base_that_is_not_there_is_refused(tmp_path: Path, commit: str):
    repo = a_project(tmp_path)
    store = ObjectStore(tmp_path / "store", env=os.environ)
    with pytest.raises(StateError, match=r"was not copied|no commit id"):
        store.import_base(repo.path / ".git", commit)
    assert not store.is_whole("1" * 40)


def test_a_base_that_was_killed_half_way_is_made_again(tmp_path: Path):
    repo = a_project(tmp_path)
    base = repo.git("rev-parse", "HEAD")
    store = ObjectStore(tmp_path / "store", env=os.environ)
    (store.path / "shallow").write_text(f"{base}\n")
    (store.path / "objects" / "pack" / "tmp_pack_x").write_bytes(b"half")
    store.import_base(repo.path / ".git", base)
    assert store.is_whole(base)
    assert not list(store.path.glob("objects/pack/tmp_*"))
    assert (store.path / "shallow").read_text() == f"{base}\n"


def test_what_the_store_has_in_a_pack_is_not_written_once_more(tmp_path: Path):
    repo = a_project(tmp_path)
    store = ObjectStore(tmp_path / "store", env=os.environ)
    store.import_base(repo.path / ".git", repo.git("rev-parse", "HEAD"))
    before = sorted(store.path.rglob("*"))
    store.write("blob", b"three\n")
    store.sync()
    assert sorted(store.path.rglob("*")) == before


def test_without_a_git_program_objects_are_written_and_read(tmp_path: Path):
    store = ObjectStore(tmp_path / "store", env={"PATH": str(tmp_path)})
    name = store.write("blob", b"x")
    store.sync()
    assert not store.has_git
    assert store.read(name) == ("blob", b"x")
    with pytest.raises(GitError, match="no git program"):
        store.git("version")


def test_a_git_program_inside_the_workspace_is_never_run(tmp_path: Path):
    planted = tmp_path / "ws" / "bin" / "git"
    planted.parent.mkdir(parents=True)
    planted.write_text(f"#!/bin/sh\ntouch {tmp_path}/executed\n")
    planted.chmod(0o755)
    env = {"PATH": f"{planted.parent}:{os.environ['PATH']}"}
    store = ObjectStore(tmp_path / "ws" / ".endstate" / "objects", env=env, workspace=tmp_path / "ws")
    assert git(store, "version").startswith(b"git version")
    assert not (tmp_path / "executed").exists()


def test_nothing_in_the_environment_reaches_git(tmp_path: Path):
    env = {**os.environ, "GIT_DIR": "/nowhere", "GIT_TRACE": str(tmp_path / "trace"), "GIT_CONFIG_COUNT": "x"}
    store = ObjectStore(tmp_path / "store", env=env)
    assert git(store, "rev-parse", "--absolute-git-dir").decode().strip() == str(store.path)
    assert not (tmp_path / "trace").exists()


def test_a_store_of_the_other_format_is_refused(tmp_path: Path):
    ObjectStore(tmp_path / "store", "sha1", os.environ)
    with pytest.raises(StateError, match="another object format"):
        ObjectStore(tmp_path / "store", "sha256", os.environ)


def test_a_store_tells_its_format(store: ObjectStore):
    assert format_of(store.path) == store.object_format


def test_each_store_has_its_own_identity(tmp_path: Path):
    one, other = ObjectStore(tmp_path / "one"), ObjectStore(tmp_path / "other")
    assert one.identity == again(one).identity != other.identity


FULL = """
import os, sys
from pathlib import Path
from endstate_action.errors import DiskFull
from endstate_action.state.snapshot.objects import ObjectStore
store = ObjectStore(Path(sys.argv[1], "store"))
small = store.write("blob", b"small")
store.sync()
for write in (
    lambda: [store.write("blob", os.urandom(4000)) for _ in range(2000)],
    lambda: store.write_file(os.open(sys.argv[2], os.O_RDONLY), os.path.getsize(sys.argv[2])),
):
    try:
        write()
        store.sync()
    except DiskFull as error:
        assert "disk is full" in str(error), error
    else:
        sys.exit("nothing was refused")
    assert ObjectStore(store.path).read(small) == ("blob", b"small")
    assert not list(store.path.glob("objects/**/tmp_*"))
print("refused")
"""


def test_a_full_disk_is_said_and_what_was_synced_stays(tmp_path: Path):
    (tmp_path / "large").write_bytes(os.urandom(4 << 20))
    done = on_a_disk_of_its_own(tmp_path / "full", "size=2m", FULL, tmp_path / "full", tmp_path / "large")
    assert done.stdout == "refused\n", done.stderr


WRITTEN = """
import sys
from pathlib import Path
from endstate_action.state.snapshot.objects import ObjectStore
store = ObjectStore(Path(sys.argv[1], "store"))
store.write("blob", b"small")
with open(sys.argv[2], "rb") as file:
    large = store.write_file(file.fileno(), 2 << 20)
store.sync()
print(large)
"""


def test_what_was_synced_survives_a_power_cut(tmp_path: Path):
    """As far as the order of system calls can show it: content before its name, then the name."""
    if shutil.which("strace") is None:
        pytest.skip("there is no strace here")
    (tmp_path / "large").write_bytes(bytes(2 << 20))
    traced = ["strace", "-f", "-y", "-o", str(tmp_path / "trace"), "-e", "trace=fsync,rename,renameat,renameat2"]
    command = [*traced, sys.executable, "-c", WRITTEN, str(tmp_path), str(tmp_path / "large")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0 and "ptrace" in done.stderr:
        pytest.skip(f"nothing can be traced here: {done.stderr.strip()}")
    large, calls = done.stdout.strip(), (tmp_path / "trace").read_text().split("\n")

    def when(call: str, path: str) -> int:
        return max(number for number, line in enumerate(calls) if call in line and path in line)

    folder = str(tmp_path / "store" / "objects" / "pack")
    for kind in ("pack", "idx"):
        (pack,) = Path(folder).glob(f"*.{kind}")
        renamed, synced = when("rename", pack.name), when("fsync", f"<{folder}/tmp_endstate")
        assert min(n for n, line in enumerate(calls) if f".{kind}>" in line) < renamed < when("fsync", f"<{folder}>")
        assert synced < when("fsync", f"<{folder}>")
    place = str(tmp_path / "store" / "objects" / large[:2])
    assert when("fsync", f"<{place}/{large[2:]}>") < when("fsync", f"<{place}>")
    assert when("fsync", f"<{tmp_path}/store/objects>")
