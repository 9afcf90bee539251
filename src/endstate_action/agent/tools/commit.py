"""`git_commit`: what the agent changed becomes one commit, exactly once.

The commit's message ends with a line that names the call, so that a later attempt finds it. What the user had
changed or staged before the session stays as it was, unless the agent changed it again or names it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

from endstate_action.agent.tools.base import CallContext, FileChange, Probed, Tool, ToolError
from endstate_action.agent.tools.text import PIECE_BYTES
from endstate_action.effects import EffectClass, Probe
from endstate_action.messages import count_of, is_blank, scrub
from endstate_action.system.files import PathRefused, Workspace
from endstate_action.system.git import Repository
from endstate_action.system.git_call import Doubtful, GitError
from endstate_action.system.git_paths import at, kind
from endstate_action.system.names import display, parse

TRAILER = "Endstate-Key"
"""`Endstate-Key: <idempotency key> <content digest>` is the last line of every commit of ours."""

SHORT_ID = 12
NAMED_AT_MOST = 10


class GitCommit(Tool):
    """Commits to the branch that is checked out. Never pushes, never runs hooks, never signs.

    Args:
        trust: `Repository.trust` as it was when the session began on this checkout.
        base: HEAD when the session began; None for a branch without commits.
        dirty_at_start: `Repository.changes` against `base` when the session began.
        contained: whether the workspace is snapshotted, so that a commit can be rolled back and made again.
        protecting: from a path to the pattern that protects it; a shell may have changed what the file tools may not.
    """

    name: ClassVar[str] = "git_commit"
    description: ClassVar[str] = (
        "Commit to the current branch. Without `paths`: every file that you changed, added or deleted and have not "
        "committed yet, no `git add` needed; changes from before the session are left out. With `paths`: those files, "
        "and what you changed in those directories. Hooks do not run and nothing is pushed."
    )
    parameters: ClassVar[Mapping[str, Any]] = {
        "type": "object",
        "properties": {
            "message": {"type": "string", "description": "The commit message: a subject line, then more if needed."},
            "paths": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Files or directories, from the workspace's root, taken literally (no patterns).",
            },
        },
        "required": ["message"],
    }
    effect: EffectClass = EffectClass.KEYED

    def __init__(
        self,
        repository: Repository,
        trust: str,
        base: str | None,
        dirty_at_start: Mapping[str, str],
        protecting: Callable[[str], str | None] = lambda path: None,
        *,
        contained: bool = False,
    ) -> None:
        self._repository = repository
        self._trust = trust
        self._base = base
        self._dirty_at_start = dict(dirty_at_start)
        self._protecting = protecting
        if contained:
            self.effect = EffectClass.CONTAINED

    def contract(self) -> dict[str, str]:
        """Without the effect class, which is the workspace's and recorded with each start."""
        return super().contract() | {"effect": "commit"}

    def plan(self, arguments: Mapping[str, Any], context: CallContext) -> FileChange | None:
        with _nothing_committed():
            _checked_message(arguments)
            self._repository.check_trust(self._trust)
            self._chosen(arguments, context.workspace, self._repository.head().commit)
        return None

    def run(self, arguments: Mapping[str, Any], context: CallContext, plan: FileChange | None) -> str:
        with _nothing_committed():
            message = _checked_message(arguments)
            self._repository.remove_stale_locks(context.started_at)
            head = self._repository.head()
            paths = self._chosen(arguments, context.workspace, head.commit)
            _refuse_secrets(message, paths, context)
            trailer = (TRAILER, _trailer_value(context))
            commit = self._repository.commit(paths, message, trailer, context.started_at, head, self._trust)
        return self._outcome(commit)

    def probe(self, arguments: Mapping[str, Any], context: CallContext) -> Probed:
        try:
            ours = self._made(context) or self._made(context, self._repository.left_behind())
        except GitError:
            return Probed(Probe.UNKNOWN)
        applied = [commit for commit, value in ours if value == _trailer_value(context)]
        if applied:
            return Probed(Probe.APPLIED, self._outcome(applied[0]))
        return Probed(Probe.UNKNOWN if ours else Probe.ABSENT)

    def _made(self, context: CallContext, also: Iterable[str] = ()) -> list[tuple[str, str]]:
        """The commits, each with its trailer's value, that bear the call's key."""
        found = self._repository.find_by_trailer(TRAILER, self._base, also)
        return [(commit, value) for commit, value in found if value.split(" ")[0] == context.key]

    def _chosen(self, arguments: Mapping[str, Any], workspace: Workspace, commit: str | None) -> list[bytes]:
        """The paths to commit; refuses by name what cannot be."""
        now = self._repository.changes(commit)
        left_out = {path for path, digest in now.items() if self._dirty_at_start.get(path) == digest}
        agents = {path for path in now if path not in left_out and _is_open(workspace, path)}
        named = {workspace.relative(path) for path in arguments.get("paths") or ()}
        below = {path for path in agents if any(name == "." or path.startswith(f"{name}/") for name in named)}
        chosen = (named & now.keys()) | below if named else agents
        unchanged = [name for name in sorted(named) if name != "." and name not in now]
        self._refuse_unknown([name for name in unchanged if not any(path.startswith(f"{name}/") for path in below)])
        protected = {path for path in chosen if self._protecting(path)}
        if protected:
            raise GitError(f"{_listed(protected)}: protected here. Put it back, or commit the other files by name.")
        paths = [parse(path) for path in sorted(chosen)]
        self._repository.check_committable([*paths, *map(parse, unchanged)])
        if not paths:
            raise GitError("There is nothing to commit." + _left_out(left_out))
        return paths

    def _refuse_unknown(self, names: list[str]) -> None:
        """Of paths without a change, those that git does not know were named by mistake, or are ignored."""
        unknown = [name for name in names if not self._repository.is_tracked(os.fsdecode(parse(name)))]
        ignored = {display(path) for path in self._repository.ignored(map(parse, unknown))}
        if ignored:
            raise GitError(
                f"{_listed(ignored)}: ignored by this repository's ignore rules. Change the rules, or add the file "
                "with `git add --force` first, if it belongs into the commit."
            )
        missing = {name for name in unknown if kind(self._repository.root, parse(name)) == "absent"}
        if missing:
            raise GitError(f"{_listed(missing)}: no such file, or one behind a link.")

    def _outcome(self, commit: str) -> str:
        try:
            subject, files = self._repository.subject_of(commit), len(self._repository.files_of(commit))
        except GitError:
            return f"Committed {commit[:SHORT_ID]}."
        return f"Committed {commit[:SHORT_ID]} {subject} ({count_of(files, 'file')})."


