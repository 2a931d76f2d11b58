"""What the choices of a branch leave legal: layouts of its pools, tiers and policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from spaces.branch import Branch
from spaces.feasibility import (
    Infeasible,
    engines_take_over,
    figures_are_known,
    host_memory_suffices,
    midfill_can_reach_kv,
    retention_has_a_tier,
)
from spaces.layouts import layout_refusal, tried_layouts
from spaces.options import SpaceOptions
from spaces.plan import TIER_CHOICES, DeploymentPlan, KvTiers, Pool
from spaces.site import Site

# The rules that decide which tiers and policies pools can have.
_TIER_RULES = (
    retention_has_a_tier,
    midfill_can_reach_kv,
    figures_are_known,
    host_memory_suffices,
)


@dataclass(frozen=True, slots=True)
class Survey:
    """What the options name in a branch, legal or not.

    `apart` says why its pools cannot hand KV to one another, if so. `layouts` has for each pool
    its legal layouts, `refused` why others are none; `tiers` are the legal tiers and policies,
    `tiers_refused` why others are none.
    """

    branch: Branch
    apart: Infeasible | None
    layouts: tuple[tuple[Pool, ...], ...]
    refused: tuple[tuple[Infeasible, ...], ...]
    tiers: tuple[KvTiers, ...]
    tiers_refused: tuple[Infeasible, ...]


def surveyed(branch: Branch, plan: DeploymentPlan, site: Site, options: SpaceOptions) -> Survey:
    """The survey of a branch; `plan` has a pool for each role, whose layouts are open, and what is
    fixed in the branch.
    """
    layouts, refused = [], []
    for pool in plan.pools:
        tried = [
            (layout, layout_refusal(plan, layout, site))
            for layout in tried_layouts(plan, pool, site, options)
        ]
        layouts.append(tuple(layout for layout, refusal in tried if refusal is None))
        refused.append(tuple(refusal for _, refusal in tried if refusal is not None))
    tiers: list[KvTiers] = []
    without: list[Infeasible] = []
    for choice in _tiers(plan, options):
        refusal = _tier_refusal(plan.model_copy(update={"kv": choice}), site)
        if refusal is None:
            tiers.append(choice)
        else:
            without.append(refusal)
    apart = engines_take_over(plan, site)
    return Survey(branch, apart, tuple(layouts), tuple(refused), tuple(tiers), tuple(without))


def _tiers(plan: DeploymentPlan, options: SpaceOptions) -> list[KvTiers]:
    """The tiers and policies that the options name, each once, in their order."""
    found: dict[KvTiers, None] = {}
    for values in product(*(getattr(options, name) for name in TIER_CHOICES)):
        choice = dict(zip(TIER_CHOICES, values, strict=True))
        if choice["retention"] != "drop-after-idle":
            choice["idle_limit_s"] = None
        if plan.topology == "aggregated":  # nothing is handed over
            choice["handoff"] = None
        found[plan.kv.model_copy(update=choice)] = None
    return list(found)


def _tier_refusal(plan: DeploymentPlan, site: Site) -> Infeasible | None:
    """Why no plan with the pools of `plan`, however large, can have its tiers.

    Which figures of chips a plan needs depends on its pools lying together in a scale-up domain.
    So the smallest pools are asked about and the largest: between them nothing else is needed.
    """
    for together in (plan.pools, *_largest(plan.pools, site)):
        with_pools = plan.model_copy(update={"pools": tuple(together)})
        for rule in _TIER_RULES:
            refusal = rule(with_pools, site)
            if refusal is not None:
                return refusal
    return None


def _largest(pools: Sequence[Pool], site: Site) -> list[list[Pool]]:
    """The pools with one of them taking all chips that the others leave of its kind."""
    found = []
    for place, pool in enumerate(pools):
        others = sum(other.chip == pool.chip for other in pools) - 1
        most = max(1, site.budget[pool.chip].most - others)
        large = pool.model_copy(update={"replicas": most})
        found.append([*pools[:place], large, *pools[place + 1 :]])
    return found
