"""What lies at a path of the work tree, and whether a commit could take it faithfully."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from endstate_action.system.names import display

Kind = Literal["absent", "directory", "file", "link", "special"]


def at(root: Path, path: bytes) -> Path:
    return root / os.fsdecode(path)


def kind(root: Path, path: bytes) -> Kind:
    """What is at `path` now. Behind a link there is nothing, as git sees it."""
    return "absent" if any(kind_of(at(root, step)) == "link" for step in _above(path)) else kind_of(at(root, path))


def kind_of(place: Path) -> Kind:
    """What is at `place` itself, links not followed."""
    try:
        mode = place.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return "absent"
    if stat.S_ISLNK(mode):
        return "link"
    if stat.S_ISDIR(mode):
        return "directory"
    return "file" if stat.S_ISREG(mode) else "special"


def problem(root: Path, path: bytes, gitlinks: set[bytes], attributes: Mapping[str, str]) -> str:
    """Why a commit must not take `path`, as a sentence that names it; empty if it may.

    Args:
        gitlinks: where the last commit has submodules.
        attributes: git's for this path, at least `filter`.
    """
    driver = attributes.get("filter", "unset")
    for step in (*_above(path), path):
        if step in gitlinks or _is_repository(at(root, step)):
            return f"{display(step)} is a repository of its own (a submodule, or one made inside this one)."
    match kind(root, path):
        case "special":
            return f"{display(path)} is neither a file nor a link."
        case "file" if driver not in ("unspecified", "unset"):
            return f"{display(path)} is content for the filter {driver!r} (.gitattributes), which is not run here."
    return ""


def refused_name(path: bytes) -> str:
    return f"{display(path)} has a name that git takes into no commit."


def _is_repository(place: Path) -> bool:
    return kind_of(place) == "directory" and kind_of(place / ".git") != "absent"


def _above(path: bytes) -> list[bytes]:
    """The directories that lead to `path`, outermost first."""
    steps = path.split(b"/")
    return [b"/".join(steps[:n]) for n in range(1, len(steps))]
