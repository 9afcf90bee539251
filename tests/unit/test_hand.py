"""By hand: nothing is sent that is not finished, and no comment is believed that is not ours."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from endstate_action.ci.marker import Marker
from endstate_action.config import parse_settings
from endstate_action.errors import EndstateError, InputError, UnknownSession
from endstate_action.hand import deliver_by_hand, read_comment
from endstate_action.state.directory import locate
from endstate_action.state.records import Attempt, Ended, Prompt, Record
from endstate_action.state.session import SessionStore
from endstate_action.verify import Reference
from tests.support.github_server import GitHubServer, bare_repository
from tests.support.github_shapes import BOT
from tests.support.repos import GitRepo, Repo

BODY = f"{Marker('0' * 16, '1' * 12, 1, 0, 'success').line()}\n**Done.**\n"


@pytest.fixture
def github(tmp_path: Path) -> Iterator[GitHubServer]:
    with GitHubServer(bare_repository(tmp_path)) as github:
        yield github


def environ(github: GitHubServer, **more: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "GITHUB_TOKEN": github.token, "GITHUB_API_URL": github.url, **more}


def read(github: GitHubServer, path: Path, comment: int | None = None, repository: str | None = "org/repo") -> str:
    return read_comment(environ(github), Reference(github.number, repository, None, comment), path)


def test_the_newest_comment_of_ours_is_read(github: GitHubServer, tmp_path: Path) -> None:
    github.say("mallory", BODY.replace("Done", "Forged"))
    github.say(BOT, BODY, "github-actions")
    github.say("alice", "Thanks.")
    assert read(github, tmp_path) == BODY


def test_a_certain_comment_is_read_only_if_it_is_ours(github: GitHubServer, tmp_path: Path) -> None:
    forged = github.say("mallory", BODY.replace("Done", "Forged"))
    ours = github.say(BOT, BODY, "github-actions")
    github.say(BOT, BODY.replace("Done", "Newer"), "github-actions")
    assert read(github, tmp_path, ours) == BODY
    with pytest.raises(InputError, match="has no comment of endstate's"):
        read(github, tmp_path, forged)


def test_the_repository_is_that_of_the_clone(github: GitHubServer, git_repo: GitRepo) -> None:
    github.say(BOT, BODY, "github-actions")
    repo: Repo = git_repo({"a": "a"})
    repo.git("remote", "add", "origin", "https://github.com/org/repo.git")
    assert read(github, repo.path, repository=None) == BODY
    repo.git("remote", "set-url", "origin", "/srv")
    with pytest.raises(InputError, match="is not known"):
        read(github, repo.path, repository=None)


def test_a_pull_request_of_another_server_is_not_taken_for_one_of_this(github: GitHubServer, tmp_path: Path) -> None:
    github.say(BOT, BODY, "github-actions")
    here, there = github.url.partition("://")[2].partition("/")[0], "ghe.invalid:8443"

    assert read_comment(environ(github), Reference(github.number, "org/repo", here), tmp_path) == BODY
    asked = len(github.received)
    for host, api in ((there, github.url), ("github.com", github.url), (there, ""), ("ghe.invalid", "")):
        with pytest.raises(InputError, match=f"is on {host}.*Nothing was sent"):
            read_comment(environ(github, GITHUB_API_URL=api), Reference(github.number, "org/repo", host), tmp_path)
    assert len(github.received) == asked


@pytest.mark.parametrize(
    ("host", "api"),
    [
        ("github.com", ""),
        ("www.GitHub.com", "https://api.github.com"),
        ("some.ghe.com", "https://api.some.ghe.com"),
        ("git.example:8443", "https://git.example:8443/api/v3"),
    ],
)
def test_the_server_of_a_pull_request_is_told_from_its_api(tmp_path: Path, host: str, api: str) -> None:
    with pytest.raises(InputError, match="no token"):
        read_comment({"GITHUB_API_URL": api}, Reference(7, "org/repo", host), tmp_path)


def test_without_a_token_nothing_is_sent(github: GitHubServer, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="GITHUB_TOKEN is not set"):
        read_comment(environ(github, GITHUB_TOKEN=""), Reference(7, "org/repo"), tmp_path)
    assert github.received == []


@pytest.mark.parametrize(
    ("records", "failure", "words"),
    [
        ((), InputError, "not finished"),
        ((Ended(1, 1, "success", "", 3.0, "et1:" + "0" * 64),), UnknownSession, "nothing to deliver"),
    ],
)
def test_what_has_nothing_to_deliver_is_told_without_a_model(
    github: GitHubServer, git_repo: GitRepo, records: tuple[Record, ...], failure: type[EndstateError], words: str
) -> None:
    repo: Repo = git_repo({"a": "a"})
    bound = {"workspace": "git", "base": repo.git("rev-parse", "HEAD"), "dirty": {}}
    state = locate(repo.path, ".endstate")
    state.claim()
    with SessionStore(state.sessions).create(bound, session="1" * 12) as session:
        session.append(Attempt(1, 1.0, "0", {}, {}, "wal", "anthropic", "m"), Prompt("p", "Do.", 1, 0, 2.0))
        session.append(*records)
    settings = parse_settings({"resume": "true", "store": "none", "working-directory": str(repo.path)}, lambda n: None)
    with pytest.raises(failure, match=words):
        deliver_by_hand(environ(github), settings, None, print, print)
    assert github.comments == []
