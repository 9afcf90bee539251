"""What we send and what the fake GitHub answers have the shapes of GitHub's own description of its API.

A validating proxy stands between the two: a request that breaks the description comes back as 422, an answer that
does as 500.

Refs are read and moved elsewhere: the proxy takes no path parameter with a slash, and every ref has one.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from endstate_action.ci.commit import Change, Commits, Plan
from endstate_action.ci.github import GitHub
from endstate_action.ci.outcome import Absent, Applied, Rejected, told
from endstate_action.ci.pull_request import Conversation, RunNow, permission_of, read_pull_request, read_run
from tests.support.github_server import TOKEN, GitHubServer, bare_repository
from tests.support.github_shapes import BOT, Json
from tests.support.npm_packages import installed

START_S = 200

MARKER = "<!-- endstate:one -->"
R = "/repos/org/repo"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[GitHubServer]:
    with GitHubServer(bare_repository(tmp_path_factory.mktemp("schema"), {"a.txt": "a\n"})) as github:
        yield github


@pytest.fixture(scope="module")
def proxy(server, tmp_path_factory) -> Iterator[str]:
    modules = installed("schema-proxy", tmp_path_factory) / "node_modules"
    program, description = modules / ".bin" / "prism", modules / "@octokit/openapi/generated/api.github.com.json"
    ours = tmp_path_factory.mktemp("description") / "ours.json"
    ours.write_text(json.dumps(_part_of(json.loads(description.read_bytes()))))
    port = _free_port()
    command = [str(program), "proxy", "--errors", "--port", str(port), str(ours), server.url]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            if not _is_up(process, port):
                assert process.poll() is None, "the proxy ended"
                pytest.skip(f"the proxy was not up within {START_S} seconds")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


@pytest.fixture
def github(proxy) -> Iterator[GitHub]:
    connected = GitHub(proxy, TOKEN, {}, timeout_s=60, pauses_s=(0, 0))
    yield connected
    connected.close()


@pytest.fixture
def conversation(github) -> Conversation:
    return Conversation(github, "org/repo", 7, wait=lambda seconds: None)


def is_ours(body: str, author: Any) -> bool:
    return body.startswith(MARKER) and author.login == BOT


def always() -> bool:
    return True


def test_the_proxy_refuses_what_breaks_the_description(server, github):
    """The judge is judged first: a body without its text, and an answer without its id."""
    before = list(server.comments)
    asked = told(lambda: github.write("POST", f"{R}/issues/7/comments", {"text": "x"}, needs=""))
    server.run(9)
    server.runs[9]["attempt"] = "one"

    assert isinstance(asked, Rejected)
    assert server.comments == before
    assert not isinstance(read_run(github, "org/repo", 9), Applied)


def test_the_sticky_comment(server, conversation):
    server.say("alice", "hello")
    first = conversation.stick(f"{MARKER}\nworking", is_ours, always)
    server.say(BOT, f"{MARKER}\nworking", "github-actions")
    second = conversation.stick(f"{MARKER}\ndone", is_ours, always)

    assert isinstance(first, Applied), first
    assert isinstance(second, Applied), second
    assert (first.value.was, second.value.was, len(second.value.removed)) == ("created", "edited", 1)
    assert isinstance(conversation.edit(first.value.comment.id, f"{MARKER}\nonce more", always), Applied)
    assert isinstance(conversation.react(first.value.comment.id, "eyes", always), Applied)
    assert isinstance(conversation.react(first.value.comment.id, "eyes", always), Applied)
    assert isinstance(conversation.edit(99_999, "x", always), Absent)


def test_a_reaction_to_a_review_comment(server, conversation):
    asked = server.say_at_line("alice", "why?")

    assert isinstance(conversation.react(asked, "eyes", always, is_review_comment=True), Applied)


def test_the_pull_request(github):
    """One whose fork is gone is not asked for: its repository is null, which the description does not know."""
    assert isinstance(read_pull_request(github, "org/repo", 7), Applied)
    assert isinstance(read_pull_request(github, "org/repo", 8), Absent)


def test_permissions_and_runs(server, github):
    server.run(5, attempt=2)

    assert permission_of(github, "org/repo", "alice") == Applied("maintain")
    assert read_run(github, "org/repo", 5) == Applied(RunNow(2, "in_progress", None))


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/actions/runs/6/jobs?filter=all", "jobs"),
        ("/actions/runs/6/attempts/1", "id"),
        ("/check-runs/61/annotations", ""),
        ("/actions/caches?key=es1/", "actions_caches"),
        ("/issues/7/comments?per_page=1&page=1", ""),
        ("/commits?sha=main", ""),
    ],
)
def test_what_else_the_fake_answers(server, github, path, name):
    server.run(6, status="completed", conclusion="failure")
    server.job(6, 61)
    server.annotate(61, "The runner has received a shutdown signal.")
    server.caches = [a_cache()]
    server.say("alice", "hello")

    found = github.read(f"{R}{path}", needs="")

    assert found[name] if name else found


def a_cache() -> Json:
    return {
        "id": 1,
        "ref": "refs/pull/7/merge",
        "key": "es1/a0001",
        "version": "v",
        "last_accessed_at": "2026-01-01T00:00:00Z",
        "created_at": "2026-01-01T00:00:00Z",
        "size_in_bytes": 7,
    }


def test_a_commit(server, github):
    commits = Commits(github, "org/repo", wait=lambda seconds: None)
    parent = server.tip("main") or ""
    changes = [
        Change(b"bin/run", "100755", lambda: b"#!/bin/sh\n"),
        Change(b"binary", "100644", lambda: b"\0\1"),
        Change(b"link", "120000", lambda: b"bin/run"),
        Change(b"a.txt", None),
    ]
    plan = Plan(parent, "6d2b1b9e2f", "message", ("endstate", "endstate@example.invalid"), 1_767_225_600, "s", "k d")
    wrong = commits.prepare(plan, changes)
    made = next(r for r in reversed(server.received) if r.operation == "tree.create")
    tree = github.write("POST", f"{R}/git/trees", made.body, needs="")["sha"]
    right = commits.prepare(Plan(parent, tree, *_rest(plan)), changes)

    assert isinstance(wrong, Rejected)
    assert isinstance(right, Applied), right
    assert github.read(f"{R}/compare/{parent}...{right.value}", needs="")["ahead_by"] == 1
    ref = {"ref": "refs/heads/endstate/s", "sha": right.value}
    assert github.write("POST", f"{R}/git/refs", ref, needs="")["object"]["sha"] == right.value
    assert github.read(R, needs="")["default_branch"] == "main"
    assert commits.may_commit() == Applied(None)


def _rest(plan: Plan) -> tuple[Any, ...]:
    return plan.message, plan.author, plan.when, plan.session, plan.key


def _part_of(description: Json) -> Json:
    """What of the description is about our requests, with all that it refers to: the whole takes a minute to load."""
    here = "/repos/{owner}/{repo}"
    ours = (
        "issues",
        "pulls",
        "git",
        "commits",
        "compare",
        "actions/runs",
        "actions/caches",
        "check-runs",
        "collaborators",
    )
    wanted = tuple(f"{here}/{name}" for name in ours)
    kept = {path: told for path, told in description["paths"].items() if path == here or path.startswith(wanted)}
    found: dict[tuple[str, str], Any] = {}
    waiting = [kept]
    while waiting:
        for kind, name in re.findall(r'"#/components/([^/"]+)/([^/"]+)"', json.dumps(waiting.pop())):
            if (kind, name) not in found:
                found[kind, name] = description["components"][kind][name]
                waiting.append(found[kind, name])
    components: Json = {}
    for (kind, name), part in found.items():
        components.setdefault(kind, {})[name] = part
    about = {name: description[name] for name in ("openapi", "info", "servers")}
    return about | {"paths": kept, "components": components}


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _is_up(process: subprocess.Popen[bytes], port: int) -> bool:
    until = time.monotonic() + START_S
    while time.monotonic() < until and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.2)
        else:
            return True
    return False
