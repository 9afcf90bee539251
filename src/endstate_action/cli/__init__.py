"""The `endstate` command: reads arguments, prints, and turns every outcome into an exit code.

Standard output carries the result alone: the final message, or with `--json` one object. Everything
else goes to standard error. This module is the only one that prints or reads the environment.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from io import TextIOWrapper
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, SupportsFloat

import click

from endstate_action import __version__
from endstate_action.errors import EndstateError, InputError, Interrupted, Mismatch, StateError
from endstate_action.messages import count_of, dollars
from endstate_action.system.signals import heeded, hold, release

if TYPE_CHECKING:
    from endstate_action.agent.loop import Event
    from endstate_action.agent.providers.anthropic import AnthropicProvider
    from endstate_action.restoring import Arrived
    from endstate_action.run import Report, SandboxChosen
    from endstate_action.shipper import Departed

EXIT_CODES = {
    0: "done",
    1: "the agent stopped short: a budget, time, the model declined, no answer",
    2: "bad input, or a key or request that the provider rejects",
    3: "a defect of ours",
    4: "state unusable: disk full, read-only, damaged",
    10: "locked: another run holds the state directory",
    11: "superseded by a newer attempt",
    12: "there is no session, or no usable checkpoint, to resume",
    13: "mismatch: the session was begun under another contract",
    20: "outcome unknown: a person must look",
    75: "interrupted, or the provider cannot be reached: a resume goes on",
}
CONCLUSIONS = {"success": 0, "stopped": 1, "interrupted": 75, "mismatch": 13, "failed": 2}

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_DEBUG = "ENDSTATE_TRACEBACK"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_RESUME = "endstate run --resume"
_MEANT = {"resume": "run --resume", "inspect": "sessions inspect", "list": "sessions list",
          "show": "sessions show", "status": "sessions show",
          "export": "sessions export", "prune": "sessions prune"}  # fmt: skip
_CONTROLS = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff]")
# What these begin is a command to whatever runs us as a step of a workflow.
_WORKFLOW_COMMANDS = ("::", "##[")


@dataclass(slots=True)
class _Begun:
    """The attempt that this process has on record, for whatever ends it."""

    session: str | None = None
    attempt: int = 0
    steps: int = 0
    """The newest that it finished; 0 before the first."""
    cost_usd: str | None = None
    """As the outputs have it; None where a price is unknown."""
    may_have_lost: bool = False
    is_running: bool = False
    given: dict[str, str] = field(default_factory=dict)
    """Of the options that were given, those that no session keeps, by name: each as it is typed."""

    def to_json(self) -> dict[str, Any]:
        if self.session is None:
            return {}
        begun = {"session-id": self.session, "attempt": self.attempt}
        if not self.steps:
            return begun
        return begun | {"steps": self.steps, "cost-usd": self.cost_usd, "spent-at-least": self.may_have_lost}

    @property
    def spent(self) -> str:
        return f"{count_of(self.steps, 'step')} · {_money(self.cost_usd, self.may_have_lost)}"

    def hint(self, hint: str) -> str:
        """It must not lead to another session than the one at hand."""
        if self.session is None or "--session" in hint:
            return hint
        return hint.replace(_RESUME, self.again())

    def again(self, without: str = "") -> str:
        """The command that goes on with the session, as it can be pasted."""
        more = [typed for name, typed in self.given.items() if name != without]
        return printable(" ".join((_RESUME, "--session", str(self.session), *more)))


_begun = _Begun()


def main() -> NoReturn:
    """Run the command and exit; no traceback for anything that a user can cause."""
    _open_closed_streams()
    _print_utf_8()
    if sys.platform == "win32":
        _say("endstate: Windows is not supported; nothing was run.")
        _say("  Use Linux, the Linux subsystem of Windows, or macOS.")
        sys.exit(2)
    for number in heeded():
        signal.signal(number, _on_signal)
    as_json = _wants_json()
    try:
        code = cli.main(standalone_mode=False, prog_name="endstate")
    except click.exceptions.Exit as stop:
        code = stop.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        _say(error.format_message())
        code = error.exit_code
    except click.ClickException as error:
        code = _failed(_usage(error), as_json)
    except EndstateError as error:
        code = _failed(error, as_json)
    except SystemExit as stop:
        # Click itself ends with 1, which means something else here, when the reader of a help text is gone.
        code = 0 if stop.code == 1 else stop.code
    except Exception as error:  # noqa: BLE001  the last door: what gets here is a defect of ours
        if isinstance(error, FileNotFoundError | PermissionError) and (nowhere := _nowhere()) is not None:
            code = _failed(nowhere, as_json)
        else:
            code = _unwritten(error) if isinstance(error, OSError) and _is_printing(error) else _defect(error, as_json)
    _leave(code if isinstance(code, int) else 0)


def _leave(code: int) -> NoReturn:
    """At once: what was printed has been flushed line by line, and nothing of ours waits for the interpreter's end.

    Some threads are left behind, in a store that does not answer or in the import of an SDK, and an object store has
    threads of its own. Native code in one of them would abort a process that is taken down in order, and the exit code
    would say something else.
    """
    os._exit(code)


def _open_closed_streams() -> None:
    """A standard stream that was closed before we began leads nowhere; else the next file opened would be it."""
    for descriptor, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the lowest free number: this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def _print_utf_8() -> None:
    """Whatever the locale: what is printed holds prompts, paths and JSON, and no other encoding has them all."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def _on_signal(number: int, _: FrameType | None) -> NoReturn:
    """Before a run catches signals itself, and after: nothing can be torn, so nothing is unwound."""
    name = signal.Signals(number).name
    said = f"Interrupted by {name} before anything was recorded; nothing was run."
    hint = ""
    if _begun.session is not None:
        said = f"Interrupted by {name}. Everything finished so far is recorded."
        hint = _begun.hint(f"`{_RESUME}` continues, or says the result again.")
    # Past Python's own streams: the signal may have come while one of them was being written.
    with suppress(OSError):
        os.write(2, f"endstate: {said}\n{f'  {hint}' if hint else ''}\n".replace("\n\n", "\n").encode())
        if _wants_json() and _begun.session is None:
            os.write(1, (json.dumps(_failure(Interrupted(said), hint)) + "\n").encode())
    os._exit(Interrupted.exit_code)


