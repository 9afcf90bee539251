"""The action used on itself: a model that asks for six files, and kills whoever asked at the fourth, once.

    python -m tests.action.self_use serve DIRECTORY BELOW    serve until ended; writes DIRECTORY/url when it is up
    python -m tests.action.self_use check WORKSPACE DIRECTORY

Only agents whose Python lies below BELOW are killed: others on the machine are none of its business.
`check` ends with 1 unless the six files are there, somebody was killed, and nothing was asked for again:
however often the agent dies, each of its steps is paid for once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.messages_api import Answer, MessagesApi, answer, call

FILES = 6
DEADLY = 3
"""The request, by the number of files that are written then, that nobody lives to see answered."""


def serve(where: Path, below: Path) -> None:
    asked: list[int] = []

    def reply(body: dict[str, Any], _: int) -> Answer:
        written = sum(block.get("type") == "tool_result" for m in body["messages"] for block in _blocks(m))
        asked.append(written)
        _write(where / "asked", json.dumps(asked))
        if written == DEADLY and not (where / "killed").exists():
            _write(where / "killed", str(_kill_agents(below)))
            time.sleep(1)
        if written == FILES:
            return answer("Six files are there.")
        return answer(call("write", path=f"notes/{written + 1}.txt", content=f"note {written + 1}\n"))

    where.mkdir(parents=True, exist_ok=True)
    with MessagesApi(reply) as api:
        _write(where / "url", api.url)
        signal.sigwait({signal.SIGTERM, signal.SIGINT})


def check(workspace: Path, where: Path) -> list[str]:
    """What is not as it should be, in sentences."""
    wrong = []
    for number in range(1, FILES + 1):
        path = workspace / "notes" / f"{number}.txt"
        if not path.exists() or path.read_text() != f"note {number}\n":
            wrong.append(f"{path} is not what was asked for.")
    if not (where / "killed").exists() or (where / "killed").read_text() == "0":
        wrong.append("Nobody was killed, so nothing was shown.")
    asked = json.loads((where / "asked").read_text()) if (where / "asked").exists() else []
    # The deadly request is made twice, since nobody heard its answer; whatever follows is made once.
    expected = [*range(DEADLY + 1), *range(DEADLY, FILES + 1)]
    if asked != expected:
        wrong.append(f"Files written at each request: {asked}, and not {expected}.")
    return wrong


def _blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    return [block for block in message["content"] if isinstance(block, dict)] if message["content"] else []


def _kill_agents(below: Path) -> int:
    """With no notice, as when a machine is lost; returns how many there were."""
    killed = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError, ValueError):
            words = path.read_bytes().split(b"\0")
            if below in Path(os.fsdecode(words[0])).parents and b"endstate_action" in words:
                os.kill(int(path.parent.name), signal.SIGKILL)
                killed += 1
    return killed


def _write(path: Path, text: str) -> None:
    path.with_suffix(".part").write_text(text)
    path.with_suffix(".part").rename(path)


def main(arguments: list[str]) -> int:
    match arguments:
        case ["serve", where, below]:
            serve(Path(where), Path(below))
            return 0
        case ["check", workspace, where]:
            wrong = check(Path(workspace), Path(where))
            for sentence in wrong:
                print(sentence, file=sys.stderr)
            return int(bool(wrong))
        case _:
            print(__doc__, file=sys.stderr)
            return 2


if __name__ == "__main__":
    # Blocked before any thread is there, so that it is the one above who waits for them.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    sys.exit(main(sys.argv[1:]))
