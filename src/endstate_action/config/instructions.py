"""Standing instructions for the agent: one file, read as it is, never through an include.

Only the file that was chosen is read; a line such as `@other.md` in it stays a line.
"""

from __future__ import annotations

from dataclasses import dataclass

from endstate_action.config.reveal import reveal
from endstate_action.config.text import Read, decoded, quoted
from endstate_action.errors import InputError
from endstate_action.messages import is_blank

USUAL_FILES = ("AGENTS.md", "CLAUDE.md")
MAX_BYTES = 32 * 1024


@dataclass(frozen=True, slots=True)
class Instructions:
    """`text` goes into the system prompt, with nothing hidden in it; `origin` is the file it came from."""

    text: str
    origin: str


def find_instructions(choice: str, read: Read) -> Instructions | None:
    """The file that `choice` names: `auto` is AGENTS.md, else CLAUDE.md; `none` is none; else a path.

    A blank file counts as none. What is longer than 32 KiB is cut after a line, and says so.

    Raises:
        InputError: the file that was named does not exist, or is not UTF-8.
    """
    if choice == "none":
        return None
    if choice != "auto":
        return _instructions(choice, _existing(choice, read))
    found = (_instructions(name, read(name)) for name in USUAL_FILES)
    return next((instructions for instructions in found if instructions is not None), None)


def _existing(path: str, read: Read) -> bytes:
    data = read(path)
    if data is None:
        raise InputError(
            f"instructions: {quoted(path)} does not exist, so nothing was started.",
            hint="Correct the name, or use auto (AGENTS.md, else CLAUDE.md) or none.",
        )
    return data


def _instructions(origin: str, data: bytes | None) -> Instructions | None:
    text = reveal(decoded(_cut(data, origin), origin)) if data is not None else ""
    return None if is_blank(text) else Instructions(text, origin)


def _cut(data: bytes, origin: str) -> bytes:
    if len(data) <= MAX_BYTES:
        return data
    kept = data[: data.rfind(b"\n", 0, MAX_BYTES) + 1] or _whole_characters(data[:MAX_BYTES])
    note = f"\n[{origin} has {len(data):,} bytes; only its first {len(kept):,} were read.]\n"
    return kept + note.encode("utf-8", "replace")


def _whole_characters(data: bytes) -> bytes:
    """Without the first bytes of a character that the cut took the rest of."""
    for taken in range(1, 4):
        if data[-taken] >= 0xC0:
            return data[:-taken]
    return data
