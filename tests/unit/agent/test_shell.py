"""What the model is told of a command, whatever the command does."""

from __future__ import annotations

import base64
import os
from dataclasses import replace
from pathlib import Path

import pytest

from endstate_action.agent.tools.base import CallContext, ToolError, check_arguments
from endstate_action.agent.tools.shell import MAX_COMMAND_BYTES, OUTPUT_BYTES, Bash
from endstate_action.effects import EffectClass
from endstate_action.messages import is_blank
from endstate_action.system.files import Workspace
from endstate_action.system.process import tagged
from endstate_action.system.redaction import Secrets
from endstate_action.system.secrets import call_environment, split_environment

ENVIRON = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}


@pytest.fixture
def context(tmp_path: Path) -> CallContext:
    return a_context(tmp_path)


def a_context(root: Path, environ: dict[str, str] = ENVIRON, *, time_left_s: float = 3600) -> CallContext:
    tag = f"{root}/1/2.0"
    return CallContext(Workspace(root), "key", "digest", 0.0, tag, call_environment(environ, tag=tag), time_left_s)


def ask(context: CallContext, command: str, **more) -> str:
    arguments = {"command": command, **more}
    check_arguments(Bash.parameters, arguments)
    tool = Bash()
    result = tool.run(arguments, context, tool.plan(arguments, context))
    result.encode("utf-8", "strict")
    assert not is_blank(result)
    return result


def test_without_a_sandbox_a_command_is_opaque():
    assert Bash().effect is EffectClass.OPAQUE
    assert not Bash().idempotent


def test_output_comes_with_the_exit_code(context):
    assert ask(context, "echo hi; echo there >&2") == "hi\nthere\n(exit 0)"


def test_a_failing_command_is_an_ordinary_answer(context):
    assert ask(context, "echo no; exit 3") == "no\n(exit 3)"


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("true", "(no output, exit 0)"),
        ("false", "(no output, exit 1)"),
        ("printf ' \\n\\t\\n'", "(no visible output, exit 0)"),
        ("printf '\\342\\200\\213'", "(no visible output, exit 0)"),
        ("kill -KILL $$", "(no output, ended by SIGKILL)"),
    ],
)
def test_silence_is_told_in_words(command, told, context):
    assert ask(context, command) == told


def test_bytes_that_are_no_text_are_replaced_and_counted(context):
    told = "(3 bytes of the output, not valid UTF-8, replaced)"
    assert ask(context, "printf '\\355\\240\\275'") == f"\ufffd\ufffd\ufffd\n(exit 0)\n{told}"
    assert ask(context, "printf '\\360\\377ok'").startswith("\ufffd\ufffdok\n(exit 0)\n(2 bytes")
    assert "not valid UTF-8" in ask(context, "head -c 4096 /dev/urandom")


def test_long_output_is_bounded_and_says_how_much_is_missing(context):
    told = ask(context, "seq 1 1000000")

    assert len(told.encode()) < OUTPUT_BYTES + 300
    assert told.startswith("1\n2\n3\n")
    assert "\n999999\n1000000\n(exit 0)\n" in told
    assert told.endswith(f"({6888896 - OUTPUT_BYTES} of 6888896 bytes of output were left out)")


def test_commands_run_in_the_workspace_by_bash(context, tmp_path):
    told = ask(context, "pwd -P; [[ -n $BASH_VERSION ]] && echo bash; echo x >> file")

    assert told == f"{tmp_path.resolve()}\nbash\n(exit 0)"
    assert (tmp_path / "file").read_text() == "x\n"


def test_nothing_waits_for_input(context):
    assert ask(context, "cat; read -r line || echo none") == "none\n(exit 0)"


def test_a_background_process_is_ended_and_mentioned(context):
    assert ask(context, "sleep 600 & echo hi") == "hi\n(exit 0; 1 process left in the background was ended)"
    assert tagged(context.tag) == []


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("sleep 600", "(no output, timed out after 1 s; the command was ended)"),
        (
            "echo a; setsid sleep 600 & sleep 600",
            "a\n(timed out after 1 s; the command and 2 processes it left were ended)",
        ),
    ],
)
def test_a_command_that_takes_too_long_is_ended_with_all_it_started(command, told, context):
    with pytest.raises(ToolError) as error:
        ask(context, command, timeout_s=1)

    assert str(error.value) == told
    assert tagged(context.tag) == []


def test_no_command_takes_longer_than_the_attempt_has(tmp_path):
    with pytest.raises(ToolError, match=r"timed out after 0\.2 s"):
        ask(a_context(tmp_path, time_left_s=0.2), "sleep 600", timeout_s=60)
    with pytest.raises(ToolError, match="not run: this attempt has no time left"):
        ask(a_context(tmp_path, time_left_s=-1), "touch it")
    assert not (tmp_path / "it").exists()


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("", "empty"),
        (" \n", "empty"),
        ("touch it\0", "NUL"),
        ("touch it '\ud83d'", "UTF-8"),
        ("touch it;" + " " * MAX_COMMAND_BYTES, "Write it to a file"),
    ],
)
def test_what_no_shell_can_be_given_is_refused_before_anything_runs(command, why, context, tmp_path):
    with pytest.raises(ToolError, match=why):
        Bash().plan({"command": command}, context)
    assert list(tmp_path.iterdir()) == []


