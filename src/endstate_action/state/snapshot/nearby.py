"""What a snapshot reaches beyond its base, where that is little: followed here, without a single process of git.

Between two checkpoints a handful of files change. Directory by directory, a snapshot is laid beside the base, and only
what differs is looked into. A file that was moved is listed although the base has it elsewhere, which costs its bytes
and nothing else. Whatever is unusual is left to git, which decides (`git_graph`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from endstate_action.errors import SnapshotDamaged
from endstate_action.state.snapshot.compare import TREE_NAME, join
from endstate_action.state.snapshot.git_graph import Graph, Listed
from endstate_action.state.snapshot.objects import GITLINK, TREE, Entry, ObjectStore

MOST = 1_000
"""Where there is more, git is the faster one, and leaves the interpreter to others meanwhile."""


class _Unusual(Exception):
    """Git is to decide."""


@dataclass(frozen=True, slots=True)
class Nearby:
    """For the packs of one session, one after another. Used by one thread at a time."""

    objects: ObjectStore
    _kinds: dict[str, str] = field(default_factory=dict)
    """Of the tips that were seen, which stay what they are."""

    def reach(self, root: str, tips: set[str], base: str | None) -> Listed | None:
        """As `Graph.whole` lists it, for a commit of the snapshot `root`, without that; None where git is to be asked.

        Trees and commits have been read. Whether the files' contents are there shows when they are packed.
        """
        try:
            return _Walk(self.objects, base).of(root, self._by_kind(tips))
        except (_Unusual, SnapshotDamaged):
            return None

    def _by_kind(self, tips: set[str]) -> dict[str, str]:
        self._kinds.update(Graph(self.objects).kinds(tips - self._kinds.keys()))
        return {tip: self._kinds.get(tip, "") for tip in tips}


class _Walk:
    def __init__(self, objects: ObjectStore, base: str | None) -> None:
        self._objects = objects
        self._base = base
        self._base_tree = self._commit(base)[0] if base else None
        self._named: dict[str, bytes] = {}
        self._trees: list[tuple[str, bytes, str | None]] = []
        """To be looked into: the id, the path, and what the base has in that place."""

    def of(self, root: str, tips: dict[str, str]) -> Listed:
        self._snapshot(root)
        self._commits({tip for tip, kind in tips.items() if kind == "commit"})
        self._follow()
        for tip, kind in tips.items():
            if kind not in ("commit", "blob"):
                raise _Unusual
            # Last, so that what has a path keeps it.
            if tip != self._base:
                self._name(tip, b"")
        return Listed(self._named, frozenset({self._base} if self._base else ()))

    def _snapshot(self, root: str) -> None:
        self._name(root, b"")
        for entry in self._objects.tree_entries(root):
            self._enter(entry, entry.name, self._base_tree if entry.name == TREE_NAME else None)

    def _commits(self, pending: set[str]) -> None:
        cut = Graph(self._objects).forgotten
        while pending:
            commit = pending.pop()
            if commit == self._base or commit in self._named:
                continue
            tree, parents = self._commit(commit)
            self._name(commit, b"")
            self._put_off(tree, b"", self._base_tree)
            missing = self._objects.missing(parents)
            if missing and not cut([commit]):
                raise _Unusual
            pending |= parents - missing

    def _commit(self, name: str) -> tuple[str, set[str]]:
        kind, data = self._objects.read(name)
        head = data.partition(b"\n\n")[0].split(b"\n")
        if kind != "commit" or not head[0].startswith(b"tree "):
            raise _Unusual
        return head[0][5:].decode(), {line[7:].decode() for line in head if line.startswith(b"parent ")}

    def _follow(self) -> None:
        while self._trees:
            tree, path, beside = self._trees.pop()
            there = self._objects.tree_entries(beside) if beside else []
            known, trees = set(there), {entry.name: entry.id for entry in there if entry.mode == TREE}
            for entry in self._objects.tree_entries(tree):
                if entry not in known:
                    self._enter(entry, join(path, entry.name), trees.get(entry.name))

    def _enter(self, entry: Entry, path: bytes, beside: str | None) -> None:
        if entry.mode == TREE:
            self._put_off(entry.id, path, beside)
        elif entry.mode != GITLINK:
            self._name(entry.id, path)

    def _put_off(self, tree: str, path: bytes, beside: str | None) -> None:
        if tree != beside and tree not in self._named:
            self._name(tree, path)
            self._trees.append((tree, path, beside))

    def _name(self, name: str, path: bytes) -> None:
        self._named.setdefault(name, path)
        if len(self._named) > MOST:
            raise _Unusual
