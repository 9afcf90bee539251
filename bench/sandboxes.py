"""How long a call takes to enter the sandbox and to leave it, beside a bash that was started plainly."""

from __future__ import annotations

import os
import subprocess
from functools import partial
from pathlib import Path
from statistics import median

from bench.fresh import environment
from bench.limits import NOT_COUNTED, Outcome, Size, clock, ms, timed
from endstate_action.state.directory import locate
from endstate_action.system.sandbox import NoSandbox
from endstate_action.system.sandbox_probe import probe

LIMIT_MS = 12
BASH = ["/bin/bash", "-c", ":"]


def measure(scratch: Path, size: Size) -> list[Outcome]:
    """Nothing is counted where no sandbox can be had."""
    workspace = scratch / "sandboxed"
    workspace.mkdir()
    subprocess.run(["git", "init", "-q"], cwd=workspace, check=True)
    state = locate(workspace, ".endstate")
    state.claim()
    env = environment(scratch)
    what = "an empty command in the sandbox, its call lock and clean-up included, over plain bash"
    sandbox = probe(workspace, state.path, os.environ, network=False, tmp=state.tmp)
    if isinstance(sandbox, NoSandbox):
        return [Outcome(f"{what} ({sandbox.reason})", f"at most {LIMIT_MS} ms more", NOT_COUNTED, None, "timed")]
    enter = partial(sandbox.run, BASH, env=env, moment=1.0, timeout_s=60, tag="bench/1")
    plain = partial(subprocess.run, BASH, cwd=workspace, env=env, stdin=subprocess.DEVNULL, capture_output=True)
    ours, theirs = [], []
    for _ in range(10 * size.runs):
        ours.append(clock(enter))
        theirs.append(clock(plain))
    detail = f"{ms(median(ours))} and {ms(median(theirs))}; {sandbox.note}"
    return [timed(what, LIMIT_MS, median(a - b for a, b in zip(ours, theirs, strict=True)) * 1e3, "ms more", detail)]
