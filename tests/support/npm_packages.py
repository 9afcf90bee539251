"""Programs of others, from npm, that judge what we and our fakes say. Where npm has them not, tests are skipped."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from filelock import FileLock

_PACKAGES = Path(__file__).parent / "npm"
_FLAGS = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock")
_PATIENCE_S = 100


def installed(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of `npm/NAME` with what its `package.json` asks for; once for all tests that run at the same time."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("needs node and npm")
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


def _install(folder: Path) -> str:
    """What npm complains of."""
    command = ["npm", "install", *_FLAGS]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    except subprocess.TimeoutExpired:
        return f"it was not done after {_PATIENCE_S} s"
    return done.stderr.strip() or "it failed" if done.returncode else ""
