"""The quantities of coding-agent sessions that published quantile tables are about."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from objectives.workload import Workload
from objectives.workload.turns import hit_tokens
from objectives.workload.workload import (
    APPEND,
    COMPACTION,
    INVALIDATION,
    NO_PARENT,
    SUBAGENT,
    USER,
)

Values = npt.NDArray[np.float64] | npt.NDArray[np.int64]
SHARED_TOKENS = 15_000


@dataclass(frozen=True, slots=True)
class AgentSessions:
    """Samples by the names in the tables, the cached share, and what idling does to it."""

    turns: dict[str, Values]
    sessions: dict[str, Values]
    cached_share: float
    cached_after_idle: dict[int, float]
    residency: dict[float, float]


def measured(workload: Workload) -> AgentSessions:
    """All of it, with prefixes shared within sessions only, as the tables count them."""
    agent = _of_subagents(workload)
    before = _turn_before(workload, agent)
    later = before != NO_PARENT
    hits = np.where(~agent & ~later, 0, hit_tokens(workload))
    new = workload.input_tokens - hits
    steady = later & np.isin(workload.kind, (APPEND, USER))
    growth = (workload.input_tokens - workload.input_tokens[np.maximum(before, 0)])[steady]
    large = steady & (workload.input_tokens > 100_000)
    by_tool = later & np.isin(workload.kind, (APPEND, INVALIDATION))
    by_user = later & np.isin(workload.kind, (USER, COMPACTION))
    turns = {
        "input": workload.input_tokens,
        "output": workload.output_tokens,
        "new_tokens_all": new,
        "new_tokens_steady": new[steady],
        "new_tokens_steady_ctx_gt_100k": new[large],
        "external_append(in-prev_in-prev_out)": np.maximum(
            growth - workload.output_tokens[before[steady]], 0
        ),
        "context_growth_per_turn": growth,
        "gap_tool_s": workload.gap_s[by_tool],
        "gap_user_s": workload.gap_s[by_user],
    }
    return AgentSessions(
        turns=turns,
        sessions=_by_session(workload, agent, new),
        cached_share=float(hits.sum() / workload.input_tokens.sum()),
        cached_after_idle={
            idle_s: _cached_after(workload, hits, later, idle_s) for idle_s in (60, 300, 3600)
        },
        residency={cap_s: _residency(workload, before, cap_s) for cap_s in (np.inf, 300, 60)},
    )


def _of_subagents(workload: Workload) -> npt.NDArray[np.bool_]:
    """Whether a request is a subagent's: it begins as one, or shares blocks with one that is."""
    agent: npt.NDArray[np.bool_] = workload.kind == SUBAGENT
    for request, parent in enumerate(workload.parent.tolist()):
        if parent >= 0 and agent[parent] and not agent[request]:
            agent[request] = workload.blocks(request)[0] == workload.blocks(parent)[0]
    return agent


def _turn_before(workload: Workload, agent: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """The turn of the agent itself before each of its turns."""
    before = np.full(len(workload), NO_PARENT)
    last: dict[int, int] = {}
    for request, session in enumerate(workload.session.tolist()):
        if not agent[request]:
            before[request] = last.get(session, NO_PARENT)
            last[session] = request
    return before


def _by_session(
    workload: Workload, agent: npt.NDArray[np.bool_], new: Values
) -> dict[str, Values]:
    order = np.argsort(workload.session, kind="stable")
    ends = np.cumsum(np.bincount(workload.session))
    found: dict[str, list[float]] = {}
    for rows in np.split(order, ends[:-1]):
        own = rows[~agent[rows]]
        contexts = workload.input_tokens[own]
        values = {
            "turns_per_session_main": len(own),
            "max_context": contexts.max(),
            "end_context": contexts[-1],
            "first_input_all": contexts[0],
            "unique_tokens_session": new[rows].sum(),
            "session_hit_rate": 1 - new[rows].sum() / workload.input_tokens[rows].sum(),
        }
        for name, value in values.items():
            found.setdefault(name, []).append(float(value))
    return {name: np.array(values) for name, values in found.items()}


def _cached_after(
    workload: Workload, hits: Values, later: npt.NDArray[np.bool_], idle_s: int
) -> float:
    """The cached share if prefixes are dropped after so long, but for what all sessions share."""
    dropped = later & (workload.gap_s > idle_s)
    left = np.where(dropped, np.minimum(hits, SHARED_TOKENS), hits)
    return float(left.sum() / workload.input_tokens.sum())


def _residency(workload: Workload, before: npt.NDArray[np.int64], cap_s: float) -> float:
    """Token-seconds idle between turns over token-seconds in service at recorded times.

    Answers are known where a turn waits for them, and as long elsewhere.
    """
    waiting = np.flatnonzero(workload.parent != NO_PARENT)
    parent = workload.parent[waiting]
    answer_s = workload.arrival_s[waiting] - workload.gap_s[waiting] - workload.arrival_s[parent]
    served, first = np.unique(parent, return_index=True)
    in_service = (workload.input_tokens[served] * answer_s[first]).sum()
    in_service *= len(workload) / len(served)
    later = before != NO_PARENT
    idle_s = np.minimum(workload.gap_s[later], cap_s)
    return float((workload.input_tokens[before[later]] * idle_s).sum() / in_service)
