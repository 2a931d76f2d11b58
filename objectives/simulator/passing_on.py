"""From the pool that computes a prompt to the one that decodes: places, blocks and phases.

How the KV gets there is in `transfer.py` (whole, at the prompt's end) and `handoff.py` (in parts).
"""

from __future__ import annotations

from objectives.simulator.cache import release
from objectives.simulator.events import push
from objectives.simulator.handoff import is_sent, take_place
from objectives.simulator.jit import compiled
from objectives.simulator.leaps import interrupt, join
from objectives.simulator.routing import route_decode
from objectives.simulator.state import DECODING, HANDED_OFF, KV_ARRIVED, NONE, State


@compiled
def ask_decode_pool(state: State, replica_id: int) -> None:
    """Requests just admitted here ask for their places in the decode pool."""
    replica = state.replicas[replica_id]
    for rank_id in range(replica.first_rank, replica.first_rank + state.pools[replica.pool].ranks):
        rank = state.ranks[rank_id]
        for place in range(rank.seats_start, rank.seats_start + rank.running):
            request_id = state.seats[place]
            request = state.requests[request_id]
            if request.decode_rank == NONE and request.output > 1:
                request.source_rank = rank_id
                request.decode_rank = route_decode(state, len(state.pools) - 1)
                state.ranks[request.decode_rank].outstanding += 1
                join(state, request.decode_rank, request_id)


@compiled
def hand_off(state: State, rank_id: int, request_id: int) -> None:
    """Pass a prefilled request to the decode pool; its KV stays here until it has been moved."""
    request = state.requests[request_id]
    request.phase = HANDED_OFF
    request.source_rank = rank_id
    request.source_shared = request.shared_blocks
    request.source_private = request.private_blocks
    request.shared_blocks = 0
    request.private_blocks = 0
    if request.decode_rank != NONE:
        if request.decode_admitted_s >= 0:
            take_place(state, request_id)
            end_hand_off(state, request_id)
            if state.pools[state.ranks[request.rank].pool].admission_steps > 1:
                interrupt(state, state.ranks[request.rank].replica)  # it has a seat less idle
        return
    request.rank = route_decode(state, len(state.pools) - 1)
    state.ranks[request.rank].outstanding += 1
    join(state, request.rank, request_id)


@compiled
def end_hand_off(state: State, request_id: int) -> None:
    """If all KV of a request that was sent in parts is there, it decodes a latency later."""
    if is_sent(state, request_id):
        clock = state.clock[0]
        push(state, clock.now_s + clock.transfer_latency_s, KV_ARRIVED, request_id, 0)
        release_source(state, request_id)


@compiled
def release_source(state: State, request_id: int) -> None:
    """The rank that computed a prompt is rid of its KV."""
    request = state.requests[request_id]
    rank_id = request.source_rank
    release(state, rank_id, request_id, request.source_shared, request.source_private)
    state.ranks[rank_id].outstanding -= 1
    interrupt(state, state.ranks[rank_id].replica)


@compiled
def start_decoding(state: State, request_id: int) -> None:
    """The KV of a request has arrived in the decode pool, which has its first token."""
    request = state.requests[request_id]
    now_s = state.clock[0].now_s
    request.phase = DECODING
    request.usable_s = now_s
    request.first_token_s = now_s
    request.last_token_s = now_s
    interrupt(state, state.ranks[request.rank].replica)
