"""The event loop: what happens, in order of time, until every request is finished or rejected."""

from __future__ import annotations

from typing import Any

from objectives.simulator.clients import end_host_work, enter, send, send_next
from objectives.simulator.compiled_state import state_of
from objectives.simulator.events import drop_first
from objectives.simulator.flow_end import settle_flow
from objectives.simulator.handoff import first_layers_done
from objectives.simulator.hosts import ask_core, works
from objectives.simulator.jit import compiled, entry
from objectives.simulator.passing_on import start_decoding
from objectives.simulator.state import (
    ENTRY,
    FIRST_LAYER,
    FLOW_END,
    HOST_END,
    KV_ARRIVED,
    NONE,
    SEND,
    STEP_END,
    TOOL,
    TOOL_CALL,
    State,
)
from objectives.simulator.step_begin import schedule
from objectives.simulator.step_end import end_steps


@entry
def run(*arrays: Any) -> bool:
    """Simulate until nothing is left to happen; the answers are in the arrays of a `State`.

    Returns False where the events or flows of one more moment might not find room: the caller
    makes their arrays longer and calls again.
    """
    state = state_of(arrays)
    clock = state.clock[0]
    while _has_room(state):
        if _flow_is_next(state):
            clock.now_s = clock.flow_end_s
            settle_flow(state)
        elif _arrival_is_next(state):
            clock.now_s = state.requests[state.roots[clock.next_root]].arrival_s
            send_next(state)
        elif clock.events == 0:
            return True
        else:
            _take_event(state)
    return False


@compiled
def _has_room(state: State) -> bool:
    """Whether the events and flows of one more moment surely find room."""
    clock = state.clock[0]
    if clock.events + clock.event_margin > len(state.events):
        return False
    return bool(clock.flows + clock.flow_margin <= len(state.flows))


@compiled
def _take_event(state: State) -> None:
    """Take the first event off the queue and let it happen."""
    clock = state.clock[0]
    if clock.in_flight == 0 and clock.flows == 0 and not works(state):
        _skip_idle_time(state)
    event = state.events[0]
    kind, subject, detail = event.priority, event.subject, event.detail
    clock.now_s = event.time_s
    drop_first(state)
    if kind == STEP_END:
        if detail == state.replicas[subject].version:  # else another end was planned since
            end_steps(state, subject)
    elif kind == KV_ARRIVED:
        start_decoding(state, subject)
    elif kind == FIRST_LAYER:
        first_layers_done(state, subject, detail)
    elif kind == SEND:
        if subject == NONE:
            send_next(state)
        else:
            send(state, subject)
    elif kind == ENTRY:
        enter(state, subject)
    elif kind == TOOL_CALL:
        ask_core(state, subject, TOOL)
    elif kind == HOST_END:
        end_host_work(state, subject)
    else:
        state.replicas[subject].wake_pending = 0
        schedule(state, subject)


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
