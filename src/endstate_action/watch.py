"""The watcher: once a workflow is over, it runs again what a lost machine cut short, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def watch(environ: Mapping[str, str], put: Callable[[str], None], say: Callable[[str], None]) -> int:
    """Decide about the run of the event, or about the recent ones, and act on it. The exit code."""
    raise NotImplementedError
