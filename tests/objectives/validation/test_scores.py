"""Errors, coverage and rank correlation against figures worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from objectives.validation.points import THROUGHPUT, Mapping, Point, Setup
from objectives.validation.prediction import METRICS, Predicted
from objectives.validation.scores import rank_correlations, score, scores
from spaces.plan import Load
from tests.spaces.worlds import plan_of, site_of

PLAN, SITE = plan_of("llama-3.1-8b", "h100"), site_of("llama-3.1-8b", {"h100": 8})
SETUP = Setup(
    model="m",
    family="f",
    hardware="c",
    release="",
    engine="vllm",
    mode="agg",
    weights="fp8",
    kv="",
    speculation="none",
    workload="",
    mappings=(Mapping(1, 1, 1, 1, 1, 1),),
    chips=1,
    input_tokens=100,
    output_tokens=10,
    nominal_input=100,
    nominal_output=10,
    prefix_hit=0.0,
    load=Load(concurrency=4),
)


def point(
    measured: float, predicted: float, quantity: str = "tpot", **changes: object
) -> Predicted:
    """A measured value and its prediction."""
    setup = replace(SETUP, **changes)  # type: ignore[arg-type]
    one = Point(setup, "image", "config", 1, {quantity: measured})
    return Predicted(one, PLAN, SITE, {METRICS[quantity]: predicted})


def test_figures_of_three_points_by_hand() -> None:
    found = score([point(10, 10.9), point(10, 7), point(10, 10.5)], "tpot")
    assert found is not None
    assert found.median_ape_pct == pytest.approx(9)
    assert found.mape_pct == pytest.approx((9 + 30 + 5) / 3)
    assert found.bias_pct == pytest.approx(5)
    assert found.within_10_pct == pytest.approx(200 / 3)
    assert found.within_20_pct == pytest.approx(200 / 3)


def test_a_large_pair_does_not_rule_the_median_of_pairs() -> None:
    many = [point(10, 11) for _ in range(9)]
    few = [point(10, 15, family="g"), point(10, 13, hardware="d")]
    found = score([*many, *few], "tpot")
    assert found is not None
    assert found.median_ape_pct == pytest.approx(10)
    assert found.pairs == 3
    assert found.pair_median_ape_pct == pytest.approx(30)


def test_quantities_are_never_pooled() -> None:
    found = scores([point(10, 11), point(10, 20, quantity="tpot_mean")])
    assert found["tpot"]["n"] == found["tpot_mean"]["n"] == 1
    assert "ttft" not in found


def test_order_of_mappings_is_judged_at_equal_load_only() -> None:
    def sweep(load: int, predicted: tuple[float, ...]) -> list[Predicted]:
        return [
            point(
                measured,
                value,
                quantity=THROUGHPUT,
                mappings=(Mapping(tp, 1, 1, 1, 1, tp),),
                load=Load(concurrency=load),
            )
            for tp, measured, value in zip((1, 2, 4), (30, 20, 10), predicted, strict=True)
        ]

    right, wrong = sweep(4, (9, 6, 3)), sweep(8, (100, 200, 300))
    assert rank_correlations(right)[THROUGHPUT]["median_spearman"] == pytest.approx(1)
    found = rank_correlations([*right, *wrong])[THROUGHPUT]
    assert (found["sweeps"], found["mean_spearman"], found["best_found_pct"]) == (2, 0, 50)
