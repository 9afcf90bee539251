"""Real processes that try to get away, to fill the memory, or to be somebody else."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endstate_action.errors import Interrupted
from endstate_action.system import proctable
from endstate_action.system.output import Output, Sink
from endstate_action.system.process import (
    Finished,
    capture,
    decode,
    end_tagged,
    identity,
    is_alive,
    run,
    tagged,
)

ENV = {"PATH": os.environ["PATH"]}
SRC = Path(proctable.__file__).parents[2]
NOBODY = 65534
EXIT_CALL = {"x86_64": 60, "aarch64": 93}
"""Number of the system call that ends one thread and no more."""

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="descendants are found through /proc")


def bash(command: str, cwd: Path, *, timeout_s: float = 60, cap_bytes: int = 64 * 1024) -> Finished:
    # A tag of this process's own: tests run side by side, and what bears a call's tag is ended with it.
    tag = f"test-{os.getpid()}/1/1.0"
    return run(["/bin/bash", "-c", command], cwd=cwd, env=ENV, timeout_s=timeout_s, tag=tag, cap_bytes=cap_bytes)


def text(finished: Finished) -> str:
    return decode(finished.output).text


@pytest.fixture
def seconds() -> str:
    """An argument of `sleep` by which this test's processes, and only they, can be recognised."""
    return f"600.{random.SystemRandom().randrange(10**12):012}"


def running(seconds: str) -> list[int]:
    return [p.pid for p in proctable.everything() if not p.gone and seconds.encode() in _cmdline(p.pid).split(b"\0")]


def _cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def wait_until(condition, limit_s: float = 30) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.01)


