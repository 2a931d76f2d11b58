"""Which requests are sent, in what order and when: a workload under a load and its rules."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from objectives.workload.arrivals import Arrivals
from objectives.workload.load import OfferedLoad
from objectives.workload.selection import selected
from objectives.workload.workload import NO_PARENT, Numbers, Seconds, Tokens, Workload
from spaces.documents import Document
from spaces.errors import InputError
from spaces.plan import Load, LoadAxis

Share = Annotated[float, Field(ge=0, le=1)]
Measured = npt.NDArray[np.bool_]


class LoadRules(Document):
    """How a workload is sent, whatever the size of the load.

    `arrivals` is the process of an open loop; without it the recorded starts are stretched. Turns
    wait for the turn before them, unless `replay_turns` sends them at their recorded times.

    In a closed loop the first sessions begin inside: after a share of their turns that is drawn
    evenly from `start`. The turn before is sent first and not measured. With `recycle` sessions
    are played again in their order until the run stops; what is played again shares no prefix
    with the rounds before. When nothing is in flight the clock skips forward to the next turn
    after `system_idle_cap_s`.

    Pauses before turns are cut at `tree_idle_cap_s`. A run stops after `requests` or at
    `duration_s`, whichever is first. The first `warm_up_requests`, and those sent before
    `warm_up_s`, are not measured.
    """

    arrivals: Arrivals | None = None
    replay_turns: bool = False
    start: tuple[Share, Share] = (0.0, 0.0)
    recycle: bool = False
    tree_idle_cap_s: PositiveFloat | None = None
    system_idle_cap_s: PositiveFloat | None = None
    requests: PositiveInt | None = None
    duration_s: PositiveFloat | None = None
    warm_up_s: NonNegativeFloat = 0.0
    warm_up_requests: NonNegativeInt = 0

    @model_validator(mode="after")
    def _possible(self) -> LoadRules:
        if self.start[0] > self.start[1]:
            raise InputError("low must not exceed high", key="start", value=list(self.start))
        if self.recycle and self.requests is None and self.duration_s is None:
            raise InputError(
                "sessions that are played again need an end of the run",
                key="recycle",
                value=True,
                remedy="give duration_s or requests",
            )
        if self.duration_s is not None and self.warm_up_s >= self.duration_s:
            raise InputError(
                "the warm-up must be shorter than the run", key="warm_up_s", value=self.warm_up_s
            )
        if self.requests is not None and self.warm_up_requests >= self.requests:
            raise InputError(
                "a request must be left after the warm-up",
                key="warm_up_requests",
                value=self.warm_up_requests,
            )
        return self

    def check(self, axis: LoadAxis | None) -> None:
        """Raise an `InputError` for the first rule that a load of this kind does not have."""
        for key, fits, needed in (
            ("arrivals", axis in ("request_rate", "session_rate"), "a request or session rate"),
            ("start", axis == "concurrency", "a concurrency"),
            ("recycle", axis == "concurrency", "a concurrency"),
            ("system_idle_cap_s", axis == "concurrency", "a concurrency"),
            ("replay_turns", axis != "concurrency", "an open loop"),
        ):
            value = getattr(self, key)
            if value != type(self).model_fields[key].default and not fits:
                raise InputError(
                    f"{key} needs {needed}",
                    key=key,
                    value=f"a load of {axis or 'recorded arrivals'}",
                    remedy=f"leave {key} out, or ask for {needed}",
                )


def agentx() -> LoadRules:
    """The rules of InferenceX's AgentX.

    The first sessions begin at 25 to 75 % of their turns, sessions follow one another and are
    played again, a session that is idle for 300 s and a system that is idle for 10 s are skipped
    forward, and a run takes an hour (SemiAnalysisAI/InferenceX, agentx-harness 1.0.12).
    """
    return LoadRules(
        start=(0.25, 0.75),
        recycle=True,
        tree_idle_cap_s=300,
        system_idle_cap_s=10,
        duration_s=3600,
    )


PRESET_RULES = {"agentx": agentx}
NO_RULES = LoadRules()


def offered(
    workload: Workload,
    load: Load | None,
    rules: LoadRules = NO_RULES,
    seed: int = 1,
    rounds: int = 1,
) -> tuple[Workload, OfferedLoad]:
    """The requests to send, in order, and how they are sent.

    Without a load they arrive as recorded. A `request_rate` or `session_rate` stretches the
    recorded starts by one factor, so that (n - 1) / span of requests or sessions equals the rate
    and recorded bursts keep their shape, or draws the starts of sessions from `rules.arrivals`. A
    `concurrency` sets the times aside. Where sessions are recycled `rounds` says how many times
    as many requests as the workload has are made, if `rules.requests` says nothing.

    Raises `InputError` where a rule does not fit the load, or starts are to be stretched that all
    lie at one moment.
    """
    rules.check(load.axis if load else None)
    capped = _capped(workload, rules.tree_idle_cap_s)
    measured = np.ones(len(capped), dtype=np.bool_)
    closed = load is not None and load.concurrency is not None
    if load is not None and load.concurrency is not None:
        if rules.recycle or rules.start != NO_RULES.start:
            capped, measured = _played_sessions(capped, load.concurrency, rules, seed, rounds)
    else:
        capped = _moved(capped, load, rules, np.random.default_rng([seed, 1]))
    if rules.requests is not None and rules.requests < len(capped):
        capped = selected(capped, np.arange(rules.requests))
        measured = measured[: rules.requests]
    measured[: rules.warm_up_requests] = False
    if rules.replay_turns:
        capped = _unlinked(capped)
    return capped, OfferedLoad(
        arrival_s=np.zeros(len(capped)) if closed else capped.arrival_s,
        concurrency=(load.concurrency or 0) if load else 0,
        measured=measured,
        warm_up_s=rules.warm_up_s,
        horizon_s=rules.duration_s or math.inf,
        system_idle_cap_s=rules.system_idle_cap_s or math.inf,
    )


def offers(
    workload: Workload, load: Load | None, rules: LoadRules, seed: int
) -> Iterator[tuple[Workload, OfferedLoad]]:
    """The same, with ever more rounds where sessions are recycled until a time has passed.

    How many requests fit into that time only the deployment tells: take the next one if the last
    session was begun before it, for then there was none to follow.
    """
    rounds = 1
    while True:
        yield offered(workload, load, rules, seed, rounds)
        if not rules.recycle or rules.requests is not None:
            return
        rounds *= 2


def _capped(workload: Workload, cap_s: float | None) -> Workload:
    if cap_s is None:
        return workload
    return replace(workload, gap_s=np.minimum(workload.gap_s, cap_s))


def _unlinked(workload: Workload) -> Workload:
    """The requests as sessions of one turn, which start at their recorded times."""
    n = len(workload)
    return replace(
        workload,
        session=np.arange(n, dtype=np.int32),
        parent=np.full(n, NO_PARENT, dtype=np.int32),
        gap_s=np.zeros(n),
    )


def _moved(
    workload: Workload, load: Load | None, rules: LoadRules, stream: np.random.Generator
) -> Workload:
    """The workload of an open loop, its arrivals where the load has them."""
    if load is None:
        return workload
    if load.time_scale is not None:
        return replace(workload, arrival_s=workload.arrival_s * load.time_scale)
    if load.request_rate is not None and rules.arrivals is None:
        factor = _stretch(workload, workload.arrival_s, load)
        return replace(workload, arrival_s=workload.arrival_s * factor)
    begins = _session_starts(workload)
    order = np.argsort(begins, kind="stable")
    moved = np.empty(len(begins))
    if rules.arrivals is not None:
        sessions_per_s = load.value
        if load.request_rate is not None:
            sessions_per_s *= len(begins) / len(workload)
        moved[order] = rules.arrivals.times(stream, len(begins), sessions_per_s)
    else:
        moved = begins * _stretch(workload, begins, load)
    arrival_s = workload.arrival_s + (moved - begins)[workload.session]
    rows = np.argsort(arrival_s, kind="stable")
    return selected(replace(workload, arrival_s=arrival_s), rows)


def _session_starts(workload: Workload) -> Seconds:
    begins = np.full(workload.sessions, math.inf)
    np.minimum.at(begins, workload.session, workload.arrival_s)
    return begins


def _stretch(workload: Workload, starts: Seconds, load: Load) -> float:
    """The factor that gives `starts` the rate of the load."""
    span_s = float(starts.max(initial=0.0))
    if span_s == 0:
        raise InputError(
            "a rate needs recorded starts to stretch, but all lie at one moment",
            where=workload.name,
            key=load.axis,
            value=load.value,
            remedy="give a process of arrivals beside the rate, or ask for a concurrency",
        )
    return (len(starts) - 1) / span_s / load.value


def _played_sessions(
    workload: Workload, concurrency: int, rules: LoadRules, seed: int, rounds: int
) -> tuple[Workload, Measured]:
    """Whole sessions one after another, as plays; the first ones begin inside."""
    stream = np.random.default_rng([seed, 0])
    by_session = np.argsort(workload.session, kind="stable")
    ends = np.cumsum(np.bincount(workload.session)).tolist()
    turns = [by_session[start:end] for start, end in pairwise([0, *ends])]
    wanted = rounds * max(len(workload), concurrency) if rules.recycle else len(workload)
    wanted = rules.requests if rules.recycle and rules.requests is not None else wanted
    plays: list[Tokens] = []
    warm_up: list[bool] = []
    for rows in _repeated(turns, rules.recycle):
        first = _begin(rules, len(rows), stream) if len(plays) < concurrency else 0
        kept = rows[max(first - 1, 0) :]
        plays.append(kept)
        warm_up += [first > 0] + [False] * (len(kept) - 1)
        if len(warm_up) >= wanted:
            break
    return _played(workload, plays, len(turns)), ~np.array(warm_up, dtype=np.bool_)


def _repeated(turns: list[Tokens], recycle: bool) -> Iterator[Tokens]:
    yield from turns
    while recycle:
        yield from turns


def _begin(rules: LoadRules, turns: int, stream: np.random.Generator) -> int:
    """The first measured turn of a session that is under way when the run begins."""
    low, high = rules.start
    share = low + (high - low) * stream.random()
    return min(int(share * turns), turns - 1)


def _played(workload: Workload, plays: list[Tokens], sessions: int) -> Workload:
    """The plays one after another, each a session; later rounds have prefixes of their own."""
    rows = np.concatenate(plays)
    lengths = np.array([len(play) for play in plays])
    number = np.repeat(np.arange(len(plays), dtype=np.int32), lengths)
    one_by_one = np.zeros(len(workload), dtype=np.int64)
    parent = np.full(len(rows), NO_PARENT, dtype=np.int32)
    for play, start in zip(plays, (np.cumsum(lengths) - lengths).tolist(), strict=True):
        one_by_one[play] = np.arange(start, start + len(play))
        waited = workload.parent[play]
        known = (waited != NO_PARENT) & np.isin(waited, play)
        # What waited for a turn that is left out waits for the first that is sent.
        found = np.where(known, one_by_one[np.maximum(waited, 0)], start)
        parent[start + 1 : start + len(play)] = found[1:]
    offsets, ids = _fresh_blocks(workload, rows, number // sessions)
    return replace(
        workload,
        arrival_s=np.zeros(len(rows)),
        input_tokens=workload.input_tokens[rows],
        output_tokens=workload.output_tokens[rows],
        block_offsets=offsets,
        block_ids=ids,
        session=number,
        parent=parent,
        gap_s=np.where(parent == NO_PARENT, 0.0, workload.gap_s[rows]),
        kind=workload.kind[rows],
        class_id=workload.class_id[rows],
    )


def _fresh_blocks(workload: Workload, rows: Tokens, round_of: Numbers) -> tuple[Tokens, Numbers]:
    """The blocks of the rows; those of each later round are other ones."""
    counts = np.diff(workload.block_offsets)[rows]
    offsets = np.concatenate(([0], np.cumsum(counts)))
    blocks = int(workload.block_ids.max(initial=-1)) + 1
    ids = np.empty(int(offsets[-1]), dtype=np.int32)
    for place, (row, again) in enumerate(zip(rows.tolist(), round_of.tolist(), strict=True)):
        ids[offsets[place] : offsets[place + 1]] = workload.blocks(row) + again * blocks
    return offsets, ids
