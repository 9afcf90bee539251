"""What comes of asking GitHub, as a value: what may have been applied is never called failed.

`once_more` is the one way to send again what is in doubt: it looks first.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from endstate_action.ci.payload import Node
from endstate_action.errors import InputError

T = TypeVar("T")

LOOK_AFTER_S = 3.0
"""What was sent and not answered gets this long to become visible before it is looked for."""


@dataclass(frozen=True, slots=True)
class Applied(Generic[T]):
    value: T


@dataclass(frozen=True, slots=True)
class Absent:
    """There is no such thing, or the token may not know of it: GitHub says the same of both."""

    reason: str


@dataclass(frozen=True, slots=True)
class Denied:
    """`remedy` is what to change, to be pasted as it is."""

    reason: str
    remedy: str
    has_expired: bool = False
    """Whether it is the token's time that is over: the next one may have what this one has no more."""
    lacks: str = ""
    """The permission that a token without it would have to have, `name: level`."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """Nothing was applied, and the same request never will be."""

    reason: str


@dataclass(frozen=True, slots=True)
class Ambiguous:
    """It may have been applied."""

    reason: str


@dataclass(frozen=True, slots=True)
class RateLimited:
    reason: str
    wait_s: float


@dataclass(frozen=True, slots=True)
class Unavailable:
    """Nothing was applied; later it may be."""

    reason: str


@dataclass(frozen=True, slots=True)
class TooLate:
    """Nothing was sent: read the fence again first."""

    reason: str = "the time in which this may be sent is over"


Failure = Absent | Denied | Rejected | Ambiguous | RateLimited | Unavailable | TooLate
Outcome = Applied[T] | Failure


def is_final(failure: Failure) -> bool:
    """Whether the same request would be refused in the same way, whoever runs it again without changing anything."""
    return isinstance(failure, Rejected) or (isinstance(failure, Denied) and not failure.has_expired)


class Failed(Exception):
    """A request that did not succeed; leaves this package as an outcome, by `told`."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


def told(act: Callable[[], T]) -> Outcome[T]:
    """What came of `act`, as a value."""
    try:
        return Applied(act())
    except Failed as failed:
        return failed.failure


def once_more(send: Callable[[], T], look: Callable[[], T | None], wait: Callable[[float], None] = time.sleep) -> T:
    """Send; where the answer leaves it open, look whether it was applied, and send at most one more time.

    Raises:
        Failed: of the first time, unless that is ambiguous; else ambiguous, as the first may still have been applied.
    """
    try:
        return send()
    except Failed as failed:
        if not isinstance(failed.failure, Ambiguous):
            raise
        doubt = failed.failure
    for is_last in (False, True):
        wait(LOOK_AFTER_S)
        found = _seen(look)
        if isinstance(found, Applied) and found.value is not None:
            return found.value
        # Whoever cannot look must not send: two of a kind are what the look is for.
        if is_last or not isinstance(found, Applied):
            break
        try:
            return send()
        except Failed as failed:
            doubt = Ambiguous(f"{doubt.reason}; and when it was sent once more: {failed.failure.reason}")
    raise Failed(doubt)


def _seen(look: Callable[[], T | None]) -> Outcome[T | None]:
    return told(look)


def understood(parse: Callable[[Node], T], found: Any, *, is_write: bool = False) -> T:
    """What GitHub answered, as a value.

    Raises:
        Failed: it has not the shape that GitHub documents; ambiguous for a write, which has then happened somehow.
    """
    reason = "GitHub's answer has not the shape that it documents"
    failure = Ambiguous(reason) if is_write else Unavailable(reason)
    if not isinstance(found, dict):
        raise Failed(failure)
    try:
        return parse(Node(found, ""))
    except InputError as problem:
        raise Failed(failure) from problem
