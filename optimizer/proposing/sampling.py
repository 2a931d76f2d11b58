"""Which sampler proposes a trial; each is seeded by the study's seed and the trial's number.

A sampler with a seed of its own for each trial has no state that a killed run could lose: what it
proposes follows from the study alone.
"""

from __future__ import annotations

import hashlib
import importlib.util
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from optuna.exceptions import ExperimentalWarning
from optuna.samplers import (
    BaseSampler,
    NSGAIISampler,
    RandomSampler,
    TPESampler,
)

from optimizer.job import SamplerName
from optimizer.problem import Problem
from optimizer.proposing.candidates import MOST_PLANS, learned_alone, why_not_estimated
from spaces.errors import InputError

# Points of a quasi-random start before a model proposes anything: 10, 16, 24 and 48 gave, in 120
# evaluations of examples/deepseek-r1-h200.yaml, mean hypervolumes of 5930, 6240, 5940 and 5730.
STARTUP_TRIALS = 16
POPULATION = 50
# A tree of Parzen estimators takes ever longer for a proposal; a population does not.
MOST_TRIALS_OF_TPE = 1_000


@dataclass(frozen=True, slots=True)
class Choice:
    """A sampler by name, and why it was chosen."""

    name: SamplerName
    reason: str


def chosen_sampler(asked: SamplerName, trials: int, problem: Problem) -> Choice:
    """The sampler that was asked for, or what `auto` makes of the problem and its budget.

    Raises `InputError` where the sampler that was asked for cannot serve the problem.
    """
    if asked != "auto":
        _check(asked, problem)
        return Choice(asked, "the job asks for it")
    size = problem.space.size()
    if size <= trials:
        return Choice("exhaustive", f"the budget of {trials:,} covers all {size:,} points")
    refusal = why_not_estimated(problem)
    if not refusal:
        return Choice("estimate", _why_estimated(size, learned_alone(problem)))
    if trials <= MOST_TRIALS_OF_TPE:
        return Choice("tpe", f"{refusal}, and the budget is at most {MOST_TRIALS_OF_TPE:,}")
    return Choice("nsga2", f"{refusal}, and the budget is above {MOST_TRIALS_OF_TPE:,}")


def _why_estimated(size: int, learned: Sequence[str]) -> str:
    why = f"all {size:,} points can be estimated before any is simulated"
    if not learned:
        return why
    verb = "is" if len(learned) == 1 else "are"
    return f"{why}; {' and '.join(learned)} {verb} learned from simulations alone"


def _check(asked: SamplerName, problem: Problem) -> None:
    key = "search.sampler"
    if asked == "estimate" and (refusal := why_not_estimated(problem)):
        raise InputError(
            f"this problem cannot be estimated as a whole: {refusal}",
            key=key,
            value=asked,
            remedy="use sampler auto",
        )
    if asked == "exhaustive" and (size := problem.space.size()) > MOST_PLANS:
        raise InputError(
            f"a space of {size:,} points is too large to be gone through",
            key=key,
            value=asked,
            remedy="pin dimensions of `space`, or use sampler auto",
        )
    if asked == "gp" and importlib.util.find_spec("torch") is None:
        raise InputError(
            "the Gaussian process needs PyTorch, which is not installed",
            key=key,
            value=asked,
            remedy="install the extra: pip install 'servefront[gp]'",
        )


def sampler_for(name: SamplerName, seed: int, trial: int, batch_size: int) -> BaseSampler:
    """The sampler that proposes trial number `trial` where nothing is given.

    NSGA-II notes the generation of every trial that is asked of it, and only those with one become
    parents; so given trials are asked of it too. A generation holds at least two batches. TPE
    models the questions of a branch together, and counts trials that still run as poor, so that a
    batch spreads out. What no other sampler proposes is drawn by chance.
    """
    number = trial_seed(seed, trial)
    if name == "nsga2":
        return NSGAIISampler(population_size=population(batch_size), seed=number)
    if name != "tpe":
        return RandomSampler(seed=number)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Argument ``group``", ExperimentalWarning)
        return TPESampler(
            multivariate=True,
            group=True,
            constant_liar=True,
            n_startup_trials=STARTUP_TRIALS,
            seed=number,
        )


def population(batch_size: int) -> int:
    """The trials of a generation of NSGA-II."""
    return max(POPULATION, 2 * batch_size)


def trial_seed(seed: int, trial: int) -> int:
    """A seed for one trial, unrelated to its neighbours', the same on every machine."""
    digest = hashlib.sha256(f"{seed}/{trial}".encode()).digest()
    return int.from_bytes(digest[:4], "big")
