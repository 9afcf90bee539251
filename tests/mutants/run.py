"""Takes each guard out of a copy of the repository and watches the named tests fail.

    python -m tests.mutants.run [NAME ...]    run all mutants, or those named; a survivor ends with 1
    python -m tests.mutants.run --write       write docs/mutations.md
    python -m tests.mutants.run --check       end with 1 when docs/mutations.md is not of this table

A mutated copy has an interpreter of its own, to which the copy's `src` is installed and all else is
as here: so the children that tests start, `python -I` included, run the mutated code as well.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from tests.mutants.table import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "mutations.md"
WORKERS = 2
# Far above what any row needs: a mutant that hangs has its test ended by pytest's own time-out before.
HANG_S = 900

_NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", ".endstate", "build", "dist"
)
# They would put another package before the mutated one.
_NOT_INHERITED = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTEST_ADDOPTS"}


_FAILED = "failed: "


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the tests said. `killed` is what we want of a mutant; `problem` means that nothing was learnt."""

    name: str
    killed: bool = False
    problem: str = ""
    untried: str = ""
    """The program that its tests need and that is not here."""

    @property
    def word(self) -> str:
        if self.untried:
            return f"not tried: there is no {self.untried} here"
        return f"cannot tell: {self.problem}" if self.problem else "killed" if self.killed else "SURVIVED"


def judge(root: Path, mutants: Sequence[Mutant]) -> Iterator[Verdict]:
    """One verdict a mutant, in order. All named tests must pass on the unmutated copy first."""
    named = sorted({test for mutant in mutants for test in mutant.tests})
    problem = _run(root, named, mutate=None)
    if problem != "passed":
        yield Verdict("(nothing taken out)", problem=f"the named tests must pass, but {problem}")
        return
    with ThreadPoolExecutor(WORKERS) as pool:
        yield from pool.map(lambda mutant: _judge(root, mutant), mutants)


def _judge(root: Path, mutant: Mutant) -> Verdict:
    count = (root / mutant.file).read_text(encoding="utf-8").count(mutant.old)
    if count != 1:
        return Verdict(mutant.name, problem=f"what is to be taken out stands {count} times in {mutant.file}")
    if mutant.needs and shutil.which(mutant.needs) is None:
        return Verdict(mutant.name, untried=mutant.needs)
    outcome = _run(root, mutant.tests, mutate=mutant)
    if outcome == "passed" or outcome.startswith(_FAILED):
        return Verdict(mutant.name, killed=outcome != "passed")
    return Verdict(mutant.name, problem=outcome)


def _run(root: Path, tests: Sequence[str], mutate: Mutant | None) -> str:
    """`passed`, `failed: ` and the tests (by their own assertions, not their set-up), or what went wrong."""
    # A mutant may leave processes that still write; what they write is of no use to anybody.
    with tempfile.TemporaryDirectory(prefix="mutant-", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o755)  # some tests start what an ordinary user runs
        copy = Path(folder).resolve() / "copy"
        shutil.copytree(root, copy, ignore=_NOT_COPIED, symlinks=True)
        if mutate is not None:
            file = copy / mutate.file
            mutated = file.read_text(encoding="utf-8").replace(mutate.old, mutate.new)
            file.write_text(mutated, encoding="utf-8")
        # All rows at once have both workers for themselves; one row has only its own.
        return _pytest(copy, _interpreter(copy), ["-n", str(WORKERS), *tests] if mutate is None else tests)


def _interpreter(copy: Path) -> Path:
    """A throw-away environment: the copy's `src` first, then this one's packages without its .pth lines."""
    home = copy.parent / "env"
    venv.create(home, symlinks=True)
    paths = sysconfig.get_paths(vars={"base": str(home), "platbase": str(home)})
    lines = [str(copy / "src"), *(path for path in sys.path if path.endswith("-packages"))]
    Path(paths["purelib"], "mutant.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return home / "bin" / "python"


def _pytest(copy: Path, python: Path, tests: Sequence[str]) -> str:
    report = copy.parent / "report.xml"
    plugins = ["-p", "no:cacheprovider", "-p", "no:randomly"]
    options = ["-q", *plugins, f"--junitxml={report}", f"--basetemp={copy.parent / 'tmp'}"]
    environment = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    # Programs that came with this environment, such as `act`, are not in the throw-away one.
    environment["PATH"] = os.pathsep.join((sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)))
    try:
        done = subprocess.run(
            [python, "-m", "pytest", *options, *tests],
            cwd=copy,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no end within {HANG_S} s"
    if done.returncode == 0:
        ran = _cases(report) - _cases(report, "skipped")
        return "passed" if ran else "all of them were skipped"
    if done.returncode == 1 and (failed := _cases(report, "failure")):
        return f"{_FAILED}{', '.join(sorted(failed))}"
    return f"pytest ended with {done.returncode}\n{done.stdout}{done.stderr}"


def _cases(report: Path, outcome: str = "") -> set[str]:
    """The tests of a report, or those with such an outcome.

    An error, of collection or set-up, is no `failure`: it proves nothing about the guard.
    """
    if not report.exists():
        return set()
    cases = ET.parse(report).iter("testcase")
    return {
        f"{case.get('classname')}.{case.get('name')}" for case in cases if not outcome or case.find(outcome) is not None
    }


def page(mutants: Iterable[Mutant]) -> str:
    """docs/mutations.md: the table for readers."""
    rows = (
        f"| {mutant.guard} | `{mutant.file}` | {'<br>'.join(f'`{test}`' for test in mutant.tests)} |"
        for mutant in mutants
    )
    return "\n".join(
        (
            "# Mutations",
            "",
            "Every guard is load-bearing: take it out, and a test fails.",
            "`make mutants` does so for each row, in a copy; a guard that nothing misses fails it.",
            "Generated from `tests/mutants/table.py` by `make docs`.",
            "",
            "| guard taken out | of | fails |",
            "|---|---|---|",
            *rows,
            "",
        )
    )


def main(arguments: Sequence[str]) -> int:
    if arguments == ["--write"]:
        PAGE.write_text(page(MUTANTS), encoding="utf-8")
        return 0
    if arguments == ["--check"]:
        return int(PAGE.read_text(encoding="utf-8") != page(MUTANTS))
    unknown = set(arguments) - {mutant.name for mutant in MUTANTS}
    if unknown:
        print(f"No mutant was run: there is none named {', '.join(sorted(unknown))}.", file=sys.stderr)
        return 2
    return _report([mutant for mutant in MUTANTS if not arguments or mutant.name in arguments])


def _report(mutants: Sequence[Mutant]) -> int:
    verdicts = []
    for verdict in judge(ROOT, mutants):
        print(f"{verdict.name:40} {verdict.word}", flush=True)
        verdicts.append(verdict)
    tried = [verdict for verdict in verdicts if not verdict.untried]
    killed = sum(verdict.killed for verdict in tried)
    print(f"{killed} of {len(tried)} mutants killed")
    return int(killed < len(tried))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
