"""The watcher: once a workflow is over, it runs again what a lost machine cut short, and nothing else.

It decides from what GitHub tells now, not from its event, asks for a re-run once, and says what it decided. It has
no say over what the next attempt does: that resumes by itself, under its own fence.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from endstate_action.ci.event import Event, read_event
from endstate_action.ci.github import GitHub
from endstate_action.ci.markdown import plain, units
from endstate_action.ci.marker import parse_marker
from endstate_action.ci.outcome import LOOK_AFTER_S, Ambiguous, Applied, Denied, Failed, Failure, told
from endstate_action.ci.payload import parse_object
from endstate_action.ci.preemption import MOST_RERUNS, Decision, dismissed, judged, overtaken
from endstate_action.ci.pull_request import Author, Conversation, PostedComment, Viewer, read_pull_request, viewer_of
from endstate_action.ci.runs import Runs, WorkflowRun
from endstate_action.ci.workflow import Log, RunnerFiles, harmless
from endstate_action.config.text import quoted
from endstate_action.errors import EndstateError, InputError

PERMISSIONS = "permissions:\n  actions: write\n  checks: read\n  contents: read\n  pull-requests: write"
"""What the watcher's job needs, to be pasted as it is."""

LOOK_BACK = timedelta(hours=24)
"""A schedule looks at runs that ended within this time."""

MOST_LOOKED_AT = 20
"""And at so many of them at most, the newest: each takes some requests, of which a job's token has 1,000 an hour."""

_LONGEST_COMMENT = 65_500
_REASON_UNITS = 500
_TITLE = "endstate resume"


def watch(
    environ: Mapping[str, str],
    put: Callable[[str], None],
    say: Callable[[str], None],
    *,
    clock: Callable[[], float] = time.time,
    wait: Callable[[float], None] = time.sleep,
    connect: Callable[[str, str, Mapping[str, str]], GitHub] = GitHub,
) -> int:
    """Decide about the run of the event, or on a schedule about the newest ones, and act on it.

    Returns the exit code: 0 for either decision, and that of the error where nothing could be decided.

    Args:
        environ: the step's, with `INPUT_GITHUB_TOKEN` and `INPUT_MAX_ATTEMPTS`.
        put: prints one line of the log that the runner may obey.
        say: prints one line for people.
    """
    log = Log(put)
    try:
        files = RunnerFiles(environ)
        max_attempts = _max_attempts(environ.get("INPUT_MAX_ATTEMPTS", ""))
        event = read_event(environ)
        github = connect(event.run.api_url, _token(environ), environ)
        try:
            watcher = _Watcher(
                github, event.repository.full_name, max_attempts, datetime.fromtimestamp(clock(), UTC), wait, say
            )
            decision = watcher.decide(event, environ)
        finally:
            github.close()
        log.annotate("notice", _told(decision), _TITLE)
        files.outputs({"decision": "re-run" if decision.is_rerun else "left-alone", "reason": _sentence(decision)})
    except EndstateError as error:
        log.annotate("error", f"{error} {error.hint}".strip(), _TITLE)
        return error.exit_code
    return 0


def _max_attempts(text: str) -> int:
    given = text.strip() or "3"
    if not re.fullmatch(r"[0-9]{1,2}", given) or not 1 <= int(given) <= MOST_RERUNS:
        raise InputError(
            f"max-attempts: {quoted(text)} cannot be used, so nothing was run again.",
            hint=f"max-attempts must be a whole number from 1 to {MOST_RERUNS}, the first attempt included.",
        )
    return int(given)


def _token(environ: Mapping[str, str]) -> str:
    token = environ.get("INPUT_GITHUB_TOKEN") or environ.get("GITHUB_TOKEN", "")
    if not token:
        raise InputError(
            "There is no token for GitHub, so nothing was run again.",
            hint="Leave github-token at its default, which is the job's own token, or give it an App's.",
        )
    return token


def _event_run(environ: Mapping[str, str]) -> int:
    """The run that this event is about; `read_event` has read the file before, and found it to be one."""
    root = parse_object(Path(environ["GITHUB_EVENT_PATH"]).read_bytes(), "the payload")
    return root.need("workflow_run").number("id")


