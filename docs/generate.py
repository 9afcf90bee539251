"""The reference pages that are read from the code, so that they cannot say something else than it does.

python docs/generate.py --write     make them
python docs/generate.py --check     name those that are not current; exit code 1 if there are any
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import yaml

from endstate_action import errors
from endstate_action.agent.providers import scripted
from endstate_action.agent.tools.base import Tool
from endstate_action.agent.tools.comment import PrComment
from endstate_action.agent.tools.commit import GitCommit
from endstate_action.agent.tools.edit import Edit, Write
from endstate_action.agent.tools.read import Glob, Grep, Read
from endstate_action.agent.tools.shell import Bash
from endstate_action.ci.conclusions import CONCLUSIONS
from endstate_action.ci.evidence import schema
from endstate_action.cli import EXIT_CODES, cli
from endstate_action.config import TOOLS
from endstate_action.messages import Usage
from endstate_action.state import records, session

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference"
SOURCE = Path(errors.__file__).parent
WIDTH = 100
TOOL_CLASSES: tuple[type[Tool], ...] = (Read, Write, Edit, Glob, Grep, Bash, GitCommit, PrComment)
NOTE = "<!-- Generated from the code by `make docs`; edit docs/generate.py instead. -->"

# Of those that say so, only a step of a workflow has something; `tests/test_docs.py` asks a real run.
NOT_HERE = "null here, since only a step of a workflow announces"
OUTPUTS = {
    "conclusion": "`success` or `stopped`; of a failure `interrupted`, `mismatch`, `superseded` or `failed`",
    "reason": "why it stopped; empty on success, or `finished before` where there was nothing to do",
    "session-id": "12 hex digits",
    "attempt": "its number: higher than that of every earlier attempt of this session",
    "resumed": "whether an earlier attempt was continued",
    "restored-from": "the name of the checkpoint that was restored; null where none was",
    "durability": "the store that has the newest checkpoint: `cache`, `dir`, `git-ref`, `s3`, `gs` or `az`; or `none`",
    "sandbox": "what shell calls ran in: `isolated`, `isolated-no-boundary`, `networked` or `none`",
    "base-tree": "git tree of HEAD when the session began; null in a plain directory",
    "restored-tree-hash": "the workspace right after a checkpoint was restored; null where none was",
    "tree-hash": "the workspace at the end: [tree hash](tree-hash.md)",
    "published-tree-hash": NOT_HERE,
    "git-tree": NOT_HERE,
    "final-message": "what the agent said last; empty unless it succeeded",
    "evidence-file": "the file that `--evidence` named; null without it, or where nothing could be written",
    "patch-file": NOT_HERE,
    "changed-files": "paths that differ from when the task began; null where that is not known",
    "commit-sha": "the newest commit made by `git_commit`; null without one",
    "branch": NOT_HERE,
    "comment-url": NOT_HERE,
    "steps": "replies of the model for this task, over all attempts",
    "input-tokens": "tokens sent for this task, cached ones included",
    "output-tokens": "tokens received for this task",
    "cost-usd": "US dollars of this task over all attempts, as text; null where a price is unknown",
    "spent-at-least": "whether steps, tokens and cost may have been more: an attempt left no end on record, or nothing",
    "settlements": "calls that a resume had to settle: list of `step`, `call`, `attempt`, `action`, `reason`",
    "refused-calls": "how many calls of this task were denied or refused",
}

CLI = """\
# Command line

Standard output carries the result alone: the final message, or with `--json` one object.
Everything else goes to standard error.
What an option may be: [configuration](configuration.md).
What the exit codes mean: [exit codes](exit-codes.md).

`--prompt-file -` reads standard input.
`--prompt-file` and `--script` are looked for from the current directory, `--config-file` and `--instructions` from \
the workspace.
On a resume the provider is the session's own, and configuration and instructions are those it was begun under.

{helps}

## Environment

