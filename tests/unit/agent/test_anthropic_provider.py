"""The Claude provider, against a Messages API on loopback that refuses what the real one refuses."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest

from endstate_action.agent.providers.anthropic import AnthropicProvider
from endstate_action.agent.providers.base import ContextOverflow, ModelUnknown, Reply, Request
from endstate_action.agent.providers.wire import Assembly, BrokenReply, strict_json
from endstate_action.errors import CredentialsRejected, EndstateError, InputError, Interrupted, ProviderUnavailable
from endstate_action.messages import Message, ToolCall, ToolResult, Usage
from tests.support.messages_api import (
    Events,
    Hangup,
    MessagesApi,
    Refusal,
    Script,
    answer,
    call,
    overloaded,
    rate_limited,
    raw_call,
    thinking,
    too_long,
)

KEY = "sk-ant-api03-very-secret"
TOOLS = tuple({"name": n, "description": n, "input_schema": {"type": "object"}} for n in ("read", "write"))
DONE = answer("Done.")
PAID = {"input_tokens": 70, "cache_read_input_tokens": 20, "cache_creation_input_tokens": 10, "output_tokens": 5}


def request(*messages: Message, **fields: Any) -> Request:
    asked: dict[str, Any] = {
        "model": "claude-sonnet-5-5",
        "system": "Be brief.",
        "tools": TOOLS,
        "max_output_tokens": 1000,
    }
    return Request(**asked | {"messages": messages or (Message.user("hi"),), "finished_steps": 0} | fields)


@dataclass
class Conversation:
    """A provider on a fake API, and what it did besides answering."""

    provider: AnthropicProvider
    pauses: list[float]
    discarded: list[tuple[Usage, str]] = field(default_factory=list)

    def ask(self, *messages: Message, **fields: Any) -> Reply:
        return self.provider.reply(request(*messages, **fields), lambda *what: self.discarded.append(what))


def talk(api: MessagesApi, **options: Any) -> Conversation:
    pauses: list[float] = []
    given: dict[str, Any] = {"sleep": pauses.append, "jitter": lambda: 1.0, "attempts": 3, "stall_s": 20.0}
    return Conversation(AnthropicProvider(KEY, None, api.url, **given | options), pauses)


def events_of(*blocks: tuple[dict[str, Any], list[dict[str, Any]]], stop_reason: str = "end_turn") -> Events:
    """A raw stream: each block's start with its deltas."""
    message = {"id": "msg_1", "model": "m", "usage": {"input_tokens": 1}}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": message}]
    for i, (start, deltas) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": i, "content_block": start})
        events += [{"type": "content_block_delta", "index": i, "delta": d} for d in deltas]
        events.append({"type": "content_block_stop", "index": i})
    events.append({"type": "message_delta", "delta": {"stop_reason": stop_reason}, "usage": {"output_tokens": 2}})
    events.append({"type": "message_stop"})
    return Events(tuple((e["type"], json.dumps(e)) for e in events))


# What comes back.


def test_a_reply_is_what_the_provider_sent():
    sent = (
        thinking("Let me see.", "c2lnbmVk"),
        {"type": "redacted_thinking", "data": "b3BhcXVl"},
        {"type": "text", "text": "Wr\u00efting \U0001f600."},
        call("write", "toolu_1", path="a", content="A\n"),
    )
    with MessagesApi([answer(*sent, id="msg_7", model="claude-sonnet-5-5-20261101", usage=PAID)]) as api:
        reply = talk(api).ask()
    assert reply == Reply("msg_7", "claude-sonnet-5-5-20261101", sent, "tool_use", Usage(70, 5, 20, 10))


def test_what_was_received_is_accepted_when_it_is_sent_back():
    """Thinking to the byte, whole turns, and kinds of block that nobody knows yet."""
    unknown = {"type": "hologram", "depth": {"m": 3}, "extra": None}
    first = answer(thinking("1 < 2 \u2713", "c2ln"), unknown, call("write", "toolu_1", path="a"))
    with MessagesApi([first, DONE]) as api:
        conversation = talk(api)
        reply = conversation.ask()
        back = Message("assistant", reply.blocks)
        conversation.ask(Message.user("hi"), back, Message("user", (ToolResult("toolu_1", "ok").block(),)))
    assert api.refused == []
    assert api.bodies[1]["messages"][1]["content"] == list(reply.blocks)


