"""Where calls run: the tools, the sandbox and the snapshots of one workspace, made from what is there today."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from endstate_action.agent.observe import Observer
from endstate_action.agent.policy import Policy
from endstate_action.agent.tools.base import Tool
from endstate_action.agent.tools.commit import GitCommit
from endstate_action.agent.tools.edit import Edit, Write
from endstate_action.agent.tools.read import Glob, Grep, Read
from endstate_action.agent.tools.shell import Bash
from endstate_action.config import Config, SandboxChoice
from endstate_action.errors import InputError, OutcomeUnknown, StateError
from endstate_action.state.directory import StateDirectory
from endstate_action.state.snapshot import ObjectStore, Restored, SnapshotStore
from endstate_action.state.snapshot.git_state import GitState
from endstate_action.state.snapshot.ignored import ignored_paths, user_excludes_file
from endstate_action.state.snapshot.layout import format_of
from endstate_action.state.snapshot.restore import read_journal
from endstate_action.system.git import Repository, presume
from endstate_action.system.git_call import GitError
from endstate_action.system.proctable import end_tagged
from endstate_action.system.sandbox import NoSandbox, Sandbox
from endstate_action.system.sandbox_lock import CallLock
from endstate_action.system.sandbox_probe import probe

ORPHAN_PATIENCE_S = 10.0
"""How long a resume waits for the sandbox of a dead attempt, which ends with the process that started it."""


@dataclass(frozen=True, slots=True)
class Workplace:
    """One workspace for one session. `bound` is what the session was bound to when it began."""

    workspace: Path
    state: StateDirectory
    repository: Repository | None
    environ: Mapping[str, str]
    bound: Mapping[str, Any]
    config: Config
    trust: str | None = None
    """`Repository.trust` of this checkout, where the session was begun in another one."""

    @property
    def state_name(self) -> str:
        return self.state.path.relative_to(self.workspace).as_posix()

    def objects(self) -> ObjectStore:
        """A view of the object store; each thread needs one of its own."""
        kind = self.repository.object_format if self.repository else "sha1"
        return ObjectStore(self.state.path / "objects", kind, self.environ, workspace=self.workspace)

    def snapshots(self) -> SnapshotStore:
        """The snapshots of this workspace, with the project's git state where there is one.

        Raises:
            StateError: the state directory is on another file system, or the base commit cannot be read.
        """
        repository, base, objects = self.repository, self.bound.get("base"), self.objects()
        if repository is None:
            return SnapshotStore(
                objects,
                self.workspace,
                excluded=(self.state_name,),
                limits=self.config.snapshot,
                cache=self.state.cache,
            )
        if base is not None:
            objects.import_base(repository.git_dir, base)
        excludes = user_excludes_file(self.workspace, repository.git_dir, self.environ)
        return SnapshotStore(
            objects,
            self.workspace,
            excluded=(self.state_name, ".git"),
            limits=self.config.snapshot,
            cache=self.state.cache,
            git_state=GitState(
                objects,
                repository.git_dir,
                repository.common_dir,
                base,
                self.state.cache,
                dot_git=self.workspace / ".git",
            ),
            ignored=lambda: ignored_paths(objects, self.workspace, repository.git_dir, repository.common_dir, excludes),
        )

    def observer(self, snapshots: SnapshotStore, check: Callable[[], None]) -> Observer:
        return Observer(
            self.workspace,
            (".git", self.state_name),
            cache=self.state.cache,
            head=self.head,
            refs=self.tips,
            snapshots=snapshots,
            check=check,
        )

    def head(self) -> str | None:
        """The commit at HEAD; what an agent did to `.git` must not end its run."""
        try:
            return self.repository.full_id("HEAD") if self.repository else None
        except GitError:
            return "unreadable"

    def refs(self) -> dict[str, str]:
        """What the repository's own refs name; what an agent did to `.git` must not end its run."""
        try:
            return self.repository.refs() if self.repository else {}
        except GitError:
            return {}

    def tips(self) -> dict[str, str]:
        """`Repository.tips`, in the same way."""
        try:
            return self.repository.tips() if self.repository else {}
        except GitError:
            return {}

    def sandbox(
        self,
        choice: SandboxChoice,
        *,
        network: bool,
        make: Callable[[Callable[[], Sandbox | NoSandbox]], Sandbox | NoSandbox] = lambda probe: probe(),
    ) -> Sandbox | NoSandbox:
        """The sandbox of this machine, its walls tried, or why there is none.

        Args:
            make: is given what tries it, and may do something for it before.

        Raises:
            InputError: it is `required` and there is none; nothing was spent.
        """
        if "bash" not in self.config.tools:
            return NoSandbox("There is no bash for it.")
        if choice == "off":
            return NoSandbox("It was switched off.")
        found = make(lambda: probe(self.workspace, self.state.path, self.environ, network=network, tmp=self.state.tmp))
        if isinstance(found, NoSandbox) and choice == "required":
            raise InputError(
                f"sandbox is required, and there is none: {found.reason} Nothing was run and nothing was spent.",
                hint="Put that right (it takes bubblewrap, and user namespaces), or use --sandbox auto: an interrupted "
                "shell command is then refused instead of rolled back.",
            )
        return found

    def tools(self, sandbox: Sandbox | NoSandbox, more: Iterable[Tool] = ()) -> list[Tool]:
        """The tools that the configuration names and this workspace can offer, in its order.

        Args:
            more: those that come from where the run was asked for.
        """
        bash = Bash(sandbox if isinstance(sandbox, Sandbox) else None)
        made: dict[str, Tool] = {t.name: t for t in (Read(), Write(), Edit(), Glob(), Grep(), bash)}
        if self.repository is not None:
            made["git_commit"] = GitCommit(
                self.repository,
                self.trust or self.bound.get("trust", ""),
                self.bound.get("base"),
                self.bound.get("dirty", {}),
                Policy.from_config(self.config).protecting,
                contained=True,
            )
        made |= {tool.name: tool for tool in more}
        return [made[name] for name in self.config.tools if name in made]

    def finish(self) -> Restored | None:
        """Conclude the restore that a kill cut off here, as the one that it was, whichever session it was of.

        Raises: as `SnapshotStore.finish`; StateError: it was of a git checkout, and there is no git program.
        """
        objects = self.state.path / "objects"
        journal = read_journal(objects / "restore" / "journal")
        if journal is None or journal.terms is None:
            return self.snapshots().finish() if journal else None
        terms, repository = journal.terms, None
        if terms.is_git:
            reopen(self.workspace / ".git")
            kind = format_of(objects)
            repository = self.repository or presume(self.workspace, self.environ, self.state.tmp, kind)
            if repository is None:
                raise StateError(
                    "A restore of this git checkout did not finish, and there is no git program here. Nothing was run.",
                    hint="Install git, then run the same command again: it goes on.",
                )
        bound, config = {"base": terms.base}, replace(self.config, snapshot=terms.limits)
        return replace(self, repository=repository, bound=bound, config=config).snapshots().finish()

    def clear(self, session: str) -> None:
        """What a resume does before it looks: end what a dead attempt left, and finish its roll-back.

        Raises:
            OutcomeUnknown: something is still running that could write to the workspace.
        """
        self._end_processes(session)
        self.finish()

    def _end_processes(self, session: str) -> None:
        _, survivors = end_tagged(f"{session}/")
        who = ", ".join(str(p.pid) for p in survivors)
        if not survivors and not CallLock.of(self.state.path).is_free(ORPHAN_PATIENCE_S):
            who = "a sandbox"
        if who:
            raise OutcomeUnknown(
                f"Processes of an earlier attempt are still running and could not be ended: {who}. Nothing was run.",
                hint="End them (they may still write to the workspace), then `endstate run --resume`.",
            )


def reopen(place: Path, holding: str = "") -> None:
    """Give an ordinary user back the rights to a directory of his own, which a call may have taken from him.

    The modes of the workspace itself and of its `.git` are in no snapshot, so no roll-back returns them.

    Args:
        holding: a directory in `place`; where there is none, nothing is changed.
    """
    with suppress(OSError):
        found = place.stat(follow_symlinks=False)
        mode = stat.S_IMODE(found.st_mode)
        if found.st_uid != os.geteuid() or os.geteuid() == 0 or not stat.S_ISDIR(found.st_mode):
            return
        if mode & stat.S_IRWXU != stat.S_IRWXU:
            place.chmod(mode | stat.S_IRWXU)
            if not (place / holding).is_dir():
                place.chmod(mode)


def describe(sandbox: Sandbox | NoSandbox) -> str:
    """The `sandbox` output: isolated, isolated-no-boundary, networked or none."""
    if isinstance(sandbox, NoSandbox):
        return "none"
    if sandbox.network:
        return "networked"
    return "isolated" if sandbox.is_boundary else "isolated-no-boundary"
