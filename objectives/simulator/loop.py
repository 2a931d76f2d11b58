"""The event loop: what happens, in order of time, until every request is finished or rejected."""

from __future__ import annotations

from typing import Any

from objectives.simulator.admission import (
    count_begun,
    count_leapt,
    is_short_of_kv,
    looks_early,
    may_admit,
    steps_to_look,
)
from objectives.simulator.batching import enqueue, fill_batch
from objectives.simulator.cache import blocks_for, give_back, release, share_prompt
from objectives.simulator.compiled_state import state_of
from objectives.simulator.events import drop_first, push
from objectives.simulator.flows import end_flow
from objectives.simulator.handoff import (
    first_layers_done,
    is_sent,
    send_computed,
    take_place,
)
from objectives.simulator.hosts import ask_core, end_work, front_end_core_s, works
from objectives.simulator.jit import compiled, entry
from objectives.simulator.pipeline import (
    enter_flight,
    flights_return,
    leap_end_s,
    leave_flight,
    rounds_ahead,
    settle_rounds,
)
from objectives.simulator.routing import route, route_decode
from objectives.simulator.state import (
    COPY_IN,
    COPY_OUT,
    DECODING,
    ENTRY,
    FETCH,
    FETCH_REST,
    FINISHED,
    FIRST_LAYER,
    FLOW_END,
    FRONT_END,
    HAND_OFF,
    HAND_OFF_PART,
    HANDED_OFF,
    HELD,
    HOST_END,
    KV_ARRIVED,
    LEVELS,
    NONE,
    PREFILLING,
    REJECTED,
    SEND,
    STEP_END,
    STORE,
    SWAP_IN,
    SWAP_OUT,
    TIER_WRITE,
    TOOL,
    TOOL_CALL,
    TURNED_AWAY,
    WAITING,
    WAKE,
    State,
)
from objectives.simulator.steps import (
    advance_decodes,
    count_gaps,
    leap_limit,
    leap_seconds,
    set_pace,
    stage_seconds,
    sum_batch,
)
from objectives.simulator.tiers import end_write
from objectives.simulator.transfer import go_on_with_transfer

# Stands for a micro-batch that nobody is in.
_HELD_ONES = -2


@entry
def run(*arrays: Any) -> bool:
    """Simulate until nothing is left to happen; the answers are in the arrays of a `State`.

    Returns False where the events or flows of one more moment might not find room: the caller
    makes their arrays longer and calls again. One function takes the events in, although shorter
    ones would read better: machine code of a compiled function is made again for each function
    above it, so that depth costs seconds.
    """
    state = state_of(arrays)
    clock = state.clock[0]
    while True:
        if clock.events + clock.event_margin > len(state.events):
            return False
        if clock.flows + clock.flow_margin > len(state.flows):
            return False
        if _flow_is_next(state):
            clock.now_s = clock.flow_end_s
            _settle_flow(state)
            continue
        if _arrival_is_next(state):
            clock.now_s = state.requests[state.roots[clock.next_root]].arrival_s
            _send_next(state)
            continue
        if clock.events == 0:
            return True
        if clock.in_flight == 0 and clock.flows == 0 and not works(state):
            _skip_idle_time(state)
        event = state.events[0]
        kind, subject, detail = event.priority, event.subject, event.detail
        clock.now_s = event.time_s
        drop_first(state)
        if kind == STEP_END:
            replica = state.replicas[subject]
            if detail == replica.version:
                if state.pools[replica.pool].stages > 1:
                    _end_flight(state, subject)
                else:
                    _end_step(state, subject, 0, replica.leap_steps)
        elif kind == KV_ARRIVED:
            _start_decoding(state, subject)
        elif kind == FIRST_LAYER:
            first_layers_done(state, subject, detail)
        elif kind == SEND:
            if subject == NONE:
                _send_next(state)
            else:
                _send(state, subject)
        elif kind == ENTRY:
            _enter(state, subject)
        elif kind == TOOL_CALL:
            ask_core(state, subject, TOOL)
        elif kind == HOST_END:
            _end_host_work(state, subject)
        else:
            state.replicas[subject].wake_pending = 0
            _schedule(state, subject)


@compiled
def _skip_idle_time(state: State) -> None:
    """Bring what is to come forward, so that nothing is in flight for no longer than the cap.

    All that is left to happen then is turns and sessions being sent.
    """
    clock = state.clock[0]
    until_s = max(clock.now_s, clock.last_end_s + clock.idle_cap_s)
    ahead_s = state.events[0].time_s - until_s
    if ahead_s > 0:
        for place in range(clock.events):
            state.events[place].time_s -= ahead_s


