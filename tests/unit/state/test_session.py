"""A session: what was appended is there after anything, and nothing else is."""

from __future__ import annotations

import gc
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from endstate_action.effects import EffectClass
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
from endstate_action.messages import Message, ToolCall, Usage
from endstate_action.state.directory import StateDirectory
from endstate_action.state.records import (
    FORMAT,
    Attempt,
    Ended,
    Finished,
    Note,
    Prompt,
    Replied,
    Started,
    StartEnded,
    all_kept,
    decode,
    encode,
)
from endstate_action.state.session import Session, SessionStore, migrate
from tests.support.own_disk import on_a_disk_of_its_own
from tests.support.trees import as_ordinary_user
from tests.support.workspaces import a_place_for_anybody


@pytest.fixture
def store(tmp_path: Path) -> SessionStore:
    return SessionStore(tmp_path / "sessions", filesystem="ext4")


@pytest.fixture
def session(store: SessionStore) -> Iterator[Session]:
    with store.create() as opened:
        yield opened


def an_attempt(epoch: int = 1) -> Attempt:
    return Attempt(epoch, 1.0, "0", {}, {}, "wal", "fake", "m")


def a_reply(step: int = 1, *names: str, epoch: int = 1, text: str = "") -> Replied:
    calls = [ToolCall(f"c{i}", name, {}) for i, name in enumerate(names)]
    return Replied(step, f"m{step}", "m", Message.assistant(text, *calls).blocks, "tool_use", Usage(), None, 1.0, epoch)


def finished(step: int, index: int, content: str = "ok") -> Finished:
    return Finished(step, index, f"c{index}", "ok", content, 1, 1.0)


def started(step: int, index: int, epoch: int = 1) -> Started:
    return Started(step, index, f"c{index}", EffectClass.READS, epoch, 1.0, "t")


def file_of(store: SessionStore) -> Path:
    (path,) = store.directory.glob("*.db")
    return path


def change(store: SessionStore, sql: str, *values: object) -> None:
    with closing(sqlite3.connect(file_of(store))) as db, db:
        db.execute(sql, values)


def test_what_was_appended_is_read_back_by_another_process(store: SessionStore, session: Session) -> None:
    session.append(an_attempt(), Prompt("p", "tâche \N{SNOWMAN}", 1, 0, 1.0))
    session.append(a_reply(1, "read", "write"))
    session.append(started(1, 0), finished(1, 0, "x\0y"))

    code = (
        "import sys; from pathlib import Path; from endstate_action import SessionStore\n"
        "s = SessionStore(Path(sys.argv[1])).read(sys.argv[2])\n"
        "print(s.records, ascii(s.prompts[0].text), s.finished[1, 0].content == 'x\\0y', list(s.pending))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(store.directory), session.id], capture_output=True, text=True, check=True
    )

    assert done.stdout.split(" ", 1) == ["6", "'t\\xe2che \\u2603' True [(1, 1)]\n"]


def test_every_kind_of_record_survives_its_row() -> None:
    for record in (
        an_attempt(),
        a_reply(2, "bash"),
        Replied(3, "m", "m", (), "end_turn", Usage(1, 2, 3, 4), "0.5", 1.0, 2, True, {0: "no", 3: "never"}),
        started(1, 0),
        StartEnded(1, 0, 1, "SIGTERM"),
        finished(1, 0),
        Note("n", "text", 1),
        Ended(1, 1, "stopped", "max-steps", 2.0, "et1:00"),
    ):
        assert decode(record.kind, encode(record)) == record


def test_appending_the_same_record_twice_changes_nothing(session: Session) -> None:
    session.append(an_attempt(), Prompt("p", "x", 1, 0, 1.0))
    before = session.state.records

    session.append(Prompt("p", "x", 1, 0, 1.0))

    assert session.state.records == before
    assert len(session.state.prompts) == 1


def test_a_key_is_never_overwritten_with_other_content(session: Session) -> None:
    session.append(an_attempt(), a_reply(1, "read"))
    session.append(finished(1, 0, "first"))

    with pytest.raises(RecordConflict, match="was not overwritten"):
        session.append(finished(1, 0, "second"))

    assert session.state.finished[1, 0].content == "first"


