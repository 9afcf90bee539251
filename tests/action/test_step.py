"""One step of a workflow, from end to end: what it says, what it leaves, and what a second one makes of that."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.ladder import climb
from tests.support.messages_api import answer, call
from tests.support.repos import Repo
from tests.support.step import ROOT, Job, Ran, children_of, outputs_of, stage, turns

pytestmark = pytest.mark.slow

KEY = "sk-ant-test-0123456789abcdef0123456789"
WRITES_KEY = f"printf {KEY[:20]} > key.txt; printf {KEY[20:]} >> key.txt; echo fine > ok.txt"

TURNS = turns(answer("I look.", call("write", path="app.py", content="VERSION = 2\n")), answer("The version is 2."))
NUMBERS = ("attempt", "steps", "input-tokens", "output-tokens", "settlements", "refused-calls")


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with stage(tmp_path, TURNS) as job:
        yield job


def done(ran: Ran) -> Ran:
    assert (ran.code, ran.conclusion) == (0, "success"), ran.log
    return ran


def test_a_finished_step_says_all_and_asked_again_only_repeats_it(job: Job) -> None:
    job.inputs["commit"] = "branch"
    ran = done(job.attempt(1))
    declared = set(yaml.safe_load((ROOT / "action.yml").read_text())["outputs"])
    assert set(ran.outputs) == declared
    assert all(re.fullmatch(r"\d+", ran.outputs[name]) for name in NUMBERS)
    assert (ran.outputs["resumed"], ran.outputs["durability"]) == ("false", "cache")
    assert re.fullmatch(r"\d+(\.\d+)?", ran.outputs["cost-usd"])
    assert all(re.fullmatch(r"et1:[0-9a-f]{64}", ran.outputs[name]) for name in ("tree-hash", "published-tree-hash"))
    assert ran.outputs["commit-sha"] == job.github.tip(ran.outputs["branch"])
    assert ran.outputs["changed-files"] == "app.py"
    assert Path(ran.outputs["evidence-file"]).is_file()
    first, second, third = ran.log.splitlines()[:3]
    assert f"session {ran.outputs['session-id']}" in first
    assert "at most 200 steps, $5.00 and 90 minutes" in first
    assert second.startswith("sandbox: ")
    assert "checkpoints: cache" in second
    assert third == f"comment: {ran.outputs['comment-url']}"
    assert ran.annotations == []
    assert "Done in 1 attempt" in ran.summary
    assert len(ran.summary.encode()) < 1 << 20

    comments, commit, writes = (
        [dict(c) for c in job.github.comments],
        job.github.tip(ran.outputs["branch"]),
        written(job),
    )
    again = done(job.attempt(2))
    assert len(job.api.requests) == 2
    assert "finished and delivered before" in again.log
    assert "finished and delivered before" in again.summary
    files = {"evidence-file": "", "patch-file": ""}
    assert again.outputs == {**ran.outputs, **files}
    assert job.github.comments == comments
    assert job.github.tip(ran.outputs["branch"]) == commit
    assert written(job) == writes


def test_a_result_that_says_much_is_delivered_once_however_often_it_is_run_again(tmp_path: Path) -> None:
    """However long the message is, and whatever the checkout held at the start."""
    with stage(tmp_path, turns(answer(call("write", path="a", content="A")), answer("é" * 80_000))) as job:

        def fill(workspace: Path) -> None:
            for number in range(3_000):
                (workspace / f"{number:0150}").write_text("x")

        job.prepare = fill
        ran = done(job.attempt(1))
        comments = [dict(c) for c in job.github.comments]
        again = done(job.attempt(2))
        assert "finished and delivered before" in again.log
        assert again.outputs == {**ran.outputs, "evidence-file": "", "patch-file": ""}
        assert job.github.comments == comments
        assert len(job.api.requests) == 2


def written(job: Job) -> int:
    return sum(r.method != "GET" and r.operation != "viewer" for r in job.github.received)


FIRST = call("bash", command="echo 1 > first.txt; echo 'VERSION = 2' > app.py")
ABANDONED = {
    "never": ({"max-steps": "1"}, {"resume": "never"}),
    "restart": ({"max-steps": "1"}, {"model": "claude-opus-5", "on-mismatch": "restart"}),
    "delivered": ({}, {"prompt": "Another."}),
    "undelivered": ({}, {"prompt": "Another."}),
}


@pytest.mark.parametrize("why", ABANDONED)
def test_a_session_that_begins_anew_begins_on_what_is_checked_out(tmp_path: Path, why: str) -> None:
    """Nothing of the session that is given up is taken for its own, and nothing says that it was gone on with."""
    (given, then), model = ABANDONED[why], [turns(answer(FIRST), answer("Done."))]

    def replies(body, number):
        return model[-1](body, number)

    with stage(tmp_path, replies) as job:
        job.inputs["commit"] = "branch"
        if why == "undelivered":
            job.kill_at("ref.create", is_applied=False)
        before = job.attempt(1, **given)
        command = "cp first.txt second.txt; echo '# more' >> app.py"
        model.append(turns(answer(call("bash", command=command)), answer("Done.")))
        early, file = [], tmp_path / "machine-2" / "temp" / "output"
        job.on_request = lambda number: early.append(outputs_of(file.read_text()))
        ran = done(job.attempt(2, **then))

        assert ran.outputs["session-id"] != before.outputs["session-id"]
        told = ("resumed", "restored-from", "restored-tree-hash", "changed-files")
        assert [ran.outputs[name] for name in told] == ["false", "", "", "app.py"]
        assert [early[0][name] for name in told[:2]] == ["false", ""]
        changed = job.github.git("show", "--format=", "--name-status", ran.outputs["commit-sha"])
        assert changed.split() == ["M", "app.py"]
        assert job.github.git("show", f"{ran.outputs['commit-sha']}:app.py").split("\n") == ["VERSION = 1", "# more"]
        assert not (ran.workspace / "first.txt").exists()
        assert "resumed" not in ran.log


def test_a_mismatch_is_told_with_the_inputs_that_settle_it(job: Job) -> None:
    job.attempt(1, **{"max-steps": "1"})
    ran = job.attempt(2, model="claude-opus-5")
    assert (ran.code, ran.conclusion) == (13, "mismatch")
    assert "`on-mismatch: continue` goes on all the same, `on-mismatch: restart` begins a new session." in ran.log
    assert "--on-mismatch" not in ran.log


def test_a_mismatch_that_no_input_settles_is_told_with_what_does(job: Job) -> None:
    """A linked work tree at another place takes no restore, whatever `on-mismatch` says."""

    def link(workspace: Path) -> None:
        main = workspace.parent / "main"
        workspace.rename(main)
        subprocess.run(["git", "worktree", "add", "-q", "--detach", workspace], cwd=main, check=True)

    job.prepare = link
    job.kill_at_request(2)
    assert job.attempt(1).code == -9
    job.on_request = lambda number: None
    for asked in ("refuse", "continue", "restart"):
        ran = job.attempt(2, **{"on-mismatch": asked})
        assert (ran.code, ran.conclusion) == (13, "mismatch"), ran.log
        (comment,) = job.github.comments
        assert "`on-mismatch` changes nothing of that" in comment["body"]
        assert "on-mismatch: " not in comment["body"]
    done(job.attempt(2, resume="never"))


def test_who_they_are_is_known_before_the_first_model_call(job: Job) -> None:
    """A machine that is lost while the model thinks leaves outputs and a comment behind."""
    job.kill_at_request(1)
    first, machine = job.begin(1)
    ran = job.end(first, machine)
    assert ran.code == -signal.SIGKILL
    assert (ran.outputs["attempt"], ran.outputs["restored-from"]) == ("1", "")
    assert "**Working.**" in job.github.comments[0]["body"]
    job.kill_at_request(2)
    lost = job.attempt(2)
    assert (lost.outputs["session-id"], lost.outputs["attempt"]) == (ran.outputs["session-id"], "2")
    assert lost.outputs["restored-from"].startswith("es1/")
    assert "resumed from" in job.github.comments[0]["body"]
    job.on_request = lambda number: None
    final = done(job.attempt(3))
    assert (final.outputs["resumed"], final.outputs["attempt"]) == ("true", "3")
    assert len(job.github.comments) == 1
    assert "Done in 3 attempts" in job.github.comments[0]["body"]


def test_what_a_tool_wrote_for_later_steps_is_undone_and_fails_the_step(tmp_path: Path) -> None:
    temp = tmp_path / "machine-1" / "temp"
    command = f"for f in env path output; do echo EVIL=1 >> {temp}/$f; done"
    with stage(tmp_path, turns(answer(call("bash", command=command)), answer("Done."))) as job:
        ran = job.attempt(1, sandbox="off")
        assert (ran.code, ran.conclusion) == (2, "failed"), ran.log
        assert (temp / "env").read_text() == (temp / "path").read_text() == ""
        assert "EVIL" not in (temp / "output").read_text()
        assert any("GITHUB_ENV" in line for line in ran.annotations)


def test_it_is_undone_where_the_run_fails_as_well(tmp_path: Path) -> None:
    env = tmp_path / "machine-1" / "temp" / "env"
    with stage(tmp_path, turns(answer(call("bash", command=f"echo EVIL=1 >> {env}")), answer("Done."))) as job:

        def interrupt(number: int) -> None:
            if number == 2 and job.process:
                os.kill(job.process.pid, signal.SIGINT)
                time.sleep(1)  # it is passed on to who waits for this answer

        job.on_request = interrupt
        ran = job.attempt(1, sandbox="off")
        assert (ran.code, ran.conclusion) == (75, "interrupted"), ran.log
        assert env.read_text() == ""


def test_what_the_runner_cannot_be_told_changes_nothing_of_the_result(job: Job, tmp_path: Path) -> None:
    """Outputs, summary and files have nowhere to go; what was done and delivered is done and delivered."""
    for name in ("output-place", "summary-place"):
        (tmp_path / name).mkdir()
    (tmp_path / "temp-place").write_text("no directory")
    job.environ |= {
        "GITHUB_OUTPUT": str(tmp_path / "output-place"),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary-place"),
        "RUNNER_TEMP": str(tmp_path / "temp-place"),
    }
    ran = job.attempt(1)
    assert ran.code == 0, ran.log
    assert "**Done in 1 attempt" in job.github.comments[0]["body"]
    assert [line.partition(" ")[0] for line in ran.annotations] == ["::error", "::warning"]
    outputs, files = ran.annotations
    assert "GITHUB_OUTPUT cannot be written" in outputs
    assert "evidence.json cannot be written" in files
    assert ran.log.count("GITHUB_OUTPUT cannot be written") == ran.log.count("GITHUB_STEP_SUMMARY cannot be writ") == 1
    assert "A tool wrote" not in ran.log


def test_a_file_that_could_not_be_written_is_named_in_no_output(job: Job, tmp_path: Path) -> None:
    (tmp_path / "temp-place").write_text("no directory")
    job.environ["RUNNER_TEMP"] = str(tmp_path / "temp-place")
    ran = done(job.attempt(1))
    assert (ran.outputs["evidence-file"], ran.outputs["patch-file"]) == ("", "")
    assert any("the output that would name it is empty" in line for line in ran.annotations)


def test_a_secret_leaves_in_no_way(tmp_path: Path) -> None:
    """In the last words, in the prompt, in a file: hidden, or held back with its name."""
    with stage(tmp_path, turns(answer(call("bash", command=WRITES_KEY)), answer(f"It is {KEY}."))) as job:
        job.inputs |= {"commit": "branch", "prompt": f"Use {KEY}."}
        ran = job.attempt(1)
        assert (ran.code, ran.conclusion) == (2, "undelivered"), ran.log
        assert "key.txt" in ran.log
        assert KEY not in ran.log + ran.summary + str(ran.outputs)
        assert ran.outputs["patch-file"], ran.log
        patch = Path(ran.outputs["patch-file"]).read_text()
        assert (KEY in patch, "key.txt" in patch, "+fine" in patch) == (False, False, True)
        assert "The patch is without key.txt" in ran.log
        (comment,) = job.github.comments
        assert '"state":"undelivered"' in comment["body"]
        assert "Until that is put right a repeat would be refused" in comment["body"]
        assert "nothing is paid twice" not in comment["body"]
        assert KEY not in str(job.github.state()) + str([r.body for r in job.github.received])


def test_what_was_said_beside_a_secret_in_a_file_is_not_lost(tmp_path: Path) -> None:
    """No checkpoint may hold the file; to edit our own comment takes none."""
    with stage(tmp_path, turns(answer(call("bash", command=WRITES_KEY)), answer("An hour of work."))) as job:
        ran = done(job.attempt(1))
        (comment,) = job.github.comments
        assert "An hour of work." in comment["body"]
        assert "The patch is without key" in comment["body"]
        assert "the whole patch" not in comment["body"] + ran.summary
        assert "They must print" not in comment["body"] + ran.summary
        assert "Nothing newer than that checkpoint was stored, since key" in ran.summary
        assert "newer ones are not, since key.txt holds the value of" in ran.log
        assert KEY not in Path(ran.outputs["patch-file"]).read_text()


def test_a_secret_that_was_there_before_is_said_and_costs_no_result(tmp_path: Path) -> None:
    """Nothing could leave from the start: as without a store, and not one attempt after another at full price."""
    with stage(tmp_path, turns(answer(call("write", path="a.txt", content="x\n")), answer("Done."))) as job:
        job.inputs["commit"] = "branch"
        job.prepare = lambda workspace: (workspace / ".env").write_text(f"ANTHROPIC_API_KEY={KEY}\n")
        refused = job.attempt(1, **{"require-durable": "true"})
        assert (refused.code, refused.conclusion, job.api.requests) == (2, "failed", []), refused.log
        ran = done(job.attempt(2))
        assert "No checkpoint leaves this machine, since .env holds the value of ANTHROPIC_API_KEY" in ran.log
        assert (len(job.api.requests), len(job.github.comments)) == (2, 1)
        assert job.github.git("show", f"{ran.outputs['commit-sha']}:a.txt") == "x"


# Signals


def test_an_interrupted_step_ships_says_so_and_the_next_one_goes_on(tmp_path: Path) -> None:
    def replies(body, number):
        return [answer(call("bash", command="echo x >> log.txt; sleep 8")), answer("Done.")][
            (len(body["messages"]) - 1) // 2
        ]

    with stage(tmp_path, replies) as job:
        process, machine = job.begin(1)
        log = machine / "workspace" / "log.txt"
        while not log.exists():
            time.sleep(0.05)
        climbed = climb(process, scale=3.0)
        ran = job.end(process, machine)
        assert (climbed.code, ran.conclusion) == (75, "interrupted"), climbed.out
        assert ran.outputs.keys() >= {"session-id", "steps", "cost-usd", "sandbox", "durability", "comment-url"}
        assert (ran.outputs["steps"], ran.outputs["durability"]) == ("1", "cache")
        assert ran.summary.startswith("**Interrupted after 1 step.**")
        assert '"state":"interrupted"' in job.github.comments[0]["body"]
        final = done(job.attempt(2))
        # In the sandbox it never happened, and runs; without one nobody can tell, and it is not repeated.
        kept = final.workspace / "log.txt"
        contained = "sandbox: isolated" in final.log
        assert (kept.read_text() if kept.exists() else "") == ("x\n" if contained else "")
        assert ("roll_back_and_run" in final.log, " 1 refused" in final.log) == (contained, not contained)
        assert len(job.github.comments) == 1
        assert "interrupted" in job.github.comments[0]["body"]


def test_a_retry_that_cannot_fetch_the_trusted_commit_goes_on_with_what_was_frozen(job: Job) -> None:
    server = Repo(job.github.git_dir)
    main = server.git("rev-parse", "main").strip()
    gone = server.git("-c", "user.name=n", "-c", "user.email=e", "commit-tree", "-m", "later", "main^{tree}").strip()
    server.git("update-ref", "refs/heads/main", gone)
    job.kill_at_request(2)
    job.attempt(1)
    server.git("update-ref", "refs/heads/main", main)
    server.git("reflog", "expire", "--expire=now", "--all")
    server.git("prune", "--expire=now")

    final = done(job.attempt(2))

    assert final.outputs["resumed"] == "true"
    (told,) = [line for line in final.annotations if gone[:12] in line]
    assert told.startswith("::notice")
    assert "What this session took from it when it began is still used" in told


def test_where_there_is_nothing_to_go_on_with_the_projects_own_rules_are_needed(job: Job) -> None:
    job.github.fault("ref.read", "404", times=9)
    job.event["pull_request"]["base"]["sha"] = gone = "1" * 40

    ran = job.attempt(2)

    assert (ran.code, ran.conclusion) == (2, "failed"), ran.log
    assert gone[:12] in ran.log
    assert job.api.requests == []


def test_the_rules_are_those_of_the_target_branch_as_it_is_now(job: Job, tmp_path: Path) -> None:
    """Stricter ones may have come after the event; a session that has begun keeps its own."""
    other = tmp_path / "other"
    subprocess.run(["git", "clone", "-q", "-b", "main", str(job.github.git_dir), str(other)], check=True)
    (other / ".github").mkdir(exist_ok=True)
    (other / ".github" / "endstate.yml").write_text("policy: {default: deny, rules: []}\n")
    Repo(other).git("add", "-A")
    Repo(other).git("-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "stricter")
    Repo(other).git("push", "-q", "origin", "main")

    ran = job.attempt(1)

    assert "denied" in ran.log
    assert (ran.workspace / "app.py").read_text() == "VERSION = 1\n"


@pytest.mark.parametrize("operation", ["permission.read", "comment.create"])
def test_a_signal_before_anything_is_under_way_is_an_interruption_too(job: Job, operation: str) -> None:
    def stop() -> None:
        assert job.process
        os.kill(job.process.pid, signal.SIGTERM)
        time.sleep(1)

    job.github.fault(operation, "meanwhile", act=stop)
    ran = job.attempt(1)
    assert (ran.code, ran.conclusion) == (75, "interrupted"), ran.log
    assert job.api.requests == []
    done(job.attempt(2))


def test_time_that_is_up_is_told_like_any_limit(job: Job) -> None:
    def ring(number: int) -> None:
        if number == 2 and job.process:
            for child in children_of(job.process.pid) or [job.process.pid]:
                os.kill(child, signal.SIGALRM)
            time.sleep(1)

    job.on_request = ring
    ran = job.attempt(1)
    assert (ran.code, ran.conclusion) == (1, "stopped"), ran.log
    assert '"state":"stopped"' in job.github.comments[0]["body"]


# Who is who


def test_two_jobs_of_one_run_do_not_share_a_session_by_mistake(job: Job) -> None:
    job.environ["RUNNER_TRACKING_ID"] = "github_one"
    done(job.attempt(1))
    job.environ["RUNNER_TRACKING_ID"] = "github_two"
    ran = job.attempt(1)
    assert (ran.code, ran.conclusion) == (2, "failed"), ran.log
    assert "session-key" in ran.annotations[0]
    assert len(job.api.requests) == 2


def test_two_jobs_may_share_a_session_on_purpose(job: Job) -> None:
    job.inputs["session-key"] = "shared"
    job.environ["RUNNER_TRACKING_ID"] = "github_one"
    first = done(job.attempt(1))
    job.environ["RUNNER_TRACKING_ID"] = "github_two"
    assert done(job.attempt(1)).outputs["session-id"] == first.outputs["session-id"]
    assert len(job.api.requests) == 2


def test_two_uses_in_one_job_and_the_jobs_of_a_matrix_are_apart(job: Job) -> None:
    first = done(job.attempt(1))
    job.environ["GITHUB_ACTION"] = "__org_endstate-action_2"
    second = done(job.attempt(1))
    third = done(job.attempt(1, matrix='{"os": "linux"}'))
    assert len({ran.outputs["session-id"] for ran in (first, second, third)}) == 3
    assert len(job.github.comments) == 3


def test_without_a_store_a_re_run_begins_anew_and_says_what_nobody_knows_of(job: Job) -> None:
    job.inputs["commit"] = "branch"
    job.environ["ACTIONS_CACHE_MODE"] = "none"
    ran = done(job.attempt(1))
    assert (ran.outputs["durability"], job.cache.requests) == ("none", [])
    assert any("the job's cache-mode is none" in line for line in ran.annotations)
    again = done(job.attempt(2))
    assert "No checkpoint of an earlier attempt was found, so the task begins anew." in again.log
    assert "1 effects outside the workspace were started and 0 are known" in again.log
    assert len(job.github.comments) == 1


def pays_outside(tmp_path: Path) -> list[Any]:
    outside = tmp_path / "outside.log"
    return [
        answer(call("bash", command=f"echo paid >> {outside}")),
        answer(call("write", path="app.py", content="VERSION = 2\n")),
        answer("Done."),
    ]


@pytest.mark.parametrize("why", ["denied", "none"])
def test_what_happened_outside_is_not_done_again_where_nothing_can_be_gone_on_with(tmp_path: Path, why: str) -> None:
    with stage(tmp_path, turns(*pays_outside(tmp_path))) as job:
        job.inputs["sandbox"] = "off"
        job.kill_at_request(3)
        assert job.attempt(1).code == -signal.SIGKILL
        job.on_request = lambda number: None
        asked = len(job.api.requests)
        if why == "denied":
            job.cache.fault("create", "no", times=99, detail="insufficient usage: over quota")
        else:
            job.environ["ACTIONS_CACHE_MODE"] = "none"
        ran = job.attempt(2)
        assert (ran.code, len(job.api.requests)) == ((2, asked) if why == "denied" else (20, asked)), ran.log
        assert (tmp_path / "outside.log").read_text() == "paid\n"
        (comment,) = job.github.comments
        assert '"effects":1' in comment["body"]
        assert '"state":"failed"' in comment["body"]
        if why == "none":
            return
        assert "Checkpoints of an earlier attempt are there" in comment["body"]
        job.cache.faults.clear()
        assert "2 attempts" in done(job.attempt(3)).summary
        assert (tmp_path / "outside.log").read_text() == "paid\n"


def test_what_an_attempt_spent_that_left_nothing_is_not_called_all(job: Job) -> None:
    job.kill_at_request(2)
    job.attempt(1)
    for entry in [entry for entry in job.cache.shelf.finished() if "/c0" in entry.key]:
        job.cache.shelf.remove(entry)
    ran = done(job.attempt(2))
    assert "begun anew, as an earlier attempt left no checkpoint" in ran.summary
    assert "at least $" in ran.summary


def test_a_second_signal_does_not_tear_what_the_first_one_began(tmp_path: Path) -> None:
    with stage(tmp_path, turns(answer(call("bash", command="echo x > log.txt; sleep 30")), answer("Done."))) as job:
        process, machine = job.begin(1)
        while not (machine / "workspace/log.txt").exists():
            time.sleep(0.05)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGTERM, signal.SIGTERM):
            process.send_signal(number)
            time.sleep(0.15)
        ran = job.end(process, machine)
        assert (ran.code, ran.conclusion) == (75, "interrupted"), ran.log
        assert "nothing was under way" not in ran.log
        assert '"state":"interrupted"' in job.github.comments[0]["body"]


def test_a_checkout_of_something_else_than_the_event_is_about_is_named(tmp_path: Path) -> None:
    with stage(tmp_path, turns(answer("Done."))) as job:
        job.checkout = job.github.tip("main")
        assert "not at what the event is about" in done(job.attempt(1)).log


@pytest.mark.parametrize("free", ["", "5.00"])
def test_a_cost_limit_that_cannot_be_kept_stops_it_and_a_re_run_without_one_goes_on(tmp_path: Path, free: str) -> None:
    script = turns(
        answer("I look.", call("write", path="app.py", content="VERSION = 2\n"), model="other"),
        answer("Done.", model="other"),
    )
    with stage(tmp_path, script) as job:
        stopped = job.attempt(1, **{"max-cost-usd": "5"})
        assert (stopped.code, stopped.conclusion) == (1, "stopped"), stopped.log
        assert "price unknown: 'other' answered" in stopped.annotations[-1]
        assert (stopped.workspace / "app.py").read_text() == "VERSION = 1\n"
        assert "`max-cost-usd` left empty, or at its default of `5.00`" in job.github.comments[0]["body"]

        went_on = done(job.attempt(2, **{"max-cost-usd": free}))
        assert (went_on.outputs["resumed"], went_on.outputs["cost-usd"]) == ("true", "")
        assert (went_on.workspace / "app.py").read_text() == "VERSION = 2\n"
