"""What a call may do to the world, which decides what a resume may do about it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class EffectClass(StrEnum):
    """A claim by the tool's author. Recorded when a call starts; settling uses the recorded one."""

    READS = "reads"
    IDEMPOTENT = "idempotent"
    CONTAINED = "contained"
    NETWORKED = "networked"
    KEYED = "keyed"
    OPAQUE = "opaque"

    @property
    def is_outside(self) -> bool:
        """Whether something of it may be out of the workspace, where no roll-back reaches."""
        return self in (EffectClass.NETWORKED, EffectClass.KEYED, EffectClass.OPAQUE)


class Probe(StrEnum):
    """What the outside answered when asked whether a keyed effect was applied."""

    APPLIED = "applied"
    ABSENT = "absent"
    UNKNOWN = "unknown"


def canonical(value: Any) -> bytes:
    """JSON bytes that are equal for equal values: sorted keys, no spaces, ASCII only."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")


def digest(data: bytes) -> str:
    """32 hex digits of blake2b; for identity inside a session, never as evidence."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def idempotency_key(session: str, step: int, index: int) -> str:
    """The name under which an outside effect can be found again.

    Without the call's id, since a retry that lost the reply gets new ids from the provider.
    """
    return f"{session}/{step}.{index}"


def content_digest(name: str, arguments: Mapping[str, Any]) -> str:
    """Travels beside the key: the same key with another digest means that nobody can tell."""
    return digest(canonical([name, dict(arguments)]))[:12]