@dataclass(frozen=True, slots=True)
class _Watcher:
    github: GitHub
    repository: str
    max_attempts: int
    now: datetime
    wait: Callable[[float], None]
    say: Callable[[str], None]

    def decide(self, event: Event, environ: Mapping[str, str]) -> Decision:
        """Raises: InputError: another event, or a permission is missing."""
        match event.name:
            case "workflow_run":
                return self._attended(_event_run(environ), must_be_ours=False)
            case "schedule":
                return self._looked_around()
            case _:
                raise InputError(
                    f"The watcher was started by {quoted(event.name)}, which says nothing of a run that is over; "
                    "nothing was run again.",
                    hint="Start it by `workflow_run` with `types: [completed]`, or by `schedule`.",
                )

    def _looked_around(self) -> Decision:
        found = self._recent()
        decided = [(run_id, self._attended(run_id, must_be_ours=True)) for run_id in found]
        again = [str(run_id) for run_id, decision in decided if decision.is_rerun]
        if again:
            return Decision(
                True, f"of {len(found)} runs that did not end well, the machine was lost in {', '.join(again)}"
            )
        return Decision(False, f"of {len(found)} runs that did not end well, none is to be run again")

    def _recent(self) -> tuple[int, ...]:
        runs = Runs(self.github, self.repository)
        try:
            listed = [*runs.newest("failure", MOST_LOOKED_AT), *runs.newest("cancelled", MOST_LOOKED_AT)]
        except Failed as failed:
            raise _unread(failed.failure) from None
        fresh = sorted((run for run in listed if self.now - run.updated < LOOK_BACK), key=lambda run: -run.id)
        return tuple(run.id for run in fresh[:MOST_LOOKED_AT])

    def _attended(self, run_id: int, *, must_be_ours: bool) -> Decision:
        """What is decided of one run, and done. What cannot be read is left alone."""
        runs = Runs(self.github, self.repository)
        try:
            run = runs.read(run_id)
            decision = self._decided(runs, run, must_be_ours=must_be_ours)
            decision = self._rerun(runs, run, decision) if decision.is_rerun else self._announced(run, decision)
        except Failed as failed:
            if isinstance(failed.failure, Denied):
                raise _unread(failed.failure) from None
            decision = Decision(False, f"it could not be read ({failed.failure.reason})")
        self.say(harmless(f"run {run_id}: {_told(decision)}"))
        return decision

    def _decided(self, runs: Runs, run: WorkflowRun, *, must_be_ours: bool) -> Decision:
        """Reads no more than the decision takes."""
        decision = dismissed(run, self.now, self.max_attempts)
        if decision is not None:
            return decision
        jobs = runs.jobs(run)
        denied = next((job.annotations for job in jobs if isinstance(job.annotations, Denied)), None)
        if denied is not None:
            raise Failed(denied)
        decision = judged(run, jobs, must_be_ours=must_be_ours)
        if not decision.is_rerun:
            return decision
        head, is_open = self._head(runs, run)
        return overtaken(run, runs.beside(run), head, is_open=is_open) or decision

    def _head(self, runs: Runs, run: WorkflowRun) -> tuple[str | None, bool]:
        """The commit that the run should be about, and whether its pull request is open."""
        if run.event == "push":
            return runs.pushed(run), True
        if not run.is_about_a_pull_request:
            return None, True
        if not run.pull_requests:
            return None, False
        found = read_pull_request(self.github, self.repository, run.pull_requests[0])
        if not isinstance(found, Applied):
            raise Failed(found)
        return found.value.pull_request.head_sha, found.value.is_open

    def _rerun(self, runs: Runs, run: WorkflowRun, decision: Decision) -> Decision:
        """Asked for once, and announced before: the comment is the next attempt's as soon as there is one."""
        now = runs.read(run.id)
        if now.attempt != run.attempt or not now.is_over:
            return Decision(False, "somebody has run it again meanwhile", is_told=False)
        self._tell(run, f"asks for another attempt, since {decision.reason}")
        try:
            runs.rerun(run)
        except Failed as failed:
            return self._refused(runs, run, decision, failed.failure)
        return decision

    def _refused(self, runs: Runs, run: WorkflowRun, decision: Decision, failure: Failure) -> Decision:
        words = failure.reason.lower()
        match failure:
            case Ambiguous():
                self.wait(LOOK_AFTER_S)
                seen = told(lambda: runs.read(run.id))
                if isinstance(seen, Applied) and seen.value.attempt > run.attempt:
                    return decision
                left = Decision(False, f"it is not known whether the re-run was asked for ({failure.reason})")
            case Denied() if "already running" in words:
                return Decision(False, "somebody has run it again meanwhile", is_told=False)
            case Denied() if "retried" not in words and "retry" not in words:
                # The comment says that another attempt was asked for: nobody must wait for it.
                self._tell(run, f"could not have it run again ({failure.reason})")
                raise Failed(failure)
            case _:
                left = Decision(False, f"GitHub did not run it again ({failure.reason})")
        return self._announced(run, left)

    # The comment

    def _announced(self, run: WorkflowRun, decision: Decision) -> Decision:
        if decision.is_told:
            self._tell(run, f"leaves it alone, since {decision.reason}")
        return decision

    def _tell(self, run: WorkflowRun, words: str) -> None:
        """Add a line to our comments that are about this run; that this fails changes no decision."""
        viewer = viewer_of(self.github) if run.pull_requests else Viewer(None)
        for number in run.pull_requests:
            conversation = Conversation(self.github, self.repository, number, self.wait)
            found = conversation.comments()
            if not isinstance(found, Applied):
                self._untold(number, found)
                continue
            for comment in found.value:
                if _is_about(comment, run, viewer):
                    self._add(
                        conversation,
                        comment,
                        f"**Watcher**, run attempt {run.attempt}: {plain(words, _REASON_UNITS)}.",
                    )

    def _add(self, conversation: Conversation, comment: PostedComment, line: str) -> None:
        body = comment.body.replace("\r\n", "\n")
        if line in body.split("\n"):
            return
        # Below the first paragraph: what a comment keeps of earlier results is found again only at its end.
        first, _, rest = body.partition("\n\n")
        longer = f"{first}\n\n{line}\n\n{rest}"
        if units(longer) > _LONGEST_COMMENT:
            self.say(f"The comment on #{conversation.number} is full, so it does not say so.")
            return
        edited = conversation.edit(comment.id, longer, lambda: True)
        if not isinstance(edited, Applied):
            self._untold(conversation.number, edited)

    def _untold(self, number: int, failure: Failure) -> None:
        remedy = (
            f" For this the job needs `pull-requests: write`:\n{PERMISSIONS}" if isinstance(failure, Denied) else ""
        )
        for line in f"The comment on #{number} does not say so ({failure.reason}).{remedy}".split("\n"):
            self.say(harmless(line))


