"""A Messages API on loopback that is stricter than the real one, and plays a script.

    with MessagesApi([answer(call("write", path="a", content="A")), answer("Done.")]) as api:
        ...  # point a client at api.url
    assert api.refused == []

It shares no code with the product: each request is judged by the API's own rules, and what breaks one
is refused with the status and the kind of words that the real API has. Replies are a list, or a
function of the request's JSON and the number of requests accepted before it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from tests.support.messages_rules import Json, Refused, Sent, judge

Fault = Literal["drop", "end", "stall", "error"]


@dataclass(frozen=True)
class Answer:
    """A reply, or the beginning of one: with a `fault`, only `fault_after` events are sent before it strikes.

    drop: the connection is cut. end: the response ends properly, too early. stall: nothing comes any more.
    error: an error event of type `error_kind` ends the stream.
    """

    blocks: tuple[Json, ...]
    stop_reason: str | None = None
    id: str | None = None
    model: str | None = None
    usage: Json = field(default_factory=dict)
    fault: Fault | None = None
    fault_after: int = 0
    error_kind: str = "overloaded_error"

    def dropped(self, after: int) -> Answer:
        return replace(self, fault="drop", fault_after=after)

    def ended(self, after: int) -> Answer:
        return replace(self, fault="end", fault_after=after)

    def stalled(self, after: int) -> Answer:
        return replace(self, fault="stall", fault_after=after)

    def failed(self, after: int, kind: str = "overloaded_error") -> Answer:
        return replace(self, fault="error", fault_after=after, error_kind=kind)


@dataclass(frozen=True)
class Refusal:
    """An error response. `body` replaces the API's own form of it."""

    status: int
    message: str = "no"
    kind: str = "api_error"
    headers: tuple[tuple[str, str], ...] = ()
    body: str | None = None


@dataclass(frozen=True)
class Events:
    """A stream of exactly these events, each with its JSON text, and no more."""

    events: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Hangup:
    """The connection is closed before anything is answered."""


Script = Answer | Refusal | Events | Hangup
Replies = Sequence[Script] | Callable[[Json, int], Script]


def answer(*blocks: str | Json, stop_reason: str | None = None, **more: Any) -> Answer:
    """Text and blocks in order; the stop reason follows from whether there are calls."""
    return Answer(tuple(text(b) if isinstance(b, str) else b for b in blocks), stop_reason, **more)


def text(words: str) -> Json:
    return {"type": "text", "text": words}


def call(tool: str, /, call_id: str | None = None, **arguments: Any) -> Json:
    """A tool call; without an id it gets one when it is sent."""
    return {"type": "tool_use", "id": call_id, "name": tool, "input": arguments}


def raw_call(tool: str, input_json: str, call_id: str | None = None) -> Json:
    """A tool call whose input is sent as this text, JSON or not."""
    return {"type": "tool_use", "id": call_id, "name": tool, "input": {}, "_input_json": input_json}


def thinking(words: str, signature: str = "c2lnbmVk") -> Json:
    return {"type": "thinking", "thinking": words, "signature": signature}


def rate_limited(**headers: str) -> Refusal:
    """429; `retry_after="7"` becomes the header."""
    named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return Refusal(429, "This request would exceed your rate limit.", "rate_limit_error", named)


def overloaded() -> Refusal:
    return Refusal(529, "Overloaded", "overloaded_error")


def too_long() -> Refusal:
    return Refusal(400, "prompt is too long: 210000 tokens > 200000 maximum", "invalid_request_error")


@dataclass(frozen=True)
class Received:
    """One request as it came; `body` is its JSON when it kept the rules, else empty."""

    raw: bytes
    headers: dict[str, str]
    body: Json


