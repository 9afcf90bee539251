"""Files inside the workspace, and only there; written whole or not at all.

`Workspace` is the one way by which a file tool reaches the disk. Paths are untrusted text. Each
component is opened relative to the directory before it and never through a link, so a process that
swaps a directory for a link in between changes what is refused, not where we end up. Links that
stay inside are refused too: the message names the target, and the real path can be used.

A write is temp file, fsync, rename, fsync of the directory. A kill leaves the old or the new
content, never a part. The file keeps its permission bits and, where we may set it, its owner;
set-id bits, extended attributes and ACLs are not kept. The rename gives a hard link a file of its
own instead of writing through it to a name elsewhere.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from endstate_action.system.names import Parts, components, display, fold, parse, short

ABSENT = "absent"
"""Stands for the digest of a file that does not exist."""

PATH_MAX_BYTES = 4096
NAME_MAX_BYTES = 255

Kind = Literal["file", "directory", "link", "other", "unreadable"]
"""`other` is a fifo, socket or device; `unreadable` a directory whose entries cannot be listed."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a fifo that took a file's place would wait for a writer for ever.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class PathRefused(Exception):
    """A path is not for us, or the disk said no. The text says what did not happen, and why."""


class PathMissing(PathRefused):
    """There is nothing at that path."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Something in the workspace; `path` is relative to the root, as `display` shows it."""

    path: str
    kind: Kind


