"""Verify: is this tree the one that a run announced? Recomputed here, on any clone, without a network.

Two things are recomputed: the tree hash of what is on the disk, and the git tree that a commit of it
would have. Where they differ it is said which names do, as far as the clone has what is needed to tell.
The workspace of the run itself may hold more than the result; it is known by the hash of all that was in it.
Nothing is written into the clone, and nothing found in it is executed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from endstate_action.ci.evidence import Evidence, parse_evidence
from endstate_action.ci.marker import parse_marker
from endstate_action.errors import InputError, NewerFormat
from endstate_action.system import own_files
from endstate_action.system.git import Repository, discover, enclosing, is_bare
from endstate_action.system.git_aside import LINK, PROGRAM, SUBMODULE, Aside, Changed, Leaf, Leaves, aside
from endstate_action.system.git_call import GitError
from endstate_action.system.names import display, parse, short
from endstate_action.system.tree import DEFAULT_EXCLUDED, Entry, Kind, Scan, scan
from endstate_action.system.tree_commit import scan_tree

HOLDS, DOES_NOT_HOLD = 0, 1
"""Exit codes; what cannot be told is an `InputError`, with exit code 2."""

_NAMED_AT_MOST = 20

_PULL_REQUEST = re.compile(
    r"https?://(?P<host>[A-Za-z0-9.-]+(:\d+)?)/(?P<repository>\w[\w.-]*/\w[\w.-]*)/pull/(?P<number>\d{1,10})"
    r"(/[a-z]+)?/?(#issuecomment-(?P<comment>\d{1,20}))?",
    re.ASCII,
)
_SHORTHAND = re.compile(r"((?P<repository>\w[\w.-]*/\w[\w.-]*)#|#?)(?P<number>\d{1,10})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Reference:
    """Evidence that somebody has to fetch: our comment on a pull request, or one certain comment.

    Without `repository` it is that of the clone. Whether we wrote the comment is for whoever fetches to check.
    """

    number: int
    repository: str | None = None
    host: str | None = None
    comment: int | None = None


Fetch = Callable[[Reference], str]
"""The body of the comment, or evidence as JSON. Raises EndstateError."""


@dataclass(frozen=True, slots=True)
class Statement:
    """One thing that was looked at; `holds` is None where that could not be told."""

    holds: bool | None
    text: str
    names: tuple[str, ...] = ()
    """What differs, a phrase each."""


@dataclass(frozen=True, slots=True)
class Verdict:
    statements: tuple[Statement, ...]

    @property
    def exit_code(self) -> int:
        return DOES_NOT_HOLD if any(statement.holds is False for statement in self.statements) else HOLDS


def parse_target(text: str) -> Path | Reference:
    """A file, or where on GitHub to look: `https://HOST/OWNER/NAME/pull/7`, `OWNER/NAME#7`, `#7` or `7`.

    Raises:
        InputError: it is neither.
    """
    if found := _PULL_REQUEST.fullmatch(text):
        comment = int(found["comment"]) if found["comment"] else None
        return Reference(int(found["number"]), found["repository"], found["host"], comment)
    if (found := _SHORTHAND.fullmatch(text)) and not os.path.lexists(text):
        return Reference(int(found["number"]), found["repository"])
    if "://" in text or "\0" in text:
        raise InputError(
            f"{short(text)} leads to no pull request. Nothing was verified.",
            hint="Name the evidence file, or https://HOST/OWNER/NAME/pull/NUMBER.",
        )
    return Path(text)


def verify(target: str, path: Path, env: Mapping[str, str], tmp: Path, fetch: Fetch | None = None) -> Verdict:
    """Compare the tree at `path` with what the evidence says of it.

    Args:
        target: see `parse_target`.
        path: the top of a clone at the commit, or at the base with the patch applied; or a plain directory.
        env, tmp: as for `git.discover`.
        fetch: asked for a pull request's comment; without it only files can be used.

    Raises:
        InputError: the evidence cannot be had or read, or `path` is no directory that can be.
    """
    claims = _claims(target, fetch)
    if is_bare(path):
        raise InputError(
            f"{short(str(path))} is a bare repository, with no files to compare. Nothing was verified.",
            hint="Clone it (`git clone`), and verify on the clone.",
        )
    try:
        there = scan(path, claims.excluded)
        repository = discover(path, env, tmp)
        if repository is None and claims.git_tree is not None and (top := enclosing(path)) is not None:
            _refuse_a_part(path, top, claims, there)
        if repository is None or claims.git_tree is None:
            return _without_git(claims, there)
        return _on_clone(claims, there, repository, env)
    except (GitError, OSError) as error:
        raise InputError(
            f"Nothing was verified, and nothing was changed: {short(str(error))}",
            hint="Verify on a fresh, whole clone.",
        ) from error


def _refuse_a_part(path: Path, top: Path, claims: _Claims, there: Scan) -> None:
    """What lies inside a clone is a part of it, unless it is a whole export that was unpacked there."""
    if there.tree_hash not in (claims.tree_hash, claims.workspace_hash):
        raise InputError(
            f"{short(str(path.absolute()))} is a directory inside the clone {short(str(top))}, and the evidence is "
            "about a whole one. Nothing was verified.",
            hint="Change to the top directory of the clone, or name it after the evidence.",
        )


# --- What is claimed ---


@dataclass(frozen=True, slots=True)
class _Claims:
    """What of evidence can be recomputed. A comment's marker carries the first four alone."""

    git_tree: str | None
    tree_hash: str
    base_commit: str | None
    commit: str | None
    base_tree: str | None = None
    changed: tuple[Changed, ...] | None = None
    excluded: tuple[bytes, ...] = DEFAULT_EXCLUDED
    workspace_hash: str | None = None


