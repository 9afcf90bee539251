"""The shell, for everything that has no tool of its own. It sees the workspace and the allow-listed environment.

In a sandbox a command's effects stay in the workspace: it is contained, or, where it may use the
network, networked. Outside of one it can reach anything that this user can, so nobody can tell what
an interrupted one has done: it is opaque.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from endstate_action.agent.tools.base import CallContext, FileChange, Tool, ToolError
from endstate_action.effects import EffectClass
from endstate_action.messages import count_of, is_blank
from endstate_action.system.process import Finished, decode, run
from endstate_action.system.redaction import Secrets
from endstate_action.system.sandbox import NotStarted, Sandbox

DEFAULT_TIMEOUT_S = 120
MAX_TIMEOUT_S = 1800
OUTPUT_BYTES = 32 * 1024
"""Of longer output, half of this is kept of its beginning and of its end each."""
MAX_COMMAND_BYTES = 128 * 1024 - 1
"""What Linux takes as one argument of a program."""

_SHELLS = ("/bin/bash", "/bin/sh")


_APART = (
    "Commands run in a sandbox: outside the workspace nothing can be written except /tmp, which is empty for each "
    "call and gone after it; .git/config and .git/hooks cannot be written; "
)


class Bash(Tool):
    """Runs one command line and returns what it wrote.

    Args:
        sandbox: where commands run; without one they run as we do.
    """

    name: ClassVar[str] = "bash"
    description: ClassVar[str] = (
        "Run a command with bash in the workspace's root. Returns stdout and stderr together and the exit code; "
        f"of more than {OUTPUT_BYTES // 1024} KiB only the beginning and the end. stdin is empty and there is no "
        "terminal. Each call is a new shell. Processes left in the background are ended when the command ends: start "
        "a server and use it in one command. Credentials are not in the environment."
    )
    parameters: ClassVar[Mapping[str, Any]] = {
        "type": "object",
        "properties": {
            "command": {"type": "string", "description": "The command line; it may have several lines."},
            "timeout_s": {
                "type": "integer",
                "minimum": 1,
                "description": f"Seconds before it is ended: {DEFAULT_TIMEOUT_S}, or up to {MAX_TIMEOUT_S}.",
            },
        },
        "required": ["command"],
    }

    def __init__(self, sandbox: Sandbox | None = None) -> None:
        self.sandbox = sandbox
        self.effect = _effect(sandbox)
        self.runs_in = sandbox.fingerprint if sandbox else ""

    def contract(self) -> dict[str, str]:
        """Without the effect class: that is the machine's, not the tool's, and recorded with each start.

        A session can so be resumed where there is another sandbox or none; what was begun is settled
        by the class recorded then.
        """
        return super().contract() | {"effect": "shell"}

    def definition(self) -> dict[str, Any]:
        """Says what the sandbox means for a command, where there is one."""
        told = super().definition()
        if self.sandbox is not None:
            reach = "the network can be used." if self.sandbox.network else "there is no network."
            told["description"] += f" {_APART}{reach}"
        return told

    def plan(self, arguments: Mapping[str, Any], context: CallContext) -> FileChange | None:
        """Refuse what no shell could be given."""
        try:
            command = arguments["command"].encode()
        except UnicodeEncodeError:
            raise ToolError("The command was not run: it holds characters that UTF-8 cannot carry.") from None
        if is_blank(arguments["command"]):
            raise ToolError("Nothing was run: the command is empty.")
        if b"\0" in command:
            raise ToolError("The command was not run: it holds a NUL character.")
        if len(command) > MAX_COMMAND_BYTES:
            raise ToolError(
                f"The command was not run: it is {len(command)} bytes long, {MAX_COMMAND_BYTES} are possible. "
                "Write it to a file and run that."
            )
        return None

    def run(self, arguments: Mapping[str, Any], context: CallContext, plan: FileChange | None) -> str:
        """What the command wrote and how it ended; a failing command is an ordinary answer.

        Raises:
            ToolError: it could not be started, or did not end in time.
        """
        limit_s = min(arguments.get("timeout_s", DEFAULT_TIMEOUT_S), MAX_TIMEOUT_S, context.time_left_s)
        if limit_s <= 0:
            raise ToolError("The command was not run: this attempt has no time left.")
        try:
            finished = self._run([_shell(), "-c", arguments["command"]], context, limit_s)
        except NotStarted as error:
            raise ToolError(f"The command was not run. {error}") from error
        except OSError as error:
            raise ToolError(f"The command was not run: the shell could not be started ({error.strerror}).") from error
        told = _told(finished, limit_s, context.secrets)
        if finished.timed_out:
            raise ToolError(told)
        return told

    def _run(self, argv: list[str], context: CallContext, limit_s: float) -> Finished:
        if self.sandbox is not None:
            finished = self.sandbox.run(
                argv,
                env=context.env,
                moment=context.started_at,
                timeout_s=limit_s,
                tag=context.tag,
                cap_bytes=OUTPUT_BYTES,
                check=context.check,
            )
            # All of it ends with the sandbox, and those that are counted are the sandbox's own.
            return replace(finished, ended_survivors=0)
        return run(
            argv,
            cwd=context.workspace.root,
            env=context.env,
            timeout_s=limit_s,
            tag=context.tag,
            cap_bytes=OUTPUT_BYTES,
            check=context.check,
        )


def _effect(sandbox: Sandbox | None) -> EffectClass:
    if sandbox is None:
        return EffectClass.OPAQUE
    return EffectClass.NETWORKED if sandbox.network else EffectClass.CONTAINED


def _shell() -> str:
    # By its full name: PATH may lead into the workspace.
    return next((path for path in _SHELLS if os.access(path, os.X_OK)), _SHELLS[-1])


def _told(finished: Finished, limit_s: float, secrets: Secrets) -> str:
    """The output, then one line on each thing that the model should know about it."""
    text, replaced, left_out = decode(finished.output, secrets)
    lines = [] if is_blank(text) else [text.rstrip("\n")]
    lines.append(f"({_ending(finished, limit_s, silent=not lines)})")
    if left_out:
        lines.append(f"({left_out} of {finished.output.total_bytes} bytes of output were left out)")
    if replaced:
        lines.append(f"({count_of(replaced, 'byte')} of the output, not valid UTF-8, replaced)")
    if finished.left_alive:
        names = ", ".join(map(str, finished.left_alive))
        lines.append(f"({count_of(len(finished.left_alive), 'process')} could not be ended and may still run: {names})")
    return "\n".join(lines)


def _ending(finished: Finished, limit_s: float, *, silent: bool) -> str:
    left = finished.ended_survivors
    if finished.timed_out:
        also = f" and {count_of(left, 'process')} it left were" if left else " was"
        return f"{'no output, ' if silent else ''}timed out after {limit_s:.3g} s; the command{also} ended"
    how = f"exit {finished.exit_code}" if finished.signal is None else f"ended by {_signal_name(finished.signal)}"
    output = "" if not silent else "no visible output, " if finished.output.total_bytes else "no output, "
    also = (
        f"; {count_of(left, 'process')} left in the background {'was' if left == 1 else 'were'} ended" if left else ""
    )
    return output + how + also


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
