"""What our comment says while the run lives, and the last that it says where the run is cut short."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from endstate_action.ci import render
from endstate_action.ci.conclusions import Conclusion
from endstate_action.ci.event import Comment
from endstate_action.ci.outcome import Applied, Outcome
from endstate_action.ci.pull_request import Conversation, PostedComment, Sticky
from endstate_action.deliver import Place
from endstate_action.system.redaction import Secrets

SIGN_OF_LIFE_S = 60.0
LAST_WORD_S = 2.0
"""So long a comment may take to say that its run was cut short; a runner that goes away gives ten seconds in all."""


class Working:
    """The comment while the run lives: posted at once, then edited at most once a minute, with a sign of life.

    Args:
        place: whose comment it is.
        conversation: of its own, since it speaks from a thread of its own and a client serves one at a time.
        now: what is known of the run.
        secrets: not to be told.
        asked_in: the comment that asked for the run, which gets a reaction.
    """

    def __init__(
        self,
        place: Place,
        conversation: Conversation,
        now: Callable[[], render.Working],
        secrets: Secrets,
        asked_in: Comment | None,
    ) -> None:
        self._place = place
        self._conversation = conversation
        self._now = now
        self._secrets = secrets
        self._asked_in = asked_in
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._wake = threading.Event()
        self._comment: int | None = None
        self._is_recreated = False
        self._edited: float | None = None
        self._before = self._said = ""
        self.url = ""

    def begin(self) -> Outcome[Sticky]:
        """Post it, or take over the one that is there; anything but `Applied` says why that cannot be."""
        before = self._conversation.find(self._place.is_ours)
        self._before = before.value.body if isinstance(before, Applied) else ""
        self._said = self._body()
        stuck = self._conversation.stick(self._said, self._place.is_ours, lambda: True)
        if isinstance(stuck, Applied):
            self._comment, self.url = stuck.value.comment.id, stuck.value.comment.url
            self._react()
            threading.Thread(target=self._live, name="endstate-comment", daemon=True).start()
        return stuck

    def take_over(self, standing: PostedComment) -> None:
        """Speak in the place of an attempt that is gone, by the comment that it left."""
        self._comment, self._said, self._before = standing.id, standing.body, standing.body

    def soon(self, *, at_once: bool = False) -> None:
        """There is news; it is told in the thread that does that, so that nobody waits for GitHub."""
        if at_once:
            self._edited = None
        self._wake.set()

    def say(self, *, at_once: bool = False) -> None:
        """Say what is known now, once a minute at most; a failure is no reason to stop: the next look heals it."""
        if at_once or self._edited is None or time.monotonic() - self._edited >= SIGN_OF_LIFE_S:
            self._edited = time.monotonic()
            self._say(self._body())

    def end(self, conclusion: Conclusion, why: str, *, is_final: bool = False, is_kept: bool = True) -> None:
        """Say that this attempt is over, and why, in the little time that a signal leaves."""
        self._over.set()
        self._wake.set()
        said = (conclusion, self._secrets.redact(why), is_final, is_kept)
        last = threading.Thread(target=self._last, args=said, daemon=True)
        last.start()
        last.join(LAST_WORD_S)

    def stop(self) -> None:
        self._over.set()
        self._wake.set()
        with self._lock:
            pass

    def leave(self, place: Place) -> Place:
        """For who announces the result: which comment it was, and what stood there before it."""
        return replace(place, known=self._comment, may_recreate=not self._is_recreated, before=self._before)

    def _last(self, conclusion: Conclusion, reason: str, is_final: bool, is_kept: bool) -> None:
        with suppress(Exception):
            body = render.ended(
                self._now(),
                self._place.owner,
                conclusion,
                reason,
                self._earlier(),
                is_final=is_final,
                is_kept=is_kept,
            )
            self._say(body, is_last=True)

    def _say(self, body: str, *, is_last: bool = False) -> None:
        is_ours = self._place.is_ours
        with self._lock:
            if self._comment is None or (self._over.is_set() and not is_last):
                return
            found = self._conversation.find(is_ours)
            if isinstance(found, Applied) and found.value.body.split() != self._said.split():
                # A newer attempt speaks, and we may be the one that was given up as lost; or a person does.
                self._over.set()
                return
            may_write = (lambda: True) if is_last else (lambda: not self._over.is_set())
            stuck = self._conversation.stick(
                body, is_ours, may_write, known=self._comment, may_recreate=not self._is_recreated
            )
            if isinstance(stuck, Applied):
                self._said, self._comment = body, stuck.value.comment.id
                self._is_recreated |= stuck.value.was == "recreated"

    def _live(self) -> None:
        while not self._over.is_set():
            self._wake.wait(SIGN_OF_LIFE_S)
            self._wake.clear()
            with suppress(Exception):  # a sign of life is nothing that a run dies of
                self.say()

    def _react(self) -> None:
        comment = self._asked_in
        if comment is not None and comment.kind != "review":
            is_review = comment.kind == "review-comment"
            self._conversation.react(comment.id, "eyes", lambda: True, is_review_comment=is_review)

    def _body(self) -> str:
        return render.working(self._now(), self._place.owner, self._earlier())

    def _earlier(self) -> tuple[str, ...]:
        now = self._now()
        return render.earlier_of(self._before, now.session, now.task)