def _wants_json() -> bool:
    return "--json" in sys.argv[1:]


def _usage(error: click.ClickException) -> InputError:
    """Click's words, with what was probably meant."""
    hint = f"See `{error.ctx.command_path} --help`." if isinstance(error, click.UsageError) and error.ctx else ""
    if isinstance(error, click.exceptions.NoSuchOption) and error.option_name == "--prompt":
        return InputError(error.message, hint='The prompt has no option: `endstate run "Fix the failing test"`.')
    if isinstance(error, click.exceptions.NoSuchCommand) and (meant := _MEANT.get(error.command_name)):
        return InputError(error.message, hint=f"Did you mean `endstate {meant}`?")
    return InputError(error.format_message(), hint=hint)


def _failed(error: EndstateError, as_json: bool) -> int:
    hint = _begun.hint(error.hint)
    if _begun.steps:
        _say(f"{_conclusion(error)} · attempt {_begun.attempt} · {_begun.spent}")
    _say_lines(f"endstate: {error}")
    if hint:
        _say_lines(f"  {hint}")
    if as_json:
        # What went wrong counts, also where nobody can be told of it.
        with suppress(SystemExit):
            _put(json.dumps(_failure(error, hint), ensure_ascii=False))
    return error.exit_code


def _failure(error: EndstateError, hint: str) -> dict[str, Any]:
    body: dict[str, Any] = {"conclusion": _conclusion(error), "error": str(error), "hint": hint}
    if isinstance(error, Mismatch):
        body["differences"] = list(error.differences)
    return body | _begun.to_json() | {"exit-code": error.exit_code}


def _conclusion(error: EndstateError) -> str:
    from endstate_action.ci.conclusions import ending

    return ending(error.exit_code).conclusion


def _money(usd: SupportsFloat | str | None, may_have_lost: bool) -> str:
    if usd is None:
        return "cost unknown"
    return f"{'at least ' if may_have_lost else ''}{dollars(usd)}"


def _defect(error: Exception, as_json: bool) -> int:
    return _failed(as_defect(error), as_json)


