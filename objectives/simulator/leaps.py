"""When a replica has its next event, and what brings it forward.

A leap, many steps taken as one event, is planned to its end; whatever could be in a step sooner
cuts it short, after the step under way.
"""

from __future__ import annotations

from objectives.simulator.admission import looks_early, may_admit, steps_to_look
from objectives.simulator.batching import enqueue
from objectives.simulator.events import push
from objectives.simulator.gaps import leap_seconds
from objectives.simulator.jit import compiled
from objectives.simulator.prefetch import may_fetch_ahead
from objectives.simulator.state import DECODING, NONE, PREFILLING, STEP_END, WAKE, State


@compiled
def join(state: State, rank_id: int, request_id: int) -> None:
    """Queue a request on a rank; a leap that could let it in, or fetch for it, is cut short."""
    rank = state.ranks[rank_id]
    alone = rank.waiting == 0
    enqueue(state, rank_id, request_id)
    unsure = state.clock[0].fetch_when_faster == 1  # another flow may let it in during the leap
    comes_in = alone and (unsure or may_admit(state, rank_id))
    if comes_in or may_fetch_ahead(state, rank_id):
        cut_leap(state, rank.replica, is_closed(state, rank.replica))


@compiled
def interrupt(state: State, replica_id: int) -> None:
    """Something new is at hand for a replica: end its leap after the present step, or wake it."""
    cut_leap(state, replica_id, False)


@compiled
def cut_leap(state: State, replica_id: int, at_look: bool) -> None:
    """End a leap after the present step, or before the next look at the queues, or wake.

    Waking ends the leap of a pipeline.
    """
    replica = state.replicas[replica_id]
    if replica.flights == 0 or state.pools[replica.pool].stages > 1:
        wake(state, replica_id)
        return
    if replica.leap_steps <= 1:
        return
    elapsed_s = state.clock[0].now_s - replica.leap_start_s
    low, high = 0, replica.leap_steps
    while high - low > 1:
        middle = (low + high) >> 1
        if leap_seconds(replica.leap_first_s, replica.leap_slope_s, middle) >= elapsed_s:
            high = middle
        else:
            low = middle
    if at_look:
        high = steps_to_look(state, replica_id, high)
    if high < replica.leap_steps:
        replica.leap_steps = high
        plan_step_end(state, replica_id)


@compiled
def wake(state: State, replica_id: int) -> None:
    """Let a replica see, when all else of this moment has happened, whether it has work."""
    replica = state.replicas[replica_id]
    if replica.wake_pending == 0:
        replica.wake_pending = 1
        push(state, state.clock[0].now_s, WAKE, replica_id, 0)


@compiled
def may_leap(state: State, replica_id: int) -> bool:
    """Whether the micro-batch just chosen may be repeated: nothing at hand was left out of it.

    That is, every seated request at hand decodes in it, and no waiting one could be admitted (an
    alternating engine may have made room only after it looked at its queue), not even when cached
    blocks are forgotten or another flow makes fetching pay or not meanwhile. Nor is there anybody
    to fetch for, who came when a pipeline was full and could not look. Who comes in at the next
    look only does not count.
    """
    clock = state.clock[0]
    forgets = clock.idle_limit_s < float("inf") or clock.fetch_when_faster == 1
    closed = is_closed(state, replica_id)
    replica, now_s = state.replicas[replica_id], state.clock[0].now_s
    requests, seats = state.requests, state.seats
    for rank_id in range(replica.first_rank, replica.first_rank + state.pools[replica.pool].ranks):
        rank = state.ranks[rank_id]
        for place in range(rank.seats_start, rank.seats_start + rank.running):
            request = requests[seats[place]]
            if request.phase == PREFILLING and request.usable_s <= now_s:
                return False
            if request.phase == DECODING and request.flight == NONE:
                return False
        if forgets and rank.waiting > 0:
            return False
        if not closed and (may_admit(state, rank_id) or may_fetch_ahead(state, rank_id)):
            return False
    return True


@compiled
def is_closed(state: State, replica_id: int) -> bool:
    """Whether nobody is let in before the next look at the queues that is due."""
    every = state.pools[state.replicas[replica_id].pool].admission_steps
    return bool(every > 1 and not looks_early(state, replica_id))


@compiled
def anyone_waits(state: State, replica_id: int) -> bool:
    """Whether a request waits at any rank of a replica."""
    replica = state.replicas[replica_id]
    for rank_id in range(replica.first_rank, replica.first_rank + state.pools[replica.pool].ranks):
        if state.ranks[rank_id].waiting > 0:
            return True
    return False


@compiled
def plan_step_end(state: State, replica_id: int) -> None:
    """Tell when the last step of the leap under way ends."""
    replica = state.replicas[replica_id]
    replica.version += 1
    seconds = leap_seconds(replica.leap_first_s, replica.leap_slope_s, replica.leap_steps)
    push(state, replica.leap_start_s + seconds, STEP_END, replica_id, replica.version)


@compiled
def plan_flight_end(state: State, replica_id: int) -> None:
    """Tell when the first micro-batch leaves the pipeline."""
    replica = state.replicas[replica_id]
    replica.version += 1
    end_s = max(state.clock[0].now_s, state.flight_end_s[replica_id, 0])
    push(state, end_s, STEP_END, replica_id, replica.version)
