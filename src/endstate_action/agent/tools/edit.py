"""Changing files: write and edit. Both are planned as one `FileChange` and carried out by content.

The plan has the digests before and after and the bytes to be written. Carrying it out a second time
finds the content already there and changes nothing; a file that someone else has changed since is
left alone. An edit touches no byte outside the difference between `old` and `new`: line endings,
byte order mark and encoding stay as they are.
"""

from __future__ import annotations

import difflib
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from endstate_action.agent.tools.base import CallContext, FileChange, Tool, ToolError
from endstate_action.agent.tools.text import decode, told
from endstate_action.effects import EffectClass, digest
from endstate_action.messages import scrub
from endstate_action.system.files import ABSENT, Workspace
from endstate_action.system.names import short
from endstate_action.system.redaction import Secrets

MAX_BYTES = 10_000_000
HINT_LINES = 5000
HINT_CHARACTERS = 200


class Write(Tool):
    """The whole content of one file."""

    name = "write"
    description = (
        "Create a file or replace its whole content. Missing directories are made; an existing file keeps its "
        "permissions. The text is written as given, in UTF-8. Use edit for a change of a part."
    )
    parameters: ClassVar[Mapping[str, Any]] = {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "Path of the file, from the workspace's root."},
            "content": {"type": "string", "description": "The whole new content."},
        },
        "required": ["path", "content"],
    }
    effect = EffectClass.IDEMPOTENT

    def plan(self, arguments: Mapping[str, Any], context: CallContext) -> FileChange:
        content = _encoded("content", str(arguments["content"]), "utf-8")
        with told():
            path = context.workspace.relative(str(arguments["path"]))
            return _change(path, context.workspace.digest(path), content)

    def run(self, arguments: Mapping[str, Any], context: CallContext, plan: FileChange | None) -> str:
        return _carry_out(plan or self.plan(arguments, context), context.workspace)


class Edit(Tool):
    """One text in a file for another."""

    name = "edit"
    description = (
        "Replace `old` by `new` in a file. `old` must be the exact text, with its indentation and without the line "
        "numbers that read shows, and must occur once unless `replace_all` is true. Line breaks in `old` and `new` "
        "stand for the file's own, whether LF or CRLF, unless you write \\r yourself. Every other byte stays as it is."
    )
    parameters: ClassVar[Mapping[str, Any]] = {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "Path of the file, from the workspace's root."},
            "old": {"type": "string", "description": "The text to replace."},
            "new": {"type": "string", "description": "The text to put in its place; may be empty."},
            "replace_all": {"type": "boolean", "description": "Replace every occurrence."},
        },
        "required": ["path", "old", "new"],
    }
    effect = EffectClass.IDEMPOTENT

    def plan(self, arguments: Mapping[str, Any], context: CallContext) -> FileChange:
        old, new = str(arguments["old"]), str(arguments["new"])
        if not old:
            raise ToolError("Nothing was changed: `old` is empty. Use write to create a file.")
        if old == new:
            raise ToolError("Nothing was changed: `old` and `new` are the same.")
        with told():
            path = context.workspace.relative(str(arguments["path"]))
            data = context.workspace.read(path, MAX_BYTES)
        content = _edited(path, data, old, new, context.secrets, replace_all=bool(arguments.get("replace_all")))
        return _change(path, digest(data), content)

    def run(self, arguments: Mapping[str, Any], context: CallContext, plan: FileChange | None) -> str:
        return _carry_out(plan or self.plan(arguments, context), context.workspace)


def _change(path: str, before: str, content: bytes) -> FileChange:
    if len(content) > MAX_BYTES:
        raise ToolError(f"Nothing was written: the content is longer than {MAX_BYTES:,} bytes.")
    return FileChange(path, before, digest(content), content)


def _carry_out(change: FileChange, workspace: Workspace) -> str:
    with told():
        now, found = workspace.digest(change.path), workspace.stat(change.path)
        size = f"{len(change.content):,} bytes"
        if now == change.after:
            return f"{change.path} already has this content ({size}); nothing was changed."
        if now != change.before:
            raise ToolError(f"{change.path} was not written: someone else changed it in between. Read it again.")
        workspace.write(change.path, change.content)
    was = f"was {found.st_size:,}" if found and change.before != ABSENT else "new"
    return f"Wrote {change.path} ({size}, {was})."


def _encoded(what: str, text: str, encoding: str) -> bytes:
    try:
        return text.encode(encoding)
    except UnicodeEncodeError as error:
        character = scrub(text[error.start : error.start + 1])
        raise ToolError(
            f"Nothing was changed: `{what}` holds {character!r} at character {error.start + 1}, "
            f"which {encoding} cannot hold."
        ) from None


