"""The figures as lines for a terminal and as `docs/performance.md`."""

from __future__ import annotations

import os
import platform
import sqlite3
import subprocess
import time
from pathlib import Path

from bench.fresh import ROOT
from bench.limits import NOT_COUNTED, Outcome
from bench.peers import REQUIREMENTS, Peer
from endstate_action.system.mounts import filesystem_type

PAGE = ROOT / "docs" / "performance.md"

_HEAD = """# Performance

What recording, loading, hashing and shipping cost, mostly as ratios against the plainest way to do the same thing.
This page is written by the bench; do not edit it.

```console
$ python -m bench
```

Measured {date} on {machine}.

## Limits

| limit | at most | measured | |
|---|---|---|---|
"""

_HOW = """
How to read it:

- A count (syncs, bytes, memory, modules) is the same on every machine; `python -m bench` exits 1 when one is broken.
  A time depends on what else runs; it only warns, unless `--strict` is given.
- A time is a ratio to a partner in the same run, taken in turns; the figure is the median of the ratios.
  In brackets: ours and the partner's median, which say something about this machine only.
- A record is a reply of 2 kB with one call, or a result of 4 kB; with ids and times that is 3.3 kB of JSON on average.
  A raw row is the same JSON in a table with a number, in WAL mode and `synchronous=FULL`.
- Syncs are counted by strace, bytes by the kernel (`wchar`), memory is the peak of a process of its own (`VmHWM`).
- Files are in the page cache and directories are new; *nothing known before* means no stat cache, not a cold disk.
  Trees are hashed inside a running process; its partners are processes of their own.
- A checkpoint is built from a session as it is on disk and put into a directory; its time ends before that.
  *The whole state* is the packed journal with all files of the workspace, packed as git packs them.
- A record beside a checkpoint now and then waits for the interpreter's lock, since a thread builds it. A process of its
  own, as in the brackets, would save these hundredths of a millisecond, for 25 MB of memory, another start and a second
  copy of the keys.
- A machine is fresh when it has a clone of depth 1 and the store, nothing else. The slow store is a cache server on
  loopback; the loop's time is that between the first reply and the last, which come after 0.3 s and are followed by a
  shell call of 0.2 s. The first and the last checkpoint of an attempt are waited for, outside of that time.
- On a disk where a sync takes long, only the number of syncs counts: a record then takes as long as one of them.
"""

_PEERS = """
## Beside others

The same {records} records, each to the one and to a raw row in random order before the next record.

| | syncs per record | written per record | p50 | over a raw row | that, last tenth over first |
|---|---|---|---|---|---|
"""

_PEERS_HOW = """
Versions: {versions}.
Here syncs and bytes include WAL checkpoints.
The others promise other things: openai-agents keeps the items of a conversation and no starts of calls;
langgraph's checkpointer keeps every earlier state whole, so its cost per record grows with the session.
"""


def line(outcome: Outcome) -> str:
    return f"{outcome.verdict:<16}  {outcome.kind:<7}  {outcome.what}: {outcome.measured}; limit {outcome.limit}"


def peer_line(peer: Peer) -> str:
    return f"{'beside':<16}  {'':<7}  " + "; ".join(_cells(peer))


def page(outcomes: list[Outcome], peers: list[Peer] | None, records: int, scratch: Path) -> str:
    head = _HEAD.format(date=time.strftime("%Y-%m-%d", time.gmtime()), machine=_machine(scratch))
    return head + "".join(map(_row, outcomes)) + _HOW + _beside(peers, records)


def _beside(peers: list[Peer] | None, records: int) -> str:
    if peers is None:
        return "\n## Beside others\n\nNot measured here: the others could not be installed.\n"
    rows = "".join(f"| {' | '.join(_cells(peer))} |\n" for peer in peers)
    pins = [row.replace("==", " ") for row in REQUIREMENTS.read_text().splitlines() if "==" in row]
    return _PEERS.format(records=records) + rows + _PEERS_HOW.format(versions=", ".join(pins))


def _cells(peer: Peer) -> list[str]:
    syncs = NOT_COUNTED if peer.syncs is None else f"{peer.syncs:.3g}"
    written = NOT_COUNTED if peer.written_kb is None else f"{peer.written_kb:,.{0 if peer.written_kb > 100 else 1}f} kB"
    return [peer.name, syncs, written, peer.p50, f"{peer.over_raw:.3g}x", f"{peer.slope:.2f}x"]


def _row(outcome: Outcome) -> str:
    what = outcome.what.replace("|", "\\|")
    return f"| {what} | {outcome.limit.removeprefix('at most ')} | {outcome.measured} | {outcome.verdict} |\n"


def _machine(scratch: Path) -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    git = subprocess.run(["git", "--version"], capture_output=True, text=True, check=True).stdout.split()[2]
    system = f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}"
    disk = filesystem_type(scratch) or "unknown file system"
    return (
        f"{os.cpu_count()} cores ({platform.machine()}) with {memory:.0f} GiB of memory, {system}, {disk}, "
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, git {git}"
    )
