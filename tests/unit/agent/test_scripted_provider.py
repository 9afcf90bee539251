"""The scripted provider: the same script and step, the same reply; a script that is wrong says where."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

from endstate_action.agent.providers import scripted
from endstate_action.agent.providers.base import Reply, Request
from endstate_action.agent.providers.scripted import ScriptedProvider, load_script, parse_script
from endstate_action.errors import InputError
from endstate_action.messages import Message, Usage


def play(script: Any, step: int, **options: Any) -> Reply:
    request = Request("the-model", "", (), (Message.user("hi"),), 100, step)
    return ScriptedProvider(parse_script(script), **options).reply(request, lambda *_: pytest.fail("discarded"))


SCRIPT = {
    "replies": [
        {"text": "First.", "calls": [{"tool": "write", "arguments": {"path": "a"}}, {"tool": "read", "id": "mine"}]},
        {
            "thinking": "Hm.",
            "text": "Second.",
            "model": "another",
            "usage": {"input_tokens": 3, "cache_read_tokens": 2},
        },
        {},
    ]
}


def test_a_reply_holds_text_and_calls_in_order():
    assert play(SCRIPT, 0) == Reply(
        "msg_scripted_0",
        "the-model",
        (
            {"type": "text", "text": "First."},
            {"type": "tool_use", "id": "call_0_0", "name": "write", "input": {"path": "a"}},
            {"type": "tool_use", "id": "mine", "name": "read", "input": {}},
        ),
        "tool_use",
        Usage(),
    )


def test_a_reply_may_think_name_its_model_and_cost_something():
    reply = play(SCRIPT, 1)
    assert [b["type"] for b in reply.blocks] == ["thinking", "text"]
    assert (reply.model, reply.stop_reason, reply.usage) == ("another", "end_turn", Usage(3, 0, 2, 0))


def test_a_reply_may_be_empty():
    assert play(SCRIPT, 2).blocks == ()


@pytest.mark.parametrize("step", [3, 99])
def test_past_its_end_the_script_ends_the_turn(step):
    reply = play(SCRIPT, step)
    assert (reply.message_id, reply.stop_reason) == (f"msg_scripted_{step}", "end_turn")
    assert reply.blocks == ({"type": "text", "text": "The script has ended."},)


def test_the_reply_follows_from_the_step_alone():
    """So that a resumed session goes on where it was, in a process of its own."""
    assert [play(SCRIPT, n) for n in (1, 0, 1)] == [play(SCRIPT, n) for n in (1, 0, 1)]


def test_ids_never_repeat_in_a_session():
    script = {"replies": [{"calls": [{"tool": "read"}, {"tool": "read"}]}] * 3}
    replies = [play(script, n) for n in range(3)]
    ids = [b["id"] for r in replies for b in r.blocks] + [r.message_id for r in replies]
    assert len(set(ids)) == len(ids)


def test_under_max_tokens_the_last_call_is_cut():
    script = {"replies": [{"calls": [{"tool": "write"}], "stop_reason": "max_tokens"}]}
    assert play(script, 0).cut
    assert not play(SCRIPT, 0).cut


def test_a_reply_comes_after_its_delay():
    pauses: list[float] = []
    play({"replies": [{"delay_s": 1.5}]}, 0, sleep=pauses.append)
    assert pauses == [1.5]


def test_a_script_is_read_from_a_file(tmp_path):
    file = tmp_path / "script.json"
    file.write_text(json.dumps(SCRIPT))
    assert load_script(file) == parse_script(SCRIPT)


def test_the_example_in_the_documentation_is_a_script(tmp_path):
    example = re.search(r"JSON:\n\n(.*?)\n\n", str(scripted.__doc__), re.DOTALL)
    assert example is not None
    file = tmp_path / "script.json"
    file.write_text(example[1])
    assert len(load_script(file).replies) == 2


def test_every_key_is_documented():
    documented = set(re.findall(r"^    (\w+) ", str(scripted.__doc__), re.MULTILINE))
    tree = ast.parse(Path(scripted.__file__).read_text(encoding="utf-8"))
    keys = next(n.value for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "_REPLY_KEYS")
    assert documented == set(ast.literal_eval(keys))


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ([], "the whole must be an object"),
        ({}, "replies must be a list"),
        ({"reply": []}, "unknown key 'reply'; perhaps 'replies' is meant"),
        ({"replies": {}}, "replies must be a list"),
        ({"replies": ["x"]}, r"replies\[0\] must be an object"),
        ({"replies": [{}, {"txet": "x"}]}, r"replies\[1\] has an unknown key 'txet'; perhaps 'text' is meant"),
        ({"replies": [{"zzz": 1}]}, "known are text, calls"),
        ({"replies": [{"text": 1}]}, r"replies\[0\]\.text must be text"),
        ({"replies": [{"stop_reason": None}]}, r"replies\[0\]\.stop_reason must be text"),
        ({"replies": [{"calls": {}}]}, r"replies\[0\]\.calls must be a list"),
        ({"replies": [{"calls": [{}]}]}, r"replies\[0\]\.calls\[0\]\.tool must be text"),
        ({"replies": [{"calls": [{"tool": ""}]}]}, r"calls\[0\]\.tool is empty"),
        ({"replies": [{"calls": [{"tool": "a", "input": {}}]}]}, "unknown key 'input'"),
        ({"replies": [{"calls": [{"tool": "a", "arguments": []}]}]}, r"arguments must be an object"),
        ({"replies": [{"calls": [{"tool": "a", "id": 1}]}]}, r"\.id must be text"),
        ({"replies": [{"usage": {"tokens": 1}}]}, "unknown key 'tokens'"),
        ({"replies": [{"usage": {"input_tokens": -1}}]}, "usage.input_tokens must be a whole number"),
        ({"replies": [{"usage": {"input_tokens": True}}]}, "usage.input_tokens must be a whole number"),
        ({"replies": [{"delay_s": -1}]}, "delay_s must be a number from 0"),
        ({"replies": [{"delay_s": 10**400}]}, "delay_s must be a number from 0"),
        ({"replies": [{"delay_s": "1"}]}, "delay_s must be a number from 0"),
    ],
)
def test_a_script_that_is_wrong_is_refused_with_the_place(script, words):
    with pytest.raises(InputError, match=words) as refused:
        parse_script(script)
    assert "Nothing was run" in str(refused.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"replies": [\n  {"text": }\n]}', "line 2, column 12"),
        (b"", "line 1, column 1"),
        (b'{"replies": ["\xff"]}', "not JSON in UTF-8"),
        (b'{"replies": [NaN]}', "not JSON in UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_a_file_that_is_no_json_is_refused_with_the_line(tmp_path, content, words):
    file = tmp_path / "script.json"
    file.write_bytes(content)
    with pytest.raises(InputError, match=words) as refused:
        load_script(file)
    assert "script.json" in str(refused.value)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    for path in (tmp_path / "absent.json", tmp_path):
        with pytest.raises(InputError, match="cannot be read"):
            load_script(path)


def test_half_a_surrogate_pair_does_not_get_in(tmp_path):
    file = tmp_path / "script.json"
    file.write_text('{"replies": [{"text": "a\\ud83d"}]}')
    assert load_script(file).replies[0].text == "a\ufffd"
