"""A step on a machine without bubblewrap: `python -m tests.support.no_sandbox`."""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import Any

from endstate_action import action, workplace
from endstate_action.cli import _provider
from endstate_action.system.sandbox_install import Obtained
from endstate_action.system.sandbox_probe import probe


def main() -> int:
    workplace.probe = partial(probe, programs=())  # type: ignore[attr-defined]
    action.obtain = lambda tried, *_, **__: Obtained(tried())  # type: ignore[attr-defined]
    environ = dict(os.environ)
    for name, given in (("ANTHROPIC_API_KEY", "INPUT_ANTHROPIC_API_KEY"), ("ANTHROPIC_BASE_URL", "INPUT_BASE_URL")):
        environ[name] = environ[given]

    def provider(name: str, chosen: Any) -> Any:
        return _provider(name, chosen.base_url, None, environ)

    return action.Step(environ, provider, print).run()


if __name__ == "__main__":
    sys.exit(main())
