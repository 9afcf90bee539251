"""How GitHub is reached, checked before anything is sent: proxies and certificates come from a mapping."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from urllib.parse import SplitResult, urlsplit

from endstate_action.errors import InputError

_LOOPBACK = "localhost"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An API, a token for it and the way there; `repr` shows no secret."""

    base: SplitResult
    token: str = field(repr=False)
    proxy: str | None = field(repr=False)
    certificates: ssl.SSLContext | None = field(repr=False)

    @classmethod
    def checked(cls, api_url: str, token: str, env: Mapping[str, str]) -> Endpoint:
        """`env` may hold `HTTPS_PROXY`, `NO_PROXY`, `SSL_CERT_FILE` and their like.

        Raises:
            InputError: an address, a token, a proxy or a certificate file that cannot be used.
        """
        base = _checked(api_url, "the address of GitHub's API")
        if not token or not all("!" <= c <= "~" for c in token):
            raise _refused("the token for GitHub", "it is empty or holds characters that no token has")
        return cls(base, token, _proxy(env, base), _certificates(env) if base.scheme == "https" else None)

    @property
    def url(self) -> str:
        return self.base.geturl().rstrip("/")


def _proxy(env: Mapping[str, str], base: SplitResult) -> str | None:
    text = _setting(env, f"{base.scheme}_proxy") or _setting(env, "all_proxy")
    if text is None or _is_reached_directly(base.hostname or "", _setting(env, "no_proxy") or ""):
        return None
    return _checked(text if "://" in text else f"http://{text}", "the proxy", may_hold_user=True).geturl()


def _setting(env: Mapping[str, str], name: str) -> str | None:
    return (env.get(name) or env.get(name.upper()) or "").strip() or None


def _is_reached_directly(host: str, no_proxy: str) -> bool:
    exempt = [name.strip().lstrip("*.").lower() or "*" for name in no_proxy.split(",") if name.strip()]
    return _is_loopback(host) or any(name in ("*", host) or host.endswith(f".{name}") for name in exempt)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == _LOOPBACK


def _certificates(env: Mapping[str, str]) -> ssl.SSLContext:
    """Whom to trust: the first of the files that replace the system's certificates, and those to be added."""
    file = next((env[name] for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE") if env.get(name)), None)
    folder, more = env.get("SSL_CERT_DIR") or None, env.get("NODE_EXTRA_CA_CERTS") or None
    try:
        context = ssl.create_default_context(cafile=file, capath=folder)
        if more is not None:
            context.load_verify_locations(cafile=more)
    except (OSError, ValueError) as problem:
        raise InputError(
            f"GitHub was not asked: a file of certificates cannot be read ({problem}).",
            hint="Correct SSL_CERT_FILE, SSL_CERT_DIR, REQUESTS_CA_BUNDLE or NODE_EXTRA_CA_CERTS, or unset them.",
        ) from None
    return context


def _checked(text: str, name: str, *, may_hold_user: bool = False) -> SplitResult:
    why = "it must be an address that begins with https:// or http://"
    try:
        parts = urlsplit(text.strip())
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise _refused(name, why) from None
    if not is_usable or not all("!" <= c <= "~" for c in text.strip()):
        raise _refused(name, why)
    if ("@" in parts.netloc and not may_hold_user) or parts.query or parts.fragment:
        raise _refused(name, "it must end with its path and carry no user name")
    return parts


def _refused(name: str, why: str) -> InputError:
    # Without the value: an address may hold a password.
    return InputError(f"GitHub was not asked: {name} cannot be used, {why}.", hint=f"Correct {name} and run again.")
