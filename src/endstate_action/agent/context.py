"""What the model sees: a view of the journal, well-formed at every request.

`history` is a function of the records alone, so a resumed run sends what the killed one would have
sent. Compaction cuts between steps only, where the records alone say so too, and is itself a record.
`check_history` looks at the whole of it before each request: a provider that accepts a damaged
history today refuses it tomorrow.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from endstate_action.effects import canonical
from endstate_action.errors import EndstateError
from endstate_action.messages import (
    VERBATIM,
    Block,
    Message,
    ToolResult,
    in_part,
    is_blank,
    scrub,
    scrub_json,
    text_block,
)
from endstate_action.state.fold import State
from endstate_action.state.records import Compacted, Finished, Replied

DEFAULT_MAX_TOKENS = 200_000
DEFAULT_MAX_BYTES = 30_000_000
TARGET_AFTER_COMPACTION = 0.6
TOKENS_PER_BYTE = (0.2, 0.3, 0.6)
"""Lowest, assumed and highest believable ratio; the last reply's own count decides between them."""
SUMMARY_BYTES = 20_000
LEAST_RESULT_BYTES = 1_000
"""Less of a result tells nothing: it is summarised with its step."""
_ID_CHARACTERS = 64


class MalformedHistory(EndstateError):
    """A history that a provider would refuse; our bug, found before it was sent."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Room for one request, in tokens (with the reply's reserve) and in bytes."""

    max_tokens: int = DEFAULT_MAX_TOKENS
    max_bytes: int = DEFAULT_MAX_BYTES


def history(state: State) -> tuple[Message, ...]:
    """The messages to send: every call answered, results first, no blank block, roles alternating.

    Raises:
        MalformedHistory: a call has no outcome; settle first.
    """
    if state.pending:
        raise MalformedHistory(f"{len(state.pending)} calls have no outcome; nothing was sent.")
    return _view(state, state.steps, state.compacted)


def answered(state: State) -> tuple[Message, ...]:
    """The messages that the last reply answered, as they were sent; none before the first reply."""
    return _view(state, state.steps - 1, state.compacted_at_reply) if state.replies else ()


def _view(state: State, steps: int, compacted: Compacted | None) -> tuple[Message, ...]:
    """The messages as of `steps` replies, of which each call has its outcome."""
    messages: list[Message] = []
    waiting: list[Block] = []
    wire = _WireIds()
    through = compacted.through_step if compacted else 0
    part = {through + 1: compacted.result_bytes} if compacted and compacted.result_bytes else {}
    if compacted:
        waiting += [text_block(scrub(t.text)) for t in state.told if t.kind == "prompt" and t.after_step < through]
        waiting.append(text_block(scrub(compacted.summary)))
    for step in range(through, steps + 1):
        told = [text_block(scrub(t.text)) for t in state.told if t.after_step == step and not is_blank(t.text)]
        if step > through:
            waiting += _results(state, step, wire, part.get(step))
            waiting += told or _nudge(state.replies[step - 1])
        else:
            waiting += told
        sent = _sendable(state.replies[step], wire) if step < steps else ()
        if sent:
            messages += [Message("user", tuple(waiting)), Message("assistant", sent)]
            waiting = []
    return (*messages, Message("user", tuple(waiting)))


def _results(state: State, step: int, wire: _WireIds, most_bytes: int | None) -> Iterator[Block]:
    for index, block in enumerate(b for b in state.replies[step - 1].blocks if b.get("type") == "tool_use"):
        outcome = state.finished[step, index]
        content = scrub(outcome.content)
        shown = content if most_bytes is None else in_part(content, most_bytes)
        yield ToolResult(wire.of(step, index, str(block.get("id", ""))), shown, _is_error(outcome)).block()


def _is_error(outcome: Finished) -> bool:
    return outcome.status != "ok"


