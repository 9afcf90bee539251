"""The fake cache service against the official client, and our client against somebody else's server.

The first proves the judge: what the fake accepts is what the official client sends, and what it answers is what that
client understands. The second is a server that none of us wrote.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import endstate_action
from endstate_action.state.stores.base import Exists, Stored
from endstate_action.state.stores.cache import CacheStore
from endstate_action.state.stores.cache_v1 import CacheV1
from endstate_action.state.stores.cache_v2 import CacheV2
from endstate_action.state.stores.http import Client
from tests.support.cache_rules import make_token
from tests.support.cache_server import CacheServer
from tests.support.npm_packages import installed

ACT = shutil.which("act") or shutil.which("act", path=str(Path(sys.executable).parent))
WAIT = 20.0


def _run(command: list[str], where: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=where, env={**os.environ, **env}, capture_output=True, text=True, timeout=100, check=False
    )


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the official client is installed."""
    return installed("cache-client", tmp_path_factory)


@dataclass(frozen=True)
class Official:
    """The official client in one workspace, as a job has it."""

    folder: Path
    workspace: Path
    env: Mapping[str, str]

    def __call__(self, *arguments: str) -> dict[str, Any]:
        where = str(self.workspace)
        places = {"RUNNER_TEMP": where, "GITHUB_WORKSPACE": where}
        command = ["node", str(self.folder / "cache_client.js"), *arguments]
        done = _run(command, self.workspace, {**places, **self.env})
        told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return told


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a").write_text("A")
    return tmp_path


def our_store(server: CacheServer, service: int, version: str) -> CacheStore:
    """Ours, under the version that the official client has made of its paths."""
    client = Client(server.url, make_token(), {})
    return CacheStore(
        CacheV2(client, version=version) if service == 2 else CacheV1(client, version=version, chunk_bytes=100)
    )


@pytest.mark.parametrize("service", [2, 1])
def test_what_one_client_stores_the_other_restores(official, workspace, service):
    with CacheServer() as server:
        npm = Official(official, workspace, server.env(version=service))
        assert npm("save", "theirs-1", "data") == {"saved": 1}
        (theirs,) = server.shelf.finished()
        ours = our_store(server, service, theirs.version)
        archive = ours.get("theirs-1", timeout_s=WAIT)
        assert archive is not None
        assert archive == theirs.blob
        assert ours.first(["none", "theirs-"], timeout_s=WAIT) == "theirs-1"

        assert isinstance(ours.put("ours-2", archive, timeout_s=WAIT), Stored)
        shutil.rmtree(workspace / "data")
        assert npm("restore", "data", "ours", "theirs-") == {"restored": "ours-2"}
        assert (workspace / "data" / "a").read_text() == "A"
        assert server.mistakes == []


@pytest.mark.parametrize("service", [2, 1])
def test_a_key_that_is_taken_is_taken_for_both(official, workspace, service):
    with CacheServer() as server:
        npm = Official(official, workspace, server.env(version=service))
        assert npm("save", "k", "data") == {"saved": 1}
        assert npm("save", "k", "data") == {"saved": -1}
        ours = our_store(server, service, server.shelf.finished()[0].version)
        assert ours.put("k", b"other", timeout_s=WAIT) == Exists("k")
        assert server.mistakes == []


@pytest.mark.parametrize("service", [2, 1])
def test_the_official_client_restores_in_the_order_of_its_keys(official, workspace, service):
    with CacheServer() as server:
        npm = Official(official, workspace, server.env(version=service))
        for key in ("a-1", "b-1", "b-2"):
            npm("save", key, "data")
        assert npm("restore", "data", "c-", "b-", "a-") == {"restored": "b-2"}
        assert npm("restore", "data", "a-", "b-") == {"restored": "a-1"}
        assert npm("restore", "data", "c-", "d-") == {"restored": None}
        assert server.mistakes == []


