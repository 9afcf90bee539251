"""What the first step decides and hands over: the script of `action.yml` itself, on every kind of event."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.support import events
from tests.support.github_script import NODE, prepare

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(NODE is None, reason="there is no node here"),
]

CREDENTIALS = {
    "ACTIONS_RUNTIME_TOKEN": "header.payload.signature",
    "ACTIONS_RESULTS_URL": "https://results.example.invalid/",
    "ACTIONS_CACHE_URL": "https://cache.example.invalid/",
    "ACTIONS_CACHE_SERVICE_V2": "True",
    "ACTIONS_CACHE_MODE": "read",
}
BOT = events.user("renovate[bot]", "Bot")
FORKED = events.pull_request(head=events.FORK)


@contextmanager
def github_answers(status: int, body: Any) -> Iterator[tuple[str, list[str]]]:
    """An API that knows one pull request; yields where it is and what it was asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("event", "payload"),
    [
        ("pull_request", events.pull_request()),
        ("pull_request", events.pull_request("synchronize")),
        ("pull_request", events.labelled()),
        ("pull_request_target", events.pull_request()),
        ("issue_comment", events.issue_comment("/endstate fix it", on_pull=False)),
        ("issue_comment", events.issue_comment("/endstate", on_pull=False)),
        ("issue_comment", events.issue_comment("Please:\r\n/endstate\tfix it\r\nThanks.", on_pull=False)),
        ("pull_request_review_comment", events.review_comment("/endstate rename this")),
        ("pull_request_review", events.review("Nearly.\n\n/endstate rename this")),
        ("workflow_dispatch", events.workflow_dispatch()),
        ("schedule", events.schedule()),
        ("push", events.push()),
        ("workflow_run", events.workflow_run()),
        ("something_new", {}),
    ],
)
def test_what_may_run_runs_and_gets_the_caches_credentials(tmp_path, event, payload):
    done = prepare(tmp_path, event, payload, **CREDENTIALS)
    assert (done.code, done.skipped) == (0, "")
    assert done.outputs == {
        "runtime-token": "header.payload.signature",
        "results-url": "https://results.example.invalid/",
        "cache-url": "https://cache.example.invalid/",
        "cache-service-v2": "True",
        "cache-mode": "read",
    }


def test_the_token_is_masked_and_no_common_word_is(tmp_path):
    """To mask `True` would hide it from every log."""
    done = prepare(tmp_path, "push", events.push(), **CREDENTIALS)
    assert [line for line in done.out.splitlines() if "add-mask" in line] == ["::add-mask::header.payload.signature"]


def test_without_credentials_they_are_handed_over_empty(tmp_path):
    done = prepare(tmp_path, "push", events.push())
    assert (done.code, set(done.outputs.values())) == (0, {""})
    assert "add-mask" not in done.out


@pytest.mark.parametrize(
    ("event", "payload", "env", "why"),
    [
        ("merge_group", events.merge_group(), {}, "A merge queue tests what has been agreed on already."),
        ("issue_comment", events.issue_comment("Looks good"), {}, "No line of the comment begins with"),
        ("issue_comment", events.issue_comment("Try `/endstate fix it`"), {}, "No line of the comment begins with"),
        ("issue_comment", events.issue_comment("> /endstate fix it"), {}, "No line of the comment begins with"),
        ("issue_comment", events.issue_comment("/endstates"), {}, "No line of the comment begins with"),
        ("issue_comment", events.issue_comment(None), {}, "No line of the comment begins with"),
        ("issue_comment", events.issue_comment("/endstate", on_pull=False), {"TRIGGER_PHRASE": "@bot"}, "No line"),
        ("issue_comment", events.issue_comment("/endstate x", action="deleted"), {}, "when it is new, not later"),
        ("issue_comment", events.issue_comment("/endstate x", action="edited"), {}, "when it is new, not later"),
        ("pull_request_review", events.review("/endstate", "dismissed"), {}, "when it is new, not later"),
        ("pull_request_review", events.review(None), {}, "No line of the comment"),
        ("pull_request_review_comment", events.review_comment("Rename this"), {}, "No line of the comment"),
        ("pull_request_review_comment", events.review_comment("/endstate", events.FORK), {}, "comes from a fork"),
        ("pull_request", FORKED, {}, "The pull request comes from a fork, and allow-forks is false."),
        ("pull_request", events.pull_request(head=None), {}, "The pull request comes from a fork"),
        ("pull_request_target", FORKED, {}, "The pull request comes from a fork"),
        ("workflow_run", events.workflow_run(events.FORK), {}, "The pull request comes from a fork"),
        ("pull_request", FORKED, {"ALLOW_FORKS": "true", "HAS_KEY": "false"}, "Runs for forks get no secrets"),
        ("pull_request", events.pull_request(), {"GITHUB_ACTOR": "dependabot[bot]"}, "started by dependabot[bot]"),
        (
            "pull_request",
            events.pull_request(),
            {"GITHUB_ACTOR": "dependabot[bot]", "ALLOWED_BOTS": "dependabot", "HAS_KEY": "false"},
            "Runs for Dependabot get no secrets",
        ),
        ("pull_request", events.pull_request(sender=BOT), {"GITHUB_ACTOR": "renovate[bot]"}, "renovate[bot], which"),
        (
            "pull_request",
            events.pull_request(sender=BOT),
            {"GITHUB_ACTOR": "renovate[bot]", "ALLOWED_BOTS": "other[bot]"},
            "renovate[bot], which is not in allowed-bots.",
        ),
        (
            "issue_comment",
            events.issue_comment("/endstate", sender=events.user("Helper", "Bot")),
            {"GITHUB_ACTOR": "Helper"},
            "started by Helper, which is not in allowed-bots.",
        ),
    ],
)
def test_what_may_not_run_is_skipped_with_a_notice_and_gets_nothing(tmp_path, event, payload, env, why):
    done = prepare(tmp_path, event, payload, **CREDENTIALS, **env)
    assert done.code == 0
    assert why in done.skipped
    assert done.skipped.endswith(" Nothing was run.")
    assert done.outputs == {"skip": "true", "conclusion": "skipped"}


