"""No test sees this machine: not its credentials, not its configuration, not its network."""

from __future__ import annotations

import os
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Any

import pytest
from hypothesis import settings

from tests.support.repos import git_repo as git_repo

# A test run that goes on in the background ignores these, and what it starts would as well.
for _ignored in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_ignored) is signal.SIG_IGN:
        signal.signal(_ignored, signal.SIG_DFL)

# How long an example takes says something about the machine, not about the promise.
settings.register_profile("endstate", deadline=None)
settings.register_profile("quick", deadline=None, max_examples=20)  # for `make check`
settings.load_profile("endstate")

# An allow-list, since nobody can name every variable that holds a credential.
KEPT = {"PATH", "LANG", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV"}
KEPT_PREFIXES = ("LC_", "PYTEST", "PYTHON", "PYENV")


class OutsideNetwork(RuntimeError):
    """A test tried to leave the machine. Not an `OSError`, which code under test may retry or swallow."""


@pytest.fixture(scope="session", autouse=True)
def an_empty_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """HOME and git's configuration are empty; every variable that is not on the list is gone.

    Holds for child processes as well, since they inherit the environment.
    """
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name not in KEPT and not name.startswith(KEPT_PREFIXES):
                patch.delenv(name)
        for name in ("CONFIG", "CACHE", "DATA", "STATE"):
            patch.setenv(f"XDG_{name}_HOME", str(home / name.lower()))
        patch.setenv("HOME", str(home))
        patch.setenv("GIT_CONFIG_GLOBAL", str(home / "gitconfig"))
        patch.setenv("GIT_CONFIG_NOSYSTEM", "1")
        patch.setenv("GIT_TERMINAL_PROMPT", "0")
        yield


@pytest.fixture(scope="session", autouse=True)
def loopback_only() -> Iterator[None]:
    """Sockets of this process reach loopback only. Child processes are not covered."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("connect", "connect_ex", "bind"):
            patch.setattr(socket.socket, name, _guarded(getattr(socket.socket, name)))
        yield


def _guarded(method: Any) -> Any:
    def call(self: socket.socket, address: Any) -> Any:
        if self.family in (socket.AF_INET, socket.AF_INET6) and not _is_loopback(address[0]):
            raise OutsideNetwork(f"no test may use {address[0]!r}: loopback only")
        return method(self, address)

    return call


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


SLOW_FILES = frozenset(
    f"test_{name}.py"
    for name in (
        *("commit", "git", "git_state", "check", "pack", "walk", "restore", "objects", "lock", "process", "bench"),
        *("sandbox", "sandbox_probe", "shell", "shell_sandboxed", "anthropic_provider"),
        *("cache_client", "cache_http", "cache_store", "cache_server", "stores", "directory", "git_ref"),
        *("objectstore", "pull_request", "github", "github_server", "comment", "patch", "published", "verify"),
        *("markdown", "render", "round_trips", "uploader", "shipper", "successor", "restoring", "durable"),
        *("deliver", "prune", "ignored", "nearby", "planted", "hand", "workplace", "build", "watch", "tree_cache"),
        "rows",
    )
)
"""Files whose tests start real programs, one after another: left out of `make check`, never of `make test`."""


SAMPLED = {
    # Whole machines, jobs or kill matrices for each test.
    "test_delivery.py": 8,
    "test_store_faults.py": 4,
    "test_act_preempted.py": 4,
    "test_step_inputs.py": 4,
    "test_step_events.py": 4,
    "test_step.py": 2,
    "test_store.py": 4,
    "test_fresh_machine.py": 4,
    "test_two_machines.py": 2,
    "test_machine.py": 3,
    # A server or a program for each test.
    "test_entrypoint.py": 3,
    "test_stores.py": 4,
    "test_git_ref.py": 3,
    "test_objectstore.py": 3,
    "test_cache_client.py": 3,
    "test_cache_http.py": 3,
    "test_cache_store.py": 3,
    "test_resume_metadata.py": 3,
    "test_pull_request.py": 2,
    "test_anthropic.py": 2,
    # A git repository, or a kill, for each test.
    "test_run.py": 2,
    "test_surface.py": 2,
    "test_crash_windows.py": 2,
    "test_signals.py": 2,
    "test_bench.py": 2,
    "test_git.py": 2,
    "test_deliver.py": 4,
    "test_commit.py": 3,
    "test_verify.py": 4,
    "test_check.py": 4,
    "test_tools.py": 2,
    "test_git_state.py": 2,
    "test_planted.py": 2,
    "test_prune.py": 2,
}
"""Of these files one test in so many runs each time, always the same ones; all of them run in `make recovery`."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.name in SLOW_FILES:
            item.add_marker(pytest.mark.slow)
    seen: Counter[str] = Counter()
    for item in items:
        name = item.path.name
        if item.get_closest_marker("recovery") is None:
            if seen[name] % SAMPLED.get(name, 1):
                item.add_marker(pytest.mark.recovery)
            seen[name] += 1
