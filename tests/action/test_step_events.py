"""Every event that can start a step: which are meant, which cost nothing, and on whose word."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cache_rules import make_token
from tests.support.messages_api import answer, call
from tests.support.step import Job, Ran, stage, turns

pytestmark = pytest.mark.slow

TWO_TURNS = turns(answer(call("write", path="a.txt", content="a\n")), answer("Done."))
NO_SANDBOX = "tests.support.no_sandbox"


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with stage(tmp_path, lambda body, n: answer("Done.")) as job:
        job.inputs["allowed-bots"] = ""
        yield job


def prompt_of(job: Job) -> str:
    return json.dumps(job.api.requests[0].body["messages"])


def nothing_done(job: Job, ran: Ran) -> None:
    assert (job.api.requests, job.github.comments, dict(job.cache.stored)) == ([], [], {}), ran.log
    assert len(ran.annotations) == 1


def skipped(job: Job, *words: str) -> None:
    """Exit 0 and a notice, without a question to GitHub."""
    ran = job.attempt()
    assert (ran.code, ran.conclusion) == (0, "skipped"), ran.log
    assert ran.annotations[0].startswith("::notice "), ran.log
    for word in words:
        assert word in ran.log
    nothing_done(job, ran)


def done(job: Job, run_attempt: int = 1, **inputs: str) -> Ran:
    ran = job.attempt(run_attempt, **inputs)
    assert (ran.code, ran.conclusion) == (0, "success"), ran.log
    assert job.api.refused == []
    return ran


# What is not meant costs nothing


def test_a_merge_group_is_skipped(job: Job) -> None:
    job.happen("merge_group")
    skipped(job, "merge queue")


def test_dependabot_is_skipped(job: Job) -> None:
    job.happen("pull_request.dependabot")
    skipped(job, "Dependabot")


def test_a_bot_that_is_not_listed_is_skipped(job: Job) -> None:
    job.happen("pull_request.bot")
    skipped(job, "renovate[bot]", "allowed-bots")


@pytest.mark.parametrize("situation", ["pull_request.fork", "pull_request.fork-deleted", "pull_request_target.fork"])
def test_a_fork_is_skipped(job: Job, situation: str) -> None:
    job.happen(situation)
    skipped(job, "fork")


@pytest.mark.parametrize("situation", ["issue_comment.no-phrase", "issue_comment.edited", "issue_comment.own"])
def test_a_comment_that_does_not_ask_is_skipped(job: Job, situation: str) -> None:
    job.happen(situation)
    skipped(job)


def test_a_comment_on_a_fork_s_pull_request_is_skipped_once_github_tells(job: Job) -> None:
    job.happen("issue_comment.pull-request")
    job.github.is_fork = True
    ran = job.attempt(prompt="")
    assert (ran.code, ran.conclusion) == (0, "skipped"), ran.log
    assert "fork" in ran.log
    assert (job.api.requests, job.github.comments) == ([], [])


# On whose word


def test_who_may_only_read_is_refused(job: Job) -> None:
    job.github.permissions["alice"] = ("read", "read")
    ran = job.attempt()
    assert (ran.code, ran.conclusion) == (2, "failed"), ran.log
    assert "alice has the permission read here, and write is required" in ran.annotations[0]
    assert (job.api.requests, job.github.comments) == ([], [])


def test_who_github_says_nothing_about_is_refused(job: Job) -> None:
    job.github.fault("permission.read", "403", times=99)
    ran = job.attempt()
    assert (ran.code, ran.conclusion) == (2, "failed"), ran.log
    assert (job.api.requests, job.github.comments) == ([], [])


def test_a_listed_bot_works(job: Job) -> None:
    job.happen("pull_request.bot")
    done(job, 1, **{"allowed-bots": "renovate[bot]"})


def test_a_fork_works_where_that_is_allowed(job: Job) -> None:
    job.happen("pull_request_target.fork")
    job.github.permissions["mallory"] = ("write", "write")
    done(job, 1, **{"allow-forks": "true"})


def test_a_rerun_by_a_bot_is_on_the_word_of_who_asked_first(tmp_path: Path) -> None:
    """A watcher's token may run it again: who was recorded decides, and needs his permission still."""
    with stage(tmp_path, TWO_TURNS) as job:
        job.kill_at_request(2)
        assert job.attempt(1).code == -9
        job.environ |= {"GITHUB_ACTOR": "github-actions[bot]", "GITHUB_TRIGGERING_ACTOR": "github-actions[bot]"}
        ran = done(job, 2)
        assert ran.outputs["resumed"] == "true"
        assert len(job.github.comments) == 1


# What is meant


@pytest.mark.parametrize("situation", ["pull_request.synchronize", "pull_request.labeled"])
def test_a_pull_request_is_worked_on_and_told_about(job: Job, situation: str) -> None:
    job.happen(situation)
    actor = job.environ["GITHUB_ACTOR"]
    job.github.permissions[actor] = ("write", "write")
    done(job)
    assert len(job.github.comments) == 1


