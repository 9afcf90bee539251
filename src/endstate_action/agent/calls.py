"""Running and settling calls: look, decide, record, act, record. One call at a time, in order.

Every call of the session passes through `Calls.settle`, the ones just requested as well as the ones
that a dead attempt left without an outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from endstate_action.agent.observe import Observer, PutBack
from endstate_action.agent.settle import Action, Content, Found, Pending, Settlement, answer, decide, rolled_back
from endstate_action.agent.shipping import KeptHere, Shipping
from endstate_action.agent.tools.base import (
    CallContext,
    FileChange,
    Probed,
    Tool,
    ToolError,
    check_arguments,
)
from endstate_action.effects import EffectClass, Probe, content_digest, idempotency_key
from endstate_action.errors import EndstateError, Interrupted, StateError
from endstate_action.messages import in_part, is_blank, scrub
from endstate_action.state.fold import Requested
from endstate_action.state.records import (
    Finished,
    Observed,
    Record,
    RollBackBegun,
    RolledBack,
    Settled,
    Started,
    StartEnded,
    Status,
    Unseen,
)
from endstate_action.state.session import Session
from endstate_action.system.files import Workspace
from endstate_action.system.redaction import Secrets
from endstate_action.system.signals import Interrupts, TimeIsUp

_MAY_DO_ANYTHING = (EffectClass.CONTAINED, EffectClass.NETWORKED, EffectClass.OPAQUE)

MAX_RESULT_BYTES = 100_000
"""A result longer than this is kept as head and tail, whatever the tool returned."""


@dataclass(frozen=True, slots=True)
class CallEnded:
    """Event: a call has an outcome. `settled` tells how a resume decided it, where one did."""

    step: int
    index: int
    name: str
    arguments: Mapping[str, object]
    status: Status
    elapsed_s: float
    settled: Settlement | None
    content: str = ""
    """What the model is told."""


@dataclass(slots=True)
class Calls:
    """Everything that a call needs, for one attempt.

    `guard` confirms that lock and database are still ours; it runs before every start. `time_left_s`
    tells how long this attempt may still take.
    """

    session: Session
    tools: Mapping[str, Tool]
    workspace: Workspace
    epoch: int
    observer: Observer
    clock: Callable[[], float]
    time_left_s: Callable[[], float]
    guard: Callable[[], None] = lambda: None
    secrets: Secrets = field(default_factory=lambda: Secrets({}))
    call_environment: Callable[[str], Mapping[str, str]] = lambda tag: {}
    emit: Callable[[CallEnded | PutBack], None] = lambda event: None
    interrupts: Interrupts = field(default_factory=Interrupts)
    shipping: Shipping = field(default_factory=KeptHere)

    def settle(self) -> None:
        """Give every pending call an outcome, in the order they were asked for."""
        for asked in tuple(self.session.state.pending.values()):
            self.interrupts.check()
            if self.time_left_s() <= 0:
                raise TimeIsUp
            settlement = decide(self._pending(asked), self._look(asked))
            left_over = self._is_left_over(asked)
            if settlement.rolls_back:
                settlement = rolled_back(settlement, self._roll_back(asked))
            if left_over:
                self._record_settlement(asked, settlement)
            self._apply(asked, settlement, settlement if left_over else None)

    def _apply(self, asked: Requested, settlement: Settlement, settled: Settlement | None) -> None:
        match settlement.action:
            case Action.RUN | Action.ROLL_BACK_AND_RUN:
                self._run(asked, settled)
            case Action.ADOPT:
                found = self._probe(asked).outcome if self._recorded_effect(asked) is EffectClass.KEYED else ""
                text = found or answer(settlement, asked.call.name)
                self._finish(asked, "ok", text, 0.0, settled, wrote=EffectClass.KEYED)
            case _:
                self._finish(asked, settlement.status, answer(settlement, asked.call.name), 0.0, settled)

    def _run(self, asked: Requested, settled: Settlement | None) -> None:
        tool = self.tools[asked.call.name]
        context = self._context(asked)
        try:
            check_arguments(tool.parameters, asked.call.arguments)
            change = tool.plan(asked.call.arguments, context)
        except ToolError as error:
            self._finish(asked, "error", str(error), 0.0, settled)
            return
        self.guard()
        self.interrupts.check()
        # What a command does cannot be planned, so what is there before it is looked at once more.
        before = self._observed(asked.step) if tool.effect in _MAY_DO_ANYTHING else ()
        self.session.append(*before, self._started(asked, tool, context, change, before))
        held = self._held(asked, tool)
        if held is not None:
            self._finish(asked, "not_run", f"Not run: {held}.", 0.0, settled)
            return
        began = self.clock()
        status, text = self._act(asked, tool, context, change)
        self._finish(asked, status, text, self.clock() - began, settled, wrote=tool.effect)

    def _held(self, asked: Requested, tool: Tool) -> str | None:
        """Why the call, whose start is on record, must not run after all; None once it may."""
        try:
            if tool.effect.is_outside:
                return self.shipping.barrier()
            # What killed one runner may kill the next: its starts are counted off the machine too.
            if self.epoch > 1 and tool.effect is EffectClass.CONTAINED:
                return self.shipping.start()
        except (Interrupted, TimeIsUp):
            # It has not run, and whoever resumes need not wonder.
            self._finish(asked, "not_run", "Not run: the run was interrupted before it began. Ask again.", 0.0, None)
            raise
        return None

    def _roll_back(self, asked: Requested) -> tuple[str, ...]:
        """Make an interrupted call never have happened; what it left is kept as a snapshot.

        Returns what has changed since and could not be put back.
        """
        root = self._started_last(asked).root or ""
        self.guard()
        cut = self.session.state.cut_roll_back(asked.place)

        def begin(kept: str, refs: Mapping[str, str]) -> None:
            # Killed from here on, the next attempt still names what is replaced.
            self.session.append(RollBackBegun(asked.step, asked.index, self.epoch, kept, refs, self.clock()))

        put_back = self.observer.roll_back(root, begin)
        if cut is not None and cut.kept != put_back.restored.kept:
            earlier = self.observer.put_back(cut, put_back.restored)
            if earlier is not None and put_back.restored.kept is not None:
                self.emit(replace(earlier, restored=replace(earlier.restored, reasons=())))
            put_back = earlier if earlier is not None and put_back.restored.kept is None else put_back
        restored = put_back.restored
        record = RolledBack(
            asked.step,
            asked.index,
            self.epoch,
            root,
            restored.kept,
            restored.exact,
            restored.reasons,
            self.clock(),
        )
        self.session.append(record, *self._observed(asked.step))
        self.emit(put_back)
        return restored.left

    def _act(self, asked: Requested, tool: Tool, context: CallContext, change: FileChange | None) -> tuple[Status, str]:
        try:
            return "ok", tool.run(asked.call.arguments, context, change)
        except ToolError as error:
            return "error", str(error)
        except (Interrupted, TimeIsUp) as error:
            cause = "max-minutes" if isinstance(error, TimeIsUp) else str(error)
            self.session.append(StartEnded(asked.step, asked.index, self.epoch, cause))
            raise
        except EndstateError:
            raise
        except Exception as error:  # noqa: BLE001  a defect in a tool is an outcome of its call, not the end of the run
            return "error", f"The tool {tool.name} failed: {type(error).__name__}: {error}"

    def _started(
        self,
        asked: Requested,
        tool: Tool,
        context: CallContext,
        change: FileChange | None,
        observed: Sequence[Observed],
    ) -> Started:
        path, before, after = (change.path, change.before, change.after) if change else (None, None, None)
        newest = observed[-1] if observed else self.session.state.observed
        # The first start has the very moment that the call was given: a re-run is given the recorded one, and what is
        # made with it (a commit) must come out the same.
        is_first = asked.place not in self.session.state.started
        at = context.started_at if is_first else self.clock()
        return Started(
            asked.step,
            asked.index,
            asked.call.id,
            tool.effect,
            self.epoch,
            at,
            context.tag,
            path,
            before,
            after,
            tool.runs_in,
            newest.root if newest else None,
        )

    def _finish(
        self,
        asked: Requested,
        status: Status,
        text: str,
        elapsed_s: float,
        settled: Settlement | None,
        *,
        wrote: EffectClass = EffectClass.READS,
    ) -> None:
        content = in_part(self.secrets.redact(scrub(text)), MAX_RESULT_BYTES)
        if is_blank(content):
            content = "(no output)"
        outcome = Finished(
            asked.step, asked.index, asked.call.id, status, content, self.epoch, self.clock(), round(elapsed_s, 3)
        )
        records: list[Record] = [outcome]
        if wrote is not EffectClass.READS:
            # Where a call took our own state away, there is nothing left to take a snapshot into.
            self.session.check()
            try:
                records += self._observed(asked.step, doubtful=wrote is EffectClass.OPAQUE)
            except (EndstateError, TimeIsUp):
                # It has run, and on this machine what it left behind is looked at by whoever goes on.
                with suppress(StateError):
                    self.session.append(Unseen(asked.step, asked.index, self.epoch), outcome)
                raise
        self.session.append(*records)
        if wrote.is_outside:
            self.shipping.soon()
        else:
            self.shipping.offer()
        took_s, call = round(elapsed_s, 3), asked.call
        self.emit(CallEnded(asked.step, asked.index, call.name, call.arguments, status, took_s, settled, content))

    def _observed(self, step: int, *, doubtful: bool = False) -> Sequence[Observed]:
        seen = self.observer.now(doubtful=doubtful)
        return () if seen.is_recorded(self.session.state) else (seen.recorded(step, self.clock()),)

    def _record_settlement(self, asked: Requested, settlement: Settlement) -> None:
        effect = self._recorded_effect(asked)
        if not self.session.state.is_settled_in(self.epoch, asked.place):
            self.session.append(
                Settled(
                    asked.step,
                    asked.index,
                    asked.call.id,
                    self.epoch,
                    str(settlement.action),
                    settlement.reason,
                    effect,
                    self.clock(),
                )
            )

    def _pending(self, asked: Requested) -> Pending:
        state = self.session.state
        starts = state.started.get(asked.place, [])
        return Pending(
            asked.call.name, asked.denied, asked.void, starts[-1] if starts else None, state.counted_starts(asked.place)
        )

    def _look(self, asked: Requested) -> Found:
        """Look at the world for this call; nothing is changed."""
        state = self.session.state
        tool = self.tools.get(asked.call.name)
        effect = self._recorded_effect(asked)
        return Found(
            missing=None
            if tool
            else f"there is no tool {asked.call.name[:80]!r} here; there are {', '.join(self.tools)}",
            effect=tool.effect if tool else None,
            is_first_attempt=self.epoch == 1,
            content=self._content(asked) if effect is EffectClass.IDEMPOTENT else None,
            probe=self._probe(asked).probe if tool and effect is EffectClass.KEYED and self.epoch > 1 else None,
            can_roll_back=self._can_roll_back(asked),
            sandbox=tool.runs_in if tool else "",
            blocked_by=self._blocked_by(asked),
            is_buried=asked.step < state.steps,
        )

    def _content(self, asked: Requested) -> Content | None:
        starts = self.session.state.started.get(asked.place)
        if not starts or starts[-1].path is None:
            return None
        started, now = starts[-1], self.workspace.digest_or_none(starts[-1].path or "")
        # After before before: a call that changes nothing has been applied either way.
        if now == started.after:
            return Content.AFTER
        return Content.BEFORE if now == started.before else Content.OTHER

    def _probe(self, asked: Requested) -> Probed:
        tool = self.tools[asked.call.name]
        try:
            check_arguments(tool.parameters, asked.call.arguments)
        except ToolError:
            return Probed(Probe.ABSENT)  # what cannot be started was never applied
        try:
            return tool.probe(asked.call.arguments, self._context(asked))
        except ToolError:
            return Probed(Probe.UNKNOWN)

    def _can_roll_back(self, asked: Requested) -> bool:
        starts = self.session.state.started.get(asked.place)
        return starts is not None and self.observer.can_roll_back(starts[-1].root)

    def _started_last(self, asked: Requested) -> Started:
        return self.session.state.started[asked.place][-1]

    def _blocked_by(self, asked: Requested) -> str | None:
        """The call of the same batch that was refused, in this attempt or an earlier one."""
        state = self.session.state
        for index in range(asked.index):
            outcome = state.finished.get((asked.step, index))
            if outcome is not None and outcome.status == "refused":
                return f"call {index + 1} ({state.requested[asked.step, index].call.name[:80]})"
        return None

    def _recorded_effect(self, asked: Requested) -> EffectClass | None:
        starts = self.session.state.started.get(asked.place)
        if starts:
            return starts[-1].effect
        tool = self.tools.get(asked.call.name)
        return tool.effect if tool else None

    def _is_left_over(self, asked: Requested) -> bool:
        """Whether an earlier attempt asked for this call, so that its outcome has to be settled."""
        return self.session.state.replies[asked.step - 1].epoch < self.epoch

    def _context(self, asked: Requested) -> CallContext:
        starts = self.session.state.started.get(asked.place)
        tag = f"{self.session.id}/{self.epoch}/{asked.step}.{asked.index}"
        return CallContext(
            self.workspace,
            idempotency_key(self.session.id, asked.step, asked.index),
            content_digest(asked.call.name, asked.call.arguments),
            starts[0].at if starts else self.clock(),
            tag,
            self.call_environment(tag),
            self.time_left_s(),
            self.interrupts.check,
            self.secrets,
            self.interrupts.allowed,
        )
