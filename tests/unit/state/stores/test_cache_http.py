"""The door to the network: an answer within its time, or a failure that says what may have happened."""

from __future__ import annotations

import base64
import contextlib
import ssl
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path

import pytest

from endstate_action.errors import InputError
from endstate_action.state.stores.bounded import Deadline
from endstate_action.state.stores.http import DEFAULT_WAIT_S, Answer, Client, NoAnswer, _covers
from tests.support.cache_server import CacheServer
from tests.support.raw_http import (
    Authority,
    Behaviour,
    Proxy,
    RawServer,
    answering,
    make_authority,
    read_head,
    silent,
    trickling,
)

TOKEN = "header.very-secret-payload.signature"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
SIGNED = "/blob/1?sig=very-secret-signature"


def ask(url: str, env: dict[str, str] | None = None, *, within_s: float = 10.0, body: bytes = b"") -> Answer:
    client = Client(url, TOKEN, env or {})
    return client.call("POST", "/x", deadline=Deadline(within_s), body=body, headers={})


def fetch(url: str, limit: int = 1 << 20, *, within_s: float = 10.0) -> Answer:
    client = Client(url, TOKEN, {})
    return client.fetch("GET", url + SIGNED, deadline=Deadline(within_s), headers={}, limit=limit)


def failure(behaviour: Behaviour, *, within_s: float = 10.0, tls: Authority | None = None, size: int = 2) -> NoAnswer:
    env = {} if tls is None else {"SSL_CERT_FILE": str(tls.certificate)}
    with RawServer(behaviour, tls.server if tls else None) as server, pytest.raises(NoAnswer) as raised:
        ask(server.url, env, within_s=within_s, body=b"x" * size)
    return raised.value


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(autouse=True)
def no_request_is_left_behind() -> Iterator[None]:
    yield
    until = time.monotonic() + 5
    while any(t.name == "http" for t in threading.enumerate()) and time.monotonic() < until:
        time.sleep(0.01)
    assert [t.name for t in threading.enumerate() if t.name == "http"] == []


# The time.


@pytest.mark.parametrize(
    "behaviour",
    [
        pytest.param(silent, id="silent"),
        pytest.param(trickling(OK), id="trickles the headers"),
        pytest.param(trickling(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 10_000), id="trickles a header for ever"),
        pytest.param(
            trickling(b"HTTP/1.1 200\r\nContent-Length: 9000\r\n\r\n" + b"x" * 9000, 0.003), id="trickles the body"
        ),
    ],
)
def test_no_server_holds_a_request_longer_than_its_time(behaviour):
    began = time.monotonic()
    failed = failure(behaviour, within_s=0.4)
    assert time.monotonic() - began < 2
    assert (failed.reason, failed.may_be_applied) == ("no whole answer came in time", True)


def test_a_server_that_reads_nothing_does_not_hold_an_upload(authority):
    began = time.monotonic()
    assert failure(silent, within_s=0.5, tls=authority, size=30 << 20).may_be_applied
    assert failure(silent, within_s=0.5, size=30 << 20).may_be_applied
    assert time.monotonic() - began < 4


def test_nothing_was_sent_where_the_connection_was_never_secured(authority):
    """The server accepts and says nothing: the time ends inside the handshake."""
    env = {"SSL_CERT_FILE": str(authority.certificate)}
    with RawServer(silent) as server, pytest.raises(NoAnswer) as raised:
        ask(server.url.replace("http:", "https:"), env, within_s=0.3)
    assert not raised.value.may_be_applied


def test_what_certainly_was_not_sent_does_not_arrive_later():
    """The time may end at any moment before the request is written; the caller must not be told too much."""
    heads: list[bytes] = []
    doubtful = 0
    with RawServer(_recording(heads)) as server:
        for i in range(40):
            try:
                ask(server.url, within_s=i * 0.0001)
            except NoAnswer as failed:
                doubtful += failed.may_be_applied
            else:
                doubtful += 1
        time.sleep(0.3)
    assert len([head for head in heads if head]) <= doubtful


# What may have happened.


def test_a_refused_connection_has_certainly_done_nothing():
    with RawServer(silent) as server:
        url = server.url
    with pytest.raises(NoAnswer) as raised:
        ask(url)
    assert (raised.value.reason, raised.value.may_be_applied) == ("no connection could be made", False)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nwithout a length",
        b"not HTTP at all\r\n\r\n",
    ],
)
def test_a_connection_cut_after_sending_is_doubtful(answer):
    failed = failure(answering(answer))
    assert (failed.reason, failed.may_be_applied) == ("the connection was cut before a whole answer came", True)


def test_nothing_is_tried_twice():
    for behaviour in (answering(b""), answering(OK.replace(b"200 OK", b"503 Busy"))):
        with RawServer(behaviour) as server:
            with contextlib.suppress(NoAnswer):
                ask(server.url)
            assert server.connections == 1


