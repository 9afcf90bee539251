"""Text made to fit: cut between characters, never through one, and never without a word of what is missing."""

from __future__ import annotations

import re

from endstate_action.messages import scrub

_FENCE = re.compile(r" {0,3}(?P<marks>`{3,}|~{3,})(?P<info>.*)")


def size(text: str) -> int:
    """Bytes of UTF-8, which is what limits are stated in."""
    return len(text.encode("utf-8", "replace"))


def clip(text: str, max_bytes: int) -> str:
    """The beginning of the text that fits, without a mark."""
    return scrub(text).encode()[: max(max_bytes, 0)].decode("utf-8", "ignore")


def shorten(text: str, max_bytes: int) -> str:
    """The text, or as much of it as fits with a last line that says how much is missing."""
    return _shorten(text, max_bytes, is_markdown=False)


def shorten_markdown(text: str, max_bytes: int) -> str:
    """`shorten`, with a code fence that the cut left open closed; else all that follows would be code."""
    return _shorten(text, max_bytes, is_markdown=True)


def _shorten(text: str, max_bytes: int, *, is_markdown: bool) -> str:
    total = size(text)
    if total <= max_bytes:
        return scrub(text)
    room = max_bytes
    while True:
        kept = clip(text, room)
        tail = (_closing(kept) if is_markdown else "") + f"\n\n[{total - size(kept):,} bytes left out here]\n"
        over = size(kept) + size(tail) - max_bytes
        if over <= 0 or not kept:
            return clip(kept + tail, max_bytes)
        room = size(kept) - over


def _closing(text: str) -> str:
    """The line that closes the fence which is open at the end of the text."""
    marks = ""
    for line in text.split("\n"):
        found = _FENCE.fullmatch(line.rstrip("\r"))
        if found is None:
            continue
        if not marks:
            # A line such as ```a``` is code within a paragraph, not the beginning of a block.
            marks = "" if found["marks"][0] == "`" and "`" in found["info"] else found["marks"]
        elif found["marks"].startswith(marks) and not found["info"].strip():
            marks = ""
    return f"\n{marks}" if marks else ""
