"""Loads with rules: sessions in a closed loop, arrival processes, stops and warm-up."""

from __future__ import annotations

import math
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

from objectives.workload.distributions import Arrivals
from objectives.workload.load import OfferedLoad
from objectives.workload.selection import selected
from objectives.workload.workload import NO_PARENT, Numbers, Seconds, Tokens, Workload
from spaces.documents import Document
from spaces.errors import InputError

Share = Annotated[float, Field(ge=0, le=1)]


class LoadRules(Document):
    """How a workload is sent.

    Exactly one of: `sessions` alive in a closed loop; `session_rate`, new sessions per second in
    an open one; `time_scale`, the recorded times multiplied. `arrivals` is the process of an open
    loop, that of the record where it is left out. Turns wait for the turn before them, unless
    `replay_turns` sends them at their recorded times.

    In a closed loop the first sessions begin inside: after a share of their turns that is drawn
    evenly from `start`. The turn before is sent first and not measured. Sessions are `recycled`
    in their order until there are so many requests; what is played again
    shares no prefix with the rounds before.
    Pauses are cut at `tree_idle_cap_s`.

    A run stops after `requests` or at `duration_s`, whichever is first. The first
    `warm_up_requests`, and those sent before `warm_up_s`, are not measured.
    """

    sessions: PositiveInt | None = None
    session_rate: PositiveFloat | None = None
    time_scale: PositiveFloat | None = None
    arrivals: Arrivals | None = None
    replay_turns: bool = False
    start: tuple[Share, Share] = (0.0, 0.0)
    recycled: PositiveInt | None = None
    tree_idle_cap_s: PositiveFloat | None = None
    system_idle_cap_s: PositiveFloat | None = None
    requests: PositiveInt | None = None
    duration_s: PositiveFloat | None = None
    warm_up_s: NonNegativeFloat = 0.0
    warm_up_requests: NonNegativeInt = 0

    @model_validator(mode="after")
    def _one_loop(self) -> LoadRules:
        kinds = ("sessions", "session_rate", "time_scale")
        given = [kind for kind in kinds if getattr(self, kind) is not None]
        if len(given) != 1:
            raise InputError(
                f"a load is exactly one of {', '.join(kinds)}", value=given or "none of them"
            )
        if self.arrivals is not None and self.session_rate is None:
            raise InputError(
                "a process of arrivals needs a session_rate", key="arrivals", value=given[0]
            )
        closed_only = self.start != (0.0, 0.0) or self.recycled is not None
        if closed_only and self.sessions is None:
            raise InputError(
                "start and recycled belong to a closed loop", key="start", value=given[0]
            )
        if self.replay_turns and self.sessions is not None:
            raise InputError(
                "recorded times are replayed in an open loop", key="replay_turns", value=given[0]
            )
        if self.start[0] > self.start[1]:
            raise InputError("low must not exceed high", key="start", value=list(self.start))
        return self


def agentx(sessions: int, requests: int | None = None) -> LoadRules:
    """The rules of InferenceX's AgentX for so many live sessions.

    The first sessions begin at 25 to 75 % of their turns, sessions follow one another, a session
    that is idle for 300 s and a system that is idle for 10 s are skipped forward, and a run takes
    an hour (SemiAnalysisAI/InferenceX, agentx-harness 1.0.12).
    """
    return LoadRules(
        sessions=sessions,
        start=(0.25, 0.75),
        recycled=requests,
        tree_idle_cap_s=300,
        system_idle_cap_s=10,
        duration_s=3600,
    )


def offer(workload: Workload, rules: LoadRules, seed: int) -> tuple[Workload, OfferedLoad]:
    """The requests to send, in order, and how they are sent."""
    capped = _capped(workload, rules.tree_idle_cap_s)
    if rules.sessions is not None:
        sent, measured = _closed(capped, rules, np.random.default_rng([seed, 0]))
    else:
        sent = _open(capped, rules, np.random.default_rng([seed, 1]))
        measured = np.ones(len(sent), dtype=np.bool_)
    if rules.requests is not None and rules.requests < len(sent):
        sent = selected(sent, np.arange(rules.requests))
        measured = measured[: rules.requests]
    measured[: rules.warm_up_requests] = False
    if rules.replay_turns:
        sent = _unlinked(sent)
    load = OfferedLoad(
        arrival_s=np.zeros(len(sent)) if rules.sessions is not None else sent.arrival_s,
        concurrency=rules.sessions or 0,
        measured=measured,
        warm_up_s=rules.warm_up_s,
        horizon_s=rules.duration_s or math.inf,
        system_idle_cap_s=rules.system_idle_cap_s or math.inf,
    )
    return sent, load


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


def _open(workload: Workload, rules: LoadRules, stream: np.random.Generator) -> Workload:
    """The workload with the starts of its sessions moved, and all turns with them."""
    if rules.time_scale is not None:
        return replace(workload, arrival_s=workload.arrival_s * rules.time_scale)
    assert rules.session_rate is not None, "an open loop has a rate"
    begins = _session_starts(workload)
    order = np.argsort(begins, kind="stable")
    moved = np.empty(len(begins))
    if rules.arrivals is not None:
        moved[order] = rules.arrivals.times(stream, len(begins), rules.session_rate)
    else:
        moved = begins * _stretch(workload, begins, rules.session_rate)
    arrival_s = workload.arrival_s + (moved - begins)[workload.session]
    rows = np.argsort(arrival_s, kind="stable")
    return selected(replace(workload, arrival_s=arrival_s), rows)


def _session_starts(workload: Workload) -> Seconds:
    begins = np.full(workload.sessions, math.inf)
    np.minimum.at(begins, workload.session, workload.arrival_s)
    return begins


def _stretch(workload: Workload, begins: Seconds, rate: float) -> float:
    span_s = float(begins.max())
    if span_s == 0:
        raise InputError(
            "a session rate needs starts to stretch, but all sessions begin at one moment",
            where=workload.name,
            key="session_rate",
            value=rate,
            remedy="give a process of arrivals",
        )
    return (len(begins) - 1) / span_s / rate


def _closed(
    workload: Workload, rules: LoadRules, stream: np.random.Generator
) -> tuple[Workload, npt.NDArray[np.bool_]]:
    """Whole sessions one after another, as plays; the first ones begin inside."""
    assert rules.sessions is not None, "a closed loop has sessions"
    by_session = np.argsort(workload.session, kind="stable")
    ends = np.cumsum(np.bincount(workload.session)).tolist()
    turns = [by_session[start:end] for start, end in pairwise([0, *ends])]
    plays: list[Tokens] = []
    warm_up: list[bool] = []
    wanted = rules.recycled or len(workload)
    count = 0
    while count < wanted:
        for rows in turns:
            first = _begin(rules, len(rows), stream) if len(plays) < rules.sessions else 0
            kept = rows[max(first - 1, 0) :]
            plays.append(kept)
            warm_up += [first > 0] + [False] * (len(kept) - 1)
            count += len(kept)
            if count >= wanted:
                break
    return _played(workload, plays, len(turns)), ~np.array(warm_up, dtype=np.bool_)


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
