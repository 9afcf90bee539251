"""One attempt's shipments, as the loop asks for them: checkpoints out, and no effect without them.

The order at a barrier is the promise: first the start is stored off the machine, then the fence is read, then the
effect may happen. Any other order could do a thing twice.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from endstate_action.effects import EffectClass
from endstate_action.errors import InputError, ProviderUnavailable, Superseded
from endstate_action.state.fold import State
from endstate_action.state.keys import CheckpointKey, epoch_prefix
from endstate_action.state.stores.base import Store, StoreUnreadable
from endstate_action.state.uploader import BARRIER_S, NotShipped, Shipped, Uploader

FIRST_S = 60.0
LAST_S = 60.0
REQUEST_S = 20.0
LAST_ON_SIGNAL_S = 5.0
"""A runner that goes away gives ten seconds, all in all."""
_LOOK_AGAIN_S = 2.0
_LOOK_EVERY_S = 30.0
"""What an attempt that was taken over may still spend on the model, at most."""


@dataclass(frozen=True, slots=True)
class Departed:
    """Event: what is known of the newest checkpoint. `store` is `none` where nothing has left the machine."""

    store: str
    shipped: Shipped | None
    problem: NotShipped | None = None
    is_first: bool = False
    """Whether it is the first of this attempt."""
    is_expected: bool = False
    """Whether nobody can have expected anything else: no store was named, and this is no job."""
    is_near: bool = False
    """Whether the store is on the workspace's own disk."""

    @property
    def survives(self) -> str:
        """What a run survives by what is stored, as far as that is known; empty where nothing is."""
        if self.shipped is None:
            return ""
        if self.is_near:
            return "this run survives the loss of its workspace, not of the disk that both are on"
        return f"this run survives the loss of this machine{' if that disk does' if self.store == 'dir' else ''}"