@pytest.mark.parametrize(
    "record",
    [
        Prompt("p", "too early", 1, 1, 1.0),
        a_reply(2),
        a_reply(3),
        started(1, 2),
        finished(1, 2),
        Finished(1, 1, "another id", "ok", "", 1, 1.0),
    ],
    ids=["a prompt before settling", "a reply before settling", "a gap", "no such call", "no such call 2", "wrong id"],
)
def test_records_out_of_order_are_refused_and_not_written(session: Session, record: Prompt) -> None:
    session.append(an_attempt(), a_reply(1, "read", "write"))
    session.append(finished(1, 0))
    before = session.state.records

    with pytest.raises(RecordConflict):
        session.append(record)

    assert session.state.records == before
    session.append(finished(1, 1))


def test_several_records_are_written_together_or_not_at_all(store: SessionStore, session: Session) -> None:
    with pytest.raises(RecordConflict):
        session.append(an_attempt(), a_reply(1, "read"), finished(1, 7))

    assert store.read(session.id).records == 1


def test_a_message_is_taken_for_what_it_says(session: Session) -> None:
    session.append(Message.user("do it"))
    session.append(Message.assistant("", ToolCall("t", "read", {"path": "a"})))

    assert session.state.prompts[0].text == "do it"
    assert session.state.pending[1, 0].call.name == "read"


def test_half_a_character_does_not_lose_a_record(store: SessionStore, session: Session) -> None:
    session.append(an_attempt(), a_reply(1, "read"))
    session.append(finished(1, 0, "\ud83d"))

    assert store.read(session.id).finished[1, 0].content == "\ufffd"


def test_wal_with_full_sync_is_used_on_a_local_disk(store: SessionStore, session: Session) -> None:
    assert session.journal_mode == "wal"
    assert session._db.execute("PRAGMA synchronous").fetchone() == (2,)
    assert session._db.execute("PRAGMA busy_timeout").fetchone() == (5000,)


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "9p", "fuse.sshfs", "ceph", ""])
def test_wal_is_never_used_where_memory_is_not_shared(tmp_path: Path, kind: str) -> None:
    """B05: an unknown file system counts as one that does not."""
    store = SessionStore(tmp_path, filesystem=kind)
    with store.create() as session:
        session.append(an_attempt())

        assert session.journal_mode == "delete"
        assert not list(tmp_path.glob("*-wal"))
        assert store.read(session.id).records == 2


def test_a_session_moves_between_file_systems(tmp_path: Path) -> None:
    with SessionStore(tmp_path, filesystem="ext4").create() as session:
        session.append(an_attempt())
    with SessionStore(tmp_path, filesystem="nfs4").open(session.id) as again:
        assert again.journal_mode == "delete"
        again.append(an_attempt(2))

    assert SessionStore(tmp_path).read(session.id).epoch == 2


def test_an_unknown_session_is_named_with_those_there_are(store: SessionStore, session: Session) -> None:
    with pytest.raises(UnknownSession, match=session.id):
        store.find("zzz")
    with pytest.raises(UnknownSession):
        store.open("0123456789ab" if session.id != "0123456789ab" else "0123456789ac")
    with pytest.raises(UnknownSession):
        store.open("../../etc/passwd")


