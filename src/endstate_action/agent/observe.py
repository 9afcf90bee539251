"""What the workspace looked like when it was last recorded, what changed since, and the way back.

Without this, an edit made between two attempts would be taken for the agent's own work, or be
overwritten by an agent that does not know of it; and an interrupted command could not be undone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

from endstate_action.effects import EffectClass
from endstate_action.errors import SnapshotDamaged
from endstate_action.state.fold import State
from endstate_action.state.records import Observed, RollBackBegun
from endstate_action.state.snapshot import Restored, Snapshot
from endstate_action.system.names import display, few
from endstate_action.system.tree import Change, Entry, Kind, Scan, StatCache, diff, scan

NAMED_AT_MOST = 20
_BACK: Mapping[str, Literal["added", "removed"]] = {"added": "removed", "removed": "added"}


@dataclass(frozen=True, slots=True)
class Seen:
    """The workspace at one moment: its tree hash, and the commit that HEAD names, if there is one."""

    tree_hash: str
    head: str | None
    scan: Scan
    root: str | None = None
    """Its snapshot, durable, where snapshots are taken."""

    def recorded(self, step: int, at: float) -> Observed:
        return Observed(step, self.tree_hash, self.head, at, self.root)

    def is_recorded(self, state: State) -> bool:
        """Whether it is what was recorded last, and is known to be of what was done last."""
        last = state.observed
        if state.unseen is not None or last is None:
            return False
        return (self.tree_hash, self.head, self.root) == (last.tree_hash, last.head, last.root)


class Snapshots(Protocol):
    """What the observer needs of a snapshot store; `state.snapshot.SnapshotStore` is one."""

    def take(self, *, full_rehash: bool = False, check: Callable[[], None] = ...) -> Snapshot: ...

    def confirm(self, root: str) -> None: ...

    def before_restore(self, root: str) -> str: ...

    def restore(self, root: str, *, keep: bool = True) -> Restored: ...

    def replaced(self, kept: str, restored: Restored) -> tuple[str, ...]: ...

    def difference(self, a: str, b: str) -> list[Change]: ...

    def not_kept(self, root: str) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class PutBack:
    """Event: the workspace was put back. What that replaced, and `restored.kept` has, may have been somebody's."""

    restored: Restored
    replaced: tuple[str, ...] = ()
    """Files that are gone or others now, as `names.display` spells them."""
    refs: Mapping[str, str] = field(default_factory=dict)
    """Refs that are gone or lead elsewhere now, and what they named."""


