"""Where prefix blocks rest below HBM: host memory and disk of a rank, a store shared by all.

Each tier keeps whole prefix blocks, the least recently used one leaving first when it is full. A
block that leaves moves on to the next tier of its rank where the plan retains blocks by use.

A block takes its room at once, and is there when it has been written. A rank writes to each of its
tiers one after the other: what comes while it writes waits, and goes together. A tier whose room
is all being written to takes no more, and is passed over.
"""

from __future__ import annotations

from typing import Any

from objectives.simulator.flows import start_flow
from objectives.simulator.jit import compiled
from objectives.simulator.slots import append, unlink
from objectives.simulator.state import (
    HOST,
    LEVELS,
    NONE,
    SSD,
    STORE,
    TIER_WRITE,
    Records,
    State,
)


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
            if slot_id != NONE and _is_there(state.clock[0], state.tier_slots[tier, slot_id]):
                return level
    return NONE


@compiled
def touch(state: State, tier: int, block: int) -> None:
    """Make a block of a tier the most recently used."""
    slots, slot_id = state.tier_slots[tier], state.tier_slot_of[tier, block]
    _make_newest(state.clock[0], state.tiers[tier], slots, slot_id)


@compiled
def move_down(state: State, rank_id: int, block: int) -> None:
    """Put a block into the rank's nearest tier; what that pushes out goes to the next, and so on.

    Writing begins with `start_writes`.
    """
    for level in range(HOST, STORE + 1):
        if block != NONE and tier_of(state, rank_id, level) != NONE:
            block = insert(state, rank_id, level, block)


@compiled
def insert(state: State, rank_id: int, level: int, block: int) -> int:
    """Give a block room in a tier, to be written; returns the block that is left without, or NONE.

    That is the block that had to leave, or `block` itself where all room is being written to.
    """
    tier = tier_of(state, rank_id, level)
    clock, ends = state.clock[0], state.tiers[tier]
    slots, slot_of = state.tier_slots[tier], state.tier_slot_of[tier]
    if slot_of[block] != NONE:
        if slots[slot_of[block]].references == 0:
            _make_newest(clock, ends, slots, slot_of[block])
        return NONE
    if ends.free == NONE and ends.oldest == NONE:
        return block
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
        clock.cache_version += 1
    slots[slot_id].block = block
    slots[slot_id].references = 1
    slot_of[block] = slot_id
    _queue(state.writers[rank_id * LEVELS + level], slots, slot_id)
    return int(pushed_out)


@compiled
def start_writes(state: State, rank_id: int) -> None:
    """Begin to write what has been given room in the tiers of a rank."""
    for level in range(HOST, STORE + 1):
        writer_id = rank_id * LEVELS + level
        writer = state.writers[writer_id]
        if writer.waiting > 0 and writer.first_moving == NONE:
            _start_write(state, writer_id)


@compiled
def end_write(state: State, writer_id: int) -> None:
    """What a rank wrote to a tier is there now; what has come meanwhile is written next."""
    clock, writer = state.clock[0], state.writers[writer_id]
    ends, slots = state.tiers[writer.tier], state.tier_slots[writer.tier]
    slot_id = writer.first_moving
    while slot_id != NONE:
        following = slots[slot_id].newer
        slots[slot_id].references = 0
        _append(clock, ends, slots, slot_id)
        slot_id = following
    writer.first_moving = NONE
    clock.cache_version += 1
    if writer.waiting > 0:
        _start_write(state, writer_id)


@compiled
def _start_write(state: State, writer_id: int) -> None:
    clock, writer = state.clock[0], state.writers[writer_id]
    rank = state.ranks[writer_id // LEVELS]
    level = writer_id % LEVELS
    size = writer.waiting * clock.slot_tokens * clock.token_bytes
    writer.written_bytes += size
    writer.first_moving = writer.first_waiting
    writer.first_waiting, writer.last_waiting, writer.waiting = NONE, NONE, 0
    if level == HOST:
        start_flow(state, TIER_WRITE, writer_id, rank.host_link, NONE, size)
    elif level == SSD:
        start_flow(state, TIER_WRITE, writer_id, rank.ssd_link, NONE, size)
    else:
        start_flow(state, TIER_WRITE, writer_id, rank.net_link, clock.store_link, size)


# Below, single records and arrays are handed over instead of the state: taking them out of it for
# every block costs more than the work itself.


@compiled
def _remembered(clock: Any, slot: Any) -> bool:
    return bool(clock.now_s - slot.touched_s <= clock.idle_limit_s)


@compiled
def _is_there(clock: Any, slot: Any) -> bool:
    """Whether a block has been written and is not forgotten."""
    return bool(slot.references == 0 and _remembered(clock, slot))


@compiled
def _queue(writer: Any, slots: Records, slot_id: int) -> None:
    """Let a slot wait to be written."""
    slots[slot_id].newer = NONE
    if writer.waiting == 0:
        writer.first_waiting = slot_id
    else:
        slots[writer.last_waiting].newer = slot_id
    writer.last_waiting = slot_id
    writer.waiting += 1


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
