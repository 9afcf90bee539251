"""The fake cache service refuses what the real one refuses: the judge is judged first."""

from __future__ import annotations

import http.client
import json
from typing import Any

import pytest

from tests.support.cache_rules import make_token
from tests.support.cache_server import SERVICE, CacheServer

VERSION = "v" * 64
JSON = {"content-type": "application/json"}


def call(server: CacheServer, method: str, asked: Any, *, token: str | None = None, **headers: str) -> tuple[int, Any]:
    authorization = {"authorization": f"Bearer {token or make_token()}"}
    status, body = send(server, "POST", SERVICE + method, json.dumps(asked).encode(), JSON | authorization | headers)
    return status, json.loads(body)


def send(server: CacheServer, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    told = response.read()
    connection.close()
    return response.status, told


def look(server: CacheServer, *keys: str) -> str | None:
    asked: dict[str, Any] = {"key": keys[0], "version": VERSION}
    if keys[1:]:
        asked["restore_keys"] = list(keys[1:])
    _, told = call(server, "GetCacheEntryDownloadURL", asked)
    found: str | None = told.get("matched_key")
    return found


@pytest.mark.parametrize(
    ("method", "asked"),
    [
        ("CreateCacheEntry", {"key": "k"}),
        ("CreateCacheEntry", {"key": "k", "version": VERSION, "size": 1}),
        ("CreateCacheEntry", {"key": "", "version": VERSION}),
        ("CreateCacheEntry", {"key": "a,b", "version": VERSION}),
        ("CreateCacheEntry", {"key": "k" * 513, "version": VERSION}),
        ("CreateCacheEntry", {"key": "k", "version": 1}),
        ("CreateCacheEntry", []),
        ("GetCacheEntryDownloadURL", {"key": "k", "version": VERSION, "restoreKeys": []}),
        ("GetCacheEntryDownloadURL", {"key": "k", "version": VERSION, "restore_keys": []}),
        ("GetCacheEntryDownloadURL", {"key": "k", "version": VERSION, "restore_keys": ["k"] * 10}),
        ("FinalizeCacheEntryUpload", {"key": "k", "version": VERSION, "size_bytes": 1}),
        ("FinalizeCacheEntryUpload", {"key": "k", "version": VERSION, "size_bytes": "1"}),
        ("DeleteCacheEntry", {"key": "k", "version": VERSION}),
    ],
)
def test_what_breaks_the_protocol_is_refused_and_noted(method, asked):
    with CacheServer() as server:
        status, told = call(server, method, asked)
        assert status in (400, 404)
        assert told.keys() == {"code", "msg"}
        assert len(server.mistakes) == 1


@pytest.mark.parametrize(
    "authorization", ["", "Bearer x", f"Basic {make_token()}", f"Bearer {make_token(expires_at=1)}"]
)
def test_without_a_usable_token_nothing_is_answered(authorization):
    with CacheServer() as server:
        status, told = call(server, "CreateCacheEntry", {"key": "k", "version": VERSION}, authorization=authorization)
        assert (status, told["code"]) == (401, "unauthenticated")
        assert server.operations == []


def test_denials_have_the_services_own_shapes():
    with CacheServer() as server:
        nothing = make_token("", ())
        written = call(server, "CreateCacheEntry", {"key": "k", "version": VERSION}, token=nothing)
        assert written == (200, {"ok": False, "message": "cache write denied: token has no writable scopes"})
        read = call(server, "GetCacheEntryDownloadURL", {"key": "k", "version": VERSION}, token=nothing)
        words = "cache read denied: token has no readable scopes"
        assert read == (403, {"code": "permission_denied", "msg": words})


def test_a_signed_address_wants_its_signature_and_no_token():
    with CacheServer() as server:
        _, told = call(server, "CreateCacheEntry", {"key": "k", "version": VERSION})
        path = told["signed_upload_url"].partition(str(server.port))[2]
        blob = {"x-ms-blob-type": "BlockBlob", "x-ms-version": "2021-12-02"}
        assert send(server, "PUT", path, b"x", blob | {"authorization": "Bearer x"})[0] == 400
        assert send(server, "PUT", path + "0", b"x", blob)[0] == 403
        assert send(server, "PUT", path, b"x", {"x-ms-version": "2021-12-02"})[0] == 400
        assert send(server, "PUT", path, b"x", blob)[0] == 201
        asked = {"key": "k", "version": VERSION, "size_bytes": "2"}
        assert call(server, "FinalizeCacheEntryUpload", asked)[1]["ok"] is False
        assert server.stored == {}
        assert call(server, "FinalizeCacheEntryUpload", asked | {"size_bytes": "1"})[1]["ok"] is True
        assert server.stored == {"k": b"x"}


def test_what_is_stored_outlives_a_server_with_a_folder(tmp_path):
    with CacheServer(tmp_path) as server:
        server.plant("k-1", b"one", VERSION)
        server.plant("k-2", None, VERSION)
    with CacheServer(tmp_path) as server:
        assert server.stored == {"k-1": b"one"}
        assert look(server, "k-") == "k-1"
        assert call(server, "CreateCacheEntry", {"key": "k-2", "version": VERSION})[0] == 409


def test_the_newest_wins_unless_it_is_missing():
    now = [1_700_000_000.0]
    with CacheServer(clock=lambda: now[0]) as server:
        for name in ("k-2", "k-1"):
            server.plant(name, b"x", VERSION)
            now[0] -= 1000
        assert look(server, "k-") == "k-2"
        server.fault("lookup", "missing-newest")
        assert look(server, "k-") == "k-1"
        assert look(server, "k-") == "k-2"


def test_whole_seconds_do_not_tell_what_is_newest():
    for whole, newest in ((False, "k-2"), (True, "k-1")):
        with CacheServer(clock=lambda: 1_700_000_000.25, whole_seconds=whole) as server:
            server.plant("k-1", b"x", VERSION)
            server.plant("k-2", b"x", VERSION)
            assert look(server, "k-") == newest
