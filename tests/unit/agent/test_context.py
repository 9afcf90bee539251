"""The history a provider gets: well-formed whatever the journal holds, and the same on every resume."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endstate_action.agent.context import (
    MalformedHistory,
    answered,
    check_history,
    compaction,
    history,
    size_bytes,
    tokens_per_byte,
)
from endstate_action.messages import Message, Usage, is_blank
from endstate_action.state.fold import State
from endstate_action.state.records import Begun, Compacted, Finished, Note, Prompt, Record, Replied

Json = dict[str, Any]


def call(id_: str, name: str = "read", **arguments: Any) -> Json:
    return {"type": "tool_use", "id": id_, "name": name, "input": arguments}


def text(said: str) -> Json:
    return {"type": "text", "text": said}


def reply(step: int, *blocks: Json, stop: str = "tool_use", usage: Usage = Usage()) -> Replied:
    return Replied(step, f"m{step}", "m", tuple(blocks), stop, usage, None, 1.0, 1)


def done(step: int, index: int, content: str = "ok") -> Finished:
    return Finished(step, index, "x", "ok", content, 1, 1.0)


def prompt(said: str = "do it", after: int = 0) -> Prompt:
    return Prompt(f"p{after}{said}", said, 1, after, 1.0)


def state(*records: Record) -> State:
    folded = State(Begun("s", 1.0, {}))
    for record in records:
        add(folded, record)
    return folded


def add(folded: State, record: Record) -> None:
    """With the id of the call that an outcome is of."""
    if isinstance(record, Finished):
        record = replace(record, call_id=folded.pending[record.step, record.index].call.id)
    folded.add(record)


def shape(messages: Sequence[Message]) -> list[tuple[str, list[str]]]:
    return [(m.role, [str(b["type"]) for b in m.blocks]) for m in messages]


def sent(folded: State) -> tuple[Message, ...]:
    messages = history(folded)
    check_history(messages)
    return messages


def test_results_lead_and_what_is_told_besides_follows() -> None:
    """A06: the result of t1 comes before the new instruction."""
    folded = state(
        prompt(),
        reply(1, text("a"), call("t1"), call("t2")),
        done(1, 0),
        done(1, 1),
        Note("n", "edited", 1),
        prompt("and", 1),
    )

    assert shape(sent(folded)) == [
        ("user", ["text"]),
        ("assistant", ["text", "tool_use", "tool_use"]),
        ("user", ["tool_result", "tool_result", "text", "text"]),
    ]


def test_an_unanswered_call_is_never_sent() -> None:
    with pytest.raises(MalformedHistory):
        history(state(prompt(), reply(1, call("t1"))))


@pytest.mark.parametrize("blank", ["", " \n", "\u200b", "\ufeff", "\u00ad", "\u2060\u200d"])
def test_blank_text_is_not_sent(blank: str) -> None:
    """A09, A10: what a provider calls empty, the record keeps and the request leaves out."""
    folded = state(prompt(), reply(1, text(blank), call("t1")), done(1, 0, blank))

    assert shape(sent(folded))[1] == ("assistant", ["tool_use"])
    assert not any(is_blank(str(b.get("text", b.get("content", "x")))) for m in sent(folded) for b in m.blocks)


@pytest.mark.parametrize("blocks", [(), (text("\u200b"),), ({"type": "thinking", "thinking": "hm", "signature": "s"},)])
def test_an_empty_turn_is_never_sent_and_is_followed_by_a_nudge(blocks: tuple[Json, ...]) -> None:
    folded = state(prompt(), reply(1, *blocks, stop="end_turn"))

    assert shape(sent(folded)) == [("user", ["text", "text"])]


def test_a_repeated_call_id_is_unique_on_the_wire_in_both_halves() -> None:
    """A18: the provider reuses `t1` in a later turn."""
    folded = state(prompt(), reply(1, call("t1")), done(1, 0, "one"), reply(2, call("t1")), done(2, 0, "two"))

    messages = sent(folded)

    ids = [b["id"] for m in messages for b in m.blocks if b["type"] == "tool_use"]
    answers = {b["tool_use_id"]: b["content"] for m in messages for b in m.blocks if b["type"] == "tool_result"}
    assert ids[0] == "t1"
    assert len(set(ids)) == 2
    assert answers == {ids[0]: "one", ids[1]: "two"}


@pytest.mark.parametrize("odd", ["", "a b", "\u00e9", "x" * 300, "t1"])
def test_any_call_id_is_one_that_a_provider_takes(odd: str) -> None:
    folded = state(prompt(), reply(1, call(odd), call(odd)), done(1, 0), done(1, 1))

    ids = [b["id"] for m in sent(folded) for b in m.blocks if b["type"] == "tool_use"]

    assert len(set(ids)) == 2
    assert all(0 < len(i) <= 64 and all(c.isascii() and (c.isalnum() or c in "-_") for c in i) for i in ids)


def test_thinking_is_sent_back_as_it_came() -> None:
    thinking = {"type": "thinking", "thinking": "  \u200b hm", "signature": "abc==", "extra": [1]}
    folded = state(prompt(), reply(1, thinking, call("t1")), done(1, 0))

    assert sent(folded)[1].blocks[0] is thinking


def test_half_characters_in_old_rows_are_healed() -> None:
    """A12: a row with an escaped lone surrogate."""
    folded = state(prompt("\ud83d"), reply(1, text("\udc00"), call("t1", path="\ud800")), done(1, 0, "\udfff"))

    for message in sent(folded):
        repr(message.blocks).encode()
        for block in message.blocks:
            for value in block.values():
                str(value).encode()


@pytest.mark.parametrize(
    ("stop", "hint"),
    [
        ("max_tokens", "cut off"),
        ("model_context_window_exceeded", "cut off"),
        ("tool_use", "announced"),
        ("pause_turn", "Go on"),
        ("end_turn", "no visible answer"),
    ],
)
def test_an_odd_reply_is_followed_by_what_was_odd_about_it(stop: str, hint: str) -> None:
    last = sent(state(prompt(), reply(1, text("so far"), stop=stop)))[-1]

    assert hint in last.text


def test_a_refused_reply_is_not_sent_back() -> None:
    assert shape(sent(state(prompt(), reply(1, text("no"), stop="refusal"), prompt("please", 1)))) == [
        ("user", ["text", "text"])
    ]


def test_a_prompt_after_a_final_answer_is_the_next_turn() -> None:
    folded = state(prompt(), reply(1, text("done"), stop="end_turn"), prompt("more", 1))

    assert [m.text for m in sent(folded)] == ["do it", "done", "more"]


def test_compaction_cuts_between_steps_and_keeps_every_instruction() -> None:
    folded = state(
        prompt(),
        reply(1, call("t1", path="a")),
        done(1, 0, "x" * 1000),
        prompt("second", 1),
        reply(2, call("t2")),
        done(2, 0),
        Compacted(1, "[summary]"),
        reply(3, call("t3")),
        done(3, 0),
    )

    messages = sent(folded)

    assert [b.get("text") for b in messages[0].blocks] == ["do it", "[summary]", "second"]
    assert not any("x" * 1000 in str(m.blocks) for m in messages)
    assert shape(messages)[1] == ("assistant", ["tool_use"])


def test_a_cut_is_the_smallest_that_fits_and_needs_no_model() -> None:
    folded = state(prompt())
    for step in range(1, 11):
        folded.add(reply(step, call(f"t{step}", path=f"file-{step}")))
        add(folded, done(step, 0, "x" * 10_000))

    cut = compaction(folded, 60_000, 0)

    assert cut is not None
    assert 1 <= cut.through_step < 10
    assert "file-1" in cut.summary
    assert compaction(folded, 60_000, 0) == cut
    folded.add(cut)
    assert size_bytes(sent(folded), "", ()) < 70_000


@pytest.mark.parametrize("before", [0, 2])
def test_of_a_newest_step_that_is_too_long_by_itself_each_result_is_shown_in_part(before: int) -> None:
    """Without any of it, a model asks for the same again, for ever."""
    folded = state(prompt())
    for step in range(1, before + 1):
        folded.add(reply(step, call(f"t{step}")))
        add(folded, done(step, 0, "z" * 5_000))
    folded.add(reply(before + 1, *(call(f"n{n}") for n in range(5))))
    for index in range(5):
        add(
            folded, done(before + 1, index, "small" if index == 2 else f"begin{index} " + "é" * 40_000 + f" end{index}")
        )

    cut = compaction(folded, 100_000, 1_000)

    assert cut is not None
    assert cut.through_step == before
    folded.add(cut)
    *_, newest = sent(folded)
    shown = [b["content"] for b in newest.blocks if b["type"] == "tool_result"]
    assert "small" in shown
    for index in (0, 1, 3, 4):
        assert shown[index].startswith(f"begin{index} ")
        assert shown[index].endswith(f" end{index}")
        assert "bytes left out" in shown[index]
    assert 70_000 < size_bytes(sent(folded), "", ()) < 100_000
    assert f"Of the results of step {before + 1} only" in str([m.blocks for m in sent(folded)])
    check_history(sent(folded))


def test_a_part_that_is_still_too_long_is_made_shorter_and_at_last_summarised() -> None:
    folded = state(prompt(), reply(1, call("t1")), done(1, 0, "x" * 100_000))
    sizes = []
    for target in (80_000, 40_000, 21_000):
        cut = compaction(folded, target, 0)
        assert cut is not None
        folded.add(cut)
        sizes.append((cut.through_step, size_bytes(sent(folded), "", ())))

    assert [through for through, _ in sizes] == [0, 0, 1]
    assert sizes[0][1] > sizes[1][1] > sizes[2][1]
    assert compaction(folded, 10, 0) is None


def test_nothing_is_left_to_cut_when_all_is_cut() -> None:
    folded = state(prompt(), reply(1, call("t1")), done(1, 0), Compacted(1, "all of it"))

    assert compaction(folded, 10, 0) is None


def test_the_token_estimate_follows_the_last_count_within_reason() -> None:
    def ratio(tokens: int) -> float:
        return tokens_per_byte(state(prompt(), reply(1, text("x" * 9000), usage=Usage(tokens))), "s" * 800, ())

    asked = size_bytes(history(state(prompt())), "s" * 800, ())

    assert ratio(400) == 400 / asked
    assert ratio(10_000) == 0.6
    assert ratio(10) == 0.2
    assert ratio(0) == 0.3
    assert tokens_per_byte(state(prompt()), "", ()) == 0.3


def test_the_request_of_the_last_reply_is_found_in_the_records() -> None:
    """With all that the next one has besides: outcomes, words, a nudge, ids that come again, an earlier cut."""
    steps: list[tuple[list[Record], list[Record]]] = [
        ([reply(1, call("t1"))], [done(1, 0), Note("n1", "edited", 1)]),
        ([reply(2, call("t1"))], [done(2, 0)]),
        ([reply(3, stop="end_turn")], [Note("n3", "edited", 3)]),
        ([Compacted(2, "[summary]"), reply(4, call("t1"))], [done(4, 0), prompt("and", 4)]),
        ([reply(5, call("t1"))], [done(5, 0)]),
        ([Compacted(4, "[more]"), reply(6, text("done"), stop="end_turn")], [prompt("more", 6)]),
    ]
    folded = state(prompt())
    asked: tuple[Message, ...] = ()
    assert answered(folded) == ()
    for (*cut, replied), then in steps:
        for record in cut:
            add(folded, record)
        asked = sent(folded)
        for record in (replied, *then):
            add(folded, record)
        assert answered(folded) == asked
        assert history(folded) != asked
    folded.add(Compacted(6, "[all]"))
    assert answered(folded) == asked


def user(*blocks: Json) -> Message:
    return Message("user", blocks)


def assistant(*blocks: Json) -> Message:
    return Message("assistant", blocks)


def result(id_: str) -> Json:
    return {"type": "tool_result", "tool_use_id": id_, "content": "ok"}


@pytest.mark.parametrize(
    "messages",
    [
        (),
        (assistant(text("hi")),),
        (user(text("a")), user(text("b"))),
        (user(text("a")), assistant(text("b"))),
        (user(),),
        (user(text(" ")),),
        (user(text("a")), assistant(call("t1")), user(text("go on"))),
        (user(text("a")), assistant(call("t1")), user(text("first"), result("t1"))),
        (user(text("a")), assistant(call("t1"), call("t2")), user(result("t1"))),
        (user(text("a")), assistant(call("t1")), user(result("t1"), result("t1"))),
        (user(text("a")), assistant(call("t1")), user(result("t2"))),
        (user(text("a")), assistant(text("b")), user(result("t9"))),
        (user(text("a")), assistant(call("t1"), call("t1")), user(result("t1"), result("t1"))),
        (user(text("a")), assistant(call("t1")), user(result("t1")), assistant(call("t1")), user(result("t1"))),
        # A01, A02: the damage is in the middle, and everything after it is fine.
        (
            user(text("a")),
            assistant(call("t1")),
            user(text("go on")),
            assistant(text("ok")),
            user(text("b")),
        ),
    ],
)
def test_the_whole_history_is_checked_before_it_is_sent(messages: tuple[Message, ...]) -> None:
    with pytest.raises(MalformedHistory, match=r"nothing was sent"):
        check_history(messages)


@st.composite
def journals(draw: st.DrawFn) -> State:
    """Any journal that a run could leave with all calls answered."""
    texts = st.sampled_from(["", "said", "\u200b", "\ud83d", "two\n\nlines"])
    folded = state(prompt())
    for step in range(1, draw(st.integers(0, 6)) + 1):
        blocks = [text(draw(texts))] if draw(st.booleans()) else []
        ids = draw(st.lists(st.sampled_from(["t1", "t2", "", "é"]), max_size=3))
        blocks += [call(i) for i in ids]
        stop = draw(st.sampled_from(["tool_use", "end_turn", "max_tokens", "pause_turn", "refusal", "what"]))
        folded.add(reply(step, *blocks, stop=stop))
        for index in range(len(ids)):
            add(folded, done(step, index, draw(texts)))
        if draw(st.booleans()):
            folded.add(prompt(draw(st.sampled_from(["more", "again"])), step))
        if draw(st.integers(0, 5)) == 0:
            folded.add(Compacted(step, "[left out]"))
    return folded


@given(journals())
def test_every_journal_gives_a_history_that_a_provider_accepts(folded: State) -> None:
    assert sent(folded) == sent(folded)
