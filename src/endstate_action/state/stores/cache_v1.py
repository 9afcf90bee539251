"""Version 1 of the cache service, as GitHub Enterprise Server has it: reserve, patch in ranges, commit."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

from endstate_action.state.stores.bounded import Deadline
from endstate_action.state.stores.cache_wire import VERSION, Found, accepted, garbled, json_object, text_in
from endstate_action.state.stores.http import Answer, Client

_ROUTE = "/_apis/artifactcache/"
_ACCEPT = {"accept": "application/json;api-version=6.0-preview.1"}
_JSON = {**_ACCEPT, "content-type": "application/json"}
CHUNK_BYTES = 32 << 20


class CacheV1:
    """Speaks to one service for one job."""

    def __init__(
        self,
        client: Client,
        *,
        version: str = VERSION,
        chunk_bytes: int = CHUNK_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client, self._version, self._chunk_bytes, self._clock = client, version, chunk_bytes, clock

    def reserve(self, key: str, size: int, deadline: Deadline) -> str:
        told = json_object(self._post("caches", {"key": key, "version": self._version, "cacheSize": size}, deadline))
        number = told.get("cacheId")
        # It becomes part of an address.
        if type(number) is not int or number < 0:
            raise garbled()
        return str(number)

    def upload(self, place: str, data: bytes, deadline: Deadline) -> None:
        for start in range(0, len(data), self._chunk_bytes):
            chunk = data[start : start + self._chunk_bytes]
            span = f"bytes {start}-{start + len(chunk) - 1}/*"
            headers = {**_ACCEPT, "content-type": "application/octet-stream", "content-range": span}
            self._ask("PATCH", f"caches/{place}", deadline, chunk, headers)

    def commit(self, key: str, place: str, size: int, deadline: Deadline) -> None:
        self._post(f"caches/{place}", {"size": size}, deadline)

    def look(self, keys: Sequence[str], deadline: Deadline) -> Found | None:
        query = f"cache?keys={quote(','.join(keys), safe='')}&version={quote(self._version, safe='')}"
        answer = self._ask("GET", query, deadline, b"", _ACCEPT)
        if answer.status == 204:
            return None
        told = json_object(answer)
        key, url = text_in(told, "cacheKey"), text_in(told, "archiveLocation")
        if not (key and url):
            raise garbled()
        return Found(key, url)

    def download(self, found: Found, limit: int, deadline: Deadline) -> Answer:
        return self._client.fetch("GET", found.url, deadline=deadline, headers={}, limit=limit)

    def _post(self, path: str, asked: dict[str, Any], deadline: Deadline) -> Answer:
        return self._ask("POST", path, deadline, json.dumps(asked).encode(), _JSON)

    def _ask(self, method: str, path: str, deadline: Deadline, body: bytes, headers: dict[str, str]) -> Answer:
        answer = self._client.call(method, _ROUTE + path, deadline=deadline, body=body, headers=headers)
        return accepted(self._client, answer, self._clock())
