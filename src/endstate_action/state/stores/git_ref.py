"""A git ref as a store: for events whose cache token cannot write, with no more than `contents: write`.

Each lineage has one ref, `refs/endstate/<lineage>`, which names a commit without parents; its flat tree holds the
objects by name. A put makes a new such commit and moves the ref by compare-and-swap, so that of several writers
one wins and the others look again. No history grows: what is dropped is no longer reachable.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from endstate_action.state.keys import is_lineage
from endstate_action.state.stores.base import Exists, Put, Stored, Unavailable
from endstate_action.state.stores.bounded import Deadline, again, passes_after, unreadable
from endstate_action.state.stores.git_remote import Failed, Remote
from endstate_action.state.stores.key_parts import highest, key, split

REFS = "refs/endstate/"
TRIES = 20
"""So often a put looks again after another writer was quicker."""

_T = TypeVar("_T")
# Of the time that is left, for the push; the rest is for a second look when its answer does not come.
_PUSH_SHARE = 0.75


@dataclass(frozen=True, slots=True)
class _Tip:
    """What a ref named when we last looked; `commit` is None where there was no ref."""

    commit: str | None = None
    blobs: Mapping[str, str] = field(default_factory=dict)


class GitRefStore:
    """Objects behind refs of a remote repository. Requests from several threads wait for each other.

    Args:
        url: of the repository; https, http, ssh or file.
        place: a path inside the state directory, for a bare repository of our own; made, and made anew.
        workspace: no program from there is taken for git.
        environ: gives PATH, HOME, proxies and ssh settings; nothing else of it reaches git.
        token: sent to an http or https address only; "" for none.

    Raises:
        InputError: the address cannot be used, or there is no git program.
    """

    name = "git-ref"
    deletes = True

    def __init__(self, url: str, place: Path, workspace: Path, environ: Mapping[str, str], *, token: str = "") -> None:
        self._remote = Remote.at(url, place.absolute(), workspace, environ, token)
        self._one_request = threading.Lock()
        self._known: dict[str, _Tip] = {}
        self._is_new = True

    def put(self, key: str, data: bytes, *, timeout_s: float, drop: Collection[str] = ()) -> Put:
        lineage, name = split(key)
        dropped = {other for where, other in map(split, drop) if where == lineage}
        deadline = Deadline(timeout_s)
        try:
            with self._alone(deadline):
                return self._put(lineage, name, data, dropped, deadline)
        except Failed as failed:
            return failed.outcome

    def get(self, key: str, *, timeout_s: float) -> bytes | None:
        lineage, name = split(key)
        return self._asked(timeout_s, lambda deadline: self._get(lineage, name, deadline))

    def first(self, prefixes: Sequence[str], *, timeout_s: float) -> str | None:
        return self._asked(timeout_s, lambda deadline: self._first(prefixes, deadline))

    def lineages(self, *, timeout_s: float) -> list[str] | None:
        names = self._asked(timeout_s, lambda deadline: self._remote.refs(REFS, deadline))
        return sorted(name for name in (ref.removeprefix(REFS) for ref in names) if is_lineage(name))

    def keys(self, prefix: str, *, timeout_s: float) -> list[str] | None:
        lineage, beginning = split(prefix)
        tip = self._asked(timeout_s, lambda deadline: self._look(lineage, deadline))
        return [key(lineage, name) for name in sorted(tip.blobs) if name.startswith(beginning)]

    def _put(self, lineage: str, name: str, data: bytes, dropped: Collection[str], deadline: Deadline) -> Put:
        blob = self._remote.add(data, deadline)
        # What was known last may be outdated; then the swap fails and we look. That saves a request most times.
        tip = self._known.get(lineage) or self._look(lineage, deadline)
        for _ in range(TRIES):
            if name in tip.blobs:
                return Exists(key(lineage, name))
            blobs = {other: its for other, its in tip.blobs.items() if other not in dropped} | {name: blob}
            commit = self._remote.commit(blobs, deadline)
            is_ours = self._swap(lineage, tip.commit, commit, {name: blob}, deadline)
            tip = _Tip(commit, blobs) if is_ours else self._look(lineage, deadline)
            # libcurl sends a request again when its connection was cut: refused then, because of the first one.
            if tip.commit == commit:
                self._known[lineage] = tip
                return Stored(key(lineage, name), len(data))
        return Unavailable(f"other writers were quicker {TRIES} times", is_doubtful=False)

    def _swap(self, lineage: str, old: str | None, new: str, added: Mapping[str, str], deadline: Deadline) -> bool:
        """Whether `old` was replaced by `new`; a push without an answer is looked for.

        Raises:
            Failed: with a doubtful outcome where even a second look does not tell.
        """
        try:
            return self._remote.push(REFS + lineage, old, new, Deadline(deadline.left() * _PUSH_SHARE))
        except Failed as failed:
            if not isinstance(failed.outcome, Unavailable) or not failed.outcome.is_doubtful:
                raise
            try:
                tip = self._look(lineage, deadline)
            except Failed:
                raise failed from None
            if tip.commit == new:
                return True
            # At `old`, it may still arrive; with our object, others may have built on ours, or written the same.
            if tip.commit == old or added.items() <= tip.blobs.items():
                raise
            return False

    def _get(self, lineage: str, name: str, deadline: Deadline) -> bytes | None:
        known = self._known.get(lineage, _Tip())
        # What a key holds never changes.
        tip = known if name in known.blobs else self._look(lineage, deadline)
        return self._remote.read(tip.blobs[name], deadline) if name in tip.blobs else None

    def _first(self, prefixes: Sequence[str], deadline: Deadline) -> str | None:
        tips: dict[str, _Tip] = {}
        for lineage, beginning in map(split, prefixes):
            if lineage not in tips:
                tips[lineage] = self._look(lineage, deadline)
            name = highest(list(tips[lineage].blobs), beginning)
            if name is not None:
                return key(lineage, name)
        return None

    def _look(self, lineage: str, deadline: Deadline) -> _Tip:
        """What the ref names now. It is always asked for: a fence must not be read from memory."""
        ref = REFS + lineage
        commit = self._remote.tip(ref, deadline)
        known = self._known.get(lineage)
        if known is None or known.commit != commit:
            fetched = None if commit is None else self._remote.fetch(ref, deadline)
            known = _Tip() if fetched is None else _Tip(fetched, self._remote.blobs(fetched, deadline))
            self._known[lineage] = known
        return known

    def _asked(self, timeout_s: float, question: Callable[[Deadline], _T]) -> _T:
        deadline = Deadline(timeout_s)
        try:
            with self._alone(deadline):
                return again(lambda: question(deadline), _passes_after, deadline)
        except Failed as failed:
            raise unreadable(self.name, failed.reason, failed.remedy) from failed

    @contextmanager
    def _alone(self, deadline: Deadline) -> Iterator[None]:
        if not self._one_request.acquire(timeout=deadline.left()):
            reason = f"another request was still under way after {deadline.timeout_s:g} s"
            raise Failed(Unavailable(reason, is_doubtful=False))
        try:
            if self._remote.ready(anew=self._is_new):
                self._known.clear()
            self._is_new = False
            yield
        finally:
            self._one_request.release()


def _passes_after(problem: Exception) -> float | None:
    return passes_after(problem.outcome) if isinstance(problem, Failed) else None
