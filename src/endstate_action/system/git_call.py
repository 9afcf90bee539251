"""How git is called: an environment made from nothing, and no program, protocol or prompt that git could start.

A caller chooses the git directory. Whatever configuration it holds, these calls run no hook, file system
monitor, pager, signing program or transport. A *filter* cannot be switched off by name, so no command that
reads work-tree files may see a git directory that somebody else can write to; `git` keeps to that.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from endstate_action.system.process import Completed, capture

TIMEOUT_S = 120.0
"""A single git command that takes longer is ended."""

_PASSED_ON = ("PATH", "HOME", "XDG_CONFIG_HOME", "TMPDIR")
_QUIET = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_LITERAL_PATHSPECS": "1",
    "LC_ALL": "C",
}
_CLOSED = {
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ATTR_NOSYSTEM": "1",
}
_OVERRIDES = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.pager": "cat",
    "commit.gpgSign": "false",
    "log.showSignature": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "protocol.allow": "never",
}
# What the user and the project decide about names and line ends. None of these can name a program.
_HONOURED = (
    *("core.autocrlf", "core.eol", "core.safecrlf", "core.excludesfile", "core.attributesfile"),
    *("core.filemode", "core.symlinks", "core.ignorecase", "core.precomposeunicode"),
    *("core.protectntfs", "core.protecthfs"),
)

_READING = frozenset({
    *("cat-file", "check-attr", "check-ignore", "config", "for-each-ref", "ls-files", "ls-tree"),
    *("rev-list", "rev-parse"),
})  # fmt: skip
"""Commands that, as they are called here, only read."""


class GitError(Exception):
    """Git could not do it, or must not; the text says why, in full sentences."""


class UntrustedConfig(GitError):
    """Configuration, hooks or links of the git directory are not those that the session began with."""


class HeadMoved(GitError):
    """HEAD is no longer the commit that the new one was to follow."""


class Doubtful(GitError):
    """Publishing failed, and nobody can tell whether it took place."""


class LeftLocked(GitError):
    """A lock file that is not provably ours stands in the way."""


@dataclass(frozen=True, slots=True)
class Git:
    """One way to call git: the program, where it works, and all that it gets to see."""

    program: str
    root: Path
    env: Mapping[str, str]

    @classmethod
    def for_user(cls, root: Path, git_dir: Path, env: Mapping[str, str]) -> Git | None:
        """Sees the user's whole configuration: for listing it, nothing else. None without a git program."""
        path = _search_path(env.get("PATH", os.defpath), root)
        program = shutil.which("git", path=path)
        passed_on = {key: value for key, value in env.items() if key in _PASSED_ON} | {"PATH": path}
        # A named git directory is also what keeps "dubious ownership" from stopping us.
        places = {"GIT_DIR": str(git_dir), "GIT_WORK_TREE": str(root)}
        return cls(program, root, passed_on | _QUIET | places) if program else None

    def settings(self, *where: str) -> dict[str, str]:
        """The last value of each configured key, keys in lower case; of the place in `where`, in git's words."""
        pairs = (item.partition(b"\n") for item in split(self.out("config", *where, "--list", "-z", "--includes")))
        # A key that stands alone is a switch, and on.
        return {text(key): text(value) if separator else "true" for key, separator, value in pairs}

    def closed(self, settings: Mapping[str, str], fsync: str) -> Git:
        """Sees of all configuration only what `settings` say about names and line ends, and can start nothing.

        Args:
            fsync: what is on disk when a command has ended, in the words of git's `core.fsync`.
        """
        honoured = {key: settings[key] for key in _HONOURED if key in settings}
        overrides = _OVERRIDES | {"safe.directory": str(self.root), "core.fsync": fsync} | honoured
        return self.with_env(_CLOSED | _as_environment(overrides))

    def with_env(self, more: Mapping[str, str]) -> Git:
        return Git(self.program, self.root, {**self.env, **more})

    def out(self, *args: str, given: bytes | None = None) -> bytes:
        """What git wrote. Raises `GitError` in git's own words unless it ended with 0."""
        done = self._call(args, given)
        if done.returncode != 0:
            raise _failure(args[0], done)
        return done.stdout

    def line(self, *args: str, given: bytes | None = None) -> str:
        """`out` as text, without its last line end."""
        return text(self.out(*args, given=given)).removesuffix("\n")

    def ask(self, *args: str, given: bytes | None = None) -> bytes | None:
        """`out`, or None where git answers "no" (it ends with 1)."""
        done = self._call(args, given)
        if done.returncode not in (0, 1):
            raise _failure(args[0], done)
        return done.stdout if done.returncode == 0 else None

    def _call(self, args: tuple[str, ...], given: bytes | None) -> Completed:
        try:
            return capture(
                [self.program, *args],
                cwd=self.root,
                env=self.env,
                input=given,
                timeout_s=TIMEOUT_S,
                may_outlive_us=only_reads(args),
            )
        except OSError as error:
            raise GitError(f"git {args[0]} did not work: {error}") from error


def only_reads(args: Sequence[str]) -> bool:
    """Whether such a command of ours changes nothing."""
    words = iter(args)
    for word in words:
        if word not in ("-c", "-C"):
            return word in _READING
        next(words, None)
    return False


def text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def split(listed: bytes) -> list[bytes]:
    """The items of git's `-z` output."""
    return [item for item in listed.split(b"\0") if item]


def join(items: Iterable[bytes]) -> bytes:
    """Items as git's `-z --stdin` wants them."""
    return b"".join(item + b"\0" for item in items)


def common_dir(git_dir: Path) -> Path:
    """What all work trees of a repository share, objects among it; as git lays it out where no file says so."""
    with suppress(OSError):
        return git_dir / os.fsdecode((git_dir / "commondir").read_bytes().rstrip(b"\n"))
    return git_dir.parent.parent if git_dir.parent.name == "worktrees" else git_dir


def _search_path(path: str, root: Path) -> str:
    """Without what a repository could supply: relative entries, and folders of the work tree."""
    return os.pathsep.join(
        entry
        for entry in path.split(os.pathsep)
        if Path(entry).is_absolute() and not Path(entry).resolve().is_relative_to(root.resolve())
    )


def _as_environment(settings: Mapping[str, str]) -> dict[str, str]:
    pairs = {
        f"GIT_CONFIG_{part}_{n}": word
        for n, setting in enumerate(settings.items())
        for part, word in zip(("KEY", "VALUE"), setting, strict=True)
    }
    return pairs | {"GIT_CONFIG_COUNT": str(len(settings))}


def _failure(command: str, done: Completed) -> GitError:
    said = done.stderr.decode("utf-8", "replace").strip()
    return GitError(f"git {command} did not work: {said or f'it ended with {done.returncode}.'}")
