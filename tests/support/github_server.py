"""A GitHub on loopback that keeps what it is told, with a real repository behind its Git data API.

    with GitHubServer(bare_repository) as github:
        github.fault("comment.create", "applied-502")
        ...  # point a client at github.url
    assert [c["body"] for c in github.comments] == ["..."]

It shares no code with the product. Beside other programs it runs as
`python -m tests.support.github_server --git DIR --port N`: `GET /_test/state` then tells what it has, and
`POST /_test/do` calls one of the methods below: `{"do": "fault", "arguments": ["comment.create", "drop-after"]}`.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import calendar
import json
import os
import re
import ssl
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support import github_shapes as shapes
from tests.support.github_shapes import BOT, Json
from tests.support.repos import Repo

TOKEN = "ghs_test_0123456789"
LONGEST_BODY = 65_536
STALL_S = 30

_ID = r"[0-9]+"
_SHA = r"[0-9a-f]{40}"

ROUTES: tuple[tuple[str, str, str], ...] = (
    ("POST", r"/graphql", "viewer"),
    ("GET", r"/R", "repository.read"),
    ("GET", r"/R/pulls/(?P<number>ID)", "pull.read"),
    ("GET", r"/R/issues/(?P<number>ID)/comments", "comment.list"),
    ("POST", r"/R/issues/(?P<number>ID)/comments", "comment.create"),
    ("GET", r"/R/issues/comments/(?P<id>ID)", "comment.read"),
    ("PATCH", r"/R/issues/comments/(?P<id>ID)", "comment.edit"),
    ("DELETE", r"/R/issues/comments/(?P<id>ID)", "comment.delete"),
    ("POST", r"/R/(?P<kind>issues|pulls)/comments/(?P<id>ID)/reactions", "reaction.create"),
    ("GET", r"/R/(?P<kind>issues|pulls)/comments/(?P<id>ID)/reactions", "reaction.list"),
    ("GET", r"/R/pulls/(?P<number>ID)/comments", "review.list"),
    ("GET", r"/R/collaborators/(?P<login>[^/]+)/permission", "permission.read"),
    ("GET", r"/R/actions/runs/(?P<id>ID)", "run.read"),
    ("GET", r"/R/actions/runs/(?P<id>ID)/attempts/(?P<attempt>ID)", "run.attempt"),
    ("GET", r"/R/actions/runs/(?P<id>ID)/jobs", "job.list"),
    ("POST", r"/R/actions/runs/(?P<id>ID)/rerun-failed-jobs", "run.rerun"),
    ("GET", r"/R/check-runs/(?P<id>ID)/annotations", "annotation.list"),
    ("GET", r"/R/actions/caches", "cache.list"),
    ("POST", r"/R/git/blobs", "blob.create"),
    ("GET", r"/R/git/blobs/(?P<sha>SHA)", "blob.read"),
    ("POST", r"/R/git/trees", "tree.create"),
    ("GET", r"/R/git/trees/(?P<sha>SHA)", "tree.read"),
    ("POST", r"/R/git/commits", "commit.create"),
    ("GET", r"/R/git/commits/(?P<sha>SHA)", "commit.read"),
    ("GET", r"/R/git/ref/(?P<ref>.+)", "ref.read"),
    ("POST", r"/R/git/refs", "ref.create"),
    ("PATCH", r"/R/git/refs/(?P<ref>.+)", "ref.update"),
    ("DELETE", r"/R/git/refs/(?P<ref>.+)", "ref.delete"),
    ("GET", r"/R/commits", "commit.list"),
    ("GET", r"/R/compare/(?P<base>SHA)\.\.\.(?P<head>SHA)", "commit.compare"),
)


class Refused(Exception):
    """A status other than success, in the API's own words."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers or {}


class HungUp(Exception):
    """The connection is closed without an answer."""


@dataclass
class Fault:
    """What happens to the requests for one operation (`*`: for all) from the `at`th on, `times` of them.

    applied-502, drop-after, stall-after: it is applied, and the answer is 502, a cut, nothing for a long time.
    502, drop-before, stall-before: the same, and it is not applied.
    401, 403, 404, 422, 503 ...: that status, not applied. primary, secondary: a rate limit, not applied.
    meanwhile: `act` is called, then all goes on as ever.
    """

    operation: str
    kind: str
    at: int = 1
    times: int = 1
    act: Callable[[], object] = field(default=lambda: None, repr=False)
    message: str = ""
    retry_after: str = ""
    seen: int = 0

    def strikes(self, operation: str) -> bool:
        if self.operation not in ("*", operation):
            return False
        self.seen += 1
        return self.at <= self.seen < self.at + self.times


