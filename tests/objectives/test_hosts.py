"""A deployment whose hosts are too few is bound by them, and says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from objectives.assess import Assessment, assess
from objectives.cost import power_kw, required_usd_per_hour, usd_per_hour
from objectives.deployment import scenario_of
from objectives.workload import Workload
from objectives.workload.presets import workload_of
from spaces import catalog
from spaces.errors import InputError
from spaces.plan import DeploymentPlan, Hosts, Load, Pool
from tests.spaces.worlds import site_of

XEON = catalog.host("xeon6-6980p")
SMALL = XEON.model_copy(
    update={"name": "small", "cores": XEON.cores.model_copy(update={"value": 6})}
)
SITE = replace(
    site_of("qwen3-32b", {"h200": 8}, request=60_000),
    hosts={"xeon6-6980p": XEON, "small": SMALL},
    tools_on_hosts=True,
)


def plan(hosts: Hosts | None) -> DeploymentPlan:
    return DeploymentPlan(
        model="qwen3-32b",
        topology="aggregated",
        pools=(Pool(role="aggregated", chip="h200", replicas=2, tp=4),),
        load=Load(concurrency=16),
        hosts=hosts,
    )


def agents() -> Workload:
    """Short sessions of tools alone, whose calls take long."""
    sessions = workload_of("midfill-fast", 400, 1, {}, 0.05)
    return replace(sessions, gap_s=sessions.gap_s * 10, tool_share=1.0)


@pytest.fixture(scope="module")
def found() -> dict[str, Assessment]:
    workload = agents()
    return {
        kind: assess(plan(Hosts(kind=kind, count=1)), SITE, workload, explain=True)
        for kind in ("small", "xeon6-6980p")
    }


def test_too_few_cores_bind_and_enough_do_not(found: dict[str, Assessment]) -> None:
    few, enough = found["small"], found["xeon6-6980p"]
    assert str(few.binding) == "host (cores for tools)"
    assert enough.binding is not None and enough.binding.resource != "host"
    assert few.metrics["tool_core_utilization"] > 0.9
    assert few.metrics["tool_wait_mean_ms"] > 100 * enough.metrics["tool_wait_mean_ms"]
    assert few.metrics["requests_per_s"] < enough.metrics["requests_per_s"]


def test_a_tool_that_waits_delays_the_next_turn_and_not_its_first_token(
    found: dict[str, Assessment],
) -> None:
    few, enough = found["small"], found["xeon6-6980p"]
    assert few.metrics["ttft_p50_ms"] <= 1.2 * enough.metrics["ttft_p50_ms"]


def test_hosts_are_left_out_where_none_are_planned_and_tools_run_elsewhere() -> None:
    elsewhere = replace(SITE, tools_on_hosts=False)
    assert scenario_of(plan(None), elsewhere).hosts is None
    planned = scenario_of(plan(Hosts(kind="small", count=2)), elsewhere).hosts
    assert planned is not None and (planned.front_end_cores, planned.tool_cores) == (2, 0)


def test_hosts_draw_power_and_cost_what_they_are_said_to() -> None:
    without, beside = plan(None), plan(Hosts(kind="xeon6-6980p", count=4))
    power = [power_kw(one, SITE.chips, SITE.hosts) for one in (without, beside)]
    assert power[0] is not None and XEON.tdp_w is not None
    assert power[1] == pytest.approx(power[0] + 4 * XEON.tdp_w.value / 1e3)
    assert usd_per_hour(beside, SITE.chips, {"h200": 2.0}) is None
    assert usd_per_hour(beside, SITE.chips, {"h200": 2.0, "xeon6-6980p": 1.5}) == 8 * 2 + 4 * 1.5
    with pytest.raises(InputError, match="xeon6-6980p"):
        required_usd_per_hour(beside, SITE.chips)
