"""A plan in the simulator's numbers: costs, memory and links of each of its pools."""

from __future__ import annotations

import math
from dataclasses import replace

from objectives.calibrated import calibration_of
from objectives.cost import (
    KvLink,
    OperatorSource,
    StepCosts,
    conversion_s_per_byte,
    frontend_seconds,
    host_link,
    rank_link,
    split_step_costs,
    staging_s_per_byte,
    step_costs,
)
from objectives.cost.machine import SECONDS_PER_US, machine_of
from objectives.cost.overheads import load_overheads
from objectives.simulator import HostSetup, KvOnLink, PoolSetup, Scenario, SharedStore
from spaces.calibration import Stack
from spaces.generation import generation_of
from spaces.hosts import host_cores
from spaces.memory import hbm_ledger, tier_kv_tokens
from spaces.plan import DeploymentPlan, Pool
from spaces.sharding import kv_bytes_per_token_per_chip
from spaces.site import Site
from spaces.speculation import acceptance_rates_of, served_model


def scenario_of(plan: DeploymentPlan, site: Site, seed: int = 1) -> Scenario:
    """What the simulator needs to know of a feasible plan; `seed` is for what it draws."""
    return Scenario(
        pools=tuple(_setup(plan, pool, site) for pool in plan.serving_pools),
        block_tokens=plan.block_size,
        prefix_caching=plan.prefix_caching,
        router=plan.router,
        kv_on_link=_kv_on_link(plan, site),
        frontend_s=frontend_seconds(plan.engine, calibration_of(site).changes),
        retention=plan.kv.retention,
        idle_limit_s=plan.kv.idle_limit_s or float("inf"),
        store=_store(plan, site),
        midfill_tokens=plan.midfill_tokens,
        fetch_when_faster=plan.kv.fetch == "when-faster",
        layers=site.model.layers if plan.kv.layerwise else 1,
        prefetch=plan.kv.prefetch,
        max_queued=plan.max_queued_requests,
        try_others=plan.when_full != "reject",
        send_layers=_send_layers(plan, site),
        hosts=_hosts(plan, site),
        acceptance=acceptance_rates_of(site.model, plan.speculation) if plan.speculation else (),
        seed=seed,
    )


def slowed(scenario: Scenario, factor: float) -> Scenario:
    """The scenario with every step of every pool `factor` times as long."""
    pools = (replace(pool, costs=pool.costs.scaled(factor)) for pool in scenario.pools)
    return replace(scenario, pools=tuple(pools))


def _send_layers(plan: DeploymentPlan, site: Site) -> int:
    """In how many parts a chunk of a prompt is sent to the decode pool; 0: only at the end.

    What is staged or converted on its way goes as a whole.
    """
    if any(copy_s_per_byte(plan, pool, site) for pool in plan.serving_pools):
        return 0
    way = plan.kv.handoff or site.engines[plan.engine].handoff
    return {"after-prefill": 0, "by-chunk": 1, "by-layer": site.model.layers}[way]


def _hosts(plan: DeploymentPlan, site: Site) -> HostSetup | None:
    """Cores of the hosts, if the plan has any of its own or tools run on those of the chips."""
    if plan.hosts is None and not site.tools_on_hosts:
        return None
    cores = host_cores(plan, site)
    work = load_overheads(calibration_of(site).changes).host_work
    return HostSetup(
        front_end_cores=cores.front_end,
        tool_cores=cores.tools if site.tools_on_hosts else 0,
        request_s=work.request_us * SECONDS_PER_US,
        token_s=work.input_token_us * SECONDS_PER_US,
    )


def pool_costs(plan: DeploymentPlan, pool: Pool, site: Site, exchanges: bool = True) -> StepCosts:
    """The step costs of a replica of `pool`; of split decode, with the experts it works with.

    Without `exchanges` chips reach one another in no time. What a request costs the host in a step
    is handing out its tokens, so it comes once in the engine's `stream_interval` steps.
    """
    costs = _replica_costs(plan, pool, site, exchanges)
    interval = site.engines[plan.settings(pool).engine].stream_interval
    return costs if interval == 1 else replace(costs, request_s=costs.request_s / interval)


