"""What every store promises, and how it says what came of a request.

A store maps keys to bytes that never change: a key is written once. Everything above (claims, the fence, the search
for the newest checkpoint) is built on `put`, `get` and `first` alone, so that it holds for every store alike.
`tests/contract/test_stores.py` runs against each of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from endstate_action.errors import InputError, Interrupted

MAX_ENTRY_BYTES = 512 << 20
"""What is longer is none of ours; its beginning is enough to find that it does not open."""


@dataclass(frozen=True, slots=True)
class Stored:
    """It is there, under this key, whole; `size` bytes."""

    key: str
    size: int


@dataclass(frozen=True, slots=True)
class Exists:
    """The key is taken; nothing was written."""

    key: str


@dataclass(frozen=True, slots=True)
class Denied:
    """The store does not let us write; asking again will not help. `remedy` is what a person can do.

    Where it `may_pass`, somebody may do that while we run: nobody waits for it, and what comes later is tried anew.
    Where it `is_lost`, what was stored before is gone as well.
    """

    reason: str
    remedy: str = ""
    may_pass: bool = False
    is_lost: bool = False


@dataclass(frozen=True, slots=True)
class RateLimited:
    """Nothing was written; ask again after so many seconds."""

    retry_after_s: float


@dataclass(frozen=True, slots=True)
class Unavailable:
    """No answer, or one that tells nothing. Where `is_doubtful`, the key may be taken and must not be used again."""

    reason: str
    is_doubtful: bool = True


Put: TypeAlias = Stored | Exists | Denied | RateLimited | Unavailable


class StoreUnreadable(Interrupted):
    """The store could not be asked, so nothing is known: which is not the same as there being nothing."""


class StoreUnusable(StoreUnreadable):
    """It cannot be asked as things are, however often one tries: a person must change something first."""

    exit_code = InputError.exit_code


class Store(Protocol):
    """Bytes by key. Keys are made by `state.keys`: lower case, fixed width, `/` between their parts.

    An implementation is used from several threads at once.
    """

    @property
    def name(self) -> str:
        """As the output says it: `cache`, `dir`, `git-ref`, `s3`…"""
        ...

    @property
    def deletes(self) -> bool:
        """Whether what is dropped goes."""
        ...

    def put(self, key: str, data: bytes, *, timeout_s: float, drop: Collection[str] = ()) -> Put:
        """Store `data` under `key` if nothing is there; never over something.

        Args:
            timeout_s: no longer than this is waited, all in all; what happens then is `Unavailable`.
            drop: keys that are no longer needed once this is stored. Where the store cannot delete, they stay.
        """
        ...

    def get(self, key: str, *, timeout_s: float) -> bytes | None:
        """What is stored under exactly this key; None where nothing is.

        Raises:
            StoreUnreadable: the store could not be asked.
        """
        ...

    def first(self, prefixes: Sequence[str], *, timeout_s: float) -> str | None:
        """A key that begins with the first of `prefixes` that any key begins with; None where none does.

        Of several keys under one prefix it is the highest in order where the store can tell, else the newest as far
        as the store knows: who needs the highest has to look beyond.

        Raises:
            StoreUnreadable: the store could not be asked.
        """
        ...

    def keys(self, prefix: str, *, timeout_s: float) -> list[str] | None:
        """All keys that begin so, in order; None where the store cannot list.

        Raises:
            StoreUnreadable: the store could not be asked.
        """
        ...

    def lineages(self, *, timeout_s: float) -> list[str] | None:
        """The lineages that there are any keys of, in order; None where the store cannot list.

        Raises:
            StoreUnreadable: the store could not be asked.
        """
        ...
