"""A step on machines that lack something: it works without what it can do without, and names what it cannot."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.messages_api import answer, call
from tests.support.step import Job, stage

pytestmark = pytest.mark.slow


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with stage(tmp_path, [answer(call("write", path="a.txt", content="A\n")), answer("Done.")]) as made:
        yield made


def test_without_git_nothing_is_run_and_it_is_said_what_is_missing(job):
    programs = job.folder / "programs"
    programs.mkdir()
    for name in ("sh", "bash", "cat", "env"):
        (programs / name).symlink_to(str(shutil.which(name)))
    job.environ["PATH"] = str(programs)
    ran = job.attempt()
    assert ran.code == 2
    (said,) = ran.annotations
    assert "is no git checkout, or git is not installed; nothing was run and nothing was spent." in said
    assert (ran.outputs["conclusion"], job.api.requests, job.github.comments) == ("failed", [], [])


def test_a_home_that_cannot_be_written_is_not_needed(job):
    job.environ["HOME"] = "/proc/none"
    ran = job.attempt()
    assert ran.code == 0, ran.log
    assert ran.outputs["conclusion"] == "success"
