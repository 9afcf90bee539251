"""A snapshot as bytes that leave the machine: what the base commit does not have, and nothing that it has.

The snapshot is wrapped in a commit that follows the base, so that git finds, by their paths, which of the base's files
a changed one is best stored as a difference to. The receiver needs the base commit, of whose history nothing is used;
where the base may be missing, the pack brings everything.

Each pack stands alone: none needs an earlier one. A reader believes nothing before it has checked the pack's own
checksum, every object's id, and that from the snapshot and the tips on nothing is missing.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from endstate_action.errors import StateError
from endstate_action.state.snapshot.git_graph import Graph, Listed
from endstate_action.state.snapshot.nearby import Nearby
from endstate_action.state.snapshot.objects import ObjectStore
from endstate_action.state.snapshot.packing import entry
from endstate_action.system.git_call import GitError
from endstate_action.system.names import short
from endstate_action.system.process import Completed

_MAGIC = b"endstate pack 1 "
_NOBODY = "endstate <endstate@localhost> 0 +0000"
_ID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_WORKSPACE = b"tree/"
"""Under this the root has the workspace, whose files the base has at its top."""


class PackRefused(StateError):
    """A pack was not taken; what the store held before is unchanged."""


@dataclass(frozen=True, slots=True)
class Head:
    """What a pack says of itself, in the line before git's own format begins."""

    root: str
    base: str | None
    tips: tuple[str, ...]
    ends: tuple[str, ...]
    """Commits that it brings without what came before them."""


def pack(
    objects: ObjectStore,
    root: str,
    tips: Iterable[str],
    base: str | None,
    look: Callable[[str, bytes], None] = lambda name, path: None,
    nearby: Nearby | None = None,
) -> bytes:
    """The snapshot `root` and what `tips` reach, for whoever has `base`; with None, for everybody.

    Where the base came without some of its content (a partial clone), the pack is for everybody. Tips that are not
    whole, since the project has lost something of them, are left out.

    Args:
        look: shown the id and the path of each object that would leave; what it raises ends this.
        nearby: of earlier packs from the same store, which makes this one faster.

    Raises:
        StateError: something of the snapshot is missing, or git failed.
    """
    base = base if base and objects.is_whole(base) else None
    graph = Graph(objects)
    wanted = set(tips)
    try:
        wrapper = _wrapper(root, base)
        listed, sound = (nearby or Nearby(objects)).reach(root, wanted, base), wanted
        done = _packed(objects, listed, look) if listed else None
        if listed is not None and done is not None and done.returncode == 0:
            # Nothing here needs the wrapper, and put into the store it would cost its syncs.
            content = _joined(done.stdout, entry("commit", wrapper), objects.object_format)
        else:
            listed, sound = _by_git(graph, objects.write("commit", wrapper), root, wanted, base)
            done = _packed(objects, listed, look)
            content = done.stdout
    except GitError as error:
        raise _not_made(str(error)) from error
    if done.returncode != 0:
        raise _not_made(done.stderr.decode("utf-8", "replace").strip())
    head = {"root": root, "base": base, "tips": sorted(sound), "ends": sorted(graph.forgotten(listed.named))}
    return _MAGIC + json.dumps(head).encode() + b"\n" + content


def read_head(data: bytes) -> Head:
    """Raises: PackRefused: it is no pack of ours."""
    line, separator, _ = data.partition(b"\n")
    try:
        if not separator or not line.startswith(_MAGIC):
            raise ValueError
        shown = json.loads(line[len(_MAGIC) :])
        head = Head(shown["root"], shown["base"], tuple(shown["tips"]), tuple(shown["ends"]))
        if not all(map(_ID.fullmatch, (head.root, *head.tips, *head.ends, head.base or head.root))):
            raise ValueError
    except (ValueError, TypeError, KeyError):
        raise _refused("it does not begin as one of ours") from None
    return head


