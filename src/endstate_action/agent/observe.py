"""What the workspace looked like when it was last recorded, and what changed since.

Without this, an edit made between two attempts would be taken for the agent's own work, or be
overwritten by an agent that does not know of it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from endstate_action.state.records import Observed
from endstate_action.system.tree import Change, Scan, StatCache, diff, display, scan

NAMED_AT_MOST = 20


@dataclass(frozen=True, slots=True)
class Seen:
    """The workspace at one moment: its tree hash, and the commit that HEAD names, if there is one."""

    tree_hash: str
    head: str | None
    scan: Scan


class Observer:
    """Looks at one workspace.

    Args:
        root: the workspace.
        excluded: exact root-relative paths that do not belong to it (`.git`, the state directory).
        cache: directory for the stat cache, which also remembers the scan recorded last.
        head: tells the commit at HEAD; the workspace counts as a plain directory when left out.
    """

    def __init__(
        self,
        root: Path,
        excluded: tuple[str, ...] = (".git", ".endstate"),
        *,
        cache: Path | None = None,
        head: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.root = root
        self.excluded = excluded
        self._cache = StatCache(cache) if cache else None
        self._head = head
        self._before = self._cache.last() if self._cache else None

    def now(self) -> Seen:
        """Scan the workspace; only what changed is read again where there is a cache."""
        found = scan(self.root, [name.encode() for name in self.excluded], self._cache)
        return Seen(found.tree_hash, self._head(), found)

    def difference(self, last: Observed, seen: Seen, in_flight: tuple[str | None, ...]) -> str | None:
        """What the model should be told about the way from `last` to `seen`; None where there is nothing to tell.

        `in_flight` are the paths of interrupted calls, which settling looks after.
        """
        told: list[str] = []
        by_call = None in in_flight
        if last.head != seen.head:
            told.append(f"HEAD was {last.head or 'unborn'} and is now {seen.head or 'unborn'}.")
        if last.tree_hash != seen.tree_hash:
            changes = self._changes(last, seen)
            if changes is None:
                told.append("Files changed; which ones is not known.")
                # The scan of a call's end is kept just before it is recorded, so a kill in between ends here.
                by_call = bool(in_flight)
            else:
                others = [c for c in changes if not _is_of_a_call(c, in_flight)]
                told += [f"Changed: {_listed(others)}."] if others else []
        if not told:
            return None
        cause = "by an interrupted call or by somebody else" if by_call else "by somebody else"
        return (
            f"[The workspace is not as this session last recorded it; it was changed {cause}. {' '.join(told)} "
            "Nothing of it was undone. Look again before you rely on what you saw earlier.]"
        )

    def _changes(self, last: Observed, seen: Seen) -> list[Change] | None:
        before = self._before
        if before is None or before.tree_hash != last.tree_hash:
            return None
        return diff(before, seen.scan)


def changed_since(baseline: Path, seen: Seen) -> list[str] | None:
    """Names of what differs from the scan kept at `baseline`; None where that cannot be read."""
    before = Scan.load(baseline)
    return None if before is None else [display(c.path) for c in diff(before, seen.scan)]


def keep_baseline(baseline: Path, seen: Seen) -> None:
    """Remember `seen` as the start of the task; losing it costs the list of changed files, nothing else."""
    with suppress(OSError):
        seen.scan.save(baseline)


def _is_of_a_call(change: Change, in_flight: tuple[str | None, ...]) -> bool:
    """Whether an interrupted file call accounts for it: its file, or a directory that it made on the way."""
    path = display(change.path)
    made = change.kind == "added" and any(p is not None and p.startswith(f"{path}/") for p in in_flight)
    return made or path in in_flight


def _listed(changes: list[Change]) -> str:
    shown = [f"{display(c.path)} ({c.kind})" for c in changes[:NAMED_AT_MOST]]
    more = len(changes) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")
