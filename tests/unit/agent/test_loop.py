"""The loop on a real session and a real directory, with a model that says what it is told to say."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import pytest

from endstate_action.agent.context import Budget, check_history, history, size_bytes
from endstate_action.agent.loop import AgentLoop, Setup
from endstate_action.agent.observe import Observer, Seen
from endstate_action.agent.policy import Policy
from endstate_action.agent.providers.base import ContextOverflow, ModelUnknown, OnDiscard, Reply, Request
from endstate_action.agent.settle import decide
from endstate_action.agent.tools.base import CallContext, FileChange, Probed, Tool, ToolError
from endstate_action.agent.tools.edit import Edit, Write
from endstate_action.agent.tools.read import Glob, Grep, Read
from endstate_action.config import Limits, parse_config
from endstate_action.effects import EffectClass, Probe
from endstate_action.errors import (
    CredentialsRejected,
    DiskFull,
    InputError,
    Interrupted,
    Mismatch,
    ProviderUnavailable,
    SnapshotDamaged,
    StateError,
    StateReplaced,
    UnknownSession,
)
from endstate_action.messages import Message, ToolCall, Usage
from endstate_action.state.records import Attempt, Note, Prompt, Replied, Settled, Started
from endstate_action.state.session import Session, SessionStore
from endstate_action.system.git_call import GitError
from endstate_action.system.redaction import Secrets
from endstate_action.system.signals import Interrupts, TimeIsUp
from tests.support.models import FakeModel, say


class Act(Tool):
    """A tool that appends its argument to a list outside the workspace, so that each run of it shows."""

    name = "act"
    description = "test"
    parameters: ClassVar[Mapping[str, Any]] = {
        "type": "object",
        "properties": {"what": {"type": "string"}},
        "required": ["what"],
    }

    def __init__(self, effect: EffectClass, does: Callable[[str], str] = lambda what: f"did {what}") -> None:
        self.effect = effect
        self.ran: list[str] = []
        self.applied: dict[str, str] = {}
        self._does = does

    def run(self, arguments: Mapping[str, Any], context: CallContext, plan: FileChange | None) -> str:
        self.ran.append(arguments["what"])
        self.applied[context.key] = context.content_digest
        return self._does(arguments["what"])

    def probe(self, arguments: Mapping[str, Any], context: CallContext) -> Probed:
        found = self.applied.get(context.key)
        if found is None:
            return Probed(Probe.ABSENT)
        return Probed(Probe.APPLIED, "found applied") if found == context.content_digest else Probed(Probe.UNKNOWN)


@pytest.fixture
def store(tmp_path: Path) -> SessionStore:
    return SessionStore(tmp_path / "state", filesystem="ext4")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "ws").mkdir()
    return tmp_path / "ws"


@pytest.fixture
def session(store: SessionStore) -> Iterator[Session]:
    with store.create() as opened:
        yield opened


def loop(session: Session, workspace: Path, model: FakeModel, *tools: Tool, **given: Any) -> AgentLoop:
    given.setdefault("setup", Setup(model="test-model"))
    return AgentLoop(session, model, tools, workspace=workspace, **given)


def act(what: str) -> tuple[str, dict[str, Any]]:
    return ("act", {"what": what})


def a_dead_attempt(session: Session, *calls: tuple[str, dict[str, Any]], tools: tuple[Tool, ...]) -> None:
    """What an attempt leaves that died right after its first reply."""
    AgentLoop(session, FakeModel([]), tools, workspace=Path.cwd(), setup=Setup(model="test-model"))._freeze_or_compare()
    session.append(Attempt(1, 1.0, "", {}, {}, "wal", "fake", "test-model"), Prompt("p", "do it", 1, 0, 1.0))
    blocks = Message.assistant("", *(ToolCall(f"c{i}", n, a) for i, (n, a) in enumerate(calls))).blocks
    session.append(Replied(1, "m1", "test-model", blocks, "tool_use", Usage(), "0", 1.0, 1))


def mark_started(session: Session, index: int, effect: EffectClass, epoch: int = 1, path: str | None = None) -> None:
    session.append(
        Started(1, index, f"c{index}", effect, epoch, 1.0, "t", path, "x" if path else None, "y" if path else None)
    )


def test_calls_run_in_order_and_the_answer_is_the_result(session: Session, workspace: Path) -> None:
    tool = Act(EffectClass.READS)
    model = FakeModel([say("", act("a"), act("b")), say("", act("c")), say("all done")])

    result = loop(session, workspace, model, tool).run("do it")

    assert tool.ran == ["a", "b", "c"]
    assert (result.conclusion, result.final_message, result.steps, result.attempt) == ("success", "all done", 3, 1)
    assert len(model.requests) == 3
    assert result.tree_hash().startswith("et1:")


def test_each_outcome_is_recorded_before_the_next_call_runs(
    session: Session, workspace: Path, store: SessionStore
) -> None:
    """A result a call, not a batch: a kill between two calls must find the first one's outcome."""
    seen: list[int] = []

    def look(what: str) -> str:
        seen.append(len(store.read(session.id).finished))
        return what

    model = FakeModel([say("", act("a"), act("b"), act("c")), say("done")])
    loop(session, workspace, model, Act(EffectClass.READS, look)).run("do it")

    assert seen == [0, 1, 2]


def test_a_start_is_recorded_before_the_call_acts(session: Session, workspace: Path, store: SessionStore) -> None:
    seen: list[bool] = []

    def look(what: str) -> str:
        seen.append((1, 0) in store.read(session.id).started)
        return what

    loop(session, workspace, FakeModel([say("", act("a")), say("done")]), Act(EffectClass.OPAQUE, look)).run("do it")

    assert seen == [True]


