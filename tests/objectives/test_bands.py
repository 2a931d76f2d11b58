"""Where the 80 % interval of each metric comes from, and that it holds what it is derived for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from objectives.assess import Assessment, assess
from objectives.bands import (
    bands_by_ratio,
    bands_by_runs,
    bands_of_requests,
    class_bands,
)
from objectives.cost.step_costs import AttentionTables
from objectives.deployment import scenario_of, slowed
from objectives.interval_sources import BANDED, SOURCES, STATED
from objectives.measures import request_metrics
from objectives.metrics import METRICS
from objectives.slo import Slo, class_reports, good_requests, worst_attainment
from objectives.workload import SyntheticSpec, Workload, generate
from objectives.workload.load import OfferedLoad
from spaces.calibration import Calibration, Quantity, Residuals
from spaces.documents import validated
from spaces.plan import DeploymentPlan, KvTiers, Load, Pool
from spaces.site import Site
from tests.objectives.test_measures import run
from tests.objectives.test_slo import classed
from tests.spaces.worlds import plan_of, site_of

RATIOS: dict[Quantity, tuple[float, float]] = {
    "tpot": (0.8, 1.25),
    "ttft": (0.5, 3.0),
    "throughput": (0.9, 1.1),
}
PLAN = plan_of("llama-3.1-8b", "h100", max_num_seqs=16)
APART = DeploymentPlan(
    model="llama-3.1-8b",
    topology="prefill-decode",
    pools=(Pool(role="prefill", chip="h100"), Pool(role="decode", chip="h100")),
    kv=KvTiers(host_gb_per_chip=10.0),
)


def known_site() -> Site:
    """A site whose residuals are `RATIOS`, whatever is known."""
    rows = tuple(
        Residuals(quantity=quantity, knowledge="none", low=low, high=high, points=9)
        for quantity, (low, high) in RATIOS.items()
    )
    site = site_of("llama-3.1-8b", {"h100": 8})
    return replace(site, calibration=Calibration(residuals=rows))


def requests(count: int = 60, output: int = 100) -> Workload:
    data = {"requests": count, "input_tokens": 800, "output_tokens": output}
    return generate(validated(SyntheticSpec, data, "test"), seed=1)


def served(
    plan: DeploymentPlan, load: Load, *, explain: bool = True, workload: Workload | None = None
) -> Assessment:
    slo = Slo(ttft_ms=200, tpot_ms=20)
    return assess(plan.at(load), known_site(), workload or requests(), slo=slo, explain=explain)


def test_every_metric_says_where_its_interval_is_from() -> None:
    assert SOURCES.keys() == METRICS.keys()
    assert {name for name, source in SOURCES.items() if source == "stated"} == STATED.keys()
    assert set(BANDED) == {n for n, s in SOURCES.items() if s not in ("runs", "stated")}


@pytest.mark.parametrize("plan", [PLAN, APART], ids=["together", "apart"])
def test_an_explained_plan_has_an_interval_of_all_that_is_predicted(plan: DeploymentPlan) -> None:
    found = served(plan, Load(concurrency=8))
    assert found.metrics.keys() - found.bands.keys() == found.metrics.keys() & STATED.keys()
    for name, (low, high) in found.bands.items():
        assert low <= found.metrics[name] <= high, name
    for one in found.classes:
        assert one.bands.keys() == one.metrics.keys()


def test_a_trial_has_the_same_intervals_but_those_of_further_runs() -> None:
    trial, explained = (served(APART, Load(concurrency=8), explain=e) for e in (False, True))
    assert trial.metrics == explained.metrics
    assert trial.bands.items() < explained.bands.items()
    zeros = {name for name, value in trial.metrics.items() if value == 0}
    further = explained.bands.keys() - trial.bands.keys() - zeros
    assert {SOURCES[name] for name in further} == {"runs"}


def test_speeds_and_prices_move_against_what_was_measured() -> None:
    metrics = {
        **{"tpot_p50_ms": 10.0, "tokens_per_s_per_user_p50": 100.0, "chips": 8.0},
        **{"usd_per_m_output_tokens": 9.9, "output_tokens_per_s": 50.0, "ttft_p95_ms": 7.0},
        **{"joules_per_output_token": 4.0, "power_drawn_kw": 7.0, "power_kw": 8.0},
    }
    bands = bands_by_ratio(metrics, PLAN, RATIOS)
    assert bands["tpot_p50_ms"] == pytest.approx((8.0, 12.5))
    assert bands["tokens_per_s_per_user_p50"] == pytest.approx((80.0, 125.0))
    assert bands["ttft_p95_ms"] == pytest.approx((3.5, 21.0))
    assert bands["output_tokens_per_s"] == pytest.approx((45.0, 55.0))
    assert bands["usd_per_m_output_tokens"] == pytest.approx((9.0, 11.0))
    assert bands["joules_per_output_token"] == pytest.approx((4 * 0.8, 4 * 1.25))
    assert bands["power_drawn_kw"] == pytest.approx((7 * 0.8, 8.0))
    assert "chips" not in bands


def test_nothing_exceeds_the_whole_or_the_seats() -> None:
    metrics = {
        **{"aggregated_utilization": 0.9, "peak_kv_fraction": 1.0, "aggregated_batch_p95": 15.0},
        **{"aggregated_batch_mean": 4.0, "front_end_utilization": 0.95},
    }
    bands = bands_by_ratio(metrics, PLAN, RATIOS)
    assert bands["aggregated_utilization"] == pytest.approx((0.72, 1.0))
    assert bands["peak_kv_fraction"] == pytest.approx((0.8, 1.0))
    assert bands["front_end_utilization"] == pytest.approx((0.855, 1.0))
    assert bands["aggregated_batch_p95"] == pytest.approx((12.0, 16.0))
    assert bands["aggregated_batch_mean"] == pytest.approx((3.2, 5.0))
    few = bands_by_ratio(metrics, PLAN.at(Load(concurrency=4)), RATIOS)
    assert few["aggregated_batch_mean"] == pytest.approx((3.2, 4.0))


def test_of_nothing_no_factor_tells_how_far_off_it_may_be() -> None:
    metrics = {"decode_queue_mean_ms": 0.0, "tpot_p50_ms": 10.0, "chips": 8.0}
    known = bands_by_ratio(metrics, PLAN, RATIOS)
    assert known.keys() == {"tpot_p50_ms"}
    ends = [metrics | {"decode_queue_mean_ms": 0.0}, metrics | {"decode_queue_mean_ms": 4.0}]
    assert bands_by_runs(metrics, known, ends) == {"decode_queue_mean_ms": (0.0, 4.0)}


def test_end_to_end_latencies_take_the_ends_of_their_two_parts() -> None:
    """Ten milliseconds to the first token and as many for each of ten and twenty more."""
    arrivals = [0.0, 1.0]
    result = run(OfferedLoad(np.array(arrivals), 0), [11, 21], arrivals)
    bands = bands_of_requests(
        request_metrics(result, None), result.requests, classed(), None, RATIOS, chips=1
    )
    low = (10 * 0.5 + 150 * 0.8, 10 * 3.0 + 150 * 1.25)
    assert bands["e2e_mean_ms"] == pytest.approx(low)
    slowest = 1e3 / ((10 * 3.0 + 100 * 1.25) / 11)
    assert bands["e2e_tokens_per_s_per_user_p99"][0] == pytest.approx(slowest, rel=0.01)


def attained(limit_ms: float) -> dict[str, tuple[float, float]]:
    """Bands of four requests of 10 ms a token, held to a limit of TPOT."""
    arrivals, outputs = [0.0, 1.0, 1.0, 3.0], [11, 21, 31, 41]
    result = run(OfferedLoad(np.array(arrivals), 0), outputs, arrivals)
    slo = Slo(tpot_ms=limit_ms)
    good = good_requests(slo, result.requests, classed())
    told = request_metrics(result, good) | worst_attainment(good, result.requests, classed())
    told["goodput_requests_per_s_per_chip"] = told["goodput_requests_per_s"] / 2
    return bands_of_requests(told, result.requests, classed(), slo, RATIOS, chips=2)


def test_an_slo_is_tested_again_at_the_ends_of_the_latencies() -> None:
    within, near, beyond = attained(13.0), attained(11.0), attained(7.0)
    assert within["slo_attainment"] == (1.0, 1.0)
    assert near["slo_attainment"] == (0.0, 1.0)
    assert near["slo_attainment_worst_class"] == (0.0, 1.0)
    assert beyond["slo_attainment"] == (0.0, 0.0)


def test_goodput_is_also_as_unsure_as_throughput() -> None:
    within, near = attained(13.0), attained(11.0)
    low, high = within["goodput_requests_per_s"]
    assert high / low == pytest.approx(1.1 / 0.9)
    assert near["goodput_requests_per_s"] == (0.0, high)
    assert within["goodput_requests_per_s_per_chip"] == pytest.approx((low / 2, high / 2))


def test_classes_have_intervals_of_their_own() -> None:
    arrivals, outputs = [0.0, 1.0, 1.0, 3.0], [11, 21, 31, 41]
    result = run(OfferedLoad(np.array(arrivals), 0), outputs, arrivals)
    slo = Slo(promised=True)  # chat: TTFT of 15 ms, met by one of two; batch: 500 ms in all
    classes = class_reports(result.requests, classed(), slo, 1.0)
    chat, batch = class_bands(classes, result.requests, classed(), slo, 1.0, RATIOS)
    assert chat.metrics["slo_attainment"] == 0.5
    assert chat.bands["slo_attainment"] == (0.0, 0.5)  # 10 ms may be 30
    assert batch.bands["slo_attainment"] == (0.5, 1.0)  # 410 ms may be 530
    assert chat.bands["ttft_p50_ms"] == pytest.approx((0.5 * 115, 3.0 * 115))


@pytest.mark.parametrize(
    "load", [Load(concurrency=8), Load(request_rate=3.0)], ids=["closed", "open"]
)
def test_pools_are_as_busy_and_as_full_as_slower_steps_make_them(load: Load) -> None:
    """All steps longer or shorter by factors within TPOT's interval stay within the bands."""
    found = served(APART, load, explain=False, workload=requests(200))
    crowded = [n for n, s in SOURCES.items() if s == "crowding" and n in found.bands]
    assert {"decode_utilization", "decode_batch_mean", "decode_peak_kv_fraction"} < set(crowded)
    for factor in (0.8, 0.9, 1.1, 1.25):
        offsets = [{"factor": factor, "points": 1}]
        calibration = Calibration.model_validate({"offsets": offsets})
        site = replace(known_site(), calibration=calibration)
        slower = assess(APART.at(load), site, requests(200))
        for name in crowded:
            low, high = found.bands[name]
            # Batches are counts: of a percentile a whole request is the least it can move.
            slack = 1.0 if "batch_p" in name or "batch_max" in name else 0.02 * high
            assert low - slack <= slower.metrics[name] <= high + slack, (name, factor)


