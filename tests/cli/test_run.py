"""`endstate run`, from outside: what it prints, what it leaves, and the code it ends with."""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import click
import pytest

from endstate_action.agent.loop import AttemptBegan
from endstate_action.agent.providers.scripted import ScriptedProvider, parse_script
from endstate_action.cli import _begun, _Lines
from endstate_action.config import Settings
from endstate_action.run import Choice, Ports, SandboxChosen, run
from endstate_action.state.fold import State
from endstate_action.state.session import SessionStore
from endstate_action.system.proctable import identity
from tests.support.command import ARGV, Ran, bash, begin, calls, endstate, is_running, script, wait_for
from tests.support.repos import GitRepo

pytestmark = pytest.mark.slow

OUTPUTS = {
    "conclusion", "session-id", "attempt", "resumed", "restored-from", "durability", "sandbox", "base-tree",
    "restored-tree-hash", "tree-hash", "published-tree-hash", "git-tree", "final-message", "evidence-file",
    "patch-file", "changed-files", "commit-sha", "branch", "comment-url", "steps", "input-tokens",
    "output-tokens", "cost-usd", "settlements", "refused-calls",
}  # fmt: skip
WRITE = ("write", {"path": "a.txt", "content": "x\n"})


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "ws").mkdir()
    return tmp_path / "ws"


def session_of(workspace: Path) -> str:
    (path,) = (workspace / ".endstate" / "sessions").glob("*.db")
    return path.stem


def test_standard_output_is_the_final_message_alone(workspace: Path) -> None:
    ran = endstate(
        workspace, "run", "do it", *script(workspace, calls(WRITE, text="working"), {"text": "All done.\nBye."})
    )

    assert (ran.code, ran.out) == (0, "All done.\nBye.\n")
    first, last = ran.err.splitlines()
    assert session_of(workspace) in first
    assert "endstate run --resume" in first
    assert last.startswith("success · 1 attempt · 2 steps · $0.00 · tree et1:")
    assert (workspace / "a.txt").read_text() == "x\n"


@pytest.mark.parametrize("name", [b"wei\xffrd", b"two\nlines"])
def test_a_checkout_is_worked_in_whatever_its_name_is(git_repo: GitRepo, name: bytes) -> None:
    repo = git_repo({"a.txt": "x"}, name=os.fsdecode(name))
    replies = (calls(bash("echo y >> a.txt"), ("git_commit", {"message": "Y"})), {"text": "fin"})
    ran = endstate(repo.path, "run", "do it", "--json", *script(repo.path, *replies)[:-2])

    assert (ran.code, ran.json["conclusion"], ran.json["refused-calls"]) == (0, "success", 0), ran.err
    assert "Traceback" not in ran.err
    assert ran.json["commit-sha"] == repo.git("rev-parse", "HEAD")
    assert repo.git("status", "--porcelain") == ""


def test_a_bare_repository_is_no_place_to_work(git_repo: GitRepo, tmp_path: Path) -> None:
    repo, bare = git_repo({"a.txt": "x"}), tmp_path / "bare"
    repo.git("clone", "--quiet", "--bare", str(repo.path), str(bare))
    before = sorted(os.listdir(bare))

    for resume in ((), ("--resume",)):
        ran = endstate(bare, "run", *resume, "do it", *script(tmp_path, calls(WRITE), {"text": "done"}))
        assert (ran.code, "is a bare repository" in ran.err, "`git clone`" in ran.err) == (2, True, True), ran.err
    assert sorted(os.listdir(bare)) == before


@pytest.mark.parametrize(("asked", "said"), [(None, True), ("auto", True), ("off", False)])
def test_a_sandbox_that_is_lost_is_said_in_the_first_line_with_its_reason(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, asked: str | None, said: bool
) -> None:
    """In this process: what a machine without bubblewrap says is its probe's to tell, which has its own tests."""
    monkeypatch.setattr(_begun, "given", {"sandbox": f"--sandbox {asked}"} if asked else {})
    with click.Context(click.Command("run")):
        lines = _Lines()
        lines.event(SandboxChosen("none", "bubblewrap is not installed."))
        lines.event(AttemptBegan("0123456789ab", 1, resumed=False, pending=0))

    (first,) = capsys.readouterr().err.splitlines()
    assert ("sandbox: none (bubblewrap is not installed) ·" in first) is said
    assert said or "sandbox: none ·" in first


def test_json_is_one_object_with_the_names_of_the_action(workspace: Path) -> None:
    ran = endstate(workspace, "run", "do it", "--json", *script(workspace, calls(WRITE), {"text": "done"}))

    assert set(ran.json) >= OUTPUTS
    assert ran.json["conclusion"] == "success"
    assert ran.json["final-message"] == "done"
    assert ran.json["changed-files"] == ["a.txt"]
    assert ran.json["tree-hash"] == endstate(workspace, "tree-hash").out.strip()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run",), "no prompt"),
        (("run", "x", "--prompt-file", "p"), "both given"),
        (("run", "   "), "blank"),
        (("run", "--prompt-file", "missing"), "does not exist"),
        (("run", "x", "--provider", "openia"), "provider"),
        (("run", "x", "--provider", "scripted"), "--script"),
        (("run", "x", "--provider", "scripted", "--script", "nope.json"), "nope.json"),
        (("run", "x"), "ANTHROPIC_API_KEY"),
        (("run", "x", "--max-steps", "0"), "max-steps"),
        (("run", "x", "--max-cost-usd", "cheap"), "max-cost-usd"),
        (("run", "x", "--max-minutes", "-1"), "max-minutes"),
        (("run", "x", "--on-mismatch", "ignore"), "on-mismatch"),
        (("run", "x", "--state-dir", "../out"), "state-dir"),
        (("run", "x", "--working-directory", "nowhere"), "nowhere"),
        (("run", "x", "--base-url", "ftp://x"), "base-url"),
        (("run", "x", "--config-file", "nope.yml"), "nope.yml"),
        (("run", "x", "--no-such-option"), "no-such-option"),
        (("frobnicate",), "frobnicate"),
        (("tree-hash", "nowhere"), "nowhere"),
    ],
)
def test_unknown_input_fails_before_anything_is_spent(workspace: Path, arguments: tuple[str, ...], said: str) -> None:
    ran = endstate(workspace, *arguments)

    assert ran.code == 2
    assert said in ran.err
    assert "Traceback" not in ran.err
    assert ran.out == ""
    assert not list(workspace.glob(".endstate/sessions/*.db"))


def test_a_prompt_that_is_no_text_is_refused(workspace: Path) -> None:
    done = subprocess.run(
        [*map(os.fsencode, ARGV), b"run", b"caf\xe9"],
        cwd=workspace,
        capture_output=True,
        check=False,
    )

    assert done.returncode == 2
    assert b"Traceback" not in done.stderr


def test_an_error_with_json_is_one_object_too(workspace: Path) -> None:
    ran = endstate(workspace, "run", "--resume", "--json", *script(workspace))

    assert ran.code == 12
    assert ran.json["conclusion"] == "failed"
    assert ran.json["exit-code"] == 12


def test_nothing_to_resume_is_a_state_of_its_own(workspace: Path) -> None:
    ran = endstate(workspace, "run", "--resume", *script(workspace))

    assert ran.code == 12
    assert "no session" in ran.err.lower()
    assert not (workspace / ".endstate").exists()


