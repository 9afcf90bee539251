"""Runs that are killed, and what must be true of them afterwards.

trial = bench.trial("exact")
trial.begin(kill_at=17)          # a real process, a real SIGKILL
trial.resume()                   # another process, same directories
trial.check(bench.undisturbed("exact"))
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from endstate_action.agent.context import check_history, history
from endstate_action.agent.settle import MAX_STARTS
from endstate_action.state.fold import State
from endstate_action.state.session import SessionStore
from endstate_action.system.tree import scan
from tests.support.crash_driver import Job
from tests.support.repos import Repo
from tests.support.scenarios import FILES, PROMPT

ROOT = Path(__file__).parents[2]
KILLED = -signal.SIGKILL
INTERRUPTED = 75
NAMED = ("record", "sql", "tool", "reply")


# Read before any fixture clears the environment; printed by every random trial that fails.
SEED = int(os.environ.get("ENDSTATE_SEED") or random.SystemRandom().randrange(10**9))


class Driver:
    """One warmed-up process that forks for every job."""

    def __init__(self) -> None:
        argv = [sys.executable, "-m", "tests.support.crash_driver"]
        self._process = subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def perform(self, job: Job) -> int:
        """How the fork ended: an exit code, or minus the signal that ended it."""
        self.start(job)
        return self.ended()

    def start(self, job: Job) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(dataclasses.asdict(job)) + "\n")
        self._process.stdin.flush()

    def ended(self) -> int:
        """Of the job that was started: how its fork ended, once it has."""
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())

    def fork(self) -> int:
        """The process that does the job."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        deadline = time.monotonic() + 30
        while not children.read_text().split():
            assert time.monotonic() < deadline, "no job is being done"
            time.sleep(0.01)
        return int(children.read_text().split()[0])

    def close(self) -> None:
        self._process.communicate(timeout=60)


@dataclass(frozen=True)
class EndState:
    """What of a workspace is compared: the tree, and what git says about it."""

    tree_hash: str
    log: str
    status: str
    ledger: tuple[str, ...]