@dataclass
class Received:
    """A request, from the moment when it has come."""

    operation: str
    method: str
    path: str
    body: Json = field(default_factory=dict)
    status: int = 0
    """What was answered; 0 where nothing was, or is yet."""


FOREVER = 10**9

_WORDS = {"401": "Bad credentials", "403": "Resource not accessible by integration", "404": "Not Found"}


class GitHubServer:
    """The server, up between `with` and its end. `url` is the API's base URL.

    Args:
        git_dir: a bare repository, with the branch `base_ref`; the pull request's head is `head_ref`, made if missing.
        login: who the token writes as.
        certificate: a file with key and certificate; the URL then begins with https.
        prefix: the path of an Enterprise Server's API.
    """

    def __init__(
        self,
        git_dir: Path,
        *,
        repository: str = "org/repo",
        number: int = 7,
        base_ref: str = "main",
        head_ref: str = "change",
        login: str = BOT,
        token: str = TOKEN,
        prefix: str = "",
        certificate: Path | None = None,
        port: int = 0,
    ) -> None:
        self.git_dir, self.name, self.number, self.login, self.token = git_dir, repository, number, login, token
        self.base_ref, self.head_ref, self.default_branch = base_ref, head_ref, base_ref
        self.comments: list[Json] = []
        self.review_comments: list[Json] = []
        self.reactions: list[Json] = []
        self.permissions: dict[str, tuple[str, str]] = {"alice": ("write", "maintain"), "eve": ("none", "")}
        self.runs: dict[int, Json] = {}
        self.jobs: dict[int, list[Json]] = {}
        self.annotations: dict[int, list[str]] = {}
        self.caches: list[Json] = []
        self.faults: list[Fault] = []
        self.received: list[Received] = []
        self.is_open, self.is_merged, self.is_locked, self.is_fork_gone, self.is_fork = True, False, False, False, False
        self.does_viewer_answer = True
        self._prefix, self._certificate, self._port = prefix, certificate, port
        self._next_id = 100
        self._counts: Counter[str] = Counter()
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._failures: list[BaseException] = []
        self._routes = [(method, _pattern(path, repository), operation) for method, path, operation in ROUTES]
        if self.tip(head_ref) is None:
            self.git("update-ref", f"refs/heads/{head_ref}", f"refs/heads/{base_ref}")
        self.head_sha = self.tip(head_ref) or ""

    def __enter__(self) -> Self:
        self._server = _Server(("127.0.0.1", self._port), _handler_of(self))
        if self._certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self._certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, exc_type: object, *_: object) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        if self._failures and exc_type is None:
            raise self._failures[0]

    @property
    def url(self) -> str:
        scheme = "http" if self._certificate is None else "https"
        return f"{scheme}://127.0.0.1:{self._server.server_address[1]}{self._prefix}"

    # What people and other runs do, and what tests ask.

    def fault(
        self,
        operation: str,
        kind: str,
        at: int = 1,
        times: int = 1,
        act: Callable[[], object] = lambda: None,
        message: str = "",
        retry_after: str = "",
    ) -> None:
        self.faults.append(Fault(operation, kind, at, times, act, message, retry_after))

    def heal(self) -> None:
        self.faults.clear()

    def say(self, login: str, body: str, app: str | None = None) -> int:
        """A comment under the pull request; its id."""
        with self._lock:
            number = self._new_id()
            self.comments.append({"id": number, "login": login, "body": body, "app": app, "reply_to": None})
            return number

    def say_at_line(self, login: str, body: str, reply_to: int | None = None) -> int:
        with self._lock:
            number = self._new_id()
            told = {"id": number, "login": login, "body": body, "app": None, "reply_to": reply_to}
            self.review_comments.append(told)
            return number

    def change(self, comment: int, body: str) -> None:
        """Somebody edits a comment."""
        with self._lock:
            self._comment(comment)["body"] = body

    def delete(self, comment: int) -> None:
        with self._lock:
            self.comments.remove(self._comment(comment))

    def push(self, branch: str, files: dict[str, str], message: str = "push", *, onto: str | None = None) -> str:
        """Somebody pushes a commit; with `onto` by force, on top of that one. Its id."""
        with self._lock:
            parent = onto or self.tip(branch) or ""
            base = self.git("rev-parse", f"{parent}^{{tree}}")
            entries = [{"path": p, "mode": "100644", "type": "blob", "content": c} for p, c in files.items()]
            tree = self._write_tree(base, entries)
            who = {"name": "A Person", "email": "person@example.invalid", "date": "2026-01-02T00:00:00Z"}
            sha = self._write_commit({"message": message, "tree": tree, "parents": [parent], "author": who})
            self.git("update-ref", f"refs/heads/{branch}", sha)
            if branch == self.head_ref:
                self.head_sha = sha
            return sha

    def delete_branch(self, branch: str) -> None:
        self.git("update-ref", "-d", f"refs/heads/{branch}")

    def run(self, run_id: int, attempt: int = 1, status: str = "in_progress", conclusion: str | None = None) -> None:
        self.runs[run_id] = {"attempt": attempt, "status": status, "conclusion": conclusion}

    def job(self, run_id: int, job_id: int, **told: Any) -> None:
        defaults = {"name": "agent", "attempt": 1, "status": "completed", "conclusion": "failure", "steps": []}
        self.jobs.setdefault(run_id, []).append(defaults | {"id": job_id} | told)

    def annotate(self, job_id: int, message: str) -> None:
        self.annotations.setdefault(job_id, []).append(message)

    def switch(self, name: str, value: Any) -> None:
        """One of the flags, from another process."""
        setattr(self, name, value)

    def tip(self, branch: str) -> str | None:
        return self._ask_git("rev-parse", "-q", "--verify", f"refs/heads/{branch}^{{commit}}")

    def git(self, *arguments: str, given: bytes = b"", env: dict[str, str] | None = None) -> str:
        command = ["git", "--git-dir", str(self.git_dir), *arguments]
        done = subprocess.run(command, input=given, env=os.environ | (env or {}), capture_output=True, check=False)
        if done.returncode != 0:
            raise Refused(422, f"git {arguments[0]}: {done.stderr.decode(errors='replace').strip()}")
        return done.stdout.decode("utf-8", "surrogateescape").removesuffix("\n")

    def state(self) -> Json:
        """All that a test in another process may want to see."""
        with self._lock:
            refs = (line.split(" ") for line in self.git("show-ref").splitlines())
            return {
                "comments": self.comments,
                "review_comments": self.review_comments,
                "reactions": self.reactions,
                "refs": {name: sha for sha, name in refs},
                "received": [{"operation": r.operation, "status": r.status} for r in self.received],
            }

    def count(self, operation: str) -> int:
        return sum(1 for r in self.received if r.operation == operation)

    # One request.

    def answer(self, method: str, target: str, headers: dict[str, str], raw: bytes) -> tuple[int, Any, dict[str, str]]:
        """Status, JSON and headers. Called by the handler, in a thread of its own for each connection."""
        parts = urlsplit(target)
        path = parts.path.removeprefix(self._prefix) if self._prefix else parts.path
        operation, found = self._route(method, path.replace("/api/graphql", "/graphql"))
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        received = Received(operation, method, target)
        self.received.append(received)
        status, told = 0, None
        more: dict[str, str] = {}
        try:
            received.body = _json(raw)
            status, told, more = self._applied(operation, found, query, received.body, headers)
        except Refused as refused:
            status, more = refused.status, refused.headers
            told = {"message": refused.message, "documentation_url": f"{self.url}/docs", "status": str(status)}
        except HungUp:
            status = 0
        except BaseException as failure:
            self._failures.append(failure)
            status, told = 500, {"message": repr(failure)}
        received.status = status
        return status, told, more

    def _route(self, method: str, path: str) -> tuple[str, dict[str, str]]:
        for verb, pattern, operation in self._routes:
            matched = pattern.fullmatch(path)
            if verb == method and matched:
                return operation, {name: unquote(value) for name, value in matched.groupdict().items()}
        return "unknown", {}

    def _applied(
        self, operation: str, found: dict[str, str], query: dict[str, str], body: Json, headers: dict[str, str]
    ) -> tuple[int, Any, dict[str, str]]:
        with self._lock:
            struck = next((fault for fault in list(self.faults) if fault.strikes(operation)), None)
        kind = struck.kind if struck else ""
        if struck is not None:
            self._before(struck)
        if headers.get("authorization", "").split(" ")[-1] != self.token:
            raise Refused(401, "Bad credentials")
        if operation == "unknown":
            raise Refused(404, "Not Found")
        with self._lock:
            done: tuple[int, Any, dict[str, str]] = self._do(operation, found, query, body)
        if kind == "stall-after":
            self._over.wait(STALL_S)
        if kind in ("drop-after", "stall-after"):
            raise HungUp
        if kind == "applied-502":
            raise Refused(502, "Server Error")
        return done

    def _before(self, fault: Fault) -> None:
        """What strikes before anything is applied."""
        again = {"retry-after": fault.retry_after} if fault.retry_after else {}
        match fault.kind:
            case "meanwhile":
                fault.act()
            case "drop-before":
                raise HungUp
            case "stall-before":
                self._over.wait(STALL_S)
                raise HungUp
            case "primary":
                reset = {"x-ratelimit-remaining": "0", "x-ratelimit-limit": "1000"}
                soon = {"x-ratelimit-reset": str(int(time.time()) + 1800)}
                raise Refused(403, "API rate limit exceeded for installation ID 1.", reset | soon)
            case "secondary":
                told = "You have exceeded a secondary rate limit. Please wait a few minutes before you try again."
                raise Refused(403, told, again)
            case _ if fault.kind.isdigit():
                words = fault.message or _WORDS.get(fault.kind, "Server Error")
                raise Refused(int(fault.kind), words, again)
            case _:
                pass

    def _do(self, operation: str, found: dict[str, str], query: dict[str, str], body: Json) -> Any:
        """Apply it. Methods are named for their operation."""
        act = getattr(self, f"_{operation.replace('.', '_')}")
        done = act(found, query, body)
        return done if isinstance(done, tuple) else (200, done, {})

    # Operations.

    def _viewer(self, found: Json, query: Json, body: Json) -> Any:
        if not self.does_viewer_answer:
            raise Refused(403, "Resource not accessible by integration")
        return {"data": {"viewer": {"login": self.login}}}

    @property
    def _repo(self) -> Json:
        return shapes.repository(self.url, self.name, self.default_branch)

    def _repository_read(self, found: Json, query: Json, body: Json) -> Any:
        return self._repo

    def _pull_read(self, found: Json, query: Json, body: Json) -> Any:
        self._check_number(found)
        base = self.tip(self.base_ref) or ""
        head = self._repo
        if self.is_fork:
            head = shapes.repository(self.url, "fork/repo", self.default_branch, is_fork=True)
        told = {
            "state": "open" if self.is_open else "closed",
            "merged": self.is_merged,
            "locked": self.is_locked,
            "head": (self.head_sha, self.head_ref, None if self.is_fork_gone else head),
            "base": (base, self.base_ref, self._repo),
        }
        return shapes.pull_request(self.url, self._repo, self.number, told)

    def _comment_list(self, found: Json, query: Json, body: Json) -> Any:
        self._check_number(found)
        shown = [shapes.issue_comment(self.url, self.name, self.number, c) for c in self.comments]
        return self._paged(shown, query, f"repos/{self.name}/issues/{self.number}/comments")

    def _comment_create(self, found: Json, query: Json, body: Json) -> Any:
        self._check_number(found)
        if self.is_locked:
            raise Refused(403, "Unable to create comment because issue is locked.")
        self.say(self.login, _checked_body(body), self._app())
        return 201, shapes.issue_comment(self.url, self.name, self.number, self.comments[-1]), {}

    def _comment_read(self, found: Json, query: Json, body: Json) -> Any:
        return shapes.issue_comment(self.url, self.name, self.number, self._comment(int(found["id"])))

    def _comment_edit(self, found: Json, query: Json, body: Json) -> Any:
        comment = self._comment(int(found["id"]))
        if comment["login"] != self.login:
            raise Refused(403, "Resource not accessible by integration")
        comment["body"] = _checked_body(body)
        return shapes.issue_comment(self.url, self.name, self.number, comment)

    def _comment_delete(self, found: Json, query: Json, body: Json) -> Any:
        self.comments.remove(self._comment(int(found["id"])))
        return 204, None, {}

    def _reaction_create(self, found: Json, query: Json, body: Json) -> Any:
        comment, content = int(found["id"]), body.get("content")
        self._either_comment(found["kind"], comment)
        if content not in ("+1", "-1", "laugh", "confused", "heart", "hooray", "rocket", "eyes"):
            raise Refused(422, "Validation Failed")
        same = {"comment": comment, "login": self.login, "content": content}
        status = 200 if same in self.reactions else 201
        if status == 201:
            self.reactions.append(same)
        return status, shapes.reaction(self.url, self.reactions.index(same) + 1, self.login, content), {}

    def _reaction_list(self, found: Json, query: Json, body: Json) -> Any:
        here = [(i, r) for i, r in enumerate(self.reactions) if r["comment"] == int(found["id"])]
        return [shapes.reaction(self.url, i + 1, r["login"], r["content"]) for i, r in here]

    def _review_list(self, found: Json, query: Json, body: Json) -> Any:
        self._check_number(found)
        shown = [shapes.review_comment(self.url, self.name, self.number, c) for c in self.review_comments]
        return self._paged(shown, query, f"repos/{self.name}/pulls/{self.number}/comments")

    def _permission_read(self, found: Json, query: Json, body: Json) -> Any:
        if found["login"] not in self.permissions:
            raise Refused(404, "Not Found")
        permission, role = self.permissions[found["login"]]
        user = shapes.user(self.url, found["login"]) | {"role_name": role}
        return {"permission": permission, "role_name": role, "user": user}

    def _run_read(self, found: Json, query: Json, body: Json) -> Any:
        return shapes.run(self.url, self._repo, int(found["id"]), self._run_of(found))

    def _run_attempt(self, found: Json, query: Json, body: Json) -> Any:
        told, attempt = self._run_of(found), int(found["attempt"])
        if not 1 <= attempt <= told["attempt"]:
            raise Refused(404, "Not Found")
        earlier = {"attempt": attempt, "status": "completed", "conclusion": "failure"}
        return shapes.run(self.url, self._repo, int(found["id"]), told if attempt == told["attempt"] else earlier)

    def _run_rerun(self, found: Json, query: Json, body: Json) -> Any:
        told = self._run_of(found)
        if told["status"] != "completed":
            raise Refused(403, "This workflow is already running")
        self.run(int(found["id"]), told["attempt"] + 1, "queued")
        return 201, {}, {}

    def _job_list(self, found: Json, query: Json, body: Json) -> Any:
        attempt = self._run_of(found)["attempt"]
        listed = self.jobs.get(int(found["id"]), [])
        told = [j for j in listed if query.get("filter") == "all" or j["attempt"] == attempt]
        shown = [shapes.job(self._repo, int(found["id"]), j) for j in told]
        here = f"repos/{self.name}/actions/runs/{found['id']}/jobs"
        _, page, headers = self._paged(shown, query, here)
        return 200, {"total_count": len(shown), "jobs": page}, headers

    def _annotation_list(self, found: Json, query: Json, body: Json) -> Any:
        shown = [shapes.annotation(self._repo, message) for message in self.annotations.get(int(found["id"]), [])]
        return self._paged(shown, query, f"repos/{self.name}/check-runs/{found['id']}/annotations")

    def _cache_list(self, found: Json, query: Json, body: Json) -> Any:
        shown = [c for c in self.caches if c["key"].startswith(query.get("key", ""))]
        _, page, headers = self._paged(shown, query, f"repos/{self.name}/actions/caches")
        return 200, {"total_count": len(shown), "actions_caches": page}, headers

    def _blob_create(self, found: Json, query: Json, body: Json) -> Any:
        content = body.get("content")
        if not isinstance(content, str) or body.get("encoding") not in ("base64", "utf-8"):
            raise Refused(422, "Invalid request.")
        try:
            data = base64.b64decode(content, validate=True) if body["encoding"] == "base64" else content.encode()
        except binascii.Error:
            raise Refused(422, "content is not valid Base64") from None
        sha = self.git("hash-object", "-w", "--stdin", given=data)
        return 201, {"sha": sha, "url": f"{self._repo['url']}/git/blobs/{sha}"}, {}

    def _blob_read(self, found: Json, query: Json, body: Json) -> Any:
        sha = found["sha"]
        self._check_object(sha, "blob", 404)
        command = ["git", "--git-dir", str(self.git_dir), "cat-file", "blob", sha]
        data = subprocess.run(command, capture_output=True, check=True).stdout
        return {
            "sha": sha,
            "node_id": f"B_{sha}",
            "size": len(data),
            "url": f"{self._repo['url']}/git/blobs/{sha}",
            "content": base64.encodebytes(data).decode(),
            "encoding": "base64",
        }

    def _tree_create(self, found: Json, query: Json, body: Json) -> Any:
        entries = body.get("tree")
        if not isinstance(entries, list) or not entries:
            raise Refused(422, "Invalid tree info")
        base = body.get("base_tree")
        if base is not None:
            self._check_object(base, "tree", 422)
        sha = self._write_tree(base, entries)
        return 201, self._tree(sha), {}

    def _tree_read(self, found: Json, query: Json, body: Json) -> Any:
        self._check_object(found["sha"], "tree", 404)
        return self._tree(found["sha"], "-r" if query.get("recursive") else "")

    def _commit_create(self, found: Json, query: Json, body: Json) -> Any:
        for name, kind in (("tree", "tree"), *(("parents", "commit") for _ in body.get("parents") or ())):
            for sha in [body.get(name)] if name == "tree" else body[name]:
                self._check_object(sha, kind, 422)
        if not isinstance(body.get("message"), str):
            raise Refused(422, "Invalid request. message is missing")
        sha = self._write_commit(body)
        return 201, shapes.git_commit(self._repo, sha, self._told_of(sha)), {}

    def _commit_read(self, found: Json, query: Json, body: Json) -> Any:
        self._check_object(found["sha"], "commit", 404)
        return shapes.git_commit(self._repo, found["sha"], self._told_of(found["sha"]))

    def _commit_list(self, found: Json, query: Json, body: Json) -> Any:
        named = query.get("sha", self.default_branch)
        start = self._ask_git("rev-parse", "-q", "--verify", "--end-of-options", f"{named}^{{commit}}")
        if start is None:
            raise Refused(404, "Not Found")
        listed = self.git("rev-list", start).split("\n")
        _, page, headers = self._paged(listed, query, f"repos/{self.name}/commits")
        return 200, [shapes.commit(self._repo, sha, self._told_of(sha)) for sha in page], headers

    def _commit_compare(self, found: Json, query: Json, body: Json) -> Any:
        base, head = found["base"], found["head"]
        for sha in (base, head):
            self._check_object(sha, "commit", 404)
        ahead = self.git("rev-list", "--reverse", f"{base}..{head}").split()
        behind = self.git("rev-list", f"{head}..{base}").split()
        _, page, headers = self._paged(ahead, query, f"repos/{self.name}/compare/{base}...{head}")
        told = {sha: shapes.commit(self._repo, sha, self._told_of(sha)) for sha in {base, *page}}
        merge_base = self._ask_git("merge-base", base, head)
        if merge_base is None:
            raise Refused(404, f"No common ancestor between {base} and {head}.")
        between = (told[base], shapes.commit(self._repo, merge_base, self._told_of(merge_base)))
        return 200, shapes.comparison(self._repo, between, len(ahead), len(behind), [told[s] for s in page]), headers

    def _ref_read(self, found: Json, query: Json, body: Json) -> Any:
        name = f"refs/{found['ref']}"
        return shapes.ref(self._repo, name, self._ref(name, 404))

    def _ref_create(self, found: Json, query: Json, body: Json) -> Any:
        name, sha = body.get("ref"), body.get("sha")
        if not isinstance(name, str) or not name.startswith("refs/") or name.count("/") < 2:
            raise Refused(422, "Reference name must start with 'refs/' and have at least two slashes")
        self._check_object(sha, "commit", 422)
        if self._ask_git("rev-parse", "-q", "--verify", name) is not None:
            raise Refused(422, "Reference already exists")
        self.git("update-ref", name, str(sha), "0" * 40)
        return 201, shapes.ref(self._repo, name, str(sha)), {}

    def _ref_update(self, found: Json, query: Json, body: Json) -> Any:
        name, sha = f"refs/{found['ref']}", body.get("sha")
        old = self._ref(name, 422)
        self._check_object(sha, "commit", 422)
        is_forward = self._ask_git("merge-base", "--is-ancestor", old, str(sha)) is not None
        if not is_forward and body.get("force") is not True:
            raise Refused(422, "Update is not a fast forward")
        self.git("update-ref", name, str(sha), old)
        return shapes.ref(self._repo, name, str(sha))

    def _ref_delete(self, found: Json, query: Json, body: Json) -> Any:
        name = f"refs/{found['ref']}"
        self.git("update-ref", "-d", name, self._ref(name, 422))
        return 204, None, {}

    # Help for them.

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id

    def _app(self) -> str | None:
        return self.login.removesuffix("[bot]") if self.login.endswith("[bot]") else None

    def _check_number(self, found: Json) -> None:
        if int(found["number"]) != self.number:
            raise Refused(404, "Not Found")

    def _comment(self, number: int) -> Json:
        return self._either_comment("issues", number)

    def _either_comment(self, kind: str, number: int) -> Json:
        listed = self.comments if kind == "issues" else self.review_comments
        found = next((c for c in listed if c["id"] == number), None)
        if found is None:
            raise Refused(404, "Not Found")
        return found

    def _run_of(self, found: Json) -> Json:
        if int(found["id"]) not in self.runs:
            raise Refused(404, "Not Found")
        return self.runs[int(found["id"])]

    def _paged(self, listed: list[Any], query: Json, path: str) -> tuple[int, list[Any], dict[str, str]]:
        size, page = min(int(query.get("per_page", 30)), 100), int(query.get("page", 1))
        shown = listed[(page - 1) * size : page * size]
        here = f"{self.url}/{path}?per_page={size}&page="
        last = max(1, -(-len(listed) // size))
        links = [f'<{here}{page - 1}>; rel="prev"'] if page > 1 else []
        links += [f'<{here}{page + 1}>; rel="next"', f'<{here}{last}>; rel="last"'] if page < last else []
        return 200, shown, {"link": ", ".join(links)} if links else {}

    def _ask_git(self, *arguments: str) -> str | None:
        try:
            return self.git(*arguments)
        except Refused:
            return None

    def _check_object(self, sha: object, kind: str, status: int) -> None:
        is_there = isinstance(sha, str) and re.fullmatch(_SHA, sha) and self._ask_git("cat-file", "-t", sha) == kind
        if not is_there:
            raise Refused(status, "Not Found" if status == 404 else f"{kind} {sha} does not exist")

    def _ref(self, name: str, status: int) -> str:
        sha = self._ask_git("rev-parse", "-q", "--verify", "--end-of-options", name)
        if sha is None:
            raise Refused(status, "Not Found" if status == 404 else "Reference does not exist")
        return sha

    def _write_tree(self, base: str | None, entries: list[Json]) -> str:
        with tempfile.TemporaryDirectory() as folder:
            index = {"GIT_INDEX_FILE": f"{folder}/index"}
            if base is not None:
                self.git("read-tree", base, env=index)
            there = set(self.git("ls-files", "-z", env=index).split("\0"))
            written = iter(self._written([e["content"] for e in entries if "content" in e], folder))
            lines = [self._line(entry, written, there) for entry in entries]
            _refuse_what_depends_on_order(entries)
            self.git("update-index", "--replace", "-z", "--index-info", given=b"".join(lines), env=index)
            return self.git("write-tree", env=index)

    def _written(self, contents: list[str], folder: str) -> list[str]:
        """The ids of these blobs, by one call of git."""
        for number, content in enumerate(contents):
            Path(folder, str(number)).write_bytes(content.encode())
        names = "".join(f"{folder}/{number}\n" for number in range(len(contents))).encode()
        return self.git("hash-object", "-w", "--no-filters", "--stdin-paths", given=names).split("\n")

    def _line(self, entry: Json, written: Iterator[str], there: set[str]) -> bytes:
        path, mode = entry.get("path"), entry.get("mode")
        if not isinstance(path, str) or mode not in ("100644", "100755", "120000", "040000", "160000"):
            raise Refused(422, "tree.mode must be one of 100644, 100755, 040000, 160000, or 120000")
        if path.startswith("/") or {"", ".", "..", ".git"} & set(path.split("/")):
            raise Refused(422, f"tree.path contains a malformed path component: {path}")
        if "content" in entry:
            sha = next(written)
        elif entry.get("sha", 0) is None:
            if os.fsencode(path).decode("utf-8", "surrogateescape") not in there:
                raise Refused(422, "GitRPC::BadObjectState")
            mode, sha = "0", "0" * 40
        else:
            sha = str(entry.get("sha"))
            self._check_object(sha, "blob", 422)
        return f"{mode} {sha}\t{path}".encode() + b"\0"

    def _tree(self, sha: str, *options: str) -> Json:
        shown = self.git("ls-tree", "-z", "-l", *filter(None, options), sha)
        entries = []
        for line in filter(None, shown.split("\0")):
            about, _, path = line.partition("\t")
            mode, kind, entry, size = about.split()
            url = f"{self._repo['url']}/git/{kind}s/{entry}"
            told = {"path": path, "mode": mode, "type": kind, "sha": entry, "url": url}
            entries.append(told | ({"size": int(size)} if kind == "blob" else {}))
        return {"sha": sha, "url": f"{self._repo['url']}/git/trees/{sha}", "tree": entries, "truncated": False}

    def _write_commit(self, body: Json) -> str:
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        author = {"name": "GitHub", "email": "noreply@example.invalid", "date": now} | (body.get("author") or {})
        committer = author | (body.get("committer") or {})
        lines = [f"tree {body['tree']}", *(f"parent {parent}" for parent in body.get("parents") or ())]
        lines += [f"author {_signature(author)}", f"committer {_signature(committer)}", "", body["message"]]
        return self.git("hash-object", "-t", "commit", "-w", "--stdin", given="\n".join(lines).encode())

    def _told_of(self, sha: str) -> Json:
        layout = "%T%x00%P%x00%an%x00%ae%x00%aI%x00%cn%x00%ce%x00%cI"
        words = self.git("show", "-s", f"--format={layout}", sha).split("\0")
        tree, parents, *who = words
        _, _, message = self.git("cat-file", "commit", sha).partition("\n\n")
        names = ("name", "email", "date")
        return {
            "tree": tree,
            "parents": parents.split(),
            "author": dict(zip(names, who[:3], strict=True)),
            "committer": dict(zip(names, who[3:], strict=True)),
            "message": message,
        }


def bare_repository(folder: Path, files: Mapping[str, str] | None = None) -> Path:
    """A repository for the server, with one commit on `main`, made in `folder`."""
    repo = Repo(folder / "origin")
    repo.path.mkdir(parents=True)
    repo.git("init", "--quiet", "--initial-branch=main")
    repo.commit(files or {"README.md": "# A project\n"}, "begin")
    repo.git("clone", "--quiet", "--bare", ".", str(folder / "bare.git"))
    return folder / "bare.git"


def _refuse_what_depends_on_order(entries: list[Json]) -> None:
    """What GitHub makes of a folder that goes and a file that takes its place, in one request, it does not say."""
    gone = {entry["path"] for entry in entries if entry.get("sha", 0) is None}
    kept = {entry["path"] for entry in entries} - gone
    pairs = ((path, other) for some, others in ((gone, kept), (kept, gone)) for path in some for other in others)
    if any(path.startswith(f"{other}/") for path, other in pairs):
        raise Refused(422, "tree.path: the result depends on the order of the entries")


def _pattern(path: str, repository: str) -> re.Pattern[str]:
    named = path.replace("(?P<id>ID)", f"(?P<id>{_ID})").replace("ID)", f"{_ID})").replace("SHA)", f"{_SHA})")
    return re.compile(named.replace("/R", f"/repos/{re.escape(repository)}", 1))


def _json(raw: bytes) -> Json:
    try:
        found = json.loads(raw) if raw else {}
    except ValueError:
        raise Refused(400, "Problems parsing JSON") from None
    if not isinstance(found, dict):
        raise Refused(400, "Body should be a JSON object")
    return found


def _checked_body(body: Json) -> str:
    words = body.get("body")
    if not isinstance(words, str) or not words.strip():
        raise Refused(422, "Validation Failed")
    if len(words) > LONGEST_BODY:
        raise Refused(422, "Body is too long (maximum is 65536 characters)")
    return words


def _signature(who: Json) -> str:
    moment = time.strptime(who["date"], "%Y-%m-%dT%H:%M:%SZ")
    return f"{who['name']} <{who['email']}> {calendar.timegm(moment)} +0000"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 32

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is part of many a test."""


def _handler_of(github: GitHubServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 60

        def log_message(self, *_: object) -> None:
            pass

        def _handle(self) -> None:
            raw = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            if self.path.startswith("/_test/"):
                status, told, more = _control(github, self.path, raw)
            else:
                status, told, more = github.answer(self.command, self.path, headers, raw)
            self.close_connection = True
            if status != 0:
                self._send(status, told, more)

        do_GET = do_POST = do_PATCH = do_DELETE = do_PUT = _handle  # noqa: N815  the names are the library's

        def _send(self, status: int, told: Any, more: dict[str, str]) -> None:
            content = b"" if told is None else json.dumps(told).encode()
            self.send_response(status)
            told_of = {"content-length": str(len(content)), "connection": "close"}
            if told is not None:
                told_of["content-type"] = "application/json; charset=utf-8"
            for name, value in (told_of | more).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

    return Handler


def _control(github: GitHubServer, path: str, raw: bytes) -> tuple[int, Any, dict[str, str]]:
    if path == "/_test/state":
        return 200, github.state(), {}
    asked = _json(raw)
    done = getattr(github, asked["do"])(*asked.get("arguments", ()), **asked.get("named", {}))
    return 200, {"done": done}, {}


def main() -> None:
    """Serve until killed; the address is the first line that is printed."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.github_server")
    parser.add_argument("--git", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--repository", default="org/repo")
    parser.add_argument("--pull", type=int, default=7)
    parser.add_argument("--base", default="main")
    parser.add_argument("--head", default="change")
    parser.add_argument("--token", default=TOKEN)
    given = parser.parse_args()
    with GitHubServer(
        given.git,
        repository=given.repository,
        number=given.pull,
        base_ref=given.base,
        head_ref=given.head,
        token=given.token,
        port=given.port,
    ) as github:
        print(github.url, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