def test_deltas_of_a_kind_that_nobody_knows_yet_are_kept():
    stream = events_of(
        (
            {"type": "hologram", "beam": "", "new": 1},
            [
                {"type": "beam_delta", "beam": "ab"},
                {"type": "beam_delta", "beam": "cd"},
                {"type": "seal_delta", "seal": {"k": 1}},
            ],
        ),
        (
            {"type": "text", "text": "", "citations": None},
            [{"type": "text_delta", "text": "x"}, {"type": "citations_delta", "citation": {"n": 1}}],
        ),
    )
    with MessagesApi([stream]) as api:
        blocks = talk(api).ask().blocks
    assert blocks == (
        {"type": "hologram", "beam": "abcd", "new": 1, "seal": {"k": 1}},
        {"type": "text", "text": "x", "citations": [{"n": 1}]},
    )


def test_a_new_field_in_a_known_delta_does_not_get_into_the_block():
    """The API would refuse it when the block is sent back."""
    delta = {"type": "thinking_delta", "thinking": "hm", "estimated_tokens": 3}
    signed = {"type": "signature_delta", "signature": "c2ln"}
    with MessagesApi([events_of(({"type": "thinking", "thinking": "", "signature": ""}, [delta, signed]))]) as api:
        assert talk(api).ask().blocks == (thinking("hm", "c2ln"),)


def test_unknown_events_and_pings_are_ignored():
    known = events_of(({"type": "text", "text": ""}, [{"type": "text_delta", "text": "x"}])).events
    noise = (("weather", '{"type": "weather"}'), ("ping", '{"type": "ping"}'))
    with MessagesApi([Events((*noise, *(e for pair in zip(known, noise * 4, strict=False) for e in pair)))]) as api:
        assert talk(api).ask().blocks == ({"type": "text", "text": "x"},)


def test_a_lone_surrogate_does_not_get_in():
    halves = [{"type": "text_delta", "text": "a\ud83d"}, {"type": "text_delta", "text": "b"}]
    given = [{"type": "input_json_delta", "partial_json": '{"k\\ud83d": "v\\ude00"}'}]
    start = {"type": "tool_use", "id": "t", "name": "read", "input": {}}
    with MessagesApi([events_of(({"type": "text", "text": ""}, halves), (start, given))]) as api:
        blocks = talk(api).ask().blocks
    assert blocks[0]["text"] == "a\ufffdb"
    assert blocks[1]["input"] == {"k\ufffd": "v\ufffd"}


def test_an_empty_reply_is_a_reply():
    with MessagesApi([answer(stop_reason="tool_use"), answer(stop_reason="refusal")]) as api:
        conversation = talk(api)
        assert [(r.blocks, r.stop_reason) for r in (conversation.ask(), conversation.ask())] == [
            ((), "tool_use"),
            ((), "refusal"),
        ]


def test_usage_reported_at_the_end_wins_and_absent_counts_keep_their_value():
    assembly = Assembly()
    usage = {"input_tokens": 3, "cache_read_input_tokens": 4, "output_tokens": 1}
    assembly.feed({"type": "message_start", "message": {"id": "m", "model": "m", "usage": usage}})
    late = {"input_tokens": 5, "cache_read_input_tokens": None, "output_tokens": -1, "x": 1}
    assembly.feed({"type": "message_delta", "delta": {}, "usage": late})
    assert assembly.usage == Usage(5, 1, 4, 0)


# Calls that were cut short.


@pytest.mark.parametrize("stop_reason", ["max_tokens", "model_context_window_exceeded"])
@pytest.mark.parametrize(
    ("sent", "arguments"),
    [('{"path": "keep.txt", "cont', {}), ('{"path": "keep.txt"}', {"path": "keep.txt"}), ("", {}), ("[1]", {})],
)
def test_a_call_under_the_output_limit_is_marked_as_cut(stop_reason, sent, arguments):
    with MessagesApi([answer("so", raw_call("write", sent), stop_reason=stop_reason)]) as api:
        reply = talk(api).ask()
    assert (reply.cut, reply.stop_reason, reply.blocks[-1]["input"]) == (True, stop_reason, arguments)


def test_text_under_the_output_limit_is_not_a_cut_call():
    with MessagesApi([answer(call("read", "t1", path="a"), "and then", stop_reason="max_tokens")]) as api:
        assert not talk(api).ask().cut


