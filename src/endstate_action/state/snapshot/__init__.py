"""Snapshots: the workspace as it is at one moment, by one id; and back to it, without destroying what came after.

A snapshot is taken when no process that could write the workspace is alive. Its root id stands for every byte,
mode, link and empty directory, for the project's git state, and for the list of what was not kept. Equal ids
mean equal workspaces, and everything behind an id that `take` returns is durable.

Times, owners, inodes, hard links, extended attributes, ACLs and the mode of the workspace directory itself are
not part of it. A restored workspace is not synced: after a power cut it must be compared and restored again.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from endstate_action.config import SnapshotLimits
from endstate_action.errors import InputError, NotRestored, SnapshotDamaged, StateError
from endstate_action.state.snapshot import git_listing
from endstate_action.state.snapshot.compare import (
    Content,
    Difference,
    all_objects,
    changes,
    check_places,
    compare,
    damaged,
    load,
    save,
)
from endstate_action.state.snapshot.left_out import is_within, newer, too_much
from endstate_action.state.snapshot.listing import tree_of
from endstate_action.state.snapshot.meta import Meta, describe
from endstate_action.state.snapshot.objects import ObjectStore
from endstate_action.state.snapshot.refusals import writing
from endstate_action.state.snapshot.restore import Journal, Replacing, Restoring, Terms
from endstate_action.state.snapshot.walk import Keeper
from endstate_action.system import own_files
from endstate_action.system.names import components, display, few, parse, short
from endstate_action.system.tree_cache import StatCache
from endstate_action.system.tree_format import Change, Directory, Scan
from endstate_action.system.tree_walk import DIRECTORY, Paths

__all__ = ["Change", "GitState", "ObjectStore", "Restored", "Snapshot", "SnapshotStore"]

SCANS = 3
"""How often a tree that changes while it is scanned is scanned, before it is called unstable."""

_NAMED = 3
_SHOWN = 20


class GitState(Protocol):
    """The project's own git state, as `git_state` keeps it."""

    @property
    def base(self) -> str | None: ...

    def capture(self) -> tuple[str, frozenset[str]]: ...

    def restore(self, tree: str, /) -> tuple[str, ...]:
        """One sentence for each thing that could not come back."""
        ...


@dataclass(frozen=True, slots=True)
class Snapshot:
    root: str
    tree: str
    """The git tree of the workspace: on an ordinary repository, what `git add -A && git write-tree` gives."""
    exact: bool
    """Whether it holds all that there was, as it was at one moment; else `reasons` say what not."""
    reasons: tuple[str, ...] = ()
    tips: frozenset[str] = frozenset()
    """Git objects of the project that a pack must carry besides."""


@dataclass(frozen=True, slots=True)
class Restored:
    root: str
    kept: str | None
    """The snapshot of what was there before; None where nothing was replaced."""
    exact: bool
    """Whether the workspace is, in all that can be told, what it was when the snapshot was taken."""
    reasons: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    """Those of the reasons that tell of something which changed since, on this machine, and may hold what was to go."""
    moved: tuple[Path, ...] = ()
    """What no snapshot could keep and was in the way is here now."""
    stuck: tuple[bytes, ...] = ()
    """What was to go and is still there, with all that is in it: the user of this run may not take it away."""


