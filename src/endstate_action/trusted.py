"""The trusted commit: what the project itself says about how agents work on it, whatever a pull request says.

Configuration and instructions are read from it, and it is made available in the checkout, so that what changed since
can be looked at without a network.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from endstate_action.errors import InputError
from endstate_action.rules import NoRules
from endstate_action.state.snapshot.fetch import fetch_base
from endstate_action.state.snapshot.git_exchange import Exchange
from endstate_action.state.snapshot.git_graph import Graph, Listed
from endstate_action.state.snapshot.objects import ObjectStore
from endstate_action.system import git
from endstate_action.system.git_call import GitError
from endstate_action.system.names import short


@dataclass(frozen=True, slots=True)
class Trusted:
    """Reads commits of the repository at `workspace`."""

    workspace: Path
    repository: git.Repository
    scratch: Path
    environ: Mapping[str, str]
    git_extra: Mapping[str, str]

    @classmethod
    @contextmanager
    def of(cls, workspace: Path, environ: Mapping[str, str], git_extra: Mapping[str, str]) -> Iterator[Trusted]:
        """Raises: InputError: there is no checkout, or it cannot be read. Without one there is nothing to trust."""
        # The runner's own is emptied with every job: what a killed attempt left there does not pile up.
        temp = environ.get("RUNNER_TEMP") or ""
        with TemporaryDirectory(prefix="endstate-trusted-", dir=temp if os.path.isdir(temp) else None) as scratch:
            if not workspace.is_dir():
                raise InputError(
                    f"working-directory: {workspace} is not a directory; nothing was run and nothing was spent.",
                    hint="Check the repository out before this step, with actions/checkout.",
                )
            try:
                found = git.discover(workspace, environ, Path(scratch))
            except GitError as error:
                raise InputError(f"Git cannot read the checkout: {error} Nothing was run.") from error
            if found is None and (top := git.enclosing(workspace)) is not None:
                raise InputError(
                    f"working-directory: {workspace} is a directory inside the checkout {top}, and a workspace has to "
                    "be the root of one. Nothing was run and nothing was spent.",
                    hint="In a new run (a re-run keeps the workflow file), let working-directory name that root, and "
                    "say in the prompt which directory it is about; or check a repository out there, with "
                    "actions/checkout.",
                )
            if found is None:
                raise InputError(
                    f"{workspace} is no git checkout, or git is not installed; nothing was run and nothing was spent.",
                    hint="Check the repository out before this step, with actions/checkout, in a job that has git.",
                )
            yield cls(workspace, found, Path(scratch), environ, git_extra)

    def bring(self, commit: str, *, is_retry: bool = False) -> str:
        """Have the commit in the checkout, fetched without its history if it is not there.

        Returns why a retry has to do without, which it can where it goes on with what was frozen; else nothing.

        Raises:
            InputError: it is not to be had; nothing was run, since the project's own rules are in it.
        """
        repository = self.repository
        if not commit or repository.full_id(commit) is not None:
            return ""
        url = repository.remote_url()
        said = "the checkout has no remote named origin"
        if url is not None:
            objects = ObjectStore(
                self.scratch / "objects", repository.object_format, self.environ, workspace=self.workspace
            )
            said = fetch_base(objects, self.workspace, url, commit, self.environ, self.git_extra)
            if not said:
                Exchange(Graph(objects), None).give(repository.common_dir / "objects", Listed({}, frozenset()), commit)
                return ""
        if not is_retry:
            raise _missing(commit, f"could not be fetched: {said}")
        return said

    def read(self, commit: str, name: str) -> bytes | None:
        """A file as the commit has it, through links that stay in it; None where it has none.

        Raises:
            NoRules: what has its name is no file.
            InputError: the commit is not here, so nobody knows.
        """
        if not commit or not _can_be_committed(name):
            return None
        if self.repository.full_id(commit) is None:
            raise _missing(commit, f"could not be fetched, and {name} is to be read there.")
        try:
            return self.repository.read_at(commit, name)
        except git.NoFile as error:
            raise NoRules(
                f"{short(name)} {error} in the trusted commit {commit[:12]}, so it was not read. Nothing was run.",
                hint="Put a file in its place, in the target branch, and ask in a new run.",
            ) from error

    def parted(self, commit: str) -> str | None:
        """Where HEAD and the commit parted; None where the history that is here does not tell."""
        try:
            return self.repository.parted(commit) if commit else None
        except GitError:
            return None

    def diff_stat(self, commit: str) -> str:
        """What changed from the commit to HEAD, in git's words; empty where that cannot be told."""
        if not commit:
            return ""
        try:
            return self.repository.diff_stat(commit)
        except GitError:
            return ""

    def head(self) -> str | None:
        """The commit that is checked out."""
        return self.repository.head().commit


def _can_be_committed(name: str) -> bool:
    """Whether git takes it for a path below the workspace, which a configuration file may not have given."""
    is_below = not name.startswith(("/", ":")) and ".." not in name.split("/")
    return bool(name) and is_below and not re.search("[\0\ud800-\udfff]", name)


def _missing(commit: str, why: str) -> InputError:
    return InputError(
        f"The trusted commit {commit[:12]}, which has this repository's own rules for agents, is not in the checkout "
        f"and {why} Nothing was run and nothing was spent.",
        hint="See that github-token may read the contents, or give actions/checkout `fetch-depth: 0`.",
    )