def _sendable(reply: Replied, wire: _WireIds) -> tuple[Block, ...]:
    """A reply's blocks as they may be sent back; none where the reply must not be."""
    if reply.stop_reason == "refusal" and not any(b.get("type") == "tool_use" for b in reply.blocks):
        return ()
    blocks: list[Block] = []
    index = 0
    for block in reply.blocks:
        match block.get("type"):
            case "tool_use":
                blocks.append(_call_block(block, wire.of(reply.step, index, str(block.get("id", "")))))
                index += 1
            case "text":
                if not is_blank(str(block.get("text", ""))):
                    blocks.append(scrub_json(dict(block)))
            case kind if kind in VERBATIM:
                blocks.append(block)
            case _:
                blocks.append(scrub_json(dict(block)))
    # Thinking alone is no turn: a provider refuses a message that says nothing.
    return tuple(blocks) if any(b.get("type") not in VERBATIM for b in blocks) else ()


def _call_block(block: Block, wire_id: str) -> Block:
    arguments = block.get("input")
    sent: dict[str, Any] = scrub_json(dict(block)) | {"id": wire_id, "name": _plain(str(block.get("name", "")), "none")}
    return sent if isinstance(arguments, dict) else sent | {"input": {}}


def _plain(text: str, instead: str) -> str:
    """As a provider takes names and ids: a model may make up others, which it refuses in every later request."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "_" for c in text)
    return plain[:_ID_CHARACTERS] or instead


class _WireIds:
    """Call ids as sent: a provider that repeats an id in a later turn must not see two calls of one name."""

    def __init__(self) -> None:
        self._given: dict[tuple[int, int], str] = {}
        self._taken: set[str] = set()

    def of(self, step: int, index: int, original: str) -> str:
        known = self._given.get((step, index))
        if known is not None:
            return known
        plain = _plain(original, "call")
        chosen, again = plain, ""
        while chosen in self._taken:
            chosen = f"{plain[: _ID_CHARACTERS // 2]}_{step}_{index}{again}"
            again += "_"
        self._taken.add(chosen)
        self._given[step, index] = chosen
        return chosen


def _nudge(reply: Replied) -> list[Block]:
    """What to say when a reply neither asked for anything nor ended the task."""
    if any(b.get("type") == "tool_use" for b in reply.blocks):
        return []
    match reply.stop_reason:
        case "refusal":
            return []
        case "max_tokens" | "model_context_window_exceeded":
            text = "Your reply was cut off by the output limit. Go on where it stopped, in smaller pieces."
        case "tool_use":
            text = "You announced a tool call but there was none. Call a tool, or give your final answer."
        case "pause_turn":
            text = "Go on."
        case _:
            text = "There was no visible answer. Give your final answer in text, or call a tool."
    return [text_block(text)]


def check_history(messages: tuple[Message, ...]) -> None:
    """Check the whole history as strictly as a provider does.

    Raises:
        MalformedHistory: naming the first message that a provider would refuse.
    """
    asked: list[str] = []
    seen: set[str] = set()
    for number, message in enumerate(messages):
        wanted = "user" if number % 2 == 0 else "assistant"
        if message.role != wanted:
            raise MalformedHistory(f"Message {number} has role {message.role}, not {wanted}; nothing was sent.")
        if not message.blocks or any(_is_blank_block(b) for b in message.blocks):
            raise MalformedHistory(f"Message {number} is empty or has an empty block; nothing was sent.")
        answered = [b["tool_use_id"] for b in message.blocks if b.get("type") == "tool_result"]
        leading = [b.get("tool_use_id") for b in message.blocks[: len(answered)]]
        if answered != leading or sorted(answered) != sorted(asked):
            raise MalformedHistory(f"Message {number} does not answer each call before it once; nothing was sent.")
        asked = [str(b["id"]) for b in message.blocks if b.get("type") == "tool_use"]
        if len(set(asked)) != len(asked) or seen & set(asked):
            raise MalformedHistory(f"Message {number} repeats a call id; nothing was sent.")
        seen |= set(asked)
    if not messages or messages[-1].role != "user":
        raise MalformedHistory("The history does not end with something to answer; nothing was sent.")


def _is_blank_block(block: Block) -> bool:
    return block.get("type") == "text" and is_blank(str(block.get("text", "")))


def size_bytes(messages: tuple[Message, ...], system: str, tools: tuple[Mapping[str, Any], ...]) -> int:
    """Bytes of the request's body, near enough."""
    body = [[m.role, list(m.blocks)] for m in messages]
    return len(json.dumps([body, system, list(tools)], default=dict, ensure_ascii=False).encode("utf-8", "replace"))


