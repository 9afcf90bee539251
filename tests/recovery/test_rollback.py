"""Shell commands in the sandbox, killed at random with everything around them, never happened.

Seven commands that no resume could repeat or skip: appends, a move, an edit in place, commits, a nested
repository, writers in the background, an ignored directory. Where there is no sandbox these tests are
skipped, and the product says `sandbox: none`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from endstate_action.state.directory import StateDirectory
from endstate_action.system.sandbox import Sandbox
from endstate_action.system.sandbox_probe import probe
from endstate_action.system.tree import scan
from tests.support.carry import move
from tests.support.crash import KILLED, SEED, Bench, Driver, Trial
from tests.support.repos import Repo
from tests.support.scenarios import reply, script

pytestmark = pytest.mark.slow

TRIALS = 200
SAMPLE = 5
MOVED = 60
MOVED_SAMPLE = 4
CONTROLS = 40

_COMMIT = "git -c user.name=n -c user.email=n@example.invalid commit --quiet --message"
COMMANDS = (
    "for i in 1 2 3; do echo line-$i >> log.txt; sleep 0.1; done",
    "mv app.py moved.py; sleep 0.2; echo moved >> log.txt",
    "sed -i 's/VERSION = 1/VERSION = 2/' moved.py; sleep 0.2; echo edited >> log.txt",
    f"git add --all; {_COMMIT} agent; sleep 0.2; echo committed >> log.txt",
    f"git init --quiet vendor/x; cd vendor/x; echo inner > f; git add f; {_COMMIT} inner; sleep 0.2",
    "for n in a b; do (for i in 1 2 3; do echo $n$i >> $n.txt; sleep 0.1; done) & done; wait; echo both >> log.txt",
    "mkdir -p build; echo object >> build/o; echo build/ >> .gitignore; sleep 0.2; echo built >> log.txt",
)
SEVEN = script(*(reply(("bash", {"command": command})) for command in COMMANDS), reply(text="Done."))


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Sandbox:
    place = tmp_path_factory.mktemp("probe")
    (place / "state").mkdir()
    found = probe(place, place / "state", {"PATH": "/usr/bin:/bin", "HOME": str(place)}, network=False, tmp=place)
    if not isinstance(found, Sandbox):
        pytest.skip(f"not contained here: {found.reason}")
    return found


def a_trial(bench: Bench, **options: object) -> Trial:
    return bench.trial_of(SEVEN, inputs={"sandbox": "required"}, max_starts=99, **options)


End = tuple[str, ...]


def asked(repo: Repo, *words: str) -> str:
    """What git says; also where it says that it cannot."""
    try:
        return repo.git(*words)
    except AssertionError as refused:
        return str(refused)


def end_of(trial: Trial) -> End:
    """All that must not depend on kills. Commits bear the time of their call, so ids differ from run to run."""
    left_out = (b".git", b".endstate", b"vendor/x/.git")
    git = [
        asked(trial.repo, "-C", str(trial.repo.path / place), *words)
        for place in (".", "vendor/x")
        for words in (("log", "--format=%B%T"), ("status", "--porcelain", "--ignored"), ("ls-files", "--stage"))
    ]
    return (scan(trial.repo.path, left_out).tree_hash, *git)


@pytest.fixture(scope="module")
def timed(bench: Bench, sandbox: Sandbox) -> tuple[End, float]:
    """The end of a run that nobody disturbs, and how many seconds it takes on this machine now."""
    trial = a_trial(bench)
    began = time.monotonic()
    assert trial.begin() == 0
    return end_of(trial), time.monotonic() - began


@pytest.fixture(scope="module")
def undisturbed(timed: tuple[End, float]) -> End:
    return timed[0]


@pytest.fixture(scope="module")
def lasts(timed: tuple[End, float]) -> float:
    return timed[1]


def a_kill(trial: Trial, chance: Random, lasts: float) -> dict[str, Any]:
    """Of the next process: mostly in or after a command that is left, else at any time, as long as a run takes here."""
    done = max((len(session.state.finished) for session in trial.store.all() if session.state), default=0)
    if done == len(COMMANDS) or chance.random() < 1 / 6:
        return {"kill_after_s": chance.uniform(0.05, lasts)}
    return {"kill_after_s": chance.uniform(0.001, 0.3), "kill_in": chance.randint(1, len(COMMANDS) - done)}


def killed_at_random(trial: Trial, chance: Random, lasts: float) -> str:
    """Up to four kills, resumes included; what happened, in words."""
    story = f"ENDSTATE_SEED={SEED}"
    for _ in range(chance.randint(1, 4)):
        code = trial.go_on(**a_kill(trial, chance, lasts))
        story += f"; ended with {code} at {trial.where()}"
        assert code in (KILLED, 0), story
    assert trial.go_on() == 0, story
    return story


@pytest.mark.parametrize(
    "number", [n if n < SAMPLE else pytest.param(n, marks=pytest.mark.recovery) for n in range(TRIALS)]
)
def test_interrupted_commands_never_happened(bench: Bench, undisturbed: End, lasts: float, number: int) -> None:
    trial = a_trial(bench)
    story = killed_at_random(trial, Random(f"{SEED}/rollback/{number}"), lasts)

    state = trial.state()
    assert [f.status for f in state.finished.values()] == ["ok"] * len(COMMANDS), story
    assert all(r.exact for r in state.rolled_back), story
    assert end_of(trial) == undisturbed, story
    assert trial.repo.git("fsck", "--full", "--no-dangling") == "", story
    assert not list(Path(trial.repo.path / ".git").rglob("*.lock")), story
    trial.discard()


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """Runs on another machine: in a process with a HOME of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("another-home")))
        driver = Driver()
    try:
        yield driver
    finally:
        driver.close()


