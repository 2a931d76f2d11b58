"""The front as a picture for people who will not open the report."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from objectives.goals import Objective
from results.files import write_atomically
from results.front import ParetoFront, comparable, has_values, knee
from results.labels import INK, SOFT_INK, label_points
from results.refusals import count_refusals
from results.trials import TrialRecord
from results.words import (
    describe_load,
    describe_plan,
    format_value,
    metric_axis,
    metric_heading,
    metric_title,
)
from spaces.plan import TOPOLOGY_ROLES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# Okabe and Ito's palette, which colour-blind readers can tell apart; jfly.uni-koeln.de/color
OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
TOPOLOGY_COLOURS = dict(zip(TOPOLOGY_ROLES, OKABE_ITO, strict=False))
GRID, PALE, BEATEN = "#E4E8EC", "#BCC6CF", "#F5F7F9"
TITLE_LENGTH, CAPTION_LENGTH = 85, 165
# Near 0 lies the good end of a minimized metric, which a linear scale would press flat.
LOG_SCALE_FROM = {"minimize": 20.0, "maximize": 300.0}
Range = tuple[float, float]


def draw_front(
    path: Path,
    trials: Sequence[TrialRecord],
    front: ParetoFront,
    *,
    title: str = "",
    baseline: Sequence[TrialRecord] = (),
) -> None:
    """Write a PNG of 1600 x 1000 pixels: the feasible trials, the front and its knee.

    Two objectives give the front as a stepped line with whiskers for the bands and some points
    named; one gives the best value so far over the trials; three and four give a panel for
    each pair of objectives. A `baseline` is drawn beside the front of two.
    """
    from matplotlib.figure import Figure  # an eighth of a second that other commands can save

    figure = Figure(figsize=(16, 10), dpi=100, facecolor="white")
    if len(front.objectives) == 1:
        caption = _draw_progress(figure, trials, front)
    elif len(front.objectives) == 2:
        caption = _draw_plane(figure, trials, front, baseline)
    else:
        caption = _draw_pairs(figure, trials, front)
    heading = _shortened(title or "Pareto front", TITLE_LENGTH)
    figure.text(0.07, 0.95, heading, fontsize=21, weight="bold", color=INK, parse_math=False)
    caption = _shortened(f"{_counts(trials, front)}{caption}{_refused(trials)}", CAPTION_LENGTH)
    figure.text(0.07, 0.022, caption, fontsize=12.5, color=SOFT_INK, parse_math=False)
    _legend(figure)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", metadata={"Software": None})
    write_atomically(path, picture.getvalue())


def _draw_plane(
    figure: Figure,
    trials: Sequence[TrialRecord],
    front: ParetoFront,
    baseline: Sequence[TrialRecord],
) -> str:
    axes = figure.add_axes((0.07, 0.115, 0.9, 0.76))
    x, y = front.objectives
    caption = _draw_panel(axes, trials, front, x, y)
    if front.points:
        _stairs(axes, front, x, y)
        _whiskers(axes, front, x, y)
        label_points(axes, front)
    _draw_baseline(axes, [one for one in baseline if has_values(one, front.objectives)], x, y)
    return caption


def _draw_baseline(
    axes: Axes, baseline: Sequence[TrialRecord], x: Objective, y: Objective
) -> None:
    """The baseline at its loads, filled where it keeps the constraints, all within the axes."""
    if not baseline:
        return
    columns = _columns(baseline, x, y)
    fills = [INK if one.feasible else "white" for one in baseline]
    axes.scatter(*columns, s=70, marker="s", color=fills, ec=INK, lw=1.4, zorder=8).set_label(
        "baseline"
    )
    for values, limits, widen in (
        (columns[0], axes.get_xlim(), axes.set_xlim),
        (columns[1], axes.get_ylim(), axes.set_ylim),
    ):
        low, high = min(values), max(values)
        widen(min(limits[0], low / 1.1), max(limits[1], high * 1.06))


def _draw_pairs(figure: Figure, trials: Sequence[TrialRecord], front: ParetoFront) -> str:
    count = len(front.objectives)
    pairs = [(a, b) for a in range(count) for b in range(a + 1, count)]
    rows = math.ceil(len(pairs) / 3)
    edges = {"left": 0.07, "right": 0.98, "bottom": 0.115, "top": 0.875}
    grid = figure.add_gridspec(rows, 3, wspace=0.27, hspace=0.3, **edges)
    for place, (a, b) in enumerate(pairs):
        axes = figure.add_subplot(grid[place // 3, place % 3])
        x, y = front.objectives[a], front.objectives[b]
        _draw_panel(axes, trials, front, x, y)
        axes.set_xlabel(_towards(x, metric_heading(x.metric)), fontsize=12.5)
        axes.set_ylabel(_towards(y, metric_heading(y.metric)), fontsize=12.5)
    return ""


def _draw_progress(figure: Figure, trials: Sequence[TrialRecord], front: ParetoFront) -> str:
    axes = figure.add_axes((0.07, 0.115, 0.9, 0.76))
    (objective,) = front.objectives
    found = comparable(trials, front.objectives)
    values = [trial.values[objective.metric] for trial in found]
    best: list[float] = []
    for value in values:
        best.append(min([value, *best[-1:]], key=objective.loss))
    numbers = [trial.trial for trial in found]
    _style(axes)
    axes.set_xlabel("Trial", fontsize=15, color=INK, labelpad=9)
    label = _towards(objective, metric_axis(objective.metric))
    axes.set_ylabel(label, fontsize=15, color=INK, labelpad=9)
    if not found:
        return ""
    axes.scatter(numbers, values, s=34, color=PALE, linewidths=0, label="feasible trials")
    axes.step(numbers, best, where="post", color=OKABE_ITO[0], lw=2.4, label="best so far")
    winner = front.points[0]
    figure_of_best = format_value(winner.values[objective.metric])
    words = f"{describe_plan(winner.plan)}, {describe_load(winner.plan)}"
    return f" Best: {words}, {metric_title(objective.metric)} {figure_of_best}."


def _draw_panel(
    axes: Axes, trials: Sequence[TrialRecord], front: ParetoFront, x: Objective, y: Objective
) -> str:
    """Dots, front and knee on two objectives; returns what the caption must say about them."""
    _style(axes)
    axes.set_xlabel(_towards(x, metric_axis(x.metric)), fontsize=15, color=INK, labelpad=9)
    axes.set_ylabel(_towards(y, metric_axis(y.metric)), fontsize=15, color=INK, labelpad=9)
    found = comparable(trials, front.objectives)
    on_front = {point.plan.point_id for point in front.points}
    behind = [trial for trial in found if trial.plan.point_id not in on_front]
    if behind:
        axes.scatter(
            *_columns(behind, x, y), s=30, color=PALE, alpha=0.8, linewidths=0, zorder=2
        ).set_label("feasible, not on the front")
    for topology, colour in TOPOLOGY_COLOURS.items():
        points = [point for point in front.points if point.plan.topology == topology]
        if points:
            axes.scatter(
                *_columns(points, x, y), s=92, color=colour, ec="white", lw=1.3, zorder=6
            ).set_label(f"front: {topology}")
    if front.points:
        axes.scatter(
            *_columns([knee(front)], x, y), s=270, fc="none", ec=INK, lw=1.8, zorder=7
        ).set_label("knee")
    outside = _limit(axes, found, front, x, y)
    return f" {outside} feasible beyond the axes." if outside else ""


def _limit(
    axes: Axes, found: list[TrialRecord], front: ParetoFront, x: Objective, y: Objective
) -> int:
    """Set scales and limits by the front, wider for the trials; returns how many stay outside."""
    if not front.points:
        return 0
    x_range, x_log = _axis_range(found, front, x)
    y_range, y_log = _axis_range(found, front, y)
    for axis, is_log in ((axes.xaxis, x_log), (axes.yaxis, y_log)):
        if is_log:
            _make_log(axes, axis)
    axes.set(xlim=x_range, ylim=y_range)
    return sum(
        not (x_range[0] <= a <= x_range[1] and y_range[0] <= b <= y_range[1])
        for a, b in zip(*_columns(found, x, y), strict=True)
    )


def _make_log(axes: Axes, axis: Axis) -> None:
    """A logarithmic axis with ticks at 1, 2, 5, 10, 20 ..., written out as numbers."""
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    if axis is axes.xaxis:
        axes.set_xscale("log")
    else:
        axes.set_yscale("log")
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
    axis.set_minor_locator(NullLocator())


def _axis_range(
    found: list[TrialRecord], front: ParetoFront, objective: Objective
) -> tuple[Range, bool]:
    """The limits of an axis, and whether it is logarithmic.

    They hold the front with its bands, and the trials behind it as far as two or three times that:
    a few hopeless trials must not press the front into a corner.
    """
    name = objective.metric
    trials = [trial.values[name] for trial in found]
    shown = [point.values[name] for point in front.points]
    shown += [end for point in front.points for end in _band(point, name)]
    low, high = min(shown), max(shown)
    if low > 0 and high > LOG_SCALE_FROM[objective.direction] * low:
        low = min(low, max(min(trials), low / 3))
        high = max(high, min(max(trials), high * 3))
        return (low / 1.2, high * 1.2), True
    return (0.0, 1.06 * max(high, min(max(trials), 2 * high)) or 1.0), False


def _stairs(axes: Axes, front: ParetoFront, x: Objective, y: Objective) -> None:
    """The border of what the front beats, out to the worse edges, and that region shaded."""
    worst_x = axes.get_xlim()[0 if x.direction == "maximize" else 1]
    worst_y = axes.get_ylim()[0 if y.direction == "maximize" else 1]
    xs, ys = _columns(sorted(front.points, key=lambda p: -x.loss(p.values[x.metric])), x, y)
    corners = [(worst_x, ys[0])]
    for here, after, height in zip(xs, [*ys[1:], worst_y], ys, strict=True):
        corners += [(here, height), (here, after)]
    axes.plot(*zip(*corners, strict=True), color=SOFT_INK, lw=1.5, zorder=4)
    axes.fill(*zip(*corners, (worst_x, worst_y), strict=True), color=BEATEN, zorder=0.5)


def _whiskers(axes: Axes, front: ParetoFront, x: Objective, y: Objective) -> None:
    for point in front.points:
        colour = TOPOLOGY_COLOURS[point.plan.topology]
        here_x, here_y = point.values[x.metric], point.values[y.metric]
        across, along = _band(point, x.metric), _band(point, y.metric)
        axes.plot(across, [here_y] * len(across), color=colour, lw=1.4, alpha=0.3)
        axes.plot([here_x] * len(along), along, color=colour, lw=1.4, alpha=0.3)


def _band(point: TrialRecord, metric: str) -> tuple[float, ...]:
    """The ends of a band that can be drawn; empty where there is none."""
    return tuple(end for end in point.bands.get(metric, ()) if math.isfinite(end))


def _style(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(PALE)
    axes.tick_params(which="both", colors=SOFT_INK, labelsize=12.5, length=0, pad=6)
    axes.grid(color=GRID, lw=1)
    axes.set_axisbelow(True)


def _towards(objective: Objective, label: str) -> str:
    """The label with an arrow along its axis; a vertical label is turned, arrow and all."""
    return f"{label}   better →" if objective.direction == "maximize" else f"← better   {label}"


def _legend(figure: Figure) -> None:
    handles, labels = figure.axes[0].get_legend_handles_labels()
    if handles:
        figure.legend(
            handles,
            labels,
            loc="lower left",
            bbox_to_anchor=(0.067, 0.89),
            ncols=len(handles),
            frameon=False,
            fontsize=13,
            labelcolor=INK,
            handletextpad=0.3,
            columnspacing=1.8,
            borderpad=0,
            borderaxespad=0,
        )


def _counts(trials: Sequence[TrialRecord], front: ParetoFront) -> str:
    feasible = sum(trial.feasible for trial in trials)
    return f"{len(trials):,} trials, {feasible:,} feasible, {len(front.points)} on the front."


def _refused(trials: Sequence[TrialRecord]) -> str:
    reasons = ", ".join(f"{r.rule} ({r.trials})" for r in count_refusals(trials))
    return f" Not feasible: {reasons}." if reasons else ""


def _columns(
    points: Sequence[TrialRecord], x: Objective, y: Objective
) -> tuple[list[float], list[float]]:
    return [p.values[x.metric] for p in points], [p.values[y.metric] for p in points]


def _shortened(text: str, length: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1].rstrip(", ") + "…"