def test_a_unique_prefix_will_do_and_an_ambiguous_one_will_not(tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    for name in ("aa11", "aa22", "bb33"):
        store.create(session=name).close()

    assert store.find("b") == "bb33"
    assert store.find("aa11") == "aa11"
    with pytest.raises(InputError, match="aa11, aa22"):
        store.find("aa")


def test_an_id_is_taken_once(store: SessionStore, session: Session) -> None:
    with pytest.raises(InputError, match="exists"):
        store.create(session=session.id)


def test_a_newer_format_is_refused_with_both_versions(store: SessionStore, session: Session) -> None:
    """B11: user_version 99."""
    session.close()
    change(store, "PRAGMA user_version=99")

    for attempt in (store.open, store.read):
        with pytest.raises(NewerFormat, match="99") as caught:
            attempt(session.id)
        assert caught.value.exit_code == 13
        assert str(FORMAT) in str(caught.value)
    assert [listed.condition for listed in store.all()] == ["newer format"]


def test_a_file_that_is_no_session_is_refused(store: SessionStore, session: Session) -> None:
    """B11: version 0, and no application id of ours."""
    session.close()
    change(store, "PRAGMA application_id=0")
    with pytest.raises(SessionDamaged, match="no session of ours"):
        store.open(session.id)
    file_of(store).write_bytes(b"not a database at all, but long enough to look at" * 100)
    with pytest.raises(SessionDamaged):
        store.open(session.id)


def test_an_older_format_is_brought_forward_in_a_copy(store: SessionStore, session: Session) -> None:
    session.append(an_attempt())
    session.close()
    path = file_of(store)

    def rename_kind(db: sqlite3.Connection) -> None:
        db.execute('UPDATE journal SET body = replace(body, \'"version":"0"\', \'"version":"migrated"\')')

    migrate(path, {FORMAT: rename_kind}, FORMAT + 1)

    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (FORMAT + 1,)
        assert "migrated" in db.execute("SELECT body FROM journal WHERE seq = 2").fetchone()[0]
    assert [p.name for p in store.directory.iterdir()] == [path.name]


def test_a_migration_that_fails_leaves_the_session_as_it_was(store: SessionStore, session: Session) -> None:
    session.append(an_attempt())
    session.close()

    def broken(db: sqlite3.Connection) -> None:
        db.execute("DELETE FROM journal WHERE seq = 1")

    with pytest.raises(SessionDamaged):
        migrate(file_of(store), {FORMAT: broken}, FORMAT + 1)

    assert store.read(session.id).epoch == 1


def test_an_unreadable_row_is_refused_by_its_number(store: SessionStore, session: Session) -> None:
    """A35: never a shorter history."""
    for epoch in range(1, 12):
        session.append(an_attempt(epoch))
    session.close()
    change(store, "UPDATE journal SET body = ? WHERE seq = 7", '{"role":"as')

    with pytest.raises(SessionDamaged, match=r"record 7 of 12"):
        store.open(session.id)
    assert store.all()[0].problem
    assert len(list(store.rows(session.id))) == 12


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM journal WHERE seq = 3",
        "UPDATE journal SET kind = 'what' WHERE seq = 3",
        "UPDATE journal SET body = '{}' WHERE seq = 3",
        "UPDATE journal SET body = x'ff00' WHERE seq = 3",
        "UPDATE journal SET kind = 'begun', body = (SELECT body FROM journal WHERE seq = 1) WHERE seq = 3",
        "DELETE FROM journal WHERE seq = 1",
        "DELETE FROM journal",
    ],
)
def test_a_journal_with_a_hole_is_never_a_shorter_history(store: SessionStore, session: Session, sql: str) -> None:
    for epoch in range(1, 4):
        session.append(an_attempt(epoch))
    session.close()
    change(store, sql)
    # What is noted of the number of records beside it may be gone as well.
    (store.directory / f"{session.id}.db-rows").unlink()

    with pytest.raises(SessionDamaged, match="nothing was run"):
        store.open(session.id)


def test_a_page_of_zeros_is_damage_and_not_a_traceback(store: SessionStore, session: Session) -> None:
    """B10: 4 KB zeroed in the database."""
    for epoch in range(1, 40):
        session.append(an_attempt(epoch))
    session.close()
    data = bytearray(file_of(store).read_bytes())
    data[4096:8192] = bytes(4096)
    file_of(store).write_bytes(data)

    with pytest.raises(SessionDamaged):
        store.open(session.id)


def a_long_session(tmp_path: Path, filesystem: str = "nfs") -> tuple[SessionStore, str, list[tuple[int, str, str]]]:
    """Closed, in one file of many pages; with all its rows."""
    store = SessionStore(tmp_path / "long", filesystem=filesystem)
    with store.create() as session:
        session.append(*(Note(str(number), "x" * 100, 0) for number in range(400)))
    return store, session.id, _all_rows(store)


def saved(store: SessionStore, session: str) -> tuple[list[tuple[int, str, str]], SessionDamaged | None]:
    found: list[tuple[int, str, str]] = []
    try:
        found.extend(store.rows(session))
    except SessionDamaged as error:
        return found, error
    return found, None


