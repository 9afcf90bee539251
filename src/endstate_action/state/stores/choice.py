"""Which store a run is told to use, from one word: anything that is not exactly one of them is refused."""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from endstate_action.config.text import quoted, suggestion
from endstate_action.errors import InputError

Kind = Literal["auto", "cache", "git-ref", "dir", "s3", "gs", "az", "none"]

_WORDS = ("auto", "cache", "git-ref", "none")
_SHAPES = ("dir:PATH", "s3://BUCKET/PREFIX", "gs://BUCKET/PREFIX", "az://CONTAINER/PREFIX")
_OBJECTS = re.compile(r"(s3|gs|az)://([a-z0-9][a-z0-9._-]{1,62})(?:/([A-Za-z0-9._=/-]*))?")
_MEANT_OBJECTS = re.compile(r"(s3|gs|az|https?)\b", re.IGNORECASE)
_OBJECTS_HINT = (
    "store must be s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX for an object store. Its name has 2 "
    "to 63 small letters, digits, dots and hyphens; /PREFIX may be left out. Credentials and endpoint come from the "
    "environment, never from the address."
)


@dataclass(frozen=True, slots=True)
class StoreChoice:
    """A store by its kind. Of `dir`, `path` is the directory as it was given; of object stores, the prefix."""

    kind: Kind
    bucket: str = ""
    path: str = ""

    @property
    def text(self) -> str:
        """As `parse_store` reads it."""
        if self.kind == "dir":
            return f"dir:{self.path}"
        return f"{self.kind}://{'/'.join(filter(None, (self.bucket, self.path)))}" if self.bucket else self.kind


def parse_store(text: str) -> StoreChoice:
    """The store that `text` names. Touches nothing.

    Raises:
        InputError: naming what was given and what is allowed.
    """
    for kind in get_args(Kind):
        if text == kind and text in _WORDS:
            return StoreChoice(kind)
    if text.startswith("dir:"):
        return _directory(text)
    found = _OBJECTS.fullmatch(text)
    if not found and _MEANT_OBJECTS.match(text):
        # Who puts a password into an address does not want to see it in a log.
        given = "this address" if "@" in text else quoted(text)
        raise InputError(f"store: {given} cannot be used, so nothing was started.", hint=_OBJECTS_HINT)
    if not found:
        raise _refused(text, f"one of {', '.join((*_WORDS, *_SHAPES))}", suggestion(text, (*_WORDS, *_SHAPES)))
    prefix = (found[3] or "").strip("/")
    if any(part in ("", ".", "..") for part in prefix.split("/")) and prefix:
        raise _refused(text, "an address whose prefix has no empty part and neither . nor ..")
    service: dict[str, Kind] = {"s3": "s3", "gs": "gs", "az": "az"}
    return StoreChoice(service[found[1]], bucket=found[2], path=prefix)


def absolute_store(text: str, cwd: Path) -> str:
    """`text`, in which a directory that was named relative to `cwd` has its absolute path, without links."""
    path = text.removeprefix("dir:")
    if path == text or not path.strip() or path.startswith(("/", "~")):
        return text
    return f"dir:{os.path.realpath(cwd / path)}"


def refuse_inside(path: str, workspace: Path, *, home: str | None) -> Path:
    """The directory that a `dir:` store names, absolute and without links.

    Args:
        path: absolute; a leading `~/` stands for `home`.

    Raises:
        InputError: it lies inside the workspace, where it would be lost and could be forged; or nobody can tell
            where it lies.
    """
    given = Path(_expanded(path, home))
    if not given.is_absolute():
        raise InputError(
            f"store: the directory {quoted(path)} is not named by its absolute path, so nothing was started.",
            hint="The next machine has to find it as well: name a place on a disk that outlives this one, such as "
            "`store: dir:/mnt/endstate`. What lies below the runner's own directories goes with the machine.",
        )
    try:
        resolved = given.resolve()
        _refuse_dangling(given)
        inside = _is_inside(resolved, workspace.resolve())
    except (OSError, RuntimeError) as error:
        # A loop of links is an OSError or, in older releases of Python, a RuntimeError.
        raise InputError(
            f"store: the directory {quoted(path)} cannot be looked at, so nothing was started.",
            hint="A link may lead in a circle or to nothing, as where a disk is not mounted, or a directory on the way "
            "be closed. Put that right, or name another one.",
        ) from error
    if inside:
        raise InputError(
            f"store: the directory {quoted(path)} lies inside the workspace, so nothing was started.",
            hint="A workspace is lost with its machine, and the agent writes there. Name a directory outside, with "
            "its absolute path: dir:/var/lib/endstate",
        )
    return resolved


def _directory(text: str) -> StoreChoice:
    path = text.removeprefix("dir:")
    if not path.strip() or "\0" in path or re.match(r"~[^/]", path):
        raise _refused(text, "dir: and the path of a directory, as in dir:/var/lib/endstate or dir:~/endstate")
    return StoreChoice("dir", path=path)


def _expanded(path: str, home: str | None) -> str:
    if path != "~" and not path.startswith("~/"):
        return path
    if not home or not os.path.isabs(home):
        raise InputError(
            f"store: in {quoted(path)}, ~ stands for nothing here, so nothing was started.",
            hint="HOME is not set. Name the directory by its absolute path.",
        )
    return home + path[1:]


def _refuse_dangling(path: Path) -> None:
    """What a link leads to is not ours to make: it stands where something should be, and nobody else would look."""
    for place in (path, *path.parents):
        if place.is_symlink() and not place.exists():
            raise FileNotFoundError(errno.ENOENT, "a link leads to nothing", str(place))


def _is_inside(place: Path, workspace: Path) -> bool:
    """By name, and by what is there: a mount or another spelling can make one directory have two names."""
    return any(
        above == workspace or (above.exists() and above.samefile(workspace)) for above in (place, *place.parents)
    )


def _refused(given: str, allowed: str, near: str = "") -> InputError:
    return InputError(
        f"store: {quoted(given)} cannot be used, so nothing was started{near or '.'}", hint=f"store must be {allowed}."
    )
