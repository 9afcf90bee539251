"""No known secret in a text that leaves: values are found as they are and in the usual disguises.

Seen: base64 (both alphabets, inside something longer), hex, URL and JSON encoding, reversed, and all
of these wrapped over lines. Not seen: a value that was encrypted, compressed, encoded twice, or cut
by other characters than white space.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import quote, quote_plus

MIN_CHARS = 8
"""Shorter values are not hidden: they occur by chance."""

_LINE_MIN_CHARS = 16
_BREAK = r"(?:\s|\\[nrt])*"

_SHAPES = (
    ("an Anthropic key", "sk-ant-", re.compile(r"sk-ant-[\w-]{16,}", re.ASCII)),
    ("a GitHub token", "gh", re.compile(r"\bgh[pousr]_[A-Za-z0-9]{20,}")),
    ("a GitHub token", "github_pat_", re.compile(r"github_pat_\w{20,}", re.ASCII)),
    ("an AWS access key", "AKIA", re.compile(r"\bAKIA[0-9A-Z]{16}\b")),
    ("a Slack token", "xox", re.compile(r"\bxox[abp]-[A-Za-z0-9-]{10,}")),
    (
        "a private key",
        "PRIVATE KEY-----",
        re.compile(
            r"-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----[A-Za-z0-9+/=\s\\:,-]{40,}?"
            r"(?:-----END [A-Z ]{0,20}PRIVATE KEY-----|(?![A-Za-z0-9+/=\s\\:,-]))"
        ),
    ),
)


class Secrets:
    """Known secret values by name, and how to find them in text.

    Values under 8 characters are ignored. Of a value of several lines, each line of 16 characters or
    more is a secret as well.
    """

    def __init__(self, values: Mapping[str, str]) -> None:
        found = {needle for name, value in values.items() for needle in _needles(name, value)}
        # The longest first, so that a whole value goes before its lines.
        self._needles = sorted(found, key=lambda n: (-len(n.text), n.name, n.text))

    def __repr__(self) -> str:
        return f"Secrets({', '.join(sorted({n.name for n in self._needles}))})"

    def redact(self, text: str) -> str:
        """The text with `[redacted: NAME]` for each known value, and a like mark for what looks like a token."""
        for needle in self._in(text):
            mark = f"[redacted: {needle.name}]"
            text = needle.pattern.sub(mark.replace("\\", "\\\\"), text)
        for kind, hint, pattern in _SHAPES:
            if hint in text:
                text = pattern.sub(f"[redacted: looks like {kind}]", text)
        return text

    def contains(self, text: str | bytes) -> list[str]:
        """Names of the known values that occur, sorted; shapes of tokens do not count."""
        decoded = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        return sorted({needle.name for needle in self._in(decoded)})

    def _in(self, text: str) -> Iterator[_Needle]:
        squeezed = _squeeze(text)
        folded = squeezed.lower()
        return (n for n in self._needles if n.text in (folded if n.any_case else squeezed))


@dataclass(frozen=True)
class _Needle:
    """One disguise of one value, without white space. With `any_case` it is in lower case and so must be the text."""

    name: str
    text: str
    any_case: bool

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Finds it in the text as it is, wrapped at whatever column."""
        return re.compile(_BREAK.join(map(re.escape, self.text)), re.IGNORECASE if self.any_case else 0)


def _needles(name: str, value: str) -> Iterator[_Needle]:
    value = value.strip()
    for part in {value, *(line.strip() for line in value.splitlines() if len(line.strip()) >= _LINE_MIN_CHARS)}:
        if len(part) < MIN_CHARS:
            continue
        exact = {part, part[::-1], json.dumps(part)[1:-1], json.dumps(part, ensure_ascii=False)[1:-1], *_base64(part)}
        folded = {_bytes(part).hex(), *_urls(part)} - {part}
        yield from (_Needle(name, text, any_case=False) for text in map(_squeeze, exact) if len(text) >= MIN_CHARS)
        yield from (_Needle(name, _squeeze(text).lower(), any_case=True) for text in folded)


def _base64(value: str) -> Iterator[str]:
    """Both alphabets; and as it may stand at any place in something longer, without the characters it shares."""
    for offset in range(3):
        data = b"\0" * offset + _bytes(value)
        core = slice(-(-offset * 8 // 6), len(data) * 8 // 6)
        yield base64.b64encode(data).decode()[core]
        yield base64.urlsafe_b64encode(data).decode()[core]


def _urls(value: str) -> Iterator[str]:
    data = _bytes(value)
    yield from (quote(data, safe=""), quote(data), quote_plus(data))


def _squeeze(text: str) -> str:
    """Without white space, raw or as JSON writes it: the cheap way to see through line wrapping."""
    return "".join(text.replace("\\n", "").replace("\\r", "").replace("\\t", "").split())


def _bytes(value: str) -> bytes:
    return value.encode("utf-8", "surrogateescape")