@pytest.mark.parametrize("listed", ["renovate[bot]", "Renovate", "one, renovate two", "one\nrenovate[bot]"])
def test_a_listed_bot_may_start_a_run(tmp_path, listed):
    payload = events.pull_request(sender=BOT)
    done = prepare(tmp_path, "pull_request", payload, GITHUB_ACTOR="renovate[bot]", ALLOWED_BOTS=listed)
    assert (done.code, done.skipped) == (0, "")


def test_on_a_rerun_the_command_judges_the_actor(tmp_path):
    """The recorded one decides, so that a watcher's token may re-run; what the event itself says still holds."""
    bot = {"GITHUB_ACTOR": "renovate[bot]", "GITHUB_RUN_ATTEMPT": "2"}
    assert prepare(tmp_path, "pull_request", events.pull_request(sender=BOT), **bot).skipped == ""
    assert "from a fork" in prepare(tmp_path, "pull_request", FORKED, GITHUB_RUN_ATTEMPT="2").skipped


def test_a_bot_that_last_edited_a_schedule_did_not_start_it(tmp_path):
    assert prepare(tmp_path, "schedule", events.schedule(), GITHUB_ACTOR="renovate[bot]").skipped == ""


@pytest.mark.parametrize(("value", "skipped"), [("true", False), ("yes", False), ("false", True)])
def test_a_value_that_cannot_be_is_left_to_the_command(tmp_path, value, skipped):
    assert bool(prepare(tmp_path, "pull_request", FORKED, ALLOW_FORKS=value).skipped) is skipped


@pytest.mark.parametrize(
    ("status", "head", "skipped"),
    [(200, events.REPOSITORY, False), (200, events.FORK, True), (200, None, True), (403, None, False)],
)
def test_where_a_commented_pull_request_comes_from_is_asked(tmp_path, status, head, skipped):
    """The event does not tell. Where nobody answers, the command asks again."""
    with github_answers(status, events.pull(head)) as (url, asked):
        done = prepare(tmp_path, "issue_comment", events.issue_comment("/endstate fix it"), GITHUB_API_URL=url)
    assert (done.code, bool(done.skipped)) == (0, skipped)
    assert asked == ["/repos/org/repo/pulls/7"]


def test_nothing_is_asked_for_a_comment_that_is_not_for_us(tmp_path):
    with github_answers(200, events.pull()) as (url, asked):
        prepare(tmp_path, "issue_comment", events.issue_comment("Looks good"), GITHUB_API_URL=url)
    assert asked == []


def test_names_from_the_event_cannot_become_a_command_of_the_runner(tmp_path):
    login = "x\n::set-output name=skip::false%[bot]"
    done = prepare(tmp_path, "push", events.push(), GITHUB_ACTOR=login)
    assert done.outputs["conclusion"] == "skipped"
    assert [line for line in done.out.splitlines() if line.startswith("::set-output")] == []
