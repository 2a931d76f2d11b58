"""Evaluations on a real Ray cluster of several nodes, which may be killed at any moment."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from optimizer.evaluate import Evaluation
from optimizer.execution.executor import Evaluate
from optimizer.execution.executors import opened_executor
from optimizer.execution.ray_executor import RETRIES, RayExecutor
from spaces.errors import InputError
from spaces.plan import DeploymentPlan
from tests.optimizer.eviction import evicted_and_replaced
from tests.optimizer.execution.test_executor import never, plans, where, wrong
from tests.optimizer.toy import Formula, Silent, job_of, run

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'servefront[ray]'")
pytestmark = [
    # Ray leaves sockets and log files of its own for the collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@dataclass(frozen=True)
class Located(Formula):
    """The formula, which leaves a file by the name of the node it ran on."""

    folder: str = ""

    def __call__(self, plan: DeploymentPlan) -> Evaluation:
        node = ray.get_runtime_context().get_node_id()
        (Path(self.folder) / f"{node}.{plan.point_id}.{time.time_ns()}").touch()
        return super().__call__(plan)


def deadly(plan: DeploymentPlan) -> Evaluation:
    if plan.chips == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return Evaluation("complete", metrics={"chips": plan.chips})


def test_a_node_killed_in_mid_run_changes_no_byte_of_the_study(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    log = tmp_path / "log"
    log.mkdir()

    class Killing(Silent):
        def told(self, trial: Any) -> None:
            super().told(trial)
            if len(self.records) == 9:
                cluster.remove_node(node, allow_graceful=False)

    def located(problem: Any, seconds: float) -> Located:
        return Located(problem.objectives, problem.constraints, seconds, str(log))

    name = f"ray:{cluster.address}"
    with monkeypatch.context() as patch:
        patch.setattr("tests.optimizer.toy.evaluator", located)
        watch = Killing()
        run(job_of(), tmp_path / "ray", executor=name, workers=None, seconds=0.15, watch=watch)
    run(job_of(), tmp_path / "local", workers=2)
    table = (tmp_path / "ray" / "trials.csv").read_bytes()
    assert table == (tmp_path / "local" / "trials.csv").read_bytes()
    assert watch.notes == []
    ran = [file.name.split(".") for file in sorted(log.iterdir(), key=lambda f: f.stat().st_mtime)]
    dead = node.node_id
    assert {at for at, *_ in ran} == {dead, cluster.head_node.node_id}
    assert dead not in {at for at, *_ in ran[-8:]}, "the node was not killed in mid-run"


@pytest.fixture
def on_ray(cluster: Any) -> Iterator[Callable[[Evaluate], RayExecutor]]:
    """Opens executors on the cluster, and leaves it at the end of the test."""
    with ExitStack() as stack:
        yield lambda evaluate: stack.enter_context(
            closing(RayExecutor(evaluate, cluster.address, None))
        )


def test_a_plan_that_kills_every_worker_is_failed_and_the_others_are_not(
    on_ray: Callable[[Evaluate], RayExecutor],
) -> None:
    found = list(on_ray(deadly).evaluate(plans(3), never))
    assert [e.state for e in found] == ["complete", "failed", "complete"]
    assert f"died {RETRIES + 1} times" in found[1].reason


def test_an_error_of_the_user_arrives_as_it_was_raised(
    on_ray: Callable[[Evaluate], RayExecutor],
) -> None:
    with pytest.raises(InputError, match="a price is needed") as caught:
        list(on_ray(wrong).evaluate(plans(3), never))
    assert type(caught.value) is InputError and caught.value.value == 1


def test_a_cancelled_batch_ends_and_its_rest_is_dropped(
    on_ray: Callable[[Evaluate], RayExecutor],
) -> None:
    found: list[Evaluation] = []
    executor = on_ray(where)
    for evaluation in executor.evaluate(plans(400), lambda: len(found) >= 5):
        found.append(evaluation)
    assert [e.metrics["chips"] for e in found] == [1, 2, 3, 4, 5]
    (after,) = executor.evaluate(plans(1), never)  # need not wait for the 395 others
    assert after.metrics["chips"] == 1


def test_a_node_of_another_release_is_refused(
    on_ray: Callable[[Evaluate], RayExecutor], monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = on_ray(wrong)
    monkeypatch.setattr("optimizer.execution.ray_executor.version", lambda _: "9.9")
    with pytest.raises(InputError, match=r"each node of the cluster must have servefront 9\.9"):
        list(executor.evaluate(plans(1), never))


@pytest.mark.parametrize("workers", [None, 2])
def test_a_cluster_that_cannot_be_joined_as_asked_is_told(
    cluster: Any, workers: int | None
) -> None:
    address = "127.0.0.1:1" if workers is None else cluster.address
    with pytest.raises(InputError, match="the Ray cluster cannot be joined") as caught:
        opened_executor(f"ray:{address}", wrong, workers)
    assert caught.value.value == f"ray:{address}"


def test_the_command_on_ray_is_evicted_and_goes_on_locally(cluster: Any, tmp_path: Path) -> None:
    evicted_and_replaced(tmp_path, "--executor", f"ray:{cluster.address}")
