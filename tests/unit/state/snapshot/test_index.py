from __future__ import annotations

import functools
import hashlib
import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endstate_action.state.snapshot.index import (
    Index,
    IndexDamaged,
    Key,
    Value,
    difference,
    from_difference,
    named_in,
    parse,
    serialize,
    tree_entries,
    with_stats,
)
from tests.support.repos import GitRepo, Repo

FILES = {f"{folder}/{name}.txt": f"{folder} {name}\n" for folder in ("a", "b b", "ü") for name in "xyz"}


def read(repo: Repo, object_format: str = "sha1") -> Index:
    folder = repo.path / ".git"
    data = (folder / "index").read_bytes()
    return parse(data, object_format, lambda oid: (folder / f"sharedindex.{oid}").read_bytes())


def shown(repo: Repo) -> str:
    """All that git can tell of its index: entries, stages, marks, intents, resolved conflicts."""
    flags = [line.split("flags:")[1] for line in repo.git("ls-files", "--debug").splitlines() if "flags:" in line]
    # Skip-worktree, intent-to-add, assume-unchanged, stage; the rest is git's own bookkeeping.
    marks = [f"{int(word, 16) & 0x6000B000:x}" for word in flags]
    return "\n".join([repo.git("ls-files", "-s", "-v", "-z"), *marks, repo.git("ls-files", "--resolve-undo", "-z")])


def base_of(repo: Repo, commit: str = "HEAD") -> tuple[str, dict[Key, Value]]:
    tree = repo.git("rev-parse", f"{commit}^{{tree}}")
    return tree, tree_entries(repo.git("ls-tree", "-r", "-z", tree).encode("utf-8", "surrogateescape"))


def goes_round(repo: Repo, object_format: str = "sha1") -> bytes:
    """The stored difference, after git has seen the same index in what it is restored to."""
    before = shown(repo)
    tree, base = base_of(repo)
    index = read(repo, object_format)
    stored = difference(index, base, tree)
    again = from_difference(stored, lambda _: base)
    assert again == index
    (repo.path / ".git/index").write_bytes(serialize(again, object_format))
    assert shown(repo) == before
    assert read(repo, object_format) == index
    return stored


@pytest.fixture
def repo(git_repo: GitRepo) -> Repo:
    return git_repo(FILES)


@pytest.mark.parametrize("version", [2, 3, 4])
def test_every_version_reads_as_git_reads_it(repo, version):
    repo.git("update-index", "--index-version", str(version))
    repo.write({"new/file": "new\n", "a/x.txt": "changed\n"})
    repo.git("add", "new", "a")
    index = read(repo)
    listed = repo.git("ls-files", "-s", "-z").split("\0")[:-1]
    ours = [f"{v[0]:o} {v[1].hex()} {k[1]}\t{k[0].decode()}" for k, v in index.entries.items()]
    assert ours == listed
    goes_round(repo)
    assert (repo.path / ".git/index").read_bytes()[4:8] == struct.pack(">I", 4 if version == 4 else 2)


def test_an_untouched_index_costs_nothing(repo):
    stored = goes_round(repo)
    assert b"\0" not in stored
    assert named_in(stored) == set()


def test_what_is_staged_is_named_and_what_the_base_has_is_not(repo):
    repo.write({"new": "new\n"})
    repo.git("add", "new")
    repo.git("rm", "-q", "--cached", "a/x.txt")
    repo.git("update-index", "--chmod=+x", "a/y.txt")
    stored = goes_round(repo)
    assert named_in(stored) == {repo.git("rev-parse", ":new"), repo.git("rev-parse", ":a/y.txt")}
    assert stored.count(b"\0") == 3


def test_marks_are_kept(repo):
    repo.write({"intended": "later\n", "both": "x\n"})
    repo.git("add", "--intent-to-add", "intended")
    repo.git("add", "both")
    repo.git("update-index", "--assume-unchanged", "a/x.txt", "both")
    repo.git("update-index", "--skip-worktree", "a/y.txt", "both")
    goes_round(repo)
    assert "intended" in repo.git("diff", "--name-only")


