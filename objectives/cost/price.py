"""What a deployment's chips cost and draw."""

from __future__ import annotations

from collections.abc import Mapping

from spaces.chip import ChipSpec
from spaces.errors import InputError
from spaces.plan import DeploymentPlan

Prices = Mapping[str, float]


def usd_per_hour(
    plan: DeploymentPlan, chips: Mapping[str, ChipSpec], prices: Prices | None = None
) -> float | None:
    """Dollars an hour for all chips the plan occupies.

    `prices` (USD per chip-hour by chip name) go before the catalogue's. None where a chip has no
    price in either: an unknown cost is absent, never zero.
    """
    total = 0.0
    for name, count in plan.chips_by_kind.items():
        price = _chip_price(chips[name], prices)
        if price is None:
            return None
        total += count * price
    return total


def required_usd_per_hour(
    plan: DeploymentPlan, chips: Mapping[str, ChipSpec], prices: Prices | None = None
) -> float:
    """`usd_per_hour` for a metric that needs it; an unknown price is told as an `InputError`."""
    total = usd_per_hour(plan, chips, prices)
    if total is None:
        unknown = sorted(n for n in plan.chips_by_kind if _chip_price(chips[n], prices) is None)
        raise InputError(
            "a price metric needs the price of every chip",
            key="prices",
            value=", ".join(unknown),
            remedy="give USD per chip-hour under `prices`, or choose another metric",
        )
    return total


def power_kw(plan: DeploymentPlan, chips: Mapping[str, ChipSpec]) -> float | None:
    """Kilowatts provisioned for the plan's chips, host and network included where known.

    None where nothing is known of a chip's power.
    """
    total = 0.0
    for name, count in plan.chips_by_kind.items():
        watts = chips[name].power_w
        if watts is None:
            return None
        total += count * watts / 1e3
    return total


def _chip_price(chip: ChipSpec, prices: Prices | None) -> float | None:
    if prices and chip.name in prices:
        return prices[chip.name]
    return chip.usd_per_hour.value if chip.usd_per_hour else None
