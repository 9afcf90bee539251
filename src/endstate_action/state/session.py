"""The session: one append-only journal in SQLite, one session per file, state is a fold of it.

There is no save call. `Session.append` commits a record durably and only then changes memory, so
that nothing is ever known to the run that is not on disk. A failed write raises before anything
else can happen.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NoReturn, Self, TypeAlias

from endstate_action.errors import (
    DiskFull,
    EndstateError,
    InputError,
    Locked,
    NewerFormat,
    RecordConflict,
    SessionDamaged,
    StateError,
    StateReadOnly,
    StateReplaced,
    UnknownSession,
)
from endstate_action.messages import Message, Usage
from endstate_action.state.directory import COUNT, closed
from endstate_action.state.fold import State
from endstate_action.state.records import (
    FORMAT,
    Begun,
    Finished,
    Prompt,
    Record,
    Replied,
    Settled,
    all_kept,
    decode,
    encode,
)
from endstate_action.system.files import sync_directory
from endstate_action.system.mounts import filesystem_type, is_network_filesystem

APPLICATION_ID = 0x454E4453  # "ENDS"
BUSY_TIMEOUT_MS = 5_000
PAGE_BYTES = 2_048
"""A record rewrites whole pages: half of SQLite's usual size writes a third less, and reads as fast."""
SCHEMA = "CREATE TABLE journal (seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, body TEXT NOT NULL)"
MIGRATIONS: dict[int, Callable[[sqlite3.Connection], None]] = {}
"""From format n to n + 1, applied to a copy; there has been one format so far."""

Row: TypeAlias = tuple[int, str, str]
"""Number, kind and body of a record, as they are stored."""

SUFFIX = ".db"
_LEAST_ROW_BYTES = 32
_ID = re.compile(r"[0-9a-f]{1,64}")
_SET_ASIDE = re.compile(r"[0-9a-f]{1,64}\.set-aside-[0-9]+")
"""What a restore took the place of and could not read: by this name it can be exported, and no listing has it."""

# The guard is part of the statement: what another program took away in between is noticed all the same.
_INSERT = "INSERT INTO journal SELECT ?1, ?2, ?3 WHERE (SELECT max(seq) FROM journal) IS ?1 - 1"


class _OthersWrote(sqlite3.IntegrityError):
    """The rows are not those that this session wrote or read."""

    def __init__(self) -> None:
        super().__init__("another process has added or removed records")
        self.sqlite_errorcode = sqlite3.SQLITE_CONSTRAINT


