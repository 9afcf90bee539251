"""What a commit says of itself: who, when, what, and under which key it can be found again."""

from __future__ import annotations

import re
from collections.abc import Mapping

FALLBACK_IDENTITY = ("endstate", "endstate@localhost")
"""Author where nobody has configured one. Git alone would refuse, or guess a name from the machine."""

# Git drops these from a name, and refuses a name of which nothing is left.
_DROPPED = " \t\n.,:;<>\"\\'"
_TRAILER = re.compile(r"[A-Za-z0-9-]+: \S")


def identity(settings: Mapping[str, str]) -> tuple[str, str]:
    """Name and mail address that git's settings give, else `FALLBACK_IDENTITY`."""
    name, mail = settings.get("user.name", ""), settings.get("user.email", "")
    return (name, mail) if name.strip(_DROPPED) and mail.strip(_DROPPED) else FALLBACK_IDENTITY


def signature(who: tuple[str, str], when: float) -> dict[str, str]:
    """Author and committer, pinned to `when` (seconds since the epoch), as variables for git."""
    words = {"NAME": who[0], "EMAIL": who[1], "DATE": f"@{int(when)} +0000"}
    return {f"GIT_{role}_{part}": word for role in ("AUTHOR", "COMMITTER") for part, word in words.items()}


def with_trailer(message: str, key: str, value: str) -> str:
    """`message` with `key: value` as its last line, in the paragraph of trailers if it ends with one."""
    lines = [line.rstrip() for line in message.strip().splitlines()]
    paragraphs = "\n".join(lines).split("\n\n")
    ends_with_trailers = len(paragraphs) > 1 and all(map(_TRAILER.match, paragraphs[-1].split("\n")))
    gap = "\n" if ends_with_trailers else "\n\n"
    return "\n".join(lines) + f"{gap}{key}: {value}\n"
