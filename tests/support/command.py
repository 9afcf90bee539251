"""The `endstate` command as a person would start it: a process of its own, in a directory of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ARGV = (sys.executable, "-m", "endstate_action")


@dataclass(frozen=True, slots=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.out)
        return value


def endstate(where: Path, *arguments: str, env: Mapping[str, str] | None = None, timeout_s: float = 60) -> Ran:
    done = subprocess.run(
        [*ARGV, *arguments],
        cwd=where,
        env=os.environ | (env or {}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=timeout_s,
        check=False,
    )
    return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())


def begin(where: Path, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*ARGV, *arguments],
        cwd=where,
        env=os.environ | (env or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def script(where: Path, *replies: dict[str, Any], name: str = "script.json") -> tuple[str, ...]:
    """Write a script beside the workspace; returns the options that play it."""
    path = where.parent / name
    path.write_text(json.dumps({"replies": replies}))
    # Most promises are tried where nothing can be undone, which is every machine; the sandbox has its own tests.
    return ("--provider", "scripted", "--script", str(path), "--sandbox", "off")


def calls(*made: tuple[str, dict[str, Any]], text: str = "") -> dict[str, Any]:
    return {"text": text, "calls": [{"tool": tool, "arguments": arguments} for tool, arguments in made]}


def bash(command: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return ("bash", {"command": command, **more})


def wait_for(path: Path, timeout_s: float = 30) -> str:
    """What a process under test writes to say that it got somewhere."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if path.exists() and (text := path.read_text()):
            return text
        time.sleep(0.01)
    raise AssertionError(f"{path} was not written within {timeout_s} s")


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[0] not in "ZX"
    except OSError:
        return False
