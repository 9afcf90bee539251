"""What a file's bytes are, told by the bytes and never by the name; lines and words for showing them.

Text is UTF-8 without NUL, else Latin-1 without NUL, in which any byte is a character and comes back
the same. Everything else is binary. Files are read in pieces, whatever their size.
"""

from __future__ import annotations

import codecs
import hashlib
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from endstate_action.agent.tools.base import ToolError
from endstate_action.system.files import PathRefused

PIECE_BYTES = 1 << 20

_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF87a", "a GIF image"),
    (b"GIF89a", "a GIF image"),
    (b"%PDF-", "a PDF document"),
    (b"PK\x03\x04", "a ZIP archive (or a document in that format)"),
    (b"\x1f\x8b", "gzip data"),
    (b"\x7fELF", "an ELF program or library"),
    (b"SQLite format 3\0", "an SQLite database"),
    (b"\xff\xfe", "UTF-16 text"),
    (b"\xfe\xff", "UTF-16 text"),
)


@contextmanager
def told() -> Iterator[None]:
    """Tell the model what the file system refused."""
    try:
        yield
    except PathRefused as error:
        raise ToolError(str(error)) from error
    except OSError as error:
        raise ToolError(f"The disk could not be read: {os.strerror(error.errno or 0)}.") from error


@dataclass(frozen=True, slots=True)
class Survey:
    """What one pass over a file finds. `encoding` is None for binary content; the counts are then partial."""

    size: int
    encoding: str | None
    lines: int = 0
    crlf: int = 0
    ends_in_newline: bool = True
    has_mark: bool = False


def survey(file: io.BufferedIOBase) -> Survey:
    """Read a file from its start, in pieces, up to the first NUL."""
    decoder: codecs.IncrementalDecoder | None = codecs.getincrementaldecoder("utf-8")()
    size = newlines = crlf = 0
    first = last = b""
    while piece := file.read(PIECE_BYTES):
        if b"\0" in piece or (not first and signature(piece)):
            return Survey(size + len(piece), None)
        decoder = decoder if decoder and _decodes(decoder, piece) else None
        size += len(piece)
        newlines += piece.count(b"\n")
        if last == b"\r" or b"\r" in piece:  # looking is twenty times cheaper than counting
            crlf += piece.count(b"\r\n") + (last == b"\r" and piece.startswith(b"\n"))
        first, last = first or piece[:3], piece[-1:]
    complete = decoder is not None and _decodes(decoder, b"", final=True)
    unfinished = last not in (b"", b"\n")
    return Survey(
        size,
        "utf-8" if complete else "latin-1",
        newlines + unfinished,
        crlf,
        not unfinished,
        complete and first == codecs.BOM_UTF8,
    )


def _decodes(decoder: codecs.IncrementalDecoder, piece: bytes, *, final: bool = False) -> bool:
    try:
        decoder.decode(piece, final)
    except UnicodeDecodeError:
        return False
    return True


def decode(data: bytes) -> tuple[str, str] | None:
    """The text of a whole file and its encoding, which gives back the same bytes; None for binary."""
    found = survey(io.BytesIO(data))
    return None if found.encoding is None else (data.decode(found.encoding), found.encoding)


def signature(start: bytes) -> str | None:
    """What a file beginning with these bytes is known to be, where it is no plain text."""
    if start.startswith(b"RIFF") and start[8:12] == b"WEBP":
        return "a WebP image"
    return next((what for magic, what in _SIGNATURES if start.startswith(magic)), None)


def describe(path: str, file: io.BufferedIOBase) -> str:
    """A binary file in words: kind, size, sha256. Its content is of no use in a conversation."""
    file.seek(0)
    kind = signature(file.read(16)) or "a binary file"
    file.seek(0)
    sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return f"{path} is {kind} of {file.tell():,} bytes, sha256 {sha256}. Its content is not shown."


def lines(file: io.BufferedIOBase, limit: int) -> Iterator[tuple[bytes, bool]]:
    """The lines from here on, without their ending, at most `limit` bytes of each; and whether more was cut."""
    while line := file.readline(limit):
        cut, piece = False, line
        while len(piece) == limit and not piece.endswith(b"\n"):
            piece = file.readline(limit)
            cut = cut or piece.rstrip(b"\r\n") != b""
        yield line.removesuffix(b"\n").removesuffix(b"\r"), cut
