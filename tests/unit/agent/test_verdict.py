"""What a reply means: every stop reason has a behaviour, and none is a false success."""

from __future__ import annotations

from typing import Any

import pytest

from endstate_action.agent.verdict import MAX_ODD_REPLIES, Ask, Done, Stop, verdict
from endstate_action.messages import Usage
from endstate_action.state.fold import State
from endstate_action.state.records import Attempt, Begun, Finished, Prompt, Replied

TEXT: dict[str, Any] = {"type": "text", "text": "said"}
CALL: dict[str, Any] = {"type": "tool_use", "id": "t", "name": "read", "input": {}}
THINKING: dict[str, Any] = {"type": "thinking", "thinking": "hm", "signature": "s"}


def after(*replies: tuple[str, tuple[dict[str, Any], ...]], cut: bool = False, epoch: int = 1) -> State:
    state = State(Begun("s", 1.0, {}))
    state.add(Attempt(epoch, 1.0, "", {}, {}, "wal", "fake", "m"))
    state.add(Prompt("p", "do it", 1, 0, 1.0))
    for step, (stop, blocks) in enumerate(replies, start=1):
        state.add(Replied(step, f"m{step}", "m", blocks, stop, Usage(), None, 1.0, 1, cut))
        for index in range(sum(b["type"] == "tool_use" for b in blocks)):
            state.add(Finished(step, index, "t", "ok", "ok", 1, 1.0))
    return state


def test_nothing_said_yet_is_asked() -> None:
    assert verdict(after()) == Ask()


@pytest.mark.parametrize("stop", ["end_turn", "stop_sequence"])
def test_visible_text_at_the_end_of_a_turn_is_the_answer(stop: str) -> None:
    assert verdict(after((stop, (TEXT,)))) == Done()


@pytest.mark.parametrize("stop", ["tool_use", "end_turn", "stop_sequence", "pause_turn", "max_tokens"])
def test_calls_are_followed_by_another_question(stop: str) -> None:
    assert verdict(after((stop, (TEXT, CALL)))) == Ask()


@pytest.mark.parametrize("blocks", [(TEXT,), (CALL,), (TEXT, CALL), ()])
def test_a_refusal_stops_by_its_name(blocks: tuple[dict[str, Any], ...]) -> None:
    """A21."""
    outcome = verdict(after(("refusal", blocks)))

    assert isinstance(outcome, Stop)
    assert outcome.reason.startswith("declined")


@pytest.mark.parametrize(
    ("stop", "blocks", "name"),
    [
        ("max_tokens", (TEXT,), "output limit"),
        ("model_context_window_exceeded", (TEXT,), "context exceeded"),
        ("tool_use", (), "no tool call"),
        ("tool_use", (TEXT,), "no tool call"),
        ("pause_turn", (TEXT,), "paused"),
        ("end_turn", (), "no answer"),
        ("end_turn", (THINKING,), "no answer"),
        ("end_turn", ({"type": "text", "text": "\u200b"},), "no answer"),
        ("stop_sequence", (), "no answer"),
    ],
)
def test_an_odd_reply_is_asked_about_a_bounded_number_of_times(
    stop: str, blocks: tuple[dict[str, Any], ...], name: str
) -> None:
    """A20, A21: neither a loop nor a success."""
    for odd in range(1, MAX_ODD_REPLIES):
        assert verdict(after(*[(stop, blocks)] * odd)) == Ask()
    outcome = verdict(after(*[(stop, blocks)] * MAX_ODD_REPLIES))

    assert isinstance(outcome, Stop)
    assert outcome.reason.startswith(name)


def test_a_call_cut_again_and_again_stops_too() -> None:
    assert verdict(after(("max_tokens", (CALL,)), cut=True)) == Ask()
    assert isinstance(verdict(after(*[("max_tokens", (CALL,))] * MAX_ODD_REPLIES, cut=True)), Stop)


def test_work_between_odd_replies_starts_the_count_again() -> None:
    odd, work = ("end_turn", ()), ("tool_use", (CALL,))

    assert verdict(after(odd, odd, work, odd, odd)) == Ask()


def test_an_unknown_stop_reason_stops_by_its_name() -> None:
    outcome = verdict(after(("brand_new", (TEXT,))))

    assert outcome == Stop("unknown stop reason 'brand_new'")


@pytest.mark.parametrize("stop", ["refusal", "end_turn", "max_tokens", "brand_new"])
def test_a_later_attempt_asks_once_more(stop: str) -> None:
    assert verdict(after(*[(stop, ())] * MAX_ODD_REPLIES, epoch=2)) == Ask()


def test_an_answer_of_an_earlier_attempt_is_still_the_answer() -> None:
    """Killed between the reply and the end of the attempt: no further request is paid."""
    assert verdict(after(("end_turn", (TEXT,)), epoch=2)) == Done()


def test_a_new_prompt_makes_old_answers_old() -> None:
    state = after(("end_turn", (TEXT,)))
    state.add(Prompt("q", "more", 2, 1, 1.0))

    assert verdict(state) == Ask()
