"""What came of a task, as evidence: a fold of the session, and the tree as it is, in the words of `ci.evidence`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from endstate_action import __version__
from endstate_action.ci import evidence as told
from endstate_action.shipper import Departed
from endstate_action.state.fold import State
from endstate_action.state.records import FORMAT, Attempt, Ended
from endstate_action.state.totals import (
    as_text,
    attempts_of_task,
    effects_started,
    may_have_lost,
    total_cost,
    total_usage,
)
from endstate_action.system.names import display
from endstate_action.system.published import Published

_ENDED: Mapping[str, Literal["finished", "stopped", "interrupted", "superseded", "failed"]] = {
    "success": "finished",
    "stopped": "stopped",
    "interrupted": "interrupted",
    "superseded": "superseded",
    "mismatch": "failed",
    "failed": "failed",
}
_STORES = {"cache": "Actions cache", "git-ref": "git ref", "dir": "directory", "none": "none"}


@dataclass(frozen=True, slots=True)
class Around:
    """What the session does not know: where it ran, and what was made of it there."""

    conclusion: told.Conclusion
    reason: str
    tree_hash: str
    excluded: tuple[str, ...]
    sandbox: str
    sandbox_note: str = ""
    departed: Departed | None = None
    published: Published | None = None
    restored_hash: str | None = None
    repository: str | None = None
    pull_request: int | None = None
    run_url: str | None = None
    repository_url: str | None = None
    branch: str | None = None
    """The branch that the task was begun on, where the repository has it."""
    compare_url: str | None = None
    commits: tuple[told.Commit, ...] = ()
    uncommitted: told.Uncommitted | None = None
    head_moved_to: str | None = None
    changed: tuple[told.ChangedFile, ...] | None = None
    """What is known of it without git, where nothing could be published."""
    notes: tuple[str, ...] = ()
    epoch: int | None = None
    """The number of the attempt that announces."""
    effects: int | None = None
    """The number of effects outside for others to go by, where the store does not know of all."""


def account(state: State, around: Around) -> told.Evidence:
    """The evidence of the task at hand."""
    published, departed = around.published, around.departed
    first = state.first_step_of_task()
    cost, usage = total_cost(state), total_usage(state)
    shipped = departed.shipped if departed else None
    return told.Evidence(
        conclusion=around.conclusion,
        reason=around.reason,
        session=state.begun.session,
        task=max(state.task, 1),
        repository=around.repository,
        pull_request=around.pull_request,
        run_url=around.run_url,
        asked_in=state.begun.bound.get("asked-in"),
        compare_url=around.compare_url,
        attempts=tuple(_attempt(state, attempt) for attempt in attempts_of_task(state)),
        delivered_by=around.epoch if around.epoch is not None and around.epoch > state.epoch else None,
        trees=told.Trees(
            base_commit=state.begun.bound.get("base"),
            base_tree=published.base_tree if published else state.begun.bound.get("base-tree"),
            restored_hash=around.restored_hash,
            workspace_hash=around.tree_hash,
            published_hash=published.tree_hash if published else None,
            git_tree=published.git_tree if published else None,
            excluded=around.excluded,
            left_out=tuple(told.LeftOut(path=p, reason=r) for p, r in published.left_out.items()) if published else (),
        ),
        changed_files=around.changed if published is None else tuple(map(_changed, published.changed)),
        commits=around.commits,
        uncommitted=around.uncommitted,
        head_moved_to=around.head_moved_to,
        settlements=tuple(
            told.Settlement(
                step=s.step,
                call=s.index + 1,
                tool=state.requested[s.step, s.index].call.name,
                action=s.action,  # type: ignore[arg-type]  # one of `settle.Action`
                reason=s.reason,
                attempt=s.epoch,
            )
            for s in state.settled
            if s.step > first
        ),
        refused=tuple(
            told.Refused(
                step=f.step,
                call=f.index + 1,
                tool=state.requested[f.step, f.index].call.name,
                status=f.status,
                reason=f.content[:500],
            )
            for f in state.finished.values()
            if f.step > first and f.status in ("denied", "refused", "not_run")
        ),
        failed_calls=state.failed_calls,
        steps=state.steps - first,
        spent=told.Spent(
            input_tokens=usage.context_tokens,
            output_tokens=usage.output_tokens,
            usd=as_text(cost),
            at_least=may_have_lost(state),
        ),
        outside_effects=effects_started(state) if around.effects is None else around.effects,
        fingerprint=_fingerprint(state),
        accepted_mismatches=tuple(a for attempt in state.attempts for a in attempt.accepted),
        durability=told.Durability(
            store=_STORES.get(departed.store, departed.store) if departed else "none",
            checkpoint=shipped.key if shipped else None,
            age_s=shipped.age_s if shipped else None,
        ),
        sandbox=told.Sandbox(kind=around.sandbox, note=around.sandbox_note),
        versions={"endstate": __version__, "python": ".".join(map(str, sys.version_info[:3]))},
        notes=(*_not_restored(state), *around.notes),
    )


def _not_restored(state: State) -> Iterator[str]:
    """What an attempt found otherwise than the one before had left it, though the calls on record may tell of it."""
    for attempt in attempts_of_task(state):
        if reasons := attempt.process.get("not_restored"):
            yield f"Not all was restored for attempt {attempt.epoch}: {'; '.join(reasons)}."


def moment(at: float) -> str:
    """`YYYY-MM-DDTHH:MM:SSZ`"""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def _attempt(state: State, attempt: Attempt) -> told.Attempt:
    end: Ended | None = next((e for e in reversed(state.ended) if e.epoch == attempt.epoch), None)
    is_newest = attempt is state.attempts[-1]
    ended = _ENDED[end.conclusion] if end else "finished" if is_newest else "preempted"
    steps = [r for r in state.replies if r.epoch == attempt.epoch]
    return told.Attempt(
        epoch=attempt.epoch,
        run_attempt=attempt.process.get("run_attempt"),
        began=moment(attempt.at),
        steps=len(steps),
        ended=ended,
        where="" if ended in ("finished", "stopped") else _where(state, attempt),
        restored_from=attempt.process.get("restored_from"),
    )


def _where(state: State, attempt: Attempt) -> str:
    """How far it came, as far as is known."""
    done = sum(f.epoch <= attempt.epoch for f in state.finished.values())
    return f"after call {done}" if done else "before its first call"


def _fingerprint(state: State) -> told.Fingerprint:
    frozen = state.frozen
    answered = tuple(dict.fromkeys(r.model for r in state.replies if r.model))
    contracts: tuple[Mapping[str, Any], ...] = frozen.contracts if frozen else ()
    return told.Fingerprint(
        provider=frozen.provider if frozen else "",
        model_asked=frozen.model if frozen else "",
        models_answered=answered,
        tools=tuple(told.Tool(name=c["name"], effect=c["effect"], contract=c["schema"]) for c in contracts),
        state_format=FORMAT,
    )


def _changed(change: Any) -> told.ChangedFile:
    kind: Literal["added", "modified", "deleted"] = (
        "added" if change.before is None else "deleted" if change.after is None else "modified"
    )
    after = change.after
    return told.ChangedFile(
        path=display(change.path), change=kind, mode=after.mode if after else None, blob=after.id if after else None
    )
