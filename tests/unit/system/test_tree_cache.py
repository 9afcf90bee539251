"""The stat cache saves reading and changes nothing else: the hash is the one that a full scan has."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from endstate_action.system.tree import Change, Scan, StatCache, diff, scan
from endstate_action.system.tree_cache import Horizon
from endstate_action.system.tree_format import Directory, Entry, Kind
from tests.support.trees import Thing, as_ordinary_user, directory, file, hash_of, link, make


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return make(tmp_path / "tree", [file(b"a", b"one"), file(b"d/b", b"two"), link(b"d/l", b"b"), file(b"e/f/c", b"3")])


@pytest.fixture
def cache(tmp_path: Path) -> StatCache:
    return StatCache(tmp_path / "state" / "cache")


def remembered(tree: Path, cache: StatCache) -> Scan:
    """Scan until everything is old enough to be remembered: then a scan adds nothing to the one before."""
    result = scan(tree, cache=cache)
    for _ in range(500):
        time.sleep(0.01)
        before, result = result, scan(tree, cache=cache)
        if result.root is before.root:
            return result
    raise AssertionError("never remembered")


def bytes_read() -> int:
    """What this process has read from anywhere so far."""
    return int(Path("/proc/self/io").read_text(encoding="ascii").split()[1])


def assert_as_if_read(tree: Path, cache: StatCache) -> None:
    assert scan(tree, cache=cache).tree_hash == scan(tree).tree_hash


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="counts by what Linux counts")
def test_only_what_changed_is_read_again(tree: Path, cache: StatCache, tmp_path: Path):
    make(tree, [file(b"big/%d" % n, b"x" * 1_000_000) for n in range(4)])
    remembered(tree, cache)
    for again in (cache, StatCache(tmp_path / "state" / "cache")):
        before = bytes_read()
        scan(tree, cache=again)
        assert bytes_read() - before < 200_000
    make(tree, [file(b"big/2", b"y" * 1_000_000)])
    before = bytes_read()
    result = scan(tree, cache=cache)
    assert 1_000_000 <= bytes_read() - before < 1_200_000
    assert result.tree_hash == scan(tree).tree_hash


def test_an_edit_of_the_same_size_in_the_same_tick_is_never_missed(tree: Path, cache: StatCache):
    for number in range(300):
        content = b"%03d" % number
        (tree / "a").write_bytes(content)
        assert scan(tree, cache=cache).entries[b"a"] == scan(tree).entries[b"a"], content


def test_a_forged_mtime_is_not_believed(tree: Path, cache: StatCache):
    remembered(tree, cache)
    old = (tree / "a").stat()
    (tree / "a").write_bytes(b"six")
    os.utime(tree / "a", ns=(old.st_atime_ns, old.st_mtime_ns))
    assert (tree / "a").stat().st_mtime_ns == old.st_mtime_ns
    assert_as_if_read(tree, cache)


def test_another_file_with_the_same_times_is_not_believed(tree: Path, cache: StatCache):
    remembered(tree, cache)
    shutil.copy2(tree / "a", tree / "copy")
    (tree / "copy").write_bytes(b"six")
    old = (tree / "a").stat()
    os.utime(tree / "copy", ns=(old.st_atime_ns, old.st_mtime_ns))
    (tree / "copy").replace(tree / "a")
    assert_as_if_read(tree, cache)


def test_a_file_as_young_as_the_clock_can_tell_is_not_remembered(tree: Path, cache: StatCache):
    """One from the future stays young, so that this needs no timing."""
    ahead = time.time() + 3600
    os.utime(tree / "a", (ahead, ahead))
    scan(tree, cache=cache)
    time.sleep(0.1)
    result = scan(tree, cache=cache)
    assert result.root.names == b"a"
    assert result.root.stats == bytes(48)


@pytest.mark.parametrize("times", [(99, 99, True), (100, 99, False), (99, 100, False), (100, 100, False)])
def test_both_times_must_lie_before_the_horizon(times: tuple[int, int, bool]):
    mtime, ctime, trusted = times
    assert Horizon(device=5, time_ns=100).trusts((1, 2, 5, 4, mtime, ctime)) is trusted


def test_times_of_another_file_system_are_not_compared():
    assert not Horizon(device=5, time_ns=100).trusts((1, 2, 6, 4, 1, 1))


def test_the_horizon_lies_behind_the_clock_of_the_file_system(cache: StatCache, tmp_path: Path):
    horizon = cache.horizon()
    (tmp_path / "now").write_bytes(b"x")
    seen = (tmp_path / "now").stat()
    assert horizon.device == seen.st_dev
    assert horizon.time_ns <= seen.st_mtime_ns - 20_000_000
    assert [p.name for p in (tmp_path / "state" / "cache").iterdir()] == []


def edits() -> list[Any]:
    """Each changes a tree in a way that only its new state shows."""

    def chmod(tree: Path) -> None:
        (tree / "a").chmod(0o755)

    def link_target(tree: Path) -> None:
        (tree / "d" / "l").unlink()
        (tree / "d" / "l").symlink_to("c")

    def remove_directory(tree: Path) -> None:
        shutil.rmtree(tree / "d")

    def add_directory(tree: Path) -> None:
        (tree / "e" / "f" / "new").mkdir()

    def file_to_directory(tree: Path) -> None:
        (tree / "a").unlink()
        (tree / "a").mkdir()

    def directory_to_link(tree: Path) -> None:
        (tree / "e").rename(tree.parent / "e")
        (tree / "e").symlink_to(tree.parent / "e")

    def swap(tree: Path) -> None:
        (tree / "d").rename(tree / "x")
        (tree / "e").rename(tree / "d")
        (tree / "x").rename(tree / "e")

    def rename(tree: Path) -> None:
        (tree / "a").rename(tree / "A")

    def file_to_fifo(tree: Path) -> None:
        (tree / "a").unlink()
        os.mkfifo(tree / "a")

    def far_future(tree: Path) -> None:
        (tree / "a").write_bytes(b"six")
        os.utime(tree / "a", ns=(0, 9_300_000_000 * 10**9))

    def before_the_epoch(tree: Path) -> None:
        (tree / "a").write_bytes(b"six")
        os.utime(tree / "a", ns=(0, -(10**9)))

    return [
        chmod, link_target, remove_directory, add_directory, file_to_directory, directory_to_link, swap, rename,
        file_to_fifo, far_future, before_the_epoch,
    ]  # fmt: skip


@pytest.mark.parametrize("edit", edits(), ids=lambda edit: edit.__name__)
def test_every_kind_of_change_is_seen(edit: Any, tree: Path, cache: StatCache, tmp_path: Path):
    before = remembered(tree, cache)
    edit(tree)
    assert_as_if_read(tree, StatCache(tmp_path / "state" / "cache"))
    assert_as_if_read(tree, cache)
    assert_as_if_read(tree, cache)
    assert diff(before, scan(tree, cache=cache)) == diff(before, scan(tree))


def test_any_sequence_of_changes_is_seen(tmp_path: Path, cache: StatCache):
    """A random walk through trees, each scanned with what was remembered of the ones before."""
    rng = random.Random(20)
    tree = tmp_path / "tree"
    tree.mkdir()
    names = [b"a", b"b", b"\xff", b"d"]
    for _ in range(150):
        path = os.path.join(os.fsencode(tree), *rng.choices(names, k=rng.randint(1, 3)))
        if os.path.lexists(path) and rng.random() < 0.6:
            shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
        elif os.path.isdir(os.path.dirname(path)) and not os.path.lexists(path):
            match rng.randrange(3):
                case 0:
                    os.mkdir(path)
                case 1:
                    Path(os.fsdecode(path)).write_bytes(rng.choice([b"1", b"2"]))
                case _:
                    os.symlink(rng.choice([b"a", b".", b".."]), path)
        if rng.random() < 0.3:
            time.sleep(0.03)
        assert_as_if_read(tree, cache)


def test_what_a_concurrent_writer_did_is_seen_once_it_is_done(tree: Path, cache: StatCache):
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            (tree / "a").write_bytes(b"%03d" % (number % 1000))
            number += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(200):
            scan(tree, cache=cache)
    finally:
        stop.set()
        writer.join()
    assert_as_if_read(tree, cache)


@pytest.fixture
def owned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree, `tree`, and a directory for its cache, `state`, both of an ordinary user and in the current directory."""
    make(tmp_path / "tree", [file(b"a", b"1"), directory(b"d"), file(b"e", b"1")])
    (tmp_path / "state").mkdir()
    for path in (tmp_path, tmp_path / "state", tmp_path / "tree", *(tmp_path / "tree").iterdir()):
        if os.geteuid() == 0:
            os.chown(path, 65534, 65534)
    monkeypatch.chdir(tmp_path)
    return Path("tree")