class Workspace:
    """The directory `root` and what lies in it, for file tools.

    Paths are relative to the root, or absolute and below it; `..` is worked out in the text. A
    component `.git` (in any case, at any depth) and the paths in `hidden` (from the root) are refused
    for reading too, and `walk` leaves them out. `staging` is a directory of ours for files that are
    being written, so that a kill leaves nothing among the user's; without it, or where it is on
    another mount, such a file stands beside its target and the next write of that path removes it.
    Writes of one path at the same time must be kept apart by the caller.

    Raises:
        PathRefused: by every method, for a path outside, through a link, or that the disk refuses.
    """

    def __init__(self, root: Path, *, hidden: tuple[str, ...] = (".endstate",), staging: Path | None = None) -> None:
        self.root = root.resolve(strict=True)
        self.staging = staging
        self._spellings = {components(os.fsencode(p)) for p in (root.absolute(), self.root)}
        below = (self._below_root(components(os.fsencode(self.root / path))) for path in hidden)
        self._hidden = tuple(tuple(map(fold, parts)) for parts in below if parts is not None)
        found = self.root.stat()
        self._identity = (found.st_dev, found.st_ino)

    def relative(self, path: str) -> str:
        """The one spelling of `path` from the root (`.` for the root itself). Touches no file."""
        return display(b"/".join(self._parts(path))) or "."

    def stat(self, path: str) -> os.stat_result | None:
        """What is at `path`, a link as itself; None where nothing is."""
        parts = self._parts(path)
        try:
            with self._refusing(f"{short(path)} was not looked at"), self._directory(parts[:-1]) as parent:
                return os.lstat(parts[-1], dir_fd=parent) if parts else os.fstat(parent)
        except PathMissing:
            return None

    def open(self, path: str) -> io.BufferedReader:
        """An ordinary file, for reading. A fifo or device is refused without being opened."""
        parts = self._parts(path)
        with self._refusing(f"{short(path)} was not read"), self._directory(parts[:-1]) as parent:
            _ordinary(parent, parts)
            file = os.fdopen(os.open(parts[-1], _FILE, dir_fd=parent), "rb")
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                file.close()
                raise PathRefused(f"{short(path)} was replaced while it was being opened.")
            return file

    def read(self, path: str, limit: int) -> bytes:
        """The whole content; refused where it is more than `limit` bytes."""
        with self._refusing(f"{short(path)} was not read"), self.open(path) as file:
            data = file.read(limit + 1)
        if len(data) > limit:
            raise PathRefused(f"{short(path)} was not read: it is larger than {limit:,} bytes.")
        return data

    def digest(self, path: str) -> str:
        """`effects.digest` of the content, read in pieces; `ABSENT` where nothing is."""
        try:
            with self._refusing(f"{short(path)} was not read"), self.open(path) as file:
                return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
        except PathMissing:
            return ABSENT

    def digest_or_none(self, path: str) -> str | None:
        """`digest`, or None where nobody can tell: a link or a directory took the file's place, say."""
        try:
            return self.digest(path)
        except PathRefused:
            return None

    def write(self, path: str, data: bytes) -> None:
        """Make `data` the whole content of `path`, durably; missing directories are made.

        A link, a directory or anything else that is no ordinary file is refused, not replaced.
        """
        parts = self._parts(path)
        with self._refusing(f"{short(path)} could not be written"), self._directory(parts[:-1], make=True) as parent:
            existing = _ordinary(parent, parts, missing_ok=True)
            self._put(parent, parts, data, existing)

    def walk(self, descend: Callable[[str], bool] = lambda _: True) -> Iterator[Entry]:
        """Everything below the root in bytewise order, a directory before its content.

        Links are listed, never followed. Only directories that `descend` accepts are entered.
        """
        with self._refusing("The workspace was not listed"):
            pending = self._children(())
        while pending:
            parts, kind = pending.pop()
            shown = display(b"/".join(parts))
            if kind == "directory" and descend(shown):
                try:
                    pending += self._children(parts)
                except (OSError, PathRefused):
                    kind = "unreadable"
            yield Entry(shown, kind)

    def _children(self, parts: Parts) -> list[tuple[Parts, Kind]]:
        # One open per component and none kept, so that a deep tree needs neither stack nor descriptors.
        with self._directory(parts) as directory, os.scandir(directory) as found:
            children = [((*parts, os.fsencode(entry.name)), _kind(entry)) for entry in found]
        return sorted((child for child in children if not self._is_hidden(child[0])), reverse=True)

    def _parts(self, path: str) -> Parts:
        try:
            name = parse(path)
            parts = components(name)
        except ValueError as error:
            raise PathRefused(f"{short(path)}: {error}") from None
        if not name or b"\0" in name:
            raise PathRefused("The path is empty." if not name else f"{short(path)} holds a NUL character.")
        if name.startswith(b"~"):
            raise PathRefused(f"{short(path)}: ~ stands for nothing here. Give a path from the workspace's root.")
        if len(name) > PATH_MAX_BYTES or any(len(part) > NAME_MAX_BYTES for part in parts):
            raise PathRefused(f"{short(path)} is too long for a path.")
        below = self._below_root(parts) if name.startswith(b"/") else parts
        if below is None:
            raise PathRefused(f"{short(path)} lies outside the workspace. Give a path from its root.")
        if self._is_hidden(below):
            raise PathRefused(f"{short(path)} is closed to file tools: git and this run keep their own state there.")
        return below

    def _below_root(self, absolute: Parts) -> Parts | None:
        roots = (root for root in self._spellings if absolute[: len(root)] == root)
        return next((absolute[len(root) :] for root in roots), None)

    def _is_hidden(self, parts: Parts) -> bool:
        folded = tuple(map(fold, parts))
        return ".git" in folded or any(folded[: len(hidden)] == hidden for hidden in self._hidden)

    @contextmanager
    def _directory(self, parts: Parts, *, make: bool = False) -> Iterator[int]:
        """A descriptor of the directory `parts`, reached without passing a link."""
        current = os.open(self.root, _DIRECTORY)
        try:
            found = os.fstat(current)
            if (found.st_dev, found.st_ino) != self._identity:
                raise PathRefused("The workspace directory was replaced by another; nothing was touched.")
            for depth in range(1, len(parts) + 1):
                above, current = current, self._enter(current, parts[:depth], make=make)
                os.close(above)
            yield current
        finally:
            os.close(current)

    def _enter(self, parent: int, parts: Parts, *, make: bool) -> int:
        if make:
            with suppress(FileExistsError):
                os.mkdir(parts[-1], dir_fd=parent)
                if owner := _other_owner(parent):
                    os.chown(parts[-1], *owner, dir_fd=parent, follow_symlinks=False)
                os.fsync(parent)
        try:
            return os.open(parts[-1], _DIRECTORY, dir_fd=parent)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                _refuse_link(parent, parts)
                raise PathRefused(f"{_shown(parts)} is not a directory.") from None
            raise

    def _put(self, parent: int, parts: Parts, data: bytes, existing: os.stat_result | None) -> None:
        temp = f".{hashlib.blake2b(b'/'.join(parts), digest_size=12).hexdigest()}.endstate-tmp"
        _discard(parent, temp)
        staging = self._open_staging()
        try:
            if staging is None or not _replace(staging, temp, parent, parts[-1], data, existing):
                _replace(parent, temp, parent, parts[-1], data, existing)
        finally:
            if staging is not None:
                os.close(staging)

    def _open_staging(self) -> int | None:
        # Whoever deletes the state directory (`git clean`) costs us the private place, not the write.
        try:
            return None if self.staging is None else os.open(self.staging, _DIRECTORY)
        except OSError:
            return None

    @contextmanager
    def _refusing(self, what: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise PathMissing(f"{what}: it does not exist.") from None
        except OSError as error:
            raise PathRefused(f"{what}: {os.strerror(error.errno or 0)}.") from error


def sync_directory(path: Path) -> None:
    """Make durable which names the directory holds."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def atomic_write(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Make `data` the content of a file of our own, durably, whole or not at all.

    The directory must exist. A link at `path` is replaced, never followed.

    Raises:
        OSError: nothing was changed.
    """
    parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _replace(parent, f".{path.name}.{os.getpid()}.tmp", parent, os.fsencode(path.name), data, mode)
    finally:
        os.close(parent)


def _replace(source: int, temp: str, target: int, name: bytes, data: bytes, like: os.stat_result | int | None) -> bool:
    """Write `data` as `temp` in `source`, then rename it to `name` in `target`; False across mounts.

    `like`: mode bits, or the file whose mode and owner to keep, or None for the user's defaults.
    """
    _discard(source, temp)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        # Closed to others until the mode is known, since what is replaced may be secret.
        with os.fdopen(os.open(temp, flags, 0o666 if like is None else 0o600, dir_fd=source), "wb") as file:
            _keep_owner_and_mode(file.fileno(), like, target)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temp, name, src_dir_fd=source, dst_dir_fd=target)
    except BaseException as error:
        _discard(source, temp)
        if isinstance(error, OSError) and error.errno == errno.EXDEV:
            return False
        raise
    os.fsync(target)
    return True