def apply(objects: ObjectStore, data: bytes, base: str | None) -> None:
    """Put what `pack` made into the store; may be repeated.

    Args:
        base: the commit that this checkout stands on, for the message; what counts is what the store has.

    Raises:
        PackRefused: damaged, cut off, made for a base that is not here, or incomplete.
    """
    head = read_head(data)
    content = memoryview(data)[data.index(b"\n") + 1 :]
    _check_sum(content, objects.object_format)
    if head.base and objects.missing([head.base]):
        here = f"this checkout stands on {base}" if base else "this checkout has no commit"
        raise _refused(f"it was made for the base commit {head.base}, which is not here ({here})")
    try:
        done = objects.git("index-pack", "--stdin", "--fix-thin", input=bytes(content))
        if done.returncode != 0:
            raise _refused(done.stderr.decode("utf-8", "replace").strip())
        _check_arrival(objects, head)
    except GitError as error:
        raise _refused(str(error)) from error


def _wrapper(root: str, base: str | None) -> bytes:
    """A commit of the snapshot. Equal snapshots have equal wrappers."""
    parent = [f"parent {base}"] if base else []
    return "\n".join(
        [f"tree {root}", *parent, f"author {_NOBODY}", f"committer {_NOBODY}", "", "snapshot", ""]
    ).encode()


def _packed(objects: ObjectStore, listed: Listed, look: Callable[[str, bytes], None]) -> Completed:
    for name, path in listed.named.items():
        look(name, path.removeprefix(_WORKSPACE))
    lines = [b"-" + edge.encode() for edge in sorted(listed.edges)]
    lines += [name.encode() + b" " + path.removeprefix(_WORKSPACE) for name, path in listed.named.items()]
    options = ("-q", "--stdout", "--delta-base-offset")
    return objects.git("pack-objects", *options, input=b"\n".join(lines) + b"\n")


def _joined(content: bytes, last: bytes, object_format: str) -> bytes:
    """The pack with one more object."""
    count, width = int.from_bytes(content[8:12]) + 1, hashlib.new(object_format).digest_size
    body = b"".join((content[:8], count.to_bytes(4), content[12:-width], last))
    return body + hashlib.new(object_format, body).digest()


def _by_git(graph: Graph, wrapper: str, root: str, tips: set[str], base: str | None) -> tuple[Listed, set[str]]:
    """What the snapshot and those of the tips reach that are whole; and these."""
    listed = graph.whole({wrapper, *tips}, base)
    if listed is None:
        if graph.whole({wrapper}, base) is None:
            raise _not_made(f"something of the snapshot {root} is missing")
        tips = {tip for tip in tips if graph.whole({tip}, base)}
        listed = graph.reach({wrapper, *tips}, base)
    return listed, tips


def _check_sum(content: memoryview, object_format: str) -> None:
    width = hashlib.new(object_format).digest_size
    if hashlib.new(object_format, content[:-width]).digest() != content[-width:]:
        raise _refused("it is damaged or cut off: its checksum is wrong")


def _check_arrival(objects: ObjectStore, head: Head) -> None:
    """Whether everything is there, by following each reference that the base does not account for."""
    whole = _wrapper(head.root, head.base)
    wrapper = hashlib.new(objects.object_format, b"commit %d\0%s" % (len(whole), whole)).hexdigest()
    graph = Graph(objects)
    graph.forget_parents(set(head.ends) - objects.missing(head.ends))
    listed = Nearby(objects).reach(head.root, set(head.tips), head.base)
    if listed is not None and not objects.missing({wrapper, *listed.named}):
        return
    if graph.whole({wrapper, *head.tips}, head.base) is None:
        raise _refused("something that it should bring is not in it")


def _not_made(reason: str) -> StateError:
    return StateError(
        f"The snapshot could not be packed: {short(reason)}. It is still whole on this machine.",
        hint="Check the disk and that git can be started.",
    )


def _refused(reason: str) -> PackRefused:
    return PackRefused(
        f"The stored workspace was refused: {short(reason)}. Nothing of it was used.",
        hint="An older checkpoint may be whole; without one, the task begins anew.",
    )
