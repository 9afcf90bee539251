"""Who may have an agent work here, from values alone."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endstate_action.ci.event import Actor, Event, parse_event
from endstate_action.ci.trust import (
    LEVELS,
    Allowed,
    Level,
    Recorded,
    Refused,
    Required,
    Rules,
    Skipped,
    actor_of,
    decide,
    parse_rules,
    permission_level,
    request,
    skipped,
    with_pull_request,
)
from endstate_action.errors import InputError
from tests.support.payloads import environment, event, payload

RULES = Rules()
OPEN_TO_FORKS = Rules(forks=True)
LISTED = Rules(bots=frozenset({"renovate", "dependabot"}))


def known(situation: str, **changed: str) -> Event:
    """The event, with what a comment's payload leaves out asked for, as the command does."""
    found = event(situation, **changed)
    pull_request = event("pull_request.opened").pull_request
    assert pull_request is not None
    return with_pull_request(found, pull_request) if found.is_fork is None else found


@pytest.mark.parametrize(
    "situation",
    [
        *("pull_request.opened", "pull_request.synchronize", "pull_request.labeled", "issue_comment.pull-request"),
        *("issue_comment.issue", "pull_request_review_comment.created", "pull_request_review.submitted"),
        *("issues.labeled", "push", "workflow_dispatch", "repository_dispatch", "workflow_run", "release"),
    ],
)
def test_somebody_with_the_permission_is_allowed_and_nobody_else(situation: str):
    found = known(situation)

    assert decide(found, RULES, "write") == Allowed(actor_of(found))
    assert isinstance(decide(found, RULES, "read"), Refused)
    assert isinstance(decide(found, RULES, None), Refused)


@pytest.mark.parametrize(
    ("situation", "rules", "reason"),
    [
        ("pull_request.fork", RULES, "fork"),
        ("pull_request.fork-deleted", RULES, "fork"),
        ("pull_request_target.fork", RULES, "fork"),
        ("workflow_run.fork", RULES, "fork"),
        ("pull_request.dependabot", RULES, "Dependabot"),
        ("pull_request.bot", RULES, "allowed-bots"),
        ("merge_group", RULES, "merge queue"),
        ("merge_group", Rules(bots=frozenset({"github-merge-queue"})), "merge queue"),
        ("issue_comment.no-phrase", RULES, "begins with /endstate"),
        ("issue_comment.issue", Rules(phrase="/agent"), "begins with /agent"),
        ("pull_request_review.no-body", RULES, "begins with /endstate"),
        ("issue_comment.edited", RULES, "not when it is edited"),
        ("issue_comment.deleted", RULES, "not when it is deleted"),
        ("issue_comment.own", Rules(bots=frozenset({"github-actions"})), "our own"),
    ],
)
def test_what_is_not_meant_for_us_is_skipped_without_a_question(situation: str, rules: Rules, reason: str):
    found = skipped(event(situation), rules)

    assert found is not None
    assert reason in found.reason
    assert found.reason.endswith("Nothing was run.")
    assert decide(event(situation), rules, "admin") == found


def test_an_edited_comment_of_an_outsider_does_not_borrow_the_editors_permission():
    found = event("issue_comment.edited")

    assert found.actor.login == "alice"
    assert actor_of(found).login == "mallory"
    assert isinstance(decide(found, RULES, "admin"), Skipped)


@pytest.mark.parametrize("situation", ["pull_request.fork", "pull_request_target.fork", "workflow_run.fork"])
def test_a_fork_that_is_allowed_still_needs_an_actor_with_the_permission(situation: str):
    assert isinstance(decide(event(situation), OPEN_TO_FORKS, "read"), Refused)
    assert isinstance(decide(event(situation), OPEN_TO_FORKS, "write"), Allowed)


def test_a_comment_on_a_forks_pull_request_is_skipped_once_that_is_known():
    comment = event("issue_comment.pull-request")
    fork = event("pull_request.fork").pull_request
    assert fork is not None

    assert skipped(comment, RULES) is None
    assert isinstance(decide(with_pull_request(comment, fork), RULES, "admin"), Skipped)


def test_where_a_pull_request_comes_from_is_never_guessed():
    comment = event("issue_comment.pull-request")

    assert isinstance(decide(comment, RULES, "admin"), Refused)
    assert isinstance(decide(comment, OPEN_TO_FORKS, "admin"), Allowed)


@pytest.mark.parametrize("situation", ["pull_request.bot", "pull_request.dependabot"])
def test_a_listed_bot_is_allowed_since_github_has_no_permission_for_it(situation: str):
    assert isinstance(decide(event(situation), LISTED, "none"), Allowed)


@pytest.mark.parametrize("login", ["renovate", "renovate-bot", "xrenovate[bot]", "renovate[bot][bot]"])
def test_a_person_is_not_a_listed_bot_by_having_its_name(login: str):
    """E17: a name that ends as a bot's, or is one's without the suffix, is no permission."""
    data = payload("pull_request.opened")
    data["sender"]["login"] = login
    try:
        found = parse_event(environment("pull_request.opened", GITHUB_ACTOR=login), json.dumps(data).encode())
    except InputError:
        return  # not even a login
    assert not isinstance(decide(found, LISTED, "none"), Allowed)


def test_a_schedule_is_asked_for_by_the_workflow_and_not_by_its_last_editor():
    for login in ("octocat", "web-flow", "dependabot[bot]"):
        assert isinstance(decide(event("schedule", GITHUB_ACTOR=login), RULES, "none"), Allowed)


