"""What conftest promises every test about the machine it runs on."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from tests.conftest import OutsideNetwork
from tests.support.repos import GitRepo


@pytest.mark.parametrize("address", [("192.0.2.1", 443), ("203.0.113.7", 80), ("example.invalid", 80), ("::2", 80)])
@pytest.mark.parametrize("method", ["connect", "connect_ex", "bind"])
def test_no_socket_leaves_the_machine(method, address):
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with socket.socket(family) as outside, pytest.raises(OutsideNetwork):
        getattr(outside, method)(address)


def test_loopback_works():
    with socket.socket() as server, socket.socket() as client:
        server.bind(("127.0.0.1", 0))
        server.listen()
        client.connect(server.getsockname())
        accepted, _ = server.accept()
        accepted.close()


def test_no_credential_is_in_the_environment():
    suspicious = ("TOKEN", "KEY", "SECRET", "PASSWORD", "GITHUB_", "ACTIONS_", "ANTHROPIC_", "PROXY")
    assert [name for name in os.environ if any(part in name.upper() for part in suspicious)] == []


def test_git_has_no_configuration_but_the_repository_s_own(git_repo: GitRepo):
    shown = git_repo().git("config", "--list", "--show-scope")
    assert {line.split()[0] for line in shown.splitlines()} == {"local"}


def test_a_repository_has_no_identity_for_the_code_under_test(git_repo: GitRepo):
    repo = git_repo({"dir/a.txt": "a\n", "b.bin": b"\x00"})
    assert repo.git("ls-files").splitlines() == ["b.bin", "dir/a.txt"]
    by_others = ["git", "-C", str(repo.path), "-c", "user.useConfigOnly=true", "commit", "--allow-empty", "-m", "x"]
    assert subprocess.run(by_others, capture_output=True, check=False).returncode != 0


def test_home_is_an_empty_folder_of_ours(tmp_path_factory: pytest.TempPathFactory):
    assert Path.home().is_relative_to(tmp_path_factory.getbasetemp())
