"""The fast simulator against the plain one, on random small worlds with every feature mixed."""

from __future__ import annotations

import numpy as np
import pytest

from objectives.simulator import RequestRecords, simulate
from tests.objectives.simulator.reference import ReferenceSimulator, Request
from tests.objectives.simulator.worlds import random_world


@pytest.mark.parametrize("batch", range(20))
def test_every_request_fares_as_in_the_step_by_step_simulator(batch: int) -> None:
    for seed in range(batch * 20, batch * 20 + 20):
        scenario, workload, load = random_world(seed)
        plain = ReferenceSimulator(scenario, workload, load)
        plain.run()
        fast = simulate(scenario, workload, load)
        for request in plain.requests:
            assert_same(request, fast.requests, seed)


@pytest.mark.parametrize("seed", [1046, 3432])  # each once told the two apart
def test_worlds_that_once_differed(seed: int) -> None:
    scenario, workload, load = random_world(seed)
    plain = ReferenceSimulator(scenario, workload, load)
    plain.run()
    fast = simulate(scenario, workload, load)
    for request in plain.requests:
        assert_same(request, fast.requests, seed)


@pytest.mark.parametrize("seed", range(0, 400, 7))
def test_inter_token_gaps_are_those_between_all_tokens(seed: int) -> None:
    scenario, workload, load = random_world(seed)
    plain = ReferenceSimulator(scenario, workload, load)
    plain.run()
    fast = simulate(scenario, workload, load)
    gaps = np.array([gap for r in plain.requests for gap in np.diff(r.token_times)])
    assert fast.gap_counts.sum() == len(gaps)
    if len(gaps):
        assert fast.gap_mean_s == pytest.approx(gaps.mean(), rel=1e-9)
        middles = np.repeat(fast.gap_middle_s, fast.gap_counts)
        np.testing.assert_allclose(middles, np.sort(gaps), rtol=0.005)


def assert_same(request: Request, records: RequestRecords, seed: int) -> None:
    """One request's times to 1e-9, its hits and preemptions exactly."""
    place = request.number
    assert (request.phase == "finished") == bool(records.finished[place]), seed
    assert (request.phase != "expected") == bool(records.sent[place]), seed
    if request.phase != "finished":
        return
    times = [request.arrival_s, request.token_times[0], request.times["finished"]]
    told = [records.arrival_s[place], records.first_token_s[place], records.finish_s[place]]
    np.testing.assert_allclose(told, times, rtol=1e-9, err_msg=f"seed {seed} request {place}")
    assert records.preemptions[place] == request.preemptions, seed
    assert records.hbm_hit_tokens[place] == request.hbm_hit, seed
    below = (records.host_hit_tokens, records.ssd_hit_tokens, records.store_hit_tokens)
    assert [int(hits[place]) for hits in below] == request.hits_below, seed
