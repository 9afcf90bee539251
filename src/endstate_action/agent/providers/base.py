"""The seam between the loop and a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from endstate_action.messages import Block, Message, Usage


class ContextOverflow(Exception):
    """The provider refused the request as too long (in tokens or bytes). The loop compacts and asks again."""


class ModelUnknown(Exception):
    """The provider does not know, or no longer knows, the model that was asked for."""


@dataclass(frozen=True, slots=True)
class Request:
    """One question to the model. `messages` is well-formed: `context.check_history` has passed it."""

    model: str
    system: str
    tools: tuple[Mapping[str, Any], ...]
    messages: tuple[Message, ...]
    max_output_tokens: int
    finished_steps: int
    """Number of replies recorded so far in the session; the scripted provider chooses its reply by it."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One complete answer. A reply that broke off is never one of these."""

    message_id: str
    model: str
    """The model that answered, as the provider names it."""
    blocks: tuple[Block, ...]
    stop_reason: str
    usage: Usage
    cut: bool = False
    """Whether the last block is a tool call that the output limit cut short."""


OnDiscard = Callable[[Usage, str], None]
"""Called with the tokens of a partial reply that was thrown away, and why; they were paid all the same."""


class Provider(Protocol):
    """A model to ask. `reply` blocks until a complete answer is there.

    Raises:
        CredentialsRejected: the key is not accepted.
        InputError: the request cannot succeed as configured (no credit, say).
        ProviderUnavailable: after the retries that make sense.
        ContextOverflow, ModelUnknown: see there.
    """

    name: str

    def reply(self, request: Request, on_discard: OnDiscard) -> Reply: ...
