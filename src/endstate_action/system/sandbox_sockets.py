"""Sockets with a path: a read-only mount does not keep anybody from talking to the service behind one.

A network namespace hides what is bound to addresses and abstract names. A socket with a path is
reached through the file system, so each one must be covered where it can be seen.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

_LINE = re.compile(
    rb"[0-9a-f]+: [0-9A-F]+ [0-9A-F]+ (?P<flags>[0-9A-F]+) (?P<type>[0-9A-F]+) \S+ +(?P<inode>\d+)(?: (?P<name>.*))?"
)
_LISTENS = 0x10000
_DATAGRAM = 2


class SocketInSight(Exception):
    """A socket that calls may be able to reach, and whose place is not known. The text names it."""


def sockets(table: bytes | None = None, mounts: bytes | None = None, processes: Path = Path("/proc")) -> set[Path]:
    """Every path by which a service of this machine can be reached, as far as the kernel tells.

    Not told: sockets bound in another network namespace, unless they are mounted here themselves.

    Args:
        table, mounts: text as in `/proc/net/unix` and `/proc/self/mountinfo`, which are read by default.

    Raises:
        SocketInSight: one has a relative name and nobody can tell where it is.
        OSError: the tables cannot be read.
    """
    table = Path("/proc/net/unix").read_bytes() if table is None else table
    mounts = Path("/proc/self/mountinfo").read_bytes() if mounts is None else mounts
    places = {place for name, inode in _bound(table) for place in _places(name, inode, processes)}
    return {place for place in places | set(_mount_points(mounts)) if _is_socket(place)}


def _bound(table: bytes) -> Iterator[tuple[bytes, int]]:
    """Name and inode of each socket that answers by a path."""
    for line in table.splitlines()[1:]:
        found = _LINE.fullmatch(line)
        if found is None:
            raise SocketInSight(f"a socket has a name of several lines, of which one is {line!r}")
        answers = int(found["flags"], 16) & _LISTENS or int(found["type"], 16) == _DATAGRAM
        if answers and found["name"] and not found["name"].startswith(b"@"):
            yield found["name"], int(found["inode"])


def _places(name: bytes, inode: int, processes: Path) -> list[Path]:
    path = Path(os.fsdecode(name))
    # A name below /proc means something else to each process, as a relative one does.
    if path.is_absolute() and path.parts[1] != "proc":
        return [path]
    found = [where / path for where in _holders(inode, processes)]
    if not any(map(_is_socket, found)):
        raise SocketInSight(f"nobody can tell where the socket {os.fsdecode(name)!r} is")
    return found


def _holders(inode: int, processes: Path) -> Iterator[Path]:
    """Where the processes work that have this socket open and that we may inspect."""
    for process in processes.glob("[0-9]*"):
        try:
            if any(os.readlink(entry) == f"socket:[{inode}]" for entry in (process / "fd").iterdir()):
                yield process / "cwd"
                yield Path(os.readlink(process / "cwd"))
        except OSError:
            continue


def _mount_points(mounts: bytes) -> Iterator[Path]:
    for line in mounts.splitlines():
        fields = line.split(b" ")
        if len(fields) > 4:
            yield Path(os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda c: bytes([int(c[1], 8)]), fields[4])))


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False