def test_a_run_killed_in_the_middle_is_resumed_and_ends_in_the_same_tree(workspace: Path, tmp_path: Path) -> None:
    marker = tmp_path / "reached"
    playing = script(
        workspace,
        calls(WRITE, ("edit", {"path": "a.txt", "old": "x", "new": "x\ny"})),
        calls(("write", {"path": "b.txt", "content": "b"}), bash(f"echo $$ > {marker}; sleep 60")),
        {"text": "done"},
    )
    process = begin(workspace, "run", "do it", *playing)
    wait_for(marker)
    process.kill()
    process.communicate()

    ran = endstate(workspace, "run", "--resume", "--json", *playing)

    assert ran.code == 0
    assert (ran.json["attempt"], ran.json["resumed"]) == (2, True)
    assert (workspace / "a.txt").read_text() == "x\ny\n"
    assert [s["action"] for s in ran.json["settlements"]] == ["refuse"]
    assert ran.json["refused-calls"] == 1
    assert ran.json["spent-at-least"]
    assert "· at least $0.00 ·" in ran.err


def test_what_a_killed_run_left_running_is_ended_by_the_resume(workspace: Path, tmp_path: Path) -> None:
    marker = tmp_path / "pid"
    command = f"setsid sh -c 'echo $$ > {marker}; exec sleep 300' & wait"
    playing = script(workspace, calls(bash(command)), {"text": "done"})
    process = begin(workspace, "run", "do it", *playing)
    pid = int(wait_for(marker))
    process.kill()
    process.communicate()
    assert is_running(pid)

    assert endstate(workspace, "run", "--resume", *playing).code == 0

    assert not is_running(pid)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_call_and_the_run_in_a_state_to_resume(
    workspace: Path, tmp_path: Path, number: signal.Signals
) -> None:
    """D16: no new call starts, the running one is ended with all it started, exit 75."""
    marker = tmp_path / "pid"
    playing = script(workspace, calls(bash(f"echo $$ > {marker}; sleep 300"), WRITE), {"text": "done"})
    process = begin(workspace, "run", "do it", *playing)
    pid = int(wait_for(marker))
    process.send_signal(number)
    began = time.monotonic()
    _, err = process.communicate(timeout=30)

    assert process.returncode == 75
    assert time.monotonic() - began < 7
    assert number.name.encode() in err
    assert not is_running(pid)
    assert not (workspace / "a.txt").exists()
    show = endstate(workspace, "sessions", "show", "--json").json
    assert show["attempts"][0]["conclusion"] == "interrupted"

    again = endstate(workspace, "run", "--resume", *playing)
    assert again.code == 0


def test_an_interrupted_attempt_says_how_far_it_came(workspace: Path, tmp_path: Path) -> None:
    marker = tmp_path / "pid"
    playing = script(workspace, calls(WRITE), calls(bash(f"echo $$ > {marker}; sleep 300")), {"text": "done"})
    process = begin(workspace, "run", "do it", "--json", *playing)
    wait_for(marker)
    process.terminate()
    out, err = process.communicate(timeout=30)

    told = json.loads(out)
    assert (told["conclusion"], told["steps"], told["cost-usd"], told["attempt"]) == ("interrupted", 2, "0", 1)
    assert b"interrupted \xc2\xb7 attempt 1 \xc2\xb7 2 steps \xc2\xb7 $0.00" in err


def test_an_interrupted_attempt_does_not_call_all_what_a_killed_one_spent(workspace: Path, tmp_path: Path) -> None:
    markers = [tmp_path / "first", tmp_path / "second"]
    stuck = [calls(bash(f"echo $$ > {marker}; sleep 300")) for marker in markers]
    playing = script(workspace, calls(WRITE), *stuck, {"text": "done"})
    killed = begin(workspace, "run", "do it", *playing)
    wait_for(markers[0])
    killed.kill()
    killed.communicate()
    process = begin(workspace, "run", "--resume", "--json", *playing)
    wait_for(markers[1])
    process.terminate()
    out, err = process.communicate(timeout=30)

    assert json.loads(out)["spent-at-least"] is True
    assert "interrupted · attempt 2 · 3 steps · at least $0.00" in err.decode()


def test_a_budget_stops_with_its_name_and_a_higher_one_goes_on(workspace: Path) -> None:
    playing = script(workspace, calls(WRITE), calls(WRITE), {"text": "done"})

    ran = endstate(workspace, "run", "do it", "--max-steps", "1", *playing)
    assert ran.code == 1
    assert "max-steps" in ran.err
    assert ran.out == ""
    assert endstate(workspace, "run", "--resume", "--max-steps", "1", *playing).code == 1
    assert endstate(workspace, "run", "--resume", *playing).out == "done\n"


def test_cost_is_counted_from_the_prices_of_the_configuration(workspace: Path) -> None:
    (workspace / "endstate.yml").write_text("prices: {m: {input: 1000000, output: 0}}\n")
    reply = {
        "text": "",
        "model": "m",
        "usage": {"input_tokens": 1},
        "calls": [{"tool": "glob", "arguments": {"pattern": "*"}}],
    }
    playing = (*script(workspace, reply, reply, reply), "--config-file", "endstate.yml")

    ran = endstate(workspace, "run", "do it", "--max-cost-usd", "2", "--json", *playing)

    assert ran.code == 1
    assert ran.json["reason"].startswith("max-cost-usd: $2.00")
    assert ran.json["cost-usd"] == "2"


def test_a_limit_of_less_than_a_cent_is_told_with_its_digits(workspace: Path) -> None:
    prices = "prices: {m: {input: 1400, output: 0}}\n"
    (workspace / "endstate.yml").write_text(prices)
    reply = calls(("glob", {"pattern": "*"})) | {"model": "m", "usage": {"input_tokens": 1}}

    ran = endstate(
        workspace,
        *("run", "do it", "--max-cost-usd", "0.001", "--json", "--config-file", "endstate.yml"),
        *script(workspace, reply, reply),
    )

    assert (ran.code, ran.json["reason"]) == (1, "max-cost-usd: $0.0014 of $0.001 is spent")
    assert "stopped (max-cost-usd: $0.0014 of $0.001 is spent) · 1 attempt · 1 step · $0.0014" in ran.err
    listed = endstate(workspace, "sessions", "list")
    assert " $0.0014 " in listed.out


def test_a_finished_session_asked_again_says_the_same(workspace: Path) -> None:
    playing = script(workspace, {"text": "the answer"})
    endstate(workspace, "run", "do it", *playing)

    again = endstate(workspace, "run", "--resume", *playing)

    assert (again.code, again.out) == (0, "the answer\n")


def test_a_new_run_mentions_what_is_unfinished(workspace: Path) -> None:
    playing = script(workspace, calls(WRITE), {"text": "done"})
    endstate(workspace, "run", "first", "--max-steps", "1", *playing)
    unfinished = session_of(workspace)

    ran = endstate(workspace, "run", "second", *playing)

    assert ran.code == 0
    assert f"Unfinished here: {unfinished}" in ran.err


def test_a_session_is_chosen_by_a_prefix_and_resume_follows(workspace: Path) -> None:
    playing = script(workspace, calls(WRITE), {"text": "done"})
    endstate(workspace, "run", "first", "--max-steps", "1", *playing)
    session = session_of(workspace)

    assert endstate(workspace, "run", "--session", session[:5], "--json", *playing).json["session-id"] == session
    unknown = endstate(workspace, "run", "--session", "zz", *playing)
    assert (unknown.code, session in unknown.err) == (12, True)


def test_another_run_in_the_same_workspace_is_named(workspace: Path, tmp_path: Path) -> None:
    marker = tmp_path / "reached"
    playing = script(workspace, calls(bash(f"echo x > {marker}; sleep 60")), {"text": "done"})
    process = begin(workspace, "run", "do it", *playing)
    wait_for(marker)
    try:
        ran = endstate(workspace, "run", "me too", "--lock-timeout", "0.3", *playing)
    finally:
        process.kill()
        process.communicate()

    assert ran.code == 10
    assert f"process {process.pid} on" in ran.err
    assert "nothing was run" in ran.err


