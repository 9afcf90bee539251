"""The Actions cache as a store, against a service on loopback that is stricter than the real one.

Both versions of the service keep the same promises, so most tests run against each.
"""

from __future__ import annotations

import threading
import time
from email.utils import formatdate
from typing import Any

import pytest

from endstate_action.errors import InputError
from endstate_action.state.stores import cache as cache_module
from endstate_action.state.stores.base import (
    Denied,
    Exists,
    Put,
    RateLimited,
    Stored,
    StoreUnreadable,
    StoreUnusable,
    Unavailable,
)
from endstate_action.state.stores.cache import CacheStore, cache_store
from endstate_action.state.stores.cache_v1 import CacheV1
from endstate_action.state.stores.cache_v2 import CacheV2
from endstate_action.state.stores.cache_wire import VERSION
from endstate_action.state.stores.http import Client
from tests.support.cache_rules import make_token
from tests.support.cache_server import CacheServer, Kind, Operation
from tests.support.raw_http import Proxy, RawServer, answering, make_authority

KEY = "es1/0123456789abcdef/c0001-000001-00000"
LINE = "es1/0123456789abcdef/c"
WAIT = 20.0
SHORT = 0.4

READ_ONLY = make_token("", ("refs/heads/main",))

services = pytest.mark.parametrize("service", [2, 1])


def opened(server: CacheServer, service: int = 2, token: str | None = None, **more: str) -> CacheStore:
    store = cache_store(server.env(token, version=service, **more))
    assert isinstance(store, CacheStore)
    return store


def put_under(
    service: int, operation: Operation, kind: Kind, *, timeout_s: float = WAIT, detail: str = ""
) -> tuple[Put, CacheServer]:
    with CacheServer() as server:
        server.fault(operation, kind, detail=detail)
        return opened(server, service).put(KEY, b"data", timeout_s=timeout_s), server


def unreadable(store: CacheStore, *, timeout_s: float = WAIT) -> StoreUnreadable:
    with pytest.raises(StoreUnreadable) as of_get:
        store.get(KEY, timeout_s=timeout_s)
    with pytest.raises(StoreUnreadable) as of_first:
        store.first([LINE], timeout_s=timeout_s)
    assert str(of_get.value) == str(of_first.value)
    return of_get.value


# What is stored.


@services
@pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 20_000], ids=["empty", "a byte", "5 MB"])
def test_what_was_stored_is_read_back(service, data):
    with CacheServer() as server:
        store = opened(server, service)
        assert store.put(KEY, data, timeout_s=WAIT) == Stored(KEY, len(data))
        assert store.get(KEY, timeout_s=WAIT) == data
        assert opened(server, service).first([LINE], timeout_s=WAIT) == KEY
        assert server.mistakes == []


@services
def test_a_key_is_written_once(service):
    with CacheServer() as server:
        store = opened(server, service)
        store.put(KEY, b"old", timeout_s=WAIT)
        assert store.put(KEY, b"new", timeout_s=WAIT) == Exists(KEY)
        assert store.put(KEY, b"old", timeout_s=WAIT) == Exists(KEY)
        assert store.get(KEY, timeout_s=WAIT) == b"old"


