"""Where blocks of code begin and end, as a page shows it; written on its own, to judge what closes them."""

from __future__ import annotations


def open_fence(text: str) -> str:
    """The fence that is open at the end of the text, `""` for none."""
    fence = ""
    for line in text.split("\n"):
        indent = len(line) - len(line.lstrip(" "))
        rest = line.strip()
        run = len(rest) - len(rest.lstrip(rest[:1])) if rest[:1] in ("`", "~") and rest else 0
        if indent > 3 or run < 3:
            continue
        marks, after = rest[:run], rest[run:]
        if not fence:
            fence = "" if marks[0] == "`" and "`" in after else marks
        elif marks[0] == fence[0] and run >= len(fence) and not after:
            fence = ""
    return fence
