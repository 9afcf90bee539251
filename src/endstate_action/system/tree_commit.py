"""The tree hash of a commit or a git tree, from its blobs: what `scan` says of a clean checkout that converts nothing.

Where line ends or filters differ between a blob and the file made of it, a checkout's hash depends on
who checks out; the hash of the blobs does not. A submodule is an empty directory, as in a fresh clone.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from endstate_action.errors import InputError
from endstate_action.system.git import discover, is_bare
from endstate_action.system.git_aside import LINK, PROGRAM, SUBMODULE, Aside, Leaf, aside
from endstate_action.system.git_call import Git, GitError, split, text
from endstate_action.system.names import short
from endstate_action.system.tree import DEFAULT_EXCLUDED
from endstate_action.system.tree_format import Directory, Entry, Kind, Scan

_AT_ONCE_BYTES = 32 * 1024 * 1024
"""So much of content is held in memory; a blob that is larger goes through a file."""

_CHUNK_BYTES = 256 * 1024


def scan_commit(
    root: Path, revision: str, env: Mapping[str, str], tmp: Path, exclude: Iterable[bytes] = DEFAULT_EXCLUDED
) -> Scan:
    """What `scan` finds in a clean checkout of a commit, without one. Nothing is written into the repository.

    Args:
        root: where the repository's `.git` is.
        revision: names a commit, or a tree, such as one that was just written and is in no commit.
        env, tmp: as for `git.discover`.

    Raises:
        InputError: there is no repository or no such tree, or not all of it is here.
    """
    repository = discover(root, env, tmp)
    if repository is None and is_bare(root):
        raise InputError(
            f"Nothing was hashed: {short(str(root))} is a bare repository, and only clones with files are read.",
            hint="Clone it (`git clone`), and name the clone.",
        )
    if repository is None:
        raise InputError(
            f"Nothing was hashed: there is no git repository at {short(str(root))} that can be read.",
            hint="Name the top directory of a clone.",
        )
    try:
        tree = repository.tree_id(revision)
        if tree is None:
            raise InputError(
                f"Nothing was hashed: {short(revision)} is no commit and no tree of this repository.",
                hint="Fetch it first (`git fetch origin COMMIT`).",
            )
        with aside(repository, env, None) as seen:
            return scan_tree(seen, tree, exclude)
    except (GitError, OSError) as error:
        raise InputError(
            f"The commit was not hashed, and nothing was changed: {short(str(error))}",
            hint="A partial clone lacks blobs: `git fetch --refetch --no-filter` gets them.",
        ) from error


def scan_tree(seen: Aside, tree: str, exclude: Iterable[bytes] = DEFAULT_EXCLUDED) -> Scan:
    """`scan_commit` for the id of a tree.

    Raises:
        GitError: something of the tree is not here.
    """
    leaves = _listed(seen.git, tree)
    excluded = tuple(sorted(set(exclude)))
    entries = _entries(seen, {path: leaf for path, leaf in leaves.items() if not _exclusion(path, excluded)})
    folders: dict[bytes, dict[bytes, Entry]] = {b"": {}}
    for path in leaves:
        above = _exclusion(path, excluded)
        # A directory of which all is excluded is an empty one, not none.
        folder = _folder(folders, os.path.dirname(above or path))
        if path in entries:
            folder[os.path.basename(path)] = entries[path]
        elif above is None:
            _folder(folders, path)
    return Scan(_assembled(folders), excluded)


def _folder(folders: dict[bytes, dict[bytes, Entry]], path: bytes) -> dict[bytes, Entry]:
    """The entries of the directory `path`, which is made together with those above it."""
    step = path
    while step not in folders:
        folders[step] = {}
        step = os.path.dirname(step)
    return folders[path]


def _assembled(folders: Mapping[bytes, Mapping[bytes, Entry]]) -> Directory:
    """From the deepest up; without recursion, since a tree may be deeper than the stack."""
    below: dict[bytes, dict[bytes, Directory]] = {path: {} for path in folders}
    for path in sorted(filter(None, folders), key=lambda path: path.count(b"/"), reverse=True):
        below[os.path.dirname(path)][os.path.basename(path)] = Directory.of(folders[path], below.pop(path))
    return Directory.of(folders[b""], below[b""])


def _exclusion(path: bytes, excluded: tuple[bytes, ...]) -> bytes | None:
    """The outermost excluded path that holds `path`."""
    return next((name for name in excluded if path == name or path.startswith(name + b"/")), None)


def _listed(git: Git, tree: str) -> dict[bytes, tuple[Leaf, int]]:
    """Every file, link and submodule, with the size of its blob."""
    found: dict[bytes, tuple[Leaf, int]] = {}
    for entry in split(git.out("ls-tree", "-r", "-l", "-z", "--full-tree", tree)):
        about, _, path = entry.partition(b"\t")
        mode, _, name, size = text(about).split()
        if mode != SUBMODULE and not size.isdecimal():
            raise GitError(f"The blob {name} is not here.")
        found[path] = Leaf(mode, name), 0 if mode == SUBMODULE else int(size)
    return found


def _entries(seen: Aside, leaves: Mapping[bytes, tuple[Leaf, int]]) -> dict[bytes, Entry]:
    sizes = {leaf.id: size for leaf, size in leaves.values() if leaf.mode != SUBMODULE}
    digests = _digests(seen, sizes)
    return {path: _entry(leaf, size, digests[leaf.id]) for path, (leaf, size) in leaves.items() if leaf.id in digests}


def _entry(leaf: Leaf, size: int, digest: bytes) -> Entry:
    if leaf.mode == LINK:
        return Entry(Kind.LINK, size=size, digest=digest)
    return Entry(Kind.FILE, leaf.mode == PROGRAM, size, digest)


def _digests(seen: Aside, sizes: Mapping[str, int]) -> dict[str, bytes]:
    """The sha256 of each blob."""
    digests: dict[str, bytes] = {}
    for group in _groups(sizes):
        if sizes[group[0]] > _AT_ONCE_BYTES:
            digests[group[0]] = _through_a_file(seen, group[0])
        else:
            digests |= _in_memory(seen.git, group)
    return digests


def _groups(sizes: Mapping[str, int]) -> Iterator[list[str]]:
    group: list[str] = []
    total = 0
    for name, size in sizes.items():
        if group and total + size > _AT_ONCE_BYTES:
            yield group
            group, total = [], 0
        group.append(name)
        total += size
    if group:
        yield group


def _in_memory(git: Git, blobs: list[str]) -> dict[str, bytes]:
    answer = memoryview(git.out("cat-file", "--batch", given="".join(f"{b}\n" for b in blobs).encode()))
    digests: dict[str, bytes] = {}
    at = 0
    for blob in blobs:
        end = bytes(answer[at : at + 200]).find(b"\n")
        words = text(bytes(answer[at : at + max(end, 0)])).split(" ")
        if len(words) != 3 or words[:2] != [blob, "blob"]:
            raise GitError(f"The blob {blob} is not here.")
        start = at + end + 1
        at = start + int(words[2]) + 1
        digests[blob] = hashlib.sha256(answer[start : at - 1]).digest()
    return digests


def _through_a_file(seen: Aside, blob: str) -> bytes:
    # Written where git works, so it has to work in our own directory.
    there = Git(seen.git.program, seen.place, {**seen.git.env, "GIT_WORK_TREE": str(seen.place)})
    made = seen.place / there.line("unpack-file", blob)
    content = hashlib.sha256()
    with made.open("rb") as file:
        while piece := file.read(_CHUNK_BYTES):
            content.update(piece)
    made.unlink()
    return content.digest()
