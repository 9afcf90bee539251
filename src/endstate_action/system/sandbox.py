"""The sandbox: what a call does in it stays in the workspace.

A command sees the machine read-only and without credentials, has no network unless that was asked
for, cannot come near the state directory, git's configuration or its hooks, and leaves nothing
running. A `Sandbox` comes from `sandbox_probe.probe`, which has seen all that hold; nothing here
falls back to running a command in another way.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, assert_never

from endstate_action.effects import canonical, digest
from endstate_action.system import sandbox_view as view
from endstate_action.system.process import DEFAULT_CAP_BYTES, TAG_VARIABLE, Finished, User, decode, run
from endstate_action.system.sandbox_git import git_directory, named_directories
from endstate_action.system.sandbox_lock import CallLock, CallStillRuns
from endstate_action.system.sandbox_sockets import SocketInSight, sockets
from endstate_action.system.sandbox_view import Kind, Mount, Plan, is_out_of_sight, is_reachable, is_readable

LOCK_PATIENCE_S = 5.0
"""How long a call waits for a sandbox of an earlier one to end."""

_APART = (
    *("--unshare-user", "--disable-userns", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
    *("--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"),
)
# Counts up when a call can do more, or less, for another reason than those that the fingerprint is made from.
_RULES = 1


class NotStarted(Exception):
    """The command was not started, and nothing was changed; the text says why."""


@dataclass(frozen=True, slots=True)
class NoSandbox:
    """Why there is none."""

    reason: str


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A place to run commands, for one workspace. Everything in it was found out by a probe."""

    program: Path
    version: str
    network: bool
    workspace: Path
    state_dir: Path
    home: Path
    user: User | None
    """Whose rights calls have; None: those of our own user, who is not root."""
    runner_temp: Path | None = None
    configurations: tuple[tuple[Path, bytes], ...] = field(default=(), repr=False)
    """Files of git's, and what calls see instead."""
    secret_places: Mapping[Path, str] = field(default_factory=dict, repr=False)
    """See `sandbox_view.credential_places`."""

    @property
    def is_boundary(self) -> bool:
        """Whether it would also hold against a command that wants to get out."""
        return self.user is None or self.user.uid != 0

    @property
    def note(self) -> str:
        """What it is, in one line."""
        who = "" if self.user is None or self.user.uid == os.geteuid() else f", as user {self.user.uid}"
        network = "with network: what a call does outside cannot be undone" if self.network else "no network"
        limit = "" if self.is_boundary else "; calls run as root, so it is no boundary against a hostile command"
        return f"bubblewrap {self.version}, {network}{who}{limit}"

    @property
    def fingerprint(self) -> str:
        """12 hex digits, the same wherever a call can do the same; names of places do not count."""
        rights = "user" if self.is_boundary else "root"
        rules = [_RULES, self.version, list(self._apart()), list(view.CREDENTIALS), list(view.PRIVATE), rights]
        return digest(canonical(rules))[:12]

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        moment: float,
        timeout_s: float,
        tag: str,
        cap_bytes: int = DEFAULT_CAP_BYTES,
        check: Callable[[], None] = lambda: None,
        also: Plan | None = None,
        lock: CallLock | None = None,
    ) -> Finished:
        """Run one program in the workspace, as `process.run` does; a signal that ends it shows as exit code 128 + n.

        When it returns, nothing that the program started runs any more. The call lock is held as
        long as anything does, even if we end first.

        Args:
            env: what the program may see of our environment.
            moment: seconds since the epoch, the same whenever this call is repeated.
            also: what is to be seen beside the rest.
            lock: what to hold instead of the call lock, where nothing is changed.

        Raises:
            NotStarted: an earlier call still runs, or the sandbox could not be set up as it was when probed.
        """
        try:
            seen = view.environment(env, self.home, moment) | {TAG_VARIABLE: tag}
            plan = self._plan(seen) | (also or {})
            lock = lock or CallLock.of(self.state_dir)
            with lock.held(LOCK_PATIENCE_S, check) as held, _Descriptors() as given:
                status = given.hand(b"")
                options = given.hand(b"\0".join(map(os.fsencode, self._options(plan, seen, given, held, status))))
                finished = run(
                    # Not as arguments, which every user of the machine may read.
                    [str(self.program), "--args", str(options), "--", *argv],
                    cwd=Path("/"),
                    # What we start it with can be read by every process inside, whatever it passes on.
                    env={},
                    timeout_s=timeout_s,
                    tag=tag,
                    cap_bytes=cap_bytes,
                    check=check,
                    keep=(*given.all, held),
                    user=self.user,
                )
                started = b'"exit-code"' in os.pread(status, 4096, 0)
        except (CallStillRuns, SocketInSight, OSError) as error:
            raise NotStarted(f"The sandbox could not be entered: {error}") from error
        if finished.exit_code and not started:
            raise NotStarted(f"The sandbox could not be set up: {decode(finished.output).text.strip()}")
        return finished

    def _options(self, plan: Plan, env: Mapping[str, str], given: _Descriptors, lock: int, status: int) -> list[str]:
        variables = [word for name, value in env.items() for word in ("--setenv", name, value)]
        kept = ["--sync-fd", str(lock), "--json-status-fd", str(status), "--chdir", str(self.workspace)]
        return [*self._apart(), *_mounts(plan, given.hand), *variables, *kept]

    def _apart(self) -> tuple[str, ...]:
        return _APART if self.network else (*_APART, "--unshare-net")

    def _plan(self, env: Mapping[str, str]) -> Plan:
        plan = view.machine(self.home, self.runner_temp)
        plan |= view.toolchains(env, plan, self.user)
        named = (place for place in named_directories(self.workspace) if is_out_of_sight(place, plan))
        plan |= {place: Mount(Kind.READABLE) for place in named if is_reachable(place, self.user)}
        plan |= view.credentials(self.secret_places, env, self.user)
        plan |= _pinned(self.workspace, self.state_dir, git_directory(self.workspace), network=self.network)
        for file, content in self.configurations:
            if _is_in_place(file) and is_readable(file, self.user):
                plan = {p: Mount(Kind.WRITABLE) for p in _between(self.workspace, file)} | plan
                plan[file] = Mount(Kind.CONTENT, content)
        plan |= _name_service(plan) if self.network else {}
        places = (Path(os.path.realpath(place)) for place in sockets())
        seen = (s for s in places if not is_out_of_sight(s, plan) and is_reachable(s, self.user))
        return plan | {place: Mount(Kind.CONTENT) for place in seen}


