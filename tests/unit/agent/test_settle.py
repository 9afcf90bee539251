"""The verdict on a call without an outcome: the table of the design, row by row, and its order."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from endstate_action.agent.settle import (
    MAX_STARTS,
    Action,
    Content,
    Found,
    Pending,
    Settlement,
    answer,
    decide,
    rolled_back,
)
from endstate_action.effects import EffectClass, Probe
from endstate_action.state.records import Started

R, A, X, N, D, G = Action.RUN, Action.ADOPT, Action.REFUSE, Action.NOT_RUN, Action.DENY, Action.GIVE_UP
B, BR = Action.ROLL_BACK, Action.ROLL_BACK_AND_RUN
RUNS = (R, BR)


def started(effect: EffectClass, path: str | None = None, sandbox: str = "") -> Started:
    return Started(1, 0, "c", effect, 1, 1.0, "t", path, "b" if path else None, "a" if path else None, sandbox)


def pending(
    effect: EffectClass | None = None, *, path: str | None = None, starts: int = 1, sandbox: str = ""
) -> Pending:
    begun = started(effect, path, sandbox) if effect else None
    return Pending("tool", None, None, begun, starts if begun else 0)


RETRY = Found(is_first_attempt=False)


@pytest.mark.parametrize(
    ("call", "found", "action"),
    [
        (pending(), Found(effect=EffectClass.OPAQUE), R),
        (pending(), replace(RETRY, effect=EffectClass.OPAQUE), R),
        (pending(), Found(effect=EffectClass.KEYED), R),
        (pending(), replace(RETRY, effect=EffectClass.KEYED, probe=Probe.ABSENT), R),
        (pending(), replace(RETRY, effect=EffectClass.KEYED, probe=Probe.APPLIED), A),
        (pending(), replace(RETRY, effect=EffectClass.KEYED, probe=Probe.UNKNOWN), X),
        (pending(), replace(RETRY, effect=EffectClass.KEYED), X),
        (pending(EffectClass.READS), RETRY, R),
        (pending(EffectClass.IDEMPOTENT), RETRY, R),
        (pending(EffectClass.IDEMPOTENT, path="f"), replace(RETRY, content=Content.BEFORE), R),
        (pending(EffectClass.IDEMPOTENT, path="f"), replace(RETRY, content=Content.AFTER), A),
        (pending(EffectClass.IDEMPOTENT, path="f"), replace(RETRY, content=Content.OTHER), X),
        (pending(EffectClass.IDEMPOTENT, path="f"), RETRY, X),
        (pending(EffectClass.KEYED), replace(RETRY, probe=Probe.APPLIED), A),
        (pending(EffectClass.KEYED), replace(RETRY, probe=Probe.ABSENT), R),
        (pending(EffectClass.KEYED), replace(RETRY, probe=Probe.UNKNOWN), X),
        (pending(EffectClass.CONTAINED, sandbox="s"), replace(RETRY, sandbox="s"), X),
        (pending(EffectClass.CONTAINED, sandbox="s"), replace(RETRY, sandbox="s", can_roll_back=True), BR),
        (pending(EffectClass.CONTAINED, sandbox="s"), replace(RETRY, sandbox="z", can_roll_back=True), B),
        (pending(EffectClass.CONTAINED, sandbox="s"), replace(RETRY, sandbox="", can_roll_back=True), B),
        (pending(EffectClass.CONTAINED, sandbox=""), replace(RETRY, sandbox="s", can_roll_back=True), BR),
        (pending(EffectClass.NETWORKED, sandbox="s"), replace(RETRY, sandbox="s"), X),
        (pending(EffectClass.NETWORKED, sandbox="s"), replace(RETRY, sandbox="s", can_roll_back=True), B),
        (pending(EffectClass.CONTAINED, starts=3), replace(RETRY, can_roll_back=True), B),
        (pending(EffectClass.OPAQUE), RETRY, X),
    ],
)
def test_each_effect_class_is_settled_by_its_rule(call: Pending, found: Found, action: Action) -> None:
    assert decide(call, found).action is action


def every_call_and_finding() -> list[tuple[Pending, Found]]:
    calls = [pending(e, path=p) for e in (None, *EffectClass) for p in (None, "f")]
    findings = [
        Found(effect=e, is_first_attempt=f, content=c, probe=p, can_roll_back=b)
        for e, f, c, p, b in product(
            (None, *EffectClass), (True, False), (None, *Content), (None, *Probe), (True, False)
        )
    ]
    return list(product(calls, findings))


def test_a_recorded_denial_is_final_whatever_else_is_found() -> None:
    for call, found in every_call_and_finding():
        for blocked in (None, "call 1"):
            settled = decide(replace(call, denied="no"), replace(found, blocked_by=blocked, missing=None))
            assert (settled.action, settled.reason) == (D, "no")


def test_a_cut_call_never_runs() -> None:
    assert {decide(replace(c, void="cut"), f).action for c, f in every_call_and_finding()} == {N}


def test_nothing_of_a_batch_runs_after_an_unknown_outcome() -> None:
    assert {decide(c, replace(f, blocked_by="call 1")).action for c, f in every_call_and_finding()} == {N}


def test_what_is_missing_today_is_not_run() -> None:
    assert {decide(c, replace(f, missing="gone")).action for c, f in every_call_and_finding()} == {D}


def test_a_call_buried_in_the_history_is_never_run() -> None:
    assert {decide(c, replace(f, is_buried=True)).action for c, f in every_call_and_finding()} == {X}


def test_a_call_that_kills_its_runner_is_not_started_for_ever() -> None:
    for call, found in every_call_and_finding():
        if call.started is None:
            continue
        for starts in (MAX_STARTS, MAX_STARTS + 1):
            assert decide(replace(call, starts=starts), found).action not in RUNS
        before = decide(replace(call, starts=MAX_STARTS - 1), found)
        if before.action in RUNS:
            after = decide(replace(call, starts=MAX_STARTS), found)
            assert after.action is (B if before.action is BR else G)
            assert after.blocks_rest


def test_an_applied_effect_is_adopted_however_often_it_was_started() -> None:
    call = pending(EffectClass.IDEMPOTENT, path="f", starts=9)

    assert decide(call, replace(RETRY, content=Content.AFTER)).action is A


def test_the_recorded_class_decides_and_not_a_better_one_of_today() -> None:
    opaque_then, reads_now = pending(EffectClass.OPAQUE), replace(RETRY, effect=EffectClass.READS)

    assert decide(opaque_then, reads_now).action is X


def test_an_opaque_or_networked_call_never_runs_twice() -> None:
    for call, found in every_call_and_finding():
        if call.started is not None and call.started.effect in (EffectClass.OPAQUE, EffectClass.NETWORKED):
            assert decide(call, found).action not in RUNS


def test_a_roll_back_needs_a_whole_snapshot() -> None:
    for call, found in every_call_and_finding():
        assert found.can_roll_back or not decide(call, found).rolls_back


def test_every_answer_says_what_did_not_happen() -> None:
    for action in (A, X, N, D, G, B):
        text = answer(Settlement(action, "because"), "tool")
        assert "because" in text
        assert text[0].isupper()
        assert text.endswith(".")


def test_nothing_runs_on_what_could_not_be_put_back():
    left = ("data.db was not kept and has changed since",)
    ran = rolled_back(Settlement(BR, "nothing of it can have left the workspace"), left)
    networked = rolled_back(Settlement(B, "it was interrupted, and it had the network"), left)

    assert (ran.action, ran.blocks_rest, networked.action) == (B, True, B)
    assert ran.reason == f"it was interrupted, and not all could be put back: {left[0]}"
    assert networked.reason == f"it was interrupted, and it had the network, and not all could be put back: {left[0]}"
    assert "The rest of the workspace is as it was" in answer(ran, "bash")
    assert "The workspace is as it was" in answer(Settlement(B, "x"), "bash")


@pytest.mark.parametrize("action", [B, BR])
def test_a_roll_back_that_left_nothing_changes_no_verdict(action):
    assert rolled_back(Settlement(action, "x"), ()) == Settlement(action, "x")