class Session:
    """An open session. Made by `SessionStore.create` and `SessionStore.open`; use it as a context manager."""

    def __init__(self, path: Path, db: sqlite3.Connection, state: State, journal_mode: str) -> None:
        self.path = path
        self.journal_mode = journal_mode
        self._db = db
        self._state = state
        self._file = _identity(path)
        self._version: int | None = None
        self._broken: EndstateError | None = None
        self._count = _Count(path)
        self._count.set(state.records)

    @property
    def id(self) -> str:
        return self._state.begun.session

    @property
    def state(self) -> State:
        return self._state

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()
        self._count.close()

    def append(self, *records: Record | Message) -> None:
        """Record durably, then remember: all of `records` or none. There is no unrecorded state.

        Each of `records` must follow from what is recorded already, not from another of them.

        A `Message` is accepted for what it says: a user's as a prompt, an assistant's as the next step's
        reply. Appending what is already there, with the same content, changes nothing.

        Raises:
            RecordConflict: a key that is taken was written with other content, or out of order.
            DiskFull, StateReadOnly, StateReplaced, Locked, StateError: nothing of `records` was
                recorded; the session accepts no further records, so that nothing can run on a lost one.
        """
        self.check()
        fresh: list[Record] = []
        for record in map(self._as_record, records):
            known = self._state.find(record)
            if known is None:
                self._refuse_disorder(record)
                fresh.append(record)
            elif encode(known) != encode(record):
                raise RecordConflict(
                    f"Record {record.kind} {record.key()} of session {self.id} exists with other content; "
                    "it was not overwritten.",
                    hint="This is a defect. Please report it with the output of `endstate sessions export`.",
                )
        if fresh:
            self._commit([(r.kind, encode(r)) for r in fresh])
            for record in fresh:
                self._state.add(record)
            self._count.set(self._state.records)

    def check(self) -> None:
        """Confirm that the database file is still the one that was opened, and that every record was written.

        Raises:
            StateReplaced: it was deleted or replaced; what is appended now would be lost with it.
            DiskFull, StateReadOnly, StateReplaced, Locked, StateError: why a record was not written, as said then.
        """
        if self._broken is not None:
            # Whoever tells of the end of a run that this ended must not tell of another cause.
            raise self._broken
        if _identity(self.path) != self._file:
            raise StateReplaced(
                f"The session's file {self.path} was deleted or replaced while the run was going on. "
                "No further call was run.",
                hint="Put the file back if you moved it. If checkpoints of the session are in a store, "
                f"`endstate run --resume --session {self.id} --store …` goes on; a new one does it all again.",
            )

    def _commit(self, rows: list[tuple[str, str]]) -> None:
        numbered = [(self._state.records + i, kind, body) for i, (kind, body) in enumerate(rows, start=1)]
        try:
            self._refuse_foreign_changes()
            if len(numbered) == 1:
                # One statement is one transaction and, in WAL mode, exactly one sync.
                written = self._db.execute(_INSERT, numbered[0]).rowcount
            else:
                self._db.execute("BEGIN IMMEDIATE")
                written = self._db.executemany(_INSERT, numbered).rowcount
            if written != len(numbered):
                raise _OthersWrote
            if self._db.in_transaction:
                self._db.execute("COMMIT")
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
            try:
                _translate(error, self.path, f"Record {numbered[0][0]} of session {self.id} was not written")
            except EndstateError as told:
                self._broken = told
                raise

    def _refuse_foreign_changes(self) -> None:
        """Count the rows where another program has committed since; a look at a number where none has."""
        (version,) = self._db.execute("PRAGMA data_version").fetchone()
        if version != self._version:
            (rows,) = self._db.execute("SELECT count(*) FROM journal").fetchone()
            if rows != self._state.records:
                raise _OthersWrote
            self._version = version

    def _as_record(self, given: Record | Message) -> Record:
        if not isinstance(given, Message):
            return given
        now = time.time()
        if given.role == "user":
            task = self._state.task + (1 if self._state.is_finished or not self._state.prompts else 0)
            return Prompt(secrets.token_hex(8), given.text, task, self._state.steps, now)
        step = self._state.steps + 1
        stop = "tool_use" if given.tool_calls else "end_turn"
        return Replied(step, f"step-{step}", "", given.blocks, stop, Usage(), None, now, self._state.epoch)

    def _refuse_disorder(self, record: Record) -> None:
        state = self._state
        match record:
            case Prompt() | Replied() if state.pending:
                wrong: str | None = f"{len(state.pending)} calls are still unanswered"
            case Settled() | Finished() if (record.step, record.index) not in state.pending:
                wrong = "there is no such unanswered call"
            case _:
                wrong = state.disorder(record)
        if wrong is None:
            return
        raise RecordConflict(
            f"Record {record.kind} {record.key()} of session {self.id} was refused: {wrong}. Nothing was written.",
            hint="This is a defect. Please report it with the output of `endstate sessions export`.",
        )


