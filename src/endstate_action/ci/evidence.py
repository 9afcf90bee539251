"""Evidence: what a run did, in a form that others can verify and programs can read.

Parsed as strictly as it is written: a file that says something else, or something more, is refused
rather than half understood. Text in it comes from models, file names and other people.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from endstate_action.errors import InputError, NewerFormat
from endstate_action.messages import scrub
from endstate_action.system.names import short

FORMAT: Final = 1
"""Grows with every change of the shape, since unknown keys are refused."""

MAX_BYTES = 32 * 1024 * 1024

Conclusion = Literal["success", "stopped", "interrupted", "mismatch", "undelivered", "superseded", "failed"]


def _scrubbed(value: Any) -> Any:
    return scrub(value) if isinstance(value, str) else value


Text = Annotated[str, BeforeValidator(_scrubbed)]
Count = Annotated[int, Field(ge=0, le=2**53)]
Number = Annotated[int, Field(ge=1, le=2**53)]
SessionId = Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]
ObjectId = Annotated[str, Field(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$")]
TreeHash = Annotated[str, Field(pattern=r"^et1:[0-9a-f]{64}$")]
Moment = Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]
Money = Annotated[str, Field(pattern=r"^\d{1,12}(\.\d{1,12})?$")]
Mode = Literal["100644", "100755", "120000", "160000"]


class _Value(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        alias_generator=lambda name: name.replace("_", "-"),
        populate_by_name=True,
    )


class Attempt(_Value):
    """One process lifetime. `where` says how far it came, as in *after call 7*; empty where that is not known."""

    epoch: Number
    run_attempt: Number | None = None
    began: Moment
    steps: Count
    ended: Literal["finished", "stopped", "interrupted", "preempted", "superseded", "failed"]
    """As it is on record; *preempted* is one that left no record of its end."""
    where: Text = ""
    restored_from: Text | None = None
    """The checkpoint it went on from; None for one that began the session, or found it on its own disk."""


class Commit(_Value):
    id: ObjectId
    subject: Text
    branch: Text | None = None
    """Where it was pushed; None for one that only the agent's checkout had."""


class Settlement(_Value):
    """What a resume did with a call that had no outcome. `call` counts from 1 within its step."""

    step: Count
    call: Number
    tool: Text
    action: Literal["run", "roll_back_and_run", "roll_back", "adopt", "deny", "refuse", "give_up", "not_run"]
    reason: Text
    attempt: Number


class Refused(_Value):
    """A call that was answered without having run, or without a known outcome."""

    step: Count
    call: Number
    tool: Text
    status: Literal["denied", "refused", "not_run"]
    reason: Text


class Spent(_Value):
    """`usd` is None where a price is unknown. With `at_least`, work after the newest checkpoint may be missing."""

    input_tokens: Count
    output_tokens: Count
    usd: Money | None
    at_least: bool = False


class Tool(_Value):
    name: Text
    effect: Text
    contract: Text
    """A digest of its schema."""


class Fingerprint(_Value):
    provider: Text
    model_asked: Text
    models_answered: tuple[Text, ...]
    tools: tuple[Tool, ...]
    state_format: Count


class Durability(_Value):
    """`store` in words (*Actions cache*, *none*); `age_s` is that of the newest checkpoint when the run ended."""

    store: Text
    checkpoint: Text | None = None
    age_s: Count | None = None


class Sandbox(_Value):
    kind: Text
    note: Text = ""


class ChangedFile(_Value):
    """One path of the published tree that is not as it was in the base tree; mode and blob are None when deleted.

    Without a published tree, as where git could not read the checkout, of the workspace and by name alone.
    """

    path: Text
    """Spelled so that it leads back to the name's bytes."""
    change: Literal["added", "modified", "deleted"]
    mode: Mode | None
    blob: ObjectId | None


class LeftOut(_Value):
    """A changed path that no commit can hold faithfully, and so no patch either."""

    path: Text
    reason: Text


