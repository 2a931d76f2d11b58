"""What accuracy is aimed at, and how far a validation is from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Goal:
    """Median and mean error in percent at most, over the points of a mode; `peer` has the best
    public tool's on like points (aiconfigurator, `silicon_vs_aic`).
    """

    name: str
    quantity: str
    mode: str | None
    median_pct: float
    mean_pct: float
    peer: str


THROUGHPUT = "output_throughput_per_chip"
GOALS = (
    Goal("TPOT, aggregated", "tpot", "agg", 8, 12, "20 / 32"),
    Goal("TPOT, disaggregated", "tpot", "disagg", 10, 15, "16 / 23"),
    Goal("output tokens/s/chip", THROUGHPUT, None, 8, 12, "-"),
    Goal("median TTFT, aggregated", "ttft", "agg", 20, 40, "48 / 62, of means"),
)
ANSWERED_PCT, COVERED = 95.0, (0.75, 0.85)
HEADINGS = ("figure", "goal", "here", "missed by", "best public tool on like points")
Row = tuple[str, str, str, str, str]


def goal_rows(overall: Mapping[str, Any], by_mode: Sequence[Mapping[str, Any]]) -> list[Row]:
    """One line for each goal; `by_mode` are the groups of a document by mode."""
    modes = {group["group"]["mode"]: group for group in by_mode}
    rows = [_row(goal, modes.get(goal.mode, {}) if goal.mode else overall) for goal in GOALS]
    answered = overall["answered_pct"]
    share = _missed(ANSWERED_PCT - answered)
    rows.append(("rows answered", f">= {ANSWERED_PCT:.0f} %", f"{answered:.1f} %", share, "41 %"))
    for quantity in ("tpot", "ttft", THROUGHPUT):
        if quantity in overall and overall[quantity]["interval_coverage"] is not None:
            rows.append(_coverage(quantity, overall[quantity]["interval_coverage"]))
    return rows


def _row(goal: Goal, group: Mapping[str, Any]) -> Row:
    wanted = f"<= {goal.median_pct:.0f} / {goal.mean_pct:.0f} %"
    if goal.quantity not in group:
        return goal.name, wanted, "no points", "-", goal.peer
    one = group[goal.quantity]
    median, mean = one["median_ape_pct"], one["mape_pct"]
    over = [_missed(median - goal.median_pct), _missed(mean - goal.mean_pct)]
    told = "-" if over == ["-", "-"] else " / ".join(over)
    return f"{goal.name}, median / mean", wanted, f"{median:.1f} / {mean:.1f} %", told, goal.peer


def _coverage(quantity: str, share: float) -> Row:
    low, high = COVERED
    missed = _missed(100 * max(low - share, share - high))
    name = f"80 % interval of {quantity.replace('_', ' ')} covers"
    return name, f"{100 * low:.0f} to {100 * high:.0f} %", f"{100 * share:.0f} %", missed, "-"


def _missed(points: float) -> str:
    return f"{points:.1f}" if points > 0 else "-"