def test_scopes_and_denials_are_those_that_the_official_client_knows(official, workspace):
    with CacheServer() as server:
        main = Official(official, workspace, server.env(make_token("refs/heads/main", ())))
        pull = Official(official, workspace, server.env(make_token("refs/pull/7/merge", ("refs/heads/main",))))
        other = Official(official, workspace, server.env(make_token("refs/pull/8/merge", ())))
        fork = Official(official, workspace, server.env(make_token("", ("refs/heads/main",))))
        assert main("save", "k-main", "data") == {"saved": 1}
        assert pull("save", "k-pull", "data") == {"saved": 2}
        assert pull("restore", "data", "k-main") == {"restored": "k-main"}
        assert pull("restore", "data", "k-") == {"restored": "k-pull"}
        assert main("restore", "data", "k-pull") == {"restored": None}
        assert other("restore", "data", "k-") == {"restored": None}
        assert fork("save", "k-fork", "data") == {"saved": -1}
        assert fork("restore", "data", "k-") == {"restored": "k-main"}
        assert server.mistakes == []


def test_the_official_client_uploads_in_blocks_what_is_large(official, workspace):
    (workspace / "data" / "large").write_bytes(random.Random(1).randbytes(136 << 20))
    with CacheServer() as server:
        npm = Official(official, workspace, server.env())
        assert npm("save", "large", "data") == {"saved": 1}
        assert server.operations.count("upload") > 2
        (theirs,) = server.shelf.finished()
        assert our_store(server, 2, theirs.version).get("large", timeout_s=60) == theirs.blob
        assert server.mistakes == []


# Somebody else's server: the one that comes with act, which speaks version 1 and lives as long as a job.

WORKFLOW = """
on: push
jobs:
  ours:
    runs-on: ubuntu-latest
    steps:
      - run: {python} {script}
"""

JOB = """
import json, os, time
from endstate_action.state.stores.cache import cache_store

store = cache_store(os.environ)
told = {"wire": type(store._wire).__name__, "before": store.first(["es1/c0002-", "es1/c0001-"], timeout_s=20)}
if told["before"] is None:
    told["put"] = [repr(store.put(key, data, timeout_s=20)) for key, data in (
        ("es1/c0001-1", bytes(range(256)) * 200), ("es1/c0002-1", b"second"), ("es1/c0001-9", b"late"),
    )]
told["first"] = store.first(["es1/c0003-", "es1/c0002-", "es1/c0001-"], timeout_s=20)
told["missed"] = store.first(["es1/d"], timeout_s=20)
told["exact"] = store.get("es1/c0001-1", timeout_s=20) == bytes(range(256)) * 200
told["prefix"] = store.get("es1/c0002-", timeout_s=20)
print("told", json.dumps(told))
"""


@pytest.mark.skipif(ACT is None, reason="needs act")
def test_our_client_speaks_version_1_with_a_server_that_none_of_us_wrote(tmp_path):
    repo, home, cache = tmp_path / "repo", tmp_path / "home", tmp_path / "cache"
    (repo / ".github" / "workflows").mkdir(parents=True)
    home.mkdir()
    (tmp_path / "job.py").write_text(JOB)
    (repo / ".github" / "workflows" / "w.yml").write_text(
        WORKFLOW.format(python=sys.executable, script=tmp_path / "job.py")
    )
    for command in (
        ["init", "-q"],
        ["add", "-A"],
        ["-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-qm", "x"],
    ):
        subprocess.run(["git", *command], cwd=repo, check=True)

    def job() -> dict[str, Any]:
        flags = ("--cache-server-addr", "127.0.0.1", "--cache-server-path", str(cache))
        source = Path(endstate_action.__file__).parents[1]
        given = (f"ACTIONS_RUNTIME_TOKEN={make_token()}", f"PYTHONPATH={source}")
        command = [str(ACT), "push", "-P", "ubuntu-latest=-self-hosted", *flags, "--artifact-server-addr", "127.0.0.1"]
        command += [word for variable in given for word in ("--env", variable)]
        done = _run(command, repo, {"HOME": str(home), "XDG_CACHE_HOME": str(home)})
        lines = [line.partition("| told ")[2] for line in done.stdout.splitlines() if "| told " in line]
        assert lines, done.stdout + done.stderr
        told: dict[str, Any] = json.loads(lines[0])
        return told

    found = {"wire": "CacheV1", "first": "es1/c0002-1", "missed": None, "exact": True, "prefix": None}
    stored = [repr(Stored("es1/c0001-1", 51_200)), repr(Stored("es1/c0002-1", 6)), repr(Stored("es1/c0001-9", 4))]
    assert job() == {**found, "before": None, "put": stored}
    assert job() == {**found, "before": "es1/c0002-1"}
