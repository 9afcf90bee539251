"""What a snapshot holds: all that there is, byte for byte; and what it does not hold, it says."""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from endstate_action.config import SnapshotLimits
from endstate_action.errors import StateError
from endstate_action.state.snapshot import ObjectStore, SnapshotStore
from endstate_action.state.snapshot.compare import load
from endstate_action.state.snapshot.meta import Meta, decode
from endstate_action.system.process import fork
from endstate_action.system.tree_format import Scan
from tests.support.repos import Repo
from tests.support.trees import _socket as make_socket
from tests.support.trees import a_deep_place, as_ordinary_user, dig
from tests.support.workspaces import Place, a_place_for_anybody, settle


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "ws").mkdir()
    return Place(tmp_path / "ws")


@pytest.fixture
def repo(place: Place) -> Repo:
    repo = Repo(place.root)
    repo.git("init", "--quiet", "--initial-branch=main")
    repo.commit({"a.txt": "one\n", "d/b.txt": "two\n", "d/e/c.txt": "three\n", ".gitignore": "build/\n*.pyc\n"})
    return repo


def meta_of(place: Place, root: str) -> Meta:
    return load(place.objects(), root).meta


def listed(place: Place, tree: str) -> dict[str, str]:
    """Path and mode of everything in the tree, in git's words."""
    lines = place.objects().git("ls-tree", "-r", "-z", tree).stdout.decode("utf-8", "surrogateescape").split("\0")
    return {line.partition("\t")[2]: line.split(" ")[0] for line in lines[:-1]}


def content(place: Place, tree: str, path: str) -> bytes:
    return place.objects().git("cat-file", "blob", f"{tree}:{path}").stdout


@pytest.mark.parametrize("object_format", ["sha1", "sha256"])
def test_the_tree_is_the_one_that_git_writes(tmp_path: Path, object_format: str):
    root = tmp_path / "ws"
    root.mkdir()
    repo, place = Repo(root), Place(root, object_format)
    repo.git("init", "--quiet", f"--object-format={object_format}")
    names = ("a", "a.txt", "a-b", "ab/c", "ab.c/d", "ab-c", "é.txt", "sub/deep/er/file", "Z", "~")
    repo.write({name: f"content of {name}\n" for name in names})
    (root / "program").write_text("#!/bin/sh\n")
    (root / "program").chmod(0o755)
    (root / "link").symlink_to("nowhere")
    (root / "sub" / "empty").mkdir()
    repo.git("add", "--all")
    taken = place.store().take()
    assert taken.tree == repo.git("write-tree")
    assert taken.exact
    assert taken.reasons == ()


def test_an_empty_workspace_has_the_empty_tree(place: Place):
    taken = place.store().take()
    assert taken.tree == place.objects().write("tree", b"")
    assert taken.exact


def test_equal_workspaces_have_equal_roots_whenever_and_wherever_they_are(tmp_path: Path):
    roots = []
    for name in ("one", "other"):
        root = tmp_path / name
        (root / "d" / "empty").mkdir(parents=True)
        for file in ("x", "y") if name == "one" else ("y", "x"):
            (root / "d" / file).write_text(file)
        (root / "d" / "x").chmod(0o600)
        os.mkfifo(root / "pipe")
        roots.append(Place(root).store().take().root)
    assert roots[0] == roots[1]


def test_a_snapshot_names_what_git_drops(place: Place):
    (place.root / "empty" / "nested").mkdir(parents=True)
    (place.root / "closed").mkdir(mode=0o700)
    (place.root / "file").write_text("x")
    (place.root / "file").chmod(0o604)
    os.mkfifo(place.root / "closed" / "pipe", 0o600)
    for name in ("other", "another"):
        (place.root / name).write_text("y")
        (place.root / name).chmod(0o644)
    meta = meta_of(place, place.store().take().root)
    assert meta.empty == {b"empty", b"empty/nested", b"closed"}
    assert meta.modes[b"file"] == 0o604
    assert meta.modes[b"closed"] == 0o700
    assert meta.fifos == {b"closed/pipe": 0o600}


