"""How long a step takes, how far a decode leap may go, and what a finished step changes.

Between two scheduling decisions the decoding batch of a replica does not change and a step's time
is affine in the tokens of context, so `k` decode steps take k t + slope k (k - 1) / 2 seconds and
are gone through in one event. `leap_limit` finds how many steps that holds for.
"""

from __future__ import annotations

import math
from typing import Any

from objectives.simulator.cache import available_blocks, blocks_for, room_tokens, take_blocks
from objectives.simulator.jit import compiled
from objectives.simulator.prompt_costs import chunk_seconds, table_at
from objectives.simulator.state import (
    DECODE_BASE_S,
    DECODE_REQUEST_S,
    DECODE_TOKEN_S,
    DECODE_WINDOW_TOKEN_S,
    DECODING,
    EAGER_S,
    GAP_BINS,
    GAP_MAX_S,
    GAP_MIN_S,
    LRU,
    NONE,
    State,
)

_UNLIMITED = 1 << 40


@compiled
def sum_batch(state: State, replica_id: int, flight: int) -> None:
    """Add up what each rank has in a micro-batch, for the functions below."""
    replica = state.replicas[replica_id]
    window = state.pools[replica.pool].window
    busiest, in_step = 1, 0
    step = max(1, state.pools[replica.pool].table_tokens)
    requests, seats = state.requests, state.seats
    for rank_id in range(replica.first_rank, replica.first_rank + state.pools[replica.pool].ranks):
        rank = state.ranks[rank_id]
        decodes, chunks, tokens, prior, squares = 0, 0, 0, 0, 0
        divisible = 0
        pace, context, windowed, growing = 0.0, 0.0, 0.0, 0.0
        for place in range(rank.seats_start, rank.seats_start + rank.running):
            request = requests[seats[place]]
            if request.flight != flight:
                continue
            tokens += request.step_tokens
            if request.phase == DECODING:
                decodes += 1
                own_pace, own_context = 1.0, float(request.computed + 1)
                if request.pace_steps != request.pace_tokens:
                    own_pace = request.pace_tokens / request.pace_steps
                    own_context += request.pace_rest / request.pace_steps
                pace += own_pace
                context += own_context
                windowed += min(own_context, float(window))
                growing += own_pace if request.computed + 1 < window else 0.0
                divisible += 1
            else:
                chunks += 1
                divisible += request.step_tokens
                prior += -(-request.computed // step) * step
                squares += request.step_tokens * request.step_tokens
        rank.batch_decodes, rank.batch_chunks, rank.batch_tokens = decodes, chunks, tokens
        rank.batch_pace, rank.batch_context, rank.batch_windowed = pace, context, windowed
        rank.batch_growing = growing
        rank.batch_prior, rank.batch_squares = prior, squares
        busiest = max(busiest, divisible)
        in_step += decodes + chunks
    replica.batch_requests = in_step
    replica.parts = min(state.pools[replica.pool].micro_batches, busiest)


@compiled
def stage_seconds(state: State, replica_id: int, flight: int, stage: int) -> tuple[float, float]:
    """Seconds a micro-batch spends in a stage, and what each further decode step takes more.

    The second number is the slope along a leap of the rank that is slowest now; it means nothing
    for a micro-batch with chunks.
    """
    replica = state.replicas[replica_id]
    pool = state.pools[replica.pool]
    own_s, slope_s = _own_seconds(state, replica_id, flight, stage)
    tokens, requests = _batch_size(state, replica_id)
    of_part = -(-tokens // replica.parts)
    experts_s = table_at(state.grid[replica.pool], state.expert_s[replica.pool, stage], of_part)
    seconds = own_s + experts_s
    if pool.split_layers > 0:
        other_s, around_s = _other_side(state, replica_id, of_part)
        parts, layers = replica.parts, pool.split_layers
        replica.leap_own_s, replica.leap_own_slope_s = own_s * parts, slope_s * parts
        replica.leap_experts_s = experts_s * parts
        seconds, gain = _ping_pong(own_s, other_s, around_s, parts, layers)
        slope_s *= gain
    if stage == 0:
        seconds += pool.host_s + pool.request_s * requests
    return seconds, slope_s


@compiled
def _batch_size(state: State, replica_id: int) -> tuple[int, int]:
    """Tokens and requests of a micro-batch over all ranks."""
    replica = state.replicas[replica_id]
    tokens, requests = 0, 0
    for rank_id in range(replica.first_rank, replica.first_rank + state.pools[replica.pool].ranks):
        rank = state.ranks[rank_id]
        tokens += rank.batch_tokens
        requests += rank.batch_decodes + rank.batch_chunks
    return tokens, requests


@compiled
def _own_seconds(state: State, replica_id: int, flight: int, stage: int) -> tuple[float, float]:
    """Seconds of one part of a micro-batch without its experts, and their slope along a leap."""
    replica = state.replicas[replica_id]
    pool_id = replica.pool
    busiest, chunks, widest = 0, 0, 0
    for rank_id in range(replica.first_rank, replica.first_rank + state.pools[pool_id].ranks):
        rank = state.ranks[rank_id]
        busiest = max(busiest, rank.batch_tokens)
        widest = max(widest, rank.batch_decodes)
        chunks += rank.batch_chunks
    tokens = -(-busiest // replica.parts)
    if chunks == 0:
        tokens = state.graph_tokens[pool_id, -(-widest // replica.parts)]
    attention_s, slope_s = _slowest_attention(state, replica_id, flight, stage)
    seconds = table_at(state.grid[pool_id], state.token_s[pool_id, stage], tokens) + attention_s
    if chunks > 0:
        seconds += state.coefficients[pool_id, stage, EAGER_S]
    return seconds, slope_s


@compiled
def _other_side(state: State, replica_id: int, tokens: int) -> tuple[float, float]:
    """For one part: the slower of experts and line, and experts with the exchange both ways."""
    pool_id = state.replicas[replica_id].pool
    grid = state.grid[pool_id]
    experts_s = table_at(grid, state.expert_s[pool_id, 0], tokens)
    line_s = table_at(grid, state.line_s[pool_id], tokens)
    exchange_s = table_at(grid, state.exchange_s[pool_id], tokens)
    return max(experts_s, line_s), experts_s + exchange_s


@compiled
def _ping_pong(
    own_s: float, other_s: float, around_s: float, parts: int, layers: int
) -> tuple[float, float]:
    """Seconds of all parts going through all layers, and their slope over `own_s`.

    Of equals the steeper counts, which is what comes next along a leap.
    """
    slowest_s, rising = max(own_s, other_s), 1.0 if own_s >= other_s else 0.0
    period_s, gain = parts * slowest_s, parts * rising
    way_s = own_s + around_s
    if way_s > period_s or (way_s == period_s and gain < 1.0):
        period_s, gain = way_s, 1.0
    seconds = ((layers - 1) * period_s + way_s + (parts - 1) * slowest_s) / layers
    return seconds, ((layers - 1) * gain + 1.0 + (parts - 1) * rising) / layers


@compiled
def _ping_pong_limit(state: State, replica_id: int, flight: int) -> int:
    """Decode steps until another side, or the way round, sets the time of a split step."""
    replica = state.replicas[replica_id]
    own_s, slope_s = _own_seconds(state, replica_id, flight, 0)
    tokens, _ = _batch_size(state, replica_id)
    other_s, around_s = _other_side(state, replica_id, -(-tokens // replica.parts))
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
def _slowest_attention(
    state: State, replica_id: int, flight: int, stage: int
) -> tuple[float, float]:
    """Attention seconds of the slowest rank and their slope; of equals, the steepest."""
    replica = state.replicas[replica_id]
    slowest_s, slope_s = 0.0, 0.0
    for rank_id in range(replica.first_rank, replica.first_rank + state.pools[replica.pool].ranks):
        if state.ranks[rank_id].batch_tokens == 0:
            continue
        seconds, rank_slope_s = _rank_attention(state, rank_id, flight, stage)
        if seconds > slowest_s or (seconds == slowest_s and rank_slope_s > slope_s):
            slowest_s, slope_s = seconds, rank_slope_s
    return slowest_s, slope_s


@compiled
def _rank_attention(state: State, rank_id: int, flight: int, stage: int) -> tuple[float, float]:
    """Attention seconds of a rank's part of a micro-batch, and their slope along a leap."""
    rank = state.ranks[rank_id]
    if state.pools[rank.pool].table_tokens > 0:
        return _tabled_attention(state, rank_id), 0.0
    costs = state.coefficients[rank.pool, stage]
    parts = state.replicas[rank.replica].parts
    base_s, seconds = 0.0, 0.0
    if rank.batch_decodes > 0:
        base_s = costs[DECODE_BASE_S]
        seconds += rank.batch_decodes * costs[DECODE_REQUEST_S]
        seconds += rank.batch_context * costs[DECODE_TOKEN_S]
        seconds += rank.batch_windowed * costs[DECODE_WINDOW_TOKEN_S]
    if rank.batch_chunks > 0:
        window = state.pools[rank.pool].window
        for place in range(rank.seats_start, rank.seats_start + rank.running):
            request = state.requests[state.seats[place]]
            if request.flight == flight and request.phase != DECODING:
                seconds += chunk_seconds(costs, request.step_tokens, request.computed, window)
    slope = rank.batch_pace * costs[DECODE_TOKEN_S]
    slope += rank.batch_growing * costs[DECODE_WINDOW_TOKEN_S]
    return base_s + seconds / parts, slope / parts


@compiled
def _tabled_attention(state: State, rank_id: int) -> float:
    """Attention seconds of a rank's part of a micro-batch from measured tables."""
    rank = state.ranks[rank_id]
    pool = state.pools[rank.pool]
    seconds = 0.0
    if rank.batch_decodes > 0:
        mixed = rank.batch_chunks > 0
        table = state.mixed_table_s[rank.pool] if mixed else state.decode_table_s[rank.pool]
        requests = min(rank.batch_decodes, table.shape[0] - 1)
        context = int(rank.batch_context) // rank.batch_decodes
        bucket = min(-(-context // pool.table_tokens), table.shape[1] - 1)
        seconds += table[requests, bucket] * _factor(rank.batch_decodes, pool.several_decodes)
    if rank.batch_chunks > 0:
        table = state.prefill_table_s[rank.pool]
        bucket = min(rank.batch_prior // pool.table_tokens, table.shape[0] - 1)
        new = min(round(math.sqrt(rank.batch_squares)), table.shape[1] - 1)
        seconds += table[bucket, new] * _factor(rank.batch_chunks, pool.several_chunks)
    return float(seconds)


@compiled
def _factor(requests: int, several: float) -> float:
    return several if requests > 1 else 1.0


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
        slowest_s, slope_s = _slowest_attention(state, replica_id, flight, stage)
        for rank_id in range(first, first + ranks):
            seconds, rank_slope_s = _rank_attention(state, rank_id, flight, stage)
            if rank_slope_s > slope_s:
                crossing = math.floor((slowest_s - seconds) / (rank_slope_s - slope_s))
                limit = min(limit, int(crossing) + 1)
    return limit


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
def leap_seconds(first_s: float, slope_s: float, steps: int) -> float:
    """Seconds of `steps` steps of which the first takes `first_s` and each next one more."""
    return steps * first_s + slope_s * (steps * (steps - 1) / 2)


@compiled
def advance_decodes(state: State, replica_id: int, flight: int, steps: int) -> None:
    """Give each decoding request of a micro-batch its `steps` tokens and the blocks for them."""
    replica = state.replicas[replica_id]
    now_s = state.clock[0].now_s
    after_first_s = leap_seconds(replica.leap_first_s, replica.leap_slope_s, steps)
    after_first_s -= replica.leap_first_s
    decodes, tokens = 0, 0
    requests, seats = state.requests, state.seats
    pool = state.pools[replica.pool]
    for rank_id in range(replica.first_rank, replica.first_rank + pool.ranks):
        rank = state.ranks[rank_id]
        for place in range(rank.seats_start, rank.seats_start + rank.running):
            request = requests[seats[place]]
            if request.flight != flight or request.phase != DECODING:
                continue
            count_gaps(state, now_s - after_first_s - request.last_token_s, 0.0, 1, 1)
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


@compiled
def count_gaps(state: State, first_s: float, slope_s: float, gaps: int, weight: int) -> None:
    """Count `gaps` rising inter-token gaps in their bins, each `weight` times."""
    state.clock[0].gap_seconds += leap_seconds(first_s, slope_s, gaps) * weight
    done = 0
    while done < gaps:
        gap_bin = _gap_bin(first_s + slope_s * done)
        same = gaps - done
        if slope_s > 0.0:
            upto = math.ceil((_gap_floor_s(gap_bin + 1) - first_s) / slope_s) - done
            same = min(same, max(1, int(upto)))
        state.gaps[gap_bin] += same * weight
        done += same


@compiled
def _gap_bin(gap_s: float) -> int:
    if gap_s <= GAP_MIN_S:
        return 0
    scale = GAP_BINS / math.log(GAP_MAX_S / GAP_MIN_S)
    return min(GAP_BINS - 1, int(math.log(gap_s / GAP_MIN_S) * scale))


@compiled
def _gap_floor_s(gap_bin: int) -> float:
    """The smallest gap a bin counts."""
    return float(GAP_MIN_S * math.exp(gap_bin * math.log(GAP_MAX_S / GAP_MIN_S) / GAP_BINS))
