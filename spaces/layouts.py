"""The legal parallel layouts and batches of a pool, and how to choose a layout step by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from spaces.draw import Draw
from spaces.feasibility import (
    Infeasible,
    decode_can_be_split,
    drafts_can_be_had,
    engine_runs_it,
    layout_conflict,
    memory_suffices,
    pools_exchange_kv,
)
from spaces.options import SpaceOptions
from spaces.plan import DeploymentPlan, Pool
from spaces.site import Site

# Prompts in progress at once on a rank of a prefill or midfill pool: more than its steps have room
# for.
PREFILL_SEQS = 32


_LAYOUT_RULES = (engine_runs_it, pools_exchange_kv, drafts_can_be_had, decode_can_be_split)


def candidate_layouts(
    plan: DeploymentPlan, pool: Pool, site: Site, options: SpaceOptions
) -> Iterator[Pool]:
    """The layouts of `pool` that divide the model, suit the engine and stay in the budget.

    `plan` gives engine and formats, `pool` role, chip and batch. Memory is not looked at.
    """
    budget = site.budget[pool.chip].most
    for tp, pp, dp in _ranks(pool, options):
        for ep in _expert_sizes(plan, pool, site, options, tp * dp):
            layout = pool.model_copy(update={"tp": tp, "pp": pp, "dp": dp, "ep": ep})
            if layout.chips_per_replica > budget:
                continue
            alone = plan.model_copy(update={"pools": (layout,)})
            runs = all(rule(alone, site) is None for rule in _LAYOUT_RULES)
            if runs and not layout_conflict(layout, site):
                yield layout


def _ranks(pool: Pool, options: SpaceOptions) -> Iterator[tuple[int, int, int]]:
    """(tp, pp, dp) of the options; experts alone have ranks of one kind, as many as either's."""
    if pool.role != "decode-experts":
        yield from product(
            options.tensor_parallel, options.pipeline_parallel, options.data_parallel
        )
        return
    for ranks in sorted({*options.tensor_parallel, *options.data_parallel}):
        yield ranks, 1, 1


def memory_refusal(plan: DeploymentPlan, pool: Pool, site: Site) -> Infeasible | None:
    """Why the weights, a step and the longest request do not fit on the pool's chips, if so."""
    return memory_suffices(plan.model_copy(update={"pools": (pool,)}), site)


def legal_batches(
    plan: DeploymentPlan, pool: Pool, site: Site, options: SpaceOptions
) -> tuple[tuple[int, int], ...]:
    """The (max_num_batched_tokens, max_num_seqs) that fit, ascending.

    The seats of a prefill or midfill pool are fixed, and a decode pool's steps are as small as its
    seats let them be: neither changes what such a pool can do. Experts alone have no limits.
    """
    if pool.role == "decode-experts":
        return ((pool.max_num_batched_tokens, pool.max_num_seqs),)
    prompts = pool.role in ("prefill", "midfill")
    seqs = (PREFILL_SEQS,) if prompts else tuple(sorted(options.max_num_seqs))
    tokens, each = sorted(options.max_num_batched_tokens), plan.verified_tokens(pool)
    if pool.role in ("decode", "decode-attention"):
        pairs = [(max(tokens[0], seats * each), seats) for seats in seqs]
    else:
        pairs = [(step, seats) for step, seats in product(tokens, seqs) if seats * each <= step]
    return tuple(
        (step, seats)
        for step, seats in pairs
        if memory_refusal(plan, with_batch(pool, step, seats), site) is None
    )


def with_batch(pool: Pool, step_tokens: int, seats: int) -> Pool:
    """The pool with its two batch limits set."""
    return pool.model_copy(update={"max_num_batched_tokens": step_tokens, "max_num_seqs": seats})


def draw_layout(draw: Draw, layouts: Sequence[Pool]) -> Pool:
    """One of `layouts`: chips of a replica first, then TP, PP and EP of those that remain."""
    role = layouts[0].role
    for name in ("chips_per_replica", "tp", "pp", "ep"):
        values = sorted({int(getattr(layout, name)) for layout in layouts})
        value = values[0] if len(values) == 1 else draw.ordered(f"{role}.{name}", values)
        layouts = [layout for layout in layouts if getattr(layout, name) == value]
    return layouts[0]


def _expert_sizes(
    plan: DeploymentPlan, pool: Pool, site: Site, options: SpaceOptions, ranks: int
) -> list[int]:
    if site.model.moe is None or not pool.holds_experts:
        return [1]
    known = site.engines[plan.settings(pool).engine].expert_parallel_choices(ranks)
    return [ep for ep in known if not options.expert_parallel or ep in options.expert_parallel]
