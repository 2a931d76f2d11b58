"""What is in a trace, as a picture."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from results.files import write_atomically
from results.labels import INK, SOFT_INK
from results.plots import GRID, OKABE_ITO

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Values = npt.NDArray[np.float64]
CURVE_POINTS = 400
TIME_UNITS = (("days", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def draw_trace(
    path: Path,
    title: str,
    samples: Mapping[str, Values],
    arrival_s: Values,
    hit_by_cache_tokens: Mapping[str, float],
    endless_hit: float | None = None,
) -> None:
    """Write a PNG of 1600 x 1000 pixels with four panels.

    They show the distributions of lengths and, where there are sessions, of pauses, from
    `samples` by name; the arrivals in time; and the hit rate against the size of the cache, with
    that of an endless one.
    """
    from matplotlib.figure import Figure  # an eighth of a second that other commands can save

    figure = Figure(figsize=(16, 10), dpi=100, facecolor="white", layout="constrained")
    figure.suptitle(title, color=INK, fontsize=16)
    lengths, pauses, arrivals, hits = figure.subplots(2, 2).flat
    tokens = {name: values for name, values in samples.items() if name.endswith("_tokens")}
    _distributions(lengths, tokens, "Tokens of a request", "there are no requests")
    pause_s = {name: samples[name] for name in ("pause_s",) if name in samples}
    _distributions(pauses, pause_s, "Pause before a turn, s", "no turn pauses after another")
    _arrivals(arrivals, arrival_s)
    _hits(hits, hit_by_cache_tokens, endless_hit)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", metadata={"Software": None})
    write_atomically(path, picture.getvalue())


def _distributions(axes: Axes, samples: Mapping[str, Values], label: str, none: str) -> None:
    _prepare(axes, label, "Share below, %")
    shares = np.linspace(0, 100, CURVE_POINTS)
    drawn = False
    for colour, (name, values) in zip(OKABE_ITO, samples.items(), strict=False):
        if len(values) and values.max() > 0:
            points = np.maximum(np.percentile(values, shares), _least(values))
            axes.plot(points, shares, color=colour, label=name.replace("_", " "))
            drawn = True
    if drawn:
        axes.set_xscale("log")
        axes.legend(frameon=False)
    else:
        _say(axes, none)


def _least(values: Values) -> float:
    """Zeros stand at the smallest positive value of a logarithmic axis."""
    return float(values[values > 0].min())


def _arrivals(axes: Axes, arrival_s: Values) -> None:
    span_s = float(arrival_s[-1])
    unit, seconds = next((u, n) for u, n in TIME_UNITS if span_s >= 3 * n or n == 1)
    _prepare(axes, f"Time, {unit}", "Arrivals per second")
    if not span_s > 0:
        _say(axes, "all requests arrive at one moment, or no times are recorded")
        return
    counts, edges = np.histogram(arrival_s, bins=min(120, max(10, len(arrival_s) // 20)))
    rates = counts / np.diff(edges)
    axes.stairs(rates, edges / seconds, color=OKABE_ITO[0], fill=True, alpha=0.6)


def _hits(axes: Axes, hit_by_cache_tokens: Mapping[str, float], endless: float | None) -> None:
    _prepare(axes, "Tokens in the cache", "Input found in the cache, %")
    if not hit_by_cache_tokens:
        _say(axes, "nothing is known of prefixes")
        return
    sizes = [int(size) for size in hit_by_cache_tokens]
    axes.plot(sizes, [100 * hit for hit in hit_by_cache_tokens.values()], "o-", color=OKABE_ITO[2])
    if endless is not None:
        label = f"endless cache: {100 * endless:.1f} %"
        axes.axhline(100 * endless, color=SOFT_INK, linestyle="--", linewidth=1, label=label)
        axes.legend(frameon=False, loc="lower right")
    axes.set_xscale("log")
    axes.set_ylim(0, 100)


def _prepare(axes: Any, x: str, y: str) -> None:
    axes.set_xlabel(x, color=SOFT_INK)
    axes.set_ylabel(y, color=SOFT_INK)
    axes.set_axisbelow(True)
    axes.grid(color=GRID)
    axes.spines[["top", "right"]].set_visible(False)


def _say(axes: Any, words: str) -> None:
    """An empty panel that says why."""
    axes.text(0.5, 0.5, words, ha="center", color=SOFT_INK, transform=axes.transAxes)
    axes.set(xticks=[], yticks=[], ylabel="")
    axes.spines[:].set_visible(False)
