"""S3, Google Cloud Storage and Azure Blob as stores, through OpenDAL: the extra `endstate-action[objectstore]`.

A put is one conditional request: create, unless something is there. A service that takes no notice of the
condition would let two attempts claim the same epoch, so the first put of a process is sent a second time, which
must be refused. Credentials are those that are handed in; OpenDAL reads no environment and no configuration file.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar

from endstate_action.errors import InputError
from endstate_action.state.keys import ROOT
from endstate_action.state.stores.base import Denied, Exists, Put, RateLimited, Stored, Unavailable
from endstate_action.state.stores.bounded import Deadline, again, passes_after, unreadable, within
from endstate_action.state.stores.key_parts import split

Service: TypeAlias = Literal["s3", "gs", "az"]

WAIT_S = 10.0
"""How long to wait after "slow down", where the service does not say."""
CONFLICT_TRIES = 4
"""So often a request is sent that collides with another under way for the same key."""

_T = TypeVar("_T")
_SCHEMES = {"s3": "s3", "gs": "gcs", "az": "azblob"}
_CONFLICT_PAUSE_S = 0.3
# Beyond this, OpenDAL itself does not come back, and its thread is left behind.
_GRACE_S = 1.0

_STATUS = re.compile(r"\bstatus: ([0-9]{3})\b")
_CODE = re.compile(r"code: \"([A-Za-z]{1,60})\"")
_RETRY_AFTER = re.compile(r"\"retry-after\": \"([0-9]{1,5})\"")
_NO_CREDENTIALS = re.compile(r"signing http request|loading credential|signing credential")
_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|bucket does not exist")
_NOT_SENT = re.compile(r"client error \(Connect\)")
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN)",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS or GOOGLE_OAUTH_ACCESS_TOKEN",
    "az": "AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN",
}


class ObjectStore:
    """Objects in a bucket or container, below a prefix.

    Args:
        bucket: of S3 or Google Cloud Storage, or a container of Azure.
        prefix: comes before every key; "" for none.
        environ: gives credentials and endpoint, under the names that the services' own tools use. Where it gives S3
            or Google no credentials, the machine's own role is asked for.

    Raises:
        InputError: OpenDAL is not installed, or the settings are incomplete.
    """

    deletes = True

    def __init__(self, service: Service, bucket: str, prefix: str, environ: Mapping[str, str]) -> None:
        opendal = _opendal()
        self.name = service
        settings = _settings(service, environ)
        names = {"container" if service == "az" else "bucket": bucket, "root": f"/{prefix}"}
        try:
            self._operator = opendal.AsyncOperator(_SCHEMES[service], **names, **settings)
        except Exception as error:
            # What it says may repeat what it was given.
            raise InputError(
                f"store {service}: the settings of bucket {bucket!r} cannot be used, so nothing was started.",
                hint=f"Check {_CREDENTIALS[service]}, the region and the endpoint.",
            ) from error
        self._is_proven = False

    def put(self, key: str, data: bytes, *, timeout_s: float, drop: Collection[str] = ()) -> Put:
        split(key)
        deadline = Deadline(timeout_s)
        outcome = self._create(key, data, deadline)
        if isinstance(outcome, Stored) and not self._is_proven:
            outcome = self._proven(outcome, data, deadline)
        if isinstance(outcome, Stored):
            self._drop([other for other in drop if other != key], deadline)
        return outcome

    def get(self, key: str, *, timeout_s: float) -> bytes | None:
        split(key)
        try:
            return bytes(self._read(lambda: self._operator.read(key), Deadline(timeout_s)))
        except _Failed as failed:
            if failed.kind == "NotFound" and not _NO_BUCKET.search(failed.said):
                return None
            raise self._unreadable(failed) from failed.__cause__

    def first(self, prefixes: Sequence[str], *, timeout_s: float) -> str | None:
        deadline = Deadline(timeout_s)
        lists = (self._listed(prefix, deadline) for prefix in prefixes)
        return next((found[-1] for found in lists if found), None)

    def lineages(self, *, timeout_s: float) -> list[str] | None:
        found = self._under(ROOT, Deadline(timeout_s))
        return sorted({path.removeprefix(ROOT).partition("/")[0] for path in found if _is_key(path)})

    def keys(self, prefix: str, *, timeout_s: float) -> list[str] | None:
        return self._listed(prefix, Deadline(timeout_s))

    def _drop(self, keys: Collection[str], deadline: Deadline) -> None:
        for key in keys:
            split(key)
            # What cannot be dropped does no harm.
            with suppress(_Failed):
                self._ask(partial(self._operator.delete, key), deadline)

    def _create(self, key: str, data: bytes, deadline: Deadline) -> Put:
        for _ in range(CONFLICT_TRIES):
            try:
                self._ask(lambda: self._operator.write(key, data, if_not_exists=True), deadline)
            except _Failed as failed:
                if failed.kind in ("ConditionNotMatch", "AlreadyExists"):
                    return Exists(key)
                if failed.kind != "Conflict":
                    return self._outcome(failed)
                # Another request for this key is under way: who of the two wins is not decided yet.
                with suppress(_Failed):
                    self._ask(lambda: asyncio.sleep(_CONFLICT_PAUSE_S), deadline)
            else:
                return Stored(key, len(data))
        return Unavailable("other requests for the same key were under way", is_doubtful=False)

    def _proven(self, stored: Stored, data: bytes, deadline: Deadline) -> Put:
        """`stored` if the service refuses to create what exists; the bytes are the same, so nothing is lost."""
        match self._create(stored.key, data, deadline):
            case Exists():
                self._is_proven = True
                return stored
            case Stored():
                return Denied(
                    "the service takes no notice of If-None-Match, so that two attempts could both win",
                    "Use a service that creates conditionally, or another store.",
                )
            case other:
                reason = f"it is not proven that the service creates conditionally ({_reason(other)})"
                return Unavailable(reason)

    def _listed(self, prefix: str, deadline: Deadline) -> list[str]:
        split(prefix)
        found = self._under(prefix, deadline)
        return sorted(path for path in found if path.startswith(prefix) and _is_key(path))

    def _under(self, prefix: str, deadline: Deadline) -> list[str]:
        async def listing() -> list[str]:
            return [entry.path async for entry in await self._operator.list(prefix, recursive=True)]

        try:
            return self._read(listing, deadline)
        except _Failed as failed:
            raise self._unreadable(failed) from failed.__cause__

    def _read(self, request: Callable[[], Awaitable[_T]], deadline: Deadline) -> _T:
        """As `_ask`, and again where it may pass."""
        return again(lambda: self._ask(request, deadline), self._passes_after, deadline)

    def _passes_after(self, problem: Exception) -> float | None:
        if not isinstance(problem, _Failed) or problem.kind == "NotFound":
            return None
        return passes_after(self._outcome(problem))

    def _ask(self, request: Callable[[], Awaitable[_T]], deadline: Deadline) -> _T:
        """What the request returns.

        It runs in a loop and a thread of its own, whatever the caller's thread runs, and unlike OpenDAL's blocking
        calls it lets other threads run while it waits.

        Raises:
            _Failed: it failed, or took too long.
        """
        left = deadline.left()

        async def bounded() -> _T:
            async with asyncio.timeout(left):
                return await request()

        try:
            return within(left + _GRACE_S, lambda: asyncio.run(bounded()))
        except TimeoutError as error:
            raise _Failed("Timeout", f"no answer within {deadline.timeout_s:g} s") from error
        except Exception as error:
            # Its errors share no base class of their own; their texts hold whole requests and are never shown.
            if type(error).__module__ != "opendal.exceptions":
                raise
            raise _Failed(type(error).__name__, str(error)) from error

    def _outcome(self, failed: _Failed) -> Put:
        said = failed.said
        status = int(found[1]) if (found := _STATUS.search(said)) else 0
        reason = failed.reason
        if failed.kind == "RateLimited":
            wait = _RETRY_AFTER.search(said)
            return RateLimited(float(wait[1]) if wait else WAIT_S)
        if _NO_CREDENTIALS.search(said):
            return Denied("there are no credentials for it", f"Set {_CREDENTIALS[self.name]}.")
        if failed.kind in ("PermissionDenied", "ConfigInvalid", "NotFound") or (300 <= status < 500 and status != 408):
            return Denied(
                reason, f"Check that the bucket exists, its region, and that {_CREDENTIALS[self.name]} may write there."
            )
        if failed.kind == "Unsupported" or status == 501:
            return Denied(reason, "The service does not create conditionally; use another store.")
        return Unavailable(reason, is_doubtful=_NOT_SENT.search(said) is None)

    def _unreadable(self, failed: _Failed) -> Exception:
        outcome = self._outcome(failed)
        return unreadable(self.name, _reason(outcome), outcome.remedy if isinstance(outcome, Denied) else "")


class _Failed(Exception):
    """A request that failed. `kind` is OpenDAL's word, or `Timeout`; `said` is for us alone."""

    def __init__(self, kind: str, said: str) -> None:
        super().__init__(kind)
        self.kind = kind
        self.said = said

    @property
    def reason(self) -> str:
        """What may be shown: the text names the whole request, which can hold a signature."""
        if self.kind == "Timeout":
            return self.said
        if _NOT_SENT.search(self.said):
            return "no connection"
        status, code = _STATUS.search(self.said), _CODE.search(self.said)
        kind = "an unexpected answer" if self.kind == "Unexpected" else self.kind
        details = [kind, *(["status " + status[1]] if status else []), *([code[1]] if code else [])]
        return ", ".join(details)


