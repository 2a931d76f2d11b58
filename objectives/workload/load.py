"""How requests reach a deployment, and which of them can be sent at all."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

from objectives.workload.selection import selected
from objectives.workload.workload import Seconds, Workload
from spaces.errors import InputError

Overflow = Literal["drop", "truncate", "error"]


@dataclass(frozen=True, slots=True)
class OfferedLoad:
    """How `n` requests reach the deployment, always in the order of the workload.

    Open loop: `concurrency` is 0, and request `i` that waits for no other is sent at
    `arrival_s[i]` whatever the deployment does. Closed loop: `concurrency` sessions are kept
    alive; `arrival_s` is 0 for all, and the next session begins at the moment all turns of an
    earlier one have ended. In both a turn is sent `gap_s` after the end of the one it waits for.

    Nothing is sent after `horizon_s`. Requests that are not `measured` [n], and all that were
    sent before `warm_up_s`, stay out of the metrics. With `system_idle_cap_s` the clock skips
    forward to the next arrival when nothing has been in flight for so long.
    """

    arrival_s: Seconds
    concurrency: int
    measured: npt.NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))
    warm_up_s: float = 0.0
    horizon_s: float = math.inf
    system_idle_cap_s: float = math.inf

    def __post_init__(self) -> None:
        if not len(self.measured):
            object.__setattr__(self, "measured", np.ones(len(self.arrival_s), dtype=np.bool_))
        assert len(self.measured) == len(self.arrival_s), "measured has one value a request"


def fitting(
    workload: Workload, max_context_tokens: int, overflow: Overflow = "drop"
) -> tuple[Workload, int]:
    """The requests whose input and output fit into the context, and how many others there were.

    A request fits if input + output <= `max_context_tokens`. The others are dropped, and arrivals
    count from the first that is left; or with `truncate` they lose the beginning of their input,
    and with it all prefix they share, unless the output alone does not fit. Raises `InputError`
    where one does not fit and `overflow` is `error`.
    """
    fits = workload.input_tokens + workload.output_tokens <= max_context_tokens
    if fits.all():
        return workload, 0
    count = int(np.count_nonzero(~fits))
    if overflow == "error":
        raise InputError(
            f"every request must fit into the context of {max_context_tokens} tokens",
            where=workload.name,
            key="overflow",
            value=f"{count} longer ones of {len(workload)}",
            remedy="drop or truncate them",
        )
    if overflow == "truncate":
        cut = truncated(workload, max_context_tokens)
        fits = cut.input_tokens + cut.output_tokens <= max_context_tokens
        return selected(cut, np.flatnonzero(fits)), count
    return selected(workload, np.flatnonzero(fits)), count


def truncated(workload: Workload, max_context_tokens: int) -> Workload:
    """Requests that are too long with just as much of the end of their input as fits.

    Their prefix blocks are new ones, as all that went before has moved.
    """
    room = max_context_tokens - workload.output_tokens
    long = (workload.input_tokens > room) & (room > 0)
    inputs = np.where(long, room, workload.input_tokens)
    shortened = replace(workload, input_tokens=inputs)
    if not workload.block_tokens:
        return shortened
    counts = np.diff(workload.block_offsets)
    counts[long] = -(-inputs[long] // workload.block_tokens)
    offsets = np.concatenate(([0], np.cumsum(counts)))
    ids = np.empty(int(offsets[-1]), dtype=np.int32)
    number = int(workload.block_ids.max(initial=-1)) + 1
    for request, (start, end) in enumerate(pairwise(offsets.tolist())):
        if long[request]:
            ids[start:end] = np.arange(number, number + end - start, dtype=np.int32)
            number += end - start
        else:
            ids[start:end] = workload.blocks(request)
    return replace(shortened, block_offsets=offsets, block_ids=ids)


def first(workload: Workload, requests: int) -> Workload:
    """The first `requests` of a workload, or all of it where it is shorter."""
    if requests < 1:
        raise InputError("at least one request is needed", key="requests", value=requests)
    if requests >= len(workload):
        return workload
    return selected(workload, np.arange(requests))
