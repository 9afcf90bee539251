"""What is ignored is what git says is ignored for this user, and no file of rules can hold a snapshot up."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from endstate_action.state.snapshot.ignored import MAX_BYTES, ignored_paths, user_excludes_file
from tests.support.repos import Repo
from tests.support.workspaces import Place, swap_in

pytestmark = pytest.mark.slow

FILES = {"a.log": "1", "keep.log": "2", "build/out": "3", "x.pyc": "4", "d/y.pyc": "5", "plain": "6"}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "ws").mkdir()
    repo = Repo(tmp_path / "ws")
    repo.git("init", "--quiet", "--initial-branch=main", "--template=")
    repo.commit({".gitignore": "*.pyc\n"})
    repo.write(FILES)
    (repo.path / ".git" / "info").mkdir()
    return Place(repo.path)


def environment(home: Path, **more: str) -> dict[str, str]:
    home.mkdir(exist_ok=True)
    return {"PATH": os.environ["PATH"], "HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1", **more}


def ours(place: Place, env: dict[str, str]) -> set[bytes]:
    git = place.root / ".git"
    found = ignored_paths(place.objects(), place.root, git, git, user_excludes_file(place.root, git, env))
    return {path for path in found if not path.startswith(b".endstate")}


def gits(place: Place, env: dict[str, str]) -> set[bytes]:
    argv = ["git", "ls-files", "--others", "--ignored", "--directory", "-z", "--exclude-standard"]
    found = subprocess.run(argv, cwd=place.root, env=env, capture_output=True, check=True).stdout.split(b"\0")
    return {path for path in found if path and not path.startswith(b".endstate")}


def named_by_the_user(place: Place, home: Path) -> dict[str, str]:
    (home / "my-rules").write_text("*.log\nbuild/\n")
    (home / ".gitconfig").write_text("[core]\n\texcludesFile = ~/my-rules\n")
    return environment(home)


def where_git_looks_by_itself(place: Place, home: Path) -> dict[str, str]:
    (home / ".config" / "git").mkdir(parents=True)
    (home / ".config" / "git" / "ignore").write_bytes(b"\xef\xbb\xbf*.log")
    return environment(home)


def where_xdg_says(place: Place, home: Path) -> dict[str, str]:
    (home / "xdg" / "git").mkdir(parents=True)
    (home / "xdg" / "git" / "ignore").write_text("build\n")
    return environment(home, XDG_CONFIG_HOME=str(home / "xdg"))


def named_by_the_repository(place: Place, home: Path) -> dict[str, str]:
    (place.root / "rules").write_text("plain\n")
    Repo(place.root).git("config", "core.excludesFile", "rules")
    return environment(home)


def taken_back_by_the_project(place: Place, home: Path) -> dict[str, str]:
    """Its own rules come after the user's, and those of a `.gitignore` after both."""
    (place.root / ".git" / "info" / "exclude").write_text("!keep.log\nplain\n")
    (place.root / "d" / ".gitignore").write_text("!y.pyc\n")
    return named_by_the_user(place, home)


def named_as_nothing(place: Place, home: Path) -> dict[str, str]:
    where_git_looks_by_itself(place, home)
    (home / ".gitconfig").write_text("[core]\n\texcludesFile =\n")
    return environment(home)


def not_there(place: Place, home: Path) -> dict[str, str]:
    (home / ".gitconfig").write_text("[core]\n\texcludesFile = /nowhere/at/all\n")
    return environment(home)


@pytest.mark.parametrize(
    "situation",
    [
        named_by_the_user,
        where_git_looks_by_itself,
        where_xdg_says,
        named_by_the_repository,
        taken_back_by_the_project,
        named_as_nothing,
        not_there,
    ],
)
def test_what_git_ignores_for_this_user_is_ignored(
    place: Place, tmp_path: Path, situation: Callable[[Place, Path], dict[str, str]]
):
    home = tmp_path / "home"
    home.mkdir()
    env = situation(place, home)
    expected = gits(place, env)
    assert ours(place, env) == expected
    assert b"x.pyc" in expected


def a_fifo(file: Path) -> None:
    os.mkfifo(file)


def a_link_to_a_fifo(file: Path) -> None:
    os.mkfifo(file.with_name("elsewhere"))
    file.symlink_to("elsewhere")


def endless(file: Path) -> None:
    file.symlink_to("/dev/zero")


def too_long(file: Path) -> None:
    file.write_bytes(b"*.log\n" + b"#" * MAX_BYTES)


def a_directory(file: Path) -> None:
    file.mkdir()


def closed(file: Path) -> None:
    file.symlink_to(file.name)


@pytest.mark.parametrize("make", [a_fifo, a_link_to_a_fifo, endless, too_long, a_directory, closed])
@pytest.mark.parametrize("whose", ["user", "project"])
def test_a_file_of_rules_that_is_none_holds_nothing_up(
    place: Place, tmp_path: Path, make: Callable[[Path], None], whose: str
):
    home = tmp_path / "home"
    env = environment(home)
    (home / ".gitconfig").write_text(f"[core]\n\texcludesFile = {home}/rules\n")
    swap_in(home / "rules" if whose == "user" else place.root / ".git" / "info" / "exclude", make)
    began = time.monotonic()
    assert ours(place, env) == {b"x.pyc", b"d/", b"d/y.pyc"}
    assert time.monotonic() - began < 3


def test_a_gitignore_that_is_a_fifo_costs_the_rules_and_some_seconds(place: Place, tmp_path: Path):
    """Git waits there for a writer; all is kept then, since nobody can tell what is ignored."""
    swap_in(place.root / "d" / ".gitignore", os.mkfifo)
    assert ours(place, environment(tmp_path / "home")) == set()
    assert place.store(ignored_max_files=0).take().exact


def test_without_git_there_is_no_user_s_file(place: Place, tmp_path: Path):
    env = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    assert user_excludes_file(place.root, place.root / ".git", {"PATH": os.environ["PATH"]}) is None
    assert user_excludes_file(place.root, place.root / ".git", env) == tmp_path / ".config" / "git" / "ignore"