def test_what_may_not_be_read_is_never_remembered(owned: Path):
    with as_ordinary_user():
        cache = StatCache(Path("state"))
        opened = remembered(owned, cache)
        for name, readable in (("a", 0o644), ("d", 0o755)):
            (owned / name).chmod(0)
            for _ in range(3):
                time.sleep(0.03)
                assert scan(owned, cache=cache).unreadable == (name.encode(),)
            (owned / name).chmod(readable)
            assert scan(owned, cache=cache).tree_hash == opened.tree_hash


def test_a_directory_that_could_not_be_entered_leaves_no_trace_when_it_is_gone(owned: Path):
    (owned / "d").chmod(0)
    with as_ordinary_user():
        cache = StatCache(Path("state"))
        for _ in range(3):
            assert scan(owned, cache=cache).unreadable == (b"d",)
            time.sleep(0.03)
        (owned / "d").rmdir()
        assert scan(owned, cache=cache).tree_hash == hash_of([file(b"a", b"1"), file(b"e", b"1")])


def test_a_directory_that_cannot_be_entered_is_seen_when_it_comes(owned: Path):
    (owned / "d").rmdir()
    with as_ordinary_user():
        cache = StatCache(Path("state"))
        remembered(owned, cache)
        (owned / "d").mkdir(mode=0)
        assert scan(owned, cache=cache).unreadable == (b"d",)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to be somebody else for a while")
