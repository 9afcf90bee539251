"""Where checkpoints go is what was asked for, or nowhere, with the reason and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from endstate_action.durable import Depot, NoDepot, open_depot
from endstate_action.errors import InputError
from endstate_action.state.seal import derive_key
from endstate_action.state.stores.choice import parse_store
from endstate_action.state.uploader import CACHE_PACE, EAGER, REMOTE_PACE
from endstate_action.system import git
from tests.support.cache_server import CacheServer
from tests.support.repos import GitRepo

STATE_KEY = "a-secret-that-outlives-the-job"
API_KEY = "sk-ant-0123456789-0123456789"


def opened(tmp_path: Path, store: str, environ: Mapping[str, str], repository: git.Repository | None = None):
    (tmp_path / "workspace").mkdir(exist_ok=True)
    return open_depot(parse_store(store), environ, tmp_path / "workspace", tmp_path / "place", repository)


def depot(tmp_path: Path, store: str, environ: Mapping[str, str]) -> Depot:
    found = opened(tmp_path, store, environ)
    assert isinstance(found, Depot), found
    return found


def test_the_state_key_seals_and_without_one_the_api_key(tmp_path: Path):
    both = {"ENDSTATE_STATE_KEY": STATE_KEY, "ANTHROPIC_API_KEY": API_KEY}
    where = f"dir:{tmp_path}/store"
    assert depot(tmp_path, where, both).sealing == derive_key(STATE_KEY, explicit=True)
    for blank in ({}, {"ENDSTATE_STATE_KEY": " \n"}):
        found = depot(tmp_path, where, {"ANTHROPIC_API_KEY": API_KEY, **blank})
        assert found.sealing == derive_key(API_KEY, explicit=False)


def test_the_action_s_inputs_are_the_same_keys(tmp_path: Path):
    where = f"dir:{tmp_path}/store"
    assert depot(tmp_path, where, {"INPUT_STATE_KEY": STATE_KEY}).sealing == derive_key(STATE_KEY, explicit=True)
    assert depot(tmp_path, where, {"INPUT_ANTHROPIC_API_KEY": API_KEY}).sealing == derive_key(API_KEY, explicit=False)


def test_without_a_secret_that_outlives_the_job_there_is_no_depot(tmp_path: Path):
    found = opened(tmp_path, f"dir:{tmp_path}/store", {"GITHUB_TOKEN": "ghs_dies_with_the_job_0123456789"})
    assert isinstance(found, NoDepot)
    assert "no secret that outlives this job" in found.reason
    assert "ENDSTATE_STATE_KEY" in found.remedy


def test_a_short_secret_is_refused_and_not_said(tmp_path: Path):
    with pytest.raises(InputError) as refused:
        opened(tmp_path, f"dir:{tmp_path}/store", {"ENDSTATE_STATE_KEY": "hunter2"})
    assert "hunter2" not in str(refused.value) + refused.value.hint


def test_none_is_what_was_asked_for(tmp_path: Path):
    assert opened(tmp_path, "none", {"ENDSTATE_STATE_KEY": STATE_KEY}) == NoDepot("that was asked for")


def test_auto_outside_of_a_job_is_none_and_says_how_to_name_one(tmp_path: Path):
    found = opened(tmp_path, "auto", {"ENDSTATE_STATE_KEY": STATE_KEY})
    assert isinstance(found, NoDepot)
    assert "--store" in found.remedy


@pytest.mark.parametrize(("store", "is_chosen"), [("auto", False), ("cache", True)])
def test_in_a_job_it_is_the_cache_and_only_who_named_it_chose_it(tmp_path: Path, store: str, is_chosen: bool):
    with CacheServer() as server:
        found = depot(tmp_path, store, {"GITHUB_ACTIONS": "true", "INPUT_STATE_KEY": STATE_KEY, **server.env()})
    assert (found.store.name, found.pace, found.is_chosen) == ("cache", CACHE_PACE, is_chosen)


def test_a_job_without_cache_credentials_has_no_depot_and_says_why(tmp_path: Path):
    found = opened(tmp_path, "auto", {"GITHUB_ACTIONS": "true", "INPUT_STATE_KEY": STATE_KEY})
    assert isinstance(found, NoDepot)
    assert found.reason
    assert found.remedy


def test_a_directory_is_outside_the_workspace(tmp_path: Path):
    assert depot(tmp_path, f"dir:{tmp_path}/store", {"ENDSTATE_STATE_KEY": STATE_KEY}).pace is EAGER
    with pytest.raises(InputError):
        opened(tmp_path, f"dir:{tmp_path}/workspace/store", {"ENDSTATE_STATE_KEY": STATE_KEY})


def test_a_git_ref_needs_a_remote_repository(tmp_path: Path, git_repo: GitRepo):
    repo = git_repo()
    environ = {"ENDSTATE_STATE_KEY": STATE_KEY}
    found = git.discover(repo.path, environ, tmp_path)
    with pytest.raises(InputError, match="a remote named origin"):
        opened(tmp_path, "git-ref", environ, found)
    repo.git("remote", "add", "origin", f"file://{tmp_path}/elsewhere")
    depot = opened(tmp_path, "git-ref", environ, found)
    assert isinstance(depot, Depot)
    assert (depot.store.name, depot.pace) == ("git-ref", REMOTE_PACE)
