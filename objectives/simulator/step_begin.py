"""A replica begins its next step, or leap, or sends a micro-batch into its pipeline."""

from __future__ import annotations

from objectives.simulator.admission import count_begun, is_short_of_kv, steps_to_look
from objectives.simulator.batching import fill_batch
from objectives.simulator.events import push
from objectives.simulator.jit import compiled
from objectives.simulator.leap_limits import leap_limit
from objectives.simulator.leaps import (
    anyone_waits,
    is_closed,
    may_leap,
    plan_flight_end,
    plan_step_end,
    wake,
)
from objectives.simulator.passing_on import ask_decode_pool
from objectives.simulator.pipeline import (
    enter_flight,
    flights_return,
    leap_end_s,
    rounds_ahead,
    settle_rounds,
)
from objectives.simulator.state import FIRST_LAYER, STEP_END, State
from objectives.simulator.step_end import HELD_ONES, settle_rank
from objectives.simulator.steps import stage_seconds, sum_batch


@compiled
def schedule(state: State, replica_id: int) -> None:
    """Start the replica's next micro-batch, if there is work and room in its pipeline.

    With stages a micro-batch is put together as soon as fewer than `stages` are in flight, and
    then waits for the first stage.
    """
    replica = state.replicas[replica_id]
    pool = state.pools[replica.pool]
    if pool.stages > 1 and replica.leap_steps > 0:
        settle_rounds(state, replica_id)
        plan_flight_end(state, replica_id)
    if replica.flights == pool.stages:
        _leap_rounds(state, replica_id)
        return
    for rank_id in range(replica.first_rank, replica.first_rank + pool.ranks):
        if state.ranks[rank_id].held > 0:
            settle_rank(state, rank_id, HELD_ONES)
    flight = replica.next_flight if pool.stages > 1 else 0
    chosen = fill_batch(state, replica_id, flight)
    if pool.hands_off == 1 and state.clock[0].send_layers > 0:
        ask_decode_pool(state, replica_id)
    if chosen == 0:
        _leap_rounds(state, replica_id)
        return
    replica.kv_short = is_short_of_kv(state, replica_id)
    sum_batch(state, replica_id, flight)
    count_begun(state, replica_id, _has_chunks(state, replica_id))
    replica.next_flight += 1
    if replica.flights == 0:
        replica.busy_since_s = state.clock[0].now_s
    replica.flights += 1
    if pool.stages == 1:
        _start_step(state, replica_id)
    else:
        _enter_pipeline(state, replica_id, flight)


@compiled
def _has_chunks(state: State, replica_id: int) -> bool:
    replica = state.replicas[replica_id]
    for rank_id in range(replica.first_rank, replica.first_rank + state.pools[replica.pool].ranks):
        if state.ranks[rank_id].batch_chunks > 0:
            return True
    return False


@compiled
def _start_step(state: State, replica_id: int) -> None:
    replica = state.replicas[replica_id]
    first_s, slope_s = stage_seconds(state, replica_id, 0, 0)
    replica.leap_start_s = state.clock[0].now_s
    replica.leap_first_s = first_s
    replica.leap_slope_s = slope_s
    steps = 1
    if may_leap(state, replica_id):
        steps = leap_limit(state, replica_id, 0)
        if is_closed(state, replica_id) and anyone_waits(state, replica_id):
            steps = min(steps, steps_to_look(state, replica_id, 1))
    replica.leap_steps = steps
    replica.leap_looks = steps > 1 and not is_closed(state, replica_id)
    plan_step_end(state, replica_id)
    _plan_first_layer(state, replica_id, 0, first_s)


@compiled
def _plan_first_layer(state: State, replica_id: int, flight: int, seconds: float) -> None:
    """Where chunks are sent layer by layer, tell when the first layer of a step is computed."""
    clock = state.clock[0]
    if clock.send_layers > 1 and state.pools[state.replicas[replica_id].pool].hands_off == 1:
        push(state, clock.now_s + seconds / clock.send_layers, FIRST_LAYER, replica_id, flight)


@compiled
def _enter_pipeline(state: State, replica_id: int, flight: int) -> None:
    """Send a micro-batch through the stages; each serves one micro-batch at a time, in order."""
    replica = state.replicas[replica_id]
    time_s = state.clock[0].now_s
    state.batches[replica.pool, replica.batch_requests] += 1
    for stage in range(state.pools[replica.pool].stages):
        seconds, _ = stage_seconds(state, replica_id, flight, stage)
        replica.work_s += seconds
        time_s = max(time_s, state.stage_free_s[replica_id, stage]) + seconds
        state.stage_free_s[replica_id, stage] = time_s
    enter_flight(state, replica_id, flight, time_s)
    if replica.flights == 1:
        plan_flight_end(state, replica_id)
    _plan_first_layer(state, replica_id, flight, time_s - state.clock[0].now_s)
    wake(state, replica_id)


@compiled
def _leap_rounds(state: State, replica_id: int) -> None:
    """If the micro-batches of a pipeline only go round for a while, take that as one event."""
    replica = state.replicas[replica_id]
    if state.pools[replica.pool].stages == 1 or replica.flights == 0:
        return
    if not may_leap(state, replica_id) or not flights_return(state, replica_id):
        return
    closed = is_closed(state, replica_id)
    if closed and anyone_waits(state, replica_id):
        return
    ends = rounds_ahead(state, replica_id)
    if ends > 0:
        replica.leap_steps, replica.leap_looks = ends, not closed
        replica.leap_start_s = state.clock[0].now_s
        replica.version += 1
        push(state, leap_end_s(state, replica_id), STEP_END, replica_id, replica.version)
