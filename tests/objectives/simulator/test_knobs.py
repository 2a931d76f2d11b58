"""Whatever can be set changes what happens: a field without its case here fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import pytest

from objectives.simulator import HostSetup, KvOnLink, PoolSetup, Scenario, SharedStore, simulate
from objectives.workload.load import OfferedLoad
from objectives.workload.workload import Workload
from spaces.plan import Role
from tests.objectives.simulator.test_determinism import digest
from tests.objectives.simulator.worlds import made_up_costs, workload_of

SPLIT: tuple[Role, ...] = ("prefill", "decode")
THREE: tuple[Role, ...] = ("prefill", "midfill", "decode")
TIGHT = {"kv_blocks": 60}  # a long prompt and little else, so that blocks are evicted
STORE = SharedStore(tokens=100_000, bytes_per_s=1e9)
LINK = KvOnLink(token_bytes=1e5)


def sessions(count: int = 24, turns: int = 4) -> Workload:
    """Sessions that go on by a block or two at a time, behind a prefix that all share."""
    rng = np.random.default_rng(7)
    chains: list[list[int]] = []
    inputs: list[int] = []
    outputs: list[int] = []
    parents: list[int] = []
    gaps_s: list[float] = []
    arrivals_s: list[float] = []
    number = 4
    for session in range(count):
        chain = [0, 1]
        for turn in range(turns):
            grown = int(rng.integers(1, 3))
            chain = [*chain, *range(number, number + grown)]
            number += grown
            chains.append(chain)
            inputs.append(64 * len(chain))
            outputs.append(int(rng.integers(64, 120)))
            parents.append(len(parents) - 1 if turn else -1)
            gaps_s.append(float(rng.exponential(0.3)) if turn else 0.0)
            arrivals_s.append(0.2 * session)
    return workload_of(arrivals_s, inputs, outputs, chains, 64, parents, gaps_s)


@dataclass(frozen=True)
class Case:
    """A knob, and the world in which turning it must show.

    `pool` and `scenario` are what the world has beside the knob, `before` and `after` its values.
    """

    before: Any
    after: Any
    roles: tuple[Role, ...] = ("aggregated",)
    pool: Mapping[str, Any] = field(default_factory=dict)
    scenario: Mapping[str, Any] = field(default_factory=dict)
    load: Mapping[str, Any] = field(default_factory=dict)


def served(
    roles: tuple[Role, ...],
    pool: Mapping[str, Any],
    scenario: Mapping[str, Any],
    load: Mapping[str, Any],
) -> str:
    """The digest of what happens to sessions there."""
    setup: dict[str, Any] = {
        "replicas": 1,
        "ranks": 1,
        "seats": 16,
        "step_tokens": 512,
        "alternating": False,
        "kv_blocks": 4000,
        "request_blocks": 0,
        "costs": made_up_costs(),
        "link_bytes_per_s": 1e10,
    } | dict(pool)
    workload = sessions()
    pools = tuple(PoolSetup(role=role, **setup) for role in roles)
    given: dict[str, Any] = {"arrival_s": workload.arrival_s, "concurrency": 0} | dict(load)
    if given["arrival_s"] is None:
        given["arrival_s"] = np.zeros(len(workload))
    around: dict[str, Any] = {"kv_on_link": LINK} | dict(scenario)
    world = Scenario(pools, **around)
    return digest(replace(simulate(world, workload, OfferedLoad(**given)), pools=()))


def tiered(name: str) -> dict[str, Any]:
    """A pool whose evicted blocks go to a tier."""
    return TIGHT | {f"{name}_tokens": 100_000, f"{name}_s_per_token": 1e-6}


POOL: dict[str, Case] = {
    "replicas": Case(1, 2),
    "ranks": Case(1, 2),
    "seats": Case(16, 2),
    "step_tokens": Case(512, 64),
    "alternating": Case(False, True),
    "kv_blocks": Case(4000, 60),
    "request_blocks": Case(0, 20, pool={"kv_blocks": 200}),
    "costs": Case(made_up_costs(), made_up_costs(scale=1.1)),
    "host_tokens": Case(0, 100_000, pool=TIGHT | {"host_s_per_token": 1e-6}),
    "host_s_per_token": Case(1e-6, 1e-4, pool=tiered("host")),
    "ssd_tokens": Case(0, 100_000, pool=TIGHT | {"ssd_s_per_token": 1e-6}),
    "ssd_s_per_token": Case(1e-6, 1e-4, pool=tiered("ssd")),
    "link_bytes_per_s": Case(1e10, 1e9, roles=SPLIT),
    "watermark_blocks": Case(0, 20, pool=TIGHT),
    "flight_requests": Case(None, 1, pool={"costs": made_up_costs(stages=2)}),
    "swap_tokens": Case(0, 4000, pool=TIGHT | {"host_s_per_token": 1e-6}),
    "admission_steps": Case(1, 30),
    "copy_s_per_byte": Case(0.0, 1e-8, roles=SPLIT),
    "stores_answers": Case(
        True, False, SPLIT, scenario={"store": STORE, "retention": "write-through"}
    ),
    "admission_together": Case(False, True, pool={"admission_steps": 50, "ranks": 2}),
}
SCENARIO: dict[str, Case] = {
    "block_tokens": Case(16, 32, pool={"kv_blocks": 100}),
    "prefix_caching": Case(True, False),
    "keep_answers": Case(True, False),
    "router": Case("round-robin", "prefix-affinity", pool={"replicas": 2}),
    "kv_on_link": Case(LINK, KvOnLink(token_bytes=2e5), roles=SPLIT),
    "frontend_s": Case(0.0, 0.01),
    "hosts": Case(None, HostSetup(front_end_cores=1, tool_cores=0, request_s=0.5)),
    "retention": Case("lru", "offload-at-turn-end", pool=tiered("host")),
    "idle_limit_s": Case(np.inf, 0.2),
    "store": Case(None, STORE, pool=TIGHT),
    "midfill_tokens": Case(0, 200, THREE, scenario={"store": STORE, "retention": "write-through"}),
    "fetch_when_faster": Case(False, True, pool=tiered("host") | {"host_s_per_token": 1e-3}),
    "layers": Case(1, 8, pool=tiered("host")),
    "prefetch": Case(
        False, True, pool=tiered("host") | {"seats": 1, "kv_blocks": 100, "host_s_per_token": 1e-4}
    ),
    "max_queued": Case(None, 1, pool={"seats": 2}),
    "try_others": Case(
        True,
        False,
        pool={"replicas": 2, "seats": 1},
        scenario={"max_queued": 1, "router": "round-robin"},
    ),
    "send_layers": Case(0, 8, roles=SPLIT),
    "acceptance": Case((0.8,), (0.5,), pool={"costs": made_up_costs(verified=2)}),
    "seed": Case(1, 2, pool={"costs": made_up_costs(verified=2)}, scenario={"acceptance": (0.7,)}),
}
LOAD: dict[str, Case] = {
    "arrival_s": Case(0.2 * np.arange(96), 0.3 * np.arange(96)),
    "concurrency": Case(2, 3, load={"arrival_s": None}),
    "measured": Case(np.ones(96, bool), np.arange(96) > 10),
    "warm_up_s": Case(0.0, 2.0),
    "horizon_s": Case(np.inf, 2.0),
    "system_idle_cap_s": Case(np.inf, 0.001, load={"concurrency": 1, "arrival_s": None}),
}
WINDOW = {"window_tokens": 128, "window_token_bytes": 1e5}
ON_LINK: dict[str, tuple[dict[str, Any], Any]] = {
    "token_bytes": ({}, 1e6),
    "window_token_bytes": (WINDOW, 1e6),
    "window_tokens": (WINDOW, 64),
    "request_bytes": ({}, 1e9),
    "latency_s": ({}, 0.01),
}
OF_STORE: dict[str, Any] = {"tokens": 640, "bytes_per_s": 1e6}


@pytest.mark.parametrize("knob", POOL)
def test_every_knob_of_a_pool_changes_what_happens(knob: str) -> None:
    case = POOL[knob]
    turned = [
        served(case.roles, dict(case.pool) | {knob: value}, case.scenario, case.load)
        for value in (case.before, case.after)
    ]
    assert turned[0] != turned[1]


@pytest.mark.parametrize("knob", SCENARIO)
def test_every_knob_of_a_deployment_changes_what_happens(knob: str) -> None:
    case = SCENARIO[knob]
    turned = [
        served(case.roles, case.pool, dict(case.scenario) | {knob: value}, case.load)
        for value in (case.before, case.after)
    ]
    assert turned[0] != turned[1]


@pytest.mark.parametrize("knob", LOAD)
def test_every_knob_of_a_load_changes_what_happens(knob: str) -> None:
    case = LOAD[knob]
    turned = [
        served(case.roles, case.pool, case.scenario, dict(case.load) | {knob: value})
        for value in (case.before, case.after)
    ]
    assert turned[0] != turned[1]


@pytest.mark.parametrize("knob", ON_LINK)
def test_every_part_of_what_moves_takes_its_time(knob: str) -> None:
    beside, value = ON_LINK[knob]
    links = [replace(LINK, **beside), replace(LINK, **(beside | {knob: value}))]
    assert len({served(SPLIT, {}, {"kv_on_link": link}, {}) for link in links}) == 2


@pytest.mark.parametrize("knob", OF_STORE)
def test_every_knob_of_the_store_changes_what_happens(knob: str) -> None:
    stores = [STORE, replace(STORE, **{knob: OF_STORE[knob]})]
    assert len({served(("aggregated",), TIGHT, {"store": store}, {}) for store in stores}) == 2


def test_no_knob_is_forgotten() -> None:
    """The roles of pools, and so which pools there are, make the topologies of the other tests."""
    assert set(POOL) == {one.name for one in fields(PoolSetup)} - {"role"}
    assert set(SCENARIO) == {one.name for one in fields(Scenario)} - {"pools"}
    assert set(LOAD) == {one.name for one in fields(OfferedLoad)}
    assert set(ON_LINK) == {one.name for one in fields(KvOnLink)}
    assert set(OF_STORE) == {one.name for one in fields(SharedStore)}