class _Count:
    """How many records were written, in a file beside the database.

    SQLite takes a write-ahead log that is cut, damaged or gone for one that ends there, so a shorter history would be
    read without a word, and what is behind it done again. This is written after the record and is not synced: a kill
    leaves it as it is or one too low, and a power cut perhaps lower, but nothing makes it higher than what there was.
    """

    def __init__(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        self._file: int | None = None
        with suppress(OSError):
            self._file = os.open(_count_file(path), flags, 0o600)

    def set(self, records: int) -> None:
        if self._file is not None:
            # A record that stands is no less recorded where this cannot be noted.
            with suppress(OSError):
                os.pwrite(self._file, b"%020d\n" % records, 0)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _count_file(path: Path) -> Path:
    return path.with_name(path.name + COUNT)


def _counted(path: Path) -> int:
    """What a `_Count` has noted; 0 where it can say nothing."""
    try:
        with open(os.open(_count_file(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            return int(file.read(32))
    except (OSError, ValueError):
        return 0


Condition: TypeAlias = Literal["readable", "damaged", "newer format", "not readable"]
"""Whether a session can be read, or would be by another release, or by another user, or not at all."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A session as `SessionStore.all` sees it; `problem` says why it cannot be read, if it cannot."""

    id: str
    state: State | None
    changed_at: float
    problem: str = ""
    condition: Condition = "readable"
    is_given_up: bool = False
    """Whether another one was begun in its place, as somebody asked."""

    @property
    def is_finished(self) -> bool:
        return self.state is not None and self.state.is_finished

    @property
    def is_waiting(self) -> bool:
        """Whether a resume goes on with it; of what cannot be read, it may be so."""
        return self.state is None or (self.state.was_asked and not self.is_finished and not self.is_given_up)


class SessionStore:
    """The sessions of one state directory, one database file each.

    Args:
        directory: where the files lie; created on the first `create`.
        filesystem: type of its file system; found out when not given. Decides the journal mode.
    """

    def __init__(self, directory: Path, *, filesystem: str | None = None) -> None:
        self.directory = Path(directory)
        self._filesystem = filesystem

    def create(
        self,
        bound: Mapping[str, Any] | None = None,
        *,
        session: str | None = None,
    ) -> Session:
        """Begin a session. Its file appears whole, with its first record, or not at all.

        Raises:
            InputError: a session of this id exists.
            DiskFull, StateReadOnly, StateError: it could not be made.
        """
        name = session or secrets.token_hex(6)
        path = self._path(name)
        begun = Begun(name, time.time(), bound or {})
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with self._made([(1, begun.kind, encode(begun))]) as made:
                if path.exists():
                    raise InputError(f"Session {name} exists already; nothing was begun.")
                _delete(path)  # what a killed removal has left of another one under this name
                made.replace(path)
            sync_directory(self.directory)
        except sqlite3.Error as error:
            _translate(error, path, "The session was not begun")
        except OSError as error:
            _translate_os(error, path, "The session was not begun")
        return self.open(name)

    def adopt(self, session: str, rows: Sequence[Row]) -> Path | None:
        """Make `rows`, from another machine, the whole journal of the session; what was here under its name goes.

        The new file is whole before the old one is touched. Killed in between, no session is here, or the new one
        without what belonged to the old: who restores has that on record, and does it again.

        Args:
            rows: of a checkpoint of this session; `open_checkpoint` has checked each of them.

        Returns:
            Where the file of before is now, if it could not be read: it may know of more than `rows` does.

        Raises:
            DiskFull, StateReadOnly, StateError: it could not be written.
            Locked: another program holds the file of before.
        """
        path, aside = self._path(session), None
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with self._made(rows) as made:
                if not self._is_known(session):
                    aside = _set_aside(path)
                # A WAL beside another database would be read as that one's.
                _delete(path)
                sync_directory(self.directory)
                made.replace(path)
            sync_directory(self.directory)
        except sqlite3.Error as error:
            _translate(error, path, f"Session {session} was not restored")
        except OSError as error:
            _translate_os(error, path, f"Session {session} was not restored")
        return aside

    def _is_known(self, session: str) -> bool:
        """Whether nothing is here under this name, or all of it could be read."""
        try:
            self.read(session)
        except UnknownSession:
            return True
        except (StateError, NewerFormat):
            return False
        return True

    @contextmanager
    def _made(self, rows: Sequence[Row]) -> Iterator[Path]:
        """A database with these rows, whole and synced, under a name of its own beside the sessions."""
        with tempfile.TemporaryDirectory(dir=self.directory, prefix=".new-") as scratch:
            made = Path(scratch) / "session"
            with closing(sqlite3.connect(made, isolation_level=None)) as db:
                db.execute(f"PRAGMA page_size={PAGE_BYTES}")
                db.execute("PRAGMA synchronous=FULL")
                db.execute(f"PRAGMA application_id={APPLICATION_ID}")
                db.execute(f"PRAGMA user_version={FORMAT}")
                db.execute(SCHEMA)
                db.execute("BEGIN IMMEDIATE")
                db.executemany("INSERT INTO journal VALUES (?, ?, ?)", rows)
                db.execute("COMMIT")
            yield made

    def open(self, session: str) -> Session:
        """Open a session for writing.

        Raises:
            UnknownSession, NewerFormat, SessionDamaged, StateReadOnly, StateError.
        """
        path = self._existing(session)
        migrate(path, MIGRATIONS, FORMAT)
        db = _connect(path)
        try:
            mode = self._set_journal_mode(db)
            db.execute("PRAGMA synchronous=FULL")
            state = _load(db, path)
        except sqlite3.Error as error:
            db.close()
            _translate(error, path, f"Session {session} was not opened")
        except BaseException:
            db.close()
            raise
        return Session(path, db, state, mode)

    def read(self, session: str) -> State:
        """Load a session without writing a byte; works on a read-only directory and beside a running writer.

        Raises:
            UnknownSession, NewerFormat, SessionDamaged.
        """
        path = self._existing(session)
        with self._reading(path, "The session was not read") as db:
            _refuse_newer(db, path)
            return _load(db, path)

    def journal(self, session: str, after: int = 0) -> list[Row]:
        """The rows behind number `after`, as they were at one moment; may be asked beside the writer.

        Raises:
            UnknownSession, SessionDamaged, StateError.
        """
        path = self._existing(session)
        with self._reading(path, "The session was not read") as db:
            # One statement is one transaction: no row of a later one can be among them.
            return db.execute("SELECT seq, kind, body FROM journal WHERE seq > ? ORDER BY seq", (after,)).fetchall()

    def rows(self, session: str) -> Iterator[Row]:
        """The raw rows `(seq, kind, body)`, for export; also where a row cannot be understood.

        Raises:
            SessionDamaged: after the last row that could be read, if some could not; the text says which.
        """
        path = self._existing(session)
        with self._reading(path, f"Session {session} was not exported", is_salvage=True) as db:
            # Text that is none must not hide the row that it stands in.
            db.text_factory = lambda data: data.decode("utf-8", "backslashreplace")
            if not _answers(db):
                _unreadable(path)
            lost = _Lost(path)
            for seq, kind, body in _salvaged(db, _most_rows(path)):
                lost.now_at(seq)
                yield seq, _as_text(kind), _as_text(body)
            lost.end(_last_or_none(db))

    def all(self) -> list[Listed]:
        """All sessions, the one with the newest record first. A damaged one is listed with its problem.

        When a record was written is what it says itself: a copy, or a look, makes nothing newer.
        """
        found = []
        for path in self._files(_ID):
            try:
                state = self.read(_name(path))
            except (StateError, NewerFormat) as error:
                found.append(Listed(_name(path), None, _changed_at(path), str(error), _condition(error)))
            else:
                found.append(Listed(_name(path), state, state.changed_at))
        given_up = {s.state.begun.bound.get("instead-of") for s in found if s.state and s.state.was_asked}
        found = [replace(s, is_given_up=s.id in given_up) for s in found]
        return sorted(found, key=lambda s: (s.changed_at, s.id), reverse=True)

    def names(self) -> list[str]:
        """Ids of the sessions here, readable or not."""
        return sorted(map(_name, self._files(_ID)))

    def set_aside(self) -> list[str]:
        """Names of what restores took the place of and could not read. `rows`, `find` and `remove` know them too."""
        return sorted(map(_name, self._files(_SET_ASIDE)))

    def find(self, prefix: str) -> str:
        """The one session whose id begins with `prefix`.

        Raises:
            UnknownSession: none does.
            InputError: several do.
        """
        names = self.names()
        if prefix in self.set_aside():
            return prefix
        matching = [n for n in names if n.startswith(prefix)]
        if prefix in matching:
            return prefix
        if len(matching) > 1:
            raise InputError(
                f"Session {prefix!r} could be {', '.join(matching)}; nothing was run.", hint="Give more digits."
            )
        if not matching or not prefix:
            known = f"Known: {', '.join(names)}." if names else "There is none yet."
            raise UnknownSession(
                f"There is no session {prefix!r} in {self.directory}; nothing was run. {known}",
                hint="Is this the directory of that session? `endstate sessions list` shows those that are here.",
            )
        return matching[0]

    def remove(self, session: str) -> None:
        """Delete a session's files, and those of it that were set aside."""
        path = self._existing(session)
        try:
            for name in self.set_aside():
                if name.startswith(f"{session}."):
                    _delete(self._path(name))
            _delete(path)
        except OSError as error:
            _translate_os(error, path, f"Session {session} was not removed completely")

    def _path(self, session: str) -> Path:
        if not _ID.fullmatch(session) and not _SET_ASIDE.fullmatch(session):
            raise UnknownSession(f"{session!r} is no session id; nothing was run.", hint="An id has 12 hex digits.")
        return self.directory / (session + SUFFIX)

    def _existing(self, session: str) -> Path:
        path = self._path(session)
        try:
            is_link, is_file = path.is_symlink(), path.is_file()
        except PermissionError as error:
            raise closed(self.directory) from error
        if is_link:
            raise StateError(f"{path} is a symbolic link, so it was not opened.", hint="Remove the link.")
        if not is_file and _count_file(path).exists():
            what = "something else stands in its place" if os.path.lexists(path) else "it is gone"
            raise SessionDamaged(
                f"The file of session {session} is not there: {what}. It was not opened, and nothing was run.",
                hint=f"Put {path} back if you moved it. {_from_store(path)}",
            )
        if not is_file:
            raise UnknownSession(
                f"There is no session {session} in {self.directory}; nothing was run.",
                hint="`endstate sessions list` shows the sessions there are.",
            )
        return path

    def _files(self, kind: re.Pattern[str]) -> list[Path]:
        """What can be a session by its name, or was one; anything else that lies here is none of ours."""
        try:
            with os.scandir(self.directory) as entries:
                found = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except PermissionError as error:
            raise closed(self.directory) from error
        # One of which only the count is left has been lost, and not removed.
        names = {name.removesuffix(COUNT) for name in found if name.removesuffix(COUNT).endswith(SUFFIX)}
        return [self.directory / name for name in names if kind.fullmatch(name.removesuffix(SUFFIX))]

    def _set_journal_mode(self, db: sqlite3.Connection) -> str:
        kind = filesystem_type(self.directory) if self._filesystem is None else self._filesystem
        # WAL keeps its index in shared memory, which network file systems do not share; unknown counts as network.
        wanted = "delete" if kind == "" or is_network_filesystem(kind) else "wal"
        (got,) = db.execute(f"PRAGMA journal_mode={wanted}").fetchone()
        return str(got)

    @contextmanager
    def _reading(self, path: Path, what: str, *, is_salvage: bool = False) -> Iterator[sqlite3.Connection]:
        """A connection that writes nothing. `what` begins the message where there is none."""
        # Of a file that is shorter than its first page says SQLite reads nothing, unless it is so set.
        lenient = f"PRAGMA writable_schema={is_salvage:d}"
        # Not by opening it: closing it again would let go of the locks that SQLite holds in this process.
        if not os.access(path, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
            raise closed(path)
        try:
            with closing(_connect_readonly(path)) as db:
                db.execute(lenient)
                if _answers(db):
                    yield db
                    return
            # A WAL database in a directory that cannot be written is read from a private copy.
            with tempfile.TemporaryDirectory() as scratch, closing(_connect(_copied(path, Path(scratch)))) as db:
                db.execute(lenient)
                yield db
        except sqlite3.Error as error:
            _translate(error, path, what)
        except PermissionError as error:
            raise closed(path) from error
        except OSError as error:
            _translate_os(error, path, what)


def _delete(path: Path) -> None:
    """A database and what belongs to it, itself before its WAL: without that it would be a shorter history.

    Before both its count, which without them would speak of a session that was lost.
    """
    for suffix in (COUNT, "", "-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _set_aside(path: Path) -> Path | None:
    """Move a database and what belongs to it to where no listing looks; None where nothing of it is there.

    Itself first, and its count is left for `_delete`: as long as that is there, nobody clears away what belongs to it.
    Killed in between, it is to be called again: no name is taken twice, so the rest joins what went before.
    """
    there = [suffix for suffix in ("", "-wal", "-shm", "-journal") if os.path.lexists(f"{path}{suffix}")]
    names = (path.with_name(f"{_name(path)}.set-aside-{number}{SUFFIX}") for number in count())
    aside = next(name for name in names if not any(os.path.lexists(f"{name}{suffix}") for suffix in there))
    for suffix in there:
        os.rename(f"{path}{suffix}", f"{aside}{suffix}")
    return aside if there else None


def _answers(db: sqlite3.Connection) -> bool:
    try:
        db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error:
        return False
    return True


def _copied(path: Path, scratch: Path) -> Path:
    for suffix in ("", "-wal"):
        source = path.with_name(path.name + suffix)
        if source.exists():
            shutil.copyfile(source, scratch / source.name, follow_symlinks=False)
    return scratch / path.name


def _salvaged(db: sqlite3.Connection, at_most: int) -> Iterator[tuple[int, Any, Any]]:
    """Every row that can be read, in order: all before the damage at once, those after it one by one."""
    seq = 0
    with suppress(sqlite3.DatabaseError):
        for row in db.execute("SELECT seq, kind, body FROM journal ORDER BY seq"):
            if row[0] <= seq:
                break  # what is missing of a page counts as zeros, and so do its rows
            seq = row[0]
            yield row
        else:
            return
    for number in range(seq + 1, (_last_or_none(db) or at_most) + 1):
        with suppress(sqlite3.DatabaseError):
            yield from db.execute("SELECT seq, kind, body FROM journal WHERE seq = ?", (number,))


def _last_or_none(db: sqlite3.Connection) -> int | None:
    try:
        return _last(db)
    except (sqlite3.DatabaseError, TypeError):
        return None


def _most_rows(path: Path) -> int:
    """More rows than the files at `path` can hold."""
    return sum(p.stat().st_size for p in (path, path.with_name(path.name + "-wal")) if p.exists()) // _LEAST_ROW_BYTES


def _condition(error: StateError | NewerFormat) -> Condition:
    match error:
        case NewerFormat():
            return "newer format"
        case SessionDamaged():
            return "damaged"
        case _:
            return "not readable"


def _as_text(value: object) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


@dataclass(slots=True)
class _Lost:
    """What is missing among the rows that could be read."""

    path: Path
    seen: int = 0
    gaps: list[str] = field(default_factory=list)

    def now_at(self, seq: int) -> None:
        self._until(seq)
        self.seen = seq

    def end(self, last: int | None) -> None:
        if last is not None:
            self._until(last + 1)
        elif self.seen:
            self.gaps.append(f"everything after {self.seen}")
        if not self.seen:
            _unreadable(self.path)
        if self.gaps:
            raise SessionDamaged(
                f"Session {_name(self.path)} is damaged: of its records, {', '.join(self.gaps)} could not be read. "
                "All others were printed.",
                hint=f"The file {self.path} was left as it is. {_from_store(self.path)}",
            )

    def _until(self, seq: int) -> None:
        first, last = self.seen + 1, seq - 1
        if first <= last:
            self.gaps.append(str(first) if first == last else f"{first} to {last}")


def _unreadable(path: Path) -> NoReturn:
    raise SessionDamaged(
        f"Nothing of session {_name(path)} can be read. {path} was left as it is.",
        hint=f"Keep a copy of it before anything else: SQLite's own `sqlite3 {shlex.quote(str(path))} .recover` may "
        f"find more in it. {_from_store(path)}",
    )


def _name(path: Path) -> str:
    return path.name.removesuffix(SUFFIX)


def _from_store(path: Path) -> str:
    """How to do without the file at `path`; what was set aside had another name before."""
    session, _, _ = _name(path).partition(".")
    return (
        f"With the store that its checkpoints went to, `endstate run --resume --session {session} --store …` goes on "
        "from there; `endstate run` begins a new session."
    )


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, timeout=BUSY_TIMEOUT_MS / 1000, check_same_thread=False)
    db.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
    return db


def _connect_readonly(path: Path) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode=ro"
    return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=BUSY_TIMEOUT_MS / 1000)


@all_kept()
def _load(db: sqlite3.Connection, path: Path) -> State:
    state: State | None = None
    # Before the rows are looked at: beside a writer there may be more of them by then, and never fewer.
    written = _counted(path)
    # One row at a time, so that the text of a long session is never in memory beside what it says.
    rows = db.execute("SELECT seq, kind, body FROM journal ORDER BY seq")
    for expected, (seq, kind, body) in enumerate(rows, start=1):
        if seq != expected:
            _damaged(path, f"record {expected} of {_last(db)} is missing")
        try:
            record = decode(kind, body)
        except ValueError as error:
            _damaged(path, f"record {seq} of {_last(db)} cannot be read: {error}")
        if state is None and isinstance(record, Begun):
            if record.session != _name(path):
                _damaged(path, f"it is a copy of session {str(record.session)[:64]!r} under another name")
            state = State(record)
        elif state is None or isinstance(record, Begun):
            _damaged(path, f"record {seq} of {_last(db)} is out of place")
        try:
            state.add(record)
        except ValueError as error:
            _damaged(path, f"record {seq} of {_last(db)} is out of place: {error}")
    if state is None:
        _damaged(path, "it has no records")
    if state.records < written:
        _damaged(path, f"{written} records were written and {state.records} are left, since its log was cut or damaged")
    return state


def _last(db: sqlite3.Connection) -> int:
    (number,) = db.execute("SELECT max(seq) FROM journal").fetchone()
    return int(number)


def _damaged(path: Path, what: str) -> NoReturn:
    raise SessionDamaged(
        f"Session {_name(path)} is damaged: {what}. It was not opened, and nothing was run.",
        hint=f"The file {path} was left as it is. `endstate sessions export {_name(path)}` saves what can be read. "
        f"{_from_store(path)}",
    )


def _refuse_newer(db: sqlite3.Connection, path: Path) -> int:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (application,) = db.execute("PRAGMA application_id").fetchone()
    if version > FORMAT:
        raise NewerFormat(
            f"Session {_name(path)} has state format {version}; this release reads up to {FORMAT}. "
            "It was not opened, and nothing was changed.",
            differences=(f"state format: {version} in the session, {FORMAT} here",),
            hint="Use the release that wrote it, or a newer one.",
        )
    if application != APPLICATION_ID or version < 1:
        _damaged(path, "it is no session of ours (application id or format differs)")
    return int(version)


def migrate(path: Path, migrations: Mapping[int, Callable[[sqlite3.Connection], None]], target_format: int) -> None:
    """Bring an older format forward, in a copy that replaces the original only when it is whole."""
    try:
        with closing(_connect_readonly(path)) as db:
            version = _refuse_newer(db, path)
            if version >= target_format:
                return
            copy = path.with_name(f".{path.name}.migrating")
            copy.unlink(missing_ok=True)
            with closing(_connect(copy)) as target:
                db.backup(target)
                for step in range(version, target_format):
                    target.execute("BEGIN IMMEDIATE")
                    migrations[step](target)
                    target.execute(f"PRAGMA user_version={step + 1}")
                    target.execute("COMMIT")
                target.execute("PRAGMA journal_mode=delete")
                _load(target, path)
        for suffix in ("-wal", "-shm", COUNT):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        copy.replace(path)
        sync_directory(path.parent)
    except sqlite3.Error as error:
        _translate(error, path, "The session was not opened")


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return (found.st_dev, found.st_ino)


def _changed_at(path: Path) -> float:
    """When the files of a session that cannot be read were last written."""
    try:
        return max(p.stat().st_mtime for p in (path, path.with_name(path.name + "-wal")) if p.exists())
    except (OSError, ValueError):
        return 0.0


def _translate(error: sqlite3.Error, path: Path, what: str) -> NoReturn:
    """SQLite's words, as what did not happen and what to do."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    still = "Everything recorded before is still there; no call was run on a lost record."
    if code == sqlite3.SQLITE_IOERR and _is_full(path):
        code = sqlite3.SQLITE_FULL  # a file beside the database had no room
    match code:
        case sqlite3.SQLITE_FULL:
            raise DiskFull(
                f"{what}: disk full. {still}", hint="Free some space, then `endstate run --resume`."
            ) from error
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            raise StateReadOnly(
                f"{what}: {path} cannot be written. {still}", hint="Make it writable, then `endstate run --resume`."
            ) from error
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            raise Locked(
                f"{what}: another process has held the database {path} for over {BUSY_TIMEOUT_MS // 1000} s. {still}",
                hint="Close the program that has it open, then `endstate run --resume`.",
            ) from error
        case sqlite3.SQLITE_CONSTRAINT:
            raise StateReplaced(
                f"{what}: another process has written to {path}, so its records are not those of this run. "
                "No further call was run.",
                hint="Only one run may use a session, and nothing else may write to its file. "
                f"`endstate sessions show {_name(path)}` tells whether it can still be read.",
            ) from error
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_ERROR:
            raise SessionDamaged(
                f"{what}: {path} is damaged ({error}). The file was left as it is.",
                hint=f"`endstate sessions export {_name(path)}` saves what can be read, if anything can. "
                f"{_from_store(path)}",
            ) from error
        case _:
            raise StateError(
                f"{what}: {error} ({path}). {still}", hint="Check the disk, then `endstate run --resume`."
            ) from error


def _is_full(path: Path) -> bool:
    try:
        return os.statvfs(path.parent).f_bavail == 0
    except OSError:
        return False


def _translate_os(error: OSError, path: Path, what: str) -> NoReturn:
    if error.errno in (28, 122):
        raise DiskFull(f"{what}: disk full ({path}).", hint="Free some space and try again.") from error
    raise StateReadOnly(f"{what}: {path} ({error.strerror}).", hint="The directory must be writable.") from error
