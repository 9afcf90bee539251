"""What a process wrote, in bounded memory: the beginning, the end, and how much there was between them."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from typing import NamedTuple

from endstate_action.system.redaction import Secrets

_NO_SECRETS = Secrets({})
_CHUNK_BYTES = 64 * 1024
# A pipe holds 1 MiB at most, unless an administrator allows more.
_DRAIN_BYTES = 1024 * 1024
_CONTINUATION = bytes(range(0x80, 0xC0))
_TORN_END = re.compile(rb"(?:[\xc2-\xdf]|[\xe0-\xef][\x80-\xbf]?|[\xf0-\xf4][\x80-\xbf]{0,2})\Z")


@dataclass(frozen=True, slots=True)
class Output:
    """The first and the last bytes of what was written. They are contiguous when nothing was left out."""

    head: bytes
    tail: bytes
    total_bytes: int

    @property
    def left_out_bytes(self) -> int:
        return self.total_bytes - len(self.head) - len(self.tail)


class Decoded(NamedTuple):
    """Text that strict UTF-8 can carry, and what it lacks of the bytes that were written."""

    text: str
    replaced_bytes: int
    left_out_bytes: int


class Sink:
    """Takes any amount of bytes from a pipe and keeps `cap_bytes` of them at most."""

    def __init__(self, cap_bytes: int) -> None:
        self._half = max(1, cap_bytes // 2)
        self._head = b""
        self._tail = b""
        self._total = 0

    def read(self, pipe: int) -> int:
        """Take what is there now, a chunk at most, and say how much. 0: the pipe has ended.

        Raises:
            BlockingIOError: nothing is there, but a writer is.
        """
        data = os.read(pipe, _CHUNK_BYTES)
        room = self._half - len(self._head)
        self._total += len(data)
        self._head += data[:room]
        self._tail = (self._tail + data[room:])[-self._half :]
        return len(data)

    def drain(self, pipe: int) -> None:
        """Take what was written so far, and no more: others may go on writing for ever."""
        taken = 0
        with contextlib.suppress(BlockingIOError):
            while taken < _DRAIN_BYTES and (size := self.read(pipe)):
                taken += size

    def output(self) -> Output:
        return Output(self._head, self._tail, self._total)


def decode(output: Output, secrets: Secrets = _NO_SECRETS) -> Decoded:
    """Output as text: each byte that is no UTF-8 becomes U+FFFD, and a line says what is missing in the middle.

    What the cut left of a known secret is taken out here, since afterwards nobody could recognise it.
    """
    if not output.left_out_bytes:
        text, replaced = _text(output.head + output.tail)
        return Decoded(text, replaced, 0)
    # The cut may have gone through a character; its parts are neither shown nor called replaced.
    head, tail = _TORN_END.sub(b"", output.head), _without_torn_beginning(output.tail)
    left_out = output.total_bytes - len(head) - len(tail)
    (first, in_first), (last, in_last) = _text(head), _text(tail)
    first, last = secrets.redact(first, ends_torn=True), secrets.redact(last, begins_torn=True)
    return Decoded(f"{first}\n[... {left_out} bytes left out ...]\n{last}", in_first + in_last, left_out)


def _without_torn_beginning(data: bytes) -> bytes:
    return data[:3].lstrip(_CONTINUATION) + data[3:]


def _text(data: bytes) -> tuple[str, int]:
    return re.subn("[\udc80-\udcff]", "\N{REPLACEMENT CHARACTER}", data.decode("utf-8", "surrogateescape"))