@pytest.mark.parametrize("is_told", [True, False])
def test_what_the_target_branch_got_meanwhile_is_no_change_of_the_pull_request(job: Job, is_told: bool) -> None:
    begun = job.github.tip("main")
    job.commit = job.github.push(job.github.head_ref, {"feature.txt": "more\n"})
    moved = job.github.push("main", {"colleague.py": "print(1)\n"})
    job.happen("pull_request.synchronize")
    job.github.permissions[job.environ["GITHUB_ACTOR"]] = ("write", "write")
    if not is_told:
        job.github.fault("commit.compare", "503", times=10**9)
    ran = done(job)
    prompt = prompt_of(job)
    assert "colleague.py" not in prompt
    assert ("feature.txt" in prompt, f"git diff {begun} HEAD" in prompt) == (is_told, is_told)
    assert (f"is at {moved}" in prompt, "left its target branch is not known" in ran.log) == (not is_told, not is_told)


@pytest.mark.parametrize("situation", ["workflow_dispatch", "push", "schedule"])
def test_without_a_pull_request_there_is_no_comment(job: Job, situation: str) -> None:
    job.happen(situation)
    job.github.permissions["octocat"] = ("write", "write")
    ran = done(job)
    assert (job.github.comments, ran.outputs["comment-url"]) == ([], "")


def test_a_comment_on_an_issue_is_answered_there(job: Job) -> None:
    job.happen("issue_comment.issue")
    done(job, prompt="")
    (ours,) = job.github.comments
    assert f"/issues/{job.github.number}#issuecomment-" in ours["body"]
    assert "Add a test for empty input." in prompt_of(job)


def test_a_review_comment_asks_with_its_place(job: Job) -> None:
    event = job.happen("pull_request_review_comment.created")
    job.github.review_comments.append(
        {
            "id": event["comment"]["id"],
            "login": "alice",
            "body": event["comment"]["body"],
            "app": None,
            "reply_to": None,
        }
    )
    done(job, prompt="")
    assert event["comment"]["path"] in prompt_of(job)
    assert [r["content"] for r in job.github.reactions] == ["eyes"]


def commented(job: Job) -> None:
    """A comment on the pull request asks; its token may read the cache and no more."""
    event = job.happen("issue_comment.pull-request")
    number = job.github.say("alice", event["comment"]["body"])
    event["comment"]["id"] = number
    job.environ["ACTIONS_RUNTIME_TOKEN"] = make_token("", ("refs/heads/main",))


def test_a_comment_with_a_read_only_cache_is_not_durable_and_says_so(job: Job) -> None:
    commented(job)
    ran = done(job, prompt="")
    assert ran.outputs["durability"] == "none"
    (warning,) = [line for line in ran.annotations if line.startswith("::warning")]
    assert "cache-mode: write" in warning
    assert "git-ref" in warning
    assert dict(job.cache.stored) == {}
    asked, ours = job.github.comments
    assert "Done in 1 attempt" in ours["body"]
    assert f"#issuecomment-{asked['id']})" in ours["body"]
    assert [r["content"] for r in job.github.reactions] == ["eyes"]


def test_a_comment_with_a_git_ref_for_a_store_is_durable(tmp_path: Path) -> None:
    with stage(tmp_path, TWO_TURNS) as job:
        commented(job)
        job.inputs |= {"prompt": "", "store": "git-ref"}
        job.kill_at_request(2)
        assert job.attempt(1).code == -9
        ran = done(job, 2)
        assert ran.outputs["durability"] == "git-ref"
        assert ran.outputs["resumed"] == "true"
        assert ran.outputs["changed-files"] == "a.txt"


# Without a sandbox


def offered(job: Job) -> set[str]:
    return {tool["name"] for tool in job.api.requests[-1].body["tools"]}


def test_without_a_sandbox_the_words_of_outsiders_find_no_shell(job: Job) -> None:
    job.module = NO_SANDBOX
    job.event["pull_request"]["user"]["login"] = "eve"
    ran = done(job)
    assert "bash" not in offered(job)
    assert any("no shell" in line for line in ran.annotations)


def test_without_a_sandbox_people_with_write_access_have_their_shell(job: Job) -> None:
    job.module = NO_SANDBOX
    done(job)
    assert "bash" in offered(job)


def test_a_person_may_switch_the_sandbox_off(job: Job) -> None:
    job.event["pull_request"]["user"]["login"] = "eve"
    done(job, sandbox="off")
    assert "bash" in offered(job)


def test_a_retry_offers_the_tools_that_the_first_attempt_did(tmp_path: Path) -> None:
    """What somebody without write access says meanwhile makes no other contract of it."""
    with stage(tmp_path, TWO_TURNS) as job:
        job.module = NO_SANDBOX
        job.kill_at_request(2)
        assert job.attempt(1).code == -9
        job.event["pull_request"]["user"]["login"] = "eve"
        done(job, 2)
        assert "bash" in offered(job)