def test_a_state_directory_in_the_repository_is_refused(git_repo: GitRepo, tmp_path: Path) -> None:
    """A pull request must not be able to ship a forged session."""
    repo = git_repo({"a": "b"})
    playing = script(tmp_path / "x", {"text": "done"})
    endstate(repo.path, "run", "do it", *playing)
    repo.git("add", "-f", ".")
    repo.git("commit", "-m", "forged")

    ran = endstate(repo.path, "run", "--resume", *playing)

    assert ran.code == 4
    assert "tracks files in .endstate" in ran.err


def test_the_state_directory_never_gets_committed(git_repo: GitRepo, tmp_path: Path) -> None:
    repo = git_repo({"a": "b"})
    playing = script(tmp_path / "x", calls(WRITE, ("git_commit", {"message": "Add a.txt"})), {"text": "done"})

    ran = endstate(repo.path, "run", "do it", "--json", *playing)

    assert ran.code == 0
    assert repo.git("status", "--porcelain") == ""
    assert repo.git("show", "--name-only", "--format=%s", "HEAD").split() == ["Add", "a.txt", "a.txt"]
    assert repo.git("log", "-1", "--format=%(trailers:key=Endstate-Key,valueonly)").startswith(ran.json["session-id"])
    assert repo.git("rev-parse", "HEAD").startswith(ran.json["commit-sha"])


def test_a_workflow_that_a_shell_changed_is_not_committed(git_repo: GitRepo, tmp_path: Path) -> None:
    """D27: the file tools may not write there, and a commit does not take it from a shell."""
    repo = git_repo({"a": "b"})
    sneak = bash("mkdir -p .github/workflows && echo evil > .github/workflows/x.yml")
    every, named = ("git_commit", {"message": "All"}), ("git_commit", {"message": "One", "paths": ["a.txt"]})
    playing = script(tmp_path / "x", calls(sneak, WRITE, every, named), {"text": "done"})

    assert endstate(repo.path, "run", "do it", *playing).code == 0

    statuses = [c["status"] for c in endstate(repo.path, "sessions", "show", "--json").json["calls"]]
    assert statuses == ["ok", "ok", "error", "ok"]
    assert repo.git("ls-tree", "-r", "--name-only", "HEAD").split() == ["a", "a.txt"]


def test_a_repository_that_the_agent_destroys_does_not_end_the_run(git_repo: GitRepo, tmp_path: Path) -> None:
    repo = git_repo({"a": "b"})
    playing = script(tmp_path / "x", calls(bash("rm -rf .git"), WRITE), {"text": "done"})

    assert endstate(repo.path, "run", "do it", *playing).out == "done\n"


def test_git_is_not_required(workspace: Path, tmp_path: Path) -> None:
    binaries = tmp_path / "bin"
    binaries.mkdir()
    for name in ("sh", "bash", "cat"):
        (binaries / name).symlink_to(f"/bin/{name}")
    playing = script(workspace, calls(WRITE, bash("cat a.txt")), {"text": "done"})

    ran = endstate(workspace, "run", "do it", *playing, env={"PATH": str(binaries)})

    assert (ran.code, ran.out) == (0, "done\n")


CANARY = "canary-0123456789abcdef"


def test_no_secret_reaches_a_call_or_the_environment_of_the_harness(workspace: Path, tmp_path: Path) -> None:
    """E03, E20, V12: the allow-list, and an environment that was clean from the start."""
    names = (
        "ANTHROPIC_API_KEY", "INPUT_ANTHROPIC_API_KEY", "ACTIONS_RUNTIME_TOKEN", "ACTIONS_ID_TOKEN_REQUEST_TOKEN",
        "GITHUB_TOKEN", "GH_TOKEN", "MY_WEIRD_CRED", "DATABASE_PASSWORD", "AWS_SECRET_ACCESS_KEY", "NPM_TOKEN",
        "GITHUB_ENV", "SOMETHING_ELSE",
    )  # fmt: skip
    marker = tmp_path / "reached"
    playing = script(
        workspace,
        calls(bash("env; cat /proc/$PPID/environ | tr '\\0' '\\n'"), bash(f"echo x > {marker}; sleep 60")),
        {"text": "done"},
    )
    process = begin(workspace, "run", "do it", *playing, env=dict.fromkeys(names, CANARY))
    wait_for(marker)
    try:
        environ = Path(f"/proc/{process.pid}/environ").read_bytes() if os.geteuid() == 0 else b""
        command = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        exported = endstate(workspace, "sessions", "export").out
    finally:
        process.kill()
        process.communicate()

    assert CANARY.encode() not in environ + command
    assert CANARY not in exported
    assert "(exit" in exported or "PATH=" in exported


def test_a_secret_in_a_file_is_not_recorded(workspace: Path) -> None:
    (workspace / "leak.txt").write_text(f"key: {CANARY}\n")
    playing = script(workspace, calls(("read", {"path": "leak.txt"}), bash("cat leak.txt | base64")), {"text": "done"})

    endstate(workspace, "run", "do it", *playing, env={"ANTHROPIC_API_KEY": CANARY})

    exported = endstate(workspace, "sessions", "export").out
    assert CANARY not in exported
    assert "[redacted: ANTHROPIC_API_KEY]" in exported


def recorded(workspace: Path) -> State:
    return SessionStore(workspace / ".endstate" / "sessions").read(session_of(workspace))


def test_a_secret_that_the_model_knows_goes_nowhere(git_repo: GitRepo) -> None:
    """E21: not into a file, a commit, the journal or the answer, by whatever tool; and it is said by which."""
    workspace = git_repo({"README.md": "r"}).path
    encoded = base64.b64encode(CANARY.encode()).decode()
    playing = script(
        workspace,
        calls(
            ("write", {"path": "a", "content": f"key = {CANARY}"}),
            ("write", {"path": CANARY, "content": "x"}),
            ("edit", {"path": "good", "old": "x", "new": encoded}),
            bash(f"echo {CANARY} > b"),
            ("git_commit", {"message": f"Use {CANARY}"}),
            ("write", {"path": "good", "content": "x"}),
            bash("printf canary-0123 > c; printf 456789abcdef >> c"),
            ("git_commit", {"message": "All of it"}),
        ),
        {"text": f"The key is {CANARY}, or {encoded}."},
    )

    ran = endstate(workspace, "run", f"Do not tell {CANARY}", *playing, "--json", env={"ANTHROPIC_API_KEY": CANARY})

    assert ran.code == 0, ran.err
    statuses = [f.status for f in recorded(workspace).finished.values()]
    assert statuses == ["denied"] * 5 + ["ok", "ok", "error"]
    (workspace / "c").unlink()
    everything = b"".join(p.read_bytes() for p in workspace.rglob("*") if p.is_file()) + ran.out.encode()
    assert CANARY.encode() not in everything
    assert encoded.encode() not in everything
    assert sorted(p.name for p in workspace.iterdir() if not p.name.startswith(".")) == ["README.md", "good"]
    contents = [f.content for f in recorded(workspace).finished.values()]
    assert "`content` holds the value of ANTHROPIC_API_KEY" in contents[0]
    assert "c holds the value of ANTHROPIC_API_KEY" in contents[7]
    assert ran.json["final-message"].startswith("The key is [redacted: ANTHROPIC_API_KEY], or [redacted: ")


