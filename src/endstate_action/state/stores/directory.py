"""A directory outside the workspace as a store: for self-hosted runners with a disk that outlives them.

`<path>/es1/<lineage>/<name>` is an object, complete from the moment that it has this name. It is written
beside its place under a name that no key can have, synced, and then linked: a link never replaces anything,
so of several writers exactly one makes it. A file system without hard links gets the same from a claim file
that is created exclusively. No link is followed on the way, and what belongs to another user is refused.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from endstate_action.state.keys import ROOT, is_lineage
from endstate_action.state.stores.base import MAX_ENTRY_BYTES, Denied, Exists, Put, Stored, Unavailable
from endstate_action.state.stores.bounded import Deadline, unreadable, within
from endstate_action.state.stores.key_parts import highest, is_name, key, split
from endstate_action.system import own_files
from endstate_action.system.durable import sync

_T = TypeVar("_T")

LEFTOVER_AGE_S = 3600.0
"""A half-written file that is older belongs to a writer that is dead."""

_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a fifo in an object's place would wait for a writer for ever.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NO_LINKS = frozenset({errno.EPERM, errno.ENOSYS, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP})
_NO_FILE = frozenset({errno.EISDIR, errno.ELOOP, errno.ENXIO})
# Waiting changes none of these.
_FINAL = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ELOOP, errno.EISDIR})
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_REMEDY_OF_LOST = (
    "Put it back as it was (is its disk mounted?), and what is recorded is stored there again; or name another one by "
    "`store`: dir:PATH, when the run is resumed."
)
_REMEDY = "Make it a directory that is yours and writable, with all in it, or name another one by `store`: dir:PATH."


class DirectoryStore:
    """Objects below `path`, which is absolute and made on the first put, in a directory that has to be there.

    A missing one is an empty store.

    Args:
        link: how a file gets a second name; a parameter, since not every file system can do it.
    """

    name = "dir"
    deletes = True

    def __init__(self, path: Path, *, link: Callable[..., None] = os.link) -> None:
        self.path = path
        self._link = link
        self._durable: set[str] = set()

    def put(self, key: str, data: bytes, *, timeout_s: float, drop: Collection[str] = ()) -> Put:
        lineage, name = split(key)
        deadline = Deadline(timeout_s)
        try:
            outcome = within(timeout_s, lambda: self._put(lineage, name, data))
        except FileNotFoundError as error:
            return self._missing(lineage) or self._failed(error)
        except OSError as error:
            return self._failed(error)
        if isinstance(outcome, Stored):
            # What is dropped was still needed until now, and what cannot be dropped does no harm.
            with suppress(OSError):
                within(deadline.left(), lambda: self._drop([split(k) for k in drop if k != key]))
        return outcome

    def get(self, key: str, *, timeout_s: float) -> bytes | None:
        lineage, name = split(key)
        return self._asked(timeout_s, lambda: self._get(lineage, name))

    def first(self, prefixes: Sequence[str], *, timeout_s: float) -> str | None:
        return self._asked(timeout_s, lambda: self._first(prefixes))

    def lineages(self, *, timeout_s: float) -> list[str] | None:
        return self._asked(timeout_s, self._lineages)

    def keys(self, prefix: str, *, timeout_s: float) -> list[str] | None:
        lineage, beginning = split(prefix)
        names = self._asked(timeout_s, lambda: self._names(lineage))
        return [key(lineage, name) for name in names if name.startswith(beginning)]

    def _put(self, lineage: str, name: str, data: bytes) -> Put:
        self._make(lineage)
        with self._lineage(lineage) as at:
            temp = f".{name}.{secrets.token_hex(8)}{own_files.PART}"
            try:
                now = _write(at, temp, data)
                if not self._take(at, temp, name):
                    return Exists(key(lineage, name))
            finally:
                _discard(at, temp)
            try:
                os.fsync(at)
            except OSError as error:
                return Unavailable(f"{self.path} did not confirm the new name ({error.strerror})")
            _sweep(at, now - LEFTOVER_AGE_S)
        return Stored(key(lineage, name), len(data))

    def _take(self, at: int, temp: str, name: str) -> bool:
        """Give `temp` the name `name` unless something has it; False if so."""
        try:
            self._link(temp, name, src_dir_fd=at, dst_dir_fd=at, follow_symlinks=False)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return _claim(at, temp, name)
        return True

    def _drop(self, dropped: Sequence[tuple[str, str]]) -> None:
        for lineage, name in dropped:
            with self._lineage(lineage) as at:
                for file in (name, _claim_of(name)):
                    _discard(at, file)

    def _get(self, lineage: str, name: str) -> bytes | None:
        try:
            with self._lineage(lineage) as at, os.fdopen(os.open(name, _READ, dir_fd=at), "rb") as file:
                found = os.fstat(file.fileno())
                if not stat.S_ISREG(found.st_mode):
                    return b""
                _refuse_others(found, stat.S_ISREG)
                # No object of ours is longer, and of another length it does not open.
                return file.read(MAX_ENTRY_BYTES) if found.st_size <= MAX_ENTRY_BYTES else b""
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in _NO_FILE:
                return b""  # what is no file of ours opens as nothing does, and its name still bears witness
            raise

    def _first(self, prefixes: Sequence[str]) -> str | None:
        for lineage, beginning in map(split, prefixes):
            name = highest(self._names(lineage), beginning)
            if name is not None:
                return key(lineage, name)
        return None

    def _names(self, lineage: str) -> list[str]:
        try:
            with self._lineage(lineage) as at, os.scandir(at) as found:
                return sorted(e.name for e in found if is_name(e.name))
        except FileNotFoundError:
            return []

    def _lineages(self) -> list[str]:
        place = self.path / ROOT
        try:
            with own_files.directory(place):
                pass  # what is in the way of one is no empty store
        except FileNotFoundError:
            return []
        return [name for name in own_files.names(place) if is_lineage(name) and self._names(name)]

    @contextmanager
    def _lineage(self, lineage: str) -> Iterator[int]:
        """A descriptor of the directory with a lineage's objects, reached without passing a link."""
        with own_files.directory(self.path / ROOT / lineage) as way:
            at = os.open(".", _LIST, dir_fd=way)
        try:
            _refuse_others(os.fstat(at), stat.S_ISDIR)
            yield at
        finally:
            os.close(at)

    def _make(self, lineage: str) -> None:
        """The directories down to a lineage's, durably: once for each, since another writer may have been killed."""
        if lineage in self._durable:
            return
        place = self.path / ROOT / lineage
        with own_files.directory(self.path.parent):
            pass  # where it is missing, the path may be a slip, or its disk not be mounted
        try:
            with own_files.directory(place, make=True):
                pass
        except FileNotFoundError as error:
            # What is above it is there by then, and is no place for directories.
            raise NotADirectoryError(errno.ENOTDIR, "no directory can be made there") from error
        for folder in place.parents:
            # A directory above ours may be closed to reading; then it was there before us.
            with suppress(PermissionError):
                sync([], [os.fspath(folder)])
            if folder == self.path.parent:
                break
        self._durable.add(lineage)

    def _missing(self, lineage: str) -> Denied | None:
        """Of what was taken away while we use it nothing is made anew: what it held would be missing from it."""
        place = self.path / ROOT / lineage
        if place.exists():
            return None
        if lineage in self._durable:
            where = place if self.path.exists() else self.path
            reason = f"the directory {where} is gone, and what was stored in it"
            return Denied(reason, _REMEDY_OF_LOST, may_pass=True, is_lost=True)
        reason = f"the directory {self.path.parent} is not there to make {self.path.name} in it"
        return Denied(reason, "Is that the path, and is its disk mounted?", may_pass=True)

    def _failed(self, error: OSError) -> Put:
        reason = f"{self.path}: {error.strerror or error}"
        if isinstance(error, TimeoutError):
            return Unavailable(reason)
        if error.errno in _FINAL:
            return Denied(reason, _REMEDY)
        if error.errno in _FULL:
            # Room is made by a person: whoever waits for it waits in vain, but a later object may fit.
            return Denied(reason, f"Make room in {self.path}, or name another one by `store`: dir:PATH.", may_pass=True)
        return Unavailable(reason, is_doubtful=False)

    def _asked(self, timeout_s: float, question: Callable[[], _T]) -> _T:
        try:
            return within(timeout_s, question)
        except OSError as error:
            remedy = _REMEDY if error.errno in _FINAL else ""
            raise unreadable(self.name, f"{self.path}: {error.strerror or error}", remedy) from error


