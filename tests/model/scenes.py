"""What is tried out: short scripts, and how much may go wrong in each."""

from __future__ import annotations

from endstate_action.effects import EffectClass
from tests.model.values import Bounds, Call, Scene, Script

OPAQUE, KEYED, NETWORKED = EffectClass.OPAQUE, EffectClass.KEYED, EffectClass.NETWORKED
CONTAINED, IDEMPOTENT, READS = EffectClass.CONTAINED, EffectClass.IDEMPOTENT, EffectClass.READS


def call(effect: EffectClass, name: str = "", *, is_denied: bool = False, **by_kind: EffectClass) -> Call:
    """Its class may differ by the kind of machine."""
    return Call(name or str(effect), (*by_kind.items(), ("", effect)), is_denied)


def one(*calls: Call) -> Script:
    """A task of one step."""
    return ((calls,),)


DENIED = call(OPAQUE, "denied", is_denied=True)
SHELL = call(OPAQUE, "shell", boxed=CONTAINED)
"""Reaches outside on a machine without a sandbox."""
EITHER: Script = (((call(OPAQUE, "post"),), (call(OPAQUE, "push"),)),)
"""The model asks for the one, or for the other when it is asked again."""
EITHER_KEYED: Script = (((call(KEYED, "post"),), (call(KEYED, "push"),)),)

KILLED_BY_A_COMMAND = Scene(one(call(CONTAINED)), Bounds(1, 4), begins_when=("running",))
LOST_BY_A_COMMAND = Scene(one(call(CONTAINED)), Bounds(5), begins_when=("running",))

SMALL = {
    "opaque, again": Scene(one(call(OPAQUE)), Bounds(2, 1)),
    "keyed, two at once": Scene(one(call(KEYED)), Bounds(3)),
    "networked, two at once": Scene(one(call(NETWORKED)), Bounds(2, 0, offers=1, holds=1)),
    "contained, again": Scene(one(call(CONTAINED)), Bounds(2, 1)),
    "edits": Scene((*one(call(IDEMPOTENT)), *one(call(IDEMPOTENT, "second"))), Bounds(1, 2)),
    "damage": Scene(one(call(KEYED)), Bounds(2, 0, damages=2, offers=1)),
    "eviction": Scene(one(call(OPAQUE)), Bounds(2, 0, evictions=2, offers=1)),
    "no listing": Scene(one(call(OPAQUE)), Bounds(2, 0, damages=1, evictions=1), lists=False),
    "a batch": Scene(one(DENIED, call(OPAQUE), call(READS), call(CONTAINED)), Bounds(2)),
    "another reply": Scene(EITHER_KEYED, Bounds(2, 0, evictions=1)),
    "two kinds of machines": Scene(one(SHELL), Bounds(2), kinds=("", "boxed")),
    "a command that kills its runner": KILLED_BY_A_COMMAND,
    "a command that takes its machine": LOST_BY_A_COMMAND,
}

DEEP = {
    "opaque": Scene(one(call(OPAQUE)), Bounds(3, 1, damages=1)),
    "keyed": Scene(one(call(KEYED)), Bounds(3, 0, damages=1, evictions=1)),
    "keyed, then delivered": Scene((*one(call(KEYED)), *one(call(KEYED, "deliver"))), Bounds(2, 1, offers=1)),
    "networked": Scene(one(call(NETWORKED)), Bounds(2, 1, damages=1, offers=1, holds=1)),
    "contained": Scene(one(call(CONTAINED)), Bounds(2, 2, damages=1)),
    "a batch of two": Scene(one(call(OPAQUE), call(CONTAINED)), Bounds(2, 1, holds=1)),
    "another reply": Scene(EITHER, Bounds(3, 0, damages=1)),
    "two kinds of machines": Scene(one(SHELL), Bounds(3), kinds=("", "boxed")),
    "no listing": Scene(one(call(OPAQUE)), Bounds(2, 1, damages=1, evictions=1), lists=False),
}

# For each rule, a scene in which it is missed.
MISSED = {
    "claim before look": Scene(one(call(OPAQUE)), Bounds(2)),
    "stored, not reserved": Scene(one(call(OPAQUE)), Bounds(2)),
    "ship before fence": Scene(one(call(OPAQUE)), Bounds(2)),
    "any higher epoch": Scene(one(call(OPAQUE)), Bounds(3)),
    "barrier for networked": Scene(one(call(NETWORKED)), Bounds(2)),
    "gap witness": Scene(one(call(OPAQUE)), Bounds(2, 0, damages=1)),
    "same-machine choice": Scene(one(call(OPAQUE)), Bounds(2, 1)),
    "what is here counts": Scene(one(call(READS)), Bounds(1, 1)),
    "recorded class": Scene(one(SHELL), Bounds(2), kinds=("", "boxed")),
    "counted starts": KILLED_BY_A_COMMAND,
    "shipped starts": LOST_BY_A_COMMAND,
    "denial first": Scene(one(DENIED), Bounds(1)),
    "probe deadline": Scene(one(call(KEYED)), Bounds(2)),
    "sender deadline": Scene(one(call(KEYED)), Bounds(2)),
    "probe what never started": Scene(one(call(KEYED)), Bounds(2, 0, evictions=1)),
    "digest beside the key": Scene(EITHER_KEYED, Bounds(2, 0, evictions=1)),
    "roll back before running again": Scene(one(call(CONTAINED)), Bounds(1, 1)),
    "one row per instruction": Scene(one(call(READS)), Bounds(1, 1, offers=1)),
    "half a restore": Scene(
        one(call(IDEMPOTENT)), Bounds(2, 1, evictions=2, offers=1), begins_when=("working", "restoring")
    ),
}
