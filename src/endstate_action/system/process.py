"""Processes of ours: none outlives the call that started it, and none fills our memory.

`run` is for calls of the agent, `capture` for short programs of our own (git). Both start their
program with nothing but what they are given: no inherited descriptor, no inherited variable, no
terminal, no shell. On Linux every descendant of a call is found, whatever it did to get away;
elsewhere only its process group is.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from endstate_action.system.linux import adopt_orphans, die_with_us, harden
from endstate_action.system.output import Decoded, Output, Sink, decode
from endstate_action.system.proctable import (
    TAG_VARIABLE,
    Ended,
    ProcessInfo,
    end,
    end_tagged,
    everything,
    identity,
    is_alive,
    tag_of,
    tagged,
    with_descendants,
)

__all__ = [
    "TAG_VARIABLE",
    "Completed",
    "Decoded",
    "Ended",
    "Finished",
    "Output",
    "ProcessInfo",
    "User",
    "capture",
    "decode",
    "end_tagged",
    "harden",
    "identity",
    "is_alive",
    "run",
    "tagged",
]

DEFAULT_CAP_BYTES = 64 * 1024

_COURTESY_S = 0.1
# Of two calls at a time, nobody could tell whose an orphan is.
_one_call = threading.Lock()


@dataclass(frozen=True, slots=True)
class Finished:
    """How a call's program ended. Of `exit_code` and `signal` one is None; both are if it cannot be ended."""

    exit_code: int | None
    signal: int | None
    output: Output
    """stdout and stderr, as they came."""
    timed_out: bool
    elapsed_s: float
    ended_survivors: int
    """Processes, apart from the one started, that were still running and were ended."""
    left_alive: tuple[ProcessInfo, ...] = ()
    """Processes that could not be ended (another user's, say)."""


@dataclass(frozen=True, slots=True)
class User:
    """Whose rights a program gets instead of ours, without any further group; only root can give them."""

    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class Completed:
    returncode: int
    """Negative: minus the signal that ended it."""
    stdout: bytes
    stderr: bytes


def run(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    timeout_s: float,
    tag: str,
    cap_bytes: int = DEFAULT_CAP_BYTES,
    check: Callable[[], None] = lambda: None,
    keep: Sequence[int] = (),
    user: User | None = None,
) -> Finished:
    """Run one program until it ends by itself or after `timeout_s`, then end everything that it left.

    Returns when the program has ended, whoever still holds its output open. Half of `cap_bytes` is
    kept of the output's beginning and of its end each. `tag` goes into the environment, so that
    `tagged` finds what a dead attempt left. `check` is called while waiting, several times a second;
    an exception from it ends everything as well, and is passed on. (A signal handler must not raise
    here: an exception inside the hooks that run around a fork would be swallowed.) The program inherits
    the descriptors in `keep`, and runs as `user` where one is given. Calls run one at a time.

    A child that another thread of an embedding program starts meanwhile *in a session of its own*
    would be taken for the call's; ours are not.

    Raises:
        OSError: the program could not be started.
        ValueError: argv or env cannot be passed to a program (NUL bytes).
    """
    with _one_call:
        start = _Start(argv, cwd, {**env, TAG_VARIABLE: tag}, keep, user)
        return _Call(tag, Sink(cap_bytes), check).run(start, timeout_s)


def fork(story: Callable[[], None]) -> int:
    """Run `story` in a child process, which ends with it; returns the child's pid. The caller waits for it.

    A story that ends by itself, as only a defect lets it, ends the child with 3; it tells of its errors itself.
    """
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            story()
        os._exit(3)
    return child


