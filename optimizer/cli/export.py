"""servefront export"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from optimizer.cli.talk import say, show

if TYPE_CHECKING:
    from spaces.plan import DeploymentPlan


def export(
    what: Annotated[
        str, typer.Argument(metavar="PLAN.yaml|DIR:POINT_ID", help="A plan, or a study's point.")
    ],
    target: Annotated[str, typer.Option(help="What deploys it: vllm or dynamo.")],
    out: Annotated[Path, typer.Option(help="The directory to write into.")],
    storage: Annotated[
        str | None, typer.Option(metavar="URL", help="The study's storage, if it has a password.")
    ] = None,
) -> None:
    """Write the files that deploy a plan."""
    from results.manifests import export as exported
    from results.manifests import write_manifests
    from spaces import catalog

    plan = _plan(what, storage)
    chips = {pool.chip: catalog.chip(pool.chip) for pool in plan.pools}
    files = exported(plan, catalog.model(plan.model), chips, target)
    write_manifests(files, out)
    for name in sorted(files):
        show(str(out / name))
    say(f"read {out / 'DEPLOY.md'} for how to start it")


def _plan(what: str, storage: str | None) -> DeploymentPlan:
    from optimizer.directory import read_results
    from spaces.errors import InputError, did_you_mean
    from spaces.plan import load_plan

    directory, colon, point_id = what.rpartition(":")
    if not colon or Path(what).is_file():
        return load_plan(Path(what))
    records = read_results(Path(directory), storage).records
    plans = {record.plan.point_id: record.plan for record in records}
    if point_id not in plans:
        raise InputError(
            "the study has no such point",
            where=directory,
            value=point_id,
            remedy=did_you_mean(point_id, plans) if len(plans) < 10 else "see `servefront front`",
        )
    return plans[point_id]
