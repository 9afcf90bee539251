"""One process at a time, whatever was left behind, and nobody waits for ever."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from endstate_action.errors import Locked, StateError, StateReadOnly, StateReplaced
from endstate_action.state.lock import StateLock

_HOLD = """
import sys, time
from pathlib import Path
from endstate_action.state.lock import StateLock
with StateLock(Path(sys.argv[1]), {"pid": 4242, "host": "there"}) as lock:
    lock.name("abcdef012345")
    print("held", flush=True)
    time.sleep(60)
"""


@contextmanager
def held_elsewhere(path: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", _HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_held_lock_is_refused_after_the_time_out_and_its_holder_named(tmp_path: Path) -> None:
    """C06."""
    lock = StateLock(tmp_path / "lock", {}, timeout_s=0.3)
    with held_elsewhere(tmp_path / "lock"), pytest.raises(Locked) as caught, lock:
        pass

    assert caught.value.exit_code == 10
    for part in ("process 4242", "'there'", "abcdef012345", "0.3 s", "nothing was run"):
        assert part in str(caught.value)


def test_who_waits_is_told_for_whom(tmp_path: Path) -> None:
    told: list[str] = []
    with held_elsewhere(tmp_path / "lock") as process:
        signal.signal(signal.SIGALRM, lambda *_: process.kill())
        signal.setitimer(signal.ITIMER_REAL, 5.5)
        with StateLock(tmp_path / "lock", {"pid": 1}, timeout_s=30, on_wait=told.append):
            pass

    assert len(told) == 1
    assert "4242" in told[0]


def test_the_lock_is_free_the_moment_its_holder_is_killed(tmp_path: Path) -> None:
    with held_elsewhere(tmp_path / "lock") as process:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        with StateLock(tmp_path / "lock", {}, timeout_s=1):
            pass


@pytest.mark.parametrize(
    "text",
    [b"", b"\0\xff\xfe", b"4242\nrunner-old-1\n", b'{"pid": 1, "host": "gone", "since": 0}', b"[]", b'{"pid": 1e999}'],
)
def test_what_a_lock_file_says_never_blocks(tmp_path: Path, text: bytes) -> None:
    """C01, C03, C04: a stray marker, an old pid, an empty or half-written record."""
    (tmp_path / "lock").write_bytes(text)

    with StateLock(tmp_path / "lock", {"pid": os.getpid(), "host": "here"}, timeout_s=0.2) as lock:
        assert str(os.getpid()) in lock.describe_holder()


def test_a_lock_file_deleted_under_the_holder_is_noticed(tmp_path: Path) -> None:
    """C02: a second process gets the lock, so the first must stop."""
    with StateLock(tmp_path / "lock", {}) as lock:
        lock.check()
        (tmp_path / "lock").unlink()
        with pytest.raises(StateReplaced, match="deleted or replaced"):
            lock.check()
        (tmp_path / "lock").write_text("another")
        with pytest.raises(StateReplaced):
            lock.check()


def test_a_link_at_the_lock_path_is_refused_and_its_target_untouched(tmp_path: Path) -> None:
    """C05."""
    target = tmp_path / "target"
    target.write_text("precious")
    (tmp_path / "lock").symlink_to(target)

    with pytest.raises(StateError, match="is a symbolic link"), StateLock(tmp_path / "lock", {}):
        pass

    assert target.read_text() == "precious"


def test_a_directory_at_the_lock_path_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()

    with pytest.raises(StateError, match="not a regular file"), StateLock(tmp_path / "lock", {}):
        pass


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with pytest.raises(StateReadOnly), StateLock(tmp_path / "lock", {}):
        pass
    tmp_path.chmod(0o755)


def test_killed_holders_leave_one_file_and_no_refusal(tmp_path: Path) -> None:
    """C08: three kills in a row."""
    for _ in range(3):
        with held_elsewhere(tmp_path / "lock"):
            pass

    with StateLock(tmp_path / "lock", {}, timeout_s=1):
        assert [p.name for p in tmp_path.iterdir()] == ["lock"]


def test_of_eight_waiting_processes_one_at_a_time_gets_it(tmp_path: Path) -> None:
    """C09, for the local lock: the holder died, exactly one takes over at a time."""
    code = (
        "import os, sys, time; from pathlib import Path; from endstate_action.state.lock import StateLock\n"
        "with StateLock(Path(sys.argv[1]), {}, timeout_s=60):\n"
        "    inside = Path(sys.argv[1] + '.inside'); fd = os.open(inside, os.O_CREAT | os.O_EXCL)\n"
        "    time.sleep(0.02); os.close(fd); inside.unlink()"
    )
    with held_elsewhere(tmp_path / "lock"):
        waiting = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "lock")]) for _ in range(8)]
        time.sleep(0.5)

    assert [process.wait() for process in waiting] == [0] * 8


def test_the_holder_is_described_with_time_and_session(tmp_path: Path) -> None:
    with StateLock(tmp_path / "lock", {"pid": 7, "host": "h\n::evil"}) as lock:
        lock.name("00ff")
        said = json.loads((tmp_path / "lock").read_text())

        assert said["session"] == "00ff"
        assert "\n" not in lock.describe_holder()
