"""The toy world with short runs that are off and draws that differ, for whoever evaluates.

Run as a module it is a study that can be killed: `python -m tests.optimizer.fidelity.world DIR`,
with the storage of SERVEFRONT_STORAGE.
"""

from __future__ import annotations

import hashlib
import math
import os
import sys
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import NormalDist
from typing import Any

from objectives.goals import Constraint, Objective
from optimizer.evaluate import Asked, Evaluation, Sample, judged
from optimizer.execution.executors import opened_executor
from optimizer.job import Job
from optimizer.problem import prepare
from optimizer.session import Outcome, run_study
from tests.optimizer.toy import Silent, assessed, job_of

TABLES = ("trials.csv", "short.csv", "front.csv", "front.json", "history.csv")
SECONDS = 0.03  # of a replication, where a run is to be interrupted in the middle of them
SPACE = {
    "topology": "aggregated",
    "pipeline_parallel": 1,
    "max_num_seqs": [32, 64],
    "max_num_batched_tokens": [2048, 4096],
}


@dataclass(frozen=True)
class Drawn:
    """The formula times luck, anew in each replication; short runs are off by their load.

    A replication takes `seconds` and, where there is a `log` folder, leaves a file there by the
    name of the node of a Ray cluster on which it ran.
    """

    objectives: tuple[Objective, ...]
    constraints: tuple[Constraint, ...]
    seconds: float = 0.0
    log: str = ""

    def __call__(self, asked: Asked) -> Evaluation:
        sample = asked if isinstance(asked, Sample) else Sample(asked)
        found = assessed(sample.plan)
        factor = 1.0
        if sample.fraction < 1:
            assert sample.plan.load is not None
            factor = 0.5 * sample.plan.load.value**-0.2
            found = replace(found, simulated_requests=4)
        if sample.replication > 1:
            time.sleep(self.seconds)
            self._leave_a_file(sample)
        metrics = {
            name: value * factor * math.exp(0.05 * _luck(sample, name))
            for name, value in found.metrics.items()
        }
        return judged(replace(found, metrics=metrics), self.objectives, self.constraints)

    def _leave_a_file(self, sample: Sample) -> None:
        if self.log:
            import ray

            node = ray.get_runtime_context().get_node_id()
            name = f"{node}.{sample.plan.point_id}.{sample.replication}.{time.time_ns()}"
            (Path(self.log) / name).touch()


def _luck(sample: Sample, metric: str) -> float:
    """A standard normal number."""
    text = f"{sample.plan.point_id}/{sample.replication}/{metric}".encode()
    share = int.from_bytes(hashlib.sha256(text).digest()[:6], "big") / 2**48
    return NormalDist().inv_cdf(min(max(share, 1e-9), 1 - 1e-9))


def fidelity_job() -> Job:
    """A job of which some plans are pruned and some points replicated up to six times."""
    search = {
        "trials": 32,
        "batch_size": 4,
        "seed": 3,
        "sampler": "tpe",
        "short_fraction": 0.1,
        "replications": 6,
    }
    long = {"preset": "fixed-1k1k", "requests": 1000}
    return job_of(workload=long, space=SPACE, search=search)


def fidelity_study(
    directory: Path,
    *,
    executor: str = "local",
    workers: int | None = 1,
    seconds: float = 0.0,
    log: Path | None = None,
    **options: Any,
) -> Outcome:
    """A whole run of that job in `directory`."""
    job = fidelity_job()
    problem = prepare(job)
    folder = "" if log is None else str(log)
    evaluate = Drawn(problem.objectives, problem.constraints, seconds, folder)
    opened = partial(opened_executor, executor, evaluate, workers)
    return run_study(job, problem, opened, Silent(), directory, **options)


def tables_of(directory: Path) -> dict[str, bytes]:
    """The files of a study that do not say how long it took."""
    return {name: (directory / name).read_bytes() for name in TABLES}


if __name__ == "__main__":
    fidelity_study(
        Path(sys.argv[1]), seconds=SECONDS, storage_url=os.environ["SERVEFRONT_STORAGE"]
    )
