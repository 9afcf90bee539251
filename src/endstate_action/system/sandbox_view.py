"""What a call sees of the machine: everything that ordinary test suites need, and no credential.

The file system is there, read-only. The places of credentials are covered, those for temporary
files are empty and the call's own, and what must be written outside the workspace goes there.
"""

from __future__ import annotations

import functools
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from endstate_action.system.process import User

PRIVATE = ("/tmp", "/var/tmp", "/run", "/var/run")  # noqa: S108
CACHES = "/tmp/.cache"  # noqa: S108

CREDENTIALS = (
    # Of cloud providers and their tools.
    *(".aws", ".azure", ".config/gcloud", ".oci", ".aliyun", ".bluemix", ".kube", ".terraform.d", ".terraformrc"),
    *(".config/doctl", ".fly", ".netlify", ".config/netlify", ".local/share/com.vercel.cli", ".s3cfg", ".boto"),
    *(".config/rclone", ".databrickscfg", ".snowflake", ".vault-token", ".config/pulumi", ".pulumi/credentials.json"),
    # Of machines and people.
    *(".ssh", ".gnupg", ".netrc", ".pgpass", ".my.cnf", ".mylogin.cnf", ".password-store", ".local/share/keyrings"),
    *(".config/op", ".config/age", ".config/sops", ".bash_history", ".zsh_history", ".python_history"),
    # Of code hosts and registries.
    *(".git-credentials", ".config/git/credentials", ".config/gh", ".config/hub", ".config/glab-cli", ".config/tea"),
    *(".docker/config.json", ".docker/run", ".docker/desktop", ".colima", ".config/containers/auth.json"),
    *(".npmrc", ".yarnrc", ".yarnrc.yml", ".config/configstore", ".pypirc", ".pip/pip.conf", ".config/pip/pip.conf"),
    *(".config/pypoetry/auth.toml", ".local/share/uv/credentials", ".cargo/credentials", ".cargo/credentials.toml"),
    *(
        ".m2/settings.xml",
        ".m2/settings-security.xml",
        ".gradle/gradle.properties",
        ".gem/credentials",
        ".bundle/config",
    ),
    *(".local/share/gem/credentials", ".nuget/NuGet/NuGet.Config", ".config/NuGet/NuGet.Config", ".composer/auth.json"),
    *(".config/composer/auth.json", ".huggingface", ".cache/huggingface/token", ".kaggle", ".sentryclirc"),
    # Of other agents.
    *(".anthropic", ".config/anthropic", ".claude", ".claude.json", ".codex", ".gemini", ".config/github-copilot"),
)
"""Below HOME. Each is empty for a call, whether it is a file or a directory."""
_MOVED = {
    ".config/": "XDG_CONFIG_HOME",
    ".local/share/": "XDG_DATA_HOME",
    ".cargo/": "CARGO_HOME",
    ".docker/": "DOCKER_CONFIG",
    ".gradle/": "GRADLE_USER_HOME",
    ".composer/": "COMPOSER_HOME",
}
# Variables that hold the path of something secret, by the ends of their names.
_NAMES_A_SECRET = re.compile(
    r"(?:CREDENTIALS?|CREDS|TOKEN|SECRET|PASSWORD|PASS|KEY)(?:_FILE|_PATH|_FILE_OVERRIDE)?$|"
    r"^(?:KUBECONFIG|NETRC|PGPASSFILE|GNUPGHOME|GH_CONFIG_DIR|CLOUDSDK_CONFIG|AWS_CONFIG_FILE|AZURE_CONFIG_DIR|"
    r"AWS_SHARED_CREDENTIALS_FILE|BOTO_CONFIG|TF_CLI_CONFIG_FILE|NPM_CONFIG_USERCONFIG|PIP_CONFIG_FILE|"
    r"DATABRICKS_CONFIG_FILE|GITHUB_(?:ENV|PATH|OUTPUT|STATE))$",
    re.IGNORECASE,
)
_RUNNER = (".credentials", ".credentials_rsaparams")
# What a program takes for a file of its own that says nothing.
_EMPTY = {".json": b"{}\n", ".xml": b"<settings/>\n", ".config": b"<configuration/>\n"}

