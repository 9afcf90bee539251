"""One request, one outcome: what may have been applied is never called failed, and no write is sent twice unasked."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import github as pygithub
import pytest

from endstate_action.ci.github import GitHub
from endstate_action.ci.outcome import (
    Absent,
    Ambiguous,
    Applied,
    Denied,
    Failed,
    RateLimited,
    Rejected,
    TooLate,
    Unavailable,
    once_more,
    told,
)
from endstate_action.errors import InputError
from tests.support.github_server import FOREVER, TOKEN, GitHubServer, bare_repository

COMMENTS = "/repos/org/repo/issues/7/comments"
NEEDS = "pull-requests: write"


@pytest.fixture(scope="module")
def bare(tmp_path_factory) -> Path:
    return bare_repository(tmp_path_factory.mktemp("github"))


@pytest.fixture
def server(bare) -> Iterator[GitHubServer]:
    with GitHubServer(bare) as github:
        yield github


def client(server: GitHubServer, env: dict[str, str] | None = None, **more: Any) -> GitHub:
    return GitHub(server.url, TOKEN, env or {}, pauses_s=(0, 0), **more)


def post(github: GitHub) -> Any:
    return told(lambda: github.write("POST", COMMENTS, {"body": "hello"}, needs=NEEDS))


def read(github: GitHub) -> Any:
    return told(lambda: list(github.pages(COMMENTS, NEEDS)))


_REFUSED = """
import sys
from endstate_action.ci.github import GitHub
from endstate_action.ci.outcome import told
github = GitHub(sys.argv[1], sys.argv[2], {}, pauses_s=(0, 0))
print(told(lambda: github.read("/repos/org/repo/issues/7/comments", needs="pull-requests: read")))
"""


@pytest.mark.parametrize("kind", ["403", "secondary"])
def test_what_github_refuses_is_told_by_its_outcome_and_printed_by_nobody(server, kind):
    server.fault("comment.list", kind, retry_after=1)

    done = subprocess.run(
        [sys.executable, "-c", _REFUSED, server.url, TOKEN], capture_output=True, text=True, timeout=60, check=False
    )

    assert done.stdout
    assert done.stderr == ""


# Writes.


@pytest.mark.parametrize(
    ("kind", "is_applied"),
    [
        ("applied-502", True),
        ("502", False),
        ("503", False),
        ("drop-before", False),
        ("drop-after", True),
        ("stall-before", False),
        ("stall-after", True),
    ],
)
def test_a_write_without_an_answer_is_ambiguous_and_sent_once(server, kind, is_applied):
    server.fault("comment.create", kind, times=FOREVER)

    outcome = post(client(server, timeout_s=1 if kind.startswith("stall") else 30))

    assert isinstance(outcome, Ambiguous)
    assert len(server.comments) == int(is_applied)
    assert server.count("comment.create") == 1


def test_the_librarys_own_default_would_have_sent_it_twice(server):
    """Why writes have a client of their own: if this fails, the library has changed its mind."""
    server.fault("comment.create", "applied-502")
    theirs = pygithub.Github(base_url=server.url, auth=pygithub.Auth.Token(TOKEN), seconds_between_writes=0)

    theirs.requester.requestJsonAndCheck("POST", COMMENTS, input={"body": "hello"})
    theirs.close()

    assert len(server.comments) == 2


def test_a_write_that_could_not_connect_was_not_applied(server):
    github = client(server)
    server.__exit__(None)

    outcome = post(github)

    server.__enter__()
    assert isinstance(outcome, Unavailable)


def test_a_sender_that_is_too_late_sends_nothing(server):
    outcome = told(
        lambda: client(server).write("POST", COMMENTS, {"body": "hello"}, needs=NEEDS, may_write=lambda: False)
    )

    assert outcome == TooLate()
    assert server.received == []


def test_a_sender_asks_after_it_has_waited_for_its_turn(server):
    """What is asked before a pause of our own is no answer any more when it is over."""
    github = GitHub(server.url, TOKEN, {}, pauses_s=(0, 0.3))
    asked: list[float] = []

    def may_write() -> bool:
        asked.append(time.monotonic())
        return True

    github.write("POST", COMMENTS, {"body": "hello"}, needs=NEEDS, may_write=may_write)
    begun = time.monotonic()
    github.write("POST", COMMENTS, {"body": "hello"}, needs=NEEDS, may_write=may_write)

    assert asked[1] - begun > 0.2


# Reads.


@pytest.mark.parametrize("kind", ["503", "502", "drop-before"])
def test_a_read_is_tried_again(server, kind):
    server.say("alice", "hello")
    server.fault("comment.list", kind, times=2)

    outcome = read(client(server))

    assert isinstance(outcome, Applied)
    assert [comment["body"] for comment in outcome.value] == ["hello"]


def test_an_outage_ends_a_read_as_unavailable(server):
    server.fault("*", "503", times=FOREVER)

    outcome = read(client(server))

    assert isinstance(outcome, Unavailable)
    assert server.count("comment.list") == 4


def test_all_pages_are_read(server):
    for number in range(250):
        server.say("alice", str(number))

    assert [comment["body"] for comment in read(client(server)).value] == [str(number) for number in range(250)]


def test_a_list_without_end_is_not_read_for_ever(server):
    for number in range(30):
        server.say("alice", str(number))

    outcome = told(lambda: list(client(server).pages(COMMENTS, NEEDS, most=2, per_page=10)))

    assert isinstance(outcome, Unavailable)
    assert server.count("comment.list") == 2


# Refusals.


def test_a_missing_permission_is_told_with_the_lines_to_paste(server):
    server.fault("comment.create", "403")

    outcome = post(client(server))

    assert isinstance(outcome, Denied)
    assert outcome.lacks == "pull-requests: write"
    assert outcome.lacks in outcome.remedy
    assert "Resource not accessible by integration" in outcome.reason


@pytest.mark.parametrize("act", [post, read])
def test_an_expired_token_is_told(server, act):
    server.token = "another"

    outcome = act(client(server))

    assert isinstance(outcome, Denied)
    assert "expired" in outcome.remedy


def test_what_is_not_there_is_absent(server):
    outcome = told(lambda: client(server).read("/repos/org/repo/issues/comments/1", needs=NEEDS))

    assert isinstance(outcome, Absent)


def test_what_github_will_never_take_is_rejected_in_its_words(server):
    outcome = told(lambda: client(server).write("POST", COMMENTS, {"body": "x" * 70_000}, needs=NEEDS))

    assert outcome == Rejected("GitHub answered 422: Body is too long (maximum is 65536 characters)")


@pytest.mark.parametrize("act", [post, read])
@pytest.mark.parametrize(
    ("kind", "retry_after", "least_wait_s"),
    [("primary", "", 1700), ("secondary", "3600", 3600), ("secondary", "", 60), ("429", "120", 120)],
)
def test_a_long_rate_limit_is_told_and_not_waited_for(server, act, kind, retry_after, least_wait_s):
    operation = "comment.create" if act is post else "comment.list"
    server.fault(operation, kind, times=FOREVER, retry_after=retry_after)
    begun = time.monotonic()

    outcome = act(client(server))

    assert isinstance(outcome, RateLimited)
    assert least_wait_s <= outcome.wait_s <= least_wait_s + 120
    assert time.monotonic() - begun < 5
    assert server.comments == []


def test_a_short_rate_limit_is_waited_for_and_a_write_made_once(server):
    server.fault("comment.list", "secondary", retry_after="1")
    server.fault("comment.create", "secondary", retry_after="1")

    assert read(client(server)) == Applied([])
    assert isinstance(post(client(server)), Applied)
    assert len(server.comments) == 1


def test_a_rate_limit_is_waited_for_twice_and_no_longer_than_its_sender_may_send(server):
    server.fault("comment.create", "secondary", times=FOREVER, retry_after="1")
    answers = [True, False]

    limited = post(client(server))

    assert limited == RateLimited(
        "GitHub answered 403: You have exceeded a secondary rate limit. "
        "Please wait a few minutes before you try again.",
        1.0,
    )
    assert len([r for r in server.received if r.method == "POST"]) == 3
    with pytest.raises(Failed) as late:
        client(server).write("POST", COMMENTS, {"body": "x"}, needs=NEEDS, may_write=lambda: answers.pop(0))
    assert late.value.failure == TooLate()
    assert server.comments == []


def test_a_long_rate_limit_is_told_at_once(server):
    server.fault("comment.create", "secondary", retry_after="11")

    assert isinstance(post(client(server)), RateLimited)


def test_a_conflict_is_nothing_that_lasts(server):
    server.fault("comment.create", "409")

    assert isinstance(post(client(server)), Unavailable)


# Secrets.


@pytest.mark.parametrize("kind", ["401", "422", "502", "drop-before", "stall-before"])
def test_no_failure_holds_the_token(server, kind):
    server.fault("*", kind, times=FOREVER, message=f"not with {TOKEN}, see https://example.invalid/?t={TOKEN}")
    github = client(server, timeout_s=1 if kind.startswith("stall") else 30)

    with pytest.raises(Failed) as failed:
        github.write("POST", COMMENTS, {"body": "hello"}, needs=NEEDS)

    shown = "".join(traceback.format_exception(failed.value)) + repr(failed.value.failure) + repr(github)
    assert TOKEN not in shown
    assert failed.value.__context__ is None  # it would hold the request, and with it the header


@pytest.mark.parametrize("token", ["", "two words", "line\nbreak", "schlüssel"])
def test_what_is_no_token_is_refused_unseen(token):
    with pytest.raises(InputError) as refused:
        GitHub("https://api.example.invalid", token, {})

    assert not token or token not in str(refused.value)


@pytest.mark.parametrize(
    "url", ["", "ftp://x", "api.example.invalid", "https://u:secret@x", "https://x/?q", "http://[x"]
)
def test_what_is_no_address_is_refused_unseen(url):
    with pytest.raises(InputError) as refused:
        GitHub(url, TOKEN, {})

    assert "secret" not in str(refused.value)


# Ways there.


def test_proxies_come_from_the_mapping(server):
    """The fake plays the proxy: it is asked for a host that does not exist."""
    github = GitHub("http://api.example.invalid", TOKEN, {"HTTP_PROXY": server.url}, pauses_s=(0, 0))

    assert isinstance(post(github), Applied)
    assert len(server.comments) == 1


def test_proxies_of_the_process_are_not_consulted(server, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")

    assert isinstance(post(client(server)), Applied)


def test_a_host_that_is_exempt_is_asked_without_the_proxy(server):
    env = {"HTTP_PROXY": server.url, "NO_PROXY": "other.invalid,.example.invalid"}

    outcome = post(GitHub("http://api.example.invalid", TOKEN, env, pauses_s=(0, 0)))

    assert isinstance(outcome, Unavailable)
    assert server.received == []


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes the certificate, is not here")
    file: Path = tmp_path_factory.mktemp("tls") / "both.pem"
    about = ("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2")
    made = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *about, "-keyout", str(file), "-out", "-")
    done = subprocess.run(made, check=True, capture_output=True)
    file.write_bytes(file.read_bytes() + done.stdout)
    return file


@pytest.mark.parametrize("name", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"])
def test_certificates_come_from_the_mapping(bare, certificate, name):
    with GitHubServer(bare, certificate=certificate) as server:
        assert isinstance(post(client(server, {name: str(certificate)})), Applied)


def test_an_untrusted_certificate_is_told_and_nothing_was_sent(bare, certificate, monkeypatch):
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    with GitHubServer(bare, certificate=certificate) as server:
        outcome = post(client(server))

        assert isinstance(outcome, Unavailable)
        assert "certificate" in outcome.reason
        assert server.received == []


def test_a_cut_on_an_encrypted_connection_is_ambiguous(bare, certificate):
    with GitHubServer(bare, certificate=certificate) as server:
        server.fault("comment.create", "drop-after", times=FOREVER)

        assert isinstance(post(client(server, {"SSL_CERT_FILE": str(certificate)})), Ambiguous)
        assert len(server.comments) == 1


def test_a_file_of_certificates_that_is_not_there_is_told():
    with pytest.raises(InputError):
        GitHub("https://api.example.invalid", TOKEN, {"SSL_CERT_FILE": "/nowhere"})


def test_an_enterprise_server_is_asked_below_its_path(bare):
    with GitHubServer(bare, prefix="/api/v3") as server:
        github = client(server)

        assert isinstance(post(github), Applied)
        assert github.viewer() == "github-actions[bot]"


# Answers that are none.


@contextmanager
def answering(raw: bytes) -> Iterator[str]:
    """A server that says this to everything."""

    class Handler(BaseHTTPRequestHandler):
        def _say(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            self.wfile.write(raw)

        do_GET = do_POST = _say  # noqa: N815  the names are the library's

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def http(status: str, body: bytes, *headers: str) -> bytes:
    head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


@pytest.mark.parametrize(
    "raw",
    [
        http("200 OK", b"<html>Sign in to the proxy</html>"),
        http("200 OK", b'{"id": 1'),
        http("200 OK", b"[" * 100_000),
        http("200 OK", b"\xff\xfe"),
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
        b"not HTTP at all",
    ],
)
def test_an_answer_that_is_none_leaves_a_write_ambiguous(raw):
    with answering(raw) as url:
        github = GitHub(url, TOKEN, {}, pauses_s=(0, 0))

        assert isinstance(post(github), Ambiguous)
        assert isinstance(read(github), Unavailable)
        assert github.viewer() is None


@pytest.mark.parametrize("raw", [http("200 OK", b'{"message": "hi"}'), http("200 OK", b'"text"'), http("200 OK", b"7")])
def test_what_is_no_list_is_not_read_as_an_empty_one(raw):
    with answering(raw) as url:
        assert isinstance(read(GitHub(url, TOKEN, {}, pauses_s=(0, 0))), Unavailable)


@pytest.mark.parametrize(
    "body", [b'{"message": 5, "errors": 7}', b'{"errors": ["x", {"code": null}]}', b"[]", b"no", b""]
)
def test_a_refusal_in_odd_words_is_a_refusal(body):
    with answering(http("422 Unprocessable", body)) as url:
        assert isinstance(post(GitHub(url, TOKEN, {}, pauses_s=(0, 0))), Rejected)


@pytest.mark.parametrize("status", ["301 Moved Permanently", "307 Temporary Redirect"])
def test_no_token_follows_a_redirect_to_another_host(status):
    raw = http(status, b'{"message": "Moved"}', "Location: http://elsewhere.invalid/repos/org/repo")
    with answering(raw) as url:
        outcome = post(GitHub(url, TOKEN, {}, pauses_s=(0, 0)))

        assert isinstance(outcome, Unavailable | Rejected)


# Once more.


class Sent:
    """What sending and looking come to, one after another."""

    def __init__(self, sends: list[Any], looks: list[Any]) -> None:
        self.sends, self.looks, self.sent = sends, looks, 0

    def send(self) -> Any:
        self.sent += 1
        return self._next(self.sends)

    def look(self) -> Any:
        return self._next(self.looks)

    @staticmethod
    def _next(script: list[Any]) -> Any:
        step = script.pop(0)
        if isinstance(step, str | None):
            return step
        raise Failed(step)

    def outcome(self) -> Any:
        return told(lambda: once_more(self.send, self.look, lambda seconds: None))


DOUBT, GONE = Ambiguous("no answer"), Unavailable("down")


@pytest.mark.parametrize(
    ("sends", "looks", "outcome", "sent"),
    [
        pytest.param(["a"], [], Applied("a"), 1, id="answered"),
        pytest.param([GONE], [], GONE, 1, id="refused"),
        pytest.param([DOUBT], ["a"], Applied("a"), 1, id="seen"),
        pytest.param([DOUBT, "b"], [None], Applied("b"), 2, id="sent once more"),
        pytest.param([DOUBT, DOUBT], [None, "b"], Applied("b"), 2, id="seen at last"),
        pytest.param([DOUBT, DOUBT], [None, None], Ambiguous, 2, id="never a third time"),
        pytest.param([DOUBT], [GONE], Ambiguous, 1, id="who cannot look does not send"),
        pytest.param([DOUBT, TooLate()], [None, None], Ambiguous, 2, id="too late for more"),
        pytest.param([DOUBT, GONE], [None, "a"], Applied("a"), 2, id="the first after all"),
    ],
)
def test_what_is_in_doubt_is_looked_for_before_it_is_sent_once_more(sends, looks, outcome, sent):
    script = Sent(list(sends), list(looks))

    came = script.outcome()

    assert came == outcome if isinstance(outcome, Applied | Unavailable) else isinstance(came, outcome)
    assert script.sent == sent
