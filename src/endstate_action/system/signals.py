"""Signals and the deadline, turned into exceptions only where nothing can be torn.

A record, and what a tool does, are never interrupted half-way: a signal is remembered, and `check()`
raises it, between records and wherever a running call looks. Only inside `allowed()`, where a model's
answer is waited for and nothing of ours can be torn, the handler itself raises.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from endstate_action.errors import Interrupted

_CAUGHT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_MAY_BE_IGNORED = (signal.SIGINT, signal.SIGHUP)
LOOK_GRACE_S = 2.0
"""So much longer a look at the workspace may take, so that what was done before it can be shipped with what it left:
of the ten seconds that a runner gives, shipping has five."""
_AGAIN_S = 0.5
"""An exception raised inside a finaliser or a callback is swallowed by the interpreter, so it is raised again."""


class TimeIsUp(Exception):
    """The attempt's own time (`max-minutes`) is over."""


def heeded() -> tuple[signal.Signals, ...]:
    """The signals that ask us to stop, without those that we were started to ignore (by `nohup`, say)."""
    return tuple(s for s in _CAUGHT if s not in _MAY_BE_IGNORED or signal.getsignal(s) is not signal.SIG_IGN)


def hold() -> None:
    """Let what asks us to stop wait, also across an exec, until `release`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _CAUGHT)


def release() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _CAUGHT)


class Interrupts:
    """What has asked this attempt to stop. Without `caught()` nothing ever does, which suits embedders."""

    def __init__(self) -> None:
        self._allowed = 0
        self._pending: BaseException | None = None
        self._since = 0.0

    @contextmanager
    def caught(self, deadline_s: float | None = None) -> Iterator[None]:
        """Catch SIGINT, SIGTERM and SIGHUP, and the end of `deadline_s` seconds, while the block runs.

        SIGINT and SIGHUP stay ignored where they were, and after one that was caught all of them do. Only the main
        thread of a process can do all that; elsewhere the block runs as it is.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before: dict[signal.Signals, Any] = {s: signal.signal(s, self._on_signal) for s in heeded()}
        before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._on_alarm)
        if deadline_s is not None:
            signal.setitimer(signal.ITIMER_REAL, max(0.001, deadline_s))
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            # Once interrupted we are on our way out, and what is left to do there is not to be torn by a second signal.
            if not isinstance(self._pending, Interrupted):
                for number, handler in before.items():
                    signal.signal(number, handler)

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Inside this block (a model's answer is waited for) a signal raises at once."""
        self.check()
        self._allowed += 1
        try:
            yield
        finally:
            self._allowed -= 1

    def check(self) -> None:
        """Raise what arrived while it could not be raised."""
        if self._pending is not None:
            raise self._pending

    def check_late(self) -> None:
        """The same for what is worth to be finished, if that takes no longer than `LOOK_GRACE_S`."""
        if self._pending is not None and time.monotonic() - self._since >= LOOK_GRACE_S:
            raise self._pending

    def time_is_told(self) -> None:
        """The end of the time has been dealt with; what is left to do (to announce it) has a time of its own."""
        if isinstance(self._pending, TimeIsUp):
            self._pending = None
        if threading.current_thread() is threading.main_thread():
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        self._arrived(
            Interrupted(
                f"Interrupted by {name}. Everything finished so far is recorded; no further call was started.",
                hint="`endstate run --resume` continues.",
            )
        )

    def _on_alarm(self, number: int, frame: FrameType | None) -> None:
        self._arrived(self._pending or TimeIsUp())

    def _arrived(self, error: BaseException) -> None:
        if self._pending is None:
            self._pending, self._since = error, time.monotonic()
        elif self._pending is not error:
            return  # a second signal must not tear what handles the first
        if self._allowed:
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
            raise error
