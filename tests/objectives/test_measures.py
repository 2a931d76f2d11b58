"""Metrics of hand-made worlds: who counts, and in which window."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from objectives.measures import request_metrics, steady_window
from objectives.metrics import METRICS
from objectives.simulator import PoolSetup, Scenario, SimulationResult, simulate
from objectives.workload.load import OfferedLoad
from tests.objectives.simulator.worlds import constant_step, workload_of

STEP_S = 0.01


def run(load: OfferedLoad, outputs: list[int], arrivals: list[float]) -> SimulationResult:
    """Requests one after another on a server of one seat, a step a token."""
    pool = PoolSetup(
        role="aggregated",
        replicas=1,
        ranks=1,
        seats=1,
        step_tokens=100,
        alternating=False,
        kv_blocks=10_000,
        request_blocks=0,
        costs=constant_step(STEP_S),
    )
    workload = workload_of(arrivals, [5] * len(outputs), outputs)
    return simulate(Scenario((pool,)), workload, load)


def test_metrics_of_two_requests_are_those_of_the_sum_by_hand() -> None:
    arrivals = [0.0, 1.0]
    result = run(OfferedLoad(np.array(arrivals), 0), [11, 21], arrivals)
    metrics = request_metrics(result, np.array([True, False]))
    assert metrics["ttft_p50_ms"] == pytest.approx(10)
    assert metrics["tpot_mean_ms"] == pytest.approx(10)
    assert metrics["e2e_mean_ms"] == pytest.approx((110 + 210) / 2)
    assert metrics["itl_mean_ms"] == pytest.approx(10)
    assert metrics["itl_p99_ms"] == pytest.approx(10, rel=0.005)
    assert metrics["tokens_per_s_per_user_p95"] == pytest.approx(100)
    assert metrics["slo_attainment"] == pytest.approx(0.5)
    assert metrics.keys() <= METRICS.keys()


def test_a_tail_percentile_of_speed_is_the_slow_tail() -> None:
    arrivals = [0.0, 0.0, 0.0]
    result = run(OfferedLoad(np.array(arrivals), 0), [10, 10, 10], arrivals)
    metrics = request_metrics(result, None)
    assert metrics["e2e_tokens_per_s_per_user_p95"] < metrics["e2e_tokens_per_s_per_user_p50"]


def test_only_measured_requests_count() -> None:
    arrivals = [0.0, 1.0, 2.0, 3.0]
    load = OfferedLoad(np.array(arrivals), 0)
    everyone = request_metrics(run(load, [10, 20, 30, 40], arrivals), None)
    assert everyone["e2e_mean_ms"] == pytest.approx(250)
    without = replace(load, measured=np.array([True, False, True, True]))
    some = request_metrics(run(without, [10, 20, 30, 40], arrivals), None)
    assert some["e2e_mean_ms"] == pytest.approx((100 + 300 + 400) / 3)
    warm = request_metrics(run(replace(load, warm_up_s=1.5), [10, 20, 30, 40], arrivals), None)
    assert warm["e2e_mean_ms"] == pytest.approx(350)


def test_what_the_horizon_keeps_back_is_neither_sent_nor_rejected() -> None:
    arrivals = [0.0, 1.0, 2.0]
    result = run(OfferedLoad(np.array(arrivals), 0, horizon_s=1.5), [10, 10, 10], arrivals)
    assert result.requests.sent.tolist() == [True, True, False]
    assert request_metrics(result, None)["rejected_fraction"] == 0


def test_rates_are_taken_in_the_steady_part_of_a_closed_loop() -> None:
    result = run(OfferedLoad(np.zeros(100), 4), [10] * 100, [0.0] * 100)
    window = steady_window(result)
    assert 0 < window.start_s < window.end_s < result.makespan_s
    rate = request_metrics(result, None)["output_tokens_per_s"]
    assert rate == pytest.approx(1 / STEP_S, rel=0.02)
