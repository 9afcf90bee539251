"""What an error of the Messages API means for the run: ask again, or one of a few named ends."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from endstate_action.agent.providers.base import ContextOverflow, ModelUnknown
from endstate_action.errors import CredentialsRejected, InputError

KEPT = "No further call was run; what is recorded so far is kept."

_TRANSIENT = frozenset({408, 409, 425, 429})
_TOO_LONG = ("prompt is too long", "exceed context limit")

# An error inside a stream comes under status 200; its type says which status it would have had.
_STATUS_OF = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "timeout_error": 504,
    "overloaded_error": 529,
}


class TryAgain(Exception):
    """An attempt failed in a way that the next one may not; `pause_s` is the wait the provider asked for."""

    def __init__(self, reason: str, pause_s: float | None = None) -> None:
        super().__init__(reason)
        self.pause_s = pause_s


@dataclass(frozen=True, slots=True)
class Refusal:
    """What the provider said instead of a reply. `words` are quoted to the user, so they must be fit for that."""

    status: int
    kind: str
    words: str
    code: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    """With lower-case names."""

    @classmethod
    def in_stream(cls, kind: str, words: str) -> Refusal:
        return cls(_STATUS_OF.get(kind, 500), kind, words)

    @property
    def said(self) -> str:
        return f"{self.status} {self.kind}: {self.words}" if self.kind else f"{self.status}: {self.words}"


def verdict(refusal: Refusal) -> Exception:
    """The error to raise for it. Never raises itself."""
    if _is_too_long(refusal):
        return ContextOverflow(refusal.said)
    if _is_about_money(refusal):
        return InputError(
            f"The provider will not answer for want of credit ({refusal.said}). {KEPT}",
            hint="Add credit or raise the spend limit with the provider, then `endstate run --resume`.",
        )
    match refusal.status:
        case 401 | 403:
            return CredentialsRejected(
                f"The provider does not accept the credentials ({refusal.said}). {KEPT}",
                hint="Check ANTHROPIC_API_KEY (in a workflow the secret behind `anthropic-api-key`), or "
                "ANTHROPIC_AUTH_TOKEN where a token is used; then `endstate run --resume`.",
            )
        case 404:
            return _not_found(refusal)
        case status if status in _TRANSIENT or status >= 500:
            return TryAgain(refusal.said, asked_pause(refusal.headers))
        case _:
            return InputError(
                f"The provider refused the request ({refusal.said}). {KEPT}",
                hint="The provider's words say why; what a retry can change are the key, --model and --base-url.",
            )


def _is_too_long(refusal: Refusal) -> bool:
    words = refusal.words.lower().replace("`", "")
    return refusal.status == 413 or (refusal.status == 400 and any(sign in words for sign in _TOO_LONG))


def _is_about_money(refusal: Refusal) -> bool:
    return (
        refusal.status == 402
        or "spend_limit" in refusal.code
        or (refusal.status in (400, 403, 429) and "credit balance" in refusal.words.lower())
    )


def _not_found(refusal: Refusal) -> Exception:
    if refusal.kind == "not_found_error" and "model" in refusal.words.lower():
        return ModelUnknown(refusal.said)
    return InputError(
        f"There is no Messages API at this address ({refusal.said}). {KEPT}",
        hint="Check --base-url or ANTHROPIC_BASE_URL: it ends before `/v1/messages`.",
    )


def asked_pause(headers: Mapping[str, str]) -> float | None:
    """Seconds that `retry-after-ms` or `retry-after` asks for; None where they say nothing usable."""
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            pause_s = float(headers.get(name, "")) * unit_s
        except ValueError:
            continue
        if math.isfinite(pause_s) and pause_s > 0:
            return pause_s
    return None
