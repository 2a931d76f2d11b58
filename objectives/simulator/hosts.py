"""Cores of the hosts: the front end of every request, and tools that agents call there.

Front end and tools have cores of their own. A piece of work holds one core until it is done; work
that finds every core of its kind taken waits, first come first served: a core is not shared and
nothing is interrupted, as where every tool runs in a container that was promised a core.
"""

from __future__ import annotations

from objectives.simulator.events import push
from objectives.simulator.jit import compiled
from objectives.simulator.state import FRONT_END, HOST_END, NONE, TOOL, State


@compiled
def ask_core(state: State, request_id: int, work: int) -> None:
    """Begin a piece of a request's work on a host, or let it wait for a core."""
    station, request = state.stations[work], state.requests[request_id]
    request.host_work = work
    request.asked_s = state.clock[0].now_s
    if station.busy < station.cores:
        _begin(state, request_id)
        return
    request.next = NONE
    if station.head == NONE:
        station.head = request_id
    else:
        state.requests[station.tail].next = request_id
    station.tail = request_id


@compiled
def end_work(state: State, request_id: int) -> None:
    """A piece of work is done, and the next one of its kind has its core."""
    station = state.stations[state.requests[request_id].host_work]
    station.busy -= 1
    if station.head != NONE:
        following = station.head
        station.head = state.requests[following].next
        _begin(state, following)


@compiled
def front_end_core_s(state: State, request_id: int) -> float:
    """Seconds of a core that a request's front end takes."""
    clock = state.clock[0]
    return float(clock.host_request_s + clock.host_token_s * state.requests[request_id].input)


@compiled
def works(state: State) -> bool:
    """Whether any core is at work."""
    return bool(state.stations[FRONT_END].busy + state.stations[TOOL].busy > 0)


@compiled
def _begin(state: State, request_id: int) -> None:
    now_s, request = state.clock[0].now_s, state.requests[request_id]
    station = state.stations[request.host_work]
    station.busy += 1
    seconds = request.tool_s
    if request.host_work == FRONT_END:
        seconds = front_end_core_s(state, request_id)
    else:
        request.tool_wait_s = now_s - request.asked_s
    station.worked_s += seconds
    push(state, now_s + seconds, HOST_END, request_id, 0)
