"""What the loop asks of whoever carries checkpoints off the machine.

*Recorded* is here; *shipped* is off the machine and survives its loss. The loop only says when: after each record, and
before what cannot be undone it waits. Without a store nothing is shipped and nothing is waited for.
"""

from __future__ import annotations

from typing import Protocol


class Shipping(Protocol):
    """One attempt's shipments."""

    def begin(self) -> None:
        """Prove, before anything is spent, that what is recorded can leave the machine.

        Raises:
            EndstateError: it cannot, and it was required. Nothing was spent.
        """
        ...

    def offer(self) -> None:
        """Something new is recorded. Returns at once."""
        ...

    def look(self) -> None:
        """A request is about to be paid for. Looks now and then whether a newer attempt has taken over.

        Raises:
            Superseded: there is one.
        """
        ...

    def soon(self) -> None:
        """What is recorded now should not wait for its turn. Returns at once."""
        ...

    def barrier(self) -> str | None:
        """Ship all that is recorded, then look whether a newer attempt has taken over, before an effect outside.

        Returns:
            Why the effect must not happen now; None where it may.

        Raises:
            Superseded: there is a newer attempt.
            Interrupted, TimeIsUp: this attempt was asked to stop while it waited.
        """
        ...

    def start(self) -> str | None:
        """Ship a start before it runs, since it may take the machine with it. Returns and raises as `barrier`."""
        ...


class KeptHere:
    """Nothing leaves the machine."""

    def begin(self) -> None:
        pass

    def offer(self) -> None:
        pass

    def look(self) -> None:
        pass

    def soon(self) -> None:
        pass

    def barrier(self) -> str | None:
        return None

    def start(self) -> str | None:
        return None
