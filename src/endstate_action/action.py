"""`endstate action`: one step of a workflow, from its inputs and its event to outputs, summary and comment.

What may be refused is refused before anything is spent: inputs, trust, permissions, durability, in this order. From
then on the run tells its own story; here it is put into GitHub's words.
"""

from __future__ import annotations

import json
import os
import signal
import time
import traceback
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import gettempdir
from types import FrameType
from typing import Any, NoReturn

from endstate_action.account import moment
from endstate_action.agent.loop import AttemptBegan, StepEnded, Told
from endstate_action.agent.providers.base import Provider
from endstate_action.agent.tools.base import Tool
from endstate_action.agent.tools.comment import PrComment
from endstate_action.ci import render
from endstate_action.ci.commit import Commits, Target, own_branch
from endstate_action.ci.conclusions import ending
from endstate_action.ci.event import Actor, Comment, CommentKind, Event, parse_comment, read_event
from endstate_action.ci.github import GitHub
from endstate_action.ci.lineage import Claimant, Lineage, claimant, lineage, matrix_digest, refuse_collision, session_id
from endstate_action.ci.marker import Marker, owner_of, parse_marker
from endstate_action.ci.outcome import (
    Ambiguous,
    Applied,
    Denied,
    Failed,
    Failure,
    Outcome,
    RateLimited,
    Rejected,
    Unavailable,
    told,
)
from endstate_action.ci.prompt import Prompt, Thread, build, task_of
from endstate_action.ci.pull_request import (
    Conversation,
    PostedComment,
    Viewer,
    permission_of,
    place_of,
    read_pull_request,
    read_run,
    viewer_of,
)
from endstate_action.ci.runs import COMMIT, Runs
from endstate_action.ci.trust import (
    LEVELS,
    Allowed,
    Level,
    Recorded,
    Refused,
    Rules,
    Skipped,
    actor_of,
    decide,
    parse_rules,
    skipped,
    with_pull_request,
)
from endstate_action.ci.workflow import Log, RunnerFiles, Value, as_inputs, as_output
from endstate_action.config import Settings, parse_choice, parse_repository_path, parse_settings
from endstate_action.deliver import Announced, Delivery, Place, Result
from endstate_action.durable import Line
from endstate_action.errors import EndstateError, InputError, Interrupted, Locked, StateError, Superseded
from endstate_action.messages import count_of, dollars
from endstate_action.restoring import Arrived
from endstate_action.run import (
    AlreadyDelivered,
    Announcement,
    Errand,
    Finishing,
    Ports,
    Report,
    SandboxChosen,
    attend,
    is_moved,
)
from endstate_action.shipper import Departed
from endstate_action.state.fold import State
from endstate_action.state.keys import CheckpointKey, lineage_of
from endstate_action.system.proctable import identity
from endstate_action.system.redaction import Secrets
from endstate_action.system.sandbox import NoSandbox, Sandbox
from endstate_action.system.sandbox_install import obtain
from endstate_action.system.secrets import split_environment
from endstate_action.system.signals import heeded
from endstate_action.trusted import Trusted
from endstate_action.working import Working

OWN_INPUTS = (
    "trigger-phrase", "anthropic-api-key", "github-token", "session-key", "state-key", "commit", "comment",
    "job-summary", "required-permission", "allowed-bots", "allow-forks", "matrix", "strategy", "job", "step",
)  # fmt: skip
RUN_INPUTS = (
    "prompt", "prompt-file", "provider", "model", "base-url", "working-directory", "state-dir", "instructions",
    "config-file", "resume", "on-mismatch", "max-steps", "max-cost-usd", "max-resumes", "max-minutes", "sandbox",
    "network", "store", "require-durable",
)  # fmt: skip
_TRUSTED_FILES = ("prompt-file", "instructions", "config-file")
_DEFAULTS = {"max-cost-usd": "5.00", "config-file": ".github/endstate.yml", "provider": "anthropic"}
_COMMENTS: tuple[tuple[CommentKind, str], ...] = (
    ("comment", "issues/{}/comments"),
    ("review-comment", "pulls/{}/comments"),
)


class _Skip(Exception):
    """Nothing is to be done: no failure."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of the action that are not those of every run."""

    values: Mapping[str, str]
    resume: str
    commit: str
    comment: str
    job_summary: bool

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Inputs:
        """Raises: InputError: naming the input, what was given and what is allowed."""
        names = (*RUN_INPUTS, *OWN_INPUTS)
        values = {n: environ.get(f"INPUT_{n.upper().replace('-', '_')}", "") for n in names}
        parse_choice("provider", values["provider"] or "anthropic", ("anthropic",))
        for name in _TRUSTED_FILES:
            if values[name]:
                parse_repository_path(name, values[name])
        return cls(
            values,
            parse_choice("resume", values["resume"] or "auto", ("auto", "required", "never")),
            parse_choice("commit", values["commit"] or "none", ("none", "branch", "pr-head")),
            parse_choice("comment", values["comment"] or "sticky", ("sticky", "off")),
            parse_choice("job-summary", values["job-summary"] or "true", ("true", "false")) == "true",
        )

    def settings(self, workspace: Path) -> Settings:
        """Those of a run, without a prompt, which is made of the event."""
        # A default arrives like what somebody has set; only what was set may be an error where it cannot be kept.
        given = {
            n: self.values[n]
            for n in RUN_INPUTS
            if n not in ("prompt", "prompt-file", "resume") and self.values[n] != _DEFAULTS.get(n)
        }
        where = workspace / (given.pop("working-directory", "") or ".")
        parsed = parse_settings({**given, "resume": "true", "working-directory": str(where)}, lambda name: None)
        return replace(parsed, resume=False)


