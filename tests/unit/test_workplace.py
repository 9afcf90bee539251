"""The directory that calls work in stays open to who runs them."""

from __future__ import annotations

import os
import stat

import pytest

from endstate_action.workplace import reopen
from tests.support.trees import as_ordinary_user
from tests.support.workspaces import a_place_for_anybody


@pytest.mark.parametrize("mode", [0o000, 0o555, 0o300])
def test_a_workspace_that_a_call_closed_is_open_again(mode: int) -> None:
    with a_place_for_anybody() as place, as_ordinary_user():
        (place.root / ".endstate").mkdir()
        place.root.chmod(mode)

        reopen(place.root, ".endstate")

        assert stat.S_IMODE(place.root.stat().st_mode) == mode | 0o700


def test_a_directory_without_a_session_keeps_its_mode() -> None:
    with a_place_for_anybody() as place, as_ordinary_user():
        place.root.chmod(0o000)
        reopen(place.root, ".endstate")
        assert stat.S_IMODE(place.root.stat().st_mode) == 0


def test_what_is_no_directory_of_ours_is_left_alone() -> None:
    with a_place_for_anybody() as place, as_ordinary_user():
        (place.root / "file").touch(0o400)
        (place.root / "link").symlink_to(place.root)
        reopen(place.root / "file")
        reopen(place.root / "absent")
        place.root.chmod(0o500)
        reopen(place.root / "link")
        assert stat.S_IMODE(place.root.stat().st_mode) == 0o500
        assert stat.S_IMODE(os.stat(place.root / "file").st_mode) == 0o400
