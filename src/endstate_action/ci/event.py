"""What started the job, as values: the payload and the variables of the runner, parsed at the door.

Titles, bodies, names of refs and logins are what others wrote; they are data and nothing else. Ids,
numbers and commit ids have been checked. An event that is not known here has its name, its actor
and its run, and no more.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from endstate_action.ci.payload import Node, parse_object, refused
from endstate_action.config import parse_base_url
from endstate_action.config.text import quoted
from endstate_action.errors import InputError

MAX_PAYLOAD_BYTES = 32 * 1024 * 1024
"""GitHub sends at most 25 MB."""

OWN_MARKER = "<!-- endstate:"
"""How each comment of ours begins, unseen."""

CommentKind = Literal["comment", "review-comment", "review"]

_COMMENT_EVENTS: Mapping[str, tuple[CommentKind, str]] = {
    "issue_comment": ("comment", "comment"),
    "pull_request_review_comment": ("review-comment", "comment"),
    "pull_request_review": ("review", "review"),
}
_ANCHORS: Mapping[CommentKind, str] = {
    "comment": "issuecomment-",
    "review-comment": "discussion_r",
    "review": "pullrequestreview-",
}
_BRANCHES = "refs/heads/"
_QUEUE = f"{_BRANCHES}gh-readonly-queue/"
"""A merge queue's, which are gone once it has merged."""
_PULL_REQUEST_EVENTS = ("pull_request", "pull_request_target", "pull_request_review", "pull_request_review_comment")
_ISSUE_EVENTS = ("issues", "issue_comment")

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_FULL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}/[A-Za-z0-9_.-]{1,100}")
_LOGIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}(\[bot\])?")
_NUMBER = re.compile(r"[1-9][0-9]{0,17}")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,200}")


@dataclass(frozen=True, slots=True)
class Actor:
    """Somebody who has an account: a person, or an app."""

    login: str
    is_bot: bool = False

    @property
    def key(self) -> str:
        """For comparing: GitHub's logins have no case."""
        return self.login.casefold()


@dataclass(frozen=True, slots=True)
class Repository:
    full_name: str
    id: int | None = None
    """None where only its name is known, as under act."""
    default_branch: str = ""


@dataclass(frozen=True, slots=True)
class PullRequest:
    number: int
    title: str
    body: str
    author: Actor | None
    """None where the account is gone."""
    association: str
    head_sha: str
    head_ref: str
    head_repository: str | None
    """None where it was deleted."""
    base_sha: str
    base_ref: str
    is_fork: bool


@dataclass(frozen=True, slots=True)
class Issue:
    """An issue, or a pull request as the event of a comment on it shows it."""

    number: int
    title: str
    body: str
    author: Actor | None
    association: str
    is_pull_request: bool


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment, a comment on a line of a diff, or what a review says in all."""

    kind: CommentKind
    id: int
    author: Actor | None
    association: str
    body: str
    path: str = ""
    line: int | None = None
    diff_hunk: str = ""

    @property
    def is_ours(self) -> bool:
        return self.body.lstrip().startswith(OWN_MARKER)


@dataclass(frozen=True, slots=True)
class Run:
    """The job that we are a step of. Names are as the runner gives them."""

    id: int
    attempt: int
    workflow_ref: str
    """Of the workflow that was triggered; in a reusable workflow it is the caller's."""
    job: str
    """The job's id in its file; in a reusable workflow it is the called job's."""
    step: str
    """The step's id, else the name of the action behind two underscores, numbered from the second use on."""
    sha: str
    ref: str
    server_url: str
    api_url: str


