"""Recipes of disaggregated runs: which one a row gets."""

from __future__ import annotations

from typing import Any

import pytest

from objectives.validation.published_recipes import Limits, Row, Start, published_recipes, start_of
from spaces.catalog import chip, engine, model

INFERENCEX = "random (InferenceX fixed-seq: lengths uniform in [0.8,1.0]x nominal)"
ROW: dict[str, Any] = {
    "engine": "trtllm",
    "chip": "gb200",
    "model": "deepseek-r1",
    "weights": "fp4",
    "input_tokens": 1024,
    "output_tokens": 1024,
    "prefill": "dep4",
    "decode": "4 tep8",
    "drafts": False,
    "users": 96,
}


def start(workload: str = INFERENCEX, **changes: Any) -> Start:
    return start_of(workload, Row.model_validate(ROW | changes))


def test_a_recipe_says_what_a_rank_may_hold() -> None:
    assert start() == Start(
        router="round-robin",
        stream_interval=20,
        seats=32,
        prefill=Limits(step_tokens=16384, seats=16),
    )


@pytest.mark.parametrize(
    ("change", "seats", "drafts"),
    [
        ({"users": 5}, 1, None),
        ({"users": 48, "drafts": True}, 8, 3),
        ({"prefill": "tep4"}, 128, None),
        ({"decode": "1 dep16", "users": 2150, "drafts": True}, 128, 1),
        ({"decode": "1 dep32", "users": 563, "output_tokens": 8192}, 16, None),
    ],
)
def test_the_recipe_of_the_load_counts(
    change: dict[str, Any], seats: int, drafts: int | None
) -> None:
    found = start(**change)
    assert (found.seats, found.drafts) == (seats, drafts)


def test_a_row_without_a_recipe_keeps_the_router_alone() -> None:
    alone = Start(router="round-robin", stream_interval=20)
    assert start(users=7) == alone
    assert start(chip="b300") == alone
    assert start(engine="sglang", users=7).stream_interval == 1


def test_other_benchmarks_keep_the_defaults() -> None:
    assert start("random, 150 requests") == Start()


def test_data_parallel_ranks_share_what_a_worker_may_hold() -> None:
    found = start(engine="sglang", chip="b200", prefill="dep4", decode="1 dep8")
    assert found.prefill.of_rank(4) == Limits(step_tokens=8192, seats=128)
    assert start().prefill.of_rank(4) == Limits(step_tokens=16384, seats=16)


def test_a_recipe_may_start_its_prefill_workers_with_limits_of_its_own() -> None:
    h200 = {"engine": "sglang", "chip": "h200", "weights": "fp8", "prefill": "dep8"}
    drafting = start(**h200, decode="6 dep8", drafts=True, users=2048)
    assert (drafting.seats, drafting.drafts) == (16, 2)
    assert drafting.prefill.of_rank(8) == Limits(step_tokens=8192, seats=8)
    others = start(**h200, decode="7 dep8", drafts=True, users=2048)
    assert others.prefill.of_rank(8) == Limits(step_tokens=20480, seats=64)


def test_every_family_names_what_the_catalogue_knows() -> None:
    for family in published_recipes().families:
        match = family.match
        assert engine(match.engine).name == match.engine
        assert chip(match.chip).name == match.chip
        assert model(match.model).name == match.model


def test_every_recipe_is_reached_by_its_own_row() -> None:
    """An earlier line that takes a row would make a later one dead."""
    for family in published_recipes().families:
        told = family.match.model_dump(exclude_none=True)
        for recipe in family.recipes:
            if recipe.decode is None:
                continue
            row = {
                **ROW,
                **{"prefill": "any", "users": (recipe.users or (1,))[-1]},
                **{"decode": recipe.decode, "drafts": bool(recipe.drafts)},
                **told,
            }
            assert start_of(INFERENCEX, Row.model_validate(row)).seats == recipe.seats, row
