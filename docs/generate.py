"""The reference pages that are read from the code, so that they cannot say something else than it does.

python docs/generate.py --write     make them
python docs/generate.py --check     name those that are not current; exit code 1 if there are any
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from pathlib import Path

import click

from endstate_action import errors, run
from endstate_action.agent.providers import scripted
from endstate_action.cli import EXIT_CODES, cli
from endstate_action.messages import Usage
from endstate_action.state import records, session

REFERENCE = Path(__file__).parent / "reference"
SOURCE = Path(errors.__file__).parent
WIDTH = 100
NOTE = "<!-- Generated from the code by `make docs`; edit docs/generate.py instead. -->"

OUTPUTS = {
    "conclusion": "`success` or `stopped`; of a failure `interrupted`, `mismatch`, `superseded` or `failed`",
    "reason": "why it stopped; empty on success, or `finished before` where there was nothing to do",
    "session-id": "12 hex digits",
    "attempt": "number of process lifetimes of this session so far",
    "resumed": "whether this was not the first",
    "restored-from": "where the session came from, if not from this machine",
    "durability": "`local`: recorded on this machine's disk",
    "sandbox": "`none`: shell calls run as this user",
    "base-tree": "git tree of HEAD when the session began; null in a plain directory",
    "restored-tree-hash": "the workspace after it was brought here",
    "tree-hash": "the workspace at the end: [tree hash](tree-hash.md)",
    "published-tree-hash": "the tree that a commit of this result would have",
    "git-tree": "the same as a git tree id",
    "final-message": "what the agent said last; empty unless it succeeded",
    "evidence-file": "a report for programs",
    "patch-file": "the changes as a patch",
    "changed-files": "paths that differ from when the task began; null where that is not known",
    "commit-sha": "abbreviated id of the newest commit made by `git_commit`; null without one",
    "branch": "the branch that was pushed",
    "comment-url": "the comment with the result",
    "steps": "replies of the model for this task, over all attempts",
    "input-tokens": "tokens sent for this task, cached ones included",
    "output-tokens": "tokens received for this task",
    "cost-usd": "US dollars of this task over all attempts, as text; null where a price is unknown",
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
| `HTTPS_PROXY` `HTTP_PROXY` `ALL_PROXY` `NO_PROXY` | the way to the provider; lower case works too |
| `SSL_CERT_FILE` `SSL_CERT_DIR` | whom to trust on the way |
| `ENDSTATE_TRACEBACK` | `1` shows the traceback of an internal error (exit code 3) |

The processes that the agent starts never see a credential of ours.
They get an allow-list of harmless variables, and those that `env` in the configuration names.
"""

EXIT = """\
# Exit codes

One table for every command.
With `--json`, a failure prints an object too: `conclusion`, `error`, `hint`, `exit-code`, where an attempt had begun \
`session-id` and `attempt`, and for a mismatch `differences`.

{table}

The library raises the same errors:

```text
{tree}
```
"""

JSON = """\
# Outputs

What `endstate run --json` prints, one object on one line.
The names are fixed; those that this release has nothing for are null.

{table}
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
| `sessions/` | one file a session, with SQLite's own beside it while it is open |
| `baseline/` | names and digests of the workspace when a task began, for `changed-files` |
| `cache/` | what makes a repeated scan fast; may be deleted |
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
    return EXIT.format(table=_table(("code", "meaning", "errors"), rows), tree=_dedent(tree))


def _code(value: object) -> int | None:
    is_error = isinstance(value, type) and issubclass(value, errors.EndstateError)
    return value.exit_code if is_error and value is not errors.EndstateError else None  # type: ignore[attr-defined]


def _raised() -> set[str]:
    """Names of the classes that the package makes an instance of, or chooses for one."""
    text = "\n".join(path.read_text() for path in SOURCE.rglob("*.py") if path.name != "errors.py")
    return set(re.findall(r"(?:raise|return|else|=) ([A-Z]\w+)", text))


def outputs_page() -> str:
    rows = [(f"`{name}`", OUTPUTS[name] + (" (null in this release)" if empty else "")) for name, empty in _outputs()]
    return JSON.format(table=_table(("name", "meaning"), rows))


def _outputs() -> Iterator[tuple[str, bool]]:
    """The outputs' names, and whether the code has nothing but None for them."""
    tree = ast.parse(inspect.getsource(run.outputs))
    (made,) = [n.value for n in ast.walk(tree) if isinstance(n, ast.Return) and isinstance(n.value, ast.Dict)]
    for key, value in zip(made.keys, made.values, strict=True):
        if isinstance(key, ast.Constant):
            yield str(key.value), isinstance(value, ast.Constant) and value.value is None


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
        usage=", ".join(f"`{f.name}`" for f in fields(Usage)),
        table=_table(("kind", "what it records", "body"), rows),
    )


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
    "cli.md": cli_page,
    "exit-codes.md": exit_codes_page,
    "outputs.md": outputs_page,
    "script-format.md": script_format_page,
    "state-format.md": state_format_page,
}


def pages() -> dict[Path, str]:
    """Every generated page, by its file."""
    return {REFERENCE / name: f"{NOTE}\n{make().rstrip()}\n" for name, make in MAKERS.items()}


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
