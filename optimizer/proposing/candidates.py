"""All plans of a space by their estimates: which could be worth simulating, and what they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import moocore
import numpy as np
import numpy.typing as npt

from objectives.estimate import demand_of, estimated, not_estimated
from objectives.goals import Constraint, Objective
from objectives.metrics import pool_of
from objectives.weighted import combined, ingredients
from optimizer.problem import Problem
from spaces.enumeration import BranchPlans, enumerated
from spaces.plan import TOPOLOGY_ROLES, DeploymentPlan, Role

Values = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# Spaces with more plans are not listed: their tables and estimates would take gigabytes.
MOST_PLANS = 3_000_000
# Plans that are kept as candidates, best estimates first.
MOST_CANDIDATES = 20_000
# Points of the estimated front against which a plan is held; more change little.
_FRONT_POINTS = 100
# What is told of a pool (tp, pp, dp, ep, two batch limits, replicas) and of the rest (host and
# shared tier, setting, load and its square).
_POOL_FEATURES, _OTHER_FEATURES = 7, 5


@dataclass(frozen=True)
class Candidates:
    """The plans [n] of a space whose estimates are nearest to the estimated front.

    `estimates` [plan, metric] are those of the whole space, branch by branch, and `rows` [n] the
    places of the candidates in it. Of the `metrics` the first are those of the objectives. Those
    that are `rough` have no estimate, and 1 stands for all their values; or they are of single
    pools over the whole run, of which a steady state tells the order rather than the size.
    """

    tables: tuple[BranchPlans, ...]
    metrics: tuple[str, ...]
    estimates: Values
    rows: Ints
    rough: tuple[bool, ...]

    @classmethod
    def of(cls, problem: Problem) -> Candidates:
        """The candidates of a problem that `why_not_estimated` finds nothing against."""
        tables = enumerated(problem.space)
        metrics = wanted_metrics(problem.objectives, problem.constraints)
        estimates = np.concatenate([_estimates(problem, table, metrics) for table in tables])
        signs = np.array([1.0 if o.direction == "maximize" else -1.0 for o in problem.objectives])
        gains = _logs(estimates[:, : len(signs)]) * signs
        known = np.isfinite(estimates).all(axis=1) & np.isfinite(gains).all(axis=1)
        unknown = _unknown(metrics, problem)
        rough = tuple(name in unknown or pool_of(name) is not None for name in metrics)
        return cls(tables, metrics, estimates, _best(gains, known, _groups(tables)), rough)

    def plan(self, row: int) -> DeploymentPlan:
        """The plan at a place of the whole space."""
        place = int(self.branches(np.array([row]))[0])
        return self.tables[place].plan(row - int(self._starts[place]))

    def row_of(self, plan: DeploymentPlan) -> int | None:
        """The place of a plan, None where there is no estimate of it."""
        for start, table in zip(self._starts.tolist(), self.tables, strict=True):
            if table.branch.topology == plan.topology:
                number = table.number_of(plan)
                if number is not None:
                    return int(start) + number
        return None

    def branches(self, rows: Ints) -> Ints:
        """Which of the `tables` each row is in."""
        found: Ints = np.searchsorted(self._starts, rows, side="right") - 1
        return found

    def logs(self, rows: Ints) -> Values:
        """Logarithms of the estimated metrics [row, metric]."""
        return _logs(self.estimates[rows])

    def groups(self, rows: Ints) -> Ints:
        """Which topology each plan has, by number."""
        found: Ints = _groups(self.tables)[rows]
        return found

    def with_pool(self, role: Role | None) -> npt.NDArray[np.bool_]:
        """Which candidates [n] have a pool of a role; all where None is asked for."""
        having = [role is None or role in TOPOLOGY_ROLES[t.branch.topology] for t in self.tables]
        found: npt.NDArray[np.bool_] = np.array(having)[self.branches(self.rows)]
        return found

    def features(self, rows: Ints) -> Values:
        """What the plans are made of [row, feature], with sizes by their logarithms."""
        pools = max(len(table.variants) for table in self.tables)
        own = _POOL_FEATURES * pools + _OTHER_FEATURES
        found = np.zeros((len(rows), own + len(self.tables)))
        places = self.branches(rows)
        for place, table in enumerate(self.tables):
            mine = np.flatnonzero(places == place)
            found[mine, :own] = _features(table, rows[mine] - self._starts[place], own)
            found[mine, own + place] = 1.0
        logs = np.nan_to_num(self.logs(rows), nan=0.0, posinf=0.0, neginf=0.0)
        return np.hstack([found, logs, logs**2])

    @cached_property
    def _starts(self) -> Ints:
        lengths = [len(table) for table in self.tables]
        return np.cumsum([0, *lengths[:-1]]).astype(np.int64)


def why_not_estimated(problem: Problem) -> str:
    """Why the space of a problem is not estimated as a whole, in words; empty where it can be."""
    size = problem.space.size()
    if size > MOST_PLANS:
        return f"the space of {size:,} points is too large to be listed"
    goals = {objective.metric for objective in problem.objectives}
    unknown = sorted(_unknown(goals, problem))
    return f"no estimate knows {', '.join(unknown)}" if unknown else ""


def learned_alone(problem: Problem) -> list[str]:
    """The metrics of constraints that no estimate knows, which simulations alone tell."""
    bounds = dict.fromkeys(bound.metric for bound in problem.constraints)
    unknown = _unknown(bounds, problem)
    return [name for name in bounds if name in unknown]


def wanted_metrics(
    objectives: Sequence[Objective], constraints: Sequence[Constraint]
) -> tuple[str, ...]:
    """The metrics of the objectives, then those of constraints that are no objectives."""
    goals = [objective.metric for objective in objectives]
    return tuple(dict.fromkeys([*goals, *(bound.metric for bound in constraints)]))


def _estimates(problem: Problem, table: BranchPlans, metrics: Sequence[str]) -> Values:
    """The estimated metrics [plan, metric] of a branch; in order of number.

    Of a metric that no estimate knows, which then only a constraint asks for, 1 stands for all;
    and so it does for one of a pool that a plan has not, or that no request comes to.
    """
    needed = tuple(dict.fromkeys(each for name in metrics for each in ingredients(name)))
    found = [
        estimated(
            table,
            problem.site,
            demand_of(one.workload),
            needed,
            slo=problem.slo,
            prices=problem.prices,
        )
        for one in problem.workloads
    ]
    unknown, parts = _unknown(metrics, problem), problem.workloads
    columns = [
        np.ones(len(table)) if name in unknown else np.asarray(combined(name, parts, found))
        for name in metrics
    ]
    columns = [
        column if pool_of(name) is None else np.where(column > 0, column, 1.0)
        for name, column in zip(metrics, columns, strict=True)
    ]
    return np.column_stack(columns)


def _unknown(metrics: Iterable[str], problem: Problem) -> set[str]:
    """Those of the metrics that no estimate knows."""
    unknown = not_estimated(problem.slo)
    return {name for name in metrics if not unknown.isdisjoint(ingredients(name))}


def _logs(values: Values) -> Values:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.log(values))


def _groups(tables: Sequence[BranchPlans]) -> Ints:
    topologies = list(dict.fromkeys(table.branch.topology for table in tables))
    return np.concatenate(
        [np.full(len(table), topologies.index(table.branch.topology)) for table in tables]
    )


def _best(gains: Values, known: npt.NDArray[np.bool_], groups: Ints) -> Ints:
    """The rows nearest to the front of all `gains`, an even number of them from each group.

    The distance of a row is the least factor, as a logarithm, by which its metrics must be better
    for it to be on the front.
    """
    rows = np.flatnonzero(known)
    front = gains[rows][moocore.is_nondominated(-gains[rows], keep_weakly=False)]
    front = front[np.linspace(0, len(front) - 1, min(len(front), _FRONT_POINTS)).astype(int)]
    distance = _distances(gains[rows], front)
    there = np.unique(groups[rows])
    chosen = []
    for group in there:
        mine = np.flatnonzero(groups[rows] == group)
        order = np.argsort(distance[mine], kind="stable")
        chosen.append(rows[mine[order[: MOST_CANDIDATES // len(there)]]])
    return np.sort(np.concatenate(chosen))


def _distances(gains: Values, front: Values) -> Values:
    """How much each row of `gains` [n, k] must grow in all columns not to be beaten by `front`.

    Against one point a row must be better in some column, against all points in one for each:
    the largest over points of the least over columns.
    """
    found = np.full(len(gains), -np.inf)
    for point in front:
        np.maximum(found, (point - gains).min(axis=1), out=found)
    return found


def _features(table: BranchPlans, numbers: Ints, width: int) -> Values:
    rest, load = np.divmod(numbers, len(table.loads))
    combination, setting = np.divmod(rest, len(table.settings))
    columns = []
    for place, variants in enumerate(table.variants):
        sizes = [
            (p.tp, p.pp, p.dp, p.ep, p.max_num_seqs, p.max_num_batched_tokens) for p in variants
        ]
        columns.append(
            np.log2(np.array(sizes, dtype=np.float64))[table.variant[combination, place]]
        )
        columns.append(np.log2(table.replicas[combination, place])[:, None])
    tiers = [(s.kv.host_gb_per_chip, s.kv.shared_gb) for s in table.settings]
    columns.append(np.array(tiers, dtype=np.float64)[setting])
    columns.append(setting[:, None].astype(np.float64))
    sizes_of_load = [
        (one.concurrency or one.request_rate or 1.0) if one else 1.0 for one in table.loads
    ]
    logs = np.log2(np.array(sizes_of_load, dtype=np.float64))[load]
    found = np.zeros((len(numbers), width))
    own = np.hstack(columns)
    found[:, : own.shape[1]] = own
    found[:, -2], found[:, -1] = logs, logs**2
    return found