def _edited(path: str, data: bytes, old: str, new: str, secrets: Secrets, *, replace_all: bool) -> bytes:
    decoded = decode(data)
    if decoded is None:
        raise ToolError(f"{path} was not changed: it is a binary file.")
    text = _Text(decoded[0], exact="\r" in old + new)
    for what, given in (("old", old), ("new", new)):
        _encoded(what, given, decoded[1])
    places = list(_places(text.seen, old))
    if not places:
        raise ToolError(f"{path} was not changed: `old` is not in it. {_hint(text.seen, old, secrets)}")
    if not replace_all:
        _refuse_a_choice(path, text.seen, old, places)
    return "".join(text.with_replaced(places, old, new)).encode(decoded[1])


class _Text:
    """A text whose lines end in \\n as the model sees it (`seen`), and its real line endings.

    With `exact` the two are the same, for those who write \\r themselves.
    """

    def __init__(self, real: str, *, exact: bool) -> None:
        self.real = real
        self.exact = exact
        self.seen = real if exact else real.replace("\r\n", "\n")
        self._shortened = () if exact else tuple(m.start() - n for n, m in enumerate(re.finditer("\r\n", real)))

    def with_replaced(self, places: list[int], old: str, new: str) -> Iterator[str]:
        """The real text, in pieces, with `new` for `old` at these places of `seen`; only what differs is replaced."""
        start, end = _common(old, new)
        done = 0
        for place in places:
            begin, finish = self._real(place + start), self._real(place + len(old) - end)
            yield self.real[done:begin]
            yield self._with_endings(new[start : len(new) - end], begin, finish)
            done = finish
        yield self.real[done:]

    def _real(self, at: int) -> int:
        return at + bisect_left(self._shortened, at)

    def _with_endings(self, new: str, begin: int, finish: int) -> str:
        """`new` with the line endings of what it replaces, in their order; then those of the place."""
        if self.exact or "\n" not in new:
            return new
        endings = re.findall("\r?\n", self.real[begin:finish]) or [self._ending_near(begin, finish)]
        first, *rest = new.split("\n")
        return first + "".join(endings[min(n, len(endings) - 1)] + line for n, line in enumerate(rest))

    def _ending_near(self, begin: int, finish: int) -> str:
        after = self.real.find("\n", finish)
        at = after if after >= 0 else self.real.rfind("\n", 0, begin)
        return "\r\n" if at > 0 and self.real[at - 1] == "\r" else "\n"


def _common(old: str, new: str) -> tuple[int, int]:
    """How many characters both begin with, and how many of the rest both end with."""
    start = _same(old, new)
    return start, _same(old[start:][::-1], new[start:][::-1])


def _same(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


def _places(text: str, old: str) -> Iterator[int]:
    at = text.find(old)
    while at >= 0:
        yield at
        at = text.find(old, at + len(old))


def _refuse_a_choice(path: str, text: str, old: str, places: list[int]) -> None:
    """Which of several places was meant would be a guess; places that overlap count as well."""
    overlapping = text.find(old, places[0] + 1)
    if overlapping < 0:
        return
    found = places if len(places) > 1 else [places[0], overlapping]
    at = ", ".join(str(text.count("\n", 0, place) + 1) for place in found[:10]) + ", …" * (len(found) > 10)
    raise ToolError(
        f"{path} was not changed: `old` is in it {len(found)} times (lines {at}). "
        "Give more of the text around the place you mean, or set replace_all."
    )


def _hint(text: str, old: str, secrets: Secrets) -> str:
    """What may have been meant: the same lines with other white space, or one line that is like the first."""
    wanted = old.strip().splitlines() or [""]
    if all(re.match(r"\s*\d+\t", line) for line in wanted):
        return "Leave out the line numbers that read puts before each line."
    present = [line.strip() for line in text.split("\n", HINT_LINES)[:HINT_LINES]]
    sought = [line.strip() for line in wanted]
    for at in range(len(present) - len(sought) + 1):
        if present[at : at + len(sought)] == sought:
            return f"From line {at + 1} on it differs in white space only; copy it exactly."
    near = difflib.get_close_matches(sought[0][:HINT_CHARACTERS], [line[:HINT_CHARACTERS] for line in present], 1)
    if near and near[0]:
        at = next(n for n, line in enumerate(present, 1) if line.startswith(near[0]))
        return f"The nearest is line {at}: {short(secrets.redact(present[at - 1])[:HINT_CHARACTERS])}"
    return "Read the file again."
