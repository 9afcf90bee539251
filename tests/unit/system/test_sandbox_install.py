"""What is done to a machine for the sandbox's sake: as little as helps, and never without being allowed to.

Stubs stand in for the programs that would change this machine; the sandbox is a file that they make.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from endstate_action.system.sandbox import NoSandbox, Sandbox
from endstate_action.system.sandbox_install import PROFILE, Obtained, _Host, obtain

FOUND = Sandbox(Path("/usr/bin/bwrap"), "9", False, Path("/w"), Path("/w/s"), Path("/h"), None)


@dataclass
class Machine:
    """`log` is what was run as root. The sandbox works when each file in `needs` is there."""

    root: Path
    needs: Sequence[str] = ()
    is_root: bool = True

    def __post_init__(self) -> None:
        (self.root / "bin").mkdir()
        (self.root / "apparmor.d").mkdir()
        (self.root / "loaded").write_text("unconfined (unconfined)\n")
        (self.root / "restricted").write_text("0\n")
        for name in ("cat", "env", "touch", "true"):
            (self.root / "bin" / name).symlink_to(f"/bin/{name}")

    def program(self, name: str, does: str = "") -> None:
        file = self.root / "bin" / name
        file.write_text(f'#!/bin/sh\ncd {self.root}\necho {name} "$@" >> log\n{does}\n')
        file.chmod(0o755)

    def apt(self, does: str = "touch bin/bwrap") -> None:
        self.program("apt-get", does)

    def sudo(self, does: str = 'shift; exec "$@"') -> None:
        self.is_root = False
        self.program("sudo", does)

    def restricts(self, parser: str = "cat > profile") -> None:
        (self.root / "restricted").write_text("1\n")
        self.program("apparmor_parser", parser)

    def probe(self) -> Sandbox | NoSandbox:
        missing = [name for name in self.needs if not (self.root / name).exists()]
        return NoSandbox(f"There is no {missing[0]}.") if missing else FOUND

    def obtain(self, *, may_install: bool = True, **env: str) -> Obtained:
        host = _Host(
            str(self.root / "bin"),
            self.root / "restricted",
            self.root / "apparmor.d",
            self.root / "loaded",
            self.is_root,
        )
        return obtain(self.probe, env, may_install=may_install, host=host)

    @property
    def log(self) -> list[str]:
        return (self.root / "log").read_text().splitlines() if (self.root / "log").exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Callable[..., Machine]:
    return lambda *needs: Machine(tmp_path, needs)


INSTALL = "apt-get -qq -o DPkg::Lock::Timeout=60 install --yes --no-install-recommends bubblewrap"
UPDATE = "apt-get -qq -o DPkg::Lock::Timeout=60 update"


def test_where_the_sandbox_works_as_it_is_nothing_is_done(machine):
    here = machine()
    here.apt()
    here.restricts()
    assert here.obtain() == Obtained(FOUND)
    assert here.log == []


def test_without_permission_nothing_is_done(machine):
    here = machine("bin/bwrap")
    here.apt()
    assert here.obtain(may_install=False) == Obtained(NoSandbox("There is no bin/bwrap."))
    assert here.log == []


def test_bubblewrap_is_installed_where_it_is_missing(machine):
    here = machine("bin/bwrap")
    here.apt()
    assert here.obtain() == Obtained(FOUND, ("bubblewrap was installed with apt-get.",))
    assert here.log == [INSTALL]


def test_lists_of_packages_are_fetched_only_when_they_are_needed(machine):
    here = machine("bin/bwrap")
    here.apt('case "$*" in *update) touch lists ;; *) [ -e lists ] && touch bin/bwrap ;; esac')
    assert here.obtain().sandbox == FOUND
    assert here.log == [INSTALL, UPDATE, INSTALL]


def test_what_apt_says_is_part_of_the_reason(machine):
    here = machine("bin/bwrap")
    here.apt("echo 'E: Unable to locate package bubblewrap' >&2; exit 100")
    found = here.obtain()
    expected = "There is no bin/bwrap. apt-get could not install it: E: Unable to locate package bubblewrap."
    assert found == Obtained(NoSandbox(expected))


def test_without_apt_that_is_the_reason(machine):
    found = machine("bin/bwrap").obtain()
    assert found == Obtained(NoSandbox("There is no bin/bwrap. It cannot be installed here: there is no apt-get."))


def test_as_an_ordinary_user_sudo_is_used_where_it_asks_for_nothing(machine):
    here = machine("bin/bwrap")
    here.apt()
    here.sudo()
    assert here.obtain().sandbox == FOUND
    assert [line.split()[0] for line in here.log] == ["sudo", "sudo", "apt-get"]
    assert all(line.startswith("sudo -n ") for line in here.log if line.startswith("sudo"))


@pytest.mark.parametrize("sudo", [None, "echo 'sudo: a password is required' >&2; exit 1"])
def test_without_root_s_rights_nothing_is_tried(machine, sudo):
    here = machine("bin/bwrap")
    here.apt()
    here.is_root = False
    if sudo is not None:
        here.sudo(sudo)
    found = here.obtain()
    expected = "There is no bin/bwrap. Nothing was installed: that takes root or sudo without a password."
    assert found == Obtained(NoSandbox(expected))
    assert not any(line.startswith("apt-get") for line in here.log)


def test_on_a_kernel_that_restricts_user_namespaces_one_program_is_allowed_to_make_them(machine):
    """As on Ubuntu 24.04. The profile goes to the kernel alone: nothing stays on the disk."""
    here = machine("bin/bwrap", "profile")
    here.apt()
    here.restricts()
    found = here.obtain()
    assert found.sandbox == FOUND
    assert [sentence.split()[0] for sentence in found.done] == ["bubblewrap", "An"]
    assert here.log == [INSTALL, "apparmor_parser --add"]
    assert (here.root / "profile").read_text() == PROFILE
    assert (here.root / "restricted").read_text() == "1\n"
    assert list((here.root / "apparmor.d").iterdir()) == []


def test_the_profile_names_one_program_and_grants_one_thing():
    lines = [line.strip() for line in PROFILE.splitlines() if line.strip()]
    assert lines[2:] == ["profile endstate-bwrap /usr/bin/bwrap flags=(unconfined) {", "userns,", "}"]


@pytest.mark.parametrize("where", ["on disk", "in the kernel"])
def test_a_profile_that_exists_is_left_alone(machine, where):
    """A second one for the same program would make both fail."""
    here = machine("profile")
    (here.root / "bin" / "bwrap").touch(0o755)
    here.restricts()
    if where == "on disk":
        (here.root / "apparmor.d" / "bwrap-userns-restrict").write_text("# x\nprofile bwrap /usr/bin/bwrap {\n}\n")
    else:
        (here.root / "loaded").write_text("bwrap (enforce)\n")
    found = here.obtain()
    assert isinstance(found.sandbox, NoSandbox)
    assert found.sandbox.reason.endswith("a profile for /usr/bin/bwrap exists already.")
    assert here.log == []


def test_no_profile_is_loaded_where_nothing_is_restricted(machine):
    here = machine("profile")
    (here.root / "bin" / "bwrap").touch(0o755)
    here.program("apparmor_parser", "cat > profile")
    assert here.obtain() == Obtained(NoSandbox("There is no profile."))
    assert here.log == []


@pytest.mark.parametrize("parser", [None, "echo 'parser error' >&2; exit 1", "cat > /dev/null"])
def test_when_nothing_helps_the_reason_is_said(machine, parser):
    here = machine("profile")
    (here.root / "bin" / "bwrap").touch(0o755)
    (here.root / "restricted").write_text("1\n")
    if parser is not None:
        here.restricts(parser)
    found = here.obtain()
    assert isinstance(found.sandbox, NoSandbox)
    assert found.sandbox.reason.startswith("There is no profile.")
    assert ("AppArmor restricts user namespaces" in found.sandbox.reason) is (parser != "cat > /dev/null")


def test_root_s_programs_see_proxies_and_nothing_else_of_our_environment(machine):
    here = machine("bin/bwrap")
    here.apt("env > seen; touch bin/bwrap")
    here.sudo()
    here.obtain(https_proxy="http://proxy:1", ANTHROPIC_API_KEY="secret", PATH="/evil")
    seen = (here.root / "seen").read_text()
    assert "https_proxy=http://proxy:1" in seen
    assert "DEBIAN_FRONTEND=noninteractive" in seen
    assert "secret" not in seen
    assert "/evil" not in seen
