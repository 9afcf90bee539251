"""A child that does the work, and a parent that outlives it: who is killed for its memory is started again here.

The parent holds nothing and does nothing, so that it is not what the kernel picks. It passes on the signals that the
runner sends to it alone, and the child is gone as soon as the parent is.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from endstate_action.system.linux import die_with_us
from endstate_action.system.process import fork
from endstate_action.system.signals import heeded

RESTARTS = 2


def supervise(story: Callable[[], int], tell: Callable[[str, bool], None]) -> int:
    """The exit code of `story`, run in a child; where the child is killed, of the next one's.

    Before any thread is started.

    Args:
        tell: told what killed it, and whether it is started again.
    """
    for started in range(RESTARTS + 1):
        code, was_asked = _run(story)
        if code >= 0 or was_asked:
            return code if code >= 0 else 128 - code
        name = signal.Signals(-code).name
        tell(name, started < RESTARTS)
    return 75


def _run(story: Callable[[], int]) -> tuple[int, bool]:
    """How the child ended (minus the signal that ended it), and whether we were asked to stop meanwhile."""
    arm = die_with_us()

    def child() -> None:
        if arm is not None:
            arm()
        code = story()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)

    asked: list[int] = []
    pid = fork(child)

    def forward(number: int, _: FrameType | None) -> None:
        asked.append(number)
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    before = {number: signal.signal(number, forward) for number in heeded()}
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
