"""A pool hands out evaluations in order, survives its workers, and stops when it is told to."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from optimizer.evaluate import Evaluation, Evaluator
from optimizer.execution.executor import LocalExecutor, available_cores
from optimizer.execution.executors import opened_executor
from optimizer.problem import prepare
from spaces.errors import InputError
from spaces.plan import DeploymentPlan, Load, Pool
from tests.optimizer.toy import CHIP, MODEL, job_of


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

    executor = LocalExecutor(evaluate, workers=4, processes=False)
    found = [result.metrics["chips"] for result in executor.evaluate(plans(8), never)]
    executor.close()
    assert found == list(range(1, 9))


def test_the_first_evaluation_runs_alone_and_later_ones_together() -> None:
    running: set[int] = set()
    beside: dict[int, set[int]] = {}
    finished: list[int] = []
    lock = threading.Lock()

    def evaluate(plan: DeploymentPlan) -> Evaluation:
        with lock:
            if plan.chips > 1:
                assert finished, "the first has not ended"
            running.add(plan.chips)
            beside[plan.chips] = set(running)
        time.sleep(0.03)
        with lock:
            running.remove(plan.chips)
            finished.append(plan.chips)
        return Evaluation("complete")

    executor = LocalExecutor(evaluate, workers=3, processes=False)
    results = [executor.evaluate(part, never) for part in (plans(7)[:4], plans(7)[4:])]
    assert [e.state for result in results for e in result] == ["complete"] * 7
    executor.close()
    assert beside[1] == {1} and max(map(len, beside.values())) == 3


def test_plans_are_worked_on_from_the_moment_they_are_taken() -> None:
    begun: list[int] = []

    def evaluate(plan: DeploymentPlan) -> Evaluation:
        begun.append(plan.chips)
        return Evaluation("complete", metrics={"chips": plan.chips})

    executor = LocalExecutor(evaluate, workers=2)
    first = executor.evaluate(plans(3), never)
    second = executor.evaluate(iter(plans(6)[3:]), never)
    end = time.monotonic() + 60
    while len(begun) < 6:
        assert time.monotonic() < end
        time.sleep(0.005)
    found = [e.metrics["chips"] for e in [*second, *first]]
    executor.close()
    assert found == [4, 5, 6, 1, 2, 3]


def test_a_batch_that_is_closed_drops_what_has_not_begun() -> None:
    begun: list[int] = []

    def evaluate(plan: DeploymentPlan) -> Evaluation:
        begun.append(plan.chips)
        time.sleep(0.02)
        return Evaluation("complete")

    executor = LocalExecutor(evaluate, workers=1)
    executor.evaluate(plans(30), never).close()
    (last,) = executor.evaluate(plans(1), never)
    executor.close()
    assert last.state == "complete" and len(begun) < 10


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


def where(plan: DeploymentPlan) -> Evaluation:
    time.sleep(0.05)
    return Evaluation("complete", metrics={"chips": plan.chips}, reason=str(os.getpid()))


def deadly(plan: DeploymentPlan) -> Evaluation:
    if plan.chips in (3, 6):
        os.kill(os.getpid(), signal.SIGKILL)
    return Evaluation("complete", metrics={"chips": plan.chips})


def wrong(plan: DeploymentPlan) -> Evaluation:
    raise InputError("a price is needed", key="prices", value=plan.chips, remedy="give one")


def test_processes_evaluate_in_order_and_stay() -> None:
    executor = LocalExecutor(where, workers=2, processes=True)
    first = list(executor.evaluate(plans(8), never))
    second = list(executor.evaluate(plans(8), never))
    executor.close()
    assert [e.metrics["chips"] for e in first + second] == [*range(1, 9), *range(1, 9)]
    at_work = {e.reason for e in first + second}
    assert 1 <= len(at_work) <= 2 and str(os.getpid()) not in at_work


def test_several_workers_are_processes(processes: None) -> None:
    for workers, elsewhere in ((1, False), (2, True)):
        executor = LocalExecutor(where, workers)
        (found,) = executor.evaluate(plans(1), never)
        executor.close()
        assert (found.reason != str(os.getpid())) == elsewhere


def test_a_plan_that_kills_its_process_is_failed_and_the_others_are_not() -> None:
    executor = LocalExecutor(deadly, workers=2, processes=True)
    first = list(executor.evaluate(plans(8), never))
    second = list(executor.evaluate(plans(2), never))
    executor.close()
    assert [e.state == "failed" for e in first] == [n in (3, 6) for n in range(1, 9)]
    assert all("the process that evaluated the plan died" in first[n].reason for n in (2, 5))
    assert [e.metrics["chips"] for e in second] == [1, 2]


def test_two_batches_under_way_of_which_plans_kill_their_process_lose_only_these() -> None:
    executor = LocalExecutor(deadly, workers=2, processes=True)
    under_way = [executor.evaluate(plans(8)[:4], never), executor.evaluate(plans(8)[4:], never)]
    found = [evaluation for results in under_way for evaluation in results]
    under_way = [executor.evaluate(plans(2), never) for _ in range(2)]
    after = [evaluation for results in under_way for evaluation in results]
    executor.close()
    assert [e.state == "failed" for e in found] == [n in (3, 6) for n in range(1, 9)]
    assert [e.metrics["chips"] for e in after] == [1, 2, 1, 2]


def test_an_error_of_the_user_keeps_its_parts_on_the_way_from_a_process() -> None:
    executor = LocalExecutor(wrong, workers=2, processes=True)
    with pytest.raises(InputError) as caught:
        list(executor.evaluate(plans(3), never))
    executor.close()
    assert (caught.value.key, caught.value.value, caught.value.remedy) == ("prices", 1, "give one")
    assert str(caught.value).count("prices") == 1


@pytest.mark.parametrize("name", ["lokal", "local:4", "ray:", ""])
def test_an_unknown_executor_is_told(name: str) -> None:
    with pytest.raises(InputError, match="an executor is local, ray or ray:ADDRESS") as caught:
        opened_executor(name, where, None)
    assert caught.value.key == "--executor"


def test_ray_is_asked_for_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match="Ray is not installed") as caught:
        opened_executor("ray", where, None)
    assert "servefront[ray]" in caught.value.remedy


@pytest.mark.parametrize(
    ("content", "cores"), [("max 100000", 8), ("150000 100000", 2), ("6400000 100000", 8)]
)
def test_a_cpu_limit_of_the_container_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, cores: int
) -> None:
    (tmp_path / "cpu.max").write_text(content + "\n")
    monkeypatch.setattr("optimizer.execution.executor.CPU_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert available_cores() == cores


def test_no_plans_are_no_work() -> None:
    executor = LocalExecutor(lambda plan: Evaluation("complete"), workers=2)
    assert list(executor.evaluate([], never)) == []
    executor.close()


def test_there_is_at_least_one_core() -> None:
    assert available_cores() >= 1


def test_the_simulator_gives_the_same_bytes_however_many_workers_it_has() -> None:
    """In threads, where the machine code of several runs side by side, and in processes."""
    base = plans(1)[0].model_copy(update={"model": MODEL})
    pools = (Pool(role="aggregated", chip=CHIP, replicas=2),)
    some = [
        base.model_copy(update={"pools": pools, "load": Load(concurrency=users)})
        for users in (1, 2, 3, 5, 8)
    ]
    evaluate = Evaluator.of(prepare(job_of()))
    expected = [told(evaluate(plan)) for plan in some]
    assert len(set(expected)) == len(some)
    for workers, processes in (
        (1, False),
        (2, False),
        (3, False),
        (1, True),
        (2, True),
        (3, True),
    ):
        executor = LocalExecutor(evaluate, workers, processes=processes)
        found = [told(evaluation) for evaluation in executor.evaluate(some, never)]
        executor.close()
        assert found == expected, (workers, processes)


def told(evaluation: Evaluation) -> bytes:
    """All that an evaluation says of its plan, to the last bit."""
    return pickle.dumps(replace(evaluation, seconds=0.0, simulation_cpu_s=0.0))
