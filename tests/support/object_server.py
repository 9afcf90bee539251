"""Object stores on loopback: as much of S3, Google Cloud Storage and Azure Blob as a store of ours uses, and strict.

    with ObjectServer() as server:
        ...  # an ObjectStore with the environment server.env("s3") and the bucket "bucket"

It shares no code with the product. The services tell themselves apart by the form of their requests. Faults strike
every request of a method, until they are taken away.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal, Self
from urllib.parse import parse_qs, quote, unquote, urlsplit

Fault = Literal["cut-before", "cut-after", "stall", "trickle"] | tuple[int, str]
"""Or a status with the service's word for it."""

BUCKET = "bucket"
ACCESS_KEY = "AKIAEXAMPLEEXAMPLE00"
SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
SIGNATURE = "c2lnbmF0dXJlLW9mLXRoZS1jb250YWluZXI"
STALL_S = 30.0


class ObjectServer:
    """`objects` maps names within the bucket to bytes. With `is_careless`, conditions are taken no notice of."""

    def __init__(self, *, is_careless: bool = False) -> None:
        self.objects: dict[str, bytes] = {}
        self.faults: dict[str, Fault] = {}
        self.requests: list[str] = []
        self.afterwards: Callable[[str], None] = lambda method: None
        """Called for each request once it is served, before the answer."""
        self.is_careless = is_careless
        self.lock = threading.Lock()
        self.over = threading.Event()

    def __enter__(self) -> Self:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def env(self, service: str) -> dict[str, str]:
        return {
            "s3": {
                "AWS_ENDPOINT_URL": self.url,
                "AWS_ACCESS_KEY_ID": ACCESS_KEY,
                "AWS_SECRET_ACCESS_KEY": SECRET,
            },
            "gs": {"STORAGE_EMULATOR_HOST": self.url},
            "az": {
                "AZURE_STORAGE_ENDPOINT": f"{self.url}/account",
                "AZURE_STORAGE_ACCOUNT_NAME": "account",
                "AZURE_STORAGE_SAS_TOKEN": f"sv=2026-01-01&sig={SIGNATURE}",
            },
        }[service]

    def create(self, name: str, data: bytes, *, only_if_absent: bool) -> bool:
        with self.lock:
            if only_if_absent and name in self.objects and not self.is_careless:
                return False
            self.objects[name] = data
            return True

    def listed(self, prefix: str) -> list[str]:
        with self.lock:
            return sorted(name for name in self.objects if name.startswith(prefix))


def _google_object(name: str, data: bytes) -> dict[str, str]:
    return {"name": name, "size": str(len(data)), "etag": "x", "updated": "2026-01-01T00:00:00Z"}


