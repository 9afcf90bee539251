"""What the runner is told: commands in the log, outputs and the job summary in its files.

Text that is not ours is shown so that no line of it is a command. The runner reads `::name::` at the
beginning of a line, after any white space, and `##[name]` anywhere in it.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from decimal import Decimal
from secrets import token_hex
from typing import Literal

from endstate_action.ci.cut import clip, shorten, shorten_markdown
from endstate_action.errors import StateError

Level = Literal["error", "warning", "notice"]
Value = str | int | float | Decimal | None

MAX_ANNOTATIONS = 3
MAX_ANNOTATION_BYTES = 4096
MAX_OUTPUT_BYTES = 64 * 1024
MAX_SUMMARY_BYTES = 1024 * 1024 - 1024
"""The runner drops a summary above 1 MiB whole."""

_NAME = re.compile(r"[a-z][a-z0-9-]*")
_OPTION = re.compile(r"--([a-z-]+) ([^`\s]+)")
# Options in backquotes, with or without a command that is a mere retry here; anything else in them; an option alone.
_OPTIONS = re.compile(r"`(?:endstate run --resume )?((?:--[a-z-]+ [^`\s]+ ?)+)`|`[^`]*`|--([a-z-]+)")
# A mere retry, as a command and in words, at the beginning of a sentence or within one.
_RETRIES = (
    (re.compile(r"(?:^|(?<=[.:] ))`endstate run --resume`"), "A re-run of this job"),
    (re.compile(r"`endstate run --resume`"), "a re-run of this job"),
    (re.compile(r"\brun again with --resume\b"), "re-run this job"),
)
_FILES = ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY", "GITHUB_ENV", "GITHUB_PATH", "GITHUB_STATE")
_READ_BYTES = 8 * 1024 * 1024
_RANDOM_BYTES = 16


def _random() -> str:
    return token_hex(_RANDOM_BYTES)


# The log


def command(name: str, message: str = "", **properties: str) -> str:
    """One line that the runner obeys. Whatever message and properties hold, it stays one command."""
    given = ",".join(f"{key}={_escaped(value, _PROPERTY)}" for key, value in properties.items() if value)
    return f"::{name}{f' {given}' if given else ''}::{_escaped(message, _DATA)}"


_DATA = {ord("%"): "%25", ord("\r"): "%0D", ord("\n"): "%0A"}
_PROPERTY = _DATA | {ord(":"): "%3A", ord(","): "%2C"}


def _escaped(text: str, table: Mapping[int, str]) -> str:
    return text.translate(table)


def harmless(text: str) -> str:
    """Text that can be read in a log and does nothing there; lines stay lines.

    Control and format characters are escaped, so that nothing but `\\n` ends a line.
    """
    return "\n".join(_harmless_line(line) for line in text.split("\n"))


def _harmless_line(line: str) -> str:
    shown = _visible(line).replace("##[", "##\\[")
    return f"> {shown}" if shown.lstrip().startswith("::") else shown


def _visible(line: str) -> str:
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() or c == "\t" else _code(c) for c in line)


def _code(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode()


class Log:
    """The log of one step. `write` gets one line at a time, without its end."""

    def __init__(self, write: Callable[[str], None], random: Callable[[], str] = _random) -> None:
        self._write = write
        self._random = random
        self._annotations = 0

    def say(self, text: str) -> None:
        """Words of ours, with whatever they quote."""
        for line in harmless(text).split("\n"):
            self._write(line)

    def annotate(self, level: Level, message: str, title: str = "") -> None:
        """An annotation on the run's page, or plain lines once there are enough.

        There are at most three, and the last is kept for an error: it is why the step ends.
        """
        room = MAX_ANNOTATIONS if level == "error" else MAX_ANNOTATIONS - 1
        if self._annotations >= room:
            self.say(f"{level}: {title}{': ' if title else ''}{message}")
            return
        self._annotations += 1
        shown = shorten("\n".join(map(_visible, message.split("\n"))), MAX_ANNOTATION_BYTES)
        self._write(command(level, shown, title=clip(_visible(title), 200)))

    @contextmanager
    def group(self, title: str) -> Iterator[None]:
        """Fold what is said meanwhile. The runner knows no group within a group."""
        self._write(command("group", _visible(title)))
        try:
            yield
        finally:
            self._write(command("endgroup"))

    def mask(self, value: str) -> None:
        """Have the runner hide a secret, and each of its lines, from here on. A blank one would hide everything."""
        if value.strip():
            self._write(command("add-mask", value))

    def untrusted(self, text: str) -> None:
        """Text of others: harmless by itself, and with the runner told to obey nothing meanwhile.

        Two guards, since what the runner takes for a command has changed before.
        """
        token = _absent(text, self._random)
        self._write(command("stop-commands", token))
        try:
            self.say(text)
        finally:
            self._write(command(token))


def _absent(text: str, random: Callable[[], str]) -> str:
    """A random word that does not occur in the text."""
    word = random()
    while word in text:
        word = random()
    return word


# The files


def output_entry(name: str, value: Value, random: Callable[[], str] = _random) -> str:
    """What states one output in the file. The delimiter does not occur in the value, so no value ends itself."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of an output")
    text = as_output(value)
    delimiter = f"end-{_absent(text, random)}"
    return f"{name}<<{delimiter}\n{text}\n{delimiter}\n"


