"""A git ref as a store: moved by compare-and-swap, without history, and without a word about the token."""

from __future__ import annotations

import base64
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from endstate_action.errors import InputError
from endstate_action.state.keys import CheckpointKey, checkpoints_prefix, claim_key
from endstate_action.state.stores.base import (
    Denied,
    Exists,
    RateLimited,
    Stored,
    StoreUnusable,
    Unavailable,
)
from endstate_action.state.stores.git_ref import GitRefStore
from tests.support.git_http import TOKEN, GitHttp
from tests.support.stores import LINEAGE, decline, git_store

pytestmark = pytest.mark.slow

KEY = str(CheckpointKey(LINEAGE, 1, 1, 0))
OTHER = str(CheckpointKey(LINEAGE, 1, 2, 0))
PREFIX = checkpoints_prefix(LINEAGE)
REF = f"refs/endstate/{LINEAGE}"
T = 30.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[GitHttp]:
    with GitHttp(tmp_path / "served") as server:
        server.repository("a.git")
        yield server


@pytest.fixture
def remote(server: GitHttp) -> Path:
    return server.folder / "a.git"


@pytest.fixture
def store(server: GitHttp, tmp_path: Path) -> GitRefStore:
    return git_store(server.url + "a.git", tmp_path, TOKEN)


@pytest.fixture
def local(remote: Path, tmp_path: Path) -> GitRefStore:
    return git_store(f"file://{remote}", tmp_path)


