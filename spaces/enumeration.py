"""All plans of a branch as arrays: which layout, batch and replicas each pool of each plan has.

A plan object costs more to make than to estimate, so whoever looks at all plans of a space looks
at these tables, and makes objects of the few plans it wants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from spaces.branch import Branch
from spaces.layouts import with_batch
from spaces.plan import DeploymentPlan, Load, Pool
from spaces.site import ChipBudget
from spaces.space import SearchSpace

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class BranchPlans:
    """The plans of one branch, each load apart.

    A plan is a *combination* of pools, a *setting* (what does not concern one pool: tiers,
    thresholds, router) and a load, numbered in this order with the load fastest. Pool `j` of
    combination `i` is `replicas[i, j]` times `variants[j][variant[i, j]]`, a pool of one replica
    with its layout and batch.
    """

    branch: Branch
    variants: tuple[tuple[Pool, ...], ...]
    variant: Ints
    replicas: Ints
    settings: tuple[DeploymentPlan, ...]
    loads: tuple[Load | None, ...]

    def __len__(self) -> int:
        return len(self.variant) * len(self.settings) * len(self.loads)

    def plan(self, number: int) -> DeploymentPlan:
        """The plan of a number from 0 to the length of the branch."""
        rest, load = divmod(number, len(self.loads))
        combination, setting = divmod(rest, len(self.settings))
        pools = tuple(
            self.variants[place][self.variant[combination, place]].model_copy(
                update={"replicas": int(self.replicas[combination, place])}
            )
            for place in range(len(self.variants))
        )
        update = {"pools": pools, "load": self.loads[load]}
        return self.settings[setting].model_copy(update=update)

    def number_of(self, plan: DeploymentPlan) -> int | None:
        """The number of a plan, None where the branch has no such plan."""
        pools = [pool.model_copy(update={"replicas": 1}) for pool in plan.pools]
        places = [found.get(pool) for found, pool in zip(self._place_of, pools, strict=False)]
        setting = self._setting_of.get(plan.model_copy(update={"pools": (), "load": None}))
        if len(pools) != len(self.variants) or None in places or setting is None:
            return None
        if plan.load not in self.loads:
            return None
        code = self._code(
            np.array([places], dtype=np.int64), np.array([[p.replicas for p in plan.pools]])
        )
        order, codes = self._codes
        at = int(np.searchsorted(codes, code[0]))
        if at == len(codes) or codes[at] != code[0]:
            return None
        combination = int(order[at])
        rest = combination * len(self.settings) + setting
        return rest * len(self.loads) + self.loads.index(plan.load)

    @cached_property
    def _place_of(self) -> list[dict[Pool, int]]:
        return [{pool: place for place, pool in enumerate(pools)} for pools in self.variants]

    @cached_property
    def _setting_of(self) -> dict[DeploymentPlan, int]:
        return {
            setting.model_copy(update={"pools": (), "load": None}): place
            for place, setting in enumerate(self.settings)
        }

    @cached_property
    def _codes(self) -> tuple[Ints, Ints]:
        """The combinations in the order of their codes, and the codes."""
        codes = self._code(self.variant, self.replicas)
        order = np.argsort(codes, kind="stable")
        return order, codes[order]

    def _code(self, variant: Ints, replicas: Ints) -> Ints:
        """One number for each combination."""
        most = int(self.replicas.max()) + 1
        code = np.zeros(len(variant), dtype=np.int64)
        for place, variants in enumerate(self.variants):
            code = (code * len(variants) + variant[:, place]) * most + replicas[:, place]
        return code

    @cached_property
    def chips(self) -> Ints:
        """Chips that each combination occupies."""
        sizes = [
            np.array([variant.chips_per_replica for variant in variants])
            for variants in self.variants
        ]
        columns = [
            size[self.variant[:, place]] * self.replicas[:, place]
            for place, size in enumerate(sizes)
        ]
        total: Ints = np.sum(columns, axis=0)
        return total


def enumerated(space: SearchSpace) -> tuple[BranchPlans, ...]:
    """The plans of every branch of a space; together as many as `space.size()`."""
    return tuple(_branch(space, branch) for branch in space.legal)


def _branch(space: SearchSpace, branch: Branch) -> BranchPlans:
    variants = tuple(
        tuple(
            with_batch(layout, step, seats)
            for layout in layouts
            for step, seats in space.batches(branch, layout)
        )
        for layouts in space.legal[branch]
    )
    allowed = [space.options.of(role).replicas for role in branch.roles]
    variant, replicas = _combinations(branch, variants, space.site.budget, allowed)
    return BranchPlans(branch, variants, variant, replicas, space.settings(branch), space.loads)


def _combinations(
    branch: Branch,
    variants: Sequence[Sequence[Pool]],
    budget: Mapping[str, ChipBudget],
    allowed: Sequence[Sequence[int]],
) -> tuple[Ints, Ints]:
    """Every choice of a variant and replicas for each pool that keeps the chip budget.

    Pools are added one by one: what can be added to a combination is, with the additions sorted
    by their chips, a leading part of them. Experts have as many replicas as the attention before
    them; of other pools any number is `allowed` where none is named.
    """
    variant = np.zeros((1, 0), dtype=np.int64)
    replicas = np.zeros((1, 0), dtype=np.int64)
    left = {kind: np.array([chips.most]) for kind, chips in budget.items()}
    for chip, role, pools, numbers in zip(
        branch.chips, branch.roles, variants, allowed, strict=True
    ):
        paired = role == "decode-experts"
        times = replicas[:, -1] if paired else np.ones(len(variant), dtype=np.int64)
        place, count, size = _additions(pools, budget[chip].most, (1,) if paired else numbers)
        fitting = np.searchsorted(size, left[chip] // times, side="right")
        row = np.repeat(np.arange(len(variant)), fitting)
        added = np.arange(len(row)) - np.repeat(np.cumsum(fitting) - fitting, fitting)
        variant = np.column_stack([variant[row], place[added]])
        replicas = np.column_stack([replicas[row], times[row] * count[added]])
        left = {kind: chips_left[row] for kind, chips_left in left.items()}
        left[chip] = left[chip] - times[row] * size[added]
    enough = np.ones(len(variant), dtype=np.bool_)
    for kind, chips in budget.items():
        enough &= left[kind] <= chips.most - chips.least
    return variant[enough], replicas[enough]


def _additions(
    pools: Sequence[Pool], budget: int, allowed: Sequence[int]
) -> tuple[Ints, Ints, Ints]:
    """Places in `pools`, replicas, chips of all that a budget allows, by chips."""
    sizes = np.array([pool.chips_per_replica for pool in pools])
    within = budget // sizes
    place = np.repeat(np.arange(len(pools)), within)
    count = 1 + np.arange(len(place)) - np.repeat(np.cumsum(within) - within, within)
    if allowed:
        named = np.isin(count, np.array(allowed))
        place, count = place[named], count[named]
    size = sizes[place] * count
    order = np.argsort(size, kind="stable")
    return place[order], count[order], size[order]