def test_a_finished_session_asked_again_says_the_same_without_a_request(session: Session, workspace: Path) -> None:
    tool = Act(EffectClass.READS)
    first = loop(session, workspace, FakeModel([say("", act("a")), say("done")]), tool).run("do it", prompt_id="p")
    records = session.state.records

    model = FakeModel([])
    for again in (
        loop(session, workspace, model, tool).resume(),
        loop(session, workspace, model, tool).run("x", prompt_id="p"),
    ):
        assert (again.conclusion, again.final_message, again.steps) == (first.conclusion, "done", first.steps)

    assert model.requests == []
    assert session.state.records == records


def test_a_new_prompt_in_a_finished_session_is_a_new_task_with_its_own_budget(
    session: Session, workspace: Path
) -> None:
    tool = Act(EffectClass.READS)
    limits = Limits(max_steps=2)
    loop(session, workspace, FakeModel([say("", act("a")), say("one")]), tool, limits=limits).run("first")
    result = loop(session, workspace, FakeModel([say("", act("b")), say("two")]), tool, limits=limits).run("second")

    assert (result.final_message, result.steps) == ("two", 2)
    assert [p.task for p in session.state.prompts] == [1, 2]


def test_resume_settles_before_a_new_prompt_is_added(session: Session, workspace: Path) -> None:
    """A06: the model sees the result first, then the new instruction."""
    tool = Act(EffectClass.READS)
    a_dead_attempt(session, act("a"), tools=(tool,))

    model = FakeModel([say("done")])
    loop(session, workspace, model, tool).run("and then this")

    last = model.requests[0].messages[-1]
    assert [b["type"] for b in last.blocks] == ["tool_result", "text"]
    assert tool.ran == ["a"]


def test_a_prompt_of_the_same_id_is_added_once(session: Session, workspace: Path) -> None:
    tool = Act(EffectClass.READS)
    a_dead_attempt(session, act("a"), tools=(tool,))

    loop(session, workspace, FakeModel([say("done")]), tool).run("do it", prompt_id="p")

    assert [p.id for p in session.state.prompts] == ["p"]


def test_an_interrupted_opaque_call_is_answered_as_unknown_and_the_rest_not_run(
    session: Session, workspace: Path
) -> None:
    tool = Act(EffectClass.OPAQUE)
    a_dead_attempt(session, act("a"), act("b"), tools=(tool,))
    mark_started(session, 0, EffectClass.OPAQUE)

    model = FakeModel([say("done")])
    result = loop(session, workspace, model, tool).resume()

    assert tool.ran == []
    answers = [str(b["content"]) for b in model.requests[0].messages[-1].blocks]
    assert answers[0].startswith("Outcome unknown")
    assert answers[1].startswith("Not run")
    assert next((s.action, s.effect) for s in result.settlements) == ("refuse", EffectClass.OPAQUE)
    assert result.refused_calls == 1


def test_the_rest_of_a_batch_stays_not_run_when_the_resume_is_killed_too(session: Session, workspace: Path) -> None:
    tool = Act(EffectClass.OPAQUE)
    a_dead_attempt(session, act("a"), act("b"), tools=(tool,))
    mark_started(session, 0, EffectClass.OPAQUE)
    killed = loop(session, workspace, FakeModel([]), tool)
    session.append(killed._attempt_record(()))
    calls = killed._calls()
    first = session.state.pending[1, 0]
    settlement = decide(calls._pending(first), calls._look(first))
    calls._apply(first, settlement, settlement)

    loop(session, workspace, FakeModel([say("done")]), tool).resume()

    assert tool.ran == []
    assert session.state.finished[1, 1].status == "not_run"


def test_a_keyed_effect_found_applied_is_adopted_with_its_outcome(session: Session, workspace: Path) -> None:
    tool = Act(EffectClass.KEYED)
    a_dead_attempt(session, act("a"), tools=(tool,))
    mark_started(session, 0, EffectClass.KEYED)
    context = loop(session, workspace, FakeModel([]), tool)._calls()._context(session.state.pending[1, 0])
    tool.applied[context.key] = context.content_digest

    loop(session, workspace, FakeModel([say("done")]), tool).resume()

    assert tool.ran == []
    assert session.state.finished[1, 0].content == "found applied"


@pytest.mark.parametrize(("known", "ran", "status"), [(None, ["a"], "ok"), ("another digest", [], "refused")])
def test_a_keyed_effect_is_probed_before_it_runs(
    session: Session, workspace: Path, known: str | None, ran: list[str], status: str
) -> None:
    """Also a call that was never started: an earlier attempt may have lost its records."""
    tool = Act(EffectClass.KEYED)
    a_dead_attempt(session, act("a"), tools=(tool,))
    if known is not None:
        tool.applied[f"{session.id}/1.0"] = known

    loop(session, workspace, FakeModel([say("done")]), tool).resume()

    assert tool.ran == ran
    assert session.state.finished[1, 0].status == status


def test_an_edit_is_decided_by_what_the_file_holds(session: Session, workspace: Path) -> None:
    (workspace / "f").write_text("one\n")
    arguments = {"path": "f", "old": "one", "new": "one\ntwo"}
    edit = Edit()
    a_dead_attempt(session, ("edit", arguments), ("edit", arguments), tools=(edit,))
    change = edit.plan(
        arguments, loop(session, workspace, FakeModel([]), edit)._calls()._context(session.state.pending[1, 0])
    )
    assert change is not None
    session.append(Started(1, 0, "c0", EffectClass.IDEMPOTENT, 1, 1.0, "t", change.path, change.before, change.after))
    (workspace / "f").write_text("one\ntwo\n")  # applied, and then the machine died

    loop(session, workspace, FakeModel([say("done")]), edit).resume()

    assert session.state.finished[1, 0].status == "ok"
    assert session.state.settled[0].action == "adopt"
    assert (workspace / "f").read_text() == "one\ntwo\ntwo\n"  # the second edno start of it is on record, so it ran


