"""Scratch directories that are the same before every trial, and pictures of them afterwards."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from endstate_action.effects import digest
from endstate_action.system.names import display, few
from endstate_action.system.process import capture

FILES = {
    "README.md": "# A project\n\nNotes are kept in docs.\n",
    "app.py": "VERSION = 1\nprint(VERSION)\n",
    "docs/notes.md": "- first\n- second\n",
    # The tools of others are none of the product's, so a policy has to let them through.
    ".github/endstate.yml": "policy: {default: allow}\n",
}
UNCOMMITTED = ("docs/notes.md", "- first\n- second\n- third\n")
"""What a workspace holds before a call: a commit of `FILES`, where there is git, and one file changed since."""

Picture = Mapping[str, str]
"""From each path below a place to its kind, permissions and content; the key of the session is taken out."""

# Told by git in other words, or different each time.
_NOT_LOOKED_AT = {".git/" + name for name in ("objects", "logs", "index", "refs", "packed-refs", "COMMIT_EDITMSG")}
_NOT_LOOKED_AT |= {".git/ORIG_HEAD", ".endstate"}
_GIT_STATE = {
    "the index": ("ls-files", "--stage"),
    # Without ids, since a commit holds the session's and the time.
    "the commits": ("log", "--branches", "--tags", "HEAD", "--topo-order", "--format=%D%n%T%n%B"),
    "the refs": ("for-each-ref", "--format=%(refname) %(objecttype)"),
}


@dataclass(frozen=True, slots=True)
class Place:
    """Below `scratch`: a workspace, a home, a directory for temporary files, and one that is just beside."""

    scratch: Path
    environ: Mapping[str, str]

    @property
    def root(self) -> Path:
        return self.scratch / "place"

    @property
    def workspace(self) -> Path:
        return self.root / "workspace"

    @property
    def side(self) -> Path:
        """Where the processes of a trial say what they came to."""
        return self.scratch / "side"

    @property
    def has_git(self) -> bool:
        return (self.workspace / ".git").is_dir()

    def make(self) -> None:
        """The template of all trials."""
        for name in ("home", "tmp", "beside"):
            (self._template / name).mkdir(parents=True)
        for file, text in FILES.items():
            path = self._template / "workspace" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        identity = ("-c", "user.name=endstate", "-c", "user.email=endstate@localhost")
        with suppress(FileNotFoundError):
            for words in (("init", "--quiet", "--template="), ("add", "."), (*identity, "commit", "-qm", "Begin")):
                self._git(self._template / "workspace", *words)
        (self._template / "workspace" / UNCOMMITTED[0]).write_text(UNCOMMITTED[1])

    def reset(self) -> None:
        if self.root.exists():
            _remove(self.root)
        self.side.unlink(missing_ok=True)
        shutil.copytree(self._template, self.root, symlinks=True)

    def picture(self, session: str = "") -> Picture:
        key, found = session.encode() or b"\0no session\0", dict[str, str]()
        for path in self._paths():
            name = display(os.fsencode(path.relative_to(self.root)).replace(key, b"SESSION"))
            found[_shown(name)] = _described(path, key)
        for name, words in _GIT_STATE.items() if self.has_git else ():
            told = self._git(self.workspace, *words)
            found[name] = told.replace(key, b"SESSION").decode(errors="surrogateescape")
        return found

    def _paths(self) -> Iterator[Path]:
        for folder, folders, files in os.walk(self.root):
            folders[:] = [f for f in folders if self._is_looked_at(Path(folder, f))]
            yield from (Path(folder, name) for name in (*folders, *files) if self._is_looked_at(Path(folder, name)))

    def _is_looked_at(self, path: Path) -> bool:
        return path.relative_to(self.root).as_posix().removeprefix("workspace/") not in _NOT_LOOKED_AT

    @property
    def _template(self) -> Path:
        return self.scratch / "template"

    def _git(self, where: Path, *words: str) -> bytes:
        done = capture(["git", *words], cwd=where, env=self.environ, timeout_s=60)
        return done.stdout if done.returncode == 0 else done.stderr


def _shown(name: str) -> str:
    """A path below the place as seen from its workspace."""
    top, _, rest = name.partition("/")
    match top:
        case "workspace":
            return rest or "."
        case "home" | "tmp":
            return f"{'~' if top == 'home' else '$TMPDIR'}/{rest}"
        case _:
            return f"../{name}"


def outside(picture: Picture) -> Picture:
    """What of it is not in the workspace."""
    return {name: seen for name, seen in picture.items() if name.startswith(("~/", "../", "$TMPDIR/"))}


def lasting(picture: Picture) -> Picture:
    """All of it but temporary files."""
    return {name: seen for name, seen in picture.items() if not name.startswith("$TMPDIR/")}


def difference(one: Picture, other: Picture) -> str:
    """What differs, in words: `a.txt changed, b.txt added`; empty where nothing does."""
    words = [
        f"{name} {'added' if name not in one else 'gone' if name not in other else 'changed'}"
        for name in sorted(one.keys() | other.keys())
        if one.get(name) != other.get(name)
    ]
    return few(words, 5)


def _described(path: Path, key: bytes) -> str:
    try:
        mode = os.lstat(path).st_mode
        if stat.S_ISLNK(mode):
            return f"link {os.readlink(path)!r}"
        content = digest(path.read_bytes().replace(key, b"SESSION")) if stat.S_ISREG(mode) else ""
    except OSError as error:
        return f"unreadable: {error.strerror}"
    return f"{stat.filemode(mode)} {content}"


def _remove(folder: Path) -> None:
    """Also what a tool has made unwritable."""
    for above, folders, _ in os.walk(folder):
        for path in (os.path.join(above, name) for name in folders):
            if not os.path.islink(path):
                os.chmod(path, 0o700)
    shutil.rmtree(folder)
