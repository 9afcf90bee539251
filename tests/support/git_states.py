"""A repository whose state is captured and put back, and all that git can tell of it."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from endstate_action.state.snapshot.git_state import GitState
from endstate_action.state.snapshot.objects import ObjectStore
from tests.support.repos import Repo

WORD = "The quick brown fox jumps over the lazy dog and sees nothing new under the sun.\n"


@dataclass
class Kept:
    """A repository, a store of ours beside it, and what captures and restores the one in the other."""

    repo: Repo
    place: Path
    base: str | None
    git_dir: Path | None = None
    common_dir: Path | None = None
    dot_git: Path | None = None
    object_format: str = "sha1"
    store: ObjectStore = field(init=False)
    state: GitState = field(init=False)

    def __post_init__(self) -> None:
        self.store = ObjectStore(self.place, self.object_format, os.environ)
        if self.base:
            self.store.import_base(self.git_dir or self.repo.path / ".git", self.base)
        self.again()

    def again(self) -> None:
        """As a new process would find it."""
        git_dir = self.git_dir or self.repo.path / ".git"
        cache = self.place / "cache"
        self.state = GitState(self.store, git_dir, self.common_dir or git_dir, self.base, cache, self.dot_git)

    @property
    def git_path(self) -> Path:
        return self.git_dir or self.repo.path / ".git"


def keep(repo: Repo, place: Path, base: str | None = "HEAD", **more: object) -> Kept:
    return Kept(repo, place, base and repo.git("rev-parse", base), **more)  # type: ignore[arg-type]


def shown(repo: Repo) -> dict[str, str]:
    """Everything that git can tell of where a repository stands, by reading only."""
    flags = [line.split("flags:")[1] for line in repo.git("ls-files", "--debug").splitlines() if "flags:" in line]
    logs = sorted((repo.path / ".git").glob("logs/**/*")) if (repo.path / ".git").is_dir() else []
    return {
        "head": Path(repo.git("rev-parse", "--absolute-git-dir"), "HEAD").read_text(),
        "refs": repo.git("for-each-ref", "--format=%(refname) %(objectname) %(symref)"),
        "index": repo.git("ls-files", "-s", "-v", "-z"),
        "marks": " ".join(f"{int(word, 16) & 0x6000B000:x}" for word in flags),
        "undo": repo.git("ls-files", "--resolve-undo", "-z"),
        "status": repo.git("--no-optional-locks", "status", "--porcelain=v2", "--branch", "--show-stash"),
        "logs": "".join(f"{path.relative_to(repo.path)}\n{path.read_text()}" for path in logs if path.is_file()),
        "fsck": repo.git("fsck", "--connectivity-only", "--no-dangling"),
        "locks": " ".join(str(p) for p in (repo.path / ".git").rglob("*.lock")),
    }


def wipe(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)
