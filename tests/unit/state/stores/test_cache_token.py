"""What the runner's token says of itself is read, and nothing it could hold is a failure."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endstate_action.state.stores.cache_token import CacheToken, read_token
from tests.support.cache_rules import make_token, unsigned

UNKNOWN = CacheToken(None, None, None)


def test_scopes_and_expiry_are_read_in_their_order():
    said = read_token(make_token("refs/pull/7/merge", ("refs/heads/dev", "refs/heads/main"), expires_at=1_800_000_000))
    readable = ("refs/pull/7/merge", "refs/heads/dev", "refs/heads/main")
    assert said == CacheToken(readable, ("refs/pull/7/merge",), 1_800_000_000.0)
    assert not said.is_read_only


@pytest.mark.parametrize(
    "scopes", [[], [{"Scope": "refs/heads/main", "Permission": 1}], [{"Scope": "a", "Permission": 4}]]
)
def test_a_token_without_a_writable_scope_is_read_only(scopes):
    assert read_token(unsigned({"ac": json.dumps(scopes)})).is_read_only


@pytest.mark.parametrize(
    "claim",
    [
        None,
        [],
        "",
        "null",
        "{}",
        "[1]",
        '[{"Scope": "a"}]',
        '[{"Scope": 1, "Permission": 3}]',
        '[{"Scope": "a", "Permission": "3"}]',
        '[{"Scope": "a", "Permission": 1}, {}]',
        "[" * 100_000,
    ],
)
def test_what_is_not_understood_says_nothing_and_so_denies_nothing(claim):
    said = read_token(unsigned({"ac": claim, "exp": 1_800_000_000}))
    assert said == CacheToken(None, None, 1_800_000_000.0)
    assert not said.is_read_only


@pytest.mark.parametrize("expiry", ["soon", -1, 1e300, float("nan"), None, []])
def test_an_expiry_that_is_no_time_is_none(expiry):
    assert read_token(unsigned({"exp": expiry})) == UNKNOWN


@pytest.mark.parametrize("token", ["", "..", "a.b", "a.!!!!.c", "a.\xe9.c", "a.W10.c", "a.b.c.d", "." * 1000])
def test_garbage_says_nothing(token):
    assert read_token(token) == UNKNOWN


@settings(max_examples=50)
@given(st.text() | st.tuples(st.text(), st.text(), st.text()).map(".".join))
def test_no_text_is_a_failure(token):
    read_token(token)


@settings(max_examples=50)
@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(), lambda c: st.lists(c) | st.dictionaries(st.text(), c)
    )
)
def test_no_claim_is_a_failure(claim):
    read_token(unsigned({"ac": json.dumps(claim), "exp": claim}))