def test_a_whole_call_is_not_marked_as_cut():
    with MessagesApi([answer(call("read", path="a"))]) as api:
        assert not talk(api).ask().cut


def test_thinking_that_was_cut_short_is_dropped_since_it_can_never_be_sent_back():
    with MessagesApi([answer("so", thinking("because", ""), stop_reason="max_tokens"), DONE]) as api:
        conversation = talk(api)
        reply = conversation.ask()
        conversation.ask(Message.user("hi"), Message("assistant", reply.blocks), Message.user("go on"))
    assert reply.blocks == ({"type": "text", "text": "so"},)
    assert api.refused == []


# What is tried again.

BROKEN: dict[str, Script] = {
    "cut off": DONE.dropped(after=5),
    "ended early": DONE.ended(after=5),
    "overloaded after half a call": answer(call("write", path="a", content="b")).failed(after=5),
    "an error of a kind nobody knows": DONE.failed(after=3, kind="new_error"),
    "rate limited in the stream": DONE.failed(after=3, kind="rate_limit_error"),
    "unreadable input": answer(raw_call("write", '{"path": "a'), stop_reason="tool_use"),
    "input that is no object": answer(raw_call("write", "[1]"), stop_reason="tool_use"),
    "input that is not a number": answer(raw_call("write", '{"n": NaN}')),
    "input without end": answer(raw_call("write", '{"n": 1e999}')),
    "input too deep": answer(raw_call("write", '{"n": ' + "[" * 5000 + "]" * 5000 + "}")),
    "a call without a name": events_of(({"type": "tool_use", "id": "t", "input": {}}, [])),
    "text that is none": events_of(({"type": "text", "text": 5}, [])),
    "no stop reason": Events(events_of().events[:1] + events_of().events[2:]),
    "a delta without its block": Events(
        (
            *events_of().events[:1],
            ("content_block_delta", '{"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta"}}'),
        )
    ),
    "a block begun twice": Events(
        (
            *events_of().events[:1],
            *[("content_block_start", '{"type": "content_block_start", "index": 0, "content_block": {"type": "text"}}')]
            * 2,
        )
    ),
    "two starts": Events(events_of().events[:1] * 2),
    "an event that is no JSON": Events((*events_of().events[:1], ("content_block_start", "{"))),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_stream_is_discarded_whole_and_asked_for_again(what):
    with MessagesApi([BROKEN[what], DONE]) as api:
        conversation = talk(api)
        assert conversation.ask().blocks == ({"type": "text", "text": "Done."},)
    assert (len(api.requests), len(conversation.discarded), conversation.pauses) == (2, 1, [1.0])


def test_what_a_discarded_reply_cost_is_reported():
    with MessagesApi([answer("Done.", usage=PAID).failed(after=6), DONE]) as api:
        conversation = talk(api)
        conversation.ask()
    ((usage, reason),) = conversation.discarded
    assert usage == Usage(70, 1, 20, 10)
    assert "overloaded_error" in reason


UNBEGUN: dict[str, Script] = {
    "429": rate_limited(),
    "529": overloaded(),
    "500": Refusal(500),
    "408": Refusal(408),
    "a proxy's page": Refusal(502, body="<html>bad gateway</html>"),
    "a page under 200": Refusal(200, body="<html>please log in</html>"),
    "hung up": Hangup(),
    "cut off before the start": DONE.dropped(after=0),
}


@pytest.mark.parametrize("what", UNBEGUN)
def test_a_failure_before_the_reply_began_is_tried_again_and_costs_nothing(what):
    with MessagesApi([UNBEGUN[what], DONE]) as api:
        conversation = talk(api)
        assert conversation.ask().blocks == ({"type": "text", "text": "Done."},)
    assert (conversation.discarded, len(conversation.pauses)) == ([], 1)


@pytest.mark.parametrize("after", [0, 5])
def test_a_stalled_connection_is_given_up_and_tried_again(after):
    with MessagesApi([DONE.stalled(after=after), DONE]) as api:
        assert talk(api, stall_s=0.3).ask().blocks == ({"type": "text", "text": "Done."},)
    assert len(api.requests) == 2


def test_a_stream_that_only_ever_pings_is_given_up():
    seconds = iter(range(0, 10**6, 3000))
    with MessagesApi([Events((("ping", '{"type": "ping"}'),) * 5), DONE]) as api:
        conversation = talk(api, clock=lambda: next(seconds), reply_s=10_000, attempts=1)
        with pytest.raises(ProviderUnavailable, match="not complete after 10000 s"):
            conversation.ask()


@pytest.mark.parametrize(
    ("headers", "pause"),
    [
        ({"retry_after": "7"}, 7.0),
        ({"retry_after_ms": "250", "retry_after": "7"}, 0.25),
        ({"retry_after": "86400"}, 120.0),
        ({"retry_after": "nan"}, 1.0),
        ({"retry_after": "-1"}, 1.0),
        ({"retry_after": "Wed, 21 Oct 2026 07:28:00 GMT"}, 1.0),
        ({}, 1.0),
    ],
)
def test_the_pause_is_what_the_provider_asks_for_within_reason(headers, pause):
    with MessagesApi([rate_limited(**headers), DONE]) as api:
        conversation = talk(api)
        conversation.ask()
    assert conversation.pauses == [pause]


def test_pauses_double_with_jitter_up_to_a_minute():
    with MessagesApi([overloaded()] * 9) as api:
        conversation = talk(api, attempts=9, jitter=lambda: 0.0)
        with pytest.raises(ProviderUnavailable):
            conversation.ask()
    assert conversation.pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_retries_are_bounded_and_the_end_says_what_is_still_true():
    with MessagesApi([overloaded()] * 4) as api, pytest.raises(ProviderUnavailable) as end:
        talk(api).ask()
    assert len(api.requests) == 3
    assert "3 attempts" in str(end.value)
    assert "529 overloaded_error: Overloaded" in str(end.value)
    assert "what is recorded so far is kept" in str(end.value)
    assert "--resume" in end.value.hint
    assert end.value.exit_code == 75


def test_a_reply_that_is_broken_every_time_ends_as_unavailable():
    with MessagesApi([BROKEN["unreadable input"]] * 3) as api:
        conversation = talk(api)
        with pytest.raises(ProviderUnavailable, match="not a readable JSON object"):
            conversation.ask()
    assert len(conversation.discarded) == 3


def test_nobody_listening_is_unavailable():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    provider = AnthropicProvider(KEY, None, f"http://127.0.0.1:{port}", sleep=lambda _: None, attempts=2)
    with pytest.raises(ProviderUnavailable, match="Connection"):
        provider.reply(request(), lambda *_: None)


# What is not.


@pytest.mark.parametrize(
    ("refusal", "error", "words"),
    [
        (Refusal(401, "invalid x-api-key", "authentication_error"), CredentialsRejected, "invalid x-api-key"),
        (Refusal(403, "not for you", "permission_error"), CredentialsRejected, "not for you"),
        (Refusal(404, "model: claude-1", "not_found_error"), ModelUnknown, "claude-1"),
        (Refusal(404, body="<html>nothing here</html>"), InputError, "no Messages API"),
        (too_long(), ContextOverflow, "prompt is too long"),
        (
            Refusal(
                400, "input length and `max_tokens` exceed context limit: 1 + 2 > 2, decrease", "invalid_request_error"
            ),
            ContextOverflow,
            "exceed context limit",
        ),
        (Refusal(413, "Request exceeds the maximum size", "request_too_large"), ContextOverflow, "maximum size"),
        (Refusal(413, body="<html>too large</html>"), ContextOverflow, "too large"),
        (Refusal(400, "Your credit balance is too low", "invalid_request_error"), InputError, "want of credit"),
        (Refusal(402, "pay", "billing_error"), InputError, "want of credit"),
        (Refusal(400, "tools.0.name: bad", "invalid_request_error"), InputError, "tools.0.name: bad"),
        (Refusal(422, "what?", "invalid_request_error"), InputError, "what?"),
    ],
)
def test_an_error_that_no_retry_mends_is_named_at_once(refusal, error, words):
    with MessagesApi([refusal, DONE]) as api:
        conversation = talk(api)
        with pytest.raises(error, match=words) as end:
            conversation.ask()
    assert (type(end.value), len(api.requests), conversation.pauses) == (error, 1, [])
    assert not isinstance(end.value, EndstateError) or end.value.hint


def test_a_spend_limit_is_not_waited_for():
    told = {"type": "rate_limit_error", "message": "no", "details": {"error_code": "enforced_spend_limit_reached"}}
    refusal = Refusal(429, body=json.dumps({"type": "error", "error": told}))
    with MessagesApi([refusal]) as api, pytest.raises(InputError, match="want of credit"):
        talk(api).ask()


@pytest.mark.parametrize(
    ("kind", "error"),
    [("authentication_error", CredentialsRejected), ("invalid_request_error", InputError)],
)
def test_an_error_event_in_the_stream_means_what_its_type_says(kind, error):
    with MessagesApi([DONE.failed(after=3, kind=kind)]) as api:
        conversation = talk(api)
        with pytest.raises(error):
            conversation.ask()
    assert len(conversation.discarded) == 1


def test_the_key_is_never_in_a_message():
    echo = f"bad key\n{KEY}\x1b[31m " + "x" * 5000
    with MessagesApi([Refusal(401, echo, "authentication_error"), *[Refusal(500, echo)] * 3]) as api:
        conversation = talk(api)
        for error in (CredentialsRejected, ProviderUnavailable):
            with pytest.raises(error) as end:
                conversation.ask()
            told = f"{end.value} {end.value.hint} {end.value!r} {conversation.provider._endpoint!r}"
            assert KEY not in told
            assert "bad key *** ?" not in told  # one line, printable:
            assert "\n" not in str(end.value)
            assert "\x1b" not in told
            assert len(str(end.value)) < 600


# What ends the process.


@pytest.fixture
def a_signal_that_raises():
    """Arms SIGUSR1 with an exception; the function that comes back sends it a moment later, from outside."""
    before = signal.getsignal(signal.SIGUSR1)

    def arm(raised: BaseException) -> Callable[[], None]:
        def on_signal(*_: object) -> None:
            raise raised

        signal.signal(signal.SIGUSR1, on_signal)
        return lambda: threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()

    yield arm
    signal.signal(signal.SIGUSR1, before)


ENDINGS = [KeyboardInterrupt(), Interrupted("a signal"), RuntimeError("a handler's own")]


@pytest.mark.parametrize("raised", ENDINGS, ids=repr)
def test_a_signal_ends_a_request_that_waits_for_its_answer(a_signal_that_raises, raised):
    """The SDK would take a handler's exception for a failed connection."""
    send = a_signal_that_raises(raised)
    with MessagesApi([DONE.stalled(after=0)] * 3, on_request=lambda _: send()) as api:
        conversation = talk(api)
        conversation.provider.warm_up()
        with pytest.raises(type(raised)) as end:
            conversation.ask()
    assert end.value is raised
    assert (len(api.requests), conversation.pauses, conversation.discarded) == (1, [], [])


@pytest.mark.parametrize("raised", ENDINGS, ids=repr)
def test_a_signal_ends_a_stream_and_what_it_cost_is_still_reported(a_signal_that_raises, raised):
    send = a_signal_that_raises(raised)
    ticks = count()

    def clock() -> float:
        # Read once at the start, then at each event: the fifth is the last that comes.
        if next(ticks) == 5:
            send()
        return 0.0

    with MessagesApi([answer("Done.", usage=PAID).stalled(after=5)] * 3) as api:
        conversation = talk(api, clock=clock)
        with pytest.raises(type(raised)) as end:
            conversation.ask()
    assert end.value is raised
    assert (len(api.requests), conversation.pauses) == (1, [])
    assert [usage for usage, _ in conversation.discarded] == [Usage(70, 1, 20, 10)]


# What is asked.


def _sent(*messages: Message, **fields: Any) -> dict[str, Any]:
    with MessagesApi([DONE]) as api:
        talk(api).ask(*messages, **fields)
    assert api.refused == []
    return api.bodies[0]


MARK = {"type": "ephemeral"}
HISTORY = (
    Message.user("hi"),
    Message.assistant("reading", ToolCall("t1", "read", {"path": "a"}), ToolCall("t2", "read", {"path": "b"})),
    Message("user", (ToolResult("t1", "A").block(), ToolResult("t2", "B").block())),
    Message.assistant("again", ToolCall("t3", "read", {"path": "c"})),
    Message("user", (ToolResult("t3", "no", is_error=True).block(),)),
)


def test_the_request_carries_what_was_asked():
    body = _sent(*HISTORY)
    assert (body["model"], body["max_tokens"], body["stream"]) == ("claude-sonnet-5-5", 1000, True)
    assert body["system"] == [{"type": "text", "text": "Be brief.", "cache_control": MARK}]
    assert body["tools"] == [TOOLS[0], {**TOOLS[1], "cache_control": MARK}]
    assert [m["role"] for m in body["messages"]] == ["user", "assistant", "user", "assistant", "user"]
    assert body["messages"][1]["content"] == list(HISTORY[1].blocks)


def test_the_last_two_user_turns_are_cached_on_copies():
    body = _sent(*HISTORY)
    marked = [[b.get("cache_control") for b in m["content"]] for m in body["messages"]]
    assert marked == [[None], [None] * 3, [None, MARK], [None] * 2, [MARK]]
    assert not any("cache_control" in b for m in HISTORY for b in m.blocks)
    assert "cache_control" not in TOOLS[1]


def test_an_empty_system_prompt_and_no_tools_are_left_out():
    assert _sent(system=" \u200b", tools=()).keys().isdisjoint({"system", "tools"})


def test_a_lone_surrogate_in_an_old_record_is_healed_on_the_way_out():
    body = _sent(Message.user("a\ud83d"), system="s\ud83d")
    assert body["messages"][0]["content"][0]["text"] == "a\ufffd"
    assert body["system"][0]["text"] == "s\ufffd"


# Where it is asked.


@pytest.mark.parametrize(
    ("key", "token", "header"),
    [(KEY, None, KEY), (f" {KEY}\n", "other", KEY), (None, "bearer-token", "bearer-token"), ("", " tok\n", "tok")],
)
def test_a_key_wins_over_a_token_and_line_breaks_are_not_part_of_it(key, token, header):
    with MessagesApi([DONE], key=header) as api:
        AnthropicProvider(key, token, api.url).reply(request(), lambda *_: None)
    assert len(api.requests) == 1


@pytest.mark.parametrize("key", [None, "", "  ", "sk ant", "sk-\u00e9", "sk-\nx"])
def test_no_usable_key_is_said_before_anything_is_asked_and_not_repeated(key):
    with pytest.raises(InputError, match="No model was asked") as refused:
        AnthropicProvider(key, None, None)
    assert not key or not key.strip() or key not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.org",
        "example.org",
        "https://",
        "https://user:hunter2@example.org",
        "https://hunter2@example.org",
        "https://example.org/?hunter2",
        "https://example.org/#hunter2",
        "https://exa mple.org",
        "https://example.org:99999",
        "https://[::1",
        "http://\u00e9xample.org",
    ],
)
def test_an_address_that_cannot_be_one_is_refused_without_repeating_it(url):
    with pytest.raises(InputError, match="base-url") as refused:
        AnthropicProvider(KEY, None, url)
    assert "hunter2" not in str(refused.value) + refused.value.hint


