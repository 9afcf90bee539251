"""What GitHub's API answers, in the shapes of its own description: what a test does not care about is filled in."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

Json = dict[str, Any]

BOT = "github-actions[bot]"

_THEN = "2026-01-01T00:00:00Z"

_USER_URLS = (
    *("events", "followers", "following", "gists", "organizations", "received_events"),
    *("repos", "starred", "subscriptions"),
)
_REPOSITORY_URLS = (
    *("archive", "assignees", "blobs", "branches", "collaborators", "comments", "commits", "compare", "contents"),
    *("contributors", "deployments", "downloads", "events", "forks", "git_commits", "git_refs", "git_tags", "hooks"),
    *("issue_comment", "issue_events", "issues", "keys", "labels", "languages", "merges", "milestones"),
    *("notifications", "pulls", "releases", "stargazers", "statuses", "subscribers", "subscription", "tags", "teams"),
    *("trees", "git", "ssh", "clone", "svn"),
)


def number_of(name: str) -> int:
    """A number that belongs to a name, the same every time."""
    return 1000 + sum(ord(c) * (i + 1) for i, c in enumerate(name))


def user(url: str, login: str) -> Json:
    name = quote(login)
    here = f"{url}/users/{name}"
    return {
        "login": login,
        "id": number_of(login),
        "node_id": f"U_{login}",
        "avatar_url": f"{here}/avatar",
        "gravatar_id": "",
        "url": here,
        "html_url": f"{url}/{name}",
        "type": "Bot" if login.endswith("[bot]") else "User",
        "site_admin": False,
    } | {f"{kind}_url": f"{here}/{kind}" for kind in _USER_URLS}


def app(url: str, slug: str) -> Json:
    return {
        "id": number_of(slug),
        "slug": slug,
        "node_id": f"A_{slug}",
        "owner": user(url, "github"),
        "name": slug,
        "description": "",
        "external_url": f"{url}/apps/{slug}",
        "html_url": f"{url}/apps/{slug}",
        "created_at": _THEN,
        "updated_at": _THEN,
        "permissions": {"contents": "write"},
        "events": [],
    }


def repository(url: str, full_name: str, default_branch: str, *, is_fork: bool = False) -> Json:
    owner, name = full_name.split("/")
    here = f"{url}/repos/{full_name}"
    counts = ("forks", "open_issues", "watchers")
    flags = ("downloads", "issues", "projects", "wiki", "pages", "discussions")
    return (
        {f"{kind}_url": f"{here}/{kind}" for kind in _REPOSITORY_URLS}
        | {f"has_{flag}": True for flag in flags}
        | dict.fromkeys((*counts, *(f"{count}_count" for count in counts)), 0)
        | {
            "id": number_of(full_name),
            "node_id": f"R_{full_name}",
            "name": name,
            "full_name": full_name,
            "owner": user(url, owner),
            "private": False,
            "fork": is_fork,
            "url": here,
            "html_url": f"{url}/{full_name}",
            "description": None,
            "homepage": None,
            "language": None,
            "license": None,
            "mirror_url": None,
            "archived": False,
            "disabled": False,
            "default_branch": default_branch,
            "size": 1,
            "stargazers_count": 0,
            "subscribers_count": 0,
            "network_count": 0,
            "pushed_at": _THEN,
            "created_at": _THEN,
            "updated_at": _THEN,
        }
    )


def issue_comment(url: str, repo: str, number: int, comment: Json) -> Json:
    here = f"{url}/repos/{repo}"
    via = comment["app"]
    return {
        "id": comment["id"],
        "node_id": f"IC_{comment['id']}",
        "url": f"{here}/issues/comments/{comment['id']}",
        "html_url": f"{url}/{repo}/pull/{number}#issuecomment-{comment['id']}",
        "issue_url": f"{here}/issues/{number}",
        "user": user(url, comment["login"]) if comment["login"] else None,
        "created_at": _THEN,
        "updated_at": _THEN,
        "author_association": "NONE",
        "body": comment["body"],
        "performed_via_github_app": app(url, via) if via else None,
    }


def review_comment(url: str, repo: str, number: int, comment: Json) -> Json:
    here = f"{url}/repos/{repo}/pulls"
    mine, pull = f"{here}/comments/{comment['id']}", f"{here}/{number}"
    page = f"{url}/{repo}/pull/{number}#discussion_r{comment['id']}"
    answers = {"in_reply_to_id": comment["reply_to"]} if comment["reply_to"] else {}
    return answers | {
        "id": comment["id"],
        "node_id": f"RC_{comment['id']}",
        "url": mine,
        "html_url": page,
        "pull_request_url": pull,
        "pull_request_review_id": 1,
        "diff_hunk": "@@ -1 +1 @@",
        "path": "README.md",
        "commit_id": "0" * 40,
        "original_commit_id": "0" * 40,
        "user": user(url, comment["login"]),
        "body": comment["body"],
        "created_at": _THEN,
        "updated_at": _THEN,
        "author_association": "NONE",
        "_links": {"self": {"href": mine}, "html": {"href": page}, "pull_request": {"href": pull}},
    }


def reaction(url: str, number: int, login: str, content: str) -> Json:
    return {
        "id": number,
        "node_id": f"RE_{number}",
        "user": user(url, login),
        "content": content,
        "created_at": _THEN,
    }


def pull_request(url: str, repo: Json, number: int, pull: Json) -> Json:
    """`pull`: state, merged, head and base, each a (sha, ref, repository or None)."""
    here, page = f"{repo['url']}/pulls/{number}", f"{repo['html_url']}/pull/{number}"
    issue = f"{repo['url']}/issues/{number}"
    links = {
        "comments": f"{issue}/comments",
        "commits": f"{here}/commits",
        "statuses": f"{repo['url']}/statuses/{pull['head'][0]}",
        "html": page,
        "issue": issue,
        "review_comments": f"{here}/comments",
        "review_comment": f"{repo['url']}/pulls/comments{{/number}}",
        "self": here,
    }

    def side(name: str) -> Json:
        sha, ref, place = pull[name]
        owner = place["owner"] if place else user(url, "ghost")
        return {"label": f"{owner['login']}:{ref}", "ref": ref, "sha": sha, "user": owner, "repo": place}

    named = ("comments", "commits", "statuses", "review_comments", "review_comment")
    return (
        {f"{name}_url": links[name] for name in named}
        | {
            "_links": {name: {"href": href} for name, href in links.items()},
            "id": number_of(page),
            "node_id": "PR_1",
            "number": number,
            "url": here,
            "html_url": page,
            "issue_url": issue,
            "diff_url": f"{page}.diff",
            "patch_url": f"{page}.patch",
            "state": pull["state"],
            "merged": pull["merged"],
            "locked": pull["locked"],
            "title": "A change",
            "body": "What it is for.",
            "user": user(url, "alice"),
            "author_association": "MEMBER",
            "head": side("head"),
            "base": side("base"),
            "labels": [],
            "assignee": None,
            "milestone": None,
            "auto_merge": None,
            "merge_commit_sha": None,
            "merged_by": None,
            "merged_at": _THEN if pull["merged"] else None,
            "closed_at": None if pull["state"] == "open" else _THEN,
            "created_at": _THEN,
            "updated_at": _THEN,
            "mergeable": None,
            "mergeable_state": "unknown",
            "maintainer_can_modify": False,
        }
        | dict.fromkeys(("additions", "changed_files", "comments", "commits", "deletions", "review_comments"), 0)
    )


def run(url: str, repo: Json, run_id: int, told: Json) -> Json:
    """`told`: attempt, status, conclusion."""
    here = f"{repo['url']}/actions/runs/{run_id}"
    urls = {f"{name}_url": f"{here}/{name}" for name in ("jobs", "logs", "check_suite", "cancel", "rerun", "artifacts")}
    return urls | {
        "id": run_id,
        "node_id": f"WR_{run_id}",
        "name": "agent",
        "display_title": "A change",
        "head_branch": "change",
        "head_sha": "0" * 40,
        "path": ".github/workflows/agent.yml",
        "run_number": 1,
        "run_attempt": told["attempt"],
        "event": "pull_request",
        "status": told["status"],
        "conclusion": told["conclusion"],
        "workflow_id": 1,
        "workflow_url": f"{repo['url']}/actions/workflows/1",
        "url": here,
        "html_url": f"{repo['html_url']}/actions/runs/{run_id}",
        "created_at": _THEN,
        "updated_at": _THEN,
        "run_started_at": _THEN,
        "head_commit": None,
        "repository": repo,
        "head_repository": repo,
        "pull_requests": [],
    }


def job(repo: Json, run_id: int, told: Json) -> Json:
    """`told`: id, name, attempt, status, conclusion, steps."""
    here = f"{repo['url']}/actions/jobs/{told['id']}"
    return {
        "id": told["id"],
        "node_id": f"J_{told['id']}",
        "run_id": run_id,
        "run_url": f"{repo['url']}/actions/runs/{run_id}",
        "run_attempt": told["attempt"],
        "head_sha": "0" * 40,
        "head_branch": "change",
        "workflow_name": "agent",
        "name": told["name"],
        "url": here,
        "html_url": f"{repo['html_url']}/actions/runs/{run_id}/job/{told['id']}",
        "check_run_url": f"{repo['url']}/check-runs/{told['id']}",
        "status": told["status"],
        "conclusion": told["conclusion"],
        "created_at": _THEN,
        "started_at": _THEN,
        "completed_at": None if told["status"] != "completed" else _THEN,
        "labels": ["ubuntu-latest"],
        "runner_id": 1,
        "runner_name": "a runner",
        "runner_group_id": 1,
        "runner_group_name": "Default",
        "steps": told["steps"],
    }


def annotation(repo: Json, message: str, level: str = "failure") -> Json:
    return {
        "path": ".github",
        "blob_href": f"{repo['html_url']}/blob/0/.github",
        "start_line": 1,
        "end_line": 1,
        "start_column": None,
        "end_column": None,
        "annotation_level": level,
        "title": "",
        "message": message,
        "raw_details": "",
    }


def git_commit(repo: Json, sha: str, told: Json) -> Json:
    """`told`: tree, parents, author, committer, message."""
    here = f"{repo['url']}/git"
    return {
        "sha": sha,
        "node_id": f"C_{sha}",
        "url": f"{here}/commits/{sha}",
        "html_url": f"{repo['html_url']}/commit/{sha}",
        "author": told["author"],
        "committer": told["committer"],
        "message": told["message"],
        "tree": {"sha": told["tree"], "url": f"{here}/trees/{told['tree']}"},
        "parents": [_parent(repo, parent) for parent in told["parents"]],
        "verification": _unsigned(),
    }


def commit(repo: Json, sha: str, told: Json) -> Json:
    here = f"{repo['url']}/commits/{sha}"
    return {
        "sha": sha,
        "node_id": f"C_{sha}",
        "url": here,
        "html_url": f"{repo['html_url']}/commit/{sha}",
        "comments_url": f"{here}/comments",
        "commit": {
            "url": f"{repo['url']}/git/commits/{sha}",
            "author": told["author"],
            "committer": told["committer"],
            "message": told["message"],
            "comment_count": 0,
            "tree": {"sha": told["tree"], "url": f"{repo['url']}/git/trees/{told['tree']}"},
            "verification": _unsigned(),
        },
        "author": None,
        "committer": None,
        "parents": [_parent(repo, parent) for parent in told["parents"]],
    }


def comparison(repo: Json, between: tuple[Json, Json], ahead: int, behind: int, commits: list[Json]) -> Json:
    """`between`: the commit that is compared with, and the one at which the two part."""
    page = f"{repo['html_url']}/compare"
    status = {(True, True): "diverged", (True, False): "ahead", (False, True): "behind", (False, False): "identical"}
    return {
        "url": f"{repo['url']}/compare",
        "html_url": page,
        "permalink_url": page,
        "diff_url": f"{page}.diff",
        "patch_url": f"{page}.patch",
        "base_commit": between[0],
        "merge_base_commit": between[1],
        "status": status[ahead > 0, behind > 0],
        "ahead_by": ahead,
        "behind_by": behind,
        "total_commits": ahead,
        "commits": commits,
        "files": [],
    }


def ref(repo: Json, name: str, sha: str) -> Json:
    return {
        "ref": name,
        "node_id": f"REF_{name}",
        "url": f"{repo['url']}/git/{name}",
        "object": {"type": "commit", "sha": sha, "url": f"{repo['url']}/git/commits/{sha}"},
    }


def _parent(repo: Json, sha: str) -> Json:
    return {
        "sha": sha,
        "url": f"{repo['url']}/git/commits/{sha}",
        "html_url": f"{repo['html_url']}/commit/{sha}",
    }


def _unsigned() -> Json:
    return {"verified": False, "reason": "unsigned", "signature": None, "payload": None, "verified_at": None}