def _handler_of(server: ObjectServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def _any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            url = urlsplit(self.path)
            query = {key: values[0] for key, values in parse_qs(url.query, keep_blank_values=True).items()}
            server.requests.append(f"{self.command} {url.path}")
            fault = server.faults.get(self.command)
            if fault == "stall":
                server.over.wait(STALL_S)
            if fault in ("stall", "cut-before"):
                self.close_connection = True
                return None
            if isinstance(fault, tuple):
                return self._send(fault[0], f"<Error><Code>{fault[1]}</Code></Error>".encode(), {"Retry-After": "7"})
            if self.headers.get("Authorization", "").startswith("AWS4-HMAC-SHA256"):
                status, content, headers = self._s3(unquote(url.path), query, body)
            elif url.path.startswith("/account/"):
                status, content, headers = self._azure(unquote(url.path).removeprefix("/account"), query, body)
            else:
                status, content, headers = self._google(url.path, query, body)
            server.afterwards(self.command)
            if fault == "cut-after":
                self.close_connection = True
                return None
            return self._send(status, content, headers, slowly=fault == "trickle")

        def do_GET(self) -> None:
            self._any()

        do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815 - names of the base class

        def _s3(self, path: str, query: dict[str, str], body: bytes) -> tuple[int, bytes, dict[str, str]]:
            _, bucket, name = [*path.split("/", 2), ""][:3]
            if f"Credential={ACCESS_KEY}/" not in self.headers["Authorization"]:
                return 403, b"<Error><Code>InvalidAccessKeyId</Code></Error>", {}
            if bucket != BUCKET:
                return 404, b"<Error><Code>NoSuchBucket</Code></Error>", {}
            if self.command == "GET" and not name:
                assert query["list-type"] == "2"
                items = "".join(
                    f"<Contents><Key>{n}</Key><Size>{len(server.objects[n])}</Size><ETag>x</ETag>"
                    "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
                    for n in server.listed(query.get("prefix", ""))
                )
                return 200, f"<ListBucketResult>{items}<IsTruncated>false</IsTruncated></ListBucketResult>".encode(), {}
            if self.command == "PUT":
                if not server.create(name, body, only_if_absent=self.headers.get("If-None-Match") == "*"):
                    return 412, b"<Error><Code>PreconditionFailed</Code></Error>", {}
                return 200, b"", {"ETag": '"x"'}
            return self._plain(name, 404, b"<Error><Code>NoSuchKey</Code></Error>", deleted=204)

        def _azure(self, path: str, query: dict[str, str], body: bytes) -> tuple[int, bytes, dict[str, str]]:
            _, container, name = [*path.split("/", 2), ""][:3]
            if query.get("sig") != SIGNATURE:
                return 403, b"<Error><Code>AuthenticationFailed</Code></Error>", {}
            if container != BUCKET:
                return 404, b"<Error><Code>ContainerNotFound</Code></Error>", {}
            if query.get("comp") == "list":
                blobs = "".join(
                    f"<Blob><Name>{n}</Name><Properties><Content-Length>{len(server.objects[n])}</Content-Length>"
                    "<Last-Modified>Thu, 01 Jan 2026 00:00:00 GMT</Last-Modified><Etag>x</Etag>"
                    "<Content-Type>x/y</Content-Type></Properties></Blob>"
                    for n in server.listed(query.get("prefix", ""))
                )
                return 200, f"<EnumerationResults><Blobs>{blobs}</Blobs><NextMarker/></EnumerationResults>".encode(), {}
            if self.command == "PUT":
                assert self.headers["x-ms-blob-type"] == "BlockBlob"
                if not server.create(name, body, only_if_absent=self.headers.get("If-None-Match") == "*"):
                    return 409, b"<Error><Code>BlobAlreadyExists</Code></Error>", {}
                return 201, b"", {"ETag": '"x"'}
            return self._plain(name, 404, b"<Error><Code>BlobNotFound</Code></Error>", deleted=202)

        def _google(self, path: str, query: dict[str, str], body: bytes) -> tuple[int, bytes, dict[str, str]]:
            if self.command == "POST" and path == f"/upload/storage/v1/b/{BUCKET}/o":
                condition = query.get("ifGenerationMatch", "")
                return 200, b"", {"Location": f"{server.url}/session?name={quote(query['name'])}&only={condition}"}
            if self.command == "PUT" and path == "/session":
                if not server.create(query["name"], body, only_if_absent=query["only"] == "0"):
                    return 412, b'{"error": {"code": 412, "message": "conditionNotMet"}}', {}
                return 200, json.dumps(_google_object(query["name"], body)).encode(), {}
            if path == f"/storage/v1/b/{BUCKET}/o":
                items = [_google_object(n, server.objects[n]) for n in server.listed(query.get("prefix", ""))]
                return 200, json.dumps({"prefixes": [], "items": items}).encode(), {}
            start = f"/storage/v1/b/{BUCKET}/o/"
            if not path.startswith(start):
                return 404, b'{"error": {"code": 404, "message": "The specified bucket does not exist."}}', {}
            return self._plain(unquote(path.removeprefix(start)), 404, b"{}", deleted=204)

        def _plain(self, name: str, missing: int, words: bytes, *, deleted: int) -> tuple[int, bytes, dict[str, str]]:
            with server.lock:
                if self.command == "DELETE":
                    return (deleted, b"", {}) if server.objects.pop(name, None) is not None else (missing, words, {})
                data = server.objects.get(name)
            return (missing, words, {}) if data is None else (200, data, {"ETag": '"x"'})

        def _send(self, status: int, content: bytes, headers: dict[str, str], *, slowly: bool = False) -> None:
            try:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                if status != 204:
                    self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                for start in range(0, len(content), 1 if slowly else len(content) or 1):
                    self.wfile.write(content[start : start + (1 if slowly else len(content))])
                    if slowly:
                        time.sleep(0.1)
            except ConnectionError:
                self.close_connection = True

    return Handler
