"""The fake Messages API refuses what the real one refuses, and answers as it does: the judge is judged first."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

import anthropic
import httpx2
import pytest

from tests.support.messages_api import (
    Events,
    Hangup,
    MessagesApi,
    Refusal,
    answer,
    call,
    overloaded,
    rate_limited,
    raw_call,
    text,
    thinking,
    too_long,
)

HEADERS = {"x-api-key": "k", "anthropic-version": "2023-06-01", "content-type": "application/json"}
TOOL = {"name": "write", "description": "w", "input_schema": {"type": "object", "properties": {}}}
ASKED = {"type": "tool_use", "id": "t1", "name": "write", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "ok"}
MARK = {"cache_control": {"type": "ephemeral"}}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks) or "hi"}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks) or "ho"}


def body(*messages: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 10, "tools": [TOOL], "messages": list(messages) or [user()]} | fields


def post(api: MessagesApi, raw: bytes, headers: dict[str, str] | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection(urlsplit(api.url).netloc, timeout=30)
    connection.request("POST", "/v1/messages", raw, HEADERS if headers is None else headers)
    response = connection.getresponse()
    told = response.read().decode()
    connection.close()
    return response.status, told


def client(api: MessagesApi, timeout: float = 30) -> anthropic.Anthropic:
    return anthropic.Anthropic(api_key="k", base_url=api.url, max_retries=0, timeout=timeout)


def events(api: MessagesApi, timeout: float = 30) -> list[Any]:
    """All events of one streamed reply, as the SDK sees them."""
    with client(api, timeout) as sdk, sdk.messages.create(**body(), stream=True) as stream:
        return list(stream)


@pytest.fixture(scope="module")
def strict():
    """One server for the rules, which are judged before any reply is chosen."""
    with MessagesApi(lambda _body, _number: answer("fine")) as api:
        yield api


REFUSED = {
    "a field it does not know": ("temperatur: Extra inputs are not permitted", body(temperatur=1)),
    "no model": ("model: Field required", body(model="")),
    "no token to answer with": ("max_tokens: must be an integer of at least 1", body(max_tokens=0)),
    "no message": ("messages: at least one message is required", body() | {"messages": []}),
    "a first message that is not the user's": ("messages.0.role: must be user", body(assistant(), user())),
    "two user messages in a row": ("messages.1.role: must be assistant", body(user(), user())),
    "an unknown role": ("messages.0.role: must be user", body({"role": "system", "content": "hi"})),
    "a last message that is not the user's": (
        "This model does not support assistant message prefill",
        body(user(), assistant()),
    ),
    "empty content": (
        "messages.1: all messages must have non-empty content",
        body(user(), {"role": "assistant", "content": []}, user()),
    ),
    "an empty text": (
        "messages.0.content.0: text content blocks must contain non-whitespace text",
        body(user(text(""))),
    ),
    "a text of white space": (
        "messages.0.content.0: text content blocks must contain non-whitespace text",
        body(user(text(" \n\t"))),
    ),
    "a text of zero-width space": (
        "messages.0.content.0: text content blocks must contain non-whitespace text",
        body(user(text("\u200b"))),
    ),
    "a text of byte order mark": (
        "messages.0.content.0: text content blocks must contain non-whitespace text",
        body(user(text("\ufeff"))),
    ),
    "a text of soft hyphen": (
        "messages.0.content.0: text content blocks must contain non-whitespace text",
        body(user(text("\u00ad"))),
    ),
    "an empty string": (
        "messages.0.content.0: text content blocks must contain non-whitespace text",
        body({"role": "user", "content": ""}),
    ),
    "an empty system prompt": (
        "system.0: text content blocks must contain non-whitespace text",
        body(system=[text(" ")]),
    ),
    "a block without a type": ("messages.0.content.0.type: Field required", body(user({"text": "hi"}))),
    "an unknown field in a block": (
        "messages.0.content.0.text.caller: Extra inputs are not permitted",
        body(user({"type": "text", "text": "hi", "caller": "x"})),
    ),
    "a block of a kind that it never sent": (
        "messages.1.content.0: `hologram` blocks must remain as they were in the original response",
        body(user(), assistant({"type": "hologram"}), user()),
    ),
    "an unanswered call": (
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: t1",
        body(user(), assistant(ASKED), user()),
    ),
    "an unanswered call in the middle": (
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: t1",
        body(user(), assistant(ASKED), user(), assistant(), user()),
    ),
    "a result after a text": (
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: t1",
        body(user(), assistant(ASKED), user(text("so"), RESULT)),
    ),
    "a result a turn too late": (
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: t1",
        body(user(), assistant(ASKED), user(), assistant(), user(RESULT)),
    ),
    "one of two calls unanswered": (
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: t2",
        body(user(), assistant(ASKED, ASKED | {"id": "t2"}), user(RESULT)),
    ),
    "a result that nobody asked for": (
        "messages.2: `tool_result` t1 has no `tool_use` in the previous message",
        body(user(), assistant(), user(RESULT)),
    ),
    "a result in the first message": (
        "messages.0: `tool_result` t1 has no `tool_use` in the previous message",
        body(user(RESULT)),
    ),
    "two results for one call": (
        "messages.2: each tool_use must have a single result",
        body(user(), assistant(ASKED), user(RESULT, RESULT)),
    ),
    "an empty result": (
        "messages.2.content.0.tool_result.content.0: text content blocks must contain non-whitespace text",
        body(user(), assistant(ASKED), user(RESULT | {"content": ""})),
    ),
    "a result without content": (
        "messages.2.content.0.tool_result.content: must be text or a list of text blocks that is not empty",
        body(user(), assistant(ASKED), user(RESULT | {"content": []})),
    ),
    "a repeated id in one turn": (
        "messages.1.content.1: `tool_use` ids must be unique",
        body(user(), assistant(ASKED, ASKED), user(RESULT)),
    ),
    "a repeated id in a later turn": (
        "messages.3.content.0: `tool_use` ids must be unique",
        body(user(), assistant(ASKED), user(RESULT), assistant(ASKED), user(RESULT)),
    ),
    "an id that is none": (
        "messages.1.content.0.tool_use.id: does not match [A-Za-z0-9_-]{1,64}",
        body(user(), assistant(ASKED | {"id": "a b"}), user(RESULT | {"tool_use_id": "a b"})),
    ),
    "a call by the user": (
        "messages.0.content.0: `tool_use` blocks are not allowed in user messages",
        body(user(ASKED)),
    ),
    "a result by the assistant": (
        "messages.1.content.0: `tool_result` blocks are not allowed in assistant messages",
        body(user(), assistant(RESULT), user()),
    ),
    "an input that is no object": (
        "messages.1.content.0.tool_use.input: Input should be a valid dictionary",
        body(user(), assistant(ASKED | {"input": "x"}), user(RESULT)),
    ),
    "calls without tools": (
        "tools: requests with tool_use or tool_result blocks must define tools",
        body(user(), assistant(ASKED), user(RESULT), tools=[]),
    ),
    "two tools of one name": ("tools: Tool names must be unique", body(tools=[TOOL, TOOL])),
    "a tool without a schema": ("tools.0.input_schema.type: must be object", body(tools=[{"name": "write"}])),
    "five breakpoints": (
        "A maximum of 4 blocks with cache_control",
        body(user(*[text("hi") | MARK] * 4), system=[text("s") | MARK]),
    ),
    "a breakpoint of a kind that it does not know": (
        "cache_control: must be {'type': 'ephemeral'}",
        body(user(text("hi") | {"cache_control": {"type": "for ever"}})),
    ),
    "thinking that it never sent": (
        "messages.1.content.0: `thinking` blocks must remain as they were in the original response",
        body(user(), assistant(thinking("hm")), user()),
    ),
    "thinking by the user": (
        "messages.0.content.0: `thinking` blocks must remain as they were in the original response",
        body(user(thinking("hm"))),
    ),
    "a breakpoint on thinking": (
        "messages.1.content.0.thinking.cache_control: Extra inputs are not permitted",
        body(user(), assistant(thinking("hm") | MARK), user()),
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_the_fake_refuses(strict, what):
    words, request = REFUSED[what]
    before = len(strict.requests)
    status, told = post(strict, json.dumps(request).encode())
    assert (status, json.loads(told)["error"]["type"], len(strict.requests)) == (400, "invalid_request_error", before)
    assert json.loads(told)["error"]["message"].startswith(words)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"{", id="no JSON"),
        pytest.param(b"[]", id="no object"),
        pytest.param(json.dumps(body(user(text("\u00e9"))), ensure_ascii=False).encode("latin-1"), id="not UTF-8"),
        pytest.param(json.dumps(body(user(text("\ud83d")))).encode(), id="half a surrogate pair, escaped"),
        pytest.param(
            json.dumps(body(user(text("\ud83d"))), ensure_ascii=False).encode("utf-8", "surrogatepass"),
            id="half a surrogate pair",
        ),
        pytest.param(json.dumps(body(metadata={"n": float("nan")})).encode(), id="NaN"),
        pytest.param(b"[" * 100_000, id="too deep"),
    ],
)
def test_the_fake_refuses_what_is_not_strict_json(strict, raw):
    assert post(strict, raw)[0] == 400


def test_the_fake_accepts_a_whole_pair_of_surrogates(strict):
    assert post(strict, json.dumps(body(user(text("\U0001f600")))).encode())[0] == 200


@pytest.mark.parametrize(
    "good",
    [
        pytest.param(body(user(), assistant(ASKED), user(RESULT)), id="a call and its result"),
        pytest.param(body(user(), assistant(ASKED), user(RESULT, text("go on"))), id="text after the results"),
        pytest.param(
            body(user(), assistant(ASKED, ASKED | {"id": "t2"}), user(RESULT | {"tool_use_id": "t2"}, RESULT)),
            id="results in another order",
        ),
        pytest.param(
            body(user(text("hi") | MARK), system=[text("s") | MARK], tools=[TOOL | MARK]), id="three breakpoints"
        ),
        pytest.param(body(user(), assistant(ASKED | {"input": MARK}), user(RESULT)), id="an input like a breakpoint"),
    ],
)
def test_the_fake_accepts(strict, good):
    assert post(strict, json.dumps(good).encode())[0] == 200


def test_a_body_over_32_mb_is_too_large(strict):
    status, told = post(strict, json.dumps(body(user(text("x" * (32 * 1024 * 1024))))).encode())
    assert (status, json.loads(told)["error"]["type"]) == (413, "request_too_large")


@pytest.mark.parametrize("missing", ["anthropic-version", "content-type"])
def test_a_missing_header_is_refused(strict, missing):
    headers = {name: value for name, value in HEADERS.items() if name != missing}
    assert post(strict, json.dumps(body()).encode(), headers)[0] == 400


@pytest.mark.parametrize("key", [{}, {"x-api-key": "wrong"}, {"authorization": "Bearer wrong"}])
def test_a_missing_or_wrong_key_is_refused_with_401(key):
    with MessagesApi([answer("fine")], key="right") as api:
        headers = {n: v for n, v in HEADERS.items() if n != "x-api-key"} | key
        assert post(api, json.dumps(body()).encode(), headers)[0] == 401
        assert post(api, json.dumps(body()).encode(), headers | {"x-api-key": "right"})[0] == 200


def test_an_unknown_model_is_not_found():
    with MessagesApi([answer("fine")], unknown_models=("m-1",)) as api:
        status, told = post(api, json.dumps(body(model="m-1")).encode())
    assert (status, json.loads(told)["error"]) == (404, {"type": "not_found_error", "message": "model: m-1"})


@pytest.mark.parametrize("stream", [True, False])
def test_the_sdk_reads_text_thinking_and_calls(stream):
    script = answer(
        thinking("Let me see.", "c2ln"),
        {"type": "redacted_thinking", "data": "b3BhcXVl"},
        "Writing.",
        call("write", path="a", content="A\n\u00e9"),
        usage={"input_tokens": 7, "cache_read_input_tokens": 3, "output_tokens": 5},
    )
    with MessagesApi([script]) as api:
        message = _ask(api, stream=stream)
    blocks = [block.to_dict() for block in message.content]
    assert [block["type"] for block in blocks] == ["thinking", "redacted_thinking", "text", "tool_use"]
    assert blocks[0]["signature"] == "c2ln"
    assert blocks[3]["input"] == {"path": "a", "content": "A\n\u00e9"}
    assert (message.stop_reason, message.usage.input_tokens, message.usage.output_tokens) == ("tool_use", 7, 5)


def _ask(api: MessagesApi, *, stream: bool = True) -> Any:
    with client(api) as sdk:
        if not stream:
            return sdk.messages.create(**body())
        with sdk.messages.stream(**body()) as incoming:
            return incoming.get_final_message()


def _turn(*blocks: Any) -> list[Any]:
    return [user(), assistant(*blocks), user(RESULT)]


def test_thinking_must_come_back_to_the_byte():
    sent = thinking("First.", "c2lnMQ==")
    with MessagesApi(lambda _body, n: answer(sent, call("write", "t1")) if n == 0 else answer("ok")) as api:
        _ask(api)
        assert post(api, json.dumps(body(*_turn(sent, ASKED))).encode())[0] == 200
        for changed in (sent | {"thinking": "First. "}, sent | {"signature": "c2lnMQ"}, sent | {"extra": 1}):
            assert post(api, json.dumps(body(*_turn(changed, ASKED))).encode())[0] == 400
        later = [*_turn(sent | {"thinking": "Worst."}, ASKED), assistant(), user()]
        assert post(api, json.dumps(body(*later)).encode())[0] == 400


def test_thinking_must_not_be_left_out_of_a_turn_with_calls():
    with MessagesApi([answer(thinking("hm"), call("write", "t1"))]) as api:
        _ask(api)
        assert post(api, json.dumps(body(*_turn(ASKED))).encode())[0] == 400


def test_thinking_that_was_never_signed_must_not_come_back():
    unsigned = thinking("hm", "")
    with MessagesApi([answer(unsigned, stop_reason="max_tokens")]) as api:
        _ask(api)
        assert post(api, json.dumps(body(user(), assistant(unsigned), user())).encode())[0] == 400


def test_a_reply_that_broke_off_was_never_sent():
    sent = thinking("hm")
    with MessagesApi([answer(sent, "text").dropped(after=6)]) as api:
        with pytest.raises(httpx2.RemoteProtocolError):
            _ask(api)
        assert post(api, json.dumps(body(user(), assistant(sent), user())).encode())[0] == 400


def test_refusals_carry_status_kind_and_headers():
    with MessagesApi([rate_limited(retry_after="7"), overloaded(), too_long()]) as api:
        with pytest.raises(anthropic.RateLimitError) as limited:
            _ask(api)
        with pytest.raises(anthropic.OverloadedError):
            _ask(api)
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
            _ask(api)
    assert limited.value.response.headers["retry-after"] == "7"


def test_an_error_event_ends_the_stream_after_half_a_call():
    script = answer(call("write", path="a")).failed(after=4, kind="overloaded_error")
    with MessagesApi([script]) as api, pytest.raises(anthropic.APIStatusError) as failed:
        events(api)
    assert (failed.value.type, failed.value.status_code) == ("overloaded_error", 200)


@pytest.mark.parametrize("after", [0, 2, 5])
def test_a_stalled_stream_sends_nothing_more(after):
    with (
        MessagesApi([answer("text").stalled(after=after)]) as api,
        pytest.raises((httpx2.ReadTimeout, anthropic.APITimeoutError)),
    ):
        events(api, timeout=0.3)


def test_a_stream_may_end_before_its_message():
    with MessagesApi([answer("text").ended(after=4)]) as api:
        assert [event.type for event in events(api)][-1] == "content_block_delta"


def test_a_hangup_answers_nothing():
    with MessagesApi([Hangup()]) as api, pytest.raises(anthropic.APIConnectionError):
        _ask(api)


def test_raw_events_and_raw_input_are_sent_as_they_are():
    ended = Events((("message_start", '{"type": "message_start", "message": {"id": "x", "type": "message"}}'),))
    with MessagesApi([ended, answer(raw_call("write", '{"path": "a'), stop_reason="max_tokens")]) as api:
        assert [event.type for event in events(api)] == ["message_start"]
        deltas = [event.delta for event in events(api) if event.type == "content_block_delta"]
    assert "".join(delta.partial_json for delta in deltas) == '{"path": "a'


def test_ids_are_the_scripts_or_follow_from_the_request():
    with MessagesApi([answer("one", id="same"), answer("two", id="same"), answer(call("write"))]) as api:
        replies = [_ask(api), _ask(api), _ask(api)]
    assert [reply.id for reply in replies] == ["same", "same", "msg_0002"]
    assert replies[2].content[0].id == "toolu_2_0"


def test_requests_are_recorded_and_shown_before_they_are_answered():
    seen: list[str] = []
    with MessagesApi(
        lambda asked, n: answer(f"{n}:{asked['model']}"), on_request=lambda _: seen.append("asked")
    ) as api:
        first, second = _ask(api), _ask(api)
    assert [first.content[0].text, second.content[0].text] == ["0:m", "1:m"]
    assert seen == ["asked", "asked"]
    assert [asked["model"] for asked in api.bodies] == ["m", "m"]
    assert api.refused == []


def test_a_failed_assertion_about_a_request_fails_the_test():
    def judge(_body: Any) -> None:
        raise AssertionError("not what I expected")

    with (
        pytest.raises(AssertionError, match="not what I expected"),
        MessagesApi([answer("x")], on_request=judge) as api,
    ):
        _ask(api)


def test_a_script_that_is_too_short_is_told_and_recorded():
    with MessagesApi([]) as api, pytest.raises(anthropic.BadRequestError, match="no reply is scripted"):
        _ask(api)
    assert api.refused == ["no reply is scripted for request 0"]


def test_a_refusal_may_have_any_body():
    with (
        MessagesApi([Refusal(502, body="<html>bad gateway</html>")]) as api,
        pytest.raises(anthropic.APIStatusError) as it,
    ):
        _ask(api)
    assert it.value.response.text == "<html>bad gateway</html>"
