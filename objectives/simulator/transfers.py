"""KV on its way from a prefill rank to a decode rank.

Transfers under way at the same time share each rank's link equally; a transfer runs at the
smaller of its shares at both ends.
"""

from __future__ import annotations

from objectives.simulator.events import push
from objectives.simulator.jit import compiled
from objectives.simulator.state import KV_ARRIVED, TRANSFER_END, State


@compiled
def kv_bytes(state: State, tokens: int) -> float:
    """Bytes of a request's KV, whole model, with `tokens` tokens computed."""
    clock = state.clock[0]
    windowed = min(tokens, clock.window) * clock.window_token_bytes
    return float(tokens * clock.token_bytes + windowed + clock.fixed_bytes)


@compiled
def start_transfer(state: State, request_id: int) -> None:
    """Begin to move a request's KV from the rank that prefilled it to the rank it now sits on."""
    clock = state.clock[0]
    _advance(state)
    request = state.requests[request_id]
    size = kv_bytes(state, request.computed)
    transfer = state.transfers[clock.transfers]
    transfer.request = request_id
    transfer.source = request.source_rank
    transfer.target = request.rank
    transfer.remaining_bytes = size
    state.ranks[transfer.source].transfers += 1
    state.ranks[transfer.target].transfers += 1
    clock.transfers += 1
    clock.transferred_bytes += size
    _share_links(state)


@compiled
def end_transfer(state: State) -> int:
    """End the transfer that is first to end, now; returns its request."""
    clock = state.clock[0]
    _advance(state)
    first = _first_to_end(state)
    transfer = state.transfers[first]
    request_id = transfer.request
    state.ranks[transfer.source].transfers -= 1
    state.ranks[transfer.target].transfers -= 1
    clock.transfers -= 1
    for place in range(first, clock.transfers):  # keep the order of starting
        state.transfers[place] = state.transfers[place + 1]
    push(state, clock.now_s + clock.transfer_latency_s, KV_ARRIVED, request_id, 0)
    _share_links(state)
    return int(request_id)


@compiled
def _advance(state: State) -> None:
    clock = state.clock[0]
    elapsed_s = clock.now_s - clock.transfers_updated_s
    for place in range(clock.transfers):
        transfer = state.transfers[place]
        moved = transfer.bytes_per_s * elapsed_s
        transfer.remaining_bytes = max(0.0, transfer.remaining_bytes - moved)
    clock.transfers_updated_s = clock.now_s


@compiled
def _share_links(state: State) -> None:
    """Give each transfer its share and plan the next end; events of earlier shares are void."""
    clock = state.clock[0]
    clock.transfer_version += 1
    if clock.transfers == 0:
        return
    for place in range(clock.transfers):
        transfer = state.transfers[place]
        source = state.ranks[transfer.source]
        target = state.ranks[transfer.target]
        transfer.bytes_per_s = min(
            source.link_bytes_per_s / source.transfers, target.link_bytes_per_s / target.transfers
        )
    first = state.transfers[_first_to_end(state)]
    end_s = clock.now_s + first.remaining_bytes / first.bytes_per_s
    push(state, end_s, TRANSFER_END, 0, clock.transfer_version)


@compiled
def _first_to_end(state: State) -> int:
    first, least_s = 0, float("inf")
    for place in range(state.clock[0].transfers):
        transfer = state.transfers[place]
        left_s = transfer.remaining_bytes / transfer.bytes_per_s
        if left_s < least_s:
            first, least_s = place, left_s
    return first
