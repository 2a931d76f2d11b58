"""What a search leaves behind: one record for each trial, whatever became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from spaces.plan import DeploymentPlan

TrialState = Literal["complete", "infeasible", "failed", "pruned"]


@dataclass(frozen=True, slots=True)
class Replicated:
    """What `count` simulations of a point say, each with other random draws, its trial's included.

    `means` of the metrics that every one of them gave, with half the width of Student's interval
    of the mean at `confidence`; `violations` of the constraints on average; `front_share` is the
    share of the simulations in which the point met the constraints and no contender beat it.
    """

    count: int
    confidence: float
    means: Mapping[str, float]
    half_widths: Mapping[str, float]
    violations: Mapping[str, float]
    front_share: float


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """One trial: the plan at its load, what was measured, or why nothing was.

    `metrics` and `bands` are empty unless the trial is complete. A `pruned` one was simulated
    short and not promoted to the whole run; `reason` says why. `violations` holds one number for
    each constraint and rule, zero or less where it is kept. `same_as` names the earlier trial that
    asked for the same point, whose values this one repeats. `replicated` is there where the point
    was simulated again after the search.
    """

    trial: int
    plan: DeploymentPlan
    state: TrialState
    metrics: Mapping[str, float] = field(default_factory=dict)
    bands: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    violations: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    same_as: int | None = None
    replicated: Replicated | None = None

    @property
    def values(self) -> Mapping[str, float]:
        """What is best known of the metrics: their means where the point was replicated."""
        return self.metrics if self.replicated is None else self.replicated.means

    @property
    def feasible(self) -> bool:
        """Whether the trial was simulated and meets every constraint, on average if replicated."""
        known = self.violations if self.replicated is None else self.replicated.violations
        return self.state == "complete" and all(v <= 0 for v in known.values())
