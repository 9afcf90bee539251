"""Where the project's repository stands: captured without executing anything of it, and put back exactly.

HEAD, branches, tags, stash and their logs, the index, a merge or rebase under way, what is ignored and what is sparse;
and the commits and staged content that the base does not have, copied into our store at once. Configuration and hooks
are never looked into, nor changed: a checkout leaves its token there.

All that git is asked here is about objects, with our store for its git directory. The project's own git directory is
read as files. So nothing that is written there, by whoever, is ever acted upon.

Not put back: configuration and hooks (a submodule's included), history that came with the checkout, what `git lfs`
keeps. Of a repository that keeps its refs in git's `reftable` format the files come back, but commits of its own are
not carried, since they are not found there.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from endstate_action.errors import DiskFull, StateError
from endstate_action.state.snapshot import git_files, store_files
from endstate_action.state.snapshot.git_exchange import Exchange
from endstate_action.state.snapshot.git_graph import Graph, lines
from endstate_action.state.snapshot.git_listing import Item, Listing, load
from endstate_action.state.snapshot.git_place import Place
from endstate_action.state.snapshot.git_restore import Restoring
from endstate_action.state.snapshot.index import Entries, IndexDamaged, difference, tree_entries
from endstate_action.state.snapshot.objects import ObjectStore
from endstate_action.system.git_call import GitError
from endstate_action.system.names import short
from endstate_action.system.tree_cache import NEVER, Signature, StatCache, signature

_NOWHERE: Signature = (1, 0, 0, 0, 0, 0)
"""Stands for the signature of a file that is not there."""


@dataclass(slots=True)
class _Last:
    """What the last capture saw and made of it."""

    signatures: dict[str, Signature] = field(default_factory=dict)
    items: dict[str, Item | None] = field(default_factory=dict)
    result: tuple[str, frozenset[str]] = ("", frozenset())


class GitState:
    """The state of the repository at `git_dir`, for `objects`, whose `import_base` has been called for `base`.

    Args:
        common_dir: where branches and objects are; another than `git_dir` in a linked work tree. Of such, only its
            own branch is captured, the others belong to others.
        base: the commit that the task began on; None on a branch without commits.
        cache: a directory of ours on the file system of `git_dir`.
        dot_git: the file `.git` of a linked work tree or submodule, which leads to `git_dir`.

    Raises:
        DiskFull, StateError: by every method, when something cannot be read or written.
    """

    def __init__(
        self,
        objects: ObjectStore,
        git_dir: Path,
        common_dir: Path,
        base: str | None,
        cache: Path,
        dot_git: Path | None = None,
    ) -> None:
        self._store = objects
        self._place = Place(git_dir.absolute(), Path(os.path.normpath(common_dir.absolute())), dot_git)
        self._base = base
        self._clock = StatCache(cache)
        self._exchange = Exchange(Graph(objects), base)
        self._last = _Last()
        self._settled: set[str] = set()
        self._trees: dict[str, Entries] = {}

    @property
    def base(self) -> str | None:
        return self._base

    def capture(self) -> tuple[str, frozenset[str]]:
        """The id of a tree in the store that says all, and the tips: what a pack must bring along with it.

        A damaged repository is captured as it is. Costs next to nothing where no file has changed.
        """
        with _explaining("The state of the git repository was not captured"):
            return self._capture()

    def restore(self, tree: str) -> tuple[str, ...]:
        """Make the repository what it was when `tree` was captured; may be repeated after a kill.

        Objects come first, so that no name ever stands for something missing. Lock files that no living process holds
        are removed.

        Returns:
            What could not be brought back, one sentence each; empty if everything was.

        Raises:
            NotRestored: a living git holds a lock. Nothing was changed.
            SnapshotDamaged: something of `tree` is missing. Nothing was changed.
        """
        listing = load(self._store, tree)
        if listing.place or listing.is_gone:
            return ("The git directory was none at that time; it was left as it is.",)
        with _explaining("The state of the git repository was not restored in full"):
            self._last = _Last()
            said = Restoring(self._place, self._exchange, listing, self._entries).run()
            self._note_given(self._given(listing) | self._store.missing(listing.given))
            self._settled.clear()
        return tuple(said)

    def tips(self, tree: str) -> frozenset[str]:
        """Those of a tree that was captured earlier, or elsewhere."""
        return self._carried(load(self._store, tree).ids)

    def _capture(self) -> tuple[str, frozenset[str]]:
        horizon = self._clock.horizon()
        if self._place.is_there:
            git_files.admit(self._place.top, stat.S_IRUSR | stat.S_IXUSR)
        found = git_files.scan(self._place.top) if self._place.is_there else None
        signatures = self._signatures(found)
        last, self._last = self._last, _Last()
        if signatures == last.signatures:
            self._last = last
            return last.result
        items = {
            label: last.items[label] if last.signatures.get(label) == seen else self._item(label)
            for label, seen in signatures.items()
        }
        listing = self._listing(found, items)
        self._take(found, listing)
        result = listing.write(self._store), self._carried(listing.ids)
        trusted = {
            label: seen if horizon.trusts(seen) or seen == _NOWHERE else NEVER for label, seen in signatures.items()
        }
        self._last = _Last(trusted, items, result)
        return result

    def _signatures(self, found: git_files.Found | None) -> dict[str, Signature]:
        """By label: where the file lies, and its path there."""
        place = self._place
        seen = {f"own:{path}": s for path, s in found.files.items()} if found else {"place:": _look(place.top)}
        if place.dot:
            seen["dot:"] = _look(place.dot)
        if found:
            seen |= {f"common:{path}": _look(place.common / path) for path in place.branch_files()}
        return seen

    def _item(self, label: str) -> Item | None:
        where, _, path = label.partition(":")
        match where:
            case "own":
                return self._read(self._place.top, path)
            case "common":
                return self._read(self._place.common, path)
            case _:
                place = self._place.dot if where == "dot" and self._place.dot else self._place.top
                return self._read(place.parent, place.name)

    def _read(self, top: Path, path: str) -> Item | None:
        found = git_files.read(top, path)
        if found is None:
            return None
        if found.kind == "file" and path.rpartition("/")[2] == "index":
            with suppress(IndexDamaged):
                return self._index_item(path, found.data)
        return Item.of(self._store, path, found.kind, found.data)

    def _index_item(self, path: str, data: bytes) -> Item:
        index = self._place.index(path, data, self._store.object_format)
        tree = self._base_tree()
        return Item.of(self._store, path, "index", difference(index, self._entries(tree) if tree else {}, tree))

    def _base_tree(self) -> str | None:
        if self._base is None or self._store.missing([self._base]):
            return None
        return self._store.read(self._base)[1][5:].partition(b"\n")[0].decode()

    def _entries(self, tree: str) -> Entries:
        if tree not in self._trees:
            done = self._store.git("ls-tree", "-r", "-z", "--full-tree", tree)
            if done.returncode != 0:
                raise GitError(done.stderr.decode("utf-8", "replace").strip())
            self._trees[tree] = tree_entries(done.stdout)
        return self._trees[tree]

    def _listing(self, found: git_files.Found | None, items: dict[str, Item | None]) -> Listing:
        def of(where: str) -> dict[str, Item | None]:
            return {label.partition(":")[2]: item for label, item in items.items() if label.startswith(f"{where}:")}

        place = of("place").get("")
        return Listing(
            place=place,
            is_gone=found is None and place is None,
            files={path: item for path, item in of("own").items() if item},
            common=of("common"),
            dot=of("dot").get(""),
            left=(*(path for path, item in of("own").items() if item is None), *(found.closed if found else ())),
        )

    def _take(self, found: git_files.Found | None, listing: Listing) -> None:
        given = self._given(listing)
        new = listing.ids - given - self._settled
        if found is None or not new:
            return
        sources = [self._place.objects(store) for store in ("", *found.stores)]
        shallow = [item for path, item in listing.items() if path.rpartition("/")[2] == "shallow"]
        cut = {name for item in (*shallow, self._read(self._place.common, "shallow")) if item for name in item.ids}
        self._settled |= self._exchange.take(sources, new, given, cut)

    def _given(self, listing: Listing) -> set[str]:
        """What came with the checkout: tags and remote branches as they were at the first look."""
        noted = store_files.text_of(self._given_file())
        if noted:
            return set(noted.split())
        given = listing.given - {self._base}
        self._note_given(given)
        return given

    def _note_given(self, given: set[str]) -> None:
        # The empty line tells a note of nothing from no note.
        store_files.put(self._given_file(), b"\n" + lines(given))

    def _given_file(self) -> Path:
        return self._store.path / "given" / (self._base or "none")

    def _carried(self, ids: set[str]) -> frozenset[str]:
        return frozenset(ids - self._store.missing(ids))


def _look(place: Path) -> Signature:
    try:
        return signature(place.lstat())
    except (FileNotFoundError, NotADirectoryError):
        return _NOWHERE


@contextmanager
def _explaining(what: str) -> Iterator[None]:
    try:
        yield
    except (OSError, GitError, ValueError) as error:
        is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        if is_full or any(words in str(error) for words in ("No space left", "quota exceeded")):
            raise DiskFull(
                f"{what}: the disk is full. What was recorded before is whole.",
                hint="Free some space on the workspace's disk, then `endstate run --resume`.",
            ) from error
        said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise StateError(
            f"{what}: {short(said)}. What was recorded before is whole.",
            hint="Check that .git can be read and written and that git can be started, then `endstate run --resume`.",
        ) from error
