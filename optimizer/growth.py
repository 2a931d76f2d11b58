"""Whether a search still finds anything: evaluations since its hypervolume last grew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from objectives.goals import Constraint, Objective
from results.front import GrowingFront, default_reference_point
from results.trials import TrialRecord

# A smaller share of the hypervolume is no growth: the simulator is not as sure.
LEAST_GROWTH = 1e-4


@dataclass
class Growth:
    """Looks at the trials of a study in order; `idle` counts evaluations without growth."""

    objectives: Sequence[Objective]
    constraints: Sequence[Constraint]
    idle: int = 0
    _front: GrowingFront | None = None
    _volume: float = 0.0

    def told(self, trial: TrialRecord) -> None:
        """Take notice of a trial; repeats of earlier ones do not count."""
        if trial.same_as is not None:
            return
        self.idle += 1
        if self._front is None:
            point = default_reference_point([trial], self.objectives, self.constraints)
            if not (trial.feasible and point):
                return
            self._front = GrowingFront(tuple(self.objectives), point)
        volume = self._front.add(trial)
        if volume > self._volume * (1 + LEAST_GROWTH):
            self.idle, self._volume = 0, volume
