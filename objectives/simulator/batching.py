"""What goes into the next step of a replica: the scheduler of the engine.

Mixed engines (vLLM, TensorRT-LLM): first one token of every decoding request, with its drafts if
there are any, then chunks of prompts under way, then new requests in order of arrival, until a
rank's token budget is used up.
Alternating engines (SGLang): prompts alone as long as there are any, else a decode step.
A new request is admitted only when the blocks of its whole prompt are available, so that a prompt
never stalls half-way; decoding requests may still run out, and then the latest admitted one is
preempted and computed again later.
"""

from __future__ import annotations

from objectives.simulator.admission import admission_blocks, looks_now, may_admit
from objectives.simulator.cache import (
    available_blocks,
    blocks_for,
    matched_blocks,
    pin_prefix,
    release,
    room_tokens,
    take_blocks,
)
from objectives.simulator.flows import kv_bytes, start_flow
from objectives.simulator.handoff import reserve
from objectives.simulator.jit import compiled
from objectives.simulator.prefetch import fetch_ahead, let_go, start_fetch
from objectives.simulator.state import (
    DECODING,
    HANDED_OFF,
    NONE,
    PREFILLING,
    RECEIVING,
    SWAP_IN,
    SWAP_OUT,
    SWAPPED,
    WAITING,
    State,
)
from objectives.simulator.transfer import start_transfer


@compiled
def fill_batch(state: State, replica_id: int, flight: int) -> int:
    """Choose the tokens of the replica's next micro-batch, named `flight`.

    Marks each chosen request with the flight and its `step_tokens`, takes the blocks they need,
    and admits new requests if it is time to look at the queues, or if there is nothing else to do;
    for those still waiting then it may begin to fetch.
    Returns the requests chosen, over all ranks.
    """
    look = looks_now(state, replica_id)
    chosen = _fill(state, replica_id, flight, look)
    if chosen == 0 and not look:
        look = True
        chosen = _fill(state, replica_id, flight, look)
    if look and chosen > 0:
        state.replicas[replica_id].begun_steps = 0
    if look:
        fetch_ahead(state, replica_id)
    return chosen


@compiled
def _fill(state: State, replica_id: int, flight: int, look: bool) -> int:
    replica = state.replicas[replica_id]
    pool = state.pools[replica.pool]
    ranks = range(replica.first_rank, replica.first_rank + pool.ranks)
    chosen = 0
    if pool.alternating == 0:
        for rank_id in ranks:
            if state.ranks[rank_id].outstanding > 0:
                decodes = _choose_decodes(state, rank_id, flight)
                budget = pool.step_tokens - decodes * pool.verified
                chunks = _choose_prompts(state, rank_id, flight, budget, decodes, look)
                chosen += decodes + chunks
        return chosen
    for attempt in range(3):  # prompts, decodes, and prompts again if all decodes were preempted
        for rank_id in ranks:
            if state.ranks[rank_id].outstanding == 0:
                continue
            if attempt == 1:
                chosen += _choose_decodes(state, rank_id, flight)
            else:
                chosen += _choose_prompts(state, rank_id, flight, pool.step_tokens, 0, look)
        if chosen > 0:
            break
    return chosen


@compiled
def enqueue(state: State, rank_id: int, request_id: int) -> None:
    """Put a request at the end of a rank's waiting queue."""
    rank = state.ranks[rank_id]
    request = state.requests[request_id]
    request.next = NONE
    if rank.waiting == 0:
        rank.queue_head = request_id
    else:
        state.requests[rank.queue_tail].next = request_id
    rank.queue_tail = request_id
    rank.waiting += 1
    fetches = state.clock[0].prefetch == 1 and state.pools[rank.pool].caching == 1
    if fetches and rank.untried == NONE:
        rank.untried = request_id