def python(script: str, **options) -> subprocess.Popen[str]:
    """A process that runs `script` with the package importable, talking to us by pipes."""
    program = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(SRC)!r})\n" + textwrap.dedent(script)]
    return subprocess.Popen(program, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True, **options)


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A child of ours that no call has started."""
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


# What a program leaves when it ends


@linux_only
@pytest.mark.parametrize(
    "command",
    [
        "sleep {s} & echo hi",
        "setsid sleep {s} & echo hi",
        "nohup sleep {s} >/dev/null 2>&1 & echo hi",
        "trap '' TERM; sleep {s} & echo hi",
        "( (setsid sleep {s} >&- 2>&- <&- &) & ) ; echo hi",
        "env -i setsid sh -c 'exec >&- 2>&- <&-; (sleep {s} &)'; echo hi",
        "setsid env -i bash -c 'trap \"\" TERM; sleep {s}; :' & disown; echo hi",
        "(sleep {s} & kill -STOP $!) ; echo hi",
    ],
    ids=["background", "setsid", "nohup", "ignores-term", "double-fork", "no-tag", "no-tag-ignores-term", "stopped"],
)
def test_a_background_child_does_not_outlive_the_call(command, tmp_path, seconds):
    finished = bash(command.replace("{s}", seconds), tmp_path)

    assert text(finished) == "hi\n"
    assert (finished.exit_code, finished.timed_out, finished.left_alive) == (0, False, ())
    assert running(seconds) == []
    assert finished.ended_survivors >= 1
    assert finished.elapsed_s < 30


@linux_only
@pytest.mark.skipif(os.uname().machine not in EXIT_CALL, reason="no number for the system call here")
def test_a_process_whose_first_thread_has_ended_is_not_taken_for_dead(tmp_path, seconds):
    """The kernel shows it as a zombie, though its other threads go on."""
    script = tmp_path / "odd.py"
    script.write_text(
        "import ctypes, sys, threading, time\n"
        "threading.Thread(target=time.sleep, args=(float(sys.argv[1]),)).start()\n"
        f"ctypes.CDLL(None).syscall({EXIT_CALL.get(os.uname().machine)}, 0)\n"
    )
    wait = "until grep -q 'State:.*Z' /proc/$!/status; do sleep 0.01; done; echo hi"
    finished = bash(f"setsid {sys.executable} {script} {seconds} & {wait}", tmp_path)

    assert text(finished) == "hi\n"
    assert (finished.ended_survivors, finished.left_alive) == (1, ())


@linux_only
def test_no_zombie_is_left_of_a_call(tmp_path, seconds):
    before = set(proctable.everything())
    bash(f"for i in 1 2 3; do (setsid sh -c 'sleep 0.0$0; exit' $i &) ; done; setsid sleep {seconds} & echo", tmp_path)

    assert [p for p in proctable.everything() if p.parent == os.getpid() and p not in before] == []


@linux_only
def test_a_child_that_is_about_to_end_is_not_called_ended(tmp_path):
    finished = bash("(sleep 0.01; touch done) & echo hi", tmp_path)

    assert finished.ended_survivors == 0
    assert (tmp_path / "done").exists()


@linux_only
@pytest.mark.parametrize("command", ["sleep {s} & setsid sleep {s} & sleep {s}", "trap '' TERM; sleep {s}; sleep {s}"])
def test_the_time_limit_ends_the_command_and_what_it_left(command, tmp_path, seconds):
    finished = bash("echo begun; " + command.replace("{s}", seconds), tmp_path, timeout_s=0.5)

    assert finished.timed_out
    assert text(finished) == "begun\n"
    assert running(seconds) == []


@linux_only
def test_a_shell_that_runs_out_of_time_does_not_begin_its_next_command(tmp_path):
    finished = bash("sleep 600; touch next", tmp_path, timeout_s=0.2)

    assert (finished.timed_out, finished.exit_code, finished.signal) == (True, None, signal.SIGTERM)
    assert not (tmp_path / "next").exists()


@linux_only
def test_an_exception_in_the_waiting_thread_ends_the_call(tmp_path, seconds):
    def interrupt(number, frame):
        raise Interrupted("stop")

    def interrupt_us():
        wait_until(lambda: len(running(seconds)) == 2)
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    timer = threading.Thread(target=interrupt_us)
    timer.start()
    try:
        with pytest.raises(Interrupted):
            bash(f"setsid sleep {seconds} & sleep {seconds}", tmp_path)
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)
    assert running(seconds) == []


@linux_only
def test_what_the_caller_s_check_raises_ends_the_call(tmp_path, seconds):
    def check():
        if len(running(seconds)) == 2:
            raise Interrupted("stop")

    argv = ["/bin/bash", "-c", f"setsid sleep {seconds} & sleep {seconds}"]
    with pytest.raises(Interrupted):
        run(argv, cwd=tmp_path, env=ENV, timeout_s=60, tag=f"{seconds}/1/1.0", check=check)
    assert running(seconds) == []


@linux_only
def test_nobody_else_s_process_is_ended(tmp_path, bystander, seconds):
    """Neither an older child in a session of its own, nor one of ours that another thread starts meanwhile."""
    ours: list[int] = []
    other = threading.Thread(
        target=lambda: ours.append(capture(["sleep", "1"], cwd=tmp_path, env=ENV, timeout_s=30).returncode)
    )
    other.start()
    for _ in range(5):
        bash(f"sleep {seconds} & sleep 0.1", tmp_path)
    other.join()

    assert ours == [0]
    assert bystander.poll() is None


def test_without_proc_the_group_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr("endstate_action.system.process.everything", list)

    finished = bash("(sleep 0.5; touch late) & echo hi", tmp_path)
    timed_out = bash("sleep 0.5; touch late", tmp_path, timeout_s=0.1)

    assert (text(finished), finished.exit_code) == ("hi\n", 0)
    assert (timed_out.timed_out, timed_out.signal) == (True, signal.SIGKILL)
    time.sleep(1)
    assert not (tmp_path / "late").exists()


# How it ends, and what it says


@pytest.mark.parametrize(
    ("command", "exit_code", "number"), [("true", 0, None), ("exit 7", 7, None), ("kill -9 $$", None, signal.SIGKILL)]
)
def test_the_exit_code_or_the_signal_is_told(command, exit_code, number, tmp_path):
    finished = bash(command, tmp_path)

    assert (finished.exit_code, finished.signal, finished.ended_survivors) == (exit_code, number, 0)


def test_a_program_that_closes_its_output_is_waited_for(tmp_path):
    finished = bash("exec >&- 2>&-; sleep 0.3; exit 4", tmp_path)

    assert finished.exit_code == 4


def test_both_streams_come_in_the_order_in_which_they_were_written(tmp_path):
    assert text(bash("echo one; echo two >&2; echo three", tmp_path)) == "one\ntwo\nthree\n"


def test_a_program_that_does_not_exist_is_an_error_of_the_start(tmp_path):
    with pytest.raises(FileNotFoundError):
        run([str(tmp_path / "nothing")], cwd=tmp_path, env=ENV, timeout_s=5, tag="t")


def test_long_output_keeps_its_beginning_its_end_and_its_size(tmp_path):
    finished = bash("seq 1 100000", tmp_path, cap_bytes=2000)

    shown, replaced, left_out = decode(finished.output)
    assert shown.startswith("1\n2\n3\n")
    assert shown.endswith("\n99999\n100000\n")
    assert finished.output.total_bytes == 588895
    assert (replaced, left_out) == (0, 588895 - 2000)
    assert "\n[... 586895 bytes left out ...]\n" in shown


def test_any_amount_of_output_takes_little_memory(tmp_path):
    process = python(
        """
        from pathlib import Path
        from endstate_action.system.process import run
        env = {"PATH": "/usr/bin:/bin"}
        f = run(["/bin/bash", "-c", "yes | head -c 200M"], cwd=Path("/"), env=env, timeout_s=60, tag="memory")
        # Not `ru_maxrss`, which a child inherits from the process that started it.
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        print(f.output.total_bytes, status["VmHWM"].split()[0])
        """
    )
    said, _ = process.communicate(timeout=60)

    total, rss_kib = map(int, said.split())
    assert total == 200 * 1024 * 1024
    assert rss_kib < 64 * 1024


@linux_only
def test_an_endless_writer_in_the_background_does_not_hold_up_the_answer(tmp_path):
    finished = bash("echo hi; yes & true", tmp_path)

    assert "hi\n" in text(finished)
    assert finished.ended_survivors == 1


def test_nothing_is_printed(tmp_path, capfd):
    """A command's output goes to the model, never to the log, where a line could be a workflow command."""
    bash("echo '::set-output name=x::1'; echo '##[error]boo' >&2", tmp_path)

    assert capfd.readouterr() == ("", "")