@pytest.mark.parametrize(
    "name", ["sitecustomize.py", "usercustomize.py", "anthropic.py", "click.py", "json.py", "endstate_action.py"]
)
def test_a_module_planted_in_the_workspace_is_never_imported(workspace: Path, tmp_path: Path, name: str) -> None:
    (workspace / name).write_text(f"open({str(tmp_path / 'PWNED')!r}, 'w')\nraise SystemExit(99)\n")
    playing = script(workspace, calls(WRITE), {"text": "done"})
    installed = os.environ.get("PYTHONPATH", "")

    ran = endstate(workspace, "run", "do it", *playing, env={"PYTHONPATH": installed, "PYTHONSAFEPATH": "1"})

    assert (ran.code, ran.out) == (0, "done\n")
    assert not (tmp_path / "PWNED").exists()


def of_elsewhere(workspace: Path, name: str) -> Path:
    """A file outside, to which a link of the workspace leads."""
    outside = workspace.parent / "outside"
    outside.write_text("tools: [read]  # of this machine\n")
    (workspace / name).parent.mkdir(exist_ok=True)
    (workspace / name).symlink_to(outside)
    return outside


def system_of(workspace: Path) -> str:
    frozen = [s.state.frozen for s in SessionStore(workspace / ".endstate" / "sessions").all() if s.state]
    assert frozen[0] is not None
    return frozen[0].system


@pytest.mark.parametrize("inside", [False, True])
def test_usual_instructions_that_lead_out_of_the_workspace_are_named_and_not_used(
    workspace: Path, inside: bool
) -> None:
    """A repository must not have a file of the machine sent to the model; a link to its own files is as good as any."""
    of_elsewhere(workspace, "AGENTS.md")
    if inside:
        (workspace / "docs").mkdir()
        (workspace / "docs" / "agents.md").write_text("Be brief.")
        (workspace / "AGENTS.md").unlink()
        (workspace / "AGENTS.md").symlink_to("docs/agents.md")
    else:
        (workspace / "CLAUDE.md").write_text("Be brief.")

    ran = endstate(workspace, "run", "do it", *script(workspace, {"text": "done"}))

    assert ran.code == 0, ran.err
    assert "Be brief." in system_of(workspace)
    assert "of this machine" not in system_of(workspace)
    assert ("AGENTS.md leads out of the workspace" in ran.err) is not inside


@pytest.mark.parametrize(
    ("name", "options"),
    [
        (".github/endstate.yml", ()),
        ("mine.yml", ("--config-file", "mine.yml")),
        ("rules.md", ("--instructions", "rules.md")),
        ("rules/rules.md", ()),
    ],
)
def test_a_chosen_file_that_leads_out_of_the_workspace_ends_the_run(
    workspace: Path, name: str, options: tuple[str, ...]
) -> None:
    of_elsewhere(workspace, name)
    if name == "rules/rules.md":
        (workspace / ".github").mkdir()
        (workspace / ".github" / "endstate.yml").write_text("instructions: rules/rules.md\n")

    ran = endstate(workspace, "run", "do it", *options, *script(workspace, {"text": "done"}))

    assert ran.code == 2
    assert f"{name} leads out of the workspace" in ran.err
    assert not list(workspace.glob(".endstate/sessions/*.db"))


def test_a_configuration_that_leads_nowhere_is_not_taken_for_none(workspace: Path) -> None:
    (workspace / ".github").mkdir()
    (workspace / ".github" / "endstate.yml").symlink_to("../gone.yml")

    ran = endstate(workspace, "run", "do it", *script(workspace, {"text": "done"}))

    assert (ran.code, ".github/endstate.yml is a link that leads nowhere" in ran.err) == (2, True), ran.err


@pytest.mark.parametrize("name", ["{outside}", "../outside", "link/../../outside", ".git/config"])
def test_a_configuration_names_no_instructions_outside_and_none_of_git(workspace: Path, name: str) -> None:
    outside = of_elsewhere(workspace, "link/x")
    (workspace / ".git").mkdir()
    (workspace / ".git" / "config").write_text("token")
    (workspace / ".github").mkdir()
    (workspace / ".github" / "endstate.yml").write_text(f"instructions: {name.format(outside=outside)}\n")

    ran = endstate(workspace, "run", "do it", *script(workspace, {"text": "done"}))

    assert ran.code == 2
    assert "leads out of the workspace" in ran.err or "closed to file tools" in ran.err


@pytest.mark.parametrize("named", ["{outside}", "../outside"])
def test_a_person_may_name_instructions_outside(workspace: Path, named: str) -> None:
    outside = of_elsewhere(workspace, "link")
    chosen = ("--instructions", named.format(outside=outside))
    ran = endstate(workspace, "run", "do it", *chosen, *script(workspace, {"text": "done"}))

    assert ran.code == 0, ran.err
    assert "of this machine" in system_of(workspace)


def test_what_a_roll_back_lacks_is_told_in_whole_sentences(git_repo: GitRepo, tmp_path: Path) -> None:
    repo = git_repo({"a": "a"})
    repo.git("checkout", "-q", "-b", "side")
    repo.git("commit", "-q", "--allow-empty", "-m", "another")
    probing = script(tmp_path / "x", {"text": "y"}, name="probe.json")[:-2]
    if endstate(repo.path, "run", "x", "--sandbox", "required", *probing).code == 2:
        pytest.skip("there is no sandbox on this machine")
    playing = script(tmp_path / "x", calls(bash("echo x > seen; sleep 4")), {"text": "done"})[:-2]
    process = begin(repo.path, "run", "do it", *playing)
    wait_for(repo.path / "seen")
    process.kill()
    process.communicate()
    shutil.rmtree(repo.path / ".git" / "objects")

    ran = endstate(repo.path, "run", "--resume", *playing)

    lacking = [line for line in ran.err.splitlines() if line.startswith("Not rolled back: ")]
    assert lacking, ran.err
    assert not any(line.endswith("..") for line in lacking)


def test_in_a_part_of_a_checkout_it_is_said_that_there_are_no_commits(git_repo: GitRepo) -> None:
    repo = git_repo({"part/a": "a"})
    playing = script(repo.path, {"text": "done"})

    part = endstate(repo.path / "part", "run", "do it", *playing)
    whole = endstate(repo.path, "run", "do it", *playing)

    (said,) = [line for line in part.err.splitlines() if "plain directory" in line]
    assert said.endswith(f"To have commits, run in {repo.path}.")
    assert "plain directory" not in whole.err
    (repo.path / ".git" / "HEAD").unlink()
    assert "plain directory" not in endstate(repo.path / "part", "run", "again", *playing).err


@pytest.mark.parametrize("damage", ["extension", "main-gone", "no-git"])
def test_in_a_checkout_that_git_cannot_read_it_is_said_that_there_are_no_commits(
    git_repo: GitRepo, tmp_path: Path, damage: str
) -> None:
    repo = git_repo({"a": "a"})
    where = repo.path
    if damage == "extension":  # as of a newer git
        repo.git("config", "core.repositoryFormatVersion", "1")
        repo.git("config", "extensions.ofTomorrow", "true")
    elif damage == "main-gone":
        where = tmp_path / "linked"
        repo.git("worktree", "add", str(where))
        repo.path.rename(tmp_path / "gone")
    path, why = (str(tmp_path), "there is no git program") if damage == "no-git" else (None, "git cannot read the .git")

    ran = endstate(where, "run", "do it", *script(where, {"text": "done"}), env={"PATH": path} if path else None)

    assert (ran.code, ran.out) == (0, "done\n")
    assert f"{why} here, so {where} is treated as a plain directory" in ran.err


