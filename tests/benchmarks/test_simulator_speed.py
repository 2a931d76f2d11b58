"""Simulated requests per CPU second; run with: pytest -m benchmark tests/benchmarks.

Costs are built beforehand and the machine code is loaded, so that the figures are the event loop's
alone (CPU seconds of one core, median of the rounds).
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from objectives.deployment import scenario_of
from objectives.simulator import Scenario, simulate
from objectives.workload.load import OfferedLoad
from objectives.workload.workload import Workload
from spaces.plan import DeploymentPlan, Pool
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
    "dense 32B TP4, 1024/128, 64 clients": (DENSE, 32_768, 1024, 128, 64),
    "MoE 235B TP8, 32768/32, 16 clients": (MOE, 8_192, 32_768, 32, 16),
    "MoE 235B TP8, 1024/2048, 128 clients": (MOE, 4_096, 1024, 2048, 128),
    "1P+2D 32B, 1024/128, 64 clients": (SPLIT, 32_768, 1024, 128, 64),
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


def test_cost_of_a_request_does_not_grow_with_its_answer(benchmark: Any) -> None:
    world = scenario(DENSE, {"h200": 16})

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
    print(f"\n8,192 against 128 output tokens: {np.median(ratios):.2f} times the CPU seconds")