def test_one_user_is_not_told_what_another_could_read(owned: Path):
    Path("state").chmod(0o777)
    (owned / "a").chmod(0)
    remembered(owned, StatCache(Path("state")))
    with as_ordinary_user():
        assert scan(owned, cache=StatCache(Path("state"))).unreadable == (b"a",)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to be in another group for a while")
def test_a_file_that_became_readable_without_a_trace_is_read(owned: Path):
    os.chown(owned / "a", 0, 54321)
    (owned / "a").chmod(0o640)
    cache = StatCache(Path("state"))
    for _ in range(3):
        with as_ordinary_user():
            assert scan(owned, cache=cache).unreadable == (b"a",)
        time.sleep(0.03)
    with as_ordinary_user(group=54321):
        assert scan(owned, cache=cache).unreadable == ()


# --- On the disk ---


def test_a_scan_comes_back_from_its_file_as_it_was(tree: Path, tmp_path: Path):
    make(tree, [file(b"caf\xe9", b"1", executable=True), Thing(b"pipe", "fifo"), directory(b"empty")])
    kept = Scan(scan(tree).root, (b".git", b"\xff"), (b"log",))
    kept.save(tmp_path / "kept")
    loaded = Scan.load(tmp_path / "kept")
    assert loaded is not None
    assert (loaded.tree_hash, loaded.entries) == (kept.tree_hash, kept.entries)
    assert (loaded.excluded, loaded.unstable) == (kept.excluded, kept.unstable)
    make(tree, [file(b"a", b"other")])
    assert diff(loaded, scan(tree)) == [Change(b"a", "changed")]


def test_a_damaged_or_older_file_is_no_cache(tree: Path, cache: StatCache, tmp_path: Path):
    remembered(tree, cache)
    [path] = (tmp_path / "state" / "cache").iterdir()
    whole = path.read_bytes()
    damaged = [b"", b"endstate-scan-0\n" + whole[16:], whole[:-1], whole + b"\0", whole[:20], b"\x80\x04garbage"]
    damaged += [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(0, len(whole), 7)]
    for content in damaged:
        path.write_bytes(content)
        assert Scan.load(path) is None
    assert_as_if_read(tree, StatCache(tmp_path / "state" / "cache"))
    assert Scan.load(path) is not None


def test_a_cache_that_cannot_be_kept_is_no_error(tree: Path, tmp_path: Path):
    (tmp_path / "state").write_bytes(b"a file")
    assert_as_if_read(tree, StatCache(tmp_path / "state"))
    assert_as_if_read(tree, StatCache(tmp_path / "state" / "below"))


