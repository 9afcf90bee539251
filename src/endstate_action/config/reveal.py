"""What a person cannot see, an agent is not told: hidden text is replaced by a visible note of it.

Instructions and comments can carry text that no page shows (HTML comments, tag characters, runs of
variation selectors) or that shows in another order (bidirectional controls), to steer an agent or
to smuggle data out through it. Emoji sequences and the joiners and marks that ordinary scripts
need stay as they are.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

_ZWNJ, _ZWJ = "\u200c", "\u200d"
_DIRECTION_MARKS = "\u200e\u200f\u061c"
_ARABIC_NUMBER_SIGNS = "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"
_LOOKS_LIKE_NOTHING = "\u034f\u115f\u1160\u17b4\u17b5\u2028\u2029\u2065\u3164\uffa0"
_FLAGS = re.compile(
    "\U0001f3f4\U000e0067\U000e0062(?:"
    "\U000e0065\U000e006e\U000e0067|\U000e0073\U000e0063\U000e0074|\U000e0077\U000e006c\U000e0073)\U000e007f"
)
_BASES = {"So", "Sk", "Lo", "Lm", "Mn", "Mc"}


def reveal(text: str) -> str:
    """The text as a person sees it, with `[hidden ...]` where there was more. Doing it twice changes nothing."""
    return "".join(_shown("".join(_outside_comments(text))))


def _outside_comments(text: str) -> Iterator[str]:
    """Inside a code block too: no parser here would agree with every page on where a code block ends."""
    at = 0
    while (start := text.find("<!--", at)) >= 0:
        yield text[at:start]
        # `<!-->` and `<!--->` are whole comments, so the end may overlap the beginning.
        end = text.find("-->", start + 2)
        if end < 0:
            yield f"[hidden: a comment that is not closed, {len(text) - start} characters]"
            return
        yield "[hidden comment]"
        at = end + len("-->")
    yield text[at:]


def _shown(text: str) -> list[str]:
    out: list[str] = []
    at = 0
    while at < len(text):
        flag = _FLAGS.match(text, at)
        end = flag.end() if flag else _end_of_run(text, at)
        out.append(text[at:end] if flag or _is_seen(text, at) else _note(text[at:end]))
        at = end
    return out


def _end_of_run(text: str, at: int) -> int:
    """Past the run of unseen characters that begins here, or past one seen character."""
    if _is_seen(text, at):
        return at + 1
    end = at + 1
    while end < len(text) and not _is_seen(text, end):
        end += 1
    return end


def _note(hidden: str) -> str:
    if len(hidden) == 1:
        return f"[hidden U+{ord(hidden):04X}]"
    return f"[hidden: {len(hidden)} characters]"


def _is_seen(text: str, at: int) -> bool:
    """Whether the character shows, or does what it is for in the place where it stands."""
    char = text[at]
    if not _is_invisible(char):
        return True
    before, after = text[at - 1] if at else "", text[at + 1 : at + 2]
    if not before or (_is_selector(char) and _is_selector(before)):
        return False
    if _is_invisible(before) and not (_is_selector(before) and _is_seen(text, at - 1)):
        return False
    if char in (_ZWJ, _ZWNJ):
        return unicodedata.category(before) in _BASES and not _is_invisible(after)
    if char in _DIRECTION_MARKS:
        return not _is_invisible(after) and (_is_right_to_left(before) or _is_right_to_left(after))
    return _is_selector(char) and _can_vary(before, char)


def _is_invisible(char: str) -> bool:
    if not char or char in "\t\n\r" or char in _ARABIC_NUMBER_SIGNS:
        return False
    if unicodedata.category(char) in {"Cf", "Cc", "Cs"} or char in _LOOKS_LIKE_NOTHING:
        return True
    return _is_selector(char) or 0xE0000 <= ord(char) <= 0xE0FFF


def _is_selector(char: str) -> bool:
    return "\ufe00" <= char <= "\ufe0f" or "\U000e0100" <= char <= "\U000e01ef"


def _can_vary(base: str, selector: str) -> bool:
    if selector > "\ufe0f":
        return unicodedata.category(base) == "Lo" and base >= "\u2e80"
    return base in "0123456789#*" or (base > "\u00a0" and not base.isspace())


def _is_right_to_left(char: str) -> bool:
    return bool(char) and unicodedata.bidirectional(char) in {"R", "AL", "AN"}
