"""Each point simulated at its own mapping, load and lengths; what cannot be is told why."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from objectives.assess import assess
from objectives.validation.deployment import deployed
from objectives.validation.points import THROUGHPUT, Point, Setup
from objectives.validation.requests import requests_of
from objectives.validation.scope import contradiction
from spaces.errors import InputError
from spaces.feasibility import infeasible
from spaces.plan import DeploymentPlan
from spaces.site import Site

METRICS = {
    "tpot": "tpot_p50_ms",
    "ttft": "ttft_p50_ms",
    THROUGHPUT: "output_tokens_per_s_per_chip",
    "tpot_mean": "tpot_mean_ms",
    "ttft_mean": "ttft_mean_ms",
}

Band = tuple[float, float]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Predicted:
    """A point that could be predicted, in the units of `Point.measured`.

    `bands` has the 80 % interval of each value; `plan` and `site` are what was simulated.
    """

    point: Point
    plan: DeploymentPlan
    site: Site
    values: dict[str, float]
    bands: dict[str, Band]


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


def predict_all(points: Sequence[Point], progress: Progress | None = None) -> Predictions:
    """Simulate the points, several at once: the compiled loop leaves Python's lock alone."""
    reasons = [(point, contradiction(point.setup)) for point in points]
    scored = [point for point, reason in reasons if reason is None]
    predicted, refused = [], []
    for point, outcome in zip(scored, _outcomes(scored, progress), strict=True):
        if isinstance(outcome, str):
            refused.append(Unpredicted(point, outcome))
        else:
            predicted.append(Predicted(point, *outcome))
    left_out = [Unpredicted(point, reason) for point, reason in reasons if reason is not None]
    return Predictions(tuple(predicted), tuple(left_out), tuple(refused))


Answer = tuple[DeploymentPlan, Site, dict[str, float], dict[str, Band]]


def _outcomes(points: Sequence[Point], progress: Progress | None) -> Iterable[Answer | str]:
    """The answer for each point or the reason why there is none; equal setups are asked once."""
    setups = list(dict.fromkeys(point.setup for point in points))
    answers: dict[Setup, Answer | str] = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        pairs = zip(setups, pool.map(_answer, setups), strict=True)
        for done, (setup, answer) in enumerate(pairs, 1):
            answers[setup] = answer
            if progress is not None:
                progress(done, len(setups))
    return [answers[point.setup] for point in points]


def _answer(setup: Setup) -> Answer | str:
    try:
        return predict(setup)
    except InputError as refusal:
        about = f" ({refusal.value})" if refusal.value is not None else ""
        return f"{refusal.rule}{about}"


def predict(setup: Setup) -> Answer:
    """The plan, its site, and each quantity with its 80 % interval; `InputError` if refused."""
    if setup.speculation not in ("none", ""):
        raise InputError("speculative decoding is not simulated")
    if not setup.speculation:
        raise InputError("the row does not say whether tokens were speculated")
    workload = requests_of(setup)
    longest = int((workload.input_tokens + workload.output_tokens).max())
    plan, site = deployed(setup, longest)
    refusal = infeasible(plan, site)
    # A deployment that was measured exists, whatever layouts its engine documents (redundant
    # experts make sizes possible that do not divide their number); memory it must have had.
    if refusal is not None and refusal.rule != "layout":
        raise InputError(f"infeasible: {refusal.rule}")
    found = assess(plan, site, workload)
    names = {name: metric for name, metric in METRICS.items() if metric in found.metrics}
    values = {name: found.metrics[metric] for name, metric in names.items()}
    bands = {name: found.bands[metric] for name, metric in names.items() if metric in found.bands}
    return plan, site, values, bands
