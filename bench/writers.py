"""The same records for every writer: a reply of 2 kB that asks for one call, then that call's result of 4 kB."""

from __future__ import annotations

import json
import random
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from endstate_action.effects import EffectClass
from endstate_action.messages import Message, ToolCall, Usage
from endstate_action.state.records import Finished, Record, Replied, Started, encode
from endstate_action.state.session import SessionStore

_WORDS = (
    "the",
    "def",
    "return",
    "value",
    "of",
    "path",
    "record",
    "if",
    "not",
    "else",
    "for",
    "import",
    "test",
    "assert",
)


@dataclass(frozen=True, slots=True)
class Item:
    """One record: as we keep it, and as the JSON value that others keep."""

    record: Record
    body: Mapping[str, Any]

    @classmethod
    def of(cls, record: Record) -> Item:
        return cls(record, json.loads(encode(record)))


class Writer(Protocol):
    """Something that makes one record durable per `append`."""

    def append(self, item: Item) -> None: ...
    def close(self) -> None: ...


class Ours:
    def __init__(self, directory: Path) -> None:
        self._session = SessionStore(directory).create(session="0123456789ab")

    def append(self, item: Item) -> None:
        self._session.append(item.record)

    def close(self) -> None:
        self._session.close()


class Raw:
    """One row in SQLite, in WAL mode and synced, with nothing else around it."""

    def __init__(self, directory: Path) -> None:
        self._db = sqlite3.connect(directory / "raw.db", isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.execute("CREATE TABLE journal (seq INTEGER PRIMARY KEY, body TEXT NOT NULL)")

    def append(self, item: Item) -> None:
        body = json.dumps(item.body, ensure_ascii=False, separators=(",", ":"))
        self._db.execute("INSERT INTO journal (body) VALUES (?)", (body,))

    def close(self) -> None:
        self._db.close()


def items(records: int) -> list[Item]:
    """`records` of them, replies and results in turn."""
    step = (item for number in range(1, records) for item in (reply(number), finished(number)))
    return [next(step) for _ in range(records)]


def reply(step: int, calls: int = 1) -> Item:
    asked = [ToolCall(f"toolu_{step:06}_{i:04}", "read", {"path": f"src/module_{i}.py"}) for i in range(calls)]
    blocks = Message.assistant(text(2_000, step), *asked).blocks
    return Item.of(Replied(step, f"msg_{step:06}", "model", blocks, "tool_use", Usage(9_000, 700), "0.01", _AT, 1))


def started(step: int, index: int = 0) -> Item:
    return Item.of(Started(step, index, f"toolu_{step:06}_{index:04}", EffectClass.CONTAINED, 1, _AT, "0123456789ab"))


def finished(step: int, index: int = 0) -> Item:
    content = text(4_000, step * 1_000 + index)
    return Item.of(Finished(step, index, f"toolu_{step:06}_{index:04}", "ok", content, 1, _AT, 0.25))


def text(size: int, seed: int) -> str:
    return " ".join(random.Random(seed).choices(_WORDS, k=size // 4))[:size]


def payload(taken: Sequence[Item]) -> int:
    """Bytes of the records as compact JSON."""
    return sum(len(encode(item.record).encode()) for item in taken)


def seconds(writer: Writer, *taken: Item) -> float:
    began = time.perf_counter()
    for item in taken:
        writer.append(item)
    return time.perf_counter() - began


def side_by_side(writers: Mapping[str, Writer], taken: Sequence[Item]) -> dict[str, list[float]]:
    """Seconds per record. Each record goes to all writers, in random order, before the next one does."""
    order, took = list(writers), {name: list[float]() for name in writers}
    shuffle = random.Random(7).shuffle
    for item in taken:
        shuffle(order)
        for name in order:
            took[name].append(seconds(writers[name], item))
    return took


def directories(parent: Path) -> Iterator[Path]:
    """New ones, never used again: ext4 is slow for a while where much has just been deleted."""
    for number in range(1_000_000):
        made = parent / f"{number:04}"
        made.mkdir(parents=True)
        yield made


_AT = 1_700_000_000.5
