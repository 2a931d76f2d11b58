"""Which resource a deployment is short of: the `why` behind its numbers.

The busiest server of the run binds: a pool, a link that KV goes over, or cores of the hosts. KV
capacity binds where requests had free seats but no KV in most steps. Where a pool binds, its
average step is priced again with a resource improved: what the step would save tells how much of
it that resource sets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from objectives.cost import StepCosts, ping_pong_seconds
from objectives.deployment import pool_costs
from objectives.simulator import PoolRecord, SimulationResult
from spaces.chip import ChipSpec
from spaces.plan import DeploymentPlan, Pool
from spaces.site import Site

Resource = Literal[
    "compute",
    "HBM bandwidth",
    "KV capacity",
    "link",
    "stage imbalance",
    "host",
    "kernel launches",
]

HOSTS = "hosts"
# In so large a share of its steps a pool must be short of KV to be bound by it.
_MOST_STEPS = 0.5
_PARTS = ("dense layers", "routed experts", "attention over the context")
# What makes a chip faster in a resource.
_FIGURES: dict[Resource, tuple[str, ...]] = {
    "compute": ("bf16_tflops", "fp8_tflops", "fp4_tflops"),
    "HBM bandwidth": ("hbm_gb_per_s",),
}


@dataclass(frozen=True, slots=True)
class Binding:
    """The resource that binds, in which pool or at the hosts, and on what it is spent.

    `shares` divide the busy time of the busiest pool among resources and sum to 1: compute and HBM
    bandwidth have twice what their doubling would save of an average step, links what it takes
    longer than with chips that reach one another in no time, `stage imbalance` the bubbles of a
    pipeline, the host what engines do between steps, and kernel launches the rest.
    """

    pool: str
    resource: Resource
    part: str
    shares: Mapping[Resource, float]

    def __str__(self) -> str:
        part = f" ({self.part})" if self.part else ""
        place = "" if self.pool == HOSTS else f"{self.pool} pool: "
        return f"{place}{self.resource}{part}"


def binding(plan: DeploymentPlan, site: Site, result: SimulationResult) -> Binding:
    """What binds a plan in a run of it."""
    place = int(np.argmax([record.utilization for record in result.pools]))
    pool, record = plan.serving_pools[place], result.pools[place]
    explained = _explained(plan, pool, site, record, _mean_steps(pool, record, result, place))
    short = int(np.argmax([one.kv_short_fraction for one in result.pools]))
    if result.pools[short].kv_short_fraction >= _MOST_STEPS:
        return Binding(plan.serving_pools[short].role, "KV capacity", "", explained.shares)
    utilization, role, part = max((*_links(plan, result), *_cores(result)))
    if utilization > record.utilization:
        resource: Resource = "host" if role == HOSTS else "link"
        return Binding(role, resource, part, explained.shares)
    return explained


def _links(plan: DeploymentPlan, result: SimulationResult) -> Iterator[tuple[float, str, str]]:
    """How much of the run each kind of link was in use, of which pool, and what for."""
    for pool, record in zip(plan.serving_pools, result.pools, strict=True):
        yield record.network_utilization, pool.role, "KV over the network"
        yield record.host_link_utilization, pool.role, "KV from and to host memory"
        yield record.ssd_utilization, pool.role, "KV from local disks"
        yield record.copy_utilization, pool.role, "KV staged or converted between pools"
        yield _store_utilization(plan, result), pool.role, "KV from and to the shared store"


def _cores(result: SimulationResult) -> Iterator[tuple[float, str, str]]:
    """How much of the run the cores of the hosts worked, and what for."""
    if result.hosts is not None:
        yield result.hosts.tool_utilization, HOSTS, "cores for tools"
        yield result.hosts.front_end_utilization, HOSTS, "cores for the front end"


def _store_utilization(plan: DeploymentPlan, result: SimulationResult) -> float:
    if plan.kv.shared_gb_per_s is None or result.makespan_s <= 0:
        return 0.0
    moved = result.tier_bytes.store + result.tier_bytes.written_to_store
    return moved / (plan.kv.shared_gb_per_s * 1e9 * result.makespan_s)


@dataclass(frozen=True, slots=True)
class _Step:
    """A step as most are: requests on all ranks, and on the busiest one its decoding requests at
    their mean context, and chunks with their new tokens, each of which looks back on `prior` ones.

    `weight` is the share of steps that are like it.
    """

    weight: float
    requests: float
    ranks: int
    decodes: float
    context: float
    chunks: float
    new: float
    all_new: float
    prior: float


def _mean_steps(
    pool: Pool, record: PoolRecord, result: SimulationResult, place: int
) -> tuple[_Step, _Step]:
    """The mean step without chunks of prompts, and that with them."""
    records, steps = result.requests, max(1, record.steps)
    here = (records.entry_pool == place) | (records.decode_pool == place)
    told = records.finished & here
    inputs, outputs = records.input_tokens[told], records.output_tokens[told]
    new = np.maximum(inputs - records.hit_tokens[told], 1)
    decodes = record.decode_request_steps / steps
    chunks = max(0.0, record.mean_batch - decodes)
    mixed = min(1.0, chunks)
    busy_ranks = min(float(pool.dp), max(1.0, chunks))
    context = float((outputs * (inputs + outputs / 2)).sum()) / max(1.0, float(outputs.sum()))
    plain = _Step(
        weight=1.0 - mixed,
        requests=decodes,
        ranks=pool.dp,
        decodes=decodes / pool.dp,
        context=context,
        chunks=0.0,
        new=0.0,
        all_new=0.0,
        prior=float((new * (inputs - new / 2)).sum()) / max(1.0, float(new.sum())),
    )
    all_new = record.prefill_tokens / steps / mixed if mixed else 0.0
    return plain, replace(
        plain,
        weight=mixed,
        requests=decodes + max(1.0, chunks),
        chunks=max(1.0, chunks) / busy_ranks,
        new=all_new / busy_ranks,
        all_new=all_new,
    )


def _explained(
    plan: DeploymentPlan, pool: Pool, site: Site, record: PoolRecord, steps: Sequence[_Step]
) -> Binding:
    """The shares of the pool's busy time, and the largest of them."""
    fitted = replace(site, operator_costs="fitted")  # measured kernels know no other chip
    costs = pool_costs(plan, pool, fitted)
    ideal = pool_costs(plan, pool, fitted, exchanges=False)
    device_s = _device_s(costs, steps, costs)
    seconds: dict[Resource, float] = {
        "link": device_s - _device_s(ideal, steps, ideal),
        "host": sum(step.weight * _host_s(costs, step) for step in steps),
    }
    where: dict[Resource, str] = {"link": _exchange_of(costs)}
    for resource in _FIGURES:
        better = pool_costs(plan, pool, _with_twice(fitted, resource))
        seconds[resource] = 2.0 * (device_s - _device_s(costs, steps, better))
        left_s = {part: _device_s(costs, steps, better, (part,)) for part in _PARTS}
        where[resource] = min(left_s, key=lambda part: left_s[part])
    rest_s = device_s - sum(seconds[name] for name in ("link", *_FIGURES))
    seconds["kernel launches"] = max(0.0, rest_s)
    bubbles = record.bubble_fraction if pool.pp > 1 else 0.0
    whole_s = sum(seconds.values())
    shares = {name: (1 - bubbles) * found / whole_s for name, found in seconds.items()}
    shares["stage imbalance"] = bubbles
    resource = max(shares, key=lambda name: shares[name])
    part = where.get(resource, "")
    apart = costs.split is not None and part == "routed experts"
    return Binding("decode-experts" if apart else pool.role, resource, part, shares)


