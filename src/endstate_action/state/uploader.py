"""Checkpoints on their way to a store, while the agent works.

The loop says that something is recorded and goes on; one upload at a time is in flight, and what was recorded
meanwhile goes with the next. Only at a barrier the loop waits, and then for an upload of its own, so that a slow one
before it does not count. A number that was given to an upload is never given again, whatever became of it.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from endstate_action.errors import EndstateError
from endstate_action.state.checkpoint.build import Built, SecretInside
from endstate_action.state.stores.base import (
    Denied,
    Exists,
    Put,
    RateLimited,
    Store,
    Stored,
    StoreUnreadable,
    Unavailable,
)

UPLOAD_TIMEOUT_S = 120.0
"""For an upload that nobody waits for."""
BARRIER_S = 60.0
"""So long a barrier tries; then the effect does not happen."""
TRY_S = 20.0
"""So long one upload may take, and longer the more there is to send. A connection that has gone silent must not use up
the time of who waits: the next one has a new one."""
SLOWEST_BYTES_S = 256 * 1024
FOOTPRINT_BYTES = 256 * 1024 * 1024
"""What the periodic checkpoints of one attempt may take in a store; more would push out what others keep there."""
MOST_BYTES = 4 * FOOTPRINT_BYTES
"""And all of them: a result must not be lost to what was stored while it was worked on."""
_WAIT_S = 0.05
_BACK_OFF_S = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
_BREATHER = 1.0
"""Between two periodic uploads at least so many times as long as the last one took."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How far periodic uploads are apart: `first_s` at the beginning, each `growth` times the one before."""

    first_s: float = 0.0
    growth: float = 1.0
    at_most: int | None = None

    def wait_s(self, done: int) -> float | None:
        """Seconds after the periodic upload number `done`, from 0; None where there are to be no more."""
        if self.at_most is not None and done + 1 >= self.at_most:
            return None
        return self.first_s * self.growth**done


EAGER = Pace()
CACHE_PACE = Pace(first_s=2.0, growth=1.03, at_most=200)
"""200 entries then reach over almost seven hours."""
REMOTE_PACE = Pace(first_s=5.0, growth=1.01)


class Building(Protocol):
    """Makes checkpoints of what is recorded. Used by one thread at a time."""

    def build(self, sequence: int) -> Built:
        """Raises: EndstateError: none can be made, or it may not leave the machine."""
        ...

    def done(self, sequence: int, outputs: Mapping[str, Any]) -> Built:
        """What a finished and delivered session leaves behind. Raises: EndstateError."""
        ...

    def confirmed(self, built: Built) -> Collection[str]:
        """Told that it is stored; returns the keys that nothing needs any more."""
        ...


@dataclass(frozen=True, slots=True)
class Shipped:
    """The newest checkpoint that is known to be stored. `at` is when it was built, by `time.time`."""

    key: str
    records: int
    size: int
    at: float

    @property
    def age_s(self) -> int:
        return max(0, int(time.time() - self.at))


@dataclass(frozen=True, slots=True)
class NotShipped:
    """Why what is recorded has not left the machine.

    Args:
        is_final: trying again will not help.
        may_pass: unless somebody does something about it meanwhile, for which nobody waits.
        is_lost: what was stored before is gone as well.
        is_ours: it is not the store but what is recorded: trying again helps once that has changed.
        has_secret: and that is a secret in it, which no other machine would find otherwise.
        wait_s: the store wants to be left alone for so long.
    """

    reason: str
    remedy: str = ""
    is_final: bool = False
    may_pass: bool = False
    is_lost: bool = False
    is_ours: bool = False
    has_secret: bool = False
    wait_s: float = 0.0


