"""Who evaluates a batch of plans: threads of this machine, behind one small protocol."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Protocol

from optimizer.evaluate import Evaluation
from spaces.plan import DeploymentPlan

Evaluate = Callable[[DeploymentPlan], Evaluation]
POLL_S = 0.1


class Executor(Protocol):
    """Evaluates plans, many at a time."""

    def evaluate(
        self, plans: Sequence[DeploymentPlan], cancelled: Callable[[], bool]
    ) -> Generator[Evaluation]:
        """The evaluations in the order of `plans`, each as soon as it and those before it are
        there. Ends early when `cancelled` says so; evaluations not yet handed out are dropped.
        """
        ...


class LocalExecutor:
    """A pool of threads: the simulator's machine code runs without the interpreter lock.

    The first evaluation of a process runs alone, because it may compile the simulator: the others
    then find it ready instead of compiling it once more each.
    """

    def __init__(self, evaluate: Evaluate, workers: int) -> None:
        self._evaluate = evaluate
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="evaluation")
        self._warm = False

    def evaluate(
        self, plans: Sequence[DeploymentPlan], cancelled: Callable[[], bool]
    ) -> Generator[Evaluation]:
        """The evaluations in order; see `Executor`."""
        if plans and not self._warm:
            yield from self._together(plans[:1], cancelled)
            plans, self._warm = plans[1:], True
        yield from self._together(plans, cancelled)

    def close(self) -> None:
        """Wait for what still runs and end the threads."""
        self._pool.shutdown(cancel_futures=True)

    def _together(
        self, plans: Sequence[DeploymentPlan], cancelled: Callable[[], bool]
    ) -> Generator[Evaluation]:
        futures = [self._pool.submit(self._evaluate, plan) for plan in plans]
        try:
            for future in futures:
                if not _done(future, cancelled):
                    return
                yield future.result()
        finally:
            for future in futures:
                future.cancel()


def available_cores() -> int:
    """The cores this process may use."""
    return (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )


def _done(future: Future[Evaluation], cancelled: Callable[[], bool]) -> bool:
    """Wait for a future; False when the batch is cancelled before it is done."""
    while not cancelled():
        if wait([future], timeout=POLL_S).done:
            return True
    return future.done()
