"""How a run can end: exit code, `conclusion`, the step's result and what the watcher does, in one table.

The step's result follows from the exit code, since the entrypoint ends in ours. Whatever was cut
short fails its step, so that GitHub offers to run it again; only what another attempt can finish
without a person is run again by the watcher.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Conclusion = Literal[
    "success", "stopped", "interrupted", "skipped", "mismatch", "undelivered", "superseded", "failed"
]  # fmt: skip
Watcher = Literal["runs it again", "leaves it"]


@dataclass(frozen=True, slots=True)
class Ending:
    exit_code: int
    conclusion: Conclusion
    watcher: Watcher
    because: str
    """Why the watcher does so, as a clause that goes into its comment."""

    @property
    def step(self) -> Literal["success", "failure"]:
        """What GitHub shows for the step."""
        return "success" if self.exit_code == 0 else "failure"


CONCLUSIONS = (
    Ending(0, "success", "leaves it", "it is done"),
    Ending(0, "skipped", "leaves it", "there was nothing to do"),
    Ending(1, "stopped", "leaves it", "a limit was reached, or the model declined: whether to go on is for a person"),
    Ending(2, "failed", "leaves it", "an input, a key or a permission must be corrected first"),
    Ending(3, "failed", "leaves it", "a defect of ours would only come again"),
    Ending(4, "failed", "leaves it", "the state is unusable: disk full, read-only or damaged"),
    Ending(10, "failed", "leaves it", "another run holds the state directory"),
    Ending(11, "superseded", "leaves it", "a newer attempt has taken over"),
    Ending(12, "failed", "leaves it", "there is no usable checkpoint"),
    Ending(13, "mismatch", "leaves it", "the session was begun under another contract"),
    Ending(20, "failed", "leaves it", "the outcome of a call is unknown, and a person must look"),
    Ending(2, "undelivered", "leaves it", "what stands in the way of the delivery must be put right first"),
    Ending(75, "interrupted", "runs it again", "the next attempt resumes"),
    Ending(75, "undelivered", "runs it again", "the next attempt delivers the result without calling the model"),
)


def ending(exit_code: int, *, is_undelivered: bool = False, is_skipped: bool = False) -> Ending:
    """The row for an exit code. One that is not in the table is a defect of ours, as is code 3."""
    meant: Conclusion | None = "undelivered" if is_undelivered else "skipped" if is_skipped else None
    rows = [row for row in CONCLUSIONS if row.exit_code == exit_code]
    return next((row for row in rows if row.conclusion == meant), rows[0] if rows else ending(3))
