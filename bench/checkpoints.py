"""What leaves the machine: how large it is, how long it takes to make and to come back from, and who waits for it."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count, pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import mean, median
from typing import Self

from bench.fresh import environment
from bench.limits import FULL, NOT_COUNTED, Outcome, Size, clock, counted, ms, timed
from bench.writers import finished, reply, started, text
from endstate_action.config import DEFAULT_CONFIG
from endstate_action.durable import Depot, Line
from endstate_action.state.checkpoint.build import Builder
from endstate_action.state.checkpoint.manifest import About
from endstate_action.state.directory import locate
from endstate_action.state.packer import Packer
from endstate_action.state.records import Observed, Replied, decode
from endstate_action.state.seal import derive_key
from endstate_action.state.session import SessionStore
from endstate_action.state.snapshot.pack import pack
from endstate_action.state.stores.base import Put, Stored
from endstate_action.state.stores.directory import DirectoryStore
from endstate_action.state.uploader import EAGER
from endstate_action.successor import Successor
from endstate_action.system import git
from endstate_action.system.redaction import Secrets
from endstate_action.system.tree import scan
from endstate_action.workplace import Workplace
from tests.support.cache_server import CacheServer, Reply, Request

STEPS, EDITS = 10, 5
"""Between one checkpoint and the next."""
PACKED_EDITS = 20
UPLOAD_S = 1.0
"""What the slow store takes for each upload."""
PUT_S = 60.0

_SESSION = "0123456789ab"
_KEY = derive_key("a secret of the bench alone", explicit=True)
_SECRETS = Secrets({"API_KEY": "sk-of-the-bench-0123456789", "TOKEN": "token-of-the-bench-0123456789"})
_APPENDS_APART_S = 0.001
_ROOT_S = 0.1
_TERM_AFTER = 3
"""So many uploads have arrived before the signal comes."""


def measure(scratch: Path, size: Size) -> Iterator[Outcome]:
    work = Work(scratch / "checkpoints", size.files)
    for steps in size.sessions:
        work.grow(steps - work.steps)
        yield from _sizes(work, size)
        yield _restored(work, scratch, size)
    yield _beside_appends(work, size)
    yield _thin_pack(work, size)
    yield _total(Work(scratch / "total", size.files), size)
    yield from slow_store(scratch, size)


class Work:
    """A session in a repository of so many files, and the checkpoints of its attempts."""

    def __init__(self, root: Path, files: int) -> None:
        self.root = root
        self.paths = _plant(root, files)
        self.place = _place(root)
        self.place.state.claim()
        self.base = self.place.bound["base"] or ""
        self._snapshots = self.place.snapshots()
        self.sessions = SessionStore(self.place.state.sessions)
        self.session = self.sessions.create(self.place.bound, session=_SESSION)
        self.steps = 0
        self._edits = 0
        self.store = DirectoryStore(root.parent / f"{root.name}-store")
        self.epoch = 0
        self.begin()

    def begin(self) -> None:
        """Another attempt, whose first checkpoint will hold everything."""
        self.epoch += 1
        self._sequence = 0
        self.edit()
        self._builder = _builder(self.place, self.epoch)

    def grow(self, steps: int) -> None:
        for _ in range(steps):
            self.steps += 1
            for item in (reply(self.steps), started(self.steps), finished(self.steps)):
                self.session.append(item.record)

    def edit(self, count: int = EDITS) -> None:
        """The same files each time, and then what the loop records of it."""
        self._edits += 1
        for path in self.paths[:: max(1, len(self.paths) // count)][:count]:
            path.write_bytes(b"%d " % self._edits + path.read_bytes()[:4096])
        time.sleep(_ROOT_S)
        taken = self._snapshots.take()
        self.session.append(Observed(self.steps, "0" * 64, self.base, time.time(), taken.root))

    def observe(self) -> None:
        """As it is now, with its true tree hash."""
        found = scan(self.root, [b".git", b".endstate"]).tree_hash
        self.session.append(Observed(self.steps, found, self.base, time.time(), self._snapshots.take().root))

    def build(self) -> tuple[float, int]:
        """Seconds, and bytes; then it is stored."""
        self._sequence += 1
        began = time.perf_counter()
        built = self._builder.build(self._sequence)
        took = time.perf_counter() - began
        if not isinstance(self.store.put(built.key, built.data, timeout_s=PUT_S), Stored):
            raise RuntimeError("the checkpoint was not stored")
        self._builder.confirmed(built)
        return took, len(built.data)

    @property
    def snapshot(self) -> str:
        observed = self.session.state.observed
        return (observed.root if observed else None) or ""


def _place(root: Path) -> Workplace:
    state = locate(root, ".endstate")
    repository = git.discover(root, os.environ, state.tmp)
    if repository is None:
        raise RuntimeError("there is no git")
    bound = {"base": repository.full_id("HEAD"), "workspace": "git"}
    return Workplace(root, state, repository, os.environ, bound, DEFAULT_CONFIG)


def _builder(place: Workplace, epoch: int) -> Builder:
    return Builder(
        About("0", "bench", _SESSION, _SESSION, epoch, "git", "sha1", place.bound["base"], None, "f" * 32),
        _KEY,
        partial(SessionStore(place.state.sessions).journal, _SESSION),
        _packer(place).pack,
        scan=lambda text: ", ".join(_SECRETS.contains(text)) or None,
    )


def _packer(place: Workplace) -> Packer:
    return Packer(place.objects, place.bound["base"], _SECRETS)


def _plant(root: Path, files: int) -> list[Path]:
    """A repository of files of 4 kB of text, twenty to a directory; which."""
    paths = [root / f"area{n // 400}" / f"part{n // 20 % 20}" / f"file{n}.txt" for n in range(files)]
    for number, path in enumerate(paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text(4_000, number))
    _shell("git init -q && git add -A && git -c user.name=a -c user.email=a@b.invalid commit -qm begin", root)
    return paths


def _shell(command: str, where: Path) -> None:
    subprocess.run(["sh", "-ec", command], cwd=where, check=True, timeout=120)


def _sizes(work: Work, size: Size) -> Iterator[Outcome]:
    work.begin()
    begun, first, made, idle = work.steps, work.build()[1], [], []
    for _ in range(size.checkpoints):
        work.grow(STEPS)
        work.edit()
        made.append(work.build())
        idle.append(_git_alone(work.root))
    times, sizes = ([row[column] for row in made] for column in (0, 1))
    what = f"a checkpoint {STEPS} steps and {EDITS} edits after the last, {size.files} files, session of {begun} steps"
    detail = f"{len(made)} of them, largest {max(sizes) / 1e3:.0f} kB; the first, with everything, {first / 1e3:.0f} kB"
    yield counted(f"{what}: median size", 100, median(sizes) / 1e3, "kB", detail)
    yield counted(f"{what}: mean size", 150, mean(sizes) / 1e3, "kB")
    detail = f"slowest {ms(max(times))}; a git that does nothing takes {ms(median(idle))}"
    yield timed(f"{what}: built within", 100, median(times) * 1e3, "ms", detail)


def _git_alone(where: Path) -> float:
    """Tells how busy this machine is."""
    return clock(partial(subprocess.run, ["git", "--version"], cwd=where, check=True, stdout=subprocess.DEVNULL))


def _beside_appends(work: Work, size: Size) -> Outcome:
    """In turns: records while a thread builds, as in a run, while another process does, and with nothing beside."""
    found, p50, apart, times = [], [], [], 20
    with _BuilderApart(work.root) as other:
        for number in range(size.checkpoints // 2 + 1):
            work.grow(STEPS)
            work.edit()
            before = _appends(work, _times(times)) if number % 2 else []
            building = threading.Thread(target=work.build)
            building.start()
            during = _appends(work, building.is_alive)
            building.join()
            other.begin()
            beside = _appends(work, other.is_building)
            quiet = before or _appends(work, _times(len(during)))
            if during and beside:
                times = len(during)
                found.append(median(during) / median(quiet))
                p50.append((median(during), median(quiet)))
                apart.append(median(beside) / median(quiet))
    detail = (
        f"{ms(median(a for a, _ in p50))} and {ms(median(b for _, b in p50))}; {len(p50)} checkpoints; "
        f"built by a process of its own {median(apart):.3g}x"
    )
    return timed("a record while a checkpoint is built over one while none is", 1.15, median(found), detail=detail)


class _BuilderApart:
    """What a run does in a thread, in a process of its own: what is left shares no interpreter with the records."""

    def __init__(self, root: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._asking, asked = context.Pipe()
        self._process = context.Process(target=_build_when_asked, args=(root, asked), daemon=True)

    def __enter__(self) -> Self:
        self._process.start()
        # Its first one, with everything in it, is no measure.
        self.begin()
        while self.is_building():
            time.sleep(_APPENDS_APART_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join()

    def begin(self) -> None:
        self._asking.send(None)

    def is_building(self) -> bool:
        if not self._asking.poll():
            return True
        self._asking.recv()
        return False


def _build_when_asked(root: Path, asked: Connection) -> None:
    builder = _builder(_place(root), epoch=1)
    for sequence in count(1):
        asked.recv()
        builder.confirmed(builder.build(sequence))
        asked.send(None)


def _appends(work: Work, more: Callable[[], bool]) -> list[float]:
    took = []
    while more():
        work.steps += 1
        work.session.append(reply(work.steps, 0).record)
        record = Observed(work.steps, "0" * 64, work.base, time.time(), work.snapshot)
        began = time.perf_counter()
        work.session.append(record)
        took.append(time.perf_counter() - began)
        time.sleep(_APPENDS_APART_S)
    return took


def _thin_pack(work: Work, size: Size) -> Outcome:
    work.edit(PACKED_EDITS)
    made = len(_packer(work.place).pack(work.snapshot))
    what = f"pack of a snapshot for whoever has the base commit: {PACKED_EDITS} edited of {size.files} files"
    return counted(what, 60, made / 1e3, "kB", "with git's index and refs")


def _times(count: int) -> Callable[[], bool]:
    left = iter(range(count))
    return lambda: next(left, None) is not None


def _restored(work: Work, scratch: Path, size: Size) -> Outcome:
    work.observe()
    work.build()
    took, waited, busy = [], [], []
    for run in range(size.runs):
        fresh = scratch / f"fresh{work.epoch}-{run}"
        _shell(f"git clone -q --depth=1 file://{work.root} {fresh.name}", scratch)
        store = _Timed(work.store)
        began, used = time.perf_counter(), sum(os.times()[:4])
        hashed = _restore_in(fresh, store, work.epoch + 1)
        took.append(time.perf_counter() - began - store.seconds)
        busy.append(sum(os.times()[:4]) - used)
        waited.append(store.seconds)
        if scan(fresh, [b".git", b".endstate"]).tree_hash != hashed:
            raise RuntimeError("the tree that came back is another one")
    what = f"restore of {size.files} files, session of {work.steps} steps, on a fresh machine with a depth-1 checkout"
    detail = f"the store's own {ms(median(waited))} aside; {ms(median(busy))} of processor time"
    return timed(what, 1.0, median(took), "s", detail)


def _restore_in(fresh: Path, store: _Timed, epoch: int) -> str:
    state = locate(fresh, ".endstate")
    state.claim()
    repository = git.discover(fresh, os.environ, state.tmp)
    successor = Successor(
        Depot(store, _KEY, is_chosen=True, pace=EAGER, shown=store.name),
        Line(_SESSION, "bench"),
        SessionStore(state.sessions),
        lambda bound: Workplace(fresh, state, repository, os.environ, bound, DEFAULT_CONFIG),
        goes_on=False,
        notice=lambda text: None,
        git_extra={},
    )
    restored = successor.find(None, epoch).restored
    if restored is None or restored.reasons:
        raise RuntimeError("it did not come back")
    return restored.tree_hash


class _Timed:
    """A store, and how long it was waited for."""

    name = DirectoryStore.name
    deletes = DirectoryStore.deletes

    def __init__(self, store: DirectoryStore) -> None:
        self._store = store
        self.seconds = 0.0

    def put(self, key: str, data: bytes, *, timeout_s: float, drop: Collection[str] = ()) -> Put:
        with self._waited():
            return self._store.put(key, data, timeout_s=timeout_s, drop=drop)

    def get(self, key: str, *, timeout_s: float) -> bytes | None:
        with self._waited():
            return self._store.get(key, timeout_s=timeout_s)

    def first(self, prefixes: Sequence[str], *, timeout_s: float) -> str | None:
        with self._waited():
            return self._store.first(prefixes, timeout_s=timeout_s)

    def keys(self, prefix: str, *, timeout_s: float) -> list[str] | None:
        with self._waited():
            return self._store.keys(prefix, timeout_s=timeout_s)

    def lineages(self, *, timeout_s: float) -> list[str] | None:
        with self._waited():
            return self._store.lineages(timeout_s=timeout_s)

    @contextmanager
    def _waited(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - began


def _total(work: Work, size: Size) -> Outcome:
    """What the whole state would take is looked at ten times on the way."""
    ours, journals, wholes = [work.build()[1]], [], []
    count = max(size.steps // STEPS, 1)
    for number in range(1, count + 1):
        work.grow(STEPS)
        work.edit()
        ours.append(work.build()[1])
        if number % max(count // 10, 1) == 0:
            rows = "".join(f"{kind} {body}\n" for _, kind, body in work.sessions.journal(_SESSION)).encode()
            journals.append(len(zlib.compress(rows)))
            wholes.append(journals[-1] + len(pack(work.place.objects(), work.snapshot, (), None)))
    # At the half of each tenth the state is smaller than at its end, at which it was looked at.
    halves = [(a + b) / 2 for a, b in pairwise([0, *journals])]
    whole = (mean(halves) + mean(wholes) - mean(journals)) * len(ours)
    detail = (
        f"{len(ours)} checkpoints, {sum(ours) / 1e6:.1f} MB and {whole / 1e6:.0f} MB; "
        f"{mean(halves) * len(ours) / sum(ours):.1f}x less than the journal alone"
    )
    what = f"all checkpoints of {work.steps} steps, {size.files} files, over the whole state each time"
    return counted(what, 0.05, sum(ours) / whole, "x", detail)


class _SlowCache(CacheServer):
    """Each upload takes its time, and others meanwhile do not wait for it."""

    def _answer(self, request: Request) -> Reply | None:
        if request.method == "PUT":
            time.sleep(UPLOAD_S)
        return super()._answer(request)


def slow_store(scratch: Path, size: Size) -> Iterator[Outcome]:
    """What a run waits for. Nothing is counted where no sandboxed run can be made."""
    lost, ends, why = [], [], ""
    try:
        for run in range(size.runs):
            with _SlowCache() as server:
                slow = _loop_seconds(scratch / f"slow{run}", size.shell, server)
            quick = _loop_seconds(scratch / f"quick{run}", size.shell, None)
            lost.append((slow - quick) / slow * 100)
            with _SlowCache() as server:
                ends.append(_signal_to_end(scratch / f"signal{run}", server))
    except _NoRun as error:
        why = f" ({str(error)[:200]!r})"
    store = f"a store that takes {UPLOAD_S:g} s for an upload"
    detail = f"{size.shell} steps with a sandboxed shell, beside the same without a store"
    yield _if_any(f"the loop's time lost to {store}{why}", 5, lost, "%", detail)
    detail = f"in a shell call; to the end of the process, {len(ends)} times"
    yield _if_any(f"from SIGTERM to shipped, to {store}{why}", 2, ends, "s", detail)


def _if_any(what: str, limit: float, found: list[float], unit: str, detail: str) -> Outcome:
    if not found:
        return Outcome(what, f"at most {limit:g} {unit}", NOT_COUNTED, None, "timed")
    return timed(what, limit, median(found), unit, detail)


class _NoRun(Exception):
    """A run did not end as it should, which says nothing of its time."""


def _loop_seconds(workspace: Path, steps: int, store: CacheServer | None) -> float:
    """From the first reply to the last, as the journal has them."""
    process = _begin(workspace, steps, store)
    _, said = process.communicate(timeout=300)
    if process.returncode != 0:
        raise _NoRun(said.decode()[-300:])
    sessions = SessionStore(workspace / ".endstate" / "sessions")
    records = [decode(kind, body) for _, kind, body in sessions.journal(sessions.names()[0])]
    at = [record.at for record in records if isinstance(record, Replied)]
    return at[-1] - at[0]


def _signal_to_end(workspace: Path, server: CacheServer) -> float:
    process = _begin(workspace, 1_000, server)
    deadline = time.monotonic() + 60
    while len(server.stored) < _TERM_AFTER and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)
    before = len(server.stored)
    began = time.perf_counter()
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    took = time.perf_counter() - began
    if process.returncode != os.EX_TEMPFAIL or len(server.stored) <= before:
        raise _NoRun(said.decode()[-300:])
    return took


def _begin(workspace: Path, steps: int, store: CacheServer | None) -> subprocess.Popen[bytes]:
    workspace.mkdir()
    _shell("git init -q && git -c user.name=a -c user.email=a@b.invalid commit -qm begin --allow-empty", workspace)
    calls = [{"tool": "bash", "arguments": {"command": "echo more >> notes.txt; sleep 0.2"}}]
    script = workspace.with_suffix(".json")
    script.write_text(
        json.dumps({"replies": [*([{"text": "x", "calls": calls, "delay_s": 0.3}] * steps), {"text": "Done."}]})
    )
    argv = [sys.executable, "-m", "endstate_action", "run", "do it", "--provider", "scripted", "--script", str(script)]
    argv += ["--max-steps", str(steps + 2), "--sandbox", "required", "--store", "cache" if store else "none"]
    env = environment(workspace.parent) | {"ENDSTATE_STATE_KEY": "a key of the bench, of 32 characters"}
    return subprocess.Popen(
        argv,
        cwd=workspace,
        env=env | (store.env() if store else {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def main() -> int:
    """`python -m bench.checkpoints`: one line for each limit."""
    with tempfile.TemporaryDirectory(prefix="endstate-bench-", dir="/var/tmp") as made:
        for outcome in measure(Path(made), FULL):
            print(f"{outcome.verdict}: {outcome.what}: {outcome.measured}, {outcome.limit}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
