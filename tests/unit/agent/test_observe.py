"""What is recorded of the workspace is what is there, whoever wrote the cache."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from endstate_action.agent.observe import Observer, changed_since, keep_baseline, was_killed_in_opaque_call
from endstate_action.effects import EffectClass
from endstate_action.messages import Message, ToolCall, Usage
from endstate_action.state.records import Finished, Observed, Replied, Started, StartEnded
from endstate_action.state.session import SessionStore
from endstate_action.system.tree import Scan, StatCache, scan
from endstate_action.system.tree_format import Directory
from tests.support.trees import file, make


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return make(tmp_path / "ws", [file(b"a", b"one"), file(b"d/b", b"two")])


def observer(workspace: Path) -> Observer:
    return Observer(workspace, (".endstate",), cache=workspace / ".endstate" / "cache")


def change_and_forge(workspace: Path) -> Observed:
    """Edit a file so that the cache says it was not; returns what was recorded before."""
    before = observer(workspace).now()
    (workspace / "a").write_bytes(b"two")
    aside = StatCache(workspace / ".endstate" / "aside")
    new = scan(workspace, [b".endstate"], aside).root
    for _ in range(100):
        # Until everything is old enough for its signature to be kept.
        time.sleep(0.01)
        new = scan(workspace, [b".endstate"], aside).root
    old = before.scan.root
    lie = Directory(old.listing, old.digest, new.children, new.names, new.stats)
    Scan(lie, (b".endstate",)).save(workspace / ".endstate" / "cache" / f"tree-{os.geteuid()}")
    return before.recorded(1, 1.0)


def test_a_forged_cache_is_not_believed_where_it_is_doubted(workspace: Path) -> None:
    last = change_and_forge(workspace)
    assert observer(workspace).now().tree_hash == last.tree_hash
    doubting = observer(workspace)
    doubting.doubt()

    seen = doubting.now()

    assert seen.tree_hash == scan(workspace, [b".endstate"]).tree_hash != last.tree_hash
    assert "a (changed)" in (doubting.difference(last, seen, ()) or "")
    assert observer(workspace).now().tree_hash == seen.tree_hash


def test_a_call_that_could_write_anything_leaves_no_forged_cache_behind(workspace: Path) -> None:
    running = observer(workspace)
    running.now()
    change_and_forge(workspace)

    seen = running.now(doubtful=True)

    assert seen.tree_hash == scan(workspace, [b".endstate"]).tree_hash
    assert observer(workspace).now().tree_hash == seen.tree_hash


def test_a_forged_list_of_names_is_not_told(workspace: Path) -> None:
    last = observer(workspace).now().recorded(1, 1.0)
    kept = workspace / ".endstate" / "cache" / f"tree-{os.geteuid()}"
    true = Scan.load(kept)
    assert true is not None
    lie = Directory(Directory.of({}, {}).listing, true.root.digest, {}, b"", b"")
    Scan(lie, true.excluded).save(kept)
    (workspace / "a").write_bytes(b"other")
    doubting = observer(workspace)
    doubting.doubt()

    told = doubting.difference(last, doubting.now(), ())

    assert told is not None
    assert "which ones is not known" in told


@pytest.mark.parametrize("effect", list(EffectClass))
def test_only_an_opaque_call_without_an_outcome_casts_doubt(tmp_path: Path, effect: EffectClass) -> None:
    with SessionStore(tmp_path, filesystem="ext4").create() as session:
        asked = Message.assistant("", ToolCall("c0", "t", {}))
        session.append(Replied(1, "m", "m", asked.blocks, "tool_use", Usage(), None, 1.0, 1))
        assert not was_killed_in_opaque_call(session.state)
        session.append(Started(1, 0, "c0", effect, 1, 1.0, "t"))
        assert was_killed_in_opaque_call(session.state) is (effect is EffectClass.OPAQUE)
        session.append(StartEnded(1, 0, 1, "SIGTERM"))
        assert was_killed_in_opaque_call(session.state) is (effect is EffectClass.OPAQUE)
        session.append(Finished(1, 0, "c0", "ok", "x", 1, 1.0))
        assert not was_killed_in_opaque_call(session.state)


def test_changed_files_are_files(workspace: Path) -> None:
    (workspace / "old").mkdir()
    keep_baseline(workspace / ".endstate" / "baseline", observer(workspace).now())
    (workspace / "old").rmdir()
    (workspace / "new").mkdir()
    (workspace / "d" / "b").unlink()
    (workspace / "d" / "b").mkdir()
    (workspace / "link").symlink_to("new")
    # A directory that took a file's place is told by that file, which is gone.
    found = changed_since(workspace / ".endstate" / "baseline", observer(workspace).now().scan)
    assert found == {"d/b": "deleted", "link": "added"}
