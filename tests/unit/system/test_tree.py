"""The tree hash: equal for equal trees, different for different ones, and nothing in a tree escapes it."""

from __future__ import annotations

import os
import random
import re
import resource
import stat
import tempfile
import threading
import tracemalloc
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endstate_action.errors import InputError
from endstate_action.system.names import parse
from endstate_action.system.tree import Change, Kind, Scan, diff, display, scan
from endstate_action.system.tree_cache import Signature
from endstate_action.system.tree_read import Look, Reader
from tests.support import trees
from tests.support.trees import Thing, Vector, as_ordinary_user, directory, file, hash_of, link, make

DOC = trees.ROOT / "docs" / "reference" / "tree-hash.md"

by_name = pytest.mark.parametrize("vector", trees.vectors(), ids=lambda v: v.name)


@pytest.fixture(scope="module")
def documented() -> Any:
    """The implementation that the documentation shows."""
    code = re.search(r"```python\n(.*?)```", DOC.read_text(encoding="utf-8"), re.DOTALL)
    assert code
    names: dict[str, Any] = {}
    exec(code[1], names)
    return names["tree_hash"]


def hash_at(root: Path) -> str:
    return scan(root).tree_hash


def look_at(parent: Path, name: str, seen: Signature) -> Look[Any]:
    """Read an entry that was listed with the signature `seen`."""
    here = os.open(parent, os.O_RDONLY)
    try:
        return Reader().look(here, name, seen)
    finally:
        os.close(here)


# A regular file of five bytes, as no file here is.
LISTED: Signature = (stat.S_IFREG | 0o644, 1, 1, 5, 1, 1)

# --- The format ---


@by_name
def test_a_published_vector_never_changes(vector: Vector):
    assert trees.hashed_for(vector.things) == vector.root
    assert hash_of(vector.things) == vector.hash


@by_name
def test_a_published_vector_on_the_disk_has_its_hash(vector: Vector, tmp_path: Path, documented: Any):
    if not vector.anybody_can_make_it:
        pytest.skip("only the format can be checked here")
    make(tmp_path, vector.things)
    assert hash_at(tmp_path) == vector.hash
    assert documented(os.fsencode(tmp_path)) == vector.hash


@by_name
def test_the_documentation_shows_every_vector(vector: Vector):
    assert f"| {vector.name} | `{vector.hash}` |" in DOC.read_text(encoding="utf-8")


def test_the_vectors_are_all_different():
    assert len({vector.hash for vector in trees.vectors()}) == len(trees.vectors())


def test_the_hash_is_one_word_that_names_its_format(tmp_path: Path):
    assert re.fullmatch(r"et1:[0-9a-f]{64}", hash_at(tmp_path))


def test_what_is_not_in_the_hash_does_not_change_it(tmp_path: Path):
    make(tmp_path, [file(b"a", b"content"), directory(b"d")])
    before = hash_at(tmp_path)
    os.utime(tmp_path / "a", (1, 1))
    os.utime(tmp_path / "d", (4_000_000_000, 4_000_000_000))
    (tmp_path / "a").chmod(0o604)
    (tmp_path / "d").chmod(0o700)
    (tmp_path / "b").write_bytes(b"content")
    (tmp_path / "b").replace(tmp_path / "a")
    assert hash_at(tmp_path) == before


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o655, 0o755, 0o700, 0o610, 0o100, 0o4755, 0o4644])
def test_the_executable_bit_is_the_owners(mode: int, tmp_path: Path):
    made = make(tmp_path, [file(b"a", b"x")]) / "a"
    made.chmod(mode | stat.S_IRUSR)
    assert scan(tmp_path).entries[b"a"].executable is bool(mode & 0o100)
    assert hash_at(tmp_path) == hash_of([file(b"a", b"x", executable=bool(mode & 0o100))])


def test_who_asks_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tree = make(tmp_path / "tree", [file(b"a", b"x"), file(b"b", b"x", executable=True), file(b"c/d", b"x")])
    (tree / "a").chmod(0o645)
    (tree / "b").chmod(0o4744)
    for path in (tmp_path, tree, tree / "c"):
        path.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    expected = hash_at(Path("tree"))
    with as_ordinary_user():
        assert hash_at(Path("tree")) == expected


