"""The result goes out once: whatever GitHub answers, whoever interferes, and however often it is tried."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from endstate_action.account import Around
from endstate_action.ci.commit import Commits, Target, own_branch
from endstate_action.ci.evidence import parse_evidence
from endstate_action.ci.github import GitHub
from endstate_action.ci.marker import Marker
from endstate_action.ci.pull_request import Conversation, Viewer
from endstate_action.config import DEFAULT_CONFIG
from endstate_action.deliver import Announced, Delivery, Place, Result
from endstate_action.errors import Superseded
from endstate_action.shipper import Departed
from endstate_action.state.records import Attempt, Ended, Frozen, Prompt
from endstate_action.state.session import Session, SessionStore
from endstate_action.state.uploader import Shipped
from endstate_action.system import git
from endstate_action.system.redaction import Secrets
from endstate_action.system.tree import scan
from tests.support.github_server import FOREVER, GitHubServer, bare_repository
from tests.support.github_shapes import BOT
from tests.support.repos import Repo
from tests.support.results import applied

OWNER = "0123456789abcdef"
pytestmark = pytest.mark.slow
SECRET = "s3cr3t-value-0123456789"
DONE = Result("success", "", "The version is 2.")


class Shipping:
    """In the place of a shipper: what its barrier says, one after another, then nothing."""

    def __init__(self, *says: str | BaseException | None) -> None:
        self.says, self.barriers = list(says), 0
        self.departed = Departed("none", None)
        self.is_unfit = False
        self.newer: BaseException | None = None

    def refuse_superseded(self) -> None:
        if self.newer:
            raise self.newer

    def barrier(self) -> str | None:
        self.barriers += 1
        said = self.says.pop(0) if self.says else None
        if isinstance(said, BaseException):
            raise said
        return said

    def soon(self) -> None:
        pass


@dataclass
class Scene:
    """A finished task with its changes, a pull request, and one attempt after another to deliver."""

    folder: Path
    github: GitHubServer
    repo: Repo
    session: Session
    repository: git.Repository
    epoch: int = 1
    changes: dict[str, Any] = field(default_factory=dict)

    def attempt(self, result: Result = DONE, *, shipper: Any = None, **place: Any) -> Announced:
        client = GitHub(self.github.url, self.github.token, {}, timeout_s=1, pauses_s=(0, 0))
        conversation = Conversation(client, self.github.name, self.github.number, lambda s: None)
        commits = Commits(client, self.github.name, lambda s: None)
        where: dict[str, Any] = {
            "target": own_branch(self.session.id),
            "conversation": conversation,
            "commits": commits,
        } | place
        around = Around(
            result.conclusion, "", "et1:" + "0" * 64, (".git",), "isolated",
            repository=self.github.name, pull_request=self.github.number,
        )  # fmt: skip
        return Delivery(
            self.session, Place(OWNER, Viewer(BOT), **where), self.repository, os.environ,
            Secrets({"A_TOKEN": SECRET}), shipper, around, self.folder / "files", self.folder / "baseline",
        ).announce(result)  # fmt: skip

    @property
    def base(self) -> str:
        return str(self.session.state.begun.bound["base"])

    def commits_on(self, branch: str) -> int:
        tip = self.github.tip(branch)
        return int(self.github.git("rev-list", "--count", f"{self.base}..{tip}")) if tip else 0

    @property
    def own(self) -> str:
        return f"endstate/{self.session.id}"

    def stands(self, announced: Announced, branch: str | None = None) -> None:
        """All is delivered: one comment, one commit, and both tell the truth."""
        assert announced.problems == ()
        branch = branch or self.own
        assert (announced.branch, announced.commit) == (branch, self.github.tip(branch))
        assert self.commits_on(branch) == 1
        ours = [c for c in self.github.comments if c["login"] == BOT]
        assert len(ours) == 1
        assert announced.commit
        assert f'"commit":"{announced.commit}"' in ours[0]["body"]
        assert '"state":"success"' in ours[0]["body"]
        assert announced.evidence.trees.git_tree == self.github.git("rev-parse", f"{announced.commit}^{{tree}}")
        assert parse_evidence((self.folder / "files" / "evidence.json").read_bytes(), "it") == announced.evidence


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    bare = bare_repository(tmp_path, {"app.py": "VERSION = 1\n"})
    with GitHubServer(bare) as github:
        repo = Repo(tmp_path / "work")
        Repo(tmp_path).git("clone", "-q", str(bare), str(repo.path))
        repo.git("checkout", "-q", "--detach", github.head_sha)
        base = repo.git("rev-parse", "HEAD")
        (tmp_path / "tmp").mkdir()
        repository = git.discover(repo.path, os.environ, tmp_path / "tmp")
        assert repository is not None
        scan(repo.path, [b".git"]).save(tmp_path / "baseline")
        repo.write({"app.py": "VERSION = 2\n", "new/file.bin": b"\0\1\2"})
        bound = {"workspace": "git", "base": base, "dirty": {}, "repository": github.name}
        with SessionStore(tmp_path / "sessions").create(bound, session="0" * 11 + "1") as session:
            session.append(Attempt(1, 1.0, "0", {}, {}, "wal", "anthropic", "m"))
            session.append(Prompt("p", "Raise it.", 1, 0, 2.0))
            session.append(Ended(1, 1, "success", "", 3.0, "et1:" + "0" * 64))
            yield Scene(tmp_path, github, repo, session, repository)


def head(scene: Scene) -> dict[str, Any]:
    return {"target": Target("change", is_own=False)}


def test_one_comment_and_one_commit_are_delivered_and_a_repeat_changes_nothing(scene: Scene) -> None:
    scene.stands(scene.attempt())
    before, writes = dict(scene.github.comments[0]), scene.github.count("comment.edit")
    scene.stands(scene.attempt())
    assert (scene.github.comments, scene.github.count("comment.edit")) == ([before], writes)
    assert scene.github.count("commit.create") == 1


def test_the_head_of_the_pull_request_is_moved_forward(scene: Scene) -> None:
    scene.stands(scene.attempt(**head(scene)), "change")


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        *(("comment.create", kind) for kind in ("applied-502", "502", "drop-after", "drop-before", "stall-after")),
        *(("ref.create", kind) for kind in ("applied-502", "502", "drop-after", "drop-before")),
        *((operation, "applied-502") for operation in ("commit.create", "tree.create", "blob.create")),
    ],
)
def test_an_answer_that_was_lost_makes_no_second_of_anything(scene: Scene, operation: str, kind: str) -> None:
    scene.github.fault(operation, kind)
    announced = scene.attempt()
    scene.stands(announced if not announced.problems else scene.attempt())


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        *(("comment.create", kind) for kind in ("401", "403", "422", "503", "primary", "secondary")),
        *(("ref.create", kind) for kind in ("401", "403", "503", "secondary")),
        ("comment.list", "403"),
        ("comment.list", "503"),
        ("commit.create", "422"),
        ("commit.create", "503"),
    ],
)
def test_a_refusal_that_lasts_is_told_and_the_next_attempt_delivers(scene: Scene, operation: str, kind: str) -> None:
    """Nothing is lost: what could be delivered is, what could not stays in the outbox."""
    scene.github.fault(operation, kind, times=FOREVER)
    announced = scene.attempt()
    assert len(announced.problems) == 1
    assert announced.problems[0].startswith(f"The {operation.partition('.')[0].replace('ref', 'commit')} was not deliv")
    assert announced.evidence.conclusion == "undelivered"
    assert (scene.folder / "files" / "evidence.json").is_file()
    if not operation.startswith("comment"):
        assert '"state":"undelivered"' in scene.github.comments[0]["body"]
        assert (scene.folder / "files" / "result.patch").is_file()
    scene.github.heal()
    scene.stands(scene.attempt())


def test_a_denied_permission_is_told_with_the_lines_to_paste(scene: Scene) -> None:
    scene.github.fault("ref.create", "403", times=FOREVER)
    assert "contents: write" in scene.attempt().problems[0]


_NO_WORKFLOWS = (
    "refusing to allow a GitHub App to create or update workflow `.github/workflows/ci.yml` without `workflows` "
    "permission"
)


@pytest.mark.parametrize("is_own", [True, False])
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("403", ""),
        ("422", _NO_WORKFLOWS),
        ("403", _NO_WORKFLOWS),
        ("422", "Protected branch update failed for refs/heads/change"),
        ("422", "Repository rule violations found. Cannot create ref due to creations being restricted."),
        ("422", "Validation Failed"),
    ],
)
def test_a_branch_that_is_refused_is_refused_for_good(scene: Scene, is_own: bool, kind: str, said: str) -> None:
    """As an upload is: no repeat changes it, and nobody is told that one would."""
    scene.github.fault("ref.create" if is_own else "ref.update", kind, times=FOREVER, message=said)
    announced = scene.attempt(**({} if is_own else head(scene)))
    assert (len(announced.problems), announced.is_final, announced.commit) == (1, True, None)
    assert said in announced.problems[0]
    body = scene.github.comments[0]["body"]
    assert "git apply" in body.partition("Verify it")[0]
    assert "Re-run" not in body
    assert announced.patch_file is not None
    clone = applied(scene.repo, scene.base, announced.patch_file.read_bytes(), scene.folder / "clone")
    assert clone.git("write-tree") == announced.evidence.trees.git_tree


@pytest.mark.parametrize("is_own", [True, False])
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("401", ""),
        ("409", "Conflict"),
        ("503", ""),
        ("502", ""),
        ("primary", ""),
        ("secondary", ""),
        ("422", "Reference already exists"),
        ("422", "Update is not a fast forward"),
        ("422", "Object does not exist"),
        ("422", "Reference update failed"),
    ],
)
def test_a_branch_that_a_repeat_may_move_is_not_refused_for_good(
    scene: Scene, is_own: bool, kind: str, said: str
) -> None:
    """The branch is where it was, as far as we can see: GitHub was away, or had not caught up with itself."""
    scene.github.fault("ref.create" if is_own else "ref.update", kind, times=FOREVER, message=said)
    place = {} if is_own else head(scene)
    announced = scene.attempt(**place)
    assert (len(announced.problems), announced.is_final, announced.commit) == (1, False, None)
    assert "in the same way" not in scene.github.comments[0]["body"]
    scene.github.heal()
    scene.stands(scene.attempt(**place), scene.own if is_own else "change")


def test_an_own_branch_that_somebody_took_is_left_to_them_for_good(scene: Scene) -> None:
    scene.github.git("update-ref", f"refs/heads/{scene.own}", "refs/heads/main")
    theirs = scene.github.push(scene.own, {"x": "x\n"})
    announced = scene.attempt()
    assert (announced.is_final, announced.commit, scene.github.tip(scene.own)) == (True, None, theirs)
    scene.github.delete_branch(scene.own)
    scene.stands(scene.attempt())


@pytest.mark.parametrize("operation", ["*", "blob.create", "commit.create", "ref.create"])
def test_a_token_that_has_expired_is_no_refusal_for_good(scene: Scene, operation: str) -> None:
    """Whoever runs the job again gets another one, which delivers what is there."""
    scene.github.fault(operation, "401", times=FOREVER)
    announced = scene.attempt()
    assert (announced.is_final, announced.commit) == (False, None)
    assert "a re-run gets a new token and delivers it" in announced.problems[0]
    scene.github.heal()
    scene.stands(scene.attempt())


def test_what_was_decided_first_is_repeated_to_the_letter(scene: Scene) -> None:
    """Parent, tree, date and words are pinned, so that a repeat is the same commit."""
    scene.github.fault("ref.create", "503", times=FOREVER)
    scene.attempt()
    scene.github.heal()
    scene.attempt(replace(DONE, said="Other words."))
    assert scene.commits_on(scene.own) == 1
    made = [r for r in scene.github.received if r.operation == "commit.create"]
    assert made[0].body == made[-1].body


# The order


def test_what_takes_long_to_upload_does_not_use_up_the_fence(scene: Scene) -> None:
    """The result is safe first; between the fence and what it allows there is half a minute, and no upload."""
    order: list[str] = []

    class Noted(Shipping):
        def barrier(self) -> str | None:
            order.append("barrier")
            return super().barrier()

    for operation in ("blob.create", "commit.create", "ref.create"):
        scene.github.fault(operation, "meanwhile", act=lambda o=operation: order.append(o))  # type: ignore[misc]
    scene.attempt(shipper=Noted())
    assert order == ["barrier", "blob.create", "commit.create", "barrier", "ref.create", "barrier"]


def test_without_a_stored_start_nothing_is_sent(scene: Scene) -> None:
    announced = scene.attempt(shipper=Shipping("the store is away", "the store is away"))
    assert len(announced.problems) == 2
    assert (scene.github.comments, scene.github.tip(scene.own)) == ([], None)
    scene.stands(scene.attempt(shipper=Shipping()))


def stored() -> Shipping:
    """The newest checkpoint has all that is on record."""
    shipping = Shipping()
    shipping.departed = Departed("memory", Shipped("es1/x", 10**6, 1, 0.0))
    return shipping


@pytest.mark.parametrize("is_stored", [False, True])
def test_only_a_result_that_is_stored_is_called_kept(scene: Scene, is_stored: bool) -> None:
    scene.github.fault("ref.create", "503", times=99)
    announced = scene.attempt(shipper=stored() if is_stored else Shipping())
    assert (announced.evidence.conclusion, announced.is_kept) == ("undelivered", is_stored)
    body = scene.github.comments[0]["body"]
    assert ("The result is kept and nothing is paid twice" in body) is is_stored
    assert ("it is on this machine alone" in body) is not is_stored


def test_a_superseded_attempt_announces_nothing(scene: Scene) -> None:
    with pytest.raises(Superseded):
        scene.attempt(shipper=Shipping(Superseded("2 has taken over")))
    assert (scene.github.comments, scene.github.tip(scene.own)) == ([], None)


# A changed world


def test_a_head_that_moved_is_not_pushed_over(scene: Scene) -> None:
    there = scene.github.push("change", {"other.txt": "x\n"})
    announced = scene.attempt(**head(scene))
    assert scene.github.tip("change") == there
    scene.stands(announced, scene.own)
    assert announced.evidence.head_moved_to == there
    assert f"The branch has moved to {there[:12]}" in scene.github.comments[0]["body"]
    scene.stands(scene.attempt(**head(scene)), scene.own)


def test_a_head_that_was_set_back_by_force_is_not_pushed_over(scene: Scene) -> None:
    scene.github.push("main", {"other.txt": "x\n"})
    there = scene.github.push("change", {"y.txt": "y\n"}, onto=scene.github.tip("main"))
    scene.stands(scene.attempt(**head(scene)), scene.own)
    assert scene.github.tip("change") == there


def test_a_head_that_has_nothing_in_common_any_more_is_not_pushed_over(scene: Scene) -> None:
    git = scene.github.git
    there = git(
        "-c",
        "user.name=n",
        "-c",
        "user.email=e",
        "commit-tree",
        git("rev-parse", f"{scene.base}^{{tree}}"),
        "-m",
        "another history",
    )
    git("update-ref", "refs/heads/change", there)
    announced = scene.attempt(**head(scene))
    scene.stands(announced, scene.own)
    assert announced.evidence.head_moved_to == there
    assert scene.github.tip("change") == there


def test_a_head_that_moves_at_the_last_moment_is_not_pushed_over(scene: Scene) -> None:
    scene.github.fault("ref.update", "meanwhile", act=lambda: scene.github.push("change", {"y.txt": "y\n"}))
    scene.stands(scene.attempt(**head(scene)), scene.own)


def test_a_branch_that_was_deleted_is_not_made_again(scene: Scene) -> None:
    scene.github.delete_branch("change")
    scene.stands(scene.attempt(**head(scene)), scene.own)
    assert scene.github.tip("change") is None
    (comment,) = scene.github.comments
    assert "The head branch was deleted meanwhile" in comment["body"]
    assert "/compare/" not in comment["body"]


def test_the_default_branch_is_never_pushed_to(scene: Scene) -> None:
    announced = scene.attempt(target=Target("main", is_own=False))
    assert "default branch" in announced.problems[0]
    assert scene.github.tip("main") == scene.base


def test_a_closed_pull_request_is_told_all_the_same(scene: Scene) -> None:
    scene.github.is_open = False
    scene.stands(scene.attempt())


def test_a_locked_conversation_is_told_and_nothing_is_lost(scene: Scene) -> None:
    scene.github.is_locked = True
    announced = scene.attempt()
    assert "locked" in announced.problems[0]
    assert announced.is_final
    assert announced.commit == scene.github.tip(scene.own)


# Comments


def test_ours_is_found_behind_many_others(scene: Scene) -> None:
    first = scene.attempt(commits=None)
    mine = scene.github.comments.pop()
    for number in range(132):
        scene.github.say("alice", f"words {number}")
    scene.github.comments.append(mine)
    for number in range(2):
        scene.github.say("alice", f"more words {number}")
    scene.stands(scene.attempt())
    assert scene.github.count("comment.create") == 1
    assert first.comment_url


def test_a_stranger_who_quotes_our_marker_is_left_alone(scene: Scene) -> None:
    scene.attempt()
    quoted = scene.github.comments.pop()["body"]
    scene.github.say("mallory", quoted)
    scene.attempt()
    assert [c["login"] for c in scene.github.comments] == ["mallory", BOT]
    assert scene.github.comments[0]["body"] == quoted


def test_another_workflow_s_comment_is_left_alone(scene: Scene) -> None:
    scene.attempt()
    other = scene.github.comments[0]["body"].replace(OWNER, "f" * 16)
    scene.github.comments[0]["body"] = other
    scene.attempt()
    assert len(scene.github.comments) == 2
    assert scene.github.comments[0]["body"] == other


def test_a_comment_that_a_person_edited_says_the_result_again(scene: Scene) -> None:
    scene.attempt()
    truth = scene.github.comments[0]["body"]
    marker, _, rest = truth.partition("\n")
    scene.github.change(scene.github.comments[0]["id"], marker.replace('"success"', '"working"') + "\n**Working.**")
    scene.attempt()
    assert scene.github.comments[0]["body"].partition("\n")[2] == rest


def test_our_own_working_comment_does_not_outlive_the_result(scene: Scene) -> None:
    """A retry says *working* before it knows that all was delivered; it has to take that back."""
    scene.attempt()
    marker = scene.github.comments[0]["body"].partition("\n")[0]
    scene.github.change(scene.github.comments[0]["id"], marker.replace('"success"', '"working"') + "\n\nWorking.")
    scene.stands(scene.attempt())


def test_a_deleted_comment_is_posted_anew_once(scene: Scene) -> None:
    gone = scene.github.say(BOT, "working")
    scene.github.delete(gone)
    scene.stands(scene.attempt(known=gone))


def test_a_comment_that_was_deleted_twice_stays_deleted(scene: Scene) -> None:
    gone = scene.github.say(BOT, "working")
    scene.github.delete(gone)
    announced = scene.attempt(known=gone, may_recreate=False)
    assert (announced.problems, announced.comment_url, scene.github.comments) == ((), None, [])


def test_results_of_earlier_runs_are_folded(scene: Scene) -> None:
    scene.attempt()
    earlier = scene.github.comments[0]["body"].replace(scene.session.id, "abcdefabcdef")
    scene.github.comments[0]["body"] = "<!-- nothing -->"
    scene.attempt(before=earlier, known=1)
    assert "Earlier results" in scene.github.comments[-1]["body"]
    assert "`abcdefabcdef`" in scene.github.comments[-1]["body"]


# What cannot be delivered


@pytest.mark.parametrize("protected", [(), (".github/**/deploy.yml",), (".github/workflows/**",)])
def test_a_workflow_file_goes_only_where_the_configuration_protects_it_not(scene: Scene, protected: Any) -> None:
    scene.repo.write({".github/workflows/deploy.yml": "on: push\n"})
    config = replace(DEFAULT_CONFIG, protected_paths=protected)
    scene.session.append(Frozen("anthropic", "m", "", (), (), config.to_json(), 1))

    announced = scene.attempt()

    if protected:
        assert ".github/workflows/deploy.yml is a workflow file" in announced.problems[0]
    else:
        scene.stands(announced)


def test_a_path_that_cannot_go_keeps_the_whole_back_and_the_result_is_there(scene: Scene) -> None:
    """Half a change is no result: every such path is named at once, and the patch holds all of it."""
    scene.repo.write({".github/workflows/x.yml": "on: push\n", os.fsdecode(b"latin-\xe9"): "x"})
    announced = scene.attempt()
    (problem,) = announced.problems
    assert ".github/workflows/x.yml is a workflow file" in problem
    assert r"latin-\xe9 is not UTF-8" in problem
    assert (announced.is_final, announced.commit, scene.github.tip(scene.own)) == (True, None, None)
    body = scene.github.comments[0]["body"]
    assert '"state":"undelivered"' in body
    assert "git apply" in body.partition("Verify it")[0]
    assert "Re-run" not in body
    assert announced.patch_file is not None
    clone = applied(scene.repo, scene.base, announced.patch_file.read_bytes(), scene.folder / "clone")
    assert clone.git("write-tree") == announced.evidence.trees.git_tree
    assert f'"tree":"{announced.evidence.trees.git_tree}"' in body


def test_a_name_that_git_refuses_is_told_and_the_rest_is_delivered(scene: Scene) -> None:
    scene.repo.write({"git~1": "x"})
    announced = scene.attempt()
    scene.stands(announced)
    assert [left.path for left in announced.evidence.trees.left_out] == ["git~1"]
    assert "- `git~1`: git" in scene.github.comments[0]["body"]


def test_files_that_cannot_be_written_are_named_nowhere(scene: Scene) -> None:
    (scene.folder / "files").write_text("in the way")
    announced = scene.attempt(commits=None, target=None)
    assert (announced.problems, announced.evidence_file, announced.patch_file) == ((), None, None)
    assert "cannot be written" in announced.unwritten
    assert announced.evidence.uncommitted is not None
    assert announced.evidence.uncommitted.patch_file is None
    assert "The patch file could not be written" in scene.github.comments[0]["body"]


@pytest.mark.parametrize(
    "said", ["Fixes #12 for @alice", "Closes GH-12", "Resolves https://github.com/org/repo/issues/12"]
)
def test_a_subject_closes_no_issue_and_calls_nobody(scene: Scene, said: str) -> None:
    announced = scene.attempt(replace(DONE, said=said))
    subject = scene.github.git("log", "-1", "--format=%s", announced.commit or "")
    assert not re.search(r"[@#]\w|GH-\d|/issues/\d", subject)


# Secrets


def test_a_secret_in_a_file_stops_the_commit_and_the_diff(scene: Scene) -> None:
    scene.repo.write({"app.py": f"KEY = '{SECRET}'\n"})
    announced = scene.attempt()
    assert "app.py holds the value of A_TOKEN" in announced.problems[0]
    assert SECRET not in str(scene.github.state()) + str([r.body for r in scene.github.received])
    assert scene.github.tip(scene.own) is None


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_a_secret_in_a_file_is_seen_in_whatever_characters_it_is_written(scene: Scene, encoding: str) -> None:
    """A commit and a patch are looked through like a checkpoint; git calls such a file binary."""
    (scene.repo.path / "app.reg").write_bytes(f"KEY = '{SECRET}'\n".encode(encoding))
    announced = scene.attempt()
    assert "app.reg holds the value of A_TOKEN" in announced.problems[0]
    assert scene.github.tip(scene.own) is None
    left = announced.evidence.uncommitted
    assert left is not None
    assert "The patch is without app.reg" in (left.lacks or "")


def test_a_patch_that_takes_a_secret_away_would_hold_it(scene: Scene) -> None:
    """What the base has is in the repository already; a patch goes elsewhere."""
    scene.repo.git("checkout", "-q", "--detach")
    scene.repo.commit({"old.txt": f"{SECRET}\n"})
    scene.session.state.begun.bound["base"] = scene.repo.git("rev-parse", "HEAD")  # type: ignore[index]
    (scene.repo.path / "old.txt").unlink()
    announced = scene.attempt(target=None)
    assert announced.patch_file is None
    left = announced.evidence.uncommitted
    assert left is not None
    assert "There is no patch" in (left.lacks or "")


def test_what_may_not_be_stored_is_told_by_an_edit_alone(scene: Scene) -> None:
    """A comment that is posted twice cannot be taken back; one that is edited twice is the same."""
    shipper = Shipping(*["since a.txt holds a secret"] * 4)
    shipper.is_unfit = True
    refused = scene.attempt(shipper=shipper)
    assert (refused.is_final, len(refused.problems), scene.github.comments) == (True, 2, [])
    marker = Marker(OWNER, scene.session.id, 1, 0, "working")
    working = scene.github.say(BOT, f"{marker.line()}\n**Working.**")
    shipper.newer = Superseded("2 has taken over")
    with pytest.raises(Superseded):
        scene.attempt(shipper=shipper, known=working)
    assert "Working" in scene.github.comments[0]["body"]
    shipper.newer, shipper.says = None, ["since a.txt holds a secret"] * 4
    told = scene.attempt(shipper=shipper, known=working)
    assert (told.is_final, len(told.problems), len(scene.github.comments)) == (True, 1, 1)
    assert DONE.said in scene.github.comments[0]["body"]
    assert scene.github.tip(scene.own) is None


def test_a_secret_in_the_name_of_a_file_stops_the_commit_and_is_hidden_in_the_comment(scene: Scene) -> None:
    scene.repo.write({f"{SECRET}.txt": "x\n"})
    announced = scene.attempt()
    (problem,) = announced.problems
    assert problem.startswith("The commit was not delivered")
    assert "A_TOKEN" in problem
    (comment,) = scene.github.comments
    assert "[redacted: A_TOKEN].txt" in comment["body"]
    assert SECRET not in problem + str(scene.github.state()) + str([r.body for r in scene.github.received])


@pytest.mark.parametrize(
    ("commit", "comment", "is_final"), [("503", "403", False), ("403", "503", False), ("403", "403", True)]
)
def test_what_a_repeat_may_deliver_in_part_is_not_refused_for_good(
    scene: Scene, commit: str, comment: str, is_final: bool
) -> None:
    scene.github.fault("ref.create", commit, times=FOREVER)
    scene.github.fault("comment.create", comment, times=FOREVER)
    announced = scene.attempt()
    assert (announced.is_final, len(announced.problems)) == (is_final, 2)


def test_a_secret_in_the_final_message_is_hidden_everywhere(scene: Scene) -> None:
    scene.stands(scene.attempt(replace(DONE, said=f"The key is {SECRET}.")))
    assert SECRET not in str([r.body for r in scene.github.received])
    assert "[redacted: A_TOKEN]" in scene.github.comments[0]["body"]


def test_a_secret_in_the_name_of_a_branch_stops_the_commit(scene: Scene) -> None:
    announced = scene.attempt(target=Target(f"feature/{SECRET}", is_own=False))
    assert "branch name" in announced.problems[0]
    assert SECRET not in str([r.body for r in scene.github.received] + [r.path for r in scene.github.received])


# What is beside the result


def test_what_a_branch_has_that_the_result_has_not_is_told_beside_what_is_delivered(scene: Scene) -> None:
    """Its name is text of somebody else's; what is there already when the session begins is no work of the task."""
    made = scene.repo.git("commit-tree", "-m", "made", f"{scene.base}^{{tree}}")
    before = scene.repo.git("commit-tree", "-m", "before", f"{scene.base}^{{tree}}")
    for name, commit in (("@alice/`x`", made), ("before", before), ("same", scene.base)):
        scene.repo.git("branch", name, commit)
    scene.session.state.begun.bound["apart"] = [before]  # type: ignore[index]
    announced = scene.attempt()
    scene.stands(announced)
    (note,) = announced.evidence.notes
    assert note == (
        f"Left beside this result, which is what was checked out at the end: branch @alice/`x` ({made[:12]})."
    )
    body = scene.github.comments[0]["body"]
    assert "**Left beside this result" in body
    assert "branch @alice" not in body