def as_defect(error: Exception) -> EndstateError:
    """What a defect of ours is told as; its traceback is printed where that is asked for."""
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    where = f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else "an unknown place"
    shown = EndstateError(
        f"internal error: {type(error).__name__}: {error}",
        hint=f"In {where}. What was recorded is kept. Please report this; "
        f"with {_DEBUG}=1 the whole traceback is shown.",
    )
    if os.environ.get(_DEBUG):
        traceback.print_exception(error)
    return shown


def _nowhere() -> InputError | None:
    """What there is to say where the current directory is none; each command meets it where it first needs its name."""
    try:
        os.stat(os.getcwd())
    except FileNotFoundError:
        what = "was deleted"
    except PermissionError:
        what = "cannot be reached by its name: a directory above it is closed to you"
    else:
        return None
    return InputError(
        f"This could not be done, since the current directory {what}. What was recorded is kept.",
        hint="Change to a directory that is there and open to you, then run the same command again.",
    )


def _is_printing(error: OSError) -> bool:
    """Whether it came to click, which prints help and version by itself."""
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and Path(frames[-1].filename).parent.name == "click"


@click.group(context_settings=_CONTEXT)
@click.version_option(__version__, message="endstate %(version)s")
def cli() -> None:
    """An agent run that survives being killed: start it, kill it, resume it.

    \b
    endstate run "Fix the failing test"     begin
    endstate run --resume                   finish what was interrupted
    endstate run --resume "And update ..."  finish, then go on with a new prompt
    """


class _Number(click.ParamType[float]):
    """A number of something that is 0 or more, and has an end."""

    def __init__(self, of: str) -> None:
        self.name, self._of = "number", of

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = math.nan
        with suppress(ValueError):
            number = float(value)
        if not 0 <= number < math.inf:
            self.fail(f"{value!r} is not a number of {self._of}, 0 or more.", param, ctx)
        return number


def _waiting(command: Callable[..., Any]) -> Callable[..., Any]:
    """The option that says how long to wait for whoever holds the sessions."""
    return click.option("--lock-timeout", metavar="S", type=_Number("seconds"), default=10.0, show_default=True,
                        help="Seconds to wait for another run in this workspace.")(command)  # fmt: skip


def _from_here(_: click.Context, __: click.Parameter, store: str | None) -> str | None:
    """A directory is meant as seen from where it was typed; a resume, typed elsewhere, is shown its whole name."""
    from endstate_action.state.stores.choice import absolute_store

    with suppress(OSError):  # where we are is gone: then what is relative to it is refused as such
        return store and absolute_store(store, Path.cwd())
    return store


def _located(command: Callable[..., Any]) -> Callable[..., Any]:
    """The two options that say where the sessions are."""
    command = click.option("--state-dir", default=".endstate", show_default=True, metavar="DIR",
                           help="Inside the workspace.")(command)  # fmt: skip
    return click.option("--working-directory", default=".", show_default=True, metavar="DIR", help="The workspace.")(
        command
    )


@cli.command(short_help="Run an agent, or go on with one.")
@click.argument("prompt", required=False)
@click.option("--prompt-file", metavar="FILE", help="Read the prompt from a file; - is standard input.")
@click.option(
    "--resume",
    is_flag=True,
    help="Finish the interrupted session. With a prompt: settle what was interrupted, then do that as well.",
)
@click.option("--session", metavar="ID", help="Which session to resume; a unique prefix will do. Implies --resume.")
@click.option("--provider", metavar="NAME", help="anthropic (default) or scripted.")
@click.option("--model", metavar="ID", help="Default: a pinned model of the provider.")
@click.option("--base-url", metavar="URL", help="Another endpoint for the provider.")
@click.option("--script", metavar="FILE", help="What the scripted provider replies. Implies that provider.")
@click.option("--instructions", metavar="WHAT", help="auto (AGENTS.md, else CLAUDE.md), none, or a path.")
@click.option("--config-file", metavar="FILE", help="Default: .github/endstate.yml, where it exists.")
@click.option("--on-mismatch", metavar="WHAT", help="refuse (default), continue or restart.")
@click.option("--max-steps", metavar="N", help="Over all attempts. Default: 200.")
@click.option("--max-cost-usd", metavar="USD", help="Over all attempts. Default: 5.00.")
@click.option("--max-resumes", metavar="N", help="Attempts killed without progress. Default: 5.")
@click.option("--max-minutes", metavar="N", help="Per attempt. Default: 90.")
@click.option("--sandbox", metavar="WHAT", help="auto (default), required or off: where shell commands run.")
@click.option("--network/--no-network", default=None, help="Let shell commands in the sandbox use the network.")
@click.option("--store", metavar="WHERE", callback=_from_here,
              help="Where checkpoints go: auto (default), dir:PATH, git-ref, s3://… or none.")  # fmt: skip
