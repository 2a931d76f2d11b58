"""How well and how fast the search finds; run with: pytest -m benchmark tests/benchmarks -s

Every space is first simulated as a whole (`reference.py`), which takes minutes and is kept; with
SERVEFRONT_PROBLEMS, a comma-separated list, only those problems are run.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import moocore
import numpy as np
import numpy.typing as npt
import pytest

from optimizer.beginning import begun
from optimizer.directory import read_results
from optimizer.evaluate import Evaluation, Evaluator, judged
from optimizer.execution.executor import Evaluate, LocalExecutor
from optimizer.identity import Identity, claim
from optimizer.job import Job
from optimizer.problem import Problem, prepare
from optimizer.storing.records import StoredTrial
from optimizer.storing.storage import open_storage, open_study
from optimizer.study import Search
from results.front import hypervolume_history, pareto_front
from results.trials import TrialRecord
from spaces.plan import DeploymentPlan
from tests.benchmarks.reference import (
    NAMED,
    PEER_SECONDS,
    SPACES,
    Recalled,
    Truth,
    job_of,
    truth_of,
)
from tests.conftest import REPOSITORY
from tests.optimizer.toy import assessed

pytestmark = pytest.mark.benchmark

SHARE = 0.02
SEEDS = range(1, 11)
ENOUGH, LITTLE = 0.99, 1.01
LONGEST_S = 300.0
MOST_OVERHEAD_MS = 5.0
Values = npt.NDArray[np.float64]


def chosen(names: Sequence[str]) -> list[str]:
    """The problems to run."""
    asked = os.environ.get("SERVEFRONT_PROBLEMS")
    return [name for name in names if asked is None or name in asked.split(",")]


class Watch:
    """Keeps the trials and when each was told, in CPU seconds of this process."""

    def __init__(self) -> None:
        self.records: list[TrialRecord] = []
        self.told_s: list[float] = []

    def begin(self, trials: Sequence[StoredTrial]) -> None:
        pass

    def told(self, trial: StoredTrial) -> None:
        self.records.append(trial.record)
        self.told_s.append(time.process_time())

    def note(self, text: str) -> None:
        pass


def searched(
    job: Job, problem: Problem, evaluate: Evaluate, directory: Path, workers: int = 1
) -> Watch:
    """A search with its journal."""
    directory.mkdir(parents=True)
    study = open_study(open_storage(directory, None), "benchmark", problem.objectives)
    claim(study, Identity.of(job, problem), str(directory))
    watch, executor = Watch(), LocalExecutor(evaluate, workers)
    try:
        proposals = begun(study, job, problem).proposals
        Search(study, problem, job.search, proposals, executor, watch).run()
    finally:
        executor.close()
    return watch


def volume_of_all(problem: Problem, truth: Truth) -> float:
    """The hypervolume of a whole space."""
    gains = feasible_gains(problem, truth)
    return float(moocore.hypervolume(-gains, ref=np.zeros(gains.shape[1])))


def feasible_gains(problem: Problem, truth: Truth) -> Values:
    """What every plan that keeps the constraints is worth, larger being better."""
    kept = np.isfinite(truth.metrics).all(axis=1)
    for bound in problem.constraints:
        values = truth.metrics[:, truth.names.index(bound.metric)]
        kept &= values <= bound.bound if bound.relation == "<=" else values >= bound.bound
    goals = [truth.names.index(objective.metric) for objective in problem.objectives]
    assert all(objective.direction == "maximize" for objective in problem.objectives)
    return truth.metrics[kept][:, goals]


@pytest.mark.parametrize("name", chosen(list(SPACES)))
def test_share_of_the_hypervolume_after_two_percent_of_the_plans(
    name: str, tmp_path: Path
) -> None:
    truth = truth_of(name)
    trials = int(SHARE * len(truth.metrics))
    shares: dict[str, list[float]] = {}
    for sampler in ("auto", "tpe", "nsga2", "random"):
        for seed in SEEDS:
            job = job_of(name, trials=trials, sampler=sampler)
            problem = prepare(job)
            job = job.with_search(seed=seed)  # of the search: the requests stay those of the truth
            found = searched(
                job, problem, Recalled(problem, truth), tmp_path / f"{sampler}-{seed}"
            )
            front = pareto_front(found.records, problem.objectives, (0.0, 0.0))
            volume = front.hypervolume / volume_of_all(problem, truth)
            shares.setdefault(sampler, []).append(volume)
    words = ", ".join(
        f"{sampler} {statistics.median(found):.2%} ({min(found):.2%} to {max(found):.2%})"
        for sampler, found in shares.items()
    )
    print(f"\n{name}: {len(truth.metrics):,} plans, {trials} simulated: {words}")
    assert statistics.median(shares["auto"]) >= ENOUGH


@pytest.mark.parametrize("name", chosen(list(NAMED)))
def test_a_whole_command_beats_the_seconds_of_a_peer_and_no_plan_beats_its_front(
    name: str, tmp_path: Path
) -> None:
    job = job_of(name, trials=400)
    (tmp_path / "job.yaml").write_text(job.to_yaml())
    command = [sys.executable, "-m", "optimizer.cli", "optimize", "job.yaml", "--out", "out"]
    command += ["--workers", "1"]  # evaluates in its own process, whose CPU seconds are counted
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    subprocess.run([*command, "--dry-run"], cwd=tmp_path, env=environment, check=True)  # compiles
    before, started_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    wall_s, after = time.perf_counter() - started_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    front = read_results(tmp_path / "out").front
    problem = prepare(job)
    best = feasible_gains(problem, truth := truth_of(name))
    best = best[moocore.is_nondominated(-best)]
    found = np.array([[p.metrics[o.metric] for o in front.objectives] for p in front.points])
    factor = float(moocore.epsilon_mult(found, ref=best, maximise=True))
    print(
        f"\n{name}: {seconds:.1f} CPU seconds, {wall_s:.1f} on the clock with a load average of "
        f"{os.getloadavg()[0]:.1f} (peer {PEER_SECONDS[name]}), front of "
        f"{len(found)}; the best of all {len(truth.metrics):,} plans is {factor - 1:.2%} beyond it"
    )
    assert seconds < PEER_SECONDS[name]
    assert factor <= LITTLE


@pytest.mark.parametrize("name", chosen(["glm-5"]))
def test_time_to_almost_all_of_the_final_hypervolume(name: str, tmp_path: Path) -> None:
    job = job_of(name, trials=1000)
    started_s = time.process_time()
    problem = prepare(job)
    found = searched(job, problem, Evaluator.of(problem), tmp_path / "study")
    history = hypervolume_history(found.records, problem.objectives, (0.0, 0.0))
    place = next(n for n, volume in enumerate(history) if volume >= ENOUGH * history[-1])
    seconds = found.told_s[place] - started_s
    print(
        f"\n{name}: {problem.space.size():,} points, 99 % of the hypervolume of {len(history)} "
        f"trials after {place + 1} trials and {seconds:.1f} CPU seconds"
    )
    assert seconds <= LONGEST_S


def formula(problem: Problem, plan: DeploymentPlan) -> Evaluation:
    """An outcome that takes no time."""
    return judged(assessed(plan), problem.objectives, problem.constraints)


@pytest.mark.parametrize("trials", [1_000, 10_000])
def test_overhead_of_search_and_storage(trials: int, tmp_path: Path) -> None:
    def overhead_ms(sampler: str, count: int) -> float:
        job = job_of("dense", trials=count, sampler=sampler, batch_size=8)
        problem = prepare(job)
        directory = tmp_path / f"{sampler}-{count}"
        started_s = time.process_time()
        found = searched(job, problem, partial(formula, problem), directory)
        return (time.process_time() - started_s) / len(found.records) * 1e3

    ours = overhead_ms("auto", trials)
    others = {name: overhead_ms(name, min(trials, 1_000)) for name in ("nsga2", "random")}
    words = ", ".join(f"{name} {ms:.2f}" for name, ms in others.items())
    print(f"\n{trials:,} trials: {ours:.2f} ms a trial with auto; at 1,000 at most: {words}")
    assert ours <= MOST_OVERHEAD_MS
