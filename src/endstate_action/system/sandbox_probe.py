"""Whether this machine has a sandbox: found out by trying to get out of it, never assumed.

First in a scratch workspace, where what must fail does no harm if it succeeds, then in the real one.
Anything that does not hold means that there is no sandbox, and why is said.
"""

from __future__ import annotations

import errno
import json
import os
import pwd
import re
import secrets
import shutil
import socket
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from endstate_action.effects import digest
from endstate_action.errors import DiskFull
from endstate_action.system import sandbox_inside
from endstate_action.system.names import short
from endstate_action.system.process import TAG_VARIABLE, User, capture, decode
from endstate_action.system.proctable import end_tagged
from endstate_action.system.sandbox import NoSandbox, NotStarted, Sandbox
from endstate_action.system.sandbox_git import cleaned, configurations
from endstate_action.system.sandbox_lock import CallLock
from endstate_action.system.sandbox_view import Kind, Mount, Plan, credential_places, is_reachable, is_readable

PROGRAMS = (Path("/usr/bin/bwrap"), Path("/bin/bwrap"), Path("/usr/local/bin/bwrap"))
OLDEST = (0, 8, 0)
"""The first bubblewrap that keeps calls from making a user namespace of their own."""

_TIMEOUT_S = 60.0
_NAMESPACES = ("user", "pid", "mnt", "ipc", "uts", "net")
_INTERPRETERS = (Path(sys.executable), Path("/usr/bin/python3"), Path("/usr/local/bin/python3"))
_LONGEST_SOCKET_NAME = 107
# What is left in the background must be gone after the call.
_WITH_A_COMPANION = ("/bin/sh", "-c", 'sleep 60 </dev/null >/dev/null 2>&1 & exec "$@"', "sh")


class _Missing(Exception):
    """There is no sandbox; the text says why."""


def probe(
    workspace: Path,
    state_dir: Path,
    env: Mapping[str, str],
    *,
    network: bool,
    tmp: Path,
    programs: tuple[Path, ...] = PROGRAMS,
) -> Sandbox | NoSandbox:
    """The sandbox for calls in `workspace`, all of whose walls were tried; else why there is none.

    Takes two short commands. Where we are root, calls get the rights of the workspace's owner.

    Args:
        state_dir: must exist, below `workspace`.
        env: our original environment; only names of places are taken from it (HOME, RUNNER_TEMP, PATH).
        tmp: where a scratch directory may be made, best not in a private place of calls such as /tmp.
    """
    try:
        sandbox = _candidate(workspace, state_dir, env, network, programs)
        _try(sandbox, env, tmp)
    except (_Missing, NotStarted) as error:
        return NoSandbox(str(error))
    except (OSError, TimeoutError) as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            # Not a property of the machine: with room again there is a sandbox, so no call runs without one meanwhile.
            raise DiskFull(
                f"The sandbox could not be tried, since the disk is full ({error.filename or tmp}). Nothing was run.",
                hint="Free some space, then `endstate run --resume`.",
            ) from error
        return NoSandbox(f"The sandbox could not be tried: {error}")
    return sandbox


def _candidate(
    workspace: Path, state_dir: Path, env: Mapping[str, str], network: bool, programs: tuple[Path, ...]
) -> Sandbox:
    if sys.platform != "linux":
        raise _Missing(f"The sandbox needs Linux; this is {sys.platform}.")
    if workspace not in state_dir.parents or os.path.realpath(state_dir) != str(state_dir):
        raise _Missing(f"{state_dir} does not lie inside the workspace, or is reached by a link.")
    program = _program(programs)
    user = _user(workspace)
    home = _home(env, user)
    temp = env.get("RUNNER_TEMP")
    found = [file for file in configurations(workspace, home) if is_readable(file, user)]
    return Sandbox(
        program,
        _version(program),
        network,
        workspace,
        state_dir,
        home,
        user,
        Path(temp) if temp and Path(temp).is_absolute() else None,
        configurations=tuple(
            (file, content) for file in found if _must_replace(file, content := cleaned(file, env), workspace)
        ),
        secret_places=credential_places(home, workspace, env),
    )


def _must_replace(file: Path, content: bytes, workspace: Path) -> bool:
    """The workspace's own always, since nobody may write it; others where something is taken out of them."""
    return file.is_relative_to(workspace / ".git") or content != file.read_bytes()


