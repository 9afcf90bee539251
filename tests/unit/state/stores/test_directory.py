"""A directory as a store: whole objects under their names, on disk, ours, and through no link."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from endstate_action.state.keys import CheckpointKey, checkpoints_prefix
from endstate_action.state.stores.base import Denied, Exists, Stored, StoreUnreadable, StoreUnusable, Unavailable
from endstate_action.state.stores.bounded import within
from endstate_action.state.stores.directory import LEFTOVER_AGE_S, DirectoryStore
from tests.support.stores import LINEAGE, no_links

KEY = str(CheckpointKey(LINEAGE, 1, 1, 0))
OTHER = str(CheckpointKey(LINEAGE, 1, 2, 0))
PREFIX = checkpoints_prefix(LINEAGE)
T = 20.0


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "not-yet-there")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "not-yet-there" / "es1" / LINEAGE


def test_nothing_is_made_before_the_first_put(store, tmp_path):
    assert store.get(KEY, timeout_s=T) is None
    assert store.keys(PREFIX, timeout_s=T) == []
    assert os.listdir(tmp_path) == []


def test_what_is_stored_is_closed_to_others(store, place):
    old = os.umask(0)
    try:
        store.put(KEY, b"data", timeout_s=T)
    finally:
        os.umask(old)

    assert os.listdir(place) == [KEY.rpartition("/")[2]]
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (place / KEY.rpartition("/")[2], place, place.parents[1])]
    assert modes == [0o600, 0o700, 0o700]


@pytest.mark.parametrize(
    "key", [f"es1/{LINEAGE}/../../x", f"es1/{LINEAGE}/.x", f"es1/{LINEAGE}/a/b", "es1/x/y", "/etc/x"]
)
def test_no_key_leads_out_of_the_directory(store, key):
    for ask in (store.get, lambda key, timeout_s: store.put(key, b"", timeout_s=timeout_s)):
        with pytest.raises(ValueError, match="no key"):
            ask(key, timeout_s=T)


@pytest.mark.parametrize("at", ["store", "es1", "lineage"])
def test_no_directory_is_reached_through_a_link(store, place, tmp_path, at):
    link = {"store": place.parents[1], "es1": place.parent, "lineage": place}[at]
    elsewhere = tmp_path / "elsewhere"
    store.put(KEY, b"data", timeout_s=T)
    link.rename(elsewhere)
    link.symlink_to(elsewhere)
    before = sorted(elsewhere.rglob("*"))

    assert isinstance(DirectoryStore(place.parents[1]).put(OTHER, b"more", timeout_s=T), Denied)
    for ask in (lambda: store.get(KEY, timeout_s=T), lambda: store.keys(PREFIX, timeout_s=T)):
        with pytest.raises(StoreUnreadable):
            ask()
    assert sorted(elsewhere.rglob("*")) == before


@pytest.mark.parametrize("what", ["link", "fifo", "directory"])
def test_something_else_in_an_objects_place_opens_as_nothing_and_its_name_still_counts(store, place, tmp_path, what):
    """Whoever put it there must not hide what the name says of effects outside."""
    store.put(OTHER, b"data", timeout_s=T)
    (tmp_path / "secret").write_text("not for you")
    planted = place / KEY.rpartition("/")[2]
    {
        "link": lambda: planted.symlink_to(tmp_path / "secret"),
        "fifo": lambda: os.mkfifo(planted),
        "directory": planted.mkdir,
    }[what]()

    assert store.get(KEY, timeout_s=T) == b""
    assert store.put(KEY, b"mine", timeout_s=T) == Exists(KEY)
    assert store.keys(PREFIX, timeout_s=T) == sorted([KEY, OTHER])
    assert (tmp_path / "secret").read_text() == "not for you"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
@pytest.mark.parametrize("whole", [True, False], ids=["directory", "file"])
def test_what_belongs_to_another_user_is_refused(store, place, whole):
    store.put(KEY, b"data", timeout_s=T)
    os.chown(place if whole else place / KEY.rpartition("/")[2], 12345, 12345)

    with pytest.raises(StoreUnreadable, match="another user"):
        store.get(KEY, timeout_s=T)
    outcome = store.put(OTHER, b"data", timeout_s=T)
    assert isinstance(outcome, Denied if whole else Stored)


@pytest.mark.parametrize(
    ("number", "kind", "doubtful"),
    [
        (errno.EROFS, Denied, None),
        (errno.EACCES, Denied, None),
        (errno.ENOSPC, Denied, None),
        (errno.EDQUOT, Denied, None),
        (errno.EIO, Unavailable, False),
        (errno.ESTALE, Unavailable, False),
    ],
)
def test_a_disk_that_says_no_is_believed_with_its_reason(tmp_path, number, kind, doubtful):
    def failing(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    outcome = DirectoryStore(tmp_path / "store", link=failing).put(KEY, b"data", timeout_s=T)

    assert isinstance(outcome, kind)
    assert os.strerror(number) in outcome.reason
    assert doubtful is None or outcome.is_doubtful is doubtful
    assert list(tmp_path.rglob("*.part")) == []
    assert DirectoryStore(tmp_path / "store").put(KEY, b"data", timeout_s=T) == Stored(KEY, 4)


def test_a_full_disk_leaves_no_torn_object(tmp_path):
    """A limit on the size of files stands for it: the write itself stops half-way."""
    code = f"""
