"""Back to a snapshot: exactly, never through a link, killed or not; and nothing that came after is lost."""

from __future__ import annotations

import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from endstate_action.config import SnapshotLimits
from endstate_action.errors import InputError, NotRestored, SnapshotDamaged
from endstate_action.state.snapshot import SnapshotStore
from endstate_action.state.snapshot.compare import Difference, Thing, load, save
from endstate_action.state.snapshot.meta import Meta
from endstate_action.state.snapshot.restore import Restoring
from endstate_action.system.process import fork
from endstate_action.system.tree_format import Change
from tests.support.nasty import add_socket, furnish, outside_picture, ruin
from tests.support.own_disk import on_a_disk_of_its_own
from tests.support.repos import Repo
from tests.support.trees import a_deep_place, as_ordinary_user
from tests.support.workspaces import Place, a_place_for_anybody, as_loose_objects, loose_file, settle, swap_in

needs_another_user = pytest.mark.skipif(os.geteuid() != 0, reason="needs files of somebody else")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "ws").mkdir()
    return Place(tmp_path / "ws")


def write(place: Place, files: dict[str, str]) -> None:
    Repo(place.root).write(files)


def theirs(place: Place, name: str, mode: int) -> None:
    """A directory with a file, of another user than the run's."""
    write(place, {f"{name}/f": "theirs"})
    (place.root / name).chmod(mode)


def blob_of(place: Place, content: bytes) -> str:
    return place.objects().write("blob", content)


def test_whatever_was_done_is_undone(place: Place):
    furnish(place.root)
    store = place.store()
    taken = store.take()
    before, outside = place.picture(), outside_picture(place.root)
    ruin(place.root)
    add_socket(place.root)
    restored = store.restore(taken.root)
    assert place.picture() == before
    assert outside_picture(place.root) == outside
    assert restored.exact, restored.reasons
    assert store.unfinished() is None
    assert place.store().take().root == taken.root


def test_what_a_restore_replaced_is_kept_and_can_be_had_again(place: Place):
    furnish(place.root)
    store = place.store()
    taken = store.take()
    ruin(place.root)
    ruined = place.picture()
    kept = store.restore(taken.root).kept
    assert kept is not None
    place.store().restore(kept)
    assert place.picture() == ruined


def test_as_an_ordinary_user_it_is_undone_too(tmp_path: Path):
    with a_place_for_anybody() as place:
        os.chmod(place.root.parent, 0o777)
        with as_ordinary_user():
            furnish(place.root)
            store = place.store()
            taken = store.take()
            assert taken.exact, taken.reasons
        before, outside = place.picture(), outside_picture(place.root)
        with as_ordinary_user():
            ruin(place.root)
            restored = store.restore(taken.root)
        assert place.picture() == before
        assert outside_picture(place.root) == outside
        assert restored.exact, restored.reasons
        with as_ordinary_user():
            kept = restored.kept
            assert kept
            assert store.restore(kept).kept == taken.root


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_what_root_restores_belongs_to_the_workspaces_owner():
    with a_place_for_anybody() as place:
        with as_ordinary_user():
            write(place, {"d/e/f": "x", "g": "y"})
            (place.root / "l").symlink_to("g")
            os.mkfifo(place.root / "p")
        store = place.store()
        root = store.take().root
        for name in ("g", "l", "p"):
            (place.root / name).unlink()
        shutil.rmtree(place.root / "d")
        store.restore(root)
        owners = {path.name: path.lstat().st_uid for path in place.root.rglob("*") if ".endstate" not in path.parts}
        assert owners == dict.fromkeys(("d", "e", "f", "g", "l", "p"), 65534)


