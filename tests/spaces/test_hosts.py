"""Hosts of a plan: whose cores there are, and for what."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spaces import catalog
from spaces.draw import RandomDraw
from spaces.enumeration import enumerated
from spaces.errors import InputError
from spaces.feasibility import hosts_suffice
from spaces.hosts import host_cores
from spaces.options import SpaceOptions
from spaces.plan import DeploymentPlan, Hosts, Pool
from spaces.site import Site
from tests.spaces.worlds import site_of, space_of

XEON = "xeon6-6980p"


def agents(chips: dict[str, int]) -> Site:
    """A site of a workload whose tools run on hosts."""
    cores = {kind: catalog.cores_per_chip(kind) for kind in chips}
    return replace(
        site_of("minimax-m2.5", chips),
        hosts={XEON: catalog.host(XEON)},
        cores_per_chip={kind: count for kind, count in cores.items() if count is not None},
        tools_on_hosts=True,
    )


def plan_on(chip: str, hosts: Hosts | None = None, **pool: int) -> DeploymentPlan:
    return DeploymentPlan(
        model="minimax-m2.5",
        topology="aggregated",
        pools=(Pool(role="aggregated", chip=chip, **pool),),
        hosts=hosts,
    )


def test_chips_sit_with_the_hosts_of_their_systems() -> None:
    assert catalog.cores_per_chip("gb200") == 2 * 72 / 4
    assert catalog.cores_per_chip("h200") == 2 * 64 / 8  # the smallest of the kinds
    assert catalog.cores_per_chip("sn50") is None


def test_the_chips_hosts_serve_the_engines_first() -> None:
    cores = host_cores(plan_on("h200", replicas=1, tp=4, dp=2), agents({"h200": 8}))
    workers, schedulers, front_end = 8, 2, 2
    assert cores.front_end == front_end
    assert cores.tools == 8 * 16 - workers - schedulers - front_end


def test_hosts_of_the_plans_own_serve_tools_and_the_front_end_alone() -> None:
    plan = plan_on("h200", Hosts(kind=XEON, count=2), replicas=2, tp=4)
    cores = host_cores(plan, agents({"h200": 8}))
    assert (cores.front_end, cores.tools) == (2, 2 * 128 - 2)


def test_tools_without_a_core_are_refused_with_the_reason() -> None:
    site = agents({"sn50": 16})
    refusal = hosts_suffice(plan_on("sn50", tp=8), site)
    assert refusal is not None and "those of sn50 are not known" in refusal.reason
    assert hosts_suffice(plan_on("sn50", Hosts(kind=XEON, count=1), tp=8), site) is None
    assert hosts_suffice(plan_on("sn50", tp=8), replace(site, tools_on_hosts=False)) is None


def test_an_unknown_kind_of_host_is_refused() -> None:
    refusal = hosts_suffice(plan_on("h200", Hosts(kind="z80", count=1)), agents({"h200": 8}))
    assert refusal is not None and "z80" in refusal.reason


def test_hosts_are_a_dimension_of_the_space() -> None:
    options = SpaceOptions(
        topology=("aggregated",),
        tensor_parallel=(4,),
        pipeline_parallel=(1,),
        data_parallel=(1,),
        host_kind=(XEON,),
        host_count=(0, 2, 1),
    )
    space = space_of(agents({"h200": 8}), options)
    assert options.hosts == (None, Hosts(kind=XEON, count=1), Hosts(kind=XEON, count=2))
    assert {str(space.plan(RandomDraw(seed)).hosts) for seed in range(30)} == {
        "None",
        f"1x {XEON}",
        f"2x {XEON}",
    }
    tables = enumerated(space)
    assert sum(map(len, tables)) == space.size()
    plan = tables[0].plan(len(tables[0]) - 1)
    assert tables[0].number_of(plan) == len(tables[0]) - 1


@pytest.mark.parametrize("options", [{"host_count": 2}, {"host_kind": XEON}])
def test_a_count_and_a_kind_go_together(options: dict[str, object]) -> None:
    with pytest.raises((InputError, ValueError), match="go together"):
        SpaceOptions.model_validate(options)
