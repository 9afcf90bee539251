"""An agent run that survives the death of its runner.

The names below are the library's public face; each is imported on first use, so that
`import endstate_action` costs nothing.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "AgentLoop": "agent.loop",
    "RunResult": "agent.loop",
    "Tool": "agent.tools.base",
    "ToolError": "agent.tools.base",
    "CallContext": "agent.tools.base",
    "Provider": "agent.providers.base",
    "Reply": "agent.providers.base",
    "Request": "agent.providers.base",
    "EffectClass": "effects",
    "Probe": "effects",
    "EndstateError": "errors",
    "Message": "messages",
    "ToolCall": "messages",
    "ToolResult": "messages",
    "Usage": "messages",
    "Session": "state.session",
    "SessionStore": "state.session",
}

__all__ = ["__version__", *_PUBLIC]

if TYPE_CHECKING:
    from endstate_action.agent.loop import AgentLoop, RunResult
    from endstate_action.agent.providers.base import Provider, Reply, Request
    from endstate_action.agent.tools.base import CallContext, Tool, ToolError
    from endstate_action.effects import EffectClass, Probe
    from endstate_action.errors import EndstateError
    from endstate_action.messages import Message, ToolCall, ToolResult, Usage
    from endstate_action.state.session import Session, SessionStore


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_PUBLIC[name]}"), name)
