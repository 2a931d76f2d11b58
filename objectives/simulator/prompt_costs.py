"""What prompts cost: the attention of a chunk, and a whole prompt that has a replica to itself."""

from __future__ import annotations

from objectives.simulator.jit import compiled
from objectives.simulator.state import (
    CHUNK_TOKEN_S,
    EAGER_S,
    LAUNCH_S,
    PAIR_S,
    PREFILL_BASE_S,
    READ_S,
    WINDOW_PAIR_S,
    Floats,
    Ints,
    State,
)


@compiled
def prompt_seconds(state: State, pool_id: int, cached: int, tokens: int) -> float:
    """Seconds of a prompt up to `tokens` tokens of which `cached` are there, alone in its steps.

    With attention tables their entries for one chunk count.
    """
    pool, grid = state.pools[pool_id], state.grid[pool_id]
    seconds = 0.0
    while cached < tokens:
        new = min(pool.step_tokens, tokens - cached)
        seconds += pool.host_s + pool.request_s
        for stage in range(pool.stages):
            costs = state.coefficients[pool_id, stage]
            stage_s = table_at(grid, state.token_s[pool_id, stage], new)
            stage_s += table_at(grid, state.expert_s[pool_id, stage], new)
            stage_s += costs[EAGER_S]
            if pool.table_tokens > 0:
                table = state.prefill_table_s[pool_id]
                bucket = min(-(-cached // pool.table_tokens), table.shape[0] - 1)
                stage_s += table[bucket, min(new, table.shape[1] - 1)]
            else:
                stage_s += chunk_seconds(costs, new, cached, pool.window)
            seconds += max(stage_s, costs[LAUNCH_S])
        cached += new
    return float(seconds)


@compiled
def chunk_seconds(costs: Floats, new: int, cached: int, window: int) -> float:
    """Attention seconds of a chunk of `new` tokens behind `cached` ones."""
    pairs = new * cached + new * (new + 1) / 2
    compute_s = pairs * costs[PAIR_S] + windowed_pairs(new, cached, window) * costs[WINDOW_PAIR_S]
    own_s = costs[PREFILL_BASE_S] + new * costs[CHUNK_TOKEN_S]
    return float(own_s + max(compute_s, (cached + new) * costs[READ_S]))


@compiled
def windowed_pairs(new: int, cached: int, window: int) -> float:
    """Query-key pairs of a causal chunk when each query sees at most `window` keys."""
    rising = min(new, max(0, window - cached))  # queries that still see fewer than a window
    return rising * cached + rising * (rising + 1) / 2 + (new - rising) * window


@compiled
def table_at(grid: Ints, table: Floats, tokens: int) -> float:
    """Linear interpolation of a table over the grid; its ends are kept beyond it."""
    last = len(grid) - 1
    if tokens >= grid[last]:
        return float(table[last])
    low, high = 0, last
    while high - low > 1:
        middle = (low + high) >> 1
        if grid[middle] <= tokens:
            low = middle
        else:
            high = middle
    share = (tokens - grid[low]) / (grid[high] - grid[low])
    return float(table[low] + share * (table[high] - table[low]))
