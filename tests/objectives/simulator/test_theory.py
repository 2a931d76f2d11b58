"""Queueing theory: one seat and one step a request make the simulator a known queue.

Means over many waiting times are compared with the Pollaczek-Khinchine formula, within a
confidence interval over independent replications, after a warm-up.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from objectives.cost.step_costs import StepCosts
from objectives.simulator import PoolSetup, RequestRecords, Scenario, simulate
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


SHORT_STEP_S = 1e-3
MEAN_STEPS = 100


def open_queue(seats: int, costs: StepCosts) -> Scenario:
    """A pool with so many seats, a queue before them and memory for all."""
    pool = PoolSetup(
        role="aggregated",
        replicas=1,
        ranks=1,
        seats=seats,
        step_tokens=100_000,
        alternating=False,
        kv_blocks=10_000_000,
        request_blocks=0,
        costs=costs,
    )
    return Scenario((pool,))


def times_of(scenario: Scenario, rate: float, requests: int, seed: int) -> RequestRecords:
    """Poisson arrivals of geometric answers, many steps long: exponential service but for 1 %."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / rate, requests))
    outputs = rng.geometric(1 / MEAN_STEPS, requests)
    workload = workload_of(arrivals, np.ones(requests, int), outputs)
    return simulate(scenario, workload, OfferedLoad(arrivals, 0)).requests


def assert_mean(values: list[float], expected: float) -> None:
    """Within the confidence interval over replications, and 2 % for steps instead of a flow."""
    half_width = stats.t.ppf(0.9975, len(values) - 1) * stats.sem(values)
    assert abs(np.mean(values) - expected) < half_width + 0.02 * expected
    assert half_width < 0.12 * expected  # the test must be able to fail


@pytest.mark.parametrize(("servers", "load"), [(1, 0.6), (4, 0.7), (16, 0.85)])
def test_waits_with_several_seats_are_those_of_m_m_c(servers: int, load: float) -> None:
    """Where a step takes the same whatever is in it, each seat is a server (Erlang's C)."""
    service_s = MEAN_STEPS * SHORT_STEP_S
    offered = servers * load
    terms = [offered**k / math.factorial(k) for k in range(servers)]
    last = offered**servers / math.factorial(servers) / (1 - load)
    waits = last / (sum(terms) + last)
    expected_s = waits * service_s / (servers * (1 - load))
    scenario = open_queue(servers, constant_step(SHORT_STEP_S, servers))
    found = []
    for seed in range(REPLICATIONS):
        records = times_of(scenario, servers * load / service_s, 40_000, seed)
        # A request that finds a seat free still waits for the step under way: half of it.
        found.append(records.queue_s[4_000:].mean())
    busy_s = SHORT_STEP_S / 2
    assert_mean([wait - busy_s for wait in found], expected_s)


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_requests_that_share_the_chip_fare_as_under_processor_sharing(load: float) -> None:
    """Where a step takes so much for each decoding request, all share one server: M/M/1-PS."""
    costs = replace(
        constant_step(0.0, seats=512),
        decode_request_s=np.array([SHORT_STEP_S]),
    )
    service_s = (MEAN_STEPS - 1) * SHORT_STEP_S  # the first token comes with the prompt, at once
    scenario = open_queue(512, costs)
    found = [
        times_of(scenario, load / service_s, 20_000, seed).e2e_s[2_000:].mean()
        for seed in range(REPLICATIONS)
    ]
    assert_mean(found, service_s / (1 - load))
