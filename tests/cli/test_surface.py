"""What meets a person first: streams, signals, mistakes on the command line, and the words for all of it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from endstate_action.cli import _further
from endstate_action.state.session import SessionStore
from tests.support.command import ARGV, bash, begin, calls, endstate, script, wait_for
from tests.support.repos import GitRepo

pytestmark = pytest.mark.slow

WRITE = ("write", {"path": "a.txt", "content": "x\n"})
FULL = Path("/dev/full")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "ws").mkdir()
    return tmp_path / "ws"


def session_of(workspace: Path) -> str:
    (path,) = (workspace / ".endstate" / "sessions").glob("*.db")
    return path.stem


# Streams


def with_streams(where: Path, streams: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command under a shell's redirections."""
    line = ["sh", "-c", f'exec "$@" {streams}', "sh", *ARGV, *arguments]
    return subprocess.run(line, cwd=where, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("streams", ["<&-", ">&-", "2>&-", "<&- >&-", "<&- >&- 2>&-"])
def test_a_closed_standard_stream_stops_nothing(workspace: Path, streams: str) -> None:
    ran = with_streams(workspace, streams, "run", "do it", *script(workspace, calls(WRITE), {"text": "done"}))
    hashed = with_streams(workspace, streams, "tree-hash")
    is_heard = ">&-" not in streams.split()

    assert (ran.returncode, ran.stdout) == (0, "done\n" if is_heard else "")
    assert (hashed.returncode, hashed.stdout.startswith("et1:")) == (0, is_heard)
    assert (workspace / "a.txt").read_text() == "x\n"


@pytest.mark.skipif(not FULL.exists(), reason="no device that is always full")
def test_a_log_on_a_full_disk_ends_nothing_and_changes_no_exit_code(workspace: Path) -> None:
    playing = script(workspace, calls(WRITE), {"text": "done"})
    ran = with_streams(workspace, f"2>{FULL}", "run", "do it", *playing)
    refused = with_streams(workspace, f">{FULL} 2>{FULL}", "run", "--json", *playing)

    assert (ran.returncode, ran.stdout) == (0, "done\n")
    assert refused.returncode == 2


@pytest.mark.skipif(not FULL.exists(), reason="no device that is always full")
def test_a_result_that_cannot_be_written_is_said_to_be_recorded(workspace: Path) -> None:
    playing = script(workspace, {"text": "done"})

    ran = with_streams(workspace, f">{FULL}", "run", "do it", "--json", *playing)
    shown = with_streams(workspace, f">{FULL}", "--help")

    assert (ran.returncode, shown.returncode) == (75, 75)
    again = (
        f"`endstate run --resume --session {session_of(workspace)} --script {playing[3]} --sandbox off` says it again"
    )
    assert again in ran.stderr
    assert "could not be written" in shown.stderr
    assert endstate(workspace, "run", "--resume", *playing).out == "done\n"


def test_help_that_nobody_reads_to_its_end_is_no_failure(workspace: Path) -> None:
    process = begin(workspace, "--help")
    assert process.stdout is not None
    process.stdout.close()

    assert process.wait(timeout=30) == 0
    process.communicate()


def test_what_only_tells_ends_without_a_word_where_nobody_reads_on(workspace: Path) -> None:
    assert endstate(workspace, "run", "do it", *script(workspace, calls(WRITE), {"text": "done"})).code == 0
    for asked in (("sessions", "list"), ("sessions", "show"), ("sessions", "export"), ("tree-hash",)):
        process = begin(workspace, *asked)
        assert process.stdout is not None
        process.stdout.close()
        process.wait(timeout=30)
        assert process.stderr is not None
        assert (process.returncode, process.stderr.read()) == (128 + signal.SIGPIPE, b""), asked
        process.stderr.close()


def test_a_session_that_was_interrupted_before_it_was_asked_anything_is_listed_as_not_begun(workspace: Path) -> None:
    playing = script(workspace, {"text": "done"})
    assert endstate(workspace, "run", "do it", *playing).code == 0
    SessionStore(workspace / ".endstate" / "sessions").create({"workspace": "directory"}).close()

    listed = endstate(workspace, "sessions", "list", "--json")

    assert [s["state"] for s in json.loads(listed.out)] == ["not begun", "finished"]
    assert endstate(workspace, "run", "--resume", *playing).out == "done\n"


def test_a_prompt_is_read_from_standard_input(workspace: Path) -> None:
    line = [*ARGV, "run", "--prompt-file", "-", *script(workspace, {"text": "done"})]
    done = subprocess.run(line, cwd=workspace, input=b"from a pipe\n", capture_output=True, timeout=60, check=False)

    assert done.returncode == 0
    assert endstate(workspace, "sessions", "show", "--json").json["prompts"][0]["text"] == "from a pipe\n"


def test_a_final_message_keeps_its_language_and_loses_its_control_characters(workspace: Path) -> None:
    said = "a\tb\nune espace\u00a0: 👩\u200d💻 é"

    ran = endstate(workspace, "run", "x", *script(workspace, {"text": said + " \x1b[2J\r\u202e"}))
    told = endstate(workspace, "run", "--resume", "--json", *script(workspace)).json

    assert ran.out == said + " \\x1b[2J\\r\\u202e\n"
    assert told["final-message"].endswith("\x1b[2J\r\u202e")


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_what_is_printed_is_utf_8_whatever_the_locale(workspace: Path, encoding: str) -> None:
    endstate(workspace, "run", "schön 日本", *script(workspace, {"text": "done"}))

    def told(*arguments: str) -> str:
        ran = endstate(workspace, *arguments, env={"PYTHONIOENCODING": encoding})
        assert ran.code == 0, ran.err
        return ran.out

    assert "s3://…" in told("run", "--help")
    assert "schön 日本" in told("sessions", "list")
    assert "schön 日本" in told("sessions", "show")
    assert json.loads(told("sessions", "show", "--json"))["prompts"][0]["text"] == "schön 日本"


# Signals


def test_an_interrupted_run_with_json_names_its_session(workspace: Path, tmp_path: Path) -> None:
    marker = tmp_path / "pid"
    playing = script(workspace, calls(bash(f"echo $$ > {marker}; sleep 300")))
    process = begin(workspace, "run", "do it", "--json", *playing)
    wait_for(marker)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    said = json.loads(out)

    assert (said["conclusion"], said["session-id"], said["attempt"]) == ("interrupted", session_of(workspace), 1)
    assert f"`endstate run --resume --session {session_of(workspace)} --script {playing[3]} --sandbox" in said["hint"]
    assert "UTC  Interrupted by SIGINT" in endstate(workspace, "sessions", "show").out


def reads_a_pipe(process: subprocess.Popen[bytes]) -> bool:
    with suppress(OSError):
        return "pipe" in Path(f"/proc/{process.pid}/wchan").read_text()
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_before_anything_is_recorded_says_so(workspace: Path, number: signal.Signals) -> None:
    """The prompt is waited for, so there is no session yet."""
    line = [*ARGV, "run", "--json", "--prompt-file", "-", *script(workspace)]
    process = subprocess.Popen(
        line, cwd=workspace, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 5
    while not reads_a_pipe(process) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)

    assert process.returncode == 75
    assert json.loads(out)["conclusion"] == "interrupted"
    assert err.decode() == f"endstate: Interrupted by {number.name} before anything was recorded; nothing was run.\n"


def test_a_signal_while_the_command_is_loaded_has_an_answer(workspace: Path) -> None:
    """What it loads is replaced by something that never comes."""
    code = (
        "import sys, time\n"
        "class Never:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'endstate_action.cli':\n"
        "            print('loading', flush=True); time.sleep(300)\n"
        "sys.meta_path.insert(0, Never())\n"
        "from endstate_action.__main__ import main\nmain()"
    )
    line = [sys.executable, "-c", code]
    process = subprocess.Popen(line, cwd=workspace, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"loading\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)

    assert (process.returncode, err.count(b"\n")) == (75, 1)
    assert b"nothing was run" in err


@pytest.mark.parametrize("name", ["INT", "HUP"])
def test_a_signal_that_was_ignored_from_the_start_stays_ignored(workspace: Path, tmp_path: Path, name: str) -> None:
    """`nohup endstate run …` outlives its terminal."""
    ready, go = tmp_path / "ready", tmp_path / "go"
    waiting = bash(f"echo x > {ready}; until [ -e {go} ]; do sleep 0.05; done")
    playing = script(workspace, calls(waiting), {"text": "done"})
    line = ["sh", "-c", f"trap '' {name}; exec \"$@\"", "sh", *ARGV, "run", "x", *playing]
    process = subprocess.Popen(line, cwd=workspace, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_for(ready)
    process.send_signal(signal.Signals[f"SIG{name}"])
    go.touch()
    out, _ = process.communicate(timeout=60)

    assert (process.returncode, out) == (0, b"done\n")


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "--prompt", "x"), '`endstate run "Fix the failing test"`'),
        (("run", "x", "--script", "s.json", "--provider", "anthropic"), "--script is for the scripted provider"),
        (("run", "--session", ""), "--session is empty"),
        (("run", "x", "--lock-timeout", "abc"), "'abc' is not a number of seconds"),
        (("run", "x", "--lock-timeout", "nan"), "'nan' is not a number of seconds"),
        (("run", "x", "--lock-timeout", "inf"), "'inf' is not a number of seconds"),
        (("resume",), "Did you mean `endstate run --resume`?"),
        (("run", "x", "--max-step", "3"), "'--max-steps'"),
    ],
)
def test_a_misuse_names_what_was_meant_in_words_and_as_an_object(
    workspace: Path, arguments: tuple[str, ...], said: str
) -> None:
    ran = endstate(workspace, *arguments)
    told = endstate(workspace, *arguments, "--json")

    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert (told.code, told.json["conclusion"], told.json["exit-code"]) == (2, "failed", 2)
    assert said in told.json["error"] + told.json["hint"]
    assert not list(workspace.glob(".endstate/sessions/*.db"))