def test_a_third_content_is_refused_and_kept(session: Session, workspace: Path) -> None:
    write = Write()
    a_dead_attempt(session, ("write", {"path": "f", "content": "new"}), tools=(write,))
    mark_started(session, 0, EffectClass.IDEMPOTENT, path="f")
    (workspace / "f").write_text("somebody else's")

    loop(session, workspace, FakeModel([say("done")]), write).resume()

    assert (workspace / "f").read_text() == "somebody else's"
    assert session.state.finished[1, 0].status == "refused"


def test_a_call_is_started_three_times_at_most(session: Session, workspace: Path) -> None:
    tool = Act(EffectClass.READS)
    a_dead_attempt(session, act("a"), act("b"), tools=(tool,))
    mark_started(session, 0, EffectClass.READS)
    for epoch in (2, 3):
        session.append(Attempt(epoch, 1.0, "", {}, {}, "wal", "fake", "test-model"))
        mark_started(session, 0, EffectClass.READS, epoch)

    loop(session, workspace, FakeModel([say("done")]), tool).resume()

    assert tool.ran == []
    assert session.state.finished[1, 0].content.startswith("Not retried")
    assert session.state.finished[1, 1].status == "not_run"


def test_a_pending_call_to_a_vanished_tool_is_answered(session: Session, workspace: Path) -> None:
    """A16: continued on purpose, the call is closed with an error instead of killing the session."""
    tool = Act(EffectClass.READS)
    a_dead_attempt(session, act("a"), tools=(tool,))

    setup = Setup(on_mismatch="continue")
    loop(session, workspace, FakeModel([say("done")]), Read(), setup=setup).resume()

    assert session.state.finished[1, 0].status == "denied"
    assert "no tool 'act'" in session.state.finished[1, 0].content
    assert "tool act: gone" in session.state.attempts[-1].accepted


def test_a_denied_call_does_not_run_and_is_never_asked_again(session: Session, workspace: Path) -> None:
    tool = Act(EffectClass.READS)
    policy = Policy.from_config(parse_config("policy: {default: deny, rules: []}", "test"))
    model = FakeModel([say("", act("a")), say("done")])

    result = loop(session, workspace, model, tool, policy=policy).run("do it")

    assert tool.ran == []
    assert result.refused_calls == 1
    assert session.state.replies[0].denied is not None
    answer = model.requests[1].messages[-1].blocks[0]
    assert answer["is_error"] is True
    assert str(answer["content"]).startswith("Denied")


def test_a_recorded_denial_is_final_on_resume(session: Session, workspace: Path) -> None:
    tool = Act(EffectClass.READS)
    a_dead_attempt(session, tools=(tool,))
    blocks = Message.assistant("", ToolCall("c0", "act", {"what": "a"})).blocks
    session.append(Replied(2, "m2", "test-model", blocks, "tool_use", Usage(), "0", 1.0, 1, False, {0: "not allowed"}))

    loop(session, workspace, FakeModel([say("done")]), tool).resume()  # with a policy that allows everything

    assert tool.ran == []
    assert session.state.finished[2, 0].status == "denied"


def test_wrong_arguments_are_answered_and_never_started(session: Session, workspace: Path) -> None:
    """A22: a missing argument is an error, never an empty string."""
    tool = Act(EffectClass.OPAQUE)
    model = FakeModel(
        [say("", ("act", {}), ("act", {"what": 7}), ("act", {"what": "x", "more": 1}), ("nope", {})), say("done")]
    )

    loop(session, workspace, model, tool).run("do it")

    assert tool.ran == []
    assert not session.state.started
    answers = [str(b["content"]) for b in model.requests[1].messages[-1].blocks]
    for answer, part in zip(
        answers, ("what is missing", "must be of type string", "more is not", "no tool 'nope'"), strict=True
    ):
        assert part in answer


def test_a_call_cut_by_the_output_limit_is_never_run(session: Session, workspace: Path) -> None:
    """A22: keep.txt stays as it is."""
    (workspace / "keep.txt").write_text("x" * 100)
    cut = say("", act("a"), ("write", {"path": "keep.txt"}), stop_reason="max_tokens", cut=True)
    tool = Act(EffectClass.READS)

    loop(session, workspace, FakeModel([cut, say("done")]), tool, Write()).run("do it")

    assert (workspace / "keep.txt").read_text() == "x" * 100
    assert tool.ran == ["a"]
    assert "output limit" in session.state.finished[1, 1].content


@pytest.mark.parametrize(
    "error", [ToolError("it did not work"), ValueError("a defect"), KeyError("k"), ZeroDivisionError()]
)
def test_a_tool_that_fails_is_an_outcome_and_not_the_end(session: Session, workspace: Path, error: Exception) -> None:
    def fail(what: str) -> str:
        raise error

    model = FakeModel([say("", act("a")), say("done")])
    result = loop(session, workspace, model, Act(EffectClass.READS, fail)).run("do it")

    assert result.succeeded
    assert session.state.finished[1, 0].status == "error"


def test_a_result_is_bounded_scrubbed_redacted_and_never_blank(session: Session, workspace: Path) -> None:
    """A11, A12, A27."""
    said = iter(["", "\ud83d", "key=hunter2hunter2", "y" * 300_000])
    tool = Act(EffectClass.READS, lambda what: next(said))
    model = FakeModel([say("", act("a"), act("b"), act("c"), act("d")), say("done")])

    loop(session, workspace, model, tool, secrets=Secrets({"PASS": "hunter2hunter2"})).run("do it")

    contents = [session.state.finished[1, i].content for i in range(4)]
    assert contents[:3] == ["(no output)", "\ufffd", "key=[redacted: PASS]"]
    assert len(contents[3]) < 101_000
    assert "200000 bytes left out" in contents[3]


def test_the_step_budget_adds_up_over_attempts(session: Session, workspace: Path) -> None:
    tool = Act(EffectClass.READS)
    model = FakeModel([say("", act("a"))])
    first = loop(session, workspace, model, tool, limits=Limits(max_steps=2)).run("do it")
    second = loop(session, workspace, model, tool, limits=Limits(max_steps=2)).resume()
    third = loop(session, workspace, model, tool, limits=Limits(max_steps=3)).resume()

    for result, steps in ((first, 2), (second, 2), (third, 3)):
        assert (result.conclusion, result.steps) == ("stopped", steps)
        assert result.reason.startswith("max-steps")
    assert len(model.requests) == 3


