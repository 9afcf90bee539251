"""The guards, and what fails without them: one row a guard.

A guard is a check whose absence no user may have to discover. Its mutant takes it out of a copy of
the source; at least one of the named tests must then fail (`python -m tests.mutants.run`).
"""

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


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="blank-result",
        guard="A result without visible text is sent as *(no output)*: a provider refuses an empty block",
        file="src/endstate_action/messages.py",
        old='self.content if not is_blank(self.content) else "(no output)"',
        new="self.content",
        tests=("tests/unit/test_messages.py::test_a_result_without_visible_text_is_never_an_empty_block",),
    ),
)
