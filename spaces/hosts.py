"""Cores of the hosts of a plan, and what they are for."""

from __future__ import annotations

from dataclasses import dataclass

from spaces.plan import DeploymentPlan
from spaces.site import Site


@dataclass(frozen=True, slots=True)
class HostCores:
    """Cores of front-end processes, and those that are left for tools: none where less than 1."""

    front_end: int
    tools: int


def host_cores(plan: DeploymentPlan, site: Site) -> HostCores:
    """The cores of the plan's own hosts, or of those that its chips sit with.

    The latter serve the engines first. Hosts of chips of which nothing is known add none.
    """
    front_end = sum(
        pool.replicas * pool.dp * site.engines[plan.settings(pool).engine].front_end_cores_per_rank
        for pool in plan.pools
        if pool.takes_prompts
    )
    if plan.hosts is not None:
        cores = plan.hosts.count * int(site.hosts[plan.hosts.kind].cores.value)
        return HostCores(front_end, cores - front_end)
    cores = sum(int(pool.chips * site.cores_per_chip.get(pool.chip, 0.0)) for pool in plan.pools)
    return HostCores(front_end, cores - front_end - _engine_cores(plan, site))


def _engine_cores(plan: DeploymentPlan, site: Site) -> int:
    """Cores that the engines' own processes keep busy, beside known chips."""
    taken = 0
    for pool in plan.pools:
        engine = site.engines[plan.settings(pool).engine]
        each = pool.chips_per_replica * engine.cores_per_chip + pool.dp * engine.cores_per_rank
        taken += pool.replicas * each if pool.chip in site.cores_per_chip else 0
    return taken
