"""A limit, what was measured against it, and the verdict."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Literal

NOT_COUNTED = "not counted here"


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured. A limit is stated for `FULL`; less is for a quick look and for tests."""

    runs: int
    paired: int
    """Records that each writer takes in one run, one after another in random order."""
    growth: int
    counted: int
    calls: int
    loaded: int
    """Messages of the session that is loaded."""
    files: int
    big_file_mb: int
    peers: int
    """Records that each peer takes; 0: none are installed."""
    checkpoints: int
    """Of each session, its first aside."""
    sessions: tuple[int, ...]
    """Steps before the first of them."""
    steps: int
    """Of the session whose checkpoints are added up."""
    shell: int
    """Steps of the runs beside a slow store."""


FULL = Size(runs=5, paired=400, growth=10_000, counted=2_000, calls=128, loaded=5_000, files=10_000,
            big_file_mb=2_048, peers=400, checkpoints=50, sessions=(100, 5_000), steps=1_000, shell=25)  # fmt: skip
QUICK = Size(runs=3, paired=200, growth=2_000, counted=600, calls=128, loaded=5_000, files=2_000,
             big_file_mb=256, peers=0, checkpoints=8, sessions=(100,), steps=100, shell=8)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Outcome:
    """One limit line. `holds` is None where nothing here could count it."""

    what: str
    limit: str
    measured: str
    holds: bool | None
    kind: Literal["counted", "timed"]

    @property
    def verdict(self) -> str:
        return NOT_COUNTED if self.holds is None else "holds" if self.holds else "does not hold"


def counted(what: str, limit: float, value: float | None, unit: str, detail: str = "") -> Outcome:
    return _at_most(what, limit, value, unit, detail, "counted")


def timed(what: str, limit: float, value: float, unit: str = "x", detail: str = "") -> Outcome:
    return _at_most(what, limit, value, unit, detail, "timed")


def is_broken(outcomes: list[Outcome], strict: bool) -> bool:
    """Whether a counted limit does not hold; with `strict`, any limit."""
    return any(o.holds is False and (strict or o.kind == "counted") for o in outcomes)


def clock(action: Callable[[], object]) -> float:
    """Seconds."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def ms(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.2f} s"


def ratios(over: list[float], under: list[float]) -> float:
    """The median of what each of `over` is to its partner: a slow second slows both."""
    return median(a / b for a, b in zip(over, under, strict=True))


def _at_most(
    what: str, limit: float, value: float | None, unit: str, detail: str, kind: Literal["counted", "timed"]
) -> Outcome:
    measured = NOT_COUNTED if value is None else f"{value:.3g}{_spaced(unit)}" + (f" ({detail})" if detail else "")
    return Outcome(what, f"at most {limit:g}{_spaced(unit)}", measured, None if value is None else value <= limit, kind)


def _spaced(unit: str) -> str:
    return unit if unit in ("x", "") else f" {unit}"
