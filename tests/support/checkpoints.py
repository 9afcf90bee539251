"""A journal that grows as one likes, and checkpoints of it."""

from __future__ import annotations

import base64
import hashlib
import random
from dataclasses import replace

from endstate_action.effects import EffectClass
from endstate_action.messages import Message, ToolCall, Usage
from endstate_action.state.checkpoint.build import Builder, Row
from endstate_action.state.checkpoint.manifest import About, Manifest
from endstate_action.state.checkpoint.read import Expected
from endstate_action.state.keys import lineage_of
from endstate_action.state.records import Begun, Note, Observed, Record, Replied, Started, Unseen, encode
from endstate_action.state.seal import derive_key

REPOSITORY = "github.com/octo/project"
LINEAGE = lineage_of(REPOSITORY, "workflow/job/run 7")
SESSION = "abcdef012345"
KEY = derive_key("a secret that is long enough", explicit=True)
OTHER_KEY = derive_key("another secret, as long as that", explicit=True)
EXPECTED = Expected(REPOSITORY, LINEAGE)
ABOUT = About("0.9", REPOSITORY, LINEAGE, SESSION, 1, "git", "sha1", "c" * 40, "d" * 40, "f" * 32)


class Journal:
    """Rows of one session; what a note says cannot be packed, so that sizes can be chosen."""

    def __init__(self, seed: int = 0) -> None:
        self.rows: list[Row] = []
        self._random = random.Random(seed)
        self.add(Begun(SESSION, 1.0, {"repository": REPOSITORY}))

    def add(self, record: Record) -> None:
        self.rows.append((len(self.rows) + 1, record.kind, encode(record)))

    def note(self, size: int = 20) -> None:
        text = base64.b85encode(self._random.randbytes(size)).decode()
        self.add(Note(str(len(self.rows)), text, 0))

    def reply(self) -> None:
        """With one call, which the next start is of."""
        call = ToolCall("call", "act", {})
        self.add(
            Replied(
                self._steps() + 1, "", "", Message.assistant("", call).blocks, "tool_use", Usage(), None,
                float(len(self.rows)), 1,
            )
        )  # fmt: skip

    def _steps(self) -> int:
        return sum(kind == "replied" for _, kind, _ in self.rows)

    def start(self, effect: EffectClass = EffectClass.KEYED) -> None:
        self.add(Started(max(self._steps(), 1), 0, "call", effect, 1, float(len(self.rows)), "tag"))

    def unseen(self) -> None:
        self.add(Unseen(max(self._steps(), 1), len(self.rows), 1))

    def observe(self, root: str | None = None) -> str:
        root = root or hashlib.sha1(str(len(self.rows)).encode()).hexdigest()
        self.add(Observed(1, f"tree of {root}", None, float(len(self.rows)), root))
        return root

    def after(self, number: int) -> list[Row]:
        return self.rows[number:]


def pack_of(root: str) -> bytes:
    return f"the pack of {root}".encode()


def builder(journal: Journal, *, epoch: int = 1, restored: Manifest | None = None, **more) -> Builder:
    return Builder(replace(ABOUT, epoch=epoch), KEY, journal.after, pack_of, restored=restored, **more)
