"""The process that checks: it imports the module of a user, which may do anything, so nobody else does.

`python -m endstate_action.tools_check.worker SCRATCH WHERE TARGET` finds its environment as
`environ.json` in SCRATCH, and leaves `said.json` there: a list of verdicts, or an object with `error` and `hint`.
"""

from __future__ import annotations

import inspect
import json
import pkgutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from endstate_action.agent.tools.base import Tool
from endstate_action.config import find_config
from endstate_action.effects import EffectClass
from endstate_action.errors import InputError
from endstate_action.system.linux import adopt_orphans
from endstate_action.tools_check import FALSE, NOT_CHECKED, NOTHING_TO_CHECK, TRUE, Verdict
from endstate_action.tools_check.claims import judge
from endstate_action.tools_check.place import FILES, Place
from endstate_action.tools_check.trial import NotChecked, Pick, try_out

_HINT = "Name a tool, a list of tools, or a function that returns one or the other: MODULE:ATTRIBUTE."

# They work in the workspace of `place.FILES`.
_EXAMPLES: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "read": [{"path": "README.md"}],
    "glob": [{"pattern": "**/*.md"}],
    "grep": [{"pattern": "VERSION"}],
    "write": [{"path": "app.py", "content": "VERSION = 2\n"}, {"path": "docs/new/more.md", "content": "# More\n"}],
    "edit": [{"path": "app.py", "old": "1", "new": "11"}],
    "git_commit": [{"message": "Add a note", "paths": ["docs/notes.md"]}],
    "bash": [{"command": "for i in 1 2 3; do echo $i >> app.py; sleep 0.05; done; mkdir -p new; git add app.py"}],
}


def main(scratch: Path, where: str, target: str) -> None:
    adopt_orphans()
    place = Place(scratch, json.loads((scratch / "environ.json").read_bytes()))
    place.make()
    # Takes longer than all else in a trial, the first time.
    find_config(None, lambda name: FILES[name].encode())
    try:
        said: Any = list(_verdicts(place, _loaded(target, where) if target else None))
    except InputError as error:
        said = {"error": str(error), "hint": error.hint}
    (scratch / "said.json").write_text(json.dumps(said))


def _verdicts(place: Place, tools: Sequence[Tool] | None) -> Iterator[Verdict]:
    if tools is None:
        for name, examples in _EXAMPLES.items():
            yield _judged(place, name, "", _built_in(name), examples)
        return
    for tool in tools:
        yield _judged(place, tool.name, str(tool.effect), _given(tool), tool.examples)


def _built_in(name: str) -> Pick:
    return lambda tools: [t for t in tools if t.name == name]


def _given(tool: Tool) -> Pick:
    return lambda tools: [tool]


def _judged(place: Place, name: str, effect: str, pick: Pick, examples: Sequence[Mapping[str, Any]]) -> Verdict:
    """`effect` is the one claimed; empty where that depends on the machine."""
    place.reset()
    before = place.picture()
    if effect == EffectClass.OPAQUE:
        # Not even tried: what claims nothing may do things that cannot be undone.
        return _verdict(name, effect, NOTHING_TO_CHECK, "it claims nothing")
    if not examples:
        return _verdict(name, effect, NOT_CHECKED, "it has no examples")
    try:
        for arguments in examples:
            effect, evidence = judge(partial(try_out, place, name, pick, arguments), before)
            if evidence:
                return _verdict(name, effect, FALSE, f"{evidence} (called with {json.dumps(dict(arguments))})")
    except NotChecked as reason:
        return _verdict(name, effect, NOT_CHECKED, str(reason))
    if effect == EffectClass.OPAQUE:
        return _verdict(name, effect, NOTHING_TO_CHECK, "it claims nothing")
    return _verdict(name, effect, TRUE, "")


def _verdict(name: str, effect: str, verdict: str, evidence: str) -> Verdict:
    return {"tool": name, "effect": effect, "verdict": verdict, "evidence": evidence}


def _loaded(target: str, where: str) -> list[Tool]:
    """The tools that a module holds, or that its attribute is or makes.

    Raises:
        InputError: there is no such thing, it does not load, or it is no tool.
    """
    sys.path.insert(0, where)
    try:
        found = pkgutil.resolve_name(target if ":" in target else f"{target}:")
        tools = [_complete(t) for t in (_of_module(found) if isinstance(found, ModuleType) else _made(found))]
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(
            f"{target} cannot be loaded: {type(error).__name__}: {error}. Nothing was checked.", hint=_HINT
        ) from error
    if not tools:
        raise InputError(f"There is no tool in {target}. Nothing was checked.", hint=_HINT)
    return tools


def _of_module(module: ModuleType) -> list[Tool]:
    """Its tools, and one of each of its own classes that has none among them."""
    values = list(vars(module).values())
    tools = [v for v in values if isinstance(v, Tool)]
    classes = [v for v in values if isinstance(v, type) and issubclass(v, Tool) and v.__module__ == module.__name__]
    return tools + [c() for c in classes if not inspect.isabstract(c) and c not in set(map(type, tools))]


def _made(found: object) -> list[Tool]:
    match found:
        case Tool():
            return [found]
        case list() | tuple():
            return [tool for each in found for tool in _made(each)]
        case _ if callable(found):
            return _made(found())
        case _:
            raise InputError(f"A {type(found).__name__} is no tool. Nothing was checked.", hint=_HINT)


def _complete(tool: Tool) -> Tool:
    missing = [name for name in ("name", "description", "parameters", "effect") if not hasattr(tool, name)]
    if missing:
        raise InputError(
            f"The tool {type(tool).__name__} has no {', '.join(missing)}. Nothing was checked.",
            hint="Every tool has name, description, parameters and effect.",
        )
    return tool


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
