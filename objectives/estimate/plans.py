"""Metrics of all plans of a branch of the search space from their steady states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from objectives.calibrated import calibration_of
from objectives.cost import frontend_seconds, kv_bytes_per_request, power_kw, usd_per_hour
from objectives.deployment import copy_s_per_byte, link_of, pool_costs
from objectives.estimate.demand import Demand
from objectives.estimate.metrics import Money, metrics_of
from objectives.estimate.steady import Loads, Pools, PromptTables, Steady, one_pool, split_pools
from objectives.estimate.tables import PoolTables, pool_tables
from objectives.slo import Slo
from spaces.enumeration import BranchPlans
from spaces.hosts import host_cores
from spaces.layouts import with_batch
from spaces.memory import hbm_ledger, tier_kv_tokens
from spaces.plan import DeploymentPlan, Pool
from spaces.site import Site
from spaces.speculation import acceptance_rates_of

Values = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# Plans whose steady states are sought at a time, so that the arrays stay in the cache.
TOGETHER = 32_768


def estimated(
    plans: BranchPlans,
    site: Site,
    demand: Demand,
    names: Sequence[str],
    *,
    slo: Slo | None = None,
    prices: Mapping[str, float] | None = None,
) -> dict[str, Values]:
    """The metrics `names` of every plan of a branch, in the order of its numbers.

    A metric that the formulas do not know is nan everywhere.
    """
    money = Money.of(plans, site, prices)
    return _Branch.of(plans, site, demand, names, slo, money, prices).metrics()


@dataclass(frozen=True)
class _Variants:
    """What is known of each variant [v] of a pool that requests are in.

    `tables` are those of its layouts; each layout of attention has one for every layout of experts
    and every number of micro-batches, the latter fastest.
    """

    tables: PoolTables
    layout: Ints
    step: Ints
    ranks: Values
    stages: Values
    chips: Values
    most_running: Values
    kv_tokens: Values
    link_s: Values


@dataclass(frozen=True)
class _Branch:
    plans: BranchPlans
    site: Site
    demand: Demand
    names: Sequence[str]
    slo: Slo | None
    money: Money
    prices: Mapping[str, float] | None
    pools: list[_Variants] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        plans: BranchPlans,
        site: Site,
        demand: Demand,
        names: Sequence[str],
        slo: Slo | None,
        money: Money,
        prices: Mapping[str, float] | None,
    ) -> _Branch:
        branch = cls(plans, site, demand, names, slo, money, prices)
        serving = len(plans.variants) - branch._splits_decode
        branch.pools.extend(branch._variants(place) for place in range(serving))
        return branch

    @property
    def _splits_decode(self) -> bool:
        return self.plans.settings[0].splits_decode

    @cached_property
    def _micro_batches(self) -> list[int]:
        """What the settings have between attention and experts."""
        return list(dict.fromkeys(setting.ping_pong for setting in self.plans.settings))

    def metrics(self) -> dict[str, Values]:
        plans = self.plans
        loads = len(plans.loads)
        shape = (len(plans.variant), len(plans.settings), loads)
        found = {name: np.full(shape, np.nan) for name in self.names}
        rows = max(1, TOGETHER // loads)
        for place, setting in enumerate(plans.settings):
            twin = _first_alike(plans.settings, place)
            if twin < place:
                for values in found.values():
                    values[:, place] = values[:, twin]
                continue
            for start in range(0, len(plans.variant), rows):
                part = np.arange(start, min(start + rows, len(plans.variant)))
                for name, values in self._metrics_of(part, setting).items():
                    found[name][part, place] = values.reshape(len(part), loads)
        return {name: values.reshape(-1) for name, values in found.items()}

    def _metrics_of(self, part: Ints, setting: DeploymentPlan) -> dict[str, Values]:
        loads = self._loads(part, setting)
        frontend_s = frontend_seconds(setting.engine, calibration_of(self.site).changes)
        outside_s = np.full(len(loads.users), frontend_s)
        rows = np.repeat(part, len(self.plans.loads))
        if len(self.pools) > 1:
            variants = self.pools[0]
            outside_s += variants.link_s[self.plans.variant[rows, 0]]
            last = len(self.pools) - 1
            outside_s += self.pools[last].link_s[self.plans.variant[rows, last]]
        steady = self._steady(rows, setting, loads, outside_s)
        chips = self.plans.chips[rows].astype(np.float64)
        return metrics_of(
            self.names,
            steady,
            loads,
            self.demand,
            outside_s,
            chips,
            self._money(rows, setting),
            self.slo,
            self.site.budget_chips,
            [variants[0].role for variants in self.plans.variants],
        )

    def _steady(
        self, rows: Ints, setting: DeploymentPlan, loads: Loads, outside_s: Values
    ) -> Steady:
        everything = np.ones(self.demand.new_tokens.shape[1], dtype=np.bool_)
        pools = [self._pools(place, rows, setting) for place in range(len(self.pools))]
        if len(pools) == 1:
            prompts = PromptTables.of(pools[0].tables, everything)
            return one_pool(pools[0], prompts, loads, self.demand, outside_s)
        parts = [everything]
        if setting.has_midfill:
            midfill = self._midfilled(setting)
            parts = [~midfill, midfill]
        prefills = [
            (one, PromptTables.of(one.tables, part))
            for one, part in zip(pools, parts, strict=False)
            if part.any()
        ]
        steady = split_pools(prefills, pools[-1], loads, self.demand, outside_s)
        return replace(steady, utilization=self._of_all_pools(steady.utilization, parts))

    def _of_all_pools(self, utilization: Values, parts: Sequence[npt.NDArray[np.bool_]]) -> Values:
        """With the pools that no prompt goes to, and experts, which work when attention does."""
        for place, part in enumerate(parts):
            if not part.any():
                utilization = np.insert(utilization, place, 0.0, axis=1)
        if self._splits_decode:
            utilization = np.column_stack([utilization, utilization[:, -1]])
        return utilization

    def _midfilled(self, setting: DeploymentPlan) -> npt.NDArray[np.bool_]:
        """Which requests of the sample go to the midfill pool once all caches are warm."""
        new, cached = self.demand.new_tokens[1], self.demand.cached_tokens[1]
        found: npt.NDArray[np.bool_] = (cached > 0) & (new <= setting.midfill_tokens)
        return found

    def _pools(self, place: int, rows: Ints, setting: DeploymentPlan) -> Pools:
        variants = self.pools[place]
        variant = self.plans.variant[rows, place]
        replicas = self.plans.replicas[rows, place].astype(np.float64)
        return Pools(
            tables=variants.tables,
            layout=self._layouts(place, rows, setting),
            step=variants.step[variant],
            replicas=replicas,
            ranks=variants.ranks[variant],
            stages=variants.stages[variant],
            most_running=variants.most_running[variant],
            cached=self._cached(place, variant, replicas, setting),
        )

    def _layouts(self, place: int, rows: Ints, setting: DeploymentPlan) -> Ints:
        """Which of the pool's tables each plan has."""
        layout: Ints = self.pools[place].layout[self.plans.variant[rows, place]]
        if self.plans.variants[place][0].role != "decode-attention":
            return layout
        numbers = self._micro_batches
        experts = layout * len(self.plans.variants[-1]) + self.plans.variant[rows, -1]
        found: Ints = experts * len(numbers) + numbers.index(setting.ping_pong)
        return found

    def _cached(
        self, place: int, variant: Ints, replicas: Values, setting: DeploymentPlan
    ) -> Values:
        """The share of the possible prefix hits that a pool's caches give.

        A store that all ranks reach holds for each of them. Without one a turn finds what the turn
        before left only on the same rank: by the router's choice, or else by chance.
        """
        if not setting.prefix_caching:
            return np.zeros(len(variant))
        variants = self.pools[place]
        own_gb = setting.kv.host_gb_per_chip + setting.kv.ssd_gb_per_chip
        below = np.array(
            [
                float(tier_kv_tokens(self.site.model, pool, setting, own_gb))
                for pool in self.plans.variants[place]
            ]
        )
        ranks = replicas * variants.ranks[variant]
        room = ranks * (variants.kv_tokens + below)[variant]
        if setting.kv.shared_gb:
            model, kv = self.site.model, setting.precision.kv
            token = model.kv_bytes_per_token(kv) + model.windowed_kv_bytes_per_token(kv)
            return self.demand.share_cached(room + setting.kv.shared_gb * 1e9 / token)
        found = self.demand.share_cached(room)
        return found if setting.router == "prefix-affinity" else found / ranks

    def _loads(self, part: Ints, setting: DeploymentPlan) -> Loads:
        users = self._users()
        open_rate = [self.demand.requests_per_s(load) for load in self.plans.loads]
        return Loads(
            users=np.tile([np.nan if n is None else float(n) for n in users], len(part)),
            rate=np.tile(open_rate, len(part)),
            most=np.repeat(self._most_requests_per_s(part, setting), len(self.plans.loads)),
        )

    def _most_requests_per_s(self, part: Ints, setting: DeploymentPlan) -> Values:
        """What the cores for tools allow, for each combination of pools."""
        if not self.site.tools_on_hosts or not self.demand.tool_s:
            return np.full(len(part), np.inf)
        cores = np.zeros(len(part))
        if setting.hosts is not None:
            cores += setting.hosts.count * self.site.hosts[setting.hosts.kind].cores.value
        for place, variants in enumerate(self.plans.variants):
            each = np.array([self._tool_cores(pool, setting) for pool in variants])
            cores += self.plans.replicas[part, place] * each[self.plans.variant[part, place]]
        found: Values = np.maximum(cores, 1.0) / self.demand.tool_s
        return found

    def _tool_cores(self, pool: Pool, setting: DeploymentPlan) -> float:
        """What a replica adds to the cores for tools, or takes from those of the plan's hosts."""
        own = setting.model_copy(update={"pools": (pool,), "hosts": None})
        cores = host_cores(own, self.site)
        return float(cores.tools if setting.hosts is None else -cores.front_end)

    def _money(self, rows: Ints, setting: DeploymentPlan) -> Money:
        money = self.money.of_rows(rows)
        if setting.hosts is None:
            return money
        alone = setting.model_copy(update={"pools": ()})
        return money.beside(
            usd_per_hour(alone, self.site.chips, self.prices),
            power_kw(alone, self.site.chips, self.site.hosts),
        )

    def _users(self) -> list[int | None]:
        """Users of each load, none in an open loop: more than there are sessions never come."""
        most = self.demand.sessions
        return [
            min(load.concurrency, most) if load and load.concurrency else None
            for load in self.plans.loads
        ]

    def _variants(self, place: int) -> _Variants:
        pools = self.plans.variants[place]
        setting = self.plans.settings[0]
        seats = max(pool.max_num_seqs for pool in pools)
        steps = sorted({pool.max_num_batched_tokens for pool in pools})
        shapes = list(
            dict.fromkeys(
                with_batch(pool, max(steps[-1], seats * setting.verified_tokens(pool)), seats)
                for pool in pools
            )
        )
        sides = self._sides(pools[0])
        tables = pool_tables(
            [shape for shape in shapes for _ in sides],
            [pool_costs(side, shape, self.site) for shape in shapes for side in sides],
            self.demand,
            steps,
            self._most_running(pools),
            self.site.engines[setting.settings(pools[0]).engine].scheduling == "alternating",
            self._tokens_per_step(setting),
        )
        number = {(s.tp, s.pp, s.dp, s.ep): place for place, s in enumerate(shapes)}
        kv = [self._kv(pool, setting) for pool in pools]
        return _Variants(
            tables=tables,
            layout=np.array([number[pool.tp, pool.pp, pool.dp, pool.ep] for pool in pools]),
            step=np.array([steps.index(pool.max_num_batched_tokens) for pool in pools]),
            ranks=np.array([float(pool.dp) for pool in pools]),
            stages=np.array([float(pool.pp) for pool in pools]),
            chips=np.array([float(pool.chips_per_replica) for pool in pools]),
            most_running=np.array([most for most, _ in kv]),
            kv_tokens=np.array([tokens for _, tokens in kv]),
            link_s=np.array([self._link_s(pool, setting) for pool in pools]),
        )

    def _sides(self, pool: Pool) -> list[DeploymentPlan]:
        """What the step of a layout depends on beside the layout itself, as plans of that."""
        setting = self.plans.settings[0]
        if pool.role != "decode-attention":
            return [setting]
        return [
            setting.model_copy(update={"pools": (experts,), "micro_batches": parts})
            for experts in self.plans.variants[-1]
            for parts in self._micro_batches
        ]

    def _tokens_per_step(self, setting: DeploymentPlan) -> float:
        if setting.speculation is None:
            return 1.0
        return 1.0 + sum(acceptance_rates_of(self.site.model, setting.speculation))

    def _most_running(self, pools: Sequence[Pool]) -> int:
        """The most requests on a replica that any load can lead to."""
        held = max(pool.dp * pool.max_num_seqs for pool in pools)
        users = self._users()
        known = [n for n in users if n is not None]
        return min(held, max(known)) if len(known) == len(users) else held

    def _kv(self, pool: Pool, setting: DeploymentPlan) -> tuple[float, float]:
        """Requests a replica holds by its seats and KV memory, and the KV tokens of a rank."""
        site, block = self.site, setting.block_size
        ledger = hbm_ledger(
            site.model, site.chips[pool.chip], pool, setting, site.longest_request_tokens
        )
        blocks = ledger.kv_blocks(block)
        context = self.demand.context_tokens
        if pool.role in ("prefill", "midfill"):
            context = self.demand.input_tokens
        held = blocks / (context / block + ledger.request_blocks(block))
        return pool.dp * max(1.0, min(float(pool.max_num_seqs), held)), float(blocks * block)

    def _link_s(self, pool: Pool, setting: DeploymentPlan) -> float:
        """Seconds to hand a request's KV to the next pool, or to copy it in; nobody else does."""
        if len(self.plans.variants) == 1:
            return 0.0
        pools = [
            pool if variants[0].role == pool.role else variants[0]
            for variants in self.plans.variants
        ]
        plan = setting.model_copy(update={"pools": tuple(pools)})
        size = kv_bytes_per_request(
            self.site.model, setting.precision, int(self.demand.input_tokens)
        )
        copying_s = size * copy_s_per_byte(plan, pool, self.site)
        if pool.takes_prompts:
            return link_of(plan, pool, self.site).seconds(size) + copying_s
        return copying_s


def _first_alike(settings: Sequence[DeploymentPlan], place: int) -> int:
    """The first setting that the formulas cannot tell from the one at `place`."""

    def seen(setting: DeploymentPlan) -> tuple[object, ...]:
        tiers = setting.kv
        affine = setting.router == "prefix-affinity"
        own_gb = tiers.host_gb_per_chip + tiers.ssd_gb_per_chip
        sides = setting.midfill_threshold_tokens, setting.ping_pong
        return own_gb, tiers.shared_gb, sides, affine, setting.hosts

    wanted = seen(settings[place])
    return next(n for n, setting in enumerate(settings) if seen(setting) == wanted)
