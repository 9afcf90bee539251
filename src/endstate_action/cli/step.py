"""What workflows call, one step of a job and the watcher; and what people do by hand: check a result, deliver it."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import TYPE_CHECKING, Any

import click

from endstate_action.cli import (
    _begun,
    _clean_environment,
    _discard,
    _from_here,
    _located,
    _provider,
    _put,
    _say,
    as_defect,
    cli,
    hang_up,
    printable,
)
from endstate_action.errors import EndstateError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from endstate_action.config import Settings
    from endstate_action.verify import Reference


@cli.command(short_help="One step of a GitHub workflow.")
def action() -> int:
    """What action.yml runs: reads its inputs from INPUT_* and its event from the runner's variables."""
    environ = dict(_clean_environment())
    from endstate_action.ci.workflow import Log, RunnerFiles
    from endstate_action.system.redaction import Secrets
    from endstate_action.system.secrets import split_environment
    from endstate_action.system.supervise import supervise

    for name, given in (("ANTHROPIC_API_KEY", "INPUT_ANTHROPIC_API_KEY"), ("ANTHROPIC_BASE_URL", "INPUT_BASE_URL")):
        if environ.get(given):
            environ[name] = environ[given]

    def provider(name: str, chosen: Settings) -> Any:
        return _provider(name, chosen.base_url, None, environ)

    def write(line: str) -> None:
        try:
            sys.stdout.write(line.encode("utf-8", "backslashreplace").decode() + "\n")
            sys.stdout.flush()
        except OSError:
            _discard(1)
            hang_up()

    def story() -> int:
        # Beside everything that stands before the first request: it takes longer than all of it.
        if environ.get("INPUT_PROVIDER") in (None, "", "anthropic"):
            Thread(target=_load_sdk, name="endstate-sdk", daemon=True).start()
        try:
            from endstate_action.action import Step

            _begun.is_running = True
            return Step(environ, provider, write).run()
        except Exception as error:  # noqa: BLE001  whatever the step's own last door does not see
            shown = as_defect(error)
            said = Secrets(split_environment(environ)[1]).redact(f"{shown} {shown.hint}")
            Log(write).annotate("error", said, "endstate: failed")
            with suppress(EndstateError):
                RunnerFiles(environ).outputs({"conclusion": "failed"})
            return shown.exit_code

    def tell(name: str, again: bool) -> None:
        what = "It is started again on this machine" if again else "It is not started again"
        Log(_put).annotate(
            "warning" if again else "error",
            f"The run was killed by {name}, as happens where memory runs out. {what}; what is recorded is kept.",
            "endstate: killed",
        )

    return supervise(story, tell)


def _load_sdk() -> None:
    from endstate_action.agent.providers.anthropic import load

    with suppress(Exception):  # the run meets it again, where it can be told
        load()


@cli.command(short_help="Check a result against its evidence.")
@click.argument("evidence")
@click.argument("path", default=".")
@click.option("--json", "as_json", is_flag=True, help="Print one object.")
def verify(evidence: str, path: str, as_json: bool) -> int:
    """Recompute tree hash and tree id of the clone at PATH, and say what of the EVIDENCE holds.

    EVIDENCE is a file, or the URL of a pull request or comment (then GITHUB_TOKEN is needed). PATH is a clean
    checkout of the commit that was pushed, or of the base with the patch applied, or the workspace as the run left
    it. Exit code 0 if all holds, 1 if something does not, 2 if it cannot be told.
    """
    from endstate_action.verify import verify as verify_story

    with TemporaryDirectory() as scratch:
        verdict = verify_story(evidence, Path(path), os.environ, Path(scratch), _fetching(os.environ, Path(path)))
    if as_json:
        told = [{"holds": s.holds, "text": s.text, "differs": list(s.names)} for s in verdict.statements]
        _put(json.dumps({"holds": verdict.exit_code == 0, "statements": told}, ensure_ascii=False))
        return verdict.exit_code
    for statement in verdict.statements:
        mark = {True: "holds", False: "DOES NOT HOLD", None: "cannot be told"}[statement.holds]
        _put(printable(f"{mark}: {statement.text}"))
        for name in statement.names:
            _put(f"  {printable(name)}")
    return verdict.exit_code


def _fetching(environ: Mapping[str, str], path: Path) -> Callable[[Reference], str]:
    """Reads our comment on the pull request that a reference names."""

    def fetch(reference: Reference) -> str:
        from endstate_action.hand import read_comment

        return read_comment(environ, reference, path)

    return fetch


@cli.command(short_help="Deliver a finished result by hand.")
@click.option("--session", metavar="ID", help="Which session; the newest one by default.")
@click.option(
    "--store",
    default="none",
    show_default=True,
    metavar="WHERE",
    callback=_from_here,
    help="Where its checkpoints are, as for `run`.",
)
@_located
def deliver(session: str | None, store: str, working_directory: str, state_dir: str) -> int:
    """Post the comment and push the commit of a finished SESSION that its job could not deliver.

    Works from the state directory or, with --store, from a checkpoint, in a checkout of the same repository. Needs
    GITHUB_TOKEN; calls no model. What was delivered already is not delivered again.
    """
    environ = dict(_clean_environment())
    from endstate_action.config import parse_settings
    from endstate_action.hand import deliver_by_hand

    inputs = {"resume": "true", "sandbox": "auto", "store": store}
    inputs |= {"working-directory": working_directory, "state-dir": state_dir}
    return deliver_by_hand(environ, parse_settings(inputs, lambda name: None), session, _put, _say)


@cli.command("rerun-preempted", short_help="Re-run a workflow whose runner was lost.")
def rerun_preempted() -> int:
    """What resume/action.yml runs once a workflow is over: tells preemption from failure, and runs it again."""
    environ = _clean_environment()
    from endstate_action.watch import watch

    return watch(environ, _put, _say)
