"""Claims of tools, true and false, held against what the tools do: real forks, real SIGKILL, real git."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from endstate_action.errors import InputError
from endstate_action.tools_check import Verdict, check
from endstate_action.tools_check.claims import _orders
from endstate_action.tools_check.place import difference, outside

TOOLS = """
import os, subprocess, tempfile
from pathlib import Path
from endstate_action import EffectClass, FileChange, Probe, Probed, Tool
from endstate_action.effects import digest


class Base(Tool):
    name = "tried"
    description = "A tool that is tried."
    parameters = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    examples = ({"text": "lamp"},)


class ReadsAndWrites(Base):
    effect = EffectClass.READS

    def run(self, arguments, context, plan):
        (context.workspace.root / "seen.txt").write_text("x")
        return "ok"


class ReadsAndChangesAMode(Base):
    effect = EffectClass.READS

    def run(self, arguments, context, plan):
        (context.workspace.root / "app.py").chmod(0o600)
        return "ok"


class ReadsAndTags(Base):
    effect = EffectClass.READS

    def run(self, arguments, context, plan):
        subprocess.run(["git", "tag", "seen"], cwd=context.workspace.root, check=True)
        return "ok"


class Reads(Base):
    effect = EffectClass.READS

    def run(self, arguments, context, plan):
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"x")
        return (context.workspace.root / "README.md").read_text()


class Appends(Base):
    effect = EffectClass.IDEMPOTENT

    def run(self, arguments, context, plan):
        with (context.workspace.root / "log").open("a") as file:
            file.write(arguments["text"])
        return "ok"


class FailsWhenRunAgain(Base):
    effect = EffectClass.IDEMPOTENT

    def run(self, arguments, context, plan):
        made = context.workspace.root / "made"
        if made.exists() and not hasattr(self, "did"):
            raise ValueError("it is there already")
        self.did = True
        made.mkdir(exist_ok=True)
        return "ok"


class LeavesAStray(Base):
    effect = EffectClass.IDEMPOTENT

    def run(self, arguments, context, plan):
        handle, name = tempfile.mkstemp(dir=context.workspace.root, prefix="stray-")
        os.write(handle, b"x")
        os.close(handle)
        os.rename(name, context.workspace.root / "out.txt")
        return "ok"


class NotAsPlanned(Base):
    effect = EffectClass.IDEMPOTENT

    def plan(self, arguments, context):
        return FileChange("out.txt", context.workspace.digest("out.txt"), digest(b"planned"), b"planned")

    def run(self, arguments, context, plan):
        context.workspace.write("out.txt", b"done")
        return "ok"


class Idempotent(Base):
    effect = EffectClass.IDEMPOTENT

    def run(self, arguments, context, plan):
        part = context.workspace.root / "out.part"
        part.write_text(f"{arguments['text']} {context.key} {context.started_at}")
        part.rename(context.workspace.root / "out.txt")
        return "ok"


class WritesToHome(Base):
    effect = EffectClass.CONTAINED

    def run(self, arguments, context, plan):
        (Path.home() / "note").write_text("x")
        return "ok"


class WritesBeside(Base):
    effect = EffectClass.CONTAINED

    def run(self, arguments, context, plan):
        (context.workspace.root.parent / "note").write_text("x")
        return "ok"


class LeavesATemporaryFile(Base):
    effect = EffectClass.CONTAINED

    def run(self, arguments, context, plan):
        os.close(tempfile.mkstemp()[0])
        return "ok"


class NeverTwiceTheSame(Base):
    effect = EffectClass.CONTAINED

    def run(self, arguments, context, plan):
        (context.workspace.root / "out.txt").write_bytes(os.urandom(8))
        return "ok"


class Contained(Base):
    effect = EffectClass.CONTAINED

    def run(self, arguments, context, plan):
        for line in "ab":
            with (context.workspace.root / "README.md").open("a") as file:
                file.write(line)
        subprocess.run(["git", "tag", "done"], cwd=context.workspace.root, check=True)
        return "ok"


