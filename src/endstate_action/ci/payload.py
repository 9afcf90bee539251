"""Reading JSON of GitHub: each value is what it should be, or an error names it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from endstate_action.config.text import quoted
from endstate_action.errors import InputError
from endstate_action.messages import scrub

_MAX_NUMBER = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Node:
    """One object of a payload, and its place there, for messages."""

    data: Mapping[str, Any]
    place: str

    def child(self, name: str) -> Node | None:
        """An object, or None where there is none."""
        value = self.data.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise refused(self._at(name), "is no object", value)
        return Node(value, self._at(name))

    def need(self, name: str) -> Node:
        found = self.child(name)
        if found is None:
            raise refused(self._at(name), "is missing")
        return found

    def has(self, name: str) -> bool:
        return self.data.get(name) is not None

    def text(self, name: str) -> str:
        """Text, `""` where there is none."""
        value = self.data.get(name)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise refused(self._at(name), "is no text", value)
        return scrub(value)

    def matching(self, name: str, pattern: re.Pattern[str], what: str) -> str:
        """Text of a certain shape."""
        value = self.text(name)
        if not pattern.fullmatch(value):
            raise refused(self._at(name), f"is no {what}", value)
        return value

    def number(self, name: str) -> int:
        """A whole number above 0."""
        value = self.data.get(name)
        if value is None:
            raise refused(self._at(name), "is missing")
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= _MAX_NUMBER:
            raise refused(self._at(name), "is no number above 0", value)
        return value

    def optional_number(self, name: str) -> int | None:
        return self.number(name) if self.has(name) else None

    def _at(self, name: str) -> str:
        return f"{self.place}.{name}" if self.place else name


def parse_object(data: bytes, origin: str) -> Node:
    """A JSON object.

    Raises:
        InputError: it is none; `origin` is how the message calls it.
    """
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise refused(origin, "is no JSON") from None
    if not isinstance(found, dict):
        raise refused(origin, "is no JSON object", found)
    return Node(found, "")


def refused(place: str, what: str, value: Any = None) -> InputError:
    shown = "" if value is None else f" ({quoted(value)})"
    return InputError(
        f"The event cannot be read: {place} {what}{shown}, so nothing was run.",
        hint="Check that GITHUB_EVENT_NAME and GITHUB_EVENT_PATH are those of this job and that no step changed the "
        "file; with act, that the file given with --eventpath has the shape of GitHub's webhook.",
    )