def _opendal() -> Any:
    try:
        import opendal
    except ImportError as error:
        raise InputError(
            "Object stores need OpenDAL, which is not installed, so nothing was started.",
            hint="`pip install opendal` in the environment that endstate is in brings it, as the extra "
            "endstate-action[objectstore] does; or use another store.",
        ) from error
    return opendal


def _settings(service: Service, environ: Mapping[str, str]) -> dict[str, str]:
    match service:
        case "s3":
            return _s3(environ)
        case "gs":
            return _gcs(environ)
        case "az":
            return _azblob(environ)


def _s3(environ: Mapping[str, str]) -> dict[str, str]:
    given = _renamed(
        environ,
        access_key_id="AWS_ACCESS_KEY_ID",
        secret_access_key="AWS_SECRET_ACCESS_KEY",  # noqa: S106 - the name of a variable
        session_token="AWS_SESSION_TOKEN",  # noqa: S106
        endpoint="AWS_ENDPOINT_URL",
    )
    if ("access_key_id" in given) != ("secret_access_key" in given):
        raise _incomplete("s3")
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    has_keys = str("access_key_id" in given).lower()
    return given | {"region": region, "disable_config_load": "true", "disable_ec2_metadata": has_keys}


def _gcs(environ: Mapping[str, str]) -> dict[str, str]:
    given = _renamed(
        environ,
        credential_path="GOOGLE_APPLICATION_CREDENTIALS",
        token="GOOGLE_OAUTH_ACCESS_TOKEN",  # noqa: S106
        endpoint="STORAGE_EMULATOR_HOST",
    )
    # An emulator, by Google's own convention, is asked without credentials.
    unsigned = {"skip_signature": "true"} if "endpoint" in given else {}
    has_credentials = str(bool({"credential_path", "token", "endpoint"} & given.keys())).lower()
    return given | unsigned | {"disable_config_load": "true", "disable_vm_metadata": has_credentials}


