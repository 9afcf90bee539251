"""Secrets stay with us: out of every process that a call starts, and out of our own environment.

A deny-list of variables always misses one, so calls see an allow-list. What a process was started
with stays readable in `/proc` whatever it unsets, so we start anew without it.
"""

from __future__ import annotations

import json
import os
import re
import site
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from endstate_action.errors import InputError
from endstate_action.system.proctable import TAG_VARIABLE
from endstate_action.system.redaction import MIN_CHARS, Secrets

__all__ = ["Secrets", "call_environment", "reexecute_clean", "split_environment", "take_sealed"]

# What this product takes credentials from, whatever the values look like.
OWN_CREDENTIALS = frozenset(
    {
        "ANTHROPIC_API_KEY",
        "ANTHROPIC_AUTH_TOKEN",
        "GITHUB_TOKEN",
        "GH_TOKEN",
        "ACTIONS_RUNTIME_TOKEN",
        "ACTIONS_ID_TOKEN_REQUEST_TOKEN",
        "ENDSTATE_STATE_KEY",
        "INPUT_ANTHROPIC_API_KEY",
        "INPUT_GITHUB_TOKEN",
        "INPUT_STATE_KEY",
    }
)
_CREDENTIAL = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|API_?KEY|(?:^|_)(?:KEYS?|PASS|PWD|CREDS?|AUTH|PAT|PRIVATE|JWT)(?:_|$)"
)
_NO_CREDENTIAL = re.compile(r"^(?:OLD)?PWD$|_(?:PATH|FILE|DIR|SOCK)$")
_PLAIN_WORD = re.compile(r"[a-z]{1,11}")

_ALLOWED = frozenset(
    {
        # The user and the place.
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "CI"),
        # Where toolchains that workflow steps have set up are found.
        *("LD_LIBRARY_PATH", "PKG_CONFIG_PATH", "CMAKE_PREFIX_PATH", "CC", "CXX"),
        *("VIRTUAL_ENV", "CONDA_PREFIX", "PYENV_ROOT", "pythonLocation", "UV_PYTHON_INSTALL_DIR"),
        *("NVM_DIR", "NVM_BIN", "NODE_PATH", "PNPM_HOME", "VOLTA_HOME", "BUN_INSTALL", "DENO_DIR"),
        *("GOROOT", "GOPATH", "GOCACHE", "GOMODCACHE", "GOTOOLCHAIN", "CARGO_HOME", "RUSTUP_HOME", "RUSTUP_TOOLCHAIN"),
        *("JAVA_HOME", "M2_HOME", "MAVEN_HOME", "GRADLE_HOME", "GRADLE_USER_HOME", "SDKMAN_DIR", "KOTLIN_HOME"),
        *("ANDROID_HOME", "ANDROID_SDK_ROOT", "ANDROID_NDK_HOME", "DOTNET_ROOT", "NUGET_PACKAGES"),
        *(
            "GEM_HOME",
            "GEM_PATH",
            "BUNDLE_PATH",
            "RBENV_ROOT",
            "COMPOSER_HOME",
            "SWIFT_PATH",
            "ASDF_DIR",
            "MISE_DATA_DIR",
        ),
        # Whom to trust on the network.
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    }
)
_ALLOWED_PREFIXES = ("LC_", "JAVA_HOME_", "GOROOT_")
# Nobody is there to answer a prompt or to leave a pager.
_FIXED = {"TERM": "dumb", "PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0"}


# What our own interpreter needs: to start, to speak and to know whom to trust.
_KEPT = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "CI"),
        *("TERM", "COLUMNS", "NO_COLOR", "FORCE_COLOR", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR"),
        "ENDSTATE_TRACEBACK",
    }
)
_SEALED = "ENDSTATE_SEALED_FD"
_LOAD_FROM_SOURCE = """
import importlib.util, os, runpy, sys
folder = sys.argv.pop(1)
name = os.path.basename(folder)
spec = importlib.util.spec_from_file_location(name, folder + "/__init__.py", submodule_search_locations=[folder])
sys.modules[name] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
runpy.run_module(name, run_name="__main__", alter_sys=True)
"""


