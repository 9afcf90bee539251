"""The state directory: inside the workspace, ours alone, never committed.

A pull request must not be able to ship a forged session, so a directory that is a link, that the
repository tracks, or that we did not make is refused before anything in it is read. Nothing is
written or deleted through a link in it.
"""

from __future__ import annotations

import errno
import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from endstate_action.errors import InputError, StateError, StateReadOnly
from endstate_action.system import own_files
from endstate_action.system.files import sync_directory

DEFAULT_NAME = ".endstate"
COUNT = "-rows"
"""Ends the name of the file that counts the records of the database beside it; see `session`."""
_MARKER = "endstate-state"
_MARKER_TEXT = b"This directory holds the sessions of endstate runs. Format 1.\n"


@dataclass(frozen=True, slots=True)
class StateDirectory:
    """Where things lie below `path` (absolute)."""

    path: Path

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    @property
    def sessions(self) -> Path:
        return self.path / "sessions"

    @property
    def tmp(self) -> Path:
        """On the workspace's mount, for files that will be renamed into it."""
        return self.path / "tmp"

    @property
    def cache(self) -> Path:
        return self.path / "cache"

    @property
    def restore_log(self) -> Path:
        """There while a restore is under way, and after one that was killed."""
        return self.path / "restore.json"

    @property
    def restored_log(self) -> Path:
        """Which session was restored here last, and in which directory: what was copied from elsewhere was not."""
        return self.path / "restored.json"

    def baseline(self, session: str) -> Path:
        """The scan of the workspace taken when the session's task began."""
        return self.path / "baseline" / session

    def claim(self) -> None:
        """Create the directory, or confirm that it is ours.

        Raises:
            StateError: a link, not a directory, or not made by us.
            StateReadOnly: it cannot be written.
        """
        self.confirm()
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            is_new = not self._is_marked()
            if is_new:
                _write_synced(self.path / ".gitignore", b"*\n")
                _write_synced(self.path / _MARKER, _MARKER_TEXT)
            for folder in (self.sessions, self.tmp, self.cache, self.path / "baseline"):
                folder.mkdir(mode=0o700, exist_ok=True)
            if is_new:
                # Else a power cut could leave a session in a directory that no longer says it is ours.
                sync_directory(self.path)
                sync_directory(self.path.parent)
            for needed in (self.path, self.tmp, self.path / "objects"):
                if needed.exists() and not os.access(needed, os.W_OK | os.X_OK):
                    raise PermissionError(errno.EACCES, "not writable", str(needed))
        except OSError as error:
            where = f": {error.filename}" if error.filename not in (None, str(self.path)) else ""
            raise StateReadOnly(
                f"The state directory {self.path} cannot be written ({error.strerror}{where}). Nothing was run.",
                hint="Runs need a writable state directory; `sessions` and `tree-hash` do not.",
            ) from error

    def confirm(self) -> None:
        """Refuse a state directory that could have come from somewhere else; a missing one is fine.

        Raises:
            StateError: a link, one that holds links, not a directory, or not made by us.
            StateReadOnly: another user's, or closed to us.
        """
        try:
            self._confirm()
        except PermissionError as error:
            raise closed(self.path) from error

    def clear(self) -> None:
        """Remove what is temporary or half made; only for who holds the lock, since nobody else then needs it.

        Raises:
            StateReadOnly: it cannot be removed.
        """
        try:
            self._clear()
        except OSError as error:
            raise StateReadOnly(
                f"What an earlier run left in {self.path} cannot be removed ({error.strerror}). Nothing was run.",
                hint="Make the state directory and all in it yours and writable.",
            ) from error

    def _clear(self) -> None:
        _remove(self.tmp, own_files.names(self.tmp))
        sessions = own_files.names(self.sessions)
        # A removal takes the count first: where that is left, the database was lost, and the rest may be needed.
        known = {n.removesuffix(COUNT) for n in sessions}
        orphans = [n for n in sessions if ".db-" in n and n.rpartition("-")[0] not in known]
        _remove(self.sessions, [*orphans, *(n for n in sessions if n.startswith(".new-"))])
        caches = [self.cache / name for name in own_files.names(self.cache) if name.startswith("snapshot-")]
        for folder in (self.path / "baseline", self.cache, *caches):
            _remove(folder, [n for n in own_files.names(folder) if n.endswith((own_files.PART, own_files.PROBE))])

    def _confirm(self) -> None:
        if self.path.is_symlink():
            raise StateError(
                f"The state directory {self.path} is a symbolic link, so it was not used. Nothing was run.",
                hint="Remove the link. A state directory must be a real directory inside the workspace.",
            )
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise StateError(
                f"{self.path} exists and is not a directory, so no state can be kept. Nothing was run.",
                hint="Remove it, or name another place with --state-dir.",
            )
        with os.scandir(self.path) as found:
            entries = sorted(found, key=lambda entry: entry.name)
        for entry in entries:
            if entry.is_symlink():
                raise StateError(
                    f"{self.path / entry.name} is a symbolic link, so the state directory was not used. "
                    "Nothing was run.",
                    hint="Remove the link.",
                )
        # A kill while the directory was made leaves at most the first two, a run under which it was deleted (`git
        # clean`, say) makes the others anew on its way to noticing that. No session can hide in any of them.
        unfinished = {entry.name for entry in entries} <= {".gitignore", _MARKER, "tmp", "cache"}
        if not unfinished and not self._is_marked():
            raise StateError(
                f"{self.path} exists but was not made by endstate, so it was left alone. Nothing was run.",
                hint="Remove it, or name another place with --state-dir.",
            )

    def _is_marked(self) -> bool:
        try:
            return own_files.get(self.path / _MARKER) == _MARKER_TEXT
        except PermissionError:
            raise
        except OSError:
            return False


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _remove(folder: Path, found: list[str]) -> None:
    if found:
        with own_files.directory(folder) as parent:
            for name in found:
                own_files.remove(name, parent)


