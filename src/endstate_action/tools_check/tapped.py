"""A tool that can be killed inside its call: before what is seen outside of its process, and at each of its lines."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

from endstate_action.agent.tools.base import CallContext, FileChange, Probed, Tool, ToolError
from endstate_action.effects import EffectClass, Probe, content_digest

_POINTS = 2000
"""Lines after this many points are no points of their own: a tool may loop."""
# What is about to change something outside of this process, or to tell somebody.
_EVENTS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod"}
_EVENTS |= {"socket.connect", "socket.sendto", "sqlite3.connect"}
_STARTS = {"subprocess.Popen", "os.posix_spawn", "os.system", "os.fork"}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


@dataclass(frozen=True, slots=True)
class Order:
    """`kill_at` counts the points of a call from 1, 0 lets it live; `times` is how often its `run` is carried out."""

    kill_at: int = 0
    kill_after_s: float = 0.0
    times: int = 1


@dataclass(frozen=True, slots=True)
class Said:
    """What the processes of a trial tell: lines of JSON, each written before anything else happens."""

    file: Path

    def tell(self, **words: Any) -> None:
        with open(self.file, "ab", buffering=0) as file:
            file.write(json.dumps(words).encode() + b"\n")

    def all(self) -> dict[str, Any]:
        """The first that was said of each thing."""
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        return {key: value for line in reversed(lines) for key, value in json.loads(line).items()}


@dataclass(slots=True)
class _Points:
    """The places of a call at which it can be killed: what it is about to do outside, and each of its own lines."""

    order: Order
    said: Said
    source: str | None
    met: list[str] = field(default_factory=list)
    watching: bool = False

    def __call__(self, what: str) -> None:
        self.met.append(what)
        if len(self.met) == self.order.kill_at:
            self.kill(what)

    def kill(self, where: str) -> None:
        self.watching = False
        self.said.tell(killed=where)
        os.kill(os.getpid(), signal.SIGKILL)

    def begin(self) -> None:
        sys.addaudithook(self._heard)
        if self.order.kill_after_s:
            after = f"{self.order.kill_after_s:.2f} s after its start"
            timer = threading.Timer(self.order.kill_after_s, self.kill, (after,))
            timer.daemon = True
            timer.start()
        self.watching = True
        sys.settrace(self._entered)

    def end(self) -> None:
        sys.settrace(None)
        self("after its end")
        self.watching = False

    def _heard(self, event: str, given: tuple[Any, ...]) -> None:
        if not self.watching:
            return
        if event in _EVENTS or event in _STARTS or (event == "open" and _writes(*given)):
            self(f"before {event}" + (f" of {os.path.basename(str(given[0]))}" if given else ""))

    def _entered(self, frame: FrameType, event: str, given: Any) -> Any:
        return self._line if frame.f_code.co_filename == self.source else None

    def _line(self, frame: FrameType, event: str, given: Any) -> Any:
        if event == "line" and self.watching and len(self.met) < _POINTS:
            self(f"at line {frame.f_lineno}")
        return self._line


def _writes(path: Any, _: Any, flags: Any) -> bool:
    return isinstance(flags, int) and bool(flags & _WRITES) and path != os.devnull


def starts_a_program(points: list[str]) -> bool:
    return any(point.startswith(f"before {event}") for point in points for event in _STARTS)


class Tapped(Tool):
    """A tool whose `run` can be killed, or be carried out twice; what it is asked is as ever."""

    def __init__(self, tool: Tool, order: Order, said: Said) -> None:
        self.name, self.description, self.parameters = tool.name, tool.description, tool.parameters  # type: ignore[misc]
        self.effect, self.runs_in = tool.effect, tool.runs_in
        self._tool, self._order, self._said = tool, order, said

    def contract(self) -> dict[str, str]:
        return self._tool.contract()

    def plan(self, arguments: Mapping[str, Any], context: CallContext) -> FileChange | None:
        return self._tool.plan(arguments, context)

    def probe(self, arguments: Mapping[str, Any], context: CallContext) -> Probed:
        return self._tool.probe(arguments, context)

    def run(self, arguments: Mapping[str, Any], context: CallContext, plan: FileChange | None) -> str:
        module = sys.modules.get(type(self._tool).__module__)
        points = _Points(self._order, self._said, getattr(module, "__file__", None))
        before, began = self._asked(arguments, context), time.monotonic()
        points.begin()
        said = self._tool.run(arguments, context, plan)
        for _ in range(1, self._order.times):
            with suppress(ToolError):
                self._tool.run(arguments, context, plan)
        points.end()
        self._said.tell(points=points.met, elapsed_s=time.monotonic() - began)
        if before is not None:
            other = altered(arguments)
            digest = content_digest(self.name, other)
            self._said.tell(
                probes=[
                    before,
                    self._asked(arguments, context),
                    self._asked(other, replace(context, content_digest=digest)),
                ]
            )
        return said

    def _asked(self, arguments: Mapping[str, Any], context: CallContext) -> str | None:
        if self.effect is not EffectClass.KEYED:
            return None
        try:
            return str(self._tool.probe(arguments, context).probe)
        except ToolError:
            return str(Probe.UNKNOWN)


def altered(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The same call with other content: its first text is another."""
    text = next((name for name, value in arguments.items() if isinstance(value, str)), None)
    return dict(arguments) | ({text: f"{arguments[text]} (another)"} if text is not None else {})
