"""GitHub as we speak to it: one request has one outcome, and no write is repeated behind our back.

Reads are tried again, with a pause. A write is sent once, and not before its sender was asked whether it still may;
again only where a rate limit kept it from being applied.
What cannot be told from the answer (a server error, silence, a cut connection) is called ambiguous, never failed:
`outcome.once_more` then looks before it sends again. No failure holds the token, nor any address.

Every request has a connection of its own: on one that is kept, a service that has just closed it leaves nobody
knowing whether a request arrived. Proxies and certificates come from a mapping, never from the process's environment.
"""

from __future__ import annotations

import json
import logging
import math
import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from endstate_action.ci.endpoint import Endpoint
from endstate_action.ci.outcome import (
    Absent,
    Ambiguous,
    Denied,
    Failed,
    Failure,
    RateLimited,
    Rejected,
    TooLate,
    Unavailable,
    understood,
)

if TYPE_CHECKING:
    from github.Requester import Requester

TIMEOUT_S = 15
"""How long an answer, and before it a connection, may take to come."""

LONGEST_WAIT_S = 60
"""A read waits this long at most for a rate limit; where more is asked for, it gives up."""

LONGEST_WRITE_WAIT_S = 10
"""And a write, twice: whoever waits for it may be about to be killed."""

MOST_PAGES = 100
PER_PAGE = 100

MayWrite = Callable[[], bool]
"""Asked just before a write is sent; once it says no, the answer of the fence is too old to act on."""

_LONGEST_WORDS = 200
_USER_AGENT = "endstate-action"
_NO_CONTENT = 204


class GitHub:
    """Requests with one token to one API, one at a time.

    Args:
        api_url: `GITHUB_API_URL`; on an Enterprise Server it has a path.
        env: where proxies and certificates are named.
        pauses_s: between two reads, and between two writes; GitHub asks for the latter, and counts a read for little.

    Raises:
        InputError: an address, a token, a proxy or a certificate file that cannot be used.
    """

    def __init__(
        self,
        api_url: str,
        token: str,
        env: Mapping[str, str],
        *,
        timeout_s: int = TIMEOUT_S,
        pauses_s: tuple[float, float] = (0, 1.0),
    ) -> None:
        endpoint = Endpoint.checked(api_url, token, env)
        self._token = token
        self._reader = _requester(endpoint, timeout_s, pauses_s[0], is_retrying=True)
        # Not even a connection is tried twice, and no pause is made: either would come between the sender's being
        # asked whether it still may, and what it sends.
        self._writer = _requester(endpoint, timeout_s, 0, is_retrying=False)
        self._write_pause_s, self._last_write = pauses_s[1], -math.inf

    def read(self, path: str, parameters: Mapping[str, str | int] | None = None, *, needs: str) -> Any:
        """The JSON at `path`. `needs` is the permission, as in `contents: read`.

        Raises:
            Failed: never as ambiguous.
        """
        return self._read(path, parameters or {}, needs)[0]

    def pages(
        self, path: str, needs: str, *, item: str | None = None, most: int = MOST_PAGES, per_page: int = PER_PAGE
    ) -> Iterator[Any]:
        """The items of a list over all of its pages; `item` is the list's name where it is in an object.

        Raises:
            Failed: a page cannot be read, or there are more than `most`.
        """
        separator = "&" if "?" in path else "?"
        for page in range(1, most + 1):
            found, headers = self._read(f"{path}{separator}per_page={per_page}&page={page}", {}, needs)
            listed = found.get(item) if item and isinstance(found, dict) else found
            if not isinstance(listed, list):
                raise Failed(Unavailable("GitHub answered with something that is no list"))
            yield from listed
            if 'rel="next"' not in headers.get("link", ""):
                return
        raise Failed(Unavailable(f"there are more than {most} pages, and not all were read"))

    def write(
        self,
        verb: Literal["POST", "PATCH", "DELETE"],
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        needs: str,
        may_write: MayWrite = lambda: True,
    ) -> Any:
        """Send once; the JSON that is answered, None where there is none.

        What was refused for a short while only, and so was not applied, is sent again when GitHub asks for that.

        Raises:
            Failed: as it says.
        """
        failure: Failure = TooLate()
        for is_last in (False, False, True):
            time.sleep(max(self._last_write + self._write_pause_s - time.monotonic(), 0))
            if not may_write():
                raise Failed(TooLate())
            answer = self._asked(self._writer, verb, path, body)
            self._last_write = time.monotonic()
            try:
                return self._judged(answer, needs, is_write=True)
            except Failed as failed:
                failure = failed.failure
            if is_last or not isinstance(failure, RateLimited) or failure.wait_s > LONGEST_WRITE_WAIT_S:
                break
            time.sleep(failure.wait_s)
        raise Failed(failure)

    def viewer(self) -> str | None:
        """The login that the token writes under, `github-actions[bot]` for a job's own; None where it is not told.

        `GET /user` refuses the tokens of apps, and a job's token is one.
        """
        query = {"query": "query { viewer { login } }"}
        answer = self._asked(self._reader, "POST", self._reader.graphql_url, query)
        try:
            found = self._judged(answer, "metadata: read", is_write=False)
            return understood(lambda node: node.need("data").need("viewer").text("login"), found) or None
        except Failed:
            return None

    def close(self) -> None:
        self._reader.close()
        self._writer.close()

    def _read(self, path: str, parameters: Mapping[str, str | int], needs: str) -> tuple[Any, Mapping[str, str]]:
        answer = self._asked(self._reader, "GET", path, None, parameters)
        found = self._judged(answer, needs, is_write=False)
        return found, answer.headers if isinstance(answer, _Answer) else {}

    def _asked(
        self,
        requester: Requester,
        verb: str,
        path: str,
        body: Mapping[str, Any] | None,
        parameters: Mapping[str, str | int] | None = None,
    ) -> _Answer | _NoAnswer:
        from github.GithubException import GithubException

        try:
            status, headers, text = requester.requestJson(verb, path, dict(parameters or {}), {}, body)
            return _Answer(status, {k.lower(): str(v) for k, v in headers.items()}, text)
        except GithubException as problem:
            # What a retry gives up on comes as an exception, anything else as an answer.
            named = {k.lower(): str(v) for k, v in (problem.headers or {}).items()}
            return _Answer(problem.status, named, json.dumps(problem.data, default=str))
        except OSError as problem:
            return _no_answer(problem)
        except (RuntimeError, AssertionError):
            return _NoAnswer("it sent us to another address", may_be_applied=False)
        except ValueError:
            return _NoAnswer("its answer could not be read", may_be_applied=True)

    def _judged(self, answer: _Answer | _NoAnswer, needs: str, *, is_write: bool) -> Any:
        """The JSON of a success.

        Judged outside of any `except`: what the library raises may hold the request's headers, and would be carried on.
        """
        if isinstance(answer, _NoAnswer):
            reason = f"GitHub did not answer: {answer.reason}"
            is_open = is_write and answer.may_be_applied
            raise Failed(Ambiguous(reason) if is_open else Unavailable(reason))
        found = _parsed(answer)
        if answer.is_success:
            if isinstance(found, Unreadable):
                reason = f"GitHub's answer ({answer.status}) is not JSON"
                raise Failed(Ambiguous(reason) if is_write else Unavailable(reason))
            return found
        raise Failed(_failure(answer, self._said(found), needs, is_write=is_write))

    def _said(self, found: Any) -> str:
        """What GitHub said, fit for a message: one line, bounded, printable, without token and addresses."""
        told = found if isinstance(found, dict) else {}
        errors = told.get("errors")
        listed = errors if isinstance(errors, list) else []
        details = [e.get("message") or e.get("code") for e in listed if isinstance(e, dict)]
        words = " ".join(str(part) for part in (told.get("message"), *details) if part)
        line = re.sub(r"[a-z]+://\S+", "(address)", " ".join(words.split()), flags=re.IGNORECASE)
        shown = "".join(c if c.isprintable() else "?" for c in line.replace(self._token, "***"))
        return shown if len(shown) <= _LONGEST_WORDS else shown[:_LONGEST_WORDS] + " ..."


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: Mapping[str, str]
    """By name in lower case."""
    text: str

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


