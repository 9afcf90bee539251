"""What was changed, as a patch: whole for `git apply`, and bounded for people.

Applied to a clean checkout of the base it gives the very tree it was made of: modes, links, deletions, binary
files and odd names included. It is made from two trees of objects, so no work-tree file is read and nothing
found in the repository is executed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from endstate_action.system.git_aside import Aside

SHOWN_LINES = 200
SHOWN_CHARACTERS = 20_000

# Neither a driver for a kind of file nor a configured prefix may have a say in what is applied.
_EXACT = ("-r", "-p", "-M", "--full-index", "--no-color", "--no-ext-diff", "--no-textconv")
_PREFIXES = ("--src-prefix=a/", "--dst-prefix=b/")


@dataclass(frozen=True, slots=True)
class Patch:
    data: bytes
    """For `git apply`; empty where the trees are the same."""
    shown: str
    """Its beginning, for reading: binary content is only mentioned."""
    hidden_lines: int
    """How many lines are not in `shown`."""


def make_patch(seen: Aside, before: str, after: str, without: Sequence[bytes] = ()) -> Patch:
    """The patch that makes the tree `after`, but for the paths `without`, out of the tree `before`.

    Raises:
        GitError: git failed.
    """
    command = ("--no-literal-pathspecs", "diff-tree", *_EXACT, *_PREFIXES)
    trees = (before, after, "--", ":/", *(":(top,exclude,literal)" + os.fsdecode(path) for path in without))
    data = seen.git.out(*command, "--binary", *trees)
    text = seen.git.out(*command, *trees).decode("utf-8", "replace")
    lines = text.removesuffix("\n").split("\n") if text else []
    shown = _beginning(lines)
    return Patch(data, "\n".join(shown), len(lines) - len(shown))


def _beginning(lines: list[str]) -> list[str]:
    total, shown = 0, []
    for line in lines[:SHOWN_LINES]:
        total += len(line) + 1
        if total > SHOWN_CHARACTERS:
            break
        shown.append(line)
    return shown
