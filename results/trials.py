"""What a search leaves behind: one record for each trial, whatever became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from spaces.plan import DeploymentPlan

TrialState = Literal["complete", "infeasible", "failed", "pruned"]


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """One trial: the plan at its load, what was measured, or why nothing was.

    `metrics` and `bands` are empty unless the trial is complete. A `pruned` one was simulated
    short and not promoted to the whole run; `reason` says why. `violations` holds one number for
    each constraint and rule, zero or less where it is kept. `same_as` names the earlier trial that
    asked for the same point, whose values this one repeats.
    """

    trial: int
    plan: DeploymentPlan
    state: TrialState
    metrics: Mapping[str, float] = field(default_factory=dict)
    bands: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    violations: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    same_as: int | None = None

    @property
    def feasible(self) -> bool:
        """Whether the trial was simulated and meets every constraint."""
        return self.state == "complete" and all(v <= 0 for v in self.violations.values())
