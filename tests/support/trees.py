"""Trees to hash: described, made on the disk, and hashed from the description by a code of their own."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

LETTERS = {
    "file": b"f",
    "link": b"l",
    "directory": b"d",
    "fifo": b"p",
    "socket": b"s",
    "character device": b"c",
    "block device": b"b",
    "unreadable file": b"F",
    "unreadable directory": b"D",
}
MADE_BY_ANYBODY = {"file", "link", "directory", "fifo", "socket"}


@dataclass(frozen=True)
class Thing:
    """One entry of a described tree; `content` is a file's, or the target of a link."""

    path: bytes
    kind: str = "file"
    content: bytes | None = None
    executable: bool = False


def file(path: bytes, content: bytes = b"", *, executable: bool = False) -> Thing:
    return Thing(path, "file", content, executable)


def link(path: bytes, target: bytes) -> Thing:
    return Thing(path, "link", target)


def directory(path: bytes) -> Thing:
    return Thing(path, "directory")


def make(root: Path, things: Iterable[Thing]) -> Path:
    """Put the things below `root`, in their order, and return it."""
    for thing in things:
        path = os.fsencode(root) + b"/" + thing.path
        os.makedirs(path if thing.kind == "directory" else os.path.dirname(path), exist_ok=True)
        match thing.kind:
            case "file":
                Path(os.fsdecode(path)).write_bytes(thing.content or b"")
                os.chmod(path, 0o755 if thing.executable else 0o644)
            case "link":
                os.symlink(thing.content or b"", path)
            case "fifo":
                os.mkfifo(path)
            case "socket":
                _socket(path)
            case _:
                pass
    return root


def _socket(path: bytes) -> None:
    # An address has 107 bytes at most, which a temporary directory may exceed: hence by its directory.
    here = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(f"/proc/self/fd/{here}/{os.fsdecode(os.path.basename(path))}")
    finally:
        os.close(here)


def hash_of(things: Iterable[Thing]) -> str:
    """The tree hash, from the description alone."""
    return "et1:" + hashlib.sha256(hashed_for(things)).hexdigest()


def hashed_for(things: Iterable[Thing]) -> bytes:
    """What is hashed for the directory that holds the things."""
    own: dict[bytes, list[Thing]] = {}
    for thing in things:
        own.setdefault(thing.path.split(b"/")[0], []).append(thing)
    return b"endstate-tree-1\n" + b"".join(_record(name, own[name]) for name in sorted(own))


def _record(name: bytes, things: Sequence[Thing]) -> bytes:
    below = [Thing(t.path.split(b"/", 1)[1], t.kind, t.content, t.executable) for t in things if b"/" in t.path]
    letter, content, executable = LETTERS[things[0].kind], things[0].content, things[0].executable
    size, digest = 0, bytes(32)
    if below or letter == b"d":
        letter, executable, digest = b"d", False, hashlib.sha256(hashed_for(below)).digest()
    elif content is not None:
        size, digest = len(content), hashlib.sha256(content).digest()
    return struct.pack(">cBIQ32s", letter, executable, len(name), size, digest) + name


@dataclass(frozen=True)
class Vector:
    name: str
    things: tuple[Thing, ...]
    root: bytes
    hash: str

    @property
    def anybody_can_make_it(self) -> bool:
        return all(thing.kind in MADE_BY_ANYBODY for thing in self.things)


def vectors() -> list[Vector]:
    """The published ones."""
    text = (ROOT / "tests" / "vectors" / "tree-hash.json").read_text(encoding="ascii")
    return [
        Vector(v["name"], tuple(map(_thing, v["entries"])), bytes.fromhex(v["root"]), v["hash"])
        for v in json.loads(text)
    ]


def _thing(entry: Mapping[str, object]) -> Thing:
    content = bytes.fromhex(str(entry["content"])) * int(str(entry.get("repeated", 1))) if "content" in entry else None
    return Thing(bytes.fromhex(str(entry["path"])), str(entry["kind"]), content, bool(entry.get("executable", False)))


@contextmanager
def as_ordinary_user(group: int = 65534) -> Iterator[None]:
    """What is done inside is done without root's rights. Paths from elsewhere than here may be out of reach.

    An ordinary user stays who he is, whatever the group.
    """
    if os.geteuid() != 0:
        yield
        return
    try:
        os.setegid(group)
        os.seteuid(65534)
    except OSError as error:
        pytest.skip(f"there is no ordinary user here: {error}")
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@contextmanager
def a_deep_place() -> Iterator[Path]:
    """A temporary directory that may hold trees too deep for `shutil.rmtree`."""
    with tempfile.TemporaryDirectory(prefix="deep-") as folder:
        place = Path(folder, "tree")
        place.mkdir()
        try:
            yield place
        finally:
            subprocess.run(["rm", "-rf", str(place)], check=True)


def dig(top: Path, names: Iterable[bytes], beside: bytes | None = None) -> None:
    """Make a directory in a directory for each of `names`; with `beside`, an empty directory of that name in each."""
    here = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for name in names:
            os.mkdir(name, dir_fd=here)
            if beside is not None:
                os.mkdir(beside, dir_fd=here)
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
            os.close(here)
            here = below
        os.close(os.open("bottom", os.O_WRONLY | os.O_CREAT, dir_fd=here))
    finally:
        os.close(here)


def hash_in_a_process_of_its_own(root: Path, env: Mapping[str, str]) -> str:
    """The tree hash as a new interpreter under the environment `env` sees it."""
    code = (
        "import sys; from pathlib import Path; from endstate_action.system.tree import scan\n"
        "print(scan(Path(sys.argv[1])).tree_hash)"
    )
    command = [sys.executable, "-c", code, str(root)]
    return subprocess.run(command, env={**os.environ, **env}, check=True, capture_output=True, text=True).stdout.strip()
