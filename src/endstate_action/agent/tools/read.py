"""Looking at the workspace: read, glob, grep. They change nothing, and every answer is bounded."""

from __future__ import annotations

import io
import os
import re
import signal
import stat
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, ClassVar

from endstate_action.agent.tools.base import CallContext, FileChange, Tool, ToolError
from endstate_action.agent.tools.globs import PathPattern
from endstate_action.agent.tools.text import lines, told
from endstate_action.agent.tools.window import LINE_CHARACTERS, OUTPUT_BYTES, show
from endstate_action.effects import EffectClass
from endstate_action.messages import scrub
from endstate_action.system.files import Entry, PathRefused, Workspace
from endstate_action.system.redaction import Secrets

MAX_PATHS = 1000
SEARCHED_LINE_BYTES = 64 * 1024
SHOWN_LINE_CHARACTERS = 400
SEARCH_S = 30.0
PATTERN_CHARACTERS = 1000


class Read(Tool):
    """A window of a text file; other files in words."""

    name = "read"
    description = (
        "Show a text file with line numbers: each line is its number, a tab, and the line as it is in the file. "
        f"At most 64 KiB are shown: of a longer file the beginning and the end, or the window that `offset` "
        f"(first line, from 1) and `limit` (number of lines) ask for; what is left out is said. Lines are cut at "
        f"{LINE_CHARACTERS} characters. Line endings other than \\n, a missing last newline and an encoding other "
        "than UTF-8 are noted below the text. Images and other binary files are described, not shown."
    )
    parameters: ClassVar[Mapping[str, Any]] = {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "Path of the file, from the workspace's root."},
            "offset": {"type": "integer", "minimum": 1, "description": "First line to show, counted from 1."},
            "limit": {"type": "integer", "minimum": 1, "description": "Number of lines to show."},
        },
        "required": ["path"],
    }
    effect = EffectClass.READS

    def run(self, arguments: Mapping[str, Any], context: CallContext, plan: FileChange | None) -> str:
        path, workspace = str(arguments["path"]), context.workspace
        with told():
            found = workspace.stat(path)
            if found is not None and stat.S_ISDIR(found.st_mode):
                inside = os.path.normpath(f"{workspace.relative(path)}/*")
                raise ToolError(f"{workspace.relative(path)} is a directory. List it with glob {inside}")
            with workspace.open(path) as file:
                name, offset, limit = workspace.relative(path), arguments.get("offset"), arguments.get("limit")
                return scrub(show(name, file, offset, limit, context.secrets))


class Glob(Tool):
    """Names in the workspace."""

    name = "glob"
    description = (
        "List the paths that match a pattern, sorted: `*`, `?` and `[...]` match inside one component, `**` any "
        "number of directories, `{a,b}` either. `src/*` lists a directory, `**/*.py` finds at any depth, `*.py` "
        f"only at the root. `*` also matches names that begin with a dot. Directories end in a slash. At most "
        f"{MAX_PATHS} paths are listed. Links are listed and never followed."
    )
    parameters: ClassVar[Mapping[str, Any]] = {
        "type": "object",
        "properties": {"pattern": {"type": "string", "description": "Pattern from the workspace's root."}},
        "required": ["pattern"],
    }
    effect = EffectClass.READS

    def run(self, arguments: Mapping[str, Any], context: CallContext, plan: FileChange | None) -> str:
        pattern = str(arguments["pattern"])
        rows: list[str] = []
        with told():
            wanted = PathPattern.parse(pattern, context.workspace)
            for entry in context.workspace.walk(wanted.may_match_below):
                if not wanted.matches(entry.path):
                    continue
                if len(rows) == MAX_PATHS:
                    rows.append(f"[more than {MAX_PATHS} paths match; narrow the pattern]")
                    break
                rows.append(_listed(entry))
        return scrub("\n".join(rows) or f"No path matches {pattern}")


_MARKS = {"file": "", "directory": "/", "link": " [link]", "other": " [no file]", "unreadable": "/ [cannot be listed]"}


def _listed(entry: Entry) -> str:
    return entry.path + _MARKS[entry.kind]


