"""The Messages API's JSON, both ways: what is sent is well-formed, what is received is kept as it came.

A reply is put together from the raw events of its stream, complete or not at all.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from endstate_action.agent.providers.base import Reply, Request
from endstate_action.messages import Block, Message, Usage, is_blank, scrub, scrub_json

CUT_SHORT = frozenset({"max_tokens", "model_context_window_exceeded", "refusal"})
"""Stop reasons that mean that the last block may be incomplete."""

_CACHE_HERE = {"cache_control": {"type": "ephemeral"}}
_CACHEABLE = frozenset({"text", "tool_result"})
_CACHED_TURNS = 2

_GROWING = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "input_json_delta": "partial_json",
}
_MUST_BE_TEXT = {"text": ("text",), "thinking": ("thinking",), "tool_use": ("id", "name")}
_COUNTS = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
_MOST_TOKENS = 2**53
"""No more are counted: a record with more would not be read back."""


class BrokenReply(Exception):
    """What came cannot become a reply; the text says why."""


def request_body(request: Request) -> dict[str, Any]:
    """The JSON object for `POST /v1/messages`, with at most four cache breakpoints, never on a thinking block."""
    body: dict[str, Any] = {
        "model": scrub(request.model),
        "max_tokens": request.max_output_tokens,
        "messages": _turns(request.messages),
    }
    if not is_blank(request.system):
        body["system"] = [{"type": "text", "text": scrub(request.system), **_CACHE_HERE}]
    if request.tools:
        *others, last = (dict(tool) for tool in request.tools)
        body["tools"] = [*others, last | _CACHE_HERE]
    return body


def _turns(messages: Sequence[Message]) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = [
        {"role": m.role, "content": [scrub_json(dict(b)) for b in m.blocks]} for m in messages
    ]
    # Two breakpoints: a lookup goes back 20 blocks only, so that after a large batch of calls the
    # newest one alone would miss what the request before had cached.
    for turn in [t for t in turns if t["role"] == "user"][-_CACHED_TURNS:]:
        _mark_last_block(turn["content"])
    return turns


def _mark_last_block(content: list[dict[str, Any]]) -> None:
    if content and content[-1].get("type") in _CACHEABLE:
        content[-1] |= _CACHE_HERE


def is_cut(blocks: Sequence[Block], stop_reason: str) -> bool:
    """Whether the last block is a call that may have been cut short; such a call must not run."""
    return stop_reason in CUT_SHORT and bool(blocks) and blocks[-1].get("type") == "tool_use"


def strict_json(text: str) -> Any:
    """Parse what can be sent again: no NaN, no infinity, no lone surrogates, no nesting that cannot be walked.

    Raises:
        ValueError: it is not such JSON.
    """
    try:
        return scrub_json(json.loads(text, parse_constant=_no_number, parse_float=_finite))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _no_number(digits)


@dataclass(slots=True)
class _GrowingBlock:
    """One content block between its start and the end of the message."""

    block: dict[str, Any]
    parts: dict[str, list[str]] = field(default_factory=dict)

    def extend(self, delta: Mapping[str, Any]) -> None:
        kind = delta.get("type")
        if kind == "citations_delta":
            self.block["citations"] = [*(self.block.get("citations") or ()), delta.get("citation")]
        elif kind in _GROWING:
            self._grow(_GROWING[kind], delta.get(_GROWING[kind]))
        else:
            # A kind that a newer API added: text grows, as with those we know, anything else replaces.
            for key, value in delta.items():
                if key != "type":
                    self._grow(key, value)

    def _grow(self, key: str, value: Any) -> None:
        if isinstance(value, str) and isinstance(self.block.get(key) or "", str):
            self.parts.setdefault(key, []).append(value)
        else:
            self.block[key] = value

    def finished(self, *, may_be_cut: bool) -> dict[str, Any]:
        grown = {key: (self.block.get(key) or "") + "".join(parts) for key, parts in self.parts.items()}
        block: dict[str, Any] = self.block | grown
        if "partial_json" in block:
            block["input"] = _tool_input(block.pop("partial_json"), may_be_cut=may_be_cut)
        _check(block)
        return block


def _tool_input(text: object, *, may_be_cut: bool) -> Mapping[str, Any]:
    try:
        value = strict_json(str(text)) if str(text).strip() else {}
    except ValueError:
        value = None
    if not isinstance(value, dict) and not may_be_cut:
        raise BrokenReply("the input of a call is not a readable JSON object")
    return value if isinstance(value, dict) else {}


def _check(block: Mapping[str, Any]) -> None:
    kind = block.get("type")
    wrong = [key for key in ("type", *_MUST_BE_TEXT.get(str(kind), ())) if not isinstance(block.get(key), str)]
    if kind == "tool_use" and not isinstance(block.get("input"), dict):
        wrong.append("input")
    if wrong:
        raise BrokenReply(f"a {kind} block came without a usable {wrong[0]}")


class Assembly:
    """A reply in the making. `feed` it every event in order, then ask for `reply()`."""

    def __init__(self) -> None:
        self._message: Mapping[str, Any] | None = None
        self._blocks: dict[int, _GrowingBlock] = {}
        self._stop_reason: object = None
        self._tokens: dict[str, int] = {}
        self.complete = False
        """Whether the message has been sent to its end."""

    @property
    def started(self) -> bool:
        """Whether the model began to answer, so that tokens were paid."""
        return self._message is not None

    @property
    def usage(self) -> Usage:
        """Tokens reported so far."""
        count = self._tokens.get
        return Usage(*(count(name, 0) for name in _COUNTS))

    def feed(self, event: object) -> None:
        """Take one event, as `strict_json` gives it. Kinds that are not known are ignored.

        Raises:
            BrokenReply: the event cannot belong to a reply.
        """
        match event:
            case {"type": "message_start", "message": dict(message)} if self._message is None:
                self._message = message
                self._count(message.get("usage"))
            case {"type": "content_block_start", "index": int(index), "content_block": dict(block)} if (
                index not in self._blocks
            ):
                self._blocks[index] = _GrowingBlock(block)
            case {"type": "content_block_delta", "index": int(index), "delta": dict(delta)} if index in self._blocks:
                self._blocks[index].extend(delta)
            case {"type": "message_delta", "delta": dict(delta), **rest}:
                self._stop_reason = delta.get("stop_reason") or self._stop_reason
                self._count(rest.get("usage"))
            case {"type": "message_stop"}:
                self.complete = True
            case {"type": "message_start" | "content_block_start" | "content_block_delta" as kind}:
                raise BrokenReply(f"an event of type {kind} is malformed or out of place")
            case _:
                pass

    def _count(self, usage: object) -> None:
        # Counts are cumulative, and one that is absent or null keeps its earlier value.
        if isinstance(usage, dict):
            seen = {name: usage.get(name) for name in _COUNTS}
            self._tokens |= {n: v for n, v in seen.items() if type(v) is int and 0 <= v <= _MOST_TOKENS}

    def reply(self) -> Reply:
        """The complete reply.

        Raises:
            BrokenReply: it is not complete, or not one.
        """
        if self._message is None or not self.complete:
            raise BrokenReply("the stream ended before the message did")
        stop_reason, message_id, model = self._stop_reason, self._message.get("id"), self._message.get("model")
        if not (isinstance(stop_reason, str) and isinstance(message_id, str) and isinstance(model, str)):
            raise BrokenReply("the message has no id, no model or no stop reason")
        blocks = self._finished_blocks(cut_short=stop_reason in CUT_SHORT)
        return Reply(message_id, model, blocks, stop_reason, self.usage, is_cut(blocks, stop_reason))

    def _finished_blocks(self, *, cut_short: bool) -> tuple[Block, ...]:
        indices = sorted(self._blocks)
        blocks = [self._blocks[i].finished(may_be_cut=cut_short and i == indices[-1]) for i in indices]
        # Thinking that was cut short has no signature, and the API refuses it ever after.
        if cut_short and blocks and blocks[-1]["type"] == "thinking" and not blocks[-1].get("signature"):
            blocks.pop()
        return tuple(blocks)
