"""The Actions cache service on loopback, stricter than the real one, in version 2 and version 1.

    with CacheServer() as server:
        ...  # point a client at server.env()
    assert server.mistakes == []

It shares no code with the product; `tests/contract/test_cache_client.py` proves it with the official client. Faults
strike the n-th request of an operation. Beside a job that runs elsewhere it stands alone:

    python -m tests.support.cache_server --port 3910 --dir DIR
"""

from __future__ import annotations

import argparse
import json
import re
import ssl
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from secrets import token_hex
from typing import Any, Literal, Self
from urllib.parse import parse_qs, urlsplit

from tests.support.cache_rules import Budget, Entry, Json, Refused, Scopes, Shelf, check_key, make_token, scopes_of

Operation = Literal["create", "upload", "commit", "lookup", "download"]
Kind = Literal[
    # Instead of what was asked for.
    "stall",
    "cut",
    "error",
    "conflict",
    "rate-limit",
    "rate-limit-403",
    "denied",
    "no",
    "garbage",
    # After it was done.
    "stall-after",
    "cut-after",
    "error-after",
    "garbage-after",
    # The answer, slowly.
    "trickle",
    # Of a download: the connection cut at 60 %; 60 % of the bytes, whole; one bit; another entry's bytes; gone.
    "truncated",
    "torn",
    "flipped",
    "swapped",
    "evicted",
    # Of a look-up: as if the newest were not there; an entry that was not asked for.
    "missing-newest",
    "stray",
]

SERVICE = "/twirp/github.actions.results.api.v1.CacheService/"
V1 = "/_apis/artifactcache/"
MAX_BODY_BYTES = 512 << 20
STALL_S = 60.0
TRICKLE_S = 0.05
RETRY_AFTER = "7"

_FIELDS = {
    "CreateCacheEntry": {"key", "version"},
    "FinalizeCacheEntryUpload": {"key", "size_bytes", "version"},
    "GetCacheEntryDownloadURL": {"key", "restore_keys", "version"},
}
_OPTIONAL = {"restore_keys"}


@dataclass
class Fault:
    operation: Operation
    kind: Kind
    at: int = 1
    """The number of the request it strikes first, counted from when it was added."""
    times: int = 1
    detail: str = ""
    """Retry-After of `rate-limit`, status of `error`, message of `no`."""
    seen: int = 0

    def strikes(self, operation: str) -> bool:
        if operation != self.operation:
            return False
        self.seen += 1
        return self.at <= self.seen < self.at + self.times


@dataclass(frozen=True)
class Reply:
    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    is_cut: bool = False
    """Of the body, 60 % are sent."""

    @classmethod
    def json(cls, told: Json, status: int = 200) -> Reply:
        return cls(status, json.dumps(told).encode(), {"content-type": "application/json"})


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes = field(repr=False)