def _program(programs: tuple[Path, ...]) -> Path:
    """Bubblewrap, where nobody but root can have put it: a workspace must not bring its own."""
    present = [program for program in programs if program.is_file()]
    if not present:
        raise _Missing("bubblewrap (the program bwrap) is not installed.")
    for program in present:
        real = Path(os.path.realpath(program))
        if all(_is_roots(place) for place in (real, *real.parents)):
            return real
    raise _Missing(f"{present[0]} can be changed by others than root, so it was not used.")


def _is_roots(place: Path) -> bool:
    found = place.stat()
    writable = stat.S_IMODE(found.st_mode) & 0o022
    return found.st_uid == 0 and not (writable and not found.st_mode & stat.S_ISVTX)


def _version(program: Path) -> str:
    said = capture([str(program), "--version"], cwd=Path("/"), env={}, timeout_s=10).stdout.decode(errors="replace")
    found = re.search(r"\d+(?:\.\d+)+", said)
    if found is None:
        raise _Missing(f"{program} does not say which version it is.")
    if tuple(map(int, found[0].split("."))) < OLDEST:
        raise _Missing(f"bubblewrap {found[0]} is too old; {'.'.join(map(str, OLDEST))} is needed.")
    return found[0]


def _user(workspace: Path) -> User | None:
    """Whose rights calls get. The real user 0 must not stay, as it is no boundary, unless all belongs to it."""
    if os.geteuid() != 0:
        return None
    owner = workspace.stat()
    with suppress(KeyError):
        return User(owner.st_uid, pwd.getpwuid(owner.st_uid).pw_gid)
    return User(owner.st_uid, owner.st_gid)


def _home(env: Mapping[str, str], user: User | None) -> Path:
    """HOME where calls can read it, else their user's own, else an empty place."""
    places = [Path(env["HOME"])] if env.get("HOME") else []
    with suppress(KeyError):
        places.append(Path(pwd.getpwuid(user.uid if user else os.geteuid()).pw_dir))
    usable = (Path(os.path.realpath(p)) for p in places if p.is_absolute() and os.path.isdir(p))
    return next((p for p in usable if p != Path("/") and is_readable(p, user)), Path("/tmp"))  # noqa: S108


def _try(sandbox: Sandbox, env: Mapping[str, str], tmp: Path) -> None:
    with _scratch(sandbox, tmp) as scratch:
        _look_for_escapes(scratch, env, is_scratch=True)
    _look_for_escapes(sandbox, env, is_scratch=False)


@contextmanager
def _scratch(sandbox: Sandbox, tmp: Path) -> Iterator[Sandbox]:
    """The same sandbox around a small workspace that looks like the real one and holds nothing."""
    parent = tmp if is_reachable(tmp / "x", sandbox.user) else Path("/tmp")  # noqa: S108
    with _directory(parent) as place:
        for folder in (".git/hooks", ".git/objects/pack", ".endstate"):
            (place / folder).mkdir(parents=True)
        (place / ".git" / "config").write_text("token")
        (place / ".endstate" / "session").write_text("secret")
        for path in (place, *place.rglob("*")):
            if sandbox.user is not None:
                os.chown(path, sandbox.user.uid, sandbox.user.gid)
        yield replace(
            sandbox,
            workspace=place,
            state_dir=place / ".endstate",
            configurations=(*sandbox.configurations, (place / ".git" / "config", b"")),
        )


@contextmanager
def _directory(parent: Path) -> Iterator[Path]:
    place = Path(os.path.realpath(tempfile.mkdtemp(prefix="p", dir=parent)))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class _Listening:
    tcp: int | None
    abstract: str
    paths: tuple[str, ...]


def _look_for_escapes(sandbox: Sandbox, env: Mapping[str, str], *, is_scratch: bool) -> None:
    """Raises `_Missing` where there are any."""
    canary = f"endstate-probe-{secrets.token_hex(8)}"
    outside = sorted(_outside(sandbox))
    interpreter, also = _interpreter(sandbox.user)
    with _listening(canary, sandbox.workspace if is_scratch else None) as listening:
        told = {
            "workspace": str(sandbox.workspace),
            "is_scratch": is_scratch,
            "state": str(sandbox.state_dir),
            "outside": outside,
            "canary": canary,
            "tag": TAG_VARIABLE,
            "companions": 1,
            "namespaces": {n: os.readlink(f"/proc/self/ns/{n}") for n in _namespaces(sandbox)},
            "tcp": None if sandbox.network else listening.tcp,
            "abstract": "" if sandbox.network else listening.abstract,
            "paths": listening.paths,
            **_walls(sandbox),
        }
        found = _inside(
            sandbox, [*_WITH_A_COMPANION, str(interpreter), "-I", "-S", "-c", _text(), json.dumps(told)], env, also
        )
    found += [f"{place} could be written" for place in outside if _was_written(Path(place, canary))]
    if found:
        raise _Missing(f"The sandbox does not hold here: {'; '.join(found)}.")


