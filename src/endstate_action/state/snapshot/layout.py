"""How the object store is laid out: a git directory written by hand, in which git finds nothing to execute."""

from __future__ import annotations

import secrets
from pathlib import Path

from endstate_action.errors import StateError
from endstate_action.system.files import atomic_write

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
_ATTRIBUTES = b"* -text !eol -ident !filter !working-tree-encoding !crlf !diff !merge\n"


def lay_out(path: Path, object_format: str) -> str:
    """Make the store at `path`, or confirm it; returns a text that no other store has.

    Raises:
        StateError: it is for the other object format.
        OSError: it could not be written.
    """
    mark = path / "endstate-store"
    for name in ("objects/pack", "objects/info", "refs", "info"):
        (path / name).mkdir(parents=True, exist_ok=True)
    is_sha256 = object_format == "sha256"
    config = _CONFIG.format(version=1 if is_sha256 else 0) + (_SHA256 if is_sha256 else "")
    if mark.exists() and (path / "config").read_text() != config:
        raise StateError(
            f"The snapshot store {path} has another object format than the repository ({object_format}).",
            hint="Remove the state directory to begin anew; what it holds belongs to another repository.",
        )
    if not mark.exists():
        (path / "info" / "attributes").write_bytes(_ATTRIBUTES)
        (path / "HEAD").write_text("ref: refs/heads/none\n")
        (path / "config").write_text(config)
        # Last: without it, a kill has left a store that is laid out anew.
        atomic_write(mark, secrets.token_hex(16).encode())
    return mark.read_text()
