"""Workflow runs, their jobs and what is noted at these, as GitHub tells them now.

Names, titles and notes are what others wrote; numbers, moments and commit ids have been checked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote

from endstate_action.ci.github import GitHub
from endstate_action.ci.outcome import Absent, Applied, Failed, Failure, Unavailable, told, understood
from endstate_action.ci.payload import Node, refused
from endstate_action.ci.pull_request import place_of

NEEDS_ACTIONS = "actions: read"
NEEDS_CHECKS = "checks: read"
NEEDS_RERUN = "actions: write"
_NEEDS_CONTENTS = "contents: read"

MOST_JOB_PAGES = 3
"""300 jobs: a matrix has 256 at most."""

_MOST_NOTE_PAGES = 10
"""1,000 annotations of a job: a step can leave 30."""

COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_FINE = frozenset({"success", "skipped", "neutral"})
_ABOUT_A_PULL_REQUEST = frozenset(
    {"pull_request", "pull_request_target", "pull_request_review", "pull_request_review_comment"}
)


@dataclass(frozen=True, slots=True)
class WorkflowRun:
    """One attempt of a workflow run: the newest."""

    id: int
    number: int
    """Counts the runs of the workflow, and stays when it is run again."""
    attempt: int
    status: str
    conclusion: str
    """`""` until it is over."""
    event: str
    workflow: int
    branch: str
    sha: str
    title: str
    """Of its pull request, issue or commit, unless the workflow names its runs."""
    head_repository: int | None
    """None where it was deleted."""
    pull_requests: tuple[int, ...]
    """Open ones of the same repository. A fork's are not told, nor is that of a comment."""
    created: datetime
    updated: datetime

    @property
    def is_over(self) -> bool:
        return self.status == "completed"

    @property
    def is_fine(self) -> bool:
        return self.conclusion in _FINE

    @property
    def is_about_a_pull_request(self) -> bool:
        return self.event in _ABOUT_A_PULL_REQUEST


@dataclass(frozen=True, slots=True)
class JobStep:
    name: str
    conclusion: str
    """`""` for one that never ended, as on a machine that is gone."""

    @property
    def is_ours(self) -> bool:
        """By the name that GitHub gives it, `Run org/endstate-action@v1`, or by one that says so."""
        return "endstate" in self.name.lower()


@dataclass(frozen=True, slots=True)
class Annotation:
    message: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    name: str
    conclusion: str
    steps: tuple[JobStep, ...] = ()
    annotations: tuple[Annotation, ...] | Failure = ()
    """Or why they could not be read. Those of a job that went well are not asked for."""

    @property
    def is_fine(self) -> bool:
        return self.conclusion in _FINE

    @property
    def is_ours(self) -> bool:
        return any(step.is_ours for step in self.steps)


