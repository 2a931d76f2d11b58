"""Each point simulated at its own mapping, load and lengths; what cannot be is told why."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from objectives.assess import assess
from objectives.cost.overheads import load_overheads
from objectives.cost.tuning import tuning_of
from objectives.uncertainty import ratios_of
from objectives.validation.deployment import deployed
from objectives.validation.history import with_cached_history
from objectives.validation.points import THROUGHPUT, Point, Setup
from objectives.validation.requests import requests_of
from objectives.validation.scope import contradiction
from spaces.calibration import Calibration, Quantity
from spaces.errors import InputError
from spaces.feasibility import infeasible
from spaces.plan import DeploymentPlan
from spaces.site import Site

METRICS = {
    "tpot": "tpot_p50_ms",
    "ttft": "ttft_p50_ms",
    THROUGHPUT: "run_output_tokens_per_s_per_chip",
    "tpot_mean": "tpot_mean_ms",
    "ttft_mean": "ttft_mean_ms",
}

# What kind of residual each quantity has.
KINDS: dict[str, Quantity] = {
    "tpot": "tpot",
    "ttft": "ttft",
    THROUGHPUT: "throughput",
    "tpot_mean": "tpot",
    "ttft_mean": "ttft",
}

Band = tuple[float, float]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Predicted:
    """A point that could be predicted: what was simulated, and all metrics of the simulation."""

    point: Point
    plan: DeploymentPlan
    site: Site
    metrics: Mapping[str, float]

    @property
    def values(self) -> dict[str, float]:
        """The predicted quantities, in the units of `Point.measured`."""
        return {q: self.metrics[metric] for q, metric in METRICS.items() if metric in self.metrics}

    @property
    def bands(self) -> dict[str, Band]:
        """The 80 % interval of each of them."""
        return {quantity: self._band(quantity, value) for quantity, value in self.values.items()}

    def _band(self, quantity: str, value: float) -> Band:
        low, high = ratios_of(KINDS[quantity], self.metrics, self.plan, self.site)
        return value * low, value * high


@dataclass(frozen=True, slots=True)
class Unpredicted:
    """A point without a prediction, and why."""

    point: Point
    reason: str


@dataclass(frozen=True, slots=True)
class Predictions:
    """What became of the points: predicted, left out by the rules of scope, or refused."""

    predicted: tuple[Predicted, ...]
    left_out: tuple[Unpredicted, ...]
    refused: tuple[Unpredicted, ...]


def predict_all(
    points: Sequence[Point],
    progress: Progress | None = None,
    calibration: Calibration | None = None,
) -> Predictions:
    """Simulate the points, several at once: the compiled loop leaves Python's lock alone.

    Under `calibration`, or the shipped one where it is None. Raises `InputError` where that names
    a constant that the cost model lacks.
    """
    changes = calibration.changes if calibration else ()
    load_overheads(changes)
    tuning_of(changes, "")
    reasons = [(point, contradiction(point.setup)) for point in points]
    scored = [point for point, reason in reasons if reason is None]
    predicted, refused = [], []
    for point, outcome in zip(scored, _outcomes(scored, progress, calibration), strict=True):
        if isinstance(outcome, str):
            refused.append(Unpredicted(point, outcome))
        else:
            predicted.append(Predicted(point, *outcome))
    left_out = [Unpredicted(point, reason) for point, reason in reasons if reason is not None]
    return Predictions(tuple(predicted), tuple(left_out), tuple(refused))


Answer = tuple[DeploymentPlan, Site, Mapping[str, float]]


def _outcomes(
    points: Sequence[Point], progress: Progress | None, calibration: Calibration | None
) -> Iterable[Answer | str]:
    """The answer for each point or the reason why there is none; equal setups are asked once."""
    setups = list(dict.fromkeys(point.setup for point in points))
    answers: dict[Setup, Answer | str] = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        pairs = zip(
            setups, pool.map(partial(_answer, calibration=calibration), setups), strict=True
        )
        for done, (setup, answer) in enumerate(pairs, 1):
            answers[setup] = answer
            if progress is not None:
                progress(done, len(setups))
    return [answers[point.setup] for point in points]


def _answer(setup: Setup, calibration: Calibration | None) -> Answer | str:
    try:
        return predict(setup, calibration)
    except InputError as refusal:
        about = f" ({refusal.value})" if refusal.value is not None else ""
        return f"{refusal.rule}{about}"


def predict(setup: Setup, calibration: Calibration | None = None) -> Answer:
    """The plan, its site and the metrics of its simulation; `InputError` where it is refused."""
    workload = requests_of(setup)
    longest = int((workload.input_tokens + workload.output_tokens).max())
    plan, site = deployed(setup, longest, calibration)
    remembered = with_cached_history(setup, plan, site)
    if remembered != setup:
        workload = requests_of(remembered)
        plan = plan.model_copy(update={"prefix_caching": True})
    refusal = infeasible(plan, site)
    # A deployment that was measured exists, whatever layouts its engine documents (redundant
    # experts make sizes possible that do not divide their number); memory it must have had.
    if refusal is not None and refusal.rule != "layout":
        raise InputError(f"infeasible: {refusal.rule}")
    found = assess(plan, site, workload)
    rate = found.run_output_tokens_per_s / plan.chips
    return plan, site, found.metrics | {METRICS[THROUGHPUT]: rate}
