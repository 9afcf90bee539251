"""Lost at any moment of delivery: one comment, one commit, and the next attempt asks no model."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.messages_api import answer, call
from tests.support.step import API_KEY, ROOT, Job, Ran, stage, turns

pytestmark = pytest.mark.slow

TURNS = turns(
    answer(call("write", path="app.py", content="VERSION = 2\n")),
    answer(call("bash", command="echo hi >> log.txt")),
    answer("The version is 2."),
)
MODEL_CALLS = 3
MOST_REQUESTS = 60


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with stage(tmp_path, TURNS) as job:
        job.inputs["commit"] = "branch"
        yield job


def stands(job: Job, ran: Ran) -> None:
    """One comment and one commit, both true."""
    assert (ran.code, ran.conclusion) == (0, "success"), ran.log
    commit, branch = ran.outputs["commit-sha"], ran.outputs["branch"]
    assert commit == job.github.tip(branch)
    assert job.github.git("rev-list", "--count", f"{job.commit}..{commit}") == "1"
    if ran.outputs["refused-calls"] == "0":  # else it was killed in it, on a machine without a sandbox
        assert job.github.git("show", f"{commit}:log.txt") == "hi"
    (comment,) = job.github.comments
    assert f'"commit":"{commit}"' in comment["body"]
    assert "**Done in" in comment["body"]
    onto = job.event["pull_request"]["head"]["ref"]
    assert branch == onto or f"/compare/{onto}...{branch}?expand=1)" in comment["body"]
    assert job.api.refused == []


# A sample for every day; the whole is below.


@pytest.mark.parametrize(
    ("operation", "is_applied"),
    [
        ("commit.create", False),
        ("ref.create", False),
        ("ref.create", True),
        ("comment.edit", False),
        ("comment.edit", True),
    ],
)
def test_lost_in_delivery_the_next_attempt_delivers_the_rest(job: Job, operation: str, is_applied: bool) -> None:
    if operation == "comment.edit":
        # How often it is edited before depends on how fast this machine is; the result comes after the branch.
        job.github.fault("ref.create", "meanwhile", act=lambda: job.kill_at(operation, is_applied=is_applied))
    else:
        job.kill_at(operation, is_applied=is_applied)
    assert job.attempt(1).code == -9
    assert len(job.api.requests) == MODEL_CALLS
    stands(job, job.attempt(2))
    assert len(job.api.requests) == MODEL_CALLS
    if (operation, is_applied) != ("comment.edit", True):
        assert "**Done in 1 attempt, delivered by attempt 2: 0 refused" in job.github.comments[0]["body"]


@pytest.mark.recovery
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("is_applied", [False, True])
@pytest.mark.parametrize("commit", ["branch", "pr-head"])
def test_lost_at_any_request_at_all_there_is_one_of_each(tmp_path: Path, commit: str, is_applied: bool) -> None:
    for at in range(1, MOST_REQUESTS):
        with stage(tmp_path / str(at), TURNS) as job:
            job.inputs["commit"] = commit
            job.kill_at("*", at, is_applied=is_applied)
            first = job.attempt(1)
            if first.code == 0:
                stands(job, first)
                return
            asked = len(job.api.requests)
            is_shipped = job.github.count("commit.read") > 0  # the first request of all that deliver
            stands(job, job.attempt(2))
            assert len(job.api.requests) == asked or not is_shipped
    raise AssertionError("it makes more requests than were thought of")


@pytest.mark.recovery
@pytest.mark.timeout(1200)
def test_lost_at_random_and_twice_there_is_one_of_each(tmp_path: Path) -> None:
    dice = random.Random(7)
    for trial in range(12):
        with stage(tmp_path / str(trial), TURNS) as job:
            job.inputs["commit"] = "branch"
            for run_attempt in (1, 2):
                process, machine = job.begin(run_attempt)
                timer = threading.Timer(dice.uniform(0.3, 8), job.kill)
                timer.start()
                job.end(process, machine)
                timer.cancel()  # an attempt that ended before must not cost the next one its life
            stands(job, job.attempt(3))


# GitHub away


def test_an_outage_is_undelivered_and_costs_no_second_model_call(job: Job) -> None:
    job.github.fault("comment.edit", "503", times=10**9)
    ran = job.attempt(1)
    assert (ran.code, ran.conclusion) == (75, "undelivered"), ran.log
    assert any("endstate deliver" in line for line in ran.annotations)
    assert len(ran.annotations) <= 3
    job.github.heal()
    stands(job, job.attempt(2))
    assert len(job.api.requests) == MODEL_CALLS


def test_a_token_that_expired_meanwhile_is_undelivered_and_a_re_run_delivers_with_another(job: Job) -> None:
    job.on_request = lambda number: job.github.fault("*", "401", times=10**9) if number == MODEL_CALLS else None
    ran = job.attempt(1)
    assert (ran.code, ran.conclusion) == (75, "undelivered"), ran.log
    told = " ".join(ran.annotations) + ran.summary
    assert "a re-run gets a new token and delivers it" in told
    assert "in the same way" not in told
    assert "without what was refused" not in told
    job.github.heal()
    job.on_request = lambda number: None
    stands(job, job.attempt(2))
    assert len(job.api.requests) == MODEL_CALLS


@pytest.mark.parametrize(("operation", "commit"), [("ref.create", "branch"), ("ref.update", "pr-head")])
def test_a_branch_that_github_refuses_is_final(job: Job, operation: str, commit: str) -> None:
    """Nothing that a re-run would deliver, so the watcher leaves it to a person, who has the patch."""
    words = "refusing to allow a GitHub App to create or update workflow `x.yml` without `workflows` permission"
    job.github.fault(operation, "422", times=10**9, message=words)
    ran = job.attempt(1, commit=commit)
    assert (ran.code, ran.conclusion) == (2, "undelivered"), ran.log
    (error,) = ran.annotations
    assert "without `workflows` permission" in error
    assert "Re-run" not in job.github.comments[0]["body"] + ran.summary
    assert "git apply" in ran.summary
    assert "VERSION = 2" in Path(ran.outputs["patch-file"]).read_text()


def endstate(*words: str, cwd: Path, job: Job) -> subprocess.CompletedProcess[str]:
    environ = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(cwd.parent),
        "PYTHONPATH": str(ROOT / "src"),
        "GITHUB_TOKEN": job.github.token,
        "GITHUB_API_URL": job.github.url,
        "ANTHROPIC_API_KEY": API_KEY,
    }
    command = [sys.executable, "-m", "endstate_action", *words]
    return subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=100, check=False)


def test_a_person_delivers_by_hand_what_the_job_could_not_and_can_verify_it(job: Job, tmp_path: Path) -> None:
    job.github.fault("ref.create", "503", times=10**9)
    job.github.fault("comment.edit", "503", times=10**9)
    ran = job.attempt(1)
    assert ran.code == 75
    job.github.heal()
    delivered = endstate("deliver", cwd=ran.workspace, job=job)
    assert delivered.returncode == 0, delivered.stderr
    (comment,) = job.github.comments
    assert "**Done in 1 attempt" in comment["body"]
    branch = f"endstate/{ran.outputs['session-id']}"
    assert (job.github.tip(branch) or "nothing") in delivered.stdout
    assert len(job.api.requests) == MODEL_CALLS

    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", f"--branch={branch}", job.github.git_dir, clone], check=True)
    evidence = ran.outputs["evidence-file"]
    for reference in (evidence, f"{job.github.name}#{job.github.number}"):
        verified = endstate("verify", reference, str(clone), cwd=clone, job=job)
        assert verified.returncode == 0, verified.stdout + verified.stderr
    (clone / "app.py").write_text("VERSION = 3\n")
    changed = endstate("verify", evidence, str(clone), cwd=clone, job=job)
    assert changed.returncode == 1
    assert "app.py" in changed.stdout


@pytest.mark.parametrize(("kept", "by_hand"), [("cache", ""), ("dir", ""), ("dir", "--store")])
def test_a_re_run_after_a_delivery_by_hand_finds_it(job: Job, tmp_path: Path, kept: str, by_hand: str) -> None:
    """The watcher runs it again by itself, so it must not take what a person did for an effect that was lost."""
    store = f"dir:{tmp_path / 'store'}" if kept == "dir" else "auto"
    job.github.fault("ref.create", "503", times=99)
    ran = job.attempt(1, store=store)
    assert (ran.code, ran.conclusion) == (75, "undelivered"), ran.log
    job.github.heal()
    cwd = ran.workspace
    if by_hand:
        cwd = tmp_path / "clone"
        subprocess.run(["git", "clone", "-q", str(job.github.git_dir), str(cwd)], check=True)
        subprocess.run(["git", "checkout", "-q", "--detach", job.commit], cwd=cwd, check=True)
    told = endstate("deliver", *([by_hand, store] if by_hand else []), cwd=cwd, job=job)
    assert told.returncode == 0, told.stderr
    asked = len(job.api.requests)

    stands(job, job.attempt(2, store=store))

    assert len(job.api.requests) == asked


def test_the_announced_session_is_delivered_from_a_store_and_gone_on_with_in_its_own_line(
    job: Job, tmp_path: Path
) -> None:
    """Under a line of its own neither this machine nor the job would learn that the other has taken over."""
    store = f"dir:{tmp_path / 'store'}"
    job.github.fault("ref.create", "503", times=99)
    ran = job.attempt(1, store=store)
    assert (ran.code, ran.conclusion) == (75, "undelivered"), ran.log
    job.github.heal()
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(job.github.git_dir), str(clone)], check=True)
    subprocess.run(["git", "checkout", "-q", "--detach", job.commit], cwd=clone, check=True)
    session = ran.outputs["session-id"]
    looked = endstate("restore", "--dry-run", "--session", session, "--store", store, cwd=clone, job=job)
    assert looked.returncode == 0, looked.stderr
    restored = []
    for words in (("deliver",), ("deliver",), ("run", "--resume")):
        told = endstate(*words, "--session", session[:8], "--store", store, cwd=clone, job=job)
        assert told.returncode == 0, told.stderr
        restored.append("Restored from" in told.stderr)
    assert restored == [True, False, False]
    listed = json.loads(endstate("sessions", "inspect", "--store", store, "--json", cwd=clone, job=job).stdout)
    assert [(one["epoch"], one["here"]["attempt"]) for one in listed] == [(4, 4)]

    stands(job, job.attempt(2, store=store))

    assert len(job.api.requests) == MODEL_CALLS


def test_a_path_that_cannot_go_is_named_and_the_patch_has_all_of_it(tmp_path: Path) -> None:
    """Refused for good, in the step and by hand; nothing is lost, and nothing says that a re-run would deliver it."""
    command = "mkdir -p .github/workflows && echo 'on: push' > .github/workflows/x.yml && echo hi > log.txt"
    with stage(tmp_path, turns(answer(call("bash", command=command)), answer("Done."))) as job:
        job.inputs["commit"] = "branch"
        ran = job.attempt(1)
        assert (ran.code, ran.conclusion) == (2, "undelivered"), ran.log
        (error,) = ran.annotations
        assert ".github/workflows/x.yml is a workflow file" in error
        (comment,) = job.github.comments
        assert ".github/workflows/x.yml" in comment["body"].replace("\\", "")
        assert "Re-run" not in comment["body"] + ran.summary
        by_hand = endstate("deliver", cwd=ran.workspace, job=job)
        assert (by_hand.returncode, "is a workflow file" in by_hand.stderr) == (2, True), by_hand.stderr
        clone = tmp_path / "clone"
        subprocess.run(["git", "clone", "-q", "--branch=change", job.github.git_dir, clone], check=True)
        subprocess.run(["git", "apply", "--index", ran.outputs["patch-file"]], cwd=clone, check=True)
        verified = endstate("verify", ran.outputs["evidence-file"], str(clone), cwd=clone, job=job)
        assert verified.returncode == 0, verified.stdout + verified.stderr


@pytest.mark.parametrize("commit", ["branch", "none"])
def test_what_git_could_not_read_is_looked_at_again_by_a_re_run(tmp_path: Path, commit: str) -> None:
    """The agent broke the checkout: one conclusion everywhere, and a fresh checkout delivers without a model call."""
    command = "rm -rf .git/objects; echo hi > log.txt"
    with stage(tmp_path, turns(answer(call("bash", command=command)), answer("Done."))) as job:
        job.inputs |= {"commit": commit, "session-key": f"it-{commit}"}
        ran = job.attempt(1)
        expected = (0, "success") if commit == "none" else (75, "undelivered")
        assert (ran.code, ran.conclusion) == expected, ran.log
        (comment,) = job.github.comments
        assert f'"state":"{ran.conclusion}"' in comment["body"]
        assert "**Git cannot read the checkout" in comment["body"]
        assert "- added `log.txt`" in comment["body"]
        assert "- added `log.txt`" in ran.summary
        assert ran.outputs["changed-files"] == "log.txt"
        assert all("a re-run looks again" in line and "comment" not in line for line in ran.annotations)
        ran = job.attempt(2)
        assert len(job.api.requests) == 2
        if commit == "branch":
            stands(job, ran)
        else:
            assert (ran.code, ran.conclusion) == (0, "success"), ran.log
            assert "log.txt" in Path(ran.outputs["patch-file"]).read_text()


@pytest.mark.parametrize("commit", ["branch", "none"])
@pytest.mark.parametrize(
    "does", ["rm .git/HEAD", "echo garbage > .git/index", "rm -rf .git"], ids=["head", "index", "all"]
)
def test_what_a_fresh_checkout_does_not_mend_ends_as_before_and_promises_nothing(
    tmp_path: Path, does: str, commit: str
) -> None:
    """A broken HEAD comes back with the checkpoint: what was delivered stays that, what was not is told honestly."""
    command = f"{does}; echo hi > log.txt"
    with stage(tmp_path, turns(answer(call("bash", command=command)), answer("Done."))) as job:
        # A session of the same name in another test at this time would end its processes.
        job.inputs |= {"commit": commit, "session-key": f"it-{commit}-{len(does)}"}
        first = job.attempt(1)
        expected = (0, "success") if commit == "none" else (75, "undelivered")
        assert (first.code, first.conclusion) == expected, first.log
        is_gone = not (first.workspace / ".git").exists()  # without a sandbox, all of it
        for number in (2, 3):
            ran = job.attempt(number)
            assert len(job.api.requests) == 2
            if is_gone and commit == "branch":
                stands(job, ran)
                continue
            # What says that another one ends so must not be run again by who watches.
            again = expected if commit == "none" else (2, "undelivered")
            assert (ran.code, ran.conclusion) == again, ran.log
            assert (ran.workspace / "log.txt").read_text() == "hi\n"
            assert ran.outputs["final-message"] == "Done."
            assert ran.outputs["session-id"] == first.outputs["session-id"]
            (comment,) = job.github.comments
            assert f'"state":"{ran.conclusion}"' in comment["body"]
            assert first.outputs["changed-files"] == ran.outputs["changed-files"] == "log.txt"
            assert "- added `log.txt`" in comment["body"]
            if commit == "branch":
                everywhere = (comment["body"], ran.log, ran.summary)
                assert all("another one would end in the same way" in said for said in everywhere)
                assert all("a re-run looks again" not in said for said in everywhere)


@pytest.mark.parametrize("commit", ["none", "branch"])
def test_work_on_another_branch_or_in_a_stash_is_named_and_not_called_nothing(tmp_path: Path, commit: str) -> None:
    """A result is what is checked out at the end; what lies beside it would go with the machine unseen."""
    secret = f"{API_KEY[:9]}''{API_KEY[9:]}"  # the whole of it no call is given
    command = (
        "git checkout -q -b fix && echo 2 > app.py && git -c user.name=n -c user.email=n@x commit -qam fix && "
        "git checkout -q - && echo w > wip.txt && git add wip.txt && "
        f"git -c user.name=n -c user.email=n@x stash -q && git branch {secret} fix && git branch same"
    )
    with stage(tmp_path, turns(answer(call("bash", command=command)), answer("I fixed it."))) as job:
        who = {f"GIT_{role}_{what}": "n@x" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        when = {f"GIT_{role}_DATE": "@1 +0000" for role in ("AUTHOR", "COMMITTER")}
        job.prepare = lambda workspace: subprocess.run(
            ["sh", "-ec", "git tag -m before before $(git commit-tree -m before HEAD^{tree})"],
            cwd=workspace,
            env={**os.environ, **who, **when},
            check=True,
        )
        job.kill_at_request(2)
        assert job.attempt(1, commit=commit).code == -9
        job.on_request = lambda number: None
        ran = job.attempt(2, commit=commit)
        assert (ran.code, ran.conclusion) == (0, "success"), ran.log
        note = json.loads(Path(ran.outputs["evidence-file"]).read_text())["notes"][0]
        assert note.startswith("Left beside this result, which is what was checked out at the end: branch fix (")
        assert "a stash (" in note
        assert all(words not in note for words in (API_KEY, "before", "same"))
        (comment,) = job.github.comments
        for text in (comment["body"], ran.summary):
            assert "No file was changed." in text
            assert "Nothing was changed." not in text
            assert "**Left beside this result" in text
            assert "branch fix " in text


def test_the_error_sends_nobody_to_a_comment_that_is_not_there(tmp_path: Path) -> None:
    command = "mkdir -p .github/workflows && echo 'on: push' > .github/workflows/x.yml"
    with stage(tmp_path, turns(answer(call("bash", command=command)), answer("Done."))) as job:
        job.inputs |= {"commit": "branch", "comment": "off"}
        ran = job.attempt(1)
        assert (ran.code, ran.conclusion) == (2, "undelivered"), ran.log
        (error,) = ran.annotations
        assert error.endswith("in the same way; the summary says what can be done.")


@pytest.mark.parametrize("commit", ["none", "branch"])
@pytest.mark.parametrize("path", ["run.bat", "app.py"])
def test_the_lines_of_the_comment_print_what_it_announces(tmp_path: Path, commit: str, path: str) -> None:
    """In a clone whose work tree has other line ends than what is committed; and `verify` says the same."""
    files = {".gitattributes": "*.bat text eol=crlf\n", "run.bat": "echo 1\n", "app.py": "VERSION = 1\n"}
    edit = call("edit", path=path, old="1", new="2")
    with stage(tmp_path, turns(answer(edit), answer("Done.")), files) as job:
        ran = job.attempt(1, commit=commit)
        assert ran.code == 0, ran.log
        (comment,) = job.github.comments
        clone = tmp_path / "clone"
        subprocess.run(["git", "clone", "-q", "--branch=change", job.github.git_dir, clone], check=True)
        assert b"\r\n" in (clone / "run.bat").read_bytes()
        if commit == "none":
            shutil.copy(ran.outputs["patch-file"], tmp_path)
        lines = comment["body"].partition("Verify it")[2].partition("```sh\n")[2].partition("\n```")[0].split("\n")
        program = f'endstate() {{ PYTHONPATH="{ROOT}/src" "{sys.executable}" -m endstate_action "$@"; }}'
        printed = [
            subprocess.run(
                ["bash", "-euc", f"{program}\n{line}"], cwd=clone, capture_output=True, text=True, check=True
            ).stdout.strip()
            for line in lines
        ]
        assert printed == [ran.outputs["git-tree"], ran.outputs["published-tree-hash"]]
        if commit == "none":
            for reference in (ran.outputs["evidence-file"], f"{job.github.name}#{job.github.number}"):
                verified = endstate("verify", reference, str(clone), cwd=clone, job=job)
                assert verified.returncode == 0, verified.stdout + verified.stderr


def test_what_was_not_committed_verifies_as_base_and_patch(job: Job, tmp_path: Path) -> None:
    ran = job.attempt(1, commit="none")
    assert ran.code == 0, ran.log
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", "--branch=change", job.github.git_dir, clone], check=True)
    subprocess.run(["git", "apply", "--index", ran.outputs["patch-file"]], cwd=clone, check=True)
    patch = Path(ran.outputs["patch-file"])
    told = json.loads(Path(ran.outputs["evidence-file"]).read_text())["uncommitted"]
    digest = hashlib.sha256(patch.read_bytes()).hexdigest()
    assert told == {"patch-file": patch.name, "patch-sha256": digest, "lacks": None}
    verified = endstate("verify", ran.outputs["evidence-file"], str(clone), cwd=clone, job=job)
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_a_comment_that_github_refuses_is_final_and_can_be_delivered_once_it_would_take_it(job: Job) -> None:
    """A watcher's re-runs would only be refused again, each at the price of a job."""
    job.on_request = lambda number: (
        job.github.fault("comment.edit", "403", times=10**9, message="Conversation is locked")
        if number == MODEL_CALLS
        else None
    )
    ran = job.attempt(1)
    assert (ran.code, ran.conclusion) == (2, "undelivered"), ran.log
    (error,) = ran.annotations
    assert "(Unlock the conversation, or do without the comment (`comment: off`, by a variable))." in error
    assert "Only the comment is missing" in ran.summary
    assert "change without what was refused" not in ran.summary
    job.github.heal()
    stands(job, job.attempt(2))
    assert len(job.api.requests) == MODEL_CALLS


