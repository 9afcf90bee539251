"""What both versions of the cache service have in common: the questions, and the ways in which there is no answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Protocol

from endstate_action.state.stores.bounded import Deadline
from endstate_action.state.stores.http import Answer, Client, NoAnswer

VERSION = sha256(b"endstate-checkpoint-format-1").hexdigest()
"""Keeps our entries apart from everybody else's, and from those of another format of ours."""

MAX_KEYS = 10
"""More are not accepted in one look-up."""


@dataclass(frozen=True, slots=True)
class Found:
    key: str
    """As the service says: it matches by prefix, and is not trusted."""
    url: str = field(repr=False)


class Refused(Exception):
    """An answer that is a no: by its status, or by its words where the status is 200."""

    def __init__(self, status: int, words: str, retry_after_s: float = 0.0, *, asks_to_wait: bool = False) -> None:
        super().__init__(words or f"it answered with status {status}")
        self.status, self.words, self.retry_after_s = status, words, retry_after_s
        self.asks_to_wait = asks_to_wait or status == 429
        """Whether it is a rate limit, which GitHub also answers as 403."""


class Wire(Protocol):
    """How one version of the service is spoken to.

    Every method may raise `Refused`, and `NoAnswer` also for an answer that cannot be understood.
    """

    def reserve(self, key: str, size: int, deadline: Deadline) -> str:
        """Take the key; the result says where to upload."""
        ...

    def upload(self, place: str, data: bytes, deadline: Deadline) -> None: ...

    def commit(self, key: str, place: str, size: int, deadline: Deadline) -> None:
        """Only from here on the entry can be found."""
        ...

    def look(self, keys: Sequence[str], deadline: Deadline) -> Found | None:
        """The newest entry for the first of the keys, each matched exactly and then as a prefix, that has any."""
        ...

    def download(self, found: Found, limit: int, deadline: Deadline) -> Answer: ...


def accepted(client: Client, answer: Answer, now: float) -> Answer:
    """The answer, where its status is a yes.

    Raises:
        Refused: else, in the service's own words.
    """
    if answer.is_success:
        return answer
    told = _object(answer.body) or {}
    words = next((told[name] for name in ("msg", "message") if isinstance(told.get(name), str)), "")
    is_limit = answer.status == 403 and ("retry-after" in answer.headers or "rate limit" in words.lower())
    raise Refused(answer.status, client.said(words), answer.retry_after_s(now), asks_to_wait=is_limit)


def json_object(answer: Answer) -> dict[str, Any]:
    """What the service said.

    Raises:
        NoAnswer: it said nothing that can be understood, while it may have done what it was asked.
    """
    found = _object(answer.body)
    if found is None:
        raise garbled()
    return found


def garbled() -> NoAnswer:
    return NoAnswer("its answer cannot be understood", may_be_applied=True)


def text_in(told: dict[str, Any], *names: str) -> str:
    """The field of any of these names; empty where it is absent or no text."""
    return next((told[name] for name in names if isinstance(told.get(name), str)), "")


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
