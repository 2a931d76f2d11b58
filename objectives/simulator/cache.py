"""KV memory of a rank: blocks owned by requests, prefix blocks shared through caches.

A prefix block of the workload takes one *slot* of the rank's HBM cache while it is there. A slot
that some running request refers to is pinned; an idle one is kept until its blocks are needed,
least recently used first, and then moves to host memory where the plan has such a tier.
"""

from __future__ import annotations

from objectives.simulator.jit import compiled
from objectives.simulator.state import NONE, Records, State


@compiled
def blocks_for(tokens: int, block_tokens: int) -> int:
    """KV blocks that hold `tokens` tokens; none for a negative count."""
    return max(0, (tokens + block_tokens - 1) // block_tokens)


@compiled
def available_blocks(state: State, rank_id: int) -> int:
    """Blocks that are unused or could be had by evicting idle cached blocks."""
    rank = state.ranks[rank_id]
    pool = state.pools[rank.pool]
    return int(pool.capacity_blocks - rank.used_blocks + rank.idle_slots * pool.blocks_per_slot)


@compiled
def take_blocks(state: State, rank_id: int, blocks: int) -> None:
    """Take `blocks` of the available blocks, evicting idle cached ones as needed."""
    rank = state.ranks[rank_id]
    capacity = state.pools[rank.pool].capacity_blocks
    while rank.used_blocks + blocks > capacity:
        _evict_oldest(state, rank_id)
    rank.used_blocks += blocks
    rank.peak_blocks = max(rank.peak_blocks, rank.used_blocks)


@compiled
def matched_blocks(state: State, rank_id: int, request_id: int) -> tuple[int, int, int]:
    """How much of a request's prefix the rank's caches hold, as leading blocks.

    Returns the leading blocks found in HBM or host memory, how many of them are in host memory
    only, and how many are idle in HBM (and so not available to evict, once used).
    """
    request = state.requests[request_id]
    found, in_host, idle = 0, 0, 0
    if state.pools[state.ranks[rank_id].pool].caching == 0:
        return found, in_host, idle
    while found < request.chain_length:
        block = state.chain[request.chain_start + found]
        slot = state.slot_of[rank_id, block]
        if slot != NONE:
            idle += state.slots[rank_id, slot].references == 0
        elif state.host_slot_of[rank_id, block] != NONE:
            in_host += 1
        else:
            break
        found += 1
    return found, in_host, idle


@compiled
def pin_prefix(state: State, rank_id: int, request_id: int, found: int) -> None:
    """Refer to the first `found` prefix blocks; those in host memory get a slot in HBM."""
    request = state.requests[request_id]
    for position in range(found):  # first what is there, lest making room evicts it
        block = state.chain[request.chain_start + position]
        slot = state.slot_of[rank_id, block]
        if slot != NONE:
            _refer(state, rank_id, slot)
        else:
            _touch_host(state, rank_id, block)
    for position in range(found):
        block = state.chain[request.chain_start + position]
        if state.slot_of[rank_id, block] == NONE:
            take_blocks(state, rank_id, state.pools[state.ranks[rank_id].pool].blocks_per_slot)
            _new_slot(state, rank_id, block)
    request.shared_blocks = found


@compiled
def share_prompt(state: State, rank_id: int, request_id: int) -> None:
    """Put the prompt blocks a request has just computed into the cache, still referred to by it.

    A full prefix block changes owner without taking memory. The last, partial one takes the
    tokens it lacks, if there is room without evicting.
    """
    rank = state.ranks[rank_id]
    pool = state.pools[rank.pool]
    request = state.requests[request_id]
    if pool.caching == 0:
        return
    block_tokens = state.clock[0].block_tokens
    slot_tokens = state.clock[0].slot_tokens
    while request.shared_blocks < request.chain_length:
        rest = request.computed - (request.shared_blocks + 1) * slot_tokens
        private = blocks_for(rest, block_tokens) + pool.fixed_blocks
        block = state.chain[request.chain_start + request.shared_blocks]
        slot = state.slot_of[rank_id, block]
        growth = private - request.private_blocks
        if slot == NONE:
            growth += pool.blocks_per_slot
        if rank.used_blocks + growth > pool.capacity_blocks:
            break
        rank.used_blocks += growth
        rank.peak_blocks = max(rank.peak_blocks, rank.used_blocks)
        request.private_blocks = private
        request.shared_blocks += 1
        if slot == NONE:
            _new_slot(state, rank_id, block)
        else:
            _refer(state, rank_id, slot)


@compiled
def give_back_answer(state: State, rank_id: int, request_id: int) -> None:
    """Give back what a finished request holds; what its session goes on with stays cached.

    The next turn's prompt begins with this prompt and this answer. Its prefix blocks that the
    answer filled take the place of the request's own blocks, as far as there is room.
    """
    rank = state.ranks[rank_id]
    pool = state.pools[rank.pool]
    request = state.requests[request_id]
    rank.used_blocks -= request.private_blocks
    child = request.first_child
    if pool.caching == 1 and child != NONE and state.clock[0].keep_answers == 1:
        slot_tokens = state.clock[0].slot_tokens
        chain = state.requests[child].chain_start
        filled = min(request.computed // slot_tokens, state.requests[child].chain_length)
        known = request.input // slot_tokens
        for place in range(filled - known):  # the deepest first, so that it is the oldest
            block = state.chain[chain + filled - 1 - place]
            room = rank.used_blocks + pool.blocks_per_slot <= pool.capacity_blocks
            if room and state.slot_of[rank_id, block] == NONE:
                rank.used_blocks += pool.blocks_per_slot
                slot = _new_slot(state, rank_id, block)
                state.slots[rank_id, slot].references = 0
                _make_idle(state, rank_id, slot)
    release(state, rank_id, request_id, request.shared_blocks, 0)


@compiled
def release(state: State, rank_id: int, request_id: int, shared: int, private: int) -> None:
    """Give back what a request holds on a rank; its prefix blocks stay cached, deepest oldest."""
    request = state.requests[request_id]
    state.ranks[rank_id].used_blocks -= private
    for back in range(shared):
        block = state.chain[request.chain_start + shared - 1 - back]
        slot_id = state.slot_of[rank_id, block]
        slot = state.slots[rank_id, slot_id]
        slot.references -= 1
        if slot.references == 0:
            _make_idle(state, rank_id, slot_id)


@compiled
def _refer(state: State, rank_id: int, slot_id: int) -> None:
    slot = state.slots[rank_id, slot_id]
    if slot.references == 0:
        _make_busy(state, rank_id, slot_id)
    slot.references += 1


@compiled
def _new_slot(state: State, rank_id: int, block: int) -> int:
    rank = state.ranks[rank_id]
    slot_id = rank.slot_free
    slot = state.slots[rank_id, slot_id]
    rank.slot_free = slot.newer  # unused slots are chained through `newer`
    slot.block = block
    slot.references = 1
    state.slot_of[rank_id, block] = slot_id
    return int(slot_id)


@compiled
def _make_idle(state: State, rank_id: int, slot_id: int) -> None:
    rank = state.ranks[rank_id]
    rank.newest = _append(state.slots[rank_id], rank.newest, slot_id)
    if rank.oldest == NONE:
        rank.oldest = slot_id
    rank.idle_slots += 1


@compiled
def _make_busy(state: State, rank_id: int, slot_id: int) -> None:
    rank = state.ranks[rank_id]
    rank.oldest, rank.newest = _unlink(state.slots[rank_id], rank.oldest, rank.newest, slot_id)
    rank.idle_slots -= 1


@compiled
def _evict_oldest(state: State, rank_id: int) -> None:
    rank = state.ranks[rank_id]
    slot_id = rank.oldest
    assert slot_id != NONE  # callers take no more than is available
    _make_busy(state, rank_id, slot_id)
    slot = state.slots[rank_id, slot_id]
    state.slot_of[rank_id, slot.block] = NONE
    slot.newer = rank.slot_free
    rank.slot_free = slot_id
    pool = state.pools[rank.pool]
    rank.used_blocks -= pool.blocks_per_slot
    if pool.host_slots > 0:
        _offload(state, rank_id, slot.block)


@compiled
def _offload(state: State, rank_id: int, block: int) -> None:
    rank = state.ranks[rank_id]
    slots = state.host_slots[rank_id]
    if state.host_slot_of[rank_id, block] != NONE:
        _touch_host(state, rank_id, block)
        return
    if rank.host_free != NONE:
        slot_id = rank.host_free
        rank.host_free = slots[slot_id].newer
    else:
        slot_id = rank.host_oldest
        rank.host_oldest, rank.host_newest = _unlink(
            slots, rank.host_oldest, rank.host_newest, slot_id
        )
        state.host_slot_of[rank_id, slots[slot_id].block] = NONE
    slots[slot_id].block = block
    state.host_slot_of[rank_id, block] = slot_id
    _append_host(state, rank_id, slot_id)


@compiled
def _touch_host(state: State, rank_id: int, block: int) -> None:
    rank = state.ranks[rank_id]
    slot_id = state.host_slot_of[rank_id, block]
    rank.host_oldest, rank.host_newest = _unlink(
        state.host_slots[rank_id], rank.host_oldest, rank.host_newest, slot_id
    )
    _append_host(state, rank_id, slot_id)


@compiled
def _append_host(state: State, rank_id: int, slot_id: int) -> None:
    rank = state.ranks[rank_id]
    rank.host_newest = _append(state.host_slots[rank_id], rank.host_newest, slot_id)
    if rank.host_oldest == NONE:
        rank.host_oldest = slot_id


@compiled
def _append(slots: Records, newest: int, slot_id: int) -> int:
    """Link a slot behind the newest one; returns the new newest."""
    slots[slot_id].older = newest
    slots[slot_id].newer = NONE
    if newest != NONE:
        slots[newest].newer = slot_id
    return slot_id


@compiled
def _unlink(slots: Records, oldest: int, newest: int, slot_id: int) -> tuple[int, int]:
    """Take a slot out of its list; returns the list's new ends."""
    older, newer = slots[slot_id].older, slots[slot_id].newer
    if older != NONE:
        slots[older].newer = newer
    else:
        oldest = newer
    if newer != NONE:
        slots[newer].older = older
    else:
        newest = older
    return oldest, newest
