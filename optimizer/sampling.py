"""Which sampler proposes a trial; each is seeded by the study's seed and the trial's number.

A sampler with a seed of its own for each trial has no state that a killed run could lose: what it
proposes follows from the study alone.
"""

from __future__ import annotations

import hashlib
import warnings

from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, NSGAIISampler, RandomSampler, TPESampler

from optimizer.job import SamplerName

# Points taken at random before TPE models anything: 10, 16, 24 and 48 gave, in 120 evaluations of
# examples/deepseek-r1-h200.yaml, mean hypervolumes of 5930, 6240, 5940 and 5730.
STARTUP_TRIALS = 16
POPULATION = 50


def sampler_for(name: SamplerName, seed: int, trial: int, batch_size: int) -> BaseSampler:
    """The sampler that proposes trial number `trial`.

    TPE models the questions of a branch together, and counts trials that still run as poor, so
    that a batch spreads out. A generation of NSGA-II holds at least two batches.
    """
    number = trial_seed(seed, trial)
    if name == "random":
        return RandomSampler(seed=number)
    if name == "nsga2":
        return NSGAIISampler(population_size=max(POPULATION, 2 * batch_size), seed=number)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Argument ``group``", ExperimentalWarning)
        return TPESampler(
            multivariate=True,
            group=True,
            constant_liar=True,
            n_startup_trials=STARTUP_TRIALS,
            seed=number,
        )


def trial_seed(seed: int, trial: int) -> int:
    """A seed for one trial, unrelated to its neighbours', the same on every machine."""
    digest = hashlib.sha256(f"{seed}/{trial}".encode()).digest()
    return int.from_bytes(digest[:4], "big")