def test_on_a_rerun_who_asked_decides_and_not_who_reruns():
    """A watcher re-runs with the job's token; the run keeps its actor, and the session has it on record."""
    recorded = Recorded(Actor("alice"), run_id=4242)
    again = known("pull_request.opened", GITHUB_RUN_ATTEMPT="2", GITHUB_TRIGGERING_ACTOR="github-actions[bot]")
    by_app = known("pull_request.opened", GITHUB_RUN_ATTEMPT="2", GITHUB_ACTOR="github-actions[bot]")

    assert decide(again, RULES, "write") == Allowed(Actor("alice"))
    assert decide(by_app, RULES, "write", recorded) == Allowed(Actor("alice"))
    assert isinstance(decide(by_app, RULES, "write"), Skipped)


def test_on_a_rerun_the_permission_is_todays():
    """E17: a permission that was removed between two attempts is gone."""
    again = known("pull_request.opened", GITHUB_RUN_ATTEMPT="2")

    assert isinstance(decide(again, RULES, "read", Recorded(Actor("alice"), 4242)), Refused)


@pytest.mark.parametrize(
    ("attempt", "run_id"), [pytest.param("1", 4242, id="the first attempt"), pytest.param("2", 1, id="another run")]
)
def test_a_record_of_something_else_lends_nobody_its_permission(attempt: str, run_id: int):
    """A session may be shared by runs of several people: each is asked for by its own."""
    recorded = Recorded(Actor("alice"), run_id)

    assert actor_of(event("issue_comment.outsider", GITHUB_RUN_ATTEMPT=attempt), recorded).login == "mallory"


@pytest.mark.parametrize("required", get_args(Required))
def test_a_permission_is_enough_from_the_required_one_on(required: Required):
    order: list[Level] = ["none", "read", "triage", "write", "maintain", "admin"]
    allowed = [isinstance(decide(event("push"), Rules(required=required), level), Allowed) for level in order]

    assert allowed == [order.index(level) >= order.index(required) for level in order]


@pytest.mark.parametrize(
    ("permission", "role", "level"),
    [
        ("admin", "", "admin"),
        ("write", "maintain", "maintain"),
        ("read", "triage", "triage"),
        ("write", "release-managers", "write"),
        ("none", "", "none"),
        ("owner", "everything", "none"),
        ("", "", "none"),
    ],
)
def test_a_role_that_is_not_known_counts_as_the_permission_behind_it(permission: str, role: str, level: Level):
    assert permission_level(permission, role) == level
    assert level in LEVELS


# The phrase


@pytest.mark.parametrize(
    ("body", "asked"),
    [
        ("/endstate fix it", "fix it"),
        ("/endstate", ""),
        ("/endstate\nfix it\n\nplease", "fix it\n\nplease"),
        ("/endstate\tfix it", "fix it"),
        ("Thanks!\r\n/endstate fix it\r\nnow", "fix it\nnow"),
        ("/endstated fix it", None),
        ("/endstate: fix it", None),
        (" /endstate fix it", None),
        ("> /endstate fix it", None),
        ("please /endstate fix it", None),
        ("/Endstate fix it", None),
        ("<!--\n/endstate fix it\n-->", None),
        ("/endstate\u200b fix it", None),
        ("/endstate-x\n/endstate fix it", "fix it"),
        ("", None),
    ],
)
def test_the_phrase_begins_a_line_and_is_a_word_of_its_own(body: str, asked: str | None):
    assert request(body, "/endstate") == asked


def test_a_phrase_is_text_and_no_pattern():
    assert request("@bot fix", "@b.t") is None
    assert request("@b.t (x) fix", "@b.t (x)") == "fix"


@given(st.text(max_size=100), st.text(max_size=20))
def test_a_phrase_is_found_only_where_a_line_begins_with_it(before: str, after: str):
    found = request(f"{before}/endstate{after}", "/endstate")

    if found is not None:
        assert before == "" or before[-1] in "\r\n" or "\n/endstate" in after


# The inputs


def test_inputs_become_rules():
    rules = parse_rules(
        {
            "trigger-phrase": "@agent please",
            "required-permission": "maintain",
            "allowed-bots": "renovate[bot], Octo-App\nci-bot[bot]",
            "allow-forks": "true",
        }
    )

    assert rules == Rules("maintain", frozenset({"renovate", "octo-app", "ci-bot"}), True, "@agent please")
    assert parse_rules(dict.fromkeys(["trigger-phrase", "allowed-bots"], "")) == parse_rules({}) == Rules()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("allow-forks", "yes"),
        ("required-permission", "owner"),
        ("required-permission", "none"),
        ("required-permission", "read"),
        ("allowed-bots", "*"),
        ("allowed-bots", "a;b"),
        ("allowed-bots", ","),
        ("trigger-phrase", " "),
        ("trigger-phrase", "/a\n/b"),
        ("trigger-phrase", "x" * 101),
        ("trigger-phrase", "a\u202eb"),
    ],
)
def test_an_input_that_cannot_be_used_is_named(name: str, text: str):
    with pytest.raises(InputError, match=f"{name}: .*nothing was started") as caught:
        parse_rules({name: text})

    assert name in caught.value.hint


@given(st.sampled_from(LEVELS[:3]), st.booleans(), st.sampled_from(["alice", "evil[bot]", "renovate", "x[bot]"]))
def test_nobody_below_the_required_permission_is_ever_allowed(level: Level, forks: bool, login: str):
    data: dict[str, Any] = payload("pull_request.fork")
    data["sender"] = {"login": login, "type": "User"}
    found = parse_event(environment("pull_request.fork", GITHUB_ACTOR=login), json.dumps(data).encode())

    assert not isinstance(decide(found, Rules(forks=forks), level), Allowed)
