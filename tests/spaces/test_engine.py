"""Engines: the layouts each can run, and what the catalogue says of them."""

from __future__ import annotations

import pytest

from spaces import catalog
from spaces.plan import DeploymentPlan


@pytest.mark.parametrize(
    ("name", "ranks", "choices"),
    [
        ("vllm", 8, [1, 8]),
        ("vllm", 1, [1]),
        ("atom", 8, [1, 8]),
        ("sglang", 8, [1, 2, 4, 8]),
        ("sglang", 12, [1, 2, 3, 4, 6, 12]),
        ("trtllm", 4, [1, 2, 4]),
    ],
)
def test_expert_parallel_sizes_follow_the_engines_rule(
    name: str, ranks: int, choices: list[int]
) -> None:
    assert catalog.engine(name).expert_parallel_choices(ranks) == choices


@pytest.mark.parametrize(
    ("name", "tp", "dp", "allowed"),
    [
        ("vllm", 2, 4, True),
        ("sglang", 2, 4, True),
        ("trtllm", 2, 4, False),
        ("trtllm", 1, 8, True),
        ("trtllm", 8, 1, True),
    ],
)
def test_attention_data_parallelism_follows_the_engines_rule(
    name: str, tp: int, dp: int, allowed: bool
) -> None:
    assert catalog.engine(name).allows_attention_dp(tp, dp) is allowed


def test_only_sglang_and_atom_keep_prefill_and_decode_in_steps_of_their_own() -> None:
    specs = [catalog.engine(name) for name in catalog.engine_names()]
    manners = {spec.name: spec.scheduling for spec in specs if spec.version != "unpublished"}
    assert manners == {
        "atom": "alternating",
        "sglang": "alternating",
        "trtllm": "mixed",
        "vllm": "mixed",
    }


def test_every_engine_a_plan_may_name_is_in_the_catalogue() -> None:
    annotation = DeploymentPlan.model_fields["engine"].annotation
    assert set(catalog.engine_names()) == set(annotation.__args__)  # type: ignore[union-attr]


def test_engines_of_which_nothing_is_published_are_estimates_that_cannot_be_exported() -> None:
    specs = [catalog.engine(name) for name in catalog.engine_names()]
    unpublished = [spec for spec in specs if spec.version == "unpublished"]
    assert {spec.name for spec in unpublished} == {"cerebras", "groq", "sambanova"}
    assert all(spec.status == "estimate" and not spec.exportable for spec in unpublished)


def test_only_published_engines_but_atom_can_be_exported() -> None:
    exportable = {name for name in catalog.engine_names() if catalog.engine(name).exportable}
    assert exportable == {"vllm", "sglang", "trtllm"}


def test_engines_run_on_chips_the_catalogue_has() -> None:
    vendors = {catalog.chip(name).vendor for name in catalog.chip_names()}
    for name in catalog.engine_names():
        assert set(catalog.engine(name).chip_vendors) <= vendors
