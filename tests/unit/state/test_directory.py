"""The state directory: ours alone, or not used."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from endstate_action.errors import InputError, StateError, StateReadOnly
from endstate_action.state.directory import StateDirectory, locate, workspace_at
from tests.support.trees import as_ordinary_user


def test_a_claimed_directory_ignores_itself_and_can_be_claimed_again(tmp_path: Path) -> None:
    state = locate(tmp_path, ".endstate")
    state.claim()
    state.claim()

    assert (state.path / ".gitignore").read_text() == "*\n"
    assert state.sessions.is_dir()
    assert state.path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("name", ["..", "../x", "/tmp", ".", "", ".git/x", "a/../.."])
def test_a_state_directory_lies_inside_the_workspace(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="inside the workspace"):
        locate(tmp_path, name)


def test_a_link_is_refused_and_its_target_untouched(tmp_path: Path) -> None:
    """C05: `.endstate` as a link that leads somewhere else."""
    target = tmp_path / "elsewhere"
    target.mkdir()
    workspace = tmp_path / "ws"
    workspace.mkdir()
    (workspace / ".endstate").symlink_to(target)

    with pytest.raises(StateError, match="symbolic link"):
        locate(workspace, ".endstate").claim()

    assert list(target.iterdir()) == []


@pytest.mark.parametrize("name", ["sessions", "lock", "tmp", "cache", "baseline"])
def test_a_link_inside_is_refused(tmp_path: Path, name: str) -> None:
    state = locate(tmp_path, ".endstate")
    state.claim()
    target = state.path / name
    if target.is_dir():
        target.rmdir()
    target.symlink_to(tmp_path)

    with pytest.raises(StateError, match="symbolic link"):
        state.claim()


def test_a_directory_of_somebody_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / ".endstate" / "sessions").mkdir(parents=True)
    (tmp_path / ".endstate" / "sessions" / "0123456789ab.db").write_text("forged")

    with pytest.raises(StateError, match="not made by endstate"):
        locate(tmp_path, ".endstate").claim()

    assert sorted(p.name for p in (tmp_path / ".endstate").rglob("*")) == ["0123456789ab.db", "sessions"]


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".endstate").write_text("")

    with pytest.raises(StateError, match="not a directory"):
        locate(tmp_path, ".endstate").claim()


@pytest.mark.parametrize("made", [(), (".gitignore",), (".gitignore", "endstate-state")])
def test_a_claim_that_was_killed_can_be_completed(tmp_path: Path, made: tuple[str, ...]) -> None:
    (tmp_path / ".endstate").mkdir()
    for name in made:
        (tmp_path / ".endstate" / name).write_text("")

    state = StateDirectory(tmp_path / ".endstate")
    state.claim()

    assert state.sessions.is_dir()
    state.claim()


def test_only_what_is_ours_and_temporary_is_cleared(tmp_path: Path) -> None:
    state = locate(tmp_path, ".endstate")
    state.claim()
    (state.cache / "snapshot-1").mkdir()
    kept = [
        state.sessions / "0123456789ab.db",
        state.sessions / "0123456789ab.db-wal",
        state.cache / "tree-0",
        state.cache / "snapshot-1" / "tree-0",
        state.baseline("0123456789ab"),
        tmp_path / "mine.part",
    ]
    temporary = [
        state.tmp / "view" / "config",
        state.sessions / ".new-1" / "session",
        state.sessions / "ffffffffffff.db-wal",
        state.cache / "tree-0.part",
        state.cache / "tree-0.probe",
        state.cache / "snapshot-1" / "tree-0.part",
        state.baseline("0123456789ab.part"),
    ]
    for path in (*kept, *temporary):
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")

    state.clear()

    assert [path for path in kept if not path.exists()] == []
    assert [path for path in temporary if path.exists()] == []


@pytest.mark.parametrize("place", ["d", "tmp", "cache", "sessions", "baseline", "cache/snapshot-1", "tmp/inner"])
def test_nothing_is_deleted_through_a_link(tmp_path: Path, place: str) -> None:
    out = tmp_path / "out"
    out.mkdir()
    precious = [out / name for name in ("a.part", "a.probe", ".new-1", "ffffffffffff.db-wal", "x")]
    for path in precious:
        path.write_text("mine")
    (tmp_path / "ws").mkdir()
    state = locate(tmp_path / "ws", ".endstate")
    state.claim()
    if (state.path / place).is_dir():
        (state.path / place).rmdir()
    (state.path / place).symlink_to(out)

    state.clear()

    assert sorted(out.iterdir()) == sorted(precious)


def test_any_link_in_it_is_refused(tmp_path: Path) -> None:
    state = locate(tmp_path, ".endstate")
    state.claim()
    (state.path / "objects").symlink_to(tmp_path)

    with pytest.raises(StateError, match="symbolic link"):
        state.confirm()


def test_a_link_on_the_way_to_it_is_refused(tmp_path: Path) -> None:
    workspace = tmp_path / "ws"
    (workspace / "real").mkdir(parents=True)
    (tmp_path / "out").mkdir()
    (workspace / "link").symlink_to(tmp_path / "out")
    (workspace / "real" / "link").symlink_to(tmp_path / "out")

    for name in ("link/st", "real/link/st", "link/a/b"):
        with pytest.raises(StateError, match="symbolic link"):
            locate(workspace, name)
    locate(workspace, "real/st").claim()

    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("closed", [".endstate", "."])
def test_a_closed_directory_is_named_with_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: str
) -> None:
    (tmp_path / "ws" / ".endstate").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "ws")
    (tmp_path / "ws" / closed).chmod(0)

    with as_ordinary_user(), pytest.raises(StateReadOnly, match="may not be read") as caught:
        StateDirectory(Path(".endstate")).confirm()

    (tmp_path / "ws" / closed).chmod(0o755)
    assert caught.value.exit_code == 4
    assert "chown" in caught.value.hint
    if closed == ".endstate":
        assert f"belongs to user {pwd.getpwuid(os.geteuid()).pw_name}" in str(caught.value)


def test_a_workspace_that_is_none_is_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()

    for name in (".", str(tmp_path / "gone"), str(tmp_path / "file")):
        with pytest.raises(InputError, match="nothing was run"):
            workspace_at(name)