@dataclass(frozen=True, slots=True)
class _NoAnswer:
    reason: str
    may_be_applied: bool


class Unreadable:
    """Stands for an answer that is not JSON."""


def _parsed(answer: _Answer) -> Any:
    if answer.status == _NO_CONTENT:
        return None
    try:
        return json.loads(answer.text)
    except (ValueError, RecursionError):
        return Unreadable()


def _failure(answer: _Answer, said: str, needs: str, *, is_write: bool) -> Failure:
    status = answer.status
    told = f"GitHub answered {status}" + (f": {said}" if said else "")
    if _is_rate_limit(answer, said):
        return RateLimited(told, _asked_wait_s(answer.headers))
    match status:
        case 401:
            return Denied(told, "The token has expired or was revoked. Run again with a fresh one.", has_expired=True)
        case 403 if "locked" in said.lower():
            return Denied(told, "Unlock the conversation, or do without the comment (`comment: off`, by a variable).")
        case 403:
            return Denied(told, f"Give the job `{needs}`, beside the permissions that it has.", lacks=needs)
        case 410 if "disabled" in said.lower():
            return Rejected(told)  # a setting of the repository
        case 404 | 410:
            return Absent(told)
        case 409:
            return Unavailable(told)  # something else is at it; nothing was applied
        case _ if status >= 500:
            return Ambiguous(told) if is_write else Unavailable(told)
        case _:
            return Rejected(told)


def _is_rate_limit(answer: _Answer, said: str) -> bool:
    words = said.lower()
    is_named = "rate limit" in words or "submitted too quickly" in words or "retry your request again later" in words
    is_spent = answer.headers.get("x-ratelimit-remaining") == "0" or "retry-after" in answer.headers
    return answer.status == 429 or (answer.status in (403, 422) and (is_named or (answer.status == 403 and is_spent)))