class Uploader:
    """Ships what `building` makes into `store`. A daemon thread does what nobody waits for.

    Args:
        records: how many records there are now.
        pace: how far periodic uploads are apart.
        earlier: asks the store how many there were in earlier attempts, which count as well.
    """

    def __init__(
        self,
        building: Building,
        store: Store,
        records: Callable[[], int],
        *,
        pace: Pace = EAGER,
        earlier: Callable[[], int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._building = building
        self._store = store
        self._records = records
        self._pace = pace
        self._earlier = earlier if pace != EAGER else None
        self._clock = clock
        self._changed = threading.Condition()
        self._build_lock = threading.Lock()
        self._sequence = 0
        self._periodic = 0
        self._sizes: dict[str, int] = {}
        """Of what this attempt has in the store."""
        self._superfluous: set[str] = set()
        self._next_at = 0.0
        self._not_before = -math.inf
        self._is_wanted = False
        self._is_urgent = False
        self._is_closed = False
        self._newest: Shipped | None = None
        self._problem: NotShipped | None = None
        self._thread: threading.Thread | None = None

    @property
    def newest(self) -> Shipped | None:
        """The newest checkpoint that is known to be stored."""
        return self._newest

    @property
    def problem(self) -> NotShipped | None:
        """Why the last upload failed; None where it did not."""
        return self._problem

    def offer(self, *, urgent: bool = False) -> None:
        """Something new is recorded. With `urgent`, it does not wait for its turn. Returns at once."""
        with self._changed:
            self._is_wanted = True
            self._is_urgent = self._is_urgent or urgent
            if self._thread is None and not self._is_closed:
                self._thread = threading.Thread(target=self._work, name="endstate-uploader", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def ship(self, timeout_s: float, check: Callable[[], None] = lambda: None) -> Shipped | NotShipped:
        """Ship all that is recorded now, and wait until it is stored.

        Args:
            check: called while waiting; what it raises ends the wait, not the upload.
        """
        wanted = self._records()
        deadline = self._clock() + timeout_s
        if self._newest is not None and self._newest.records >= wanted:
            return self._newest
        errand = _Errand(lambda: self._ship_until(wanted, deadline))
        errand.start()
        while not errand.done.wait(_WAIT_S):
            check()
            if self._clock() >= deadline:
                return self._problem or NotShipped(f"the store did not answer within {timeout_s:.0f} s")
        return errand.outcome()

    def conclude(self, outputs: Mapping[str, Any], timeout_s: float) -> Shipped | NotShipped:
        """Leave the *done* object behind, in whose place a store that holds little keeps nothing else."""
        try:
            with self._build_lock:
                self._sequence += 1
                built, at = self._building.done(self._sequence, outputs), time.time()
                drop = set(self._superfluous)
                if self._store.name == "git-ref" and self._newest:
                    drop |= self._sizes.keys()
        except EndstateError as error:
            return self._failed(NotShipped(str(error), error.hint))
        answer = self._store.put(built.key, built.data, timeout_s=timeout_s, drop=drop)
        return self._stored(built, at, drop) if isinstance(answer, Stored) else self._failed(_why(answer))

    def close(self) -> None:
        """No further periodic uploads; one that is in flight is left to itself."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    # What the threads do

    def _work(self) -> None:
        while self._wait_for_turn():
            began = self._clock()
            with self._changed:
                is_periodic = not self._is_urgent
                self._is_wanted = self._is_urgent = False
            if is_periodic and (self._were_all_used() or self._is_full()):
                with self._changed:
                    self._next_at = math.inf
                continue
            outcome = self._try(UPLOAD_TIMEOUT_S)
            took = self._clock() - began
            with self._changed:
                pause = self._pause_after(outcome, took, is_periodic=is_periodic)
                if pause is None:
                    return
                self._next_at = self._clock() + pause
                self._is_wanted = self._is_wanted or isinstance(outcome, NotShipped)

    def _were_all_used(self) -> bool:
        """Whether earlier attempts have left no periodic upload; they are counted once, here, where nobody waits."""
        if self._earlier is None:
            return False
        # A store that cannot be asked now is asked again the next time.
        with suppress(StoreUnreadable):
            self._periodic, self._earlier = self._periodic + self._earlier(), None
        return self._pace.at_most is not None and self._periodic >= self._pace.at_most

    def _is_full(self) -> bool:
        """Whether another one like the last would leave no room for those that somebody waits for."""
        with self._build_lock:
            last = self._newest.size if self._newest else 0
            return sum(self._sizes.values()) + last > FOOTPRINT_BYTES

    def _wait_for_turn(self) -> bool:
        """Wait for something to ship and for its time; False once there is to be no more."""
        with self._changed:
            while not self._is_closed:
                left = self._next_at - self._clock()
                if self._is_wanted and (left <= 0 or self._is_urgent):
                    return True
                self._changed.wait(max(left, 0.001) if self._is_wanted and left < math.inf else None)
        return False

    def _pause_after(self, outcome: Shipped | NotShipped, took_s: float, *, is_periodic: bool) -> float | None:
        """Seconds until the next one that is not urgent; None where there will be none at all."""
        if isinstance(outcome, NotShipped):
            is_over = outcome.is_final and not outcome.may_pass
            return None if is_over else max(_BACK_OFF_S[-1], outcome.wait_s, took_s)
        wait = self._pace.wait_s(self._periodic)
        self._periodic += is_periodic
        # What is urgent is exempt from their number.
        return math.inf if wait is None else max(wait, _BREATHER * took_s)

    def _ship_until(self, wanted: int, deadline: float) -> Shipped | NotShipped:
        attempt = 0
        while True:
            outcome = self._try(max(1.0, deadline - self._clock()))
            # Nothing is recorded while somebody waits, so what lies in that stays as it is.
            if isinstance(outcome, Shipped) or outcome.is_final or outcome.is_ours:
                return outcome
            pause = max(_BACK_OFF_S[min(attempt, len(_BACK_OFF_S) - 1)], outcome.wait_s)
            attempt += 1
            if self._clock() + pause >= deadline:
                return outcome
            time.sleep(pause)

    def _try(self, timeout_s: float) -> Shipped | NotShipped:
        """Build and put once."""
        left_s = self._not_before - self._clock()
        if left_s > 0:
            return self._failed(_why(RateLimited(left_s)))
        try:
            with self._build_lock:
                records, at = self._records(), time.time()
                if self._newest is not None and self._newest.records >= records:
                    return self._newest
                self._sequence += 1
                built = self._building.build(self._sequence)
                drop = frozenset(self._superfluous)
        except EndstateError as error:
            has_secret = isinstance(error, SecretInside)
            return self._failed(NotShipped(str(error), error.hint, is_ours=True, has_secret=has_secret))
        if sum(self._sizes.values()) + len(built.data) > MOST_BYTES:
            return self._failed(
                NotShipped(f"the checkpoints of this attempt would take over {MOST_BYTES >> 20} MB", is_final=True)
            )
        may_take_s = min(timeout_s, TRY_S + len(built.data) / SLOWEST_BYTES_S)
        answer = self._store.put(built.key, built.data, timeout_s=may_take_s, drop=drop)
        if isinstance(answer, RateLimited):
            self._not_before = self._clock() + answer.retry_after_s
        if not isinstance(answer, Stored):
            return self._failed(_why(answer))
        return self._stored(built, at, drop)

    def _stored(self, built: Built, at: float, dropped: Collection[str]) -> Shipped:
        with self._build_lock:
            self._sizes[built.key] = len(built.data)
            if self._store.deletes:
                self._sizes = {key: size for key, size in self._sizes.items() if key not in dropped}
            self._superfluous |= set(self._building.confirmed(built))
            self._superfluous -= set(dropped)
            shipped = Shipped(built.key, built.records, len(built.data), at)
            # An upload that was overtaken has nothing new to say.
            if self._newest is None or built.key > self._newest.key:
                self._newest = shipped
            self._problem = None
            return shipped

    def _failed(self, problem: NotShipped) -> NotShipped:
        if problem.is_lost:
            self._newest = None
        self._problem = problem
        return problem


class _Errand(threading.Thread):
    """One upload that somebody waits for."""

    def __init__(self, errand: Callable[[], Shipped | NotShipped]) -> None:
        super().__init__(name="endstate-barrier", daemon=True)
        self._errand = errand
        self._outcome: Shipped | NotShipped | None = None
        self._error: BaseException | None = None
        self.done = threading.Event()

    def run(self) -> None:
        try:
            self._outcome = self._errand()
        except BaseException as error:  # noqa: BLE001  raised again where it is waited for
            self._error = error
        finally:
            self.done.set()

    def outcome(self) -> Shipped | NotShipped:
        if self._outcome is None:
            raise self._error or RuntimeError("an upload ended without an outcome")
        return self._outcome


def _why(answer: Put) -> NotShipped:
    match answer:
        case Denied(reason, remedy, may_pass, is_lost):
            return NotShipped(reason, remedy, is_final=True, may_pass=may_pass, is_lost=is_lost)
        case RateLimited(seconds):
            return NotShipped(f"the store asks to wait {seconds:.0f} s", wait_s=seconds)
        case Unavailable(reason):
            return NotShipped(reason)
        case Exists(key):
            return NotShipped(f"the name {key} was taken already")
        case Stored():
            raise AssertionError("it was stored")
