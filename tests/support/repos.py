"""Real git repositories, made on the spot and owned by nobody in particular."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

_IDENTITY = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "A Tester"), ("EMAIL", "tester@example.invalid"), ("DATE", "2026-01-01T00:00:00Z"))
}

Content = str | bytes


@dataclass(frozen=True, slots=True)
class Repo:
    """A working tree under git. The identity is in the environment of our own calls alone:
    code under test meets a repository that has none."""

    path: Path

    def git(self, *arguments: str) -> str:
        """Standard output without the last line end. Raises with git's own words when git fails."""
        command = ["git", "-C", str(self.path), *arguments]
        done = subprocess.run(command, env=os.environ | _IDENTITY, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"
        return done.stdout.removesuffix("\n")

    def write(self, files: Mapping[str, Content]) -> None:
        """Files by their path below the root; folders are made on the way."""
        for name, content in files.items():
            target = self.path / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content.encode() if isinstance(content, str) else content)

    def commit(self, files: Mapping[str, Content] | None = None, message: str = "change") -> str:
        """Commit everything, `files` included; the id of the commit."""
        self.write(files or {})
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)
        return self.git("rev-parse", "HEAD")


GitRepo = Callable[..., Repo]


@pytest.fixture
def git_repo(tmp_path: Path) -> GitRepo:
    """Call it for a repository with one commit on `main`: `git_repo({"a.txt": "a\\n"}, name="repo")`."""

    def make(files: Mapping[str, Content] | None = None, name: str = "repo") -> Repo:
        repo = Repo(tmp_path / name)
        repo.path.mkdir()
        repo.git("init", "--quiet", "--initial-branch=main")
        repo.commit({"README.md": "# A project\n"} if files is None else files, "begin")
        return repo

    return make
