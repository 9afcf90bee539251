"""The highest number in use, on any store: also one that only tells whether some key begins in a certain way.

What a store calls the newest is a hint, since its clock may be coarse and a late writer may be an old one. So the
answer is taken for a lower bound, and everything above it is asked for, until there is nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from endstate_action.config.text import quoted
from endstate_action.state.stores.base import Store, StoreUnusable


@dataclass(frozen=True, slots=True)
class Numbering:
    """How keys are numbered: `prefix` begins every key whose number begins with these digits."""

    digits: int
    prefix: Callable[[str], str]
    number: Callable[[str], int | None]
    """The number of a key; None where it has none."""

    @property
    def end(self) -> int:
        return int(10**self.digits)


def highest(
    store: Store, numbering: Numbering, *, timeout_s: float, above: int = -1, below: int | None = None
) -> str | None:
    """The key with the highest number between `above` and `below`, both left out; None where there is none.

    Args:
        timeout_s: for each request; there are two or three, more where the store's order is not that of the numbers.

    Raises:
        StoreUnreadable: the store could not be asked.
        StoreUnusable: it names keys that cannot be.
    """
    below = numbering.end if below is None else below
    found = None
    while prefixes := [numbering.prefix(digits) for digits in covering(numbering.digits, above, below)]:
        key = store.first(prefixes, timeout_s=timeout_s)
        if key is None:
            break
        number = numbering.number(key) if key.startswith(tuple(prefixes)) else None
        if number is None or not above < number < below:
            raise foreign(store, key)
        found, above = key, number
    return found


def foreign(store: Store, key: str) -> StoreUnusable:
    """The error for a key that no attempt makes, under which higher ones may be hidden."""
    return StoreUnusable(
        f"The store {store.name} answers with the key {quoted(key)}, which is none of ours, so what is newest in it is "
        "not known. Nothing was restored and nothing was sent.",
        hint="Something else writes below `es1/` there. Delete that object from the store, then run again.",
    )


def covering(digits: int, above: int, below: int) -> Iterator[str]:
    """Beginnings, the highest first, that exactly the numbers between `above` and `below` have, both left out.

    Numbers have so many digits. After 0003 come 9, 8 … 1, 09 … 01, 009 … 001, 0009 … 0004.
    """

    def under(beginning: str) -> Iterator[str]:
        width = 10 ** (digits - len(beginning))
        first = int(beginning or "0") * width
        last = first + width - 1
        if above < first and last < below:
            yield beginning
        elif max(first, above + 1) <= min(last, below - 1):
            for digit in "9876543210":
                yield from under(beginning + digit)

    return under("")
