"""How an attempt takes over: a number of its own first, then the newest state that there is, here or in the store.

Only who has claimed a number looks, so that whatever an earlier attempt ships afterwards, it ships knowing that it may
have been taken over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from endstate_action.durable import Depot, Line, NoDepot
from endstate_action.errors import EndstateError, InputError, Mismatch, ProviderUnavailable, StateError, UnknownSession
from endstate_action.messages import count_of
from endstate_action.restoring import (
    Arrived,
    is_of_another,
    on_its_terms,
    refuse_elsewhere,
    refuse_unfinished,
    restore,
    unfinished,
)
from endstate_action.state.checkpoint.choose import (
    AlreadyDone,
    Choice,
    Damaged,
    Gap,
    Local,
    Looked,
    Seen,
    Unusable,
    UseLocal,
    UseStored,
    choose,
    downward,
    look,
    refusal,
)
from endstate_action.state.checkpoint.manifest import Manifest
from endstate_action.state.checkpoint.read import Opened
from endstate_action.state.epoch import Claimed, NotClaimed, TakenOver, claim, fence, highest_above, highest_taken
from endstate_action.state.fold import State
from endstate_action.state.keys import MAX_EPOCH, claim_key, is_lineage
from endstate_action.state.records import all_kept
from endstate_action.state.session import SessionStore
from endstate_action.state.snapshot.fetch import fetch_base
from endstate_action.state.stores.base import StoreUnusable
from endstate_action.state.totals import effects_started
from endstate_action.system.git_call import GitError
from endstate_action.system.names import display, few, short
from endstate_action.workplace import Workplace

REQUEST_S = 20.0
LOOK_S = 20.0
"""How long sessions of the store are looked at, where none was named, once one was seen."""


@dataclass(frozen=True, slots=True)
class Found:
    """What an attempt goes on from."""

    restored: Arrived | None = None
    """What was brought here; None where the session on this machine is the newest, or there is none."""
    manifest: Manifest | None = None
    session: str | None = None
    """Whose state it is; None where there is none."""
    done: Opened | None = None
    """The session is finished and delivered; this has its outputs."""
    effects_before: int = 0
    """Effects that the world has seen and the session does not know of, where a person chose to go on."""
    is_elsewhere: bool = False
    """Whether it was restored in another checkout than it was last in."""
    has_replaced: bool = False
    """Whether what was there, and has been replaced, may have been somebody's own work."""
    set_aside: tuple[str, ...] = ()
    """Newer checkpoints that were of no use, with their reasons."""
    trust: str | None = None
    """`Repository.trust` of that other checkout, before the session's own `.git` was restored in it."""
    left: State | None = None
    """A stored session that nothing goes on with, and that was not brought here."""