def _was_written(file: Path) -> bool:
    if not os.path.lexists(file):
        return False
    with suppress(OSError):
        file.unlink()
    return True


def _inside(sandbox: Sandbox, argv: list[str], env: Mapping[str, str], also: Plan) -> list[str]:
    ours = f"probe-{digest(os.fsencode(sandbox.state_dir))[:12]}-"
    # Who probes holds the state directory, so a probe that is still under way is a dead attempt's.
    end_tagged(ours)
    tag = ours + secrets.token_hex(8)
    finished = sandbox.run(
        argv,
        env={"PATH": env.get("PATH", os.defpath), "LANG": "C.UTF-8"},
        moment=0.0,
        timeout_s=_TIMEOUT_S,
        tag=tag,
        also=also,
        # The call lock may still be held by what a dead attempt left, which says nothing about the walls.
        lock=CallLock(sandbox.state_dir / "probe-lock"),
    )
    said = decode(finished.output).text
    try:
        found: Any = json.loads(said)
    except ValueError:
        # Of several lines, a traceback among them, the last one tells what went wrong.
        told = short((said.strip() or "the checks said nothing").splitlines()[-1])
        raise _Missing(f"The sandbox could not be tried: {told}") from None
    left = [f"{process} went on after its call" for process in finished.left_alive]
    return [*map(str, found), *left]


def _walls(sandbox: Sandbox) -> dict[str, list[str]]:
    """What must not move, and what must not be written."""
    git = sandbox.workspace / ".git"
    pinned, read_only = [sandbox.state_dir, sandbox.workspace], []
    if git.is_dir() and not git.is_symlink():
        pinned.append(git)
        read_only.append(git / "hooks" / "endstate-probe")
        read_only += [git / "config"] if (git / "config").is_file() else []
    return {"pinned": list(map(str, pinned)), "read_only": list(map(str, read_only))}


def _namespaces(sandbox: Sandbox) -> tuple[str, ...]:
    return tuple(name for name in _NAMESPACES if not (sandbox.network and name == "net"))


def _outside(sandbox: Sandbox) -> set[str]:
    """Directories around, near and far, that calls must not change."""
    near = {sandbox.workspace.parent, sandbox.home, sandbox.home / ".config", sandbox.home / ".cache"}
    near |= {sandbox.runner_temp} if sandbox.runner_temp else set()
    far = {Path("/dev/shm"), Path("/var/lib"), Path("/var/cache"), Path("/usr/local"), Path("/usr/local/bin")}  # noqa: S108
    top = {Path("/", name) for name in os.listdir("/") if name not in ("proc", "sys")}
    return {str(place) for place in near | far | top | {Path("/")} if os.path.isdir(place)}


def _interpreter(user: User | None) -> tuple[Path, Plan]:
    """A Python that calls could run, and what it needs to see if a private place would hide it."""
    for program in _INTERPRETERS:
        real = Path(os.path.realpath(program))
        if os.path.isfile(real) and is_readable(real, user):
            prefix = Path(os.path.realpath(sys.base_prefix))
            is_hidden = any(prefix.is_relative_to(p) and prefix != p for p in map(Path, ("/tmp", "/run", "/var/tmp")))  # noqa: S108
            needs_it = real.is_relative_to(prefix) and is_hidden
            return real, {prefix: Mount(Kind.READABLE)} if needs_it else {}
    raise _Missing("The sandbox could not be tried: calls could run no Python here.")


def _text() -> str:
    return Path(sandbox_inside.__file__).read_text("utf-8")


@contextmanager
def _listening(name: str, workspace: Path | None) -> Iterator[_Listening]:
    """Services of this machine that must be out of reach."""
    with ExitStack() as stack:
        tcp = None
        with suppress(OSError):  # a machine without a loopback address has nothing to be reached there
            tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
        addresses = ["\0" + name]
        place = str(workspace / "s") if workspace else ""
        if 0 < len(os.fsencode(place)) <= _LONGEST_SOCKET_NAME:
            addresses.append(place)
        for address in addresses:
            server = stack.enter_context(socket.socket(socket.AF_UNIX))
            server.bind(address)
            server.listen()
            if address == place:
                os.chmod(place, 0o777)  # noqa: S103
        yield _Listening(tcp, name, tuple(addresses[1:]))
