"""What the body of a row must look like. One that looks otherwise is not read: it would be believed, or fail later.

Which types a field may have follows from the record's class. Combinations of types that were found right are
remembered, so that a row of a usual one costs a look into a set; what types do not tell has a reader of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, make_dataclass
from operator import itemgetter
from types import NoneType
from typing import Any, TypeAlias

from endstate_action.effects import EffectClass
from endstate_action.messages import Usage, is_blank

STATUSES = frozenset(("ok", "error", "denied", "refused", "not_run"))
CONCLUSIONS = frozenset(("success", "stopped", "interrupted", "mismatch", "failed", "superseded"))
ACTIONS = frozenset(("run", "roll_back_and_run", "roll_back", "adopt", "deny", "refuse", "give_up", "not_run"))

_EFFECTS = {effect.value: effect for effect in EffectClass}
_MOST_DOLLARS = 1e12
_MOST_TOKENS = 2**53
_COUNTS = (int,) * len(Usage._fields)
_CONTRACT = {"name", "effect", "schema"}

_Types: TypeAlias = tuple[type, ...]
_Reader: TypeAlias = Callable[[Any], Any]


def _blocks(blocks: Any) -> Any:
    for block in blocks:
        if type(block) is not dict or type(block.get("type")) is not str:
            raise ValueError("one of its blocks is none")
    return tuple(blocks)


def _usage(counts: Any) -> Any:
    if tuple(map(type, counts)) == _COUNTS:
        read, written, cached, stored = counts
        if 0 <= read <= _MOST_TOKENS >= written >= 0 <= cached <= _MOST_TOKENS >= stored >= 0:
            return Usage(read, written, cached, stored)
    raise ValueError("its usage is no count of tokens")


def _dollars(amount: Any) -> Any:
    try:
        # Not a number is in no range.
        if 0 <= float(amount) < _MOST_DOLLARS:
            return amount
    except ValueError:
        pass
    raise ValueError("its cost is no amount")


def _denied(reasons: Any) -> Any:
    if not all(index.isdecimal() and type(reason) is str for index, reason in reasons.items()):
        raise ValueError("what it denies is no call")
    return {int(index): reason for index, reason in reasons.items()}


def _effect(name: Any) -> Any:
    found = _EFFECTS.get(name)
    if found is None:
        raise ValueError("its effect is none that is known")
    return found


def _one_of(known: frozenset[str], what: str) -> _Reader:
    def read(word: Any) -> Any:
        if word not in known:
            raise ValueError(f"its {what} is none that is known")
        return word

    return read


def _texts(values: Any) -> Any:
    if not all(type(value) is str for value in values):
        raise ValueError("a text of it is none")
    return tuple(values)


def _objects(values: Any) -> Any:
    if not all(type(value) is dict for value in values):
        raise ValueError("one of its tools is none")
    return tuple(values)


def _contracts(values: Any) -> Any:
    for value in values:
        if type(value) is not dict or not value.keys() >= _CONTRACT or not _only(str, value.values()):
            raise ValueError("one of its contracts is none")
    return tuple(values)


def _asked(prompt: Any) -> Any:
    if len(prompt) != 2 or not _only(str, prompt) or is_blank(prompt[1]):
        raise ValueError("what it was asked is no prompt")
    return tuple(prompt)


def _words(text: Any) -> Any:
    if is_blank(text):
        raise ValueError("it says nothing")
    return text


def _bound(bound: Any) -> Any:
    names = [bound.get(name) for name in ("workspace", "base", "base-tree", "trust", "asked-in", "git-file")]
    trees = [bound.get(name, {}) for name in ("dirty", "nested")]
    apart = bound.get("apart", [])
    is_whole = _only(str, (name for name in names if name is not None)) and _only(dict, trees)
    is_whole = is_whole and type(apart) is list and _only(str, apart)
    if not is_whole or not all(_only(str, (found for found in tree.values() if found is not None)) for tree in trees):
        raise ValueError("what it is bound to is no workspace")
    return bound


def _refs(refs: Any) -> Any:
    if not _only(str, refs.values()):
        raise ValueError("what a ref of it names is no id")
    return refs


def _given(given: Any) -> Any:
    if not _only(str, given.values()):
        raise ValueError("what it was given is no text")
    return given


def _process(process: Any) -> Any:
    number, checkpoint = process.get("run_attempt"), process.get("restored_from")
    if type(checkpoint) not in (str, NoneType) or not (number is None or (type(number) is int and number > 0)):
        raise ValueError("its process is none")
    reasons = process.get("not_restored", [])
    if type(reasons) is not list or not _only(str, reasons):
        raise ValueError("what was not restored is no text")
    return process


def _commit(commit: Any) -> Any:
    """One that is planned, or, while nobody can read its tree, only wanted."""
    wanted: dict[str, _Types] = {"tree": (str, NoneType), "branch": (str,), "own": (bool,)}
    if commit.get("tree") is not None:
        wanted |= {"parent": (str, NoneType), "message": (str,), "author": (list,), "when": (int,)}
        wanted |= dict.fromkeys(("session", "key"), (str,))
    if any(name not in commit or type(commit[name]) not in types for name, types in wanted.items()):
        raise ValueError("its commit is none")
    return commit


def _changes(changes: Any) -> Any:
    if not all(change in ("added", "modified", "deleted") for change in changes.values()):
        raise ValueError("what changed of a file is nothing that can")
    return changes


def _only(kind: type, values: Any) -> bool:
    return all(type(value) is kind for value in values)


_TEXT, _OBJECT, _LIST = (str,), (dict,), (list,)
_FIELDS: Mapping[str, tuple[_Types, _Reader | None]] = {
    "int": ((int,), None),
    "float": ((float, int), None),
    "bool": ((bool,), None),
    "str": (_TEXT, None),
    "str | None": ((str, NoneType), None),
    "Words": (_TEXT, _words),
    "Dollars | None": ((str, NoneType), _dollars),
    "Status": (_TEXT, _one_of(STATUSES, "status")),
    "Conclusion": (_TEXT, _one_of(CONCLUSIONS, "conclusion")),
    "Action": (_TEXT, _one_of(ACTIONS, "action")),
    "EffectClass": (_TEXT, _effect),
    "EffectClass | None": ((str, NoneType), _effect),
    "Usage": (_LIST, _usage),
    "tuple[Block, ...]": (_LIST, _blocks),
    "tuple[str, ...]": (_LIST, _texts),
    "tuple[Mapping[str, Any], ...]": (_LIST, _objects),
    "tuple[Contract, ...]": (_LIST, _contracts),
    "Asked | None": ((list, NoneType), _asked),
    "Mapping[str, Any]": (_OBJECT, None),
    "Mapping[int, str] | None": ((dict, NoneType), _denied),
    "Bound": (_OBJECT, _bound),
    "Refs": (_OBJECT, _refs),
    "Given | None": ((dict, NoneType), _given),
    "Changes | None": ((dict, NoneType), _changes),
    "Process": (_OBJECT, _process),
    "PlannedCommit | None": ((dict, NoneType), _commit),
}
"""By the annotation of a field: the types that its JSON value may have, and what else is looked at."""

_NAMES = {
    NoneType: "null", str: "a string", int: "a whole number", float: "a number", bool: "true or false",
    list: "a list", dict: "an object",
}  # fmt: skip


class Form:
    """How the body of the rows of one kind looks.

    Args:
        cls: the record that is made of it; its fields are those of the body.
        is_frequent: whether a long session has thousands of them.
    """

    def __init__(self, cls: type[Any], *, is_frequent: bool) -> None:
        named = fields(cls)
        kinds = [_FIELDS[str(field.type)] for field in named]
        self._cls = cls
        self._size = len(named)
        self._values = itemgetter(*(field.name for field in named))
        self._types = {field.name: types for field, (types, _) in zip(named, kinds, strict=True)}
        # An earlier release may not have written it.
        self._defaults = {f.name: _as_json(f.default) for f in named if f.default is not MISSING}
        self._readers = [(at, read) for at, (_, read) in enumerate(kinds) if read]
        self._known: set[_Types] = set()
        self._is_frequent = is_frequent
        self._unfrozen: type[Any] | None = None

    def read(self, body: Any) -> Any:
        """The record. Raises: ValueError: it is none, with the reason."""
        try:
            values = self._values(body)
            if len(body) != self._size or tuple(map(type, values)) not in self._known:
                values = self._checked(body)
        except (KeyError, TypeError):
            values = self._checked(body)
        if self._readers:
            values = [*values]
            for at, read in self._readers:
                if values[at] is not None:
                    values[at] = read(values[at])
        if self._unfrozen is None:
            return self._cls(*values)
        record = self._unfrozen(*values)
        record.__class__ = self._cls
        return record

    def _checked(self, body: Any) -> tuple[Any, ...]:
        if type(body) is not dict:
            raise ValueError(f"it is {_NAMES[type(body)]}")
        foreign = next((name for name in body if name not in self._types), None)
        if foreign is not None:
            raise ValueError(f"it has a field {foreign[:40]!r}")
        whole = {**self._defaults, **body}
        for name, types in self._types.items():
            if name not in whole:
                raise ValueError(f"it has no {name}")
            if type(whole[name]) not in types:
                raise ValueError(f"its {name} is {_NAMES[type(whole[name])]}")
        values: tuple[Any, ...] = self._values(whole)
        self._known.add(tuple(map(type, values)))
        if self._is_frequent and self._unfrozen is None:
            self._unfrozen = _unfrozen(self._cls)
        return values


def _unfrozen(cls: type[Any]) -> type[Any]:
    """A class of the same layout. What it makes can be given to `cls`, which would set field by field, five times as
    slow: a sixth of the time that a long session takes to load.
    """
    names = [field.name for field in fields(cls)]
    return make_dataclass(cls.__name__, names, slots=True, eq=False, repr=False, match_args=False)


def _as_json(default: Any) -> Any:
    return [*default] if isinstance(default, tuple) else default
