"""Plans whose decode is split into attention and expert pools: what they may be and weigh."""

from __future__ import annotations

import pytest

from results.manifests import export
from results.words import describe_plan, describe_settings
from spaces import catalog
from spaces.documents import validated
from spaces.errors import InputError
from spaces.feasibility import infeasible
from spaces.memory import hbm_ledger
from spaces.plan import DeploymentPlan, Pool
from spaces.speculation import Speculation
from tests.spaces.worlds import site_of

SITE = site_of("deepseek-v3", {"h200": 64})


def plan(**changes: object) -> DeploymentPlan:
    pools = (
        Pool(role="prefill", chip="h200", tp=8),
        Pool(role="decode-attention", chip="h200", dp=8, max_num_seqs=64),
        Pool(role="decode-experts", chip="h200", tp=16, ep=16),
    )
    whole = DeploymentPlan(model="deepseek-v3", topology="prefill-decode+afd", pools=pools)
    return whole.model_copy(update=changes)


def with_pool(role: str, **layout: int) -> DeploymentPlan:
    return plan(
        pools=tuple(
            pool.model_copy(update=layout) if pool.role == role else pool for pool in plan().pools
        )
    )


def reason(found: DeploymentPlan) -> str:
    refusal = infeasible(found, SITE)
    return "" if refusal is None else f"{refusal.rule}: {refusal.reason}"


def test_chips_of_all_pools_count_and_only_some_serve_requests() -> None:
    assert reason(plan()) == ""
    assert plan().chips == 8 + 8 + 16
    assert [pool.role for pool in plan().serving_pools] == ["prefill", "decode-attention"]
    assert (plan().ping_pong, plan(micro_batches=2).ping_pong) == (3, 2)


def test_experts_hold_their_weights_alone_and_attention_the_rest() -> None:
    model, chip = catalog.model("deepseek-v3"), catalog.chip("h200")
    ledgers = {pool.role: hbm_ledger(model, chip, pool, plan()) for pool in plan().pools}
    experts, attention = ledgers["decode-experts"], ledgers["decode-attention"]
    assert experts.weight_bytes == pytest.approx(model.routed_parameters / 16, rel=0.01)
    assert experts.kv_blocks(16) == 0
    assert attention.expert_bytes == 0
    assert attention.linear_bytes > 10e9
    assert attention.kv_blocks(16) > ledgers["prefill"].kv_blocks(16)


@pytest.mark.parametrize(
    ("role", "layout", "told"),
    [
        ("decode-attention", {"ep": 8}, "ep must be 1"),
        ("decode-experts", {"ep": 3}, "ep must divide"),
        ("decode-attention", {"pp": 2}, "no pipeline stages"),
        ("decode-experts", {"tp": 4, "ep": 4}, "memory"),
    ],
)
def test_layouts_that_cannot_be_are_refused(role: str, layout: dict[str, int], told: str) -> None:
    assert told in reason(with_pool(role, **layout))


def test_a_draft_layer_has_its_experts_with_the_others() -> None:
    """The draft layer of DeepSeek-V3 is a 62nd layer, its experts a 59th set."""
    drafting = plan(speculation=Speculation(depth=1))
    assert reason(drafting) == ""
    model, chip = catalog.model("deepseek-v3"), catalog.chip("h200")
    plain, more = (
        {pool.role: hbm_ledger(model, chip, pool, one) for pool in one.pools}
        for one in (plan(), drafting)
    )
    experts = more["decode-experts"].expert_bytes / plain["decode-experts"].expert_bytes
    assert experts == pytest.approx(59 / 58, rel=1e-6)
    assert more["decode-attention"].expert_bytes == 0
    assert more["decode-attention"].weight_bytes > plain["decode-attention"].weight_bytes


def test_a_dense_model_has_no_experts_to_set_apart() -> None:
    refusal = infeasible(plan(model="llama-3.3-70b"), site_of("llama-3.3-70b", {"h200": 64}))
    assert refusal is not None
    assert "no experts to set apart" in refusal.reason


@pytest.mark.parametrize(
    ("place", "key", "value", "rule"),
    [
        (1, "replicas", 2, "one replica of experts"),
        (2, "max_num_seqs", 64, "works for the requests"),
        (2, "dp", 2, "works for the requests"),
    ],
)
def test_what_a_file_may_not_say(place: int, key: str, value: int, rule: str) -> None:
    data = plan().model_dump(mode="json")
    data["pools"][place][key] = value
    with pytest.raises(InputError, match=rule):
        validated(DeploymentPlan, data, "plan.yaml")


def test_micro_batches_need_two_pools() -> None:
    data = plan().model_dump(mode="json") | {"topology": "prefill-decode", "micro_batches": 2}
    data["pools"] = [
        data["pools"][0],
        {"role": "decode", "chip": "h200", "dp": 8, "ep": 8},
    ]
    with pytest.raises(InputError, match="micro-batches go between"):
        validated(DeploymentPlan, data, "plan.yaml")


def test_a_plan_reads_back_and_names_its_pools() -> None:
    assert validated(DeploymentPlan, plan().model_dump(mode="json"), "plan.yaml") == plan()
    assert describe_plan(plan()) == "1x[TP8] h200 -> 1x[DP8] h200 + 1x[TEP16] h200 experts"
    assert "3 micro-batches" in describe_settings(plan())


@pytest.mark.parametrize("target", ["vllm", "dynamo"])
def test_no_target_exports_it_and_says_why(target: str) -> None:
    model, chips = catalog.model("deepseek-v3"), {"h200": catalog.chip("h200")}
    with pytest.raises(InputError, match="splits decode into attention and expert pools"):
        export(plan(), model, chips, target)
