"""One call of one tool, in a scratch workspace and in a process of its own, killed where it was ordered.

The call takes the product's whole way: a session, a plan, a recorded start, and after a kill a resume
that settles it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from endstate_action.agent.providers.scripted import ScriptedProvider, parse_script
from endstate_action.agent.tools.base import Tool
from endstate_action.config import parse_settings
from endstate_action.errors import EndstateError
from endstate_action.run import Choice, Ports, run
from endstate_action.state.session import SessionStore
from endstate_action.system.process import fork
from endstate_action.system.proctable import end, everything
from endstate_action.tools_check.place import Picture, Place
from endstate_action.tools_check.tapped import Order, Said, Tapped

TRIAL_S = 60
# The same in every trial, for tools that write the time of their call.
_NOW = time.time()

Pick = Callable[[list[Tool]], list[Tool]]
"""From the tools of the workspace to the one that is tried; none where it is not offered there."""


class NotChecked(Exception):
    """Why the claim cannot be judged."""


@dataclass(frozen=True, slots=True)
class Left:
    """What a call left. `status` is that of its outcome, `""` without one; `said` is what the process told."""

    status: str
    text: str
    effect: str
    picture: Picture
    said: Mapping[str, Any]


def try_out(place: Place, name: str, pick: Pick, arguments: Mapping[str, Any], order: Order) -> Left:
    """Make the call in a fresh place; where it was killed, resume until it is settled.

    Raises:
        NotChecked: it takes too long.
    """
    place.reset()
    said = Said(place.side)
    try:
        if _is_killed(lambda: _story(place, name, pick, arguments, order, said)):
            _is_killed(lambda: _story(place, name, pick, arguments, None, said))
    finally:
        us = os.getpid()
        # Orphans come to us; one that went on writing would be taken for the next trial.
        end(lambda: [p for p in everything() if p.parent == us], courtesy_s=0.0)
    return _left(place, said.all())


def _is_killed(story: Callable[[], None]) -> bool:
    child, deadline = fork(story), time.monotonic() + TRIAL_S
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.WIFSIGNALED(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise NotChecked(f"its example did not end within {TRIAL_S} s")


def _story(
    place: Place,
    name: str,
    pick: Pick,
    arguments: Mapping[str, Any],
    order: Order | None,
    said: Said,
) -> None:
    """A run of one call, or, without an order, the resume of one."""
    os.chdir(place.workspace)
    script = parse_script({"replies": [{"calls": [{"tool": name, "arguments": dict(arguments)}]}, {"text": "Done."}]})
    ports = Ports(
        place.environ,
        lambda provider, settings: ScriptedProvider(script),
        clock=lambda: _NOW,
        tools=lambda tools: [Tapped(t, order or Order(), said) for t in pick(tools)],
    )
    inputs = {
        "provider": "scripted",
        "working-directory": str(place.workspace),
        "instructions": "none",
        "sandbox": "auto" if name == "bash" else "off",
        **({"prompt": "Make the call."} if order else {"resume": "true"}),
    }
    try:
        run(parse_settings(inputs, lambda file: None), Choice(), ports)
    except Exception as error:  # noqa: BLE001  a tool's `plan` and `probe` can fail in any way
        said.tell(stopped=str(error) if isinstance(error, EndstateError) else f"{type(error).__name__}: {error}")


def _left(place: Place, said: Mapping[str, Any]) -> Left:
    found = SessionStore(place.workspace / ".endstate" / "sessions").all()
    state = found[0].state if found else None
    outcome = state.finished.get((1, 0)) if state else None
    starts = state.started.get((1, 0)) if state else None
    return Left(
        outcome.status if outcome else "",
        outcome.content if outcome else "",
        str(starts[-1].effect) if starts else "",
        place.picture(found[0].id if found else ""),
        said,
    )
