"""The rules of the Messages API, stricter than the real one where that finds a client's mistakes.

Written from the API's own words, without the product's code.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

MAX_BODY = 32 * 1024 * 1024
MAX_BREAKPOINTS = 4

Json = dict[str, Any]

# The fields that the SDK's `messages.create` has.
_FIELDS = {"model", "max_tokens", "messages", "system", "tools", "tool_choice", "stream", "metadata", "thinking"}
_FIELDS |= {"stop_sequences", "cache_control", "container", "diagnostics", "inference_geo", "output_config"}
_FIELDS |= {"service_tier", "speed"}
_TOOL_FIELDS = {"name", "description", "input_schema", "cache_control", "type", "strict"}
_BLOCK_FIELDS = {
    "text": {"type", "text", "cache_control", "citations"},
    "tool_use": {"type", "id", "name", "input", "cache_control"},
    "tool_result": {"type", "tool_use_id", "content", "is_error", "cache_control"},
    "image": {"type", "source", "cache_control"},
}
_ONLY_IN = {"tool_use": "assistant", "tool_result": "user", "image": "user"}
_THINKING = ("thinking", "redacted_thinking")
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")


class Refused(Exception):
    """The request breaks a rule."""

    def __init__(self, message: str, status: int = 400, kind: str = "invalid_request_error") -> None:
        super().__init__(message)
        self.status, self.kind = status, kind


@dataclass
class Sent:
    """Every thinking block and every unknown block that went out, in bytes, and the turns that hold calls."""

    verbatim: set[bytes] = field(default_factory=set)
    thought_before: dict[str, list[bytes]] = field(default_factory=dict)
    """Id of a call → the thinking blocks of its turn, which must come back with it."""

    def note(self, blocks: Sequence[Json]) -> None:
        thoughts = [_bytes(b) for b in blocks if b["type"] in _THINKING]
        # Thinking without a signature was cut short; nobody may send it back.
        self.verbatim |= {
            _bytes(b)
            for b in blocks
            if b["type"] not in _BLOCK_FIELDS and not (b["type"] == "thinking" and not b.get("signature"))
        }
        self.thought_before |= {b["id"]: thoughts for b in blocks if b["type"] == "tool_use"}


def _bytes(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=True, sort_keys=True).encode()


def judge(raw: bytes, sent: Sent) -> Json:
    """The request's JSON, if it keeps every rule.

    Raises:
        Refused: it breaks this one.
    """
    if len(raw) > MAX_BODY:
        raise Refused("Request exceeds the maximum size", 413, "request_too_large")
    body = _parsed(raw)
    _judge_top(body)
    _judge_tools(body)
    _judge_turns(body["messages"], sent)
    _judge_pairs(body["messages"])
    if _mentions_calls(body["messages"]) and not body.get("tools"):
        raise Refused("tools: requests with tool_use or tool_result blocks must define tools")
    _judge_breakpoints(body)
    return body


def _parsed(raw: bytes) -> Json:
    try:
        body = json.loads(raw.decode("utf-8"), parse_constant=_no_constant)
        # Escaped halves of a surrogate pair pass the parser; encoding finds them.
        json.dumps(body, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as problem:
        raise Refused(f"The request body is not valid JSON: {problem}") from None
    if not isinstance(body, dict):
        raise Refused("The request body is not a JSON object")
    return body


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _judge_top(body: Json) -> None:
    unknown = sorted(body.keys() - _FIELDS)
    if unknown:
        raise Refused(f"{unknown[0]}: Extra inputs are not permitted")
    if not isinstance(body.get("model"), str) or not body["model"]:
        raise Refused("model: Field required")
    if type(body.get("max_tokens")) is not int or body["max_tokens"] < 1:
        raise Refused("max_tokens: must be an integer of at least 1")
    if not isinstance(body.get("stream", False), bool):
        raise Refused("stream: must be a boolean")
    if not isinstance(body.get("messages"), list) or not body["messages"]:
        raise Refused("messages: at least one message is required")
    system = body.get("system")
    if system is not None:
        _judge_texts("system", system)


def _judge_tools(body: Json) -> None:
    names: set[str] = set()
    tools = body.get("tools", [])
    if not isinstance(tools, list):
        raise Refused("tools: must be a list")
    for i, tool in enumerate(tools):
        if not isinstance(tool, dict) or tool.keys() - _TOOL_FIELDS:
            raise Refused(f"tools.{i}: Extra inputs are not permitted")
        if not isinstance(tool.get("name"), str) or not _NAME.fullmatch(tool["name"]):
            raise Refused(f"tools.{i}.name: does not match {_NAME.pattern}")
        if tool["name"] in names:
            raise Refused(f"tools: Tool names must be unique, {tool['name']} is not")
        schema = tool.get("input_schema")
        if not isinstance(schema, dict) or schema.get("type") != "object":
            raise Refused(f"tools.{i}.input_schema.type: must be object")
        names.add(tool["name"])


def _judge_turns(messages: list[Any], sent: Sent) -> None:
    ids: set[str] = set()
    for i, message in enumerate(messages):
        where = f"messages.{i}"
        if not isinstance(message, dict) or message.keys() != {"role", "content"}:
            raise Refused(f"{where}: a message has a role and a content, nothing else")
        # Strict alternation from the user on: the real API merges turns, which hides a client's mistakes.
        expected = "assistant" if i % 2 else "user"
        if message["role"] != expected:
            raise Refused(f"{where}.role: must be {expected}, roles alternate from user on")
        for j, block in enumerate(_content(where, message)):
            _judge_block(f"{where}.content.{j}", block, expected, sent)
            if block["type"] == "tool_use":
                if block["id"] in ids:
                    raise Refused(f"{where}.content.{j}: `tool_use` ids must be unique")
                ids.add(block["id"])
        _judge_thinking_kept(where, message, sent)
    if len(messages) % 2 == 0:
        raise Refused("This model does not support assistant message prefill: the last message must be user")


def _content(where: str, message: Json) -> list[Any]:
    content = message["content"]
    if isinstance(content, str):
        content = [_text(content)]
    if not isinstance(content, list) or not content:
        raise Refused(f"{where}: all messages must have non-empty content")
    return content


def _judge_block(where: str, block: Any, role: str, sent: Sent) -> None:
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(kind, str):
        raise Refused(f"{where}.type: Field required")
    if kind not in _BLOCK_FIELDS:
        _judge_verbatim(where, block, role, sent)
        return
    if _ONLY_IN.get(kind, role) != role:
        raise Refused(f"{where}: `{kind}` blocks are not allowed in {role} messages")
    extra = sorted(block.keys() - _BLOCK_FIELDS[kind])
    if extra:
        raise Refused(f"{where}.{kind}.{extra[0]}: Extra inputs are not permitted")
    if kind == "text":
        _judge_text(where, block)
    elif kind == "tool_use":
        _judge_tool_use(where, block)
    elif kind == "tool_result":
        _judge_tool_result(where, block)


def _judge_verbatim(where: str, block: Json, role: str, sent: Sent) -> None:
    if block["type"] in _THINKING and "cache_control" in block:
        raise Refused(f"{where}.{block['type']}.cache_control: Extra inputs are not permitted")
    if role != "assistant" or _bytes(block) not in sent.verbatim:
        raise Refused(f"{where}: `{block['type']}` blocks must remain as they were in the original response")


def _judge_thinking_kept(where: str, message: Json, sent: Sent) -> None:
    """A turn with calls comes back with all the thinking it was sent with, in order."""
    if message["role"] != "assistant" or isinstance(message["content"], str):
        return
    thoughts = [_bytes(b) for b in message["content"] if b["type"] in _THINKING]
    for block in message["content"]:
        if block["type"] == "tool_use" and sent.thought_before.get(block["id"], thoughts) != thoughts:
            raise Refused(f"{where}: Expected the `thinking` blocks of the original response before `tool_use`")


def _judge_text(where: str, block: Json) -> None:
    if not isinstance(block.get("text"), str):
        raise Refused(f"{where}.text: Field required")
    if not any(_shows(c) for c in block["text"]):
        raise Refused(f"{where}: text content blocks must contain non-whitespace text")


def _judge_texts(where: str, blocks: Any) -> None:
    blocks = [_text(blocks)] if isinstance(blocks, str) else blocks
    if (
        not isinstance(blocks, list)
        or not blocks
        or not all(isinstance(b, dict) and b.get("type") == "text" for b in blocks)
    ):
        raise Refused(f"{where}: must be text or a list of text blocks that is not empty")
    for i, block in enumerate(blocks):
        _judge_text(f"{where}.{i}", block)


def _text(words: str) -> Json:
    return {"type": "text", "text": words}


def _shows(char: str) -> bool:
    return unicodedata.category(char)[0] not in "ZC" or unicodedata.category(char) in ("Co", "Cn")


def _judge_tool_use(where: str, block: Json) -> None:
    if not isinstance(block.get("id"), str) or not _ID.fullmatch(block["id"]):
        raise Refused(f"{where}.tool_use.id: does not match {_ID.pattern}")
    if not isinstance(block.get("name"), str) or not _NAME.fullmatch(block["name"]):
        raise Refused(f"{where}.tool_use.name: does not match {_NAME.pattern}")
    if not isinstance(block.get("input"), dict):
        raise Refused(f"{where}.tool_use.input: Input should be a valid dictionary")


def _judge_tool_result(where: str, block: Json) -> None:
    if not isinstance(block.get("tool_use_id"), str):
        raise Refused(f"{where}.tool_result.tool_use_id: Field required")
    if not isinstance(block.get("is_error", False), bool):
        raise Refused(f"{where}.tool_result.is_error: must be a boolean")
    _judge_texts(f"{where}.tool_result.content", block.get("content"))


def _judge_pairs(messages: list[Any]) -> None:
    asked: list[str] = []
    for i, message in enumerate(messages):
        blocks = _content(f"messages.{i}", message)
        answers = [b["tool_use_id"] for b in blocks if b["type"] == "tool_result"]
        leading = _leading_results(blocks)
        stray = [a for a in answers if a not in asked]
        if stray:
            raise Refused(f"messages.{i}: `tool_result` {stray[0]} has no `tool_use` in the previous message")
        missing = [a for a in asked if a not in leading]
        if missing:
            raise Refused(
                f"messages.{i - 1}: `tool_use` ids were found without `tool_result` blocks immediately after: "
                + ", ".join(missing)
            )
        if len(set(answers)) != len(answers):
            raise Refused(f"messages.{i}: each tool_use must have a single result")
        asked = [b["id"] for b in blocks if b["type"] == "tool_use"]


def _leading_results(blocks: list[Any]) -> list[str]:
    ids = []
    for block in blocks:
        if block["type"] != "tool_result":
            break
        ids.append(block["tool_use_id"])
    return ids


def _mentions_calls(messages: list[Any]) -> bool:
    blocks = (b for i, m in enumerate(messages) for b in _content(f"messages.{i}", m))
    return any(b["type"] in ("tool_use", "tool_result") for b in blocks)


def _judge_breakpoints(body: Json) -> None:
    marks = list(_breakpoints(body))
    for mark in marks:
        if not isinstance(mark, dict) or mark.get("type") != "ephemeral" or mark.keys() - {"type", "ttl"}:
            raise Refused("cache_control: must be {'type': 'ephemeral'}, with a ttl or without")
    if len(marks) > MAX_BREAKPOINTS:
        raise Refused(f"A maximum of {MAX_BREAKPOINTS} blocks with cache_control may be provided. Found {len(marks)}.")


def _breakpoints(value: Any) -> Iterator[Any]:
    """Every breakpoint, wherever a block may carry one; not what a tool's input or schema happens to hold."""
    if isinstance(value, list):
        for item in value:
            yield from _breakpoints(item)
    elif isinstance(value, dict):
        if "cache_control" in value:
            yield value["cache_control"]
        for key in ("messages", "system", "tools", "content"):
            yield from _breakpoints(value.get(key))
