"""The search space: what may be chosen, encoded so that a choice is legal by construction.

Questions go from the outside in: topology, engine, formats, chips (together a *branch*), then each
pool's layout among those that divide and fit, its replicas among what the budget leaves and needs,
its batch, and last the tiers, the router and the load. A question with one answer is not asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any, Literal, TypeVar, get_args

from spaces.branch import Branch, ByRole, per_pool
from spaces.chip_shares import Chips, Share, less, ways
from spaces.draw import Draw
from spaces.errors import NothingFeasible
from spaces.layouts import draw_layout, legal_batches, with_batch
from spaces.no_plan import why_no_plan
from spaces.options import SpaceOptions, distinct
from spaces.plan import (
    TIER_CHOICES,
    TOPOLOGY_ROLES,
    DeploymentPlan,
    EngineName,
    KvTiers,
    Load,
    Pool,
    Precision,
    Role,
    WhenFull,
    with_own_settings,
)
from spaces.precision import KvDtype, WeightsName
from spaces.site import Site
from spaces.speculation import Speculation
from spaces.survey import Survey, surveyed

Option = TypeVar("Option")
# The layouts of each pool.
Layouts = tuple[tuple[Pool, ...], ...]


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
        queue = _ordered(draw, "max_queued_requests", self.options.max_queued_requests)
        return self._on(branch).model_copy(
            update={
                "pools": pools,
                "kv": self._draw_tiers(draw, branch),
                "midfill_threshold_tokens": threshold,
                "micro_batches": micro_batches,
                "router": _unordered(draw, "router", self.options.router),
                "max_queued_requests": queue,
                "when_full": _unordered(draw, "when_full", self._when_full(queue)),
                "hosts": _ordered(draw, "hosts", self.options.hosts),
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
                    "max_queued_requests": queue,
                    "when_full": when_full,
                    "hosts": hosts,
                }
            )
            for tiers, threshold, micro_batches, router, queue, hosts in product(
                self._surveys[branch].tiers,
                self._thresholds(branch),
                self._micro_batches(branch),
                self.options.router,
                self.options.max_queued_requests,
                self.options.hosts,
            )
            for when_full in self._when_full(queue)
        )

    def size(self) -> int:
        """How many plans, each load apart, the space holds."""
        plans = sum(
            self._ways(branch, self._shares(branch, pools, counted=True))
            * len(self.settings(branch))
            for branch, pools in self.legal.items()
        )
        return plans * len(self.loads)

    def dimensions(self) -> dict[str, list[str]]:
        """Each dimension with the values that some legal plan takes."""
        values: dict[str, dict[str, None]] = {}
        for branch in self.legal:
            for name, found in self._dimensions_of(branch):
                told = (_shown(value) for value in found if value is not None)
                values.setdefault(name, {}).update(dict.fromkeys(told))
        values["load"] = {str(load or "as recorded"): None for load in self.loads}
        return {name: list(found) for name, found in values.items() if found}

    @cached_property
    def legal(self) -> dict[Branch, Layouts]:
        """The layouts of each pool of each branch that some legal plan has."""
        legal = {
            branch: self._in_some_plan(branch, survey.layouts)
            for branch, survey in self._surveys.items()
            if survey.tiers and survey.apart is None
        }
        legal = {branch: pools for branch, pools in legal.items() if all(pools)}
        if not legal:
            raise NothingFeasible(why_no_plan(self._surveys.values(), self.site, self.options))
        return legal

    @cached_property
    def _surveys(self) -> dict[Branch, Survey]:
        return {
            branch: surveyed(branch, self._bare(branch), self.site, self.options)
            for branch in self._branches()
        }

    def _in_some_plan(self, branch: Branch, pools: Layouts) -> Layouts:
        """The layouts of a branch that leave the other pools enough chips, and not too many."""
        shares = self._shares(branch, pools)
        return tuple(
            tuple(self._fitting(branch, layouts, shares, place))
            for place, layouts in enumerate(pools)
        )

    def _fitting(
        self, branch: Branch, layouts: Sequence[Pool], shares: Sequence[Share], place: int
    ) -> list[Pool]:
        """Those of the layouts of a pool beside which the other pools can take their shares."""
        sizes = {layout.chips_per_replica: layout for layout in layouts}
        fits = {
            size: self._ways(
                branch, [*shares[:place], self._share([layout]), *shares[place + 1 :]]
            )
            for size, layout in sizes.items()
        }
        return [layout for layout in layouts if fits[layout.chips_per_replica]]

    def _shares(self, branch: Branch, pools: Layouts, counted: bool = False) -> list[Share]:
        """What each pool of a branch may take; each size once, or all choices `counted`."""
        return [
            self._share(
                layouts, (lambda pool: len(self.batches(branch, pool))) if counted else None
            )
            for layouts in pools
        ]

    def _share(
        self, layouts: Sequence[Pool], batches: Callable[[Pool], int] | None = None
    ) -> Share:
        """What a pool with these layouts may take: each size once, or with all its `batches`."""
        sizes: dict[Chips, int] = {}
        for layout in layouts:
            taken = tuple(
                layout.chips_per_replica if kind == layout.chip else 0 for kind in self.site.budget
            )
            sizes[taken] = sizes.get(taken, 0) + batches(layout) if batches is not None else 1
        return Share(tuple(sizes.items()), self._allowed[layouts[0].role] if layouts else ())

    @cached_property
    def _allowed(self) -> dict[Role, tuple[int, ...]]:
        """The numbers of replicas that the options name for each role, ascending."""
        roles: tuple[Role, ...] = get_args(Role)
        return {role: tuple(sorted(self.options.of(role).replicas)) for role in roles}

    def _paired(self, branch: Branch, shares: Sequence[Share]) -> tuple[Share, ...]:
        """The shares, with attention and experts, which have equally many replicas, as one."""
        if branch.roles[-1] != "decode-experts":
            return tuple(shares)
        return (*shares[:-2], shares[-2].beside(shares[-1]))

    def _ways(self, branch: Branch, shares: Sequence[Share]) -> int:
        """Ways to give every pool of a branch a choice of its share, and replicas."""
        return ways(self._paired(branch, shares), self._most, self._spare)

    @cached_property
    def _most(self) -> Chips:
        return tuple(budget.most for budget in self.site.budget.values())

    @cached_property
    def _spare(self) -> Chips:
        """Chips of each kind that a plan may leave."""
        return tuple(budget.most - budget.least for budget in self.site.budget.values())

    def _dimensions_of(self, branch: Branch) -> Iterator[tuple[str, Iterable[object]]]:
        for name in ("topology", "engine", "weights", "kv", "drafts"):
            yield name, [getattr(branch, name)]
        pools = self.legal[branch]
        shares = self._shares(branch, pools)
        for place, (role, layouts) in enumerate(zip(branch.roles, pools, strict=True)):
            yield f"{role}.chip", [branch.chips[place]]
            yield f"{role}.engine", [branch.engines[place]]
            yield f"{role}.layout", [layout.layout for layout in layouts]
            if role == "decode-experts":  # its replicas are those of attention, it has no batches
                continue
            yield f"{role}.replicas", self._numbers(branch, shares, place)
            batches = sorted({batch for one in layouts for batch in self.batches(branch, one)})
            yield f"{role}.max_num_batched_tokens", [step for step, _ in batches]
            yield f"{role}.max_num_seqs", sorted({seats for _, seats in batches})
        settings = self.settings(branch)
        for name in TIER_CHOICES:
            if name != "handoff":
                yield name, [getattr(setting.kv, name) for setting in settings]
        if len(branch.roles) > 1:
            yield "handoff", [setting.kv.handoff or "the engine's own" for setting in settings]
        for name in ("midfill_threshold_tokens", "micro_batches", "router"):
            yield name, [getattr(setting, name) for setting in settings]
        bounded = [setting for setting in settings if setting.max_queued_requests]
        limits = [setting.max_queued_requests or "no limit" for setting in settings]
        yield "max_queued_requests", limits
        yield "when_full", [setting.when_full or "try-others" for setting in bounded]
        yield "hosts", [setting.hosts or "those of the chips" for setting in settings]

    def _numbers(self, branch: Branch, shares: Sequence[Share], place: int) -> list[int]:
        """The numbers of replicas of a pool that some plan has."""
        share = shares[place]
        found = []
        for number in share.replicas or range(1, max(self._most) + 1):
            pinned = share._replace(replicas=(number,))
            if self._ways(branch, [*shares[:place], pinned, *shares[place + 1 :]]):
                found.append(number)
        return found

    def _branches(self) -> Iterator[Branch]:
        for topology in self.options.topology:
            roles = TOPOLOGY_ROLES[topology]
            kinds = [self.options.of(role).chips or tuple(self.site.budget) for role in roles]
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
            options = distinct(tuple(_word(getattr(branch, part)) for branch in remaining))
            answer = _unordered(draw, f"{name}{part}", options)
            remaining = [b for b in remaining if _word(getattr(b, part)) == answer]
            name = f"{name}{answer}." if len(options) > 1 else name
        return remaining[0]

    def _draw_tiers(self, draw: Draw, branch: Branch) -> KvTiers:
        """Tier sizes first, then retention and fetching that make sense with them."""
        remaining = self._surveys[branch].tiers
        for name in TIER_CHOICES:
            options = distinct(tuple(getattr(tiers, name) for tiers in remaining))
            value = _ordered(draw, name, options)
            remaining = tuple(tiers for tiers in remaining if getattr(tiers, name) == value)
        return remaining[0]

    def _thresholds(self, branch: Branch) -> tuple[int | None, ...]:
        return self.options.midfill_threshold_tokens if "midfill" in branch.roles else (None,)

    def _micro_batches(self, branch: Branch) -> tuple[int | None, ...]:
        return self.options.micro_batches if "decode-experts" in branch.roles else (None,)

    def _when_full(self, queue: int | None) -> tuple[WhenFull | None, ...]:
        """What becomes of requests at a full queue; a queue without a limit is never full."""
        return self.options.when_full if queue is not None else (None,)

    def _draw_pools(self, draw: Draw, branch: Branch) -> tuple[Pool, ...]:
        """The pools: each one's layout first, then its replicas and its batch."""
        shares = list(self._shares_of[branch])
        drawn: list[Pool] = []
        for place, layouts in enumerate(self.legal[branch]):
            drawn.append(draw_layout(draw, self._fitting(branch, layouts, shares, place)))
            shares[place] = self._share(drawn[-1:])
        left, together = self._most, self._paired(branch, shares)
        pools: list[Pool] = []
        for place, share in enumerate(together):
            pool, ((taken, _),) = drawn[place], share.choices
            numbers = [
                number
                for number in share.numbers(taken, left)
                if ways(together[place + 1 :], less(left, taken, number), self._spare)
            ]
            replicas = _ordered(draw, f"{pool.role}.replicas", numbers)
            left = less(left, taken, replicas)
            batched = with_batch(pool, *self._draw_batch(draw, branch, pool))
            pools.append(batched.model_copy(update={"replicas": replicas}))
        for experts in drawn[len(pools) :]:
            pools.append(experts.model_copy(update={"replicas": pools[-1].replicas}))
        return tuple(pools)

    @cached_property
    def _shares_of(self) -> dict[Branch, list[Share]]:
        return {branch: self._shares(branch, pools) for branch, pools in self.legal.items()}

    def _draw_batch(self, draw: Draw, branch: Branch, pool: Pool) -> tuple[int, int]:
        """Step tokens and seats; only the seats are asked for where the step follows."""
        batches = self.batches(branch, pool)
        steps = distinct(tuple(step for step, _ in batches))
        if len({seats for _, seats in batches}) < len(batches):
            step = _ordered(draw, f"{pool.role}.max_num_batched_tokens", steps)
            batches = tuple(batch for batch in batches if batch[0] == step)
        return _ordered(draw, f"{pool.role}.max_num_seqs", batches)


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _word(value: str | int | tuple[str, ...]) -> str:
    return "+".join(value) if isinstance(value, tuple) else str(value)


def _ordered(draw: Draw, name: str, options: Sequence[Option]) -> Option:
    return options[0] if len(options) == 1 else draw.ordered(name, options)


def _unordered(draw: Draw, name: str, options: Sequence[Option]) -> Option:
    return options[0] if len(options) == 1 else draw.unordered(name, options)