def test_a_defect_with_json_is_one_object_too(workspace: Path) -> None:
    """A module of ours that cannot be loaded stands for any defect."""
    code = (
        "import sys; sys.modules['endstate_action.system.tree'] = None\n"
        "sys.argv = ['endstate', 'tree-hash', '--json']\nfrom endstate_action.cli import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=workspace, capture_output=True, text=True, check=False)

    assert done.returncode == 3
    assert json.loads(done.stdout)["exit-code"] == 3
    assert "internal error" in json.loads(done.stdout)["error"]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("arguments", "code"), [(["--version"], 0), (["sessions", "show"], 12)])
def test_a_thread_that_is_left_behind_changes_no_exit_code(workspace: Path, arguments: list[str], code: int) -> None:
    """Native code in it would abort a process that is taken down in order; so this one is not."""
    program = (
        "import atexit, os, sys\n"
        "atexit.register(os.abort)\n"
        f"sys.argv = ['endstate', *{arguments!r}]\n"
        "from endstate_action.cli import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=workspace, capture_output=True, text=True, check=False)

    assert done.returncode == code, done.stderr
    assert done.stdout or done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "x", "--script", "../script.json", "--state-dir", "LONG/x"),
        ("sessions", "list", "--state-dir", "LONG"),
        ("run", "x", "--script", "../script.json", "--evidence", "../LONG"),
        ("run", "x", "--script", "../script.json", "--evidence", "../circle/x"),
        ("demo", "--repo", "LONG"),
        ("demo", "--repo", "../circle"),
    ],
)
def test_a_path_that_can_be_none_is_refused_in_words(workspace: Path, arguments: tuple[str, ...]) -> None:
    (workspace.parent / "circle").symlink_to("circle")
    script(workspace, {"text": "done"})

    ran = endstate(workspace, *(a.replace("LONG", "x" * 300) for a in arguments))

    assert (ran.code, "internal error" in ran.err) == (2, False), ran.err
    assert "Nothing was run" in ran.err or "nothing was started" in ran.err
    assert list(workspace.iterdir()) == []


