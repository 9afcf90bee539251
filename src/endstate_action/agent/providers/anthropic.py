"""Claude, through the Messages API: a complete reply, or an error that says which of the few it is.

Replies are streamed, since a long one outlives the patience of what lies between. A stream that breaks
off, stalls or makes no sense is thrown away whole and asked for again, a bounded number of times; what
it cost is reported. The SDK's own retries are off: they do not see a failure inside a stream.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

from endstate_action.agent.providers.base import OnDiscard, Reply, Request
from endstate_action.agent.providers.endpoint import Endpoint
from endstate_action.agent.providers.refusals import KEPT, Refusal, TryAgain, verdict
from endstate_action.agent.providers.wire import Assembly, BrokenReply, request_body, strict_json
from endstate_action.errors import ProviderUnavailable

if TYPE_CHECKING:
    from anthropic import Anthropic, APIStatusError

_CONNECT_S = 20.0
_LONGEST_BACKOFF_S = 60.0
_LONGEST_PAUSE_S = 120.0
# The SDK's modules import each other in circles, some on first use; of two threads that enter a circle at
# different places, the interpreter lets one go on with a module that is half there.
_loading = threading.Lock()


def load() -> None:
    """Import the SDK, which takes about a second, and make nothing of it."""
    with _loading:
        import anthropic
        import httpx2  # noqa: F401

        del anthropic


class AnthropicProvider:
    """Asks the Messages API at `base_url` with an API key or, without one, with a bearer token.

    Args:
        env: where `HTTPS_PROXY`, `NO_PROXY`, `SSL_CERT_FILE` and their like are looked up.
        attempts: how often one reply is asked for before the provider counts as unavailable.
        backoff_s: the first pause between two attempts, in seconds; it doubles, with jitter.
        stall_s: how long a connection may be silent, in seconds.
        reply_s: how long one reply may take in all, in seconds.
        on_retry: told, in a sentence, why a reply is asked for again, and when.

    Raises:
        InputError: no usable credential, address, proxy or certificate file.
    """

    name = "anthropic"

    def __init__(
        self,
        api_key: str | None,
        auth_token: str | None,
        base_url: str | None,
        *,
        env: Mapping[str, str] | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
        attempts: int = 6,
        backoff_s: float = 1.0,
        stall_s: float = 300.0,
        reply_s: float = 3600.0,
        on_retry: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._endpoint = Endpoint.checked(api_key, auth_token, base_url, env or {})
        self._sleep, self._clock, self._jitter = sleep, clock, jitter
        self._attempts, self._backoff_s = attempts, backoff_s
        self._stall_s, self._reply_s = stall_s, reply_s
        self._on_retry = on_retry
        self._client: Anthropic | None = None

    def warm_up(self) -> None:
        """Load the SDK now, in the calling thread; it takes about a second. May be called from any, repeatedly."""
        self._sdk()

    def reply(self, request: Request, on_discard: OnDiscard) -> Reply:
        """Ask until there is a complete reply; see `Provider` for the errors.

        `on_discard` is called for each partial reply that is thrown away, also when a signal ends it.
        """
        body = request_body(request)
        for attempt in count(1):
            try:
                return self._attempt(body, on_discard)
            except TryAgain as failure:
                if attempt >= self._attempts:
                    raise self._unavailable(failure) from failure
                pause_s = self._pause_s(attempt, failure.pause_s)
                self._on_retry(
                    f"No reply from {self._endpoint.host} ({failure}); "
                    f"attempt {attempt + 1} of {self._attempts} in {pause_s:.0f} s."
                )
            self._sleep(pause_s)
        raise AssertionError("counting never ends")

    def _unavailable(self, last: TryAgain) -> ProviderUnavailable:
        return ProviderUnavailable(
            f"{self._endpoint.host} gave no usable reply in {self._attempts} attempts (the last: {last}). {KEPT}",
            hint="`endstate run --resume` asks again, once the provider answers.",
        )

    def _pause_s(self, attempt: int, asked_s: float | None) -> float:
        if asked_s is not None:
            return min(asked_s, _LONGEST_PAUSE_S)
        backoff_s: float = min(self._backoff_s * 2 ** (attempt - 1), _LONGEST_BACKOFF_S)
        return backoff_s * (0.5 + self._jitter() / 2)

    def _attempt(self, body: Mapping[str, Any], on_discard: OnDiscard) -> Reply:
        answer = Assembly()
        try:
            with self._failures_named(), closing(self._events(body)) as events:
                for event in events:
                    answer.feed(event)
                    if answer.complete:
                        break
                return answer.reply()
        except BaseException as failure:
            if answer.started:
                on_discard(answer.usage, str(failure) or type(failure).__name__)
            raise

    def _events(self, body: Mapping[str, Any]) -> Generator[object]:
        """The events of one stream as the wire has them: the SDK's own models would not keep every byte."""
        deadline = self._clock() + self._reply_s
        with self._sdk().messages.create(**body, stream=True) as stream:
            for sent in stream.raw_events(stream.response):
                if self._clock() > deadline:
                    raise TryAgain(f"the reply was not complete after {self._reply_s:.0f} s")
                if sent.data:
                    yield self._checked(_parsed(sent.data))

    def _checked(self, event: object) -> object:
        if isinstance(event, dict) and event.get("type") == "error":
            error = event.get("error")
            kind, words = (str(error.get(k)) for k in ("type", "message")) if isinstance(error, dict) else ("", "")
            raise verdict(Refusal.in_stream(self._endpoint.quote(kind), self._endpoint.quote(words)))
        return event

    @contextmanager
    def _failures_named(self) -> Iterator[None]:
        self._sdk()
        import anthropic
        import httpx2

        try:
            yield
        except anthropic.APIStatusError as failure:
            raise verdict(self._refusal(failure)) from failure
        except anthropic.APIConnectionError as failure:
            cause = failure.__cause__
            # The SDK takes whatever ends a request for a connection error, a signal handler's exception too.
            if cause is not None and not isinstance(cause, (httpx2.HTTPError, OSError)):
                raise cause from None
            raise TryAgain(self._endpoint.quote(f"{failure} {cause or ''}")) from failure
        except httpx2.HTTPError as failure:
            raise TryAgain(self._endpoint.quote(f"{type(failure).__name__}: {failure}")) from failure
        except (BrokenReply, UnicodeDecodeError) as failure:
            raise TryAgain(self._endpoint.quote(str(failure))) from failure

    def _refusal(self, failure: APIStatusError) -> Refusal:
        return Refusal(
            failure.status_code,
            self._endpoint.quote(failure.type or ""),
            self._endpoint.quote(failure.api_message or failure.response.text),
            failure.error_code or "",
            {name.lower(): value for name, value in failure.response.headers.items()},
        )

    def _sdk(self) -> Anthropic:
        with _loading:
            if self._client is None:
                self._client = self._built()
            return self._client

    def _built(self) -> Anthropic:
        import anthropic
        import httpx2

        # Everything is passed: what is left out, the SDK looks for in the environment and in the user's files.
        at = self._endpoint
        timeout = anthropic.Timeout(self._stall_s, connect=min(_CONNECT_S, self._stall_s))
        transport = anthropic.DefaultHttpxClient(
            trust_env=False,
            proxy=at.proxy,
            verify=at.certificates or True,
            timeout=timeout,
            # A step takes longer than servers keep a connection, and one closed meanwhile costs an attempt.
            limits=httpx2.Limits(max_keepalive_connections=0),
        )
        client = anthropic.Anthropic(
            api_key=at.api_key,
            auth_token=at.auth_token,
            base_url=at.url,
            http_client=transport,
            timeout=timeout,
            max_retries=0,
            open_telemetry=False,
        )
        _ = client.messages  # loads what it needs on first use
        return client


def _parsed(data: str) -> object:
    try:
        return strict_json(data)
    except ValueError as problem:
        raise BrokenReply(f"an event is not readable JSON ({problem})") from None