def _keep_owner_and_mode(file: int, like: os.stat_result | int | None, directory: int) -> None:
    if like is None:
        if owner := _other_owner(directory):
            os.fchown(file, *owner)
        return
    if isinstance(like, os.stat_result):
        with suppress(PermissionError):
            os.fchown(file, like.st_uid, like.st_gid)
        like = like.st_mode
    os.fchmod(file, like & 0o777)


def _other_owner(directory: int) -> tuple[int, int] | None:
    """Whose directory it is, where we work as root in somebody else's: he must be able to change what is new there."""
    found = os.fstat(directory)
    return (found.st_uid, found.st_gid) if os.geteuid() == 0 and found.st_uid != 0 else None


def _discard(directory: int, name: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)


def _ordinary(parent: int, parts: Parts, *, missing_ok: bool = False) -> os.stat_result | None:
    if not parts:
        raise PathRefused("The workspace's root is a directory, not a file.")
    try:
        found = os.lstat(parts[-1], dir_fd=parent)
    except FileNotFoundError:
        if missing_ok:
            return None
        raise
    if stat.S_ISREG(found.st_mode):
        return found
    _refuse_link(parent, parts)
    what = "is a directory, not a file" if stat.S_ISDIR(found.st_mode) else "is a fifo, socket or device"
    raise PathRefused(f"{_shown(parts)} {what}.")


def _refuse_link(parent: int, parts: Parts) -> None:
    """Raise where the last of `parts` is a link; do nothing where it is none."""
    try:
        target = os.readlink(parts[-1], dir_fd=parent)
    except OSError:
        return
    advice = "Links are not followed and not replaced; use the path it points to, where that is in the workspace."
    raise PathRefused(f"{_shown(parts)} is a link to {short(display(target))}. {advice}")


def _kind(entry: os.DirEntry[str]) -> Kind:
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "directory"
    return "file" if entry.is_file(follow_symlinks=False) else "other"


def _shown(parts: Parts) -> str:
    return short(display(b"/".join(parts)))
