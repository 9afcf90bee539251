"""A checkpoint becomes this machine's workspace and session: both, or on the way to both.

What is about to be restored is on record first, then the workspace is made what the snapshot holds, then the session
takes the place of whatever is here, and only then the record goes. A start that finds such a record trusts neither
side, and restores the same checkpoint again. Nothing of what is restored is executed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from endstate_action.agent.observe import moved
from endstate_action.config import Config
from endstate_action.errors import Mismatch, NotRestored, SnapshotDamaged, StateError, UnknownSession
from endstate_action.state.checkpoint.read import Opened
from endstate_action.state.directory import StateDirectory
from endstate_action.state.keys import CheckpointKey
from endstate_action.state.session import SessionStore
from endstate_action.state.snapshot import ObjectStore, Restored, SnapshotStore, git_listing
from endstate_action.state.snapshot.base import note_base
from endstate_action.state.snapshot.compare import load as load_snapshot
from endstate_action.state.snapshot.git_graph import Graph
from endstate_action.state.snapshot.pack import apply, read_head
from endstate_action.system import own_files
from endstate_action.system.git_call import Git, GitError
from endstate_action.system.names import short
from endstate_action.system.tree import StatCache, scan
from endstate_action.workplace import Workplace

_ID = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")
_NO_PROGRAM = "there is no git program here"


@dataclass(frozen=True, slots=True)
class Arrived:
    """What a restore left behind."""

    key: str
    tree_hash: str
    kept: str | None
    """The snapshot of what was in the workspace before; None where nothing was replaced."""
    reasons: tuple[str, ...]
    """What could not come back, a sentence each."""
    replaced: tuple[str, ...] = ()
    """What was here and is gone or another now, as `names.display` spells it; `kept` has it."""
    refs: Mapping[str, str] = field(default_factory=dict)
    """Branches, tags and the stash that are gone or lead elsewhere now, and what they named."""
    set_aside: Path | None = None
    """Where the session's file of before is, which could not be read."""


@dataclass(frozen=True, slots=True)
class Before:
    """What a restore found: the snapshot of it, once there is one, and what its refs named."""

    kept: str | None
    refs: Mapping[str, str]