def test_the_cost_budget_adds_up_and_counts_discarded_replies(session: Session, workspace: Path) -> None:
    def dear(request: Request, on_discard: OnDiscard) -> Reply:
        on_discard(Usage(100, 10), "overloaded")
        return say("", act("a"))

    tool = Act(EffectClass.READS)
    given: dict[str, Any] = {"limits": Limits(max_cost_usd=Decimal(5)), "price": lambda model, usage: Decimal(2)}
    result = loop(session, workspace, FakeModel([dear]), tool, **given).run("do it")

    # What is thrown away may use it up as well: nothing more is asked for then.
    assert result.reason.startswith("max-cost-usd: $6.00")
    assert result.cost_usd == Decimal(6)
    assert result.usage == Usage(300, 30)
    again = loop(session, workspace, FakeModel([]), tool, **given).resume()
    assert (again.conclusion, again.cost_usd) == ("stopped", Decimal(6))


def test_an_unknown_price_is_unknown_and_never_zero(session: Session, workspace: Path) -> None:
    result = loop(session, workspace, FakeModel([say("done")])).run("do it")

    assert result.cost_usd is None


def priced(model: str, usage: Usage) -> Decimal | None:
    return Decimal(1) if model == "test-model" else None


def test_a_limit_that_was_set_is_never_left_unkept_for_want_of_a_price(session: Session, workspace: Path) -> None:
    """Before any call of the reply runs, in this attempt and in the next ones; without the limit it goes on."""
    tool = Act(EffectClass.OPAQUE)
    model = FakeModel([say("", act("a"), model="unpriced"), say("", act("b"), model="unpriced"), say("done")])
    given: dict[str, Any] = {"price": priced, "limits": Limits(cost_is_set_by_user=True)}

    for result in (
        loop(session, workspace, model, tool, **given).run("do it"),
        loop(session, workspace, model, tool, **given).resume(),
    ):
        assert (result.conclusion, result.cost_usd) == ("stopped", None)
        assert result.reason.startswith("price unknown: 'unpriced' answered")
    assert tool.ran == []
    assert len(model.requests) == 1

    setup = Setup(on_mismatch="continue")
    assert loop(session, workspace, model, tool, price=priced, setup=setup).resume().succeeded
    assert tool.ran == ["a", "b"]


def test_nothing_is_asked_under_a_limit_that_an_earlier_reply_made_impossible_to_keep(
    session: Session, workspace: Path
) -> None:
    tool = Act(EffectClass.READS)
    model = FakeModel([say("", act("a"), model="unpriced"), Interrupted("killed")])
    with pytest.raises(Interrupted):
        loop(session, workspace, model, tool, price=priced).run("do it")

    again = FakeModel([])
    capped: dict[str, Any] = {"price": priced, "limits": Limits(cost_is_set_by_user=True)}
    assert loop(session, workspace, again, tool, **capped).resume().reason.startswith("price unknown")
    assert (tool.ran, again.requests) == (["a"], [])


def test_a_final_answer_without_a_price_costs_no_more_and_is_the_result(session: Session, workspace: Path) -> None:
    limits = Limits(cost_is_set_by_user=True)
    model = FakeModel([say("done", model="unpriced")])
    assert loop(session, workspace, model, price=priced, limits=limits).run("do it").final_message == "done"


def test_attempts_killed_without_progress_end(session: Session, workspace: Path) -> None:
    for epoch in range(1, 4):
        killed = loop(session, workspace, FakeModel([]), Act(EffectClass.READS))
        killed._freeze_or_compare()
        session.append(killed._attempt_record(()))
        if epoch == 1:
            session.append(Prompt("p", "do it", 1, 0, 1.0))

    model = FakeModel([say("done")])
    stopped = loop(session, workspace, model, Act(EffectClass.READS), limits=Limits(max_resumes=2)).resume()
    assert stopped.reason.startswith("max-resumes: 3 attempts")
    assert model.requests == []

    assert loop(session, workspace, model, Act(EffectClass.READS), limits=Limits(max_resumes=3)).resume().succeeded


def test_time_is_per_attempt_and_ends_it_as_stopped(session: Session, workspace: Path) -> None:
    now = [1000.0]

    def slow(what: str) -> str:
        now[0] += 100
        return what

    tool = Act(EffectClass.READS, slow)
    model = FakeModel([say("", act("a"), act("b"), act("c")), say("done")])
    given: dict[str, Any] = {"limits": Limits(max_minutes=3), "clock": lambda: now[0]}
    result = loop(session, workspace, model, tool, **given).run("do it")

    assert (result.conclusion, result.reason[:11]) == ("stopped", "max-minutes")
    assert tool.ran == ["a", "b"]

    assert loop(session, workspace, model, tool, **given).resume().succeeded
    assert tool.ran == ["a", "b", "c"]


def test_a_frozen_model_is_used_whatever_todays_default_is(session: Session, workspace: Path) -> None:
    """A15: without a model named, a resume asks the session's."""
    tool = Act(EffectClass.READS)
    a_dead_attempt(session, act("a"), tools=(tool,))
    model = FakeModel([say("done")])

    loop(session, workspace, model, tool, setup=Setup(system="another system prompt")).resume()

    assert model.requests[0].model == "test-model"
    assert model.requests[0].system == session.state.frozen.system  # type: ignore[union-attr]


class Other(FakeModel):
    name = "other"


