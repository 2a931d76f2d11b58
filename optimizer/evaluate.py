"""What becomes of one plan: refused by a rule, simulated and measured, or broken off."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from objectives.assess import Assessment, assess
from objectives.goals import Constraint, Objective
from objectives.slo import Slo
from objectives.weighted import WeightedWorkload, Worth, worth
from objectives.workload import LoadRules, shortened
from optimizer.problem import Draw, Problem
from results.trials import TrialState
from spaces.errors import ServefrontError
from spaces.feasibility import infeasible
from spaces.plan import DeploymentPlan, Load
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
class Sample:
    """A simulation of a plan that is not the one its trial's values come from: a short one, of
    about `fraction` of the requests, or one with the draws of another `replication`.
    """

    plan: DeploymentPlan
    fraction: float = 1.0
    replication: int = 1


Asked = DeploymentPlan | Sample


@dataclass(frozen=True, slots=True)
class Evaluator:
    """A function of a plan or a sample of one, free of side effects, that another thread or
    process may call.
    """

    site: Site
    workloads: tuple[WeightedWorkload, ...]
    objectives: tuple[Objective, ...]
    constraints: tuple[Constraint, ...]
    slo: Slo | None
    prices: Mapping[str, float]
    rules: LoadRules
    seed: int
    redrawn: tuple[Draw, ...] = ()

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
            problem.redrawn,
        )

    def __call__(self, asked: Asked) -> Evaluation:
        """The outcome of what is asked: a plan that breaks a rule is not simulated.

        An error of the user's input is raised; any other makes the evaluation `failed`, because
        one plan that breaks the simulator must not end a search.
        """
        if isinstance(asked, Sample):
            return self.of_sample(asked)(asked.plan)
        plan = asked
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

    def of_sample(self, sample: Sample) -> Evaluator:
        """The evaluator of a sample; raises `ValueError` where the run cannot be so short."""
        if sample.replication > 1:
            draw = self.redrawn[sample.replication - 2]
            return replace(self, site=draw.site, workloads=draw.workloads, seed=draw.seed)
        if sample.fraction == 1.0:
            return self
        short = shortened_workloads(self.workloads, sample.plan.load, self.rules, sample.fraction)
        if short is None:
            raise ValueError(f"no run of {sample.fraction:g} of the length at {sample.plan.load}")
        workloads, rules = short
        return replace(self, workloads=workloads, rules=rules)

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


def shortened_workloads(
    workloads: Sequence[WeightedWorkload], load: Load | None, rules: LoadRules, fraction: float
) -> tuple[tuple[WeightedWorkload, ...], LoadRules] | None:
    """Every workload shortened and the rules of the short runs, or None where one cannot be."""
    short = [shortened(one.workload, load, rules, fraction) for one in workloads]
    known = [one for one in short if one is not None]
    if len(known) < len(short):
        return None
    return (
        tuple(replace(one, workload=w) for one, (w, _) in zip(workloads, known, strict=True)),
        known[0][1],
    )


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
