"""A text file as numbered lines: bounded, and read in pieces, so that a file of any size can be looked at."""

from __future__ import annotations

import io
import os
from collections.abc import Callable

from endstate_action.agent.tools.base import ToolError
from endstate_action.agent.tools.text import PIECE_BYTES, Survey, describe, lines, survey
from endstate_action.system.redaction import Secrets

OUTPUT_BYTES = 64 * 1024
HEAD_BYTES = 48 * 1024
TAIL_BYTES = OUTPUT_BYTES - HEAD_BYTES
LINE_CHARACTERS = 2000

_Row = Callable[[int, bytes, bool], str]
"""Makes what is shown of a line from its number, its bytes, and whether they are only its beginning."""


def show(path: str, file: io.BufferedReader, offset: int | None, limit: int | None, secrets: Secrets) -> str:
    """The file as the model sees it: `limit` lines from line `offset` on, or beginning and end.

    Raises:
        ToolError: the file has fewer lines.
    """
    found = survey(file)
    if found.encoding is None:
        return describe(path, file)
    if not found.size:
        return "(empty file)"
    first = offset or 1
    if first > found.lines:
        raise ToolError(f"{path} has {found.lines} lines, so there is nothing at line {first}.")
    asked = offset is not None or limit is not None
    row = _rows_of(found.encoding, secrets)
    rows = _window(file, found, first, limit, OUTPUT_BYTES if asked else HEAD_BYTES, row)
    next_line = first + len(rows)
    if asked and next_line <= found.lines:
        rows.append(f"[{found.lines - next_line + 1} more lines; continue with offset {next_line}]")
    if not asked:
        rows += _end(file, found, next_line, row)
    return "\n".join(rows + _notes(found))


def _window(
    file: io.BufferedReader, found: Survey, first: int, limit: int | None, budget: int, shown: _Row
) -> list[str]:
    """Numbered lines from `first` on: `limit` of them, and at least one, while they fit in `budget` bytes."""
    file.seek(3 if found.has_mark else 0)
    _skip_lines(file, first - 1)
    rows: list[str] = []
    for number, (line, cut) in enumerate(lines(file, 4 * LINE_CHARACTERS), first):
        row = shown(number, line, cut)
        budget -= len(row.encode()) + 1
        if len(rows) == limit or (rows and budget < 0):
            break
        rows.append(row)
    return rows


def _skip_lines(file: io.BufferedReader, count: int) -> None:
    while count and (piece := file.read(PIECE_BYTES)):
        inside = min(count, piece.count(b"\n"))
        count -= inside
        if not count:
            at = 0
            for _ in range(inside):
                at = piece.index(b"\n", at) + 1
            file.seek(at - len(piece), os.SEEK_CUR)


def _end(file: io.BufferedReader, found: Survey, first: int, shown: _Row) -> list[str]:
    """The last lines of a long file, from line `first` at the earliest, after a word on what lies before."""
    if first > found.lines:
        return []
    file.seek(max(0, found.size - TAIL_BYTES))
    file.readline()  # the rest of a line that began earlier
    last = list(lines(io.BytesIO(file.read(TAIL_BYTES)), 4 * LINE_CHARACTERS))
    rows: list[str] = []
    budget, number = TAIL_BYTES, found.lines
    while last and number >= first:
        row = shown(number, *last.pop())
        budget -= len(row.encode()) + 1
        if budget < 0:
            break
        rows.append(row)
        number -= 1
    rows.reverse()
    gap = f"[lines {first} to {number} are not shown; read them with offset and limit]"
    return [gap, *rows] if number >= first else rows


def _rows_of(encoding: str, secrets: Secrets) -> _Row:
    def row(number: int, line: bytes, cut: bool) -> str:
        text = line.decode(encoding, "ignore")
        if cut or len(text) > LINE_CHARACTERS:
            # Redacted before it is cut: of half a secret nobody could tell what it is.
            text = f"{secrets.redact(text, ends_torn=cut)[:LINE_CHARACTERS]} [the line goes on]"
        return f"{number:>6}\t{text}"

    return row


def _notes(found: Survey) -> list[str]:
    """What the numbered lines do not show, though an exact copy of the file needs it."""
    notes = [
        "" if found.encoding == "utf-8" else f"decoded as {found.encoding}, since it is not UTF-8",
        "begins with a byte order mark" if found.has_mark else "",
        _line_endings(found),
        "" if found.ends_in_newline else "no newline at the end",
    ]
    said = "; ".join(note for note in notes if note)
    return [f"[{said}]"] if said else []


def _line_endings(found: Survey) -> str:
    if not found.crlf:
        return ""
    others = found.lines - (not found.ends_in_newline) - found.crlf
    return f"line endings: {found.crlf} CRLF, {others} LF" if others else "line endings are CRLF"
