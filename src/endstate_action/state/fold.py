"""What a journal stands for: the state of a session is a fold of its records, and has no other source."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from endstate_action.messages import ToolCall, tool_calls
from endstate_action.state.keys import MAX_EFFECTS, MAX_EPOCH
from endstate_action.state.records import (
    Asked,
    Attempt,
    Begun,
    Compacted,
    Delivered,
    Delivering,
    Ended,
    Finished,
    Frozen,
    Note,
    Observed,
    Prompt,
    Record,
    Replied,
    RollBackBegun,
    RolledBack,
    Settled,
    Spent,
    Started,
    StartEnded,
    ToDeliver,
    Unseen,
    all_kept,
)

_END_OF_TIME = 1e11
"""A later time than this, in seconds, cannot be printed."""

STOP_REASONS = frozenset(
    ("end_turn", "stop_sequence", "tool_use", "max_tokens", "pause_turn", "model_context_window_exceeded")
)
"""Stop reasons under which a reply's calls are requests; under a refusal, or one that nobody knows, they are not."""


class Requested(NamedTuple):
    """A call of a recorded reply, at its place: `(step, index)`."""

    step: int
    index: int  # type: ignore[assignment]
    call: ToolCall
    denied: str | None
    void: str | None
    """Why it is not to be run whatever else holds: it was cut short, or the reply as a whole was no request."""

    @property
    def place(self) -> tuple[int, int]:
        return (self.step, self.index)


