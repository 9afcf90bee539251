"""The result goes out: what is to be delivered is on record first, then each delivery, then what came of it.

Killed anywhere in between, another attempt delivers the rest without asking a model. Each delivery can be asked for
(by the marker of a comment, the trailer of a commit), so that an answer that was lost never makes a second one.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from endstate_action.account import Around, account
from endstate_action.agent.observe import NAMED_AT_MOST, changed_since
from endstate_action.agent.policy import Policy
from endstate_action.ci import evidence as told
from endstate_action.ci.commit import Change, Commits, Moved, Plan, Target, own_branch
from endstate_action.ci.marker import Marker, parse_marker
from endstate_action.ci.outcome import Absent, Applied, Denied, Failure, Outcome, Rejected, TooLate, is_final
from endstate_action.ci.patch import Patch, make_patch
from endstate_action.ci.pull_request import Author, Conversation, PostedComment, Viewer
from endstate_action.ci.render import BESIDE_IT, earlier_of, has_looked_again
from endstate_action.ci.render import comment as render_comment
from endstate_action.config import DEFAULT_CONFIG, Config
from endstate_action.effects import digest
from endstate_action.errors import InputError
from endstate_action.shipper import Shipper
from endstate_action.state.fold import State
from endstate_action.state.records import Delivered, Delivering, ToDeliver
from endstate_action.state.session import Session
from endstate_action.system.git import Repository
from endstate_action.system.git_aside import Aside, Changed, aside
from endstate_action.system.git_call import GitError
from endstate_action.system.names import display, few, short
from endstate_action.system.published import Published, publish
from endstate_action.system.redaction import Secrets
from endstate_action.system.tree import scan

SENDER_S = 30.0
"""So long after the fence was read a sender may still send."""
_GONE = "deleted"
_PINNED = 1_000
"""So many changed files are recorded at most, where git could not tell of them."""
_MOST_FENCES = 3
"""So often the fence is read anew for one delivery, where GitHub takes long to answer."""
_KINDS = {"heads": "branch", "tags": "tag"}
_AUTHOR = ("endstate[bot]", "endstate@users.noreply.github.com")
_SUBJECT_CHARACTERS = 72
_REFERENCE = re.compile(r"([@#](?=\w)|\bGH-(?=\d)|/(?:issues|pull)/(?=\d))", re.IGNORECASE)
"""Who is called, or which issue is closed."""
_DIRECTIVE = re.compile(r"\[\s*(skip|ci|no|actions)[\s-]+\w+\s*\]|skip-checks\s*:\s*true", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a result is announced. Without a conversation there is no comment, without commits no commit."""

    owner: str
    viewer: Viewer
    conversation: Conversation | None = None
    commits: Commits | None = None
    target: Target | None = None
    """The branch; None where no commit is wanted."""
    known: int | None = None
    """The comment that was posted when the attempt began: if it is gone, somebody has deleted it."""
    may_recreate: bool = True
    """Whether a comment that somebody deleted is posted again; once is enough."""
    before: str = ""
    """What our comment said before this attempt."""

    def is_ours(self, body: str, author: Author) -> bool:
        marker = parse_marker(body)
        return marker is not None and marker.owner == self.owner and self.viewer.wrote(author)


@dataclass(frozen=True, slots=True)
class Result:
    """What came of the attempt, for who announces it."""

    conclusion: told.Conclusion
    reason: str
    said: str
    """The agent's final message."""


@dataclass(frozen=True, slots=True)
class Announced:
    """What was said, and where it can be found."""

    evidence: told.Evidence
    patch: Patch | None
    published: Published | None
    comment_url: str | None = None
    commit: str | None = None
    branch: str | None = None
    moved_to: str | None = None
    """Where the branch was found, if that is not where the task began; the commit then has a branch of its own."""
    has_lost_head: bool = False
    """Whether that branch was deleted meanwhile, with the same consequence."""
    problems: tuple[str, ...] = ()
    """Why something was not delivered, a sentence each; it stays in the outbox."""
    is_final: bool = False
    """Whether trying again would be refused in the same way."""
    is_kept: bool = True
    """Whether what was not delivered is stored where another attempt finds it."""
    evidence_file: Path | None = None
    patch_file: Path | None = None
    """Both None where there is nothing to write, or where it could not be written."""
    unwritten: str = ""
    """Why a file could not be written."""

    def without(self, what: str, why: str, *, is_final: bool = False) -> Announced:
        problem = f"The {what} was not delivered: {why.rstrip('.')}."
        # As long as another attempt could deliver one of two, it is worth it.
        is_final = is_final and (self.is_final or not self.problems)
        return replace(self, problems=(*self.problems, problem), is_final=is_final)