@compiled
def _flow_is_next(state: State) -> bool:
    """Whether a flow ends before any other event; among simultaneous ones steps end first."""
    clock = state.clock[0]
    if clock.flows == 0:
        return False
    if clock.events > 0:
        event = state.events[0]
        if event.time_s < clock.flow_end_s:
            return False
        if event.time_s == clock.flow_end_s and event.priority < FLOW_END:
            return False
    if clock.closed_loop > 0 or clock.next_root >= len(state.roots):
        return True
    return bool(state.requests[state.roots[clock.next_root]].arrival_s >= clock.flow_end_s)


@compiled
def _settle_flow(state: State) -> None:
    """A flow has ended: a prefill rank is rid of what it sent, or a fetched prefix is usable."""
    purpose, request_id = end_flow(state)
    if purpose in (COPY_OUT, HAND_OFF, COPY_IN):
        go_on_with_transfer(state, request_id, purpose)
    if purpose == HAND_OFF:
        _release_source(state, request_id)
    elif purpose == HAND_OFF_PART:
        state.requests[request_id].sending = 0
        send_computed(state, request_id)
        _end_hand_off(state, request_id)
    elif purpose == FETCH:
        request = state.requests[request_id]
        request.fetches -= 1
        if request.fetches == 0:
            request.usable_s = state.clock[0].now_s
            if request.fetched_s < 0:
                request.fetched_s = request.usable_s
            send_computed(state, request_id)
            _interrupt(state, state.ranks[request.rank].replica)
    elif purpose == FETCH_REST:
        request = state.requests[request_id]
        request.rests -= 1
        if request.rests == 0:
            send_computed(state, request_id)
            if request.phase == HELD:
                _interrupt(state, state.ranks[request.rank].replica)
    elif purpose == TIER_WRITE:
        _settle_write(state, request_id)
    elif purpose in (SWAP_OUT, SWAP_IN):
        _settle_swap(state, request_id, purpose)


@compiled
def _settle_write(state: State, writer_id: int) -> None:
    """Blocks are in a tier now, which may let waiting requests in that look for them there."""
    end_write(state, writer_id)
    own = writer_id // LEVELS
    first, last = own, own
    if writer_id % LEVELS == STORE:
        first, last = 0, len(state.slots) - 1
    for rank_id in range(first, last + 1):
        if state.ranks[rank_id].waiting > 0 and may_admit(state, rank_id):
            replica_id = state.ranks[rank_id].replica
            _cut_leap(state, replica_id, _is_closed(state, replica_id))


@compiled
def _settle_swap(state: State, request_id: int, purpose: int) -> None:
    """KV has left for host memory, and its request may come back; or it is back, and decodes."""
    request = state.requests[request_id]
    rank = state.ranks[request.rank]
    if purpose == SWAP_OUT:
        request.fetches = 0
        if rank.queue_head == request_id and may_admit(state, request.rank):
            _cut_leap(state, rank.replica, _is_closed(state, rank.replica))
        return
    rank.swapped_tokens -= request.computed
    request.phase = DECODING
    request.usable_s = state.clock[0].now_s
    _interrupt(state, rank.replica)


@compiled
def _arrival_is_next(state: State) -> bool:
    """Whether the next session of an open loop begins before any event in the queue."""
    clock = state.clock[0]
    if clock.closed_loop > 0 or clock.next_root >= len(state.roots):
        return False
    if clock.events == 0:
        return True
    arrival_s = state.requests[state.roots[clock.next_root]].arrival_s
    event = state.events[0]
    return bool(arrival_s < event.time_s or (arrival_s == event.time_s and event.priority >= SEND))


@compiled
def _send_next(state: State) -> None:
    """The next session begins now, if there is one."""
    clock = state.clock[0]
    if clock.next_root < len(state.roots):
        clock.next_root += 1
        _send(state, state.roots[clock.next_root - 1])


@compiled
def _send(state: State, request_id: int) -> None:
    """A request is sent now: it is on its way through the front end, or is rejected."""
    clock = state.clock[0]
    if clock.now_s > clock.horizon_s:
        return
    request = state.requests[request_id]
    request.arrival_s = clock.now_s
    clock.in_flight += 1
    if not _can_ever_fit(state, request_id):
        request.phase = REJECTED
        _end_turn(state, request_id)
    elif state.stations[FRONT_END].cores > 0:
        ask_core(state, request_id, FRONT_END)
    elif clock.frontend_s > 0:
        push(state, clock.now_s + clock.frontend_s, ENTRY, request_id, 0)
    else:
        _enter(state, request_id)


