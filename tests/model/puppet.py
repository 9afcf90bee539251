"""Real attempts in threads that move only when they are told to, and the world that they share.

An attempt is the product's own: it claims, looks, restores, records, ships, asks the fence and calls its tools as a run
does. Before each of these it stops, and goes on, or dies there, as the test likes.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from endstate_action.agent.loop import AgentLoop, Setup
from endstate_action.agent.providers.base import OnDiscard, Reply, Request
from endstate_action.agent.tools.base import CallContext, FileChange, Probed, Tool, ToolError
from endstate_action.config import DEFAULT_CONFIG
from endstate_action.durable import Depot, Line
from endstate_action.effects import EffectClass, Probe
from endstate_action.errors import EndstateError
from endstate_action.shipper import Shipper
from endstate_action.state.checkpoint.build import Builder
from endstate_action.state.directory import locate
from endstate_action.state.fold import State
from endstate_action.state.keys import claimed_epoch
from endstate_action.state.session import SessionStore
from endstate_action.state.stores.base import Put
from endstate_action.state.totals import unrecorded_effects
from endstate_action.state.uploader import EAGER, Uploader
from endstate_action.successor import Successor
from endstate_action.workplace import Workplace
from tests.support.checkpoints import ABOUT, KEY
from tests.support.memory_store import MemoryStore
from tests.support.models import say

SESSION = "abcdef012345"
PROMPT = "the instruction"
PATIENCE_S = 30.0

SCRIPT = (
    say("", ("post", {"text": "first"}), message_id="m1"),
    say("", ("burn", {"text": "second"}), ("post", {"text": "third"}), message_id="m2"),
    say("Done.", message_id="m3"),
)


class Killed(BaseException):
    """What a process cannot catch."""


@dataclass
class World:
    """What survives every machine. `outside` is the truth: each effect as often as it happened."""

    store: MemoryStore = field(default_factory=MemoryStore)
    outside: list[tuple[str, str, str]] = field(default_factory=list)
    """Key, digest and class."""
    late_puts: list[tuple[str, bytes]] = field(default_factory=list)
    late_sends: list[tuple[int, tuple[str, str, str]]] = field(default_factory=list)
    closed: int = 0
    """The highest epoch that has waited until nothing older can arrive."""
    is_spoiled: bool = False
    problems: list[str] = field(default_factory=list)

    def highest_claim(self) -> int:
        return max((claimed_epoch(key) or 0 for key in self.store.objects), default=0)

    def wait(self, epoch: int) -> None:
        self.closed = max(self.closed, epoch)
        self.late_sends = [one for one in self.late_sends if one[0] >= epoch]


@dataclass
class Puppet:
    """One attempt. `at` is where it stands still; None while it moves and once it has ended."""

    world: World
    folder: Path
    epoch: int = 0
    at: str | None = None
    ended: str = ""
    highest_at_fence: int = 0
    last: State | None = None
    """The session as it was when the attempt came to its end."""
    _is_dead: bool = False
    _goes: bool = False
    _moved: threading.Condition = field(default_factory=threading.Condition)
    _thread: threading.Thread | None = None

    def begin(self) -> None:
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()
        self._settled()

    def advance(self) -> None:
        with self._moved:
            assert self.at is not None
            self.at, self._goes = None, True
            self._moved.notify_all()
        self._settled()

    def kill(self) -> None:
        with self._moved:
            self._is_dead = True
            self._moved.notify_all()
        assert self._thread is not None
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def gate(self, point: str) -> None:
        with self._moved:
            self.check()
            self.at = point
            self._moved.notify_all()
            self._moved.wait_for(lambda: self._goes or self._is_dead)
            self._goes, self.at = False, None
            self.check()

    def check(self) -> None:
        if self._is_dead:
            raise Killed

    def _settled(self) -> None:
        with self._moved:
            assert self._moved.wait_for(lambda: self.at is not None or self.ended, PATIENCE_S), (
                "it does not come to a stop"
            )

    def _live(self) -> None:
        try:
            ended = self._attempt()
        except Killed:
            ended = "killed"
        except EndstateError as error:
            ended = type(error).__name__
        except BaseException as error:
            ended = "killed" if self._is_dead else f"defect: {error!r}"
            if not self._is_dead:
                self.world.problems.append(ended)
        with self._moved:
            self.ended, self.at = ended, None
            self._moved.notify_all()

    def _attempt(self) -> str:
        workspace = self.folder / "workspace"
        workspace.mkdir(parents=True, exist_ok=True)
        state = locate(workspace, ".endstate")
        state.claim()
        sessions = SessionStore(state.sessions)

        def place(bound: Mapping[str, Any]) -> Workplace:
            return Workplace(workspace, state, None, {}, bound, DEFAULT_CONFIG)

        store = GatedStore(self.world.store, self)
        depot = Depot(store, KEY, is_chosen=True, pace=EAGER, shown=store.name)
        successor = Successor(depot, Line(SESSION), sessions, place, False, lambda text: None, {})
        self.gate("claim")
        here = SESSION in sessions.names()
        claimed = successor.claim(sessions.read(SESSION).epoch if here else 0)
        assert isinstance(claimed, int), claimed
        self.epoch = claimed
        self.gate("look")
        found = successor.find(SESSION, claimed)
        is_new = SESSION not in sessions.names()
        bound = {"workspace": "directory"}
        with sessions.create(bound, session=SESSION) if is_new else sessions.open(SESSION) as session:
            builder = Builder(
                replace(
                    ABOUT, repository="", lineage=SESSION, session=SESSION, epoch=claimed, workspace_kind="directory"
                ),
                KEY,
                lambda after: sessions.journal(SESSION, after),
                lambda root: b"",
                restored=found.manifest,
                effects_before=unrecorded_effects(session.state) + found.effects_before,
            )

            def fence() -> int | None:
                self.gate("fence")
                newer = successor.superseded_by(claimed)
                self.highest_at_fence = self.world.highest_claim()
                return newer

            uploader = Uploader(builder, store, lambda: session.state.records)
            shipper = Quiet(uploader, "memory", fence, is_required=True, check=self.check)
            loop = AgentLoop(
                session,
                Model(self),
                [Post(self), Burn(self)],
                workspace=workspace,
                setup=Setup("test-model"),
                shipping=shipper,
                epoch=claimed,
            )
            conclusion = loop.run("do it", prompt_id=PROMPT).conclusion
            self.last = session.state
            return conclusion


class Quiet(Shipper):
    """Ships where somebody waits for it, and only there: so that it is known where a thread stands."""

    def offer(self) -> None:
        pass

    def soon(self) -> None:
        pass


@dataclass
class GatedStore:
    """The shared store, as one attempt sees it: a checkpoint stops before it arrives."""

    shared: MemoryStore
    puppet: Puppet
    name: str = "memory"

    @property
    def deletes(self) -> bool:
        return self.shared.deletes

    def put(self, key: str, data: bytes, *, timeout_s: float, drop: Collection[str] = ()) -> Put:
        if claimed_epoch(key) is None:
            try:
                self.puppet.gate("put")
            except Killed:
                self.puppet.world.late_puts.append((key, data))
                raise
        return self.shared.put(key, data, timeout_s=timeout_s, drop=drop)

    def get(self, key: str, *, timeout_s: float) -> bytes | None:
        return self.shared.get(key, timeout_s=timeout_s)

    def first(self, prefixes: Sequence[str], *, timeout_s: float) -> str | None:
        return self.shared.first(prefixes, timeout_s=timeout_s)

    def keys(self, prefix: str, *, timeout_s: float) -> list[str] | None:
        return self.shared.keys(prefix, timeout_s=timeout_s)

    def lineages(self, *, timeout_s: float) -> list[str] | None:
        return self.shared.lineages(timeout_s=timeout_s)


@dataclass
class Model:
    puppet: Puppet
    name: str = "fake"

    def reply(self, request: Request, on_discard: OnDiscard) -> Reply:
        self.puppet.gate("reply")
        return SCRIPT[min(request.finished_steps, len(SCRIPT) - 1)]


class _Sends(Tool):
    parameters: ClassVar[Mapping[str, Any]] = {
        "type": "object",
        "properties": {"text": {"type": "string"}},
        "required": ["text"],
    }

    def __init__(self, puppet: Puppet) -> None:
        self._puppet = puppet

    def run(self, arguments: Mapping[str, Any], context: CallContext, plan: FileChange | None) -> str:
        puppet, world = self._puppet, self._puppet.world
        effect = (context.key, context.content_digest, str(self.effect))
        try:
            puppet.gate("send")
        except Killed:
            # It may be under way: whether it arrives is not for who is dead to say.
            if not self._is_late():
                world.late_sends.append((puppet.epoch, effect))
            raise
        if self._is_late():
            raise ToolError("it is too long ago that the fence was passed")
        if puppet.highest_at_fence > puppet.epoch:
            world.problems.append(f"e{puppet.epoch} acted although e{puppet.highest_at_fence} had its claim")
        world.outside.append(effect)
        puppet.gate("sent")
        return f"sent {arguments['text']}"

    def _is_late(self) -> bool:
        """Whether its own deadline forbids to send it now: a newer attempt has waited until nothing can arrive."""
        return self.effect is EffectClass.KEYED and self._puppet.world.closed > self._puppet.epoch


class Post(_Sends):
    name: ClassVar[str] = "post"
    description: ClassVar[str] = "Post a comment."
    effect = EffectClass.KEYED

    def probe(self, arguments: Mapping[str, Any], context: CallContext) -> Probed:
        world = self._puppet.world
        self._puppet.gate("probe")
        world.wait(self._puppet.epoch)
        digests = [digest for key, digest, _ in world.outside if key == context.key]
        if not digests:
            return Probed(Probe.ABSENT)
        return Probed(Probe.APPLIED if context.content_digest in digests else Probe.UNKNOWN, "it was posted")


class Burn(_Sends):
    name: ClassVar[str] = "burn"
    description: ClassVar[str] = "Do what cannot be asked for."
    effect = EffectClass.OPAQUE
