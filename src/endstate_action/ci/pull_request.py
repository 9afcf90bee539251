"""A pull request as we read it and speak on it: what we say there stands there once.

A comment of ours is known by a predicate of the caller's, over its text and its author, so that a stranger who quotes
our marker is left alone. It is looked for on all pages before one is posted. A post whose answer is lost is looked
for and sent at most one more time; a comment that came twice all the same is one again at the next look.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote

from endstate_action.ci.event import PullRequest, parse_pull_request
from endstate_action.ci.github import GitHub, MayWrite
from endstate_action.ci.outcome import Absent, Failed, Outcome, once_more, told, understood
from endstate_action.ci.payload import Node
from endstate_action.ci.trust import Level, permission_level
from endstate_action.errors import InputError

NEEDS_COMMENTS = "pull-requests: write"
_NEEDS_PULLS = "pull-requests: read"
_NEEDS_ACTIONS = "actions: read"
_NEEDS_NOTHING = "metadata: read"

Reaction = Literal["+1", "-1", "laugh", "confused", "heart", "hooray", "rocket", "eyes"]

_REPOSITORY = re.compile(r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True)
class Author:
    login: str
    is_bot: bool
    """Whether it is the account of an app, which `github-actions[bot]` is as well."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who we are to GitHub; `login` is None where it would not say."""

    login: str | None

    def wrote(self, author: Author) -> bool:
        """Whether it is us. Where that is not known, any app may be: a person never is, whatever he quotes.

        A name alone proves nothing, since people may be called as a bot is without its `[bot]`.
        """
        if self.login is None:
            return author.is_bot
        is_bot = self.login.endswith("[bot]")
        return is_bot == author.is_bot and _plain(self.login) == _plain(author.login)


@dataclass(frozen=True, slots=True)
class PostedComment:
    id: int
    body: str
    author: Author
    url: str
    """For people."""


IsOurs = Callable[[str, Author], bool]


@dataclass(frozen=True, slots=True)
class PullRequestNow:
    """A pull request as it is now, which may differ from what the event says of it."""

    pull_request: PullRequest
    is_open: bool
    is_merged: bool


@dataclass(frozen=True, slots=True)
class RunNow:
    attempt: int
    """GitHub's own count of attempts, from 1; above ours, somebody has started the run again."""
    status: str
    conclusion: str | None


@dataclass(frozen=True, slots=True)
class Sticky:
    comment: PostedComment
    was: Literal["created", "recreated", "edited", "unchanged"]
    removed: tuple[int, ...] = ()
    """The ids of duplicates that are gone now."""
    left: tuple[int, ...] = ()
    """The ids of duplicates that could not be removed; the next look tries again."""


def viewer_of(github: GitHub) -> Viewer:
    return Viewer(github.viewer())


def read_pull_request(github: GitHub, repository: str, number: int) -> Outcome[PullRequestNow]:
    path = f"{place_of(repository)}/pulls/{number}"
    return told(lambda: understood(_pull_request, github.read(path, needs=_NEEDS_PULLS)))


def permission_of(github: GitHub, repository: str, login: str) -> Outcome[Level]:
    """What an account may do here; absent for a name that nobody has."""
    path = f"{place_of(repository)}/collaborators/{quote(login, safe='')}/permission"
    return told(lambda: understood(_level, github.read(path, needs=_NEEDS_NOTHING)))


def read_run(github: GitHub, repository: str, run_id: int) -> Outcome[RunNow]:
    path = f"{place_of(repository)}/actions/runs/{run_id}"
    return told(lambda: understood(_run, github.read(path, needs=_NEEDS_ACTIONS)))


