"""Cores of the hosts: tools and the front end wait for them by known laws."""

from __future__ import annotations

import math

import numpy as np
import pytest

from objectives.simulator import HostSetup, PoolSetup, Scenario, SimulationResult, simulate
from objectives.workload.load import OfferedLoad
from objectives.workload.workload import APPEND, FIRST, USER, Workload
from tests.objectives.simulator.worlds import constant_step, workload_of

STEP_S = 1e-6
POOL = PoolSetup(
    role="aggregated",
    replicas=1,
    ranks=1,
    seats=1000,
    step_tokens=100_000,
    alternating=False,
    kv_blocks=100_000,
    request_blocks=0,
    costs=constant_step(STEP_S, 1000),
)


def with_tools(
    arrivals_s: np.ndarray, tools_s: np.ndarray, share: float = 1.0, kind: int = APPEND
) -> Workload:
    """Sessions of two turns of one token, between which a tool runs."""
    count = len(arrivals_s)
    parents = [turn - 1 if turn % 2 else -1 for turn in range(2 * count)]
    gaps_s = [float(tools_s[turn // 2]) if turn % 2 else 0.0 for turn in range(2 * count)]
    plain = workload_of(
        np.repeat(arrivals_s, 2), [1] * 2 * count, [1] * 2 * count, parents=parents, gaps_s=gaps_s
    )
    kinds = np.where(plain.parent >= 0, kind, FIRST).astype(np.int8)
    return Workload(
        **{name: getattr(plain, name) for name in plain.__slots__ if name != "kind"}
        | {"kind": kinds, "tool_share": share}
    )


def run(workload: Workload, hosts: HostSetup | None, frontend_s: float = 0.0) -> SimulationResult:
    scenario = Scenario((POOL,), hosts=hosts, frontend_s=frontend_s)
    return simulate(scenario, workload, OfferedLoad(workload.arrival_s, 0))


def tool_cores(count: int) -> HostSetup:
    """Hosts whose front end takes no time."""
    return HostSetup(front_end_cores=1, tool_cores=count)


def erlang_c(cores: int, load: float) -> float:
    """The chance that a caller waits in M/M/c at an offered load in Erlang."""
    blocked = 1.0
    for servers in range(1, cores + 1):
        blocked = load * blocked / (servers + load * blocked)
    share = load / cores
    return blocked / (1 - share * (1 - blocked))


@pytest.mark.parametrize(("cores", "share"), [(1, 0.6), (4, 0.8), (16, 0.9)])
def test_tools_wait_for_cores_as_in_m_m_c(cores: int, share: float) -> None:
    waits_s = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        count, mean_s = 8_000, 1.0
        arrivals_s = np.cumsum(rng.exponential(mean_s / (cores * share), count))
        result = run(with_tools(arrivals_s, rng.exponential(mean_s, count)), tool_cores(cores))
        waited_s = result.requests.tool_wait_s[1::2]
        waits_s.append(float(waited_s[count // 10 :].mean()))
    expected_s = erlang_c(cores, cores * share) / (cores * (1 - share))
    error_s = float(np.std(waits_s, ddof=1)) / math.sqrt(len(waits_s))
    assert abs(float(np.mean(waits_s)) - expected_s) < 4 * error_s + 0.01 * expected_s


def test_without_hosts_tools_run_elsewhere_and_nobody_waits() -> None:
    rng = np.random.default_rng(0)
    workload = with_tools(np.zeros(50), rng.uniform(1, 2, 50))
    records = run(workload, None).requests
    np.testing.assert_allclose(
        records.arrival_s[1::2], records.finish_s[::2] + workload.gap_s[1::2], rtol=1e-12
    )
    assert np.isnan(records.tool_wait_s).all()


def test_enough_cores_are_as_good_as_elsewhere_and_the_work_is_conserved() -> None:
    rng = np.random.default_rng(1)
    workload = with_tools(np.sort(rng.uniform(0, 5, 200)), rng.uniform(0.1, 1, 200))
    elsewhere, here = run(workload, None), run(workload, tool_cores(200))
    np.testing.assert_allclose(here.requests.finish_s, elsewhere.requests.finish_s, rtol=1e-12)
    assert here.hosts is not None
    worked_s = here.hosts.tool_utilization * here.hosts.tool_cores * here.makespan_s
    assert worked_s == pytest.approx(workload.tool_s.sum(), rel=1e-9)


def test_more_cores_never_end_a_run_later() -> None:
    rng = np.random.default_rng(2)
    workload = with_tools(np.zeros(300), rng.exponential(1.0, 300))
    ends_s = [run(workload, tool_cores(cores)).makespan_s for cores in (1, 2, 4, 8, 16, 64)]
    assert ends_s == sorted(ends_s, reverse=True)
    assert ends_s[0] == pytest.approx(workload.tool_s.sum(), rel=1e-3)  # one by one


def test_only_the_busy_part_of_a_pause_holds_a_core() -> None:
    tools_s = np.full(2, 10.0)
    whole, part = (
        run(with_tools(np.zeros(2), tools_s, share), tool_cores(1)).requests
        for share in (1.0, 0.3)
    )
    np.testing.assert_allclose(whole.arrival_s[1::2], [10.0, 20.0], rtol=1e-4)
    np.testing.assert_allclose(part.arrival_s[1::2], [10.0, 13.0], rtol=1e-4)


def test_a_users_pause_needs_no_core() -> None:
    records = run(with_tools(np.zeros(5), np.full(5, 1.0), kind=USER), tool_cores(1)).requests
    np.testing.assert_allclose(records.arrival_s[1::2], 1.0, rtol=1e-4)


def test_the_front_end_waits_for_its_own_cores_alone() -> None:
    workload = with_tools(np.zeros(3), np.full(3, 5.0))
    result = run(workload, HostSetup(1, 1, request_s=0.1), frontend_s=0.25)
    np.testing.assert_allclose(result.requests.frontend_s[::2], [0.25, 0.35, 0.45])
    np.testing.assert_allclose(result.requests.frontend_s[1::2], 0.25)  # tools end far apart


def test_long_prompts_take_the_front_end_longer_than_its_usual_time() -> None:
    workload = workload_of([0.0, 1.0], [1000, 100_000], [1, 1])
    hosts = HostSetup(1, 0, token_s=2e-6)
    np.testing.assert_allclose(run(workload, hosts, 0.02).requests.frontend_s, [0.02, 0.2])
