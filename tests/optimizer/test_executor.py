"""A pool of threads hands out evaluations in order, and stops when it is told to."""

from __future__ import annotations

import threading
import time

import pytest

from optimizer.evaluate import Evaluation
from optimizer.executor import LocalExecutor, available_cores
from spaces.plan import DeploymentPlan, Pool


def plans(count: int) -> list[DeploymentPlan]:
    return [
        DeploymentPlan(
            model="m",
            topology="aggregated",
            pools=(Pool(role="aggregated", chip="c", replicas=n),),
        )
        for n in range(1, count + 1)
    ]


def never() -> bool:
    return False


def test_results_come_in_order_though_later_plans_are_quicker() -> None:
    def evaluate(plan: DeploymentPlan) -> Evaluation:
        time.sleep(0.03 / plan.chips)
        return Evaluation("complete", metrics={"chips": plan.chips})

    executor = LocalExecutor(evaluate, workers=4)
    found = [result.metrics["chips"] for result in executor.evaluate(plans(8), never)]
    executor.close()
    assert found == list(range(1, 9))


def test_the_first_evaluation_runs_alone_and_later_ones_together() -> None:
    running, most = 0, [0]
    lock = threading.Lock()

    def evaluate(plan: DeploymentPlan) -> Evaluation:
        nonlocal running
        with lock:
            running += 1
            most.append(running)
            if plan.chips == 1:
                assert not finished
        time.sleep(0.03)
        with lock:
            running -= 1
            finished.append(plan.chips)
        return Evaluation("complete")

    finished: list[int] = []
    executor = LocalExecutor(evaluate, workers=3)
    results = executor.evaluate(plans(7), never)
    next(results)
    assert finished == [1] and max(most) == 1
    list(results)
    executor.close()
    assert max(most) == 3


def test_a_cancelled_batch_ends_early_and_what_has_not_begun_never_runs() -> None:
    begun = []
    cancelled = threading.Event()

    def evaluate(plan: DeploymentPlan) -> Evaluation:
        begun.append(plan.chips)
        if plan.chips == 3:
            cancelled.set()
            time.sleep(0.3)
        return Evaluation("complete")

    executor = LocalExecutor(evaluate, workers=1)
    found = list(executor.evaluate(plans(20), cancelled.is_set))
    executor.close()
    assert len(found) == 2
    assert len(begun) <= 4


def test_an_error_of_an_evaluation_reaches_the_caller() -> None:
    def evaluate(plan: DeploymentPlan) -> Evaluation:
        raise KeyError("gone")

    executor = LocalExecutor(evaluate, workers=2)
    with pytest.raises(KeyError, match="gone"):
        list(executor.evaluate(plans(3), never))
    executor.close()


def test_no_plans_are_no_work() -> None:
    executor = LocalExecutor(lambda plan: Evaluation("complete"), workers=2)
    assert list(executor.evaluate([], never)) == []
    executor.close()


def test_there_is_at_least_one_core() -> None:
    assert available_cores() >= 1