@dataclass(frozen=True, slots=True)
class Runs:
    """Those of one repository. Each method raises `Failed`, never as ambiguous, where it does not say otherwise."""

    github: GitHub
    repository: str

    def read(self, run_id: int) -> WorkflowRun:
        return understood(_run, self.github.read(self._path(f"runs/{run_id}"), needs=NEEDS_ACTIONS))

    def newest(self, conclusion: str, count: int) -> tuple[WorkflowRun, ...]:
        """The newest of all workflows that ended so, newest first."""
        return self._listed(self._path("runs"), {"status": conclusion, "per_page": count})

    def beside(self, run: WorkflowRun) -> tuple[WorkflowRun, ...]:
        """The newest of its workflow on its branch, newest first."""
        return self._listed(self._path(f"workflows/{run.workflow}/runs"), {"branch": run.branch, "per_page": 50})

    def jobs(self, run: WorkflowRun) -> tuple[Job, ...]:
        """Those of its newest attempt, with the annotations of each that did not go well."""
        listed = self.github.pages(
            self._path(f"runs/{run.id}/jobs?filter=latest"), NEEDS_ACTIONS, item="jobs", most=MOST_JOB_PAGES
        )
        return tuple(self._job(found) for found in listed)

    def head(self, branch: str) -> str:
        """The commit at which a branch is."""
        return self._ref(f"heads/{branch}")

    def parted(self, base: str, head: str) -> str:
        """The commit at which the histories of two parted."""
        # The files of a comparison come with its first page, and nobody needs them here.
        path = f"{place_of(self.repository)}/compare/{quote(base)}...{quote(head)}?per_page=1&page=2"
        return understood(_parted, self.github.read(path, needs=_NEEDS_CONTENTS))

    def pushed(self, run: WorkflowRun) -> str | None:
        """The commit at which the branch of a push is; None for a tag, which a run names in the same place."""
        found = told(lambda: self.head(run.branch))
        if isinstance(found, Absent):
            # What an annotated one is at is no commit, and a tag that is moved has a newer run.
            if isinstance(told(lambda: self._ref(f"tags/{run.branch}")), Applied):
                return None
            found = Absent("its branch or tag is gone")
        if not isinstance(found, Applied):
            raise Failed(found)
        return found.value

    def rerun(self, run: WorkflowRun) -> None:
        """Sent once.

        Raises:
            Failed: ambiguous too, where it may have been run again all the same.
        """
        self.github.write("POST", self._path(f"runs/{run.id}/rerun-failed-jobs"), needs=NEEDS_RERUN)

    def _ref(self, name: str) -> str:
        path = f"{place_of(self.repository)}/git/ref/{quote(name)}"
        return understood(_tip, self.github.read(path, needs=_NEEDS_CONTENTS))

    def _job(self, found: Any) -> Job:
        number, job = understood(_job, found)
        if job.is_fine:
            return job
        return Job(job.name, job.conclusion, job.steps, self._annotations(number))

    def _annotations(self, job: int) -> tuple[Annotation, ...] | Failure:
        path = f"{place_of(self.repository)}/check-runs/{job}/annotations"
        try:
            return tuple(
                understood(_annotation, found) for found in self.github.pages(path, NEEDS_CHECKS, most=_MOST_NOTE_PAGES)
            )
        except Failed as failed:
            return failed.failure

    def _listed(self, path: str, parameters: Mapping[str, str | int]) -> tuple[WorkflowRun, ...]:
        found = self.github.read(path, parameters, needs=NEEDS_ACTIONS)
        listed = found.get("workflow_runs") if isinstance(found, dict) else None
        if not isinstance(listed, list):
            raise Failed(Unavailable("GitHub's answer has not the shape that it documents"))
        return tuple(understood(_run, one) for one in listed)

    def _path(self, rest: str) -> str:
        return f"{place_of(self.repository)}/actions/{rest}"


def _run(node: Node) -> WorkflowRun:
    head = node.child("head_repository")
    return WorkflowRun(
        id=node.number("id"),
        number=node.number("run_number"),
        attempt=node.number("run_attempt"),
        status=node.text("status"),
        conclusion=node.text("conclusion"),
        event=node.text("event"),
        workflow=node.number("workflow_id"),
        branch=node.text("head_branch"),
        sha=node.matching("head_sha", COMMIT, "commit id"),
        title=node.text("display_title"),
        head_repository=head.number("id") if head else None,
        pull_requests=tuple(pull.number("number") for pull in _nodes(node, "pull_requests")),
        created=_moment(node, "created_at"),
        updated=_moment(node, "updated_at"),
    )


def _job(node: Node) -> tuple[int, Job]:
    """Its id, which is that of its check run as well, and what is told of it."""
    steps = tuple(JobStep(step.text("name"), step.text("conclusion")) for step in _nodes(node, "steps"))
    return node.number("id"), Job(node.text("name"), node.text("conclusion"), steps)


def _annotation(node: Node) -> Annotation:
    return Annotation(node.text("message"), node.text("title"))


def _tip(node: Node) -> str:
    return node.need("object").matching("sha", COMMIT, "commit id")


def _parted(node: Node) -> str:
    return node.need("merge_base_commit").matching("sha", COMMIT, "commit id")


def _nodes(node: Node, name: str) -> list[Node]:
    """A list of objects; one that is not there is empty."""
    listed = node.data.get(name)
    if listed is None:
        return []
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise refused(name, "is no list of objects")
    return [Node(one, name) for one in listed]


def _moment(node: Node, name: str) -> datetime:
    try:
        found = datetime.fromisoformat(node.text(name))
    except ValueError:
        raise refused(name, "is no moment") from None
    if found.tzinfo is None:
        raise refused(name, "has no time zone")
    return found
