"""Pruning the store: what a wanted snapshot needs stays and can be restored, the rest goes, and kills do no harm."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from endstate_action.config import SnapshotLimits
from endstate_action.errors import EndstateError, NotRestored, StateError
from endstate_action.state.snapshot import ObjectStore, SnapshotStore
from endstate_action.state.snapshot.git_state import GitState
from endstate_action.state.snapshot.pack import apply, pack
from endstate_action.state.snapshot.prune import named_in, prune
from endstate_action.system.process import fork
from tests.support.git_states import shown
from tests.support.repos import Repo
from tests.support.workspaces import picture, settle

pytestmark = pytest.mark.slow

LARGE = bytes(3 << 20)


class Place:
    """A repository under snapshots, as a new process finds it each time."""

    def __init__(self, root: Path) -> None:
        self.repo = Repo(root)
        self.base = self.repo.git("rev-parse", "HEAD")
        self.state = root / ".endstate"
        self.state.mkdir(exist_ok=True)
        (self.state / ".gitignore").write_text("*\n")

    @property
    def objects(self) -> ObjectStore:
        return ObjectStore(self.state / "objects", env=os.environ)

    def store(self) -> SnapshotStore:
        git, objects = self.repo.path / ".git", self.objects
        objects.import_base(git, self.base)
        git_state = GitState(objects, git, git, self.base, self.state / "cache")
        return SnapshotStore(
            objects,
            self.repo.path,
            excluded=(".git", ".endstate"),
            limits=SnapshotLimits(file_max_mb=10),
            cache=self.state / "cache",
            git_state=git_state,
        )

    def take(self, **files: str | bytes) -> str:
        self.repo.write(files)
        return self.store().take().root

    def prune(self, *roots: str, bases: tuple[str, ...] | None = None) -> None:
        prune(self.objects, self.state / "cache", roots, (self.base,) if bases is None else bases)

    def seen(self) -> tuple[object, ...]:
        told = shown(self.repo)
        return picture(self.repo.path), told["head"], told["refs"], told["index"], told["logs"], told["fsck"]

    def bytes(self) -> int:
        return sum(p.stat().st_size for p in (self.state / "objects").rglob("*") if p.is_file())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    repo = Repo(tmp_path / "ws")
    repo.path.mkdir()
    repo.git("init", "--quiet", "--initial-branch=main", "--template=")
    repo.commit({"a.txt": "one\n", "d/b.txt": "two\n"})
    return Place(repo.path)


def three(place: Place) -> tuple[list[str], list[tuple[object, ...]]]:
    """Three snapshots, with a commit of the agent, staged content and a large file in between; and what they hold."""
    roots, seen = [place.take()], [place.seen()]
    place.repo.commit({"a.txt": "committed\n", "large": LARGE}, "of the agent")
    place.repo.write({"staged": "staged\n"})
    place.repo.git("add", "staged")
    (place.repo.path / "staged").unlink()
    roots.append(place.take(untracked=os.urandom(3 << 20)))
    seen.append(place.seen())
    place.repo.git("checkout", "--quiet", "--orphan", "new")
    roots.append(place.take(untracked=os.urandom(3 << 20)))
    seen.append(place.seen())
    return roots, seen


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2), (0, 1, 2), ()])
def test_what_is_wanted_can_be_restored_and_the_rest_is_gone(place: Place, wanted: tuple[int, ...]):
    roots, seen = three(place)
    place.prune(*(roots[n] for n in wanted))
    assert place.objects.missing(roots) == {root for n, root in enumerate(roots) if n not in wanted}
    for n in wanted:
        # Nothing but the store is left to restore from.
        shutil.rmtree(place.repo.path / ".git" / "objects")
        assert place.store().restore(roots[n]).root == roots[n]
        assert place.seen() == seen[n]


def test_a_store_of_which_nothing_is_wanted_is_nearly_empty(place: Place):
    three(place)
    place.prune(bases=())
    assert place.bytes() < 4096
    root = place.take()
    place.store().verify(root)


def test_nothing_that_was_remembered_is_believed_afterwards(place: Place):
    """The cache vouches for objects that may be gone."""
    place.take(b="two", c="three")
    settle()
    place.take()
    caches = {p.name for p in (place.state / "cache").glob("snapshot-*")}
    place.prune()
    assert not caches & {p.name for p in (place.state / "cache").glob("snapshot-*")}
    root = place.take()
    place.store().verify(root)
    (place.repo.path / "b").unlink()
    place.store().restore(root)
    assert (place.repo.path / "b").read_text() == "two"


def test_a_pack_that_came_from_elsewhere_is_taken_apart(place: Place, tmp_path: Path):
    """It holds differences, between what is wanted and what is not."""
    lines = [f"line {n}\n" for n in range(4000)]
    place.repo.write({"t": "".join(lines)})
    place.repo.commit()
    place.base = place.repo.git("rev-parse", "HEAD")
    first = place.take(t="".join([*lines, "first\n"]))
    both = place.take(t="".join([*lines, "second\n"]), u="".join([*lines, "third\n"]))
    store = place.store()
    sent = pack(place.objects, both, [store.take().root, first], place.base)
    Repo(tmp_path).git("clone", "--quiet", "--depth=1", f"file://{place.repo.path}", "other")
    other = Place(tmp_path / "other")
    other.store()
    apply(other.objects, sent, other.base)
    other.prune(first)
    assert other.objects.missing([first, both]) == {both}
    other.store().restore(first)
    assert (other.repo.path / "t").read_text().endswith("first\n")


def test_an_interrupted_restore_keeps_both_of_its_snapshots(place: Place):
    roots, seen = three(place)
    (place.state / "objects" / "restore").mkdir(exist_ok=True)
    journal = place.state / "objects" / "restore" / "journal"
    journal.write_text(f'{{"root": "{roots[0]}", "kept": "{roots[1]}"}}')
    place.prune()
    assert place.objects.missing(roots) == {roots[2]}
    assert place.store().finish() is not None
    assert place.seen() == seen[0]
    journal.write_text("?")
    with pytest.raises(NotRestored):
        place.prune()
    assert place.objects.missing(roots) == set()


def test_an_interrupted_restore_keeps_its_base(place: Place):
    """Also where the session that it was of is gone."""
    roots, seen = three(place)
    place.store().restore(roots[2])
    (place.repo.path / ".git" / "HEAD.lock").write_text("")
    with pytest.raises(NotRestored), Path(place.repo.path / ".git" / "HEAD.lock").open():
        place.store().restore(roots[0])  # whose git state waits for who holds that file
    (place.repo.path / ".git" / "HEAD.lock").unlink()
    place.prune(bases=())
    assert os.listdir(place.state / "objects" / "base") == [place.base]
    assert place.store().finish() is not None
    assert place.seen() == seen[0]


def test_what_was_moved_aside_and_noted_goes_with_its_snapshot(place: Place):
    roots, _ = three(place)
    for root in roots[:2]:
        for folder in ("restore/aside", "taken"):
            (place.state / "objects" / folder / root).mkdir(parents=True)
    place.prune(roots[0])
    for folder in ("restore/aside", "taken"):
        assert os.listdir(place.state / "objects" / folder) == [roots[0]]


def test_a_root_that_was_never_here_is_no_error(place: Place):
    root = place.take()
    place.prune(root, "1" * 40, bases=(place.base, "2" * 40))
    place.store().verify(root)


def test_a_base_that_nobody_wants_is_imported_again_when_it_is(place: Place):
    place.take()
    place.prune(bases=())
    assert not place.objects.is_whole(place.base)
    root = place.take()
    assert place.objects.is_whole(place.base)
    place.store().verify(root)


def test_leftovers_of_kills_go(place: Place):
    root = place.take()
    packs = place.state / "objects" / "objects" / "pack"
    left = [
        packs / "tmp_endstate-1-1.pack",
        packs / "pack-1234.pack",
        packs / "pack-12.rev",
        packs.parent / "tmp_obj_1",
    ]
    for path in left:
        path.write_text("half")
    place.prune(root)
    assert not [path for path in left if path.exists()]
    place.store().verify(root)


def test_a_journal_names_its_roots():
    rows = [(1, "started", '{"root": "a", "step": 1}'), (2, "rolled_back", '{"root": "b", "kept": "c"}')]
    rows += [(3, "observed", '{"root": null}'), (4, "note", '{"text": "root"}')]
    assert named_in(rows) == {"a", "b", "c"}
    for odd in ("?", "[]"):
        with pytest.raises(ValueError):
            named_in([(1, "started", odd)])


def test_without_git_nothing_is_deleted_of_which_only_git_can_tell(place: Place, tmp_path: Path):
    roots, _ = three(place)
    (tmp_path / "no-git").mkdir()
    alone = ObjectStore(place.state / "objects", env={"PATH": str(tmp_path / "no-git")})
    with pytest.raises(StateError, match="Nothing was deleted"):
        prune(alone, place.state / "cache", roots[:1], (place.base,))
    assert place.objects.missing(roots) == set()


REMOVING = {"os.remove", "os.rename", "os.rmdir"}


def killed_after(operations: int, place: Place, *roots: str) -> bool:
    """Whether the prune met its end before it ended by itself."""

    def story() -> None:
        left = operations

        def count(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal left
            if event in REMOVING or (event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_CREAT):
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        place.prune(*roots)
        os._exit(0)

    return os.WIFSIGNALED(os.waitpid(fork(story), 0)[1])


def test_a_prune_that_is_killed_loses_nothing_that_is_wanted_and_can_be_repeated(place: Place):
    """At each of its operations, one after another, in the same store; and a snapshot after it is whole."""
    roots, seen = three(place)
    kills = 0
    while killed_after(kills, place, roots[1]):
        kills += 1
        place.store().verify(roots[1])
        taken = place.take(between=str(kills))
        place.store().verify(taken)
        assert kills < 500
    assert kills > 5
    place.store().restore(roots[1])
    assert place.seen() == seen[1]
    place.prune(roots[1])
    assert place.objects.missing(roots) == {roots[0], roots[2]}


def test_a_damaged_snapshot_stops_it_before_anything_is_deleted(place: Place):
    roots, _ = three(place)
    place.repo.write({"x": "y"})
    store = place.objects
    bad = store.write("tree", b"100644 meta.json\0" + bytes.fromhex(store.write("blob", b"?")))
    store.sync()
    with pytest.raises(EndstateError):
        place.prune(bad)
    assert place.objects.missing([*roots, bad]) == set()
