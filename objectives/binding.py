"""Which resource a deployment is short of: the `why` behind its numbers."""

from __future__ import annotations

import numpy as np

from objectives.cost import StepCosts
from objectives.deployment import pool_costs
from objectives.simulator import PoolRecord, SimulationResult
from spaces.plan import DeploymentPlan, Pool
from spaces.site import Site

_FULL = 0.97


def binding_resource(plan: DeploymentPlan, site: Site, result: SimulationResult) -> str:
    """The resource that binds, in words: which pool, and what it spends its time or memory on.

    The pool with the highest utilization counts. If its KV memory was full and requests waited or
    were preempted, that is the answer; else the largest part of its average step: host, attention
    over the context, routed experts with their exchange, or the other layers.
    """
    pools = plan.serving_pools
    busiest = max(range(len(pools)), key=lambda place: result.pools[place].utilization)
    pool, record = pools[busiest], result.pools[busiest]
    if record.peak_kv_fraction >= _FULL and _waits(result):
        return f"{pool.role} pool: KV capacity"
    parts = step_parts(plan, pool, site, record, result)
    largest = max(parts, key=lambda part: parts[part])
    return f"{pool.role} pool: {largest}"


def step_parts(
    plan: DeploymentPlan, pool: Pool, site: Site, record: PoolRecord, result: SimulationResult
) -> dict[str, float]:
    """Seconds of the parts of an average step of a pool, at its mean batch and context."""
    costs = pool_costs(plan, pool, site)
    steps = max(1, record.steps)
    verified = record.decode_request_steps * costs.verified_tokens
    tokens = (record.prefill_tokens + verified) / steps
    decodes = record.decode_request_steps / steps / pool.dp
    records = result.requests
    context = float((records.input_tokens + records.output_tokens / 2).mean())
    host_s = costs.host_s + costs.request_s * record.mean_batch
    new = record.prefill_tokens / steps / pool.dp
    if costs.split is not None:
        return {"host overhead": host_s} | _split_parts(costs, tokens, pool, decodes, context)
    return {
        "host overhead": host_s,
        "dense layers and their exchange": _read(costs, "token_s", tokens / pool.dp),
        "routed experts and their exchange": _read(costs, "expert_s", tokens),
        "attention over the context": _attention_s(costs, decodes, context, new),
    }


def _split_parts(
    costs: StepCosts, tokens: float, pool: Pool, decodes: float, context: float
) -> dict[str, float]:
    """Seconds of the sides of a split decode step, and of the exchange where it is not hidden."""
    split = costs.split
    assert split is not None
    parts = max(1.0, min(float(split.micro_batches), tokens / pool.dp))
    own_s = _read(costs, "token_s", tokens / pool.dp / parts)
    context_s = _attention_s(costs, decodes / parts, context, 0.0)
    experts_s = _read(costs, "expert_s", tokens / parts)
    line_s, exchange_s = (
        float(np.interp(tokens / parts, costs.grid, table))
        for table in (split.line_s, split.exchange_s)
    )
    slowest_s = parts * max(own_s + context_s, experts_s, line_s)
    around_s = own_s + context_s + experts_s + exchange_s
    hidden = around_s <= slowest_s
    return {
        "dense layers": parts * own_s,
        "attention over the context": parts * context_s,
        "routed experts in their pool": parts * experts_s,
        "exchange with the experts": parts * line_s if hidden else around_s,
    }


def _attention_s(costs: StepCosts, decodes: float, context: float, new: float) -> float:
    window = min(context, costs.window_tokens)
    decode_s = decodes * float(costs.decode_request_s.sum())
    decode_s += decodes * context * float(costs.decode_token_s.sum())
    decode_s += decodes * window * float(costs.decode_window_token_s.sum())
    if decodes > 0:
        decode_s += float(costs.decode_base_s.sum())
    prefill_s = new * context / 2 * float(costs.pair_s.sum())
    prefill_s += new * float(costs.chunk_token_s.sum())
    return decode_s + prefill_s + new * window * float(costs.window_pair_s.sum())


def _read(costs: StepCosts, table: str, tokens: float) -> float:
    return sum(float(np.interp(tokens, costs.grid, stage)) for stage in getattr(costs, table))


def _waits(result: SimulationResult) -> bool:
    records = result.requests
    queue_s = records.queue_s[records.finished]
    return bool(len(queue_s) and queue_s.max() > 0.0) or bool(records.preemptions.any())
