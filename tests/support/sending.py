"""What reaches the world without a trace here: an effect that can neither be undone nor asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from endstate_action.agent.tools.base import CallContext, FileChange, Tool
from endstate_action.effects import EffectClass


class Send(Tool):
    """Leaves a word in a file outside the workspace, as a command with network would; nobody can ask whether it did."""

    name: ClassVar[str] = "send"
    description: ClassVar[str] = "Send a word."
    parameters: ClassVar[Mapping[str, Any]] = {
        "type": "object",
        "properties": {"word": {"type": "string"}},
        "required": ["word"],
    }
    effect = EffectClass.NETWORKED

    def __init__(self, sent: Path) -> None:
        self._sent = sent

    def run(self, arguments: Mapping[str, Any], context: CallContext, plan: FileChange | None) -> str:
        file = os.open(self._sent, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, f"{arguments['word']}\n".encode())
        finally:
            os.close(file)
        return f"Sent {arguments['word']!r}."
