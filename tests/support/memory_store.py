"""A store in memory that keeps the promises of `Store`, and fails where it is told to: at each operation and position.

What it does to a request is what networks and services do: the answer is lost but the write was applied, a name is
reserved and never filled, bytes are cut or changed, entries change places, the newest is not there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from enum import Enum, auto
from typing import Literal

from endstate_action.state.stores.base import (
    Denied,
    Exists,
    Put,
    RateLimited,
    Stored,
    StoreUnreadable,
    Unavailable,
)

Operation = Literal["put", "get", "first", "keys"]


class Fault(Enum):
    """What happens to one request. The first group is for `put`, the second for what reads."""

    APPLIED = auto()
    """No answer, although it was stored."""
    LOST = auto()
    """No answer, and nothing was stored."""
    REFUSED = auto()
    """A server error that says that nothing was stored."""
    RESERVED = auto()
    """No answer; the name is taken and stays empty."""
    TAKEN = auto()
    """Somebody else was faster under the same name."""
    RATE_LIMITED = auto()
    DENIED = auto()

    UNREADABLE = auto()
    CUT = auto()
    FLIPPED = auto()
    SWAPPED = auto()
    """The bytes of another entry."""
    GONE = auto()


class MemoryStore:
    """
    Args:
        lists: whether it can list.
        order: which of several keys under a prefix `first` takes; a coarse clock may take the oldest for the newest.
        faults: what happens to the nth request of an operation, from 0.
    """

    name = "memory"
    deletes = True

    def __init__(
        self,
        *,
        lists: bool = True,
        order: Literal["highest", "newest", "oldest"] = "highest",
        faults: dict[tuple[Operation, int], Fault] | None = None,
        on_put: Callable[[str], object] = lambda key: None,
        retry_after_s: float = 7.0,
    ) -> None:
        self.objects: dict[str, bytes] = {}
        self.reserved: set[str] = set()
        self.faults = dict(faults or {})
        self.requests: dict[Operation, int] = {"put": 0, "get": 0, "first": 0, "keys": 0}
        self.retry_after_s = retry_after_s
        self._lists = lists
        self._order = order
        self._on_put = on_put
        self._lock = threading.Lock()

    def put(self, key: str, data: bytes, *, timeout_s: float, drop: Collection[str] = ()) -> Put:
        self._on_put(key)
        with self._lock:
            match self._fault("put"):
                case Fault.APPLIED:
                    self._write(key, data)
                    return Unavailable("the connection was closed before an answer came")
                case Fault.LOST:
                    return Unavailable("the connection was closed before an answer came")
                case Fault.REFUSED:
                    return Unavailable("503 Service Unavailable", is_doubtful=False)
                case Fault.RESERVED:
                    self.reserved.add(key)
                    return Unavailable("the upload did not end")
                case Fault.TAKEN:
                    self._write(key, b"of somebody else")
                case Fault.RATE_LIMITED:
                    return RateLimited(self.retry_after_s)
                case Fault.DENIED:
                    return Denied("the token has no writable scopes", "cache-mode: write")
                case _:
                    pass
            if not self._write(key, data):
                return Exists(key)
            for gone in drop:
                self.objects.pop(gone, None)
            return Stored(key, len(data))

    def get(self, key: str, *, timeout_s: float) -> bytes | None:
        with self._lock:
            fault, data = self._fault("get"), self.objects.get(key)
            self._refuse(fault)
            match fault:
                case Fault.GONE:
                    return None
                case Fault.CUT if data is not None:
                    return data[: len(data) // 2]
                case Fault.FLIPPED if data is not None:
                    return data[:-1] + bytes([data[-1] ^ 1])
                case Fault.SWAPPED:
                    return next((other for name, other in self.objects.items() if name != key), data)
                case _:
                    return data

    def first(self, prefixes: Sequence[str], *, timeout_s: float) -> str | None:
        with self._lock:
            self._refuse(self._fault("first"))
            for prefix in prefixes:
                found = [key for key in self.objects if key.startswith(prefix)]
                if found:
                    return {"highest": max(found), "newest": found[-1], "oldest": found[0]}[self._order]
            return None

    def keys(self, prefix: str, *, timeout_s: float) -> list[str] | None:
        with self._lock:
            self._refuse(self._fault("keys"))
            return sorted(key for key in self.objects if key.startswith(prefix)) if self._lists else None

    def lineages(self, *, timeout_s: float) -> list[str] | None:
        with self._lock:
            self._refuse(self._fault("keys"))
            return sorted({key.split("/")[1] for key in self.objects}) if self._lists else None

    def _write(self, key: str, data: bytes) -> bool:
        if key in self.objects or key in self.reserved:
            return False
        self.objects[key] = data
        return True

    def _fault(self, operation: Operation) -> Fault | None:
        position = self.requests[operation]
        self.requests[operation] += 1
        return self.faults.get((operation, position))

    def _refuse(self, fault: Fault | None) -> None:
        if fault is Fault.UNREADABLE:
            raise StoreUnreadable("The store could not be asked.")
