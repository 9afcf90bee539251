"""Whether the effect classes of tools are true: each is run, run again, killed and resumed, and what is left compared.

Everything happens in scratch directories and in processes of their own. What a tool does to the rest
of the machine or on the network is not seen; what it does to the workspace, its HOME, its TMPDIR and
beside the workspace is.
"""

from __future__ import annotations

import json
import os
import site
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from endstate_action.errors import EndstateError, InputError, Interrupted
from endstate_action.system.output import decode
from endstate_action.system.process import Finished, run
from endstate_action.system.secrets import split_environment
from endstate_action.system.signals import Interrupts

LIMIT_S = 1800
"""How long all of it may take."""

Verdict = Mapping[str, str]
"""`tool`, `effect`, `verdict` (true, false, not checked, nothing to check) and `evidence`, a sentence."""

TRUE, FALSE, NOT_CHECKED, NOTHING_TO_CHECK = "true", "false", "not checked", "nothing to check"


def check(target: str | None, where: Path, environ: Mapping[str, str]) -> list[Verdict]:
    """A verdict for each tool of `target` (`MODULE` or `MODULE:ATTRIBUTE`), or for each built-in one.

    The module is imported, from the directory `where` too, by a child process that gets `environ`
    without its credentials.

    Raises:
        InputError: the target cannot be imported, or holds no tool.
        Interrupted: by a signal; nothing but scratch directories was touched.
    """
    interrupts = Interrupts()
    with (
        tempfile.TemporaryDirectory(prefix="endstate-check-", ignore_cleanup_errors=True) as folder,
        interrupts.caught(),
    ):
        scratch = Path(folder).resolve()
        env = _environment(environ, scratch / "place")
        (scratch / "environ.json").write_text(json.dumps(env))
        argv = [sys.executable, "-P", "-m", f"{__name__}.worker", str(scratch), str(where), target or ""]
        try:
            finished = run(
                argv,
                cwd=scratch,
                env=env,
                timeout_s=LIMIT_S,
                # Of its own, since what bears a call's tag is ended with it, another check as well.
                tag=scratch.name,
                check=interrupts.check,
            )
        except Interrupted as error:
            raise Interrupted("Interrupted; nothing was decided.", hint="Run the same command again.") from error
        return _said(scratch / "said.json", target, finished)


def _environment(environ: Mapping[str, str], place: Path) -> dict[str, str]:
    """Ours, but that home and temporary files are watched; caches are nobody's business."""
    harmless = {n: v for n, v in split_environment(environ)[0].items() if not n.startswith(("GIT_", "XDG_"))}
    return harmless | {
        "HOME": str(place / "home"),
        "TMPDIR": str(place / "tmp"),
        "XDG_CACHE_HOME": str(place.parent / "cache"),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), environ.get("PYTHONPATH")))),
        # Packages that are installed for the user are found by HOME otherwise.
        "PYTHONUSERBASE": environ.get("PYTHONUSERBASE") or site.getuserbase(),
        "PYTHONDONTWRITEBYTECODE": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
    }


def _said(file: Path, target: str | None, finished: Finished) -> list[Verdict]:
    said: Any = json.loads(file.read_bytes()) if file.exists() else None
    if isinstance(said, list):
        return said
    if said is not None:
        raise InputError(said["error"], hint=said["hint"])
    words = decode(finished.output)[0].strip().splitlines()
    how = f"ended with {finished.exit_code}" if finished.signal is None else f"was ended by signal {finished.signal}"
    how = "did not end" if finished.timed_out else how
    message = f"Nothing was decided: the process that checks {how}. {words[-1] if words else ''}".strip()
    if target:
        raise InputError(message, hint=f"See what {target} does when it is imported, and that its tools return.")
    raise EndstateError(message, hint="Please report this.")
