"""The example of docs/embedding.md, as anybody would run it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from endstate_action.state.session import SessionStore
from endstate_action.system.tree import scan

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "embedding.py"


def test_an_embedded_run_that_is_killed_in_a_call_is_finished_by_another_process(tmp_path: Path):
    place = tmp_path / "place"
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), str(place)], capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")

    assert (place / "ledger").read_text() == "0123456789ab/1.0 lamp\n"
    state = SessionStore(place / "sessions").read("0123456789ab")
    assert state.is_finished
    assert [e.epoch for e in state.ended] == [2], "the first attempt was killed"
    assert [s.action for s in state.settled] == ["adopt"]
    assert state.finished[1, 0].content == "Ordered lamp."
    assert done.stdout.splitlines()[-1] == scan(place / "workspace", ()).tree_hash
