"""The loop: settle what is pending, ask the model, record its reply, run its calls, repeat.

Whatever is in memory is a fold of the journal, so an attempt can die at any point and the next one
finds, by reading, exactly where it was. The two ways to go on are `run(prompt)` and `resume()`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from secrets import token_hex
from typing import Any

from endstate_action.agent.calls import CallEnded, Calls
from endstate_action.agent.confidential import secret_in, without_secrets
from endstate_action.agent.context import (
    TARGET_AFTER_COMPACTION,
    TOKENS_PER_BYTE,
    Budget,
    MalformedHistory,
    check_history,
    compaction,
    history,
    size_bytes,
    tokens_per_byte,
)
from endstate_action.agent.fingerprint import accepted_or_refuse, answering_model_changed
from endstate_action.agent.observe import Observer, PutBack, will_be_undone
from endstate_action.agent.policy import Policy
from endstate_action.agent.providers.base import ContextOverflow, ModelUnknown, Provider, Reply, Request
from endstate_action.agent.shipping import KeptHere, Shipping
from endstate_action.agent.tools.base import Tool
from endstate_action.agent.verdict import Ask, Done, Stop, verdict
from endstate_action.config import ANSWER_TOKENS, Limits
from endstate_action.errors import (
    EndstateError,
    InputError,
    Interrupted,
    Mismatch,
    ProviderUnavailable,
    StateError,
    Superseded,
    UnknownSession,
)
from endstate_action.messages import Message, ToolCall, Usage, dollars, scrub
from endstate_action.state.fold import State
from endstate_action.state.records import (
    Asked,
    Attempt,
    Conclusion,
    Ended,
    Frozen,
    Given,
    Note,
    Prompt,
    Replied,
    Settled,
    Spent,
)
from endstate_action.state.session import Session
from endstate_action.state.totals import may_have_lost, total_cost, total_usage, unpriced_model
from endstate_action.system.files import Workspace
from endstate_action.system.redaction import Secrets
from endstate_action.system.signals import Interrupts, TimeIsUp
from endstate_action.system.tree import Scan, scan

DEFAULT_SYSTEM = (
    "You work on the repository in the current directory, with the tools you are given. "
    "Paths are relative to its root. Make the changes that are asked for, check them, and finish with a "
    "short account of what you did. Your work may be interrupted and resumed: a tool result may say "
    "that an outcome is unknown after an interruption; look at the actual state before you go on."
)
REPEATS_OF_A_REPLY = 2
FINISHED_BEFORE = "finished before"
COMPACTIONS_PER_REQUEST = 3

Price = Callable[[str, Usage], Decimal | None]


@dataclass(frozen=True, slots=True)
class Setup:
    """What a new session is to be frozen with. On resume, `None` and defaults mean: as it was."""

    model: str | None = None
    system: str = DEFAULT_SYSTEM
    config: Mapping[str, Any] = field(default_factory=dict)
    context: Budget = Budget()
    max_output_tokens: int = ANSWER_TOKENS
    on_mismatch: str = "refuse"
    """`refuse` or `continue`; starting over is the caller's business, since it needs a new session."""


@dataclass(frozen=True, slots=True)
class StepEnded:
    """Event: a reply was recorded. `cost_usd` is the task's total, None where a price is unknown."""

    step: int
    text: str
    calls: int
    cost_usd: Decimal | None


@dataclass(frozen=True, slots=True)
class AttemptBegan:
    """Event: the attempt is recorded; nothing has run yet."""

    session: str
    epoch: int
    resumed: bool
    pending: int
    may_have_lost: bool = False
    """Whether what is spent may be more than what is on record."""


@dataclass(frozen=True, slots=True)
class Told:
    """Event: the model is told something that a person should know too."""

    text: str


Event = CallEnded | StepEnded | AttemptBegan | Told | PutBack


