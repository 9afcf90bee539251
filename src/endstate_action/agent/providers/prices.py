"""What tokens cost, as far as anybody told us. A model without a row has no known price: unknown, never zero.

US dollars per million tokens, as published on `PRICES_AS_OF`; the configuration's `prices` win over the table.
Cache writes are those kept for five minutes, the only kind that is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from endstate_action.messages import Usage

DEFAULT_MODEL = "claude-sonnet-5-5"
PRICES_AS_OF = "2026-11-29"

Source = Literal["vendor", "third party", "configuration"]
Overridden = Mapping[str, float | str | None]
"""`input` and `output`, and optionally `cache-read` and `cache-write`, in USD per million tokens; text stays exact."""

Overrides = Mapping[str, Overridden]
"""Prices by model, checked by whoever read them."""

_MILLION = 1_000_000
_CACHE_READ_RATE = Decimal("0.1")
_CACHE_WRITE_RATE = Decimal("1.25")


@dataclass(frozen=True, slots=True)
class Price:
    """USD per million tokens. Where `long` is set, it holds for prompts of more than `long_above` tokens."""

    input: Decimal
    cache_write: Decimal
    cache_read: Decimal
    output: Decimal
    source: Source
    long_above: int = 0
    long: Price | None = None


def _price(input_: str, cache_write: str, cache_read: str, output: str, source: Source = "vendor") -> Price:
    return Price(Decimal(input_), Decimal(cache_write), Decimal(cache_read), Decimal(output), source)


_OPUS = _price("5", "6.25", "0.50", "25")
_SONNET_4 = _price("3", "3.75", "0.30", "15")

# The vendor's own pricing page.
_VENDOR = {
    "claude-fable-5-1": _price("10", "12.50", "0.25", "50"),
    "claude-mythos-5-1": _price("10", "12.50", "0.25", "50"),
    "claude-fable-5": _price("10", "12.50", "1.00", "50"),
    "claude-mythos-5": _price("10", "12.50", "1.00", "50"),
    "claude-opus-5": _OPUS,
    "claude-opus-4-8": _OPUS,
    "claude-opus-4-7": _OPUS,
    "claude-opus-4-6": _OPUS,
    "claude-opus-4-5": _OPUS,
    "claude-sonnet-4-6": _SONNET_4,
    "claude-sonnet-4-5": _SONNET_4,
    "claude-haiku-4-5": _price("1", "1.25", "0.10", "5"),
}

# A table that cites the vendor, checked in October 2026.
_THIRD_PARTY = {
    "claude-opus-5-5": _price("4", "5", "0.20", "20", "third party"),
    "claude-sonnet-5-5": _price("2", "2.50", "0.10", "10", "third party"),
    "claude-sonnet-5": _price("2", "2.50", "0.20", "10", "third party"),
    "claude-haiku-5-5": Price(
        Decimal("0.10"),
        Decimal("0.125"),
        Decimal("0.01"),
        Decimal("0.50"),
        "third party",
        long_above=100_000,
        long=_price("0.50", "0.625", "0.05", "2.50", "third party"),
    ),
}

PRICES: Mapping[str, Price] = {**_VENDOR, **_THIRD_PARTY}


def price_of(model: str, overrides: Overrides) -> Price | None:
    """The price of a model, also under its dated name (`...-20251001`); None when nobody told us.

    In an override, `cache-read` is 0.1 and `cache-write` 1.25 times `input` unless given.
    """
    undated = re.sub(r"-\d{8}$", "", model)
    for name in (model, undated):
        if name in overrides:
            return _overridden(overrides[name])
    return PRICES.get(undated)


def _overridden(given: Overridden) -> Price:
    exact = {name: Decimal(str(usd)) for name, usd in given.items() if usd is not None}
    paid = exact["input"]
    return Price(
        paid,
        exact.get("cache-write", paid * _CACHE_WRITE_RATE),
        exact.get("cache-read", paid * _CACHE_READ_RATE),
        exact["output"],
        "configuration",
    )


def cost_usd(usage: Usage, price: Price | None) -> Decimal | None:
    """Exact cost in US dollars of the usage of ONE reply (a price may depend on that prompt's size), or None."""
    if price is None:
        return None
    if price.long is not None and usage.context_tokens > price.long_above:
        price = price.long
    return (
        usage.input_tokens * price.input
        + usage.cache_write_tokens * price.cache_write
        + usage.cache_read_tokens * price.cache_read
        + usage.output_tokens * price.output
    ) / _MILLION
