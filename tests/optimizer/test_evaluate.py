"""One plan is refused, measured or broken off, and each goal is held against what is known."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from typing import Any

import pytest

from objectives.goals import parse_constraint, parse_objective
from optimizer.evaluate import Evaluator, judged
from optimizer.problem import prepare
from spaces.draw import RandomDraw
from spaces.errors import InputError
from spaces.plan import DeploymentPlan, Load, Pool
from tests.optimizer.toy import CHIP, CONSTRAINT, MODEL, assessed, job_of


def plan_of(**pool: Any) -> DeploymentPlan:
    return DeploymentPlan(
        model=MODEL,
        topology="aggregated",
        pools=(Pool(role="aggregated", chip=CHIP, **pool),),
        load=Load(concurrency=4),
    )


@pytest.fixture
def evaluate(monkeypatch: pytest.MonkeyPatch) -> Evaluator:
    monkeypatch.setattr("optimizer.evaluate.assess", lambda plan, *_, **__: assessed(plan))
    return Evaluator.of(prepare(job_of()))


def test_a_plan_that_breaks_a_rule_is_not_simulated(
    evaluate: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def simulated(*_: object, **__: object) -> None:
        raise AssertionError("simulated")

    monkeypatch.setattr("optimizer.evaluate.assess", simulated)
    found = evaluate(plan_of(replicas=10))
    assert found.state == "infeasible"
    assert found.violations == {"budget": pytest.approx(10 / 8 - 1)}
    assert found.reason == "10 h100 are planned, the budget has 8"
    assert not found.metrics and found.simulated_requests == 0


def test_a_complete_evaluation_has_the_size_of_each_violation(evaluate: Evaluator) -> None:
    found = evaluate(plan_of(max_num_batched_tokens=8192))
    ttft = found.metrics["ttft_p95_ms"]
    assert found.state == "complete" and found.reason == ""
    assert found.violations == {CONSTRAINT: pytest.approx((ttft - 400) / 400)}
    assert found.simulated_requests == 40
    assert found.bands["ttft_p95_ms"] == (ttft / 2, ttft * 2)
    assert found.seconds > 0


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_a_goal_without_a_finite_value_is_broken_and_said_so(value: float | None) -> None:
    found = assessed(plan_of())
    metrics = {k: v for k, v in found.metrics.items() if k != "ttft_p95_ms"}
    if value is not None:
        metrics["ttft_p95_ms"] = value
    result = judged(
        replace(found, metrics=metrics),
        [parse_objective("minimize ttft_p95_ms")],
        [parse_constraint("ttft_p95_ms <= 400"), parse_constraint("chips <= 4")],
    )
    assert result.state == "complete"
    assert result.violations == {
        "ttft_p95_ms <= 400": 1.0,
        "chips <= 4": -0.75,
        "minimize ttft_p95_ms": 1.0,
    }
    assert result.reason == "ttft_p95_ms has no value"


@pytest.mark.parametrize(
    ("metrics", "size", "reason"),
    [
        ({}, 0.0, ""),  # no such pool: the bound holds
        ({"decode_hbm_gb_per_chip": 90.0, "decode_queue_p95_ms": 150.0}, 0.5, ""),
        ({"decode_hbm_gb_per_chip": 90.0}, 1.0, "decode_queue_p95_ms has no value"),
    ],
)
def test_a_bound_on_a_pool_holds_where_a_plan_has_no_such_pool(
    metrics: dict[str, float], size: float, reason: str
) -> None:
    bound = parse_constraint("decode_queue_p95_ms <= 100")
    found = replace(assessed(plan_of()), metrics=metrics)
    result = judged(found, [], [bound])
    assert result.violations == {str(bound): pytest.approx(size)}
    assert result.reason == reason


def test_an_evaluation_that_breaks_off_is_failed_with_its_reason(
    evaluate: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("float division by zero")

    monkeypatch.setattr("optimizer.evaluate.assess", broken)
    found = evaluate(plan_of())
    assert (found.state, found.reason) == ("failed", "ZeroDivisionError: float division by zero")
    assert all(size > 0 for size in found.violations.values()) and found.violations


def test_a_mistake_of_the_user_is_raised_not_counted(
    evaluate: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise InputError("a price is needed", key="prices")

    monkeypatch.setattr("optimizer.evaluate.assess", refused)
    with pytest.raises(InputError, match="a price is needed"):
        evaluate(plan_of())


def test_an_evaluator_can_be_sent_to_another_process() -> None:
    problem = prepare(job_of())
    evaluate = pickle.loads(pickle.dumps(Evaluator.of(problem)))
    plan = problem.space.plan(RandomDraw(1)).model_copy(update={"pools": plan_of(tp=16).pools})
    assert evaluate(plan) == Evaluator.of(problem)(plan)