@dataclass(frozen=True, slots=True)
class Conversation:
    """The comments of one pull request.

    Every write asks `may_write` just before it is sent; once that says no the outcome is `TooLate`, or what is known
    of an earlier write of the same task.
    """

    github: GitHub
    repository: str
    number: int
    wait: Callable[[float], None] = time.sleep

    def comments(self) -> Outcome[tuple[PostedComment, ...]]:
        """Those under the pull request, oldest first, over all pages."""
        return told(lambda: tuple(self._listed(f"issues/{self.number}/comments")))

    def find(self, is_ours: IsOurs) -> Outcome[PostedComment]:
        """The first of ours, absent when there is none: a probe."""
        return told(lambda: self._first_of(f"issues/{self.number}/comments", is_ours))

    def post(self, body: str, is_ours: IsOurs, may_write: MayWrite) -> Outcome[PostedComment]:
        """A comment that is never changed: the one that is there already, else a new one."""
        listing = f"issues/{self.number}/comments"
        return told(lambda: self._seen(listing, is_ours) or self._posted(listing, body, is_ours, may_write))

    def stick(
        self, body: str, is_ours: IsOurs, may_write: MayWrite, *, known: int | None = None, may_recreate: bool = True
    ) -> Outcome[Sticky]:
        """Our one comment says `body`: the first that is ours is edited, others of ours go, none is posted.

        Args:
            known: the id under which it was posted before. It is ours whatever people have made of its text; if it
                is gone, somebody has deleted it.
            may_recreate: whether a deleted one is posted again. Say so once: who deletes it twice means it.
        """
        return told(lambda: self._stuck(body, is_ours, may_write, known, may_recreate=may_recreate))

    def edit(self, comment: int, body: str, may_write: MayWrite) -> Outcome[PostedComment]:
        """One request where all goes well, for signs of life. Absent when somebody has deleted it."""
        return told(lambda: self._edited(comment, body, may_write))

    def react(
        self, comment: int, content: Reaction, may_write: MayWrite, *, is_review_comment: bool = False
    ) -> Outcome[None]:
        """A reaction to somebody's comment. GitHub keeps one of a kind and author, so it may be sent twice."""
        kind = "pulls" if is_review_comment else "issues"
        path = self._path(f"{kind}/comments/{comment}/reactions")

        def send() -> None:
            self.github.write("POST", path, {"content": content}, needs=NEEDS_COMMENTS, may_write=may_write)

        return told(lambda: once_more(send, lambda: None, self.wait))

    def _stuck(
        self, body: str, is_ours: IsOurs, may_write: MayWrite, known: int | None, *, may_recreate: bool
    ) -> Sticky:
        listing = f"issues/{self.number}/comments"
        ours = [c for c in self._listed(listing) if c.id == known or is_ours(c.body, c.author)]
        for found in ours:
            kept = found if _is_same(found.body, body) else self._edited_unless_gone(found.id, body, may_write)
            if kept is not None:
                removed, left = self._without([c.id for c in ours if c.id != kept.id], may_write)
                return Sticky(kept, "unchanged" if kept is found else "edited", removed, left)
        was_deleted = known is not None or bool(ours)
        if was_deleted and not may_recreate:
            raise Failed(Absent("our comment was deleted again after it had been posted anew; it stays deleted"))
        comment = self._posted(listing, body, is_ours, may_write)
        return Sticky(comment, "recreated" if was_deleted else "created")

    def _edited_unless_gone(self, comment: int, body: str, may_write: MayWrite) -> PostedComment | None:
        try:
            return self._edited(comment, body, may_write)
        except Failed as failed:
            if isinstance(failed.failure, Absent):
                return None
            raise

    def _edited(self, comment: int, body: str, may_write: MayWrite) -> PostedComment:
        path = self._path(f"issues/comments/{comment}")

        def send() -> PostedComment:
            found = self.github.write("PATCH", path, {"body": body}, needs=NEEDS_COMMENTS, may_write=may_write)
            return understood(_comment, found, is_write=True)

        def look() -> PostedComment | None:
            found = understood(_comment, self.github.read(path, needs=_NEEDS_PULLS))
            return found if _is_same(found.body, body) else None

        return once_more(send, look, self.wait)

    def _posted(self, listing: str, body: str, is_ours: IsOurs, may_write: MayWrite) -> PostedComment:
        def send() -> PostedComment:
            path = self._path(listing)
            found = self.github.write("POST", path, {"body": body}, needs=NEEDS_COMMENTS, may_write=may_write)
            return understood(_comment, found, is_write=True)

        return once_more(send, lambda: self._seen(listing, is_ours), self.wait)

    def _without(self, comments: list[int], may_write: MayWrite) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Remove them; (those that are gone, those that may be there still). What we have to say is said already."""
        gone = tuple(comment for comment in comments if self._is_removed(comment, may_write))
        return gone, tuple(comment for comment in comments if comment not in gone)

    def _is_removed(self, comment: int, may_write: MayWrite) -> bool:
        try:
            self.github.write(
                "DELETE", self._path(f"issues/comments/{comment}"), needs=NEEDS_COMMENTS, may_write=may_write
            )
        except Failed as failed:
            return isinstance(failed.failure, Absent)
        return True

    def _first_of(self, listing: str, is_ours: IsOurs) -> PostedComment:
        found = self._seen(listing, is_ours)
        if found is None:
            raise Failed(Absent("none of the comments is ours"))
        return found

    def _seen(self, listing: str, is_ours: IsOurs) -> PostedComment | None:
        # Looked at to the end even when found early: half a list is no ground for an answer.
        return next((c for c in tuple(self._listed(listing)) if is_ours(c.body, c.author)), None)

    def _listed(self, listing: str) -> Iterator[PostedComment]:
        for found in self.github.pages(self._path(listing), _NEEDS_PULLS):
            yield understood(_comment, found)

    def _path(self, rest: str) -> str:
        return f"{place_of(self.repository)}/{rest}"


def place_of(repository: str) -> str:
    """Where a repository's things are.

    Raises:
        InputError: no repository has such a name.
    """
    if not _REPOSITORY.fullmatch(repository) or any(set(part) <= {"."} for part in repository.split("/")):
        raise InputError(
            "GitHub was not asked: the repository is not named as OWNER/NAME.",
            hint="Set GITHUB_REPOSITORY to the repository's name, as the runner does.",
        )
    return f"/repos/{repository}"


def _comment(node: Node) -> PostedComment:
    return PostedComment(
        node.number("id"),
        node.text("body"),
        _author(node),
        node.text("html_url"),
    )


def _author(node: Node) -> Author:
    # The author of an account that is gone is null: nobody, and so not us.
    user = node.child("user")
    login, kind = (user.text("login"), user.text("type")) if user else ("", "")
    return Author(login, kind == "Bot")


def _pull_request(node: Node) -> PullRequestNow:
    return PullRequestNow(parse_pull_request(node.data), node.text("state") == "open", node.data.get("merged") is True)


def _level(node: Node) -> Level:
    return permission_level(node.text("permission"), node.text("role_name"))


def _run(node: Node) -> RunNow:
    return RunNow(node.number("run_attempt"), node.text("status"), node.text("conclusion") or None)


def _is_same(there: str, body: str) -> bool:
    """Whether a comment says it: forms on the web end lines as mail does, and drop space at the end."""
    return "\n".join(there.splitlines()).rstrip() == "\n".join(body.splitlines()).rstrip()


def _plain(login: str) -> str:
    return login.removesuffix("[bot]").casefold()
