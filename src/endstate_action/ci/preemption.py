"""Was the machine lost, or is the run over? Run again only what a lost machine cut short; in doubt, leave it.

Decided from values that were read before, in three questions, the cheap ones first: `dismissed` (the run alone),
`judged` (its jobs), `overtaken` (what has happened since). The texts are the platform's own. A workflow can forge
them: that gets it one of a bounded number of re-runs, with the rights that it had.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from endstate_action.ci.conclusions import CONCLUSIONS, Ending, ending
from endstate_action.ci.runs import Job, WorkflowRun
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
"""Said of a machine that goes, and of much else."""

NEVER = (
    ("has exceeded the maximum execution time", "a time limit ended it, and would again"),
    # Of a step alone; it ends as on a lost machine, by signals. Older runners do not name the step.
    ("' has timed out after ", "a time limit ended a step, and would again"),
    ("The action has timed out.", "a time limit ended a step, and would again"),
    ("Canceling since ", "its concurrency group cancelled it for another run"),
    ("was canceled by @", "a person cancelled it"),
)
"""With one of these, whatever else is said means nothing: time-outs and cancels end in the words of a loss."""

_KILLED = frozenset({130, 137, 143})
"""Exit codes of a process that a signal ended: the machine's end, the kernel's want of memory, or a person."""

_RESUMED = 75
_EXIT = re.compile(r"Process completed with exit code ([0-9]{1,3})\.")
_TITLE = re.compile(r"endstate: ([a-z]+)")
_BY_COMMENT = frozenset({"issue_comment", "issues"})


@dataclass(frozen=True, slots=True)
class Decision:
    is_rerun: bool
    reason: str
    """A sentence without its first capital and its full stop."""
    is_told: bool = True
    """Whether the pull request is told. Not where there is no news, nor where the comment is another run's by now."""


@dataclass(frozen=True, slots=True)
class _Lost:
    reason: str


@dataclass(frozen=True, slots=True)
class _Final:
    """The end of this job is an end: nothing is run again."""

    reason: str


def dismissed(run: WorkflowRun, now: datetime, max_attempts: int) -> Decision | None:
    """What the run alone says: why it is left alone, or None."""
    if not run.is_over:
        return _left("it is under way, so somebody has run it again already", is_told=False)
    if run.is_fine:
        return _left(f"it ended as {run.conclusion}, and there is nothing to resume", is_told=False)
    if run.conclusion not in ("failure", "cancelled"):
        return _left(f"it ended as {quoted(run.conclusion)}, which is not how a lost machine shows")
    if run.attempt >= max_attempts:
        return _left(f"attempt {run.attempt} was the last one that max-attempts allows ({max_attempts})")
    if run.attempt > MOST_RERUNS:
        return _left(f"GitHub runs nothing again more than {MOST_RERUNS} times")
    if now - run.created > OLDEST:
        return _left(f"GitHub runs nothing again that is older than {OLDEST.days} days")
    return None


def judged(run: WorkflowRun, jobs: Sequence[Job], *, must_be_ours: bool = False) -> Decision:
    """What the jobs say. Each that did not go well would be run again, so nothing else may have ended any of them.

    Args:
        must_be_ours: whether each of these jobs needs a step of ours, since nobody has named this workflow to us.
    """
    ended = [job for job in jobs if not job.is_fine]
    found = [_found(run, job) for job in ended]
    final = next((one for one in found if isinstance(one, _Final)), None)
    if final is not None:
        return _left(final.reason)
    lost = next((one for one in found if isinstance(one, _Lost)), None)
    if lost is None:
        return _left("nothing says that a machine was lost")
    if must_be_ours and not all(job.is_ours for job in ended):
        return _left("a job without a step of ours would be run again too", is_told=False)
    return Decision(True, lost.reason)


def overtaken(run: WorkflowRun, others: Sequence[WorkflowRun], head: str | None, *, is_open: bool) -> Decision | None:
    """What has happened since: why it is left alone, or None.

    Args:
        others: the newest runs of its workflow on its branch.
        head: the commit that its branch or pull request is at; None where it is about no newest commit, as a comment.
        is_open: whether its pull request is; true where it is about none.
    """
    newer = next((other for other in others if _replaces(other, run)), None)
    if newer is not None:
        return _left(f"run {newer.id} of the same workflow is newer", is_told=False)
    if not is_open:
        return _left("its pull request is closed, or comes from a fork", is_told=False)
    if head is not None and head != run.sha:
        return _left("there is a newer commit", is_told=False)
    return None