def _replica_costs(plan: DeploymentPlan, pool: Pool, site: Site, exchanges: bool) -> StepCosts:
    calibration, own = calibration_of(site), plan.settings(pool)
    factor = calibration.step_factor(_stack(plan, pool, site))
    if pool.role == "decode-attention":
        experts = plan.pool("decode-experts")
        return split_step_costs(
            site.model,
            (_replica(pool), site.chips[pool.chip]),
            (_replica(experts), site.chips[experts.chip]),
            own.precision,
            own.engine,
            plan.ping_pong,
            plan.speculation,
            own.engine_version,
            site.operator_costs,
            calibration.changes,
            factor,
            exchanges,
        )
    return step_costs(
        site.model,
        site.chips[pool.chip],
        _replica(pool),
        own.precision,
        own.engine,
        plan.speculation,
        own.engine_version,
        site.operator_costs,
        calibration.changes,
        factor,
        exchanges,
    )


def operator_sources(plan: DeploymentPlan, site: Site) -> dict[str, tuple[OperatorSource, ...]]:
    """By role of a pool, where the seconds of its operators are from; empty of fitted costs."""
    sources = {pool.role: pool_costs(plan, pool, site).sources for pool in plan.serving_pools}
    return {role: told for role, told in sources.items() if told}


def _stack(plan: DeploymentPlan, pool: Pool, site: Site) -> Stack:
    chip, own = site.chips[pool.chip], plan.settings(pool)
    return Stack(
        model=site.model.name,
        chip=chip.name,
        vendor=chip.vendor,
        engine=own.engine,
        weights=site.model.weights(plan.precision.weights).routed_experts,
        speculates=plan.speculation is not None,
        generation=generation_of(own.engine, own.engine_version),
    )


def _replica(pool: Pool) -> Pool:
    """One replica alone, its settings left to the plan, so that like pools share cached costs."""
    plain = dict.fromkeys(("engine", "engine_version", "kv_dtype", "hbm_fraction"))
    return pool.model_copy(update={"replicas": 1, **plain})


def _setup(plan: DeploymentPlan, pool: Pool, site: Site) -> PoolSetup:
    chip, engine = site.chips[pool.chip], site.engines[plan.settings(pool).engine]
    ledger = hbm_ledger(site.model, chip, pool, plan, site.longest_request_tokens)
    return PoolSetup(
        role="decode" if pool.role == "decode-attention" else pool.role,
        replicas=pool.replicas,
        ranks=pool.dp,
        seats=pool.max_num_seqs,
        step_tokens=pool.max_num_batched_tokens,
        alternating=engine.scheduling == "alternating",
        kv_blocks=ledger.kv_blocks(plan.block_size),
        request_blocks=ledger.request_blocks(plan.block_size),
        costs=pool_costs(plan, pool, site),
        host_tokens=tier_kv_tokens(site.model, pool, plan, plan.kv.host_gb_per_chip),
        swap_tokens=tier_kv_tokens(site.model, pool, plan, plan.kv.swap_gb_per_chip),
        host_s_per_token=_host_s_per_token(plan, pool, site),
        ssd_tokens=tier_kv_tokens(site.model, pool, plan, plan.kv.ssd_gb_per_chip),
        ssd_s_per_token=_ssd_s_per_token(plan, pool, site),
        link_bytes_per_s=link_of(plan, pool, site).bytes_per_s,
        admission_steps=engine.admission_steps if pool.takes_prompts else 1,
        admission_together=engine.admission_together,
        copy_s_per_byte=copy_s_per_byte(plan, pool, site),
        stores_answers=pool.takes_prompts or not _is_unlike(plan, pool),
    )


