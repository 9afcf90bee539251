"""An agent of your own, killed in the middle of a call and resumed by another process.

    python embedding.py DIRECTORY

The tool leaves a line in a ledger outside the workspace. The first process is killed right after the
line is there and before anything is known of it; the second finds the line by its key, and so does
not write another.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from endstate_action import (
    AgentLoop,
    CallContext,
    EffectClass,
    FileChange,
    Message,
    Probe,
    Probed,
    Reply,
    Request,
    SessionStore,
    Setup,
    Tool,
    ToolCall,
    Usage,
)


class Order(Tool):
    """A keyed effect: each order carries the call's key, and the ledger can be asked for a key."""

    name: ClassVar[str] = "order"
    description: ClassVar[str] = "Order a thing."
    parameters: ClassVar[Mapping[str, Any]] = {
        "type": "object",
        "properties": {"thing": {"type": "string"}},
        "required": ["thing"],
    }
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ({"thing": "lamp"},)
    effect = EffectClass.KEYED

    def __init__(self, ledger: Path, *, dies: bool = False) -> None:
        self._ledger = ledger
        self._dies = dies

    def run(self, arguments: Mapping[str, Any], context: CallContext, plan: FileChange | None) -> str:
        with self._ledger.open("a") as file:
            file.write(f"{context.key} {arguments['thing']}\n")
        if self._dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return f"Ordered {arguments['thing']}."

    def probe(self, arguments: Mapping[str, Any], context: CallContext) -> Probed:
        lines = self._ledger.read_text().splitlines() if self._ledger.exists() else []
        ordered = [thing for key, _, thing in (line.partition(" ") for line in lines) if key == context.key]
        if arguments["thing"] in ordered:
            return Probed(Probe.APPLIED, f"Ordered {arguments['thing']}.")
        return Probed(Probe.UNKNOWN if ordered else Probe.ABSENT)


def order() -> Order:
    """For `endstate tools check embedding:order`."""
    return Order(Path.home() / "ledger")


class Model:
    """Anything with a name and `reply` is a provider. This one orders a lamp and then says so."""

    name = "example"

    def reply(self, request: Request, on_discard: Callable[[Usage, str], None]) -> Reply:
        if request.finished_steps == 0:
            said = Message.assistant("", ToolCall("call_1", "order", {"thing": "lamp"}))
            return Reply("msg_1", request.model, said.blocks, "tool_use", Usage())
        outcome = request.messages[-1].blocks[0]["content"]
        said = Message.assistant(f"The tool said: {outcome}")
        return Reply("msg_2", request.model, said.blocks, "end_turn", Usage())


def first(place: Path) -> None:
    """Begins a session, and does not live to see its end."""
    with SessionStore(place / "sessions").create(session="0123456789ab") as session:
        tools = [Order(place / "ledger", dies=True)]
        AgentLoop(session, Model(), tools, workspace=place / "workspace", setup=Setup(model="any")).run("Order a lamp.")


def second(place: Path) -> None:
    """Settles what the first began, and finishes the task."""
    with SessionStore(place / "sessions").open("0123456789ab") as session:
        result = AgentLoop(session, Model(), [Order(place / "ledger")], workspace=place / "workspace").resume()
    for settled in result.settlements:
        print(f"settled: {settled.action}, {settled.reason}")
    print(f"{result.conclusion} in attempt {result.attempt}: {result.final_message}")
    print(result.tree_hash())


if __name__ == "__main__":
    where = Path(sys.argv[1])
    if sys.argv[2:] == ["first"]:
        first(where)
    else:
        (where / "workspace").mkdir(parents=True)
        died = subprocess.run([sys.executable, __file__, str(where), "first"], check=False)
        print(f"the first process ended with {died.returncode}")
        second(where)