def test_a_task_that_goes_on_on_an_older_commit_says_so_to_the_model_and_in_the_result(job: Job) -> None:
    """The session is one for each pull request, and somebody pushed after the machine was lost."""
    job.inputs["session-key"] = "pr-7"
    job.kill_at_request(2)
    job.attempt(1)
    begun, job.on_request = job.commit, lambda number: None
    job.commit = job.github.push(job.github.head_ref, {"feature.txt": "NEWER\n"})
    job.event["pull_request"]["head"]["sha"] = job.commit
    job.environ["GITHUB_RUN_ID"] = "999"
    ran = job.attempt(1, prompt="Review the newest push.")
    assert ran.code == 0, ran.log
    asked = next(m for m in job.api.bodies[-1]["messages"] if "Review the newest push." in json.dumps(m))
    assert f"This was asked on the commit {job.commit}." in json.dumps(asked)
    (comment,) = job.github.comments
    assert (
        f"**The branch has moved to {job.commit[:12]} meanwhile.** This result belongs to {begun[:12]}"
        in comment["body"]
    )
    evidence = json.loads(Path(ran.outputs["evidence-file"]).read_text())
    assert (evidence["head-moved-to"], evidence["trees"]["base-commit"]) == (job.commit, begun)
    again = job.attempt(2, prompt="Review the newest push.")
    assert (again.code, len(job.github.comments)) == (0, 1)
