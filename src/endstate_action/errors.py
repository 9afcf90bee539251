"""Every error that a user can cause, each with its exit code.

    EndstateError
    ├── InputError              2   input that cannot be used, or a request that the provider rejects
    │   └── CredentialsRejected 2   the provider does not accept the key
    ├── StateError              4   the state directory cannot be used
    │   ├── DiskFull            4
    │   ├── StateReadOnly       4
    │   ├── SessionDamaged      4   a record cannot be read back
    │   ├── StateReplaced       4   lock or database is no longer the file that was opened
    │   ├── SnapshotDamaged     4   a snapshot cannot be read back whole
    │   ├── NotRestored         4   the workspace could not be made what a snapshot says
    │   └── RecordConflict      4   a finished key was written again with other content
    ├── Locked                 10   another process holds the state directory
    ├── Superseded             11   a newer attempt has taken over
    ├── UnknownSession         12   nothing to resume
    ├── Mismatch               13   the session was begun under another contract
    │   └── NewerFormat        13   written by a newer release
    ├── OutcomeUnknown         20   a person must look
    └── Interrupted            75   a retry will resume
        ├── ProviderUnavailable 75
        └── StoreUnreadable     75  the store could not be asked; in `state.stores.base`
            └── StoreUnusable    2  nor will it be, before somebody changes something

A message says what did not happen and what is still true; `hint` says what to do. Anything that is
not an `EndstateError` is our bug and ends with exit code 3.
"""

from __future__ import annotations

INTERNAL_ERROR = 3


class EndstateError(Exception):
    """An expected failure. `hint` is a remedy that can be carried out where it is read."""

    exit_code = INTERNAL_ERROR

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class InputError(EndstateError):
    exit_code = 2


class CredentialsRejected(InputError):
    pass


class StateError(EndstateError):
    exit_code = 4


class DiskFull(StateError):
    pass


class StateReadOnly(StateError):
    pass


class SessionDamaged(StateError):
    pass


class StateReplaced(StateError):
    pass


class SnapshotDamaged(StateError):
    pass


class NotRestored(StateError):
    pass


class RecordConflict(StateError):
    pass


class Locked(EndstateError):
    exit_code = 10


class Superseded(EndstateError):
    exit_code = 11


class UnknownSession(EndstateError):
    exit_code = 12


class Mismatch(EndstateError):
    """`differences` lists, one sentence each, what changed since the session began."""

    exit_code = 13

    def __init__(self, message: str, *, differences: tuple[str, ...] = (), hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.differences = differences


class NewerFormat(Mismatch):
    pass


class OutcomeUnknown(EndstateError):
    exit_code = 20


class Interrupted(EndstateError):
    exit_code = 75


class ProviderUnavailable(Interrupted):
    pass
