"""Names beside points of a front, placed so that they cover neither each other nor a point."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from results.front import ParetoFront, knee
from results.trials import TrialRecord
from results.words import arrows, describe_load, describe_plan

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox

MAX_LABELS = 6
INK, SOFT_INK = "#1F2933", "#6B7785"


def label_points(axes: Axes, front: ParetoFront) -> None:
    """Name up to six points of a front of two objectives; a name that fits nowhere is left out.

    The axes must have their final scales and limits.
    """
    places = [_place(point, front) for point in front.points]
    marks = axes.transData.transform(places)
    taken: list[Bbox] = []
    bend = front.points.index(knee(front))
    for index in _points_to_name(marks, bend):
        words = _words(front.points[index], index == bend)
        for offset in _offsets(front):
            label = _label(axes, words, places[index], offset, index == bend)
            box = _text_box(label).padded(4)
            hides = any(box.padded(5).contains(*mark) for mark in marks)
            if _inside(axes, box) and not hides and not any(box.overlaps(b) for b in taken):
                taken.append(box)
                break
            label.remove()


def _points_to_name(marks: npt.NDArray[np.float64], bend: int) -> list[int]:
    """The knee, the ends, then always the point farthest on the picture from those named."""
    named = list(dict.fromkeys([bend, 0, len(marks) - 1]))

    def distance(index: int) -> float:
        return min(math.dist(marks[index], marks[other]) for other in named)

    while len(named) < min(MAX_LABELS, len(marks)):
        named.append(max((i for i in range(len(marks)) if i not in named), key=distance))
    return named


def _offsets(front: ParetoFront) -> Iterator[tuple[float, float]]:
    """One place after another, nearest first; the side that is better in both is empty."""
    right, up = (1 if o.direction == "maximize" else -1 for o in front.objectives)
    for side_x, side_y in ((right, up), (-right, -up), (right, -up), (-right, up)):
        for distance in (24.0, 44.0, 70.0, 100.0, 140.0):
            for across, along in ((1.0, 0.7), (1.0, 0.15), (0.35, 1.0)):
                yield side_x * distance * across, side_y * distance * along


def _label(
    axes: Axes,
    words: str,
    place: tuple[float, float],
    offset: tuple[float, float],
    is_knee: bool,
) -> Annotation:
    from matplotlib.patheffects import withStroke

    return axes.annotate(
        words,
        place,
        xytext=offset,
        textcoords="offset points",
        fontsize=12,
        linespacing=1.35,
        color=INK,
        parse_math=False,
        weight="bold" if is_knee else "normal",
        ha="left" if offset[0] > 0 else "right",
        va="bottom" if offset[1] > 0 else "top",
        zorder=8,
        path_effects=[withStroke(linewidth=3, foreground="white")],
        arrowprops={"arrowstyle": "-", "color": SOFT_INK, "lw": 0.9, "shrinkA": 1, "shrinkB": 6},
    )


def _words(point: TrialRecord, is_knee: bool) -> str:
    words = f"{arrows(describe_plan(point.plan))}\n{describe_load(point.plan)}"
    return f"knee: {words}" if is_knee else words


def _text_box(label: Annotation) -> Bbox:
    """The box of the words alone; an annotation's own box reaches to the point it names."""
    from matplotlib.text import Text

    label.get_window_extent()  # settles where the words stand
    return Text.get_window_extent(label)


def _inside(axes: Axes, box: Bbox) -> bool:
    frame = axes.get_window_extent()
    return frame.contains(box.x0, box.y0) and frame.contains(box.x1, box.y1)


def _place(point: TrialRecord, front: ParetoFront) -> tuple[float, float]:
    x, y = front.objectives
    return point.values[x.metric], point.values[y.metric]
