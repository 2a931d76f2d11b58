"""Tables of all plans against plans drawn one by one."""

from __future__ import annotations

import pytest

from optimizer.proposing.draws import all_parameters
from spaces.enumeration import enumerated
from spaces.feasibility import infeasible
from spaces.options import SpaceOptions
from spaces.space import SearchSpace
from tests.spaces.test_space import SPACES
from tests.spaces.worlds import site_of, space_of

SMALL = {
    "two kinds of chips": space_of(
        site_of("llama-3.3-70b", {"h100": 8, "b200": 2}),
        SpaceOptions(max_num_seqs=(8, 64), max_num_batched_tokens=(2048, 8192)),
        weights=("native", "fp8"),
    ),
    "three pools, tiers and routers": space_of(
        site_of("gpt-oss-120b", {"h200": 4}),
        SpaceOptions(
            topology=("aggregated", "prefill-midfill-decode"),
            tensor_parallel=(1, 2),
            pipeline_parallel=1,
            data_parallel=1,
            max_num_seqs=(16, 64),
            max_num_batched_tokens=4096,
            shared_gb=(0.0, 500.0),
            retention=("lru", "write-through", "drop-after-idle"),
            idle_limit_s=(60.0, 600.0),
            midfill_threshold_tokens=(1000, 5000),
            router=("least-loaded", "prefix-affinity"),
        ),
        concurrencies=(1, 8),
    ),
}


@pytest.mark.parametrize("name", SMALL)
def test_the_tables_hold_every_plan_once(name: str) -> None:
    space = SMALL[name]
    drawn = [point_id for point_id, _ in all_parameters(space)]
    tables = enumerated(space)
    listed = [table.plan(number).point_id for table in tables for number in range(len(table))]
    assert len(listed) == len(set(listed)) == space.size()
    assert set(listed) == set(drawn)
    for table in tables:
        for number in range(len(table)):
            plan = table.plan(number)
            assert table.number_of(plan) == number
            assert all(t.number_of(plan) is None for t in tables if t is not table)


@pytest.mark.parametrize("name", SPACES)
def test_the_tables_are_as_long_as_the_space_is_large(name: str) -> None:
    space: SearchSpace = SPACES[name]
    tables = enumerated(space)
    assert sum(len(table) for table in tables) == space.size()
    for table in tables:
        last = len(table) - 1
        for number in (0, last // 3, last):
            plan = table.plan(number)
            assert infeasible(plan, space.site) is None
            assert plan.chips == table.chips[number // len(table.settings) // len(table.loads)]
