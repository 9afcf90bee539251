"""The door to urllib3: one request has one answer within its time, or one failure that says what may have happened.

Nothing is tried twice and no redirect is followed. A connection is used once: on one that is kept, a service that
has just closed it leaves nobody knowing whether a request arrived. The process's own environment is never consulted:
proxies and certificates come from a mapping. The token goes to its service alone; addresses that a service hands
out are secrets themselves, get no token, and no failure shows them.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from ipaddress import ip_address, ip_network
from urllib.parse import SplitResult, unquote, urlsplit

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError, NameResolutionError, ProtocolError, ProxyError, ReadTimeoutError

from endstate_action.errors import InputError
from endstate_action.state.stores.bounded import Deadline

DEFAULT_WAIT_S = 60.0
"""What a service means that says *later* and not when."""

_LONGEST_WAIT_S = 3600.0
_LONGEST_WORDS = 200
_ANSWER_BYTES = 1 << 20
_PIECE_BYTES = 1 << 20
_TOO_LATE = "no whole answer came in time"


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back, whatever its status; `body` ends where the limit was."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    """By name in lower case."""
    body: bytes = field(repr=False)

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    def retry_after_s(self, now: float) -> float:
        """The wait that is asked for, as seconds or as a date; an hour at most."""
        text = self.headers.get("retry-after", "").strip()
        if re.fullmatch(r"[0-9]{1,9}", text):
            return min(float(text), _LONGEST_WAIT_S)
        try:
            return min(max(parsedate_to_datetime(text).timestamp() - now, 0.0), _LONGEST_WAIT_S)
        except (ValueError, OverflowError):
            return DEFAULT_WAIT_S


class NoAnswer(Exception):
    """No whole answer came. `may_be_applied` is false where it is certain that the request was not sent."""

    def __init__(self, reason: str, *, may_be_applied: bool) -> None:
        super().__init__(reason)
        self.reason, self.may_be_applied = reason, may_be_applied


class Client:
    """Requests to one service with a token, and without it to the addresses that the service hands out.

    Used from several threads at once. `env` may hold `HTTPS_PROXY`, `NO_PROXY`, `SSL_CERT_FILE` and their like.

    Raises:
        InputError: an address, a proxy or a certificate file that cannot be used.
    """

    def __init__(self, base_url: str, token: str, env: Mapping[str, str]) -> None:
        self._base = _checked(base_url, "the address of the service")
        if not token or not all("!" <= c <= "~" for c in token):
            raise _refused("the token of the service", "it is empty or holds characters that no token has")
        self._token = token
        self._proxies = {scheme: _proxy(env, scheme) for scheme in ("http", "https")}
        self._no_proxy = _setting(env, "no_proxy") or ""
        self._certificates = _certificates(env)

    def call(
        self, method: str, path: str, *, deadline: Deadline, body: bytes = b"", headers: Mapping[str, str]
    ) -> Answer:
        """Ask the service itself. `path` begins with `/` and follows the service's address.

        Raises:
            NoAnswer: as it says.
        """
        url = self._base.geturl().rstrip("/") + path
        return self._ask(
            method, url, deadline, body, {**headers, "authorization": f"Bearer {self._token}"}, _ANSWER_BYTES
        )

    def fetch(
        self, method: str, url: str, *, deadline: Deadline, body: bytes = b"", headers: Mapping[str, str], limit: int
    ) -> Answer:
        """Ask at an address that the service has handed out, without the token; of the answer `limit` bytes at most.

        Raises:
            NoAnswer: as it says; also for an address that leads away from TLS.
        """
        try:
            is_allowed = _split(url).scheme in ({"https"} if self._base.scheme == "https" else {"http", "https"})
        except ValueError:
            is_allowed = False
        if not is_allowed:
            raise NoAnswer("the service handed out an address that cannot be used", may_be_applied=False)
        return self._ask(method, url, deadline, body, headers, limit)

    def said(self, words: str) -> str:
        """What the service said, fit for a message: one line, bounded, printable, without token and addresses."""
        line = re.sub(
            r"[a-z]+://\S+", "(address)", " ".join(words.split()).replace(self._token, "***"), flags=re.IGNORECASE
        )
        shown = "".join(c if c.isprintable() else "?" for c in line)
        return shown if len(shown) <= _LONGEST_WORDS else shown[:_LONGEST_WORDS] + " ..."

    def _ask(
        self, method: str, url: str, deadline: Deadline, body: bytes, headers: Mapping[str, str], limit: int
    ) -> Answer:
        def ask() -> Answer:
            wait = urllib3.Timeout(connect=deadline.left() + 0.001, read=deadline.left() + 0.001)
            with self._manager(urlsplit(url)) as manager:
                response = manager.request(
                    method,
                    url,
                    body=body if body or method in ("POST", "PUT", "PATCH") else None,
                    headers={"user-agent": "endstate-action", "connection": "close", **headers},
                    timeout=wait,
                    retries=False,
                    redirect=False,
                    preload_content=False,
                    decode_content=False,
                )
                try:
                    return _answer(response, limit)
                finally:
                    response.close()

        return _Exchange().within(deadline, ask)

    def _manager(self, address: SplitResult) -> urllib3.PoolManager:
        proxy = self._proxies[address.scheme]
        if proxy is None or _is_reached_directly(address, self._no_proxy):
            manager = urllib3.PoolManager(ssl_context=self._certificates)
        else:
            manager = urllib3.ProxyManager(
                proxy.url,
                proxy_headers=proxy.headers,
                ssl_context=self._certificates,
                proxy_ssl_context=self._certificates,
            )
        manager.pool_classes_by_scheme = {"http": _Pool, "https": _SecurePool}
        return manager


def _answer(response: urllib3.BaseHTTPResponse, limit: int) -> Answer:
    headers = {name.lower(): value for name, value in response.headers.items()}
    # Without a length, an answer that was cut off ends like a whole one.
    if response.status != 204 and not {"content-length", "transfer-encoding"} & headers.keys():
        raise ProtocolError
    return Answer(response.status, headers, _read(response, limit))


def _read(response: urllib3.BaseHTTPResponse, limit: int) -> bytes:
    pieces: list[bytes] = []
    left = limit
    # To the end, even where a piece is short: only a read at the end notices that the body was cut off.
    while left > 0 and (piece := response.read(min(left, _PIECE_BYTES), decode_content=False)):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


# The deadline.


class _Exchange:
    """One request in a thread of its own, which is cut off when its time is over.

    Time-outs of a socket count from byte to byte, and looking up a name has none: a server that sends a byte a
    second, or a name server that is silent, would hold the caller for as long as it likes.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_sent = self._is_over = False
        self._socket: socket.socket | None = None
        self._answer: Answer | None = None
        self._problem: BaseException | None = None

    def within(self, deadline: Deadline, ask: Callable[[], Answer]) -> Answer:
        thread = threading.Thread(target=self._run, args=(ask,), daemon=True, name="http")
        thread.start()
        thread.join(deadline.left())
        with self._lock:
            self._is_over = True
            if self._socket is not None:
                self._cut(self._socket)
            if self._answer is not None:
                return self._answer
            if self._problem is None:
                raise NoAnswer(_TOO_LATE, may_be_applied=self._is_sent)
            if not isinstance(self._problem, HTTPError | HTTPException | OSError):
                raise self._problem
            raise NoAnswer(_reason(self._problem, is_sent=self._is_sent), may_be_applied=self._is_sent) from None

    def begin(self, connected: HTTPConnection) -> None:
        """From here on the request may arrive. Called when there is a connection, before anything is sent on it."""
        with self._lock:
            if self._is_over:
                raise TimeoutError
            # A descriptor of our own: the connection's may be closed, and its number reused, at any moment.
            self._socket = socket.socket(fileno=os.dup(connected.sock.fileno()))
            self._is_sent = True

    def _run(self, ask: Callable[[], Answer]) -> None:
        _EXCHANGE.set(self)
        try:
            answer = ask()
        except BaseException as problem:  # noqa: BLE001  raised again in the thread that asked
            with self._lock:
                self._problem = problem
        else:
            with self._lock:
                self._answer = answer

    @staticmethod
    def _cut(connection: socket.socket) -> None:
        try:
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the other side was faster
        finally:
            connection.close()


