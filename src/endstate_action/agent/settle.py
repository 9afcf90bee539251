"""What a resume does with a call that has no outcome.

`decide` is pure: it sees what is recorded and what was found by looking, and returns a verdict with
its reason. The loop applies it. A call that was only just requested is decided by the same
function, so there is one order of rules and not two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from endstate_action.effects import EffectClass, Probe
from endstate_action.state.records import Started, Status

MAX_STARTS = 3
"""A call is started at most this often (two re-runs), so that one that kills its runner ends."""


class Action(StrEnum):
    RUN = "run"
    ROLL_BACK_AND_RUN = "roll_back_and_run"
    ROLL_BACK = "roll_back"
    ADOPT = "adopt"
    DENY = "deny"
    REFUSE = "refuse"
    GIVE_UP = "give_up"
    NOT_RUN = "not_run"


class Content(StrEnum):
    """What a file that a call was to change holds now, against the digests recorded at its start."""

    BEFORE = "before"
    AFTER = "after"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Pending:
    """A call without an outcome, as recorded. `effect` is the one recorded at the start, if it was started."""

    name: str
    denied: str | None
    void: str | None
    started: Started | None
    starts: int
    """How often it was started, not counting starts that ended by a signal to us."""


@dataclass(frozen=True, slots=True)
class Found:
    """What looking at the world today showed."""

    missing: str | None = None
    """Why the tool cannot be used today, if so."""
    effect: EffectClass | None = None
    """Today's class; only for calls that were never started."""
    is_first_attempt: bool = True
    content: Content | None = None
    probe: Probe | None = None
    can_roll_back: bool = False
    """Whether the snapshot recorded at the call's start is there, whole."""
    sandbox: str = ""
    """Today's sandbox, by its fingerprint; empty where there is none."""
    blocked_by: str | None = None
    """The earlier call of the same batch whose outcome is unknown, if any."""
    is_buried: bool = False
    """Whether later steps of the history follow the unanswered call."""


@dataclass(frozen=True, slots=True)
class Settlement:
    action: Action
    reason: str
    is_undone: bool = True
    """Whether a roll-back put back all that the call may have changed in the workspace."""

    @property
    def blocks_rest(self) -> bool:
        """Whether the rest of the batch was asked for on a state that is no longer known."""
        return self.action in (Action.REFUSE, Action.GIVE_UP, Action.ROLL_BACK)

    @property
    def rolls_back(self) -> bool:
        return self.action in (Action.ROLL_BACK, Action.ROLL_BACK_AND_RUN)

    @property
    def runs(self) -> bool:
        return self.action in (Action.RUN, Action.ROLL_BACK_AND_RUN)

    @property
    def status(self) -> Status:
        match self.action:
            case Action.DENY:
                return "denied"
            case Action.REFUSE | Action.GIVE_UP | Action.ROLL_BACK:
                return "refused"
            case Action.NOT_RUN:
                return "not_run"
            case Action.RUN | Action.ROLL_BACK_AND_RUN | Action.ADOPT:
                return "ok"


def decide(call: Pending, found: Found) -> Settlement:
    """The verdict on one call. The order of the rules is part of the promise; see docs/guarantees.md."""
    if call.denied is not None:
        return Settlement(Action.DENY, call.denied)
    if call.void is not None:
        return Settlement(Action.NOT_RUN, call.void)
    if found.blocked_by is not None:
        return Settlement(Action.NOT_RUN, f"{found.blocked_by} before it has no known outcome; check, then ask again")
    if found.is_buried:
        return Settlement(Action.REFUSE, "it was left without an outcome in an earlier part of the history")
    if found.missing is not None:
        return Settlement(Action.DENY, found.missing)
    if call.started is None:
        return _never_started(found)
    return _limited(call, _interrupted(call.started, found))


def _never_started(found: Found) -> Settlement:
    # A retry that lost the records of an earlier attempt may ask again for what that attempt did.
    if found.effect is EffectClass.KEYED and not found.is_first_attempt:
        return _probed(found.probe)
    return Settlement(Action.RUN, "no start of it is on record")


