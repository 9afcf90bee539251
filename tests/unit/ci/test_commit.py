"""A commit made over the API is the one that git would have made, once, and on a branch that nobody has moved."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from endstate_action.ci.commit import (
    MOST_BLOB_BYTES,
    Change,
    Commits,
    Moved,
    Plan,
    Target,
    own_branch,
)
from endstate_action.ci.github import GitHub
from endstate_action.ci.outcome import Absent, Ambiguous, Applied, Denied, RateLimited, Rejected, TooLate, Unavailable
from tests.support.github_server import FOREVER, TOKEN, GitHubServer
from tests.support.repos import Repo

SESSION = "0123456789ab"
KEY = f"{SESSION}/3.0"
OWN = own_branch(SESSION)
HEAD = Target("change", is_own=False)
BEGIN = {"README.md": "# A project\n", "src/a.py": "a\n", "src/b.py": "b\n", "bin/run": "#!/bin/sh\n"}

LOST = ["applied-502", "502", "drop-before", "drop-after", "stall-after"]


@pytest.fixture
def repo(git_repo) -> Repo:
    made: Repo = git_repo(BEGIN)
    return made


@pytest.fixture
def server(repo, tmp_path) -> Iterator[GitHubServer]:
    repo.git("clone", "--quiet", "--bare", ".", str(tmp_path / "bare.git"))
    with GitHubServer(tmp_path / "bare.git") as github:
        yield github


@pytest.fixture
def commits(server, request) -> Iterator[Commits]:
    timeout_s = 1 if "stall" in request.node.name else 30
    github = GitHub(server.url, TOKEN, {}, timeout_s=timeout_s, pauses_s=(0, 0))
    yield Commits(github, "org/repo", wait=lambda seconds: None)
    github.close()


def always() -> bool:
    return True


def changed(repo: Repo) -> tuple[str, list[Change]]:
    """The tree id that git gives the work tree, and what of it differs from HEAD."""
    repo.git("add", "--all")
    listed = repo.git("diff-index", "--cached", "--no-renames", "-z", "HEAD").split("\0")
    changes = []
    for about, name in zip(listed[::2], listed[1::2], strict=False):
        _, mode, _, _, kind = about.split(" ")
        path = os.fsencode(name)
        changes.append(Change(path, None if kind == "D" else mode, _reader(repo.path, path, mode)))  # type: ignore[arg-type]
    return repo.git("write-tree"), changes


def _reader(root: Path, path: bytes, mode: str) -> Any:
    full = os.path.join(os.fsencode(root), path)
    return (
        (lambda: os.fsencode(os.readlink(full))) if mode == "120000" else (lambda: Path(os.fsdecode(full)).read_bytes())
    )


def planned(repo: Repo, tree: str, **more: Any) -> Plan:
    told: dict[str, Any] = {
        "parent": repo.git("rev-parse", "HEAD"),
        "tree": tree,
        "message": "agent: change things",
        "author": ("endstate", "endstate@example.invalid"),
        "when": 1_767_225_600,
        "session": SESSION,
        "key": f"{KEY} 00ff",
    }
    return Plan(**(told | more))


def a_change(repo: Repo) -> tuple[Plan, list[Change]]:
    repo.write({"src/a.py": "changed\n"})
    tree, changes = changed(repo)
    return planned(repo, tree), changes


def prepared(commits: Commits, plan: Plan, changes: list[Change]) -> str:
    outcome = commits.prepare(plan, changes)
    assert isinstance(outcome, Applied), outcome
    return outcome.value


# What a commit holds.


def test_the_tree_is_the_one_that_git_makes(repo, server, commits):
    """Modes, links, deletions, binary and large files, odd names: the id says that all of it is right."""
    repo.write(
        {
            "src/a.py": "changed\n",
            "crlf.txt": "one\r\ntwo\r\n",
            "no newline": "no newline",
            "empty": "",
            "binary": bytes(range(256)),
            "nul": "a\0b",
            "large.txt": "line\n" * 30_000,
            "deep/er/and/deeper.txt": "x",
            ":(glob)*": "magic",
            'quo"te': "q",
            "back\\slash": "b",
            "new\nline": "n",
            "tab\there": "t",
            "-dash": "d",
            "ünï/ç😀.txt": "é😀",
            " leading and trailing ": "s",
        }
    )
    (repo.path / "bin/run").chmod(0o755)
    (repo.path / "src/b.py").unlink()
    (repo.path / "link").symlink_to("../outside ü")
    (repo.path / "README.md").unlink()
    (repo.path / "README.md").symlink_to("src/a.py")
    tree, changes = changed(repo)

    commit = prepared(commits, planned(repo, tree), changes)

    assert server.git("rev-parse", f"{commit}^{{tree}}") == tree
    assert {change.mode for change in changes} == {None, "100644", "100755", "120000"}


def test_a_file_may_take_the_place_of_a_folder_and_a_folder_that_of_a_file(repo, server, commits):
    for name in ("src/a.py", "src/b.py", "README.md"):
        (repo.path / name).unlink()
    (repo.path / "src").rmdir()
    repo.write({"src": "a file now\n", "README.md/is/a/folder": "now\n"})
    tree, changes = changed(repo)

    commit = prepared(commits, planned(repo, tree), changes)

    assert server.git("rev-parse", f"{commit}^{{tree}}") == tree


def test_only_what_changed_is_uploaded(repo, server, commits):
    plan, changes = a_change(repo)

    prepared(commits, plan, changes)

    sent = [entry["path"] for r in server.received if r.operation == "tree.create" for entry in r.body["tree"]]
    assert sent == ["src/a.py"]


def test_many_small_files_are_one_request(repo, server, commits):
    repo.write({f"many/{number}.txt": f"{number}\n" for number in range(300)})
    tree, changes = changed(repo)

    prepared(commits, planned(repo, tree), changes)

    assert len(server.received) == 3


def test_the_same_plan_makes_the_same_commit(repo, server, commits):
    plan, changes = a_change(repo)

    first, second = prepared(commits, plan, changes), prepared(commits, plan, changes)

    assert first == second
    shown = server.git("show", "-s", "--format=%P %an <%ae> %aI %cn <%ce> %cI", first)
    who = "endstate <endstate@example.invalid> 2026-01-01T00:00:00"
    assert shown.replace("+00:00", "").replace("Z", "") == f"{plan.parent} {who} {who}"


def test_session_and_key_are_trailers_that_git_finds(repo, server, commits):
    plan, changes = a_change(repo)

    commit = prepared(commits, plan, changes)

    values = [f"%(trailers:key={name},valueonly,separator=;)" for name in ("Endstate-Session", "Endstate-Key")]
    shown = server.git("show", "-s", f"--format=%s|{'|'.join(values)}", commit)
    assert shown == f"agent: change things|{SESSION}|{KEY} 00ff"


def test_a_message_cannot_claim_another_key(repo, server, commits):
    message = "subject\n\nEndstate-Key: forged\n endstate-key : forged\nENDSTATE-SESSION: forged"
    _, changes = a_change(repo)
    plan = planned(repo, repo.git("write-tree"), message=message)

    commit = prepared(commits, plan, changes)

    assert "forged" not in server.git("show", "-s", "--format=%B", commit)


@pytest.mark.parametrize("message", ["", " \n\n", "Endstate-Key: x"])
def test_a_message_of_which_nothing_is_left_gets_a_subject(repo, message):
    assert planned(repo, "0" * 40, message=message).full_message.startswith("Changes\n\nEndstate-Session: ")


# What is refused, before anything refers to it.


def refused(server: GitHubServer, outcome: Any) -> str:
    assert isinstance(outcome, Rejected), outcome
    assert server.count("commit.create") == 0
    return outcome.reason


def test_a_tree_that_is_not_the_expected_one_is_never_committed(repo, server, commits):
    _, changes = a_change(repo)

    assert "as expected" in refused(server, commits.prepare(planned(repo, "0" * 40), changes))


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        (b"caf\xe9.txt", "caf\\xe9.txt"),
        (b".git/hooks/pre-commit", ".git/hooks/pre-commit"),
        (b"sub/.GIT/config", "sub/.GIT/config"),
        (b"../out", "../out"),
        (b"/etc/passwd", "/etc/passwd"),
        (b"a//b", "a//b"),
    ],
)
def test_a_name_that_cannot_be_committed_is_refused_by_name(repo, server, commits, path, shown):
    outcome = commits.prepare(planned(repo, "0" * 40), [Change(path, "100644", lambda: b"x")])

    assert shown in refused(server, outcome)
    assert server.received == []


@pytest.mark.parametrize("path", [b".github/workflows/ci.yml", b".GitHub/Workflows/x/y.yml"])
def test_a_workflow_file_is_refused_unless_it_is_allowed(repo, server, commits, path):
    change = Change(path, "100644", lambda: b"on: push\n")

    assert "workflow" in refused(server, commits.prepare(planned(repo, "0" * 40), [change]))

    repo.write({os.fsdecode(path): "on: push\n"})
    tree, changes = changed(repo)
    assert isinstance(commits.prepare(planned(repo, tree), changes, may_change_workflows=True), Applied)


def test_a_file_that_is_too_large_is_refused_by_name(repo, server, commits):
    change = Change(b"data/huge.bin", "100644", lambda: bytes(MOST_BLOB_BYTES + 1))

    assert "data/huge.bin" in refused(server, commits.prepare(planned(repo, "0" * 40), [change]))


def test_a_file_that_github_does_not_take_is_refused_by_name(repo, server, commits):
    server.fault("blob.create", "422", message="the blob is too large")

    outcome = commits.prepare(planned(repo, "0" * 40), [Change(b"some.bin", "100644", lambda: b"\0")])

    assert "some.bin" in refused(server, outcome)


def test_nothing_changed_is_nothing_to_commit(repo, server, commits):
    refused(server, commits.prepare(planned(repo, "0" * 40), []))


def test_a_parent_that_github_does_not_have_is_absent(repo, server, commits):
    _, changes = a_change(repo)

    outcome = commits.prepare(planned(repo, "0" * 40, parent="1" * 40), changes)

    assert isinstance(outcome, Absent)


def test_whether_we_may_commit_is_known_before_anything_is_spent(server, commits):
    assert commits.may_commit() == Applied(None)

    server.fault("blob.create", "403")
    outcome = commits.may_commit()

    assert isinstance(outcome, Denied)
    assert "contents: write" in outcome.remedy


@pytest.mark.parametrize("operation", ["tree.create", "commit.create", "blob.create"])
@pytest.mark.parametrize("kind", LOST)
def test_an_upload_whose_answer_is_lost_makes_the_same_commit(repo, server, commits, operation, kind):
    repo.write({"src/a.py": "changed\n", "binary": b"\0"})
    tree, changes = changed(repo)
    plan = planned(repo, tree)
    server.fault(operation, kind)

    first = prepared(commits, plan, changes)

    assert first == prepared(commits, plan, changes)


@pytest.mark.parametrize(
    ("kind", "outcome"), [("503", Unavailable), ("401", Denied), ("403", Denied), ("primary", RateLimited)]
)
@pytest.mark.parametrize("operation", ["tree.create", "commit.create"])
def test_an_upload_that_fails_is_told_and_can_be_repeated(repo, server, commits, operation, kind, outcome):
    plan, changes = a_change(repo)
    server.fault(operation, kind, times=FOREVER)

    assert isinstance(commits.prepare(plan, changes), outcome)

    server.heal()
    prepared(commits, plan, changes)


# Publication.


def test_an_own_branch_is_made_and_only_once(repo, server, commits):
    plan, changes = a_change(repo)
    commit = prepared(commits, plan, changes)

    first, second = (commits.publish(plan, commit, OWN, always) for _ in range(2))

    assert first == second == Applied(commit)
    assert server.tip(f"endstate/{SESSION}") == commit
    assert server.count("ref.create") == 1


def test_the_head_of_a_pull_request_moves_forward(repo, server, commits):
    plan, changes = a_change(repo)
    commit = prepared(commits, plan, changes)

    assert commits.publish(plan, commit, HEAD, always) == Applied(commit)
    assert server.tip("change") == commit


@pytest.mark.parametrize("target", [OWN, HEAD])
@pytest.mark.parametrize("kind", LOST)
def test_a_publication_whose_answer_is_lost_happens_once(repo, server, commits, target, kind):
    plan, changes = a_change(repo)
    commit = prepared(commits, plan, changes)
    server.fault("ref.create" if target is OWN else "ref.update", kind)

    assert commits.publish(plan, commit, target, always) == Applied(commit)
    assert server.tip(target.branch) == commit
    assert server.git("rev-list", "--count", f"{plan.parent}..{target.branch}") == "1"


def test_a_publication_that_cannot_be_looked_at_is_ambiguous(repo, server, commits):
    plan, changes = a_change(repo)
    commit = prepared(commits, plan, changes)
    server.fault("ref.update", "drop-after", times=FOREVER)
    server.fault("ref.read", "403", at=2, times=FOREVER)

    assert isinstance(commits.publish(plan, commit, HEAD, always), Ambiguous)
    assert server.count("ref.update") == 1


def test_a_commit_below_later_ones_is_found_and_not_made_again(repo, server, commits):
    plan, changes = a_change(repo)
    commit = prepared(commits, plan, changes)
    commits.publish(plan, commit, HEAD, always)
    later = server.push("change", {"more.txt": "by a person\n"})

    assert commits.publish(plan, commit, HEAD, always) == Applied(commit)
    assert commits.probe(plan, None, HEAD) == Applied(commit)
    assert server.tip("change") == later


def test_a_rebased_commit_of_ours_is_found_by_its_key(repo, server, commits):
    plan, changes = a_change(repo)
    commit = prepared(commits, plan, changes)
    rebased = server.push("change", {"src/a.py": "changed\n"}, plan.full_message)

    assert commits.publish(plan, commit, HEAD, always) == Applied(rebased)
    assert server.tip("change") == rebased


def test_our_key_with_another_digest_is_not_taken_for_ours(repo, server, commits):
    plan, changes = a_change(repo)
    commit = prepared(commits, plan, changes)
    other = server.push("change", {"x": "x\n"}, planned(repo, plan.tree, key=f"{KEY} beef").full_message)

    assert isinstance(commits.publish(plan, commit, HEAD, always), Ambiguous)
    assert isinstance(commits.probe(plan, commit, HEAD), Ambiguous)
    assert server.tip("change") == other


def test_a_key_that_only_begins_like_ours_is_somebody_elses(repo, server, commits):
    plan, changes = a_change(repo)
    commit = prepared(commits, plan, changes)
    server.push("change", {"x": "x\n"}, planned(repo, plan.tree, key=f"{KEY}0 00ff").full_message)

    assert isinstance(commits.publish(plan, commit, HEAD, always), Moved)


def test_nothing_is_pushed_over_a_head_that_moved(repo, server, commits):
    plan, changes = a_change(repo)
    commit = prepared(commits, plan, changes)
    pushed = server.push("change", {"more.txt": "by a person\n"})

    outcome = commits.publish(plan, commit, HEAD, always)

    assert isinstance(outcome, Moved)
    assert outcome.at == pushed == server.tip("change")


def test_nothing_is_pushed_onto_a_head_that_was_set_back(repo, server, commits):
    """GitHub would take it as a step forward, and what a person took back would be there again."""
    parent = server.push("change", {"more.txt": "taken back later\n"})
    repo.git("fetch", "--quiet", str(server.git_dir), "change")
    repo.git("reset", "--quiet", "--hard", parent)
    plan, changes = a_change(repo)
    commit = prepared(commits, plan, changes)
    server.git("update-ref", "refs/heads/change", f"{parent}~1")

    outcome = commits.publish(plan, commit, HEAD, always)

    assert isinstance(outcome, Moved)
    assert server.tip("change") == server.git("rev-parse", f"{parent}~1")


def test_a_head_that_was_force_pushed_stays(repo, server, commits):
    plan, changes = a_change(repo)
    commit = prepared(commits, plan, changes)
    first = server.push("change", {"x": "1\n"})
    forced = server.push("change", {"y": "2\n"}, onto=plan.parent)

    outcome = commits.publish(plan, commit, HEAD, always)

    assert first != forced
    assert outcome == Moved(outcome.reason, forced)
    assert server.tip("change") == forced


def test_our_commit_is_found_below_many_later_ones(repo, server, commits):
    plan, changes = a_change(repo)
    commit = prepared(commits, plan, changes)
    commits.publish(plan, commit, HEAD, always)
    tree, tip = server.git("rev-parse", f"{commit}^{{tree}}"), commit
    repo.git("fetch", "--quiet", str(server.git_dir), "change")
    for number in range(120):
        tip = repo.git("commit-tree", tree, "-p", tip, "-m", str(number))
    repo.git("push", "--quiet", str(server.git_dir), f"{tip}:refs/heads/change")

    assert commits.probe(plan, None, HEAD) == Applied(commit)


def test_a_head_that_moves_while_the_answer_is_lost_is_not_pushed_over(repo, server, commits):
    """Set back by a person in between, it would take our commit as a step forward all the same."""
    parent = server.push("change", {"more.txt": "taken back later\n"})
    repo.git("fetch", "--quiet", str(server.git_dir), "change")
    repo.git("reset", "--quiet", "--hard", parent)
    plan, changes = a_change(repo)
    commit = prepared(commits, plan, changes)
    server.fault("ref.update", "502")
    back = lambda: server.git("update-ref", "refs/heads/change", f"{parent}~1")  # noqa: E731
    server.fault("ref.read", "meanwhile", at=2, act=back)

    assert isinstance(commits.publish(plan, commit, HEAD, always), Ambiguous)
    assert server.tip("change") == server.git("rev-parse", f"{parent}~1")
    assert server.count("ref.update") == 1


def test_a_publication_on_which_somebody_has_built_while_the_answer_was_lost_is_found(repo, server, commits):
    plan, changes = a_change(repo)
    commit = prepared(commits, plan, changes)
    server.fault("ref.update", "applied-502")
    server.fault("ref.read", "meanwhile", at=2, act=lambda: server.push("change", {"x": "on top\n"}))

    assert commits.publish(plan, commit, HEAD, always) == Applied(commit)
    assert server.count("ref.update") == 1


def test_a_head_that_moves_between_look_and_push_is_not_pushed_over(repo, server, commits):
    plan, changes = a_change(repo)
    commit = prepared(commits, plan, changes)
    server.fault("ref.update", "meanwhile", act=lambda: server.push("change", {"more.txt": "just now\n"}))

    outcome = commits.publish(plan, commit, HEAD, always)

    assert isinstance(outcome, Moved)
    assert outcome.at == server.tip("change") != commit


def test_a_head_branch_that_was_deleted_is_not_made_again(repo, server, commits):
    plan, changes = a_change(repo)
    commit = prepared(commits, plan, changes)
    server.delete_branch("change")

    outcome = commits.publish(plan, commit, HEAD, always)

    assert outcome == Moved("change was deleted", None)
    assert server.tip("change") is None


def test_a_head_branch_that_is_deleted_between_look_and_push_is_not_made_again(repo, server, commits):
    plan, changes = a_change(repo)
    commit = prepared(commits, plan, changes)
    server.fault("ref.update", "meanwhile", act=lambda: server.delete_branch("change"))

    outcome = commits.publish(plan, commit, HEAD, always)

    assert isinstance(outcome, Moved)
    assert server.tip("change") is None


def test_an_own_branch_that_somebody_else_made_is_not_pushed_over(repo, server, commits):
    plan, changes = a_change(repo)
    commit = prepared(commits, plan, changes)
    server.git("update-ref", f"refs/heads/{OWN.branch}", "refs/heads/main")
    theirs = server.push(OWN.branch, {"x": "x\n"})

    assert isinstance(commits.publish(plan, commit, OWN, always), Moved)
    assert server.tip(OWN.branch) == theirs


def test_an_own_branch_that_is_made_between_look_and_push_is_not_pushed_over(repo, server, commits):
    plan, changes = a_change(repo)
    commit = prepared(commits, plan, changes)
    made = lambda: server.git("update-ref", f"refs/heads/{OWN.branch}", "refs/heads/main")  # noqa: E731
    server.fault("ref.create", "meanwhile", act=made)

    assert isinstance(commits.publish(plan, commit, OWN, always), Moved)
    assert server.tip(OWN.branch) == plan.parent


@pytest.mark.parametrize("target", [OWN, HEAD])
def test_a_commit_of_ours_that_another_attempt_publishes_just_now_is_found(repo, server, commits, target):
    plan, changes = a_change(repo)
    commit = prepared(commits, plan, changes)
    made: list[str] = []

    def publish() -> None:
        if target is OWN:
            server.git("update-ref", f"refs/heads/{OWN.branch}", plan.parent)
        made.append(server.push(target.branch, {"src/a.py": "changed\n"}, plan.full_message))

    server.fault("ref.create" if target is OWN else "ref.update", "meanwhile", act=publish)

    assert commits.publish(plan, commit, target, always) == Applied(made[0])
    assert server.tip(target.branch) == made[0] != commit


def test_a_session_that_goes_on_moves_its_own_branch_forward(repo, server, commits):
    plan, changes = a_change(repo)
    first = prepared(commits, plan, changes)
    commits.publish(plan, first, OWN, always)
    repo.git("fetch", "--quiet", str(server.git_dir), OWN.branch)
    repo.git("reset", "--quiet", "--hard", first)
    repo.write({"src/a.py": "changed again\n"})
    tree, changes = changed(repo)
    plan = planned(repo, tree, key=f"{SESSION}/9.0 00ff")
    second = prepared(commits, plan, changes)

    assert commits.publish(plan, second, OWN, always) == Applied(second)
    assert server.git("rev-parse", f"{second}~1") == first


def test_the_default_branch_is_never_pushed_to(repo, server, commits):
    plan, changes = a_change(repo)
    commit = prepared(commits, plan, changes)

    for is_own in (False, True):
        assert isinstance(commits.publish(plan, commit, Target("main", is_own=is_own), always), Rejected)

    assert server.tip("main") == plan.parent


def test_nothing_is_pushed_while_the_default_branch_is_unknown(repo, server, commits):
    plan, changes = a_change(repo)
    commit = prepared(commits, plan, changes)
    server.default_branch = ""
    assert isinstance(commits.publish(plan, commit, HEAD, always), Unavailable)
    server.fault("repository.read", "403", times=FOREVER)

    assert isinstance(commits.publish(plan, commit, HEAD, always), Denied)
    assert server.tip("change") == plan.parent


@pytest.mark.parametrize("target", [OWN, HEAD])
def test_a_sender_that_is_too_late_moves_nothing(repo, server, commits, target):
    plan, changes = a_change(repo)
    commit = prepared(commits, plan, changes)

    assert commits.publish(plan, commit, target, lambda: False) == TooLate()
    assert server.tip(target.branch) == (None if target is OWN else plan.parent)


def test_a_probe_tells_absent_from_cannot_tell(repo, server, commits):
    plan, changes = a_change(repo)
    commit = prepared(commits, plan, changes)

    assert isinstance(commits.probe(plan, commit, OWN), Absent)
    assert isinstance(commits.probe(plan, commit, HEAD), Absent)

    server.fault("ref.read", "503", times=FOREVER)

    assert isinstance(commits.probe(plan, commit, HEAD), Unavailable)
