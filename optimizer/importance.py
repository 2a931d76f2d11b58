"""Which parameters of the search moved each objective."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import optuna
from optuna.importance import get_param_importances
from optuna.trial import FrozenTrial, TrialState

from objectives.goals import Objective
from optimizer.storing.records import OUTCOME

# Fewer trials say nothing about a dozen parameters.
FEWEST_TRIALS = 30
MOST_NAMED = 8


def importances(
    study: optuna.Study, objectives: Sequence[Objective]
) -> dict[str, dict[str, float]]:
    """The share (0 to 1) of the most important parameters in each objective, by metric.

    By PED-ANOVA (Watanabe et al., IJCAI 2023), which can tell parameters that only some trials
    have, over the feasible trials, each point once. Empty where they are too few.
    """
    trials = [trial for trial in study.get_trials(deepcopy=False) if _counts(trial)]
    if len(trials) < FEWEST_TRIALS:
        return {}
    clean = optuna.create_study(directions=study.directions)
    clean.add_trials(trials)
    return {
        objective.metric: _shares(clean, place, objective)
        for place, objective in enumerate(objectives)
    }


def _counts(trial: FrozenTrial) -> bool:
    return (
        trial.state == TrialState.COMPLETE
        and all(size <= 0 for size in trial.constraints.values())
        and trial.user_attrs[OUTCOME]["same_as"] is None
    )


def _shares(study: optuna.Study, place: int, objective: Objective) -> dict[str, float]:
    """PED-ANOVA asks what tells the lowest values from the rest, so losses are what it gets."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "PedAnovaImportanceEvaluator computes", UserWarning)
        warnings.filterwarnings("ignore", "Some regimes for parameter", UserWarning)
        found = get_param_importances(
            study, target=lambda trial: objective.loss(trial.values[place])
        )
    total = sum(found.values())
    if not total > 0:
        return {}
    named = sorted(found.items(), key=lambda pair: (-pair[1], pair[0]))[:MOST_NAMED]
    return {name: share / total for name, share in named}