def tokens_per_byte(state: State, system: str, tools: tuple[Mapping[str, Any], ...]) -> float:
    """Calibrated on the last reply's own count where that is known and believable.

    The request that it counted is made once more from the records: what only a living process knows, the next one
    would not, and would cut at another place.
    """
    low, assumed, high = TOKENS_PER_BYTE
    counted = state.replies[-1].usage.context_tokens if state.replies else 0
    return min(high, max(low, counted / size_bytes(answered(state), system, tools))) if counted else assumed


def compaction(state: State, target_bytes: float, overhead_bytes: int) -> Compacted | None:
    """The smallest cut that brings the history under `target_bytes`, or None where no cut is left to make.

    The newest step is what the model waits for: where it is too long by itself, a part of each result is shown.
    """
    done = state.compacted.through_step if state.compacted else 0
    sizes = [_step_bytes(state, step) for step in range(1, state.steps + 1)]
    prompts = sum(len(t.text.encode("utf-8", "replace")) for t in state.told)
    for through in range(done + 1, state.steps):
        left = sum(sizes[through:]) + prompts + overhead_bytes + SUMMARY_BYTES
        if left <= target_bytes:
            return Compacted(through, summarise(state, through))
    newest = state.steps
    results = _result_sizes(state, newest)
    room = target_bytes - prompts - overhead_bytes - SUMMARY_BYTES - sizes[-1] + sum(results) if sizes else 0.0
    last = state.compacted.result_bytes if state.compacted and done == newest - 1 else 0
    part = _part(results, room)
    if LEAST_RESULT_BYTES <= part < min(last or part + 1, max(results, default=0)):
        return Compacted(newest - 1, summarise(state, newest - 1, part), part)
    return Compacted(newest, summarise(state, newest)) if newest > done else None


def _part(sizes: list[int], room: float) -> int:
    """How much of each may be there so that all fit: what small ones do not need is left to the large ones."""
    for at, size in enumerate(sorted(sizes)):
        share = room / (len(sizes) - at)
        if size > share:
            return max(0, int(share))
        room -= size
    return max(sizes, default=0)


def _result_sizes(state: State, step: int) -> list[int]:
    return [len(f.content.encode("utf-8", "replace")) for (s, _), f in state.finished.items() if s == step]


def _step_bytes(state: State, step: int) -> int:
    reply = state.replies[step - 1]
    said = len(canonical([dict(b) for b in reply.blocks]))
    return said + sum(size + 100 for size in _result_sizes(state, step))


def summarise(state: State, through: int, part_bytes: int = 0) -> str:
    """Steps 1 to `through` in a few lines each, made here: compaction must not depend on any provider.

    Args:
        part_bytes: as much of each result of the step after them is shown; 0 for all.
    """
    part = (
        f"[Of the results of step {through + 1} only the beginning and the end are shown here, {part_bytes} bytes of "
        "each at most, since together they are too long. Ask for less at a time.]"
    )
    if not through:
        return part
    lines: list[str] = []
    for reply in state.replies[:through]:
        said = reply.message.text
        if said:
            lines.append(f"step {reply.step}: you said: {_short(said, 300)}")
        for index, call in enumerate(reply.message.tool_calls):
            outcome = state.finished[reply.step, index]
            shown = _short(json.dumps(dict(call.arguments), ensure_ascii=True), 160)
            lines.append(f"step {reply.step}: {call.name} {shown} -> {outcome.status}: {_short(outcome.content, 120)}")
    kept: list[str] = []
    room = SUMMARY_BYTES - 600
    for line in reversed(lines):
        room -= len(line.encode("utf-8", "replace")) + 1
        if room < 0:
            kept.append("(earlier lines left out)")
            break
        kept.append(line)
    body = "\n".join(reversed(kept)) + (f"\n{part}" if part_bytes else "")
    return (
        f"[Steps 1 to {through} of this session were left out here to save room. What they did, in short; "
        f"read files again where you need their content:]\n{body}"
    )


def _short(text: str, limit: int) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"
