"""80 % intervals: which residuals a prediction gets, and that less knowledge is never surer."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from objectives.calibrated import shipped_calibration
from objectives.uncertainty import ratios_of
from spaces.calibration import KNOWLEDGE, Calibration, MeasuredPair, Residuals
from spaces.plan import Pool
from spaces.site import Site
from tests.spaces.worlds import plan_of, site_of

PLAN = plan_of("llama-3.3-70b", "h100", tp=8)
QUICK = {"ttft_p50_ms": 50.0, "e2e_p50_ms": 1000.0}
QUEUED = {"ttft_p50_ms": 900.0, "e2e_p50_ms": 1000.0}


def site(*rows: Residuals, pairs: tuple[MeasuredPair, ...] = ()) -> Site:
    calibration = Calibration(residuals=rows, pairs=pairs)
    return replace(site_of("llama-3.3-70b", {"h100": 8}), calibration=calibration)


def row(
    known: str,
    low: float,
    high: float,
    strained: bool | None = None,
    disaggregated: bool | None = None,
) -> Residuals:
    return Residuals.model_validate(
        {
            "quantity": "tpot",
            "knowledge": known,
            "disaggregated": disaggregated,
            "strained": strained,
            "low": low,
            "high": high,
            "points": 9,
        }
    )


def test_the_interval_is_that_of_as_well_known_deployments() -> None:
    pair = MeasuredPair(models=("llama-3.3-70b",), chip="h100", vendor="NVIDIA", points=9)
    rows = (row("pair", 0.9, 1.1), row("chip", 0.8, 1.2), row("none", 0.5, 2.0))
    assert ratios_of("tpot", QUICK, PLAN, site(*rows, pairs=(pair,))) == (0.9, 1.1)
    other = pair.model_copy(update={"models": ("qwen3-32b",)})
    assert ratios_of("tpot", QUICK, PLAN, site(*rows, pairs=(other,))) == (0.8, 1.2)
    assert ratios_of("tpot", QUICK, PLAN, site(*rows)) == (0.5, 2.0)


def test_near_saturation_the_residuals_of_queues_count() -> None:
    where = site(row("none", 0.9, 1.1, strained=False), row("none", 0.4, 3.0, strained=True))
    assert ratios_of("tpot", QUICK, PLAN, where) == (0.9, 1.1)
    assert ratios_of("tpot", QUEUED, PLAN, where) == (0.4, 3.0)


def test_pools_apart_have_residuals_of_their_own() -> None:
    rows = (row("none", 0.9, 1.1, disaggregated=False), row("none", 0.5, 2.0, disaggregated=True))
    assert ratios_of("tpot", QUICK, PLAN, site(*rows)) == (0.9, 1.1)
    pools = tuple(Pool(role=role, chip="h100", tp=4) for role in ("prefill", "decode"))
    apart = PLAN.model_copy(update={"topology": "prefill-decode", "pools": pools})
    assert ratios_of("tpot", QUICK, apart, site(*rows)) == (0.5, 2.0)
    assert ratios_of("tpot", QUICK, apart, site(row("none", 0.8, 1.2))) == (0.8, 1.2)


def test_the_shipped_intervals_are_no_surer_where_less_is_known() -> None:
    found = shipped_calibration().residuals
    for quantity in ("tpot", "ttft", "throughput"):
        for apart, strained in product((False, True), repeat=2):
            rows = [
                one
                for one in found
                if one.quantity == quantity
                and one.hold_for(disaggregated=apart, strained=strained)
            ]
            first = [next(one for one in rows if one.knowledge == level) for level in KNOWLEDGE]
            widths = [one.high / one.low for one in first]
            assert len(widths) == len(KNOWLEDGE)
            assert widths == sorted(widths)


def test_the_shipped_calibration_says_where_it_is_from() -> None:
    shipped = shipped_calibration()
    assert shipped.command.startswith("servefront calibrate")
    assert shipped.fitted
    assert shipped.data is not None
    assert shipped.data.points > 1000
