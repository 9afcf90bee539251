"""One function in a process of its own: `python -m bench.fresh bench.module:function [JSON argument]...`.

The process imports the function's module only, so that its memory and modules are those of what is
measured. Bytecode goes to a place of the bench's own, whatever the environment says about it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
HANG_S = 300


def fresh(
    function: str, *arguments: Any, scratch: Path, python: str = sys.executable, under: tuple[str, ...] = ()
) -> Any:
    """What `function` returned in a fresh interpreter, possibly `under` another program."""
    argv = [*under, python, "-m", "bench.fresh", function, *map(json.dumps, arguments)]
    done = subprocess.run(
        argv, check=False, env=environment(scratch), cwd=scratch, capture_output=True, text=True, timeout=HANG_S
    )
    if done.returncode != 0:
        raise RuntimeError(f"{function} failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


def environment(scratch: Path) -> dict[str, str]:
    """This checkout's source, and nothing that would keep an interpreter from starting as it usually does."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "GIT_"))}
    paths = {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "PYTHONPYCACHEPREFIX": str(scratch / "bytecode")}
    return env | paths | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}


def peak_mb() -> float | None:
    """The most memory this process has had at once. `ru_maxrss` would count what it was forked from."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 / 1e6 for line in status.splitlines() if line.startswith("VmHWM")), None)


def written_bytes() -> int | None:
    """What this process has handed to the kernel to write, so far."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("wchar")), None)


if __name__ == "__main__":
    module, _, name = sys.argv[1].partition(":")
    print(json.dumps(getattr(import_module(module), name)(*map(json.loads, sys.argv[2:]))))
