"""What cannot be timed away: syncs, as strace sees them, and bytes, as the kernel counts them."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.fresh import fresh, written_bytes
from bench.limits import Outcome, Size, counted
from bench.writers import Item, Ours, Writer, finished, items, payload, reply, started

_CALLS = "fsync,fdatasync,sync,syncfs,?sync_file_range,msync,pwrite64,write"
_SYNC = re.compile(r"\b(f?sync|fdatasync|syncfs|sync_file_range|msync)\((?:\d+<([^>]*)>)?")
_MARK = re.compile(r"\bwrite\(\d+</dev/null")
# A WAL that begins anew gets a header of 32 bytes, which SQLite syncs before the first frame.
_HEADER = re.compile(r"\bpwrite64\(\d+<[^>]*-wal>, .*, 32, 0\)")


@dataclass(frozen=True, slots=True)
class Syncs:
    """Per record, in order: how many syncs it took, and whether a WAL checkpoint is among them."""

    per_record: tuple[int, ...]
    checkpoint: tuple[bool, ...]

    @property
    def plain(self) -> list[int]:
        return [n for n, aside in zip(self.per_record, self.checkpoint, strict=True) if not aside]

    @property
    def mean(self) -> float:
        return sum(self.per_record) / len(self.per_record)


def measure(scratch: Path, size: Size) -> list[Outcome]:
    return [_syncs(scratch, size), _bytes(scratch, size), _step_bytes(scratch, size)]


def _syncs(scratch: Path, size: Size) -> Outcome:
    found = syncs("bench.writers:Ours", size.counted, scratch)
    what = "syncs per durable record, WAL checkpoints aside"
    if found is None:
        return counted(what, 1, None, "")
    plain, aside = found.plain, sum(found.checkpoint)
    detail = f"{min(plain)} to {max(plain)} over {len(plain)} records; {aside} more hold a step of a checkpoint"
    measured = f"{max(plain)} ({detail})"
    return Outcome(what, "exactly 1", measured, set(plain) == {1}, "counted")


def syncs(writer: str, records: int, scratch: Path, **how: Any) -> Syncs | None:
    """The syncs of each record that `writer` appends; None where nothing here can count them."""
    strace = shutil.which("strace")
    if strace is None:
        return None
    log = scratch / f"syncs-{writer.rpartition(':')[2]}.log"
    under = (strace, "-f", "-qq", "-y", "-e", f"trace={_CALLS}", "-e", "signal=none", "-o", str(log))
    try:
        fresh("bench.counting:append_marked", writer, records, str(_new(scratch)), scratch=scratch, under=under, **how)
    except RuntimeError as error:
        # Containers often forbid tracing.
        if "ptrace" in str(error).lower():
            return None
        raise
    return _parsed(log.read_text(errors="replace"))


def append_marked(writer: str, records: int, directory: str) -> int:
    """Append, with a mark in the system calls before each record and after the last."""
    made = _made(writer, directory)
    mark = os.open(os.devnull, os.O_WRONLY)
    for item in items(records):
        os.write(mark, b"record")
        made.append(item)
    os.write(mark, b"end")
    made.close()
    return records


def _made(writer: str, directory: str) -> Writer:
    module, _, name = writer.partition(":")
    made: Writer = getattr(import_module(module), name)(Path(directory))
    return made


def _parsed(log: str) -> Syncs:
    records: list[list[str]] = []
    for line in log.splitlines():
        if _MARK.search(line):
            records.append([])
        elif records:
            records[-1].append(line)
    lines = records[:-1]
    counts = tuple(sum(bool(_SYNC.search(line)) for line in record) for record in lines)
    return Syncs(counts, tuple(any(map(_is_checkpoint, record)) for record in lines))


def _is_checkpoint(line: str) -> bool:
    sync = _SYNC.search(line)
    return bool(_HEADER.search(line)) or bool(sync and sync[2] and not sync[2].endswith("-wal"))


def _bytes(scratch: Path, size: Size) -> Outcome:
    found = bytes_of("bench.writers:Ours", size.counted, scratch)
    each = found["written"] and found["written"] / size.counted / 1e3
    detail = f"{size.counted} records of {found['payload'] / size.counted / 1e3:.2g} kB, checkpoints included"
    return counted("written per record of 3.3 kB", 18, each, "kB", detail)


def bytes_of(writer: str, records: int, scratch: Path, **how: Any) -> Any:
    """`written` (None where nothing here counts it) and `payload`, in bytes, for all records together."""
    return fresh("bench.counting:append_all", writer, records, str(_new(scratch)), scratch=scratch, **how)


def append_all(writer: str, records: int, directory: str) -> dict[str, int | None]:
    return _written(_made(writer, directory), items(records))


def _step_bytes(scratch: Path, size: Size) -> Outcome:
    found = fresh("bench.counting:bytes_of_step", size.calls, False, str(_new(scratch)), scratch=scratch)
    with_starts = fresh("bench.counting:bytes_of_step", size.calls, True, str(_new(scratch)), scratch=scratch)
    amplified = found["written"] and found["written"] / found["payload"]
    starts = with_starts["written"] and with_starts["written"] / with_starts["payload"]
    detail = f"{found['payload'] / 1e6:.2g} MB of reply and results; with a start on record per call {starts or 0:.2g}x"
    return counted(f"a step of {size.calls} calls: written over payload", 4, amplified, "x", detail)


def bytes_of_step(calls: int, with_starts: bool, directory: str) -> dict[str, int | None]:
    results = (([started(1, i)] if with_starts else []) + [finished(1, i)] for i in range(calls))
    return _written(Ours(Path(directory)), [reply(1, calls), *(item for result in results for item in result)])


def _written(writer: Writer, taken: list[Item]) -> dict[str, int | None]:
    before = written_bytes()
    for item in taken:
        writer.append(item)
    writer.close()
    after = written_bytes()
    return {"payload": payload(taken), "written": None if after is None or before is None else after - before}


def _new(scratch: Path) -> Path:
    made = scratch / f"counted-{len(list(scratch.glob('counted-*'))):03}"
    made.mkdir()
    return made
