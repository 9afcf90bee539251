"""How the runner ends a step: an interrupt, a while later a request, then by force; its direct child alone."""

from __future__ import annotations

import signal
import subprocess
import time
from dataclasses import dataclass

INTERRUPT_S, REQUEST_S, PIPES_S = 7.5, 2.5, 5.0


@dataclass(frozen=True)
class Climbed:
    code: int
    seconds: float
    out: str


def climb(process: subprocess.Popen[str], *, scale: float = 1.0) -> Climbed:
    """End `process` as a runner would, `scale` times as slowly. Its group and its children are left alone."""
    begun = time.monotonic()
    for number, patience in ((signal.SIGINT, INTERRUPT_S), (signal.SIGTERM, REQUEST_S), (signal.SIGKILL, PIPES_S)):
        process.send_signal(number)
        try:
            process.wait(patience * scale)
        except subprocess.TimeoutExpired:
            continue
        return Climbed(process.returncode, (time.monotonic() - begun) / scale, _rest(process, scale))
    raise AssertionError("a process outlived SIGKILL")


def _rest(process: subprocess.Popen[str], scale: float) -> str:
    """What it printed. Pipes that others still hold are waited for, but not for long."""
    try:
        return process.communicate(timeout=PIPES_S * scale)[0]
    except subprocess.TimeoutExpired as late:
        return (late.stdout or b"").decode() if isinstance(late.stdout, bytes) else ""
