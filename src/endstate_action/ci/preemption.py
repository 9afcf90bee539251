"""Was the machine lost, or is the run over? Run again only what a lost machine cut short; in doubt, leave it.

Everything is decided from values that were read before, in three questions, the cheap ones first: `dismissed`
(the run alone), `judged` (its jobs), `overtaken` (what has happened since). A run is run again when each asks for it.
The texts are the platform's own, in annotations of jobs. One that a workflow forges gets it one of a bounded number
of re-runs, with the rights that it had.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from endstate_action.ci.conclusions import CONCLUSIONS, Ending
from endstate_action.config.text import quoted

MOST_RERUNS = 50
"""GitHub runs no run again more often."""

OLDEST = timedelta(days=30)
"""GitHub runs nothing again that is older."""

STRONG = (
    "The runner has received a shutdown signal",
    "lost communication with the server",
    "Operating system is shutting down for computer",
)
"""Said when a machine goes, and at no other time."""

CANCELED = "The operation was canceled."
_KILLED = frozenset({130, 137, 143})
"""Exit codes of a process that a signal ended: by the machine's end, by the kernel, or by a person."""

NEVER = (
    ("has exceeded the maximum execution time", "a time limit ended it, and would again"),
    ("Canceling since ", "its concurrency group cancelled it for another run"),
    ("was canceled by @", "a person cancelled it"),
)
"""With one of these, whatever else is said means nothing: a time-out and a cancel end in the same words as a loss."""

_EXIT = re.compile(r"Process completed with exit code ([0-9]{1,3})\.")
_TITLE = re.compile(r"endstate: ([a-z]+)")
_OURS = "endstate"
_RESUMED = 75
_FINE = frozenset({"success", "skipped", "neutral"})
_ABOUT_A_PULL_REQUEST = frozenset(
    {"pull_request", "pull_request_target", "pull_request_review", "pull_request_review_comment"}
)
_BY_COMMENT = frozenset({"issue_comment", "issues"})


@dataclass(frozen=True, slots=True)
class Decision:
    is_rerun: bool
    reason: str
    """A sentence without its full stop, in the past tense."""
    is_told: bool = True
    """Whether the pull request is told. Not where there is no news, nor where the comment is another run's by now."""


@dataclass(frozen=True, slots=True)
class WatchedRun:
    """A workflow run, as it is now. Branch and title are what others wrote."""

    id: int
    number: int
    attempt: int
    status: str
    conclusion: str
    event: str
    workflow: int
    branch: str
    sha: str
    title: str
    head_repository: int | None
    pull_requests: tuple[int, ...]
    """Open ones of the same repository. A fork's are not told."""
    created: datetime
    updated: datetime

    @property
    def is_over(self) -> bool:
        return self.status == "completed"

    @property
    def has_a_head(self) -> bool:
        """Whether it is about the newest commit of something, and so about nothing once there is a newer one."""
        return self.is_about_a_pull_request or self.event == "push"

    @property
    def is_about_a_pull_request(self) -> bool:
        return self.event in _ABOUT_A_PULL_REQUEST


@dataclass(frozen=True, slots=True)
class JobStep:
    name: str
    conclusion: str
    """`""` for one that never ended, as on a machine that is gone."""

    @property
    def is_ours(self) -> bool:
        """By the name that GitHub gives it, `Run org/endstate-action@v1`, or by one that says so."""
        return _OURS in self.name.lower()


@dataclass(frozen=True, slots=True)
class Annotation:
    message: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    name: str
    conclusion: str
    steps: tuple[JobStep, ...]
    annotations: tuple[Annotation, ...] | None = ()
    """None: they could not be read. Those of a job that went well are not asked for."""

    @property
    def is_fine(self) -> bool:
        return self.conclusion in _FINE

    @property
    def is_ours(self) -> bool:
        return any(step.is_ours for step in self.steps)


@dataclass(frozen=True, slots=True)
class _Lost:
    reason: str


@dataclass(frozen=True, slots=True)
class _Final:
    """How this job ended is how the run has to stay."""

    reason: str


_BYSTANDER = None
"""Ended because another job did."""


def dismissed(run: WatchedRun, now: datetime, max_attempts: int) -> Decision | None:
    """What the run alone says: why it is left alone, or None."""
    if not run.is_over:
        return _left("it is running, so somebody has run it again already", is_told=False)
    if run.conclusion in _FINE:
        return _left(f"it ended as {run.conclusion}, and there is nothing to resume", is_told=False)
    if run.conclusion not in ("failure", "cancelled"):
        return _left(f"it ended as {quoted(run.conclusion)}, which no lost machine causes")
    if run.attempt >= max_attempts:
        return _left(f"attempt {run.attempt} was the last that max-attempts ({max_attempts}) allows")
    if run.attempt > MOST_RERUNS:
        return _left(f"GitHub runs nothing again more than {MOST_RERUNS} times")
    if now - run.created > OLDEST:
        return _left(f"GitHub runs nothing again that is older than {OLDEST.days} days")
    return None


