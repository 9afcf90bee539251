"""A process that runs the product and can be made to die at its n-th kill point. Nothing of this is in the product.

`python -m tests.support.crash_driver` reads jobs as JSON lines, runs each in a fork of itself (so that
modules are loaded once), and answers with how the fork ended. The kill points of a job are

    record   before and after every `Session.append`
    sql      before every further statement of a transaction: between its rows, and before its commit
    tool     before and after every tool's own `run`
    reply    before, during and after every request to the model
    os       before every rename, unlink, mkdir, rmdir, open for writing, lock, and start of a program that writes

A kill leaves what is outside of the process. So a place counts as a kill point only if something outside can
have changed since the last one: after one record and before the next are one point where nothing lies between.

A side folder outside the workspace keeps what the journal could be wrong about: requests, executions and
points are lines written by the process itself, before it dies.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import endstate_action.config.file as _loaded  # noqa: F401  (pydantic is loaded here, not in every fork)
from endstate_action import shipper, successor
from endstate_action.agent import calls, settle
from endstate_action.agent.context import check_history
from endstate_action.agent.providers.base import OnDiscard, Provider, Reply, Request
from endstate_action.agent.providers.scripted import ScriptedProvider, parse_script
from endstate_action.agent.tools.base import CallContext, FileChange, Probed, Tool
from endstate_action.cli import CONCLUSIONS
from endstate_action.config import parse_settings
from endstate_action.errors import EndstateError
from endstate_action.run import Choice, Ports, run
from endstate_action.shipper import Shipper
from endstate_action.state.epoch import claim
from endstate_action.state.records import Finished, Record
from endstate_action.state.session import Session
from endstate_action.state.stores.base import Denied, Exists, Put, RateLimited, StoreUnreadable, Unavailable
from endstate_action.state.stores.directory import DirectoryStore
from endstate_action.system.proctable import identity
from tests.support.memory_store import Fault
from tests.support.scenarios import SCRIPTS, Publish
from tests.support.sending import Send

KINDS = ("record", "sql", "tool", "reply", "os")

# Only what changes something outside of this process; sqlite speaks to the system without Python, hence `sql`.
_OS_EVENTS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "fcntl.flock", "subprocess.Popen"}
_READING_GIT = {"check-attr", "check-ignore", "config", "diff-tree", "ls-files", "ls-tree", "rev-list", "rev-parse"}
_READING_GIT |= {"symbolic-ref"}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


@dataclass(frozen=True)
class Job:
    """What one fork does. `kill_at` counts the points of `kinds` from 1; 0 lets the run live."""

    workspace: str
    side: str
    script: str = "exact"
    prompt: str | None = None
    resume: bool = False
    session: str | None = None
    inputs: Mapping[str, str] = field(default_factory=dict)
    kinds: tuple[str, ...] = KINDS
    kill_at: int = 0
    beginning: str = ""
    """Only points from the first one on whose name has this in it are counted."""
    signal: int = signal.SIGKILL
    again: int = 0
    """Sent as well at the point after the one where `signal` is sent."""
    kill_after_s: float = 0.0
    """Instead: SIGKILL from outside after this time."""
    kill_in: int = 0
    """That time is counted from the beginning of the process's n-th call of a tool; with 0, from its own."""
    fault: str = ""
    """`max-pages`: the database cannot grow; `read-only`: it cannot be written; both after the first `finished`."""
    trace: bool = False
    """Write down every fsync, rename and record, in order."""
    max_minutes: float = 90
    max_starts: int = 0
    """Instead of the product's limit, for trials that kill one call more often than that."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """Added to the environment: a home of its own, say, or the key that seals."""
    host: str = ""
    """The name of the machine that this is, started anew since any other; empty for the one it is."""
    put_s: float = 0.0
    """So long each upload to a directory store takes."""
    faults: Mapping[str, str] = field(default_factory=dict)
    """What happens to requests of a directory store: from `put 3` (the third from 0), or `put 3+` for it and all
    that follow, to the name of a `memory_store.Fault`."""
    patience_s: float = 0.0
    """Instead of the product's: how long a barrier, a claim and the last checkpoint try."""
    control: str = ""
    """What to do with an interrupted contained call instead of rolling it back: `run` or `refuse`."""


