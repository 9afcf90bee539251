"""The published tree: what a commit of this result has, or would have. It is what a reviewer can verify.

Only paths that changed since the start count, over the tree of the base commit; what somebody had
changed before is not part of the result. It is hashed from its blobs, so it is the same for everybody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from endstate_action.system.git_aside import Aside, Changed
from endstate_action.system.names import display, parse
from endstate_action.system.tree_commit import scan_tree


@dataclass(frozen=True, slots=True)
class Published:
    git_tree: str
    tree_hash: str
    base_tree: str
    changed: tuple[Changed, ...]
    left_out: Mapping[str, str]
    """Changed paths that no commit can hold faithfully, as by `names.display`, each with the reason."""


def publish(
    seen: Aside, base: str | None, at_start: Mapping[str, str], nested_at_start: Mapping[str, str] | None = None
) -> Published:
    """Stage the result in `seen`, which must begin as `base`; its objects can be read there until it is closed.

    Args:
        base: the commit that was checked out when the task began; None for a branch without commits.
        at_start: `Repository.changes` against `base` at that moment.
        nested_at_start: `Repository.nested` at that moment; None where that is not known.

    Raises:
        GitError: git failed; nothing was changed.
    """
    base_tree = seen.write_tree()
    now = seen.repository.changes(base)
    paths = [parse(path) for path, digest in now.items() if at_start.get(path) != digest]
    left_out = {display(path): why for path, why in seen.stage(paths).items()}
    if nested_at_start is not None:
        left_out = {**_changed_inside(nested_at_start, seen.repository.nested()), **left_out}
    tree = seen.write_tree()
    return Published(
        git_tree=tree,
        tree_hash=scan_tree(seen, tree).tree_hash,
        base_tree=base_tree,
        changed=tuple(seen.changed(base_tree, tree)),
        left_out=dict(sorted(left_out.items())),
    )


def _changed_inside(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """Repositories of their own in which something changed, or that are gone."""
    changed = {
        path: "was changed" if path in now else "is gone" for path, told in before.items() if now.get(path) != told
    }
    return {path: f"{path} is a repository of its own, and {what}." for path, what in changed.items()}
