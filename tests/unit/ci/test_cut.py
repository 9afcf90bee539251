"""What is cut stays text, stays Markdown, and says so."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endstate_action.ci.cut import clip, shorten, shorten_markdown, size
from tests.support.markdown import open_fence

ROOM = 120

texts = st.text(st.characters(blacklist_categories=["Cs"]) | st.sampled_from("`~\n 🎉"), max_size=400)


@given(texts, st.integers(0, 300))
def test_what_is_clipped_is_the_beginning_and_fits(text: str, limit: int):
    kept = clip(text, limit)

    assert text.startswith(kept)
    assert len(kept.encode()) <= limit
    assert kept == text or len(text[: len(kept) + 1].encode()) > limit


@given(texts, st.integers(ROOM, 300))
def test_what_is_shortened_fits_and_says_how_much_is_missing(text: str, limit: int):
    cut = shorten(text, limit)

    assert size(cut) <= limit
    assert cut == text if size(text) <= limit else cut.endswith("bytes left out here]\n")
    assert size(shorten_markdown(text, limit)) <= limit


@given(st.lists(st.sampled_from(["```\n", "~~~~ py\n", "````\n", "a `b`\n", "``` `x`\n", "    ```\n", "x" * 40, "\n"]))
       .map("".join), st.integers(ROOM, 200))  # fmt: skip
def test_no_fence_stays_open(text: str, limit: int):
    """D23: what follows a cut block of code is not code."""
    cut = shorten_markdown(text, limit)

    assert cut == text or open_fence(cut) == ""


def test_seventy_thousand_emoji_in_an_open_fence_fit():
    """D23: text of 70,000 emoji inside an open code fence."""
    cut = shorten_markdown("```\n" + "🎉" * 70_000, 65_536)

    kept, closing, *_ = cut[4:].split("\n")
    assert size(cut) <= 65_536
    assert set(kept) == {"🎉"}
    assert closing == "```"
    assert cut.endswith(f"[{280_000 - len(kept.encode()):,} bytes left out here]\n")


def test_half_a_character_does_no_harm():
    assert shorten("a\ud800", 10) == "a\ufffd"
    assert clip("\udc80", 10) == "\ufffd"


@pytest.mark.parametrize("limit", [0, 1, 10, 40])
def test_a_limit_below_any_sentence_is_kept_too(limit: int):
    assert size(shorten_markdown("`" * 500, limit)) <= limit
