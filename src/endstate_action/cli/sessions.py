"""What is recorded in a workspace: listed, shown, exported, pruned."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from endstate_action.cli import (
    _cut,
    _first_line,
    _located,
    _Number,
    _put,
    _say,
    _state_dir,
    _summary,
    _waiting,
    cli,
    printable,
)
from endstate_action.messages import count_of, dollars

if TYPE_CHECKING:
    from endstate_action.state.directory import StateDirectory
    from endstate_action.state.fold import State
    from endstate_action.state.records import Ended
    from endstate_action.state.session import Listed, SessionStore


@cli.group(short_help="What is recorded here.")
def sessions() -> None:
    """List, show, export and prune the sessions of a workspace. Nothing here calls a model."""


@sessions.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one array.")
@_located
def list_(working_directory: str, state_dir: str, as_json: bool) -> None:
    """The sessions of the workspace, the one with the newest record first."""
    found = [_listed(s) for s in _store(working_directory, state_dir).all()]
    if as_json:
        _put(json.dumps(found, ensure_ascii=False))
        return
    if not found:
        _say(f"No sessions in {Path(working_directory) / state_dir}.")
    for s in found:
        begins = f"{s['session-id']}  {s['state']:<12}  {s['changed']}"
        if s["problem"]:
            _put(f"{begins}  {printable(s['problem'])}")
            continue
        cost = "cost unknown" if s["cost-usd"] is None else dollars(s["cost-usd"])
        _put(f"{begins}  attempt {s['attempt']}  {count_of(s['steps'], 'step')}  {cost}  {_cut(s['prompt'], 70)}")


def _listed(session: Listed) -> dict[str, Any]:
    from endstate_action.state.totals import total_cost

    state = session.state
    cost = total_cost(state) if state else None
    prompt = " ".join(state.prompts[-1].text.split()) if state and state.prompts else ""
    return {
        "session-id": session.id,
        "state": _condition(session),
        "changed": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(session.changed_at)) + " UTC",
        "attempt": state.epoch if state else None,
        "steps": state.steps if state else None,
        "cost-usd": None if cost is None else str(cost),
        "prompt": prompt[:200],
        "problem": session.problem,
    }


def _condition(session: Listed) -> str:
    if session.state is None:
        return session.condition
    if not session.state.was_asked:
        return "not begun"
    return "finished" if session.is_finished else "given up" if session.is_given_up else "unfinished"


@sessions.command()
@click.argument("session", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one object.")
@_located
def show(session: str | None, working_directory: str, state_dir: str, as_json: bool) -> None:
    """What happened in a SESSION: attempts, steps, calls, settlements. The newest one by default."""
    store = _store(working_directory, state_dir)
    state = store.read(_chosen(store, session))
    body = _told(state)
    if as_json:
        _put(json.dumps(body, ensure_ascii=False))
        return
    _put(f"session {body['session-id']}  {body['state']}  model {printable(body['model'])}")
    for prompt in body["prompts"]:
        _put(f"  prompt, task {prompt['task']}: {_cut(prompt['text'], 100)}")
    for attempt in body["attempts"]:
        kept = f"; what its restore replaced is kept as snapshot {attempt['kept'][:12]}" if attempt["kept"] else ""
        _put(f"  attempt {attempt['attempt']}  {attempt['began']}  {printable(attempt['ended'])}{kept}")
    for call in body["calls"]:
        told = f"  settled: {call['settled']}" if call["settled"] else f": {call['outcome']}" if call["outcome"] else ""
        told += f"; what that replaced is kept as snapshot {call['kept'][:12]}" if call["kept"] else ""
        _put(f"  step {call['step']} call {call['call']}  {printable(call['tool'])[:40]}  "
             f"{printable(call['what'])}  {call['status']}{printable(told)}")  # fmt: skip


def _told(state: State) -> dict[str, Any]:
    ends = {e.epoch: e for e in state.ended}
    settled = {(s.step, s.index): f"{s.action}, {s.reason}" for s in state.settled}
    kept = {(r.step, r.index): r.kept for r in state.rolled_back if r.kept}
    return {
        "session-id": state.begun.session,
        "state": "finished" if state.is_finished else "unfinished",
        "model": state.attempts[-1].model if state.attempts else "",
        "prompts": [{"id": p.id, "task": p.task, "text": p.text} for p in state.prompts],
        "attempts": [
            {
                "attempt": a.epoch,
                "began": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(a.at)),
                "version": a.version,
                "kept": a.kept,
                "conclusion": ends[a.epoch].conclusion if a.epoch in ends else None,
                "ended": _ended(ends.get(a.epoch), is_newest=a is state.attempts[-1]),
            }
            for a in state.attempts
        ],
        "steps": state.steps,
        "calls": [
            {
                "step": r.step,
                "call": r.index + 1,
                "id": r.call.id,
                "tool": r.call.name,
                "what": _summary(r.call.arguments),
                "status": _status(state, r.place),
                "starts": len(state.started.get(r.place, ())),
                "settled": settled.get(r.place),
                "kept": kept.get(r.place),
                "outcome": _outcome(state, r.place),
            }
            for r in state.requested.values()
        ],
        "tree-hash": state.observed.tree_hash if state.observed else None,
    }


def _ended(end: Ended | None, *, is_newest: bool) -> str:
    if end is None:
        return "no end on record: " + ("still running, or killed" if is_newest else "killed")
    if not end.reason or end.reason.lower().startswith(end.conclusion):
        return end.reason or end.conclusion
    return f"{end.conclusion}: {end.reason}"


def _outcome(state: State, place: tuple[int, int]) -> str | None:
    """Why a call is not ok, in the first line of what the model was told."""
    end = state.finished.get(place)
    return None if end is None or end.status == "ok" else _first_line(end.content)


def _status(state: State, place: tuple[int, int]) -> str:
    if place in state.finished:
        return state.finished[place].status
    return "started, no outcome recorded" if place in state.started else "requested, not started"


@sessions.command()
@click.argument("session", required=False)
@_located
def export(session: str | None, working_directory: str, state_dir: str) -> None:
    """Print the journal of a SESSION, one JSON object a line, also where it is damaged."""
    store = _store(working_directory, state_dir)
    for seq, kind, body in store.rows(_chosen(store, session)):
        try:
            content = json.loads(body)
        except (ValueError, RecursionError):
            content = {"unreadable": body}
        _put(json.dumps({"seq": seq, "kind": kind, "body": content}, ensure_ascii=True))


@sessions.command()
@click.argument("sessions", nargs=-1)
@click.option("--older-than", metavar="DAYS", type=_Number("days"), default=30.0, show_default=True,
              help="Without SESSIONS: those whose last record is older.")  # fmt: skip
@_waiting
@_located
def prune(
    sessions: tuple[str, ...], older_than: float, lock_timeout: float, working_directory: str, state_dir: str
) -> None:
    """Delete SESSIONS, or all of some age that are finished or never got an answer. Others only when named."""
    store = _store(working_directory, state_dir)
    if not sessions and not _older(store, older_than):
        _say("Nothing to prune.")
        return
    from endstate_action.state.directory import locate
    from endstate_action.state.lock import StateLock
    from endstate_action.system.proctable import identity

    state = locate(Path(working_directory).resolve(), state_dir)
    tell = f"Waiting up to {lock_timeout:g} s for {{}}, which holds {state.path}."
    with StateLock(
        state.lock, identity(), timeout_s=lock_timeout, on_wait=lambda holder: _say(printable(tell.format(holder)))
    ):
        for name in _named(store, sessions) if sessions else _older(store, older_than):
            store.remove(name)
            state.baseline(name).unlink(missing_ok=True)
            _put(name)
        _sweep(state, store, Path(working_directory).resolve())


def _sweep(state: StateDirectory, store: SessionStore, workspace: Path) -> None:
    """Delete the snapshots that no session names any more; a session that cannot be read keeps all."""
    from endstate_action.state.snapshot import ObjectStore
    from endstate_action.state.snapshot.layout import format_of
    from endstate_action.state.snapshot.prune import named_in
    from endstate_action.state.snapshot.prune import prune as prune_objects

    place, left = state.path / "objects", store.all()
    # Nor does a session name yet what a killed restore was on its way to, and what it kept.
    is_under_way = state.restore_log.exists()
    if not place.is_dir() or is_under_way or store.set_aside() or any(s.state is None for s in left):
        return
    try:
        roots = {root for s in left for root in named_in(store.rows(s.id))}
    except ValueError:
        return
    bases = {base for s in left if s.state and (base := s.state.begun.bound.get("base"))}
    prune_objects(ObjectStore(place, format_of(place), os.environ, workspace=workspace), state.cache, roots, bases)


def _named(store: Any, sessions: tuple[str, ...]) -> list[str]:
    """Each once, however it is spelled; what was set aside of a session goes with that."""
    found = dict.fromkeys(store.find(s) for s in sessions)
    return [name for name in found if (whole := name.partition(".")[0]) == name or whole not in found]


def _older(store: Any, days: float) -> list[str]:
    """Sessions that nobody goes on with, and whose last record is so old."""
    limit = time.time() - days * 86400
    return [s.id for s in store.all() if _is_spent(s) and s.changed_at < limit]


def _is_spent(session: Listed) -> bool:
    """Whether no resume would find anything in it that a new session had not."""
    return session.is_finished or (session.state is not None and session.state.steps == 0)


def _store(working_directory: str, state_dir: str) -> Any:
    from endstate_action.state.directory import locate, refuse_tracked, workspace_at
    from endstate_action.state.session import SessionStore

    workspace = workspace_at(working_directory)
    state = locate(workspace, _state_dir(state_dir))
    state.confirm()
    refuse_tracked(state, workspace, os.environ)
    return SessionStore(state.sessions)


def _chosen(store: Any, session: str | None) -> str:
    from endstate_action.errors import UnknownSession

    if session is not None:
        return str(store.find(session))
    newest = store.all()[:1]
    if not newest:
        raise UnknownSession(f"There is no session in {store.directory}.", hint="`endstate run PROMPT` begins one.")
    return str(newest[0].id)
