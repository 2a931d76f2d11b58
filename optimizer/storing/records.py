"""Trials as the storage keeps them, so that every result can be made again from it alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from objectives.goals import Objective
from optimizer.evaluate import Evaluation
from results.trials import TrialRecord
from spaces.documents import validated
from spaces.plan import DeploymentPlan

PLAN, OUTCOME, BATCH_END = "plan", "outcome", "batch_end"
SHORT, VERDICT = "short", "verdict"

# Told in place of a value that is not known, beside a broken constraint: samplers rank such
# trials by their violation and do not look at these, but no storage takes infinities everywhere.
PENALTY = {"maximize": 0.0, "minimize": 1e9}
LARGEST_VIOLATION = 1e9


@dataclass(frozen=True, slots=True)
class StoredTrial:
    """A told trial: its record, its evaluation, and the short simulation that came before it.

    Without screening, or where the plan's load needs the whole run, `short` is None.
    """

    record: TrialRecord
    evaluation: Evaluation
    short: Evaluation | None = None


@dataclass(frozen=True, slots=True)
class AskedTrial:
    """A trial with its plan, not yet told; `short` is its short simulation, once there is one."""

    trial: optuna.Trial
    plan: DeploymentPlan
    short: Evaluation | None = None


def stored_trials(study: optuna.Study) -> list[StoredTrial]:
    """All told trials of a study, in order of trial number."""
    told = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
    return [stored_outcome(trial.user_attrs, trial.number) for trial in told]


def values_to_tell(evaluation: Evaluation, objectives: Sequence[Objective]) -> list[float]:
    """The value of each objective, or a finite penalty where there is none."""
    values = [evaluation.metrics.get(o.metric, math.nan) for o in objectives]
    return [
        value if math.isfinite(value) else PENALTY[objective.direction]
        for value, objective in zip(values, objectives, strict=True)
    ]


def tell(
    study: optuna.Study,
    trial: optuna.Trial,
    evaluation: Evaluation,
    objectives: Sequence[Objective],
    same_as: int | None,
) -> None:
    """Put the outcome of a trial into the study: of a pruned one no value, for it has none.

    A trial of a run that was killed while it told may have some of its constraints already; they
    are the same, because evaluations are deterministic.
    """
    there = trial.constraints
    for rule, size in evaluation.violations.items():
        if rule not in there:
            trial.set_constraint(rule, _finite(size))
    trial.set_user_attr(OUTCOME, _outcome(evaluation, same_as))
    if evaluation.state == "pruned":
        study.tell(trial, state=TrialState.PRUNED)
    else:
        study.tell(trial, values_to_tell(evaluation, objectives))


def plan_data(plan: DeploymentPlan) -> dict[str, Any]:
    """A plan as the storage keeps it."""
    return plan.model_dump(mode="json", exclude_none=True)


def plan_of(trial: FrozenTrial) -> DeploymentPlan | None:
    """The plan of a trial; None when the trial was never asked to the end."""
    data = trial.user_attrs.get(PLAN)
    return None if data is None else validated(DeploymentPlan, data, f"trial {trial.number}")


def outcome_of(plan: DeploymentPlan, evaluation: Evaluation) -> dict[str, Any]:
    """A plan that is no trial and its evaluation, as `stored_outcome` reads them."""
    return {PLAN: plan_data(plan), OUTCOME: _outcome(evaluation, None)}


def stored_outcome(data: Mapping[str, Any], number: int) -> StoredTrial:
    """What `tell` and `plan_data` left of a trial, or `outcome_of` of another plan."""
    plan = validated(DeploymentPlan, data[PLAN], f"trial {number}")
    same_as = data[OUTCOME]["same_as"]
    evaluation = stored_evaluation(data[OUTCOME])
    short = stored_evaluation(data[SHORT]) if SHORT in data else None
    return StoredTrial(record_of(number, plan, evaluation, same_as), evaluation, short)


def sample_data(found: Evaluation) -> dict[str, Any]:
    """The evaluation of a sample as the storage keeps it beside the trials, without bands."""
    return _outcome(replace(found, bands={}), None)


def short_of(trial: FrozenTrial) -> Evaluation | None:
    """The short simulation of a trial, if there was one."""
    data = trial.user_attrs.get(SHORT)
    return None if data is None else stored_evaluation(data)


def record_of(
    number: int, plan: DeploymentPlan, evaluation: Evaluation, same_as: int | None
) -> TrialRecord:
    """The record of a trial, without what its evaluation took."""
    return TrialRecord(
        trial=number,
        plan=plan,
        state=evaluation.state,
        metrics=evaluation.metrics,
        bands=evaluation.bands,
        violations=evaluation.violations,
        reason=evaluation.reason,
        same_as=same_as,
    )


def stored_evaluation(outcome: Mapping[str, Any]) -> Evaluation:
    """An evaluation as `tell` or `short_data` left it."""
    kept = {name: value for name, value in outcome.items() if name != "same_as"}
    bands = {name: (low, high) for name, (low, high) in kept.pop("bands").items()}
    return Evaluation(bands=bands, **kept)


def _outcome(evaluation: Evaluation, same_as: int | None) -> dict[str, Any]:
    return {
        "state": evaluation.state,
        "metrics": dict(evaluation.metrics),
        "bands": {name: list(band) for name, band in evaluation.bands.items()},
        "violations": dict(evaluation.violations),
        "reason": evaluation.reason,
        "same_as": same_as,
        "simulated_requests": evaluation.simulated_requests,
        "simulation_cpu_s": evaluation.simulation_cpu_s,
        "seconds": evaluation.seconds,
    }


def _finite(size: float) -> float:
    return size if abs(size) < LARGEST_VIOLATION else math.copysign(LARGEST_VIOLATION, size)
