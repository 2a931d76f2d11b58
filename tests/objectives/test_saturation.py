"""Overload of an open loop is told; a closed loop, or a queue that stands, is not overloaded."""

from __future__ import annotations

import numpy as np
import pytest

from objectives.saturation import queue_growth
from objectives.simulator import Scenario, SimulationResult, simulate
from objectives.workload.load import OfferedLoad
from tests.objectives.simulator.test_laws import pool
from tests.objectives.simulator.worlds import constant_step, workload_of

STEP_S = 0.01


def offered(rate_of_capacity: float, clients: int = 0, **changes: object) -> SimulationResult:
    """One seat and answers of 100 steps, sent at a multiple of what it serves."""
    count = 200
    arrivals_s = np.arange(count) * STEP_S * 100 / rate_of_capacity
    setup = pool(seats=1, costs=constant_step(STEP_S))
    workload = workload_of(arrivals_s, [5] * count, [100] * count)
    return simulate(Scenario((setup,), **changes), workload, OfferedLoad(arrivals_s, clients))  # type: ignore[arg-type]


def test_more_than_is_served_piles_up() -> None:
    growth = queue_growth(offered(1.5))
    assert growth is not None
    assert growth.saturated
    # Each request waits for those before it: two thirds of the run lie between the thirds.
    between_s = 200 * 2 / 3 * STEP_S * 100 * (1 - 1 / 1.5)
    assert growth.late_s - growth.early_s == pytest.approx(between_s, rel=0.02)


def test_less_than_is_served_does_not() -> None:
    growth = queue_growth(offered(0.9))
    assert growth is not None
    assert not growth.saturated
    assert growth.late_s == pytest.approx(growth.early_s, abs=STEP_S)


def test_a_closed_loop_offers_what_is_served() -> None:
    assert queue_growth(offered(1.5, clients=50)) is None


def test_a_bounded_queue_stands_and_turns_the_rest_away() -> None:
    result = offered(1.5, max_queued=3)
    growth = queue_growth(result)
    assert growth is not None
    assert not growth.saturated
    assert result.requests.turned_away.mean() == pytest.approx(1 - 1 / 1.5, abs=0.02)
