"""A fork evaluates nothing again that holds, and takes nothing over that does not."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from optimizer.directory import read_results
from optimizer.evaluate import Evaluation, Evaluator
from optimizer.execution.executor import LocalExecutor
from optimizer.execution.executors import opened_executor
from optimizer.fork import Fork, Remembering, forked
from optimizer.job import Job
from optimizer.problem import Problem, prepare
from optimizer.proposing.draws import parameters_of
from optimizer.session import Outcome, run_study
from results.trials import TrialRecord
from spaces.plan import DeploymentPlan
from tests.optimizer.execution.test_executor import never, plans
from tests.optimizer.toy import TRIALS, Silent, evaluator, job_of, run

SEARCH = {"trials": TRIALS, "batch_size": 4, "sampler": "random"}


def fork(directory: Path, job: Job, new: Path, evaluated: list[str]) -> tuple[Fork, Outcome]:
    """The fork of a study, and which points were evaluated for it."""
    problem = prepare(job)
    formula = evaluator(problem)

    def evaluate(plan: DeploymentPlan) -> Evaluation:
        evaluated.append(plan.point_id)
        return formula(plan)

    taken = forked(directory, None, problem, job.search.trials)
    opened = partial(taken.remembering, lambda: LocalExecutor(evaluate, 1))
    return taken, run_study(job, problem, opened, Silent(), new, seeds=taken.seeds)


def complete(records: Sequence[TrialRecord]) -> dict[str, TrialRecord]:
    return {r.plan.point_id: r for r in records if r.state == "complete" and r.same_as is None}


@pytest.mark.parametrize(
    "keys",
    [
        {"constraints": ["ttft_p95_ms <= 200"]},
        {"objectives": ["minimize ttft_p50_ms", "maximize output_tokens_per_s_per_chip"]},
        {"chips": {"h100": 16}},
        {"search": SEARCH | {"batch_size": 6, "sampler": "nsga2"}},
    ],
    ids=lambda keys: next(iter(keys)),
)
def test_what_holds_is_not_evaluated_again_but_judged_again(
    tmp_path: Path, keys: dict[str, Any]
) -> None:
    old = complete(run(job_of(search=SEARCH), tmp_path / "old").results.records)
    job = job_of(**({"search": SEARCH | {"trials": TRIALS + 8}} | keys))
    problem = prepare(job)
    evaluated: list[str] = []
    taken, outcome = fork(tmp_path / "old", job, tmp_path / "new", evaluated)
    assert len(taken.known) > TRIALS / 2 and taken.known.keys() <= old.keys()
    assert not taken.known.keys() & set(evaluated)
    first = outcome.results.records[: len(taken.known)]
    assert {record.plan.point_id for record in first} == taken.known.keys()
    for trial in outcome.results.trials[: len(first)]:
        fresh = evaluator(problem)(trial.record.plan)
        assert (trial.evaluation.metrics, trial.evaluation.bands) == (fresh.metrics, fresh.bands)
        assert (trial.evaluation.violations, trial.evaluation.reason) == (
            fresh.violations,
            fresh.reason,
        )
        assert (trial.evaluation.simulated_requests, trial.evaluation.seconds) == (0, 0.0)
    assert f"{len(first)} of the {TRIALS} evaluations" in taken.told[0]
    assert len([r for r in outcome.results.records if r.same_as is None]) >= TRIALS
    assert read_results(tmp_path / "old").records


@pytest.mark.parametrize(
    ("keys", "ground"),
    [
        ({"workload": {"preset": "fixed-1k1k", "requests": 41}}, "the requests"),
        ({"slo": {"ttft_ms": 100}}, "the slo"),
        ({"prices": {"h100": 9}}, "the prices"),
        ({"search": SEARCH | {"seed": 2}}, "the seed"),
        ({"max_model_len": 4096}, None),  # a part of the plan
        ({"hbm_fraction": 0.8}, None),
    ],
)
def test_what_rests_on_other_grounds_is_evaluated_again(
    tmp_path: Path, keys: dict[str, Any], ground: str | None
) -> None:
    old = run(job_of(search=SEARCH), tmp_path / "old").results
    evaluated: list[str] = []
    job = job_of(**({"search": SEARCH} | keys))
    taken, outcome = fork(tmp_path / "old", job, tmp_path / "new", evaluated)
    if ground is not None:
        assert not taken.known
        assert f"holds for this job ({ground}" in taken.told[0]
        there = [
            point.plan.point_id
            for point in old.front.points
            if parameters_of(point.plan, prepare(job).space) is not None
        ]
        assert evaluated[: len(there)] == there != []
        assert f"{len(there)} points of the old front are tried first" in taken.told
    new = {r.plan.point_id for r in outcome.results.records if r.same_as is None}
    assert new == set(evaluated) and not taken.known


def test_points_outside_the_new_space_and_failed_ones_are_left_out(tmp_path: Path) -> None:
    space = {"max_num_seqs": [64, 512], "topology": "aggregated"}
    old = run(job_of(space=space, search=SEARCH | {"trials": 40}), tmp_path / "old").results
    assert any(record.state == "failed" for record in old.records)
    evaluated: list[str] = []
    narrow = space | {"max_num_seqs": [512]}
    taken, outcome = fork(
        tmp_path / "old", job_of(space=narrow, search=SEARCH), tmp_path / "new", evaluated
    )
    wide = [r for r in complete(old.records).values() if r.plan.pools[0].max_num_seqs == 64]
    assert wide and not {r.plan.point_id for r in wide} & taken.known.keys()
    assert any("are not in the space of this job" in text for text in taken.told)
    failed = {r.plan.point_id for r in outcome.results.records if r.state == "failed"}
    assert failed and failed <= set(evaluated)


def test_a_fork_goes_on_like_any_study(tmp_path: Path) -> None:
    run(job_of(search=SEARCH), tmp_path / "old")
    job = job_of(constraints=[], search=SEARCH)
    evaluated: list[str] = []
    fork(tmp_path / "old", job, tmp_path / "new", evaluated)
    more = job_of(constraints=[], search=SEARCH | {"trials": TRIALS + 6})
    outcome = run(more, tmp_path / "new")
    assert sum(r.same_as is None for r in outcome.results.records) == TRIALS + 6


def test_a_budget_that_is_used_up_by_what_holds_is_told(tmp_path: Path) -> None:
    run(job_of(search=SEARCH), tmp_path / "old")
    problem: Problem = prepare(job_of(constraints=[], search=SEARCH))
    assert forked(tmp_path / "old", None, problem, 5).told[0].endswith("raise --trials")


def test_a_real_evaluation_is_taken_over_as_a_larger_budget_would_have_it(tmp_path: Path) -> None:
    few = {"trials": 6, "batch_size": 3, "sampler": "random"}
    job = job_of(search=few)
    problem = prepare(job)
    opened = partial(opened_executor, "local", Evaluator.of(problem), 1)
    run_study(job, problem, opened, Silent(), tmp_path / "old")
    larger = prepare(job_of(search=few, chips={"h100": 12}, constraints=["chips <= 6"]))
    known = forked(tmp_path / "old", None, larger, 6).known
    plan_of = {r.plan.point_id: r.plan for r in read_results(tmp_path / "old").records}
    assert known
    for point_id, evaluation in known.items():
        fresh = Evaluator.of(larger)(plan_of[point_id])
        assert evaluation.metrics == fresh.metrics
        assert evaluation.bands.keys() == fresh.bands.keys()
        for name, band in fresh.bands.items():
            # That of the budget is stretched, which rounds once more.
            rounding = 1e-12 if name == "output_tokens_per_s_per_budget_chip" else 0.0
            assert evaluation.bands[name] == pytest.approx(band, rel=rounding, abs=0.0)
        assert evaluation.violations == fresh.violations


def test_known_and_new_evaluations_come_in_order() -> None:
    some = plans(6)
    known = {some[n].point_id: Evaluation("complete", metrics={"chips": n + 1.0}) for n in (0, 3)}
    made: list[float] = []

    def evaluate(plan: DeploymentPlan) -> Evaluation:
        made.append(plan.chips)
        return Evaluation("complete", metrics={"chips": float(plan.chips)})

    executor = Remembering(LocalExecutor(evaluate, 1), known)
    assert [e.metrics["chips"] for e in executor.evaluate(some, never)] == [1, 2, 3, 4, 5, 6]
    assert [e.metrics["chips"] for e in executor.evaluate(some[:1], lambda: True)] == [1]
    executor.close()
    assert made == [2, 3, 5, 6]
