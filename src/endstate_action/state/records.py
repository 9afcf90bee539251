"""The immutable rows of a session's journal, and their JSON form.

A row is written once and never changed; the state of a session is a fold of its rows
(`state.session`). A row's `key()` names what it is about: the same key with the same content
twice is a repeat, and with different content it is an error.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, TypeAlias

from endstate_action.effects import EffectClass
from endstate_action.messages import Block, Message, Usage, scrub_json
from endstate_action.state.forms import Form

FORMAT = 1
"""Version of the rows below and of the database schema; every release reads all earlier ones."""

Key: TypeAlias = tuple[Any, ...]
Asked: TypeAlias = tuple[str, str]
"""Id and text of a prompt."""
# What these hold is looked at by their names (`state.forms`).
Bound: TypeAlias = Mapping[str, Any]
Refs: TypeAlias = Mapping[str, str]
Given: TypeAlias = Mapping[str, str]
Contract: TypeAlias = Mapping[str, str]
Process: TypeAlias = Mapping[str, Any]
Changes: TypeAlias = Mapping[str, str]
PlannedCommit: TypeAlias = Mapping[str, Any]
Dollars: TypeAlias = str
Words: TypeAlias = str
Action: TypeAlias = str
Status = Literal["ok", "error", "denied", "refused", "not_run"]
Conclusion = Literal["success", "stopped", "interrupted", "mismatch", "failed", "superseded"]


@dataclass(frozen=True, slots=True)
class Begun:
    """First row: what the session is bound to (repository, base commit, kind of workspace)."""

    kind: ClassVar[str] = "begun"
    session: str
    at: float
    bound: Bound
    format: int = FORMAT

    def key(self) -> Key:
        return ()


@dataclass(frozen=True, slots=True)
class Frozen:
    """What every attempt uses as it was when the session began, whatever today's defaults are.

    `tools` are definitions as the provider is told of them; `contracts` are `Tool.contract()` values.
    """

    kind: ClassVar[str] = "frozen"
    provider: str
    model: str
    system: str
    tools: tuple[Mapping[str, Any], ...]
    contracts: tuple[Contract, ...]
    config: Mapping[str, Any]
    max_output_tokens: int

    def key(self) -> Key:
        return ()


@dataclass(frozen=True, slots=True)
class Attempt:
    """One process lifetime began. `accepted` lists the mismatches that a person chose to continue over."""

    kind: ClassVar[str] = "attempt"
    epoch: int
    at: float
    version: str
    process: Process
    limits: Mapping[str, Any]
    journal_mode: str
    provider: str
    model: str
    accepted: tuple[str, ...] = ()
    asked: Asked | None = None
    """The prompt it was given; added to the conversation once what was pending is settled."""
    kept: str | None = None
    """The snapshot of what stood in the workspace before the session was restored there."""
    trust: str | None = None
    """`Repository.trust` of the checkout that the session was restored in; another one than it was begun in."""
    effects_before: int = 0
    """Effects outside that were started and that the journal does not have: a person chose to go on over the gap."""
    given: Given | None = None
    """`Settings.given`, but for a store that was of no use: what a resume that is not given them takes over."""

    def key(self) -> Key:
        return (self.epoch,)


@dataclass(frozen=True, slots=True)
class Prompt:
    """An instruction. `task` is the number of the task it begins or joins, from 1."""

    kind: ClassVar[str] = "prompt"
    id: str
    text: Words
    task: int
    after_step: int
    at: float

    def key(self) -> Key:
        return (self.id,)


@dataclass(frozen=True, slots=True)
class Note:
    """Something the harness tells the model, once; `id` says what it is about."""

    kind: ClassVar[str] = "note"
    id: str
    text: str
    after_step: int

    def key(self) -> Key:
        return (self.id,)


@dataclass(frozen=True, slots=True)
class Replied:
    """A complete reply; with it every call in it is *requested*, and the denied ones are denied for good."""

    kind: ClassVar[str] = "replied"
    step: int
    message_id: str
    model: str
    blocks: tuple[Block, ...]
    stop_reason: str
    usage: Usage
    cost_usd: Dollars | None
    at: float
    epoch: int
    cut: bool = False
    denied: Mapping[int, str] | None = None

    def key(self) -> Key:
        return (self.step,)

    @property
    def message(self) -> Message:
        return Message("assistant", self.blocks)


@dataclass(frozen=True, slots=True)
class Spent:
    """Tokens paid for a reply that broke off and was thrown away."""

    kind: ClassVar[str] = "spent"
    step: int
    usage: Usage
    cost_usd: Dollars | None
    reason: str
    at: float

    def key(self) -> Key:
        return (self.step, self.at)


@dataclass(frozen=True, slots=True)
class Started:
    """A call is about to run: an intention labelled as one. One row per start, so starts can be counted."""

    kind: ClassVar[str] = "started"
    step: int
    index: int
    call_id: str
    effect: EffectClass
    epoch: int
    at: float
    tag: str
    path: str | None = None
    before: str | None = None
    after: str | None = None
    sandbox: str = ""
    """Fingerprint of the sandbox it runs in; empty where it runs in none."""
    root: str | None = None
    """Snapshot of the workspace right before it runs, where one was taken."""

    def key(self) -> Key:
        return (self.step, self.index, self.epoch)


@dataclass(frozen=True, slots=True)
class StartEnded:
    """A start ended because we got a signal; it does not count towards the limit of starts."""

    kind: ClassVar[str] = "start_ended"
    step: int
    index: int
    epoch: int
    signal: str

    def key(self) -> Key:
        return (self.step, self.index, self.epoch)


@dataclass(frozen=True, slots=True)
class Settled:
    """What a resume decided about a pending call, and why."""

    kind: ClassVar[str] = "settled"
    step: int
    index: int
    call_id: str
    epoch: int
    action: Action
    reason: str
    effect: EffectClass | None
    at: float

    def key(self) -> Key:
        return (self.step, self.index, self.epoch)


@dataclass(frozen=True, slots=True)
class Finished:
    """The outcome of one call, recorded the moment it landed."""

    kind: ClassVar[str] = "finished"
    step: int
    index: int
    call_id: str
    status: Status
    content: str
    epoch: int
    at: float
    elapsed_s: float = 0.0

    def key(self) -> Key:
        return (self.step, self.index, self.call_id)


@dataclass(frozen=True, slots=True)
class Compacted:
    """From here on, steps up to `through_step` are shown to the model as `summary`, and of the results of the one after
    them no more than `result_bytes` each (0: all)."""

    kind: ClassVar[str] = "compacted"
    through_step: int
    summary: Words
    result_bytes: int = 0

    def key(self) -> Key:
        return (self.through_step, self.result_bytes)


@dataclass(frozen=True, slots=True)
class Unseen:
    """The outcome that comes next is of a call whose traces nobody has looked at: the look failed, or took too long.

    What follows is worth nothing on another machine, whose workspace would lack them, before the next `Observed`.
    """

    kind: ClassVar[str] = "unseen"
    step: int
    index: int
    epoch: int

    def key(self) -> Key:
        return (self.step, self.index, self.epoch)


@dataclass(frozen=True, slots=True)
class Observed:
    """The workspace as it was at this point of the journal."""

    kind: ClassVar[str] = "observed"
    step: int
    tree_hash: str
    head: str | None
    at: float
    root: str | None = None
    """Its snapshot, where one was taken; what a snapshot names is durable before this row is written."""

    def key(self) -> Key:
        return (self.step, self.tree_hash, self.head, self.at)


@dataclass(frozen=True, slots=True)
class RollBackBegun:
    """A roll-back is about to replace what is in the snapshot `kept`; `refs` are where the repository's led by then."""

    kind: ClassVar[str] = "roll_back_begun"
    step: int
    index: int
    epoch: int
    kept: str
    refs: Refs
    at: float

    def key(self) -> Key:
        return (self.step, self.index, self.epoch)


