"""A snapshot as it reads back, and how two of them differ, name by name.

What was restored from elsewhere is not trusted: a name that could lead out of the workspace, or into what a
snapshot never holds, is damage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from endstate_action.errors import SnapshotDamaged
from endstate_action.state.snapshot.left_out import is_within
from endstate_action.state.snapshot.listing import git_tree
from endstate_action.state.snapshot.meta import Meta, decode, is_plain
from endstate_action.state.snapshot.objects import EXECUTABLE, FILE, TREE, Entry, ObjectStore
from endstate_action.system.names import display
from endstate_action.system.tree_format import Change
from endstate_action.system.tree_walk import Paths

TREE_NAME, META_NAME, GIT_NAME = b"tree", b"meta.json", b"git"


@dataclass(frozen=True, slots=True)
class Thing:
    """Something at a path. `id` is empty for fifos, empty directories and what was left alone."""

    kind: Literal["file", "link", "directory", "fifo", "left"]
    mode: int = 0
    id: str = ""


@dataclass(frozen=True, slots=True)
class Difference:
    path: bytes
    old: Thing | None
    new: Thing | None


_EMPTY: Mapping[bytes, Thing] = {}


@dataclass(frozen=True)
class Content:
    """What a root id stands for. `tree` is empty where the workspace holds no file; `git` without a repository."""

    root: str
    tree: str
    meta: Meta
    git: str

    @cached_property
    def beside(self) -> dict[bytes, dict[bytes, Thing]]:
        """By directory, what its tree lacks."""
        meta = self.meta
        found: dict[bytes, dict[bytes, Thing]] = {}
        things = [(path, Thing("directory", self.mode(path, "directory"))) for path in meta.empty]
        things += [(path, Thing("fifo", mode)) for path, mode in meta.fifos.items()]
        things += [(path, Thing("left")) for path in meta.left_alone]
        for path, thing in things:
            above, _, name = path.rpartition(b"/")
            found.setdefault(above, {})[name] = thing
        return found

    @cached_property
    def unusual(self) -> frozenset[bytes]:
        """The directories below which something is that the tree does not tell."""
        paths = {*self.meta.modes, *self.meta.empty, *self.meta.fifos, *self.meta.left_alone}
        above: set[bytes] = set()
        for path in paths:
            while path and (path := path.rpartition(b"/")[0]) not in above:
                above.add(path)
        return frozenset(above)

    def mode(self, path: bytes, kind: Literal["file", "executable", "directory"]) -> int:
        usual = self.meta.usual[("file", "executable", "directory").index(kind)]
        return self.meta.modes.get(path, usual)


def load(objects: ObjectStore, root: str) -> Content:
    """Raises: SnapshotDamaged: it is missing, of another version, or no snapshot."""
    parts = {entry.name: entry for entry in objects.tree_entries(_checked(objects, root))}
    try:
        meta = decode(objects.read(parts[META_NAME].id)[1])
        if not parts.keys() <= {TREE_NAME, META_NAME, GIT_NAME}:
            raise ValueError("it holds what is not known")
    except (KeyError, ValueError) as error:
        raise damaged(root, f"is none that this version can read ({error})") from error
    return Content(root, _id(parts.get(TREE_NAME)), meta, _id(parts.get(GIT_NAME)))


def save(objects: ObjectStore, tree: str, meta: Meta, git: str) -> str:
    """The root id of a snapshot with these parts."""
    parts = [(META_NAME, FILE, objects.write("blob", meta.encode()))]
    parts += [(name, TREE, part) for name, part in ((TREE_NAME, tree), (GIT_NAME, git)) if part]
    return objects.write("tree", git_tree((name, mode, bytes.fromhex(part)) for name, mode, part in parts))


def _things(content: Content, directory: bytes, entries: Iterable[Entry]) -> Mapping[bytes, Thing]:
    """What is in the directory, whose tree has these entries, by name."""
    found = {}
    for entry in entries:
        path = join(directory, entry.name)
        if b"/" in entry.name or not is_plain(entry.name) or entry.name in found:
            raise damaged(content.root, f"holds the name {display(entry.name)[:200]!r}")
        match entry.mode:
            case 0o40000:
                found[entry.name] = Thing("directory", content.mode(path, "directory"), entry.id)
            case 0o120000:
                found[entry.name] = Thing("link", 0, entry.id)
            case 0o100644 | 0o100755:
                executable = entry.mode == EXECUTABLE
                mode = content.mode(path, "executable" if executable else "file")
                found[entry.name] = Thing("file", mode, entry.id)
            case mode:
                raise damaged(content.root, f"holds an entry of mode {mode:o}, {display(path)[:200]!r}")
    beside = content.beside.get(directory, _EMPTY)
    return {**found, **beside} if beside else found


def compare(objects: ObjectStore, old: Content | None, new: Content) -> Iterator[Difference]:
    """From `old` (None: from nothing) to `new`, a directory before what is in it.

    What is left alone in `new` is no difference, whatever it was.
    """
    prune = old is not None and old.meta.usual == new.meta.usual
    marked = new.unusual | (old.unusual if old else frozenset())
    pending: list[tuple[bytes, str | None, str | None]] = [(b"", old.tree if old else None, new.tree)]
    while pending:
        directory, was, now = pending.pop()
        if prune and was == now and directory not in marked:
            continue
        left_entries = objects.tree_entries(was) if was else []
        right_entries = objects.tree_entries(now) if now else []
        if prune and directory not in marked:
            left_entries, right_entries = _without_common(left_entries, right_entries)
        before = _things(old, directory, left_entries) if old and was is not None else _EMPTY
        after = _things(new, directory, right_entries) if now is not None else _EMPTY
        for name in sorted(before.keys() | after.keys()):
            path, left, right = join(directory, name), before.get(name), after.get(name)
            if right and right.kind == "left":
                continue
            if _differs(left, right):
                yield Difference(path, left, right)
            if _tree(left) is not None or _tree(right) is not None:
                pending.append((path, _tree(left), _tree(right)))


def _without_common(left: list[Entry], right: list[Entry]) -> tuple[list[Entry], list[Entry]]:
    # Of most directories all but a few entries are the same; what is in both needs no look.
    common = set(left).intersection(right)
    return [e for e in left if e not in common], [e for e in right if e not in common]


def _differs(left: Thing | None, right: Thing | None) -> bool:
    """Whether the things themselves do, apart from what is in them."""
    if left and right and left.kind == right.kind == "directory":
        return left.mode != right.mode
    return left != right


def changes(objects: ObjectStore, old: Content, new: Content) -> list[Change]:
    """In the order of the paths' bytes; a directory is named only where it is empty or its mode changed."""
    found = []
    for difference in compare(objects, old, new):
        was, now = difference.old, difference.new
        if (was and was.kind == "directory" and was.id and not now) or (
            now and now.kind == "directory" and now.id and not was
        ):
            continue
        kind: Literal["added", "removed", "changed"] = "changed" if was and now else "added" if now else "removed"
        found.append(Change(difference.path, kind))
    return sorted(found, key=lambda change: change.path)


