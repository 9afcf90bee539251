"""Git over a repository's objects that leaves the repository as it is: what is staged here is written beside it.

For questions such as "which tree would a commit of this have?", asked of a checkout that may be somebody
else's or read-only. Work-tree files are read through a view (see `git_view`), so nothing found in the
repository is executed. New objects are gone when the context ends; read what is needed of them before.
(Git may renew the time stamp of an object that is there already, and does not mind if it cannot.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from endstate_action.system.git import Repository
from endstate_action.system.git_call import Git, GitError, join, split, text
from endstate_action.system.git_paths import kind, problem, refused_name
from endstate_action.system.git_view import view

SUBMODULE = "160000"
LINK = "120000"
PROGRAM = "100755"
_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Leaf:
    """A file, link or submodule of a git tree: its mode in git's six digits, and the id of its blob or commit."""

    mode: str
    id: str


Leaves = Mapping[bytes, Leaf]

# What a tree is must not depend on whose checkout it is, so attributes are those in the tree alone. And safe line ends
# are a question to a person who commits: here they would only keep a result from being told.
_NOT_HERE = {"core.safecrlf", "core.attributesfile"}


@dataclass(frozen=True, slots=True)
class Changed:
    """One path in which two trees differ; None where it is not there."""

    path: bytes
    before: Leaf | None
    after: Leaf | None


@contextmanager
def aside(repository: Repository, env: Mapping[str, str], commit: str | None) -> Iterator[Aside]:
    """A staging area that begins as `commit` (None: empty). One at a time.

    Args:
        env: gives PATH and HOME; nothing else of it reaches git.

    Raises:
        GitError: git cannot read the repository or the commit.
    """
    user = Git.for_user(repository.root, repository.git_dir, env)
    if user is None:
        raise GitError("There is no git program.")
    settings = {key: value for key, value in user.settings().items() if key not in _NOT_HERE}
    place = repository.view_place.with_name("git-aside")
    closed = user.closed(settings, "none")
    with view(closed, place, repository.common_dir, repository.object_format, commit) as seen:
        (place / "info" / "attributes").unlink(missing_ok=True)
        ours = {
            "GIT_OBJECT_DIRECTORY": str(place / "objects"),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": _quoted(repository.common_dir / "objects"),
        }
        yield Aside(repository, seen.with_env(ours), place)


