"""What a lost machine says is told from what people, limits and failures say; in doubt nothing is run again."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from endstate_action.ci.conclusions import CONCLUSIONS
from endstate_action.ci.outcome import Unavailable
from endstate_action.ci.preemption import MOST_RERUNS, dismissed, judged, overtaken
from endstate_action.ci.runs import Annotation, Job, JobStep, WorkflowRun

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
SHA = "1" * 40
RUN = WorkflowRun(
    id=50,
    number=5,
    attempt=1,
    status="completed",
    conclusion="failure",
    event="pull_request",
    workflow=1,
    branch="change",
    sha=SHA,
    title="A change",
    head_repository=9,
    pull_requests=(7,),
    created=NOW - timedelta(hours=2),
    updated=NOW - timedelta(minutes=1),
)
CANCELLED = replace(RUN, conclusion="cancelled")

# The texts as the platform writes them.
SHUTDOWN = (
    "The runner has received a shutdown signal. This can happen when the runner service is stopped, or a manually "
    "started runner is canceled."
)
HOSTED = (
    "The hosted runner lost communication with the server. Anything in your workflow that terminates the runner "
    "process, starves it for CPU/Memory, or blocks its network access can cause this error."
)
HOSTED_BEFORE = HOSTED.replace("hosted runner", "hosted runner: GitHub Actions 4")
SELF_HOSTED = (
    "The self-hosted runner: spot-17 lost communication with the server. Verify the machine is running and has a "
    "healthy network connection. Anything in your workflow that terminates the runner process can cause this error."
)
WINDOWS = "Operating system is shutting down for computer 'SPOT-17'"
CANCELED = "The operation was canceled."
TIME_OUT = "The job running on runner GitHub Actions 4 has exceeded the maximum execution time of 110 minutes."
STEP_TIME_OUTS = (
    "The action 'Run org/endstate-action@v1' has timed out after 30 minutes.",
    "The action has timed out.",
)
REPLACED = "Canceling since a higher priority waiting request for endstate-7 exists"
BY_PERSON = "The run was canceled by @alice."
STRONG = [SHUTDOWN, HOSTED, HOSTED_BEFORE, SELF_HOSTED, WINDOWS]

OURS = "Run org/endstate-action@v1"
SET_UP = JobStep("Set up job", "success")
LATER = JobStep("Post Run actions/checkout@v7", "skipped")


def code(number: int) -> str:
    return f"Process completed with exit code {number}."


def job(*texts: str, end: str = "failure", step: str = OURS, step_end: str = "", title: str = "") -> Job:
    """A job that ended in `step`, with `texts` noted at it, the first under `title`."""
    noted = tuple(Annotation(text, title if number == 0 else "") for number, text in enumerate(texts))
    return Job("agent", end, (SET_UP, JobStep(step, step_end), LATER), noted)


FINE = Job("tests", "success", (SET_UP,))
NEXT = Job("deploy", "skipped")

RUN_AGAIN = [
    *[pytest.param(RUN, job(text), id=f"strong-{number}") for number, text in enumerate(STRONG)],
    *[pytest.param(RUN, job(text, step="Build"), id=f"strong-elsewhere-{n}") for n, text in enumerate(STRONG)],
    *[pytest.param(CANCELLED, job(text, end="cancelled"), id=f"reclaimed-{n}") for n, text in enumerate(STRONG)],
    pytest.param(RUN, job(CANCELED, step_end="cancelled"), id="canceled-in-the-middle"),
    pytest.param(RUN, job(CANCELED, SHUTDOWN, step_end="cancelled"), id="both"),
    pytest.param(RUN, job(code(143), step_end="failure"), id="ours-143"),
    pytest.param(RUN, job(code(137), step_end="failure"), id="ours-137"),
    pytest.param(RUN, job(code(130), step_end="failure"), id="ours-130"),
    pytest.param(RUN, job(SHUTDOWN, code(143), step="Build", step_end="failure"), id="killed-with-its-machine"),
    pytest.param(RUN, job(code(75), step_end="failure"), id="ours-75"),
    pytest.param(RUN, job("m", code(75), step_end="failure", title="endstate: interrupted"), id="interrupted"),
    pytest.param(RUN, job("m", code(75), step_end="failure", title="endstate: undelivered"), id="undelivered"),
    pytest.param(
        RUN, job("m", code(75), step="Fix it", step_end="failure", title="endstate: interrupted"), id="another-name"
    ),
    pytest.param(
        CANCELLED,
        job("m", SHUTDOWN, end="cancelled", step_end="cancelled", title="endstate: interrupted"),
        id="reclaimed-and-said-so",
    ),
]

LEFT_ALONE = [
    *[pytest.param(RUN, job(TIME_OUT, text), id=f"time-out-{n}") for n, text in enumerate([*STRONG, CANCELED])],
    *[
        pytest.param(RUN, job("m", text, step_end="failure", title="endstate: interrupted"), id=f"step-time-out-{n}")
        for n, text in enumerate(STEP_TIME_OUTS)
    ],
    *[
        pytest.param(CANCELLED, job(BY_PERSON, text, end="cancelled"), id=f"person-{n}")
        for n, text in enumerate(STRONG)
    ],
    pytest.param(RUN, job(REPLACED, SHUTDOWN), id="replaced-in-its-group"),
    pytest.param(CANCELLED, job(CANCELED, end="cancelled", step_end="cancelled"), id="cancelled-without-a-word"),
    pytest.param(CANCELLED, job(code(143), end="cancelled", step_end="failure"), id="cancelled-143"),
    pytest.param(
        CANCELLED,
        job("m", CANCELED, code(75), end="cancelled", step_end="failure", title="endstate: interrupted"),
        id="cancelled-by-a-person-and-checkpointed",
    ),
    pytest.param(RUN, job(code(1), step="Run tests", step_end="failure"), id="a-test-failed"),
    pytest.param(RUN, job(SHUTDOWN, code(1), step="Run tests", step_end="failure"), id="failed-and-then-lost"),
    pytest.param(RUN, job(SHUTDOWN, code(3), step_end="failure"), id="ours-failed-and-was-lost"),
    pytest.param(RUN, job(SHUTDOWN, "Error: no", step="Deploy", step_end="failure"), id="unknown-failure-and-lost"),
    pytest.param(RUN, job(code(143), step="Run tests", step_end="failure"), id="another-steps-143"),
    pytest.param(RUN, job(code(75), step="Send mail", step_end="failure"), id="another-steps-75"),
    pytest.param(RUN, job(CANCELED, step="Run tests", step_end="failure"), id="canceled-after-a-failure"),
    pytest.param(RUN, job(step_end="failure"), id="nothing-noted"),
    pytest.param(RUN, job("Something new happened."), id="unknown-words"),
    pytest.param(RUN, job(SHUTDOWN, end="timed_out"), id="job-timed-out"),
    pytest.param(RUN, job(SHUTDOWN, end=""), id="job-without-an-end"),
    pytest.param(RUN, FINE, id="no-job-failed"),
    pytest.param(RUN, job(CANCELED, end="cancelled", step_end="cancelled"), id="only-a-bystander"),
]


@pytest.mark.parametrize(("run", "one"), RUN_AGAIN)
def test_a_lost_machine_is_run_again(run, one):
    assert judged(run, [FINE, one, NEXT]).is_rerun


@pytest.mark.parametrize(("run", "one"), LEFT_ALONE)
def test_whatever_else_ended_it_is_left_alone(run, one):
    assert not judged(run, [FINE, one, NEXT]).is_rerun


@pytest.mark.parametrize("row", CONCLUSIONS, ids=lambda row: f"{row.exit_code}-{row.conclusion}")
def test_our_own_ending_decides_as_its_table_says(row):
    one = job("m", code(row.exit_code), step_end="failure", title=f"endstate: {row.conclusion}")
    decision = judged(RUN, [one])
    assert (decision.is_rerun, row.because in decision.reason) == (row.watcher == "runs it again", True)


@pytest.mark.parametrize("text", STRONG)
def test_what_is_noted_and_could_not_be_read_is_never_taken_for_nothing(text):
    unread = Job("tests", "failure", (), Unavailable("GitHub answered 502"))
    decision = judged(RUN, [job(text), unread])
    assert (decision.is_rerun, "could not be read" in decision.reason) == (False, True)


@pytest.mark.parametrize(("run", "other"), LEFT_ALONE[:-2])
def test_one_job_that_ended_by_itself_keeps_all_others_from_being_run_again(run, other):
    assert not judged(run, [job(SHUTDOWN, end="cancelled"), other]).is_rerun


def test_a_job_that_fell_with_the_lost_one_is_no_obstacle():
    beside = job(CANCELED, end="cancelled", step_end="cancelled")
    assert judged(RUN, [job(SHUTDOWN), beside]).is_rerun


def test_two_uses_of_which_one_stopped_are_left_to_a_person():
    noted = (Annotation("m", "endstate: interrupted"), Annotation("n", "endstate: stopped"), Annotation(code(75)))
    decision = judged(RUN, [Job("agent", "failure", (SET_UP, JobStep(OURS, "failure")), noted)])
    assert (decision.is_rerun, "stopped" in decision.reason) == (False, True)


def test_where_nobody_named_the_workflow_only_what_uses_us_is_run_again():
    ours, deploy = job(SHUTDOWN), job(SHUTDOWN, step="Deploy")
    assert judged(RUN, [ours], must_be_ours=True).is_rerun
    assert not judged(RUN, [ours, deploy], must_be_ours=True).is_rerun
    assert judged(RUN, [ours, deploy]).is_rerun


# The run alone


@pytest.mark.parametrize("run", [RUN, CANCELLED, replace(RUN, attempt=2), replace(RUN, created=NOW - timedelta(29))])
def test_a_run_that_ended_badly_and_may_be_run_again_is_looked_at(run):
    assert dismissed(run, NOW, 3) is None


@pytest.mark.parametrize(
    ("run", "is_told"),
    [
        (replace(RUN, status="in_progress", conclusion=""), False),
        (replace(RUN, status="queued", conclusion=""), False),
        (replace(RUN, conclusion="success"), False),
        (replace(RUN, conclusion="skipped"), False),
        (replace(RUN, conclusion="neutral"), False),
        (replace(RUN, conclusion="timed_out"), True),
        (replace(RUN, conclusion="action_required"), True),
        (replace(RUN, conclusion="stale"), True),
        (replace(RUN, conclusion="startup_failure"), True),
        (replace(RUN, conclusion=""), True),
        (replace(RUN, attempt=3), True),
        (replace(RUN, attempt=4), True),
        (replace(RUN, created=NOW - timedelta(30, seconds=1)), True),
    ],
)
def test_a_run_is_dismissed_by_how_it_ended_by_its_attempt_and_by_its_age(run, is_told):
    decision = dismissed(run, NOW, 3)
    assert decision is not None
    assert (decision.is_rerun, decision.is_told) == (False, is_told)


def test_no_run_is_run_again_more_often_than_the_platform_does():
    assert dismissed(replace(RUN, attempt=MOST_RERUNS), NOW, 10**6) is None
    assert dismissed(replace(RUN, attempt=MOST_RERUNS + 1), NOW, 10**6) is not None


# What has happened since

NEWER = replace(RUN, id=60, number=6)


@pytest.mark.parametrize("other", [NEWER, replace(NEWER, status="queued", conclusion=""), replace(NEWER, event="push")])
def test_a_newer_run_of_the_same_workflow_on_the_same_branch_is_let_go_on(other):
    decision = overtaken(RUN, [other, RUN], SHA, is_open=True)
    assert decision is not None
    assert (decision.is_rerun, decision.is_told) == (False, False)


@pytest.mark.parametrize(
    "other",
    [
        RUN,
        replace(RUN, id=40, number=4),
        replace(NEWER, conclusion="skipped"),
        replace(NEWER, workflow=2),
        replace(NEWER, branch="another"),
        replace(NEWER, head_repository=10),
    ],
)
def test_a_run_that_is_not_newer_or_of_something_else_is_no_obstacle(other):
    assert overtaken(RUN, [other], SHA, is_open=True) is None


def test_comments_on_one_branch_are_told_apart_by_their_titles():
    mine = replace(RUN, event="issue_comment", branch="main", pull_requests=())
    theirs = replace(mine, id=60, number=6, title="Another change")
    assert overtaken(mine, [theirs], None, is_open=True) is None
    assert overtaken(mine, [replace(theirs, title=mine.title)], None, is_open=True) is not None


@pytest.mark.parametrize(("head", "is_open"), [("2" * 40, True), (SHA, False), (None, False)])
def test_a_newer_commit_or_a_closed_pull_request_ends_it(head, is_open):
    assert overtaken(RUN, [RUN], head, is_open=is_open) is not None


def test_the_reason_is_one_line_whatever_a_job_is_called():
    decision = judged(RUN, [replace(job(SHUTDOWN), name="a\n::error::b\u202e")])
    assert decision.is_rerun
    assert decision.reason.isprintable()