@dataclass(frozen=True, slots=True)
class Successor:
    """One attempt on its way to the state that it goes on from.

    Args:
        place: from what a session is bound to, to the workplace.
        goes_on: whether a person chose to go on over what is not known (`on-mismatch: continue`).
        git_extra: for git alone, what authorises it to fetch.
    """

    depot: Depot
    line: Line
    sessions: SessionStore
    place: Callable[[Mapping[str, Any]], Workplace]
    goes_on: bool
    notice: Callable[[str], None]
    git_extra: Mapping[str, str]
    claimant: bytes = b'{"format":1}'
    """Stored with the claim, readable by everybody."""
    confirm: Callable[[State], bool] = lambda state: True
    """Asked, before anything is replaced, whether the session is to be gone on with; raises where it cannot be."""
    is_ours_alone: bool = True
    """Whether the workspace is a fresh checkout for this run; else it may hold what somebody has done there."""

    def claim(self, above: int) -> int | NoDepot:
        """The number of this attempt, higher than `above`; or why there can be none, where the store denies it.

        Raises:
            InputError: the store is a directory that cannot be used.
            StoreUnusable: all numbers are taken.
            ProviderUnavailable: the store does not answer. Without a number nothing is safe.
        """
        match claim(self.depot.store, self.line.lineage, self.claimant, above=above):
            case Claimed(epoch):
                return epoch
            case NotClaimed("denied", reason, remedy) if self.depot.store.name == "dir":
                # A service may have its reasons with this event; a directory that cannot be used is a slip of the pen.
                raise InputError(f"store: {reason}. Nothing was run and nothing was spent.", hint=remedy)
            case NotClaimed("denied", reason, remedy):
                return NoDepot(reason, remedy)
            case NotClaimed("used_up", reason, remedy):
                raise StoreUnusable(
                    f"The store {self.depot.store.name} has no number for this attempt: {reason}. Nothing was run.",
                    hint=remedy,
                )
            case NotClaimed(_, reason, remedy):
                raise ProviderUnavailable(
                    f"The store {self.depot.store.name} did not give this attempt a number: {reason}. Nothing was run.",
                    hint=remedy or "Try again when it can be reached; `--store none` does without.",
                )

    def newest_claim(self) -> bytes | None:
        """What was stored with the highest number, if there is one. Raises: StoreUnreadable."""
        epoch = highest_above(self.depot.store, self.line.lineage, 0)
        return None if epoch is None else self.depot.store.get(claim_key(self.line.lineage, epoch), timeout_s=REQUEST_S)

    def has_stored(self) -> bool:
        """Whether there are checkpoints, of use or not. Raises: StoreUnreadable."""
        return next(downward(self.depot.store, self.line.lineage), None) is not None

    def superseded_by(self, epoch: int) -> int | None:
        """The number of a newer attempt. Raises: StoreUnreadable."""
        found = fence(self.depot.store, self.line.lineage, epoch)
        return found.epoch if isinstance(found, TakenOver) else None

    @all_kept()
    def find(self, session: str | None, epoch: int, *, witness: int = 0) -> Found:
        """Look for the newest state, and bring it here if it is in the store.

        Args:
            session: the one on this machine that could be gone on with, if there is one.
            witness: how many effects outside are known from elsewhere to have been started.

        Raises:
            UnknownSession: none opens.
            OutcomeUnknown: more was done outside than the newest state knows of.
            Mismatch, StateError: it cannot be used here.
            StoreUnreadable: the store could not be asked.
        """
        looked, chosen, gap = self._chosen(session, epoch, witness)
        if gap:
            self.notice(gap.accepted)
        return self._brought(chosen, looked, gap.started - gap.known if gap else 0, session)

    def foresee(self, session: str | None, *, may_write: bool = True) -> Choice:
        """What `find` would go on from; what it would refuse is refused before a number is claimed.

        The number ends whoever is at the session elsewhere. Nothing of the workspace is changed, and what is newest
        may be another once there is a number.

        Args:
            may_write: whether the state directory may be used for finding out, and the base commit fetched.

        Raises:
            As `find` does.
        """
        looked, chosen, _ = self._chosen(session, MAX_EPOCH, 0)
        if isinstance(chosen, UseStored):
            opened = looked.opened[chosen.key]
            place = self.place(_bound(opened))
            refuse_elsewhere(opened, place, self.sessions, self._fetch(opened, may_write), may_write=may_write)
            if opened.state and self.confirm(opened.state) and self._may_be_others(opened):
                self._refuse_to_replace(opened)
        elif not isinstance(chosen, AlreadyDone):
            refuse_unfinished(self.place({}).state)
        return chosen

    def _chosen(self, session: str | None, epoch: int, witness: int) -> tuple[Looked, Choice, Gap | None]:
        """What was looked at, what to go on from, and over which gap, where that was asked for."""
        looked, chosen = self._looked(session, epoch, witness)
        if isinstance(chosen, Damaged):
            # A predecessor that is still alive may have dropped what was just listed; by then there is something newer.
            looked, chosen = self._looked(session, epoch, witness)
        if isinstance(chosen, Gap) and self.goes_on:
            return looked, chosen.otherwise, chosen
        if (error := refusal(chosen)) is not None:
            raise error
        return looked, chosen, None

    def _may_be_others(self, opened: Opened) -> bool:
        """Whether what is in the workspace may be somebody's who knows nothing of the session."""
        is_elsewhere = opened.manifest.about.session not in self.sessions.names()
        return is_elsewhere and not self.is_ours_alone and unfinished(self.place({}).state) is None

    def _refuse_to_replace(self, opened: Opened) -> None:
        """What somebody has done in this checkout is not to be replaced unasked, though it would be kept."""
        if self.goes_on:
            return
        place, session = on_its_terms(self.place(_bound(opened)), opened), opened.manifest.about.session
        if is_of_another(opened, place):
            raise Mismatch(
                f"Session {session} was begun in another repository, as far as git can tell: of the commits that it "
                "knew, none is here. Nothing was restored and nothing was run.",
                differences=("repository: another one, with no commit of the session's",),
                hint="Resume in a clone of its own repository (a shallow one may lack them: `git fetch --unshallow`), "
                "or in an empty one (`git init`). `--on-mismatch continue` restores it here all the same; what is here "
                "now would be kept as a snapshot.",
            )
        own = _own_work(place, _bound(opened).get("base"))
        if own:
            raise Mismatch(
                f"This checkout has {' and '.join(own)}, which a restore of session {session} would replace. "
                "Nothing was restored and nothing was run.",
                differences=tuple(own),
                hint="Resume in a fresh clone, or add `--on-mismatch continue`, which keeps it as a snapshot.",
            )

    def _looked(self, session: str | None, epoch: int, witness: int) -> tuple[Looked, Choice]:
        looked = look(self.depot.store, self.depot.sealing, self.depot.expected(self.line), up_to=epoch)
        local = _beside(self._local(session), looked, self.sessions, session)
        return looked, choose(local, looked.seen, witness)

    def _brought(self, chosen: Choice, looked: Looked, effects_before: int, local: str | None) -> Found:
        match chosen:
            case UseStored(key, aside):
                opened = looked.opened[key]
                is_elsewhere = opened.manifest.about.session not in self.sessions.names()
                may_be_others = self._may_be_others(opened)
                if opened.state is None or not self.confirm(opened.state):
                    return Found(session=opened.manifest.about.session, left=opened.state, set_aside=_told(aside))
                repository = self.place(_bound(opened)).repository if may_be_others and not self.goes_on else None
                head = repository.head().commit if repository else None
                trust = _trust_of(self.place(_bound(opened)))
                arrived = restore(
                    opened,
                    self.place(_bound(opened)),
                    self.sessions,
                    self._fetch(opened),
                    (lambda: self._refuse_to_replace(opened)) if may_be_others else (lambda: None),
                )
                manifest = opened.manifest
                if repository and arrived.replaced:
                    # To replace what can be had nowhere else was refused, but for what git ignores.
                    published = set(map(display, repository.paths_at(head))) if head else set()
                    arrived = replace(arrived, replaced=tuple(p for p in arrived.replaced if p not in published))
                replaced = bool(arrived.replaced or arrived.refs) if repository else not self.is_ours_alone
                name = manifest.about.session
                return Found(arrived, manifest, name, None, effects_before, is_elsewhere, replaced, _told(aside), trust)
            case AlreadyDone(key):
                return Found(session=looked.opened[key].manifest.about.session, done=looked.opened[key])
            case _:
                # Only another restore makes a workspace whole in which one was killed.
                refuse_unfinished(self.place({}).state)
        if isinstance(chosen, UseLocal):
            return Found(session=local, effects_before=effects_before, set_aside=_told(chosen.set_aside))
        return Found(effects_before=effects_before)

    def _local(self, session: str | None) -> Local | None:
        """The session on this machine; None where it cannot be gone on with."""
        if session is None or unfinished(self.place({}).state) is not None:
            return None  # half of it may be of another checkpoint
        return local_state(self.sessions, session)

    def _fetch(self, opened: Opened, may_write: bool = True) -> Callable[[str], None]:
        def fetch(commit: str) -> None:
            place = self.place(_bound(opened))
            url = place.repository.remote_url() if place.repository else None
            said = "there is no remote named origin."
            if url is not None and not may_write:
                return
            if url is not None:
                said = fetch_base(place.objects(), place.workspace, url, commit, place.environ, self.git_extra)
            if said:
                raise Mismatch(
                    f"Session {opened.manifest.about.session} was begun on commit {commit[:12]}, which is not in this "
                    f"repository and was not fetched: {said} Nothing was restored and nothing was run.",
                    differences=(f"base commit: {commit[:12]} in the session, no such commit here",),
                    hint="Fetch that commit here, or give this checkout a remote that has it, and run again.",
                )

        return fetch