class Observer:
    """Looks at one workspace.

    Args:
        root: the workspace.
        excluded: exact root-relative paths that do not belong to it (`.git`, the state directory).
        cache: directory for the stat cache, which also remembers the scan recorded last.
        head: tells the commit at HEAD; the workspace counts as a plain directory when left out.
        refs: tells what the repository's own refs name.
        snapshots: takes and restores snapshots; without them nothing can be rolled back.
        check: raises where a look that takes long is to end.
    """

    def __init__(
        self,
        root: Path,
        excluded: tuple[str, ...] = (".git", ".endstate"),
        *,
        cache: Path | None = None,
        head: Callable[[], str | None] = lambda: None,
        refs: Callable[[], Mapping[str, str]] = dict,
        snapshots: Snapshots | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._check = check
        self.root = root
        self.excluded = excluded
        self._cache = StatCache(cache) if cache else None
        self._head = head
        self._refs = refs
        self._snapshots = snapshots
        self._last: Seen | None = None
        self._before = self._cache.last() if self._cache else None
        self._is_doubtful = False

    def doubt(self) -> None:
        """What is remembered from an earlier process may be forged: the next look reads everything."""
        self._is_doubtful = True

    def now(self, *, doubtful: bool = False) -> Seen:
        """Look at the workspace; only what changed is read again, unless what was running makes that `doubtful`."""
        doubtful, self._is_doubtful = doubtful or self._is_doubtful, False
        root = self._snapshots.take(full_rehash=doubtful, check=self._check).root if self._snapshots else None
        head, last = self._head(), self._last
        if doubtful and self._cache:
            # What could write anything could write the cache, for this process or the next.
            self._cache.forget()
        elif last is not None and root is not None and (last.root, last.head) == (root, head) and self._holds_all(root):
            return last
        found = scan(self.root, [name.encode() for name in self.excluded], self._cache, self._check)
        self._last = Seen(found.tree_hash, head, found, root)
        return self._last

    def _holds_all(self, root: str) -> bool:
        """Whether there is nothing that could change without another snapshot coming of it."""
        return self._snapshots is not None and not self._snapshots.not_kept(root)

    def can_roll_back(self, root: str | None) -> bool:
        """Whether the snapshot is there, whole, and what it takes to restore it can be read."""
        if self._snapshots is None or root is None:
            return False
        try:
            self._snapshots.confirm(root)
        except SnapshotDamaged:
            return False
        return True

    def put_back(self, begun: RollBackBegun, restored: Restored) -> PutBack | None:
        """What a roll-back that was killed after it began has replaced, now that it is done; None on another machine.

        Args:
            restored: of the roll-back that went on.
        """
        if self._snapshots is None:
            return None
        try:
            replaced = self._snapshots.replaced(begun.kept, restored)
        except SnapshotDamaged:
            return None
        return PutBack(replace(restored, kept=begun.kept), replaced, moved(begun.refs, self._refs()))

    def roll_back(
        self, root: str, begin: Callable[[str, Mapping[str, str]], None] = lambda kept, refs: None
    ) -> PutBack:
        """Put the workspace back; what it replaces is kept as a snapshot, named in the result.

        Args:
            begin: is told that snapshot, and where the repository's refs lead, before anything is replaced.

        Raises:
            SnapshotDamaged, NotRestored: nothing may run on what is there now.
        """
        if self._snapshots is None:
            raise SnapshotDamaged(f"There are no snapshots here, so {root} was not restored. Nothing was changed.")
        self._last = None
        before = self._refs()
        kept = self._snapshots.before_restore(root)
        if kept != root:
            begin(kept, before)
        restored = self._snapshots.restore(root)
        if restored.kept is None:
            return PutBack(restored)
        replaced = self._snapshots.replaced(restored.kept, restored)
        return PutBack(restored, replaced, moved(before, self._refs()))

    def difference(self, last: Observed, seen: Seen, in_flight: tuple[str | None, ...]) -> str | None:
        """What the model should be told about the way from `last` to `seen`; None where there is nothing to tell.

        `in_flight` are the paths of interrupted calls, which settling looks after.
        """
        told: list[str] = []
        not_kept: tuple[str, ...] = ()
        by_call = None in in_flight
        if last.head != seen.head:
            told.append(f"HEAD was {last.head or 'unborn'} and is now {seen.head or 'unborn'}.")
        if last.tree_hash != seen.tree_hash:
            changes = self._changes(last, seen)
            if changes is None:
                changes, not_kept = self._changes_of_kept(last, seen)
            if changes is None or not (changes or not_kept):
                told.append("Files changed; which ones is not known.")
                # The scan of a call's end is kept just before it is recorded, so a kill in between ends here.
                by_call = bool(in_flight)
            else:
                others = [c for c in changes if not _is_of_a_call(c, in_flight)]
                told += [f"Changed: {_listed(others)}."] if others else []
        if not told and not not_kept:
            return None
        cause = "by an interrupted call or by somebody else" if by_call else "by somebody else"
        changed = [f"It was changed {cause}.", *told, "Nothing of it was undone."] if told else []
        # After a restore on another machine these are what did not come along.
        absent = few(not_kept, NAMED_AT_MOST)
        left = [f"No snapshot has what was in {absent}: it may be missing or different."] if absent else []
        said = " ".join([*changed, *left])
        return (
            f"[The workspace is not as this session last recorded it. {said} "
            "Look again before you rely on what you saw earlier.]"
        )

    def _changes(self, last: Observed, seen: Seen) -> list[Change] | None:
        before = self._before
        # The hash is on record, so a scan that truly has it is what was recorded, whoever wrote the cache.
        if before is None or before.tree_hash != last.tree_hash or not before.is_sound():
            return None
        return diff(before, seen.scan)

    def _changes_of_kept(self, last: Observed, seen: Seen) -> tuple[list[Change] | None, tuple[str, ...]]:
        """What snapshots tell where no scan does, as after a restore; and what they say nothing of."""
        if self._snapshots is None or last.root is None or seen.root is None:
            return None, ()
        try:
            # Backwards, since what the older one left out is no difference then.
            back = self._snapshots.difference(seen.root, last.root)
            return [replace(c, kind=_BACK.get(c.kind, c.kind)) for c in back], self._snapshots.not_kept(last.root)
        except SnapshotDamaged:
            return None, ()


def moved(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """Refs that are gone or lead elsewhere, and what they named. A stash may just have another number."""
    left = set(now.values())
    return {
        name: named
        for name, named in before.items()
        if now.get(name) != named and not (name.startswith("stash@") and named in left)
    }


def was_killed_in_opaque_call(state: State) -> bool:
    """Whether a call that could write anywhere, our cache included, began and has no outcome yet."""
    started = (state.started.get(place, ()) for place in state.pending)
    return any(starts[-1].effect is EffectClass.OPAQUE for starts in started if starts)


def will_be_undone(state: State, observer: Observer) -> bool:
    """Whether a roll-back is at hand: a call that is undone where it was interrupted has no outcome yet."""
    started = (state.started.get(place) for place in state.pending)
    undone = (EffectClass.CONTAINED, EffectClass.NETWORKED)
    return any(s and s[-1].effect in undone and observer.can_roll_back(s[-1].root) for s in started)


def was_killed_before_boot(state: State, process: Mapping[str, object]) -> bool:
    """Whether the attempt before `process` neither ended by itself nor ran since the machine was started.

    The newest attempt on record may be that of `process` itself.
    """
    earlier = [a for a in state.attempts if a.process != process]
    if not earlier or any(e.epoch == earlier[-1].epoch for e in state.ended):
        return False
    before, now = (named.get("boot_id") for named in (earlier[-1].process, process))
    return bool(before and now) and before != now and earlier[-1].process.get("host") == process.get("host")


def changed_since(baseline: Path, seen: Scan) -> dict[str, Literal["added", "modified", "deleted"]] | None:
    """The files that differ from the scan kept at `baseline`, by name; None where that cannot be read."""
    before = Scan.load(baseline)
    if before is None:
        return None
    changes = diff(before, seen)
    was, now = (found.entries if changes else {} for found in (before, seen))

    def is_file(entry: Entry | None) -> bool:
        return entry is not None and entry.kind is not Kind.DIRECTORY

    found: dict[str, Literal["added", "modified", "deleted"]] = {}
    for path in (change.path for change in changes):
        before_it, after_it = is_file(was.get(path)), is_file(now.get(path))
        if before_it or after_it:
            found[display(path)] = "added" if not before_it else "modified" if after_it else "deleted"
    return found


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
    return few([f"{display(c.path)} ({c.kind})" for c in changes], NAMED_AT_MOST)