@dataclass(frozen=True, slots=True)
class Aside:
    repository: Repository
    git: Git
    place: Path
    """A private directory, removed in the end."""

    def stage(self, paths: Sequence[bytes]) -> dict[bytes, str]:
        """Take each path as it is in the work tree, cleaned as git would; returns those left out, each with the reason.

        Left out is what no commit could hold faithfully: submodules and nested repositories, special files,
        content made by a filter, names and files that git refuses.
        """
        left_out = self._problems(paths)
        wanted = [path for path in paths if path not in left_out]
        # A directory at a path that may be committed stands where a file was.
        there = [path for path in wanted if self._kind(path) in ("file", "link")]
        nothing = b"0 " + self._nothing() + b"\t"
        self.git.out("update-index", "-z", "--index-info", given=join(nothing + path for path in wanted))
        try:
            self._add(there)
        except GitError:
            # Git stops at the first path that it refuses, and names one at most.
            left_out |= self._add_one_by_one(there)
        # Of a name that it refuses git says nothing by its end.
        staged = self.staged()
        return left_out | {p: refused_name(p) for p in there if p not in staged and p not in left_out}

    def write_tree(self) -> str:
        """The id of the tree that is staged."""
        return self.git.line("write-tree", "--missing-ok")

    def staged(self) -> dict[bytes, Leaf]:
        return _leaves(self.git.out("ls-files", "-z", "-s"))

    def leaves(self, tree: str) -> dict[bytes, Leaf] | None:
        """What is in a tree; None where the tree, or one below it, is not here."""
        try:
            return _leaves(self.git.out("ls-tree", "-r", "-z", "--full-tree", tree), id_at=2)
        except GitError:
            return None

    def changed(self, before: str, after: str) -> list[Changed]:
        """The paths in which two trees differ, a rename as two, in the order of their bytes."""
        words = split(self.git.out("diff-tree", "-r", "-z", "--no-renames", before, after))
        return [_changed(about, path) for about, path in zip(words[::2], words[1::2], strict=True)]

    def with_changes(self, tree: str, changes: Iterable[Changed]) -> str:
        """The id of `tree` with `changes` made to it. The blobs need not be here."""
        separate = self.git.with_env({"GIT_INDEX_FILE": str(self.place / "changed")})
        separate.out("read-tree", tree)
        # What goes comes first: a directory may stand where a file was, or the other way round.
        ordered = sorted(changes, key=lambda change: change.after is not None)
        lines = (_line(change.after, self._nothing()) + change.path for change in ordered)
        separate.out("update-index", "-z", "--index-info", given=join(lines))
        return separate.line("write-tree", "--missing-ok")

    def blob(self, blob: str) -> bytes:
        return self.git.out("cat-file", "blob", blob)

    def contents(self, blobs: Sequence[str]) -> dict[str, bytes]:
        """Those of many, by few calls of git. All are in memory at once."""
        found: dict[str, bytes] = {}
        for first in range(0, len(blobs), _AT_ONCE):
            asked = list(dict.fromkeys(blobs[first : first + _AT_ONCE]))
            out = self.git.out("cat-file", "--batch", given="".join(f"{blob}\n" for blob in asked).encode())
            at = 0
            for blob in asked:
                end = out.index(b"\n", at)
                size = int(out[at:end].split(b" ")[2])
                found[blob] = out[end + 1 : end + 1 + size]
                at = end + 1 + size + 1
        return found

    def _problems(self, paths: Sequence[bytes]) -> dict[bytes, str]:
        links = {path for path, leaf in self.staged().items() if leaf.mode == SUBMODULE}
        filters = self._filters(path for path in paths if self._kind(path) == "file")
        found = {path: problem(self.repository.root, path, links, filters.get(path, {})) for path in paths}
        return {path: why for path, why in found.items() if why}

    def _filters(self, paths: Iterable[bytes]) -> dict[bytes, dict[str, str]]:
        words = split(self.git.out("check-attr", "-z", "--stdin", "filter", given=join(paths)))
        return {path: {"filter": text(value)} for path, value in zip(words[::3], words[2::3], strict=True)}

    def _add(self, paths: Sequence[bytes]) -> None:
        self.git.out("update-index", "-z", "--add", "--replace", "--stdin", given=join(paths))

    def _add_one_by_one(self, paths: Sequence[bytes]) -> dict[bytes, str]:
        refused: dict[bytes, str] = {}
        for path in paths:
            try:
                self._add([path])
            except GitError as error:
                refused[path] = str(error)
        return refused

    def _kind(self, path: bytes) -> str:
        return kind(self.repository.root, path)

    def _nothing(self) -> bytes:
        return b"0" * (64 if self.repository.object_format == "sha256" else 40)


def _leaves(listed: bytes, id_at: int = 1) -> dict[bytes, Leaf]:
    """From `mode [type] id [stage]<tab>path`."""
    found: dict[bytes, Leaf] = {}
    for entry in split(listed):
        about, _, path = entry.partition(b"\t")
        words = about.split(b" ")
        found[path] = Leaf(text(words[0]), text(words[id_at]))
    return found


def _changed(about: bytes, path: bytes) -> Changed:
    """From `:mode mode id id letter`."""
    before, after, old, new, _ = text(about).removeprefix(":").split(" ")
    return Changed(path, _leaf(before, old), _leaf(after, new))


def _leaf(mode: str, name: str) -> Leaf | None:
    return Leaf(mode, name) if mode.strip("0") else None


def _line(leaf: Leaf | None, nothing: bytes) -> bytes:
    return f"{leaf.mode} {leaf.id}\t".encode() if leaf else b"0 " + nothing + b"\t"


def _quoted(path: Path) -> str:
    """As git reads a list in which a colon separates."""
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