@contextmanager
def _nothing_committed() -> Iterator[None]:
    """Tell the model, who knows no other errors, what is still true."""
    try:
        yield
    except Doubtful as error:
        raise ToolError(f"Whether the commit was made is not known: {error} Look before you commit again.") from error
    except (GitError, PathRefused, OSError) as error:
        raise ToolError(f"Nothing was committed. {error}") from error


def _checked_message(arguments: Mapping[str, Any]) -> str:
    message = scrub(str(arguments["message"]))
    if is_blank(message):
        raise GitError("The message is empty.")
    if "\0" in message:
        raise GitError("The message holds a NUL character.")
    # A message could otherwise claim to be a call that was never made, and be found in its place.
    if any(line.strip().casefold().startswith(f"{TRAILER.casefold()}:") for line in message.splitlines()):
        raise GitError(f"The message has a line that begins with {TRAILER}:, which marks commits of this tool.")
    return message


def _refuse_secrets(message: str, paths: list[bytes], context: CallContext) -> None:
    """A secret that was committed stays in the history, and goes wherever that is pushed."""
    secrets = context.secrets
    told = [("The message", secrets.contains(message))]
    told += [(display(path), secrets.in_pieces(_pieces(path, context))) for path in paths]
    found = [f"{where} holds the value of {', '.join(names)}" for where, names in told if names]
    if found:
        shown = "; ".join(found[:NAMED_AT_MOST])
        raise GitError(f"A secret of this run does not belong into a commit. {shown}. Take it out first.")


def _pieces(path: bytes, context: CallContext) -> Iterator[bytes]:
    """All that a commit would take of a path: its name, and a file's content or a link's target."""
    yield path + b"\0"
    root = context.workspace.root
    match kind(root, path):
        case "link":
            yield os.fsencode(os.readlink(at(root, path)))
        case "file":
            with context.workspace.open(display(path)) as file:
                while piece := file.read(PIECE_BYTES):
                    context.check()
                    yield piece
        case _:
            return


def _trailer_value(context: CallContext) -> str:
    return f"{context.key} {context.content_digest}"


def _is_open(workspace: Workspace, path: str) -> bool:
    try:
        workspace.relative(path)
    except PathRefused:
        return False
    return True


def _left_out(paths: set[str]) -> str:
    if not paths:
        return ""
    return f" Left out, since it was changed before the session began: {_listed(paths)}. Name in `paths` what to take."


def _listed(paths: set[str]) -> str:
    shown = sorted(paths)[:NAMED_AT_MOST]
    more = len(paths) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
