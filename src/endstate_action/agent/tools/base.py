"""The seam between the loop and what an agent can do.

A tool says what it does to the world (`effect`), and the loop holds it to that: arguments are
checked against `parameters` first, then `plan` looks (and may refuse) without touching anything,
then the start is recorded, and only then does `run` act.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar

from endstate_action.effects import EffectClass, Probe, canonical, digest
from endstate_action.system.files import Workspace
from endstate_action.system.redaction import Secrets

ABSENT = "absent"


class ToolError(Exception):
    """The call did not do what was asked; the text is for the model. Not an error of the run."""


@dataclass(frozen=True, slots=True)
class FileChange:
    """The whole of what a file tool will do: `path` goes from digest `before` to digest `after`.

    Digests are `effects.digest` of the file's bytes, or `ABSENT`. `content` is what will be written.
    """

    path: str
    before: str
    after: str
    content: bytes


@dataclass(frozen=True, slots=True)
class CallContext:
    """What one call gets from the loop. `started_at` and `key` are the same on every re-run of it."""

    workspace: Workspace
    key: str
    content_digest: str
    started_at: float
    """Seconds since the epoch at the call's first recorded start."""
    tag: str
    """Goes into the environment of every process that the call starts, so that a later attempt finds them."""
    env: Mapping[str, str] = field(default_factory=dict)
    """The allow-listed environment that calls may see."""
    time_left_s: float = 3600.0
    check: Callable[[], None] = lambda: None
    """Raises when this attempt was asked to stop; a tool that may take long calls it now and then."""
    secrets: Secrets = Secrets({})  # noqa: RUF009  holds no state that could change
    """What must not be shown. Results are redacted anyway; a tool that cuts a text redacts it before."""
    interruptible: Callable[[], AbstractContextManager[None]] = nullcontext
    """A block in which the same may be raised anywhere: for long computing that leaves nothing half done."""


@dataclass(frozen=True, slots=True)
class Probed:
    """Answer of a probe; `outcome` is what the model is told when the effect was found applied."""

    probe: Probe
    outcome: str = ""


class Tool(ABC):
    """One thing an agent can do. Subclass it for your own; `endstate_action.Tool` is this class."""

    name: ClassVar[str]
    description: ClassVar[str]
    parameters: ClassVar[Mapping[str, Any]]
    """JSON Schema (object, with `properties`, `required`); see `check_arguments` for the subset that is enforced."""
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ()
    """Arguments of calls that `endstate tools check` may make in a scratch workspace."""
    effect: EffectClass
    runs_in: str = ""
    """Fingerprint of the sandbox that a contained or networked call runs in; empty where it runs in none."""

    @property
    def idempotent(self) -> bool:
        """Whether running it again after an interruption leads to the same end state."""
        return self.effect in (EffectClass.READS, EffectClass.IDEMPOTENT)

    def plan(self, arguments: Mapping[str, Any], context: CallContext) -> FileChange | None:
        """Look before acting: raise `ToolError` to refuse, return the change where it is one file's.

        Must not change anything. May be called more than once for one call.
        """
        return None

    @abstractmethod
    def run(self, arguments: Mapping[str, Any], context: CallContext, plan: FileChange | None) -> str:
        """Act, and return what the model is told. Raises `ToolError` when it did not work."""

    def probe(self, arguments: Mapping[str, Any], context: CallContext) -> Probed:
        """For a keyed effect: was `context.key` applied? Must not change anything."""
        return Probed(Probe.UNKNOWN)

    def contract(self) -> dict[str, str]:
        """What a session is bound to: name, digest of the schema, effect class."""
        return {
            "name": self.name,
            "schema": digest(canonical(dict(self.parameters)))[:12],
            "effect": str(self.effect),
        }

    def definition(self) -> dict[str, Any]:
        """The tool as the provider is told of it; frozen with the session."""
        return {"name": self.name, "description": self.description, "input_schema": dict(self.parameters)}


_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "array": list,
    "object": dict,
}


def check_arguments(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that the schema does not allow, naming each problem for the model.

    Enforced: `required`, `type` (one name), `enum`, `minimum`, `items` types, and no unknown properties.

    Raises:
        ToolError: naming every missing, unknown and wrongly typed argument.
    """
    properties: Mapping[str, Any] = schema.get("properties", {})
    problems = [f"{name} is missing" for name in schema.get("required", ()) if name not in arguments]
    for name, value in arguments.items():
        if name not in properties:
            problems.append(f"{name} is not an argument of this tool")
        else:
            problems += _problems(name, properties[name], value)
    if problems:
        raise ToolError("Nothing was done: " + "; ".join(problems) + ".")


def _problems(name: str, schema: Mapping[str, Any], value: Any) -> list[str]:
    kind = schema.get("type")
    expected = _TYPES.get(kind) if isinstance(kind, str) else None
    if expected is not None and (not isinstance(value, expected) or (isinstance(value, bool) and kind != "boolean")):
        return [f"{name} must be of type {kind}"]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{name} must be one of {', '.join(map(str, schema['enum']))}"]
    if "minimum" in schema and value < schema["minimum"]:
        return [f"{name} must be at least {schema['minimum']}"]
    if isinstance(value, list) and "items" in schema:
        return [p for i, v in enumerate(value) for p in _problems(f"{name}[{i}]", schema["items"], v)]
    return []