@pytest.mark.parametrize("path", [b"d/file", b"d/inner/file"])
def test_nothing_is_written_removed_or_made_through_a_link(place: Place, tmp_path: Path, path: bytes):
    """Even where the link was not there yet when the differences were found."""
    outside = tmp_path / "outside"
    (outside / "inner").mkdir(parents=True)
    for name in ("file", "inner/file"):
        (outside / name).write_text("outside")
        (outside / name).chmod(0o644)
    store, objects = place.store(), place.objects()
    target = load(objects, store.take().root)
    (place.root / "d").symlink_to(outside)
    file = Thing("file", 0o600, objects.write("blob", b"new"))
    other_mode, folder = Thing("file", 0o644, file.id), Thing("directory", 0o700)
    for old, new in ((None, file), (file, None), (file, folder), (None, folder), (other_mode, file)):
        restoring = Restoring(objects, place.root, objects.path / "restore")
        with restoring.prepared([Difference(path, old, new)], target, (), "x") as work, pytest.raises(NotRestored):
            work.run()
        assert {str(p.relative_to(outside)): p.read_text() for p in outside.rglob("*") if p.is_file()} == {
            "file": "outside",
            "inner/file": "outside",
        }
        assert [stat.S_IMODE((outside / name).stat().st_mode) for name in ("file", "inner/file")] == [0o644] * 2


SWAPS: dict[str, tuple[Callable[[Path], Any], Callable[[Path], Any]]] = {
    "file to directory": (lambda p: p.write_text("x"), lambda p: (p / "a").mkdir(parents=True)),
    "directory to file": (lambda p: (p / "a").mkdir(parents=True), lambda p: p.write_text("x")),
    "directory to link": (lambda p: (p / "a").mkdir(parents=True), lambda p: p.symlink_to("..")),
    "link to directory": (lambda p: p.symlink_to("a"), lambda p: (p / "a").mkdir(parents=True)),
    "link to file": (lambda p: p.symlink_to("a"), lambda p: p.write_text("x")),
    "file to link": (lambda p: p.write_text("x"), lambda p: p.symlink_to("/etc/passwd")),
    "fifo to file": (os.mkfifo, lambda p: p.write_text("x")),
    "file to fifo": (lambda p: p.write_text("x"), os.mkfifo),
    "fifo to directory": (os.mkfifo, lambda p: p.mkdir()),
    "empty to full": (lambda p: p.mkdir(), lambda p: (p / "a" / "b").mkdir(parents=True)),
    "present to absent": (lambda p: p.write_text("x"), lambda p: None),
    "absent to present": (lambda p: None, lambda p: p.write_text("x")),
}


@pytest.mark.parametrize("swap", SWAPS)
@pytest.mark.parametrize("direction", [1, -1])
def test_one_kind_of_thing_in_the_place_of_another_is_put_right(place: Place, swap: str, direction: int):
    first, second = SWAPS[swap][::direction]
    write(place, {"above/beside": "y"})
    target = place.root / "above" / "thing"
    first(target)
    store = place.store()
    root, before = store.take().root, place.picture()
    swap_in(target, second)
    assert not store.is_at(root)
    store.restore(root)
    assert place.picture() == before
    assert store.is_at(root)


def test_what_is_right_already_is_not_touched(place: Place):
    write(place, {"a": "1", "d/b": "2", "d/c": "3"})
    store = place.store()
    root = store.take().root
    (place.root / "d" / "c").write_text("other")
    before = {name: (place.root / name).stat() for name in ("a", "d/b")}
    assert store.restore(root).kept is not None
    assert {name: (place.root / name).stat() for name in before} == before
    assert store.restore(root).kept is None


def test_only_the_mode_is_changed_where_only_that_differs(place: Place):
    write(place, {"a": "1", "d/b": "2"})
    store = place.store()
    root, inode = store.take().root, (place.root / "a").stat().st_ino
    (place.root / "a").chmod(0o700)
    (place.root / "d").chmod(0o700)
    store.restore(root)
    assert (place.root / "a").stat().st_ino == inode
    assert store.is_at(root)


def test_a_change_of_all_modes_is_undone(place: Place):
    """Then the usual mode itself is another one."""
    write(place, {f"d{n % 3}/f{n}": str(n) for n in range(30)})
    store = place.store()
    root, before = store.take().root, place.picture()
    subprocess.run("chmod -R g+w,o= .", shell=True, cwd=place.root, check=True)
    store = place.store()
    store.restore(root)
    assert place.picture() == before


