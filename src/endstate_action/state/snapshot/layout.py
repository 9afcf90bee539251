"""How the object store is laid out: a git directory written by hand, in which git finds nothing to execute."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from endstate_action.errors import StateError
from endstate_action.state.snapshot import store_files
from endstate_action.system import own_files

_CONFIG = """\
[core]
\trepositoryformatversion = {version}
\tbare = false
\tfilemode = true
\tsymlinks = true
\tignorecase = false
\tprecomposeunicode = false
\tautocrlf = false
\tsafecrlf = false
\teol = lf
\tfsmonitor = false
\tuntrackedCache = false
\thooksPath = /dev/null
\tattributesFile = /dev/null
\texcludesFile = /dev/null
\tprotectNTFS = false
\tprotectHFS = false
\ttrustctime = true
\tcheckStat = default
\tlooseCompression = 1
\tlogAllRefUpdates = false
[gc]
\tauto = 0
[maintenance]
\tauto = false
[protocol]
\tallow = never
[safe]
\tdirectory = *
"""
_SHA256 = "[extensions]\n\tobjectFormat = sha256\n"
_MARK = "endstate-store"
_IDENTITY = re.compile(r"[0-9a-f]{32}")
_HEAD = b"ref: refs/heads/none\n"
# The last two are read by `git archive`, by which people get back what a snapshot kept.
_ATTRIBUTES = b"* -text !eol -ident !filter !working-tree-encoding !crlf !diff !merge -export-ignore -export-subst\n"


_READ_BY_GIT = ("HEAD", "config", "shallow", "info/attributes")


def confirm(path: Path) -> None:
    """Git follows links and waits at fifos; this is looked at before it may meet one in the store at `path`.

    Raises:
        OSError: something of it is not what it is laid out to be.
    """
    with own_files.directory(path / "objects" / "pack"):
        pass
    with own_files.directory(path) as here:
        for name in _READ_BY_GIT:
            with suppress(FileNotFoundError):
                if not stat.S_ISREG(os.stat(name, dir_fd=here, follow_symlinks=False).st_mode):
                    raise NotADirectoryError(errno.ENOTDIR, "no ordinary file", name)


def lay_out(path: Path, object_format: str) -> str:
    """Make the store at `path`, or confirm it; returns a text that no other store has.

    Raises:
        StateError: it is for the other object format.
        OSError: it could not be written, or what is there of it is a link.
    """
    for name in ("objects/pack", "objects/info", "refs", "info"):
        with own_files.directory(path / name, make=True):
            pass
    is_sha256 = object_format == "sha256"
    config = _CONFIG.format(version=1 if is_sha256 else 0) + (_SHA256 if is_sha256 else "")
    found = store_files.text_of(path / _MARK)
    identity = found if _IDENTITY.fullmatch(found) else ""
    if identity and store_files.text_of(path / "config") != config:
        raise StateError(
            f"The snapshot store {path} has another object format than the repository ({object_format}).",
            hint="Remove the state directory to begin anew; what it holds belongs to another repository.",
        )
    if not identity:
        for name, text in (("info/attributes", _ATTRIBUTES), ("HEAD", _HEAD), ("config", config.encode())):
            own_files.put(path / name, text)
        # Last: without it, a kill has left a store that is laid out anew.
        identity = renew(path)
    return identity


def format_of(path: Path) -> str:
    """The object format of the store at `path`: `sha1` or `sha256`."""
    return "sha256" if _SHA256 in store_files.text_of(path / "config") else "sha1"


def renew(path: Path) -> str:
    """Give the store an identity that none had before; what is remembered under the old one is void from here on."""
    identity = secrets.token_hex(16)
    store_files.put(path / _MARK, identity.encode())
    return identity
