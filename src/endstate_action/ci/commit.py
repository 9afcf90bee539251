"""A commit on GitHub, made without git: exactly the changed paths on a pinned parent, found again, and never forced.

Everything that a commit's id depends on (tree, parent, author, committer, dates, message) is given, so a repeat makes
the same commit. That costs GitHub's signature, which only a commit without these has. `prepare` uploads what nobody
sees: it may be repeated at will, and nothing refers to it unless its tree is the expected one. `publish` moves one
branch, forward only, and only from the pinned parent.
"""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import quote

from endstate_action.ci.github import GitHub, MayWrite
from endstate_action.ci.outcome import (
    Absent,
    Ambiguous,
    Applied,
    Failed,
    Failure,
    Rejected,
    T,
    Unavailable,
    once_more,
    told,
    understood,
)
from endstate_action.ci.payload import Node
from endstate_action.ci.pull_request import place_of
from endstate_action.system.git_message import with_trailer
from endstate_action.system.names import display, fold

NEEDS_CONTENTS = "contents: write"
_NEEDS_READ = "contents: read"

SESSION_TRAILER = "Endstate-Session"
KEY_TRAILER = "Endstate-Key"

MOST_BLOB_BYTES = 100_000_000
"""GitHub's Git data API takes no larger file."""

_NAMED_AT_MOST = 5
_INLINE_FILE_BYTES = 64 << 10
_INLINE_TOTAL_BYTES = 1 << 20
_WORKFLOWS = (".github", "workflows")
_ID = re.compile(r"[0-9a-f]{40}")
_SOME_NAME = re.compile(r".+")
_PASSING = re.compile(
    r"answered 409|already exists|not a fast.forward|object does not exist|reference update failed", re.IGNORECASE
)
"""What GitHub says of a branch that is not where it was, though our look finds it there: it has not caught up yet."""
_OUR_TRAILERS = re.compile(rf"\s*({SESSION_TRAILER}|{KEY_TRAILER})\s*:", re.IGNORECASE)

Mode = Literal["100644", "100755", "120000"]


@dataclass(frozen=True, slots=True)
class Change:
    """What a path becomes. `read` gives a file's content or a link's target; without a mode the path is deleted."""

    path: bytes
    mode: Mode | None
    read: Callable[[], bytes] = bytes


@dataclass(frozen=True, slots=True)
class Plan:
    """All that the commit's id depends on, to be kept until it is delivered.

    Args:
        tree: the git tree id that the commit must have.
        key: the value of its `Endstate-Key`: the idempotency key, a space, the digest of the content.
        when: seconds since the epoch, for both dates.
    """

    parent: str
    tree: str
    message: str
    author: tuple[str, str]
    when: int
    session: str
    key: str

    @property
    def full_message(self) -> str:
        """With the trailers, and without lines that pretend to be one."""
        kept = (line for line in self.message.splitlines() if not _OUR_TRAILERS.match(line))
        with_session = with_trailer("\n".join(kept).strip() or "Changes", SESSION_TRAILER, self.session)
        return with_trailer(with_session, KEY_TRAILER, self.key)


@dataclass(frozen=True, slots=True)
class Moved:
    """The branch is not where the commit belongs; nothing was pushed over it. `at` is None when it is gone."""

    reason: str
    at: str | None


@dataclass(frozen=True, slots=True)
class Target:
    """A branch to publish on; only one that is our own is created when it is not there."""

    branch: str
    is_own: bool


def own_branch(session: str) -> Target:
    return Target(f"endstate/{session}", is_own=True)