def test_what_a_call_created_is_removed_whatever_ignore_rules_say(place: Place):
    repo = Repo(place.root)
    repo.git("init", "-q")
    repo.commit({"a": "1"})
    store = place.store()
    root, before = store.take().root, place.picture()
    repo.write({".gitignore": "*\n", "node_modules/x/y": "z", "b": "2"})
    store.restore(root)
    assert place.picture() == before


@pytest.mark.parametrize("keep", [True, False])
def test_what_no_snapshot_could_hold_is_moved_aside_if_it_is_wanted(place: Place, keep: bool):
    repo = Repo(place.root)
    repo.git("init", "-q")
    repo.commit({"a": "1", ".gitignore": "node_modules/\n"})
    store = place.store(ignored_max_files=2, file_max_mb=1)
    root, before = store.take().root, place.picture()
    repo.write({"node_modules/deep/x": "0", "node_modules/y": "1", "node_modules/z": "2", "big/file": "x" * (2 << 20)})
    restored = store.restore(root, keep=keep)
    assert place.picture() == before
    assert restored.exact
    moved = {path.name: path for path in restored.moved}
    if not keep:
        assert restored.kept is None
        assert moved == {}
    else:
        assert (moved["node_modules"] / "deep" / "x").read_text() == "0"
        assert (moved["big"] / "file").stat().st_size == 2 << 20
    assert not os.listdir(place.state / "objects" / "restore" / "staging")


@dataclass
class LeftOut:
    store: SnapshotStore
    root: str
    path: Path


@pytest.fixture
def left_out(place: Place) -> LeftOut:
    """An ignored directory for which there was no room, and a file over the cap."""
    repo = Repo(place.root)
    repo.git("init", "-q")
    repo.commit({"a": "1", ".gitignore": "node_modules/\n"})
    repo.write({f"node_modules/p{n}/x": str(n) for n in range(5)})
    store = place.store(ignored_max_files=2)
    root = store.take().root
    settle()
    repo.write({"a": "2", "b": "3"})
    return LeftOut(store, root, place.root / "node_modules")


def test_what_was_left_out_is_left_alone(left_out: LeftOut):
    restored = left_out.store.restore(left_out.root)
    assert restored.exact, restored.reasons
    assert len(list(left_out.path.iterdir())) == 5


@pytest.mark.parametrize(
    "change",
    [
        lambda path: (path / "p3" / "x").write_text("changed"),
        lambda path: (path / "p3" / "new").write_text("new"),
        lambda path: (path / "p3" / "x").unlink(),
        lambda path: (path / "p3" / "x").chmod(0o600),
        lambda path: os.utime((path / "p3" / "x"), (1, 1)),
        shutil.rmtree,
    ],
)
def test_that_what_was_left_out_has_changed_is_said(left_out: LeftOut, change: Callable[[Path], None]):
    change(left_out.path)
    for _ in range(2):
        restored = left_out.store.restore(left_out.root)
        assert restored.reasons == ("node_modules was not kept and has changed since",)
        assert not restored.exact


def test_that_it_has_changed_is_said_also_after_a_restore_has_looked(left_out: LeftOut):
    other = left_out.store.take().root
    settle()
    (left_out.path / "p3" / "x").write_text("changed")
    for root in (left_out.root, other):
        assert left_out.store.restore(root).left == ("node_modules was not kept and has changed since",)


def test_where_nobody_knows_whether_it_changed_that_is_said(left_out: LeftOut, place: Place):
    """As on another machine, where all else may be what it was: a second look knows no more."""
    shutil.rmtree(place.state / "objects" / "taken")
    for _ in range(2):
        restored = left_out.store.restore(left_out.root)
        assert restored.reasons == ("node_modules was not kept and may differ here",)
        assert restored.left == (), "what was done elsewhere has left nothing here"


@needs_another_user
def test_what_is_closed_to_the_run_was_closed_to_its_calls_too():
    """So it hinders nothing, and is named: what others did in it is not undone."""
    with a_place_for_anybody() as place:
        theirs(place, "data", 0o700)
        with as_ordinary_user():
            store = place.store()
            root = store.take().root
            settle()
            write(place, {"log": "1"})
            restored = store.restore(root)
        assert not (place.root / "log").exists()
        assert (place.root / "data" / "f").read_text() == "theirs"
        assert restored.left == ()
        assert restored.reasons == ("data was not kept; it is closed to the user of this run, and so to its calls",)


