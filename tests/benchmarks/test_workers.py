"""What a second worker is worth; run with: pytest -m benchmark -s tests/benchmarks/test_workers.py

Wall-clock seconds, since those are what more workers are for: run it on an idle machine of two
cores. Each search is a process of its own, so that none finds the caches of another. What is timed
is the search: asking, evaluating and telling; not the start, nor the tables at the end. A gain is
the evaluations' CPU seconds done in a second with two workers, over those with one: on an idle
machine the plain ratio of the seconds, and free of what neighbours do to a core's cache.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from optimizer.evaluate import Evaluator
from optimizer.execution.executors import opened_executor
from optimizer.problem import prepare
from optimizer.session import run_study
from optimizer.storing.records import StoredTrial
from spaces.draw import RandomDraw
from tests.conftest import REPOSITORY
from tests.optimizer.toy import Silent, job_of

pytestmark = pytest.mark.benchmark

ROUNDS = 5
LEAST = 1.7
ABOUT_50_MS = (0.035, 0.075)
REQUESTS = 7500


def test_two_workers_are_worth_at_least_1_7(tmp_path: Path) -> None:
    gains, seconds = [], []
    for seed in range(ROUNDS):
        one, two = (measured(tmp_path / f"{seed}-{workers}", workers, seed) for workers in (1, 2))
        tables = [(tmp_path / f"{seed}-{n}" / "trials.csv").read_bytes() for n in (1, 2)]
        assert tables[0] == tables[1]
        gains.append(two["evaluation_s"] / two["wall_s"] / (one["evaluation_s"] / one["wall_s"]))
        seconds.append(one["evaluation_s"])
        print(
            f"seed {seed}: {one['wall_s']:.2f} s with one worker, {two['wall_s']:.2f} s with two, "
            f"{one['wall_s'] / two['wall_s']:.2f}x as they are, {gains[-1]:.2f}x at equal cost; "
            f"an evaluation took {one['evaluation_s'] * 1e3:.0f} and "
            f"{two['evaluation_s'] * 1e3:.0f} ms of CPU"
        )
    print(f"median {statistics.median(gains):.2f}x, load average {os.getloadavg()[0]:.1f}")
    assert ABOUT_50_MS[0] <= statistics.median(seconds) <= ABOUT_50_MS[1]
    assert statistics.median(gains) >= LEAST


def measured(directory: Path, workers: int, seed: int) -> dict[str, float]:
    """One search in a process of its own: `wall_s` in all, `evaluation_s` of CPU each."""
    command = [
        sys.executable,
        "-m",
        "tests.benchmarks.test_workers",
        str(directory),
        str(workers),
        str(seed),
    ]
    found = subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(found.stdout)
    return figures


def search(directory: Path, workers: int, seed: int) -> dict[str, float]:
    """The search itself, in this process."""
    job = job_of(
        chips={"h100": 16},
        workload={"preset": "chat", "requests": REQUESTS},
        load={"concurrency": [48, 64]},
        constraints=[],
        space={"topology": "aggregated"},
        search={"trials": 96, "batch_size": 32, "sampler": "random", "seed": seed},
    )
    problem = prepare(job)
    executor = opened_executor("local", Evaluator.of(problem), workers)
    others = [problem.space.plan(RandomDraw(n)) for n in range(10_000, 10_000 + 4 * workers)]
    list(executor.evaluate(others, lambda: False))  # the workers load the simulator's code
    watch = Timed()
    outcome = run_study(job, problem, lambda: executor, watch, directory)
    evaluations = [t.evaluation.simulation_cpu_s for t in outcome.results.trials]
    return {
        "wall_s": watch.last_s - watch.begun_s,
        "evaluation_s": statistics.mean(seconds for seconds in evaluations if seconds),
    }


class Timed(Silent):
    """Notes when the search began and when it told the last trial."""

    begun_s = last_s = 0.0

    def begin(self, trials: Sequence[StoredTrial]) -> None:
        super().begin(trials)
        self.begun_s = time.perf_counter()

    def told(self, trial: StoredTrial) -> None:
        super().told(trial)
        self.last_s = time.perf_counter()


if __name__ == "__main__":
    print(json.dumps(search(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