@pytest.mark.parametrize(
    "env",
    [
        {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
        {"LC_ALL": "C.UTF-8", "PYTHONUTF8": "0"},
        {"LC_ALL": "POSIX", "PYTHONUTF8": "1"},
    ],
    ids=["C", "UTF-8", "UTF-8 mode"],
)
def test_the_locale_does_not_matter(env: Mapping[str, str], tmp_path: Path):
    things = [file(b"caf\xe9", b"1"), file("é".encode(), b"2"), file("ż".encode(), b"3"), link(b"z", b"\xff\xfe")]
    assert trees.hash_in_a_process_of_its_own(make(tmp_path, things), env) == hash_of(things)


def test_hard_links_are_files_like_any_other(tmp_path: Path):
    make(tmp_path, [file(b"a", b"same")])
    os.link(tmp_path / "a", tmp_path / "b")
    assert hash_at(tmp_path) == hash_of([file(b"a", b"same"), file(b"b", b"same")])


# --- Nothing is skipped ---


def test_names_are_bytes_of_any_kind(tmp_path: Path):
    names = [b"caf\xe9.txt", b"\xff\xfe", b"new\nline", b"-n", b"*", b"a\\b", b"\\xff", b"\x01\x7f", b"n" * 255, b" "]
    make(tmp_path, [file(name, name) for name in names])
    assert list(scan(tmp_path).entries) == sorted(names)
    assert hash_at(tmp_path) == hash_of(file(name, name) for name in names)


def test_two_spellings_and_two_cases_of_a_name_are_different_names(tmp_path: Path):
    things = [file("é".encode(), b"nfc"), file("e\u0301".encode(), b"nfd"), file(b"Foo", b"1"), file(b"foo", b"2")]
    assert hash_at(make(tmp_path, things)) == hash_of(things)
    assert len(scan(tmp_path).entries) == 4


def test_entries_are_in_the_order_of_the_bytes_of_their_paths(tmp_path: Path):
    things = [file(b"a.b"), file(b"a/b"), file(b"a0"), file(b"B"), file(b"\xff"), file("\ue000".encode())]
    paths = list(scan(make(tmp_path, things)).entries)
    assert paths == [b"B", b"a", b"a.b", b"a/b", b"a0", "\ue000".encode(), b"\xff"]


@pytest.mark.parametrize(
    "path", [b"src/.git/hook", b"x/__pycache__/m.pyc", b"pkg/.endstate/x", b".gitignore", b".git2"]
)
def test_no_name_is_a_hiding_place(path: bytes, tmp_path: Path):
    make(tmp_path, [file(path, b"before")])
    before = scan(tmp_path)
    make(tmp_path, [file(path, b"behind")])
    assert diff(before, scan(tmp_path)) == [Change(path, "changed")]


def test_only_the_exact_paths_at_the_root_are_left_out(tmp_path: Path):
    seen = [file(b"a/cache2"), file(b"cache", b"1"), file(b"b/a/cache"), file(b"sub/.endstate/x"), file(b"a/x")]
    make(tmp_path, [*seen, file(b".endstate/session"), file(b"a/cache/x"), link(b".git", b"/elsewhere/.git")])
    result = scan(tmp_path, exclude=[b".git", b".endstate", b"a/cache"])
    assert result.excluded == (b".endstate", b".git", b"a/cache")
    assert result.tree_hash == hash_of(seen)


def test_an_excluded_file_or_link_is_left_out_like_a_directory(tmp_path: Path):
    make(tmp_path, [file(b".endstate", b"not a directory"), link(b".git", b"elsewhere"), directory(b"d")])
    assert hash_at(tmp_path) == hash_of([directory(b"d")])


def test_a_directory_of_excluded_things_only_is_an_empty_one(tmp_path: Path):
    make(tmp_path, [file(b"build/cache/x")])
    assert scan(tmp_path, exclude=[b"build/cache"]).tree_hash == hash_of([directory(b"build")])


@pytest.mark.parametrize("path", [b"", b"/etc", b"a/../b", b"a//b", b"./a", b"a/", b"..", b"a\0b"])
def test_an_exclusion_that_is_no_plain_path_is_refused(path: bytes, tmp_path: Path):
    with pytest.raises(InputError, match="cannot be excluded"):
        scan(tmp_path, exclude=[path])


def test_links_are_hashed_and_never_followed(tmp_path: Path):
    outside = make(tmp_path / "outside", [file(b"x", b"outside")])
    inside = [
        link(b"env", b"/usr/bin/env"),
        link(b"up", b"../outside"),
        link(b"absolute", os.fsencode(outside)),
        link(b"gone", b"nowhere"),
        link(b"a", b"b"),
        link(b"b", b"a"),
        link(b"self", b"."),
    ]
    tree = make(tmp_path / "tree", inside)
    before = scan(tree)
    assert before.tree_hash == hash_of(inside)
    make(outside, [file(b"x", b"changed"), file(b"y")])
    assert hash_at(tree) == before.tree_hash


def test_a_directory_replaced_by_a_link_to_its_like_is_a_change(tmp_path: Path):
    tree = make(tmp_path / "tree", [file(b"d/x", b"1")])
    before = scan(tree)
    (tree / "d").rename(tmp_path / "d")
    (tree / "d").symlink_to(tmp_path / "d")
    assert diff(before, scan(tree)) == [Change(b"d", "added"), Change(b"d/x", "removed")]


def test_an_empty_directory_that_is_filled_has_neither_come_nor_gone(tmp_path: Path):
    before = scan(make(tmp_path, [directory(b"d"), directory(b"e/f")]))
    after = scan(make(tmp_path, [file(b"d/x"), file(b"e/f/y/z")]))
    assert diff(before, after) == [Change(b"d/x", "added"), Change(b"e/f/y/z", "added")]
    assert diff(after, before) == [Change(b"d/x", "removed"), Change(b"e/f/y/z", "removed")]


def test_a_fifo_is_not_waited_for(tmp_path: Path):
    make(tmp_path, [Thing(b"d/pipe", "fifo"), Thing(b"socket", "socket")])
    assert scan(tmp_path).entries[b"d/pipe"].kind is Kind.FIFO
    assert scan(tmp_path).entries[b"socket"].kind is Kind.SOCKET


def test_a_file_that_turned_into_a_fifo_is_not_waited_for(tmp_path: Path):
    make(tmp_path, [Thing(b"a", "fifo")])
    look = look_at(tmp_path, "a", LISTED)
    assert look.entry is not None
    assert look.entry.kind is Kind.FIFO


def test_a_file_that_turned_into_a_link_is_not_followed(tmp_path: Path):
    make(tmp_path, [link(b"a", b"/etc/hostname")])
    look = look_at(tmp_path, "a", LISTED)
    assert look.entry is not None
    assert look.entry.kind is Kind.LINK


def test_devices_are_hashed_by_their_type(tmp_path: Path):
    try:
        os.mknod(tmp_path / "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        os.mknod(tmp_path / "disk", 0o600 | stat.S_IFBLK, os.makedev(240, 99))
    except PermissionError:
        pytest.skip("only root makes devices")
    assert hash_at(tmp_path) == hash_of([Thing(b"null", "character device"), Thing(b"disk", "block device")])


@pytest.fixture
def forbidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A tree in which an ordinary user may not read everything."""
    make(tmp_path / "tree", [file(b"secret", b"1"), file(b"tool", b"1", executable=True), file(b"ok", b"1")])
    make(tmp_path / "tree", [file(b"closed/x", b"1"), file(b"names/x", b"1"), file(b"deeper/y/z", b"1")])
    modes = {"": 0o755, "secret": 0, "tool": 0o100, "closed": 0, "names": 0o444, "deeper": 0o444}
    for name, mode in modes.items():
        path = tmp_path / "tree" / name
        if os.geteuid() == 0:
            os.chown(path, 65534, 65534)
        path.chmod(mode)
    tmp_path.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    yield Path("tree")
    for name in modes:
        (tmp_path / "tree" / name).chmod(0o755)


def test_what_may_not_be_read_is_in_the_hash_and_named(forbidden: Path, documented: Any):
    expected = [
        Thing(b"secret", "unreadable file"),
        Thing(b"tool", "unreadable file", executable=True),
        file(b"ok", b"1"),
        *(Thing(name, "unreadable directory") for name in (b"closed", b"names", b"deeper")),
    ]
    with as_ordinary_user():
        result = scan(forbidden)
        theirs = documented(os.fsencode(forbidden))
    assert result.tree_hash == hash_of(expected) == theirs
    assert result.unreadable == (b"closed", b"deeper", b"names", b"secret", b"tool")


@pytest.mark.parametrize(
    "names",
    [
        pytest.param([b"d"] * 1500, marks=pytest.mark.slow, id="1,500 levels"),
        pytest.param([b"n" * 255] * 40, id="10,000 bytes"),
    ],
)
def test_a_tree_may_be_deeper_than_a_path_can_be_long(names: list[bytes]):
    with trees.a_deep_place() as place:
        trees.dig(place, names)
        result = scan(place)
        assert result.entries[b"/".join([*names, b"bottom"])].kind is Kind.FILE
        assert len(result.entries) == len(names) + 1


@pytest.fixture
def few_files_may_be_open() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/dev/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 100, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("few_files_may_be_open")
def test_directories_let_go_on_the_way_down_are_found_again():
    """Far more of them wait to be entered than can be held open."""
    with trees.a_deep_place() as place:
        opened = len(os.listdir("/dev/fd"))
        trees.dig(place, [b"m"] * 150, beside=b"a")
        trees.dig(place / "m" / "a", [b"z"] * 100, beside=b"b")
        result = scan(place)
        assert len(result.entries) == 2 * 150 + 1 + 2 * 100 + 1
        assert result.unstable == ()
        assert len(os.listdir("/dev/fd")) == opened


def test_a_large_file_is_never_in_memory_as_a_whole(tmp_path: Path):
    with (tmp_path / "large").open("wb") as made:
        made.truncate(200_000_000)
    tracemalloc.start()
    try:
        result = scan(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()
    assert result.entries[b"large"].size == 200_000_000


@pytest.mark.parametrize("size", [0, 1, 4096, 262_143, 262_144, 262_145, 524_288, 700_001])
def test_every_byte_counts_whatever_the_size(size: int, tmp_path: Path):
    content = random.Random(size).randbytes(size)
    assert hash_at(make(tmp_path, [file(b"a", content)])) == hash_of([file(b"a", content)])


# --- The root ---


@pytest.mark.parametrize("name", ["missing", "file", "fifo", "dangling"])
def test_a_root_that_is_no_directory_is_refused(name: str, tmp_path: Path):
    make(tmp_path, [file(b"file"), Thing(b"fifo", "fifo"), link(b"dangling", b"nowhere")])
    with pytest.raises(InputError, match=f"not hashed: .*{name}") as refused:
        scan(tmp_path / name)
    assert refused.value.exit_code == 2
    assert refused.value.hint


def test_a_root_that_may_not_be_read_is_refused(forbidden: Path):
    with as_ordinary_user():
        for name in ("closed", "names", "deeper"):
            with pytest.raises(InputError, match="Permission denied"):
                scan(forbidden / name)


def test_the_root_may_be_named_by_a_link(tmp_path: Path):
    make(tmp_path / "tree", [file(b"a")])
    (tmp_path / "link").symlink_to("tree")
    assert hash_at(tmp_path / "link") == hash_at(tmp_path / "tree")


# --- While others write ---


def test_what_comes_and_goes_during_a_scan_neither_breaks_nor_leaves_it(tmp_path: Path):
    """Directories turn into links to a place outside, and back, while they are scanned."""
    outside = make(tmp_path / "outside", [file(b"secret", b"outside")])
    tree = make(tmp_path / "tree", [file(b"%d/%d" % (i, j)) for i in range(20) for j in range(5)])
    stop = threading.Event()

    def churn() -> None:
        rng = random.Random(7)
        while not stop.is_set():
            name = tree / str(rng.randrange(20))
            name.rename(tree / "away")
            name.symlink_to(outside)
            name.unlink()
            (tree / "away").rename(name)
            for number in range(20):
                (name / f"new{number}").touch()
            for number in range(20):
                (name / f"new{number}").unlink()

    writer = threading.Thread(target=churn)
    before = scan(tree)
    writer.start()
    try:
        for _ in range(300):
            assert not any(b"secret" in path for path in scan(tree).entries)
    finally:
        stop.set()
        writer.join()
    assert scan(tree).tree_hash == before.tree_hash


def test_a_file_that_never_holds_still_is_named_as_unstable(tmp_path: Path):
    make(tmp_path, [file(b"d/log", b"x" * 3_000_000)])
    stop = threading.Event()

    def write() -> None:
        with (tmp_path / "d" / "log").open("r+b", buffering=0) as log:
            while not stop.is_set():
                log.seek(0)
                log.write(b"y")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert any(scan(tmp_path).unstable == (b"d/log",) for _ in range(2000))
    finally:
        stop.set()
        writer.join()
    assert scan(tmp_path).unstable == ()


def test_a_file_that_changed_since_it_was_listed_is_read_as_it_is(tmp_path: Path):
    make(tmp_path, [file(b"a", b"longer than it was")])
    look = look_at(tmp_path, "a", LISTED)
    assert look.entry is not None
    assert look.entry.size == len(b"longer than it was")
    assert not look.changed


def test_a_file_that_is_gone_when_its_turn_comes_is_no_entry(tmp_path: Path):
    look = look_at(tmp_path, "a", LISTED)
    assert look.entry is None
    assert look.changed


# --- Trees of every kind ---

_names = (
    st.binary(min_size=1, max_size=6)
    .map(lambda b: b.replace(b"/", b"_").replace(b"\0", b"0"))
    .filter(lambda b: b not in (b".", b".."))
)
_contents = st.binary(max_size=3)
_leaves: st.SearchStrategy[Any] = st.one_of(
    st.builds(lambda c, x: Thing(b"", "file", c, x), _contents, st.booleans()),
    st.builds(
        lambda c: Thing(b"", "link", c or b"x"), st.binary(min_size=1, max_size=3).filter(lambda b: b"\0" not in b)
    ),
    st.just(Thing(b"", "fifo")),
    st.just({}),
)
_trees = st.dictionaries(
    _names, st.recursive(_leaves, lambda t: st.dictionaries(_names, t, max_size=3), max_leaves=8), max_size=4
)


def things_of(tree: Mapping[bytes, Any], prefix: bytes = b"") -> list[Thing]:
    found: list[Thing] = []
    for name, value in tree.items():
        if isinstance(value, Thing):
            found.append(Thing(prefix + name, value.kind, value.content, value.executable))
        else:
            found += things_of(value, prefix + name + b"/") or [directory(prefix + name)]
    return found


def scanned(things: list[Thing]) -> Scan:
    with tempfile.TemporaryDirectory() as folder:
        return scan(make(Path(folder), things), exclude=[])


@settings(max_examples=60)
@given(_trees, st.randoms(use_true_random=False))
def test_the_order_of_creation_does_not_matter(tree: dict[bytes, Any], rng: random.Random):
    things = things_of(tree)
    shuffled = rng.sample(things, len(things))
    assert scanned(things).tree_hash == scanned(shuffled).tree_hash == hash_of(things)


@settings(max_examples=60)
@given(_trees, _trees)
def test_different_trees_have_different_hashes_and_the_difference_is_named(
    one: dict[bytes, Any], two: dict[bytes, Any]
):
    before, after = {t.path: t for t in things_of(one)}, {t.path: t for t in things_of(two)}
    a, b = scanned(list(before.values())), scanned(list(after.values()))
    assert (a.tree_hash == b.tree_hash) == (before == after)
    assert diff(a, b) == sorted(_changes(before, after), key=lambda change: change.path)


def _changes(before: Mapping[bytes, Thing], after: Mapping[bytes, Thing]) -> list[Change]:
    return [
        *(Change(p, "removed") for p in before.keys() - after.keys() if not became_full_directory(before[p], after)),
        *(Change(p, "added") for p in after.keys() - before.keys() if not became_full_directory(after[p], before)),
        *(Change(p, "changed") for p in before.keys() & after.keys() if before[p] != after[p]),
    ]


def became_full_directory(thing: Thing, other: Mapping[bytes, Thing]) -> bool:
    """An empty directory on one side that holds something on the other has neither come nor gone."""
    return thing.kind == "directory" and any(path.startswith(thing.path + b"/") for path in other)


@given(st.binary(max_size=12))
def test_a_shown_path_leads_back_to_its_bytes(path: bytes):
    assert parse(display(path)) == path
