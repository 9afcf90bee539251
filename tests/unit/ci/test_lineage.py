"""Attempts of one step find each other, and nobody else's."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endstate_action.ci.lineage import (
    Claimant,
    claimant,
    lineage,
    matrix_digest,
    parse_context,
    refuse_collision,
    session_id,
)
from endstate_action.errors import InputError
from tests.support.payloads import environment, event

DEFAULT = lineage(event("pull_request.opened"), {"matrix": "null"})


def text(
    situation: str = "pull_request.opened", key: str = "", matrix: str = "null", step: str = "", **changed: str
) -> str:
    return lineage(event(situation, **changed), {"session-key": key, "matrix": matrix, "step": step}).text


@pytest.mark.parametrize(
    "changed",
    [
        {"GITHUB_RUN_ATTEMPT": "2"},
        {"GITHUB_SHA": "0" * 40},
        {"GITHUB_TRIGGERING_ACTOR": "github-actions[bot]"},
        {"GITHUB_REPOSITORY": "octo-org/renamed"},
        {"RUNNER_NAME": "another"},
    ],
)
def test_the_next_attempt_of_a_run_finds_the_one_before(changed: dict[str, str]):
    assert text(**changed) == DEFAULT.text


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"GITHUB_RUN_ID": "4243"}, id="another run"),
        pytest.param({"GITHUB_JOB": "agent-2"}, id="another job, as a retry job is"),
        pytest.param({"GITHUB_ACTION": "__octo-org_endstate-action_2"}, id="the second use in the job"),
        pytest.param({"GITHUB_ACTION": "review"}, id="a step with an id"),
        pytest.param({"step": "review"}, id="a step that the caller names"),
        pytest.param({"matrix": '{"os": "a"}'}, id="a matrix"),
        pytest.param({"GITHUB_WORKFLOW_REF": "octo-org/hello/.github/workflows/other.yml@refs/heads/main"}, id="file"),
        pytest.param({"GITHUB_REPOSITORY_ID": "5"}, id="another repository"),
        pytest.param({"key": "pr"}, id="an explicit key"),
    ],
)
def test_what_is_another_piece_of_work_has_another_lineage(changed: dict[str, Any]):
    assert text(**changed) != DEFAULT.text


def test_the_callers_name_for_the_step_counts_where_it_is_known():
    """Inside an action a runner may tell the step its own name, which every use shares."""
    first, second = (text(step=f"__octo-org_endstate-action{n}", GITHUB_ACTION="run") for n in ("", "_2"))

    assert first == DEFAULT.text
    assert second != first


def test_two_callers_of_a_reusable_workflow_cannot_be_told_apart_and_so_need_a_key():
    """Each sees the workflow ref of the caller's file and the id of the called job."""
    assert text() == text()
    assert text(key="caller-a") != text(key="caller-b")


def test_a_key_without_the_run_makes_one_session_of_a_pull_request():
    first, second = text(key="pr"), text(key="pr", GITHUB_RUN_ID="5555", GITHUB_JOB="other", matrix='{"a": 1}')

    assert first == second
    assert text("issue_comment.pull-request", key="pr") == first


def test_a_key_never_reaches_another_pull_request_issue_or_repository():
    keys = [
        text(key="pr"),
        text("issues.opened", key="pr"),
        text("push", key="pr"),
        text(key="pr", GITHUB_REPOSITORY_ID="5"),
    ]

    assert len(set(keys)) == 4


@given(st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=30))
def test_no_key_can_be_written_that_is_a_default(key: str):
    assert text(key=key) != DEFAULT.text
    assert text(key=key).isascii()
    assert text(key=key).isprintable()


@pytest.mark.parametrize("ref", ["main", "a;id", "../../x", "-rf", "x" * 250, 'a","b', "refs/heads/refs/heads/x"])
def test_a_ref_of_any_name_is_only_text(ref: str):
    """E19: what the store's names are made of is one quoted text."""
    found = text(GITHUB_WORKFLOW_REF=f"octo-org/hello/.github/workflows/endstate.yml@{ref}")

    assert json.loads(found)[3].endswith(ref)


