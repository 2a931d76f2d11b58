"""Prefix blocks on their way from lower tiers into HBM: at admission, or ahead of it.

With the plan's `prefetch` a replica that looks at its queues begins to fetch for those who have to
wait, in their order, so that their prompts can go on as soon as they are admitted. What is fetched
ahead lies in the cache as what was used last, and belongs to nobody: it may be evicted again, so
that nobody waits for ever for room that others keep. In return fetching ahead takes only room that
nobody misses (`has_room`), and each request has one try, the first time that there is some.
"""

from __future__ import annotations

from objectives.simulator.cache import has_room, matched_blocks, pin_ahead, release
from objectives.simulator.flows import start_flow
from objectives.simulator.jit import compiled
from objectives.simulator.state import FETCH, NONE, State


@compiled
def start_fetch(
    state: State, rank_id: int, request_id: int, host: int, ssd: int, store: int
) -> None:
    """Bring so many prefix blocks in from each lower tier, all at once.

    What is fetched layer by layer comes in two flows: the first layer, and the rest.
    """
    rank = state.ranks[rank_id]
    clock = state.clock[0]
    request = state.requests[request_id]
    size = clock.slot_tokens * clock.token_bytes / clock.layers
    rest = size * (clock.layers - 1)
    flows = (host > 0) + (ssd > 0) + (store > 0)
    request.fetches += flows
    if rest > 0:
        request.rests += flows
    if host > 0:
        start_flow(state, FETCH, request_id, rank.host_link, NONE, host * size, host * rest)
    if ssd > 0:
        start_flow(state, FETCH, request_id, rank.ssd_link, NONE, ssd * size, ssd * rest)
    if store > 0:
        way = rank.net_link, clock.store_link
        start_flow(state, FETCH, request_id, way[0], way[1], store * size, store * rest)


@compiled
def may_fetch_ahead(state: State, rank_id: int) -> bool:
    """Whether there is somebody to fetch for and room to do so.

    No more requests are fetched for at a time than the rank has seats. While a replica only
    decodes, nothing comes true here that was not.
    """
    rank = state.ranks[rank_id]
    if rank.untried == NONE or rank.fetching_ahead >= state.pools[rank.pool].seats:
        return False
    return bool(has_room(state, rank_id))


@compiled
def fetch_ahead(state: State, replica_id: int) -> None:
    """Fetch for the waiting requests of a replica that have not had their try."""
    replica = state.replicas[replica_id]
    for rank_id in range(replica.first_rank, replica.first_rank + state.pools[replica.pool].ranks):
        rank = state.ranks[rank_id]
        while may_fetch_ahead(state, rank_id):
            request_id = rank.untried
            rank.untried = state.requests[request_id].next
            found, below, _ = matched_blocks(state, rank_id, request_id)
            if below > 0:
                host, ssd, store = pin_ahead(state, rank_id, request_id, found)
                start_fetch(state, rank_id, request_id, host, ssd, store)
                rank.fetching_ahead += 1
                if host + ssd + store == 0:
                    let_go(state, rank_id, request_id)


@compiled
def let_go(state: State, rank_id: int, request_id: int) -> None:
    """What was fetched ahead for a request is all there, or the request holds it by itself now."""
    request = state.requests[request_id]
    release(state, rank_id, request_id, request.ahead_blocks, 0)
    request.ahead_blocks = 0
    state.ranks[rank_id].fetching_ahead -= 1
