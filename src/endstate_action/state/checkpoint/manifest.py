"""The manifest of a checkpoint: what it is, whose it is, and what it needs besides itself.

It is read from what a store returned. The seal tells that somebody with the key wrote it, not that he wrote sense, so
every field is checked before anything is made of it.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NoReturn

from endstate_action.state.keys import MAX_EFFECTS, MAX_EPOCH, MAX_SEQUENCE, CheckpointKey, is_lineage
from endstate_action.state.records import FORMAT as JOURNAL_FORMAT

FORMAT = 1
"""Version of the manifest and of what follows it; every release reads all earlier ones."""

MAX_MANIFEST_BYTES = 512 * 1024
MAX_OUTPUTS_BYTES = 256 * 1024
MAX_JOURNAL_BYTES = 256 * 1024 * 1024
"""Of all rows of a session, unpacked: what claims more is a bomb."""
MAX_PACK_BYTES = 512 * 1024 * 1024
MAX_RECORDS = 1_000_000
MAX_PARTS = 64
_MAX_TEXT_CHARS = 1_024
_END_OF_TIME = 1e11
_HEX = re.compile(r"[0-9a-f]{1,128}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class NewerManifest(ValueError):
    """Written by a newer release, so that nothing else is known of it."""


@dataclass(frozen=True, slots=True)
class About:
    """What the checkpoints of an attempt have in common.

    Args:
        version: of the release that wrote it; shown, never compared.
        lineage: as in the key.
        workspace_kind: `git` or `directory`, as the session is bound to.
        object_format: of the snapshot's objects: `sha1` or `sha256`.
        base_commit: what the workspace's pack is relative to; None where it stands alone.
        fingerprint: digest of what the session was begun under.
    """

    version: str
    repository: str
    lineage: str
    session: str
    epoch: int
    workspace_kind: str
    object_format: str
    base_commit: str | None
    base_tree: str | None
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Part:
    """An earlier checkpoint, for the rows `first` to `last` that it carries: so many bytes, and packed so many."""

    key: str
    sha256: str
    first: int
    last: int
    rows_bytes: int
    packed_bytes: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """Stands for the rows 1 to `records`: `parts` have those before `first`, the object itself has the others.

    Args:
        effects: outside effects started until then, by the count that the key names have.
        parent: the checkpoint that was the newest when this one was made.
        root: the snapshot that belongs to the last row, in the pack; None where none was taken.
        rows_bytes: of its rows, unpacked; `packed_bytes` as they are in the object.
        is_done: the session is finished and delivered; there are neither rows nor a workspace, but `outputs`.
    """

    about: About
    sequence: int
    effects: int
    parent: str | None
    records: int
    first: int
    parts: tuple[Part, ...]
    root: str | None
    tree_hash: str | None
    rows_bytes: int
    packed_bytes: int
    pack_bytes: int
    at: float
    is_done: bool = False
    outputs: Mapping[str, Any] = field(default_factory=dict)
    format: int = FORMAT
    journal_format: int = JOURNAL_FORMAT

    @property
    def key(self) -> str:
        return str(CheckpointKey(self.about.lineage, self.about.epoch, self.sequence, self.effects))

    def encode(self) -> bytes:
        """One line of JSON, without its end."""
        return json.dumps(asdict(self), separators=(",", ":"), allow_nan=False).encode("ascii")


def fitting(outputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The outputs as a finished session leaves them: a long message is cut, a long list of files left out.

    The session itself has all of it. Without what is left here each re-run would deliver once more.
    """
    made = dict(outputs)
    sizes = {name: _size(made.get(name)) for name in ("final-message", "changed-files")}
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        if (over := _size(made) - MAX_OUTPUTS_BYTES) > 0 and name in made:
            made[name] = _cut(made[name], sizes[name] - over) if name == "final-message" else None
    return made


def _cut(text: str, room: int) -> str:
    """Its beginning that takes at most so many bytes as JSON."""
    return text[: max(0, bisect_right(range(len(text) + 1), room, key=lambda end: _size(text[:end])) - 1)]


def _size(value: object) -> int:
    return len(json.dumps(value))


def needed(manifests: Iterable[Manifest]) -> set[str]:
    """The keys without which one of these checkpoints could not be read."""
    return {key for manifest in manifests for key in (manifest.key, *(part.key for part in manifest.parts))}


