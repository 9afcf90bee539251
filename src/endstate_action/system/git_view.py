"""A git directory of ours over somebody else's objects: git can read work-tree files there and has nothing to execute.

A filter, a file system monitor, a hook: what git executes is defined by configuration. A view's configuration is
written here, so attributes in the work tree may name whatever they like. Its index is its own; objects that are
added go to the project's store.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from endstate_action.system.git_call import Git

_CONFIG = "[core]\n\trepositoryFormatVersion = 0\n\tbare = false\n"
_CONFIG_SHA256 = "[core]\n\trepositoryFormatVersion = 1\n\tbare = false\n[extensions]\n\tobjectFormat = sha256\n"


@contextmanager
def view(git: Git, place: Path, common_dir: Path, object_format: str, commit: str | None) -> Iterator[Git]:
    """Git with a directory at `place`, its index holding `commit` (None: nothing). A leftover is replaced."""
    shutil.rmtree(place, ignore_errors=True)
    try:
        _write(place, common_dir, object_format)
        seen = git.with_env({"GIT_DIR": str(place), "GIT_OBJECT_DIRECTORY": str(common_dir / "objects")})
        seen.out("read-tree", commit or "--empty")
        yield seen
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _write(place: Path, common_dir: Path, object_format: str) -> None:
    for name in ("refs", "objects", "info"):
        (place / name).mkdir(parents=True)
    (place / "HEAD").write_text("ref: refs/heads/view\n")
    (place / "config").write_text(_CONFIG_SHA256 if object_format == "sha256" else _CONFIG)
    for name in ("exclude", "attributes"):
        source = common_dir / "info" / name
        if source.is_file():
            shutil.copyfile(source, place / "info" / name)
