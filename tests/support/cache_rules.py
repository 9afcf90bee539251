"""The rules of the cache service, without HTTP: who may see what, what is found, what a key is taken by.

Written from the service's observed behaviour, without the product's code.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RESERVATION_S = 24 * 3600
READ, WRITE = 1, 2
MAX_TOTAL_BYTES = 1 << 30

Json = dict[str, Any]


class Refused(Exception):
    """A no, as the remote calls of version 2 say it."""

    def __init__(self, status: int, code: str, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status, self.code, self.headers = status, code, headers

    @property
    def is_mistake(self) -> bool:
        """Whether a client that knows the protocol never gets it."""
        return self.status in (400, 404, 405, 413, 415) and self.code != "BlobNotFound"


@dataclass(frozen=True)
class Scopes:
    """What a token opens, the current one first."""

    all: tuple[tuple[str, int], ...]

    @property
    def readable(self) -> list[str]:
        return [name for name, permission in self.all if permission & READ]

    @property
    def writable(self) -> list[str]:
        return [name for name, permission in self.all if permission & WRITE]


def make_token(
    write: str = "refs/pull/7/merge", read: Sequence[str] = ("refs/heads/main",), *, expires_at: float | None = None
) -> str:
    """A runner's token, unsigned; with an empty `write` it is a read-only one."""
    scopes = [{"Scope": write, "Permission": READ | WRITE}] if write else []
    scopes += [{"Scope": name, "Permission": READ} for name in read]
    return unsigned({"ac": json.dumps(scopes), "repository_id": "1", "exp": expires_at or int(time.time()) + 22_800})


def unsigned(claims: Json) -> str:
    parts = ({"alg": "RS256", "typ": "JWT"}, claims)
    shown = (base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts)
    return ".".join((*shown, "c2lnbmVk"))


def scopes_of(authorization: str, now: float) -> Scopes:
    kind, _, token = authorization.partition(" ")
    try:
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        scopes = tuple((entry["Scope"], entry["Permission"]) for entry in json.loads(claims["ac"]))
        is_expired = claims["exp"] < now
    except (ValueError, LookupError, TypeError):
        raise Refused(401, "unauthenticated", "token cannot be read") from None
    if kind != "Bearer" or is_expired:
        raise Refused(401, "unauthenticated", "token is expired" if is_expired else "no bearer token")
    return Scopes(scopes)


@dataclass
class Entry:
    id: int
    scope: str
    key: str
    version: str
    created: float
    reserved: float
    blob: bytes | None = None
    """What was uploaded."""
    blocks: dict[str, bytes] = field(default_factory=dict)
    is_finished: bool = False


class Shelf:
    """All entries of a repository. With a folder they outlive the server."""

    def __init__(self, folder: Path | None, clock: Callable[[], float], *, whole_seconds: bool) -> None:
        self.entries: dict[int, Entry] = {}
        self._folder, self._clock, self._whole_seconds = folder, clock, whole_seconds
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            for path in sorted(folder.glob("*.json")):
                entry = Entry(**json.loads(path.read_text()))
                blob = path.with_suffix(".blob")
                entry.blob = blob.read_bytes() if blob.exists() else None
                self.entries[entry.id] = entry

    def reserve(self, scopes: Scopes, key: str, version: str) -> Entry:
        check_key(key)
        for entry in list(self.entries.values()):
            if not entry.is_finished and self._clock() - entry.reserved > RESERVATION_S:
                self.remove(entry)
        scope = scopes.writable[0]
        if any((e.scope, e.key, e.version) == (scope, key, version) for e in self.entries.values()):
            words = "cache entry with the same key, version, and scope already exists"
            raise Refused(409, "already_exists", words)
        return self.add(scope, key, version)

    def add(self, scope: str, key: str, version: str) -> Entry:
        now = self._clock()
        entry = Entry(max(self.entries, default=0) + 1, scope, key, version, now, now)
        self.entries[entry.id] = entry
        self._keep(entry)
        return entry

    def reservation(self, scopes: Scopes, key: str, version: str) -> Entry:
        for entry in self.entries.values():
            if (entry.key, entry.version) == (key, version) and entry.scope in scopes.writable[:1]:
                return entry
        raise Refused(404, "not_found", "there is no such reservation")

    def upload(self, entry: Entry, blob: bytes) -> None:
        if sum(len(e.blob or b"") for e in self.entries.values()) + len(blob) > MAX_TOTAL_BYTES:
            raise Refused(413, "resource_exhausted", "the shelf is full")
        if entry.is_finished:
            raise Refused(400, "failed_precondition", "the entry is finished and never changes")
        entry.blob = blob

    def finish(self, entry: Entry, size: int) -> bool:
        """False where the size is not that of what was uploaded."""
        if entry.is_finished or entry.blob is None or len(entry.blob) != size:
            return False
        now = self._clock()
        entry.is_finished, entry.created = True, float(int(now)) if self._whole_seconds else now
        entry.blocks.clear()
        self._keep(entry)
        return True

    def find(self, scopes: Scopes, keys: Sequence[str], version: str, *, skip: int = 0) -> Entry | None:
        """The current scope is searched to its end before the next. `skip` newest entries are not seen."""
        for key in keys:
            check_key(key)
        for scope in scopes.readable:
            inside = [e for e in self.entries.values() if e.is_finished and (e.scope, e.version) == (scope, version)]
            for key in keys:
                exact = [e for e in inside if e.key == key]
                hits = exact or self._newest_first([e for e in inside if e.key.startswith(key)])
                if hits[skip:]:
                    return hits[skip]
        return None

    def finished(self) -> list[Entry]:
        return [entry for entry in self.entries.values() if entry.is_finished]

    def remove(self, entry: Entry) -> None:
        del self.entries[entry.id]
        if self._folder is not None:
            for suffix in (".json", ".blob"):
                (self._folder / f"{entry.id:08}{suffix}").unlink(missing_ok=True)

    def _newest_first(self, entries: list[Entry]) -> list[Entry]:
        # Within one second the emulator is no help: the older one comes first.
        order = (lambda e: (-e.created, e.id)) if self._whole_seconds else (lambda e: (-e.created, -e.id))
        return sorted(entries, key=order)

    def _keep(self, entry: Entry) -> None:
        if self._folder is None:
            return
        path = self._folder / f"{entry.id:08}.json"
        if entry.blob is not None:
            path.with_suffix(".blob").write_bytes(entry.blob)
        shown = {n: getattr(entry, n) for n in ("id", "scope", "key", "version", "created", "reserved", "is_finished")}
        partial = path.with_suffix(".tmp")
        partial.write_text(json.dumps(shown))
        partial.rename(path)


def check_key(key: Any) -> None:
    if not isinstance(key, str) or not key or len(key) > 512 or "," in key:
        raise Refused(400, "invalid_argument", "a key has 1 to 512 characters and no comma")


@dataclass
class Budget:
    """So many in a minute, counted from the first."""

    per_minute: int
    clock: Callable[[], float]
    _began: float = 0.0
    _used: int = 0

    def spend(self) -> None:
        now = self.clock()
        if now - self._began >= 60:
            self._began, self._used = now, 0
        self._used += 1
        if self._used > self.per_minute:
            wait = str(max(int(self._began + 60 - now), 1))
            raise Refused(429, "resource_exhausted", "rate limit exceeded", **{"retry-after": wait})
