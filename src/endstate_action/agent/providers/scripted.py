"""A model that says what a file tells it to: for demos, drills and tests, without network or key.

The file is JSON:

    {"replies": [
        {"text": "First the file.", "calls": [{"tool": "write", "arguments": {"path": "a.txt", "content": "A"}}]},
        {"text": "Done."}
    ]}

Each reply is an object; every key is optional:

    text         what the model says
    calls        list of {"tool": name, "arguments": object, "id": text}; `tool` is required
    thinking     a thinking block that comes first
    stop_reason  `tool_use` when there are calls, else `end_turn`; under `max_tokens` the last call counts as cut
    model        the model that answers, else the one that was asked for
    usage        {"input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens"}, each 0 if absent
    delay_s      seconds until the reply comes

A reply is chosen by the number of replies already recorded, so a resumed session goes on where it was.
Past the end of the script, the model ends its turn.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from endstate_action.agent.providers.base import OnDiscard, Reply, Request
from endstate_action.agent.providers.wire import is_cut, strict_json
from endstate_action.errors import InputError
from endstate_action.messages import Block, Usage, text_block

_ENDED = "The script has ended."
_EXAMPLE = '{"replies": [{"text": "…", "calls": [{"tool": "read", "arguments": {"path": "…"}}]}, {"text": "Done."}]}'
_NO_TOKENS = Usage()
_LONGEST_DELAY_S = 3600
_COUNTS = Usage._fields
_REPLY_KEYS = ("text", "calls", "thinking", "stop_reason", "model", "usage", "delay_s")
_CALL_KEYS = ("tool", "arguments", "id")


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    tool: str
    arguments: Mapping[str, Any]
    id: str = ""


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    """One answer; empty fields take the defaults of the module's text."""

    text: str = ""
    calls: tuple[ScriptedCall, ...] = ()
    thinking: str = ""
    stop_reason: str = ""
    model: str = ""
    usage: Usage = _NO_TOKENS
    delay_s: float = 0.0

    def blocks(self, step: int) -> tuple[Block, ...]:
        thought = [{"type": "thinking", "thinking": self.thinking, "signature": f"scripted-{step}"}]
        calls = [
            {"type": "tool_use", "id": c.id or f"call_{step}_{i}", "name": c.tool, "input": dict(c.arguments)}
            for i, c in enumerate(self.calls)
        ]
        return (*(thought if self.thinking else ()), *([text_block(self.text)] if self.text else ()), *calls)


@dataclass(frozen=True, slots=True)
class Script:
    replies: tuple[ScriptedReply, ...]


class ScriptedProvider:
    """Plays a script. Everything it says, ids included, follows from the script and the step."""

    name = "scripted"

    def __init__(self, script: Script, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._replies = script.replies
        self._sleep = sleep

    def reply(self, request: Request, on_discard: OnDiscard) -> Reply:
        """The script's next reply. Never discards anything, never fails."""
        step = request.finished_steps
        said = self._replies[step] if step < len(self._replies) else ScriptedReply(text=_ENDED)
        if said.delay_s:
            self._sleep(said.delay_s)
        stop_reason = said.stop_reason or ("tool_use" if said.calls else "end_turn")
        blocks = said.blocks(step)
        return Reply(
            f"msg_scripted_{step}",
            said.model or request.model,
            blocks,
            stop_reason,
            said.usage,
            is_cut(blocks, stop_reason),
        )


def load_script(path: Path) -> Script:
    """Read a script file.

    Raises:
        InputError: it cannot be read, or says something that a script cannot; the message names the place.
    """
    source = repr(str(path))
    try:
        value = strict_json(path.read_bytes().decode("utf-8"))
    except OSError as problem:
        raise InputError(
            f"Nothing was run: the script {source} cannot be read ({problem.strerror}).",
            hint="Correct the name that --script gives, or make that file readable.",
        ) from None
    except json.JSONDecodeError as problem:
        raise _unusable(source, f"line {problem.lineno}, column {problem.colno}: {problem.msg}") from None
    except ValueError as problem:
        raise _unusable(source, f"it is not JSON in UTF-8 ({problem})") from None
    return parse_script(value, source)


def parse_script(value: object, source: str = "that was given") -> Script:
    """Check a script that is parsed already; `source` says in messages which one it is.

    Raises:
        InputError: naming the place, `replies[2].calls[0].tool` for example.
    """
    try:
        replies = _list(_object(value, "the whole", ("replies",)).get("replies"), "replies")
        return Script(tuple(_reply(reply, f"replies[{i}]") for i, reply in enumerate(replies)))
    except _Misplaced as problem:
        raise _unusable(source, str(problem)) from None


class _Misplaced(Exception):
    """The place in the script, and what is wrong there."""


def _unusable(source: str, why: str) -> InputError:
    return InputError(
        f"Nothing was run: the script {source} is not usable: {why}.",
        hint=f"Correct the script. It looks like this: {_EXAMPLE}",
    )


def _reply(value: object, place: str) -> ScriptedReply:
    reply = _object(value, place, _REPLY_KEYS)
    text, thinking, stop_reason, model = (
        _text(reply.get(key, ""), f"{place}.{key}") for key in ("text", "thinking", "stop_reason", "model")
    )
    calls = _list(reply.get("calls", []), f"{place}.calls")
    usage = _object(reply.get("usage", {}), f"{place}.usage", _COUNTS)
    return ScriptedReply(
        text,
        tuple(_call(call, f"{place}.calls[{i}]") for i, call in enumerate(calls)),
        thinking,
        stop_reason,
        model,
        Usage(**{key: _count(n, f"{place}.usage.{key}") for key, n in usage.items()}),
        _seconds(reply.get("delay_s", 0), f"{place}.delay_s"),
    )


def _call(value: object, place: str) -> ScriptedCall:
    call = _object(value, place, _CALL_KEYS)
    tool = _text(call.get("tool"), f"{place}.tool")
    if not tool:
        raise _Misplaced(f"{place}.tool is empty")
    return ScriptedCall(
        tool,
        _object(call.get("arguments", {}), f"{place}.arguments"),
        _text(call.get("id", ""), f"{place}.id"),
    )


def _object(value: object, place: str, known: tuple[str, ...] = ()) -> dict[str, Any]:
    """An object with none but the `known` keys, or, without those, with any."""
    if not isinstance(value, dict):
        raise _Misplaced(f"{place} must be an object")
    for key in value if known else ():
        if key not in known:
            close = get_close_matches(key, known, 1)
            meant = f"perhaps {close[0]!r} is meant" if close else f"known are {', '.join(known)}"
            raise _Misplaced(f"{place} has an unknown key {key!r}; {meant}")
    return value


def _list(value: object, place: str) -> list[Any]:
    if not isinstance(value, list):
        raise _Misplaced(f"{place} must be a list")
    return value


def _text(value: object, place: str) -> str:
    if not isinstance(value, str):
        raise _Misplaced(f"{place} must be text")
    return value


def _seconds(value: object, place: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _LONGEST_DELAY_S:
        raise _Misplaced(f"{place} must be a number from 0 to {_LONGEST_DELAY_S}")
    return float(value)


def _count(value: object, place: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _Misplaced(f"{place} must be a whole number that is not negative")
    return value