def as_output(value: Value) -> str:
    """At most 64 KiB. GitHub hands outputs on as text, where NUL would end them."""
    if value is None:
        return ""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return shorten_markdown(text.replace("\0", "\N{REPLACEMENT CHARACTER}"), MAX_OUTPUT_BYTES)


class RunnerFiles:
    """The files through which a step tells the runner something; made from the step's environment.

    Made before any tool runs, and once: what is in the files by then counts as ours. A file that the
    environment does not name is not written: the step then runs outside a runner.
    """

    def __init__(self, environ: Mapping[str, str], random: Callable[[], str] = _random) -> None:
        self._random = random
        self._paths = {name: environ[name] for name in _FILES if environ.get(name)}
        found = {name: _read(path) for name, path in self._paths.items()}
        self._ours = {name: data or b"" for name, data in found.items()}
        # What was no plain file before any tool ran is no tool's doing.
        self._watched = [n for n, path in self._paths.items() if found[n] is not None or not os.path.lexists(path)]

    def outputs(self, values: Mapping[str, Value]) -> None:
        """State outputs of the step; a name stated again takes its new value.

        Raises:
            StateError: the file cannot be written.
        """
        self._append("GITHUB_OUTPUT", "".join(output_entry(n, v, self._random) for n, v in values.items()))

    def summary(self, markdown: str) -> None:
        """Add to the job summary, as much as it still holds.

        Raises:
            StateError: the file cannot be written.
        """
        room = MAX_SUMMARY_BYTES - len(self._ours.get("GITHUB_STEP_SUMMARY", b""))
        self._append("GITHUB_STEP_SUMMARY", shorten_markdown(markdown, room) if room > 0 else "")

    def undo_foreign(self) -> tuple[str, ...]:
        """Names of the files that somebody else wrote; each holds what we left in it again, if it can be written.

        They steer later steps of the job, its environment and programs included, so a tool must not reach them.
        """
        changed = tuple(name for name in self._watched if not self._is_ours(name, self._paths[name]))
        for name in changed:
            with suppress(OSError):
                _write(self._paths[name], self._ours[name], anew=True)
        return changed

    def _is_ours(self, name: str, path: str) -> bool:
        found = _read(path)
        return found == self._ours[name] or (found is None and not os.path.lexists(path) and not self._ours[name])

    def _append(self, name: str, text: str) -> None:
        path = self._paths.get(name)
        if path is None or not text:
            return
        data = text.encode("utf-8", "replace")
        try:
            _write(path, data, anew=False)
        except OSError as error:
            raise StateError(
                f"{name} cannot be written ({error.strerror}).",
                hint="See that the runner's temporary directory is writable and has space.",
            ) from error
        self._ours[name] += data


def as_inputs(text: str, names: Collection[str]) -> str:
    """A remedy of the command line in words of a workflow, where it has some.

    Options that are inputs are given as such (`--store none` is `store: none` there); a resume is a re-run.
    """

    def spelt(found: re.Match[str]) -> str:
        given, alone = _OPTION.findall(found[1] or ""), found[2]
        if alone in names:
            return alone
        if not given or not {name for name, _ in given} <= set(names):
            return found[0]
        return f"`{', '.join(f'{name}: {value}' for name, value in given)}`"

    for pattern, words in _RETRIES:
        text = pattern.sub(words, text)
    return _OPTIONS.sub(spelt, text)


def _read(path: str) -> bytes | None:
    """None where there is no plain file, or none of a sensible size."""
    try:
        with open(path, "rb", opener=lambda name, how: os.open(name, how | os.O_NOFOLLOW | os.O_NONBLOCK)) as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                return None
            data = stream.read(_READ_BYTES + 1)
    except OSError:
        return None
    return data if len(data) <= _READ_BYTES else None


def _write(path: str, data: bytes, *, anew: bool) -> None:
    """Through no link: what stands at the name now may have been put there by a tool."""
    if anew and os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):
        os.unlink(path)
    how = os.O_TRUNC if anew else os.O_APPEND
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | how, 0o644)
    with open(file, "wb", buffering=0) as stream:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(errno.EINVAL, "not a plain file")
        before, rest = os.fstat(file).st_size, memoryview(data)
        try:
            while rest:
                rest = rest[stream.write(rest) :]
        except OSError:
            # Half an entry would cost the runner all the others.
            os.ftruncate(file, before)
            raise
