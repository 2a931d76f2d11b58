"""A flow of KV has ended: whoever waited for it goes on."""

from __future__ import annotations

from objectives.simulator.admission import may_admit
from objectives.simulator.flows import end_flow
from objectives.simulator.handoff import send_computed
from objectives.simulator.jit import compiled
from objectives.simulator.leaps import cut_leap, interrupt, is_closed
from objectives.simulator.passing_on import end_hand_off, release_source
from objectives.simulator.prefetch import let_go, may_fetch_ahead
from objectives.simulator.state import (
    COPY_IN,
    COPY_OUT,
    DECODING,
    FETCH,
    FETCH_REST,
    HAND_OFF,
    HAND_OFF_PART,
    HELD,
    LEVELS,
    STORE,
    SWAP_IN,
    SWAP_OUT,
    TIER_WRITE,
    WAITING,
    State,
)
from objectives.simulator.tiers import end_write
from objectives.simulator.transfer import go_on_with_transfer


@compiled
def settle_flow(state: State) -> None:
    """A flow has ended: a prefill rank is rid of what it sent, or a fetched prefix is usable."""
    purpose, request_id = end_flow(state)
    if purpose in (COPY_OUT, HAND_OFF, COPY_IN):
        go_on_with_transfer(state, request_id, purpose)
    if purpose == HAND_OFF:
        release_source(state, request_id)
    elif purpose == HAND_OFF_PART:
        state.requests[request_id].sending = 0
        send_computed(state, request_id)
        end_hand_off(state, request_id)
    elif purpose == FETCH:
        request = state.requests[request_id]
        request.fetches -= 1
        if request.phase == WAITING:
            _settle_ahead(state, request_id)
        elif request.fetches == 0:
            request.usable_s = state.clock[0].now_s
            if request.fetched_s < 0:
                request.fetched_s = request.usable_s
            send_computed(state, request_id)
            interrupt(state, state.ranks[request.rank].replica)
    elif purpose == FETCH_REST:
        request = state.requests[request_id]
        request.rests -= 1
        if request.phase == WAITING:
            _settle_ahead(state, request_id)
        elif request.rests == 0:
            send_computed(state, request_id)
            if request.phase == HELD:
                interrupt(state, state.ranks[request.rank].replica)
    elif purpose == TIER_WRITE:
        _settle_write(state, request_id)
    elif purpose in (SWAP_OUT, SWAP_IN):
        _settle_swap(state, request_id, purpose)


@compiled
def _settle_ahead(state: State, request_id: int) -> None:
    """Once all that is fetched ahead is there it keeps no room any more."""
    request = state.requests[request_id]
    if request.fetches + request.rests > 0:
        return
    rank_id = request.rank
    let_go(state, rank_id, request_id)
    if may_admit(state, rank_id) or may_fetch_ahead(state, rank_id):
        replica_id = state.ranks[rank_id].replica
        cut_leap(state, replica_id, is_closed(state, replica_id))


@compiled
def _settle_write(state: State, writer_id: int) -> None:
    """Blocks are in a tier now, which may let waiting requests in that look for them there."""
    end_write(state, writer_id)
    own = writer_id // LEVELS
    first, last = own, own
    if writer_id % LEVELS == STORE:
        first, last = 0, len(state.slots) - 1
    for rank_id in range(first, last + 1):
        if state.ranks[rank_id].waiting > 0 and may_admit(state, rank_id):
            replica_id = state.ranks[rank_id].replica
            cut_leap(state, replica_id, is_closed(state, replica_id))


@compiled
def _settle_swap(state: State, request_id: int, purpose: int) -> None:
    """KV has left for host memory, and its request may come back; or it is back, and decodes."""
    request = state.requests[request_id]
    rank = state.ranks[request.rank]
    if purpose == SWAP_OUT:
        request.fetches = 0
        if rank.queue_head == request_id and may_admit(state, request.rank):
            cut_leap(state, rank.replica, is_closed(state, rank.replica))
        return
    rank.swapped_tokens -= request.computed
    request.phase = DECODING
    request.usable_s = state.clock[0].now_s
    interrupt(state, rank.replica)