@dataclass(slots=True)
class Step:
    """One step of a workflow.

    Args:
        environ: as the step was given it; secrets are in here and nowhere else.
        provider: from a name to the provider.
        write: prints one line of the log.
    """

    environ: Mapping[str, str]
    provider: Callable[[str, Settings], Provider]
    write: Callable[[str], None]
    log: Log = field(init=False)
    files: RunnerFiles = field(init=False)
    secrets: Secrets = field(init=False)
    told: dict[str, Value] = field(init=False, default_factory=dict)
    """The outputs of an attempt that is under way, as far as they are known."""
    _held: list[str] | None = field(init=False, default_factory=list)
    _misses_outputs: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.log = Log(self._line)
        self.files = RunnerFiles(self.environ)
        self.secrets = Secrets(split_environment(self.environ)[1])

    def run(self) -> int:
        """Returns the exit code; never raises for what a user or GitHub can cause."""
        for number in heeded():
            signal.signal(number, self._stopped)
        try:
            return self._run()
        except _Skip as skip:
            self.log.annotate("notice", str(skip), "endstate")
            self.outputs({"conclusion": "skipped"})
            return 0
        except EndstateError as error:
            return self._failed(error)
        except Exception as error:  # noqa: BLE001  the last door: what gets here is a defect of ours
            return self._failed(_defect(error))
        finally:
            self.begin_log()

    def begin_log(self, *first: str) -> None:
        """Say what the log begins with, then all that was said before it was known."""
        held, self._held = self._held or [], None
        for line in first:
            self.log.say(line)
        for line in held:
            self.write(line)

    def _line(self, line: str) -> None:
        if self._held is None:
            self.write(line)
        else:
            self._held.append(line)

    def _failed(self, error: EndstateError) -> int:
        row = ending(error.exit_code)
        message = self.secrets.redact(_as_inputs(f"{error} {error.hint}".strip()))
        self.log.annotate("error", message, f"endstate: {row.conclusion}")
        if foreign := self.files.undo_foreign():
            self.tell_foreign(foreign)
        self.outputs({**self.told, "conclusion": row.conclusion})
        if self.environ.get("INPUT_JOB_SUMMARY", "").strip() != "false":
            self.summary(render.cut_short(row.conclusion, message, int(self.told.get("steps") or 0)))
        return row.exit_code

    def outputs(self, values: Mapping[str, Value]) -> None:
        """State outputs. Where the runner cannot be told, that is said once: what came of the run is as it was."""
        try:
            self.files.outputs(values)
        except StateError as error:
            if not self._misses_outputs:
                self.log.annotate(
                    "error",
                    f"{error} Later steps get no outputs of this one. The run is not touched by that: what came of it "
                    f"is delivered as ever, and told in this log. {error.hint} A re-run states the outputs again.",
                    "endstate: no outputs",
                )
            self._misses_outputs = True

    def summary(self, markdown: str) -> None:
        """Nothing that is secret goes in; the runner's own masks are for the log."""
        try:
            self.files.summary(self.secrets.hide(markdown))
        except StateError as error:
            self.log.annotate("warning", f"{error} There is no job summary; nothing else is missing.", "endstate")

    def tell_foreign(self, names: tuple[str, ...]) -> None:
        self.log.annotate("error", f"A tool wrote to {', '.join(names)}; that was undone.", "endstate")

    def _stopped(self, number: int, _: FrameType | None) -> NoReturn:
        """A signal while no session is open: nothing can be torn, and nothing is to be saved."""
        with suppress(StateError):
            self.files.outputs({"conclusion": "interrupted"})
        self.begin_log()
        said = f"Interrupted by {signal.Signals(number).name}; nothing was under way. The next attempt goes on."
        with suppress(OSError):
            self.log.annotate("error", said, "endstate: interrupted")
        os._exit(75)

    def _run(self) -> int:
        inputs = Inputs.of(self.environ)
        if not self.environ.get("GITHUB_WORKSPACE"):
            raise InputError(
                "GITHUB_WORKSPACE is not set, so nothing was run.",
                hint="This command is for a step of a workflow; on the command line it is `endstate run`.",
            )
        workspace = Path(self.environ["GITHUB_WORKSPACE"])
        settings = inputs.settings(workspace)
        rules = parse_rules(inputs.values)
        event = read_event(self.environ)
        if reason := skipped(event, rules) if event.run.attempt == 1 else None:
            raise _Skip(reason.reason)
        self._need_key()
        github = self.github(event, inputs)
        event = self._with_pull_request(event, github)
        line = lineage(event, inputs.values)
        asked = _Asked(self, inputs, settings, rules, event, github, line, workspace)
        return asked.run()

    def _need_key(self) -> None:
        if not self.environ.get("ANTHROPIC_API_KEY", "").strip():
            raise InputError(
                "anthropic-api-key is empty, so nothing was run and nothing was spent.",
                hint="Give it a secret: `anthropic-api-key: ${{ secrets.ANTHROPIC_API_KEY }}`.",
            )

    def github(self, event: Event, inputs: Inputs) -> GitHub:
        token = inputs.values["github-token"] or self.environ.get("GITHUB_TOKEN", "")
        if not token:
            raise InputError(
                "There is no token for GitHub, so nothing was run and nothing was spent.",
                hint="Leave github-token at its default, which is the job's own token.",
            )
        return GitHub(event.run.api_url, token, self.environ)

    def _with_pull_request(self, event: Event, github: GitHub) -> Event:
        number = event.pull_request_number
        if event.pull_request is not None or number is None:
            return event
        found = read_pull_request(github, event.repository.full_name, number)
        if isinstance(found, Applied):
            return with_pull_request(event, found.value.pull_request)
        if isinstance(found, Unavailable | RateLimited | Ambiguous):
            raise _no_answer(found)
        remedy = f"{found.remedy} " if isinstance(found, Denied) else ""
        raise InputError(
            f"Pull request #{number} could not be read ({found.reason}); nothing was run and nothing was spent.",
            hint=f"{remedy}Give the job `pull-requests: write`, or run it again.",
        )


