"""Problems of calibration made up for tests: predictions of which the truth is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from objectives.calibration.observations import Observations, observations
from objectives.calibration.parameters import CONSTANTS
from objectives.validation import Point, Predicted
from objectives.validation.points import THROUGHPUT
from spaces.plan import Load
from tests.objectives.validation.test_scores import SETUP
from tests.spaces.worlds import plan_of, site_of

MODELS = ("llama-3.1-8b", "llama-3.3-70b", "qwen3-32b")
CHIPS = ("h100", "h200", "b200")


def predicted(
    model: str, chip: str, log_ratio: float, config: str = "one", **changes: object
) -> Predicted:
    """A closed loop of four whose measured times are so much longer than predicted ones."""
    setup = replace(SETUP, family=model, hardware=chip, **changes)  # type: ignore[arg-type]
    factor = float(np.exp(log_ratio))
    metrics = {
        "tpot_p50_ms": 10.0,
        "ttft_p50_ms": 100.0,
        "run_output_tokens_per_s_per_chip": 50.0,
        "e2e_mean_ms": 1000.0,
        "e2e_p50_ms": 1000.0,
    }
    measured = {"tpot": 10.0 * factor, "ttft": 100.0 * factor, THROUGHPUT: 50.0 / factor}
    plan = plan_of(model, chip, tp=8).at(Load(concurrency=4))
    point = Point(setup, "image", config, 1, measured)
    return Predicted(point, plan, site_of(model, {chip: 8}), metrics)


def problem(
    log_ratios: Mapping[tuple[str, str], float],
    *,
    points: int = 8,
    noise: float = 0.0,
    older: float | None = None,
) -> Observations:
    """Points of each (model, chip), constants without any effect of their own.

    Where `older` is given, every other point ran under an older release, with so much more to its
    log ratio, and the rest under a newer one.
    """
    draws = np.random.default_rng(3)
    base = [
        predicted(model, chip, value + noise * draws.standard_normal(), f"{model}{chip}{n}")
        for (model, chip), value in log_ratios.items()
        for n in range(points)
    ]
    if older is not None:
        base = [released(one, older if n % 2 else 0.0) for n, one in enumerate(base)]
    return observations(base, {c.path: base for c in CONSTANTS if not c.in_ttft})


def released(one: Predicted, log_ratio: float) -> Predicted:
    """The point under a release: an older one where it is slower than predicted."""
    version = "0.13.0" if log_ratio else "0.19.0"
    plan = one.plan.model_copy(update={"engine_version": version})
    factor = float(np.exp(log_ratio))
    measured = {
        name: value / factor if name == THROUGHPUT else value * factor
        for name, value in one.point.measured.items()
    }
    return replace(one, plan=plan, point=replace(one.point, measured=measured))


def everywhere(value: float = 0.0) -> dict[tuple[str, str], float]:
    """The same for all models on all chips."""
    return {(model, chip): value for model in MODELS for chip in CHIPS}
