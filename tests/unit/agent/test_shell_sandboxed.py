"""The shell tool in a sandbox: what it claims, what the model is told, and what a session is bound to."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from endstate_action.agent.tools.base import CallContext, ToolError
from endstate_action.agent.tools.shell import Bash
from endstate_action.effects import EffectClass
from endstate_action.errors import Interrupted
from endstate_action.system.files import Workspace
from endstate_action.system.secrets import call_environment
from tests.support.sandboxes import Place, git, place


@pytest.fixture
def here() -> Iterator[Place]:
    """Calls run in this very process, so it is root's own place where we are root."""
    with place("root" if os.geteuid() == 0 else "ordinary") as made:
        yield made


def a_context(here: Place, **more) -> CallContext:
    tag = f"{here.root.name}/1/2.0"
    environ = {"PATH": os.environ["PATH"], "HOME": str(here.home), "ANTHROPIC_API_KEY": "a-canary-of-a-key"}
    seen = call_environment(environ, tag=tag)
    workspace = Workspace(here.workspace, hidden=(".endstate",))
    return CallContext(workspace, "key", "digest", 1_700_000_000.0, tag, seen, **more)


def ask(here: Place, command: str, *, context: CallContext | None = None, **more) -> str:
    arguments = {"command": command, **more}
    context = context or a_context(here)
    tool = Bash(here.sandbox)
    return tool.run(arguments, context, tool.plan(arguments, context))


def test_a_command_s_effect_is_what_the_sandbox_lets_it_be(here):
    assert Bash(None).effect is EffectClass.OPAQUE
    assert Bash(here.sandbox).effect is EffectClass.CONTAINED
    assert Bash(here.networked().sandbox).effect is EffectClass.NETWORKED


def test_a_session_is_not_bound_to_the_machine_s_sandbox(here):
    """What was begun is settled by the class recorded at its start; the tool is the same one."""
    contracts = [Bash(sandbox).contract() for sandbox in (None, here.sandbox, here.networked().sandbox)]
    assert contracts[0] == contracts[1] == contracts[2]
    assert contracts[0]["effect"] == "shell"


def test_the_model_is_told_what_the_sandbox_means(here):
    assert "sandbox" not in Bash(None).definition()["description"]
    assert "there is no network" in Bash(here.sandbox).definition()["description"]
    assert "the network can be used" in Bash(here.networked().sandbox).definition()["description"]


def test_output_comes_with_the_exit_code(here):
    assert ask(here, "echo hi; pwd; exit 3") == f"hi\n{here.workspace}\n(exit 3)"
    assert ask(here, "true") == "(no output, exit 0)"
    assert (here.workspace / "it").exists() is False
    ask(here, "echo it > it")
    assert (here.workspace / "it").read_text() == "it\n"


def test_a_credential_is_neither_in_the_environment_nor_near_it(here):
    assert "a-canary" not in ask(here, "env; cat /proc/*/environ | tr '\\0' '\\n'")


def test_git_believes_to_be_at_the_recorded_start(here):
    told = ask(here, "git commit -q --allow-empty -m x; git log --format=%ct/%at")
    assert told == "1700000000/1700000000\n(exit 0)"
    first = git(here.workspace, "rev-parse", "HEAD")
    shutil.rmtree(here.workspace / ".git")
    git(here.workspace, "init", "--quiet", "--initial-branch=main")
    time.sleep(1.1)
    ask(here, "git commit -q --allow-empty -m x")
    assert git(here.workspace, "rev-parse", "HEAD") == first


def test_a_command_that_takes_too_long_is_ended(here):
    with pytest.raises(ToolError) as told:
        ask(here, "echo started; sleep 600 & sleep 600", timeout_s=1)
    # Of the processes that end with a sandbox, some are its own, so there is no number of them to tell.
    assert str(told.value) == "started\n(timed out after 1 s; the command was ended)"


def test_background_processes_are_gone_when_the_answer_comes(here):
    assert ask(here, "(sleep 600; touch late) & (setsid sleep 600; touch later) & echo hi").startswith("hi\n(exit 0")


def test_a_signal_to_us_ends_the_command(here):
    began = time.monotonic()

    def check() -> None:
        if time.monotonic() - began > 0.5:
            raise Interrupted("SIGTERM")

    with pytest.raises(Interrupted):
        ask(here, "sleep 600; touch late", context=a_context(here, check=check))
    assert ask(here, "ls") == "(no output, exit 0)"


def test_a_sandbox_that_fails_runs_nothing_elsewhere(here):
    """Never a silent fall-back."""
    broken = Bash(replace(here.sandbox, program=Path("/nonexistent/bwrap")))
    with pytest.raises(ToolError, match="The command was not run"):
        broken.run({"command": "touch it"}, a_context(here), None)
    assert not (here.workspace / "it").exists()


def test_a_command_that_fails_as_bubblewrap_does_is_a_command_that_failed(here):
    assert ask(here, "echo bwrap: oh no; exit 1") == "bwrap: oh no\n(exit 1)"


def test_the_longest_command_runs(here):
    assert ask(here, "echo " + "x" * (128 * 1024 - 6)).startswith("xxx")
