"""Make the workspace what a snapshot says, step by step, so that each step may be the last one before a kill.

First everything that is needed is put aside, complete and checked; only then is anything replaced. A file is
replaced by a rename. Nothing is written or removed through a link. What the present snapshot could not keep is
moved aside, never removed. Doing it all again from wherever it stopped ends in the same state.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from endstate_action.config import SnapshotLimits
from endstate_action.effects import canonical
from endstate_action.errors import DiskFull, NotRestored
from endstate_action.state.snapshot import store_files
from endstate_action.state.snapshot.compare import Content, Difference, Thing, damaged
from endstate_action.state.snapshot.left_out import above
from endstate_action.state.snapshot.objects import ObjectStore
from endstate_action.system import own_files
from endstate_action.system.names import display, short
from endstate_action.system.tree_walk import DIRECTORY

_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Terms:
    """What a snapshot is of, besides the workspace: who looks on other terms sees another one in the same place.

    `base` is the commit to which a git state is told as a difference; None without commits, and where `is_git` is not.
    """

    is_git: bool
    base: str | None
    limits: SnapshotLimits


@dataclass(frozen=True, slots=True)
class Journal:
    """A restore that has begun: to which root, what it replaces (None: nothing is kept), and on which terms."""

    root: str
    kept: str | None
    terms: Terms | None = None
    """None where a release wrote it that did not say so."""


def read_journal(file: Path) -> Journal | None:
    """Of a restore that was interrupted; None where there is none. Raises: NotRestored: it cannot be read."""
    try:
        value = json.loads(own_files.get(file))
        return Journal(str(value["root"]), value["kept"] and str(value["kept"]), _terms(value.get("terms")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NotRestored(
            f"A restore was interrupted, and its journal {file} cannot be read ({error}). "
            "The workspace may be half restored.",
            hint="Remove that file after checking the workspace, then run again.",
        ) from error


def _terms(value: Any) -> Terms | None:
    if value is None:
        return None
    shown = value["limits"]
    numbers = (int(shown[name]) for name in ("ignored_max_files", "ignored_max_mb", "file_max_mb"))
    limits = SnapshotLimits(tuple(map(str, shown["exclude"])), *numbers)
    return Terms(bool(value["is_git"]), value["base"] and str(value["base"]), limits)


class Restoring:
    """The place of restores in progress: `place` is ours, on the workspace's mount, and outlives a kill.

    Raises:
        NotRestored, DiskFull: by everything that writes.
    """

    def __init__(self, objects: ObjectStore, workspace: Path, place: Path) -> None:
        self._objects = objects
        self._workspace = workspace
        self._journal = place / "journal"
        self._staging = place / "staging"
        self._aside = place / "aside"

    def journal(self) -> Journal | None:
        return read_journal(self._journal)

    @contextmanager
    def prepared(
        self, differences: Iterable[Difference], target: Content, precious: Iterable[bytes], name: str
    ) -> Iterator[Replacing]:
        """All that `target` needs beyond what is there, complete and checked; nothing is changed yet.

        Args:
            precious: paths of which no snapshot has the content. Where one must go, it is moved to a directory
                called `name`.
        """
        with _doing("The workspace was not restored; nothing was changed"):
            with own_files.directory(self._staging, make=True):
                pass
            self._empty()
            work = Replacing(self._objects, self._workspace, self._staging, self._aside / name, target)
        try:
            with _doing("The workspace was not restored; nothing was changed"):
                work.prepare(list(differences), sorted(precious))
            yield work
        finally:
            work.close()

    def begin(self, journal: Journal) -> None:
        """From here on, the workspace may be neither what it was nor what it is to be."""
        with _doing("The workspace was not restored; nothing was changed"):
            store_files.put(self._journal, canonical(asdict(journal)))

    def end(self) -> None:
        """The workspace is what it is to be. What was replaced is removed only now."""
        with _doing("The workspace was restored, but the restore was not concluded"):
            with own_files.directory(self._journal.parent) as place:
                os.unlink(self._journal.name, dir_fd=place)
                store_files.sync_names(place)
            self._empty()

    def _empty(self) -> None:
        """Remove what is left in the staging directory; what another user has put in there goes aside."""
        for name in _empty(self._staging):
            with own_files.directory(self._staging) as stage:
                _to_aside(stage, name, self._aside / "stuck")


class Replacing:
    """One pass over the differences between what is there and `target`."""

    def __init__(self, objects: ObjectStore, workspace: Path, staging: Path, aside: Path, target: Content) -> None:
        self.moved: list[Path] = []
        """Where precious things are now."""
        self.stuck: list[bytes] = []
        """What was to go and is still there: the system does not let us take it away."""
        self._objects = objects
        self._target = target
        self._aside = aside
        self._top = os.open(workspace, DIRECTORY & ~os.O_NOFOLLOW)
        self._stage = os.open(staging, DIRECTORY)
        owner = os.fstat(self._top)
        # A run as root must not leave files that the workspace's owner cannot write.
        self._owner = (owner.st_uid, owner.st_gid) if os.geteuid() == 0 and owner.st_uid != 0 else None
        self._differences: list[Difference] = []
        self._precious: list[bytes] = []
        self._new: list[tuple[bytes, Thing]] = []
        self._staged: list[tuple[bytes, bytes]] = []
        self._number = 0
        self._modes: dict[bytes, int] = {}
        """Directories whose mode is to be set when all is done."""

    def close(self) -> None:
        os.close(self._stage)
        os.close(self._top)

    def prepare(self, differences: list[Difference], precious: list[bytes]) -> None:
        self._differences, self._precious = differences, precious
        self._new = [(found.path, found.new) for found in differences if found.new and not _is_other_mode(found)]
        self._staged = [(path, self._make(thing)) for path, thing in self._new if thing.kind != "directory"]

    def run(self) -> None:
        """Raises: NotRestored, DiskFull: some of it is done; doing it all again goes on."""
        with _doing("The workspace is restored in part only"):
            self._take_away_all()
            for path, thing in self._new:
                if thing.kind == "directory":
                    self._make_directory(path, thing.mode)
            for path, name in self._staged:
                with self._parent(path) as (parent, last):
                    _rename(self._stage, name, parent, last)
            self._set_modes({f.path: f.new.mode for f in self._differences if f.new and _is_other_mode(f)})
            self._set_modes(self._modes)

    def _take_away_all(self) -> None:
        gone: set[bytes] = set()
        for found in self._differences:
            if _must_go(found) and gone.isdisjoint(above(found.path)):
                self._take_away(found)
                gone.add(found.path)

    def _set_modes(self, modes: Mapping[bytes, int]) -> None:
        # What lies deeper first: its directory may be closed to us afterwards.
        for path in sorted(modes, reverse=True):
            with self._parent(path) as (parent, name):
                _set_mode(parent, name, modes[path])

    def _make(self, thing: Thing) -> bytes:
        """The new file, link or fifo, complete, in the staging directory; returns its name there."""
        name = self._next()
        match thing.kind:
            case "link":
                os.symlink(self._link_target(thing.id), name, dir_fd=self._stage)
                self._own(name)
            case "fifo":
                os.mkfifo(name, 0o600, dir_fd=self._stage)
                self._own(name)
                _set_mode(self._stage, name, thing.mode)
            case _:
                self._write(name, thing.mode, thing.id)
        return name

    def _write(self, name: bytes, mode: int, blob: str) -> None:
        file = os.open(name, _WRITE, 0o600, dir_fd=self._stage)
        try:
            for piece in self._objects.open_blob(blob):
                view = memoryview(piece)
                while view:
                    view = view[os.write(file, view) :]
            if self._owner:
                os.fchown(file, *self._owner)
            os.fchmod(file, mode)
        finally:
            os.close(file)

    def _link_target(self, blob: str) -> bytes:
        target = b"".join(self._objects.open_blob(blob))
        if b"\0" in target or not target:
            raise damaged(self._target.root, f"holds a link that leads nowhere, {blob}")
        return target

    def _own(self, name: bytes) -> None:
        if self._owner:
            os.chown(name, *self._owner, dir_fd=self._stage, follow_symlinks=False)

    def _next(self) -> bytes:
        self._number += 1
        return b"%07d" % self._number

    def _take_away(self, found: Difference) -> None:
        path = found.path
        precious = any(other == path or other.startswith(path + b"/") for other in self._precious)
        with self._parent(path) as (parent, name):
            try:
                os.stat(name, dir_fd=parent, follow_symlinks=False)
            except FileNotFoundError:
                return
            try:
                if precious:
                    self._move_aside(parent, name)
                else:
                    _rename(parent, name, self._stage, self._next())
            except PermissionError:
                # Another user's. Where nothing is to take its place, all else can still be put back.
                if found.new is not None:
                    raise
                self.stuck.append(path)

    def _move_aside(self, parent: int, name: bytes) -> None:
        self.moved.append(_to_aside(parent, name, self._aside))

    def _make_directory(self, path: bytes, mode: int) -> None:
        with self._parent(path) as (parent, name), suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=parent)
            if self._owner:
                os.chown(name, *self._owner, dir_fd=parent, follow_symlinks=False)
        self._modes[path] = mode

    @contextmanager
    def _parent(self, path: bytes) -> Iterator[tuple[int, bytes]]:
        """The directory that holds `path`, which we may change, and the name in it.

        Raises:
            OSError: with `path` for the file's name, also of what is done with the two.
        """
        *above, name = path.split(b"/")
        here = os.dup(self._top)
        try:
            for depth, part in enumerate(above, 1):
                parent, here = here, self._enter(here, part, b"/".join(above[:depth]))
                os.close(parent)
            yield here, name
        except OSError as error:
            # A name in an open directory, or that of the descriptor, would lead nobody there.
            raise OSError(error.errno, error.strerror, path) from error
        finally:
            os.close(here)

    def _enter(self, parent: int, name: bytes, path: bytes) -> int:
        try:
            here = os.open(name, DIRECTORY, dir_fd=parent)
        except PermissionError:
            _set_mode(parent, name, 0o700)
            here = os.open(name, DIRECTORY, dir_fd=parent)
            self._modes.setdefault(path, self._target.mode(path, "directory"))
        mode = stat.S_IMODE(os.fstat(here).st_mode)
        if mode & 0o300 != 0o300 and os.geteuid() != 0:
            with suppress(PermissionError):
                os.fchmod(here, mode | 0o700)
                self._modes.setdefault(path, self._target.mode(path, "directory"))
        return here


def _is_other_mode(found: Difference) -> bool:
    """Whether nothing but the mode of a file or fifo differs."""
    old, new = found.old, found.new
    return bool(old and new and new.kind in ("file", "fifo") and (old.kind, old.id) == (new.kind, new.id))


def _must_go(found: Difference) -> bool:
    """Whether what is there must be out of the way first. A rename replaces files, links and fifos by itself."""
    old, new = found.old, found.new
    if old is None or (new and old.kind == new.kind):
        return False
    return new is None or "directory" in (old.kind, new.kind) or old.kind == "left"


def _rename(source: int, name: bytes, target: int, new_name: bytes) -> None:
    try:
        os.rename(name, new_name, src_dir_fd=source, dst_dir_fd=target)
    except PermissionError:
        # A directory that moves to another one is itself written to: its `..` changes.
        mode = os.stat(name, dir_fd=source, follow_symlinks=False).st_mode
        if not stat.S_ISDIR(mode):
            raise
        _set_mode(source, name, stat.S_IMODE(mode) | 0o700)
        os.rename(name, new_name, src_dir_fd=source, dst_dir_fd=target)


def _set_mode(parent: int, name: bytes, mode: int) -> None:
    """Of anything but a link."""
    if os.chmod in os.supports_follow_symlinks:
        os.chmod(name, mode, dir_fd=parent, follow_symlinks=False)
        return
    handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        if not stat.S_ISLNK(os.fstat(handle).st_mode):
            os.chmod(f"/proc/self/fd/{handle}", mode)
    finally:
        os.close(handle)


def _to_aside(parent: int, name: bytes, aside: Path) -> Path:
    """Where it is now: in a directory of its own, since others of its name may be there."""
    place = aside / f"{len(own_files.names(aside)):05d}"
    with own_files.directory(place, make=True) as there:
        _rename(parent, name, there, name)
    return place / os.fsdecode(name)


def _empty(directory: Path) -> list[bytes]:
    """Remove all that is in it. A directory's content is first moved up, so that no depth is too great.

    Returns what is still there, since the system does not let us remove it.
    """
    stuck: set[str] = set()
    with own_files.directory(directory.parent) as above, store_files.below(above, directory.name) as top:
        number = 0
        while names := set(os.listdir(top)) - stuck:
            for name in names:
                try:
                    os.unlink(name, dir_fd=top)
                except (IsADirectoryError, PermissionError):
                    try:
                        number = _flatten(top, os.fsencode(name), number)
                    except PermissionError:
                        stuck.add(name)
    return sorted(map(os.fsencode, stuck))


def _flatten(top: int, name: bytes, number: int) -> int:
    """Remove the directory `name`; the directories in it come up under names that nothing has yet."""
    with suppress(PermissionError):
        _set_mode(top, name, 0o700)
    here = os.open(name, DIRECTORY, dir_fd=top)
    try:
        for entry in list(os.scandir(here)):
            if entry.is_dir(follow_symlinks=False):
                number = _free(top, number)
                _rename(here, os.fsencode(entry.name), top, b"up-%d" % number)
            else:
                os.unlink(entry.name, dir_fd=here)
    finally:
        os.close(here)
    os.rmdir(name, dir_fd=top)
    return number


def _free(top: int, number: int) -> int:
    while True:
        number += 1
        try:
            os.stat(b"up-%d" % number, dir_fd=top, follow_symlinks=False)
        except FileNotFoundError:
            return number


@contextmanager
def _doing(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = f" at {short(display(os.fsencode(error.filename)))}" if error.filename else ""
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(
                f"{what}: the disk is full. What was there has been kept.",
                hint="Free some space on the workspace's disk and run again with --resume: it then goes on.",
            ) from error
        hint = "Give the user of this run the right to change the workspace, and run again with --resume: it goes on."
        if error.errno == errno.EXDEV:
            hint = "The state directory must be on the file system of the workspace, with no other mounted inside."
        raise NotRestored(
            f"{what}: {error.strerror or error}{where}. What was there has been kept.", hint=hint
        ) from error
