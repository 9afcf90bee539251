"""Where a repository lies: its git directory, what it shares with others, and the file that leads to it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from endstate_action.state.snapshot import git_files
from endstate_action.state.snapshot.index import Index, IndexDamaged, parse

_BRANCH = re.compile(r"ref: (refs/heads/[^\n\0]+)\n?")


@dataclass(frozen=True, slots=True)
class Place:
    top: Path
    """The git directory."""
    common: Path
    """Where branches and objects are; another than `top` in a linked work tree."""
    dot: Path | None
    """The file `.git` of a linked work tree or submodule."""

    @property
    def is_there(self) -> bool:
        """A link to a directory is none: it can lead anywhere."""
        return self.top.is_dir() and not self.top.is_symlink()

    @property
    def work_places(self) -> list[Path]:
        """Where a git would run that is at work on this repository."""
        return [self.top, self.common, self.dot.parent if self.dot else self.top.parent]

    def branch_files(self) -> list[str]:
        """Of a linked work tree: its branch and that one's log, below `common`. The other branches belong to others."""
        head = git_files.read(self.top, "HEAD") if self.common != self.top else None
        named = _BRANCH.fullmatch(os.fsdecode(head.data)) if head else None
        return [path for path in (named[1], f"logs/{named[1]}") if is_branch_file(path)] if named else []

    def objects(self, store: str = "") -> Path:
        """Of this repository, or of the submodule whose git directory is at `store` below it."""
        return self.top / store / "objects" if store else self.common / "objects"

    def index(self, path: str, data: bytes, object_format: str) -> Index:
        """The index whose file at `path` holds `data`.

        Raises:
            IndexDamaged: that is none, or a part of it is missing.
        """

        def shared(name: str) -> bytes:
            part = git_files.read((self.top / path).parent, f"sharedindex.{name}")
            if part is None:
                raise IndexDamaged("a part of it is missing")
            return part.data

        return parse(data, object_format, shared)


def is_branch_file(path: str) -> bool:
    return git_files.is_state(path) and path.removeprefix("logs/").startswith("refs/heads/")