def split_environment(environ: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The variables that hold no credential, and the values to hide.

    A credential is what this product uses as one, or what is named like one (KEY, TOKEN, PASSWORD ...).
    It is in neither part when hiding its value would hide more than it protects: under 8 characters,
    or, not being ours, a plain lower-case word of under 12 letters (`POSTGRES_PASSWORD=postgres`).
    """
    credentials = {name for name in environ if _is_credential(name)}
    harmless = {name: value for name, value in environ.items() if name not in credentials}
    return harmless, {name: environ[name] for name in credentials if _is_worth_hiding(name, environ[name])}


def call_environment(environ: Mapping[str, str], *, extra_names: Iterable[str] = (), tag: str = "") -> dict[str, str]:
    """What calls may see of our original environment: the allow-list and what the configuration names.

    A variable of the list is left out when its value holds any secret; one that the configuration
    names (it may be a credential that the project's tests need) only when it is or holds one of ours.
    """
    _, hidden = split_environment(environ)
    ours = {name: value for name, value in hidden.items() if _is_ours(name)}
    seen = _without(
        Secrets(hidden), {n: v for n, v in environ.items() if n in _ALLOWED or n.startswith(_ALLOWED_PREFIXES)}
    )
    named = {n: environ[n] for n in extra_names if n in environ and not _is_ours(n)}
    defaults = {} if {"LANG", "LC_ALL", "LC_CTYPE"} & seen.keys() else {"LANG": "C.UTF-8"}
    return defaults | seen | _without(Secrets(ours), named) | _FIXED | {TAG_VARIABLE: tag}


def reexecute_clean(environ: Mapping[str, str], argv: Sequence[str]) -> NoReturn:
    """Become `endstate ARGV` in a new interpreter whose environment holds no secret.

    `environ` travels through a descriptor without a name, for `take_sealed`: never as variables,
    arguments or a file. The interpreter is isolated: `PYTHON*`, the working directory and what lies
    in it (`sitecustomize.py`, a folder named like an SDK) have no say in what it imports.

    Raises:
        InputError: this system's pipes are too small for the environment.
    """
    harmless, hidden = split_environment(environ)
    kept = {n: v for n, v in harmless.items() if n in _KEPT or n.startswith("LC_")}
    sealed = _seal(json.dumps(dict(environ)).encode())
    env = _without(Secrets(hidden), kept) | {_SEALED: str(sealed)}
    try:
        os.execve(sys.executable, [sys.executable, *_isolated(Path(__file__).parents[1]), *argv], env)  # noqa: S606
    except OSError as error:
        raise InputError(
            f"{sys.executable} cannot be started again without secrets ({error.strerror}). Nothing was run.",
            hint="Install endstate with a Python that this user may execute.",
        ) from error


def take_sealed(environ: Mapping[str, str]) -> dict[str, str] | None:
    """The original environment, where `reexecute_clean` has passed it on; else None. Can be taken once.

    Raises:
        InputError: the descriptor is not there or holds something else.
    """
    number = environ.get(_SEALED)
    if number is None:
        return None
    try:
        with open(_descriptor(number), "rb") as file:
            given = json.loads(file.read())
        return {name: value for name, value in given.items() if isinstance(value, str)}
    except (OSError, ValueError, AttributeError) as error:
        raise InputError(
            f"The environment could not be taken over from the process before ({error}). Nothing was run.",
            hint=f"Unset {_SEALED}, which is set by endstate itself and by nobody else.",
        ) from error


def _descriptor(number: str) -> int:
    descriptor = int(number)
    if descriptor <= 2:
        raise ValueError(f"{descriptor} is a standard stream")
    return descriptor


def _seal(data: bytes) -> int:
    """A descriptor to read the data from, which the next program inherits; it goes with its last reader."""
    if hasattr(os, "memfd_create"):
        memory = os.memfd_create("endstate", 0)
        with open(memory, "wb", closefd=False) as file:
            file.write(data)
        os.lseek(memory, 0, os.SEEK_SET)
        return memory
    return _seal_in_pipe(data)


def _seal_in_pipe(data: bytes) -> int:
    reader, writer = os.pipe()
    os.set_inheritable(reader, True)
    os.set_blocking(writer, False)
    with open(writer, "wb", buffering=0) as file:
        # Nobody reads yet, so what the pipe does not take at once it would never take.
        if file.write(data) != len(data):
            raise InputError(
                f"The environment ({len(data)} bytes) is too large to be passed on privately. Nothing was run.",
                hint="Unset variables that this run does not need.",
            )
    return reader


def _isolated(package: Path) -> list[str]:
    """Interpreter arguments that run this very package, isolated from all but the installed ones."""
    home = os.path.realpath(package.parent)
    if home in map(os.path.realpath, site.getsitepackages()):
        return ["-I", "-m", package.name]
    if home == os.path.realpath(site.getusersitepackages()):
        return ["-E", "-P", "-m", package.name]
    # A source tree, which isolation would not find. Its folder is not put on the path: what lies
    # beside the package must not be importable.
    return ["-I", "-c", _LOAD_FROM_SOURCE, str(package)]


def _without(secrets: Secrets, variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if not secrets.contains(value)}


def _is_credential(name: str) -> bool:
    plain = _plain(name)
    return _is_ours(name) or (_CREDENTIAL.search(plain) is not None and _NO_CREDENTIAL.search(plain) is None)


def _is_ours(name: str) -> bool:
    return _plain(name) in OWN_CREDENTIALS


def _is_worth_hiding(name: str, value: str) -> bool:
    return len(value.strip()) >= MIN_CHARS and (_is_ours(name) or _PLAIN_WORD.fullmatch(value.strip()) is None)


def _plain(name: str) -> str:
    """The platform keeps the dashes of an input's name, other tools write underscores."""
    return name.upper().replace("-", "_").replace(" ", "_")