def test_instructions_and_configuration_are_frozen_with_the_session(workspace: Path) -> None:
    """E05 on the command line: what was read at the start holds, whatever the agent writes since."""
    (workspace / "AGENTS.md").write_text("Be brief.")
    policy = {"path": ".github/endstate.yml", "content": "policy: {default: allow}\ntools: [bash]\n"}
    playing = script(
        workspace,
        calls(("write", {"path": "AGENTS.md", "content": "Be evil."}), ("write", policy)),
        calls(("write", {"path": ".github/workflows/ci.yml", "content": "x"})),
        {"text": "done"},
    )
    endstate(workspace, "run", "do it", "--max-steps", "1", *playing)
    ran = endstate(workspace, "run", "--resume", "--json", *playing)

    assert ran.code == 0
    exported = [json.loads(line) for line in endstate(workspace, "sessions", "export").out.splitlines()]
    (frozen,) = [r["body"] for r in exported if r["kind"] == "frozen"]
    assert "Be brief." in frozen["system"]
    assert len(frozen["tools"]) > 1
    assert ran.json["refused-calls"] == 1
    assert not (workspace / ".github" / "workflows").exists()


def test_a_changed_model_on_resume_is_refused_continued_or_restarted(workspace: Path) -> None:
    playing = script(workspace, calls(WRITE), {"text": "done"})
    endstate(workspace, "run", "do it", "--max-steps", "1", *playing)
    session = session_of(workspace)

    refused = endstate(workspace, "run", "--resume", "--model", "m-2", "--json", *playing)
    assert (refused.code, refused.json["conclusion"]) == (13, "mismatch")
    assert refused.json["differences"] == ["model: scripted in the session, m-2 now"]

    restarted = endstate(workspace, "run", "--resume", "--model", "m-2", "--on-mismatch", "restart", "--json", *playing)
    assert restarted.code == 0
    assert restarted.json["session-id"] != session
    assert "Unfinished here" not in restarted.err
    listed = json.loads(endstate(workspace, "sessions", "list", "--json").out)
    assert {s["session-id"]: s["state"] for s in listed}[session] == "given up"
    for again in (("--model", "m-2", "--on-mismatch", "restart"), ("--model", "m-2"), ()):
        same = endstate(workspace, "run", "--resume", *again, "--json", *playing)
        assert (same.code, same.json["session-id"]) == (0, restarted.json["session-id"])

    continued = endstate(
        workspace, "run", "--session", session, "--model", "m-2", "--on-mismatch", "continue", "--json", *playing
    )
    assert (continued.code, continued.json["session-id"]) == (0, session)


def test_a_damaged_session_is_named_and_left_alone(workspace: Path) -> None:
    playing = script(workspace, calls(WRITE), {"text": "done"})
    endstate(workspace, "run", "do it", *playing)
    (path,) = (workspace / ".endstate" / "sessions").glob("*.db")
    path.write_bytes(b"x" * 5000)

    ran = endstate(workspace, "run", "--session", path.stem, *playing)

    assert ran.code == 4
    assert "damaged" in ran.err
    assert path.read_bytes() == b"x" * 5000
    assert "damaged" in endstate(workspace, "sessions", "list").out


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("replied", {"blocks": ["x"]}, "cannot be read: one of its blocks is none"),
        ("replied", {"cost_usd": "abc"}, "cannot be read: its cost is no amount"),
        ("attempt", {"epoch": "z"}, "cannot be read: its epoch is a string"),
        ("prompt", {"text": None}, "cannot be read: its text is null"),
        ("replied", {"step": 9}, "out of place: step 9 does not follow step 0"),
    ],
)
def test_a_row_that_was_changed_is_named_before_anything_is_appended(
    workspace: Path, kind: str, changes: dict[str, object], words: str
) -> None:
    playing = script(workspace, calls(WRITE), {"text": "done"})
    endstate(workspace, "run", "do it", "--max-steps", "1", *playing)
    name = session_of(workspace)
    path = workspace / ".endstate" / "sessions" / f"{name}.db"
    with closing(sqlite3.connect(path)) as db, db:
        seq, body = db.execute("SELECT seq, body FROM journal WHERE kind = ? ORDER BY seq", (kind,)).fetchone()
        db.execute("UPDATE journal SET body = ? WHERE seq = ?", (json.dumps(json.loads(body) | changes), seq))
        rows = db.execute("SELECT * FROM journal").fetchall()

    for command in (["run", "--resume", *playing], ["run", "--resume", "more", *playing], ["sessions", "show"]):
        ran = endstate(workspace, *command)
        assert (ran.code, ran.out) == (4, "")
        assert f"record {seq} of {len(rows)} " in ran.err
        assert words in ran.err

    exported = endstate(workspace, "sessions", "export", name)
    assert (exported.code, len(exported.out.splitlines())) == (0, len(rows))
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT * FROM journal").fetchall() == rows


def test_an_outcome_that_nobody_asked_for_is_noted_and_not_counted(workspace: Path) -> None:
    """A03."""
    playing = script(workspace, {"text": "no tools"}, {"text": "done"})
    endstate(workspace, "run", "do it", *playing)
    stray = {"step": 1, "index": 0, "call_id": "t9", "status": "denied", "content": "denied", "epoch": 1, "at": 0}
    with closing(sqlite3.connect(workspace / ".endstate" / "sessions" / f"{session_of(workspace)}.db")) as db, db:
        db.execute("INSERT INTO journal SELECT max(seq) + 1, 'finished', ? FROM journal", (json.dumps(stray),))

    ran = endstate(workspace, "run", "--resume", "next", "--json", *playing)

    assert (ran.code, ran.json["refused-calls"], ran.json["final-message"]) == (0, 0, "done")
    assert "what came of calls that nobody asked for: call 1 of step 1." in ran.err
    assert "t9" not in endstate(workspace, "sessions", "show").out


def test_a_resume_that_a_damaged_session_stops_names_the_others(workspace: Path) -> None:
    playing = script(workspace, calls(WRITE), {"text": "done"})
    for prompt in ("one", "two"):
        endstate(workspace, "run", prompt, "--max-steps", "1", *playing)
    newest, other = (s["session-id"] for s in json.loads(endstate(workspace, "sessions", "list", "--json").out))
    (workspace / ".endstate" / "sessions" / f"{newest}.db").write_bytes(b"x" * 5000)

    refused = endstate(workspace, "run", "--resume", *playing)

    assert (refused.code, refused.out) == (4, "")
    assert f"--session {newest} --store" in refused.err
    assert f"Also unfinished here: {other}." in refused.err
    assert endstate(workspace, "run", "--resume", "--session", other, *playing).code == 0


def test_a_run_whose_database_another_program_holds_ends_with_that_and_can_be_resumed(
    workspace: Path, tmp_path: Path
) -> None:
    """B01: what the end of the run cannot record hides nothing of why."""
    marker = tmp_path / "reached"
    playing = script(workspace, calls(bash(f"echo x > {marker}; sleep 1")), calls(WRITE), {"text": "done"})
    process = begin(workspace, "run", "do it", *playing)
    wait_for(marker)
    (path,) = (workspace / ".endstate" / "sessions").glob("*.db")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("INSERT INTO journal VALUES (999, 'x', 'y')")
        # The run has given up on one record by then, and is about to tell of its end.
        _, err = process.communicate(timeout=19)

    assert process.returncode == 10
    assert f"another process has held the database {path}" in err.decode()
    assert "Close the program that has it open" in err.decode()
    assert not (workspace / "a.txt").exists()
    assert endstate(workspace, "run", "--resume", *playing).code == 0


def test_a_reader_that_is_gone_does_not_lose_the_result(workspace: Path) -> None:
    playing = script(workspace, calls(WRITE), {"text": "done " * 50_000})
    process = begin(workspace, "run", "do it", *playing)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    process.stderr.close()

    assert process.wait(timeout=30) in (0, 75)
    assert endstate(workspace, "run", "--resume", *playing).out.startswith("done done")


