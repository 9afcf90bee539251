"""The pages say what the product does: names, numbers, links, commands and what they print."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from docs.generate import NOT_HERE, OUTPUTS, TOOL_CLASSES, helps, pages
from endstate_action import deliver, shipper, working
from endstate_action.agent import calls, settle, verdict
from endstate_action.agent.tools import shell
from endstate_action.ci import evidence, render
from endstate_action.cli import EXIT_CODES, cli
from endstate_action.config import DEFAULT_CONFIG, TOOLS, Limits
from endstate_action.effects import EffectClass
from endstate_action.state import lock, seal, uploader
from endstate_action.state.checkpoint import build, choose, manifest
from endstate_action.state.records import _CLASSES
from endstate_action.state.stores import directory, git_ref
from tests.support.command import endstate, script
from tests.support.messages_api import answer, call
from tests.support.repos import GitRepo
from tests.support.sandboxes import place
from tests.support.step import stage

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
PAGES = [*ROOT.glob("*.md"), *sorted(DOCS.rglob("*.md"))]

NODE = re.compile(r"tests/[\w/]+\.py::\w+")
COMMAND = re.compile(r"(?:`|^\$? ?)(endstate(?: [a-z][\w-]*)*)([^`\n]*)", re.MULTILINE)
ENVIRONMENT = re.compile(r"\b(?:AWS|GOOGLE|AZURE|STORAGE)_[A-Z_]+\b")
# What people will look for and not find. A line that speaks of it says so, or stands under a heading that does.
CLAIM = re.compile(r"\b(?:drill|OpenAI|GitHub Models|Windows)\b")
ABSENT = re.compile(r"\b(?:not?|nothing|none|null|cannot|without|refused)\b", re.IGNORECASE)
OF_THE_FUTURE = {"Not there yet", "Not verified"}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


each_page = pytest.mark.parametrize("page", PAGES, ids=name_of)


def commands(command: click.Command = cli, name: str = "endstate") -> Iterator[tuple[str, click.Command]]:
    yield name, command
    for sub, below in getattr(command, "commands", {}).items():
        yield from commands(below, f"{name} {sub}")


def options(command: click.Command) -> list[str]:
    return [name for p in command.params for name in p.opts if name.startswith("--")]


# Names


def test_the_reference_has_every_command_and_option():
    page = (REFERENCE / "cli.md").read_text()
    for name, command in commands():
        _, found, after = page.partition(f"## `{name}`\n")
        assert found, name
        help_text = after.partition("\n## ")[0]
        assert [o for o in options(command) if o not in help_text] == [], name


def test_the_reference_has_every_exit_code_and_kind_of_record():
    codes, state = (REFERENCE / "exit-codes.md").read_text(), (REFERENCE / "state-format.md").read_text()
    assert [code for code in EXIT_CODES if f"\n| {code} | " not in codes] == []
    assert [kind for kind in _CLASSES if f"\n| `{kind}` | " not in state] == []
    names = {f"`{f.name}`" for record in _CLASSES.values() for f in fields(record)}
    assert [name for name in names if name not in state] == []


def test_the_reference_has_every_configuration_key():
    page = (REFERENCE / "configuration.md").read_text()
    assert [key for key in DEFAULT_CONFIG.to_json() if f"`{key}`" not in page] == []


def test_the_reference_has_the_outputs_of_a_real_run_and_tells_which_are_null(tmp_path: Path):
    workspace = tmp_path / "w"
    workspace.mkdir()
    outputs = endstate(workspace, "run", "say it", "--json", *script(workspace, {"text": "Said."})).json
    assert list(OUTPUTS) == list(outputs)
    assert [name for name, meaning in OUTPUTS.items() if meaning == NOT_HERE and outputs[name] is not None] == []


def test_the_reference_has_every_field_of_evidence_and_of_a_checkpoint():
    told, format_page = (REFERENCE / "evidence.md").read_text(), (REFERENCE / "checkpoint-format.md").read_text()
    names = {f.alias or name for name, f in evidence.Evidence.model_fields.items()}
    assert [name for name in names if f"`{name}`" not in told] == []
    classes = (manifest.Manifest, manifest.About, manifest.Part)
    assert [f.name for cls in classes for f in fields(cls) if f"`{f.name}`" not in format_page] == []


def test_the_reference_has_every_tool_with_each_of_its_arguments():
    assert [tool.name for tool in TOOL_CLASSES if tool.name not in TOOLS] == []
    page = (REFERENCE / "tools.md").read_text()
    for tool in TOOL_CLASSES:
        _, found, after = page.partition(f"## `{tool.name}`\n")
        told = after.partition("\n## ")[0]
        assert found, tool.name
        assert [name for name in tool.parameters["properties"] if f"| `{name}` |" not in told] == [], tool.name
        assert "Effect class: `" in told, tool.name


def test_the_stores_page_names_every_variable_that_is_read():
    code = (ROOT / "src/endstate_action/state/stores/objectstore.py").read_text()
    page = (DOCS / "stores.md").read_text()
    assert [name for name in sorted(set(ENVIRONMENT.findall(code))) if f"`{name}`" not in page] == []


def test_the_guarantees_have_every_effect_class_and_the_readme_every_tool_there_is():
    page, readme = (DOCS / "guarantees.md").read_text(), (ROOT / "README.md").read_text()
    assert [str(e) for e in EffectClass if str(e) not in page] == []
    assert [t for t in TOOLS if f"`{t}`" not in readme] == []


def test_numbers_that_a_user_meets_are_those_of_the_code():
    page, limits = (DOCS / "operations.md").read_text(), Limits()
    for said in (
        f"| {lock.DEFAULT_TIMEOUT_S:g} s, `--lock-timeout` |",
        f"| {limits.max_steps} · ${limits.max_cost_usd} · {limits.max_resumes}, added up",
        f"| {limits.max_minutes} min an attempt |",
        f"| starts of one call | {settle.MAX_STARTS} |",
        f"| odd replies in a row | {verdict.MAX_ODD_REPLIES} |",
        f"| {shell.DEFAULT_TIMEOUT_S} s, up to {shell.MAX_TIMEOUT_S} s",
        f"| {calls.MAX_RESULT_BYTES} bytes,",
        f"| {uploader.BARRIER_S:g} s at a barrier |",
        f"| {shipper.LAST_S:g} s, after a signal {shipper.LAST_ON_SIGNAL_S:g} s |",
        f"| {uploader.FOOTPRINT_BYTES >> 20} MB an attempt, {uploader.MOST_BYTES >> 20} MB with those that are ",
        f"| {uploader.CACHE_PACE.at_most} a session |",
        f"| {choose.FALLBACKS}, the newest first, and more for {choose.LOOK_S:g} s |",
        f"| {deliver.SENDER_S:g} s after the fence |",
        f"| {working.SIGN_OF_LIFE_S:g} s apart |",
        f"| after {render.SILENT_MINUTES} minutes |",
    ):
        assert said in page, said
    stores = (DOCS / "stores.md").read_text()
    for said in (
        f"at least {seal.MIN_SECRET_CHARS} characters",
        f"{uploader.FOOTPRINT_BYTES >> 20} MB",
        f"{uploader.MOST_BYTES >> 20} MB",
        f"at most {uploader.CACHE_PACE.at_most} ",
        f"`{git_ref.REFS}",
        f"{directory.LEFTOVER_AGE_S / 3600:g} hour",
    ):
        assert said in stores, said
    formats = (REFERENCE / "checkpoint-format.md").read_text()
    for size in (build.SMALL_BYTES >> 10, manifest.MAX_MANIFEST_BYTES >> 10):
        assert f"{size} KiB" in formats
    assert f"{manifest.MAX_PACK_BYTES >> 20} MiB" in formats


def test_the_workflows_that_are_shown_say_only_what_the_action_understands():
    """The ready ones are looked at in `tests/action/test_workflows.py`; these are shorter."""
    inputs = set(yaml.safe_load((ROOT / "action.yml").read_text())["inputs"])
    ready = "\n".join(path.read_text() for path in (DOCS / "examples/workflows").glob("*.yml"))
    shown = [
        block
        for page in PAGES
        for block in re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    ]
    steps = [step for block in shown for step in steps_of(yaml.safe_load(block))]
    assert any(step["uses"] == "org/endstate-action@v1" for step in steps)
    for step in steps:
        assert f"uses: {step['uses']}" in ready, step
        if step["uses"] == "org/endstate-action@v1":
            assert set(step["with"]) <= inputs, step


def steps_of(found: object) -> list[dict[str, Any]]:
    """The steps of a workflow that use an action."""
    jobs = found.get("jobs", {}) if isinstance(found, dict) else {}
    return [step for job in jobs.values() for step in job.get("steps", ()) if "uses" in step]


def test_generated_pages_are_current():
    """`make docs` writes them."""
    assert [name_of(path) for path, text in pages().items() if path.read_text() != text] == []


# What pages name exists


@each_page
def test_links_lead_somewhere(page: Path):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        found = (page.parent / file) if file else page
        assert found.exists(), target
        assert not anchor or anchor in anchors(found), target


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", h).strip().lower().replace(" ", "-") for h in headings}


@each_page
def test_every_page_of_the_documentation_can_be_reached(page: Path):
    pointers = [p for p in (DOCS / "index.md", DOCS / "decisions" / "README.md", ROOT / "README.md") if p != page]
    linked = {(p.parent / t).resolve() for p in pointers for t in re.findall(r"\]\(([^)#\s]+)", p.read_text())}
    assert DOCS not in page.parents or page.resolve() in linked


@each_page
def test_every_test_that_is_named_exists(page: Path):
    for node in NODE.findall(page.read_text()):
        file, _, name = node.partition("::")
        assert re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE), node


def test_every_decision_is_guarded_by_a_test():
    kept = sorted((DOCS / "decisions").glob("0*.md"))
    assert len(kept) > 10
    for page in kept:
        text = page.read_text()
        assert len(text.splitlines()) < 40, page.name
        assert NODE.search(text.partition("**Guarded by.**")[2]), page.name


def test_every_cell_of_the_guarantees_names_its_test():
    matrix, refs = (DOCS / "guarantees.md").read_text().split("\n| | test |\n", 1)
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in matrix.splitlines() if line.startswith("| ")]
    cells = [cell for row in rows if row[1] != "what happens" and row[0] != "effect class" for cell in row[1:]]
    outcomes = [c for row in rows if len(row) in (4, 5) and row[0] != "effect class" for c in row[1:]]
    outcomes += [row[2] for row in rows if len(row) == 3 and row[1] != "what happens"]
    assert [c for c in outcomes if not re.search(r"\[[A-Z]+\]", c)] == []
    used = set(re.findall(r"\[([A-Z]+)\]", " ".join(cells) + matrix))
    assert used == set(re.findall(r"^\| \[([A-Z]+)\] \| `tests/", refs, re.MULTILINE))


def test_every_command_that_is_named_exists():
    known = dict(commands())
    texts = {name_of(p): p.read_text() for p in PAGES}
    texts |= {name_of(p): p.read_text() for p in (ROOT / "src").rglob("*.py")}
    for where, text in texts.items():
        for words, rest in COMMAND.findall(text):
            named = next((n for n in sorted(known, key=len, reverse=True) if f"{words} ".startswith(f"{n} ")), None)
            assert named is not None, (where, words)
            assert named not in ("endstate", "endstate sessions") or named == words, (where, words)
            wrong = [o for o in re.findall(r"(?<!\S)--[a-z][\w-]*", rest) if o not in options(known[named])]
            assert [o for o in wrong if o not in ("--help", "--version")] == [], (where, words, rest)


@each_page
def test_nothing_is_claimed_that_does_not_exist(page: Path):
    heading = ""
    for line in re.sub(r"`[^`\n]*`", "", page.read_text()).splitlines():
        heading = line.lstrip("# ") if line.startswith("#") else heading
        if CLAIM.search(line) and heading not in OF_THE_FUTURE:
            assert ABSENT.search(line), line


# What pages show happens


SESSION = re.compile(r"\b[0-9a-f]{12}\b")
VARYING = (
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "TIME"),
    (r"\d+ seconds? old", "AGE"),
    (r"\d+\.\d kB", "SIZE"),
    # Where it was typed is part of a store's name from then on.
    (r"dir:/\S+/kept", "dir:KEPT"),
    # How many checkpoints there were before is a matter of the disk's speed.
    (r"(?<=/c\d{4})-\d{6}-", "-NUMBER-"),
)
# The demo works on a copy of what is there, so its tree differs from place to place.
OF_THE_DEMO = ((r"et1:[0-9a-f]{64}", "TREE"), (r"Two copies of [^;]+;", "Two copies of IT;"))


def plain(text: str, command: str) -> str:
    for pattern, name in (*VARYING, *(OF_THE_DEMO if command == "make demo" else ())):
        text = re.sub(pattern, name, text)
    for number, session in enumerate(dict.fromkeys(SESSION.findall(text))):
        text = text.replace(session, f"SESSION-{number}")
    return text


def shown(page: str) -> Iterator[tuple[str, str]]:
    """Each command of a page's consoles, and what it is said to print."""
    for block in re.findall(r"^```console\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield command, output


def install(bin_dir: Path) -> None:
    """What `pip install` and a virtual environment put on the path; `make demo` is `endstate demo`."""
    bin_dir.mkdir()
    for name, target in {
        "endstate": f"{sys.executable} -m endstate_action",
        "python": sys.executable,
        "make": "endstate",
        "openssl": f"{sys.executable} -c 'import secrets; print(secrets.token_hex(32))'",
    }.items():
        (bin_dir / name).write_text(f'#!/bin/sh\nexec {target} "$@"\n')
        (bin_dir / name).chmod(0o755)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["README.md", "docs/quickstart.md", "docs/embedding.md"])
