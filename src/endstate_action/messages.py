"""The conversation, in values. Blocks are JSON objects exactly as the provider sent or wants them.

A block is `{"type": "text" | "thinking" | "tool_use" | "tool_result" | ..., ...}`, the shape of the
Messages API. It is kept verbatim, since a provider rejects a thinking block that changed by a byte.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, SupportsFloat

Block = Mapping[str, Any]
Role = Literal["user", "assistant"]

VERBATIM = frozenset({"thinking", "redacted_thinking"})
"""Types of blocks that a provider takes back unchanged or not at all."""

_FORMAT = frozenset({"Cf", "Cc", "Zs", "Zl", "Zp"})
# Letters and marks that are drawn as nothing: Unicode's Default_Ignorable_Code_Point beyond the categories above.
_DRAWN_AS_NOTHING = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2065\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufff8\U000e0000-\U000e0fff]"
)
_HALVES = re.compile("[\ud800-\udfff]")


class ToolCall(NamedTuple):
    """One request of the model. `arguments` is untrusted until the tool's schema has accepted it."""

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What the model is told about a call. `content` is never blank."""

    call_id: str
    content: str
    is_error: bool = False

    def block(self) -> Block:
        shown = self.content if not is_blank(self.content) else "(no output)"
        block: dict[str, Any] = {"type": "tool_result", "tool_use_id": self.call_id, "content": shown}
        return block | {"is_error": True} if self.is_error else block


class Usage(NamedTuple):
    """Tokens of one or several replies. They add up."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:  # type: ignore[override]
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
        )

    @property
    def context_tokens(self) -> int:
        """Size of the request that this usage answers, cached or not."""
        return self.input_tokens + self.cache_read_tokens + self.cache_write_tokens


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of the history as a provider sees it."""

    role: Role
    blocks: tuple[Block, ...]

    @classmethod
    def user(cls, text: str) -> Message:
        return cls("user", (text_block(text),))

    @classmethod
    def assistant(cls, text: str, *calls: ToolCall) -> Message:
        said = () if is_blank(text) else (text_block(text),)
        asked = ({"type": "tool_use", "id": c.id, "name": c.name, "input": dict(c.arguments)} for c in calls)
        return cls("assistant", (*said, *asked))

    @property
    def text(self) -> str:
        """The visible text blocks, joined by an empty line."""
        return visible_text(self.blocks)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return tool_calls(self.blocks)


def text_block(text: str) -> Block:
    return {"type": "text", "text": text}


def visible_text(blocks: Iterable[Block]) -> str:
    texts = (str(b.get("text", "")) for b in blocks if b.get("type") == "text")
    return "\n\n".join(t for t in texts if not is_blank(t))


def tool_calls(blocks: Iterable[Block]) -> tuple[ToolCall, ...]:
    """The calls a reply asks for, in order. A call whose input is no object has no arguments."""
    return tuple(
        ToolCall(str(b.get("id", "")), str(b.get("name", "")), b["input"] if isinstance(b.get("input"), dict) else {})
        for b in blocks
        if b.get("type") == "tool_use"
    )


def in_part(text: str, most_bytes: int) -> str:
    """At most so many bytes of UTF-8, and the words between them: head and tail, with what was left out."""
    data = text.encode()
    if len(data) <= most_bytes:
        return text
    half = most_bytes // 2
    head, tail = data[:half].decode(errors="ignore"), data[-half:].decode(errors="ignore")
    return f"{head}\n[… {len(data) - 2 * half} bytes left out …]\n{tail}"


def is_blank(text: str) -> bool:
    """Whether a provider would call this text empty: white space and characters that nobody sees only."""
    return all(
        c.isspace() or unicodedata.category(c) in _FORMAT or _DRAWN_AS_NOTHING.match(c) is not None for c in text
    )


def count_of(number: int, noun: str) -> str:
    """`1 call`, `2 calls`, `1,000 processes`."""
    if number != 1:
        noun += "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}"


def dollars(usd: SupportsFloat | str) -> str:
    """`$5.00`, `$0.0012`: to the cent, or to the first two digits that are not zero, since a little is not nothing."""
    amount = float(usd)
    if amount == 0 or amount >= 0.01:
        return f"${amount:.2f}"
    return f"${amount:.{1 - math.floor(math.log10(amount))}f}".rstrip("0")


def scrub(text: str) -> str:
    """Replace what strict UTF-8 cannot carry (lone surrogates), at the door where text enters.

    By a character that no shell and no pattern takes for any other: a question mark would name every file.
    """
    return text if text.isascii() else _HALVES.sub("\N{REPLACEMENT CHARACTER}", text)


def scrub_json(value: Any) -> Any:
    """`scrub` for every string inside a JSON value, keys included."""
    match value:
        case str():
            return scrub(value)
        case list() | tuple():
            return [scrub_json(v) for v in value]
        case dict():
            return {scrub(str(k)): scrub_json(v) for k, v in value.items()}
        case _:
            return value
