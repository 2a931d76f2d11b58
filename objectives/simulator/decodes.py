"""The tokens that decoding requests come by, and the KV blocks for them."""

from __future__ import annotations

from typing import Any

from objectives.simulator.cache import blocks_for, room_tokens, take_blocks
from objectives.simulator.gaps import count_gaps, gap_bin, leap_seconds
from objectives.simulator.jit import compiled
from objectives.simulator.state import DECODING, NONE, State


@compiled
def set_pace(state: State, request_id: int) -> None:
    """Spread the tokens that a request lacks over its steps, of which it needs no more than those.

    A preemption may have given it a token without a step.
    """
    request = state.requests[request_id]
    lacking = request.output - request.generated
    request.steps_left = min(request.steps_left, lacking)
    request.pace_tokens, request.pace_steps, request.pace_rest = lacking, request.steps_left, 0


@compiled
def tokens_in(request: Any, steps: int) -> int:
    """Whole tokens a decoding request (a record) comes by in its next `steps` steps."""
    if request.pace_steps == request.pace_tokens:
        return steps
    return int((request.pace_rest + request.pace_tokens * steps) // request.pace_steps)


@compiled
def advance_decodes(state: State, replica_id: int, flight: int, steps: int) -> None:
    """Give each decoding request of a micro-batch its `steps` tokens and the blocks for them."""
    replica = state.replicas[replica_id]
    clock = state.clock[0]
    now_s = clock.now_s
    after_first_s = leap_seconds(replica.leap_first_s, replica.leap_slope_s, steps)
    after_first_s -= replica.leap_first_s
    decodes, tokens = 0, 0
    gap_s, gap_place = -1.0, 0
    requests, seats = state.requests, state.seats
    pool = state.pools[replica.pool]
    for rank_id in range(replica.first_rank, replica.first_rank + pool.ranks):
        rank = state.ranks[rank_id]
        for place in range(rank.seats_start, rank.seats_start + rank.running):
            request = requests[seats[place]]
            if request.flight != flight or request.phase != DECODING:
                continue
            own_gap_s = now_s - after_first_s - request.last_token_s
            if own_gap_s != gap_s:  # else as of the request before it, which is mostly so
                gap_s, gap_place = own_gap_s, gap_bin(own_gap_s)
            clock.gap_seconds += gap_s
            state.gaps[gap_place] += 1
            request.last_token_s = now_s
            tokens += give_tokens(state, rank_id, seats[place], steps, steps - 1)
            request.flight = NONE
            decodes += 1
    if steps > 1 and decodes > 0:
        second_s = replica.leap_first_s + replica.leap_slope_s
        count_gaps(state, second_s, replica.leap_slope_s, steps - 1, decodes)
    replica.decode_tokens += tokens
    replica.decode_request_steps += decodes * steps
    replica.request_steps += decodes * steps


@compiled
def give_tokens(state: State, rank_id: int, request_id: int, steps: int, further: int) -> int:
    """Give a request the tokens of `steps` steps, and KV blocks for `further` after the first.

    Those of the first one it has. Returns the tokens.
    """
    clock, request = state.clock[0], state.requests[request_id]
    pool, block = state.pools[state.ranks[rank_id].pool], state.clock[0].block_tokens
    lacking = tokens_in(request, further) + pool.verified
    lacking -= room_tokens(request, pool.fixed_blocks, block, clock.slot_tokens)
    if lacking > 0:
        growth = blocks_for(lacking, block)
        take_blocks(state, rank_id, growth)
        request.private_blocks += growth
    given = tokens_in(request, steps)
    rest = request.pace_rest + request.pace_tokens * steps
    request.pace_rest = rest - given * request.pace_steps
    request.computed += given
    request.generated += given
    request.steps_left -= steps
    request.decode_steps += steps
    return given
