"""The Actions cache as a store: written once under a key of our own, and never believed without a look at the name.

The service has three habits that this hides. A key is reserved before it is written, and a reservation that was not
finished blocks it for a day: so whatever goes wrong after the first request makes the key doubtful, and the caller
burns it. Look-ups match every key by prefix, the first one too: so what was found is compared with what was asked
for. And it searches the scope of the branch to the end before that of the base: so an earlier prefix is asked for
again when a later one was found.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar
from urllib.parse import urlsplit

from endstate_action.errors import InputError
from endstate_action.state.stores.base import (
    MAX_ENTRY_BYTES,
    Denied,
    Exists,
    Put,
    RateLimited,
    Stored,
    StoreUnreadable,
    StoreUnusable,
    Unavailable,
)
from endstate_action.state.stores.bounded import Deadline, again
from endstate_action.state.stores.cache_token import read_token
from endstate_action.state.stores.cache_v1 import CacheV1
from endstate_action.state.stores.cache_v2 import CacheV2
from endstate_action.state.stores.cache_wire import MAX_KEYS, Found, Refused, Wire
from endstate_action.state.stores.http import Answer, Client, NoAnswer

LOOK_S = 8.0
"""So long one look-up may take: a connection that has gone silent must leave time to ask again on a new one."""

_UNREADABLE = ("write-only", "none")
_ELSEWHERE = "`store: git-ref` with `permissions: contents: write`, a bucket, or on a disk that stays dir:PATH"
_MODE_REMEDY = (
    "Set `cache-mode: write` at the job (whoever can start it can then write to the caches of its branch), or use "
    f"{_ELSEWHERE}; a re-run keeps the old workflow file, so start a new run."
)
_QUOTA_REMEDY = f"Delete caches of this repository or raise its limit, or use {_ELSEWHERE}."
_TOKEN_REMEDY = f"Run the job again, which gives it a new token, or use {_ELSEWHERE}."
_CREDENTIALS_REMEDY = f"Run as the action, which hands the credentials over, or use {_ELSEWHERE}."

_T = TypeVar("_T")


def cache_store(env: Mapping[str, str]) -> CacheStore | Denied:
    """The store of this job; where there is none, why, and what a person can do.

    `env` holds what the runner gives to its Node steps (`ACTIONS_…`), `GITHUB_SERVER_URL`, proxies and certificates.

    Raises:
        InputError: a proxy or a file of certificates that cannot be used.
    """
    is_v2 = _is_on(env.get("ACTIONS_CACHE_SERVICE_V2", "")) and not _is_enterprise_server(env)
    names = ("ACTIONS_RESULTS_URL",) if is_v2 else ("ACTIONS_CACHE_URL", "ACTIONS_RESULTS_URL")
    address = next((env[name].strip() for name in names if env.get(name, "").strip()), "")
    token = env.get("ACTIONS_RUNTIME_TOKEN", "").strip()
    missing = names[0] if not address else "ACTIONS_RUNTIME_TOKEN" if not token else ""
    if missing:
        return Denied(f"the credentials of the Actions cache are not here ({missing} is not set)", _CREDENTIALS_REMEDY)
    mode = env.get("ACTIONS_CACHE_MODE", "").strip().lower()
    if mode in _UNREADABLE:
        # What nobody can look for is no checkpoint, though it could be written.
        return Denied(f"the job's cache-mode is {mode}, so that none could be found again", _MODE_REMEDY)
    # The remote calls of version 2 begin at the host, whatever path its address has.
    client = Client(_origin(address) if is_v2 else address, token, env)
    return CacheStore(CacheV2(client) if is_v2 else CacheV1(client), token=token, mode=mode)


def _origin(address: str) -> str:
    try:
        parts = urlsplit(address)
    except ValueError:
        return address
    return f"{parts.scheme}://{parts.netloc}"


def _is_on(flag: str) -> bool:
    return flag.strip().lower() not in ("", "0", "false")


def _is_enterprise_server(env: Mapping[str, str]) -> bool:
    """It has version 1 only, even where the flag of version 2 is set."""
    try:
        host = urlsplit(env.get("GITHUB_SERVER_URL", "").strip() or "https://github.com").hostname or ""
    except ValueError as problem:
        raise InputError(
            f"No store was asked: GITHUB_SERVER_URL is no address ({problem}).",
            hint="Correct GITHUB_SERVER_URL and run again.",
        ) from None
    return host != "github.com" and not host.endswith((".ghe.com", ".localhost"))


class CacheStore:
    """A `Store` on either version of the service. It cannot delete and cannot list."""

    name = "cache"
    deletes = False

    def __init__(self, wire: Wire, *, token: str = "", mode: str = "") -> None:
        self._wire = wire
        said = read_token(token)
        self.denied: Denied | None = None
        """Why nothing can be written, where that is known before anything is asked."""
        if mode == "read":
            self.denied = Denied("the job's cache-mode is read", _MODE_REMEDY)
        elif said.is_read_only:
            self.denied = Denied("the job's cache token is read-only", _MODE_REMEDY)

    def put(self, key: str, data: bytes, *, timeout_s: float, drop: Collection[str] = ()) -> Put:
        if self.denied is not None:
            return self.denied
        deadline = Deadline(timeout_s)
        try:
            place = self._wire.reserve(key, len(data), deadline)
        except Refused as refused:
            return _unreserved(key, refused)
        except NoAnswer as failure:
            return Unavailable(f"the Actions cache: {failure}", is_doubtful=failure.may_be_applied)
        try:
            self._wire.upload(place, data, deadline)
            self._wire.commit(key, place, len(data), deadline)
        except (Refused, NoAnswer) as problem:
            # The key is reserved now, so nothing that went wrong leaves it free: not even a rate limit.
            return Unavailable(f"the Actions cache, while storing what it had accepted: {problem}", is_doubtful=True)
        return Stored(key, len(data))

    def get(self, key: str, *, timeout_s: float) -> bytes | None:
        deadline = Deadline(timeout_s)
        found = self._look([key], deadline)
        if found is None or found.key != key:
            return None
        answer = self._read(lambda: self._download(found, deadline), deadline)
        if answer.status == 404:
            return None  # evicted since it was found
        if not answer.is_success:
            raise _unreadable(f"status {answer.status} when an entry was downloaded")
        return answer.body

    def _download(self, found: Found, deadline: Deadline) -> Answer:
        answer = self._wire.download(found, MAX_ENTRY_BYTES, deadline)
        if answer.status == 429 or answer.status >= 500:
            raise Refused(answer.status, "")
        return answer

    def first(self, prefixes: Sequence[str], *, timeout_s: float) -> str | None:
        deadline = Deadline(timeout_s)
        pages = [prefixes[start : start + MAX_KEYS] for start in range(0, len(prefixes), MAX_KEYS)]
        return next((key for page in pages if (key := self._first_of(page, deadline)) is not None), None)

    def lineages(self, *, timeout_s: float) -> list[str] | None:
        return None

    def keys(self, prefix: str, *, timeout_s: float) -> list[str] | None:
        return None

    def _first_of(self, prefixes: Sequence[str], deadline: Deadline) -> str | None:
        best: str | None = None
        while prefixes and (found := self._look(prefixes, deadline)) is not None:
            best = found.key
            at = next((i for i, prefix in enumerate(prefixes) if best.startswith(prefix)), None)
            if at is None:
                raise _unreadable("it answered with an entry that was not asked for")
            prefixes = prefixes[:at]
        return best

    def _look(self, keys: Sequence[str], deadline: Deadline) -> Found | None:
        return self._read(lambda: self._wire.look(keys, deadline.sooner(LOOK_S)), deadline)

    @staticmethod
    def _read(ask: Callable[[], _T], deadline: Deadline) -> _T:
        try:
            return again(ask, _passes_after, deadline)
        except Refused as refused:
            if refused.asks_to_wait:
                raise _unreadable(f"it asks to wait for {refused.retry_after_s:.0f} s") from None
            if refused.status == 403:
                raise StoreUnusable(
                    f"The Actions cache does not let this job look ({refused}), so it is not known what it holds. "
                    "Nothing was changed.",
                    hint=_MODE_REMEDY,
                ) from None
            raise _unreadable(str(refused), _TOKEN_REMEDY if refused.status == 401 else "") from None
        except NoAnswer as failure:
            raise _unreadable(str(failure)) from None


def _passes_after(problem: Exception) -> float | None:
    """After how many seconds a read that was not answered may be; None where it will not."""
    if isinstance(problem, Refused) and problem.asks_to_wait:
        return problem.retry_after_s
    is_passing = isinstance(problem, NoAnswer) or (isinstance(problem, Refused) and problem.status >= 500)
    return 0.0 if is_passing else None


def _unreserved(key: str, refused: Refused) -> Put:
    """What a no to the first request means."""
    words = str(refused)
    if "insufficient usage" in words:
        return Denied(words, _QUOTA_REMEDY)
    if refused.asks_to_wait:
        return RateLimited(refused.retry_after_s)
    match refused.status:
        case 200 if words.startswith("cache write denied:"):
            return Denied(words, _MODE_REMEDY)
        case 401:
            return Denied(words, _TOKEN_REMEDY)
        case 403:
            return Denied(words, _MODE_REMEDY)
        case 409:
            return Exists(key)
        case status:
            # A plain no of another kind took nothing; a no without words may be about a key that is taken.
            return Unavailable(f"the Actions cache: {words}", is_doubtful=not 300 <= status < 500 or status == 408)


def _unreadable(why: str, hint: str = "") -> StoreUnreadable:
    return StoreUnreadable(
        f"The Actions cache could not be asked ({why}), so it is not known what it holds. Nothing was changed.",
        hint=hint or "Run the job again.",
    )
