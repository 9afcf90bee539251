"""The `endstate` command: reads arguments, prints, and turns every outcome into an exit code.

Standard output carries the result alone: the final message, or with `--json` one object. Everything
else goes to standard error. This module is the only one that prints or reads the environment.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, NoReturn

import click

from endstate_action import __version__
from endstate_action.errors import INTERNAL_ERROR, EndstateError, Interrupted, Mismatch

if TYPE_CHECKING:
    from endstate_action.agent.loop import Event
    from endstate_action.run import Report, SandboxChosen
    from endstate_action.state.session import Listed, State

EXIT_CODES = {
    0: "done",
    1: "the agent stopped short: a budget, time, the model declined, no answer",
    2: "bad input, or a key that the provider rejects; nothing was spent",
    3: "a defect of ours",
    4: "state unusable: disk full, read-only, damaged",
    10: "locked: another run holds the state directory",
    11: "superseded by a newer attempt",
    12: "there is no session to resume",
    13: "mismatch: the session was begun under another contract",
    20: "outcome unknown: a person must look",
    75: "interrupted, or the provider cannot be reached: a resume goes on",
}
CONCLUSIONS = {"success": 0, "stopped": 1, "interrupted": 75, "mismatch": 13, "failed": 2}

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_DEBUG = "ENDSTATE_TRACEBACK"


def main() -> NoReturn:
    """Run the command and exit; no traceback for anything that a user can cause."""
    if sys.platform == "win32":
        _say("endstate: Windows is not supported; nothing was run.")
        _say("  Use Linux, the Linux subsystem of Windows, or macOS.")
        sys.exit(2)
    as_json = "--json" in sys.argv[1:]
    try:
        code = cli.main(standalone_mode=False, prog_name="endstate")
    except click.exceptions.Exit as stop:
        code = stop.exit_code
    except click.Abort:
        code = Interrupted.exit_code
    except click.ClickException as error:
        _say(f"endstate: {error.format_message()}")
        if isinstance(error, click.UsageError) and error.ctx is not None:
            _say(f"Try: {error.ctx.command_path} --help")
        code = error.exit_code
    except EndstateError as error:
        code = _failed(error, as_json)
    except Exception as error:  # noqa: BLE001  the last door: what gets here is a defect of ours
        code = _defect(error)
    sys.exit(code if isinstance(code, int) else 0)


def _failed(error: EndstateError, as_json: bool) -> int:
    _say(f"endstate: {printable(str(error))}")
    if error.hint:
        _say(f"  {printable(error.hint)}")
    if as_json:
        conclusion = {13: "mismatch", 75: "interrupted", 11: "superseded"}.get(error.exit_code, "failed")
        body: dict[str, Any] = {"conclusion": conclusion, "error": str(error), "hint": error.hint}
        if isinstance(error, Mismatch):
            body["differences"] = list(error.differences)
        _put(json.dumps(body | {"exit-code": error.exit_code}, ensure_ascii=False))
    return error.exit_code


def _defect(error: Exception) -> int:
    import traceback

    where = traceback.extract_tb(error.__traceback__)[-1]
    _say(f"endstate: internal error: {type(error).__name__}: {printable(str(error))}")
    _say(f"  in {Path(where.filename).name}, line {where.lineno}. What was recorded is kept. Please report this;")
    _say(f"  with {_DEBUG}=1 the whole traceback is shown.")
    if os.environ.get(_DEBUG):
        traceback.print_exception(error)
    return INTERNAL_ERROR


@click.group(context_settings=_CONTEXT)
@click.version_option(__version__, message="endstate %(version)s")
def cli() -> None:
    """An agent run that survives being killed: start it, kill it, resume it.

    \b
    endstate run "Fix the failing test"     begin
    endstate run --resume                   finish what was interrupted
    endstate run --resume "And update ..."  finish, then go on with a new prompt
    """


def _located(command: Callable[..., Any]) -> Callable[..., Any]:
    """The two options that say where the sessions are."""
    command = click.option("--state-dir", default=".endstate", show_default=True, metavar="DIR",
                           help="Inside the workspace.")(command)  # fmt: skip
    return click.option("--working-directory", default=".", show_default=True, metavar="DIR", help="The workspace.")(
        command
    )


@cli.command(short_help="Run an agent, or go on with one.")
@click.argument("prompt", required=False)
@click.option("--prompt-file", metavar="FILE", help="Read the prompt from a file.")
@click.option("--resume", is_flag=True, help="Finish the interrupted session; with a prompt, then go on.")
@click.option("--session", metavar="ID", help="Which session to resume; a unique prefix will do. Implies --resume.")
@click.option("--provider", metavar="NAME", help="anthropic (default) or scripted.")
@click.option("--model", metavar="ID", help="Default: a pinned model of the provider.")
@click.option("--base-url", metavar="URL", help="Another endpoint for the provider.")
@click.option("--script", metavar="FILE", help="What the scripted provider replies.")
@click.option("--instructions", metavar="WHAT", help="auto (AGENTS.md, else CLAUDE.md), none, or a path.")
@click.option("--config-file", metavar="FILE", help="Default: .github/endstate.yml, where it exists.")
@click.option("--on-mismatch", metavar="WHAT", help="refuse (default), continue or restart.")
@click.option("--max-steps", metavar="N", help="Over all attempts. Default: 200.")
@click.option("--max-cost-usd", metavar="USD", help="Over all attempts. Default: 5.00.")
@click.option("--max-resumes", metavar="N", help="Attempts killed without progress. Default: 5.")
@click.option("--max-minutes", metavar="N", help="Per attempt. Default: 90.")
@click.option("--sandbox", metavar="WHAT", help="auto (default), required or off: where shell commands run.")
@click.option("--network", is_flag=True, help="Let shell commands in the sandbox use the network.")
@click.option("--lock-timeout", metavar="S", type=click.FloatRange(0), default=10.0, show_default=True,
              help="Seconds to wait for another run in this workspace.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one object with all outputs.")
@_located
def run(
    session: str | None,
    script: str | None,
    lock_timeout: float,
    as_json: bool,
    resume: bool,
    network: bool,
    **given: str | None,
) -> int:
    """Run an agent on the workspace; PROMPT says what to do.

    The key comes from ANTHROPIC_API_KEY, another endpoint from --base-url or ANTHROPIC_BASE_URL. Every
    step is recorded as it happens, in .endstate/. Kill it at any time: `endstate run --resume` goes on.
    """
    environ = _clean_environment()
    from endstate_action.config import parse_settings
    from endstate_action.run import Choice, Ports
    from endstate_action.run import run as run_story

    inputs = {name.replace("_", "-"): value for name, value in given.items() if value is not None}
    inputs["network"] = "true" if network else "false"
    inputs["resume"] = "true" if resume or session is not None else "false"
    settings = parse_settings(inputs, _read_file)
    lines = _Lines(environ)
    ports = Ports(environ, lambda name, chosen: _provider(name, chosen.base_url, script, environ), lines.event, _say)
    report = run_story(settings, Choice(session, lock_timeout), ports)
    _show(report, as_json)
    return CONCLUSIONS[report.result.conclusion]


def _clean_environment() -> Mapping[str, str]:
    """Our environment as it was given, taken out of reach of the processes that the agent starts."""
    from endstate_action.system.process import harden
    from endstate_action.system.secrets import reexecute_clean, take_sealed

    harden()
    sealed = take_sealed(os.environ)
    if sealed is None:
        reexecute_clean(os.environ, sys.argv[1:])
    return sealed


def _provider(name: str, base_url: str | None, script: str | None, environ: Mapping[str, str]) -> Any:
    """The provider by its name, with what it needs, or an `InputError` that says what is missing."""
    from endstate_action.errors import InputError

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
    provider = AnthropicProvider(key, token, parse_base_url("base-url", url) if url else None, env=environ)
    # The SDK takes about a second to import; meanwhile the session is opened and settled.
    Thread(target=provider.warm_up, daemon=True).start()
    return provider


def _read_file(name: str) -> bytes | None:
    from endstate_action.errors import InputError

    try:
        return Path(name).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InputError(f"{name} cannot be read ({error.strerror}); nothing was run.", hint="Name a file.") from error


def _show(report: Report, as_json: bool) -> None:
    result, outputs = report.result, report.outputs
    cost = "cost unknown" if result.cost_usd is None else f"${result.cost_usd:.2f}"
    why = f" ({result.reason})" if result.reason else ""
    attempts = "1 attempt" if result.attempt == 1 else f"{result.attempt} attempts"
    steps = "1 step" if result.steps == 1 else f"{result.steps} steps"
    _say(f"{result.conclusion}{printable(why)} · {attempts} · {steps} · {cost} · tree {outputs['tree-hash']}")
    if result.conclusion == "stopped":
        _say(f"  Nothing is lost: `endstate run --resume --session {result.session}` goes on"
             + (" with a higher limit." if result.reason.startswith("max-") else "."))  # fmt: skip
    if as_json:
        _put(json.dumps(outputs, ensure_ascii=False))
    elif result.final_message:
        _put(printable(result.final_message, keep="\n\t") if sys.stdout.isatty() else result.final_message)


class _Lines:
    """What a person sees while it runs: one line a call on a terminal, else the first line alone."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._cost = ""
        self._sandbox = ""

    def event(self, event: Event | SandboxChosen) -> None:
        from endstate_action.agent.loop import AttemptBegan, StepEnded, Told
        from endstate_action.run import SandboxChosen

        match event:
            case SandboxChosen():
                self._sandbox = event.sandbox
                if self._is_terminal:
                    _say(f"sandbox: {event.sandbox} ({printable(event.note)})")
            case AttemptBegan():
                pending = f" · {event.pending} calls to settle" if event.pending else ""
                began = f"resumed, attempt {event.epoch}" if event.resumed else "attempt 1"
                _say(f"session {event.session} · {began}{pending} · sandbox: {self._sandbox} · "
                     f"if it dies: endstate run --resume --session {event.session}")  # fmt: skip
            case StepEnded():
                self._cost = "cost unknown" if event.cost_usd is None else f"${event.cost_usd:.2f}"
                if self._is_terminal and not event.calls:
                    _say(f"step {event.step}  answer  {self._cost}")
            case Told():
                _say(printable(event.text))
            case _ if self._is_terminal:
                outcome = "" if event.status == "ok" else f"  {event.status}"
                settled = f"  ({event.settled.action}: {printable(event.settled.reason)})" if event.settled else ""
                what = _summary(event.arguments)
                name = printable(event.name)[:40]
                _say(f"step {event.step}  {name}  {what}  {event.elapsed_s:.1f} s  {self._cost}{outcome}{settled}")
            case _:
                pass