def test_of_a_session_without_a_record_of_what_was_there_nothing_is_called_left_beside(scene: Scene) -> None:
    scene.repo.git("branch", "x", scene.repo.git("commit-tree", "-m", "made", f"{scene.base}^{{tree}}"))
    assert scene.attempt().evidence.notes == ()


def test_what_is_beside_a_result_costs_it_nothing_where_git_cannot_tell(scene: Scene) -> None:
    scene.session.state.begun.bound["apart"] = []  # type: ignore[index]
    tree = scene.repo.git("rev-parse", f"{scene.base}^{{tree}}")
    gone = scene.repo.git("commit-tree", "-m", "gone", tree)
    child = scene.repo.git("commit-tree", "-m", "child", "-p", gone, tree)
    scene.repo.git("branch", "fix", child)
    (scene.repo.path / ".git/objects" / gone[:2] / gone[2:]).unlink()
    announced = scene.attempt()
    scene.stands(announced)
    assert announced.evidence.notes == ()


# What git cannot read


def broken(scene: Scene, damage: str) -> Path:
    """Where the whole `.git` is kept, after an agent did something to the one in the workspace."""
    git_dir, kept = scene.repo.path / ".git", scene.folder / "kept"
    shutil.copytree(git_dir, kept, symlinks=True)
    if damage == "index":
        (git_dir / "index").write_text("x")
    elif damage == "HEAD":
        (git_dir / "HEAD").unlink()
    else:
        shutil.rmtree(git_dir / damage)
    return kept


