"""The inputs of one run, as values: an input that cannot be used fails here, before anything is spent.

Names are those of the action's inputs; on the command line each is an option of the same name.
Text comes in, since that is what both a shell and a workflow can give.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Literal, TypeVar, get_args

from endstate_action.config.text import Read, decoded, listed, quoted, suggestion
from endstate_action.errors import InputError
from endstate_action.messages import is_blank

ProviderName = Literal["anthropic", "scripted"]
OnMismatch = Literal["refuse", "continue", "restart"]
SandboxChoice = Literal["auto", "required", "off"]
_Choice = TypeVar("_Choice", bound=str)

PROMPT_MAX_BYTES = 120 * 1024
_NAME_MAX_BYTES = 255
INPUTS = (
    "prompt",
    "prompt-file",
    "provider",
    "model",
    "base-url",
    "working-directory",
    "state-dir",
    "instructions",
    "config-file",
    "resume",
    "on-mismatch",
    "max-steps",
    "max-cost-usd",
    "max-resumes",
    "max-minutes",
    "sandbox",
    "network",
    "store",
    "require-durable",
)

_KEPT = ("base-url", "sandbox", "network", "store", "require-durable")

_INT = re.compile(r"[0-9]{1,9}")
_MONEY = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?")
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,199}")
# A host without user name and password: those would end up in logs and in the session.
_URL = re.compile(r"https?://[^\s/?#@\\]+(/[^\s?#\\]*)?")


@dataclass(frozen=True, slots=True)
class Limits:
    """Where a run stops short. All but the minutes add up over the attempts of a task."""

    max_steps: int = 200
    max_cost_usd: Decimal | None = Decimal("5.00")
    max_resumes: int = 5
    max_minutes: float = 90
    cost_is_set_by_user: bool = False
    """Then a model without a known price is an error, and one that answers ends the run; under the default cap it is
    only noted.
    """

    def to_json(self) -> dict[str, Any]:
        """Plain JSON under the names of the inputs, for the record of an attempt."""
        return {
            "max-steps": self.max_steps,
            "max-cost-usd": None if self.max_cost_usd is None else str(self.max_cost_usd),
            "max-resumes": self.max_resumes,
            "max-minutes": self.max_minutes,
        }


@dataclass(frozen=True, slots=True)
class Settings:
    """What one run was asked to do. `prompt` is None only where a resume finishes what was begun."""

    prompt: str | None = None
    provider: ProviderName | None = None
    """None: the session's; for a new one, anthropic."""
    model: str | None = None
    base_url: str | None = None
    working_directory: str = "."
    state_dir: str = ".endstate"
    instructions: str | None = None
    """`auto`, `none` or a path; None leaves it to the configuration file, and then to `auto`."""
    config_file: str | None = None
    resume: bool = False
    on_mismatch: OnMismatch = "refuse"
    limits: Limits = Limits()
    sandbox: SandboxChoice = "auto"
    network: bool = False
    """Whether shell calls in the sandbox may use the network."""
    store: str = "auto"
    """Where checkpoints go, as given; `state.stores.choice` knows what it can be."""
    require_durable: bool = False
    """Whether a run whose checkpoints cannot leave the machine is an error."""
    given: Mapping[str, str] = field(default_factory=dict)
    """What was given of that which holds for later attempts as well: on whose terms a session is gone on with."""

    def on_terms(self, terms: Mapping[str, str]) -> Settings:
        """With what an earlier attempt was given, where this one was not. Raises: InputError: it cannot be used."""
        if self.given.get("store") == "none":
            terms = {name: text for name, text in terms.items() if name != "require-durable"}
        return self._with({**terms, **self.given})

    def _with(self, given: Mapping[str, str]) -> Settings:
        return replace(
            self,
            base_url=parse_base_url("base-url", given["base-url"]) if "base-url" in given else None,
            sandbox=parse_choice("sandbox", given.get("sandbox", "auto"), get_args(SandboxChoice)),
            network=parse_boolean("network", given.get("network", "false")),
            store=given.get("store", "auto"),
            require_durable=parse_boolean("require-durable", given.get("require-durable", "false")),
            given={name: given[name] for name in _KEPT if name in given},
        )


def parse_settings(inputs: Mapping[str, str], read: Read) -> Settings:
    """Settings from inputs by name. An input that is missing or `""` was not given and takes its default.

    Raises:
        InputError: naming the input, what was given and what is allowed.
    """
    given = {name: text for name, text in inputs.items() if text != ""}
    _refuse_unknown(given)
    resume = parse_boolean("resume", given.get("resume", "false"))
    settings = Settings(
        prompt=_prompt(given.get("prompt"), given.get("prompt-file"), read, required=not resume),
        provider=parse_choice("provider", given["provider"], get_args(ProviderName)) if "provider" in given else None,
        model=parse_model("model", given["model"]) if "model" in given else None,
        working_directory=_parse_path("working-directory", given.get("working-directory", ".")),
        state_dir=parse_state_dir("state-dir", given.get("state-dir", ".endstate")),
        instructions=_parse_path("instructions", given["instructions"]) if "instructions" in given else None,
        config_file=_parse_path("config-file", given["config-file"]) if "config-file" in given else None,
        resume=resume,
        on_mismatch=parse_choice("on-mismatch", given.get("on-mismatch", "refuse"), get_args(OnMismatch)),
        limits=_limits(given),
    )
    return settings._with(given)  # noqa: SLF001  its own module


