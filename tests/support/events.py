"""Event payloads in the shape that the platform sends, cut down to what may matter."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

REPOSITORY: Json = {
    "id": 71234567,
    "full_name": "org/repo",
    "name": "repo",
    "owner": {"login": "org", "type": "Organization"},
    "default_branch": "main",
    "fork": False,
}
FORK: Json = {
    "id": 79999999,
    "full_name": "stranger/repo",
    "name": "repo",
    "owner": {"login": "stranger"},
    "fork": True,
}


def user(login: str = "ada", kind: str = "User") -> Json:
    return {"login": login, "id": 1, "type": kind}


def _event(sender: Json | None = None, **more: Any) -> Json:
    return {"repository": REPOSITORY, "organization": {"login": "org"}, "sender": sender or user(), **more}


def pull(head: Json | None = REPOSITORY, author: str = "ada") -> Json:
    return {
        "number": 7,
        "state": "open",
        "title": "Add a parser",
        "body": "It parses.",
        "user": user(author),
        "author_association": "MEMBER",
        "head": {"ref": "topic", "sha": "1" * 40, "label": "org:topic", "repo": head},
        "base": {"ref": "main", "sha": "2" * 40, "label": "org:main", "repo": REPOSITORY},
    }


def pull_request(action: str = "opened", head: Json | None = REPOSITORY, sender: Json | None = None) -> Json:
    return _event(sender, action=action, number=7, pull_request=pull(head))


def labelled() -> Json:
    return pull_request("labeled") | {"label": {"id": 5, "name": "endstate", "color": "ededed"}}


def issue_comment(
    body: str | None, *, on_pull: bool = True, action: str = "created", sender: Json | None = None
) -> Json:
    issue: Json = {"number": 7, "title": "Add a parser", "body": "It parses.", "user": user(), "state": "open"}
    if on_pull:
        issue["pull_request"] = {"url": "https://api.example.invalid/repos/org/repo/pulls/7"}
    comment = {"id": 99, "body": body, "user": sender or user(), "author_association": "MEMBER"}
    return _event(sender, action=action, issue=issue, comment=comment)


def review_comment(body: str, head: Json | None = REPOSITORY) -> Json:
    comment = {"id": 98, "body": body, "path": "a.py", "line": 3, "diff_hunk": "@@ -1 +1 @@", "user": user()}
    return _event(action="created", pull_request=pull(head), comment=comment)


def review(body: str | None, action: str = "submitted") -> Json:
    said = {"id": 97, "body": body, "state": "commented", "user": user(), "author_association": "MEMBER"}
    return _event(action=action, pull_request=pull(), review=said)


def workflow_dispatch() -> Json:
    return _event(inputs={"task": "Update the changelog"}, ref="refs/heads/main", workflow=".github/workflows/d.yml")


def schedule() -> Json:
    return {"schedule": "0 4 * * 1", "repository": REPOSITORY, "workflow": ".github/workflows/s.yml"}


def push() -> Json:
    return _event(ref="refs/heads/main", before="1" * 40, after="2" * 40, commits=[], head_commit=None)


def merge_group() -> Json:
    group = {"head_sha": "3" * 40, "head_ref": "refs/heads/gh-readonly-queue/main/pr-7-" + "2" * 40, "base_ref": "main"}
    return _event(action="checks_requested", merge_group=group)


def workflow_run(head: Json = REPOSITORY) -> Json:
    run = {"id": 4242, "name": "tests", "conclusion": "success", "run_attempt": 1, "head_repository": head}
    return _event(action="completed", workflow_run=run, workflow={"name": "tests"})
