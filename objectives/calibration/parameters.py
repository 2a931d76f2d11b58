"""What is fitted to serving points: constants of the cost model, and offsets by kind of row.

A new constant is one line of `CONSTANTS`, a new kind of offset one of `LEVELS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from objectives.cost.overheads import load_overheads
from objectives.validation import Predicted
from spaces.generation import generation_of
from spaces.precision import Dtype


@dataclass(frozen=True, slots=True)
class Constant:
    """A figure of `overheads.yaml` for each engine, its prior's standard deviation in logarithm.

    The prior's centre is the figure of the file, which comes from kernels and single steps.
    `in_ttft` constants are added to TTFT and nothing else, so that no simulation is needed to
    know their effect.
    """

    path: str
    log_sd: float
    in_ttft: bool = False

    def of(self, engine: str) -> str:
        """The path for one engine."""
        return self.path.format(engine=engine)


CONSTANTS = (
    Constant("engines.by_engine.{engine}.step_us", 0.15),
    Constant("engines.by_engine.{engine}.request_us", 0.3),
    Constant("engines.by_engine.{engine}.eager_layer_us", 0.3),
    Constant("frontend.by_engine_ms.{engine}", 0.3, in_ttft=True),
)

# Kinds of offsets on the time of a step: what they have in common.
LEVELS: Mapping[str, Callable[[Predicted], object]] = {
    "family": lambda p: p.point.setup.family,
    "weights": lambda p: weights_of(p),
    "speculates": lambda p: p.plan.speculation is not None,
    "generation": lambda p: engine_generation(p),
}

# Standard deviations of the offsets' priors, in logarithm, for the choice by held-out pairs: first
# none at all, then the constants alone, then more levels.
Strengths = Mapping[str, float]
_STACK = {"constants": 1.0, "family": 0.06}
CANDIDATES: tuple[Strengths, ...] = (
    {},
    {"constants": 1.0},
    {"constants": 1.0, "family": 0.03},
    _STACK,
    {"constants": 1.0, "generation": 0.06},
    _STACK | {"generation": 0.06},
    _STACK | {"speculates": 0.1},
    _STACK | {"speculates": 0.1, "weights": 0.06},
)


def engine_generation(predicted: Predicted) -> str:
    """Engine and generation of its release, in two words; empty where the release is not told."""
    plan = predicted.plan
    generation = generation_of(plan.engine, plan.engine_version)
    return f"{plan.engine} {generation}" if generation else ""


def weights_of(predicted: Predicted) -> Dtype:
    """The format of the routed experts, or of all weights."""
    model = predicted.site.model
    return model.weights(predicted.plan.precision.weights).routed_experts


def constant_value(path: str) -> float:
    """The figure of `overheads.yaml` at a path."""
    place: object = load_overheads().model_dump()
    for key in path.split("."):
        assert isinstance(place, dict), "a constant's path leads through mappings"
        place = place[key]
    assert isinstance(place, int | float), "a constant's path ends at a number"
    return float(place)


def groups_of(level: str, points: Sequence[Predicted]) -> list[str]:
    """The values of a level, one for each point; empty where a point has none."""
    return [str(LEVELS[level](point)) for point in points]
