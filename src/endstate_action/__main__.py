"""The `endstate` command, up to where its parts are loaded: a signal has an answer from the first moment."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import NoReturn

from endstate_action.system.signals import heeded, release


def main() -> NoReturn:
    for number in heeded():
        signal.signal(number, _stop)
    release()
    # Slow, and nothing can be torn meanwhile.
    from endstate_action.cli import main as command

    command()


def _stop(number: int, _: FrameType | None) -> NoReturn:
    """Not by an exception: whatever is being imported could swallow it."""
    said = f"Interrupted by {signal.Signals(number).name} before anything was recorded; nothing was run."
    _write(2, f"endstate: {said}\n")
    if "--json" in sys.argv[1:]:
        _write(1, f'{{"conclusion": "interrupted", "error": "{said}", "hint": "", "exit-code": 75}}\n')
    os._exit(75)


def _write(descriptor: int, text: str) -> None:
    with suppress(OSError):
        os.write(descriptor, text.encode())


if __name__ == "__main__":
    main()