@pytest.mark.parametrize("kind", ["model", "provider", "tool gone", "schema", "effect"])
def test_a_changed_contract_is_refused_with_what_changed(session: Session, workspace: Path, kind: str) -> None:
    tool = Act(EffectClass.READS)
    a_dead_attempt(session, act("a"), tools=(tool,))
    records = session.state.records
    changed: Tool = Act(EffectClass.OPAQUE if kind == "effect" else EffectClass.READS)
    if kind == "schema":
        changed.parameters = {"type": "object", "properties": {}}  # type: ignore[misc]
    model = (Other if kind == "provider" else FakeModel)([say("done")])
    tools = () if kind == "tool gone" else (changed,)
    setup = Setup(model="m-2" if kind == "model" else None)

    with pytest.raises(Mismatch) as caught:
        loop(session, workspace, model, *tools, setup=setup).resume()

    assert caught.value.exit_code == 13
    assert len(caught.value.differences) == 1
    assert model.requests == []
    assert session.state.records == records

    going_on = Setup(model=setup.model, on_mismatch="continue")
    assert loop(session, workspace, model, *tools, setup=going_on).resume().succeeded
    assert session.state.attempts[-1].accepted == caught.value.differences
    # Accepted once, it is the session's own: the next resume needs no flag.
    assert loop(session, workspace, model, *tools, setup=Setup()).run("more").succeeded


def test_another_answering_model_stops_before_any_call_of_its_reply(session: Session, workspace: Path) -> None:
    tool = Act(EffectClass.OPAQUE)
    model = FakeModel(
        [say("", act("a")), say("", act("b"), model="quietly-another"), say("done", model="quietly-another")]
    )

    with pytest.raises(Mismatch, match="test-model before, quietly-another now"):
        loop(session, workspace, model, tool).run("do it")
    with pytest.raises(Mismatch):
        loop(session, workspace, model, tool, setup=Setup()).resume()
    assert tool.ran == ["a"]

    assert loop(session, workspace, model, tool, setup=Setup(on_mismatch="continue")).resume().succeeded
    assert tool.ran == ["a", "b"]
    assert len(model.requests) == 3


def test_a_model_that_is_gone_is_a_mismatch_and_a_wrong_one_is_bad_input(
    session: Session, workspace: Path, store: SessionStore
) -> None:
    """A15: the provider answers 404 for the session's model."""
    gone = FakeModel([ModelUnknown("not found")])
    with store.create() as fresh, pytest.raises(InputError, match="does not know the model"):
        loop(fresh, workspace, gone).run("do it")

    a_dead_attempt(session, tools=())
    with pytest.raises(Mismatch, match="no longer there"):
        loop(session, workspace, gone).resume()


def test_a_reply_that_is_repeated_is_not_run_twice(session: Session, workspace: Path) -> None:
    """A17: one row per reply, each call once."""
    tool = Act(EffectClass.READS)
    again = say("", act("a"), message_id="msg_1")
    model = FakeModel([again, again, say("done", message_id="msg_2")])

    assert loop(session, workspace, model, tool).run("do it").succeeded

    assert tool.ran == ["a"]
    assert [r.message_id for r in session.state.replies] == ["msg_1", "msg_2"]
    assert len(session.state.spent) == 1


def test_a_provider_that_only_repeats_itself_ends_as_unreachable(session: Session, workspace: Path) -> None:
    tool = Act(EffectClass.READS)

    with pytest.raises(ProviderUnavailable):
        loop(session, workspace, FakeModel([say("", act("a"), message_id="msg_1")]), tool).run("do it")

    assert tool.ran == ["a"]


@pytest.mark.parametrize(
    ("error", "conclusion"), [(ProviderUnavailable("down"), "interrupted"), (CredentialsRejected("no"), "failed")]
)
def test_a_provider_that_fails_leaves_a_session_to_resume(
    session: Session, workspace: Path, error: Exception, conclusion: str
) -> None:
    with pytest.raises(type(error)):
        loop(session, workspace, FakeModel([error])).run("do it")

    assert session.state.ended[-1].conclusion == conclusion
    assert loop(session, workspace, FakeModel([say("done")])).resume().succeeded


def test_a_history_that_is_too_long_is_compacted_and_asked_again(session: Session, workspace: Path) -> None:
    """A28, A29: also when the provider, not we, finds it too long; its words are never added."""
    tool = Act(EffectClass.READS, lambda what: "z" * 50_000)
    model = FakeModel([*[say("", act(str(i))) for i in range(4)], ContextOverflow("too long"), say("done")])

    result = loop(session, workspace, model, tool).run("do it")

    assert result.succeeded
    assert session.state.compacted is not None
    assert not any("too long" in str(m.blocks) for r in model.requests for m in r.messages)
    check_history(history(session.state))


def test_a_history_over_the_byte_budget_is_compacted_without_a_model(session: Session, workspace: Path) -> None:
    tool = Act(EffectClass.READS, lambda what: "z" * 50_000)
    model = FakeModel([*[say("", act(str(i))) for i in range(8)], say("done")])
    setup = Setup(model="test-model", context=Budget(max_bytes=200_000))

    assert loop(session, workspace, model, tool, setup=setup).run("do it").succeeded

    assert session.state.compacted is not None
    assert len(model.requests) == 9


def test_a_resumed_run_sends_the_view_of_the_killed_one(session: Session, workspace: Path) -> None:
    tool = Act(EffectClass.READS, lambda what: "z" * 50_000)
    setup = Setup(model="test-model", context=Budget(max_bytes=200_000))
    model = FakeModel([*[say("", act(str(i))) for i in range(6)], Interrupted("killed")])
    with pytest.raises(Interrupted):
        loop(session, workspace, model, tool, setup=setup).run("do it")

    again = FakeModel([say("done")])
    loop(session, workspace, again, tool, setup=setup).resume()

    assert again.requests[0].messages == model.requests[-1].messages


