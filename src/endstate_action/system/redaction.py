r"""No known secret in a text that leaves: values are found as they are and in the usual disguises.

Seen: base64 and base32 (both alphabets of each, inside something longer), its bytes listed in hex or as
decimal numbers (`736b`, `73:6b`, `73-6b`, `73,6b`, `0x73, 0x6b`, `115, 107`), reversed, any or all of its
characters escaped as in URLs, JSON, HTML or a program's source (`%73`, `\x73`, `\163`, `\u0073`, `\u{73}`,
`\U00000073`, `&#115;`, `&#x73;`), and all of these wrapped over lines, numbered or not; in bytes, any of these as
UTF-16 as well. Not seen: a value that was encrypted, compressed, encoded twice, or cut by other characters
than white space; and what a cut leaves of one that was escaped.
"""

from __future__ import annotations

import base64
import codecs
import itertools
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import quote, quote_plus

MIN_CHARS = 8
"""Shorter values are not hidden: they occur by chance."""

_LINE_MIN_CHARS = 16
_TORN_MIN_CHARS = 4
# What begins a line where lines are numbered, as `cat -n` and the `read` tool do, counts as white space too.
_NUMBER = re.compile(r"(?:\n|\\n) {0,12}[0-9]{1,9}(?:\t|\\t)")
_BLANK = re.compile(rf"{_NUMBER.pattern}|\s|\\[nrt]")
_BREAK = f"(?:{_BLANK.pattern})*"
# How programs write one character: in URLs, HTML, string literals, JSON and shells. Backslashes are read from their
# first on, or a long row of them would be read again from each.
_ESCAPED = re.compile(
    r"%([0-9a-fA-F]{2})|&#[xX]([0-9a-fA-F]{1,6});"
    r"|(?<!\\)\\++(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|u\{([0-9a-fA-F]{1,6})\}|U([0-9a-fA-F]{8})"
    r"|0?([0-3][0-7]{2}|[0-7]{2})|([^\w\s\\]))|&#([0-9]{1,7});|&(amp|lt|gt|quot|apos);",
    re.ASCII,
)
_BASES = dict.fromkeys(range(1, 7), 16) | {7: 8, 9: 10}
"""Of the numbers in its groups."""
_NAMED = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}
_LONGEST_ESCAPE = len(r"\\U00000041")
_PIECE_BYTES = 1 << 20

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
        self._longest = _LONGEST_ESCAPE * len(self._needles[0].text) if self._needles else 0

    def __repr__(self) -> str:
        return f"Secrets({', '.join(sorted({n.name for n in self._needles}))})"

    def redact(self, text: str, *, begins_torn: bool = False, ends_torn: bool = False) -> str:
        """The text with `[redacted: NAME]` for each known value, and a like mark for what looks like a token.

        Args:
            begins_torn: the text was cut at its beginning, so that it may begin with the rest of a value.
            ends_torn: it was cut at its end, and may end with the beginning of one.
        """
        text = self.hide(text)
        for kind, hint, pattern in _SHAPES:
            if hint in text:
                text = pattern.sub(f"[redacted: looks like {kind}]", text)
        text = self._without_torn(text, _rest_at_beginning, r"\A{0}{1}") if begins_torn else text
        return self._without_torn(text, _beginning_at_end, r"{1}{0}\Z") if ends_torn else text

    def hide(self, text: str) -> str:
        """The text with `[redacted: NAME]` for each known value, and nothing else changed."""
        for needle in self._in(text):
            text = needle.hidden_in(text)
        return text

    def contains(self, text: str | bytes) -> list[str]:
        """Names of the known values that occur, sorted; shapes of tokens do not count. Bytes are read as a file."""
        if isinstance(text, bytes):
            return self.in_pieces(text[at : at + _PIECE_BYTES] for at in range(0, len(text), _PIECE_BYTES))
        return sorted({needle.name for needle in self._in(text)})

    def in_pieces(self, pieces: Iterable[bytes]) -> list[str]:
        """`contains` for a file of any size and kind, in pieces as they were read; sees through UTF-16 as well."""
        if not self._needles:
            return []
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        names: set[str] = set()
        before = ""
        for piece in pieces:
            # Enough of what was before that a value cut by the reading is whole again.
            before = _squeeze(before[-self._longest :] + decoder.decode(piece.replace(b"\0", b"")))
            names.update(self.contains(before))
        return sorted(names)

    def _in(self, text: str) -> Iterator[_Needle]:
        squeezed = _squeeze(text)
        folded = squeezed.lower()
        plain = _ESCAPED.sub(_character, squeezed)
        in_plain = (n for n in self._needles if n.escaped and n.text in plain) if plain != squeezed else ()
        whole = (n for n in self._needles if not n.escaped and n.text in (folded if n.any_case else squeezed))
        return itertools.chain(whole, in_plain)

    def _without_torn(self, text: str, left: Callable[[str, str], str], place: str) -> str:
        """The text without the longest piece of a value that a cut left at one end of it."""
        squeezed = _squeeze(text)
        folded = squeezed.lower()
        pieces = ((left(folded if n.any_case else squeezed, n.text), n) for n in self._needles)
        piece, needle = max(pieces, key=lambda found: len(found[0]), default=("", None))
        if needle is None or len(piece) < _TORN_MIN_CHARS:
            return text
        pattern = place.format(_BREAK, _BREAK.join(map(re.escape, piece)))
        return re.sub(pattern, _literally(needle.mark), text, flags=needle.flags)


