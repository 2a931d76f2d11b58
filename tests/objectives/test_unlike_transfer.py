"""KV between pools of unlike engines, formats and chips: what it takes beside the link."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from objectives.assess import assess
from objectives.cost import conversion_s_per_byte, kv_bytes_per_request, staging_s_per_byte
from objectives.cost.machine import machine_of
from objectives.deployment import copy_s_per_byte, scenario_of
from objectives.simulator import KvOnLink, PoolSetup, Scenario, SimulationResult, simulate
from objectives.workload import SyntheticSpec, generate
from objectives.workload.load import OfferedLoad
from spaces import catalog
from spaces.feasibility import infeasible
from spaces.plan import DeploymentPlan, Load
from spaces.precision import KvDtype
from tests.objectives.simulator.worlds import constant_step, workload_of
from tests.spaces.worlds import unlike_site

SITE = unlike_site({"h200": 8, "sn50": 16, "tpu-v6e": 16}, "vllm", "sambanova")
SN50 = catalog.chip("sn50")


def plan(decode: str = "sn50", engine: str = "sambanova", kv: KvDtype = "bf16") -> DeploymentPlan:
    return DeploymentPlan.model_validate(
        {
            "model": "minimax-m2.5",
            "topology": "prefill-decode",
            "pools": [
                {"role": "prefill", "chip": "h200", "tp": 4},
                {"role": "decode", "chip": decode, "tp": 8, "ep": 8}
                | {"engine": engine, "kv_dtype": kv},
            ],
            "load": {"concurrency": 1},
        }
    )


def copies(of: DeploymentPlan) -> tuple[float, float]:
    first, second = (copy_s_per_byte(of, pool, SITE) for pool in of.pools)
    return first, second


def test_like_pools_copy_nothing() -> None:
    assert copies(plan("h200", "vllm")) == (0.0, 0.0)


def test_a_conversion_reads_what_comes_and_writes_what_is_kept() -> None:
    pool, machine = plan().pool("decode"), machine_of(SN50, "sambanova")
    rate = 8 * machine.stream_bytes_per_s
    for kept, ratio in (("bf16", 1.0), ("fp8", 0.5)):
        seconds = conversion_s_per_byte(pool, machine, "bf16", kept)  # type: ignore[arg-type]
        assert seconds == pytest.approx((1 + ratio) / rate)
    assert conversion_s_per_byte(pool, machine, "fp8", "bf16") == pytest.approx(3 / rate)


def test_staging_goes_over_every_chips_own_link_to_its_host() -> None:
    pool = plan().pool("decode")
    one_chip = pool.model_copy(update={"tp": 1})
    assert staging_s_per_byte(pool, SN50) == pytest.approx(staging_s_per_byte(one_chip, SN50) / 8)


def test_rdus_stage_and_convert_what_gpus_send_as_it_is() -> None:
    sent, taken = copies(plan())
    pool, machine = plan().pool("decode"), machine_of(SN50, "sambanova")
    assert sent == 0.0
    assert taken == pytest.approx(
        staging_s_per_byte(pool, SN50) + conversion_s_per_byte(pool, machine, "bf16", "bf16")
    )
    assert copies(plan(kv="fp8"))[1] < taken


def test_tpus_stage_in_host_memory_and_keep_vllms_format() -> None:
    of = plan("tpu-v6e", "vllm")
    assert copies(of) == (0.0, staging_s_per_byte(of.pool("decode"), catalog.chip("tpu-v6e")))


@pytest.mark.parametrize("figure", ["hbm_gb_per_s", "host_link_gb_per_s"])
def test_more_bandwidth_never_makes_copying_slower(figure: str) -> None:
    seconds = []
    for factor in (1.0, 2.0, 4.0):
        fact = SN50.known(figure) * factor
        better = SN50.model_copy(
            update={figure: SN50.facts()[figure].model_copy(update={"value": fact})}
        )
        site = replace(SITE, chips={**SITE.chips, "sn50": better})
        seconds.append(copy_s_per_byte(plan(), plan().pool("decode"), site))
    assert seconds[0] > seconds[1] > seconds[2]


def test_unlike_decode_pools_leave_nothing_in_the_store() -> None:
    assert [pool.stores_answers for pool in scenario_of(plan(), SITE).pools] == [True, False]
    like = scenario_of(plan("h200", "vllm"), SITE)
    assert [pool.stores_answers for pool in like.pools] == [True, True]


def test_the_transfer_of_a_lone_request_is_link_and_copy_one_after_the_other() -> None:
    spec = SyntheticSpec(requests=4, input_tokens=4096, output_tokens=16)
    of = plan()
    assert infeasible(of, SITE) is None
    found = assess(of, SITE, generate(spec, 1))
    scenario = scenario_of(of, SITE)
    size = kv_bytes_per_request(SITE.model, of.precision, 4096)
    link = min(pool.link_bytes_per_s for pool in scenario.pools)
    expected_s = size / link + size * copies(of)[1] + scenario.kv_on_link.latency_s
    assert found.ttft_parts_ms["transfer"] == pytest.approx(expected_s * 1e3, rel=1e-6)
    pools = {pool.role: pool for pool in found.pools}
    assert pools["decode"].kv_copied_gb == pytest.approx(found.metrics["handed_off_gb"])
    assert pools["prefill"].kv_copied_gb == 0.0


def handed_over(out_s: float, in_s: float, clients: int = 1) -> SimulationResult:
    """Prompts of 1,000 tokens of 1 MB over links of 1 GB/s, copied on either side."""
    pools = tuple(
        PoolSetup(
            role=role,  # type: ignore[arg-type]
            replicas=1,
            ranks=1,
            seats=8,
            step_tokens=100_000,
            alternating=False,
            kv_blocks=10_000,
            request_blocks=0,
            costs=constant_step(0.01, 8),
            link_bytes_per_s=1e9,
            copy_s_per_byte=copy_s,
        )
        for role, copy_s in (("prefill", out_s), ("decode", in_s))
    )
    workload = workload_of([0.0] * 8, [1000] * 8, [4] * 8)
    scenario = Scenario(pools, kv_on_link=KvOnLink(token_bytes=1e6))
    return simulate(scenario, workload, OfferedLoad(np.zeros(8), clients))


@pytest.mark.parametrize(("out_s", "in_s"), [(0.0, 0.0), (1e-9, 0.0), (0.0, 2e-9), (1e-9, 2e-9)])
def test_parts_of_a_transfer_follow_one_another(out_s: float, in_s: float) -> None:
    result = handed_over(out_s, in_s)
    np.testing.assert_allclose(result.requests.transfer_s, 1.0 + 1e9 * (out_s + in_s), rtol=1e-9)
    moved = [pool.copied_bytes for pool in result.pools]
    assert moved == [result.handed_off_bytes * (s > 0) for s in (out_s, in_s)]


def test_transfers_of_a_rank_share_its_memory() -> None:
    alone, together = handed_over(0.0, 1e-8), handed_over(0.0, 1e-8, clients=4)
    copying_s = alone.requests.transfer_s[0] - 1.0
    assert together.requests.transfer_s.max() > 2 * copying_s
    assert together.pools[1].copy_utilization > alone.pools[1].copy_utilization
    assert load_free(together) == load_free(alone)


def load_free(result: SimulationResult) -> float:
    """Bytes copied, which no load changes."""
    return result.pools[1].copied_bytes


def test_a_plan_at_a_load_needs_no_figure_that_nobody_knows() -> None:
    assert infeasible(plan().at(Load(concurrency=4)), SITE) is None
