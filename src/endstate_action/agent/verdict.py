"""What the last reply means: the task is done, the model is asked again, or the run stops with a named reason.

Read from the journal alone. Odd replies (cut off, empty, paused, a tool announced but not called) are
answered with a nudge, a bounded number of times an attempt, so that neither a loop nor a false success
comes of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile

from endstate_action.messages import is_blank
from endstate_action.state.fold import State
from endstate_action.state.records import Replied

MAX_ODD_REPLIES = 3
"""So many odd replies in a row end the attempt."""

_ODD = {
    "max_tokens": "output limit: the reply was cut off",
    "model_context_window_exceeded": "context exceeded: the reply did not fit the model's window",
    "tool_use": "no tool call: the model announced a tool call and sent none",
    "pause_turn": "paused: the model did not go on",
    "end_turn": "no answer: the reply had no visible text",
    "stop_sequence": "no answer: the reply had no visible text",
}


@dataclass(frozen=True, slots=True)
class Done:
    pass


@dataclass(frozen=True, slots=True)
class Ask:
    pass


@dataclass(frozen=True, slots=True)
class Stop:
    reason: str


def verdict(state: State) -> Done | Ask | Stop:
    """Judge the last reply; every call in it must have its outcome."""
    asked_at = max((p.after_step for p in state.prompts), default=0)
    replies = state.replies[asked_at:]
    if not replies:
        return Ask()
    last = replies[-1]
    if last.epoch < state.epoch and not _answers(last):
        return Ask()  # what an earlier attempt ended with is worth one more try
    if last.stop_reason == "refusal":
        return Stop("declined: the model declined to go on")
    oddity = _oddity(last)
    if oddity is None:
        return Done() if _answers(last) else Ask()
    if last.stop_reason not in _ODD:
        return Stop(oddity)
    recent = takewhile(lambda r: r.epoch == state.epoch and _oddity(r) is not None, reversed(replies))
    return Stop(oddity) if sum(1 for _ in recent) >= MAX_ODD_REPLIES else Ask()


def _answers(reply: Replied) -> bool:
    """Whether it is the final answer: nothing asked for, and something visible said."""
    ended = reply.stop_reason in ("end_turn", "stop_sequence")
    return ended and not reply.message.tool_calls and not is_blank(reply.message.text)


def _oddity(reply: Replied) -> str | None:
    """Why this reply neither asks for anything nor ends the task, or None if it does."""
    known = _ODD.get(reply.stop_reason, f"unknown stop reason {reply.stop_reason[:40]!r}")
    if reply.message.tool_calls:
        return known if reply.cut or reply.stop_reason not in _ODD else None
    return None if _answers(reply) else known
