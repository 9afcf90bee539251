"""A comment on the pull request, said once: it bears a key by which it is found again.

What the model says is shown and does nothing: nobody is called, no bot obeys it, nothing in it is hidden, and no
line of it is taken for one of ours.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from endstate_action.agent.tools.base import CallContext, FileChange, Probed, Tool, ToolError
from endstate_action.ci.markdown import message, units
from endstate_action.ci.outcome import Absent, Ambiguous, Applied, Failure
from endstate_action.ci.pull_request import Author, Conversation, PostedComment, Viewer
from endstate_action.effects import EffectClass, Probe

MAX_CHARACTERS = 60_000
MAX_UNITS = 65_000
"""GitHub takes 65,536; what is made harmless, and our line above it, need some of them."""
SENDER_S = 30.0
"""So long after its start was shipped and the fence was read a comment may still be sent."""
BELIEVED_AFTER_S = 60.0
"""So long after this attempt claimed its number, what an earlier one sent may still come in."""
_LOOK_AGAIN_S = 5.0
_WHOLE = 10 * MAX_CHARACTERS
_BODY = "Markdown, at most 60,000 characters. Mentions, HTML and pictures in it are shown as text and do nothing."
_LINE = re.compile(r"<!-- endstate:call (\{[^<>]*\}) -->")


class PrComment(Tool):
    """Posts under the pull request that the run is about.

    Args:
        claimed_at: when this attempt claimed its number, by `clock`.
    """

    name: ClassVar[str] = "pr_comment"
    description: ClassVar[str] = (
        "Post a comment on the pull request (or issue) that this run is about. It is public and cannot be taken back; "
        "your final message is posted anyway, so use this only for what must be said apart from it."
    )
    parameters: ClassVar[Mapping[str, Any]] = {
        "type": "object",
        "properties": {"body": {"type": "string", "description": _BODY}},
        "required": ["body"],
    }
    effect = EffectClass.KEYED

    def __init__(
        self,
        conversation: Conversation,
        viewer: Viewer,
        claimed_at: float,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._conversation = conversation
        self._viewer = viewer
        self._claimed_at = claimed_at
        self._clock = clock
        self._sleep = sleep

    def plan(self, arguments: Mapping[str, Any], context: CallContext) -> FileChange | None:
        body = str(arguments["body"])
        if not body.strip():
            raise ToolError("Nothing was posted: the comment is blank.")
        if len(body) > MAX_CHARACTERS:
            raise ToolError(f"Nothing was posted: it has {len(body):,} characters; at most {MAX_CHARACTERS:,} fit.")
        if (size := units(message(body, _WHOLE))) > MAX_UNITS:
            raise ToolError(
                f"Nothing was posted: with its mentions and syntax made harmless it has {size:,} characters; at most "
                f"{MAX_UNITS:,} fit."
            )
        return None

    def run(self, arguments: Mapping[str, Any], context: CallContext, plan: FileChange | None) -> str:
        until = self._clock() + SENDER_S
        text = f"{_line(context)}\n{message(str(arguments['body']), _WHOLE)}"
        done = self._conversation.post(text, self._is(context), lambda: self._clock() < until)
        if isinstance(done, Applied):
            return f"Posted: {done.value.url}"
        raise ToolError(_said(done))

    def probe(self, arguments: Mapping[str, Any], context: CallContext) -> Probed:
        """Absent is believed once nothing can be on its way any more."""
        while True:
            found = self._conversation.find(lambda body, author: self._bears_key(body, author, context))
            if isinstance(found, Applied):
                return self._judged(found.value, context)
            if not isinstance(found, Absent):
                return Probed(Probe.UNKNOWN)
            left = self._claimed_at + BELIEVED_AFTER_S - self._clock()
            if left <= 0:
                return Probed(Probe.ABSENT)
            context.check()
            self._sleep(min(left, _LOOK_AGAIN_S))

    def _judged(self, there: PostedComment, context: CallContext) -> Probed:
        shown = _key_of(there.body)
        if shown is not None and shown.get("digest") == context.content_digest:
            return Probed(Probe.APPLIED, f"Posted: {there.url}")
        return Probed(Probe.UNKNOWN)

    def _is(self, context: CallContext) -> Callable[[str, Author], bool]:
        return lambda body, author: self._bears_key(body, author, context)

    def _bears_key(self, body: str, author: Author, context: CallContext) -> bool:
        # Who may not write for us is not listened to, whatever it is.
        if not self._viewer.wrote(author):
            return False
        shown = _key_of(body)
        return shown is not None and shown.get("key") == context.key


def _line(context: CallContext) -> str:
    shown = json.dumps({"digest": context.content_digest, "key": context.key}, separators=(",", ":"))
    return f"<!-- endstate:call {shown} -->"


def _key_of(body: str) -> Mapping[str, Any] | None:
    """What the first line says, if we wrote it: a quoted one stands elsewhere."""
    found = _LINE.fullmatch(body[:1000].partition("\n")[0].removesuffix("\r"))
    try:
        shown = json.loads(found[1]) if found else None
    except (ValueError, RecursionError):
        return None
    return shown if isinstance(shown, dict) else None


def _said(failure: Failure) -> str:
    if isinstance(failure, Ambiguous):
        return f"Nobody can tell whether it was posted: {failure.reason}. Look before you post it again."
    return f"It was not posted: {failure.reason}."