@compiled
def _end_host_work(state: State, request_id: int) -> None:
    """A tool's answer is sent; past its front end a request is on the rest of its way."""
    clock = state.clock[0]
    end_work(state, request_id)
    if state.requests[request_id].host_work == TOOL:
        _send(state, request_id)
        return
    rest_s = clock.frontend_s - front_end_core_s(state, request_id)
    push(state, clock.now_s + max(0.0, rest_s), ENTRY, request_id, 0)


@compiled
def _end_turn(state: State, request_id: int) -> None:
    """A turn is over: those that wait for it come after their pauses, or its session ends."""
    clock = state.clock[0]
    request = state.requests[request_id]
    clock.in_flight -= 1
    clock.last_end_s = clock.now_s
    child = request.first_child
    while child != NONE:
        turn = state.requests[child]
        if turn.tool_s > 0 and state.stations[TOOL].cores > 0:
            push(state, clock.now_s + turn.gap_s - turn.tool_s, TOOL_CALL, child, 0)
        else:
            push(state, clock.now_s + turn.gap_s, SEND, child, 0)
        child = turn.next_sibling
    state.turns_left[request.session] -= 1
    if state.turns_left[request.session] == 0 and clock.closed_loop > 0:
        push(state, clock.now_s, SEND, NONE, 0)


@compiled
def _enter(state: State, request_id: int) -> None:
    """A request reaches the deployment: it is routed to a rank and waits there."""
    request = state.requests[request_id]
    request.entered_s = state.clock[0].now_s
    request.target = request.input
    rank_id = route(state, request_id)
    if rank_id == NONE:
        request.phase = TURNED_AWAY
        _end_turn(state, request_id)
        return
    request.phase = WAITING
    request.rank = rank_id
    state.ranks[rank_id].outstanding += 1
    _join(state, rank_id, request_id)


@compiled
def _can_ever_fit(state: State, request_id: int) -> bool:
    request = state.requests[request_id]
    for pool_id in range(len(state.pools)):
        pool = state.pools[pool_id]
        tokens = request.input + pool.verified - 1
        tokens += 0 if pool.hands_off == 1 else request.output
        blocks = blocks_for(tokens, state.clock[0].block_tokens) + pool.fixed_blocks
        if blocks > pool.capacity_blocks:
            return False
    return True


@compiled
def _join(state: State, rank_id: int, request_id: int) -> None:
    """Queue a request on a rank; a leap that could let it in is cut short."""
    rank = state.ranks[rank_id]
    alone = rank.waiting == 0
    enqueue(state, rank_id, request_id)
    unsure = state.clock[0].fetch_when_faster == 1  # another flow may let it in during the leap
    if alone and (unsure or may_admit(state, rank_id)):
        _cut_leap(state, rank.replica, _is_closed(state, rank.replica))


@compiled
def _interrupt(state: State, replica_id: int) -> None:
    """Something new is at hand for a replica: end its leap after the present step, or wake it."""
    _cut_leap(state, replica_id, False)


@compiled
def _cut_leap(state: State, replica_id: int, at_look: bool) -> None:
    """End a leap after the present step, or before the next look at the queues, or wake.

    Waking ends the leap of a pipeline.
    """
    replica = state.replicas[replica_id]
    if replica.flights == 0 or state.pools[replica.pool].stages > 1:
        _wake(state, replica_id)
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
        _plan_step_end(state, replica_id)


@compiled
def _wake(state: State, replica_id: int) -> None:
    replica = state.replicas[replica_id]
    if replica.wake_pending == 0:
        replica.wake_pending = 1
        push(state, state.clock[0].now_s, WAKE, replica_id, 0)


