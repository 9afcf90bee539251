"""A run of the `endstate` command that goes on while a test looks at it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support import command

HANG_S = 60
"""Nothing here takes that long; it only keeps a test from hanging for ever."""


@contextmanager
def running(
    workspace: Path, script: dict[str, Any], *arguments: str, provider: Sequence[str] = (), key: str = ""
) -> Iterator[subprocess.Popen[bytes]]:
    """`endstate run`, with a scripted model unless a provider's options are given. Not left running after the block."""
    name = f"script-{time.monotonic_ns()}.json"
    options = provider or command.script(workspace, *script["replies"], name=name)
    env = {"ANTHROPIC_API_KEY": key} if key else None
    process = command.begin(workspace, "run", *arguments, *options, "--instructions", "none", env=env)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def ended(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Exit code and standard error, once it has ended."""
    _, said = process.communicate(timeout=HANG_S)
    return process.returncode, said.decode()


def run(workspace: Path, script: dict[str, Any], *arguments: str) -> tuple[int, str]:
    with running(workspace, script, *arguments) as process:
        return ended(process)


def wait_until(true: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Poll; fails when it never comes true, or when the process that was to make it so has ended."""
    deadline = time.monotonic() + HANG_S
    while not true():
        assert time.monotonic() < deadline, "this never came true"
        assert process.poll() is None, ended(process)
        time.sleep(0.02)
