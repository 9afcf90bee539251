"""A public emulator of S3, as a process of its own: what we believe of S3 is also what others believe."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

BUCKET = "bucket"
_START_S = 30.0


@contextmanager
def moto_server() -> Iterator[dict[str, str]]:
    """The environment by which a store reaches it. Skips the test where the emulator is not installed."""
    if importlib.util.find_spec("moto") is None or importlib.util.find_spec("flask") is None:
        pytest.skip("the emulator of S3 (moto) is not installed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _make_bucket(f"http://127.0.0.1:{port}/{BUCKET}", process)
        yield {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
        }
    finally:
        process.kill()
        process.wait()


def _make_bucket(url: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + _START_S
    signed = {"Authorization": "AWS4-HMAC-SHA256 Credential=testing/20260101/us-east-1/s3/aws4_request"}
    while True:
        try:
            urllib.request.urlopen(urllib.request.Request(url, method="PUT", data=b"", headers=signed)).close()
        except (urllib.error.URLError, ConnectionError):
            assert process.poll() is None, "the emulator of S3 ended"
            assert time.monotonic() < end, "the emulator of S3 did not start"
            time.sleep(0.1)
        else:
            return
