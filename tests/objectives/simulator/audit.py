"""Looks into the fast simulator's state between any two events, with its source interpreted.

Written from what the fields of the state mean, not from the code that keeps them.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from objectives.simulator import SimulationResult, admission, loop, simulate
from objectives.simulator.state import (
    COPY_OUT,
    DECODING,
    ENTRY,
    EXPECTED,
    FINISHED,
    FRONT_END,
    HAND_OFF,
    HAND_OFF_PART,
    HANDED_OFF,
    HELD,
    NONE,
    PREFILLING,
    RECEIVING,
    REJECTED,
    SWAPPED,
    TURNED_AWAY,
    WAITING,
    State,
)
from tests.objectives.simulator.worlds import World

SEATED = (PREFILLING, DECODING, HELD, RECEIVING)
QUEUED = (WAITING, SWAPPED, HANDED_OFF)


class Audit:
    """Checks the laws of the state each time it is called; knows what it saw before.

    `request_seconds` [pools] sums the requests at each pool over time.
    """

    def __init__(self, pools: int) -> None:
        self.now_s = 0.0
        self.request_seconds = np.zeros(pools)
        self.looks = 0

    def __call__(self, state: State) -> None:
        """Between two events."""
        self.looks += 1
        clock = state.clock[0]
        assert clock.now_s >= self.now_s, "the clock went back"
        at_pool = np.zeros(len(self.request_seconds), np.int64)
        np.add.at(at_pool, self._pools_of_ranks, self._outstanding_before)
        self.request_seconds += at_pool * (clock.now_s - self.now_s)
        self.now_s = clock.now_s
        self._pools_of_ranks = state.ranks["pool"].copy()
        self._outstanding_before = state.ranks["outstanding"].copy()
        next_s = _next_s(state)
        assert next_s >= clock.now_s, "something is to happen in the past"
        _requests_are_counted(state)
        for rank_id in range(len(state.ranks)):
            _blocks_are_counted(state, rank_id)
        for tier_id in range(len(state.tiers)):
            _tier_is_counted(state, tier_id)
        if next_s > clock.now_s:  # all of this moment has happened
            for replica_id in range(len(state.replicas)):
                _nothing_idles(state, replica_id)

    _pools_of_ranks = np.zeros(0, np.int64)
    _outstanding_before = np.zeros(0, np.int64)


def audited(world: World, patch: pytest.MonkeyPatch) -> tuple[SimulationResult, Audit]:
    """The result of a world, each of whose moments was looked at."""
    audit = Audit(len(world[0].pools))
    asks_first = loop._flow_is_next  # what the loop does first in each of its rounds

    def looked_at(state: State) -> bool:
        audit(state)
        return asks_first(state)

    with patch.context() as within:
        within.setattr(loop, "_flow_is_next", looked_at)
        return simulate(*world), audit


def _next_s(state: State) -> float:
    """When the next event, flow or arrival is."""
    clock = state.clock[0]
    times = [event.time_s for event in state.events[: clock.events]]
    if clock.flows:
        times.append(clock.flow_end_s)
    if not clock.closed_loop and clock.next_root < len(state.roots):
        times.append(state.requests[state.roots[clock.next_root]].arrival_s)
    return min(times, default=np.inf)


def _requests_are_counted(state: State) -> None:
    """Each request is before, in, or past the deployment, and in one place of it."""
    clock = state.clock[0]
    phases = Counter(state.requests["phase"].tolist())
    entering = sum(event.priority == ENTRY for event in state.events[: clock.events])
    entering += _at_front_end(state)
    past = phases[FINISHED] + phases[REJECTED] + phases[TURNED_AWAY]
    assert clock.in_flight == len(state.requests) - phases[EXPECTED] - past + entering
    places = [request for rank_id in range(len(state.ranks)) for request in _at(state, rank_id)]
    inside = np.flatnonzero(np.isin(state.requests["phase"], SEATED + QUEUED))
    assert sorted(places) == inside.tolist()


def _at_front_end(state: State) -> int:
    """Requests that have a core of the front end, or wait for one."""
    station = state.stations[FRONT_END]
    found, request_id = int(station.busy), station.head
    while request_id != NONE:
        found += 1
        request_id = state.requests[request_id].next
    return found


def _at(state: State, rank_id: int) -> list[int]:
    """Requests seated at a rank and waiting for it."""
    rank = state.ranks[rank_id]
    seated: list[int] = state.seats[rank.seats_start :][: rank.running].tolist()
    elsewhere = _asking(state, rank_id)
    waiting = [r for r in _waiting(state, rank_id) if r not in elsewhere]
    assert all(state.requests[r].phase in SEATED for r in seated)
    assert all(state.requests[r].phase in QUEUED for r in waiting)
    at_home = [r for r in seated + waiting if state.requests[r].decode_rank != rank_id]
    assert all(state.requests[r].rank == rank_id for r in seated + at_home)
    return seated + waiting


def _waiting(state: State, rank_id: int) -> list[int]:
    """Requests in the queue of a rank, in order."""
    rank, waiting = state.ranks[rank_id], []
    request_id = rank.queue_head
    for _ in range(rank.waiting):
        waiting.append(int(request_id))
        request_id = state.requests[request_id].next
    return waiting


def _asking(state: State, rank_id: int) -> list[int]:
    """Requests that wait for a place in a decode rank while their prompts are computed."""
    requests = state.requests
    return [
        r
        for r in _waiting(state, rank_id)
        if requests[r].phase in (PREFILLING, HELD) and requests[r].rank != rank_id
    ]


def _kept(state: State, rank_id: int) -> list[int]:
    """Requests with a place set aside in a decode rank, whose prompts are still computed."""
    requests = state.requests
    asked = (requests["decode_rank"] == rank_id) & (requests["rank"] != rank_id)
    return np.flatnonzero(asked & (requests["decode_admitted_s"] >= 0)).tolist()


def _sending_from(state: State, rank_id: int) -> list[int]:
    """Requests that have left a prefill rank, and whose KV has not."""
    flows = state.flows[: state.clock[0].flows]
    moving = {int(flow.request) for flow in flows if flow.purpose in (COPY_OUT, HAND_OFF)}
    waiting = set(np.flatnonzero(state.requests["phase"] == HANDED_OFF).tolist())
    parts = {int(flow.request) for flow in flows if flow.purpose == HAND_OFF_PART}
    last = {request for request in parts if state.requests[request].phase == RECEIVING}
    gone = waiting | moving | last
    return [request for request in gone if state.requests[request].source_rank == rank_id]


def _blocks_are_counted(state: State, rank_id: int) -> None:
    """KV blocks allocated and free are all there are, and each has an owner."""
    rank = state.ranks[rank_id]
    pool = state.pools[rank.pool]
    here, leaving = _at(state, rank_id), _sending_from(state, rank_id)
    asking, kept = _asking(state, rank_id), _kept(state, rank_id)
    assert rank.outstanding == len(here) + len(leaving) + len(asking) + len(kept)
    assert rank.reserved == len(kept)
    private = sum(state.requests[r].decode_private for r in kept)
    private += sum(state.requests[r].private_blocks for r in here)
    private += sum(state.requests[r].source_private for r in leaving)
    cached = 0
    if rank_id < len(state.slots):
        cached = _slots_are_counted(state, rank_id, here, leaving)
    else:
        assert sum(state.requests[r].shared_blocks for r in here) == 0
    assert rank.used_blocks == private + cached * pool.blocks_per_slot
    assert 0 <= rank.used_blocks <= rank.peak_blocks <= pool.capacity_blocks


def _slots_are_counted(state: State, rank_id: int, here: list[int], leaving: list[int]) -> int:
    """Cached prefix blocks, of which as many are idle as no request refers to."""
    rank, slots, slot_of = state.ranks[rank_id], state.slots[rank_id], state.slot_of[rank_id]
    blocks = np.flatnonzero(slot_of != NONE)
    references: Counter[int] = Counter()
    assert rank.fetching_ahead == sum(state.requests[r].ahead_blocks > 0 for r in here)
    for request, shared in [
        *((state.requests[r], state.requests[r].shared_blocks) for r in here),
        *((state.requests[r], state.requests[r].ahead_blocks) for r in here),
        *((state.requests[r], state.requests[r].source_shared) for r in leaving),
    ]:
        references.update(state.chain[request.chain_start :][:shared].tolist())
    for block in blocks:
        assert slots[slot_of[block]].block == block
        assert slots[slot_of[block]].references == references[int(block)]
        if (bringer := slots[slot_of[block]].bringer) != NONE:
            assert state.requests[bringer].fetches + state.requests[bringer].rests > 0
    assert set(references) <= set(blocks.tolist())
    assert rank.idle_slots == len(blocks) - len(references)
    return len(blocks)


def _tier_is_counted(state: State, tier_id: int) -> None:
    """Each slot of a tier is free, or holds a block that is there or has a writer."""
    tier, slots, slot_of = (
        part[tier_id] for part in (state.tiers, state.tier_slots, state.tier_slot_of)
    )
    held = slot_of[slot_of != NONE].tolist()
    coming = [slot for slot in held if slots[slot].references == 1]
    writers = [writer for writer in state.writers if writer.tier == tier_id]
    written = [
        slot
        for writer in writers
        for first in (writer.first_moving, writer.first_waiting)
        for slot in _chain(slots, first)
    ]
    assert sorted(written) == sorted(coming)
    there = _chain(slots, tier.oldest)
    assert sorted(there + coming) == sorted(held)
    free = _chain(slots, tier.free)
    assert not set(free) & set(held)


def _chain(slots: np.recarray, first: int) -> list[int]:
    found = []
    while first != NONE:
        found.append(int(first))
        first = slots[first].newer
    return found


def _nothing_idles(state: State, replica_id: int) -> None:
    """A replica that could begin a step has nothing that could be in it.

    But for what `_room_may_come_unnoticed`: that is let in at the replica's next event.
    """
    clock, replica = state.clock[0], state.replicas[replica_id]
    pool = state.pools[replica.pool]
    if replica.flights == pool.stages:
        return
    for rank_id in range(replica.first_rank, replica.first_rank + pool.ranks):
        rank = state.ranks[rank_id]
        for request_id in state.seats[rank.seats_start : rank.seats_start + rank.running]:
            request = state.requests[request_id]
            usable = request.usable_s <= clock.now_s
            assert not (usable and request.phase in (PREFILLING, DECODING) and request.flight < 0)
            assert not (request.phase == HELD and request.rests == 0)
        if not _room_may_come_unnoticed(state, rank_id):
            assert not admission.may_admit(state, rank_id)


def _room_may_come_unnoticed(state: State, rank_id: int) -> bool:
    """Whether what the first waiting request needs can have become less without an event.

    It needs no room for what it will not use of its prefix: a block that has since been forgotten,
    or one below HBM that would now be computed again, as other flows have come or gone.
    """
    clock, request = state.clock[0], state.requests[state.ranks[rank_id].queue_head]
    chain = state.chain[request.chain_start :][: request.chain_length]
    for block in chain:
        kept = []
        if rank_id < len(state.slots) and state.slot_of[rank_id, block] != NONE:
            slot = state.slots[rank_id, state.slot_of[rank_id, block]]
            kept += [slot] if slot.references == 0 else []
        for tier_id in range(len(state.tiers)):
            slot_id = state.tier_slot_of[tier_id, block]
            if slot_id != NONE:
                kept.append(state.tier_slots[tier_id, slot_id])
                if clock.fetch_when_faster:
                    return True
        if any(clock.now_s - slot.touched_s > clock.idle_limit_s for slot in kept):
            return True
    return False
