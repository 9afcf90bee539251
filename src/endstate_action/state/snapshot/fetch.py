"""The base commit from the project's remote repository, where this checkout does not have it.

It is fetched into our own store, whose configuration is ours: of the checkout's, only the address of the remote is
used. The user's own configuration is honoured, since that is where credentials come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from endstate_action.state.snapshot.base import note_base
from endstate_action.state.snapshot.layout import confirm
from endstate_action.state.snapshot.objects import ObjectStore
from endstate_action.system.git_call import Git, GitError

_TRANSPORTS = {"GIT_ALLOW_PROTOCOL": "https:http:ssh:file", "GIT_TERMINAL_PROMPT": "0"}
_OPTIONS = ("--quiet", "--no-tags", "--no-write-fetch-head", "--depth=1", "--no-recurse-submodules")


def fetch_base(
    objects: ObjectStore, workspace: Path, url: str, commit: str, env: Mapping[str, str], extra: Mapping[str, str]
) -> str:
    """Fetch `commit` with its content, not its history. Returns why that did not work; empty if it did.

    Args:
        url: where from; an argument that could be taken for an option is refused.
        extra: for git alone, such as what authorises it.
    """
    user = Git.for_user(workspace, objects.path, env)
    if user is None:
        return "there is no git program"
    if url.startswith("-"):
        return "the address of the remote repository is none"
    try:
        confirm(objects.path)
        user.with_env({**_TRANSPORTS, **extra}).out("-c", "core.hooksPath=/dev/null", "fetch", *_OPTIONS, url, commit)
    except (GitError, OSError) as error:
        return str(error)
    if objects.missing([commit]):
        return "it was not sent"
    note_base(objects, commit)
    return ""
