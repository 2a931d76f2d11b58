"""The figures that the report's interactive charts draw, as one JSON-ready object."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from results.front import ParetoFront, comparable, knee
from results.plots import TOPOLOGY_COLOURS
from results.tables import main_metrics
from results.trials import TrialRecord
from results.words import (
    arrows,
    band_text,
    describe_load,
    describe_plan,
    describe_settings,
    metric_axis,
    metric_heading,
    value_text,
)


def chart_data(
    trials: Sequence[TrialRecord], front: ParetoFront, history: Sequence[float]
) -> dict[str, object]:
    """What the page's script draws; one objective is drawn over the trials."""
    names = [objective.metric for objective in front.objectives]
    shown = main_metrics(front.objectives)
    found = comparable(trials, front.objectives)
    on_front = {point.plan.point_id for point in front.points}
    best = knee(front).plan.point_id if front.points else ""
    maximized = {o.metric for o in front.objectives if o.direction == "maximize"}
    metrics = {name: {"axis": metric_axis(name), "maximized": name in maximized} for name in shown}
    return {
        "metrics": {**metrics, "trial": {"axis": "Trial", "maximized": False}},
        "objectives": names,
        "start": names[:2] if len(names) > 1 else ["trial", names[0]],
        "colours": TOPOLOGY_COLOURS,
        "points": [_chart_point(trial, shown, on_front, best) for trial in found],
        "trials": sorted(trial.trial for trial in trials),
        "history": list(history),
    }


def _chart_point(
    trial: TrialRecord, shown: Sequence[str], on_front: set[str], best: str
) -> dict[str, object]:
    point_id = trial.plan.point_id
    values = {name: _drawable(trial.values.get(name, math.nan)) for name in shown}
    bands = {name: trial.bands[name] for name in shown if name in trial.bands}
    return {
        "id": point_id,
        "topology": trial.plan.topology,
        "front": point_id in on_front,
        "knee": point_id == best,
        "values": {**values, "trial": trial.trial},
        "bands": {name: band for name, band in bands.items() if all(map(math.isfinite, band))},
        "hover": _hover(trial, shown),
    }


def _hover(trial: TrialRecord, shown: Sequence[str]) -> str:
    """The text beside a point, in the small HTML that the chart library reads."""
    plan = trial.plan
    lines = [_hover_line(trial, name) for name in shown if name in trial.values]
    head = [arrows(describe_plan(plan)), describe_load(plan), describe_settings(plan)]
    first, *rest = [html.escape(line) for line in [*head, *lines]]
    return "<br>".join([f"<b>{first}</b>", *rest, f"point {plan.point_id}, trial {trial.trial}"])


def _hover_line(trial: TrialRecord, metric: str) -> str:
    band = band_text(trial, metric)
    range_ = f" ({band})" if band else ""
    return f"{metric_heading(metric)}: {value_text(trial, metric)}{range_}"


def _drawable(value: float) -> float | None:
    return value if math.isfinite(value) else None