def git(repository: Path, *args: str) -> str:
    done = subprocess.run(["git", "-C", str(repository), *args], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_ref_has_one_commit_without_history_and_the_objects_by_name(local, remote):
    for sequence in range(1, 5):
        key = str(CheckpointKey(LINEAGE, 1, sequence, 0))
        local.put(key, b"%d" % sequence, timeout_s=T, drop=[str(CheckpointKey(LINEAGE, 1, sequence - 2, 0))])

    assert git(remote, "for-each-ref", "--format=%(refname)") == REF
    assert git(remote, "rev-list", "--count", REF) == "1"
    assert git(remote, "ls-tree", "--name-only", REF).split() == ["c0001-000003-00000", "c0001-000004-00000"]
    assert git(remote, "cat-file", "blob", f"{REF}:c0001-000004-00000") == "4"


def test_a_repositorys_own_branches_stay_as_they_are(git_repo, tmp_path):
    project = git_repo({"a.txt": "a\n"})
    before = git(project.path, "for-each-ref")

    git_store(f"file://{project.path}", tmp_path).put(KEY, b"data", timeout_s=T)

    assert [line for line in git(project.path, "for-each-ref").splitlines() if "refs/endstate/" not in line] == [before]
    assert project.git("status", "--porcelain") == ""


def test_who_lost_a_race_looks_again(server, store, tmp_path):
    """The second writer's memory of the ref is outdated when it pushes."""
    second = git_store(server.url + "a.git", tmp_path, TOKEN)
    assert second.first([PREFIX], timeout_s=T) is None
    store.put(KEY, b"first", timeout_s=T)

    assert second.put(OTHER, b"second", timeout_s=T) == Stored(OTHER, 6)
    assert store.keys(PREFIX, timeout_s=T) == [KEY, OTHER]


def test_who_finds_the_key_taken_after_a_lost_race_has_not_stored(server, store, tmp_path):
    second = git_store(server.url + "a.git", tmp_path, TOKEN)
    assert second.first([PREFIX], timeout_s=T) is None
    store.put(KEY, b"same", timeout_s=T)

    assert second.put(KEY, b"same", timeout_s=T) == Exists(KEY)


def test_a_store_that_knows_the_ref_needs_one_exchange_for_a_put(server, store):
    store.put(KEY, b"first", timeout_s=T)
    server.requests.clear()

    store.put(OTHER, b"second", timeout_s=T)

    assert "look" not in server.requests
    assert "fetch" not in server.requests


def test_a_push_whose_answer_was_lost_is_looked_for(server, store):
    server.faults["push"] = "cut-after"

    assert store.put(KEY, b"data", timeout_s=T) == Stored(KEY, 4)
    assert store.get(KEY, timeout_s=T) == b"data"


@pytest.mark.parametrize("look", ["cut-before", "500", "stall"])
def test_a_push_that_nobody_can_tell_of_leaves_the_key_in_doubt(server, store, look):
    store.first([PREFIX], timeout_s=T)
    server.faults |= {"push": "cut-after", "look": look}

    outcome = store.put(KEY, b"data", timeout_s=6)

    assert isinstance(outcome, Unavailable)
    assert outcome.is_doubtful


def test_a_push_that_did_not_arrive_is_in_doubt_too(server, store):
    """It could still be on its way."""
    server.faults["push"] = "cut-before"

    outcome = store.put(KEY, b"data", timeout_s=T)

    assert isinstance(outcome, Unavailable)
    assert outcome.is_doubtful


def test_a_push_overtaken_by_another_writer_is_tried_again(server, store, local):
    """The ref has moved without our object, so that the lost push cannot come true any more."""

    def overtake(operation: str) -> None:
        if operation == "push" and server.faults.pop("push", None):
            local.put(OTHER, b"theirs", timeout_s=T)

    server.faults["push"] = "cut-before"
    server.meanwhile = overtake

    assert store.put(KEY, b"ours", timeout_s=T) == Stored(KEY, 4)
    assert local.keys(PREFIX, timeout_s=T) == [KEY, OTHER]
    assert local.get(KEY, timeout_s=T) == b"ours"


def test_a_push_overtaken_by_one_of_the_same_bytes_stays_in_doubt(server, store, local):
    """Nobody can tell whose they are."""

    def overtake(operation: str) -> None:
        if operation == "push":
            local.put(KEY, b"same", timeout_s=T)

    server.faults["push"] = "cut-before"
    server.meanwhile = overtake

    outcome = store.put(KEY, b"same", timeout_s=T)
    assert isinstance(outcome, Unavailable)
    assert outcome.is_doubtful


def test_a_push_that_was_sent_twice_has_stored(server, store):
    """The first was applied and its answer cut; the second is then refused, because the ref has moved."""
    server.faults["push"] = "cut-after"
    server.meanwhile = lambda operation: server.faults.pop("push", None) if operation == "push" else None

    assert store.put(KEY, b"data", timeout_s=T) == Stored(KEY, 4)
    assert server.requests.count("push") == 2


@pytest.mark.parametrize(
    ("operation", "fault", "kind"),
    [
        ("look", "401", Denied),
        ("look", "403", Denied),
        ("look", "404", Denied),
        ("look", "429", RateLimited),
        ("look", "500", Unavailable),
        ("look-for-push", "403", Denied),
        ("push", "403", Denied),
        ("push", "429", RateLimited),
    ],
)
def test_every_no_of_a_server_is_told_apart(server, store, operation, fault, kind):
    server.faults[operation] = fault
    outcome = store.put(KEY, b"data", timeout_s=T)

    assert isinstance(outcome, kind), outcome
    if isinstance(outcome, Denied):
        assert "contents: write" in outcome.remedy
    if isinstance(outcome, Unavailable):
        assert not outcome.is_doubtful


def test_a_hiccup_of_a_read_is_asked_again(server, store):
    store.put(KEY, b"data", timeout_s=T)
    server.faults["look"] = "500"
    server.meanwhile = lambda operation: server.faults.clear()

    assert store.keys(PREFIX, timeout_s=T) == [KEY]


def test_a_protected_ref_is_a_denial_at_once(local, remote):
    decline(remote)

    outcome = local.put(KEY, b"data", timeout_s=T)

    assert isinstance(outcome, Denied)
    assert "refs/endstate/" in outcome.remedy


def test_a_wrong_token_is_denied_and_never_shown(server, tmp_path):
    secret = "ghs_ThisIsTheSecretTokenThatNobodySees"
    store = git_store(server.url + "a.git", tmp_path, secret)

    outcome = store.put(KEY, b"data", timeout_s=T)
    with pytest.raises(StoreUnusable) as caught:
        store.get(KEY, timeout_s=T)

    assert isinstance(outcome, Denied)
    assert (caught.value.exit_code, caught.value.hint) == (2, outcome.remedy), "nobody runs that again by himself"
    assert secret not in f"{outcome}{caught.value!r}{caught.value.hint}{store.__dict__['_remote']._secrets!r}"


def test_what_a_server_says_is_shown_short_on_one_line_and_without_the_token(local, remote):
    hook = remote / "hooks" / "pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\nprintf '\\033[31m::error::{TOKEN}\\n%0500d\\n' 7 >&2\nexit 1\n")
    hook.chmod(0o755)
    store = git_store(f"file://{remote}", remote.parents[1], TOKEN)

    outcome = store.put(KEY, b"data", timeout_s=T)

    assert isinstance(outcome, Denied)
    assert TOKEN not in outcome.reason
    assert outcome.reason.isprintable()
    assert len(outcome.reason) < 300