import pathlib, resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from endstate_action.state.stores.bounded import within
from endstate_action.state.stores.directory import DirectoryStore
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
print(DirectoryStore(pathlib.Path({str(tmp_path / "store")!r})).put({KEY!r}, b"x" * 100_000, timeout_s=20))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=_env())

    assert done.stdout.startswith("Unavailable(")
    assert "is_doubtful=False" in done.stdout
    store = DirectoryStore(tmp_path / "store")
    assert store.get(KEY, timeout_s=T) is None
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


def test_a_writer_killed_at_any_time_leaves_a_whole_object_or_none(tmp_path):
    data = b"x" * 3_000_000
    code = f"""
import pathlib
from endstate_action.state.stores.bounded import within
from endstate_action.state.stores.directory import DirectoryStore
print("now", flush=True)
DirectoryStore(pathlib.Path({str(tmp_path / "store")!r})).put({KEY!r}, b"x" * {len(data)}, timeout_s=20)
"""
    for n in range(6):
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=_env()) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(n * 0.002)
            process.send_signal(signal.SIGKILL)
        store = DirectoryStore(tmp_path / "store")
        assert store.get(KEY, timeout_s=T) in (None, data)
        assert store.keys(PREFIX, timeout_s=T) in ([], [KEY])
    assert isinstance(DirectoryStore(tmp_path / "store").put(KEY, data, timeout_s=T), Stored | Exists)


def test_what_killed_writers_left_is_not_seen_and_goes_when_it_is_old(store, place):
    store.put(KEY, b"data", timeout_s=T)
    old, new = place / f".{OTHER[-17:]}.0123.part", place / f".{OTHER[-17:]}.4567.part"
    for file in (old, new):
        file.write_bytes(b"torn")
    long_ago = time.time() - LEFTOVER_AGE_S - 60
    os.utime(old, (long_ago, long_ago))

    assert store.keys(f"es1/{LINEAGE}/c", timeout_s=T) == [KEY]
    assert store.put(OTHER, b"more", timeout_s=T) == Stored(OTHER, 4)
    assert not old.exists()
    assert new.exists()


def test_without_hard_links_a_claim_by_a_killed_writer_burns_the_name(tmp_path):
    """What he wanted to store is never seen half, and nobody else stores something else there."""
    store = DirectoryStore(tmp_path / "store", link=no_links)
    store.put(OTHER, b"data", timeout_s=T)
    (tmp_path / "store" / "es1" / LINEAGE / f".{KEY.rpartition('/')[2]}.claim").touch()

    assert store.put(KEY, b"data", timeout_s=T) == Exists(KEY)
    assert store.get(KEY, timeout_s=T) is None
    assert store.keys(PREFIX, timeout_s=T) == [OTHER]


