"""What is run under the knife: small tasks over uneven batches, a repository for them, and a keyed outside effect."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from endstate_action.agent.tools.base import CallContext, FileChange, Probed, Tool
from endstate_action.effects import EffectClass, Probe

PROMPT = "Write the notes, raise the version, publish and commit."

FILES = {
    "README.md": "# A project\n\nNotes are kept in docs.\n",
    "app.py": "#!/usr/bin/env python3\nVERSION = 1\nprint(VERSION)\n",
    # The keyed tool is none of the product's, so a policy has to let it through.
    ".github/endstate.yml": "policy: {default: allow}\n",
}

Script = dict[str, Any]


def reply(*calls: tuple[str, Mapping[str, Any]], text: str = "", **more: Any) -> Script:
    """One reply of a script: `reply(("read", {"path": "a"}), text="I look.")`."""
    return {"text": text, "calls": [{"tool": tool, "arguments": dict(given)} for tool, given in calls], **more}


def script(*replies: Script) -> Script:
    return {"replies": list(replies)}


EXACT = script(
    reply(
        ("read", {"path": "app.py"}),
        ("write", {"path": "docs/notes/first.md", "content": "# Notes\n\n- one\n"}),
        ("grep", {"pattern": "VERSION", "glob": "*.py"}),
        text="I look around and begin the notes.",
    ),
    reply(
        ("edit", {"path": "app.py", "old": "VERSION = 1", "new": "VERSION = 2"}),
        ("publish", {"text": "version 2"}),
        text="I raise the version and publish it.",
    ),
    reply(("git_commit", {"message": "Raise the version"}), text="I commit it."),
    reply(text="The version is 2; notes, publication and commit are made."),
)
"""3 + 2 + 1 calls, none of them opaque: killed anywhere, it ends in one tree and one git state."""

OPAQUE = script(
    reply(
        ("write", {"path": "docs/notes/first.md", "content": "# Notes\n"}),
        ("bash", {"command": "echo one >> log.txt"}),
        ("publish", {"text": "version 2"}),
        text="I begin the notes.",
    ),
    reply(("bash", {"command": "echo two >> log.txt"}), ("glob", {"pattern": "*.md"}), text="I go on."),
    reply(("git_commit", {"message": "Add the notes"}), text="I commit them."),
    reply(text="The notes are made."),
)
"""With shell calls, whose outcome nobody can tell after a kill inside one."""

SCRIPTS = {"exact": EXACT, "opaque": OPAQUE}


class Publish(Tool):
    """Leaves one line for each key in a ledger outside the workspace, and can be asked for it."""

    name: ClassVar[str] = "publish"
    description: ClassVar[str] = "Publish a text."
    parameters: ClassVar[Mapping[str, Any]] = {
        "type": "object",
        "properties": {"text": {"type": "string"}},
        "required": ["text"],
    }
    effect = EffectClass.KEYED

    def __init__(self, ledger: Path) -> None:
        self._ledger = ledger

    def run(self, arguments: Mapping[str, Any], context: CallContext, plan: FileChange | None) -> str:
        file = os.open(self._ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, f"{context.key} {context.content_digest}\n".encode())
        finally:
            os.close(file)
        return f"Published {arguments['text']!r}."

    def probe(self, arguments: Mapping[str, Any], context: CallContext) -> Probed:
        lines = self._ledger.read_text().splitlines() if self._ledger.exists() else []
        digests = {digest for key, digest in (line.split() for line in lines) if key == context.key}
        if context.content_digest in digests:
            return Probed(Probe.APPLIED, "Published before, and found.")
        return Probed(Probe.UNKNOWN if digests else Probe.ABSENT)
