"""The report of a study: one HTML file that works offline and loads nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from objectives.goals import Objective
from objectives.metrics import metric_of
from results.chart import chart_data
from results.files import write_atomically
from results.front import ParetoFront, has_values, knee
from results.plots import TOPOLOGY_COLOURS
from results.pools import pool_columns, pool_rows
from results.refusals import Refusal, count_refusals
from results.rests_on import ground_counts, interval_rows
from results.tables import main_metrics
from results.trials import TrialRecord
from results.words import (
    arrows,
    band_text,
    describe_load,
    describe_plan,
    describe_settings,
    format_value,
    metric_heading,
    metric_title,
    value_text,
)
from spaces.plan import DeploymentPlan

if TYPE_CHECKING:
    from objectives.provenance import Provenance

Importances = Mapping[str, Mapping[str, float]]
TEMPLATES = Path(__file__).parent / "templates"
OUTCOMES = {
    "refused": "refused before simulation",
    "missed": "simulated, but beyond the constraint",
    "failed": "the evaluation broke off",
}


def write_report(
    path: Path,
    *,
    title: str,
    job_yaml: str,
    trials: Sequence[TrialRecord],
    front: ParetoFront,
    history: Sequence[float],
    notes: Sequence[str],
    importances: Importances | None = None,
    provenance: Provenance | None = None,
) -> None:
    """Write `report.html`: the answer, the front, why plans were refused, and the job.

    `history` is the hypervolume after each trial in order of trial number, `notes` the estimates
    that the results rest on, `importances` the share (0 to 1) of each search parameter, by
    metric, and `provenance` says which costs were measured and where the intervals are from.
    Without a point on the front there are no charts. The same input gives the same bytes.
    """
    import jinja2
    import markupsafe
    from plotly.offline import get_plotlyjs

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    page = environment.get_template("report.html.j2").render(
        title=title,
        answer=_answer(trials, front),
        tiles=_tiles(trials, front),
        columns=_table_columns(front),
        rows=_table_rows(front),
        pool_columns=pool_columns(),
        pool_rows=pool_rows(front.points),
        has_history=bool(history and front.points),
        reference_words=_reference_words(front),
        set_aside=_set_aside(trials, front),
        refusals=[_refusal_row(refusal) for refusal in count_refusals(trials)],
        importances=_importance_bars(importances or {}),
        notes=notes,
        provenance=provenance,
        intervals=interval_rows(front.points, provenance) if provenance else [],
        ground_counts=ground_counts(provenance) if provenance else "",
        job_yaml=job_yaml,
        chart=chart_data(trials, front, history),
        plotly_js=markupsafe.Markup(get_plotlyjs()),
    )
    write_atomically(path, page)


def _answer(trials: Sequence[TrialRecord], front: ParetoFront) -> list[str]:
    """The outcome in two sentences: the ends of the front, then its knee."""
    feasible = sum(trial.feasible for trial in trials)
    if not feasible:
        return [f"None of {len(trials):,} trials is feasible; the table below says why."]
    if not front.points:
        return [f"None of {feasible:,} feasible trials has a finite value of each objective."]
    ends = "; ".join(_best_in_words(front, objective) for objective in front.objectives)
    counts = f"Of {len(trials):,} trials, {feasible:,} are feasible"
    if len(front.objectives) == 1:
        return [f"{counts}: {ends}."]
    middle = knee(front)
    values = " and ".join(_value_in_words(middle, o.metric) for o in front.objectives)
    size = "1 is" if len(front.points) == 1 else f"{len(front.points)} are"
    return [
        f"{counts} and {size} on the front: {ends}.",
        f"The knee, the best compromise, is {_words(middle.plan)}: {values}.",
    ]


def _best_in_words(front: ParetoFront, objective: Objective) -> str:
    best = min(front.points, key=lambda p: objective.loss(p.values[objective.metric]))
    value = _value_in_words(best, objective.metric)
    return f"the best {metric_title(objective.metric)} is {value} from {_words(best.plan)}"


def _value_in_words(point: TrialRecord, metric: str) -> str:
    return f"{format_value(point.values[metric])} {metric_of(metric).unit}"


def _words(plan: DeploymentPlan) -> str:
    return f"{arrows(describe_plan(plan))} at {describe_load(plan)}"


def _tiles(trials: Sequence[TrialRecord], front: ParetoFront) -> list[dict[str, str]]:
    simulated = sum(t.state == "complete" and t.same_as is None for t in trials)
    tiles = {
        "trials": f"{len(trials):,}",
        "points simulated": f"{simulated:,}",
        "feasible trials": f"{sum(trial.feasible for trial in trials):,}",
        "points on the front": f"{len(front.points):,}",
        "hypervolume": format_value(front.hypervolume),
    }
    return [{"name": name, "value": value} for name, value in tiles.items()]


def _table_columns(front: ParetoFront) -> list[dict[str, object]]:
    words = {
        "point": "names the plan at its load, for choose and export",
        "deployment": "replicas x [layout] chip of each pool, in the order a request meets them",
        "load": "what the whole deployment was asked to serve",
    }
    fixed = [{"heading": h, "meaning": m, "number": False} for h, m in words.items()]
    metrics = [
        {"heading": metric_heading(m), "meaning": metric_of(m).meaning, "number": True}
        for m in main_metrics(front.objectives)
    ]
    return [*fixed, *metrics]


def _table_rows(front: ParetoFront) -> list[dict[str, object]]:
    metrics = main_metrics(front.objectives)
    best = knee(front) if front.points else None
    return [_table_row(point, metrics) | {"knee": point is best} for point in front.points]


def _table_row(point: TrialRecord, metrics: Sequence[str]) -> dict[str, object]:
    load = point.plan.load
    return {
        "point_id": point.plan.point_id,
        "plan": arrows(describe_plan(point.plan)),
        "settings": describe_settings(point.plan),
        "colour": TOPOLOGY_COLOURS[point.plan.topology],
        "load": describe_load(point.plan),
        "load_value": load.value if load else "",
        "cells": [_cell(point, metric) for metric in metrics],
        "yaml": point.plan.to_yaml(),
    }


def _cell(point: TrialRecord, metric: str) -> dict[str, object]:
    return {
        "value": point.values.get(metric, ""),
        "text": value_text(point, metric),
        "band": band_text(point, metric),
    }


def _reference_words(front: ParetoFront) -> str:
    pairs = zip(front.objectives, front.reference_point, strict=False)
    return ", ".join(f"{metric_title(o.metric)} = {format_value(v)}" for o, v in pairs)


def _set_aside(trials: Sequence[TrialRecord], front: ParetoFront) -> list[str]:
    """What else keeps a trial off the front without being a refusal."""
    repeats = sum(trial.same_as is not None for trial in trials)
    blind = sum(t.feasible and not has_values(t, front.objectives) for t in trials)
    sentences = []
    pruned = sum(trial.state == "pruned" and trial.same_as is None for trial in trials)
    if pruned:
        sentences.append(
            f"Plans that a short simulation showed to be too far from the front: {pruned:,}."
        )
    if repeats:
        sentences.append(f"Trials that asked again for an earlier point: {repeats:,}.")
    if blind:
        sentences.append(f"Feasible trials without a finite value of each objective: {blind:,}.")
    return sentences


def _refusal_row(refusal: Refusal) -> dict[str, object]:
    beyond = "" if math.isnan(refusal.excess) else f", {refusal.excess:.1%} beyond"
    reason = refusal.nearest.reason
    why = f": {reason}" if reason and reason != refusal.rule else ""
    return {
        "rule": refusal.rule,
        "outcome": OUTCOMES[refusal.stage],
        "trials": f"{refusal.trials:,}",
        "nearest": f"trial {refusal.nearest.trial}{beyond}{why}",
    }


def _importance_bars(importances: Importances) -> list[dict[str, object]]:
    return [
        {
            "title": metric_title(metric),
            "bars": [
                {"name": name, "width": f"{100 * share:.1f}", "share": f"{share:.0%}"}
                for name, share in sorted(shares.items(), key=lambda pair: (-pair[1], pair[0]))
            ],
        }
        for metric, shares in importances.items()
    ]