def _summary(arguments: Mapping[str, object]) -> str:
    """The telling argument of a call, on one line."""
    for name in ("command", "path", "pattern", "message"):
        if isinstance(arguments.get(name), str):
            text = printable(" ".join(str(arguments[name]).split()))
            return text if len(text) <= 60 else text[:59] + "…"
    return ""


@cli.group(short_help="What is recorded here.")
def sessions() -> None:
    """List, show, export and prune the sessions of a workspace. Nothing here calls a model."""


@sessions.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one array.")
@_located
def list_(working_directory: str, state_dir: str, as_json: bool) -> None:
    """The sessions of the workspace, the one with the newest record first."""
    found = [_listed(s) for s in _store(working_directory, state_dir).all()]
    if as_json:
        _put(json.dumps(found, ensure_ascii=False))
        return
    if not found:
        _say(f"No sessions in {Path(working_directory) / state_dir}.")
    for s in found:
        cost = "cost unknown" if s["cost-usd"] is None else f"${float(s['cost-usd']):.2f}"
        shown = printable(s["problem"] or s["prompt"])[:70]
        _put(f"{s['session-id']}  {s['state']:<10}  {s['changed']}  attempt {s['attempt']}  "
             f"{s['steps']} steps  {cost}  {shown}")  # fmt: skip


