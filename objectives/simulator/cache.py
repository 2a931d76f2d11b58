"""KV memory of a rank: blocks owned by requests, prefix blocks shared through caches.

A prefix block of the workload takes one *slot* of the rank's HBM cache while it is there. A slot
that some running request refers to is pinned; an idle one is kept until its blocks are needed,
least recently used first. What becomes of it then, and whether it is copied or moved to lower
tiers before, is the plan's retention (`objectives.simulator.state`: LRU, WRITE_THROUGH, OFFLOAD).
"""

from __future__ import annotations

from objectives.simulator.flows import start_flow
from objectives.simulator.jit import compiled
from objectives.simulator.slots import append, unlink
from objectives.simulator.state import LRU, NONE, OFFLOAD, STORE_WRITE, WRITE_THROUGH, State
from objectives.simulator.tiers import insert, level_with, move_down, tier_of, touch


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
    entered = 0
    while rank.used_blocks + blocks > capacity:
        assert rank.oldest != NONE  # callers take no more than is available
        entered += _evict(state, rank_id, rank.oldest, state.clock[0].retention == LRU)
    _write_to_store(state, rank_id, entered)
    rank.used_blocks += blocks
    rank.peak_blocks = max(rank.peak_blocks, rank.used_blocks)


@compiled
def matched_blocks(state: State, rank_id: int, request_id: int) -> tuple[int, int, int]:
    """How much of a request's prefix a rank can reach, as leading blocks.

    Returns the leading blocks found in HBM or a lower tier, how many of them are not in HBM, and
    how many are idle in HBM (and so not available to evict, once used).
    """
    request = state.requests[request_id]
    found, below, idle = 0, 0, 0
    if state.pools[state.ranks[rank_id].pool].caching == 0:
        return found, below, idle
    while found < request.chain_length:
        block = state.chain[request.chain_start + found]
        if _in_hbm(state, rank_id, block):
            idle += state.slots[rank_id, state.slot_of[rank_id, block]].references == 0
        elif level_with(state, rank_id, block) != NONE:
            below += 1
        else:
            break
        found += 1
    return found, below, idle


@compiled
def pin_prefix(state: State, rank_id: int, request_id: int, found: int) -> tuple[int, int, int]:
    """Refer to the first `found` prefix blocks; those below HBM get a slot in it.

    Returns how many have to be fetched from host memory, disk and the shared store.
    """
    request = state.requests[request_id]
    host, ssd, store = 0, 0, 0
    for position in range(found):  # first what is there, lest making room evicts it
        block = state.chain[request.chain_start + position]
        if _in_hbm(state, rank_id, block):
            _refer(state, rank_id, state.slot_of[rank_id, block])
            continue
        level = level_with(state, rank_id, block)
        touch(state, tier_of(state, rank_id, level), block)
        host += level == 0
        ssd += level == 1
        store += level == 2
        if state.slot_of[rank_id, block] != NONE:  # in HBM, but forgotten
            _evict(state, rank_id, state.slot_of[rank_id, block], False)
    below = host + ssd + store
    take_blocks(state, rank_id, below * state.pools[state.ranks[rank_id].pool].blocks_per_slot)
    for position in range(found):
        block = state.chain[request.chain_start + position]
        if state.slot_of[rank_id, block] == NONE:
            state.slots[rank_id, _new_slot(state, rank_id, block)].references = 1
    request.shared_blocks = found
    return host, ssd, store


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
    before = request.shared_blocks
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
            state.slots[rank_id, _new_slot(state, rank_id, block)].references = 1
        else:
            _refer(state, rank_id, slot)
    if state.clock[0].retention == WRITE_THROUGH:
        first = request.chain_start + before
        _copy_down(state, rank_id, first, request.shared_blocks - before)


