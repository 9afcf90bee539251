"""A step on a machine without bubblewrap: `python -m tests.support.no_sandbox`.

Nothing is installed for it. Where STUBS names a directory, what is there stands for the programs that would do so.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

from endstate_action import action, workplace
from endstate_action.cli import _provider
from endstate_action.system.sandbox_install import Obtained, _Host, obtain
from endstate_action.system.sandbox_probe import probe


def main() -> int:
    workplace.probe = partial(probe, programs=())  # type: ignore[attr-defined]
    if stubs := os.environ.get("STUBS"):
        nothing = Path("/none")
        host = _Host(stubs, nothing, nothing, nothing, is_root=True)
        action.obtain = partial(obtain, host=host)  # type: ignore[attr-defined]
    else:
        action.obtain = lambda tried, *_, **__: Obtained(tried())  # type: ignore[attr-defined]
    environ = dict(os.environ)
    for name, given in (("ANTHROPIC_API_KEY", "INPUT_ANTHROPIC_API_KEY"), ("ANTHROPIC_BASE_URL", "INPUT_BASE_URL")):
        environ[name] = environ[given]

    def provider(name: str, chosen: Any) -> Any:
        return _provider(name, chosen.base_url, None, environ)

    return action.Step(environ, provider, print).run()


if __name__ == "__main__":
    sys.exit(main())
