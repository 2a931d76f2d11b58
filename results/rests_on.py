"""What the answers of a study rest on: measured costs, estimates, and the points like them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from results.trials import TrialRecord
from results.words import format_value
from spaces.calibration import Knowledge, Quantity, Residuals

if TYPE_CHECKING:
    from objectives.provenance import Provenance

_QUANTITIES: dict[Quantity, str] = {
    "tpot": "TPOT",
    "ttft": "median TTFT",
    "throughput": "output throughput",
}
_SEEN: dict[Knowledge, str] = {
    "pair": "the same model and chip, in a configuration that the fit had not seen",
    "chip": "a model that the fit had not seen on the chip",
    "vendor": "a chip that the fit had not seen",
    "none": "chips of a vendor that the fit had not seen",
}
_NOBODY = "no measured point is like it: a guess"


def interval_rows(points: Sequence[TrialRecord], provenance: Provenance) -> list[dict[str, str]]:
    """Of each quantity the intervals that the points have, and the measured points behind them."""
    rows = []
    for quantity, title in _QUANTITIES.items():
        found = Counter(provenance.residuals_of(quantity, p.plan, p.values) for p in points)
        rows += [_interval_row(title, row, count) for row, count in found.items()]
    return rows


def _interval_row(title: str, row: Residuals | None, count: int) -> dict[str, str]:
    band = "" if row is None else f"{format_value(row.low)} to {format_value(row.high)}"
    return {
        "quantity": title,
        "band": band,
        "like": _NOBODY if row is None else ", ".join(_kind_of(row)),
        "measured": "" if row is None else f"{row.points:,}",
        "points": f"{count:,}",
    }


def _kind_of(row: Residuals) -> list[str]:
    """The kind of measured points that a row was made from."""
    words = [_SEEN[row.knowledge]]
    if row.disaggregated is not None:
        words.append("pools apart" if row.disaggregated else "one pool")
    if row.strained is not None:
        words.append("requests queue" if row.strained else "short queues")
    return words


def ground_counts(provenance: Provenance) -> str:
    """How many of the grounds have which status, the surest first.

    Statuses: measured, fitted to measurements, derived from them, published, an estimate.
    """
    counts = Counter(ground.status for ground in provenance.grounds)
    order = ("measured", "fitted", "derived", "published", "spec", "estimate", "contradictory")
    return ", ".join(f"{counts[status]} {status}" for status in order if counts[status])