class MessagesApi:
    """The server, up between `with` and its end. `url` is its base URL.

    `requests` holds everything that was accepted, `refused` the reason for everything that was not.
    `on_request` is called with the JSON of each accepted request before it is answered; what it raises
    is raised again at the end of the `with` block. One instance keeps what it sent over several clients.
    """

    def __init__(
        self,
        replies: Replies = (),
        *,
        on_request: Callable[[Json], None] | None = None,
        key: str | None = None,
        unknown_models: tuple[str, ...] = (),
    ) -> None:
        self.replies = replies
        self.requests: list[Received] = []
        self.refused: list[str] = []
        self._on_request, self._key, self._unknown_models = on_request, key, unknown_models
        self._sent = Sent()
        self._failures: list[BaseException] = []
        self._lock = threading.Lock()
        self._over = threading.Event()

    def __enter__(self) -> Self:
        self._server = _Server(("127.0.0.1", 0), _handler_of(self))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, exc_type: object, *_: object) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        if self._failures and exc_type is None:
            raise self._failures[0]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def bodies(self) -> list[Json]:
        return [request.body for request in self.requests]

    # What follows is called by the handler, in a thread of its own for each connection.

    def _accept(self, path: str, headers: dict[str, str], raw: bytes) -> tuple[Json, Script, int]:
        with self._lock:
            try:
                # The path alone: as a plain proxy it is asked with the whole address.
                if urlsplit(path).path != "/v1/messages":
                    raise Refused("Not found", 404, "not_found_error")
                self._judge_headers(headers)
                body = judge(raw, self._sent)
                if body["model"] in self._unknown_models:
                    raise Refused(f"model: {body['model']}", 404, "not_found_error")
            except Refused as refused:
                self.refused.append(str(refused))
                raise
            number = len(self.requests)
            self.requests.append(Received(raw, headers, body))
        self._tell(body)
        return body, self._next(body, number), number

    def _judge_headers(self, headers: dict[str, str]) -> None:
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        given = headers.get("x-api-key") or bearer
        if not given or (self._key is not None and given != self._key):
            raise Refused("invalid x-api-key", 401, "authentication_error")
        if not headers.get("anthropic-version"):
            raise Refused("anthropic-version: header is required")
        if not headers.get("content-type", "").startswith("application/json"):
            raise Refused("content-type: must be application/json")

    def _tell(self, body: Json) -> None:
        try:
            if self._on_request is not None:
                self._on_request(body)
        except BaseException as failure:
            self._failures.append(failure)

    def _next(self, body: Json, number: int) -> Script:
        try:
            return self.replies(body, number) if callable(self.replies) else self.replies[number]
        except IndexError:
            self.refused.append(f"no reply is scripted for request {number}")
            return Refusal(400, self.refused[-1], "invalid_request_error")
        except BaseException as failure:
            self._failures.append(failure)
            return Refusal(400, f"the script failed: {failure!r}", "invalid_request_error")

    def _note(self, blocks: Sequence[Json]) -> None:
        with self._lock:
            self._sent.note(blocks)

    def _stall(self) -> None:
        self._over.wait(60)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 32

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is part of many a test."""


def _handler_of(api: MessagesApi) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            self._refuse(Refusal(404, "Not found", "not_found_error"))

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            try:
                body, script, number = api._accept(self.path, headers, raw)
            except Refused as refused:
                self._refuse(Refusal(refused.status, str(refused), refused.kind))
                return
            match script:
                case Refusal():
                    self._refuse(script)
                case Hangup():
                    self._hang_up()
                case Events():
                    self._stream(script.events)
                    self._end()
                case Answer() if body.get("stream"):
                    self._stream_answer(script, body, number)
                case Answer():
                    self._answer(script, body, number)

        def _refuse(self, refusal: Refusal) -> None:
            told = {"type": "error", "error": {"type": refusal.kind, "message": refusal.message}, "request_id": "req_1"}
            content = (json.dumps(told) if refusal.body is None else refusal.body).encode()
            self.send_response(refusal.status)
            self.send_header("content-type", "application/json" if refusal.body is None else "text/html")
            # One request a connection: an idle one would be left to whoever forgets to close a client.
            for name, value in (("content-length", str(len(content))), ("connection", "close"), *refusal.headers):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def _answer(self, script: Answer, body: Json, number: int) -> None:
            blocks = _filled(script.blocks, number)
            if script.fault == "stall":
                api._stall()
            if script.fault is not None:
                self._hang_up()
                return
            api._note(blocks)
            message = _message(script, body, number) | {
                "content": blocks,
                "stop_reason": _stop_reason(script),
                "usage": _usage(script) | {"output_tokens": script.usage.get("output_tokens", 10)},
            }
            self._refuse(Refusal(200, body=json.dumps(message)))

        def _stream_answer(self, script: Answer, body: Json, number: int) -> None:
            events = [(e["type"], json.dumps(e)) for e in _events(script, body, number)]
            if script.fault is None:
                api._note(_filled(script.blocks, number))
                self._stream(events)
                self._end()
                return
            if (script.fault, script.fault_after) == ("stall", 0):
                api._stall()  # before the headers, so that the client waits for its answer to begin
            self._stream(events[: script.fault_after])
            if script.fault == "error":
                error = {"type": "error", "error": {"type": script.error_kind, "message": "Overloaded"}}
                self._send("error", json.dumps(error))
            if script.fault == "stall":
                api._stall()
            if script.fault in ("end", "error"):
                self._end()
            else:
                self._hang_up()

        def _stream(self, events: Sequence[tuple[str, str]]) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream; charset=utf-8")
            self.send_header("transfer-encoding", "chunked")
            self.send_header("connection", "close")
            self.end_headers()
            for name, data in events:
                self._send(name, data)

        def _send(self, name: str, data: str) -> None:
            event = f"event: {name}\ndata: {data}\n\n".encode("utf-8", "surrogatepass")
            self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))

        def _end(self) -> None:
            self.wfile.write(b"0\r\n\r\n")

        def _hang_up(self) -> None:
            self.close_connection = True

    return Handler


def _message(script: Answer, body: Json, number: int) -> Json:
    return {
        "id": script.id or f"msg_{number:04d}",
        "type": "message",
        "role": "assistant",
        "model": script.model or body["model"],
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _usage(script: Answer) -> Json:
    return {"input_tokens": 100, "output_tokens": 1, **{k: v for k, v in script.usage.items() if k != "output_tokens"}}


def _stop_reason(script: Answer) -> str:
    calls = any(b["type"] == "tool_use" for b in script.blocks)
    return script.stop_reason or ("tool_use" if calls else "end_turn")


def _filled(blocks: Sequence[Json], number: int) -> list[Json]:
    """The blocks as a client sees them when the message is complete."""
    return [
        {k: v for k, v in block.items() if k != "_input_json"}
        | ({"id": block["id"] or f"toolu_{number}_{i}"} if block["type"] == "tool_use" else {})
        for i, block in enumerate(blocks)
    ]


def _events(script: Answer, body: Json, number: int) -> Iterator[Json]:
    yield {"type": "message_start", "message": _message(script, body, number) | {"usage": _usage(script)}}
    yield {"type": "ping"}
    for i, block in enumerate(_filled(script.blocks, number)):
        start, deltas = _in_pieces(block, script.blocks[i].get("_input_json"))
        yield {"type": "content_block_start", "index": i, "content_block": start}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": i, "delta": delta}
        yield {"type": "content_block_stop", "index": i}
    yield {
        "type": "message_delta",
        "delta": {"stop_reason": _stop_reason(script), "stop_sequence": None},
        "usage": {"output_tokens": script.usage.get("output_tokens", 10)},
    }
    yield {"type": "message_stop"}


def _in_pieces(block: Json, input_json: str | None) -> tuple[Json, list[Json]]:
    match block["type"]:
        case "text":
            deltas = [{"type": "text_delta", "text": half} for half in _halves(block["text"])]
            return block | {"text": ""}, deltas
        case "tool_use":
            whole = json.dumps(block["input"]) if input_json is None else input_json
            pieces = ["", *_halves(whole)] if block["input"] or input_json is not None else [""]
            return block | {"input": {}}, [{"type": "input_json_delta", "partial_json": p} for p in pieces]
        case "thinking":
            deltas = [{"type": "thinking_delta", "thinking": half} for half in _halves(block["thinking"])]
            signed = [{"type": "signature_delta", "signature": block["signature"]}] if block["signature"] else []
            return block | {"thinking": "", "signature": ""}, deltas + signed
        case _:
            return block, []


def _halves(words: str) -> list[str]:
    middle = len(words) // 2
    return [half for half in (words[:middle], words[middle:]) if half]
