"""A checkpoint carried by hand: the journal of a killed run and a pack of the snapshot that it names last.

What the product ships through a store is more; here it is as little as another machine can go on from.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from endstate_action.config import DEFAULT_CONFIG
from endstate_action.state.directory import locate
from endstate_action.state.session import SessionStore
from endstate_action.state.snapshot import ObjectStore
from endstate_action.state.snapshot.compare import load
from endstate_action.state.snapshot.git_listing import load as load_listing
from endstate_action.state.snapshot.pack import apply, pack
from endstate_action.system import git
from endstate_action.system.proctable import end_tagged
from endstate_action.system.sandbox_lock import CallLock
from endstate_action.workplace import Workplace
from tests.support.crash import Driver, Trial
from tests.support.repos import Repo

PATIENCE_S = 20.0


@dataclass(frozen=True)
class Luggage:
    """What of a run leaves the machine."""

    journal: bytes
    session: str
    base: str
    root: str | None
    """None where no snapshot had been recorded: then nothing had been changed yet."""
    pack: bytes


def pack_up(workspace: Path) -> Luggage | None:
    """Of a run that is dead; None where it had not been asked anything yet."""
    store = SessionStore(workspace / ".endstate" / "sessions")
    known = store.all()
    for left in known:
        # It goes with the machine. A bubblewrap whose parent was killed before it told it to go on would wait for ever.
        end_tagged(f"{left.id}/")
    assert CallLock.of(workspace / ".endstate").is_free(PATIENCE_S), "something of the killed run is still there"
    asked = [s.id for s in known if s.state is not None and s.state.was_asked]
    if not asked:
        return None
    (session,) = asked
    bodies = [json.loads(body) for _, _, body in store.rows(session)]
    base = str(bodies[0]["bound"]["base"])
    root = next((str(body["root"]) for body in reversed(bodies) if body.get("root")), None)
    objects = ObjectStore(workspace / ".endstate" / "objects", env=os.environ)
    packed = pack(objects, root, _tips(objects, root), base) if root else b""
    return Luggage(_copy(store.directory / f"{session}.db"), session, base, root, packed)


def unpack(luggage: Luggage, workspace: Path) -> None:
    """Into a fresh checkout of the base: the workspace first, then the journal that belongs to it."""
    state = locate(workspace, ".endstate")
    state.claim()
    if luggage.root:
        repository = git.discover(workspace, os.environ, state.tmp)
        place = Workplace(workspace, state, repository, os.environ, {"base": luggage.base}, DEFAULT_CONFIG)
        snapshots = place.snapshots()
        apply(ObjectStore(state.path / "objects", env=os.environ), luggage.pack, luggage.base)
        snapshots.restore(luggage.root)
        assert snapshots.is_at(luggage.root)
    (state.sessions / f"{luggage.session}.db").write_bytes(luggage.journal)


def move(trial: Trial, origin: Path, driver: Driver) -> Trial:
    """The trial on another machine: nothing of the old one is left, the new one begins with a checkout of depth 1."""
    luggage = pack_up(trial.repo.path) if (trial.repo.path / ".endstate" / "sessions").is_dir() else None
    folder = trial.folder.with_name(f"{trial.folder.name}-moved")
    shutil.rmtree(trial.folder)
    (folder / "side").mkdir(parents=True)
    Repo(folder).git("clone", "--quiet", "--depth=1", "--template=", f"file://{origin}", "repo")
    moved = replace(trial, folder=folder, driver=driver)
    if luggage:
        unpack(luggage, moved.repo.path)
    return moved


def _tips(objects: ObjectStore, root: str) -> set[str]:
    git_state = load(objects, root).git
    ids = load_listing(objects, git_state).ids if git_state else set()
    return ids - objects.missing(ids)


def _copy(database: Path) -> bytes:
    """With what is committed in its log."""
    with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(":memory:")) as copy:
        source.backup(copy)
        return copy.serialize()