@compiled
def _choose_decodes(state: State, rank_id: int, flight: int) -> int:
    """One token of each decoding request at hand, at most an even share of a full pipeline.

    Returns the requests chosen.
    """
    now_s = state.clock[0].now_s
    rank = state.ranks[rank_id]
    pool = state.pools[rank.pool]
    most = pool.step_tokens // pool.verified
    share = min(most, (rank.running + pool.stages - 1) // pool.stages)
    if pool.flight_requests > 0:
        share = min(most, pool.flight_requests)
    requests, seats, clock = state.requests, state.seats, state.clock[0]
    chosen, place = 0, 0
    while place < rank.running and chosen < share:
        request_id = seats[rank.seats_start + place]
        request = requests[request_id]
        at_hand = request.phase == DECODING and request.flight == NONE
        if at_hand and request.usable_s <= now_s:
            room = room_tokens(request, pool.fixed_blocks, clock.block_tokens, clock.slot_tokens)
            lacking = pool.verified - room
            if lacking > 0 and not _make_room(state, rank_id, request_id, lacking):
                continue  # it preempted itself, and the next one moved to its place
            request.flight = flight
            request.step_tokens = pool.verified
            chosen += 1
        place += 1
    return chosen


@compiled
def _make_room(state: State, rank_id: int, request_id: int, tokens: int) -> bool:
    """Take the blocks for so many tokens, preempting others; False if it had to preempt itself."""
    request = state.requests[request_id]
    growth = blocks_for(tokens, state.clock[0].block_tokens)
    while growth > available_blocks(state, rank_id):
        victim = _latest_at_hand(state, rank_id)
        _preempt(state, rank_id, victim)
        if victim == request_id:
            return False
    take_blocks(state, rank_id, growth)
    request.private_blocks += growth
    return True


@compiled
def _latest_at_hand(state: State, rank_id: int) -> int:
    rank = state.ranks[rank_id]
    for back in range(rank.running):
        request_id = state.seats[rank.seats_start + rank.running - 1 - back]
        request = state.requests[request_id]
        at_hand = request.flight == NONE and request.usable_s <= state.clock[0].now_s
        if at_hand and request.rests == 0:
            return int(request_id)
    return NONE


@compiled
def _preempt(state: State, rank_id: int, request_id: int) -> None:
    """Take a request off its seat and its blocks; it waits first in line.

    If it decodes and host memory has room its KV is swapped out, and comes back when the request
    is admitted again; otherwise it is computed again. Its blocks are free at once: what is to
    leave them is copied before the next step writes to them.
    """
    rank = state.ranks[rank_id]
    request = state.requests[request_id]
    release(state, rank_id, request_id, request.shared_blocks, request.private_blocks)
    request.shared_blocks = 0
    request.private_blocks = 0
    request.preemptions += 1
    room = state.pools[rank.pool].swap_tokens - rank.swapped_tokens
    if request.phase == DECODING and request.computed <= room:
        request.phase = SWAPPED
        request.target = request.computed
        request.fetches = 1
        rank.swapped_tokens += request.computed
        size = kv_bytes(state, request.computed)
        start_flow(state, SWAP_OUT, request_id, rank.host_link, NONE, size)
    else:
        request.computed = 0
        request.target = request.input + request.generated
        request.phase = WAITING
    state.clock[0].cache_version += state.clock[0].fetch_when_faster  # what fetching saves changed
    _leave_seat(state, rank_id, request_id)
    request.next = rank.queue_head if rank.waiting > 0 else NONE
    if rank.waiting == 0:
        rank.queue_tail = request_id
    rank.queue_head = request_id
    rank.waiting += 1


@compiled
def _leave_seat(state: State, rank_id: int, request_id: int) -> None:
    rank = state.ranks[rank_id]
    first = rank.seats_start
    seats, place = state.seats, first
    while seats[place] != request_id:
        place += 1
    rank.running -= 1
    for later in range(place, first + rank.running):
        seats[later] = seats[later + 1]


@compiled
def _choose_prompts(
    state: State, rank_id: int, flight: int, budget: int, already: int, look: bool
) -> int:
    """Chunks of prompts under way, then, with `look`, of newly admitted ones, to `budget` tokens.

    `already` requests of the rank are in the micro-batch.
    """
    clock = state.clock[0]
    rank = state.ranks[rank_id]
    most = state.pools[rank.pool].flight_requests
    requests, seats = state.requests, state.seats
    chosen, place = 0, 0
    while budget > 0 and (most == 0 or already + chosen < most):
        if place == rank.running:
            if not (look and may_admit(state, rank_id)):
                break
            _admit(state, rank_id)
            continue  # a seat may only be kept
        request = requests[seats[rank.seats_start + place]]
        place += 1
        at_hand = request.phase == PREFILLING and request.flight == NONE
        if at_hand and request.usable_s <= clock.now_s:
            request.flight = flight
            request.step_tokens = min(budget, request.target - request.computed)
            budget -= request.step_tokens
            chosen += 1
    return chosen


@compiled
def _admit(state: State, rank_id: int) -> None:
    """Give the first waiting request a seat and its blocks, or keep them for it."""
    rank = state.ranks[rank_id]
    clock = state.clock[0]
    request_id = rank.queue_head
    request = state.requests[request_id]
    rank.queue_head = request.next
    rank.waiting -= 1
    if rank.untried == request_id:
        rank.untried = request.next if rank.waiting > 0 else NONE
    if request.decode_rank == rank_id and request.decode_admitted_s < 0:
        reserve(state, rank_id, request_id)
        return
    state.seats[rank.seats_start + rank.running] = request_id
    rank.running += 1
    if request.phase == HANDED_OFF:
        _receive(state, rank_id, request_id)
        return
    if request.phase == SWAPPED:
        _swap_in(state, rank_id, request_id)
        return
    found, _, _ = matched_blocks(state, rank_id, request_id)
    private = admission_blocks(state, rank_id, request_id, found, 0)
    host, ssd, store = pin_prefix(state, rank_id, request_id, found)
    if request.ahead_blocks > 0:
        let_go(state, rank_id, request_id)
    take_blocks(state, rank_id, private)
    request.private_blocks = private
    # A prompt found whole still needs its last token computed, to have a next one.
    request.computed = min(found * clock.slot_tokens, request.target - 1)
    request.phase = PREFILLING
    if request.admitted_s < 0:
        request.admitted_s = clock.now_s
        rest = request.computed
        request.host_hit = min(rest, (host + request.ahead_host) * clock.slot_tokens)
        rest -= request.host_hit
        request.ssd_hit = min(rest, (ssd + request.ahead_ssd) * clock.slot_tokens)
        rest -= request.ssd_hit
        request.store_hit = min(rest, (store + request.ahead_store) * clock.slot_tokens)
        request.hbm_hit = rest - request.store_hit
    request.prefix_tokens = request.computed
    start_fetch(state, rank_id, request_id, host, ssd, store)
    if request.fetches + request.joined > 0:
        request.usable_s = float("inf")
        return
    request.usable_s = clock.now_s
    if request.fetched_s < 0:
        request.fetched_s = clock.now_s


@compiled
def _receive(state: State, rank_id: int, request_id: int) -> None:
    """Reserve the blocks of a request prefilled elsewhere and begin to move its KV here."""
    clock = state.clock[0]
    request = state.requests[request_id]
    fixed = state.pools[state.ranks[rank_id].pool].fixed_blocks
    private = blocks_for(request.target, clock.block_tokens) + fixed
    take_blocks(state, rank_id, private)
    request.private_blocks = private
    request.phase = RECEIVING
    request.usable_s = float("inf")
    request.decode_admitted_s = clock.now_s
    start_transfer(state, request_id)


@compiled
def _swap_in(state: State, rank_id: int, request_id: int) -> None:
    """Reserve blocks for a request's KV in host memory and begin to bring it back."""
    rank = state.ranks[rank_id]
    request = state.requests[request_id]
    private = admission_blocks(state, rank_id, request_id, 0, 0)
    take_blocks(state, rank_id, private)
    request.private_blocks = private
    request.phase = RECEIVING
    request.usable_s = float("inf")
    size = kv_bytes(state, request.computed)
    start_flow(state, SWAP_IN, request_id, rank.host_link, NONE, size)
