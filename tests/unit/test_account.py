"""Evidence says what the session has on record, of the task at hand and of nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from endstate_action.account import Around, account
from endstate_action.effects import EffectClass
from endstate_action.messages import Usage
from endstate_action.shipper import Departed
from endstate_action.state.records import Attempt, Ended, Finished, Prompt, Record, Replied, Settled
from endstate_action.state.session import Session, SessionStore
from endstate_action.state.uploader import Shipped

AROUND = Around("success", "", "et1:" + "0" * 64, (".git",), "isolated")


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with SessionStore(tmp_path / "s").create({"base": "1" * 40}, session="0" * 12) as session:
        yield session


def attempt(epoch: int, **process: object) -> Attempt:
    return Attempt(epoch, float(epoch), "0", process, {}, "wal", "anthropic", "m")


def reply(step: int, epoch: int, *names: str, cost: str | None = "0.5") -> Replied:
    blocks = tuple({"type": "tool_use", "id": f"c{step}-{n}", "name": t, "input": {}} for n, t in enumerate(names))
    return Replied(step, f"m{step}", "m", blocks, "tool_use", Usage(100, 10), cost, 1.0, epoch)


def finished(step: int, index: int, epoch: int, status: Any = "ok", content: str = "") -> Finished:
    return Finished(step, index, f"c{step}-{index}", status, content, epoch, 2.0)


def told(session: Session, *records: Record, around: Around = AROUND):
    for record in records:
        session.append(record)
    return account(session.state, around)


def test_an_attempt_without_an_end_was_preempted_and_spent_at_least_what_is_known(session: Session) -> None:
    evidence = told(
        session, attempt(1, run_attempt=1), Prompt("p", "Do.", 1, 0, 1.0), reply(1, 1, "read"), finished(1, 0, 1),
        attempt(2, run_attempt=2, restored_from="es1/key"), reply(2, 2), Ended(2, 1, "success", "", 3.0),
    )  # fmt: skip
    first, second = evidence.attempts
    assert (first.ended, first.where, first.steps, first.run_attempt) == ("preempted", "after call 1", 1, 1)
    assert (second.ended, second.where, second.restored_from, second.run_attempt) == ("finished", "", "es1/key", 2)
    assert (evidence.spent.at_least, evidence.spent.usd, evidence.steps) == (True, "1", 2)


def test_what_was_not_restored_is_told_also_by_a_later_attempt(session: Session) -> None:
    evidence = told(
        session, attempt(1), Prompt("p", "Do.", 1, 0, 1.0), reply(1, 1, "read"), finished(1, 0, 1),
        attempt(2, restored_from="es1/key", not_restored=["db was not kept and may differ here", "a stash"]),
        attempt(3), Ended(3, 1, "success", "", 3.0), around=replace(AROUND, notes=("Last.",)),
    )  # fmt: skip
    lost = "Not all was restored for attempt 2: db was not kept and may differ here; a stash."
    assert evidence.notes == (lost, "Last.")


def test_an_attempt_that_was_asked_to_stop_was_interrupted(session: Session) -> None:
    evidence = told(
        session, attempt(1), Prompt("p", "Do.", 1, 0, 1.0), Ended(1, 1, "interrupted", "SIGINT", 2.0), attempt(2),
        Ended(2, 1, "success", "", 3.0),
    )  # fmt: skip
    assert [a.ended for a in evidence.attempts] == ["interrupted", "finished"]
    assert evidence.attempts[0].where == "before its first call"
    assert not evidence.spent.at_least


def test_a_number_without_an_attempt_is_one_whose_spending_is_not_known(session: Session) -> None:
    evidence = told(
        session, attempt(1), Prompt("p", "Do.", 1, 0, 1.0), Ended(1, 1, "interrupted", "SIGINT", 2.0), attempt(3),
        Ended(3, 1, "success", "", 3.0),
    )  # fmt: skip
    assert evidence.spent.at_least


def test_what_was_lost_in_an_earlier_task_is_none_of_the_later(session: Session) -> None:
    evidence = told(
        session, attempt(1), Prompt("p", "Do.", 1, 0, 1.0), attempt(2), reply(1, 2), Ended(2, 1, "success", "", 2.0),
        attempt(3), Prompt("q", "Do more.", 2, 1, 3.0), reply(2, 3), Ended(3, 2, "success", "", 4.0),
    )  # fmt: skip
    assert [a.epoch for a in evidence.attempts] == [3]
    assert not evidence.spent.at_least


def test_a_number_between_two_tasks_is_not_counted_as_spent_for_the_later(session: Session) -> None:
    """Who says a finished result again takes a number too, and spends nothing."""
    evidence = told(
        session, attempt(1), Prompt("p", "Do.", 1, 0, 1.0), reply(1, 1), Ended(1, 1, "success", "", 2.0), attempt(3),
        Prompt("q", "Do more.", 2, 1, 3.0), reply(2, 3), Ended(3, 2, "success", "", 4.0),
    )  # fmt: skip
    assert not evidence.spent.at_least


@pytest.mark.parametrize(
    ("conclusion", "ended"),
    [
        ("interrupted", "interrupted"),
        ("superseded", "superseded"),
        ("failed", "failed"),
        ("mismatch", "failed"),
        ("stopped", "stopped"),
        ("success", "finished"),
    ],
)
def test_the_end_of_an_attempt_is_the_one_on_record(session: Session, conclusion: Any, ended: str) -> None:
    evidence = told(
        session, attempt(1), Prompt("p", "Do.", 1, 0, 1.0), Ended(1, 1, conclusion, "so", 2.0), attempt(2)
    )  # fmt: skip
    assert evidence.attempts[0].ended == ended


def test_who_only_delivers_is_named_and_counts_as_no_attempt(session: Session) -> None:
    done = (attempt(1), Prompt("p", "Do.", 1, 0, 1.0), Ended(1, 1, "success", "", 2.0))
    assert told(session, *done, around=replace(AROUND, epoch=1)).delivered_by is None
    later = account(session.state, replace(AROUND, epoch=3))
    assert (later.delivered_by, len(later.attempts)) == (3, 1)


def test_calls_that_failed_are_counted_for_this_task(session: Session) -> None:
    evidence = told(
        session, attempt(1), Prompt("p", "Do.", 1, 0, 1.0), reply(1, 1, "read", "read", "bash"),
        finished(1, 0, 1, "error"), finished(1, 1, 1, "error"), finished(1, 2, 1, "refused"),
    )  # fmt: skip
    assert evidence.failed_calls == 2
    more = told(session, Ended(1, 1, "success", "", 2.0), attempt(2), Prompt("q", "More.", 2, 1, 3.0), reply(2, 2))
    assert more.failed_calls == 0


def test_an_unknown_price_is_an_unknown_cost(session: Session) -> None:
    evidence = told(session, attempt(1), Prompt("p", "Do.", 1, 0, 1.0), reply(1, 1, cost=None))
    assert evidence.spent.usd is None


def test_settlements_and_refusals_are_those_of_this_task(session: Session) -> None:
    evidence = told(
        session, attempt(1), Prompt("p", "Do.", 1, 0, 1.0), reply(1, 1, "bash"),
        Settled(1, 0, "c1-0", 1, "refuse", "old", EffectClass.OPAQUE, 1.0), finished(1, 0, 1, "refused", "old"),
        Ended(1, 1, "success", "", 2.0),
        attempt(2), Prompt("q", "More.", 2, 1, 3.0), reply(2, 2, "bash", "write"),
        Settled(2, 0, "c2-0", 2, "roll_back_and_run", "it was cut off", EffectClass.CONTAINED, 4.0),
        finished(2, 0, 2), finished(2, 1, 2, "denied", "protected"),
    )  # fmt: skip
    assert [(s.step, s.tool, s.action) for s in evidence.settlements] == [(2, "bash", "roll_back_and_run")]
    assert [(r.step, r.call, r.status, r.reason) for r in evidence.refused] == [(2, 2, "denied", "protected")]
    assert (evidence.task, evidence.steps, [a.epoch for a in evidence.attempts]) == (2, 1, [2])


def test_durability_is_what_was_shipped_and_never_what_was_hoped_for(session: Session) -> None:
    session.append(attempt(1))
    session.append(Prompt("p", "Do.", 1, 0, 1.0))
    key = Shipped("es1/key", 3, 100, 1.0)
    nothing = account(session.state, replace(AROUND, departed=Departed("none", None))).durability
    stored = account(session.state, replace(AROUND, departed=Departed("cache", key))).durability
    assert (nothing.store, nothing.checkpoint, nothing.age_s) == ("none", None, None)
    assert (stored.store, stored.checkpoint) == ("Actions cache", "es1/key")
    assert stored.age_s
