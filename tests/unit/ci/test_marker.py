"""The marker: found again by us, never forged by a quotation, never ended early by what is in it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endstate_action.ci.marker import MAX_CHARACTERS, Marker, owner_of, parse_marker
from tests.support.results import BASE, COMMIT, HASH, OWNER, SESSION, TREE

MARKER = Marker(OWNER, SESSION, 1, 3, "working")
RESULT = Marker(OWNER, SESSION, 2, 0, "success", BASE, COMMIT, TREE, HASH)


@pytest.mark.parametrize("marker", [MARKER, RESULT])
@pytest.mark.parametrize("below", ["", "\nDone.", "\r\nDone, edited in a browser.\r\n"])
def test_a_marker_is_read_back_from_the_first_line(marker, below):
    assert parse_marker(marker.line() + below) == marker


def test_a_marker_cannot_end_its_comment_early():
    inner = RESULT.line().removeprefix("<!-- ").removesuffix(" -->")
    assert not {"<", ">"} & set(inner)
    assert "--" not in inner
    assert inner.isascii()
    assert len(RESULT.line()) < MAX_CHARACTERS


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("> {marker}", id="quoted"),
        pytest.param("```\n{marker}\n```", id="in a code block"),
        pytest.param("`{marker}`", id="in a code span"),
        pytest.param("    {marker}", id="indented"),
        pytest.param("\n{marker}", id="in the second line"),
        pytest.param("Look: {marker}", id="behind other text"),
        pytest.param("{marker} and more", id="before other text"),
    ],
)
def test_a_marker_elsewhere_than_where_we_write_it_is_not_ours(body):
    assert parse_marker(body.format(marker=MARKER.line())) is None


@pytest.mark.parametrize(
    "changed",
    [
        {"owner": "x"},
        {"owner": OWNER.upper()},
        {"session": "../../etc"},
        {"session": None},
        {"effects": -1},
        {"effects": True},
        {"effects": 1.0},
        {"effects": 10**30},
        {"task": 0},
        {"state": "done"},
        {"state": ["working"]},
        {"base": "main"},
        {"tree": 7},
        {"hash": "et2:" + "e" * 64},
        {"hash": HASH + "\n"},
    ],
)
def test_a_marker_with_a_wrong_field_is_none(changed):
    fields = {"owner": OWNER, "session": SESSION, "task": 1, "effects": 3, "state": "working"}
    assert parse_marker(f"<!-- endstate:v1 {json.dumps(fields)} -->") == MARKER
    assert parse_marker(f"<!-- endstate:v1 {json.dumps(fields | changed)} -->") is None


@pytest.mark.parametrize("inner", ["", "[]", "{", '{"owner":' * 100, "null", "{" * 900 + "}" * 50])
def test_what_is_no_object_is_no_marker(inner):
    assert parse_marker(f"<!-- endstate:v1 {inner} -->") is None


def test_keys_of_a_later_release_do_not_hide_a_comment():
    line = MARKER.line().replace("{", '{"added":"later",')
    assert parse_marker(line) == MARKER


def test_a_marker_that_nobody_could_read_back_is_not_written():
    with pytest.raises(ValueError, match="read back"):
        Marker("--> <b>", SESSION, 1, 0, "working").line()


def test_every_slot_has_a_name_of_its_own():
    slots = [("w", "j", "s", 1), ("w", "j", "s", 2), ("w", "j", "t", 1), ("w", "js", "", 1), ("wj", "", "s", 1)]
    assert len({owner_of(*slot) for slot in slots}) == len(slots)
    assert parse_marker(Marker(owner_of("ü\n", "", '"', 7), SESSION, 1, 0, "working").line())


@given(st.text())
def test_any_text_is_parsed_or_is_no_marker(text):
    assert parse_marker(text) is None
    assert parse_marker(f"<!-- endstate:v1 {text} -->") is None
