"""Sealed bytes: who can write the store can neither read them nor have us believe others.

A restored session is acted on, so a forged one would run its author's commands with our credentials; and it holds a
transcript. So everything that leaves the machine is encrypted and authenticated, together with the name it is stored
under: nothing opens under another name, nor after a changed bit.

What a seal does not show is that it is the newest; that is the business of `checkpoint.choose`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b

from endstate_action.errors import InputError, StateError

MIN_SECRET_CHARS = 16
"""A shorter secret could be found by trying."""

_MAGIC = b"endstate seal "
_FORMAT = b"1"
_ID_BYTES = 8
_HEADER_BYTES = len(_MAGIC) + 1 + _ID_BYTES

OVERHEAD_BYTES = _HEADER_BYTES + 24 + 16
"""So much longer than its content is what is sealed: by the header, a nonce and a code that authenticates."""


class SealError(StateError):
    """Sealed bytes that were not opened, and of which nothing was used."""


class NotSealed(SealError):
    """They do not begin as sealed bytes do."""


class NewerSeal(SealError):
    """They do, but in the format of a newer release."""


class OtherKey(SealError):
    """They were sealed with another key, or so they say."""


class Damaged(SealError):
    """Sealed with this key, but changed, cut short, or moved to another name."""


@dataclass(frozen=True, slots=True)
class Key:
    """What seals and opens. `id` may be known to everybody; `is_explicit` says which secret it was made of."""

    id: bytes
    is_explicit: bool
    _value: bytes = field(repr=False)


def derive_key(secret: str, *, explicit: bool) -> Key:
    """The key that a secret stands for: the same one in every attempt.

    Args:
        secret: white space around it does not count, since secrets are pasted.
        explicit: whether it was given as `state-key`, rather than being the API key. The same text used as both
            makes two keys.

    Raises:
        InputError: it is too short to protect anything.
    """
    text = secret.strip()
    if len(text) < MIN_SECRET_CHARS:
        name = "The secret in ENDSTATE_STATE_KEY (the input state-key)" if explicit else "The API key"
        raise InputError(
            f"{name} has fewer than {MIN_SECRET_CHARS} characters, so nothing was sealed with it and no checkpoint "
            "has left the machine.",
            hint="Set it, or the secret behind the input, to the output of `openssl rand -hex 32`.",
        )
    salt = b"state-key" if explicit else b"api-key"
    value = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=32, salt=salt, person=b"endstate-seal").digest()
    public = blake2b(key=value, digest_size=_ID_BYTES, person=b"endstate-key-id").digest()
    return Key(public, explicit, value)


def seal(key: Key, name: str, data: bytes) -> bytes:
    """`data` for the store, to be found under `name` and nowhere else. No two results are equal."""
    from nacl.secret import Aead

    header = _MAGIC + _FORMAT + key.id
    return header + bytes(Aead(key._value).encrypt(data, _bound(header, name)))  # noqa: SLF001  its own module


def open_sealed(key: Key, name: str, data: bytes) -> bytes:
    """What was sealed under `name`.

    Raises:
        NotSealed, NewerSeal, OtherKey, Damaged: nothing of it may be used.
    """
    from nacl.exceptions import CryptoError
    from nacl.secret import Aead

    header, sealed = data[:_HEADER_BYTES], data[_HEADER_BYTES:]
    if not header.startswith(_MAGIC):
        raise NotSealed(_not_opened(name, "it is not sealed"))
    if header[len(_MAGIC) : len(_MAGIC) + 1] != _FORMAT:
        raise NewerSeal(_not_opened(name, "it is sealed in a format that this release does not know"))
    if len(header) == _HEADER_BYTES and header[-_ID_BYTES:] != key.id:
        raise OtherKey(_not_opened(name, "it was sealed with another key"))
    try:
        return bytes(Aead(key._value).decrypt(sealed, _bound(header, name)))  # noqa: SLF001  its own module
    except (CryptoError, ValueError):
        # Too short for a nonce is a ValueError; what was changed, a CryptoError.
        raise Damaged(_not_opened(name, "it was changed, cut short, or stored under another name")) from None


def _bound(header: bytes, name: str) -> bytes:
    return header + name.encode("utf-8", "surrogatepass")


def _not_opened(name: str, reason: str) -> str:
    return f"{name} was not opened: {reason}. Nothing of it was used."
