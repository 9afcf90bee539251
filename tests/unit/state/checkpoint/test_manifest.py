"""A manifest is read as what it is: something that a store returned."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endstate_action.state.checkpoint.manifest import (
    MAX_MANIFEST_BYTES,
    MAX_OUTPUTS_BYTES,
    Manifest,
    NewerManifest,
    Part,
    needed,
    parse,
)
from endstate_action.state.keys import CheckpointKey
from tests.support.checkpoints import ABOUT, LINEAGE


def _key(epoch: int, sequence: int) -> str:
    return str(CheckpointKey(LINEAGE, epoch, sequence, 0))


PARTS = (Part(_key(1, 3), "1" * 64, 1, 20, 900, 90), Part(_key(1, 5), "2" * 64, 21, 25, 90, 9))
WHOLE = Manifest(ABOUT, 7, 2, _key(1, 6), 30, 26, PARTS, "a" * 40, "tree", 300, 30, 40, 12.5)
DONE = Manifest(ABOUT, 8, 2, None, 30, 31, (), None, "tree", 0, 0, 0, 12.5, is_done=True, outputs={"steps": "3"})


@pytest.mark.parametrize("manifest", [WHOLE, DONE])
def test_it_is_read_back_as_it_was_written(manifest):
    assert parse(manifest.encode()) == manifest
    assert b"\n" not in manifest.encode()


def test_what_a_checkpoint_needs_is_itself_and_its_parts():
    assert needed([WHOLE, DONE]) == {WHOLE.key, DONE.key, _key(1, 3), _key(1, 5)}


@pytest.mark.parametrize("name", ["format", "journal_format"])
def test_a_newer_format_is_told_whatever_else_is_in_it(name):
    with pytest.raises(NewerManifest, match="reads up to"):
        parse(json.dumps({"format": 1, "journal_format": 1, name: 2, "something": "new"}).encode())


def _broken(**changes):
    return pytest.param(changes, id=", ".join(f"{name}={str(value)[:30]}" for name, value in changes.items()))


@pytest.mark.parametrize(
    "changes",
    [
        _broken(sequence=-1),
        _broken(sequence=True),
        _broken(sequence="7"),
        _broken(sequence=7.0),
        _broken(sequence=1_000_000),
        _broken(effects=100_000),
        _broken(records=0),
        _broken(records=10**12),
        _broken(at="now"),
        _broken(at=True),
        _broken(at=10**400),
        _broken(at=float("nan")),
        _broken(at=float("inf")),
        _broken(at=-1.0),
        _broken(outputs={"cost": float("nan")}),
        _broken(root="../../etc"),
        _broken(root=None),
        _broken(pack_bytes=0),
        _broken(pack_bytes=10**12),
        _broken(rows_bytes=10**12),
        _broken(is_done=1),
        _broken(is_done=True),
        _broken(outputs=[]),
        _broken(outputs={"message": "x" * MAX_OUTPUTS_BYTES}),
        _broken(parts={}),
        _broken(parts=[None]),
        _broken(parts=[{}] * 65),
        _broken(first=1),
        _broken(first=27),
        _broken(tree_hash="x" * 2_000),
        _broken(extra=1),
        _broken(about=None),
        _broken(about={}),
        _broken(format=None),
    ],
)
def test_what_makes_no_sense_is_refused(changes):
    with pytest.raises(ValueError):
        parse(json.dumps(json.loads(WHOLE.encode()) | changes).encode())


@pytest.mark.parametrize(
    "part",
    [
        replace(PARTS[1], first=22),
        replace(PARTS[1], first=20),
        replace(PARTS[1], first=21, last=20),
        replace(PARTS[1], key=_key(1, 7)),
        replace(PARTS[1], key=_key(2, 5)),
        replace(PARTS[1], key=_key(1, 5).replace(LINEAGE, "f" * 32)),
        replace(PARTS[1], key="es1/else"),
        replace(PARTS[1], sha256="1" * 63),
        replace(PARTS[1], rows_bytes=256 * 1024 * 1024),
    ],
)
def test_a_part_that_cannot_be_one_is_refused(part):
    with pytest.raises(ValueError):
        parse(replace(WHOLE, parts=(PARTS[0], part)).encode())


@pytest.mark.parametrize("name", ["lineage", "session", "epoch", "object_format", "base_commit", "base_tree"])
@pytest.mark.parametrize("value", [5.5, "../x", "x" * 2_000, [], -1])
def test_of_whom_it_is_must_make_sense_too(name, value):
    whole = json.loads(WHOLE.encode())
    whole["about"][name] = value
    with pytest.raises(ValueError):
        parse(json.dumps(whole).encode())


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"\xff", b"NaN", b"[" * 100_000])
def test_what_is_no_object_is_refused(data):
    with pytest.raises(ValueError):
        parse(data)


def test_what_is_too_long_is_refused_unread():
    with pytest.raises(ValueError, match="too long"):
        parse(b" " * (MAX_MANIFEST_BYTES + 1))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=50)
@given(st.dictionaries(st.sampled_from(sorted(json.loads(WHOLE.encode()))), JSON))
def test_whatever_stands_in_its_fields_it_is_read_or_refused(changes):
    try:
        read = parse(json.dumps(json.loads(WHOLE.encode()) | changes).encode())
    except ValueError:
        return
    assert parse(read.encode()) == read