@dataclass
class Trial:
    """One workspace and its side folder, through any number of attempts."""

    driver: Driver
    folder: Path
    script: str
    kills: int = 0
    """Attempts that ended early, each of which may have cost one request."""
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def repo(self) -> Repo:
        return Repo(self.folder / "repo")

    @property
    def side(self) -> Path:
        return self.folder / "side"

    def begin(self, **job: Any) -> int:
        return self._perform(prompt=PROMPT, **job)

    def resume(self, **job: Any) -> int:
        return self._perform(resume=True, **job)

    def go_on(self, **job: Any) -> int:
        """What a retry does: resume what there is, else begin."""
        return self.resume(**job) if self.has_prompt() else self.begin(**job)

    def job(self, **job: Any) -> Job:
        given = {"workspace": str(self.repo.path), "side": str(self.side), "script": self.script}
        return Job(**(given | self.options | job))

    def _perform(self, **job: Any) -> int:
        code = self.driver.perform(self.job(**job))
        self.kills += code in (KILLED, INTERRUPTED)
        return code

    # What is there

    @property
    def store(self) -> SessionStore:
        return SessionStore(self.repo.path / ".endstate" / "sessions")

    def has_prompt(self) -> bool:
        return any(s.state is not None and s.state.was_asked for s in self.store.all())

    def state(self) -> State:
        """Of the one session that was given a prompt."""
        (name,) = [s.id for s in self.store.all() if s.state is not None and s.state.prompts]
        return self.store.read(name)

    def lines(self, name: str) -> list[dict[str, Any]]:
        file = self.side / name
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def said(self) -> dict[str, Any]:
        return self.lines("said")[-1]

    def ledger(self) -> list[str]:
        file = self.side / "ledger"
        return file.read_text().splitlines() if file.exists() else []

    def executions(self) -> Counter[tuple[int, int]]:
        """How often each call was run, by its place (step, index)."""
        return Counter(place for _, place in self._executed())

    def _executed(self) -> Iterator[tuple[int, tuple[int, int]]]:
        for line in self.lines("executions"):
            _, epoch, place = line["tag"].split("/")
            step, index = place.split(".")
            yield int(epoch), (int(step), int(index))

    def where(self) -> str:
        """The point at which the last process was, for a failing test's message."""
        points = self.lines("points")
        return f"{points[-1]['n']}: {points[-1]['kind']}: {points[-1]['what']}" if points else "before the first point"

    def forge(self, kind: str, body: str) -> None:
        """Add a row that the product would never write."""
        (path,) = (self.repo.path / ".endstate" / "sessions").glob("*.db")
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("INSERT INTO journal SELECT max(seq) + 1, ?, ? FROM journal", (kind, body))

    def end_state(self) -> EndState:
        session = self.state().begun.session
        return EndState(
            scan(self.repo.path, (b".git", b".endstate")).tree_hash,
            self.repo.git("log", "--format=%B%T").replace(session, "SESSION"),
            self.repo.git("status", "--porcelain"),
            tuple(line.replace(session, "SESSION") for line in self.ledger()),
        )

    # What must be true

    def check_invariants(self, where: str = "") -> State:
        """True after every finished run, whatever was killed and whatever the calls were."""
        try:
            return self._checked()
        except AssertionError as failure:
            failure.add_note(f"killed at {where}; {self.folder} is kept")
            raise

    def _checked(self) -> State:
        state = self.state()
        assert state.is_finished
        assert not state.pending
        assert set(state.finished) == set(state.requested)
        check_history(history(state))
        # Nobody else was there; a run may say that it does not know who it was, but not this.
        assert not [t.text for t in state.told if "was changed by somebody else" in t.text]
        self._check_executions(state)
        assert len(self.ledger()) == len(set(self.ledger())), "a keyed effect took place twice"
        self._check_requests(state)
        replied = [r.step for r in state.replies]
        assert replied == sorted(set(replied))
        assert self.repo.git("fsck", "--full", "--no-dangling") == ""
        return state

    def _check_requests(self, state: State) -> None:
        assert len(self.lines("requests")) <= state.steps + self.kills, "more than one request was repeated for a kill"

    def _check_executions(self, state: State) -> None:
        ran = Counter(self._executed())
        assert all(times == 1 for times in ran.values()), "a call ran twice in one attempt"
        for epoch, place in ran:
            assert epoch in {s.epoch for s in state.started[place]}, f"call {place} ran without a recorded start"
            assert epoch <= state.finished[place].epoch, f"call {place} ran after it was finished"
        for place, starts in state.started.items():
            assert len(starts) <= MAX_STARTS
            if starts[0].effect == "opaque":
                assert len(starts) == 1, f"opaque call {place} was started twice"

    def check(self, undisturbed: EndState, where: str = "") -> None:
        """`check_invariants`, and the same end as if nothing had happened."""
        state = self.check_invariants(where)
        assert [f.status for f in state.finished.values()] == ["ok"] * len(state.requested), where
        assert self.end_state() == undisturbed, where

    def check_opaque(self, where: str = "") -> None:
        """Of the script `opaque`: each shell call ran at most once, and the model was told what is not known."""
        state = self.check_invariants(where)
        log = self.repo.path / "log.txt"
        lines = log.read_text().split() if log.exists() else []
        for place, word in (((1, 1), "one"), ((2, 0), "two")):
            outcome = state.finished[place]
            later = [f for (step, index), f in state.finished.items() if step == place[0] and index > place[1]]
            if outcome.status == "refused":
                assert outcome.content.startswith("Outcome unknown: "), where
                assert all(f.status == "not_run" for f in later), where
                assert lines.count(word) <= 1, where
            elif outcome.status == "ok":
                assert lines.count(word) == 1, where
            else:
                assert (outcome.status, lines.count(word)) == ("not_run", 0), where

    def discard(self) -> None:
        shutil.rmtree(self.folder)


@dataclass
class Bench:
    """Makes trials, each in a folder of its own."""

    driver: Driver
    folder: Path
    numbers: Iterator[int] = field(default_factory=count)

    def trial(self, script: str = "exact", **options: Any) -> Trial:
        place = self.folder / f"trial-{next(self.numbers)}"
        (place / "side").mkdir(parents=True)
        shutil.copytree(self._template(), place / "repo", symlinks=True)
        return Trial(self.driver, place, script, options=options)

    def trial_of(self, replies: dict[str, Any], **options: Any) -> Trial:
        """With a script of its own."""
        return self.trial(json.dumps(replies), **options)

    @cache  # noqa: B019  (as long as the bench)
    def undisturbed(self, script: str = "exact") -> EndState:
        trial = self.trial(script)
        assert trial.begin() == 0
        trial.check_invariants()
        return trial.end_state()

    @cache  # noqa: B019
    def points(self, script: str = "exact", **job: Any) -> list[dict[str, Any]]:
        """The kill points of an undisturbed run."""
        trial = self.trial(script)
        assert trial.begin(**job) == 0
        return trial.lines("points")

    @cache  # noqa: B019
    def _template(self) -> Path:
        repo = Repo(self.folder / "template")
        repo.path.mkdir()
        repo.git("init", "--quiet", "--initial-branch=main", "--template=")
        repo.write(FILES)
        (repo.path / "app.py").chmod(0o755)
        repo.git("add", "--all")
        repo.git("commit", "--quiet", "--message", "begin")
        return repo.path

    def __hash__(self) -> int:
        return id(self)