@dataclass(slots=True)
class _Asked:
    """A step whose inputs and event are understood."""

    step: Step
    inputs: Inputs
    settings: Settings
    rules: Rules
    event: Event
    github: GitHub
    line: Lineage
    workspace: Path
    place: Place | None = None
    commits: Commits | None = None
    groups: ExitStack = field(default_factory=ExitStack)
    trusted: str | None = None
    """The trusted commit, once it is known."""
    working: Working | None = None
    started: float = field(default_factory=time.time)
    steps: int = 0
    asked: Prompt | None = None
    has_outsiders: bool = False
    """Whether text of the event is of somebody who may not write here."""
    base: str | None = None
    """The commit that the session which this run began was begun on."""
    began: AttemptBegan | None = None
    sandbox: str = "none"
    sandbox_note: str = ""
    departed: Departed = Departed("none", None)  # noqa: RUF009  a value
    restored: Arrived | None = None
    announced: Announced | None = None
    head: str | None = None
    """The commit that is checked out."""
    viewer: Viewer | None = None
    levels: dict[str, Outcome[Level]] = field(default_factory=dict)
    effects: int = 0
    """Effects outside that are known to have been started; our comment bears witness to them."""

    def run(self) -> int:
        step, event = self.step, self.event
        where = self.settings.working_directory
        with Trusted.of(Path(where), step.environ, self._git_extra()) as trusted:
            self.head = trusted.head()
            if self.head not in (event.run.sha, event.pull_request.head_sha if event.pull_request else None):
                step.log.say(
                    f"The checkout is at {(self.head or 'no commit')[:12]}, not at what the event is about "
                    f"({event.run.sha[:12]}): the result is one of the checkout."
                )
            self._check(trusted)
            repository = event.repository
            self.effects, is_told = self._witness()
            errand = Errand(
                Line(lineage_of(str(repository.id or repository.full_name), self.line.text), repository.full_name),
                lambda task: session_id(self.line.text, task),
                lambda bound: self._approve(bound, trusted),
                lambda: (self._prompt(trusted).id, self._prompt(trusted).text),
                resume=self.inputs.resume,
                is_retry=event.run.attempt > 1,
                witness=self.effects,
                is_told=is_told,
                read=lambda name: trusted.read(self._trust(trusted), name),
                claimant=json.dumps({"format": 1, **asdict(self._claimant())}).encode(),
                refuse=self._refuse,
            )
            ports = Ports(
                step.environ,
                step.provider,
                self._on_event,
                lambda text: step.log.say(_as_inputs(text)),
                tools=self._offered,
                process=lambda: {**identity(), "run_attempt": event.run.attempt},
                finish=self._finish,
                make_sandbox=self._make_sandbox,
                more_tools=self._more_tools,
                newer_attempt=self._newer_attempt,
                git_extra=self._git_extra(),
                git_token=self._token(),
            )
            try:
                report = attend(self.settings, errand, ports)
            except EndstateError as error:
                self._tell_end(error)
                raise
            finally:
                self.groups.close()
                if self.working:
                    self.working.stop()
        if isinstance(report, AlreadyDelivered):
            return self._again(report)
        return self._report(report)

    def _tell_end(self, error: EndstateError) -> None:
        """In the comment, also where an earlier attempt left it saying that it works: a re-run would end as we do."""
        if isinstance(error, Superseded | Locked):
            return
        conclusion = ending(error.exit_code).conclusion
        working = self.working or (None if conclusion == "interrupted" else self._left_working())
        if working:
            working.end(conclusion, _as_inputs(f"{error} {error.hint}".strip()))

    def _left_working(self) -> Working | None:
        """The comment as an attempt of this run left it that is gone, if it says that it works."""
        standing = self._standing() if self.event.run.attempt > 1 else None
        marker = self._marker_of(standing)
        if standing is None or marker is None or marker.state != "working":
            return None
        left = self._living_comment(Place(self._owner(), self._viewer()))
        left.take_over(standing)
        return left

    def _living_comment(self, place: Place) -> Working:
        """It speaks by a client of its own, since that serves one thread at a time."""
        other = Conversation(
            self.step.github(self.event, self.inputs), self.event.repository.full_name, self.event.number or 0
        )
        return Working(place, other, self._now, self.step.secrets, self.event.comment)

    # Who asks, and for what

    def _check(self, trusted: Trusted) -> None:
        """Refuse what can be, before a number is claimed and a directory made: a mistake leaves nothing behind.

        On a re-run the session's record has a say in who asked and what for, so there it is needed first.
        """
        if self.event.run.attempt == 1:
            self._approve(None, trusted)
            self._prompt(trusted)
            if self.inputs.commit != "none":
                self._prove_commit()

    def _trust(self, trusted: Trusted, recorded: object = None) -> str:
        """The trusted commit, which is made available.

        Args:
            recorded: what a session of this run began with; today's tip may be another.
        """
        if self.trusted is None:
            event, is_known = self.event, isinstance(recorded, str) and COMMIT.fullmatch(recorded) is not None
            self.trusted = str(recorded) if is_known else self._tip()
            if said := trusted.bring(self.trusted, is_retry=event.run.attempt > 1):
                told = _without(self.trusted, self.step.secrets.redact(said))
                self.step.log.annotate("notice", told, "endstate")
        return self.trusted

    def _tip(self) -> str:
        """Where the target branch is now: its rules may have become stricter since the event."""
        event = self.event
        if event.pull_request is None:
            return event.run.sha
        branch = event.pull_request.base_ref
        found = told(lambda: Runs(self.github, event.repository.full_name).head(branch))
        if isinstance(found, Applied):
            return found.value
        self.step.log.say(
            f"Where {branch} is now could not be read ({found.reason}): configuration and instructions are those of "
            f"{event.pull_request.base_sha[:12]}, as the event names it."
        )
        return event.pull_request.base_sha

    def _approve(self, bound: Mapping[str, Any] | None, trusted: Trusted) -> Mapping[str, Any]:
        event = self.event
        recorded = _recorded(bound)
        actor = actor_of(event, recorded)
        reason = skipped(event, self.rules, recorded)
        if reason is not None:
            raise _Skip(reason.reason)
        level = self._level(actor.login)
        if isinstance(level, Unavailable | RateLimited | Ambiguous):
            raise _no_answer(level)
        if isinstance(level, Denied) and level.has_expired:
            raise InputError(
                f"GitHub does not take the token ({level.reason.rstrip('.')}). Nothing was run and nothing was spent.",
                hint="Correct the secret behind `github-token`. The job's own token is new in each re-run.",
            )
        found = decide(event, self.rules, level.value if isinstance(level, Applied) else None, recorded)
        match found:
            case Skipped(words):
                raise _Skip(words)
            case Refused(words, hint):
                raise InputError(words, hint=hint)
            case Allowed():
                pass
        if bound and recorded and recorded.run_id == event.run.id:
            # What this run was told when it began decides, as does who asked: the prompt is not made anew.
            self.base, self.has_outsiders = bound.get("base"), bound.get("outsiders") is True
            # An earlier release recorded none, and took what the event names.
            self._trust(trusted, bound.get("trusted") or (event.pull_request and event.pull_request.base_sha))
        else:
            self.has_outsiders = self._has_outsiders(self._prompt(trusted))
        return {
            "repository": event.repository.full_name,
            "pull-request": event.pull_request_number,
            "asked-in": event.asked_in,
            "owner": self._owner(),
            "actor": {"login": actor.login, "is_bot": actor.is_bot, "run_id": event.run.id},
            "outsiders": self.has_outsiders,
            "trusted": self._trust(trusted),
        }

    def _has_outsiders(self, prompt: Prompt) -> bool:
        """Whether somebody who may not write here wrote what the model reads. Who cannot be asked about may not."""
        if self.settings.sandbox != "auto":
            return False
        for author in prompt.authors:
            if author is None:
                return True
            level = self._level(author.login)
            if not isinstance(level, Applied) or LEVELS.index(level.value) < LEVELS.index("write"):
                return True
        return False

    def _offered(self, tools: list[Tool]) -> list[Tool]:
        """Without a sandbox, text of people who may not write here must find no shell."""
        if not self.has_outsiders or self.sandbox != "none" or all(tool.name != "bash" for tool in tools):
            return tools
        self.step.log.annotate(
            "warning",
            "There is no sandbox here, and text of the event is by somebody without write access: the agent gets no "
            "shell. With bubblewrap installed it would.",
            "endstate: no shell",
        )
        return [tool for tool in tools if tool.name != "bash"]

    def _viewer(self) -> Viewer:
        """Who we are to GitHub, asked once."""
        if self.viewer is None:
            self.viewer = viewer_of(self.github)
        return self.viewer

    def _level(self, login: str) -> Outcome[Level]:
        """What an account may do here, asked once."""
        if login not in self.levels:
            self.levels[login] = permission_of(self.github, self.event.repository.full_name, login)
        return self.levels[login]

    def _owner(self) -> str:
        run = self.event.run
        # Jobs that share a session by its key, as retry jobs do, share its comment.
        step = self.inputs.values["step"] or run.step
        entry = f"{run.job} {matrix_digest(self.inputs.values['matrix'])}".rstrip()
        job, step = ("", self.line.text) if self.line.is_explicit else (entry, step)
        return owner_of(run.workflow_ref.partition("@")[0], job, step, self.event.number or 0)

    def _prompt(self, trusted: Trusted) -> Prompt:
        if self.asked is None:
            self.asked = self._built(trusted)
        return self.asked

    def _built(self, trusted: Trusted) -> Prompt:
        event, commit = self.event, self._trust(trusted)
        task = task_of(event, self.inputs.values, self.rules.phrase, lambda name: trusted.read(commit, name))
        thread = self._thread(trusted, commit) if event.number is not None else None
        prompt = build(event, task, thread)
        for note in prompt.notes:
            self.step.log.say(note)
        return prompt

    def _thread(self, trusted: Trusted, commit: str) -> Thread | None:
        subject = self.event.pull_request or self.event.issue
        if subject is None:
            return None
        if self.event.pull_request is None:
            return Thread(subject, tuple(self._comments()))
        parted = self._parted(trusted, commit)
        if not parted:
            # All that the agent may compare with is the target branch as it is now.
            return Thread(subject, tuple(self._comments()), compare=commit)
        stat = trusted.diff_stat(parted)
        return Thread(subject, tuple(self._comments()), stat, parted if stat else "")

    def _parted(self, trusted: Trusted, commit: str) -> str:
        """Where the pull request left its target branch: what that got since is no change of the pull request's."""
        head = trusted.head()
        if head is None:
            return ""
        if known := trusted.parted(commit):
            return known
        found = told(lambda: Runs(self.github, self.event.repository.full_name).parted(commit, head))
        reason = trusted.bring(found.value, is_retry=True) if isinstance(found, Applied) else found.reason
        if isinstance(found, Applied) and not reason:
            return found.value
        said = self.step.secrets.redact(reason).rstrip(".")
        self.step.log.say(f"Where the pull request left its target branch is not known ({said}).")
        return ""

    def _comments(self) -> Iterator[Comment]:
        event = self.event
        for kind, path in _COMMENTS:
            if kind != "comment" and event.pull_request is None:
                continue
            where = f"{place_of(event.repository.full_name)}/{path.format(event.number)}"
            try:
                for raw in self.github.pages(where, "pull-requests: read"):
                    yield parse_comment(raw, kind)
            except (Failed, InputError) as error:
                self.step.log.say(f"Not all comments could be read ({error}); the prompt goes without them.")

    def _claimant(self) -> Claimant:
        return claimant(self.event, self.step.environ, self.inputs.values["job"])

    def _refuse(self, other: bytes) -> None:
        """Two jobs of one run attempt must not share a line by accident."""
        try:
            shown = json.loads(other)
            earlier = Claimant(int(shown["run_id"]), int(shown["run_attempt"]), str(shown["job"]))
        except (ValueError, TypeError, KeyError):
            return
        refuse_collision(self.line, self._claimant(), earlier)

    # What has to hold before anything is spent

    def _prove(self) -> None:
        """Raises: InputError: a permission is missing; with the lines to paste. Nothing was spent."""
        event = self.event
        if self.place is not None:
            return  # a session that was started over asks again
        self.place = Place(self._owner(), self._viewer())
        if self.inputs.commit != "none":
            self.place = replace(self.place, commits=self._prove_commit(), target=self._target())
        if self.inputs.comment == "sticky" and event.number is not None:
            conversation = Conversation(self.github, event.repository.full_name, event.number)
            self.place = replace(self.place, conversation=conversation)
            self.working = self._living_comment(self.place)
            posted = self.working.begin()
            if not isinstance(posted, Applied):
                raise self._missing("comment: sticky", posted)

    def _prove_commit(self) -> Commits:
        """Raises: as `_prove`."""
        self._target()
        if self.commits is None:
            commits = Commits(self.github, self.event.repository.full_name)
            proved = commits.may_commit()
            if not isinstance(proved, Applied):
                raise self._missing(f"commit: {self.inputs.commit}", proved)
            self.commits = commits
        return self.commits

    def _missing(self, what: str, failure: Failure) -> InputError | Interrupted:
        match failure:
            case Unavailable() | RateLimited() | Ambiguous():
                return _no_answer(failure)
            case Rejected():
                name = what.partition(":")[0]
                hint = f"No permission would help: put right what GitHub says, or do without, by another `{name}`."
            case _ if what.startswith("comment") and self.event.name == "pull_request" and self.event.is_fork:
                hint = (
                    "The token of a fork's pull request may only read, whatever the workflow file says: turn the "
                    "comment off by a variable (`comment: off`), or let the repository's Actions settings give such "
                    "runs a write token."
                )
            case Denied() if not failure.lacks:
                hint = failure.remedy
            case _:
                hint = (
                    "Give the job all of these lines, in a new run (a re-run keeps the old workflow file); what such a "
                    f"block leaves out is taken away:\n{self._permissions()}"
                )
        said = failure.reason.rstrip(".")
        return InputError(f"{what} is not possible here: {said}. Nothing was run and nothing was spent.", hint=hint)

    def _permissions(self) -> str:
        """All that this step needs, as lines to paste."""
        writes = self.inputs.commit != "none" or self.settings.store == "git-ref"
        lines = [f"contents: {'write' if writes else 'read'}"]
        if self.event.number is not None:
            # A conversation is an issue's or a pull request's, and each has its own permission.
            name = "issues" if self.event.pull_request_number is None else "pull-requests"
            lines.append(f"{name}: {'write' if self.inputs.comment == 'sticky' else 'read'}")
        lines.append("actions: read")  # to see that a newer attempt has taken over
        return "\n".join(("permissions:", *(f"  {line}" for line in lines)))

    def _target(self) -> Target | None:
        """The branch; with None, the session's own, whose name is known once there is one."""
        if self.inputs.commit == "branch":
            return None
        head = self.event.pull_request
        if head is None:
            raise InputError(
                "commit: pr-head needs a pull request, and this event has none. Nothing was run.",
                hint="Set commit to branch, by a variable or in the workflow file.",
            )
        if head.head_ref == self.event.repository.default_branch and not head.is_fork:
            raise InputError(
                f"commit: pr-head pushes to the head of the pull request, and that is {head.head_ref}, the default "
                "branch, to which nothing is ever pushed. Nothing was run and nothing was spent.",
                hint="Set commit to branch, by a variable or in the workflow file.",
            )
        if head.is_fork:
            raise InputError(
                "commit: pr-head pushes to the head of the pull request, and that is a branch of a fork, which the "
                "job's token cannot push to. Nothing was run and nothing was spent.",
                hint="Set commit to branch, for a branch of this repository, or to none, for a patch: by a variable, "
                "or in the workflow file for a new run.",
            )
        there = self.base or self.head
        if there != head.head_sha:
            raise InputError(
                f"commit: pr-head needs the head of the pull request checked out ({head.head_sha[:12]}), and here is "
                f"{(there or 'nothing')[:12]}. Nothing was run and nothing was spent.",
                hint="Give actions/checkout these lines: `with: {ref: ${{ github.event.pull_request.head.sha }}}`.",
            )
        return Target(head.head_ref, is_own=False)

    def _witness(self) -> tuple[int, bool]:
        """The number of effects outside that our comment says were started, and whether it has a result."""
        marker = self._marker_of(self._standing())
        return (marker.effects, marker.state == "success") if marker else (0, False)

    def _standing(self) -> PostedComment | None:
        """Our comment as it stands, if there is to be one."""
        if self.inputs.comment != "sticky" or self.event.number is None:
            return None
        ours = Place(self._owner(), self._viewer())
        found = Conversation(self.github, self.event.repository.full_name, self.event.number).find(ours.is_ours)
        return found.value if isinstance(found, Applied) else None

    def _marker_of(self, comment: PostedComment | None) -> Marker | None:
        """What it says of a session of this run; None where it is another one's."""
        marker = parse_marker(comment.body) if comment else None
        return marker if marker and marker.session == session_id(self.line.text, marker.task) else None

    def _newer_attempt(self) -> int | None:
        """Somebody has started the run again; where the job may not ask (`actions: read`), the store's fence is all."""
        run = self.event.run
        found = read_run(self.github, self.event.repository.full_name, run.id)
        return found.value.attempt if isinstance(found, Applied) and found.value.attempt > run.attempt else None

    def _more_tools(self) -> list[Tool]:
        event = self.event
        if event.number is None:
            return []
        conversation = Conversation(self.github, event.repository.full_name, event.number)
        return [PrComment(conversation, self._viewer(), time.time())]

    def _make_sandbox(self, probe: Callable[[], Sandbox | NoSandbox]) -> Sandbox | NoSandbox:
        obtained = obtain(probe, self.step.environ, may_install=True)
        for sentence in obtained.done:
            # On a self-hosted runner it stays so after the job.
            self.step.log.say(f"changed on this machine, for the sandbox: {sentence}")
        return obtained.sandbox

    # While it runs

    def _on_event(self, event: Any) -> None:
        log = self.step.log
        match event:
            case SandboxChosen():
                self.sandbox, self.sandbox_note = event.sandbox, event.note
                # The last moment before anything is spent, and the first at which nothing else can be refused: what
                # was delivered before is not announced anew, and a mistake in the inputs leaves no comment.
                self._prove()
            case Departed():
                self._departed(event)
            case AttemptBegan():
                self.began = event
                if not event.resumed:
                    self.restored = None  # what was restored was put back, and a new session begins
                    self.step.told["restored-tree-hash"] = None
                limits = self.settings.limits
                began = f"resumed, attempt {event.epoch}" if event.resumed else f"attempt {event.epoch}"
                self.step.begin_log(
                    f"session {event.session} · {began} · at most {limits.max_steps} steps, "
                    f"${limits.max_cost_usd} and {limits.max_minutes:g} minutes",
                    f"sandbox: {self.sandbox} ({self.sandbox_note}) · checkpoints: {self.departed.store}",
                    f"comment: {self.working.url if self.working else 'none'}",
                )
                told: dict[str, Value] = {"session-id": event.session, "attempt": event.epoch, "resumed": event.resumed}
                told["restored-from"] = self.restored.key if self.restored else None
                self.step.outputs(told)
                self.step.told |= {
                    **told,
                    "sandbox": self.sandbox,
                    "durability": self.departed.store,
                    "comment-url": self.working.url if self.working else None,
                    **({} if event.resumed else {"steps": 0}),
                }
                self.groups.enter_context(log.group("What the agent does"))
            case StepEnded():
                cost = "cost unknown" if event.cost_usd is None else dollars(event.cost_usd)
                log.say(f"step {event.step} · {count_of(event.calls, 'call')} · {cost}")
                self.steps = event.step
                self.step.told |= {"steps": event.step, "cost-usd": event.cost_usd}
            case Told():
                log.say(event.text)
            case Arrived():
                self.restored = event
                self.step.told |= {"restored-from": event.key, "restored-tree-hash": event.tree_hash}
            case _:
                status = "" if event.status == "ok" else f" · {event.status}"
                settled = f" · {event.settled.action}: {event.settled.reason}" if event.settled else ""
                log.say(f"  {event.name[:40]} · {event.elapsed_s:.1f} s{status}{settled}")

    def _departed(self, event: Departed) -> None:
        self.departed = event
        if self.began:
            self.step.told["durability"] = event.store
        key = CheckpointKey.parse(event.shipped.key) if event.shipped else None
        is_news, self.effects = bool(key and key.effects > self.effects), max(self.effects, key.effects if key else 0)
        if is_news and self.working:
            # Before the effect, since it is the witness to it should the store lose what was stored.
            self.working.say(at_once=True)
        if event.shipped:
            if event.is_first:
                near = f": {event.survives}" if event.is_near else ""
                self.step.log.say(f"checkpoints: {event.store}, the first one is stored{near}")
            elif event.problem:
                self.step.log.say(
                    f"checkpoints: the newest one stored is {event.shipped.age_s} s old, newer ones are not, since "
                    f"{event.problem.reason}"
                )
        elif event.problem:
            remedy = f" {_as_inputs(event.problem.remedy)}" if event.problem.remedy else ""
            self.step.log.annotate(
                "warning",
                f"No checkpoint leaves this machine, since {event.problem.reason.rstrip('.')}. "
                f"If it is lost, so is the run.{remedy}",
                "endstate: not durable",
            )
        if self.working and self.began:
            self.working.soon(at_once=event.is_first and event.shipped is not None)

    def _now(self) -> render.Working:
        """What the comment says of the run while it lives."""
        began, departed = self.began, self.departed
        shipped = departed.shipped
        session = began.session if began else session_id(self.line.text, 1)
        return render.Working(
            session=session,
            task=1,
            attempt=began.epoch if began else self.event.run.attempt,
            effects=self.effects,
            started=moment(self.started),
            alive=moment(time.time()),
            step=self.steps,
            store={"cache": "Actions cache", "git-ref": "git ref"}.get(departed.store, departed.store),
            is_durable=shipped is not None,
            sandbox=self.sandbox,
            checkpoint=shipped.key if shipped else "",
            shipped=moment(shipped.at) if shipped else None,
            restored_from=self.restored.key if self.restored else None,
            remedy=departed.problem.remedy if departed.problem else "",
            run_url=self.event.run_url,
            asked_in=self.event.asked_in,
        )

    # The end

    def _finish(self, finishing: Finishing) -> Announcement:
        if self.began is None:
            # It was finished before, and nothing is left to do but to tell.
            self._on_event(AttemptBegan(finishing.session.id, finishing.epoch, resumed=True, pending=0))
        self.groups.close()
        if self.working:
            self.working.stop()
        session, result, place = (
            finishing.session,
            finishing.result,
            self.place or Place("0" * 16, self._viewer()),
        )
        if place.commits and place.target is None:
            place = replace(place, target=own_branch(session.id))
        if self.working:
            place = self.working.leave(place)
        around = replace(
            finishing.around("success" if result.succeeded else "stopped"),
            repository=self.event.repository.full_name,
            pull_request=self.event.pull_request_number,
            run_url=self.event.run_url,
            repository_url=self.event.repository_url,
            branch=self.event.branch,
            head_moved_to=self._moved_to(session.state),
            epoch=finishing.epoch,
        )
        delivery = Delivery(
            session, place, finishing.workplace.repository, self.step.environ, finishing.secrets, finishing.shipper,
            around, self._folder(session.id), finishing.workplace.state.baseline(session.id),
        )  # fmt: skip
        conclusion = "success" if result.succeeded else "stopped"
        announced = delivery.announce(Result(conclusion, result.reason, result.final_message))  # type: ignore[arg-type]
        self.announced = announced
        if self.working and place.conversation and announced.problems and not announced.comment_url:
            self.working.end(
                "undelivered", " ".join(announced.problems), is_final=announced.is_final, is_kept=announced.is_kept
            )
        if delivery.withheld and not announced.commit:
            self.step.log.annotate("warning", delivery.withheld, "endstate")
        if announced.unwritten:
            self.step.log.annotate(
                "warning",
                f"{announced.unwritten}: the output that would name it is empty. The result is not touched by that.",
                "endstate",
            )
        outputs, word = self._outputs(announced), None
        # Where git could not tell what was changed, a re-run looks again.
        if result.succeeded and not announced.problems and not render.is_unread(announced.evidence):
            state = session.state
            word = {
                # Files stay behind with their machine.
                "evidence-file": None,
                "patch-file": None,
                # As it was stated, since a longer one may not fit.
                "final-message": as_output(result.final_message),
                "prompt-ids": [p.id for p in state.prompts],
                # Nothing is gone on with from here, so that what the checkout held then is of no use.
                "bound": {n: told for n, told in state.begun.bound.items() if n not in ("dirty", "nested", "apart")},
            }
        return Announcement(outputs, word)

    def _moved_to(self, state: State) -> str | None:
        """Where the head is by now, if the task goes on on the commit that it began on and this is another."""
        if not is_moved(state, self.head):
            return None
        return self.event.pull_request.head_sha if self.event.pull_request else self.head

    def _folder(self, session: str) -> Path:
        return Path(self.step.environ.get("RUNNER_TEMP") or gettempdir()) / f"endstate-{session}"

    def _outputs(self, announced: Announced) -> dict[str, Any]:
        published, changed = announced.published, announced.evidence.changed_files
        # Where git tells nothing, the machine that made the result may be the only one that knew.
        known = {"changed-files": [file.path for file in changed]} if published is None and changed is not None else {}
        return {
            **known,
            "base-tree": announced.evidence.trees.base_tree,
            "published-tree-hash": published.tree_hash if published else None,
            "git-tree": published.git_tree if published else None,
            "evidence-file": _path(announced.evidence_file),
            "patch-file": _path(announced.patch_file),
            "commit-sha": announced.commit
            or (announced.evidence.commits[-1].id if announced.evidence.commits else None),
            "branch": announced.branch,
            "comment-url": announced.comment_url,
        }

    def _report(self, report: Report) -> int:
        outputs, announced = _as_told(report.outputs), self.announced
        is_undelivered = bool(announced and announced.problems)
        code = (
            (2 if announced and announced.is_final else 75) if is_undelivered else 0 if report.result.succeeded else 1
        )
        row = ending(code, is_undelivered=is_undelivered)
        outputs["conclusion"] = row.conclusion
        if foreign := self.step.files.undo_foreign():
            row = ending(2)
            outputs["conclusion"] = row.conclusion
            self.step.tell_foreign(foreign)
        self.step.outputs({n: self.step.secrets.hide(v) if isinstance(v, str) else v for n, v in outputs.items()})
        if self.inputs.job_summary and announced:
            self.step.summary(
                render.summary(
                    announced.evidence,
                    report.result.final_message,
                    announced.patch,
                    is_final=announced.is_final,
                    is_kept=announced.is_kept,
                )
            )
        if is_undelivered and announced:
            self.step.log.annotate(
                "error",
                f"{' '.join(announced.problems)} {self._what_now(announced)}",
                "endstate: undelivered",
            )
        if report.result.conclusion == "stopped":
            self.step.log.annotate("warning", f"The agent stopped: {report.result.reason}.", "endstate: stopped")
        if announced:
            self.step.log.say(render.headline(announced.evidence))
        return row.exit_code

    def _what_now(self, announced: Announced) -> str:
        again = render.look_again(announced.evidence, is_final=announced.is_final, is_kept=announced.is_kept)
        if again:
            return again
        told = ["comment"] if announced.comment_url else []
        told += ["summary"] if self.inputs.job_summary else []
        where = f"the {' and the '.join(told)} {'say' if len(told) > 1 else 'says'} what can be done." if told else ""
        if announced.is_final:
            said = "Until that is put right a retry would be refused in the same way"
            return f"{said}; {where}" if where else f"{said}."
        if not announced.is_kept:
            return render.NOT_KEPT
        return "The result is kept: run the job again, or `endstate deliver`."

    def _again(self, report: AlreadyDelivered) -> int:
        """A finished and delivered session asked again: its outputs, and no model call."""
        outputs = _as_told({k: v for k, v in report.outputs.items() if k not in ("prompt-ids", "bound")})
        said = (
            "This session was finished and delivered before, so nothing was run and nothing was spent. "
            "A new run of the workflow begins anew."
        )
        self.step.log.annotate("notice", said, "endstate")
        self.step.outputs({**outputs, "conclusion": "success"})
        if self.inputs.job_summary:
            found = " ".join(str(outputs[name]) for name in ("comment-url", "commit-sha") if outputs.get(name))
            self.step.summary(f"{said} {found}".rstrip() + "\n")
        return 0

    # Access

    def _token(self) -> str:
        return self.inputs.values["github-token"] or self.step.environ.get("GITHUB_TOKEN", "")

    def _git_extra(self) -> Mapping[str, str]:
        """For git alone, by its environment, and for this server only."""
        basic = b64encode(f"x-access-token:{self._token()}".encode()).decode()
        return {
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": f"http.{self.event.run.server_url}/.extraheader",
            "GIT_CONFIG_VALUE_0": f"AUTHORIZATION: basic {basic}",
        }


