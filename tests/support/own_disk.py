"""A small file system of one's own, in a namespace of its own: a full one, or another than the one around it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_MOUNTED = 'mount -t tmpfs -o "$1" none "$2" || exit 77; shift 2; exec "$@"'
_ROOT = Path(__file__).parents[2]


def on_a_disk_of_its_own(
    mounted: Path, options: str, script: str, *arguments: object
) -> subprocess.CompletedProcess[str]:
    """Run `script`, given `arguments`, where a file system with such `options` lies at `mounted`.

    Skips where there is no program for that, or where it is not allowed.
    """
    mounted.mkdir(parents=True, exist_ok=True)
    command = ["unshare", "-rm", "sh", "-c", _MOUNTED, "sh", options, str(mounted), sys.executable, "-c", script]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT), *sys.path])}
    try:
        done = subprocess.run([*command, *map(str, arguments)], env=env, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no unshare program here")
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    return done
