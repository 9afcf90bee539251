"""Servers on loopback that misbehave, a forward proxy, and certificates that no system trusts."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import pytest

Behaviour = Callable[[socket.socket, threading.Event], None]


def read_head(connection: socket.socket) -> bytes:
    head = b""
    while b"\r\n\r\n" not in head and (more := connection.recv(1 << 16)):
        head += more
    return head


def answering(answer: bytes) -> Behaviour:
    """Each request gets these bytes, and the connection ends."""

    def behave(connection: socket.socket, over: threading.Event) -> None:
        read_head(connection)
        connection.sendall(answer)

    return behave


def trickling(answer: bytes, pause_s: float = 0.05) -> Behaviour:
    """Byte for byte, and no end in sight."""

    def behave(connection: socket.socket, over: threading.Event) -> None:
        read_head(connection)
        for i in range(len(answer)):
            connection.sendall(answer[i : i + 1])
            if over.wait(pause_s):
                return

    return behave


def silent(connection: socket.socket, over: threading.Event) -> None:
    over.wait(30)


class RawServer:
    """One behaviour for every connection; `heads` is what was asked, `connections` how often somebody came."""

    def __init__(self, behaviour: Behaviour, tls: ssl.SSLContext | None = None) -> None:
        self.connections = 0
        self._behaviour, self._tls = behaviour, tls
        self._over = threading.Event()

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            with connection:
                self._behaviour(connection, self._over)
        except OSError:
            pass  # the client went away


@dataclass
class Proxy:
    """A forward proxy to whom every name is this machine. `heads` is what it was asked for."""

    refuses: bool = False
    heads: list[str] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._server = RawServer(self._relay)
        self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.__exit__()

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self._server.port}"

    def _relay(self, client: socket.socket, over: threading.Event) -> None:
        head = read_head(client)
        self.heads.append(head.partition(b"\r\n\r\n")[0].decode())
        if self.refuses:
            client.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            return
        method, target = head.split(b" ")[:2]
        port = int(target.rpartition(b":")[2]) if method == b"CONNECT" else urlsplit(target.decode()).port or 80
        with socket.create_connection(("127.0.0.1", port)) as server:
            if method == b"CONNECT":
                client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                server.sendall(head)
            back = threading.Thread(target=_pump, args=(server, client), daemon=True)
            back.start()
            _pump(client, server)
            back.join(10)


def _pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # one of them went away


@dataclass(frozen=True)
class Authority:
    """A certificate authority of one's own, and a server that it vouches for as `cache.test` and 127.0.0.1."""

    certificate: Path
    server: ssl.SSLContext


_CONFIGURATION = """
[ca]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
subjectAltName = DNS:cache.test, IP:127.0.0.1
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
"""


def make_authority(folder: Path) -> Authority:
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    (folder / "x.cnf").write_text(_CONFIGURATION)
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    extensions = ["-extfile", "x.cnf", "-extensions", "server"]
    for command in (
        ("req -x509 -keyout ca.key -out ca.pem -days 2 -subj /CN=ca -config x.cnf -extensions ca", *key),
        ("req -keyout server.key -out server.csr -subj /CN=cache.test -config x.cnf", *key),
        ("x509 -req -in server.csr -out server.pem -CA ca.pem -CAkey ca.key -CAcreateserial -days 2", *extensions),
    ):
        words = [*command[0].split(), *command[1:]]
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "server.pem", folder / "server.key")
    return Authority(folder / "ca.pem", server)