def test_what_is_dropped_was_there_until_the_new_object_was(store, place):
    store.put(KEY, b"old", timeout_s=T)
    place.chmod(0o700)
    failing = DirectoryStore(place.parents[1], link=_fails)

    assert isinstance(failing.put(OTHER, b"new", timeout_s=T, drop=[KEY]), Unavailable)
    assert store.get(KEY, timeout_s=T) == b"old"
    assert store.put(OTHER, b"new", timeout_s=T, drop=[KEY, OTHER]) == Stored(OTHER, 3)
    assert store.keys(PREFIX, timeout_s=T) == [OTHER]


@pytest.mark.parametrize("path", ["{t}/file", "{t}/file/below", "/dev/null", "/dev/null/x"])
def test_what_is_no_directory_is_no_empty_store_and_final_at_once(tmp_path, path):
    (tmp_path / "file").write_text("in the way")
    store = DirectoryStore(Path(path.format(t=tmp_path)))

    outcome = store.put(KEY, b"data", timeout_s=T)

    assert isinstance(outcome, Denied)
    assert "Not a directory" in outcome.reason
    for ask in (lambda: store.get(KEY, timeout_s=T), lambda: store.keys(PREFIX, timeout_s=T), _lineages(store)):
        with pytest.raises(StoreUnusable, match="Not a directory") as refused:
            ask()
        assert refused.value.exit_code == 2
        assert refused.value.hint


def test_what_no_checkpoint_can_be_is_not_read(store, place):
    store.put(OTHER, b"data", timeout_s=T)
    with (place / KEY.rpartition("/")[2]).open("wb") as planted:
        planted.truncate(1 << 42)

    assert store.get(KEY, timeout_s=T) == b""


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="a place where even root makes no directory")
def test_where_no_directory_can_be_made_nothing_is_tried_again():
    store = DirectoryStore(Path("/proc/no-such-place"))

    assert _lineages(store)() == []
    outcome = store.put(KEY, b"data", timeout_s=T)

    assert isinstance(outcome, Denied)
    assert "no directory can be made there" in outcome.reason


def test_a_store_that_was_taken_away_while_in_use_may_come_back(store, place, tmp_path):
    store.put(KEY, b"data", timeout_s=T)
    place.rename(tmp_path / "unmounted")

    refused = store.put(OTHER, b"more", timeout_s=T)
    assert isinstance(refused, Denied)
    assert (refused.is_lost, refused.may_pass, f"the directory {place} is gone" in refused.reason) == (True, True, True)
    assert not place.exists()
    (tmp_path / "unmounted").rename(place)
    assert store.put(OTHER, b"more", timeout_s=T) == Stored(OTHER, 4)


def test_what_is_above_it_is_not_made(tmp_path):
    outcome = DirectoryStore(tmp_path / "mnt" / "endstate").put(KEY, b"data", timeout_s=T)

    assert isinstance(outcome, Denied)
    assert (outcome.is_lost, "is its disk mounted?" in outcome.remedy) == (False, True)
    assert os.listdir(tmp_path) == []


def _lineages(store: DirectoryStore) -> Callable[[], object]:
    return lambda: store.lineages(timeout_s=T)


def _fails(*_: object, **__: object) -> None:
    raise OSError(errno.EIO, "broken")


def _env() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(Path(__file__).parents[4] / "src")}


def test_nothing_of_an_answered_request_goes_on():
    own, let_go = threading.local(), []

    class Connection:
        def __del__(self) -> None:
            time.sleep(0.2)
            let_go.append(True)

    def work() -> int:
        own.connection = Connection()
        return 1

    assert within(20, work) == 1
    assert let_go
