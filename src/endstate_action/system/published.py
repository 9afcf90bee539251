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


def publish(seen: Aside, base: str | None, at_start: Mapping[str, str]) -> Published:
    """Stage the result in `seen`, which must begin as `base`; its objects can be read there until it is closed.

    Args:
        base: the commit that was checked out when the task began; None for a branch without commits.
        at_start: `Repository.changes` against `base` at that moment.

    Raises:
        GitError: git failed; nothing was changed.
    """
    base_tree = seen.write_tree()
    now = seen.repository.changes(base)
    paths = [parse(path) for path, digest in now.items() if at_start.get(path) != digest]
    left_out = seen.stage(paths)
    tree = seen.write_tree()
    return Published(
        git_tree=tree,
        tree_hash=scan_tree(seen, tree).tree_hash,
        base_tree=base_tree,
        changed=tuple(seen.changed(base_tree, tree)),
        left_out={display(path): why for path, why in left_out.items()},
    )