@pytest.mark.parametrize("pages", [[4], [4, 5, 9], [-1], [6, -1]])
def test_what_lies_around_the_damage_is_saved_and_the_loss_is_named(tmp_path: Path, pages: list[int]) -> None:
    store, session, whole = a_long_session(tmp_path)
    data = bytearray(file_of(store).read_bytes())
    for page in pages:
        at = page % (len(data) // 2048) * 2048
        data[at : at + 2048] = bytes(2048)
    file_of(store).write_bytes(data)

    found, error = saved(store, session)

    assert error is not None
    assert [row for row in whole if row in found] == found
    lost = sorted({row[0] for row in whole} - {row[0] for row in found})
    assert 0 < len(lost) < 40 * len(pages)
    assert f" {lost[0]} to " in str(error) or f"everything after {lost[0] - 1}" in str(error)
    assert file_of(store).read_bytes() == data


@pytest.mark.parametrize("first", [b"x" * 4096, bytes(4096), b""])
def test_a_file_of_which_nothing_can_be_read_says_so_and_what_to_do(tmp_path: Path, first: bytes) -> None:
    store, session, _ = a_long_session(tmp_path)
    file_of(store).write_bytes(first + file_of(store).read_bytes()[len(first) :] if first else b"")

    found, error = saved(store, session)

    assert found == []
    assert error is not None
    assert f"{file_of(store)} was left as it is" in str(error)
    assert error.hint.startswith("Keep a copy of it before anything else")
    assert f"--session {session} --store" in error.hint
    assert not {"export", "prune"} & set(error.hint.split())


@pytest.mark.parametrize("cut", [2_048, 3_000, 20_000])
@pytest.mark.parametrize("filesystem", ["nfs", "ext4"])
def test_of_a_file_that_was_cut_all_that_is_left_is_saved(tmp_path: Path, cut: int, filesystem: str) -> None:
    """Its first page tells of more pages than there are, for which SQLite refuses all of it."""
    with a_place_for_anybody() as place:
        store, session, whole = a_long_session(place.root, filesystem)
        file_of(store).chmod(0o644)
        os.truncate(file_of(store), file_of(store).stat().st_size - cut)
        before = file_of(store).read_bytes()
        # In WAL mode it is then read from a copy.
        store.directory.chmod(0o555)

        with as_ordinary_user():
            with pytest.raises(SessionDamaged):
                store.read(session)
            found, error = saved(store, session)

        assert file_of(store).read_bytes() == before
    assert error is not None
    assert [row[0] for row in found] == sorted({row[0] for row in found})
    # Of the page that the cut goes through, one row may be there in part.
    assert len(set(found) - set(whole)) <= (cut % 2048 > 0)
    assert len(whole) - len(found) < 20 * (1 + cut // 2048)


def test_a_row_that_is_missing_or_no_text_hides_no_other(tmp_path: Path) -> None:
    store, session, whole = a_long_session(tmp_path)
    change(store, "DELETE FROM journal WHERE seq IN (7, 8, 9, 20)")
    change(store, "UPDATE journal SET body = CAST(x'ff00' AS TEXT), kind = x'fe' WHERE seq = 30")

    found, error = saved(store, session)

    assert "7 to 9, 20 could not be read" in str(error)
    assert [row[0] for row in found] == [row[0] for row in whole if row[0] not in (7, 8, 9, 20)]
    assert found[29 - 4] == (30, "\\xfe", "\\xff\0")


def test_what_is_no_session_by_its_name_is_left_out(store: SessionStore, session: Session) -> None:
    for name in (f"{session.id}-backup", "notes", "ABCDEF", f"{session.id} (1)", ".hidden", "f" * 65):
        file_of_copy = store.directory / f"{name}.db"
        file_of_copy.write_bytes((store.directory / f"{session.id}.db").read_bytes())
    (store.directory / "ffffffffffff.db").mkdir()

    assert [s.id for s in store.all()] == [session.id]
    assert store.find(session.id[:4]) == session.id
    with pytest.raises(UnknownSession, match="Known"):
        store.find("notes")


def test_a_copy_under_another_name_is_not_a_second_session(store: SessionStore, session: Session) -> None:
    """Two sessions with the same keys would take each other's effects for their own."""
    session.append(an_attempt())
    session.close()
    (store.directory / "ffffffffffff.db").write_bytes(file_of(store).read_bytes())

    with pytest.raises(SessionDamaged, match=f"copy of session '{session.id}'"):
        store.open("ffffffffffff")
    assert [s.id for s in store.all() if s.state] == [session.id]


def test_the_newest_record_decides_and_not_the_file(tmp_path: Path) -> None:
    store = SessionStore(tmp_path, filesystem="ext4")
    for name, at in (("aa", 3e9), ("bb", 2e9), ("cc", 3e9)):
        with store.create(session=name) as session:
            session.append(Prompt("p", "x", 1, 0, at), Note("n", "has no time", 0))
    with store.create(session="dd") as session:
        session.append(Prompt("p", "x", 1, 0, float("nan")))
    os.utime(tmp_path / "bb.db", (4e9, 4e9))
    (tmp_path / "ee.db").write_bytes(b"damaged")
    os.utime(tmp_path / "ee.db", (2.5e9, 2.5e9))

    assert [(s.id, s.changed_at) for s in store.all()] == [
        ("cc", 3e9),
        ("aa", 3e9),
        ("ee", 2.5e9),
        ("bb", 2e9),
        ("dd", 0.0),
    ]


def test_a_deleted_database_stops_the_session_before_anything_else(store: SessionStore, session: Session) -> None:
    file_of(store).unlink()

    with pytest.raises(StateReplaced, match="deleted or replaced"):
        session.check()
    with pytest.raises(StateReplaced):
        session.append(an_attempt())


def test_a_replaced_database_is_noticed(store: SessionStore, session: Session) -> None:
    path = file_of(store)
    data = path.read_bytes()
    other = path.with_suffix(".other")
    other.write_bytes(data)
    other.replace(path)

    with pytest.raises(StateReplaced):
        session.append(an_attempt())


def test_another_writer_is_noticed(store: SessionStore, session: Session) -> None:
    with store.open(session.id) as second:
        second.append(an_attempt())

        with pytest.raises(StateReplaced, match="another process has written"):
            session.append(an_attempt(1))


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM journal WHERE seq = (SELECT max(seq) FROM journal)",
        "DELETE FROM journal WHERE seq = 3",
        "DELETE FROM journal",
        "INSERT INTO journal VALUES (100, 'note', '{}')",
    ],
)
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("filesystem", ["ext4", "nfs"])
def test_records_removed_under_the_run_are_noticed_by_the_next(
    tmp_path: Path, sql: str, several: bool, filesystem: str
) -> None:
    store = SessionStore(tmp_path / "sessions", filesystem=filesystem)
    with store.create() as session:
        for epoch in range(1, 5):
            session.append(an_attempt(epoch))
        change(store, sql)
        before = [row[0] for row in _all_rows(store)]

        with pytest.raises(StateReplaced, match="another process has written") as caught:
            session.append(*[an_attempt(5), an_attempt(6)][: 1 + several])

        assert caught.value.exit_code == 4
        assert session.state.epoch == 4
        assert [row[0] for row in _all_rows(store)] == before
        with pytest.raises(StateReplaced, match="another process has written"):
            session.append(an_attempt(7))