def test_the_token_is_in_no_argument_and_no_file(server, tmp_path):
    """Watched from outside while a push stalls."""
    server.faults["push"] = "stall"
    store = git_store(server.url + "a.git", tmp_path, TOKEN)
    seen: list[bytes] = []

    def watch() -> None:
        while "push" not in server.requests:
            time.sleep(0.01)
        for process in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                seen.append(process.read_bytes())
            except OSError:
                continue

    thread = threading.Thread(target=watch)
    thread.start()
    store.put(KEY, b"data", timeout_s=3)
    thread.join()

    assert any(b"git" in line and b"push" in line for line in seen)
    basic = base64.b64encode(f"x-access-token:{TOKEN}".encode())
    for needle in (TOKEN.encode(), basic):
        assert not [line for line in seen if needle in line]
        assert not [f for f in (tmp_path / "state").rglob("*") if f.is_file() and needle in f.read_bytes()]


def test_a_push_that_took_too_long_leaves_no_process(server, store):
    server.faults["push"] = "stall"
    store.put(KEY, b"data", timeout_s=2)

    assert not [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if server.url in _arguments(pid)]


def _arguments(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def test_settings_planted_in_our_repository_are_not_obeyed(server, tmp_path):
    place = tmp_path / "state" / "git-ref"
    store = GitRefStore(server.url + "a.git", place, tmp_path / "served", os.environ, token=TOKEN)
    store.put(KEY, b"data", timeout_s=T)
    (place / "config").write_text(
        '[core]\n\trepositoryformatversion = 0\n[url "http://127.0.0.1:1/"]\n\tinsteadOf = http\n'
    )
    hook = place / "hooks" / "pre-push"
    hook.parent.mkdir()
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)

    assert store.put(OTHER, b"more", timeout_s=T) == Stored(OTHER, 4)
    assert not (tmp_path / "ran").exists()


def test_what_was_planted_before_the_first_use_is_gone(server, tmp_path):
    """In the repository that an earlier process left, whose settings are in order."""
    place = tmp_path / "state" / "git-ref"
    GitRefStore(server.url + "a.git", place, tmp_path / "served", os.environ, token=TOKEN).get(KEY, timeout_s=T)
    (place / "objects" / "info").mkdir()
    (place / "objects" / "info" / "alternates").write_text("/elsewhere\n")

    store = GitRefStore(server.url + "a.git", place, tmp_path / "served", os.environ, token=TOKEN)
    assert store.put(KEY, b"data", timeout_s=T) == Stored(KEY, 4)
    assert not (place / "objects" / "info" / "alternates").exists()


def test_a_deleted_repository_of_ours_is_made_again(server, tmp_path):
    place = tmp_path / "state" / "git-ref"
    store = GitRefStore(server.url + "a.git", place, tmp_path / "served", os.environ, token=TOKEN)
    store.put(KEY, b"data", timeout_s=T)
    subprocess.run(["rm", "-rf", str(place.parent)], check=True)

    assert store.get(KEY, timeout_s=T) == b"data"
    assert store.put(OTHER, b"more", timeout_s=T) == Stored(OTHER, 4)