def test_slower_steps_are_those_of_every_pool() -> None:
    scenario = scenario_of(APART, site_of("llama-3.1-8b", {"h100": 2}))
    for before, after in zip(scenario.pools, slowed(scenario, 1.5).pools, strict=True):
        assert after.costs.host_s == pytest.approx(1.5 * before.costs.host_s)
        assert after.costs.token_s == pytest.approx(1.5 * before.costs.token_s)


def test_attention_read_from_tables_is_slowed_in_mixed_steps_too() -> None:
    one = np.ones((2, 2))
    slow = AttentionTables(16, one, one, mixed_decode_s=3 * one).scaled(2.0)
    assert slow.mixed_decode_s is not None
    assert (slow.decode_s[0, 0], slow.prefill_s[0, 0], slow.mixed_decode_s[0, 0]) == (
        2.0,
        2.0,
        6.0,
    )


def test_what_may_be_overloaded_with_slower_steps_may_be_saturated() -> None:
    """A rate that the plan serves, but would not if its steps took a quarter longer."""
    tight = plan_of("llama-3.1-8b", "h100", max_num_seqs=4)
    closed = served(tight, Load(concurrency=4), explain=False, workload=requests(400))
    rate = 0.93 * closed.metrics["requests_per_s"]
    found = served(tight, Load(request_rate=rate), workload=requests(2000))
    assert found.metrics["saturated"] == 0.0
    assert found.bands["saturated"] == (0.0, 1.0)
    calm = served(tight, Load(request_rate=rate / 3), workload=requests(400))
    assert calm.bands["saturated"] == (0.0, 0.0)
