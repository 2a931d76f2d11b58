"""Short simulations say what is worth a whole one, and never stand for it."""

from __future__ import annotations

import hashlib
import math
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState

from objectives.workload import first
from optimizer.evaluate import Asked, Evaluation, Evaluator, Sample, judged
from optimizer.fidelity.error_model import ErrorModel
from optimizer.problem import Problem, prepare
from optimizer.storing.records import record_of
from optimizer.storing.storage import open_storage, repair_journal
from results.front import pareto_front
from spaces.draw import RandomDraw
from spaces.plan import DeploymentPlan, Load
from tests.optimizer.test_study import Killed, kill_after
from tests.optimizer.toy import STUDY, Silent, assessed, evaluator, job_of, searched

SEARCH = {"trials": 32, "batch_size": 4, "short_fraction": 0.1, "seed": 3}
SPACE = {
    "topology": "aggregated",
    "pipeline_parallel": 1,
    "max_num_seqs": [32, 64],
    "max_num_batched_tokens": [2048, 4096],
}
LONG = {"preset": "fixed-1k1k", "requests": 1000}


def off(plan: DeploymentPlan, spread: float) -> float:
    """A factor of chance that is always the same for a plan."""
    digest = hashlib.sha256(plan.point_id.encode()).digest()
    return math.exp(spread * (digest[0] / 127.5 - 1))


@dataclass
class Biased:
    """The formula of the toy world; short runs of it are off by the load and by chance."""

    problem: Problem
    spread: float = 0.03
    asked: Counter[type] = field(default_factory=Counter)

    def __call__(self, asked: Asked) -> Evaluation:
        self.asked[type(asked)] += 1
        plan = asked.plan if isinstance(asked, Sample) else asked
        found = assessed(plan)
        if isinstance(asked, Sample):
            assert plan.load is not None
            factor = 0.5 * plan.load.value**-0.2 * off(plan, self.spread)
            metrics = {name: value * factor for name, value in found.metrics.items()}
            found = replace(found, metrics=metrics, simulated_requests=4)
        return judged(found, self.problem.objectives, self.problem.constraints)


def screened(directory: Path, workers: int = 1, **search: Any) -> tuple[Silent, Biased]:
    job = job_of(workload=LONG, space=SPACE, search=SEARCH | search)
    evaluate = Biased(prepare(job))
    return searched(job, directory, workers=workers, evaluate=evaluate), evaluate


@pytest.mark.parametrize("sampler", ["estimate", "exhaustive", "tpe", "nsga2", "qmc", "random"])
def test_values_are_those_of_whole_runs_and_pruned_plans_have_none(
    tmp_path: Path, sampler: str
) -> None:
    found, _ = screened(tmp_path, sampler=sampler)
    states = Counter(record.state for record in found.unique)
    assert 16 <= states["complete"] <= 32 and states["pruned"] > 4
    for record in found.records:
        if record.state == "complete":
            assert record.metrics == assessed(record.plan).metrics
        else:
            assert not record.metrics and not record.feasible
            assert "standard deviations short of the front" in record.reason
    study = optuna.load_study(study_name=STUDY, storage=open_storage(tmp_path, None))
    for trial, record in zip(study.get_trials(), found.records, strict=True):
        pruned = record.state == "pruned"
        assert trial.state == (TrialState.PRUNED if pruned else TrialState.COMPLETE)
        assert pruned == (trial.values is None)


def test_a_pruned_plan_was_never_simulated_whole_and_each_plan_short_at_most_once(
    tmp_path: Path,
) -> None:
    found, evaluate = screened(tmp_path, sampler="tpe")
    states = Counter(record.state for record in found.unique)
    assert evaluate.asked[DeploymentPlan] == states["complete"]
    assert evaluate.asked[Sample] == len(found.unique)


