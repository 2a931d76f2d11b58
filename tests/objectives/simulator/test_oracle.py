"""The fast simulator against the plain one, on small worlds with every feature mixed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from objectives.simulator import RequestRecords, SimulationResult, simulate
from tests.objectives.simulator.reference import ReferenceSimulator, Request
from tests.objectives.simulator.worlds import World, worlds


def both(world: World) -> tuple[ReferenceSimulator, SimulationResult]:
    """A world served step by step, and by the fast simulator."""
    plain = ReferenceSimulator(*world)
    plain.run()
    return plain, simulate(*world)


@settings(max_examples=500)
@given(worlds())
def test_every_request_fares_as_in_the_step_by_step_simulator(world: World) -> None:
    plain, fast = both(world)
    for request in plain.requests:
        assert_same(request, fast.requests)
    if fast.hosts is not None:
        worked_s = fast.hosts.tool_utilization * fast.hosts.tool_cores * plain.now_s
        assert worked_s == pytest.approx(plain.tools.worked_s, rel=1e-9, abs=1e-12)


@settings(max_examples=60)
@given(worlds())
def test_inter_token_gaps_are_those_between_all_tokens(world: World) -> None:
    plain, fast = both(world)
    gaps = np.array([gap for r in plain.requests for gap in np.diff(r.token_times)])
    assert fast.gap_counts.sum() == len(gaps)
    if len(gaps):
        assert fast.gap_mean_s == pytest.approx(gaps.mean(), rel=1e-9)
        middles = np.repeat(fast.gap_middle_s, fast.gap_counts)
        np.testing.assert_allclose(middles, np.sort(gaps), rtol=0.005)


def assert_same(request: Request, records: RequestRecords) -> None:
    """One request's times to 1e-9, its hits and preemptions exactly."""
    place = request.number
    assert (request.phase == "finished") == bool(records.finished[place])
    assert (request.phase != "expected") == bool(records.sent[place])
    assert (request.phase == "turned away") == bool(records.turned_away[place])
    if request.phase != "finished":
        return
    times = [request.arrival_s, request.token_times[0], request.times["finished"]]
    told = [records.arrival_s[place], records.first_token_s[place], records.finish_s[place]]
    np.testing.assert_allclose(told, times, rtol=1e-9, err_msg=f"request {place}")
    assert records.preemptions[place] == request.preemptions
    assert records.hbm_hit_tokens[place] == request.hbm_hit
    below = (records.host_hit_tokens, records.ssd_hit_tokens, records.store_hit_tokens)
    assert [int(hits[place]) for hits in below] == request.hits_below
    np.testing.assert_allclose(records.tool_wait_s[place], request.tool_wait_s, atol=1e-9)