def closed(path: Path) -> StateReadOnly:
    """The error for what is there and not open to us: whose it is, and what to do."""
    return StateReadOnly(
        f"{path} may not be read: {_whose(path)}, and this runs as {_user(os.geteuid())}. Nothing was run.",
        hint="Run as its owner, give it to yourself (`chown -R`, `chmod -R u+rwX`), or name another place "
        "with --state-dir.",
    )


def _whose(path: Path) -> str:
    try:
        found = path.stat(follow_symlinks=False)
    except OSError:
        return "a directory above it is closed"
    return f"it belongs to {_user(found.st_uid)} (mode {found.st_mode & 0o7777:o})"


def _user(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"


def workspace_at(name: str) -> Path:
    """The directory `name`, without links.

    Raises:
        InputError: it is none, or has been deleted.
    """
    try:
        if Path(name).is_dir():
            return Path(name).resolve(strict=True)
    except OSError as error:
        raise InputError(
            f"The working directory {name!r} cannot be used ({error.strerror}); nothing was run.",
            hint="It was deleted or is closed to you. Change to another directory, or name one with "
            "--working-directory.",
        ) from error
    raise InputError(
        f"working-directory {name!r} is not a directory; nothing was run.", hint="Name an existing directory."
    )


def locate(workspace: Path, name: str) -> StateDirectory:
    """The state directory of a workspace; `name` is relative to it.

    Raises:
        InputError: the name leaves the workspace, or is the workspace itself.
        StateError: a directory on the way to it is a link.
    """
    path = Path(os.path.normpath(workspace / name))
    if workspace not in path.parents or ".git" in path.relative_to(workspace).parts:
        raise InputError(
            f"state-dir {name!r} does not lie inside the workspace {workspace}. Nothing was run.",
            hint="A state directory must be on the workspace's own file system; the default is .endstate.",
        )
    for above in path.parents[: len(path.relative_to(workspace).parts) - 1]:
        if above.is_symlink():
            raise StateError(
                f"{above}, on the way to the state directory {name!r}, is a symbolic link. Nothing was run.",
                hint="Remove the link, or name a place that no link leads to.",
            )
    return StateDirectory(path)


def refuse_tracked(state: StateDirectory, workspace: Path, environ: Mapping[str, str]) -> None:
    """Refuse a state directory that came with the repository; for commands that have not opened it otherwise.

    Raises:
        StateError: the index of the repository at `workspace` holds files in it.
    """
    if not state.path.is_dir() or not os.path.lexists(workspace / ".git"):
        return
    # Most commands are over before git's modules are loaded.
    from endstate_action.system.git import is_in_index

    name = state.path.relative_to(workspace).as_posix()
    if is_in_index(workspace, name, environ):
        raise tracked(name)


def tracked(name: str) -> StateError:
    """The error for a state directory `name` that the repository tracks."""
    return StateError(
        f"The repository tracks files in {name}, so a session there could be forged. Nothing was run.",
        hint=f"`git rm -r --cached {name}` and commit, or name another place with --state-dir.",
    )
