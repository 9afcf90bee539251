"""What a store has, and what a resume would make of it: looked at, never changed."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from endstate_action.cli import _from_here, _located, _put, _say, _state_dir, cli, printable
from endstate_action.cli.sessions import sessions
from endstate_action.errors import EndstateError, InputError
from endstate_action.messages import count_of

if TYPE_CHECKING:
    from endstate_action.state.checkpoint.choose import Choice, Seen
    from endstate_action.state.checkpoint.manifest import Manifest
    from endstate_action.state.session import SessionStore
    from endstate_action.successor import Stored, Successor


@sessions.command()
@click.argument("session", required=False)
@click.option(
    "--store", required=True, metavar="WHERE", callback=_from_here, help="Where checkpoints go, as for `run`."
)
@click.option("--json", "as_json", is_flag=True, help="Print one array.")
@_located
def inspect(session: str | None, store: str, as_json: bool, working_directory: str, state_dir: str) -> None:
    """What a store has of SESSION, or of all, and what a resume would go on from. Changes nothing."""
    _show_stored(_stored(session, store, working_directory, state_dir), as_json)


@cli.command(short_help="What a resume would restore.")
@click.option("--session", metavar="ID", help="Which session; the newest one by default.")
@click.option(
    "--store", required=True, metavar="WHERE", callback=_from_here, help="Where checkpoints go, as for `run`."
)
@click.option("--dry-run", is_flag=True, expose_value=False, help="Only tell, as this command does in any case.")
@click.option("--json", "as_json", is_flag=True, help="Print one array.")
@_located
def restore(session: str | None, store: str, as_json: bool, working_directory: str, state_dir: str, **_: bool) -> int:
    """Tell what a resume would restore here, and why, without doing it.

    A restore is part of a resume: `endstate run --resume --store …` does it. Exit code 0 if it would go on, else that
    of the refusal.
    """
    found = _stored(session, store, working_directory, state_dir, newest=True)
    _show_stored(found, as_json)
    return max((_exit_code(one) for one in found), default=0)


def _exit_code(stored: Stored) -> int:
    """Of a resume here and now, as far as its beginning tells."""
    from endstate_action.errors import UnknownSession
    from endstate_action.state.checkpoint.choose import NoneFound, refusal
    from endstate_action.state.keys import MAX_EPOCH
    from endstate_action.state.stores.base import StoreUnusable

    if isinstance(stored.choice, NoneFound):
        return UnknownSession.exit_code
    if error := stored.refused or refusal(stored.choice):
        return error.exit_code
    if stored.epoch == MAX_EPOCH:
        _say(f"The store has an object of attempt {MAX_EPOCH}, and there is no higher number: a resume is refused.")
        return StoreUnusable.exit_code
    return 0


def _stored(
    session: str | None, store: str, working_directory: str, state_dir: str, *, newest: bool = False
) -> list[Stored]:
    from endstate_action.config import DEFAULT_CONFIG
    from endstate_action.durable import Line, NoDepot, open_depot
    from endstate_action.restoring import unfinished
    from endstate_action.state.directory import locate, workspace_at
    from endstate_action.state.session import SessionStore
    from endstate_action.state.stores.choice import parse_store
    from endstate_action.successor import Successor, find_session, inspect
    from endstate_action.system import git
    from endstate_action.workplace import Workplace

    environ = dict(os.environ)
    workspace = workspace_at(working_directory)
    state = locate(workspace, _state_dir(state_dir))
    state.confirm()
    with TemporaryDirectory() as scratch:
        repository = git.discover(workspace, environ, Path(scratch))
        choice = parse_store(store)
        depot = open_depot(choice, environ, workspace, Path(scratch) / "store", repository, is_to_be_read=True)
        if isinstance(depot, NoDepot):
            hint = depot.remedy or "Name the one that the checkpoints went to: `--store dir:PATH`, for example."
            raise InputError(f"The store was not looked at: {depot.reason}.", hint=hint)
        here = SessionStore(state.sessions)
        stored = depot.store.lineages(timeout_s=20.0)
        if session is None and not newest and stored is not None:
            wanted = stored
        else:
            wanted = [find_session(session, here, depot, lambda: _newest(here))]
        half = unfinished(state)
        found = [inspect(depot, Line(w), here, half_restored=half is not None and half.lineage == w) for w in wanted]
        if not newest:
            return found

        def place(bound: Mapping[str, Any]) -> Workplace:
            return Workplace(workspace, state, repository, environ, bound, DEFAULT_CONFIG)

        def resume(of: Stored) -> Successor:
            return Successor(depot, Line(of.lineage), here, place, False, _say, {}, is_ours_alone=False)

        return [replace(stored, refused=_refused(resume(stored), stored)) for stored in found]


def _newest(here: SessionStore) -> str:
    """Of the sessions on this machine, the one that a resume would take."""
    from endstate_action.errors import UnknownSession

    asked = [listed for listed in here.all() if listed.state is not None and listed.state.was_asked]
    if not asked:
        raise UnknownSession("There is no session here.")
    return next((listed.id for listed in asked if listed.is_waiting), asked[0].id)


def _refused(resume: Successor, stored: Stored) -> EndstateError | None:
    try:
        resume.foresee(stored.session, may_write=False)
    except EndstateError as error:
        return error
    return None


def _show_stored(found: list[Stored], as_json: bool) -> None:
    from endstate_action.state.checkpoint.choose import refusal

    told: list[dict[str, Any]] = []
    for stored in found:
        error = stored.refused or refusal(stored.choice)
        told.append(
            {
                "session-id": stored.lineage,
                "epoch": stored.epoch,
                "here": None
                if stored.local is None
                else {"attempt": stored.local.epoch, "records": stored.local.records},
                "checkpoints": [_checkpoint(seen, manifest) for seen, manifest in stored.checkpoints],
                "would": _would(stored.choice) if error is None else "refuse",
                "because": str(error) if error else "",
                "hint": error.hint if error else "",
            }
        )
    if as_json:
        _put(json.dumps(told, ensure_ascii=False))
        return
    if not told:
        _say("The store has no checkpoint of any session.")
    for session in told:
        claimed = f"claimed up to attempt {session['epoch']}" if session["epoch"] else "not in this store"
        _put(f"session {session['session-id']}  {claimed}  would {session['would']}")
        for text in filter(None, (session["because"], session["hint"])):
            _put(f"  {printable(text)}")
        for one in session["checkpoints"]:
            _put(f"  {one['key']}  {printable(one['state'])}")


def _checkpoint(seen: Seen, manifest: Manifest | None) -> dict[str, Any]:
    reason = getattr(seen.found, "reason", None)
    body = {
        "key": str(seen.key),
        "attempt": seen.key.epoch,
        "sequence": seen.key.sequence,
        "effects": seen.key.effects,
        "state": reason or ("opens" if seen.found else "not looked at, since a newer one opens or too many do not"),
    }
    if manifest is not None:
        made = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(manifest.at))
        body |= {
            "state": f"opens: {count_of(manifest.records, 'record')}, made {made}, tree {manifest.tree_hash}",
            "records": manifest.records,
            "made": made,
            "tree-hash": manifest.tree_hash,
            "base": manifest.about.base_commit,
            "done": manifest.is_done,
        }
    return body


def _would(choice: Choice) -> str:
    from endstate_action.state.checkpoint.choose import AlreadyDone, UseLocal, UseStored

    match choice:
        case UseStored(key):
            return f"restore {key}"
        case UseLocal():
            return "go on with what is on this machine"
        case AlreadyDone():
            return "do nothing: it is finished and delivered"
        case _:
            return "find nothing"