def _listed(session: Listed) -> dict[str, Any]:
    from endstate_action.state.totals import total_cost

    state = session.state
    cost = total_cost(state) if state else None
    prompt = " ".join(state.prompts[-1].text.split()) if state and state.prompts else ""
    return {
        "session-id": session.id,
        "state": "damaged" if state is None else "finished" if session.is_finished else "unfinished",
        "changed": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(session.changed_at)) + " UTC",
        "attempt": state.epoch if state else 0,
        "steps": state.steps if state else 0,
        "cost-usd": None if cost is None else str(cost),
        "prompt": prompt[:200],
        "problem": session.problem,
    }


@sessions.command()
@click.argument("session", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one object.")
@_located
def show(session: str | None, working_directory: str, state_dir: str, as_json: bool) -> None:
    """What happened in a SESSION: attempts, steps, calls, settlements. The newest one by default."""
    store = _store(working_directory, state_dir)
    state = store.read(_chosen(store, session))
    told = _told(state)
    if as_json:
        _put(json.dumps(told, ensure_ascii=False))
        return
    _put(f"session {told['session-id']}  {told['state']}  model {printable(told['model'])}")
    for prompt in told["prompts"]:
        _put(f"  prompt, task {prompt['task']}: {printable(' '.join(prompt['text'].split()))[:100]}")
    for attempt in told["attempts"]:
        _put(f"  attempt {attempt['attempt']}  {attempt['began']}  {attempt['ended']}")
    for call in told["calls"]:
        settled = f"  settled: {call['settled']}" if call["settled"] else ""
        _put(f"  step {call['step']} call {call['call']}  {printable(call['tool'])[:40]}  "
             f"{printable(call['what'])}  {call['status']}{printable(settled)}")  # fmt: skip


def _told(state: State) -> dict[str, Any]:
    ends = {e.epoch: e for e in state.ended}
    settled = {(s.step, s.index): f"{s.action}, {s.reason}" for s in state.settled}
    return {
        "session-id": state.begun.session,
        "state": "finished" if state.is_finished else "unfinished",
        "model": state.attempts[-1].model if state.attempts else "",
        "prompts": [{"id": p.id, "task": p.task, "text": p.text} for p in state.prompts],
        "attempts": [
            {
                "attempt": a.epoch,
                "began": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(a.at)),
                "version": a.version,
                "conclusion": ends[a.epoch].conclusion if a.epoch in ends else None,
                "ended": f"{ends[a.epoch].conclusion} {ends[a.epoch].reason}".strip()
                if a.epoch in ends
                else "no end on record: still running, or killed",
            }
            for a in state.attempts
        ],
        "steps": state.steps,
        "calls": [
            {
                "step": r.step,
                "call": r.index + 1,
                "id": r.call.id,
                "tool": r.call.name,
                "what": _summary(r.call.arguments),
                "status": _status(state, r.place),
                "starts": len(state.started.get(r.place, ())),
                "settled": settled.get(r.place),
            }
            for r in state.requested.values()
        ],
        "tree-hash": state.observed.tree_hash if state.observed else None,
    }


