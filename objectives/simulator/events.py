"""The event queue: a binary heap over (time, priority, subject, serial), in a record array.

Simultaneous events of one kind are taken in the order of the replicas (or requests) they concern,
so that the order does not hang on how often somebody was woken in vain.
"""

from __future__ import annotations

from objectives.simulator.jit import compiled
from objectives.simulator.state import Records, State


@compiled
def push(state: State, time_s: float, priority: int, subject: int, detail: int) -> None:
    """Add an event; equal times are ordered by priority, subject and order of pushing."""
    clock = state.clock[0]
    events = state.events
    place = clock.events
    clock.events += 1
    clock.serial += 1
    serial = clock.serial
    while place > 0:
        above = (place - 1) >> 1
        if not _before(time_s, priority, subject, serial, events, above):
            break
        events[place] = events[above]
        place = above
    event = events[place]
    event.time_s = time_s
    event.priority = priority
    event.serial = serial
    event.subject = subject
    event.detail = detail


@compiled
def drop_first(state: State) -> None:
    """Remove the earliest event, `state.events[0]`."""
    clock = state.clock[0]
    events = state.events
    clock.events -= 1
    last = clock.events
    moved = events[last]
    place = 0
    while True:
        below = 2 * place + 1
        if below >= last:
            break
        right = below + 1
        if right < last and _is_before(events, right, below):
            below = right
        if not _is_before(events, below, last):
            break
        events[place] = events[below]
        place = below
    events[place] = moved


@compiled
def _before(
    time_s: float, priority: int, subject: int, serial: int, events: Records, other: int
) -> bool:
    event = events[other]
    if time_s != event.time_s:
        return bool(time_s < event.time_s)
    if priority != event.priority:
        return bool(priority < event.priority)
    if subject != event.subject:
        return bool(subject < event.subject)
    return bool(serial < event.serial)


@compiled
def _is_before(events: Records, one: int, other: int) -> bool:
    event = events[one]
    return _before(event.time_s, event.priority, event.subject, event.serial, events, other)
