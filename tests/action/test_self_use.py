"""What the self-use workflow stands on, on the command line: killed once by its model, resumed, and nothing twice."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.action.self_use import check
from tests.support.checkouts import ROOT, Runner, index_of, put_checkout, runner, wheels_of_here
from tests.support.command import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def run(machine: Runner, url: str, *arguments: str):
    place = ("--working-directory", str(machine.workspace))
    given = (*place, "--provider", "anthropic", "--base-url", url, "--sandbox", "off")
    return machine.run("run", *arguments, *given, ANTHROPIC_API_KEY="sk-of-a-test-that-is-long-enough")


def test_the_model_kills_once_and_sees_that_nothing_is_asked_for_again(tmp_path):
    packages, where = wheels_of_here(tmp_path), tmp_path / "model"
    command = [sys.executable, "-m", "tests.action.self_use", "serve", str(where), str(tmp_path)]
    model = subprocess.Popen(command, cwd=ROOT)
    try:
        url = wait_for(where / "url")
        with index_of(*packages) as index:
            machine = runner(tmp_path / "machine", index)
            put_checkout(machine.action, packages)
            first = run(machine, url, "Write six notes.")
            assert first.code == -signal.SIGKILL, first.said
            assert check(machine.workspace, where) != []
            second = run(machine, url, "--resume")
    finally:
        model.terminate()
        model.wait(30)
    assert (second.code, second.out.splitlines()[-1:]) == (0, ["Six files are there."]), second.said
    assert check(machine.workspace, where) == []