def _claims(target: str, fetch: Fetch | None) -> _Claims:
    place = parse_target(target)
    if isinstance(place, Reference):
        if fetch is None:
            raise InputError(
                f"{short(target)} has to be fetched, which is not possible here. Nothing was verified.",
                hint="Download the evidence file of the run and name that.",
            )
        return _parsed(fetch(place), short(target))
    try:
        data = own_files.get(place.absolute().parent.resolve() / place.name)
    except OSError as error:
        raise InputError(
            f"The evidence {short(target)} cannot be read: {error.strerror or error}. Nothing was verified.",
            hint="Name the evidence file of a run, or its pull request.",
        ) from error
    return _parsed(data, short(target))


def _parsed(text: str | bytes, origin: str) -> _Claims:
    marker = parse_marker(text) if isinstance(text, str) else None
    if marker is None:
        try:
            return _of_evidence(parse_evidence(text, origin))
        except NewerFormat as error:
            raise InputError(str(error), hint=error.hint) from error
    if marker.tree is None or marker.hash is None:
        raise InputError(
            f"The comment of {origin} names no tree: its run is *{marker.state}*. Nothing was verified.",
            hint="Wait for its result, or name the evidence file.",
        )
    return _Claims(marker.tree, marker.hash, marker.base, marker.commit)


def _of_evidence(evidence: Evidence) -> _Claims:
    trees = evidence.trees
    pushed = [commit.id for commit in evidence.commits if commit.branch is not None]
    # The two git values belong together; without them, what the workspace was is all there is.
    git_tree = trees.git_tree if trees.published_hash else None
    tree_hash = trees.published_hash if git_tree else trees.workspace_hash
    if tree_hash is None:
        raise InputError(
            f"This evidence holds no tree hash (its run ended as *{evidence.conclusion}*). Nothing was verified.",
            hint="Use the evidence of the run that finished.",
        )
    try:
        excluded = tuple(parse(path) for path in trees.excluded)
        changed = None if evidence.changed_files is None else tuple(_changes(evidence))
    except ValueError as error:
        raise InputError(
            f"The evidence names a path that no file can have: {short(str(error))} Nothing was verified.",
            hint="Use the evidence file of a run as it was written, whole and unchanged.",
        ) from error
    commit = pushed[-1] if pushed else None
    return _Claims(
        git_tree, tree_hash, trees.base_commit, commit, trees.base_tree, changed, excluded, trees.workspace_hash
    )


def _changes(evidence: Evidence) -> Iterator[Changed]:
    for file in evidence.changed_files or ():
        if b"\0" in parse(file.path):
            raise ValueError(f"No name holds a NUL: {short(file.path)}.")
        after = Leaf(file.mode, file.blob) if file.mode and file.blob else None
        yield Changed(parse(file.path), None, after)


# --- What is there ---


@dataclass(frozen=True, slots=True)
class _Found:
    there: Scan
    tree: str
    staged: Leaves
    expected: Leaves | None
    """Every path that the claimed tree has; None where that cannot be told here."""


def _without_git(claims: _Claims, there: Scan) -> Verdict:
    """By the tree hash alone, which stands for the whole tree."""
    said = [_left_statement(there) if _is_as_left(claims, there) else _hash_statement(claims.tree_hash, there)]
    if claims.git_tree is not None:
        said.append(Statement(None, "The git tree was not compared, and what differs not named: this is no clone."))
    return Verdict((*said, *_unsure(there)))


