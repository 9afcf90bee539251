"""A git server on loopback: smart HTTP by git's own back end, behind a password.

with GitHttp(folder) as server:
    server.repository("a.git")
    ...  # push to server.url + "a.git" with `server.token`
"""

from __future__ import annotations

import base64
import os
import subprocess
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal, Self

Fault = Literal["cut-before", "cut-after", "stall", "401", "403", "404", "429", "500"]

TOKEN = "ghs_0123456789abcdefghijABCDEFGHIJ"
STALL_S = 30.0


class GitHttp:
    """Each request of an operation in `faults` (`look`: the list of refs, `fetch`, `push`) goes wrong that way."""

    def __init__(self, folder: Path, token: str = TOKEN) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.token = folder, token
        self.faults: dict[str, Fault] = {}
        self.requests: list[str] = []
        self.meanwhile: Callable[[str], None] = lambda operation: None
        """Called for each request before it is served."""
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
        return f"http://127.0.0.1:{self._server.server_address[1]}/"

    def repository(self, name: str) -> Path:
        subprocess.run(["git", "init", "--quiet", "--bare", str(self.folder / name)], check=True)
        return self.folder / name


def _handler_of(server: GitHttp) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            self._answer(b"")

        def do_POST(self) -> None:
            self._answer(self._body())

        def _answer(self, body: bytes) -> None:
            operation = _operation(self.command, self.path)
            server.requests.append(operation)
            fault = server.faults.get(operation)
            server.meanwhile(operation)
            expected = "basic " + base64.b64encode(f"x-access-token:{server.token}".encode()).decode()
            if self.headers.get("Authorization", "").lower() != expected.lower():
                return self._send(401, [("WWW-Authenticate", 'Basic realm="git"')], b"")
            if fault == "stall":
                server.over.wait(STALL_S)
            if fault in ("stall", "cut-before"):
                return self._cut()
            if fault is not None and fault != "cut-after":
                return self._send(int(fault), [], b"no\n")
            status, headers, content = self._backend(body)
            return self._cut() if fault == "cut-after" else self._send(status, headers, content)

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding", "") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", "0")))
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

        def _backend(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
            path, _, query = self.path.partition("?")
            env = {
                "PATH": os.environ["PATH"],
                "GIT_PROJECT_ROOT": str(server.folder),
                "GIT_HTTP_EXPORT_ALL": "1",
                "GIT_CONFIG_NOSYSTEM": "1",
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "REQUEST_METHOD": self.command,
                "REMOTE_USER": "tester",
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "CONTENT_LENGTH": str(len(body)),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            }
            done = subprocess.run(["git", "http-backend"], env=env, input=body, capture_output=True, check=False)
            head, _, content = done.stdout.partition(b"\r\n\r\n")
            headers = [(k, v) for k, _, v in (line.partition(": ") for line in head.decode().split("\r\n")) if k]
            status = next((int(v.split()[0]) for k, v in headers if k == "Status"), 200)
            return status, [(k, v) for k, v in headers if k != "Status"], content

        def _send(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
            try:
                self.send_response(status)
                for name, value in headers:
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
            except ConnectionError:
                self._cut()

        def _cut(self) -> None:
            self.close_connection = True

    return Handler


def _operation(method: str, path: str) -> str:
    if method == "GET":
        return "look-for-push" if "receive-pack" in path else "look"
    return "push" if path.endswith("git-receive-pack") else "fetch"
