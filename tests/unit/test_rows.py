"""A row that was changed into something else: it is named before anything runs, or it changes nothing that matters."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import MISSING, FrozenInstanceError, dataclass, fields
from pathlib import Path
from typing import Any, get_args

import pytest

from endstate_action.account import Around, account
from endstate_action.agent.loop import AgentLoop, Setup
from endstate_action.agent.settle import Action
from endstate_action.agent.tools.read import Read
from endstate_action.effects import EffectClass
from endstate_action.errors import INTERNAL_ERROR, EndstateError, RecordConflict, SessionDamaged
from endstate_action.messages import Message, ToolCall, Usage
from endstate_action.state import forms, records
from endstate_action.state.records import (
    Attempt,
    Begun,
    Compacted,
    Conclusion,
    Delivered,
    Delivering,
    Ended,
    Finished,
    Frozen,
    Note,
    Observed,
    Prompt,
    Record,
    Replied,
    RollBackBegun,
    RolledBack,
    Settled,
    Spent,
    Started,
    StartEnded,
    Status,
    ToDeliver,
    Unseen,
    encode,
)
from endstate_action.state.session import SessionStore
from tests.support.models import FakeModel, say

Body = dict[str, Any]

SESSION = "abcdef012345"
CALLS = (ToolCall("c0", "read", {"path": "a"}), ToolCall("c1", "read", {"path": "b"}))
COMMIT = {
    "parent": "a" * 40, "tree": "b" * 40, "message": "It.", "author": ["name", "mail"], "when": 1, "session": SESSION,
    "key": "k", "branch": "b", "own": True,
}  # fmt: skip
TREE = "et1:" + "0" * 64


def _attempt(epoch: int, **more: Any) -> Attempt:
    return Attempt(epoch, 1.0, "0", {"host": "h"}, {"max-steps": 9}, "wal", "fake", "test-model", **more)


JOURNAL: tuple[Record, ...] = (
    Begun(SESSION, 1.0, {"workspace": "directory", "base": None, "dirty": {"a": "b"}}),
    Frozen("fake", "test-model", "be good", (Read().definition(),), (Read().contract(),), {}, 1000),
    _attempt(1, asked=("p", "do it"), accepted=("model: a in the session, b now",)),
    Observed(0, TREE, None, 1.0, "f" * 40),
    Prompt("p", "do it", 1, 0, 1.0),
    Replied(
        1, "m1", "test-model", Message.assistant("I read.", *CALLS).blocks, "tool_use", Usage(9, 8, 7, 6), "0.5", 1.0,
        1, False, {1: "not allowed"},
    ),
    Started(1, 0, "c0", EffectClass.READS, 1, 1.0, "t", "a", "b", "c", "box", "f" * 40),
    StartEnded(1, 0, 1, "SIGTERM"),
    _attempt(2, kept="e" * 40, trust="t", effects_before=1, given={"store": "dir:/s"}),
    Settled(1, 0, "c0", 2, "run", "it was interrupted", EffectClass.READS, 1.0),
    RolledBack(1, 0, 2, "f" * 40, "e" * 40, True, ("because",), 1.0),
    Started(1, 0, "c0", EffectClass.READS, 2, 1.0, "t"),
    Unseen(1, 0, 2),
    Finished(1, 0, "c0", "ok", "content of a", 2, 1.0, 0.5),
    Finished(1, 1, "c1", "denied", "Denied: not allowed", 2, 1.0),
    Note("n", "something changed", 1),
    Spent(2, Usage(1, 2, 3, 4), "0.1", "it broke off", 1.0),
    Replied(2, "m2", "test-model", Message.assistant("Done.").blocks, "end_turn", Usage(1), None, 1.0, 2),
    Compacted(1, "it read", 4_000),
    Compacted(1, "it read", 2_000),
    Ended(2, 1, "success", "", 1.0, TREE),
    ToDeliver(1, "success", COMMIT, True, 1.0, {"a": "added"}),
    Delivering(1, "commit", 2, 1.0),
    Delivered(1, "commit", True, "a" * 40, "", 2, 1.0),
    RollBackBegun(1, 0, 2, "e" * 40, {"refs/heads/b": "d" * 40}, 1.0),
)  # fmt: skip

VALUES: tuple[Any, ...] = (None, "x", "", "NaN", -1, 9, 10**30, [], ["x"], {}, 1.5, float("nan"), True)


@dataclass
class Scene:
    """A session that can be gone on with, in a file of its own."""

    folder: Path

    def __post_init__(self) -> None:
        self.store = SessionStore(self.folder / "sessions", filesystem="nfs")
        self.workspace = self.folder / "workspace"
        self.workspace.mkdir()
        self.rows = [(seq, r.kind, encode(r)) for seq, r in enumerate(JOURNAL, start=1)]

    def holds(self, rows: Sequence[tuple[int, str, str]]) -> None:
        self.store.adopt(SESSION, rows)

    def with_body(self, seq: int, body: Any) -> None:
        text = body if isinstance(body, str) else json.dumps(body)
        self.holds([(n, kind, text if n == seq else old) for n, kind, old in self.rows])

    def body(self, seq: int) -> Body:
        found: Body = json.loads(self.rows[seq - 1][2])
        return found

    def content(self) -> bytes:
        return (self.store.directory / f"{SESSION}.db").read_bytes()

    def go_on(self) -> None:
        """Open it, do what is asked next, and give account of it."""
        with self.store.open(SESSION) as session:
            account(session.state, Around("success", "", TREE, (), "none"))
            model = FakeModel([say("All done.", message_id="m3")])
            loop = AgentLoop(
                session, model, [Read()], workspace=self.workspace, setup=Setup("test-model", on_mismatch="continue")
            )
            result = loop.run("go on")
            # An attempt of a high number is one that followed others, which were killed on other machines.
            assert (result.final_message or result.reason[:11]) in ("All done.", "max-resumes")
            account(session.state, Around("success", "", TREE, (), "none"))
        assert self.store.read(SESSION).task == session.state.task

    def is_refused(self, seq: int) -> bool:
        """Whether the row is named as damaged, with everything as it was; if not, a run goes on as if it were whole."""
        before = self.content()
        try:
            self.go_on()
        except EndstateError as error:
            said = error
        else:
            return False
        assert not isinstance(said, RecordConflict)
        assert said.exit_code != INTERNAL_ERROR
        if not isinstance(said, SessionDamaged):
            return False
        # What one row says may be what another, later one contradicts.
        (number,) = re.findall(rf"record (\d+) of {len(self.rows)} ", str(said))
        assert int(number) >= seq
        assert "nothing was run" in str(said)
        assert (said.exit_code, self.content()) == (4, before)
        return True


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def _fits(annotation: str, value: Any) -> bool:
    """Whether the JSON value is of the type that the field is declared with."""
    if value is None:
        return "None" in annotation
    kinds: dict[str, Any] = {"int": int, "float": (int, float), "bool": bool}
    kinds |= dict.fromkeys(("tuple", "Asked", "Usage"), list)
    kinds |= dict.fromkeys(("Mapping", "Bound", "Refs", "Given", "Process", "PlannedCommit", "Changes"), dict)
    expected = next((kind for name, kind in kinds.items() if annotation.startswith(name)), str)
    return isinstance(value, expected) and (expected is bool or not isinstance(value, bool))


PLACES = [(seq, r.kind, f.name, str(f.type)) for seq, r in enumerate(JOURNAL, start=1) for f in fields(r)]


def test_the_table_has_every_kind_and_a_session_that_is_whole(scene: Scene) -> None:
    assert {kind for _, kind, _, _ in PLACES} == set(records._CLASSES)
    scene.holds(scene.rows)
    scene.go_on()


@pytest.mark.parametrize(
    "seq", range(1, len(JOURNAL) + 1), ids=[f"{n}-{r.kind}" for n, r in enumerate(JOURNAL, start=1)]
)
def test_a_field_of_any_other_value_is_named_or_does_no_harm(scene: Scene, seq: int) -> None:
    for _, _, name, annotation in (place for place in PLACES if place[0] == seq):
        for value in VALUES:
            scene.with_body(seq, scene.body(seq) | {name: value})
            if seq == 1 and name == "session" and isinstance(value, str):
                with pytest.raises(SessionDamaged, match="copy of session"):
                    scene.store.open(SESSION)
                continue
            refused = scene.is_refused(seq)
            assert refused or _fits(annotation, value), (name, value)


def _seq(kind: str, which: int = 0) -> int:
    return [seq for seq, r in enumerate(JOURNAL, start=1) if r.kind == kind][which]


@pytest.mark.parametrize(
    ("seq", "name", "value"),
    [
        (_seq("begun"), "bound", {"base": 1}),
        (_seq("begun"), "bound", {"git-file": 1}),
        (_seq("begun"), "bound", {"dirty": []}),
        (_seq("begun"), "bound", {"nested": {"a": 1}}),
        (_seq("begun"), "bound", {"apart": "x"}),
        (_seq("begun"), "bound", {"apart": [1]}),
        (_seq("to_deliver"), "changed", {"a": "eaten"}),
        (_seq("frozen"), "tools", ["x"]),
        (_seq("frozen"), "contracts", [{"name": "read"}]),
        (_seq("frozen"), "contracts", [{"name": "read", "effect": 1, "schema": ""}]),
        (_seq("attempt"), "at", 1e300),
        (_seq("attempt"), "accepted", [1]),
        (_seq("attempt"), "asked", ["p"]),
        (_seq("attempt"), "asked", ["p", 1]),
        (_seq("attempt"), "process", {"run_attempt": "1"}),
        (_seq("attempt"), "given", {"store": 1}),
        (_seq("replied"), "blocks", [{}]),
        (_seq("replied"), "blocks", [{"type": ["text"]}]),
        (_seq("replied"), "usage", [1, 2, 3]),
        (_seq("replied"), "usage", ["a", 2, 3, 4]),
        (_seq("replied"), "usage", [1, 2, 3, True]),
        (_seq("replied"), "usage", [1, 2, 3, -1]),
        (_seq("replied"), "cost_usd", "-1"),
        (_seq("replied"), "cost_usd", "Infinity"),
        (_seq("replied"), "denied", {"x": "no"}),
        (_seq("replied"), "denied", {"1": None}),
        (_seq("started"), "effect", "harmless"),
        (_seq("settled"), "action", "run away"),
        (_seq("finished"), "status", "ook"),
        (_seq("roll_back_begun"), "refs", {"refs/heads/b": None}),
        (_seq("rolled_back"), "reasons", [None]),
        (_seq("ended"), "conclusion", "xx"),
        (_seq("to_deliver"), "commit", {"tree": None, "branch": "b"}),
        (_seq("to_deliver"), "commit", COMMIT | {"author": "me"}),
    ],
)
def test_what_is_inside_a_field_is_looked_at_too(scene: Scene, seq: int, name: str, value: Any) -> None:
    scene.with_body(seq, scene.body(seq) | {name: value})
    assert scene.is_refused(seq)


@pytest.mark.parametrize(
    ("seq", "changes", "words"),
    [
        (_seq("attempt"), {"epoch": 0}, "attempt 0 does not follow attempt 0"),
        (_seq("prompt"), {"task": 3}, "task 3 does not follow task 0"),
        (_seq("prompt"), {"after_step": 1}, "after step 1, of 0"),
        (_seq("replied"), {"step": 9}, "step 9 does not follow step 0"),
        (_seq("replied", 1), {"step": 1}, "step 1 does not follow step 1"),
        (_seq("replied"), {"epoch": 2}, "attempt 2 has not begun"),
        (_seq("started"), {"index": 2}, "no such call was asked for"),
        (_seq("started"), {"call_id": "x"}, "another id"),
        (_seq("started"), {"epoch": 2}, "attempt 2 has not begun"),
        (_seq("started", 1), {"epoch": 1}, "started before"),
        (_seq("start_ended"), {"index": 1}, "no such call was started"),
        (_seq("settled"), {"step": 7}, "no such call was asked for"),
        (_seq("roll_back_begun"), {"step": 7}, "no such call was started"),
        (_seq("unseen"), {"step": 7}, "no such call was started"),
        (_seq("rolled_back"), {"step": 7}, "no such call was started"),
        (_seq("finished"), {"call_id": "x"}, "another id"),
        (_seq("finished", 1), {"index": 0}, "the call has an outcome"),
        (_seq("compacted"), {"through_step": 3}, "of 3 steps, of 2"),
        (_seq("compacted"), {"through_step": 0, "result_bytes": 0}, "as much as before"),
        (_seq("compacted", 1), {"result_bytes": 4_001}, "as much as before"),
        (_seq("ended"), {"task": 2}, "no task 2"),
        (_seq("delivered"), {"epoch": 3}, "attempt 3 has not begun"),
    ],
)
def test_a_row_that_does_not_follow_is_named_with_what_is_wrong(
    scene: Scene, seq: int, changes: Body, words: str
) -> None:
    scene.with_body(seq, scene.body(seq) | changes)
    with pytest.raises(SessionDamaged, match=f"record {seq} of {len(JOURNAL)} is out of place: .*{words}"):
        scene.store.open(SESSION)
    assert scene.is_refused(seq)


@pytest.mark.parametrize("kind", [kind for kind in records._CLASSES if kind != "finished"])
def test_a_row_that_is_there_twice_is_named(scene: Scene, kind: str) -> None:
    seq = _seq(kind, -1)
    rows = [(kind, body) for number, kind, body in scene.rows for _ in range(1 + (number == seq))]
    scene.holds([(number, *row) for number, row in enumerate(rows, start=1)])
    with pytest.raises(SessionDamaged, match=f"record {seq + 1} of {len(JOURNAL) + 1} is out of place"):
        scene.store.open(SESSION)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("null", "it is null"),
        ("[1]", "it is a list"),
        ('"x"', "it is a string"),
        ("", "it is no JSON"),
        ("{} {}", "it is no JSON"),
        ("[" * 100_000, "it is no JSON"),
        ("1" * 5_000, "it is no JSON"),
        ("{}", "it has no step"),
        ('{"more": 1}', "it has a field 'more'"),
    ],
)
def test_a_row_that_is_no_record_at_all_is_named(scene: Scene, body: str, words: str) -> None:
    seq = _seq("finished")
    scene.with_body(seq, body)
    with pytest.raises(SessionDamaged, match=f"record {seq} of {len(JOURNAL)} cannot be read: {words}"):
        scene.store.open(SESSION)


def test_a_field_that_an_earlier_release_did_not_write_is_as_it_was_then(scene: Scene) -> None:
    for seq, record in enumerate(JOURNAL, start=1):
        optional = [f for f in fields(record) if f.default is not MISSING]
        body = {name: value for name, value in scene.body(seq).items() if name not in {f.name for f in optional}}
        read = records.decode(record.kind, json.dumps(body))
        assert all(getattr(read, f.name) == f.default for f in optional)


@pytest.mark.parametrize("record", JOURNAL, ids=lambda record: record.kind)
def test_a_record_is_read_back_as_it_was_however_its_fields_are_ordered(record: Record) -> None:
    backwards = json.dumps(dict(reversed(json.loads(encode(record)).items())))
    for body in (encode(record), backwards, encode(record)):
        read = records.decode(record.kind, body)
        assert (read, type(read)) == (record, type(record))
        with pytest.raises(FrozenInstanceError):
            setattr(read, fields(read)[0].name, "x")


@pytest.mark.parametrize("place", [(7, 0), (1, 5), (0, 0), (2, 0), (-1, -1)])
def test_the_outcome_of_a_call_that_nobody_asked_for_is_left_out_and_counts_for_nothing(
    scene: Scene, place: tuple[int, int]
) -> None:
    """A03."""
    stray = Finished(*place, "t9", "denied", "denied", 2, 1.0)
    scene.holds([*scene.rows, (len(scene.rows) + 1, stray.kind, encode(stray))])
    scene.go_on()
    state = scene.store.read(SESSION)
    assert [record.call_id for record in state.strays] == ["t9"]
    assert list(state.finished) == [(1, 0), (1, 1)]


def test_a_call_that_is_asked_for_at_the_place_of_such_an_outcome_runs_and_has_its_own(scene: Scene) -> None:
    stray = Finished(3, 0, "t9", "ok", "of somebody else", 2, 1.0)
    scene.holds([*scene.rows, (len(scene.rows) + 1, stray.kind, encode(stray))])
    (scene.workspace / "a").write_text("content of a")
    with scene.store.open(SESSION) as session:
        model = FakeModel([say("", ("read", {"path": "a"}), message_id="m3"), say("Done.", message_id="m4")])
        AgentLoop(session, model, [Read()], workspace=scene.workspace, setup=Setup("test-model")).run("go on")
        assert "content of a" in session.state.finished[3, 0].content
    assert "content of a" in scene.store.read(SESSION).finished[3, 0].content


def test_the_words_that_a_row_can_have_are_those_that_are_written() -> None:
    assert {str(action) for action in Action} == forms.ACTIONS
    assert set(get_args(Status)) == forms.STATUSES
    assert set(get_args(Conclusion)) == forms.CONCLUSIONS
