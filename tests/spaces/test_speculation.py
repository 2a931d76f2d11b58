"""Drafts in plans: what is refused, what a draft layer takes, and the catalogue's figures."""

from __future__ import annotations

import pytest

from spaces import catalog
from spaces.documents import validated
from spaces.errors import InputError
from spaces.feasibility import infeasible
from spaces.memory import hbm_ledger
from spaces.model import DraftHead, GqaAttention
from spaces.model.drafts import acceptance_rates
from spaces.plan import DeploymentPlan, EngineName
from spaces.speculation import (
    Speculation,
    acceptance_rates_of,
    draft_layer,
    joining_parameters,
    served_model,
    speculation_conflict,
)
from tests.spaces.worlds import plan_of, site_of


def drafting(depth: int, engine: EngineName = "vllm", **pool: int) -> DeploymentPlan:
    layout = {"tp": 8, "max_num_seqs": 64, "max_num_batched_tokens": 4096} | pool
    plan = plan_of("deepseek-r1", "h200", engine, **layout)
    return plan.model_copy(update={"speculation": Speculation(depth=depth)})


def refusal(plan: DeploymentPlan) -> str:
    found = infeasible(plan, site_of(plan.model, {"h200": 32}, engine=plan.engine))
    return "" if found is None else f"{found.rule}: {found.reason}"


def test_a_plan_may_draft_as_deep_as_acceptance_is_known() -> None:
    assert refusal(drafting(3)) == ""
    assert "known up to depth 3, not at 4" in refusal(drafting(4))


def test_a_model_without_a_draft_head_cannot_speculate() -> None:
    plan = plan_of("llama-3.3-70b", "h200", tp=8)
    plan = plan.model_copy(update={"speculation": Speculation(depth=1)})
    assert "llama-3.3-70b has no draft head" in refusal(plan)


def test_an_unknown_head_is_met_with_the_nearest() -> None:
    conflict = speculation_conflict(
        catalog.model("deepseek-v4-pro"), Speculation(depth=1, acceptance="mtp-dirct")
    )
    assert "did you mean mtp-direct" in conflict


def test_drafts_and_pipeline_stages_exclude_each_other() -> None:
    assert "pipeline stages" in refusal(drafting(1, pp=2))


def test_an_engine_must_run_the_kind_of_head() -> None:
    site = site_of("deepseek-r1", {"h200": 8})
    engine = site.engines["vllm"].model_copy(update={"speculation": ()})
    plan, site = (
        drafting(1),
        site.__class__(
            **{name: getattr(site, name) for name in site.__slots__}
            | {"engines": {"vllm": engine}}
        ),
    )
    found = infeasible(plan, site)
    assert found is not None
    assert found.rule == "speculation"


def test_a_step_has_room_for_the_drafts_of_every_request() -> None:
    assert refusal(drafting(3, max_num_batched_tokens=256)) == ""
    assert "x (1 + drafts) 256" in refusal(drafting(3, max_num_batched_tokens=255))


def test_depth_zero_is_no_speculation() -> None:
    plan = plan_of("deepseek-r1", "h200", tp=8)
    data = plan.model_dump(mode="json") | {"speculation": {"depth": 0}}
    assert validated(DeploymentPlan, data, "plan.yaml") == plan


@pytest.mark.parametrize(
    ("acceptance", "rule"),
    [
        ([0.5, 0.6], "after those before it"),
        ([1.5, 1], "after those before it"),
        ([0.9], "as many acceptance rates"),
        ([], "a list of rates"),
        (["mtp", 0.5], "a list of rates"),
        (0.5, "a list of rates"),
    ],
)
def test_rates_that_cannot_be_are_refused(acceptance: object, rule: str) -> None:
    with pytest.raises(InputError, match=rule):
        validated(Speculation, {"depth": 2, "acceptance": acceptance}, "plan.yaml")


def test_rates_are_the_steps_of_the_mean_lengths() -> None:
    assert acceptance_rates((1.5, 1.75)) == pytest.approx((0.5, 0.25))
    model = catalog.model("deepseek-v4-pro")
    assert 1 + sum(acceptance_rates_of(model, Speculation(depth=3))) == pytest.approx(2.49)
    own = Speculation(depth=2, acceptance=(0.6, 0.3, 0.1))
    assert acceptance_rates_of(model, own) == (0.6, 0.3)


@pytest.mark.parametrize("name", catalog.model_names())
def test_every_draft_head_of_the_catalogue_has_a_layer_and_falling_rates(name: str) -> None:
    model = catalog.model(name)
    for head in model.drafts:
        attention, ffn = draft_layer(model, head)
        assert attention.layers == ffn.layers == 1
        assert head.source
        assert attention.parameters_per_layer(model.hidden_size) > 0


def test_the_draft_layer_of_deepseek_has_the_published_size() -> None:
    """11.6 B parameters without copies of embedding and LM head (config shapes)."""
    model = catalog.model("deepseek-v3")
    served = served_model(model, Speculation(depth=1))
    own = served.total_parameters - model.total_parameters
    own += joining_parameters(model, model.drafts[0])
    assert own / 1e9 == pytest.approx(11.61, rel=0.002)


def test_a_draft_layer_takes_memory_and_one_more_layer_of_kv() -> None:
    site, chip = site_of("deepseek-r1", {"h200": 8}), catalog.chip("h200")
    with_drafts, without = drafting(1), plan_of("deepseek-r1", "h200", tp=8)
    ledgers = [hbm_ledger(site.model, chip, p.pools[0], p) for p in (with_drafts, without)]
    assert ledgers[0].kv_bytes_per_token / ledgers[1].kv_bytes_per_token == pytest.approx(62 / 61)
    assert 1.4e9 < ledgers[0].weight_bytes - ledgers[1].weight_bytes < 1.8e9


def test_a_separate_head_has_shapes_and_words_of_its_own() -> None:
    model = catalog.model("llama-3.3-70b")
    head = DraftHead(
        name="eagle3",
        method="eagle3",
        attention=GqaAttention(layers=1, heads=64, kv_heads=8, head_dim=128),
        joined_inputs=3,
        vocab_size=32000,
        source="made up",
    )
    attention, ffn = draft_layer(model, head)
    assert attention.heads == 64
    assert ffn.kind == "dense"
    assert joining_parameters(model, head) == 3 * 8192**2 + 32000 * 8192
