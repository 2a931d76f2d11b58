"""The legal parallel layouts and batches of a pool, and how to choose a layout step by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from spaces.draw import Draw
from spaces.feasibility import (
    Infeasible,
    batch_within_step,
    decode_can_be_split,
    drafts_can_be_had,
    engine_runs_it,
    figures_are_known,
    layout_conflict,
    memory_suffices,
    pools_exchange_kv,
    stages_even_enough,
)
from spaces.options import SpaceOptions
from spaces.plan import DeploymentPlan, Pool
from spaces.site import Site

_LAYOUT_RULES = (
    engine_runs_it,
    pools_exchange_kv,
    drafts_can_be_had,
    decode_can_be_split,
    stages_even_enough,
    figures_are_known,
    batch_within_step,
)


def tried_layouts(
    plan: DeploymentPlan, pool: Pool, site: Site, options: SpaceOptions
) -> Iterator[Pool]:
    """The layouts of `pool` that the options name, legal or not, at their smallest batch.

    `plan` gives engine and formats, `pool` role and chip.
    """
    named = _named_batches(plan, pool, options)
    within = (b for b in named if b[1] * plan.verified_tokens(pool) <= b[0])
    smallest = with_batch(pool, *next(within, named[0]))
    for tp, pp, dp in _ranks(pool, options):
        for ep in _expert_sizes(plan, pool, site, options, tp * dp):
            yield smallest.model_copy(update={"tp": tp, "pp": pp, "dp": dp, "ep": ep})


def layout_refusal(plan: DeploymentPlan, layout: Pool, site: Site) -> Infeasible | None:
    """Why a layout cannot be, whatever pools are beside it; at its batch."""
    most = site.budget[layout.chip].most
    if layout.chips_per_replica > most:
        reason = f"a replica takes {layout.chips_per_replica} {layout.chip}, the budget has {most}"
        return Infeasible("budget", reason, layout.chips_per_replica / most - 1)
    alone = plan.model_copy(update={"pools": (layout,)})
    for rule in _LAYOUT_RULES:
        refusal = rule(alone, site)
        if refusal is not None:
            return refusal
    if conflict := layout_conflict(layout, site):
        return Infeasible("layout", conflict, 1.0)
    return memory_suffices(alone, site)


def legal_batches(
    plan: DeploymentPlan, pool: Pool, site: Site, options: SpaceOptions
) -> tuple[tuple[int, int], ...]:
    """The (max_num_batched_tokens, max_num_seqs) that fit, ascending."""
    found = []
    for step, seats in _named_batches(plan, pool, options):
        alone = plan.model_copy(update={"pools": (with_batch(pool, step, seats),)})
        if all(rule(alone, site) is None for rule in (batch_within_step, memory_suffices)):
            found.append((step, seats))
    return tuple(found)


def _named_batches(
    plan: DeploymentPlan, pool: Pool, options: SpaceOptions
) -> tuple[tuple[int, int], ...]:
    """The batches that the options name, legal or not; experts alone have no limits."""
    if pool.role == "decode-experts":
        return ((pool.max_num_batched_tokens, pool.max_num_seqs),)
    own, each = options.of(pool.role), plan.verified_tokens(pool)
    tokens, seqs = sorted(own.max_num_batched_tokens), sorted(own.max_num_seqs)
    if not tokens:
        least = min(options.max_num_batched_tokens)
        return tuple((max(least, seats * each), seats) for seats in seqs)
    return tuple(product(tokens, seqs))


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


def _ranks(pool: Pool, options: SpaceOptions) -> Iterator[tuple[int, int, int]]:
    """(tp, pp, dp) of the options; experts alone have ranks of one kind, as many as either's."""
    own = options.of(pool.role)
    if pool.role != "decode-experts":
        yield from product(own.tensor_parallel, own.pipeline_parallel, own.data_parallel)
        return
    named = options.pools.get(pool.role)
    ranks = named.tensor_parallel if named else ()
    for number in sorted({*ranks} or {*own.tensor_parallel, *own.data_parallel}):
        yield number, 1, 1


def _expert_sizes(
    plan: DeploymentPlan, pool: Pool, site: Site, options: SpaceOptions, ranks: int
) -> Sequence[int]:
    if not pool.holds_experts:
        return [1]
    if wanted := options.of(pool.role).expert_parallel:
        return wanted
    engine = site.engines[plan.settings(pool).engine]
    return engine.expert_parallel_choices(ranks) if site.model.moe else [1]
