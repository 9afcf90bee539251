"""Every kind of store, as the contract suite needs it: open, silent, closed and out of reach.

A new kind is one more row of `KINDS`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

from endstate_action.state.stores.base import Denied, Store
from endstate_action.state.stores.cache import cache_store
from endstate_action.state.stores.directory import DirectoryStore
from endstate_action.state.stores.git_ref import GitRefStore
from endstate_action.state.stores.objectstore import ObjectStore
from tests.support.cache_rules import make_token
from tests.support.cache_server import CacheServer
from tests.support.git_http import GitHttp
from tests.support.object_server import BUCKET, ObjectServer

Open = Callable[[], Store]
Make = Callable[[Path], AbstractContextManager["StoreKind"]]

LINEAGE = "a" * 32


@dataclass(frozen=True)
class StoreKind:
    """`open` gives a new client each time, all of one store. `elsewhere` is Python that makes one, as `store`."""

    open: Open
    silent: Open
    """Its service takes what is put and never answers."""
    closed: Open
    """What is there may be read, nothing may be written."""
    unreachable: Open
    elsewhere: str = ""
    lists: bool = True
    deletes: bool = True
    tells_highest: bool = True
    mute: Open | None = None
    """Its service never answers a question; None where nothing can hold one up."""


@contextmanager
def _directory(tmp_path: Path) -> Iterator[StoreKind]:
    path, file = tmp_path / "store", tmp_path / "file"
    file.write_text("in the way")

    def stalled(*_: object, **__: object) -> None:
        time.sleep(5)

    yield StoreKind(
        open=lambda: DirectoryStore(path),
        silent=lambda: DirectoryStore(path, link=stalled),
        closed=lambda: DirectoryStore(file / "below"),
        unreachable=lambda: DirectoryStore(file),
        elsewhere=f"from endstate_action.state.stores.directory import DirectoryStore\n"
        f"store = DirectoryStore(pathlib.Path({str(path)!r}))",
    )


@contextmanager
def _directory_without_links(tmp_path: Path) -> Iterator[StoreKind]:
    """As on a file system that has no hard links."""
    with _directory(tmp_path) as kind:
        yield StoreKind(
            open=lambda: DirectoryStore(tmp_path / "store", link=no_links),
            silent=kind.silent,
            closed=kind.closed,
            unreachable=kind.unreachable,
            elsewhere="def no_links(*_, **__):\n    raise PermissionError(1, 'Operation not permitted')\n"
            + kind.elsewhere.removesuffix(")")
            + ", link=no_links)",
        )


def no_links(*_: object, **__: object) -> None:
    raise PermissionError(1, "Operation not permitted")


def git_store(url: str, tmp_path: Path, token: str = "") -> GitRefStore:
    """With a repository of its own, as on a machine of its own."""
    workspace = tmp_path / "workspace"
    workspace.mkdir(exist_ok=True)
    return GitRefStore(url, tmp_path / "state" / token_hex(8), workspace, os.environ, token=token)


def decline(repository: Path) -> None:
    """No push is accepted from now on."""
    hook = repository / "hooks" / "pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho GH006: Protected branch update failed >&2\nexit 1\n")
    hook.chmod(0o755)


@contextmanager
def _git_ref(tmp_path: Path) -> Iterator[StoreKind]:
    with GitHttp(tmp_path / "served") as server:
        open_one, protected = server.repository("a.git"), server.repository("b.git")
        decline(protected)
        url = f"file://{open_one}"
        yield StoreKind(
            open=lambda: git_store(url, tmp_path),
            silent=lambda: _stalled(server, tmp_path, "push"),
            mute=lambda: _stalled(server, tmp_path, "look"),
            closed=lambda: git_store(f"file://{protected}", tmp_path),
            unreachable=lambda: git_store("http://127.0.0.1:1/o/r.git", tmp_path),
            elsewhere=_git_elsewhere(url, tmp_path, ""),
        )


@contextmanager
def _git_ref_by_http(tmp_path: Path) -> Iterator[StoreKind]:
    with GitHttp(tmp_path / "served") as server, GitHttp(tmp_path / "closed") as closed:
        server.repository("a.git")
        closed.repository("a.git")
        closed.faults["look-for-push"] = "403"
        yield StoreKind(
            open=lambda: git_store(server.url + "a.git", tmp_path, server.token),
            silent=lambda: _stalled(server, tmp_path, "push"),
            mute=lambda: _stalled(server, tmp_path, "look"),
            closed=lambda: git_store(closed.url + "a.git", tmp_path, closed.token),
            unreachable=lambda: git_store("http://127.0.0.1:1/o/r.git", tmp_path, server.token),
            elsewhere=_git_elsewhere(server.url + "a.git", tmp_path, server.token),
        )


def _stalled(server: GitHttp, tmp_path: Path, operation: str) -> GitRefStore:
    server.faults[operation] = "stall"
    return git_store(server.url + "a.git", tmp_path, server.token)


def _git_elsewhere(url: str, tmp_path: Path, token: str) -> str:
    state, workspace = str(tmp_path / "elsewhere"), str(tmp_path)
    return (
        "import os\nfrom endstate_action.state.stores.git_ref import GitRefStore\n"
        f"place = pathlib.Path({state!r}) / sys.argv[2]\n"
        f"store = GitRefStore({url!r}, place, pathlib.Path({workspace!r}), os.environ, token={token!r})"
    )


def _objects(service: str) -> Make:
    @contextmanager
    def kind(tmp_path: Path) -> Iterator[StoreKind]:
        with ObjectServer() as server, ObjectServer() as silent, ObjectServer() as closed:
            silent.faults = dict.fromkeys(("GET", "PUT", "POST"), "stall")
            closed.faults = dict.fromkeys(("PUT", "POST"), (403, "AccessDenied"))
            nowhere = {
                key: value.replace(server.url, "http://127.0.0.1:1") for key, value in server.env(service).items()
            }
            yield _object_kind(service, server.env(service), silent.env(service), closed.env(service), nowhere)

    return kind


@contextmanager
def emulated(env: Mapping[str, str]) -> Iterator[StoreKind]:
    """S3 as the public emulator, which is slow to start and therefore shared, believes it to be."""
    with ObjectServer() as silent, ObjectServer() as closed:
        silent.faults = dict.fromkeys(("GET", "PUT"), "stall")
        closed.faults = {"PUT": (403, "AccessDenied")}
        nowhere = {**env, "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}
        yield _object_kind("s3", env, silent.env("s3"), closed.env("s3"), nowhere)


def _object_kind(service, env, silent, closed, nowhere) -> StoreKind:
    prefix = f"some/{token_hex(8)}"
    return StoreKind(
        open=lambda: ObjectStore(service, BUCKET, prefix, env),
        silent=lambda: ObjectStore(service, BUCKET, "", silent),
        mute=lambda: ObjectStore(service, BUCKET, "", silent),
        closed=lambda: ObjectStore(service, BUCKET, "", closed),
        unreachable=lambda: ObjectStore(service, BUCKET, "", nowhere),
        elsewhere="from endstate_action.state.stores.objectstore import ObjectStore\n"
        f"store = ObjectStore({service!r}, {BUCKET!r}, {prefix!r}, {env!r})",
    )


def _cache(version: int) -> Make:
    @contextmanager
    def kind(tmp_path: Path) -> Iterator[StoreKind]:
        with CacheServer() as server, CacheServer() as silent:
            for operation in ("create", "lookup"):
                silent.fault(operation, "stall", times=99)
            env = server.env(version=version)
            nowhere = {key: value.replace(server.url, "http://127.0.0.1:1/") for key, value in env.items()}
            yield StoreKind(
                open=lambda: _opened(env),
                silent=lambda: _opened(silent.env(version=version)),
                mute=lambda: _opened(silent.env(version=version)),
                closed=lambda: _opened(server.env(make_token(write=""), version=version)),
                unreachable=lambda: _opened(nowhere),
                elsewhere=f"from endstate_action.state.stores.cache import cache_store\nstore = cache_store({env!r})",
                lists=False,
                deletes=False,
                tells_highest=False,
            )
            assert server.mistakes == []

    return kind


def _opened(env: Mapping[str, str]) -> Store:
    store = cache_store(env)
    assert not isinstance(store, Denied)
    return store


KINDS: dict[str, Make] = {
    "dir": _directory,
    "dir-without-links": _directory_without_links,
    "git-ref": _git_ref,
    "git-ref-http": _git_ref_by_http,
    "s3": _objects("s3"),
    "gs": _objects("gs"),
    "az": _objects("az"),
    "cache-v2": _cache(2),
    "cache-v1": _cache(1),
}