class Networked(Contained):
    effect = EffectClass.NETWORKED


class Keyed(Base):
    effect = EffectClass.KEYED
    ledger = Path.home() / "ledger"

    def run(self, arguments, context, plan):
        with self.ledger.open("a") as file:
            file.write(f"{context.key} {arguments['text']}\\n")
        return "ok"

    def probe(self, arguments, context):
        lines = self.ledger.read_text().splitlines() if self.ledger.exists() else []
        found = [line.split(" ", 1)[1] for line in lines if line.split(" ")[0] == context.key]
        return Probed(self.answer(arguments["text"], found))

    def answer(self, text, found):
        return Probe.APPLIED if text in found else Probe.UNKNOWN if found else Probe.ABSENT


class AlwaysAbsent(Keyed):
    def answer(self, text, found):
        return Probe.ABSENT


class AlwaysApplied(Keyed):
    def answer(self, text, found):
        return Probe.APPLIED


class BlindForContent(Keyed):
    def answer(self, text, found):
        return Probe.APPLIED if found else Probe.ABSENT


class KeyIsWrittenLast(Keyed):
    def run(self, arguments, context, plan):
        with (Path.home() / "effects").open("a") as file:
            file.write(arguments["text"])
        return super().run(arguments, context, plan)


class Opaque(Base):
    effect = EffectClass.OPAQUE

    def run(self, arguments, context, plan):
        Path(WITNESS).write_text("it was run")
        return "ok"


class WithoutExamples(Reads):
    examples = ()


class ExampleOfNoUse(Reads):
    examples = ({"txet": "lamp"},)


class PlanFails(Reads):
    def plan(self, arguments, context):
        raise ValueError("no plan today")


