"""What a deployment's chips cost and draw."""

from __future__ import annotations

from collections.abc import Mapping

from spaces.chip import ChipSpec
from spaces.errors import InputError
from spaces.plan import DeploymentPlan
from spaces.system import HostSpec

Prices = Mapping[str, float]


def usd_per_hour(
    plan: DeploymentPlan, chips: Mapping[str, ChipSpec], prices: Prices | None = None
) -> float | None:
    """Dollars an hour for all chips the plan occupies, and the hosts it has beside them.

    `prices` (USD per hour of a chip or a host, by name) go before the catalogue's, which knows
    none of hosts; those that chips sit with are in the chips' prices. None where a price is in
    neither: an unknown cost is absent, never zero.
    """
    total = 0.0
    for name, count in plan.chips_by_kind.items():
        price = _chip_price(chips[name], prices)
        if price is None:
            return None
        total += count * price
    if plan.hosts is not None:
        if not prices or plan.hosts.kind not in prices:
            return None
        total += plan.hosts.count * prices[plan.hosts.kind]
    return total


def required_usd_per_hour(
    plan: DeploymentPlan, chips: Mapping[str, ChipSpec], prices: Prices | None = None
) -> float:
    """`usd_per_hour` for a metric that needs it; an unknown price is told as an `InputError`."""
    total = usd_per_hour(plan, chips, prices)
    if total is None:
        unknown = sorted(n for n in plan.chips_by_kind if _chip_price(chips[n], prices) is None)
        if plan.hosts is not None and plan.hosts.kind not in (prices or {}):
            unknown.append(plan.hosts.kind)
        raise InputError(
            "a price metric needs the price of every chip",
            key="prices",
            value=", ".join(unknown),
            remedy="give USD per chip-hour under `prices`, or choose another metric",
        )
    return total


def power_kw(
    plan: DeploymentPlan, chips: Mapping[str, ChipSpec], hosts: Mapping[str, HostSpec]
) -> float | None:
    """Kilowatts provisioned for the plan's chips, host and network included where known.

    Hosts that the plan has beside them count with the processors' limit alone, without memory or
    network. None where nothing is known of the power of a chip or a host.
    """
    total = 0.0
    for name, count in plan.chips_by_kind.items():
        watts = chips[name].power_w
        if watts is None:
            return None
        total += count * watts / 1e3
    if plan.hosts is not None:
        limit = hosts[plan.hosts.kind].tdp_w
        if limit is None:
            return None
        total += plan.hosts.count * limit.value / 1e3
    return total


def power_drawn_kw(
    plan: DeploymentPlan,
    chips: Mapping[str, ChipSpec],
    hosts: Mapping[str, HostSpec],
    utilization: Mapping[str, float],
) -> float | None:
    """Kilowatts that the plan draws on average: `power_kw` less what idle chips do not draw.

    `utilization` is the share of time, by role of a pool, in which its replicas run a step. A chip
    is taken to draw its limit throughout a step, so this is an upper bound: a decode step, which
    waits for memory, draws about half of it. None as for `power_kw`.
    """
    provisioned = power_kw(plan, chips, hosts)
    if provisioned is None:
        return None
    spared = (
        (1.0 - utilization[pool.role]) * pool.chips * idle_saving_kw(chips[pool.chip])
        for pool in plan.pools
    )
    return provisioned - sum(spared)


def idle_saving_kw(chip: ChipSpec) -> float:
    """Kilowatts that a chip draws less without a step than at its limit; 0 where not known."""
    return ((chip.power_w or 0.0) - (chip.idle_power_w or 0.0)) / 1e3


def _chip_price(chip: ChipSpec, prices: Prices | None) -> float | None:
    if prices and chip.name in prices:
        return prices[chip.name]
    return chip.usd_per_hour.value if chip.usd_per_hour else None
