"""Objects on their way between the project's object directories and our store, checked by their ids on arrival.

*Tips* are the ids found in the state of a git directory. What they reach is *carried*: copied into our store at once,
but for what the base reaches and for what was *given*, that is, came with the checkout and comes with the next one.
A damaged object costs what depends on it, not the rest.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from endstate_action.state.snapshot import store_files
from endstate_action.state.snapshot.git_files import give_to
from endstate_action.state.snapshot.git_graph import HERE, Graph, Listed, Unreadable, lines
from endstate_action.state.snapshot.packed import PIECE_BYTES
from endstate_action.system import own_files
from endstate_action.system.git_call import GitError
from endstate_action.system.tree_walk import DIRECTORY


@dataclass(frozen=True, slots=True)
class Exchange:
    """Between our store and a project whose task began at `base` (None: before its first commit).

    Raises:
        GitError, OSError: by every method, where git does not work or nothing can be written.
    """

    graph: Graph
    base: str | None

    def take(self, sources: list[Path], ids: set[str], given: set[str], cut: set[str]) -> set[str]:
        """Carry what `ids` reach in the object directories `sources`; returns those of them that are anywhere.

        Args:
            given: commits that came with the checkout; they and what came before them are not taken.
            cut: commits whose parents the project does not have (it is shallow).
        """
        outside = {"GIT_ALTERNATE_OBJECT_DIRECTORIES": ":".join(map(_quoted, sources))}
        known = given | ({self.base} if self.base else set())
        kinds = self.graph.kinds(ids | known, outside)
        tips = {name: kind for name, kind in kinds.items() if name in ids - given}
        self._take_what_can_be(tips, known & kinds.keys(), cut, outside)
        return ids & kinds.keys()

    def give(self, target: Path, listed: Listed, base: str | None) -> list[str]:
        """Make the object directory `target` hold what is listed and what `base` reaches; returns what went wrong.

        What is there is believed where it is packed; loose objects are read, and replaced where they are damaged.
        What stands in the place of an object directory, or makes it unusable, is set aside under another name.
        """
        said = [] if _is_plain(target) else _set_aside(target)
        try:
            self._complete(target, listed, base)
        except (GitError, OSError):
            said += _set_aside(target)
            self._complete(target, listed, base)
        return said

    def absent(self, target: Path, names: set[str]) -> set[str]:
        """Those of `names` that the object directory `target` does not have."""
        return names - self.graph.kinds(names, _within(target)).keys()

    def border(self, listed: Listed, base: str | None) -> dict[str, set[str]]:
        """The base, and those listed commits that follow something that is not carried, with their parents."""
        return self.graph.parents(self.graph.forgotten([*listed.named, *([base] if base else [])]))

    def _take_what_can_be(
        self, tips: dict[str, str], border: set[str], cut: set[str], outside: Mapping[str, str]
    ) -> None:
        if not tips:
            return
        try:
            self._take(tips, border, cut, outside)
        except Unreadable:
            # Something that they reach is missing or damaged; the others are worth having.
            names = sorted(tips)
            for part in (names[::2], names[1::2]) if len(names) > 1 else ():
                self._take_what_can_be({name: tips[name] for name in part}, border, cut, outside)

    def _take(self, tips: dict[str, str], border: set[str], cut: set[str], outside: Mapping[str, str]) -> None:
        named = {kind: {name for name, k in tips.items() if k == kind} for kind in ("commit", "tag", "blob", "tree")}
        with self.graph.shallow(cut, ours=False) as file:
            new = self.graph.commits(named["commit"] | named["tag"], border, {**outside, "GIT_SHALLOW_FILE": file})
        # What came with the checkout must not be taken because a new tag is put on it.
        targets = self.graph.targets(named["tag"], outside)
        tags = {tag for tag, (target, kind) in targets.items() if target in new or kind in ("blob", "tree")}
        ends = {name for name, parents in new.items() if name in cut or parents - new.keys() - {self.base}}
        with self.graph.shallow(ends) as file:
            asked = new.keys() | named["blob"] | named["tree"] | tags
            listed = self.graph.content(asked, self.base, {**outside, "GIT_SHALLOW_FILE": file})
        lacking = self.graph.store.missing({*listed.named, *named["tag"]})
        if lacking:
            with self._packed(lacking, outside, verify=True) as pack:
                _move_in(pack, self.graph.store.path / "objects" / "pack")
        self.graph.forget_parents(ends)

    def _complete(self, target: Path, listed: Listed, base: str | None) -> None:
        _make(target)
        asked = listed.asked | ({base} if base and not self.graph.store.missing([base]) else set())
        try:
            # One question for all: most often nothing is missing.
            wanted = self.graph.strictly(asked, _within(target)) if asked else set()
        except Unreadable:
            wanted = {*self.graph.content(set(asked), None).named, *listed.named}
            lacking = self.absent(target, wanted)
        else:
            lacking = self.absent(target, listed.named.keys() - wanted)
            wanted |= listed.named.keys()
        lacking |= self._remove_damaged(target, wanted)
        lacking -= self.graph.store.missing(lacking)
        if lacking:
            _make(target / "pack")
            with self._packed(lacking, HERE, verify=False) as pack:
                _move_in(pack, target / "pack")

    def _remove_damaged(self, target: Path, wanted: set[str]) -> set[str]:
        """Loose objects that are not what their names say. Returns those of them that we have."""
        found = {name: file for name, file in _loose(target) if name in wanted}
        damaged = {name for name, file in found.items() if not _is_sound(file, name, self.graph.store.object_format)}
        ours = damaged - self.graph.store.missing(damaged)
        for name in ours:
            found[name].unlink()
        return ours

    @contextmanager
    def _packed(self, names: set[str], env: Mapping[str, str], *, verify: bool) -> Iterator[Path]:
        """A pack of these objects, with its index, in a place of its own."""
        place = self.graph.store.path / "tmp" / secrets.token_hex(8)
        with own_files.directory(place, make=True):
            pass
        try:
            options = ("--no-reuse-delta", "--window=0") if verify else ()
            self.graph.run("pack-objects", "-q", *options, os.fspath(place / "pack"), given=lines(names), env=env)
            pack = next(place.glob("pack-*.pack"))
            if verify:
                # Reads every object and works out its id again: the project's files may say anything.
                pack.with_suffix(".idx").unlink()
                self.graph.run("index-pack", os.fspath(pack))
            yield pack
        finally:
            shutil.rmtree(place, ignore_errors=True)


def _move_in(pack: Path, target: Path) -> None:
    """Durably, and the index last, since git finds a pack by it. `target` is refused if it is a link."""
    place = os.open(target, DIRECTORY)
    try:
        owner = os.fstat(place)

        def finish(file: int) -> None:
            os.fchmod(file, 0o444)
            if os.geteuid() == 0:
                # Whoever works as root in somebody else's repository must not leave what he cannot remove.
                os.fchown(file, owner.st_uid, owner.st_gid)
            os.fsync(file)

        for suffix in (".pack", ".idx"):
            source = pack.with_suffix(suffix)
            with source.open("rb") as file:
                pieces = iter(partial(file.read, PIECE_BYTES), b"")
                store_files.put_in(place, source.name, f"tmp_{source.name}", pieces, finish)
        os.fsync(place)
    finally:
        os.close(place)


def _make(folder: Path) -> None:
    if not _is_plain(folder):
        # What is no directory, or leads to one, is refused here rather than written through.
        folder.mkdir()
        give_to(folder, folder.parent.lstat())


def _is_plain(place: Path) -> bool:
    return place.is_dir() and not place.is_symlink()


def _set_aside(place: Path) -> list[str]:
    if not os.path.lexists(place):
        return []
    aside = next(p for n in range(10_000) if not os.path.lexists(p := place.with_name(f"objects.set-aside-{n}")))
    place.rename(aside)
    return [f"The project's objects could not be used; they were set aside as {aside.name}."]


def _loose(target: Path) -> Iterator[tuple[str, Path]]:
    """Every loose object, by its name."""
    for folder in target.iterdir():
        if len(folder.name) == 2 and _is_plain(folder):
            yield from ((folder.name + file.name, file) for file in folder.iterdir())


def _is_sound(loose: Path, name: str, object_format: str) -> bool:
    try:
        return hashlib.new(object_format, zlib.decompress(loose.read_bytes())).hexdigest() == name
    except (OSError, zlib.error):
        return False


def _within(target: Path) -> dict[str, str]:
    return {"GIT_OBJECT_DIRECTORY": os.fspath(target)}


def _quoted(path: Path) -> str:
    """As git reads one path out of a list that is separated by colons."""
    text = os.fspath(path)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
