"""One run, as a story: lock → claim → newest state → restore → open the session → settle → drive, shipping → report.

Nothing here prints and nothing reads the process environment: what the run may know comes in, what
it says goes out as values.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from secrets import token_hex
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from endstate_action import __version__
from endstate_action.agent.context import Budget
from endstate_action.agent.fingerprint import refuse_other_provider
from endstate_action.agent.loop import FINISHED_BEFORE, AgentLoop, Event, RunResult, Setup
from endstate_action.agent.observe import (
    NAMED_AT_MOST,
    Observer,
    PutBack,
    changed_since,
    keep_baseline,
    was_killed_before_boot,
    was_killed_in_opaque_call,
    will_be_undone,
)
from endstate_action.agent.policy import Policy
from endstate_action.agent.providers.base import Provider
from endstate_action.agent.providers.prices import DEFAULT_MODEL
from endstate_action.agent.providers.scripted import ScriptedProvider
from endstate_action.agent.tools.base import Tool
from endstate_action.agent.tools.commit import GitCommit
from endstate_action.config import DEFAULT_CONFIG, Config, ProviderName, Settings
from endstate_action.durable import Depot, Line, NoDepot, open_depot
from endstate_action.effects import canonical, digest
from endstate_action.errors import (
    EndstateError,
    InputError,
    Mismatch,
    NewerFormat,
    StateError,
    Superseded,
    UnknownSession,
)
from endstate_action.pricing import Prices
from endstate_action.restoring import (
    Arrived,
    is_half_restored,
    refuse_unfinished,
    unfinished,
    unreadable_checkout,
    was_restored_here,
    why_no_checkout,
)
from endstate_action.rules import Rules
from endstate_action.shipper import LAST_ON_SIGNAL_S, Departed, Shipper, periodic_before
from endstate_action.state.checkpoint.build import Builder
from endstate_action.state.checkpoint.choose import Gap, NoneFound, choose, refusal
from endstate_action.state.checkpoint.manifest import About
from endstate_action.state.directory import StateDirectory, locate, tracked, workspace_at
from endstate_action.state.fold import State
from endstate_action.state.lock import DEFAULT_TIMEOUT_S, StateLock
from endstate_action.state.packer import Packer
from endstate_action.state.session import Session, SessionStore
from endstate_action.state.snapshot import SnapshotStore
from endstate_action.state.snapshot.layout import format_of
from endstate_action.state.stores.base import StoreUnusable
from endstate_action.state.stores.choice import parse_store
from endstate_action.state.totals import as_text, may_have_lost, unrecorded_effects
from endstate_action.state.uploader import NotShipped, Uploader
from endstate_action.successor import Found, Successor, find_session, local_state, session_here
from endstate_action.system import git
from endstate_action.system.files import Workspace
from endstate_action.system.git_call import GitError
from endstate_action.system.git_paths import kind
from endstate_action.system.names import display, few, parse, short
from endstate_action.system.proctable import identity
from endstate_action.system.redaction import Secrets
from endstate_action.system.sandbox import NoSandbox, Sandbox
from endstate_action.system.secrets import call_environment, split_environment
from endstate_action.system.signals import Interrupts
from endstate_action.system.tree import Scan
from endstate_action.workplace import Workplace, describe, reopen

if TYPE_CHECKING:
    from endstate_action.account import Around
    from endstate_action.ci.evidence import Conclusion

SCRIPTED_MODEL = "scripted"
DEFAULT_PROVIDER: ProviderName = "anthropic"
_MOST_TASKS = 10_000
_NAMED = 3


@dataclass(frozen=True, slots=True)
class SandboxChosen:
    """Event: what shell calls run in, as the output says it and in a person's words."""

    sandbox: str
    note: str


@dataclass(frozen=True, slots=True)
class Ports:
    """What a run is given from outside, so that a test can give it something else."""

    environ: Mapping[str, str]
    """The environment as it was when the command began; nothing of it reaches a tool but by the allow-list."""
    provider: Callable[[str, Settings], Provider]
    """From a provider's name to the provider; raises `InputError` where something that it needs is missing."""
    emit: Callable[[Event | SandboxChosen | Departed | Arrived], None] = lambda event: None
    notice: Callable[[str], None] = lambda text: None
    """Told, in a sentence, what a person should know: most of it before the first model call."""
    clock: Callable[[], float] = time.time
    tools: Callable[[list[Tool]], list[Tool]] = lambda tools: tools
    """Changes the tools before they are offered; for tests that kill inside one."""
    newer_attempt: Callable[[], int | None] = lambda: None
    """A second fence: the number of a run attempt after this one, if there is one."""
    more_tools: Callable[[], list[Tool]] = list
    """Those that belong to where the run was asked for; offered where the configuration names them."""
    process: Callable[[], Mapping[str, Any]] = identity
    """Names this process, host and boot included."""
    finish: Callable[[Finishing], Announcement] = lambda finishing: Announcement({})
    """Announces the result."""
    make_sandbox: Callable[[Callable[[], Sandbox | NoSandbox]], Sandbox | NoSandbox] = lambda probe: probe()
    """Tries the sandbox of this machine; may first do something for it."""
    git_extra: Mapping[str, str] = field(default_factory=dict)
    """For git alone, what authorises it to fetch and push."""
    git_token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Choice:
    """Which session: an id or its prefix, or none for the one that a resume would take."""

    session: str | None = None
    lock_timeout_s: float = DEFAULT_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class Report:
    """What a run leaves to say. `outputs` bears the names of the action's outputs."""

    result: RunResult
    outputs: Mapping[str, Any]
    task: int = 1
    """Which of its session's tasks the figures are of, from 1."""
    departed: Departed | None = None
    """What left the machine last; None where there is no store."""
    failed_calls: int = 0
    """Of this task, those that ended with an error."""
    calls_not_run: int = 0
    """Of this task, those that were answered without having been run, denied and refused ones apart."""


def run(settings: Settings, choice: Choice, ports: Ports) -> Report:
    """Begin a session, or go on with one, until its task ends or something stops it.

    Raises:
        EndstateError: with the exit code that tells what stopped it; everything recorded stays.
    """
    try:
        return _run(settings, choice, ports)
    except GitError as error:
        raise _unreadable(error) from error


