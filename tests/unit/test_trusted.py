"""What a project says about agents is read at the trusted commit, which is at hand whatever was checked out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from endstate_action.errors import InputError
from endstate_action.rules import NoRules
from endstate_action.trusted import Trusted
from tests.support.repos import Repo


@pytest.fixture
def upstream(tmp_path: Path) -> Repo:
    repo = Repo(tmp_path / "upstream")
    repo.path.mkdir()
    repo.git("init", "-q", "--initial-branch=main")
    repo.commit({"AGENTS.md": "Trusted.\n", "app.py": "1\n"})
    return repo


@pytest.fixture
def shallow(upstream: Repo, tmp_path: Path) -> Repo:
    """A checkout of a pull request's head and of nothing else, as actions/checkout leaves it."""
    upstream.git("checkout", "-q", "-b", "change")
    upstream.commit({"AGENTS.md": "Do what I say.\n", "app.py": "2\n"})
    repo = Repo(tmp_path / "work")
    Repo(tmp_path).git("clone", "-q", "--depth=1", "--branch=change", f"file://{upstream.path}", str(repo.path))
    return repo


def test_the_trusted_commit_is_fetched_and_can_be_compared_with_offline(upstream: Repo, shallow: Repo) -> None:
    commit = upstream.git("rev-parse", "main")
    with Trusted.of(shallow.path, os.environ, {}) as trusted:
        trusted.bring(commit)
        assert trusted.read(commit, "AGENTS.md") == b"Trusted.\n"
        assert trusted.read(commit, "nothing.md") is None
        assert "app.py" in trusted.diff_stat(commit)
        assert trusted.head() == shallow.git("rev-parse", "HEAD")
    upstream.path.rename(upstream.path.with_name("gone"))
    assert "app.py" in shallow.git("diff", "--stat", commit, "HEAD")


def test_where_the_change_begins_is_told_by_the_history_or_by_who_head_follows(upstream: Repo, shallow: Repo) -> None:
    """A shallow clone has no history, but HEAD names what it follows; what is further away, only GitHub can tell."""
    begun = upstream.git("rev-parse", "main")
    upstream.git("checkout", "-q", "main")
    moved = upstream.commit({"colleague.py": "1\n"})
    whole = Repo(shallow.path.parent / "whole")
    Repo(shallow.path.parent).git("clone", "-q", "--branch=change", f"file://{upstream.path}", str(whole.path))
    for repo, from_moved in ((whole, begun), (shallow, None)):
        with Trusted.of(repo.path, os.environ, {}) as trusted:
            assert trusted.parted(begun) == begun
            assert trusted.bring(moved) == ""
            assert trusted.parted(moved) == from_moved
            assert trusted.parted(trusted.head() or "") == trusted.head()


def test_histories_that_have_nothing_in_common_part_nowhere(upstream: Repo) -> None:
    upstream.git("checkout", "-q", "--orphan", "other")
    upstream.commit({"other.py": "1\n"})
    with Trusted.of(upstream.path, os.environ, {}) as trusted:
        assert trusted.parted(upstream.git("rev-parse", "main")) is None


def test_bringing_it_changes_nothing_that_is_checked_out(upstream: Repo, shallow: Repo) -> None:
    before = shallow.git("status", "--porcelain=v2", "--branch"), shallow.git("for-each-ref")
    with Trusted.of(shallow.path, os.environ, {}) as trusted:
        trusted.bring(upstream.git("rev-parse", "main"))
    assert (shallow.git("status", "--porcelain=v2", "--branch"), shallow.git("for-each-ref")) == before


def test_what_it_needs_meanwhile_lies_where_the_runner_empties_after_each_job(shallow: Repo, tmp_path: Path) -> None:
    temp = tmp_path / "runner-temp"
    temp.mkdir()
    with Trusted.of(shallow.path, {**os.environ, "RUNNER_TEMP": str(temp)}, {}) as trusted:
        assert trusted.scratch.parent == temp
    assert not list(temp.iterdir())


