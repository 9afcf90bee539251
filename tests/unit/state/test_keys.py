"""Names say where a checkpoint stands, and are not believed to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endstate_action.state.keys import (
    MAX_EFFECTS,
    MAX_EPOCH,
    MAX_SEQUENCE,
    CheckpointKey,
    claim_key,
    claimed_epoch,
    claims_prefix,
    is_lineage,
    lineage_of,
    sequence_prefix,
)

LINEAGE = "0123456789abcdef0123456789abcdef"
KEYS = st.builds(
    CheckpointKey,
    st.just(LINEAGE),
    st.integers(0, MAX_EPOCH),
    st.integers(0, MAX_SEQUENCE),
    st.integers(0, MAX_EFFECTS),
)


@given(KEYS, KEYS)
def test_the_order_of_names_is_the_order_of_checkpoints(a, b):
    assert (str(a) < str(b)) == (a < b)
    assert CheckpointKey.parse(str(a)) == a
    assert str(a).startswith(sequence_prefix(a.lineage, a.epoch, a.sequence))


@given(st.integers(0, MAX_EPOCH))
def test_a_claim_says_which_epoch_it_is(epoch):
    assert claimed_epoch(claim_key(LINEAGE, epoch)) == epoch
    assert claim_key(LINEAGE, epoch).startswith(claims_prefix(LINEAGE))


@pytest.mark.parametrize(
    "name",
    [
        "",
        "es1/",
        f"es1/{LINEAGE}/c0001-000001-0000",
        f"es1/{LINEAGE}/c0001-000001-00000\n",
        f"es1/{LINEAGE}/c0001-000001-00000x",
        f"es1/{LINEAGE}/c00010-000001-0000",
        f"es1/{LINEAGE.upper()}/c0001-000001-00000",
        f"es1/../{LINEAGE}/c0001-000001-00000",
        f"es1/{LINEAGE}/c\N{FULLWIDTH DIGIT ZERO}001-000001-00000",
    ],
)
def test_a_name_that_is_none_of_ours_is_no_checkpoint_and_no_claim(name):
    assert CheckpointKey.parse(name) is None
    assert claimed_epoch(name.replace("/c", "/e")) is None


def test_two_tasks_never_share_a_lineage():
    assert is_lineage(lineage_of("a/b", "c"))
    assert lineage_of("a/b", "c") != lineage_of("a", "b/c")
    assert lineage_of("a/b", "c") == lineage_of("a/b", "c")
