"""The base commit, copied into our store: the project's own objects can be written, pruned and lost by an agent."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from endstate_action.errors import StateError
from endstate_action.state.snapshot import git_files, store_files
from endstate_action.state.snapshot.refusals import writing
from endstate_action.system import own_files
from endstate_action.system.git_call import GitError, common_dir

if TYPE_CHECKING:
    from endstate_action.state.snapshot.objects import ObjectStore

_TREE, _GITLINK = 0o40000, 0o160000
_COMMIT = re.compile(r"\b(?:[0-9a-f]{64}|[0-9a-f]{40})\b")


def import_base(store: ObjectStore, repository_git_dir: Path, commit: str) -> None:
    """Keep a commit of the project with all its content.

    A depth-1 checkout is enough, since what came before the commit is not kept. Of a partial clone what is
    there is kept; `is_whole` tells. May be called again: a base that is there is left as it is.

    Raises:
        StateError: the repository has no such commit, git failed, or the disk refused.
    """
    mark = _mark(store, commit)
    if mark.exists():
        return
    _forget_parents(store, commit)
    common = common_dir(repository_git_dir)
    with writing("The base commit was not noted"):
        store_files.put(_ends_file(store), "".join(f"{name}\n" for name in sorted(ends_in(common))).encode())
    said = _pack(store, common / "objects", commit)
    if said or store.missing([commit]):
        raise StateError(
            f"The base commit {commit[:12]} was not copied: {said or 'the repository does not have it.'} "
            "Nothing was run.",
            hint="Check that the repository is whole (`git fsck`) and that git can be started.",
        )
    note_base(store, commit)


def note_base(store: ObjectStore, commit: str) -> None:
    """Take a commit that is in the store, from wherever it came, for a base; `is_whole` then tells."""
    _forget_parents(store, commit)
    whole = not store.missing(content_of(store, commit))
    with writing("The base commit was not noted"):
        store_files.put(_mark(store, commit), b"whole\n" if whole else b"partial\n")


def is_whole(store: ObjectStore, commit: str) -> bool:
    """Whether `import_base` found all content of the commit."""
    try:
        return own_files.get(_mark(store, commit)) == b"whole\n"
    except OSError:
        return False


def ends_in(common_dir: Path) -> set[str]:
    """The commits of which a repository knows that it does not have what came before (it is shallow)."""
    found = git_files.read(common_dir, "shallow")
    return set(_COMMIT.findall(found.data.decode("ascii", "replace"))) if found and found.kind != "link" else set()


def ends_at_first(store: ObjectStore) -> set[str]:
    """Those that the project's repository had when its base was copied: what a call removes can be put back."""
    return set(store_files.text_of(_ends_file(store)).split())


def _ends_file(store: ObjectStore) -> Path:
    return store.path / "given" / "shallow"


def content_of(store: ObjectStore, commit: str) -> Iterator[str]:
    """All trees and blobs; a tree that is missing is named, what it holds is not."""
    _, text = store.read(commit)
    pending = [text[5 : text.index(b"\n")].decode()]
    while pending:
        tree = pending.pop()
        yield tree
        if not store.missing([tree]):
            entries = store.tree_entries(tree)
            pending += [entry.id for entry in entries if entry.mode == _TREE]
            yield from (entry.id for entry in entries if entry.mode not in (_TREE, _GITLINK))


def _mark(store: ObjectStore, commit: str) -> Path:
    if not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", commit):
        raise StateError(f"{commit[:80]!r} is no commit id. Nothing was copied.")
    return store.path / "base" / commit


def _forget_parents(store: ObjectStore, commit: str) -> None:
    shallow = store.path / "shallow"
    with writing("The base commit was not noted"):
        known = store_files.text_of(shallow).split()
        if commit not in known:
            store_files.put(shallow, "".join(f"{name}\n" for name in (*known, commit)).encode())


def _pack(store: ObjectStore, objects: Path, commit: str) -> str:
    """Copy what is in `objects`; returns what git complains of."""
    packs = store.path / "objects" / "pack"
    with writing("What was left half written was not removed"), own_files.directory(packs) as place:
        for left in store_files.listed_names(place):
            if left.startswith("tmp_"):
                own_files.remove(left, place)
    # Whole objects: one revision holds few alike, and they can be read here, piece by piece, without git.
    options = ("--revs", "--no-reuse-delta", "--window=0", "--missing=allow-any")
    try:
        done = store.git(
            *("pack-objects", "-q", *options, os.fspath(packs / "pack")),
            input=f"{commit}\n".encode(),
            extra_env={"GIT_ALTERNATE_OBJECT_DIRECTORIES": _quoted(objects)},
        )
    except GitError as error:
        return str(error)
    return done.stderr.decode("utf-8", "replace").strip() if done.returncode else ""


def _quoted(path: Path) -> str:
    """As git reads one path out of a list that is separated by colons."""
    text = os.fspath(path.resolve())
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
