"""By hand: evidence of a run, a finished result that its job could not deliver, a comment that somebody verifies."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from urllib.parse import urlsplit

from endstate_action.account import account
from endstate_action.agent.providers.base import OnDiscard, Reply, Request
from endstate_action.ci.commit import Commits, Target
from endstate_action.ci.evidence import Evidence, Uncommitted
from endstate_action.ci.github import GitHub
from endstate_action.ci.marker import parse_marker
from endstate_action.ci.outcome import Applied
from endstate_action.ci.pull_request import Conversation, Viewer, viewer_of
from endstate_action.config import Settings
from endstate_action.deliver import Delivery, Place, Result, left_apart, own_commits
from endstate_action.errors import InputError, UnknownSession
from endstate_action.run import Announcement, Choice, Finishing, Ports, run
from endstate_action.state.totals import effects_started
from endstate_action.system import git
from endstate_action.system.files import atomic_write
from endstate_action.system.git_aside import aside
from endstate_action.system.git_call import GitError
from endstate_action.system.names import short
from endstate_action.system.published import publish
from endstate_action.verify import Reference

_REMOTE = re.compile(r"[/:](?P<repository>[\w.-]+/[\w.-]+?)(\.git)?/?\Z")


class _NoModel:
    """In the place of a provider where no model may be asked."""

    def __init__(self, name: str) -> None:
        self.name = name

    def reply(self, request: Request, on_discard: OnDiscard) -> Reply:
        raise InputError(
            "This session is not finished, so there is nothing to deliver. No model was asked.",
            hint="`endstate run --resume` finishes it.",
        )


def deliver_by_hand(
    environ: Mapping[str, str],
    settings: Settings,
    session: str | None,
    put: Callable[[str], None],
    say: Callable[[str], None],
) -> int:
    """Deliver what the outbox of a session holds. Returns the exit code.

    Raises:
        EndstateError: there is no such session, it is not finished, or it belongs to no pull request.
    """
    github = _github(environ)
    problems: list[str] = []
    finals: list[bool] = []

    def finish(finishing: Finishing) -> Announcement:
        announced = _delivery(finishing, github, environ).announce(
            Result("success", finishing.result.reason, finishing.result.final_message)
        )
        problems.extend(announced.problems)
        finals.append(announced.is_final)
        for what, where in (("comment", announced.comment_url), ("commit", announced.commit)):
            if where:
                put(f"{what}: {where}")
        return Announcement({})

    ports = Ports(environ, lambda name, _: _NoModel(name), notice=say, finish=finish)
    run(settings, Choice(session), ports)
    for problem in problems:
        say(problem)
    return 0 if not problems else 2 if any(finals) else 75


def evidence_file(text: str, workspace: Path, state_dir: str) -> Path:
    """Where evidence is to be written. Raises: InputError: nothing can be, or it would change what it is about."""
    unusable = InputError(
        f"--evidence {short(text)} cannot be written. Nothing was run.",
        hint="Name a file in a directory that exists and is yours.",
    )
    file, workspace = Path(text).absolute(), workspace.resolve()
    try:
        folder, is_directory = file.parent.resolve(), file.is_dir()
    except (OSError, RuntimeError) as error:  # a name that is too long, links in a circle
        raise unusable from error
    if is_directory:
        raise InputError(
            f"--evidence {text} is a directory. Nothing was run.", hint="Name a file, ../evidence.json for example."
        )
    if folder.is_relative_to(workspace) and not folder.is_relative_to(workspace / state_dir):
        raise InputError(
            f"--evidence {text} lies in the workspace, whose tree it is to tell of. Nothing was run.",
            hint=f"Name a file outside, ../{file.name} for example.",
        )
    if not folder.is_dir() or not os.access(folder, os.W_OK) or (os.path.lexists(file) and not file.is_file()):
        raise unusable
    return folder / file.name


def keep_evidence(
    finishing: Finishing, file: Path, environ: Mapping[str, str], say: Callable[[str], None]
) -> Announcement:
    """Write what `verify` needs of a result that is announced nowhere. The result itself is not lost by a failure."""
    result = finishing.result
    # Not the same command: without --resume it would begin anew, and do everything once more.
    again = "`endstate run --resume` writes it."
    if result.ended_tree_hash not in (None, finishing.tree_hash):
        say(
            f"No evidence was written, and {file} is as it was: the workspace has changed since this session ended. "
            f"Once that is undone (`git status` may tell), {again}"
        )
        return Announcement({})
    try:
        atomic_write(file, finishing.secrets.hide(_evidence(finishing, environ).to_json()).encode(), 0o644)
    except (OSError, GitError) as error:
        why = short(str(error)).rstrip(".")
        say(f"The task is finished, and no evidence was written: {why}. Once that is put right, {again}")
        return Announcement({})
    return Announcement({"evidence-file": str(file)})


def _evidence(finishing: Finishing, environ: Mapping[str, str]) -> Evidence:
    state, result, repository = finishing.session.state, finishing.result, finishing.workplace.repository
    published = None
    if repository is not None:
        base = state.begun.bound.get("base")
        with aside(repository, environ, base) as seen:
            published = publish(seen, base, state.begun.bound.get("dirty", {}), state.begun.bound.get("nested"))
    around = finishing.around(result.conclusion)
    around = replace(
        around,
        published=published,
        commits=own_commits(state, repository),
        uncommitted=Uncommitted(patch_file=None) if published and published.changed else None,
        notes=(*around.notes, *filter(None, [left_apart(state, repository)])),
    )
    return account(state, around)


def read_comment(environ: Mapping[str, str], reference: Reference, path: Path) -> str:
    """The body of our newest comment on a pull request, or of the one that is named.

    Raises:
        InputError: there is none of ours, it cannot be read, or it is on another server than GITHUB_API_URL.
    """
    _refuse_other_server(environ, reference)
    repository = reference.repository or _repository_at(path, environ)
    github = _github(environ)
    found = Conversation(github, repository, reference.number).comments()
    if not isinstance(found, Applied):
        raise InputError(
            f"Pull request #{reference.number} of {repository} could not be read ({found.reason}). Nothing was "
            "verified.",
            hint="Set GITHUB_TOKEN to a token that may read it, or name the evidence file.",
        )
    # Who quotes our marker is a person; an app is at least one of the repository's own, and who verifies knows himself.
    me, an_app = viewer_of(github), Viewer(None)
    ours = [c for c in found.value if parse_marker(c.body) and (an_app.wrote(c.author) or me.wrote(c.author))]
    ours = [c for c in ours if reference.comment in (None, c.id)]
    if not ours:
        raise InputError(
            f"Pull request #{reference.number} of {repository} has no comment of endstate's, by an app or by whom this "
            "token is of. Nothing was verified.",
            hint="Name the evidence file.",
        )
    return ours[-1].body


def _delivery(finishing: Finishing, github: GitHub, environ: Mapping[str, str]) -> Delivery:
    session, bound = finishing.session, finishing.session.state.begun.bound
    repository, number, outbox = bound.get("repository"), bound.get("pull-request"), finishing.session.state.outbox
    if not repository or not bound.get("owner") or outbox is None:
        raise UnknownSession(
            f"Session {session.id} has nothing to deliver: it was not begun by a workflow, or its result is on no "
            "record. Nothing was sent.",
            hint="`endstate sessions show` tells what it did.",
        )
    place = Place(
        str(bound["owner"]),
        viewer_of(github),
        Conversation(github, repository, number) if number and outbox.comment else None,
        Commits(github, repository) if outbox.commit else None,
        Target(outbox.commit["branch"], is_own=outbox.commit["own"]) if outbox.commit else None,
    )
    around = finishing.around("success")
    around = replace(
        around,
        repository=repository,
        pull_request=number,
        repository_url=f"{environ.get('GITHUB_SERVER_URL') or 'https://github.com'}/{repository}",
        notes=(*around.notes, "Delivered by hand."),
        # The store is told nothing of what is delivered now, so who goes on from there must not miss it: it finds each
        # delivery by its key.
        effects=None if finishing.shipper else effects_started(finishing.session.state),
    )
    folder = Path(environ.get("RUNNER_TEMP") or gettempdir()) / f"endstate-{session.id}"
    return Delivery(
        session, place, finishing.workplace.repository, environ, finishing.secrets, finishing.shipper, around, folder,
        finishing.workplace.state.baseline(session.id),
    )  # fmt: skip


def _refuse_other_server(environ: Mapping[str, str], reference: Reference) -> None:
    """A pull request of that name on another server is another one, and the token is not for that server."""
    api = _api_url(environ)
    # On github.com and its tenants the API has a name of its own, on an Enterprise Server a path.
    served = urlsplit(api).netloc.lower().removeprefix("api.")
    if reference.host is not None and reference.host.lower().removeprefix("www.") != served:
        raise InputError(
            f"Pull request #{reference.number} is on {reference.host}, and GITHUB_API_URL leads to {api}. Nothing was "
            "sent, and nothing was verified.",
            hint="Set GITHUB_API_URL to the API of that server (https://HOST/api/v3 on an Enterprise Server) and "
            "GITHUB_TOKEN to a token of it, or name the evidence file.",
        )


def _api_url(environ: Mapping[str, str]) -> str:
    return environ.get("GITHUB_API_URL") or "https://api.github.com"


def _github(environ: Mapping[str, str]) -> GitHub:
    token = environ.get("GITHUB_TOKEN") or environ.get("GH_TOKEN")
    if not token:
        raise InputError(
            "There is no token for GitHub: GITHUB_TOKEN is not set. Nothing was sent.",
            hint="Set GITHUB_TOKEN; `gh auth token` prints one.",
        )
    return GitHub(_api_url(environ), token, environ)


def _repository_at(path: Path, environ: Mapping[str, str]) -> str:
    with TemporaryDirectory() as scratch:
        there = git.discover(path, environ, Path(scratch))
        url = there.remote_url() if there else None
    found = _REMOTE.search(url or "")
    if found is None:
        raise InputError(
            f"Which repository on GitHub {path} is a clone of is not known. Nothing was verified.",
            hint="Name the pull request by its address: https://github.com/OWNER/NAME/pull/7.",
        )
    return found["repository"]
