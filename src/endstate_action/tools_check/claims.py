"""What each effect class promises, held against what a tool did.

Nothing is proved by it: a claim that is not found false was kept in every trial that was made. What
a call does on the network is not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from endstate_action.effects import EffectClass
from endstate_action.tools_check.place import Picture, difference, lasting, outside
from endstate_action.tools_check.tapped import Order, starts_a_program
from endstate_action.tools_check.trial import Left, NotChecked

KILLS = 6
"""At most so many before what is seen outside, and half as many between the tool's own lines, evenly spread."""

Try = Callable[[Order], Left]
"""Makes the call in a fresh place."""


def judge(attempt: Try, before: Picture) -> tuple[str, str]:
    """The effect class as recorded, and why the claim is false, in a sentence; empty where no trial showed it.

    Raises:
        NotChecked: the call does not succeed when it is left alone, or never ends twice the same.
    """
    once = attempt(Order())
    if once.status != "ok":
        raise NotChecked(f"its example does not work here: {once.said.get('stopped') or once.text or 'no outcome'}")
    effect = EffectClass(once.effect)
    if effect is EffectClass.OPAQUE:
        return effect, ""
    return effect, _undisturbed(effect, attempt, before, once) or next(_killed(effect, attempt, before, once), "")


def _undisturbed(effect: EffectClass, attempt: Try, before: Picture, once: Left) -> str:
    match effect:
        case EffectClass.READS:
            changed = difference(lasting(before), lasting(once.picture))
            return f"it does not only read: {changed}" if changed else ""
        case EffectClass.IDEMPOTENT:
            changed = difference(lasting(once.picture), lasting(attempt(Order(times=2)).picture))
            if changed:
                return f"run twice it left something else than run once: {changed}"
        case EffectClass.KEYED:
            wrong = _wrong_probe(once.said["probes"])
            if wrong:
                return wrong
        case _:
            changed = difference(outside(before), outside(once.picture))
            if changed:
                return f"it changed something outside of the workspace: {changed}"
    differs = difference(lasting(once.picture), lasting(attempt(Order()).picture))
    if differs:
        raise NotChecked(f"two runs in equal places end differently, so nothing can be compared: {differs}")
    return ""


def _wrong_probe(answers: Sequence[str]) -> str:
    asked = ("before the call", "after the call", "about other content under the same key")
    for when, answer, right in zip(asked, answers, ("absent", "applied", "unknown"), strict=True):
        if answer != right:
            return f"asked {when}, its probe says {answer} and not {right}"
    return ""


def _killed(effect: EffectClass, attempt: Try, before: Picture, once: Left) -> Iterator[str]:
    for order in _orders(once.said):
        left = attempt(order)
        if "killed" in left.said:
            wrong = _after_a_kill(effect, before, once, left)
            if wrong:
                yield f"killed {left.said['killed']} and resumed, {wrong}"


def _orders(said: Mapping[str, Any]) -> Iterator[Order]:
    points: list[str] = said["points"]
    *inside, last = range(1, len(points) + 1)
    effects = [n for n in inside if points[n - 1].startswith("before")]
    lines = [n for n in inside if n not in set(effects)]
    # What does nothing outside cannot be caught in the middle of it.
    for n in (last, *_spread(effects, KILLS), *_spread(lines, KILLS // 2 if effects else 0)):
        yield Order(kill_at=n)
    if starts_a_program(points):
        for part in (0.25, 0.5, 0.75):
            yield Order(kill_after_s=part * said["elapsed_s"])


def _spread(places: Sequence[int], most: int) -> Sequence[int]:
    taken = min(most, len(places))
    return [places[n * len(places) // taken] for n in range(taken)]


def _after_a_kill(effect: EffectClass, before: Picture, once: Left, left: Left) -> str:
    if "stopped" in left.said:
        return f"it could not be settled: {left.said['stopped']}"
    expected, found = once.picture, left.picture
    match effect:
        case EffectClass.KEYED if left.status == "refused":
            return ""  # the probe cannot tell, says so, and nothing was repeated
        case EffectClass.NETWORKED if left.status == "refused":
            expected = before
        case _ if left.status != "ok":
            return f"its outcome was {left.status or 'missing'}: {left.text}"
    if effect in (EffectClass.CONTAINED, EffectClass.NETWORKED):
        changed = difference(expected, found)
    else:
        changed = difference(lasting(expected), lasting(found))
    return f"it left something else than undisturbed: {changed}" if changed else ""
