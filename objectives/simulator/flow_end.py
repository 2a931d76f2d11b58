"""A flow of KV has ended: whoever waited for it goes on."""

from __future__ import annotations

from objectives.simulator.admission import may_admit
from objectives.simulator.cache import end_bringing, waits_for_others
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
        state.requests[request_id].fetches -= 1
        _settle_fetch(state, request_id)
    elif purpose == FETCH_REST:
        state.requests[request_id].rests -= 1
        _settle_rest(state, request_id)
    elif purpose == TIER_WRITE:
        _settle_write(state, request_id)
    elif purpose in (SWAP_OUT, SWAP_IN):
        _settle_swap(state, request_id, purpose)


@compiled
def _settle_fetch(state: State, request_id: int) -> None:
    """Once the first layer of all that is fetched is there its request goes on."""
    request = state.requests[request_id]
    if request.phase == WAITING:
        _settle_ahead(state, request_id)
        return
    if request.fetches + request.joined == 0:
        _go_on(state, request_id)
    if request.fetches + request.rests == 0:
        _tell_others(state, request_id, request.shared_blocks)


@compiled
def _settle_rest(state: State, request_id: int) -> None:
    """A prompt that is computed already waits for the other layers of its prefix."""
    request = state.requests[request_id]
    if request.phase == WAITING:
        _settle_ahead(state, request_id)
    elif request.rests == 0:
        send_computed(state, request_id)
        if request.phase == HELD:
            interrupt(state, state.ranks[request.rank].replica)
        _tell_others(state, request_id, request.shared_blocks)


@compiled
def _go_on(state: State, request_id: int) -> None:
    """The prefix of a prompt can be used."""
    request = state.requests[request_id]
    request.usable_s = state.clock[0].now_s
    if request.fetched_s < 0:
        request.fetched_s = request.usable_s
    send_computed(state, request_id)
    interrupt(state, state.ranks[request.rank].replica)


@compiled
def _tell_others(state: State, request_id: int, blocks: int) -> None:
    """Let those go on that waited for what was fetched for a request, its first prefix blocks."""
    rank_id = state.requests[request_id].rank
    rank = state.ranks[rank_id]
    end_bringing(state, rank_id, request_id, blocks)
    for other_id in state.seats[rank.seats_start : rank.seats_start + rank.running]:
        other = state.requests[other_id]
        if other.joined == 1 and not waits_for_others(state, rank_id, other_id):
            other.joined = 0
            if other.fetches == 0:
                _go_on(state, other_id)


@compiled
def _settle_ahead(state: State, request_id: int) -> None:
    """Once all that is fetched ahead is there it keeps no room any more."""
    request = state.requests[request_id]
    if request.fetches + request.rests > 0:
        return
    rank_id = request.rank
    _tell_others(state, request_id, request.ahead_blocks)
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
