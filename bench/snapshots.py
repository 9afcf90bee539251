"""Snapshots beside `git add -A && git write-tree`, restores beside a snapshot and beside `git checkout-index`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median

from bench.limits import Outcome, clock, ms, ratios, timed
from endstate_action.config import SnapshotLimits
from endstate_action.state.snapshot import ObjectStore, SnapshotStore
from endstate_action.state.snapshot.ignored import ignored_paths

LIMITS = {100: 1.5, 1_000: 1.5, 10_000: 1.8, 50_000: 2.7}
RESTORED = 10_000
EDITS = 20

_SETTLE_S = 0.1
"""Until what was written is older than the clock tick that both caches distrust."""


def measure(scratch: Path, sizes: dict[int, float], restored: int, runs: int) -> list[Outcome]:
    outcomes = []
    for files, limit in sizes.items():
        project = Project(scratch / f"project{files}", files)
        outcomes.append(project.small_edits(limit, runs))
        if files == restored:
            outcomes += [project.restored_edits(runs), project.restored_rewrite(max(runs // 3, 2))]
        shutil.rmtree(project.root)
    return outcomes


class Project:
    """A repository of files of 4 kB of text, twenty to a directory, and the store that looks after it."""

    def __init__(self, root: Path, files: int) -> None:
        self.root = root
        self.paths = [root / f"area{n // 400}" / f"part{n // 20 % 20}" / f"file{n}.py" for n in range(files)]
        self._number = 0
        for number, path in enumerate(self.paths):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(_text(number))
        (root / ".gitignore").write_text("node_modules/\n*.pyc\n")
        self.shell("git init -q && git add -A && git -c user.name=a -c user.email=a@b.invalid commit -qm begin")
        state, git_dir = root / ".endstate", root / ".git"
        state.mkdir()
        (state / ".gitignore").write_text("*\n")
        objects = ObjectStore(state / "objects", env=os.environ)
        objects.import_base(git_dir, self.shell("git rev-parse HEAD"))
        self.store = SnapshotStore(
            objects,
            root,
            excluded=(".git", ".endstate"),
            limits=SnapshotLimits(),
            cache=state / "cache",
            ignored=partial(ignored_paths, objects, root, git_dir, git_dir),
        )
        # The second round of each is the one that no longer distrusts what was just written.
        for _ in range(2):
            time.sleep(1.1)
            self.store.take()
            self.shell("git add -A && git write-tree")

    def small_edits(self, limit: float, runs: int) -> Outcome:
        ours: list[float] = []
        theirs: list[float] = []
        for run in range(2 * runs + 1):
            self.edit(3)
            (self.root / f"new{run}.py").write_bytes(_text(-run))
            time.sleep(_SETTLE_S)
            first, second = (ours, theirs) if run % 2 else (theirs, ours)
            for figures in (first, second):
                figures.append(clock(self.store.take if figures is ours else self._add))
            if self.store.take().tree != self._add():
                raise RuntimeError("the trees differ")
        what = f"snapshot of {len(self.paths)} files after 4 edits, synced, over git add -A && git write-tree"
        return timed(what, limit, ratios(ours, theirs), detail=_pair(ours, theirs))

    def restored_edits(self, runs: int) -> Outcome:
        ours, theirs = [], []
        for _ in range(runs):
            self.edit(EDITS)
            time.sleep(_SETTLE_S)
            theirs.append(clock(self.store.take))
            root = self.store.take().root
            self.edit(EDITS)
            time.sleep(_SETTLE_S)
            ours.append(clock(partial(self.store.restore, root)))
        what = f"restore of {EDITS} edits in {len(self.paths)} files, over one snapshot after as many"
        return timed(what, 2.0, ratios(ours, theirs), detail=_pair(ours, theirs))

    def restored_rewrite(self, runs: int) -> Outcome:
        ours, theirs = [], []
        root = self.store.take().root
        self.shell("git add -A")
        for _ in range(runs):
            self.edit(len(self.paths))
            time.sleep(_SETTLE_S)
            ours.append(clock(partial(self.store.restore, root)))
            self.edit(len(self.paths))
            time.sleep(_SETTLE_S)
            theirs.append(clock(partial(self.shell, "git checkout-index -f -a")))
        what = f"restore of {len(self.paths)} rewritten files, what it replaces kept, over git checkout-index -f -a"
        return timed(what, 4.0, ratios(ours, theirs), detail=_pair(ours, theirs))

    def edit(self, count: int) -> None:
        self._number += 1
        for path in self.paths[self._number % 7 :: max(1, len(self.paths) // count)][:count]:
            path.write_bytes(b"%d " % self._number + path.read_bytes()[:4096])

    def shell(self, command: str) -> str:
        done = subprocess.run(["sh", "-ec", command], cwd=self.root, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def _add(self) -> str:
        return self.shell("git add -A && git write-tree")


def _text(number: int) -> bytes:
    """Like source: words that come back, lines that do not."""
    return b"".join(b"    value_%d = compute(%d, table[%d])\n" % (n, number * n % 9973, n) for n in range(90))


def _pair(ours: list[float], theirs: list[float]) -> str:
    return f"{ms(median(ours))} and {ms(median(theirs))}"


def main() -> int:
    """`python -m bench.snapshots [runs] [files ...]`: one line for each limit."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    wanted = [int(word) for word in sys.argv[2:]] or list(LIMITS)
    with tempfile.TemporaryDirectory(prefix="endstate-bench-", dir="/var/tmp") as made:
        for files in wanted:
            for outcome in measure(Path(made), {files: LIMITS.get(files, 1.8)}, RESTORED, runs):
                print(f"{outcome.verdict}: {outcome.what}: {outcome.measured}, {outcome.limit}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
