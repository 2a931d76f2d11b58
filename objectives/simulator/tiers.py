"""Where prefix blocks rest below HBM: host memory and disk of a rank, a store shared by all.

Each tier keeps whole prefix blocks, the least recently used one leaving first when it is full. A
block that leaves moves on to the next tier of its rank where the plan retains blocks by use.
"""

from __future__ import annotations

from typing import Any

from objectives.simulator.jit import compiled
from objectives.simulator.slots import append, unlink
from objectives.simulator.state import HOST, NONE, SSD, STORE, Records, State


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
        if tier != NONE:
            slot_id = state.tier_slot_of[tier, block]
            if slot_id != NONE and _remembered(state.clock[0], state.tier_slots[tier, slot_id]):
                return level
    return NONE


@compiled
def touch(state: State, tier: int, block: int) -> None:
    """Make a block of a tier the most recently used."""
    slots, slot_id = state.tier_slots[tier], state.tier_slot_of[tier, block]
    _make_newest(state.clock[0], state.tiers[tier], slots, slot_id)


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
    clock, ends = state.clock[0], state.tiers[tier]
    slots, slot_of = state.tier_slots[tier], state.tier_slot_of[tier]
    if slot_of[block] != NONE:
        _make_newest(clock, ends, slots, slot_of[block])
        return NONE
    pushed_out = NONE
    if ends.free != NONE:
        slot_id = ends.free
        ends.free = slots[slot_id].newer
    else:
        slot_id = ends.oldest
        ends.oldest, ends.newest = unlink(slots, ends.oldest, ends.newest, slot_id)
        gone = slots[slot_id].block
        if _remembered(clock, slots[slot_id]):
            pushed_out = gone
        slot_of[gone] = NONE
    slots[slot_id].block = block
    slot_of[block] = slot_id
    clock.cache_version += 1
    _append(clock, ends, slots, slot_id)
    return int(pushed_out)


# Below, single records and arrays are handed over instead of the state: taking them out of it for
# every block costs more than the work itself.


@compiled
def _remembered(clock: Any, slot: Any) -> bool:
    return bool(clock.now_s - slot.touched_s <= clock.idle_limit_s)


@compiled
def _make_newest(clock: Any, ends: Any, slots: Records, slot_id: int) -> None:
    ends.oldest, ends.newest = unlink(slots, ends.oldest, ends.newest, slot_id)
    _append(clock, ends, slots, slot_id)


@compiled
def _append(clock: Any, ends: Any, slots: Records, slot_id: int) -> None:
    ends.newest = append(slots, ends.newest, slot_id)
    if ends.oldest == NONE:
        ends.oldest = slot_id
    slots[slot_id].touched_s = clock.now_s