@pytest.mark.parametrize("key", ["a\nb", " a", "a ", "x" * 201, "a\u202eb", "\u200b"])
def test_a_key_that_cannot_be_read_is_refused(key: str):
    with pytest.raises(InputError, match="session-key") as caught:
        text(key=key)

    assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", ["GITHUB_JOB", "GITHUB_ACTION"])
def test_a_runner_that_does_not_say_which_step_this_is_needs_a_key(name: str):
    with pytest.raises(InputError, match=name) as caught:
        text(**{name: ""})

    assert "session-key" in caught.value.hint
    assert text(key="mine", **{name: ""})


# The contexts


@pytest.mark.parametrize("context", ["", " ", "null", "{}", "null\n"])
def test_a_context_that_is_not_there_is_an_empty_one(context: str):
    assert parse_context("matrix", context) == {}
    assert matrix_digest(context) == ""


@pytest.mark.parametrize("context", ["[]", "1", '"x"', "{", "[" * 100_000, "true", '{"a":"' + "x" * 1_000_001 + '"}'])
def test_a_context_of_another_shape_is_named(context: str):
    with pytest.raises(InputError, match="The context matrix cannot be read") as caught:
        parse_context("matrix", context)

    assert len(str(caught.value)) < 300


def test_a_matrix_is_known_by_its_values_in_whatever_order():
    one = matrix_digest('{"os": "a", "python": {"v": [1, 2]}}')

    assert one == matrix_digest('{"python":{"v":[1,2]},"os":"a"}')
    assert one != matrix_digest('{"os": "a", "python": {"v": [2, 1]}}')


# Collisions


def job(number: int | str | None, attempt: str = "1", **changed: str) -> Claimant:
    found = environment("push", GITHUB_RUN_ATTEMPT=attempt, **changed)
    return claimant(event("push", GITHUB_RUN_ATTEMPT=attempt), found, json.dumps({"check_run_id": number}))


def test_two_jobs_of_one_attempt_under_one_default_are_refused_with_the_remedy():
    with pytest.raises(InputError, match="Another job of this run") as caught:
        refuse_collision(DEFAULT, job(1), job(2))

    assert "session-key" in caught.value.hint


@pytest.mark.parametrize(
    ("mine", "other"),
    [
        pytest.param(job(1), job(1), id="the same job, started again"),
        pytest.param(job(2, "2"), job(1, "1"), id="the attempt before"),
        pytest.param(job(1), job(None), id="nobody can tell"),
        pytest.param(job(None), job(None, RUNNER_TRACKING_ID="github_a"), id="nor here"),
    ],
)
def test_what_is_no_second_job_for_certain_goes_on(mine: Claimant, other: Claimant):
    refuse_collision(DEFAULT, mine, other)


def test_retry_jobs_share_a_key_on_purpose():
    refuse_collision(lineage(event("push"), {"session-key": "retry"}), job(1), job(2))


def test_a_job_is_known_by_its_runner_where_github_does_not_number_it():
    """act and older servers give no number."""
    one, two = (job(None, RUNNER_TRACKING_ID=f"github_{x}") for x in "ab")

    with pytest.raises(InputError):
        refuse_collision(DEFAULT, one, two)


@pytest.mark.parametrize("number", [True, "x\ny", "", 1.5, [], None])
def test_a_number_that_is_none_names_no_job(number: Any):
    assert job(number, RUNNER_TRACKING_ID="a b").job == ""


# The session's id


def test_a_session_id_is_twelve_digits_that_hang_on_lineage_and_task():
    ids = {session_id("a" * 32, 1), session_id("a" * 32, 2), session_id("b" * 32, 1)}

    assert len(ids) == 3
    assert all(len(i) == 12 and int(i, 16) >= 0 for i in ids)
    assert session_id("a" * 32, 1) == session_id("a" * 32, 1)