@click.option("--require-durable/--no-require-durable", default=None,
              help="Stop, unspent, when checkpoints cannot leave this machine.")  # fmt: skip
@click.option("--evidence", metavar="FILE", help="Write what `endstate verify` needs; outside the workspace.")
@_waiting
@click.option("--json", "as_json", is_flag=True, help="Print one object with all outputs.")
@_located
def run(
    session: str | None,
    script: str | None,
    lock_timeout: float,
    as_json: bool,
    resume: bool,
    network: bool | None,
    require_durable: bool | None,
    evidence: str | None,
    **given: str | None,
) -> int:
    """Run an agent on the workspace; PROMPT says what to do.

    The key comes from ANTHROPIC_API_KEY, another endpoint from --base-url or ANTHROPIC_BASE_URL. Every
    step is recorded as it happens, in .endstate/. Kill it at any time: `endstate run --resume` goes on.
    """
    environ = _clean_environment()
    from endstate_action.config import parse_settings
    from endstate_action.run import Choice, Ports, as_before
    from endstate_action.run import run as run_story

    inputs = {name.replace("_", "-"): value for name, value in given.items() if value is not None}
    flags = {"network": network, "require-durable": require_durable}
    inputs |= {name: str(flag).lower() for name, flag in flags.items() if flag is not None}
    inputs["resume"] = "true" if resume or session is not None else "false"
    if script is not None and not inputs.get("provider"):
        inputs["provider"] = "scripted"
    settings = parse_settings(inputs, _read_file)
    if session == "":
        raise InputError(
            "--session is empty; nothing was run.", hint=f"Name the session, or leave it out: `{_RESUME}` chooses."
        )
    if script is not None and settings.provider != "scripted":
        raise InputError(
            f"--script is for the scripted provider, but --provider is {settings.provider}. Nothing was run.",
            hint="Give one of them.",
        )
    ports = Ports(environ, lambda name, chosen: _provider(name, chosen.base_url, script, environ), _Lines().event, _say)
    if evidence is not None:
        from endstate_action.hand import evidence_file, keep_evidence

        file = evidence_file(evidence, Path(settings.working_directory), settings.state_dir)
        ports = replace(ports, finish=lambda finishing: keep_evidence(finishing, file, environ, _say_hint))
    typed = settings.given
    if settings.resume:
        settings = as_before(settings, session)
    adopted = {name: _typed(name, text) for name, text in settings.given.items() if name not in typed}
    if adopted:
        _say(f"As the attempt before: {printable(' '.join(adopted.values()))}")
    _begun.given = _kept_by_nobody(click.get_current_context()) | adopted
    _begun.is_running = True
    report = run_story(settings, Choice(session, lock_timeout), ports)
    _begun.is_running = False
    _show(report, as_json)
    code = CONCLUSIONS[report.result.conclusion]
    is_missing = evidence is not None and not report.outputs.get("evidence-file")
    return code or (StateError.exit_code if is_missing else 0)


_OF_THE_SESSION = ("prompt", "prompt_file", "resume", "session", "provider", "model", "instructions", "config_file")
# A person chooses each time whether to go on over what does not match.
_OF_THE_MOMENT = ("on_mismatch", "as_json")


def _kept_by_nobody(context: click.Context) -> dict[str, str]:
    typed = {}
    for parameter in context.command.params:
        name, value = str(parameter.name), context.params.get(str(parameter.name))
        is_given = context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        if is_given and name not in (*_OF_THE_SESSION, *_OF_THE_MOMENT):
            option = parameter.opts[0][2:]
            typed[option] = _typed(option, f"{value:g}" if isinstance(value, float) else str(value))
    return typed