@compiled
def _schedule(state: State, replica_id: int) -> None:
    """Start the replica's next micro-batch, if there is work and room in its pipeline.

    With stages a micro-batch is put together as soon as fewer than `stages` are in flight, and
    then waits for the first stage.
    """
    replica = state.replicas[replica_id]
    pool = state.pools[replica.pool]
    if pool.stages > 1 and replica.leap_steps > 0:
        settle_rounds(state, replica_id)
        _plan_flight_end(state, replica_id)
    if replica.flights == pool.stages:
        _leap_rounds(state, replica_id)
        return
    for rank_id in range(replica.first_rank, replica.first_rank + pool.ranks):
        if state.ranks[rank_id].held > 0:
            _settle_rank(state, rank_id, _HELD_ONES)
    flight = replica.next_flight if pool.stages > 1 else 0
    chosen = fill_batch(state, replica_id, flight)
    if pool.hands_off == 1 and state.clock[0].send_layers > 0:
        _ask_decode_pool(state, replica_id)
    if chosen == 0:
        _leap_rounds(state, replica_id)
        return
    replica.kv_short = is_short_of_kv(state, replica_id)
    sum_batch(state, replica_id, flight)
    count_begun(state, replica_id, _has_chunks(state, replica_id))
    replica.next_flight += 1
    if replica.flights == 0:
        replica.busy_since_s = state.clock[0].now_s
    replica.flights += 1
    if pool.stages == 1:
        _start_step(state, replica_id)
    else:
        _enter_pipeline(state, replica_id, flight)


@compiled
def _ask_decode_pool(state: State, replica_id: int) -> None:
    """Requests just admitted here ask for their places in the decode pool."""
    replica = state.replicas[replica_id]
    for rank_id in range(replica.first_rank, replica.first_rank + state.pools[replica.pool].ranks):
        rank = state.ranks[rank_id]
        for place in range(rank.seats_start, rank.seats_start + rank.running):
            request_id = state.seats[place]
            request = state.requests[request_id]
            if request.decode_rank == NONE and request.output > 1:
                request.source_rank = rank_id
                request.decode_rank = route_decode(state, len(state.pools) - 1)
                state.ranks[request.decode_rank].outstanding += 1
                _join(state, request.decode_rank, request_id)


@compiled
def _has_chunks(state: State, replica_id: int) -> bool:
    replica = state.replicas[replica_id]
    for rank_id in range(replica.first_rank, replica.first_rank + state.pools[replica.pool].ranks):
        if state.ranks[rank_id].batch_chunks > 0:
            return True
    return False


@compiled
def _start_step(state: State, replica_id: int) -> None:
    replica = state.replicas[replica_id]
    first_s, slope_s = stage_seconds(state, replica_id, 0, 0)
    replica.leap_start_s = state.clock[0].now_s
    replica.leap_first_s = first_s
    replica.leap_slope_s = slope_s
    steps = 1
    if _may_leap(state, replica_id):
        steps = leap_limit(state, replica_id, 0)
        if _is_closed(state, replica_id) and _anyone_waits(state, replica_id):
            steps = min(steps, steps_to_look(state, replica_id, 1))
    replica.leap_steps = steps
    replica.leap_looks = steps > 1 and not _is_closed(state, replica_id)
    _plan_step_end(state, replica_id)
    _plan_first_layer(state, replica_id, 0, first_s)


@compiled
def _may_leap(state: State, replica_id: int) -> bool:
    """Whether the micro-batch just chosen may be repeated: nothing at hand was left out of it.

    That is, every seated request at hand decodes in it, and no waiting one could be admitted (an
    alternating engine may have made room only after it looked at its queue), not even when cached
    blocks are forgotten or another flow makes fetching pay or not meanwhile. Who comes in at the
    next look only does not count.
    """
    clock = state.clock[0]
    forgets = clock.idle_limit_s < float("inf") or clock.fetch_when_faster == 1
    closed = _is_closed(state, replica_id)
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
        if (forgets and rank.waiting > 0) or (not closed and may_admit(state, rank_id)):
            return False
    return True


@compiled
def _is_closed(state: State, replica_id: int) -> bool:
    """Whether nobody is let in before the next look at the queues that is due."""
    every = state.pools[state.replicas[replica_id].pool].admission_steps
    return bool(every > 1 and not looks_early(state, replica_id))


@compiled
def _anyone_waits(state: State, replica_id: int) -> bool:
    replica = state.replicas[replica_id]
    for rank_id in range(replica.first_rank, replica.first_rank + state.pools[replica.pool].ranks):
        if state.ranks[rank_id].waiting > 0:
            return True
    return False


@compiled
def _plan_step_end(state: State, replica_id: int) -> None:
    replica = state.replicas[replica_id]
    replica.version += 1
    seconds = leap_seconds(replica.leap_first_s, replica.leap_slope_s, replica.leap_steps)
    push(state, replica.leap_start_s + seconds, STEP_END, replica_id, replica.version)


