"""The search space: what may be chosen, encoded so that a choice is legal by construction.

Questions go from the outside in: topology, engine, formats, chips (together a *branch*), then each
pool's layout among those that divide and fit, its replicas among what the budget leaves, its
batch, and last the host tier, the router and the load. A question with one answer is not asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any, Literal, TypeVar

from spaces.branch import Branch, ByRole, per_pool
from spaces.draw import Draw
from spaces.errors import NothingFeasible
from spaces.feasibility import (
    Infeasible,
    engines_take_over,
    midfill_can_reach_kv,
    retention_has_a_tier,
)
from spaces.layouts import (
    candidate_layouts,
    draw_layout,
    legal_batches,
    memory_refusal,
    with_batch,
)
from spaces.options import SpaceOptions
from spaces.plan import (
    TOPOLOGY_ROLES,
    DeploymentPlan,
    EngineName,
    KvTiers,
    Load,
    Pool,
    Precision,
    with_own_settings,
)
from spaces.precision import KvDtype, WeightsName
from spaces.site import Site
from spaces.speculation import Speculation

Option = TypeVar("Option")

# The rules that decide which tiers and retentions a topology can have.
_TIER_CHOICES = (
    "host_gb_per_chip",
    "ssd_gb_per_chip",
    "shared_gb",
    "retention",
    "fetch",
    "layerwise",
    "idle_limit_s",
)
TIER_RULES = (retention_has_a_tier, midfill_can_reach_kv)


@dataclass(frozen=True)
class SearchSpace:
    """All plans a job allows at a site, under each of its loads.

    `base` holds what is not searched (model, memory share, block size); None among `loads` stands
    for the arrivals as recorded, and None in `speculation` for decoding without drafts. Engines
    and KV formats are those of whole plans, or, by role, of pools that may differ. `engine_sets`
    names what each engine has its own default of, in place of that of `base`.
    """

    site: Site
    options: SpaceOptions
    base: DeploymentPlan
    engines: tuple[EngineName, ...] | ByRole[EngineName]
    weights: tuple[WeightsName, ...]
    kv: tuple[KvDtype, ...] | ByRole[KvDtype]
    loads: tuple[Load | None, ...]
    speculation: tuple[Speculation | None, ...] = (None,)
    engine_sets: tuple[Literal["hbm_fraction", "block_size"], ...] = ()
    _batches: dict[tuple[Branch, Pool], tuple[tuple[int, int], ...]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def plan(self, draw: Draw) -> DeploymentPlan:
        """A legal plan at a load, by the answers of `draw`; `NothingFeasible` if there is none."""
        branch = self._draw_branch(draw)
        pools = self._draw_pools(draw, branch)
        threshold = _ordered(draw, "midfill_threshold_tokens", self._thresholds(branch))
        micro_batches = _ordered(draw, "micro_batches", self._micro_batches(branch))
        return self._on(branch).model_copy(
            update={
                "pools": pools,
                "kv": self._draw_tiers(draw, branch),
                "midfill_threshold_tokens": threshold,
                "micro_batches": micro_batches,
                "router": _unordered(draw, "router", self.options.router),
                "load": _ordered(draw, "load", self.loads),
            }
        )

    def batches(self, branch: Branch, layout: Pool) -> tuple[tuple[int, int], ...]:
        """The (max_num_batched_tokens, max_num_seqs) that fit a layout of a branch, ascending."""
        key = branch, layout
        if key not in self._batches:
            plan = self._on(branch)
            self._batches[key] = legal_batches(plan, layout, self.site, self.options)
        return self._batches[key]

    def settings(self, branch: Branch) -> tuple[DeploymentPlan, ...]:
        """What a branch's plans can have beside pools and load: tiers, thresholds, router.

        Each is a plan without its pools and load.
        """
        plan = self._on(branch)
        return tuple(
            plan.model_copy(
                update={
                    "kv": tiers,
                    "midfill_threshold_tokens": threshold,
                    "micro_batches": micro_batches,
                    "router": router,
                }
            )
            for tiers, threshold, micro_batches, router in product(
                self._tiers(branch),
                self._thresholds(branch),
                self._micro_batches(branch),
                self.options.router,
            )
        )

    def size(self) -> int:
        """How many plans, each load apart, the space holds."""
        plans = sum(
            self._pool_choices(branch) * len(self.settings(branch)) for branch in self.legal
        )
        return plans * len(self.loads)

    def dimensions(self) -> dict[str, list[str]]:
        """Each dimension with the values that some legal plan takes."""
        values: dict[str, dict[str, None]] = {}

        def note(name: str, *found: object) -> None:
            values.setdefault(name, {}).update((str(value), None) for value in found)

        for branch, pools in self.legal.items():
            note("topology", branch.topology)
            note("engine", branch.engine)
            note("weights", branch.weights)
            note("kv", branch.kv)
            note("drafts", branch.drafts)
            for layouts in pools:
                role = layouts[0].role
                note(f"{role}.chip", layouts[0].chip)
                own = self._on(branch).settings(layouts[0])
                note(f"{role}.engine", own.engine)
                note(f"{role}.layout", *(layout.layout for layout in layouts))
        note("max_num_seqs", *self.options.max_num_seqs)
        note("max_num_batched_tokens", *self.options.max_num_batched_tokens)
        note("host_gb_per_chip", *(f"{gb:g}" for gb in self.options.host_gb_per_chip))
        note("ssd_gb_per_chip", *(f"{gb:g}" for gb in self.options.ssd_gb_per_chip))
        note("shared_gb", *(f"{gb:g}" for gb in self.options.shared_gb))
        note("retention", *self.options.retention)
        note("fetch", *self.options.fetch)
        note("layerwise", *self.options.layerwise)
        note("router", *self.options.router)
        note("load", *(load or "as recorded" for load in self.loads))
        return {name: list(found) for name, found in values.items()}

    @cached_property
    def legal(self) -> dict[Branch, tuple[tuple[Pool, ...], ...]]:
        """The legal layouts of each pool of each branch that has a legal plan."""
        found = {branch: self._layouts(branch) for branch in self._branches()}
        legal = {
            branch: pools
            for branch, pools in found.items()
            if self._room_for(pools) and self._tiers(branch)
        }
        if not legal:
            raise NothingFeasible(self._why_nothing())
        return legal

    def _branches(self) -> Iterator[Branch]:
        for topology in self.options.topology:
            roles = TOPOLOGY_ROLES[topology]
            kinds = [self.options.chips(role) or tuple(self.site.budget) for role in roles]
            for engines, weights, kv, drafts in product(
                per_pool(self.engines, roles),
                self.weights,
                per_pool(self.kv, roles),
                self._by_drafts,
            ):
                for chips in product(*kinds):
                    yield Branch(topology, engines, weights, kv, drafts, chips)

    @cached_property
    def _by_drafts(self) -> dict[int, Speculation | None]:
        return {found.depth if found else 0: found for found in self.speculation}

    def _layouts(self, branch: Branch) -> tuple[tuple[Pool, ...], ...]:
        plan = self._on(branch)
        if self._hand_over_refusal(branch) is not None:
            return ()
        return tuple(
            tuple(
                layout
                for layout in candidate_layouts(plan, pool, self.site, self.options)
                if memory_refusal(plan, layout, self.site) is None
            )
            for pool in self._smallest_pools(branch)
        )

    def _hand_over_refusal(self, branch: Branch) -> Infeasible | None:
        """Why the branch's pools cannot pass KV on to one another, if so."""
        return engines_take_over(self._bare(branch), self.site)

    def _smallest_pools(self, branch: Branch) -> list[Pool]:
        """A pool for each role at the smallest batch, layout still open."""
        step, seats = min(self.options.max_num_batched_tokens), min(self.options.max_num_seqs)
        step = max(step, seats * (1 + branch.drafts))
        return [
            pool if pool.role == "decode-experts" else with_batch(pool, step, seats)
            for pool in self._bare(branch).pools
        ]

    def _room_for(self, pools: Sequence[Sequence[Pool]]) -> bool:
        """Whether one replica of the smallest layout of every pool stays within the budget."""
        taken: dict[str, int] = {}
        if not pools:
            return False
        for layouts in pools:
            if not layouts:
                return False
            chip = layouts[0].chip
            taken[chip] = taken.get(chip, 0) + _smallest(layouts)
        return all(count <= self.site.budget[chip].most for chip, count in taken.items())

    def _bare(self, branch: Branch) -> DeploymentPlan:
        """A plan of the branch with a pool for each role, without layouts or batches."""
        pools = [
            Pool(role=role, chip=chip)
            for role, chip in zip(branch.roles, branch.chips, strict=True)
        ]
        plan = self._on(branch).model_copy(update={"pools": tuple(pools)})
        settings = [
            replace(
                plan.settings(pool),
                engine=engine,
                precision=plan.precision.model_copy(update={"kv": kv}),
                hbm_fraction=self._of_engine(engine)["hbm_fraction"],
            )
            for pool, engine, kv in zip(pools, branch.engines, branch.kv_dtypes, strict=True)
        ]
        return with_own_settings(plan, settings)

    def _on(self, branch: Branch) -> DeploymentPlan:
        return self.base.model_copy(
            update={
                "topology": branch.topology,
                "engine": branch.engines[0],
                "precision": Precision(weights=branch.weights, kv=branch.kv_dtypes[0]),
                "speculation": self._by_drafts[branch.drafts],
                **self._of_engine(branch.engines[0]),
            }
        )

    def _of_engine(self, name: EngineName) -> dict[str, Any]:
        """Memory share and block size under an engine."""
        engine = self.site.engines[name]
        return {
            key: getattr(engine if key in self.engine_sets else self.base, key)
            for key in ("hbm_fraction", "block_size")
        }

    def _draw_branch(self, draw: Draw) -> Branch:
        """One legal branch, its parts asked one by one among those that remain possible.

        The options of a question depend on the answers before it, so its name carries them.
        """
        remaining = list(self.legal)
        name = ""
        for part in ("topology", "engine", "weights", "kv", "drafts", "chips"):
            options = _distinct(_word(getattr(branch, part)) for branch in remaining)
            answer = _unordered(draw, f"{name}{part}", options)
            remaining = [b for b in remaining if _word(getattr(b, part)) == answer]
            name = f"{name}{answer}." if len(options) > 1 else name
        return remaining[0]

    def _draw_tiers(self, draw: Draw, branch: Branch) -> KvTiers:
        """Tier sizes first, then retention and fetching that make sense with them."""
        remaining = self._tiers(branch)
        for name in _TIER_CHOICES:
            value = _ordered(draw, name, _distinct(getattr(tiers, name) for tiers in remaining))
            remaining = [tiers for tiers in remaining if getattr(tiers, name) == value]
        return remaining[0]

    def _tiers(self, branch: Branch) -> list[KvTiers]:
        """The tiers and policies that a topology can use, in the order of the options."""
        plan = self._on(branch)
        found = []
        for values in product(*(getattr(self.options, name) for name in _TIER_CHOICES)):
            choice = dict(zip(_TIER_CHOICES, values, strict=True))
            if choice["retention"] != "drop-after-idle":
                choice["idle_limit_s"] = None
            tiers = self.base.kv.model_copy(update=choice)
            if tiers in found:
                continue
            with_tiers = plan.model_copy(update={"kv": tiers})
            broken = (rule(with_tiers, self.site) for rule in TIER_RULES)
            if all(refusal is None for refusal in broken):
                found.append(tiers)
        return found

    def _thresholds(self, branch: Branch) -> tuple[int | None, ...]:
        has_midfill = "midfill" in TOPOLOGY_ROLES[branch.topology]
        return self.options.midfill_threshold_tokens if has_midfill else (None,)

    def _micro_batches(self, branch: Branch) -> tuple[int | None, ...]:
        splits = "decode-experts" in TOPOLOGY_ROLES[branch.topology]
        return self.options.micro_batches if splits else (None,)

    def _draw_pools(self, draw: Draw, branch: Branch) -> tuple[Pool, ...]:
        """The pools: each one's layout first, then replicas of what the budget leaves."""
        left = {kind: budget.most for kind, budget in self.site.budget.items()}
        pools: list[Pool] = []
        choices = self.legal[branch]
        for place, layouts in enumerate(choices):
            chip = branch.chips[place]
            later = [other for other in choices[place + 1 :] if other[0].chip == chip]
            room = left[chip] - sum(_smallest(other) for other in later)
            fitting = [layout for layout in layouts if layout.chips_per_replica <= room]
            pools.append(draw_layout(draw, fitting))
            left[chip] -= pools[-1].chips_per_replica
        completed: list[Pool] = []
        for pool in pools:
            beside = [other for other in pools if other.role == "decode-experts"]
            if pool.role == "decode-experts":
                copies = {"replicas": completed[-1].replicas}
                completed.append(pool.model_copy(update=copies))
            else:
                together = (pool, *beside) if pool.role == "decode-attention" else (pool,)
                completed.append(self._completed(draw, branch, together, left))
        return tuple(completed)

    def _completed(
        self, draw: Draw, branch: Branch, together: Sequence[Pool], left: dict[str, int]
    ) -> Pool:
        """The first pool with replicas and batch chosen; what they take is subtracted from `left`.

        `together` with it are the pools that have as many replicas.
        """
        pool, role = together[0], together[0].role
        sizes = _chips_by_kind(together)
        most = 1 + min(left[kind] // size for kind, size in sizes.items())
        replicas = _ordered(draw, f"{role}.replicas", range(1, most + 1))
        for kind, size in sizes.items():
            left[kind] -= (replicas - 1) * size
        batches = self.batches(branch, pool)
        steps = _distinct(step for step, _ in batches)
        if role in ("decode", "decode-attention"):  # its step follows from its seats
            step, seats = _ordered(draw, f"{role}.max_num_seqs", batches)
        else:
            step = _ordered(draw, f"{role}.max_num_batched_tokens", steps)
            seats = _ordered(draw, f"{role}.max_num_seqs", [s for t, s in batches if t == step])
        return with_batch(pool, step, seats).model_copy(update={"replicas": replicas})

    def _pool_choices(self, branch: Branch) -> int:
        """Combinations of layouts, replicas and batches of a branch."""
        weights: list[Choices] = []
        for layouts in self.legal[branch]:
            sizes: Choices = {}
            for layout in layouts:
                taken = ((layout.chip, layout.chips_per_replica),)
                sizes[taken] = sizes.get(taken, 0) + len(self.batches(branch, layout))
            weights.append(sizes)
        if "decode-experts" in TOPOLOGY_ROLES[branch.topology]:
            weights[-2:] = [_paired(*weights[-2:])]
        left = {kind: budget.most for kind, budget in self.site.budget.items()}
        return _count(weights, left)

    def _engines_that_do_not_run(self) -> Iterator[str]:
        for name, kind in product(self.site.engines, self.site.budget):
            engine, chip = self.site.engines[name], self.site.chips[kind]
            if chip.vendor not in engine.chip_vendors:
                yield f"{engine.title} does not run on {kind} ({chip.vendor})"

    def _why_nothing(self) -> str:
        """Which rule leaves no plan, with the nearest miss."""
        refusals = []
        apart: dict[str, None] = {}
        for branch in self._branches():
            plan = self._on(branch)
            refusal = self._hand_over_refusal(branch)
            if refusal is not None:
                apart[refusal.reason] = None
                continue
            for pool in self._smallest_pools(branch):
                for layout in candidate_layouts(plan, pool, self.site, self.options):
                    refusal = memory_refusal(plan, layout, self.site)
                    if refusal:
                        refusals.append(refusal)
        if not refusals:
            misfits = list(self._engines_that_do_not_run())
            if len(misfits) == len(self.site.engines) * len(self.site.budget):
                return f"no plan is legal: {'; '.join(misfits)}; choose other chips or engines"
            if apart:
                return f"no plan is legal: {'; '.join(apart)}; choose other engines or KV formats"
            return (
                "no plan is legal: no tp, pp, dp and ep of the space divides the model, suits the "
                "engine and stays within the chip budget for every pool; widen `space` or `chips`"
            )
        nearest = min(refusals, key=lambda refusal: refusal.shortfall)
        return (
            f"no plan fits into memory: {len(refusals)} layouts were refused, the nearest miss "
            f"being {nearest.reason}; use more chips, chips with more memory or narrower formats"
        )


# Chips that one replica takes of each kind -> layouts x batches that take them.
Choices = dict[tuple[tuple[str, int], ...], int]


def _paired(one: Choices, other: Choices) -> Choices:
    """The choices of two pools that have equally many replicas."""
    both: Choices = {}
    for (taken, count), (further, others) in product(one.items(), other.items()):
        both[*taken, *further] = both.get((*taken, *further), 0) + count * others
    return both


def _count(pools: Sequence[Choices], left: dict[str, int]) -> int:
    """Ways to give every pool a layout, a batch and replicas within the chips that are left."""
    if not pools:
        return 1
    choices, others = pools[0], pools[1:]
    total = 0
    for taken, ways in choices.items():
        rest = dict(left)
        while True:
            for kind, size in taken:
                rest[kind] -= size
            if min(rest.values()) < 0:
                break
            total += ways * _count(others, rest)
    return total


def _chips_by_kind(pools: Sequence[Pool]) -> dict[str, int]:
    """Chips that one replica of each pool takes, by kind."""
    sizes: dict[str, int] = {}
    for pool in pools:
        sizes[pool.chip] = sizes.get(pool.chip, 0) + pool.chips_per_replica
    return sizes


def _smallest(layouts: Sequence[Pool]) -> int:
    return min(layout.chips_per_replica for layout in layouts)


def _word(value: str | int | tuple[str, ...]) -> str:
    return "+".join(value) if isinstance(value, tuple) else str(value)


def _distinct(values: Iterable[Option]) -> list[Option]:
    return list(dict.fromkeys(values))


def _ordered(draw: Draw, name: str, options: Sequence[Option]) -> Option:
    return options[0] if len(options) == 1 else draw.ordered(name, options)


def _unordered(draw: Draw, name: str, options: Sequence[Option]) -> Option:
    return options[0] if len(options) == 1 else draw.unordered(name, options)