def copy_s_per_byte(plan: DeploymentPlan, pool: Pool, site: Site) -> float:
    """Seconds a rank copies each byte of KV it hands on, or takes over: as sent between pools.

    KV of chips that network cards do not reach is staged in host memory, and a pool that keeps it
    in another format than it comes in converts it on arrival. Zero where pools are alike.
    """
    if len(plan.serving_pools) == 1:
        return 0.0
    chip, settings = site.chips[pool.chip], plan.settings(pool)
    seconds = 0.0
    if chip.vendor in site.engines[settings.engine].staged_vendors:
        seconds += staging_s_per_byte(pool, chip)
    if not pool.takes_prompts and _is_unlike(plan, pool):
        changes = calibration_of(site).changes
        machine = machine_of(chip, settings.engine, settings.engine_version, changes=changes)
        given = plan.settings(plan.pools[0]).precision.kv
        seconds += conversion_s_per_byte(pool, machine, given, settings.precision.kv)
    return seconds


def _is_unlike(plan: DeploymentPlan, pool: Pool) -> bool:
    """Whether a pool's KV has another layout or number format than that of the first pool."""
    own, first = plan.settings(pool), plan.settings(plan.pools[0])
    return (own.engine, own.precision.kv) != (first.engine, first.precision.kv)


def _host_s_per_token(plan: DeploymentPlan, pool: Pool, site: Site) -> float:
    """Seconds to bring a token's KV into every chip of a rank, each over its own host link."""
    if not plan.kv.host_gb_per_chip and not plan.kv.swap_gb_per_chip:
        return 0.0
    link = host_link(pool, site.chips[pool.chip])
    one_chip = link.bytes_per_s / pool.chips_per_replica
    model = served_model(site.model, plan.speculation)
    held = sum(
        kv_bytes_per_token_per_chip(
            model, pool, plan.settings(pool).precision.kv, windowed=windowed
        )
        for windowed in (False, True)
    )
    return held / one_chip


def _ssd_s_per_token(plan: DeploymentPlan, pool: Pool, site: Site) -> float:
    """Seconds to read a token's KV, kept once, from the local disks of a rank's chips together."""
    if not plan.kv.ssd_gb_per_chip:
        return 0.0
    model, kv = served_model(site.model, plan.speculation), plan.settings(pool).precision.kv
    kept = model.kv_bytes_per_token(kv) + model.windowed_kv_bytes_per_token(kv)
    drives = pool.tp * pool.pp
    return kept / (drives * site.chips[pool.chip].known("nvme_gb_per_s") * 1e9)


def link_of(plan: DeploymentPlan, pool: Pool, site: Site) -> KvLink:
    """What a rank of the pool sends or receives when KV moves between the pools."""
    others = [other for other in plan.serving_pools if other is not pool]
    known = site.chips[pool.chip].facts().keys()
    if not others and not {"scaleup_gb_per_s", "scaleout_gb_per_s"} <= known:
        return KvLink(math.inf, 0.0)  # one pool sends nothing, so what is not known is not needed
    others = others or [pool]
    return rank_link(pool, site.chips[pool.chip], others[0], site.chips[others[0].chip])


def _store(plan: DeploymentPlan, site: Site) -> SharedStore | None:
    """The shared store, if the plan has one; it keeps one copy of each token's KV."""
    if plan.kv.shared_gb == 0:
        return None
    model, kv = served_model(site.model, plan.speculation), plan.precision.kv
    per_token = model.kv_bytes_per_token(kv) + model.windowed_kv_bytes_per_token(kv)
    bound = plan.kv.shared_gb_per_s
    return SharedStore(
        tokens=int(plan.kv.shared_gb * 1e9 / per_token),
        bytes_per_s=bound * 1e9 if bound else float("inf"),
    )


def _kv_on_link(plan: DeploymentPlan, site: Site) -> KvOnLink:
    model, kv = served_model(site.model, plan.speculation), plan.precision.kv
    return KvOnLink(
        token_bytes=model.kv_bytes_per_token(kv),
        window_token_bytes=model.windowed_kv_bytes_per_token(kv),
        window_tokens=model.window_tokens,
        request_bytes=model.fixed_bytes_per_request(kv),
        latency_s=max(link_of(plan, pool, site).latency_s for pool in plan.serving_pools),
    )
