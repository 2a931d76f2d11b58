"""A whole prompt's KV on its way to the decode pool: copied out, sent, copied in.

It is copied where a pool's engine stages KV in host memory or converts its format; copies of a
rank share its memory as flows share a link. The parts of one transfer follow one another.
"""

from __future__ import annotations

from objectives.simulator.events import push
from objectives.simulator.flows import kv_bytes, start_flow
from objectives.simulator.jit import compiled
from objectives.simulator.state import COPY_IN, COPY_OUT, HAND_OFF, KV_ARRIVED, NONE, State


@compiled
def start_transfer(state: State, request_id: int) -> None:
    """Begin with what comes first."""
    request = state.requests[request_id]
    state.clock[0].handed_off_bytes += kv_bytes(state, request.computed)
    if _copies(state, request.source_rank):
        _copy(state, COPY_OUT, request_id, request.source_rank)
    else:
        _send(state, request_id)


@compiled
def go_on_with_transfer(state: State, request_id: int, purpose: int) -> None:
    """A part has ended: the next one begins, or the KV is there."""
    if purpose == COPY_OUT:
        _send(state, request_id)
        return
    request, clock = state.requests[request_id], state.clock[0]
    if purpose == HAND_OFF and _copies(state, request.rank):
        _copy(state, COPY_IN, request_id, request.rank)
    else:
        push(state, clock.now_s + clock.transfer_latency_s, KV_ARRIVED, request_id, 0)


@compiled
def _copies(state: State, rank_id: int) -> bool:
    """Whether a rank copies KV between pools at all."""
    return bool(state.links[state.ranks[rank_id].copy_link].bytes_per_s < float("inf"))


@compiled
def _copy(state: State, purpose: int, request_id: int, rank_id: int) -> None:
    size = kv_bytes(state, state.requests[request_id].computed)
    start_flow(state, purpose, request_id, state.ranks[rank_id].copy_link, NONE, size)


@compiled
def _send(state: State, request_id: int) -> None:
    request = state.requests[request_id]
    source, target = state.ranks[request.source_rank], state.ranks[request.rank]
    size = kv_bytes(state, request.computed)
    start_flow(state, HAND_OFF, request_id, source.net_link, target.net_link, size)
