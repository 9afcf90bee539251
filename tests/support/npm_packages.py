"""Programs of others, from npm, that judge what we and our fakes say. Where npm has them not, tests are skipped."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from filelock import FileLock

_PACKAGES = Path(__file__).parent / "npm"
_FLAGS = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock")
_PATIENCE_S = 100
OLDEST_NODE = 20
"""Under an older one these programs start, and fail in ways of their own."""


def installed(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of `npm/NAME` with what its `package.json` asks for; once for all tests that run at the same time."""
    if not shutil.which("npm") or _node() < OLDEST_NODE:
        pytest.skip(f"needs npm, and node {OLDEST_NODE} or newer")
    folder = tmp_path_factory.getbasetemp().parent / f"npm-{name}"
    with FileLock(f"{folder}.lock"):
        if not (folder / "installed").exists():
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(_PACKAGES / name, folder)
            said = _install(folder)
            if said:
                pytest.skip(f"npm has not installed {name}: {said[-200:]}")
            (folder / "installed").touch()
    return folder


def _node() -> int:
    program = shutil.which("node")
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout if program else ""
    found = re.match(r"v(\d+)\.", said)
    return int(found[1]) if found else 0


def _install(folder: Path) -> str:
    """What npm complains of."""
    command = ["npm", "install", *_FLAGS]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    except subprocess.TimeoutExpired:
        return f"it was not done after {_PATIENCE_S} s"
    return done.stderr.strip() or "it failed" if done.returncode else ""
