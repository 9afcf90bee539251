"""Putting a captured state back: each step makes more of it true, so doing it again concludes what a kill cut off.

Objects come first, so that no name ever stands for something missing; then the small files.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from endstate_action.errors import NotRestored
from endstate_action.state.snapshot import git_files
from endstate_action.state.snapshot.base import ends_at_first, ends_in
from endstate_action.state.snapshot.git_exchange import Exchange
from endstate_action.state.snapshot.git_files import Small
from endstate_action.state.snapshot.git_graph import lines
from endstate_action.state.snapshot.git_listing import Item, Listing
from endstate_action.state.snapshot.git_place import Place, is_branch_file
from endstate_action.state.snapshot.index import Entries, Index, IndexDamaged, from_difference, serialize, with_stats
from endstate_action.system.git_trust import is_held
from endstate_action.system.names import display, short

_MODULE = re.compile(r"(modules/(?!.*(?:/refs/|/logs/)).+)/HEAD")
_REF_FILE = re.compile(r"(^|/)refs/")
# With a tag goes the line after it, which says what it is put on.
_PACKED_REF = re.compile(rb"[^\n]*\n(?:\^[^\n]*\n)?")


@dataclass(frozen=True, slots=True)
class Restoring:
    """Of `listing`, at `place`, with objects from `exchange`; `entries` gives those of a tree of the base."""

    place: Place
    exchange: Exchange
    listing: Listing
    entries: Callable[[str], Entries]

    def run(self) -> list[str]:
        """What could not be brought back, one sentence each.

        Raises:
            NotRestored: a living git holds a lock. Nothing was changed.
            SnapshotDamaged: something is missing. Nothing was changed.
            OSError, GitError: repeat it.
        """
        store, files = self.exchange.graph.store, self.listing.files
        indexes = {p: self._index(item) for p, item in files.items() if item.kind == "index"}
        contents = {p: item.small(store) for p, item in files.items() if item.kind != "index"}
        common = {p: item for p, item in self.listing.common.items() if is_branch_file(p)}
        branch = {p: item.small(store) if item else None for p, item in common.items()}
        for place in {self.place.top, self.place.common} if self.place.is_there else ():
            git_files.unlock(place)
        self._remove_locks()
        if not self.place.is_there:
            self.place.top.unlink(missing_ok=True)
            git_files.way_to(self.place.top.parent, f"{self.place.top.name}/x")
        said, absent = self._bring_objects()
        contents, dangling = _without_dangling(contents, absent)
        rewritten = {path: self._index_file(path, index) for path, index in indexes.items()}
        kept = {path for path, file in rewritten.items() if file is None}
        written = {path: file for path, file in rewritten.items() if file is not None}
        git_files.converge(self.place.top, contents | written, {*self.listing.left, *kept, *dangling.values()})
        said += self._restore_branch(branch)
        self._restore_dot()
        return said + [f"{_shown(ref)} is of a commit that is not here; it was not restored." for ref in dangling]

    def _index(self, item: Item) -> Index:
        return from_difference(item.content(self.exchange.graph.store), self.entries)

    def _index_file(self, path: str, target: Index) -> Small | None:
        """None where the file says the same already: then git still knows what it has compared."""
        object_format = self.exchange.graph.store.object_format
        found = git_files.read(self.place.top, path)
        with suppress(IndexDamaged):
            current = self.place.index(path, found.data, object_format) if found and found.kind != "link" else None
            if current is not None:
                if current == target and not current.split and self._has_trees(path, current):
                    return None
                target = with_stats(target, current, int((self.place.top / path).stat().st_mtime))
        return Small("file", serialize(target, object_format))

    def _has_trees(self, path: str, index: Index) -> bool:
        """Whether the trees are there of which the index says so; git would commit them unseen."""
        store = next((s for s in self._stores() if s and path.startswith(f"{s}/")), "")
        return not self.exchange.absent(self.place.objects(store), set(index.trees))

    def _remove_locks(self) -> None:
        found = git_files.locks(self.place.top) if self.place.is_there else []
        found += [lock for path in self.place.branch_files() if (lock := self.place.common / f"{path}.lock").exists()]
        for lock in found:
            if is_held(lock, self.place.work_places):
                raise NotRestored(
                    f"{lock} is held by a living process, so the git repository was not restored. Nothing was changed.",
                    hint="End the git that is at work there, then `endstate run --resume`.",
                )
        for lock in found:
            lock.unlink(missing_ok=True)

    def _stores(self) -> dict[str, set[str]]:
        """By git directory below this one (`""` is itself), the ids that its objects must account for."""
        modules = (found[1] for path in self.listing.files if (found := _MODULE.fullmatch(path)))
        stores: dict[str, set[str]] = {store: set() for store in ("", *modules)}
        for path, item in self.listing.items():
            stores[max((s for s in stores if not s or path.startswith(f"{s}/")), key=len)] |= item.ids
        return stores

    def _bring_objects(self) -> tuple[list[str], set[str]]:
        """What went wrong, and the ids that are named and are not there."""
        said: list[str] = []
        absent: set[str] = set()
        for store, ids in self._stores().items():
            git_files.way_to(self.place.top, f"{store}/x" if store else "x")
            objects, base = self.place.objects(store), None if store else self.exchange.base
            graph = self.exchange.graph
            listed = graph.reach(ids - graph.store.missing(ids), base)
            said += self.exchange.give(objects, listed, base)
            border = self.exchange.border(listed, base)
            gone = self.exchange.absent(objects, ids.union(*border.values()))
            absent |= gone & ids
            cut = {name for name, parents in border.items() if parents & gone}
            if store:
                known = self.listing.files.get(f"{store}/shallow")
                cut -= set(known.ids if known else ())
            else:
                cut -= self._end_at(cut)
            said += [f"What came before the commit {name} is not here any more; fetch it." for name in sorted(cut)]
        return said, absent

    def _end_at(self, cut: set[str]) -> set[str]:
        """Commits where history ends as the repository knows; of a checkout without its history, those as well.

        It may have another commit than the one on which the session began, or have lost its note of where it ends.
        """
        here = ends_in(self.place.common)
        known = here | ends_at_first(self.exchange.graph.store)
        if not known or cut <= here:
            return known
        git_files.put(self.place.common, "shallow", Small("file", lines(known | cut)))
        return known | cut

    def _restore_branch(self, branch: dict[str, Small | None]) -> list[str]:
        common = self.place.common
        for path, wanted in branch.items():
            steps = [common.joinpath(*path.split("/")[:n]) for n in range(1, path.count("/") + 1)]
            if any(step.is_symlink() or (step.exists() and not step.is_dir()) for step in steps):
                return [f"{_shown(path)} cannot be reached as a file; it was left as it is."]
            if wanted is None:
                (common / path).unlink(missing_ok=True)
            elif git_files.read(common, path) != wanted:
                git_files.put(common, path, wanted)
        return []

    def _restore_dot(self) -> None:
        dot, item = self.place.dot, self.listing.dot
        if dot is None or item is None:
            return
        wanted = item.small(self.exchange.graph.store)
        if git_files.read(dot.parent, dot.name) == wanted:
            return
        if dot.is_dir() and not dot.is_symlink():
            # A repository that was made here meanwhile.
            dot.rename(self.place.top / f"objects.set-aside-{secrets.token_hex(4)}")
        git_files.put(dot.parent, dot.name, wanted)


def _without_dangling(files: dict[str, Small], absent: set[str]) -> tuple[dict[str, Small], dict[str, str]]:
    """Without refs to objects that are nowhere, which would break git; and those refs, each with the file to leave.

    That is upstream's doing: a branch that came with the first checkout no longer comes with this one.
    """
    if not absent:
        return files, {}
    loose = {
        path: path
        for path, file in files.items()
        if _REF_FILE.search(path) and "logs/" not in path and os.fsdecode(file.data.strip()) in absent
    }
    kept = {path: file for path, file in files.items() if path not in loose}
    packed = kept.get("packed-refs")
    if packed is None:
        return kept, loose
    lines = _PACKED_REF.findall(packed.data)
    gone = [line for line in lines if os.fsdecode(line.partition(b" ")[0]) in absent]
    kept["packed-refs"] = Small(packed.kind, b"".join(line for line in lines if line not in gone))
    return kept, loose | {os.fsdecode(line.split()[1]): "" for line in gone}


def _shown(path: str) -> str:
    return short(display(os.fsencode(path)))
