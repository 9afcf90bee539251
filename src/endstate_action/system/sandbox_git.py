"""What a call sees of git's configuration: how the project works, and none of the credentials in it.

A checkout step leaves its token in `.git/config`, or names there a file that holds it. Calls get a
copy that was made from an allow-list of sections, without the user part of any URL.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from endstate_action.system.process import capture

_SECTIONS = frozenset(
    {
        *("core", "extensions", "user", "author", "committer", "init", "safe", "i18n", "filter", "lfs", "alias"),
        *("remote", "branch", "submodule", "fetch", "pull", "push", "transfer", "receive", "protocol"),
        *("merge", "mergetool", "rebase", "rerere", "diff", "difftool", "apply", "am", "checkout", "commit", "tag"),
        *("color", "column", "format", "grep", "log", "status", "advice", "blame", "clean", "stash", "worktree"),
        *("index", "feature", "gc", "maintenance", "pack", "repack", "sequence", "notes"),
    }
)
# Their keys are hidden too, so that a commit that wants a signature could not be made at all.
_UNUSABLE = frozenset({"commit.gpgsign", "tag.gpgsign", "push.gpgsign", "core.sshcommand", "core.askpass"})
_USER_OF_URL = re.compile(r"(?<=://)[^/@\s]*@")
_DEPTH = 2
_MODULES = 200
_MAX_BYTES = 1024 * 1024
_ENV = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "HOME": "/nonexistent", "LC_ALL": "C"}


def git_directory(workspace: Path) -> Path | None:
    """The workspace's own git directory where that lies inside it; then it is writable for calls."""
    place = workspace / ".git"
    return place if place.is_dir() and not place.is_symlink() else None


def named_directories(workspace: Path) -> list[Path]:
    """The git directories that a linked work tree belongs to, outside of it."""
    dot_git = workspace / ".git"
    if not dot_git.is_file():
        return []
    found = [Path(os.path.realpath(place)) for place in _git_directories(dot_git)]
    # Else a file that a call has written could name any directory.
    return [place for place in found if (place / "HEAD").is_file() and (place / "config").is_file()]


def configurations(workspace: Path, home: Path) -> list[Path]:
    """Every git configuration that a call is likely to come across, links resolved.

    Those of repositories around the workspace, of it, and of others up to two levels below; with
    their submodules and linked work trees; the user's own and the machine's.
    """
    around = [parent / ".git" for parent in workspace.parents]
    places = {git for dot_git in (*around, *_below(workspace, _DEPTH)) for git in _git_directories(dot_git)}
    files = [file for git in sorted(places) for file in _files(git)]
    files += [home / ".gitconfig", home / ".config" / "git" / "config", Path("/etc/gitconfig")]
    return sorted({Path(os.path.realpath(file)) for file in files if os.path.isfile(file)})


def cleaned(file: Path, env: Mapping[str, str]) -> bytes:
    """The configuration in `file` without what could be a credential; nothing where git cannot read it.

    Args:
        env: `PATH` is where git is looked for.
    """
    git = shutil.which("git", path=env.get("PATH", os.defpath))
    if git is None or file.stat().st_size > _MAX_BYTES:
        return b""
    # Not `--file NAME`: the file is ours to read where its user cannot; nothing in it is included or executed.
    listed = capture(
        [git, "config", "--file", "-", "--no-includes", "--list", "-z"],
        cwd=Path("/"),
        env=_ENV,
        timeout_s=30,
        input=file.read_bytes(),
    )
    given = listed.stdout.split(b"\0") if listed.returncode == 0 else []
    entries = (entry.decode("utf-8", "surrogateescape").partition("\n") for entry in given if entry)
    lines = (_line(key, value if separator else None) for key, separator, value in entries if _may_be_seen(key))
    return "".join(lines).encode("utf-8", "surrogateescape")


def _may_be_seen(key: str) -> bool:
    return key.partition(".")[0] in _SECTIONS and key not in _UNUSABLE


def _line(key: str, value: str | None) -> str:
    section, _, rest = key.partition(".")
    subsection, dot, name = rest.rpartition(".")
    header = f'[{section} "{_escaped(subsection)}"]' if dot else f"[{section}]"
    if value is None:
        return f"{header}\n\t{name}\n"
    shown = _escaped(_USER_OF_URL.sub("", value)).replace("\n", r"\n").replace("\t", r"\t")
    return f'{header}\n\t{name} = "{shown}"\n'


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"")


def _below(folder: Path, depth: int) -> Iterator[Path]:
    yield folder / ".git"
    if depth == 0:
        return
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        if entry.name != ".git" and entry.is_dir(follow_symlinks=False):
            yield from _below(Path(entry.path), depth - 1)


def _git_directories(dot_git: Path) -> Iterator[Path]:
    """The directory that `dot_git` is or names, and the one that it shares its configuration with."""
    if os.path.isfile(dot_git):
        named = _text(dot_git).removeprefix("gitdir:").strip()
        dot_git = dot_git.parent / named if named else dot_git
    if os.path.isdir(dot_git):
        yield dot_git
        if shared := _text(dot_git / "commondir").strip():
            yield dot_git / shared


def _files(git: Path) -> Iterator[Path]:
    yield git / "config"
    yield git / "config.worktree"
    modules = [(git / "modules")]
    seen = 0
    while modules and seen < _MODULES:
        folder, seen = modules.pop(), seen + 1
        if (folder / "HEAD").is_file():
            yield folder / "config"
            folder /= "modules"
        if folder.is_dir():
            modules += [Path(e.path) for e in os.scandir(folder) if e.is_dir(follow_symlinks=False)]


def _text(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            return os.fsdecode(opened.read(4096))
    except OSError:
        return ""
