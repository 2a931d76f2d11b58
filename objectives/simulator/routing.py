"""Which rank a request goes to."""

from __future__ import annotations

from objectives.simulator.cache import matched_blocks
from objectives.simulator.jit import compiled
from objectives.simulator.state import NONE, PREFIX_AFFINITY, ROUND_ROBIN, SHORTEST_QUEUE, State


@compiled
def route(state: State, request_id: int) -> int:
    """The rank that gets a request that has just arrived, or NONE where there is no room.

    The choice of the policy counts if its queue has room; else, where the plan says so, the least
    loaded rank of the same pool whose queue has.
    """
    rank_id = _chosen(state, request_id)
    clock = state.clock[0]
    if clock.queue_limit == 0 or state.ranks[rank_id].waiting < clock.queue_limit:
        return rank_id
    if clock.try_others == 0:
        return NONE
    return _least_loaded_with_room(state, state.ranks[rank_id].pool)


@compiled
def _least_loaded_with_room(state: State, pool_id: int) -> int:
    pool = state.pools[pool_id]
    first = state.replicas[pool.first_replica].first_rank
    best, least = NONE, 1 << 40
    for rank_id in range(first, first + pool.replicas * pool.ranks):
        rank = state.ranks[rank_id]
        if rank.waiting < state.clock[0].queue_limit and rank.outstanding < least:
            best, least = rank_id, rank.outstanding
    return int(best)


@compiled
def _chosen(state: State, request_id: int) -> int:
    """The rank that the policy chooses, whether it has room or not.

    With a midfill pool, a turn of which some rank there can reach the beginning goes to the one
    that reaches the most, if no more than `midfill_tokens` are left to compute. All others go to
    the first pool.
    """
    if len(state.pools) == 3:
        rank_id = _best_prefix(state, 1, request_id)
        found, _, _ = matched_blocks(state, rank_id, request_id)
        uncached = state.requests[request_id].input - found * state.clock[0].slot_tokens
        if found > 0 and uncached <= state.clock[0].midfill_tokens:
            return rank_id
    return _route_to(state, 0, request_id)


@compiled
def _route_to(state: State, pool_id: int, request_id: int) -> int:
    """The rank of a pool that gets a request.

    round-robin: the replicas in turn. least-loaded: the replica with the fewest requests on it.
    shortest-queue: the one with the fewest requests not yet admitted.
    prefix-affinity: the rank that holds the most of the prompt's prefix, among those no more than
    half above the mean load and two requests; ties go to the less loaded. Within a replica the
    least loaded rank is taken.
    """
    clock = state.clock[0]
    if clock.router == ROUND_ROBIN:
        replica = clock.turn % state.pools[pool_id].replicas
        clock.turn += 1
        return _least_loaded_rank(state, state.pools[pool_id].first_replica + replica)
    if clock.router == PREFIX_AFFINITY:
        return _best_prefix(state, pool_id, request_id)
    return _least_loaded(state, pool_id)


@compiled
def route_decode(state: State, pool_id: int) -> int:
    """The decode rank that takes over a prefilled request: in turn, or the least loaded."""
    clock = state.clock[0]
    if clock.router == ROUND_ROBIN:
        replica = clock.decode_turn % state.pools[pool_id].replicas
        clock.decode_turn += 1
        return _least_loaded_rank(state, state.pools[pool_id].first_replica + replica)
    return _least_loaded(state, pool_id)


@compiled
def _least_loaded(state: State, pool_id: int) -> int:
    pool = state.pools[pool_id]
    best, least = pool.first_replica, 1 << 40
    for replica_id in range(pool.first_replica, pool.first_replica + pool.replicas):
        load = _replica_load(state, replica_id)
        if load < least:
            best, least = replica_id, load
    return _least_loaded_rank(state, best)


@compiled
def _replica_load(state: State, replica_id: int) -> int:
    first = state.replicas[replica_id].first_rank
    load = 0
    queues = state.clock[0].router == SHORTEST_QUEUE
    for rank_id in range(first, first + state.pools[state.replicas[replica_id].pool].ranks):
        rank = state.ranks[rank_id]
        load += rank.waiting if queues else rank.outstanding
    return load


@compiled
def _least_loaded_rank(state: State, replica_id: int) -> int:
    first = state.replicas[replica_id].first_rank
    best = first
    for rank_id in range(first, first + state.pools[state.replicas[replica_id].pool].ranks):
        if state.ranks[rank_id].outstanding < state.ranks[best].outstanding:
            best = rank_id
    return int(best)


@compiled
def _best_prefix(state: State, pool_id: int, request_id: int) -> int:
    pool = state.pools[pool_id]
    first = state.replicas[pool.first_replica].first_rank
    ranks = pool.replicas * pool.ranks
    total = 0
    for rank_id in range(first, first + ranks):
        total += state.ranks[rank_id].outstanding
    bound = 1.5 * total / ranks + 2.0
    best, most, least = -1, -1, 1 << 40
    for rank_id in range(first, first + ranks):
        load = state.ranks[rank_id].outstanding
        if load > bound:
            continue
        found, _, _ = matched_blocks(state, rank_id, request_id)
        if found > most or (found == most and load < least):
            best, most, least = rank_id, found, load
    return best