def capture(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    timeout_s: float,
    input: bytes | None = None,
    may_outlive_us: bool = False,
) -> Completed:
    """Run a program of ours and keep all that it says, in memory: for output whose size is known to be small.

    Args:
        may_outlive_us: it changes nothing and ends by itself, so nobody minds it when we are killed. To die with us
            a child has to be forked, and that takes the longer the more memory we have: 8 ms at 80 MB, a vfork 2 ms.

    Raises:
        TimeoutError: it did not finish within `timeout_s`; its process group was ended.
        OSError: the program could not be started.
    """
    # A group, but not a session of its own: by that `_Call` tells these children from an agent's.
    with subprocess.Popen(
        argv,
        cwd=cwd,
        env=dict(env),
        stdin=subprocess.DEVNULL if input is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        process_group=0,
        preexec_fn=None if may_outlive_us else die_with_us(),  # noqa: PLW1509
    ) as process:
        try:
            stdout, stderr = process.communicate(input, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            _kill_group(process)
            message = f"{argv[0]} did not finish within {timeout_s:g} s and was ended"
            raise TimeoutError(message) from None
        except BaseException:
            _kill_group(process)
            raise
    return Completed(process.returncode, stdout, stderr)


_CHECK_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class _Start:
    """How a call's program is started."""

    argv: Sequence[str]
    cwd: Path
    env: Mapping[str, str]
    keep: Sequence[int]
    user: User | None

    def now(self, output: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.argv,
            cwd=self.cwd,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=self.keep,
            user=self.user.uid if self.user else None,
            group=self.user.gid if self.user else None,
            extra_groups=() if self.user else None,
            # Runs after the change of user, which would undo it.
            preexec_fn=die_with_us(),  # noqa: PLW1509
        )


class _Call:
    """One run of a program, with everything that descends from it."""

    def __init__(self, tag: str, sink: Sink, check: Callable[[], None]) -> None:
        self._tag = tag
        self._sink = sink
        self._check = check
        self._process: subprocess.Popen[bytes] | None = None
        # Orphans come to us, not to init, so that none is lost.
        adopt_orphans()
        self._before = frozenset(everything())

    def run(self, start: _Start, timeout_s: float) -> Finished:
        began = time.monotonic()
        try:
            ends = os.pipe()
            with open(ends[0], "rb", buffering=0) as reader, open(ends[1], "wb", buffering=0) as writer:
                self._process = process = start.now(writer.fileno())
                writer.close()
                in_time = self._follow(process, reader.fileno(), began + timeout_s)
                ended = self._end(courtesy_s=_COURTESY_S if in_time else 0.0)
        except BaseException:
            self._end(courtesy_s=0.0)
            raise
        code = process.returncode
        return Finished(
            exit_code=code if code is not None and code >= 0 else None,
            signal=-code if code is not None and code < 0 else None,
            output=self._sink.output(),
            timed_out=not in_time,
            elapsed_s=time.monotonic() - began,
            ended_survivors=sum(p.pid != process.pid for p in ended.ended),
            left_alive=ended.survivors,
        )

    def _follow(self, process: subprocess.Popen[bytes], pipe: int, deadline: float) -> bool:
        """Read until the program itself has ended; False when the time is over first.

        The end of the pipe means little: a child in the background holds it open, a program may close it.
        """
        os.set_blocking(pipe, False)
        with selectors.DefaultSelector() as selector, _exit_of(process) as exit_fd:
            selector.register(pipe, selectors.EVENT_READ)
            if exit_fd is not None:
                selector.register(exit_fd, selectors.EVENT_READ)
            while process.poll() is None:
                self._check()
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                ready = selector.select(min(left, _CHECK_EVERY_S))
                if any(key.fd == pipe for key, _ in ready) and not self._sink.read(pipe):
                    selector.unregister(pipe)
        self._sink.drain(pipe)
        return process.poll() is not None

    def _end(self, *, courtesy_s: float) -> Ended:
        if not self._before:
            return self._end_group()
        ended = end(self._living, courtesy_s=courtesy_s)
        if self._process is not None and self._process.pid not in {p.pid for p in ended.survivors}:
            self._process.wait()
        return ended

    def _living(self) -> list[ProcessInfo]:
        """What runs because of this call. Reaps, by the way, what came to us and has ended.

        Orphans come to us and, unlike what we start for ourselves, are never in our session, since
        the program got its own. So not even one without a tag gets away.
        """
        us, session = os.getpid(), os.getsid(0)
        new = [p for p in everything() if p not in self._before]
        ours = [p for p in new if p.parent == us and p.session != session]
        for process in ours:
            if process.gone and (self._process is None or process.pid != self._process.pid):
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(process.pid, os.WNOHANG)
        found = with_descendants([*ours, *(p for p in new if tag_of(p.pid) == self._tag)], new)
        return [p for p in found if not p.gone]

    def _end_group(self) -> Ended:
        """Without `/proc`: the group that the program leads, which a child can leave."""
        if self._process is not None:
            _kill_group(self._process)
            self._process.wait()
        return Ended((), ())


@contextlib.contextmanager
def _exit_of(process: subprocess.Popen[bytes]) -> Iterator[int | None]:
    """A descriptor that becomes readable when the program ends; None where the kernel has none."""
    try:
        handle = os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        yield None
        return
    try:
        yield handle
    finally:
        os.close(handle)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
