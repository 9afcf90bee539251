"""The command on a machine without bubblewrap: `python -m tests.support.no_sandbox action`."""

from __future__ import annotations

from functools import partial
from typing import Any

from endstate_action import action, workplace
from endstate_action.__main__ import main
from endstate_action.system.sandbox_probe import probe


class _Nothing:
    def __init__(self, sandbox: Any) -> None:
        self.sandbox = sandbox


if __name__ == "__main__":
    workplace.probe = partial(probe, programs=())  # type: ignore[attr-defined]
    action.obtain = lambda tried, environ, may_install: _Nothing(tried())  # type: ignore[attr-defined]
    main()