def _typed(name: str, text: str) -> str:
    """An input as an option."""
    flags = {"true": f"--{name}", "false": f"--no-{name}"}
    return flags.get(text.lower(), f"--{name} {shlex.quote(text)}")


def _clean_environment() -> Mapping[str, str]:
    """Our environment as it was given, taken out of reach of the processes that the agent starts."""
    from endstate_action.system.process import harden
    from endstate_action.system.secrets import reexecute_clean, take_sealed

    harden()
    sealed = take_sealed(os.environ)
    if sealed is None:
        hold()
        try:
            reexecute_clean(os.environ, sys.argv[1:])
        finally:
            release()
    return sealed


def _provider(name: str, base_url: str | None, script: str | None, environ: Mapping[str, str]) -> Any:
    """The provider by its name, with what it needs, or an `InputError` that says what is missing."""
    if name == "scripted":
        from endstate_action.agent.providers.scripted import ScriptedProvider, load_script

        if script is None:
            raise InputError("The scripted provider needs --script FILE; nothing was run.", hint="Name the script.")
        return ScriptedProvider(load_script(Path(script)))
    if name != "anthropic":
        raise InputError(f"There is no provider {name!r}; nothing was run.", hint="anthropic and scripted exist.")
    from endstate_action.agent.providers.anthropic import AnthropicProvider
    from endstate_action.config import parse_base_url

    key, token = environ.get("ANTHROPIC_API_KEY") or None, environ.get("ANTHROPIC_AUTH_TOKEN") or None
    if key is None and token is None:
        raise InputError(
            "There is no key: ANTHROPIC_API_KEY is not set. Nothing was run and nothing was spent.",
            hint="Set ANTHROPIC_API_KEY, or try it without a key: `endstate demo`.",
        )
    url = base_url or environ.get("ANTHROPIC_BASE_URL") or None
    provider = AnthropicProvider(
        key, token, parse_base_url("base-url", url) if url else None, env=environ, on_retry=_retrying
    )
    # The SDK takes about a second to import; meanwhile the session is opened and settled.
    Thread(target=_warm_up, args=(provider,), daemon=True).start()
    return provider


def _warm_up(provider: AnthropicProvider) -> None:
    with suppress(Exception):  # the run meets it again, where it can be told
        provider.warm_up()


def _say_hint(text: str) -> None:
    _say(_begun.hint(text))


def _retrying(text: str) -> None:
    """For a person who waits; a log is told the end alone."""
    if sys.stderr.isatty():
        _say(printable(text))


def _read_file(name: str) -> bytes | None:
    from endstate_action.config.settings import PROMPT_MAX_BYTES

    if name == "-":
        return _read_stdin()
    try:
        with open(name, "rb") as file:
            return file.read(2 * PROMPT_MAX_BYTES)  # as of standard input
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InputError(f"{name} cannot be read ({error.strerror}); nothing was run.", hint="Name a file.") from error


def _read_stdin() -> bytes:
    from endstate_action.config.settings import PROMPT_MAX_BYTES

    if sys.stdin.isatty():
        _say("The prompt is read from here; Ctrl-D ends it.")
    # More than enough to be refused as too long; what never ends is not read to its end.
    return sys.stdin.buffer.read(2 * PROMPT_MAX_BYTES)


def _show(report: Report, as_json: bool) -> None:
    result, outputs = report.result, report.outputs
    why = f" ({result.reason})" if result.reason else ""
    steps = count_of(result.steps, "step") + (" of this task" if report.task > 1 else "")
    failed = f" · {count_of(report.failed_calls, 'call')} failed" if report.failed_calls else ""
    idle = f" · {count_of(report.calls_not_run, 'call')} not run" if report.calls_not_run else ""
    refused = f" · {count_of(result.refused_calls, 'call')} refused" if result.refused_calls else ""
    _say(f"{result.conclusion}{printable(why)} · {count_of(result.attempt, 'attempt')} · {steps}{failed}{idle}"
         f"{refused} · {_money(result.cost_usd, outputs['spent-at-least'])} · tree {outputs['tree-hash']}")  # fmt: skip
    if report.departed:
        _say_departed(report.departed)
    if result.conclusion == "stopped":
        _say(f"  {_further(result.reason)}")
    if as_json:
        _put(json.dumps(outputs, ensure_ascii=False))
    elif result.final_message:
        _put(_harmless(result.final_message))


