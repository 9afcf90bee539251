"""The page of behaviours: numbered without a gap, each with a test that exists or with its limit."""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROWS = re.findall(r"^\| ([A-Z])(\d+) \| (.+) \| (.+) \|$", (ROOT / "docs" / "behaviours.md").read_text(), re.MULTILINE)


def test_behaviours_are_numbered_by_area_without_a_gap():
    assert len(ROWS) > 80
    for area, rows in groupby(ROWS, key=lambda row: row[0]):
        numbers = [int(number) for _, number, _, _ in rows]
        assert numbers == list(range(1, len(numbers) + 1)), area
    assert len({what for _, _, what, _ in ROWS}) == len(ROWS)


def test_each_behaviour_names_a_test_that_exists_or_its_limit():
    for area, number, _, shown in ROWS:
        tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", shown)
        assert tests or shown.startswith("limit: "), f"{area}{number}"
        for file, name in tests:
            assert re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE), f"{area}{number}: {name}"