class Grep(Tool):
    """Lines in the workspace."""

    name = "grep"
    description = (
        "Search the lines of text files with a Python regular expression; answers `path:line:text`. `glob` chooses "
        "the files: `src/**/*.py`, or without a slash a name at any depth, such as `*.py`. Binary files and links "
        f"are skipped; of a longer line {SHOWN_LINE_CHARACTERS} characters around the match are shown. The answer "
        f"ends at 64 KiB, the search after {SEARCH_S:.0f} seconds, and either is said."
    )
    parameters: ClassVar[Mapping[str, Any]] = {
        "type": "object",
        "properties": {
            "pattern": {"type": "string", "description": "Regular expression, searched in each line."},
            "glob": {"type": "string", "description": "Only files whose path matches this pattern."},
            "ignore_case": {"type": "boolean", "description": "Whether upper and lower case are the same."},
        },
        "required": ["pattern"],
    }
    effect = EffectClass.READS

    def run(self, arguments: Mapping[str, Any], context: CallContext, plan: FileChange | None) -> str:
        wanted = str(arguments.get("glob", "**"))
        expression = _compiled(str(arguments["pattern"]), ignore_case=bool(arguments.get("ignore_case")))
        budget = max(0.05, min(SEARCH_S, context.time_left_s))
        search = _Search(context.workspace, expression, time.monotonic() + budget, context.secrets)
        with told():
            chosen = PathPattern.parse(wanted if "/" in wanted else f"**/{wanted}", context.workspace)
            try:
                with _stopped_after(budget, context.interruptible):
                    search.run(chosen)
            except _TooLong:
                search.stopped = f"the search was stopped after {budget:.3g} s; use a simpler pattern or fewer files"
        return scrub(search.report())


def _compiled(pattern: str, *, ignore_case: bool) -> re.Pattern[str]:
    if len(pattern) > PATTERN_CHARACTERS:
        raise ToolError(f"Nothing was searched: the pattern is longer than {PATTERN_CHARACTERS} characters.")
    try:
        with warnings.catch_warnings(action="ignore"):
            return re.compile(pattern, re.IGNORECASE if ignore_case else 0)
    except (re.error, OverflowError, RecursionError) as error:
        raise ToolError(f"Nothing was searched: the pattern is no regular expression ({error}).") from None


class _TooLong(Exception):
    """The search has used up its time."""


@contextmanager
def _stopped_after(seconds: float, interruptible: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Raise `_TooLong` once this process has computed for so long, even inside one regular expression.

    The engine looks for signals while it backtracks, which nothing else can stop it from doing for
    ever. Only the main thread gets signals; elsewhere only the check between lines ends a search.
    """
    if threading.current_thread() is not threading.main_thread():
        with interruptible():
            yield
        return
    searching = False

    def too_long(_number: int, _frame: FrameType | None) -> None:
        # Raised in the leaving of a block, it would leave that half done.
        if searching:
            raise _TooLong

    before = signal.signal(signal.SIGVTALRM, too_long)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        with interruptible():
            searching = True
            try:
                yield
            finally:
                searching = False
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@dataclass(slots=True)
class _Search:
    workspace: Workspace
    expression: re.Pattern[str]
    deadline: float
    secrets: Secrets
    rows: list[str] = field(default_factory=list)
    room: int = OUTPUT_BYTES
    binary: int = 0
    unreadable: int = 0
    stopped: str = ""

    def run(self, chosen: PathPattern) -> None:
        for entry in self.workspace.walk(chosen.may_match_below):
            if entry.kind == "unreadable":
                self.unreadable += 1
            elif entry.kind == "file" and chosen.matches(entry.path):
                self._file(entry.path)
            if self.stopped:
                return

    def _file(self, path: str) -> None:
        try:
            with self.workspace.open(path) as file:
                if b"\0" in file.peek(8192)[:8192]:
                    self.binary += 1
                else:
                    self._lines(path, file)
        except (PathRefused, OSError):
            self.unreadable += 1

    def _lines(self, path: str, file: io.BufferedReader) -> None:
        for number, (line, cut) in enumerate(lines(file, SEARCHED_LINE_BYTES), 1):
            if time.monotonic() > self.deadline:
                raise _TooLong
            text = _text(line)
            found = self.expression.search(text)
            if found:
                row = f"{path}:{number}:{_around(text, found.start(), cut, self.secrets)}"
                self.room -= len(row.encode("utf-8", "replace")) + 1
                if self.room < 0:
                    self.stopped = "more lines match; narrow the pattern or the glob"
                    return
                self.rows.append(row)

    def report(self) -> str:
        notes = [
            self.stopped,
            f"{self.binary} binary files were skipped" if self.binary else "",
            f"{self.unreadable} files or directories could not be read" if self.unreadable else "",
        ]
        said = "; ".join(note for note in notes if note)
        return "\n".join([*(self.rows or ["No line matches."]), *([f"[{said}]"] if said else [])])


def _text(line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        return line.decode("latin-1")


def _around(text: str, at: int, cut: bool, secrets: Secrets) -> str:
    """The line, or as much of it as is shown, with the match in sight; `cut` says that there is more of it."""
    if len(text) > SHOWN_LINE_CHARACTERS:
        # Redacted before it is cut, which moves the match.
        text, at = secrets.redact(text, ends_torn=cut), len(secrets.redact(text[:at], ends_torn=True))
    start = max(0, min(at - SHOWN_LINE_CHARACTERS // 4, len(text) - SHOWN_LINE_CHARACTERS))
    end = start + SHOWN_LINE_CHARACTERS
    return ("…" if start else "") + text[start:end] + ("…" if end < len(text) else "")