def _asked_wait_s(headers: Mapping[str, str]) -> float:
    """As GitHub asks: the header, else until the limit is reset, else a minute."""
    seconds, reset = headers.get("retry-after", ""), headers.get("x-ratelimit-reset", "")
    if re.fullmatch(r"[0-9]{1,6}", seconds):
        return float(seconds)
    if headers.get("x-ratelimit-remaining") == "0" and re.fullmatch(r"[0-9]{1,12}", reset):
        return max(float(reset) - time.time(), 1.0)
    return float(LONGEST_WAIT_S)


_NOT_SENT = frozenset({"NewConnectionError", "NameResolutionError", "ConnectTimeoutError"})


def _no_answer(problem: OSError) -> _NoAnswer:
    """In our own words: the library's hold the address, and its exceptions the headers."""
    from requests.exceptions import ConnectTimeout, ProxyError, ReadTimeout

    causes = list(_causes(problem))
    untrusted = next((c.verify_message for c in causes if isinstance(c, ssl.SSLCertVerificationError)), None)
    if untrusted is not None:
        return _NoAnswer(f"its certificate is not trusted ({untrusted})", may_be_applied=False)
    if isinstance(problem, ProxyError):
        return _NoAnswer("the proxy did not connect to it", may_be_applied=False)
    if isinstance(problem, ConnectTimeout) or any(type(cause).__name__ in _NOT_SENT for cause in causes):
        return _NoAnswer("no connection could be made", may_be_applied=False)
    if isinstance(problem, ReadTimeout):
        return _NoAnswer("no answer came in time", may_be_applied=True)
    return _NoAnswer("the connection was cut before a whole answer came", may_be_applied=True)


def _causes(problem: BaseException) -> Iterator[BaseException]:
    """The exception and whatever it wraps, in any of the ways that are in use."""
    found = {id(problem): problem}
    waiting = [problem]
    while waiting:
        one = waiting.pop()
        yield one
        for inner in (one.__cause__, one.__context__, getattr(one, "reason", None), *one.args):
            if isinstance(inner, BaseException) and id(inner) not in found:
                found[id(inner)] = inner
                waiting.append(inner)


def _requester(endpoint: Endpoint, timeout_s: int, pause_s: float, *, is_retrying: bool) -> Requester:
    from github.Auth import Token
    from github.GithubException import GithubException
    from github.GithubRetry import GithubRetry
    from github.Requester import HTTPRequestsConnectionClass, HTTPSRequestsConnectionClass, Requester
    from requests.adapters import HTTPAdapter

    # The library prints by a handler of its own: each refusal, pause and redirect, in the server's words.
    for module in ("GithubRetry", "Requester"):
        logging.getLogger(f"github.{module}").setLevel(logging.WARNING)

    class Adapter(HTTPAdapter):
        def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
            super().init_poolmanager(*args, **kwargs, ssl_context=endpoint.certificates)

        def proxy_manager_for(self, proxy: str, **kwargs: Any) -> Any:
            return super().proxy_manager_for(proxy, **kwargs, ssl_context=endpoint.certificates)

        def cert_verify(self, conn: Any, url: str, verify: Any, cert: Any) -> None:
            """The context has the certificates; by default a list that comes with a package would be added."""
            conn.cert_reqs = "CERT_REQUIRED"

    def prepared(connection: Any) -> None:
        # The library would ask the environment for proxies and certificates.
        connection.session.trust_env = False
        connection.session.proxies = {endpoint.base.scheme: endpoint.proxy} if endpoint.proxy else {}
        connection.session.mount(f"{endpoint.base.scheme}://", Adapter(max_retries=connection.retry))

    class Plain(HTTPRequestsConnectionClass):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            prepared(self)

    class Secure(HTTPSRequestsConnectionClass):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            prepared(self)

    class Ours(Requester):
        """A class of its own, since connection classes belong to a class, which others in this process may use."""

    class Patient(GithubRetry):
        def increment(self, method: Any = None, url: Any = None, response: Any = None, *more: Any, **named: Any) -> Any:
            """The library gives up on long waits, but only on those that it works out by itself."""
            asked = response.headers.get("Retry-After", "") if response is not None else ""
            if asked.isdigit() and int(asked) > LONGEST_WAIT_S:
                raise GithubException(response.status, {"message": "GitHub asks to wait"}, dict(response.headers))
            return super().increment(method, url, response, *more, **named)

    Ours.injectConnectionClasses(Plain, Secure)
    # The library's own default sends a POST up to eleven times (tests/contract/test_github.py).
    reading = Patient(
        total=3,
        # A limit that does not say when it ends is told at once, not slept through: above what may be waited for.
        secondary_rate_wait=LONGEST_WAIT_S + 1,
        backoff_factor=0.5,
        allowed_methods=GithubRetry.DEFAULT_ALLOWED_METHODS,
        raise_on_status=False,
        max_rate_limit_wait=LONGEST_WAIT_S,
    )
    return Ours(
        Token(endpoint.token),
        endpoint.url,
        timeout_s,
        _USER_AGENT,
        PER_PAGE,
        True,
        reading if is_retrying else 0,
        None,
        seconds_between_requests=pause_s,
    )
