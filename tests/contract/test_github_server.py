"""The fake GitHub is one to a client that we did not write: the judge is judged first."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import github
import pytest
from github.InputGitTreeElement import InputGitTreeElement

from tests.support.github_server import FOREVER, TOKEN, GitHubServer, bare_repository
from tests.support.github_shapes import BOT


@pytest.fixture
def bare(tmp_path) -> Path:
    return bare_repository(tmp_path, {"a.txt": "a\n", "dir/b.txt": "b\n"})


@pytest.fixture
def server(bare) -> Iterator[GitHubServer]:
    with GitHubServer(bare) as fake:
        yield fake


@pytest.fixture
def theirs(server) -> Iterator[Any]:
    connected = github.Github(
        base_url=server.url,
        auth=github.Auth.Token(TOKEN),
        retry=None,
        seconds_between_requests=0,
        seconds_between_writes=0,
    )
    yield connected.get_repo("org/repo")
    connected.close()


def test_comments_are_kept_over_pages(server, theirs):
    for number in range(45):
        server.say("alice", str(number))
    issue = theirs.get_pull(7)

    made = issue.create_issue_comment("hello")
    made.edit("hello again")
    made.create_reaction("eyes")

    shown = [(c.user.login, c.body) for c in issue.get_issue_comments()]
    assert shown == [*(("alice", str(number)) for number in range(45)), (BOT, "hello again")]
    assert made.performed_via_github_app.slug == "github-actions"
    assert [reaction.content for reaction in made.get_reactions()] == ["eyes"]
    made.delete()
    assert len(server.comments) == 45


def test_a_pull_request_has_what_clients_look_at(server, theirs):
    server.is_open, server.is_fork_gone = False, True
    pull = theirs.get_pull(7)

    assert (pull.number, pull.state, pull.head.ref, pull.head.sha) == (7, "closed", "change", server.tip("change"))
    assert pull.head.repo is None
    assert pull.base.repo.full_name == "org/repo"
    assert theirs.get_collaborator_permission("alice") == "write"


def test_review_comments_are_listed(server, theirs):
    server.say_at_line("alice", "because", reply_to=server.say_at_line("alice", "why?"))

    assert [c.body for c in theirs.get_pull(7).get_review_comments()] == ["why?", "because"]


def test_runs_jobs_and_annotations_are_told(server, theirs):
    server.run(5, attempt=2, status="completed", conclusion="failure")
    server.job(5, 51, attempt=1)
    server.job(5, 52, attempt=2)
    server.annotate(52, "The runner has received a shutdown signal.")
    run = theirs.get_workflow_run(5)

    assert (run.run_attempt, run.status, run.conclusion) == (2, "completed", "failure")
    assert [job.id for job in run.jobs()] == [52]
    assert [job.id for job in run.jobs("all")] == [51, 52]
    _, told = theirs.requester.requestJsonAndCheck("GET", "/repos/org/repo/check-runs/52/annotations")
    assert [annotation["message"] for annotation in told] == ["The runner has received a shutdown signal."]
    assert run.rerun_failed_jobs()
    assert theirs.get_workflow_run(5).run_attempt == 3
    assert not theirs.get_workflow_run(5).rerun_failed_jobs()


def test_git_data_is_in_a_real_repository(server, theirs):
    base = theirs.get_git_commit(theirs.get_git_ref("heads/main").object.sha)
    blob = theirs.create_git_blob("AAEC", "base64")
    entries = [
        InputGitTreeElement("bin/run", "100755", "blob", sha=blob.sha),
        InputGitTreeElement("link", "120000", "blob", content="a.txt"),
        InputGitTreeElement("dir/b.txt", "100644", "blob", sha=None),
    ]
    tree = theirs.create_git_tree(entries, base.tree)
    commit = theirs.create_git_commit("made over the API", tree, [base])
    theirs.create_git_ref("refs/heads/made", commit.sha)

    listed = server.git("ls-tree", "-r", "made").replace("\t", " ").split("\n")
    assert [line.split(" ")[0] + " " + line.split(" ")[3] for line in listed] == [
        "100644 a.txt",
        "100755 bin/run",
        "120000 link",
    ]
    assert [c.commit.message for c in theirs.get_commits(sha="made")] == ["made over the API", "begin"]
    assert {entry.path for entry in theirs.get_git_tree(tree.sha, recursive=True).tree} == {"a.txt", "bin/run", "link"}


def test_a_ref_moves_forward_only(server, theirs):
    first = server.push("change", {"x": "1\n"})
    beside = server.push("side", {"y": "1\n"}, onto=server.tip("main"))
    ref = theirs.get_git_ref("heads/change")

    with pytest.raises(github.GithubException) as refused:
        ref.edit(beside, force=False)

    assert refused.value.status == 422
    assert server.tip("change") == first


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (InputGitTreeElement("nowhere", "100644", "blob", sha=None), "BadObjectState"),
        (InputGitTreeElement("x", "100644", "blob", sha="1" * 40), "does not exist"),
        (InputGitTreeElement("a/../x", "100644", "blob", content="x"), "malformed"),
        (InputGitTreeElement("x", "100600", "blob", content="x"), "mode"),
    ],
)
def test_what_no_tree_can_be_is_refused(server, theirs, entry, words):
    base = theirs.get_git_tree(theirs.get_git_commit(server.tip("main")).tree.sha)

    with pytest.raises(github.GithubException) as refused:
        theirs.create_git_tree([entry], base)

    assert refused.value.status == 422
    assert words in str(refused.value)


def test_what_does_not_exist_cannot_be_committed_or_referred_to(server, theirs):
    post = theirs.requester.requestJson
    tree = server.git("rev-parse", "main^{tree}")

    assert post("POST", "/repos/org/repo/git/commits", input={"message": "m", "tree": "1" * 40})[0] == 422
    nowhere = {"message": "m", "tree": tree, "parents": ["1" * 40]}
    assert post("POST", "/repos/org/repo/git/commits", input=nowhere)[0] == 422
    for ref, sha in (("refs/heads/main", server.tip("main")), ("refs/heads/x", "1" * 40), ("main", server.tip("main"))):
        assert post("POST", "/repos/org/repo/git/refs", input={"ref": ref, "sha": sha})[0] == 422


def test_a_fault_strikes_where_and_as_often_as_it_is_told(server, theirs):
    server.fault("comment.create", "applied-502", at=2, times=1)
    pull = theirs.get_pull(7)
    pull.create_issue_comment("one")

    with pytest.raises(github.GithubException):
        pull.create_issue_comment("two")

    pull.create_issue_comment("three")
    assert [c["body"] for c in server.comments] == ["one", "two", "three"]


def test_another_token_is_refused(server, theirs):
    server.token = "another"

    with pytest.raises(github.BadCredentialsException):
        theirs.get_pull(7)


def test_beside_other_programs_it_is_told_what_to_do_over_http(bare):
    command = [sys.executable, "-m", "tests.support.github_server", "--git", str(bare)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()

            def ask(path: str, **body: Any) -> Any:
                data = json.dumps(body).encode() if body else None
                with urllib.request.urlopen(f"{url}{path}", data=data) as answer:
                    return json.loads(answer.read())

            ask("/_test/do", do="say", arguments=["alice", "hello"])
            ask("/_test/do", do="fault", arguments=["comment.list", "503"], named={"times": FOREVER})
            state = ask("/_test/state")

            assert [c["body"] for c in state["comments"]] == ["hello"]
            assert set(state["refs"]) == {"refs/heads/main", "refs/heads/change"}
        finally:
            process.kill()