def _further(reason: str) -> str:
    """What can be done about a stop, by the words that its reason begins with."""
    match reason.partition(":")[0]:
        case "max-steps" | "max-cost-usd" | "max-resumes" as limit:
            # Limits add up over attempts, so with the same one it would stop at once: twice what is used.
            used = re.search(r"\d+(?:\.\d+)?", reason)
            more = max(math.ceil(float(used[0]) * 2), 1) if used else "…"
            return f"Nothing is lost: `{_begun.again(without=limit)} --{limit} {more}` goes on with a higher limit."
        case "max-minutes":
            return f"Nothing is lost: `{_begun.again()}` goes on, since time is per attempt."
        case "history too long":
            return (
                "A resume would stop in the same way. What was done stays in the workspace: begin anew there, with a "
                "shorter prompt or shorter instructions; long text can stand in a file that the prompt names."
            )
        case "price unknown":
            again = _begun.again(without="max-cost-usd")
            return (
                f"Nothing is lost: `{again}` goes on without a limit of cost. To keep one, give that model a price "
                "under `prices` in the configuration, and begin anew."
            )
        case _:
            return f"Nothing is lost: `{_begun.again()}` goes on."


def _say_departed(departed: Departed) -> None:
    """How old the newest checkpoint is, and why it is not newer."""
    if departed.shipped:
        age = count_of(departed.shipped.age_s, "second")
        newest = "the newest that was stored is" if departed.problem else "the newest is stored,"
        _say(f"checkpoints: {departed.store}, {newest} {age} old ({departed.shipped.key})")
    if departed.problem:
        rest = "what was recorded since is on this machine only" if departed.shipped else "all is on this machine only"
        _say(f"  The last one was not stored, so {rest}: {printable(departed.problem.reason)}")
        if departed.problem.remedy:
            _say(f"  {printable(departed.problem.remedy)}")


_ONLY_TELL = ("list", "show", "export", "inspect", "restore", "tree-hash", "verify", "demo", "check")
"""Commands that have done nothing when nobody reads to their end."""


class _Lines:
    """What a person sees while it runs: one line a call on a terminal, else the first line alone."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._cost = ""
        self._sandbox = ""
        self._store = "none"

    def event(self, event: Event | SandboxChosen | Departed | Arrived) -> None:
        from endstate_action.agent.calls import CallEnded
        from endstate_action.agent.loop import AttemptBegan, StepEnded, Told
        from endstate_action.run import SandboxChosen
        from endstate_action.shipper import Departed

        match event:
            case Departed():
                self._departed(event)
            case SandboxChosen():
                self._sandbox = event.sandbox
                if event.sandbox == "none" and _begun.given.get("sandbox") != "--sandbox off":
                    # Nobody is to lose it unawares.
                    self._sandbox += f" ({printable(event.note.rstrip('.'))})"
                elif self._is_terminal:
                    _say(f"sandbox: {event.sandbox} ({printable(event.note)})")
            case AttemptBegan():
                _begun.session, _begun.attempt = event.session, event.epoch
                _begun.may_have_lost = event.may_have_lost
                pending = f" · {count_of(event.pending, 'call')} to settle" if event.pending else ""
                began = f"resumed, attempt {event.epoch}" if event.resumed else "attempt 1"
                _say(f"session {event.session} · {began}{pending} · sandbox: {self._sandbox} · "
                     f"checkpoints: {self._store} · "
                     f"if it dies: {_begun.again()}")  # fmt: skip
            case StepEnded():
                from endstate_action.state.totals import as_text

                self._cost = _money(event.cost_usd, _begun.may_have_lost)
                _begun.steps, _begun.cost_usd = event.step, as_text(event.cost_usd)
                if self._is_terminal and not event.calls:
                    _say(f"step {event.step}  answer  {self._cost}")
            case Told():
                _say(printable(event.text))
            case CallEnded() if self._is_terminal:
                outcome = "" if event.status == "ok" else f"  {event.status}: {_first_line(event.content)}"
                settled = f"  ({event.settled.action}: {printable(event.settled.reason)})" if event.settled else ""
                what = _summary(event.arguments)
                name = printable(event.name)[:40]
                _say(f"step {event.step}  {name}  {what}  {event.elapsed_s:.1f} s  {self._cost}{outcome}{settled}")
            case _:
                pass

    def _departed(self, event: Departed) -> None:
        """Nobody is to learn of it only when the machine is gone."""
        self._store = event.store
        if event.store == "none":
            _begun.given.pop("store", None)  # a resume that names it would ask for what is not there
        if event.shipped and event.is_first:
            _say(f"checkpoints: {event.store}, the first one is stored ({_size(event.shipped.size)}): {event.survives}")
        elif event.shipped and event.problem:
            _say(f"checkpoints: {event.store}, the newest one stored is {event.shipped.age_s} s old, newer ones "
                 f"are not, since {printable(event.problem.reason)}")  # fmt: skip
        elif event.problem and not event.is_expected:
            is_lost = event.problem.is_lost
            _say(f"checkpoints: none {'is stored any more' if is_lost else 'leaves this machine'}, since "
                 + printable(event.problem.reason.rstrip("."))
                 + (f". {printable(event.problem.remedy)}" if event.problem.remedy else ""))  # fmt: skip
            if event.store == "none" and not is_lost:
                _say("  The run goes on without them; with --require-durable it would end here, unspent.")


def _size(size: int) -> str:
    return f"{size / 1000:.1f} kB" if size < 1_000_000 else f"{size / 1_000_000:.1f} MB"


def _summary(arguments: Mapping[str, object]) -> str:
    """The telling argument of a call, on one line."""
    for name in ("command", "path", "pattern", "message"):
        if isinstance(arguments.get(name), str):
            return _cut(str(arguments[name]), 60)
    return ""


def _first_line(content: str) -> str:
    return _cut(next((line for line in content.splitlines() if line.strip()), ""), 160)


def _cut(text: str, width: int) -> str:
    """On one line, printable, and marked where something is left out."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= width else line[: width - 1] + "…"


