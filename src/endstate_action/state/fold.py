"""What a journal stands for: the state of a session is a fold of its records, and has no other source."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from endstate_action.messages import ToolCall, tool_calls
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
    RolledBack,
    Settled,
    Spent,
    Started,
    StartEnded,
    ToDeliver,
    all_kept,
)

_END_OF_TIME = 1e11
"""A later time than this, in seconds, cannot be printed."""

STOP_REASONS = frozenset(
    ("end_turn", "stop_sequence", "tool_use", "max_tokens", "pause_turn", "model_context_window_exceeded")
)
"""Stop reasons under which a reply's calls are requests; under a refusal, or one that nobody knows, they are not."""


@dataclass(frozen=True, slots=True)
class Requested:
    """A call of a recorded reply, at its place: `(step, index)`."""

    step: int
    index: int
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
    observed: Observed | None = None
    rolled_back: list[RolledBack] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    to_deliver: list[ToDeliver] = field(default_factory=list)
    delivering: list[Delivering] = field(default_factory=list)
    delivered: list[Delivered] = field(default_factory=list)
    pending: dict[tuple[int, int], Requested] = field(default_factory=dict)
    """Calls without an outcome, in the order they were asked for."""
    _dated: Any = None
    _by_key: dict[tuple[Any, ...], Record] = field(default_factory=dict)

    def add(self, record: Record) -> None:
        self.records += 1
        match record:
            # The three kinds that make up a session come first: a long one is folded whenever it is opened.
            case Started():
                self._dated = record
                self.started.setdefault((record.step, record.index), []).append(record)
            case Finished():
                self._dated = record
                place = (record.step, record.index)
                self.finished[place] = record
                self.pending.pop(place, None)
            case Replied():
                self._dated = record
                self._request(record)
            case _:
                self._dated = record if hasattr(record, "at") else self._dated
                self._by_key[(record.kind, *record.key())] = record
                self._add_rare(record)

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

    def is_settled_in(self, epoch: int, place: tuple[int, int]) -> bool:
        return ("settled", *place, epoch) in self._by_key

    def _add_rare(self, record: Record) -> None:
        match record:
            case Attempt():
                self.attempts.append(record)
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
            case Observed():
                self.observed = record
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
        calls = tool_calls(record.blocks)
        denied = record.denied or {}
        for index, call in enumerate(calls):
            void = _void(record, is_last=index == len(calls) - 1)
            place = (record.step, index)
            asked = Requested(record.step, index, call, denied.get(index), void)
            self.requested[place] = self.pending[place] = asked

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

    def counted_starts(self, place: tuple[int, int]) -> int:
        """Starts that were not ended by a signal to us."""
        excused = {e.epoch for e in self.start_ended if (e.step, e.index) == place}
        return sum(s.epoch not in excused for s in self.started.get(place, ()))


@all_kept()
def fold(records: Iterable[Record]) -> State:
    """The state that a whole journal stands for. Raises: ValueError: it does not begin as a session does."""
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
