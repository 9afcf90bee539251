"""What the model says is recorded without known secrets, and a call that was given one is not run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from endstate_action.messages import VERBATIM, Block, ToolCall
from endstate_action.system.names import short
from endstate_action.system.redaction import Secrets


def without_secrets(blocks: tuple[Block, ...], secrets: Secrets) -> tuple[Block, ...]:
    """The blocks of a reply as they may be recorded; those without a secret are the same objects.

    A provider takes a thinking block back unchanged or not at all, so where one holds a secret, all of
    the reply's thinking goes.
    """
    thought = any(block.get("type") in VERBATIM and _names(block, secrets) for block in blocks)
    kept = (block for block in blocks if not (thought and block.get("type") in VERBATIM))
    return tuple(_without(block, secrets) if _names(block, secrets) else block for block in kept)


def secret_in(call: ToolCall, secrets: Secrets) -> str | None:
    """Why the call must not run, without the secret; None where it holds none."""
    places = [("the name of the tool", call.name), *((f"`{n}`", {n: value}) for n, value in call.arguments.items())]
    found = [(secrets.redact(short(where)), _names(value, secrets)) for where, value in places]
    held = [f"{where} holds the value of {', '.join(names)}" for where, names in found if names]
    return f"{'; '.join(held)}, a secret that no call may be given" if held else None


def _without(block: Block, secrets: Secrets) -> dict[str, Any]:
    hidden = _hidden(block, secrets)
    given = block.get("input")
    return hidden | {"input": _hidden(given, secrets)} if isinstance(given, Mapping) else hidden


def _hidden(fields: Mapping[str, Any], secrets: Secrets) -> dict[str, Any]:
    """The same fields with marks in the place of secrets; a value that holds one deep inside becomes its mark."""
    return {
        secrets.hide(name): secrets.hide(value) if isinstance(value, str) else _marked(value, secrets)
        for name, value in fields.items()
    }


def _marked(value: Any, secrets: Secrets) -> Any:
    names = _names(value, secrets)
    return f"[redacted: {', '.join(names)}]" if names else value


def _names(value: Any, secrets: Secrets) -> list[str]:
    """The secrets in a JSON value, wherever they are in it, sorted."""
    return sorted({name for text in _texts(value) for name in secrets.contains(text)})


def _texts(value: Any) -> Iterator[str]:
    """Every key and every scalar of it. Without recursion: its depth is the model's choice."""
    waiting = [value]
    while waiting:
        match waiting.pop():
            case Mapping() as inner:
                waiting += [*inner.keys(), *inner.values()]
            case list() | tuple() as items:
                waiting += items
            case scalar:
                yield str(scalar)
