"""Epochs: each attempt has a number of its own, higher than all before it, and whoever sees a higher one stops.

A number is claimed by storing a key that was not there, so that of two attempts only one can have it. It is claimed
before anything is looked for: what an earlier attempt ships afterwards, it ships before it looks at this claim, and
therefore does not act on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from endstate_action.state.keys import (
    MAX_EPOCH,
    CheckpointKey,
    checkpoints_prefix,
    claim_key,
    claimed_epoch,
    claims_prefix,
)
from endstate_action.state.search import Numbering, covering, foreign, highest
from endstate_action.state.stores.base import Denied, Exists, RateLimited, Store, Stored, StoreUnreadable, Unavailable

REQUEST_S = 20.0
MAX_DOUBTS = 4
"""After so many numbers that may be taken or not, the store is not to be relied on."""

_PAUSE_S = 1.0


@dataclass(frozen=True, slots=True)
class Claimed:
    """`epoch` is this attempt's and nobody else's."""

    epoch: int


@dataclass(frozen=True, slots=True)
class NotClaimed:
    """No number is this attempt's, so nothing may be shipped or sent under one."""

    why: Literal["denied", "rate_limited", "unavailable", "used_up"]
    reason: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Held:
    """No attempt has a higher number: what was shipped before this was asked may be acted on."""


@dataclass(frozen=True, slots=True)
class TakenOver:
    """The attempt with this number has taken over; nothing may be sent any more."""

    epoch: int


Fence = Held | TakenOver


def claim(
    store: Store,
    lineage: str,
    payload: bytes,
    *,
    above: int = 0,
    deadline_s: float = 60.0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Claimed | NotClaimed:
    """The next epoch, higher than any that was ever claimed, than that of any checkpoint, and than `above`.

    Args:
        payload: stored as it is, readable by everybody: it must hold no secret.
        above: what is known from elsewhere to be taken (the session on this machine).
        deadline_s: how long the store may take, all in all.

    Raises:
        StoreUnreadable: what was claimed before could not be asked.
    """
    until = clock() + deadline_s
    taken = highest_taken(store, lineage, above, timeout_s=min(REQUEST_S, deadline_s))
    epoch, doubts = max(above, taken.epoch if taken else 0) + 1, 0
    outcome = NotClaimed("unavailable", "the store did not answer in time")
    while epoch <= MAX_EPOCH:
        left_s = until - clock()
        if left_s <= 0:
            return outcome
        match store.put(claim_key(lineage, epoch), payload, timeout_s=min(REQUEST_S, left_s)):
            case Stored():
                return Claimed(epoch)
            case Exists():
                epoch += 1
            case Denied(reason, remedy):
                return NotClaimed("denied", reason, remedy)
            case RateLimited(retry_after_s):
                outcome = NotClaimed("rate_limited", f"the store wants us to wait {retry_after_s:g} s")
                if retry_after_s > until - clock():
                    return outcome
                sleep(max(retry_after_s, _PAUSE_S))
            case Unavailable(reason, is_doubtful):
                outcome = NotClaimed("unavailable", reason)
                # A number that may be taken is burned: asked for again, our own claim could not be told from another's,
                # and one that came late would be there beside a later one.
                epoch, doubts = epoch + is_doubtful, doubts + is_doubtful
                if doubts >= MAX_DOUBTS:
                    return outcome
                sleep(min(_PAUSE_S, max(0.0, until - clock())))
    return NotClaimed(
        "used_up",
        f"it has {taken.key if taken else claim_key(lineage, MAX_EPOCH)}, and there is no number above {MAX_EPOCH}",
        "No task comes that far by itself. Delete that object from the store, and all others above the attempts that "
        "you know of; or begin a new task, by a new run of the workflow or `endstate run` without --resume.",
    )


@dataclass(frozen=True, slots=True)
class Taken:
    """A number that no attempt may claim any more, and the key that says so."""

    epoch: int
    key: str


def highest_taken(store: Store, lineage: str, above: int = 0, *, timeout_s: float = REQUEST_S) -> Taken | None:
    """The highest epoch after `above` that has a claim or a checkpoint; None where there is none.

    A store may have let go of a claim, the oldest object of its attempt, and still have what was shipped under it.
    Claimed again, that number would hide the checkpoints of higher ones, and make new ones older than those it has.

    Raises:
        StoreUnreadable: nothing is known.
    """
    epoch = highest_above(store, lineage, above, timeout_s=timeout_s)
    taken = None if epoch is None else Taken(epoch, claim_key(lineage, epoch))
    above = above if epoch is None else epoch
    names = store.keys(checkpoints_prefix(lineage), timeout_s=timeout_s)
    if names is None:
        name = highest(store, _shipped(lineage), above=above, timeout_s=timeout_s)
        names = [] if name is None else [name]
    newest = max(filter(None, map(CheckpointKey.parse, names)), default=None)
    return Taken(newest.epoch, str(newest)) if newest and newest.epoch > above else taken


def highest_above(store: Store, lineage: str, mine: int, *, timeout_s: float = REQUEST_S) -> int | None:
    """The highest epoch claimed after `mine`; None where there is none.

    Raises:
        StoreUnreadable: nothing is known.
    """
    key = highest(store, _claims(lineage), above=mine, timeout_s=timeout_s)
    return None if key is None else claimed_epoch(key)


def fence(store: Store, lineage: str, mine: int, *, timeout_s: float = REQUEST_S) -> Fence:
    """Whether any attempt has a higher number than `mine`, which must have been claimed here. One request.

    Raises:
        StoreUnreadable: nothing is known, so nothing may be sent.
    """
    numbering = _claims(lineage)
    prefixes = [numbering.prefix(digits) for digits in covering(numbering.digits, mine, numbering.end)]
    # Besides what is higher, any claim is asked for: a store that does not show even ours may hide others as well.
    key = store.first([*prefixes, claims_prefix(lineage)], timeout_s=timeout_s)
    epoch = None if key is None else numbering.number(key)
    if key is not None and epoch is None:
        raise foreign(store, key)
    if epoch is None:
        raise StoreUnreadable(
            f"The store {store.name} does not show the claim of this attempt ({mine}), so whether another has taken "
            "over is not known. Nothing was sent.",
            hint="Run the job again: a new attempt claims a number of its own and goes on from the newest checkpoint.",
        )
    return TakenOver(epoch) if epoch > mine else Held()


def _claims(lineage: str) -> Numbering:
    root = claims_prefix(lineage)
    return Numbering(4, lambda digits: root + digits, lambda key: claimed_epoch(key) if key.startswith(root) else None)


def _shipped(lineage: str) -> Numbering:
    root = checkpoints_prefix(lineage)

    def epoch(name: str) -> int | None:
        key = CheckpointKey.parse(name)
        return key.epoch if key and key.lineage == lineage else None

    return Numbering(4, lambda digits: root + digits, epoch)