def _with_twice(site: Site, resource: Resource) -> Site:
    """The site with chips that have twice as much of a resource."""
    return replace(
        site, chips={name: _faster(chip, resource) for name, chip in site.chips.items()}
    )


def _faster(chip: ChipSpec, resource: Resource) -> ChipSpec:
    facts = {key: getattr(chip, key) for key in _FIGURES[resource]}
    return chip.model_copy(
        update={
            key: fact.model_copy(update={"value": 2.0 * fact.value})
            for key, fact in facts.items()
            if fact is not None
        }
    )


def _host_s(costs: StepCosts, step: _Step) -> float:
    """What the host does for a step; of one with chunks also what the chips wait for launches."""
    own_s = costs.host_s + costs.request_s * step.requests
    if not step.chunks:
        return own_s
    eager_s = float(costs.eager_s.sum())
    busy_s = _joined_s(costs, step, _parts(costs, step)) + eager_s
    return own_s + eager_s + max(0.0, float(costs.launch_s.sum()) - busy_s)


def _device_s(
    costs: StepCosts, steps: Sequence[_Step], other: StepCosts, replaced: Sequence[str] = _PARTS
) -> float:
    """Seconds of the mean step on the chips, all stages one after another.

    The parts `replaced` are those of `other` costs, the way between split pools that of `costs`.
    """
    total = 0.0
    for step in steps:
        own, better = _parts(costs, step), _parts(other, step)
        parts = {name: (better if name in replaced else own)[name] for name in _PARTS}
        total += step.weight * _joined_s(costs, step, parts)
    return total


