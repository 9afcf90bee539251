"""What a snapshot holds besides the git tree: all that git would drop, and all that was left out, each by its path.

Equal workspaces have equal bytes here, so that equal root ids mean equal workspaces. What comes back from a
checkpoint is checked: a path that leads out of the workspace is damage.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from endstate_action.effects import canonical
from endstate_action.state.snapshot.listing import (
    DIRECTORIES,
    EXECUTABLES,
    FILES,
    OPAQUE,
    SKIPPED,
    Counted,
    Item,
    Kind,
    counts_of,
    items_of,
    mode_of,
)
from endstate_action.system.names import display, parse
from endstate_action.system.tree_format import Directory

VERSION = 1
USUAL = (0o644, 0o755, 0o755)
"""Permission bits of files, executables and directories where there are none to go by."""

_KEYS = {"version", "usual", "modes", "empty", "fifos", "opaque", "skipped", "uncaptured"}


@dataclass(frozen=True, slots=True)
class Meta:
    """Paths are from the root, modes are permission bits."""

    usual: tuple[int, int, int] = USUAL
    """What most files, executables and directories have; so `modes` is short under any umask."""
    modes: Mapping[bytes, int] = field(default_factory=dict)
    """Those that have other ones."""
    empty: frozenset[bytes] = frozenset()
    """Directories in which git would see nothing, so that the tree lacks them."""
    fifos: Mapping[bytes, int] = field(default_factory=dict)
    opaque: Mapping[bytes, str] = field(default_factory=dict)
    """What is there but was not read, and why."""
    skipped: Mapping[bytes, str] = field(default_factory=dict)
    """Sockets and devices."""
    uncaptured: frozenset[bytes] = frozenset()
    """Ignored files and directories for which there was no room."""

    @property
    def left_alone(self) -> frozenset[bytes]:
        """What a restore must not touch, since it could not bring it back."""
        return self.uncaptured | self.opaque.keys() | self.skipped.keys()

    def encode(self) -> bytes:
        return canonical(
            {
                "version": VERSION,
                "usual": list(self.usual),
                "modes": _named(self.modes),
                "empty": sorted(map(display, self.empty)),
                "fifos": _named(self.fifos),
                "opaque": _named(self.opaque),
                "skipped": _named(self.skipped),
                "uncaptured": sorted(map(display, self.uncaptured)),
            }
        )


def decode(data: bytes) -> Meta:
    """What `encode` made.

    Raises:
        ValueError: it is not of that form, or of a later version; the text says how.
    """
    value = json.loads(data)
    if not isinstance(value, dict) or value.get("version") != VERSION or value.keys() != _KEYS:
        raise ValueError("its description is not of version 1")
    usual = tuple(map(_mode, _list(value["usual"])))
    if len(usual) != len(USUAL):
        raise ValueError("its description lacks the usual modes")
    return Meta(
        usual=(usual[0], usual[1], usual[2]),
        modes={path: _mode(mode) for path, mode in _pairs(value["modes"])},
        empty=frozenset(map(_path, _list(value["empty"]))),
        fifos={path: _mode(mode) for path, mode in _pairs(value["fifos"])},
        opaque={path: _word(reason) for path, reason in _pairs(value["opaque"])},
        skipped={path: _word(kind) for path, kind in _pairs(value["skipped"])},
        uncaptured=frozenset(map(_path, _list(value["uncaptured"]))),
    )


def describe(root: Directory, known: Meta) -> Meta:
    """Of a scan; what `known` says was left alone, and so was hidden from the scan, is kept as it is there."""
    usual = _usual(counts_of(root))
    modes: dict[bytes, int] = {}
    special: dict[Kind | None, dict[bytes, int]] = {}
    for path, kind, mode in _unusual(root, usual):
        if kind is Kind.FILE:
            modes[path] = mode
        else:
            special.setdefault(kind, {})[path] = mode
    return Meta(
        usual=usual,
        modes=modes,
        empty=frozenset(special.get(None, {})),
        fifos=special.get(Kind.FIFO, {}),
        opaque={**known.opaque, **_reasons(special, OPAQUE)},
        skipped={**known.skipped, **_reasons(special, SKIPPED)},
        uncaptured=known.uncaptured,
    )


def _usual(counts: Mapping[Counted, int]) -> tuple[int, int, int]:
    def most(kind: int) -> int:
        found = [(count, -mode) for (of, mode), count in counts.items() if of == kind]
        return -max(found)[1] if found else USUAL[kind]

    return most(FILES), most(EXECUTABLES), most(DIRECTORIES)


def _unusual(root: Directory, usual: tuple[int, int, int]) -> Iterator[tuple[bytes, Kind | None, int]]:
    """Path, what it is (FILE: it has another mode; None: an empty directory) and its mode."""
    expected = {(kind, usual[kind]) for kind in (FILES, EXECUTABLES, DIRECTORIES)}
    pending = [(b"", root)]
    while pending:
        prefix, directory = pending.pop()
        for name, item in items_of(directory):
            if item.kind is not Kind.LINK and not (item.kind is Kind.FILE and _class(item) in expected):
                yield prefix + name, item.kind, item.mode
        for name, child in directory.children.items():
            mode = mode_of(child)
            if (DIRECTORIES, mode) not in expected:
                yield prefix + name, Kind.FILE, mode
            if not any(child.digest):
                yield prefix + name, None, mode
            if not counts_of(child).keys() <= expected:
                pending.append((prefix + name + b"/", child))


def _class(item: Item) -> Counted:
    return (EXECUTABLES if item.mode & 0o100 else FILES, item.mode)


def _reasons(special: Mapping[Kind | None, Mapping[bytes, int]], words: Mapping[Kind, str]) -> dict[bytes, str]:
    return {path: word for kind, word in words.items() for path in special.get(kind, {})}


def _named(values: Mapping[bytes, Any]) -> dict[str, Any]:
    return {display(path): value for path, value in values.items()}


def _pairs(value: Any) -> Iterator[tuple[bytes, Any]]:
    if not isinstance(value, dict):
        raise ValueError("its description has a list in place of a table")
    return ((_path(name), found) for name, found in value.items())


def _list(value: Any) -> Iterable[Any]:
    if not isinstance(value, list):
        raise ValueError("its description has no list where one belongs")
    return value


def _path(shown: Any) -> bytes:
    if not isinstance(shown, str):
        raise ValueError("its description has a path that is no text")
    path = parse(shown)
    if not is_plain(path):
        raise ValueError(f"its description holds the path {shown[:200]!r}")
    return path


def is_plain(path: bytes) -> bool:
    """Whether it names something below the root, in the one way there is."""
    return b"\0" not in path and all(part not in (b"", b".", b"..") for part in path.split(b"/"))


def _word(value: Any) -> str:
    if value not in (*OPAQUE.values(), *SKIPPED.values()):
        raise ValueError("its description gives a reason that is none")
    return str(value)


def _mode(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 0o7777:
        raise ValueError("its description has a mode that is none")
    return value
