"""Prefill whose kernels the host launches one by one."""

from __future__ import annotations

import dataclasses

import pytest

from objectives.cost import RankBatch, StepCosts, step_costs, step_seconds
from objectives.cost.launches import operators_of_step
from objectives.cost.machine import machine_of
from spaces import catalog
from spaces.model.drafts import acceptance_rates
from spaces.plan import EngineName, Pool, Precision, Role
from spaces.speculation import Speculation

OLD, NEW = "0.5.9", "0.5.10"
ONE_TOKEN = [RankBatch(chunks=((1, 0),))]


def pool_of(chip: str, role: Role = "aggregated", **layout: int) -> Pool:
    sizes = {"tp": 8} | layout
    seats = {"max_num_seqs": 64, "max_num_batched_tokens": 8192}
    return Pool(role=role, chip=chip, replicas=1, **sizes, **seats)


def costs_of(
    release: str,
    chip: str = "h200",
    engine: EngineName = "sglang",
    model: str = "deepseek-v3",
    role: Role = "aggregated",
    speculation: Speculation | None = None,
    **layout: int,
) -> StepCosts:
    return step_costs(
        catalog.model(model),
        catalog.chip(chip),
        pool_of(chip, role, **layout),
        Precision(),
        engine,
        speculation,
        release,
    )


def test_a_prefill_of_one_token_takes_what_was_measured_with_and_without_a_graph() -> None:
    # sgl-project/sglang#12160: 82.6 and 23.1 ms; the graph of the second held everything.
    (eager,) = step_seconds(costs_of(OLD), ONE_TOKEN)
    (replayed,) = step_seconds(costs_of(NEW), ONE_TOKEN)
    assert eager == pytest.approx(82.6e-3, rel=0.02)
    assert replayed < 23.1e-3


def test_operators_are_counted_by_hand() -> None:
    machine = dataclasses.replace(machine_of(catalog.chip("h200"), "sglang"), model="deepseek-v3")
    # Latent attention: 5 products, 2 small kernels, the look at the context, the sum. A dense
    # layer: 2 products, the activation, the sum. Experts: router, 2 products and 3 small kernels
    # with the shared one's, the experts, the sum.
    counted = 61 * (5 + 2 + 1 + 1) + 3 * (2 + 1 + 1) + 58 * (1 + 2 + 3 + 1 + 1)
    assert operators_of_step(machine, catalog.model("deepseek-v3"), pool_of("h200")) == counted
    # On one chip nothing is summed, and both norms of a layer are kernels of their own.
    alone = operators_of_step(machine, catalog.model("deepseek-v3"), pool_of("h200", tp=1))
    assert alone == counted


def test_long_prompts_and_decode_steps_do_not_wait_for_the_host() -> None:
    old, new = costs_of(OLD), costs_of(NEW)
    decode, long = [RankBatch((1000,) * 16)], [RankBatch(chunks=((8192, 0),))]
    assert step_seconds(old, decode) == step_seconds(new, decode)
    # A graph's replay is lost in pieces (eager_s); a host that keeps ahead loses nothing.
    assert sum(step_seconds(old, long)) <= sum(step_seconds(new, long))


MTP = Speculation(depth=1, acceptance=acceptance_rates((1.8,)))


@pytest.mark.parametrize(
    "eager",
    [
        {"release": OLD},
        {"release": NEW, "tp": 1, "dp": 8},
        {"release": NEW, "tp": 4, "pp": 2},
        {"release": NEW, "role": "prefill"},
        {"release": NEW, "speculation": MTP},
        {"release": "0.5.12", "chip": "b200"},
    ],
    ids=["old", "attention-dp", "stages", "prefill-server", "drafts", "experts-of-flashinfer"],
)
def test_releases_before_piecewise_graphs_and_what_those_leave_out_are_eager(
    eager: dict[str, object],
) -> None:
    costs = costs_of(**eager)  # type: ignore[arg-type]
    assert costs.launch_s.sum() > 50e-3
    assert not costs.eager_s.any()


@pytest.mark.parametrize(
    "graphs",
    [
        {"release": NEW},
        {"release": ""},
        {"release": OLD, "engine": "vllm"},
        {"release": OLD, "chip": "mi355x"},
        {"release": "0.5.14", "chip": "b200"},
        {"release": "0.5.14", "speculation": MTP},
        {"release": "", "chip": "b200", "speculation": MTP},
    ],
    ids=["new", "unknown", "vllm", "amd", "experts-in-graph", "drafts-in-graph", "current"],
)
def test_others_lose_time_in_eager_layers_only(graphs: dict[str, object]) -> None:
    costs = costs_of(**graphs)  # type: ignore[arg-type]
    assert not costs.launch_s.any()
    assert costs.eager_s.sum() == pytest.approx(61 * 46e-6)


def test_triton_experts_and_those_of_gpt_oss_are_held_by_a_graph() -> None:
    for model in ("minimax-m2.7", "gpt-oss-120b"):
        assert not costs_of("0.5.12", "b200", model=model).launch_s.any()
        assert costs_of(OLD, "b200", model=model).launch_s.any()
