"""The states of the protocol, as values, and the rules that it consists of."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from endstate_action.effects import EffectClass

RULES = {
    "claim before look": "a number is claimed before anything is looked for",
    "stored, not reserved": "a claim counts once it is stored",
    "ship before fence": "the start is off the machine before the fence is read",
    "any higher epoch": "the fence asks for any higher number, not for the next one",
    "barrier for networked": "a networked call ships its start and asks the fence",
    "gap witness": "the names of checkpoints tell how many effects were started",
    "same-machine choice": "the state of this machine competes by its epoch",
    "what is here counts": "the state of this machine competes at all",
    "recorded class": "the class is the one recorded at the start",
    "counted starts": "starts are counted before they happen",
    "shipped starts": "from the second attempt on a start leaves the machine before it runs",
    "denial first": "what was denied when it was asked for stays denied",
    "probe deadline": "that an effect is absent is believed only when what is under way has arrived",
    "sender deadline": "a sender looks at its own deadline before it writes",
    "probe what never started": "after the first attempt a keyed call is probed although no start of it is on record",
    "digest beside the key": "the same key with other content means that nobody can tell",
    "roll back before running again": "an interrupted contained call is undone before it runs again",
    "one row per instruction": "an instruction is known by its id",
    "half a restore": "a start that finds a restore unfinished trusts neither side",
}
"""What the protocol consists of. Each can be left out, and then some promise is broken (`test_model.py`)."""

Place: TypeAlias = tuple[int, int]
Mark: TypeAlias = tuple[Place, str, str]
"""Something that a call left in the workspace: where it stands, its name, how much of it."""
Tree: TypeAlias = tuple[Mark, ...]


class Call(NamedTuple):
    """`effects`: the class by the kind of machine, the last one where the kind is not named."""

    name: str
    effects: tuple[tuple[str, EffectClass], ...]
    is_denied: bool = False

    def on(self, kind: str) -> EffectClass:
        return dict(self.effects).get(kind, self.effects[-1][1])


Script: TypeAlias = tuple[tuple[tuple[Call, ...], ...], ...]
"""What the model may reply at each step: one of several batches."""


class Row(NamedTuple):
    kind: str
    place: Place = (0, 0)
    epoch: int = 0
    word: str = ""
    """Which reply it was, the class of a start, or the status of an outcome."""
    tree: Tree = ()
    """The workspace as it was observed last."""
    sandbox: str = ""


Journal: TypeAlias = tuple[Row, ...]


class Entry(NamedTuple):
    """A checkpoint. The name has the first three."""

    epoch: int = 0
    sequence: int = 0
    effects: int = 0
    journal: Journal = ()
    is_whole: bool = True


class Message(NamedTuple):
    """Under way to the store (`put`) or to the world (`send`); it arrives once, late, or never."""

    kind: str
    epoch: int
    entry: Entry = Entry()
    place: Place = (0, 0)
    name: str = ""
    effect: str = ""


class Process(NamedTuple):
    phase: str = "none"
    epoch: int = 0
    sequence: int = 0
    shipped: int = 0
    """So many rows are known to be stored."""
    place: Place = (0, 0)
    is_fenced: bool = False
    has_waited: bool = False
    goal: Entry = Entry()
    kept: tuple[tuple[int, int], ...] = ()
    """Checkpoints that it may delete once there are two newer ones."""


NOBODY = Process()


class Machine(NamedTuple):
    kind: str = ""
    journal: Journal = ()
    tree: Tree = ()
    is_half_restored: bool = False
    process: Process = NOBODY


class Bounds(NamedTuple):
    """How often each of these may happen, all in all."""

    fresh: int = 2
    """Attempts that begin on a machine of their own."""
    again: int = 0
    """Attempts that begin on a machine that was used before, whose process is killed."""
    damages: int = 0
    evictions: int = 0
    offers: int = 0
    holds: int = 0
    """Barriers that were given up, since the store did not answer."""


class State(NamedTuple):
    machines: tuple[Machine, ...]
    left: Bounds
    claims: tuple[int, ...] = ()
    taken: tuple[int, ...] = ()
    """Numbers that are reserved; a claim is stored as well."""
    entries: tuple[Entry, ...] = ()
    flight: tuple[Message, ...] = ()
    outside: tuple[tuple[Place, str, str], ...] = ()
    """Every effect that arrived, as often as it did: place, name, class."""
    closed: int = 0
    """The highest epoch that has waited."""
    # What nobody in the model can see; for judging only.
    sent: tuple[tuple[Place, str, str], ...] = ()
    runs: tuple[Place, ...] = ()
    is_spoiled: bool = False
    """The store has lost something."""
    has_vanished: bool = False
    """The store has lost a start that no name tells of any more: that cannot be noticed."""


class Scene(NamedTuple):
    """What is tried out."""

    script: Script
    bounds: Bounds
    kinds: tuple[str, ...] = ("",)
    """What kinds of machines there are: they differ in their sandbox."""
    begins_when: tuple[str, ...] = ()
    """Where all other processes have to be for one to begin; anywhere if left out."""
    lists: bool = True
    """Whether the store can list."""
    without: str = ""
    """The rule that is left out."""
    false_gaps: bool = False
    """Whether a gap that is reported although the store lost nothing counts as a broken promise."""

    def has(self, rule: str) -> bool:
        return self.without != rule


class Step(NamedTuple):
    label: str
    state: State
    broken: str = ""
    """The promise that this step breaks."""
