"""Which paths the project's ignore rules match. They choose only what a snapshot may leave out when it is too much.

Git reads `.gitignore` files, the project's `info/exclude` and its index, but under our configuration: nothing in
the project is executed, nothing of it is written.
"""

from __future__ import annotations

import os
from pathlib import Path

from endstate_action.state.snapshot.objects import ObjectStore
from endstate_action.system.git_call import GitError, split

_OPTIONS = ("--others", "--ignored", "--directory", "-z", "--exclude-per-directory=.gitignore")


def ignored_paths(
    objects: ObjectStore, workspace: Path, git_dir: Path, common_dir: Path, excludes_file: Path | None = None
) -> list[bytes]:
    """Untracked paths that are ignored, one for a directory as a whole (with a slash at its end).

    Nothing is ignored where git cannot tell: then all is kept.

    Args:
        excludes_file: the user's own, as `core.excludesFile` names it.
    """
    files = [common_dir / "info" / "exclude", *([excludes_file] if excludes_file else [])]
    rules = [f"--exclude-from={file}" for file in files if file.is_file()]
    # An index that git cannot read here, since it refers to another file, is as good as none: what is tracked then
    # counts as ignored, but there is room for it as a rule.
    for index in (git_dir / "index", Path(os.devnull)):
        env = {"GIT_WORK_TREE": str(workspace), "GIT_INDEX_FILE": str(index)}
        try:
            # From a directory below, git would list nothing but that.
            done = objects.git("-C", str(workspace), "ls-files", *_OPTIONS, *rules, extra_env=env)
        except GitError:
            return []
        if done.returncode == 0:
            return split(done.stdout)
    return []
