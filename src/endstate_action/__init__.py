"""An agent run that survives the death of its runner.

The names below are the library's public face; each is imported on first use, so that
`import endstate_action` costs nothing.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "AgentLoop": "agent.loop",
    "RunResult": "agent.loop",
    "Setup": "agent.loop",
    "Limits": "config",
    "Policy": "agent.policy",
    "FileChange": "agent.tools.base",
    "Probed": "agent.tools.base",
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
    "Secrets": "system.redaction",
}

__all__ = ["__version__", *_PUBLIC]

if TYPE_CHECKING:
    from endstate_action.agent.loop import AgentLoop as AgentLoop
    from endstate_action.agent.loop import RunResult as RunResult
    from endstate_action.agent.loop import Setup as Setup
    from endstate_action.agent.policy import Policy as Policy
    from endstate_action.agent.providers.base import Provider as Provider
    from endstate_action.agent.providers.base import Reply as Reply
    from endstate_action.agent.providers.base import Request as Request
    from endstate_action.agent.tools.base import CallContext as CallContext
    from endstate_action.agent.tools.base import FileChange as FileChange
    from endstate_action.agent.tools.base import Probed as Probed
    from endstate_action.agent.tools.base import Tool as Tool
    from endstate_action.agent.tools.base import ToolError as ToolError
    from endstate_action.config import Limits as Limits
    from endstate_action.effects import EffectClass as EffectClass
    from endstate_action.effects import Probe as Probe
    from endstate_action.errors import EndstateError as EndstateError
    from endstate_action.messages import Message as Message
    from endstate_action.messages import ToolCall as ToolCall
    from endstate_action.messages import ToolResult as ToolResult
    from endstate_action.messages import Usage as Usage
    from endstate_action.state.session import Session as Session
    from endstate_action.state.session import SessionStore as SessionStore
    from endstate_action.system.redaction import Secrets as Secrets


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_PUBLIC[name]}"), name)
