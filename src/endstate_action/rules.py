"""What a project tells its agents: configuration and instructions, read only from where they may be read."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from endstate_action.agent.loop import DEFAULT_SYSTEM
from endstate_action.config import Config, Settings, find_config, find_instructions
from endstate_action.errors import InputError
from endstate_action.system.files import PathRefused, Workspace
from endstate_action.system.names import display, short


@dataclass(frozen=True, slots=True)
class Rules:
    """Where a run's rules are looked for.

    Args:
        notice: told, in a sentence, what the run goes on without.
        read: a file as the trusted commit has it; the work tree's when left out.
    """

    settings: Settings
    workspace: Path
    notice: Callable[[str], None]
    read: Callable[[str], bytes | None] | None = None

    def find(self) -> tuple[Config, str]:
        """The configuration, and the system prompt with the instructions in it.

        Raises:
            InputError: what was named is not there, cannot be read, or is not valid. Nothing was run.
        """
        config = find_config(self.settings.config_file, self._read)
        chosen = self.settings.instructions or config.instructions or "auto"
        instructions = find_instructions(chosen, self._read_usual if chosen == "auto" else self._read)
        system = DEFAULT_SYSTEM
        if instructions is not None:
            system += f"\n\nInstructions of this repository, from {instructions.origin}:\n\n{instructions.text}"
        return config, system

    def _read(self, name: str) -> bytes | None:
        if self.read is not None:
            return self.read(name)
        is_chosen = name in (self.settings.config_file, self.settings.instructions)
        try:
            if is_chosen and not _is_below(self.workspace, os.path.normpath(self.workspace / name)):
                return Path(self.workspace / name).read_bytes()  # a person has named it, outside
            return self._read_below(name)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise InputError(
                f"{name} cannot be read ({error.strerror}); nothing was run.", hint="Correct the name."
            ) from error

    def _read_below(self, name: str) -> bytes:
        """Through links as long as they stay in the workspace: what came with a repository must not read elsewhere."""
        real = os.path.realpath(self.workspace / name)
        if not _is_below(self.workspace, real):
            raise NoRules(
                f"{name} leads out of the workspace, to {short(real)}, so it was not read. Nothing was run.",
                hint="Put a file in the place of the link, or name another one.",
            )
        if not os.path.lexists(real) and os.path.islink(self.workspace / name):
            raise NoRules(
                f"{name} is a link that leads nowhere, so it was not read. Nothing was run.",
                hint="Put a file in the place of the link, or name another one.",
            )
        os.lstat(real)
        workspace = Workspace(self.workspace, hidden=(self.settings.state_dir,))
        try:
            with workspace.open(display(os.fsencode(os.path.relpath(real, self.workspace)))) as file:
                return file.read()
        except PathRefused as error:
            raise InputError(f"{name} cannot be read: {error} Nothing was run.", hint="Correct the name.") from error

    def _read_usual(self, name: str) -> bytes | None:
        """A file that nobody has named: without it the run goes on."""
        try:
            return self._read(name)
        except NoRules as error:
            self.notice(str(error).replace("Nothing was run.", "The run goes on without it."))
            return None


class NoRules(InputError):
    """What has the name of a file with rules is none that may be read."""


def _is_below(workspace: Path, path: str) -> bool:
    return Path(path).is_relative_to(workspace)
