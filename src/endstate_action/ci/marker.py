"""The hidden first line of a comment of ours: whose it is, and what the world has seen of the session.

Text alone proves nothing, since anybody can quote it: who wrote the comment is for the caller to check.
A marker counts only where we write it, in the first line, so a quoted one is not found. It carries what
a later attempt must know where nothing else survived (the outside effects that were started: a restore
that knows of fewer has a gap), and what `endstate verify` needs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from endstate_action.effects import canonical, digest

State = Literal[
    "working", "success", "stopped", "interrupted", "mismatch", "undelivered", "superseded", "failed"
]  # fmt: skip
"""`working`, or the conclusion."""

MAX_CHARACTERS = 1000

_LINE = re.compile(r"<!-- endstate:v1 (\{[^<>]*\}) -->")
_OWNER = re.compile(r"[0-9a-f]{16}")
_SESSION = re.compile(r"[0-9a-f]{12}")
_OBJECT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_HASH = re.compile(r"et1:[0-9a-f]{64}")
_MOST = 10**9


@dataclass(frozen=True, slots=True)
class Marker:
    """`effects` counts the outside effects that were started. The last four are there once there is a result."""

    owner: str
    session: str
    task: int
    effects: int
    state: State
    base: str | None = None
    """The base commit."""
    commit: str | None = None
    tree: str | None = None
    """The published tree, by git."""
    hash: str | None = None
    """The published tree's tree hash."""

    def line(self) -> str:
        """Plain ASCII without `<`, `>` or `--` between its ends, so that nothing can end it early.

        Raises:
            ValueError: a field has not the shape that `parse_marker` wants; nobody would find it again.
        """
        fields = {name: getattr(self, name) for name in self.__slots__}
        shown = {name: value for name, value in fields.items() if value is not None}
        if _read(shown) != self:
            raise ValueError("a marker with such fields could not be read back")
        return f"<!-- endstate:v1 {json.dumps(shown, sort_keys=True, separators=(',', ':'))} -->"


def owner_of(workflow: str, job: str, step: str, pull_request: int) -> str:
    """The slot of a sticky comment: one per workflow, job, step and pull request. 16 hex digits."""
    return digest(canonical([workflow, job, step, pull_request]))[:16]


def parse_marker(body: str) -> Marker | None:
    """The marker that a comment begins with; None where there is none, or one that we would not have written."""
    # GitHub turns line ends into CRLF when somebody edits a comment in a browser.
    first = body[: MAX_CHARACTERS + 1].partition("\n")[0].removesuffix("\r")
    found = _LINE.fullmatch(first)
    if found is None or len(first) > MAX_CHARACTERS:
        return None
    try:
        shown = json.loads(found[1])
    except (ValueError, RecursionError):
        return None
    return _read(shown)


def _read(shown: Mapping[str, Any]) -> Marker | None:
    """Keys of a later release are let be: it has to find the comments of this one, and the other way round."""
    base, commit, tree, hashed = (shown.get(name) for name in ("base", "commit", "tree", "hash"))
    is_ours = (
        _fits(_OWNER, shown.get("owner"))
        and _fits(_SESSION, shown.get("session"))
        and _counts(shown.get("task"), 1)
        and _counts(shown.get("effects"), 0)
        and shown.get("state") in get_args(State)
        and all(value is None or _fits(_OBJECT, value) for value in (base, commit, tree))
        and (hashed is None or _fits(_HASH, hashed))
    )
    if not is_ours:
        return None
    owner, session, task, effects, state = (shown[name] for name in ("owner", "session", "task", "effects", "state"))
    return Marker(owner, session, task, effects, state, base, commit, tree, hashed)


def _counts(value: Any, least: int) -> bool:
    return type(value) is int and least <= value <= _MOST


def _fits(shape: re.Pattern[str], value: Any) -> bool:
    return isinstance(value, str) and shape.fullmatch(value) is not None
