"""The watcher: what is run again, and what is left alone."""

from __future__ import annotations

from tests.mutants.row import Mutant

ROWS: tuple[Mutant, ...] = (
    Mutant(
        name="watch-never-texts",
        guard="A time-out, a concurrency group or a person's cancel outweighs whatever else is noted at a job",
        file="src/endstate_action/ci/preemption.py",
        old="        if any(words in text for text in texts):\n            return",
        new="        if False:\n            return",
        tests=("tests/unit/ci/test_preemption.py::test_whatever_else_ended_it_is_left_alone",),
    ),
    Mutant(
        name="watch-unread",
        guard="Annotations that could not be read are never taken for none",
        file="src/endstate_action/ci/preemption.py",
        old='        return _Final(f"what is noted at {name} could not be read ({job.annotations.reason})")',
        new="        return None",
        tests=(
            "tests/unit/ci/test_preemption.py::test_what_is_noted_and_could_not_be_read_is_never_taken_for_nothing",
        ),
    ),
    Mutant(
        name="watch-persons-cancel",
        guard="A cancelled job is not run again unless its machine is said to be gone",
        file="src/endstate_action/ci/preemption.py",
        old='    if job.conclusion == "cancelled":',
        new='    if job.conclusion == "":',
        tests=(
            "tests/unit/ci/test_preemption.py::test_whatever_else_ended_it_is_left_alone",
            "tests/unit/test_watch.py::test_a_cancel_by_a_person_stays_cancelled",
        ),
    ),
    Mutant(
        name="watch-foreign-failure",
        guard="A failed step that is not ours keeps its run from being run again",
        file="src/endstate_action/ci/preemption.py",
        old="    if foreign is not None and not is_explained:",
        new="    if False:",
        tests=("tests/unit/ci/test_preemption.py::test_whatever_else_ended_it_is_left_alone",),
    ),
    Mutant(
        name="watch-own-exit-code",
        guard="Another exit code than a killed process's is a failure, even on a lost machine",
        file="src/endstate_action/ci/preemption.py",
        old="    if by_itself:\n",
        new="    if False:\n",
        tests=("tests/unit/ci/test_preemption.py::test_whatever_else_ended_it_is_left_alone",),
    ),
    Mutant(
        name="watch-own-conclusion",
        guard="What our step says that a person must look at is left to a person",
        file="src/endstate_action/ci/preemption.py",
        old="    if kept is not None:\n",
        new="    if False:\n",
        tests=("tests/unit/ci/test_preemption.py::test_two_uses_of_which_one_stopped_are_left_to_a_person",),
    ),
    Mutant(
        name="watch-max-attempts",
        guard="No run gets more attempts than max-attempts",
        file="src/endstate_action/ci/preemption.py",
        old="    if run.attempt >= max_attempts:",
        new="    if False:",
        tests=(
            "tests/unit/test_watch.py::test_nothing_is_run_again_beyond_max_attempts",
            "tests/unit/test_watch.py::test_losses_without_end_come_to_an_end",
        ),
    ),
    Mutant(
        name="watch-most-reruns",
        guard="No run is asked for above the platform's own bound",
        file="src/endstate_action/ci/preemption.py",
        old="    if run.attempt > MOST_RERUNS:",
        new="    if False:",
        tests=("tests/unit/ci/test_preemption.py::test_no_run_is_run_again_more_often_than_the_platform_does",),
    ),
    Mutant(
        name="watch-newer-run",
        guard="A run is left alone once there is a newer one of its workflow on its branch",
        file="src/endstate_action/ci/preemption.py",
        old="    if newer is not None:",
        new="    if False:",
        tests=(
            "tests/unit/ci/test_preemption.py::test_a_newer_run_of_the_same_workflow_on_the_same_branch_is_let_go_on",
        ),
    ),
    Mutant(
        name="watch-newer-commit",
        guard="A run is left alone once its branch or pull request has a newer commit",
        file="src/endstate_action/ci/preemption.py",
        old="    if head is not None and head != run.sha:",
        new="    if False:",
        tests=("tests/unit/ci/test_preemption.py::test_a_newer_commit_or_a_closed_pull_request_ends_it",),
    ),
    Mutant(
        name="watch-schedule-ours",
        guard="On a schedule nothing is run again that does not use us",
        file="src/endstate_action/ci/preemption.py",
        old="    if must_be_ours and not all(job.is_ours for job in ended):",
        new="    if False:",
        tests=(
            "tests/unit/ci/test_preemption.py::test_where_nobody_named_the_workflow_only_what_uses_us_is_run_again",
            "tests/unit/test_watch.py::test_a_schedule_runs_nothing_again_that_does_not_use_us",
        ),
    ),
    Mutant(
        name="watch-fresh-look",
        guard="Just before it asks, the watcher looks whether somebody has asked already",
        file="src/endstate_action/watch.py",
        old="        if now.attempt != run.attempt or not now.is_over:",
        new="        if False:",
        tests=("tests/unit/test_watch.py::test_somebody_who_is_quicker_is_seen_before_it_is_asked_for",),
    ),
    Mutant(
        name="watch-asks-once",
        guard="A re-run whose answer is lost is looked for, not asked for again",
        file="src/endstate_action/watch.py",
        old="                self.wait(LOOK_AFTER_S)\n",
        new="                self.wait(LOOK_AFTER_S)\n                told(lambda: runs.rerun(run))\n",
        tests=("tests/unit/test_watch.py::test_a_re_run_that_nobody_knows_of_is_said_to_be_unknown",),
    ),
    Mutant(
        name="watch-author",
        guard="A comment by a person is never edited, whatever marker it quotes",
        file="src/endstate_action/watch.py",
        old="parse_marker(comment.body) is not None and _may_be_ours(comment.author, viewer)",
        new="parse_marker(comment.body) is not None",
        tests=("tests/unit/test_watch.py::test_no_comment_but_ours_about_this_run_is_touched",),
    ),
    Mutant(
        name="watch-quiet",
        guard="A comment that another run writes by now is not touched",
        file="src/endstate_action/watch.py",
        old="        if decision.is_told:\n",
        new="        if True:\n",
        tests=("tests/unit/test_watch.py::test_a_run_that_goes_on_again_already_is_not_touched",),
    ),
)