class Side:
    """Files outside the workspace, opened before anything is counted."""

    def __init__(self, folder: Path) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        names = ("requests", "executions", "points", "trace", "said", "puts")
        self._files = {name: os.open(folder / name, flags, 0o600) for name in names}
        os.ftruncate(self._files["points"], 0)
        self.ledger = folder / "ledger"
        self.sent = folder / "sent"
        self.requests = 0

    def write(self, file: str, /, **words: Any) -> None:
        os.write(self._files[file], json.dumps(words).encode() + b"\n")


class Points:
    """Counts kill points, and carries out the one that was ordered."""

    def __init__(self, job: Job, side: Side) -> None:
        self._job, self._side = job, side
        self._changed = True
        self._has_begun = False
        self._seen: set[str] = set()
        self._lock = threading.RLock()
        self.count = 0

    def __call__(self, kind: str, what: str, *, changes: bool = False) -> None:
        """A place that the run has come to; with `changes`, the next thing it does can be seen outside."""
        with self._lock:
            self._come_to(kind, what, changes=changes)

    def _come_to(self, kind: str, what: str, *, changes: bool) -> None:
        if kind not in self._job.kinds:
            self._changed |= changes
            return
        self._has_begun |= self._job.beginning in what
        if self._changed and self._has_begun:
            self.count += 1
            self._side.write("points", n=self.count, kind=kind, what=what, at=time.monotonic())
            if self.count == self._job.kill_at:
                os.kill(os.getpid(), self._job.signal)
            if self._job.again and self.count == self._job.kill_at + 1:
                os.kill(os.getpid(), self._job.again)
        self._changed = changes

    def scratch(self, what: str) -> None:
        """A place in our own scratch directory: once between two records, since each of its visits is like another."""
        if what not in self._seen:
            self._seen.add(what)
            self("os", what, changes=True)

    def recorded(self) -> None:
        self._seen.clear()


class _Tapped(Tool):
    """A tool with a kill point on either side of what it does; every execution is a line outside."""

    def __init__(self, tool: Tool, point: Points, side: Side) -> None:
        self.name, self.description, self.parameters, self.effect = (  # type: ignore[misc]
            tool.name,
            tool.description,
            tool.parameters,
            tool.effect,
        )
        self._tool, self._point, self._side = tool, point, side

    def contract(self) -> dict[str, str]:
        return self._tool.contract()

    def plan(self, arguments: Mapping[str, Any], context: CallContext) -> FileChange | None:
        return self._tool.plan(arguments, context)

    def run(self, arguments: Mapping[str, Any], context: CallContext, plan: FileChange | None) -> str:
        self._point("tool", f"before {self.name}", changes=True)
        self._side.write("executions", tool=self.name, tag=context.tag)
        said = self._tool.run(arguments, context, plan)
        self._point("tool", f"after {self.name}")
        return said

    def probe(self, arguments: Mapping[str, Any], context: CallContext) -> Probed:
        return self._tool.probe(arguments, context)


class _TappedProvider:
    """A provider that writes every request down and checks it, with kill points around the reply."""

    def __init__(self, provider: Provider, point: Points, side: Side) -> None:
        self.name = provider.name
        self._provider, self._point, self._side = provider, point, side

    def reply(self, request: Request, on_discard: OnDiscard) -> Reply:
        check_history(request.messages)
        self._point("reply", "before the request", changes=True)
        sent = [{"role": m.role, "blocks": list(m.blocks)} for m in request.messages]
        self._side.write("requests", step=request.finished_steps, messages=sent)
        self._side.requests += 1
        self._point("reply", "during the reply")
        reply = self._provider.reply(request, on_discard)
        self._point("reply", "after the reply")
        return reply


def _tap_session(job: Job, point: Points, side: Side) -> None:
    append, begin = Session.append, Session.__init__

    def tapped_append(self: Session, *records: Record) -> None:
        words = " + ".join(r.kind for r in records)
        point("record", f"before {words}", changes="sql" not in job.kinds)
        append(self, *records)
        if job.trace:
            side.write("trace", event="record", kinds=[r.kind for r in records])
        point.recorded()
        point("record", f"after {words}")
        if job.fault and any(isinstance(r, Finished) for r in records):
            _break(self._db, job.fault)

    def tapped_begin(self: Session, path: Path, db: sqlite3.Connection, *rest: Any) -> None:
        begin(self, path, db, *rest)
        if "sql" in job.kinds:
            # What only looks at the journal changes nothing that a kill could tear.
            looks = ("PRAGMA data_version", "SELECT ")
            db.set_trace_callback(lambda sql: None if sql.startswith(looks) else point("sql", sql[:40], changes=True))
        if job.trace:
            (level,) = db.execute("PRAGMA synchronous").fetchone()
            side.write("trace", event="synchronous", level=level)

    Session.append = tapped_append  # type: ignore[method-assign,assignment]
    Session.__init__ = tapped_begin  # type: ignore[method-assign,assignment]


