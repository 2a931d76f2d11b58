"""What the keys of a job must be to one another, each rule with its remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from objectives.goals import Constraint, Objective
from objectives.metrics import MEAN, metric_of, pool_of, split_name
from objectives.weighted import mean_over
from spaces import catalog
from spaces.errors import InputError
from spaces.options import SpaceOptions
from spaces.plan import TOPOLOGY_ROLES, EngineName, Role
from spaces.precision import KvDtype

_BETTER = {"higher": "maximize", "lower": "minimize"}


class _Workload(Protocol):
    @property
    def trace(self) -> str | None: ...
    @property
    def called(self) -> str: ...


class _Load(Protocol):
    @property
    def concurrency(self) -> object | None: ...


class _Precision(Protocol):
    @property
    def kv(self) -> tuple[KvDtype, ...] | Mapping[Role, tuple[KvDtype, ...]]: ...


class CheckedJob(Protocol):
    """What of a job the rules look at."""

    @property
    def chips(self) -> Mapping[str, object]: ...
    @property
    def engine(self) -> tuple[EngineName, ...] | Mapping[Role, tuple[EngineName, ...]]: ...
    @property
    def precision(self) -> _Precision: ...
    @property
    def workload(self) -> Sequence[_Workload]: ...
    @property
    def load(self) -> _Load | None: ...
    @property
    def goals(self) -> tuple[Objective, ...]: ...
    @property
    def bounds(self) -> tuple[Constraint, ...]: ...
    @property
    def slo(self) -> object | None: ...
    @property
    def prices(self) -> Mapping[str, float]: ...
    @property
    def space(self) -> SpaceOptions: ...


def check_together(job: CheckedJob) -> None:
    """Raise an `InputError` for the first rule that the keys of a job break together."""
    _trace_is_there(job)
    _roles_have_chips_of_the_budget(job)
    _choices_by_role_name_the_roles(job)
    _objectives_go_the_better_way(job)
    _metrics_are_of_its_workloads(job)
    _metrics_are_of_its_pools(job)
    _slo_metrics_have_an_slo(job)
    _session_metrics_have_a_closed_loop(job)
    _price_metrics_have_prices(job)
    _power_metrics_have_figures(job)


def _trace_is_there(job: CheckedJob) -> None:
    for trace in (workload.trace for workload in job.workload):
        if trace is not None and not Path(trace).exists():
            raise InputError(
                "the trace must be a file that exists",
                key="workload.trace",
                value=trace,
                remedy="a path is taken relative to the job file",
            )


def _roles_have_chips_of_the_budget(job: CheckedJob) -> None:
    for role, pool in job.space.pools.items():
        for name in pool.chips:
            if name not in job.chips:
                raise InputError(
                    "a chip of the space must be in the budget",
                    key=f"space.pools.{role}.chips",
                    value=name,
                    remedy=f"add it to `chips`, or choose among {', '.join(job.chips)}",
                )


def _choices_by_role_name_the_roles(job: CheckedJob) -> None:
    """Where engines or KV formats go by role, they do for all roles of the topologies."""
    roles = {role for topology in job.space.topology for role in TOPOLOGY_ROLES[topology]}
    for key, choice in (("engine", job.engine), ("precision.kv", job.precision.kv)):
        if isinstance(choice, tuple):
            continue
        for role in sorted(roles ^ choice.keys()):
            raise InputError(
                f"{key} by role names every role of the topologies, and no other",
                key=key,
                value=f"none for {role}" if role in roles else role,
                remedy=f"the topologies {', '.join(job.space.topology)} have the roles "
                f"{', '.join(sorted(roles))}; set space.topology to those you mean",
            )


def _objectives_go_the_better_way(job: CheckedJob) -> None:
    for index, goal in enumerate(job.goals):
        better = _BETTER.get(metric_of(goal.metric).better, goal.direction)
        if goal.direction != better:
            raise InputError(
                f"{metric_of(goal.metric).better} {goal.metric} is better",
                key=f"objectives.{index}",
                value=str(goal),
                remedy=f"{better} {goal.metric}?",
            )


def _metrics_are_of_its_workloads(job: CheckedJob) -> None:
    several = len(job.workload) > 1
    names = [workload.called for workload in job.workload] if several else []
    for asked in _asked_metrics(job):
        metric, of = split_name(asked)
        if of and of not in names and not (several and of == MEAN):
            raise InputError(
                "a metric is of one of several workloads, or their mean",
                key="workload",
                value=asked,
                remedy=f"choose among {', '.join([*names, MEAN])}"
                if several
                else f"ask for {metric}",
            )
        if of == MEAN and mean_over(metric) is None:
            raise InputError(
                f"{metric} of several workloads has no mean",
                key="workload",
                value=asked,
                remedy=f"ask for {metric}, the worst of them, or for that of one workload",
            )
        if several and not of and metric_of(metric).better == "neither":
            raise InputError(
                f"no value of {metric} is better than another, so none is the worst",
                key="workload",
                value=asked,
                remedy=f"ask for that of one workload, for example {metric}@{names[0]}",
            )


def _metrics_are_of_its_pools(job: CheckedJob) -> None:
    """An objective needs a value of every plan, a constraint one plan that has the pool."""
    for name in _asked_metrics(job):
        role = pool_of(name)
        if role is None:
            continue
        having = [one for one in job.space.topology if role in TOPOLOGY_ROLES[one]]
        every = any(goal.metric == name for goal in job.goals)
        if not having or (every and len(having) < len(job.space.topology)):
            raise InputError(
                f"{name} is of a {role} pool, which {'every' if every else 'some'} plan must have",
                key="space.topology",
                value=", ".join(job.space.topology),
                remedy="choose among "
                + ", ".join(one for one in TOPOLOGY_ROLES if role in TOPOLOGY_ROLES[one]),
            )


def _slo_metrics_have_an_slo(job: CheckedJob) -> None:
    wanted = [name for name in _asked_metrics(job) if name.startswith(("goodput", "slo_"))]
    if wanted and job.slo is None:
        raise InputError(
            f"{wanted[0]} needs an SLO",
            key="slo",
            value="no slo",
            remedy="add for example slo: {ttft_ms: 2000, tpot_ms: 50}",
        )


def _session_metrics_have_a_closed_loop(job: CheckedJob) -> None:
    wanted = [name for name in _asked_metrics(job) if name.startswith("sessions_per_")]
    if wanted and (job.load is None or job.load.concurrency is None):
        raise InputError(
            f"{wanted[0]} needs a closed loop",
            key="load",
            value="an open one",
            remedy="ask for a concurrency, for example load: {concurrency: [1, 256]}",
        )


def _price_metrics_have_prices(job: CheckedJob) -> None:
    wanted = [name for name in _asked_metrics(job) if name.startswith("usd_")]
    known = {kind for kind in job.chips if catalog.chip(kind).usd_per_hour} | job.prices.keys()
    missing = sorted({*job.chips, *job.space.host_kind} - known)
    if wanted and missing:
        raise InputError(
            f"{wanted[0]} needs the price of every chip, and of the hosts beside them",
            key="prices",
            value=f"none for {', '.join(missing)}",
            remedy=f"add for example prices: {{{missing[0]}: 3.5}}, in USD per chip-hour",
        )


def _power_metrics_have_figures(job: CheckedJob) -> None:
    wanted = [name for name in _asked_metrics(job) if name.startswith(("power_", "joules_"))]
    missing = sorted(kind for kind in job.chips if catalog.chip(kind).power_w is None)
    missing += [kind for kind in job.space.host_kind if catalog.host(kind).tdp_w is None]
    if wanted and missing:
        raise InputError(
            f"{wanted[0]} needs the power of every chip",
            key="chips",
            value=f"none is published for {', '.join(missing)}",
            remedy="leave the chip or the metric out",
        )


def _asked_metrics(job: CheckedJob) -> list[str]:
    return [goal.metric for goal in job.goals] + [bound.metric for bound in job.bounds]