class _Descriptors:
    """Files without a name, each for one use by the program that inherits it; gone with the block."""

    def __init__(self) -> None:
        self.all: list[int] = []

    def hand(self, content: bytes) -> int:
        descriptor = os.memfd_create("endstate")
        self.all.append(descriptor)
        os.pwrite(descriptor, content, 0)
        return descriptor

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self.all:
            os.close(descriptor)


def _pinned(workspace: Path, state_dir: Path, git: Path | None, *, network: bool) -> Plan:
    """The workspace, and what in it cannot be changed, nor be moved away with a directory above it."""
    plan = {workspace: Mount(Kind.WRITABLE)}
    # A mount moves with its parent: only what is itself one cannot be renamed.
    plan |= {parent: Mount(Kind.WRITABLE) for parent in _between(workspace, state_dir)}
    plan[state_dir] = Mount(Kind.HIDDEN)
    # As there is one in the real one: `git clean` would fail over a directory that it may not remove.
    plan[state_dir / ".gitignore"] = Mount(Kind.CONTENT, b"*\n")
    if git is None:
        named = workspace / ".git"  # a file that says where, in a linked work tree
        return plan | ({named: Mount(Kind.READABLE)} if _is_in_place(named) and named.is_file() else {})
    hooks, packs = git / "hooks", git / "objects" / "pack"
    plan[git] = Mount(Kind.WRITABLE)
    if _is_in_place(hooks):
        plan[hooks] = Mount(Kind.READABLE)
    elif not hooks.is_symlink():
        plan[hooks] = Mount(Kind.HIDDEN)
    if not network and _is_in_place(packs):
        plan[packs] = Mount(Kind.READABLE)
    return plan


def _between(workspace: Path, inner: Path) -> list[Path]:
    return [parent for parent in inner.parents if workspace in parent.parents]


def _is_in_place(path: Path) -> bool:
    """Whether it exists and no link leads to it: a mount on a link would be one somewhere else."""
    return path.exists() and os.path.realpath(path) == str(path)


def _name_service(plan: Plan) -> Plan:
    """The file that tells how names are looked up, which many systems keep below /run."""
    file = Path(os.path.realpath("/etc/resolv.conf"))
    return {file: Mount(Kind.READABLE)} if file.is_file() and is_out_of_sight(file, plan) else {}


def _mounts(plan: Plan, hand: Callable[[bytes], int]) -> list[str]:
    """Options for bubblewrap: the machine read-only, then the plan, a directory before what is in it."""
    options = ["--ro-bind", "/", "/"]
    for path in sorted(plan, key=lambda p: p.parts):
        options += _mount(str(path), plan[path], hand)
    # Only when nothing more has to be mounted in them.
    hidden = (str(path) for path, mount in plan.items() if mount.kind is Kind.HIDDEN)
    return options + [word for path in hidden for word in ("--remount-ro", path)]


def _mount(path: str, mount: Mount, hand: Callable[[bytes], int]) -> list[str]:
    match mount.kind:
        case Kind.DEVICES:
            return ["--dev", path]
        case Kind.PROCESSES:
            return ["--proc", path]
        case Kind.PRIVATE | Kind.HIDDEN:
            return ["--tmpfs", path]
        case Kind.READABLE:
            return ["--ro-bind", path, path]
        case Kind.WRITABLE:
            return ["--bind", path, path]
        case Kind.CONTENT:
            return ["--ro-bind-data", str(hand(mount.content)), path]
        case _:
            assert_never(mount.kind)