@needs_another_user
def test_what_cannot_be_listed_but_entered_may_have_been_changed():
    """There may be something in it that everybody can write."""
    with a_place_for_anybody() as place:
        theirs(place, "data", 0o711)
        with as_ordinary_user():
            store = place.store()
            root = store.take().root
            settle()
            restored = store.restore(root)
        unseen = "data was not kept, and the user of this run cannot see whether it has changed since"
        assert restored.left == restored.reasons == (unseen,)


@needs_another_user
def test_what_was_open_since_may_have_been_changed():
    with a_place_for_anybody() as place:
        theirs(place, "data", 0o700)
        with as_ordinary_user():
            store = place.store()
            root = store.take().root
        settle()
        (place.root / "data").chmod(0o777)
        (place.root / "data").chmod(0o700)
        with as_ordinary_user():
            restored = store.restore(root)
        assert restored.left == restored.reasons == ("data was not kept and has changed since",)


@needs_another_user
@pytest.mark.parametrize("mode", [0o755, 0o700], ids=["kept", "closed"])
def test_what_the_run_may_not_remove_stays_and_all_else_is_put_back(mode: int):
    with a_place_for_anybody() as place:
        theirs(place, "before", 0o755)
        with as_ordinary_user():
            write(place, {"a": "1"})
            store = place.store()
            root = store.take().root
            (place.root / "before").rename(place.root / "moved")
            write(place, {"a": "2", "log": "1"})
        (place.root / "moved").chmod(mode)
        for _ in range(2):
            with as_ordinary_user():
                restored = place.store().restore(root)
                assert restored.kept
                replaced = place.store().replaced(restored.kept, restored)
            assert (place.root / "moved" / "f").read_text() == "theirs"
            assert ((place.root / "a").read_text(), (place.root / "before" / "f").read_text()) == ("1", "theirs")
            assert not (place.root / "log").exists()
            stays = "moved is still there, since the user of this run may not remove it"
            assert restored.left == restored.reasons == (stays,)
            assert not [name for name in replaced if name.startswith("moved")]
            assert place.store().unfinished() is None


@needs_another_user
def test_what_can_be_moved_but_not_removed_is_aside():
    """A directory of ours with one of somebody else in it."""
    with a_place_for_anybody() as place:
        with as_ordinary_user():
            write(place, {"ours/g": "1"})
        theirs(place, "ours/build", 0o755)
        before = place.picture()
        for _ in range(2):
            with as_ordinary_user():
                store = place.store()
                root = store.take().root
                (place.root / "ours").rename(place.root / "moved")
                restored = store.restore(root)
            assert restored.exact, restored.reasons
            assert place.picture() == before
        aside = place.state / "objects" / "restore" / "aside"
        assert [found.read_text() for found in aside.rglob("f")] == ["theirs"], "the second one was made by us"


@needs_another_user
@pytest.mark.parametrize("name", ["their/f", "mode"])
def test_where_the_run_may_not_put_something_back_its_path_is_named(name: str):
    with a_place_for_anybody() as place:
        theirs(place, "their", 0o755)
        (place.root / "mode").write_text("x")
        with as_ordinary_user():
            root = place.store().take().root
        (place.root / "their" / "f").unlink() if name == "their/f" else (place.root / "mode").chmod(0o600)
        (place.root / "mode").chmod(0o755 if name == "mode" else 0o644)
        with as_ordinary_user(), pytest.raises(NotRestored) as caught:
            place.store().restore(root)
        assert str(caught.value).endswith(f" at {name}. What was there has been kept.")
        subprocess.run(["chown", "-R", "65534:65534", str(place.root)], check=True)
        with as_ordinary_user():
            place.store().finish()
            assert place.store().take().root == root


def test_a_large_file_is_left_alone(place: Place):
    (place.root / "big").write_bytes(b"x" * (2 << 20))
    store = place.store(file_max_mb=1)
    root = store.take().root
    settle()
    write(place, {"big": "small now", "new": "x"})
    restored = store.restore(root)
    assert (place.root / "big").read_text() == "small now"
    assert not (place.root / "new").exists()
    assert restored.left == restored.reasons == ("big was not kept and has changed since",)


