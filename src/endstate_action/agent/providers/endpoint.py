"""Where a provider is reached and with what, checked before anything is sent or spent.

The process's own environment is never consulted: proxies and certificates come from a mapping, so that
what a run uses is what it was given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

from endstate_action.errors import InputError

if TYPE_CHECKING:
    from ssl import SSLContext

DEFAULT_URL = "https://api.anthropic.com"

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_LONGEST_WORDS = 300


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address and one credential; `repr` shows no secret."""

    url: str
    api_key: str | None = field(repr=False)
    auth_token: str | None = field(repr=False)
    proxy: str | None = field(repr=False)
    certificates: SSLContext | None = field(repr=False)

    @classmethod
    def checked(
        cls, api_key: str | None, auth_token: str | None, base_url: str | None, env: Mapping[str, str]
    ) -> Endpoint:
        """An API key wins over a token. `env` may hold `HTTPS_PROXY`, `NO_PROXY`, `SSL_CERT_FILE` and their like.

        Raises:
            InputError: no usable credential, address, proxy or certificate file.
        """
        key = _credential(api_key)
        token = None if key else _credential(auth_token)
        if not (key or token):
            raise InputError(
                "No model was asked: there is no API key.",
                hint="Set ANTHROPIC_API_KEY.",
            )
        address = _address((base_url or "").strip() or DEFAULT_URL)
        return cls(address.geturl(), key, token, _proxy_for(address, env), _certificates(env))

    @property
    def host(self) -> str:
        return urlsplit(self.url).netloc

    def quote(self, words: str) -> str:
        """What somebody else said, fit for a message: one line, bounded, printable, without the credential."""
        line = " ".join(words.split())
        for secret in filter(None, (self.api_key, self.auth_token)):
            line = line.replace(secret, "***")
        shown = "".join(c if c.isprintable() else "?" for c in line)
        return shown if len(shown) <= _LONGEST_WORDS else shown[:_LONGEST_WORDS] + " ..."


def _credential(secret: str | None) -> str | None:
    """A secret pasted with a line break is meant without it; one with anything odd inside is refused unseen."""
    text = (secret or "").strip()
    if not all("!" <= c <= "~" for c in text):
        raise InputError(
            "No model was asked: the API key holds white space or characters that no key has.",
            hint="Paste the key again, on one line.",
        )
    return text or None


def _address(text: str) -> SplitResult:
    parts = _split(text, "base-url")
    if parts.scheme not in ("http", "https"):
        raise _refused("base-url", "it must begin with https:// or http://")
    if "@" in parts.netloc:
        raise _refused("base-url", "it must not carry a user name or password")
    if parts.query or parts.fragment:
        raise _refused("base-url", "it must end with its path")
    return parts


def _split(text: str, name: str) -> SplitResult:
    if not all("!" <= c <= "~" for c in text):
        raise _refused(name, "it holds white space or characters that no address has")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as problem:
        raise _refused(name, f"it is no address ({problem})") from None
    if not parts.hostname or port == 0:
        raise _refused(name, "it names no host")
    return parts


def _refused(name: str, why: str) -> InputError:
    # Without the value: an address may hold a password.
    return InputError(f"No model was asked: {name} cannot be used, {why}.", hint=f"Correct {name} and run again.")


def _proxy_for(address: SplitResult, env: Mapping[str, str]) -> str | None:
    proxy = _setting(env, f"{address.scheme}_proxy") or _setting(env, "all_proxy")
    if proxy is None or _reached_directly(address, _setting(env, "no_proxy")):
        return None
    url = proxy if "://" in proxy else f"http://{proxy}"
    if _split(url, "the proxy").scheme not in ("http", "https"):
        raise _refused("the proxy", "only HTTP proxies are supported")
    return url


def _setting(env: Mapping[str, str], name: str) -> str | None:
    return (env.get(name) or env.get(name.upper()) or "").strip() or None


def _reached_directly(address: SplitResult, no_proxy: str | None) -> bool:
    host = address.hostname or ""
    exempt = [name.strip().lstrip(".").lower() for name in (no_proxy or "").split(",")]
    return host in _LOOPBACK or any(n in ("*", host) or host.endswith(f".{n}") for n in exempt if n)


def _certificates(env: Mapping[str, str]) -> SSLContext | None:
    file, folder = env.get("SSL_CERT_FILE") or None, env.get("SSL_CERT_DIR") or None
    if not (file or folder):
        return None
    import ssl

    try:
        return ssl.create_default_context(cafile=file, capath=folder)
    except (OSError, ValueError) as problem:
        raise InputError(
            f"No model was asked: the certificates named by SSL_CERT_FILE or SSL_CERT_DIR cannot be read ({problem}).",
            hint="Correct the variable, or unset it to use the system's certificates.",
        ) from None