@pytest.mark.parametrize("name", ["tree-{uid}", "tree-{uid}.part", "tree-{uid}.probe"])
@pytest.mark.parametrize("kind", ["link", "directory", "fifo"])
def test_what_is_planted_in_the_cache_is_replaced_and_never_followed(tree: Path, tmp_path: Path, name: str, kind: str):
    precious, planted = tmp_path / "precious", tmp_path / "cache" / name.format(uid=os.geteuid())
    precious.write_text("mine")
    planted.parent.mkdir()
    if kind == "link":
        planted.symlink_to(precious)
    elif kind == "fifo":
        os.mkfifo(planted)
    else:
        (planted / "below").mkdir(parents=True)
    cache = StatCache(tmp_path / "cache")
    remembered(tree, cache)

    assert precious.read_text() == "mine"
    [left] = (tmp_path / "cache").iterdir()
    assert left.is_file()
    assert not left.is_symlink()
    assert Scan.load(left) is not None


def test_a_cache_behind_a_link_is_neither_read_nor_written(tree: Path, tmp_path: Path):
    remembered(tree, StatCache(tmp_path / "elsewhere"))
    kept = {path: path.read_bytes() for path in (tmp_path / "elsewhere").iterdir()}
    (tmp_path / "cache").symlink_to(tmp_path / "elsewhere")
    cache = StatCache(tmp_path / "cache" / "below")
    assert_as_if_read(tree, cache)
    assert StatCache(tmp_path / "cache").last() is None
    make(tree, [file(b"a", b"changed")])
    assert_as_if_read(tree, StatCache(tmp_path / "cache"))
    assert {path: path.read_bytes() for path in (tmp_path / "elsewhere").iterdir()} == kept


def forged(tree: Path, cache: StatCache) -> Path:
    """Keep a scan that is of another content under the signatures of today's; returns its file."""
    seen = remembered(tree, cache).root
    lie = Directory.of({b"a": Entry(Kind.FILE, False, 3, bytes(32))}, seen.children, seen.names, seen.stats)
    [path] = cache._path.parent.iterdir()
    Scan(lie, (b".endstate", b".git")).save(path)
    return path


def test_a_cache_that_was_forgotten_is_not_believed_and_written_anew(tree: Path, cache: StatCache, tmp_path: Path):
    path = forged(tree, cache)
    assert scan(tree, cache=StatCache(tmp_path / "state" / "cache")).tree_hash != scan(tree).tree_hash
    doubting = StatCache(tmp_path / "state" / "cache")
    doubting.forget()
    assert_as_if_read(tree, doubting)
    kept = Scan.load(path)
    assert kept is not None
    assert kept.tree_hash == scan(tree).tree_hash


def test_a_cache_that_cannot_be_replaced_is_not_believed(owned: Path):
    with as_ordinary_user():
        path = forged(owned, StatCache(Path("state")))
        path.parent.chmod(0o555)
        assert_as_if_read(owned, StatCache(Path("state")))
        path.parent.chmod(0o755)


def test_a_forged_file_with_a_true_checksum_is_no_cache(tree: Path, tmp_path: Path):
    kept = tmp_path / "kept"
    for body in (b"", b"\xff" * 8, b"\xff" * 80, b"\0" * 8, b"\0" * 8 + b"\1\0\0\0" * 5 + bytes(32)):
        kept.write_bytes(b"endstate-scan-1\n" + hashlib.sha256(body).digest() + body)
        assert Scan.load(kept) is None


def test_a_scan_that_is_not_what_its_hash_says_is_unsound(tree: Path):
    true = scan(tree)
    assert true.is_sound()
    root = true.root
    lies = [
        Directory(root.listing, root.digest, {}),
        Directory(root.listing, root.digest, {**root.children, b"new": root.children[b"d"]}),
        Directory(root.listing, root.digest, {**root.children, b"d": Directory.of({}, {})}),
        Directory(Directory.of({}, root.children).listing, root.digest, root.children),
    ]
    assert not any(Scan(lie).is_sound() for lie in lies)


def test_a_tree_that_did_not_change_is_not_written_again(tree: Path, cache: StatCache, tmp_path: Path):
    remembered(tree, cache)
    [path] = (tmp_path / "state" / "cache").iterdir()
    before = path.stat()
    scan(tree, cache=cache)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_exclusions_may_differ_from_one_scan_to_the_next(tree: Path, cache: StatCache):
    remembered(tree, cache)
    for exclude in ([b"d"], [b"e/f"], [], [b"a"], [b"d/b"], [b"a", b"e"]):
        assert scan(tree, exclude, cache).tree_hash == scan(tree, exclude).tree_hash