def _tap_store(job: Job, side: Side) -> None:
    """Uploads to a directory take their time, go wrong as ordered, and are written down when they begin and end."""
    put, get, first, keys = (getattr(DirectoryStore, name) for name in ("put", "get", "first", "keys"))
    faults = _Faults(job.faults)

    def tapped_put(self: DirectoryStore, key: str, data: bytes, **more: Any) -> Put:
        side.write("puts", event="begin", key=key, requests=side.requests, at=time.monotonic())
        time.sleep(job.put_s)
        answer = _put(faults("put"), key, lambda content: put(self, key, content, **more), data)
        side.write("puts", event=type(answer).__name__, key=key, requests=side.requests, at=time.monotonic())
        return answer

    def tapped_get(self: DirectoryStore, key: str, **more: Any) -> bytes | None:
        fault = _readable(faults("get"))
        data: bytes = get(self, key, **more) or b""
        other = key if fault is not Fault.SWAPPED else next(k for k in keys(self, key[:-17], **more) if k != key)
        match fault:
            case Fault.GONE:
                return None
            case Fault.CUT:
                return data[: len(data) // 2]
            case Fault.FLIPPED:
                return data[:-1] + bytes([data[-1] ^ 1])
            case _:
                found: bytes | None = get(self, other, **more)
                return found

    def asking(operation: str, ask: Callable[..., Any]) -> Callable[..., Any]:
        def tapped(self: DirectoryStore, *given: Any, **more: Any) -> Any:
            _readable(faults(operation))
            return ask(self, *given, **more)

        return tapped

    taps = {"put": tapped_put, "get": tapped_get, "first": asking("first", first), "keys": asking("keys", keys)}
    for name, tap in taps.items():
        setattr(DirectoryStore, name, tap)


class _Faults:
    """Which fault the next request of an operation meets."""

    def __init__(self, ordered: Mapping[str, str]) -> None:
        self._ordered = {place: Fault[name] for place, name in ordered.items()}
        self._asked: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __call__(self, operation: str) -> Fault | None:
        with self._lock:
            n = self._asked[operation]
            self._asked[operation] += 1
        places = [f"{operation} {n}", *(f"{operation} {i}+" for i in range(n + 1))]
        return next((self._ordered[place] for place in places if place in self._ordered), None)


def _put(fault: Fault | None, key: str, put: Callable[[bytes], Put], data: bytes) -> Put:
    match fault:
        case Fault.APPLIED:
            put(data)
            return Unavailable("the connection was closed before an answer came")
        case Fault.LOST:
            return Unavailable("the connection was closed before an answer came")
        case Fault.REFUSED:
            return Unavailable("No space left on device", is_doubtful=False)
        case Fault.RESERVED | Fault.TAKEN:
            put(b"of somebody else")
            return Unavailable("the upload did not end") if fault is Fault.RESERVED else Exists(key)
        case Fault.RATE_LIMITED:
            return RateLimited(1.0)
        case Fault.DENIED:
            return Denied("the token has no writable scopes", "cache-mode: write")
        case _:
            return put(data)


def _readable(fault: Fault | None) -> Fault | None:
    if fault is Fault.UNREADABLE:
        raise StoreUnreadable("The store could not be asked.")
    return fault


def _be_impatient(seconds: float) -> None:
    for name in ("BARRIER_S", "FIRST_S", "LAST_S"):
        vars(shipper)[name] = seconds
    Shipper.end.__defaults__ = (seconds,)
    vars(successor)["claim"] = partial(claim, deadline_s=seconds)


def _break(db: sqlite3.Connection, fault: str) -> None:
    if fault == "max-pages":
        (pages,) = db.execute("PRAGMA page_count").fetchone()
        db.execute(f"PRAGMA max_page_count={pages}")
    else:
        db.execute("PRAGMA query_only=1")


def _count_os_effects(point: Points) -> None:
    def hook(event: str, given: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen":
            words = [str(w) for w in given[1]]
            if words[1] not in _READING_GIT:
                point("os", f"start of {' '.join(words)[:60]}", changes=True)
        elif event in _OS_EVENTS or (event == "open" and _writes(*given)):
            name = _name(given[0])
            if "git-view" in name or "/" not in name:
                point.scratch(f"{event} {name}")
            else:
                point("os", f"{event} {name}", changes=True)

    sys.addaudithook(hook)


def _writes(path: Any, mode: Any, flags: Any) -> bool:
    """Not what is opened for a second time, by its number, and not the bin."""
    return isinstance(flags, int) and bool(flags & _WRITES) and not isinstance(path, int) and path != os.devnull


def _name(given: Any) -> str:
    return os.fsdecode(given)[-60:] if isinstance(given, (str, bytes, os.PathLike)) else str(given)


def _trace_effects(side: Side) -> None:
    """Tell which file was synced and which renamed, by inode, so that an order can be asserted."""
    fsync, rename, move_over = os.fsync, os.rename, os.replace

    def told_fsync(fd: Any) -> None:
        fsync(fd)
        side.write("trace", event="fsync", inode=os.fstat(fd).st_ino)

    def told(move: Callable[..., None]) -> Callable[..., None]:
        def moved(source: Any, target: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
            inode = os.stat(source, dir_fd=src_dir_fd).st_ino
            above = os.fstat(dst_dir_fd) if dst_dir_fd is not None else Path(target).parent.stat()
            move(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
            side.write("trace", event="rename", inode=inode, directory=above.st_ino, name=os.fsdecode(target))

        return moved

    os.fsync, os.rename, os.replace = told_fsync, told(rename), told(move_over)


def _without_roll_back(instead: settle.Action) -> Callable[[settle.Pending, settle.Found], settle.Settlement]:
    def decided(call: settle.Pending, found: settle.Found) -> settle.Settlement:
        verdict = settle.decide(call, found)
        return settle.Settlement(instead, "the control does") if verdict.rolls_back else verdict

    return decided


def perform(job: Job) -> int:
    """Run the job in this process; its exit code as the command line would give it."""
    side = Side(Path(job.side))
    point = Points(job, side)
    os.environ.update(job.environ)
    tempfile.tempdir = None
    _tap_session(job, point, side)
    _tap_store(job, side)
    if job.trace:
        _trace_effects(side)
    if "os" in job.kinds:
        _count_os_effects(point)
    inputs = {
        "provider": "scripted",
        "sandbox": "off",
        "working-directory": job.workspace,
        "instructions": "none",
        "resume": "true" if job.resume else "false",
        **({"prompt": job.prompt} if job.prompt else {}),
        **job.inputs,
    }
    if job.patience_s:
        _be_impatient(job.patience_s)
    if job.max_starts:
        settle.MAX_STARTS = job.max_starts
    if job.control:
        vars(calls)["decide"] = _without_roll_back(settle.Action(job.control))
    script = SCRIPTS[job.script] if job.script in SCRIPTS else json.loads(job.script)
    ports = Ports(
        dict(os.environ),
        lambda name, settings: _TappedProvider(ScriptedProvider(parse_script(script)), point, side),
        notice=lambda text: side.write("said", notice=text),
        tools=lambda tools: [_Tapped(t, point, side) for t in [*tools, Publish(side.ledger), Send(side.sent)]],
        process=lambda: _machine(job.host),
    )
    try:
        settings = parse_settings(inputs, lambda name: None)
        settings = replace(settings, limits=replace(settings.limits, max_minutes=job.max_minutes))
        report = run(settings, Choice(job.session), ports)
    except EndstateError as error:
        side.write("said", error=type(error).__name__, text=str(error), hint=error.hint)
        return error.exit_code
    side.write("said", conclusion=report.result.conclusion, reason=report.result.reason)
    return CONCLUSIONS[report.result.conclusion]


def _machine(host: str) -> Mapping[str, Any]:
    return {**identity(), "host": host, "boot_id": host} if host else identity()


def _in_a_fork(job: Job) -> int:
    executed = _executed(job)
    child = os.fork()
    if child == 0:
        code = 3
        try:
            code = perform(job)
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    if job.kill_after_s:
        while _executed(job) < executed + job.kill_in and not _has_ended(child):
            time.sleep(0.01)
        time.sleep(job.kill_after_s)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _executed(job: Job) -> int:
    """How many calls have begun."""
    file = Path(job.side) / "executions"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def _has_ended(child: int) -> bool:
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def main() -> None:
    for line in sys.stdin:
        code = _in_a_fork(Job(**json.loads(line)))
        sys.stdout.write(f"{code}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
