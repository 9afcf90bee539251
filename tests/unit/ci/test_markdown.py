"""Text of others in Markdown of ours: it shows, it fits, and it does nothing."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from endstate_action.ci.markdown import block, bullets, code, kept_line, link, plain, prose, take, units

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
HOSTILE = (
    "@everyone",
    "\\@user",
    "&#64;user",
    "&commat;user",
    "</details>",
    "<!--",
    "-->",
    "<img src=x>",
    "![x](https://e.invalid/?q=1)",
    "[^1]: note",
    "> [!WARNING]",
    "#12",
    "GH-7",
    "```",
    "~~~~",
    "`",
    "\n",
    "\r\n",
    "    ",
    "- ",
    "> ",
    "\u202e",
    "\U000e0041",
    "\U0001f600",
    "|",
    "\\",
)
pieces = st.lists(st.one_of(st.sampled_from(HOSTILE), st.text(max_size=5)), max_size=40).map("".join)


def outside_code(shown: str) -> str:
    """A quotation without what is in its code blocks, which begin and end at the margin of the quotation."""
    kept: list[str] = []
    fence = ""
    for line in shown.split("\n"):
        found = re.fullmatch(r"> (`{3,})([\w.+#-]*)", line)
        if not fence and found:
            fence = found[1]
        elif fence and line == f"> {fence}":
            fence = ""
        elif not fence:
            kept.append(line)
    assert not fence, "a code block is left open"
    return "\n".join(kept)


def is_harmless(text: str) -> bool:
    return not re.search(r"<[A-Za-z/!?]|@[A-Za-z0-9]|#\d|GH-\d|!\[|\[[!^]|&[#A-Za-z]", text, re.IGNORECASE)


@given(pieces, st.integers(300, 3000))
@example("@user", 300)
@example("</details> <b>", 300)
@example("&#64;user", 300)
@example("![x](https://e.invalid/) [^1]: [!NOTE]", 300)
@example("```\n````\n```\n</details>\n```\n", 300)
def test_prose_stays_in_its_quotation_and_does_nothing(text, limit):
    shown = prose(text, limit)
    assert all(line == ">" or line.startswith("> ") for line in shown.split("\n"))
    assert is_harmless(outside_code(shown))
    assert units(shown) <= limit


@given(pieces, st.integers(20, 400))
@example("a|b", 400)
@example("@user #1 GH-2 https://e.invalid", 400)
def test_plain_text_is_one_line_without_syntax(text, limit):
    shown = plain(text, limit)
    assert "\n" not in shown
    assert units(shown) <= limit
    assert not re.search(r"<|@[A-Za-z0-9]|#\d|GH\\?-\d|://", shown, re.IGNORECASE)
    # Every character that begins something in Markdown is escaped, a bar for tables too.
    assert not re.search(r"(?<!\\)(\\\\)*[`*_|\[\]!~]", shown)


@given(pieces, st.integers(60, 400))
def test_a_code_span_is_one_span(text, limit):
    shown = code(text, limit)
    marks = re.match("`+", shown)
    assert marks
    inner = shown[len(marks[0]) : -len(marks[0])]
    assert shown.endswith(marks[0])
    assert marks[0] not in re.findall("`+", inner)
    assert "\n" not in shown
    assert units(shown) <= limit


@given(pieces, st.integers(400, 3000))
@example("```\n</details>", 400)
def test_a_block_is_one_block(text, limit):
    lines = block(text, limit, "diff").split("\n")
    fence = lines[0].removesuffix("diff")
    end = lines.index(fence)
    assert not any(re.fullmatch(rf" {{0,3}}{fence}`*\s*", line) for line in lines[1:end])
    assert lines[end + 1 :] in ([], ["", "*(cut here)*"])
    assert units("\n".join(lines)) <= limit


def test_what_is_said_is_still_there_to_read():
    text = f"# Two bugs\n\n1. `List<String>` in **a.py**, see https://example.invalid/x\n{FAMILY} شكرا\n"
    shown = prose(text, 2000).replace("\u200b", "")
    assert shown == "\n".join(f"> {line}" if line else ">" for line in text.split("\n"))


def test_code_of_a_message_is_kept_to_the_letter():
    listing = "if a < b and c:  # @decorated, see #12\n    <!-- kept -->\n\t![x](y)"
    assert prose(f"Try:\n```python title=x\n{listing}\n```\n", 2000) == "\n".join(
        ["> Try:", "> ```python", *(f"> {line}" for line in listing.split("\n")), "> ```", ">"]
    )


def test_what_no_page_would_show_is_made_visible():
    assert "\U000e0041" not in prose("a\U000e0041\U000e0042b", 500)
    assert "hidden" in prose("a\U000e0041\U000e0042b", 500)
    assert "hidden" in block("+x = 1 \u202e", 500)
    assert "secret" in prose("<!-- secret -->", 500)


@pytest.mark.parametrize("text", ["\U0001f600" * 70_000, "```\n" + "\U0001f600" * 70_000, "```\n\U0001f600\n" * 20_000])
def test_a_message_that_is_too_long_is_cut_between_characters_with_its_fences_closed(text):
    shown = prose(text, 30_000)
    assert 5_000 < units(shown) <= 30_000
    assert f"{len(text):,} characters" in outside_code(shown)
    shown.encode("utf-8", "strict")


@pytest.mark.parametrize("text", ["```\n```\n" * 60_000, "`" * 90_000, "```\n" + "`" * 90_000, "\n" * 90_000])
def test_no_text_leads_to_more_than_the_limit(text):
    assert units(prose(text, 3000)) <= 3000
    assert units(block(text, 3000)) <= 3000
    assert units(code(text, 3000)) <= 3000
    assert units(plain(text, 3000)) <= 3000


def test_what_is_missing_is_said_also_where_a_block_alone_did_not_fit():
    assert "*(cut here; " in prose("```\n```\n" * 100 + "```\n```", 3000)
    assert "*(cut here)*" in block("line\n" * 1000, 3000)


@pytest.mark.parametrize("info", ["mermaid", "MERMAID", "suggestion", "math", "a<b>", "x" * 40, "@user"])
def test_a_code_block_is_never_drawn_or_applied(info):
    assert prose(f"```{info}\nx\n```", 500) == "> ```\n> x\n> ```"


def test_a_line_of_an_older_comment_is_made_harmless_once():
    line = kept_line("  @user </details> ![x](y) &#64;user\n&lt;b " + "x" * 1000, 600)
    assert re.search(r"@[a-z]|</|!\[|&#|\n", line) is None
    assert "&lt;b" in line
    assert kept_line(line, 600) == line
    assert units(line) <= 600


@pytest.mark.parametrize(
    "address", [None, "", "javascript:alert(1)", "https://e.invalid/)[x](y", "https://e.invalid/ x", "http://a\nb"]
)
def test_only_a_plain_address_becomes_a_link(address):
    assert link("the run", address) == "the run"


def test_a_link_to_a_run_is_one():
    address = "https://github.com/o/r/actions/runs/7/attempts/2"
    assert link("the run", address) == f"[the run]({address})"


def test_a_list_that_is_too_long_counts_what_is_missing():
    shown = bullets((f"line {number}" for number in range(1000)), 1000, 500, "elsewhere").split("\n")
    assert shown[0] == "- line 0"
    assert shown[-1] == f"- and {1000 - (len(shown) - 1)} more, elsewhere"


@given(st.text(), st.integers(0, 50))
def test_taking_cuts_between_characters(text, limit):
    kept = take(text, limit)
    assert text.startswith(kept)
    assert units(kept) <= limit
    assert kept == text or units(text[: len(kept) + 1]) > limit