def test_lines_printed_cannot_move_the_cursor_or_start_a_command(workspace: Path) -> None:
    """E13, on standard error."""
    evil = "\x1b[2J\r::add-mask::x\n::error::boo"
    playing = script(workspace, {"stop_reason": f"odd{evil}", "text": "x"})

    ran = endstate(workspace, "run", evil + " do it", *playing)
    listed = endstate(workspace, "sessions", "list")

    for text in (ran.err, listed.out):
        assert "\x1b" not in text
        assert not any(line.startswith("::") for line in text.splitlines())


def test_a_tool_s_words_are_never_taken_for_a_commit(workspace: Path) -> None:
    playing = script(workspace, calls(bash("echo Committed deadbeefcafe x")), {"text": "done"})

    assert endstate(workspace, "run", "do it", "--json", *playing).json["commit-sha"] is None


@pytest.mark.parametrize(
    ("sql", "code"), [("UPDATE journal SET body = '{' WHERE seq = 5", 4), ("PRAGMA user_version = 99", 13)]
)
def test_a_session_that_cannot_be_read_is_never_replaced_by_the_success_of_another(
    workspace: Path, sql: str, code: int
) -> None:
    endstate(workspace, "run", "one", *script(workspace, calls(WRITE), {"text": "done"}))
    finished = session_of(workspace)
    playing = script(workspace, calls(WRITE), calls(WRITE), {"text": "done"})
    endstate(workspace, "run", "two", "--max-steps", "1", *playing)
    (wanted,) = [p for p in (workspace / ".endstate" / "sessions").glob("*.db") if p.stem != finished]
    with closing(sqlite3.connect(wanted)) as db, db:
        db.execute(sql)

    ran = endstate(workspace, "run", "--resume", *playing)

    assert (ran.code, ran.out) == (code, "")
    assert wanted.stem in ran.err


def test_a_session_of_another_repository_is_refused(git_repo: GitRepo, tmp_path: Path) -> None:
    """A37."""
    here, there = git_repo({"a": "b"}, "here"), git_repo({"c": "d"}, "there")
    playing = script(tmp_path / "x", calls(WRITE), calls(WRITE), {"text": "done"})
    endstate(here.path, "run", "do it", "--max-steps", "1", *playing)
    shutil.copytree(here.path / ".endstate", there.path / ".endstate")

    ran = endstate(there.path, "run", "--resume", *playing)

    assert (ran.code, "not in this repository" in ran.err) == (13, True)
    assert not (there.path / "a.txt").exists()


def test_what_somebody_does_after_the_end_is_not_the_session_s_result(workspace: Path) -> None:
    playing = script(workspace, calls(WRITE), {"text": "done"})
    ended = endstate(workspace, "run", "do it", "--json", *playing).json["tree-hash"]
    (workspace / "mine").write_text("x")

    again = endstate(workspace, "run", "--resume", "--json", *playing)

    assert again.json["tree-hash"] == ended
    assert again.json["changed-files"] is None
    assert "has changed since this session ended" in again.err


def test_a_head_that_moved_is_said_to_the_person_too(git_repo: GitRepo, tmp_path: Path) -> None:
    repo = git_repo({"a": "b"})
    playing = script(tmp_path / "x", calls(WRITE), calls(WRITE), {"text": "done"})
    endstate(repo.path, "run", "do it", "--max-steps", "1", *playing)
    repo.commit({"b": "c"})

    ran = endstate(repo.path, "run", "--resume", *playing)

    assert ran.code == 0
    assert "HEAD was" in ran.err


def test_what_a_snapshot_leaves_out_is_not_written_twice(git_repo: GitRepo, tmp_path: Path) -> None:
    """Of what was too large to be kept, nothing can be taken back: so nothing runs again on it, and that is said."""
    repo = git_repo({"a": "one\n", ".endstate.yml": "snapshot: {file-max-mb: 1}\n"})
    with (repo.path / "data.db").open("wb") as data:
        data.truncate(2 << 20)
    marker = repo.path / "reached"
    command = "echo order >> data.db; echo two >> a; echo x > reached; sleep 5; rm reached"
    configured = ("--config-file", ".endstate.yml")
    probing = script(tmp_path / "x", {"text": "y"}, name="probe.json")[:-2]
    if endstate(repo.path, "run", "x", "--sandbox", "required", *probing).code == 2:
        pytest.skip("there is no sandbox on this machine")
    playing = script(tmp_path / "x", calls(bash(command)), {"text": "done"})[:-2]
    process = begin(repo.path, "run", "do it", *configured, *playing)
    wait_for(marker)
    process.kill()
    process.communicate()

    ran = endstate(repo.path, "run", "--resume", "--json", *playing)

    assert ran.code == 0
    assert (repo.path / "data.db").read_bytes().count(b"order") == 1
    assert (repo.path / "a").read_text() == "one\n"
    (settlement,) = ran.json["settlements"]
    assert settlement["action"] == "roll_back"
    assert "data.db was not kept and has changed since" in settlement["reason"]
    assert ran.json["refused-calls"] == 1
    assert "Not rolled back: data.db" in ran.err
    shown = endstate(repo.path, "sessions", "show", ran.json["session-id"])
    assert "data.db was not kept and has changed since" in shown.out


def test_a_file_that_takes_for_ever_to_read_makes_nobody_deaf(workspace: Path) -> None:
    """A command makes one in a moment, as a file that is all hole."""
    playing = script(workspace, calls(bash("truncate -s 4T image; echo x > ../made")), {"text": "done"})
    process = begin(workspace, "run", "do it", *playing)
    wait_for(workspace.parent / "made")
    time.sleep(1)
    process.terminate()
    try:
        process.communicate(timeout=20)
    finally:
        process.kill()

    assert process.returncode == 75
    (workspace / "image").unlink()
    ran = endstate(workspace, "run", "--resume", *playing)
    assert (ran.code, ran.out) == (0, "done\n")
    assert "refused" not in ran.err, "the command's end was on record"


@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_evidence_goes_into_a_file_alone(workspace: Path, kind: str) -> None:
    target = workspace.parent / "there"
    if kind == "fifo":
        os.mkfifo(target)
    else:
        target = Path("/dev/full")

    ran = endstate(workspace, "run", "do it", "--evidence", str(target), *script(workspace, {"text": "done"}))

    assert ran.code == 2
    assert "cannot be written. Nothing was run." in ran.err


@pytest.mark.parametrize("is_empty", [False, True])
def test_what_cannot_be_read_is_named_wherever_the_hash_is_shown(workspace: Path, is_empty: bool) -> None:
    """Whatever is in it, the hash is the same: so who compares hashes has to know."""
    closed = workspace / "closed"
    closed.write_text("" if is_empty else "x")
    closed.chmod(0)
    if os.geteuid() == 0:
        os.chown(closed, 12345, 12345)
    target = workspace.parent / "evidence.json"
    playing = script(workspace, {"text": "done"})

    ran = as_one_who_may_not(workspace, "run", "do it", "--evidence", str(target), *playing)
    hashed = as_one_who_may_not(workspace, "tree-hash", "--json")

    note = (
        "Not covered by the tree hash of the workspace, since it could not be read, or changed while it was read: "
        "closed."
    )
    assert ran.code == 0, ran.err
    assert note in ran.err
    assert json.loads(target.read_text())["notes"] == [note]
    assert hashed.code == 1
    assert hashed.json["unreadable"] == ["closed"]
    assert "not covered as it should be: closed" in hashed.err
    closed.unlink()
    assert endstate(workspace, "tree-hash").code == 0


def as_one_who_may_not(workspace: Path, *arguments: str) -> Ran:
    """Root, whom no mode stops, without that right of his."""
    without = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    if without and shutil.which("setpriv") is None:
        pytest.skip("there is no setpriv here")
    done = subprocess.run([*without, *ARGV, *arguments], cwd=workspace, capture_output=True, text=True, check=False)
    return Ran(done.returncode, done.stdout, done.stderr)