@dataclass(frozen=True, slots=True)
class Commits:
    """Commits in one repository."""

    github: GitHub
    repository: str
    wait: Callable[[float], None] = time.sleep

    def may_commit(self) -> Applied[None] | Failure:
        """Whether the token may write contents, found out by a blob to which nothing refers."""

        def act() -> None:
            self._blob(b"endstate", b"")

        return told(act)

    def prepare(
        self, plan: Plan, changes: Sequence[Change], *, may_change_workflows: bool = False
    ) -> Applied[str] | Failure:
        """The id of the commit, uploaded and checked; no branch has it yet. The same plan makes the same id."""
        return told(lambda: self._prepared(plan, changes, may_change_workflows=may_change_workflows))

    def probe(self, plan: Plan, commit: str | None, target: Target) -> Applied[str] | Failure:
        """The published commit's id: `commit` at the tip, or one that bears the key, among those after the parent.

        Ambiguous when the key stands there with another digest.
        """

        def look() -> str:
            tip = self._tip(target.branch)
            found = self._published(plan, commit, tip) if tip else None
            if found is None:
                raise Failed(Absent(f"no commit on {target.branch} bears the key"))
            return found

        return told(look)

    def publish(self, plan: Plan, commit: str, target: Target, may_write: MayWrite) -> Applied[str] | Moved | Failure:
        """Let the branch have the commit; the id of what is published, which is an earlier one with the same key.

        GitHub moves a branch forward from wherever it is, so between our look at it and the move remains a moment in
        which it can be set back unnoticed. What is not a step forward, GitHub refuses.
        """
        try:
            return self._moved_to(plan, commit, target, may_write)
        except Failed as failed:
            return failed.failure

    # Upload.

    def _prepared(self, plan: Plan, changes: Sequence[Change], *, may_change_workflows: bool) -> str:
        if not changes:
            raise Failed(Rejected("there is nothing to commit"))
        names = _checked_names(changes, may_change_workflows)
        base = self._tree_of(plan.parent)
        for stage in _stages(changes):
            base = self._tree(base, stage, names)
        if base != plan.tree:
            raise Failed(
                Rejected(f"GitHub made the tree {_short(base)} of our changes, and not {_short(plan.tree)} as expected")
            )
        return self._commit(plan)

    def _tree_of(self, commit: str) -> str:
        path = self._path(f"git/commits/{_checked_id(commit)}")
        try:
            return understood(lambda node: node.need("tree").text("sha"), self.github.read(path, needs=_NEEDS_READ))
        except Failed as failed:
            if not isinstance(failed.failure, Absent):
                raise
        raise Failed(Absent(f"the commit {_short(commit)}, on which this one is to be made, is not on GitHub"))

    def _tree(self, base: str, changes: Sequence[Change], names: dict[bytes, str]) -> str:
        entries: list[dict[str, Any]] = []
        room = _INLINE_TOTAL_BYTES
        for change in changes:
            entry = {"path": names[change.path], "mode": change.mode or "100644", "type": "blob"}
            if change.mode is None:
                entries.append(entry | {"sha": None})
                continue
            content = self._content(change)
            text = _inline(content) if len(content) <= room else None
            if text is None:
                entries.append(entry | {"sha": self._blob(content, change.path)})
            else:
                # One request for many small files: GitHub counts requests, and content above all.
                room -= len(content)
                entries.append(entry | {"content": text})
        body = {"base_tree": base, "tree": entries}
        return self._uploaded("git/trees", body, _sha)

    def _content(self, change: Change) -> bytes:
        content = change.read()
        if len(content) > MOST_BLOB_BYTES:
            size = f"{len(content) // 1_000_000} MB"
            raise Failed(Rejected(f"{display(change.path)} is too large for GitHub's API ({size}; 100 MB at most)"))
        return content

    def _blob(self, content: bytes, path: bytes) -> str:
        body = {"content": base64.b64encode(content).decode("ascii"), "encoding": "base64"}
        try:
            made = self._uploaded("git/blobs", body, _sha)
        except Failed as failed:
            if not isinstance(failed.failure, Rejected) or not path:
                raise
            refusal = Rejected(f"GitHub does not take {display(path)} ({failed.failure.reason})")
        else:
            if made == _blob_id(content):
                return made
            refusal = Rejected(f"GitHub stored {display(path)} as {_short(made)}, which is not its content")
        raise Failed(refusal)

    def _commit(self, plan: Plan) -> str:
        name, mail = plan.author
        # With author, committer and dates given, nothing in the commit is GitHub's own, so that its id is the same.
        who = {
            "name": name,
            "email": mail,
            "date": datetime.fromtimestamp(plan.when, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        body = {
            "message": plan.full_message,
            "tree": plan.tree,
            "parents": [plan.parent],
            "author": who,
            "committer": who,
        }
        made, tree, parents = self._uploaded("git/commits", body, _made)
        if tree != plan.tree or parents != [plan.parent]:
            raise Failed(Rejected(f"GitHub made the commit {_short(made)} with another tree or parent than was given"))
        return made

    def _uploaded(self, what: str, body: dict[str, Any], parse: Callable[[Node], T]) -> T:
        """Send what is stored under a digest of its content, so that twice is once."""

        def send() -> T:
            found = self.github.write("POST", self._path(what), body, needs=NEEDS_CONTENTS)
            return understood(parse, found, is_write=True)

        try:
            return once_more(send, lambda: None, self.wait)
        except Failed as failed:
            if not isinstance(failed.failure, Ambiguous):
                raise
            doubt = failed.failure
        # Nothing refers to it, so whether it was stored makes no difference.
        raise Failed(Unavailable(doubt.reason))

    # Publication.

    def _moved_to(self, plan: Plan, commit: str, target: Target, may_write: MayWrite) -> Applied[str] | Moved:
        branch = target.branch
        if branch == self._default_branch():
            raise Failed(Rejected(f"{branch} is the default branch, to which nothing is pushed"))
        tip = self._tip(branch)
        there = self._published(plan, commit, tip) if tip else None
        if there is not None:
            return Applied(there)
        if tip is None and not target.is_own:
            return Moved(f"{branch} was deleted", None)
        if tip not in (None, plan.parent):
            return Moved(f"{branch} is at {_short(tip or '')}, and no longer at {_short(plan.parent)}", tip)
        try:
            return Applied(
                once_more(
                    lambda: self._set(branch, commit, tip, may_write), lambda: self._look(plan, commit, branch, tip)
                )
            )
        except Failed as failed:
            if not isinstance(failed.failure, Rejected | Absent):
                raise
            refusal = failed.failure
        now = self._tip(branch)
        there = self._published(plan, commit, now) if now else None
        if there is not None:
            return Applied(there)
        if now != tip:
            return Moved(f"{branch} has moved just now ({refusal.reason})", now)
        raise Failed(Unavailable(refusal.reason) if _PASSING.search(refusal.reason) else refusal)

    def _set(self, branch: str, commit: str, tip: str | None, may_write: MayWrite) -> str:
        if tip is None:
            path, body = "git/refs", {"ref": f"refs/heads/{branch}", "sha": commit}
            self.github.write("POST", self._path(path), body, needs=NEEDS_CONTENTS, may_write=may_write)
        else:
            path = f"git/refs/heads/{quote(branch)}"
            self.github.write(
                "PATCH", self._path(path), {"sha": commit, "force": False}, needs=NEEDS_CONTENTS, may_write=may_write
            )
        return commit

    def _look(self, plan: Plan, commit: str, branch: str, tip: str | None) -> str | None:
        """What is published; None where the branch is where it was, and it may be moved once more."""
        now = self._tip(branch)
        there = self._published(plan, commit, now) if now else None
        if there is None and now != tip:
            raise Failed(Rejected(f"{branch} has moved"))
        return there

    def _default_branch(self) -> str:
        found = self.github.read(place_of(self.repository), needs=_NEEDS_READ)
        return understood(lambda node: node.matching("default_branch", _SOME_NAME, "name of a branch"), found)

    def _tip(self, branch: str) -> str | None:
        path = self._path(f"git/ref/heads/{quote(branch)}")
        try:
            return understood(
                lambda node: node.need("object").matching("sha", _ID, "commit id"),
                self.github.read(path, needs=_NEEDS_READ),
            )
        except Failed as failed:
            if isinstance(failed.failure, Absent):
                return None
            raise

    def _published(self, plan: Plan, commit: str | None, tip: str) -> str | None:
        """Which of the commits that `tip` reaches and the parent does not is this one.

        Raises:
            Failed: ambiguous, when none is and one bears the key with another digest.
        """
        if tip in (plan.parent, commit):
            return commit if tip == commit else None
        key, others = plan.key.split(" ")[0], []
        path = self._path(f"compare/{_checked_id(plan.parent)}...{_checked_id(tip)}")
        for found in self._between(path, plan.parent, tip):
            made = understood(_sha, found)
            values = _trailers(understood(lambda node: node.need("commit").text("message"), found))
            if made == commit or plan.key in values:
                return made
            others += [made for value in values if value.split(" ")[0] == key]
        if others:
            raise Failed(Ambiguous(f"{_short(others[0])} bears our key, and the digest of something else"))
        return None

    def _between(self, path: str, parent: str, tip: str) -> Iterator[Any]:
        """The commits of a comparison; none where both are there and have nothing in common."""
        try:
            yield from self.github.pages(path, _NEEDS_READ, item="commits")
        except Failed as failed:
            if not isinstance(failed.failure, Absent):
                raise
            for commit in (parent, tip):
                self._tree_of(commit)

    def _path(self, rest: str) -> str:
        return f"{place_of(self.repository)}/{rest}"


def _sha(node: Node) -> str:
    return node.matching("sha", _ID, "id of an object")


def _made(node: Node) -> tuple[str, str, list[Any]]:
    """Id, tree and parents of a commit."""
    parents = node.data.get("parents")
    listed = parents if isinstance(parents, list) else []
    return _sha(node), _sha(node.need("tree")), [p.get("sha") for p in listed if isinstance(p, dict)]


def _stages(changes: Sequence[Change]) -> list[list[Change]]:
    """All at once, unless a file takes the place of a folder or the other way round: then what goes, goes first."""
    gone = {change.path for change in changes if change.mode is None}
    kept = {change.path for change in changes if change.mode is not None}
    if any(folder in gone for path in kept for folder in _folders(path)) or any(
        folder in kept for path in gone for folder in _folders(path)
    ):
        return [[c for c in changes if c.mode is None], [c for c in changes if c.mode is not None]]
    return [list(changes)]


def _folders(path: bytes) -> list[bytes]:
    parts = path.split(b"/")
    return [b"/".join(parts[:end]) for end in range(1, len(parts))]


def _checked_names(changes: Sequence[Change], may_change_workflows: bool) -> dict[bytes, str]:
    """All of them, or none: half a change is no result.

    Raises:
        Failed: naming each path that cannot go.
    """
    names: dict[bytes, str] = {}
    refused: list[str] = []
    for change in changes:
        try:
            names[change.path] = _checked_name(change.path, may_change_workflows)
        except Failed as failed:
            refused.append(failed.failure.reason)
    if refused:
        more = f"; and {len(refused) - _NAMED_AT_MOST} more" if len(refused) > _NAMED_AT_MOST else ""
        raise Failed(Rejected("; ".join(refused[:_NAMED_AT_MOST]) + more))
    return names


def _checked_name(path: bytes, may_change_workflows: bool) -> str:
    """The path as JSON can carry it.

    Raises:
        Failed: it cannot, no tree may hold it, or it is a workflow file.
    """
    parts = [fold(part) for part in path.split(b"/")]
    if any(part in ("", ".", "..", ".git") for part in parts) or b"\0" in path:
        raise Failed(Rejected(f"{display(path)} cannot be in a commit"))
    if tuple(parts[:2]) == _WORKFLOWS and not may_change_workflows:
        raise Failed(Rejected(f"{display(path)} is a workflow file, which this run may not change"))
    try:
        return path.decode("utf-8")
    except UnicodeDecodeError:
        pass
    raise Failed(Rejected(f"{display(path)} is not UTF-8, and GitHub's API has no other names"))


def _checked_id(commit: str) -> str:
    if not _ID.fullmatch(commit):
        raise Failed(Rejected("a commit is not named by its whole id"))
    return commit


def _inline(content: bytes) -> str | None:
    """The content as text, where JSON carries it unchanged; else it goes as a blob of its own."""
    if len(content) > _INLINE_FILE_BYTES or b"\0" in content:
        return None
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _blob_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _trailers(message: str) -> list[str]:
    """The values of our key in the message's last paragraph."""
    last = message.replace("\r\n", "\n").strip().split("\n\n")[-1]
    lines = (line.partition(":") for line in last.split("\n"))
    return [value.strip() for name, _, value in lines if name.strip().casefold() == KEY_TRAILER.casefold()]


def _short(commit: str) -> str:
    return commit[:12]
