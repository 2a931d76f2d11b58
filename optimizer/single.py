"""One plan on its own, outside any search."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from optimizer.job import Job
from optimizer.problem import cores_of, load_grid
from spaces import catalog
from spaces.errors import InputError
from spaces.plan import DeploymentPlan, load_plan
from spaces.site import Site


def loaded_plan(path: Path, job: Job, where: str) -> DeploymentPlan:
    """The plan in a file, for the job's model and at its own load or else the job's.

    Raises `InputError` when the plan is for another model, or names no load where the job has
    several.
    """
    plan = plan_for(path, job)
    if plan.load is not None:
        return plan
    loads = load_grid(job.load)
    if len(loads) > 1:
        raise InputError(
            f"the plan has no load, and the job has a range of them ({loads[0]} to {loads[-1]})",
            where=str(path),
            key="load",
            value="none",
            remedy=f"add for example load: {{concurrency: 64}} there, or fix it in {where}",
        )
    return plan if loads[0] is None else plan.at(loads[0])


def plan_for(path: Path, job: Job) -> DeploymentPlan:
    """The plan in a file, whatever its load; an `InputError` when it is for another model."""
    plan = load_plan(path)
    if catalog.model(plan.model).name != catalog.model(job.model).name:
        raise InputError(
            f"the plan must be for the job's model, {job.model}",
            where=str(path),
            key="model",
            value=plan.model,
            remedy="change the model of the job or of the plan",
        )
    return plan


def site_of(plan: DeploymentPlan, site: Site, where: str) -> Site:
    """The site with the plan's engines and chips among those that are known.

    A plan may use an engine or chips that the job does not search; the budget still holds.
    """
    try:
        chips = {pool.chip: catalog.chip(pool.chip) for pool in plan.pools}
    except InputError as error:
        raise error.located(where, "pools") from None
    try:
        hosts = {plan.hosts.kind: catalog.host(plan.hosts.kind)} if plan.hosts else {}
    except InputError as error:
        raise error.located(where, "hosts.kind") from None
    return replace(
        site,
        chips={**site.chips, **chips},
        engines={**site.engines, **{name: catalog.engine(name) for name in plan.engines}},
        hosts={**site.hosts, **hosts},
        cores_per_chip=cores_of(chips) | dict(site.cores_per_chip),
    )
