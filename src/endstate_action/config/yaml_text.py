"""YAML as plain values with their line numbers: only what JSON can say, and nothing twice.

No aliases, no tags, no second document, no include: a configuration file can neither grow in
memory nor reach outside itself. `yes`, `on`, `1:30` and dates are text, not booleans and numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from endstate_action.config.text import quoted

_MAX_DEPTH = 20
_WORD = re.compile(r"[A-Za-z0-9_-]+")
_INT = re.compile(r"-?(0|[1-9][0-9]{0,15})")
# 15 digits at most: such a number survives the way through a binary float unchanged.
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]{0,8})\.[0-9]{1,6}")

_QUOTE_IT = "text that begins with & or * must be in quotes"

Path = tuple[str | int, ...]
Lines = dict[Path, int]


class YamlRefused(Exception):
    """The text cannot be used; `line` counts from 1, or is 0 where there is none to name."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(problem)
        self.line = line


def shown(path: Path) -> str:
    """`policy.rules[0].match`, with quotes around a key that is more than a plain word."""
    parts = (f"[{p}]" if isinstance(p, int) else "." + (p if _WORD.fullmatch(p) else quoted(p)) for p in path)
    return "".join(parts).removeprefix(".")


def read_yaml(text: str) -> tuple[Any, Lines]:
    """The document's value, and the line of each key and list item. An empty document is `{}`.

    Raises:
        YamlRefused: at the first thing that is not allowed.
    """
    try:
        return _Reader(text).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise YamlRefused(mark.line + 1 if mark else 0, f"not YAML: {error.problem or error.context}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise YamlRefused(line, f"the character U+{ord(text[error.position]):04X} is not allowed") from None


class _Reader:
    """Builds the value straight from parser events: PyYAML's own composer follows aliases."""

    def __init__(self, text: str) -> None:
        self._events: Iterator[yaml.Event] = iter(yaml.parse(text, Loader=yaml.SafeLoader))
        self.lines: Lines = {}

    def document(self) -> tuple[Any, Lines]:
        next(self._events)
        if isinstance(next(self._events), yaml.StreamEndEvent):
            return {}, self.lines
        first = next(self._events)
        value = {} if _is_nothing(first) else self._value(first, ())
        next(self._events)
        after = next(self._events)
        if not isinstance(after, yaml.StreamEndEvent):
            raise YamlRefused(_line(after), "a second document is not allowed")
        return value, self.lines

    def _value(self, event: yaml.Event, path: Path) -> Any:
        self.lines.setdefault(path, _line(event))
        _refuse_anchor_or_tag(event)
        if len(path) > _MAX_DEPTH:
            raise YamlRefused(_line(event), f"more than {_MAX_DEPTH} levels deep")
        match event:
            case yaml.MappingStartEvent():
                return self._mapping(path)
            case yaml.SequenceStartEvent():
                return self._list(path)
            case yaml.ScalarEvent():
                return _scalar(event, path)
            case _:
                raise YamlRefused(_line(event), f"aliases are not allowed; {_QUOTE_IT}")

    def _mapping(self, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = _key(event)
            if key in found:
                first = self.lines[(*path, key)]
                raise YamlRefused(_line(event), f"the key {quoted(key)} is there twice (first in line {first})")
            self.lines[(*path, key)] = _line(event)
            found[key] = self._value(next(self._events), (*path, key))
        return found

    def _list(self, path: Path) -> list[Any]:
        found: list[Any] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            found.append(self._value(event, (*path, len(found))))
        return found


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 0


def _is_nothing(event: yaml.Event) -> bool:
    return isinstance(event, yaml.ScalarEvent) and event.implicit[0] and event.value == ""


def _refuse_anchor_or_tag(event: yaml.Event) -> None:
    if not isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent):
        return
    if event.anchor is not None:
        raise YamlRefused(_line(event), f"anchors are not allowed; {_QUOTE_IT}")
    if event.tag is not None:
        raise YamlRefused(_line(event), f"the tag {quoted(event.tag)} is not allowed; no tag is, and nothing includes")


def _key(event: yaml.Event) -> str:
    _refuse_anchor_or_tag(event)
    if not isinstance(event, yaml.ScalarEvent):
        raise YamlRefused(_line(event), "a key must be plain text")
    return str(event.value)


def _scalar(event: yaml.ScalarEvent, path: Path) -> Any:
    text = str(event.value)
    if not event.implicit[0]:
        return text
    if text in ("", "~", "null"):
        raise YamlRefused(_line(event), f"{shown(path)} has no value; give one, or leave the key out for its default")
    if text in ("true", "false"):
        return text == "true"
    if _INT.fullmatch(text):
        return int(text)
    return float(text) if _DECIMAL.fullmatch(text) else text
