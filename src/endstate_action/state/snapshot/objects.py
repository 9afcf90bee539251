"""A git object store of our own: what is in it stays, whatever becomes of the project's repository.

Its layout and its configuration are written here, by hand, so that git finds nothing in it to execute.
Loose objects are written and all objects are read without git; only packs need the program. An object
is read by its id, so what is read is what was written, or `SnapshotDamaged` is raised.

`write` alone makes nothing durable; `sync` does, for everything since the last one. Sync before
recording an id. What is new waits in memory, within bounds, and goes into one pack, since a file and
two syncs for each object would be most of a snapshot's cost.

Nothing is written or removed through a link: one that stands in the way is a refusal.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from endstate_action.errors import SnapshotDamaged
from endstate_action.state.snapshot import base, store_files
from endstate_action.state.snapshot.layout import confirm, lay_out, renew
from endstate_action.state.snapshot.packed import PIECE_BYTES, Pack, PackDamaged
from endstate_action.state.snapshot.packing import entry, write_pack
from endstate_action.state.snapshot.refusals import writing
from endstate_action.system import own_files
from endstate_action.system.durable import start_writing, sync
from endstate_action.system.git_call import TIMEOUT_S, Git, GitError, only_reads
from endstate_action.system.process import Completed, capture

Kind = Literal["blob", "tree", "commit"]

TREE, LINK, FILE, EXECUTABLE = 0o40000, 0o120000, 0o100644, 0o100755
"""The modes of a tree's entries; `GITLINK` occurs in the project's trees only."""
GITLINK = 0o160000

# Without O_NONBLOCK, opening a fifo in an object's place would wait for a writer for ever.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_SMALL_BYTES = 1 << 20
"""A larger file is not held in memory, and becomes a file of its own."""
_FRESH_BYTES = 32 << 20
_SMALL_PACK_BYTES = 4 << 20
_MANY_PACKS = 50
_LEVEL = 1
_PART = "tmp_obj_"
_FOLDER = re.compile("[0-9a-f]{2}")


class FileChanged(Exception):
    """A file did not hold as many bytes as it was said to; nothing was written."""


class Entry(NamedTuple):
    """One name in a tree. `mode` is `TREE`, `LINK`, `FILE`, `EXECUTABLE` or `GITLINK`."""

    mode: int
    name: bytes
    id: str


class ObjectStore:
    """The store at `path`, which is made if missing. One process at a time writes to it.

    Args:
        path: no component of it may be a link.
        object_format: `sha1` or `sha256`, as the project's repository has it.
        env: gives PATH; nothing else of it reaches git.
        workspace: programs in here are never run, whatever PATH says.

    Raises:
        DiskFull, StateReadOnly, StateError: by everything that writes.
    """

    def __init__(
        self,
        path: Path,
        object_format: str = "sha1",
        env: Mapping[str, str] = MappingProxyType({}),
        *,
        workspace: Path | None = None,
    ) -> None:
        self.path = path.absolute()
        self.object_format = object_format
        self._new_hash: Callable[[bytes], Any] = hashlib.sha256 if object_format == "sha256" else hashlib.sha1
        self._objects = os.fspath(self.path / "objects")
        self._pack_dir = self.path / "objects" / "pack"
        self._fresh: dict[str, tuple[str, bytes, bytes]] = {}
        """Kind, content and packed form of what is not on the disk yet."""
        self._fresh_bytes = 0
        self._sound: set[str] = set()
        self._unsynced: set[str] = set()
        self._new_names: set[str] = set()
        """Directories that hold names which are not durable yet."""
        self._packs: dict[str, Pack] = {}
        self._stale = True
        user = Git.for_user((workspace or path).absolute(), self.path, env)
        self._git = user.closed({}, "all") if user else None
        with writing("The snapshot store was not made"):
            self.identity = lay_out(self.path, object_format)

    @property
    def has_git(self) -> bool:
        return self._git is not None

    def write(self, kind: Kind, data: bytes) -> str:
        """The id under which `data` is now to be read. Durable after `sync` only."""
        name = self._name(kind, data)
        if name not in self._fresh and not self._holds(name):
            self._fresh[name] = (kind, data, entry(kind, data))
            self._fresh_bytes += len(data)
            if self._fresh_bytes > _FRESH_BYTES:
                self._pack_fresh()
        return name

    def write_file(self, fd: int, size: int) -> str:
        """The id of a blob with what can be read from `fd` at its start, in bounded memory.

        Raises:
            FileChanged: it holds more or less than `size` bytes, or changed between two looks.
            OSError: it cannot be read.
        """
        if size <= _SMALL_BYTES:
            data = b"".join(_pieces_of(fd, size))
            return self.write("blob", data)
        name = self._id_of(fd, size)
        if not self._holds(name):
            with writing("A large file was not put into the snapshot"):
                self._put(name, self._compressed(fd, size, name))
        return name

    def sync(self) -> None:
        """Everything written so far is durable when this returns."""
        self._pack_fresh()
        files = {self._loose(name) for name in self._unsynced}
        directories = {os.path.dirname(path) for path in files}
        with writing("A snapshot was not made durable"):
            sync(files, directories | self._new_names)
            self._merge_packs()
        self._unsynced.clear()
        self._new_names.clear()

    def read(self, name: str) -> tuple[str, bytes]:
        """Kind and content of an object, in memory.

        Raises:
            SnapshotDamaged: it is missing, or not what its id says.
        """
        kind, size, pieces = self._open(name)
        content = b"".join(pieces)
        self._check(name, kind, size, content)
        return kind, content

    def read_many(self, names: Iterable[str]) -> Iterator[tuple[str, str, bytes]]:
        """Id, kind and content of each, one in memory at a time; for what is known to be small."""
        return ((name, *self.read(name)) for name in names)

    def open_blob(self, name: str) -> Iterator[bytes]:
        """The content in pieces. Believe it only when the last one has come: then its id has been checked.

        Raises:
            SnapshotDamaged: it is missing, no blob, or not what its id says.
        """
        kind, size, pieces = self._open(name)
        if kind != "blob":
            raise _damaged(name, f"is a {kind} where a file's content was expected")
        content = self._new_hash(b"blob %d\0" % size)
        for piece in pieces:
            content.update(piece)
            yield piece
        if content.hexdigest() != name:
            raise _damaged(name, "is not what its id says")

    def pieces(self, name: str) -> Iterator[bytes]:
        """The content of whatever it is, in bounded memory; its id is not checked.

        Raises:
            SnapshotDamaged: it is missing, or cannot be read.
        """
        return self._open(name)[2]

    def missing(self, names: Iterable[str]) -> set[str]:
        """Those that are not there. What is there has not been read."""
        missing = self._lacking(set(names))
        if missing:
            self._look_for_packs()
        return self._lacking(missing)

    def tree_entries(self, name: str) -> list[Entry]:
        """What a tree holds, in git's order.

        Raises:
            SnapshotDamaged: it is missing or no tree.
        """
        kind, data = self.read(name)
        if kind != "tree":
            raise _damaged(name, f"is a {kind} where a directory was expected")
        width, at, entries = len(name) // 2, 0, []
        try:
            while at < len(data):
                space, end = data.index(b" ", at), data.index(b"\0", at)
                found = data[end + 1 : end + 1 + width]
                if len(found) != width:
                    raise ValueError
                entries.append(Entry(int(data[at:space], 8), data[space + 1 : end], found.hex()))
                at = end + 1 + width
        except ValueError:
            raise _damaged(name, "is no tree") from None
        return entries

    def git(
        self,
        *argv: str,
        input: bytes | None = None,
        extra_env: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Completed:
        """Run git on this store, with nothing of the user's and nothing of the project's configuration.

        What it writes is synced by git itself.

        Raises:
            GitError: there is no git program, or it did not finish.
        """
        if self._git is None:
            raise GitError("There is no git program.")
        env = {**self._git.env, "HOME": "/nonexistent", **(extra_env or {})}
        self._pack_fresh()
        with writing("Git was not asked"):
            confirm(self.path)
        self._stale = True
        try:
            return capture(
                [self._git.program, *argv],
                cwd=self.path,
                env=env,
                input=input,
                timeout_s=timeout_s,
                may_outlive_us=only_reads(argv),
            )
        except OSError as error:
            raise GitError(f"git {argv[0]} did not work: {error}") from error

    def import_base(self, repository_git_dir: Path, commit: str) -> None:
        """Keep a commit of the project; see `base.import_base`."""
        base.import_base(self, repository_git_dir, commit)

    def is_whole(self, commit: str) -> bool:
        """Whether `import_base` found all content of the commit."""
        return base.is_whole(self, commit)

    def keep_only(self, wanted: AbstractSet[str]) -> None:
        """Delete every object but these. Killed at any point, these are there and read as before.

        The identity changes first, and so does everything that was remembered of this store become void.

        Raises:
            SnapshotDamaged: one of them cannot be read where it stands beside others. Nothing wanted was deleted.
        """
        self.sync()
        with writing("Nothing was deleted from the snapshot store"):
            self.identity = renew(self.path)
        with writing("The snapshot store was not cleared of all that nobody needs"):
            self._look_for_packs()
            for name, pack in list(self._packs.items()):
                self._keep_of(name, pack, wanted)
            self._remove_loose(wanted)
            self._remove_parts()
        self._sound &= wanted

    def _keep_of(self, index: str, pack: Pack, wanted: AbstractSet[str]) -> None:
        names = set(pack.names())
        kept = names & wanted
        if kept == names:
            return
        entries: dict[bytes, bytes] = {}
        size = 0
        for name, kind, content in self.read_many(sorted(kept)):
            entries[bytes.fromhex(name)] = packed = entry(kind, content)
            size += len(packed)
            if size > _FRESH_BYTES:
                write_pack(self._pack_dir, entries, self._new_hash)
                entries, size = {}, 0
        if entries:
            write_pack(self._pack_dir, entries, self._new_hash)
        sync((), [os.fspath(self._pack_dir)])
        self._remove_packs([index])

    def _remove_loose(self, wanted: AbstractSet[str]) -> None:
        for folder in own_files.names(Path(self._objects)):
            if _FOLDER.fullmatch(folder):
                with own_files.directory(Path(self._objects)) as top, store_files.below(top, folder) as place:
                    for name in os.listdir(place):
                        if folder + name not in wanted:
                            own_files.remove(name, place)

    def _remove_parts(self) -> None:
        """What a kill has left half written or half removed: a pack counts only with its index."""
        packs = own_files.names(self._pack_dir)
        whole = {name.removesuffix(".idx") for name in packs if name.endswith(".idx")}
        left = [(self._pack_dir, name) for name in packs if name.partition(".")[0] not in whole]
        left += [(Path(self._objects), n) for n in own_files.names(Path(self._objects)) if n.startswith(_PART)]
        for folder, name in left:
            with own_files.directory(folder) as place:
                own_files.remove(name, place)

    def _holds(self, name: str) -> bool:
        """Whether it is there and sound, so that it need not be written."""
        if name in self._sound or self._packed(name) is not None:
            return True
        # A kill leaves no part of an object under its name, but a power cut may: hence read, and synced once more.
        with suppress(SnapshotDamaged):
            if os.path.lexists(self._loose(name)):
                self._check(name, *self._gathered(name))
                self._sound.add(name)
                self._unsynced.add(name)
                return True
        return False

    def _gathered(self, name: str) -> tuple[str, int, bytes]:
        kind, size, pieces = self._open_loose(name)
        return kind, size, b"".join(pieces)

    def _lacking(self, names: set[str]) -> set[str]:
        if self._stale:
            self._look_for_packs()
        missing = names - self._fresh.keys()
        for pack in self._packs.values():
            missing = pack.lacks(missing)
        return {name for name in missing if not os.path.lexists(self._loose(name))}

    def _name(self, kind: str, content: bytes) -> str:
        return str(self._new_hash(b"%s %d\0%s" % (kind.encode(), len(content), content)).hexdigest())

    def _pack_fresh(self) -> None:
        """Onto the disk, all or nothing; its name is durable after `sync`."""
        if not self._fresh:
            return
        entries = {bytes.fromhex(name): packed for name, (_, _, packed) in self._fresh.items()}
        with writing("Objects of a snapshot were not written"):
            write_pack(self._pack_dir, entries, self._new_hash)
        self._new_names.add(os.fspath(self._pack_dir))
        self._fresh.clear()
        self._fresh_bytes = 0
        self._stale = True

    def _merge_packs(self) -> None:
        """Put many small packs into one, so that looking something up stays quick."""
        self._look_for_packs()
        small = {name: pack for name, pack in self._packs.items() if pack.size < _SMALL_PACK_BYTES}
        if len(small) < _MANY_PACKS:
            return
        parts = {name: entries for name, pack in small.items() if (entries := pack.entries()) is not None}
        write_pack(self._pack_dir, dict(_chained(parts.values())), self._new_hash)
        sync((), [os.fspath(self._pack_dir)])
        self._remove_packs(parts)

    def _remove_packs(self, indexes: Iterable[str]) -> None:
        with own_files.directory(self._pack_dir) as place:
            for name in indexes:
                # The index first: git must not find one without its pack.
                os.unlink(name, dir_fd=place)
                os.unlink(name.removesuffix(".idx") + ".pack", dir_fd=place)
        self._look_for_packs()

    def _put(self, name: str, pieces: Iterable[bytes]) -> None:
        part = f"{_PART}{name}"
        with own_files.directory(Path(self._objects)) as top:
            store_files.new_file(top, part, pieces, start_writing)
            try:
                with store_files.below(top, name[:2], make=True) as place:
                    os.rename(part, name[2:], src_dir_fd=top, dst_dir_fd=place)
            except BaseException:
                store_files.discard(top, part)
                raise
        self._sound.add(name)
        self._unsynced.add(name)
        self._new_names.add(self._objects)

    def _id_of(self, fd: int, size: int) -> str:
        content = self._new_hash(b"blob %d\0" % size)
        for piece in _pieces_of(fd, size):
            content.update(piece)
        return str(content.hexdigest())

    def _compressed(self, fd: int, size: int, name: str) -> Iterator[bytes]:
        header = b"blob %d\0" % size
        pack, content = zlib.compressobj(_LEVEL), self._new_hash(header)
        yield pack.compress(header)
        for piece in _pieces_of(fd, size):
            content.update(piece)
            yield pack.compress(piece)
        if content.hexdigest() != name:
            raise FileChanged
        yield pack.flush()

    def _loose(self, name: str) -> str:
        return f"{self._objects}/{name[:2]}/{name[2:]}"

    def _packed(self, name: str) -> tuple[Pack, int] | None:
        if self._stale:
            self._look_for_packs()
        raw = bytes.fromhex(name)
        for pack in self._packs.values():
            at = pack.find(raw)
            if at is not None:
                return pack, at
        return None

    def _look_for_packs(self) -> None:
        width = self._new_hash(b"").digest_size
        there = {name for name in own_files.names(self._pack_dir) if name.endswith(".idx")}
        self._packs = {name: pack for name, pack in self._packs.items() if name in there}
        for name in sorted(there - self._packs.keys()):
            with suppress(OSError, PackDamaged):
                self._packs[name] = Pack(self._pack_dir / name, width)
        self._stale = False

    def _open(self, name: str) -> tuple[str, int, Iterator[bytes]]:
        if name in self._fresh:
            kind, content, _ = self._fresh[name]
            return kind, len(content), iter((content,))
        packed = self._packed(name)
        if packed is None and not os.path.lexists(self._loose(name)):
            # Somebody may have put a pack there.
            self._look_for_packs()
            packed = self._packed(name)
        if packed is None:
            return self._open_loose(name)
        try:
            kind, size, pieces = packed[0].open(packed[1])
        except PackDamaged as error:
            raise _damaged(name, f"cannot be read: {error}") from error
        return kind, size, _translating(name, pieces)

    def _open_loose(self, name: str) -> tuple[str, int, Iterator[bytes]]:
        try:
            fd = os.open(self._loose(name), _READ)
        except OSError as error:
            raise _damaged(name, "is missing" if error.errno == errno.ENOENT else f"cannot be read: {error}") from error
        pieces = _translating(name, _inflated(fd))
        first = next(pieces, b"")
        header, _, rest = first.partition(b"\0")
        try:
            kind, length = header.decode("ascii").split(" ")
            size = int(length)
        except ValueError:
            raise _damaged(name, "is no object") from None
        return kind, size, _behind(rest, pieces)

    def _check(self, name: str, kind: str, size: int, content: bytes) -> None:
        if size != len(content) or self._name(kind, content) != name:
            raise _damaged(name, "is not what its id says")


def _pieces_of(fd: int, size: int) -> Iterator[bytes]:
    """Exactly `size` bytes from the start; raises `FileChanged` if there are more or less."""
    at = 0
    while at < size:
        piece = os.pread(fd, min(PIECE_BYTES, size - at), at)
        if not piece:
            raise FileChanged
        at += len(piece)
        yield piece
    if os.pread(fd, 1, size):
        raise FileChanged


def _inflated(fd: int) -> Iterator[bytes]:
    unpack = zlib.decompressobj()
    with os.fdopen(fd, "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise zlib.error("it is no ordinary file")
        while not unpack.eof:
            piece = unpack.unconsumed_tail or file.read(PIECE_BYTES)
            if not piece:
                raise zlib.error("it is cut off")
            yield unpack.decompress(piece, PIECE_BYTES)


def _behind(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def _translating(name: str, pieces: Iterator[bytes]) -> Iterator[bytes]:
    try:
        yield from pieces
    except (OSError, zlib.error, PackDamaged) as error:
        raise _damaged(name, f"cannot be read: {error}") from error


def _damaged(name: str, how: str) -> SnapshotDamaged:
    return SnapshotDamaged(
        f"Object {name} of the snapshot store {how}. The workspace was not changed because of it.",
        hint="Another checkpoint may be whole. Here, remove `objects` from the state directory and resume: what can be "
        "had again is, and a call that cannot be rolled back without it is refused.",
    )


def _chained(parts: Iterable[Mapping[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    for part in parts:
        yield from part.items()
