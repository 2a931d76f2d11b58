"""The Gaussian process proposes for spaces whose questions depend on earlier answers."""

from __future__ import annotations

import random

import pytest

from optimizer.problem import prepare
from optimizer.proposing.draws import GivenDraw, Parameters, completed, parameters_of
from optimizer.storing.records import record_of
from results.trials import TrialRecord
from spaces.draw import RandomDraw
from spaces.space import SearchSpace
from tests.optimizer.toy import evaluator, job_of

pytest.importorskip("torch", reason="the Gaussian process needs PyTorch (extra gp)")

from optimizer.proposing.gaussian import GaussianProcess

JOB = job_of(
    chips={"h100": 8, "b200": 4},
    precision={"weights": ["native", "fp8"]},
    load={"concurrency": [1, 16]},
)
PROBLEM = prepare(JOB)
SPACE = PROBLEM.space


def told(count: int, space: SearchSpace = SPACE) -> list[tuple[TrialRecord, Parameters]]:
    evaluate = evaluator(PROBLEM)
    found = []
    for number in range(count):
        plan = space.plan(RandomDraw(number))
        own = parameters_of(plan, space)
        assert own is not None
        found.append((record_of(number, plan, evaluate(plan), None), own))
    return found


def process() -> GaussianProcess:
    return GaussianProcess(SPACE, PROBLEM.objectives, PROBLEM.constraints)


def test_a_proposal_answers_every_question_of_any_plan() -> None:
    trials = told(24)
    asked = {name for _, own in trials for name in own}
    assert len(asked) > max(len(own) for _, own in trials), "no plan is asked everything"
    for answers in process().propose(trials, 3, seed=1):
        assert answers.keys() == asked
        _, own = completed(answers, SPACE, random.Random(1))
        assert own.keys() < asked
        assert {name: answers[name] for name in own} == own


def test_proposals_follow_from_the_trials_and_the_seed_and_spread_within_a_batch() -> None:
    trials = told(20)
    first = process().propose(trials, 3, seed=4)
    assert first == process().propose(trials, 3, seed=4)
    assert first != process().propose(trials, 3, seed=5)
    plans = {completed(answers, SPACE, random.Random(1))[0] for answers in first}
    assert len(plans) == 3


def test_nothing_is_proposed_before_anything_is_told() -> None:
    assert process().propose([], 4, seed=1) == []


def test_a_bound_is_kept_more_often_than_by_chance() -> None:
    trials = [one for one in told(40) if one[0].state == "complete"]
    kept = [record.feasible for record, _ in trials]
    assert 0.1 < sum(kept) / len(kept) < 0.9
    found = [completed(one, SPACE, random.Random(1))[1] for one in process().propose(trials, 6, 2)]
    plans = [SPACE.plan(GivenDraw(own)) for own in found]
    proposed = [record_of(0, plan, evaluator(PROBLEM)(plan), None).feasible for plan in plans]
    assert sum(proposed) / len(proposed) >= sum(kept) / len(kept)