@compiled
def give_back(state: State, rank_id: int, request_id: int) -> None:
    """Give back what a finished request holds; what its session goes on with is retained.

    The next turn's prompt begins with this prompt and this answer. Its prefix blocks that the
    answer filled take the place of the request's own blocks, as far as there is room. With
    offloading at the end of a turn both then leave HBM for the tier below.
    """
    rank = state.ranks[rank_id]
    pool = state.pools[rank.pool]
    request = state.requests[request_id]
    rank.used_blocks -= request.private_blocks
    if pool.caching == 0:
        if pool.stores_answers == 1:
            first, blocks = _session_blocks(state, request_id, 0)
            _copy_down(state, rank_id, first, blocks)
        return
    known = request.input // state.clock[0].slot_tokens
    first, blocks = _session_blocks(state, request_id, known)
    for back in range(blocks):  # the deepest first, so that it is the oldest
        block = state.chain[first + blocks - 1 - back]
        room = rank.used_blocks + pool.blocks_per_slot <= pool.capacity_blocks
        if room and state.slot_of[rank_id, block] == NONE:
            rank.used_blocks += pool.blocks_per_slot
            _make_idle(state, rank_id, _new_slot(state, rank_id, block))
    if state.clock[0].retention == WRITE_THROUGH:
        _copy_down(state, rank_id, first, blocks)
    release(state, rank_id, request_id, request.shared_blocks, 0)
    if state.clock[0].retention == OFFLOAD:
        entered = _leave_hbm(state, rank_id, first, blocks)
        entered += _leave_hbm(state, rank_id, request.chain_start, request.shared_blocks)
        _write_to_store(state, rank_id, entered)


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
def _session_blocks(state: State, request_id: int, known: int) -> tuple[int, int]:
    """The blocks of State.chain from `known` on that a finished request leaves for its session.

    They are the full ones of the next turn's prompt, as far as prompt and answer fill them, or of
    its own prompt where there is no next turn or answers are not given back unchanged.
    """
    clock = state.clock[0]
    request = state.requests[request_id]
    chain, length, filled = request.chain_start, request.chain_length, request.input
    if request.first_child != NONE and clock.keep_answers == 1:
        child = state.requests[request.first_child]
        chain, length, filled = child.chain_start, child.chain_length, request.computed
    blocks = min(filled // clock.slot_tokens, length)
    return int(chain + known), int(max(0, blocks - known))


@compiled
def _copy_down(state: State, rank_id: int, first: int, blocks: int) -> None:
    """Copy `blocks` of State.chain from `first` on into the rank's nearest tier and the store.

    The deepest block goes first, so that it is the first to leave. What enters the store crosses
    the network in the background.
    """
    store = state.clock[0].store_tier
    entered = 0
    for back in range(blocks):
        block = state.chain[first + blocks - 1 - back]
        entered += move_down(state, rank_id, block)
        if store != NONE and state.tier_slot_of[store, block] == NONE:
            insert(state, store, block)
            entered += 1
    _write_to_store(state, rank_id, entered)


@compiled
def _write_to_store(state: State, rank_id: int, blocks: int) -> None:
    """Charge the network with prefix blocks on their way to the shared store."""
    clock = state.clock[0]
    if blocks > 0:
        size = blocks * clock.slot_tokens * clock.token_bytes
        start_flow(state, STORE_WRITE, NONE, state.ranks[rank_id].net_link, clock.store_link, size)


@compiled
def _leave_hbm(state: State, rank_id: int, first: int, blocks: int) -> int:
    """Move idle blocks of State.chain down from HBM; returns how many enter the store."""
    entered = 0
    for back in range(blocks):
        slot_id = state.slot_of[rank_id, state.chain[first + blocks - 1 - back]]
        if slot_id != NONE and state.slots[rank_id, slot_id].references == 0:
            entered += _evict(state, rank_id, slot_id, True)
    return entered


@compiled
def _in_hbm(state: State, rank_id: int, block: int) -> bool:
    """Whether HBM holds a block, and has not forgotten it if it is idle."""
    slot_id = state.slot_of[rank_id, block]
    if slot_id == NONE:
        return False
    slot = state.slots[rank_id, slot_id]
    idle_s = state.clock[0].now_s - slot.touched_s
    return bool(slot.references > 0 or idle_s <= state.clock[0].idle_limit_s)


@compiled
def _refer(state: State, rank_id: int, slot_id: int) -> None:
    slot = state.slots[rank_id, slot_id]
    if slot.references == 0:
        _make_busy(state, rank_id, slot_id)
    slot.references += 1


@compiled
def _new_slot(state: State, rank_id: int, block: int) -> int:
    """A slot for a block, which nobody refers to and no list holds yet."""
    rank = state.ranks[rank_id]
    slot_id = rank.slot_free
    slot = state.slots[rank_id, slot_id]
    rank.slot_free = slot.newer  # unused slots are chained through `newer`
    slot.block = block
    slot.references = 0
    state.slot_of[rank_id, block] = slot_id
    return int(slot_id)


@compiled
def _make_idle(state: State, rank_id: int, slot_id: int) -> None:
    rank = state.ranks[rank_id]
    rank.newest = append(state.slots[rank_id], rank.newest, slot_id)
    if rank.oldest == NONE:
        rank.oldest = slot_id
    rank.idle_slots += 1
    state.slots[rank_id, slot_id].touched_s = state.clock[0].now_s


@compiled
def _make_busy(state: State, rank_id: int, slot_id: int) -> None:
    rank = state.ranks[rank_id]
    rank.oldest, rank.newest = unlink(state.slots[rank_id], rank.oldest, rank.newest, slot_id)
    rank.idle_slots -= 1


@compiled
def _evict(state: State, rank_id: int, slot_id: int, keep: bool) -> int:
    """Free an idle slot; with `keep` its block moves down unless it is forgotten.

    Returns how many blocks entered the shared store by this.
    """
    rank = state.ranks[rank_id]
    slot = state.slots[rank_id, slot_id]
    remembered = _in_hbm(state, rank_id, slot.block)
    _make_busy(state, rank_id, slot_id)
    state.slot_of[rank_id, slot.block] = NONE
    slot.newer = rank.slot_free
    rank.slot_free = slot_id
    rank.used_blocks -= state.pools[rank.pool].blocks_per_slot
    return int(move_down(state, rank_id, slot.block)) if keep and remembered else 0