def test_commands_print_what_the_page_shows(name: str, tmp_path: Path):
    where = tmp_path / "place"
    where.mkdir()
    for command, printed, expected in tried((ROOT / name).read_text(), where):
        assert plain(printed, command) == plain(expected, command), command


@pytest.mark.slow
def test_commands_of_the_readme_do_the_same_in_a_git_repository(git_repo: GitRepo):
    """The trees are others there, and of a commit there is more to verify."""
    for command, printed, expected in tried((ROOT / "README.md").read_text(), git_repo({"app.py": "1\n"}).path):
        if "endstate verify" in command:
            assert ("DOES NOT HOLD" in printed) == ("DOES NOT HOLD" in expected), printed
            continue
        of_any_tree = [re.sub(r"et1:[0-9a-f]{64}", "TREE", plain(text, command)) for text in (printed, expected)]
        assert of_any_tree[0] == of_any_tree[1], command


def tried(page: str, where: Path) -> Iterator[tuple[str, str, str]]:
    """Each command of a page's consoles, what it prints when it is typed at `where`, and what it is said to print."""
    install(where.parent / "bin")
    for example in re.findall(r"\]\((examples/\w+\.py)\)", page):
        shutil.copy(DOCS / example, where)
    for text in re.findall(r"^```json\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[:1]:
        (where / ("../script.json" if "--script ../" in page else "script.json")).write_text(text)
    env = os.environ | {"PATH": f"{where.parent / 'bin'}:{os.environ['PATH']}"}
    for command, expected in shown(page):
        if command.startswith("cd "):
            where = (where / command.removeprefix("cd ")).resolve()
            continue
        if command.startswith("export "):
            name, _, _ = command.removeprefix("export ").partition("=")
            env |= {name: subprocess.check_output(["bash", "-c", f"{command}; echo ${name}"], env=env, text=True)}
            continue
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=where,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=100,
            check=False,
        )
        printed = done.stdout + ("Killed\n" if done.returncode == -9 else "")
        yield command, printed, expected