def test_modes_take_no_room_under_any_umask(place: Place):
    """Under umask 002 no file has the mode that git would give it."""
    for number in range(300):
        (place.root / f"file{number}").write_text(str(number))
        (place.root / f"file{number}").chmod(0o664)
    meta = meta_of(place, place.store().take().root)
    assert meta.usual[0] == 0o664
    assert meta.modes == {}


def test_what_a_snapshot_says_besides_the_tree_reads_back(place: Place):
    meta = Meta(
        modes={b"a\xff\n": 0o7777}, empty=frozenset({b"\\x41"}), opaque={b"big": "too large"}, skipped={b"s": "socket"}
    )
    assert decode(meta.encode()) == meta


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("empty", ["../out"]),
        ("empty", ["/abs"]),
        ("empty", ["a//b"]),
        ("empty", ["a/./b"]),
        ("empty", [""]),
        ("empty", [7]),
        ("empty", {"a": 1}),
        ("modes", {"../a": 420}),
        ("modes", {"a": 0o10000}),
        ("modes", {"a": -1}),
        ("modes", {"a": True}),
        ("modes", ["a"]),
        ("fifos", {"a": "rw"}),
        ("opaque", {"a": "\x1b[2J"}),
        ("usual", [420]),
        ("version", 2),
        ("more", 1),
    ],
)
def test_a_description_that_is_no_snapshots_is_refused(field: str, value: object):
    data = json.loads(Meta().encode())
    data[field] = value
    with pytest.raises(ValueError, match="its description"):
        decode(json.dumps(data).encode())


