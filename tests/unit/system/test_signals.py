"""What asks a run to stop, and where that is heard."""

from __future__ import annotations

import os
import signal
import time

import pytest

from endstate_action.errors import Interrupted
from endstate_action.system.signals import LOOK_GRACE_S, Interrupts


def test_a_look_at_the_workspace_may_be_finished_within_its_grace() -> None:
    interrupts = Interrupts()
    with interrupts.caught():
        os.kill(os.getpid(), signal.SIGTERM)
        interrupts.check_late()
        with pytest.raises(Interrupted):
            interrupts.check()
        time.sleep(LOOK_GRACE_S)
        with pytest.raises(Interrupted):
            interrupts.check_late()