@dataclass(frozen=True, slots=True)
class Stored:
    """What a store has of one session, looked at without changing anything."""

    lineage: str
    epoch: int | None
    """The highest number that is taken."""
    checkpoints: tuple[tuple[Seen, Manifest | None], ...]
    """The newest first. Older ones than a usable one are not opened."""
    local: Local | None
    choice: Choice
    """What a resume would go on from."""
    session: str | None = None
    """The one on this machine, where it is there."""
    refused: EndstateError | None = None
    """Why a resume in this place would not do so, where that was asked."""


def inspect(depot: Depot, line: Line, sessions: SessionStore, *, half_restored: bool = False) -> Stored:
    """Raises: StoreUnreadable."""
    looked = look(depot.store, depot.sealing, depot.expected(line))
    names = set(sessions.names())
    session = line.lineage if line.lineage in names else _session_here(looked, names)
    here = local_state(sessions, session) if session and not half_restored else None
    local = _beside(here, looked, sessions, session)
    entries = tuple(
        (seen, looked.opened[seen.key].manifest if seen.key in looked.opened else None) for seen in looked.seen
    )
    taken = highest_taken(depot.store, line.lineage)
    return Stored(
        line.lineage,
        taken.epoch if taken else None,
        entries,
        local,
        choose(local, looked.seen, 0),
        session if local else None,
    )


