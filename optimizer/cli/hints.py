"""What the command line says to do next."""

from __future__ import annotations

from collections.abc import Iterator

from results.manifests import targets_of
from spaces import catalog
from spaces.errors import InputError
from spaces.plan import DeploymentPlan


def export_hints(plan: DeploymentPlan, what: str) -> Iterator[str]:
    """The command that deploys `plan`, which `what` names on the command line.

    A target that runs the plan's own engine by itself goes first. Where no target can deploy the
    plan, each says why.
    """
    try:
        model = catalog.model(plan.model)
        chips = {pool.chip: catalog.chip(pool.chip) for pool in plan.pools}
    except InputError as error:
        yield f"no target can deploy it: {error}"
        return
    able, refused = targets_of(plan, model, chips)
    if able:
        target = next((one for one in able if one in plan.engines), able[0])
        yield f"servefront export {what} --target {target} --out deploy"
        return
    yield "no target can deploy it:"
    for target, reason in refused.items():
        yield f"  {target}: {reason}"
