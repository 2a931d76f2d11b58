"""The guide proposes what could be worth it, whatever of the study it has seen before."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest

import optimizer.proposing.guide as guide_module
from optimizer.problem import Problem, prepare
from optimizer.proposing.candidates import Candidates, why_not_estimated
from optimizer.proposing.guide import Guide, fitted_size
from optimizer.proposing.sampling import chosen_sampler
from optimizer.proposing.surrogate import Correction, Plans, corrections
from optimizer.storing.records import record_of
from results.trials import TrialRecord
from tests.optimizer.toy import evaluator, job_of

Values = npt.NDArray[np.float64]


@pytest.fixture(scope="module")
def problem() -> Problem:
    return prepare(job_of())


@pytest.fixture(scope="module")
def candidates(problem: Problem) -> Candidates:
    return Candidates.of(problem)


def guide_of(problem: Problem, candidates: Candidates) -> Guide:
    return Guide(candidates, problem.objectives, problem.constraints)


def grown(
    guide: Guide, problem: Problem, records: list[TrialRecord], batches: int
) -> list[TrialRecord]:
    """The records after some batches more of the guide, evaluated by the toy's formula."""
    evaluate, records = evaluator(problem), list(records)
    for _ in range(batches):
        for plan in guide.propose(5, records):
            records.append(record_of(len(records), plan, evaluate(plan), None))
    return records


def test_what_is_proposed_follows_from_the_told_trials_alone(
    problem: Problem, candidates: Candidates
) -> None:
    steady = guide_of(problem, candidates)
    records = grown(steady, problem, [], 6)
    once = guide_of(problem, candidates)
    assert once.propose(5, records) == steady.propose(5, records)


def test_no_plan_is_proposed_twice(problem: Problem, candidates: Candidates) -> None:
    records = grown(guide_of(problem, candidates), problem, [], 12)
    assert len({record.plan.point_id for record in records}) == len(records) == 60


def test_the_first_batch_spreads_along_the_estimated_front(
    problem: Problem, candidates: Candidates
) -> None:
    plans = Guide(candidates, problem.objectives, ()).propose(8, [])
    rows = np.array([candidates.row_of(plan) for plan in plans])
    estimates = candidates.estimates[rows][:, :2]
    for one in estimates:  # nearly: a plan that is surer counts a little more
        assert not (candidates.estimates[candidates.rows][:, :2] > 1.1 * one).all(axis=1).any()
    assert estimates[:, 0].max() > 1.5 * estimates[:, 0].min()


def test_a_branch_whose_plans_fail_is_left_for_the_others(
    problem: Problem, candidates: Candidates
) -> None:
    guide, records = guide_of(problem, candidates), list[TrialRecord]()
    for _ in range(4):
        for plan in guide.propose(5, records):
            fine = evaluator(problem)(plan)
            refused = plan.topology == "aggregated"
            state = "failed" if refused else fine.state
            metrics = {} if refused else fine.metrics
            violations = {"evaluation": 1.0} if refused else fine.violations
            records.append(
                TrialRecord(len(records), plan, state, metrics=metrics, violations=violations)
            )
    assert {record.plan.topology for record in records[10:]} == {"prefill-decode"}


def test_a_systematic_error_of_the_estimate_is_learned_within_its_group() -> None:
    stream = np.random.default_rng(1)
    plans = Plans(stream.normal(size=(400, 5)), np.repeat([0, 1], 200))
    truth = np.where(plans.groups == 0, 0.3 + 0.1 * plans.features[:, 2], -0.2)
    told = np.arange(0, 400, 8)
    noise = 0.01 * stream.normal(size=len(told))
    known = Plans(plans.features[told], plans.groups[told])
    found = corrections(plans, known, (truth[told] + noise)[:, None])
    assert np.abs(found.mean[:, 0] - truth).mean() < 0.05
    nothing = Plans(plans.features[:0], plans.groups[:0])
    unsure = corrections(plans, nothing, np.empty((0, 1)))
    assert (unsure.mean == 0).all()
    assert (found.deviation < unsure.deviation).all()


@pytest.mark.parametrize(("every", "found"), [(guide_module.UNCORRECTED, True), (10**9, False)])
def test_plans_that_a_wrong_correction_hides_are_found_by_their_estimates(
    problem: Problem,
    candidates: Candidates,
    monkeypatch: pytest.MonkeyPatch,
    every: int,
    found: bool,
) -> None:
    speed = candidates.estimates[:, 0]
    fast = speed > 0.8 * speed[candidates.rows].max()

    def wrong(plans: Plans, told: Plans, residuals: Values, rough: Sequence[bool]) -> Correction:
        shape = (len(plans.groups), residuals.shape[1])
        mean, deviation = np.zeros(shape), np.full(shape, 0.01)
        mean[fast[candidates.rows], :2] = -1.0
        return Correction(mean, deviation)

    monkeypatch.setattr(guide_module, "corrections", wrong)
    monkeypatch.setattr(guide_module, "UNCORRECTED", every)
    guide, records = Guide(candidates, problem.objectives, ()), list[TrialRecord]()
    for _ in range(12):
        for plan in guide.propose(5, records):
            told = candidates.estimates[candidates.row_of(plan)]
            metrics = dict(zip(candidates.metrics, told.tolist(), strict=True))
            records.append(TrialRecord(len(records), plan, "complete", metrics=metrics))
    assert any(fast[candidates.row_of(record.plan)] for record in records) is found