def test_the_longest_command_runs(context):
    command = "echo " + "x" * (MAX_COMMAND_BYTES - 5)
    assert ask(context, command).startswith("xxx")


@pytest.mark.parametrize("timeout_s", [0, -1, 1.5, True, "1"])
def test_an_odd_time_limit_is_refused(timeout_s, context):
    with pytest.raises(ToolError, match="timeout_s must be"):
        ask(context, "true", timeout_s=timeout_s)


def test_a_workspace_that_is_gone_is_told(tmp_path):
    (tmp_path / "gone").mkdir()
    context = a_context(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(ToolError, match=r"not run: the shell could not be started \(No such file"):
        ask(context, "true")


def test_nothing_a_command_says_is_printed(context, capfd):
    assert "::set-output" in ask(context, "echo '::set-output name=x::1'; echo '::add-mask::a' >&2")
    assert capfd.readouterr() == ("", "")


NAMES = [
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "INPUT_ANTHROPIC_API_KEY",
    "GITHUB_TOKEN",
    "GH_TOKEN",
    "ACTIONS_RUNTIME_TOKEN",
    "ACTIONS_ID_TOKEN_REQUEST_TOKEN",
    "INPUT_STATE-KEY",
    "MY_WEIRD_CRED",
    "NPM_AUTHTOKEN",
    "GITHUB_ENV",
    "RUNNER_TEMP",
]


def test_a_command_sees_none_of_twelve_canaries(tmp_path):
    canaries = {name: f"canary-number-{i}" for i, name in enumerate(NAMES)}
    context = a_context(tmp_path, ENVIRON | canaries)

    told = ask(context, "env; declare -p; cat /proc/$$/environ | tr '\\0' '\\n'")

    assert "PATH=" in told
    assert [name for name in NAMES if name in told] == []
    assert "canary-number" not in told


def test_a_runner_s_command_files_cannot_be_found_by_their_variables(tmp_path):
    files = tmp_path / "_runner_file_commands"
    files.mkdir()
    (files / "set_env").write_text("")
    environ = {"GITHUB_ENV": str(files / "set_env"), "GITHUB_PATH": str(files / "p"), "RUNNER_TEMP": str(tmp_path)}
    context = a_context(tmp_path, ENVIRON | environ)

    ask(context, 'for f in "$GITHUB_ENV" "$RUNNER_TEMP"/_runner_file_commands/*; do echo LD_PRELOAD=x >> "$f"; done')

    assert (files / "set_env").read_text() == ""
    assert [f.name for f in files.iterdir()] == ["set_env"]


def test_a_value_that_a_command_finds_elsewhere_is_recognised_in_its_output(tmp_path):
    """The model obeys an attacker: it prints the key from a file, in base64 and wrapped."""
    canary = "canary/of+the+runtime==token"
    (tmp_path / "leak").write_text(f"A=1\nTOKEN={canary}\nB=2\n")
    known = Secrets(split_environment({"ACTIONS_RUNTIME_TOKEN": canary})[1])

    for command in ("cat leak", "base64 leak", "base64 -w 20 leak", "xxd -p leak || od -An -tx1 leak", "rev leak"):
        told = ask(a_context(tmp_path), command)
        assert known.contains(told) == ["ACTIONS_RUNTIME_TOKEN"], command
        assert known.contains(known.redact(told)) == [], command


@pytest.mark.parametrize("disguise", ["cat", "base64 -w 0", "xxd -p -c 256"])
@pytest.mark.parametrize("at", [1, 7, 8, 20, 31])
def test_a_secret_at_the_place_where_long_output_is_cut_is_not_shown(tmp_path, disguise, at):
    canary = "canary-0123456789-abcdefghijklmn"
    (tmp_path / "leak").write_text(canary)
    context = replace(a_context(tmp_path), secrets=Secrets({"TOKEN": canary}))
    half = OUTPUT_BYTES // 2
    shown = {"cat": canary, "base64 -w 0": base64.b64encode(canary.encode()).decode()}.get(
        disguise, canary.encode().hex()
    )
    for before, after in ((half - at, 3 * half), (3 * half, half - at)):
        told = ask(
            context,
            f"yes | tr -d '\\n' | head -c {before}; {disguise} leak | tr -d '\\n'; yes | tr -d '\\n' | head -c {after}",
        )
        assert "bytes left out" in told
        assert not any(shown[n : n + 6] in told for n in range(len(shown) - 5)), told[half - 100 : half + 200]
