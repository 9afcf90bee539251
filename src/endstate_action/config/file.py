"""The configuration file, checked twice: pydantic knows its shape, the rest of this module its meaning.

Every problem is reported at once, each with its line, its key and what is allowed there.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from endstate_action.config.text import decoded, listed, quoted, suggestion
from endstate_action.config.values import (
    ANSWER_TOKENS,
    LEAST_CONTEXT,
    TOOLS,
    Config,
    ContextLimits,
    ModelPrice,
    PolicyRules,
    Rule,
    SnapshotLimits,
    kebab,
)
from endstate_action.config.yaml_text import Lines, Path, YamlRefused, read_yaml, shown
from endstate_action.errors import InputError, SessionDamaged

Problem = tuple[Path, str]

MAX_BYTES = 256 * 1024
_MAX_PROBLEMS = 10
_MISSING = "is missing"
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CREDENTIALS = {
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "GITHUB_TOKEN",
    "GH_TOKEN",
    "ACTIONS_RUNTIME_TOKEN",
    "ACTIONS_ID_TOKEN_REQUEST_TOKEN",
    "ACTIONS_ID_TOKEN_REQUEST_URL",
}
# Whoever can write to these files decides what later workflow steps run.
_COMMAND_FILES = {"GITHUB_ENV", "GITHUB_PATH", "GITHUB_OUTPUT", "GITHUB_STATE", "GITHUB_STEP_SUMMARY"}
_OWN_PREFIXES = ("INPUT_", "ENDSTATE_")

_SECTIONS: dict[tuple[str, ...], type[Any]] = {
    (): Config,
    ("policy",): PolicyRules,
    ("policy", "rules", "*"): Rule,
    ("snapshot",): SnapshotLimits,
    ("context",): ContextLimits,
    ("prices", "*"): ModelPrice,
}
_EXPECTED = {
    "string_type": "must be text (in quotes)",
    "int_type": "must be a whole number",
    "decimal_type": "must be a number",
    "decimal_parsing": "must be a number",
    "finite_number": "must be a number",
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping of keys to values",
    "dataclass_type": "must be a mapping of keys to values",
}


def parse_file(text: str | bytes, origin: str) -> Config:
    """See `config.parse_config`."""
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    if len(data) > MAX_BYTES:
        raise _unusable(origin, [f"{origin}: the file is larger than {MAX_BYTES // 1024} KiB"])
    try:
        value, lines = read_yaml(decoded(data, origin))
    except YamlRefused as refused:
        raise _unusable(origin, [f"{_place(origin, refused.line)}: {refused}"]) from None
    checked = _checked(value)
    if isinstance(checked, Config):
        return checked
    raise _unusable(origin, _sentences(origin, lines, checked))


def restored(data: Mapping[str, Any]) -> Config:
    """See `Config.from_json`. Tools and variables that only today's release refuses are let through."""
    try:
        config = _adapter().validate_json(json.dumps(data), strict=True, extra="ignore")
    except (ValidationError, TypeError, ValueError):
        raise _damaged() from None
    if any(_bad_pattern(rule.match) for rule in config.policy.rules):
        raise _damaged()
    return config


def _damaged() -> SessionDamaged:
    return SessionDamaged(
        "The configuration recorded with the session cannot be read, so the session was not resumed.",
        hint="Start a new session; what the old one did is still recorded in its journal.",
    )


@cache
def _adapter() -> TypeAdapter[Config]:
    return TypeAdapter(Config)


def _checked(value: Any) -> Config | list[Problem]:
    # Strict JSON mode: a list becomes a tuple, but "5" never a number and true never 1.
    try:
        config = _adapter().validate_json(json.dumps(value), strict=True, extra="forbid")
        return list(_meaningless(config)) or config
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)
        return [(tuple(e["loc"]), _misshapen(e["type"], tuple(e["loc"]), e["input"])) for e in found]


def _misshapen(kind: str, path: Path, given: Any) -> str:
    if kind == "unexpected_keyword_argument":
        keys = _keys_at(path[:-1])
        return f"is not a known key{suggestion(str(path[-1]), keys)} (known here: {listed(keys)})"
    if kind == "missing":
        return _MISSING
    if kind == "literal_error":
        return f"must be deny or allow, not {quoted(given)}{suggestion(str(given), ('deny', 'allow'))}"
    return f"{_EXPECTED.get(kind, 'cannot be used')}, not {quoted(given)}"


def _keys_at(path: Path) -> list[str]:
    section = next(kind for shape, kind in _SECTIONS.items() if _fits(shape, path))
    return [kebab(f.name) for f in fields(section)]