@services
def test_one_of_many_at_once_wins(service):
    with CacheServer() as server:
        store = opened(server, service)
        outcomes: list[Put] = []

        def work(data: bytes) -> None:
            outcomes.append(store.put(KEY, data, timeout_s=WAIT))

        threads = [threading.Thread(target=work, args=(b"%d" % i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Exists"] * 7 + ["Stored"]


@pytest.mark.parametrize(("size", "requests"), [(10, 1), (11, 4), (12, 4), (20, 6), (21, 7)])
def test_what_is_large_goes_in_blocks(size, requests):
    with CacheServer() as server:
        wire = CacheV2(Client(server.url, make_token(), {}), single_shot_bytes=10, block_bytes=4)
        data = bytes(range(size))
        assert CacheStore(wire).put(KEY, data, timeout_s=WAIT) == Stored(KEY, size)
        assert server.operations.count("upload") == requests
        assert server.stored == {KEY: data}
        assert server.mistakes == []


def test_version_1_goes_in_ranges():
    with CacheServer() as server:
        wire = CacheV1(Client(server.url, make_token(), {}), chunk_bytes=4)
        assert CacheStore(wire).put(KEY, b"0123456789", timeout_s=WAIT) == Stored(KEY, 10)
        assert server.stored == {KEY: b"0123456789"}
        assert server.operations.count("upload") == 3


@services
def test_nothing_can_be_dropped_or_listed(service):
    with CacheServer() as server:
        store = opened(server, service)
        store.put(KEY, b"1", timeout_s=WAIT)
        assert store.put(f"{LINE}2", b"2", timeout_s=WAIT, drop=[KEY]) == Stored(f"{LINE}2", 1)
        assert store.get(KEY, timeout_s=WAIT) == b"1"
        assert store.keys(LINE, timeout_s=WAIT) is None
        assert store.name == "cache"


def test_our_entries_are_apart_from_everybody_elses():
    with CacheServer() as server:
        server.plant(KEY, b"theirs", "another-version")
        store = opened(server)
        assert store.get(KEY, timeout_s=WAIT) is None
        assert store.first([LINE], timeout_s=WAIT) is None
        assert store.put(KEY, b"ours", timeout_s=WAIT) == Stored(KEY, 4)
        assert store.get(KEY, timeout_s=WAIT) == b"ours"


# What is not stored, and what that means for the key.


@services
def test_a_reservation_that_somebody_never_finished_takes_the_key_for_a_day(service):
    now = [1_000_000.0]
    with CacheServer(clock=lambda: now[0]) as server:
        server.plant(KEY, None, VERSION)
        store = opened(server, service)
        assert store.put(KEY, b"data", timeout_s=WAIT) == Exists(KEY)
        assert store.get(KEY, timeout_s=WAIT) is None
        now[0] += 24 * 3600 + 1
        assert store.put(KEY, b"data", timeout_s=WAIT) == Stored(KEY, 4)


@services
@pytest.mark.parametrize("kind", ["stall", "stall-after"])
def test_a_reservation_without_an_answer_in_time_is_doubtful(service, kind):
    began = time.monotonic()
    outcome, server = put_under(service, "create", kind, timeout_s=SHORT)
    assert outcome == Unavailable("the Actions cache: no whole answer came in time", is_doubtful=True)
    assert time.monotonic() - began < 3
    assert server.operations == ["create"]


@services
def test_a_key_in_doubt_may_be_taken_by_ourselves(service):
    """Which is why it must not be used again: nobody could tell this from another attempt's claim."""
    with CacheServer() as server:
        server.fault("create", "cut-after")
        store = opened(server, service)
        assert isinstance(store.put(KEY, b"data", timeout_s=WAIT), Unavailable)
        assert store.put(KEY, b"data", timeout_s=WAIT) == Exists(KEY)
        assert store.get(KEY, timeout_s=WAIT) is None


@services
@pytest.mark.parametrize(
    ("kind", "detail"),
    [
        ("cut", ""),
        ("cut-after", ""),
        ("error", "500"),
        ("error", "503"),
        ("error", "408"),
        ("error-after", ""),
        ("garbage", ""),
        ("garbage-after", ""),
    ],
)
def test_a_reservation_that_nobody_can_vouch_for_is_doubtful(service, kind, detail):
    outcome, server = put_under(service, "create", kind, detail=detail)
    assert isinstance(outcome, Unavailable)
    assert outcome.is_doubtful
    assert server.operations == ["create"]


@services
@pytest.mark.parametrize("status", ["400", "404", "422"])
def test_a_plain_no_leaves_the_key_free(service, status):
    outcome, _ = put_under(service, "create", "error", detail=status)
    assert outcome == Unavailable("the Actions cache: try again later", is_doubtful=False)


@services
def test_a_service_that_is_not_there_leaves_the_key_free(service):
    with CacheServer() as server:
        store = opened(server, service)
    assert store.put(KEY, b"data", timeout_s=WAIT) == Unavailable(
        "the Actions cache: no connection could be made", is_doubtful=False
    )


@services
@pytest.mark.parametrize("operation", ["upload", "commit"])
@pytest.mark.parametrize(
    ("kind", "detail"),
    [
        ("cut", ""),
        ("cut-after", ""),
        ("stall", ""),
        ("stall-after", ""),
        ("error", "400"),
        ("error", "503"),
        ("error-after", ""),
        ("denied", ""),
        ("conflict", ""),
        ("rate-limit", ""),
    ],
)
def test_whatever_fails_after_the_reservation_leaves_the_key_in_doubt(service, operation, kind, detail):
    """A rate limit, a denial and a conflict too: the key is reserved, so they are not what they are at first."""
    outcome, server = put_under(service, operation, kind, detail=detail, timeout_s=SHORT if "stall" in kind else WAIT)
    assert isinstance(outcome, Unavailable)
    assert outcome.is_doubtful
    assert server.operations.count(operation) == 1


@pytest.mark.parametrize(("kind", "detail"), [("no", "the size is wrong"), ("garbage-after", ""), ("no", "")])
def test_an_entry_is_stored_when_the_service_says_so(kind, detail):
    """The last answer has status 200 and can still be a no."""
    outcome, _ = put_under(2, "commit", kind, detail=detail)
    assert isinstance(outcome, Unavailable)
    assert outcome.is_doubtful
    assert detail in outcome.reason


def test_the_time_is_for_all_requests_together():
    with CacheServer() as server:
        for operation in ("create", "upload", "commit"):
            server.fault(operation, "trickle")
        began = time.monotonic()
        outcome = opened(server).put(KEY, b"data", timeout_s=2)
        assert isinstance(outcome, Unavailable)
        assert outcome.is_doubtful
        assert 1.9 < time.monotonic() - began < 4


def test_a_blob_host_that_is_not_there_leaves_the_key_in_doubt():
    with RawServer(answering(b"")) as gone:
        away = f"{gone.url}/blob?sig=very-secret"
    told = f'{{"ok":true,"signed_upload_url":"{away}"}}'.encode()
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(told), told)
    with RawServer(answering(reply)) as server:
        store = CacheStore(CacheV2(Client(server.url, make_token(), {})))
        outcome = store.put(KEY, b"data", timeout_s=WAIT)
    assert isinstance(outcome, Unavailable)
    assert outcome.is_doubtful
    assert "secret" not in outcome.reason


@pytest.mark.parametrize("number", ['"1"', "-1", "true", "1.5", '"../../x"', "null"])
def test_a_reservation_number_that_is_none_is_not_put_into_an_address(number):
    told = f'{{"cacheId":{number}}}'.encode()
    reply = b"HTTP/1.1 201 Created\r\nContent-Length: %d\r\n\r\n%s" % (len(told), told)
    with RawServer(answering(reply)) as server:
        outcome = CacheStore(CacheV1(Client(server.url, make_token(), {}))).put(KEY, b"data", timeout_s=WAIT)
        assert server.connections == 1
    assert outcome == Unavailable("the Actions cache: its answer cannot be understood", is_doubtful=True)


# Limits and denials.


@services
@pytest.mark.parametrize(
    ("detail", "wait_s"), [("20", 20.0), ("none", 60.0), (formatdate(4_000_000_000, usegmt=True), 3600.0)]
)
def test_a_rate_limit_says_how_long_to_wait(service, detail, wait_s):
    outcome, _ = put_under(service, "create", "rate-limit", detail=detail)
    assert outcome == RateLimited(wait_s)


@services
@pytest.mark.parametrize(("detail", "wait_s"), [("9", 9.0), ("", 60.0)])
def test_a_rate_limit_that_looks_like_a_refusal_is_one_to_wait_for(service, detail, wait_s):
    outcome, _ = put_under(service, "create", "rate-limit-403", detail=detail)
    assert outcome == RateLimited(wait_s)


@services
def test_uploads_are_limited_and_the_key_stays_free(service):
    now = [1_000_000.0]
    with CacheServer(clock=lambda: now[0], uploads_per_minute=2) as server:
        store = opened(server, service, make_token(expires_at=2_000_000))
        outcomes = [store.put(f"{LINE}{i}", b"x", timeout_s=WAIT) for i in range(3)]
        assert outcomes == [Stored(f"{LINE}0", 1), Stored(f"{LINE}1", 1), RateLimited(60.0)]
        now[0] += 60
        assert store.put(f"{LINE}2", b"x", timeout_s=WAIT) == Stored(f"{LINE}2", 1)


@services
def test_a_read_only_token_is_known_before_anything_is_asked(service):
    with CacheServer() as server:
        store = opened(server, service, READ_ONLY)
        outcome = store.put(KEY, b"data", timeout_s=WAIT)
        assert outcome == store.denied
        assert isinstance(outcome, Denied)
        assert outcome.reason == "the job's cache token is read-only"
        for remedy in ("`cache-mode: write`", "`store: git-ref`", "contents: write", "bucket", "start a new run"):
            assert remedy in outcome.remedy
        assert server.requests == []
        server.plant(KEY, b"theirs", VERSION, scope="refs/heads/main")
        assert store.get(KEY, timeout_s=WAIT) == b"theirs"


@services
def test_a_denial_by_the_service_is_said_in_its_words(service):
    """The token is not understood here, but there: as with a service that changes its form."""
    with CacheServer() as server:
        wire = CacheV2 if service == 2 else CacheV1
        outcome = CacheStore(wire(Client(server.url, READ_ONLY, {}))).put(KEY, b"data", timeout_s=WAIT)
    assert isinstance(outcome, Denied)
    assert outcome.reason == "cache write denied: token has no writable scopes"
    assert "`cache-mode: write`" in outcome.remedy


@services
def test_an_expired_token_is_a_denial(service):
    with CacheServer() as server:
        outcome = opened(server, service, make_token(expires_at=1)).put(KEY, b"data", timeout_s=WAIT)
    assert isinstance(outcome, Denied)
    assert outcome.reason == "token is expired"
    assert "Run the job again" in outcome.remedy


def test_no_room_is_a_denial_with_another_remedy():
    outcome, _ = put_under(2, "create", "no", detail="insufficient usage to create this artifact")
    assert isinstance(outcome, Denied)
    assert "Delete caches" in outcome.remedy


def test_a_no_without_a_known_reason_leaves_the_key_in_doubt():
    """It may be about a key that is taken: an older service said it so."""
    outcome, _ = put_under(2, "create", "no")
    assert isinstance(outcome, Unavailable)
    assert outcome.is_doubtful


@services
@pytest.mark.parametrize(
    ("mode", "can_write"), [("", True), ("write", True), ("read", False), (" READ ", False), ("garbage", True)]
)
def test_a_cache_mode_without_writing_is_obeyed_before_anything_is_asked(service, mode, can_write):
    with CacheServer() as server:
        store = opened(server, service, ACTIONS_CACHE_MODE=mode)
        outcome = store.put(KEY, b"data", timeout_s=WAIT)
        assert isinstance(outcome, Stored if can_write else Denied)
        asked = len(server.requests)
        assert (asked > 0) is can_write
        store.get(KEY, timeout_s=WAIT)
        store.first([LINE], timeout_s=WAIT)
        assert len(server.requests) > asked


@services
@pytest.mark.parametrize("mode", ["write-only", "none", " NONE "])
def test_where_nothing_can_be_found_again_there_is_no_store(service, mode):
    with CacheServer() as server:
        outcome = cache_store(server.env(version=service, ACTIONS_CACHE_MODE=mode))
        assert isinstance(outcome, Denied)
        assert f"cache-mode is {mode.strip().lower()}" in outcome.reason
        assert "`cache-mode: write`" in outcome.remedy
        assert server.requests == []


# What is found.


@services
def test_only_the_exact_key_is_got(service):
    """The service matches a key by prefix, also where no prefix was asked for."""
    with CacheServer() as server:
        store = opened(server, service)
        store.put(KEY, b"data", timeout_s=WAIT)
        assert store.get(KEY[:-1], timeout_s=WAIT) is None
        assert store.get(LINE, timeout_s=WAIT) is None
        assert store.get(f"{KEY}0", timeout_s=WAIT) is None
        assert "download" not in server.operations


@services
def test_the_first_prefix_wins_and_within_it_the_newest(service):
    now = [1_000_000.0]
    with CacheServer(clock=lambda: now[0]) as server:
        store = opened(server, service, make_token(expires_at=2_000_000))
        for name in ("2-1", "2-2", "1-1", "1-2"):
            store.put(LINE + name, b"x", timeout_s=WAIT)
            now[0] += 1
        assert store.first([f"{LINE}3-", f"{LINE}2-", f"{LINE}1-"], timeout_s=WAIT) == f"{LINE}2-2"
        assert store.first([f"{LINE}1-", f"{LINE}2-"], timeout_s=WAIT) == f"{LINE}1-2"
        assert store.first([f"{LINE}3-"], timeout_s=WAIT) is None
        assert store.first([], timeout_s=WAIT) is None


@services
def test_many_prefixes_are_asked_for_in_their_order(service):
    with CacheServer() as server:
        store = opened(server, service)
        store.put(f"{LINE}0003-1", b"x", timeout_s=WAIT)
        store.put(f"{LINE}0001-1", b"x", timeout_s=WAIT)
        prefixes = [f"{LINE}{epoch:04}-" for epoch in range(25, 0, -1)]
        assert store.first(prefixes, timeout_s=WAIT) == f"{LINE}0003-1"
        assert server.mistakes == []


@services
def test_an_earlier_prefix_of_another_scope_is_not_passed_over(service):
    """The service searches one scope to its end before the next."""
    with CacheServer() as server:
        server.plant(f"{LINE}0002-1", b"base", VERSION, scope="refs/heads/main")
        server.plant(f"{LINE}0001-1", b"ours", VERSION)
        store = opened(server, service)
        prefixes = [f"{LINE}0003-", f"{LINE}0002-", f"{LINE}0001-"]
        assert store.first(prefixes, timeout_s=WAIT) == f"{LINE}0002-1"


@services
def test_other_branches_are_not_seen(service):
    with CacheServer() as server:
        server.plant(KEY, b"theirs", VERSION, scope="refs/pull/8/merge")
        store = opened(server, service)
        assert store.first([LINE], timeout_s=WAIT) is None
        assert store.put(KEY, b"ours", timeout_s=WAIT) == Stored(KEY, 4)


@services
def test_an_entry_that_was_not_asked_for_is_not_believed(service):
    with CacheServer() as server:
        store = opened(server, service)
        store.put("es1/ffff/c1", b"other", timeout_s=WAIT)
        server.fault("lookup", "stray", times=2)
        assert store.get(KEY, timeout_s=WAIT) is None
        with pytest.raises(StoreUnreadable, match="not asked for"):
            store.first([LINE], timeout_s=WAIT)


@services
def test_what_was_evicted_since_it_was_found_is_not_there(service):
    with CacheServer() as server:
        store = opened(server, service)
        store.put(KEY, b"data", timeout_s=WAIT)
        server.fault("download", "evicted")
        assert store.get(KEY, timeout_s=WAIT) is None
        assert store.first([LINE], timeout_s=WAIT) is None


# What cannot be read is not the same as nothing.


@services
@pytest.mark.parametrize(
    ("kind", "detail", "words"),
    [
        ("cut", "", "the connection was cut"),
        ("stall", "", "no whole answer came in time"),
        ("trickle", "", "no whole answer came in time"),
        ("error", "503", "try again later"),
        ("error", "400", "try again later"),
        ("error", "404", "try again later"),
        ("garbage", "", "cannot be understood"),
        ("error", "401", "try again later"),
        ("rate-limit", "40", "it asks to wait for 40 s"),
        ("rate-limit-403", "40", "it asks to wait for 40 s"),
        ("rate-limit-403", "", "it asks to wait for 60 s"),
    ],
)
def test_a_look_up_without_a_usable_answer_is_not_a_miss(service, kind, detail, words):
    with CacheServer() as server:
        store = opened(server, service)
        store.put(KEY, b"data", timeout_s=WAIT)
        server.fault("lookup", kind, times=9, detail=detail)
        problem = unreadable(store, timeout_s=SHORT if "time" in words else WAIT)
        assert words in str(problem)
        assert problem.hint
        assert problem.exit_code == 75


@services
def test_a_look_up_that_is_never_answered_is_asked_again(service, monkeypatch):
    monkeypatch.setattr(cache_module, "LOOK_S", SHORT)
    with CacheServer() as server:
        store = opened(server, service)
        store.put(KEY, b"data", timeout_s=WAIT)
        server.fault("lookup", "stall")
        assert store.first([LINE], timeout_s=5) == KEY


@services
@pytest.mark.parametrize("operation", ["lookup", "download"])
@pytest.mark.parametrize(
    ("kind", "detail"), [("cut", ""), ("garbage", ""), ("error", "502"), ("rate-limit", "1"), ("rate-limit-403", "1")]
)
def test_a_hiccup_of_a_read_is_asked_again(service, operation, kind, detail):
    if operation == "download" and kind in ("garbage", "rate-limit-403"):
        pytest.skip("to a download these are content, and a refusal")
    with CacheServer() as server:
        store = opened(server, service)
        store.put(KEY, b"data", timeout_s=WAIT)
        server.fault(operation, kind, detail=detail)

        assert store.get(KEY, timeout_s=WAIT) == b"data"


@services
def test_a_cache_that_refuses_to_be_read_is_no_reason_to_try_again(service):
    with CacheServer() as server:
        store = opened(server, service)
        store.put(KEY, b"data", timeout_s=WAIT)
        server.fault("lookup", "denied", times=2)
        problem = unreadable(store)
        assert isinstance(problem, StoreUnusable)
        assert problem.exit_code == 2
        assert "cache lookup denied" in str(problem)
        assert "start a new run" in problem.hint
        assert store.get(KEY, timeout_s=WAIT) == b"data"


@services
@pytest.mark.parametrize(
    ("kind", "detail"), [("truncated", ""), ("trickle", ""), ("cut", ""), ("error", "500"), ("denied", "")]
)
def test_a_download_that_is_not_whole_is_not_returned(service, kind, detail):
    with CacheServer() as server:
        store = opened(server, service)
        store.put(KEY, b"data" * 1000, timeout_s=WAIT)
        server.fault("download", kind, times=9, detail=detail)
        with pytest.raises(StoreUnreadable):
            store.get(KEY, timeout_s=1.0)
        server.faults.clear()
        assert store.get(KEY, timeout_s=WAIT) == b"data" * 1000


@services
@pytest.mark.parametrize("kind", ["torn", "flipped", "swapped"])
def test_damage_that_only_a_seal_can_find_is_passed_on(service, kind):
    with CacheServer() as server:
        store = opened(server, service)
        store.put(KEY, b"data" * 1000, timeout_s=WAIT)
        store.put(f"{LINE}9", b"other", timeout_s=WAIT)
        server.fault("download", kind)
        damaged = store.get(KEY, timeout_s=WAIT)
        assert damaged is not None
        assert damaged != b"data" * 1000


@services
def test_nothing_that_is_said_holds_the_token_or_a_signed_address(service):
    token = make_token()
    said: list[Any] = []
    for operation in ("create", "upload", "commit", "lookup", "download"):
        for kind in ("cut", "error", "denied"):
            with CacheServer() as server:
                store = opened(server, service, token)
                server.plant(f"{LINE}7", b"data", VERSION)
                server.fault(operation, kind)
                said.append(store.put(KEY, b"data", timeout_s=WAIT))
                try:
                    store.get(f"{LINE}7", timeout_s=WAIT)
                except StoreUnreadable as problem:
                    said.append(f"{problem} {problem.hint} {problem.__cause__}")
    text = repr(said)
    assert token not in text
    assert "sig=" not in text
    assert "/blob/" not in text


# Which service.


def test_version_2_is_used_where_the_runner_says_so():
    with CacheServer() as server:
        env = server.env()
        store = cache_store(
            {**env, "ACTIONS_RESULTS_URL": server.url + "some/path/", "ACTIONS_CACHE_URL": "http://127.0.0.1:9/"}
        )
        assert isinstance(store, CacheStore)
        assert isinstance(store.put(KEY, b"data", timeout_s=WAIT), Stored)
        assert all(request.path.startswith(("/twirp/", "/blob/")) for _, request in server.requests)


@pytest.mark.parametrize(
    ("more", "wire"),
    [
        ({}, CacheV2),
        ({"GITHUB_SERVER_URL": "https://github.com"}, CacheV2),
        ({"GITHUB_SERVER_URL": "https://acme.ghe.com"}, CacheV2),
        ({"GITHUB_SERVER_URL": "http://git.localhost:3000"}, CacheV2),
        ({"GITHUB_SERVER_URL": "https://git.example"}, CacheV1),
        ({"GITHUB_SERVER_URL": "https://github.com.evil.example"}, CacheV1),
        ({"ACTIONS_CACHE_SERVICE_V2": ""}, CacheV1),
        ({"ACTIONS_CACHE_SERVICE_V2": "false"}, CacheV1),
    ],
)
def test_an_enterprise_server_has_version_1_whatever_the_flag(more, wire):
    with CacheServer() as server:
        store = cache_store({**server.env(), **more})
        assert isinstance(store, CacheStore)
        assert isinstance(store._wire, wire)


@pytest.mark.parametrize("service", [2, 1])
@pytest.mark.parametrize("value", [None, "", "  "])
def test_without_credentials_there_is_no_store_and_the_reason_is_said(service, value):
    with CacheServer() as server:
        env = server.env(version=service)
    address = "ACTIONS_RESULTS_URL" if service == 2 else "ACTIONS_CACHE_URL"
    for name in (address, "ACTIONS_RUNTIME_TOKEN"):
        without = {n: v for n, v in env.items() if n != name} | ({} if value is None else {name: value})
        store = cache_store(without)
        assert isinstance(store, Denied)
        assert f"{name} is not set" in store.reason
        assert "Run as the action" in store.remedy
    assert isinstance(cache_store({}), Denied)


@pytest.mark.parametrize(
    "more",
    [{"ACTIONS_RESULTS_URL": "ftp://secret"}, {"GITHUB_SERVER_URL": "https://[secret"}, {"HTTPS_PROXY": "x://secret"}],
)
def test_an_address_that_cannot_be_used_is_said_without_being_shown(more):
    with CacheServer() as server, pytest.raises(InputError, match="No store was asked") as raised:
        cache_store({**server.env(), **more})
    assert "secret" not in str(raised.value)


def test_a_store_is_reached_through_a_proxy_with_a_private_authority(tmp_path):
    """As in a company: a proxy that is the only way out, and a service that its own authority vouches for."""
    authority = make_authority(tmp_path)
    with CacheServer(tls=authority.server) as server, Proxy() as proxy:
        env = server.env(HTTPS_PROXY=f"http://{proxy.place}", NODE_EXTRA_CA_CERTS=str(authority.certificate))
        store = cache_store({**env, "ACTIONS_RESULTS_URL": f"https://cache.test:{server.port}/"})
        assert isinstance(store, CacheStore)
        assert store.put(KEY, b"data", timeout_s=WAIT) == Stored(KEY, 4)
        assert store.get(KEY, timeout_s=WAIT) == b"data"
        assert {head.split()[0] for head in proxy.heads} == {"CONNECT"}
        assert len(proxy.heads) == len(server.requests)