def test_a_conflict_is_kept_with_its_three_sides_and_how_it_was_resolved(repo):
    repo.git("checkout", "-q", "-b", "other")
    repo.commit({"a/x.txt": "theirs\n", "b b/x.txt": "theirs\n"})
    repo.git("checkout", "-q", "main")
    repo.commit({"a/x.txt": "ours\n", "b b/x.txt": "ours\n"})
    with pytest.raises(AssertionError):
        repo.git("merge", "other")
    assert repo.git("ls-files", "-u")
    repo.write({"b b/x.txt": "both\n"})
    repo.git("add", "b b/x.txt")
    assert repo.git("ls-files", "--resolve-undo")
    theirs = repo.git("rev-parse", "other:b b/x.txt")
    assert theirs in named_in(goes_round(repo))


def test_a_split_index_is_read_whole(repo):
    repo.git("update-index", "--split-index")
    repo.write({"new": "new\n", "a/x.txt": "changed\n"})
    repo.git("add", "new", "a")
    repo.git("rm", "-q", "--cached", "b b/y.txt")
    repo.git("update-index", "--assume-unchanged", "b b/z.txt")
    assert list((repo.path / ".git").glob("sharedindex.*"))
    assert read(repo).split
    goes_round(repo)
    assert not read(repo).split


def test_a_split_index_with_many_changes_is_read_whole(repo):
    repo.commit({f"many/{n:03}": f"{n}\n" for n in range(500)})
    repo.git("config", "splitIndex.maxPercentChange", "100")
    repo.git("update-index", "--split-index")
    repo.write({f"many/{n:03}": "changed\n" for n in (*range(64, 140), 300, 499)})
    repo.git("add", "many")
    repo.git("rm", "-q", "--cached", *(f"many/{n:03}" for n in (*range(150, 290), 301)))
    assert read(repo).split
    goes_round(repo)


def test_a_sparse_index_is_kept_as_one(repo):
    repo.git("sparse-checkout", "set", "--cone", "--sparse-index", "a")
    before = (repo.path / ".git/index").read_bytes()
    if b"sdir" not in before:
        pytest.skip("this git makes no sparse index")
    index = read(repo)
    tree, base = base_of(repo)
    again = from_difference(difference(index, base, tree), lambda _: base)
    (repo.path / ".git/index").write_bytes(serialize(again, "sha1"))
    assert read(repo) == index
    assert repo.git("status", "--porcelain") == ""


def test_a_sha256_repository_has_longer_ids(tmp_path):
    repo = Repo(tmp_path)
    repo.git("init", "-q", "--object-format=sha256", "--initial-branch=main")
    repo.commit(FILES)
    repo.write({"a/x.txt": "changed\n"})
    repo.git("add", "a")
    goes_round(repo, "sha256")


def test_a_submodule_is_an_entry_whose_commit_is_not_an_object_of_ours(git_repo, repo):
    other = git_repo(name="other")
    repo.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other.path), "module")
    commit = other.git("rev-parse", "HEAD")
    stored = goes_round(repo)
    assert commit.encode() in stored
    assert commit not in named_in(stored)


def test_parts_that_only_save_time_are_left_out(repo):
    repo.git("update-index", "--untracked-cache")
    repo.git("status")
    assert b"TREE" in (repo.path / ".git/index").read_bytes()
    goes_round(repo)
    assert b"TREE" not in (repo.path / ".git/index").read_bytes()


def test_a_path_of_any_bytes_and_length_goes_round(repo):
    names = ["new\nline", "tab\there", "x" * 255, "/".join(["long" * 60] * 15), "\udcff\udcfe", "-dash", "*"]
    oid = repo.git("rev-parse", "HEAD:a/x.txt")
    for name in names:
        repo.git("update-index", "--add", "--cacheinfo", f"100644,{oid},{name}")
    assert any(len(path) > 0xFFF or len(path) > 3000 for path, _ in read(repo).entries)
    tree, base = base_of(repo)
    index = read(repo)
    again = from_difference(difference(index, base, tree), lambda _: base)
    for version in (2, 4):
        data = serialize(Index(version, again.entries), "sha1")
        assert parse(data, "sha1").entries == index.entries


