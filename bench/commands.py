"""How long the command takes before it does anything, and what it imports for it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from bench.fresh import environment, fresh
from bench.limits import Outcome, Size, counted, ms, timed
from endstate_action.state.directory import locate

COMMANDS = {
    "endstate --help": ["--help"],
    "endstate sessions list": ["sessions", "list"],
    "endstate sessions show": ["sessions", "show"],
    "endstate sessions export": ["sessions", "export"],
    "endstate sessions prune": ["sessions", "prune"],
    "endstate tree-hash": ["tree-hash"],
}
SDKS = ("anthropic", "github", "httpx2")


def measure(scratch: Path, size: Size) -> list[Outcome]:
    workspace = scratch / "workspace"
    workspace.mkdir()
    state = locate(workspace, ".endstate")
    state.claim()
    fresh("bench.loading:prepare", str(state.sessions), 10, scratch=scratch)
    loaded = {name: fresh("bench.commands:modules", str(workspace), c, scratch=scratch) for name, c in COMMANDS.items()}
    present = sorted({sdk for modules in loaded.values() for sdk in SDKS if sdk in modules})
    return [
        _slowest(workspace, scratch, size),
        counted("modules of SDKs that these commands import", 0, len(present), "", ", ".join(present)),
    ]


def _slowest(workspace: Path, scratch: Path, size: Size) -> Outcome:
    """Of all commands, the one that is furthest behind an interpreter that does nothing."""
    nothing = [sys.executable, "-c", "pass"]
    # What the installed script does.
    ours = [sys.executable, "-c", "from endstate_action.cli import main; main()"]
    argv = {name: [*ours, *rest] for name, rest in COMMANDS.items()}
    took: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(2 * size.runs + 1):
        for name in COMMANDS:
            took[name].append(_wall(argv[name], workspace, scratch) - _wall(nothing, workspace, scratch))
    more = {name: median(values) for name, values in took.items()}
    detail = ", ".join(f"{name.removeprefix('endstate ')} {ms(value)}" for name, value in more.items())
    return timed(
        "slowest command without a model over python -c pass", 100, max(more.values()) * 1e3, "ms more", detail
    )


def _wall(argv: list[str], workspace: Path, scratch: Path) -> float:
    env = environment(scratch)
    began = time.perf_counter()
    subprocess.run(argv, cwd=workspace, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def modules(workspace: str, arguments: list[str]) -> list[str]:
    """Top-level names of what the command has imported."""
    argv = [sys.executable, "-X", "importtime", "-m", "endstate_action", *arguments]
    done = subprocess.run(argv, cwd=workspace, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=True)
    lines = (line for line in done.stderr.splitlines() if line.startswith("import time:"))
    return sorted({line.rpartition("|")[2].strip().partition(".")[0] for line in lines})
