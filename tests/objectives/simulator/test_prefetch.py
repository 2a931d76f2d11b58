"""Prefixes that are fetched while their requests wait."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from objectives.simulator import Scenario, SimulationResult, simulate
from objectives.workload.workload import Workload
from tests.objectives.simulator.test_laws import closed_loop, open_loop, pool
from tests.objectives.simulator.test_oracle import assert_same, both
from tests.objectives.simulator.worlds import World, crowded_worlds, made_up_costs, workload_of

# Two turns of one session, the first of which leaves 640 tokens in host memory, and between them
# a stranger who has the only seat when the second one comes.
TURNS = workload_of(
    [0.0, 1.9, 0.0],
    [640, 64, 656],
    [1, 200, 20],
    [list(range(10)), [], [*range(10), 10]],
    64,
    parents=[-1, -1, 0],
    gaps_s=[0.0, 0.0, 2.0],
)
SECOND = 2  # the session's second turn, in the order of the workload


def served(prefetch: bool, workload: Workload = TURNS, **changes: object) -> SimulationResult:
    setup: dict[str, object] = {"seats": 1, "host_tokens": 10_000, "host_s_per_token": 1e-4}
    scenario = Scenario(
        (pool(**(setup | changes)),), retention="offload-at-turn-end", prefetch=prefetch
    )
    return open_loop(scenario, workload)


def test_what_is_fetched_while_a_turn_waits_is_not_waited_for() -> None:
    late, ahead = (served(prefetch).requests for prefetch in (False, True))
    fetch_s = 640 * 1e-4
    assert late.queue_s[SECOND] > 2 * fetch_s
    assert late.fetch_s[SECOND] == pytest.approx(fetch_s)
    assert ahead.fetch_s[SECOND] == 0.0
    assert late.ttft_s[SECOND] - ahead.ttft_s[SECOND] == pytest.approx(fetch_s)
    assert ahead.host_hit_tokens[SECOND] == late.host_hit_tokens[SECOND] == 640


def test_a_full_pipeline_looks_for_those_who_come_meanwhile() -> None:
    """Two strangers fill its stages and seats, one micro-batch each, for seconds."""
    turns = workload_of(
        [0.0, 1.9, 1.9, 0.0],
        [640, 64, 64, 656],
        [1, 200, 200, 20],
        [list(range(10)), [], [], [*range(10), 10]],
        64,
        parents=[-1, -1, -1, 0],
        gaps_s=[0.0, 0.0, 0.0, 2.0],
    )
    ahead = served(True, turns, seats=2, costs=made_up_costs(stages=2)).requests
    assert ahead.queue_s[3] > 2 * 640 * 1e-4
    assert ahead.fetch_s[3] == 0.0


def test_as_many_bytes_are_fetched_ahead_as_at_admission() -> None:
    late, ahead = (served(prefetch).tier_bytes for prefetch in (False, True))
    assert ahead.host == late.host > 0


def test_a_turn_that_is_admitted_meanwhile_waits_for_what_is_still_to_come() -> None:
    late, ahead = (served(p, host_s_per_token=2e-3).requests for p in (False, True))
    waited_s = late.queue_s[SECOND]
    assert 0.1 < waited_s < 0.9 * late.fetch_s[SECOND]
    step_s = 0.02  # the look at the queue comes at the end of the step under way
    assert ahead.fetch_s[SECOND] == pytest.approx(late.fetch_s[SECOND] - waited_s, abs=step_s)


def test_a_lone_client_never_waits_so_that_nothing_changes() -> None:
    one, other = (
        closed_loop(
            Scenario(
                (pool(host_tokens=10_000, host_s_per_token=1e-4),),
                retention="offload-at-turn-end",
                prefetch=prefetch,
            ),
            TURNS,
            clients=1,
        )
        for prefetch in (False, True)
    )
    np.testing.assert_array_equal(one.requests.finish_s, other.requests.finish_s)


def test_where_memory_is_full_of_work_nothing_is_fetched_ahead() -> None:
    """The stranger's blocks leave no room for the ten that wait in host memory."""
    tight = {"kv_blocks": 43}
    stranger = replace(
        TURNS, input_tokens=np.array([640, 480, 656]), output_tokens=np.array([1, 200, 20])
    )
    late, ahead = (served(prefetch, stranger, **tight).requests for prefetch in (False, True))
    assert late.finished.all()
    assert ahead.fetch_s[SECOND] > 0


@settings(max_examples=200)
@given(crowded_worlds())
def test_every_request_fares_as_in_the_step_by_step_simulator(world: World) -> None:
    plain, fast = both(world)
    for request in plain.requests:
        assert_same(request, fast.requests)


@settings(max_examples=60)
@given(crowded_worlds())
def test_hits_and_times_are_accounted_for(world: World) -> None:
    records = simulate(*world).requests
    done = records.finished
    assert (records.hit_tokens[done] < records.input_tokens[done]).all()
    parts = ("frontend_s", "queue_s", "fetch_s", "prefill_s", "decode_wait_s", "transfer_s")
    told = [getattr(records, part)[done] for part in parts]
    assert all((part >= -1e-12).all() for part in told)
    np.testing.assert_allclose(sum(told), records.ttft_s[done], rtol=1e-9)