# fmt: off
_WRITTEN = {
    "XDG_CACHE_HOME": "xdg", "PIP_CACHE_DIR": "pip", "UV_CACHE_DIR": "uv", "npm_config_cache": "npm",
    "YARN_CACHE_FOLDER": "yarn", "GOCACHE": "go-build", "GRADLE_USER_HOME": "gradle", "CCACHE_DIR": "ccache",
    "SCCACHE_DIR": "sccache", "DOTNET_CLI_HOME": "dotnet", "MPLCONFIGDIR": "matplotlib", "NUMBA_CACHE_DIR": "numba",
    "COMPOSER_CACHE_DIR": "composer", "XDG_STATE_HOME": "state",
}
# Their defaults follow variables of the table above, and what is in them is wanted.
_READ = {
    "PLAYWRIGHT_BROWSERS_PATH": ".cache/ms-playwright", "CYPRESS_CACHE_FOLDER": ".cache/Cypress",
    "PUPPETEER_CACHE_DIR": ".cache/puppeteer", "PRE_COMMIT_HOME": ".cache/pre-commit",
    "HF_HOME": ".cache/huggingface", "TORCH_HOME": ".cache/torch", "GRADLE_RO_DEP_CACHE": ".gradle/caches",
    "NUGET_PACKAGES": ".nuget/packages",
}
# fmt: on
_TOOLCHAINS = (
    *("VIRTUAL_ENV", "CONDA_PREFIX", "PYENV_ROOT", "pythonLocation", "NVM_DIR", "PNPM_HOME", "VOLTA_HOME"),
    *("GOROOT", "GOPATH", "GOMODCACHE", "CARGO_HOME", "RUSTUP_HOME", "JAVA_HOME", "M2_HOME", "MAVEN_HOME"),
    *("GRADLE_HOME", "ANDROID_HOME", "DOTNET_ROOT", "GEM_HOME", "BUN_INSTALL", "DENO_DIR", "NODE_PATH"),
)


class Kind(StrEnum):
    """What a call finds at a path."""

    DEVICES = "devices"
    PROCESSES = "processes"
    PRIVATE = "private"
    """An empty directory of its own."""
    HIDDEN = "hidden"
    """An empty directory that cannot be written."""
    READABLE = "readable"
    WRITABLE = "writable"
    CONTENT = "content"
    """A file that holds what we say, and cannot be written."""


@dataclass(frozen=True, slots=True)
class Mount:
    kind: Kind
    content: bytes = b""


Plan = dict[Path, Mount]
"""What is where. A path below another is mounted after it; everything else is the machine's, read-only."""


def machine(home: Path, runner_temp: Path | None) -> Plan:
    """The places that are never the machine's own."""
    plan = {Path("/dev"): Mount(Kind.DEVICES), Path("/proc"): Mount(Kind.PROCESSES)}
    # What a real root could change there is the whole machine's, and bubblewrap does not cover it for root.
    plan[Path("/proc/sys")] = Mount(Kind.READABLE)
    for place in (*map(Path, PRIVATE), *([runner_temp] if runner_temp else [])):
        if os.path.isdir(place):
            plan[Path(os.path.realpath(place))] = Mount(Kind.PRIVATE)
    if is_out_of_sight(home, plan) and home not in plan:
        plan[home] = Mount(Kind.READABLE)
    return plan


def toolchains(env: Mapping[str, str], plan: Plan, user: User | None) -> Plan:
    """What PATH and the variables of toolchains name, where a private place would hide it."""
    found = _directories(env.get("PATH", ""), tuple(env[name] for name in _TOOLCHAINS if env.get(name)))
    private = {path for path, mount in plan.items() if mount.kind is Kind.PRIVATE}
    hidden = (p for p in found if is_out_of_sight(p, plan) and not _holds(p, private))
    return {p: Mount(Kind.READABLE) for p in hidden if is_reachable(p, user)}