def _state_dir(given: str) -> str:
    """Most commands are over before the modules that parse are loaded."""
    if given == ".endstate":
        return given
    from endstate_action.config import parse_state_dir

    return parse_state_dir("state-dir", given)


@cli.command("tree-hash", short_help="Hash a directory tree.")
@click.argument("path", default=".")
@click.option("--state-dir", default=".endstate", show_default=True, metavar="DIR",
              help="Left out, like .git, at the root only.")  # fmt: skip
@click.option(
    "--commit",
    metavar="REV",
    help="Hash the blobs of a commit or a git tree instead of the work tree of the clone at PATH.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one object, with what was left out.")
def tree_hash(path: str, state_dir: str, commit: str | None, as_json: bool) -> int:
    """Hash names, content, executable bits and link targets of everything below PATH.

    Times, owners and inodes do not count. Left out are .git and the state directory, at the root only.
    Exit code 1 if something could not be read, or changed while it was read: the hash does not cover it.
    """
    from endstate_action.system.tree import scan

    names = (".git", _state_dir(state_dir))
    excluded = [os.fsencode(n) for n in names]
    if commit is not None:
        from tempfile import TemporaryDirectory

        from endstate_action.system.tree_commit import scan_commit

        with TemporaryDirectory() as scratch:
            found = scan_commit(Path(path), commit, os.environ, Path(scratch), excluded)
    else:
        # Without a cache: one in the tree came with it and can say anything, and nothing is to be written there.
        found = scan(Path(path), excluded)
    if as_json:
        body = {
            "tree-hash": found.tree_hash,
            "entries": len(found.entries),
            "excluded": list(names),
            "unreadable": [_shown(p) for p in found.unreadable],
            "unstable": [_shown(p) for p in found.unstable],
        }
        _put(json.dumps(body, ensure_ascii=False))
    else:
        _put(found.tree_hash)
    unsure = (*found.unreadable, *found.unstable)
    for name in unsure:
        _say(f"not covered as it should be: {_shown(name)} could not be read, or changed while it was read")
    return 1 if unsure else 0


def _shown(path: bytes) -> str:
    from endstate_action.system.tree import display

    return display(path)


@cli.group(short_help="Whether tools do what they claim.")
def tools() -> None:
    """Check the effect classes of tools, which decide what a resume does with an interrupted call."""