@dataclass(frozen=True, slots=True)
class Event:
    name: str
    action: str
    """What happened to the subject: `opened`, `created`, `labeled`; `""` for events that have none."""
    repository: Repository
    actor: Actor
    """Who started the run. A re-run keeps it, whoever asked for the re-run."""
    run: Run
    pull_request: PullRequest | None = None
    """None also for a comment, whose payload has the number alone: see `pull_request_number`."""
    issue: Issue | None = None
    comment: Comment | None = None
    label: str = ""
    is_fork: bool | None = False
    """Whether the code is of another repository; None: it is not in the payload, and must be asked for."""

    @property
    def number(self) -> int | None:
        """Of the pull request or issue; GitHub numbers them together."""
        subject = self.pull_request or self.issue
        return subject.number if subject else None

    @property
    def repository_url(self) -> str:
        """Where a person finds the repository."""
        return f"{self.run.server_url}/{self.repository.full_name}"

    @property
    def run_url(self) -> str:
        return f"{self.repository_url}/actions/runs/{self.run.id}"

    @property
    def asked_in(self) -> str | None:
        """The address of the comment that asked for the run."""
        if self.comment is None:
            return None
        place = "issues" if self.pull_request_number is None else "pull"
        return f"{self.repository_url}/{place}/{self.number}#{_ANCHORS[self.comment.kind]}{self.comment.id}"

    @property
    def branch(self) -> str | None:
        """What a result of this run is to be merged into; None where that is no branch of this repository, or where
        the payload does not tell."""
        if self.pull_request is not None:
            return None if self.pull_request.is_fork else self.pull_request.head_ref
        lasts = self.run.ref.startswith(_BRANCHES) and not self.run.ref.startswith(_QUEUE)
        return self.run.ref.removeprefix(_BRANCHES) if lasts and self.pull_request_number is None else None

    @property
    def pull_request_number(self) -> int | None:
        if self.pull_request is not None:
            return self.pull_request.number
        return self.issue.number if self.issue is not None and self.issue.is_pull_request else None


def read_event(environ: Mapping[str, str]) -> Event:
    """The event of this job, from its environment and the file that this names.

    Raises:
        InputError: naming the variable or the place in the payload that is not what it should be.
    """
    return parse_event(environ, _payload(_variable(environ, "GITHUB_EVENT_PATH")))


def parse_event(environ: Mapping[str, str], payload: bytes) -> Event:
    """`read_event`, with the payload in hand."""
    root = parse_object(payload, "the payload")
    name = _variable(environ, "GITHUB_EVENT_NAME", _NAME, "name of an event")
    pull_request = _pull_request(root.need("pull_request")) if name in _PULL_REQUEST_EVENTS else None
    issue = _issue(root.need("issue")) if name in _ISSUE_EVENTS else None
    label = root.child("label")
    return Event(
        name=name,
        action=root.text("action"),
        repository=_repository(environ, root),
        actor=_actor(environ, root),
        run=_run(environ),
        pull_request=pull_request,
        issue=issue,
        comment=_comment_of(root, name),
        label=label.text("name") if label else "",
        is_fork=_is_fork(root, pull_request, issue),
    )


def parse_pull_request(answer: Mapping[str, Any]) -> PullRequest:
    """A pull request as GitHub's API answers it, which is the shape that it has in a payload.

    Raises:
        InputError: naming the place that is not what it should be.
    """
    return _pull_request(Node(answer, "pull_request"))


def parse_comment(answer: Mapping[str, Any], kind: CommentKind) -> Comment:
    """A comment or review as GitHub's API answers it.

    Raises:
        InputError: naming the place that is not what it should be.
    """
    return _comment(Node(answer, kind), kind)