def _path(file: Path | None) -> str | None:
    return None if file is None else str(file)


def _as_told(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs of a run as a workflow gets them: text, and counts in the place of lists of calls."""
    told = {name: value for name, value in outputs.items() if name not in ("reason", "spent-at-least")}
    changed = told.get("changed-files")
    told["changed-files"] = None if changed is None else "\n".join(changed)
    told["settlements"] = len(told.get("settlements") or ())
    return told


def _as_inputs(text: str) -> str:
    # A retry resumes by itself, as `resume` says.
    told = as_inputs(text, frozenset(RUN_INPUTS) - {"resume"})
    if "`on-mismatch: " in told:
        told += " On a re-run an input changes only where the workflow file takes it from a variable."
    return told


def _defect(error: Exception) -> EndstateError:
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else "an unknown place"
    return EndstateError(
        f"Internal error: {type(error).__name__}: {error} ({where}). What was recorded is kept.",
        hint="Please report this. Running the job again goes on from the newest checkpoint.",
    )


def _recorded(bound: Mapping[str, Any] | None) -> Recorded | None:
    """Who a session says asked; None where it does not, or cannot be read."""
    told = bound.get("actor") if bound else None
    try:
        return Recorded(Actor(str(told["login"]), bool(told["is_bot"])), int(told["run_id"])) if told else None
    except (KeyError, TypeError, ValueError):
        return None


def _no_answer(failure: Unavailable | RateLimited | Ambiguous) -> Interrupted:
    """An outage is nothing that a person has to put right, so a retry is offered."""
    return Interrupted(
        f"GitHub could not be asked ({failure.reason}). Nothing was run and nothing was spent.",
        hint="Run the job again when GitHub answers.",
    )


def _without(commit: str, said: str) -> str:
    return (
        f"The trusted commit {commit[:12]} could not be fetched: {said} What this session took from it when it began "
        "is still used; `git diff` with it does not work for the agent."
    )
