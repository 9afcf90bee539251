"""Files of the store that survive a power cut, and are reached through no link: whoever planted one gets a refusal.

The rest is as in `own_files`: each component of the way is opened in the one before it, and a file is made anew
under another name and takes its place whole.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from endstate_action.system import own_files
from endstate_action.system.own_files import directory

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def put(path: Path, data: bytes) -> None:
    """Make `data` the content of the file `path`, durably, whole or not at all; its directory is made if missing.

    Raises:
        OSError: it was not written, or a component of `path` is a link.
    """
    with directory(path.parent, make=True) as parent:
        put_in(parent, path.name, f"tmp_{path.name}", [data])
        sync_names(parent)


def put_in(
    parent: int, name: str, part: str, pieces: Iterable[bytes], done: Callable[[int], object] = os.fsync
) -> None:
    """Make a file of `pieces` in the directory `parent`, which is called `part` until it is whole.

    Its content is durable, or whatever `done` makes it, before it gets its name; the name is not.
    """
    new_file(parent, part, pieces, done)
    try:
        os.rename(part, name, src_dir_fd=parent, dst_dir_fd=parent)
    except BaseException:
        discard(parent, part)
        raise


def new_file(parent: int, name: str, pieces: Iterable[bytes], done: Callable[[int], object]) -> None:
    """A file that was not there; what a kill or anybody else has left under its name is removed first."""
    own_files.remove(name, parent)
    try:
        file = os.open(name, _NEW, 0o600, dir_fd=parent)
        try:
            for piece in pieces:
                view = memoryview(piece)
                while view:
                    view = view[os.write(file, view) :]
            done(file)
        finally:
            os.close(file)
    except BaseException:
        discard(parent, name)
        raise


def discard(parent: int, name: str) -> None:
    with suppress(OSError):
        os.unlink(name, dir_fd=parent)


def sync_names(parent: int) -> None:
    """Make durable which names the directory holds; `parent` need not be open for reading."""
    with _listed(parent) as listed:
        os.fsync(listed)


def listed_names(parent: int) -> list[str]:
    with _listed(parent) as listed:
        return os.listdir(listed)


@contextmanager
def below(parent: int, name: str, *, make: bool = False) -> Iterator[int]:
    """The directory `name` in the directory `parent`, never through a link.

    Raises:
        OSError: there is none, or a link stands in its place.
    """
    if make:
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=parent)
    here = os.open(name, _LIST, dir_fd=parent)
    try:
        yield here
    finally:
        os.close(here)


def text_of(path: Path) -> str:
    """What an ordinary file holds; nothing where there is none. What is no text is shown as such, not refused."""
    try:
        return own_files.get(path).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


@contextmanager
def _listed(parent: int) -> Iterator[int]:
    with below(parent, ".") as here:
        yield here