@dataclass(frozen=True, slots=True)
class RolledBack:
    """The workspace was put back to `root`; what it replaced is the snapshot `kept`."""

    kind: ClassVar[str] = "rolled_back"
    step: int
    index: int
    epoch: int
    root: str
    kept: str | None
    exact: bool
    reasons: tuple[str, ...]
    at: float

    def key(self) -> Key:
        return (self.step, self.index, self.epoch)


@dataclass(frozen=True, slots=True)
class Ended:
    """How an attempt ended by itself. An attempt without this row was killed."""

    kind: ClassVar[str] = "ended"
    epoch: int
    task: int
    conclusion: Conclusion
    reason: str
    at: float
    tree_hash: str | None = None

    def key(self) -> Key:
        return (self.epoch, self.task)


@dataclass(frozen=True, slots=True)
class ToDeliver:
    """The result of a task, as it is to be delivered; what a repeat must not decide anew is pinned here."""

    kind: ClassVar[str] = "to_deliver"
    task: int
    conclusion: str
    commit: PlannedCommit | None
    """Parent, tree, message, author, time, key and branch of a commit that is to be made."""
    comment: bool
    at: float
    changed: Changes | None = None
    """What is known to have changed, where git could not tell: another machine has no scan of the start."""

    def key(self) -> Key:
        return (self.task, self.conclusion, self.at)


