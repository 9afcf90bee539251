"""The `endstate` command as a real process that goes on while a test looks at it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HANG_S = 60
"""Nothing here takes that long; it only keeps a hanging test from hanging for ever."""


@contextmanager
def running(
    workspace: Path, script: dict[str, Any], *arguments: str, provider: Sequence[str] = (), key: str = ""
) -> Iterator[subprocess.Popen[str]]:
    """`endstate run`, with a scripted model unless a provider's options are given. Killed at the end if need be."""
    file = workspace.parent / f"script-{time.monotonic_ns()}.json"
    file.write_text(json.dumps(script))
    options = provider or ("--provider", "scripted", "--script", str(file))
    argv = [sys.executable, "-m", "endstate_action", "run", *arguments, *options, "--instructions", "none"]
    env = dict(os.environ) | ({"ANTHROPIC_API_KEY": key} if key else {})
    process = subprocess.Popen(argv, cwd=workspace, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit code and standard error, once it has ended."""
    _, said = process.communicate(timeout=HANG_S)
    return process.returncode, said


def run(workspace: Path, script: dict[str, Any], *arguments: str) -> tuple[int, str]:
    with running(workspace, script, *arguments) as process:
        return ended(process)


def wait_until(true: Callable[[], bool], process: subprocess.Popen[str] | None = None) -> None:
    """Poll; fails when it never comes true, or when the process that was to make it so has ended."""
    deadline = time.monotonic() + HANG_S
    while not true():
        assert time.monotonic() < deadline, "this never came true"
        assert process is None or process.poll() is None, ended(process)
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] not in "ZX"
