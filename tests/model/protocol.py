"""The protocol, small enough to try every order of events: attempts, a store, machines, and what is seen outside.

A state is a value, and `steps` gives every state that can follow. What decides is the product's own: `settle.decide`
for each call, `choose` for what to go on from. What is modelled here is what stands around them: who claims, looks,
ships, asks the fence and sends, and what the world does meanwhile. A process that is frozen has no turn for a while,
one that is lost with its machine has none ever again, and what it sent may still arrive: so a crash needs no event of
its own, unless another process begins on the same machine, or on a second one that was used before.

Time has no clock. That an absent answer is believed only after a while, and that a sender looks at its own deadline,
becomes: once an attempt has `waited`, what older ones had under way has arrived or never will, and none of them sends.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from endstate_action.agent.settle import MAX_STARTS, Action
from endstate_action.effects import EffectClass
from endstate_action.state.checkpoint.choose import Gap, NoneFound, UseLocal, UseStored
from tests.model.deciding import asked_in, call_at, chosen_from, effects_in, epoch_of, pending_in, settlement, starts_of
from tests.model.values import (
    NOBODY,
    Bounds,
    Call,
    Entry,
    Journal,
    Machine,
    Mark,
    Message,
    Place,
    Process,
    Row,
    Scene,
    State,
    Step,
)


def start(scene: Scene) -> State:
    return State((), scene.bounds)


def steps(state: State, scene: Scene) -> Iterator[Step]:
    """Everything that can happen next."""
    yield from _of_the_world(state, scene)
    begins = not scene.begins_when or all(m.process.phase in ("none", *scene.begins_when) for m in state.machines)
    if state.left.fresh and begins:
        for kind in scene.kinds:
            yield Step(f"a process begins on a fresh machine {kind}".strip(), _fresh(state, kind))
    for number, machine in enumerate(state.machines):
        who = f"e{machine.process.epoch}"
        if state.left.again and begins:
            killed = machine._replace(process=Process("new"))
            gone = "where another has ended" if machine.process == NOBODY else f"in place of {who}, which is killed"
            label = f"a process begins {gone}"
            yield Step(label, _put(state, number, killed)._replace(left=_less(state, "again")))
        if machine.process != NOBODY:
            for label, after, broken in _of_a_process(state, number, machine, machine.process, scene):
                yield Step(f"{who} {label}", after, broken)


# The world


def _of_the_world(state: State, scene: Scene) -> Iterator[Step]:
    for message in state.flight:
        if message.kind == "put":
            entry = message.entry
            yield Step(f"checkpoint {entry.epoch}/{entry.sequence} arrives", _stored(state, message))
        else:
            yield _applied(state, message)
    whole = [entry for entry in state.entries if entry.is_whole]
    if whole and state.left.damages:
        damaged = (*(entry for entry in state.entries if entry != whole[-1]), whole[-1]._replace(is_whole=False))
        after = _spoil(state, tuple(sorted(damaged)))._replace(left=_less(state, "damages"))
        yield Step("the newest checkpoint that is whole is damaged", after)
    if state.entries and state.left.evictions:
        *rest, gone = state.entries
        # A name from before the epoch that is gone on from tells of nothing, or was not looked at.
        telling = [entry.effects for entry in rest if entry.epoch == gone.epoch]
        unseen = max(telling, default=0) < gone.effects
        after = _spoil(state, tuple(rest))._replace(left=_less(state, "evictions"))
        yield Step("the newest checkpoint vanishes", after._replace(has_vanished=state.has_vanished or unseen))


def _spoil(state: State, entries: tuple[Entry, ...]) -> State:
    return state._replace(entries=entries, is_spoiled=True)


def _stored(state: State, message: Message) -> State:
    entry = message.entry
    state = state._replace(flight=_without(state.flight, message))
    entries = {*state.entries, entry}
    for number, machine in enumerate(state.machines):
        process = machine.process
        if process.epoch == entry.epoch and process.phase != "none":
            known = sorted({*process.kept, entry[:2]})
            entries = {other for other in entries if other[:2] not in known[:-2]}
            shipped = max(process.shipped, len(entry.journal))
            proved = process.phase == "begun" and shipped >= len(machine.journal)
            phase = "working" if proved else process.phase
            process = process._replace(phase=phase, shipped=shipped, kept=tuple(known[-2:]))
            state = _put(state, number, machine._replace(process=process))
    return state._replace(entries=tuple(sorted(entries)))


def _applied(state: State, message: Message) -> Step:
    place, effect = message.place, message.effect
    broken = ""
    earlier = [one for one in state.outside if one[0] == place]
    if any(one[2] == effect == "keyed" for one in earlier):
        broken = "a keyed effect is there at most once"
    elif earlier and not state.has_vanished and effect != "keyed":
        broken = f"an effect of a call that is {effect} is there at most once"
    elif effect == "keyed" and message.epoch < state.closed:
        broken = "nothing arrives any more from before an attempt that has waited"
    outside = tuple(sorted((*state.outside, (place, message.name, effect))))
    after = state._replace(flight=_without(state.flight, message), outside=outside)
    for number, machine in enumerate(state.machines):
        if machine.process.epoch == message.epoch and machine.process.phase == "sent":
            after = _put(after, number, machine._replace(process=machine.process._replace(phase="answered")))
    return Step(f"what e{message.epoch} sent arrives", after, broken)


def _fresh(state: State, kind: str) -> State:
    machines = (*state.machines, Machine(kind, process=Process("new")))
    return state._replace(machines=machines, left=_less(state, "fresh"))


# One attempt


def _of_a_process(state: State, number: int, machine: Machine, process: Process, scene: Scene) -> Iterator[Step]:
    match process.phase:
        case "new" if not scene.has("claim before look"):
            yield _look(state, number, scene)
        case "new":
            yield _reserve(state, number, scene)
        case "reserved":
            yield _finalise(state, number)
            if not scene.has("stored, not reserved"):
                yield _look(state, number, scene)
        case "claimed":
            yield _look(state, number, scene)
        case "chosen":  # without its number yet: only where it looks before it claims
            yield _reserve(state, number, scene)
        case "found":
            half = machine._replace(is_half_restored=True, tree=process.goal.journal[-1].tree)
            yield Step("restores the workspace", _at(state, number, half, "restoring"))
        case "restoring":
            whole = machine._replace(is_half_restored=False, journal=process.goal.journal)
            yield Step("swaps the session in", _begin(state, number, whole, scene))
        case "begun":
            yield from _ship(state, number)
        case "working":
            yield from _work(state, number, scene)
        case "started":
            yield from _held(state, number, scene)
        case "sent":
            # What was under way and has not arrived before a successor had waited never will.
            if not any(message.kind == "send" and message.epoch == process.epoch for message in state.flight):
                yield Step("gets no answer", _finish(state, number, process.place, "error"))
        case "answered":
            yield Step("records the outcome", _finish(state, number, process.place, "ok"))
        case "running":
            name = call_at(machine.journal, process.place, scene).name
            done = machine._replace(tree=(*machine.tree, (process.place, name, "second half")))
            yield Step("has run it", _at(state, number, done, "answered"))
        case _:
            raise AssertionError(process.phase)


def _reserve(state: State, number: int, scene: Scene) -> Step:
    machine = state.machines[number]
    above = max([0, *state.claims, epoch_of(machine.journal)])
    epoch = next(n for n in range(above + 1, above + 99) if n not in state.taken)
    machine = machine._replace(process=machine.process._replace(epoch=epoch))
    taken = tuple(sorted((*state.taken, epoch)))
    if machine.process.phase == "new":
        return Step(f"reserves {epoch}", _at(state._replace(taken=taken), number, machine, "reserved"))
    # It has looked already, so that it goes on with what it has chosen.
    state = state._replace(taken=taken, claims=tuple(sorted((*state.claims, epoch))))
    return Step(f"claims {epoch}", _go_on(state, number, machine, scene))


def _finalise(state: State, number: int) -> Step:
    machine = state.machines[number]
    claims = tuple(sorted((*state.claims, machine.process.epoch)))
    return Step("has stored its claim", _at(state._replace(claims=claims), number, machine, "claimed"))


def _look(state: State, number: int, scene: Scene) -> Step:
    machine = state.machines[number]
    chosen = chosen_from(state, machine, scene)
    late = machine.process.epoch == 0
    match chosen:
        case UseStored(key):
            goal = next(entry for entry in state.entries if entry[:2] == (key.epoch, key.sequence))
            machine = machine._replace(process=machine.process._replace(goal=goal, kept=((key.epoch, key.sequence),)))
            label, journal = f"chooses checkpoint {key.epoch}/{key.sequence}", goal.journal
        case UseLocal():
            label, journal = "goes on from what is here", machine.journal
        case NoneFound() if not machine.is_half_restored or not scene.has("half a restore"):
            label, journal = "finds nothing", ()
        case _:
            after = _put(state, number, machine._replace(process=NOBODY))
            false = isinstance(chosen, Gap) and scene.false_gaps and not state.is_spoiled
            broken = "a gap is reported only where the store lost something" if false else ""
            return Step(f"stops: {type(chosen).__name__}", after, broken)
    broken = _silently_below(state, machine, journal, scene)
    if late:
        return Step(label, _at(state, number, machine, "chosen"), broken)
    return Step(label, _go_on(state, number, machine, scene), broken)


def _is_overtaken(state: State, process: Process) -> bool:
    """Who has been overtaken may believe what it likes, and run what stays on its machine: it passes no fence."""
    return bool(process.epoch) and any(claim > process.epoch for claim in state.claims)


def _go_on(state: State, number: int, machine: Machine, scene: Scene) -> State:
    if machine.process.goal.journal:
        return _at(state, number, machine, "found")
    return _begin(state, number, machine, scene)


def _silently_below(state: State, machine: Machine, journal: Journal, scene: Scene) -> str:
    """What is wrong with going on from this."""
    if _is_overtaken(state, machine.process):
        return ""
    asked = asked_in(journal, scene.script)
    known = {(row.place, asked[row.place].name) for row in journal if row.kind == "started"}
    if not state.has_vanished and any(one[:2] not in known for one in state.sent):
        return "what is gone on from knows of every effect that was sent, or a gap is reported"
    epoch = epoch_of(journal)
    if any(entry.is_whole and entry.epoch > epoch for entry in state.entries):
        return "nobody goes on from an older attempt's state where one of a newer opens"
    here = machine.journal if not machine.is_half_restored else ()
    if here and epoch_of(here) >= epoch and len(here) > len(journal):
        return "what the newest attempt recorded on this machine is not given up"
    shipped = [entry.journal for entry in state.entries if entry.epoch == epoch]
    if not state.is_spoiled and any(journal[: len(one)] != one for one in shipped):
        return "what is gone on from has all that its epoch had shipped"
    return ""


def _begin(state: State, number: int, machine: Machine, scene: Scene) -> State:
    """The attempt is on record. What is about to be undone is not observed first."""
    place = pending_in(machine.journal, scene.script)
    starts = starts_of(machine.journal, place) if place else ()
    undone = bool(starts) and starts[-1].word in ("contained", "networked")
    row = Row("attempt", (0, 0), machine.process.epoch, "", starts[-1].tree if undone else machine.tree)
    return _at(state, number, machine._replace(journal=(*machine.journal, row)), "begun")


def _ship(state: State, number: int) -> Iterator[Step]:
    """One upload at a time."""
    machine = state.machines[number]
    process = machine.process
    under_way = any(message.kind == "put" and message.epoch == process.epoch for message in state.flight)
    if process.shipped >= len(machine.journal) or under_way:
        return
    sequence = process.sequence + 1
    entry = Entry(process.epoch, sequence, effects_in(machine.journal), machine.journal)
    after = _put(state, number, machine._replace(process=process._replace(sequence=sequence)))
    flight = tuple(sorted((*state.flight, Message("put", process.epoch, entry))))
    yield Step(f"ships {process.epoch}/{sequence}", after._replace(flight=flight))


def _work(state: State, number: int, scene: Scene) -> Iterator[Step]:
    machine = state.machines[number]
    journal, process = machine.journal, machine.process
    if state.left.offers:
        for label, after, _ in _ship(state, number):
            yield Step(label + ", not waiting", after._replace(left=_less(after, "offers")))
    place = pending_in(journal, scene.script)
    if place:
        yield from _settle(state, number, place, scene)
        return
    if not _is_asked(journal, process.epoch, scene):
        state = _append(state, number, Row("prompt", (0, 0), process.epoch, "", journal[-1].tree))
        machine = state.machines[number]
    step = sum(row.kind == "replied" for row in journal) + 1
    if step > len(scene.script):
        ended = _put(state, number, machine._replace(process=NOBODY))
        yield Step("ends", ended, _disturbed(state, machine, scene))
        return
    for variant in range(len(scene.script[step - 1])):
        row = Row("replied", (step, 0), process.epoch, str(variant), journal[-1].tree)
        yield Step(f"gets reply {step}{'abc'[variant]}", _append(state, number, row))


def _is_asked(journal: Journal, epoch: int, scene: Scene) -> bool:
    mine = not scene.has("one row per instruction")
    return any(row.kind == "prompt" and (row.epoch == epoch or not mine) for row in journal)


def _settle(state: State, number: int, place: Place, scene: Scene) -> Iterator[Step]:
    machine = state.machines[number]
    process = machine.process
    call = call_at(machine.journal, place, scene)
    starts = starts_of(machine.journal, place)
    effect = EffectClass(starts[-1].word) if starts and scene.has("recorded class") else call.on(machine.kind)
    probes = effect is EffectClass.KEYED and process.epoch > 1
    # An absent answer counts once what older attempts had under way has arrived, or has been given up.
    if probes and not process.has_waited and not call.is_denied and scene.has("probe deadline"):
        yield Step("waits until nothing older can arrive", _wait(state, number))
        return
    verdict = settlement(machine, process, state.outside, place, scene)
    label = f"settles {call.name}: {verdict.action}"
    if verdict.rolls_back and scene.has("roll back before running again"):
        machine = machine._replace(tree=starts[-1].tree)
        row = Row("rolled_back", place, process.epoch, "", machine.tree)
        state = _append(_put(state, number, machine), number, row)
    if verdict.runs:
        yield _start(state, number, place, call, scene, label)
        return
    after = _finish(state, number, place, verdict.status)
    broken = ""
    if verdict.action is Action.ADOPT and effect is EffectClass.KEYED:
        real = any(one[:2] == (place, call.name) for one in state.outside)
        broken = "" if real else "what is called done is there, as it was asked for"
    yield Step(label, after, broken)


def _wait(state: State, number: int) -> State:
    machine = state.machines[number]
    epoch = machine.process.epoch
    flight = tuple(m for m in state.flight if m.kind == "put" or m.epoch >= epoch)
    after = _put(state, number, machine._replace(process=machine.process._replace(has_waited=True)))
    return after._replace(flight=flight, closed=max(state.closed, epoch))


def _start(state: State, number: int, place: Place, call: Call, scene: Scene, label: str) -> Step:
    machine = state.machines[number]
    effect = call.on(machine.kind)
    broken = "what was denied never runs" if call.is_denied else ""
    if effect is EffectClass.READS:
        return Step(label, _finish(state, number, place, "ok"), broken)
    row = Row("started", place, machine.process.epoch, str(effect), machine.tree, machine.kind)
    process = machine.process._replace(phase="started", place=place, is_fenced=False)
    after = machine._replace(journal=(*machine.journal, row), process=process)
    return Step(label, _put(state, number, after), broken)


def _held(state: State, number: int, scene: Scene) -> Iterator[Step]:
    """The start is on record: what is still between it and the deed."""
    machine = state.machines[number]
    process, effect = machine.process, EffectClass(machine.journal[-1].word)
    shipped = process.shipped >= len(machine.journal)
    if effect is EffectClass.NETWORKED and not scene.has("barrier for networked"):
        yield from _send(state, number, effect, scene)
        return
    if not effect.is_outside:
        if effect is EffectClass.CONTAINED and process.epoch > 1 and not shipped and scene.has("shipped starts"):
            yield from _ship(state, number)
        else:
            yield _run(state, number, effect, scene)
        return
    yield from _ship(state, number)
    if not process.is_fenced and (shipped or not scene.has("ship before fence")):
        yield _fence(state, number, scene)
    if process.is_fenced and shipped:
        yield from _send(state, number, effect, scene)
    if state.left.holds:
        after = _finish(state, number, process.place, "not_run")
        yield Step("gives the barrier up", after._replace(left=_less(after, "holds")))


def _fence(state: State, number: int, scene: Scene) -> Step:
    machine = state.machines[number]
    mine = machine.process.epoch
    higher = any(n > mine for n in state.claims) if scene.has("any higher epoch") else mine + 1 in state.claims
    if higher:
        return Step("is superseded", _put(state, number, machine._replace(process=NOBODY)))
    broken = "nothing is done below the highest stored claim" if any(n > mine for n in state.claims) else ""
    process = machine.process._replace(is_fenced=True)
    return Step("passes the fence", _put(state, number, machine._replace(process=process)), broken)


def _send(state: State, number: int, effect: EffectClass, scene: Scene) -> Iterator[Step]:
    machine = state.machines[number]
    process = machine.process
    if effect is EffectClass.KEYED and state.closed > process.epoch and scene.has("sender deadline"):
        again = machine._replace(process=process._replace(is_fenced=False))
        yield Step("finds its deadline over", _put(state, number, again))
        return
    name = call_at(machine.journal, process.place, scene).name
    message = Message("send", process.epoch, Entry(), process.place, name, str(effect))
    after = _at(state, number, machine, "sent")
    sent = tuple(sorted({*state.sent, (process.place, name, str(effect))}))
    after = after._replace(flight=tuple(sorted((*state.flight, message))), sent=sent)
    yield Step(f"sends {name}", after, _repeated(state, process.place, name))


def _repeated(state: State, place: Place, name: str) -> str:
    if any(one[:2] == (place, name) and one[2] != "keyed" for one in state.sent) and not state.has_vanished:
        return "what may have happened outside, and cannot be asked for, is not run again"
    return ""


def _run(state: State, number: int, effect: EffectClass, scene: Scene) -> Step:
    machine = state.machines[number]
    place = machine.process.place
    name = call_at(machine.journal, place, scene).name
    if effect is EffectClass.IDEMPOTENT:
        edited = machine._replace(tree=(*machine.tree, (place, name, "edit")))
        return Step(f"edits {name}", _at(state, number, edited, "answered"))
    runs = tuple(sorted((*state.runs, place)))
    # The first attempt's start need not have left its machine; every later one has.
    over = runs.count(place) > MAX_STARTS + 1 and not state.is_spoiled
    half = machine._replace(tree=(*machine.tree, (place, name, "first half")))
    after = _at(state, number, half, "running")._replace(runs=runs)
    broken = "what kills its runner is not started for ever" if over else ""
    if not broken and not _is_overtaken(state, machine.process):
        broken = _repeated(state, place, name)
    return Step(f"begins to run {name}", after, broken)


def _finish(state: State, number: int, place: Place, status: str) -> State:
    machine = state.machines[number]
    row = Row("finished", place, machine.process.epoch, status, machine.tree)
    process = machine.process._replace(phase="working", place=(0, 0), is_fenced=False)
    return _put(state, number, machine._replace(journal=(*machine.journal, row), process=process))


def _disturbed(state: State, machine: Machine, scene: Scene) -> str:
    """What is wrong with the end of a task."""
    outcomes = [row for row in machine.journal if row.kind == "finished"]
    asked = asked_in(machine.journal, scene.script)
    if sorted(row.place for row in outcomes) != sorted(asked):
        return "every call is answered, once"
    if sum(row.kind == "prompt" for row in machine.journal) != 1:
        return "an instruction is one row"
    if any(row.word not in ("ok", "denied") for row in outcomes):
        return ""
    wanted: list[Mark] = []
    for place, call in asked.items():
        effects = {EffectClass(row.word) for row in starts_of(machine.journal, place)}
        if EffectClass.CONTAINED in effects:
            wanted += [(place, call.name, "first half"), (place, call.name, "second half")]
        elif EffectClass.IDEMPOTENT in effects:
            wanted.append((place, call.name, "edit"))
        elif any(effect.is_outside for effect in effects):
            count = [one[:2] for one in state.outside].count((place, call.name))
            if count < 1 or (count > 1 and not state.has_vanished):
                return "at the end everything was done once"
    return "" if machine.tree == tuple(wanted) else "the end is that of an undisturbed run"


# Small things


def _append(state: State, number: int, row: Row) -> State:
    machine = state.machines[number]
    return _put(state, number, machine._replace(journal=(*machine.journal, row)))


def _at(state: State, number: int, machine: Machine, phase: str) -> State:
    return _put(state, number, machine._replace(process=machine.process._replace(phase=phase)))


def _put(state: State, number: int, machine: Machine) -> State:
    return state._replace(machines=(*state.machines[:number], machine, *state.machines[number + 1 :]))


def _less(state: State, name: str) -> Bounds:
    changed: dict[str, Any] = {name: getattr(state.left, name) - 1}
    return state.left._replace(**changed)


def _without(flight: tuple[Message, ...], message: Message) -> tuple[Message, ...]:
    at = flight.index(message)
    return flight[:at] + flight[at + 1 :]
