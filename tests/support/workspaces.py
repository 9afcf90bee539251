"""Workspaces with a snapshot store, and pictures of them: every name, type, mode, byte and link target."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from endstate_action.config import SnapshotLimits
from endstate_action.state.snapshot import ObjectStore, SnapshotStore
from endstate_action.state.snapshot.ignored import ignored_paths

Seen = tuple[str, int, bytes]
Picture = dict[bytes, Seen]

OURS = (b".endstate", b".git")


@dataclass(frozen=True)
class Place:
    """A workspace at `root`; each `store` knows no more of the one before than a new process would."""

    root: Path
    object_format: str = "sha1"

    @property
    def state(self) -> Path:
        return self.root / ".endstate"

    def objects(self) -> ObjectStore:
        self.state.mkdir(exist_ok=True)
        (self.state / ".gitignore").write_text("*\n")
        return ObjectStore(self.state / "objects", self.object_format, os.environ)

    def store(self, **limits: int | tuple[str, ...]) -> SnapshotStore:
        objects, git = self.objects(), self.root / ".git"
        is_repository = git.is_dir()
        return SnapshotStore(
            objects,
            self.root,
            excluded=(".endstate", *([".git"] if is_repository else [])),
            limits=SnapshotLimits(**limits),  # type: ignore[arg-type]
            cache=self.state / "cache",
            ignored=partial(ignored_paths, objects, self.root, git, git) if is_repository else list,
        )

    def picture(self) -> Picture:
        return picture(self.root)


def picture(root: Path) -> Picture:
    """All below `root`, but for the state directory and git's, by path."""
    found: Picture = {}
    _look(os.fsencode(root), b"", found)
    return found


def _look(root: bytes, directory: bytes, found: Picture) -> None:
    place = os.path.join(root, directory)
    # Opened for us until all below has been seen.
    with _readable(place):
        for name in os.listdir(place):
            path = os.path.join(directory, name)
            if path not in OURS:
                found[path] = _seen(os.path.join(place, name))
                if found[path][0] == "directory":
                    _look(root, path, found)


def _seen(place: bytes) -> Seen:
    mode = os.lstat(place).st_mode
    bits = stat.S_IMODE(mode)
    if stat.S_ISLNK(mode):
        return "link", 0, os.readlink(place)
    if stat.S_ISDIR(mode):
        return "directory", bits, b""
    if not stat.S_ISREG(mode):
        return "fifo" if stat.S_ISFIFO(mode) else "special", bits, b""
    with _readable(place):
        return "file", bits, Path(os.fsdecode(place)).read_bytes()


@contextmanager
def _readable(place: bytes) -> Iterator[None]:
    mode = stat.S_IMODE(os.stat(place).st_mode)
    if mode & 0o500 == 0o500 or os.geteuid() == 0:
        yield
        return
    os.chmod(place, mode | 0o700)
    try:
        yield
    finally:
        os.chmod(place, mode)


@contextmanager
def a_place_for_anybody() -> Iterator[Place]:
    """A workspace that an ordinary user owns, whoever runs the tests."""
    with tempfile.TemporaryDirectory(prefix="workspace-") as folder:
        os.chmod(folder, 0o755)
        root = Path(folder, "ws")
        root.mkdir()
        if os.geteuid() == 0:
            os.chown(root, 65534, 65534)
        try:
            yield Place(root)
        finally:
            subprocess.run(["chmod", "-R", "u+rwX", str(root)], check=False)
            shutil.rmtree(root, ignore_errors=True)


def settle() -> None:
    """Until the clock of the file system has moved on, so that what was written is remembered by the next look."""
    time.sleep(0.06)


def swap_in(target: Path, make: Callable[[Path], object]) -> None:
    """Something else takes the place of what is at `target`."""
    with suppress(FileNotFoundError):
        shutil.rmtree(target) if target.is_dir() and not target.is_symlink() else target.unlink()
    make(target)


def as_loose_objects(objects: ObjectStore) -> ObjectStore:
    """The same store, each object in a file of its own, so that one of them can be lost or damaged."""
    objects.sync()
    for pack in (objects.path / "objects" / "pack").glob("*.pack"):
        content = pack.read_bytes()
        pack.unlink()
        pack.with_suffix(".idx").unlink()
        done = objects.git("unpack-objects", "-q", input=content)
        assert done.returncode == 0, done.stderr
    return ObjectStore(objects.path, objects.object_format, os.environ)


def loose_file(objects: ObjectStore, name: str) -> Path:
    return objects.path / "objects" / name[:2] / name[2:]
