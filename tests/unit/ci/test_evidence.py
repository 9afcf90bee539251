"""Evidence: written one way, read back strictly, described by a schema that is published."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endstate_action.ci.evidence import MAX_BYTES, Settlement, parse_evidence, schema
from endstate_action.errors import InputError, NewerFormat
from tests.support.results import interrupted_result, plain_result

PUBLISHED = Path(__file__).parents[3] / "docs" / "reference" / "evidence.schema.json"


@pytest.mark.parametrize("made", [plain_result(), interrupted_result()])
def test_evidence_is_read_back_as_it_was(made):
    text = made.to_json()
    assert parse_evidence(text, "it") == made
    assert parse_evidence(text.encode(), "it").to_json() == text


def test_the_same_evidence_is_the_same_text():
    made = interrupted_result()
    shuffled = json.dumps(dict(reversed(json.loads(made.to_json()).items())))
    assert parse_evidence(shuffled, "it").to_json() == made.to_json()


@given(st.text(), st.text())
def test_any_text_of_others_survives_and_moves_no_cursor(reason, tool):
    settled = Settlement(step=1, call=1, tool=tool, action="refuse", reason=reason, attempt=1)
    made = plain_result().model_copy(update={"settlements": (settled,)})
    text = made.to_json()
    assert text.isascii()
    assert all(character == "\n" or character.isprintable() for character in text)
    assert parse_evidence(text, "it") == made


def test_half_a_character_is_replaced_where_it_comes_in():
    settled = Settlement(step=1, call=1, tool="bash", action="refuse", reason="half \ud83d", attempt=1)
    made = plain_result().model_copy(update={"settlements": (settled,)})
    assert "half \\ufffd" in made.to_json()


def _changed(**changes: object) -> str:
    return json.dumps(json.loads(plain_result().to_json()) | changes)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        pytest.param("", "the file", id="empty"),
        pytest.param("[]", "the file", id="no object"),
        pytest.param(plain_result().to_json()[:200], "the file", id="cut short"),
        pytest.param("[" * 100_000, "the file", id="nested without end"),
        pytest.param(_changed(extra=1), "extra", id="an unknown key"),
        pytest.param(_changed(steps="23"), "steps", id="a number as text"),
        pytest.param(_changed(steps=-1), "steps", id="below zero"),
        pytest.param(_changed(steps=True), "steps", id="a switch for a number"),
        pytest.param(_changed(session="x" * 12), "session", id="a session id that is none"),
        pytest.param(_changed(conclusion="done"), "conclusion", id="an unknown word"),
        pytest.param(_changed(trees={"git-tree": "HEAD"}), "trees.git-tree", id="a name for an object id"),
        pytest.param(
            _changed(trees={"published-hash": "et1:" + "e" * 64 + "\n"}), "trees.published-hash", id="a line end"
        ),
        pytest.param(_changed(format="1"), "format", id="a format as text"),
    ],
)
def test_what_is_no_evidence_is_refused_and_the_place_is_named(text, named):
    with pytest.raises(InputError, match=f"^it is no evidence that can be read: {named}") as caught:
        parse_evidence(text, "it")
    assert caught.value.hint


def test_evidence_of_a_newer_release_is_said_to_be_that():
    with pytest.raises(NewerFormat, match="format 2, and this release reads up to 1"):
        parse_evidence(_changed(format=2, unheard_of={}), "it")


def test_too_much_is_not_even_parsed():
    with pytest.raises(InputError, match="larger than 32 MiB"):
        parse_evidence(b" " * (MAX_BYTES + 1), "it")


def test_the_published_schema_is_that_of_the_code():
    assert PUBLISHED.read_text(encoding="ascii") == schema()


def test_the_schema_allows_nothing_that_is_refused():
    described = json.loads(schema())
    assert all(part["additionalProperties"] is False for part in (described, *described["$defs"].values()))
    assert "restored-from" in described["$defs"]["Attempt"]["properties"]
