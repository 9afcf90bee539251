"""A restore is on record until it is whole, and whoever finds that record goes on with nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from endstate_action.errors import StateError
from endstate_action.restoring import refuse_unfinished, unfinished
from endstate_action.state.directory import StateDirectory
from endstate_action.state.keys import CheckpointKey

KEY = CheckpointKey("0123456789ab", 2, 7, 1)


@pytest.fixture
def state(tmp_path: Path) -> StateDirectory:
    found = StateDirectory(tmp_path / ".endstate")
    found.claim()
    return found


def test_without_a_record_nothing_is_unfinished(state: StateDirectory):
    assert unfinished(state) is None
    refuse_unfinished(state)


def test_a_record_names_what_was_to_be_restored_and_how_it_is_finished(state: StateDirectory):
    state.restore_log.write_text(json.dumps({"key": str(KEY)}))
    assert unfinished(state) == KEY
    with pytest.raises(StateError, match="neither its nor yours") as refused:
        refuse_unfinished(state)
    assert f"--resume --session {KEY.lineage}" in refused.value.hint
    assert state.restore_log.exists()


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"[]", b"7", b'{"key": 7}', b'{"key": "es1/../../x"}', b"[" * 100_000, b"\xff\xfe", b"\0" * 50]
)
def test_a_record_that_tells_nothing_is_refused_with_what_to_do(state: StateDirectory, text: bytes):
    state.restore_log.write_bytes(text)
    with pytest.raises(StateError) as refused:
        unfinished(state)
    assert "Delete the state directory" in refused.value.hint


def test_a_record_that_is_a_link_is_not_followed(state: StateDirectory, tmp_path: Path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text(json.dumps({"key": str(KEY)}))
    state.restore_log.symlink_to(elsewhere)
    with pytest.raises(StateError):
        unfinished(state)