def _status(state: State, place: tuple[int, int]) -> str:
    if place in state.finished:
        return state.finished[place].status
    return "started, no outcome recorded" if place in state.started else "requested, not started"


@sessions.command()
@click.argument("session", required=False)
@_located
def export(session: str | None, working_directory: str, state_dir: str) -> None:
    """Print the journal of a SESSION, one JSON object a line, also where it is damaged."""
    store = _store(working_directory, state_dir)
    for seq, kind, body in store.rows(_chosen(store, session)):
        try:
            content = json.loads(body)
        except ValueError:
            content = {"unreadable": body}
        _put(json.dumps({"seq": seq, "kind": kind, "body": content}, ensure_ascii=True))


@sessions.command()
@click.argument("sessions", nargs=-1)
@click.option("--older-than", metavar="DAYS", type=click.FloatRange(0), default=30.0, show_default=True,
              help="Without SESSIONS: finished ones whose last record is older.")  # fmt: skip
@_located
def prune(sessions: tuple[str, ...], older_than: float, working_directory: str, state_dir: str) -> None:
    """Delete SESSIONS, or all finished ones of some age. Unfinished and damaged ones only when named."""
    from endstate_action.state.directory import locate
    from endstate_action.state.lock import StateLock
    from endstate_action.system.proctable import identity

    store = _store(working_directory, state_dir)
    if not store.directory.is_dir():
        _say("Nothing to prune.")
        return
    state = locate(Path(working_directory).resolve(), state_dir)
    with StateLock(state.lock, identity()):
        doomed = [store.find(s) for s in sessions]
        if not sessions:
            limit = time.time() - older_than * 86400
            doomed = [s.id for s in store.all() if s.is_finished and s.changed_at < limit]
        for name in doomed:
            store.remove(name)
            state.baseline(name).unlink(missing_ok=True)
            _put(name)


