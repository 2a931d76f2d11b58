"""Requests preempted while they decode: their KV goes to host memory and comes back."""

from __future__ import annotations

import numpy as np
import pytest

from objectives.simulator import KvOnLink, PoolSetup, Scenario, SimulationResult
from tests.objectives.simulator.test_laws import closed_loop, pool
from tests.objectives.simulator.worlds import workload_of


def tight(**changes: object) -> PoolSetup:
    """Room for two requests that grow until one of them has to go."""
    return pool(kv_blocks=26, seats=2, host_s_per_token=1e-5, **changes)


def served(setup: PoolSetup, requests: int = 2) -> SimulationResult:
    workload = workload_of(np.zeros(requests), [100] * requests, [150] * requests)
    scenario = Scenario((setup,), kv_on_link=KvOnLink(token_bytes=1000.0))
    return closed_loop(scenario, workload, 2)


def test_what_is_swapped_is_not_computed_again() -> None:
    again, swapped = served(tight()), served(tight(swap_tokens=1000))
    assert again.requests.preemptions.sum() > 0
    assert swapped.requests.preemptions.sum() > 0
    assert again.pools[0].prefill_tokens > 200
    assert swapped.pools[0].prefill_tokens == 200
    assert swapped.pools[0].decode_tokens == 2 * 149


def test_the_kv_of_a_swapped_request_crosses_the_host_link_twice() -> None:
    result = served(tight(swap_tokens=1000))
    moved = result.pools[0].host_bytes / 1000.0
    swaps = int(result.requests.preemptions.sum())
    assert 2 * 100 * swaps < moved < 2 * 250 * swaps
    assert served(tight()).pools[0].host_bytes == 0


def test_a_slow_link_makes_swapping_slower_than_computing_again() -> None:
    again = served(tight()).makespan_s
    quick = served(tight(swap_tokens=1000)).makespan_s
    slow = served(pool(kv_blocks=26, seats=2, host_s_per_token=5e-3, swap_tokens=1000)).makespan_s
    assert quick < again < slow


def test_without_room_a_request_is_computed_again() -> None:
    assert served(tight(swap_tokens=99)).makespan_s == pytest.approx(served(tight()).makespan_s)
