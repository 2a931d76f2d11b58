"""A step ends, or a micro-batch leaves the pipeline: requests get their tokens, and some leave."""

from __future__ import annotations

from objectives.simulator.admission import count_leapt
from objectives.simulator.cache import give_back, share_prompt
from objectives.simulator.clients import end_turn
from objectives.simulator.decodes import advance_decodes, set_pace
from objectives.simulator.gaps import count_gaps, leap_seconds
from objectives.simulator.handoff import send_computed
from objectives.simulator.jit import compiled
from objectives.simulator.leaps import plan_flight_end, wake
from objectives.simulator.passing_on import hand_off
from objectives.simulator.pipeline import leave_flight, settle_rounds
from objectives.simulator.state import DECODING, FINISHED, HANDED_OFF, HELD, NONE, State

# Stands for a micro-batch that nobody is in.
HELD_ONES = -2


@compiled
def end_steps(state: State, replica_id: int) -> None:
    """The steps of a replica end as planned: its leap, or a micro-batch in its pipeline."""
    replica = state.replicas[replica_id]
    if state.pools[replica.pool].stages > 1:
        _end_flight(state, replica_id)
    else:
        _end_step(state, replica_id, 0, replica.leap_steps)


@compiled
def _end_flight(state: State, replica_id: int) -> None:
    """The first micro-batch leaves the pipeline, after those that the leap under way took in."""
    if state.replicas[replica_id].leap_steps > 0:
        settle_rounds(state, replica_id)
    flight = leave_flight(state, replica_id)
    _end_step(state, replica_id, flight, 1)
    if state.replicas[replica_id].flights > 0:
        plan_flight_end(state, replica_id)


@compiled
def _end_step(state: State, replica_id: int, flight: int, steps: int) -> None:
    """Settle what the steps that end now, all of one micro-batch, have done."""
    replica = state.replicas[replica_id]
    pool = state.pools[replica.pool]
    replica.steps += steps
    replica.kv_short_steps += steps * replica.kv_short
    if pool.stages == 1:
        state.batches[replica.pool, replica.batch_requests] += steps
    if steps > 1:
        count_leapt(state, replica_id, steps - 1)
    advance_decodes(state, replica_id, flight, steps)
    for rank_id in range(replica.first_rank, replica.first_rank + pool.ranks):
        if state.ranks[rank_id].running > 0:
            settle_rank(state, rank_id, flight)
    if pool.split_layers > 0:
        own_s, slope_s = replica.leap_own_s, replica.leap_own_slope_s
        replica.work_s += leap_seconds(own_s, slope_s, steps)
        replica.experts_work_s += replica.leap_experts_s * steps
    replica.leap_steps = 0
    replica.flights -= 1
    if replica.flights == 0:
        replica.busy_s += state.clock[0].now_s - replica.busy_since_s
    wake(state, replica_id)


@compiled
def settle_rank(state: State, rank_id: int, flight: int) -> None:
    """End the chunks of a micro-batch and let go of requests that leave.

    Or end the held prompts whose last layers have come: that is looked after between steps.
    """
    rank = state.ranks[rank_id]
    requests, seats = state.requests, state.seats
    kept = rank.seats_start
    for place in range(rank.seats_start, rank.seats_start + rank.running):
        request_id = seats[place]
        request = requests[request_id]
        if flight == HELD_ONES:
            if request.phase == HELD and request.rests == 0:
                rank.held -= 1
                request.usable_s = state.clock[0].now_s
                _end_prompt(state, rank_id, request_id)
        elif request.flight == flight:
            _end_chunk(state, rank_id, request_id)
        if request.phase == DECODING and request.generated >= request.output:
            _finish(state, rank_id, request_id)
        elif request.phase != HANDED_OFF and request.rank == rank_id:
            seats[kept] = request_id
            kept += 1
    rank.running = kept - rank.seats_start


@compiled
def _end_chunk(state: State, rank_id: int, request_id: int) -> None:
    """Add a chunk to the KV; a prompt whose prefix is not all there yet is held at its end."""
    request = state.requests[request_id]
    request.flight = NONE
    request.computed += request.step_tokens
    if request.decode_rank not in (NONE, rank_id):
        request.early_bytes = 0.0
        send_computed(state, request_id)
    replica = state.replicas[state.ranks[rank_id].replica]
    replica.prefill_tokens += request.step_tokens
    replica.request_steps += 1
    if request.computed < request.target:
        return
    if request.rests > 0:
        request.phase, request.usable_s = HELD, float("inf")
        state.ranks[rank_id].held += 1
    else:
        _end_prompt(state, rank_id, request_id)


@compiled
def _end_prompt(state: State, rank_id: int, request_id: int) -> None:
    """The whole prompt is in the KV, which gives the next token."""
    request = state.requests[request_id]
    now_s = state.clock[0].now_s
    share_prompt(state, rank_id, request_id)
    request.generated += 1
    request.phase = DECODING
    set_pace(state, request_id)
    if request.prefilled_s < 0:
        request.prefilled_s = now_s
    if state.pools[state.ranks[rank_id].pool].hands_off == 1 and request.output > 1:
        hand_off(state, rank_id, request_id)
    elif request.first_token_s < 0:
        request.first_token_s = now_s
    else:  # computed again after a preemption
        count_gaps(state, now_s - request.last_token_s, 0.0, 1, 1)
    request.last_token_s = now_s


@compiled
def _finish(state: State, rank_id: int, request_id: int) -> None:
    request = state.requests[request_id]
    give_back(state, rank_id, request_id)
    request.phase = FINISHED
    request.finished_s = state.clock[0].now_s
    state.ranks[rank_id].outstanding -= 1
    end_turn(state, request_id)