def test_a_redirect_is_an_answer_and_not_followed():
    with RawServer(answering(OK)) as other:
        moved = f"HTTP/1.1 307 Moved\r\nLocation: {other.url}/\r\nContent-Length: 0\r\n\r\n".encode()
        with RawServer(answering(moved)) as server:
            assert ask(server.url).status == 307
            assert fetch(server.url).status == 307
        assert other.connections == 0


def test_of_an_answer_no_more_than_the_limit_is_taken():
    endless = b"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n" + b"x" * (3 << 20)
    with RawServer(answering(endless)) as server:
        assert len(fetch(server.url, 1000).body) == 1000
        assert len(ask(server.url).body) == 1 << 20


# Secrets.


def _recording(heads: list[bytes]) -> Behaviour:
    def behave(connection, over):
        heads.append(read_head(connection))
        connection.sendall(OK)

    return behave


def test_the_token_goes_to_the_service_and_never_with_a_signed_address():
    heads: list[bytes] = []
    with RawServer(_recording(heads)) as server:
        ask(server.url)
        fetch(server.url)
    assert [TOKEN.encode() in head for head in heads] == [True, False]


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:9/x?sig=s", "ftp://127.0.0.1/x", "https://a@b/x", "https://a b/", "x"]
)
def test_a_signed_address_that_leads_away_from_tls_is_not_asked(url):
    client = Client("https://127.0.0.1:9", TOKEN, {})
    with pytest.raises(NoAnswer) as raised:
        client.fetch("GET", url, deadline=Deadline(5), headers={}, limit=1)
    assert (raised.value.reason, raised.value.may_be_applied) == (
        "the service handed out an address that cannot be used",
        False,
    )


def test_no_failure_shows_the_token_or_a_signature(authority):
    shown = [repr(failure(answering(b""))), repr(failure(silent, within_s=0.1))]
    with RawServer(silent) as server:
        url = server.url
    for gone in (url, "http://no-such-host.invalid", url.replace("http:", "https:")):
        with pytest.raises(NoAnswer) as raised:
            fetch(gone)
        shown.append(repr(raised.value))
        assert raised.value.__suppress_context__
    assert not [text for text in shown if "secret" in text]


def test_what_the_service_says_is_shown_without_token_and_addresses():
    client = Client("http://127.0.0.1:9", TOKEN, {})
    said = client.said(f"no\n::error:: \x1b[31m {TOKEN} at HTTPS://blob.example/x?sig=secret !{'x' * 500}")
    assert said.startswith("no ::error:: ?[31m *** at (address) !xxx")
    assert len(said) < 210


# Proxies.


def test_a_proxy_is_asked_for_what_is_not_on_this_machine():
    with CacheServer() as server, Proxy() as proxy:
        env = {"HTTP_PROXY": f"http://user:pa%20ss@{proxy.place}"}
        assert ask(f"http://cache.test:{server.port}", env).status == 401
        assert proxy.heads[0].startswith(f"POST http://cache.test:{server.port}/x HTTP/1.1")
        credentials = base64.b64encode(b"user:pa ss").decode()
        assert f"proxy-authorization: Basic {credentials}".lower() in proxy.heads[0].lower()
        assert ask(server.url, env).status == 401
        assert len(proxy.heads) == 1


def test_a_secure_service_is_reached_through_a_tunnel_that_sees_no_token(authority):
    with CacheServer(tls=authority.server) as server, Proxy() as proxy:
        env = {"https_proxy": proxy.place, "REQUESTS_CA_BUNDLE": str(authority.certificate)}
        assert ask(f"https://cache.test:{server.port}", env).status == 401
        assert [head.split()[:2] for head in proxy.heads] == [["CONNECT", f"cache.test:{server.port}"]]
        assert TOKEN not in proxy.heads[0]


def test_a_proxy_that_refuses_has_let_nothing_through():
    with Proxy(refuses=True) as proxy, pytest.raises(NoAnswer) as raised:
        ask("https://cache.test", {"HTTPS_PROXY": proxy.place})
    assert (raised.value.reason, raised.value.may_be_applied) == ("the proxy did not connect to it", False)


@pytest.mark.parametrize(
    ("no_proxy", "is_direct"),
    [
        ("", False),
        ("*", True),
        ("cache.test.", False),
        ("cache.invalid", True),
        (".invalid, other", True),
        ("*.invalid", True),
        ("CACHE.invalid:80", True),
        ("cache.invalid:81", False),
        ("ache.invalid", False),
        (",,", False),
    ],
)
def test_names_that_are_exempt_are_reached_directly(no_proxy, is_direct):
    """Directly there is no such host; the proxy would know it."""
    with Proxy(refuses=True) as proxy:
        env = {"HTTP_PROXY": proxy.place, "NO_PROXY": no_proxy}
        with pytest.raises(NoAnswer) if is_direct else contextlib.nullcontext():
            assert ask("http://cache.invalid", env, within_s=5).status == 407
        assert (proxy.heads == []) is is_direct


