"""Lists of slots in order of use: linked through the slots themselves, the oldest first."""

from __future__ import annotations

from objectives.simulator.jit import compiled
from objectives.simulator.state import NONE, Records


@compiled
def append(slots: Records, newest: int, slot_id: int) -> int:
    """Link a slot behind the newest one; returns the new newest."""
    slots[slot_id].older = newest
    slots[slot_id].newer = NONE
    if newest != NONE:
        slots[newest].newer = slot_id
    return slot_id


@compiled
def unlink(slots: Records, oldest: int, newest: int, slot_id: int) -> tuple[int, int]:
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
