"""The call lock: held by whatever still runs for a call, even when we are long gone.

The sandbox inherits the open file, so the lock outlives the process that took it for as long as a
sandbox does. A resume must find it free before it touches the tree.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from endstate_action.errors import StateError

_NAME = "call-lock"
_POLL_S = 0.02


class CallStillRuns(Exception):
    """A sandbox of an earlier call has not ended."""


@dataclass(frozen=True, slots=True)
class CallLock:
    """The lock file at `path`, whose directory must exist. What it holds means nothing: calls can write to it."""

    path: Path

    @classmethod
    def of(cls, state_dir: Path) -> CallLock:
        return cls(state_dir / _NAME)

    @contextmanager
    def held(self, timeout_s: float = 0.0, check: Callable[[], None] = lambda: None) -> Iterator[int]:
        """The descriptor that holds the lock, to be inherited by the sandbox.

        At the block's end we let go of it; the lock is free when all that inherited it have ended.
        `check` is called while waiting; an exception from it is passed on.

        Raises:
            CallStillRuns: another sandbox still holds it after `timeout_s`.
            StateError: something else stands in its place.
            OSError: it cannot be opened.
        """
        deadline = time.monotonic() + timeout_s
        while (descriptor := self._try()) is None:
            check()
            if time.monotonic() >= deadline:
                raise CallStillRuns(f"A command of an earlier call has not ended yet: it holds {self.path}.")
            time.sleep(_POLL_S)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def is_free(self, timeout_s: float = 0.0, check: Callable[[], None] = lambda: None) -> bool:
        """Whether no sandbox runs any more, at the latest `timeout_s` from now."""
        try:
            with self.held(timeout_s, check):
                return True
        except CallStillRuns:
            return False

    def _try(self) -> int | None:
        # Read-only: a sandbox can open the file anew through /proc, and should find no more than we have. To open a
        # pipe would wait for whoever writes to it.
        try:
            descriptor = os.open(
                self.path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600
            )
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EISDIR):
                raise self._odd() from error
            raise
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise self._odd()
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _odd(self) -> StateError:
        return StateError(
            f"The lock file {self.path} is not a regular file, so no command was run.",
            hint="Remove it if you did not put it there on purpose, and run again.",
        )