@compiled
def _plan_first_layer(state: State, replica_id: int, flight: int, seconds: float) -> None:
    """Where chunks are sent layer by layer, tell when the first layer of a step is computed."""
    clock = state.clock[0]
    if clock.send_layers > 1 and state.pools[state.replicas[replica_id].pool].hands_off == 1:
        push(state, clock.now_s + seconds / clock.send_layers, FIRST_LAYER, replica_id, flight)


@compiled
def _enter_pipeline(state: State, replica_id: int, flight: int) -> None:
    """Send a micro-batch through the stages; each serves one micro-batch at a time, in order."""
    replica = state.replicas[replica_id]
    time_s = state.clock[0].now_s
    state.batches[replica.pool, replica.batch_requests] += 1
    for stage in range(state.pools[replica.pool].stages):
        seconds, _ = stage_seconds(state, replica_id, flight, stage)
        replica.work_s += seconds
        time_s = max(time_s, state.stage_free_s[replica_id, stage]) + seconds
        state.stage_free_s[replica_id, stage] = time_s
    enter_flight(state, replica_id, flight, time_s)
    if replica.flights == 1:
        _plan_flight_end(state, replica_id)
    _plan_first_layer(state, replica_id, flight, time_s - state.clock[0].now_s)
    _wake(state, replica_id)


@compiled
def _leap_rounds(state: State, replica_id: int) -> None:
    """If the micro-batches of a pipeline only go round for a while, take that as one event."""
    replica = state.replicas[replica_id]
    if state.pools[replica.pool].stages == 1 or replica.flights == 0:
        return
    if not _may_leap(state, replica_id) or not flights_return(state, replica_id):
        return
    closed = _is_closed(state, replica_id)
    if closed and _anyone_waits(state, replica_id):
        return
    ends = rounds_ahead(state, replica_id)
    if ends > 0:
        replica.leap_steps, replica.leap_looks = ends, not closed
        replica.leap_start_s = state.clock[0].now_s
        replica.version += 1
        push(state, leap_end_s(state, replica_id), STEP_END, replica_id, replica.version)


@compiled
def _plan_flight_end(state: State, replica_id: int) -> None:
    """Tell when the first micro-batch leaves the pipeline."""
    replica = state.replicas[replica_id]
    replica.version += 1
    end_s = max(state.clock[0].now_s, state.flight_end_s[replica_id, 0])
    push(state, end_s, STEP_END, replica_id, replica.version)


@compiled
def _end_flight(state: State, replica_id: int) -> None:
    """The first micro-batch leaves the pipeline, after those that the leap under way took in."""
    if state.replicas[replica_id].leap_steps > 0:
        settle_rounds(state, replica_id)
    flight = leave_flight(state, replica_id)
    _end_step(state, replica_id, flight, 1)
    if state.replicas[replica_id].flights > 0:
        _plan_flight_end(state, replica_id)


@compiled
def _end_step(state: State, replica_id: int, flight: int, steps: int) -> None:
    replica = state.replicas[replica_id]
    pool = state.pools[replica.pool]
    replica.steps += steps
    replica.kv_short_steps += steps * replica.kv_short
    if pool.stages == 1:
        state.batches[replica.pool, replica.batch_requests] += steps
    if steps > 1:
        count_leapt(state, replica_id, steps - 1)
    advance_decodes(state, replica_id, flight, steps)
    for rank_id in range(replica.first_rank, replica.first_rank + pool.ranks):
        if state.ranks[rank_id].running > 0:
            _settle_rank(state, rank_id, flight)
    if pool.split_layers > 0:
        own_s, slope_s = replica.leap_own_s, replica.leap_own_slope_s
        replica.work_s += leap_seconds(own_s, slope_s, steps)
        replica.experts_work_s += replica.leap_experts_s * steps
    replica.leap_steps = 0
    replica.flights -= 1
    if replica.flights == 0:
        replica.busy_s += state.clock[0].now_s - replica.busy_since_s
    _wake(state, replica_id)


