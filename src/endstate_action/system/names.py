"""Names of files as text: each has one spelling, printable and strict UTF-8, that leads back to its bytes."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

Parts = tuple[bytes, ...]
"""The components of a path from the workspace's root."""

# Printable ASCII has no escaped spelling, so no rule about paths can be avoided by one.
_ESCAPED = re.compile(r"\\x(0[0-9a-f]|1[0-9a-f]|5c|7f|[89a-f][0-9a-f])")


def display(name: bytes) -> str:
    r"""A name as printable text that `parse` turns back into the same bytes.

    Bytes that are not UTF-8 and characters that do not print (a newline, a direction mark) become
    `\xNN`; a backslash that looks like the start of one becomes `\x5c`.
    """
    text = _ESCAPED.sub(lambda found: r"\x5c" + found[0][1:], name.decode("utf-8", "surrogateescape"))
    return text if text.isprintable() else "".join(c if c.isprintable() else _escape(c) for c in text)


def _escape(character: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))


def parse(shown: str) -> bytes:
    """The name that `display` shows so. Plain text is itself.

    Raises:
        ValueError: half a character, or a spelling that `display` would not have chosen (each name has one).
    """
    try:
        name = shown.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("The path holds half a character (a lone surrogate).") from None
    if not _ESCAPED.search(shown):
        return name
    name = re.sub(_ESCAPED.pattern.encode(), lambda found: bytes([int(found[1], 16)]), name)
    if display(name) != shown:
        raise ValueError(f"No file is called {short(shown)}: write {short(display(name))}.")
    return name


def components(name: bytes) -> Parts:
    """Split at slashes, with `.` and `..` worked out in the text.

    Raises:
        ValueError: `..` goes above the start.
    """
    parts: list[bytes] = []
    for part in name.split(b"/"):
        if part == b"..":
            if not parts:
                raise ValueError("`..` leads out of the workspace.")
            parts.pop()
        elif part not in (b"", b"."):
            parts.append(part)
    return tuple(parts)


def fold(name: bytes) -> str:
    """How a file system that ignores case and invisible characters (macOS) compares a name."""
    text = name.decode("utf-8", "surrogateescape")
    return "".join(c for c in text if unicodedata.category(c) != "Cf").casefold()


def few(names: Sequence[str], most: int = 3) -> str:
    """The first of them, for a message: `a, b, c and 4 more`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def short(text: str) -> str:
    """Untrusted text in a message: printable, strict UTF-8, bounded."""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return shown if len(shown) <= 200 else f"{shown[:120]}…{shown[-60:]}"
