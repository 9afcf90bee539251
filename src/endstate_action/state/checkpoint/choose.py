"""Which state a run goes on from: the newest that opens, never silently below what the world has seen.

`choose` is pure and total: it is given what is here, what the store has, and how many outside effects the world has
seen, and returns one of a few values. Looking into the store (`look`) and saying no (`refusal`) are apart from it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from endstate_action.errors import EndstateError, Mismatch, NewerFormat, OutcomeUnknown, UnknownSession
from endstate_action.state.checkpoint.read import Expected, Kind, Opened, Rejected, open_checkpoint
from endstate_action.state.keys import MAX_EPOCH, MAX_SEQUENCE, CheckpointKey, checkpoints_prefix
from endstate_action.state.seal import Key
from endstate_action.state.search import Numbering, highest
from endstate_action.state.stores.base import Store

FALLBACKS = 20
"""So many checkpoints are tried however long that takes."""
LOOK_S = 120.0
"""So long further ones are tried before a person has to look: who can write names can write any number of them."""

REQUEST_S = 20.0


@dataclass(frozen=True, slots=True)
class Usable:
    """A checkpoint that opened. `is_done`: it has the outputs of a finished session, and nothing to go on from."""

    records: int
    is_done: bool = False


@dataclass(frozen=True, slots=True)
class Unusable:
    kind: Kind
    reason: str


@dataclass(frozen=True, slots=True)
class Seen:
    """A checkpoint in the store, and what became of opening it; None where only its name was looked at."""

    key: CheckpointKey
    found: Usable | Unusable | None = None


@dataclass(frozen=True, slots=True)
class Local:
    """The session on this machine. `effects` as the key of its newest checkpoint would have it."""

    epoch: int
    records: int
    effects: int


@dataclass(frozen=True, slots=True)
class UseStored:
    key: CheckpointKey
    set_aside: tuple[Seen, ...] = ()
    """Newer ones that are of no use."""


@dataclass(frozen=True, slots=True)
class UseLocal:
    set_aside: tuple[Seen, ...] = ()


@dataclass(frozen=True, slots=True)
class AlreadyDone:
    """The session is finished and delivered; `key` has its outputs."""

    key: CheckpointKey
    before: CheckpointKey | None = None
    """The newest checkpoint from which a new task could go on, if it was looked for."""


@dataclass(frozen=True, slots=True)
class NoneFound:
    """There is nothing, and nothing tells that there ever was."""


@dataclass(frozen=True, slots=True)
class NotOurs:
    set_aside: tuple[Seen, ...]


@dataclass(frozen=True, slots=True)
class NoneOpens:
    """There are checkpoints, and none opens with this key: that is not the same as there being none."""

    set_aside: tuple[Seen, ...]


@dataclass(frozen=True, slots=True)
class Damaged:
    set_aside: tuple[Seen, ...]


@dataclass(frozen=True, slots=True)
class NotAllTried:
    """So many do not open that there was no time for older ones, of which one may."""

    set_aside: tuple[Seen, ...]


@dataclass(frozen=True, slots=True)
class Newer:
    """A newer release wrote a newer state than any that could be used."""

    seen: Seen


@dataclass(frozen=True, slots=True)
class Gap:
    """More outside effects were started than any usable state knows of. `otherwise` is what would be used."""

    known: int
    started: int
    otherwise: UseStored | UseLocal | AlreadyDone | NoneFound

    @property
    def accepted(self) -> str:
        """What is said where a run goes on all the same."""
        return (
            f"{self.started} effects outside the workspace were started and {self.known} are known; the run goes on "
            "without knowing what came of the others."
        )


Choice = UseStored | UseLocal | AlreadyDone | NoneFound | NotOurs | NoneOpens | Damaged | NotAllTried | Newer | Gap


def choose(local: Local | None, found: Sequence[Seen], witness: int) -> Choice:
    """What to go on from.

    Args:
        found: in any order; those that are older than a usable one need not have been opened.
        witness: the number of outside effects that is known from elsewhere (the sticky comment's marker).
    """
    ordered = sorted(found, key=lambda seen: seen.key, reverse=True)
    stored = _first_usable(ordered)
    use, known, above = _newest(local, stored, ordered)
    # A newer release may have finished what an older state would repeat, and its journal says how; ours cannot tell.
    newer = next((seen for seen in above if _kind(seen) == "newer_format"), None)
    if newer:
        return Newer(newer)
    # With entries of which none opens, a new session would do everything again beside a trail that is there; and what
    # was not tried may be newer than what is here.
    if (use == NoneFound() and ordered) or any(seen.found is None for seen in above):
        return _none_usable(tuple(ordered))
    # A name can be read where its content cannot, so it tells of effects that the usable state knows nothing of. One
    # from before the epoch of a chosen checkpoint does not: what that attempt did it had shipped before that epoch was
    # claimed, so that it was seen then; what it shipped later it did not do, since the fence was in its way.
    since = _epoch_of(use, local)
    telling = [seen.key.effects for seen in ordered if seen.key.epoch >= since or isinstance(use, UseLocal)]
    started = max([witness, *telling, known + _started_after(ordered, since)])
    return Gap(known, started, use) if known < started else use


def _epoch_of(use: UseStored | UseLocal | AlreadyDone | NoneFound, local: Local | None) -> int:
    match use:
        case UseStored(key) | AlreadyDone(key):
            return key.epoch
        case _:
            return local.epoch if local else 0


def _started_after(ordered: Sequence[Seen], epoch: int) -> int:
    """How many effects a later attempt has started for certain: its names differ by them, whatever it began with."""
    later = [seen.key for seen in ordered if seen.key.epoch > epoch]
    counts = [[key.effects for key in later if key.epoch == one] for one in {key.epoch for key in later}]
    return max((max(effects) - min(effects) for effects in counts), default=0)


def _newest(
    local: Local | None, stored: tuple[CheckpointKey, Usable] | None, ordered: Sequence[Seen]
) -> tuple[UseStored | UseLocal | AlreadyDone | NoneFound, int, tuple[Seen, ...]]:
    """The newest usable state, how many effects it knows of, and what is newer than it and of no use."""
    key, usable = stored or (None, None)
    # At a tie they are the same state, and the one that is here needs no restore. What an earlier epoch left on this
    # machine is not newer for being here: the attempt that followed went on elsewhere.
    if local and (key is None or usable is None or (local.epoch, local.records) >= (key.epoch, usable.records)):
        # What this machine shipped it had recorded before, so nothing of its own epoch is newer than the journal.
        above = tuple(seen for seen in ordered if seen.key.epoch > local.epoch)
        return UseLocal(above), local.effects, above
    if key is None or usable is None:
        return NoneFound(), 0, tuple(ordered)
    above = tuple(seen for seen in ordered if seen.key > key)
    if usable.is_done:
        before = _first_usable([seen for seen in ordered if seen.key < key], done=False)
        return AlreadyDone(key, before[0] if before else None), key.effects, above
    return UseStored(key, above), key.effects, above


def _none_usable(seen: tuple[Seen, ...]) -> NoneOpens | NotOurs | Damaged | NotAllTried:
    kinds = {_kind(one) for one in seen}
    # A key can be put right where it is kept, and nothing else can be: so it comes first.
    if "other_key" in kinds:
        return NoneOpens(seen)
    if any(one.found is None for one in seen):
        return NotAllTried(seen)
    return NotOurs(seen) if "not_ours" in kinds else Damaged(seen)


def _first_usable(ordered: Sequence[Seen], *, done: bool = True) -> tuple[CheckpointKey, Usable] | None:
    return next(
        ((one.key, one.found) for one in ordered if isinstance(one.found, Usable) and (done or not one.found.is_done)),
        None,
    )


def _kind(seen: Seen) -> Kind | Literal[""]:
    return seen.found.kind if isinstance(seen.found, Unusable) else ""


@dataclass(frozen=True, slots=True)
class Looked:
    """What a store has, and the content of what opened."""

    seen: tuple[Seen, ...]
    opened: Mapping[CheckpointKey, Opened] = field(default_factory=dict)


def look(
    store: Store,
    sealing: Key,
    expected: Expected,
    *,
    up_to: int = MAX_EPOCH,
    past_done: bool = False,
    timeout_s: float = REQUEST_S,
    clock: Callable[[], float] = time.monotonic,
) -> Looked:
    """Open checkpoints from the newest on, until one is of use.

    What does not open hides none that does, as long as there is time.

    Args:
        up_to: the epoch that this attempt has claimed; higher ones are those of who comes after.
        past_done: whether a finished session is to be continued with a new task, which its *done* object cannot.
        timeout_s: for each question; a download may take longer.

    Raises:
        StoreUnreadable: the store could not be asked, so what is newest is not known.
    """
    listed = _listed(store, expected.lineage, up_to, timeout_s)
    keys = iter(listed) if listed is not None else downward(store, expected.lineage, up_to, timeout_s)
    seen: list[Seen] = []
    untried: list[CheckpointKey] = []
    opened: dict[CheckpointKey, Opened] = {}
    until = clock() + LOOK_S
    for key in keys:
        if len(seen) >= FALLBACKS and clock() >= until:
            untried = [key]
            break
        result = open_checkpoint(store, key, sealing, expected)
        if isinstance(result, Rejected):
            seen.append(Seen(key, Unusable(result.kind, result.reason)))
            continue
        opened[key] = result
        seen.append(Seen(key, Usable(result.manifest.records, result.manifest.is_done)))
        if not (past_done and result.manifest.is_done):
            break
    # Where names cost nothing, all of them bear witness.
    seen += [Seen(key) for key in (untried if listed is None else listed[len(seen) :])]
    return Looked(tuple(seen), opened)


def _listed(store: Store, lineage: str, up_to: int, timeout_s: float) -> list[CheckpointKey] | None:
    names = store.keys(checkpoints_prefix(lineage), timeout_s=timeout_s)
    if names is None:
        return None
    keys = (CheckpointKey.parse(name) for name in names)
    return sorted((key for key in keys if key and key.lineage == lineage and key.epoch <= up_to), reverse=True)


def downward(
    store: Store, lineage: str, up_to: int = MAX_EPOCH, timeout_s: float = REQUEST_S
) -> Iterator[CheckpointKey]:
    """The checkpoints of a store that cannot list, the newest first; each is looked for when it is asked for."""
    numbering = _checkpoints(lineage)
    below = min(numbering.end, (up_to + 1) * (MAX_SEQUENCE + 1))
    while (name := highest(store, numbering, below=below, timeout_s=timeout_s)) is not None:
        key = CheckpointKey.parse(name)
        if key is None:
            return
        yield key
        below = _number(key)


def _checkpoints(lineage: str) -> Numbering:
    """Epoch and sequence, as one number of ten digits."""
    root = checkpoints_prefix(lineage)

    def prefix(digits: str) -> str:
        return f"{root}{digits[:4]}-{digits[4:]}" if len(digits) > 4 else root + digits

    def number(name: str) -> int | None:
        key = CheckpointKey.parse(name)
        return _number(key) if key and key.lineage == lineage else None

    return Numbering(10, prefix, number)


def _number(key: CheckpointKey) -> int:
    return key.epoch * (MAX_SEQUENCE + 1) + key.sequence


_ANEW = "To begin anew: `endstate run` without --resume; in a workflow, a new run rather than a re-run."


def refusal(choice: Choice) -> EndstateError | None:
    """The error that ends the run; None where there is something to do.

    Its remedies are possible where they are read: a re-run has the workflow file and the commit of the run before, so
    only secrets, variables, settings of the repository and the command line can be changed.
    """
    match choice:
        case UseStored() | UseLocal() | AlreadyDone() | NoneFound():
            return None
        case NoneOpens(seen):
            return UnknownSession(
                f"No checkpoint was restored: {_told(seen)}. They are still in the store, and nothing was run.",
                hint="Put back the secret that the earlier attempt had (the state key, else the API key), and run "
                f"again. {_ANEW}",
            )
        case NotOurs(seen):
            return Mismatch(
                f"No checkpoint was restored: {_told(seen)}. Nothing was changed, and nothing was run.",
                differences=tuple(f"{one.key.in_words}: {_reason(one)}" for one in seen),
                hint=_ANEW,
            )
        case Damaged(seen):
            return UnknownSession(
                f"No checkpoint was restored, since none is whole: {_told(seen)}. Nothing was run; what the earlier "
                "attempt did outside the workspace is done.",
                hint=f"Look at what it left behind. {_ANEW}",
            )
        case NotAllTried(seen):
            tried = [one for one in seen if one.found is not None]
            return UnknownSession(
                f"No checkpoint was restored: {len(tried)} do not open ({_told(tried)}), and that took so long that "
                "older ones were not tried. They are still in the store, and nothing was run.",
                hint="Something else writes under the names of checkpoints. What does not open can be deleted there; "
                f"then run again. {_ANEW}",
            )
        case Newer(one):
            return NewerFormat(
                f"{one.key.in_words.capitalize()} was not restored: {_reason(one)}. It is still in the store; no older "
                "one was used in its place, and nothing was run.",
                differences=(f"{one.key.in_words}: {_reason(one)}",),
                hint="Run again with the release that wrote it, or a newer one.",
            )
        case Gap(known, started, _):
            return OutcomeUnknown(
                f"Nothing was restored: {started} effects outside the workspace were started, and the newest state "
                f"that can be used knows of {known}. What came of the others is not known. Nothing was run.",
                hint="Look for what was sent (comments, commits, requests). `endstate run --resume --on-mismatch "
                f"continue` then goes on from that state. {_ANEW}",
            )


def _told(seen: Sequence[Seen]) -> str:
    """The newest few, with their reasons."""
    told = [f"{one.key.in_words}: {_reason(one)}" for one in seen[:3]]
    return "; ".join(told) + (f"; and {len(seen) - 3} more" if len(seen) > 3 else "")


def _reason(seen: Seen) -> str:
    return seen.found.reason if isinstance(seen.found, Unusable) else "it was not looked at"