class Shipper:
    """Keeps the promises of `agent.shipping.Shipping` with one store.

    Args:
        fence: the number of a newer attempt, if there is one; raises `StoreUnreadable`.
        is_required: whether it is an error that nothing can be stored.
        is_chosen: whether a person named the store; else one that denies us is as good as none.
        is_near: whether the store is on the workspace's own disk.
        may_be_known: whether an earlier attempt may have stored something of this session.
        tell: told of the first checkpoint, or why there is none.
        check: raises when this attempt was asked to stop.
    """

    def __init__(
        self,
        uploader: Uploader,
        store: str,
        fence: Callable[[], int | None],
        *,
        is_required: bool = False,
        is_chosen: bool = True,
        is_near: bool = False,
        may_be_known: bool = True,
        tell: Callable[[Departed], None] = lambda departed: None,
        check: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._uploader = uploader
        self._store = store
        self._fence = fence
        self._is_required = is_required
        self._is_chosen = is_chosen
        self._is_near = is_near
        self._may_be_known = may_be_known
        self._tell = tell
        self._check = check
        self._clock = clock
        self._is_off = False
        self._is_in_trouble = False
        self._looked = -math.inf

    @property
    def departed(self) -> Departed:
        newest = self._uploader.newest
        return Departed(self._store if newest else "none", newest, self._uploader.problem, is_near=self._is_near)

    @property
    def is_unfit(self) -> bool:
        """Whether what is recorded may not leave the machine as it is, whatever the store does."""
        problem = self._uploader.problem
        return problem is not None and problem.has_secret

    def begin(self) -> None:
        outcome = self._uploader.ship(FIRST_S, self._check)
        if isinstance(outcome, NotShipped):
            if self._is_required:
                raise _not_durable(outcome)
            self._is_off = outcome.is_final and not self._is_chosen
        self._tell(replace(self.departed, is_first=True))

    def offer(self) -> None:
        if not self._is_off:
            self._uploader.offer()
            self._tell_trouble()

    def look(self) -> None:
        if not self._is_off and self._clock() - self._looked >= _LOOK_EVERY_S:
            self.refuse_superseded()

    def soon(self) -> None:
        if not self._is_off:
            self._uploader.offer(urgent=True)

    def barrier(self) -> str | None:
        if self._is_off:
            return None
        deadline = self._clock() + BARRIER_S
        outcome = self._uploader.ship(BARRIER_S, self._check)
        if not isinstance(outcome, NotShipped):
            self._tell(self.departed)
        elif not self._goes_without:
            self._tell_trouble()
            return f"it could not be made safe that it happens only once, since {outcome.reason}"
        return self._pass_fence(deadline)

    def start(self) -> str | None:
        if self._is_off:
            return None
        outcome = self._uploader.ship(BARRIER_S, self._check)
        if isinstance(outcome, NotShipped) and not self._goes_without:
            return f"it may have ended an earlier attempt, and its start could not be stored, since {outcome.reason}"
        return None

    def end(self, timeout_s: float = LAST_S) -> Departed:
        """The last checkpoint of this attempt; what is recorded after it stays here."""
        if not self._is_off:
            self._uploader.close()
            self._uploader.ship(timeout_s)
        return self.departed

    def conclude(self, outputs: Mapping[str, Any]) -> None:
        """Leave word that the task is finished and delivered, for who runs it again."""
        if not self._is_off:
            self._uploader.close()
            self._uploader.conclude(outputs, LAST_S)

    def refuse_superseded(self) -> None:
        """Raises: Superseded: there is a newer attempt. What cannot be read says nothing."""
        self._looked = self._clock()
        try:
            newer = self._fence()
        except StoreUnreadable:
            return
        if newer is not None:
            raise _superseded(newer)

    @property
    def _goes_without(self) -> bool:
        """Whether this is as if there were no store: nothing could leave from the start, which was said then."""
        return self.is_unfit and self._uploader.newest is None and not self._may_be_known

    def _tell_trouble(self) -> None:
        """Once for each time that a store stops taking them: until then all that was told of is what was stored."""
        problem = self._uploader.problem
        is_in_trouble = problem is not None and (self._uploader.newest is not None or problem.is_lost)
        if is_in_trouble and not self._is_in_trouble:
            self._tell(self.departed)
        self._is_in_trouble = is_in_trouble

    def _pass_fence(self, deadline: float) -> str | None:
        while True:
            try:
                newer = self._fence()
            except StoreUnreadable as error:
                if self._clock() + _LOOK_AGAIN_S >= deadline:
                    return f"nobody can tell whether a newer attempt has taken over ({error})"
                self._wait(_LOOK_AGAIN_S)
                continue
            if newer is not None:
                raise _superseded(newer)
            return None

    def _wait(self, seconds: float) -> None:
        until = self._clock() + seconds
        while self._clock() < until:
            self._check()
            time.sleep(0.05)


def periodic_before(store: Store, lineage: str, state: State, epoch: int) -> Callable[[], int]:
    """Asks how many periodic checkpoints the earlier attempts of a session have stored; it may be called in any thread.

    The number of an attempt's newest one tells how many it stored, and the journal which of them had another reason
    for certain: the first, and those at barriers and counted starts.
    """
    others = {attempt.epoch: 1 for attempt in state.attempts if attempt.epoch < epoch}
    for started in (started for starts in state.started.values() for started in starts if started.epoch in others):
        is_counted = started.epoch > 1 and started.effect is EffectClass.CONTAINED
        others[started.epoch] += started.effect.is_outside or is_counted

    def ask() -> int:
        names = {one: store.first([epoch_prefix(lineage, one)], timeout_s=REQUEST_S) for one in others}
        keys = {one: CheckpointKey.parse(name) for one, name in names.items() if name is not None}
        return sum(max(0, key.sequence - others[one]) for one, key in keys.items() if key is not None)

    return ask


def _superseded(newer: int) -> Superseded:
    return Superseded(
        f"Attempt {newer} of this session has taken over, so this one stopped. It started no further call and "
        "announces nothing.",
        hint="Follow the newer attempt.",
    )


def _not_durable(outcome: NotShipped) -> InputError | ProviderUnavailable:
    said = f"Checkpoints cannot leave this machine: {outcome.reason}. With require-durable, nothing was run or spent."
    if outcome.is_final or outcome.has_secret:
        return InputError(said, hint=outcome.remedy or "Name another store, or do without --require-durable.")
    return ProviderUnavailable(said, hint=outcome.remedy or "Try again when the store can be reached.")
