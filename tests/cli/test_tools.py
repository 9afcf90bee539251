"""`endstate tools check`, as anybody would run it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command import begin, endstate, wait_for

MODULE = """
from endstate_action import EffectClass, Tool


class Look(Tool):
    name = "look"
    description = "Look."
    parameters = {"type": "object", "properties": {}}
    examples = ({},)
    effect = EffectClass.READS

    def run(self, arguments, context, plan):
        return "seen"


class Leave(Look):
    name = "leave"

    def run(self, arguments, context, plan):
        (context.workspace.root / "left").touch()
        return "left"


class Unknown(Look):
    name = "unknown"
    examples = ()
"""

WAITING = """
import time
from pathlib import Path


class First(Look):
    name = "first"

    def run(self, arguments, context, plan):
        Path({place!r}, self.name + "-runs").write_text("x")
        for _ in range(3000):
            if Path({place!r}, self.name + "-goes").exists():
                return "ok"
            time.sleep(0.01)


class Second(First):
    name = "second"
"""


@pytest.fixture
def where(tmp_path: Path) -> Path:
    place = tmp_path / "project"
    place.mkdir()
    (place / "mine.py").write_text(MODULE)
    return place


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_our_own_tools_do_what_they_claim(where):
    ran = endstate(where, "tools", "check", "--json", timeout_s=800)
    assert ran.code == 0, ran.out + ran.err
    verdicts = json.loads(ran.out)
    assert [v["tool"] for v in verdicts] == ["read", "glob", "grep", "write", "edit", "git_commit", "bash"]
    assert [v for v in verdicts if v["verdict"] not in ("true", "nothing to check")] == []
    # Where there is no sandbox, bash claims nothing; all others are held to their claim everywhere.
    assert [v["tool"] for v in verdicts if v["verdict"] == "nothing to check"] in ([], ["bash"])


def test_a_false_claim_ends_with_1_and_the_evidence(where):
    ran = endstate(where, "tools", "check", "mine")
    assert (ran.code, ran.out.splitlines()) == (
        1,
        [
            "look  reads  true",
            "leave  reads  false: it does not only read: left added (called with {})",
            "unknown  reads  not checked: it has no examples",
        ],
    )


def test_a_true_claim_ends_with_0_and_leaves_nothing_behind(where, tmp_path):
    tmp = tmp_path / "tmp"
    tmp.mkdir()
    ran = endstate(where, "tools", "check", "mine:Look", "--json", env={"TMPDIR": str(tmp)})
    assert (ran.code, json.loads(ran.out)) == (
        0,
        [{"tool": "look", "effect": "reads", "verdict": "true", "evidence": ""}],
    )
    assert list(tmp.iterdir()) == []
    assert [p.name for p in where.iterdir()] == ["mine.py"]


def test_two_checks_at_once_do_not_end_each_other(where, tmp_path):
    (where / "mine.py").write_text(MODULE + WAITING.format(place=str(tmp_path)))
    first = begin(where, "tools", "check", "mine:First")
    wait_for(tmp_path / "first-runs")
    second = begin(where, "tools", "check", "mine:Second")
    wait_for(tmp_path / "second-runs")
    (tmp_path / "first-goes").touch()
    assert first.communicate(timeout=100)[0] == b"first  reads  true\n"
    (tmp_path / "second-goes").touch()
    assert second.communicate(timeout=100)[0] == b"second  reads  true\n"


def test_what_was_not_checked_fails_only_when_that_is_asked_for(where):
    assert endstate(where, "tools", "check", "mine:Unknown").code == 0
    assert endstate(where, "tools", "check", "mine:Unknown", "--strict").code == 1


@pytest.mark.parametrize("target", ["absent", "mine:absent", "mine:Look.name", "no such module", "mine:"])
def test_what_cannot_be_checked_is_bad_input_without_a_traceback(where, target):
    if target == "mine:":
        (where / "mine.py").write_text("1 / 0\n")
    ran = endstate(where, "tools", "check", target)
    assert (ran.code, ran.out) == (2, "")
    assert "Nothing was checked." in ran.err
    assert "Traceback" not in ran.err


def test_how_a_check_ended_is_told_as_it_was(where):
    for name, last, told in (
        ("leaves", "os._exit(3)", "ended with 3."),
        ("dies", "os.kill(os.getpid(), 9)", "was ended by signal 9."),
    ):
        (where / f"{name}.py").write_text(f"import os\n{last}\n")
        checked = endstate(where, "tools", "check", name)
        assert checked.code == 2
        assert f"Nothing was decided: the process that checks {told}" in checked.err