def test_what_is_excluded_is_not_touched(place: Place):
    write(place, {"data/set": "1", "data/a": "2"})
    store = place.store(exclude=("data/set",))
    root = store.take().root
    write(place, {"data/set": "changed", "data/a": "changed"})
    store.restore(root)
    assert (place.root / "data" / "set").read_text() == "changed"
    assert (place.root / "data" / "a").read_text() == "2"


@pytest.mark.parametrize("path", ["../x", "/abs/../..", "a/../../b"])
def test_only_what_lies_in_the_workspace_can_be_excluded(place: Place, path: str):
    with pytest.raises(InputError, match="cannot be left out"):
        place.store(exclude=(path,))


def test_a_missing_object_is_found_before_anything_is_changed(place: Place):
    write(place, {"a": "precious", "b": "other"})
    store = place.store()
    root = store.take().root
    write(place, {"a": "changed", "b": "changed", "c": "new"})
    now = place.picture()
    loose_file(as_loose_objects(place.objects()), blob_of(place, b"precious")).unlink()
    store = place.store()
    with pytest.raises(SnapshotDamaged, match=r"is missing.*was not changed"):
        store.restore(root)
    assert place.picture() == now
    assert store.unfinished() is None
    with pytest.raises(SnapshotDamaged, match="not whole"):
        store.verify(root)


@pytest.mark.parametrize("damage", [b"", b"junk", None])
def test_a_damaged_object_is_found_before_anything_is_changed(place: Place, damage: bytes | None):
    write(place, {"a": "precious" * 1000, "b": "other"})
    store = place.store()
    root = store.take().root
    write(place, {"a": "changed", "b": "changed", "c": "new"})
    now, objects = place.picture(), as_loose_objects(place.objects())
    object_file = loose_file(objects, blob_of(place, b"precious" * 1000))
    object_file.chmod(0o600)
    data = object_file.read_bytes()
    flipped = data[:20] + bytes([data[20] ^ 1]) + data[21:]
    object_file.write_bytes(flipped if damage is None else damage)
    store = place.store()
    with pytest.raises(SnapshotDamaged, match="was not changed"):
        store.confirm(root)
    with pytest.raises(SnapshotDamaged, match="was not changed"):
        store.restore(root)
    assert place.picture() == now
    assert store.unfinished() is None


@pytest.mark.parametrize("root", ["", "x", "../../x", "0" * 40, "HEAD"])
def test_a_root_that_is_none_is_refused(place: Place, root: str):
    with pytest.raises(SnapshotDamaged, match=r"named by no id|missing"):
        place.store().restore(root)


def test_another_object_is_no_snapshot(place: Place):
    write(place, {"a": "1"})
    store = place.store()
    tree = store.take().tree
    for name in (tree, blob_of(place, b"1")):
        with pytest.raises(SnapshotDamaged):
            store.restore(name)


HOSTILE: dict[str, list[tuple[int, bytes, bytes | None]]] = {
    "above": [(0o100644, b"..", b"x")],
    "slash": [(0o100644, b"a/../../x", b"x")],
    "absolute": [(0o100644, b"/abs", b"x")],
    "empty name": [(0o100644, b"", b"x")],
    "state": [(0o40000, b".endstate", None)],
    "git": [(0o40000, b".git", None)],
    "gitlink": [(0o160000, b"sub", b"x")],
    "device": [(0o20644, b"dev", b"x")],
    "link to nothing": [(0o120000, b"l", b"")],
    "link with NUL": [(0o120000, b"l", b"a\0b")],
    "twice": [(0o100644, b"a", b"x"), (0o100644, b"a", b"y")],
}


def names_around(place: Place) -> list[str]:
    """What lies in the workspace and beside it, but for what is in the parts of the state directory."""
    paths = (path.relative_to(place.root.parent) for path in place.root.parent.rglob("*"))
    inside = (place.state / "objects", place.state / "cache")
    return sorted(str(p) for p in paths if not any((place.root.parent / p).is_relative_to(i) for i in inside))


