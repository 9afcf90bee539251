"""One guard, and what fails without it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """`old` stands exactly once in `file` (a path below the repository's root) and becomes `new`."""

    name: str
    guard: str
    """What is taken out, as a sentence that ends without a full stop."""
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    """pytest node ids, paths from the repository's root."""
    needs: str = ""
    """A program without which the tests are skipped, and so cannot tell."""
