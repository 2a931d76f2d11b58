"""How far predictions are from measurements: writes the residuals that the bands rest on.

Usage: python scripts/measure_accuracy.py [POINTS.csv]   (default: $SERVEFRONT_DATA/measured)

Simulates every aggregated closed-loop point of the best grade at its own mapping, prints an error
table, and writes `objectives/uncertainty.yaml` and the tables of `docs/accuracy.md`. The only
numbers fitted to these points are the front-end times by engine (for TTFT): a point's TTFT is
scored with front-end times fitted without its model and chip.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from pathlib import Path
from statistics import median

import numpy as np

from objectives.cost import frontend_seconds
from objectives.validation import Point, Validation, validate
from spaces.documents import dump_yaml
from spaces.plan import EngineName

ROOT = Path(__file__).parent.parent
SOURCE = (
    "public serving points of InferenceX and others, grade A, aggregated, closed loop, without "
    "speculation; quantiles 10 % and 90 % of measured / predicted"
)
COMMAND = "python scripts/measure_accuracy.py"
QUANTITIES = ("tpot", "ttft", "throughput")


def main() -> None:
    """Run as a command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    data = Path(os.environ.get("SERVEFRONT_DATA", ROOT.parent / "shared"))
    default = data / "measured" / "serving_points.csv"
    parser.add_argument("points", type=Path, nargs="?", default=default)
    told = validate(parser.parse_args().points)
    table = error_table(told)
    print(table)
    (ROOT / "docs" / "accuracy.md").write_text(document(told, table), encoding="utf-8")
    (ROOT / "objectives" / "uncertainty.yaml").write_text(
        dump_yaml(residuals(told)), encoding="utf-8"
    )


def ratios(points: Iterable[Point], everything: Validation, quantity: str) -> np.ndarray:
    """Measured over predicted, where the quantity was measured."""
    return np.array(
        [
            point.measured[quantity] / _predicted(point, everything, quantity)
            for point in points
            if quantity in point.measured
        ]
    )


def _predicted(point: Point, everything: Validation, quantity: str) -> float:
    """The prediction; TTFT with front-end times that have not seen the point's model and chip."""
    if quantity != "ttft":
        return point.predicted[quantity]
    others = [p for p in everything.points if (p.model, p.chip) != (point.model, point.chip)]
    fitted = frontend_ms(others, point.engine)
    return point.predicted["ttft"] - _shipped_ms(point.engine) + fitted


def frontend_ms(points: Iterable[Point], engine: EngineName) -> float:
    """Median of what measured TTFT exceeds the simulated one by, front end apart, at low load."""
    excess = [
        point.measured["ttft"] - point.predicted["ttft"] + _shipped_ms(engine)
        for point in points
        if point.engine == engine and "ttft" in point.measured and point.concurrency <= 16
    ]
    return max(0.0, median(excess)) if excess else _shipped_ms(engine)


def _shipped_ms(engine: EngineName) -> float:
    return frontend_seconds(engine) * 1e3


def error_table(told: Validation) -> str:
    """Errors by group as a Markdown table, and the front-end times all points give."""
    lines = [
        "| group | quantity | points | median error % | mean error % | bias % | within 20 % |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, points in groups(told):
        for quantity in QUANTITIES:
            found = ratios(points, told, quantity)
            if len(found) >= 5:
                lines.append(f"| {name} | {quantity} | {len(found)} | {_errors(found)} |")
    engines = sorted({point.engine for point in told.points})
    times = ", ".join(f"{e} {frontend_ms(told.points, e):.0f}" for e in engines)
    return "\n".join([*lines, "", f"Front-end times that all points give, ms: {times}."])


def _errors(found: np.ndarray) -> str:
    error = np.abs(1 / found - 1) * 100
    bias = np.median(1 / found - 1) * 100
    near = np.mean(error <= 20) * 100
    return f"{np.median(error):.1f} | {np.mean(error):.1f} | {bias:+.1f} | {near:.0f} %"


def groups(told: Validation) -> list[tuple[str, list[Point]]]:
    """All points, then by engine, chip and model."""
    found = [("all", list(told.points))]
    for key in ("engine", "chip", "model"):
        for value in sorted({getattr(point, key) for point in told.points}):
            found.append((value, [p for p in told.points if getattr(p, key) == value]))
    return found


def residuals(told: Validation) -> dict[str, object]:
    """The content of `objectives/uncertainty.yaml`."""
    vendors = sorted({point.vendor for point in told.points})
    measured = {
        vendor: _quantiles([p for p in told.points if p.vendor == vendor], told)
        for vendor in vendors
    }
    table: dict[str, object] = {
        vendor: {"points": sum(p.vendor == vendor for p in told.points), **measured[vendor]}
        for vendor in vendors
    }
    return {
        "source": SOURCE,
        "command": COMMAND,
        "checked": "2026-12-01",
        "vendors": {**table, "other": {"points": 0, **_widest(list(measured.values()))}},
    }


def _quantiles(points: list[Point], told: Validation) -> dict[str, list[float]]:
    return {
        quantity: [round(float(q), 3) for q in np.quantile(found, [0.1, 0.9])]
        for quantity in QUANTITIES
        if len(found := ratios(points, told, quantity))
    }


def _widest(measured: list[dict[str, list[float]]]) -> dict[str, list[float]]:
    """For vendors nobody measured: the widest band of the others and a quarter more, a guess."""
    return {
        quantity: [
            round(min(bands[quantity][0] for bands in measured) / 1.25, 3),
            round(max(bands[quantity][1] for bands in measured) * 1.25, 3),
        ]
        for quantity in QUANTITIES
    }


def document(told: Validation, table: str) -> str:
    """The text of `docs/accuracy.md`."""
    refused = "\n".join(f"- {count}: {reason}" for reason, count in told.refused.items())
    return f"""# Accuracy

Written by `{COMMAND}`; do not edit. {SOURCE[0].upper()}{SOURCE[1:]}.

{told.rows} rows are in scope; repeats of one configuration, load and software version count once,
as their median, which gives {len(told.points)} points. TPOT and TTFT are medians over requests,
throughput is output tokens/s per chip. An error is |predicted / measured - 1|; bias is the median
of predicted / measured - 1.

What these figures are: no constant was fitted to a row, a model or a chip, but seven global
numbers of the cost model (docs/cost_model.md) were set by hand with points of this kind in view,
so TPOT and throughput are a little better here than they would be on points nobody has seen. TTFT
is scored with front-end times by engine that are fitted without the point's own model and chip.

Rows without a prediction:

{refused}

{table}
"""


if __name__ == "__main__":
    main()