@dataclass(slots=True)
class Delivery:
    """The deliveries of one attempt. One result is announced at a time."""

    session: Session
    place: Place
    repository: Repository | None
    environ: Mapping[str, str]
    secrets: Secrets
    shipper: Shipper | None
    around: Around
    files: Path
    """Where evidence and patch are written."""
    baseline: Path
    """The scan of the workspace as the task began."""
    clock: Callable[[], float] = time.time
    unread: str = field(init=False, default="")
    """Why git could not tell what was changed, as the end of a sentence; empty where it could."""
    withheld: str = field(init=False, default="")
    """What is not in the patch, and why, as a sentence."""
    apart: str = field(init=False, default="")
    """What was left beside the result, as a sentence."""
    pinned: int = field(init=False, default=0)
    """How many records a checkpoint must have to hold what is to be delivered."""

    def announce(self, result: Result) -> Announced:
        """Deliver what the outbox holds of this task. Never raises for what GitHub does."""
        if self.repository is None:
            return self._announce(result, None, None, None)
        self.apart = left_apart(self.session.state, self.repository)
        base = self.session.state.begun.bound.get("base")
        try:
            with aside(self.repository, self.environ, base) as seen:
                bound = self.session.state.begun.bound
                published = publish(seen, base, bound.get("dirty", {}), bound.get("nested"))
                contents = seen.contents([change.after.id for change in published.changed if change.after])
                patch = self._patch(seen, published, contents)
                return self._announce(result, published, patch, contents)
        except GitError as error:
            # What an agent did to `.git` must not cost the result: it is told, without what only git could tell.
            self.unread = f"git cannot read the checkout any more ({short(str(error))})."
            self.around = replace(self.around, changed=self._changed_without_git(self.repository.root))
            self.repository = None
            return self._announce(result, None, None, None)

    def _patch(self, seen: Aside, published: Published, contents: Mapping[str, bytes]) -> Patch:
        """What was changed, without files that hold a secret: it goes wherever somebody takes it."""
        leaking = {path: names for path, _, names in self._leaks(published.changed, contents)}
        patch = make_patch(seen, published.base_tree, published.git_tree, tuple(leaking))
        if leaking:
            paths = self.secrets.hide(few([short(display(path)) for path in leaking]))
            names = sorted({name for found in leaking.values() for name in found})
            self.withheld = f"The patch is without {paths}, since that holds the value of {', '.join(names)}."
        if found := self.secrets.contains(patch.data):
            self.withheld = f"There is no patch, since it would have held the value of {', '.join(found)}."
            patch = Patch(b"", "", 0)
        return patch

    def _changed_without_git(self, root: Path) -> tuple[told.ChangedFile, ...] | None:
        """By our own scan of the workspace, or as the machine knew it that has the one of the task's start."""
        try:
            found = changed_since(self.baseline, scan(root, [os.fsencode(name) for name in self.around.excluded]))
        except InputError:
            return None
        outbox = self.session.state.outbox
        known: Mapping[str, Any] | None = outbox.changed if found is None and outbox else found
        if known is None:
            return None
        return tuple(told.ChangedFile(path=p, change=kind, mode=None, blob=None) for p, kind in known.items())

    def _announce(
        self,
        result: Result,
        published: Published | None,
        patch: Patch | None,
        contents: Mapping[str, bytes] | None,
    ) -> Announced:
        self._pin(result, published)
        announced = Announced(self._evidence(result, published, None, patch), patch, published)
        if self._wants_commit():
            announced = self._commit(announced, contents)
        announced = self._told(self._with_patch(announced), result)
        after = self._comment(announced, result)
        is_told = after.problems == announced.problems and not self._is_unfit()
        return after if is_told else self._told(after, result)

    def _told(self, announced: Announced, result: Result) -> Announced:
        """With evidence that says what is known by now, in a file as well."""
        evidence = self._evidence(result, announced.published, announced, announced.patch)
        kept, why = self._keep("evidence.json", self.secrets.hide(evidence.to_json()).encode())
        return replace(
            announced,
            evidence=evidence,
            evidence_file=kept,
            unwritten=why or announced.unwritten,
            is_kept=self._is_kept(),
        )

    def _is_kept(self) -> bool:
        shipped = self.shipper.departed.shipped if self.shipper else None
        return shipped is not None and shipped.records >= self.pinned

    def _pin(self, result: Result, published: Published | None) -> None:
        state = self.session.state
        known = state.outbox
        # What was restored has it already; on one machine nobody knows what an earlier attempt has stored.
        self.pinned = 0 if self.around.restored_hash else state.records
        if known is not None and known.conclusion == result.conclusion and not self._is_stale(known, published):
            return
        commit = None
        if result.conclusion == "success" and self.place.target:
            commit = self._plan(result, published) if published else self._wish()
        wants_comment = self.place.conversation is not None
        self.session.append(
            ToDeliver(state.task, result.conclusion, commit, wants_comment, self.clock(), self._known_changes())
        )
        self.pinned = self.session.state.records

    def _known_changes(self) -> dict[str, str] | None:
        changed = self.around.changed if self.unread else None
        return {self.secrets.hide(f.path): f.change for f in changed} if changed and len(changed) <= _PINNED else None

    def _is_stale(self, known: ToDeliver, published: Published | None) -> bool:
        """Whether the tree is no longer the one that was pinned: somebody went on working on it."""
        return bool(known.commit and published and known.commit["tree"] != published.git_tree)

    def _wish(self) -> dict[str, Any] | None:
        """A commit that is wanted, of a tree that nobody knows: who can read it plans the commit."""
        target = self.place.target
        is_changed = bool(self.unread) and self.around.changed != ()
        return {"tree": None, "branch": target.branch, "own": target.is_own} if target and is_changed else None

    def _plan(self, result: Result, published: Published) -> dict[str, Any] | None:
        if not published.changed:
            return None
        state, target = self.session.state, self.place.target
        session = state.begun.session
        key = f"{session}/task-{state.task}"
        words = self.secrets.hide(result.said).strip().splitlines()
        subject = (_inert(words[0]) if words else "") or "Apply the result of an agent's run"
        return {
            "parent": state.begun.bound.get("base"),
            "tree": published.git_tree,
            "message": f"{subject[:_SUBJECT_CHARACTERS]}\n\nMade by endstate, session {session}.",
            "author": list(_AUTHOR),
            "when": int(self.clock()),
            "session": session,
            "key": f"{key} {digest(published.git_tree.encode())[:12]}",
            "branch": target.branch if target else "",
            "own": target.is_own if target else True,
        }

    # One delivery

    def _wants_commit(self) -> bool:
        outbox = self.session.state.outbox
        return bool(outbox and outbox.commit and self.place.commits)

    def _commit(self, announced: Announced, contents: Mapping[str, bytes] | None) -> Announced:
        outbox, commits = self.session.state.outbox, self.place.commits
        if outbox is None or outbox.commit is None or commits is None:
            return announced
        pinned, known = outbox.commit, self.session.state.was_delivered("commit")
        if contents is None or announced.published is None:
            if known:
                return _with_commit(announced, known, pinned["branch"])
            self._held()  # a re-run looks again, so it has to find that there is something to look for
            # What a fresh checkout did not mend, no other will.
            return announced.without("commit", self.unread, is_final=has_looked_again(announced.evidence))
        plan = Plan(
            pinned["parent"], pinned["tree"], pinned["message"], tuple(pinned["author"]), pinned["when"],
            pinned["session"], pinned["key"],
        )  # fmt: skip
        target = Target(pinned["branch"], is_own=pinned["own"])
        changed = announced.published.changed
        leak = self._leak_in_commit(plan, target, changed, contents)
        if leak:
            return replace(announced, problems=(*announced.problems, leak), is_final=True)

        if known is None:
            # The result is safe before anything is sent. Uploads come before the fence is read again, since they take
            # as long as there is much to upload, and nothing refers to them yet.
            held = self._held()
            if held is not None:
                return announced.without("commit", held, is_final=self._is_unfit())
            unprotected = self._protects_none(changed)
            prepared = commits.prepare(plan, _changes(changed, contents), may_change_workflows=unprotected)
            if not isinstance(prepared, Applied):
                return announced.without("commit", _why(prepared), is_final=is_final(prepared))
            known, refusal = self._deliver(
                "commit", lambda may_write: _push(commits, plan, prepared.value, target, may_write)
            )
            if not known.ok:
                return announced.without("commit", known.reason, is_final=self._is_refused(refusal))
        return _with_commit(announced, known, target.branch)

    def _protects_none(self, changed: Sequence[Changed]) -> bool:
        """Whether the session's own configuration protects nothing of it; in its place, the default does."""
        frozen = self.session.state.frozen
        policy = Policy.from_config(Config.from_json(frozen.config) if frozen else DEFAULT_CONFIG)
        return not any(policy.protecting(display(change.path)) for change in changed)

    def _comment(self, announced: Announced, result: Result) -> Announced:
        conversation, place = self.place.conversation, self.place
        if conversation is None:
            return announced
        state, found = self.session.state, conversation.find(place.is_ours)
        there = found.value if isinstance(found, Applied) else None
        known = state.was_delivered("comment")
        if known is not None and there is not None and self._says_it(there, announced):
            return replace(announced, comment_url=known.value)
        # What stands there by now was said by this attempt itself, where it has said anything.
        before = place.before if place.known is not None else there.body if there else ""
        earlier = earlier_of(before, state.begun.session, max(state.task, 1))
        said = self.secrets.hide(result.said)
        body = self.secrets.hide(
            render_comment(
                announced.evidence,
                place.owner,
                said,
                announced.patch,
                earlier,
                is_final=announced.is_final,
                is_kept=announced.is_kept,
            )
        )

        def act(may_write: Callable[[], bool]) -> Outcome[str]:
            stuck = conversation.stick(
                body, place.is_ours, may_write, known=place.known, may_recreate=place.may_recreate
            )
            if isinstance(stuck, Absent) and not place.may_recreate:
                return Applied("")  # who deletes it twice means it
            return Applied(stuck.value.comment.url) if isinstance(stuck, Applied) else stuck

        done, refusal = self._deliver("comment", act)
        if done.ok:
            return replace(announced, comment_url=done.value or None)
        return announced.without("comment", done.reason, is_final=self._is_refused(refusal))

    def _says_it(self, there: PostedComment, announced: Announced) -> bool:
        """Whether our comment is the one with this result; another attempt may have written over it, or none yet."""
        trees, state = announced.evidence.trees, self.session.state
        marker = parse_marker(there.body)
        return marker is not None and marker == Marker(
            self.place.owner, state.begun.session, max(state.task, 1), marker.effects, announced.evidence.conclusion,
            trees.base_commit, announced.commit, trees.git_tree, trees.published_hash,
        )  # fmt: skip

    def _deliver(
        self, what: str, act: Callable[[Callable[[], bool]], Outcome[str]]
    ) -> tuple[Delivered, Failure | None]:
        """Record, ship, read the fence, send, record; and what GitHub answered, where that was no success."""
        state = self.session.state
        self.session.append(Delivering(state.task, what, state.epoch, self.clock()))
        outcome: Outcome[str] = TooLate()
        for _ in range(_MOST_FENCES):
            held = self._held()
            if held is not None and not (what == "comment" and self._may_edit_all_the_same()):
                return self._recorded(what, ok=False, value="", reason=held), None
            until = time.monotonic() + SENDER_S
            outcome = act(lambda until=until: time.monotonic() < until)  # type: ignore[misc]
            if not isinstance(outcome, TooLate):
                break
        if isinstance(outcome, Applied):
            done = self._recorded(what, ok=True, value=outcome.value, reason="")
        else:
            done = self._recorded(what, ok=False, value="", reason=_why(outcome))
        if self.shipper:
            self.shipper.soon()
        return done, None if isinstance(outcome, Applied) else outcome

    def _is_refused(self, refusal: Failure | None) -> bool:
        """Whether a repeat would be refused in the same way. Without a refusal it was ours not to send."""
        return self._is_unfit() if refusal is None else is_final(refusal)

    def _is_unfit(self) -> bool:
        """Whether nothing is stored since the workspace holds a secret, say: no repeat would find that otherwise."""
        return self.shipper is not None and self.shipper.is_unfit

    def _may_edit_all_the_same(self) -> bool:
        """Of what cannot be stored, what was said need not be lost too: to edit our own comment twice does no harm."""
        if self.shipper is None or not self._is_unfit() or self.place.known is None:
            return False
        self.shipper.refuse_superseded()
        return True

    def _held(self) -> str | None:
        """Ship, and read the fence; the reason where nothing may be sent."""
        return self.shipper.barrier() if self.shipper else None

    def _recorded(self, what: str, *, ok: bool, value: str, reason: str) -> Delivered:
        state = self.session.state
        done = Delivered(state.task, what, ok, value, self.secrets.redact(reason)[:500], state.epoch, self.clock())
        self.session.append(done)
        return done

    # What is said

    def _evidence(
        self, result: Result, published: Published | None, announced: Announced | None, patch: Patch | None
    ) -> told.Evidence:
        commits = own_commits(self.session.state, self.repository)
        if announced and announced.commit:
            subject = self._subject()
            commits = (*commits, told.Commit(id=announced.commit, subject=subject, branch=announced.branch))
        uncommitted = None
        if ((patch and patch.data) or self.withheld) and not (announced and announced.commit):
            file = announced.patch_file if announced else None
            digest = hashlib.sha256(patch.data).hexdigest() if file and patch else None
            uncommitted = told.Uncommitted(
                patch_file=file.name if file else None, patch_sha256=digest, lacks=self.withheld or None
            )
        problems = announced.problems if announced else ()
        notes = problems
        if self.unread and self.around.changed != () and not (announced and announced.commit):
            uncommitted = told.Uncommitted(patch_file=None)
        if self.unread and not any(self.unread in problem for problem in problems):
            notes = (f"Git{self.unread.removeprefix('git')}", *problems)
        if self.apart:
            notes = (self.apart, *notes)
        departed = self.shipper.departed if self.shipper else None
        if departed and departed.shipped and departed.problem:
            notes = (*notes, f"Nothing newer than that checkpoint was stored, since {departed.problem.reason}")
        if announced and announced.has_lost_head:
            notes = (
                *notes,
                "The head branch was deleted meanwhile and is not made again: the commit is on a branch of its own.",
            )
        conclusion, reason = result.conclusion, result.reason
        if conclusion == "success" and problems:
            conclusion, reason = "undelivered", " ".join(problems)
        around = replace(
            self.around,
            conclusion=conclusion,
            reason=reason,
            published=published,
            commits=commits,
            uncommitted=uncommitted,
            head_moved_to=(announced.moved_to if announced else None) or self.around.head_moved_to,
            compare_url=self._compare_url(announced) if announced and announced.commit else None,
            notes=(*self.around.notes, *notes),
        )
        return account(self.session.state, around)

    def _compare_url(self, announced: Announced) -> str | None:
        """None for a commit that is on the branch it is meant for, or whose branch is gone."""
        around, branch = self.around, announced.branch
        if announced.has_lost_head:
            return None
        onto = around.branch or self.session.state.begun.bound.get("base")
        if not (around.repository_url and onto and branch) or branch == onto:
            return None
        return f"{around.repository_url}/compare/{quote(onto)}...{quote(branch)}?expand=1"

    def _subject(self) -> str:
        outbox = self.session.state.outbox
        return str(outbox.commit["message"]).partition("\n")[0] if outbox and outbox.commit else ""

    def _with_patch(self, announced: Announced) -> Announced:
        patch = announced.patch
        if patch is None or not patch.data or announced.commit:
            return replace(announced, patch=None)
        kept, why = self._keep("result.patch", patch.data)
        return replace(announced, patch_file=kept, unwritten=why)

    def _keep(self, name: str, data: bytes) -> tuple[Path | None, str]:
        """Where it is, or why it is nowhere; the result itself is not lost by that."""
        place = self.files / name
        try:
            self.files.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
        except OSError as error:
            return None, f"{place} cannot be written ({error.strerror or error})"
        return place, ""

    def _leak_in_commit(
        self, plan: Plan, target: Target, changed: Sequence[Changed], contents: Mapping[str, bytes]
    ) -> str:
        for channel, text in (("message", plan.full_message), ("branch name", target.branch)):
            if self.secrets.contains(text):
                return f"The commit was not delivered: its {channel} would have held a secret."
        for _, what, names in self._leaks(changed, contents):
            return f"The commit was not delivered: {what} holds the value of {', '.join(names)}."
        return ""

    def _leaks(
        self, changed: Sequence[Changed], contents: Mapping[str, bytes]
    ) -> Iterator[tuple[bytes, str, list[str]]]:
        """Paths that hold a secret, each with what of it does, and whose value that is; names come first."""
        for change in changed:
            if names := self.secrets.contains(display(change.path)):
                yield change.path, "the name of a file", names
        for change in changed:
            if change.after and (names := self.secrets.contains(contents[change.after.id])):
                yield change.path, display(change.path), names


