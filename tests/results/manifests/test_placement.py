"""Replicas get devices of their own, on nodes of the right chip."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from results.manifests.placement import equal_shares, place, shares_per_node
from spaces.chip import ChipSpec
from spaces.errors import InputError
from spaces.model import ModelSpec
from spaces.plan import DeploymentPlan, Pool

MakeChip = Callable[..., ChipSpec]
Case = tuple[DeploymentPlan, ModelSpec, dict[str, ChipSpec]]


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_every_chip_of_the_plan_is_one_device_and_none_is_used_twice(
    data: st.DataObject, legal_cases: st.SearchStrategy[Case]
) -> None:
    plan, _, chips = data.draw(legal_cases)
    placement = place(plan, chips)
    devices = [
        (piece.node, device)
        for replica in placement.replicas
        for piece in replica.slices
        for device in piece.devices
    ]
    assert len(devices) == plan.chips
    assert len(set(devices)) == len(devices)
    for replica in placement.replicas:
        nodes = [piece.node for piece in replica.slices]
        assert len(set(nodes)) == len(nodes)
        assert {placement.node_chips[node] for node in nodes} == {replica.pool.chip}
        size = chips[replica.pool.chip].node_size
        assert all(0 <= d < size for piece in replica.slices for d in piece.devices)


@given(
    tp=st.sampled_from([1, 2, 3, 5, 8, 12, 16]),
    pp=st.sampled_from([1, 2, 3]),
    dp=st.integers(1, 20),
    node=st.sampled_from([1, 2, 4, 8]),
)
def test_shares_hold_whole_ranks_or_equal_parts_of_a_rank(
    tp: int, pp: int, dp: int, node: int
) -> None:
    pool = Pool(role="decode", chip="b200", tp=tp, pp=pp, dp=dp)
    for shares in (shares_per_node(pool, node), equal_shares(pool, node)):
        assert sum(shares) == pool.chips_per_replica
        assert max(shares) <= node
        if tp * pp > node:
            assert len(set(shares)) == 1 and len(shares) % dp == 0
        elif len(shares) > 1:
            assert all(share % (tp * pp) == 0 for share in shares)
    assert len(set(equal_shares(pool, node))) == 1


def test_small_replicas_fill_what_large_ones_leave_free(make_chip: MakeChip) -> None:
    plan = DeploymentPlan(
        model="toy",
        topology="prefill-decode",
        pools=(
            Pool(role="prefill", chip="b200", replicas=2, tp=2),
            Pool(role="decode", chip="b200", replicas=2, tp=6),
        ),
    )
    placement = place(plan, {"b200": make_chip("b200")})
    assert len(placement.node_chips) == 2
    assert [replica.name for replica in placement.replicas] == [
        "prefill-0",
        "prefill-1",
        "decode-0",
        "decode-1",
    ]
    assert placement.replicas[0].slices[0].devices == (6, 7)


def test_an_unknown_chip_is_refused_with_the_nearest_names(make_chip: MakeChip) -> None:
    plan = DeploymentPlan(
        model="toy", topology="aggregated", pools=(Pool(role="aggregated", chip="b20"),)
    )
    with pytest.raises(InputError, match="did you mean b200"):
        place(plan, {"b200": make_chip("b200")})
