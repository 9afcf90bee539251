"""What a configuration file can say, as frozen values, with the defaults of a run that has none.

A session keeps the configuration it was begun under (`to_json`), so that a resume decides by the
same rules; `from_json` therefore accepts what an older release wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from decimal import Decimal
from typing import Any, ClassVar, Literal

CONFIG_FILE = ".github/endstate.yml"
TOOLS = ("read", "glob", "grep", "write", "edit", "git_commit", "pr_comment", "bash")

ANSWER_TOKENS = 32_000
"""Of a request's `context.max-tokens`, what is reserved for the answer."""
LEAST_CONTEXT = 40_000
"""Tokens, and bytes, of a request that instructions, tools and the account of earlier steps leave some room in."""

Answer = Literal["deny", "allow"]


def kebab(name: str) -> str:
    return name.replace("_", "-")


# Read by pydantic when it checks a file (config/file.py); these classes stay free of it.
_KEBAB: Mapping[str, Any] = {"alias_generator": kebab}


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of the policy. `tool` is a tool's name or `*`; `match` is searched in each text argument."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = _KEBAB

    tool: str
    decision: Answer
    match: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PolicyRules:
    """The first rule that matches decides, `default` where none does."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = _KEBAB

    default: Answer = "deny"
    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True)
class SnapshotLimits:
    """What a snapshot of the workspace leaves out. `exclude` holds paths relative to the workspace."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = _KEBAB

    exclude: tuple[str, ...] = ()
    ignored_max_files: int = 5000
    ignored_max_mb: int = 64
    file_max_mb: int = 100


@dataclass(frozen=True, slots=True)
class ContextLimits:
    """How long a request to the model may become before older steps are compacted."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = _KEBAB

    max_tokens: int = 200_000
    max_bytes: int = 30_000_000


@dataclass(frozen=True, slots=True)
class ModelPrice:
    """USD per million tokens. A cache price that is not stated follows from `input`."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = _KEBAB

    input: Decimal
    output: Decimal
    cache_read: Decimal | None = None
    cache_write: Decimal | None = None


@dataclass(frozen=True, slots=True)
class Config:
    """One configuration file, or the defaults where there is none."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = _KEBAB

    policy: PolicyRules = PolicyRules(rules=tuple(Rule(tool, "allow") for tool in TOOLS))
    tools: tuple[str, ...] = TOOLS
    instructions: str | None = None
    env: tuple[str, ...] = ()
    snapshot: SnapshotLimits = SnapshotLimits()
    context: ContextLimits = ContextLimits()
    prices: Mapping[str, ModelPrice] = field(default_factory=dict)
    protected_paths: tuple[str, ...] = (".github/workflows/**",)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON under the keys of the file; prices are text, so that they stay exact."""
        plain: dict[str, Any] = _plain(self)
        return plain

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Config:
        """The inverse of `to_json`. Unknown keys are ignored, missing ones take today's default.

        Raises:
            SessionDamaged: a value is not what any release could have written.
        """
        # A resume without a configuration file need not pay for loading pydantic.
        if data == DEFAULT_CONFIG.to_json():
            return DEFAULT_CONFIG
        from endstate_action.config.file import restored

        return restored(data)


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        items = ((kebab(f.name), getattr(value, f.name)) for f in fields(value))
        return {name: _plain(v) for name, v in items if v is not None}
    match value:
        case Mapping():
            return {name: _plain(v) for name, v in value.items()}
        case tuple():
            return [_plain(v) for v in value]
        case Decimal():
            return str(value)
        case _:
            return value


DEFAULT_CONFIG = Config()
