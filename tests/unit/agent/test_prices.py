"""Prices: known ones are exact, unknown ones are unknown."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import get_args

import pytest

from endstate_action.agent.providers.prices import DEFAULT_MODEL, PRICES, PRICES_AS_OF, Price, cost_usd, price_of
from endstate_action.messages import Usage


def test_the_default_model_is_one_that_the_sdk_names_and_has_a_price():
    from anthropic.types import Model

    names = [name for part in get_args(Model) for name in get_args(part)]
    assert DEFAULT_MODEL in names
    assert price_of(DEFAULT_MODEL, {}) is not None


def test_every_row_is_priced_in_full_and_says_who_told():
    for price in PRICES.values():
        assert 0 < price.cache_read < price.input < price.cache_write < price.output
        assert price.source in ("vendor", "third party")
    assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", PRICES_AS_OF)


@pytest.mark.parametrize("model", ["claude-haiku-4-5-20251001", "claude-haiku-4-5"])
def test_a_dated_name_has_the_price_of_its_model(model):
    price = price_of(model, {})
    assert price is not None
    assert (price.input, price.output) == (Decimal(1), Decimal(5))


@pytest.mark.parametrize("model", ["claude-haiku-4", "claude-haiku-4-5-2025", "gpt", "", "x-claude-haiku-4-5"])
def test_an_unknown_model_has_no_price_and_no_cost(model):
    assert price_of(model, {}) is None
    assert cost_usd(Usage(10**6, 10**6), price_of(model, {})) is None


def test_each_kind_of_token_costs_its_own_price():
    price = Price(Decimal(2), Decimal("2.50"), Decimal("0.10"), Decimal(10), "vendor")
    million = 10**6
    costs = [
        cost_usd(u, price) for u in (Usage(million), Usage(0, million), Usage(0, 0, million), Usage(0, 0, 0, million))
    ]
    assert costs == [Decimal(2), Decimal(10), Decimal("0.10"), Decimal("2.50")]


def test_costs_add_up_exactly():
    price = price_of(DEFAULT_MODEL, {})
    one = cost_usd(Usage(1, 1, 1, 1), price)
    assert one == Decimal("0.0000146")
    assert sum([one] * 1000, Decimal(0)) == cost_usd(Usage(1000, 1000, 1000, 1000), price)


@pytest.mark.parametrize(("prompt", "paid"), [(100_000, "0.01"), (100_001, "0.0500005")])
def test_a_price_may_depend_on_the_size_of_the_prompt(prompt, paid):
    assert cost_usd(Usage(input_tokens=prompt), price_of("claude-haiku-5-5", {})) == Decimal(paid)


def test_the_size_of_the_prompt_counts_what_was_cached():
    usage = Usage(input_tokens=1, cache_read_tokens=60_000, cache_write_tokens=60_000)
    long = price_of("claude-haiku-5-5", {})
    assert long is not None
    assert cost_usd(usage, long) == cost_usd(usage, long.long)


def test_an_override_wins_also_for_a_dated_name():
    overrides = {DEFAULT_MODEL: {"input": 1.1, "output": 7, "cache-read": 0, "cache-write": 3}}
    expected = Price(Decimal("1.1"), Decimal(3), Decimal(0), Decimal(7), "configuration")
    assert price_of(DEFAULT_MODEL, overrides) == price_of(f"{DEFAULT_MODEL}-20261101", overrides) == expected


def test_an_override_for_one_date_holds_for_that_date_only():
    overrides = {"claude-sonnet-5-20260101": {"input": 1, "output": 1}}
    dated, undated = price_of("claude-sonnet-5-20260101", overrides), price_of("claude-sonnet-5", overrides)
    assert dated is not None
    assert undated is not None
    assert (dated.source, undated.source) == ("configuration", "third party")


@pytest.mark.parametrize("absent", [{}, {"cache-read": None, "cache-write": None}])
def test_an_override_without_cache_prices_takes_the_usual_rates(absent):
    price = price_of("mine", {"mine": {"input": 0.3, "output": "1.00", **absent}})
    assert price == Price(Decimal("0.3"), Decimal("0.375"), Decimal("0.03"), Decimal(1), "configuration")
