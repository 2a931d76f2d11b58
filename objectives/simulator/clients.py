"""What clients send: sessions and their turns, until they wait at a rank; and their ends."""

from __future__ import annotations

from objectives.simulator.cache import blocks_for
from objectives.simulator.events import push
from objectives.simulator.hosts import ask_core, end_work, front_end_core_s
from objectives.simulator.jit import compiled
from objectives.simulator.leaps import join
from objectives.simulator.routing import route
from objectives.simulator.state import (
    ENTRY,
    FRONT_END,
    NONE,
    REJECTED,
    SEND,
    TOOL,
    TOOL_CALL,
    TURNED_AWAY,
    WAITING,
    State,
)


@compiled
def send_next(state: State) -> None:
    """The next session begins now, if there is one."""
    clock = state.clock[0]
    if clock.next_root < len(state.roots):
        clock.next_root += 1
        send(state, state.roots[clock.next_root - 1])


@compiled
def send(state: State, request_id: int) -> None:
    """A request is sent now: it is on its way through the front end, or is rejected."""
    clock = state.clock[0]
    if clock.now_s > clock.horizon_s:
        return
    request = state.requests[request_id]
    request.arrival_s = clock.now_s
    clock.in_flight += 1
    if not _can_ever_fit(state, request_id):
        request.phase = REJECTED
        end_turn(state, request_id)
    elif state.stations[FRONT_END].cores > 0:
        ask_core(state, request_id, FRONT_END)
    elif clock.frontend_s > 0:
        push(state, clock.now_s + clock.frontend_s, ENTRY, request_id, 0)
    else:
        enter(state, request_id)


@compiled
def end_host_work(state: State, request_id: int) -> None:
    """A tool's answer is sent; past its front end a request is on the rest of its way."""
    clock = state.clock[0]
    end_work(state, request_id)
    if state.requests[request_id].host_work == TOOL:
        send(state, request_id)
        return
    rest_s = clock.frontend_s - front_end_core_s(state, request_id)
    push(state, clock.now_s + max(0.0, rest_s), ENTRY, request_id, 0)


@compiled
def end_turn(state: State, request_id: int) -> None:
    """A turn is over: those that wait for it come after their pauses, or its session ends."""
    clock = state.clock[0]
    request = state.requests[request_id]
    clock.in_flight -= 1
    clock.last_end_s = clock.now_s
    child = request.first_child
    while child != NONE:
        turn = state.requests[child]
        if turn.tool_s > 0 and state.stations[TOOL].cores > 0:
            push(state, clock.now_s + (turn.gap_s - turn.tool_s), TOOL_CALL, child, 0)
        else:
            push(state, clock.now_s + turn.gap_s, SEND, child, 0)
        child = turn.next_sibling
    state.turns_left[request.session] -= 1
    if state.turns_left[request.session] == 0 and clock.closed_loop > 0:
        push(state, clock.now_s, SEND, NONE, 0)


@compiled
def enter(state: State, request_id: int) -> None:
    """A request reaches the deployment: it is routed to a rank and waits there."""
    request = state.requests[request_id]
    request.entered_s = state.clock[0].now_s
    request.target = request.input
    rank_id = route(state, request_id)
    if rank_id == NONE:
        request.phase = TURNED_AWAY
        end_turn(state, request_id)
        return
    request.phase = WAITING
    request.rank = rank_id
    state.ranks[rank_id].outstanding += 1
    join(state, rank_id, request_id)


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