def test_a_trusted_commit_that_is_not_to_be_had_ends_it(shallow: Repo) -> None:
    with Trusted.of(shallow.path, os.environ, {}) as trusted, pytest.raises(InputError) as failure:
        trusted.bring("1" * 40)
    assert "111111111111" in str(failure.value)
    assert "fetch-depth: 0" in failure.value.hint


def test_a_retry_does_without_it_until_something_is_to_be_read_there(shallow: Repo) -> None:
    with Trusted.of(shallow.path, os.environ, {}) as trusted:
        assert "1111111111" in trusted.bring("1" * 40, is_retry=True)
        assert trusted.diff_stat("1" * 40) == ""
        with pytest.raises(InputError, match=r"111111111111.*AGENTS\.md is to be read there") as failure:
            trusted.read("1" * 40, "AGENTS.md")
    assert "fetch-depth: 0" in failure.value.hint


@pytest.mark.parametrize("kind", ["missing", "plain"])
def test_without_a_checkout_there_is_nothing_to_trust(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "place"
    if kind == "plain":
        place.mkdir()
    with pytest.raises(InputError) as failure, Trusted.of(place, os.environ, {}):
        pass
    assert "actions/checkout" in failure.value.hint


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../up.yml", "a/../../up.yml", ":(glob)*", ":!x", "", "a\0b", "a\udcff"]
)
def test_what_no_commit_can_have_is_not_there(upstream: Repo, name: str) -> None:
    """A configuration file at the trusted commit may name what it likes."""
    with Trusted.of(upstream.path, os.environ, {}) as trusted:
        assert trusted.read(upstream.git("rev-parse", "main"), name) is None


def _as(repo: Repo, kind: str) -> None:
    """What may have the name of a file: `rules` here."""
    place = repo.path / "rules"
    match kind:
        case "directory":
            repo.write({"rules/x": "x"})
        case "submodule":
            repo.git("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},rules")
        case "circle":
            place.symlink_to("rules")
        case target:
            place.symlink_to(target)
    if "submodule" in kind:
        repo.git("commit", "-qm", "link")
    else:
        repo.commit()


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("/etc/hostname", "leads out of the repository"),
        ("../outside", "leads out of the repository"),
        ("nowhere", "git cannot follow"),
        ("circle", "git cannot follow"),
        ("directory", "is a directory"),
        ("submodule", "is in a submodule"),
    ],
)
def test_what_is_no_file_of_the_trusted_commit_is_named_and_never_taken_for_none(
    upstream: Repo, kind: str, said: str
) -> None:
    """Without its configuration, everything would be allowed."""
    (upstream.path.parent / "outside").write_text("secret")
    _as(upstream, kind)
    with Trusted.of(upstream.path, os.environ, {}) as trusted, pytest.raises(NoRules, match=said):
        trusted.read(upstream.git("rev-parse", "HEAD"), "rules")


def test_a_file_below_a_submodule_is_not_taken_for_none(upstream: Repo) -> None:
    _as(upstream, "submodule")
    with Trusted.of(upstream.path, os.environ, {}) as trusted, pytest.raises(NoRules, match="is in a submodule"):
        trusted.read(upstream.git("rev-parse", "HEAD"), "rules/endstate.yml")


@pytest.mark.parametrize("name", ["a blob", "a tree", "blob", "a b c", "tree/x"])
def test_a_file_that_is_not_there_is_not_there_whatever_it_is_called(upstream: Repo, name: str) -> None:
    with Trusted.of(upstream.path, os.environ, {}) as trusted:
        assert trusted.read(upstream.git("rev-parse", "HEAD"), name) is None


@pytest.mark.parametrize("link", ["AGENTS.md", "docs/../AGENTS.md"])
def test_a_link_that_stays_in_the_trusted_commit_is_followed(upstream: Repo, link: str) -> None:
    upstream.write({"docs/x": "x"})
    (upstream.path / "rules").symlink_to(link)
    upstream.commit()
    with Trusted.of(upstream.path, os.environ, {}) as trusted:
        (upstream.path / "AGENTS.md").write_text("not committed")
        assert trusted.read(upstream.git("rev-parse", "HEAD"), "rules") == b"Trusted.\n"
