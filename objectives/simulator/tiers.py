"""Where prefix blocks rest below HBM: host memory and disk of a rank, a store shared by all.

Each tier keeps whole prefix blocks, the least recently used one leaving first when it is full. A
block that leaves moves on to the next tier of its rank where the plan retains blocks by use.
"""

from __future__ import annotations

from objectives.simulator.jit import compiled
from objectives.simulator.slots import append, unlink
from objectives.simulator.state import HOST, NONE, SSD, STORE, State


@compiled
def tier_of(state: State, rank_id: int, level: int) -> int:
    """The tier of a rank at a level, or NONE."""
    if level == HOST:
        return int(state.ranks[rank_id].host_tier)
    if level == SSD:
        return int(state.ranks[rank_id].ssd_tier)
    return int(state.clock[0].store_tier)


@compiled
def level_with(state: State, rank_id: int, block: int) -> int:
    """The nearest level below HBM at which a rank finds a block, or NONE."""
    for level in range(HOST, STORE + 1):
        tier = tier_of(state, rank_id, level)
        if tier != NONE and tier_has(state, tier, block):
            return level
    return NONE


@compiled
def tier_has(state: State, tier: int, block: int) -> bool:
    """Whether a tier holds a block and has not forgotten it."""
    slot = state.tier_slot_of[tier, block]
    if slot == NONE:
        return False
    idle_s = state.clock[0].now_s - state.tier_slots[tier, slot].touched_s
    return bool(idle_s <= state.clock[0].idle_limit_s)


@compiled
def touch(state: State, tier: int, block: int) -> None:
    """Make a block of a tier the most recently used."""
    slot_id = state.tier_slot_of[tier, block]
    slots, ends = state.tier_slots[tier], state.tiers[tier]
    ends.oldest, ends.newest = unlink(slots, ends.oldest, ends.newest, slot_id)
    _append(state, tier, slot_id)


@compiled
def move_down(state: State, rank_id: int, block: int) -> int:
    """Put a block into the rank's nearest tier; what that pushes out goes to the next, and so on.

    Returns how many blocks entered the shared store by this.
    """
    entered = 0
    for level in range(HOST, STORE + 1):
        tier = tier_of(state, rank_id, level)
        if tier != NONE and block != NONE:
            entered += level == STORE and state.tier_slot_of[tier, block] == NONE
            block = insert(state, tier, block)
    return entered


@compiled
def insert(state: State, tier: int, block: int) -> int:
    """Put a block into a tier; returns the block that had to leave, or NONE."""
    if state.tier_slot_of[tier, block] != NONE:
        touch(state, tier, block)
        return NONE
    slots, ends = state.tier_slots[tier], state.tiers[tier]
    pushed_out = NONE
    if ends.free != NONE:
        slot_id = ends.free
        ends.free = slots[slot_id].newer
    else:
        slot_id = ends.oldest
        ends.oldest, ends.newest = unlink(slots, ends.oldest, ends.newest, slot_id)
        gone = slots[slot_id].block
        if tier_has(state, tier, gone):
            pushed_out = gone
        state.tier_slot_of[tier, gone] = NONE
    slots[slot_id].block = block
    state.tier_slot_of[tier, block] = slot_id
    _append(state, tier, slot_id)
    return int(pushed_out)


@compiled
def _append(state: State, tier: int, slot_id: int) -> None:
    ends = state.tiers[tier]
    ends.newest = append(state.tier_slots[tier], ends.newest, slot_id)
    if ends.oldest == NONE:
        ends.oldest = slot_id
    state.tier_slots[tier, slot_id].touched_s = state.clock[0].now_s
