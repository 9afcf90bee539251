"""Everything a person can set, parsed at the door: what comes out is valid, what is not never starts a run.

Importing this package costs nothing: yaml and pydantic are loaded by `parse_config` alone, when
there is a file to read.
"""

from __future__ import annotations

from endstate_action.config.instructions import Instructions, find_instructions
from endstate_action.config.reveal import reveal
from endstate_action.config.settings import (
    Limits,
    ProviderName,
    SandboxChoice,
    Settings,
    parse_base_url,
    parse_boolean,
    parse_choice,
    parse_int,
    parse_model,
    parse_money,
    parse_prompt,
    parse_repository_path,
    parse_settings,
    parse_state_dir,
)
from endstate_action.config.text import Read
from endstate_action.config.values import (
    ANSWER_TOKENS,
    CONFIG_FILE,
    DEFAULT_CONFIG,
    TOOLS,
    Config,
    ContextLimits,
    ModelPrice,
    PolicyRules,
    Rule,
    SnapshotLimits,
)
from endstate_action.errors import InputError

__all__ = [
    "ANSWER_TOKENS",
    "CONFIG_FILE",
    "DEFAULT_CONFIG",
    "TOOLS",
    "Config",
    "ContextLimits",
    "Instructions",
    "Limits",
    "ModelPrice",
    "PolicyRules",
    "ProviderName",
    "Read",
    "Rule",
    "SandboxChoice",
    "Settings",
    "SnapshotLimits",
    "find_config",
    "find_instructions",
    "parse_base_url",
    "parse_boolean",
    "parse_choice",
    "parse_config",
    "parse_int",
    "parse_model",
    "parse_money",
    "parse_prompt",
    "parse_repository_path",
    "parse_settings",
    "parse_state_dir",
    "reveal",
]

_MISTAKEN_FILE = ".github/endstate.yaml"


def parse_config(text: str | bytes, origin: str) -> Config:
    """The configuration that a YAML file states; what it leaves out keeps its default.

    `origin` is how messages name the file.

    Raises:
        InputError: naming the file and, for every problem, its line, its key and what is allowed.
    """
    from endstate_action.config.file import parse_file

    return parse_file(text, origin)


def find_config(choice: str | None, read: Read) -> Config:
    """Read the file that `choice` names; without a choice the usual one, which may be missing.

    Raises:
        InputError: the file that was named does not exist, or cannot be used.
    """
    found = read(choice or CONFIG_FILE)
    if found is not None:
        return parse_config(found, choice or CONFIG_FILE)
    if choice is None and read(_MISTAKEN_FILE) is not None:
        raise InputError(
            f"{_MISTAKEN_FILE} is not read: the configuration is called {CONFIG_FILE}. Nothing was started.",
            hint=f"Rename it, or name it with config-file: {_MISTAKEN_FILE}.",
        )
    if choice is None:
        return DEFAULT_CONFIG
    raise InputError(
        f"config-file: {choice} does not exist, so nothing was started.",
        hint=f"Correct the name, or leave config-file out: {CONFIG_FILE} is used where it exists.",
    )
