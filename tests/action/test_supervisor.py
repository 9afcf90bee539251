"""A run that is killed for its memory goes on in the same step; one that is told to stop is not started again."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from endstate_action.system.supervise import RESTARTS, supervise
from tests.support.messages_api import answer, call
from tests.support.step import stage

pytestmark = pytest.mark.slow


def child_of(pid: int) -> int:
    for _ in range(200):
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if found:
            return int(found[0])
        time.sleep(0.05)
    raise AssertionError("it has no child")


def test_a_killed_child_is_followed_by_another_which_goes_on(tmp_path: Path):
    def replies(body, number):
        done = sum(m["role"] == "assistant" for m in body["messages"])
        return [answer(call("bash", command="echo one >> log.txt; sleep 3")), answer("Done.")][done]

    with stage(tmp_path, replies) as job:
        process, machine = job.begin(1)
        log = machine / "workspace" / "log.txt"
        deadline = time.monotonic() + 60
        while not log.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(child_of(process.pid), signal.SIGKILL)
        ran = job.end(process, machine)

    assert ran.code == 0, ran.log
    assert "killed by SIGKILL" in ran.log
    assert ran.outputs["conclusion"] == "success"
    assert ran.outputs["attempt"] == "2"
    assert log.read_text() == "one\n"
    assert len(job.github.comments) == 1


def test_a_child_that_is_killed_each_time_ends_in_a_code_that_offers_a_re_run():
    told: list[tuple[str, bool]] = []

    def story() -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    assert supervise(story, lambda name, again: told.append((name, again))) == 75
    assert told == [("SIGKILL", n < RESTARTS) for n in range(RESTARTS + 1)]


def test_an_exit_code_is_passed_on():
    assert supervise(lambda: 13, lambda name, again: None) == 13


def test_a_defect_that_the_step_itself_cannot_tell_is_told(tmp_path: Path):
    """As where a part of ours is missing from the environment that a runner keeps."""
    with stage(tmp_path, [answer("Done.")]) as job:
        job.module = "tests.support.no_render"
        ran = job.attempt(1)

    assert (ran.code, ran.conclusion) == (3, "failed")
    (told,) = ran.annotations
    assert told.startswith("::error ")
    assert "ModuleNotFoundError" in told
    assert "render" in told
    assert "Traceback" not in ran.log


def test_a_story_that_breaks_off_ends_as_a_defect():
    def story() -> int:
        raise SystemExit(70)

    assert supervise(story, lambda name, again: None) == 3


def test_the_child_does_not_outlive_its_parent(tmp_path: Path):
    with stage(tmp_path, [answer(call("bash", command="touch begun; sleep 60"))]) as job:
        process, machine = job.begin(1)
        deadline = time.monotonic() + 60
        while not (machine / "workspace" / "begun").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        child = child_of(process.pid)
        process.kill()
        process.communicate()
        for _ in range(100):
            if not Path(f"/proc/{child}").exists() or " Z " in Path(f"/proc/{child}/stat").read_text():
                break
            time.sleep(0.05)
        else:
            raise AssertionError("the child lives on")
