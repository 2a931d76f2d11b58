"""Queueing theory: one seat and one step a request make the simulator a known queue.

Means over many waiting times are compared with the Pollaczek-Khinchine formula, within a
confidence interval over independent replications, after a warm-up.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from objectives.simulator import PoolSetup, Scenario, simulate
from objectives.workload.load import OfferedLoad
from tests.objectives.simulator.worlds import constant_step, workload_of

STEP_S = 0.01
REPLICATIONS = 12
REQUESTS = 60_000


def single_server() -> Scenario:
    pool = PoolSetup(
        role="aggregated",
        replicas=1,
        ranks=1,
        seats=1,
        step_tokens=1000,
        alternating=False,
        kv_blocks=1_000_000,
        request_blocks=0,
        costs=constant_step(STEP_S),
    )
    return Scenario((pool,))


def mean_waits_s(load: float, geometric: bool) -> np.ndarray:
    """Mean wait for admission in each replication, at a utilization of `load`."""
    waits = []
    for seed in range(REPLICATIONS):
        rng = np.random.default_rng(seed)
        outputs = rng.geometric(0.1, REQUESTS) if geometric else np.full(REQUESTS, 10)
        arrivals = np.cumsum(rng.exponential(10 * STEP_S / load, REQUESTS))
        workload = workload_of(arrivals, np.full(REQUESTS, 5), outputs)
        records = simulate(single_server(), workload, OfferedLoad(arrivals, 0)).requests
        waits.append(records.queue_s[REQUESTS // 10 :].mean())
    return np.array(waits)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.85])
@pytest.mark.parametrize("geometric", [False, True], ids=["M/D/1", "M/Geo/1"])
def test_waits_are_those_of_queueing_theory(load: float, geometric: bool) -> None:
    service_s = 10 * STEP_S
    variance = STEP_S**2 * 0.9 / 0.01 if geometric else 0.0
    expected_s = load / (1 - load) * service_s / 2 * (1 + variance / service_s**2)
    waits_s = mean_waits_s(load, geometric)
    half_width = stats.t.ppf(0.9975, REPLICATIONS - 1) * stats.sem(waits_s)
    assert abs(waits_s.mean() - expected_s) < half_width
    assert half_width < 0.1 * expected_s  # the test must be able to fail
