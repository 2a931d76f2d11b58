"""Workloads of sessions, drawn from stated distributions turn by turn."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from objectives.workload.chains import chained
from objectives.workload.quantity import (
    STRATA,
    Quantity,
    even_shares,
    normal_at,
    share_of,
    shares_along,
)
from objectives.workload.session_spec import SessionSpec, Start
from objectives.workload.workload import (
    APPEND,
    COMPACTION,
    FIRST,
    INVALIDATION,
    NO_PARENT,
    SUBAGENT,
    USER,
    RequestClass,
    Seconds,
    Tokens,
    Workload,
)

# The stream of a quantity is told by its index, so new quantities go to the end.
STREAMS = (
    "start",
    "turns",
    "growth",
    "output",
    "tool_run",
    "pause",
    "answer",
    "event",
    "event_size",
    "arrival",
    "subagents",
    "pace",
    "user_pace",
)
# Sessions that stand for all those of a specification.
SAMPLE, SAMPLE_SEED = 2_000, 0


def generate_sessions(
    spec: SessionSpec,
    seed: int,
    name: str = "sessions",
    sessions: int | None = None,
    request_class: RequestClass | None = None,
) -> Workload:
    """Whole sessions until `spec.requests` are there, the last one cut; or so many `sessions`.

    Each quantity has a random stream of its own, split from `seed`, and more requests begin with
    the same sessions. Sessions begin at Poisson times from 0, as many in a second as make one
    request a second in the mean.
    """
    wanted = math.inf if sessions is not None else spec.requests
    count = sessions or max(1, math.ceil(spec.requests / _mean_turns(spec)))
    while True:
        rows = _rows(spec, seed, count, wanted)
        if sessions is not None or len(rows.input_tokens) >= spec.requests:
            return rows.workload(spec, name, request_class or RequestClass())
        count *= 2


@dataclass(slots=True)
class _Rows:
    """Requests session by session; `source` is the row whose beginning is kept."""

    session: list[int] = field(default_factory=list)
    parent: list[int] = field(default_factory=list)
    source: list[int] = field(default_factory=list)
    kept_tokens: list[int] = field(default_factory=list)
    input_tokens: list[int] = field(default_factory=list)
    output_tokens: list[int] = field(default_factory=list)
    kind: list[int] = field(default_factory=list)
    gap_s: list[float] = field(default_factory=list)
    arrival_s: list[float] = field(default_factory=list)
    end_s: list[float] = field(default_factory=list)

    def add(
        self,
        parent: int,
        source: int,
        kept: int,
        tokens: tuple[int, int],
        kind: int,
        gap_s: float,
        answer_s: float,
        start_s: float,
    ) -> int:
        """Take a request of the newest session; where it stands."""
        self.session.append(self.session[parent] if parent >= 0 else self._next_session())
        self.parent.append(parent)
        self.source.append(source)
        self.kept_tokens.append(kept)
        self.input_tokens.append(tokens[0])
        self.output_tokens.append(tokens[1])
        self.kind.append(kind)
        self.gap_s.append(gap_s)
        self.arrival_s.append(start_s if parent < 0 else self.end_s[parent] + gap_s)
        self.end_s.append(self.arrival_s[-1] + answer_s)
        return len(self.parent) - 1

    def _next_session(self) -> int:
        return self.session[-1] + 1 if self.session else 0

    def workload(self, spec: SessionSpec, name: str, request_class: RequestClass) -> Workload:
        """The rows in order of arrival."""
        arrival_s = np.array(self.arrival_s)
        order = np.argsort(arrival_s, kind="stable")
        place = np.empty(len(order) + 1, dtype=np.int32)
        place[order] = np.arange(len(order), dtype=np.int32)
        place[NO_PARENT] = NO_PARENT
        input_tokens = np.array(self.input_tokens)[order]
        offsets, ids = chained(
            place[np.array(self.source)[order]],
            np.array(self.kept_tokens)[order],
            input_tokens,
            spec.block_tokens,
        )
        return Workload(
            name=name,
            arrival_s=arrival_s[order],
            input_tokens=input_tokens,
            output_tokens=np.array(self.output_tokens)[order],
            block_tokens=spec.block_tokens,
            block_offsets=offsets,
            block_ids=ids,
            session=np.array(self.session, dtype=np.int32)[order],
            parent=place[np.array(self.parent)[order]],
            gap_s=np.array(self.gap_s)[order],
            kind=np.array(self.kind, dtype=np.int8)[order],
            class_id=np.zeros(len(order), dtype=np.int32),
            classes=(request_class,),
        )


@dataclass(frozen=True, slots=True)
class _Sessions:
    """What is drawn for each session [m]; `z_turns` is the rank of its turns as a normal value."""

    start: Tokens
    first_input: Seconds
    turns: Tokens
    z_turns: Seconds
    begin_s: Seconds


@dataclass(frozen=True, slots=True)
class _Turns:
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


def _rows(spec: SessionSpec, seed: int, count: int, wanted: float) -> _Rows:
    # Whole strata are drawn, so that more sessions begin with the same ones.
    drawn = _sessions(spec, seed, -(-count // STRATA) * STRATA)
    turns = _turns(spec, seed, drawn)
    agents = _stream(seed, "subagents")
    rows = _Rows()
    first = 0
    for session in range(count):
        _Path(spec, drawn, turns, rows, session, first).walk(agents)
        first += int(drawn.turns[session])
        if len(rows.parent) >= wanted:
            break
    return rows if wanted == math.inf else _cut(rows, int(wanted))


def _cut(rows: _Rows, most: int) -> _Rows:
    columns = {name: getattr(rows, name)[:most] for name in _Rows.__dataclass_fields__}
    return _Rows(**columns)


def _sessions(spec: SessionSpec, seed: int, count: int) -> _Sessions:
    """One draw chooses the start and, within its share, the first input."""
    weights = np.array([start.share for start in spec.starts])
    steps = np.cumsum(weights) / weights.sum()
    u = even_shares(_stream(seed, "start"), count)
    chosen = np.minimum(np.searchsorted(steps, u, side="right"), len(steps) - 1)
    within = (u - (steps - weights / weights.sum())[chosen]) / (weights / weights.sum())[chosen]
    within = np.clip(within, 1e-12, 1 - 1e-12)
    own = normal_at(shares_along(_stream(seed, "turns"), u))
    by_input = np.array([start.turns_by_input for start in spec.starts])[chosen]
    z_turns = by_input * normal_at(within) + np.sqrt(1 - by_input**2) * own
    first_input, turns = np.empty(count), np.empty(count)
    for place, start in enumerate(spec.starts):
        mine = chosen == place
        first_input[mine] = _first_input(spec, start, within[mine])
        turns[mine] = start.turns.at(share_of(z_turns[mine]))
    gaps = spec.arrivals.gaps(_stream(seed, "arrival"), count) * _mean_turns(spec)
    return _Sessions(
        start=chosen,
        first_input=np.maximum(np.rint(first_input), 1),
        turns=np.maximum(np.rint(turns), 1).astype(np.int64),
        z_turns=z_turns,
        begin_s=np.cumsum(gaps) - gaps[0],
    )


def _first_input(spec: SessionSpec, start: Start, u: Seconds) -> Seconds:
    """Lengths of whole new contexts at the shares `u`, within the limit."""
    tokens = start.first_input_tokens.at(u) * spec.token_scale
    limit = spec.context_limit_tokens
    if limit is None:
        return tokens
    least = spec.compaction.at.at(np.zeros(1))[0] if spec.compaction else 1.0
    return np.minimum(tokens, limit * least)


def _length(spec: SessionSpec, drawn: _Sessions) -> Seconds:
    """How long the session of each turn [total] is: mean 0 and deviation 1 among turns.

    Long sessions have more turns, so both are taken from a large sample of sessions.
    """
    sample = _sessions(spec, SAMPLE_SEED, SAMPLE)
    weights = sample.turns / sample.turns.sum()
    mean = float((weights * sample.z_turns).sum())
    deviation = math.sqrt(float((weights * (sample.z_turns - mean) ** 2).sum())) or 1.0
    return np.repeat((drawn.z_turns - mean) / deviation, drawn.turns)


def _mean_turns(spec: SessionSpec) -> float:
    total = sum(start.share for start in spec.starts)
    return sum(start.share * start.turns.mean() for start in spec.starts) / total


def _turns(spec: SessionSpec, seed: int, drawn: _Sessions) -> _Turns:
    n = int(drawn.turns.sum())

    def shares(quantity: str) -> Seconds:
        return even_shares(_stream(seed, quantity), n)

    z_output = normal_at(shares("output"))
    before = np.roll(z_output, 1)
    length = _length(spec, drawn)
    z_growth = _mixed(before, normal_at(shares("growth")), spec.growth_by_output)
    z_growth = _mixed(length, z_growth, spec.growth_by_turns)
    z_growth += _opening(spec, drawn)
    z_pause = normal_at(shares("pause"))
    own_pace = normal_at(shares_along(_stream(seed, "pace"), drawn.z_turns))
    pace = _mixed(length, np.repeat(own_pace, drawn.turns), spec.tool_pause_by_turns)
    user_pace = normal_at(shares_along(_stream(seed, "user_pace"), drawn.z_turns))
    by_tool = _mixed(pace, z_pause, math.sqrt(spec.tool_pause_between_sessions))
    by_user = _mixed(
        np.repeat(user_pace, drawn.turns), z_pause, math.sqrt(spec.user_pause_between_sessions)
    )
    z_answer = _mixed(z_output, normal_at(shares("answer")), spec.answer_by_output)
    run = spec.tool_turns or Quantity(constant=0)
    long = np.repeat(drawn.z_turns, drawn.turns)
    z_run = _mixed(long, normal_at(shares("tool_run")), spec.tool_turns_by_turns)
    tool_pause = spec.tool_pause_s or spec.user_pause_s
    return _Turns(
        growth=_growth(spec, z_growth),
        late_growth=_growth(spec, z_growth, late=True),
        output=_tokens(spec.output_tokens.at(share_of(z_output)) * spec.token_scale),
        tool_run=np.rint(run.at(share_of(z_run))).astype(np.int64),
        tool_pause_s=_pauses(spec, tool_pause.at(share_of(by_tool))),
        user_pause_s=_pauses(spec, spec.user_pause_s.at(share_of(by_user))),
        answer_s=spec.answer_s.at(share_of(z_answer)),
        pause=share_of(by_tool),
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


def _opening(spec: SessionSpec, drawn: _Sessions) -> Seconds:
    """How much more the turns [total] that open a session add, less the mean of all turns."""
    shifts = np.zeros(int(drawn.turns.max()) + 1)
    told = spec.opening_shifts[: len(shifts) - 1]
    shifts[1 : 1 + len(told)] = told
    begins = np.repeat(np.cumsum(drawn.turns) - drawn.turns, drawn.turns)
    return shifts[np.arange(len(begins)) - begins] - sum(told) / _mean_turns(spec)


def _mixed(common: Seconds, own: Seconds, correlation: float) -> Seconds:
    return correlation * common + math.sqrt(1 - correlation**2) * own


def _tokens(values: Seconds) -> Tokens:
    return np.maximum(np.rint(values), 1).astype(np.int64)


def _pauses(spec: SessionSpec, pauses: Seconds) -> Seconds:
    scaled = pauses * spec.pause_scale
    return scaled if spec.pause_cap_s is None else np.minimum(scaled, spec.pause_cap_s)


@dataclass(slots=True)
class _Path:
    """One session on its way: where its context stands and what comes next."""

    spec: SessionSpec
    drawn: _Sessions
    turns: _Turns
    rows: _Rows
    session: int
    first: int
    tools_left: int = 0
    trigger_tokens: float = math.inf

    def walk(self, agents: np.random.Generator) -> None:
        """Add the turns of the session, and of the agents it begins, to the rows."""
        tokens = self.spec.shared_prefix_tokens * self.spec.token_scale
        last = self.rows.add(
            parent=NO_PARENT,
            source=NO_PARENT,
            kept=int(tokens),
            tokens=(int(self.drawn.first_input[self.session]), int(self.turns.output[self.first])),
            kind=FIRST,
            gap_s=0.0,
            answer_s=float(self.turns.answer_s[self.first]),
            start_s=float(self.drawn.begin_s[self.session]),
        )
        self._next_context(self.first)
        self.tools_left = int(self.turns.tool_run[self.first])
        count = int(self.drawn.turns[self.session])
        begun = _agent_turns(self.spec, agents, count)
        waits_for = last
        for turn in range(self.first + 1, self.first + count):
            for _ in range(begun.count(turn - self.first)):
                waits_for = self._agent(waits_for, agents)
            added = self._turn(turn, last, waits_for)
            if added is None:
                return
            last = waits_for = added

    def _start(self) -> Start:
        return self.spec.starts[int(self.drawn.start[self.session])]

    def _limit(self) -> int | None:
        return self.spec.context_limit_tokens or self._start().context_limit_tokens

    def _next_context(self, turn: int) -> None:
        """How long the context may become until the next compaction."""
        limit, compaction = self._limit(), self.spec.compaction
        if limit is not None and compaction is not None:
            at = compaction.at.at(self.turns.event_size[turn : turn + 1])
            self.trigger_tokens = limit * float(at[0])

    def _turn(self, turn: int, last: int, waits_for: int) -> int | None:
        """The next turn, or None where the session ends at its limit."""
        spec, rows = self.spec, self.rows
        tool = self.tools_left > 0 and spec.tool_turns is not None
        kind = APPEND if tool else USER
        before, answer = rows.input_tokens[last], rows.output_tokens[last]
        tokens = self._grown(turn, before, answer)
        kept = int(spec.shared_prefix_tokens * spec.token_scale) if spec.fresh_context else before
        pause_s = float((self.turns.tool_pause_s if tool else self.turns.user_pause_s)[turn])
        if self._passes(tokens, int(self.turns.output[turn])):
            compacted = self._compacted(turn)
            if compacted is None:
                return None
            tokens, kept = compacted
            kind, pause_s = COMPACTION, float(self.turns.user_pause_s[turn])
        elif self._invalid(turn, before):
            kind = INVALIDATION
            kept, pause_s = self._invalidated(turn, before)
        if kind != APPEND or not tool:
            self.tools_left = int(self.turns.tool_run[turn]) if kind == USER else self.tools_left
        if tool:
            self.tools_left -= 1
        return rows.add(
            parent=waits_for,
            source=last,
            kept=min(kept, tokens),
            tokens=(tokens, int(self.turns.output[turn])),
            kind=kind,
            gap_s=pause_s,
            answer_s=float(self.turns.answer_s[turn]),
            start_s=0.0,
        )

    def _grown(self, turn: int, before: int, answer: int) -> int:
        """The input of a turn whose context goes on, or is made anew."""
        spec = self.spec
        if spec.fresh_context:
            u = self.turns.event_size[turn : turn + 1]
            return max(1, round(float(_first_input(spec, self._start(), u)[0])))
        late = spec.large_growth is not None and before > spec.large_growth.early_tokens
        growth = float((self.turns.late_growth if late else self.turns.growth)[turn])
        return before + max(1, round(growth + (answer if spec.external_tokens else 0)))

    def _passes(self, tokens: int, output: int) -> bool:
        limit = self._limit()
        return tokens > self.trigger_tokens or (limit is not None and tokens + output > limit)

    def _compacted(self, turn: int) -> tuple[int, int] | None:
        """Input and kept tokens after a compaction; None where the session ends instead."""
        compaction = self.spec.compaction
        turns = int(self.drawn.turns[self.session])
        left = self.first + turns - turn
        if compaction is None or left <= compaction.ends_within * turns:
            return None
        u = self.turns.event_size[turn : turn + 1]
        self._next_context(turn)
        after = compaction.to_tokens.at(u)[0] * self.spec.token_scale
        kept = compaction.kept_tokens.at(1 - u)[0] * self.spec.token_scale
        return max(1, round(after)), round(kept)

    def _invalid(self, turn: int, before: int) -> bool:
        rule = self.spec.invalidation
        return (
            rule is not None
            and before > rule.from_tokens
            and bool(self.turns.event[turn] > 1 - rule.share)
        )

    def _invalidated(self, turn: int, before: int) -> tuple[int, float]:
        rule = self.spec.invalidation
        assert rule is not None, "a turn is invalid by a rule"
        kept = rule.kept_tokens.at(self.turns.event_size[turn : turn + 1])[0]
        pause_s = rule.pause_s.at(self.turns.pause[turn : turn + 1])
        return int(min(kept * self.spec.token_scale, before / 2)), float(
            _pauses(self.spec, pause_s)[0]
        )

    def _agent(self, parent: int, stream: np.random.Generator) -> int:
        """The turns of one subagent; the last of them."""
        rule, spec = self.spec.subagents, self.spec
        assert rule is not None, "an agent is begun by a rule"
        turns = max(1, round(float(rule.turns.at(stream.random(1))[0])))
        last, source = parent, NO_PARENT
        context = 0
        for turn in range(turns):
            size = rule.first_input_tokens if turn == 0 else rule.growth_tokens
            u = stream.random(4)
            context += max(1, round(float(size.at(u[:1])[0]) * spec.token_scale))
            output = _tokens(spec.output_tokens.at(u[1:2]) * spec.token_scale)[0]
            kept = 0 if turn == 0 else self.rows.input_tokens[source]
            last = source = self.rows.add(
                parent=last,
                source=source,
                kept=kept,
                tokens=(context, int(output)),
                kind=SUBAGENT if turn == 0 else APPEND,
                gap_s=0.0 if turn == 0 else float(_pauses(spec, rule.pause_s.at(u[2:3]))[0]),
                answer_s=float(spec.answer_s.at(u[3:4])[0]),
                start_s=0.0,
            )
        return last


def _agent_turns(spec: SessionSpec, stream: np.random.Generator, turns: int) -> list[int]:
    """The turns before which agents work, in order; the same numbers are drawn for any session."""
    rule = spec.subagents
    if rule is None:
        return []
    chosen, size = stream.random(2)
    if chosen >= rule.share or turns < 2:
        return []
    groups = max(1, round(float(rule.groups.at(np.array([size]))[0])))
    return sorted(int(turn) for turn in stream.integers(1, turns, groups))


def _stream(seed: int, quantity: str) -> np.random.Generator:
    key = (STREAMS.index(quantity),)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))
