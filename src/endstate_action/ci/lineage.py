"""What lets the attempts of one task find each other, and nobody else's.

By default it is made of what stays the same from one run attempt to the next: the workflow's ref, the
job's id, the step, the matrix and the run's id. Of these the *step* is GITHUB_ACTION: the step's `id`
where it has one, else the name of the action behind two underscores (`__org_endstate-action`), with
`_2`, `_3` from the second use in the job on. The numbers follow the order of the file, which a re-run
keeps. (It comes as an input too, as the caller's `github.action`, which counts where it is there: a step
inside an action may be told its own name.) The *matrix* is taken by its values, since the order of the jobs may change.

What cannot be told apart so, and needs `session-key`:

- two jobs that call one reusable workflow: each sees the caller's workflow ref and the id of the called
  job, and neither the id of the job that calls;
- two uses inside one other composite action, which see that action's step;
- two entries of a matrix with the same values; any two under a runner that does not say the matrix.

Jobs that are to go on with each other's work (a retry job, a second run) have another job or run id,
and so need `session-key` as well. `refuse_collision` finds those that met by mistake.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from endstate_action.ci.event import Event
from endstate_action.config.text import quoted
from endstate_action.effects import canonical, digest
from endstate_action.errors import InputError

KEY_MAX_CHARACTERS = 200
_CONTEXT_MAX_CHARACTERS = 1_000_000
_TRACKED = re.compile(r"[A-Za-z0-9_-]{1,100}")


@dataclass(frozen=True, slots=True)
class Lineage:
    text: str
    """Printable, and never the same for two that differ in anything; the store's names are made from its hash."""
    is_explicit: bool
    """Whether `session-key` was set. If not, two jobs of one run attempt must not share it."""


@dataclass(frozen=True, slots=True)
class Claimant:
    """The job that claims a lineage. Two that differ within one run attempt are two jobs, not two attempts."""

    run_id: int
    run_attempt: int
    job: str
    """GitHub's id of the job in this attempt, else the runner's; `""` where neither is known."""


def parse_session_key(text: str) -> str:
    """The input `session-key`, used as it is.

    Raises:
        InputError: it is too long, or not all of it can be seen.
    """
    if len(text) > KEY_MAX_CHARACTERS or not text.isprintable() or text != text.strip() or not text:
        raise InputError(
            f"session-key: {quoted(text)} cannot be used, so nothing was started.",
            hint=f"session-key must be 1 to {KEY_MAX_CHARACTERS} printable characters, with no space around them.",
        )
    return text


def lineage(event: Event, inputs: Mapping[str, str]) -> Lineage:
    """The lineage of this step, from the inputs `session-key`, `matrix` (JSON text, or `null`) and `step`.

    Raises:
        InputError: the key or the context cannot be used, or the runner does not say which step this is.
    """
    session_key = inputs.get("session-key", "")
    bound = [event.repository.id or event.repository.full_name.casefold(), event.number]
    if session_key:
        return Lineage(_text(["key", *bound, parse_session_key(session_key)]), is_explicit=True)
    run = event.run
    step = inputs.get("step") or run.step
    for name, value in (("GITHUB_JOB", run.job), ("GITHUB_ACTION", step)):
        if not value:
            raise InputError(
                f"{name} is not set, so attempts of this step could not find each other; nothing was run.",
                hint="Set session-key to a name of your own for this step.",
            )
    parts = [run.workflow_ref, run.job, step, matrix_digest(inputs.get("matrix", "")), run.id]
    return Lineage(_text(["run", *bound, *parts]), is_explicit=False)


def _text(parts: list[Any]) -> str:
    return canonical(parts).decode()


def matrix_digest(matrix: str) -> str:
    """The same for the same values, in whatever order; `""` for a job without a matrix."""
    values = parse_context("matrix", matrix)
    return digest(canonical(values))[:12] if values else ""


def parse_context(name: str, text: str) -> Mapping[str, Any]:
    """A context that came as JSON text; `null` and nothing at all are an empty one.

    Raises:
        InputError: it is something else.
    """
    try:
        found = json.loads(text) if text.strip() and len(text) <= _CONTEXT_MAX_CHARACTERS else text.strip() or None
    except (ValueError, RecursionError):
        found = text
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise InputError(
            f"The context {name} cannot be read ({quoted(found)}), so nothing was run.",
            hint=f"Leave the input that carries {name} at its default, which is the context as JSON.",
        )
    return found


def claimant(event: Event, environ: Mapping[str, str], job: str) -> Claimant:
    """Who we are among the jobs of this run attempt.

    Args:
        job: the `job` context as JSON text, which may be `null` or `""`.
    """
    known = parse_context("job", job).get("check_run_id")
    tracked = environ.get("RUNNER_TRACKING_ID", "")
    if isinstance(known, int | str) and not isinstance(known, bool) and re.fullmatch(r"[0-9]{1,20}", str(known)):
        name = f"check-{known}"
    else:
        name = f"runner-{tracked}" if _TRACKED.fullmatch(tracked) else ""
    return Claimant(event.run.id, event.run.attempt, name)


def refuse_collision(line: Lineage, mine: Claimant, other: Claimant) -> None:
    """Two jobs of one run attempt do not work under one lineage unless `session-key` says so, as retry jobs do.

    What is not known of either is no proof.

    Raises:
        InputError: naming `session-key`.
    """
    is_same_attempt = (mine.run_id, mine.run_attempt) == (other.run_id, other.run_attempt)
    if line.is_explicit or not is_same_attempt or not mine.job or not other.job or mine.job == other.job:
        return
    raise InputError(
        "Another job of this run works under the same session, and would undo what this one does; nothing was run.",
        hint="Set session-key to a name of its own in each of the two. Two jobs that call one reusable workflow pass "
        "it as an input of that workflow.",
    )


def session_id(line: str, task: int) -> str:
    """12 hex digits: a retry that finds no checkpoint still finds the effects of the attempt before it."""
    return blake2b(f"{task}:{line}".encode(), digest_size=6, person=b"endstate-sess").hexdigest()