def _on_clone(claims: _Claims, there: Scan, repository: Repository, env: Mapping[str, str]) -> Verdict:
    head = repository.head().commit
    with aside(repository, env, head) as seen:
        left_out = seen.stage(repository.changed_paths(head))
        found = _Found(there, seen.write_tree(), seen.staged(), _expected(claims, seen))
        differences = _differences(claims, found)
        if _is_as_left(claims, there):
            said = _said_as_left(claims, there, differences, _hash_of_blobs(claims, seen))
        else:
            names = _listed(differences)
            is_whole = found.expected is not None and not names
            by_blobs = is_whole and there.tree_hash != claims.tree_hash == _hash_of_blobs(claims, seen)
            said = [
                _hash_statement(claims.tree_hash, there, names, by_blobs=by_blobs),
                _tree_statement(claims.git_tree or "", found.tree, names),
            ]
        said += [
            *_commit_statements(claims, repository),
            *_listing_statement(claims, seen),
        ]
    # What of these has no place in the result, the tree hash has told; content for a filter is told by nothing else.
    said += [Statement(None, f"Not compared as it is here: {why}") for why in left_out.values()]
    return Verdict((*said, *_unsure(there)))


def _is_as_left(claims: _Claims, there: Scan) -> bool:
    """Whether it is the workspace of the run, unchanged, with more in it than the result."""
    return there.tree_hash == claims.workspace_hash != claims.tree_hash


def _expected(claims: _Claims, seen: Aside) -> dict[bytes, Leaf] | None:
    found = seen.leaves(claims.git_tree or "")
    if found is None and (built := _built(claims, seen)) == claims.git_tree:
        return seen.leaves(built or "")
    return found


def _built(claims: _Claims, seen: Aside) -> str | None:
    """The tree that base and list of changed files make together; None where the base is not here."""
    if claims.base_tree is None or claims.changed is None or seen.leaves(claims.base_tree) is None:
        return None
    return seen.with_changes(claims.base_tree, claims.changed)


def _differences(claims: _Claims, found: _Found) -> dict[bytes, str]:
    """By path what is wrong with it, as far as it can be told."""
    if found.expected is None:
        known = {change.path: change.after for change in claims.changed or ()}
        looked = {path: _difference(after, found.staged.get(path)) for path, after in known.items()}
        return {path: what for path, what in looked.items() if what}
    wrong = {}
    for path in {*found.expected, *found.staged}:
        if what := _difference(found.expected.get(path), found.staged.get(path)):
            wrong[path] = what
    for path, what in _beside_git(found.expected, found.there):
        wrong.setdefault(path, what)
    return wrong


def _difference(expected: Leaf | None, found: Leaf | None) -> str:
    if expected == found:
        return ""
    if expected is None:
        return "is here, and is no part of the result"
    if found is None:
        return "is missing here"
    if LINK in (expected.mode, found.mode) and expected.mode != found.mode:
        return "is a link here, and should be none" if found.mode == LINK else "should be a link, and is none here"
    if expected.id != found.id:
        return "leads to another target" if expected.mode == LINK else "has other content"
    return "is executable here" if found.mode == PROGRAM else "is not executable here"


def _beside_git(expected: Leaves, there: Scan) -> Iterator[tuple[bytes, str]]:
    """What git would not commit, or not look at: ignored files, empty directories, modes where it was told not to."""
    submodules = {path for path, leaf in expected.items() if leaf.mode == SUBMODULE}
    folders = {folder for path in expected for folder in _above(path)}
    occupied = {os.path.dirname(path) for path in there.entries}
    for path, entry in there.entries.items():
        leaf = expected.get(path)
        inside = submodules.intersection(_above(path))
        if leaf is not None and leaf.mode != SUBMODULE:
            yield from ((path, what) for what in _otherwise(leaf, entry))
        elif inside:
            yield inside.pop(), "is checked out here, and the result has only its commit"
        elif entry.kind is not Kind.DIRECTORY:
            yield path, "is here, and is no part of the result"
        elif path not in occupied and path not in folders and leaf is None:
            yield path, "is an empty directory, which no commit has"
    for path, leaf in expected.items():
        if path not in there.entries and not _is_hidden(path, there) and leaf.mode != SUBMODULE:
            yield path, "is missing here"


def _otherwise(leaf: Leaf, entry: Entry) -> Iterator[str]:
    wanted = Kind.LINK if leaf.mode == LINK else Kind.FILE
    if entry.kind is not wanted:
        yield f"should be a {wanted}, and is here a {entry.kind}"
    elif wanted is Kind.FILE and entry.executable != (leaf.mode == PROGRAM):
        yield "is executable here" if entry.executable else "is not executable here"


