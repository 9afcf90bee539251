"""One process at a time in a state directory, by a kernel lock that dies with its holder.

What the lock file says about its holder is for messages only: it never decides. A lock is never
taken by age; and since a deleted or replaced lock file would let a second process in, the open
file is compared with the path before everything that matters (`StateLock.check`).
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from filelock import FileLock, Timeout

from endstate_action.errors import Locked, StateError, StateReadOnly, StateReplaced

DEFAULT_TIMEOUT_S = 10.0
NOTICE_AFTER_S = 1.0
_HOLDER_BYTES = 2000


class StateLock:
    """The lock of one state directory, as a context manager.

    Args:
        path: the lock file; its directory must exist.
        holder: what to tell whoever has to wait (pid, host, start time, session).
        timeout_s: how long to wait for another holder.
        on_wait: called once with the holder's description after `NOTICE_AFTER_S` of waiting.

    Raises, on entering:
        Locked: still held by another process after `timeout_s`; the message names it.
        StateError: the path is a link, a directory, or on a file system without locks.
        StateReadOnly: the lock file cannot be opened for writing.
    """

    def __init__(
        self,
        path: Path,
        holder: Mapping[str, Any],
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        on_wait: Callable[[str], None] | None = None,
    ) -> None:
        self.path = path
        self._holder = dict(holder)
        self._timeout_s = timeout_s
        self._on_wait = on_wait
        self._fd = -1
        # Without the soft fallback: a marker file of a machine that is gone could never be proved stale.
        self._lock = FileLock(path, mode=0o600, thread_local=False, fallback_to_soft=False, on_acquired=self._acquired)

    def __enter__(self) -> Self:
        self._refuse_odd_path()
        deadline = time.monotonic() + self._timeout_s
        notice = min(NOTICE_AFTER_S, self._timeout_s)
        try:
            if not self._try(notice):
                if self._on_wait is not None and notice < self._timeout_s:
                    self._on_wait(self.describe_holder())
                if not self._try(max(0.0, deadline - time.monotonic())):
                    raise self._locked()
            self.check()
        except OSError as error:
            raise self._unusable(error) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._fd = -1
        self._lock.release(force=True)

    def check(self) -> None:
        """Confirm that the path still leads to the file we hold.

        Raises:
            StateReplaced: it was deleted or replaced, so another process may hold "the" lock as well.
        """
        try:
            ours, there = os.fstat(self._fd), os.stat(self.path, follow_symlinks=False)
        except OSError:
            ours, there = None, None
        if ours is None or there is None or (ours.st_dev, ours.st_ino) != (there.st_dev, there.st_ino):
            raise StateReplaced(
                f"The lock file {self.path} was deleted or replaced while this run held it. "
                "The run stopped before its next call; everything recorded so far is in the session.",
                hint="Make sure that no other process uses this directory, then `endstate run --resume`.",
            )

    def describe_holder(self) -> str:
        """Who holds the lock, in words, as far as the lock file tells."""
        return describe_holder(self.path)

    def _try(self, timeout_s: float) -> bool:
        try:
            self._lock.acquire(timeout=timeout_s)
        except Timeout:
            return False
        return True

    def name(self, session: str) -> None:
        """Tell those who wait which session is being run."""
        self._holder["session"] = session
        self._write_holder()

    def _acquired(self, fd: int) -> None:
        self._fd = fd
        self._write_holder()

    def _write_holder(self) -> None:
        text = json.dumps(self._holder | {"since": round(time.time(), 3)}, sort_keys=True).encode()
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, text[:_HOLDER_BYTES], 0)

    def _refuse_odd_path(self) -> None:
        try:
            mode = os.stat(self.path, follow_symlinks=False).st_mode
        except OSError:
            return
        if not stat.S_ISREG(mode):
            kind = "a symbolic link" if stat.S_ISLNK(mode) else "not a regular file"
            raise StateError(
                f"The lock file {self.path} is {kind}, so it was not opened and nothing was run.",
                hint="Remove it if you did not put it there on purpose.",
            )

    def _locked(self) -> Locked:
        return Locked(
            f"Another run holds {self.path.parent}: {self.describe_holder()}. "
            f"Waited {self._timeout_s:g} s; nothing was run and nothing was changed.",
            hint="Wait for it to end, or end it; the lock is free the moment that process is gone.",
        )

    def _unusable(self, error: OSError) -> StateError:
        kind = StateReadOnly if isinstance(error, PermissionError) or error.errno == 30 else StateError
        return kind(
            f"The lock file {self.path} cannot be used ({error.strerror or error}). Nothing was run.",
            hint="The state directory must be writable, on a file system that supports flock.",
        )


def describe_holder(path: Path) -> str:
    """Read the holder's own words from a lock file; never fails, whatever the file holds."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            said = json.loads(file.read(_HOLDER_BYTES))
        pid, host = int(said["pid"]), str(said["host"])[:80]
        text = f"process {pid} on {host!r}"
        if "session" in said:
            text += f", session {str(said['session'])[:12]!r}"
        return text + time.strftime(", since %H:%M:%S UTC", time.gmtime(float(said["since"])))
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return "a process that left no readable name"
