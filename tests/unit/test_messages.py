"""The values of the conversation: nothing blank, nothing that strict UTF-8 cannot carry."""

from __future__ import annotations

import os
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endstate_action.messages import (
    Message,
    ToolCall,
    ToolResult,
    dollars,
    is_blank,
    scrub,
    scrub_json,
    tool_calls,
)

INVISIBLE = ["", " \n\t", "\u200b", "\ufeff\u00a0", "\u2028\x00", "\u3164", "\ufe0f\u034f", "\u115f\u1160\U000e0100"]


@pytest.mark.parametrize("text", INVISIBLE)
def test_a_result_without_visible_text_is_never_an_empty_block(text):
    assert ToolResult("call", text).block()["content"] == "(no output)"


@pytest.mark.parametrize("text", ["a", " a ", "\u2800", "\u200ba", "0"])
def test_text_that_a_person_can_see_is_kept(text):
    assert ToolResult("call", text).block()["content"] == text


@pytest.mark.parametrize("text", INVISIBLE)
def test_an_assistant_that_only_calls_has_no_text_block(text):
    message = Message.assistant(text, ToolCall("1", "read", {"path": "a"}))
    assert [block["type"] for block in message.blocks] == ["tool_use"]
    assert message.text == ""


def test_calls_come_back_in_their_order():
    calls = (ToolCall("1", "read", {"path": "a"}), ToolCall("2", "bash", {"command": "true"}))
    assert Message.assistant("Two things.", *calls).tool_calls == calls


@pytest.mark.parametrize("arguments", [None, [], "text", 3])
def test_a_call_whose_input_is_no_object_has_no_arguments(arguments):
    assert tool_calls([{"type": "tool_use", "id": "1", "name": "read", "input": arguments}])[0].arguments == {}


@given(st.text(st.characters(codec=None)))
def test_what_is_scrubbed_is_strict_utf_8_and_scrubbing_twice_changes_nothing(text):
    once = scrub(text)
    once.encode("utf-8", "strict")
    assert scrub(once) == once


def test_scrubbing_reaches_keys_and_nested_values():
    assert scrub_json({"\ud800": [{"a": "\udfff"}, 1, None, True]}) == {"\ufffd": [{"a": "\ufffd"}, 1, None, True]}


def test_what_is_scrubbed_names_no_file_that_was_not_meant(tmp_path):
    for name in ("fa", "fb"):
        (tmp_path / name).touch()
    subprocess.run(["bash", "-c", scrub("rm -f f\ud83d [\udc00]")], cwd=tmp_path, check=True)
    assert sorted(os.listdir(tmp_path)) == ["fa", "fb"]


def test_nothing_at_all_is_blank():
    assert is_blank("")


@pytest.mark.parametrize(
    ("usd", "said"),
    [
        ("0", "$0.00"),
        ("5", "$5.00"),
        ("0.01", "$0.01"),
        ("0.00999", "$0.01"),
        ("0.001", "$0.001"),
        ("0.00123", "$0.0012"),
        ("0.0000004", "$0.0000004"),
    ],
)
def test_money_has_as_many_digits_as_it_takes(usd, said):
    assert dollars(usd) == said
