"""The harness, on a project small enough to know the answers; and the table, against the source."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants.run import PAGE, ROOT, judge, page
from tests.mutants.table import MUTANTS, Mutant

GUARDED = """\
def divide(a, b):
    if b == 0:
        raise ValueError("no zero")
    return a / b
"""

# The third test asks an isolated child, as the product starts its own.
TESTS = """\
import subprocess, sys
from endstate_action.__main__ import divide

def test_zero_is_refused():
    try:
        divide(1, 0)
    except ValueError:
        return
    except ZeroDivisionError:
        pass
    assert False

def test_one_is_divided():
    assert divide(4, 2) == 2

def test_a_child_refuses_zero():
    code = "from endstate_action.__main__ import divide; divide(1, 0)"
    child = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True)
    assert "no zero" in child.stderr

def test_the_guard_text_is_in_the_source(fixture_of_it):
    pass
"""

CONFTEST = """\
import inspect, pytest
from endstate_action import __main__

@pytest.fixture
def fixture_of_it():
    assert "no zero" in inspect.getsource(__main__)
"""

REMOVED = Mutant(
    name="zero",
    guard="Zero is refused",
    file="src/endstate_action/__main__.py",
    old='    if b == 0:\n        raise ValueError("no zero")\n',
    new="",
    tests=("tests/test_it.py::test_zero_is_refused",),
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    files = {
        "pyproject.toml": "[tool.pytest.ini_options]\n",
        "src/endstate_action/__init__.py": "",
        "src/endstate_action/__main__.py": GUARDED,
        "tests/test_it.py": TESTS,
        "tests/conftest.py": CONFTEST,
    }
    for name, content in files.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return tmp_path / "project"


def _words(project: Path, *mutants: Mutant) -> dict[str, str]:
    return {verdict.name: verdict.word for verdict in judge(project, mutants)}


@pytest.mark.slow
def test_only_a_test_that_fails_by_itself_kills_a_mutant(project):
    """The child is an isolated interpreter: it runs the mutated code too, or it would not miss the guard."""
    words = _words(
        project,
        REMOVED,
        replace(REMOVED, name="child", tests=("tests/test_it.py::test_a_child_refuses_zero",)),
        replace(REMOVED, name="unmissed", tests=("tests/test_it.py::test_one_is_divided",)),
        replace(REMOVED, name="set-up", tests=("tests/test_it.py::test_the_guard_text_is_in_the_source",)),
        replace(REMOVED, name="collection", new="def broken(:\n"),
        replace(REMOVED, name="nowhere", old="if b is 0"),
        replace(REMOVED, name="thrice", old="b"),
    )
    assert {name: word.split("\n")[0] for name, word in words.items()} == {
        "zero": "killed",
        "child": "killed",
        "unmissed": "SURVIVED",
        "set-up": "cannot tell: pytest ended with 1",
        "collection": "cannot tell: pytest ended with 4",
        "nowhere": f"cannot tell: what is to be taken out stands 0 times in {REMOVED.file}",
        "thrice": f"cannot tell: what is to be taken out stands 3 times in {REMOVED.file}",
    }
    assert (project / REMOVED.file).read_text() == GUARDED


@pytest.mark.slow
def test_tests_that_fail_unmutated_prove_nothing(project):
    (word,) = _words(project, replace(REMOVED, tests=("tests/test_it.py::test_gone",))).values()
    assert word.startswith("cannot tell: the named tests must pass")


def test_every_guard_of_the_table_stands_once_in_the_source():
    assert {m.name: (ROOT / m.file).read_text().count(m.old) for m in MUTANTS} == {m.name: 1 for m in MUTANTS}


def test_every_mutant_has_a_name_of_its_own():
    assert [name for name, count in Counter(m.name for m in MUTANTS).items() if count > 1] == []


def test_every_named_test_exists():
    missing = [test for mutant in MUTANTS for test in mutant.tests if not _exists(test)]
    assert missing == []


def _exists(node_id: str) -> bool:
    file, *names = node_id.partition("[")[0].split("::")
    text = (ROOT / file).read_text()
    return all(re.search(rf"^\s*(?:class|(?:async )?def) {re.escape(name)}\b", text, re.MULTILINE) for name in names)


def test_the_page_is_of_this_table():
    """`make docs` writes it."""
    assert PAGE.read_text() == page(MUTANTS)
