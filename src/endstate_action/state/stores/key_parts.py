"""Keys taken apart: `es1/<lineage>/<name>`, where a name is safe as a file's and as a git tree's entry."""

from __future__ import annotations

import re

from endstate_action.state.keys import ROOT, is_lineage

# No dot: names that begin with one are a store's own files, and no name can climb out of its directory.
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,99}")


def is_name(text: str) -> bool:
    """Whether it can be the last part of a key; names that a store lists are not trusted."""
    return _NAME.fullmatch(text) is not None


def split(key: str) -> tuple[str, str]:
    """The lineage and the name of a key, or of a prefix that ends within the name.

    Raises:
        ValueError: `state.keys` makes no such key.
    """
    lineage, _, name = key.removeprefix(ROOT).partition("/")
    if not key.startswith(ROOT) or not is_lineage(lineage) or not is_name(name):
        raise ValueError(f"{key!r} is no key of a store")
    return lineage, name


def highest(names: list[str], beginning: str) -> str | None:
    """The last in order of those `names` that begin so."""
    return max((name for name in names if name.startswith(beginning)), default=None)


def key(lineage: str, name: str) -> str:
    return f"{ROOT}{lineage}/{name}"