# What a program gets


def test_a_call_gets_its_environment_and_the_tag_and_nothing_else(tmp_path):
    finished = run(["/usr/bin/env"], cwd=tmp_path, env={"A": "1"}, timeout_s=10, tag="s/1/2.3")

    assert sorted(text(finished).split()) == ["A=1", "ENDSTATE_CALL=s/1/2.3"]


@linux_only
def test_a_call_gets_no_descriptor_no_input_and_no_terminal(tmp_path):
    ours = os.open("/etc/hostname", os.O_RDONLY)
    os.set_inheritable(ours, True)
    try:
        finished = bash("cat; ls /proc/$$/fd | tr '\\n' ' '; (: < /dev/tty) 2>/dev/null || echo none", tmp_path)
    finally:
        os.close(ours)

    descriptors = text(finished).split()
    assert descriptors[-1] == "none"
    assert set(descriptors[:-1]) <= {"0", "1", "2", "255"}


def test_a_broken_pipe_ends_a_writer_as_in_any_shell(tmp_path):
    assert text(bash("yes | head -1; echo ${PIPESTATUS[0]}", tmp_path)) == "y\n141\n"


# capture


def test_capture_keeps_the_streams_apart_and_passes_the_input(tmp_path):
    done = capture(
        ["sh", "-c", "cat; echo no >&2; exit 3"], cwd=tmp_path, env=ENV, timeout_s=30, input=b"\xff" * 200_000
    )

    assert (done.returncode, done.stdout, done.stderr) == (3, b"\xff" * 200_000, b"no\n")


def test_capture_ends_the_group_of_a_program_that_takes_too_long(tmp_path):
    with pytest.raises(TimeoutError, match=r"^sh did not finish within 0\.2 s"):
        capture(["sh", "-c", "(sleep 1; touch late) & sleep 600"], cwd=tmp_path, env=ENV, timeout_s=0.2)
    time.sleep(1.2)
    assert not (tmp_path / "late").exists()


def test_capture_reports_a_program_that_cannot_be_started(tmp_path):
    with pytest.raises(FileNotFoundError):
        capture([str(tmp_path / "nothing")], cwd=tmp_path, env=ENV, timeout_s=5)


# What a dead attempt left


