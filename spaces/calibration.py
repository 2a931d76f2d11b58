"""What measured points say about predictions: constants, offsets, and how far off they remain."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from spaces.documents import Document, dump_yaml, read_yaml, validated
from spaces.errors import InputError
from spaces.plan import EngineName

Quantity = Literal["tpot", "ttft", "throughput"]
Changes = tuple[tuple[str, float], ...]
# What is known of a deployment, from much to nothing: points of its model on its chip, of its chip
# with other models, of other chips of its vendor, none.
Knowledge = Literal["pair", "chip", "vendor", "none"]
KNOWLEDGE: tuple[Knowledge, ...] = ("pair", "chip", "vendor", "none")


@dataclass(frozen=True, slots=True)
class Stack:
    """What offsets tell deployments apart by: see `Offset`."""

    model: str
    chip: str
    vendor: str
    engine: str
    weights: str
    speculates: bool = False
    generation: str = ""


class Offset(Document):
    """A factor on the time of every step of the deployments that it names.

    What is left out may be anything; `models` are catalogue names, `weights` the format of the
    routed experts (or of all weights), `speculates` whether tokens are drafted, `generation` that
    of the engine's release (`spaces.generation`), which a plan's `engine_version` tells.
    """

    models: tuple[str, ...] = ()
    chip: str | None = None
    vendor: str | None = None
    engine: EngineName | None = None
    weights: str | None = None
    speculates: bool | None = None
    generation: str | None = None
    factor: PositiveFloat
    points: PositiveInt

    def names(self, stack: Stack) -> bool:
        """Whether a deployment is among those it is for."""
        keys = ("chip", "vendor", "engine", "weights", "speculates", "generation")
        return (not self.models or stack.model in self.models) and all(
            getattr(self, key) in (None, getattr(stack, key)) for key in keys
        )


class Residuals(Document):
    """Quantiles 10 % and 90 % of measured / predicted over `points`, for one quantity.

    They hold for deployments of which `knowledge` is known; where `disaggregated` is given, only
    for those with prefill and decode apart, or together; where `strained` is given, only for those
    whose queue is long, or short (`objectives.uncertainty.is_strained`).
    """

    quantity: Quantity
    knowledge: Knowledge
    disaggregated: bool | None = None
    strained: bool | None = None
    low: PositiveFloat
    high: PositiveFloat
    points: PositiveInt

    def hold_for(self, *, disaggregated: bool, strained: bool) -> bool:
        """Whether a deployment of that kind is among those they are for."""
        apart = self.disaggregated in (None, disaggregated)
        return apart and self.strained in (None, strained)

    @model_validator(mode="after")
    def _ordered(self) -> Residuals:
        if self.low > self.high:
            raise InputError("low must not exceed high", key="low", value=self.low)
        return self


class MeasuredPair(Document):
    """A model family (catalogue names of its models) on a chip, with so many points."""

    models: tuple[str, ...]
    chip: str
    vendor: str
    points: PositiveInt


class MeasuredFit(Document):
    """What was fitted to rows of one operator or of steps, and how far off they are (medians).

    `error_before` is that of the cost model as it was, on all the rows, `error_after` under the
    fitted constants: in sample.
    """

    chip: str
    engine: EngineName | None = None
    what: str
    rows: PositiveInt
    error_before: float
    error_after: float


class TableRead(Document):
    """A table of operators or steps that a calibration was fitted to.

    `left_out` counts the rows that were not used by reason.
    """

    kind: Literal["operators", "steps"]
    file: str
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    rows: PositiveInt
    left_out: dict[str, int] = Field(default_factory=dict)
    fits: tuple[MeasuredFit, ...] = ()


class PointsRead(Document):
    """The file that a calibration was fitted to."""

    file: str
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    points: PositiveInt


class Calibration(Document):
    """Corrections of the cost model, fitted to measured serving points, operators and steps.

    `constants` replace figures of `overheads.yaml`, named by their path there
    (`frontend.by_engine_ms.vllm`), or hold for one chip or operator (`objectives.cost.tuning`).
    `offsets` multiply; all that name a deployment count.
    """

    command: str = ""
    fitted: str = Field(default="", description="date of the fit")
    data: PointsRead | None = None
    tables: tuple[TableRead, ...] = ()
    notes: tuple[str, ...] = ()
    constants: dict[str, float] = Field(default_factory=dict)
    offsets: tuple[Offset, ...] = ()
    pairs: tuple[MeasuredPair, ...] = ()
    residuals: tuple[Residuals, ...] = ()

    @cached_property
    def changes(self) -> Changes:
        """The constants as something that caches can compare."""
        return tuple(sorted(self.constants.items()))

    def step_factor(self, stack: Stack) -> float:
        """What the time of every step is multiplied by."""
        factor = 1.0
        for offset in self.offsets:
            if offset.names(stack):
                factor *= offset.factor
        return factor

    def knowledge(self, model: str, chip: str, vendor: str) -> Knowledge:
        """What is known of a model on a chip."""
        on_chip = [pair for pair in self.pairs if pair.chip == chip]
        if any(model in pair.models for pair in on_chip):
            return "pair"
        if on_chip:
            return "chip"
        return "vendor" if any(pair.vendor == vendor for pair in self.pairs) else "none"

    def to_yaml(self) -> str:
        """The calibration as text that `load_calibration` reads back."""
        return dump_yaml(self.model_dump(mode="json", exclude_none=True))


def load_calibration(path: Path) -> Calibration:
    """Read a calibration file; a wrong one is told as an `InputError`."""
    return validated(Calibration, read_yaml(path), str(path))