def repaired(scene: Scene, kept: Path) -> None:
    shutil.rmtree(scene.repo.path / ".git", ignore_errors=True)
    kept.rename(scene.repo.path / ".git")


@pytest.mark.parametrize("damage", ["", "objects", "HEAD", "index"])
def test_what_git_cannot_read_is_undelivered_everywhere_until_it_can(scene: Scene, damage: str) -> None:
    kept = broken(scene, damage)
    announced = scene.attempt(shipper=stored())
    (problem,) = announced.problems
    assert "cannot read the checkout" in problem
    assert (announced.is_final, announced.commit, scene.github.tip(scene.own)) == (False, None, None)
    evidence = parse_evidence((scene.folder / "files" / "evidence.json").read_bytes(), "it")
    assert (evidence.conclusion, evidence.reason) == ("undelivered", problem)
    body = scene.github.comments[0]["body"]
    assert '"state":"undelivered"' in body
    first = body.split("\n")[1]
    assert first.startswith("**Done, but not delivered")
    assert "cannot read the checkout" in first
    assert "2 files changed, not committed" in first
    assert "- modified `app.py`\n- added `new/file.bin`" in body
    assert "a re-run looks again" in body
    repaired(scene, kept)
    scene.stands(scene.attempt())


def test_where_no_commit_is_wanted_the_comment_says_what_git_could_not_tell(scene: Scene) -> None:
    broken(scene, "objects")
    announced = scene.attempt(commits=None, target=None)
    assert (announced.problems, announced.evidence.conclusion) == ((), "success")
    body = scene.github.comments[0]["body"]
    assert "**Git cannot read the checkout any more" in body
    assert "in the workspace of this run's machine" in body
    assert "- modified `app.py`\n- added `new/file.bin`" in body