@pytest.mark.parametrize("what", HOSTILE)
def test_a_snapshot_that_would_lead_elsewhere_changes_nothing(place: Place, what: str):
    (place.root / ".git").mkdir()
    write(place, {"a": "1", ".git/config": "x"})
    store, objects = place.store(), place.objects()
    inner = objects.write("tree", b"100644 planted\0" + bytes.fromhex(objects.write("blob", b"planted")))
    tree = b"".join(
        b"%o %s\0" % (mode, name) + bytes.fromhex(inner if data is None else objects.write("blob", data))
        for mode, name, data in HOSTILE[what]
    )
    root = save(objects, objects.write("tree", tree), Meta(), "")
    objects.sync()
    before = names_around(place)
    with pytest.raises(SnapshotDamaged):
        store.restore(root)
    assert names_around(place) == before
    assert (place.root / "a").read_text() == "1"


def test_differences_are_told_path_by_path(place: Place):
    write(place, {"a": "1", "d/b": "2", "gone/x": "3", "gone/y/z": "4"})
    (place.root / "empty").mkdir()
    (place.root / "m").write_text("m")
    store = place.store()
    one = store.take().root
    shutil.rmtree(place.root / "gone")
    (place.root / "empty").rmdir()
    (place.root / "hollow").mkdir()
    (place.root / "m").chmod(0o700)
    write(place, {"a": "changed", "new/x": "5"})
    other = store.take().root
    assert store.difference(one, other) == [
        Change(b"a", "changed"),
        Change(b"empty", "removed"),
        Change(b"gone/x", "removed"),
        Change(b"gone/y/z", "removed"),
        Change(b"hollow", "added"),
        Change(b"m", "changed"),
        Change(b"new/x", "added"),
    ]
    assert store.difference(one, one) == []


def test_where_no_restore_was_interrupted_there_is_nothing_to_finish(place: Place):
    assert place.store().finish() is None


def test_a_journal_that_cannot_be_read_is_said(place: Place):
    store = place.store()
    (place.state / "objects" / "restore").mkdir()
    (place.state / "objects" / "restore" / "journal").write_text("junk")
    with pytest.raises(NotRestored, match="cannot be read"):
        store.finish()


def test_deep_trees_are_removed(place: Place):
    with a_deep_place() as top:
        deep = Place(top)
        store = deep.store()
        root = store.take().root
        subprocess.run([sys.executable, "-c", DIG], cwd=top, check=True)
        store.restore(root)
        assert deep.picture() == {}


DIG = """
import os
for n in range(900):
    os.mkdir("d"); os.mkdir("e"); os.chdir("d")
open("bottom", "w").close()
"""


class GitFiles:
    """A git state of one file, as a seam: captured as a tree, and put back."""

    base = None

    def __init__(self, place: Place) -> None:
        self.file = place.root / ".git" / "HEAD"
        self.objects = place.objects()

    def capture(self) -> tuple[str, frozenset[str]]:
        blob = self.objects.write("blob", self.file.read_bytes())
        return self.objects.write("tree", b"100644 HEAD\0" + bytes.fromhex(blob)), frozenset({blob})

    def restore(self, tree: str, /) -> tuple[str, ...]:
        self.file.write_bytes(self.objects.read(self.objects.tree_entries(tree)[0].id)[1])
        return ()


def with_git_state(place: Place, git_state: GitFiles) -> SnapshotStore:
    return SnapshotStore(
        git_state.objects,
        place.root,
        excluded=(".endstate", ".git"),
        limits=SnapshotLimits(),
        cache=place.state / "cache",
        git_state=git_state,
    )


def test_the_git_state_goes_back_with_the_tree(place: Place):
    write(place, {"a": "1", ".git/HEAD": "one"})
    git_state = GitFiles(place)
    store = with_git_state(place, git_state)
    taken = store.take()
    assert taken.tips == {blob_of(place, b"one")}
    write(place, {".git/HEAD": "two"})
    assert not store.is_at(taken.root)
    assert store.restore(taken.root).kept is not None
    assert git_state.file.read_text() == "one"