class Trees(_Value):
    """The trees of a result. Those of git are None in a plain directory.

    `workspace_hash` stands for everything that was in the workspace, so it compares attempts with each other;
    `published_hash` and `git_tree` stand for what a commit of this result has, or would have.
    """

    base_commit: ObjectId | None = None
    base_tree: ObjectId | None = None
    restored_hash: TreeHash | None = None
    workspace_hash: TreeHash | None = None
    published_hash: TreeHash | None = None
    git_tree: ObjectId | None = None
    excluded: tuple[Text, ...] = (".git", ".endstate")
    left_out: tuple[LeftOut, ...] = ()


class Uncommitted(_Value):
    """Changes that are in no commit that was pushed. `patch_file` is its name, not a path of the machine; None where
    there is no such file."""

    patch_file: Text | None
    patch_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    lacks: Text | None = None
    """What is not in the patch, and why, as a sentence; None where all is."""


class Evidence(_Value):
    """Everything that is known about the result of one task."""

    format: Literal[1] = FORMAT
    conclusion: Conclusion
    reason: Text = ""
    session: SessionId
    task: Number
    repository: Text | None = None
    pull_request: Number | None = None
    run_url: Text | None = None
    asked_in: Text | None = None
    """The address of the comment that asked for it."""
    compare_url: Text | None = None
    """Where a person sees what a branch of our own adds, and can open a pull request for it."""
    attempts: tuple[Attempt, ...]
    """Those that worked on the task."""
    delivered_by: Number | None = None
    """The epoch of a later attempt that had nothing left to do but to deliver; None where one of `attempts` did."""
    trees: Trees
    changed_files: tuple[ChangedFile, ...] | None
    """None where it is not known, as in a plain directory."""
    commits: tuple[Commit, ...] = ()
    uncommitted: Uncommitted | None = None
    head_moved_to: ObjectId | None = None
    """The pull request's head, where it is no longer what the task began on."""
    settlements: tuple[Settlement, ...] = ()
    refused: tuple[Refused, ...] = ()
    failed_calls: Count = 0
    """How many calls ran and ended with an error."""
    steps: Count
    spent: Spent
    outside_effects: Count = 0
    """How many effects outside the workspace were started."""
    fingerprint: Fingerprint
    accepted_mismatches: tuple[Text, ...] = ()
    durability: Durability
    sandbox: Sandbox
    versions: dict[Text, Text]
    """Of this program, of python, git and the runner, by their names."""
    notes: tuple[Text, ...] = ()
    """Whatever else a reader must know, a sentence each."""

    def to_json(self) -> str:
        """The same text for the same evidence; ASCII, so that nothing in it can move a terminal's cursor."""
        shown = self.model_dump(mode="json", by_alias=True)
        return json.dumps(shown, sort_keys=True, indent=1) + "\n"


def parse_evidence(text: str | bytes, origin: str) -> Evidence:
    """What `Evidence.to_json` wrote. `origin` is how messages name it.

    Raises:
        NewerFormat: a newer release wrote it.
        InputError: it is no evidence, or was changed into something that is none.
    """
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    if len(data) > MAX_BYTES:
        raise _unusable(origin, f"it is larger than {MAX_BYTES // 1024 // 1024} MiB")
    try:
        return Evidence.model_validate_json(data)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)
    if (written := _format_of(data)) is not None and written > FORMAT:
        raise NewerFormat(
            f"{origin}: this evidence has format {written}, and this release reads up to {FORMAT}. "
            "Nothing was verified.",
            hint="Verify it with the release that wrote it; its version stands under `versions`.",
        )
    where = ".".join(str(part) for part in found[0]["loc"]) or "the file"
    raise _unusable(origin, f"{short(where)}: {short(found[0]['msg'])}")


def schema() -> str:
    """The JSON schema that is published in the reference."""
    made = Evidence.model_json_schema(by_alias=True)
    described = {"$schema": "https://json-schema.org/draft/2020-12/schema"} | made
    return json.dumps(described, sort_keys=True, indent=1) + "\n"


def _format_of(data: bytes) -> int | None:
    try:
        shown = json.loads(data)
    except (ValueError, RecursionError):
        return None
    written = shown.get("format") if isinstance(shown, dict) else None
    return written if type(written) is int else None


def _unusable(origin: str, why: str) -> InputError:
    return InputError(
        f"{origin} is no evidence that can be read: {why}. Nothing was verified.",
        hint="Use the evidence file of a run as it was written, whole and unchanged.",
    )
