"""Which store was meant is exact, and one that the agent could reach is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from endstate_action.errors import InputError
from endstate_action.state.stores.choice import StoreChoice, absolute_store, parse_store, refuse_inside


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


@pytest.mark.parametrize(
    "text", ["s3://b/p", "s3:/bucket/p", "S3://bucket", "s3://Bucket", "https://b.example.org/p", "gs"]
)
def test_whoever_meant_an_object_store_is_told_how_its_address_looks(text):
    with pytest.raises(InputError) as refused:
        parse_store(text)
    assert text in str(refused.value)
    assert "2 to 63 small letters" in refused.value.hint


def test_a_password_in_an_address_is_not_said_again():
    with pytest.raises(InputError) as refused:
        parse_store("s3://key:hunter2@bucket/p")
    assert "hunter2" not in f"{refused.value}{refused.value.hint}"
    assert "environment" in refused.value.hint


def test_a_near_miss_is_named():
    with pytest.raises(InputError, match="did you mean git-ref"):
        parse_store("gitref")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "home" / "workspace" / "sub").mkdir(parents=True)
    return tmp_path / "home" / "workspace"


@pytest.mark.parametrize(
    "path",
    ["{w}", "{w}/sub", "{w}/sub/../new", "{w}/missing/deep", "{w}/../workspace/x", "~/workspace/x", "{l}/x"],
)
def test_a_directory_inside_the_workspace_is_refused(workspace, path):
    """By whatever way it is named."""
    link = workspace.parent / "link"
    link.symlink_to(workspace / "sub")
    with pytest.raises(InputError, match="inside the workspace"):
        refuse_inside(path.format(w=workspace, l=link), workspace, home=str(workspace.parent))


def test_a_directory_outside_is_given_back_without_links(workspace, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    given = {
        f"{tmp_path}/link/store": tmp_path / "real" / "store",
        "~/store": workspace.parent / "store",
        "~": workspace.parent,
        f"{workspace}/../store": workspace.parent / "store",
        f"{workspace}/../workspace-2/store": workspace.parent / "workspace-2" / "store",
    }
    for path, expected in given.items():
        assert refuse_inside(path, workspace, home=str(workspace.parent)) == expected.resolve()
    assert os.listdir(tmp_path / "real") == []


@pytest.mark.parametrize("home", [None, "", "relative"])
def test_a_home_that_is_not_known_stands_for_nothing(workspace, home):
    with pytest.raises(InputError, match="~ stands for nothing"):
        refuse_inside("~/store", workspace, home=home)


def test_a_circle_of_links_is_an_error_of_its_own(workspace, tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(InputError, match="cannot be looked at"):
        refuse_inside(f"{tmp_path}/a/x", workspace, home=None)


@pytest.mark.parametrize("path", ["{t}/link", "{t}/link/below", "{t}/link/../else"])
def test_what_a_dangling_link_leads_to_is_not_made(workspace, tmp_path, path):
    """It is where a disk should be that is not mounted."""
    (tmp_path / "link").symlink_to(tmp_path / "not" / "mounted")
    with pytest.raises(InputError, match="cannot be looked at") as refused:
        refuse_inside(path.format(t=tmp_path), workspace, home=None)
    assert "not mounted" in refused.value.hint


@pytest.mark.parametrize("path", ["store", "./store", "../store", ".", "a/b"])
def test_a_relative_directory_means_nothing_to_the_next_machine(workspace, path):
    with pytest.raises(InputError, match="absolute path, so nothing was started") as refused:
        refuse_inside(path, workspace, home="/home/somebody")
    assert "`store: dir:/mnt/endstate`" in refused.value.hint


@pytest.mark.parametrize(
    ("given", "absolute"),
    [
        ("dir:store", "dir:/here/store"),
        ("dir:../store", "dir:/store"),
        ("dir:.", "dir:/here"),
        *((same, same) for same in ("dir:/var/x", "dir:~/x", "dir:~", "dir:", "dir: ", "cache", "s3://bucket/p", "")),
    ],
)
def test_what_is_typed_is_seen_from_where_it_is_typed(given, absolute):
    assert absolute_store(given, Path("/here")) == absolute
