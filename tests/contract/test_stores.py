"""Every store keeps the same promises, whatever is behind it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from endstate_action.state.keys import CheckpointKey, checkpoints_prefix, claim_key, claims_prefix, epoch_prefix
from endstate_action.state.stores.base import Denied, Exists, Stored, StoreUnreadable, Unavailable
from tests.support.moto_server import moto_server
from tests.support.stores import KINDS, LINEAGE, StoreKind, emulated

pytestmark = pytest.mark.contract

LONG_S = 60.0
SHORT_S = 1.5
ROOT = Path(__file__).parents[2]

_EMULATED = pytest.param("s3-emulated", marks=pytest.mark.slow)

_ELSEWHERE = """
import pathlib, sys
{make}
ready = pathlib.Path(sys.argv[1])
ready.with_name(ready.name + sys.argv[2]).touch()
import time
while not ready.exists():
    time.sleep(0.005)
print(type(store.put({key!r}, sys.argv[2].encode() * 1000, timeout_s=60)).__name__)
"""


@pytest.fixture(scope="session")
def emulator() -> Iterator[dict[str, str]]:
    with moto_server() as env:
        yield env


@pytest.fixture(params=[*(pytest.param(k, marks=pytest.mark.slow if "git" in k else []) for k in KINDS), _EMULATED])
def kind(request, tmp_path: Path) -> Iterator[StoreKind]:
    is_emulated = request.param == "s3-emulated"
    with emulated(request.getfixturevalue("emulator")) if is_emulated else KINDS[request.param](tmp_path) as found:
        yield found


@pytest.fixture
def store(kind):
    return kind.open()


def checkpoint(sequence: int, epoch: int = 1, lineage: str = LINEAGE) -> str:
    return str(CheckpointKey(lineage, epoch, sequence, 0))


@pytest.mark.parametrize("data", [b"", b"\0\xff\r\n", os.urandom(5 << 20)], ids=["nothing", "odd bytes", "5 MB"])
def test_what_was_put_is_got_by_another_client(kind, data):
    assert kind.open().put(checkpoint(1), data, timeout_s=LONG_S) == Stored(checkpoint(1), len(data))
    assert kind.open().get(checkpoint(1), timeout_s=LONG_S) == data


def test_a_key_is_written_once(kind, store):
    store.put(checkpoint(1), b"first", timeout_s=LONG_S)

    assert store.put(checkpoint(1), b"second", timeout_s=LONG_S) == Exists(checkpoint(1))
    assert kind.open().put(checkpoint(1), b"first", timeout_s=LONG_S) == Exists(checkpoint(1))
    assert kind.open().get(checkpoint(1), timeout_s=LONG_S) == b"first"


@pytest.mark.parametrize("same", [True, False], ids=["the same bytes", "different bytes"])
def test_of_eight_threads_one_wins(kind, same):
    """Each with a client of its own, as on eight machines."""
    stores = [kind.open() for _ in range(8)]
    written = [b"all" if same else b"%d" % n for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        jobs = [
            pool.submit(s.put, claim_key(LINEAGE, 1), data, timeout_s=LONG_S)
            for s, data in zip(stores, written, strict=True)
        ]
        outcomes = [job.result() for job in jobs]

    won = [data for outcome, data in zip(outcomes, written, strict=True) if isinstance(outcome, Stored)]
    assert len(won) == 1, outcomes
    assert outcomes.count(Exists(claim_key(LINEAGE, 1))) == 7, outcomes
    assert kind.open().get(claim_key(LINEAGE, 1), timeout_s=LONG_S) == won[0]


@pytest.mark.slow
def test_of_eight_processes_one_wins(kind, tmp_path):
    code = _ELSEWHERE.format(make=kind.elsewhere, key=claim_key(LINEAGE, 1))
    ready = tmp_path / "ready"
    command = [sys.executable, "-c", code, str(ready)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
    running = [subprocess.Popen([*command, str(n)], stdout=subprocess.PIPE, text=True, env=env) for n in range(8)]
    while len(list(tmp_path.glob("ready?"))) < 8:
        assert all(process.poll() is None for process in running)
        time.sleep(0.01)
    ready.touch()
    said = [process.communicate(timeout=LONG_S)[0].strip() for process in running]

    assert sorted(said) == ["Exists"] * 7 + ["Stored"]
    assert kind.open().get(claim_key(LINEAGE, 1), timeout_s=LONG_S) == str(said.index("Stored")).encode() * 1000


def test_writers_of_different_keys_all_win(kind):
    stores = [kind.open() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(s.put, checkpoint(n), b"%d" % n, timeout_s=LONG_S) for n, s in enumerate(stores)]
        assert [type(job.result()) for job in jobs] == [Stored] * 4

    reader = kind.open()
    assert [reader.get(checkpoint(n), timeout_s=LONG_S) for n in range(4)] == [b"0", b"1", b"2", b"3"]


def test_one_client_serves_several_threads(store):
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(store.put, checkpoint(n), b"%d" % n, timeout_s=LONG_S) for n in range(4)]
        assert [type(job.result()) for job in jobs] == [Stored] * 4
        jobs = [pool.submit(store.get, checkpoint(n), timeout_s=LONG_S) for n in range(4)]
        assert [job.result() for job in jobs] == [b"0", b"1", b"2", b"3"]


def test_nothing_is_there_before_the_first_put(kind, store):
    assert store.get(checkpoint(1), timeout_s=LONG_S) is None
    assert store.first([checkpoints_prefix(LINEAGE), claims_prefix(LINEAGE)], timeout_s=LONG_S) is None
    assert store.keys(checkpoints_prefix(LINEAGE), timeout_s=LONG_S) == ([] if kind.lists else None)


def test_a_prefix_is_no_key(kind, store):
    store.put(checkpoint(1), b"data", timeout_s=LONG_S)

    assert store.get(epoch_prefix(LINEAGE, 1), timeout_s=LONG_S) is None
    assert store.get(checkpoint(1)[:-1], timeout_s=LONG_S) is None
    assert kind.open().get(checkpoint(1)[:-1], timeout_s=LONG_S) is None
    assert store.get(checkpoint(1) + "0", timeout_s=LONG_S) is None


def test_the_first_prefix_that_any_key_begins_with_decides(kind, store):
    """A dead attempt that writes late does not win over the newer one."""
    store.put(checkpoint(5, epoch=2), b"newer", timeout_s=LONG_S)
    store.put(checkpoint(9, epoch=1), b"late", timeout_s=LONG_S)
    reader = kind.open()

    asked = [epoch_prefix(LINEAGE, epoch) for epoch in (3, 2, 1)]
    assert reader.first(asked, timeout_s=LONG_S) == checkpoint(5, epoch=2)
    assert reader.first(asked[::-1], timeout_s=LONG_S) == checkpoint(9, epoch=1)
    assert reader.first([epoch_prefix(LINEAGE, 3)], timeout_s=LONG_S) is None
    assert reader.first([], timeout_s=LONG_S) is None


def test_within_a_prefix_the_highest_is_found(kind, store):
    for sequence in (2, 10, 9):
        store.put(checkpoint(sequence), b"data", timeout_s=LONG_S)

    found = kind.open().first([checkpoints_prefix(LINEAGE)], timeout_s=LONG_S)
    assert found == checkpoint(10) if kind.tells_highest else found in {checkpoint(n) for n in (2, 9, 10)}


def test_a_key_stored_by_another_is_seen_at_once(kind, store):
    """The fence is read this way."""
    reader = kind.open()
    assert reader.first([claims_prefix(LINEAGE)], timeout_s=LONG_S) is None
    store.put(claim_key(LINEAGE, 1), b"1", timeout_s=LONG_S)
    assert reader.first([claims_prefix(LINEAGE)], timeout_s=LONG_S) == claim_key(LINEAGE, 1)
    store.put(claim_key(LINEAGE, 2), b"2", timeout_s=LONG_S)
    assert reader.first([claims_prefix(LINEAGE) + "0002"], timeout_s=LONG_S) == claim_key(LINEAGE, 2)


def test_lineages_do_not_see_each_other(kind, store):
    store.put(checkpoint(1, lineage="b" * 32), b"theirs", timeout_s=LONG_S)

    assert store.get(checkpoint(1), timeout_s=LONG_S) is None
    assert store.first([checkpoints_prefix(LINEAGE)], timeout_s=LONG_S) is None
    assert store.put(checkpoint(1), b"ours", timeout_s=LONG_S) == Stored(checkpoint(1), 4)
    assert kind.open().get(checkpoint(1, lineage="b" * 32), timeout_s=LONG_S) == b"theirs"


def test_keys_are_listed_in_order(kind, store):
    for sequence in (3, 1, 2):
        store.put(checkpoint(sequence), b"data", timeout_s=LONG_S)
    store.put(claim_key(LINEAGE, 1), b"1", timeout_s=LONG_S)

    listed = kind.open().keys(checkpoints_prefix(LINEAGE), timeout_s=LONG_S)
    assert listed == ([checkpoint(n) for n in (1, 2, 3)] if kind.lists else None)


def test_what_is_no_longer_needed_goes_and_nothing_else(kind, store):
    for sequence in (1, 2, 3):
        store.put(checkpoint(sequence), b"data", timeout_s=LONG_S)

    dropped = [checkpoint(1), checkpoint(7)]
    assert store.put(checkpoint(4), b"new", timeout_s=LONG_S, drop=dropped) == Stored(checkpoint(4), 3)

    for reader in (store, kind.open()):
        found = [n for n in (1, 2, 3, 4) if reader.get(checkpoint(n), timeout_s=LONG_S) is not None]
        assert found == ([2, 3, 4] if kind.deletes else [1, 2, 3, 4])


def test_nothing_goes_with_a_put_that_failed(kind, store):
    store.put(checkpoint(1), b"first", timeout_s=LONG_S)
    store.put(checkpoint(2), b"taken", timeout_s=LONG_S)

    assert store.put(checkpoint(2), b"again", timeout_s=LONG_S, drop=[checkpoint(1)]) == Exists(checkpoint(2))
    assert kind.open().get(checkpoint(1), timeout_s=LONG_S) == b"first"


def test_a_store_that_is_closed_to_us_says_so_with_a_remedy(kind):
    outcome = kind.closed().put(checkpoint(1), b"data", timeout_s=LONG_S)

    assert isinstance(outcome, Denied)
    assert outcome.reason
    assert outcome.remedy


def test_a_store_out_of_reach_is_not_an_empty_one(kind):
    store = kind.unreachable()

    for ask in (
        lambda: store.get(checkpoint(1), timeout_s=SHORT_S),
        lambda: store.first([checkpoints_prefix(LINEAGE)], timeout_s=SHORT_S),
        *([lambda: store.keys(checkpoints_prefix(LINEAGE), timeout_s=SHORT_S)] if kind.lists else []),
    ):
        with pytest.raises(StoreUnreadable) as caught:
            ask()
        assert caught.value.exit_code == (2 if store.name == "dir" else 75), "what is in a directory's way stays there"
        assert caught.value.hint
    assert isinstance(store.put(checkpoint(1), b"data", timeout_s=SHORT_S), Unavailable | Denied)


def test_a_put_without_an_answer_ends_in_time_and_in_doubt(kind):
    began = time.monotonic()
    outcome = kind.silent().put(checkpoint(1), b"data", timeout_s=SHORT_S)

    assert isinstance(outcome, Unavailable)
    assert outcome.is_doubtful
    assert time.monotonic() - began < SHORT_S + 2


def test_a_question_without_an_answer_ends_in_time(kind):
    if kind.mute is None:
        pytest.skip("nothing can hold up a read here")
    store = kind.mute()
    began = time.monotonic()
    with pytest.raises(StoreUnreadable):
        store.get(checkpoint(1), timeout_s=SHORT_S)
    with pytest.raises(StoreUnreadable):
        store.first([checkpoints_prefix(LINEAGE)], timeout_s=SHORT_S)
    assert time.monotonic() - began < 2 * SHORT_S + 3
