"""Choosing one point, and what is said when no point remains."""

from __future__ import annotations

import pytest

from objectives.goals import Constraint, Objective, parse_constraint
from results.choice import choose
from results.front import ParetoFront, knee, pareto_front
from results.trials import TrialRecord
from spaces.errors import InputError, NothingFeasible
from spaces.plan import DeploymentPlan, Load, Pool

SPEED = Objective("tokens_per_s_per_user_p50", "maximize")
THROUGHPUT = Objective("output_tokens_per_s_per_chip", "maximize")
TTFT = Objective("ttft_p95_ms", "minimize")
PLAN = DeploymentPlan(
    model="m", topology="aggregated", pools=(Pool(role="aggregated", chip="h200", tp=8),)
)


def trial(number: int, speed: float, throughput: float, ttft: float) -> TrialRecord:
    values = (speed, throughput, ttft)
    metrics = {o.metric: v for o, v in zip((SPEED, THROUGHPUT, TTFT), values, strict=True)}
    return TrialRecord(number, PLAN.at(Load(concurrency=number + 1)), "complete", metrics=metrics)


TRIALS = [
    trial(0, 100.0, 100.0, 300.0),
    trial(1, 70.0, 700.0, 900.0),
    trial(2, 20.0, 1000.0, 4000.0),
    trial(3, 60.0, 650.0, 250.0),
    trial(4, 90.0, 50.0, 200.0),
    trial(5, 55.0, 660.0, 480.0),
]


@pytest.fixture
def front() -> ParetoFront:
    found = pareto_front(TRIALS, (SPEED, THROUGHPUT))
    assert {point.trial for point in found.points} == {0, 1, 2}
    return found


def where(*texts: str) -> list[Constraint]:
    return [parse_constraint(text) for text in texts]


def test_the_knee_is_chosen_by_default(front: ParetoFront) -> None:
    assert choose(TRIALS, front) == knee(front) == TRIALS[1]


def test_the_knee_under_conditions_may_be_a_point_that_an_excluded_one_hid(
    front: ParetoFront,
) -> None:
    assert choose(TRIALS, front, where=where("ttft_p95_ms <= 500")) == TRIALS[3]


def test_a_metric_chooses_among_all_feasible_trials(front: ParetoFront) -> None:
    assert choose(TRIALS, front, by=TTFT) == TRIALS[4]
    assert choose(TRIALS, front, by=THROUGHPUT) == TRIALS[2]
    fast = where("tokens_per_s_per_user_p50 >= 95")
    assert choose(TRIALS, front, where=fast, by=TTFT) == TRIALS[0]


def test_of_equal_points_one_on_the_front_is_chosen(front: ParetoFront) -> None:
    twins = [trial(number, 65.0, 600.0, 900.0) for number in range(10, 30)]
    slowest = Objective("ttft_p95_ms", "maximize")
    bound = where("ttft_p95_ms <= 900")
    assert choose([*twins, *TRIALS], front, where=bound, by=slowest) == TRIALS[1]


def test_a_front_alone_is_enough(front: ParetoFront) -> None:
    assert choose([], front, by=TTFT) == TRIALS[0]


def test_an_impossible_condition_says_how_many_and_the_nearest_miss(front: ParetoFront) -> None:
    conditions = where("ttft_p95_ms <= 240", "output_tokens_per_s_per_chip >= 600")
    with pytest.raises(NothingFeasible) as caught:
        choose(TRIALS, front, where=conditions)
    message = str(caught.value)
    assert "none of 6 points meets the conditions" in message
    assert "ttft_p95_ms <= 240 excludes 5 of 6 points" in message
    assert "output_tokens_per_s_per_chip >= 600 excludes 2 of 6 points" in message
    nearest = TRIALS[3].plan.point_id
    assert f"nearest miss: point {nearest} (1x[TP8] h200, concurrency 4)" in message
    assert "ttft_p95_ms is 250, 10 ms (4.2%) above 240" in message
    assert "is 650" not in message


def test_a_point_without_the_metric_does_not_meet_a_condition_on_it(front: ParetoFront) -> None:
    with pytest.raises(NothingFeasible) as caught:
        choose(TRIALS, front, where=where("power_kw <= 5"))
    assert "power_kw <= 5 excludes 6 of 6 points" in str(caught.value)
    assert "power_kw has no value" in str(caught.value)


def test_a_metric_that_no_point_has_is_an_input_error(front: ParetoFront) -> None:
    with pytest.raises(InputError, match="power_kw"):
        choose(TRIALS, front, by=Objective("power_kw", "minimize"))


def test_without_a_feasible_trial_the_rules_are_told() -> None:
    refused = [
        TrialRecord(i, PLAN, "infeasible", violations={"memory": 0.5 - i / 10}, reason="too big")
        for i in range(3)
    ]
    with pytest.raises(NothingFeasible) as caught:
        choose(refused, pareto_front(refused, (SPEED, THROUGHPUT)))
    message = str(caught.value)
    assert "no trial is feasible" in message
    assert "memory: refused 3 trials; nearest miss: trial 2, 30.0% beyond (too big)" in message


def test_a_condition_on_a_pool_is_none_for_points_without_it(front: ParetoFront) -> None:
    assert choose(TRIALS, front, where=where("prefill_queue_p95_ms <= 1")) == knee(front)