def test_an_emptied_index_is_small(repo):
    repo.git("rm", "-q", "-r", "--cached", ".")
    stored = goes_round(repo)
    assert b"\0" not in stored


def test_damage_is_noticed(repo):
    data = (repo.path / ".git/index").read_bytes()
    flipped = bytearray(data)
    flipped[40] ^= 1
    for bad in (bytes(flipped), data[:-1], data[:30], b"", data + b"x", b"JUNK" + data[4:]):
        with pytest.raises(IndexDamaged):
            parse(bad, "sha1")


def test_a_part_that_git_could_not_ignore_is_not_ignored_here(repo):
    data = (repo.path / ".git/index").read_bytes()[:-20] + b"what" + struct.pack(">I", 0)
    with pytest.raises(IndexDamaged, match="unknown"):
        parse(data + hashlib.sha1(data).digest(), "sha1")


def test_an_index_without_a_checksum_is_read(repo):
    data = (repo.path / ".git/index").read_bytes()
    assert parse(data[:-20] + bytes(20), "sha1") == parse(data, "sha1")


@given(st.binary(max_size=300))
def test_no_bytes_crash_the_reader(data):
    for candidate in (data, b"DIRC" + data, b"DIRC\0\0\0\x04\0\0\0\x02" + data):
        sealed = candidate + hashlib.sha1(candidate).digest()
        try:
            parse(sealed, "sha1", functools.partial(lambda same, _: same, sealed))
        except IndexDamaged:
            continue


@given(st.binary(max_size=200))
def test_no_bytes_crash_the_reader_of_differences(data):
    head = b'{"base": null, "version": 2, "undo": ""}'
    for candidate in (data, head + b"\0" + data):
        try:
            from_difference(candidate, lambda _: {})
        except IndexDamaged:
            continue


def test_git_need_not_read_what_did_not_change(repo):
    """Stat data stays with entries that are the same, unless the file was as young as the index."""
    current = read(repo)
    target = from_difference(difference(current, {}, None), lambda _: {})
    assert target.stats == {}
    assert with_stats(target, current, 2**31).stats == current.stats
    assert with_stats(target, current, 1).stats == {}
    repo.write({"a/x.txt": "changed\n"})
    repo.git("add", "a/x.txt")
    changed = read(repo)
    assert set(changed.stats) - set(with_stats(target, changed, 2**31).stats) == {(b"a/x.txt", 0)}


def test_an_edit_of_the_same_second_is_seen_after_a_restore(repo):
    """The trap: a file as young as the index, changed once more, would seem clean under a younger index."""
    path = repo.path / ".git/index"
    repo.write({"a/x.txt": "one\n"})
    repo.git("add", "a/x.txt")
    current = read(repo)
    stored = difference(current, {}, None)
    stat = (repo.path / "a/x.txt").stat()
    (repo.path / "a/x.txt").write_bytes(b"two\n")
    os.utime(repo.path / "a/x.txt", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    target = from_difference(stored, lambda _: {})
    written = int(path.stat().st_mtime)
    path.write_bytes(serialize(with_stats(target, current, written), "sha1"))
    os.utime(path, (written + 10, written + 10))
    repo.git("config", "core.trustctime", "false")
    assert repo.git("diff", "--name-only") == "a/x.txt"


def test_reading_ten_thousand_entries_is_a_matter_of_milliseconds(tmp_path: Path):
    entries = {(b"some/folder%03d/file%05d.py" % (n // 100, n), 0): (0o100644, bytes(20), 0, 0) for n in range(10_000)}
    data = serialize(Index(2, entries), "sha1")
    assert parse(data, "sha1").entries == entries
    stored = difference(parse(data, "sha1"), entries, "x")
    assert len(stored) < 200
