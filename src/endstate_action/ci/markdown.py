"""Text of others inside Markdown of ours: shown, and never more than shown.

A model's message, a file name or a reason cannot leave the place it is given, mention a person, link
another issue, load a picture, hide anything, or write HTML. What would be syntax is kept as text: by
escapes where we choose the form, else by a zero-width space, which reads the same and means nothing.

Sizes are UTF-16 units, which are never fewer than characters, however a platform counts those.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from endstate_action.config import reveal

_ZERO = "\N{ZERO WIDTH SPACE}"

_ESCAPED = re.compile(r"([\\`*_{}\[\]()#+\-.!~$|>^=\"'])")
_PINGS = re.compile(r"(@(?=[A-Za-z0-9])|#(?=\d)|GH\\?-(?=\d))", re.IGNORECASE)
_ADDRESSES = re.compile(r"(:(?=//)|\bwww(?=\\?\.))", re.IGNORECASE)
# A tag, a comment; a picture; a footnote, which would move to the end of the page, or an alert.
_SYNTAX = re.compile(r"(<(?=[A-Za-z/!?])|!(?=\[)|\[(?=[!^]))")
# A character reference is `@` or `<` in disguise.
_REFERENCE = re.compile(r"(&(?=[#A-Za-z]))")
_OTHERS_REFERENCE = re.compile(r"(&(?!lt;|amp;)(?=[#A-Za-z]))")

# Many a bot obeys a line that begins so.
_COMMANDS = re.compile(r"^(\s*/)(?=[A-Za-z])")

_FENCE = re.compile(r" {0,3}(?P<marks>`{3,}|~{3,})[ \t]*(?P<info>.*)")
_LANGUAGE = re.compile(r"[A-Za-z0-9_+.#-]{1,30}")
# GitHub makes pictures of these.
_DRAWN = {"mermaid", "math", "geojson", "topojson", "stl", "suggestion"}
_LONG_RUN = re.compile("(`{19})(?=`)")
_ADDRESS = re.compile(r"https?://[A-Za-z0-9.:/_~%?=&#@+-]{1,500}")

_MOST_READ = 200_000
_CLOSING_ROOM = 160
_FENCES_ROOM = 80
_QUOTE = len("> ") + 1


def units(text: str) -> int:
    return len(text) + sum(c > "\uffff" for c in text)


def take(text: str, limit: int) -> str:
    """The beginning that fits, cut between characters."""
    if units(text) <= limit:
        return text
    kept = text[: max(limit, 0)]
    while units(kept) > limit:
        kept = kept[: len(kept) - max((units(kept) - limit) // 2, 1)]
    return kept


def plain(text: str, limit: int) -> str:
    """One line in which every character stands for itself; at the beginning of a line and in a table too."""
    return _fitted(_one_line(text, limit), limit, _plain)


def code(text: str, limit: int) -> str:
    """A code span of one line. Not for tables, where a bar cannot be kept whole."""
    return _fitted(_one_line(text, limit) or " ", limit, _code)


def block(text: str, limit: int, language: str = "") -> str:
    """A code block of its own, whatever is in it; lines that do not fit are counted below it."""
    lines = list(map(_short_runs, _visible(text[:_MOST_READ]).split("\n")))
    kept = list(_fitting(lines, limit - _CLOSING_ROOM))
    fenced = _fenced(kept, language)
    if len(kept) < len(lines) or len(text) > _MOST_READ:
        fenced += ["", "*(cut here)*"]
    return "\n".join(fenced)


def prose(text: str, limit: int) -> str:
    """Somebody else's Markdown as a quotation. Code blocks are fenced anew, so where they end is ours to say.

    A message that does not fit is cut between characters, its open code block closed, and the cut is named.
    """
    return "\n".join(f"> {line}" if line else ">" for line in _harmless(text, limit))


def message(text: str, limit: int) -> str:
    """The same as a comment of its own, which is no quotation."""
    return "\n".join(_harmless(text, limit))


def _harmless(text: str, limit: int) -> list[str]:
    room = limit - _CLOSING_ROOM
    out: list[str] = []
    is_whole = len(text) <= _MOST_READ
    for is_code, language, lines in _segments(_visible(text[:_MOST_READ]).split("\n")):
        shown = list(map(_short_runs if is_code else _inert, lines))
        room -= _FENCES_ROOM if is_code else 0
        kept = list(_fitting(shown, room, beside=_QUOTE))
        if room >= 0:
            out += _fenced(kept, language) if is_code else kept
        if room < 0 or kept != shown:
            is_whole = False
            break
        room -= sum(units(line) + _QUOTE for line in kept)
    if not is_whole:
        out += ["", f"*(cut here; the whole message has {len(text):,} characters)*"]
    return out


def kept_line(line: str, limit: int) -> str:
    """A line of an older comment of ours, which somebody may have edited since. Twice is as good as once."""
    shown = " ".join(line.split())
    for syntax in (_SYNTAX, _OTHERS_REFERENCE, _PINGS):
        shown = syntax.sub(rf"\1{_ZERO}", shown)
    return take(shown, limit)


def link(words: str, address: str | None) -> str:
    """`words`, which are ours, leading to an address, if that is a plain one."""
    return f"[{words}]({address})" if address and _ADDRESS.fullmatch(address) else words


def folded(summary: str, body: str) -> str:
    """`summary` is ours and plain."""
    return f"<details><summary>{summary}</summary>\n\n{body}\n\n</details>"


def bullets(lines: Iterable[str], total: int, limit: int, rest: str) -> str:
    """A list of those of `total` lines that fit, and one that counts the others; `rest` says where those are.

    No more lines are made than are shown.
    """
    kept = list(_fitting((f"- {line}" for line in lines), limit - _CLOSING_ROOM, is_cut=False))
    more = total - len(kept)
    return "\n".join([*kept, *([f"- and {more:,} more, {rest}"] if more else [])])


def _one_line(text: str, limit: int) -> str:
    """Enough of it to see that it does not fit, if it does not; making things visible takes its time."""
    return " ".join(_visible(text[: 4 * limit]).split())


def _visible(text: str) -> str:
    """With what no page would show made visible, and `<!--` left, since nothing here lets it begin a comment."""
    if text.isascii() and text.isprintable():
        return text
    unix = text.replace("\r\n", "\n").replace("\r", "\n")
    return "<!--".join(reveal(part) for part in unix.split("<!--"))


def _plain(text: str) -> str:
    escaped = _ESCAPED.sub(r"\\\1", text.replace("&", "&amp;").replace("<", "&lt;"))
    # Behind the escape: what is rendered is looked through for mentions, not what was written.
    return _ADDRESSES.sub(rf"\1{_ZERO}", _PINGS.sub(rf"\1{_ZERO}", escaped))


def _code(text: str) -> str:
    inner = _short_runs(text)
    marks = "`" * (_longest_run(inner) + 1)
    return f"{marks} {inner} {marks}" if inner[0] in "` " or inner[-1] in "` " else f"{marks}{inner}{marks}"


def _fitted(text: str, limit: int, make: Callable[[str], str]) -> str:
    """What `make` makes of the text, or of as much of it as leads to something that fits."""
    kept = take(text, limit)
    while units(shown := make(kept if kept == text else f"{kept}…")) > limit and kept:
        kept = kept[: min(len(kept) - 1, len(kept) * limit // units(shown))]
    return shown


def _fitting(lines: Iterable[str], room: int, beside: int = 1, *, is_cut: bool = True) -> Iterator[str]:
    """The first lines, each with `beside` units around it; of the one that does not fit what does, if `is_cut`."""
    for line in lines:
        if units(line) + beside > room:
            if is_cut and room > beside:
                yield take(line, room - beside)
            return
        room -= units(line) + beside
        yield line


def _inert(line: str) -> str:
    for syntax in (_COMMANDS, _SYNTAX, _REFERENCE, _PINGS):
        line = syntax.sub(rf"\1{_ZERO}", line)
    return line


def _segments(lines: list[str]) -> Iterator[tuple[bool, str, list[str]]]:
    """(whether it is a code block, its language, its lines). One that is not closed goes on to the end."""
    text: list[str] = []
    at = 0
    while at < len(lines):
        opened = _FENCE.fullmatch(lines[at])
        if opened is None or (opened["marks"][0] == "`" and "`" in opened["info"]):
            text.append(lines[at])
            at += 1
            continue
        yield False, "", text
        end = next((n for n in range(at + 1, len(lines)) if _closes(lines[n], opened["marks"])), len(lines))
        yield True, opened["info"].partition(" ")[0], lines[at + 1 : end]
        text, at = [], end + 1
    yield False, "", text


def _closes(line: str, marks: str) -> bool:
    found = _FENCE.fullmatch(line)
    return found is not None and found["marks"].startswith(marks) and not found["info"].strip()


def _fenced(lines: list[str], language: str) -> list[str]:
    marks = "`" * max(3, 1 + max(map(_longest_run, lines), default=0))
    is_plain = _LANGUAGE.fullmatch(language) is not None and language.lower() not in _DRAWN
    return [marks + (language if is_plain else ""), *lines, marks]


def _short_runs(line: str) -> str:
    """A fence has to be longer than any row of backticks in it, and has to end somewhere."""
    return _LONG_RUN.sub(rf"\1{_ZERO}", line)


def _longest_run(line: str) -> int:
    return max(map(len, re.findall("`+", line)), default=0)
