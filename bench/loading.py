"""A session read back in a fresh process, beside its rows and `json.loads`."""

from __future__ import annotations

import json
import sqlite3
import time
from pathlib import Path
from statistics import median

from bench.fresh import fresh, peak_mb
from bench.limits import Outcome, Size, counted, ms, ratios, timed

_ID = "0123456789ab"


def measure(scratch: Path, size: Size) -> list[Outcome]:
    directory = scratch / "loading"
    fresh("bench.loading:prepare", str(directory), size.loaded, scratch=scratch)
    ours, plain = [], []
    for _ in range(size.runs + 2):
        ours.append(fresh("bench.loading:load", str(directory), scratch=scratch))
        plain.append(fresh("bench.loading:read_rows", str(directory), scratch=scratch))
    times = [[run["seconds"] for run in runs] for runs in (ours, plain)]
    peaks = [[run["peak_mb"] for run in runs if run["peak_mb"]] for runs in (ours, plain)]
    what = f"a session of {size.loaded} messages in a fresh process"
    detail = f"{ms(median(times[0]))} and {ms(median(times[1]))}; {ours[0]['rows']} rows, a start for each result"
    beside = f"rows and json.loads: {median(peaks[1]):.0f} MB" if peaks[1] else ""
    return [
        timed(f"{what}: loading over reading rows and json.loads", 1.3, ratios(*times), detail=detail),
        counted(f"{what}: memory", 60, median(peaks[0]) if peaks[0] else None, "MB", beside),
    ]


def prepare(directory: str, messages: int) -> int:
    from bench.writers import Ours, finished, reply, started

    Path(directory).mkdir(exist_ok=True)
    writer = Ours(Path(directory))
    for step in range(1, messages // 2 + 1):
        for item in (reply(step), started(step), finished(step)):
            writer.append(item)
    writer.close()
    return messages


def load(directory: str) -> dict[str, float | None]:
    from endstate_action.state.session import SessionStore

    began = time.perf_counter()
    state = SessionStore(Path(directory)).read(_ID)
    return {"seconds": time.perf_counter() - began, "rows": state.records, "peak_mb": peak_mb()}


def read_rows(directory: str) -> dict[str, float | None]:
    began = time.perf_counter()
    db = sqlite3.connect(f"file:{directory}/{_ID}.db?mode=ro", uri=True)
    rows = [json.loads(body) for (body,) in db.execute("SELECT body FROM journal ORDER BY seq").fetchall()]
    db.close()
    return {"seconds": time.perf_counter() - began, "rows": len(rows), "peak_mb": peak_mb()}
