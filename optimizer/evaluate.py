"""What becomes of one plan: refused by a rule, simulated and measured, or broken off."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from objectives.assess import Assessment, assess
from objectives.goals import Constraint, Objective
from objectives.slo import Slo
from objectives.weighted import WeightedWorkload, Worth, worth
from objectives.workload import LoadRules
from optimizer.problem import Problem
from results.trials import TrialState
from spaces.errors import ServefrontError
from spaces.feasibility import infeasible
from spaces.plan import DeploymentPlan
from spaces.site import Site

# The violation of a goal whose metric has no value: as far off as a bound missed by its own size.
NO_VALUE = 1.0


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The outcome of one plan.

    `violations` has a number for each constraint, or for the rule that refused the plan; above
    zero it is broken. `seconds` is wall-clock time; it and `simulation_cpu_s` are the only parts
    that differ from run to run.
    """

    state: TrialState
    metrics: Mapping[str, float] = field(default_factory=dict)
    bands: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    violations: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    simulated_requests: int = 0
    simulation_cpu_s: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Evaluator:
    """A function of a plan, free of side effects, that another thread or process may call."""

    site: Site
    workloads: tuple[WeightedWorkload, ...]
    objectives: tuple[Objective, ...]
    constraints: tuple[Constraint, ...]
    slo: Slo | None
    prices: Mapping[str, float]
    rules: LoadRules
    seed: int

    @classmethod
    def of(cls, problem: Problem) -> Evaluator:
        """The evaluator of a problem."""
        return cls(
            problem.site,
            problem.workloads,
            problem.objectives,
            problem.constraints,
            problem.slo,
            problem.prices,
            problem.rules,
            problem.seed,
        )

    def __call__(self, plan: DeploymentPlan) -> Evaluation:
        """The outcome of `plan`: a plan that breaks a rule is not simulated.

        An error of the user's input is raised; any other makes the evaluation `failed`, because
        one plan that breaks the simulator must not end a search.
        """
        started = time.perf_counter()
        refusal = infeasible(plan, self.site)
        if refusal is not None:
            return Evaluation(
                "infeasible", violations={refusal.rule: refusal.shortfall}, reason=refusal.reason
            )
        try:
            found = worth(self.workloads, self.assessed(plan))
        except ServefrontError:
            raise
        except Exception as error:
            return failed(f"{type(error).__name__}: {error}")
        return judged(found, self.objectives, self.constraints, time.perf_counter() - started)

    def assessed(self, plan: DeploymentPlan, explain: bool = False) -> list[Assessment]:
        """A feasible plan on each of the workloads, all at its load and with the same seed."""
        return [
            assess(
                plan,
                self.site,
                one.workload,
                slo=self.slo,
                prices=self.prices,
                rules=self.rules,
                seed=self.seed,
                explain=explain,
            )
            for one in self.workloads
        ]


def failed(reason: str) -> Evaluation:
    """The evaluation of a plan that broke off; how far it is from feasible nobody knows."""
    return Evaluation("failed", violations={"evaluation": NO_VALUE}, reason=reason)


def judged(
    found: Worth | Assessment | Evaluation,
    objectives: Sequence[Objective],
    constraints: Sequence[Constraint],
    seconds: float = 0.0,
) -> Evaluation:
    """An assessment, or a complete evaluation of other goals, held against the goals.

    A goal whose metric is absent or not finite is broken: nobody knows that it is met. A
    constraint on a pool that the plan does not have is kept.
    """
    known = {name for name, value in found.metrics.items() if math.isfinite(value)}
    violations = {str(bound): _violation(bound, found.metrics, known) for bound in constraints}
    applying = [bound for bound in constraints if bound.applies(found.metrics)]
    missing = [str(goal) for goal in objectives if goal.metric not in known]
    return Evaluation(
        state="complete",
        metrics=found.metrics,
        bands=found.bands,
        violations=violations | dict.fromkeys(missing, NO_VALUE),
        reason="; ".join(_without_value(known, objectives, applying)),
        simulated_requests=found.simulated_requests,
        simulation_cpu_s=found.simulation_cpu_s,
        seconds=seconds,
    )


def _violation(bound: Constraint, metrics: Mapping[str, float], known: set[str]) -> float:
    if not bound.applies(metrics):
        return 0.0
    return bound.violation(metrics) if bound.metric in known else NO_VALUE


def _without_value(
    known: set[str], objectives: Sequence[Objective], constraints: Sequence[Constraint]
) -> Iterator[str]:
    asked = [goal.metric for goal in objectives] + [bound.metric for bound in constraints]
    return (f"{name} has no value" for name in dict.fromkeys(asked) if name not in known)
