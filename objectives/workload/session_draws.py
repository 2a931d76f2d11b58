"""What is drawn for sessions and their turns: even in their quantiles, the same by seed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from objectives.workload.quantity import (
    Quantity,
    even_shares,
    normal_at,
    share_of,
    spread_shares,
)
from objectives.workload.session_spec import SessionSpec, Start
from objectives.workload.workload import Seconds, Tokens

# The stream of a quantity is told by its index, so new quantities go to the end.
STREAMS = (
    "sessions",
    "growth",
    "output",
    "tool_run",
    "pause",
    "answer",
    "event",
    "event_size",
    "arrival",
    "subagents",
    "scale",
    "user_pause",
)

# The sequence of five dimensions is even in the three of them that sessions have.
SPREAD = 5
LESS = 0.5


@dataclass(frozen=True, slots=True)
class DrawnSessions:
    """What is drawn for each session [m].

    `z_turns` and `scale` are normal values: the rank of its number of turns, and what is its own
    in growth.
    """

    start: Tokens
    first_input: Seconds
    turns: Tokens
    z_turns: Seconds
    scale: Seconds
    begin_s: Seconds


@dataclass(frozen=True, slots=True)
class DrawnTurns:
    """What is drawn for each turn [total]; `event` and `event_size` are shares."""

    growth: Seconds
    late_growth: Seconds
    output: Tokens
    tool_run: Tokens
    tool_pause_s: Seconds
    user_pause_s: Seconds
    answer_s: Seconds
    pause: Seconds
    event: Seconds
    event_size: Seconds


def drawn_sessions(spec: SessionSpec, seed: int, count: int) -> DrawnSessions:
    """One draw chooses the start and, within its share, the first input."""
    weights = np.array([start.share for start in spec.starts])
    steps = np.cumsum(weights) / weights.sum()
    u, other, *_, last = spread_shares(stream_of(seed, "sessions"), count, SPREAD)
    chosen = np.minimum(np.searchsorted(steps, u, side="right"), len(steps) - 1)
    within = (u - (steps - weights / weights.sum())[chosen]) / (weights / weights.sum())[chosen]
    within = np.clip(within, 1e-12, 1 - 1e-12)
    own = normal_at(other)
    scale = normal_at(last)
    by_input = np.array([start.turns_by_input for start in spec.starts])[chosen]
    z_turns = by_input * normal_at(within) + np.sqrt(1 - by_input**2) * own
    first_input, turns = np.empty(count), np.empty(count)
    for place, start in enumerate(spec.starts):
        mine = chosen == place
        first_input[mine] = first_inputs(spec, start, within[mine])
        turns[mine] = start.turns.at(share_of(z_turns[mine]))
    gaps = spec.arrivals.gaps(stream_of(seed, "arrival"), count) * mean_turns(spec)
    return DrawnSessions(
        start=chosen,
        first_input=np.maximum(np.rint(first_input), 1),
        turns=np.maximum(np.rint(turns), 1).astype(np.int64),
        z_turns=z_turns,
        scale=scale,
        begin_s=np.cumsum(gaps) - gaps[0],
    )


def first_inputs(spec: SessionSpec, start: Start, u: Seconds) -> Seconds:
    """Lengths of whole new contexts at the shares `u`, within the limit."""
    tokens = start.first_input_tokens.at(u) * spec.token_scale
    limit = spec.context_limit_tokens
    if limit is None:
        return tokens
    least = spec.compaction.at.at(np.zeros(1))[0] if spec.compaction else 1.0
    return np.minimum(tokens, limit * least)


def mean_turns(spec: SessionSpec) -> float:
    """The mean number of turns of a session."""
    total = sum(start.share for start in spec.starts)
    return sum(start.share * start.turns.mean() for start in spec.starts) / total


def drawn_turns(spec: SessionSpec, seed: int, drawn: DrawnSessions) -> DrawnTurns:
    """All turns of the drawn sessions, one session after another."""
    n = int(drawn.turns.sum())

    def shares(quantity: str) -> Seconds:
        return even_shares(stream_of(seed, quantity), n)

    z_output = normal_at(shares("output"))
    before = np.roll(z_output, 1)
    z_growth = _mixed(before, normal_at(shares("growth")), spec.growth_by_output)
    between = math.sqrt(spec.growth_between_sessions)
    z_growth = _mixed(np.repeat(drawn.scale, drawn.turns), z_growth, between)
    z_growth += _opening(spec, drawn)
    pause = shares("pause")
    z_answer = _mixed(z_output, normal_at(shares("answer")), spec.answer_by_output)
    run = spec.tool_turns or Quantity(constant=0)
    long = np.repeat(drawn.z_turns, drawn.turns)
    z_run = _mixed(long, normal_at(shares("tool_run")), spec.tool_turns_by_turns)
    tool_pause = spec.tool_pause_s or spec.user_pause_s
    return DrawnTurns(
        growth=_growth(spec, z_growth),
        late_growth=_growth(spec, z_growth, late=True),
        output=whole_tokens(spec.output_tokens.at(share_of(z_output)) * spec.token_scale),
        tool_run=np.rint(run.at(share_of(z_run))).astype(np.int64),
        tool_pause_s=cut_pauses(spec, tool_pause.at(pause)),
        user_pause_s=cut_pauses(spec, spec.user_pause_s.at(shares("user_pause"))),
        answer_s=spec.answer_s.at(share_of(z_answer)),
        pause=pause,
        event=shares("event"),
        event_size=shares("event_size"),
    )


def _growth(spec: SessionSpec, z: Seconds, late: bool = False) -> Seconds:
    """What turns [total] add, early or late in a session."""
    added = spec.growth_tokens or spec.external_tokens or Quantity(constant=0)
    large = spec.large_growth
    if large is not None:
        over = np.maximum(z - large.above, 0.0)
        z = np.minimum(z, large.above) + over * (large.late if late else large.early)
    tokens: Seconds = added.at(share_of(z)) * spec.token_scale
    return tokens


def _opening(spec: SessionSpec, drawn: DrawnSessions) -> Seconds:
    """How much more the turns [total] that open a session add.

    Half of the mean of all turns is taken off again: the mean itself would take more from the
    median than the few large additions give to it.
    """
    shifts = np.zeros(int(drawn.turns.max()) + 1)
    told = spec.opening_shifts[: len(shifts) - 1]
    shifts[1 : 1 + len(told)] = told
    begins = np.repeat(np.cumsum(drawn.turns) - drawn.turns, drawn.turns)
    return shifts[np.arange(len(begins)) - begins] - LESS * sum(told) / mean_turns(spec)


def _mixed(common: Seconds, own: Seconds, correlation: float) -> Seconds:
    return correlation * common + math.sqrt(1 - correlation**2) * own


def whole_tokens(values: Seconds) -> Tokens:
    """Lengths rounded to whole tokens, at least 1."""
    return np.maximum(np.rint(values), 1).astype(np.int64)


def cut_pauses(spec: SessionSpec, pauses: Seconds) -> Seconds:
    """Pauses scaled and cut as the specification says."""
    scaled = pauses * spec.pause_scale
    return scaled if spec.pause_cap_s is None else np.minimum(scaled, spec.pause_cap_s)


def stream_of(seed: int, quantity: str) -> np.random.Generator:
    """The random stream of one quantity."""
    key = (STREAMS.index(quantity),)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))