def _inert(line: str) -> str:
    """A model's words as a subject: they skip no checks, close no issues, call nobody and hide nothing."""
    shown = " ".join("".join(c if c.isprintable() else " " for c in line).split()).lstrip("# ")
    return _REFERENCE.sub(r"\1 ", _DIRECTIVE.sub("", shown)).strip()


def _push(commits: Commits, plan: Plan, commit: str, target: Target, may_write: Callable[[], bool]) -> Outcome[str]:
    """The commit's id and its branch; where that had moved, the branch of its own, and where the other is."""
    pushed = commits.publish(plan, commit, target, may_write)
    if not isinstance(pushed, Moved):
        return Applied(f"{pushed.value} {target.branch}") if isinstance(pushed, Applied) else pushed
    if target.is_own:
        return Rejected(pushed.reason)
    # The head moved: the result keeps to the commit that it belongs to, on a branch of its own.
    own = own_branch(plan.session)
    beside = commits.publish(plan, commit, own, may_write)
    if isinstance(beside, Moved):
        return Rejected(beside.reason)
    return Applied(f"{beside.value} {own.branch} {pushed.at or _GONE}") if isinstance(beside, Applied) else beside


def _with_commit(announced: Announced, known: Delivered, branch: str) -> Announced:
    made, pushed_to, moved_to = (*known.value.split(" "), "", "")[:3]
    if moved_to == _GONE:
        return replace(announced, commit=made, branch=pushed_to, has_lost_head=True)
    return replace(announced, commit=made, branch=pushed_to or branch, moved_to=moved_to or None)


