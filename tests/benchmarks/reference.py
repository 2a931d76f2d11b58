"""Reference problems for the search, and the simulation of every plan of their spaces.

Every plan of a space is simulated once and its metrics kept in the system's temporary folder,
under a name that changes with the sources of the simulator, so that benchmarks can tell what
a search found from what there is. Beforehand: `python -m tests.benchmarks.reference [NAME ...]`.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from optimizer.evaluate import Evaluation, Evaluator, judged
from optimizer.job import Job
from optimizer.problem import Problem, prepare
from spaces.documents import validated
from spaces.enumeration import BranchPlans, enumerated
from spaces.plan import DeploymentPlan
from tests.conftest import REPOSITORY

SPACES: dict[str, dict[str, Any]] = {
    # A dense model on nodes of eight chips, one reasoning answer after another.
    "dense": {
        "model": "llama-3.3-70b",
        "chips": {"h100": 16},
        "precision": {"weights": "fp8", "kv": "fp8"},
        "workload": {"preset": "fixed-1k1k", "requests": 80},
        "load": {"concurrency": [2, 24]},
        "space": {
            "tensor_parallel": [1, 2, 4, 8],
            "pipeline_parallel": [1, 2],
            "max_num_seqs": [8, 64],
            "max_num_batched_tokens": [2048, 8192],
        },
    },
    # A mixture of experts on two chip kinds under chat of spread lengths, with a bound on TTFT.
    "experts": {
        "model": "qwen3-235b-a22b",
        "chips": {"h200": 8, "b200": 8},
        "workload": {
            "synthetic": {
                "requests": 128,
                "input_tokens": {"lognormal": {"mean": 2500, "cv": 1.0}, "max": 16000},
                "output_tokens": {"lognormal": {"mean": 400, "cv": 0.8}, "max": 4000},
            }
        },
        "load": {"concurrency": [2, 32]},
        "constraints": ["ttft_p95_ms <= 4000"],
        "space": {
            "pipeline_parallel": 1,
            "max_num_seqs": 128,
            "max_num_batched_tokens": [4096, 16384],
        },
    },
    # A coding agent's turns behind cached prefixes: tiers, retention and a midfill pool count.
    "agent": {
        "model": "deepseek-r1",
        "chips": {"h200": 32},
        "precision": {"kv": "fp8"},
        "workload": {"trace": str(REPOSITORY / "examples" / "agent_trace.jsonl"), "requests": 120},
        "load": {"concurrency": [2, 32]},
        "space": {
            "topology": ["aggregated", "prefill-decode", "prefill-midfill-decode"],
            "tensor_parallel": [1, 8],
            "pipeline_parallel": 1,
            "data_parallel": [1, 8],
            "max_num_seqs": 16,
            "max_num_batched_tokens": [4096, 16384],
            "host_gb_per_chip": [0, 100],
            "shared_gb": 4000,
            "retention": "write-through",
        },
    },
}


# With every number of replicas the larger of the named problems have some 100,000 plans; with
# powers of two each is simulated as a whole within minutes.
FEWER_REPLICAS = [1, 2, 4, 8]


def _fixed(
    model: str, chip: str, count: int, replicas: Sequence[int] = (), **keys: Any
) -> dict[str, Any]:
    """A problem of the study of the peers: inputs of 4,000 tokens, answers of 1,000."""
    lengths = {"requests": 128, "input_tokens": 4000, "output_tokens": 1000}
    space = {"pipeline_parallel": 1, "max_num_seqs": 64, "max_num_batched_tokens": 8192}
    return {
        "model": model,
        "chips": {chip: count},
        "workload": {"synthetic": lengths},
        "load": {"concurrency": [8, 64]},
        "space": {**space, "replicas": list(replicas)},
        **keys,
    }


# What the search of a peer took on two cores of the same kind for steady-state means only
# (aiconfigurator 0.12, whole command, median of three), with the problems.
NVFP4 = {"precision": {"weights": "nvfp4", "kv": "fp8"}}
PEER_SECONDS = {"h200 v3": 19.1, "h200 qwen": 26.3, "b200 v3.1": 36.6, "gb200 v3.1": 44.3}
NAMED: dict[str, dict[str, Any]] = {
    "h200 v3": _fixed("deepseek-v3", "h200", 32),
    "h200 qwen": _fixed(
        "qwen3-235b-a22b", "h200", 32, FEWER_REPLICAS, precision={"weights": "fp8"}
    ),
    "b200 v3.1": _fixed("deepseek-v3.1", "b200", 32, FEWER_REPLICAS, **NVFP4),
    "gb200 v3.1": _fixed("deepseek-v3.1", "gb200", 72, FEWER_REPLICAS, **NVFP4),
}
# A prefill-decode problem on which a published search took 7.5 hours to 99 % of its hypervolume.
LONG = {
    "model": "glm-5",
    "chips": {"b200": 72},
    "precision": {"weights": "fp8"},
    "workload": {"preset": "fixed-1k1k", "requests": 512},
    "load": {"concurrency": [4, 256]},
    "space": {"topology": "prefill-decode"},
}
PROBLEMS = {**SPACES, **NAMED, "glm-5": LONG}


def job_of(name: str, **search: Any) -> Job:
    """A reference job, with settings of its search replaced."""
    return validated(Job, PROBLEMS[name] | {"search": search}, name)


@dataclass(frozen=True)
class Truth:
    """The outcome of every plan of a space, in the order of `numbered`.

    `metrics[i]` are those of plan `i` in the order of `names`, nan where it has none;
    `cpu_s` is what the simulations took together.
    """

    names: tuple[str, ...]
    metrics: npt.NDArray[np.float64]
    cpu_s: float


def truth_of(name: str) -> Truth:
    """The simulation of a whole reference space, made at the first call and kept."""
    problem = prepare(job_of(name))
    file = _folder() / f"{name.replace(' ', '-')}-{_sources_digest()[:12]}.npz"
    if not file.is_file():
        truth = _simulated(problem)
        part = file.with_suffix(".part.npz")
        np.savez_compressed(
            part, names=truth.names, metrics=truth.metrics, cpu_s=np.array(truth.cpu_s)
        )
        part.rename(file)
    with np.load(file) as stored:
        names = tuple(str(metric) for metric in stored["names"])
        return Truth(names, stored["metrics"], float(stored["cpu_s"]))


@dataclass
class Recalled:
    """Evaluates plans by looking up their simulation in a truth."""

    problem: Problem
    truth: Truth

    def __call__(self, plan: DeploymentPlan) -> Evaluation:
        """The outcome that the truth has for a plan."""
        values = self.truth.metrics[self._place(plan)]
        metrics = dict(zip(self.truth.names, values.tolist(), strict=True))
        known = {name: value for name, value in metrics.items() if np.isfinite(value)}
        found = Evaluation("complete", metrics=known)
        return judged(found, self.problem.objectives, self.problem.constraints)

    def _place(self, plan: DeploymentPlan) -> int:
        start = 0
        for table in self.tables:
            number = table.number_of(plan)
            if number is not None and table.branch.topology == plan.topology:
                return start + number
            start += len(table)
        raise KeyError(plan.point_id)

    @cached_property
    def tables(self) -> tuple[BranchPlans, ...]:
        """The tables of the space."""
        return enumerated(self.problem.space)


def numbered(tables: Sequence[BranchPlans]) -> Iterable[DeploymentPlan]:
    """Every plan of a space, branch by branch."""
    return (table.plan(number) for table in tables for number in range(len(table)))


def wanted_metrics(problem: Problem) -> tuple[str, ...]:
    """What the objectives and constraints of a problem look at."""
    goals = [objective.metric for objective in problem.objectives]
    return tuple(dict.fromkeys([*goals, *(bound.metric for bound in problem.constraints)]))


def _simulated(problem: Problem) -> Truth:
    names = wanted_metrics(problem)
    evaluate = Evaluator.of(problem)
    started_s = time.process_time()
    rows = [
        [evaluation.metrics.get(name, np.nan) for name in names]
        for evaluation in map(evaluate, numbered(enumerated(problem.space)))
    ]
    return Truth(names, np.array(rows), time.process_time() - started_s)


def _folder() -> Path:
    folder = Path(tempfile.gettempdir()) / "servefront-reference"
    folder.mkdir(exist_ok=True)
    return folder


def _sources_digest() -> str:
    """Of everything an outcome rests on: code and data of the two lower folders, and the jobs."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for folder in ("spaces", "objectives"):
        for file in sorted((REPOSITORY / folder).rglob("*")):
            if file.suffix in (".py", ".yaml", ".json"):
                digest.update(file.read_bytes())
    return digest.hexdigest()


if __name__ == "__main__":
    for name in sys.argv[1:] or SPACES:
        truth = truth_of(name)
        print(f"{name}: {len(truth.metrics):,} plans in {truth.cpu_s:.0f} CPU seconds")