def check_places(content: Content, excluded: Paths, paths: Iterable[bytes]) -> None:
    """Raises: SnapshotDamaged: one of the paths lies where a snapshot never reaches."""
    for path in paths:
        if is_within(path, excluded):
            raise damaged(content.root, f"holds {display(path)[:200]!r}, which is not for a snapshot")


def all_objects(objects: ObjectStore, content: Content) -> Iterator[str]:
    """The ids of everything that the snapshot needs; a tree that is missing is named, not entered."""
    root = {entry.name: entry for entry in objects.tree_entries(content.root)}
    yield root[META_NAME].id
    pending = [tree for tree in (content.tree, content.git) if tree]
    while pending:
        tree = pending.pop()
        yield tree
        if not objects.missing([tree]):
            for entry in objects.tree_entries(tree):
                if entry.mode == TREE:
                    pending.append(entry.id)
                else:
                    yield entry.id


def join(directory: bytes, name: bytes) -> bytes:
    return directory + b"/" + name if directory else name


def damaged(root: str, how: str) -> SnapshotDamaged:
    return SnapshotDamaged(
        f"The snapshot {root[:12]} {how}. The workspace was not changed because of it.",
        hint="Another checkpoint may be whole; otherwise begin anew.",
    )


def _tree(thing: Thing | None) -> str | None:
    return thing.id if thing and thing.kind == "directory" else None


def _id(entry: object) -> str:
    return str(getattr(entry, "id", ""))


def _checked(objects: ObjectStore, root: str) -> str:
    width = 64 if objects.object_format == "sha256" else 40
    if len(root) != width or not set(root) <= set("0123456789abcdef"):
        raise damaged(root, "is named by no id")
    return root
