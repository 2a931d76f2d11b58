"""Simulated requests per CPU second; run with: pytest -m benchmark tests/benchmarks.

Costs are built beforehand and the machine code is loaded, so that the figures are the event loop's
alone (CPU seconds of one core, median of the rounds).
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from objectives.deployment import scenario_of
from objectives.simulator import Scenario, simulate
from objectives.workload.load import OfferedLoad
from objectives.workload.workload import Workload
from spaces.plan import DeploymentPlan, KvTiers, Pool
from tests.conftest import REPOSITORY
from tests.objectives.simulator import vidur
from tests.objectives.simulator.worlds import workload_of
from tests.spaces.worlds import plan_of, site_of

pytestmark = pytest.mark.benchmark(timer=time.process_time, warmup=True, min_rounds=3)


def fixed(requests: int, input_tokens: int, output_tokens: int) -> Workload:
    """Requests of one length."""
    return workload_of(
        np.zeros(requests), np.full(requests, input_tokens), np.full(requests, output_tokens)
    )


def scenario(plan: DeploymentPlan, chips: dict[str, int], request: int = 40_000) -> Scenario:
    """A plan in the simulator's numbers."""
    return scenario_of(plan, site_of(plan.model, chips, request=request))


DENSE = plan_of("qwen3-32b", "h200", tp=4)
MOE = plan_of("qwen3-235b-a22b", "h200", tp=8, ep=8)
SPLIT = DeploymentPlan(
    model="qwen3-32b",
    topology="prefill-decode",
    pools=(
        Pool(role="prefill", chip="h200", tp=4),
        Pool(role="decode", chip="h200", tp=4, replicas=2),
    ),
)
CASES = {
    "dense 32B TP4, 1024/128, 64 clients": (DENSE, 131_072, 1024, 128, 64),
    "MoE 235B TP8, 32768/32, 16 clients": (MOE, 16_384, 32_768, 32, 16),
    "MoE 235B TP8, 1024/2048, 128 clients": (MOE, 4_096, 1024, 2048, 128),
    "1P+2D 32B, 1024/128, 64 clients": (SPLIT, 65_536, 1024, 128, 64),
}


@pytest.mark.parametrize("case", CASES)
def test_requests_per_second(case: str, benchmark: Any) -> None:
    plan, requests, input_tokens, output_tokens, clients = CASES[case]
    world = scenario(plan, {"h200": 16})
    workload = fixed(requests, input_tokens, output_tokens)
    load = OfferedLoad(workload.arrival_s, clients)
    result = benchmark(simulate, world, workload, load)
    assert result.requests.finished.all()
    benchmark.extra_info["requests_per_cpu_s"] = requests / benchmark.stats.stats.median


def chats(sessions: int, turns: int, first: int, growth: int, answer: int) -> Workload:
    """Sessions of equal turns, each with the prompt and answer before it as its prefix."""
    block = 64
    longest = -(-(first + (turns - 1) * growth) // block)
    inputs = np.tile(first + growth * np.arange(turns), sessions)
    chains = [
        list(range(session * longest, session * longest - (-length // block)))
        for session, length in zip(np.repeat(np.arange(sessions), turns), inputs, strict=True)
    ]
    places = np.arange(sessions * turns)
    begins = places % turns == 0
    return workload_of(
        np.zeros(len(inputs)),
        inputs,
        np.full(len(inputs), answer),
        chains,
        block,
        parents=np.where(begins, -1, places - 1).tolist(),
        gaps_s=np.where(begins, 0.0, 2.0).tolist(),
    )


def test_sessions_under_kv_pressure(benchmark: Any) -> None:
    """Four turns each, more alive than HBM holds, so that turns come back from host memory."""
    plan = plan_of("qwen3-32b", "h200", tp=2).model_copy(
        update={"kv": KvTiers(host_gb_per_chip=100)}
    )
    workload = chats(4_096, turns=4, first=2_048, growth=1_024, answer=128)
    load = OfferedLoad(workload.arrival_s, 256)
    result = benchmark(simulate, scenario(plan, {"h200": 16}), workload, load)
    records = result.requests
    assert records.finished.all()
    assert result.pools[0].peak_kv_fraction > 0.99
    assert records.host_hit_tokens.sum() > 0.2 * records.input_tokens.sum()
    benchmark.extra_info["requests_per_cpu_s"] = len(workload) / benchmark.stats.stats.median


def test_case_a_of_another_simulator(data_dir: Path, benchmark: Any) -> None:
    """The thousand requests of `test_vidur.py`, exact, with its operator tables loaded."""
    table = vidur.answers(data_dir, "A")
    workload = vidur.workload(table)
    world = Scenario((vidur.pool(data_dir, vidur.SMALL),))
    load = OfferedLoad(workload.arrival_s, 0)
    result = benchmark(simulate, world, workload, load)
    assert result.requests.finished.all()
    benchmark.extra_info["requests_per_cpu_s"] = len(workload) / benchmark.stats.stats.median


def test_memory_of_a_million_requests() -> None:
    """Peak memory of a process of its own that serves them, everything else included."""
    script = (
        "import resource\n"
        "from objectives.simulator import loop, simulate\n"
        "from objectives.workload.load import OfferedLoad\n"
        "from tests.benchmarks.test_simulator_speed import DENSE, fixed, scenario\n"
        "workload = fixed(1_000_000, 1024, 128)\n"
        "world = scenario(DENSE, {'h200': 16})\n"
        "simulate(world, workload, OfferedLoad(workload.arrival_s, 64))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
        "print(len(loop.run.stats.cache_misses))"
    )
    command = [sys.executable, "-c", script]
    simulate(scenario(DENSE, {"h200": 16}), fixed(10, 64, 8), OfferedLoad(np.zeros(10), 4))
    told = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    kilobytes, compiled = map(int, told.stdout.split())
    assert compiled == 0, "the machine code of another process was not found"
    gigabytes = kilobytes * 1024 / 1e9
    print(f"\n1 M requests: {gigabytes:.2f} GB at their peak")
    assert gigabytes < 0.85


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_cost_of_a_request_does_not_grow_with_its_answer(stages: int, benchmark: Any) -> None:
    plan = plan_of("qwen3-32b", "h200", tp=4 // stages, pp=stages)
    world = scenario(plan, {"h200": 16})

    def seconds(output_tokens: int) -> float:
        workload = fixed(4_096, 256, output_tokens)
        load = OfferedLoad(workload.arrival_s, 64)
        started = time.process_time()
        simulate(world, workload, load)
        return time.process_time() - started

    def ratio() -> float:
        return seconds(8_192) / seconds(128)

    ratios = [ratio() for _ in range(5)]
    benchmark.extra_info["ratio"] = float(np.median(ratios))
    benchmark(seconds, 128)
    print(
        f"\n{stages} stages, 8,192 against 128 output tokens: "
        f"{np.median(ratios):.2f} times the CPU seconds"
    )