def _unreadable(error: GitError) -> StateError:
    return StateError(
        f"Git cannot read this repository: {error} Everything recorded so far is kept.",
        hint="`git fsck` tells more. Once it is repaired, `endstate run --resume` goes on with what was begun.",
    )


def as_before(settings: Settings, wanted: str | None) -> Settings:
    """With what the newest attempt of the session here that a resume would take was given, where this one is not.

    Where there is none, as on a fresh machine, they stay as they are.
    """
    with suppress(EndstateError, OSError):
        reopen(Path(os.path.abspath(settings.working_directory)), settings.state_dir)
        workspace = workspace_at(settings.working_directory)
        sessions = SessionStore(locate(workspace, settings.state_dir).sessions)
        session = sessions.find(wanted) if wanted is not None else _newest(sessions, lambda text: None)
        return _as_before(settings, sessions, session)
    return settings


def _as_before(settings: Settings, sessions: SessionStore, session: str) -> Settings:
    attempts = sessions.read(session).attempts
    return settings.on_terms((attempts[-1].given if attempts else None) or {})


def attend(settings: Settings, errand: Errand, ports: Ports) -> Report | AlreadyDelivered:
    """Begin what is asked for, go on with it, or say again what came of it, whichever is due.

    Raises:
        As `run`.
    """
    try:
        with _opened(settings, Choice(), ports) as story:
            return story.attend(errand)
    except GitError as error:
        raise _unreadable(error) from error


def _run(settings: Settings, choice: Choice, ports: Ports) -> Report:
    with _opened(settings, choice, ports) as story:
        return story.resume(choice.session) if settings.resume else story.begin()


@contextmanager
def _opened(settings: Settings, choice: Choice, ports: Ports) -> Iterator[_Story]:
    if settings.resume:
        reopen(Path(os.path.abspath(settings.working_directory)), settings.state_dir)
    workspace = workspace_at(settings.working_directory)
    if git.is_bare(workspace):
        raise InputError(
            f"{short(str(workspace))} is a bare repository: its own files are no place to work among. Nothing was run.",
            hint="Clone it (`git clone`), and run in the clone.",
        )
    choice_of_store = parse_store(settings.store)
    state = locate(workspace, settings.state_dir)
    repository = git.discover(workspace, ports.environ, state.tmp)
    named, broken = repository, None
    if repository is None and settings.resume and os.path.lexists(workspace / ".git"):
        named = git.presume(workspace, ports.environ, state.tmp, "sha1")
    state.confirm()
    if half := is_half_restored(state, workspace):
        repository = repository or git.presume(workspace, ports.environ, state.tmp, format_of(state.path / "objects"))
    try:
        _refuse_foreign_state(state, repository, workspace)
    except GitError as error:
        # What a killed restore left is made whole or refused, whatever git says of it.
        broken = None if half else error
    store = SessionStore(state.sessions)
    depot = open_depot(
        choice_of_store,
        ports.environ,
        workspace,
        state.path / "store",
        named,
        git_token=ports.git_token,
        is_to_be_read=settings.resume,
    )
    if settings.require_durable and isinstance(depot, NoDepot):
        raise _not_durable(depot)
    if settings.resume and isinstance(depot, NoDepot) and settings.store not in ("auto", "none"):
        raise InputError(
            f"The store was not looked at, since {depot.reason}. Nothing was restored and nothing was run.",
            hint=f"{depot.remedy or 'Correct it.'} With `--store none` it goes on with what is on this machine.",
        )
    if settings.resume and isinstance(depot, NoDepot) and not state.sessions.is_dir():
        raise UnknownSession(
            f"There is no session in {state.path}; nothing was run.",
            hint="`endstate run PROMPT` begins one. If checkpoints of it are in a store, name that with --store.",
        )
    state.claim()
    with _locked(state, choice, ports) as lock:
        state.clear()
        yield _Story(settings, ports, workspace, state, store, repository, lock, depot, broken)


@dataclass(frozen=True, slots=True)
class Errand:
    """What a platform asks for: a prompt with its id, in a line of attempts of its own.

    Args:
        session_of: from the number of a task to the id of its session.
        approve: told what the newest session is bound to (None: there is none); returns what a new one is bound to
            besides its commit. Raises where nobody may have this done.
        prompt: id and text; asked for once that is approved.
        resume: `never` begins anew; with `required`, a retry that finds nothing to go on with is an error.
        is_retry: whether an earlier attempt must have been there.
        witness: how many effects outside are known to have been started.
        is_told: whether a result was announced, so that without a store there is nothing to go on with, but to do it
            all again.
        read: a file as the trusted commit has it.
        claimant: stored with the claim; `refuse` is shown that of the attempt before.
    """

    line: Line
    session_of: Callable[[int], str]
    approve: Callable[[Mapping[str, Any] | None], Mapping[str, Any]]
    prompt: Callable[[], tuple[str, str]]
    resume: str = "auto"
    is_retry: bool = False
    witness: int = 0
    is_told: bool = False
    read: Callable[[str], bytes | None] | None = None
    claimant: bytes = b'{"format":1}'
    refuse: Callable[[bytes], None] = lambda other: None


@dataclass(frozen=True, slots=True)
class AlreadyDelivered:
    """The task was finished and delivered before; these are its outputs."""

    outputs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Finishing:
    """An attempt that came to its end, before the session is closed."""

    session: Session
    result: RunResult
    tree_hash: str
    """Of the workspace as the attempt left it."""
    workplace: Workplace
    sandbox: SandboxChosen
    shipper: Shipper | None
    restored: Arrived | None
    secrets: Secrets
    epoch: int
    """The number of this attempt, also where nothing was left to do but to tell."""
    notes: tuple[str, ...] = ()
    """What the tree hash does not cover, as a sentence."""

    def around(self, conclusion: Conclusion) -> Around:
        """What evidence says besides the session: where it ran, and how it ended there."""
        from endstate_action.account import Around  # what a run without evidence need not wait for

        return Around(
            conclusion=conclusion,
            reason=self.result.reason,
            tree_hash=self.tree_hash,
            excluded=(".git", self.workplace.state_name),
            sandbox=self.sandbox.sandbox,
            sandbox_note=self.sandbox.note,
            departed=self.shipper.departed if self.shipper else None,
            restored_hash=self.restored.tree_hash if self.restored else None,
            notes=self.notes,
        )


