"""Evaluations as tasks of a Ray cluster: one machine or many, which may come and go.

Only the coordinator knows the study; a task is a plan and gives an evaluation, so that a task of
a node that is gone is done again by another and nothing is lost or different.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Generator, Iterable
from functools import lru_cache
from importlib.metadata import version
from typing import Any

from optimizer.evaluate import Asked, Evaluation, failed
from optimizer.execution.executor import POLL_S, Evaluate, UnderWay
from spaces.errors import InputError

# How often a plan is tried again whose worker or node is gone, until it counts as the cause.
RETRIES = 3
OPTION = "--executor"
CONNECT_S = 10


class RayExecutor:
    """Evaluates on a Ray cluster, one CPU for each plan; `close` leaves it.

    `address` is what `ray.init` takes (`HOST:PORT`, `auto`, `ray://HOST:PORT`). None joins the
    cluster of the environment variable RAY_ADDRESS or the one started on this machine, and
    starts one for this process where there is none; `workers` are then its CPUs. Raises
    `InputError` where Ray is not installed or the cluster cannot be reached.
    """

    def __init__(self, evaluate: Evaluate, address: str | None, workers: int | None) -> None:
        self._ray = _imported()
        _connect(self._ray, address, workers)
        # In a list, because Ray replaces a bare reference by its object before each task.
        self._evaluator = [self._ray.put(evaluate)]
        task = self._ray.remote(num_cpus=1, max_retries=RETRIES)
        self._task = task(_evaluated)

    @property
    def workers(self) -> int:
        """The CPUs of the cluster at this moment."""
        return int(self._ray.cluster_resources().get("CPU", 0))

    def evaluate(self, plans: Iterable[Asked], cancelled: Callable[[], bool]) -> UnderWay:
        """The evaluations in order; see `Executor`."""
        release = version("servefront")
        left = [self._task.remote(release, self._evaluator, plan) for plan in plans]

        def drop() -> None:
            for reference in left:
                self._ray.cancel(reference)

        return UnderWay(self._results(left, cancelled), drop)

    def close(self) -> None:
        """Leave the cluster; one that was started for this process ends."""
        self._ray.shutdown()

    def _results(self, left: list[Any], cancelled: Callable[[], bool]) -> Generator[Evaluation]:
        """The evaluations, each taken from those that are `left` as it is there."""
        while left and self._done(left[0], cancelled):
            yield self._result(left.pop(0))

    def _done(self, reference: Any, cancelled: Callable[[], bool]) -> bool:
        while not cancelled():
            if self._ray.wait([reference], timeout=POLL_S)[0]:
                return True
        return False

    def _result(self, reference: Any) -> Evaluation:
        errors = self._ray.exceptions
        try:
            evaluation: Evaluation = self._ray.get(reference)
        except errors.RayTaskError as error:  # raised by the evaluation itself
            raise error.cause from None
        except (errors.WorkerCrashedError, errors.OutOfMemoryError, errors.ObjectLostError) as e:
            evaluation = failed(
                f"the Ray worker that evaluated the plan died {RETRIES + 1} times "
                f"({type(e).__name__})"
            )
        return evaluation


def _imported() -> Any:
    try:
        import ray
    except ImportError:
        raise InputError(
            "Ray is not installed",
            key=OPTION,
            value="ray",
            remedy="pip install 'servefront[ray]', or --executor local",
        ) from None
    return ray


def _connect(ray: Any, address: str | None, workers: int | None) -> None:
    given = {} if workers is None else {"num_cpus": workers}
    try:
        _knock(address or "")
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **given)
    except (OSError, ValueError, RuntimeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"the Ray cluster cannot be joined ({reason})",
            key=OPTION,
            value=f"ray:{address}" if address else "ray",
            remedy="give the address `ray start --head` says, set RAY_AUTH_MODE=token where it "
            "asks for tokens, and leave --workers out: a cluster that runs has those it has",
        ) from None


def _knock(address: str) -> None:
    """Raise `OSError` where nobody listens at HOST:PORT, which Ray would try for minutes."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=CONNECT_S).close()


def _evaluated(release: str, evaluator: list[Any], plan: Asked) -> Evaluation:
    """The task: an evaluation by the coordinator's evaluator, which a worker fetches once."""
    here = version("servefront")
    if here != release:
        raise InputError(
            f"each node of the cluster must have servefront {release}",
            where=f"node {socket.gethostname()}",
            value=here,
            remedy="give all nodes the same image or environment",
        )
    return _fetched(evaluator[0])(plan)


@lru_cache(maxsize=1)
def _fetched(reference: Any) -> Evaluate:
    import ray

    evaluate: Evaluate = ray.get(reference)
    return evaluate