def _limits(given: Mapping[str, str]) -> Limits:
    return Limits(
        max_steps=parse_int("max-steps", given.get("max-steps", "200")),
        max_cost_usd=parse_money("max-cost-usd", given.get("max-cost-usd", "5.00")),
        max_resumes=parse_int("max-resumes", given.get("max-resumes", "5"), least=0),
        max_minutes=parse_int("max-minutes", given.get("max-minutes", "90")),
        cost_is_set_by_user="max-cost-usd" in given,
    )


def _refuse_unknown(given: Mapping[str, str]) -> None:
    for name in given:
        if name not in INPUTS:
            raise InputError(
                f"{quoted(name)} is not an input, so nothing was started{suggestion(name, INPUTS)}",
                hint=f"Inputs are: {listed(INPUTS)}.",
            )


def _refused(name: str, given: str, allowed: str, near: str = "") -> InputError:
    return InputError(
        f"{name}: {quoted(given)} cannot be used, so nothing was started{near or '.'}",
        hint=f"{name} must be {allowed}.",
    )


def parse_int(name: str, text: str, *, least: int = 1) -> int:
    """A whole number of at least `least`, in plain digits."""
    if not _INT.fullmatch(text) or int(text) < least:
        raise _refused(name, text, f"a whole number from {least} to 999999999")
    return int(text)


def parse_money(name: str, text: str) -> Decimal:
    """US dollars, more than 0, exact."""
    if not _MONEY.fullmatch(text) or Decimal(text) == 0:
        raise _refused(name, text, "an amount in US dollars above 0, such as 2.50")
    return Decimal(text)


def parse_choice(name: str, text: str, allowed: tuple[_Choice, ...]) -> _Choice:
    for choice in allowed:
        if text == choice:
            return choice
    raise _refused(name, text, f"one of {listed(allowed)}", suggestion(text, allowed))


def parse_boolean(name: str, text: str) -> bool:
    """`true` or `false`, nothing else: `no` and `0` mean different things to different people."""
    return parse_choice(name, text, ("true", "false")) == "true"


def parse_model(name: str, text: str) -> str:
    if not _MODEL.fullmatch(text):
        raise _refused(name, text, "a model's id: letters, digits and . _ : / @ -")
    return text


def parse_base_url(name: str, text: str) -> str:
    """An http or https address. What was given is not repeated in the message: it may hold a password."""
    if not _URL.fullmatch(text) or not text.isprintable():
        raise InputError(
            f"{name}: this address cannot be used, so nothing was started.",
            hint=f"{name} must begin with https:// or http:// and hold no user name, query or fragment.",
        )
    return text


def parse_state_dir(name: str, text: str) -> str:
    """A path inside the workspace, normalised: a rename into the workspace needs the same mount."""
    parts = [part for part in text.split("/") if part not in ("", ".")]
    outside = text.startswith("/") or ".." in parts or "\0" in text
    too_long = any(len(part.encode(errors="surrogateescape")) > _NAME_MAX_BYTES for part in parts)
    if outside or too_long or not parts or any(part.lower() == ".git" for part in parts):
        raise _refused(name, text, "a path inside the workspace, relative to it, and not in .git")
    return "/".join(parts)


def parse_repository_path(name: str, text: str) -> str:
    """What a commit can have: a path below the workspace, not one of the machine."""
    if text.startswith("/") or ".." in text.split("/") or "\0" in text:
        raise _refused(name, text, "a path inside the repository, relative to the workspace")
    return text


def _parse_path(name: str, text: str) -> str:
    if "\0" in text or not text.strip():
        raise _refused(name, text, "a path")
    return text


def _prompt(prompt: str | None, file: str | None, read: Read, *, required: bool) -> str | None:
    if prompt is not None and file is not None:
        raise InputError("prompt and prompt-file were both given, so nothing was started.", hint="Give one of them.")
    if prompt is not None:
        return parse_prompt(prompt, "prompt")
    if file is not None:
        return _prompt_from(file, read)
    if required:
        raise InputError(
            "There is no prompt, so nothing was started.",
            hint='Say what is to be done: `endstate run "Fix the failing test"`, or --prompt-file FILE; '
            "without a prompt, only `endstate run --resume` has something to do.",
        )
    return None


def _prompt_from(file: str, read: Read) -> str:
    found = read(file)
    if found is None:
        raise InputError(
            f"prompt-file: {quoted(file)} does not exist, so nothing was started.",
            hint="Correct the name, or give the prompt itself.",
        )
    return parse_prompt(found, f"prompt-file {quoted(file)}")


def parse_prompt(text: str | bytes, origin: str) -> str:
    """A prompt as it was given: not blank, strict UTF-8, at most 120 KiB.

    Raises:
        InputError: naming `origin`.
    """
    # Bytes of an argument that are not UTF-8 arrive as lone surrogates, which `decoded` then refuses.
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    if len(data) > PROMPT_MAX_BYTES:
        raise InputError(
            f"{origin} is {len(data):,} bytes long; at most {PROMPT_MAX_BYTES:,} are read, so nothing was started.",
            hint="Put the long part into a file of the workspace and name that file in the prompt.",
        )
    prompt = decoded(data, origin)
    if is_blank(prompt):
        raise InputError(f"{origin} is blank, so nothing was started.", hint="Say what is to be done.")
    return prompt