def _joined_s(costs: StepCosts, step: _Step, parts: Mapping[str, float]) -> float:
    split = costs.split
    if split is None:
        return sum(parts.values())
    turns = _turns(costs, step)
    of_turn = _tokens(costs, step) / turns
    line, exchange = (
        float(np.interp(of_turn, costs.grid, table)) for table in (split.line_s, split.exchange_s)
    )
    own = parts["dense layers"] + parts["attention over the context"]
    experts = parts["routed experts"]
    return float(ping_pong_seconds(own, experts, line, exchange, turns, split.layers))


def _parts(costs: StepCosts, step: _Step) -> dict[str, float]:
    """Seconds of the parts of a step; of a split one, those of one of its micro-batches."""
    turns = _turns(costs, step)
    busiest = costs.verified_tokens * step.decodes + step.new
    return {
        "dense layers": _read(costs, "token_s", busiest / turns),
        "routed experts": _read(costs, "expert_s", _tokens(costs, step) / turns),
        "attention over the context": _attention_s(costs, step, turns),
    }


def _turns(costs: StepCosts, step: _Step) -> float:
    """Micro-batches between attention and experts; 1 where they are not apart."""
    if costs.split is None:
        return 1.0
    return max(1.0, min(float(costs.split.micro_batches), step.decodes + step.new))


def _tokens(costs: StepCosts, step: _Step) -> float:
    """Tokens of all ranks."""
    return costs.verified_tokens * step.decodes * step.ranks + step.all_new


def _attention_s(costs: StepCosts, step: _Step, turns: float) -> float:
    """Of the busiest rank: its decoding requests at the mean context, and its chunks."""
    window = min(step.context, costs.window_tokens)
    each_s = costs.decode_request_s + step.context * costs.decode_token_s
    each_s = each_s + window * costs.decode_window_token_s
    base_s = float(costs.decode_base_s.sum()) if step.decodes else 0.0
    within = min(step.prior, costs.window_tokens)
    multiply_s = step.prior * costs.pair_s + within * costs.window_pair_s
    looking_s = np.maximum(step.new * multiply_s, step.chunks * step.prior * costs.read_s)
    chunks_s = step.new * costs.chunk_token_s + step.chunks * costs.prefill_base_s + looking_s
    return base_s + float((step.decodes * each_s + chunks_s).sum()) / turns


def _exchange_of(costs: StepCosts) -> str:
    return "between attention and experts" if costs.split else "between the chips of a replica"


def _read(costs: StepCosts, table: str, tokens: float) -> float:
    return sum(float(np.interp(tokens, costs.grid, stage)) for stage in getattr(costs, table))
