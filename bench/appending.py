"""How long a record takes, beside a raw row of the same content, in one process and on one disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median

from bench.limits import Outcome, Size, ms, ratios, timed
from bench.writers import Item, Ours, Raw, Writer, directories, finished, items, reply, seconds, side_by_side, started


def measure(scratch: Path, size: Size) -> list[Outcome]:
    new = directories(scratch / "appending")
    return [
        _record(lambda: next(new), size),
        _growth(next(new), size),
        _call(lambda: next(new), size),
        _step(lambda: next(new), size),
    ]


def _record(new: Callable[[], Path], size: Size) -> Outcome:
    taken, found, p50 = items(size.paired), [], []
    for _ in range(size.runs):
        took = _beside_raw(new(), taken)
        found.append(ratios(took["ours"], took["raw"]))
        p50.append((median(took["ours"]), median(took["raw"])))
    detail = f"{_pair(p50)}; {size.runs} runs of {size.paired} records"
    return timed("a record over a raw SQLite row, WAL and FULL", 1.3, median(found), detail=detail)


def _growth(directory: Path, size: Size) -> Outcome:
    """Beside a raw row again, since the disk may be in another mood ten seconds later."""
    took = _beside_raw(directory, items(size.growth))
    tenth = size.growth // 10
    first, last = (ratios(took["ours"][part], took["raw"][part]) for part in (slice(tenth), slice(-tenth, None)))
    alone = median(took["ours"][-tenth:]) / median(took["ours"][:tenth])
    detail = f"{size.growth} records, each over its raw row; {alone:.2f}x by the clock alone"
    return timed("last tenth of the records over the first", 1.15, last / first, detail=detail)


def _call(new: Callable[[], Path], size: Size) -> Outcome:
    found, p50 = [], []
    for _ in range(size.runs):
        writers = _writers(new())
        both, one = [], []
        for step in range(1, size.paired // 2 + 1):
            writers["ours"].append(reply(step))
            pair, row = (started(step), finished(step)), finished(step)
            if step % 2:
                both.append(seconds(writers["ours"], *pair))
            one.append(seconds(writers["raw"], row))
            if not step % 2:
                both.append(seconds(writers["ours"], *pair))
        found.append(ratios(both, one))
        p50.append((median(both), median(one)))
        _close(writers)
    return timed("started and finished together over one raw row", 2.5, median(found), detail=_pair(p50))


def _step(new: Callable[[], Path], size: Size) -> Outcome:
    found, p50 = [], []
    results = [finished(1, index) for index in range(size.calls)]
    for _ in range(size.runs):
        writers = _writers(new())
        for writer in writers.values():
            writer.append(reply(1, size.calls))
        took = side_by_side(writers, results)
        _close(writers)
        found.append(ratios(took["ours"], took["raw"]))
        p50.append((median(took["ours"]), median(took["raw"])))
    return timed(f"a step of {size.calls} calls: a result over a raw row", 1.3, median(found), detail=_pair(p50))


def _beside_raw(directory: Path, taken: list[Item]) -> dict[str, list[float]]:
    writers = _writers(directory)
    took = side_by_side(writers, taken)
    _close(writers)
    return took


def _writers(directory: Path) -> dict[str, Writer]:
    return {"ours": Ours(directory), "raw": Raw(directory)}


def _close(writers: dict[str, Writer]) -> None:
    for writer in writers.values():
        writer.close()


def _pair(p50: list[tuple[float, float]]) -> str:
    ours, raw = (median(column) for column in zip(*p50, strict=True))
    return f"{ms(ours)} and {ms(raw)}"
