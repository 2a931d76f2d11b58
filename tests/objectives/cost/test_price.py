"""What the chips of a plan cost and draw."""

from __future__ import annotations

import pytest

from objectives.cost import power_kw, required_usd_per_hour, usd_per_hour
from spaces.chip import ChipSpec, Fact
from spaces.errors import InputError
from spaces.plan import DeploymentPlan, Pool

PLAN = DeploymentPlan(
    model="deepseek",
    topology="prefill-decode",
    pools=(
        Pool(role="prefill", chip="h200", tp=8, replicas=2),
        Pool(role="decode", chip="b200", tp=4),
    ),
)


def _priced(chips: dict[str, ChipSpec]) -> dict[str, ChipSpec]:
    usd = {"h200": 2.0, "b200": 3.0}
    return {
        name: chips[name].model_copy(update={"usd_per_hour": Fact(value=price, source="list")})
        for name, price in usd.items()
    }


def test_all_chips_are_paid_for(chips: dict[str, ChipSpec]) -> None:
    assert usd_per_hour(PLAN, _priced(chips)) == 16 * 2.0 + 4 * 3.0


def test_own_prices_go_first(chips: dict[str, ChipSpec]) -> None:
    assert usd_per_hour(PLAN, _priced(chips), {"h200": 1.0}) == 16 * 1.0 + 4 * 3.0
    assert usd_per_hour(PLAN, chips, {"h200": 1.0, "b200": 0.0}) == 16.0


def test_an_unknown_price_is_absent_and_told_where_it_is_needed(
    chips: dict[str, ChipSpec],
) -> None:
    assert usd_per_hour(PLAN, chips, {"b200": 3.0}) is None
    with pytest.raises(InputError, match="but got 'h200'; give USD per chip-hour"):
        required_usd_per_hour(PLAN, chips, {"b200": 3.0})
    assert required_usd_per_hour(PLAN, _priced(chips)) == 44.0


def test_power_includes_host_and_network_where_known(chips: dict[str, ChipSpec]) -> None:
    assert power_kw(PLAN, chips, {}) == pytest.approx(20 * 1.0)
    whole = chips["h200"].model_copy(update={"all_in_w": Fact(value=1370, source="model")})
    assert power_kw(PLAN, {**chips, "h200": whole}, {}) == pytest.approx(16 * 1.37 + 4)


def test_power_nobody_has_published_is_absent_never_zero(chips: dict[str, ChipSpec]) -> None:
    unknown = chips["h200"].model_copy(update={"tdp_w": None})
    assert power_kw(PLAN, {**chips, "h200": unknown}, {}) is None