def test_a_git_state_that_does_not_come_back_is_not_called_restored(place: Place):
    class Stubborn(GitFiles):
        def restore(self, tree: str, /) -> tuple[str, ...]:
            return ()

    write(place, {"a": "1", ".git/HEAD": "one"})
    store = with_git_state(place, Stubborn(place))
    root = store.take().root
    write(place, {".git/HEAD": "two"})
    with pytest.raises(NotRestored, match="git state"):
        store.restore(root)
    assert store.unfinished() == root


def test_what_of_the_git_state_cannot_come_back_is_told_and_the_rest_is_restored(place: Place):
    """A branch that was deleted upstream since, say: the tree is as it was, and that is exact for nobody."""

    class Lossy(GitFiles):
        def restore(self, tree: str, /) -> tuple[str, ...]:
            return ("The branch is gone.",)

    write(place, {"a": "1", ".git/HEAD": "one"})
    store = with_git_state(place, Lossy(place))
    root = store.take().root
    write(place, {"a": "2", ".git/HEAD": "two"})

    restored = store.restore(root)

    assert (place.root / "a").read_text() == "1"
    assert (restored.exact, restored.reasons) == (False, ("The branch is gone.",))
    assert store.unfinished() is None


def test_a_workspace_that_somebody_writes_to_meanwhile_is_not_called_restored(place: Place):
    class Meddling(GitFiles):
        def restore(self, tree: str, /) -> tuple[str, ...]:
            (place.root / "a").write_text("somebody was here")
            return ()

    write(place, {"a": "1", ".git/HEAD": "one"})
    store = with_git_state(place, Meddling(place))
    root = store.take().root
    write(place, {"a": "2"})
    with pytest.raises(NotRestored, match="a came out otherwise"):
        store.restore(root)
    assert store.unfinished() == root
    store = with_git_state(place, GitFiles(place))
    finished = store.finish()
    assert finished is not None
    assert store.difference(root, str(finished.kept)) == [Change(b"a", "changed")]
    assert store.is_at(root)
    assert store.unfinished() is None


CHANGING = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.symlink", "os.chown", "os.truncate")