# Root may go anywhere, unless it gives that up.
_ORDINARY = () if os.geteuid() else ("setpriv", *(f"--{which}=-dac_override,-dac_read_search" for which in
                                                  ("bounding-set", "inh-caps")))  # fmt: skip
needs_rights_that_bind = pytest.mark.skipif(
    bool(_ORDINARY) and shutil.which(_ORDINARY[0]) is None, reason="root, and there is no setpriv"
)


def bound_by_rights(where: Path, first: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command after a line of shell, in a process that is held to the rights of files."""
    line = ["sh", "-c", f'{first} && exec "$@"', "sh", *_ORDINARY, *ARGV, *arguments]
    return subprocess.run(line, cwd=where, capture_output=True, text=True, timeout=60, check=False)


@needs_rights_that_bind
@pytest.mark.parametrize("arguments", [("run", "x", "--script", "SCRIPT"), ("tree-hash", "--commit", "HEAD")])
def test_a_current_directory_that_is_closed_from_above_is_named_as_such(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    (where := tmp_path / "closed" / "ws").mkdir(parents=True)
    *_, playing, _, _ = script(tmp_path / "any", {"text": "done"})
    try:
        ran = bound_by_rights(where, "chmod 600 ..", *(a.replace("SCRIPT", playing) for a in arguments))
    finally:
        (tmp_path / "closed").chmod(0o700)

    assert (ran.returncode, "a directory above it is closed to you" in ran.stderr) == (2, True), ran.stderr
    assert list(where.iterdir()) == []


@needs_rights_that_bind
@pytest.mark.parametrize("folder", ["tmp", "objects"])
def test_a_state_directory_of_which_a_part_is_closed_is_said_to_be_unwritable(git_repo: GitRepo, folder: str) -> None:
    repo = git_repo({"a": "a"})
    playing = script(repo.path, {"text": "done"})
    assert endstate(repo.path, "run", "x", *playing).code == 0

    ran = bound_by_rights(repo.path, f"chmod 555 .endstate/{folder}", "run", "again", *playing)

    assert (ran.returncode, f"not writable: {repo.path}/.endstate/{folder}" in ran.stderr) == (4, True), ran.stderr
    assert len(endstate(repo.path, "sessions", "list", "--json").json) == 1


@pytest.mark.parametrize("arguments", [(), ("sessions",)])
def test_a_command_that_needs_another_shows_its_help(workspace: Path, arguments: tuple[str, ...]) -> None:
    ran = endstate(workspace, *arguments)

    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("Usage: endstate")
    assert "Try" not in ran.err


def test_a_script_implies_its_provider(workspace: Path) -> None:
    _, _, *playing = script(workspace, {"text": "done"})

    assert endstate(workspace, "run", "do it", *playing, env={"ANTHROPIC_API_KEY": "k" * 20}).out == "done\n"


def test_a_session_of_another_provider_is_a_mismatch_also_without_its_key(workspace: Path) -> None:
    endstate(workspace, "run", "do it", *script(workspace, {"text": "done"}))

    ran = endstate(workspace, "run", "--resume", "--provider", "anthropic", "--json")

    assert (ran.code, ran.json["differences"]) == (13, ["provider: scripted in the session, anthropic now"])


def test_several_problems_of_a_configuration_are_several_lines(workspace: Path) -> None:
    (workspace / "c.yml").write_text("tools: [bsh]\nenv: [a-b, c-d]\n")

    ran = endstate(workspace, "run", "x", "--config-file", "c.yml", *script(workspace))

    assert ran.code == 2
    assert re.findall(r"^  c\.yml, line (\d): ", ran.err, re.MULTILINE) == ["1", "2", "2"]
    assert "\\n" not in ran.err


def test_no_line_of_a_message_is_a_command_to_a_workflow(workspace: Path) -> None:
    name = "\n::error::boo"
    (workspace / name).write_text("tools: [bsh]\n")

    ran = endstate(workspace, "run", "x", "--config-file", name, *script(workspace))

    assert ran.code == 2
    assert not [line for line in ran.err.splitlines() if line.strip().startswith("::")]


def test_a_script_that_is_not_there_is_not_to_be_corrected(workspace: Path) -> None:
    (workspace / "s.json").write_text('{"replies": 3}')
    missing, wrong = (endstate(workspace, "run", "x", "--script", name).err for name in ("nope.json", "s.json"))

    assert "Correct the name" in missing
    assert "It looks like this: {" in wrong


# What is shown of sessions


def begun_and_killed(workspace: Path) -> None:
    """A run that is killed before its first reply."""
    process = begin(workspace, "run", "do it", *script(workspace, {"text": "done", "delay_s": 60}))
    assert process.stderr is not None
    process.stderr.readline()
    process.kill()
    process.communicate()


def test_a_session_that_never_got_an_answer_is_not_announced_and_is_pruned(workspace: Path) -> None:
    begun_and_killed(workspace)
    session = session_of(workspace)

    assert "Unfinished" not in endstate(workspace, "run", "second", *script(workspace, {"text": "done"})).err
    assert session not in endstate(workspace, "sessions", "prune").out
    assert "'nan' is not a number of days" in endstate(workspace, "sessions", "prune", "--older-than", "nan").err
    assert session in endstate(workspace, "sessions", "prune", "--older-than", "0").out


def test_prune_says_for_whom_it_waits_and_waits_no_longer_than_told(workspace: Path, tmp_path: Path) -> None:
    marker = tmp_path / "reached"
    process = begin(workspace, "run", "do it", *script(workspace, calls(bash(f"echo x > {marker}; sleep 60"))))
    wait_for(marker)
    (session,) = json.loads(endstate(workspace, "sessions", "list", "--json").out)
    try:
        ran = endstate(workspace, "sessions", "prune", session["session-id"], "--lock-timeout", "1.5")
    finally:
        process.kill()
        process.communicate()

    assert ran.code == 10
    assert f"Waiting up to 1.5 s for process {process.pid}" in ran.err


def test_show_tells_why_a_call_did_not_succeed(workspace: Path) -> None:
    rule = r'{tool: bash, decision: deny, reason: "no\e[2J shells"}'
    (workspace / "c.yml").write_text(f"policy: {{default: allow, rules: [{rule}]}}\n")
    playing = script(workspace, calls(WRITE, ("edit", {"path": "b", "old": "x", "new": "y"}), bash("x")), {"text": "d"})
    endstate(workspace, "run", "do it", "--config-file", "c.yml", *playing)

    told = endstate(workspace, "sessions", "show", "--json").json["calls"]
    lines = endstate(workspace, "sessions", "show").out.splitlines()

    assert [c["status"] for c in told] == ["ok", "error", "denied"]
    assert told[0]["outcome"] is None
    assert "does not exist" in told[1]["outcome"]
    assert f"  error: {told[1]['outcome']}" in lines[-2]
    assert r"no\x1b[2J shells" in lines[-1]


def test_a_damaged_session_is_told_in_full_and_a_long_prompt_with_an_ellipsis(workspace: Path) -> None:
    endstate(workspace, "run", "p" * 200, *script(workspace, {"text": "done"}))
    (workspace / ".endstate" / "sessions" / "abcdefabcdef.db").write_bytes(b"x" * 5000)
    listed = json.loads(endstate(workspace, "sessions", "list", "--json").out)
    (problem,) = [s["problem"] for s in listed if s["problem"]]

    shown = endstate(workspace, "sessions", "list").out

    assert problem in shown
    assert "p" * 69 + "…\n" in shown


def test_figures_of_a_later_task_are_said_to_be_of_that_task(workspace: Path) -> None:
    first = endstate(workspace, "run", "one", *script(workspace, calls(WRITE), {"text": "done"}))
    later = endstate(workspace, "run", "--resume", "two", *script(workspace))

    assert "· 2 steps ·" in first.err
    assert "· 1 step of this task ·" in later.err


# What to do next


def test_the_line_for_when_it_dies_works_as_it_is_pasted(workspace: Path) -> None:
    """Whatever was given and no session keeps is in it; what would be asked for in vain is not."""
    (workspace / "it's here").mkdir()
    script(workspace, calls(WRITE), calls(WRITE), {"text": "done"}, name="the script.json")
    given = ("--script", "../the script.json", "--sandbox", "off", "--network", "--max-steps", "2", "--store", "cache",
             "--working-directory", "it's here", "--state-dir", ".kept", "--instructions", "none")  # fmt: skip
    ran = endstate(workspace, "run", "do it", *given)
    assert ran.code == 1, ran.err
    (pasted,) = re.findall(r"if it dies: (endstate run --resume .*)", ran.err)
    (further,) = re.findall(r"Nothing is lost: `(endstate run --resume .*)` goes on with a higher limit", ran.err)

    assert shlex.split(pasted)[5:] == [
        "--script", "../the script.json", "--max-steps", "2", "--sandbox", "off", "--network",
        "--working-directory", "it's here", "--state-dir", ".kept",
    ]  # fmt: skip
    assert endstate(workspace, *shlex.split(pasted)[1:]).code == 1, "the limit is still the one that was given"
    done = endstate(workspace, *shlex.split(further)[1:])
    assert (done.code, done.out) == (0, "done\n"), done.err


def test_what_to_do_about_a_stop_is_what_helps_against_its_reason() -> None:
    assert re.search(r"`endstate run --resume .*` goes on, since time is per attempt", _further("max-minutes: over"))
    assert "--max-steps 4` goes on with a higher limit" in _further("max-steps: 2 of 2 steps are used")
    assert "--max-cost-usd 25` goes" in _further("max-cost-usd: $12.01 of $5.00 is spent")
    assert "--max-cost-usd 1` goes" in _further("max-cost-usd: $0.00 of $0.00 is spent")
    assert "--max-resumes 12` goes" in _further("max-resumes: 6 attempts were killed before they finished a step")
    assert re.search(r"`endstate run --resume .*` goes on\.$", _further("declined: the model declined to go on"))
    assert "A resume would stop in the same way" in _further("history too long: it cannot be made short enough")


def test_a_hint_of_a_failure_has_the_same_options(workspace: Path, tmp_path: Path) -> None:
    playing = script(workspace, calls(bash(f"echo x > {tmp_path}/reached; sleep 60")), {"text": "done"})
    process = begin(workspace, "run", "do it", *playing)
    wait_for(tmp_path / "reached")
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=30)

    assert process.returncode == 75
    assert f"--session {session_of(workspace)} --script {playing[3]} --sandbox off" in said.decode().splitlines()[-1]


def test_the_last_line_counts_calls_that_failed_or_were_refused_where_there_are_any(workspace: Path) -> None:
    missing, denied = ("read", {"path": "nix"}), ("write", {"path": ".github/workflows/x.yml", "content": "x"})
    some = endstate(workspace, "run", "one", *script(workspace, calls(missing, missing, denied), {"text": "done"}))
    none = endstate(workspace, "run", "two", *script(workspace, calls(WRITE), {"text": "done"}))

    assert "success · 1 attempt · 2 steps · 2 calls failed · 1 call refused · $0.00 · tree" in some.err
    assert "success · 1 attempt · 2 steps · $0.00 · tree" in none.err


# Evidence


def test_a_run_by_hand_can_be_verified(git_repo: GitRepo, tmp_path: Path) -> None:
    repo, file = git_repo({"README.md": "x\n"}), tmp_path / "evidence.json"
    workspace = repo.path
    playing = script(workspace, calls(WRITE, ("git_commit", {"message": "Add a.txt"})), {"text": "done"})

    ran = endstate(workspace, "run", "do it", *playing, "--json", "--evidence", str(file))
    clone = tmp_path / "clone"
    repo.git("clone", "--quiet", str(workspace), str(clone))

    assert ran.json["evidence-file"] == str(file)
    for place in (workspace, clone):
        checked = endstate(place, "verify", str(file))
        assert (checked.code, checked.out.count("holds: ")) == (0, 4), checked.out
    (clone / "a.txt").write_text("y\n")
    wrong = endstate(clone, "verify", str(file))
    assert (wrong.code, "a.txt" in wrong.out) == (1, True)


def test_evidence_is_refused_where_it_would_change_what_it_is_about_or_cannot_be(workspace: Path) -> None:
    playing = script(workspace, calls(WRITE), {"text": "done"})
    for name in ("e.json", "./sub/../e.json", str(workspace / "e.json"), "../no/such/e.json", ".."):
        ran = endstate(workspace, "run", "do it", *playing, "--evidence", name)
        assert (ran.code, "Nothing was run" in ran.err) == (2, True), (name, ran.err)
    assert list(workspace.iterdir()) == []


def test_a_finished_session_gives_its_evidence_until_its_tree_is_another(workspace: Path) -> None:
    playing, file = script(workspace, calls(WRITE), {"text": "done"}), workspace.parent / "e.json"
    assert endstate(workspace, "run", "do it", *playing).code == 0

    assert endstate(workspace, "run", "--resume", *playing, "--evidence", "../e.json").code == 0
    assert endstate(workspace, "verify", "../e.json").code == 0
    file.unlink()
    (workspace / "a.txt").write_text("mine\n")
    later = endstate(workspace, "run", "--resume", *playing, "--evidence", "../e.json", "--json")

    assert (later.code, later.json["evidence-file"], file.exists()) == (4, None, False)
    assert (later.json["conclusion"], "the workspace has changed" in later.err) == ("success", True)
    (workspace / "a.txt").write_text("x\n")
    assert endstate(workspace, "run", "--resume", *playing, "--evidence", "../e.json").code == 0
    assert endstate(workspace, "verify", "../e.json").code == 0
