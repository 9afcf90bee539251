"""The small files of a git directory: where things stand, without objects, and without anything that could act.

Configuration and hooks are neither read nor written: they can hold a token, and they can make git execute
something. Nothing is reached through a link: where one took a directory's place, it is a link, and not followed.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Literal

from endstate_action.system.files import atomic_write
from endstate_action.system.tree_cache import Signature, signature

Kind = Literal["file", "program", "link"]

MAX_BYTES = 32 << 20
"""A larger file is none of git's own small ones; it is left alone."""

_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NOT_STATE = {"hooks", "lfs", "annex", "gc.pid", "description", "branches", "FETCH_HEAD", "COMMIT_EDITMSG"}
_NOT_STATE_PREFIXES = ("config", "objects", "fsmonitor--daemon")
_OF_THE_PLACE = {"gitdir", "commondir"}
_REFS = {("refs", "heads"), ("refs", "tags"), ("refs", "remotes"), ("logs", "refs")}
_REF = re.compile(rb"ref: |[0-9a-f]{40}")
_KEPT = {"refs", "refs/heads", "refs/tags", "info", "logs"}


@dataclass(frozen=True, slots=True)
class Small:
    """One file; of a link, `data` is where it leads."""

    kind: Kind
    data: bytes


@dataclass(slots=True)
class Found:
    """What lies in a git directory, by its path below it."""

    files: dict[str, Signature] = field(default_factory=dict)
    """Ordinary files and links."""
    directories: list[str] = field(default_factory=list)
    """Each before those in it."""
    locks: list[str] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    """Shared parts of split indexes, which are read with their index."""
    others: list[str] = field(default_factory=list)
    """Sockets, fifos, devices."""
    stores: list[str] = field(default_factory=list)
    """Git directories of submodules, which have objects of their own."""
    closed: list[str] = field(default_factory=list)
    """Directories that may not be listed."""


def is_state(path: str) -> bool:
    """Whether a path below a git directory is one that is captured and restored."""
    parts = path.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        return False
    match parts[0]:
        case "modules":
            # A submodule's name may have slashes, so its git directory can be at any depth.
            return not any(map(_is_excluded, parts[1 : _refs_at(parts)]))
        case "worktrees":
            return len(parts) < 3 or not _is_excluded(parts[2])
        case "shallow":
            # Where this checkout's history ends is so on this machine alone, and git's own objects decide it.
            return len(parts) > 1
        case first:
            return not _is_excluded(first)


def scan(top: Path) -> Found:
    """Look at the names and times of everything in a git directory; nothing is read.

    Raises:
        OSError: it is no directory, or may not be listed.
    """
    found = Found()
    pending = [""]
    while pending:
        folder = pending.pop()
        try:
            with os.scandir(top / folder) as entries:
                inside = sorted(entries, key=lambda entry: entry.name)
        except PermissionError:
            if not folder:
                raise
            found.closed.append(folder)
            continue
        for entry in inside:
            path = f"{folder}/{entry.name}".lstrip("/")
            if not is_state(path):
                if entry.name == "objects" and path.startswith("modules/"):
                    found.stores.append(folder)
                continue
            if entry.is_dir(follow_symlinks=False):
                found.directories.append(path)
                pending.append(path)
                continue
            with suppress(FileNotFoundError):
                _sort(found, path, entry.stat(follow_symlinks=False))
    return found


def locks(top: Path) -> list[Path]:
    """Every lock file in a git directory, those beside objects and configuration included."""
    found: list[Path] = []
    for folder, folders, names in os.walk(top):
        # Where loose objects are, nothing is locked.
        folders[:] = [name for name in folders if not re.fullmatch("[0-9a-f]{2}", name)]
        found += [Path(folder, name) for name in names if name.endswith(".lock")]
    return sorted(found)


def read(top: Path, path: str) -> Small | None:
    """A file as it is now; None for one that is not for us: unreadable, too large, or no ordinary file."""
    place = top / path
    try:
        if place.is_symlink():
            return Small("link", os.fsencode(place.readlink()))
        with open(os.open(place, _FILE), "rb") as file:
            seen = os.fstat(file.fileno())
            if not stat.S_ISREG(seen.st_mode) or seen.st_size > MAX_BYTES:
                return None
            data = file.read(MAX_BYTES + 1)
    except OSError:
        return None
    if len(data) > MAX_BYTES or (path.startswith("modules/") and not _is_plausible(path, data)):
        return None
    return Small("program" if seen.st_mode & stat.S_IXUSR else "file", data)