@linux_only
def test_a_program_that_may_change_something_dies_with_us(seconds):
    harness = python(
        f"""
        from pathlib import Path
        from endstate_action.system.process import capture
        capture(["sleep", "{seconds}"], cwd=Path("/"), env={ENV}, timeout_s=600)
        """
    )
    wait_until(lambda: running(seconds))
    harness.kill()
    harness.communicate()
    wait_until(lambda: not running(seconds))


A_HARNESS = """
from pathlib import Path
from endstate_action.system.process import run
command = "trap '' TERM; setsid sleep {s} & env -i sleep {s} & echo; exec sleep {s}"
argv = ["/bin/bash", "-c", command.replace("{s}", "SECONDS")]
run(argv, cwd=Path("/"), env={"PATH": "PATHS"}, timeout_s=600, tag="TAG")
"""


@linux_only
def test_what_a_killed_attempt_left_is_found_by_its_tag_and_ended(tmp_path, seconds):
    """The command itself dies with the harness; what it had sent to the background does not."""
    tag = f"{seconds}/1/4.0"
    harness = python(A_HARNESS.replace("SECONDS", seconds).replace("PATHS", ENV["PATH"]).replace("TAG", tag))
    wait_until(lambda: len(running(seconds)) == 3)
    harness.kill()
    harness.communicate()
    wait_until(lambda: len(running(seconds)) == 2)

    found = tagged(f"{seconds}/")
    assert {p.name for p in found} == {"sleep"}
    assert tagged(f"{seconds}/2/") == []
    ended, survivors = end_tagged(f"{seconds}/1/")

    assert {p.pid for p in found} <= {p.pid for p in ended}
    assert survivors == ()
    assert tagged(f"{seconds}/") == []
    # The second one had lost its tag together with its parent: the limit that `tagged` states.
    for pid in running(seconds):
        os.kill(pid, signal.SIGKILL)


@linux_only
def test_only_the_prefix_s_own_processes_are_ended(seconds):
    prefix = f"{seconds}/"
    other = subprocess.Popen(["sleep", "600"], env=ENV | {"ENDSTATE_CALL": f"x{prefix}1"})
    untagged = subprocess.Popen(["sleep", "600"], env=ENV | {"NOTENDSTATE_CALL": f"{prefix}1"})
    ours = subprocess.Popen(["sleep", "600"], env=ENV | {"ENDSTATE_CALL": f"{prefix}1"})
    try:
        ended, survivors = end_tagged(prefix)
        assert ([p.pid for p in ended], survivors) == ([ours.pid], ())
        assert (other.poll(), untagged.poll(), ours.wait(30)) == (None, None, -signal.SIGTERM)
        assert end_tagged("") == ((), ())
        assert other.poll() is None
    finally:
        for process in (other, untagged, ours):
            process.kill()
            process.wait()


@linux_only
def test_an_attempt_inside_a_call_of_its_own_session_spares_itself(seconds):
    """Its environment carries the tag, its ancestor's too; a sibling is ended."""
    inner = f"""
import subprocess, sys
sys.path.insert(0, {str(SRC)!r})
from endstate_action.system.process import end_tagged
sibling = subprocess.Popen(["sleep", "600"])
ended, survivors = end_tagged("{seconds}/")
print([p.pid for p in ended] == [sibling.pid], survivors, sibling.wait())
"""
    outer = python(
        f"import subprocess\nsubprocess.run([sys.executable, '-c', {inner!r}])",
        env={**os.environ, "ENDSTATE_CALL": f"{seconds}/1/1.0"},
    )
    said, _ = outer.communicate(timeout=60)
    assert said.strip() == f"True () {-signal.SIGTERM}"


@linux_only
def test_a_process_that_took_over_a_pid_is_not_signalled(bystander):
    known = proctable.look(bystander.pid)
    assert known is not None
    proctable.send(dataclasses.replace(known, started=known.started - 1), signal.SIGKILL)
    assert not proctable.is_running(dataclasses.replace(known, started=known.started - 1))

    assert bystander.poll() is None
    proctable.send(known, signal.SIGKILL)
    assert bystander.wait(30) == -signal.SIGKILL


@linux_only
@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="takes two users")
def test_a_process_that_cannot_be_ended_is_named(bystander):
    process = python(
        f"""
        import os
        from endstate_action.system import proctable
        os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
        ended, survivors = proctable.end(lambda: [proctable.look({bystander.pid})])
        print(len(ended), *survivors)
        """
    )
    said, _ = process.communicate(timeout=60)

    assert said.strip() == f"0 sleep (pid {bystander.pid})"
    assert bystander.poll() is None


