"""What the product makes of a state of the model: its own `settle.decide` and `choose`, asked as a run asks them."""

from __future__ import annotations

from functools import lru_cache

from endstate_action.agent.settle import Content, Found, Pending, Settlement, decide
from endstate_action.effects import EffectClass, Probe
from endstate_action.state.checkpoint.choose import Choice, Local, Seen, Unusable, Usable, choose
from endstate_action.state.keys import CheckpointKey
from endstate_action.state.records import Started
from tests.model.values import Call, Journal, Machine, Place, Process, Row, Scene, Script, State

LINEAGE = "0123456789ab"


def chosen_from(state: State, machine: Machine, scene: Scene) -> Choice:
    """What the product's own `choose` makes of what is here and in the store."""
    seen: list[Seen] = []
    up_to = machine.process.epoch or 9_999
    for entry in reversed(state.entries):
        if entry.epoch > up_to:
            continue
        usable = any(isinstance(one.found, Usable) for one in seen)
        if usable and not scene.lists:
            break
        key = CheckpointKey(LINEAGE, entry.epoch, entry.sequence, entry.effects if scene.has("gap witness") else 0)
        whole = Usable(len(entry.journal)) if entry.is_whole else Unusable("damaged", "a bit is wrong")
        seen.append(Seen(key, None if usable else whole))
    trusted = not (machine.is_half_restored and scene.has("half a restore"))
    local = None
    if machine.journal and trusted and scene.has("what is here counts"):
        epoch = epoch_of(machine.journal) if scene.has("same-machine choice") else 9_999
        effects = effects_in(machine.journal) if scene.has("gap witness") else 0
        local = Local(epoch, len(machine.journal), effects)
    return choose(local, seen, 0)


def settlement(
    machine: Machine, process: Process, outside: tuple[tuple[Place, str, str], ...], place: Place, scene: Scene
) -> Settlement:
    call = call_at(machine.journal, place, scene)
    starts = starts_of(machine.journal, place)
    today = call.on(machine.kind)
    recorded = EffectClass(starts[-1].word) if starts and scene.has("recorded class") else today
    first = process.epoch == 1 or not scene.has("probe what never started")
    done = any(mark[:2] == (place, call.name) for mark in machine.tree)
    path = call.name if recorded is EffectClass.IDEMPOTENT else None
    began = (
        Started(*place, "id", recorded, starts[-1].epoch, 0.0, "tag", path=path, sandbox=starts[-1].sandbox)
        if starts
        else None
    )
    counted = len(starts) if scene.has("counted starts") else min(1, len(starts))
    denied = "a rule" if call.is_denied and scene.has("denial first") else None
    return decide(
        Pending(call.name, denied, None, began, counted),
        Found(
            effect=today,
            is_first_attempt=first,
            content=Content.AFTER if done else Content.BEFORE,
            probe=_probe(outside, place, call.name, scene),
            can_roll_back=bool(starts),
            sandbox=machine.kind,
            blocked_by=_blocked_by(machine.journal, place),
        ),
    )


def _probe(outside: tuple[tuple[Place, str, str], ...], place: Place, name: str, scene: Scene) -> Probe:
    found = [one[1] for one in outside if one[0] == place and one[2] == "keyed"]
    if not found:
        return Probe.ABSENT
    return Probe.APPLIED if name in found or not scene.has("digest beside the key") else Probe.UNKNOWN


def _blocked_by(journal: Journal, place: Place) -> str | None:
    step, index = place
    refused = {row.place for row in journal if row.kind == "finished" and row.word == "refused"}
    return next((f"call {n + 1}" for n in range(index) if (step, n) in refused), None)


# What a journal says


@lru_cache(maxsize=100_000)
def pending_in(journal: Journal, script: Script) -> Place | None:
    """The first call without an outcome."""
    finished = {row.place for row in journal if row.kind == "finished"}
    return next((place for place in asked_in(journal, script) if place not in finished), None)


def asked_in(journal: Journal, script: Script) -> dict[Place, Call]:
    replies = [row for row in journal if row.kind == "replied"]
    return {
        (row.place[0], index): call
        for row in replies
        for index, call in enumerate(script[row.place[0] - 1][int(row.word)])
    }


def call_at(journal: Journal, place: Place, scene: Scene) -> Call:
    return asked_in(journal, scene.script)[place]


def starts_of(journal: Journal, place: Place | None) -> tuple[Row, ...]:
    return tuple(row for row in journal if row.kind == "started" and row.place == place)


@lru_cache(maxsize=100_000)
def effects_in(journal: Journal) -> int:
    return sum(row.kind == "started" and EffectClass(row.word).is_outside for row in journal)


def epoch_of(journal: Journal) -> int:
    return max((row.epoch for row in journal if row.kind == "attempt"), default=0)
