"""A world in which an evaluation takes no time: a small model, and a formula for the simulator.

Run as a module it is a search that can be killed: `python -m tests.optimizer.toy DIR SECONDS`.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from objectives.assess import Assessment, PoolReport
from objectives.binding import Binding
from objectives.goals import Constraint, Objective
from optimizer.beginning import SAMPLER, SEEDS, begun
from optimizer.directory import NAME_IN_OWN_JOURNAL
from optimizer.evaluate import Evaluation, failed, judged
from optimizer.execution.executor import Evaluate, LocalExecutor
from optimizer.execution.executors import opened_executor
from optimizer.job import Job
from optimizer.problem import Problem, prepare
from optimizer.proposing.draws import Parameters
from optimizer.session import Outcome, run_study
from optimizer.storing.records import StoredTrial
from optimizer.storing.storage import open_storage, open_study
from optimizer.study import Search
from results.tables import to_csv, trials_frame
from results.trials import TrialRecord
from spaces.documents import validated
from spaces.plan import DeploymentPlan

MODEL, CHIP = "llama-3.1-8b", "h100"
STUDY = NAME_IN_OWN_JOURNAL
TRIALS = 24  # a few more than the sampler takes at random
CONSTRAINT = "ttft_p95_ms <= 400"


def job_data(**keys: Any) -> dict[str, Any]:
    """A job as a YAML file would hold it, with `keys` replaced."""
    return {
        "model": MODEL,
        "chips": {CHIP: 8},
        "workload": {"preset": "fixed-1k1k", "requests": 40},
        "load": {"concurrency": [1, 10]},
        "constraints": [CONSTRAINT],
        "search": {"trials": TRIALS, "batch_size": 4},
    } | keys


def small_space() -> dict[str, Any]:
    """Options that leave one layout: 4 replica counts times 2 batches."""
    return {
        "topology": "aggregated",
        "tensor_parallel": 2,
        "pipeline_parallel": 1,
        "max_num_seqs": 64,
        "max_num_batched_tokens": [2048, 4096],
    }


def job_of(**keys: Any) -> Job:
    """The job of `job_data`."""
    return validated(Job, job_data(**keys), "toy")


def assessed(plan: DeploymentPlan) -> Assessment:
    """A formula with the usual trade: more users share a replica, each of them slower."""
    assert plan.load is not None and plan.load.concurrency is not None
    users = plan.load.concurrency / plan.pools[-1].replicas
    batch = plan.pools[0].max_num_batched_tokens
    speed = 60.0 * math.sqrt(plan.pools[-1].tp) / (1 + users / 8)
    seats = min(plan.load.concurrency, sum(p.replicas * p.max_num_seqs for p in plan.pools))
    metrics = {
        "tokens_per_s_per_user_p50": speed,
        "output_tokens_per_s_per_chip": speed * seats / plan.chips,
        "ttft_p50_ms": 20.0 + batch / 100,
        "ttft_p95_ms": 30.0 + batch / 20 + 40 * users,
        "chips": float(plan.chips),
    }
    pool = PoolReport(
        role="aggregated",
        chip=CHIP,
        engine="vllm",
        layout="tp1",
        replicas=1,
        utilization=0.5,
        bubble_fraction=0.0,
        queue_mean_ms=1.0,
        queue_p95_ms=2.0,
        batch_mean=2.0,
        batch_p5=1.0,
        batch_p50=2.0,
        batch_p95=3.0,
        batch_max=4.0,
        prefill_tokens=10,
        decode_tokens=10,
        expert_imbalance=1.0,
        kv_capacity_tokens=1000,
        peak_kv_fraction=0.5,
        hbm_gb_per_chip=40.0,
        kv_network_gb=0.0,
        kv_host_gb=0.0,
        kv_ssd_gb=0.0,
        kv_copied_gb=0.0,
        batch_steps=(0, 2, 3, 1, 1),
    )
    return Assessment(
        metrics=metrics,
        bands={"ttft_p95_ms": (metrics["ttft_p95_ms"] / 2, metrics["ttft_p95_ms"] * 2)},
        pools=(pool,),
        ttft_parts_ms={"queue": 1.0, "prefill": 20.0},
        binding=Binding("aggregated", "compute", "the formula", {"compute": 1.0}),
        queue_growth=None,
        simulated_requests=40,
        simulation_cpu_s=time.thread_time(),
    )


@dataclass(frozen=True)
class Formula:
    """The formula as an evaluator: some plans break off, and it takes `seconds`."""

    objectives: tuple[Objective, ...]
    constraints: tuple[Constraint, ...]
    seconds: float = 0.0

    def __call__(self, plan: DeploymentPlan) -> Evaluation:
        time.sleep(self.seconds)
        if plan.pools[0].max_num_seqs == 512 and plan.pools[0].tp == 4:
            return failed("Oops: 512 seats")
        if plan.pools[0].max_num_seqs == 256 and plan.pools[0].tp == 1:
            return Evaluation("infeasible", violations={"memory": 0.25}, reason="256 do not fit")
        return judged(assessed(plan), self.objectives, self.constraints)


def evaluator(problem: Problem, seconds: float = 0.0) -> Formula:
    """The formula for a problem."""
    return Formula(problem.objectives, problem.constraints, seconds)


class Silent:
    """Looks on and keeps what it saw."""

    def __init__(self) -> None:
        self.records: list[TrialRecord] = []
        self.notes: list[str] = []
        self.sampler = ""
        self.stop_reason = ""

    def begin(self, trials: Sequence[StoredTrial]) -> None:
        self.records = [trial.record for trial in trials]

    def told(self, trial: StoredTrial) -> None:
        self.records.append(trial.record)

    def note(self, text: str) -> None:
        if text.startswith("sampler "):
            self.sampler = text
        else:
            self.notes.append(text)

    @property
    def unique(self) -> list[TrialRecord]:
        """The trials that repeat no earlier one."""
        return [record for record in self.records if record.same_as is None]

    @property
    def table(self) -> str:
        """What trials.csv says."""
        return to_csv(trials_frame(self.records))


def run(
    job: Job,
    directory: Path,
    *,
    workers: int | None = 1,
    seconds: float = 0.0,
    executor: str = "local",
    watch: Silent | None = None,
    **options: Any,
) -> Outcome:
    """A whole run of the study in `directory`, with its files."""
    problem = prepare(job)
    opened = partial(opened_executor, executor, evaluator(problem, seconds), workers)
    return run_study(job, problem, opened, watch or Silent(), directory, **options)


def searched(
    job: Job,
    directory: Path,
    *,
    workers: int = 1,
    seconds: float = 0.0,
    known: Sequence[Parameters] | None = (),
    evaluate: Evaluate | None = None,
    **search: Any,
) -> Silent:
    """The search alone, on the journal of `directory`: no lock and no files.

    It begins with the `known` points and the usual ones, or with none at all where that is None.
    """
    problem = prepare(job)
    directory.mkdir(exist_ok=True)
    watch = Silent()
    executor = LocalExecutor(evaluate or evaluator(problem, seconds), workers)
    study = open_study(open_storage(directory, None), STUDY, problem.objectives)
    if SEEDS not in study.user_attrs:
        study.set_user_attr(SEEDS, list(known or ()))
    if known is None:
        study.set_user_attr(SAMPLER, {"name": job.search.sampler, "reason": "a test"})
    beginning = begun(study, job, problem)
    for text in beginning.told:
        watch.note(text)
    try:
        watch.stop_reason = Search(
            study, problem, job.search, beginning.proposals, executor, watch, **search
        ).run()
    finally:
        executor.close()
    return watch


if __name__ == "__main__":
    run(job_of(), Path(sys.argv[1]), workers=2, seconds=float(sys.argv[2]))