_EXCHANGE: ContextVar[_Exchange] = ContextVar("exchange")


class _Connection(HTTPConnection):
    def connect(self) -> None:
        super().connect()
        _EXCHANGE.get().begin(self)


class _SecureConnection(HTTPSConnection):
    def connect(self) -> None:
        super().connect()
        _EXCHANGE.get().begin(self)


class _Pool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


def _reason(problem: BaseException, *, is_sent: bool) -> str:
    """In our own words: the library's name objects, and some of them hold the whole address."""
    causes = list(_causes(problem))
    untrusted = next((c.verify_message for c in causes if isinstance(c, ssl.SSLCertVerificationError)), None)
    if untrusted is not None:
        return f"its certificate is not trusted ({untrusted})"
    if any(isinstance(cause, NameResolutionError | socket.gaierror) for cause in causes):
        return "its name could not be looked up"
    if is_sent and any(isinstance(cause, TimeoutError | ReadTimeoutError) for cause in causes):
        return _TOO_LATE  # the socket has noticed a moment before we did
    if is_sent:
        return "the connection was cut before a whole answer came"
    if any(isinstance(cause, ProxyError) or "Tunnel connection failed" in str(cause) for cause in causes):
        return "the proxy did not connect to it"
    return "no connection could be made"


def _causes(problem: BaseException) -> Iterator[BaseException]:
    """The exception and whatever it wraps, in any of the ways that are in use."""
    found = {id(problem): problem}
    waiting = [problem]
    while waiting:
        one = waiting.pop()
        yield one
        for inner in (one.__cause__, one.__context__, *one.args):
            if isinstance(inner, BaseException) and id(inner) not in found:
                found[id(inner)] = inner
                waiting.append(inner)


