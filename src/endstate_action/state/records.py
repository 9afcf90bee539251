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

FORMAT = 1
"""Version of the rows below and of the database schema; every release reads all earlier ones."""

Key: TypeAlias = tuple[Any, ...]
Asked: TypeAlias = tuple[str, str]
"""Id and text of a prompt."""
Status = Literal["ok", "error", "denied", "refused", "not_run"]
Conclusion = Literal["success", "stopped", "interrupted", "mismatch", "failed", "superseded"]


@dataclass(frozen=True, slots=True)
class Begun:
    """First row: what the session is bound to (repository, base commit, kind of workspace)."""

    kind: ClassVar[str] = "begun"
    session: str
    at: float
    bound: Mapping[str, Any]
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
    contracts: tuple[Mapping[str, str], ...]
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
    process: Mapping[str, Any]
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

    def key(self) -> Key:
        return (self.epoch,)


@dataclass(frozen=True, slots=True)
class Prompt:
    """An instruction. `task` is the number of the task it begins or joins, from 1."""

    kind: ClassVar[str] = "prompt"
    id: str
    text: str
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
    cost_usd: str | None
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
    cost_usd: str | None
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
    action: str
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
    """From here on, steps up to `through_step` are shown to the model as `summary`."""

    kind: ClassVar[str] = "compacted"
    through_step: int
    summary: str

    def key(self) -> Key:
        return (self.through_step,)


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
    commit: Mapping[str, Any] | None
    """Parent, tree, message, author, time, key and branch of a commit that is to be made."""
    comment: bool
    at: float

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
    | Observed
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
        Started, StartEnded, Settled, Finished, Compacted, Observed, RolledBack, Ended,
        ToDeliver, Delivering, Delivered,
    )
}  # fmt: skip

_EFFECTS = {effect.value: effect for effect in EffectClass}
_JSON = json.JSONDecoder()
"""`json.loads` looks for white space around each value, which no row of ours has."""


def encode(record: Record) -> str:
    """The body of a row: compact JSON, strict UTF-8."""
    body = {f.name: getattr(record, f.name) for f in fields(record)}
    if isinstance(body.get("usage"), Usage):
        body["usage"] = [getattr(body["usage"], f.name) for f in fields(Usage)]
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
        ValueError, TypeError, KeyError: the row is not one of ours; the caller names its number.
    """
    body, end = _JSON.raw_decode(text)
    if end != len(text):
        raise ValueError("more than one value")
    cls = _CLASSES[kind]
    match kind:
        case "replied":
            body["blocks"] = tuple(body["blocks"])
            body["usage"] = Usage(*body["usage"])
            if body.get("denied") is not None:
                body["denied"] = {int(i): reason for i, reason in body["denied"].items()}
        case "spent":
            body["usage"] = Usage(*body["usage"])
        case "started":
            body["effect"] = _EFFECTS[body["effect"]]
        case "settled" if body["effect"] is not None:
            body["effect"] = _EFFECTS[body["effect"]]
        case "frozen":
            body["tools"], body["contracts"] = tuple(body["tools"]), tuple(body["contracts"])
        case "rolled_back":
            body["reasons"] = tuple(body["reasons"])
        case "attempt":
            body["accepted"] = tuple(body["accepted"])
            body["asked"] = tuple(body["asked"]) if body.get("asked") else None
        case _:
            pass
    record: Record = cls(**body)
    return record


@contextmanager
def all_kept() -> Iterator[None]:
    """While much is read: none of it is garbage, and to look for some costs a tenth of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