def parse(data: bytes) -> Manifest:
    """Read a manifest back.

    Raises:
        NewerManifest: a newer release wrote it.
        ValueError: it is none, or does not make sense.
    """
    if len(data) > MAX_MANIFEST_BYTES:
        raise ValueError("it is too long")
    try:
        found = json.loads(data, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("it is no object")
    for name, known in (("format", FORMAT), ("journal_format", JOURNAL_FORMAT)):
        version = _number(found, name, MAX_RECORDS)
        if version > known:
            raise NewerManifest(f"it has {name.replace('_', ' ')} {version}; this release reads up to {known}")
    manifest = _manifest(found, _about(found.get("about")))
    _check_sense(manifest)
    return manifest


def _manifest(found: dict[str, Any], about: About) -> Manifest:
    _check_fields(found, Manifest)
    parts, at, outputs = found["parts"], found["at"], found["outputs"]
    if not isinstance(parts, list) or len(parts) > MAX_PARTS:
        raise ValueError("parts")
    if type(at) not in (int, float) or not 0 <= at <= _END_OF_TIME:
        raise ValueError("at")
    if type(found["is_done"]) is not bool:
        raise ValueError("is_done")
    if not isinstance(outputs, dict) or _size(outputs) > MAX_OUTPUTS_BYTES:
        raise ValueError("outputs")
    return Manifest(
        about,
        _number(found, "sequence", MAX_SEQUENCE),
        _number(found, "effects", MAX_EFFECTS),
        _optional(found, "parent"),
        _number(found, "records", MAX_RECORDS),
        _number(found, "first", MAX_RECORDS + 1),
        tuple(map(_part, parts)),
        _optional(found, "root", _HEX),
        _optional(found, "tree_hash"),
        _number(found, "rows_bytes", MAX_JOURNAL_BYTES),
        _number(found, "packed_bytes", MAX_JOURNAL_BYTES),
        _number(found, "pack_bytes", MAX_PACK_BYTES),
        float(at),
        found["is_done"],
        outputs,
        found["format"],
        found["journal_format"],
    )


def _about(found: object) -> About:
    if not isinstance(found, dict):
        raise ValueError("about")
    _check_fields(found, About)
    return About(
        _text(found, "version"),
        _text(found, "repository"),
        _text(found, "lineage"),
        _text(found, "session", _HEX),
        _number(found, "epoch", MAX_EPOCH),
        _text(found, "workspace_kind"),
        _text(found, "object_format"),
        _optional(found, "base_commit", _HEX),
        _optional(found, "base_tree", _HEX),
        _text(found, "fingerprint"),
    )


def _part(found: object) -> Part:
    if not isinstance(found, dict):
        raise ValueError("part")
    _check_fields(found, Part)
    return Part(
        _text(found, "key"),
        _text(found, "sha256", _SHA256),
        _number(found, "first", MAX_RECORDS),
        _number(found, "last", MAX_RECORDS),
        _number(found, "rows_bytes", MAX_JOURNAL_BYTES),
        _number(found, "packed_bytes", MAX_JOURNAL_BYTES),
    )


def _check_sense(manifest: Manifest) -> None:
    """Whether parts and rows follow each other without a gap, and the parts are earlier checkpoints of this epoch."""
    about = manifest.about
    if not is_lineage(about.lineage) or about.object_format not in ("sha1", "sha256"):
        raise ValueError("about")
    if manifest.is_done:
        if manifest.parts or manifest.packed_bytes or manifest.pack_bytes or manifest.first != manifest.records + 1:
            raise ValueError("a finished session with a journal")
        return
    after = 1
    for part in manifest.parts:
        key = CheckpointKey.parse(part.key)
        if key is None or (key.lineage, key.epoch) != (about.lineage, about.epoch) or key.sequence >= manifest.sequence:
            raise ValueError("a part that is none of its own")
        if not part.first == after <= part.last:
            raise ValueError("parts with a gap between them")
        after = part.last + 1
    if not manifest.first == after <= manifest.records + 1 or manifest.records == 0:
        raise ValueError("rows with a gap before them")
    if sum(part.rows_bytes for part in manifest.parts) + manifest.rows_bytes > MAX_JOURNAL_BYTES:
        raise ValueError("more rows than any session has")
    if (manifest.root is None) != (manifest.pack_bytes == 0):
        raise ValueError("a workspace without its name, or a name without its workspace")


def _check_fields(found: dict[str, Any], cls: type[Any]) -> None:
    expected = {f.name for f in fields(cls)}
    if found.keys() != expected:
        raise ValueError(f"fields: {len(found.keys() ^ expected)} too many or too few")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")


def _number(found: dict[str, Any], name: str, at_most: int) -> int:
    value = found.get(name)
    if type(value) is not int or not 0 <= value <= at_most:
        raise ValueError(name)
    return value


def _text(found: dict[str, Any], name: str, pattern: re.Pattern[str] | None = None) -> str:
    value = found[name]
    if not isinstance(value, str) or len(value) > _MAX_TEXT_CHARS or (pattern and not pattern.fullmatch(value)):
        raise ValueError(name)
    return value


def _optional(found: dict[str, Any], name: str, pattern: re.Pattern[str] | None = None) -> str | None:
    return None if found[name] is None else _text(found, name, pattern)
