"""Version 2 of the cache service, as github.com has it: remote calls in JSON, blobs at signed addresses.

Field names go out in the protocol's spelling and are accepted in both spellings that servers use.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

from endstate_action.state.stores.bounded import Deadline
from endstate_action.state.stores.cache_wire import (
    VERSION,
    Found,
    Refused,
    accepted,
    garbled,
    json_object,
    text_in,
)
from endstate_action.state.stores.http import Answer, Client

_SERVICE = "/twirp/github.actions.results.api.v1.CacheService/"
_JSON = {"content-type": "application/json", "accept": "application/json"}
_BLOB = {"content-type": "application/octet-stream", "x-ms-version": "2021-12-02"}
SINGLE_SHOT_BYTES = 128 << 20
BLOCK_BYTES = 64 << 20
_UPLOAD_ANSWER_BYTES = 1 << 16


class CacheV2:
    """Speaks to one service for one job. `block_bytes` is the size from which, and in which, blobs go in blocks."""

    def __init__(
        self,
        client: Client,
        *,
        version: str = VERSION,
        single_shot_bytes: int = SINGLE_SHOT_BYTES,
        block_bytes: int = BLOCK_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client, self._version, self._clock = client, version, clock
        self._single_shot_bytes, self._block_bytes = single_shot_bytes, block_bytes

    def reserve(self, key: str, size: int, deadline: Deadline) -> str:
        told = self._ask("CreateCacheEntry", {"key": key, "version": self._version}, deadline)
        self._check_ok(told)
        return text_in(told, "signed_upload_url", "signedUploadUrl") or _nothing()

    def upload(self, place: str, data: bytes, deadline: Deadline) -> None:
        if len(data) <= self._single_shot_bytes:
            self._put(place, data, deadline, **{"x-ms-blob-type": "BlockBlob"})
            return
        ids = []
        for start in range(0, len(data), self._block_bytes):
            # All of one length, as the blob service wants them.
            ids.append(base64.b64encode(b"%048d" % start).decode())
            block = data[start : start + self._block_bytes]
            self._put(_with_query(place, f"comp=block&blockid={quote(ids[-1], safe='')}"), block, deadline)
        listed = "".join(f"<Latest>{block_id}</Latest>" for block_id in ids)
        blocks = f'<?xml version="1.0" encoding="utf-8"?><BlockList>{listed}</BlockList>'
        self._put(_with_query(place, "comp=blocklist"), blocks.encode(), deadline)

    def commit(self, key: str, place: str, size: int, deadline: Deadline) -> None:
        asked = {"key": key, "size_bytes": str(size), "version": self._version}
        self._check_ok(self._ask("FinalizeCacheEntryUpload", asked, deadline))

    def look(self, keys: Sequence[str], deadline: Deadline) -> Found | None:
        asked: dict[str, Any] = {"key": keys[0], "version": self._version}
        if keys[1:]:
            asked["restore_keys"] = list(keys[1:])
        told = self._ask("GetCacheEntryDownloadURL", asked, deadline)
        # The protocol leaves out what is false, so a miss may be an empty object.
        if told.get("ok") is not True:
            return None
        key = text_in(told, "matched_key", "matchedKey")
        url = text_in(told, "signed_download_url", "signedDownloadUrl")
        return Found(key or _nothing(), url or _nothing())

    def download(self, found: Found, limit: int, deadline: Deadline) -> Answer:
        return self._client.fetch("GET", found.url, deadline=deadline, headers={}, limit=limit)

    def _ask(self, method: str, asked: dict[str, Any], deadline: Deadline) -> dict[str, Any]:
        answer = self._client.call(
            "POST", _SERVICE + method, deadline=deadline, body=json.dumps(asked).encode(), headers=_JSON
        )
        return json_object(accepted(self._client, answer, self._clock()))

    def _check_ok(self, told: dict[str, Any]) -> None:
        if told.get("ok") is not True:
            raise Refused(200, self._client.said(text_in(told, "message")))

    def _put(self, url: str, data: bytes, deadline: Deadline, **more: str) -> None:
        answer = self._client.fetch(
            "PUT", url, deadline=deadline, body=data, headers={**_BLOB, **more}, limit=_UPLOAD_ANSWER_BYTES
        )
        if not answer.is_success:
            # Without the words: the blob service repeats the signature in them.
            raise Refused(answer.status, "")


def _with_query(url: str, more: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}{more}"


def _nothing() -> str:
    raise garbled()