def test_the_last_record_is_looked_at_in_the_same_statement(store: SessionStore, session: Session) -> None:
    """Between the look and the write there is no time in which a record could go."""
    session.append(an_attempt())
    # On the session's own connection, so that no version tells of it.
    session._db.execute("DELETE FROM journal WHERE seq = 2")

    with pytest.raises(StateReplaced, match="another process has written"):
        session.append(an_attempt(2))
    assert [row[0] for row in _all_rows(store)] == [1]


def test_another_program_that_changes_no_record_does_not_stop_the_session(
    store: SessionStore, session: Session
) -> None:
    session.append(an_attempt())
    change(store, "CREATE TABLE other (x)")
    session.append(an_attempt(2))
    with closing(sqlite3.connect(file_of(store))) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    session.append(an_attempt(3), an_attempt(4))

    assert store.read(session.id).epoch == 4


def _all_rows(store: SessionStore) -> list[tuple[int, str, str]]:
    with closing(sqlite3.connect(file_of(store))) as db:
        return db.execute("SELECT * FROM journal ORDER BY seq").fetchall()


def test_a_full_disk_records_nothing_and_stops_the_session(store: SessionStore, session: Session) -> None:
    """B06: the last good state stays, the message says what is wrong."""
    session.append(an_attempt())
    (pages,) = session._db.execute("PRAGMA page_count").fetchone()
    session._db.execute(f"PRAGMA max_page_count={pages + 1}")

    with pytest.raises(DiskFull, match="disk full") as caught:
        session.append(Prompt("p", "x" * 50_000, 1, 0, 1.0))

    assert caught.value.exit_code == 4
    assert not session.state.prompts
    session._db.execute("PRAGMA max_page_count=1000")
    assert told_again(session) == told(caught.value)
    assert store.read(session.id).records == 2


