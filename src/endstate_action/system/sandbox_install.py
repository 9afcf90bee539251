"""Making a sandbox possible, step by step, and no further than needed.

As it is; then with bubblewrap installed, where we may; then with an AppArmor profile for that one
program, where the kernel lets unconfined programs make no user namespace. The machine as a whole is
never made weaker, and when nothing helps the reason is said.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from endstate_action.system.process import Completed, capture
from endstate_action.system.sandbox import NoSandbox, Sandbox

SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where programs are looked for that run as root; never the PATH that a workflow may have changed."""
PROFILE = """\
abi <abi/4.0>,
include <tunables/global>

profile endstate-bwrap /usr/bin/bwrap flags=(unconfined) {
  userns,
}
"""
_PROGRAM = "/usr/bin/bwrap"
_PASSED_ON = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_TIMEOUT_S = 300.0
_APT = ("apt-get", "-qq", "-o", "DPkg::Lock::Timeout=60")


@dataclass(frozen=True, slots=True)
class Obtained:
    sandbox: Sandbox | NoSandbox
    done: tuple[str, ...] = ()
    """What was changed on the machine, a sentence each."""


@dataclass(frozen=True, slots=True)
class _Host:
    """The machine as root may change it; tests pass another."""

    search_path: str = SEARCH_PATH
    restriction: Path = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
    profiles: Path = Path("/etc/apparmor.d")
    loaded: Path = Path("/sys/kernel/security/apparmor/profiles")
    is_root: bool = field(default_factory=lambda: os.geteuid() == 0)


def obtain(
    probe: Callable[[], Sandbox | NoSandbox], env: Mapping[str, str], *, may_install: bool, host: _Host | None = None
) -> Obtained:
    """The sandbox of this machine, after doing for it what `may_install` allows; else why there is none.

    Args:
        probe: tries the sandbox as the machine is now; called again after each change.
        env: only proxies are taken from it.
    """
    host = host or _Host()
    found = probe()
    if isinstance(found, Sandbox):
        return Obtained(found)
    if not may_install:
        return Obtained(found)
    root = _Root.of(host, env)
    if root is None:
        return Obtained(NoSandbox(f"{found.reason} Nothing was installed: that takes root or sudo without a password."))
    return _step_by_step(found, probe, root, host)


def _step_by_step(found: NoSandbox, probe: Callable[[], Sandbox | NoSandbox], root: _Root, host: _Host) -> Obtained:
    done: list[str] = []
    for step in (_install, _allow):
        changed, why_not = step(root, host)
        if not changed:
            found = NoSandbox(f"{found.reason} {why_not}".strip())
            continue
        done.append(changed)
        again = probe()
        if isinstance(again, Sandbox):
            return Obtained(again, tuple(done))
        found = again
    return Obtained(found, tuple(done))


@dataclass(frozen=True, slots=True)
class _Root:
    """Runs a program as root: as we are, or with sudo where it asks for nothing."""

    prefix: tuple[str, ...]
    env: Mapping[str, str]

    @classmethod
    def of(cls, host: _Host, env: Mapping[str, str]) -> _Root | None:
        passed_on = {name: env[name] for name in _PASSED_ON if name in env}
        seen = {"PATH": host.search_path, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive", **passed_on}
        if host.is_root:
            return cls((), seen)
        sudo = shutil.which("sudo", path=host.search_path)
        # Of our environment, sudo passes on what its own rules say; what apt needs is named.
        found = cls((sudo, "-n", "env", *(f"{k}={v}" for k, v in seen.items())), seen) if sudo else None
        return found if found is not None and found.call("true").returncode == 0 else None

    def call(self, *argv: str, given: bytes | None = None) -> Completed:
        program = shutil.which(argv[0], path=self.env["PATH"]) or argv[0]
        try:
            return capture(
                [*self.prefix, program, *argv[1:]], cwd=Path("/"), env=self.env, timeout_s=_TIMEOUT_S, input=given
            )
        except (OSError, TimeoutError) as error:
            return Completed(127, b"", str(error).encode())

    def has(self, program: str) -> bool:
        return shutil.which(program, path=self.env["PATH"]) is not None


def _install(root: _Root, host: _Host) -> tuple[str, str]:
    """What was changed, or why nothing was."""
    if shutil.which("bwrap", path=host.search_path):
        return "", ""
    if not root.has("apt-get"):
        return "", "It cannot be installed here: there is no apt-get."
    install = (*_APT, "install", "--yes", "--no-install-recommends", "bubblewrap")
    ended = root.call(*install)
    if ended.returncode != 0:
        # The lists of packages may be missing, or too old to find anything.
        root.call(*_APT, "update")
        ended = root.call(*install)
    if ended.returncode != 0:
        return "", f"apt-get could not install it: {_last_line(ended)}."
    return "bubblewrap was installed with apt-get.", ""


def _allow(root: _Root, host: _Host) -> tuple[str, str]:
    """Where the kernel restricts user namespaces, let this one program make them."""
    if _text(host.restriction).strip() != "1":
        return "", ""
    if not root.has("apparmor_parser"):
        return "", "AppArmor restricts user namespaces here, and there is no apparmor_parser to allow them to bwrap."
    if _is_named(root, host):
        # Of two profiles for one program neither is used.
        return "", f"AppArmor restricts user namespaces here, and a profile for {_PROGRAM} exists already."
    ended = root.call("apparmor_parser", "--add", given=PROFILE.encode())
    if ended.returncode != 0:
        return "", f"AppArmor restricts user namespaces here, and no profile could be loaded: {_last_line(ended)}."
    return f"An AppArmor profile that lets {_PROGRAM}, and no other program, make user namespaces was loaded.", ""


def _is_named(root: _Root, host: _Host) -> bool:
    loaded = root.call("cat", str(host.loaded)).stdout.decode("utf-8", "replace")
    if any("bwrap" in line for line in loaded.splitlines()):
        return True
    files = [path for path in host.profiles.glob("*") if path.is_file()] if host.profiles.is_dir() else []
    return any(_PROGRAM in line and not line.lstrip().startswith("#") for f in files for line in _text(f).splitlines())


def _last_line(ended: Completed) -> str:
    lines = (ended.stderr or ended.stdout).decode("utf-8", "replace").strip().splitlines()
    return lines[-1].rstrip(".") if lines else f"it ended with {ended.returncode}"


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
