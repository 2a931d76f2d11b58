"""How far a decode leap may go.

While a step's time is affine in the tokens of context, `k` decode steps take
k t + slope k (k - 1) / 2 seconds and are gone through in one event.
"""

from __future__ import annotations

import math

from objectives.simulator.cache import available_blocks, blocks_for, room_tokens
from objectives.simulator.decodes import tokens_in
from objectives.simulator.jit import compiled
from objectives.simulator.state import LRU, NONE, State
from objectives.simulator.steps import (
    batch_size,
    other_side,
    own_seconds,
    rank_attention,
    slowest_attention,
)

_UNLIMITED = 1 << 40


@compiled
def leap_limit(state: State, replica_id: int, flight: int) -> int:
    """Decode steps that may be taken as one, at least 1.

    A leap ends where a request ends, a window fills, another rank becomes the slowest, the other
    side of a split decode does, or blocks run out.
    """
    replica = state.replicas[replica_id]
    limit = affine_limit(state, replica_id, flight)
    for rank_id in range(replica.first_rank, replica.first_rank + state.pools[replica.pool].ranks):
        limit = _blocks_limit(state, rank_id, flight, limit)
    return max(1, limit)


@compiled
def affine_limit(state: State, replica_id: int, flight: int) -> int:
    """Decode steps of a micro-batch whose times rise evenly, a request ending in the last one."""
    replica = state.replicas[replica_id]
    pool = state.pools[replica.pool]
    first, ranks = replica.first_rank, pool.ranks
    limit = _UNLIMITED
    if pool.split_layers > 0:
        limit = _ping_pong_limit(state, replica_id, flight)
    for rank_id in range(first, first + ranks):
        limit = min(limit, _requests_limit(state, rank_id, flight))
    for stage in range(pool.stages):
        slowest_s, slope_s = slowest_attention(state, replica_id, flight, stage)
        for rank_id in range(first, first + ranks):
            seconds, rank_slope_s = rank_attention(state, rank_id, flight, stage)
            if rank_slope_s > slope_s:
                crossing = math.floor((slowest_s - seconds) / (rank_slope_s - slope_s))
                limit = min(limit, int(crossing) + 1)
    return limit


@compiled
def _ping_pong_limit(state: State, replica_id: int, flight: int) -> int:
    """Decode steps until another side, or the way round, sets the time of a split step."""
    replica = state.replicas[replica_id]
    own_s, slope_s = own_seconds(state, replica_id, flight, 0)
    tokens, _, _ = batch_size(state, replica_id)
    other_s, around_s = other_side(state, replica_id, -(-tokens // replica.parts))
    if slope_s <= 0.0:
        return _UNLIMITED
    parts, turn_s = replica.parts, float("inf")
    if own_s < other_s:
        turn_s = other_s
    if own_s < parts * other_s - around_s:
        turn_s = min(turn_s, parts * other_s - around_s)
    if parts > 1 and own_s < around_s / (parts - 1):
        turn_s = min(turn_s, around_s / (parts - 1))
    if turn_s == float("inf"):
        return _UNLIMITED
    return int(min(float(_UNLIMITED), math.floor((turn_s - own_s) / slope_s) + 1.0))


@compiled
def _requests_limit(state: State, rank_id: int, flight: int) -> int:
    rank = state.ranks[rank_id]
    window = state.pools[rank.pool].window
    limit = _UNLIMITED
    step = state.pools[rank.pool].table_tokens
    if step > 0 and rank.batch_decodes > 0:  # until the mean context enters the next bucket
        context = int(rank.batch_context) // rank.batch_decodes
        limit = -(-context // step) * step - context + 1
    requests, seats = state.requests, state.seats
    for place in range(rank.seats_start, rank.seats_start + rank.running):
        request = requests[seats[place]]
        if request.flight == flight:
            limit = min(limit, request.steps_left)
            if request.computed + 1 < window:
                to_come = (window - request.computed - 1) * request.pace_steps - request.pace_rest
                limit = min(limit, to_come // request.pace_tokens + 1)
    return limit


@compiled
def _blocks_limit(state: State, rank_id: int, flight: int, limit: int) -> int:
    """The most steps, up to `limit`, whose KV blocks the rank can supply without preempting."""
    available = blocks_within(state, rank_id)
    if state.pools[state.ranks[rank_id].pool].verified == 1:
        return _steps_within(state, rank_id, flight, available, limit)
    if growth_of(state, rank_id, flight, limit) <= available:
        return limit
    low, high = 1, limit  # one step's blocks are taken already
    while high - low > 1:
        middle = (low + high) >> 1
        if growth_of(state, rank_id, flight, middle) <= available:
            low = middle
        else:
            high = middle
    return low


@compiled
def blocks_within(state: State, rank_id: int) -> int:
    """KV blocks that a leap may take.

    Evicting cached blocks ends it too where others would notice when it happens: it may
    change what a waiting request needs (a cached partial block takes more memory than its tokens
    would), and blocks that move down take a share of the links.
    """
    clock = state.clock[0]
    rank = state.ranks[rank_id]
    pool = state.pools[rank.pool]
    watched = rank.waiting > 0 and rank.running < pool.seats
    moves_down = rank.host_tier != NONE or rank.ssd_tier != NONE or clock.store_tier != NONE
    if watched or (moves_down and clock.retention == LRU):
        return int(pool.capacity_blocks - rank.used_blocks)
    return available_blocks(state, rank_id)


@compiled
def _steps_within(state: State, rank_id: int, flight: int, available: int, limit: int) -> int:
    """The most steps, from 1 to `limit`, that need no more than `available` further blocks.

    For requests that come by one token a step. One that has room for `r` more needs a block at
    step r + 1 and after every block's tokens again. One step's blocks are taken already, so that
    1 <= r, and mostly r <= one block; then `blocks` rounds of one block each and `rest` further
    blocks are what there is.
    """
    ends, requests, seats = state.block_ends, state.requests, state.seats
    rank, clock = state.ranks[rank_id], state.clock[0]
    fixed, block, slot = state.pools[rank.pool].fixed_blocks, clock.block_tokens, clock.slot_tokens
    ends[:] = 0
    growing = 0
    for place in range(rank.seats_start, rank.seats_start + rank.running):
        request = requests[seats[place]]
        if request.flight == flight:
            ends[min(block, room_tokens(request, fixed, block, slot))] += 1
            growing += 1
    if growing == 0:
        return limit
    blocks, rest = divmod(available, growing)
    room = 0
    while room < block and ends[room + 1] <= rest:
        room += 1
        rest -= ends[room]
    return int(max(1, min(limit, blocks * block + min(room + 1, block))))


@compiled
def growth_of(state: State, rank_id: int, flight: int, steps: int) -> int:
    """Blocks that `steps` steps of a micro-batch need beyond those its requests have."""
    requests, seats, rank = state.requests, state.seats, state.ranks[rank_id]
    pool, clock = state.pools[rank.pool], state.clock[0]
    growth = 0
    for place in range(rank.seats_start, rank.seats_start + rank.running):
        request = requests[seats[place]]
        if request.flight == flight:
            room = room_tokens(request, pool.fixed_blocks, clock.block_tokens, clock.slot_tokens)
            tokens = tokens_in(request, steps - 1) + pool.verified
            growth += blocks_for(tokens - room, clock.block_tokens)
    return growth
