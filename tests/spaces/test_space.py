"""The search space: every draw is legal, and counting agrees with listing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spaces.draw import RandomDraw
from spaces.errors import NothingFeasible
from spaces.feasibility import infeasible
from spaces.options import PoolOptions, SpaceOptions
from spaces.plan import DeploymentPlan
from spaces.space import SearchSpace
from spaces.unused import unused_values
from tests.spaces.worlds import site_of, space_of

Option = TypeVar("Option")

SPACES = {
    "deepseek-v3 on 32 h200": space_of(site_of("deepseek-v3", {"h200": 32}), kv=("bf16", "fp8")),
    "kimi-k3 on 64 gb200": space_of(site_of("kimi-k3", {"gb200": 64}, request=200_000)),
    "llama on two kinds": space_of(
        site_of("llama-3.3-70b", {"h100": 8, "b200": 4}), weights=("native", "fp8")
    ),
    "three pools and a store": space_of(
        site_of("deepseek-v3", {"h200": 32}),
        SpaceOptions(
            topology=("aggregated", "prefill-decode", "prefill-midfill-decode"),
            host_gb_per_chip=(0.0, 100.0),
            ssd_gb_per_chip=(0.0, 2000.0),
            fetch=("always", "when-faster"),
            layerwise=(False, True),
            prefetch=(False, True),
            swap_gb_per_chip=(0.0, 50.0),
            handoff=(None, "by-layer"),
            max_queued_requests=(None, 64),
            when_full=("try-others", "reject"),
            shared_gb=(0.0, 4000.0),
            retention=("lru", "write-through", "offload-at-turn-end", "drop-after-idle"),
            idle_limit_s=(60.0, 600.0),
            midfill_threshold_tokens=(1000, 5000),
        ),
    ),
    "attention and experts apart": space_of(
        site_of("deepseek-v3", {"h200": 48}),
        SpaceOptions(
            topology=("prefill-decode", "prefill-decode+afd", "prefill-midfill-decode+afd"),
            tensor_parallel=(1, 8),
            pipeline_parallel=(1,),
            data_parallel=(1, 8, 16),
            max_num_seqs=(32, 128),
            max_num_batched_tokens=(4096,),
            shared_gb=(2000.0,),
            retention=("write-through",),
            micro_batches=(2, 3),
        ),
    ),
    "drafts or none": space_of(site_of("deepseek-r1", {"h200": 16}), depths=(0, 1, 3)),
    "16 to 32 of one kind, all of another": space_of(
        site_of("deepseek-v3", {"h200": (16, 32), "b200": (8, 8)}),
        SpaceOptions(tensor_parallel=(4, 8), pipeline_parallel=(1,), data_parallel=(1, 2)),
    ),
    "at least 40 with attention and experts apart": space_of(
        site_of("deepseek-v3", {"h200": (40, 48)}),
        SpaceOptions(topology=("prefill-decode+afd",), tensor_parallel=(1, 8)),
    ),
    "chips without figures": space_of(
        site_of("llama-3.1-8b", {"mi455x": 100, "mi355x": 8}),
        SpaceOptions(host_gb_per_chip=(0.0, 100.0), shared_gb=(0.0, 1000.0)),
    ),
    "gpt-oss in sglang": space_of(
        site_of("gpt-oss-120b", {"h200": 8}, engine="sglang"), engines=("sglang",)
    ),
}


class EveryDraw:
    """Answers with a given list of places, and notes how many options each question had."""

    def __init__(self, places: Sequence[int]) -> None:
        self.places = places
        self.options: list[int] = []
        self.names: list[str] = []

    def ordered(self, name: str, options: Sequence[Option]) -> Option:
        asked = len(self.options)
        self.options.append(len(options))
        self.names.append(name)
        return options[self.places[asked] if asked < len(self.places) else 0]

    unordered = ordered


def every_plan(space: SearchSpace) -> Iterator[DeploymentPlan]:
    """All plans, by going through the tree of questions depth first."""
    places: list[int] = []
    while True:
        draw = EveryDraw(places)
        yield space.plan(draw)
        places = [*places, *[0] * (len(draw.options) - len(places))]
        while places and places[-1] + 1 == draw.options[len(places) - 1]:
            places.pop()
        if not places:
            return
        places[-1] += 1


@pytest.mark.parametrize("name", SPACES)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_every_draw_is_feasible_by_construction(name: str, seed: int) -> None:
    space = SPACES[name]
    plan = space.plan(RandomDraw(seed))
    refusal = infeasible(plan, space.site)
    assert refusal is None, refusal


@pytest.mark.parametrize("name", SPACES)
def test_no_name_is_asked_twice_in_one_draw(name: str) -> None:
    for seed in range(50):
        draw = EveryDraw([])
        SPACES[name].plan(draw)
        assert len(set(draw.names)) == len(draw.names), seed


CHIPS: tuple[dict[str, int | tuple[int, int]], ...] = (
    {"h200": 24},
    {"h200": 16, "b200": 8},
    {"h200": (16, 24)},
    {"h200": (9, 16), "b200": (8, 16)},
)


def test_size_is_the_number_of_different_plans() -> None:
    options = SpaceOptions(
        tensor_parallel=(4, 8),
        pipeline_parallel=(1, 2),
        data_parallel=(1, 2, 8),
        max_num_seqs=(16, 256),
        max_num_batched_tokens=(2048,),
        host_gb_per_chip=(0.0, 100.0),
    )
    for chips in CHIPS:
        space = space_of(site_of("deepseek-v3", chips), options, concurrencies=(1, 64))
        plans = [plan.point_id for plan in every_plan(space)]
        assert len(set(plans)) == len(plans) == space.size() > 100


def test_size_counts_three_pools_with_their_tiers_and_thresholds() -> None:
    options = SpaceOptions(
        topology=("aggregated", "prefill-midfill-decode"),
        tensor_parallel=(8,),
        pipeline_parallel=(1,),
        data_parallel=(1,),
        expert_parallel=(8,),
        max_num_seqs=(64,),
        max_num_batched_tokens=(2048, 8192),
        ssd_gb_per_chip=(0.0, 500.0),
        fetch=("always", "when-faster"),
        shared_gb=(0.0, 1000.0),
        retention=("lru", "write-through", "drop-after-idle"),
        midfill_threshold_tokens=(500, 5000),
    )
    space = space_of(site_of("deepseek-v3", {"h200": 40}), options, concurrencies=(4,))
    plans = [plan.point_id for plan in every_plan(space)]
    assert len(set(plans)) == len(plans) == space.size() > 50


def test_a_midfill_pool_always_has_a_store_to_find_kv_in() -> None:
    space = SPACES["three pools and a store"]
    plans = [space.plan(RandomDraw(seed)) for seed in range(200)]
    midfill = [plan for plan in plans if plan.has_midfill]
    assert len(midfill) > 30
    assert all(plan.kv.shared_gb > 0 for plan in midfill)
    assert {plan.midfill_tokens for plan in midfill} == {1000, 5000}


def test_unordered_questions_have_the_same_options_at_every_draw() -> None:
    class Noting(RandomDraw):
        asked: dict[str, tuple[object, ...]] = {}  # noqa: RUF012

        def unordered(self, name: str, options: Sequence[Option]) -> Option:
            assert self.asked.setdefault(name, tuple(options)) == tuple(options)
            return super().unordered(name, options)

    for seed in range(100):
        SPACES["llama on two kinds"].plan(Noting(seed))
    assert any("chips" in name for name in Noting.asked)


def test_pinned_dimensions_stay_pinned() -> None:
    options = SpaceOptions(
        topology=("prefill-decode",), tensor_parallel=(8,), router=("round-robin",)
    )
    space = space_of(site_of("deepseek-v3", {"h200": 32}), options)
    for seed in range(40):
        plan = space.plan(RandomDraw(seed))
        assert plan.topology == "prefill-decode"
        assert {pool.tp for pool in plan.pools} == {8}
        assert plan.router == "round-robin"


def test_the_least_number_of_chips_cannot_be_missed() -> None:
    space = SPACES["16 to 32 of one kind, all of another"]
    plans = [space.plan(RandomDraw(seed)) for seed in range(200)]
    counts = [plan.chips_by_kind for plan in plans]
    assert {count["b200"] for count in counts} == {8}
    assert min(count["h200"] for count in counts) == 16
    assert max(count["h200"] for count in counts) == 32
    assert {len(plan.pools) for plan in plans} == {2}, "one pool cannot lie on both kinds"


def test_replicas_are_narrowed_for_all_pools_or_for_one() -> None:
    options = SpaceOptions(
        tensor_parallel=(8,),
        replicas=(1, 3),
        pools={"prefill": PoolOptions(replicas=(2,)), "decode": PoolOptions(data_parallel=(1,))},
    )
    space = space_of(site_of("deepseek-v3", {"h200": 48}), options, concurrencies=(8,))
    plans = list(every_plan(space))
    assert len({plan.point_id for plan in plans}) == len(plans) == space.size()
    found = {(pool.role, pool.replicas) for plan in plans for pool in plan.pools}
    assert found == {
        ("aggregated", 1),
        ("aggregated", 3),
        ("prefill", 2),
        ("decode", 1),
        ("decode", 3),
    }
    assert all(plan.pool("decode").dp == 1 for plan in plans if len(plan.pools) == 2)


def test_batches_of_one_pool_are_its_own() -> None:
    options = SpaceOptions(
        topology=("prefill-decode",),
        max_num_seqs=(64,),
        pools={
            "prefill": PoolOptions(max_num_seqs=(4,), max_num_batched_tokens=(16384,)),
            "decode": PoolOptions(max_num_batched_tokens=(32, 64, 512)),
        },
    )
    space = space_of(site_of("deepseek-v3", {"h200": 32}), options)
    plans = [space.plan(RandomDraw(seed)) for seed in range(60)]
    assert {(p.pools[0].max_num_batched_tokens, p.pools[0].max_num_seqs) for p in plans} == {
        (16384, 4)
    }
    assert {p.pools[1].max_num_batched_tokens for p in plans} == {64, 512}, "32 hold no 64 seats"


def test_dimensions_are_what_some_plan_has() -> None:
    options = SpaceOptions(
        tensor_parallel=(3, 8),
        pipeline_parallel=(1,),
        data_parallel=(1, 64),
        max_num_seqs=(64,),
        max_num_batched_tokens=(32, 4096),
        replicas=(1, 2, 9),
        shared_gb=(0.0, 1000.0),
        retention=("lru", "write-through"),
    )
    space = space_of(site_of("deepseek-v3", {"h200": (24, 32)}), options, concurrencies=(4, 8))
    plans = list(every_plan(space))
    found = space.dimensions()
    for role in ("prefill", "decode"):
        pools = [plan.pool(role) for plan in plans if len(plan.pools) == 2]
        assert set(found[f"{role}.replicas"]) == {str(pool.replicas) for pool in pools}
        assert set(found[f"{role}.layout"]) == {pool.layout for pool in pools}
        steps = {str(pool.max_num_batched_tokens) for pool in pools}
        assert set(found[f"{role}.max_num_batched_tokens"]) == steps
    assert not any(name.startswith("aggregated") for name in found), "16 chips are too few"
    assert set(found["retention"]) == {plan.kv.retention for plan in plans}
    assert found["load"] == ["concurrency 4", "concurrency 8"]


def test_a_value_named_twice_is_one_value() -> None:
    options = SpaceOptions(tensor_parallel=(8, 8), max_num_seqs=(64,))
    once = options.model_copy(update={"tensor_parallel": (8,)})
    site = site_of("deepseek-v3", {"h200": 16})
    assert options.tensor_parallel == (8,)
    assert space_of(site, options).size() == space_of(site, once).size()


@pytest.mark.parametrize(
    ("options", "budget", "told"),
    [
        (
            SpaceOptions(tensor_parallel=(8,), expert_parallel=(5,)),
            32,
            r"vLLM spreads experts of 8 ranks over \[1, 8\], not 5.*widen space.tensor_parallel, "
            r"space.expert_parallel",
        ),
        (
            SpaceOptions(topology=("prefill-decode",)),
            8,
            r"no numbers of replicas .* at most 8 h200 \(chips of a replica: prefill 8, decode 8",
        ),
        (
            SpaceOptions(topology=("prefill-midfill-decode",)),
            32,
            r"a midfill pool needs a shared KV store",
        ),
        (
            SpaceOptions(
                topology=("aggregated",), max_num_seqs=(512,), max_num_batched_tokens=(64,)
            ),
            32,
            r"max_num_batched_tokens 64 must be at least max_num_seqs 512",
        ),
        (SpaceOptions(host_gb_per_chip=(9000.0,)), 8, r"host tier .* 9000 GB a chip"),
        (SpaceOptions(replicas=(3,), tensor_parallel=(8,)), (25, 32), r"take 25 to 32 h200"),
    ],
)
def test_an_empty_space_says_what_excludes_what(
    options: SpaceOptions, budget: int | tuple[int, int], told: str
) -> None:
    space = space_of(site_of("deepseek-v3", {"h200": budget}), options)
    with pytest.raises(NothingFeasible, match=f"(?s){told}"):
        space.size()


def test_too_little_memory_says_by_how_much() -> None:
    space = space_of(site_of("deepseek-v3", {"h100": 4}))
    with pytest.raises(NothingFeasible, match=r"nearest miss: .* GB a chip needed") as told:
        space.plan(RandomDraw(0))
    assert "experts" in str(told.value)


def test_chips_no_engine_runs_on_are_told() -> None:
    site = site_of("llama-3.1-8b", {"sn50": 16})
    with pytest.raises(NothingFeasible, match=r"vLLM does not run on sn50 \(SambaNova\)"):
        _ = space_of(site).legal


def test_an_impossible_layout_says_so() -> None:
    options = SpaceOptions(tensor_parallel=(3,))
    space = space_of(site_of("deepseek-v3", {"h200": 32}), options)
    with pytest.raises(NothingFeasible, match="no plan is legal"):
        space.size()


def test_values_in_no_legal_plan_are_told() -> None:
    options = SpaceOptions(
        tensor_parallel=(3, 8),
        pools={"decode": PoolOptions(tensor_parallel=(4, 6), data_parallel=(2, 4))},
    )
    space = space_of(site_of("deepseek-v3", {"h200": 32}), options)
    assert list(unused_values(space)) == [
        "no legal plan has space.tensor_parallel 3",
        "no legal plan has space.pools.decode.tensor_parallel 6",
    ]


def test_host_tier_and_swap_space_share_the_host_memory_of_a_chip() -> None:
    """Sizes that together exceed it are not offered, each alone is."""
    site = site_of("deepseek-v3", {"h200": 16})
    whole = site.chips["h200"].offload_gb
    options = SpaceOptions(
        tensor_parallel=(8,),
        max_num_seqs=(64,),
        max_num_batched_tokens=(8192,),
        host_gb_per_chip=(0.0, 0.7 * whole),
        swap_gb_per_chip=(0.0, 0.6 * whole),
    )
    found = {
        (plan.kv.host_gb_per_chip, plan.kv.swap_gb_per_chip)
        for plan in every_plan(space_of(site, options))
    }
    assert found == {(0.0, 0.0), (0.7 * whole, 0.0), (0.0, 0.6 * whole)}


def test_only_a_bounded_queue_is_asked_what_happens_when_it_is_full() -> None:
    options = SpaceOptions(
        max_num_seqs=(64,), max_queued_requests=(None, 8), when_full=("reject",)
    )
    space = space_of(site_of("gpt-oss-120b", {"h200": 2}), options)
    found = {(plan.max_queued_requests, plan.when_full) for plan in every_plan(space)}
    assert found == {(None, None), (8, "reject")}