both = [Reads, WithoutExamples]
no_tool = 3
"""


@pytest.fixture
def judged(tmp_path: Path):
    """Checks what an attribute of the module above is; a single verdict where there is one."""
    (tmp_path / "tools.py").write_text(f"WITNESS = {str(tmp_path / 'witness')!r}\n{TOOLS}")

    def judge(attribute: str) -> Verdict:
        (verdict,) = check(f"tools:{attribute}", tmp_path, os.environ)
        return verdict

    return judge


@pytest.mark.parametrize(
    ("liar", "evidence"),
    [
        ("ReadsAndWrites", "it does not only read: seen.txt added"),
        ("ReadsAndChangesAMode", "it does not only read: app.py changed"),
        ("ReadsAndTags", "it does not only read: the commits changed, the refs changed"),
        ("Appends", "run twice it left something else than run once: log changed"),
        ("WritesToHome", "it changed something outside of the workspace: ~/note added"),
        ("WritesBeside", "it changed something outside of the workspace: ../note added"),
        ("AlwaysAbsent", "asked after the call, its probe says absent and not applied"),
        ("AlwaysApplied", "asked before the call, its probe says applied and not absent"),
        ("BlindForContent", "asked about other content under the same key, its probe says applied and not unknown"),
    ],
)
def test_a_liar_is_caught_undisturbed(judged, liar, evidence):
    verdict = judged(liar)
    assert (verdict["verdict"], verdict["evidence"]) == ("false", f'{evidence} (called with {{"text": "lamp"}})')


def test_a_temporary_file_that_stays_is_outside_of_the_workspace(judged):
    verdict = judged("LeavesATemporaryFile")
    assert verdict["verdict"] == "false"
    assert "$TMPDIR/" in verdict["evidence"]


def test_a_liar_that_is_only_wrong_under_kill_is_caught(judged):
    verdict = judged("LeavesAStray")
    assert verdict["verdict"] == "false"
    assert verdict["evidence"].startswith("killed before os.rename of stray-")
    assert "and resumed, it left something else than undisturbed: stray-" in verdict["evidence"]


def test_an_effect_that_is_repeated_since_its_key_is_written_last_is_caught(judged):
    verdict = judged("KeyIsWrittenLast")
    assert verdict["verdict"] == "false"
    assert "it left something else than undisturbed: ~/effects changed" in verdict["evidence"]


@pytest.mark.parametrize(
    ("liar", "evidence"),
    [
        ("FailsWhenRunAgain", "its outcome was error: The tool tried failed: ValueError: it is there already"),
        ("NotAsPlanned", "its outcome was refused: "),
    ],
)
def test_a_call_that_a_resume_cannot_settle_is_caught(judged, liar, evidence):
    verdict = judged(liar)
    assert verdict["verdict"] == "false"
    assert f"killed after its end and resumed, {evidence}" in verdict["evidence"]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("honest", ["Reads", "Idempotent", "Contained", "Networked", "Keyed"])
def test_an_honest_tool_passes(judged, honest):
    assert judged(honest) == {"tool": "tried", "effect": honest.lower(), "verdict": "true", "evidence": ""}


def test_what_claims_nothing_is_not_run(judged, tmp_path):
    assert judged("Opaque")["verdict"] == "nothing to check"
    assert not (tmp_path / "witness").exists()


@pytest.mark.parametrize(
    ("tool", "why"),
    [
        ("WithoutExamples", "it has no examples"),
        ("ExampleOfNoUse", "text is missing; txet is not an argument of this tool"),
        ("PlanFails", "ValueError: no plan today"),
        ("NeverTwiceTheSame", "two runs in equal places end differently, so nothing can be compared: out.txt changed"),
    ],
)
def test_a_claim_that_cannot_be_judged_is_neither_true_nor_false(judged, tool, why):
    verdict = judged(tool)
    assert verdict["verdict"] == "not checked"
    assert why in verdict["evidence"]


@pytest.mark.parametrize("attribute", ["no_tool", "missing", "os"])
def test_what_is_no_tool_is_bad_input(judged, attribute):
    with pytest.raises(InputError, match="Nothing was checked"):
        judged(attribute)


def test_a_module_that_ends_its_process_is_bad_input(tmp_path):
    (tmp_path / "ends.py").write_text("import os\nos.write(1, b'I go\\n')\nos._exit(5)\n")
    with pytest.raises(InputError, match=r"that checks ended with 5\. I go"):
        check("ends", tmp_path, os.environ)


def test_the_module_gets_no_credential_and_another_home(tmp_path):
    (tmp_path / "curious.py").write_text(
        "import os\nraise ValueError([os.environ.get(n) for n in ('MY_API_KEY', 'PLACE')] + [os.environ['HOME']])\n"
    )
    environ = {**os.environ, "MY_API_KEY": "k-0123456789", "PLACE": "here"}
    with pytest.raises(InputError) as failed:
        check("curious", tmp_path, environ)
    assert "[None, 'here', " in str(failed.value)
    assert os.environ["HOME"] not in str(failed.value)


def test_kills_are_spread_over_effects_and_lines_and_always_come_after_the_end():
    points = [f"before open of {n}" if n % 2 else f"at line {n}" for n in range(100)] + ["after its end"]
    orders = [o.kill_at for o in _orders({"points": points, "elapsed_s": 1.0})]
    assert orders[0] == 101
    assert len(orders) == len(set(orders)) == 1 + 6 + 3
    assert [o.kill_at for o in _orders({"points": ["at line 1", "after its end"], "elapsed_s": 1.0})] == [2]


def test_a_call_that_starts_a_program_is_killed_while_that_runs():
    points = ["before subprocess.Popen of sh", "after its end"]
    timed = [o.kill_after_s for o in _orders({"points": points, "elapsed_s": 4.0}) if not o.kill_at]
    assert timed == [1.0, 2.0, 3.0]


def test_a_difference_is_told_in_words():
    before = {"a": "1", "b": "1", "~/c": "1"}
    assert difference(before, before) == ""
    assert difference(before, {"a": "2", "d": "1", "~/c": "1"}) == "a changed, b gone, d added"
    assert difference({}, dict.fromkeys("abcdefg", "1")).endswith("e added and 2 more")
    assert outside(before) == {"~/c": "1"}
