"""A preset from a workload: its own distributions as tables of quantiles."""

from __future__ import annotations

from typing import Any

import numpy as np

from objectives.workload.kinds import INVALID_FROM_TOKENS
from objectives.workload.turns import TurnTokens, turn_tokens
from objectives.workload.workload import (
    APPEND,
    COMPACTION,
    FIRST,
    INVALIDATION,
    NO_PARENT,
    USER,
    Seconds,
    Workload,
)

PERCENTS = (0, 1, 5, 10, 25, 50, 75, 90, 95, 99, 100)
DEFAULT_OUTPUT_TOKENS_PER_S = 40
SMALLEST_CV, LARGEST_CV = 0.05, 100.0
SHARED_BY = 0.5


def fitted_preset(workload: Workload, source: str) -> dict[str, Any]:
    """The content of a YAML file that `preset` reads: sessions with the tables of this workload.

    Turns of subagents are taken as turns of the session. What depends on one another in the
    workload is independent in the preset, so compare both before relying on it.
    """
    parts = turn_tokens(workload)
    later = workload.parent != NO_PARENT
    sessions: dict[str, Any] = {
        "requests": len(workload),
        "arrivals": {"gamma": {"cv": _arrival_cv(workload)}},
        "shared_prefix_tokens": _shared_prefix(workload),
        "starts": [
            {
                "first_input_tokens": _table(workload.input_tokens[~later], whole=True),
                "turns": _table(np.bincount(workload.session), whole=True),
            }
        ],
        "output_tokens": _table(workload.output_tokens, whole=True),
        **_growth(workload, parts),
        **_pauses(workload),
        "answer_s": _answers(workload),
        **_losses(workload, parts),
        "block_tokens": workload.block_tokens or 64,
    }
    return {
        "title": f"fitted to {workload.name}",
        "source": source,
        "sources": {"": f"all figures are quantiles of {source}"},
        "sessions": sessions,
    }


def _table(values: Any, whole: bool = False) -> dict[str, Any]:
    """The quantiles of some values; a bare number where they are all equal."""
    digits = 0 if whole else 4
    found = [round(float(value), digits) for value in np.percentile(values, PERCENTS)]
    numbers: list[float | int] = [int(value) if whole else value for value in found]
    if numbers[0] == numbers[-1]:
        return {"constant": numbers[0]}
    return {"quantiles": {"percents": list(PERCENTS), "values": numbers}}


def _growth(workload: Workload, parts: TurnTokens) -> dict[str, Any]:
    going_on = (parts.extends != NO_PARENT) & np.isin(workload.kind, (APPEND, USER))
    if not going_on.any():
        return {"external_tokens": {"constant": 0}}
    before = parts.extends[going_on]
    grown = workload.input_tokens[going_on] - workload.input_tokens[before]
    return {
        "external_tokens": _table(
            np.maximum(grown - workload.output_tokens[before], 0), whole=True
        )
    }


def _pauses(workload: Workload) -> dict[str, Any]:
    tool, user = workload.kind == APPEND, np.isin(workload.kind, (USER, COMPACTION))
    found: dict[str, Any] = {"user_pause_s": {"constant": 0}}
    if user.any():
        found["user_pause_s"] = _table(workload.gap_s[user])
    if tool.any():
        found["tool_turns"] = _table(_tool_runs(workload), whole=True)
        found["tool_pause_s"] = _table(workload.gap_s[tool])
        if not user.any():
            found["user_pause_s"] = found["tool_pause_s"]
    return found


def _tool_runs(workload: Workload) -> list[int]:
    """How many turns of tools follow each first or user turn of a session."""
    runs: list[int] = []
    order = np.argsort(workload.session, kind="stable")
    for kind in workload.kind[order].tolist():
        if kind in (FIRST, USER):
            runs.append(0)
        elif kind == APPEND and runs:
            runs[-1] += 1
    return runs or [0]


def _answers(workload: Workload) -> dict[str, Any]:
    """From the arrival of a turn to its end, as the arrival of a later one tells."""
    later = np.flatnonzero(workload.parent != NO_PARENT)
    parents = workload.parent[later]
    seconds: Seconds = workload.arrival_s[later] - workload.gap_s[later]
    seconds = np.maximum(seconds - workload.arrival_s[parents], 0.0)
    if not len(later) or not seconds.max() > 0:
        mean = float(workload.output_tokens.mean()) / DEFAULT_OUTPUT_TOKENS_PER_S
        return {"constant": round(mean, 4)}
    return _table(seconds)


def _losses(workload: Workload, parts: TurnTokens) -> dict[str, Any]:
    """Invalidations as a rule of their own; compactions need a limit, which no trace tells."""
    lost = workload.kind == INVALIDATION
    if not lost.any():
        return {}
    large = (workload.parent != NO_PARENT) & (workload.input_tokens > INVALID_FROM_TOKENS)
    return {
        "invalidation": {
            "share": round(float(np.count_nonzero(lost) / np.count_nonzero(large)), 5),
            "from_tokens": INVALID_FROM_TOKENS,
            "kept_tokens": _table(parts.kept[lost], whole=True),
            "pause_s": _table(workload.gap_s[lost]),
        }
    }


def _shared_prefix(workload: Workload) -> int:
    """The beginning, in whole blocks, that at least half of the sessions have in common."""
    firsts = np.flatnonzero(workload.parent == NO_PARENT)
    if not workload.block_tokens or len(firsts) < 2:
        return 0
    shared = 0
    alike = [workload.blocks(row) for row in firsts.tolist()]
    while True:
        alike = [blocks for blocks in alike if len(blocks) > shared]
        if len(alike) < SHARED_BY * len(firsts):
            return shared * workload.block_tokens
        ids, counts = np.unique([blocks[shared] for blocks in alike], return_counts=True)
        if counts.max() < max(2, SHARED_BY * len(firsts)):
            return shared * workload.block_tokens
        alike = [blocks for blocks in alike if blocks[shared] == ids[counts.argmax()]]
        shared += 1


def _arrival_cv(workload: Workload) -> float:
    gaps = np.diff(workload.arrival_s[workload.parent == NO_PARENT])
    if len(gaps) < 2 or not gaps.mean() > 0:
        return 1.0
    return round(float(np.clip(gaps.std() / gaps.mean(), SMALLEST_CV, LARGEST_CV)), 4)
