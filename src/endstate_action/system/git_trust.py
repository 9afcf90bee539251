"""What may be believed of a git directory that others can write to: its configuration, its hooks, its locks."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from endstate_action.effects import canonical, digest

_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_PROCESSES = Path("/proc")
# Each may be a link in an honest repository (an old second work tree); then it was one when the session began.
_WRITTEN = ("index", "packed-refs", "objects", "info", "hooks", "refs/heads", "HEAD", "logs/HEAD")


def trust_digest(listing: bytes, root: Path, git_dir: Path, common_dir: Path, ref: str | None) -> str:
    """A digest of all that could make git execute something, or write where it should not.

    Args:
        listing: the effective configuration, as git lists it.
        ref: the branch that HEAD names, None when detached.
    """
    files = [root / ".git", git_dir / "commondir", git_dir / "config.worktree"]
    files += [common_dir / "config", common_dir / "info" / "attributes", *_entries(common_dir / "hooks")]
    contents = [[file.name, file_digest(file), file_digest(file.resolve())] for file in files]
    return digest(canonical([digest(listing), contents, _links(git_dir, common_dir, ref)]))


def content_digest(sha256: bytes, *, is_program: bool) -> str:
    """The `file_digest` of a file with that content."""
    return digest((b"program " if is_program else b"file ") + sha256)


def file_digest(file: Path) -> str:
    """Of kind, executable bit and content; of a link its target's name, which is not followed."""
    try:
        if file.is_symlink():
            return digest(b"link " + os.fsencode(file.readlink()))
        with open(os.open(file, _FILE), "rb") as opened:
            found = os.fstat(opened.fileno())
            content = hashlib.file_digest(opened, "sha256").digest() if stat.S_ISREG(found.st_mode) else b"none"
            return content_digest(content, is_program=bool(found.st_mode & stat.S_IXUSR))
    except FileNotFoundError:
        return "absent"
    except OSError as error:
        return f"unreadable: {error.strerror}"


def _entries(folder: Path) -> list[Path]:
    with suppress(OSError):
        return sorted(folder.iterdir())
    return []


def _links(git_dir: Path, common_dir: Path, ref: str | None) -> list[list[str]]:
    """Git writes through links: one in place of the index would let others choose what is overwritten."""
    names = (*_WRITTEN, *((ref, f"logs/{ref}") if ref else ()))
    steps = sorted({step for name in names for step in (Path(name), *Path(name).parents)} - {Path()})
    places = [(str(step), base / step) for step in steps for base in (git_dir, common_dir)]
    return [[name, str(place.readlink())] for name, place in places if place.is_symlink()]


def is_from(lock: Path, moment: float) -> bool:
    """Whether `lock` is a file that this user made at `moment` (seconds since the epoch) or later."""
    with suppress(OSError):
        found = lock.lstat()
        return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_mtime >= moment
    return False


def is_held(lock: Path, work_places: Iterable[Path]) -> bool:
    """Whether a live process has `lock` open, or is a git at work in one of `work_places`; True if nobody can tell.

    The second, since git closes a lock file and keeps it while it runs a hook or an editor.
    """
    if not _PROCESSES.is_dir():
        return True
    found = lock.lstat()
    places = [place.resolve() for place in work_places]
    processes = [entry for entry in _PROCESSES.iterdir() if entry.name.isdecimal()]
    return any(_works_in(p, places) or (found.st_dev, found.st_ino) in _open_files(p) for p in processes)


def _open_files(process: Path) -> Iterator[tuple[int, int]]:
    """(device, inode) of each; none of a process that may not be inspected, which then is not ours."""
    with suppress(OSError):
        for descriptor in (process / "fd").iterdir():
            with suppress(OSError):
                opened = descriptor.stat()
                yield opened.st_dev, opened.st_ino


def _works_in(process: Path, places: list[Path]) -> bool:
    with suppress(OSError):
        if (process / "comm").read_text().startswith("git"):
            here = (process / "cwd").readlink()
            return any(here.is_relative_to(place) for place in places)
    return False
