"""Deleting from the store what no session needs any more: never what a wanted snapshot needs, wherever a kill falls.

What is wanted is marked by following every reference; the rest is swept. Marks that promise something (a base that is
there, the time at which a snapshot was taken) go before what they promise, and what the next scan would have believed
of the store is void before the first object is deleted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from endstate_action.errors import StateError
from endstate_action.state.snapshot.compare import all_objects, load
from endstate_action.state.snapshot.git_graph import Graph
from endstate_action.state.snapshot.git_listing import load as load_listing
from endstate_action.state.snapshot.objects import ObjectStore
from endstate_action.state.snapshot.refusals import writing
from endstate_action.state.snapshot.restore import read_journal
from endstate_action.system import own_files
from endstate_action.system.git_call import GitError
from endstate_action.system.names import short

_NAMES_ROOTS = ("root", "kept")


def named_in(rows: Iterable[tuple[int, str, str]]) -> set[str]:
    """The roots that the rows of a journal name, as `SessionStore.rows` gives them.

    Raises:
        ValueError: a row cannot be read, so nobody knows what it needs.
    """
    found: set[str] = set()
    for _, _, body in rows:
        record = json.loads(body)
        if not isinstance(record, dict):
            raise ValueError("a record is no table")
        found.update(root for root in map(record.get, _NAMES_ROOTS) if isinstance(root, str))
    return found


def prune(objects: ObjectStore, cache: Path, roots: Iterable[str], bases: Iterable[str]) -> None:
    """Delete all that neither the snapshots `roots`, with their git states, nor the commits `bases` need.

    Roots that are not here are no error: they were taken on another machine. A restore that was interrupted keeps
    both of its snapshots and its base. Only for who holds the lock. May be repeated.

    Args:
        cache: the directory in which snapshot stores keep what makes the next scan fast.

    Raises:
        SnapshotDamaged, StateError: nothing that is wanted was deleted; something else may have been.
    """
    interrupted = read_journal(objects.path / "restore" / "journal")
    also = {interrupted.root, interrupted.kept or interrupted.root} if interrupted else set()
    wanted_roots, wanted_bases = {*roots, *also}, set(bases)
    if interrupted and interrupted.terms and interrupted.terms.base:
        wanted_bases.add(interrupted.terms.base)
    wanted_roots -= objects.missing(wanted_roots)
    wanted_bases -= objects.missing(wanted_bases)
    try:
        wanted = _marked(objects, wanted_roots, wanted_bases)
    except GitError as error:
        raise StateError(
            f"What of the snapshot store is still needed cannot be told: {short(str(error))}. Nothing was deleted.",
            hint="Check that git can be started.",
        ) from error
    with writing("Nothing was deleted from the snapshot store"):
        _sweep_names(objects.path / "base", wanted_bases)
        _sweep_names(objects.path / "given", {*wanted_bases, "none"})
        _sweep_names(objects.path / "taken", wanted_roots)
        _sweep_names(objects.path / "tmp", set())
        _sweep_names(objects.path / "restore" / "aside", wanted_roots)
    objects.keep_only(wanted)
    with writing("What was remembered of the snapshot store was not deleted"):
        kept = {name for name in own_files.names(cache) if name.startswith(f"snapshot-{objects.identity}-")}
        _sweep_names(cache, kept, beginning="snapshot-")


def _marked(objects: ObjectStore, roots: set[str], bases: set[str]) -> set[str]:
    """The ids of all that is needed and here."""
    wanted: set[str] = set()
    tips = set(bases)
    for root in roots:
        content = load(objects, root)
        wanted |= {root, *all_objects(objects, content)}
        if content.git:
            tips |= load_listing(objects, content.git).ids
    tips -= objects.missing(tips)
    # Whatever else a commit leads to: also what came before it, as far as it is here.
    return wanted | Graph(objects).reach(tips, None).named.keys() if tips else wanted


def _sweep_names(folder: Path, kept: set[str], beginning: str = "") -> None:
    doomed = [name for name in own_files.names(folder) if name not in kept and name.startswith(beginning)]
    if doomed:
        with own_files.directory(folder) as place:
            for name in doomed:
                own_files.remove(name, place)