def test_evidence_that_could_not_be_written_is_had_without_doing_it_again(workspace: Path) -> None:
    """The same command again would begin anew, and do everything once more."""
    folder = workspace.parent / "there"
    folder.mkdir()
    does = calls(bash(f"echo x >> log; rm -rf {folder}"))
    ran = endstate(workspace, "run", "do it", "--evidence", f"{folder}/e.json", *script(workspace, does, {"text": "y"}))
    assert ran.code == 4
    assert "Once that is put right, `endstate run --resume" in ran.err
    (again,) = re.findall(r"`endstate (run --resume[^`]*)`", ran.err.rpartition("no evidence")[2])

    folder.mkdir()
    told = endstate(workspace, *shlex.split(again))

    assert told.code == 0, told.err
    assert (folder / "e.json").is_file()
    assert (workspace / "log").read_text() == "x\n"


def test_a_prompt_file_without_an_end_is_refused(workspace: Path) -> None:
    ran = endstate(workspace, "run", "--prompt-file", "/dev/zero", *script(workspace, {"text": "done"}))
    assert ran.code == 2
    assert "bytes long" in ran.err


def test_an_interrupted_command_in_the_sandbox_never_happened(git_repo: GitRepo, tmp_path: Path) -> None:
    repo = git_repo({"a": "one\n"})
    marker = repo.path / "reached"
    command = "echo two >> a; git -c user.name=n -c user.email=e commit -qam two; echo x > reached; sleep 5; rm reached"
    probing = script(tmp_path / "x", {"text": "y"}, name="probe.json")[:-2]
    if endstate(repo.path, "run", "x", "--sandbox", "required", *probing).code == 2:
        pytest.skip("there is no sandbox on this machine")
    playing = script(tmp_path / "x", calls(bash(command)), {"text": "done"})[:-2]
    process = begin(repo.path, "run", "do it", *playing)
    wait_for(marker)
    process.kill()
    process.communicate()

    ran = endstate(repo.path, "run", "--resume", "--json", *playing)

    assert ran.code == 0
    assert [s["action"] for s in ran.json["settlements"]] == ["roll_back_and_run"]
    assert (repo.path / "a").read_text() == "one\ntwo\n"
    assert repo.git("log", "--format=%s").split() == ["two", "begin"]
    assert repo.git("status", "--porcelain") == ""


AS_SOMEBODY = "git -c user.name=n -c user.email=e"
FRESH = f"git init -q -b main && git add -A && {AS_SOMEBODY} commit -qm fresh"


@pytest.mark.parametrize(
    ("is_checkout", "does"),
    [
        (False, FRESH),
        (False, f"{FRESH}; echo junk > .git/index"),
        (True, "rm -rf .git"),
        (True, f"rm -rf .git; {FRESH}"),
        (True, "rm .git/HEAD"),
        (True, "echo junk > .git/index"),
        (True, "echo [ > .git/refs/heads/main"),
    ],
)
def test_an_interrupted_command_that_made_or_broke_the_repository_never_happened(
    git_repo: GitRepo, tmp_path: Path, is_checkout: bool, does: str
) -> None:
    repo = git_repo({"a": "one\n"})
    base = repo.git("rev-parse", "HEAD")
    if not is_checkout:
        shutil.rmtree(repo.path / ".git")
    probing = script(tmp_path / "x", {"text": "y"}, name="probe.json")[:-2]
    if endstate(repo.path, "run", "x", "--sandbox", "required", *probing).code == 2:
        pytest.skip("there is no sandbox on this machine")
    playing = script(
        tmp_path / "x", calls(bash(f"echo two >> a; {does}; echo x > reached; sleep 60")), {"text": "done"}
    )
    repo_of_store = git_repo({}, "store")
    if is_checkout:
        repo.git("remote", "add", "origin", f"file://{repo_of_store.path}")
    stored = ("--store", "git-ref" if is_checkout else f"dir:{tmp_path}/dir")
    env = {"ENDSTATE_STATE_KEY": "a-secret-that-outlives-the-job"}
    process = begin(repo.path, "run", "do it", *playing[:-2], *stored, env=env)
    wait_for(repo.path / "reached")
    process.kill()
    process.communicate()

    # Without a sandbox today it is not repeated, so what is there is what the roll-back left.
    ran = endstate(repo.path, "run", "--resume", "--json", *playing, *stored, env=env)

    assert ran.code == 0, ran.err
    assert [s["action"] for s in ran.json["settlements"]] == ["roll_back"]
    assert sorted(path.name for path in repo.path.iterdir() if path.name != ".git") == [".endstate", "a"]
    assert (repo.path / "a").read_text() == "one\n"
    assert (repo.path / ".git").exists() == is_checkout
    if is_checkout:
        assert (repo.git("rev-parse", "main"), repo.git("status", "--porcelain")) == (base, "")
        repo.git("fsck", "--full", "--strict")


def killed_in_the_sandbox(workspace: Path, tmp_path: Path, does: str) -> tuple[str, ...]:
    """A run that is killed in a command that has done something; how it is played on."""
    probing = script(tmp_path / "x", {"text": "y"}, name="probe.json")[:-2]
    if endstate(workspace, "run", "x", "--sandbox", "required", *probing).code == 2:
        pytest.skip("there is no sandbox on this machine")
    playing = script(tmp_path / "x", calls(bash(f"{does}; echo x > reached; sleep 60")), {"text": "done"})
    process = begin(workspace, "run", "do it", *playing[:-2])
    wait_for(workspace / "reached")
    process.kill()
    process.communicate()
    return playing


def test_an_interrupted_command_is_not_rolled_back_in_another_repository(git_repo: GitRepo, tmp_path: Path) -> None:
    """A37: whoever copies a state directory there does not have that repository replaced."""
    here, there = git_repo({"a": "b"}, "here"), git_repo({"c": "d"}, "there")
    playing = killed_in_the_sandbox(here.path, tmp_path, "true")
    shutil.copytree(here.path / ".endstate", there.path / ".endstate")

    ran = endstate(there.path, "run", "--resume", *playing)

    assert (ran.code, "not in this repository" in ran.err) == (13, True)
    assert sorted(path.name for path in there.path.iterdir()) == [".endstate", ".git", "c"]


@pytest.mark.parametrize("does", [FRESH, f"{FRESH}; echo junk > .git/index"])
def test_a_repository_that_the_session_makes_in_a_plain_directory_does_not_end_it(
    workspace: Path, tmp_path: Path, does: str
) -> None:
    """What it was begun in decides, not what its own call made there."""
    playing = script(workspace, calls(WRITE, bash(does)), {"text": "done"}, {"text": "and more"})
    assert endstate(workspace, "run", "do it", *playing).code == 0

    again = endstate(workspace, "run", "--resume", *playing)
    more = endstate(workspace, "run", "--resume", "and now?", *playing)

    assert (again.code, again.out) == (0, "done\n"), again.err
    assert (more.code, more.out) == (0, "and more\n"), more.err


def test_a_repository_that_a_finished_call_destroyed_does_not_end_the_session(
    git_repo: GitRepo, tmp_path: Path
) -> None:
    repo = git_repo({"a": "b"})
    playing = script(tmp_path / "x", calls(bash("rm -rf .git")), calls(WRITE), {"text": "done"})
    assert endstate(repo.path, "run", "do it", "--max-steps", "1", *playing).code == 1

    ran = endstate(repo.path, "run", "--resume", *playing)

    assert (ran.code, ran.out) == (0, "done\n"), ran.err