def credential_places(home: Path, workspace: Path, environ: Mapping[str, str]) -> dict[Path, str]:
    """Where credentials may be, each with the variable that names it, or none.

    Args:
        environ: our original environment, of which calls see a part.
    """
    runners = [home / "actions-runner", *workspace.parents, *_entries(home / "runners")]
    places = [home / name for name in CREDENTIALS] + [runner / name for runner in runners for name in _RUNNER]
    for start, variable in _MOVED.items():
        if environ.get(variable):
            names = (name.removeprefix(start) for name in CREDENTIALS if name.startswith(start))
            places += [Path(environ[variable]) / name for name in names]
    named = {Path(p): n for n, v in environ.items() if _NAMES_A_SECRET.search(n) for p in v.split(os.pathsep)}
    return {place: name for place, name in {**named, **dict.fromkeys(places, "")}.items() if place.is_absolute()}


def credentials(places: Mapping[Path, str], env: Mapping[str, str], user: User | None) -> Plan:
    """Empty files and directories in place of credentials; those that do not exist cost nothing.

    What a variable names that the call is to see, by the user's configuration, is left to it.
    """
    places = {place: name for place, name in places.items() if name not in env}
    found = (Path(os.path.realpath(place)) for place in places if os.path.exists(place))
    return {place: covered(place) for place in found if is_reachable(place, user)}


def covered(place: Path) -> Mount:
    """An empty something of the same sort."""
    return Mount(Kind.PRIVATE) if os.path.isdir(place) else Mount(Kind.CONTENT, _EMPTY.get(place.suffix.lower(), b""))


def environment(given: Mapping[str, str], home: Path, moment: float) -> dict[str, str]:
    """The variables of a call: those given, with places that can be written where one is needed.

    Args:
        moment: seconds since the epoch at which git believes to be, so that a repeated call makes
            commits with the same ids.
    """
    caches = {name: f"{CACHES}/{folder}" for name, folder in _WRITTEN.items()}
    kept = {
        name: str(home / place) for name, place in _READ.items() if name not in given and os.path.isdir(home / place)
    }
    date = f"@{int(moment)} +0000"
    dates = {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
    return {**given, **caches, **kept, **dates, "HOME": str(home), "TMPDIR": PRIVATE[0]}


def is_out_of_sight(path: Path, plan: Plan) -> bool:
    """Whether what the machine has at `path` is not there for a call."""
    above = next((plan[p] for p in (path, *path.parents) if p in plan), None)
    return above is not None and above.kind not in (Kind.READABLE, Kind.WRITABLE)


def is_reachable(path: Path, user: User | None) -> bool:
    """Whether the user of the calls comes as far as `path`: no further, nothing can or need be covered.

    For ourselves (None) the kernel has answered when the path was found.
    """
    return user is None or all(_allows(parent, user, stat.S_IXOTH) for parent in path.parents)


def is_readable(path: Path, user: User | None) -> bool:
    if user is None:
        return os.access(path, os.R_OK)
    return is_reachable(path, user) and _allows(path, user, stat.S_IROTH)


@functools.cache
def _directories(search_path: str, places: tuple[str, ...]) -> frozenset[Path]:
    """Looked up once: calls cannot add to what is outside their workspace."""
    named = list(map(Path, places))
    for entry in map(Path, search_path.split(os.pathsep)):
        # A program needs what was installed beside it.
        named += [entry.parent, entry] if entry.name == "bin" else [entry]
    return frozenset(Path(os.path.realpath(p)) for p in named if p.is_absolute() and os.path.isdir(p))


def _allows(path: Path, user: User, bit: int) -> bool:
    found = path.stat()
    if found.st_uid == user.uid:
        return bool(found.st_mode & bit << 6)
    return bool(found.st_mode & (bit << 3 if found.st_gid == user.gid else bit))


def _holds(path: Path, others: Iterable[Path]) -> bool:
    return any(other.is_relative_to(path) for other in others)


def _entries(folder: Path) -> Iterator[Path]:
    try:
        yield from list(folder.iterdir())
    except OSError:
        return
