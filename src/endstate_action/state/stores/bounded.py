"""No store keeps anybody waiting: what takes longer than it may is left behind, and said."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from endstate_action.state.stores.base import RateLimited, StoreUnreadable, StoreUnusable, Unavailable

_T = TypeVar("_T")

AGAIN_S = (0.5, 1.5)
"""The pauses before a question is asked again."""


def within(timeout_s: float, work: Callable[[], _T]) -> _T:
    """What `work` returns or raises.

    A network file system can hold a call for ever, so `work` has a thread of its own, which is waited for no longer.

    Raises:
        TimeoutError: it took longer than `timeout_s`; nobody knows how far it came.
    """
    answers: list[tuple[_T | None, BaseException | None]] = []

    def story() -> None:
        try:
            answers.append((work(), None))
        except BaseException as error:  # noqa: BLE001 - raised again where it was asked for
            answers.append((None, error))

    # Until it is over, not only until there is an answer: native code that still tidies up while the interpreter goes
    # down aborts the process.
    thread = threading.Thread(target=story, name="endstate-store", daemon=True)
    thread.start()
    thread.join(max(timeout_s, 0.0))
    if not answers:
        raise TimeoutError(f"no answer within {timeout_s:g} s")
    answer, error = answers[0]
    if error is not None:
        raise error
    return answer  # type: ignore[return-value]


def again(ask: Callable[[], _T], passes_after: Callable[[Exception], float | None], deadline: Deadline) -> _T:
    """What a question is answered, which may be asked a few times: a hiccup of a service is not the end of a run.

    Args:
        passes_after: after how many seconds what went wrong may be over; None where asking again changes nothing.
    """
    for pause_s in AGAIN_S:
        try:
            return ask()
        except Exception as problem:
            asked_s = passes_after(problem)
            if asked_s is None or (wait_s := max(asked_s, pause_s)) >= deadline.left():
                raise
        time.sleep(wait_s)
    return ask()


def passes_after(outcome: object) -> float | None:
    """For `again`, of what went wrong as a `Put` tells it."""
    if isinstance(outcome, RateLimited):
        return outcome.retry_after_s
    return 0.0 if isinstance(outcome, Unavailable) else None


class Deadline:
    """One time limit for several requests."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._end = time.monotonic() + timeout_s

    def left(self) -> float:
        """Seconds; never below 0."""
        return max(self._end - time.monotonic(), 0.0)

    def sooner(self, most_s: float) -> Deadline:
        """One that ends in `most_s` seconds at the latest, and no later than this one."""
        return Deadline(min(self.left(), most_s))


def unreadable(store: str, reason: str, remedy: str = "") -> StoreUnreadable:
    """The error for a store that could not be asked; with a remedy, for one that will not be without it."""
    if remedy:
        return StoreUnusable(
            f"The store {store} cannot be read ({reason}), so nobody knows what it holds. Nothing was changed.",
            hint=remedy,
        )
    return StoreUnreadable(
        f"The store {store} could not be read ({reason}), so nobody knows what it holds. Nothing was changed.",
        hint="Run again once the store can be reached, or name another one with `store`.",
    )
