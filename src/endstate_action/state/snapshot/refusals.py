"""What a disk refuses, as errors for the user."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from endstate_action.errors import DiskFull, StateError, StateReadOnly


@contextmanager
def writing(what: str) -> Iterator[None]:
    """What the disk refuses becomes an error for the user; `what` did not happen."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(
                f"{what}: the disk is full. What was recorded before is whole.",
                hint="Free some space on the workspace's disk and run again with --resume.",
            ) from error
        kind = StateReadOnly if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM) else StateError
        raise kind(
            f"{what}: {error.strerror or error}. What was recorded before is whole.",
            hint="The state directory must be writable and on a sound disk.",
        ) from error
