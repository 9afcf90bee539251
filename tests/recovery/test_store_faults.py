"""Whatever a store does: never a wrong restore, never an effect twice, and nothing lost that was called shipped.

Every fault at every request of a kind, once, and from there on for good. The machine is lost afterwards, and another
one goes on with what the store really has.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from endstate_action.state.keys import CheckpointKey
from tests.support.crash import INTERRUPTED, KILLED, Bench
from tests.support.machines import LostBench, LostTrial
from tests.support.memory_store import Fault

pytestmark = pytest.mark.slow

WRITING = (Fault.APPLIED, Fault.LOST, Fault.REFUSED, Fault.RESERVED, Fault.TAKEN, Fault.RATE_LIMITED, Fault.DENIED)
READING = (
    ("get", Fault.UNREADABLE),
    ("get", Fault.CUT),
    ("get", Fault.FLIPPED),
    ("get", Fault.SWAPPED),
    ("get", Fault.GONE),
    ("first", Fault.UNREADABLE),
    ("keys", Fault.UNREADABLE),
)
BAD_INPUT, UNUSABLE, UNKNOWN = 2, 12, 20
PATIENCE_S = 2.0


@pytest.fixture(scope="module")
def lost(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> LostBench:
    return LostBench(bench.driver, tmp_path_factory.mktemp("lost"))


def called_shipped(trial: LostTrial) -> CheckpointKey | None:
    """The newest checkpoint of which the product was told that it is stored."""
    told = [CheckpointKey.parse(put["key"]) for put in trial.lines("puts") if put["event"] == "Stored"]
    return max((key for key in told if key), default=None)


def check_writes(lost: LostBench, fault: Fault, n: int, more: str = "") -> int:
    """One trial; how many uploads were tried."""
    where = f"{fault.name} at upload {n}{more}"
    trial = lost.trial_outside(patience_s=PATIENCE_S)
    code = trial.begin(faults={f"put {n}{more}": fault.name})
    tried = len([put for put in trial.lines("puts") if put["event"] == "begin"])
    if code == BAD_INPUT:
        # A directory that gives no number is a slip of the pen: said at once, and nothing is spent.
        assert (fault, n, trial.lines("requests")) == (Fault.DENIED, 0, []), where
        trial.discard()
        return tried
    assert code in (0, INTERRUPTED), (where, code, trial.said())
    if code == 0 and trial.has_prompt():
        trial.check_outside(where)
        refused = [f for f in trial.state().finished.values() if f.status == "not_run"]
        assert all("it could not be made safe" in f.content for f in refused), where
    shipped = called_shipped(trial)
    seen = max((key.effects for key in trial.checkpoints()), default=0)
    trial.lose()
    if fault in (Fault.RESERVED, Fault.TAKEN) and seen > (shipped.effects if shipped else 0):
        # Names that somebody else filled speak of effects that no checkpoint knows of, whether they took place or not.
        before = trial.outside()
        assert trial.go_on() == UNKNOWN, (where, trial.said())
        assert trial.outside() == before
        trial.discard()
        return tried
    assert trial.go_on() == 0, (where, trial.said())
    trial.check_outside(where)
    if shipped:
        restored = [line["notice"] for line in trial.lines("said") if "Restored from" in line.get("notice", "")]
        key = CheckpointKey.parse(restored[-1].split()[2].rstrip(","))
        assert key is not None
        assert key >= shipped, f"{where}: {key} was restored although {shipped} had been called shipped"
    trial.discard()
    return tried


@pytest.mark.recovery
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("fault", WRITING)
def test_a_fault_of_any_upload_loses_nothing_and_repeats_nothing(lost: LostBench, fault: Fault):
    assert next(n for n in count(0) if check_writes(lost, fault, n) <= n) > 5


@pytest.mark.parametrize("fault", WRITING)
def test_a_fault_of_a_few_uploads_loses_nothing_and_repeats_nothing(lost: LostBench, fault: Fault):
    check_writes(lost, fault, 3)


@pytest.mark.recovery
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("fault", WRITING)
def test_a_store_that_fails_for_good_from_any_upload_on_loses_nothing_and_repeats_nothing(
    lost: LostBench, fault: Fault
):
    for n in range(0, 9, 2):
        check_writes(lost, fault, n, "+")


@pytest.mark.parametrize("fault", [Fault.APPLIED, Fault.REFUSED, Fault.DENIED])
def test_with_a_store_that_fails_for_good_calls_outside_are_not_run_and_the_run_goes_on(lost: LostBench, fault: Fault):
    trial = lost.trial_outside(patience_s=PATIENCE_S)
    assert trial.begin(faults={"put 2+": fault.name}) == 0
    state = trial.check_invariants()
    outside = [(1, 1), (1, 2), (2, 0), (3, 0), (4, 0)]
    assert {state.finished[place].status for place in outside} == {"not_run"}
    assert {f.status for place, f in state.finished.items() if place not in outside} == {"ok"}
    assert (trial.outside(), trial.ledger()) == ({}, [])


def damaged(lost: LostBench, operation: str, fault: Fault) -> Iterator[tuple[LostTrial, str]]:
    """A lost machine, and a second one for which one request goes wrong: each of them in turn."""
    at = next(p["n"] for p in lost.points("exact", kinds=("tool",)) if p["what"] == "after git_commit")
    for n in count(0):
        for more in ("", "+"):
            trial = lost.trial("exact", patience_s=PATIENCE_S)
            assert trial.begin(kinds=("tool",), kill_at=at) == KILLED
            trial.lose()
            asked = trial.resume(session=trial.session, faults={f"{operation} {n}{more}": fault.name})
            yield trial, f"{fault.name} at {operation} {n}{more}: {asked}, {trial.said()}"
            trial.discard()
        if n >= 4:
            return


def check_reads(lost: LostBench, operation: str, fault: Fault, most: int) -> None:
    for trial, where in damaged(lost, operation, fault):
        code = int(where.split(": ")[1].split(",")[0])
        assert code in (0, INTERRUPTED, UNUSABLE, UNKNOWN), where
        if code != 0:
            # Refused and said so; a store that is well again is gone on with, on another machine.
            assert trial.said()["text"], where
            trial.lose()
            again = trial.resume(session=trial.session)
            assert again == 0, (where, trial.said())
        # A keyed call that could not be made safe is answered, and the script goes on; nothing else may differ.
        state = trial.check_invariants(where)
        if all(f.status == "ok" for f in state.finished.values()):
            assert trial.end_state() == lost.undisturbed("exact"), where
        most -= 1
        if most == 0:
            return


@pytest.mark.recovery
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("operation", "fault"), READING)
def test_a_fault_of_any_read_ends_in_a_refusal_or_in_the_right_tree(lost: LostBench, operation: str, fault: Fault):
    check_reads(lost, operation, fault, 99)


@pytest.mark.parametrize(("operation", "fault"), READING)
def test_a_fault_of_the_first_read_ends_in_a_refusal_or_in_the_right_tree(
    lost: LostBench, operation: str, fault: Fault
):
    check_reads(lost, operation, fault, 1)


def test_a_newest_entry_that_the_store_lost_is_a_gap_where_its_name_bears_witness(lost: LostBench):
    """The effect's start was shipped, and what was shipped can no longer be read."""
    trial = lost.trial_outside()
    at = next(p["n"] for p in lost.points(trial.script, kinds=("tool",)) if p["what"] == "after bash")
    assert trial.begin(kinds=("tool",), kill_at=at) == KILLED
    for key in trial.checkpoints():
        if key.effects:
            (trial.folder / "store" / str(key)).write_bytes(b"")
    trial.lose()
    assert trial.resume(session=trial.session) == UNKNOWN
    assert "1 effects outside the workspace were started" in trial.said()["text"]
    assert trial.lines("executions")[-1]["tag"].split("/")[1] == "1"
    assert trial.resume(session=trial.session, inputs={"on-mismatch": "continue"}) == 0


def test_entries_of_other_tasks_and_of_nobody_change_nothing(lost: LostBench):
    trial = lost.trial("exact")
    assert trial.begin(kinds=("tool",), kill_at=7) == KILLED
    folder = trial.folder / "store" / "es1"
    (mine,) = folder.iterdir()
    (folder / ("f" * 12)).mkdir()
    for entry in list(mine.iterdir()):
        (folder / ("f" * 12) / entry.name).write_bytes(entry.read_bytes())
    (mine / "c9999-notanumber").write_bytes(b"x")
    (mine / "README").write_bytes(b"x")
    trial.lose()
    assert trial.resume(session=trial.session) == 0, trial.said()
    trial.check(lost.undisturbed("exact"))
    trial.lose()
    code = trial.resume(session="f" * 12)
    assert code in (UNUSABLE, 13), trial.said()
    assert not (trial.repo.path / "docs").exists()