@dataclass(frozen=True, slots=True)
class Announcement:
    """What announcing came to. `outputs` replace those of the run with the same names."""

    outputs: Mapping[str, Any]
    word: Mapping[str, Any] | None = None
    """Left in the store beside the outputs, for who runs it again; None where something is still to be delivered."""


@dataclass(frozen=True, slots=True)
class _Taken:
    """The number that was claimed for this attempt, and where; nothing where there is no store."""

    successor: Successor | None = None
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class _Story:
    settings: Settings
    ports: Ports
    workspace: Path
    state: StateDirectory
    store: SessionStore
    repository: git.Repository | None
    """What git finds here; once a session is gone on with, that of the session."""
    lock: StateLock
    depot: Depot | NoDepot
    broken: GitError | None = None
    """What git said where it found a repository and could not read it."""
    prompt_id: str | None = None
    read: Callable[[str], bytes | None] | None = None
    """A file as the trusted commit has it; the work tree's when left out."""
    providers: dict[str, Provider] = field(default_factory=dict)
    """Those that were made, by name."""

    def begin(
        self, name: str | None = None, taken: _Taken = _Taken(), bound: Mapping[str, Any] = MappingProxyType({})
    ) -> Report:
        """A new session; one that is unfinished is mentioned, and left as it is.

        Args:
            name: its id, for which `taken` has been claimed; a random one when left out.
            bound: what it belongs to besides its commit.
        """
        if self.settings.prompt is None:
            raise InputError("There is no prompt, so nothing was started.", hint="Give one, or use --resume.")
        self._refuse_half_restored()
        if (story := self._put_together()) is not None:
            return story.begin(name, taken, bound)
        if self.broken is not None:
            raise self.broken
        known = [(s, s.state) for s in self.store.all() if s.state is not None]
        waiting = [s.id for s, state in known if s.is_waiting and state.steps and s.id != bound.get("instead-of")]
        doubtful = any(was_killed_in_opaque_call(state) for _, state in known)
        self._tell_without_commits()
        config, system = self._rules.find()
        provider = self.ports.provider(self.settings.provider or DEFAULT_PROVIDER, self.settings)
        model = self.settings.model or _default_model(provider.name)
        self._prices.check(provider.name, model, config)
        if waiting:
            again = (
                f"`endstate run --resume --session {waiting[0]}`, with the options that it had, goes on with that one."
            )
            again = f" {again}" if name is None else ""
            self.ports.notice(f"Unfinished here: {', '.join(waiting)}. A new session begins.{again}")
        if name is None:
            name = token_hex(6)
            taken = self._take_over(Line(name), above=0)
        with self.store.create({**self._bound(), **bound}, session=name) as session:
            setup = self._setup(model, system, config)
            return self.drive(session, provider, config, setup, taken, doubtful=doubtful)

    def resume(self, wanted: str | None) -> Report:
        """The session that was asked for, else the unfinished one with the newest record, else the newest."""
        line = self._wanted(wanted)
        # Of what a workflow has stored, the line of attempts has another name than the session.
        name = line if isinstance(self.depot, NoDepot) else session_here(Line(line), self.store, self.depot) or line
        here = None
        with suppress(UnknownSession, StateError):
            here = self.store.read(name)
        if here is not None:
            # Before a number is claimed, which ends whoever is at it elsewhere.
            self._confirm(here)
        taken = self._take_over(Line(line), above=self._epoch_of(name), resumes=name)
        found = self._found(name, taken)
        name = found.session or name
        # Of a session that is here by that name, whoever calls has asked before there was a store to look into.
        settings = self.settings if here and name == line else _as_before(self.settings, self.store, name)
        return replace(self, settings=settings).go_on(name, taken, found)

    def attend(self, errand: Errand) -> Report | AlreadyDelivered:
        """Begin, go on, or say the result again."""
        here, number = self._newest_of(errand)
        head = None
        with suppress(GitError):
            head = self.repository.head().commit if self.repository else None

        def is_wanted(state: State) -> bool:
            """Before anything is restored: what nothing goes on with must not lie under a new session."""
            errand.approve(state.begun.bound)
            return errand.resume != "never" and not _is_of_another_task(state, errand.prompt()[0])

        taken = self._take_over(
            errand.line, above=self._epoch_of(here) if here else 0, errand=errand, confirm=is_wanted
        )
        found = self._found(here, taken, errand.witness, is_told=errand.is_told)
        name = found.session
        bound = errand.approve(self._bound_of(name, found))
        prompt_id, prompt = errand.prompt()
        story = replace(self, settings=replace(self.settings, prompt=prompt), prompt_id=prompt_id, read=errand.read)
        if name is not None:
            number = _number_of(errand, name)
        if found.done is not None and prompt_id in found.done.manifest.outputs.get("prompt-ids", ()):
            return AlreadyDelivered(found.done.manifest.outputs)
        is_over = found.done is not None or found.left is not None or errand.resume == "never"
        if name is None or is_over or _is_of_another_task(self.store.read(name), prompt_id):
            if errand.resume == "required" and errand.is_retry and name is None:
                raise UnknownSession(
                    "resume is required, and there is no checkpoint of an earlier attempt. Nothing was run.",
                    hint="Start a new run of the workflow, rather than a re-run, or set resume to auto by a variable.",
                )
            if errand.is_retry and name is None:
                self.ports.notice("No checkpoint of an earlier attempt was found, so the task begins anew.")
                bound = {**bound, "begun-anew": True}
            if found.left is not None:
                self.ports.notice(f"Session {name} is left as it is; a new one begins, on what is checked out here.")
            new = errand.session_of(number + 1)
            if new in self.store.names():
                self.store.remove(new)
            return story.begin(new, taken, bound)

        def anew() -> tuple[str, _Taken, Mapping[str, Any]]:
            return errand.session_of(number + 1), self._take_over(errand.line, above=taken.epoch or 0), bound

        if is_moved(state := self.store.read(name), head) and not state.knows_prompt(prompt_id):
            base = state.begun.bound["base"]
            more = (
                f"[This was asked on the commit {head}. The session goes on on the one that it began on, {base}: the "
                "checkout is of that, and what else has been pushed is not in it.]"
            )
            story = replace(story, settings=replace(story.settings, prompt=f"{prompt}\n\n{more}"))
        return story.go_on(name, taken, found, anew)

    def _newest_of(self, errand: Errand) -> tuple[str | None, int]:
        """The session of the errand's newest task on this machine, and the number of that task."""
        here, number, known = None, 0, set(self.store.names())
        while (name := errand.session_of(number + 1)) in known:
            here, number = name, number + 1
        return here, number

    def _bound_of(self, name: str | None, found: Found) -> Mapping[str, Any] | None:
        if found.done is not None:
            recorded: Mapping[str, Any] | None = found.done.manifest.outputs.get("bound")
            return recorded
        if found.left is not None:
            return found.left.begun.bound
        return self.store.read(name).begun.bound if name is not None else None

    def _found(self, name: str | None, taken: _Taken, witness: int = 0, *, is_told: bool = False) -> Found:
        if taken.successor is None or taken.epoch is None:
            self._refuse_half_restored()
            chosen = choose(local_state(self.store, name) if name else None, (), witness)
            goes_on = is_told or self.settings.on_mismatch == "continue"
            if isinstance(chosen, Gap) and goes_on:
                self.ports.notice(chosen.accepted)
                return Found(session=name, effects_before=chosen.started - chosen.known)
            if (error := refusal(chosen)) is not None:
                raise error
            return Found(session=name)
        found = taken.successor.find(name, taken.epoch, witness=witness)
        self._tell_found(found)
        return found

    def go_on(
        self,
        name: str,
        taken: _Taken,
        found: Found,
        anew: Callable[[], tuple[str, _Taken, Mapping[str, Any]]] | None = None,
    ) -> Report:
        """Finish a session, then do what is asked.

        Args:
            anew: where it is to be started over: the id of the session that takes its place, with its number.
        """
        with self.store.open(name) as session:
            frozen, config, system = session.state.frozen, *self._configuration_of(session.state)
            own = replace(self, repository=self._repository_of(session.state, config, found))
            chosen = self.settings.provider or self._provider_of(session.state)
            try:
                provider = self._provider_for(session.state)
                model = self.settings.model or (None if frozen else _default_model(provider.name))
                self._prices.check(provider.name, model or _model_of(session.state), config)
                setup = self._setup(model, system, config)
                return own.drive(session, provider, config, setup, taken, found)
            except Mismatch:
                if self.settings.on_mismatch != "restart":
                    raise
                prompts = [p.text for p in session.state.prompts if p.task == session.state.task]
                prompts += [text for _, text in session.state.waiting_prompts]
                is_put_back = own.put_back(session.state, config, found)
        self.ports.notice(
            f"Session {name} does not match what is here today; a new one begins, as asked"
            + (", on what was here before the restore." if is_put_back else ".")
        )
        prompt = self.settings.prompt or "\n\n".join(prompts)
        story = replace(self, settings=replace(self.settings, prompt=prompt, provider=chosen, resume=False))
        return story.begin(*anew()) if anew else story.begin(bound={"instead-of": name})

    def put_back(self, state: State, config: Config, found: Found) -> bool:
        """Make the workspace what it was before a session was restored in it that is now given up."""
        if found.restored is None or found.manifest is None:
            return False
        # Where the restore replaced nothing, what it found was what it was to bring.
        root = found.restored.kept or found.manifest.root
        if root is not None:
            self._place(state.begun.bound, config).snapshots().restore(root)
        return root is not None

    def _confirm(self, state: State) -> bool:
        """Before anything is restored: what was given today is of use for the session. Raises where it is not."""
        config, _ = self._configuration_of(state)
        if self.settings.sandbox == "required":
            self._sandbox(self._place(state.begun.bound, config))
        try:
            provider = self._provider_for(state)
        except Mismatch:
            if self.settings.on_mismatch == "restart":
                return True
            raise
        model = self.settings.model or (_model_of(state) if state.frozen else _default_model(provider.name))
        self._prices.are_known(provider.name, model, config)
        return True

    @property
    def _rules(self) -> Rules:
        return Rules(self.settings, self.workspace, self.ports.notice, self.read)

    @property
    def _prices(self) -> Prices:
        return Prices(self.settings.limits, self.ports.notice)

    def _sandbox(self, place: Workplace) -> Sandbox | NoSandbox:
        return place.sandbox(self.settings.sandbox, network=self.settings.network, make=self.ports.make_sandbox)

    def _setup(self, model: str | None, system: str, config: Config) -> Setup:
        # To start over takes a new session, which is not the loop's business.
        goes_on = "continue" if self.settings.on_mismatch == "continue" else "refuse"
        return Setup(model, system, config.to_json(), _budget(config), on_mismatch=goes_on)

    def _terms(self, secrets: Secrets) -> dict[str, str]:
        """What a later attempt is to go on with. A store that is of no use would only be asked for in vain."""
        without = "store" if isinstance(self.depot, NoDepot) and self.settings.store != "none" else ""
        given = self.settings.given.items()
        return {name: text for name, text in given if name != without and not secrets.contains(text)}

    def _provider_for(self, state: State) -> Provider:
        """That of the session, unless another was named. Raises: Mismatch, InputError."""
        chosen = self.settings.provider or self._provider_of(state)
        if self.settings.on_mismatch != "continue":
            refuse_other_provider(state, chosen)
        if chosen not in self.providers:
            self.providers[chosen] = self.ports.provider(chosen, self.settings)
        return self.providers[chosen]

    def drive(
        self,
        session: Session,
        provider: Provider,
        config: Config,
        setup: Setup,
        taken: _Taken,
        found: Found = Found(),  # noqa: B008  a value
        *,
        doubtful: bool = False,
    ) -> Report:
        self.lock.name(session.id)
        if session.state.strays:
            self.ports.notice(_left_out(session.state))
        secrets = Secrets(split_environment(self.ports.environ)[1])
        trust = self._trust_of(session.state, found)
        place = self._place(session.state.begun.bound, config, trust)
        sandbox = self._sandbox(place)
        chosen = SandboxChosen(describe(sandbox), sandbox.note if isinstance(sandbox, Sandbox) else sandbox.reason)
        self.ports.emit(chosen)
        snapshots = place.snapshots()
        interrupts = Interrupts()
        observer = place.observer(snapshots, interrupts.check_late)
        if doubtful or was_killed_in_opaque_call(session.state):
            observer.doubt()
        process = {**self.ports.process(), "workspace": self.workspace.stat().st_ino}
        process |= {"restored_from": found.restored.key} if found.restored else {}
        # A later attempt, which tells the result, would not know of it.
        process |= {"not_restored": list(found.restored.reasons)} if found.restored and found.restored.reasons else {}

        def leftovers() -> None:
            place.clear(session.id)
            self._put_back_after_reboot(session.state, process, observer)

        is_asked_anew = self.settings.prompt is not None and not session.state.knows_prompt(self.prompt_id or "")
        if not session.state.attempts or (session.state.is_finished and is_asked_anew):
            place.clear(session.id)
            keep_baseline(self.state.baseline(session.id), observer.now())
        tools = self.ports.tools(place.tools(sandbox, self.ports.more_tools()))
        shipper = self._shipper(session, provider, setup, tools, place, taken, found, secrets, interrupts)
        loop = AgentLoop(
            session,
            provider,
            tools,
            workspace=Workspace(self.workspace, hidden=(self.settings.state_dir,), staging=self.state.tmp),
            setup=setup,
            policy=Policy.from_config(config),
            limits=self.settings.limits,
            price=self._prices.of(provider.name, setup.model or _model_of(session.state), config),
            observer=observer,
            guard=self.lock.check,
            secrets=secrets,
            call_environment=lambda tag: call_environment(self.ports.environ, extra_names=config.env, tag=tag),
            leftovers=leftovers,
            emit=self._tell,
            interrupts=interrupts,
            clock=self.ports.clock,
            version=__version__,
            process=process,
            shipping=shipper,
            epoch=taken.epoch,
            effects_before=unrecorded_effects(session.state) + found.effects_before,
            kept=found.restored.kept if found.restored else None,
            trust=trust,
            given=self._terms(secrets),
        )
        with interrupts.caught(self.settings.limits.max_minutes * 60):
            prompt = self.settings.prompt
            try:
                result = loop.resume() if prompt is None else loop.run(prompt, prompt_id=self.prompt_id)
                interrupts.time_is_told()
                if shipper:
                    if result.reason == FINISHED_BEFORE:
                        shipper.begin()  # no step of this attempt has asked for it
                    shipper.refuse_superseded()
                seen = result.look(interrupts.check)
                tree_hash, notes = seen.tree_hash, _uncovered(seen)
                for note in notes:
                    self.ports.notice(note)
                epoch = taken.epoch or session.state.epoch
                finishing = Finishing(
                    session, result, tree_hash, place, chosen, shipper, found.restored, secrets, epoch, notes
                )
                announced = self.ports.finish(finishing)
            except Superseded:
                raise
            except (EndstateError, GitError):
                if shipper:
                    shipper.end(LAST_ON_SIGNAL_S)
                raise
            departed = shipper.end() if shipper else None
        told = self._outputs(session.state, result, tree_hash, observer, describe(sandbox))
        told["durability"] = departed.store if departed else "none"
        told["restored-from"] = found.restored.key if found.restored else None
        told["restored-tree-hash"] = found.restored.tree_hash if found.restored else None
        if result.reason == FINISHED_BEFORE and taken.epoch is not None:
            told |= {"attempt": taken.epoch, "resumed": True}
        told |= announced.outputs
        if shipper and announced.word is not None:
            shipper.conclude({**told, **announced.word})
        state = session.state
        return Report(result, told, state.task, departed, state.failed_calls, state.calls_not_run)

    def _place(self, bound: Mapping[str, Any], config: Config, trust: str | None = None) -> Workplace:
        repository = None if bound.get("workspace") == "directory" else self.repository
        return Workplace(self.workspace, self.state, repository, self.ports.environ, bound, config, trust)

    def _trust_of(self, state: State, found: Found) -> str | None:
        """A fresh checkout has a configuration of its own (a token in it, say), which no agent has seen yet."""
        if found.is_elsewhere and self.repository is not None:
            # The session may have broken it, and then git tells nothing of it after the restore.
            with suppress(GitError):
                return self.repository.trust()
            return found.trust
        return next((a.trust for a in reversed(state.attempts) if a.trust is not None), None)

    # Leaving the machine, and coming back

    def _wanted(self, wanted: str | None) -> str:
        """The session to resume: of those that are here, or in the store."""
        if isinstance(self.depot, NoDepot):
            return self.store.find(wanted) if wanted is not None else _newest(self.store, self.ports.notice)
        half = unfinished(self.state)
        if wanted is None and half is not None:
            return half.lineage
        newest = partial(_newest, self.store, self.ports.notice)
        return find_session(wanted, self.store, self.depot, newest, self.ports.notice)

    def _epoch_of(self, session: str) -> int:
        try:
            return self.store.read(session).epoch
        except (UnknownSession, StateError):
            return 0

    def _take_over(
        self,
        line: Line,
        *,
        above: int,
        errand: Errand | None = None,
        confirm: Callable[[State], bool] | None = None,
        resumes: str | None = None,
    ) -> _Taken:
        """Claim a number for this attempt, where there is a store.

        Args:
            resumes: the session that a person wants to go on with; what is refused is refused before the claim.
        """
        depot = self.depot
        if isinstance(depot, NoDepot):
            expected = self.settings.store in ("auto", "none") and not self.ports.environ.get("GITHUB_ACTIONS")
            self.ports.emit(
                Departed("none", None, NotShipped(depot.reason, depot.remedy, is_final=True), is_expected=expected)
            )
            return _Taken()
        successor = Successor(
            depot,
            line,
            self.store,
            lambda bound: self._place(bound, DEFAULT_CONFIG),
            self.settings.on_mismatch == "continue",
            self.ports.notice,
            self.ports.git_extra,
            errand.claimant if errand else b'{"format":1}',
            confirm=confirm or self._confirm,
            is_ours_alone=errand is not None,
        )
        earlier = successor.newest_claim() if errand else None
        if errand and earlier is not None:
            errand.refuse(earlier)
        if resumes is not None and isinstance(successor.foresee(resumes), NoneFound):
            raise UnknownSession(
                f"The store {depot.shown} has no checkpoint of session {resumes}, and it is not here either: if "
                "it was begun, its machine was lost before the first one was stored. Nothing was run.",
                hint="`endstate run PROMPT` begins anew; `endstate sessions inspect --store …` shows what is stored.",
            )
        claimed = successor.claim(above)
        if isinstance(claimed, int):
            self.ports.emit(Departed(depot.store.name, None))
            return _Taken(successor, claimed)
        if self.settings.require_durable:
            raise _not_durable(claimed)
        if errand and errand.resume != "never" and successor.has_stored():
            raise StoreUnusable(
                f"The store {depot.store.name} gave this attempt no number: {claimed.reason}. Checkpoints of an "
                "earlier attempt are there, and without a number nothing is gone on with. Nothing was run.",
                hint=f"{claimed.remedy} To begin anew all the same, set resume to never by a variable.".strip(),
            )
        if resumes is not None and resumes not in self.store.names():
            raise StoreUnusable(
                f"Session {resumes} is not on this machine, and nothing of it was restored, since the store "
                f"{depot.store.name} gave this attempt no number: {claimed.reason}. Nothing was run.",
                hint=claimed.remedy or "Resume where the store can be written, or where the session was begun.",
            )
        self.ports.emit(Departed("none", None, NotShipped(claimed.reason, claimed.remedy, is_final=True)))
        return _Taken()

    def _refuse_half_restored(self) -> None:
        refuse_unfinished(self.state)

    def _put_together(self) -> _Story | None:
        """The story of what is here once a roll-back that a kill cut off is finished; None where there is none.

        A session that began before would be bound to what is undone under it, and read half a workspace.
        """
        place = self._place({}, DEFAULT_CONFIG)
        restored = place.finish()
        if restored is None:
            return None
        self.ports.notice("The roll-back that an earlier attempt did not finish was finished first.")
        if restored.kept is not None:
            replaced = place.snapshots().replaced(restored.kept, restored)
            self._tell_replaced("roll-back", restored.kept, replaced)
        repository = git.discover(self.workspace, self.ports.environ, self.state.tmp)
        _refuse_foreign_state(self.state, repository, self.workspace)
        return replace(self, repository=repository, broken=None)

    def _tell_without_commits(self) -> None:
        """Who works in a part of a checkout, or in one that git cannot read, does not expect that there are none."""
        place = self.workspace
        if self.repository is not None:
            return
        if os.path.lexists(place / ".git"):
            why = why_no_checkout(place, self.ports.environ)
            self.ports.notice(
                f"{why}, so {short(str(place))} is treated as a plain directory: without git_commit and, in the "
                "sandbox, without git. Once `git status` works there, a new session has commits."
            )
            return
        above = git.enclosing(place)
        if above is not None and git.discover(above, self.ports.environ, self.state.tmp) is not None:
            self.ports.notice(
                f"{short(str(place))} is not the root of a git checkout, so it is treated as a plain directory: "
                f"without git_commit and, in the sandbox, without git. To have commits, run in {short(str(above))}."
            )

    def _tell_found(self, found: Found) -> None:
        for reason in found.set_aside:
            self.ports.notice(f"Not used: {reason}.")
        if found.restored:
            self.ports.emit(found.restored)
            self.ports.notice(f"Restored from {found.restored.key}, tree {found.restored.tree_hash}.")
            came = found.restored
            is_worth_it = came.replaced or came.refs or self.settings.on_mismatch == "continue"
            if came.kept and found.has_replaced and is_worth_it:
                self._tell_replaced("restore", came.kept, came.replaced, came.refs)
            for reason in found.restored.reasons:
                self.ports.notice(f"Not restored: {reason}")
            if (aside := found.restored.set_aside) is not None:
                self.ports.notice(
                    f"What was recorded here of session {found.session} cannot be read whole, and may be newer than "
                    f"what was restored. It was moved to {aside}; `endstate sessions export {aside.stem}` prints what "
                    "can be read of it."
                )

    def _tell(self, event: Event) -> None:
        if not isinstance(event, PutBack):
            self.ports.emit(event)
            return
        if event.restored.kept:
            self._tell_replaced("roll-back", event.restored.kept, event.replaced, event.refs)
        for reason in event.restored.reasons:
            self.ports.notice(f"Not rolled back: {reason.rstrip('.')}.")

    def _tell_replaced(
        self, by: str, kept: str, replaced: tuple[str, ...], refs: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Unasked or as asked, it may have been somebody's: so it is named, with the way to have it again."""
        names = few([short(name) for name in replaced], _NAMED)
        there = f"../kept-{kept[:12]}"
        count = "1 file that was here was" if len(replaced) == 1 else f"{len(replaced)} files that were here were"
        self.ports.notice(
            (f"{count} replaced or removed by the {by}: {names}. " if replaced else "")
            + f"What was here before is kept as snapshot {kept}; beside this directory, it can be had again: "
            f"mkdir {there} && git --git-dir {shlex.quote(str(self.state.path / 'objects'))} archive {kept}:tree "
            f"| tar -x -C {there}"
        )
        if refs:
            moved = few([f"{short(name)} was {named[:12]}" for name, named in refs.items()], NAMED_AT_MOST)
            self.ports.notice(
                f"Refs were moved or removed as well: {moved}. `git update-ref NAME COMMIT` has one again, "
                "`git stash store COMMIT` a stash, `git branch NEW COMMIT` what HEAD alone had."
            )

    def _shipper(
        self,
        session: Session,
        provider: Provider,
        setup: Setup,
        tools: list[Tool],
        place: Workplace,
        taken: _Taken,
        found: Found,
        secrets: Secrets,
        interrupts: Interrupts,
    ) -> Shipper | None:
        if taken.successor is None or taken.epoch is None:
            return None
        bound, depot, line, epoch = session.state.begun.bound, taken.successor.depot, taken.successor.line, taken.epoch
        base = bound.get("base")
        # Who has no way to the base commit needs all of it with every checkpoint.
        thin = base if base and self._is_published(base) else None
        about = About(
            __version__,
            # By hand nobody names it, and the job that goes on looks for its own.
            line.repository or str(bound.get("repository", "")),
            line.lineage,
            session.id,
            epoch,
            str(bound.get("workspace", "directory")),
            self.repository.object_format if self.repository else "sha1",
            thin,
            bound.get("base-tree"),
            digest(canonical([provider.name, setup.model, [tool.contract() for tool in tools]])),
        )
        packer = Packer(place.objects, thin, secrets)
        builder = Builder(
            about,
            depot.sealing,
            lambda after: self.store.journal(session.id, after),
            packer.pack,
            scan=lambda text: ", ".join(secrets.contains(text)) or None,
            restored=found.manifest,
            effects_before=unrecorded_effects(session.state) + found.effects_before,
        )
        uploader = Uploader(
            builder,
            depot.store,
            lambda: session.state.shippable,
            pace=depot.pace,
            earlier=periodic_before(depot.store, line.lineage, session.state, epoch),
        )
        successor = taken.successor
        return Shipper(
            uploader,
            depot.store.name,
            lambda: successor.superseded_by(epoch) or self.ports.newer_attempt(),
            is_required=self.settings.require_durable,
            is_chosen=depot.is_chosen,
            is_near=depot.is_near,
            may_be_known=found.manifest is not None or bool(session.state.attempts),
            tell=self.ports.emit,
            check=interrupts.check,
        )

    def _is_published(self, commit: str) -> bool:
        # A repository that a call has broken may not be put back yet.
        with suppress(GitError):
            return self.repository is not None and self.repository.is_published(commit)
        return False

    def _put_back_after_reboot(self, state: State, process: Mapping[str, Any], observer: Observer) -> None:
        """What a killed attempt wrote and the disk had not when the machine went down may be gone, in part."""
        root = state.observed.root if state.observed else None
        if not was_killed_before_boot(state, process) or not observer.can_roll_back(root):
            return
        put_back = observer.roll_back(root or "")
        if put_back.restored.kept is not None:
            self.ports.notice(
                "The machine was started anew since the last attempt was killed, and the workspace was put back to "
                "what was recorded last."
            )
            self._tell(put_back)

    def _outputs(self, state: State, result: RunResult, now: str, observer: Observer, sandbox: str) -> dict[str, Any]:
        changed = self._changed(state, observer)
        if result.reason == FINISHED_BEFORE and result.ended_tree_hash != now:
            # What somebody did since is not this session's result.
            self.ports.notice("The workspace has changed since this session ended; its result is of then.")
            return outputs(state, result, None, sandbox, self._commit(state), result.ended_tree_hash or now)
        return outputs(state, result, changed, sandbox, self._commit(state), now)

    def _changed(self, state: State, observer: Observer) -> list[str] | None:
        """What is not as it was when the task began; on another machine, as far as git can tell."""
        known = changed_since(self.state.baseline(state.begun.session), observer.now().scan)
        if known is not None or self.repository is None:
            return None if known is None else list(known)
        at_start = state.begun.bound.get("dirty", {})
        try:
            found = self.repository.changes(state.begun.bound.get("base"))
        except GitError:
            return None
        changed = (path for path, digest in found.items() if at_start.get(path) != digest)
        # A nested repository is no file; a directory that took a file's place is told by that file.
        return sorted(path for path in changed if kind(self.workspace, parse(path) + b"/.git") == "absent")

    def _commit(self, state: State) -> str | None:
        """The last commit that the agent's own tool made."""
        made = [
            finished.content.split()[1].rstrip(".")
            for place, finished in state.finished.items()
            if finished.status == "ok" and state.requested[place].call.name == GitCommit.name
        ]
        # What an agent did to `.git` must not cost the result.
        with suppress(GitError):
            return self.repository.full_id(made[-1]) if made and self.repository else None
        return None

    # What a new session is made of

    def _bound(self) -> dict[str, Any]:
        """What the session belongs to: the kind of workspace and the commit its task began on."""
        if self.repository is None:
            return {"workspace": "directory"}
        base = self.repository.head().commit
        return {
            "workspace": "git",
            "base": base,
            "base-tree": self.repository.tree_of(base) if base else None,
            "trust": self.repository.trust(),
            "dirty": self.repository.changes(base),
            "nested": self.repository.nested(),
            "apart": sorted({*self.repository.apart([base] if base else []).values()}),
            "git-file": self.repository.file(),
        }

    def _repository_of(self, state: State, config: Config, found: Found) -> git.Repository | None:
        """What the session is bound to decides, not what lies here now: its own calls can make and break a `.git`.

        Raises:
            Mismatch, GitError: git cannot read the checkout that it is bound to, and no call of it explains that.
        """
        if state.begun.bound.get("workspace") == "directory":
            return None
        try:
            self._refuse_elsewhere(state)
        except (Mismatch, GitError):
            reopen(self.workspace / ".git")
            kind = format_of(self.state.path / "objects")
            repository = git.presume(self.workspace, self.ports.environ, self.state.tmp, kind)
            if repository is None:
                raise
            place = replace(self._place(state.begun.bound, config), repository=repository)
            if not self._accounts_for(state, place.snapshots(), found):
                raise
            return repository
        return self.repository

    def _accounts_for(self, state: State, snapshots: SnapshotStore, found: Found) -> bool:
        """Whether what is wrong with the checkout will be undone before anything runs, or is as was recorded last."""
        if found.restored is not None:
            # It was the session's own and could be read, until it was made what is on record; not always to the last
            # ref, so that it is not compared with that.
            return self.broken is None
        observer = Observer(self.workspace, snapshots=snapshots)
        was_here = state.attempts and state.attempts[-1].process.get("workspace") == self.workspace.stat().st_ino
        if not was_here and not was_restored_here(self.state, self.workspace, state.begun.session):
            return False  # a state directory that was copied here puts nothing in the place of another repository
        if snapshots.unfinished() is not None or will_be_undone(state, observer):
            return True
        root = state.observed.root if state.observed else None
        if root is None or not observer.can_roll_back(root):
            return False
        return was_killed_before_boot(state, self.ports.process()) or snapshots.is_at(root)

    def _refuse_elsewhere(self, state: State) -> None:
        session, bound = state.begun.session, state.begun.bound
        if self.repository is None and bound.get("workspace") == "git":
            raise unreadable_checkout(session, self.workspace, self.ports.environ, "Nothing was run.")
        if self.broken is not None:
            raise self.broken
        base = bound.get("base")
        if self.repository is not None and base is not None and self.repository.full_id(base) is None:
            raise Mismatch(
                f"Session {session} was begun on commit {base[:12]}, which is not in this repository. Nothing was run.",
                differences=(f"repository: commit {base[:12]} in the session, no such commit here",),
                hint="Fetch that commit here, resume in the repository it was begun in, or begin a new session here.",
            )

    def _configuration_of(self, state: State) -> tuple[Config, str]:
        """As frozen with the session; today's where it died before that."""
        return (Config.from_json(state.frozen.config), state.frozen.system) if state.frozen else self._rules.find()

    def _provider_of(self, state: State) -> ProviderName:
        """The newest attempt's; a name that this release does not know is for `Ports.provider` to refuse."""
        return cast("ProviderName", state.attempts[-1].provider) if state.attempts else DEFAULT_PROVIDER


def outputs(
    state: State, result: RunResult, changed: list[str] | None, sandbox: str, commit: str | None, tree_hash: str
) -> dict[str, Any]:
    """The outputs of a run by the names of the action; None where this run cannot have one."""
    bound = state.begun.bound
    return {
        "conclusion": result.conclusion,
        "reason": result.reason,
        "session-id": result.session,
        "attempt": result.attempt,
        "resumed": len(state.attempts) > 1,
        "restored-from": None,
        "durability": "none",
        "sandbox": sandbox,
        "base-tree": bound.get("base-tree"),
        "restored-tree-hash": None,
        "tree-hash": tree_hash,
        "published-tree-hash": None,
        "git-tree": None,
        "final-message": result.final_message,
        "evidence-file": None,
        "patch-file": None,
        "changed-files": changed,
        "commit-sha": commit,
        "branch": None,
        "comment-url": None,
        "steps": result.steps,
        "input-tokens": result.usage.context_tokens,
        "output-tokens": result.usage.output_tokens,
        "cost-usd": as_text(result.cost_usd),
        "spent-at-least": may_have_lost(state),
        "settlements": [
            {"step": s.step, "call": s.index + 1, "attempt": s.epoch, "action": s.action, "reason": s.reason}
            for s in result.settlements
        ],
        "refused-calls": result.refused_calls,
    }


def _uncovered(seen: Scan) -> tuple[str, ...]:
    """Two trees that differ in this alone have one hash, so whoever is shown the hash is told."""
    names = [short(display(path)) for path in (*seen.unreadable, *seen.unstable)]
    why = "since it could not be read, or changed while it was read"
    return (f"Not covered by the tree hash of the workspace, {why}: {few(names, NAMED_AT_MOST)}.",) if names else ()


def _left_out(state: State) -> str:
    calls = few([f"call {stray.index + 1} of step {stray.step}" for stray in state.strays])
    return (
        f"Session {state.begun.session} has on record what came of calls that nobody asked for: {calls}. That was left "
        "out: the model is not told of it, and it is not counted."
    )


def is_moved(state: State, head: str | None) -> bool:
    """Whether another commit is checked out than the session began on, and none that it made itself."""
    base, observed = state.begun.bound.get("base"), state.observed
    return None not in (base, head) and head not in (base, observed.head if observed else None)


def _newest(sessions: SessionStore, notice: Callable[[str], None]) -> str:
    """The unfinished session with the newest record, else the newest. Raises: UnknownSession, StateError."""
    found = sessions.all()
    readable = [s for s in found if s.state is not None and s.state.was_asked]
    unfinished = [s for s in found if s.is_waiting]
    if unfinished and unfinished[0].state is None:
        # What cannot be read may be what was meant: never report another session's success in its place.
        try:
            sessions.read(unfinished[0].id)
        except (StateError, NewerFormat) as error:
            others = ", ".join(s.id for s in unfinished if s.state is not None)
            error.hint += f" Also unfinished here: {others}. `--session ID` resumes one of them." if others else ""
            raise
    if not readable:
        raise UnknownSession(
            f"There is no session to resume in {sessions.directory.parent}; nothing was run.",
            hint="`endstate run PROMPT` begins one.",
        )
    if len(unfinished) > 1:
        others = ", ".join(s.id for s in unfinished[1:])
        notice(f"Resuming {unfinished[0].id}, the unfinished session with the newest record. Others: {others}.")
    return (unfinished or readable)[0].id


def _is_of_another_task(state: State, prompt_id: str) -> bool:
    """Whether the session is finished, and the prompt is none of its own."""
    return state.is_finished and not state.knows_prompt(prompt_id)


def _number_of(errand: Errand, session: str) -> int:
    """Of the task that the session is of; a session of another release's numbering counts as the newest."""
    return next((n for n in range(1, _MOST_TASKS) if errand.session_of(n) == session), _MOST_TASKS)


def _not_durable(why: NoDepot) -> InputError:
    return InputError(
        f"Checkpoints cannot leave this machine: {why.reason}. With require-durable, nothing was run or spent.",
        hint=why.remedy or "Name a store, or do without --require-durable.",
    )


def _refuse_foreign_state(state: StateDirectory, repository: git.Repository | None, workspace: Path) -> None:
    state.confirm()
    name = state.path.relative_to(workspace).as_posix()
    if repository is not None and repository.is_tracked(name):
        raise tracked(name)


@contextmanager
def _locked(state: StateDirectory, choice: Choice, ports: Ports) -> Iterator[StateLock]:
    lock = StateLock(
        state.lock,
        identity(),
        timeout_s=choice.lock_timeout_s,
        on_wait=lambda holder: ports.notice(f"Waiting for {holder}, which holds {state.path}."),
    )
    with lock:
        yield lock


def _budget(config: Config) -> Budget:
    return Budget(config.context.max_tokens, config.context.max_bytes)


def _model_of(state: State) -> str:
    if state.attempts:
        return state.attempts[-1].model
    return state.frozen.model if state.frozen else DEFAULT_MODEL


def _default_model(provider: str) -> str:
    return SCRIPTED_MODEL if provider == ScriptedProvider.name else DEFAULT_MODEL
