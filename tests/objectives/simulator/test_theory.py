"""Queueing theory: one seat and one step a request make the simulator a known queue.

Means over many waiting times are compared with formulas, within a confidence interval over
independent replications, after a warm-up.
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

SERVICE_S = 0.1
REPLICATIONS = 12
REQUESTS = 60_000


def single_server(step_s: float) -> Scenario:
    pool = PoolSetup(
        role="aggregated",
        replicas=1,
        ranks=1,
        seats=1,
        step_tokens=1000,
        alternating=False,
        kv_blocks=1_000_000,
        request_blocks=0,
        costs=constant_step(step_s),
    )
    return Scenario((pool,))


def mean_waits_s(load: float, steps: int, geometric: bool) -> np.ndarray:
    """Mean wait for admission in each replication, at a utilization of `load`.

    Answers take `steps` steps in the mean, which together last `SERVICE_S`.
    """
    step_s = SERVICE_S / steps
    waits = []
    for seed in range(REPLICATIONS):
        rng = np.random.default_rng(seed)
        outputs = rng.geometric(1 / steps, REQUESTS) if geometric else np.full(REQUESTS, steps)
        arrivals = np.cumsum(rng.exponential(SERVICE_S / load, REQUESTS))
        workload = workload_of(arrivals, np.full(REQUESTS, 5), outputs)
        scenario = single_server(step_s)
        records = simulate(scenario, workload, OfferedLoad(arrivals, 0)).requests
        waits.append(records.queue_s[REQUESTS // 10 :].mean())
    return np.array(waits)


def assert_within_interval(waits_s: np.ndarray, expected_s: float) -> None:
    """Within the 99.5 % confidence interval over replications, which is narrow enough to fail."""
    half_width = stats.t.ppf(0.9975, REPLICATIONS - 1) * stats.sem(waits_s)
    assert abs(waits_s.mean() - expected_s) < half_width
    assert half_width < 0.1 * expected_s


@pytest.mark.parametrize("load", [0.3, 0.6, 0.85])
def test_equal_answers_wait_as_in_an_m_d_1_queue(load: float) -> None:
    waits_s = mean_waits_s(load, 10, geometric=False)
    assert_within_interval(waits_s, load / (1 - load) * SERVICE_S / 2)


@pytest.mark.parametrize(
    ("steps", "load"), [(2, 0.6), (10, 0.3), (10, 0.85), (500, 0.3), (500, 0.6), (500, 0.85)]
)
def test_geometric_answers_wait_as_in_an_m_m_1_queue_the_more_steps_they_take(
    steps: int, load: float
) -> None:
    """Answers are whole steps: Pollaczek-Khinchine with geometric service, M/M/1's in the limit.

    With p = 1 / steps the wait is that of M/M/1 times 1 - p / 2.
    """
    m_m_1_s = load / (1 - load) * SERVICE_S
    waits_s = mean_waits_s(load, steps, geometric=True)
    assert_within_interval(waits_s, m_m_1_s * (1 - 0.5 / steps))
    if steps == 500:
        assert_within_interval(waits_s, m_m_1_s)


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


@pytest.mark.parametrize(("servers", "load"), [(4, 0.7), (16, 0.85)])
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