def _write(at: int, name: str, data: bytes) -> float:
    """A new file with this content, on disk; returns when that was, by the file system's clock."""
    with os.fdopen(os.open(name, _NEW, 0o600, dir_fd=at), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        return os.fstat(file.fileno()).st_mtime


def _claim(at: int, temp: str, name: str) -> bool:
    """`_take` by a rename, which only the maker of the claim file may do.

    The claim stays. If we are killed before the rename, the name is taken and nothing is ever seen under it.
    """
    claim = _claim_of(name)
    try:
        os.close(os.open(claim, _NEW, 0o600, dir_fd=at))
    except FileExistsError:
        return False
    try:
        if _is_there(at, name):
            return False
        os.rename(temp, name, src_dir_fd=at, dst_dir_fd=at)
    except OSError:
        _discard(at, claim)
        raise
    return True


def _claim_of(name: str) -> str:
    return f".{name}.claim"


def _is_there(at: int, name: str) -> bool:
    try:
        os.lstat(name, dir_fd=at)
    except FileNotFoundError:
        return False
    return True


def _sweep(at: int, before: float) -> None:
    """Remove what killed writers left; theirs is none of our business if it cannot be removed."""
    for name in os.listdir(at):
        if name.startswith(".") and name.endswith(own_files.PART):
            with suppress(OSError):
                if os.lstat(name, dir_fd=at).st_mtime < before:
                    os.unlink(name, dir_fd=at)


def _discard(at: int, name: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=at)


def _refuse_others(found: os.stat_result, is_kind: Callable[[int], bool]) -> None:
    if not is_kind(found.st_mode):
        raise PermissionError(errno.EPERM, "something that is no ordinary file stands in an object's place")
    if found.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, f"it belongs to another user (uid {found.st_uid})")