def killed_after(operations: int, story: Callable[[], object]) -> bool:
    """Run it in a process of its own that gets SIGKILL after so many changes on the disk; whether it got that far."""

    def counted() -> None:
        left = operations

        def count(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal left
            opens_to_write = event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_CREAT
            if event in CHANGING or opens_to_write:
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        story()
        os._exit(0)

    return ended_by_kill(fork(counted))


def killed_at(seconds: float, story: Callable[[], object]) -> bool:
    def told() -> None:
        story()
        os._exit(0)

    child = fork(told)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    return ended_by_kill(child)


def ended_by_kill(child: int) -> bool:
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, f"the restore failed: {status}"
    return os.WIFSIGNALED(status)


def restore_or_finish(place: Place, root: str) -> None:
    """What every attempt does: conclude what was begun, then make sure."""
    store = place.store()
    store.finish()
    store.restore(root)


@contextmanager
def ruined(place: Place) -> Iterator[str]:
    """The root of a workspace in which everything was changed since; on leaving, all is as it was."""
    furnish(place.root)
    root, before, outside = place.store().take().root, place.picture(), outside_picture(place.root)
    ruin(place.root)
    after = place.picture()
    kept = place.store().take().root
    yield root
    restore_or_finish(place, root)
    assert place.picture() == before
    assert outside_picture(place.root) == outside
    assert place.store().take().root == root
    # A roll-back never destroys.
    place.store().restore(kept)
    assert place.picture() == after


@pytest.mark.parametrize("kills", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_a_restore_killed_after_any_operation_converges(place: Place, kills: int, seed: int):
    chance = random.Random(seed * 10 + kills)
    with ruined(place) as root:
        for _ in range(kills):
            killed_after(chance.randrange(400), lambda: restore_or_finish(place, root))


@pytest.mark.recovery
@pytest.mark.parametrize("first", range(0, 600, 20))
def test_a_restore_killed_after_every_so_many_operations_converges(place: Place, first: int):
    with ruined(place) as root:
        for operations in range(first, first + 20, 3):
            killed_after(operations, lambda: restore_or_finish(place, root))


def test_a_workspace_that_is_neither_the_one_nor_the_other_is_on_record(place: Place):
    """Whatever a kill leaves between the two, the next attempt knows where it was going."""
    write(place, {f"d{n}/file": str(n) for n in range(6)})
    root, target = place.store().take().root, place.picture()
    for n in range(6):
        swap_in(place.root / f"d{n}", lambda path: path.write_text("changed"))
    changed, between = place.picture(), place.store().take().root
    met = 0
    for operations in range(2000):
        if not killed_after(operations, lambda: place.store().restore(root)):
            break
        if place.picture() not in (changed, target):
            met += 1
            assert place.store().unfinished() == root
        restore_or_finish(place, between)
    assert met > 5


def test_kills_do_meet_a_restore_under_way(place: Place):
    """Or the tests above would prove nothing."""
    with ruined(place) as root:
        met = 0
        for operations in range(20, 2000, 60):
            if not killed_after(operations, lambda: restore_or_finish(place, root)):
                break
            met += place.store().unfinished() == root
            ruin_again(place)
        assert met


def ruin_again(place: Place) -> None:
    for name in ("many", "swap-dir", "turned-link"):
        swap_in(place.root / name, lambda path: path.write_text("again"))


@pytest.mark.parametrize("seed", range(6))
def test_a_restore_killed_at_any_time_converges(place: Place, seed: int):
    chance = random.Random(seed)
    with ruined(place) as root:
        for _ in range(3):
            killed_at(chance.uniform(0.005, 0.25), lambda: restore_or_finish(place, root))


@pytest.mark.parametrize("seed", range(4))
def test_a_snapshot_killed_at_any_time_leaves_the_store_usable(place: Place, seed: int):
    furnish(place.root)
    chance = random.Random(seed)
    for _ in range(3):
        killed_after(chance.randrange(120), lambda: place.store().take())
    store = place.store()
    taken = store.take()
    store.verify(taken.root)
    shutil.rmtree(place.state)
    assert place.store().take().root == taken.root


ELSEWHERE = """
import os, sys
from pathlib import Path
from tests.support.workspaces import Place
from endstate_action.errors import DiskFull, StateError
place = Place(Path(sys.argv[1]))
if sys.argv[2] == "mount":
    try:
        place.store()
    except StateError as error:
        sys.exit("refused" if "another file system" in str(error) else str(error))
    sys.exit("accepted")
(place.root / "a").write_bytes(os.urandom(600_000))
(place.root / "b").write_bytes(b"b")
store = place.store()
root, before = store.take().root, place.picture()
(place.root / "a").write_bytes(b"")
(place.root / "b").write_bytes(b"new")
with open(place.root / ".endstate" / "filler", "wb") as filler:
    while os.statvfs(place.root).f_bavail * os.statvfs(place.root).f_bsize > 300_000:
        filler.write(bytes(4096))
        filler.flush()
ruined = place.picture()
try:
    store.restore(root)
except DiskFull as error:
    assert "nothing was changed" in str(error), error
else:
    sys.exit("it fitted")
assert place.picture() == ruined
os.unlink(place.root / ".endstate" / "filler")
assert store.restore(root).exact
assert place.picture() == before
sys.exit("refused, then restored")
"""


def test_a_state_directory_on_another_mount_is_refused_at_the_start(place: Place):
    done = on_a_disk_of_its_own(place.state, "size=8m", ELSEWHERE, place.root, "mount")
    assert done.stderr.strip() == "refused"


def test_a_full_disk_is_met_before_anything_is_changed(place: Place):
    done = on_a_disk_of_its_own(place.root, "size=8m", ELSEWHERE, place.root, "full")
    assert done.stderr.strip() == "refused, then restored"


def test_modes_survive_a_umask(place: Place):
    write(place, {"d/a": "1"})
    (place.root / "d" / "a").chmod(0o666)
    (place.root / "d").chmod(0o2775)
    store = place.store()
    root = store.take().root
    shutil.rmtree(place.root / "d")
    old = os.umask(0o077)
    try:
        store.restore(root)
    finally:
        os.umask(old)
    assert stat.S_IMODE((place.root / "d" / "a").stat().st_mode) == 0o666
    assert stat.S_IMODE((place.root / "d").stat().st_mode) == 0o2775