@compiled
def _settle_rank(state: State, rank_id: int, flight: int) -> None:
    """End the chunks of a micro-batch and let go of requests that leave.

    Or end the held prompts whose last layers have come: that is looked after between steps.
    """
    rank = state.ranks[rank_id]
    requests, seats = state.requests, state.seats
    kept = rank.seats_start
    for place in range(rank.seats_start, rank.seats_start + rank.running):
        request_id = seats[place]
        request = requests[request_id]
        if flight == _HELD_ONES:
            if request.phase == HELD and request.rests == 0:
                rank.held -= 1
                request.usable_s = state.clock[0].now_s
                _end_prompt(state, rank_id, request_id)
        elif request.flight == flight:
            _end_chunk(state, rank_id, request_id)
        if request.phase == DECODING and request.generated >= request.output:
            _finish(state, rank_id, request_id)
        elif request.phase != HANDED_OFF and request.rank == rank_id:
            seats[kept] = request_id
            kept += 1
    rank.running = kept - rank.seats_start


@compiled
def _end_chunk(state: State, rank_id: int, request_id: int) -> None:
    """Add a chunk to the KV; a prompt whose prefix is not all there yet is held at its end."""
    request = state.requests[request_id]
    request.flight = NONE
    request.computed += request.step_tokens
    if request.decode_rank not in (NONE, rank_id):
        request.early_bytes = 0.0
        send_computed(state, request_id)
    replica = state.replicas[state.ranks[rank_id].replica]
    replica.prefill_tokens += request.step_tokens
    replica.request_steps += 1
    if request.computed < request.target:
        return
    if request.rests > 0:
        request.phase, request.usable_s = HELD, float("inf")
        state.ranks[rank_id].held += 1
    else:
        _end_prompt(state, rank_id, request_id)


@compiled
def _end_prompt(state: State, rank_id: int, request_id: int) -> None:
    """The whole prompt is in the KV, which gives the next token."""
    request = state.requests[request_id]
    now_s = state.clock[0].now_s
    share_prompt(state, rank_id, request_id)
    request.generated += 1
    request.phase = DECODING
    set_pace(state, request_id)
    if request.prefilled_s < 0:
        request.prefilled_s = now_s
    if state.pools[state.ranks[rank_id].pool].hands_off == 1 and request.output > 1:
        _hand_off(state, rank_id, request_id)
    elif request.first_token_s < 0:
        request.first_token_s = now_s
    else:  # computed again after a preemption
        count_gaps(state, now_s - request.last_token_s, 0.0, 1, 1)
    request.last_token_s = now_s


@compiled
def _hand_off(state: State, rank_id: int, request_id: int) -> None:
    """Pass a prefilled request to the decode pool; its KV stays here until it has been moved."""
    request = state.requests[request_id]
    request.phase = HANDED_OFF
    request.source_rank = rank_id
    request.source_shared = request.shared_blocks
    request.source_private = request.private_blocks
    request.shared_blocks = 0
    request.private_blocks = 0
    if request.decode_rank != NONE:
        if request.decode_admitted_s >= 0:
            take_place(state, request_id)
            _end_hand_off(state, request_id)
            if state.pools[state.ranks[request.rank].pool].admission_steps > 1:
                _interrupt(state, state.ranks[request.rank].replica)  # it has a seat less idle
        return
    request.rank = route_decode(state, len(state.pools) - 1)
    state.ranks[request.rank].outstanding += 1
    _join(state, request.rank, request_id)


@compiled
def _end_hand_off(state: State, request_id: int) -> None:
    """If all KV of a request that was sent in parts is there, it decodes a latency later."""
    if is_sent(state, request_id):
        clock = state.clock[0]
        push(state, clock.now_s + clock.transfer_latency_s, KV_ARRIVED, request_id, 0)
        _release_source(state, request_id)


@compiled
def _release_source(state: State, request_id: int) -> None:
    request = state.requests[request_id]
    rank_id = request.source_rank
    release(state, rank_id, request_id, request.source_shared, request.source_private)
    state.ranks[rank_id].outstanding -= 1
    _interrupt(state, state.ranks[rank_id].replica)


@compiled
def _start_decoding(state: State, request_id: int) -> None:
    request = state.requests[request_id]
    now_s = state.clock[0].now_s
    request.phase = DECODING
    request.usable_s = now_s
    request.first_token_s = now_s
    request.last_token_s = now_s
    _interrupt(state, state.ranks[request.rank].replica)


@compiled
def _finish(state: State, rank_id: int, request_id: int) -> None:
    request = state.requests[request_id]
    give_back(state, rank_id, request_id)
    request.phase = FINISHED
    request.finished_s = state.clock[0].now_s
    state.ranks[rank_id].outstanding -= 1
    _end_turn(state, request_id)