@linux_only
def test_a_name_that_imitates_the_kernel_s_format_is_read_as_a_name(tmp_path):
    odd = tmp_path / ") Z 1 1 (\n"
    odd.symlink_to("/bin/sleep")
    process = subprocess.Popen([str(odd), "600"])
    try:
        wait_until(lambda: (proctable.look(process.pid) or proctable.ProcessInfo(0, 0, "", 0, 0, True)).name[0] == ")")
        found = proctable.look(process.pid)
        assert found is not None
        assert (found.name, found.parent, found.gone) == (") Z 1 1 (?", os.getpid(), False)
    finally:
        process.kill()
        process.wait()


# Who is who


@linux_only
def test_a_process_is_known_by_more_than_its_pid():
    me = identity()

    assert is_alive(me) is True
    assert is_alive(me | {"start_time": me["start_time"] + 1}) is False
    assert is_alive(me | {"boot_id": "another"}) is False
    assert is_alive(me | {"host": "another"}) is None
    assert is_alive(me | {"pid_namespace": "another"}) is None
    assert is_alive({}) is None
    assert is_alive(me | {"pid": "1"}) is None


@linux_only
def test_an_ended_process_is_not_alive():
    process = python("import json; from endstate_action.system.process import identity; print(json.dumps(identity()))")
    said, _ = process.communicate(timeout=60)

    assert is_alive(json.loads(said)) is False


@linux_only
def test_after_hardening_an_unprivileged_process_cannot_read_our_environment():
    """Root still can, so the reader is nobody; before hardening it can, or this test would prove nothing."""
    process = python(
        f"""
        import ctypes, os
        from endstate_action.system.process import harden
        if os.getuid() == 0:
            os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
        ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # changing the user has hardened us already
        def others_can_read():
            us = os.getpid()
            if (child := os.fork()) == 0:
                try:
                    open(f"/proc/{{us}}/environ", "rb").read()
                    open(f"/proc/{{us}}/mem", "rb").close()
                except PermissionError:
                    os._exit(1)
                os._exit(0)
            return os.waitpid(child, 0)[1] == 0
        print(others_can_read())
        harden()
        print(others_can_read())
        """
    )
    said, _ = process.communicate(timeout=60)
    assert said.split() == ["True", "False"]


# Bytes as text


@pytest.mark.parametrize(
    ("data", "shown", "replaced"),
    [
        (b"\xed\xa0\xbd", "\ufffd" * 3, 3),
        (b"\xf0\xffok", "\ufffd\ufffdok", 2),
        ("größer 🙂".encode(), "größer 🙂", 0),
        (b"", "", 0),
    ],
)
def test_what_is_not_utf8_is_replaced_and_counted(data, shown, replaced):
    assert decode(Output(data, b"", len(data))) == (shown, replaced, 0)


@given(st.binary(max_size=200), st.integers(2, 64))
def test_any_bytes_become_strict_utf8_of_bounded_size(data, cap):
    """Cut anywhere: every byte is shown, replaced or counted as left out."""
    half = cap // 2
    output = Output(data[:half], data[half:][-half:], len(data))
    shown, replaced, left_out = decode(output)

    shown.encode("utf-8", "strict")
    note = f"\n[... {left_out} bytes left out ...]\n" if left_out else ""
    kept = shown.replace(note, "", 1).encode()
    assert len(kept) - 2 * replaced + left_out == len(data)


@given(st.text(alphabet="aé€🙂", max_size=60), st.integers(2, 40))
def test_a_cut_through_a_character_replaces_nothing(whole, cap):
    data, half = whole.encode(), cap // 2
    assert decode(Output(data[:half], data[half:][-half:], len(data))).replaced_bytes == 0


def test_a_short_read_is_not_the_end():
    """The pipe is read as it fills; `select` is what tells that there is more."""
    reader, writer = os.pipe()
    try:
        sink = Sink(100)
        os.set_blocking(reader, False)
        with pytest.raises(BlockingIOError):
            sink.read(reader)
        os.write(writer, b"abc")
        assert select.select([reader], [], [], 30)[0]
        sink.drain(reader)
        assert sink.output() == Output(b"abc", b"", 3)
    finally:
        os.close(reader)
        os.close(writer)
