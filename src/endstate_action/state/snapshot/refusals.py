"""What a disk refuses, as errors for the user."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from endstate_action.errors import DiskFull, StateError, StateReadOnly
from endstate_action.system.names import short


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
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise StateError(
                f"{what}: something that is not ours stands in the place of a part of the snapshot store "
                f"({short(str(error.filename))}), a link perhaps. It was not followed.",
                hint="Remove it from the state directory, and run again with --resume.",
            ) from error
        kind = StateReadOnly if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM) else StateError
        raise kind(
            f"{what}: {error.strerror or error}. What was recorded before is whole.",
            hint="The state directory must be writable and on a sound disk.",
        ) from error
