"""The tree hash beside `sha256sum` where everything is read, and beside git where little has changed."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from bench.fresh import environment, fresh, peak_mb
from bench.limits import Outcome, Size, counted, ms, ratios, timed
from endstate_action.system.tree import StatCache, scan

CHANGED = 3
_SETTLE_S = 0.1
"""Until what was written is older than the clock tick that both caches distrust."""


def measure(scratch: Path, size: Size) -> list[Outcome]:
    tree = scratch / "tree"
    paths = _plant(tree, size.files)
    return [_cold(tree, scratch, size), _warm(tree, paths, scratch, size), *_big(scratch, size)]


def _plant(tree: Path, files: int) -> list[Path]:
    """Files of 4 KiB, fifty to a directory, none like another."""
    paths = [tree / f"area{n // 1000}" / f"part{n // 50 % 20}" / f"file{n}.txt" for n in range(files)]
    for number, path in enumerate(paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((b"%d\n" % number).ljust(4096, b"x"))
    return paths


def _cold(tree: Path, scratch: Path, size: Size) -> Outcome:
    ours, theirs = [], []
    for run in range(size.runs):
        cache = StatCache(scratch / f"cold{run}")
        ours.append(_clock(partial(scan, tree, cache=cache)))
        theirs.append(_clock(lambda: _shell("find . -type f -print0 | xargs -0 sha256sum", tree, scratch)))
    what = f"tree hash of {size.files} files, nothing known before, over find | xargs sha256sum"
    return timed(what, 1.0, ratios(ours, theirs), detail=_pair(ours, theirs))


def _warm(tree: Path, paths: list[Path], scratch: Path, size: Size) -> Outcome:
    _shell("git init -q && echo .endstate > .git/info/exclude && git add -A && git write-tree", tree, scratch)
    cache = StatCache(tree / ".endstate" / "cache")
    # The second round of each is the one that no longer distrusts what was just written.
    for _ in range(2):
        time.sleep(1.1)
        scan(tree, cache=cache)
        _shell("git add -A && git write-tree", tree, scratch)
    ours, theirs = [], []
    for run in range(2 * size.runs + 1):
        for path in paths[run % 7 :: max(1, len(paths) // CHANGED)][:CHANGED]:
            path.write_bytes((b"%d\n" % run).ljust(4096, b"y"))
        time.sleep(_SETTLE_S)
        before = cache.last()
        ours.append(_clock(lambda: scan(tree, cache=cache)))
        if cache.last() is before:
            raise RuntimeError("the change was not seen")
        theirs.append(_clock(lambda: _shell("git add -A && git write-tree", tree, scratch)))
    what = f"the same with {CHANGED} changed since the last call, over git add -A && git write-tree"
    return timed(what, 1.8, ratios(ours, theirs), detail=_pair(ours, theirs))


def _big(scratch: Path, size: Size) -> list[Outcome]:
    directory = scratch / "big"
    directory.mkdir()
    with open(directory / "file", "wb") as file:
        os.truncate(file.fileno(), size.big_file_mb * 1024 * 1024)
    ours: list[Any] = []
    theirs: list[float] = []
    for _ in range(min(size.runs, 3)):
        ours.append(fresh("bench.trees:hash_big", str(directory), scratch=scratch))
        theirs.append(_clock(lambda: _shell("sha256sum file", directory, scratch)))
    seconds = [run["seconds"] for run in ours]
    what = f"a sparse file of {size.big_file_mb} MiB, read whole by both"
    return [
        counted(f"{what}: memory", 40, ours[0]["peak_mb"], "MB"),
        timed(f"{what}: tree hash over sha256sum", 1.1, ratios(seconds, theirs), detail=_pair(seconds, theirs)),
    ]


def hash_big(directory: str) -> dict[str, float | None]:
    return {"seconds": _clock(lambda: scan(Path(directory))), "peak_mb": peak_mb()}


def _clock(action: Callable[[], Any]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def _shell(command: str, where: Path, scratch: Path) -> None:
    subprocess.run(["sh", "-ec", command], cwd=where, env=environment(scratch), stdout=subprocess.DEVNULL, check=True)


def _pair(ours: list[float], theirs: list[float]) -> str:
    return f"{ms(median(ours))} and {ms(median(theirs))}"
