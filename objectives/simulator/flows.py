"""KV on its way over links: between pools, in from lower tiers, out to the shared store.

Flows under way at the same time share each link equally; a flow that crosses two links runs at the
smaller of its shares.
"""

from __future__ import annotations

from objectives.simulator.jit import compiled
from objectives.simulator.state import FETCH_REST, NONE, State

# Less than this is left of a flow only by rounding: equal flows end at one instant.
NOTHING_BYTES = 1e-3


@compiled
def kv_bytes(state: State, tokens: int) -> float:
    """Bytes of a request's KV, whole model, with `tokens` tokens computed."""
    clock = state.clock[0]
    windowed = min(tokens, clock.window) * clock.window_token_bytes
    return float(tokens * clock.token_bytes + windowed + clock.fixed_bytes)


@compiled
def start_flow(
    state: State,
    purpose: int,
    request_id: int,
    one_link: int,
    other_link: int,
    size: float,
    rest_bytes: float = 0.0,
) -> None:
    """Begin to move `size` bytes of a request's KV over one link, or two in a row.

    As soon as they are there, `rest_bytes` follow as a flow of their own.
    """
    clock = state.clock[0]
    _advance(state)
    flow = state.flows[clock.flows]
    flow.purpose, flow.request = purpose, request_id
    flow.one_link, flow.other_link = one_link, other_link
    flow.remaining_bytes, flow.rest_bytes = size, rest_bytes
    clock.flows += 1
    clock.cache_version += clock.fetch_when_faster  # whether a fetch pays hangs on the flows
    _count(state, one_link, 1, size)
    _count(state, other_link, 1, size)
    _share_links(state)


@compiled
def end_flow(state: State) -> tuple[int, int]:
    """End the flow that is first to end, now; returns its purpose and its request."""
    clock = state.clock[0]
    _advance(state)
    first = _first_to_end(state)
    flow = state.flows[first]
    purpose, request_id, rest_bytes = flow.purpose, flow.request, flow.rest_bytes
    one_link, other_link = flow.one_link, flow.other_link
    _count(state, flow.one_link, -1, 0.0)
    _count(state, flow.other_link, -1, 0.0)
    clock.flows -= 1
    clock.cache_version += clock.fetch_when_faster
    for place in range(first, clock.flows):  # keep the order of starting
        state.flows[place] = state.flows[place + 1]
    _share_links(state)
    if rest_bytes > 0:
        start_flow(state, FETCH_REST, request_id, one_link, other_link, rest_bytes)
    return int(purpose), int(request_id)


@compiled
def _count(state: State, link_id: int, flows: int, size: float) -> None:
    if link_id != NONE:
        state.links[link_id].flows += flows
        state.links[link_id].moved_bytes += size


@compiled
def _advance(state: State) -> None:
    clock = state.clock[0]
    elapsed_s = clock.now_s - clock.flows_updated_s
    for place in range(clock.flows):
        flow = state.flows[place]
        if elapsed_s > 0:  # over an infinite link no time at all is zero times infinity
            flow.remaining_bytes -= flow.bytes_per_s * elapsed_s
        if flow.remaining_bytes < NOTHING_BYTES:
            flow.remaining_bytes = 0.0
    clock.flows_updated_s = clock.now_s


@compiled
def _share_links(state: State) -> None:
    """Give each flow its share and find when the first of them ends."""
    clock = state.clock[0]
    if clock.flows == 0:
        return
    for place in range(clock.flows):
        flow = state.flows[place]
        one = state.links[flow.one_link]
        flow.bytes_per_s = one.bytes_per_s / one.flows
        if flow.other_link != NONE:
            other = state.links[flow.other_link]
            flow.bytes_per_s = min(flow.bytes_per_s, other.bytes_per_s / other.flows)
    first = state.flows[_first_to_end(state)]
    clock.flow_end_s = clock.now_s + first.remaining_bytes / first.bytes_per_s


@compiled
def _first_to_end(state: State) -> int:
    first, least_s = 0, float("inf")
    for place in range(state.clock[0].flows):
        flow = state.flows[place]
        left_s = flow.remaining_bytes / flow.bytes_per_s
        if left_s < least_s:
            first, least_s = place, left_s
    return first