def _interrupted(started: Started, found: Found) -> Settlement:
    match started.effect:
        case EffectClass.READS:
            return Settlement(Action.RUN, "it only reads")
        case EffectClass.IDEMPOTENT if started.path is None:
            return Settlement(Action.RUN, "running it again leads to the same state")
        case EffectClass.IDEMPOTENT:
            return _by_content(started.path or "", found.content)
        case EffectClass.KEYED:
            return _probed(found.probe)
        case EffectClass.CONTAINED | EffectClass.NETWORKED if not found.can_roll_back:
            return Settlement(Action.REFUSE, "it was interrupted and there is no whole snapshot to roll back to")
        case EffectClass.CONTAINED if started.sandbox == found.sandbox or not started.sandbox:
            return Settlement(Action.ROLL_BACK_AND_RUN, "nothing of it can have left the workspace")
        case EffectClass.CONTAINED:
            return Settlement(Action.ROLL_BACK, "it was interrupted, and the sandbox it ran in is not here today")
        case EffectClass.NETWORKED:
            return Settlement(
                Action.ROLL_BACK, "it was interrupted, and it had the network, so what it did there is unknown"
            )
        case EffectClass.OPAQUE:
            return Settlement(Action.REFUSE, "it was interrupted; nothing tells whether, or how far, it ran")


def _by_content(path: str, content: Content | None) -> Settlement:
    match content:
        case Content.AFTER:
            return Settlement(Action.ADOPT, f"{path} holds what the call was to leave there")
        case Content.BEFORE:
            return Settlement(Action.RUN, f"{path} is as it was before the call")
        case _:
            return Settlement(
                Action.REFUSE, f"{path} holds neither what was there before nor what the call would leave"
            )


def _probed(probe: Probe | None) -> Settlement:
    match probe:
        case Probe.APPLIED:
            return Settlement(Action.ADOPT, "its key was found: it was applied")
        case Probe.ABSENT:
            return Settlement(Action.RUN, "its key was not found: it was not applied")
        case _:
            return Settlement(Action.REFUSE, "nothing tells whether it was applied")


def _limited(call: Pending, verdict: Settlement) -> Settlement:
    if not verdict.runs or call.starts < MAX_STARTS:
        return verdict
    died = f"it was started {call.starts} times and the run died each time"
    return Settlement(Action.ROLL_BACK if verdict.rolls_back else Action.GIVE_UP, died)


def rolled_back(settlement: Settlement, left: Sequence[str]) -> Settlement:
    """The verdict once the workspace is put back.

    Args:
        left: what has changed since and could not be put back, so that it may hold what the call did. Whatever would
            run on that would do it twice.
    """
    if not left:
        return settlement
    why = "it was interrupted" if settlement.runs else settlement.reason
    return Settlement(Action.ROLL_BACK, f"{why}, and not all could be put back: {'; '.join(left)}", is_undone=False)


def answer(settlement: Settlement, name: str) -> str:
    """What the model is told about a call that did not run now."""
    reason = settlement.reason
    match settlement.action:
        case Action.DENY:
            return f"Denied: {reason.rstrip('.')}. The call was not run."
        case Action.REFUSE:
            return f"Outcome unknown: {reason}. It was not run again. Check what is there before you go on."
        case Action.GIVE_UP:
            return f"Not retried: {reason}. Its outcome is unknown. Check what is there, and do it another way."
        case Action.NOT_RUN:
            return f"Not run: {reason}."
        case Action.ADOPT:
            return f"Done before an interruption, and confirmed: {reason}."
        case Action.ROLL_BACK:
            rest = "The workspace is" if settlement.is_undone else "Check that. The rest of the workspace is"
            return f"Rolled back: {reason}. {rest} as it was before the call. It was not run again."
        case Action.RUN | Action.ROLL_BACK_AND_RUN:
            raise AssertionError(f"{name} is to run, not to be answered")
