"""What reaches what among git objects: asked of a git whose own directory is our store.

Whatever the project's configuration says, there is nothing in our store for git to execute. Notes that only make
git faster (commit graphs and the like) are not believed, since they decide what is reachable.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from endstate_action.state.snapshot import store_files
from endstate_action.state.snapshot.objects import ObjectStore
from endstate_action.system import own_files
from endstate_action.system.git_call import GitError

HERE: Mapping[str, str] = {}
"""Environment for asking about our store alone."""

_QUIETLY = ("-c", "core.commitGraph=false", "-c", "core.multiPackIndex=false")
_LISTING = ("--objects-edge-aggressive", "--missing=allow-any", "--ignore-missing", "--stdin")
_ID_AND_KIND = "--batch-check=%(objectname) %(objecttype)"
_KINDS = ("commit", "tree", "blob", "tag")
_CANNOT_WRITE = ("No space left", "quota exceeded", "Read-only file system", "unable to create", "unable to write")


class Unreadable(GitError):
    """What git was to read is not there, or damaged."""


@dataclass(frozen=True, slots=True)
class Listed:
    """What is reachable."""

    named: dict[str, bytes]
    """Each object, with the path that it was found under."""
    edges: frozenset[str]
    """Commits at the border, which are not listed."""
    asked: frozenset[str] = frozenset()
    """From where on it was followed."""


@dataclass(frozen=True, slots=True)
class Graph:
    """The objects in `store`; `env` can add others, or ask elsewhere.

    Raises:
        Unreadable: by what follows references, where one leads nowhere.
        GitError: by everything, where git does not work.
    """

    store: ObjectStore

    def kinds(self, names: set[str], env: Mapping[str, str] = HERE) -> dict[str, str]:
        """What kind of object each is, of those that are there."""
        if not names:
            return {}
        out = self.run("cat-file", _ID_AND_KIND, given=lines(names), env=env)
        found = (line.split(" ") for line in out.decode().splitlines())
        return {words[0]: words[1] for words in found if words[1] in _KINDS}

    def targets(self, tags: set[str], env: Mapping[str, str] = HERE) -> dict[str, tuple[str, str]]:
        """Id and kind of what each tag is put on, of those where that is there."""
        names = sorted(tags)
        out = self.run("cat-file", _ID_AND_KIND, given=lines(f"{n}^{{}}" for n in names), env=env) if names else b""
        found = (line.split(" ") for line in out.decode().splitlines())
        return {name: (words[0], words[1]) for name, words in zip(names, found, strict=True) if words[1] in _KINDS}

    def commits(self, tips: set[str], border: set[str], env: Mapping[str, str]) -> dict[str, set[str]]:
        """The commits that `tips` reach and `border` does not, each with its parents."""
        if not tips:
            return {}
        given = lines([*sorted(tips), *(f"^{name}" for name in sorted(border))])
        out = self.run("rev-list", "--parents", "--ignore-missing", "--stdin", given=given, env=env)
        return {words[0]: set(words[1:]) for words in map(str.split, out.decode().splitlines())}

    def content(self, tips: set[str], base: str | None, env: Mapping[str, str] = HERE) -> Listed:
        """All objects that `tips` reach and `base` does not; those that are missing are not listed."""
        if not tips:
            return Listed({}, frozenset())
        out = self.run("rev-list", *_LISTING, given=self._question(tips, base), env=env)
        named, edges = {}, set()
        for line in out.splitlines():
            name, _, path = line.partition(b" ")
            if line.startswith(b"-"):
                edges.add(name[1:].decode())
            else:
                named[name.decode()] = path
        return Listed(named, frozenset(edges))

    def reach(self, tips: Iterable[str], base: str | None) -> Listed:
        """`content` of our store, which does not know all parents of all commits."""
        kinds = self.kinds(set(tips))
        tags = {name for name, kind in kinds.items() if kind == "tag"}
        # Of a tag on something that is not carried there is only itself.
        alone = tags - self.targets(tags).keys()
        blobs = {name for name, kind in kinds.items() if kind == "blob"}
        asked = kinds.keys() - alone - blobs
        while True:
            listed = self.content(asked, base)
            more = {p for found in self.parents(self.forgotten(listed.named)).values() for p in found}
            more -= self.store.missing(more) | asked
            if not more:
                break
            asked |= more
        # Asked for last, on their own: then those that a tree has as well are listed with their path.
        named = self.content(blobs - listed.named.keys(), base).named | listed.named
        return Listed({**named, **dict.fromkeys(alone, b"")}, listed.edges, frozenset(asked | blobs))

    def whole(self, tips: set[str], base: str | None) -> Listed | None:
        """What `reach` lists, or None if anything of it is missing."""
        if self.store.missing(tips):
            return None
        try:
            listed = self.reach(tips, base)
            self.run("rev-list", "--objects", "--quiet", "--stdin", given=self._question(listed.asked, base))
        except Unreadable:
            return None
        return listed

    def strictly(self, tips: Iterable[str], env: Mapping[str, str]) -> set[str]:
        """All that `tips` reach, `Unreadable` if anything of it is missing."""
        given = self._question(tips, None)
        with self.shallow(set()) as file:
            out = self.run("rev-list", "--objects", "--stdin", given=given, env={**env, "GIT_SHALLOW_FILE": file})
        return {line.partition(b" ")[0].decode() for line in out.splitlines()}

    def parents(self, commits: Iterable[str]) -> dict[str, set[str]]:
        """As the commits themselves say, of commits in our store."""
        return {name: _parents(self.store.read(name)[1]) for name in commits}

    def forgotten(self, names: Iterable[str]) -> set[str]:
        """Those commits that our store takes for first ones, since it does not have all that came before."""
        return self._shallow_ids().intersection(names)

    def forget_parents(self, commits: set[str]) -> None:
        known = self._shallow_ids()
        if not commits <= known:
            store_files.put(self.store.path / "shallow", lines(known | commits))

    @contextmanager
    def shallow(self, more: set[str], *, ours: bool = True) -> Iterator[str]:
        """A file for git that says which commits to take for first ones: `more` and, if `ours`, our store's."""
        file = Path(f"{self.store.path}/shallow.{os.getpid()}.tmp")
        own_files.put(file, lines(more | (self._shallow_ids() if ours else set())))
        try:
            yield os.fspath(file)
        finally:
            file.unlink()

    def run(self, *argv: str, given: bytes | None = None, env: Mapping[str, str] = HERE) -> bytes:
        """What git wrote."""
        done = self.store.git(*_QUIETLY, *argv, input=given, extra_env=env)
        if done.returncode != 0:
            said = done.stderr.decode("utf-8", "replace").strip()
            kind = GitError if any(word in said for word in _CANNOT_WRITE) else Unreadable
            raise kind(f"git {argv[0]} did not work: {said or f'it ended with {done.returncode}.'}")
        return done.stdout

    def _question(self, tips: Iterable[str], base: str | None) -> bytes:
        return lines([*sorted(tips), *([f"^{base}"] if base and not self.store.missing([base]) else [])])

    def _shallow_ids(self) -> set[str]:
        return set(store_files.text_of(self.store.path / "shallow").split())


def lines(names: Iterable[str]) -> bytes:
    """As git wants names on its input; sets are sorted, so that equal questions are equal."""
    return "".join(f"{name}\n" for name in (sorted(names) if isinstance(names, set) else names)).encode()


def _parents(commit: bytes) -> set[str]:
    head = commit.partition(b"\n\n")[0].splitlines()
    return {line[7:].decode() for line in head if line.startswith(b"parent ")}
