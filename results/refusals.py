"""Why trials are not feasible: each rule with how many it refused and the nearest miss."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from results.trials import TrialRecord

Stage = Literal["refused", "missed", "failed"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A rule, the trials that break it, and the one that breaks it least.

    Stage `refused` is before simulation, `missed` is a simulated plan beyond a constraint, and
    `failed` is an evaluation that broke off. `excess` is the smallest violation, relative to
    the bound; it is NaN where none was recorded.
    """

    stage: Stage
    rule: str
    trials: int
    excess: float
    nearest: TrialRecord


def count_refusals(trials: Sequence[TrialRecord]) -> tuple[Refusal, ...]:
    """Every rule that kept a trial from being feasible, the most frequent first.

    A trial that breaks several rules is counted under each of them; a pruned one breaks none.
    """
    broken: dict[tuple[Stage, str], list[tuple[float, TrialRecord]]] = {}
    for trial in sorted(trials, key=lambda trial: trial.trial):
        for rule, excess in _broken_rules(trial):
            broken.setdefault((_stage(trial), rule), []).append((excess, trial))
    refusals = [_refusal(stage, rule, found) for (stage, rule), found in broken.items()]
    return tuple(sorted(refusals, key=lambda r: (-r.trials, r.stage, r.rule)))


def refusals_in_words(trials: Sequence[TrialRecord]) -> str:
    """One line for each rule: how many trials it refused and the nearest miss."""
    return "\n".join(_line(refusal) for refusal in count_refusals(trials))


def _broken_rules(trial: TrialRecord) -> Iterable[tuple[str, float]]:
    if trial.feasible or trial.state == "pruned":
        return ()
    beyond = [(rule, size) for rule, size in trial.violations.items() if not size <= 0]
    return beyond or [(trial.reason or "no reason recorded", math.nan)]


def _stage(trial: TrialRecord) -> Stage:
    if trial.state == "failed":
        return "failed"
    return "refused" if trial.state == "infeasible" else "missed"


def _refusal(stage: Stage, rule: str, found: list[tuple[float, TrialRecord]]) -> Refusal:
    excess, nearest = min(found, key=lambda pair: (math.isnan(pair[0]), pair[0], pair[1].trial))
    return Refusal(stage, rule, len(found), excess, nearest)


def _line(refusal: Refusal) -> str:
    count = f"{refusal.trials} trial{'s' if refusal.trials != 1 else ''}"
    beyond = "" if math.isnan(refusal.excess) else f", {refusal.excess:.1%} beyond"
    reason = refusal.nearest.reason
    why = f" ({reason})" if reason and reason != refusal.rule else ""
    return (
        f"{refusal.rule}: {refusal.stage} {count}; "
        f"nearest miss: trial {refusal.nearest.trial}{beyond}{why}"
    )
