"""The watcher, against a GitHub that keeps what it is told: what it runs again, what it says, and how often it asks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from endstate_action.ci.github import GitHub
from endstate_action.ci.marker import Marker, parse_marker
from endstate_action.watch import MOST_LOOKED_AT, watch
from tests.support import events
from tests.support.command import endstate
from tests.support.github_server import FOREVER, TOKEN, bare_repository
from tests.support.github_shapes import BOT
from tests.support.runner_log import outputs
from tests.support.watched import WatchedServer, moment

RUN, JOB = 500, 51
SHUTDOWN = (
    "The runner has received a shutdown signal. This can happen when the runner service is stopped, or a manually "
    "started runner is canceled."
)
STEPS = [
    {"name": "Set up job", "status": "completed", "conclusion": "success", "number": 1},
    {"name": "Run org/endstate-action@v1", "status": "in_progress", "conclusion": None, "number": 2},
]
MARKER = Marker("0123456789abcdef", "0123456789ab", 1, 3, "working").line()
EARLIER = "<details><summary>Earlier results</summary>\n\n- `aaaaaaaaaaaa`: Done\n\n</details>\n"


@dataclass
class Watched:
    """What came of one look."""

    code: int
    outputs: dict[str, str]
    log: str


@dataclass
class Scene:
    server: WatchedServer
    where: Path
    waited: list[float] = field(default_factory=list)

    def lose(self, run_id: int = RUN, job_id: int = JOB, **more: Any) -> None:
        """A run whose machine was lost."""
        self.server.run(run_id, more.pop("attempt", 1), "completed", more.pop("conclusion", "failure"))
        job = {"attempt": self.server.runs[run_id]["attempt"], "steps": STEPS} | more
        self.server.job(run_id, job_id, **job)
        self.server.note(job_id, SHUTDOWN)

    def comment(self, run_id: int = RUN, marker: str = MARKER, login: str = BOT, body: str = "") -> int:
        app = login.removesuffix("[bot]") if login.endswith("[bot]") else None
        address = f"https://github.example.invalid/org/repo/actions/runs/{run_id}"
        shown = body or f"{marker}\n**Working.** [Open the run]({address}).\n\n- Sandbox: isolated.\n\n{EARLIER}"
        return self.server.say(login, shown, app)

    def environment(self, event: str = "workflow_run") -> dict[str, str]:
        """Of a step that this event has started."""
        about = {"action": "completed", "repository": events.REPOSITORY, "sender": events.user()}
        run = {"id": RUN, "run_attempt": 1, "head_repository": events.REPOSITORY}
        payload = events.schedule() if event == "schedule" else about | {"workflow_run": run}
        (self.where / "event.json").write_text(json.dumps(payload))
        self.out.write_text("")
        return {
            "GITHUB_EVENT_NAME": event,
            "GITHUB_EVENT_PATH": str(self.where / "event.json"),
            "GITHUB_OUTPUT": str(self.out),
            "GITHUB_REPOSITORY": "org/repo",
            "GITHUB_ACTOR": "alice",
            "GITHUB_RUN_ID": "900",
            "GITHUB_API_URL": self.server.url,
            "INPUT_GITHUB_TOKEN": TOKEN,
            "INPUT_MAX_ATTEMPTS": "3",
        }

    def look(self, event: str = "workflow_run", **env: str) -> Watched:
        given, said = self.environment(event) | env, list[str]()
        code = watch(given, said.append, said.append, wait=self.waited.append, connect=connect)
        return Watched(code, outputs(self.out.read_text()), "\n".join(said))

    @property
    def out(self) -> Path:
        return self.where / "output"

    @property
    def bodies(self) -> list[str]:
        return [comment["body"] for comment in self.server.comments]

    @property
    def attempt(self) -> int:
        return int(self.server.runs[RUN]["attempt"])


def connect(url: str, token: str, env: Any) -> GitHub:
    return GitHub(url, token, env, pauses_s=(0, 0), timeout_s=5)


@pytest.fixture(scope="module")
def bare(tmp_path_factory) -> Path:
    return bare_repository(tmp_path_factory.mktemp("github"))


@pytest.fixture
def scene(bare, tmp_path) -> Iterator[Scene]:
    with WatchedServer(bare) as server:
        yield Scene(server, tmp_path)


def test_a_run_whose_machine_was_lost_gets_another_attempt(scene):
    scene.lose()
    seen = scene.look()
    assert (seen.code, scene.attempt, scene.server.count("run.rerun")) == (0, 2, 1)
    assert seen.outputs == {"decision": "re-run", "reason": 'The machine of job "agent" was lost.'}


def test_a_graceful_reclaim_may_end_the_run_as_cancelled(scene):
    scene.lose(conclusion="cancelled")
    assert scene.look().outputs["decision"] == "re-run"
    assert scene.attempt == 2


def test_a_cancel_by_a_person_stays_cancelled(scene):
    scene.server.run(RUN, 1, "completed", "cancelled")
    scene.server.job(RUN, JOB, conclusion="cancelled", steps=STEPS)
    scene.server.note(JOB, "The operation was canceled.")
    seen = scene.look()
    assert (seen.code, seen.outputs["decision"], scene.attempt) == (0, "left-alone", 1)


def test_a_failure_is_left_to_people(scene):
    scene.server.run(RUN, 1, "completed", "failure")
    scene.server.job(RUN, JOB, steps=[{"name": "Run tests", "status": "completed", "conclusion": "failure"}])
    scene.server.note(JOB, "Process completed with exit code 1.")
    assert scene.look().outputs == {
        "decision": "left-alone",
        "reason": 'A step of job "agent" failed with exit code 1.',
    }
    assert scene.server.count("run.rerun") == 0


def test_what_we_checkpointed_on_a_signal_is_run_again_by_the_words_of_our_own_step(scene):
    scene.server.run(RUN, 1, "completed", "failure")
    scene.server.job(RUN, JOB, steps=[{"name": "Fix it", "status": "completed", "conclusion": "failure"}])
    scene.server.note(JOB, "Interrupted. A retry resumes.", "endstate: interrupted")
    scene.server.note(JOB, "Process completed with exit code 75.")
    assert scene.look().outputs["reason"] == 'Job "agent" was interrupted: the next attempt resumes.'
    assert scene.attempt == 2


@pytest.mark.parametrize(("attempt", "allowed", "after"), [(2, "3", 3), (3, "3", 3), (1, "1", 1), (1, "", 2)])
def test_nothing_is_run_again_beyond_max_attempts(scene, attempt, allowed, after):
    scene.lose(attempt=attempt)
    scene.look(INPUT_MAX_ATTEMPTS=allowed)
    assert scene.attempt == after


def test_losses_without_end_come_to_an_end(scene):
    scene.lose()
    for number in range(2, 7):
        scene.look()
        scene.lose(job_id=JOB + number, attempt=scene.attempt)
    assert (scene.attempt, scene.server.count("run.rerun")) == (3, 2)


def test_the_attempt_that_counts_is_the_one_github_knows_not_the_events(scene):
    scene.lose(attempt=3)
    assert scene.look().outputs["decision"] == "left-alone"


def test_a_run_that_goes_on_again_already_is_not_touched(scene):
    scene.lose()
    scene.comment()
    scene.server.run(RUN, 2, "in_progress")
    before = scene.bodies
    assert scene.look().outputs["decision"] == "left-alone"
    assert (scene.bodies, scene.server.count("run.rerun")) == (before, 0)


@pytest.mark.parametrize("kind", ["502", "404", "drop-before", "secondary"])
def test_annotations_that_cannot_be_read_are_no_ground_to_run_again(scene, kind):
    scene.lose()
    scene.server.fault("annotation.list", kind, times=FOREVER, retry_after="1000")
    seen = scene.look()
    assert (seen.code, seen.outputs["decision"], scene.attempt) == (0, "left-alone", 1)
    assert "could not be read" in seen.outputs["reason"]


@pytest.mark.parametrize("operation", ["run.read", "job.list", "pull.read", "run.beside"])
def test_what_cannot_be_read_is_left_alone(scene, operation):
    scene.lose()
    scene.server.fault(operation, "404", times=FOREVER)
    seen = scene.look()
    assert (seen.code, seen.outputs["decision"], scene.attempt) == (0, "left-alone", 1)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda s: s.run(RUN + 1), id="a newer run"),
        pytest.param(lambda s: s.tell(RUN, head_sha="0" * 40), id="a newer commit"),
        pytest.param(lambda s: setattr(s, "is_open", False), id="closed"),
        pytest.param(lambda s: s.tell(RUN, pull_requests=[]), id="closed, or a fork"),
        pytest.param(lambda s: s.tell(RUN, created_at=moment(31 * 86400)), id="too old"),
        pytest.param(lambda s: s.tell(RUN, event="push", head_sha="0" * 40), id="pushed to again"),
    ],
)
def test_a_run_that_was_overtaken_is_left_alone(scene, change: Callable[[WatchedServer], object]):
    scene.lose()
    change(scene.server)
    seen = scene.look()
    assert (seen.code, seen.outputs["decision"], scene.server.count("run.rerun")) == (0, "left-alone", 0)


@pytest.mark.parametrize("event", ["push", "workflow_dispatch", "schedule", "issue_comment"])
def test_a_run_of_any_event_is_run_again(scene, event):
    scene.lose()
    sha = scene.server.tip("main") if event == "push" else "9" * 40
    scene.server.tell(RUN, event=event, head_branch="main", pull_requests=[], head_sha=sha)
    assert scene.look().outputs["decision"] == "re-run"


def test_a_run_of_a_tag_is_run_again(scene):
    """A run names it where others name their branch; what an annotated tag is at is no commit."""
    scene.server.git("update-ref", "refs/tags/v1.2.3", scene.server.tip("main"))
    scene.lose()
    scene.server.tell(RUN, event="push", head_branch="v1.2.3", pull_requests=[], head_sha="9" * 40)
    assert scene.look().outputs["decision"] == "re-run"


def test_a_run_whose_branch_is_gone_is_left_alone(scene):
    scene.lose()
    scene.server.tell(RUN, event="push", head_branch="gone", pull_requests=[], head_sha="9" * 40)
    seen = scene.look()
    assert (seen.outputs["decision"], scene.attempt) == ("left-alone", 1)
    assert "its branch or tag is gone" in seen.outputs["reason"]


def test_all_pages_of_annotations_are_read(scene):
    scene.server.run(RUN, 1, "completed", "failure")
    scene.server.job(RUN, JOB, attempt=1, steps=STEPS)
    for number in range(120):
        scene.server.note(JOB, f"A warning, {number}.")
    scene.server.note(JOB, SHUTDOWN)
    assert scene.look().outputs["decision"] == "re-run"


# Asked once


@pytest.mark.parametrize("kind", ["applied-502", "drop-after"])
def test_a_re_run_whose_answer_was_lost_is_looked_for_and_not_asked_for_again(scene, kind):
    scene.lose()
    scene.server.fault("run.rerun", kind)
    assert scene.look().outputs["decision"] == "re-run"
    assert (scene.attempt, scene.server.count("run.rerun"), scene.waited) == (2, 1, [3.0])


@pytest.mark.parametrize("kind", ["502", "drop-before"])
def test_a_re_run_that_nobody_knows_of_is_said_to_be_unknown(scene, kind):
    scene.lose()
    scene.server.fault("run.rerun", kind)
    seen = scene.look()
    assert (seen.code, seen.outputs["decision"], scene.attempt) == (0, "left-alone", 1)
    assert "not known" in seen.outputs["reason"]
    assert scene.server.count("run.rerun") == 1


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("This workflow is already running", "Somebody has run it again meanwhile."),
        ("This workflow run cannot be retried", "GitHub did not run it again (GitHub answered 403: "),
        ("Unable to retry this workflow run because it was created over a month ago", "GitHub did not run it again"),
    ],
)
def test_what_github_does_not_run_again_is_left_alone_and_is_no_missing_permission(scene, words, reason):
    scene.lose()
    scene.server.fault("run.rerun", "403", message=words)
    seen = scene.look()
    assert (seen.code, seen.outputs["decision"]) == (0, "left-alone")
    assert seen.outputs["reason"].startswith(reason)


def test_somebody_who_is_quicker_is_seen_before_it_is_asked_for(scene):
    scene.lose()
    scene.comment()
    scene.server.fault("run.beside", "meanwhile", act=lambda: scene.server.run(RUN, 2, "in_progress"))
    before = scene.bodies
    assert scene.look().outputs["reason"] == "Somebody has run it again meanwhile."
    assert (scene.attempt, scene.server.count("run.rerun"), scene.bodies) == (2, 0, before)


# The comment


def test_the_comment_says_what_was_decided_and_keeps_all_it_said(scene):
    scene.lose()
    scene.comment()
    before = scene.bodies[0]
    scene.look()
    (body,) = scene.bodies
    (line,) = set(body.split("\n")) - set(before.split("\n"))
    assert line == r"**Watcher**, run attempt 1: asks for another attempt, since the machine of job \"agent\" was lost."
    assert body.replace(f"{line}\n\n", "") == before
    assert parse_marker(body) == parse_marker(before)
    assert body.endswith(EARLIER)


def test_the_comment_is_written_before_there_is_another_attempt(scene):
    scene.lose()
    scene.comment()
    scene.look()
    asked = [r.operation for r in scene.server.received]
    assert asked.index("comment.edit") < asked.index("run.rerun")


def test_two_looks_say_it_once(scene):
    scene.lose(attempt=3)
    scene.comment()
    scene.look()
    once = scene.bodies
    scene.look()
    assert scene.bodies == once
    assert "leaves it alone" in once[0]


def test_no_comment_but_ours_about_this_run_is_touched(scene):
    scene.lose()
    scene.comment(login="eve")
    scene.comment(run_id=RUN * 10)
    scene.comment(body=f"Our [run](https://github.example.invalid/org/repo/actions/runs/{RUN})")
    before = scene.bodies
    scene.look()
    assert (scene.bodies, scene.server.count("comment.edit"), scene.attempt) == (before, 0, 2)


def test_a_comment_that_is_full_is_left_and_the_run_is_run_again_all_the_same(scene):
    scene.lose()
    scene.comment(marker=f"{MARKER}\n" + "x" * 65_200)
    before = scene.bodies
    seen = scene.look()
    assert (scene.bodies, scene.attempt) == (before, 2)
    assert "is full" in seen.log


@pytest.mark.parametrize("operation", ["comment.list", "comment.edit"])
def test_a_comment_that_may_not_be_changed_does_not_keep_a_run_from_being_run_again(scene, operation):
    scene.lose()
    scene.comment()
    scene.server.fault(operation, "403", times=FOREVER)
    seen = scene.look()
    assert (seen.code, scene.attempt) == (0, 2)
    assert "  pull-requests: write" in seen.log.split("\n")


# Permissions and input


@pytest.mark.parametrize("operation", ["run.read", "job.list", "annotation.list", "pull.read", "run.rerun"])
def test_a_missing_permission_is_an_error_with_the_lines_to_paste(scene, operation):
    scene.lose()
    scene.server.fault(operation, "403", times=FOREVER)
    seen = scene.look()
    assert (seen.code, seen.outputs, scene.attempt) == (2, {}, 1)
    assert "permissions:%0A  actions: write%0A  checks: read%0A  contents: read%0A  pull-requests: write" in seen.log


def test_nobody_is_left_waiting_for_an_attempt_that_was_refused(scene):
    scene.lose()
    scene.comment()
    scene.server.fault("run.rerun", "403", times=FOREVER)
    assert scene.look().code == 2
    first, second = (line for line in scene.bodies[0].split("\n") if line.startswith("**Watcher**"))
    assert "could not have it run again" in first
    assert "asks for another attempt" in second


def test_a_token_that_has_expired_is_called_so(scene):
    scene.lose()
    seen = scene.look(INPUT_GITHUB_TOKEN="another")
    assert seen.code == 2
    assert "expired" in seen.log
    assert "another" not in seen.log.replace("another attempt", "")


@pytest.mark.parametrize("given", ["0", "51", "-1", "three", "1.5", "3\n::error::", "٣"])
def test_a_bound_that_is_none_is_refused_before_anything_is_asked(scene, given):
    scene.lose()
    seen = scene.look(INPUT_MAX_ATTEMPTS=given)
    assert (seen.code, scene.server.received) == (2, [])
    assert "max-attempts" in seen.log
    assert "\n::error::" not in seen.log


@pytest.mark.parametrize(
    "env",
    [{"GITHUB_EVENT_NAME": "push"}, {"INPUT_GITHUB_TOKEN": ""}, {"GITHUB_EVENT_PATH": "/none"}, {"GITHUB_RUN_ID": ""}],
)
def test_a_step_in_the_wrong_place_says_so_and_runs_nothing_again(scene, env):
    scene.lose()
    seen = scene.look(**env)
    assert (seen.code, scene.attempt, seen.outputs) == (2, 1, {})
    assert seen.log.startswith("::error ")


@pytest.mark.parametrize(
    "broken", [{"run_attempt": "1"}, {"created_at": "today"}, {"head_sha": "x"}, {"pull_requests": 7}]
)
def test_an_answer_of_another_shape_is_left_alone(scene, broken):
    scene.lose()
    scene.server.tell(RUN, **broken)
    seen = scene.look()
    assert (seen.code, seen.outputs["decision"], scene.attempt) == (0, "left-alone", 1)


# On a schedule


def test_a_schedule_finds_what_no_event_told_of(scene):
    scene.lose()
    scene.lose(RUN + 1, JOB + 1, conclusion="cancelled")
    scene.server.tell(RUN + 1, head_branch="another")
    seen = scene.look("schedule")
    assert seen.outputs["decision"] == "re-run"
    assert [scene.server.runs[run]["attempt"] for run in (RUN, RUN + 1)] == [2, 2]


def test_a_schedule_runs_nothing_again_that_does_not_use_us(scene):
    scene.lose(steps=[{"name": "Deploy", "status": "in_progress", "conclusion": None}])
    assert scene.look("schedule").outputs["decision"] == "left-alone"
    assert scene.look().outputs["decision"] == "re-run"


def test_a_schedule_looks_at_few_and_recent_runs(scene):
    for number in range(MOST_LOOKED_AT + 5):
        scene.server.run(RUN + number, 1, "completed", "failure")
        scene.server.tell(RUN + number, conclusion="failure", head_branch=f"b{number}")
    scene.lose(RUN - 1, JOB)
    scene.lose(RUN + 99, JOB + 99)
    scene.server.tell(RUN + 99, updated_at=moment(25 * 3600))
    seen = scene.look("schedule")
    assert seen.outputs["decision"] == "left-alone"
    assert scene.server.count("run.read") <= MOST_LOOKED_AT


# As the action starts it


@pytest.mark.slow
def test_the_command_is_this_watcher_and_shows_no_token(scene):
    scene.lose()
    scene.comment()
    ran = endstate(scene.where, "rerun-preempted", env=scene.environment())
    assert (ran.code, scene.attempt, outputs(scene.out.read_text())["decision"]) == (0, 2, "re-run")
    assert "asks for another attempt" in scene.bodies[0]
    assert ran.out.startswith("::notice title=endstate resume::run again, since the machine of job ")
    assert TOKEN not in ran.out + ran.err


@pytest.mark.slow
def test_the_command_fails_its_step_where_it_may_not_look(scene):
    scene.lose()
    ran = endstate(scene.where, "rerun-preempted", env=scene.environment() | {"INPUT_GITHUB_TOKEN": "expired-token"})
    assert (ran.code, scene.attempt) == (2, 1)
    assert ran.out.startswith("::error title=endstate resume::")
    assert "Traceback" not in ran.err
    assert "expired-token" not in ran.out + ran.err


def test_what_github_refuses_is_said_by_us_alone(scene):
    """The library that we ask with prints what is refused as it goes along."""
    scene.lose()
    scene.server.fault("job.list", "403", times=FOREVER)
    ran = endstate(scene.where, "rerun-preempted", env=scene.environment())
    assert (ran.code, ran.err, ran.out.count("\n")) == (2, "", 1)