def test_a_path_in_the_address_is_kept():
    with MessagesApi([]) as api, pytest.raises(InputError, match="no Messages API"):
        AnthropicProvider(KEY, None, f"{api.url}/v1/").reply(request(), lambda *_: None)


def test_the_process_environment_is_not_consulted(monkeypatch):
    for name in ("ANTHROPIC_BASE_URL", "HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "other")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "other")
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere")
    with MessagesApi([DONE], key=KEY) as api:
        assert talk(api).ask().stop_reason == "end_turn"


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
@pytest.mark.parametrize("scheme", ["http://", ""])
def test_a_proxy_from_the_given_environment_is_used(name, scheme):
    with MessagesApi([DONE]) as proxy:
        env = {name: scheme + proxy.url.removeprefix("http://"), "NO_PROXY": "other.invalid"}
        AnthropicProvider(KEY, None, "http://api.invalid", env=env).reply(request(), lambda *_: None)
    assert proxy.requests[0].headers["host"] == "api.invalid"


@pytest.mark.parametrize("exempt", ["*", "api.invalid", ".invalid", "invalid", "x, API.invalid"])
def test_a_host_under_no_proxy_is_reached_directly(exempt):
    env = {"HTTP_PROXY": "http://127.0.0.1:9", "NO_PROXY": exempt}
    assert AnthropicProvider(KEY, None, "http://api.invalid", env=env)._endpoint.proxy is None


def test_loopback_is_never_reached_through_a_proxy():
    with MessagesApi([DONE]) as api:
        assert talk(api, env={"HTTP_PROXY": "http://127.0.0.1:9"}).ask().stop_reason == "end_turn"


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:9", "http://", "http://pass:hunter2@:1x"])
def test_a_proxy_that_cannot_be_used_is_refused_without_repeating_it(proxy):
    with pytest.raises(InputError, match="the proxy") as refused:
        AnthropicProvider(KEY, None, "https://api.invalid", env={"HTTPS_PROXY": proxy})
    assert "hunter2" not in str(refused.value)


def test_a_certificate_file_that_cannot_be_read_is_refused(tmp_path):
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    for file in (empty, tmp_path / "absent.pem"):
        with pytest.raises(InputError, match="SSL_CERT_FILE"):
            AnthropicProvider(KEY, None, None, env={"SSL_CERT_FILE": str(file)})


# When the SDK is loaded.


def test_the_sdk_is_loaded_on_first_use_only():
    code = """
import sys
from endstate_action.agent.providers.anthropic import AnthropicProvider
provider = AnthropicProvider("k", None, None)
assert not {"anthropic", "httpx2", "ssl"} & set(sys.modules), sorted(sys.modules)
provider.warm_up()
assert "anthropic.resources.messages" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env={**os.environ, "PYTHONPATH": _source()})


def _source() -> str:
    return os.pathsep.join(path for path in sys.path if path)


def test_it_can_be_warmed_up_in_another_thread_while_it_is_asked():
    with MessagesApi([DONE]) as api:
        conversation = talk(api)
        warming = [threading.Thread(target=conversation.provider.warm_up) for _ in range(3)]
        for thread in warming:
            thread.start()
        assert conversation.ask().stop_reason == "end_turn"
        for thread in warming:
            thread.join()


# The assembly by itself.


def _fed(events: Events) -> Assembly:
    assembly = Assembly()
    for _, data in events.events:
        assembly.feed(strict_json(data))
    return assembly


@pytest.mark.parametrize("cut_at", range(1, 7))
def test_no_part_of_a_stream_is_a_reply(cut_at):
    whole = events_of(({"type": "text", "text": ""}, [{"type": "text_delta", "text": "x"}])).events
    assert _fed(Events(whole)).reply().blocks == ({"type": "text", "text": "x"},)
    with pytest.raises(BrokenReply):
        _fed(Events(whole[:-cut_at])).reply()


@pytest.mark.parametrize("event", [None, 5, "x", [], {}, {"type": 5}, {"type": "message_start", "message": 1}])
def test_an_event_of_any_shape_is_ignored_or_refused(event):
    assembly = Assembly()
    feed: Callable[[object], None] = assembly.feed
    if isinstance(event, dict) and event.get("type") == "message_start":
        with pytest.raises(BrokenReply):
            feed(event)
    else:
        feed(event)
    assert not assembly.started


def test_each_further_attempt_is_told_with_its_reason_and_its_time():
    told: list[str] = []
    with MessagesApi([overloaded(), DONE]) as api:
        talk(api, on_retry=told.append, backoff_s=8.0).ask()
        host = api.url.removeprefix("http://")

    assert [line.startswith(f"No reply from {host} (529 overloaded_error") for line in told] == [True]
    assert told[0].endswith("attempt 2 of 3 in 8 s.")


def test_the_sdk_is_loaded_by_one_thread_at_a_time():
    """Its parts load on first use and import each other; a second thread may see none of them half made."""
    code = """
import sys, threading, time, types

class Client:
    at_once = most = 0
    def __init__(self, **given): pass
    @property
    def messages(self):
        Client.at_once += 1
        Client.most = max(Client.most, Client.at_once)
        time.sleep(0.5)
        Client.at_once -= 1

sdk, transport = types.ModuleType("anthropic"), types.ModuleType("httpx2")
sdk.Anthropic, sdk.Timeout, sdk.DefaultHttpxClient, transport.Limits = Client, *[lambda *a, **k: None] * 3
sys.modules |= {"anthropic": sdk, "httpx2": transport}
from endstate_action.agent.providers.anthropic import AnthropicProvider
provider = AnthropicProvider("k" * 20, None, None)
threads = [threading.Thread(target=provider.warm_up) for _ in range(3)]
for t in threads: t.start()
for t in threads: t.join()
print(Client.most, provider._sdk() is provider._client)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "1 True\n", done.stderr
