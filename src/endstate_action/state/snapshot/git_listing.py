"""The captured state of a git directory, as a tree of our store: one listing, and a blob for each larger file.

Equal states are equal trees: nothing in them depends on when, where or after what they were taken.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from endstate_action.errors import SnapshotDamaged
from endstate_action.state.snapshot.git_files import Small, is_state
from endstate_action.state.snapshot.index import named_in
from endstate_action.state.snapshot.objects import ObjectStore

Kind = Literal["file", "program", "link", "index"]

INLINE_BYTES = 512
"""A file up to this size is in the listing: branches are many, and 41 bytes each."""

_NAME = b"listing"
_FORMAT = 1
_ID = {"sha1": re.compile(rb"\b[0-9a-f]{40}\b"), "sha256": re.compile(rb"\b[0-9a-f]{64}\b")}
_GIVEN = re.compile(r"(^|/)(refs/(remotes|tags)/.|shallow$)")


@dataclass(frozen=True, slots=True)
class Item:
    """One file as it is stored; an index as its difference to the base. Either `data` or `blob` is there."""

    kind: Kind
    data: bytes | None
    blob: str | None
    ids: frozenset[str]
    """Every object id in it."""
    given: frozenset[str] = frozenset()
    """Those that belong to tags and remote branches."""

    @classmethod
    def of(cls, store: ObjectStore, path: str, kind: Kind, data: bytes) -> Item:
        """Of content that may be large, and then is written to the store."""
        blob = store.write("blob", data) if len(data) > INLINE_BYTES else None
        return cls.known(store, path, kind, data, blob)

    @classmethod
    def known(cls, store: ObjectStore, path: str, kind: Kind, data: bytes, blob: str | None) -> Item:
        ids = named_in(data) if kind == "index" else _ids(data, store.object_format)
        given = _given(path, data, store.object_format)
        return cls(kind, None if blob else data, blob, frozenset(ids), frozenset(given))

    def content(self, store: ObjectStore) -> bytes:
        return store.read(self.blob)[1] if self.blob else self.data or b""

    def small(self, store: ObjectStore) -> Small:
        """As a file; not for an index."""
        if self.kind == "index":
            raise ValueError("an index is not stored as it is")
        return Small(self.kind, self.content(store))


@dataclass(frozen=True, slots=True)
class Listing:
    """`files` and `common` by their path below the git directory and below the one that it shares with others."""

    place: Item | None = None
    """What stood where the git directory should be; None for a directory, or nothing if `is_gone`."""
    is_gone: bool = False
    files: Mapping[str, Item] = field(default_factory=dict)
    common: Mapping[str, Item | None] = field(default_factory=dict)
    """Of a linked work tree, its branch; None where that has no file."""
    dot: Item | None = None
    """The file `.git` at the root of the work tree, where that is not the git directory itself."""
    left: tuple[str, ...] = ()
    """Files that are not captured, being too large or closed to us."""

    def items(self) -> Iterator[tuple[str, Item]]:
        yield from self.files.items()
        yield from ((path, item) for path, item in self.common.items() if item)

    @property
    def ids(self) -> set[str]:
        return {name for _, item in self.items() for name in item.ids}

    @property
    def given(self) -> set[str]:
        return {name for _, item in self.items() for name in item.given}

    def write(self, store: ObjectStore) -> str:
        """The id of the tree."""
        shown = {
            "format": _FORMAT,
            "place": _shown(self.place),
            "gone": self.is_gone,
            "files": {path: _shown(item) for path, item in self.files.items()},
            "common": {path: _shown(item) for path, item in self.common.items()},
            "dot": _shown(self.dot),
            "left": sorted(self.left),
        }
        listing = store.write("blob", json.dumps(shown, sort_keys=True).encode())
        blobs = {item.blob for item in (*(i for _, i in self.items()), self.place, self.dot) if item and item.blob}
        entries = sorted([(name.encode(), name) for name in blobs] + [(_NAME, listing)])
        return store.write("tree", b"".join(b"100644 %s\0%s" % (n, bytes.fromhex(oid)) for n, oid in entries))


def load(store: ObjectStore, tree: str) -> Listing:
    """What `Listing.write` wrote.

    Raises:
        SnapshotDamaged: something of it is missing, or it is none.
    """
    entries = {entry.name: entry.id for entry in store.tree_entries(tree)}
    try:
        shown = json.loads(store.read(entries[_NAME])[1])
        if shown["format"] != _FORMAT:
            raise ValueError("it has another format")
        if not all(map(is_state, shown["files"])):
            raise ValueError("it names a file that is never captured")
        return Listing(
            place=_item(store, "", shown["place"]),
            is_gone=bool(shown["gone"]),
            files={path: cast("Item", _item(store, path, item)) for path, item in shown["files"].items()},
            common={path: _item(store, path, item) for path, item in shown["common"].items()},
            dot=_item(store, "", shown["dot"]),
            left=tuple(map(str, shown["left"])),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SnapshotDamaged(
            f"The repository's state {tree} cannot be read: {error!r}. Nothing was changed.",
            hint="Another checkpoint may be whole; otherwise begin anew.",
        ) from error


def _shown(item: Item | None) -> dict[str, Any] | None:
    if item is None:
        return None
    if item.blob:
        return {"kind": item.kind, "blob": item.blob}
    return {"kind": item.kind, "text": (item.data or b"").decode("utf-8", "surrogateescape")}


def _item(store: ObjectStore, path: str, shown: dict[str, Any] | None) -> Item | None:
    if shown is None:
        return None
    kind = cast("Kind", shown["kind"])
    if kind not in ("file", "program", "link", "index"):
        raise ValueError(f"{kind!r} is no kind of file")
    blob = shown.get("blob")
    data = store.read(blob)[1] if blob else shown["text"].encode("utf-8", "surrogateescape")
    return Item.known(store, path, kind, data, blob)


def _ids(data: bytes, object_format: str) -> set[str]:
    return {found.decode() for found in _ID[object_format].findall(data)}


def _given(path: str, data: bytes, object_format: str) -> set[str]:
    if _GIVEN.search(path) and "logs/" not in path:
        return _ids(data, object_format)
    if path.rpartition("/")[2] != "packed-refs":
        return set()
    # A line that begins with ^ says what the tag in the line before is put on.
    lines = re.findall(rb"^[0-9a-f]+ refs/(?:remotes|tags)/.*(?:\n\^.*)?", data, re.MULTILINE)
    return _ids(b"\n".join(lines), object_format)
