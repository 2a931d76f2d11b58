"""KV sent to the decode pool while its prompt is still computed.

A request asks for its place in the decode pool as soon as it is admitted to the pool that computes
its prompt. Once it has that place, what is computed is sent: by chunk, each chunk at its end; by
layer, the layers of a chunk but its last one from the moment its first one is computed, taken to
be evenly spread over the step, and the last one at its end. A request sends one part after the
other, and what has come meanwhile together. So the last layer, or the last chunk, is always sent
after the prompt's end, and nothing sooner than it is computed.
"""

from __future__ import annotations

from objectives.simulator.cache import blocks_for, take_blocks
from objectives.simulator.flows import NOTHING_BYTES, start_flow
from objectives.simulator.jit import compiled
from objectives.simulator.state import (
    HAND_OFF_PART,
    HANDED_OFF,
    PREFILLING,
    RECEIVING,
    State,
)


@compiled
def reserve(state: State, rank_id: int, request_id: int) -> None:
    """Set KV blocks and a seat of a decode rank aside for a request whose prompt is elsewhere."""
    pool = state.pools[state.ranks[rank_id].pool]
    request = state.requests[request_id]
    private = blocks_for(request.target, state.clock[0].block_tokens) + pool.fixed_blocks
    take_blocks(state, rank_id, private)
    request.decode_private = private
    request.decode_admitted_s = state.clock[0].now_s
    state.ranks[rank_id].reserved += 1
    if request.phase == HANDED_OFF:
        take_place(state, request_id)
    send_computed(state, request_id)


@compiled
def take_place(state: State, request_id: int) -> None:
    """A request whose prompt has ended takes the seat and the blocks that were set aside."""
    request = state.requests[request_id]
    rank = state.ranks[request.decode_rank]
    rank.reserved -= 1
    state.seats[rank.seats_start + rank.running] = request_id
    rank.running += 1
    request.rank = request.decode_rank
    request.private_blocks = request.decode_private
    request.phase = RECEIVING
    request.usable_s = float("inf")


@compiled
def first_layers_done(state: State, replica_id: int, flight: int) -> None:
    """The first layer of the chunks of a micro-batch is computed: all but the last may be sent."""
    replica = state.replicas[replica_id]
    layers = state.clock[0].send_layers
    for rank_id in range(replica.first_rank, replica.first_rank + state.pools[replica.pool].ranks):
        rank = state.ranks[rank_id]
        for place in range(rank.seats_start, rank.seats_start + rank.running):
            request_id = state.seats[place]
            request = state.requests[request_id]
            if request.flight == flight and request.phase == PREFILLING:
                after = _bytes_of_first(state, request_id, request.computed + request.step_tokens)
                before = _bytes_of_first(state, request_id, request.computed)
                request.early_bytes = (after - before) * (layers - 1) / layers
                send_computed(state, request_id)


@compiled
def send_computed(state: State, request_id: int) -> None:
    """Begin to send what a request with a place in the decode pool has computed meanwhile."""
    request = state.requests[request_id]
    if request.decode_admitted_s < 0 or request.sending == 1:
        return
    size = _unsent_bytes(state, request_id)
    if size < NOTHING_BYTES:
        return
    request.sending = 1
    request.sent_bytes += size
    state.clock[0].handed_off_bytes += size
    source = state.ranks[request.source_rank].net_link
    target = state.ranks[request.decode_rank].net_link
    start_flow(state, HAND_OFF_PART, request_id, source, target, size)


@compiled
def is_sent(state: State, request_id: int) -> bool:
    """Whether all of a request's KV has reached the decode pool."""
    request = state.requests[request_id]
    return bool(request.phase == RECEIVING and request.sending == 0)


@compiled
def _unsent_bytes(state: State, request_id: int) -> float:
    """Bytes that are computed and not sent; of a prefix that is still on its way here, none."""
    request = state.requests[request_id]
    size = _bytes_of_first(state, request_id, request.computed) + request.early_bytes
    if request.fetches + request.rests + request.joined > 0:
        size -= _bytes_of_first(state, request_id, request.prefix_tokens)
    return float(size - request.sent_bytes)


@compiled
def _bytes_of_first(state: State, request_id: int, tokens: int) -> float:
    """Bytes of the first `tokens` of a prompt that the decode pool needs.

    Of layers with a window it needs those within the window at the prompt's end; what a request
    has beside its tokens goes with the last one.
    """
    clock, target = state.clock[0], state.requests[request_id].target
    windowed = max(0, tokens - max(0, target - clock.window))
    size = tokens * clock.token_bytes + windowed * clock.window_token_bytes
    return float(size + (clock.fixed_bytes if tokens == target else 0.0))
