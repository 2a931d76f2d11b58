"""Workloads of sessions, drawn from stated distributions turn by turn."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from objectives.workload.session_draws import (
    DrawnSessions,
    DrawnTurns,
    cut_pauses,
    drawn_sessions,
    drawn_turns,
    first_inputs,
    mean_turns,
    stream_of,
    whole_tokens,
)
from objectives.workload.session_rows import Rows
from objectives.workload.session_spec import Compaction, SessionSpec, Start
from objectives.workload.workload import (
    APPEND,
    COMPACTION,
    FIRST,
    INVALIDATION,
    NO_PARENT,
    SUBAGENT,
    USER,
    RequestClass,
    Workload,
)

# A summary that would fill a short context gets half of it.
MOST_AFTER_COMPACTION = 0.5


def generate_sessions(
    spec: SessionSpec,
    seed: int,
    name: str = "sessions",
    sessions: int | None = None,
    request_class: RequestClass | None = None,
) -> Workload:
    """Whole sessions until `spec.requests` are there, the last one cut; or so many `sessions`.

    Each quantity has a random stream of its own, split from `seed`, and more requests begin with
    the same sessions. Sessions begin at times of `spec.arrivals`, as many in a second as make one
    request a second in the mean.
    """
    wanted = math.inf if sessions is not None else spec.requests
    count = sessions or max(1, math.ceil(spec.requests / mean_turns(spec)))
    while True:
        rows = _rows(spec, seed, count, wanted)
        if sessions is not None or len(rows.input_tokens) >= spec.requests:
            return rows.workload(spec, name, request_class or RequestClass())
        count *= 2


def _rows(spec: SessionSpec, seed: int, count: int, wanted: float) -> Rows:
    drawn = drawn_sessions(spec, seed, count)
    turns = drawn_turns(spec, seed, drawn)
    agents = stream_of(seed, "subagents")
    rows = Rows()
    first = 0
    for session in range(count):
        _Path(spec, drawn, turns, rows, session, first).walk(agents)
        first += int(drawn.turns[session])
        if len(rows.parent) >= wanted:
            break
    return rows if wanted == math.inf else _cut(rows, int(wanted))


def _cut(rows: Rows, most: int) -> Rows:
    columns = {
        name: getattr(rows, name)[:most]
        for name in Rows.__dataclass_fields__
        if name != "user_pauses"
    }
    return Rows(**columns)


@dataclass(slots=True)
class _Path:
    """One session on its way: where its context stands and what comes next."""

    spec: SessionSpec
    drawn: DrawnSessions
    turns: DrawnTurns
    rows: Rows
    session: int
    first: int
    tools_left: int = 0
    trigger_tokens: float = math.inf
    limits_met: int = 0

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
        pause_s = float(self.turns.tool_pause_s[turn]) if tool else self._user_pause_s()
        if self._passes(tokens, int(self.turns.output[turn])):
            compacted = self._compacted(turn)
            if compacted is None:
                return None
            tokens, kept = compacted
            kind, pause_s = COMPACTION, pause_s if not tool else self._user_pause_s()
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
            return max(1, round(float(first_inputs(spec, self._start(), u)[0])))
        late = spec.large_growth is not None and before > spec.large_growth.early_tokens
        growth = float((self.turns.late_growth if late else self.turns.growth)[turn])
        return before + max(1, round(growth + (answer if spec.external_tokens else 0)))

    def _user_pause_s(self) -> float:
        """The next of the pauses of users, which are even among themselves."""
        self.rows.user_pauses += 1
        return float(self.turns.user_pause_s[self.rows.user_pauses - 1])

    def _passes(self, tokens: int, output: int) -> bool:
        limit = self._limit()
        return tokens > self.trigger_tokens or (limit is not None and tokens + output > limit)

    def _compacted(self, turn: int) -> tuple[int, int] | None:
        """Input and kept tokens after a compaction; None where the session ends instead."""
        compaction = self.spec.compaction
        if compaction is None:
            return None
        if self._ends(compaction):
            return None
        u = self.turns.event_size[turn : turn + 1]
        self._next_context(turn)
        after = compaction.to_tokens.at(u)[0] * self.spec.token_scale
        limit = self._limit()
        assert limit is not None, "only what has a limit is compacted"
        after = min(after, MOST_AFTER_COMPACTION * limit)
        kept = compaction.kept_tokens.at(1 - u)[0] * self.spec.token_scale
        return max(1, round(after)), round(kept)

    def _ends(self, compaction: Compaction) -> bool:
        """Whether the session ends at the limit it comes to."""
        own = self._start().ends
        ends = compaction.ends if own is None else own
        ends += self.limits_met * compaction.ends_later
        self.limits_met += 1
        return bool(self.drawn.u_ends[self.session] < ends)

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
            cut_pauses(self.spec, pause_s)[0]
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
            output = whole_tokens(spec.output_tokens.at(u[1:2]) * spec.token_scale)[0]
            kept = 0 if turn == 0 else self.rows.input_tokens[source]
            last = source = self.rows.add(
                parent=last,
                source=source,
                kept=kept,
                tokens=(context, int(output)),
                kind=SUBAGENT if turn == 0 else APPEND,
                gap_s=0.0 if turn == 0 else float(cut_pauses(spec, rule.pause_s.at(u[2:3]))[0]),
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
