"""Whether today's run is still the session's run: provider, model, tools.

Gone or different is refused with a list of what changed, or continued on purpose and recorded.
Our own version is shown elsewhere and never compared: a retry gets whatever release is out today.
"""

from __future__ import annotations

from collections.abc import Mapping

from endstate_action.agent.tools.base import Tool
from endstate_action.errors import Mismatch
from endstate_action.state.fold import State


def accepted_or_refuse(
    state: State, provider: str, model: str | None, tools: Mapping[str, Tool], on_mismatch: str
) -> tuple[str, ...]:
    """The differences that are accepted with `continue`; none where there are none.

    Raises:
        Mismatch: there are differences and `on_mismatch` is not `continue`.
    """
    found = differences(state, provider, model, tools)
    if found and on_mismatch != "continue":
        raise _refused(state, found)
    return found


def refuse_other_provider(state: State, provider: str) -> None:
    """What can be told before the provider exists, which may want a key that this session never needed.

    Raises:
        Mismatch: the session was begun with another provider.
    """
    changed = _provider_changed(state, provider)
    if changed is not None and not any(changed in a.accepted for a in state.attempts):
        raise _refused(state, (changed,))


def _refused(state: State, found: tuple[str, ...]) -> Mismatch:
    return Mismatch(
        f"Session {state.begun.session} was begun under another contract: {'; '.join(found)}. "
        "Nothing was run and nothing was changed.",
        differences=found,
        hint="Put back what differs, or: "
        "`--on-mismatch continue` goes on all the same, `--on-mismatch restart` begins a new session.",
    )


def differences(state: State, provider: str, model: str | None, tools: Mapping[str, Tool]) -> tuple[str, ...]:
    """What is not as it was when the session began, or as a person accepted since; one phrase each."""
    frozen = state.frozen
    if frozen is None:
        return ()
    newest = state.attempts[-1] if state.attempts else None
    known_model = newest.model if newest else frozen.model
    accepted = {a for attempt in state.attempts for a in attempt.accepted}
    changed = _provider_changed(state, provider)
    found = [changed] if changed else []
    if model is not None and model != known_model:
        found.append(f"model: {known_model} in the session, {model} now")
    for contract in frozen.contracts:
        name = contract["name"]
        tool = tools.get(name)
        if tool is None:
            found.append(f"tool {name}: gone")
        elif tool.contract() != dict(contract):
            parts = [k for k, v in tool.contract().items() if contract.get(k) != v]
            found.append(f"tool {name}: another {' and '.join(parts)}")
    answered = answering_model_changed(state)
    if answered is not None:
        found.append(answered)
    return tuple(f for f in found if f not in accepted)


def _provider_changed(state: State, provider: str) -> str | None:
    if state.frozen is None:
        return None
    known = state.attempts[-1].provider if state.attempts else state.frozen.provider
    return None if provider == known else f"provider: {known} in the session, {provider} now"


def answering_model_changed(state: State) -> str | None:
    """The change of the answering model that the last reply brought and nobody has accepted yet."""
    if len(state.replies) < 2:
        return None
    before, last = state.replies[-2], state.replies[-1]
    if before.model == last.model or not before.model or not last.model:
        return None
    asked = {a.epoch: a.model for a in state.attempts}
    if asked.get(before.epoch) != asked.get(last.epoch):
        return None  # another model was asked for, and that is on record
    answering = next((a for a in state.attempts if a.epoch == last.epoch), None)
    change = f"answering model: {before.model} before, {last.model} now"
    known = any(change in a.accepted for a in state.attempts)
    told = answering is not None and answering.limits.get("on-mismatch") == "continue"
    return None if known or told else change