def test_rows_and_plans_are_one_another(problem: Problem, candidates: Candidates) -> None:
    for row in candidates.rows[:: len(candidates.rows) // 50].tolist():
        assert candidates.row_of(candidates.plan(row)) == row


def test_a_metric_that_is_estimated_roughly_or_not_at_all_is_learned_from_few_trials() -> None:
    """Waits of seconds, where 1 ms stands for all: eight trials tell their order of magnitude."""
    random = np.random.default_rng(1)
    plans = Plans(random.normal(size=(60, 3)), np.zeros(60, dtype=np.int64))
    truth = 7.0 + plans.features @ np.array([1.5, -1.0, 0.0])
    known = Plans(plans.features[:8], plans.groups[:8])
    seen, rough = (
        corrections(plans, known, truth[:8, None], (each,)).mean[:, 0] for each in (False, True)
    )
    assert np.abs(rough - truth)[8:].mean() < 0.3
    assert np.abs(rough - truth)[8:].mean() < 0.2 * np.abs(seen - truth)[8:].mean()
    nothing = Plans(plans.features[:0], plans.groups[:0])
    assert corrections(plans, nothing, np.empty((0, 1)), (True,)).deviation.min() > 2.0


def test_constraints_on_pools_without_an_estimate_do_not_stop_the_guide() -> None:
    job = job_of(
        workload={"synthetic": {"requests": 40, "input_tokens": 2000, "output_tokens": 100}},
        constraints=["decode_utilization <= 0.9"],
        space={"topology": ["aggregated", "prefill-decode"]},
    )
    problem = prepare(job)
    candidates = Candidates.of(problem)
    having = candidates.with_pool("decode")
    assert candidates.rough == (False, False, True)
    assert having.any() and not having.all()
    assert candidates.with_pool(None).all()
    topologies = [candidates.plan(row).topology for row in candidates.rows[having][::500].tolist()]
    assert set(topologies) == {"prefill-decode"}


SPLIT = {
    "workload": {"synthetic": {"requests": 40, "input_tokens": 2000, "output_tokens": 100}},
    "space": {"topology": "prefill-decode"},
}


def test_goals_in_pools_are_estimated_as_far_as_a_steady_state_goes() -> None:
    objectives = ["minimize prefill_utilization", "maximize decode_batch_mean"]
    problem = prepare(job_of(**SPLIT, objectives=objectives, constraints=[]))
    choice = chosen_sampler("auto", 100, problem)
    assert choice.name == "estimate" and choice.reason.endswith("before any is simulated")
    candidates = Candidates.of(problem)
    guessed = candidates.estimates[candidates.rows]
    assert np.isfinite(guessed).all() and (np.ptp(guessed, axis=0) > 0).all()
    assert len(Guide(candidates, problem.objectives, ()).propose(8, [])) == 8


def test_auto_says_which_goals_it_does_not_know() -> None:
    waits = prepare(job_of(**SPLIT, objectives=["minimize decode_queue_p95_ms"], constraints=[]))
    choice = chosen_sampler("auto", 100, waits)
    assert choice.name == "tpe"
    assert choice.reason.startswith("no estimate knows decode_queue_p95_ms, ")
    bounds = ["decode_queue_p95_ms <= 5", "ttft_p95_ms <= 900", "peak_kv_fraction <= 0.9"]
    choice = chosen_sampler("auto", 100, prepare(job_of(**SPLIT, constraints=bounds)))
    assert choice.name == "estimate"
    assert choice.reason.endswith(
        "before any is simulated; decode_queue_p95_ms and peak_kv_fraction are learned from "
        "simulations alone"
    )


def test_what_cannot_be_estimated_is_told() -> None:
    assert why_not_estimated(prepare(job_of())) == ""
    job = job_of(objectives=["minimize hbm_gb_per_chip"])
    assert why_not_estimated(prepare(job)) == "no estimate knows hbm_gb_per_chip"


def test_the_correction_is_learned_more_rarely_the_more_is_known() -> None:
    sizes = sorted({fitted_size(told) for told in range(2_000)})
    assert sizes[:3] == [0, 8, 16]
    assert all(later - size >= max(8, size // 10) for size, later in pairwise(sizes))