TRAPS = {
    "text=auto": ("* text=auto eol=crlf\n", b"unix\nmixed\r\nend"),
    "autocrlf": ("", b"dos\r\nlines\r\n"),
    "ident": ("* ident\n", b"$Id$ and $Id: deadbeef $\n"),
    "encoding": ("* working-tree-encoding=UTF-16\n", b"\xff\xfeundecodable\x00\xd8\n"),
    "lfs": ("* filter=lfs diff=lfs merge=lfs -text\n", b"\x00\x01 real content, no pointer\n"),
    "required filter": ("* filter=gone\n", b"as it is\n"),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_no_attribute_or_setting_changes_a_byte(place: Place, repo: Repo, trap: str):
    attributes, data = TRAPS[trap]
    for key, value in (("core.autocrlf", "true"), ("filter.gone.clean", "false"), ("filter.gone.required", "true")):
        repo.git("config", key, value)
    repo.git("config", "filter.lfs.clean", "sh -c 'touch executed'")
    repo.write({".gitattributes": attributes, "trap": data})
    tree = place.store().take().tree
    assert content(place, tree, "trap") == data
    assert not (place.root / "executed").exists()


def test_nothing_that_the_project_configures_is_executed(place: Place, repo: Repo, tmp_path: Path):
    mark = tmp_path / "executed"
    program = f"sh -c 'touch {mark}'"
    for key in ("core.fsmonitor", "core.hooksPath", "core.sshCommand", "diff.external", "filter.x.clean"):
        repo.git("config", key, program)
    (place.root / ".git" / "evil").write_text(f'[core]\n\tfsmonitor = "{program}"\n')
    repo.git("config", "include.path", "evil")
    repo.write({".gitattributes": "* filter=x\n", "new": "x"})
    store = place.store()
    root = store.take().root
    (place.root / "new").write_text("y")
    store.restore(root)
    assert not mark.exists()


@pytest.mark.parametrize(
    "damage",
    [
        "update-index --assume-unchanged a.txt",
        "update-index --skip-worktree a.txt",
        "update-index --split-index",
        "update-index --index-version 4",
        "rm --cached -q a.txt",
        "config core.sparseCheckout true",
    ],
)
def test_the_index_has_no_say(place: Place, repo: Repo, damage: str):
    repo.git(*damage.split(" "))
    repo.write({"a.txt": "changed\n", "intended": "x"})
    repo.git("add", "--intent-to-add", "intended")
    (place.root / ".git" / "index.lock").write_bytes(b"")
    taken = place.store().take()
    assert content(place, taken.tree, "a.txt") == b"changed\n"
    assert listed(place, taken.tree).keys() == {"a.txt", "d/b.txt", "d/e/c.txt", ".gitignore", "intended"}
    assert (place.root / ".git" / "index.lock").exists()


def test_what_a_sparse_checkout_left_out_stays_out(place: Place, repo: Repo):
    repo.commit({"other/x": "1"})
    repo.git("sparse-checkout", "set", "d")
    store = place.store()
    taken = store.take()
    assert taken.exact
    assert "other/x" not in listed(place, taken.tree)
    repo.write({"other/x": "by a call", "a.txt": "changed"})
    store.restore(taken.root)
    assert not (place.root / "other").exists()
    assert repo.git("status", "--porcelain", "--untracked-files=no") == ""


def test_an_unreadable_index_only_costs_the_ignore_rules(place: Place, repo: Repo):
    repo.write({"build/out": "x"})
    (place.root / ".git" / "index").write_bytes(b"junk")
    assert "build/out" in listed(place, place.store().take().tree)


def nested(root: Path) -> None:
    inner = Repo(root / "inner")
    inner.path.mkdir()
    inner.git("init", "-q")
    inner.commit({"x": "1"})
    unborn = Repo(root / "unborn")
    unborn.path.mkdir()
    unborn.git("init", "-q")
    unborn.write({"y": "2"})
    subprocess.run(["git", "init", "-q", "--bare", str(root / "bare.git")], check=True)
    (root / "fake").mkdir()
    (root / "fake" / ".git").write_text("gitdir: ../../nowhere\n")
    (root / "odd").mkdir()
    for name in (".GIT", "git~1", ".Git2"):
        (root / "odd" / name).mkdir()
        (root / "odd" / name / "config").write_text(name)


def test_repositories_inside_are_kept_as_what_they_are_on_disk(place: Place, repo: Repo):
    nested(place.root)
    found = listed(place, place.store().take().tree)
    for path in ("inner/x", "inner/.git/HEAD", "inner/.git/index", "unborn/y", "unborn/.git/config", "bare.git/HEAD"):
        assert found[path] == "100644"
    assert {"fake/.git", "odd/.GIT/config", "odd/git~1/config", "odd/.Git2/config"} <= found.keys()
    assert "160000" not in found.values()


def test_ignored_files_are_kept_while_there_is_room(place: Place, repo: Repo):
    repo.write({"build/out": "x", "a.pyc": "y", "d/b.pyc": "z"})
    taken = place.store().take()
    assert {"build/out", "a.pyc", "d/b.pyc"} <= listed(place, taken.tree).keys()
    assert taken.exact


@pytest.mark.parametrize("limits", [{"ignored_max_files": 3}, {"ignored_max_mb": 1}])
def test_an_ignored_directory_for_which_there_is_no_room_is_named_and_left_out(
    place: Place, repo: Repo, limits: dict[str, int]
):
    repo.write({f"build/{n}": "x" * 400_000 for n in range(4)} | {"a.pyc": "y"})
    taken = place.store(**limits).take()
    found = listed(place, taken.tree)
    assert "a.pyc" in found
    assert not [path for path in found if path.startswith("build")]
    assert meta_of(place, taken.root).uncaptured == {b"build"}
    assert not taken.exact
    assert any("build" in reason for reason in taken.reasons)


def test_what_is_tracked_is_kept_whatever_ignore_rules_say(place: Place, repo: Repo):
    repo.write({"build/tracked": "1"})
    repo.git("add", "--force", "build/tracked")
    repo.write({".gitignore": "*\n", "build/tracked": "2", "new": "3"})
    taken = place.store(ignored_max_files=0).take()
    assert content(place, taken.tree, "build/tracked") == b"2"
    assert content(place, taken.tree, "a.txt") == b"one\n"
    assert meta_of(place, taken.root).uncaptured == {b"new"}


def test_the_state_directory_is_never_captured(place: Place, repo: Repo):
    place.objects()
    repo.write({".gitignore": "!/.endstate/\n!/.endstate/**\n"})
    assert not [path for path in listed(place, place.store().take().tree) if path.startswith(".endstate")]


def test_what_the_configuration_excludes_is_left_out(place: Place, repo: Repo):
    repo.write({"data/set": "x", "data/other": "y"})
    taken = place.store(exclude=("data/set",)).take()
    assert "data/other" in listed(place, taken.tree)
    assert "data/set" not in listed(place, taken.tree)


def test_a_tracked_file_that_became_a_fifo_stops_nothing(place: Place, repo: Repo):
    (place.root / "a.txt").unlink()
    os.mkfifo(place.root / "a.txt", 0o644)
    taken = place.store().take()
    assert taken.exact
    assert meta_of(place, taken.root).fifos == {b"a.txt": 0o644}


def test_sockets_and_devices_are_named(place: Place):
    make_socket(os.fsencode(place.root / "socket"))
    (place.root / "file").write_text("x")
    taken = place.store().take()
    assert meta_of(place, taken.root).skipped == {b"socket": "socket"}
    assert taken.reasons == ("socket was not kept (socket)",)
    assert not taken.exact


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")
def test_a_device_is_named_and_not_opened(place: Place):
    try:
        os.mknod(place.root / "device", 0o600 | 0o020000, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("no device nodes can be made here")
    assert meta_of(place, place.store().take().root).skipped == {b"device": "device"}


def test_what_is_too_large_is_so_by_the_limit_of_today(place: Place):
    """Sessions with other limits have scanned before; what they remembered is no answer to this one."""
    (place.root / "big").write_bytes(b"x" * (2 << 20))
    settle()
    whole = place.store().take()

    assert place.store(file_max_mb=1).take().reasons == ("big was not kept (too large)",)
    assert place.store().take() == whole


def test_a_file_over_the_cap_is_named_and_not_read(place: Place):
    with open(place.root / "big", "wb") as file:
        os.truncate(file.fileno(), 120 << 20)
    with open(place.root / "less", "wb") as file:
        os.truncate(file.fileno(), 9 << 20)
    taken = place.store(file_max_mb=100).take()
    assert meta_of(place, taken.root).opaque == {b"big": "too large"}
    assert taken.reasons == ("big was not kept (too large)",)
    assert content(place, taken.tree, "less") == bytes(9 << 20)


def test_a_tree_deeper_than_any_path_is_named_and_stops_nothing():
    with a_deep_place() as top:
        dig(top, [b"d"] * 1500)
        dig(top, [b"long" * 60] * 40)
        (top / "file").write_text("x")
        place = Place(top)
        store = place.store()
        taken = store.take()
        assert set(meta_of(place, taken.root).opaque.values()) == {"too deep"}
        assert len(meta_of(place, taken.root).opaque) == 2
        assert content(place, taken.tree, "file") == b"x"
        (top / "file").write_text("y")
        assert store.restore(taken.root).exact
        assert (top / "file").read_text() == "x"


def test_as_an_ordinary_user_what_is_closed_is_read_and_stays_closed():
    """Modes 0000 and 0555, on files and directories of one's own."""
    with a_place_for_anybody() as place, as_ordinary_user():
        root = place.root
        (root / "closed" / "below").mkdir(parents=True)
        (root / "closed" / "below" / "file").write_text("deep")
        (root / "listed").mkdir()
        (root / "listed" / "file").write_text("listed")
        (root / "none").write_text("secret")
        for name, mode in (("none", 0o000), ("closed/below", 0o000), ("closed", 0o555), ("listed", 0o600)):
            (root / name).chmod(mode)
        taken = place.store().take()
        assert taken.exact, taken.reasons
        assert content(place, taken.tree, "none") == b"secret"
        assert content(place, taken.tree, "closed/below/file") == b"deep"
        assert content(place, taken.tree, "listed/file") == b"listed"
        modes = {name: os.lstat(root / name).st_mode & 0o7777 for name in ("none", "closed", "listed")}
        assert modes == {"none": 0, "closed": 0o555, "listed": 0o600}
        content_of = load(place.objects(), taken.root)
        assert (content_of.mode(b"none", "file"), content_of.mode(b"closed/below", "directory")) == (0, 0)
        assert place.store().take().root == taken.root


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a file of somebody else")
def test_what_belongs_to_somebody_else_and_cannot_be_read_is_named():
    with a_place_for_anybody() as place:
        (place.root / "theirs").write_text("x")
        (place.root / "theirs").chmod(0o600)
        (place.root / "folder").mkdir(mode=0o700)
        with as_ordinary_user():
            taken = place.store().take()
            assert meta_of(place, taken.root).opaque == {b"theirs": "unreadable", b"folder": "unreadable"}
            assert not taken.exact


def test_links_are_text(place: Place, tmp_path: Path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("s")
    for name, target in (("abs", "/etc/passwd"), ("up", "../outside"), ("gone", "nowhere"), ("self", "self")):
        (place.root / name).symlink_to(target)
    tree = place.store().take().tree
    assert set(listed(place, tree).values()) == {"120000"}
    assert content(place, tree, "up") == b"../outside"


def settled(place: Place, store: SnapshotStore) -> None:
    for _ in range(2):
        settle()
        store.take()


def test_an_edit_of_the_same_size_in_the_same_tick_is_never_missed(place: Place):
    store = place.store()
    (place.root / "f").write_text("000")
    for number in range(200):
        (place.root / "f").write_text(f"{number:03d}")
        assert content(place, store.take().tree, "f") == b"%03d" % number


def test_a_forged_time_is_not_believed(place: Place):
    store, file = place.store(), place.root / "f"
    file.write_text("one")
    settled(place, store)
    before = file.stat()
    file.write_text("two")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert content(place, store.take().tree, "f") == b"two"


def test_times_far_away_change_nothing(place: Place):
    for name, when in (("old", 0), ("new", 4_000_000_000)):
        (place.root / name).write_text(name)
        os.utime(place.root / name, (when, when))
    store = place.store()
    taken = store.take()
    (place.root / "new").write_text("NEW")
    os.utime(place.root / "new", (4_000_000_000, 4_000_000_000))
    assert taken.exact
    assert content(place, store.take().tree, "new") == b"NEW"


def test_hard_links_are_kept_as_files(place: Place):
    (place.root / "a").write_text("x")
    os.link(place.root / "a", place.root / "b")
    assert listed(place, place.store().take().tree) == {"a": "100644", "b": "100644"}


def test_a_full_rehash_sees_what_a_mapped_page_hid(place: Place):
    """A page that stays dirty changes no time; so a scan after a call that may have left a writer reads all."""
    file = place.root / "f"
    file.write_bytes(b"a" * 4096)
    store = place.store()
    with open(file, "r+b") as opened, mmap.mmap(opened.fileno(), 4096) as mapped:
        mapped[0] = ord("b")
        settled(place, store)
        mapped[1] = ord("c")
        assert content(place, store.take(full_rehash=True).tree, "f")[:2] == b"bc"


def test_what_the_cache_remembers_survives_the_process_and_means_the_same(place: Place, repo: Repo):
    store = place.store()
    settled(place, store)
    taken = store.take()
    assert place.store().take() == taken
    repo.write({"d/b.txt": "changed"})
    assert place.store().take() == place.store().take(full_rehash=True) != taken


def test_a_store_that_was_made_anew_holds_everything_again(place: Place, repo: Repo):
    """The cache of the old store must not vouch for objects that the new one does not have."""
    store = place.store()
    settled(place, store)
    subprocess.run(["rm", "-rf", str(place.state / "objects")], check=True)
    store = place.store()
    store.verify(store.take().root)


@pytest.mark.parametrize("listing", [b"", b"\xff" * 40, b"\x00\x00\x00\x00\x00\x00Xxxxxxxx"])
def test_a_cache_that_says_nonsense_costs_a_full_scan(place: Place, listing: bytes):
    (place.root / "f").write_text("x")
    store = place.store()
    settled(place, store)
    taken, cache = store.take(), next(place.state.glob("cache/snapshot-*/tree-*"))
    kept = Scan.load(cache)
    assert kept is not None
    Scan(replace(kept.root, listing=listing, stats=b"", names=b"")).save(cache)
    assert place.store().take() == taken


def churn(stop: threading.Event, change: Callable[[int], None]) -> None:
    number = 0
    while not stop.is_set() and number < 1_000_000:
        number += 1
        change(number)


def test_a_tree_that_never_holds_still_is_not_called_exact(place: Place):
    (place.root / "log").write_bytes(b"x" * (8 << 20))
    stop = threading.Event()

    def grow(_: int) -> None:
        with open(place.root / "log", "ab") as file:
            file.write(b"x")

    writer = threading.Thread(target=churn, args=(stop, grow))
    writer.start()
    try:
        taken = place.store().take()
    finally:
        stop.set()
        writer.join()
    assert not taken.exact
    assert any("log" in reason for reason in taken.reasons)
    calm = place.store().take()
    assert calm.exact
    assert content(place, calm.tree, "log") == (place.root / "log").read_bytes()


def test_files_that_come_and_go_stop_nothing(place: Place):
    for number in range(200):
        (place.root / f"f{number}").write_text("x")
    stop = threading.Event()

    def flicker(number: int) -> None:
        path = place.root / f"f{number % 200}"
        path.unlink()
        path.write_text(str(number))

    writer = threading.Thread(target=churn, args=(stop, flicker))
    writer.start()
    try:
        store = place.store()
        roots = [store.take().root for _ in range(5)]
    finally:
        stop.set()
        writer.join()
    for root in roots:
        store.verify(root)
    assert len(listed(place, place.store().take().tree)) == 200


def test_a_tree_that_changed_once_is_looked_at_again(place: Place):
    """In a process of its own, where the first looks at the file each find it changed meanwhile."""
    (place.root / "log").write_bytes(b"x")
    (place.root / "other").write_bytes(b"y")

    def story() -> None:
        left = 3

        def meddle(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal left
            if event == "open" and arguments[0] == "log" and left > 0:
                left -= 1
                with open(place.root / "log", "ab") as file:
                    file.write(b"x")

        sys.addaudithook(meddle)
        taken = place.store().take()
        os._exit(0 if taken.exact and left == 0 and content(place, taken.tree, "log") == b"xxxx" else 1)

    assert os.waitpid(fork(story), 0)[1] == 0


def test_a_directory_that_turns_into_a_link_leads_nowhere(place: Place, tmp_path: Path):
    """In a process of its own, where it turns just before it is opened."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("OUTSIDE")
    for path in ("d/e", "f"):
        (place.root / path).mkdir(parents=True)
        (place.root / path / "file").write_text("inside")

    def story() -> None:
        def swap(event: str, arguments: tuple[object, ...]) -> None:
            if event == "open" and arguments[0] in ("e", "f"):
                path = place.root / ("d/e" if arguments[0] == "e" else "f")
                if not path.is_symlink():
                    path.rename(tmp_path / str(arguments[0]))
                    path.symlink_to(tmp_path / "outside")

        sys.addaudithook(swap)
        taken = place.store().take()
        found = listed(place, taken.tree)
        os._exit(0 if found == {"d/e": "120000", "f": "120000"} else 1)

    assert os.waitpid(fork(story), 0)[1] == 0


def test_what_git_lists_twice_is_counted_once(place: Place, repo: Repo):
    """A directory that ignores its own content is listed with that content besides."""
    repo.write({"tool-cache/.gitignore": "*\n", "tool-cache/out": "x"})
    assert place.store(ignored_max_files=2).take().exact
    assert not place.store(ignored_max_files=1).take().exact


def test_without_git_a_plain_directory_has_snapshots_too(place: Place, tmp_path: Path):
    (place.root / "f").write_text("x")
    objects = ObjectStore(place.state / "objects", env={"PATH": str(tmp_path)})
    store = SnapshotStore(
        objects, place.root, excluded=(".endstate",), limits=SnapshotLimits(), cache=place.state / "cache"
    )
    root = store.take().root
    (place.root / "f").write_text("y")
    (place.root / "g").mkdir()
    assert store.restore(root).exact
    assert place.picture() == {b"f": ("file", (place.root / "f").stat().st_mode & 0o7777, b"x")}


def test_a_workspace_that_is_gone_is_said(place: Place):
    store = place.store()
    os.rename(place.root, place.root.with_name("elsewhere"))
    with pytest.raises(StateError, match=r"not captured|not written|not made"):
        store.take()
