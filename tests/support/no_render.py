"""The command in an environment that lacks a part of ours: `python -m tests.support.no_render`."""

from __future__ import annotations

import os
import sys

from endstate_action.cli import main, step

if __name__ == "__main__":
    sys.modules["endstate_action.ci.render"] = None  # type: ignore[assignment]
    # The command would begin anew, in an interpreter that knows nothing of this.
    step._clean_environment = lambda: dict(os.environ)  # type: ignore[attr-defined]
    main()
