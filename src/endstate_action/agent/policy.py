"""Which calls are allowed: protected paths first, then the first rule that matches, then the default.

The rules are trusted, the arguments are not. What cannot be checked completely is decided against
the call: a text too long to search matches every `deny` and no `allow`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import takewhile
from typing import Any, Literal

from endstate_action.config import Config, Rule

SEARCH_LIMIT = 64 * 1024
"""Characters of one argument that a rule's `match` is searched in."""

_READING = {"read", "glob", "grep"}

Segments = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Decision:
    """`reason` is for the model: which rule decided, and why."""

    allowed: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules of a run. Each `match` is a valid regular expression (`config` has seen to it)."""

    default: Literal["deny", "allow"]
    rules: tuple[Rule, ...]
    protected_paths: tuple[str, ...]

    @classmethod
    def from_config(cls, config: Config) -> Policy:
        return cls(config.policy.default, config.policy.rules, config.protected_paths)

    @classmethod
    def allowing_all(cls) -> Policy:
        """For embedders whose tools are their own choice: nothing is denied, no path is protected."""
        return cls("allow", (), ())

    def decide(self, tool: str, arguments: Mapping[str, Any]) -> Decision:
        """Whether this call may run. Pure; `arguments` may be any JSON object, checked or not."""
        if (refused := self._protected(tool, arguments)) is not None:
            return refused
        for number, rule in enumerate(self.rules, start=1):
            if _applies(rule, tool, arguments):
                return _by_rule(number, rule, tool)
        if self.default == "allow":
            return Decision(True, "No policy rule speaks of this call, and the default is to allow.")
        return Decision(False, f"No policy rule allows this call of {tool}, and the default is to deny.")

    def _protected(self, tool: str, arguments: Mapping[str, Any]) -> Decision | None:
        if tool in _READING:
            return None
        for path in _texts(arguments.get("path")):
            if (pattern := self.protecting(path)) is not None:
                return Decision(False, f"{path!r} is protected (protected-paths: {pattern}). Leave it as it is.")
        for path in _texts(arguments.get("paths")):
            if (refused := self._protected_below(path)) is not None:
                return refused
        return None

    def protecting(self, path: str) -> str | None:
        """The pattern that protects this path, if one does."""
        return next((pattern for pattern in self.protected_paths if _protects(pattern, path)), None)

    def _protected_below(self, path: str) -> Decision | None:
        """For a path that may be a directory and then stands for everything in it."""
        if (pattern := self.protecting(path)) is not None:
            return Decision(False, f"{path!r} is protected (protected-paths: {pattern}). Leave it out.")
        if any(_may_hold(pattern, path) for pattern in self.protected_paths):
            return Decision(
                False, f"{path!r} may hold protected files. Name the files one by one, relative to the workspace."
            )
        return None


def _by_rule(number: int, rule: Rule, tool: str) -> Decision:
    why = f": {rule.reason}" if rule.reason else "."
    verb = "allows" if rule.decision == "allow" else "denies"
    return Decision(rule.decision == "allow", f"Policy rule {number} {verb} this call of {tool}{why}")


def _applies(rule: Rule, tool: str, arguments: Mapping[str, Any]) -> bool:
    if rule.tool not in ("*", tool):
        return False
    return rule.match is None or _found(rule.match, rule.decision == "deny", arguments)


def _found(pattern: str, if_unknown: bool, arguments: Mapping[str, Any]) -> bool:
    texts = list(_texts(dict(arguments)))
    if any(re.search(pattern, text) for text in texts if len(text) <= SEARCH_LIMIT):
        return True
    # Never searched in part: `\Z` would match at the cut, in text that goes on.
    return if_unknown and any(len(text) > SEARCH_LIMIT for text in texts)


def _texts(value: Any) -> Iterator[str]:
    """Every text inside a JSON value. Without recursion: its depth is the model's choice."""
    waiting = [value]
    while waiting:
        match waiting.pop():
            case str() as text:
                yield text
            case Mapping() as inner:
                waiting.extend(inner.values())
            case list() | tuple() as items:
                waiting.extend(items)
            case _:
                pass


def _protects(pattern: str, path: str) -> bool:
    """Whether the pattern matches the path or a directory above it.

    A path that is absolute, or leaves the workspace and may come back, is matched at every depth:
    where the workspace lies is not known here.
    """
    anchored, parts = _segments(path)
    _, wanted = _segments(pattern)
    return _matches(wanted if anchored else ("**", *wanted), parts)


def _may_hold(pattern: str, path: str) -> bool:
    anchored, parts = _segments(path)
    _, wanted = _segments(pattern)
    literal = tuple(takewhile(lambda segment: not set(segment) & set("*?["), wanted))
    return not anchored or parts == literal[: len(parts)]


def _segments(path: str) -> tuple[bool, Segments]:
    """The path's names as the file system may compare them, and whether it begins at the workspace."""
    anchored = not path.startswith("/")
    parts: list[str] = []
    for name in path.split("/"):
        if name == ".." and not parts:
            anchored = False
        elif name == "..":
            parts.pop()
        elif name not in ("", "."):
            parts.append(_folded(name))
    return anchored, tuple(parts)


def _folded(name: str) -> str:
    """One spelling for all that macOS takes for the same name: case, composition, ignorable characters."""
    plain = "".join(c for c in unicodedata.normalize("NFKC", name) if unicodedata.category(c) != "Cf")
    return unicodedata.normalize("NFKC", plain.casefold())


def _matches(pattern: Segments, parts: Segments) -> bool:
    """Follows all readings of `**` at once, so that no path makes this slow."""
    reached = _through_stars(pattern, {0})
    for part in parts:
        if len(pattern) in reached:
            return True
        stay = {i for i in reached if pattern[i] == "**"}
        go = {i + 1 for i in reached - stay if fnmatchcase(part, pattern[i])}
        reached = _through_stars(pattern, stay | go)
    return len(pattern) in reached


def _through_stars(pattern: Segments, reached: set[int]) -> set[int]:
    found = set(reached)
    for i in range(len(pattern)):
        if i in found and pattern[i] == "**":
            found.add(i + 1)
    return found
