"""What the runner's token says of itself, so that a read-only one is known before anything is asked.

It is read without being verified: the service decides, this only explains. What cannot be read says nothing.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Any

_READ, _WRITE = 1, 2


@dataclass(frozen=True, slots=True)
class CacheToken:
    """The scopes (refs) of a job's caches, in the order in which they are searched. None: the token does not say."""

    readable: tuple[str, ...] | None
    writable: tuple[str, ...] | None
    expires_at: float | None
    """Seconds since 1970."""

    @property
    def is_read_only(self) -> bool:
        """Whether it says that nothing can be written with it."""
        return self.writable == ()


def read_token(token: str) -> CacheToken:
    """Never raises: whatever the token is."""
    claims = _object(_payload(token))
    expiry = claims.get("exp")
    expires_at = float(expiry) if isinstance(expiry, int | float) and 0 < expiry < 1e11 else None
    scopes = _scopes(claims.get("ac"))
    if scopes is None:
        return CacheToken(None, None, expires_at)
    return CacheToken(
        tuple(scope for scope, permission in scopes if permission & _READ),
        tuple(scope for scope, permission in scopes if permission & _WRITE),
        expires_at,
    )


def _payload(token: str) -> str | bytes:
    parts = token.split(".")
    if len(parts) != 3:
        return ""
    try:
        return base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
    except (binascii.Error, ValueError):
        return ""


def _scopes(claim: Any) -> list[tuple[str, int]] | None:
    """The claim is JSON in a string. One entry that is not understood makes it say nothing at all."""
    entries = _json(claim) if isinstance(claim, str) else None
    if not isinstance(entries, list):
        return None
    scopes: list[tuple[str, int]] = []
    for entry in entries:
        scope, permission = (entry.get("Scope"), entry.get("Permission")) if isinstance(entry, dict) else (None, None)
        if not isinstance(scope, str) or not isinstance(permission, int):
            return None
        scopes.append((scope, permission))
    return scopes


def _object(text: str | bytes) -> dict[str, Any]:
    found = _json(text)
    return found if isinstance(found, dict) else {}


def _json(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
