"""What a runner would do on reading a step's log and its files: the judge of what we write.

Modelled after its behaviour: a command is `::name props::data` after white space, or `##[name props]data`
anywhere in a line; while commands are stopped, only the word that stopped them is one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

KNOWN = {
    "add-mask", "add-matcher", "add-path", "debug", "echo", "endgroup", "error", "group", "notice", "remove-matcher",
    "save-state", "set-env", "set-output", "stop-commands", "warning",
}  # fmt: skip


@dataclass(frozen=True)
class Obeyed:
    name: str
    data: str
    properties: dict[str, str] = field(default_factory=dict)


def lines_of(log: str) -> list[str]:
    return re.split("\r\n|\r|\n", log)


def obeyed(log: str | Iterable[str]) -> list[Obeyed]:
    """The commands that the runner takes from a log, in order."""
    found: list[Obeyed] = []
    stopped = ""
    for line in lines_of(log if isinstance(log, str) else "\n".join(log)):
        command = _parse(line, KNOWN | {stopped})
        if command is None or (stopped and command.name != stopped):
            continue
        if stopped:
            stopped = ""
        elif command.name == "stop-commands":
            stopped = command.data
        else:
            found.append(command)
    return found


def _parse(line: str, known: set[str]) -> Obeyed | None:
    new = re.match(r"\s*::(?P<name>[^ :]*(?::[^ :]+)*)(?: (?P<given>.*?))?::(?P<data>.*)", line, re.DOTALL)
    if new and new["name"] in known:
        pairs = (pair.partition("=") for pair in (new["given"] or "").split(",") if "=" in pair)
        return Obeyed(new["name"], _plain(new["data"]), {key.strip(): _plain(value) for key, _, value in pairs})
    old = re.search(r"##\[(?P<name>[^\] ]*)[^\]]*\](?P<data>.*)", line, re.DOTALL)
    return Obeyed(old["name"], old["data"]) if old and old["name"] in known else None


def _plain(text: str) -> str:
    for shown, meant in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        text = text.replace(shown, meant)
    return text


def outputs(file: str) -> dict[str, str]:
    """The values that a file of outputs states; raises where the runner would."""
    found: dict[str, str] = {}
    lines = file.split("\n")
    while lines:
        line = lines.pop(0)
        if not line:
            continue
        name, _, end = line.partition("<<")
        assert name, line
        assert end, line
        assert "=" not in name, line
        value = []
        while (line := lines.pop(0)) != end:
            value.append(line)
        found[name] = "\n".join(value)
    return found