@dataclass(frozen=True, slots=True)
class Delivering:
    """A delivery is about to be sent; counted as an effect outside."""

    kind: ClassVar[str] = "delivering"
    task: int
    what: str
    epoch: int
    at: float

    def key(self) -> Key:
        return (self.task, self.what, self.epoch, self.at)


@dataclass(frozen=True, slots=True)
class Delivered:
    """What came of it. Only `ok` ends a delivery; `value` is where it can be found (a URL, a commit id)."""

    kind: ClassVar[str] = "delivered"
    task: int
    what: str
    ok: bool
    value: str
    reason: str
    epoch: int
    at: float

    def key(self) -> Key:
        return (self.task, self.what, self.epoch, self.at)


Record: TypeAlias = (
    Begun
    | Frozen
    | Attempt
    | Prompt
    | Note
    | Replied
    | Spent
    | Started
    | StartEnded
    | Settled
    | Finished
    | Compacted
    | Unseen
    | Observed
    | RollBackBegun
    | RolledBack
    | Ended
    | ToDeliver
    | Delivering
    | Delivered
)
_CLASSES: dict[str, type[Any]] = {
    c.kind: c
    for c in (
        Begun, Frozen, Attempt, Prompt, Note, Replied, Spent,
        Started, StartEnded, Settled, Finished, Compacted, Unseen, Observed, RollBackBegun, RolledBack, Ended,
        ToDeliver, Delivering, Delivered,
    )
}  # fmt: skip

_FORMS = {kind: Form(cls, is_frequent=cls in (Replied, Started, Finished)) for kind, cls in _CLASSES.items()}
_scan: Any = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
"""`json.loads` looks for white space around each value, which no row of ours has."""


def encode(record: Record) -> str:
    """The body of a row: compact JSON, strict UTF-8."""
    body = {f.name: getattr(record, f.name) for f in fields(record)}
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"), default=dict)
    try:
        text.encode()
    except UnicodeEncodeError:
        # Text is scrubbed where it enters; a half character that still got here must not lose the whole row.
        text = json.dumps(scrub_json(json.loads(text)), ensure_ascii=False, separators=(",", ":"))
    return text


def decode(kind: str, text: str) -> Record:
    """Read a row back.

    Raises:
        ValueError: the row is not one of ours, with the reason; the caller names its number.
    """
    form = _FORMS.get(kind)
    if form is None:
        raise ValueError("its kind is none that is known")
    try:
        body, end = _scan(text, 0)
        is_more = end != len(text)
    except (ValueError, TypeError, StopIteration, RecursionError):
        raise ValueError("it is no JSON") from None
    if is_more:
        raise ValueError("it is no JSON")
    record: Record = form.read(body)
    return record


@contextmanager
def all_kept() -> Iterator[None]:
    """While much is read, and right after: none of it is garbage, and to look for some costs a fifth of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            # Makes all of it old at once. As young as it is, the very next look would go through it.
            gc.freeze()
            gc.unfreeze()
            gc.enable()
