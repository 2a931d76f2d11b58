"""Bounded waiting queues: who is turned away, who is not, and that nobody is lost."""

from __future__ import annotations

import numpy as np
import pytest

from objectives.measures import request_metrics
from objectives.simulator import Scenario, simulate
from objectives.workload.load import OfferedLoad
from tests.objectives.simulator.test_laws import chat, closed_loop, open_loop, pool
from tests.objectives.simulator.worlds import constant_step, workload_of


def at_once(requests: int, **changes: object) -> np.ndarray:
    """Which of so many requests that come in one moment to two replicas are turned away."""
    setup = pool(replicas=2, seats=1, costs=constant_step(0.01))
    workload = workload_of([0.0] * requests, [10] * requests, [5] * requests)
    scenario = Scenario((setup,), router="round-robin", **changes)  # type: ignore[arg-type]
    return open_loop(scenario, workload).requests.turned_away


def test_a_queue_holds_its_limit_and_no_more() -> None:
    assert at_once(10).sum() == 0
    assert at_once(10, max_queued=2).tolist() == [False] * 4 + [True] * 6
    assert at_once(4, max_queued=2).sum() == 0


def one_long_in_front(try_others: bool) -> np.ndarray:
    """Two replicas in turn: a long answer on the first one, short ones later."""
    setup = pool(replicas=2, seats=1, costs=constant_step(0.01))
    arrivals_s = [0.0, 0.0, 1.0, 2.0, 3.0, 4.0]
    workload = workload_of(arrivals_s, [10] * 6, [5000, 5, 5, 5, 5, 5])
    scenario = Scenario((setup,), router="round-robin", max_queued=1, try_others=try_others)
    return open_loop(scenario, workload).requests.turned_away


def test_the_router_looks_for_room_elsewhere_only_if_it_may() -> None:
    # The third request waits behind the long answer, the fifth finds that queue full.
    assert one_long_in_front(try_others=False).tolist() == [False] * 4 + [True, False]
    assert not one_long_in_front(try_others=True).any()


def test_without_pressure_a_limit_changes_nothing() -> None:
    workload = chat(60, gap_s=0.5)
    plain = open_loop(Scenario((pool(),)), workload).requests
    bounded = open_loop(Scenario((pool(),), max_queued=4), workload).requests
    assert plain.finish_s.tobytes() == bounded.finish_s.tobytes()


def test_a_tighter_limit_turns_more_away_and_shortens_the_wait_of_the_others() -> None:
    workload = chat(300, gap_s=0.005)
    runs = [
        open_loop(Scenario((pool(seats=4),), max_queued=limit), workload) for limit in (2, 8, None)
    ]
    away = [int(run.requests.turned_away.sum()) for run in runs]
    assert away[0] > away[1] > away[2] == 0
    waits_s = [np.nanmax(run.requests.queue_s) for run in runs]
    assert waits_s[0] < waits_s[1] < waits_s[2]


def test_clients_of_a_closed_loop_go_on_after_they_were_turned_away() -> None:
    """The next turn comes its pause after the moment the one before was turned away."""
    parents, gaps_s = [-1, -1, -1, 2], [0.0, 0.0, 0.0, 3.0]
    setup = pool(seats=1, costs=constant_step(0.01))
    workload = workload_of([0.0] * 4, [10] * 4, [50] * 4, parents=parents, gaps_s=gaps_s)
    records = closed_loop(Scenario((setup,), max_queued=2), workload, 3).requests
    assert records.turned_away.tolist() == [False, False, True, False]
    assert records.arrival_s[3] == pytest.approx(3.0)


def test_those_turned_away_are_not_good_and_are_counted_by_reason() -> None:
    workload = workload_of([0.0] * 8, [10] * 7 + [5000], [5] * 8)
    setup = pool(seats=1, kv_blocks=100, costs=constant_step(0.01))
    result = simulate(Scenario((setup,), max_queued=4), workload, OfferedLoad(np.zeros(8), 0))
    records = result.requests
    metrics = request_metrics(result, records.finished.copy())  # every finished one is good
    assert metrics["rejected_fraction"] == pytest.approx(4 / 8)
    assert metrics["queue_full_fraction"] == pytest.approx(3 / 8)
    assert metrics["slo_attainment"] == pytest.approx(4 / 8)
    assert metrics["goodput_requests_per_s"] == pytest.approx(metrics["requests_per_s"])
