"""Which paths ignore rules match, the project's and the user's. They choose only what a snapshot may leave out when it
is too much.

Git reads `.gitignore` files and its index, but under our configuration: nothing in the project is executed, nothing
of it is written. The other files of rules are read here, since anybody may have put anything in their place.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from endstate_action.state.snapshot.objects import ObjectStore
from endstate_action.state.snapshot.refusals import writing
from endstate_action.system import own_files
from endstate_action.system.git_call import Git, GitError, split, text

MAX_BYTES = 1 << 20
"""Of a longer file of rules nothing is used: more is kept then, not less."""

_OPTIONS = ("--others", "--ignored", "--directory", "-z", "--exclude-per-directory=.gitignore")
# Without O_NONBLOCK, opening a fifo in a file's place would wait for a writer for ever.
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_PATIENCE_S = 5.0
"""After which we look whether git waits for a writer of its own."""
_BOM = b"\xef\xbb\xbf"


def ignored_paths(
    objects: ObjectStore, workspace: Path, git_dir: Path, common_dir: Path, excludes_file: Path | None = None
) -> list[bytes]:
    """Untracked paths that are ignored, one for a directory as a whole (with a slash at its end).

    Nothing is ignored where git cannot tell: then all is kept.

    Args:
        excludes_file: the user's own, as `user_excludes_file` finds it.
    """
    # The project's come last, since the last rule that matches decides.
    files = [*([excludes_file] if excludes_file else []), common_dir / "info" / "exclude"]
    rules = objects.path / "info" / "rules"
    _note(rules, b"\n".join(map(_rules, files)))
    # An index that git cannot read here, since it refers to another file, is as good as none: what is tracked then
    # counts as ignored, but there is room for it as a rule.
    for index in (git_dir / "index", Path(os.devnull)):
        listed = _listed(objects, workspace, index, rules)
        if listed is not None:
            return listed
    return []


def user_excludes_file(workspace: Path, git_dir: Path, env: Mapping[str, str]) -> Path | None:
    """The file of rules for all of the user's repositories, where git would look for it; it need not be there.

    Args:
        env: gives PATH, HOME and XDG_CONFIG_HOME.
    """
    git = Git.for_user(workspace, git_dir, env)
    try:
        named = git.ask("config", "-z", "--type=path", "--get", "core.excludesFile") if git else None
    except GitError:
        return None
    if named is not None:
        name = text(named.rstrip(b"\0"))
        return workspace / name if name else None
    place = env.get("XDG_CONFIG_HOME") or (f"{env['HOME']}/.config" if env.get("HOME") else "")
    return Path(place, "git", "ignore") if place else None


def _listed(objects: ObjectStore, workspace: Path, index: Path, rules: Path) -> list[bytes] | None:
    """None where git cannot read `index`."""
    env = {"GIT_WORK_TREE": str(workspace), "GIT_INDEX_FILE": str(index)}
    # From a directory below, git would list nothing but that.
    asked = ("-C", str(workspace), "ls-files", *_OPTIONS, f"--exclude-from={rules}")
    try:
        try:
            done = objects.git(*asked, extra_env=env, timeout_s=_PATIENCE_S)
        except GitError:
            if _holds_up_git(workspace):
                return []
            done = objects.git(*asked, extra_env=env)
    except GitError:
        return []
    return split(done.stdout) if done.returncode == 0 else None


def _note(rules: Path, text: bytes) -> None:
    """They seldom change, and to put a file in the place of another can cost as much as a sync."""
    with suppress(OSError):
        if own_files.get(rules) == text:
            return
    with writing("The rules of what is ignored were not noted"):
        own_files.put(rules, text)


def _rules(file: Path) -> bytes:
    """What a file of rules says, whatever stands at its place."""
    try:
        with open(os.open(file, _READ), "rb") as opened:
            if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
                return b""
            data = opened.read(MAX_BYTES + 1)
    except (OSError, ValueError):
        return b""
    return data.removeprefix(_BOM) if len(data) <= MAX_BYTES else b""


def _holds_up_git(workspace: Path) -> bool:
    """Whether a `.gitignore` is a fifo or the like, at which git waits."""
    return any(
        ".gitignore" in names and not os.path.isfile(os.path.join(folder, ".gitignore"))
        for folder, _, names in os.walk(workspace)
    )
