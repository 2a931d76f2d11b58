"""The derived interval of end-to-end latency against measured ones, which are fitted to nowhere.

Run with `-s` to see the figures. TTFT and TPOT of these points are among those that the shipped
intervals are made of; how they go together in a request is not.
"""

from __future__ import annotations

import csv
import random
from pathlib import Path

import numpy as np

from objectives.assess import assess
from objectives.validation import predict_all, read_points
from objectives.validation.requests import requests_of

POINTS, MOST_USERS = 150, 128


def test_four_fifths_of_measured_latencies_lie_within(data_dir: Path, tmp_path: Path) -> None:
    with (data_dir / "measured" / "serving_points.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if is_wanted(row)]
    chosen = random.Random(1).sample(rows, POINTS)
    for place, row in enumerate(chosen):
        row["config_id"] = str(place)  # so that each row is a point
    path = tmp_path / "points.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, chosen[0].keys())
        writer.writeheader()
        writer.writerows(chosen)
    within, errors = [], []
    for p in predict_all(read_points(path).points).predicted:
        row = chosen[int(p.point.config)]
        name = "e2e_p50_ms" if "median" in row["notes"] else "e2e_mean_ms"
        found = assess(p.plan, p.site, requests_of(p.point.setup))
        low, high = found.bands[name]
        measured_ms = float(row["e2e_s"]) * 1e3
        within.append(low <= measured_ms <= high)
        errors.append(abs(found.metrics[name] / measured_ms - 1))
    print(
        f"{len(within)} of {len(rows):,} points: {np.mean(within):.0%} within the interval, "
        f"median error {np.median(errors):.1%}"
    )
    assert 0.7 <= np.mean(within) <= 0.93


def is_wanted(row: dict[str, str]) -> bool:
    """Whether a row of the best grade states an end-to-end latency of a closed loop."""
    users = float(row["concurrency"] or 0)
    return row["quality"] == "A" and bool(row["e2e_s"]) and 0 < users <= MOST_USERS