@dataclass(slots=True)
class State:
    """The fold of the records so far. Read it; only `Session.append` changes it."""

    begun: Begun
    frozen: Frozen | None = None
    records: int = 0
    attempts: list[Attempt] = field(default_factory=list)
    prompts: list[Prompt] = field(default_factory=list)
    told: list[Prompt | Note] = field(default_factory=list)
    """What the model was told besides results, in order."""
    replies: list[Replied] = field(default_factory=list)
    spent: list[Spent] = field(default_factory=list)
    requested: dict[tuple[int, int], Requested] = field(default_factory=dict)
    started: dict[tuple[int, int], list[Started]] = field(default_factory=dict)
    start_ended: list[StartEnded] = field(default_factory=list)
    settled: list[Settled] = field(default_factory=list)
    finished: dict[tuple[int, int], Finished] = field(default_factory=dict)
    compacted: Compacted | None = None
    compacted_at_reply: Compacted | None = None
    """The one that held when the last reply was asked for."""
    observed: Observed | None = None
    unseen: int | None = None
    """How many records there were before a call whose traces nobody has looked at since: no more than these may be
    shipped."""
    rolling_back: list[RollBackBegun] = field(default_factory=list)
    rolled_back: list[RolledBack] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    to_deliver: list[ToDeliver] = field(default_factory=list)
    delivering: list[Delivering] = field(default_factory=list)
    delivered: list[Delivered] = field(default_factory=list)
    pending: dict[tuple[int, int], Requested] = field(default_factory=dict)
    """Calls without an outcome, in the order they were asked for."""
    strays: list[Finished] = field(default_factory=list)
    """Outcomes of calls that nobody asked for: they count for nothing, and whoever goes on says so."""
    _newest_epoch: int = MAX_EPOCH
    """The highest number that a record can have; any, before the first attempt is on record."""
    _dated: Any = None
    _by_key: dict[tuple[Any, ...], Record] = field(default_factory=dict)

    def add(self, record: Record) -> None:
        """With one record more. Raises: ValueError: it cannot be the next, with the reason; nothing was changed."""
        match record:
            # The three kinds that make up a session come first: a long one is folded whenever it is opened.
            case Started():
                place = (record.step, record.index)
                if (wrong := self._start_disorder(record, place)) is not None:
                    raise ValueError(wrong)
                self._dated = record
                if place in self.started:
                    self.started[place].append(record)
                else:
                    self.started[place] = [record]
            case Finished():
                place = (record.step, record.index)
                if (wrong := self._outcome_disorder(record, place)) is not None:
                    raise ValueError(wrong)
                self._dated = record
                if self.pending.pop(place, None) is None:
                    self.strays.append(record)
                else:
                    self.finished[place] = record
            case Replied():
                if (wrong := self._reply_disorder(record)) is not None:
                    raise ValueError(wrong)
                self._dated = record
                self._request(record)
            case _:
                if (wrong := self._rare_disorder(record)) is not None:
                    raise ValueError(wrong)
                self._dated = record if hasattr(record, "at") else self._dated
                self._by_key[(record.kind, *record.key())] = record
                self._add_rare(record)
        self.records += 1

    def disorder(self, record: Record) -> str | None:
        """Why `record` cannot follow what is recorded, in a few words; None where it can.

        The outcome of a call that nobody asked for can: it is left out of all that counts. A reply that asks for a call
        at its place later is another matter, since a call that ran has its start on record, which could not be there.
        """
        match record:
            case Started():
                return self._start_disorder(record, (record.step, record.index))
            case Finished():
                return self._outcome_disorder(record, (record.step, record.index))
            case Replied():
                return self._reply_disorder(record)
            case _:
                return self._rare_disorder(record)

    def _start_disorder(self, record: Started, place: tuple[int, int]) -> str | None:
        asked = self.pending.get(place)
        if asked is None or asked.call.id != record.call_id:
            return self._not_at(place)
        if not 0 < record.epoch <= self._newest_epoch:
            return f"attempt {record.epoch} has not begun"
        starts = self.started.get(place)
        return "it was started before, in the same attempt" if starts and starts[-1].epoch >= record.epoch else None

    def _outcome_disorder(self, record: Finished, place: tuple[int, int]) -> str | None:
        asked = self.pending.get(place)
        if asked is not None and asked.call.id == record.call_id:
            return None
        return self._not_at(place) if place in self.requested else None

    def _not_at(self, place: tuple[int, int]) -> str:
        """Why a record of a call is not of the one at its place."""
        if place in self.finished:
            return "the call has an outcome"
        return "the call at this place has another id" if place in self.requested else "no such call was asked for"

    def _reply_disorder(self, record: Replied) -> str | None:
        if record.step != len(self.replies) + 1:
            return f"step {record.step} does not follow step {len(self.replies)}"
        if not 0 <= record.epoch <= self._newest_epoch:
            return f"attempt {record.epoch} has not begun"
        return None

    def _rare_disorder(self, record: Record) -> str | None:
        steps, key = len(self.replies), (record.kind, *record.key())
        if key in self._by_key:
            return "there is one like it already"
        match record:
            case Attempt() if not self.epoch < record.epoch <= MAX_EPOCH:
                return f"attempt {record.epoch} does not follow attempt {self.epoch}"
            case Attempt() if not 0 <= record.at < _END_OF_TIME or not 0 <= record.effects_before <= MAX_EFFECTS:
                return "no attempt began then, or after so much"
            case Prompt() if not max(self.task, 1) <= record.task <= self.task + 1:
                return f"task {record.task} does not follow task {self.task}"
            case Prompt() | Note() if not 0 <= record.after_step <= steps:
                return f"it is told after step {record.after_step}, of {steps}"
            case Compacted() if record.through_step > steps:
                return f"it is of {record.through_step} steps, of {steps}"
            case Compacted() if not self._is_shorter(record):
                return "it shows as much as before it"
            case StartEnded() | Unseen() | RollBackBegun() | RolledBack() if (
                record.step,
                record.index,
            ) not in self.started:
                return "no such call was started"
            case Settled() if self._id_at(record.step, record.index) != record.call_id:
                return "no such call was asked for"
            case Ended() | ToDeliver() | Delivering() | Delivered() if not 0 <= record.task <= self.task:
                return f"there is no task {record.task}"
            case StartEnded() | Settled() | RollBackBegun() | RolledBack() | Ended() | Delivering() | Delivered() if (
                not 0 < record.epoch <= self._newest_epoch
            ):
                return f"attempt {record.epoch} has not begun"
            case _:
                return None

    def _id_at(self, step: int, index: int) -> str | None:
        asked = self.requested.get((step, index))
        return asked.call.id if asked else None

    def _is_shorter(self, cut: Compacted) -> bool:
        """Whether the model is shown less after it than before."""
        last = self.compacted or Compacted(0, "")
        is_part = 0 < cut.result_bytes < (last.result_bytes or cut.result_bytes + 1)
        return cut.through_step > last.through_step or (cut.through_step == last.through_step and is_part)

    def find(self, record: Record) -> Record | None:
        """What is recorded under the key of `record`."""
        match record:
            case Started():
                starts = self.started.get((record.step, record.index), ())
                return next((s for s in starts if s.epoch == record.epoch), None)
            case Finished():
                found = self.finished.get((record.step, record.index))
                return found if found is not None and found.call_id == record.call_id else None
            case Replied():
                return self.replies[record.step - 1] if 0 < record.step <= len(self.replies) else None
            case _:
                return self._by_key.get((record.kind, *record.key()))

    def has_prompt(self, prompt_id: str) -> bool:
        return ("prompt", prompt_id) in self._by_key

    def knows_prompt(self, prompt_id: str) -> bool:
        """Whether it is part of the conversation, or waits to be."""
        return self.has_prompt(prompt_id) or any(a.asked and a.asked[0] == prompt_id for a in self.attempts)

    def cut_roll_back(self, place: tuple[int, int]) -> RollBackBegun | None:
        """The roll-back of an earlier attempt that was begun for the call and is not on record as done."""
        begun = [r for r in self.rolling_back if (r.step, r.index) == place]
        done = [r.epoch for r in self.rolled_back if (r.step, r.index) == place]
        return begun[-1] if begun and begun[-1].epoch > max(done, default=0) else None

    def is_settled_in(self, epoch: int, place: tuple[int, int]) -> bool:
        return ("settled", *place, epoch) in self._by_key

    def _add_rare(self, record: Record) -> None:
        match record:
            case Attempt():
                self.attempts.append(record)
                self._newest_epoch = record.epoch
            case Frozen():
                self.frozen = record
            case Prompt():
                self.prompts.append(record)
                self.told.append(record)
            case Note():
                self.told.append(record)
            case Spent():
                self.spent.append(record)
            case StartEnded():
                self.start_ended.append(record)
            case Settled():
                self.settled.append(record)
            case Compacted():
                self.compacted = record
            case Unseen():
                self.unseen = self.records if self.unseen is None else self.unseen
            case Observed():
                self.observed, self.unseen = record, None
            case RollBackBegun():
                self.rolling_back.append(record)
            case RolledBack():
                self.rolled_back.append(record)
            case Ended():
                self.ended.append(record)
            case ToDeliver():
                self.to_deliver.append(record)
            case Delivering():
                self.delivering.append(record)
            case Delivered():
                self.delivered.append(record)
            case _:
                pass

    def _request(self, record: Replied) -> None:
        self.replies.append(record)
        self.compacted_at_reply = self.compacted
        calls = tool_calls(record.blocks)
        denied = record.denied or {}
        for index, call in enumerate(calls):
            void = _void(record, is_last=index == len(calls) - 1)
            place = (record.step, index)
            asked = Requested(record.step, index, call, denied.get(index), void)
            self.requested[place] = self.pending[place] = asked

    @property
    def shippable(self) -> int:
        """How many of the records have a workspace that belongs to them."""
        return self.records if self.unseen is None else self.unseen

    @property
    def steps(self) -> int:
        """Replies recorded so far, over all tasks."""
        return len(self.replies)

    @property
    def changed_at(self) -> float:
        """When the last record was written, in seconds since 1970, as it says itself; 0 where that is no time."""
        at = getattr(self._dated, "at", 0.0)
        return float(at) if isinstance(at, int | float) and 0 <= at < _END_OF_TIME else 0.0

    @property
    def epoch(self) -> int:
        """Number of the newest attempt; 0 before the first."""
        return self.attempts[-1].epoch if self.attempts else 0

    @property
    def task(self) -> int:
        """Number of the task at hand; 0 before the first prompt."""
        return self.prompts[-1].task if self.prompts else 0

    @property
    def is_finished(self) -> bool:
        """Whether the task at hand ended in success and nothing was asked since."""
        succeeded = any(e.task == self.task and e.conclusion == "success" for e in self.ended)
        return succeeded and not self.pending and not self.waiting_prompts

    @property
    def outbox(self) -> ToDeliver | None:
        """What is to be delivered of the task at hand, the newest word on it."""
        return next((o for o in reversed(self.to_deliver) if o.task == self.task), None)

    def was_delivered(self, what: str) -> Delivered | None:
        """The delivery of the task at hand that succeeded, since its outbox was written."""
        outbox = self.outbox
        since = outbox.at if outbox else 0.0
        found = (d for d in reversed(self.delivered) if (d.task, d.what) == (self.task, what))
        return next((d for d in found if d.ok and d.at >= since), None)

    @property
    def waiting_prompts(self) -> list[Asked]:
        """Prompts that an attempt was given and that are still to be added, after settling."""
        return [a.asked for a in self.attempts if a.asked is not None and not self.has_prompt(a.asked[0])]

    @property
    def was_asked(self) -> bool:
        """Whether there is anything to resume."""
        return bool(self.prompts or self.waiting_prompts)

    def first_step_of_task(self) -> int:
        """Number of steps that belong to earlier tasks."""
        return next((p.after_step for p in self.prompts if p.task == self.task), 0)

    @property
    def failed_calls(self) -> int:
        """How many calls of the task at hand ran and ended with an error."""
        first = self.first_step_of_task()
        return sum(f.step > first and f.status == "error" for f in self.finished.values())

    @property
    def calls_not_run(self) -> int:
        """How many calls of the task at hand were answered without having been run, denied and refused ones apart."""
        first = self.first_step_of_task()
        return sum(f.step > first and f.status == "not_run" for f in self.finished.values())

    def counted_starts(self, place: tuple[int, int]) -> int:
        """Starts that were not ended by a signal to us."""
        excused = {e.epoch for e in self.start_ended if (e.step, e.index) == place}
        return sum(s.epoch not in excused for s in self.started.get(place, ()))


@all_kept()
def fold(records: Iterable[Record]) -> State:
    """The state that a whole journal stands for. Raises: ValueError: it is none, or a record of it is out of place."""
    state: State | None = None
    for record in records:
        if state is None:
            if not isinstance(record, Begun):
                raise ValueError("the first record is no beginning")
            state = State(record)
        state.add(record)
    if state is None:
        raise ValueError("there are no records")
    return state


def _void(record: Replied, *, is_last: bool) -> str | None:
    if record.stop_reason == "refusal":
        return "the reply that asked for it was broken off by a refusal"
    if record.stop_reason not in STOP_REASONS:
        return f"the reply that asked for it ended for a reason that is not known here ({record.stop_reason[:40]!r})"
    if record.cut and is_last:
        return "the output limit cut this call short; send it again, in smaller pieces"
    return None