def _is_about(comment: PostedComment, run: WorkflowRun, viewer: Viewer) -> bool:
    """By marker, author and the address of the run. Under an App's token the comment is another bot's than ours."""
    is_ours = parse_marker(comment.body) is not None and _may_be_ours(comment.author, viewer)
    return is_ours and re.search(rf"/actions/runs/{run.id}(?![0-9])", comment.body) is not None


def _may_be_ours(author: Author, viewer: Viewer) -> bool:
    return viewer.wrote(author) or replace(viewer, login=None).wrote(author)


def _told(decision: Decision) -> str:
    return f"{'run again' if decision.is_rerun else 'left alone'}, since {decision.reason}."


def _sentence(decision: Decision) -> str:
    return f"{decision.reason[:1].upper()}{decision.reason[1:]}."


def _unread(failure: Failure) -> InputError:
    """The error where a permission or the token is at fault, which another look would not mend."""
    remedy = failure.remedy if isinstance(failure, Denied) else "Run the watcher again."
    is_permission = isinstance(failure, Denied) and failure.lacks
    lines = f"Give the watcher's job these lines; an App's token needs the same of its App:\n{PERMISSIONS}"
    return InputError(
        f"The watcher could not do its work ({failure.reason}), so nothing was run again.",
        hint=lines if is_permission else remedy,
    )
