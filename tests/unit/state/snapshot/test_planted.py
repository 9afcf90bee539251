"""What somebody planted in the store leads no write, no removal and no wait anywhere: it is refused or replaced."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from endstate_action.config import SnapshotLimits
from endstate_action.errors import EndstateError, StateError
from endstate_action.state.snapshot import ObjectStore, SnapshotStore
from endstate_action.state.snapshot.git_state import GitState
from tests.support.nasty import add_socket
from tests.support.repos import Repo
from tests.support.workspaces import swap_in

pytestmark = pytest.mark.slow

PRECIOUS = "not ours"


class Story:
    """All that writes to a store: a base, snapshots of small and large files, a restore that moves something aside."""

    def __init__(self, folder: Path) -> None:
        self.repo = Repo(folder / "ws")
        self.repo.path.mkdir()
        self.repo.git("init", "--quiet", "--initial-branch=main", "--template=")
        self.base = self.repo.commit({"a.txt": "one\n", ".gitignore": "cache/\n"})
        self.state = self.repo.path / ".endstate"
        self.state.mkdir()
        (self.state / ".gitignore").write_text("*\n")

    @property
    def path(self) -> Path:
        return self.state / "objects"

    def store(self) -> SnapshotStore:
        git, objects = self.repo.path / ".git", ObjectStore(self.path, env=os.environ)
        objects.import_base(git, self.base)
        return SnapshotStore(
            objects,
            self.repo.path,
            excluded=(".git", ".endstate"),
            limits=SnapshotLimits(),
            cache=self.state / "cache",
            git_state=GitState(objects, git, git, self.base, self.state / "cache"),
        )

    def begin(self) -> str:
        return self.store().take().root

    def go_on(self, root: str, large: bytes) -> None:
        (self.repo.path / "large").write_bytes(large)
        self.repo.write({"new.txt": "new\n"})
        self.repo.commit(message="of the call")
        store = self.store()
        store.take()
        add_socket(self.repo.path)
        store.restore(root)


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory of somebody else, with what a blind removal or write would meet."""
    folder = tmp_path / "outside"
    for name in ("staging", "aside", "pack", "refs", "info"):
        (folder / name).mkdir(parents=True)
        (folder / name / "file").write_text(PRECIOUS)
    (folder / "file").write_text(PRECIOUS)
    return folder


@contextmanager
def untouched(folder: Path) -> Iterator[None]:
    before = everything(folder)
    yield
    assert everything(folder) == before


def everything(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() if p.is_file() else "" for p in folder.rglob("*")}


DIRECTORIES = (
    "objects",
    "objects/pack",
    "base",
    "given",
    "taken",
    "tmp",
    "restore",
    "restore/staging",
    "restore/aside",
)


@pytest.mark.parametrize("place", DIRECTORIES)
def test_nothing_is_written_or_removed_through_a_directory_that_is_a_link(story: Story, outside: Path, place: str):
    root = story.begin()
    (story.path / place).parent.mkdir(exist_ok=True)
    swap_in(story.path / place, lambda path: path.symlink_to(outside))
    # Some are needed for this story and refused, some are not.
    with untouched(outside), suppress(EndstateError):
        story.go_on(root, os.urandom(3 << 20))


@pytest.mark.parametrize("place", DIRECTORIES)
def test_in_a_store_that_is_not_there_yet_nothing_is_made_through_a_link(story: Story, outside: Path, place: str):
    (story.path / place).parent.mkdir(parents=True, exist_ok=True)
    (story.path / place).symlink_to(outside)
    with untouched(outside), suppress(EndstateError):
        story.go_on(story.begin(), os.urandom(3 << 20))


def test_a_large_file_is_not_written_through_a_link(story: Story, outside: Path):
    """It becomes an object of its own, in a directory that its id names."""
    root = story.begin()
    for number in range(256):
        (story.path / "objects" / f"{number:02x}").symlink_to(outside)
    with untouched(outside), pytest.raises(StateError, match="not ours stands in the place"):
        story.go_on(root, os.urandom(3 << 20))
    assert not list((story.path / "objects").glob("tmp_*"))


FILES = ("objects/pack/tmp_endstate.pack", "objects/pack/tmp_endstate.idx", "restore/tmp_journal", "base/tmp_BASE",
         "tmp_shallow", "shallow.PID.tmp", "info/rules.part", "given/tmp_BASE", "given/BASE")  # fmt: skip


@pytest.mark.parametrize("place", FILES)
def test_nothing_is_written_through_a_file_that_is_a_link(story: Story, outside: Path, place: str):
    story.store()
    planted = story.path / place.replace("BASE", story.base).replace("PID", str(os.getpid()))
    planted.parent.mkdir(exist_ok=True)
    planted.unlink(missing_ok=True)
    planted.symlink_to(outside / "file")
    with untouched(outside), suppress(EndstateError):
        story.go_on(story.begin(), os.urandom(3 << 20))


@pytest.mark.parametrize("place", ["endstate-store", "config", "shallow", "base/BASE", "given/BASE", "restore/journal"])
def test_a_fifo_in_the_place_of_a_file_stops_nothing_for_ever(story: Story, place: str):
    root = story.begin()
    planted = story.path / place.replace("BASE", story.base)
    planted.parent.mkdir(exist_ok=True)
    swap_in(planted, os.mkfifo)
    with suppress(EndstateError):
        story.go_on(root, b"")
    with suppress(EndstateError):
        story.store().finish()


def test_git_is_not_asked_where_it_would_wait_for_ever(story: Story):
    objects = ObjectStore(story.path, env=os.environ)
    os.mkfifo(story.path / "shallow")
    with pytest.raises(StateError, match="not ours stands in the place"):
        objects.git("rev-list", "--all", timeout_s=5)


def test_a_fifo_in_the_place_of_an_object_is_damage(story: Story):
    root = story.begin()
    for file in (story.path / "objects" / "pack").iterdir():
        swap_in(file, os.mkfifo)
    objects = ObjectStore(story.path, env=os.environ)
    with pytest.raises(EndstateError, match="is missing"):
        objects.read(root)
    (story.path / "objects" / root[:2]).mkdir()
    os.mkfifo(story.path / "objects" / root[:2] / root[2:])
    with pytest.raises(EndstateError, match="no ordinary file"):
        objects.read(root)


def test_the_project_s_pack_directory_is_not_written_through_either(story: Story, outside: Path):
    """It is set aside with the objects in it, and made anew."""
    story.repo.commit({"b.txt": "two\n"})
    root = story.begin()
    objects = story.repo.path / ".git" / "objects"
    shutil.rmtree(objects)
    objects.mkdir()
    (objects / "pack").symlink_to(outside)
    (story.repo.path / ".git" / "refs" / "heads" / "other").write_text(f"{story.base}\n")
    with untouched(outside):
        said = story.store().restore(root).reasons
    assert any("set aside" in text for text in said)
    assert story.repo.git("fsck", "--full", "--no-dangling") == ""
