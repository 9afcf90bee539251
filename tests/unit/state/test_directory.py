"""The state directory: ours alone, or not used."""

from __future__ import annotations

from pathlib import Path

import pytest

from endstate_action.errors import InputError, StateError
from endstate_action.state.directory import StateDirectory, locate


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