def _left(reason: str, *, is_told: bool = True) -> Decision:
    return Decision(False, reason, is_told)


def _replaces(other: WorkflowRun, run: WorkflowRun) -> bool:
    is_same = (other.workflow, other.branch, other.head_repository) == (run.workflow, run.branch, run.head_repository)
    # Comments all run on the default branch: only the title tells of which issue one is. Those that asked for nothing
    # end as skipped.
    is_elsewhere = run.event in _BY_COMMENT and other.event in _BY_COMMENT and other.title != run.title
    return is_same and other.number > run.number and other.conclusion != "skipped" and not is_elsewhere


def _found(run: WorkflowRun, job: Job) -> _Lost | _Final | None:
    """None: it ended because another did."""
    name = f"job {quoted(job.name)}"
    if not isinstance(job.annotations, tuple):
        return _Final(f"what is noted at {name} could not be read ({job.annotations.reason})")
    texts = [annotation.message for annotation in job.annotations]
    for words, reason in NEVER:
        if any(words in text for text in texts):
            return _Final(f"of {name}, {reason}")
    if job.conclusion not in ("failure", "cancelled"):
        return _Final(f"{name} ended as {quoted(job.conclusion)}")
    ours = _endings(job, texts)
    return _ended_by_itself(name, job, texts, ours) or _cut_short(run, name, job, texts, ours)


def _ended_by_itself(name: str, job: Job, texts: Sequence[str], ours: Sequence[Ending]) -> _Final | None:
    kept = next((row for row in ours if row.watcher == "leaves it"), None)
    if kept is not None:
        return _Final(f"{name} ended as {kept.conclusion}: {kept.because}")
    codes = _codes(texts)
    by_itself = codes - _KILLED - ({_RESUMED} if ours or job.is_ours else set())
    if by_itself:
        return _Final(f"a step of {name} failed with exit code {min(by_itself)}")
    failed = [step for step in job.steps if step.conclusion == "failure"]
    foreign = next((step for step in failed if not step.is_ours), None)
    # A step that the machine's end killed is called failed as well. One of ours may have been given another name.
    is_explained = (_is_strong(texts) and bool(codes & _KILLED)) or (bool(ours) and len(failed) == 1)
    if foreign is not None and not is_explained:
        return _Final(f"step {quoted(foreign.name)} of {name} failed, and is not ours")
    return None


def _cut_short(
    run: WorkflowRun, name: str, job: Job, texts: Sequence[str], ours: Sequence[Ending]
) -> _Lost | _Final | None:
    if _is_strong(texts):
        return _Lost(f"the machine of {name} was lost")
    if job.conclusion == "cancelled":
        # A person's cancel and a graceful reclaim give us the same signals, and so the same words of ours.
        is_whole_run = run.conclusion == "cancelled"
        return _Final(f"{name} was cancelled, and nothing says that its machine was lost") if is_whole_run else None
    codes = _codes(texts)
    if ours or _RESUMED in codes:
        row = ours[0] if ours else ending(_RESUMED)
        return _Lost(f"{name} was {row.conclusion}: {row.because}")
    if codes & _KILLED or CANCELED in texts:
        return _Lost(f"{name} was ended from outside")
    return _Final(f"nothing says that the machine of {name} was lost")


def _is_strong(texts: Sequence[str]) -> bool:
    return any(words in text for text in texts for words in STRONG)


def _codes(texts: Sequence[str]) -> set[int]:
    return {int(found[1]) for text in texts if (found := _EXIT.fullmatch(text.strip()))}


def _endings(job: Job, texts: Sequence[str]) -> tuple[Ending, ...]:
    """How steps of ours say that they ended: by the title of an annotation, and the exit code where that fits it."""
    listed = job.annotations if isinstance(job.annotations, tuple) else ()
    titles = dict.fromkeys(found[1] for annotation in listed if (found := _TITLE.fullmatch(annotation.title)))
    rows = ([row for row in CONCLUSIONS if row.conclusion == title] for title in titles)
    codes = _codes(texts)
    return tuple(next((row for row in of if row.exit_code in codes), of[0]) for of in rows if of)
