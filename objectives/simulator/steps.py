"""How long a step takes.

Between two scheduling decisions the decoding batch of a replica does not change and a step's time
is affine in the tokens of context; `leap_limits.py` finds how many steps that holds for.
"""

from __future__ import annotations

import math

from objectives.simulator.jit import compiled
from objectives.simulator.prompt_costs import chunk_seconds, table_at
from objectives.simulator.state import (
    DECODE_BASE_S,
    DECODE_REQUEST_S,
    DECODE_TOKEN_S,
    DECODE_WINDOW_TOKEN_S,
    DECODING,
    EAGER_S,
    LAUNCH_S,
    State,
)


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
    own_s, slope_s = own_seconds(state, replica_id, flight, stage)
    tokens, requests, chunks = batch_size(state, replica_id)
    of_part = -(-tokens // replica.parts)
    experts_s = table_at(state.grid[replica.pool], state.expert_s[replica.pool, stage], of_part)
    seconds = own_s + experts_s
    if pool.split_layers > 0:
        other_s, around_s = other_side(state, replica_id, of_part)
        parts, layers = replica.parts, pool.split_layers
        replica.leap_own_s, replica.leap_own_slope_s = own_s * parts, slope_s * parts
        replica.leap_experts_s = experts_s * parts
        seconds, gain = _ping_pong(own_s, other_s, around_s, parts, layers)
        slope_s *= gain
    if chunks > 0:
        seconds = max(seconds, state.coefficients[replica.pool, stage, LAUNCH_S])
    if stage == 0:
        seconds += pool.host_s + pool.request_s * requests
    return seconds, slope_s


@compiled
def batch_size(state: State, replica_id: int) -> tuple[int, int, int]:
    """Tokens, requests and chunks of a micro-batch over all ranks."""
    replica = state.replicas[replica_id]
    tokens, requests, chunks = 0, 0, 0
    for rank_id in range(replica.first_rank, replica.first_rank + state.pools[replica.pool].ranks):
        rank = state.ranks[rank_id]
        tokens += rank.batch_tokens
        requests += rank.batch_decodes + rank.batch_chunks
        chunks += rank.batch_chunks
    return tokens, requests, chunks


@compiled
def own_seconds(state: State, replica_id: int, flight: int, stage: int) -> tuple[float, float]:
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
    attention_s, slope_s = slowest_attention(state, replica_id, flight, stage)
    seconds = table_at(state.grid[pool_id], state.token_s[pool_id, stage], tokens) + attention_s
    if chunks > 0:
        seconds += state.coefficients[pool_id, stage, EAGER_S]
    return seconds, slope_s


@compiled
def other_side(state: State, replica_id: int, tokens: int) -> tuple[float, float]:
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
def slowest_attention(
    state: State, replica_id: int, flight: int, stage: int
) -> tuple[float, float]:
    """Attention seconds of the slowest rank and their slope; of equals, the steepest."""
    replica = state.replicas[replica_id]
    slowest_s, slope_s = 0.0, 0.0
    for rank_id in range(replica.first_rank, replica.first_rank + state.pools[replica.pool].ranks):
        if state.ranks[rank_id].batch_tokens == 0:
            continue
        seconds, rank_slope_s = rank_attention(state, rank_id, flight, stage)
        if seconds > slowest_s or (seconds == slowest_s and rank_slope_s > slope_s):
            slowest_s, slope_s = seconds, rank_slope_s
    return slowest_s, slope_s


@compiled
def rank_attention(state: State, rank_id: int, flight: int, stage: int) -> tuple[float, float]:
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
