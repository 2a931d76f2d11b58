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

# What sessions have of their own: first input, turns, growth, runs of tools, ends at limits.
TRAITS = 5
LESS = 0.5


@dataclass(frozen=True, slots=True)
class DrawnSessions:
    """What is drawn for each session [m].

    `z_growth` and `z_runs` are normal values: what is its own in growth and in runs of tools.
    `u_ends` is a share: the lowest end at their first limit.
    """

    start: Tokens
    first_input: Seconds
    turns: Tokens
    z_growth: Seconds
    z_runs: Seconds
    u_ends: Seconds
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
    """Starts by their shares, and within each of them even traits of its sessions."""
    stream = stream_of(seed, "sessions")
    chosen = _chosen_starts(spec, spread_shares(stream, count, 1)[0])
    first_input, turns, z_growth, z_runs, u_ends = (np.empty(count) for _ in range(TRAITS))
    for place, start in enumerate(spec.starts):
        mine = chosen == place
        u_input, *others, u_ends[mine] = spread_shares(stream, int(mine.sum()), TRAITS)
        z_input, z_own, z_pace, z_runs[mine] = map(normal_at, (u_input, *others))
        first_input[mine] = first_inputs(spec, start, u_input)
        z_turns = _mixed(z_input, z_own, start.turns_by_input)
        z_growth[mine] = _mixed(z_turns, z_pace, spec.growth_by_turns)
        turns[mine] = start.turns.at(share_of(z_turns))
    gaps = spec.arrivals.gaps(stream_of(seed, "arrival"), count) * mean_turns(spec)
    return DrawnSessions(
        start=chosen,
        first_input=np.maximum(np.rint(first_input), 1),
        turns=np.maximum(np.rint(turns), 1).astype(np.int64),
        z_growth=z_growth,
        z_runs=z_runs,
        u_ends=u_ends,
        begin_s=np.cumsum(gaps) - gaps[0],
    )


def _chosen_starts(spec: SessionSpec, u: Seconds) -> Tokens:
    weights = np.array([start.share for start in spec.starts])
    steps = np.cumsum(weights) / weights.sum()
    return np.minimum(np.searchsorted(steps, u, side="right"), len(steps) - 1)


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
    start_of = np.repeat(drawn.start, drawn.turns)

    def shares(quantity: str) -> Seconds:
        return _even_by_start(seed, quantity, start_of)

    def of_turns(trait: Seconds) -> Seconds:
        return np.repeat(trait, drawn.turns)

    z_output = normal_at(shares("output"))
    before = np.roll(z_output, 1)
    z_growth = _mixed(before, normal_at(shares("growth")), spec.growth_by_output)
    between = math.sqrt(spec.growth_between_sessions)
    z_growth = _mixed(of_turns(drawn.z_growth), z_growth, between)
    z_growth += _opening(spec, drawn)
    z_growth += np.array([start.growth_shift for start in spec.starts])[start_of]
    pause = shares("pause")
    z_answer = _mixed(z_output, normal_at(shares("answer")), spec.answer_by_output)
    run = spec.tool_turns or Quantity(constant=0)
    alike = math.sqrt(spec.tool_turns_between_sessions)
    z_run = _mixed(of_turns(drawn.z_runs), normal_at(shares("tool_run")), alike)
    z_run += spec.tool_turns_shift
    tool_pause = spec.tool_pause_s or spec.user_pause_s
    # Users' pauses are taken one after another by whichever turn is a user's.
    user_pause = even_shares(stream_of(seed, "user_pause"), len(start_of))
    return DrawnTurns(
        growth=_growth(spec, z_growth),
        late_growth=_growth(spec, z_growth, late=True),
        output=whole_tokens(spec.output_tokens.at(share_of(z_output)) * spec.token_scale),
        tool_run=np.rint(run.at(share_of(z_run))).astype(np.int64),
        tool_pause_s=cut_pauses(spec, tool_pause.at(pause)),
        user_pause_s=cut_pauses(spec, spec.user_pause_s.at(user_pause)),
        answer_s=spec.answer_s.at(share_of(z_answer)),
        pause=pause,
        event=shares("event"),
        event_size=shares("event_size"),
    )


def _even_by_start(seed: int, quantity: str, start_of: Tokens) -> Seconds:
    """Shares that are even among the turns [total] of each start."""
    shares = np.empty(len(start_of))
    for place in range(int(start_of.max()) + 1):
        mine = start_of == place
        shares[mine] = even_shares(stream_of(seed, quantity, place), int(mine.sum()))
    return shares


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


def stream_of(seed: int, quantity: str, start: int = 0) -> np.random.Generator:
    """The random stream of one quantity, that of sessions of one start."""
    key = (STREAMS.index(quantity), start)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))