@pytest.fixture(scope="module")
def origin(bench: Bench) -> Path:
    """The repository that checkouts are made of."""
    return bench.trial().repo.path


@pytest.mark.parametrize(
    "number", [n if n < MOVED_SAMPLE else pytest.param(n, marks=pytest.mark.recovery) for n in range(MOVED)]
)
def test_on_a_fresh_machine_they_never_happened_either(
    bench: Bench, elsewhere: Driver, origin: Path, undisturbed: End, lasts: float, number: int
) -> None:
    """Killed and moved up to four times; only the journal and one pack go along."""
    trial, chance = a_trial(bench), Random(f"{SEED}/moved/{number}")
    story = f"ENDSTATE_SEED={SEED}"
    for _ in range(chance.randint(1, 4)):
        code = trial.go_on(**a_kill(trial, chance, lasts))
        story += f"; ended with {code} at {trial.where()}"
        assert code in (KILLED, 0), story
        trial = move(trial, origin, elsewhere)
    assert trial.go_on() == 0, story

    assert [f.status for f in trial.state().finished.values()] == ["ok"] * len(COMMANDS), story
    assert end_of(trial) == undisturbed, story
    assert trial.repo.git("fsck", "--full", "--no-dangling") == "", story
    assert not list(Path(trial.repo.path / ".git").rglob("*.lock")), story
    trial.discard()


@pytest.mark.recovery
@pytest.mark.timeout(600)
@pytest.mark.parametrize("control", ["run", "refuse"])
def test_without_roll_back_most_of_the_same_trials_end_otherwise(
    bench: Bench, undisturbed: End, lasts: float, control: str
) -> None:
    """Else the test above would prove nothing."""
    other: list[str] = []
    for number in range(CONTROLS):
        trial = a_trial(bench, control=control)
        story = killed_at_random(trial, Random(f"{SEED}/control/{number}"), lasts)
        other += [story] if end_of(trial) != undisturbed else []
        trial.discard()

    assert len(other) > CONTROLS / 2, other