def local_state(sessions: SessionStore, session: str) -> Local | None:
    """The session on this machine; None where it cannot be gone on with."""
    try:
        state = sessions.read(session)
    except (UnknownSession, StateError):
        return None
    return Local(state.epoch, state.records, effects_started(state))


def _beside(local: Local | None, looked: Looked, sessions: SessionStore, session: str | None) -> Local | None:
    """The session on this machine, as it compares with what is stored.

    An attempt that only told or delivered a result has left a checkpoint of its own number and no record of itself.
    What that holds is here, and as new as here: to restore it would replace what somebody has done since.
    """
    newest = max((seen.key for seen in looked.seen), default=None)
    opened = looked.opened.get(newest) if newest else None
    if local is None or session is None or newest is None or opened is None or not opened.rows:
        return local
    if newest.epoch <= local.epoch:
        return local
    is_here = tuple(sessions.journal(session)[: len(opened.rows)]) == opened.rows
    return replace(local, epoch=max(local.epoch, newest.epoch)) if is_here else local


def find_session(
    wanted: str | None,
    sessions: SessionStore,
    depot: Depot,
    newest: Callable[[], str],
    tell: Callable[[str], None] = lambda text: None,
) -> str:
    """The line of the session to resume, by the beginning of its id or, without one, the newest to go on with.

    One of this machine comes first: a store may have sessions of other places, which would replace what is here. The
    id that a workflow announces is that of a session, while a store knows the line of its attempts by another name;
    so where nothing is called so, the newest checkpoints are asked.

    Args:
        newest: the one of this machine; raises `UnknownSession` where there is none.
        tell: told, in a sentence, of the unfinished ones that only the store has and that are not chosen.

    Raises:
        UnknownSession, InputError: none, or several.
    """
    stored = depot.store.lineages(timeout_s=REQUEST_S)
    if wanted is None:
        here = set(sessions.names())
        looked, unseen = _looked_at(depot, [name for name in stored or () if name not in here])
        try:
            chosen = newest()
        except UnknownSession:
            chosen = _newest_stored(depot, stored, looked)
        others = [name for is_unfinished, _, name in sorted(looked, reverse=True) if is_unfinished and name != chosen]
        if others:
            more = f", and {unseen} more were not looked at" if unseen else ""
            tell(f"Also unfinished, in the store alone: {', '.join(others)}{more}. `--session ID` resumes one of them.")
        return _line_of(chosen, sessions, depot, stored)
    known = {*sessions.names(), *(stored or ())}
    matching, unseen = sorted(name for name in known if name.startswith(wanted)), 0
    if wanted in known or (stored is None and is_lineage(wanted)):
        return _line_of(wanted, sessions, depot, stored)
    if not matching:
        matching, unseen = _lines_of(wanted, depot, stored or [])
    if len(matching) > 1:
        raise InputError(
            f"Session {wanted!r} could be {', '.join(matching)}; nothing was run.", hint="Give more digits."
        )
    if not matching:
        where = f"in {sessions.directory} or in the store {depot.shown}"
        where += f", of which there was no time to look at {count_of(unseen, 'session')}" if unseen else ""
        raise UnknownSession(
            f"There is no session {wanted!r} {where}; nothing was run.",
            hint="`endstate sessions inspect --store …` shows what is stored."
            if stored is not None
            else "This store cannot list what it has: give the whole id.",
        )
    return _line_of(matching[0], sessions, depot, stored)


def _line_of(name: str, sessions: SessionStore, depot: Depot, stored: list[str] | None) -> str:
    """Under another line a session that a workflow began would be gone on with here and there at once."""
    if name in (stored or [name]) or name not in sessions.names():
        return name
    with suppress(UnknownSession, StateError):
        if "owner" in sessions.read(name).begun.bound:
            return next(iter(_lines_of(name, depot, stored or [])[0]), name)
    return name