@tools.command("check")
@click.argument("target", required=False, metavar="[MODULE[:ATTRIBUTE]]")
@click.option("--strict", is_flag=True, help="Also fail when a claim could not be checked.")
@click.option("--json", "as_json", is_flag=True, help="Print one array.")
def check_(target: str | None, strict: bool, as_json: bool) -> int:
    """Run each tool, kill it, resume it, and say whether its effect class is true.

    Without MODULE the built-in tools are checked. MODULE is imported, from the current directory too, by a
    process of its own; ATTRIBUTE is a tool, a list of tools, or a function that returns one or the other.
    Calls are those of a tool's `examples`, made in scratch directories. Exit code 1 if a claim is false.
    """
    from endstate_action.tools_check import FALSE, NOT_CHECKED, check

    _say("Each tool is run, killed and resumed many times; this may take a minute or two.")
    verdicts = check(target, Path.cwd(), dict(os.environ))
    if as_json:
        _put(json.dumps(verdicts, ensure_ascii=False))
    for v in () if as_json else verdicts:
        because = f": {v['evidence']}" if v["evidence"] else ""
        _put(printable(f"{v['tool']}  {v['effect']}  {v['verdict']}{because}"))
    bad = (FALSE, NOT_CHECKED) if strict else (FALSE,)
    return 1 if any(v["verdict"] in bad for v in verdicts) else 0


@cli.command(short_help="See a run killed and resumed.")
@click.option("--repo", metavar="PATH", help="A git repository to copy and work on; default: the current one.")
def demo(repo: str | None) -> int:
    """Run an agent on a copy of a repository, kill it in the middle, resume it, and compare the trees.

    Needs no key: the agent is scripted. Exit code 1 if the two trees differ.
    """
    environ = dict(os.environ)
    from endstate_action.demo import demo as demo_story

    for number in heeded():
        signal.signal(number, _unwind)

    return 0 if demo_story(Path(repo) if repo else None, environ, _put) else 1


def _unwind(number: int, _: FrameType | None) -> NoReturn:
    """The demo has copies to remove, and a process to end."""
    raise Interrupted(f"Interrupted by {signal.Signals(number).name}; the copies are removed.")


def printable(text: str) -> str:
    """Text that cannot move a cursor or start a command in a log: control and format characters are escaped."""
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def _harmless(text: str) -> str:
    """A message in full, whatever its language; what could move a cursor or reorder a line is escaped."""
    return "".join(_escaped(c) if _CONTROLS.match(c) else c for c in text.replace("\r\n", "\n"))


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode()


def _put(text: str) -> None:
    """One line of result, on standard output."""
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except OSError as error:
        sys.exit(_unwritten(error))


def _unwritten(error: OSError) -> int:
    """Whoever was to read it is gone, or the disk behind it is full; asked again, it is said again."""
    _discard(1)
    context = click.get_current_context(silent=True)
    if error.errno == errno.EPIPE and context is not None and context.command.name in _ONLY_TELL:
        return 128 + signal.SIGPIPE  # as a shell shows it of any program
    again = _begun.hint(f"It is recorded: `{_RESUME}` says it again.") if _begun.session else "Run the command again."
    _say(f"endstate: The result could not be written ({error.strerror}).")
    _say(f"  {again}")
    return Interrupted.exit_code


def _say(text: str) -> None:
    """One line for people, on standard error; a reader that is gone costs nothing that was recorded."""
    try:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
    except OSError as error:
        _discard(2)
        # A disk that is full behind a log is no reader that is gone.
        if error.errno not in _FULL:
            hang_up()


def hang_up() -> None:
    """Nobody reads any more what a run says: as when a terminal is closed, it ends where it can be gone on with."""
    if _begun.is_running and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.raise_signal(signal.SIGHUP)


def _say_lines(text: str) -> None:
    """Several lines where the text has several, each printable, all but the first set in."""
    first, *more = map(printable, text.split("\n"))
    _say(first)
    for line in more:
        _say(f"  {'> ' if line.lstrip().startswith(_WORKFLOW_COMMANDS) else ''}{line}")


def _discard(fd: int) -> None:
    """Lead what is still buffered nowhere; else the interpreter would fail on it on its way out."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, fd)
    os.close(null)


# They add their commands to the groups above.
from endstate_action.cli import sessions, step, stored  # noqa: E402, F401
