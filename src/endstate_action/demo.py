"""The main promise, shown: a run is killed inside a call, resumed by a new process, and ends in the same tree.

Everything is real but the model: the same loop, tools, journal and commands as in any run, and a
SIGKILL. What is printed is read from the journals afterwards.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from endstate_action.agent.providers.scripted import ScriptedProvider, load_script
from endstate_action.agent.tools.base import CallContext, FileChange, Tool
from endstate_action.config import parse_settings
from endstate_action.errors import EndstateError, InputError
from endstate_action.run import Choice, Ports, run
from endstate_action.state.fold import State
from endstate_action.state.session import SessionStore
from endstate_action.system.names import short
from endstate_action.system.process import capture, fork

FILE = "ENDSTATE-DEMO.md"
KILLED_TOOL = "edit"
_NOTES = "# Written by the endstate demo\n\n- first: look around\n- last: count what is here\n"


def demo(repository: Path | None, environ: Mapping[str, str], say: Callable[[str], None]) -> bool:
    """Run it; whether the tree of the killed and resumed run equals that of the undisturbed one.

    Raises:
        InputError: `repository` is no git repository.
        EndstateError: one of the runs failed.
    """
    try:
        repository = repository and repository.resolve(strict=True)
    except (OSError, RuntimeError) as error:  # links in a circle are the latter
        why = getattr(error, "strerror", None) or error
        raise InputError(
            f"--repo {short(str(repository))} cannot be used ({why}). Nothing was run.",
            hint="--repo takes a git repository; without it the current one is used, or a small one is made.",
        ) from error
    with tempfile.TemporaryDirectory(prefix="endstate-demo-") as scratch:
        places = [Path(scratch) / name for name in ("killed", "undisturbed")]
        origin = _copy(repository, places, environ)
        say(f"Two copies of {origin}; the same script of 6 calls in each.")
        script = Path(scratch) / "script.json"
        script.write_text(json.dumps(_script()))
        _run_and_kill(places[0], script, environ)
        _command(places[0], script, environ, "--resume")
        for line in _account(_journal(places[0])):
            say(line)
        _command(places[1], script, environ, "Write notes about this repository and commit them.")
        hashes = [_tree_hash(place) for place in places]
        say(f"tree after kill and resume: {hashes[0]}")
        say(f"tree of undisturbed run:    {hashes[1]}")
        same = hashes[0] == hashes[1]
        say("The trees are equal." if same else "THE TREES DIFFER. This is a defect; please report it.")
        return same


def _script() -> dict[str, Any]:
    """Uneven batches, 3 + 2 + 1 calls; the fourth is the edit that is killed."""
    before, after = "- last: count", "- then: be killed, and come back\n- last: count"
    return {
        "replies": [
            {
                "text": "I look around and begin the notes.",
                "calls": [
                    {"tool": "glob", "arguments": {"pattern": "*"}},
                    {"tool": "grep", "arguments": {"pattern": "durab", "glob": "*.md"}},
                    {"tool": "write", "arguments": {"path": FILE, "content": _NOTES}},
                ],
            },
            {
                "text": "I go on with the notes.",
                "calls": [
                    {"tool": "edit", "arguments": {"path": FILE, "old": before, "new": after}},
                    {"tool": "bash", "arguments": {"command": f'echo "- entries here: $(ls | wc -l)" >> {FILE}'}},
                ],
            },
            {
                "text": "I commit them.",
                "calls": [{"tool": "git_commit", "arguments": {"message": "Add the demo's notes"}}],
            },
            {"text": "The notes are written and committed."},
        ]
    }


def _copy(repository: Path | None, places: list[Path], environ: Mapping[str, str]) -> str:
    """Clone the repository to each place; without one at hand, make a small one there."""
    source = repository or _repository_here(environ)
    for place in places:
        if source is not None:
            _git(environ, source, "clone", "--quiet", "--no-hardlinks", "--", str(source.resolve()), str(place))
            continue
        place.mkdir()
        (place / "README.md").write_text("A small repository, made for the demo of durable runs.\n")
        _git(environ, place, "init", "--quiet")
        _git(environ, place, "add", "README.md")
        identity = ("-c", "user.name=endstate demo", "-c", "user.email=demo@localhost")
        _git(environ, place, *identity, "commit", "--quiet", "--message", "Begin")
    return str(source) if source is not None else "a small repository made for this"


def _repository_here(environ: Mapping[str, str]) -> Path | None:
    with contextlib.suppress(OSError, EndstateError):
        return Path(_git(environ, Path.cwd(), "rev-parse", "--show-toplevel"))
    return None


def _git(environ: Mapping[str, str], where: Path, *arguments: str) -> str:
    try:
        done = capture(
            ["git", *arguments], cwd=where if where.is_dir() else Path.cwd(), env=dict(environ), timeout_s=120
        )
    except FileNotFoundError:
        raise InputError("The demo needs git; nothing was run.", hint="Install git.") from None
    if done.returncode != 0:
        words = done.stderr.decode(errors="replace").strip().splitlines()
        raise InputError(
            f"git {arguments[0]} failed: {words[-1] if words else done.returncode}. Nothing was run.",
            hint="--repo takes a git repository; without it the current one is used, or a small one is made.",
        )
    return done.stdout.decode(errors="surrogateescape").strip()


class _Paused(Tool):
    """A tool that, once its effect is there, says so and waits to be killed: the window that cannot be closed."""

    def __init__(self, tool: Tool, tell: int) -> None:
        self.name, self.description, self.parameters, self.effect = (  # type: ignore[misc]
            tool.name,
            tool.description,
            tool.parameters,
            tool.effect,
        )
        self._tool, self._tell = tool, tell

    def contract(self) -> dict[str, str]:
        return self._tool.contract()

    def plan(self, arguments: Mapping[str, Any], context: CallContext) -> FileChange | None:
        return self._tool.plan(arguments, context)

    def run(self, arguments: Mapping[str, Any], context: CallContext, plan: FileChange | None) -> str:
        self._tool.run(arguments, context, plan)
        os.write(self._tell, b"!")
        signal.pause()
        raise AssertionError("unreachable")


def _run_and_kill(place: Path, script: Path, environ: Mapping[str, str]) -> None:
    """Attempt 1, in a process of its own, SIGKILLed inside the call."""
    ready, tell = os.pipe()
    child = fork(lambda: _attempt_1(place, script, environ, tell))
    os.close(tell)
    try:
        arrived = os.read(ready, 1)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ready)
    if not arrived:
        raise EndstateError("The first attempt ended before it could be killed.", hint="Please report this.")


def _attempt_1(place: Path, script: Path, environ: Mapping[str, str], tell: int) -> None:
    prompt = "Write notes about this repository and commit them."
    inputs = {"prompt": prompt, "provider": "scripted", "working-directory": str(place), "instructions": "none"}
    ports = Ports(
        environ,
        lambda name, settings: ScriptedProvider(load_script(script)),
        tools=lambda tools: [_Paused(t, tell) if t.name == KILLED_TOOL else t for t in tools],
    )
    run(parse_settings(inputs, lambda name: None), Choice(), ports)


def _command(place: Path, script: Path, environ: Mapping[str, str], *arguments: str) -> None:
    """`endstate run`, as anybody would call it."""
    options = ("--provider", "scripted", "--script", str(script), "--instructions", "none")
    argv = [sys.executable, "-m", "endstate_action", "run", *arguments, *options, "--working-directory", str(place)]
    done = capture(argv, cwd=Path.cwd(), env=dict(environ), timeout_s=120)
    if done.returncode != 0:
        raise EndstateError(
            f"`endstate run` ended with {done.returncode}: {done.stderr.decode(errors='replace').strip()}",
            hint="Please report this.",
        )


def _journal(place: Path) -> State:
    store = SessionStore(place / ".endstate" / "sessions")
    return store.read(store.all()[0].id)


def _account(state: State) -> Iterator[str]:
    """Per attempt, what happened to which call, from the journal alone."""
    number = {place: n for n, place in enumerate(state.requested, start=1)}
    ended = {e.epoch for e in state.ended}
    for attempt in state.attempts:
        parts = []
        settled = {(s.step, s.index): s.action for s in state.settled if s.epoch == attempt.epoch}
        for place, action in settled.items():
            if action != "run":
                parts.append(f"call {number[place]} {'adopted' if action == 'adopt' else action}")
        ran = [
            number[p] for p, f in state.finished.items() if f.epoch == attempt.epoch and settled.get(p) in (None, "run")
        ]
        if ran:
            parts.append(f"calls {ran[0]}-{ran[-1]} ran" if len(ran) > 1 else f"call {ran[0]} ran")
        if attempt.epoch not in ended:
            parts += [
                f"killed in call {number[p]} ({state.requested[p].call.name}), outcome not recorded"
                for p, starts in state.started.items()
                if any(s.epoch == attempt.epoch for s in starts)
                and not (p in state.finished and state.finished[p].epoch == attempt.epoch)
            ]
        yield f"attempt {attempt.epoch}: {', '.join(parts)}"


def _tree_hash(place: Path) -> str:
    from endstate_action.system.tree import scan

    return scan(place, (b".git", b".endstate")).tree_hash