ON_A_FULL_DISK = """
import sys
from pathlib import Path
from endstate_action.errors import DiskFull
from endstate_action.state.session import SessionStore
root = Path(sys.argv[1])
store = SessionStore(root / "sessions")
with store.create({"workspace": "plain"}) as session:
    pass
with open(root / "filler", "wb", buffering=0) as filler:
    try:
        while filler.write(bytes(4096)):
            pass
    except OSError:
        pass
try:
    with store.open(session.id):
        print("opened")
except DiskFull as error:
    print(error)
"""


def test_a_disk_that_is_full_before_a_session_is_opened_is_called_that(tmp_path: Path) -> None:
    """SQLite calls it an I/O error where a file beside the database finds no room."""
    done = on_a_disk_of_its_own(tmp_path, "size=1m", ON_A_FULL_DISK, tmp_path)
    assert "was not opened: disk full" in done.stdout, done.stdout + done.stderr


def test_a_database_that_turns_read_only_stops_the_session(store: SessionStore, session: Session) -> None:
    """B02."""
    session.append(an_attempt())
    session._db.execute("PRAGMA query_only=ON")

    with pytest.raises(StateReadOnly) as caught:
        session.append(an_attempt(2))

    assert session.state.epoch == 1
    session._db.execute("PRAGMA query_only=OFF")
    assert told_again(session) == told(caught.value)