def test_the_workspaces_settings_and_programs_have_no_say(server, git_repo, tmp_path):
    project = git_repo()
    project.git("config", "http.proxy", "http://127.0.0.1:1")
    fake = project.path / "git"
    fake.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    fake.chmod(0o755)
    environ = os.environ | {"PATH": f"{project.path}:{os.environ['PATH']}", "GIT_DIR": str(project.path / ".git")}
    store = GitRefStore(server.url + "a.git", tmp_path / "state" / "x", project.path, environ, token=TOKEN)

    assert store.put(KEY, b"data", timeout_s=T) == Stored(KEY, 4)
    assert not (tmp_path / "ran").exists()


def test_odd_entries_of_a_forged_tree_are_no_keys(local, remote, git_repo):
    """Whoever may push could also have made this one."""
    forged = git_repo({"c0001-000001-00000": "data", "UPPER": "x", "..x": "x", "sub/c0001-000002-00000": "x"})
    (forged.path / "c0001-000009-00000").symlink_to("/etc/passwd")
    forged.commit({}, "a history, too")
    forged.git("push", "--quiet", str(remote), f"HEAD:{REF}")

    assert local.keys(PREFIX, timeout_s=T) == [KEY]
    assert local.put(OTHER, b"more", timeout_s=T) == Stored(OTHER, 4)
    assert git(remote, "ls-tree", "--name-only", REF).split() == [k.rpartition("/")[2] for k in (KEY, OTHER)]
    assert git(remote, "rev-list", "--count", REF) == "1"


def test_a_ref_that_names_no_commit_is_nothing_to_wait_for(local, remote):
    blob = subprocess.run(
        ["git", "-C", str(remote), "hash-object", "-w", "--stdin"], input=b"junk", capture_output=True, check=True
    ).stdout
    git(remote, "update-ref", REF, blob.decode().strip())

    with pytest.raises(StoreUnusable, match="names no commit") as caught:
        local.keys(PREFIX, timeout_s=T)

    assert f"git push origin --delete {REF}" in caught.value.hint
    assert isinstance(local.put(KEY, b"data", timeout_s=T), Denied)


def test_a_ref_that_only_ends_like_ours_is_another(local, remote, git_repo):
    git_repo({}).git("push", "--quiet", str(remote), f"HEAD:refs/heads/x/{REF}")

    assert local.first([PREFIX], timeout_s=T) is None
    assert local.put(claim_key(LINEAGE, 1), b"1", timeout_s=T) == Stored(claim_key(LINEAGE, 1), 1)


def test_a_deleted_ref_is_an_empty_store_again(local, remote):
    local.put(KEY, b"data", timeout_s=T)
    git(remote, "update-ref", "-d", REF)

    assert local.keys(PREFIX, timeout_s=T) == []
    assert local.put(OTHER, b"more", timeout_s=T) == Stored(OTHER, 4)
    assert local.keys(PREFIX, timeout_s=T) == [OTHER]


@pytest.mark.parametrize(
    "url",
    [
        *("", "/srv/a.git", "a.git", "ext::sh -c x", "ftp://host/x", "git://host/x", "https://user:pass@host/x"),
        *("https://token@host/x", "https://host/x?y", "--upload-pack=x", "-x@host:y", "ssh://-x/y", "https://host/a b"),
        *("https://host/x\n", "file://host/x", "ssh://u:p@host/x", "x@-host:y"),
    ],
)
def test_an_address_that_could_hold_a_secret_or_start_a_program_is_refused(tmp_path, url):
    with pytest.raises(InputError) as caught:
        GitRefStore(url, tmp_path / "x", tmp_path, os.environ)
    assert not url or url not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "https://github.com/o/r.git",
        "http://ghes.example:8080/o/r",
        "ssh://git@github.com:22/o/r.git",
        "git@host.x:o/r.git",
    ],
)
def test_the_usual_addresses_are_accepted(tmp_path, url):
    assert GitRefStore(url, tmp_path / "x", tmp_path, os.environ).name == "git-ref"


def test_without_git_there_is_no_such_store(tmp_path):
    with pytest.raises(InputError, match="no git program"):
        GitRefStore("https://host/x", tmp_path / "x", tmp_path, {"PATH": str(tmp_path)})
