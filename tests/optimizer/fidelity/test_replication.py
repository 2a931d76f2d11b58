"""Noise does not choose the winner: the front is simulated again with other draws."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from optimizer.cli import app
from optimizer.directory import StudyResults, read_results
from optimizer.evaluate import Asked, Evaluation, Evaluator, Sample, judged
from optimizer.execution.executor import LocalExecutor
from optimizer.problem import Problem, prepare
from optimizer.session import run_study
from optimizer.storing.storage import repair_journal
from results.choice import choose
from results.front import pareto_front
from spaces.documents import dump_yaml
from spaces.plan import DeploymentPlan
from tests.optimizer.test_study import Killed, kill_after
from tests.optimizer.toy import Silent, assessed, job_data, job_of

SEARCH = {"trials": 60, "batch_size": 8, "sampler": "qmc"}
SEATS = (32, 64, 128, 256, 512)
SPACE = {
    "topology": "aggregated",
    "tensor_parallel": [2, 4],
    "pipeline_parallel": 1,
    "max_num_seqs": list(SEATS),
    "max_num_batched_tokens": 2048,
}
# Every plan of the space, so that there are near misses of each point of the front.
ALL: dict[str, Any] = {"sampler": "exhaustive", "trials": 1000, "replications": 12}


@dataclass(frozen=True)
class Noisy:
    """The formula of the toy world, times luck that each plan has anew in each replication."""

    problem: Problem
    noise: float

    def __call__(self, asked: Asked) -> Evaluation:
        sample = asked if isinstance(asked, Sample) else Sample(asked)
        metrics = {
            name: value * math.exp(self.noise * luck(sample, name))
            for name, value in truth(sample.plan).items()
        }
        found = replace(assessed(sample.plan), metrics=metrics)
        return judged(found, self.problem.objectives, self.problem.constraints)


def truth(plan: DeploymentPlan) -> dict[str, float]:
    """The formula, each further step of seats 4 % worse in both objectives."""
    metrics = dict(assessed(plan).metrics)
    for name in ("tokens_per_s_per_user_p50", "output_tokens_per_s_per_chip"):
        metrics[name] *= 0.96 ** SEATS.index(plan.pools[0].max_num_seqs)
    return metrics


def luck(sample: Sample, metric: str) -> float:
    """A standard normal number, the same whatever else a plan may come to say."""
    plan = sample.plan
    made = [(p.replicas, p.tp, p.pp, p.dp, p.ep, p.max_num_seqs) for p in plan.pools]
    steps = [p.max_num_batched_tokens for p in plan.pools]
    text = f"{made}/{steps}/{plan.load}/{sample.replication}/{metric}".encode()
    share = int.from_bytes(hashlib.sha256(text).digest()[:6], "big") / 2**48
    return NormalDist().inv_cdf(min(max(share, 1e-9), 1 - 1e-9))


def study(directory: Path, noise: float, workers: int = 1, **search: Any) -> StudyResults:
    job = job_of(space=SPACE, search=SEARCH | search)
    problem = prepare(job)
    evaluate = Noisy(problem, noise)
    run_study(job, problem, lambda: LocalExecutor(evaluate, workers), Silent(), directory)
    return read_results(directory)


def shortfall(plan: DeploymentPlan, problem: Problem, others: list[DeploymentPlan]) -> float:
    """The least factor, as a logarithm, by which some plan is truly better in both objectives."""
    names = [goal.metric for goal in problem.objectives]
    own, each = truth(plan), [truth(other) for other in others]
    return max(
        min(math.log(other[name] / own[name]) for name in names)
        for other in each
        if other["ttft_p95_ms"] <= 400
    )


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> StudyResults:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("optimizer.session.write_review", lambda *_: None)
        return study(tmp_path_factory.mktemp("noisy"), noise=0.05, **ALL)


def test_points_that_led_by_luck_are_caught(noisy: StudyResults) -> None:
    found = noisy
    problem = prepare(found.job)
    plans = [record.plan for record in found.records]
    by_luck = pareto_front(found.records, problem.objectives).points
    worst = [shortfall(point.plan, problem, plans) for point in by_luck]
    left = [shortfall(point.plan, problem, plans) for point in found.front.points]
    assert max(worst) > 0.03
    assert max(left) < 0.01
    lost = {p.plan.point_id for p in by_luck} - {p.plan.point_id for p in found.front.points}
    assert lost and any("off the front of the means" in note for note in found.notes)
    for point in found.front.points:
        assert point.replicated is not None and point.replicated.count >= 3
    chosen = choose(found.settled, found.front)
    assert chosen.plan.point_id in {point.plan.point_id for point in found.front.points}


def test_means_are_nearer_to_the_truth_than_single_runs(noisy: StudyResults) -> None:
    found = noisy
    metric = found.objectives[1].metric
    single, mean, inside = 0.0, 0.0, 0
    for point in found.front.points:
        assert point.replicated is not None
        true = truth(point.plan)[metric]
        single += abs(math.log(point.metrics[metric] / true))
        mean += abs(math.log(point.values[metric] / true))
        inside += abs(point.values[metric] - true) <= 1.5 * point.replicated.half_widths[metric]
    assert mean < single / 1.5
    assert inside >= 0.8 * len(found.front.points)


def test_values_of_trials_stay_those_of_the_first_replication(tmp_path: Path) -> None:
    once = study(tmp_path / "once", noise=0.05)
    again = study(tmp_path / "again", noise=0.05, replications=4)
    assert once.records == again.records
    tables = [(tmp_path / name / "trials.csv").read_bytes() for name in ("once", "again")]
    assert tables[0] == tables[1]
    assert all(point.replicated is None for point in once.front.points)


def test_without_noise_three_replications_settle_the_front(tmp_path: Path) -> None:
    found = study(tmp_path, noise=0.0, replications=10)
    assert {p.replicated.count for p in found.front.points if p.replicated} == {3}
    assert not any("not sure" in note for note in found.notes)
    plain = pareto_front(found.records, found.objectives)
    assert [p.plan for p in found.front.points] == [p.plan for p in plain.points]
    assert found.front.hypervolume == pytest.approx(plain.hypervolume)


def test_what_is_not_settled_at_the_cap_is_told(tmp_path: Path) -> None:
    found = study(tmp_path, noise=0.3, replications=2)
    assert any("is not sure at 95% of each comparison" in note for note in found.notes)
    assert {p.replicated.count for p in found.front.points if p.replicated} == {2}


def test_the_files_do_not_depend_on_who_evaluates_or_when_it_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"noise": 0.05, "replications": 5, "trials": 24}
    study(tmp_path / "one", **options)
    study(tmp_path / "three", workers=3, **options)
    directory, kills = tmp_path / "killed", 0
    while kills < 40:
        with monkeypatch.context() as patch:
            kill_after(patch, 47)
            try:
                study(directory, **options)
                break
            except Killed:
                kills += 1
        repair_journal(directory)
    assert kills >= 3
    for name in ("trials.csv", "front.csv", "front.json"):
        texts = {(tmp_path / where / name).read_bytes() for where in ("one", "three", "killed")}
        assert len(texts) == 1, name


def test_more_replications_go_on_with_those_there_are(tmp_path: Path) -> None:
    few = study(tmp_path, noise=0.2, replications=3)
    more = study(tmp_path, noise=0.2, replications=6)
    assert few.records == more.records
    counts = [p.replicated.count for p in more.front.points if p.replicated]
    assert max(counts) == 6


def test_every_plan_meets_the_same_draws_and_each_replication_has_its_own() -> None:
    job = job_of(
        workload={"preset": "chat", "requests": 60}, search={"trials": 4, "replications": 3}
    )
    problem = prepare(job)
    evaluate = Evaluator.of(problem)
    drawn = [evaluate.of_sample(Sample(problem.space.base, replication=r)) for r in (1, 2, 3)]
    requests = [one.workloads[0].workload for one in drawn]
    assert len({one.seed for one in drawn}) == 3
    assert requests[0] is problem.workloads[0].workload
    assert requests[1] is problem.redrawn[0].workloads[0].workload
    lengths = {tuple(one.output_tokens.tolist()) for one in requests}
    assert len(lengths) == 3
    assert any("replications draw anew: the requests of chat" in note for note in problem.notes)


def test_a_real_study_reports_means_intervals_and_shares(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    search = {"trials": 10, "sampler": "qmc", "replications": 4}
    workload = {
        "synthetic": {
            "requests": 60,
            "input_tokens": {"lognormal": {"mean": 1000, "cv": 1.0}, "max": 8000},
            "output_tokens": {"lognormal": {"mean": 200, "cv": 1.0}, "max": 2000},
        }
    }
    job.write_text(
        dump_yaml(job_data(workload=workload, constraints=[], space=SPACE, search=search))
    )
    result = CliRunner().invoke(
        app, ["optimize", str(job), "--out", str(tmp_path / "study"), "--workers", "1"]
    )
    assert result.exit_code == 0, result.stderr
    assert "±" in result.stdout
    assert "simulated with up to" in result.stderr
    front = pd.read_csv(tmp_path / "study" / "front.csv")
    trials = pd.read_csv(tmp_path / "study" / "trials.csv").set_index("point_id")
    speed = "tokens_per_s_per_user_p50"
    assert (front["replications"] >= 3).all() and front["front_share"].between(0, 1).all()
    assert (front[f"{speed}_ci"] > 0).all()
    for _, row in front.iterrows():
        assert row[speed] == trials.loc[row["point_id"], speed]
        assert row[f"{speed}_mean"] != row[speed]
    points = json.loads((tmp_path / "study" / "front.json").read_text())["points"]
    assert points[0]["replicated"]["means"][speed] == front[f"{speed}_mean"][0]
    shown = CliRunner().invoke(app, ["front", str(tmp_path / "study")])
    assert "±" in shown.stdout
