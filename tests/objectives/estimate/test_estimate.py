"""The estimate of a steady state against the simulator, the step costs and Little's law."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pytest

from objectives.assess import assess
from objectives.cost import RankBatch, step_seconds
from objectives.deployment import pool_costs
from objectives.estimate import demand_of, estimated, not_estimated
from objectives.estimate.tables import pool_tables, running_grid
from objectives.metrics import METRICS, pool_metric
from objectives.slo import Slo
from objectives.workload import SyntheticSpec, Workload, generate, presets
from spaces.enumeration import enumerated
from spaces.options import PoolOptions, SpaceOptions
from spaces.plan import TOPOLOGY_ROLES, EngineName, Load, Role, Topology
from spaces.space import SearchSpace
from spaces.speculation import Speculation
from tests.spaces.worlds import plan_of, site_of, space_of

Values = npt.NDArray[np.float64]
PLANS = 24  # of each branch, simulated
NAMES = (
    "tpot_mean_ms",
    "output_tokens_per_s_per_chip",
    "ttft_p50_ms",
    "joules_per_output_token",
)


def workload_of(requests: int = 240, **keys: Any) -> Workload:
    spec = {
        "requests": requests,
        "input_tokens": {"lognormal": {"mean": 1500, "cv": 0.8}, "max": 8000},
        "output_tokens": {"lognormal": {"mean": 250, "cv": 0.6}, "max": 1500},
    }
    return generate(SyntheticSpec.model_validate(spec | keys), seed=1)


def small_space(
    model: str,
    chips: dict[str, int],
    engine: EngineName = "vllm",
    depths: tuple[int, ...] = (0,),
    **options: Any,
) -> SearchSpace:
    return space_of(
        site_of(model, chips, request=10_000, engine=engine),
        SpaceOptions(max_num_seqs=(16, 128), max_num_batched_tokens=(2048, 8192), **options),
        engines=(engine,),
        concurrencies=(1, 4, 12, 32),
        depths=depths,
    )


SPACES = {
    "dense": small_space("llama-3.1-8b", {"h100": 4}),
    "experts": small_space("qwen3-235b-a22b", {"h200": 16}, pipeline_parallel=1),
    "alternating": small_space("qwen3-32b", {"h200": 8}, engine="sglang"),
}


@cache
def compared(name: str) -> dict[str, dict[str, tuple[Values, Values]]]:
    """Of some plans of each topology: estimated and simulated values by metric."""
    space, workload = SPACES[name], workload_of()
    found: dict[str, dict[str, tuple[Values, Values]]] = {}
    chance = np.random.default_rng(1)
    for table in enumerated(space):
        numbers = chance.choice(len(table), min(PLANS, len(table)), replace=False)
        names = (*NAMES, *of_pools(table.branch.roles))
        guess = estimated(table, space.site, demand_of(workload), names)
        told = [assess(table.plan(int(n)), space.site, workload).metrics for n in numbers]
        found[table.branch.topology] = {
            metric: (guess[metric][numbers], np.array([one[metric] for one in told]))
            for metric in names
        }
    return found


def of_pools(roles: Sequence[Role]) -> list[str]:
    """What is estimated of pools: how busy each is, and the batch of the last."""
    busy = [pool_metric(role, "utilization") for role in roles]
    return [*busy, pool_metric(roles[-1], "batch_mean")]


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("topology", ("aggregated", "prefill-decode"))
def test_the_estimate_is_near_the_simulation(name: str, topology: str) -> None:
    """Half of the plans are within a few percent, and nine of ten within a fifth."""
    by_metric = compared(name)[topology]
    for metric, (half, most) in {
        "tpot_mean_ms": (0.04, 0.2),
        "output_tokens_per_s_per_chip": (0.05, 0.2),
        "ttft_p50_ms": (0.35, 1.2),
        "joules_per_output_token": (0.05, 0.2),
    }.items():
        guess, told = by_metric[metric]
        off = np.abs(np.log(guess / told))
        assert np.median(off) < half, (metric, np.median(off))
        assert np.quantile(off, 0.9) < most, (metric, np.quantile(off, 0.9))


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("topology", ("aggregated", "prefill-decode"))
def test_what_is_in_the_pools_is_near_the_simulation(name: str, topology: Topology) -> None:
    """Of requests without pauses; decode pools within a few percent, prefill pools roughly."""
    by_metric = compared(name)[topology]
    for metric in of_pools(TOPOLOGY_ROLES[topology]):
        guess, told = by_metric[metric]
        off = np.abs(np.log(guess / told))
        half, most = (0.35, 1.0) if metric == "prefill_utilization" else (0.1, 0.5)
        assert np.median(off) < half, (metric, np.median(off))
        assert np.quantile(off, 0.9) < most, (metric, np.quantile(off, 0.9))


def test_a_pool_is_as_busy_as_its_users_keep_it() -> None:
    """One user keeps a quarter of four replicas busy, and four keep all of them."""
    space = small_space(
        "llama-3.1-8b", {"h100": 4}, topology="aggregated", replicas=4, tensor_parallel=1
    )
    (found,) = everything(space, workload_of(), "aggregated_utilization")
    busy = found["aggregated_utilization"].reshape(-1, len(space.loads))
    assert busy[:, 0] == pytest.approx(0.25, rel=0.05)
    assert busy[:, 1] == pytest.approx(1.0, rel=0.05)
    assert (np.diff(busy, axis=1) >= -1e-9).all()


def test_ranks_in_lock_step_compute_prompts_that_come_together_in_the_same_steps() -> None:
    """Answers of one length keep users in step: taken as coming by chance, the prompts of eight
    ranks would hold one another up for up to twice the time."""
    space = small_space(
        "qwen3-235b-a22b", {"h200": 16}, data_parallel=8, pipeline_parallel=1, replicas=1
    )
    workload = workload_of(96, input_tokens=4000, output_tokens=1000)
    table = next(t for t in enumerated(space) if t.branch.topology == "aggregated")
    guess = estimated(table, space.site, demand_of(workload), ("tpot_mean_ms",))["tpot_mean_ms"]
    for number in range(0, len(table), 3):
        told = assess(table.plan(number), space.site, workload).metrics["tpot_mean_ms"]
        assert guess[number] == pytest.approx(told, rel=0.12), table.plan(number)


@pytest.mark.parametrize("name", SPACES)
def test_the_estimate_ranks_plans_as_the_simulation_does(name: str) -> None:
    for by_metric in compared(name).values():
        for metric in ("tpot_mean_ms", "output_tokens_per_s_per_chip"):
            guess, told = by_metric[metric]
            one, other = (np.argsort(np.argsort(values)) for values in (guess, told))
            assert np.corrcoef(one, other)[0, 1] > 0.95, metric


@pytest.mark.parametrize(
    "pool", [{"tp": 4}, {"tp": 2, "pp": 2}, {"tp": 1, "dp": 8, "ep": 8}], ids=str
)
def test_a_tabled_token_takes_the_seconds_of_its_step(pool: dict[str, int]) -> None:
    model = "qwen3-235b-a22b" if "ep" in pool else "qwen3-32b"
    plan = plan_of(model, "h200", "vllm", **pool)
    site, demand = site_of(model, {"h200": 8}), demand_of(workload_of())
    layout, costs = plan.pools[0], pool_costs(plan, plan.pools[0], site)
    tables = pool_tables([layout], [costs], demand, [8192], 64, alternating=False)
    context = int(demand.context_tokens)
    for running in (8 * layout.pp, 32 * layout.pp):
        share = running // layout.pp // layout.dp
        batch = RankBatch(decode_contexts=(context,) * share)
        seconds = sum(step_seconds(costs, [batch] * layout.dp))
        place = tables.running.tolist().index(running)
        assert tables.decode_s[0, place] == pytest.approx(seconds, rel=1e-3)


@pytest.mark.parametrize(("engine", "release"), [("vllm", ""), ("sglang", "0.5.9")])
def test_a_prompt_alone_takes_the_seconds_of_its_chunks(engine: EngineName, release: str) -> None:
    plan = plan_of("qwen3-32b", "h200", engine, tp=4)
    plan = plan.model_copy(update={"engine_version": release})
    site = site_of("qwen3-32b", {"h200": 8}, engine=engine)
    demand = demand_of(workload_of(input_tokens=5000))
    costs = pool_costs(plan, plan.pools[0], site)
    tables = pool_tables(plan.pools, [costs], demand, [2048], 8, alternating=False)
    chunks = [(2048, 0), (2048, 2048), (904, 4096)]
    seconds = sum(sum(step_seconds(costs, [RankBatch(chunks=(chunk,))])) for chunk in chunks)
    assert tables.chunks[0, 0, 0] == 3
    assert costs.launch_s.any() == bool(release)
    assert tables.prompt_s[0, 0, 0, 0] == pytest.approx(seconds, rel=0.01)


SPLIT = {
    "two-pools": small_space(
        "deepseek-v3", {"h200": 48}, topology="prefill-decode+afd", micro_batches=(1, 2, 3)
    ),
    "unlike-chips": small_space(
        "deepseek-v3",
        {"h200": 24, "mi355x": 16},
        topology="prefill-decode+afd",
        pools={
            "prefill": PoolOptions(chips=("h200",)),
            "decode-attention": PoolOptions(chips=("h200",)),
            "decode-experts": PoolOptions(chips=("mi355x",)),
        },
    ),
    "drafts": small_space("deepseek-v3", {"h200": 48}, depths=(1,), topology="prefill-decode+afd"),
    "three-pools": small_space(
        "deepseek-v3",
        {"h200": 64},
        topology="prefill-midfill-decode+afd",
        shared_gb=2000.0,
        retention="write-through",
        pools={"prefill": PoolOptions(chips=("h200",))},
    ),
}


@pytest.mark.parametrize("name", SPLIT)
def test_attention_and_experts_apart_are_estimated_near_the_simulation(name: str) -> None:
    """Half of the plans within 3 % in decode speed and throughput, nine of ten within 10 %."""
    space, workload = SPLIT[name], workload_of(shared_prefix_tokens=1000)
    tables = enumerated(space)
    chance = np.random.default_rng(2)
    table = tables[0]
    numbers = chance.choice(len(table), PLANS, replace=False)
    found = estimated(table, space.site, demand_of(workload), NAMES)
    told = [assess(table.plan(int(n)), space.site, workload).metrics for n in numbers]
    for metric, (half, most) in {
        "tpot_mean_ms": (0.03, 0.1),
        "output_tokens_per_s_per_chip": (0.03, 0.1),
        "ttft_p50_ms": (0.35, 1.2),
    }.items():
        guess, true = found[metric][numbers], np.array([one[metric] for one in told])
        off = np.abs(np.log(guess / true))
        assert np.median(off) < half, (metric, np.median(off))
        assert np.quantile(off, 0.9) < most, (metric, np.quantile(off, 0.9))


@pytest.mark.parametrize("depth", [0, 2])
def test_a_tabled_token_of_a_split_decode_is_that_of_its_step(depth: int) -> None:
    space = small_space("deepseek-v3", {"h200": 48}, topology="prefill-decode+afd")
    plan = enumerated(space)[0].plan(0)
    rates = (0.8, 0.6)[:depth]
    drafts = Speculation(depth=depth, acceptance=rates) if depth else None
    attention = plan.pool("decode-attention").model_copy(
        update={"dp": 8, "max_num_seqs": 64, "max_num_batched_tokens": 192}
    )
    plan = plan.model_copy(update={"pools": (attention, plan.pools[-1]), "speculation": drafts})
    costs, demand = pool_costs(plan, attention, space.site), demand_of(workload_of())
    tables = pool_tables(
        [attention], [costs], demand, [8192], 64, alternating=False, tokens_per_step=1 + sum(rates)
    )
    for running in (8, 64):
        ranks = [RankBatch(decode_contexts=(demand.context_tokens,) * (running // 8))] * 8
        (seconds,) = step_seconds(costs, ranks)
        place = tables.running.tolist().index(running)
        assert tables.decode_s[0, place] * (1 + sum(rates)) == pytest.approx(seconds, rel=1e-9)


def everything(space: SearchSpace, workload: Workload, *names: str) -> list[dict[str, Values]]:
    return [
        estimated(table, space.site, demand_of(workload), names) for table in enumerated(space)
    ]


def test_littles_law_closes() -> None:
    """Users = requests per second times the seconds of a request, queue and all."""
    workload = workload_of(requests=100_000, output_tokens={"lognormal": {"mean": 250, "cv": 0.6}})
    names = ("requests_per_s", "ttft_mean_ms", "tpot_mean_ms")
    space = SPACES["dense"]
    output_tokens = demand_of(workload).output_tokens
    users = np.array([load.concurrency for load in space.loads if load], dtype=np.float64)
    for metrics in everything(space, workload, *names):
        seconds = metrics["ttft_mean_ms"] / 1e3
        seconds = seconds + metrics["tpot_mean_ms"] / 1e3 * (output_tokens - 1)
        inside = (metrics["requests_per_s"] * seconds).reshape(-1, len(users))
        off = np.abs(inside / users - 1)
        assert np.median(off) < 0.03
        assert np.quantile(off, 0.95) < 0.2


def test_an_open_loop_serves_what_is_offered_up_to_its_capacity() -> None:
    space = small_space("llama-3.1-8b", {"h100": 4})
    rates = (0.1, 1.0, 1000.0)
    space = replace(space, loads=tuple(Load(request_rate=rate) for rate in rates))
    for metrics in everything(space, workload_of(), "requests_per_s", "ttft_p50_ms"):
        served = metrics["requests_per_s"].reshape(-1, len(rates))
        assert served[:, 0] == pytest.approx(0.1, rel=1e-3)
        assert (served[:, 2] < 1000).all()
        assert (np.diff(served, axis=1) >= -1e-9).all()


def test_prefixes_that_fit_into_the_caches_shorten_prefill() -> None:
    space = small_space("llama-3.1-8b", {"h100": 1})
    apart, shared = (
        everything(
            space, workload_of(input_tokens=4096, shared_prefix_tokens=tokens), "ttft_p50_ms"
        )
        for tokens in (0, 3072)
    )
    for one, other in zip(apart, shared, strict=True):
        assert (other["ttft_p50_ms"] < one["ttft_p50_ms"]).all()


def test_what_follows_from_chips_is_exact() -> None:
    space, workload = SPACES["dense"], workload_of()
    prices = {"h100": 3.0}
    for table in enumerated(space):
        metrics = estimated(
            table, space.site, demand_of(workload), ("chips", "usd_per_hour"), prices=prices
        )
        for number in range(0, len(table), 97):
            assert metrics["chips"][number] == table.plan(number).chips
            assert metrics["usd_per_hour"][number] == pytest.approx(3 * table.plan(number).chips)


def test_the_share_within_limits_is_a_share_and_falls_with_the_limit() -> None:
    space, workload = SPACES["dense"], workload_of()
    table = enumerated(space)[0]
    shares = [
        estimated(
            table,
            space.site,
            demand_of(workload),
            ("slo_attainment",),
            slo=Slo(ttft_ms=limit_ms, e2e_ms=60_000),
        )["slo_attainment"]
        for limit_ms in (1, 100, 1000, 1e7)
    ]
    assert (np.diff(shares, axis=0) >= -1e-12).all()
    assert (shares[0] < 0.1).all() and (shares[-1] <= 1.0).all() and shares[-1].max() == 1.0


def test_what_is_not_known_is_not_a_number() -> None:
    table = enumerated(SPACES["dense"])[0]
    metrics = estimated(
        table, SPACES["dense"].site, demand_of(workload_of()), ("hbm_gb_per_chip",)
    )
    assert np.isnan(metrics["hbm_gb_per_chip"]).all() and len(metrics["hbm_gb_per_chip"]) == len(
        table
    )


def test_three_pools_are_known() -> None:
    options = SpaceOptions(
        topology="prefill-midfill-decode",
        shared_gb=1000.0,
        retention="write-through",
        max_num_seqs=16,
        max_num_batched_tokens=8192,
    )
    space = space_of(site_of("gpt-oss-120b", {"h200": 8}), options, concurrencies=(4,))
    table = enumerated(space)[0]
    workload = workload_of(input_tokens=4096, shared_prefix_tokens=3072)
    metrics = estimated(table, space.site, demand_of(workload), NAMES)
    assert all(np.isfinite(values).all() and (values > 0).all() for values in metrics.values())


def test_the_grid_of_batches_reaches_the_most() -> None:
    assert running_grid(1).tolist() == [1]
    assert running_grid(5).tolist() == [1, 2, 3, 4, 6]
    assert running_grid(300)[-1] == 384


def test_all_kinds_of_open_loops_are_rates_of_requests() -> None:
    chat = presets.workload_of("chat", 500, seed=1)
    demand = demand_of(chat)
    recorded = demand.requests_per_s(None)
    assert demand.requests_per_s(Load(request_rate=3.0)) == 3.0
    assert demand.requests_per_s(Load(time_scale=0.5)) == pytest.approx(2 * recorded)
    turns = len(chat) / chat.sessions
    assert demand.requests_per_s(Load(session_rate=2.0)) == pytest.approx(2 * turns)


def test_every_metric_is_estimated_or_said_not_to_be() -> None:
    """In some topology: a plan has no metrics of pools that it lacks."""
    workload = workload_of(input_tokens=4096, shared_prefix_tokens=3072)
    slo = Slo(ttft_ms=1000)
    nothing = set(METRICS)
    for topology in get_args(Topology):
        options = SpaceOptions(
            topology=topology,
            shared_gb=1000.0,
            retention="write-through",
            replicas=1,
            max_num_seqs=16,
            max_num_batched_tokens=8192,
        )
        space = space_of(site_of("gpt-oss-120b", {"h200": 8}), options, concurrencies=(4,))
        table = enumerated(space)[0]
        found = estimated(table, space.site, demand_of(workload), tuple(METRICS), slo=slo)
        nothing &= {name for name, values in found.items() if np.isnan(values).all()}
    assert nothing == not_estimated(slo)
    by_class = Slo(ttft_ms=1000, promised=True)
    assert not_estimated(by_class) - not_estimated(slo) == {
        "slo_attainment",
        "slo_attainment_worst_class",
        "goodput_requests_per_s",
        "goodput_requests_per_s_per_chip",
    }