class CacheServer:
    """Up between `with` and its end.

    `requests` holds the operations in the order in which they came, `mistakes` what no client should send.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        port: int = 0,
        clock: Callable[[], float] = time.time,
        uploads_per_minute: int = 200,
        downloads_per_minute: int = 1500,
        whole_seconds: bool = False,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.requests: list[tuple[str, Request]] = []
        self.mistakes: list[str] = []
        self.faults: list[Fault] = []
        self.shelf = Shelf(folder, clock, whole_seconds=whole_seconds)
        self._clock = clock
        self._uploads, self._downloads = Budget(uploads_per_minute, clock), Budget(downloads_per_minute, clock)
        self._signatures: dict[str, int] = {}
        self._tls, self._port = tls, port
        self._lock = threading.RLock()
        self._over = threading.Event()

    def __enter__(self) -> Self:
        self._server = _Server(("127.0.0.1", self._port), _handler_of(self))
        if self._tls is not None:
            self._server.socket = self._tls.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self.port}/"

    def env(self, token: str | None = None, *, version: int = 2, **more: str) -> dict[str, str]:
        """What a runner would give to a step."""
        shared = {"ACTIONS_RUNTIME_TOKEN": token or make_token(), **more}
        if version == 2:
            return {"ACTIONS_RESULTS_URL": self.url, "ACTIONS_CACHE_SERVICE_V2": "True", **shared}
        return {"ACTIONS_CACHE_URL": self.url, "GITHUB_SERVER_URL": "https://git.example", **shared}

    def fault(self, operation: Operation, kind: Kind, *, at: int = 1, times: int = 1, detail: str = "") -> None:
        with self._lock:
            self.faults.append(Fault(operation, kind, at, times, detail))

    def plant(self, key: str, data: bytes | None, version: str, *, scope: str = "refs/pull/7/merge") -> Entry:
        """An entry that somebody else made; without data a reservation that he never finished."""
        with self._lock:
            entry = self.shelf.add(scope, key, version)
            if data is not None:
                entry.blob = data
                self.shelf.finish(entry, len(data))
            return entry

    @property
    def operations(self) -> list[str]:
        return [name for name, _ in self.requests]

    @property
    def stored(self) -> dict[str, bytes]:
        with self._lock:
            return {entry.key: entry.blob or b"" for entry in self.shelf.finished()}

    # What follows is called by the handler, in a thread of its own for each connection.

    def _answer(self, request: Request) -> Reply | None:
        """None: the connection is cut without one."""
        try:
            operation, act = self._route(request)
            with self._lock:
                self.requests.append((operation, request))
                struck = next((f for f in [*self.faults] if f.strikes(operation)), None)
            if struck is not None and (reply := self._instead(struck, request)) is not _AS_ASKED:
                return reply
            with self._lock:
                reply = act(struck.kind if struck else "")
            return self._afterwards(struck, reply)
        except Refused as refused:
            if refused.is_mistake:
                self.mistakes.append(f"{request.method} {request.path}: {refused}")
            return _refusal(request, refused)

    def _instead(self, fault: Fault, request: Request) -> Reply | None:
        match fault.kind:
            case "stall":
                self._over.wait(STALL_S)
                return None
            case "cut":
                return None
            case "error":
                raise Refused(int(fault.detail or 503), "unavailable", "try again later")
            case "conflict":
                raise Refused(409, "already_exists", "cache entry with the same key, version, and scope already exists")
            case "rate-limit":
                headers = {} if fault.detail == "none" else {"retry-after": fault.detail or RETRY_AFTER}
                raise Refused(429, "resource_exhausted", "rate limit exceeded", **headers)
            case "rate-limit-403":
                headers = {"retry-after": fault.detail} if fault.detail else {}
                words = "slow down" if fault.detail else "API rate limit exceeded"
                raise Refused(403, "permission_denied", words, **headers)
            case "denied":
                raise Refused(403, "permission_denied", f"cache {fault.operation} denied: not with this token")
            case "no":
                return Reply.json({"ok": False, "message": fault.detail})
            case "garbage":
                return Reply(200, b"<html>gateway</html>", {"content-type": "text/html"})
            case _:
                return _AS_ASKED

    def _afterwards(self, fault: Fault | None, reply: Reply) -> Reply | None:
        match fault.kind if fault else "":
            case "stall-after":
                self._over.wait(STALL_S)
                return None
            case "cut-after":
                return None
            case "error-after":
                raise Refused(502, "unavailable", "the gateway got no answer")
            case "garbage-after":
                return Reply(200, b"{", {"content-type": "application/json"})
            case "trickle":
                return Reply(reply.status, reply.body, {**reply.headers, "x-trickle": "1"})
            case _:
                return reply

    def _route(self, request: Request) -> tuple[str, Callable[[str], Reply]]:
        path = request.path
        if path.startswith("/blob/"):
            return self._blob(request)
        scopes = scopes_of(request.headers.get("authorization", ""), self._clock())
        if path.startswith(SERVICE):
            return self._call(request, path.removeprefix(SERVICE), scopes)
        if path.startswith(V1):
            return self._route_v1(request, path.removeprefix(V1), scopes)
        raise Refused(404, "bad_route", f"no handler for path {path}")

    # Version 2.

    def _call(self, request: Request, method: str, scopes: Scopes) -> tuple[str, Callable[[str], Reply]]:
        if request.method != "POST" or method not in _FIELDS:
            raise Refused(404, "bad_route", f"no handler for {request.method} {method}")
        if not request.headers.get("content-type", "").startswith("application/json"):
            raise Refused(415, "malformed", "content-type must be application/json")
        asked = _checked(request.body, _FIELDS[method])
        match method:
            case "CreateCacheEntry":
                return "create", lambda _: self._create(request, scopes, asked)
            case "FinalizeCacheEntryUpload":
                return "commit", lambda _: self._finalize(scopes, asked)
            case _:
                return "lookup", lambda fault: self._look(request, scopes, asked, fault)

    def _create(self, request: Request, scopes: Scopes, asked: Json) -> Reply:
        self._uploads.spend()
        if not scopes.writable:
            return Reply.json({"ok": False, "message": "cache write denied: token has no writable scopes"})
        entry = self.shelf.reserve(scopes, asked["key"], asked["version"])
        return Reply.json({"ok": True, "signed_upload_url": self._signed(request, entry)})

    def _finalize(self, scopes: Scopes, asked: Json) -> Reply:
        if not re.fullmatch(r"[0-9]+", str(asked["size_bytes"])) or not isinstance(asked["size_bytes"], str):
            raise Refused(400, "malformed", "size_bytes is a decimal number in a string")
        entry = self.shelf.reservation(scopes, asked["key"], asked["version"])
        if not self.shelf.finish(entry, int(asked["size_bytes"])):
            return Reply.json({"ok": False, "message": "the size is not that of what was uploaded"})
        return Reply.json({"ok": True, "entry_id": str(entry.id)})

    def _look(self, request: Request, scopes: Scopes, asked: Json, fault: str) -> Reply:
        found = self._found(scopes, [asked["key"], *asked.get("restore_keys", [])], asked["version"], fault)
        if found is None:
            return Reply.json({"ok": False})
        told = {"ok": True, "signed_download_url": self._signed(request, found), "matched_key": found.key}
        return Reply.json(told)

    def _found(self, scopes: Scopes, keys: list[str], version: str, fault: str) -> Entry | None:
        self._downloads.spend()
        if len(keys) > 10:
            raise Refused(400, "invalid_argument", "at most 10 keys")
        if not scopes.readable:
            raise Refused(403, "permission_denied", "cache read denied: token has no readable scopes")
        if fault == "stray":
            return next((e for e in self.shelf.finished() if not any(e.key.startswith(key) for key in keys)), None)
        return self.shelf.find(scopes, keys, version, skip=int(fault == "missing-newest"))

    # Blobs, by signed address.

    def _signed(self, request: Request, entry: Entry) -> str:
        signature = token_hex(16)
        self._signatures[signature] = entry.id
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://{request.headers['host']}/blob/{entry.id}?se=2099-01-01&sp=rw&sig={signature}"

    def _blob(self, request: Request) -> tuple[str, Callable[[str], Reply]]:
        if "authorization" in request.headers:
            raise Refused(400, "InvalidAuthenticationInfo", "a signed address wants no authorization header")
        number = self._signatures.get(request.query.get("sig", ""))
        if f"/blob/{number}" != request.path:
            raise Refused(403, "AuthenticationFailed", f"signature did not match: {request.query.get('sig')}")
        entry = self.shelf.entries.get(number or 0)
        if request.method == "PUT":
            return "upload", lambda _: self._upload(request, _there(entry))
        if request.method in ("GET", "HEAD"):
            return "download", lambda fault: self._download(request, _there(entry), fault)
        raise Refused(405, "UnsupportedHttpVerb", request.method)

    def _upload(self, request: Request, entry: Entry) -> Reply:
        if not re.fullmatch(r"\d{4}-\d\d-\d\d", request.headers.get("x-ms-version", "")):
            raise Refused(400, "InvalidHeaderValue", "x-ms-version is a date")
        match request.query.get("comp", ""):
            case "block":
                block_id = request.query.get("blockid", "")
                if any(len(block_id) != len(other) for other in entry.blocks) or not 1 <= len(block_id) <= 88:
                    raise Refused(400, "InvalidBlobOrBlock", "block ids are of one length")
                entry.blocks[block_id] = request.body
            case "blocklist":
                wanted = [latest.text or "" for latest in ET.fromstring(request.body).iter("Latest")]
                if not wanted or not set(wanted) <= entry.blocks.keys():
                    raise Refused(400, "InvalidBlockList", "the list names blocks that are not there")
                self.shelf.upload(entry, b"".join(entry.blocks[block_id] for block_id in wanted))
            case _:
                if request.headers.get("x-ms-blob-type") != "BlockBlob":
                    raise Refused(400, "InvalidHeaderValue", "x-ms-blob-type is BlockBlob")
                self.shelf.upload(entry, request.body)
        return Reply(201, headers={"etag": '"1"', "x-ms-request-id": "1", "x-ms-version": "2021-12-02"})

    def _download(self, request: Request, entry: Entry, fault: str) -> Reply:
        if fault == "evicted":
            self.shelf.remove(entry)
        if entry.id not in self.shelf.entries or entry.blob is None:
            raise Refused(404, "BlobNotFound", "the blob does not exist")
        data = self._damaged(entry, fault)
        first, last, status = 0, len(data) - 1, 200
        if found := re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("range", "")):
            first, last, status = int(found[1]), min(int(found[2] or last), last), 206
        headers = {"content-type": "application/octet-stream", "accept-ranges": "bytes"}
        if status == 206:
            headers["content-range"] = f"bytes {first}-{last}/{len(data)}"
        return Reply(status, data[first : last + 1], headers, is_cut=fault == "truncated")

    def _damaged(self, entry: Entry, fault: str) -> bytes:
        data = entry.blob or b""
        match fault:
            case "torn":
                return data[: len(data) * 6 // 10]
            case "flipped":
                return bytes([data[0] ^ 1]) + data[1:]
            case "swapped":
                return next((e.blob or b"" for e in self.shelf.finished() if e.id != entry.id), data)
            case _:
                return data

    # Version 1.

    def _route_v1(self, request: Request, path: str, scopes: Scopes) -> tuple[str, Callable[[str], Reply]]:
        if "api-version=6.0-preview.1" not in request.headers.get("accept", ""):
            raise Refused(400, "VssVersionNotSpecifiedException", "accept names no api-version")
        match request.method, path.split("/"):
            case "GET", ["cache"]:
                return "lookup", lambda fault: self._look_v1(request, scopes, fault)
            case "POST", ["caches"]:
                asked = _checked(request.body, {"key", "version", "cacheSize"})
                return "create", lambda _: self._create_v1(scopes, asked)
            case "PATCH", ["caches", number]:
                return "upload", lambda _: self._patch_v1(request, self._reserved(scopes, number))
            case "POST", ["caches", number]:
                size = _checked(request.body, {"size"})["size"]
                return "commit", lambda _: self._commit_v1(self._reserved(scopes, number), size)
            case _:
                raise Refused(404, "NotFound", f"no handler for {request.method} {path}")

    def _look_v1(self, request: Request, scopes: Scopes, fault: str) -> Reply:
        found = self._found(scopes, request.query["keys"].split(","), request.query["version"], fault)
        if found is None:
            return Reply(204)
        told = {"cacheKey": found.key, "scope": found.scope, "archiveLocation": self._signed(request, found)}
        return Reply.json({**told, "cacheVersion": found.version, "creationTime": "2026-01-01T00:00:00Z"})

    def _create_v1(self, scopes: Scopes, asked: Json) -> Reply:
        self._uploads.spend()
        if not isinstance(asked["cacheSize"], int):
            raise Refused(400, "ArgumentException", "cacheSize is a number")
        if not scopes.writable:
            raise Refused(403, "AccessDeniedException", "cache write denied: token has no writable scopes")
        return Reply.json({"cacheId": self.shelf.reserve(scopes, asked["key"], asked["version"]).id}, 201)

    def _reserved(self, scopes: Scopes, number: str) -> Entry:
        entry = self.shelf.entries.get(int(number) if number.isdigit() else 0)
        if entry is None or entry.scope not in scopes.writable:
            raise Refused(404, "NotFound", "there is no such reservation")
        return entry

    def _patch_v1(self, request: Request, entry: Entry) -> Reply:
        found = re.fullmatch(r"bytes (\d+)-(\d+)/\*", request.headers.get("content-range", ""))
        if not found or int(found[2]) - int(found[1]) + 1 != len(request.body):
            raise Refused(400, "ArgumentException", "content-range is not that of the body")
        entry.blocks[f"{int(found[1]):020}"] = request.body
        return Reply(204)

    def _commit_v1(self, entry: Entry, size: Any) -> Reply:
        at, pieces = 0, []
        for name in sorted(entry.blocks):
            if int(name) != at:
                raise Refused(400, "ArgumentException", "the ranges have a gap or overlap")
            pieces.append(entry.blocks[name])
            at += len(pieces[-1])
        self.shelf.upload(entry, b"".join(pieces))
        if not self.shelf.finish(entry, size):
            raise Refused(400, "ArgumentException", "the size is not that of what was uploaded")
        return Reply(204)


_AS_ASKED = Reply(0)


def _there(entry: Entry | None) -> Entry:
    if entry is None:
        raise Refused(404, "BlobNotFound", "the blob does not exist")
    return entry


def _checked(body: bytes, fields: set[str]) -> Json:
    try:
        asked = json.loads(body)
    except ValueError:
        raise Refused(400, "malformed", "the body is not JSON") from None
    if not isinstance(asked, dict) or not fields - _OPTIONAL <= asked.keys() <= fields:
        raise Refused(400, "malformed", f"the fields are {sorted(fields)}")
    check_key(asked.get("key", "-"))
    more = asked.get("restore_keys", ["-"])
    if not isinstance(asked.get("version", "-"), str) or not isinstance(more, list) or not more:
        raise Refused(400, "malformed", "a field has the wrong type, or a default that is left out")
    return asked


def _refusal(request: Request, refused: Refused) -> Reply:
    headers = {"content-type": "application/json", **refused.headers}
    if request.path.startswith(V1):
        return Reply(refused.status, json.dumps({"message": str(refused), "typeKey": refused.code}).encode(), headers)
    if request.path.startswith("/blob/"):
        told = f"<?xml version='1.0'?><Error><Code>{refused.code}</Code><Message>{refused}</Message></Error>"
        return Reply(refused.status, told.encode(), {**headers, "content-type": "application/xml"})
    return Reply(refused.status, json.dumps({"code": refused.code, "msg": str(refused)}).encode(), headers)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is part of many a test."""


