"""Which store was meant is exact, and one that the agent could reach is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from endstate_action.errors import InputError
from endstate_action.state.stores.choice import StoreChoice, parse_store, refuse_inside


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("auto", StoreChoice("auto")),
        ("cache", StoreChoice("cache")),
        ("git-ref", StoreChoice("git-ref")),
        ("none", StoreChoice("none")),
        ("dir:/var/lib/endstate", StoreChoice("dir", path="/var/lib/endstate")),
        ("dir:~/endstate", StoreChoice("dir", path="~/endstate")),
        ("dir:a path: with colon", StoreChoice("dir", path="a path: with colon")),
        ("s3://bucket", StoreChoice("s3", bucket="bucket")),
        ("s3://bucket/", StoreChoice("s3", bucket="bucket")),
        ("s3://my.bucket-1/some/prefix/", StoreChoice("s3", bucket="my.bucket-1", path="some/prefix")),
        ("gs://bucket/p", StoreChoice("gs", bucket="bucket", path="p")),
        ("az://container/p", StoreChoice("az", bucket="container", path="p")),
    ],
)
def test_every_form_is_understood(text, choice):
    assert parse_store(text) == choice


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "Auto",
            " auto",
            "auto ",
            "cache:",
            "dir",
            "dir:",
            "dir: ",
            "dir:a\0b",
            "dir:~other/x",
            "s3",
            "s3:",
            "s3://",
        ),
        *("s3:///prefix", "s3://Bucket/p", "s3://b?x=1", "s3://b/p#f", "s3://key:secret@bucket/p", "http://bucket/p"),
        *(
            "s3://bucket/a/../b",
            "s3://bucket/./a",
            "s3://bucket/a//b",
            "s3://bucket/a b",
            "s3://bucket/\n",
            "file:///x",
        ),
    ],
)
def test_anything_else_is_refused_with_what_is_allowed(text):
    with pytest.raises(InputError) as caught:
        parse_store(text)
    assert "nothing was started" in str(caught.value)
    assert caught.value.hint.startswith("store must be ")


def test_a_near_miss_is_named():
    with pytest.raises(InputError, match="did you mean git-ref"):
        parse_store("gitref")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "home" / "workspace" / "sub").mkdir(parents=True)
    return tmp_path / "home" / "workspace"


@pytest.mark.parametrize(
    "path",
    ["{w}", "{w}/sub", "{w}/sub/../new", "{w}/missing/deep", "sub", ".", "../workspace/x", "~/workspace/x", "{l}/x"],
)
def test_a_directory_inside_the_workspace_is_refused(workspace, path):
    """By whatever way it is named."""
    link = workspace.parent / "link"
    link.symlink_to(workspace / "sub")
    with pytest.raises(InputError, match="inside the workspace"):
        refuse_inside(path.format(w=workspace, l=link), workspace, home=str(workspace.parent), cwd=workspace)


def test_a_directory_outside_is_given_back_without_links(workspace, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    given = {
        f"{tmp_path}/link/store": tmp_path / "real" / "store",
        "~/store": workspace.parent / "store",
        "~": workspace.parent,
        "../store": workspace.parent / "store",
        "../workspace-2/store": workspace.parent / "workspace-2" / "store",
    }
    for path, expected in given.items():
        assert refuse_inside(path, workspace, home=str(workspace.parent), cwd=workspace) == expected.resolve()
    assert os.listdir(tmp_path / "real") == []


@pytest.mark.parametrize("home", [None, "", "relative"])
def test_a_home_that_is_not_known_stands_for_nothing(workspace, home):
    with pytest.raises(InputError, match="~ stands for nothing"):
        refuse_inside("~/store", workspace, home=home, cwd=workspace)


def test_a_circle_of_links_is_an_error_of_its_own(workspace, tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(InputError, match="cannot be looked at"):
        refuse_inside(f"{tmp_path}/a/x", workspace, home=None, cwd=workspace)