def test_a_command_that_kills_its_run_each_time_is_rolled_back_and_answered(bench: Bench, sandbox: Sandbox) -> None:
    """Three starts; then the workspace is as before the call, and the model is told."""
    commands = ("echo before >> log.txt", "echo lost >> log.txt; sleep 30", "echo after >> log.txt")
    batch = script(reply(*(("bash", {"command": c}) for c in commands)), reply(text="Done."))
    trial = bench.trial_of(batch, inputs={"sandbox": "required"})
    log = trial.repo.path / "log.txt"
    for attempt in range(3):
        code = trial.go_on(kill_after_s=2.5)
        assert code == KILLED, attempt
        assert log.read_text().endswith("lost\n")

    assert trial.resume() == 0

    assert log.read_text() == "before\n"
    assert [f.status for f in trial.state().finished.values()] == ["ok", "refused", "not_run"]
    assert trial.state().finished[1, 1].content.startswith("Rolled back: it was started 3 times")


def test_what_a_roll_back_replaces_is_kept_under_a_name(bench: Bench, sandbox: Sandbox) -> None:
    """An edit made by hand while the call was in flight is undone with it, and not lost."""
    trial = bench.trial_of(
        script(reply(("bash", {"command": "echo x >> log.txt; sleep 2"})), reply(text="Done.")),
        inputs={"sandbox": "required"},
    )
    assert trial.begin(kill_after_s=1.5) == KILLED
    (trial.repo.path / "by-hand.txt").write_text("precious")

    assert trial.resume() == 0

    assert not (trial.repo.path / "by-hand.txt").exists()
    (rolled_back,) = trial.state().rolled_back
    assert rolled_back.kept is not None
    objects = trial.repo.path / ".endstate" / "objects"
    kept = trial.repo.git("--git-dir", str(objects), "ls-tree", "-r", "--name-only", rolled_back.kept)
    assert "tree/by-hand.txt" in kept.split()


KILLED_IN_IT = {
    "before it replaces anything": {"kinds": ("os",), "beginning": "rename tmp_journal", "kill_at": 2},
    "half done": {"kinds": ("os",), "beginning": "rename tmp_journal", "kill_at": 5},
    "done and not on record": {"kinds": ("sql",), "beginning": "rolled_b", "kill_at": 1},
}


@pytest.mark.parametrize("when", KILLED_IN_IT)
def test_what_a_killed_roll_back_replaced_is_named_by_the_resume_after_it(
    bench: Bench, sandbox: Sandbox, when: str
) -> None:
    """A commit by hand on a branch of its own, with an older stash and a commit that no branch has."""
    trial = bench.trial_of(script(reply(text="Done.")), inputs={"sandbox": "required"})
    killed_in_its_call(trial, "echo x >> log.txt", lasts_s=3)
    named = {}
    for number in (1, 0):
        trial.repo.write({"app.py": f"stashed {number}"})
        trial.repo.git("stash", "push", "--quiet")
        named["refs/stash" if number == 0 else "stash@{1}"] = trial.repo.git("rev-parse", "refs/stash")
    trial.repo.git("checkout", "--quiet", "-b", "mine")
    trial.repo.commit({"mine.txt": "precious"})
    named["refs/heads/mine"] = trial.repo.git("rev-parse", "HEAD")
    trial.repo.git("checkout", "--quiet", "--detach")
    trial.repo.commit({"mine.txt": "more"})
    named["HEAD"] = trial.repo.git("rev-parse", "HEAD")
    assert trial.resume(**KILLED_IN_IT[when]) == KILLED

    assert trial.resume() == 0, trial.where()

    assert trial.repo.git("branch", "--list", "mine") == ""
    (rolled_back,) = trial.state().rolled_back
    assert rolled_back.kept is not None, trial.where()
    objects = trial.repo.path / ".endstate" / "objects"
    assert trial.repo.git("--git-dir", str(objects), "show", f"{rolled_back.kept}:tree/mine.txt") == "more"
    notices = "".join(line["notice"] for line in trial.lines("said") if "notice" in line)
    assert {name for name, commit in named.items() if f"{name} was {commit[:12]}" in notices} == set(named), notices
    on_record = {name: commit for begun in trial.state().rolling_back for name, commit in begun.refs.items()}
    assert named.items() <= on_record.items()


