"""What the probe runs inside the sandbox: it tries to get out, in every way that must fail.

Its text is given to an interpreter of the machine, so it imports the standard library only. It is
told where things are in JSON and answers with the ways that worked, one sentence each.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

_NEW_USER_NAMESPACE = 0x10000000
_LAZILY = 2
_TIMEOUT_S = 1.0
_libc = ctypes.CDLL(None, use_errno=True)


def escapes(told: dict[str, Any]) -> list[str]:
    """Every way out that was found; none is the answer that is hoped for.

    `told`: workspace and whether it is_scratch, state, what cannot be moved (pinned) or written
    (read_only), places outside, names of things to make (canary) and of our variable (tag), the
    machine's namespaces, where it listens (tcp, abstract, paths), and how many processes beside us
    were started in here (companions).
    """
    checks: tuple[Callable[[dict[str, Any]], Iterator[str]], ...] = (
        _process,
        _namespaces,
        _privileges,
        _state,
        _outside,
        _pinned,
        _network,
        _workspace,
    )
    return [problem for check in checks for problem in check(told)]


def _process(told: dict[str, Any]) -> Iterator[str]:
    """What was there before us must not tell anything."""
    variables: list[bytes] = []
    with suppress(PermissionError):
        variables = [v for v in Path("/proc/1/environ").read_bytes().split(b"\0") if v]
    if any(not v.startswith(told["tag"].encode()) for v in variables):
        yield "the environment of the process that started the call can be read"
    others = {int(pid) for pid in os.listdir("/proc") if pid.isdigit()} - {1, os.getpid(), os.getppid()}
    if len(others) > told["companions"]:
        yield f"processes of the machine can be seen ({len(others)})"
    open_files = [
        fd for fd in map(int, os.listdir("/proc/self/fd")) if fd > 2 and os.path.exists(f"/proc/self/fd/{fd}")
    ]
    if open_files:
        yield f"descriptors were passed on ({open_files})"


def _namespaces(told: dict[str, Any]) -> Iterator[str]:
    for name, hosts in told["namespaces"].items():
        if os.readlink(f"/proc/self/ns/{name}") == hosts:
            yield f"the {name} namespace is the machine's own"


def _privileges(told: dict[str, Any]) -> Iterator[str]:
    status = Path("/proc/self/status").read_text()
    if not re.search(r"^NoNewPrivs:\t1$", status, re.MULTILINE):
        yield "programs may gain privileges (set-user-id)"
    for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb"):
        if not re.search(rf"^{name}:\t0+$", status, re.MULTILINE):
            yield f"there are capabilities ({name})"
    for place in ("/proc/sys/kernel/core_pattern", "/proc/sys/vm/drop_caches", "/proc/sysrq-trigger"):
        if _can(_open, place, os.O_WRONLY):
            yield f"{place} can be opened for writing"
    if _libc.mount(b"none", os.fsencode(told["workspace"]), b"tmpfs", 0, None) == 0:
        yield "file systems can be mounted"
    if _libc.unshare(_NEW_USER_NAMESPACE) == 0:
        yield "a further user namespace can be made, and with it capabilities"


def _state(told: dict[str, Any]) -> Iterator[str]:
    state = told["state"]
    if os.listdir(state) != [".gitignore"]:
        yield "the state directory can be read"
    if _can(os.mkdir, f"{state}/made-by-a-call"):
        yield "the state directory can be written"


def _outside(told: dict[str, Any]) -> Iterator[str]:
    """Where this succeeds it must be a place that is gone with us; who called looks for it then."""
    for place in told["outside"]:
        with suppress(OSError):
            Path(place, told["canary"]).write_text("a call was here")
    return iter(())


def _pinned(told: dict[str, Any]) -> Iterator[str]:
    for place in told["pinned"]:
        moved = f"{place}2"
        if _can(os.rename, place, moved):
            yield f"{place} can be renamed"
            os.rename(moved, place)
        if _libc.umount2(os.fsencode(place), _LAZILY) == 0:
            yield f"{place} can be unmounted"
    for file in told["read_only"]:
        if _can(_open, file, os.O_WRONLY | os.O_CREAT):
            yield f"{file} can be written"


def _network(told: dict[str, Any]) -> Iterator[str]:
    ways: list[tuple[str, int, Any]] = [("a socket in the file system", socket.AF_UNIX, path) for path in told["paths"]]
    if told["abstract"]:
        ways.append(("an abstract socket", socket.AF_UNIX, "\0" + told["abstract"]))
    if told["tcp"]:
        ways.append(("a TCP port of this machine", socket.AF_INET, ("127.0.0.1", told["tcp"])))
    for what, family, address in ways:
        with socket.socket(family) as connection:
            connection.settimeout(_TIMEOUT_S)
            if _can(connection.connect, address):
                yield f"{what} can be reached"


def _workspace(told: dict[str, Any]) -> Iterator[str]:
    """It must be possible to work, too."""
    place = Path(told["workspace"], told["canary"])
    # In a real workspace nothing may be left, whenever we are killed.
    works = _can(place.write_text, "") if told["is_scratch"] else os.access(told["workspace"], os.W_OK)
    if not works:
        yield "the workspace cannot be written"
    with suppress(OSError):
        place.unlink()


def _open(place: str, flags: int) -> None:
    os.close(os.open(place, flags))


def _can(attempt: Callable[..., object], *arguments: Any) -> bool:
    try:
        attempt(*arguments)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    print(json.dumps(escapes(json.loads(sys.argv[1]))))  # noqa: T201
