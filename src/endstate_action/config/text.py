"""Small words for messages: what a user wrote is shown quoted, bounded and on one line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from endstate_action.errors import InputError

Read = Callable[[str], bytes | None]
"""Gives a file's bytes, or None where there is no such file. Which commit or directory is the caller's choice."""

_SHOWN = 60


def quoted(value: Any) -> str:
    """JSON in ASCII, so that no name can forge a line of a log or hide in it."""
    text = json.dumps(value, default=str)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def suggestion(word: str, allowed: Iterable[str]) -> str:
    """`; did you mean edit?`, or nothing where no word is near."""
    import difflib  # only where somebody has mistyped

    near = difflib.get_close_matches(word, list(allowed), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def listed(words: Iterable[str]) -> str:
    return ", ".join(words)


def decoded(data: bytes, origin: str) -> str:
    """Strict UTF-8; a byte order mark is dropped.

    Raises:
        InputError: naming the origin and the first byte that is not UTF-8.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{origin} is not UTF-8 text (byte {error.start + 1}), so nothing was started.",
            hint=f"Give {origin} as UTF-8 and start again.",
        ) from None