class Counting(FakeModel):
    """Asks for seven calls, then is done; counts more tokens a byte than is assumed, and refuses what is too long."""

    def __init__(self, dies_at: int | None = None, window: int = 150_000) -> None:
        super().__init__([self._answer])
        self._dies_at = dies_at
        self._window = window
        self.answered: list[str] = []

    def _answer(self, request: Request, on_discard: OnDiscard) -> Reply:
        asked = json.dumps([[m.role, list(m.blocks)] for m in request.messages])
        if len(asked) > self._window:
            raise ContextOverflow("too long")
        if request.finished_steps == self._dies_at:
            raise Interrupted("killed")
        self.answered.append(asked)
        number, usage = request.finished_steps, Usage(len(asked) // 2)
        return say("done", usage=usage) if number == 7 else say("", act(str(number)), usage=usage)


@pytest.mark.parametrize(("window", "is_killed"), [(150_000, False), (70_000, True)])
def test_stopped_or_killed_after_any_step_the_same_requests_are_sent(
    store: SessionStore, workspace: Path, window: int, is_killed: bool
) -> None:
    """Where the history is cut depends on what the provider counted; a process that comes later must know that too."""
    tool = Act(EffectClass.READS, lambda what: what * 20_000)
    setup = Setup(model="test-model", context=Budget(max_tokens=32_000 + 40_000))
    with store.create() as session:
        undisturbed = Counting(window=window)
        assert loop(session, workspace, undisturbed, tool, setup=setup).run("do it").succeeded
        cut = session.state.compacted
    assert cut is not None
    assert 0 < cut.through_step < 7

    for step in range(1, 8):
        model, limits = Counting(step if is_killed else None, window), Limits(max_steps=200 if is_killed else step)
        with store.create() as session, suppress(Interrupted):
            loop(session, workspace, model, tool, setup=setup, limits=limits).run("do it")
        later = Counting(window=window)
        with store.open(session.id) as session:
            assert loop(session, workspace, later, tool, setup=setup).resume().succeeded
        assert model.answered + later.answered == undisturbed.answered, step


def test_results_that_are_too_long_together_are_seen_in_part_by_the_model(session: Session, workspace: Path) -> None:
    tool = Act(EffectClass.READS, lambda what: f"{what} begins " + "z" * 60_000)
    model = FakeModel([say("", *(act(f"file-{n}") for n in range(5))) for _ in range(3)] + [say("done")])
    setup = Setup(model="test-model", context=Budget(max_bytes=200_000))

    assert loop(session, workspace, model, tool, setup=setup).run("do it").succeeded

    for request in model.requests[1:]:
        results = [b for b in request.messages[-1].blocks if b["type"] == "tool_result"]
        assert [str(b["content"]).partition(" ")[0] for b in results] == [f"file-{n}" for n in range(5)]
        assert size_bytes(request.messages, request.system, request.tools) < 200_000


def test_what_cannot_be_made_short_enough_stops_by_its_name(session: Session, workspace: Path) -> None:
    result = loop(session, workspace, FakeModel([ContextOverflow("no")])).run("do it")

    assert result.reason.startswith("history too long")


def test_the_least_context_that_a_configuration_can_have_is_enough_to_go_on_in(
    session: Session, workspace: Path
) -> None:
    """With the system prompt, all tools, and the account of earlier steps at its longest."""
    least = parse_config("context: {max-tokens: 40000, max-bytes: 40000}", "x").context
    setup = Setup(model="test-model", context=Budget(least.max_tokens, least.max_bytes))
    tools = [Read(), Write(), Edit(), Glob(), Grep(), Act(EffectClass.READS, lambda what: "z " * 2000)]
    model = FakeModel([*[say("so " * 200, act("x" * 200)) for _ in range(90)], say("done")])

    assert loop(session, workspace, model, *tools, setup=setup).run("do it " * 200).succeeded
    assert session.state.compacted is not None
    assert len(session.state.compacted.summary) > 18_000


def test_a_guard_that_fails_stops_before_the_call_starts(session: Session, workspace: Path) -> None:
    tool = Act(EffectClass.READS)

    def lost() -> None:
        raise StateReplaced("the lock is gone")

    with pytest.raises(StateReplaced):
        loop(session, workspace, FakeModel([say("", act("a"))]), tool, guard=lost).run("do it")

    assert tool.ran == []
    assert not session.state.started


@pytest.mark.parametrize("error", [RuntimeError("a defect"), GitError("no such object"), SnapshotDamaged("torn")])
def test_an_attempt_that_fails_is_on_record_as_failed_whatever_the_error(
    session: Session, workspace: Path, error: Exception
) -> None:
    def broken() -> None:
        raise error

    with pytest.raises(type(error)):
        loop(session, workspace, FakeModel([say("done")]), leftovers=broken).run("do it")
    assert [e.conclusion for e in session.state.ended] == ["failed"]


def test_a_run_that_has_lost_its_lock_records_nothing_more(session: Session, workspace: Path) -> None:
    def lost() -> None:
        raise StateReplaced("The lock was replaced.")

    with pytest.raises(StateReplaced):
        loop(session, workspace, FakeModel([say("", act("x"))]), Act(EffectClass.READS), guard=lost).run("do it")
    assert session.state.ended == []


def test_a_deleted_database_stops_before_the_call_starts(session: Session, workspace: Path) -> None:
    tool = Act(EffectClass.READS)

    def then_delete(request: Request, on_discard: OnDiscard) -> Reply:
        return say("", act("a"), act("b"))

    def delete(what: str) -> str:
        session.path.unlink()
        return what

    tool._does = delete
    with pytest.raises(StateReplaced):
        loop(session, workspace, FakeModel([then_delete]), tool).run("do it")

    assert tool.ran == ["a"]


def test_an_edit_made_between_two_attempts_is_kept_recorded_and_told_once(
    session: Session, workspace: Path, tmp_path: Path
) -> None:
    def observer() -> Observer:
        return Observer(workspace, (".git", ".endstate"), cache=tmp_path / "cache")

    tool = Act(EffectClass.READS)
    with pytest.raises(ProviderUnavailable):
        loop(session, workspace, FakeModel([ProviderUnavailable("down")]), tool, observer=observer()).run("do it")
    (workspace / "by-hand.txt").write_text("mine")

    model = FakeModel([ProviderUnavailable("down")])
    for _ in range(3):
        with pytest.raises(ProviderUnavailable):
            loop(session, workspace, model, tool, observer=observer()).resume()

    assert (workspace / "by-hand.txt").read_text() == "mine"
    notes = [b["text"] for b in model.requests[-1].messages[-1].blocks if "by-hand.txt" in str(b.get("text"))]
    assert len(notes) == 1
    assert "by somebody else" in notes[0]


def test_resumes_without_progress_add_nothing_to_the_conversation(session: Session, workspace: Path) -> None:
    """A38: ten rounds."""
    tool = Act(EffectClass.OPAQUE)
    a_dead_attempt(session, act("a"), tools=(tool,))
    mark_started(session, 0, EffectClass.OPAQUE)
    model = FakeModel([ProviderUnavailable("down")])
    for _ in range(10):
        with pytest.raises(ProviderUnavailable):
            loop(session, workspace, model, tool).resume()

    assert model.requests[0].messages == model.requests[-1].messages


def test_a_session_without_a_prompt_cannot_be_resumed(session: Session, workspace: Path) -> None:
    with pytest.raises(UnknownSession):
        loop(session, workspace, FakeModel([])).resume()


def test_calls_buried_in_the_history_are_answered_before_anything_is_sent(session: Session, workspace: Path) -> None:
    """A01, A02, A08: an orphan in the middle, valid turns after it; one repair, recorded once."""
    tool = Act(EffectClass.READS)
    a_dead_attempt(session, act("a"), tools=(tool,))
    for step in (2, 3):  # as an earlier, broken writer could have left it
        session.state.pending.clear()
        session.append(
            Replied(step, f"m{step}", "test-model", Message.assistant("ok").blocks, "end_turn", Usage(), "0", 1.0, 1)
        )
    session.close()
    store = SessionStore(session.path.parent)

    with store.open(session.id) as damaged:
        assert list(damaged.state.pending) == [(1, 0)]
        model = FakeModel([say("done")])
        loop(damaged, workspace, model, tool).run("go on")

        assert tool.ran == []
        assert [s.action for s in damaged.state.settled] == ["refuse"]
        assert len(model.requests) == 1


def test_the_environment_of_a_call_is_what_the_caller_allows(session: Session, workspace: Path) -> None:
    seen: list[Mapping[str, str]] = []

    class Env(Act):
        def run(self, arguments: Mapping[str, Any], context: CallContext, plan: FileChange | None) -> str:
            seen.append(context.env)
            return "ok"

    loop(
        session, workspace, FakeModel([say("", act("a")), say("done")]), Env(EffectClass.READS),
        call_environment=lambda tag: {"ENDSTATE_CALL": tag},
    ).run("do it")  # fmt: skip

    assert seen == [{"ENDSTATE_CALL": f"{session.id}/1/1.0"}]
    assert os.environ.get("ENDSTATE_CALL") is None
    assert time.time() > 0


def test_settlements_are_recorded_with_their_reason_once_per_attempt(session: Session, workspace: Path) -> None:
    tool = Act(EffectClass.READS)
    a_dead_attempt(session, act("a"), act("b"), tools=(tool,))
    mark_started(session, 0, EffectClass.READS)

    result = loop(session, workspace, FakeModel([say("done")]), tool).resume()

    assert [(s.index, s.action, s.reason) for s in result.settlements] == [
        (0, "run", "it only reads"),
        (1, "run", "no start of it is on record"),
    ]
    assert all(isinstance(s, Settled) for s in result.settlements)


def test_the_calls_of_a_refused_reply_never_run(session: Session, workspace: Path) -> None:
    for stop in ("refusal", "brand_new"):
        tool = Act(EffectClass.READS)
        result = loop(session, workspace, FakeModel([say("", act("a"), stop_reason=stop)]), tool).run("do it")

        assert result.conclusion == "stopped"
        assert tool.ran == []
        assert session.state.finished[session.state.steps, 0].status == "not_run"


def test_a_prompt_is_kept_by_an_attempt_that_dies_before_it_is_added(session: Session, workspace: Path) -> None:
    """From the moment a run says how to resume it, there is something to resume."""
    tool = Act(EffectClass.READS)
    killed = loop(session, workspace, FakeModel([]), tool)
    killed._freeze_or_compare()
    session.append(killed._attempt_record((), ("p1", "first")))
    session.append(killed._attempt_record((), ("p2", "second")))

    model = FakeModel([say("done")])
    assert loop(session, workspace, model, tool).resume().succeeded

    assert [b["text"] for b in model.requests[0].messages[0].blocks] == ["first", "second"]
    assert [p.id for p in session.state.prompts] == ["p1", "p2"]


def test_a_second_prompt_that_was_lost_in_settling_makes_a_finished_session_unfinished(
    session: Session, workspace: Path
) -> None:
    tool = Act(EffectClass.READS)
    loop(session, workspace, FakeModel([say("one")]), tool).run("first")
    session.append(loop(session, workspace, FakeModel([]), tool)._attempt_record((), ("p2", "second")))

    result = loop(session, workspace, FakeModel([say("two")]), tool).resume()

    assert (result.final_message, [p.task for p in session.state.prompts]) == ("two", [1, 2])


CANARY = "canary/0123456789+abcdef"
KNOWN = Secrets({"DEPLOY_TOKEN": CANARY})


def kept(session: Session) -> str:
    """All that is on disk of the session."""
    files = session.path.parent.glob(f"{session.path.name}*")
    return "".join(file.read_bytes().decode("utf-8", "replace") for file in files)


@pytest.mark.parametrize(
    "value",
    [
        CANARY,
        base64.b64encode(CANARY.encode()).decode(),
        {"deep": [1, {"er": f"x{CANARY}"}]},
        {CANARY: 1},
        [CANARY[::-1]],
    ],
    ids=["raw", "base64", "nested", "key", "reversed"],
)
def test_a_call_that_was_given_a_secret_is_not_run_and_not_recorded(
    session: Session, workspace: Path, value: Any
) -> None:
    tool = Act(EffectClass.IDEMPOTENT)
    model = FakeModel([say("", ("act", {"what": value}), act("harmless")), say("done")])
    assert loop(session, workspace, model, tool, secrets=KNOWN).run("do it").succeeded
    assert tool.ran == ["harmless"]
    refused = session.state.finished[1, 0]
    assert refused.status == "denied"
    assert "`what` holds the value of DEPLOY_TOKEN" in refused.content
    assert KNOWN.contains(kept(session)) == []


def test_what_the_model_says_is_recorded_without_secrets(session: Session, workspace: Path) -> None:
    model = FakeModel([say(f"It is {CANARY}.", act("a")), say(f"The token was {CANARY}!")])
    result = loop(session, workspace, model, Act(EffectClass.READS), secrets=KNOWN).run(f"Do not tell {CANARY}")
    assert result.final_message == "The token was [redacted: DEPLOY_TOKEN]!"
    assert KNOWN.contains(kept(session)) == []
    assert KNOWN.contains(str(model.requests[1].messages)) == []


@pytest.mark.parametrize("leaks", [False, True])
def test_thinking_is_kept_to_the_byte_or_not_at_all(session: Session, workspace: Path, leaks: bool) -> None:
    thinking = {"type": "thinking", "thinking": f"hm {CANARY if leaks else 'a'}\u00a0 ", "signature": "c2ln"}
    sealed = {"type": "redacted_thinking", "data": "b3BhcXVl"}
    text, call = (
        {"type": "text", "text": "ghp_" + "a" * 36},
        {"type": "tool_use", "id": "c", "name": "act", "input": {"what": "a"}},
    )
    model = FakeModel([say(blocks=(thinking, sealed, text, call), stop_reason="tool_use"), say("done")])
    loop(session, workspace, model, Act(EffectClass.READS), secrets=KNOWN).run("do it")
    assert session.state.replies[0].blocks == ((text, call) if leaks else (thinking, sealed, text, call))
    assert KNOWN.contains(kept(session)) == []


def test_a_reply_that_is_sent_again_is_known_without_its_secret(session: Session, workspace: Path) -> None:
    tool = Act(EffectClass.READS)
    twice = say(f"It is {CANARY}.", act("a"), message_id="m1")
    result = loop(session, workspace, FakeModel([twice, twice, say("done")]), tool, secrets=KNOWN).run("do it")
    assert (result.succeeded, tool.ran) == (True, ["a"])


def test_an_interruption_while_the_policy_looks_loses_the_reply_and_not_its_price(
    session: Session, workspace: Path
) -> None:
    interrupts = Interrupts()
    rules = parse_config("policy: {default: allow, rules: [{tool: '*', match: '^(a+)+$', decision: deny}]}", "test")
    model = FakeModel([say("", act("a" * 60 + "!"))])
    agent = loop(
        session, workspace, model, Act(EffectClass.READS), policy=Policy.from_config(rules), interrupts=interrupts
    )
    # From another process: a thread of ours would get its turn only when the search has ended.
    argv = [sys.executable, "-c", f"import os, time; time.sleep(1); os.kill({os.getpid()}, {signal.SIGTERM:d})"]
    with interrupts.caught(), subprocess.Popen(argv), pytest.raises(Interrupted):
        agent.run("do it")
    assert (session.state.steps, [s.usage for s in session.state.spent]) == (0, [Usage(100, 10)])


@pytest.mark.parametrize("failure", [Interrupted("SIGTERM"), TimeIsUp(), DiskFull("no room for the snapshot")])
@pytest.mark.parametrize("leaves", [True, False])
def test_an_outcome_is_recorded_though_what_the_call_left_could_not_be_looked_at(
    session: Session, workspace: Path, failure: Exception, leaves: bool
) -> None:
    """It is true on this machine; nothing of it leaves it before somebody has looked."""

    class Blind(Observer):
        def now(self, *, doubtful: bool = False) -> Seen:
            if tool.ran and session.state.unseen is None and (1, 0) not in session.state.finished:
                raise failure
            return super().now(doubtful=doubtful)

    def build(what: str) -> str:
        if leaves:
            (workspace / "made").write_text(what)
        return "built"

    tool = Act(EffectClass.IDEMPOTENT, build)
    with suppress(Interrupted, StateError):
        loop(session, workspace, FakeModel([say("", act("a"))]), tool, observer=Blind(workspace)).run("do it")
    assert session.state.finished[1, 0].content == "built"
    recorded = session.state.records
    assert session.state.unseen == session.state.shippable < recorded

    shown = FakeModel([say("done")])
    assert loop(session, workspace, shown, tool, observer=Blind(workspace)).resume().succeeded
    assert session.state.shippable == session.state.records
    assert tool.ran == ["a"]
    notes = [told.text for told in session.state.told if isinstance(told, Note)]
    assert ["by an interrupted call or by somebody else" in note for note in notes] == [True] * leaves


def test_a_re_run_is_given_the_very_moment_of_the_first_start(session: Session, workspace: Path) -> None:
    """Else a commit that is made again a moment before or after a full second has another id."""
    given: list[float] = []

    class Moment(Act):
        def run(self, arguments: Mapping[str, Any], context: CallContext, plan: FileChange | None) -> str:
            given.append(context.started_at)
            if len(given) == 1:
                raise ProviderUnavailable("died here")  # without an outcome
            return "ok"

    ticks = iter(range(1000, 9000))
    clock = lambda: float(next(ticks))  # noqa: E731
    tool = Moment(EffectClass.READS)
    with pytest.raises(ProviderUnavailable):
        loop(session, workspace, FakeModel([say("", act("a"))]), tool, clock=clock).run("do it")
    loop(session, workspace, FakeModel([say("done")]), tool, clock=clock).resume()

    assert given[0] == given[1] == session.state.started[1, 0][0].at
