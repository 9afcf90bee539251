"""An attempt takes a number first, and then the newest state that there is, wherever it is."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from endstate_action.config import DEFAULT_CONFIG
from endstate_action.durable import Depot, Line, NoDepot
from endstate_action.errors import InputError, OutcomeUnknown, ProviderUnavailable, StateError, UnknownSession
from endstate_action.state.checkpoint.build import Builder
from endstate_action.state.checkpoint.choose import UseLocal, UseStored
from endstate_action.state.checkpoint.manifest import About
from endstate_action.state.directory import StateDirectory
from endstate_action.state.keys import claim_key
from endstate_action.state.records import Attempt, Ended, Note, Prompt
from endstate_action.state.session import Session, SessionStore
from endstate_action.state.stores.base import StoreUnreadable, StoreUnusable
from endstate_action.state.uploader import EAGER
from endstate_action.successor import Successor, find_session, inspect, local_state, session_here
from endstate_action.workplace import Workplace
from tests.support.checkpoints import KEY
from tests.support.memory_store import Fault, MemoryStore

SESSION = "abcdef012345"
OTHER = "abcdef999999"
LAST = "f" * 12


def nothing_here() -> str:
    raise UnknownSession("There is none.")


def begun(sessions: SessionStore, name: str) -> Session:
    session = sessions.create({"workspace": "directory"}, session=name)
    session.append(Attempt(1, 1.0, "0.9", {}, {}, "wal", "scripted", "scripted"), Prompt("p", "do it", 1, 0, 1.0))
    return session


def ship(
    store: MemoryStore,
    sessions: SessionStore,
    name: str,
    *,
    epoch: int = 1,
    at: float = 0,
    effects: int = 0,
    line: str | None = None,
):
    """One more checkpoint of what is recorded; the store has the claim as well."""
    line = line or name
    about = About("0.9", "", line, name, epoch, "directory", "sha1", None, None, "f" * 32)
    builder = Builder(
        about,
        KEY,
        lambda after: sessions.journal(name, after),
        lambda root: b"",
        effects_before=effects,
        clock=lambda: at,
    )
    built = builder.build(1 + len([key for key in store.objects if f"{line}/c{epoch:04}" in key]))
    store.objects[claim_key(line, epoch)] = b""
    store.objects[built.key] = built.data
    return built


@pytest.fixture
def sessions(tmp_path: Path) -> SessionStore:
    return SessionStore(tmp_path / "here")


@pytest.fixture
def elsewhere(tmp_path: Path) -> SessionStore:
    return SessionStore(tmp_path / "elsewhere")


def depot(store: MemoryStore) -> Depot:
    return Depot(store, KEY, True, EAGER, store.name)


def successor(store: MemoryStore, sessions: SessionStore) -> Successor:
    return Successor(depot(store), Line(SESSION), sessions, lambda bound: None, False, lambda text: None, {})  # type: ignore[arg-type,return-value]


def test_a_number_is_above_what_the_store_and_this_machine_know(sessions: SessionStore):
    store = MemoryStore()
    assert successor(store, sessions).claim(0) == 1
    assert successor(store, sessions).claim(0) == 2
    assert successor(store, sessions).claim(7) == 8


def test_a_store_that_denies_gives_no_number_and_says_what_to_do(sessions: SessionStore):
    store = MemoryStore(faults={("put", 0): Fault.DENIED})
    assert successor(store, sessions).claim(0) == NoDepot("the token has no writable scopes", "cache-mode: write")


def test_without_a_number_nothing_is_run(sessions: SessionStore):
    store = MemoryStore(faults={("put", 0): Fault.RATE_LIMITED}, retry_after_s=1000)
    with pytest.raises(ProviderUnavailable, match=r"did not give this attempt a number.*Nothing was run"):
        successor(store, sessions).claim(0)


def test_a_made_up_claim_of_the_last_number_ends_it_with_what_to_delete_and_not_as_something_that_passes(
    sessions: SessionStore,
):
    store = MemoryStore()
    made_up = claim_key(SESSION, 9_999)
    store.objects[made_up] = b"anything"
    for _ in range(2):
        with pytest.raises(StoreUnusable, match=made_up) as refused:
            successor(store, sessions).claim(0)
        assert refused.value.exit_code == 2
        assert "Delete that object" in refused.value.hint
    del store.objects[made_up]
    assert successor(store, sessions).claim(0) == 1


def test_a_directory_that_denies_is_an_error_in_its_name(sessions: SessionStore):
    class Closed(MemoryStore):
        name = "dir"

    with pytest.raises(InputError, match=r"no writable scopes\. Nothing was run"):
        successor(Closed(faults={("put", 0): Fault.DENIED}), sessions).claim(0)


def test_who_was_taken_over_learns_by_whom(sessions: SessionStore):
    store = MemoryStore()
    mine = successor(store, sessions)
    assert mine.claim(0) == 1
    assert mine.superseded_by(1) is None
    assert successor(store, sessions).claim(0) == 2
    assert mine.superseded_by(1) == 2


def test_a_store_that_cannot_be_asked_is_not_an_empty_one(sessions: SessionStore):
    store = MemoryStore(faults={("keys", 0): Fault.UNREADABLE})
    with pytest.raises(StoreUnreadable):
        successor(store, sessions).find(SESSION, 2)


def test_looking_tells_which_side_is_newer(sessions: SessionStore, elsewhere: SessionStore):
    store = MemoryStore()
    with begun(elsewhere, SESSION):
        ship(store, elsewhere, SESSION)
    seen = inspect(depot(store), Line(SESSION), sessions)
    assert isinstance(seen.choice, UseStored)
    assert seen.local is None
    with begun(sessions, SESSION):
        assert isinstance(inspect(depot(store), Line(SESSION), sessions).choice, UseLocal)
        half = inspect(depot(store), Line(SESSION), sessions, half_restored=True)
        assert isinstance(half.choice, UseStored), "a half-restored machine has nothing to go on from"
    assert seen.epoch == 1


def test_what_is_stored_and_all_here_is_not_restored_whichever_attempt_stored_it(
    sessions: SessionStore, elsewhere: SessionStore
):
    """An attempt that only tells or delivers a result records nothing, and has a number all the same."""
    store = MemoryStore()
    with begun(sessions, SESSION) as session:
        rows = sessions.journal(SESSION)
        ship(store, sessions, SESSION, epoch=2)
        session.append(Note("n", "and more", 0))
        seen = inspect(depot(store), Line(SESSION), sessions)
        assert isinstance(seen.choice, UseLocal)
    # A journal that went on elsewhere is newer for all that.
    elsewhere.directory.mkdir()
    elsewhere.adopt(SESSION, rows)
    with elsewhere.open(SESSION) as other:
        other.append(Note("n", "something else", 0))
        ship(store, elsewhere, SESSION, epoch=2)
    assert isinstance(inspect(depot(store), Line(SESSION), sessions).choice, UseStored)


def test_what_cannot_be_read_here_is_nothing_to_go_on_from(sessions: SessionStore):
    assert local_state(sessions, SESSION) is None
    sessions.directory.mkdir()
    (sessions.directory / f"{SESSION}.db").write_bytes(b"no database" * 100)
    assert local_state(sessions, SESSION) is None


# Which session


def test_a_session_is_found_by_the_beginning_of_its_id_here_or_in_the_store(
    sessions: SessionStore, elsewhere: SessionStore
):
    store = MemoryStore()
    for name in (OTHER, LAST):
        with begun(elsewhere, name):
            ship(store, elsewhere, name)
    begun(sessions, SESSION).close()
    found = depot(store)
    assert find_session("abcdef0", sessions, found, nothing_here) == SESSION
    assert find_session("abcdef9", sessions, found, nothing_here) == OTHER
    assert find_session("ff", sessions, found, nothing_here) == LAST
    with pytest.raises(InputError, match=f"{SESSION}, {OTHER}"):
        find_session("abcdef", sessions, found, nothing_here)
    with pytest.raises(UnknownSession, match="in the store memory"):
        find_session("1234", sessions, found, nothing_here)


def test_the_id_that_a_workflow_announces_finds_its_line_in_the_store(sessions: SessionStore, elsewhere: SessionStore):
    """A store knows the attempts by the name of their line; by another a session would go on here and there at once."""
    store = MemoryStore()
    for name, line in ((SESSION, "1" * 32), (OTHER, "2" * 32)):
        with begun(elsewhere, name):
            ship(store, elsewhere, name, line=line)
    found = depot(store)
    assert find_session(SESSION, sessions, found, nothing_here) == "1" * 32
    assert find_session("abcdef9", sessions, found, nothing_here) == "2" * 32
    with pytest.raises(InputError, match=r"1{32}, 2{32}"):
        find_session("abcdef", sessions, found, nothing_here)
    assert session_here(Line("1" * 32), sessions, found) is None

    # Once it was restored, it is here by its own name.
    begun(sessions, OTHER).close()
    sessions.create({"workspace": "directory", "owner": "0" * 16}, session=SESSION).close()
    assert find_session(SESSION, sessions, found, nothing_here) == "1" * 32
    assert find_session(None, sessions, found, lambda: SESSION) == "1" * 32
    assert session_here(Line("1" * 32), sessions, found) == SESSION
    assert inspect(found, Line("1" * 32), sessions).session == SESSION
    assert find_session(OTHER, sessions, found, nothing_here) == OTHER  # begun by hand: its own name is its line


def test_lines_are_looked_at_for_so_long_and_how_many_were_not_is_told(
    sessions: SessionStore, elsewhere: SessionStore, monkeypatch: pytest.MonkeyPatch
):
    store = MemoryStore()
    for name in (SESSION, OTHER, LAST):
        with begun(elsewhere, name):
            ship(store, elsewhere, name)
    monkeypatch.setattr("endstate_action.successor.LOOK_S", -1.0)
    with pytest.raises(UnknownSession, match="no time to look at 2 sessions"):
        find_session("1234", sessions, depot(store), nothing_here)


def test_where_a_store_cannot_list_a_whole_id_is_taken_at_its_word(sessions: SessionStore):
    found = depot(MemoryStore(lists=False))
    assert find_session(SESSION, sessions, found, nothing_here) == SESSION
    with pytest.raises(UnknownSession) as refused:
        find_session("abc", sessions, found, nothing_here)
    assert "whole id" in refused.value.hint
    with pytest.raises(UnknownSession) as refused:
        find_session(None, sessions, found, nothing_here)
    assert "--session" in refused.value.hint


def test_without_an_id_it_is_the_one_here_else_the_unfinished_one_with_the_newest_checkpoint(
    sessions: SessionStore, elsewhere: SessionStore
):
    store = MemoryStore()
    for name, at in ((OTHER, 20.0), (LAST, 10.0)):
        with begun(elsewhere, name):
            ship(store, elsewhere, name, at=at)
    found = depot(store)
    told: list[str] = []
    assert find_session(None, sessions, found, lambda: SESSION, told.append) == SESSION
    assert find_session(None, sessions, found, nothing_here, told.append) == OTHER
    others = [re.findall(r"\b[0-9a-f]{12}\b", text) for text in told]
    assert others == [[OTHER, LAST], [LAST]]


def test_named_are_only_those_that_are_unfinished_and_not_here(sessions: SessionStore, elsewhere: SessionStore):
    store = MemoryStore()
    for name in (SESSION, OTHER):
        with begun(elsewhere, name) as session:
            if name == OTHER:
                session.append(Ended(1, 1, "success", "", 2.0))
            ship(store, elsewhere, name)
    begun(sessions, SESSION).close()
    told: list[str] = []
    assert find_session(None, sessions, depot(store), lambda: SESSION, told.append) == SESSION
    assert told == []


def test_where_none_opens_one_is_named_so_that_its_refusal_says_why(sessions: SessionStore, elsewhere: SessionStore):
    store = MemoryStore()
    with begun(elsewhere, SESSION):
        ship(store, elsewhere, SESSION)
    other = replace(depot(store), sealing=replace(KEY, id=b"another!"))
    assert find_session(None, sessions, other, nothing_here) == SESSION


def test_more_effects_than_the_newest_state_knows_of_are_a_gap(sessions: SessionStore, elsewhere: SessionStore):
    store = MemoryStore()
    with begun(elsewhere, SESSION):
        first = ship(store, elsewhere, SESSION)
        later = ship(store, elsewhere, SESSION, effects=3)
    store.objects[later.key] = b"damaged"
    assert first.key in store.objects
    with pytest.raises(OutcomeUnknown, match=r"3 effects outside the workspace were started.*knows of 0"):
        successor(store, sessions).find(None, 2)


@pytest.mark.parametrize("asked", ["find", "foresee"])
def test_nothing_goes_on_where_a_restore_was_killed(tmp_path: Path, asked: str):
    """Whether or not somebody looked before there was a number."""
    state = StateDirectory(tmp_path / ".endstate")
    state.claim()
    state.restore_log.write_text(json.dumps({"key": f"es1/{OTHER}/c0001-000001-00000"}))
    sessions = SessionStore(state.sessions)
    place = Workplace(tmp_path, state, None, {}, {}, DEFAULT_CONFIG)
    resume = replace(successor(MemoryStore(), sessions), place=lambda bound: place)

    with pytest.raises(StateError, match="neither its nor yours"):
        resume.find(None, 1) if asked == "find" else resume.foresee(None)
