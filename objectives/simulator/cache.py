"""KV memory of a rank: blocks owned by requests, prefix blocks shared through caches.

A prefix block of the workload takes one *slot* of the rank's HBM cache while it is there. A slot
that some running request refers to is pinned; an idle one is kept until its blocks are needed,
least recently used first. What becomes of it then, and whether it is copied or moved to lower
tiers before, is the plan's retention (`objectives.simulator.state`: LRU, WRITE_THROUGH, OFFLOAD).
"""

from __future__ import annotations

from typing import Any

from objectives.simulator.jit import compiled
from objectives.simulator.prompt_costs import prompt_seconds
from objectives.simulator.slots import append, unlink
from objectives.simulator.state import (
    HOST,
    LRU,
    NONE,
    OFFLOAD,
    SSD,
    STORE,
    WRITE_THROUGH,
    Records,
    State,
)
from objectives.simulator.tiers import (
    insert,
    level_with,
    move_down,
    start_writes,
    tier_of,
    touch,
)


@compiled
def blocks_for(tokens: int, block_tokens: int) -> int:
    """KV blocks that hold `tokens` tokens; none for a negative count."""
    return max(0, (tokens + block_tokens - 1) // block_tokens)


@compiled
def room_tokens(request: Any, fixed_blocks: int, block_tokens: int, slot_tokens: int) -> int:
    """Tokens beyond the computed ones that the blocks of a request (a record) still take."""
    own = (request.private_blocks - fixed_blocks) * block_tokens
    return int(own + request.shared_blocks * slot_tokens - request.computed)


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
    if rank.used_blocks + blocks > capacity:
        while rank.used_blocks + blocks > capacity:
            assert rank.oldest != NONE  # callers take no more than is available
            _evict(state, rank_id, rank.oldest, state.clock[0].retention == LRU)
        start_writes(state, rank_id)
    rank.used_blocks += blocks
    rank.peak_blocks = max(rank.peak_blocks, rank.used_blocks)


@compiled
def matched_blocks(state: State, rank_id: int, request_id: int) -> tuple[int, int, int]:
    """How much of a request's prefix a rank can reach, as leading blocks.

    Returns the leading blocks found in HBM or a lower tier, how many of them are not in HBM, and
    how many are idle in HBM (and so not available to evict, once used). The answer is kept for
    the next question, which is mostly the same, until some cache changes.
    """
    clock = state.clock[0]
    rank = state.ranks[rank_id]
    if state.pools[rank.pool].caching == 0:
        return 0, 0, 0
    known = rank.match_request == request_id and rank.match_version == clock.cache_version
    if not known or clock.idle_limit_s < float("inf"):
        found, below, idle = _match(state, rank_id, request_id)
        rank.match_request, rank.match_version = request_id, clock.cache_version
        rank.match_found, rank.match_below, rank.match_idle = found, below, idle
    return int(rank.match_found), int(rank.match_below), int(rank.match_idle)


@compiled
def _match(state: State, rank_id: int, request_id: int) -> tuple[int, int, int]:
    """What `matched_blocks` tells, looked up anew."""
    clock, request = state.clock[0], state.requests[request_id]
    chain, slots, slot_of = state.chain, state.slots[rank_id], state.slot_of[rank_id]
    found, idle, lead, lead_idle = 0, 0, 0, 0
    host, ssd, store = 0, 0, 0
    while found < request.chain_length:
        block = chain[request.chain_start + found]
        if _in_hbm(clock, slots, slot_of[block]):
            idle += slots[slot_of[block]].references == 0
        else:
            level = level_with(state, rank_id, block)
            if level == NONE:
                break
            if host + ssd + store == 0:
                lead, lead_idle = found, idle
            host += level == HOST
            ssd += level == SSD
            store += level == STORE
        found += 1
    below = host + ssd + store
    if below > 0 and clock.fetch_when_faster == 1:
        fetch_s = _fetch_seconds(state, rank_id, host, ssd, store)
        if not _fetch_pays(state, rank_id, request_id, lead, found, fetch_s):
            return lead, 0, lead_idle
    return found, below, idle


@compiled
def _fetch_seconds(state: State, rank_id: int, host: int, ssd: int, store: int) -> float:
    """Seconds to fetch so many blocks of each level if the flows of now shared their links."""
    clock, rank = state.clock[0], state.ranks[rank_id]
    block_bytes = clock.slot_tokens * clock.token_bytes
    seconds = 0.0
    if host > 0:
        seconds = host * block_bytes / _share(state, rank.host_link)
    if ssd > 0:
        seconds = max(seconds, ssd * block_bytes / _share(state, rank.ssd_link))
    if store > 0:
        rate = min(_share(state, rank.net_link), _share(state, clock.store_link))
        seconds = max(seconds, store * block_bytes / rate)
    return float(seconds)


@compiled
def _share(state: State, link_id: int) -> float:
    link = state.links[link_id]
    return float(link.bytes_per_s / (link.flows + 1))


@compiled
def _fetch_pays(
    state: State, rank_id: int, request_id: int, lead: int, found: int, fetch_s: float
) -> bool:
    """Whether fetching and computing the rest takes no longer than computing all beyond `lead`."""
    pool_id, target = state.ranks[rank_id].pool, state.requests[request_id].target
    slot_tokens = state.clock[0].slot_tokens
    fetched = min(found * slot_tokens, target - 1)
    kept = min(lead * slot_tokens, target - 1)
    with_fetch_s = fetch_s + prompt_seconds(state, pool_id, fetched, target)
    return bool(with_fetch_s <= prompt_seconds(state, pool_id, kept, target))


@compiled
def pin_prefix(state: State, rank_id: int, request_id: int, found: int) -> tuple[int, int, int]:
    """Refer to the first `found` prefix blocks; those below HBM get a slot in it.

    Returns how many have to be fetched from host memory, disk and the shared store.
    """
    clock, request, rank = state.clock[0], state.requests[request_id], state.ranks[rank_id]
    request.shared_blocks, request.joined = found, 0
    if found == 0:  # a rank without a cache has no slots to look at
        return 0, 0, 0
    chain, slots, slot_of = state.chain, state.slots[rank_id], state.slot_of[rank_id]
    host, ssd, store = 0, 0, 0
    for position in range(found):  # first what is there, lest making room evicts it
        block = chain[request.chain_start + position]
        if _in_hbm(clock, slots, slot_of[block]):
            if _comes_for_another(slots[slot_of[block]], request_id):
                request.joined = 1
            _refer(clock, rank, slots, slot_of[block])
            continue
        level = level_with(state, rank_id, block)
        touch(state, tier_of(state, rank_id, level), block)
        host += level == HOST
        ssd += level == SSD
        store += level == STORE
        if slot_of[block] != NONE:  # in HBM, but forgotten
            _evict(state, rank_id, slot_of[block], False)
    below = host + ssd + store
    if below > 0:
        take_blocks(state, rank_id, below * state.pools[rank.pool].blocks_per_slot)
        for position in range(found):
            block = chain[request.chain_start + position]
            if slot_of[block] == NONE:
                _bring(clock, rank, slots, slot_of, block, request_id)
    return host, ssd, store


@compiled
def waits_for_others(state: State, rank_id: int, request_id: int) -> bool:
    """Whether a prefix block that a request refers to is on its way for another one."""
    request, slots, slot_of = (
        state.requests[request_id],
        state.slots[rank_id],
        state.slot_of[rank_id],
    )
    for position in range(request.shared_blocks):
        slot_id = slot_of[state.chain[request.chain_start + position]]
        if _comes_for_another(slots[slot_id], request_id):
            return True
    return False


@compiled
def end_bringing(state: State, rank_id: int, request_id: int, blocks: int) -> None:
    """What was fetched for a request, of its first `blocks` prefix blocks, is all there."""
    request, slots, slot_of = (
        state.requests[request_id],
        state.slots[rank_id],
        state.slot_of[rank_id],
    )
    for position in range(blocks):
        slot = slots[slot_of[state.chain[request.chain_start + position]]]
        if slot.bringer == request_id:
            slot.bringer = NONE


@compiled
def has_room(state: State, rank_id: int) -> bool:
    """Whether a block fetched ahead of its request's admission has room that nobody misses.

    It takes none from running requests, which could each still have a block, nor from a cached
    block that was used since the first waiting request came: those are what is fetched ahead for
    others, among them.
    """
    rank = state.ranks[rank_id]
    pool = state.pools[rank.pool]
    if available_blocks(state, rank_id) - pool.blocks_per_slot < rank.running:
        return False
    if rank.used_blocks + pool.blocks_per_slot <= pool.capacity_blocks:
        return True
    came_s = state.requests[rank.queue_head].entered_s
    return bool(rank.oldest != NONE and state.slots[rank_id, rank.oldest].touched_s < came_s)


@compiled
def pin_ahead(state: State, rank_id: int, request_id: int, found: int) -> tuple[int, int, int]:
    """Keep the first `found` prefix blocks of a waiting request while some are fetched.

    Those below HBM get a slot in it, as far as there is room. Returns how many have to be fetched
    from host memory, disk and the shared store.
    """
    clock, request, rank = state.clock[0], state.requests[request_id], state.ranks[rank_id]
    chain, slots, slot_of = state.chain, state.slots[rank_id], state.slot_of[rank_id]
    pool = state.pools[rank.pool]
    host, ssd, store, kept = 0, 0, 0, 0
    while kept < found:
        block = chain[request.chain_start + kept]
        if _in_hbm(clock, slots, slot_of[block]):
            _refer(clock, rank, slots, slot_of[block])
        else:
            if slot_of[block] != NONE:  # in HBM, but forgotten
                _evict(state, rank_id, slot_of[block], False)
            level = level_with(state, rank_id, block)
            if level == NONE or not has_room(state, rank_id):
                break  # those before it may have pushed it out of its tier
            touch(state, tier_of(state, rank_id, level), block)
            if rank.used_blocks + pool.blocks_per_slot > pool.capacity_blocks:
                _evict(state, rank_id, rank.oldest, clock.retention == LRU)
            rank.used_blocks += pool.blocks_per_slot
            rank.peak_blocks = max(rank.peak_blocks, rank.used_blocks)
            _bring(clock, rank, slots, slot_of, block, request_id)
            host += level == HOST
            ssd += level == SSD
            store += level == STORE
        kept += 1
    start_writes(state, rank_id)
    request.ahead_blocks = kept
    request.ahead_host, request.ahead_ssd, request.ahead_store = host, ssd, store
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
    clock, chain = state.clock[0], state.chain
    slots, slot_of = state.slots[rank_id], state.slot_of[rank_id]
    block_tokens, slot_tokens = clock.block_tokens, clock.slot_tokens
    before = request.shared_blocks
    while request.shared_blocks < request.chain_length:
        rest = request.computed - (request.shared_blocks + 1) * slot_tokens
        private = blocks_for(rest, block_tokens) + pool.fixed_blocks
        block = chain[request.chain_start + request.shared_blocks]
        slot = slot_of[block]
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
            slots[_new_slot(clock, rank, slots, slot_of, block)].references = 1
        else:
            _refer(clock, rank, slots, slot)
    if clock.retention == WRITE_THROUGH:
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
    clock, slots, slot_of = state.clock[0], state.slots[rank_id], state.slot_of[rank_id]
    for back in range(blocks):  # the deepest first, so that it is the oldest
        block = state.chain[first + blocks - 1 - back]
        room = rank.used_blocks + pool.blocks_per_slot <= pool.capacity_blocks
        if room and slot_of[block] == NONE:
            rank.used_blocks += pool.blocks_per_slot
            _make_idle(clock, rank, slots, _new_slot(clock, rank, slots, slot_of, block))
    if state.clock[0].retention == WRITE_THROUGH:
        _copy_down(state, rank_id, first, blocks)
    release(state, rank_id, request_id, request.shared_blocks, 0)
    if state.clock[0].retention == OFFLOAD:
        _leave_hbm(state, rank_id, first, blocks)
        _leave_hbm(state, rank_id, request.chain_start, request.shared_blocks)
        start_writes(state, rank_id)


@compiled
def release(state: State, rank_id: int, request_id: int, shared: int, private: int) -> None:
    """Give back what a request holds on a rank; its prefix blocks stay cached, deepest oldest."""
    clock, rank = state.clock[0], state.ranks[rank_id]
    rank.used_blocks -= private
    if shared == 0:
        return
    chain, slots, slot_of = state.chain, state.slots[rank_id], state.slot_of[rank_id]
    last = state.requests[request_id].chain_start + shared - 1
    for back in range(shared):
        slot_id = slot_of[chain[last - back]]
        slots[slot_id].references -= 1
        if slots[slot_id].references == 0:
            _make_idle(clock, rank, slots, slot_id)


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

    The deepest block goes first, so that it is the first to leave.
    """
    store = state.clock[0].store_tier
    for back in range(blocks):
        block = state.chain[first + blocks - 1 - back]
        move_down(state, rank_id, block)
        if store != NONE and state.tier_slot_of[store, block] == NONE:
            insert(state, rank_id, STORE, block)
    start_writes(state, rank_id)


@compiled
def _leave_hbm(state: State, rank_id: int, first: int, blocks: int) -> None:
    """Move idle blocks of State.chain down from HBM."""
    for back in range(blocks):
        slot_id = state.slot_of[rank_id, state.chain[first + blocks - 1 - back]]
        if slot_id != NONE and state.slots[rank_id, slot_id].references == 0:
            _evict(state, rank_id, slot_id, True)


@compiled
def _evict(state: State, rank_id: int, slot_id: int, keep: bool) -> None:
    """Free an idle slot; with `keep` its block moves down unless it is forgotten."""
    clock, rank = state.clock[0], state.ranks[rank_id]
    slots = state.slots[rank_id]
    block = slots[slot_id].block
    remembered = _in_hbm(clock, slots, slot_id)
    _make_busy(clock, rank, slots, slot_id)
    state.slot_of[rank_id, block] = NONE
    slots[slot_id].newer = rank.slot_free
    rank.slot_free = slot_id
    rank.used_blocks -= state.pools[rank.pool].blocks_per_slot
    if keep and remembered:
        move_down(state, rank_id, block)


# Below, single records and arrays are handed over instead of the state: taking them out of it for
# every block costs more than the work itself.


@compiled
def _in_hbm(clock: Any, slots: Records, slot_id: int) -> bool:
    """Whether there is a slot, and its block is not forgotten if it is idle."""
    if slot_id == NONE:
        return False
    slot = slots[slot_id]
    idle_s = clock.now_s - slot.touched_s
    return bool(slot.references > 0 or idle_s <= clock.idle_limit_s)


@compiled
def _refer(clock: Any, rank: Any, slots: Records, slot_id: int) -> None:
    if slots[slot_id].references == 0:
        _make_busy(clock, rank, slots, slot_id)
    slots[slot_id].references += 1


@compiled
def _new_slot(clock: Any, rank: Any, slots: Records, slot_of: Any, block: int) -> int:
    """A slot for a block, which nobody refers to and no list holds yet."""
    slot_id = rank.slot_free
    slot = slots[slot_id]
    rank.slot_free = slot.newer  # unused slots are chained through `newer`
    slot.block = block
    slot.references = 0
    slot.bringer = NONE
    slot_of[block] = slot_id
    clock.cache_version += 1
    return int(slot_id)


@compiled
def _bring(
    clock: Any, rank: Any, slots: Records, slot_of: Any, block: int, request_id: int
) -> None:
    """A slot for a block that is to be fetched for a request."""
    slot = slots[_new_slot(clock, rank, slots, slot_of, block)]
    slot.references = 1
    slot.bringer = request_id


@compiled
def _comes_for_another(slot: Any, request_id: int) -> bool:
    return bool(slot.bringer not in (NONE, request_id))


@compiled
def _make_idle(clock: Any, rank: Any, slots: Records, slot_id: int) -> None:
    rank.newest = append(slots, rank.newest, slot_id)
    if rank.oldest == NONE:
        rank.oldest = slot_id
    rank.idle_slots += 1
    slots[slot_id].touched_s = clock.now_s
    clock.cache_version += 1


@compiled
def _make_busy(clock: Any, rank: Any, slots: Records, slot_id: int) -> None:
    rank.oldest, rank.newest = unlink(slots, rank.oldest, rank.newest, slot_id)
    rank.idle_slots -= 1
    clock.cache_version += 1
