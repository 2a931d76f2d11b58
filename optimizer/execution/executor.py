"""Who evaluates a batch of plans, behind one small protocol; here the cores of this machine.

`ray_executor` does it on a Ray cluster. Which executor it is, and how many workers it has,
changes no byte of a study: evaluations come back in the order the plans were given.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent import futures
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from optimizer.evaluate import Asked, Evaluation, failed

# Of a plan; of a sample of one too, where the study asks for such.
Evaluate = Callable[[Any], Evaluation]
POLL_S = 0.1
# The machine code runs without the interpreter lock, what prepares it does not: at 40 ms an
# evaluation two threads were worth 1.4 and 1.7 workers, two processes 1.8 and 2.0 (the search of
# tests/benchmarks/test_workers.py in batches of 16, two seeds).
MOST_THREADS = 1
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")


@dataclass
class UnderWay:
    """Evaluations under way, to be iterated over; `close` drops those that have not begun."""

    results: Generator[Evaluation]
    drop: Callable[[], None]

    def __iter__(self) -> UnderWay:
        return self

    def __next__(self) -> Evaluation:
        return next(self.results)

    def close(self) -> None:
        """End, whether or not all was iterated over."""
        self.results.close()
        self.drop()


class Executor(Protocol):
    """Evaluates plans, many at a time."""

    @property
    def workers(self) -> int:
        """How many plans it evaluates at a time, at this moment."""
        ...

    def evaluate(self, plans: Iterable[Asked], cancelled: Callable[[], bool]) -> UnderWay:
        """The evaluations in the order of `plans`, each as soon as it and those before it are
        there.

        All plans are taken before this returns, and each is worked on from then on, after those
        of earlier calls. The iteration ends early when `cancelled` says so.
        """
        ...

    def close(self) -> None:
        """End the workers."""
        ...


class LocalExecutor:
    """A pool of threads or processes on this machine, which stay and keep their caches warm.

    The first evaluation runs alone, because it may compile the simulator: the others then find it
    ready instead of compiling it once more each. `evaluate` must be picklable where `processes`
    is true. A plan that takes its process down (out of memory, say) is a failed evaluation.
    """

    def __init__(self, evaluate: Evaluate, workers: int, *, processes: bool | None = None) -> None:
        self.workers = workers
        self._evaluate = evaluate
        self._processes = workers > MOST_THREADS if processes is None else processes
        self._pool = self._new_pool(workers)
        self._warm = False

    def evaluate(self, plans: Iterable[Asked], cancelled: Callable[[], bool]) -> UnderWay:
        """The evaluations in order; see `Executor`. The very first is waited for."""
        asked: list[Asked] = []
        submitted: list[Future[Evaluation]] = []
        for plan in plans:
            asked.append(plan)
            if self._warm or not submitted:
                submitted.append(self._submitted(plan))
        if submitted and not self._warm:
            self._warm = _done(submitted[0], cancelled)
            submitted += [self._submitted(plan) for plan in asked[1:] if self._warm]

        def drop() -> None:
            for future in submitted:
                future.cancel()

        return UnderWay(self._results(asked, submitted, self._pool, cancelled), drop)

    def close(self) -> None:
        """Wait for what still runs and end the workers."""
        self._pool.shutdown(cancel_futures=True)

    def _new_pool(self, workers: int) -> futures.Executor:
        if not self._processes:
            return ThreadPoolExecutor(workers, thread_name_prefix="evaluation")
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["optimizer.evaluate"])
        pool = ProcessPoolExecutor(
            workers, context, initializer=_start_worker, initargs=(self._evaluate,)
        )
        for _ in range(workers):  # they start while the study is opened
            pool.submit(_nothing)
        return pool

    def _submitted(self, plan: Asked) -> Future[Evaluation]:
        try:
            return self._pool.submit(_evaluated if self._processes else self._evaluate, plan)
        except BrokenExecutor as error:  # broken since the last plan was submitted
            broken: Future[Evaluation] = Future()
            broken.set_exception(error)
            return broken

    def _results(
        self,
        plans: Sequence[Asked],
        submitted: Sequence[Future[Evaluation]],
        pool: futures.Executor,
        cancelled: Callable[[], bool],
    ) -> Generator[Evaluation]:
        for number, future in enumerate(submitted):
            if not _done(future, cancelled):
                return
            try:
                evaluation = future.result()
            except BrokenExecutor:  # some plan ended its process, and with it the pool
                if self._pool is pool:
                    self._pool = self._new_pool(self.workers)
                yield from self._one_by_one(plans[number:], cancelled)
                return
            yield evaluation

    def _one_by_one(
        self, plans: Sequence[Asked], cancelled: Callable[[], bool]
    ) -> Generator[Evaluation]:
        """The evaluations of plans one of which broke the pool, in a process apart, so that only
        that one fails.
        """
        alone = self._new_pool(1)
        try:
            for plan in plans:
                future = alone.submit(_evaluated, plan)
                if not _done(future, cancelled):
                    return
                try:
                    evaluation = future.result()
                except BrokenExecutor as error:
                    alone = self._new_pool(1)
                    evaluation = failed(f"the process that evaluated the plan died ({error})")
                yield evaluation
        finally:
            alone.shutdown(cancel_futures=True)


def available_cores() -> int:
    """The cores this process may use; a container's CPU limit (cgroup v2) counts, rounded up."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    if not CPU_QUOTA.is_file():
        return cores
    quota_us, period_us = CPU_QUOTA.read_text().split()
    return cores if quota_us == "max" else min(cores, math.ceil(int(quota_us) / int(period_us)))


_of_this_process: list[Evaluate] = []


def _start_worker(evaluate: Evaluate) -> None:
    """Keep the evaluator for the life of a worker process; Ctrl-C is the coordinator's affair."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _of_this_process[:] = [evaluate]


def _nothing() -> None:
    """A task that only needs a worker."""


def _evaluated(plan: Asked) -> Evaluation:
    return _of_this_process[0](plan)


def _done(future: Future[Evaluation], cancelled: Callable[[], bool]) -> bool:
    """Wait for a future; False when the batch is cancelled before it is done."""
    while not cancelled():
        if futures.wait([future], timeout=POLL_S).done:
            return True
    return future.done()
