"""Which processes run here, and how they are ended: the one that was meant, or none.

A process is named by its pid together with its start time, since a pid alone is given out again.
Reads `/proc`, and nothing else; where there is none, nothing is found.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

TAG_VARIABLE = "ENDSTATE_CALL"
"""Environment variable that names the call a process was started for."""

_TERM_GRACE_S = 0.5
_KILL_PATIENCE_S = 5.0
_ENTRY = TAG_VARIABLE.encode() + b"="


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """One process. Equal means the same process, whatever became of it in between."""

    pid: int
    started: int
    """Clock ticks after boot."""
    name: str = field(compare=False)
    parent: int = field(compare=False)
    session: int = field(compare=False)
    gone: bool = field(compare=False)
    """Ended, and only waiting to be reaped."""

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})"


class Ended(NamedTuple):
    """What became of the processes that were to end. `survivors` could not be ended and still run."""

    ended: tuple[ProcessInfo, ...]
    survivors: tuple[ProcessInfo, ...]


def look(pid: int) -> ProcessInfo | None:
    """The process that has this pid now, or None."""
    stat = _read(f"/proc/{pid}/stat")
    # The name stands in parentheses and may hold any byte, parentheses too.
    before, closed, after = stat.rpartition(b") ")
    if not closed:
        return None
    values = after.split()
    name = before.partition(b"(")[2].decode("utf-8", "replace")
    return ProcessInfo(
        pid,
        int(values[19]),
        name if name.isprintable() else "".join(c if c.isprintable() else "?" for c in name),
        parent=int(values[1]),
        session=int(values[3]),
        # A process whose first thread has ended looks like a zombie while its other threads go on.
        gone=values[0] in b"ZX" and int(values[17]) < 2,
    )


def everything() -> list[ProcessInfo]:
    """All processes that can be seen."""
    try:
        names = os.listdir("/proc")
    except OSError:
        return []
    return [found for name in names if name.isdigit() and (found := look(int(name))) is not None]


def with_descendants(roots: Iterable[ProcessInfo], among: Collection[ProcessInfo]) -> set[ProcessInfo]:
    """The roots and all that descends from them, as far as the parents in between are alive."""
    found = set(roots)
    pids = {p.pid for p in found}
    while more := {p for p in among if p.parent in pids and p not in found}:
        found |= more
        pids |= {p.pid for p in more}
    return found


def tag_of(pid: int) -> str | None:
    """What `ENDSTATE_CALL` was when the process started; None without it, or where it may not be seen."""
    entries = _read(f"/proc/{pid}/environ").split(b"\0")
    return next((os.fsdecode(e.removeprefix(_ENTRY)) for e in entries if e.startswith(_ENTRY)), None)


def tagged(prefix: str) -> list[ProcessInfo]:
    """Living processes whose tag begins with `prefix`, and their descendants; never we or our ancestors.

    What a call detached *and* stripped of its environment cannot be found this way once its parent is gone.
    """
    now = everything()
    spared = _lineage(os.getpid())
    roots = [p for p in now if p.pid not in spared and (tag_of(p.pid) or "").startswith(prefix or "\0")]
    return sorted((p for p in with_descendants(roots, now) if not p.gone), key=lambda p: p.pid)


def end_tagged(prefix: str) -> Ended:
    """End what a dead attempt left behind. Returns when all of it is gone, or with the survivors after 6 s."""
    return end(lambda: tagged(prefix))


def end(find: Callable[[], Iterable[ProcessInfo]], *, courtesy_s: float = 0.0) -> Ended:
    """End all processes that `find` names, now or while we are at it: SIGTERM, 0.5 s, SIGKILL.

    `courtesy_s` is what a process gets that is about to end by itself; it then counts as never found.
    """
    hunt = _Hunt(find)
    try:
        if hunt.press(None, courtesy_s):
            hunt.press(signal.SIGTERM, _TERM_GRACE_S)
    finally:
        # Also when a signal to us breaks off the wait.
        left = hunt.press(signal.SIGKILL, _KILL_PATIENCE_S)
    return Ended(_sorted(hunt.told - left), _sorted(left))


class _Hunt:
    """Processes that are to end. What was found once stays known: without its parent it may not be found again."""

    def __init__(self, find: Callable[[], Iterable[ProcessInfo]]) -> None:
        self._find = find
        self._known: set[ProcessInfo] = set()
        self.told: set[ProcessInfo] = set()

    def press(self, number: signal.Signals | None, for_s: float) -> set[ProcessInfo]:
        """Send the signal to each once, to new ones too, until none is left or the time is over; what is left."""
        deadline, pause = time.monotonic() + for_s, 0.002
        done: set[ProcessInfo] = set()
        while True:
            self._known |= set(self._find())
            left = {p for p in self._known if is_running(p)}
            if number is not None:
                # Oldest first: a shell whose command ends before it does would begin the next one.
                for process in sorted(left - done, key=lambda p: (p.started, p.pid)):
                    send(process, number)
                self.told |= left
                done |= left
            if not left or time.monotonic() >= deadline:
                return left
            time.sleep(pause)
            pause = min(2 * pause, 0.05)


def send(process: ProcessInfo, number: signal.Signals) -> None:
    """Signal exactly this process. Nothing happens when it is gone or not ours to signal."""
    try:
        handle = os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        handle = -1
    try:
        # Looked at after the handle was taken: the handle cannot come to mean another process any more.
        if not is_running(process):
            return
        if handle >= 0:
            signal.pidfd_send_signal(handle, number)
        else:
            os.kill(process.pid, number)
    except (PermissionError, ProcessLookupError):
        return
    finally:
        if handle >= 0:
            os.close(handle)


def is_running(process: ProcessInfo) -> bool:
    now = look(process.pid)
    return now is not None and now == process and not now.gone


def identity() -> dict[str, Any]:
    """Names this process among all that ever run: host, boot_id, pid_namespace, pid, start_time (clock ticks)."""
    me = look(os.getpid())
    return {
        "host": os.uname().nodename,
        "boot_id": _read("/proc/sys/kernel/random/boot_id").decode("ascii", "replace").strip(),
        "pid_namespace": _namespace(),
        "pid": os.getpid(),
        "start_time": me.started if me is not None else 0,
    }


def is_alive(named: Mapping[str, Any]) -> bool | None:
    """Whether the process of an `identity()` still runs. None: it cannot be told from here."""
    here = identity()
    pid, started = named.get("pid"), named.get("start_time")
    if named.get("host") != here["host"] or not isinstance(pid, int) or not isinstance(started, int):
        return None
    if here["boot_id"] and named.get("boot_id") and named["boot_id"] != here["boot_id"]:
        return False
    if not here["start_time"]:
        return _exists(pid)
    if named.get("boot_id") != here["boot_id"] or named.get("pid_namespace") != here["pid_namespace"]:
        return None
    now = look(pid)
    return now is not None and now.started == started and not now.gone


def _exists(pid: int) -> bool | None:
    """Without start times a living pid may be another process by now, so only its absence tells something."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return None
    return None


def _lineage(pid: int) -> set[int]:
    found: set[int] = set()
    while pid and pid not in found:
        found.add(pid)
        process = look(pid)
        pid = process.parent if process is not None else 0
    return found


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _sorted(processes: set[ProcessInfo]) -> tuple[ProcessInfo, ...]:
    return tuple(sorted(processes, key=lambda p: p.pid))


def _read(path: str) -> bytes:
    """What the kernel tells; nothing about a process that is gone or may not be inspected."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.readall()
    except OSError:
        return b""