# Settings.


@dataclass(frozen=True, slots=True)
class _Proxy:
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)


def _proxy(env: Mapping[str, str], scheme: str) -> _Proxy | None:
    name = f"{scheme}_proxy"
    text = _setting(env, name) or _setting(env, "all_proxy")
    if text is None:
        return None
    parts = _checked(text if "://" in text else f"http://{text}", name.upper(), may_hold_user=True)
    user, _, place = parts.netloc.rpartition("@")
    headers = urllib3.make_headers(proxy_basic_auth=unquote(user)) if user else {}
    return _Proxy(f"{parts.scheme}://{place}", headers)


def _setting(env: Mapping[str, str], name: str) -> str | None:
    return (env.get(name) or env.get(name.upper()) or "").strip() or None


def _is_reached_directly(address: SplitResult, no_proxy: str) -> bool:
    host, port = (address.hostname or "").rstrip("."), address.port or (443 if address.scheme == "https" else 80)
    return host == "localhost" or any(
        _covers(name.strip().lower(), host, port) for name in f"127.0.0.0/8,::1,{no_proxy}".split(",")
    )


def _covers(exempt: str, host: str, port: int) -> bool:
    """An entry of NO_PROXY: a name and all below it, an address, a network, each also with a port; or `*`."""
    try:
        return ip_address(host) in ip_network(exempt, strict=False)
    except ValueError:
        name, colon, number = exempt.rpartition(":")
        if not colon:
            name = exempt
        elif number != str(port):
            return False
        name = name.removeprefix("*").lstrip(".") if name != "*" else "*"
        return bool(name) and (name in ("*", host) or host.endswith(f".{name}"))


def _certificates(env: Mapping[str, str]) -> ssl.SSLContext:
    """Whom to trust: the first of the files that replace the system's certificates, and those to be added."""
    names = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
    file = next((env[name] for name in names if env.get(name)), None)
    folder, more = env.get("SSL_CERT_DIR") or None, env.get("NODE_EXTRA_CA_CERTS") or None
    try:
        if file is not None and os.path.isdir(file):
            file, folder = None, folder or file
        context = ssl.create_default_context(cafile=file, capath=folder)
        if more is not None:
            context.load_verify_locations(cafile=more)
    except (OSError, ValueError) as problem:
        raise InputError(
            f"No store was asked: a file of certificates cannot be read ({problem}).",
            hint="Correct SSL_CERT_FILE, SSL_CERT_DIR, REQUESTS_CA_BUNDLE or NODE_EXTRA_CA_CERTS, or unset them.",
        ) from None
    return context


def _checked(text: str, name: str, *, may_hold_user: bool = False) -> SplitResult:
    try:
        return _split(text, may_hold_user=may_hold_user)
    except ValueError as problem:
        raise _refused(name, str(problem)) from None


def _split(text: str, *, may_hold_user: bool = False) -> SplitResult:
    """An address of a web server.

    Raises:
        ValueError: why it is none, in words that do not hold it.
    """
    if not all("!" <= c <= "~" for c in text):
        raise ValueError("it holds white space or characters that no address has")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ValueError("it is no address") from None
    if parts.scheme not in ("http", "https"):
        raise ValueError("it must begin with https:// or http://")
    if not parts.hostname or port == 0:
        raise ValueError("it names no host")
    if "@" in parts.netloc and not may_hold_user:
        raise ValueError("it must not carry a user name or password")
    return parts


def _refused(name: str, why: str) -> InputError:
    # Without the value: an address may hold a password.
    return InputError(f"No store was asked: {name} cannot be used, {why}.", hint=f"Correct {name} and run again.")