def _azblob(environ: Mapping[str, str]) -> dict[str, str]:
    given = _renamed(
        environ,
        account_name="AZURE_STORAGE_ACCOUNT_NAME",
        account_key="AZURE_STORAGE_ACCOUNT_KEY",
        sas_token="AZURE_STORAGE_SAS_TOKEN",  # noqa: S106
        endpoint="AZURE_STORAGE_ENDPOINT",
    )
    if "account_name" not in given or not {"account_key", "sas_token"} & given.keys():
        raise _incomplete("az")
    return {"endpoint": f"https://{given['account_name']}.blob.core.windows.net"} | given


def _renamed(environ: Mapping[str, str], **variables: str) -> dict[str, str]:
    return {option: environ[variable] for option, variable in variables.items() if environ.get(variable)}


def _incomplete(service: Service) -> InputError:
    return InputError(
        f"store {service}: the credentials are incomplete, so nothing was started.",
        hint=f"Set {_CREDENTIALS[service]}.",
    )


def _is_key(path: str) -> bool:
    try:
        split(path)
    except ValueError:
        return False
    return True


def _reason(outcome: Put) -> str:
    match outcome:
        case Denied(reason) | Unavailable(reason):
            return reason
        case RateLimited(seconds):
            return f"too many requests; try again in {seconds:g} s"
        case Stored() | Exists():
            return "it answered"