@dataclass(frozen=True, slots=True)
class RunResult:
    """What came of `run` or `resume`. Figures are the task's, over all its attempts."""

    session: str
    conclusion: Conclusion
    reason: str
    final_message: str
    attempt: int
    steps: int
    usage: Usage
    cost_usd: Decimal | None
    settlements: tuple[Settled, ...]
    refused_calls: int
    ended_tree_hash: str | None
    """The workspace's tree hash as it was recorded when the task ended; `tree_hash()` is of now."""
    workspace: Path
    excluded: tuple[str, ...]

    @property
    def succeeded(self) -> bool:
        return self.conclusion == "success"

    def tree_hash(self, check: Callable[[], None] = lambda: None) -> str:
        """Hash of the workspace as it is now; ignores what is excluded, exactly at the root. `check` as in `scan`."""
        return self.look(check).tree_hash

    def look(self, check: Callable[[], None] = lambda: None) -> Scan:
        """The workspace as it is now, for its `tree_hash` and for what that does not cover."""
        return scan(self.workspace, [name.encode() for name in self.excluded], check=check)


class _OverBudget(Exception):
    """Replies that were thrown away have used up what may be spent."""


class AgentLoop:
    """One agent on one session.

    Args:
        session: from a `SessionStore`; begun or resumed here.
        provider: the model to ask.
        tools: what the agent may do; each tool's contract is frozen with the session.
        workspace: the directory the agent works in.
        setup: what a new session is frozen with.
        policy: which calls are allowed; the given tools are all allowed when left out.
        limits: what may be spent, added up over the attempts of a task.
        price: cost of a reply, None where unknown.
        observer: sees the workspace; one that scans it is made when left out.
        guard: confirms that nobody else can be writing here; run before every start.
        secrets: what must neither be recorded nor leave; when left out, only what looks like a token is redacted.
        call_environment: from a call's tag to the environment that its processes see.
        leftovers: ends processes that a dead attempt left running; raises `OutcomeUnknown` if it cannot.
        shipping: carries checkpoints off the machine; nothing leaves it when left out.
        epoch: the number claimed for the coming attempt; the next of the session when left out.
        effects_before: effects outside that were started and that the session does not know of.
        given: for the record of the attempt.
        kept, trust: of the checkout that the session was restored in; recorded with the attempt.
        emit: told of each event; must not raise.
    """

    def __init__(
        self,
        session: Session,
        provider: Provider,
        tools: Iterable[Tool],
        *,
        workspace: Path | Workspace,
        setup: Setup | None = None,
        policy: Policy | None = None,
        limits: Limits | None = None,
        price: Price = lambda model, usage: None,
        observer: Observer | None = None,
        guard: Callable[[], None] = lambda: None,
        secrets: Secrets | None = None,
        call_environment: Callable[[str], Mapping[str, str]] = lambda tag: {},
        leftovers: Callable[[], None] = lambda: None,
        shipping: Shipping | None = None,
        epoch: int | None = None,
        effects_before: int = 0,
        given: Given | None = None,
        kept: str | None = None,
        trust: str | None = None,
        emit: Callable[[Event], None] = lambda event: None,
        interrupts: Interrupts | None = None,
        clock: Callable[[], float] = time.time,
        version: str = "",
        process: Mapping[str, Any] | None = None,
    ) -> None:
        self._session = session
        self._provider = provider
        self._tools = {tool.name: tool for tool in tools}
        self._workspace = workspace if isinstance(workspace, Workspace) else Workspace(workspace)
        self._setup = setup or Setup()
        self._policy = policy or Policy.allowing_all()
        self._limits = limits or Limits()
        self._price = price
        self._observer = observer or Observer(self._workspace.root)
        self._guard = guard
        self._secrets = secrets or Secrets({})
        self._leftovers = leftovers
        self._shipping = shipping or KeptHere()
        self._epoch = epoch
        self._effects_before = effects_before
        self._given = given
        self._kept = kept
        self._trust = trust
        self._call_environment = call_environment
        self._emit = emit
        self._interrupts = interrupts or Interrupts()
        self._clock = clock
        self._version = version
        self._process = process or {}
        self._deadline = float("inf")

    def run(self, prompt: str, *, prompt_id: str | None = None) -> RunResult:
        """Settle what is pending, then add the prompt, then work until the task ends.

        A prompt whose id the session already has is not added again: the run finishes what it began.

        Raises:
            Interrupted, ProviderUnavailable: a later `resume` goes on.
            Mismatch: the session was begun under another contract.
            StateError: a record could not be written; nothing ran after it.
        """
        if prompt_id is not None and self._state.knows_prompt(prompt_id):
            return self.resume()
        return self._attempt((prompt_id or token_hex(8), self._secrets.hide(scrub(prompt))))

    def resume(self) -> RunResult:
        """Finish what the session began, without a new instruction. A finished session is only reported.

        Raises:
            UnknownSession: the session has no prompt yet.
            As `run`.
        """
        if not self._state.was_asked:
            raise UnknownSession(
                f"Session {self._session.id} was never given a prompt, so there is nothing to resume.",
                hint="Give one: `endstate run --resume PROMPT`.",
            )
        if self._state.is_finished:
            return self._result("success", FINISHED_BEFORE)
        return self._attempt(None)

    @property
    def _state(self) -> State:
        return self._session.state

    def _attempt(self, asked: Asked | None) -> RunResult:
        accepted = self._freeze_or_compare()
        resumed = self._state.epoch > 0
        self._deadline = self._clock() + self._limits.max_minutes * 60
        self._session.append(self._attempt_record(accepted, asked))
        state = self._state
        self._emit(AttemptBegan(self._session.id, state.epoch, resumed, len(state.pending), may_have_lost(state)))
        try:
            return self._conclude(*self._work())
        except TimeIsUp:
            return self._conclude(
                "stopped", f"max-minutes: the {self._limits.max_minutes:g} min of this attempt are over"
            )
        except Mismatch:
            self._end("mismatch", "another contract than the session's")
            raise
        except ProviderUnavailable:
            self._end("interrupted", "the provider could not be reached")
            raise
        except Interrupted as error:
            self._end("interrupted", str(error))
            raise
        except StateError as error:
            self._fail(str(error))
            raise
        except Superseded:
            self._end("superseded", "a newer attempt has taken over")
            raise
        except EndstateError as error:
            self._end("failed", str(error))
            raise
        except Exception as error:
            self._fail(f"internal error: {type(error).__name__}")
            raise

    def _work(self) -> tuple[Conclusion, str]:
        calls = self._calls()
        stop = self._too_many_resumes() or self._unpriced_calls()
        if stop is not None:
            return "stopped", stop
        self._leftovers()
        self._notice_changes()
        self._shipping.begin()
        calls.settle()
        for prompt_id, text in self._state.waiting_prompts:
            self._add_prompt(prompt_id, text)
        return self._drive(calls)

    def _drive(self, calls: Calls) -> tuple[Conclusion, str]:
        while True:
            if (stop := self._unpriced_calls()) is not None:
                return "stopped", stop
            calls.settle()
            match verdict(self._state):
                case Done():
                    return "success", ""
                case Stop(reason):
                    return "stopped", reason
                case Ask():
                    pass
            stop = self._over_budget()
            if stop is not None:
                return "stopped", stop
            self._shipping.look()
            try:
                reply = self._ask()
            except _OverBudget as error:
                return "stopped", str(error)
            if reply is None:
                return "stopped", "history too long: it cannot be made short enough for a request"
            self._record(reply)

    # Asking

    def _ask(self) -> Reply | None:
        """One complete reply, or None where even the most compacted history is too long."""
        repeats = 0
        for _ in range(COMPACTIONS_PER_REQUEST + REPEATS_OF_A_REPLY + 1):
            request = self._request()
            if request is None:
                return None
            try:
                with self._interrupts.allowed():
                    reply = self._provider.reply(request, self._on_discard_while_asking)
            except ContextOverflow:
                if not self._compact(size_bytes(request.messages, request.system, request.tools)):
                    return None
                continue
            except ModelUnknown as error:
                raise self._model_gone(str(error)) from error
            if not self._is_repeat(reply):
                return reply
            self._on_discard(reply.usage, "the provider sent the previous reply again")
            repeats += 1
            if repeats > REPEATS_OF_A_REPLY:
                raise ProviderUnavailable(
                    f"The provider sent reply {reply.message_id} {repeats + 1} times instead of a new one. "
                    "Its calls were run once.",
                    hint="`endstate run --resume` asks again.",
                )
        return None

    def _request(self) -> Request | None:
        frozen = self._frozen()
        for _ in range(COMPACTIONS_PER_REQUEST):
            messages = history(self._state)
            size = size_bytes(messages, frozen.system, frozen.tools)
            # What fits at any ratio needs none: to find it, the last request is made once more.
            if size <= self._room_bytes(frozen, max(TOKENS_PER_BYTE)):
                break
            room = self._room_bytes(frozen, tokens_per_byte(self._state, frozen.system, frozen.tools))
            if size <= room:
                break
            if not self._compact(room):
                return None
        else:
            return None
        check_history(messages)
        return Request(
            self._model(), frozen.system, frozen.tools, messages, frozen.max_output_tokens, self._state.steps
        )

    def _room_bytes(self, frozen: Frozen, ratio: float) -> int:
        """How many bytes of request fit at so many tokens a byte, the reply's reserve taken off."""
        budget = self._setup.context
        tokens = max(1000, budget.max_tokens - frozen.max_output_tokens)
        return min(budget.max_bytes, int(tokens / ratio))

    def _compact(self, room_bytes: int) -> bool:
        frozen = self._frozen()
        overhead = size_bytes((), frozen.system, frozen.tools)
        cut = compaction(self._state, room_bytes * TARGET_AFTER_COMPACTION, overhead)
        if cut is not None:
            self._session.append(cut)
        return cut is not None

    def _is_repeat(self, reply: Reply) -> bool:
        """A transport that repeats a reply must not make its calls run twice."""
        if not self._state.replies:
            return False
        last = self._state.replies[-1]
        blocks = without_secrets(reply.blocks, self._secrets)
        return bool(reply.message_id) and (last.message_id, last.blocks) == (reply.message_id, blocks)

    def _record(self, reply: Reply) -> None:
        denied = self._denied(reply)
        message = Message("assistant", without_secrets(reply.blocks, self._secrets))
        cost = self._price(reply.model, reply.usage)
        record = Replied(
            self._state.steps + 1,
            reply.message_id,
            reply.model,
            message.blocks,
            reply.stop_reason,
            reply.usage,
            None if cost is None else str(cost),
            self._clock(),
            self._state.epoch,
            reply.cut,
            denied or None,
        )
        self._session.append(record)
        self._shipping.offer()
        self._emit(StepEnded(record.step, message.text, len(message.tool_calls), self._cost()))
        self._refuse_other_model()

    def _denied(self, reply: Reply) -> dict[int, str]:
        """The calls that must not run, by their place in the reply, with the reason.

        A rule's pattern can take for ever, so this can be interrupted; the reply is then lost, and its price told.
        """
        try:
            with self._interrupts.allowed():
                reasons = [self._denial(call) for call in Message("assistant", reply.blocks).tool_calls]
        except (Interrupted, TimeIsUp):
            self._on_discard(reply.usage, "the run was interrupted while the policy looked at the calls")
            raise
        return {index: reason for index, reason in enumerate(reasons) if reason is not None}

    def _denial(self, call: ToolCall) -> str | None:
        secret = secret_in(call, self._secrets)
        if secret is not None or call.name not in self._tools:
            return secret
        decision = self._policy.decide(call.name, call.arguments)
        return None if decision.allowed else decision.reason

    def _on_discard(self, usage: Usage, reason: str) -> None:
        cost = self._price(self._model(), usage)
        shown = None if cost is None else str(cost)
        self._session.append(Spent(self._state.steps + 1, usage, shown, reason[:500], self._clock()))

    def _on_discard_while_asking(self, usage: Usage, reason: str) -> None:
        """The provider asks again by itself, which is not to cost more than is allowed."""
        self._on_discard(usage, reason)
        if (stop := self._over_budget()) is not None:
            raise _OverBudget(stop)

    # Resuming into a changed world

    def _freeze_or_compare(self) -> tuple[str, ...]:
        if self._state.frozen is not None:
            return accepted_or_refuse(
                self._state, self._provider.name, self._setup.model, self._tools, self._setup.on_mismatch
            )
        if self._setup.model is None:
            raise InputError("No model was named for a new session; nothing was run.", hint="Name one with --model.")
        tools = tuple(self._tools.values())
        self._session.append(
            Frozen(
                self._provider.name,
                self._setup.model,
                self._secrets.hide(scrub(self._setup.system)),
                tuple(tool.definition() for tool in tools),
                tuple(tool.contract() for tool in tools),
                dict(self._setup.config),
                self._setup.max_output_tokens,
            )
        )
        return ()

    def _refuse_other_model(self) -> None:
        changed = answering_model_changed(self._state)
        if changed is not None and self._setup.on_mismatch != "continue":
            raise Mismatch(
                f"Another model answered than before ({changed}). None of the calls in its reply was run.",
                differences=(changed,),
                hint="`endstate run --resume --on-mismatch continue` accepts it; `restart` begins a new session.",
            )

    def _model_gone(self, words: str) -> EndstateError:
        if not self._state.replies:
            return InputError(
                f"The provider does not know the model {self._model()!r} ({words}). Nothing was spent.",
                hint="Name another with --model.",
            )
        return Mismatch(
            f"The session's model {self._model()!r} is no longer there ({words}). No further call was run.",
            differences=(f"model: {self._model()} in the session, gone now",),
            hint="`endstate run --resume --model ANOTHER --on-mismatch continue` goes on with another model.",
        )

    def _notice_changes(self) -> None:
        """Tell the model, once, what is not as it was last recorded."""
        if will_be_undone(self._state, self._observer):
            return  # what was changed meanwhile is then kept under the roll-back's name
        seen, last = self._observer.now(), self._state.observed
        if seen.is_recorded(self._state):
            return
        observed = seen.recorded(self._state.steps, self._clock())
        text = self._observer.difference(last, seen, self._in_flight()) if last is not None else None
        if text is None:
            self._session.append(observed)
        else:
            text = self._secrets.redact(text)
            note = Note(f"{seen.tree_hash}/{seen.head}/{self._state.epoch}", text, self._state.steps)
            self._session.append(note, observed)
            # What an interrupted command of ours did is no news to who resumes it.
            if None not in self._in_flight():
                self._emit(Told(text.strip("[]")))

    def _in_flight(self) -> tuple[str | None, ...]:
        """Paths that pending calls may have changed; None stands for one that may have changed anything."""
        started = (self._state.started.get(place) for place in self._state.pending)
        paths = [starts[-1].path for starts in started if starts]
        return (*paths, None) if self._state.unseen is not None else tuple(paths)

    # Budgets

    def _over_budget(self) -> str | None:
        limits = self._limits
        steps = self._state.steps - self._state.first_step_of_task()
        if steps >= limits.max_steps:
            return f"max-steps: {steps} of {limits.max_steps} steps are used"
        if (stop := self._unpriced()) is not None:
            return stop
        cost = self._cost()
        if limits.max_cost_usd is not None and cost is not None and cost >= limits.max_cost_usd:
            return f"max-cost-usd: {dollars(cost)} of {dollars(limits.max_cost_usd)} is spent"
        if self._clock() >= self._deadline:
            raise TimeIsUp
        return None

    def _unpriced_calls(self) -> str | None:
        """Why no call of the last reply may run; None where it asks for none, since a final answer costs no more."""
        return self._unpriced() if self._state.pending else None

    def _unpriced(self) -> str | None:
        """Why the cost limit cannot be kept that somebody set; that the default one cannot is only told."""
        if not self._limits.cost_is_set_by_user or self._cost() is not None:
            return None
        model = unpriced_model(self._state) or self._model()
        return f"price unknown: {model[:80]!r} answered, whose price is not known, so max-cost-usd cannot be kept"

    def _too_many_resumes(self) -> str | None:
        """Attempts of this task that were killed before they finished a step; a crash loop has to end."""
        state = self._state
        first = state.first_step_of_task()
        moved = {r.epoch for r in state.replies[first:]} | {e.epoch for e in state.ended}
        begun_before = {e.epoch for e in state.ended if e.task < state.task}
        earlier = max(begun_before, default=0)
        # By number and not by record: what died before it left its machine is counted too.
        begun = range(max(earlier + 1, state.attempts[0].epoch), state.epoch)
        lost = [epoch for epoch in begun if epoch not in moved]
        if len(lost) > self._limits.max_resumes:
            return f"max-resumes: {len(lost)} attempts were killed before they finished a step"
        return None

    def _cost(self) -> Decimal | None:
        return total_cost(self._state)

    # Ending

    def _conclude(self, conclusion: Conclusion, reason: str) -> RunResult:
        self._end(conclusion, reason)
        return self._result(conclusion, reason)

    def _end(self, conclusion: Conclusion, reason: str) -> None:
        tree_hash = None
        with suppress(Interrupted, TimeIsUp):  # what takes for ever to be read does not keep the end from being told
            tree_hash = self._observer.now().tree_hash
        self._session.append(Ended(self._state.epoch, self._state.task, conclusion, reason, self._clock(), tree_hash))

    def _fail(self, why: str) -> None:
        """On record where records are still ours to write; the workspace is not looked at, which may be what failed."""
        with suppress(Exception):
            self._guard_both()
            self._session.append(Ended(self._state.epoch, self._state.task, "failed", why[:500], self._clock()))

    def _result(self, conclusion: Conclusion, reason: str) -> RunResult:
        state = self._state
        first = state.first_step_of_task()
        replies = state.replies[first:]
        return RunResult(
            state.begun.session,
            conclusion,
            reason,
            replies[-1].message.text if replies and conclusion == "success" else "",
            state.epoch,
            len(replies),
            total_usage(state),
            self._cost(),
            tuple(s for s in state.settled if s.step > first),
            sum(f.status in ("denied", "refused") for (step, _), f in state.finished.items() if step > first),
            state.ended[-1].tree_hash if state.ended else None,
            self._workspace.root,
            self._observer.excluded,
        )

    # Small things

    def _add_prompt(self, prompt_id: str, text: str) -> None:
        state = self._state
        ended = any(e.task == state.task and e.conclusion == "success" for e in state.ended)
        task = state.task if state.prompts and not ended else state.task + 1
        self._session.append(Prompt(prompt_id, text, task, state.steps, self._clock()))

    def _attempt_record(self, accepted: tuple[str, ...], asked: Asked | None = None) -> Attempt:
        limits = self._limits.to_json() | {"on-mismatch": self._setup.on_mismatch}
        return Attempt(
            max(self._epoch or 0, self._state.epoch + 1),
            self._clock(),
            self._version,
            self._process,
            limits,
            self._session.journal_mode,
            self._provider.name,
            self._setup.model or self._model(),
            accepted,
            asked,
            self._kept,
            self._trust,
            self._effects_before,
            self._given,
        )

    def _frozen(self) -> Frozen:
        frozen = self._state.frozen
        if frozen is None:
            raise MalformedHistory("The session was not frozen before its first request; nothing was sent.")
        return frozen

    def _model(self) -> str:
        """The model at hand: the one of the newest attempt, since continuing with another is on record there."""
        return self._state.attempts[-1].model if self._state.attempts else self._frozen().model

    def _calls(self) -> Calls:
        return Calls(
            self._session,
            self._tools,
            self._workspace,
            self._state.epoch,
            self._observer,
            self._clock,
            lambda: self._deadline - self._clock(),
            self._guard_both,
            self._secrets,
            self._call_environment,
            self._emit,
            self._interrupts,
            self._shipping,
        )

    def _guard_both(self) -> None:
        self._guard()
        self._session.check()
