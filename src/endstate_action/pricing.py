"""What replies cost, and what is said where nobody knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal

from endstate_action.agent.loop import Price
from endstate_action.agent.providers.prices import cost_usd, price_of
from endstate_action.agent.providers.scripted import ScriptedProvider
from endstate_action.config import Config, Limits
from endstate_action.errors import InputError
from endstate_action.messages import Usage


@dataclass(frozen=True, slots=True)
class Prices:
    """Those that are known today, for limits that may need them.

    Args:
        notice: told, in a sentence, where cost is not bounded.
    """

    limits: Limits
    notice: Callable[[str], None]

    def check(self, provider: str, model: str, config: Config) -> None:
        """Raises: InputError: as `are_known`. Where no limit needs a price, that there is none is told."""
        if not self.are_known(provider, model, config):
            self.notice(
                f"The price of {model!r} is unknown: cost is shown as unknown, and only steps and time are bounded."
            )

    def of(self, provider: str, asked: str, config: Config) -> Price:
        """What a reply costs. That another model answers than was asked, without a price, is told once."""
        is_told = not self.are_known(provider, asked, config)

        def price(model: str, usage: Usage) -> Decimal | None:
            nonlocal is_told
            cost = _price(model, usage, config, provider)
            if cost is None and not is_told:
                is_told = True
                kept = (
                    "max-cost-usd cannot be kept, so nothing more is run or asked"
                    if self.limits.cost_is_set_by_user
                    else "cost is shown as unknown, and from here only steps and time are bounded"
                )
                self.notice(f"{model[:80]!r} answered where {asked!r} was asked, and its price is unknown: {kept}.")
            return cost

        return price

    def are_known(self, provider: str, model: str, config: Config) -> bool:
        """Raises: InputError: it is not, and a limit that somebody set needs it."""
        if provider == ScriptedProvider.name or price_of(model, _overrides(config)) is not None:
            return True
        if self.limits.cost_is_set_by_user:
            raise InputError(
                f"max-cost-usd is set, but the price of {model!r} is unknown, so it cannot be kept. Nothing was run.",
                hint="Leave max-cost-usd out (in a workflow at 5.00, its default), give that model a price under "
                "`prices` in the configuration file, or choose a model with a known price.",
            )
        return False


def _overrides(config: Config) -> Mapping[str, Mapping[str, float]]:
    prices: Mapping[str, Mapping[str, float]] = config.to_json().get("prices", {})
    return prices


def _price(model: str, usage: Usage, config: Config, provider: str) -> Decimal | None:
    known = cost_usd(usage, price_of(model, _overrides(config)))
    # Nobody is paid for a script; a price that its model has is still counted, so that budgets can be tried out.
    return Decimal(0) if known is None and provider == ScriptedProvider.name else known
