"""What predictions at a site rest on, told with the results so that a report can say it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from objectives.calibrated import calibration_of, shipped_calibration
from objectives.cost.chip_efficiency import blocks_for
from objectives.cost.kernel_tables import kernels_of
from objectives.cost.overheads import overhead_blocks
from objectives.uncertainty import known_of, residuals_like
from spaces.calibration import (
    KNOWLEDGE,
    Calibration,
    Knowledge,
    Offset,
    Quantity,
    Residuals,
)
from spaces.documents import Document
from spaces.plan import DeploymentPlan
from spaces.site import OperatorCosts, Site

MEASURED_TABLES = (
    "measured tables of the plan's engine (aiconfigurator-core 0.12), as far as they go; "
    "`fitted_operators` counts what is not in them, `servefront simulate` names it"
)


class Ground(Document):
    """Where some seconds are from: `status` says whether measured, derived or an estimate."""

    what: str
    status: str
    source: str


class Provenance(Document):
    """What the predictions of a study rest on.

    `calibration` says which one holds, `corrections` what it changes for the model and the chips;
    `grounds` where the costs of operators and the fixed times are from. `knowledge` tells of each
    chip what was measured, `residuals` are the intervals to choose from by it.
    """

    calibration: str
    operator_costs: OperatorCosts
    corrections: tuple[str, ...]
    grounds: tuple[Ground, ...]
    knowledge: dict[str, Knowledge]
    residuals: tuple[Residuals, ...]

    def residuals_of(
        self, quantity: Quantity, plan: DeploymentPlan, metrics: Mapping[str, float]
    ) -> Residuals | None:
        """The row that the intervals of a plan with such metrics come from."""
        known = max((self.knowledge[kind] for kind in plan.chips_by_kind), key=KNOWLEDGE.index)
        return residuals_like(quantity, self.residuals, known, metrics, plan)


def provenance(site: Site) -> Provenance:
    """What predictions at a site rest on."""
    own = calibration_of(site)
    return Provenance(
        calibration=_calibration_in_words(site.calibration),
        operator_costs=site.operator_costs,
        corrections=tuple(_corrections(own, site)),
        grounds=tuple(_grounds(site)),
        knowledge={kind: known_of([chip], site) for kind, chip in site.chips.items()},
        residuals=(own if own.residuals else shipped_calibration()).residuals,
    )


def _calibration_in_words(own: Calibration | None) -> str:
    if own is None:
        return f"the shipped calibration, {_made(shipped_calibration())}"
    told = f"the job's own calibration, {_made(own)}"
    if not own.residuals:
        told += "; it has no intervals, so those of the shipped one hold"
    return told


def _made(calibration: Calibration) -> str:
    data, tables = calibration.data, calibration.tables
    read = [f"{data.points:,} points of {data.file}"] if data else []
    read += [f"{table.rows:,} rows of {table.kind} in {table.file}" for table in tables]
    return f"fitted {calibration.fitted or 'at an unknown date'} to {' and '.join(read) or '?'}"


def _corrections(calibration: Calibration, site: Site) -> Iterator[str]:
    """Offsets that may count for the site, and constants that hold for it."""
    for offset in calibration.offsets:
        if _concerns(offset, site):
            yield f"steps of {_named(offset)} x {offset.factor:.3f}, from {offset.points} points"
    chips = {chip.name for chip in site.chips.values()}
    for path, value in calibration.constants.items():
        kind, _, rest = path.partition(".")
        if kind not in ("operators", "chips") or rest.split(".")[0] in chips:
            yield f"{path}: {value:g}"


def _concerns(offset: Offset, site: Site) -> bool:
    chips = site.chips.values()
    return (
        (not offset.models or site.model.name in offset.models)
        and offset.chip in (None, *(chip.name for chip in chips))
        and offset.vendor in (None, *(chip.vendor for chip in chips))
        and offset.engine in (None, *site.engines)
    )


def _named(offset: Offset) -> str:
    drafts = {None: "", True: "drafting", False: "without drafts"}[offset.speculates]
    words = (
        *(" or ".join(offset.models), offset.chip, offset.vendor),
        *(offset.engine, offset.generation, offset.weights, drafts),
    )
    return ", ".join(word for word in words if word)


def _grounds(site: Site) -> Iterator[Ground]:
    if site.operator_costs == "measured":
        yield Ground(what="operators of all chips", status="measured", source=MEASURED_TABLES)
    for kind, chip in site.chips.items():
        kernels = kernels_of(chip)
        if kernels is not None:
            what = f"{kind}: matrix products of 32 rows and more"
            yield Ground(what=what, status="fitted", source=kernels.source)
        for name, block in blocks_for(chip.efficiency, site.model).items():
            words = f"{kind}: {name.replace('_', ' ')}"
            yield Ground(what=words, status=block.status, source=block.source)
    for name, block in overhead_blocks().items():
        words = f"all chips: {name.replace('_', ' ')}"
        yield Ground(what=words, status=block.status, source=block.source)