# Waits until it is told to end, so that its machine can be lost meanwhile.
WAITING = "echo done >> log.txt; until [ -e go ]; do sleep 0.1; done; rm go"
OF_A_MACHINE = (
    (r"\d+\.\d s\b", "TIME"),
    (r"https?://\S+", "ADDRESS"),
    (r"sandbox: .* · checkpoints", "sandbox: IT · checkpoints"),
    (r"\b[0-9a-f]{32}\b", "LINEAGE"),
    (r"et1:[0-9a-f]+[.…]", "TREE"),
)


@pytest.mark.slow
def test_a_lost_machine_and_the_next_one_log_what_the_readme_shows(tmp_path: Path):
    with place("ordinary"):
        pass  # without a sandbox its call is refused
    (expected,) = re.findall(r"^```text\n(session .*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    replies = [
        answer(call("read", path="app.py")),
        answer(call("write", path="app.py", content="VERSION = 2\n")),
        answer(call("bash", command=WAITING)),
        answer("The version is 2."),
    ]
    with stage(tmp_path, replies) as job:
        job.inputs["commit"] = "branch"
        # A resume ends what an earlier attempt of its session left running: another test's must have another id.
        job.environ["GITHUB_RUN_ID"] = str(os.getpid())
        process, machine = job.begin(1)
        wait_for((machine / "workspace/log.txt").exists)
        wait_for(lambda: is_quiet(lambda: len(job.cache.stored)))
        process.kill()
        first = job.end(process, machine)
        process, machine = job.begin(2)
        wait_for((machine / "workspace/log.txt").exists)
        (machine / "workspace/go").touch()
        second = job.end(process, machine)
    if "sandbox: none" in first.log:
        pytest.skip("there is no sandbox here, so its call is refused")
    # What the runner folds is shown unfolded.
    printed = [li for li in (first.log + second.log).splitlines() if li.strip() and not re.match("::(end)?group::", li)]
    shown = [line for line in expected.splitlines() if "✗" not in line]
    assert [of_any_machine(line) for line in printed] == [of_any_machine(line) for line in shown]


def of_any_machine(line: str) -> str:
    for pattern, name in (*VARYING, *OF_A_MACHINE):
        line = re.sub(pattern, name, line)
    return SESSION.sub("SESSION", line)


def wait_for(happened: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < until
        time.sleep(0.1)


def is_quiet(count: Callable[[], int]) -> bool:
    """Whether nothing has come for longer than checkpoints are apart."""
    before = count()
    time.sleep(4)
    return count() == before


def test_make_has_the_targets_that_the_pages_name():
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(r"^demo:.*\n\t@\$\(BIN\)/endstate demo$", makefile, re.MULTILINE)
    for page in PAGES:
        for target in re.findall(r"(?:`|^\$ )make ([a-z]+)", page.read_text(), re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), (page.name, target)


def test_help_is_short_enough_for_a_terminal():
    assert [name for name, text in helps() if max(map(len, text.splitlines())) > 100] == []