def session_here(line: Line, sessions: SessionStore, depot: Depot) -> str | None:
    """Of a line, the session that is on this machine; None where there is none. Raises: StoreUnreadable."""
    names = set(sessions.names())
    if line.lineage in names or not names:
        return line.lineage if names else None
    return _session_here(look(depot.store, depot.sealing, depot.expected(line)), names)


def _session_here(looked: Looked, names: set[str]) -> str | None:
    return next((name for o in looked.opened.values() if (name := o.manifest.about.session) in names), None)


def _looked_at(depot: Depot, lineages: list[str]) -> tuple[list[tuple[bool, float, str]], int]:
    """Whether each is unfinished, when its newest checkpoint was made, its name; and how many there was no time for."""
    found: list[tuple[bool, float, str]] = []
    given_up: set[str] = set()
    looks = [*_looks(depot, lineages)]
    for lineage, opened in looks:
        found += [(not is_finished(o), o.manifest.at, lineage) for o in opened]
        given_up |= {_bound(o).get("instead-of", "") for o in opened}
    return [(is_open and name not in given_up, at, name) for is_open, at, name in found], len(lineages) - len(looks)


def _lines_of(wanted: str, depot: Depot, lineages: list[str]) -> tuple[list[str], int]:
    """Those whose newest session is called so, or begins so; and how many there was no time for."""
    looks = [*_looks(depot, lineages)]
    found = [(o.manifest.about.session, name) for name, opened in looks for o in opened]
    exact = [name for session, name in found if session == wanted]
    matching = exact or [name for session, name in found if session.startswith(wanted)]
    return sorted(set(matching)), len(lineages) - len(looks)


def _looks(depot: Depot, lineages: list[str]) -> Iterator[tuple[str, list[Opened]]]:
    """What opens of each, as far as there is time once one did."""
    has_found, until = False, time.monotonic() + LOOK_S
    for lineage in lineages:
        if has_found and time.monotonic() > until:
            return
        opened = [*look(depot.store, depot.sealing, depot.expected(Line(lineage))).opened.values()]
        has_found = has_found or bool(opened)
        yield lineage, opened


def _newest_stored(depot: Depot, stored: list[str] | None, found: list[tuple[bool, float, str]]) -> str:
    """Of what the store has: the unfinished session with the newest checkpoint, else the newest."""
    if not found and stored:
        # None opens, and whichever it is, its own refusal says why.
        return stored[-1]
    if not found:
        raise UnknownSession(
            f"There is no checkpoint in the store {depot.shown}, and no session here; nothing was run.",
            hint="Is this the directory, and that the store? `endstate run PROMPT` begins a new session."
            if stored is not None
            else "This store cannot list what it has: name the session with --session.",
        )
    return max(found)[2]


def is_finished(opened: Opened) -> bool:
    """Whether the session of a checkpoint has nothing left to do."""
    return opened.state is None or opened.state.is_finished


def _bound(opened: Opened) -> Mapping[str, Any]:
    """What the session is bound to, as its first record says."""
    return opened.state.begun.bound if opened.state else {}


def _trust_of(place: Workplace) -> str | None:
    with suppress(GitError):
        return place.repository.trust() if place.repository else None
    return None


def _own_work(place: Workplace, base: str | None) -> list[str]:
    """What is in the workspace and nowhere else, as far as git can tell. Of a plain directory nothing is known."""
    repository = place.repository
    if repository is None:
        return []
    head = repository.head().commit
    excluded = place.config.snapshot.exclude
    changes = repository.changes(head)
    # What a filter has made of the commit's own content is nobody's work, and git finds no change there.
    pristine = repository.stored_elsewhere(head, changes) if head else set()
    changed = [
        name
        for name in sorted(changes.keys() - pristine)
        if not any(f"{name}/".startswith(f"{one}/") for one in excluded)
    ]
    own = [f"files of its own ({few(changed)})"] if changed else []
    if head is not None and head != base and not repository.is_published(head):
        own.append(f"the commit {head[:12]}, which no remote repository has")
    refs = repository.unpublished([name for name in (base, head) if name])
    if refs:
        names = [short(ref.removeprefix("refs/heads/")) for ref in refs if ref != "refs/stash"]
        own += ["a stash"] if "refs/stash" in refs else []
        own += [f"branches of its own ({few(names)}), which no remote repository has"] if names else []
    return own


def _told(aside: tuple[Seen, ...]) -> tuple[str, ...]:
    return tuple(f"{seen.key.in_words}: {seen.found.reason}" for seen in aside if isinstance(seen.found, Unusable))
