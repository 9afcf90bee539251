"""The state directory: inside the workspace, ours alone, never committed.

A pull request must not be able to ship a forged session, so a directory that is a link, that the
repository tracks, or that we did not make is refused before anything in it is read.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

from endstate_action.errors import InputError, StateError, StateReadOnly
from endstate_action.system.files import sync_directory

DEFAULT_NAME = ".endstate"
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
            if not os.access(self.path, os.W_OK):
                raise PermissionError(errno.EACCES, "not writable")
        except OSError as error:
            raise StateReadOnly(
                f"The state directory {self.path} cannot be written ({error.strerror}). Nothing was run.",
                hint="Runs need a writable state directory; `sessions` and `tree-hash` do not.",
            ) from error

    def confirm(self) -> None:
        """Refuse a state directory that could have come from somewhere else; a missing one is fine."""
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
        for part in ("lock", "sessions", "tmp", "cache", "baseline", _MARKER, ".gitignore"):
            if (self.path / part).is_symlink():
                raise StateError(
                    f"{self.path / part} is a symbolic link, so the state directory was not used. Nothing was run.",
                    hint="Remove the link.",
                )
        # A kill while the directory was made leaves at most the first two, a run under which it was deleted (`git
        # clean`, say) makes the others anew on its way to noticing that. No session can hide in any of them.
        unfinished = {entry.name for entry in self.path.iterdir()} <= {".gitignore", _MARKER, "tmp", "cache"}
        if not unfinished and not self._is_marked():
            raise StateError(
                f"{self.path} exists but was not made by endstate, so it was left alone. Nothing was run.",
                hint="Remove it, or name another place with --state-dir.",
            )

    def _is_marked(self) -> bool:
        try:
            return (self.path / _MARKER).read_bytes() == _MARKER_TEXT
        except OSError:
            return False


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def locate(workspace: Path, name: str) -> StateDirectory:
    """The state directory of a workspace; `name` is relative to it.

    Raises:
        InputError: the name leaves the workspace, or is the workspace itself.
    """
    path = Path(os.path.normpath(workspace / name))
    if workspace not in path.parents or ".git" in path.relative_to(workspace).parts:
        raise InputError(
            f"state-dir {name!r} does not lie inside the workspace {workspace}. Nothing was run.",
            hint="A state directory must be on the workspace's own file system; the default is .endstate.",
        )
    return StateDirectory(path)