def test_a_database_held_by_another_program_is_waited_for_and_then_named(store: SessionStore, session: Session) -> None:
    """B01: an explicit busy timeout, then a clear message."""
    session._db.execute("PRAGMA busy_timeout=200")
    with closing(sqlite3.connect(file_of(store), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")

        with pytest.raises(Locked, match="another process has held the database") as caught:
            session.append(an_attempt())
    assert told_again(session) == told(caught.value)
    assert store.read(session.id).records == 1


def told(error: EndstateError) -> tuple[int, str, str]:
    return error.exit_code, str(error), error.hint


def told_again(session: Session) -> tuple[int, str, str]:
    """What a later record is refused with, though nothing stands in its way any more: what stopped the session."""
    with pytest.raises(EndstateError) as caught:
        session.append(Ended(1, 1, "failed", "x", 1.0))
    return told(caught.value)


def test_a_read_only_directory_can_still_be_read(store: SessionStore, session: Session) -> None:
    """B07: also with a WAL that a killed writer left behind."""
    session.append(an_attempt())
    copy = store.directory.parent / "copy"
    copy.mkdir()
    for source in store.directory.iterdir():
        (copy / source.name).write_bytes(source.read_bytes())
    (copy / f"{session.id}.db-shm").unlink()
    for file in copy.iterdir():
        file.chmod(0o444)
    copy.chmod(0o555)

    assert SessionStore(copy).read(session.id).epoch == 1
    assert [row[1] for row in SessionStore(copy).rows(session.id)] == ["begun", "attempt"]

    copy.chmod(0o755)


@pytest.mark.parametrize("closed", ["sessions", "sessions/0123456789ab.db"])
def test_a_closed_place_is_named_with_its_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: str) -> None:
    SessionStore(tmp_path / "sessions", filesystem="nfs").create(session="0123456789ab").close()
    for path in (tmp_path, tmp_path / "sessions", *(tmp_path / "sessions").iterdir()):
        path.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    (tmp_path / closed).chmod(0)
    store = SessionStore(Path("sessions"))

    with as_ordinary_user():
        with pytest.raises(StateReadOnly, match="it belongs to user"):
            store.read("0123456789ab") if closed.endswith("db") else store.all()
        if closed.endswith("db"):
            [listed] = store.all()
            assert "it belongs to user" in listed.problem
            assert listed.condition == "not readable"

    (tmp_path / closed).chmod(0o755)


def test_a_link_in_place_of_a_session_is_refused(store: SessionStore, session: Session) -> None:
    """C05, for the database."""
    real = file_of(store)
    link = real.with_name("abcdef012345.db")
    link.symlink_to(real)

    with pytest.raises(StateError, match="symbolic link"):
        store.open("abcdef012345")
    assert [s.id for s in store.all()] == [session.id]


def test_removing_a_session_leaves_nothing_of_it(store: SessionStore, session: Session) -> None:
    session.append(an_attempt())
    store.remove(session.id)

    assert list(store.directory.iterdir()) == []


def test_a_killed_creation_leaves_no_session(tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    code = (
        "import os, sys; from pathlib import Path; from endstate_action import SessionStore\n"
        "Path.replace = lambda *a: os.kill(os.getpid(), 9)\n"
        "SessionStore(Path(sys.argv[1])).create()"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == -9

    assert store.all() == []
    with store.create() as session:
        assert [s.id for s in store.all()] == [session.id]


def test_starts_that_a_signal_ended_are_not_counted(session: Session) -> None:
    session.append(an_attempt(), a_reply(1, "bash"))
    session.append(started(1, 0, 1))
    for epoch in (2, 3):
        session.append(an_attempt(epoch))
        session.append(started(1, 0, epoch))
    session.append(StartEnded(1, 0, 2, "SIGTERM"))

    assert session.state.counted_starts((1, 0)) == 2


def test_a_task_is_finished_by_success_alone(session: Session) -> None:
    session.append(an_attempt(), Prompt("p", "x", 1, 0, 1.0))
    session.append(Ended(1, 1, "stopped", "max-steps", 1.0))
    assert not session.state.is_finished

    session.append(an_attempt(2))
    session.append(Ended(2, 1, "success", "", 2.0))
    assert bool(session.state.is_finished)

    session.append(Prompt("q", "more", 2, 0, 3.0))
    assert not bool(session.state.is_finished)


def test_the_collector_is_on_again_after_rows_that_cannot_be_read():
    def read() -> None:
        with all_kept():
            assert not gc.isenabled()
            decode("note", "{")

    with pytest.raises(ValueError):
        read()
    assert gc.isenabled()


def _as_a_kill_leaves_it(store: SessionStore, damage: Callable[[Path], None]) -> SessionStore:
    """The files of an open session, its log not yet taken over into the database, and then damaged."""
    copy = store.directory.parent / "copy"
    copy.mkdir()
    for source in store.directory.iterdir():
        (copy / source.name).write_bytes(source.read_bytes())
    (shared,), (log,) = copy.glob("*.db-shm"), copy.glob("*.db-wal")
    shared.unlink()
    assert log.stat().st_size > 10_000
    damage(log)
    return SessionStore(copy)


def _flip(log: Path) -> None:
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 1
    log.write_bytes(content)


def _cut(log: Path) -> None:
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size // 2)


@pytest.mark.parametrize("damage", [_flip, _cut, Path.unlink])
def test_a_log_that_is_damaged_cut_or_gone_is_never_a_shorter_history(
    store: SessionStore, session: Session, damage: Callable[[Path], None]
) -> None:
    """SQLite takes it for one that ends there; what is behind would be done again."""
    for epoch in range(1, 10):
        session.append(an_attempt(epoch))
    left = _as_a_kill_leaves_it(store, damage)

    with pytest.raises(SessionDamaged, match=r"10 records were written and [0-9] are left"):
        left.read(session.id)
    with pytest.raises(SessionDamaged, match="nothing was run"):
        left.open(session.id)
    assert next(left.rows(session.id))[1] == "begun"
    # Another history, from elsewhere, takes its place.
    left.adopt(session.id, store.journal(session.id)[:3])
    with left.open(session.id) as again:
        assert again.state.records == 3


def test_a_count_that_cannot_be_read_or_is_too_low_stops_nothing(store: SessionStore, session: Session) -> None:
    """As a power cut leaves it, or an earlier release that kept none."""
    session.append(an_attempt())
    session.close()
    count = store.directory / f"{session.id}.db-rows"
    for content in (b"", b"no number", b"%020d\n" % 1):
        count.write_bytes(content)
        assert store.read(session.id).records == 2
    count.unlink()
    with store.open(session.id) as again:
        again.append(an_attempt(2))
    assert int(count.read_bytes()) == 3


def test_what_a_killed_removal_left_says_nothing_of_a_new_session(store: SessionStore) -> None:
    store.directory.mkdir()
    (store.directory / "aaaaaaaaaaaa.db-rows").write_bytes(b"%020d\n" % 40)
    with store.create(session="aaaaaaaaaaaa") as session:
        assert session.state.records == 1


def a_damaged_session(directory: Path) -> SessionStore:
    """Of eight records, with a log that was not taken over yet and belongs to it."""
    there = SessionStore(directory / "there", filesystem="ext4")
    with there.create(session="aaaaaaaaaaaa") as session:
        for epoch in range(1, 8):
            session.append(an_attempt(epoch))
        change(there, "UPDATE journal SET body = '{}' WHERE seq = 7")
        return _as_a_kill_leaves_it(there, lambda log: None)


def test_what_a_restore_cannot_read_is_set_aside_and_not_deleted(tmp_path: Path) -> None:
    """It may be newer than what takes its place."""
    store = a_damaged_session(tmp_path)
    rows = list(store.rows("aaaaaaaaaaaa"))
    assert len(rows) == 8

    asides = [store.adopt("aaaaaaaaaaaa", rows[:3]), store.adopt("aaaaaaaaaaaa", rows[:4])]

    aside = store.directory / "aaaaaaaaaaaa.set-aside-0.db"
    assert asides == [aside, None]
    assert store.read("aaaaaaaaaaaa").records == 4
    assert (store.names(), [s.id for s in store.all()]) == (["aaaaaaaaaaaa"], ["aaaaaaaaaaaa"])
    assert store.set_aside() == [aside.stem]
    assert list(store.rows(store.find(aside.stem))) == rows
    with pytest.raises(SessionDamaged) as caught:
        store.read(aside.stem)
    assert "--session aaaaaaaaaaaa --store" in caught.value.hint

    (store.directory / "aaaaaaaaaaaa.db").write_bytes(b"x" * 5000)
    assert store.adopt("aaaaaaaaaaaa", rows[:3]) == store.directory / "aaaaaaaaaaaa.set-aside-1.db"
    assert list(store.rows(aside.stem)) == rows

    store.create(session="aaaaaaaaaaaab").close()
    store.remove("aaaaaaaaaaaa")
    assert sorted(path.name for path in store.directory.iterdir()) == ["aaaaaaaaaaaab.db", "aaaaaaaaaaaab.db-rows"]


@pytest.mark.parametrize("renames", [0, 1, 2])
def test_a_restore_that_is_killed_while_it_sets_aside_loses_nothing(tmp_path: Path, renames: int) -> None:
    store = a_damaged_session(tmp_path)
    rows = list(store.rows("aaaaaaaaaaaa"))
    state = StateDirectory(tmp_path / ".endstate")
    state.claim()
    store.directory.rename(state.sessions.with_name("was"))
    state.sessions.rmdir()
    state.sessions.with_name("was").rename(state.sessions)
    code = (
        "import os, sys; from pathlib import Path; from endstate_action import SessionStore\n"
        "left, rename = [int(sys.argv[2])], os.rename\n"
        "def counted(*a):\n"
        "    if not left[0]: os.kill(os.getpid(), 9)\n"
        "    left[0] -= 1; rename(*a)\n"
        "os.rename = counted\n"
        "store = SessionStore(Path(sys.argv[1]))\n"
        "store.adopt('aaaaaaaaaaaa', store.journal('aaaaaaaaaaaa')[:3])"
    )
    argv = [sys.executable, "-c", code, str(state.sessions), str(renames)]
    assert subprocess.run(argv, check=False).returncode == -9

    # As the next start does.
    state.clear()
    again = SessionStore(state.sessions)
    again.adopt("aaaaaaaaaaaa", rows[:3])

    assert again.set_aside() == ["aaaaaaaaaaaa.set-aside-0"]
    assert list(again.rows("aaaaaaaaaaaa.set-aside-0")) == rows
    assert again.read("aaaaaaaaaaaa").records == 3


@pytest.mark.parametrize("there", ["nothing", "a link", "a directory", "a fifo"])
def test_a_session_whose_file_is_gone_or_replaced_is_damaged_and_not_unknown(store: SessionStore, there: str) -> None:
    store.create(session="aaaaaaaaaaaa").close()
    path = store.directory / "aaaaaaaaaaaa.db"
    path.rename(store.directory.parent / "elsewhere")
    match there:
        case "a link":
            path.symlink_to(store.directory.parent / "elsewhere")
        case "a directory":
            path.mkdir()
        case "a fifo":
            os.mkfifo(path)
        case _:
            pass

    assert store.names() == ["aaaaaaaaaaaa"]
    (listed,) = store.all()
    assert listed.problem
    for look in (store.read, store.open, lambda name: list(store.rows(name))):
        with pytest.raises(StateError, match=r"not opened") as caught:
            look("aaaaaaaaaaaa")
        assert caught.value.exit_code == 4
