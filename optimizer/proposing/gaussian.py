"""Points that a Gaussian process of all told trials thinks worth trying.

Optuna's sampler knows one space, the same for every trial, and would draw at random whatever
question some trial was not asked. So it is given a study of its own, in which every trial has an
answer to every question of any: where a plan was not asked one, the middle of its answers.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import GPSampler
from optuna.trial import FrozenTrial

from objectives.goals import Constraint, Objective
from optimizer.proposing.draws import Parameters, distributions_of
from results.front import has_values
from results.trials import TrialRecord
from spaces.space import SearchSpace


@dataclass(frozen=True)
class GaussianProcess:
    """Proposes by the told trials alone; every proposal of a batch counts for the next."""

    space: SearchSpace
    objectives: tuple[Objective, ...]
    constraints: tuple[Constraint, ...]

    def propose(
        self, told: Sequence[tuple[TrialRecord, Parameters]], count: int, seed: int
    ) -> list[Parameters]:
        """`count` answers to all questions that told trials were asked; none before any."""
        useful = [(record, own) for record, own in told if has_values(record, self.objectives)]
        if not useful or not count:
            return []
        questions: dict[str, BaseDistribution] = {}
        for _, own in useful:
            questions |= distributions_of(own, self.space)
        with _alone():
            study = optuna.create_study(
                directions=[objective.direction for objective in self.objectives],
                sampler=GPSampler(seed=seed, n_startup_trials=1, deterministic_objective=True),
            )
            study.add_trials([self._trial(*one, questions) for one in useful])
            return [dict(study.ask(questions).params) for _ in range(count)]

    def _trial(
        self, record: TrialRecord, own: Parameters, questions: Mapping[str, BaseDistribution]
    ) -> FrozenTrial:
        return optuna.create_trial(
            values=[record.metrics[objective.metric] for objective in self.objectives],
            params={name: own.get(name, _middle(asked)) for name, asked in questions.items()},
            distributions=dict(questions),
            constraints={str(bound): record.violations[str(bound)] for bound in self.constraints},
        )


def _middle(question: BaseDistribution) -> float | str:
    if isinstance(question, CategoricalDistribution):
        return str(question.choices[len(question.choices) // 2])
    return 0.5


@contextmanager
def _alone() -> Iterator[None]:
    """One thread, whose sums have one order; without the sampler's warnings of its own fits."""
    import torch

    threads, verbosity = torch.get_num_threads(), optuna.logging.get_verbosity()
    torch.set_num_threads(1)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Argument ``determ", ExperimentalWarning)
            yield
    finally:
        torch.set_num_threads(threads)
        optuna.logging.set_verbosity(verbosity)
