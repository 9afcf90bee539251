"""Patterns for paths: `*`, `?` and `[...]` inside one component, `**` for any number of them, `{a,b}`.

`*` also matches names that begin with a dot, and nothing depends on the case rules of the machine.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

from endstate_action.agent.tools.base import ToolError
from endstate_action.system.files import Workspace

MAX_ALTERNATIVES = 64

_BRACES = re.compile(r"\{([^{}]*,[^{}]*)\}")


@dataclass(frozen=True, slots=True)
class PathPattern:
    """A pattern that was parsed: each alternative is a path from the root, in components."""

    alternatives: tuple[tuple[str, ...], ...]

    @classmethod
    def parse(cls, pattern: str, workspace: Workspace) -> PathPattern:
        """Read an untrusted pattern.

        Raises:
            ToolError: too many alternatives.
            PathRefused: it leads out of the workspace or to what is hidden there.
        """
        return cls(tuple(tuple(workspace.relative(one).split("/")) for one in _alternatives(pattern)))

    def matches(self, path: str) -> bool:
        return any(len(segments) in _reached(segments, path) for segments in self.alternatives)

    def may_match_below(self, path: str) -> bool:
        """Whether it is worth looking into the directory `path`."""
        return any(at < len(segments) for segments in self.alternatives for at in _reached(segments, path))


def _alternatives(pattern: str) -> list[str]:
    done, left = [], [pattern]
    while left:
        one = left.pop()
        braces = _BRACES.search(one)
        if braces is None:
            done.append(one)
        else:
            left += [one[: braces.start()] + choice + one[braces.end() :] for choice in braces[1].split(",")]
        if len(done) + len(left) > MAX_ALTERNATIVES:
            raise ToolError(f"Nothing was searched: the braces stand for more than {MAX_ALTERNATIVES} patterns.")
    return done


def _reached(segments: tuple[str, ...], path: str) -> set[int]:
    """How many segments may be used up once all of `path` is; all of them means that it matches."""
    reached = _past_stars(segments, {0})
    for name in path.split("/"):
        stay = {at for at in reached if at < len(segments) and segments[at] == "**"}
        step = {at + 1 for at in reached if at < len(segments) and fnmatchcase(name, segments[at])}
        reached = _past_stars(segments, stay | step)
    return reached


def _past_stars(segments: tuple[str, ...], reached: set[int]) -> set[int]:
    """`**` may stand for no component at all."""
    for at, segment in enumerate(segments):
        if segment == "**" and at in reached:
            reached.add(at + 1)
    return reached