def _fits(shape: tuple[str, ...], path: Path) -> bool:
    return len(shape) == len(path) and all(s in ("*", p) for s, p in zip(shape, path, strict=True))


def _meaningless(config: Config) -> Iterator[Problem]:
    yield from _rules(config)
    yield from _tools(config)
    yield from _variables(config)
    yield from _paths(config)
    yield from _numbers(config)


def _rules(config: Config) -> Iterator[Problem]:
    for i, rule in enumerate(config.policy.rules):
        if rule.tool != "*" and rule.tool not in TOOLS:
            yield ("policy", "rules", i, "tool"), f"{_no_tool(rule.tool)}, or * for any"
        if why := _bad_pattern(rule.match):
            yield ("policy", "rules", i, "match"), why


def _bad_pattern(pattern: str | None) -> str:
    if pattern is None:
        return ""
    if not pattern:
        return "is empty and would match every call; leave it out to mean that"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            re.compile(pattern)
    except re.error as error:
        return f"is not a regular expression: {error}"
    except (RecursionError, OverflowError, Warning) as error:
        return f"cannot be used as a regular expression: {error}"
    return ""


def _no_tool(name: str) -> str:
    return f"{quoted(name)} is not a tool{suggestion(name, TOOLS)} (allowed: {listed(TOOLS)})"


def _tools(config: Config) -> Iterator[Problem]:
    for i, name in enumerate(config.tools):
        if name not in TOOLS:
            yield ("tools", i), _no_tool(name)
        elif config.tools.index(name) < i:
            yield ("tools", i), f"is {name} a second time"


def _variables(config: Config) -> Iterator[Problem]:
    for i, name in enumerate(config.env):
        if not _ENV_NAME.fullmatch(name):
            yield ("env", i), f"{quoted(name)} is not the name of a variable (letters, digits and _ are allowed)"
        elif name.upper() in _CREDENTIALS | _COMMAND_FILES or name.upper().startswith(_OWN_PREFIXES):
            yield ("env", i), f"{name} is never shown to a call: it is a credential or steers the workflow"


def _paths(config: Config) -> Iterator[Problem]:
    if config.instructions is not None and not config.instructions.strip():
        yield ("instructions",), "is empty; leave it out, or name a file, auto or none"
    for i, path in enumerate(config.snapshot.exclude):
        if not _is_inside(path):
            yield ("snapshot", "exclude", i), f"{quoted(path)} must be a path relative to the workspace, without .."
    for i, path in enumerate(config.protected_paths):
        if not _is_inside(path):
            yield ("protected-paths", i), f"{quoted(path)} must be a pattern relative to the workspace, without .."


def _is_inside(path: str) -> bool:
    parts = path.split("/")
    return bool(path.strip()) and "\0" not in path and not path.startswith("/") and ".." not in parts


def _numbers(config: Config) -> Iterator[Problem]:
    plain = config.to_json()
    for name, number in (item for item in plain["snapshot"].items() if item[0] != "exclude"):
        if number < 0:
            yield ("snapshot", name), f"must be 0 or more, not {number}"
    for name, number in plain["context"].items():
        if number < LEAST_CONTEXT:
            why = f": {ANSWER_TOKENS} of them are reserved for the answer" if name == "max-tokens" else ""
            yield ("context", name), f"must be {LEAST_CONTEXT} or more, not {number}{why}"
    for model, price in plain["prices"].items():
        for name in (n for n, number in price.items() if number.startswith("-")):
            yield ("prices", model, name), f"must be 0 or more, not {price[name]}"


def _sentences(origin: str, lines: Lines, problems: list[Problem]) -> list[str]:
    """In the order of the file; what is missing comes last, since an unknown key often explains it."""
    placed = [(_line_of(path, lines), what == _MISSING, path, what) for path, what in problems]
    placed.sort(key=lambda item: item[:2])
    return [f"{_place(origin, line)}: {shown(path) or 'the file'} {what}" for line, _, path, what in placed]


def _line_of(path: Path, lines: Lines) -> int:
    return next((lines[path[:n]] for n in range(len(path), -1, -1) if path[:n] in lines), 0)


def _place(origin: str, line: int) -> str:
    return f"{origin}, line {line}" if line else origin


def _unusable(origin: str, sentences: list[str]) -> InputError:
    more = len(sentences) - _MAX_PROBLEMS
    shown = sentences[:_MAX_PROBLEMS] + ([f"... and {more} more"] if more > 0 else [])
    return InputError(
        "\n".join(["The configuration cannot be used, so nothing was started.", *shown]),
        hint=f"Correct {origin} and start again.",
    )
