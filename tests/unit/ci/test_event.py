"""An event is what GitHub says it is, or an error that says what to check."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endstate_action.ci import event as module
from endstate_action.ci.event import Actor, Comment, parse_comment, parse_event, parse_pull_request, read_event
from endstate_action.errors import InputError
from tests.support.payloads import BASE, HEAD, SITUATIONS, environment, event, payload


@pytest.mark.parametrize("situation", SITUATIONS)
def test_every_event_is_read_from_its_file(situation: str):
    found = read_event(environment(situation))

    assert found.name == situation.partition(".")[0]
    assert found.repository == module.Repository("octo-org/hello", 1296269, "main")
    assert found.run.id == 4242
    assert found.actor.login


@pytest.mark.parametrize(
    ("situation", "number", "pull_request", "is_fork"),
    [
        ("pull_request.opened", 12, 12, False),
        ("pull_request.labeled", 12, 12, False),
        ("pull_request.fork", 12, 12, True),
        ("pull_request.fork-deleted", 12, 12, True),
        ("pull_request_target.fork", 12, 12, True),
        ("issue_comment.pull-request", 12, 12, None),
        ("issue_comment.issue", 7, None, False),
        ("pull_request_review_comment.created", 12, 12, False),
        ("pull_request_review.submitted", 12, 12, False),
        ("issues.labeled", 7, None, False),
        ("push", None, None, False),
        ("workflow_dispatch", None, None, False),
        ("repository_dispatch", None, None, False),
        ("schedule", None, None, False),
        ("merge_group", None, None, False),
        ("workflow_run", None, None, False),
        ("workflow_run.fork", None, None, True),
        ("release", None, None, False),
    ],
)
def test_the_subject_of_an_event(situation: str, number: int | None, pull_request: int | None, is_fork: bool | None):
    found = event(situation)

    assert (found.number, found.pull_request_number, found.is_fork) == (number, pull_request, is_fork)


@pytest.mark.parametrize(
    ("situation", "ref", "branch"),
    [
        ("pull_request.opened", "refs/pull/12/merge", "fix-parser"),
        ("pull_request_target.fork", "refs/heads/main", None),
        ("issue_comment.pull-request", "refs/heads/main", None),
        ("issues.labeled", "refs/heads/main", "main"),
        ("push", "refs/heads/a/b", "a/b"),
        ("push", "refs/tags/v1", None),
        ("merge_group", "refs/heads/gh-readonly-queue/main/pr-7-abc", None),
    ],
)
def test_the_branch_that_a_result_is_for(situation: str, ref: str, branch: str | None):
    assert event(situation, GITHUB_REF=ref).branch == branch


def test_a_pull_request_has_its_commits_and_its_origin():
    found = event("pull_request.fork").pull_request

    assert found is not None
    assert (found.head_sha, found.base_sha) == (HEAD, BASE)
    assert (found.head_ref, found.base_ref) == ("main", "main")
    assert found.head_repository == "mallory/hello"
    assert found.author == Actor("mallory")
    assert found.association == "FIRST_TIME_CONTRIBUTOR"


def test_a_comment_on_a_line_of_the_diff_has_its_place():
    found = event("pull_request_review_comment.created").comment

    assert found == Comment(
        kind="review-comment",
        id=284312630,
        author=Actor("alice"),
        association="MEMBER",
        body="/endstate This returns None for empty input.",
        path="src/parser.py",
        line=14,
        diff_hunk="@@ -10,3 +10,5 @@ def parse(text):\n+    if not text:\n+        return None",
    )


def test_a_comment_on_a_line_that_is_gone_keeps_the_line_it_had():
    data = payload("pull_request_review_comment.created")
    data["comment"]["line"] = None

    assert parse_comment(data["comment"], "review-comment").line == 14


def test_a_review_without_words_is_a_comment_that_says_nothing():
    found = event("pull_request_review.no-body").comment

    assert found is not None
    assert (found.kind, found.body) == ("review", "")


@pytest.mark.parametrize(
    ("situation", "place"),
    [
        ("issue_comment.pull-request", "pull/12#issuecomment-"),
        ("issue_comment.issue", "issues/7#issuecomment-"),
        ("pull_request_review_comment.created", "pull/12#discussion_r"),
        ("pull_request_review.submitted", "pull/12#pullrequestreview-"),
    ],
)
def test_the_comment_that_asked_has_an_address(situation, place):
    found = event(situation)
    assert found.comment is not None
    assert found.asked_in == f"https://github.com/octo-org/hello/{place}{found.comment.id}"


def test_where_no_comment_asked_there_is_no_address():
    assert event("pull_request.fork").asked_in is None


def test_our_own_comments_are_known_by_their_beginning_alone():
    own, quoting = (
        event("issue_comment.own").comment,
        event("issue_comment.issue", body="see <!-- endstate:1 -->").comment,
    )

    assert own is not None
    assert own.is_ours
    assert quoting is not None
    assert not quoting.is_ours


@pytest.mark.parametrize(
    ("situation", "changed", "is_bot"),
    [
        ("pull_request.opened", {}, False),
        ("pull_request.dependabot", {}, True),
        ("pull_request.bot", {}, True),
        ("schedule", {"GITHUB_ACTOR": "github-actions[bot]"}, True),
        ("workflow_run", {"GITHUB_ACTOR": "someone-else"}, False),
    ],
)
def test_who_started_the_run_is_known_for_a_person_or_a_bot(situation: str, changed: dict[str, str], is_bot: bool):
    assert event(situation, **changed).actor.is_bot == is_bot


def test_a_bot_whose_login_does_not_say_so_is_one_by_its_type():
    data = payload("pull_request.opened")
    data["sender"].update(login="Copilot", type="Bot")

    found = parse_event(environment("pull_request.opened", GITHUB_ACTOR="copilot"), json.dumps(data).encode())
    assert found.actor == Actor("Copilot", is_bot=True)


def test_the_name_of_the_repository_is_todays_and_not_the_payloads():
    found = event("pull_request.opened", GITHUB_REPOSITORY="octo-org/renamed", GITHUB_REPOSITORY_ID="")

    assert (found.repository.full_name, found.repository.id) == ("octo-org/renamed", 1296269)


def test_an_unknown_event_with_an_empty_payload_has_its_run():
    """act gives `{}` for an event without a file."""
    found = parse_event(environment("push", GITHUB_EVENT_NAME="brand_new", GITHUB_SHA=""), b"{}")

    assert (found.name, found.run.attempt, found.repository.id) == ("brand_new", 1, 1296269)


def test_a_pull_request_from_the_api_is_the_one_in_a_payload():
    data = payload("pull_request.fork")

    assert parse_pull_request(data["pull_request"]) == event("pull_request.fork").pull_request


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("GITHUB_EVENT_NAME", "", "GITHUB_EVENT_NAME is not set"),
        ("GITHUB_EVENT_NAME", "a b", "GITHUB_EVENT_NAME: "),
        ("GITHUB_EVENT_PATH", "", "GITHUB_EVENT_PATH is not set"),
        ("GITHUB_EVENT_PATH", "/nowhere/event.json", "cannot be read"),
        ("GITHUB_EVENT_PATH", "/", "GITHUB_EVENT_PATH"),
        ("GITHUB_EVENT_PATH", "a\0b", "cannot be read"),
        ("GITHUB_EVENT_PATH", "/dev/zero", "names no plain file"),
        ("GITHUB_REPOSITORY", "hello", "GITHUB_REPOSITORY: "),
        ("GITHUB_REPOSITORY", "a/b/../c", "GITHUB_REPOSITORY: "),
        ("GITHUB_ACTOR", "", "GITHUB_ACTOR is not set"),
        ("GITHUB_ACTOR", "a\n::error::b", "GITHUB_ACTOR: "),
        ("GITHUB_RUN_ID", "0", "GITHUB_RUN_ID: "),
        ("GITHUB_RUN_ID", "1e9", "GITHUB_RUN_ID: "),
        ("GITHUB_RUN_ATTEMPT", "-1", "GITHUB_RUN_ATTEMPT: "),
        ("GITHUB_SHA", "main", "GITHUB_SHA is no commit id"),
        ("GITHUB_API_URL", "https://user:hunter2@api", "GITHUB_API_URL: "),
    ],
)
def test_a_variable_that_is_not_what_a_runner_sets_is_named(name: str, value: str, said: str):
    with pytest.raises(InputError, match=said) as caught:
        read_event(environment("push") | {name: value})

    assert "nothing was" in str(caught.value)
    assert str(caught.value).isprintable()
    assert "hunter2" not in str(caught.value)
    assert caught.value.hint


def _without(data: dict[str, Any], place: str) -> dict[str, Any]:
    *way, last = place.split(".")
    at = data
    for step in way:
        at = at[step]
    del at[last]
    return data


def _with(data: dict[str, Any], place: str, value: Any) -> dict[str, Any]:
    *way, last = place.split(".")
    at = data
    for step in way:
        at = at[step]
    at[last] = value
    return data


@pytest.mark.parametrize(
    ("situation", "place"),
    [
        ("pull_request.opened", "pull_request"),
        ("pull_request.opened", "pull_request.number"),
        ("pull_request.opened", "pull_request.head"),
        ("pull_request.opened", "pull_request.head.sha"),
        ("pull_request.opened", "pull_request.base.repo"),
        ("issue_comment.issue", "issue"),
        ("issue_comment.issue", "comment"),
        ("issue_comment.issue", "comment.id"),
        ("pull_request_review.submitted", "review"),
        ("issues.opened", "issue.number"),
    ],
)
def test_what_is_missing_in_a_payload_is_named_by_its_place(situation: str, place: str):
    data = _without(payload(situation), place)

    with pytest.raises(InputError, match=place.replace(".", r"\.")) as caught:
        parse_event(environment(situation), json.dumps(data).encode())
    assert "GITHUB_EVENT_PATH" in caught.value.hint


@pytest.mark.parametrize(
    ("situation", "place", "value"),
    [
        ("pull_request.opened", "pull_request.number", "12"),
        ("pull_request.opened", "pull_request.number", True),
        ("pull_request.opened", "pull_request.number", -1),
        ("pull_request.opened", "pull_request.number", 2**63),
        ("pull_request.opened", "pull_request.head.sha", "--upload-pack=x"),
        ("pull_request.opened", "pull_request.head.sha", HEAD.upper()),
        ("pull_request.opened", "pull_request.title", {"a": 1}),
        ("pull_request.opened", "pull_request.head.repo", []),
        ("pull_request.opened", "pull_request.head.repo.full_name", "../../x"),
        ("pull_request.opened", "sender", "alice"),
        ("pull_request.opened", "sender.login", "a\nb"),
        ("issue_comment.issue", "comment.user.login", "::error::"),
        ("issue_comment.issue", "comment.body", 5),
    ],
)
def test_what_has_another_shape_in_a_payload_is_refused(situation: str, place: str, value: Any):
    data = _with(payload(situation), place, value)

    with pytest.raises(InputError, match=place.replace(".", r"\.")) as caught:
        parse_event(environment(situation), json.dumps(data).encode())
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"null", b"{", b"\xff\xfe", b"[" * 200_000, b'{"a":' * 100_000, b"1" * 9_999]
)
def test_what_is_no_json_object_is_refused(data: bytes):
    with pytest.raises(InputError, match="the payload is no JSON"):
        parse_event(environment("push"), data)


def test_a_payload_without_end_is_not_read_to_its_end(tmp_path: Path):
    path = tmp_path / "event.json"
    with path.open("wb") as file:
        file.truncate(module.MAX_PAYLOAD_BYTES + 1)

    with pytest.raises(InputError, match="is longer than"):
        read_event(environment("push", GITHUB_EVENT_PATH=str(path)))


def test_a_payload_that_is_a_pipe_does_not_hang(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(InputError, match="names no plain file"):
        read_event(environment("push", GITHUB_EVENT_PATH=str(tmp_path / "pipe")))


@pytest.mark.parametrize("ref", ["main", "a;id", "../../x", "-rf", "x" * 250, "refs/heads/refs/heads/x", "$(id)"])
def test_a_branch_of_any_name_is_text(ref: str):
    """E19: names of branches are data."""
    data = _with(payload("pull_request.fork"), "pull_request.head.ref", ref)
    found = parse_event(environment("pull_request.fork"), json.dumps(data).encode())

    assert found.pull_request is not None
    assert found.pull_request.head_ref == ref


def test_half_a_character_in_a_title_becomes_one_that_can_be_sent():
    data = _with(payload("pull_request.opened"), "pull_request.title", "a\ud800b")
    found = parse_event(environment("pull_request.opened"), json.dumps(data).encode())

    assert found.pull_request is not None
    assert found.pull_request.title == "a\ufffdb"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
places = st.sampled_from(
    ["pull_request", "pull_request.head", "pull_request.head.repo", "pull_request.user", "comment", "comment.user",
     "comment.id", "comment.line", "sender", "repository", "repository.id", "action", "label"]
)  # fmt: skip


@given(places, json_values)
def test_no_payload_is_a_defect_of_ours(place: str, value: Any):
    data = _with(payload("pull_request_review_comment.created"), place, value)
    with contextlib.suppress(InputError):
        parse_event(environment("pull_request_review_comment.created"), json.dumps(data).encode())
