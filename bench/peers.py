"""What others keep a session in: the same records, each writer in turn with a raw row.

They are installed for this alone, as `requirements.txt` pins them, and gone afterwards.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.counting import bytes_of, syncs
from bench.fresh import fresh
from bench.limits import ms, ratios
from bench.writers import Item, Ours, Raw, Writer, items, side_by_side

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
INSTALL_S = 240


class OpenAI:
    """openai-agents' `SQLiteSession`: one item per call, through its worker thread."""

    def __init__(self, directory: Path) -> None:
        from agents import SQLiteSession  # type: ignore[import-not-found]

        self._runner = asyncio.Runner()
        self._session = SQLiteSession("bench", directory / "openai.db")

    def append(self, item: Item) -> None:
        self._runner.run(self._session.add_items([dict(item.body)]))

    def close(self) -> None:
        self._session.close()
        self._runner.close()


class LangGraph:
    """langgraph's `SqliteSaver`: a checkpoint per record, which holds all messages so far."""

    def __init__(self, directory: Path) -> None:
        from langgraph.checkpoint.sqlite import SqliteSaver  # type: ignore[import-not-found]

        self._db = sqlite3.connect(directory / "langgraph.db", check_same_thread=False)
        self._saver = SqliteSaver(self._db)
        self._config: Any = {"configurable": {"thread_id": "bench", "checkpoint_ns": ""}}
        self._messages: list[Mapping[str, Any]] = []

    def append(self, item: Item) -> None:
        from langgraph.checkpoint.base import empty_checkpoint  # type: ignore[import-not-found]

        self._messages.append(item.body)
        version, step = {"messages": len(self._messages)}, len(self._messages)
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {"messages": self._messages}
        checkpoint["channel_versions"] = version
        self._config = self._saver.put(self._config, checkpoint, {"source": "loop", "step": step}, version)

    def close(self) -> None:
        self._db.close()


RAW = "raw SQLite row, WAL and FULL"
WRITERS: dict[str, type[Raw | Ours | OpenAI | LangGraph]] = {
    RAW: Raw,
    "endstate, `Session.append`": Ours,
    "openai-agents, `SQLiteSession.add_items`": OpenAI,
    "langgraph, `SqliteSaver.put`": LangGraph,
}


@dataclass(frozen=True, slots=True)
class Peer:
    """A line of the table, per record but for `slope`: how much dearer the last tenth is than the first."""

    name: str
    syncs: float | None
    written_kb: float | None
    p50: str
    over_raw: float
    slope: float


def measure(scratch: Path, records: int) -> list[Peer] | None:
    """None where they could not be installed."""
    python = _install(scratch / "peers")
    return None if python is None else [_peer(name, scratch, records, python) for name in WRITERS]


def beside_raw(name: str, directory: str, records: int) -> dict[str, list[float]]:
    """Alone with the raw row: who writes much slows the disk for everybody."""
    Path(directory).mkdir()
    second = Path(directory, "second")
    second.mkdir()
    writers: dict[str, Writer] = {"raw": Raw(Path(directory)), "peer": WRITERS[name](second)}
    took = side_by_side(writers, items(records))
    for writer in writers.values():
        writer.close()
    return took


def _peer(name: str, scratch: Path, records: int, python: str) -> Peer:
    made, tenth = WRITERS[name], records // 10
    writer, directory = f"{made.__module__}:{made.__name__}", str(scratch / f"beside-{made.__name__}")
    took = fresh("bench.peers:beside_raw", name, directory, records, scratch=scratch, python=python)
    first, last = (ratios(took["peer"][part], took["raw"][part]) for part in (slice(tenth), slice(-tenth, None)))
    counted = syncs(writer, records, scratch, python=python)
    written = bytes_of(writer, records, scratch, python=python)["written"]
    return Peer(
        name,
        None if counted is None else counted.mean,
        written and written / records / 1e3,
        ms(median(took["peer"])),
        ratios(took["peer"], took["raw"]),
        last / first,
    )


def _install(directory: Path) -> str | None:
    """An environment with the peers; uv where it is, for speed."""
    python = directory / "bin" / "python"
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    make = [sys.executable, "-m", "venv", *(["--without-pip"] if uv else []), str(directory)]
    pip = (
        [uv, "pip", "install", "--quiet", "--python", str(python)]
        if uv
        else [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    )
    try:
        for argv in (make, [*pip, "-r", str(REQUIREMENTS)]):
            subprocess.run(argv, check=True, stdout=sys.stderr, timeout=INSTALL_S)
    except (OSError, subprocess.SubprocessError):
        return None
    return str(python)