def _why(failure: Failure) -> str:
    if not isinstance(failure, Denied):
        return failure.reason
    renewed = "The token has expired or was revoked: a re-run gets a new token and delivers it."
    return f"{failure.reason} ({(renewed if failure.has_expired else failure.remedy).rstrip('.')})"


def _changes(changed: Sequence[Changed], contents: Mapping[str, bytes]) -> list[Change]:
    made = []
    for change in changed:
        after = change.after
        if after is None:
            made.append(Change(change.path, None))
        else:
            made.append(Change(change.path, after.mode, lambda blob=after.id: contents[blob]))  # type: ignore[arg-type,misc]
    return made


def left_apart(state: State, repository: Repository | None) -> str:
    """What branches, tags and stashes have since the session began and its result has not; empty where nothing is.

    A result is what is checked out at the end, so this would otherwise go with the machine unseen.
    """
    bound = state.begun.bound
    if repository is None or "apart" not in bound:
        return ""
    try:
        found = repository.apart([base] if (base := bound.get("base")) else [])
    except GitError:
        return ""  # of a broken checkout the rest may still be delivered
    names = [f"{_in_words(ref)} ({commit[:12]})" for ref, commit in found.items() if commit not in bound["apart"]]
    return f"{BESIDE_IT}, which is what was checked out at the end: {few(names, NAMED_AT_MOST)}." if names else ""


def _in_words(ref: str) -> str:
    kind, _, name = ref.removeprefix("refs/").partition("/")
    return f"{_KINDS[kind]} {short(name)}" if kind in _KINDS else "a stash"


def own_commits(state: State, repository: Repository | None) -> tuple[told.Commit, ...]:
    """Those that the agent's tool made in the checkout, which nobody has pushed."""
    found = []
    for place, finished in state.finished.items():
        if finished.status == "ok" and state.requested[place].call.name == "git_commit" and repository is not None:
            words = finished.content.split()
            made = repository.full_id(words[1].rstrip(".")) if len(words) > 1 else None
            if made:
                found.append(told.Commit(id=made, subject=repository.subject_of(made)))
    return tuple(found)
