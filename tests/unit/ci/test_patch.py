"""The patch: applied to a clean checkout of the base, it gives the tree it was made of."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from endstate_action.ci.patch import SHOWN_CHARACTERS, SHOWN_LINES
from endstate_action.system.tree import scan
from tests.support.repos import GitRepo
from tests.support.results import applied, changed, published


def test_base_and_patch_make_the_published_tree(git_repo: GitRepo, tmp_path: Path):
    """Modes, links, deletions, binary files, renames, no newline at the end, odd names."""
    repo = git_repo()
    base = changed(repo)
    result, patch = published(repo, base, tmp_path / "tmp")
    clone = applied(repo, base, patch.data, tmp_path / "clone")
    assert clone.git("write-tree") == result.git_tree
    assert scan(clone.path).tree_hash == result.tree_hash


@pytest.mark.parametrize("attributes", ["* -diff\n", "* diff\n", "* text=auto\n", "*.bat text eol=crlf\n"])
def test_attributes_change_how_a_patch_looks_and_not_what_it_does(git_repo: GitRepo, tmp_path: Path, attributes):
    repo = git_repo({"a.txt": "1\n", "x.bat": "1\n2\n", "bin": b"\0\xff\n" * 100})
    base = repo.git("rev-parse", "HEAD")
    repo.write({".gitattributes": attributes, "a.txt": "2\n", "x.bat": "1\r\n3\r\n", "bin": b"\0\xfe\n\r" * 100})
    result, patch = published(repo, base, tmp_path / "tmp")
    assert applied(repo, base, patch.data, tmp_path / "clone").git("write-tree") == result.git_tree


def test_a_user_s_own_wishes_do_not_change_a_patch(git_repo: GitRepo, tmp_path: Path):
    repo = git_repo({"a.txt": "1\n", "b.txt": "same\n" * 20})
    base = repo.git("rev-parse", "HEAD")
    repo.write({"a.txt": "2\n"})
    os.rename(repo.path / "b.txt", repo.path / "c.txt")
    _, plain = published(repo, base, tmp_path / "tmp")
    for key in ("diff.noprefix", "diff.mnemonicPrefix", "color.ui", "diff.renames", "core.quotePath"):
        repo.git("config", key, "false" if key == "diff.renames" else "true" if key != "color.ui" else "always")
    _, patch = published(repo, base, tmp_path / "tmp")
    assert patch == plain
    assert b"rename from b.txt" in patch.data


def test_no_change_is_no_patch(git_repo: GitRepo, tmp_path: Path):
    repo = git_repo()
    _, patch = published(repo, repo.git("rev-parse", "HEAD"), tmp_path / "tmp")
    assert (patch.data, patch.shown, patch.hidden_lines) == (b"", "", 0)


def test_what_is_shown_is_bounded_and_the_rest_is_counted(git_repo: GitRepo, tmp_path: Path):
    repo = git_repo()
    base = repo.git("rev-parse", "HEAD")
    repo.write({"long": "line\n" * 5000})
    _, patch = published(repo, base, tmp_path / "tmp")
    assert len(patch.shown.split("\n")) == SHOWN_LINES
    assert len(patch.shown.split("\n")) + patch.hidden_lines == 5006
    repo.write({"long": "x" * 100_000})
    _, patch = published(repo, base, tmp_path / "tmp")
    assert len(patch.shown) <= SHOWN_CHARACTERS


def test_binary_content_is_mentioned_and_not_shown(git_repo: GitRepo, tmp_path: Path):
    repo = git_repo()
    base = repo.git("rev-parse", "HEAD")
    repo.write({"bin": os.urandom(10_000), "latin": b"caf\xe9\n"})
    _, patch = published(repo, base, tmp_path / "tmp")
    assert "Binary files" in patch.shown
    assert "GIT binary patch" not in patch.shown
    assert "caf\ufffd" in patch.shown
