"""Runs whose whole machine is lost: what survives is the store and the world outside.

trial = lost_bench.trial("exact")
trial.begin(kill_at=17)
trial.lose()                     # workspace, state, home and temporary files are gone; so is the host's name
trial.go_on()                    # a depth-1 clone elsewhere, and the store
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from endstate_action.state.checkpoint.read import Expected, Opened, open_checkpoint
from endstate_action.state.fold import State
from endstate_action.state.keys import CheckpointKey
from endstate_action.state.seal import derive_key
from endstate_action.state.stores.directory import DirectoryStore
from tests.support.crash import Bench, Trial
from tests.support.crash_driver import Job
from tests.support.repos import Repo
from tests.support.scenarios import Script, reply, script

STATE_KEY = "a-secret-that-outlives-the-job"
UNUSABLE = 12
OUTSIDE = ("bash", "publish", "send")
"""Tools whose effects reach outside the workspace; there is no sandbox here."""


def outside(folder: Path) -> Script:
    """Effects outside of every kind, among others that are not."""
    file = folder / "side" / "outside"
    return script(
        reply(
            ("write", {"path": "docs/notes/first.md", "content": "# Notes\n"}),
            ("bash", {"command": f"echo first >> {file}"}),
            ("publish", {"text": "version 2"}),
            text="I begin the notes.",
        ),
        reply(("send", {"word": "second"}), ("glob", {"pattern": "*.md"}), text="I tell them."),
        reply(("bash", {"command": f"echo third >> {file}; echo x >> log.txt"}), text="I go on."),
        reply(("send", {"word": "fourth"}), ("git_commit", {"message": "Add the notes"}), text="I commit them."),
        reply(text="The notes are made."),
    )


@dataclass
class LostTrial(Trial):
    """One task over several machines, each with a workspace, a home and temporary files of its own."""

    machine: int = 1
    store_option: str = ""
    """Where checkpoints go; a directory beside the machines if empty."""
    session: str | None = None
    """The one that was lost with its machine; a job knows it, since it is made of what the job is."""
    more: Mapping[str, str] = field(default_factory=dict)
    """Added to the environment of every machine."""

    @property
    def place(self) -> Path:
        return self.folder / f"machine-{self.machine}"

    @property
    def repo(self) -> Repo:
        # Nothing may depend on where the checkout is.
        return Repo(self.place / ("checkout" if self.machine % 2 else "other/work"))

    @property
    def shipped_to(self) -> DirectoryStore:
        return DirectoryStore(self.folder / "store")

    def lose(self) -> None:
        """All that was on the machine is gone; the next one is set up as a job does it."""
        self.session = next(iter(self.store.names()), self.session)
        shutil.rmtree(self.place)
        self.leave()

    def leave(self) -> None:
        """The next machine is set up; this one may go on."""
        self.machine += 1
        self.set_up()

    def set_up(self) -> None:
        for name in ("home", "tmp"):
            (self.place / name).mkdir(parents=True)
        self.repo.path.parent.mkdir(parents=True, exist_ok=True)
        Repo(self.folder).git(
            "clone", "--quiet", "--depth=1", "--template=", f"file://{self.folder}/origin", str(self.repo.path)
        )

    def go_on(self, **job: Any) -> int:
        """What a retry does: resume what there is, else begin."""
        code = self.resume(session=self.session, **job)
        if code == UNUSABLE and self.said()["error"] == "UnknownSession":
            assert not self.checkpoints(), self.said()
            return self.begin(**job)
        return code

    def job(self, **job: Any) -> Job:
        environ = {
            "HOME": str(self.place / "home"),
            "TMPDIR": str(self.place / "tmp"),
            "ENDSTATE_STATE_KEY": STATE_KEY,
            **self.more,
        }
        inputs = {"store": self.store_option or f"dir:{self.folder}/store", **job.pop("inputs", {})}
        return super().job(environ=environ, inputs=inputs, host=f"host-{self.machine}", **job)

    # What is in the store

    def checkpoints(self) -> list[CheckpointKey]:
        """Those of all sessions, the newest last."""
        names = [
            name
            for lineage in self.shipped_to.lineages(timeout_s=20) or ()
            for name in self.shipped_to.keys(f"es1/{lineage}/c", timeout_s=20) or ()
        ]
        return [key for key in map(CheckpointKey.parse, names) if key]

    def newest(self) -> Opened | None:
        """The newest checkpoint, opened; None where there is none."""
        keys = self.checkpoints()
        if not keys:
            return None
        found = open_checkpoint(
            self.shipped_to, keys[-1], derive_key(STATE_KEY, explicit=True), Expected("", keys[-1].lineage)
        )
        assert isinstance(found, Opened), found
        return found

    def outside(self) -> Counter[str]:
        """What the world has seen, by word."""
        files = [self.side / name for name in ("outside", "sent")]
        return Counter(word for file in files if file.exists() for word in file.read_text().split())

    # What must be true

    def not_shipped(self) -> int:
        """Replies of the lost machine that no checkpoint has: not more than were asked for in one interval.

        That is, since the upload before the newest one had ended: the newest was made after that.
        """
        newest = self.newest()
        shipped = sum(kind == "replied" for _, kind, _ in newest.rows) if newest else 0
        asked = len(self.lines("requests"))
        stored = [put["requests"] for put in self.lines("puts") if put["event"] == "Stored" and "/c" in put["key"]]
        assert asked - shipped <= asked - (stored[-2] if len(stored) > 1 else 0), "more than an interval was lost"
        return asked - shipped

    def repeated(self) -> int:
        """How many requests were made again, over all machines."""
        return len(self.lines("requests")) - self.state().steps

    def _check_executions(self, state: State) -> None:
        """What was done outside had left its start in the store; anything else may have been lost with its machine."""
        ran = Counter(self._executed())
        assert all(times == 1 for times in ran.values()), "a call ran twice in one attempt"
        tools = {place: request.call.name for place, request in state.requested.items()}
        for epoch, place in ran:
            if tools[place] in OUTSIDE:
                starts = {s.epoch for s in state.started.get(place, ())}
                assert epoch in starts, f"call {place} ran before its start was shipped"
            assert epoch <= state.finished[place].epoch, f"call {place} ran after it was finished"

    def _check_requests(self, state: State) -> None:
        """How much model work is repeated is a promise of its own: `check_repeated`."""

    def check_outside(self, where: str = "") -> None:
        """Of the script `outside`: whatever was killed, nothing took place twice, and what is said of it is so."""
        state = self.check_invariants(where)
        seen = self.outside()
        assert all(times == 1 for times in seen.values()), f"{where}: {seen}"
        for place, word in (((1, 1), "first"), ((2, 0), "second"), ((3, 0), "third"), ((4, 0), "fourth")):
            match state.finished[place].status:
                case "ok":
                    assert seen[word] == 1, where
                case "not_run":
                    assert seen[word] == 0, where
                case status:
                    assert status == "refused", where
                    assert "unknown" in state.finished[place].content.lower(), state.finished[place].content


@dataclass
class LostBench(Bench):
    """Makes trials that lose their machines."""

    def trial(self, script: str = "exact", **options: Any) -> LostTrial:
        place = self.folder / f"lost-{next(self.numbers)}"
        (place / "side").mkdir(parents=True)
        shutil.copytree(self._template(), place / "origin", symlinks=True)
        more = {name: options.pop(name) for name in ("store_option", "more") if name in options}
        trial = LostTrial(self.driver, place, script, options=options, **more)
        trial.set_up()
        return trial

    def trial_outside(self, **options: Any) -> LostTrial:
        trial = self.trial(**options)
        trial.script = json.dumps(outside(trial.folder))
        return trial

    def __hash__(self) -> int:
        return id(self)