def _store(working_directory: str, state_dir: str) -> Any:
    from endstate_action.config import parse_state_dir
    from endstate_action.errors import InputError
    from endstate_action.state.directory import locate
    from endstate_action.state.session import SessionStore

    if not Path(working_directory).is_dir():
        raise InputError(f"{working_directory} is not a directory.", hint="Name the workspace.")
    state = locate(Path(working_directory).resolve(), parse_state_dir("state-dir", state_dir))
    state.confirm()
    return SessionStore(state.sessions)


def _chosen(store: Any, session: str | None) -> str:
    from endstate_action.errors import UnknownSession

    if session is not None:
        return str(store.find(session))
    newest = store.all()[:1]
    if not newest:
        raise UnknownSession(f"There is no session in {store.directory}.", hint="`endstate run PROMPT` begins one.")
    return str(newest[0].id)


@cli.command("tree-hash", short_help="Hash a directory tree.")
@click.argument("path", default=".")
@click.option("--state-dir", default=".endstate", show_default=True, metavar="DIR",
              help="Left out, like .git, at the root only.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one object, with what was left out.")
def tree_hash(path: str, state_dir: str, as_json: bool) -> None:
    """Hash names, content, executable bits and link targets of everything below PATH.

    Times, owners and inodes do not count. Left out are .git and the state directory, at the root only.
    """
    from endstate_action.config import parse_state_dir
    from endstate_action.system.tree import StatCache, scan

    root = Path(path)
    cache = root / state_dir / "cache"
    names = (".git", parse_state_dir("state-dir", state_dir))
    usable = cache.is_dir() and not any(p.is_symlink() for p in (cache, cache.parent))
    found = scan(root, [os.fsencode(n) for n in names], StatCache(cache) if usable else None)
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
    for unsure in (*found.unreadable, *found.unstable):
        _say(f"not covered as it should be: {_shown(unsure)} could not be read, or changed while it was read")


def _shown(path: bytes) -> str:
    from endstate_action.system.tree import display

    return display(path)


@cli.command(short_help="See a run killed and resumed.")
@click.option("--repo", metavar="PATH", help="A git repository to copy and work on; default: the current one.")
def demo(repo: str | None) -> int:
    """Run an agent on a copy of a repository, kill it in the middle, resume it, and compare the trees.

    Needs no key: the agent is scripted. Exit code 1 if the two trees differ.
    """
    environ = dict(os.environ)
    from endstate_action.demo import demo as demo_story

    return 0 if demo_story(Path(repo) if repo else None, environ, _put) else 1


def printable(text: str, *, keep: str = "") -> str:
    """Text that cannot move a cursor or start a command in a log: control and format characters are escaped."""
    return "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape", "backslashreplace").decode() for c in text
    )


def _put(text: str) -> None:
    """One line of result, on standard output."""
    try:
        sys.stdout.write(text.encode("utf-8", "backslashreplace").decode("utf-8") + "\n")
        sys.stdout.flush()
    except OSError:
        # Whoever was to read it is gone, or the disk behind it is full; asked again, it is said again.
        _discard(sys.stdout.fileno())
        sys.exit(Interrupted.exit_code)


def _say(text: str) -> None:
    """One line for people, on standard error; a reader that is gone does not stop the run."""
    try:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
    except OSError:
        _discard(sys.stderr.fileno())


def _discard(fd: int) -> None:
    """Lead what is still buffered nowhere; else the interpreter would fail on it on its way out."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, fd)
    os.close(null)