| variable | meaning |
|---|---|
| `ANTHROPIC_API_KEY` | the key; wins over a token |
| `ANTHROPIC_AUTH_TOKEN` | a bearer token in its place |
| `ANTHROPIC_BASE_URL` | another endpoint; `--base-url` wins over it |
| `ENDSTATE_STATE_KEY` | the secret that seals [checkpoints](../stores.md#the-sealing-key), else the API key does |
| `GITHUB_TOKEN` `GH_TOKEN` | for `deliver`, and for `verify` where it has to read a comment |
| `GITHUB_API_URL` | another GitHub for them |
| `AWS_…` `GOOGLE_…` `AZURE_…` | credentials of [object stores](../stores.md#object-stores) |
| `HTTPS_PROXY` `HTTP_PROXY` `ALL_PROXY` `NO_PROXY` | the way out; lower case works too |
| `SSL_CERT_FILE` `SSL_CERT_DIR` | whom to trust on the way |
| `REQUESTS_CA_BUNDLE` `NODE_EXTRA_CA_CERTS` | the same, for GitHub and the Actions cache only |
| `ENDSTATE_TRACEBACK` | `1` shows the traceback of an internal error (exit code 3) |

`endstate action` and `endstate rerun-preempted` are for the steps of [the action](action.md); they read the variables \
that the runner and action.yml set.

The processes that the agent starts never see a credential of ours.
They get an allow-list of harmless variables, and those that `env` in the configuration names.
"""

EXIT = """\
# Exit codes

One table for every command.
With `--json`, a failure prints an object too: `conclusion`, `error`, `hint`, `exit-code`, where an attempt had begun \
`session-id` and `attempt`, after its first step `steps`, `cost-usd` and `spent-at-least`, and for a mismatch \
`differences`.

{table}

## In a workflow

The step fails unless its exit code is 0.
What the [watcher](../automatic-resume.md) does with a run whose step ended so:

{endings}

## Errors

The library raises the same errors:

```text
{tree}
```
"""

JSON = """\
# Outputs

## Of `endstate run --json`

One object on one line.

{table}

## Of the action

A workflow gets text: what is null above is empty there, and a step that was skipped has a `conclusion` alone.
What `conclusion` follows from: [exit codes](exit-codes.md#in-a-workflow).
`session-id`, `attempt`, `resumed` and `restored-from` are written before the first model call, the others \
when the step ends; an attempt without a result states those that it knows.

{of_the_action}
"""

ACTION = """\
# The action

`uses: org/endstate-action@v1`, in a job on Linux that has checked the repository out.
A workflow to begin with: [quickstart](../quickstart-action.md).
An empty input counts as not given; a value that is not allowed ends the step with exit code 2 before anything is spent.

## Inputs

{inputs}

{internal} are filled by action.yml itself, with contexts that a step inside an action does not see everywhere.

## Outputs

See [outputs](outputs.md#of-the-action).

## The watcher

`uses: org/endstate-action/resume@v1`: see [automatic resume](../automatic-resume.md).

{watcher}

## The retry jobs

The reusable workflow `agent.yml`: see [automatic resume](../automatic-resume.md#retry-jobs).

{retry}

The secret `anthropic-api-key` has to be given. Its outputs: {retry_outputs}.
"""

TOOLS_PAGE = """\
# Tools

What an agent can do, and the arguments of each call: for `match` in a [policy](configuration.md#policy), for a \
[script](script-format.md), and to read `endstate sessions show`.
The descriptions are the ones that the model is given, so *you* is the model.
A call with a missing, unknown or wrongly typed argument is answered with an error and does nothing.
Paths are relative to the workspace; one that leads out of it is refused.
What a resume does by effect class: [guarantees](../guarantees.md).

{tools}
"""

STATE = """\
# State format

Format {format}.
All of a session is one SQLite file, `.endstate/sessions/ID{suffix}`, and all of that is one append-only table:

```sql
{schema};
```

`seq` counts from 1 without a hole, `kind` is one of those below, `body` is one JSON object in UTF-8.
A row is never changed and never deleted; what a session is follows from its rows in their order.
`application_id` is {application:#x}, `user_version` is the format.
A newer format is refused; an older one is brought forward in a copy, which then takes the file's place.

`endstate sessions export` prints the rows as they are, also those of a damaged session that can be read.

{table}

`at` is in seconds since 1970.
`epoch` is the number of the attempt.
`step` and `index` are a call's place: the reply that asked for it, from 1, and its position there, from 0.
`usage` is a list: {usage}.
`blocks` are the provider's own, kept to the byte.

## The directory

| name | holds |
|---|---|
| `endstate-state` | the mark that the directory is ours |
| `.gitignore` | `*`, so that nothing of it gets committed |
| `lock` | held by the run that is going on; what it says is for people |
| `sessions/` | one file a session, with SQLite's own beside it while it is open; `ID.db-rows` has its number of rows\
; `ID.set-aside-N.db` was damaged, and a restore took its place |
| `baseline/` | names and digests of the workspace when a task began, for `changed-files` |
| `cache/` | what makes a repeated scan fast; may be deleted |
| `objects/` | snapshots, as plain git objects |
| `store/` | a bare repository of our own, for the store `git-ref` |
| `restore.json` | which checkpoint is being restored; only there while one is, or after one was killed |
| `restored.json` | which session was restored here last, and in which directory: a copy of it elsewhere says nothing |
| `tmp/` | files on their way into the workspace; emptied by the next run |
"""


def cli_page() -> str:
    return CLI.format(helps="\n\n".join(f"## `{name}`\n\n```text\n{text}\n```" for name, text in helps()))


def helps(
    command: click.Command = cli, name: str = "endstate", above: click.Context | None = None
) -> Iterator[tuple[str, str]]:
    """Every command with its help, as click prints it."""
    settings = {**command.context_settings, "terminal_width": WIDTH}
    context = click.Context(command, parent=above, info_name=name.rpartition(" ")[2], **settings)
    yield name, command.get_help(context)
    if isinstance(command, click.Group):
        for sub in command.list_commands(context):
            yield from helps(command.commands[sub], f"{name} {sub}", context)


def exit_codes_page() -> str:
    raised = _raised()
    rows = []
    for code, meaning in EXIT_CODES.items():
        names = [name for name, value in vars(errors).items() if _code(value) == code]
        is_used = not names or any(name in raised for name in names)
        shown = " ".join(f"`{name}`" for name in names)
        rows.append((str(code), meaning if is_used else f"{meaning} (nothing ends with it yet)", shown))
    tree = inspect.cleandoc(errors.__doc__ or "").split("\n\n")[1]
    endings = [(str(e.exit_code), f"`{e.conclusion}`", f"{e.watcher}, since {e.because}") for e in CONCLUSIONS]
    return EXIT.format(
        table=_table(("code", "meaning", "errors"), rows),
        endings=_table(("code", "`conclusion`", "the watcher"), endings),
        tree=_dedent(tree),
    )


def _code(value: object) -> int | None:
    is_error = isinstance(value, type) and issubclass(value, errors.EndstateError)
    return value.exit_code if is_error and value is not errors.EndstateError else None  # type: ignore[attr-defined]


def _raised() -> set[str]:
    """Names of the classes that the package makes an instance of, or chooses for one."""
    text = "\n".join(path.read_text() for path in SOURCE.rglob("*.py") if path.name != "errors.py")
    return set(re.findall(r"(?:raise|return|else|=) ([A-Z]\w+)", text))


def outputs_page() -> str:
    rows = [(f"`{name}`", meaning) for name, meaning in OUTPUTS.items()]
    types = _yaml("action-types.yml")["outputs"]
    of_the_action = [
        (f"`{name}`", _allowed(types[name]), told["description"])
        for name, told in _yaml("action.yml")["outputs"].items()
    ]
    return JSON.format(
        table=_table(("name", "meaning"), rows), of_the_action=_table(("name", "type", "meaning"), of_the_action)
    )


def action_page() -> str:
    inputs = _yaml("action.yml")["inputs"]
    internal = [name for name, told in inputs.items() if told["description"].startswith("Internal: ")]
    shown = {name: told for name, told in inputs.items() if name not in internal}
    # YAML takes the key `on` for a truth value.
    retry = yaml.safe_load((ROOT / ".github/workflows/agent.yml").read_text())[True]["workflow_call"]
    return ACTION.format(
        inputs=_inputs(shown, _yaml("action-types.yml")["inputs"]),
        internal=", ".join(f"`{name}`" for name in internal),
        watcher=_inputs(_yaml("resume/action.yml")["inputs"], _yaml("resume/action-types.yml")["inputs"]),
        retry=_inputs(retry["inputs"], retry["inputs"]),
        retry_outputs=", ".join(f"`{name}`" for name in retry["outputs"]),
    )


def _inputs(inputs: Mapping[str, Any], types: Mapping[str, Any]) -> str:
    rows = [(f"`{name}`", _default(told), _allowed(types[name]), told["description"]) for name, told in inputs.items()]
    return _table(("input", "default", "type", "meaning"), rows)


def _default(told: Mapping[str, Any]) -> str:
    if told.get("required") is True:
        return "required"
    return f"`{told['default']}`" if told["default"] else ""


def _allowed(told: Mapping[str, Any]) -> str:
    return " ".join(f"`{value}`" for value in told.get("allowed-values", ())) or str(told["type"])


def _yaml(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / name).read_text())
    return found


def state_format_page() -> str:
    rows = [
        (f"`{kind}`", " ".join((cls.__doc__ or "").split()), ", ".join(f"`{f.name}`" for f in fields(cls)))
        for kind, cls in records._CLASSES.items()
    ]
    return STATE.format(
        format=records.FORMAT,
        suffix=session.SUFFIX,
        schema=session.SCHEMA,
        application=session.APPLICATION_ID,
        usage=", ".join(f"`{name}`" for name in Usage._fields),
        table=_table(("kind", "what it records", "body"), rows),
    )


# Of those that are not always of one class.
EFFECTS = {
    "bash": "`contained` in the sandbox, `networked` there with `--network`, `opaque` without one",
    "git_commit": "`contained`; only offered in a git checkout",
    "pr_comment": "`keyed`; only offered in a workflow, where there is a pull request or an issue",
}


def tools_page() -> str:
    """Each tool as the model is told of it, in the order of the default configuration."""
    made = {tool.name: tool for tool in TOOL_CLASSES}
    return TOOLS_PAGE.format(tools="\n\n".join(_tool(made[name]) for name in TOOLS))


def _tool(tool: type[Tool]) -> str:
    required = tool.parameters["required"]
    rows = [
        (
            f"`{name}`",
            f"list of {told['items']['type']}" if told["type"] == "array" else told["type"],
            "yes" if name in required else "",
            told["description"] + (f" At least {told['minimum']}." if "minimum" in told else ""),
        )
        for name, told in tool.parameters["properties"].items()
    ]
    table = _table(("argument", "type", "required", "meaning"), rows)
    effect = EFFECTS.get(tool.name) or f"`{tool.effect}`"
    return f"## `{tool.name}`\n\n{tool.description}\n\nEffect class: {effect}.\n\n{table}"


def script_format_page() -> str:
    """The provider's own words; what is indented there is code here."""
    first, *parts = inspect.cleandoc(scripted.__doc__ or "").split("\n\n")
    shown = [f"```text\n{_dedent(part)}\n```" if part.startswith("    ") else part for part in parts]
    return "\n\n".join(
        ("# Script format", f"`--provider scripted --script FILE`: {first[0].lower()}{first[1:]}", *shown)
    )


def _dedent(block: str) -> str:
    return "\n".join(line.removeprefix("    ") for line in block.splitlines())


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


MAKERS: dict[str, Callable[[], str]] = {
    "action.md": action_page,
    "cli.md": cli_page,
    "exit-codes.md": exit_codes_page,
    "outputs.md": outputs_page,
    "script-format.md": script_format_page,
    "state-format.md": state_format_page,
    "tools.md": tools_page,
}


def pages() -> dict[Path, str]:
    """Every generated page, by its file."""
    made = {REFERENCE / name: f"{NOTE}\n{make().rstrip()}\n" for name, make in MAKERS.items()}
    return made | {REFERENCE / "evidence.schema.json": schema()}


def main(option: str) -> int:
    stale = {path: text for path, text in pages().items() if not path.exists() or path.read_text() != text}
    for path, text in stale.items():
        if option == "--write":
            path.write_text(text)
        else:
            print(f"{path.name} is not current: run `make docs`.")
    return 1 if stale and option == "--check" else 0


if __name__ == "__main__":
    if sys.argv[1:] not in (["--write"], ["--check"]):
        sys.exit(str(__doc__))
    sys.exit(main(sys.argv[1]))
