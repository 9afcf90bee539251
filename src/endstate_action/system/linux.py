"""What the kernel does for us so that no process and no secret gets away. Other systems: nothing, without complaint."""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36


def harden() -> None:
    """Keep unprivileged processes from reading our memory and environment, and us from leaving a core dump.

    No boundary against root.
    """
    _prctl(_PR_SET_DUMPABLE, 0)


def adopt_orphans() -> None:
    """From now on, what our descendants leave behind becomes our child, not that of init."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_us() -> Callable[[], None] | None:
    """What a child does between fork and exec: ask for SIGKILL when the thread that started it is gone.

    One system call, through a function that is loaded beforehand, since other threads may hold any lock.
    """
    if sys.platform != "linux":
        return None
    prctl, us = _libc().prctl, os.getpid()

    def arm() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL.value, 0, 0, 0)
        if os.getppid() != us:  # gone already, so nothing will be sent
            os._exit(1)

    return arm


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        _libc().prctl(option, value, 0, 0, 0)


@functools.cache
def _libc() -> Any:
    return ctypes.CDLL(None)