class SnapshotStore:
    """Snapshots of `workspace` in `objects`. One process at a time uses it.

    Args:
        excluded: paths from the root, as `names.display` spells them, that are neither captured nor touched:
            the state directory, and `.git` where `git_state` looks after it.
        cache: a directory for what makes the next scan fast, on the workspace's file system, excluded.
        ignored: the paths that ignore rules match, directories as one; they are kept within `limits`.

    Raises:
        StateError: the store is on another file system than the workspace, so that nothing could be restored.
        DiskFull, StateReadOnly: by everything that writes.
    """

    def __init__(
        self,
        objects: ObjectStore,
        workspace: Path,
        *,
        excluded: tuple[str, ...],
        limits: SnapshotLimits,
        cache: Path,
        git_state: GitState | None = None,
        ignored: Callable[[], list[bytes]] = list,
    ) -> None:
        self._objects = objects
        self._workspace = workspace.resolve(strict=True)
        self._limits = limits
        self._git_state = git_state
        self._terms = Terms(git_state is not None, git_state.base if git_state else None, limits)
        self._ignored = ignored
        self._excluded = [_path(name) for name in (*excluded, *limits.exclude)]
        self._hidden = Paths.of(self._excluded)
        self._width = 32 if objects.object_format == "sha256" else 20
        # Ids in the cache stand for objects in this store and in no other, and what is too large depends on the limit.
        self._cache = StatCache(cache / f"snapshot-{objects.identity}-{limits.file_max_mb}")
        self._last: Scan | None = None
        self._restoring = Restoring(objects, self._workspace, objects.path / "restore")
        if os.stat(objects.path).st_dev != os.stat(self._workspace).st_dev:
            raise StateError(
                f"The state directory ({objects.path}) is on another file system than the workspace, so nothing "
                "could be rolled back. Nothing was run.",
                hint="Name a state directory inside the workspace that is not a mount of its own.",
            )

    def take(self, *, full_rehash: bool = False, check: Callable[[], None] = lambda: None) -> Snapshot:
        """The workspace as it is now, durable when this returns.

        Args:
            full_rehash: read everything; needed after a call whose processes may still have had files mapped.
            check: asked before each file that is read, and raises where that is to end.
        """
        taken = self._present(full_rehash=full_rehash, check=check)
        self._note_time(taken, again=True)
        self._remember()
        return taken

    def before_restore(self, root: str) -> str:
        """The root of what a restore of `root` would replace now, durable when this returns."""
        taken = self._present()
        # That what is here looks the same tells nothing of what was left out, elsewhere perhaps.
        if taken.root != root:
            self._note_time(taken, again=False)
        return taken.root

    def is_at(self, root: str) -> bool:
        """Whether the workspace is what the snapshot holds, apart from what that left out."""
        same = self._take(load(self._objects, root).meta).root == root
        self._remember()
        return same

    def verify(self, root: str) -> None:
        """Raises: SnapshotDamaged: it is none, or something that it needs is missing; the text names it."""
        content = load(self._objects, root)
        missing = sorted(self._objects.missing(all_objects(self._objects, content)))
        if missing:
            raise _not_whole(root, missing)

    def confirm(self, root: str) -> None:
        """Raises: SnapshotDamaged: it cannot be restored here and now; also where what that takes cannot be read."""
        self.verify(root)
        target, present = load(self._objects, root), load(self._objects, self._present().root)
        for found in compare(self._objects, present, target):
            if found.new and found.new.kind in ("file", "link"):
                for _ in self._objects.open_blob(found.new.id):
                    pass
        if target.git:
            listed = git_listing.load(self._objects, target.git)
            for _, item in listed.items():  # noqa: PERF102  (it is no dictionary)
                item.content(self._objects)

    def not_kept(self, root: str) -> tuple[str, ...]:
        """What the snapshot says nothing of, as `names.display` spells it: what it left out, and what is excluded.

        Raises: SnapshotDamaged.
        """
        return (*sorted(map(display, load(self._objects, root).meta.left_alone)), *self._limits.exclude)

    def difference(self, a: str, b: str) -> list[Change]:
        """What has to change in the workspace to get from `a` to `b`, apart from what `b` left out."""
        return changes(self._objects, load(self._objects, a), load(self._objects, b))

    def replaced(self, kept: str, restored: Restored) -> tuple[str, ...]:
        """What a restore took away or changed, as `names.display` spells it; `kept` is what was there."""
        stuck = Paths.of(restored.stuck)
        found = (change.path for change in self.difference(kept, restored.root) if change.kind != "added")
        return tuple(display(path) for path in found if not is_within(path, stuck))

    def restore(self, root: str, *, keep: bool = True) -> Restored:
        """Make the workspace what the snapshot holds; killed at any point, `finish` goes on.

        Args:
            keep: whether what is replaced is wanted. If not, it is not named, and what no snapshot could hold
                is removed.

        Raises:
            SnapshotDamaged: something that is needed is missing or damaged. Nothing was changed.
            NotRestored: the disk refused, or the outcome is not what the snapshot holds. The journal stays.
        """
        return self._restore(load(self._objects, root), None, keep=keep)

    def unfinished(self) -> str | None:
        """The root to which a restore was on its way when it was killed."""
        journal = self._restoring.journal()
        return journal.root if journal else None

    def finish(self) -> Restored | None:
        """Conclude such a restore; None where there is none. Raises as `restore` does.

        Only for who looks on the terms on which it was begun: to any other, its outcome is not what it was to be.
        """
        journal = self._restoring.journal()
        return self._restore(load(self._objects, journal.root), journal, keep=True) if journal else None

    def _restore(self, target: Content, begun: Journal | None, *, keep: bool) -> Restored:
        present = load(self._objects, self.before_restore(target.root))
        differences = list(compare(self._objects, present, target))
        self._check(target, differences)
        is_same = not differences and present.git == target.git
        if begun is None and is_same and not target.git:
            self._remember()
            return self._restored(target, None)
        # The same state says nothing of lock files, nor of objects lost or damaged: those are put right as well.
        journal = begun or Journal(target.root, present.root if keep and not is_same else None, self._terms)
        precious = {*self._excluded, *(present.meta.left_alone if keep else ())}
        with self._restoring.prepared(differences, target, precious, journal.kept or present.root) as work:
            self._restoring.begin(journal)
            work.run()
        lost = self._git_state.restore(target.git) if self._git_state and target.git else ()
        # Beside what could not be taken away, all is to be as it was.
        after = self._take(target.meta, hidden=work.stuck)
        if after.root != target.root and not (lost and self._differs_in_git_alone(after.root, target)):
            raise self._not_restored(target, after.root)
        self._restoring.end()
        self._remember()
        return self._restored(target, journal.kept, lost, after, work)

    def _differs_in_git_alone(self, root: str, target: Content) -> bool:
        """Whether all but the project's git state is as it was; of that, something is said not to have come back."""
        found = load(self._objects, root)
        return (found.tree, found.meta) == (target.tree, target.meta)

    def _check(self, target: Content, differences: Iterable[Difference]) -> None:
        """Raises: SnapshotDamaged: it leads out of its place, or what is needed of it is missing."""
        new = [found for found in differences if found.new]
        check_places(target, self._hidden, (found.path for found in new))
        needed = {found.new.id for found in new if found.new and found.new.id}
        if target.git:
            needed.add(target.git)
        missing = sorted(self._objects.missing(needed))
        if missing:
            raise _not_whole(target.root, missing)

    def _not_restored(self, target: Content, after: str) -> NotRestored:
        found = [short(display(change.path)) for change in self.difference(after, target.root)]
        what = few(found, _NAMED) or "the project's git state"
        return NotRestored(
            f"The workspace is not what the snapshot {target.root[:12]} holds, although all was restored: "
            f"{what} came out otherwise. What it replaced has been kept.",
            hint="Check that nothing else writes there and that the file system tells upper from lower case, "
            "then run again with --resume.",
        )

    def _restored(
        self,
        target: Content,
        kept: str | None,
        lost: Sequence[str] = (),
        after: Snapshot | None = None,
        work: Replacing | None = None,
    ) -> Restored:
        # What the snapshot left out is no doubt by itself: only whether it changed since is.
        known = _left_out(target.meta)
        new = [doubt for doubt in (after.reasons if after else ()) if doubt not in known]
        changed, unknown = self._changed(target)
        stuck = tuple(work.stuck) if work else ()
        stays = [f"{path} is still there, since the user of this run may not remove it" for path in _some(stuck)]
        reasons = (*lost, *new, *stays, *changed, *unknown)
        moved = tuple(work.moved) if work else ()
        return Restored(target.root, kept, not reasons, reasons, (*new, *stays, *changed), moved, stuck)

    def _present(self, *, full_rehash: bool = False, check: Callable[[], None] = lambda: None) -> Snapshot:
        files, size = self._limits.ignored_max_files, self._limits.ignored_max_mb
        with _looking():
            over = too_much(self._workspace, self._ignored(), self._hidden, files, size)
        return self._take(Meta(uncaptured=frozenset(over)), full_rehash=full_rehash, check=check)

    def _take(
        self,
        known: Meta,
        *,
        hidden: Iterable[bytes] = (),
        full_rehash: bool = False,
        check: Callable[[], None] = lambda: None,
    ) -> Snapshot:
        """A snapshot in which what `known` left alone is hidden from the scan, and noted as it is there.

        Args:
            hidden: what is not looked at either, nor noted.
        """
        with _looking():
            scan = self._scan((*known.left_alone, *hidden), full_rehash, check)
        git, tips = self._git_state.capture() if self._git_state else ("", frozenset[str]())
        tree, meta = tree_of(scan.root, self._width).hex(), describe(scan.root, known)
        root = save(self._objects, tree, meta, git)
        tree = tree or self._objects.write("tree", b"")
        self._objects.sync()
        self._last = scan
        reasons = (*_unstable(scan), *_left_out(meta))
        return Snapshot(root, tree, not reasons, reasons, tips)

    def _remember(self) -> None:
        """For the next process; only once what the scan refers to is durable."""
        if self._last:
            self._cache.keep(self._last)

    def _scan(self, left_alone: Iterable[bytes], full_rehash: bool, check: Callable[[], None]) -> Scan:
        last = None if full_rehash else self._last or self._cache.last()
        before = last.root if last else None
        hidden = Paths.of((*self._excluded, *left_alone))
        try:
            scan = self._scan_once(hidden, before, check)
        except (ValueError, struct.error):
            # The cache file is not what it was when it was written.
            scan = self._scan_once(hidden, None, check)
        for _ in range(SCANS - 1):
            if scan.unstable:
                scan = self._scan_once(hidden, scan.root, check)
        return scan

    def _scan_once(self, hidden: Paths, before: Directory | None, check: Callable[[], None]) -> Scan:
        keeper = Keeper(self._objects, self._cache.horizon(), hidden, self._limits.file_max_mb, check)
        root = keeper.run(os.open(self._workspace, DIRECTORY), before)
        return Scan(root, unstable=tuple(sorted(keeper.unstable)))

    def _note_time(self, taken: Snapshot, *, again: bool) -> None:
        """When it was taken, by the file system's clock, as the time of a file: what was left out can then be judged.

        A rollback's own looks must not pass for the call's: `again` says which.
        """
        mark = self._objects.path / "taken" / taken.root
        if taken.exact or (mark.exists() and not again):
            return
        with writing("When the snapshot was taken was not noted"):
            own_files.put(mark, b"now")

    def _changed(self, target: Content) -> tuple[list[str], list[str]]:
        """What was left out and is not what it was when the snapshot was taken; and what nobody here can tell of.

        The snapshot of another machine has no mark here, nor is anything here that was done there. What is closed to
        the user of this run was closed to the calls as well.
        """
        if not target.meta.left_alone:
            return [], []
        try:
            taken = (self._objects.path / "taken" / target.root).stat().st_mtime_ns
        except OSError:
            return [], [f"{path} was not kept and may differ here" for path in _some(target.meta.left_alone)]
        found = {path: newer(self._workspace, path, taken) for path in target.meta.left_alone}

        def told(answer: str, how: str) -> list[str]:
            return [f"{path} was not kept{how}" for path in _some(path for path in found if found[path] == answer)]

        changed = told("yes", " and has changed since")
        unseen = told("unseen", ", and the user of this run cannot see whether it has changed since")
        return [*changed, *unseen], told("closed", "; it is closed to the user of this run, and so to its calls")


def _some(paths: Iterable[bytes]) -> list[str]:
    """The first few, for a message."""
    return [short(display(path)) for path in sorted(paths)[:_SHOWN]]


def _unstable(scan: Scan) -> list[str]:
    return [f"{path} changed while it was looked at" for path in _some(scan.unstable)]


def _left_out(meta: Meta) -> list[str]:
    why = {**dict.fromkeys(meta.uncaptured, "ignored, and too much"), **meta.opaque, **meta.skipped}
    return [f"{short(display(path))} was not kept ({why[path]})" for path in sorted(why)[:_SHOWN]]


def _path(name: str) -> bytes:
    try:
        return b"/".join(components(parse(name)))
    except ValueError as error:
        raise InputError(f"{short(name)} cannot be left out of snapshots: {error}") from None


def _not_whole(root: str, missing: list[str]) -> SnapshotDamaged:
    return damaged(root, f"is not whole: object {few(missing, 1)} is missing")


@contextmanager
def _looking() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = f" at {short(display(os.fsencode(error.filename)))}" if error.filename else ""
        raise StateError(
            f"The workspace was not captured: {error.strerror or error}{where}. Nothing was changed.",
            hint="Check the disk and the rights to the workspace, and run again with --resume.",
        ) from error