@pytest.mark.parametrize(
    ("exempt", "host", "is_covered"),
    [
        ("10.0.0.0/8", "10.255.255.1", True),
        ("10.0.0.0/8", "11.255.255.1", False),
        ("10.1.2.3", "10.1.2.3", True),
        ("fd00::/8", "fd00::1", True),
        ("10.0.0.0/99", "10.1.2.3", False),
    ],
)
def test_networks_can_be_exempt(exempt, host, is_covered):
    """Asked without a connection: no test may use such addresses."""
    assert _covers(exempt, host, 443) is is_covered


# Certificates.


@pytest.mark.parametrize("name", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"])
def test_an_authority_of_ones_own_is_trusted_where_it_is_named(authority, name):
    with CacheServer(tls=authority.server) as server:
        assert ask(server.url, {name: str(authority.certificate)}).status == 401


def test_a_certificate_that_nobody_vouches_for_ends_before_anything_is_sent(authority):
    with CacheServer(tls=authority.server) as server:
        with pytest.raises(NoAnswer) as raised:
            ask(server.url)
        assert not raised.value.may_be_applied
        assert "its certificate is not trusted" in raised.value.reason
        assert server.requests == []


def test_the_processs_own_environment_is_not_consulted(authority, monkeypatch):
    with CacheServer(tls=authority.server) as server, Proxy() as proxy:
        for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://{proxy.place}")
        monkeypatch.setenv("NODE_EXTRA_CA_CERTS", str(authority.certificate))
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(authority.certificate))
        with pytest.raises(NoAnswer):
            ask(server.url)
        with pytest.raises(NoAnswer):
            ask("https://cache.invalid")
        assert proxy.heads == []


@pytest.mark.parametrize("name", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"])
def test_certificates_that_cannot_be_read_are_said_before_anything_is_asked(tmp_path: Path, name):
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("no certificate")
    for path in (garbage, tmp_path / "absent.pem"):
        with pytest.raises(InputError, match="certificates cannot be read") as raised:
            Client("https://127.0.0.1", TOKEN, {name: str(path)})
        assert name in raised.value.hint


@pytest.mark.parametrize(
    ("url", "token", "env"),
    [
        ("ftp://127.0.0.1", TOKEN, {}),
        ("https://user:secret@127.0.0.1", TOKEN, {}),
        ("https://secret secret", TOKEN, {}),
        ("https://[secret", TOKEN, {}),
        ("https://127.0.0.1:0", TOKEN, {}),
        ("https://127.0.0.1", "secret\n", {}),
        ("https://127.0.0.1", "", {}),
        ("https://127.0.0.1", TOKEN, {"HTTPS_PROXY": "socks5://user:secret@127.0.0.1"}),
        ("https://127.0.0.1", TOKEN, {"HTTPS_PROXY": "http://secret@:x"}),
    ],
)
def test_settings_that_cannot_be_used_are_refused_without_being_shown(url, token, env):
    with pytest.raises(InputError) as raised:
        Client(url, token, env)
    assert "secret" not in f"{raised.value}{raised.value.hint}"
    assert "No store was asked" in str(raised.value)


# Waiting.


@pytest.mark.parametrize(
    ("header", "wait_s"),
    [
        ("7", 7.0),
        (" 0 ", 0.0),
        ("999999", 3600.0),
        (formatdate(1_000_030, usegmt=True), 30.0),
        (formatdate(999_000, usegmt=True), 0.0),
        (formatdate(9_000_000, usegmt=True), 3600.0),
        ("", DEFAULT_WAIT_S),
        ("-1", DEFAULT_WAIT_S),
        ("1e400", DEFAULT_WAIT_S),
        ("soon", DEFAULT_WAIT_S),
        ("Mon, 99 Foo 9999 99:99:99 GMT", DEFAULT_WAIT_S),
        ("\u0667", DEFAULT_WAIT_S),
    ],
)
def test_a_wait_is_read_as_seconds_or_as_a_date(header, wait_s):
    assert Answer(429, {"retry-after": header}, b"").retry_after_s(1_000_000) == wait_s


def test_many_threads_may_ask_at_once():
    answers: list[int] = []
    with CacheServer() as server:
        client = Client(server.url, TOKEN, {})

        def work() -> None:
            answers.append(client.call("GET", "/x", deadline=Deadline(20), headers={}).status)

        threads = [threading.Thread(target=work) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert answers == [401] * 16


def test_the_oldest_tls_that_is_spoken_is_1_2(authority):
    assert Client("https://127.0.0.1", TOKEN, {})._certificates.minimum_version >= ssl.TLSVersion.TLSv1_2
