"""Floors and doors, read from the syntax tree: imports inside functions and for types count too.

The tables below are those of AGENTS.md. A module that is not in them fails: give it a floor first.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
PACKAGE = "endstate_action"

# Floor 0 is a staircase, in the order of AGENTS.md: every value may raise an error, settings use them all.
FLOORS = {
    "errors": 0,
    "messages": 0.1,
    "effects": 0.2,
    "config": 0.3,
    "system": 1,
    **dict.fromkeys(["state", "ci"], 2),
    "agent": 3,
    "workplace": 3.5,
    # Leaving the machine, and coming back: what a run is told of stores, composed for one workplace.
    **dict.fromkeys(["durable", "restoring", "shipper"], 3.6),
    "rules": 3.6,
    **dict.fromkeys(["successor", "trusted", "pricing"], 3.7),
    "account": 3.8,
    **dict.fromkeys(["run", "verify", "deliver", "watch"], 4),
    "working": 4.5,
    # They tell their stories with the story of a run.
    **dict.fromkeys(["demo", "tools_check", "action", "hand"], 5),
    "cli": 6,
    "__main__": 7,
}

# A door is a module, or a package and all its modules.
DOORS: dict[str, str | tuple[str, ...]] = {
    "sqlite3": "state.session",
    "filelock": "state.lock",
    "subprocess": "system.process",
    # The SDK speaks in its transport's exceptions and clients, so they are one thing.
    **dict.fromkeys(["anthropic", "httpx2"], "agent.providers.anthropic"),
    "yaml": "config",
    "pydantic": ("config", "ci.evidence"),
    "nacl": "state.seal",
    "urllib3": "state.stores.http",
    "opendal": "state.stores.objectstore",
    # The SDK speaks in the exceptions of its transport, so they are one thing.
    **dict.fromkeys(["github", "requests"], "ci.github"),
    "click": "cli",
    "os.environ": "cli",
    **dict.fromkeys(["os.environb", "os.getenv", "os.getenvb", "os.putenv", "os.unsetenv"], "cli"),
    # Other ways to start a process, which would end without the group and the tag that settling relies on.
    **dict.fromkeys(["multiprocessing", "pty", "os.system", "os.popen", "os.fork", "os.forkpty"], "system.process"),
    **dict.fromkeys(["os.posix_spawn", "os.posix_spawnp"], "system.process"),
    # A user's module, which nobody else may load: it can do anything.
    "pkgutil.resolve_name": "tools_check.worker",
    **dict.fromkeys(["asyncio.create_subprocess_exec", "asyncio.create_subprocess_shell"], "system.process"),
}

# Slow to import, and not needed by most commands: only inside the function that uses it.
SLOW = {"anthropic", "httpx2", "github", "nacl", "opendal", "requests"}

DYNAMIC = {"__import__", "import_module", "importlib.import_module"}


@dataclass(frozen=True, slots=True)
class Import:
    name: str
    """Absolute dotted name: `endstate_action.state.lock`, `os.environ`."""
    line: int
    lazy: bool


def violations(source: Path) -> list[str]:
    """Every breach in the package below `source`, as `file:line: what and why`."""
    root = source / PACKAGE
    found = (
        f"{path.relative_to(source)}:{line}: {problem}"
        for path in sorted(root.rglob("*.py"))
        if path != root / "__init__.py"  # the public face: it names everything and imports on first use
        for line, problem in _violations(path.relative_to(root), ast.parse(path.read_bytes()))
    )
    return list(dict.fromkeys(found))


def _violations(path: Path, tree: ast.Module) -> Iterator[tuple[int, str]]:
    module = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    top = path.parts[0].removesuffix(".py")
    if top not in FLOORS:
        yield 1, f"{top} has no floor"
        return
    for use in (*_imports(path, tree), *_attributes(tree)):
        if use.name.split(".")[0] == PACKAGE:
            yield from ((use.line, problem) for problem in _floor_problems(top, use.name))
        else:
            yield from ((use.line, problem) for problem in _door_problems(module, use))


def _floor_problems(top: str, name: str) -> Iterator[str]:
    target = name.split(".")[1] if "." in name else ""
    if target == "__version__" or (target == top and "." in name.removeprefix(f"{PACKAGE}.")):
        return
    if target not in FLOORS:
        yield f"{name} has no floor: import a name from the module that defines it"
    elif FLOORS[target] >= FLOORS[top]:
        yield f"{top} (floor {FLOORS[top]}) imports {target} (floor {FLOORS[target]})"


def _door_problems(module: str, use: Import) -> Iterator[str]:
    package = use.name.split(".")[0]
    door = DOORS.get(use.name, DOORS.get(package))
    if use.name in DYNAMIC:
        yield "an import by computed name cannot be checked"
    elif door is None and package not in sys.stdlib_module_names:
        yield f"{package} has no door"
    elif door is not None and not any(f"{module}.".startswith(f"{one}.") for one in _doors(door)):
        yield f"{use.name if use.name in DOORS else package} is used in {' and '.join(_doors(door))} only"
    elif package in SLOW and not use.lazy:
        yield f"{package} is imported inside the function that uses it only"


def _doors(door: str | tuple[str, ...]) -> tuple[str, ...]:
    return (door,) if isinstance(door, str) else door


def _imports(path: Path, tree: ast.Module) -> Iterator[Import]:
    lazy = _lazy_lines(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, node.lineno in lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join((*_package_of(path, node.level), *([node.module] if node.module else [])))
            yield from (Import(f"{base}.{alias.name}", node.lineno, node.lineno in lazy) for alias in node.names)


def _package_of(path: Path, level: int) -> tuple[str, ...]:
    """The package that `level` dots mean in the module at `path`; nothing for an absolute import."""
    here = (PACKAGE, *path.parent.parts)
    return here[: len(here) - level + 1] if level else ()


def _lazy_lines(tree: ast.Module) -> set[int]:
    """Lines that importing the module does not run: function bodies and blocks for type checkers."""
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def _attributes(tree: ast.Module) -> Iterator[Import]:
    """Uses that need no import of their own: `os.environ`, `importlib.import_module`, `__import__`."""
    modules = _modules(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            name = f"{modules[node.value.id]}.{node.attr}"
            if name in DOORS or name in DYNAMIC:
                yield Import(name, node.lineno, lazy=True)
        elif isinstance(node, ast.Name) and node.id in DYNAMIC:
            yield Import(node.id, node.lineno, lazy=True)


def _modules(tree: ast.Module) -> dict[str, str]:
    """The name that a module has in this file, to its own: `import os as o` is `{"o": "os"}`."""
    names = (alias for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names)
    return {alias.asname or alias.name.partition(".")[0]: alias.name.partition(".")[0] for alias in names}


def test_the_package_keeps_its_floors_and_doors():
    assert violations(SOURCE) == []


def _planted(tmp_path: Path, module: str, code: str) -> list[str]:
    path = tmp_path / PACKAGE / module
    path.parent.mkdir(parents=True)
    path.write_text(code)
    return violations(tmp_path)


@pytest.mark.parametrize(
    ("module", "code"),
    [
        pytest.param("system/files.py", "import endstate_action.state.lock", id="a higher floor"),
        pytest.param("system/files.py", "from endstate_action import state", id="a higher floor by name"),
        pytest.param("system/files.py", "from ..state import lock", id="a higher floor, relative"),
        pytest.param("system/files.py", "def f():\n    from endstate_action.run import g", id="inside a function"),
        pytest.param("state/lock.py", "if TYPE_CHECKING:\n    from endstate_action.agent import loop", id="for types"),
        pytest.param("ci/event.py", "from endstate_action.state.lock import Lock", id="a sibling on the same floor"),
        pytest.param("run.py", "from endstate_action.demo import main", id="a story in a story"),
        pytest.param("messages.py", "from endstate_action.effects import canonical", id="a value in an earlier one"),
        pytest.param("agent/loop.py", "from endstate_action import Session", id="the public face"),
        pytest.param("agent/loop.py", "import endstate_action", id="the whole package"),
        pytest.param("helpers.py", "", id="a module without a floor"),
        pytest.param("state/lock.py", "import sqlite3", id="sqlite3"),
        pytest.param("state/session_rows.py", "from sqlite3 import Row", id="a module whose name begins as the door's"),
        pytest.param("state/session.py", "from filelock import FileLock", id="filelock"),
        pytest.param("system/git.py", "from subprocess import run", id="subprocess"),
        pytest.param("system/git.py", "import os\nos.system('true')", id="a process by another way"),
        pytest.param("agent/loop.py", "import anthropic.types", id="anthropic"),
        pytest.param("agent/providers/anthropic.py", "import anthropic", id="a slow import at the top"),
        pytest.param("run.py", "import yaml", id="yaml"),
        pytest.param("run.py", "from pydantic import BaseModel", id="pydantic"),
        pytest.param("demo.py", "import click", id="click"),
        pytest.param("run.py", "import requests", id="a package without a door"),
        pytest.param("run.py", "import os\nos.environ.get('HOME')", id="os.environ"),
        pytest.param("run.py", "import os as o\nx = o.getenv('HOME')", id="os.getenv by another name"),
        pytest.param("run.py", "from os import environ", id="environ"),
        pytest.param("run.py", "import importlib\nimportlib.import_module('x')", id="a computed import"),
        pytest.param("run.py", "from importlib import import_module", id="import_module"),
        pytest.param("run.py", "__import__('x')", id="__import__"),
    ],
)
def test_a_planted_violation_is_found(tmp_path, module, code):
    assert len(_planted(tmp_path, module, code)) == 1


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("__init__.py", "from endstate_action.run import anything"),
        ("__main__.py", "from endstate_action.cli import main"),
        ("agent/tools/shell.py", "from endstate_action.agent.policy import Policy\nfrom .base import Tool"),
        ("agent/__init__.py", "from . import loop"),
        ("agent/loop.py", "import os.path, json\nos.getpid()\nfrom endstate_action import __version__, effects"),
        ("config.py", "import yaml\nfrom pydantic import BaseModel\nfrom endstate_action.errors import InputError"),
        ("config/text.py", "import yaml"),
        ("agent/providers/anthropic.py", "def f():\n    import anthropic"),
        ("cli.py", "import os, click\nos.environ['HOME']\nfrom endstate_action import run"),
    ],
)
def test_what_is_allowed_passes(tmp_path, module, code):
    assert _planted(tmp_path, module, code) == []


def test_a_violation_is_reported_with_file_and_line(tmp_path):
    found = _planted(tmp_path, "state/lock.py", "import os\nimport subprocess\n")
    assert found == ["endstate_action/state/lock.py:2: subprocess is used in system.process only"]