@dataclass(frozen=True)
class _Needle:
    """One disguise of one value, without white space.

    With `any_case` it is in lower case and so must be the text. With `escaped` it is the value itself, of
    which any character may be escaped.
    """

    name: str
    text: str
    any_case: bool = False
    escaped: bool = False

    @property
    def mark(self) -> str:
        return f"[redacted: {self.name}]"

    @property
    def flags(self) -> re.RegexFlag:
        return re.IGNORECASE if self.any_case else re.NOFLAG

    def hidden_in(self, text: str) -> str:
        if self.escaped:
            return _without_escaped(text, self.text, self.mark)
        return self.pattern.sub(_literally(self.mark), text)

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Finds it in the text as it is, wrapped at whatever column."""
        return re.compile(_BREAK.join(map(re.escape, self.text)), self.flags)


def _needles(name: str, value: str) -> Iterator[_Needle]:
    value = value.strip()
    for part in {value, *(line.strip() for line in value.splitlines() if len(line.strip()) >= _LINE_MIN_CHARS)}:
        if len(part) < MIN_CHARS:
            continue
        exact = {part, part[::-1], json.dumps(part)[1:-1], json.dumps(part, ensure_ascii=False)[1:-1], *_base64(part)}
        folded = {*_listed(_bytes(part)), *_base32(part), *_urls(part)} - {part}
        yield from (_Needle(name, text) for text in map(_squeeze, exact) if len(text) >= MIN_CHARS)
        yield from (_Needle(name, _squeeze(text).lower(), any_case=True) for text in folded)
        yield from (_Needle(name, text, escaped=True) for text in (_squeeze(part),) if len(text) >= MIN_CHARS)


def _beginning_at_end(text: str, needle: str) -> str:
    """The longest beginning of the needle that the text ends with, if it is long enough to count."""
    last = text[-_TORN_MIN_CHARS:]
    at = needle.rfind(last) if len(last) == _TORN_MIN_CHARS else -1
    while at >= 0 and not text.endswith(needle[: at + len(last)]):
        at = needle.rfind(last, 0, at + len(last) - 1)
    return needle[: at + len(last)] if at >= 0 else ""


def _rest_at_beginning(text: str, needle: str) -> str:
    """The longest end of the needle that the text begins with, if it is long enough to count."""
    first = text[:_TORN_MIN_CHARS]
    at = needle.find(first) if len(first) == _TORN_MIN_CHARS else -1
    while at >= 0 and not text.startswith(needle[at:]):
        at = needle.find(first, at + 1)
    return needle[at:] if at >= 0 else ""


def _literally(mark: str) -> str:
    return mark.replace("\\", "\\\\")


def _base64(value: str) -> Iterator[str]:
    yield from _inside(value, base64.b64encode, 6)
    yield from _inside(value, base64.urlsafe_b64encode, 6)


def _base32(value: str) -> Iterator[str]:
    yield from _inside(value, base64.b32encode, 5)
    yield from _inside(value, base64.b32hexencode, 5)


def _inside(value: str, encode: Callable[[bytes], bytes], bits: int) -> Iterator[str]:
    """Encoded as it may stand at any place in something longer, without the characters it shares.

    Args:
        bits: so many of the value's bits are in one character.
    """
    for offset in range(math.lcm(8, bits) // 8):
        data = b"\0" * offset + _bytes(value)
        yield encode(data).decode()[-(-offset * 8 // bits) : len(data) * 8 // bits]


def _listed(data: bytes) -> Iterator[str]:
    """Its bytes one after the other in hex and as decimal numbers, with what may stand between them but white space."""
    yield data.hex()
    yield from (data.hex(between) for between in ":-,")
    for between in ("", ","):
        yield between.join(f"0x{byte:02x}" for byte in data)
        yield between.join(map(str, data))


def _urls(value: str) -> Iterator[str]:
    data = _bytes(value)
    yield from (quote(data, safe=""), quote(data), quote_plus(data))


def _character(escape: re.Match[str]) -> str:
    """What `_ESCAPED` found, as the character that is meant; nothing for white space and for what is none."""
    digits = escape[escape.lastindex or 0]
    if base := _BASES.get(escape.lastindex or 0):
        code = int(digits, base)
        return chr(code).strip() if code <= sys.maxunicode else ""
    return _NAMED.get(digits, digits)


def _without_escaped(text: str, value: str, mark: str) -> str:
    """The text with the mark where the value is meant, whatever is escaped in it and wherever it is wrapped."""
    places = [(at, at + 1) for at in range(len(text))]
    squeezed, places = _replaced(text, places, _BLANK, lambda blank: "")
    plain, places = _replaced(squeezed, places, _ESCAPED, _character)
    for found in reversed([*re.finditer(re.escape(value), plain)]):
        text = text[: places[found.start()][0]] + mark + text[places[found.end() - 1][1] :]
    return text


def _replaced(
    text: str, places: list[tuple[int, int]], pattern: re.Pattern[str], by: Callable[[re.Match[str]], str]
) -> tuple[str, list[tuple[int, int]]]:
    """`pattern.sub(by, text)`, and of each of its characters the place that it takes in the original.

    Args:
        places: the same of each character of `text`.
    """
    pieces: list[str] = []
    kept: list[tuple[int, int]] = []
    done = 0
    for found in pattern.finditer(text):
        new = by(found)
        pieces += (text[done : found.start()], new)
        kept += places[done : found.start()]
        kept += [(places[found.start()][0], places[found.end() - 1][1])] * len(new)
        done = found.end()
    return "".join([*pieces, text[done:]]), kept + places[done:]


def _squeeze(text: str) -> str:
    """Without white space, raw or as JSON writes it: the cheap way to see through line wrapping."""
    if "\t" in text or "\\t" in text:
        text = _NUMBER.sub("", text)
    return "".join(text.replace("\\n", "").replace("\\r", "").replace("\\t", "").split())


def _bytes(value: str) -> bytes:
    return value.encode("utf-8", "surrogateescape")