def judged(run: WatchedRun, jobs: Sequence[Job], *, must_be_ours: bool = False) -> Decision:
    """What the jobs say. Each of them that did not go well is run again, so each of them must have been lost.

    Args:
        must_be_ours: whether a lost job counts only with a step of ours, since nobody has named this workflow to us.
    """
    found = [_found(run, job) for job in jobs if not job.is_fine]
    final = next((one for one in found if isinstance(one, _Final)), None)
    if final is not None:
        return _left(final.reason)
    lost = next((one for one in found if isinstance(one, _Lost)), None)
    if lost is None:
        return _left("nothing says that a machine was lost")
    if must_be_ours and not all(job.is_ours for job in jobs if not job.is_fine and job.conclusion != "skipped"):
        return _left("a job without a step of ours would be run again with it", is_told=False)
    return Decision(True, lost.reason)


def overtaken(run: WatchedRun, others: Sequence[WatchedRun], head: str | None, *, is_open: bool = True) -> Decision | None:
    """What has happened since: why it is left alone, or None.

    Args:
        others: the newest runs of its workflow on its branch.
        head: the commit that its branch or pull request has now; None where there is none.
        is_open: whether its pull request still is.
    """
    newer = next((other for other in others if _replaces(other, run)), None)
    if newer is not None:
        return _left(f"run {newer.id} of the same workflow is newer", is_told=False)
    if run.is_about_a_pull_request and not run.pull_requests:
        return _left("which pull request it was for is not told: it is closed, or comes from a fork", is_told=False)
    if not is_open:
        return _left("its pull request is closed", is_told=False)
    if run.has_a_head and head != run.sha:
        return _left("there is a newer commit", is_told=False)
    return None


def _left(reason: str, *, is_told: bool = True) -> Decision:
    return Decision(False, reason, is_told)


def _replaces(other: WatchedRun, run: WatchedRun) -> bool:
    is_same = (other.workflow, other.branch, other.head_repository) == (run.workflow, run.branch, run.head_repository)
    # Comments all run on the default branch, and those that ask for nothing end as skipped. Whose they are shows in
    # the title alone.
    is_elsewhere = run.event in _BY_COMMENT and other.event in _BY_COMMENT and other.title != run.title
    return is_same and other.number > run.number and other.conclusion != "skipped" and not is_elsewhere


def _found(run: WatchedRun, job: Job) -> _Lost | _Final | None:
    name = f"job {quoted(job.name)}"
    if job.annotations is None:
        return _Final(f"the annotations of {name} could not be read")
    texts = [annotation.message for annotation in job.annotations]
    for words, reason in NEVER:
        if any(words in text for text in texts):
            return _Final(f"of {name}: {reason}")
    if job.conclusion not in ("failure", "cancelled"):
        return _Final(f"{name} ended as {quoted(job.conclusion)}")
    return _own_end(name, job) or _cut(run, name, job, texts)


def _own_end(name: str, job: Job) -> _Final | None:
    """Where a step said by itself how it ended, and that is nothing which another attempt changes."""
    ours = _ending_of(job)
    if ours is not None and ours.watcher == "leaves it":
        return _Final(f"{name} ended as {ours.conclusion}: {ours.because}")
    codes = _codes(job)
    real = sorted(codes - _KILLED - ({_RESUMED} if job.is_ours or ours is not None else set()))
    if real:
        return _Final(f"a step of {name} failed with exit code {real[0]}")
    foreign = next((s for s in job.steps if s.conclusion == "failure" and not s.is_ours), None)
    # A step that a signal ended is called failed too, so with a machine's end one such is no failure of its own.
    is_explained = bool(codes & _KILLED) and _is_strong(job)
    if foreign is not None and not is_explained and not (ours is not None and _only_failed(job)):
        return _Final(f"step {quoted(foreign.name)} of {name} failed, and is not ours")
    return None


def _cut(run: WatchedRun, name: str, job: Job, texts: Sequence[str]) -> _Lost | _Final | None:
    if _is_strong(job):
        return _Lost(f"the machine of {name} was lost")
    if job.conclusion == "cancelled":
        # The last two texts of a graceful reclaim are missing from a person's cancel, and nothing else is.
        is_by_person = run.conclusion == "cancelled"
        return _Final(f"{name} was cancelled, and nothing says that its machine was lost") if is_by_person else None
    ours = _ending_of(job)
    if ours is not None or _RESUMED in _codes(job):
        return _Lost(f"{name} was {(ours or CONCLUSIONS[-2]).conclusion}: {(ours or CONCLUSIONS[-2]).because}")
    if _codes(job) & _KILLED or any(CANCELED in text for text in texts):
        return _Lost(f"{name} was ended from outside")
    return _Final(f"of {name} nothing says that its machine was lost")


def _is_strong(job: Job) -> bool:
    return any(words in annotation.message for annotation in job.annotations or () for words in STRONG)


def _codes(job: Job) -> set[int]:
    return {int(found[1]) for a in job.annotations or () if (found := _EXIT.fullmatch(a.message.strip()))}


def _only_failed(job: Job) -> bool:
    return sum(step.conclusion == "failure" for step in job.steps) == 1


def _ending_of(job: Job) -> Ending | None:
    """How our step says that it ended, by the title of its annotation; the exit code tells rows of one name apart."""
    named = [found[1] for a in job.annotations or () if (found := _TITLE.fullmatch(a.title))]
    rows = [row for row in CONCLUSIONS if row.conclusion in named]
    return next((row for row in rows if row.exit_code in _codes(job)), rows[0] if rows else None)