def _handler_of(server: CacheServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = STALL_S
        # Headers and body go out as two writes, and the second would wait for the first to be acknowledged.
        disable_nagle_algorithm = True

        def log_message(self, *_: object) -> None:
            pass

        def _serve(self) -> None:
            body = self._body()
            if body is None:
                self.close_connection = True
                self._send(Reply(413))
                return
            # As a plain proxy it is asked with the whole address.
            parts = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
            headers = {name.lower(): value for name, value in self.headers.items()}
            reply = server._answer(Request(self.command, parts.path, query, headers, body))
            if reply is None:
                self.close_connection = True
            else:
                self._send(reply)

        def _body(self) -> bytes | None:
            """None: it is longer than anybody may send."""
            if self.headers.get("transfer-encoding") != "chunked":
                size = int(self.headers.get("content-length") or 0)
                return self.rfile.read(size) if size <= MAX_BODY_BYTES else None
            pieces, left = [], MAX_BODY_BYTES
            while size := int(self.rfile.readline(32), 16):
                left -= size
                if left < 0:
                    return None
                pieces.append(self.rfile.read(size))
                self.rfile.readline(2)
            self.rfile.readline(2)
            return b"".join(pieces)

        def do_GET(self) -> None:
            self._serve()

        def do_HEAD(self) -> None:
            self._serve()

        def do_POST(self) -> None:
            self._serve()

        def do_PUT(self) -> None:
            self._serve()

        def do_PATCH(self) -> None:
            self._serve()

        def _send(self, reply: Reply) -> None:
            self.send_response(reply.status)
            is_slow = "x-trickle" in reply.headers
            for name, value in reply.headers.items():
                self.send_header(name, value)
            if reply.status != 204:
                self.send_header("content-length", str(len(reply.body)))
            self.end_headers()
            if self.command == "HEAD":
                return
            if is_slow:
                self._trickle(reply.body)
                return
            if reply.is_cut:
                self.wfile.write(reply.body[: len(reply.body) * 6 // 10])
                self.close_connection = True
                return
            self.wfile.write(reply.body)

        def _trickle(self, body: bytes) -> None:
            for i in range(len(body)):
                if server._over.wait(TRICKLE_S):
                    return
                self.wfile.write(body[i : i + 1])

    return Handler


def main() -> None:
    parser = argparse.ArgumentParser(description="The Actions cache service on loopback.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--whole-seconds", action="store_true")
    given = parser.parse_args()
    with CacheServer(given.dir, port=given.port, whole_seconds=given.whole_seconds) as server:
        print(json.dumps(server.env()), flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