def _payload(path: str) -> bytes:
    try:
        with open(path, "rb", opener=lambda name, how: os.open(name, how | os.O_NONBLOCK)) as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise refused("GITHUB_EVENT_PATH", "names no plain file")
            data = stream.read(MAX_PAYLOAD_BYTES + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a name of a file"
        raise refused("the file that GITHUB_EVENT_PATH names", f"cannot be read ({why})") from None
    if len(data) > MAX_PAYLOAD_BYTES:
        raise refused("the payload", f"is longer than {MAX_PAYLOAD_BYTES:,} bytes")
    return data


def _variable(environ: Mapping[str, str], name: str, pattern: re.Pattern[str] | None = None, what: str = "") -> str:
    value = environ.get(name, "")
    if not value:
        raise InputError(
            f"{name} is not set, so nothing was run.",
            hint="This command is for a step of a workflow; on the command line it is `endstate run`.",
        )
    if pattern is not None and not pattern.fullmatch(value):
        raise InputError(
            f"{name}: {quoted(value)} is no {what}, so nothing was run.",
            hint=f"The runner sets {name}: see that no step, `env:` or --env changes it.",
        )
    return value


def _repository(environ: Mapping[str, str], root: Node) -> Repository:
    """The variables count: the payload of a re-run is as old as the run, and the name may have changed since."""
    told = root.child("repository")
    known = environ.get("GITHUB_REPOSITORY_ID", "")
    return Repository(
        _variable(environ, "GITHUB_REPOSITORY", _FULL_NAME, "name of a repository"),
        int(known) if _NUMBER.fullmatch(known) else told.optional_number("id") if told else None,
        told.text("default_branch") if told else "",
    )


def _actor(environ: Mapping[str, str], root: Node) -> Actor:
    login = _variable(environ, "GITHUB_ACTOR", _LOGIN, "login")
    sender = root.child("sender")
    told = _account(sender) if sender else None
    if told is not None and told.key == login.casefold():
        return told
    return Actor(login, is_bot=login.endswith("[bot]"))


def _account(user: Node) -> Actor:
    login = user.matching("login", _LOGIN, "login")
    return Actor(login, is_bot=user.text("type") == "Bot" or login.endswith("[bot]"))


def _author(node: Node) -> Actor | None:
    user = node.child("user")
    return _account(user) if user else None


def _run(environ: Mapping[str, str]) -> Run:
    sha = environ.get("GITHUB_SHA", "")
    if sha and not _COMMIT.fullmatch(sha):
        raise refused("GITHUB_SHA", "is no commit id", sha)
    return Run(
        id=int(_variable(environ, "GITHUB_RUN_ID", _NUMBER, "number")),
        attempt=int(_variable({"GITHUB_RUN_ATTEMPT": "1"} | dict(environ), "GITHUB_RUN_ATTEMPT", _NUMBER, "number")),
        workflow_ref=environ.get("GITHUB_WORKFLOW_REF", ""),
        job=environ.get("GITHUB_JOB", ""),
        step=environ.get("GITHUB_ACTION", ""),
        sha=sha,
        ref=environ.get("GITHUB_REF", ""),
        server_url=parse_base_url("GITHUB_SERVER_URL", environ.get("GITHUB_SERVER_URL") or "https://github.com"),
        api_url=parse_base_url("GITHUB_API_URL", environ.get("GITHUB_API_URL") or "https://api.github.com"),
    )


def _pull_request(node: Node) -> PullRequest:
    head, base = node.need("head"), node.need("base")
    return PullRequest(
        number=node.number("number"),
        title=node.text("title"),
        body=node.text("body"),
        author=_author(node),
        association=node.text("author_association"),
        head_sha=head.matching("sha", _COMMIT, "commit id"),
        head_ref=head.text("ref"),
        head_repository=_full_name(head),
        base_sha=base.matching("sha", _COMMIT, "commit id"),
        base_ref=base.text("ref"),
        is_fork=_identity(head.child("repo")) != _identity(base.need("repo")),
    )


def _full_name(head: Node) -> str | None:
    repository = head.child("repo")
    return repository.matching("full_name", _FULL_NAME, "name of a repository") if repository else None


def _identity(repository: Node | None) -> str:
    """One that was deleted is not ours, whichever it was."""
    if repository is None:
        return ""
    number = repository.optional_number("id")
    return str(number) if number else repository.matching("full_name", _FULL_NAME, "name of a repository").casefold()


def _issue(node: Node) -> Issue:
    return Issue(
        number=node.number("number"),
        title=node.text("title"),
        body=node.text("body"),
        author=_author(node),
        association=node.text("author_association"),
        is_pull_request=node.has("pull_request"),
    )


def _comment_of(root: Node, event: str) -> Comment | None:
    if event not in _COMMENT_EVENTS:
        return None
    kind, place = _COMMENT_EVENTS[event]
    return _comment(root.need(place), kind)


def _comment(node: Node, kind: CommentKind) -> Comment:
    return Comment(
        kind=kind,
        id=node.number("id"),
        author=_author(node),
        association=node.text("author_association"),
        body=node.text("body"),
        path=node.text("path"),
        # A comment on a line that is gone has the line it had.
        line=node.optional_number("line") or node.optional_number("original_line"),
        diff_hunk=node.text("diff_hunk"),
    )


def _is_fork(root: Node, pull_request: PullRequest | None, issue: Issue | None) -> bool | None:
    if pull_request is not None:
        return pull_request.is_fork
    if issue is not None:
        return None if issue.is_pull_request else False
    # `workflow_run` runs with our secrets whoever's code the run before it was of.
    before = root.child("workflow_run")
    return before is not None and _identity(before.child("head_repository")) != _identity(root.need("repository"))
