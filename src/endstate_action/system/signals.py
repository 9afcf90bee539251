"""Signals and the deadline, turned into exceptions only where nothing can be torn.

A record is never interrupted half-way: outside `allowed()` a signal is only remembered, and
`check()`, called between records, raises it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from endstate_action.errors import Interrupted

_CAUGHT = tuple(s for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))


class TimeIsUp(Exception):
    """The attempt's own time (`max-minutes`) is over."""


class Interrupts:
    """What has asked this attempt to stop. Without `caught()` nothing ever does, which suits embedders."""

    def __init__(self) -> None:
        self._allowed = 0
        self._pending: BaseException | None = None

    @contextmanager
    def caught(self, deadline_s: float | None = None) -> Iterator[None]:
        """Catch SIGINT, SIGTERM and SIGHUP, and the end of `deadline_s` seconds, while the block runs.

        Only the main thread of a process can do that; elsewhere the block runs as it is.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before: dict[signal.Signals, Any] = {s: signal.signal(s, self._on_signal) for s in _CAUGHT}
        before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._on_alarm)
        if deadline_s is not None:
            signal.setitimer(signal.ITIMER_REAL, max(0.001, deadline_s))
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Inside this block (a model's answer, a running call) a signal raises at once."""
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

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        self._arrived(
            Interrupted(
                f"Interrupted by {name}. Everything finished so far is recorded; no further call was started.",
                hint="`endstate run --resume` continues.",
            )
        )

    def _on_alarm(self, number: int, frame: FrameType | None) -> None:
        self._arrived(TimeIsUp())

    def _arrived(self, error: BaseException) -> None:
        first = self._pending is None
        if first:
            self._pending = error
        # A second signal while the first is being handled must not tear what handles it.
        if first and self._allowed:
            raise error