def _above(path: bytes) -> Iterator[bytes]:
    """The directories that lead to `path`."""
    while path := os.path.dirname(path):
        yield path


def _is_hidden(path: bytes, there: Scan) -> bool:
    return any(path == name or path.startswith(name + b"/") for name in there.excluded)


def _hash_of_blobs(claims: _Claims, seen: Aside) -> str | None:
    try:
        return scan_tree(seen, claims.git_tree or "", claims.excluded).tree_hash
    except GitError:
        return None


# --- What is said ---


def _hash_statement(expected: str, there: Scan, names: tuple[str, ...] = (), *, by_blobs: bool = False) -> Statement:
    if there.tree_hash == expected:
        return Statement(True, f"The tree hash is {expected}, as announced.")
    if by_blobs:
        # All that differs is how this checkout writes what is committed.
        committed = f"The tree hash of what is committed is {expected}, as announced."
        return Statement(True, f"{committed} Line ends or filters make it another on this disk.")
    return Statement(False, f"The tree hash is {there.tree_hash}; announced was {expected}.", names)


def _left_statement(there: Scan, beside: tuple[str, ...] = ()) -> Statement:
    text = f"This is the workspace as the run left it: its tree hash is {there.tree_hash}, as announced."
    return Statement(True, f"{text} Not all of it is of the result:" if beside else text, beside)


def _said_as_left(claims: _Claims, there: Scan, differences: Mapping[bytes, str], made: str | None) -> list[Statement]:
    """What was there before the run may differ; the files of the result may not. `made` is its hash, from its blobs."""
    own = {change.path for change in claims.changed or ()}
    beside = {path: what for path, what in differences.items() if path not in own}
    wrong = {path: what for path, what in differences.items() if path in own}
    said = [_left_statement(there, _listed(beside))]
    if wrong:
        said.append(Statement(False, "Files of the result are here otherwise than announced:", _listed(wrong)))
    if made is None:
        unknown = "The tree hash of the result alone was not compared, since not all of its files are in this clone."
        return [*said, Statement(None, unknown)]
    result = f"The tree hash of the result alone is {made}"
    is_same = made == claims.tree_hash
    return [
        *said,
        Statement(is_same, f"{result}, as announced." if is_same else f"{result}; announced was {claims.tree_hash}."),
    ]


def _tree_statement(expected: str, tree: str, names: tuple[str, ...]) -> Statement:
    if tree == expected:
        return Statement(True, f"The git tree is {expected}, as announced.")
    made = f"A commit of what is here would have the git tree {tree}"
    return Statement(False, f"{made}; announced was {expected}.", names)


def _commit_statements(claims: _Claims, repository: Repository) -> Iterator[Statement]:
    for name, what, expected in (
        (claims.commit, "commit", claims.git_tree),
        (claims.base_commit, "base commit", claims.base_tree),
    ):
        if name is None or expected is None:
            continue
        if repository.full_id(name) is None:
            yield Statement(None, f"The {what} {name} is not in this clone, so its tree was not compared.")
            continue
        tree = repository.tree_of(name)
        said = f"The {what} {name} has the tree {tree}"
        same = tree == expected
        yield Statement(same, f"{said}, as announced." if same else f"{said}; announced was {expected}.")


def _listing_statement(claims: _Claims, seen: Aside) -> Iterator[Statement]:
    """Whether the changed files that the evidence lists are all there is between the two trees."""
    if claims.base_tree is None or claims.changed is None:
        return
    listed = f"The base tree with the {len(claims.changed)} changed files that are listed"
    match _built(claims, seen):
        case None:
            yield Statement(None, "The base tree is not in this clone, so the list of changed files was not compared.")
        case claims.git_tree:
            yield Statement(True, f"{listed} is that git tree.")
        case other:
            yield Statement(False, f"{listed} is another tree, {other}.")


def _unsure(there: Scan) -> Iterator[Statement]:
    """What the tree hash does not cover."""
    if own := [display(path) for path in there.excluded if path not in DEFAULT_EXCLUDED]:
        yield Statement(None, f"Left out, as the evidence says: {', '.join(own)}.")
    for path in (*there.unreadable, *there.unstable):
        yield Statement(False, f"{display(path)} could not be read, or changed while it was read.")


def _listed(names: Mapping[bytes, str]) -> tuple[str, ...]:
    shown = [f"{display(path)} {what}" for path, what in sorted(names.items())[:_NAMED_AT_MOST]]
    more = len(names) - len(shown)
    return (*shown, f"and {more} more") if more else tuple(shown)
