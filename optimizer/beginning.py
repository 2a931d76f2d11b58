"""How a study begins: its sampler, its first points and the baseline, settled once and stored.

A study goes on with what it began with, even if the budget or the job's files change later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import optuna

from optimizer.evaluate import Evaluator
from optimizer.job import Job
from optimizer.problem import Problem
from optimizer.proposing.proposals import Proposals
from optimizer.proposing.sampling import Choice, chosen_sampler
from optimizer.proposing.warm_starts import deployments, warm_starts
from optimizer.single import site_of
from optimizer.storing.records import outcome_of, stored_outcome
from results.trials import TrialRecord

SAMPLER, SEEDS, BASELINE = "sampler", "seeds", "baseline"


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a study proposes, and what to tell of it."""

    proposals: Proposals
    told: tuple[str, ...]


def begun(study: optuna.Study, job: Job, problem: Problem) -> Beginning:
    """The beginning of a study, which is stored in it the first time."""
    notes = [] if SAMPLER in study.user_attrs else _begin(study, job, problem)
    choice = sampler_of(study)
    seeds = study.user_attrs[SEEDS]
    told = [f"sampler {choice.name}: {choice.reason}", *notes]
    if seeds:
        told.append(f"known points tried first: {len(seeds)}")
    return Beginning(Proposals(problem, choice.name, job.search, seeds), tuple(told))


def sampler_of(study: optuna.Study) -> Choice:
    """The sampler of a study that has begun."""
    return Choice(**study.user_attrs[SAMPLER])


def baseline_of(study: optuna.Study) -> tuple[TrialRecord, ...]:
    """The baseline at its loads; it is no trial of the study."""
    stored: Sequence[dict[str, Any]] = study.user_attrs.get(BASELINE, [])
    return tuple(stored_outcome(one, -1 - place).record for place, one in enumerate(stored))


def _begin(study: optuna.Study, job: Job, problem: Problem) -> list[str]:
    """Settle the beginning; the sampler last, since its presence says that all is settled."""
    if job.baseline is not None:
        study.set_user_attr(BASELINE, list(_baseline(Path(job.baseline), job, problem)))
    choice = chosen_sampler(job.search.sampler, job.search.trials, problem)
    starts = warm_starts(job, problem, choice.name)
    known = study.user_attrs.get(SEEDS, [])
    study.set_user_attr(SEEDS, known + [one for one in starts.parameters if one not in known])
    study.set_user_attr(SAMPLER, {"name": choice.name, "reason": choice.reason})
    return starts.notes


def _baseline(file: Path, job: Job, problem: Problem) -> Iterator[dict[str, Any]]:
    """The baseline simulated at its loads; it may use chips and engines that are not searched."""
    for plan in deployments(file, job, problem):
        site = site_of(plan, problem.site, str(file))
        yield outcome_of(plan, Evaluator.of(replace(problem, site=site))(plan))