def unfinished(state: StateDirectory) -> CheckpointKey | None:
    """The checkpoint that a killed restore was on its way to.

    Raises:
        StateError: the record cannot be read.
    """
    try:
        shown = json.loads(own_files.get(state.restore_log))
        key = CheckpointKey.parse(shown["key"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        key = None
    if key is None:
        raise StateError(
            f"A restore did not finish here, and {state.restore_log} does not tell what it was to restore. "
            "Nothing was run.",
            hint="Delete the state directory and run again with the same store: the newest checkpoint is restored.",
        )
    return key


def is_half_restored(state: StateDirectory, workspace: Path) -> bool:
    """Whether a restore was killed in this very directory: its repository had been found to be the session's before.

    Half of it may be what the session made of it, so that git cannot be asked again.

    Raises:
        StateError: the record of it cannot be read.
    """
    if unfinished(state) is None:
        return False
    return bool(json.loads(own_files.get(state.restore_log)).get("workspace") == workspace.stat().st_ino)


def was_restored_here(state: StateDirectory, workspace: Path, session: str) -> bool:
    """Whether the last restore in this very directory was of this session."""
    try:
        shown = json.loads(own_files.get(state.restored_log))
    except (OSError, ValueError, RecursionError):
        return False
    return bool(shown == _here(workspace, session))


def _here(workspace: Path, session: str) -> dict[str, str | int]:
    return {"session": session, "workspace": workspace.stat().st_ino}


def refuse_unfinished(state: StateDirectory) -> None:
    """Raises: StateError: a restore was killed here, so that neither side is to be gone on with."""
    target = unfinished(state)
    if target is not None:
        raise StateError(
            f"A restore of session {target.lineage} did not finish here, so this workspace is neither its nor "
            "yours. Nothing was run.",
            hint=f"`endstate run --resume --session {target.lineage} --store …`, with the store it came from, "
            "finishes it; what was here before is kept.",
        )


def on_its_terms(place: Workplace, opened: Opened) -> Workplace:
    """With the session's own configuration: what its snapshots leave out is not theirs to replace here either."""
    frozen = opened.state.frozen if opened.state else None
    return replace(place, config=Config.from_json(frozen.config)) if frozen else place


def restore(
    opened: Opened,
    place: Workplace,
    sessions: SessionStore,
    fetch_base: Callable[[str], None],
    confirm: Callable[[], None] = lambda: None,
) -> Arrived:
    """Make the workspace and the session what the checkpoint holds. Killed at any point, it is to be called again.

    Args:
        place: bound to what the checkpoint's session was bound to.
        fetch_base: brings the base commit into the object store, where the repository does not have it.
        confirm: asked before anything of the workspace is replaced; raises where that must not be.

    Raises:
        Mismatch: the session belongs elsewhere, or its base commit is not to be had. Nothing was changed.
        StateError: the checkpoint, the disk or the workspace does not allow it; what was here has been kept.
    """
    manifest = opened.manifest
    place = on_its_terms(place, opened)
    refuse_elsewhere(opened, place, sessions, fetch_base)
    confirm()
    before = _noted(place.state) or Before(None, place.refs())
    _note(place, opened, before)
    snapshots = place.snapshots() if opened.pack is not None and manifest.root else None
    restored = _restore_workspace(opened, place, snapshots) if snapshots else None
    # What was here before the first of several tries is what somebody will look for.
    before = replace(before, kept=before.kept or (restored.kept if restored else None))
    _note(place, opened, before)
    set_aside = sessions.adopt(manifest.about.session, opened.rows)
    # Everything is read, whatever was remembered here; what is remembered now makes the next look fast.
    cache = StatCache(place.state.cache)
    cache.forget()
    tree_hash = scan(place.workspace, [name.encode() for name in (".git", place.state_name)], cache).tree_hash
    reasons = restored.reasons if restored else ()
    if restored and restored.exact and manifest.tree_hash not in (None, tree_hash):
        # The hash is of everything, and the snapshot, which came out as it was, is of all but this.
        excluded = place.config.snapshot.exclude
        reasons = tuple(f"{short(name)} is excluded from snapshots and may differ here" for name in excluded)
    if restored and restored.exact and not reasons and manifest.tree_hash not in (None, tree_hash):
        raise NotRestored(
            f"The workspace was restored from {opened.key}, but its tree hash is not the one on record. "
            "Nothing was run.",
            hint="Check that nothing else writes there, then run again: the checkpoint is restored once more.",
        )
    # A copy of the state directory elsewhere says nothing of the repository there.
    own_files.put(place.state.restored_log, json.dumps(_here(place.workspace, manifest.about.session)).encode())
    with own_files.directory(place.state.path) as parent:
        own_files.remove(place.state.restore_log.name, parent)
    kept = before.kept
    replaced = snapshots.replaced(kept, restored) if snapshots and restored and kept else ()
    return Arrived(str(opened.key), tree_hash, kept, reasons, replaced, moved(before.refs, place.refs()), set_aside)


def _note(place: Workplace, opened: Opened, before: Before) -> None:
    here = _here(place.workspace, opened.manifest.about.session)
    shown = {"key": str(opened.key), "kept": before.kept, "refs": before.refs, **here}
    own_files.put(place.state.restore_log, json.dumps(shown).encode())


def _noted(state: StateDirectory) -> Before | None:
    """What an earlier restore found here, if one was killed on its way."""
    try:
        shown = json.loads(own_files.get(state.restore_log))
    except FileNotFoundError:
        return None
    kept, refs = shown.get("kept"), shown.get("refs")
    found = refs.items() if isinstance(refs, dict) else ()
    return Before(
        kept if isinstance(kept, str) and _ID.fullmatch(kept) else None,
        {name: named for name, named in found if isinstance(named, str) and _ID.fullmatch(named)},
    )


def refuse_elsewhere(
    opened: Opened,
    place: Workplace,
    sessions: SessionStore,
    fetch_base: Callable[[str], None],
    *,
    may_write: bool = True,
) -> None:
    """Nothing of the workspace is changed. Raises: Mismatch, StateError: the session cannot be restored in this place.

    Args:
        may_write: whether the state directory may be used for finding out, which tells more.
    """
    _refuse_other_kind(opened, place, sessions, may_write)
    _bring_base(opened, place, fetch_base, may_write)


def _bring_base(opened: Opened, place: Workplace, fetch_base: Callable[[str], None], may_write: bool) -> None:
    """Have the base commit at hand: from this repository, from the checkpoint if that stands alone, or fetched."""
    base = place.bound.get("base")
    if base is None or place.repository is None or _is_here(base, place):
        return
    if opened.pack is not None and read_head(opened.pack).base is None:
        if not may_write:
            return
        objects = place.objects()
        apply(objects, opened.pack, base)
        if not objects.missing([base]):
            note_base(objects, base)
            return
    fetch_base(base)


def _is_here(base: str, place: Workplace) -> bool:
    try:
        return place.repository is not None and place.repository.full_id(base) is not None
    except GitError:
        # A restore copies it before it makes the repository what the session made of it.
        if is_half_restored(place.state, place.workspace) and not place.objects().missing([base]):
            return True
        raise


def _restore_workspace(opened: Opened, place: Workplace, snapshots: SnapshotStore) -> Restored:
    # What was on its way when an earlier restore was killed has to come to an end before another begins.
    finished = place.finish()
    apply(place.objects(), opened.pack or b"", place.bound.get("base"))
    restored = snapshots.restore(opened.manifest.root or "")
    return replace(restored, kept=finished.kept) if finished and finished.kept else restored


def why_no_checkout(workspace: Path, environ: Mapping[str, str]) -> str:
    """Why git finds no checkout in this very directory."""
    if Git.for_user(workspace, workspace / ".git", environ) is None:
        return _NO_PROGRAM
    return "git cannot read the .git here" if os.path.lexists(workspace / ".git") else "there is no .git here"


def unreadable_checkout(session: str, workspace: Path, environ: Mapping[str, str], so: str) -> Mismatch:
    """The error for a session of a git checkout where git finds none; `so` says what was not done."""
    why = why_no_checkout(workspace, environ)
    remedy = (
        "Install git, then resume again."
        if why == _NO_PROGRAM
        else "Put the repository's own .git back (`git fsck` tells what it lacks). If a store has the session: resume "
        f"in a fresh clone, with `endstate run --resume --session {session} --store …`."
    )
    return Mismatch(
        f"Session {session} belongs to a git checkout, and {why}. {so}",
        differences=(f"workspace: a git checkout in the session; now {why}",),
        hint=remedy,
    )


def _refuse_other_kind(opened: Opened, place: Workplace, sessions: SessionStore, may_write: bool) -> None:
    about, so = opened.manifest.about, "Nothing was restored and nothing was run."
    if about.workspace_kind == "git" and place.repository is None:
        raise unreadable_checkout(about.session, place.workspace, place.environ, so)
    if place.repository is not None and about.session not in sessions.names():
        _refuse_other_layout(about.session, place.bound.get("git-file"), place.repository.file(), so)
    if opened.pack is not None and read_head(opened.pack).root != opened.manifest.root:
        raise StateError(
            f"The checkpoint {opened.key} holds another workspace than it names. Nothing was restored.",
            hint="This is a defect. Please report it.",
        )
    if about.workspace_kind != "git" and not _is_its_own(opened, place, sessions, may_write):
        raise Mismatch(
            f"Session {about.session} belongs to a plain directory, and there is a git repository here that is not "
            f"of its making. {so}",
            differences=("workspace: a plain directory in the session, a git checkout now",),
            hint="Resume it in an empty directory, with the same store.",
        )


def _refuse_other_layout(session: str, then: str | None, now: str | None, so: str) -> None:
    """The files of a git directory are restored to where they were: into another layout they would break that."""
    if then != now:
        what = [f"a file ({short(one)})" if one else "a directory" for one in (then, now)]
        raise Mismatch(
            f"In the checkout that session {session} was begun in, .git is {what[0]}; here it is {what[1]}. {so}",
            differences=(f".git: {what[0]} in the session, {what[1]} now",),
            hint="Resume in a linked work tree or submodule of the same name, at the same path."
            if then
            else "Resume in a clone of its own (`git clone`), which has no links to another checkout.",
        )


def is_of_another(opened: Opened, place: Workplace) -> bool:
    """Whether there are commits here, but none that the session knew before it began: it was begun elsewhere.

    Its base commit may never have been published, and have come with the checkpoint. Then what came before that
    commit tells, and what remote branches and tags named.
    """
    repository, base = place.repository, place.bound.get("base")
    if repository is None or opened.pack is None or read_head(opened.pack).base is not None:
        return False  # a base that was not sent along was found here, or where this came from
    if repository.head().commit is None or (base is not None and repository.full_id(base) is not None):
        return False
    with TemporaryDirectory(prefix="endstate-") as scratch:
        where = Path(scratch).resolve() / "objects"
        objects = ObjectStore(where, repository.object_format, place.environ, workspace=place.workspace)
        apply(objects, opened.pack, base)
        known = Graph(objects).parents([base])[base] if base is not None else set()
        listed = load_snapshot(objects, opened.manifest.root or "").git
        return not repository.has_any(known | (git_listing.load(objects, listed).given if listed else set()))


def _is_its_own(opened: Opened, place: Workplace, sessions: SessionStore, may_write: bool) -> bool:
    """Whether a `.git` that is here, if there is one, is what the session of a plain directory made."""
    half = unfinished(place.state)
    if not os.path.lexists(place.workspace / ".git") or (half and half.lineage == opened.key.lineage):
        return True
    if not may_write:
        return opened.manifest.about.session in sessions.names()
    roots = [opened.manifest.root]
    with suppress(UnknownSession, StateError):
        observed = sessions.read(opened.manifest.about.session).observed
        roots += [observed.root] if observed else []
    apply(place.objects(), opened.pack or b"", None)
    snapshots = place.snapshots()
    here = snapshots.take().root
    for root in filter(None, roots):
        with suppress(SnapshotDamaged):
            if not any(change.path.split(b"/")[0] == b".git" for change in snapshots.difference(here, root)):
                return True
    return False