def test_what_somebody_has_done_since_is_named_where_a_roll_back_takes_it_away(
    git_repo: GitRepo, tmp_path: Path
) -> None:
    """Nobody can tell it from what the interrupted command has done; it is kept, and told how to have it again."""
    repo = git_repo({"a": "one\n"})
    playing = killed_in_the_sandbox(repo.path, tmp_path, "echo two >> a")
    repo.git("checkout", "--quiet", "-b", "feature")
    repo.commit({"mine.txt": "mine\n"}, "by hand")
    mine = repo.git("rev-parse", "HEAD")
    (repo.path / "loose.txt").write_text("loose\n")

    ran = endstate(repo.path, "run", "--resume", *playing)

    assert ran.code == 0, ran.err
    assert sorted(path.name for path in repo.path.glob("*.txt")) == []
    assert "files that were here were replaced or removed by the roll-back: a, " in ran.err
    assert f"refs/heads/feature was {mine[:12]}" in ran.err
    repo.git("branch", "feature", mine[:12])
    assert repo.git("show", "feature:mine.txt") == "mine"
    (kept,) = re.findall(r"kept as snapshot ([0-9a-f]+)", ran.err)
    assert repo.git("--git-dir", str(repo.path / ".endstate/objects"), "show", f"{kept}:tree/loose.txt") == "loose"
    assert f"what that replaced is kept as snapshot {kept[:12]}" in endstate(repo.path, "sessions", "show").out


def test_a_repository_that_a_power_cut_broke_is_put_back(git_repo: GitRepo, tmp_path: Path) -> None:
    """Git syncs less than we do; the machine came up with a HEAD that holds nothing."""
    repo = git_repo({"a": "b"})
    marker = tmp_path / "reached"
    said: list[str] = []
    playing = script(tmp_path / "x", calls(bash(f"echo x > {marker}; sleep 60")), {"text": "done"})
    process = begin(repo.path, "run", "do it", *playing)
    wait_for(marker)
    process.kill()
    process.communicate()
    (repo.path / ".git" / "HEAD").write_text("")
    ports = after_a_reboot(tmp_path, said)

    report = run(Settings(resume=True, working_directory=str(repo.path), sandbox="off"), Choice(), ports)

    assert report.result.conclusion == "success"
    assert any("started anew" in text for text in said)
    assert repo.git("symbolic-ref", "HEAD") == "refs/heads/main"


def test_what_the_disk_lost_in_a_power_cut_is_put_back_and_what_was_there_is_kept(
    git_repo: GitRepo, tmp_path: Path
) -> None:
    """Files are not synced as records are; nobody can tell what the disk lost from what a hand changed."""
    repo = git_repo({"a": "b"})
    marker = tmp_path / "reached"
    said: list[str] = []
    playing = script(tmp_path / "x", calls(WRITE), calls(bash(f"echo x > {marker}; sleep 60")), {"text": "done"})
    process = begin(repo.path, "run", "do it", *playing)
    wait_for(marker)
    process.kill()
    process.communicate()
    (repo.path / "a.txt").write_text("")
    (repo.path / "by-hand").write_text("precious")

    report = run(
        Settings(resume=True, working_directory=str(repo.path), sandbox="off"), Choice(), after_a_reboot(tmp_path, said)
    )

    assert report.result.conclusion == "success"
    assert (repo.path / "a.txt").read_text() == "x\n"
    assert not (repo.path / "by-hand").exists()
    (kept,) = [word for text in said for word in re.findall(r"kept as snapshot ([0-9a-f]+)", text)]
    objects = str(repo.path / ".endstate" / "objects")
    assert repo.git("--git-dir", objects, "show", f"{kept}:tree/by-hand") == "precious"


def after_a_reboot(tmp_path: Path, said: list[str]) -> Ports:
    replies = parse_script(json.loads((tmp_path / "script.json").read_text()))
    return Ports(
        dict(os.environ),
        lambda name, settings: ScriptedProvider(replies),
        notice=said.append,
        process=lambda: identity() | {"boot_id": "another"},
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may do everything, whatever the mode")
@pytest.mark.parametrize("mode", [0o555, 0o000])
def test_a_workspace_that_is_closed_is_opened_to_go_on(workspace: Path, tmp_path: Path, mode: int) -> None:
    playing = script(workspace, calls(WRITE), calls(("write", {"path": "b", "content": "b"})), {"text": "done"})
    endstate(workspace, "run", "do it", "--max-steps", "1", *playing)
    workspace.chmod(mode)

    ran = endstate(tmp_path, "run", "--resume", "--working-directory", str(workspace), *playing)

    assert ran.code == 0, ran.err
    assert (workspace / "b").read_text() == "b"


@pytest.mark.parametrize(
    ("does", "code", "said"),
    [
        ("rm -rf .git", 13, "there is no .git here"),
        ("rm .git/HEAD", 13, "git cannot read the .git here"),
        ("echo junk > .git/index", 4, "index file smaller than expected"),
    ],
)
def test_a_repository_that_somebody_else_broke_is_named_with_what_to_do(
    git_repo: GitRepo, tmp_path: Path, does: str, code: int, said: str
) -> None:
    repo = git_repo({"a": "b"})
    playing = script(tmp_path / "x", calls(WRITE), calls(WRITE), {"text": "done"})
    endstate(repo.path, "run", "do it", "--max-steps", "1", *playing)
    subprocess.run(["sh", "-c", does], cwd=repo.path, check=True)

    ran = endstate(repo.path, "run", "--resume", *playing)

    assert (ran.code, said in ran.err) == (code, True), ran.err
    assert "git fsck" in ran.err


def test_a_required_sandbox_that_is_not_there_fails_before_anything_is_spent(workspace: Path, tmp_path: Path) -> None:
    playing = script(workspace, calls(WRITE), {"text": "done"})[:-2]
    if Path("/usr/bin/bwrap").exists():
        pytest.skip("there is a sandbox on this machine")

    ran = endstate(workspace, "run", "do it", "--sandbox", "required", *playing)

    assert (ran.code, "sandbox is required" in ran.err) == (2, True)
    assert not (workspace / "a.txt").exists()


def test_a_command_that_forges_the_cache_and_is_killed_does_not_hide_what_it_did(
    workspace: Path, tmp_path: Path
) -> None:
    marker, forge = tmp_path / "reached", tmp_path / "forge.py"
    forge.write_text(FORGE)
    # The interpreter of the tests, not that of the machine: it is the one that has the package.
    command = f"PYTHONPATH={':'.join(sys.path)!r} {sys.executable} {forge} && echo x > {marker}; sleep 60"
    playing = script(workspace, calls(WRITE, bash(command)), {"text": "done"})
    process = begin(workspace, "run", "do it", *playing)
    wait_for(marker)
    process.kill()
    process.communicate()

    ran = endstate(workspace, "run", "--resume", "--json", *playing)

    rows = [json.loads(line) for line in endstate(workspace, "sessions", "export").out.splitlines()]
    assert ran.json["conclusion"] == "success"
    assert [r["body"]["text"].count("a.txt (changed)") for r in rows if r["kind"] == "note"] == [1]
    assert [r for r in rows if r["kind"] == "observed"][-1]["body"]["tree_hash"] == ran.json["tree-hash"]


FORGE = """
import os
from pathlib import Path
from endstate_action.system.tree import Scan, StatCache, scan
from endstate_action.system.tree_format import Directory

kept = Path(f".endstate/cache/tree-{os.geteuid()}")
old = Scan.load(kept)
Path("a.txt").write_text("y\\\\n")
aside = StatCache(Path(".endstate/aside"))
new, again = None, scan(Path("."), cache=aside)
while new is None or new.root is not again.root:
    new, again = again, scan(Path("."), cache=aside)
Scan(Directory(old.root.listing, old.root.digest, {}, new.root.names, new.root.stats), old.excluded).save(kept)
"""