CHANGES = {
    "commits": f"git add --all; {_COMMIT} agent",
    "breaks the repository": "rm .git/HEAD",
    "makes a repository": f"git init --quiet .; git add app.py; {_COMMIT} agent",
    "changes what is left out": "echo 'snapshot: {exclude: [app.py]}' > .github/endstate.yml",
}
"""After each of these, another session would be bound to another commit, or look at the workspace in another way."""


def killed_in_its_call(trial: Trial, command: str, lasts_s: int = 60) -> dict[str, Any]:
    """Once the call has done its work, which the file `done` tells. Returns what a resume is to be given as well."""
    words = {"command": f"{command}; echo > done; sleep {lasts_s}"}
    job = {"inputs": {"sandbox": "required"}, "script": json.dumps(script(reply(("bash", words))))}
    trial.driver.start(trial.job(prompt="Work.", **job))
    deadline = time.monotonic() + 30
    while not (trial.repo.path / "done").exists():
        assert time.monotonic() < deadline, "the call does not begin"
        time.sleep(0.01)
    os.kill(trial.driver.fork(), signal.SIGKILL)
    assert trial.driver.ended() == KILLED
    return job


def killed_in_its_roll_back(trial: Trial, command: str, number: int) -> End:
    """A call that was killed when its work was done, and the resume that was undoing that. Returns what was before.

    Args:
        number: of the place where the roll-back is killed, from where it is on record.
    """
    StateDirectory(trial.repo.path / ".endstate").claim()  # git tells of it
    before = end_of(trial)
    job = killed_in_its_call(trial, f"echo x >> app.py; touch new; {command}")
    assert trial.resume(kinds=("os",), beginning="rename tmp_journal", kill_at=number, **job) == KILLED
    assert (trial.repo.path / ".endstate" / "objects" / "restore" / "journal").exists(), trial.where()
    assert end_of(trial) != before, trial.where()
    return before


@pytest.mark.parametrize("number", [2, 5])
@pytest.mark.parametrize("what", CHANGES)
def test_a_new_session_begins_on_what_a_killed_roll_back_was_to_bring(
    bench: Bench, sandbox: Sandbox, what: str, number: int
) -> None:
    """Whoever finishes it: its end is that of the roll-back, and the session is bound to that end."""
    trial = bench.trial_of(script(reply(text="Done.")), inputs={"config-file": ".github/endstate.yml"})
    if what == "makes a repository":
        shutil.rmtree(trial.repo.path / ".git")
    before = killed_in_its_roll_back(trial, CHANGES[what], number)
    where = trial.where()

    assert trial.begin() == 0, (where, trial.said())

    assert end_of(trial) == before, where
    bound = next(s.state.begun.bound for s in trial.store.all() if s.state and s.state.is_finished)
    is_git = what != "makes a repository"
    assert bound["workspace"] == ("git" if is_git else "directory")
    assert bound.get("base") == (trial.repo.git("rev-parse", "HEAD") if is_git else None)
    assert not bound.get("dirty")
    notices = [line["notice"] for line in trial.lines("said") if "notice" in line]
    assert any("removed by the roll-back" in notice for notice in notices), notices


def test_another_session_finishes_a_roll_back_that_was_killed(bench: Bench, sandbox: Sandbox) -> None:
    """One that was begun on another commit."""
    trial = bench.trial_of(script(reply(text="Done.")))
    assert trial.begin() == 0
    (first,) = trial.store.names()
    trial.repo.commit({"more": "more"})
    before = killed_in_its_roll_back(trial, CHANGES["commits"], 2)

    assert trial.resume(session=first, prompt="More.") == 0, trial.said()

    assert end_of(trial) == before