def test_screening_keeps_the_front_of_the_whole_space(tmp_path: Path) -> None:
    found, evaluate = screened(tmp_path, sampler="random", trials=10_000)
    job = job_of(workload=LONG, space=SPACE)
    problem = prepare(job)
    size = problem.space.size()
    assert len(found.unique) == size
    assert evaluate.asked[DeploymentPlan] < size / 2
    whole = evaluator(problem)
    everything = [
        record_of(record.trial, record.plan, whole(record.plan), None) for record in found.unique
    ]
    best = pareto_front(everything, job.goals).hypervolume
    assert pareto_front(found.records, job.goals).hypervolume == pytest.approx(best, rel=1e-3)


def test_the_table_does_not_depend_on_who_evaluates(tmp_path: Path) -> None:
    tables = [screened(tmp_path / str(n), workers=n, sampler="estimate")[0].table for n in (1, 3)]
    assert tables[0] == tables[1] and "pruned" in tables[0]


@pytest.mark.parametrize("sampler", ["estimate", "tpe"])
def test_a_search_killed_between_short_and_whole_runs_ends_as_one_that_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sampler: str
) -> None:
    whole = screened(tmp_path / "whole", sampler=sampler)[0].records
    assert any(record.state == "pruned" for record in whole)
    directory, chance, kills = tmp_path / "killed", random.Random(7), 0
    directory.mkdir()
    while True:
        with monkeypatch.context() as patch:
            kill_after(patch, chance.randrange(8, 60))
            try:
                records = screened(directory, sampler=sampler)[0].records
                break
            except Killed:
                kills += 1
        repair_journal(directory)
    assert kills >= 4
    assert records == whole


def test_the_search_ends_when_short_runs_have_taken_as_much_as_the_budget(tmp_path: Path) -> None:
    job = job_of(workload=LONG, search=SEARCH | {"trials": 20, "sampler": "exhaustive"})
    evaluate = Biased(prepare(job), spread=0.0)
    found = searched(job, tmp_path, evaluate=evaluate)
    whole, short = evaluate.asked[DeploymentPlan], evaluate.asked[Sample]
    assert whole == 20 or (short * 4 >= 20 * 40 and "short simulations" in found.stop_reason)


def test_a_load_that_needs_the_whole_run_is_not_simulated_short(tmp_path: Path) -> None:
    job = job_of(
        workload={"preset": "fixed-1k1k", "requests": 40},
        search=SEARCH | {"trials": 8, "sampler": "qmc"},
    )
    evaluate = Biased(prepare(job))
    found = searched(job, tmp_path, evaluate=evaluate)
    assert evaluate.asked[Sample] == 0
    assert all(record.state == "complete" for record in found.unique)


def test_a_short_run_is_a_run_of_the_first_requests_alone() -> None:
    problem = prepare(job_of(workload={"preset": "fixed-1k1k", "requests": 600}))
    only = problem.workloads[0]
    beginning = replace(problem, workloads=(replace(only, workload=first(only.workload, 60)),))
    plan = problem.space.plan(RandomDraw(1)).at(Load(concurrency=4))
    short = Evaluator.of(problem)(Sample(plan, 0.1))
    alone = Evaluator.of(beginning)(plan)
    assert short.simulated_requests == 60 and short.metrics == alone.metrics


def test_the_error_model_finds_a_bias_and_knows_how_sure_it_is() -> None:
    stream = np.random.default_rng(5)
    inputs = stream.uniform(0, 1, (200, 3))
    truth = 0.4 - 1.5 * inputs[:, 0] + 0.3 * np.sin(6 * inputs[:, 1])
    seen = truth + 0.02 * stream.standard_normal(200)
    model = ErrorModel.of(inputs[:120], seen[:120])
    found = model.at(inputs[120:])
    errors = (seen[120:] - found.mean) / found.deviation
    assert np.abs(seen[120:] - found.mean).mean() < 0.04
    assert np.mean(np.abs(errors) < 2) >= 0.9
    far = model.at(inputs[:1] + 50)
    assert far.deviation[0] > 5 * found.deviation.mean()
