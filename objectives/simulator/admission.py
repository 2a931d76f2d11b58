"""Whether a waiting request may be let in, and when a replica looks at its waiting queues.

It looks before every step by default. With `admission_steps` above 1 running requests go on alone
between two looks, so that prompts come in bundles and interrupt decoding less often:

- SGLang (`--scheduler-recv-interval`) takes requests in every so many decode steps, whether any
  wait or not; at once after a prefill step and when nothing runs.
- TensorRT-LLM (`attention_dp_config`, `enable_balance`) holds prompts back until every attention
  data-parallel rank has one, so that all prefill in the same step, but at most `timeout_iters`
  steps; not where a rank runs nothing. That is `admission_together`.
"""

from __future__ import annotations

from objectives.simulator.cache import available_blocks, blocks_for, matched_blocks
from objectives.simulator.jit import compiled
from objectives.simulator.state import SWAPPED, State


@compiled
def may_admit(state: State, rank_id: int) -> bool:
    """Whether the first waiting request of a rank would be admitted now."""
    rank = state.ranks[rank_id]
    if rank.waiting == 0 or rank.running + rank.reserved >= state.pools[rank.pool].seats:
        return False
    request_id = rank.queue_head
    found, below, idle = 0, 0, 0
    if state.requests[request_id].phase == SWAPPED:
        if state.requests[request_id].fetches > 0:
            return False  # its KV is still on the way out
    else:
        found, below, idle = matched_blocks(state, rank_id, request_id)
    needed = admission_blocks(state, rank_id, request_id, found, below)
    pool = state.pools[rank.pool]
    left = available_blocks(state, rank_id) - needed - idle * pool.blocks_per_slot
    return bool(left >= (pool.watermark_blocks if rank.running > 0 else 0))


@compiled
def is_short_of_kv(state: State, replica_id: int) -> bool:
    """Whether a request waits on a rank that has a seat for it, but not the KV blocks."""
    replica = state.replicas[replica_id]
    seats = state.pools[replica.pool].seats
    for rank_id in range(replica.first_rank, replica.first_rank + state.pools[replica.pool].ranks):
        rank = state.ranks[rank_id]
        if rank.waiting > 0 and rank.running < seats and not may_admit(state, rank_id):
            return True
    return False


@compiled
def admission_blocks(state: State, rank_id: int, request_id: int, found: int, below: int) -> int:
    """Blocks a waiting request needs: its prompt beyond the cached part, and fetched blocks."""
    pool = state.pools[state.ranks[rank_id].pool]
    clock = state.clock[0]
    tokens = state.requests[request_id].target - found * clock.slot_tokens
    private = blocks_for(tokens, clock.block_tokens) + pool.fixed_blocks
    return int(private + below * pool.blocks_per_slot)


@compiled
def looks_now(state: State, replica_id: int) -> bool:
    """Whether the replica looks at its queues before the step it is about to begin."""
    replica = state.replicas[replica_id]
    due = replica.begun_steps >= state.pools[replica.pool].admission_steps
    return bool(due or looks_early(state, replica_id))


@compiled
def looks_early(state: State, replica_id: int) -> bool:
    """Whether it looks although its steps are not over."""
    replica = state.replicas[replica_id]
    pool = state.pools[replica.pool]
    together = pool.admission_together == 1
    for rank_id in range(replica.first_rank, replica.first_rank + pool.ranks):
        if state.ranks[rank_id].running == 0:
            return True
        if together and not may_admit(state, rank_id):
            together = False
    return bool(together)


@compiled
def count_begun(state: State, replica_id: int, chunks: bool) -> None:
    """Count the step just begun; after one with prompts a replica that polls looks again."""
    replica = state.replicas[replica_id]
    pool = state.pools[replica.pool]
    replica.begun_steps += 1
    if chunks and pool.admission_together == 0:
        replica.begun_steps = pool.admission_steps


@compiled
def steps_to_look(state: State, replica_id: int, least: int) -> int:
    """Steps of the leap under way before the first look that is due after `least` of them."""
    replica = state.replicas[replica_id]
    every = state.pools[replica.pool].admission_steps
    first = every - replica.begun_steps + 1
    rounds = max(0, -((first - least) // every))
    return int(first + rounds * every)


@compiled
def count_leapt(state: State, replica_id: int, further: int) -> None:
    """Count the steps of a leap after its first, with the looks in vain between them."""
    replica = state.replicas[replica_id]
    every = state.pools[replica.pool].admission_steps
    if replica.leap_looks == 1:
        replica.begun_steps = 1
    else:
        replica.begun_steps = (replica.begun_steps - 1 + further) % every + 1