def converge(top: Path, target: Mapping[str, Small], keep: Iterable[str] = ()) -> None:
    """Make the small files of `top`, a directory, those of `target`; may be repeated after a kill.

    Configuration, hooks and objects are left as they are, and so are the paths in `keep`. Where the git directory
    lies and what it belongs to (`gitdir`, `commondir`) is only written where it is missing.

    Raises:
        OSError: it is done in part; repeat it.
        ValueError: a path that is never captured; nothing was done.
    """
    for path in target:
        if not is_state(path):
            raise ValueError(f"{path!r} does not belong to the state of a git directory")
    kept = set(keep)
    found = _opened(top)
    for store in found.stores:
        if not any(path.startswith(f"{store}/") for path in target):
            # Made since: git would take what is left of it for a submodule that is there.
            shutil.rmtree(top / store, ignore_errors=True)
    for path in (*found.files, *found.parts, *found.others, *found.locks):
        if path not in target and path not in kept:
            (top / path).unlink(missing_ok=True)
    for path in reversed(found.directories):
        if not any(path == f"{store}{name}" for store in ("", *(f"{s}/" for s in found.stores)) for name in _KEPT):
            with suppress(OSError):
                (top / path).rmdir()
    for path, wanted in target.items():
        if path not in kept and not (path in _OF_THE_PLACE and (top / path).exists()) and read(top, path) != wanted:
            put(top, path, wanted)
    for path in ("objects", "refs"):
        if not (top / path).is_dir():
            way_to(top, f"{path}/x")


def put(top: Path, path: str, wanted: Small) -> None:
    """Write one file, durably, as whoever owns `top` would have it; what stands in its way goes."""
    way_to(top, path)
    place, seen = top / path, top.lstat()
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    if wanted.kind == "link":
        temp = place.with_name(f".{place.name}.{os.getpid()}.tmp")
        temp.unlink(missing_ok=True)
        temp.symlink_to(os.fsdecode(wanted.data))
        temp.rename(place)
    else:
        atomic_write(place, wanted.data, seen.st_mode & (0o777 if wanted.kind == "program" else 0o666))
    give_to(place, seen)


def way_to(top: Path, path: str) -> None:
    """Make the directories that lead to `path`; a file or link in their place goes."""
    seen = top.lstat()
    place = top
    for part in path.split("/")[:-1]:
        place = place / part
        if place.is_symlink() or not place.is_dir():
            place.unlink(missing_ok=True)
            place.mkdir(seen.st_mode & 0o777)
            give_to(place, seen)


def unlock(top: Path) -> None:
    """Give an ordinary user all rights to the directories of his own in a git directory; their modes are not kept."""
    pending = [top] if os.geteuid() else []
    while pending:
        folder = pending.pop()
        admit(folder, stat.S_IRWXU)
        with suppress(PermissionError), os.scandir(folder) as entries:
            pending += [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]


def admit(folder: Path, needed: int) -> None:
    """Have the rights `needed` (of the owner) to a directory that is ours."""
    seen = folder.lstat()
    if seen.st_uid == os.geteuid() != 0 and seen.st_mode & needed != needed:
        folder.chmod(stat.S_IMODE(seen.st_mode) | needed)


def give_to(place: Path, owner: os.stat_result) -> None:
    """Whoever works as root in somebody else's repository must not leave files that he cannot change."""
    if os.geteuid() == 0 and (owner.st_uid, owner.st_gid) != (0, 0):
        os.chown(place, owner.st_uid, owner.st_gid, follow_symlinks=False)


def _opened(top: Path) -> Found:
    """What is there, with directories made accessible that were closed to us."""
    unlock(top)
    return scan(top)


def _sort(found: Found, path: str, seen: os.stat_result) -> None:
    name = path.rpartition("/")[2]
    if not (stat.S_ISREG(seen.st_mode) or stat.S_ISLNK(seen.st_mode)):
        found.others.append(path)
    elif name.endswith(".lock"):
        found.locks.append(path)
    elif name.startswith("sharedindex."):
        found.parts.append(path)
    else:
        found.files[path] = signature(seen)


def _is_excluded(name: str) -> bool:
    return name in _NOT_STATE or name.startswith(_NOT_STATE_PREFIXES)


def _refs_at(parts: list[str]) -> int:
    """Where names of branches and the like begin, which may be any."""
    return next((at for at, pair in enumerate(pairwise(parts)) if pair in _REFS), len(parts))


def _is_plausible(path: str, data: bytes) -> bool:
    """A submodule called `refs/heads` must not bring its configuration in as if that were a branch."""
    parts = path.split("/")
    return _refs_at(parts) == len(parts) or bool(_REF.match(data))
