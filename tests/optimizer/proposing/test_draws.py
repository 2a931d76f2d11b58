"""Trial parameters and plans: each names the other."""

from __future__ import annotations

import itertools
import random
from typing import Any

import optuna
import pytest

from optimizer.problem import prepare
from optimizer.proposing.draws import (
    Parameters,
    TrialDraw,
    all_parameters,
    neighbour,
    parameters_of,
)
from spaces.draw import RandomDraw
from spaces.plan import DeploymentPlan
from spaces.space import SearchSpace
from tests.optimizer.toy import job_of, small_space

SPACES = {
    "dense": job_of(),
    "small": job_of(space=small_space()),
    "two kinds of chips": job_of(
        chips={"h100": 4, "b200": 4},
        precision={"weights": ["native", "fp8"], "kv": ["bf16", "fp8"]},
        engine=["vllm", "sglang"],
        space={"host_gb_per_chip": [0, 64], "router": ["round-robin", "prefix-affinity"]},
    ),
    "drafts, tiers and three pools": job_of(
        model="deepseek-r1",
        chips={"h200": {"min": 24, "max": 40}},
        speculation={"depth": [0, 1, 3]},
        space={
            "topology": ["aggregated", "prefill-midfill-decode", "prefill-decode+afd"],
            "tensor_parallel": 8,
            "data_parallel": 1,
            "shared_gb": 1000,
            "retention": "write-through",
            "midfill_threshold_tokens": [1000, 5000],
            "micro_batches": [2, 3],
        },
    ),
    "mixture of experts": job_of(model="gpt-oss-120b", engine="sglang"),
}


def plan_by(parameters: Parameters, space: SearchSpace) -> DeploymentPlan:
    study = optuna.create_study()
    study.enqueue_trial(parameters)
    trial = study.ask()
    plan = space.plan(TrialDraw(trial))
    assert trial.params == parameters, "each parameter is asked for, and no other"
    return plan


@pytest.mark.parametrize("name", SPACES)
def test_a_drawn_plan_has_parameters_that_draw_it_again(name: str) -> None:
    space = prepare(SPACES[name]).space
    for seed in range(25):
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
        plan = space.plan(TrialDraw(study.ask()))
        parameters = parameters_of(plan, space)
        assert parameters is not None
        assert plan_by(parameters, space) == plan


def test_a_plan_outside_the_space_has_no_parameters() -> None:
    wide, narrow = (prepare(job).space for job in (job_of(), job_of(chips={"h100": 4})))
    plans = [wide.plan(RandomDraw(seed)) for seed in range(40)]
    assert all(parameters_of(plan, wide) is not None for plan in plans)
    assert any(parameters_of(plan, narrow) is not None for plan in plans)
    assert all(parameters_of(plan, narrow) is None for plan in plans if plan.chips > 4)


@pytest.mark.parametrize(
    "pinned",
    [
        {"topology": "aggregated"},
        {"topology": "prefill-decode"},
        {"max_num_seqs": 64},
        {"pipeline_parallel": 1},
        {"router": "round-robin"},
    ],
)
def test_a_question_that_is_not_asked_can_rule_a_plan_out(pinned: dict[str, Any]) -> None:
    options = {
        "max_num_seqs": [8, 64],
        "max_num_batched_tokens": 2048,
        "pipeline_parallel": [1, 2],
        "router": ["least-loaded", "round-robin"],
    }
    few = {"chips": {"h100": 3}, "load": {"concurrency": 4}}
    wide = prepare(job_of(space=options, **few)).space
    narrow = prepare(job_of(space=options | pinned, **few)).space
    plans = [wide.plan(RandomDraw(seed)) for seed in range(60)]
    inside = {point_id for point_id, _ in all_parameters(narrow)}
    for plan in plans:
        assert (parameters_of(plan, narrow) is not None) == (plan.point_id in inside)


def test_counting_gives_every_plan_of_a_space_once() -> None:
    space = prepare(job_of(space=small_space(), load={"concurrency": [1, 3]})).space
    found = list(all_parameters(space))
    points = [point_id for point_id, _ in found]
    assert len(set(points)) == len(points) == space.size() == 4 * 2 * 3
    for point_id, parameters in found:
        assert plan_by(parameters, space).point_id == point_id


def test_counting_gives_as_many_plans_as_the_space_says_it_has() -> None:
    space = prepare(
        job_of(
            chips={"h100": 3},
            load={"concurrency": [1, 2]},
            space={"max_num_seqs": [8, 64], "max_num_batched_tokens": [2048, 4096]},
        )
    ).space
    points = [point_id for point_id, _ in all_parameters(space)]
    assert len(set(points)) == len(points) == space.size()


def test_answers_that_are_there_do_not_change_the_ones_to_come() -> None:
    space = prepare(SPACES["two kinds of chips"]).space

    def sampler() -> optuna.samplers.BaseSampler:
        return optuna.samplers.RandomSampler(seed=11)

    whole = optuna.create_study(sampler=sampler())
    trial = whole.ask()
    plan = space.plan(TrialDraw(trial))
    for answered in range(len(trial.params)):
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=99))
        study.add_trial(
            optuna.trial.create_trial(
                state=optuna.trial.TrialState.RUNNING,
                params=dict(itertools.islice(trial.params.items(), answered)),
                distributions=dict(itertools.islice(trial.distributions.items(), answered)),
            )
        )
        study.sampler = sampler()
        left = optuna.Trial(study, study.get_trials(deepcopy=False)[0]._trial_id)
        assert space.plan(TrialDraw(left)) == plan, f"{answered} answers were there"


def test_an_ordered_question_always_has_the_same_distribution() -> None:
    space = prepare(SPACES["two kinds of chips"]).space
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=random.randrange(99)))
    seen: dict[str, object] = {}
    for _ in range(60):
        trial = study.ask()
        space.plan(TrialDraw(trial))
        for name, distribution in trial.distributions.items():
            assert seen.setdefault(name, distribution) == distribution


def test_a_neighbour_is_a_plan_of_the_space_that_keeps_most_answers() -> None:
    space = prepare(SPACES["two kinds of chips"]).space
    chance = random.Random(5)
    for seed in range(30):
        parent = parameters_of(space.plan(RandomDraw(seed)), space)
        assert parent is not None
        point_id, parameters = neighbour(parent, space, chance)
        assert plan_by(parameters, space).point_id == point_id
        anew = [name for name, answer in parameters.items() if parent.get(name) != answer]
        asked_before = [name for name in anew if name in parent]
        assert len(asked_before) <= 2
