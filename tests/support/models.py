"""Models for tests: they say what they are told to say, and remember what they were asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from endstate_action.agent.providers.base import OnDiscard, Reply, Request
from endstate_action.messages import Usage

Answer = Reply | Exception | Callable[[Request, OnDiscard], Reply]


def say(text: str = "", *calls: tuple[str, dict[str, Any]], **given: Any) -> Reply:
    """A reply with this text and these calls; `stop_reason`, `blocks`, `model` … override what follows from them."""
    blocks: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    blocks += [{"type": "tool_use", "id": f"call-{i}", "name": n, "input": a} for i, (n, a) in enumerate(calls)]
    reply: dict[str, Any] = {
        "message_id": "",
        "model": "test-model",
        "blocks": tuple(blocks),
        "stop_reason": "tool_use" if calls else "end_turn",
        "usage": Usage(100, 10),
    }
    return Reply(**(reply | given))


class FakeModel:
    """Answers in order, the last one for ever; an exception is raised, a function is called."""

    name = "fake"

    def __init__(self, answers: Iterable[Answer]) -> None:
        self._answers = list(answers)
        self.requests: list[Request] = []

    def reply(self, request: Request, on_discard: OnDiscard) -> Reply:
        self.requests.append(request)
        answer = self._answers[min(len(self.requests), len(self._answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, Reply) else answer(request, on_discard)
