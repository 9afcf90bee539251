"""A mistake in the inputs, a permission, the event: one annotation, no model call, nothing written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.messages_api import Refusal, answer
from tests.support.step import Job, Ran, stage, turns

pytestmark = pytest.mark.slow


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with stage(tmp_path, [answer("Done.")]) as job:
        yield job


def refused(job: Job, ran: Ran, *words: str, level: str = "error", is_claimed: bool = False) -> None:
    """It ended before anything was spent or written, and says why in one annotation, and in the summary of a failure.

    Args:
        is_claimed: whether it shows only after a number was claimed, as what has to be posted to be proved.
    """
    assert ran.code == (0 if level == "notice" else 2), ran.log
    assert ran.conclusion == ("skipped" if level == "notice" else "failed")
    assert len(ran.annotations) == 1, ran.log
    assert ran.annotations[0].startswith(f"::{level} ")
    for word in words:
        assert word in ran.annotations[0], ran.annotations[0]
    assert "Traceback" not in ran.log
    assert (job.api.requests, job.api.refused, job.github.comments) == ([], [], [])
    assert not [name for name in job.cache.stored if "/e0" not in name], job.cache.stored
    assert is_claimed or (not job.cache.stored and not (ran.workspace / ".endstate").exists())
    assert all(word in ran.summary for word in words if level == "error"), ran.summary


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("resume", "maybe"),
        ("commit", "push"),
        ("comment", "on"),
        ("job-summary", "yes"),
        ("required-permission", "read"),
        ("allowed-bots", "*"),
        ("allow-forks", "sure"),
        ("trigger-phrase", " /x"),
        ("on-mismatch", "ignore"),
        ("max-steps", "0"),
        ("max-cost-usd", "lots"),
        ("max-minutes", "0.5"),
        ("max-resumes", "-1"),
        ("sandbox", "perhaps"),
        ("network", "yes please"),
        ("store", "ftp://x"),
        ("store", "dir:relative/store"),
        ("store", "dir:/dev/null"),
        ("require-durable", "1"),
        ("provider", "nobody"),
        ("config-file", "/etc/passwd"),
        ("config-file", "../endstate.yml"),
        ("instructions", "/etc/passwd"),
        ("prompt-file", "a/../../prompt.md"),
        ("session-key", "a\nb"),
        ("matrix", "not JSON"),
        ("base-url", "nowhere"),
        ("state-dir", "../out"),
    ],
)
def test_an_unknown_value_is_named_before_anything_is_spent(job: Job, name: str, value: str) -> None:
    # What a store is, its directory has to be asked.
    refused(job, job.attempt(1, **{name: value}), name, is_claimed=value == "dir:/dev/null")


def test_a_provider_that_the_command_line_alone_has_is_neither_taken_nor_offered(job: Job) -> None:
    refused(job, job.attempt(1, provider="scripted"), 'provider: "scripted" cannot be used', "one of anthropic.")


def test_both_prompts_are_one_too_many(job: Job) -> None:
    refused(job, job.attempt(1, **{"prompt-file": "README.md"}), "prompt", "prompt-file")


def test_without_a_prompt_nothing_begins(job: Job) -> None:
    refused(job, job.attempt(prompt=""), "There is no prompt")


def test_a_prompt_file_that_is_not_at_the_trusted_commit_is_missing(job: Job) -> None:
    """The pull request adds feature.txt; what it brings is no instruction."""
    refused(job, job.attempt(1, **{"prompt": "", "prompt-file": "feature.txt"}), "prompt-file", "feature.txt")


@pytest.mark.parametrize("key", ["", " "])
def test_without_a_key_nothing_begins(job: Job, key: str) -> None:
    refused(job, job.attempt(1, **{"anthropic-api-key": key}), "anthropic-api-key is empty")


def test_a_configuration_that_names_a_file_of_the_machine_is_refused(tmp_path: Path) -> None:
    with stage(tmp_path, [answer("Done.")], {".github/endstate.yml": "instructions: /etc/passwd\n"}) as job:
        refused(job, job.attempt(), "instructions: ", "/etc/passwd", is_claimed=True)


def test_without_a_token_nothing_begins(job: Job) -> None:
    refused(job, job.attempt(1, **{"github-token": ""}), "github-token")


def test_an_expired_token_is_told_as_such(job: Job) -> None:
    ran = job.attempt(1, **{"github-token": "ghs_another"})
    refused(job, ran, "Bad credentials", "Nothing was run", "github-token")
    assert "ghs_another" not in ran.log


def test_without_a_workspace_it_is_no_step(job: Job) -> None:
    job.environ["GITHUB_WORKSPACE"] = ""
    refused(job, job.attempt(), "GITHUB_WORKSPACE")


@pytest.mark.parametrize("name", ["GITHUB_EVENT_PATH", "GITHUB_REPOSITORY", "GITHUB_RUN_ID", "GITHUB_ACTOR"])
def test_a_variable_of_the_runner_that_is_missing_is_named(job: Job, name: str) -> None:
    job.environ[name] = ""
    refused(job, job.attempt(), name)


def test_a_job_without_a_checkout_is_told_to_check_out(job: Job) -> None:
    job.checkout = ""
    refused(job, job.attempt(), "actions/checkout")


def test_a_working_directory_that_is_not_there_is_named(job: Job) -> None:
    refused(job, job.attempt(1, **{"working-directory": "nowhere"}), "working-directory", "nowhere")


def test_a_directory_inside_the_checkout_is_no_workspace(job: Job) -> None:
    job.prepare = lambda workspace: (workspace / "pkg").mkdir()
    ran = job.attempt(1, **{"working-directory": "pkg"})
    refused(
        job, ran, "/pkg is a directory inside the checkout", "the root of one", "let working-directory name that root"
    )
    assert "git is not installed" not in ran.log


def test_a_missing_permission_to_comment_ends_there_with_the_lines_to_paste(job: Job) -> None:
    job.github.fault("comment.create", "403")
    lines = "permissions:%0A  contents: read%0A  pull-requests: write%0A  actions: read"
    ran = job.attempt()
    refused(job, ran, "comment: sticky", "new run", is_claimed=True)
    assert lines in ran.annotations[0], "all that the job needs, since such a block takes away what it leaves out"


def test_on_an_issue_the_permission_to_comment_is_another(job: Job) -> None:
    job.event = {**job.event, "issue": {"number": 7, "title": "x", "body": "x", "user": job.event["sender"]}}
    del job.event["pull_request"]
    job.environ["GITHUB_EVENT_NAME"] = "issues"
    job.event["action"] = "labeled"
    job.github.fault("comment.create", "403")
    ran = job.attempt()
    refused(job, ran, "comment: sticky", is_claimed=True)
    assert "permissions:%0A  contents: read%0A  issues: write" in ran.annotations[0]


def test_a_missing_permission_to_write_contents_ends_there_with_the_lines_to_paste(job: Job) -> None:
    job.github.fault("blob.create", "403")
    ran = job.attempt(commit="branch")
    refused(job, ran, "commit: branch", "new run")
    assert "permissions:%0A  contents: write%0A  pull-requests: write" in ran.annotations[0]


@pytest.mark.parametrize(("status", "words"), [("422", ""), ("410", "Issues are disabled for this repo")])
def test_what_no_permission_would_change_is_told_without_lines_to_paste(job: Job, status: str, words: str) -> None:
    job.github.fault("comment.create", status, message=words)
    ran = job.attempt()
    refused(job, ran, "comment: sticky", status, "No permission would help", "another `comment`", is_claimed=True)
    assert "permissions:" not in ran.log


def test_the_head_must_be_checked_out_to_be_committed_to(job: Job) -> None:
    job.checkout = job.github.tip("main")
    refused(job, job.attempt(commit="pr-head"), "ref: ${{ github.event.pull_request.head.sha }}")


def test_the_head_of_a_fork_cannot_be_committed_to_and_that_is_the_reason(job: Job) -> None:
    job.happen("pull_request_target.fork")
    job.checkout = job.github.head_sha
    job.github.permissions["mallory"] = ("write", "write")
    ran = job.attempt(1, commit="pr-head", **{"allow-forks": "true"})
    refused(job, ran, "commit: pr-head", "a branch of a fork", "Set commit to branch")
    assert "actions/checkout" not in ran.log


def test_an_unreadable_configuration_leaves_no_comment(tmp_path: Path) -> None:
    with stage(tmp_path, [answer("Done.")], {".github/endstate.yml": "polizy: {}\n"}) as job:
        refused(job, job.attempt(), "polizy", is_claimed=True)


def test_the_default_branch_is_no_head_to_push_to(job: Job) -> None:
    job.event["pull_request"]["head"]["ref"] = job.event["repository"]["default_branch"]
    refused(job, job.attempt(commit="pr-head"), "the default branch", "Set commit to branch")


def test_who_may_not_comment_for_a_fork_is_told_what_can_be_changed(tmp_path: Path) -> None:
    with stage(tmp_path, turns(answer("Done."))) as job:
        job.happen("pull_request.fork")
        job.github.permissions["mallory"] = ("write", "write")
        job.github.fault("comment.create", "403", times=99)
        ran = job.attempt(1, **{"allow-forks": "true"})
        refused(job, ran, "`comment: off`", "Actions settings", is_claimed=True)


def test_a_sandbox_that_is_required_and_not_there_ends_it(job: Job) -> None:
    job.module = "tests.support.no_sandbox"
    refused(job, job.attempt(sandbox="required"), "sandbox", is_claimed=True)


def test_what_is_changed_on_the_machine_for_a_sandbox_is_said(tmp_path: Path) -> None:
    """Here the program that is installed is of no use, and yet it was installed."""
    with stage(tmp_path, turns(answer("Done."))) as job:
        job.module, stubs = "tests.support.no_sandbox", tmp_path / "stubs"
        stubs.mkdir()
        (stubs / "apt-get").write_text(f"#!/bin/sh\n: > {stubs}/bwrap\n/bin/chmod +x {stubs}/bwrap\n")
        (stubs / "apt-get").chmod(0o755)
        job.environ["STUBS"] = str(stubs)
        ran = job.attempt()
        assert (ran.code, (stubs / "bwrap").exists()) == (0, True), ran.log
        said = "changed on this machine, for the sandbox: bubblewrap was installed with apt-get."
        assert ran.log.splitlines().count(said) == 1, ran.log


def test_a_limit_that_cannot_be_kept_is_refused(job: Job) -> None:
    ran = job.attempt(1, **{"model": "claude-unknown-9", "max-cost-usd": "3"})
    refused(job, ran, "max-cost-usd", "claude-unknown-9", is_claimed=True)


def test_what_cannot_be_made_durable_is_refused_where_that_is_required(job: Job) -> None:
    job.environ["ACTIONS_RUNTIME_TOKEN"] = ""
    refused(job, job.attempt(1, **{"require-durable": "true"}), "Checkpoints cannot leave this machine")


def test_a_model_that_nobody_knows_ends_as_failed_and_the_comment_says_so(tmp_path: Path) -> None:
    """Only asking can tell, so this one is asked once; the comment does not go on saying that the run works."""
    with stage(tmp_path, [Refusal(404, "model: claude-nope", "not_found_error")]) as job:
        ran = job.attempt(model="claude-nope")
        assert (ran.code, ran.conclusion) == (2, "failed"), ran.log
        assert len(ran.annotations) <= 3
        assert "claude-nope" in ran.log
        (comment,) = job.github.comments
        assert '"state":"failed"' in comment["body"]
        assert "**Failed.**" in comment["body"]