def test_without_the_scan_of_the_start_nobody_says_that_nothing_was_changed(scene: Scene) -> None:
    (scene.folder / "baseline").unlink()
    broken(scene, "objects")
    announced = scene.attempt()
    assert (len(announced.problems), announced.evidence.changed_files) == (1, None)
    assert "What was changed could not be told." in scene.github.comments[0]["body"]


def test_no_commit_is_missing_where_nothing_was_changed_but_the_git_directory(scene: Scene) -> None:
    scan(scene.repo.path, [b".git"]).save(scene.folder / "baseline")
    broken(scene, "")
    announced = scene.attempt()
    assert (announced.problems, announced.evidence.conclusion, announced.evidence.uncommitted) == ((), "success", None)
    assert "Nothing was changed." in scene.github.comments[0]["body"]


def test_what_stopped_is_not_undelivered_where_git_cannot_read_it(scene: Scene) -> None:
    broken(scene, "")
    announced = scene.attempt(Result("stopped", "max-steps: 3 of 3 steps are used", ""))
    assert (announced.problems, announced.evidence.conclusion) == ((), "stopped")
    assert "**Git cannot read the checkout any more" in scene.github.comments[0]["body"]


def test_a_commit_that_was_delivered_is_told_where_git_can_read_nothing_any_more(scene: Scene) -> None:
    made = scene.attempt().commit
    broken(scene, "objects")
    announced = scene.attempt()
    assert (announced.problems, announced.commit, announced.branch) == ((), made, scene.own)
    assert f'"commit":"{made}"' in scene.github.comments[0]["body"]


# What was not a success


def test_what_stopped_is_told_and_not_committed(scene: Scene) -> None:
    announced = scene.attempt(Result("stopped", "max-steps: 3 of 3 steps are used", ""))
    assert (announced.commit, scene.github.tip(scene.own)) == (None, None)
    assert "3 steps are used" in scene.github.comments[0]["body"]
    assert (scene.folder / "files" / "result.patch").is_file()
